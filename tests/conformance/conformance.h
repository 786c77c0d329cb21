// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a backend keeps docs/contract.md.
// Method: one test for each statement of the contract, on a fresh driver object; the feature flags
// decide which optional behaviour must be there and which must be refused. Whatever a test made is
// given back at its end. Random sequences of legal calls are held against a naive model.
//
// A backend joins with one file: a factory type and VMM_CONFORMANCE (see conformance_fake.cpp).
#pragma once

#include "addresses.h"
#include "bytes.h"
#include "memory.h"
#include "random.h"

namespace conformance {

REGISTER_TYPED_TEST_SUITE_P(
    Conformance, AFreshMappingHasNoRights, ALocationIsNamedTwice, AccessOfNothingIsRefused,
    AccessOnAPart, AccessOverAHoleIsRefused, AccessOverSeveralMappings, AccessRoundTrip,
    AStreamThatIsNotCapturedSaysSo, AliasesShareTheirMemory, BadRangesAreRefused,
    BytesAcrossMappings, CallsFromSeveralThreads, ContentsFollowTheMemory, CopiesOfNothing,
    CreateRefusesBadSizes, CreateRefusesWhatItDoesNotKnow, CreatingMoreThanThereIsIsOutOfMemory,
    EventsOrderStreams, EventsPass, FillAndCopy, FreeTakesWholeReservationsOnce,
    FreeingWhileMappedIsRefused, FreshMemoryIsZeroWhereItSaysSo, GranularityIsSane, MapAPart,
    MapOverAMappingIsRefused, MapStaysInsideAReservation, MapStaysInsideTheMemory,
    MapTheWholeHandle, MemoryComesBack, MemoryInfoIsSane, OneEventStandsForAllWork,
    PropertiesAreWhatWasGranted, RandomSequencesAgreeWithTheModel,
    ReleasedMemoryLivesWhileItIsMapped, ReserveGivesAlignedDisjointRanges, ReserveKeepsTheAlignment,
    ReserveRefusesWhatItCannotGive, ReserveTakesTheHintWhereItSaysSo,
    ReservingTheWholeAddressSpaceIsRefused, RetainGivesAHandle, RightsBelongToTheirMapping,
    SharedMemoryIsTheSameMemory, SharingIsAskedForAtCreation, StaleHandlesAreRefused,
    StreamsKeepTheirOrder, TellsWhatItIs, UnmapAPart, UnmapOfNothingChangesNothing,
    UnmapSeveralAtOnce, UnmapTakesTheMappingAway, WriteAndRead);

}  // namespace conformance

/// Holds the backend that `Factory` makes to the contract. Factory has: the type `driver`;
/// make() -> opened<driver>; unseen() -> unseen; nothing_left(driver&) -> bool;
/// close(driver&, const shared_handle&) for descriptors.
#define VMM_CONFORMANCE(Factory) \
  INSTANTIATE_TYPED_TEST_SUITE_P(Factory, Conformance, ::testing::Types<Factory>)

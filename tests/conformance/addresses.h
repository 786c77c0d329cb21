// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: addresses, mappings and rights are as docs/contract.md says.
// Method: small layouts of granules, each legal call and each refusal with the state after it.
#pragma once

#include "fixture.h"

namespace conformance {

TYPED_TEST_P(Conformance, ReserveGivesAlignedDisjointRanges) {
  std::vector<address_range> made;
  for (std::uint64_t units = 1; units <= 8; ++units) {
    const auto range = this->reserved(units);
    EXPECT_EQ(range.size_bytes, units * this->unit());
    EXPECT_EQ(range.base.value % this->unit(), 0u);
    EXPECT_TRUE(static_cast<bool>(range.base));
    for (const address_range& other : made) EXPECT_FALSE(range.overlaps(other));
    made.push_back(range);
  }
}

TYPED_TEST_P(Conformance, ReserveKeepsTheAlignment) {
  for (const std::uint64_t factor : {1U, 2U, 16U, 64U}) {
    const std::uint64_t alignment = factor * this->unit();
    const auto range = this->driver().reserve({this->unit(), alignment, {}});
    ASSERT_TRUE(fine(range));
    EXPECT_EQ(range->base.value % alignment, 0u) << alignment;
    EXPECT_TRUE(fine(this->driver().free_reservation(*range)));
  }
}

TYPED_TEST_P(Conformance, ReserveRefusesWhatItCannotGive) {
  const std::uint64_t unit = this->unit();
  const auto answer = [&](std::uint64_t size, std::uint64_t alignment) {
    return refused(this->driver().reserve({size, alignment, {}}), vmm::call::reserve,
                   {errc::invalid_argument});
  };
  EXPECT_TRUE(answer(0, 0));
  EXPECT_TRUE(answer(unit + 1, 0));
  EXPECT_TRUE(answer(unit / 2, 0));
  EXPECT_TRUE(answer(unit, 3 * unit));
}

TYPED_TEST_P(Conformance, ReserveTakesTheHintWhereItSaysSo) {
  // A place that was free a moment ago.
  const auto before = this->driver().reserve({8 * this->unit(), 0, {}});
  ASSERT_TRUE(fine(before));
  ASSERT_TRUE(fine(this->driver().free_reservation(*before)));
  const address wish = before->base + 2 * this->unit();
  const auto range = this->driver().reserve({2 * this->unit(), 0, wish});
  ASSERT_TRUE(fine(range));
  if (this->can().exact_hint) {
    EXPECT_EQ(range->base, wish);
  }
  // A place that is taken: another one, and no refusal.
  const auto other = this->driver().reserve({2 * this->unit(), 0, range->base});
  ASSERT_TRUE(fine(other));
  EXPECT_FALSE(other->overlaps(*range));
  EXPECT_TRUE(fine(this->driver().free_reservation(*other)));
  EXPECT_TRUE(fine(this->driver().free_reservation(*range)));
}

TYPED_TEST_P(Conformance, ReservingTheWholeAddressSpaceIsRefused) {
  constexpr std::uint64_t whole = std::uint64_t{1} << 47;
  EXPECT_TRUE(refused(this->driver().reserve({whole, 0, {}}), vmm::call::reserve,
                      {errc::out_of_addresses}));
}

TYPED_TEST_P(Conformance, FreeTakesWholeReservationsOnce) {
  const auto range = this->reserved(4);
  if (this->unseen().stale_handle) {
    this->freed(range);
    return;
  }
  const auto answer = [&](address_range what) {
    return refused(this->driver().free_reservation(what), vmm::call::free_reservation,
                   {errc::invalid_argument});
  };
  EXPECT_TRUE(answer(this->slots(range, 0, 2)));
  EXPECT_TRUE(answer(this->slots(range, 2, 2)));
  EXPECT_TRUE(answer(this->slots(range, 0, 8)));
  this->freed(range);
  EXPECT_TRUE(answer(range));
}

TYPED_TEST_P(Conformance, FreeingWhileMappedIsRefused) {
  if (this->unseen().free_while_mapped) GTEST_SKIP() << "this backend does not see it";
  const auto range = this->reserved(4);
  this->usable(this->slots(range, 1, 1), this->created(1));
  EXPECT_TRUE(refused(this->driver().free_reservation(range), vmm::call::free_reservation,
                      {errc::invalid_argument, errc::in_use}));
  EXPECT_EQ(this->rights_at(range.base + this->unit()), access::read_write);
}

// ---- map ----

TYPED_TEST_P(Conformance, MapTheWholeHandle) {
  const auto range = this->reserved(8);
  this->usable(this->slots(range, 0, 1), this->created(1));
  this->usable(this->slots(range, 2, 5), this->created(5));
  EXPECT_EQ(this->rights_at(range.base + 6 * this->unit()), access::read_write);
}

TYPED_TEST_P(Conformance, AFreshMappingHasNoRights) {
  const auto range = this->reserved(4);
  const auto handle = this->created(1);
  this->usable(this->slots(range, 0, 1), handle);
  this->mapped(this->slots(range, 1, 1), this->created(1));
  EXPECT_EQ(this->rights_at(range.base + this->unit()), access::none);
  // Also where another mapping had rights before.
  this->unmapped(this->slots(range, 0, 1));
  this->mapped(this->slots(range, 0, 1), handle);
  EXPECT_EQ(this->rights_at(range.base), access::none);
}

TYPED_TEST_P(Conformance, MapAPart) {
  const auto range = this->reserved(4);
  const auto handle = this->created(3);
  const auto map = [&](std::uint64_t units, std::uint64_t offset_units) {
    return this->driver().map(
        {range.base, units * this->unit(), handle, offset_units * this->unit()});
  };
  const auto first = map(2, 0);
  if (this->can().short_map) {
    ASSERT_TRUE(fine(first));
    this->noted(this->slots(range, 0, 2));
    this->unmapped(this->slots(range, 0, 2));
  } else {
    EXPECT_TRUE(refused(first, vmm::call::map, {errc::not_supported, errc::invalid_argument}));
  }
  const auto last = map(1, 2);
  if (this->can().offset_map) {
    ASSERT_TRUE(fine(last));
    this->noted(this->slots(range, 0, 1));
  } else {
    EXPECT_TRUE(refused(last, vmm::call::map, {errc::not_supported, errc::invalid_argument}));
  }
}

TYPED_TEST_P(Conformance, MapStaysInsideTheMemory) {
  if (this->unseen().past_the_end) GTEST_SKIP() << "this backend does not see it";
  const auto range = this->reserved(8);
  const auto handle = this->created(2);
  const auto answer = [&](std::uint64_t units, std::uint64_t offset_units) {
    const vmm::map_request request{range.base, units * this->unit(), handle,
                                   offset_units * this->unit()};
    return refused(this->driver().map(request), vmm::call::map,
                   {errc::invalid_argument, errc::not_supported});
  };
  EXPECT_TRUE(answer(3, 0));
  EXPECT_TRUE(answer(2, 1));
  EXPECT_TRUE(answer(1, 2));
  this->usable(this->slots(range, 0, 2), handle);
}

TYPED_TEST_P(Conformance, MapOverAMappingIsRefused) {
  if (this->unseen().overlap) GTEST_SKIP() << "this backend does not see it";
  const auto range = this->reserved(8);
  this->usable(this->slots(range, 2, 2), this->created(2));
  const auto other = this->created(2);
  for (const std::uint64_t slot : {1U, 2U, 3U}) {
    const auto where = this->slots(range, slot, 2);
    EXPECT_TRUE(refused(this->driver().map({where.base, where.size_bytes, other, 0}),
                        vmm::call::map, {errc::invalid_argument, errc::overlap, errc::in_use}));
  }
  EXPECT_EQ(this->rights_at(range.base + 2 * this->unit()), access::read_write);
  this->usable(this->slots(range, 4, 2), other);
}

TYPED_TEST_P(Conformance, MapStaysInsideAReservation) {
  const auto range = this->reserved(4);
  const auto handle = this->created(2);
  const auto answer = [&](address at, std::uint64_t size) {
    return refused(this->driver().map({at, size, handle, 0}), vmm::call::map,
                   {errc::invalid_argument, errc::not_supported});
  };
  if (!this->unseen().past_reservation) {
    EXPECT_TRUE(answer(range.base + 3 * this->unit(), 2 * this->unit()));
  }
  EXPECT_TRUE(answer(range.base + 1, 2 * this->unit()));
  EXPECT_TRUE(answer(range.base, 2 * this->unit() - 1));
  EXPECT_TRUE(answer(range.base, 0));
  this->freed(range);
  EXPECT_TRUE(answer(range.base, 2 * this->unit()));
}

TYPED_TEST_P(Conformance, ContentsFollowTheMemory) {
  if (!this->has_bytes_here()) GTEST_SKIP() << "no bytes";
  const auto range = this->reserved(8);
  const auto first = this->created(2);
  const auto second = this->created(2);
  this->usable(this->slots(range, 0, 2), first);
  this->usable(this->slots(range, 4, 2), second);
  for (std::uint64_t i = 0; i < 2; ++i) {
    this->put(range.base + i * this->unit(), static_cast<std::uint8_t>(10 + i));
    this->put(range.base + (4 + i) * this->unit(), static_cast<std::uint8_t>(20 + i));
  }
  this->unmapped(this->slots(range, 0, 2));
  this->unmapped(this->slots(range, 4, 2));
  if (this->can().contents_stay) {
    this->usable(this->slots(range, 0, 2), second);
    this->usable(this->slots(range, 4, 2), first);
    this->expect_bytes(range.base, 10);
    this->expect_bytes(range.base + 5 * this->unit(), 21);
    return;
  }
  this->usable(this->slots(range, 1, 2), second);
  this->usable(this->slots(range, 5, 2), first);
  for (std::uint64_t i = 0; i < 2; ++i) {
    this->expect_bytes(range.base + (1 + i) * this->unit(), static_cast<std::uint8_t>(20 + i));
    this->expect_bytes(range.base + (5 + i) * this->unit(), static_cast<std::uint8_t>(10 + i));
  }
}

TYPED_TEST_P(Conformance, AliasesShareTheirMemory) {
  const auto range = this->reserved(4);
  const auto handle = this->created(1);
  this->usable(this->slots(range, 0, 1), handle);
  if (this->can().alias == vmm::alias_level::none) {
    const auto where = this->slots(range, 2, 1);
    EXPECT_TRUE(refused(this->driver().map({where.base, where.size_bytes, handle, 0}),
                        vmm::call::map, {errc::not_supported, errc::in_use}));
    return;
  }
  this->usable(this->slots(range, 2, 1), handle);
  if (!this->has_bytes_here()) return;
  this->put(range.base, 50);
  this->expect_bytes(range.base + 2 * this->unit(), 50);
  this->unmapped(this->slots(range, 0, 1));
  this->expect_bytes(range.base + 2 * this->unit(), 50);
}

// ---- unmap ----

TYPED_TEST_P(Conformance, UnmapTakesTheMappingAway) {
  const auto range = this->reserved(4);
  const auto handle = this->created(2);
  this->usable(this->slots(range, 1, 2), handle);
  this->unmapped(this->slots(range, 1, 2));
  EXPECT_TRUE(refused(this->driver().get_access(range.base + this->unit(), this->home()),
                      vmm::call::get_access, {errc::invalid_argument}));
  this->usable(this->slots(range, 1, 2), handle);
}

TYPED_TEST_P(Conformance, UnmapSeveralAtOnce) {
  const auto range = this->reserved(6);
  for (const std::uint64_t slot : {1U, 2U}) {
    this->usable(this->slots(range, slot, 1), this->created(1));
  }
  this->usable(this->slots(range, 3, 2), this->created(2));
  const auto all = this->driver().unmap(this->slots(range, 1, 4));
  if (!this->can().spanning_unmap) {
    EXPECT_TRUE(refused(all, vmm::call::unmap, {errc::invalid_argument, errc::not_supported}));
    EXPECT_EQ(this->rights_at(range.base + this->unit()), access::read_write);
    return;
  }
  ASSERT_TRUE(fine(all));
  this->forget_mapping(this->slots(range, 1, 1));
  this->forget_mapping(this->slots(range, 2, 1));
  this->forget_mapping(this->slots(range, 3, 2));
  this->usable(this->slots(range, 0, 5), this->created(5));
}

TYPED_TEST_P(Conformance, UnmapAPart) {
  const auto range = this->reserved(4);
  const auto whole = this->slots(range, 0, 4);
  this->usable(whole, this->created(4));
  if (!this->can().partial_unmap) {
    if (this->unseen().cut_unmap) GTEST_SKIP() << "this backend does not see it";
    for (const std::uint64_t slot : {0U, 1U, 3U}) {
      EXPECT_TRUE(refused(this->driver().unmap(this->slots(range, slot, 1)), vmm::call::unmap,
                          {errc::invalid_argument, errc::not_supported}));
    }
    EXPECT_EQ(this->rights_at(range.base + this->unit()), access::read_write);
    return;
  }
  this->put(range.base, 1);
  this->put(range.base + 3 * this->unit(), 4);
  ASSERT_TRUE(fine(this->driver().unmap(this->slots(range, 1, 2))));
  this->forget_mapping(whole);
  this->noted(this->slots(range, 0, 1));
  this->noted(this->slots(range, 3, 1));
  this->expect_bytes(range.base, 1);
  this->expect_bytes(range.base + 3 * this->unit(), 4);
  this->usable(this->slots(range, 1, 2), this->created(2));
}

TYPED_TEST_P(Conformance, UnmapOfNothingChangesNothing) {
  const auto range = this->reserved(4);
  const auto nothing = this->driver().unmap(this->slots(range, 2, 2));
  if (!nothing) EXPECT_EQ(nothing.error().code, errc::invalid_argument);
  this->usable(this->slots(range, 2, 2), this->created(2));
  const address_range part = this->slots(range, 1, 1);  // in no reservation, once range is freed
  const address_range crooked{range.base + 1, this->unit()};
  const address_range empty{range.base, 0};
  this->unmapped(this->slots(range, 2, 2));
  this->freed(range);
  for (const auto& where : {part, crooked, empty, range}) {
    EXPECT_TRUE(refused(this->driver().unmap(where), vmm::call::unmap, {errc::invalid_argument}));
  }
}

// ---- rights ----

TYPED_TEST_P(Conformance, AccessRoundTrip) {
  const auto range = this->reserved(2);
  this->mapped(range, this->created(2));
  for (const access value : {access::read_write, access::none, access::read_write}) {
    ASSERT_TRUE(fine(this->rights(range, value)));
    EXPECT_EQ(this->rights_at(range.base), value);
    EXPECT_EQ(this->rights_at(range.base + (range.size_bytes - 1)), value);
  }
  const auto read_only = this->rights(range, access::read);
  if (this->can().read_only == vmm::read_only_level::refused) {
    EXPECT_TRUE(refused(read_only, vmm::call::set_access, {errc::not_supported}));
    EXPECT_EQ(this->rights_at(range.base), access::read_write);
  } else {
    ASSERT_TRUE(fine(read_only));
    EXPECT_EQ(this->rights_at(range.base), access::read);
  }
}

TYPED_TEST_P(Conformance, AccessOverSeveralMappings) {
  const auto range = this->reserved(4);
  for (const std::uint64_t slot : {0U, 1U, 2U}) {
    this->mapped(this->slots(range, slot, 1), this->created(1));
  }
  ASSERT_TRUE(fine(this->rights(this->slots(range, 0, 3), access::read_write)));
  for (std::uint64_t slot = 0; slot < 3; ++slot) {
    EXPECT_EQ(this->rights_at(range.base + slot * this->unit()), access::read_write);
  }
}

TYPED_TEST_P(Conformance, RightsBelongToTheirMapping) {
  if (this->unseen().rights_of_neighbours) GTEST_SKIP() << "this backend mixes them up";
  const auto range = this->reserved(4);
  this->usable(this->slots(range, 0, 2), this->created(2));
  this->usable(this->slots(range, 2, 2), this->created(2));
  ASSERT_TRUE(fine(this->rights(this->slots(range, 0, 2), access::none)));
  EXPECT_EQ(this->rights_at(range.base), access::none);
  EXPECT_EQ(this->rights_at(range.base + 2 * this->unit()), access::read_write);
}

TYPED_TEST_P(Conformance, AccessOnAPart) {
  const auto range = this->reserved(4);
  this->usable(range, this->created(4));
  const auto part = this->rights(this->slots(range, 1, 2), access::none);
  if (!this->can().partial_access) {
    if (this->unseen().cut_access) GTEST_SKIP() << "this backend does not see it";
    EXPECT_TRUE(
        refused(part, vmm::call::set_access, {errc::invalid_argument, errc::not_supported}));
    EXPECT_EQ(this->rights_at(range.base + this->unit()), access::read_write);
    return;
  }
  ASSERT_TRUE(fine(part));
  const access expected[] = {access::read_write, access::none, access::none, access::read_write};
  for (std::uint64_t slot = 0; slot < 4; ++slot) {
    EXPECT_EQ(this->rights_at(range.base + slot * this->unit()), expected[slot]) << slot;
  }
}

TYPED_TEST_P(Conformance, AccessOverAHoleIsRefused) {
  const auto range = this->reserved(4);
  this->mapped(this->slots(range, 0, 1), this->created(1));
  this->mapped(this->slots(range, 2, 1), this->created(1));
  if (!this->unseen().access_over_hole) {
    for (const auto& where : {this->slots(range, 0, 2), this->slots(range, 1, 2),
                              this->slots(range, 0, 3), this->slots(range, 3, 1)}) {
      EXPECT_TRUE(refused(this->rights(where, access::read_write), vmm::call::set_access,
                          {errc::invalid_argument}));
    }
    EXPECT_EQ(this->rights_at(range.base), access::none);
    EXPECT_EQ(this->rights_at(range.base + 2 * this->unit()), access::none);
  }
  if (!this->unseen().empty_grants) {
    EXPECT_TRUE(refused(this->driver().set_access(this->slots(range, 0, 1), {}),
                        vmm::call::set_access, {errc::invalid_argument, errc::not_supported}));
  }
}

TYPED_TEST_P(Conformance, ALocationIsNamedTwice) {
  const auto range = this->reserved(1);
  this->mapped(range, this->created(1));
  for (const access first : {access::none, access::read_write}) {
    for (const access second : {access::read_write, access::none}) {
      const access before = second == access::none ? access::read_write : access::none;
      ASSERT_TRUE(fine(this->rights(range, before)));
      const vmm::access_grant twice[] = {{this->home(), first}, {this->home(), second}};
      const vmm::status outcome = this->driver().set_access(range, twice);
      const bool may_differ = first == second || this->can().access_per_location;
      EXPECT_EQ(this->rights_at(range.base), may_differ ? second : before);
      if (may_differ) {
        EXPECT_TRUE(fine(outcome)) << "the last one holds";
      } else {
        EXPECT_TRUE(
            refused(outcome, vmm::call::set_access, {errc::invalid_argument, errc::not_supported}));
      }
    }
  }
}

TYPED_TEST_P(Conformance, AccessOfNothingIsRefused) {
  const auto range = this->reserved(2);
  EXPECT_TRUE(refused(this->driver().get_access(range.base, this->home()), vmm::call::get_access,
                      {errc::invalid_argument}));
}

}  // namespace conformance

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: addresses, mappings and rights are as docs/contract.md says.
// Method: small layouts of granules, each legal call and each refusal with the state after it.
#pragma once

#include "fixture.h"

namespace conformance {

TEST_P(Conformance, ReserveGivesAlignedDisjointRanges) {
  std::vector<address_range> made;
  for (std::uint64_t units = 1; units <= 8; ++units) {
    const auto range = reserved(units);
    EXPECT_EQ(range.size_bytes, units * unit());
    EXPECT_EQ(range.base.value % unit(), 0u);
    EXPECT_TRUE(static_cast<bool>(range.base));
    for (const address_range& other : made) EXPECT_FALSE(range.overlaps(other));
    made.push_back(range);
  }
}

TEST_P(Conformance, ReserveKeepsTheAlignment) {
  for (const std::uint64_t factor : {1U, 2U, 16U, 64U}) {
    const std::uint64_t alignment = factor * unit();
    const auto range = driver().reserve({unit(), alignment, {}});
    ASSERT_TRUE(fine(range));
    EXPECT_EQ(range->base.value % alignment, 0u) << alignment;
    EXPECT_TRUE(fine(driver().free_reservation(*range)));
  }
}

TEST_P(Conformance, ReserveRefusesWhatItCannotGive) {
  const std::uint64_t unit = this->unit();
  const auto answer = [&](std::uint64_t size, std::uint64_t alignment) {
    return refused(driver().reserve({size, alignment, {}}), vmm::call::reserve,
                   {errc::invalid_argument});
  };
  EXPECT_TRUE(answer(0, 0));
  EXPECT_TRUE(answer(unit + 1, 0));
  EXPECT_TRUE(answer(unit / 2, 0));
  EXPECT_TRUE(answer(unit, 3 * unit));
}

TEST_P(Conformance, ReserveTakesTheHintWhereItSaysSo) {
  // A place that was free a moment ago.
  const auto before = driver().reserve({8 * unit(), 0, {}});
  ASSERT_TRUE(fine(before));
  ASSERT_TRUE(fine(driver().free_reservation(*before)));
  const address wish = before->base + 2 * unit();
  const auto range = driver().reserve({2 * unit(), 0, wish});
  ASSERT_TRUE(fine(range));
  if (can().exact_hint) EXPECT_EQ(range->base, wish);
  // A place that is taken: another one, and no refusal.
  const auto other = driver().reserve({2 * unit(), 0, range->base});
  ASSERT_TRUE(fine(other));
  EXPECT_FALSE(other->overlaps(*range));
  EXPECT_TRUE(fine(driver().free_reservation(*other)));
  EXPECT_TRUE(fine(driver().free_reservation(*range)));
}

TEST_P(Conformance, ReservingTheWholeAddressSpaceIsRefused) {
  constexpr std::uint64_t whole = std::uint64_t{1} << 47;
  EXPECT_TRUE(
      refused(driver().reserve({whole, 0, {}}), vmm::call::reserve, {errc::out_of_addresses}));
}

TEST_P(Conformance, FreeTakesWholeReservationsOnce) {
  const auto range = reserved(4);
  if (unseen().stale_handle) {
    freed(range);
    return;
  }
  const auto answer = [&](address_range what) {
    return refused(driver().free_reservation(what), vmm::call::free_reservation,
                   {errc::invalid_argument});
  };
  EXPECT_TRUE(answer(slots(range, 0, 2)));
  EXPECT_TRUE(answer(slots(range, 2, 2)));
  EXPECT_TRUE(answer(slots(range, 0, 8)));
  freed(range);
  EXPECT_TRUE(answer(range));
}

TEST_P(Conformance, FreeingWhileMappedIsRefused) {
  if (unseen().free_while_mapped) GTEST_SKIP() << "this backend does not see it";
  const auto range = reserved(4);
  usable(slots(range, 1, 1), created(1));
  EXPECT_TRUE(refused(driver().free_reservation(range), vmm::call::free_reservation,
                      {errc::invalid_argument, errc::in_use}));
  EXPECT_EQ(rights_at(range.base + unit()), access::read_write);
}

// ---- map ----

TEST_P(Conformance, MapTheWholeHandle) {
  const auto range = reserved(8);
  usable(slots(range, 0, 1), created(1));
  usable(slots(range, 2, 5), created(5));
  EXPECT_EQ(rights_at(range.base + 6 * unit()), access::read_write);
}

TEST_P(Conformance, AFreshMappingHasNoRights) {
  const auto range = reserved(4);
  const auto handle = created(1);
  usable(slots(range, 0, 1), handle);
  mapped(slots(range, 1, 1), created(1));
  EXPECT_EQ(rights_at(range.base + unit()), access::none);
  // Also where another mapping had rights before.
  unmapped(slots(range, 0, 1));
  mapped(slots(range, 0, 1), handle);
  EXPECT_EQ(rights_at(range.base), access::none);
}

TEST_P(Conformance, MapAPart) {
  const auto range = reserved(4);
  const auto handle = created(3);
  const auto map = [&](std::uint64_t units, std::uint64_t offset_units) {
    return driver().map({range.base, units * unit(), handle, offset_units * unit()});
  };
  const auto first = map(2, 0);
  if (can().short_map) {
    ASSERT_TRUE(fine(first));
    noted(slots(range, 0, 2));
    unmapped(slots(range, 0, 2));
  } else {
    EXPECT_TRUE(refused(first, vmm::call::map, {errc::not_supported, errc::invalid_argument}));
  }
  const auto last = map(1, 2);
  if (can().offset_map) {
    ASSERT_TRUE(fine(last));
    noted(slots(range, 0, 1));
  } else {
    EXPECT_TRUE(refused(last, vmm::call::map, {errc::not_supported, errc::invalid_argument}));
  }
}

TEST_P(Conformance, MapStaysInsideTheMemory) {
  if (unseen().past_the_end) GTEST_SKIP() << "this backend does not see it";
  const auto range = reserved(8);
  const auto handle = created(2);
  const auto answer = [&](std::uint64_t units, std::uint64_t offset_units) {
    const vmm::map_request request{range.base, units * unit(), handle, offset_units * unit()};
    return refused(driver().map(request), vmm::call::map,
                   {errc::invalid_argument, errc::not_supported});
  };
  EXPECT_TRUE(answer(3, 0));
  EXPECT_TRUE(answer(2, 1));
  EXPECT_TRUE(answer(1, 2));
  usable(slots(range, 0, 2), handle);
}

TEST_P(Conformance, MapOverAMappingIsRefused) {
  if (unseen().overlap) GTEST_SKIP() << "this backend does not see it";
  const auto range = reserved(8);
  usable(slots(range, 2, 2), created(2));
  const auto other = created(2);
  for (const std::uint64_t slot : {1U, 2U, 3U}) {
    const auto where = slots(range, slot, 2);
    EXPECT_TRUE(refused(driver().map({where.base, where.size_bytes, other, 0}), vmm::call::map,
                        {errc::invalid_argument, errc::overlap, errc::in_use}));
  }
  EXPECT_EQ(rights_at(range.base + 2 * unit()), access::read_write);
  usable(slots(range, 4, 2), other);
}

TEST_P(Conformance, MapStaysInsideAReservation) {
  const auto range = reserved(4);
  const auto handle = created(2);
  const auto answer = [&](address at, std::uint64_t size) {
    return refused(driver().map({at, size, handle, 0}), vmm::call::map,
                   {errc::invalid_argument, errc::not_supported});
  };
  if (!unseen().past_reservation) EXPECT_TRUE(answer(range.base + 3 * unit(), 2 * unit()));
  EXPECT_TRUE(answer(range.base + 1, 2 * unit()));
  EXPECT_TRUE(answer(range.base, 2 * unit() - 1));
  EXPECT_TRUE(answer(range.base, 0));
  freed(range);
  EXPECT_TRUE(answer(range.base, 2 * unit()));
}

TEST_P(Conformance, ContentsFollowTheMemory) {
  if (!has_bytes_here()) GTEST_SKIP() << "no bytes";
  const auto range = reserved(8);
  const auto first = created(2);
  const auto second = created(2);
  usable(slots(range, 0, 2), first);
  usable(slots(range, 4, 2), second);
  for (std::uint64_t i = 0; i < 2; ++i) {
    put(range.base + i * unit(), static_cast<std::uint8_t>(10 + i));
    put(range.base + (4 + i) * unit(), static_cast<std::uint8_t>(20 + i));
  }
  unmapped(slots(range, 0, 2));
  unmapped(slots(range, 4, 2));
  if (can().contents_stay) {
    usable(slots(range, 0, 2), second);
    usable(slots(range, 4, 2), first);
    expect_bytes(range.base, 10);
    expect_bytes(range.base + 5 * unit(), 21);
    return;
  }
  usable(slots(range, 1, 2), second);
  usable(slots(range, 5, 2), first);
  for (std::uint64_t i = 0; i < 2; ++i) {
    expect_bytes(range.base + (1 + i) * unit(), static_cast<std::uint8_t>(20 + i));
    expect_bytes(range.base + (5 + i) * unit(), static_cast<std::uint8_t>(10 + i));
  }
}

TEST_P(Conformance, AliasesShareTheirMemory) {
  const auto range = reserved(4);
  const auto handle = created(1);
  usable(slots(range, 0, 1), handle);
  if (can().alias == vmm::alias_level::none) {
    const auto where = slots(range, 2, 1);
    EXPECT_TRUE(refused(driver().map({where.base, where.size_bytes, handle, 0}), vmm::call::map,
                        {errc::not_supported, errc::in_use}));
    return;
  }
  usable(slots(range, 2, 1), handle);
  if (!has_bytes_here()) return;
  put(range.base, 50);
  expect_bytes(range.base + 2 * unit(), 50);
  unmapped(slots(range, 0, 1));
  expect_bytes(range.base + 2 * unit(), 50);
}

// ---- unmap ----

TEST_P(Conformance, UnmapTakesTheMappingAway) {
  const auto range = reserved(4);
  const auto handle = created(2);
  usable(slots(range, 1, 2), handle);
  unmapped(slots(range, 1, 2));
  EXPECT_TRUE(refused(driver().get_access(range.base + unit(), home()), vmm::call::get_access,
                      {errc::invalid_argument}));
  usable(slots(range, 1, 2), handle);
}

TEST_P(Conformance, UnmapSeveralAtOnce) {
  const auto range = reserved(6);
  for (const std::uint64_t slot : {1U, 2U}) usable(slots(range, slot, 1), created(1));
  usable(slots(range, 3, 2), created(2));
  const auto all = driver().unmap(slots(range, 1, 4));
  if (!can().spanning_unmap) {
    EXPECT_TRUE(refused(all, vmm::call::unmap, {errc::invalid_argument, errc::not_supported}));
    EXPECT_EQ(rights_at(range.base + unit()), access::read_write);
    return;
  }
  ASSERT_TRUE(fine(all));
  forget_mapping(slots(range, 1, 1));
  forget_mapping(slots(range, 2, 1));
  forget_mapping(slots(range, 3, 2));
  usable(slots(range, 0, 5), created(5));
}

TEST_P(Conformance, UnmapAPart) {
  const auto range = reserved(4);
  const auto whole = slots(range, 0, 4);
  usable(whole, created(4));
  if (!can().partial_unmap) {
    if (unseen().cut_unmap) GTEST_SKIP() << "this backend does not see it";
    for (const std::uint64_t slot : {0U, 1U, 3U}) {
      EXPECT_TRUE(refused(driver().unmap(slots(range, slot, 1)), vmm::call::unmap,
                          {errc::invalid_argument, errc::not_supported}));
    }
    EXPECT_EQ(rights_at(range.base + unit()), access::read_write);
    return;
  }
  put(range.base, 1);
  put(range.base + 3 * unit(), 4);
  ASSERT_TRUE(fine(driver().unmap(slots(range, 1, 2))));
  forget_mapping(whole);
  noted(slots(range, 0, 1));
  noted(slots(range, 3, 1));
  expect_bytes(range.base, 1);
  expect_bytes(range.base + 3 * unit(), 4);
  usable(slots(range, 1, 2), created(2));
}

TEST_P(Conformance, UnmapOfNothingChangesNothing) {
  const auto range = reserved(4);
  const auto nothing = driver().unmap(slots(range, 2, 2));
  if (!nothing) EXPECT_EQ(nothing.error().code, errc::invalid_argument);
  usable(slots(range, 2, 2), created(2));
  const address_range part = slots(range, 1, 1);  // in no reservation, once range is freed
  const address_range crooked{range.base + 1, unit()};
  const address_range empty{range.base, 0};
  unmapped(slots(range, 2, 2));
  freed(range);
  for (const auto& where : {part, crooked, empty, range}) {
    EXPECT_TRUE(refused(driver().unmap(where), vmm::call::unmap, {errc::invalid_argument}));
  }
}

// ---- rights ----

TEST_P(Conformance, AccessRoundTrip) {
  const auto range = reserved(2);
  mapped(range, created(2));
  for (const access value : {access::read_write, access::none, access::read_write}) {
    ASSERT_TRUE(fine(rights(range, value)));
    EXPECT_EQ(rights_at(range.base), value);
    EXPECT_EQ(rights_at(range.base + (range.size_bytes - 1)), value);
  }
  const auto read_only = rights(range, access::read);
  if (can().read_only == vmm::read_only_level::refused) {
    EXPECT_TRUE(refused(read_only, vmm::call::set_access, {errc::not_supported}));
    EXPECT_EQ(rights_at(range.base), access::read_write);
  } else {
    ASSERT_TRUE(fine(read_only));
    EXPECT_EQ(rights_at(range.base), access::read);
  }
}

TEST_P(Conformance, AccessOverSeveralMappings) {
  const auto range = reserved(4);
  for (const std::uint64_t slot : {0U, 1U, 2U}) mapped(slots(range, slot, 1), created(1));
  ASSERT_TRUE(fine(rights(slots(range, 0, 3), access::read_write)));
  for (std::uint64_t slot = 0; slot < 3; ++slot)
    EXPECT_EQ(rights_at(range.base + slot * unit()), access::read_write);
}

TEST_P(Conformance, RightsBelongToTheirMapping) {
  if (unseen().rights_of_neighbours) GTEST_SKIP() << "this backend mixes them up";
  const auto range = reserved(4);
  usable(slots(range, 0, 2), created(2));
  usable(slots(range, 2, 2), created(2));
  ASSERT_TRUE(fine(rights(slots(range, 0, 2), access::none)));
  EXPECT_EQ(rights_at(range.base), access::none);
  EXPECT_EQ(rights_at(range.base + 2 * unit()), access::read_write);
}

TEST_P(Conformance, AccessOnAPart) {
  const auto range = reserved(4);
  usable(range, created(4));
  const auto part = rights(slots(range, 1, 2), access::none);
  if (!can().partial_access) {
    if (unseen().cut_access) GTEST_SKIP() << "this backend does not see it";
    EXPECT_TRUE(
        refused(part, vmm::call::set_access, {errc::invalid_argument, errc::not_supported}));
    EXPECT_EQ(rights_at(range.base + unit()), access::read_write);
    return;
  }
  ASSERT_TRUE(fine(part));
  const access expected[] = {access::read_write, access::none, access::none, access::read_write};
  for (std::uint64_t slot = 0; slot < 4; ++slot)
    EXPECT_EQ(rights_at(range.base + slot * unit()), expected[slot]) << slot;
}

TEST_P(Conformance, AccessOverAHoleIsRefused) {
  const auto range = reserved(4);
  mapped(slots(range, 0, 1), created(1));
  mapped(slots(range, 2, 1), created(1));
  if (!unseen().access_over_hole) {
    for (const auto& where :
         {slots(range, 0, 2), slots(range, 1, 2), slots(range, 0, 3), slots(range, 3, 1)}) {
      EXPECT_TRUE(refused(rights(where, access::read_write), vmm::call::set_access,
                          {errc::invalid_argument}));
    }
    EXPECT_EQ(rights_at(range.base), access::none);
    EXPECT_EQ(rights_at(range.base + 2 * unit()), access::none);
  }
  if (!unseen().empty_grants) {
    EXPECT_TRUE(refused(driver().set_access(slots(range, 0, 1), {}), vmm::call::set_access,
                        {errc::invalid_argument, errc::not_supported}));
  }
}

TEST_P(Conformance, ALocationIsNamedTwice) {
  const auto range = reserved(1);
  mapped(range, created(1));
  for (const access first : {access::none, access::read_write}) {
    for (const access second : {access::read_write, access::none}) {
      const access before = second == access::none ? access::read_write : access::none;
      ASSERT_TRUE(fine(rights(range, before)));
      const vmm::access_grant twice[] = {{home(), first}, {home(), second}};
      const vmm::status outcome = driver().set_access(range, twice);
      const bool may_differ = first == second || can().access_per_location;
      EXPECT_EQ(rights_at(range.base), may_differ ? second : before);
      if (may_differ) {
        EXPECT_TRUE(fine(outcome)) << "the last one holds";
      } else {
        EXPECT_TRUE(refused(outcome, vmm::call::set_access, {errc::not_supported}));
      }
    }
  }
}

// Two reservations side by side, each mapped from end to end.
TEST_P(Conformance, AccessStaysInsideAReservation) {
  if (!can().exact_hint) GTEST_SKIP() << "nothing puts one reservation beside another here";
  if (unseen().past_reservation) GTEST_SKIP() << "this backend does not see it";
  const auto both = reserved(2);
  freed(both);
  const auto first = reserved(1, both.base);
  const auto second = reserved(1, both.base + unit());
  ASSERT_EQ(first.base, both.base);
  ASSERT_EQ(second.base, first.end());
  usable(first, created(1));
  usable(second, created(1));
  EXPECT_TRUE(refused(rights(both, access::none), vmm::call::set_access, {errc::invalid_argument}));
  EXPECT_EQ(rights_at(first.base), access::read_write);
  EXPECT_EQ(rights_at(second.base), access::read_write);
}

TEST_P(Conformance, AccessOfNothingIsRefused) {
  const auto range = reserved(2);
  EXPECT_TRUE(refused(driver().get_access(range.base, home()), vmm::call::get_access,
                      {errc::invalid_argument}));
}

}  // namespace conformance

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: address_space speaks bytes and addresses over several ranges as its comments say: it tries
// ranges in order, refuses what it cannot describe, and gives a range back when it is free.
//
// Method: small ranges at made-up addresses, whose layout is worked out by hand.
#include "../support/test.h"

import vmm.va;

namespace {

using vmm::address, vmm::address_range, vmm::address_space, vmm::errc, vmm::extent,
    vmm::reservation_id;

constexpr std::uint64_t TiB = GiB << 10;
constexpr std::uint64_t granule = 2 * MiB;
constexpr address first_base{16 * TiB};
constexpr address second_base{8 * TiB};

address_space make() { return address_space::create({.granularity_bytes = granule}).value(); }

reservation_id add(address_space& space, address base, std::uint64_t granules) {
  return space.add_range({base, granules * granule}).value();
}

extent take(address_space& space, std::uint64_t granules, std::uint64_t alignment_bytes = 0) {
  return space.allocate({granules * granule, alignment_bytes}).value();
}

template <class Value>
errc code(const vmm::result<Value>& answer) {
  return answer.has_value() ? errc::none : answer.error().code;
}

/// "8T+0:3 8T+3:-5": place and granules, in address order, free ones with a minus.
std::string layout(const address_space& space) {
  std::string text;
  space.visit([&](const extent& one, bool live) {
    const std::uint64_t tera = one.range.base.value / TiB;
    const std::uint64_t rest = (one.range.base.value - tera * TiB) / granule;
    if (!text.empty()) text += ' ';
    text += std::to_string(tera) + "T+" + std::to_string(rest) + (live ? ":" : ":-") +
            std::to_string(one.range.size_bytes / granule);
  });
  return text;
}

TEST(AddressSpace, NeedsAPowerOfTwoAsGranularity) {
  EXPECT_EQ(code(address_space::create({})), errc::invalid_argument);
  EXPECT_EQ(code(address_space::create({.granularity_bytes = 3 * MiB})), errc::invalid_argument);
  EXPECT_EQ(code(address_space::create({.granularity_bytes = 1})), errc::none);
}

TEST(AddressSpace, RefusesRangesItCannotUse) {
  address_space space = make();
  add(space, first_base, 10);
  const std::uint64_t top = std::numeric_limits<std::uint64_t>::max() - granule + 1;
  EXPECT_EQ(code(space.add_range({second_base, 0})), errc::invalid_argument);
  EXPECT_EQ(code(space.add_range({second_base, granule + 1})), errc::invalid_argument);
  EXPECT_EQ(code(space.add_range({second_base + 4096, granule})), errc::invalid_argument);
  EXPECT_EQ(code(space.add_range({second_base, space.max_range_bytes() + granule})),
            errc::invalid_argument);
  EXPECT_EQ(code(space.add_range({address{top}, 2 * granule})), errc::invalid_argument);
  EXPECT_EQ(code(space.add_range({first_base + 9 * granule, granule})), errc::overlap);
  EXPECT_EQ(code(space.add_range({first_base, granule})), errc::overlap);
  EXPECT_EQ(code(space.add_range({address{first_base.value - granule}, 2 * granule})),
            errc::overlap);
  EXPECT_EQ(code(space.add_range({address{first_base.value - granule}, 20 * granule})),
            errc::overlap);
  EXPECT_EQ(space.statistics().ranges, 1u);
  EXPECT_EQ(code(space.add_range({address{top}, granule})), errc::none);
  EXPECT_EQ(code(space.add_range({address{top}, granule})), errc::overlap);
  EXPECT_EQ(code(space.add_range({address{first_base.value - granule}, granule})), errc::none);
  EXPECT_EQ(code(space.add_range({first_base + 10 * granule, granule})), errc::none);
  EXPECT_TRUE(space.validate());
}

TEST(AddressSpace, RefusesSizesThatAreNoMultiple) {
  address_space space = make();
  add(space, first_base, 10);
  const extent one = take(space, 4);
  for (const std::uint64_t size : {std::uint64_t{0}, granule - 1, granule + 1}) {
    EXPECT_EQ(code(space.allocate({size, 0})), errc::invalid_argument) << size;
    EXPECT_EQ(code(space.grow(one.id, size)), errc::invalid_argument) << size;
    EXPECT_EQ(code(space.shrink(one.id, size)), errc::invalid_argument) << size;
    EXPECT_EQ(code(space.split(one.id, size)), errc::invalid_argument) << size;
  }
  EXPECT_EQ(code(space.allocate({granule, 3 * MiB})), errc::invalid_argument);
  EXPECT_EQ(code(space.allocate({granule, 3})), errc::invalid_argument);
  EXPECT_EQ(code(space.allocate({granule, granule << 32})), errc::invalid_argument);
  EXPECT_EQ(code(space.allocate({granule << 40, 0})), errc::out_of_addresses);
  EXPECT_EQ(code(space.allocate({granule, granule << 31})), errc::out_of_addresses);
  EXPECT_TRUE(space.validate());
}

TEST(AddressSpace, UsesAFurtherRangeOnlyWhenTheFirstIsFull) {
  address_space space = make();
  EXPECT_EQ(code(space.allocate({granule, 0})), errc::out_of_addresses);
  const reservation_id first = add(space, first_base, 10);
  const extent low = take(space, 6);
  EXPECT_EQ(code(space.allocate({5 * granule, 0})), errc::out_of_addresses);
  const reservation_id second = add(space, second_base, 8);
  const extent other = take(space, 5);
  EXPECT_EQ(other.id.reservation, second);
  EXPECT_EQ(other.range, (address_range{second_base, 5 * granule}));
  const extent high = take(space, 4);
  EXPECT_EQ(high.id.reservation, first);
  EXPECT_EQ(high.range.base, first_base + 6 * granule);
  EXPECT_EQ(layout(space), "8T+0:5 8T+5:-3 16T+0:6 16T+6:4");
  space.free(low.id);
  EXPECT_EQ(take(space, 2).range.base, first_base);
  EXPECT_TRUE(space.validate());
}

TEST(AddressSpace, GivesARangeBackOnlyWhenItIsFree) {
  address_space space = make();
  const reservation_id first = add(space, first_base, 10);
  const reservation_id second = add(space, second_base, 10);
  const extent one = take(space, 10);
  EXPECT_EQ(code(space.remove_range(first)), errc::in_use);
  EXPECT_EQ(space.remove_range(second).value(), (address_range{second_base, 10 * granule}));
  EXPECT_FALSE(space.contains(second_base));
  EXPECT_EQ(code(space.allocate({granule, 0})), errc::out_of_addresses);
  space.free(one.id);
  EXPECT_EQ(space.remove_range(first).value(), (address_range{first_base, 10 * granule}));
  EXPECT_EQ(layout(space), "");
  EXPECT_EQ(space.statistics().reserved_bytes, 0u);
  add(space, second_base, 4);
  EXPECT_EQ(take(space, 4).range.base, second_base);
  EXPECT_TRUE(space.validate());
}

TEST(AddressSpace, AlignsAddressesNotOffsets) {
  address_space space = make();
  add(space, first_base + 3 * granule, 64);
  const extent one = take(space, 2, 8 * granule);
  EXPECT_EQ(one.range.base, first_base + 8 * granule);
  EXPECT_EQ(take(space, 1, 1).range.base, first_base + 3 * granule);  // less than the granularity
  EXPECT_EQ(take(space, 1, 32 * granule).range.base, first_base + 32 * granule);
  EXPECT_TRUE(space.validate());
}

TEST(AddressSpace, GrowsShrinksAndSplits) {
  address_space space = make();
  add(space, first_base, 20);
  const extent one = take(space, 4);
  const extent two = take(space, 4);
  EXPECT_EQ(code(space.grow(one.id, 6 * granule)), errc::out_of_addresses);
  space.free(two.id);
  EXPECT_EQ(space.grow(one.id, 12 * granule).value().range,
            (address_range{first_base, 12 * granule}));
  EXPECT_EQ(code(space.grow(one.id, 11 * granule)), errc::invalid_argument);
  EXPECT_EQ(code(space.grow(one.id, 21 * granule)), errc::out_of_addresses);
  EXPECT_EQ(code(space.grow(one.id, granule << 40)), errc::out_of_addresses);
  EXPECT_EQ(space.shrink(one.id, 8 * granule).value().range.size_bytes, 8 * granule);
  EXPECT_EQ(code(space.shrink(one.id, 9 * granule)), errc::invalid_argument);
  const extent right = space.split(one.id, 3 * granule).value();
  EXPECT_EQ(right.range, (address_range{first_base + 3 * granule, 5 * granule}));
  EXPECT_EQ(layout(space), "16T+0:3 16T+3:5 16T+8:-12");
  EXPECT_EQ(space.where(one.id).size_bytes, 3 * granule);
  EXPECT_TRUE(space.validate());
}

TEST(AddressSpace, KnowsTheAddressesOfItsRanges) {
  address_space space = make();
  add(space, first_base, 10);
  add(space, second_base, 10);
  (void)take(space, 4);
  EXPECT_TRUE(space.contains(first_base));
  EXPECT_TRUE(space.contains(second_base));
  EXPECT_FALSE(space.contains(address{second_base.value - 1}));
  EXPECT_TRUE(space.contains(first_base + (10 * granule - 1)));
  EXPECT_FALSE(space.contains(first_base + 10 * granule));
  EXPECT_FALSE(space.contains(address{0}));
  EXPECT_FALSE(space.contains(address{std::numeric_limits<std::uint64_t>::max()}));
}

TEST(AddressSpace, CountsBytes) {
  address_space space = make();
  add(space, first_base, 10);
  add(space, second_base, 30);
  const extent one = take(space, 4);
  take(space, 5);
  take(space, 20);
  space.free(one.id);
  const vmm::address_space_statistics all = space.statistics();
  EXPECT_EQ(all.reserved_bytes, 40 * granule);
  EXPECT_EQ(all.live_bytes, 25 * granule);
  EXPECT_EQ(all.free_bytes, 15 * granule);
  EXPECT_EQ(all.largest_free_bytes, 10 * granule);
  EXPECT_EQ(all.high_water_bytes, 29 * granule);
  EXPECT_EQ(all.live_extents, 2u);
  EXPECT_EQ(all.free_extents, 3u);
  EXPECT_EQ(all.ranges, 2u);
}

// The highest range ends where 64-bit addresses do.
TEST(AddressSpace, HandsOutTheHighestAddresses) {
  address_space space = make();
  const address top{std::numeric_limits<std::uint64_t>::max() - 4 * granule + 1};
  add(space, top, 4);
  const extent low = take(space, 3);
  const extent high = take(space, 1);
  EXPECT_EQ(low.range.base, top);
  EXPECT_EQ(high.range, (address_range{top + 3 * granule, granule}));
  space.free(low.id);
  EXPECT_EQ(code(space.grow(high.id, 2 * granule)), errc::out_of_addresses);
  space.free(high.id);
  EXPECT_EQ(space.statistics().free_extents, 1u);
}

TEST(AddressSpace, MovesWithItsRanges) {
  address_space space = make();
  add(space, first_base, 10);
  const extent one = take(space, 4);
  address_space other = std::move(space);
  EXPECT_EQ(other.where(one.id), one.range);
  EXPECT_TRUE(other.validate());
}

TEST(AddressSpaceDeathTest, MisuseEndsTheProcess) {
  address_space space = make();
  add(space, first_base, 10);
  const reservation_id second = add(space, second_base, 10);
  const extent one = take(space, 10);
  const extent two = take(space, 10);
  EXPECT_DEATH(space.free({}), "not a range of this address space");
  EXPECT_DEATH(space.free({static_cast<reservation_id>(3), one.id.block}), "not a range");
  EXPECT_DEATH(space.free({one.id.reservation, vmm::block_id::none}), "not a live block");
  EXPECT_DEATH((void)space.remove_range(reservation_id::none), "not a range");
  space.free(two.id);
  EXPECT_DEATH(space.free(two.id), "not a live block");
  ASSERT_TRUE(space.remove_range(second));
  EXPECT_DEATH(space.free(two.id), "the range was removed from this address space");
  EXPECT_DEATH((void)space.where(two.id), "the range was removed from this address space");
}

}  // namespace

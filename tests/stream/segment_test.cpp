// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a segment, the records of handles and the records of streams keep their own invariants,
// each by itself.
// Method: a unit of vmm.stream, which reaches what the module does not export. One segment of 32
// units without a driver; pieces of memory are plain objects without mappings.
module;
#include "../support/test.h"

module vmm.stream;

import vmm.backend;
import vmm.physical;
import vmm.va;

namespace vmm {
namespace {

constexpr std::uint64_t unit_bytes = std::uint64_t{2} << 20;
constexpr std::uint32_t unit = static_cast<std::uint32_t>(unit_bytes / granule_bytes);
constexpr std::uint32_t unit_count = 32;
constexpr address base{std::uint64_t{1} << 40};

pool_setup small_setup() {
  pool_setup how;
  how.unit_bytes = unit_bytes;
  how.page_bytes = unit_bytes;
  how.segment_bytes = unit_count * unit_bytes;
  return how;
}

class SegmentTest : public testing::Test {
 protected:
  void SetUp() override {
    for (const std::uint64_t number : {std::uint64_t{1}, std::uint64_t{2}}) {
      ASSERT_TRUE(streams.provide());
      ASSERT_TRUE(records.provide_stream(streams.next_number()));
      ASSERT_TRUE(streams.add(static_cast<stream_handle>(number), stream_phase::active));
    }
    auto made = *segment::create({{}, {base, sizes.segment_bytes}}, sizes, streams.count());
    in = std::move(made);
  }

  // All mapped free memory goes, of every stream.
  void TearDown() override {
    for (handle_record* h : handles) {
      if (h->is_free) records.leave_free(*h);
      ASSERT_TRUE(in->cut_at_borders(h->current->range()));
      in->for_each_region(*h->current, [&](region_id region) {
        if (in->kind(region) != region_kind::unlisted) in->claim_free(region);
      });
      mapping& m = *h->current;
      const region_id region = in->join_regions(m);
      in->unmap(m, records);
      in->make_hole(region);
      records.drop(m);
      records.remove_handle(*h);
      records.drop(*h);
    }
  }

  // A handle of so many units, free for the stream, where the first hole is.
  handle_record& add(std::uint32_t units, std::uint32_t stream) {
    pieces.push_back(std::make_unique<physical_memory>());
    pieces.back()->size_bytes = units * unit_bytes;
    handle_record* const h = records.new_handle(*pieces.back());
    mapping* const m = records.new_mapping(*h, 0);
    const region_id hole = in->regions().best_fit(hole_kind, units * unit);
    const region_id region = in->claim_hole(hole, {0, units * unit}, stream);
    m->offset = in->range(region).offset;
    records.add_handle(*h);
    h->current = m;
    in->map(*m, records);
    records.enter_free(*h, now(stream));
    in->make_free(region, streams.progress().advance(stream), streams);
    handles.push_back(h);
    return *h;
  }
  stream_point now(std::uint32_t stream) { return {stream, streams.progress().clock()}; }
  region_id take(std::uint32_t granules, std::uint32_t stream) {
    const region_id found = in->find_free({granules, stream});
    if (found == region_id::none || !in->provide_block()) return region_id::none;
    return in->take_free(found, granules);
  }
  void give(address at, std::uint32_t stream) {
    const region_id block = in->take_block(granules_in(at - base));
    ASSERT_NE(block, region_id::none);
    const stream_point freed = streams.progress().advance(stream);
    in->release_live(block, freed, records);
    in->make_free(block, freed, streams);
  }
  std::uint32_t region_count() const {
    std::uint32_t count = 0;
    for (region_id r = in->regions().first(); r != region_id::none; r = in->regions().after(r)) {
      EXPECT_EQ(segment_audit(*in).broken_region(r), nullptr);
      ++count;
    }
    EXPECT_TRUE(in->regions().validate());
    EXPECT_EQ(segment_audit(*in).broken_tables(), nullptr);
    EXPECT_EQ(records.broken_invariant(), nullptr);
    EXPECT_EQ(streams.broken_invariant(), nullptr);
    return count;
  }

  pool_geometry sizes{small_setup()};
  stream_table streams;
  mappings records{sizes};
  std::unique_ptr<segment> in;
  std::vector<std::unique_ptr<physical_memory>> pieces;
  std::vector<handle_record*> handles;
};

TEST_F(SegmentTest, ABlockComesAndGoes) {
  handle_record& h = add(2, 0);
  EXPECT_EQ(region_count(), 2u);
  const region_id taken = take(3, 0);
  ASSERT_NE(taken, region_id::none);
  const address at = in->make_live(taken, records);
  EXPECT_EQ(at, base);
  EXPECT_FALSE(h.is_free);
  EXPECT_EQ(h.current->live_granules, 3u);
  EXPECT_EQ(records.live_granules(), 3u);
  EXPECT_EQ(in->block_count(), 1u);
  EXPECT_EQ(region_count(), 3u);
  give(at, 1);
  EXPECT_TRUE(h.is_free);
  EXPECT_EQ(h.stream, 1u);
  EXPECT_EQ(records.live_granules(), 0u);
  EXPECT_EQ(records.peak_live_granules(), 3u);
  EXPECT_EQ(in->block_count(), 0u);
  EXPECT_EQ(region_count(), 3u) << "the other stream has not finished";
}

TEST_F(SegmentTest, ABlockOverTwoHandlesCountsInBoth) {
  handle_record& left = add(1, 0);
  handle_record& right = add(1, 0);
  EXPECT_EQ(region_count(), 2u) << "free memory of one stream is one region";
  const address at = in->make_live(take(unit + 5, 0), records);
  EXPECT_EQ(left.current->live_granules, unit);
  EXPECT_EQ(right.current->live_granules, 5u);
  EXPECT_FALSE(left.is_free || right.is_free);
  give(at, 0);
  EXPECT_TRUE(left.is_free && right.is_free);
  EXPECT_EQ(region_count(), 2u);
}

TEST_F(SegmentTest, WhatHasPassedIsCoalescedAndNothingElse) {
  add(1, 0);
  add(1, 1);
  EXPECT_EQ(region_count(), 3u);
  const address at = in->make_live(take(unit, 0), records);
  const region_id other = in->regions().after(in->regions().first());
  ASSERT_EQ(in->kind(other), kind_of(1));
  streams.progress().note_passed(in->freed_at(other));
  give(at, 0);
  EXPECT_EQ(region_count(), 2u);
  EXPECT_EQ(in->freed_at(in->regions().first()).stream, 0u);
}

TEST_F(SegmentTest, HolesAreCoalesced) {
  const region_id all = in->regions().first();
  const region_id claim = in->claim_hole(all, {unit, unit}, 0);
  ASSERT_NE(claim, region_id::none);
  EXPECT_EQ(in->range(claim), (granule_range{unit, unit}));
  EXPECT_EQ(region_count(), 3u);
  in->make_hole(claim);
  EXPECT_EQ(region_count(), 1u);
  EXPECT_EQ(in->claim_hole(in->regions().first(), {unit, unit_count * unit}, 0), region_id::none);
  EXPECT_EQ(region_count(), 1u);
}

TEST_F(SegmentTest, AClaimIsGivenBackAsItWas) {
  add(2, 1);
  const region_id free = in->regions().first();
  const stream_point before = in->freed_at(free);
  ASSERT_TRUE(in->provide(1));
  in->claim_head(free, 7);
  EXPECT_EQ(in->claimed_at(free).stream, before.stream);
  EXPECT_EQ(in->claimed_at(free).epoch, before.epoch);
  EXPECT_EQ(region_count(), 3u);
  in->return_claim(free, streams);
  EXPECT_EQ(region_count(), 2u);
  EXPECT_EQ(in->freed_at(in->regions().first()).epoch, before.epoch);
}

TEST_F(SegmentTest, ALockedBlockIsInTheOtherTable) {
  add(1, 0);
  const address at = in->make_live(take(4, 0), records);
  auto found = in->find_block(0);
  ASSERT_TRUE(found);
  ASSERT_TRUE(in->lock_block(*found));
  EXPECT_EQ(in->take_block(0), region_id::none);
  found = in->find_block(0);
  ASSERT_TRUE(found);
  EXPECT_TRUE(found->is_locked);
  in->write_lock(found->region, {3, 1, true, false});
  EXPECT_EQ(in->lock_of(found->region).pins, 3u);
  EXPECT_EQ(in->lock_of(found->region).stream, 1u);
  EXPECT_TRUE(in->lock_of(found->region).freed);
  EXPECT_EQ(in->find_block(granule_bytes).error().code, errc::not_allocated)
      << "inside a block that is freed";
  ASSERT_TRUE(in->unlock_block(*found));
  EXPECT_EQ(in->find_block(granule_bytes).error().code, errc::invalid_argument);
  EXPECT_EQ(in->find_block(4 * granule_bytes).error().code, errc::not_allocated);
  give(at, 0);
}

TEST_F(SegmentTest, AMappingWithNothingBehindItIsAnEnd) {
  add(1, 0);
  const mapping* const first = handles[0]->current;
  EXPECT_TRUE(first->is_end);
  add(1, 0);
  EXPECT_FALSE(first->is_end);
  EXPECT_EQ(records.last_end(), handles[1]->current);
  EXPECT_EQ(records.end_before(*records.last_end()), nullptr);
}

TEST_F(SegmentTest, FreeHandlesAreFoundBySizeAndByAge) {
  const handle_record& two = add(2, 0);
  (void)streams.progress().advance(0);
  const handle_record& one = add(1, 0);
  (void)streams.progress().advance(0);
  const handle_record& later = add(2, 0);
  const free_handle_bins& bins = records.free_of(0);
  EXPECT_EQ(bins.largest(), &two);
  EXPECT_EQ(bins.next_smaller(two), &later);
  EXPECT_EQ(bins.next_smaller(later), &one);
  EXPECT_EQ(bins.next_smaller(one), nullptr);
  EXPECT_EQ(bins.at_least(1, unit), &one);
  EXPECT_EQ(bins.at_least(2, 2 * unit), &two);
  EXPECT_EQ(bins.at_least(3, 3 * unit), nullptr);
  EXPECT_EQ(bins.oldest(), &two);
  EXPECT_TRUE(records.free_of(1).empty());
}

TEST_F(SegmentTest, StaleMappingsWaitInOneList) {
  handle_record& h = add(1, 0);
  std::array<mapping*, 3> stale{};
  for (mapping*& each : stale) {
    each = records.new_mapping(h, 0);
    ASSERT_NE(each, nullptr);
    records.make_stale(*each, now(0));
  }
  EXPECT_EQ(records.take_oldest_stale(), stale[0]);
  EXPECT_EQ(records.stale_count(), 3u) << "a polled mapping is counted";
  EXPECT_EQ(records.stale_bytes(), 3 * unit_bytes);
  EXPECT_EQ(records.broken_invariant(), nullptr);
  records.put_back_stale(*stale[0]);
  EXPECT_DEATH(records.put_back_stale(*stale[0]), "a range is put back that was not taken");
  records.forget_stale(*stale[2]);  // as one that goes with its handle, from where it stands
  EXPECT_EQ(records.take_oldest_stale(), stale[1]) << "what was put back goes to the end";
  EXPECT_EQ(records.take_oldest_stale(), stale[0]);
  EXPECT_EQ(records.take_oldest_stale(), nullptr) << "the others are being polled";
  EXPECT_FALSE(records.has_listed_stale());
  EXPECT_EQ(records.stale_count(), 2u);
  EXPECT_DEATH(records.drop(*stale[0]), "the record of a mapping in a list is given back");
  records.forget_stale(*stale[0]);
  records.forget_stale(*stale[1]);
  EXPECT_EQ(h.stale_mappings, nullptr);
  EXPECT_EQ(records.stale_bytes(), 0u);
  for (mapping* each : stale) records.drop(*each);
  EXPECT_EQ(records.broken_invariant(), nullptr);
}

TEST_F(SegmentTest, OtherStreamsBeginWithWhatIsShared) {
  EXPECT_EQ(streams.other(0, 0), 0u) << "nothing is shared yet";
  EXPECT_EQ(streams.other(0, 1), 1u);
  ASSERT_TRUE(streams.provide());
  ASSERT_TRUE(records.provide_stream(2));
  ASSERT_TRUE(in->provide_streams(3));
  const auto shared = *streams.add(stream_handle::default_stream, stream_phase::shared);
  streams.set_shared(shared);
  EXPECT_EQ(streams.other(0, 0), shared);
  EXPECT_EQ(streams.other(0, 2), 0u) << "not twice";
  EXPECT_TRUE(streams.passed(streams.free_point(shared))) << "whatever is freed there later";
  EXPECT_EQ(streams.broken_invariant(), nullptr);
}

TEST_F(SegmentTest, ARecordThatBlocksNameIsNotUsedAgain) {
  ASSERT_TRUE(streams.provide());
  ASSERT_TRUE(records.provide_stream(2));
  const auto record = streams.add(static_cast<stream_handle>(3), stream_phase::capture);
  ASSERT_TRUE(record);
  streams.add_locked(*record);
  EXPECT_DEATH(streams.recycle(*record), "while blocks name it");
  streams.remove_locked(*record);
  EXPECT_DEATH(streams.remove_locked(*record), "more blocks leave a record than name it");
  streams.recycle(*record);
  EXPECT_EQ(streams.next_number(), *record);
}

TEST_F(SegmentTest, MisuseEndsTheProcess) {
  handle_record& h = add(1, 0);
  const region_id block = take(2, 0);
  EXPECT_DEATH(in->return_claim(block, streams), "an unclaimed region is returned");
  const address at = in->make_live(block, records);
  EXPECT_DEATH(records.enter_free(h, now(0)), "a handle in use is entered as free");
  EXPECT_DEATH(in->claim_free(block), "memory that is not free is claimed");
  EXPECT_DEATH(in->map(*h.current, records), "a mapping is put over another one");
  EXPECT_DEATH(records.make_stale(*h.current, now(0)), "a mapping with live memory");
  give(at, 0);
  EXPECT_DEATH(records.forget_stale(*h.current), "a mapping that is in use is forgotten");
}

}  // namespace
}  // namespace vmm

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a segment, the records of handles and the records of streams refuse what breaks their
// invariants, and free handles are found by size and by age.
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

struct SegmentTest : testing::Test {
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

  pool_geometry sizes{small_setup()};
  stream_table streams;
  mappings records{sizes};
  std::unique_ptr<segment> in;
  std::vector<std::unique_ptr<physical_memory>> pieces;
  std::vector<handle_record*> handles;
};

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

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a plan is mapped whole or not at all, undone whole or put back, and mappings that the
// driver leaves are reported exactly. Method: three pieces on the fake driver, with refusals
// planned for the call that matters; afterwards the driver's mappings, rights and contents are
// compared with what the outcome says.
#include "../support/test.h"

import vmm.backend;
import vmm.fake;
import vmm.optimizer;
import vmm.physical;
import vmm.timeline;

namespace {

using vmm::address, vmm::call, vmm::errc, vmm::mapping_plan, vmm::memory_list, vmm::remap_outcome;

constexpr std::uint64_t piece_bytes = 4 * MiB;

struct Remapper : testing::Test {
  using driver_type = vmm::fake_driver;
  using counts = std::vector<std::uint32_t>;

  void open(const vmm::fake::profile& plays = vmm::fake::profile::cuda()) {
    driver = driver_type(plays);
    time.emplace(driver);
    vmm::physical_options options;
    options.like.where = driver.home();
    options.granularity_bytes = 2 * MiB;
    options.chunk_bytes = piece_bytes;
    memory.emplace(driver, options);
    const vmm::access_grant grant{driver.home(), vmm::access::read_write};
    remaps.emplace(driver, *time, *memory, grant);
    range = driver.reserve({64 * MiB, 0, {}}).value();
    for (memory_list* pieces : {&old_pieces, &new_pieces})
      ASSERT_TRUE(memory->acquire(3 * piece_bytes, *pieces));
    old_plan = {range.base, old_pieces};
    new_plan = {range.base, new_pieces};
    driver.reset_calls();
  }
  static vmm::fake::profile without_spanning_unmap() {
    vmm::fake::profile plays = vmm::fake::profile::cuda();
    plays.can.spanning_unmap = false;
    return plays;
  }
  void close() {
    driver.clear_faults();
    EXPECT_TRUE(driver.finish_all());
    for (std::uint64_t at = 0; at < range.size_bytes; at += piece_bytes)
      EXPECT_TRUE(driver.unmap({range.base + at, piece_bytes}));
    for (memory_list* pieces : {&old_pieces, &new_pieces}) {
      for (vmm::physical_memory* part : *pieces) {
        while (part->mapping_count > 0) memory->drop_mapping(*part);
        memory->drop_holder(*part, {});
      }
      pieces->clear();
    }
    EXPECT_EQ(memory->trim(0).failure.code, errc::none);
    memory.reset();
    time.reset();
    for (const vmm::stream_handle stream : streams) EXPECT_TRUE(driver.destroy_stream(stream));
    EXPECT_TRUE(driver.free_reservation(range));
    EXPECT_TRUE(driver.check_empty()) << driver.report();
    EXPECT_EQ(driver.misuse_count(), 0u);
  }
  void TearDown() override { close(); }

  void fail(call where, std::uint64_t nth = 1, bool forever = false,
            errc code = errc::invalid_argument) {
    driver.fail({where, nth, forever, {code, 77, "INJECTED"}});
  }
  void map_old() {
    ASSERT_TRUE(remaps->map(old_plan).result);
    for (std::size_t i = 0; i < 3; ++i)
      ASSERT_TRUE(driver.write_tag({range.base + i * piece_bytes, piece_bytes}, 100 + i));
    driver.reset_calls();
  }
  // The old plan stands whole, with its contents, and can be used.
  void expect_old() {
    for (std::size_t i = 0; i < 3; ++i) {
      const address at = range.base + i * piece_bytes;
      EXPECT_EQ(driver.get_access(at, driver.home()).value(), vmm::access::read_write);
      EXPECT_EQ(driver.read_tag(at).value(), 100 + i);
    }
    expect_mapped(old_pieces, {1, 1, 1});
  }
  void expect_mapped(const memory_list& pieces, const counts& expected) {
    counts seen;
    for (const vmm::physical_memory* part : pieces) seen.push_back(part->mapping_count);
    EXPECT_EQ(seen, expected);
  }
  [[nodiscard]] std::uint64_t mappings() const { return driver.resource_counts().mappings; }
  // Unfinished work of another stream on a piece.
  void keep_busy(vmm::physical_memory& used) {
    const vmm::stream_handle other = streams.emplace_back(driver.create_stream().value());
    ASSERT_TRUE(driver.launch(other, {.duration_us = 10}));
    used.last_use = time->record(other).value();
    driver.reset_calls();
  }

  driver_type driver;
  std::optional<vmm::timeline> time;
  std::optional<vmm::physical_pool> memory;
  std::optional<vmm::remapper> remaps;
  std::vector<vmm::stream_handle> streams;
  vmm::address_range range{};
  memory_list old_pieces;
  memory_list new_pieces;
  mapping_plan old_plan;
  mapping_plan new_plan;
};

// ---- map

TEST_F(Remapper, MapsSideBySideAndGivesAccessOnce) {
  open();
  const remap_outcome done = remaps->map(old_plan);
  EXPECT_TRUE(done.result);
  EXPECT_EQ(done.mapped_count, 3u);
  EXPECT_EQ(driver.calls(call::map), 3u);
  EXPECT_EQ(driver.calls(call::set_access), 1u);
  EXPECT_TRUE(driver.write_tag({range.base, 3 * piece_bytes}, 1));
  EXPECT_EQ(mappings(), 3u);
  expect_mapped(old_pieces, {1, 1, 1});
}

TEST_F(Remapper, AnUndoThatFailsTwiceIsTriedAgain) {
  open();
  fail(call::set_access);
  fail(call::unmap, 1);
  fail(call::unmap, 2);
  const remap_outcome done = remaps->map(old_plan);
  EXPECT_EQ(done.result.error().where, call::set_access) << "the first failure is reported";
  EXPECT_EQ(done.mapped_count, 0u);
  EXPECT_EQ(mappings(), 0u);
}

TEST_F(Remapper, AnUndoThatKeepsFailingIsTold) {
  open();
  fail(call::set_access);
  fail(call::unmap, 1, true);
  const remap_outcome done = remaps->map(old_plan);
  EXPECT_EQ(done.result.error().where, call::set_access);
  EXPECT_EQ(done.mapped_count, 3u);
  EXPECT_EQ(mappings(), 3u);
  expect_mapped(old_pieces, {1, 1, 1});
  driver.clear_faults();
  EXPECT_TRUE(remaps->unmap(old_plan).result);
  expect_mapped(old_pieces, {0, 0, 0});
}

TEST_F(Remapper, AnUndoInPartIsToldInPart) {
  open(without_spanning_unmap());
  fail(call::map, 3);
  fail(call::unmap, 2, true);
  const remap_outcome done = remaps->map(old_plan);
  EXPECT_EQ(done.result.error().where, call::map);
  EXPECT_EQ(done.mapped_count, 1u) << "of two mapped pieces the second was undone";
  EXPECT_EQ(mappings(), 1u);
  expect_mapped(old_pieces, {1, 0, 0});
}

TEST_F(Remapper, WaitsOnTheDeviceForEachPiecesLastUse) {
  open();
  keep_busy(*old_pieces[1]);
  ASSERT_TRUE(remaps->map(old_plan).result);
  EXPECT_EQ(driver.calls(call::wait_event), 1u);
  old_pieces[1]->last_use.reset();
}

TEST_F(Remapper, RefusesAnEmptyPlan) {
  open();
  EXPECT_DEATH((void)remaps->map({range.base, {}}), "without pieces");
}

// ---- unmap

TEST_F(Remapper, UnmapsInOneCallWhereThatMaySpan) {
  open();
  map_old();
  EXPECT_TRUE(remaps->unmap(old_plan).result);
  EXPECT_EQ(driver.calls(call::unmap), 1u);
  EXPECT_EQ(mappings(), 0u);
  expect_mapped(old_pieces, {0, 0, 0});
}

TEST_F(Remapper, AnEmptyPlanNeedsNoUnmap) {
  open();
  EXPECT_TRUE(remaps->unmap({range.base, {}}).result);
  EXPECT_EQ(driver.calls(), 0u);
}

// ---- detach

TEST_F(Remapper, PuttingBackIsTriedAgain) {
  open(without_spanning_unmap());
  map_old();
  fail(call::unmap, 2);
  fail(call::map, 1);
  fail(call::map, 2);
  EXPECT_FALSE(remaps->detach(old_plan).lost);
  expect_old();
}

TEST_F(Remapper, WhatCannotBePutBackIsLost) {
  open(without_spanning_unmap());
  map_old();
  fail(call::unmap, 2);
  fail(call::map, 1, true);
  const remap_outcome done = remaps->detach(old_plan);
  EXPECT_FALSE(done.result);
  EXPECT_TRUE(done.lost);
  EXPECT_EQ(done.mapped_count, 2u);
  expect_mapped(old_pieces, {1, 1, 0});
}

// All three stand mapped, but what was put back may not be used: that is not as it was.
TEST_F(Remapper, MappedWithoutAccessIsNotPutBack) {
  open(without_spanning_unmap());
  map_old();
  fail(call::unmap, 2, true);
  fail(call::set_access, 1, true);
  const remap_outcome done = remaps->detach(old_plan);
  EXPECT_TRUE(done.lost);
  EXPECT_EQ(done.mapped_count, 3u);
  EXPECT_EQ(mappings(), 3u);
  expect_mapped(old_pieces, {1, 1, 1});
}

// ---- exchange

TEST_F(Remapper, ExchangesOnePlanForAnother) {
  open();
  map_old();
  ASSERT_TRUE(remaps->exchange(old_plan, new_plan).result);
  EXPECT_TRUE(driver.write_tag({range.base, 3 * piece_bytes}, 7));
  EXPECT_EQ(mappings(), 3u);
  expect_mapped(old_pieces, {0, 0, 0});
  expect_mapped(new_pieces, {1, 1, 1});
}

// A driver's own "device lost" is an error like any other as long as the old plan can be put back.
TEST_F(Remapper, TheDriversDeviceLostIsNotALoss) {
  open();
  map_old();
  fail(call::map, 1, false, errc::device_lost);
  const remap_outcome done = remaps->exchange(old_plan, new_plan);
  EXPECT_EQ(done.result.error().code, errc::device_lost);
  EXPECT_FALSE(done.lost);
  expect_old();
}

TEST_F(Remapper, AnExchangeThatCannotGoEitherWayIsLost) {
  open();
  map_old();
  fail(call::map, 1, true);
  const remap_outcome done = remaps->exchange(old_plan, new_plan);
  EXPECT_EQ(done.result.error().code, errc::device_lost);
  EXPECT_TRUE(done.lost);
  EXPECT_FALSE(done.of_new);
  EXPECT_EQ(done.mapped_count, 0u);
  EXPECT_EQ(mappings(), 0u);
}

TEST_F(Remapper, ANewPlanThatWillNotGoStands) {
  open();
  map_old();
  fail(call::set_access, 1, true);
  fail(call::unmap, 2, true);  // the first takes the old plan away
  const remap_outcome done = remaps->exchange(old_plan, new_plan);
  EXPECT_TRUE(done.lost);
  EXPECT_TRUE(done.of_new);
  EXPECT_EQ(done.mapped_count, 3u);
  expect_mapped(old_pieces, {0, 0, 0});
  expect_mapped(new_pieces, {1, 1, 1});
}

TEST_F(Remapper, AnOldPlanPutBackWithoutAccessIsLost) {
  open();
  map_old();
  fail(call::set_access, 1, true);
  fail(call::unmap, 3, true);  // after the old plan went, and the new one
  const remap_outcome done = remaps->exchange(old_plan, new_plan);
  EXPECT_TRUE(done.lost);
  EXPECT_FALSE(done.of_new);
  EXPECT_EQ(done.mapped_count, 3u);
  expect_mapped(old_pieces, {1, 1, 1});
  expect_mapped(new_pieces, {0, 0, 0});
}

}  // namespace

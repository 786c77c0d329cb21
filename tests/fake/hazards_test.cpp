// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: access to memory under unfinished work is reported, and access after a correct wait is not.
// Method: a kernel that is still running, each thing that must not be done under it, and the same
// thing done right.
#include "bench.h"

namespace fake_test {
namespace {

using vmm::fake::misuse_kind;

struct Hazards : FakeWork {
  Hazards() : FakeWork(16 * MiB, 4 * MiB) {}
  void reads(vmm::stream_handle stream, vmm::address_range what) {
    ASSERT_TRUE(driver.launch(stream, {.name = "reader", .duration_us = 100, .reads = {&what, 1}}));
  }
  void writes(vmm::stream_handle stream, vmm::address_range what) {
    ASSERT_TRUE(
        driver.launch(stream, {.name = "writer", .duration_us = 100, .writes = {&what, 1}}));
  }
  std::uint64_t in_flight() { return driver.misuse_count(misuse_kind::in_flight); }
  std::uint64_t unordered() { return driver.misuse_count(misuse_kind::unordered); }

  vmm::address_range low{range.base, 4 * MiB};
  vmm::address_range high{range.base + 8 * MiB, 4 * MiB};
};

TEST_F(Hazards, UnmapUnderAKernelIsReportedAndDoesNotWait) {
  reads(first, low);
  const std::uint64_t before = driver.now_ns();
  EXPECT_TRUE(driver.unmap(low));
  EXPECT_LT(driver.now_ns() - before, 20'000u);
  ASSERT_EQ(in_flight(), 1u);
  EXPECT_EQ(driver.misuses()[0].where, vmm::call::unmap);
  EXPECT_EQ(driver.misuses()[0].range, low);
}

TEST_F(Hazards, WorkOverNoBytesUsesNothing) {
  writes(first, low);
  reads(second, {low.base + 1 * MiB, 0});
  writes(second, {low.base, 0});
  EXPECT_EQ(unordered(), 0u);
  EXPECT_EQ(driver.misuse_count(), 0u);
}

TEST_F(Hazards, UnmapAfterTheKernelIsFine) {
  reads(first, low);
  ASSERT_TRUE(driver.record_event(event, first));
  ASSERT_TRUE(driver.synchronize_event(event));
  EXPECT_TRUE(driver.unmap(low));
  EXPECT_EQ(driver.misuse_count(), 0u);
}

TEST_F(Hazards, AMappingElsewhereOfTheSameMemoryMayGo) {
  mapped(high.base, memory, 4 * MiB);
  reads(first, high);
  EXPECT_TRUE(driver.unmap(low)) << "the stale mapping of a remap";
  EXPECT_EQ(driver.misuse_count(), 0u);
  EXPECT_TRUE(driver.unmap(high));
  EXPECT_EQ(in_flight(), 1u);
}

TEST_F(Hazards, RevokingARightThatAKernelNeedsIsReported) {
  writes(first, low);
  EXPECT_TRUE(open(low, vmm::access::read));
  EXPECT_EQ(in_flight(), 1u);
  driver.clear_misuses();
  EXPECT_TRUE(open(low));
  EXPECT_EQ(in_flight(), 0u) << "giving a right takes nothing away";
}

TEST_F(Hazards, ARightThatAReaderDoesNotNeedMayGo) {
  reads(first, low);
  EXPECT_TRUE(open(low, vmm::access::read));
  EXPECT_EQ(in_flight(), 0u);
  EXPECT_TRUE(open(low, vmm::access::none));
  EXPECT_EQ(in_flight(), 1u);
}

TEST_F(Hazards, TheHostMustNotTouchWhatAKernelUses) {
  std::byte bytes[16]{};
  reads(first, {low.base, 2 * MiB});
  EXPECT_TRUE(driver.read(bytes, low.base));
  EXPECT_EQ(in_flight(), 0u) << "two readers do not disturb each other";
  EXPECT_TRUE(driver.write(low.base + 2 * MiB, bytes));
  EXPECT_EQ(in_flight(), 0u) << "another part of the memory";
  EXPECT_TRUE(driver.write(low.base + 64, bytes));
  EXPECT_EQ(in_flight(), 1u);
}

TEST_F(Hazards, TheHostIsCaughtThroughAnAliasToo) {
  std::byte bytes[16]{};
  mapped(high.base, memory, 4 * MiB);
  writes(first, low);
  EXPECT_TRUE(driver.read(bytes, high.base));
  EXPECT_EQ(in_flight(), 1u);
}

TEST_F(Hazards, AnotherStreamMustBeOrderedBehindAWriter) {
  writes(first, low);
  writes(second, {low.base + 1 * MiB, 2 * MiB});
  ASSERT_EQ(unordered(), 1u);
  EXPECT_STREQ(driver.misuses()[0].detail, "writer");
}

TEST_F(Hazards, ReadersOnTwoStreamsAreFineAndAWriterAmongThemIsNot) {
  reads(first, low);
  reads(second, low);
  EXPECT_EQ(unordered(), 0u);
  writes(second, low);
  EXPECT_EQ(unordered(), 1u);
}

TEST_F(Hazards, OneStreamIsInOrderByItself) {
  writes(first, low);
  writes(first, low);
  EXPECT_TRUE(driver.copy({high.base, low.base, 0, first}));
  EXPECT_EQ(driver.misuse_count(), 0u);
}

TEST_F(Hazards, AnEventOrdersTwoStreams) {
  writes(first, low);
  ASSERT_TRUE(driver.record_event(event, first));
  ASSERT_TRUE(driver.wait_event(second, event));
  writes(second, low);
  EXPECT_EQ(unordered(), 0u);
}

TEST_F(Hazards, AnEventOrdersOnlyWhatCameBeforeIt) {
  ASSERT_TRUE(driver.record_event(event, first));
  writes(first, low);
  ASSERT_TRUE(driver.wait_event(second, event));
  writes(second, low);
  EXPECT_EQ(unordered(), 1u);
}

TEST_F(Hazards, OrderIsHandedOnFromStreamToStream) {
  const auto third = *driver.create_stream();
  writes(first, low);
  ASSERT_TRUE(driver.record_event(event, first));
  ASSERT_TRUE(driver.wait_event(second, event));
  ASSERT_TRUE(driver.record_event(event, second));
  ASSERT_TRUE(driver.wait_event(third, event));
  writes(third, low);
  EXPECT_EQ(unordered(), 0u);
  ASSERT_TRUE(driver.destroy_stream(third));
}

TEST_F(Hazards, MemoryMovedToANewAddressIsStillTheSameMemory) {
  writes(first, low);
  mapped(high.base, memory, 4 * MiB);
  writes(second, high);
  EXPECT_EQ(unordered(), 1u) << "handed out again before its last user finished";
}

TEST_F(Hazards, AKernelThatTouchesUnmappedMemoryWhenItRunsFaults) {
  reads(first, high);
  EXPECT_EQ(driver.misuse_count(), 0u) << "not yet: it may be mapped until it starts";
  ASSERT_TRUE(driver.advance_us(1));
  EXPECT_EQ(driver.misuse_count(misuse_kind::use_after_unmap), 1u);
}

TEST_F(Hazards, MappedInTimeIsInTime) {
  writes(first, low);
  ASSERT_TRUE(driver.record_event(event, first));
  ASSERT_TRUE(driver.wait_event(second, event));
  reads(second, high);
  mapped(high.base, created(4 * MiB), 4 * MiB);
  ASSERT_TRUE(driver.synchronize_stream(second));
  EXPECT_EQ(driver.misuse_count(), 0u);
}

TEST_F(Hazards, AKernelWithoutTheRightFaults) {
  ASSERT_TRUE(open(low, vmm::access::read));
  reads(first, low);
  ASSERT_TRUE(driver.synchronize_stream(first));
  EXPECT_EQ(driver.misuse_count(), 0u);
  writes(first, low);
  ASSERT_TRUE(driver.synchronize_stream(first));
  EXPECT_EQ(driver.misuse_count(misuse_kind::no_access), 1u);
}

TEST_F(Hazards, ReleaseUnderAKernelIsFineWhileTheMemoryIsMapped) {
  const auto kept = driver.create({4 * MiB, driver.home()});
  mapped(high.base, *kept, 4 * MiB);
  writes(first, high);
  EXPECT_TRUE(driver.release(*kept));
  EXPECT_EQ(driver.misuse_count(), 0u);
  EXPECT_TRUE(driver.unmap(high));
  EXPECT_EQ(in_flight(), 1u) << "and now the kernel's memory is gone";
  ASSERT_TRUE(driver.synchronize_stream(first));
}

TEST_F(Hazards, AnEventOfAllWorkOrdersEveryStreamBeforeIt) {
  writes(first, {low.base, MiB});
  writes(second, {low.base + MiB, MiB});
  ASSERT_TRUE(driver.record_all(event));
  const vmm::stream_handle third = *driver.create_stream();
  ASSERT_TRUE(driver.wait_event(third, event));
  writes(third, low);
  EXPECT_EQ(driver.misuse_count(), 0u);
  writes(second, {low.base + MiB, MiB});  // behind the event, beside the third's
  EXPECT_EQ(unordered(), 1u);
  driver.clear_misuses();
  ASSERT_TRUE(driver.finish_all());
  EXPECT_TRUE(driver.destroy_stream(third));
}

TEST_F(Hazards, UnmapAfterAnEventOfAllWorkIsFine) {
  reads(first, {low.base, MiB});
  reads(second, low);
  ASSERT_TRUE(driver.record_all(event));
  EXPECT_FALSE(driver.query_event(event).value_or(true));
  ASSERT_TRUE(driver.synchronize_event(event));
  EXPECT_TRUE(driver.query_event(event).value_or(false));
  EXPECT_TRUE(driver.unmap(low));
  EXPECT_EQ(driver.misuse_count(), 0u);
}

TEST_F(Hazards, AnEventOfAllWorkForgetsItWhenItIsRecordedInAStream) {
  reads(second, low);
  ASSERT_TRUE(driver.record_all(event));
  ASSERT_TRUE(driver.record_event(event, first));
  EXPECT_TRUE(driver.query_event(event).value_or(false)) << "the first stream is idle";
}

}  // namespace
}  // namespace fake_test

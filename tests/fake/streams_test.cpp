// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: streams run their work in order and in virtual time, events mark points in it, and the
// manual schedule allows every order that a device may choose.
// Method: kernels of known length against the clock; orders chosen by hand against the tags that
// they leave behind.
#include "bench.h"

namespace fake_test {
namespace {

using vmm::fake::misuse_kind;

struct Streams : FakeWork {
  Streams() : FakeWork(8 * MiB, 8 * MiB) {}
  /// A kernel that fills the n-th granule with a tag.
  vmm::status writes(vmm::stream_handle stream, std::uint64_t granule, std::uint64_t tag,
                     double us = 50) {
    const vmm::address_range part{range.base + granule * 2 * MiB, 2 * MiB};
    return driver.launch(stream, {.duration_us = us, .writes = {&part, 1}, .tag = tag});
  }
  std::uint64_t tag(std::uint64_t granule) {
    return driver.read_tag(range.base + granule * 2 * MiB).value_or(~std::uint64_t{0});
  }
  bool passed() { return driver.query_event(event).value_or(false); }
};

TEST_F(Streams, AKernelTakesItsTimeAndThenItsTagIsThere) {
  const std::uint64_t begin = driver.now_ns();
  ASSERT_TRUE(writes(first, 0, 7));
  ASSERT_TRUE(driver.record_event(event, first));
  EXPECT_FALSE(passed());
  EXPECT_EQ(driver.resource_counts().pending_work, 1u);
  ASSERT_TRUE(driver.advance_us(40));
  EXPECT_FALSE(passed());
  ASSERT_TRUE(driver.advance_us(10));
  EXPECT_TRUE(passed());
  EXPECT_EQ(tag(0), 7u);
  EXPECT_EQ(driver.resource_counts().pending_work, 0u);
  EXPECT_GE(driver.now_ns() - begin, 50'000u);
}

TEST_F(Streams, StreamsRunSideBySide) {
  const std::uint64_t begin = driver.now_ns();
  ASSERT_TRUE(writes(first, 0, 1));
  ASSERT_TRUE(writes(second, 1, 2));
  ASSERT_TRUE(driver.synchronize_stream(first));
  ASSERT_TRUE(driver.synchronize_stream(second));
  EXPECT_LT(driver.now_ns() - begin, 60'000u);
}

TEST_F(Streams, WaitingIsNotChargedToTheDriver) {
  ASSERT_TRUE(writes(first, 0, 1, 5000));
  const std::uint64_t busy = driver.busy_ns();
  ASSERT_TRUE(driver.synchronize_stream(first));
  EXPECT_LT(driver.busy_ns() - busy, 1'000u);
  EXPECT_GE(driver.now_ns(), 5'000'000u);
}

TEST_F(Streams, AStreamWaitsOnTheDeviceAndTheCallerDoesNot) {
  ASSERT_TRUE(writes(first, 0, 1, 100));
  ASSERT_TRUE(driver.record_event(event, first));
  const std::uint64_t before = driver.now_ns();
  ASSERT_TRUE(driver.wait_event(second, event));
  EXPECT_LT(driver.now_ns() - before, 1'000u);
  ASSERT_TRUE(writes(second, 0, 2, 10));
  EXPECT_EQ(driver.misuse_count(), 0u) << "ordered by the event";
  ASSERT_TRUE(driver.synchronize_stream(second));
  EXPECT_EQ(tag(0), 2u);
  EXPECT_GE(driver.now_ns() - before, 100'000u);
}

TEST_F(Streams, AnEventAfterAWaitIncludesWhatIsWaitedFor) {
  ASSERT_TRUE(writes(first, 0, 1, 100));
  ASSERT_TRUE(driver.record_event(event, first));
  ASSERT_TRUE(driver.wait_event(second, event));
  ASSERT_TRUE(driver.record_event(event, second));
  EXPECT_FALSE(passed());
  ASSERT_TRUE(driver.synchronize_event(event));
  EXPECT_EQ(tag(0), 1u);
}

TEST_F(Streams, EventsCostWhatWasMeasured) {
  const auto cost = [&](auto&& body) {
    const std::uint64_t before = driver.busy_ns();
    EXPECT_TRUE(body());
    return driver.busy_ns() - before;
  };
  vmm::event_handle made{};
  EXPECT_EQ(cost([&] { return static_cast<bool>(made = *driver.create_event(), true); }), 130u);
  EXPECT_EQ(cost([&] { return driver.record_event(made, first); }), 120u);
  EXPECT_EQ(cost([&] { return driver.query_event(made); }), 110u);
  EXPECT_EQ(cost([&] { return driver.wait_event(second, made); }), 90u);
  EXPECT_EQ(cost([&] { return driver.destroy_event(made); }), 70u);
}

TEST_F(Streams, CopiesAndFillsTakeTheBandwidthOfTheDevice) {
  const std::uint64_t begin = driver.now_ns();
  ASSERT_TRUE(driver.copy({range.base + 4 * MiB, range.base, 4 * MiB, first}));
  ASSERT_TRUE(driver.synchronize_stream(first));
  const double us = static_cast<double>(driver.now_ns() - begin) / 1000.0;
  EXPECT_NEAR(us, 2.0 * 4 * MiB / 4.2e6, 0.5);  // read and written at 4.2 TB/s of traffic
}

TEST_F(Streams, ADestroyedStreamFinishesItsWork) {
  const auto third = *driver.create_stream();
  ASSERT_TRUE(writes(third, 3, 9));
  ASSERT_TRUE(driver.record_event(event, third));
  ASSERT_TRUE(driver.destroy_stream(third));
  EXPECT_FALSE(passed());
  EXPECT_FALSE(driver.synchronize_stream(third));
  EXPECT_EQ(driver.misuse_count(misuse_kind::stale_handle), 1u);
  const auto fourth = *driver.create_stream();
  EXPECT_NE(fourth, third);
  ASSERT_TRUE(driver.synchronize_event(event));
  EXPECT_EQ(tag(3), 9u);
  ASSERT_TRUE(driver.destroy_stream(fourth));
}

TEST_F(Streams, TheDefaultStreamIsAStreamThatCannotBeDestroyed) {
  ASSERT_TRUE(writes(vmm::stream_handle::default_stream, 0, 4));
  ASSERT_TRUE(driver.synchronize_stream(vmm::stream_handle::default_stream));
  EXPECT_EQ(tag(0), 4u);
  EXPECT_FALSE(driver.destroy_stream(vmm::stream_handle::default_stream));
}

TEST_F(Streams, TheDefaultStreamHasASecondNumber) {
  constexpr vmm::stream_handle legacy{1};
  ASSERT_TRUE(writes(legacy, 0, 5));
  ASSERT_TRUE(driver.record_event(event, vmm::stream_handle::default_stream));
  EXPECT_FALSE(passed());
  ASSERT_TRUE(driver.synchronize_stream(legacy));
  EXPECT_TRUE(passed());
  EXPECT_EQ(tag(0), 5u);
  EXPECT_TRUE(driver.feature_set().is_per_thread(vmm::stream_handle{2}));
}

TEST_F(Streams, AKernelSeesWhatItExpectsOrSaysSo) {
  ASSERT_TRUE(driver.write_tag(range, 3));
  vmm::fake::kernel what{.reads = {&range, 1}, .expected = 3};
  ASSERT_TRUE(driver.launch(first, what));
  ASSERT_TRUE(driver.synchronize_stream(first));
  EXPECT_EQ(driver.misuse_count(), 0u);
  what.expected = 4;
  what.name = "reader of 4";
  ASSERT_TRUE(driver.launch(first, what));
  ASSERT_TRUE(driver.synchronize_stream(first));
  ASSERT_EQ(driver.misuse_count(misuse_kind::wrong_contents), 1u);
  EXPECT_STREQ(driver.misuses().back().detail, "reader of 4");
}

TEST_F(Streams, InTheManualScheduleNothingFinishesByItself) {
  driver.set_manual(true);
  ASSERT_TRUE(writes(first, 0, 1));
  ASSERT_TRUE(driver.record_event(event, first));
  ASSERT_TRUE(driver.advance_us(1e9));
  EXPECT_FALSE(passed());
  EXPECT_EQ(driver.ready_count(), 1u);
  EXPECT_TRUE(*driver.finish_next(first));
  EXPECT_TRUE(passed());
  EXPECT_FALSE(*driver.finish_next(first));
  EXPECT_EQ(tag(0), 1u);
}

TEST_F(Streams, InTheManualScheduleAWaitHoldsBackWhatFollows) {
  driver.set_manual(true);
  ASSERT_TRUE(writes(first, 0, 1));
  ASSERT_TRUE(driver.record_event(event, first));
  ASSERT_TRUE(driver.wait_event(second, event));
  ASSERT_TRUE(writes(second, 0, 2));
  EXPECT_FALSE(*driver.finish_next(second));
  EXPECT_EQ(driver.ready_count(), 1u);
  ASSERT_TRUE(driver.finish_ready(0));
  EXPECT_TRUE(*driver.finish_next(second));
  EXPECT_EQ(tag(0), 2u);
  EXPECT_FALSE(driver.finish_ready(0));
}

TEST_F(Streams, SynchronisingByHandFinishesWhatIsNeededAndNoMore) {
  driver.set_manual(true);
  const auto third = *driver.create_stream();
  ASSERT_TRUE(writes(first, 0, 1));
  ASSERT_TRUE(driver.record_event(event, first));
  ASSERT_TRUE(writes(first, 1, 1));  // after the event: not needed
  ASSERT_TRUE(writes(third, 3, 1));  // another stream: not needed
  ASSERT_TRUE(driver.wait_event(second, event));
  ASSERT_TRUE(writes(second, 2, 1));
  ASSERT_TRUE(driver.synchronize_stream(second));
  EXPECT_EQ(driver.resource_counts().pending_work, 2u);
  EXPECT_EQ(tag(0), 1u);
  EXPECT_EQ(tag(2), 1u);
  ASSERT_TRUE(driver.finish_all());
  ASSERT_TRUE(driver.destroy_stream(third));
}

// Two streams of two kernels each that write one granule: every interleaving shows as a tag string.
TEST_F(Streams, EveryOrderThatStreamsAllowCanBeChosen) {
  driver.set_manual(true);
  std::set<std::string> orders;
  for (unsigned choices = 0; choices < 8; ++choices) {
    ASSERT_TRUE(writes(first, 0, 1));
    ASSERT_TRUE(writes(first, 0, 2));
    ASSERT_TRUE(writes(second, 0, 3));
    ASSERT_TRUE(writes(second, 0, 4));
    std::string order;
    for (unsigned step = 0; driver.ready_count() > 0; ++step) {
      ASSERT_TRUE(driver.finish_ready(((choices >> step) & 1U) % driver.ready_count()));
      driver.clear_misuses();
      const auto seen = *driver.read_tag(range.base);
      order += static_cast<char>('0' + seen);
    }
    orders.insert(order);
  }
  EXPECT_EQ(orders, (std::set<std::string>{"1234", "1324", "1342", "3124", "3142", "3412"}));
  driver.clear_misuses();
}

TEST(StreamsOfADriver, AreInItsResourceCounts) {
  vmm::fake_driver driver;
  const auto stream = driver.create_stream();
  const auto event = driver.create_event();
  EXPECT_EQ(driver.resource_counts().streams, 1u);
  EXPECT_EQ(driver.resource_counts().events, 1u);
  ASSERT_TRUE(driver.launch(*stream, {"long kernel", 1e6}));
  EXPECT_FALSE(driver.check_empty());
  EXPECT_TRUE(contains(driver.report(), "stream"));
  EXPECT_TRUE(contains(driver.report(), "event"));
  EXPECT_TRUE(contains(driver.report(), "long kernel"));
  ASSERT_TRUE(driver.destroy_event(*event));
  ASSERT_TRUE(driver.destroy_stream(*stream));
  EXPECT_FALSE(driver.resource_counts().empty()) << "the kernel runs on";
  ASSERT_TRUE(driver.finish_all());
  EXPECT_TRUE(driver.resource_counts().empty());
}

TEST_F(Streams, AnEventOfAllWorkPassesWhenTheLastStreamHasDoneWhatItHadThen) {
  driver.set_manual(true);
  vmm::stream_handle gone = *driver.create_stream();
  const auto made = *driver.create_event();
  EXPECT_TRUE(driver.launch(first, {.duration_us = 1}));
  EXPECT_TRUE(driver.launch(gone, {.duration_us = 1}));
  EXPECT_TRUE(driver.launch(vmm::stream_handle::default_stream, {.duration_us = 1}));
  ASSERT_TRUE(driver.destroy_stream(gone));
  ASSERT_TRUE(driver.record_all(made));
  EXPECT_TRUE(driver.launch(second, {.duration_us = 1}));  // behind it
  ASSERT_TRUE(driver.wait_event(second, made));
  EXPECT_TRUE(driver.launch(second, {.duration_us = 1}));
  EXPECT_TRUE(driver.finish_next(second).value_or(false));
  EXPECT_FALSE(driver.finish_next(second).value_or(true)) << "it waits for all the others";
  EXPECT_TRUE(driver.finish_next(first).value_or(false));
  EXPECT_TRUE(driver.finish_next(vmm::stream_handle::default_stream).value_or(false));
  EXPECT_FALSE(driver.query_event(made).value_or(true)) << "the stream that is gone still works";
  EXPECT_FALSE(driver.finish_next(second).value_or(true));
  EXPECT_TRUE(driver.finish_ready(0));
  EXPECT_TRUE(driver.query_event(made).value_or(false));
  EXPECT_TRUE(driver.finish_next(second).value_or(false));
  EXPECT_TRUE(driver.destroy_event(made));
  driver.set_manual(false);
}

}  // namespace
}  // namespace fake_test

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: capture into graphs follows the rules that cuda.h writes down, to the code: what a captured
// stream is given does not run, what forbids itself spoils the capture, and the thread's mode says
// which other calls do.
// Method: each rule tried on one capture, and the capture's end looked at; a graph is played and
// seen to do what was captured.
#include "bench.h"

namespace fake_test {
namespace {

using vmm::capture_mode, vmm::capture_state;

constexpr std::int64_t unsupported = 900;
constexpr std::int64_t invalidated = 901;
constexpr std::int64_t merge = 902;
constexpr std::int64_t unmatched = 903;
constexpr std::int64_t unjoined = 904;
constexpr std::int64_t isolation = 905;
constexpr std::int64_t implicit = 906;
constexpr std::int64_t captured_event = 907;
constexpr std::int64_t wrong_thread = 908;

struct Capture : FakeWork {
  Capture() : FakeWork(2 * MiB, 2 * MiB) {}
  void begin(capture_mode mode = capture_mode::relaxed) {
    ASSERT_EQ(code(driver.begin_capture(first, mode)), success);
  }
  void expect_good_end() {
    const auto graph = driver.end_capture(first);
    EXPECT_EQ(code(graph), success);
    if (graph) EXPECT_TRUE(driver.destroy_graph(*graph));
  }
  void expect_end(bool good) {
    if (good) return expect_good_end();
    EXPECT_EQ(code(driver.end_capture(first)), invalidated);
  }
  [[nodiscard]] capture_state state_of(vmm::stream_handle stream) {
    const auto info = driver.query_capture(stream);
    EXPECT_TRUE(info);
    return info ? info->state : capture_state::none;
  }
  vmm::status writes(vmm::stream_handle stream, std::uint64_t tag) {
    return driver.launch(stream, {.duration_us = 10, .writes = {&range, 1}, .tag = tag});
  }
};

TEST_F(Capture, WhatIsCapturedRunsWhenTheGraphIsPlayed) {
  begin();
  EXPECT_EQ(state_of(first), capture_state::active);
  EXPECT_EQ(state_of(second), capture_state::none);
  ASSERT_TRUE(writes(first, 7));
  EXPECT_EQ(driver.resource_counts().pending_work, 0u);
  const auto graph = *driver.end_capture(first);
  EXPECT_EQ(state_of(first), capture_state::none);
  for (const std::uint64_t before : {1u, 2u}) {
    ASSERT_TRUE(driver.write_tag(range, before));
    ASSERT_TRUE(driver.launch_graph(graph, second));
    EXPECT_EQ(driver.resource_counts().pending_work, 1u);
    ASSERT_TRUE(driver.synchronize_stream(second));
    EXPECT_EQ(driver.read_tag(range.base).value_or(0), 7u);
  }
  EXPECT_TRUE(driver.destroy_graph(graph));
  EXPECT_FALSE(driver.launch_graph(graph, second));
}

TEST_F(Capture, EachHasANumberOfItsOwn) {
  begin();
  ASSERT_TRUE(driver.begin_capture(second, capture_mode::relaxed));
  const std::uint64_t one = driver.query_capture(first)->id;
  const std::uint64_t two = driver.query_capture(second)->id;
  EXPECT_NE(one, 0u);
  EXPECT_NE(one, two);
  expect_good_end();
  const auto other = *driver.end_capture(second);
  EXPECT_TRUE(driver.destroy_graph(other));
  begin();
  EXPECT_GT(driver.query_capture(first)->id, two);
  expect_good_end();
}

TEST_F(Capture, ACapturedEventIsNotToBeAskedOrWaitedFor) {
  for (const bool asked : {true, false}) {
    begin();
    ASSERT_TRUE(driver.record_event(event, first));
    const std::int64_t answer =
        asked ? code(driver.query_event(event)) : code(driver.synchronize_event(event));
    EXPECT_EQ(answer, captured_event);
    EXPECT_EQ(state_of(first), capture_state::invalidated);
    EXPECT_EQ(code(writes(first, 1)), invalidated);
    EXPECT_EQ(code(driver.record_event(event, first)), invalidated);
    EXPECT_EQ(code(driver.end_capture(first)), invalidated);
    EXPECT_EQ(state_of(first), capture_state::none);
  }
  EXPECT_EQ(code(driver.query_event(event)), captured_event) << "until it is recorded anew";
  ASSERT_TRUE(driver.record_event(event, second));
  EXPECT_TRUE(driver.query_event(event).value_or(false));
}

TEST_F(Capture, ACapturedStreamIsNotToBeWaitedFor) {
  begin();
  EXPECT_EQ(code(driver.synchronize_stream(first)), unsupported);
  EXPECT_EQ(code(driver.end_capture(first)), invalidated);
}

TEST_F(Capture, ItDoesNotWaitForWhatIsOutside) {
  ASSERT_TRUE(driver.record_event(event, second));
  begin();
  EXPECT_EQ(code(driver.wait_event(first, event)), isolation);
  EXPECT_EQ(code(driver.end_capture(first)), invalidated);
}

TEST_F(Capture, AStreamThatWaitsForACapturedOneIsCapturedToo) {
  const vmm::event_handle back = *driver.create_event();
  begin();
  ASSERT_TRUE(driver.record_event(event, first));
  ASSERT_TRUE(driver.wait_event(second, event));
  EXPECT_EQ(driver.query_capture(second)->id, driver.query_capture(first)->id);
  ASSERT_TRUE(writes(second, 3));
  EXPECT_EQ(driver.resource_counts().pending_work, 0u);
  EXPECT_EQ(code(driver.end_capture(second)), unmatched);
  ASSERT_TRUE(driver.record_event(back, second));
  ASSERT_TRUE(driver.wait_event(first, back));
  expect_good_end();
  EXPECT_EQ(state_of(second), capture_state::none);
  begin();
  ASSERT_TRUE(driver.record_event(event, first));
  ASSERT_TRUE(driver.wait_event(second, event));
  ASSERT_TRUE(writes(second, 3));
  EXPECT_EQ(code(driver.end_capture(first)), unjoined);
  EXPECT_EQ(state_of(second), capture_state::none);
  EXPECT_TRUE(driver.destroy_event(back));
}

TEST_F(Capture, TwoOfThemDoNotMerge) {
  begin();
  ASSERT_TRUE(driver.begin_capture(second, capture_mode::relaxed));
  ASSERT_TRUE(driver.record_event(event, first));
  EXPECT_EQ(code(driver.wait_event(second, event)), merge);
  EXPECT_EQ(code(driver.end_capture(first)), invalidated);
  EXPECT_EQ(code(driver.end_capture(second)), invalidated);
}

TEST_F(Capture, TheDefaultStreamStaysOut) {
  const auto none = vmm::stream_handle::default_stream;
  EXPECT_FALSE(vmm::can_capture(driver.feature_set(), none));
  EXPECT_TRUE(vmm::can_capture(driver.feature_set(), first));
  EXPECT_EQ(code(driver.begin_capture(none, capture_mode::relaxed)), unsupported);
  begin();
  EXPECT_EQ(state_of(none), capture_state::none);
  ASSERT_TRUE(driver.record_event(event, first));
  EXPECT_EQ(code(driver.wait_event(none, event)), implicit);
  EXPECT_EQ(code(driver.end_capture(first)), invalidated);
}

TEST_F(Capture, TheModeSaysWhoMayMakeUnsafeCalls) {
  const auto event = *driver.create_event();
  const auto ask = [&] { return code(driver.query_event(event)); };
  const auto elsewhere = [&](capture_mode mode) {
    std::int64_t answer = -1;
    std::thread([&] {
      (void)driver.exchange_capture_mode(mode);
      answer = ask();
      (void)driver.exchange_capture_mode(capture_mode::any_thread);
    }).join();
    return answer;
  };
  struct row {
    capture_mode begun;
    capture_mode other;
    std::int64_t here;
    std::int64_t there;
  };
  for (const row& each : {row{capture_mode::any_thread, capture_mode::any_thread, 900, 900},
                          row{capture_mode::any_thread, capture_mode::this_thread, 900, 0},
                          row{capture_mode::any_thread, capture_mode::relaxed, 900, 0},
                          row{capture_mode::this_thread, capture_mode::any_thread, 900, 0},
                          row{capture_mode::relaxed, capture_mode::any_thread, 0, 0}}) {
    begin(each.begun);
    EXPECT_EQ(elsewhere(each.other), each.there);
    expect_end(each.there == 0);
    begin(each.begun);
    EXPECT_EQ(ask(), each.here);
    expect_end(each.here == 0);
    begin(each.begun);
    EXPECT_EQ(driver.exchange_capture_mode(capture_mode::relaxed), capture_mode::any_thread);
    EXPECT_EQ(ask(), success);
    EXPECT_EQ(driver.exchange_capture_mode(capture_mode::any_thread), capture_mode::relaxed);
    expect_good_end();
  }
  EXPECT_TRUE(driver.destroy_event(event));
}

// As recorded on an H200.
TEST_F(Capture, MemoryMayBeMadeAndMappedBesideIt) {
  begin(capture_mode::any_thread);
  const auto range = driver.reserve({2 * MiB, 0, {}});
  const auto made = driver.create({2 * MiB, driver.home()});
  ASSERT_TRUE(range && made);
  EXPECT_TRUE(driver.map({range->base, 2 * MiB, *made, 0}));
  EXPECT_TRUE(driver.unmap(*range));
  EXPECT_TRUE(driver.release(*made));
  EXPECT_TRUE(driver.free_reservation(*range));
  expect_good_end();
}

TEST_F(Capture, AnotherThreadDoesNotEndIt) {
  begin(capture_mode::this_thread);
  std::int64_t answer = 0;
  std::thread([&] { answer = code(driver.end_capture(first)); }).join();
  EXPECT_EQ(answer, wrong_thread);
  expect_good_end();
}

TEST_F(Capture, AskingIsFreeWhileNothingIsCaptured) {
  const std::uint64_t before = driver.calls();
  EXPECT_EQ(state_of(first), capture_state::none);
  EXPECT_TRUE(driver.is_uncaptured(first));
  EXPECT_EQ(driver.calls(), before);
  begin();
  EXPECT_FALSE(driver.is_uncaptured(first));
  EXPECT_EQ(state_of(first), capture_state::active);
  EXPECT_EQ(driver.calls(vmm::call::query_capture), 1u);
  expect_good_end();
  vmm::fake::fault planned;
  planned.where = vmm::call::query_capture;
  planned.failure = driver.possible_errors(vmm::call::query_capture).front();
  driver.fail(planned);
  EXPECT_FALSE(driver.is_uncaptured(first)) << "or the fault would go unseen";
  EXPECT_EQ(driver.query_capture(first).error().code, planned.failure.code);
}

TEST(CaptureElsewhere, IsNotSupported) {
  vmm::fake_driver driver{vmm::fake::profile::level_zero()};
  EXPECT_FALSE(driver.feature_set().capture);
  EXPECT_FALSE(driver.is_uncaptured(vmm::stream_handle{}));
  EXPECT_EQ(driver.query_capture(vmm::stream_handle{}).error().code, vmm::errc::not_supported);
}

TEST_F(Capture, AMarkOfAllWorkIsRefusedAndSpoilsEveryCaptureInEveryMode) {
  for (const capture_mode mode :
       {capture_mode::any_thread, capture_mode::this_thread, capture_mode::relaxed}) {
    begin(mode);
    const capture_mode before = driver.exchange_capture_mode(capture_mode::relaxed);
    EXPECT_EQ(code(driver.record_all(event)), unsupported) << "the thread's mode does not help";
    EXPECT_EQ(driver.query_capture(first)->state, capture_state::invalidated);
    EXPECT_EQ(driver.exchange_capture_mode(before), capture_mode::relaxed);
    EXPECT_EQ(code(driver.end_capture(first)), invalidated);
    EXPECT_EQ(code(driver.record_all(event)), success) << "none is under way any more";
  }
}

}  // namespace
}  // namespace fake_test

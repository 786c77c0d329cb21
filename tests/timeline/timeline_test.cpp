// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a ticket passes when the work before it has finished and not before, orders streams on the
// device, and returns its event when its last reference ends. Method: kernels on the fake driver's
// streams finish when the test says so; event calls are counted.
#include "../support/test.h"

import vmm.backend;
import vmm.fake;
import vmm.timeline;

namespace {

using vmm::call, vmm::errc, vmm::stream_handle, vmm::ticket_ref;

struct Timeline : testing::Test {
  void SetUp() override {
    driver.set_manual(true);
    first = driver.create_stream().value();
    second = driver.create_stream().value();
    driver.reset_calls();
  }
  void TearDown() override {
    driver.clear_faults();
    EXPECT_TRUE(driver.finish_all());
    time.reset();
    EXPECT_TRUE(driver.destroy_stream(first));
    EXPECT_TRUE(driver.destroy_stream(second));
    EXPECT_TRUE(driver.check_empty()) << driver.report();
    EXPECT_EQ(driver.misuse_count(), 0u);
  }
  void launch(stream_handle stream) { EXPECT_TRUE(driver.launch(stream, {.duration_us = 1})); }
  [[nodiscard]] ticket_ref record(stream_handle stream) {
    const auto point = time->record(stream);
    EXPECT_TRUE(point);
    return point.value_or(ticket_ref{});
  }
  [[nodiscard]] bool passed(const ticket_ref& point) {
    const auto answer = time->passed(point);
    EXPECT_TRUE(answer);
    return answer.value_or(false);
  }

  vmm::fake_driver driver;
  std::optional<vmm::timeline> time{std::in_place, driver};
  stream_handle first{};
  stream_handle second{};
};

TEST_F(Timeline, PassesWhenTheWorkBeforeItHasFinished) {
  launch(first);
  launch(first);
  const ticket_ref point = record(first);
  launch(first);  // behind the ticket: none of its business
  EXPECT_FALSE(passed(point));
  ASSERT_TRUE(driver.finish_next(first).value());
  EXPECT_FALSE(passed(point));
  ASSERT_TRUE(driver.finish_next(first).value());
  EXPECT_FALSE(point.known_passed()) << "the driver is not queried yet";
  EXPECT_TRUE(passed(point));
  EXPECT_TRUE(point.known_passed());
}

TEST_F(Timeline, APassedTicketStaysPassedAndCostsNoCall) {
  const ticket_ref point = record(first);
  EXPECT_TRUE(passed(point)) << "an empty stream";
  launch(first);
  driver.reset_calls();
  EXPECT_TRUE(passed(point));
  EXPECT_TRUE(time->order(second, point));
  EXPECT_TRUE(time->wait(point));
  EXPECT_EQ(driver.calls(), 0u);
}

TEST_F(Timeline, ANullTicketHasPassed) {
  const ticket_ref none;
  EXPECT_TRUE(none.known_passed());
  EXPECT_TRUE(passed(none));
  EXPECT_TRUE(time->order(first, none));
  EXPECT_TRUE(time->wait(none));
  EXPECT_EQ(driver.calls(), 0u);
}

TEST_F(Timeline, OrdersAnotherStreamOnTheDevice) {
  launch(first);
  const ticket_ref point = record(first);
  ASSERT_TRUE(time->order(second, point));
  EXPECT_EQ(driver.calls(call::wait_event), 1u);
  EXPECT_EQ(driver.calls(call::synchronize_event), 0u) << "the host does not wait";
  launch(second);
  EXPECT_FALSE(driver.finish_next(second).value()) << "it waits for the first stream";
  ASSERT_TRUE(driver.finish_next(first).value());
  EXPECT_TRUE(driver.finish_next(second).value());
}

TEST_F(Timeline, AStreamNeedNotWaitForItself) {
  launch(first);
  const ticket_ref point = record(first);
  driver.reset_calls();
  ASSERT_TRUE(time->order(first, point));
  EXPECT_EQ(driver.calls(), 0u);
}

// The driver refuses the event behind work that cannot be undone, and every wait: the ticket has
// not passed, and is recorded once the driver permits it.
TEST_F(Timeline, ALateTicketIsRecordedWhenItIsNeeded) {
  for (const call kind : {call::create_event, call::record_event}) {
    const auto refuse = [&] {
      for (const call each : {kind, call::record_all, call::synchronize_stream,
                              call::synchronize_all, call::synchronize_event})
        driver.fail({each, 1, true, {errc::internal, 7, "INJECTED"}});
    };
    for (const bool is_waited : {false, true}) {
      SCOPED_TRACE(testing::Message() << vmm::name_of(kind) << " " << is_waited);
      time.emplace(driver);  // without an event that it could use again
      const ticket_ref point = time->prepare(first).value();
      launch(first);
      refuse();
      time->cover(point);
      EXPECT_FALSE(passed(point));
      EXPECT_FALSE(time->order(second, point));
      EXPECT_TRUE(time->order(first, point)) << "it is the stream's own";
      EXPECT_FALSE(time->wait(point));
      driver.clear_faults();
      if (is_waited) {
        driver.fail({kind, 1, true, {errc::internal, 7, "INJECTED"}});
        driver.fail({call::record_all, 1, true, {errc::internal, 7, "INJECTED"}});
        EXPECT_TRUE(time->wait(point)) << "for all work";
        EXPECT_EQ(driver.resource_counts().pending_work, 0u);
        driver.clear_faults();
      } else {
        ASSERT_TRUE(time->order(second, point));
        launch(second);
        EXPECT_FALSE(passed(point));
        EXPECT_FALSE(driver.finish_next(second).value()) << "it waits for the first stream";
      }
      ASSERT_TRUE(driver.finish_all());
      EXPECT_TRUE(passed(point));
      EXPECT_TRUE(time->order(second, point));
    }
  }
}

TEST_F(Timeline, ACoveredTicketIsOneThatWasRecordedOrWaitedFor) {
  const ticket_ref recorded = time->prepare(first).value();
  launch(first);
  time->cover(recorded);
  EXPECT_FALSE(passed(recorded));
  ASSERT_TRUE(driver.finish_all());
  EXPECT_TRUE(passed(recorded));
  const ticket_ref waited = time->prepare(first).value();
  launch(first);
  driver.fail({call::record_event, 1, false, {errc::internal, 7, "INJECTED"}});
  time->cover(waited);
  EXPECT_TRUE(waited.known_passed());
  EXPECT_EQ(driver.resource_counts().pending_work, 0u);
  time->cover(ticket_ref{});
}

TEST_F(Timeline, WorkThatHasFinishedNeedsNoWait) {
  launch(first);
  const ticket_ref point = record(first);
  ASSERT_TRUE(driver.finish_all());
  ASSERT_TRUE(time->order(second, point));
  EXPECT_EQ(driver.calls(call::wait_event), 0u);
  EXPECT_TRUE(point.known_passed());
}

TEST_F(Timeline, WaitFinishesTheWork) {
  launch(first);
  const ticket_ref point = record(first);
  ASSERT_TRUE(time->wait(point));
  EXPECT_TRUE(point.known_passed());
  EXPECT_EQ(driver.resource_counts().pending_work, 0u);
  driver.reset_calls();
  ASSERT_TRUE(time->wait(point));
  EXPECT_EQ(driver.calls(), 0u);
}

// ---- events

TEST_F(Timeline, AnEventIsReusedOnlyWhenNobodyRefersToItsTicket) {
  ticket_ref point = record(first);
  const ticket_ref copy = point;
  const vmm::event_handle event = point.get()->event;
  point.reset();
  const ticket_ref other = record(first);  // the copy still stands
  EXPECT_NE(other.get()->event, event);
  EXPECT_EQ(driver.calls(call::create_event), 2u);
  {
    const ticket_ref last = copy;
  }
  EXPECT_EQ(copy.get()->event, event);
}

TEST_F(Timeline, SteadyStateCreatesNoEvents) {
  for (int i = 0; i < 100; ++i) {
    const ticket_ref one = record(first);
    const ticket_ref two = record(second);
    EXPECT_NE(one.get()->event, two.get()->event);
  }
  EXPECT_EQ(driver.calls(call::create_event), 2u);
  EXPECT_EQ(driver.calls(call::record_event), 200u);
}

TEST_F(Timeline, AReusedTicketIsNotPassedUntilItsNewWorkIs) {
  {
    const ticket_ref before = record(first);
    EXPECT_TRUE(passed(before));
  }
  launch(second);
  const ticket_ref point = record(second);
  EXPECT_FALSE(point.known_passed());
  EXPECT_FALSE(passed(point));
  EXPECT_EQ(point.get()->stream, second);
}

TEST_F(Timeline, ReferencesAreCounted) {
  ticket_ref point = record(first);
  EXPECT_EQ(point.get()->reference_count.load(std::memory_order_relaxed), 1u);
  ticket_ref copy = point;
  EXPECT_EQ(point.get()->reference_count.load(std::memory_order_relaxed), 2u);
  ticket_ref moved = std::move(copy);
  EXPECT_EQ(copy.get(), nullptr);
  EXPECT_EQ(point.get()->reference_count.load(std::memory_order_relaxed), 2u);
  moved = point;
  EXPECT_EQ(point.get()->reference_count.load(std::memory_order_relaxed), 2u)
      << "assigned over itself";
  moved = ticket_ref{};
  EXPECT_EQ(point.get()->reference_count.load(std::memory_order_relaxed), 1u);
}

// ---- failures

TEST_F(Timeline, AFailedEventLeavesNothing) {
  driver.fail({call::create_event, 1, false, {errc::out_of_memory, 2, "INJECTED"}});
  EXPECT_EQ(time->record(first).error().code, errc::out_of_memory);
  EXPECT_EQ(driver.resource_counts().events, 0u);
  EXPECT_TRUE(passed(record(first)));
}

TEST_F(Timeline, AFailedRecordKeepsTheEventForTheNext) {
  driver.fail({call::record_event, 1, false, {errc::internal, 999, "INJECTED"}});
  EXPECT_EQ(time->record(first).error().where, call::record_event);
  EXPECT_EQ(driver.resource_counts().events, 1u);
  launch(first);
  EXPECT_FALSE(passed(record(first)));
  EXPECT_EQ(driver.calls(call::create_event), 1u);
}

TEST_F(Timeline, AFailedQuestionIsNotAnAnswer) {
  launch(first);
  const ticket_ref point = record(first);
  ASSERT_TRUE(driver.finish_all());
  driver.fail({call::query_event, 1, false, {errc::internal, 999, "INJECTED"}});
  EXPECT_EQ(time->passed(point).error().where, call::query_event);
  EXPECT_FALSE(point.known_passed());
  EXPECT_TRUE(passed(point));
}

TEST_F(Timeline, AFailedWaitIsReported) {
  launch(first);
  const ticket_ref point = record(first);
  driver.fail({call::synchronize_event, 1, false, {errc::internal, 999, "INJECTED"}});
  EXPECT_FALSE(time->wait(point));
  EXPECT_FALSE(point.known_passed());
  driver.fail({call::wait_event, 1, false, {errc::internal, 999, "INJECTED"}});
  EXPECT_FALSE(time->order(second, point));
}

// ---- where work is done when a call returns

TEST(TimelineWithoutStreams, MakesNullTicketsAndNoCalls) {
  vmm::fake_driver driver(vmm::fake::profile::host());
  vmm::timeline time(driver);
  const auto point = *time.record(stream_handle{7});
  EXPECT_EQ(point.get(), nullptr);
  EXPECT_EQ(driver.calls(), 0u);
}

// ---- threads

TEST(TimelineThreads, TicketsAreMadeSharedAndForgottenByMany) {
  vmm::fake_driver driver;
  {
    vmm::timeline time(driver);
    const ticket_ref shared = time.record(stream_handle::default_stream).value();
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&time, &shared] {
        for (int i = 0; i < 500; ++i) {
          const auto own = *time.record(stream_handle::default_stream);
          const ticket_ref copy = i % 2 == 0 ? own : shared;
          ASSERT_TRUE(time.passed(copy).value());
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(shared.get()->reference_count.load(std::memory_order_relaxed), 1u);
    EXPECT_LE(driver.resource_counts().events, 4u);
  }
  EXPECT_TRUE(driver.check_empty()) << driver.report();
}

// ---- all work

TEST_F(Timeline, AMarkOfAllWorkIsOneEvent) {
  launch(first);
  launch(second);
  driver.reset_calls();
  const auto all = *time->record_all();
  EXPECT_EQ(driver.calls(call::record_all), 1u);
  EXPECT_EQ(driver.calls(call::record_event), 0u);
  launch(second);  // behind it
  ASSERT_TRUE(driver.finish_next(first).value());
  EXPECT_FALSE(passed(all));
  ASSERT_TRUE(time->order(first, all)) << "any stream can be made to wait, its own too";
  launch(first);
  EXPECT_FALSE(driver.finish_next(first).value());
  ASSERT_TRUE(driver.finish_next(second).value());
  EXPECT_TRUE(passed(all));
  EXPECT_TRUE(driver.finish_next(first).value());
}

TEST_F(Timeline, AMarkOfAllWorkThatIsRefusedGivesItsEventBack) {
  ASSERT_TRUE(driver.begin_capture(first, vmm::capture_mode::relaxed));
  const auto refused = time->record_all();
  EXPECT_EQ(refused.error().code, errc::not_permitted);
  EXPECT_EQ(refused.error().where, call::record_all);
  EXPECT_FALSE(driver.end_capture(first));
  const std::uint64_t created = driver.calls(call::create_event);
  const auto all = *time->record_all();
  EXPECT_EQ(driver.calls(call::create_event), created) << "the event of the refused one is used";
  EXPECT_TRUE(passed(all));
}

// ---- streams that may have been destroyed

TEST_F(Timeline, WhatIsUnnamedIsNotNamedToTheDriver) {
  driver.set_misuse_fatal(true);
  driver.set_gone_streams_undefined(true);
  const stream_handle gone = *driver.create_stream();
  const std::uint64_t identity = time->identity_of(gone);
  launch(gone);
  const ticket_ref before = record(gone);
  ASSERT_TRUE(driver.destroy_stream(gone));
  const auto all = *time->record_unnamed(gone, identity);
  EXPECT_FALSE(passed(all));
  ASSERT_TRUE(time->order_unnamed(gone, identity, all)) << "its later work is behind it anyhow";
  EXPECT_EQ(driver.calls(call::synchronize_event), 0u);
  launch(first);
  const ticket_ref others = record(first);
  ASSERT_TRUE(time->order_unnamed(gone, identity, others)) << "the thread waits in its place";
  EXPECT_EQ(driver.calls(call::synchronize_event), 1u);
  EXPECT_TRUE(others.known_passed());
  EXPECT_FALSE(all.known_passed());
  ASSERT_TRUE(time->order_unnamed(gone, identity + 1, all)) << "another stream of the handle";
  EXPECT_TRUE(all.known_passed());
}

// Without the event a refused stream is covered by a wait for everything.
TEST_F(Timeline, WithoutTheEventARefusedStreamIsWaitedFor) {
  vmm::fake::profile plays = vmm::fake::profile::cuda();
  plays.can.record_all = false;
  vmm::fake_driver old(plays);
  vmm::timeline time_of_old(old);
  const stream_handle gone = *old.create_stream();
  ASSERT_TRUE(old.launch(gone, {.name = "work", .duration_us = 1e6}));
  ASSERT_TRUE(old.destroy_stream(gone));
  ASSERT_TRUE(time_of_old.may_name(gone));
  const auto covered = *time_of_old.record_unnamed(gone);
  EXPECT_TRUE(covered.known_passed());
  EXPECT_EQ(old.resource_counts().pending_work, 0u);
  EXPECT_EQ(old.calls(call::synchronize_all), 1u);
  EXPECT_TRUE(time_of_old.finish(gone).value_or(false));
  EXPECT_EQ(old.calls(call::synchronize_all), 2u);
}

TEST_F(Timeline, AMarkBehindOthersPassesWithTheLastOfThem) {
  launch(first);
  launch(second);
  const std::vector<ticket_ref> each{record(first), record(second), ticket_ref{}};
  driver.reset_calls();
  for (int round = 0; round < 2; ++round) {
    const auto all = time->record_behind(each);
    ASSERT_TRUE(all);
    EXPECT_EQ(driver.calls(call::create_stream), 1u) << "one for all such events";
    EXPECT_EQ(passed(*all), round == 1);
    ASSERT_TRUE(driver.finish_next(round == 0 ? second : first).value());
    EXPECT_EQ(passed(*all), round == 1) << round;
    if (round == 0) ASSERT_TRUE(driver.finish_next(first).value());
    EXPECT_TRUE(passed(*all));
    launch(first);
  }
  EXPECT_EQ(driver.calls(call::synchronize_event), 0u);
}

TEST_F(Timeline, WithoutStreamsAllWorkIsDone) {
  vmm::fake_driver plain(vmm::fake::profile::host());
  vmm::timeline of_plain(plain);
  ASSERT_TRUE(of_plain.can_record_all());
  const auto all = *of_plain.record_all();
  EXPECT_TRUE(all.known_passed());
  const auto behind = *of_plain.record_behind({});
  EXPECT_TRUE(behind.known_passed());
  EXPECT_EQ(plain.calls(), 0u);
}

}  // namespace

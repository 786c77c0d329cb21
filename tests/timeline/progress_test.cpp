// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: of many points on many streams it is known which have passed, which event covers one, and
// when one may be recorded; a stream that is forgotten is not named again. Method: the streams of a
// fake driver whose work finishes when the test says so, with each invariant validated on the way.
#include "../support/test.h"

import vmm.backend;
import vmm.fake;
import vmm.timeline;

namespace {

using vmm::point_answer, vmm::recorded_event, vmm::stream_handle, vmm::stream_phase,
    vmm::stream_point, vmm::stream_progress, vmm::ticket_ref;

struct Progress : testing::Test {
  void SetUp() override {
    driver.set_manual(true);
    time.emplace(driver);
    for (stream_handle& each : handles) each = driver.create_stream().value();
  }
  void TearDown() override {
    EXPECT_TRUE(progress.validate());
    progress.release_all();
    time.reset();
    EXPECT_TRUE(driver.finish_all());
    for (const stream_handle each : handles) EXPECT_TRUE(driver.destroy_stream(each));
    EXPECT_TRUE(driver.check_empty()) << driver.report();
  }
  std::uint32_t add(std::size_t which) {
    const auto number = progress.add(handles[which], stream_phase::active);
    EXPECT_TRUE(number);
    return number.value_or(stream_progress::no_stream);
  }
  // Work that is unfinished until the test finishes it, and the point behind it.
  stream_point free_behind_work(std::uint32_t stream) {
    EXPECT_TRUE(driver.launch(progress.active_handle(stream), {.name = "busy"}));
    return progress.advance(stream);
  }
  // Records the event that the point needs.
  ticket_ref record(const stream_point& point) {
    point_answer answer = progress.ask(point);
    EXPECT_EQ(answer.is, point_answer::kind::unrecorded);
    ticket_ref fresh = time->record(answer.order.handle()).value();
    progress.add_event(std::move(answer.order), fresh);
    EXPECT_TRUE(progress.validate());
    return fresh;
  }
  std::size_t event_count(std::uint32_t stream) {
    std::array<recorded_event, stream_progress::events_max> events;
    return progress.events_of(stream, events);
  }

  vmm::fake_driver driver;
  std::optional<vmm::timeline> time;
  std::array<stream_handle, 3> handles{};
  stream_progress progress;
};

TEST_F(Progress, APointPassesWithTheFirstMarkAtItOrLater) {
  const std::uint32_t stream = add(0);
  const stream_point first = free_behind_work(stream);
  const stream_point second = free_behind_work(stream);
  EXPECT_FALSE(progress.passed(first));
  const ticket_ref point = record(first);
  for (const stream_point& each : {first, second}) {
    const point_answer answer = progress.ask(each);
    EXPECT_EQ(answer.is, point_answer::kind::recorded) << "one event for all that was freed before";
    EXPECT_EQ(answer.event.get(), point.get());
  }
  const stream_point third = free_behind_work(stream);
  EXPECT_EQ(progress.ask(third).is, point_answer::kind::unrecorded);
  EXPECT_FALSE(progress.all_recorded(stream));
  EXPECT_EQ(progress.next_unrecorded(0), stream);
  progress.note_passed(second);
  EXPECT_TRUE(progress.passed(first) && progress.passed(second));
  EXPECT_FALSE(progress.passed(third));
  EXPECT_EQ(progress.ask(first).is, point_answer::kind::passed);
}

TEST_F(Progress, TheOldestMarkThatCoversAPointAnswersForIt) {
  const std::uint32_t stream = add(0);
  const stream_point first = free_behind_work(stream);
  const ticket_ref early = record(first);
  const stream_point second = free_behind_work(stream);
  const ticket_ref late = record(second);
  EXPECT_EQ(progress.ask(first).event.get(), early.get());
  EXPECT_EQ(progress.ask(second).event.get(), late.get());
  progress.note_passed(first);
  EXPECT_EQ(event_count(stream), 1u) << "an event that has passed is not kept";
}

TEST_F(Progress, TheNewestMarkIsKeptWhereThereAreTooMany) {
  const std::uint32_t stream = add(0);
  ticket_ref newest;
  stream_point last;
  for (std::size_t i = 0; i < stream_progress::events_max + 3; ++i) {
    last = free_behind_work(stream);
    newest = record(last);
    EXPECT_LE(event_count(stream), stream_progress::events_max);
  }
  EXPECT_EQ(progress.ask(last).event.get(), newest.get());
  EXPECT_TRUE(progress.all_recorded(stream));
}

TEST_F(Progress, AForgottenStreamIsNotFoundAndItsNumberMayComeBack) {
  const std::uint32_t stream = add(0);
  const std::uint32_t other = add(1);
  EXPECT_EQ(progress.find(handles[0]), stream);
  EXPECT_EQ(progress.find(handles[2]), stream_progress::no_stream);
  const stream_point last = free_behind_work(stream);
  const ticket_ref point = record(last);
  progress.retire(stream, *time);
  EXPECT_TRUE(progress.validate());
  EXPECT_EQ(progress.find(handles[0]), stream_progress::no_stream);
  EXPECT_EQ(progress.find(handles[1]), other);
  EXPECT_EQ(progress.retired_count(), 1u);
  EXPECT_EQ(progress.next_retired(), stream);
  EXPECT_EQ(progress.ask(last).event.get(), point.get()) << "it is waited for, by its event";

  const std::uint32_t again = add(0);
  EXPECT_NE(again, stream) << "another stream of that number";
  EXPECT_EQ(progress.find(handles[0]), again);
  progress.note_passed(last);
  progress.recycle(stream);
  EXPECT_TRUE(progress.validate());
  EXPECT_EQ(progress.retired_count(), 0u);
  EXPECT_EQ(add(2), stream) << "the record serves again";
  EXPECT_TRUE(progress.passed(last)) << "points of its former use have passed";
}

TEST_F(Progress, AHandleThatIsNoPointerIsRefused) {
  for (const std::uint64_t bits : {std::uint64_t{1} << 63, ~std::uint64_t{0}}) {
    const auto refused = progress.add(vmm::stream_handle{bits}, vmm::stream_phase::active);
    EXPECT_EQ(refused.error().code, vmm::errc::invalid_argument);
  }
  EXPECT_EQ(progress.count(), 0u);
  EXPECT_TRUE(progress.validate());
}

TEST_F(Progress, ManyStreamsAreFoundAsTheTableGrowsAndShrinks) {
  constexpr std::uint32_t count = 300;
  std::vector<std::uint32_t> numbers;
  const auto handle_of = [](std::uint32_t i) { return stream_handle{1000 + 64 * i}; };
  for (std::uint32_t i = 0; i < count; ++i)
    numbers.push_back(progress.add(handle_of(i), stream_phase::active).value());
  for (std::uint32_t i = 0; i < count; i += 3) progress.retire(numbers[i], *time);
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint32_t expected = i % 3 == 0 ? stream_progress::no_stream : numbers[i];
    ASSERT_EQ(progress.find(handle_of(i)), expected) << i;
  }
  EXPECT_EQ(progress.retired_count(), count / 3);
}

// Records that no handle leads to (captured graphs, batches) outgrow the table between two streams.
TEST_F(Progress, AStreamIsFoundAfterManyRecordsThatAreNone) {
  const std::uint32_t first = add(0);
  for (int i = 0; i < 40; ++i)
    ASSERT_TRUE(progress.add(stream_handle::default_stream, stream_phase::capture));
  const std::uint32_t second = add(1);
  EXPECT_EQ(progress.find(handles[0]), first);
  EXPECT_EQ(progress.find(handles[1]), second);
}

TEST_F(Progress, WhatWasForgottenIsNotNamedToTheDriver) {
  const std::uint32_t stream = add(0);
  progress.retire(stream, *time);
  EXPECT_DEATH((void)progress.active_handle(stream), "is passed to the driver");
  EXPECT_DEATH(progress.retire(stream, *time), "forgotten twice");
}

TEST_F(Progress, AStreamWithoutAMarkForItsLastWorkIsNotForgotten) {
  const std::uint32_t stream = add(0);
  (void)free_behind_work(stream);
  EXPECT_DEATH(progress.retire(stream, *time), "without an event for its last work");
}

}  // namespace

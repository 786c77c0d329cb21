// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: the scheduler plays every schedule that it says it plays, plays a schedule again, and finds
// what it is there to find: lost updates and deadlocks.
// Method: programs of a few steps whose schedules can be counted by hand, and programs with planted
// defects.
#include "../support/scheduler.hpp"
#include "../support/test.h"

namespace {

namespace sync = vmm::sync;

using parts = std::vector<std::function<void()>>;

void play(schedule::crew& crew, const parts& threads, const schedule::plan& how) {
  std::array<schedule::body, schedule::threads_max> bodies{};
  for (std::size_t i = 0; i < threads.size(); ++i) {
    bodies[i].context = const_cast<std::function<void()>*>(&threads[i]);
    bodies[i].run = [](void* context) { (*static_cast<std::function<void()>*>(context))(); };
  }
  crew.play(bodies.data(), static_cast<std::uint32_t>(threads.size()), how);
}

// A counter that two threads read and write in two steps.
struct careless_counter {
  sync::atomic<int> value = 0;
  void add() {
    const int before = value.load(std::memory_order_relaxed);
    value.store(before + 1, std::memory_order_relaxed);
  }
};

// Plays all schedules; returns their count, and the count of those that lost an update.
struct totals {
  std::uint64_t played = 0;
  std::uint64_t lost = 0;
};
totals count_lost(std::uint32_t preemptions_max) {
  schedule::crew crew;
  const observed_locks observed;
  schedule::enumeration all(preemptions_max);
  totals out;
  do {
    careless_counter counter;
    const auto add = [&] { counter.add(); };
    play(crew, {add, add}, all.next());
    if (counter.value.load(std::memory_order_relaxed) != 2) ++out.lost;
  } while (all.advance(crew));
  out.played = all.count();
  return out;
}

// A thread with two steps has three parts; two such threads interleave in C(6, 3) ways. An update
// is lost unless one thread's load and store both come before the other's load. The first part does
// nothing, and each order is played in as many ways as these parts can stand.
TEST(Scheduler, PlaysEveryScheduleOfTwoThreads) {
  const totals all = count_lost(100);
  EXPECT_EQ(all.played, 20U);
  EXPECT_GT(all.lost, 0U);
  EXPECT_LT(all.lost, all.played);
}

TEST(Scheduler, KeepsToTheBoundOfPreemptions) {
  const totals none = count_lost(0);
  EXPECT_EQ(none.played, 2U) << "which thread is first";
  EXPECT_EQ(none.lost, 0U);
  const totals one = count_lost(1);
  EXPECT_GT(one.played, none.played);
  EXPECT_GT(one.lost, 0U) << "one switch between a load and its store loses an update";
}

TEST(Scheduler, AMutexKeepsUpdatesInEverySchedule) {
  schedule::crew crew;
  const observed_locks observed;
  schedule::enumeration all(100);
  do {
    sync::mutex guard;
    careless_counter counter;
    const auto add = [&] {
      const sync::lock_guard<sync::mutex> lock(guard);
      counter.add();
    };
    play(crew, {add, add}, all.next());
    ASSERT_EQ(counter.value.load(std::memory_order_relaxed), 2) << crew.choices();
  } while (all.advance(crew));
  EXPECT_GT(all.count(), 2U);
}

TEST(Scheduler, ReadersHoldASharedMutexTogetherAndAWriterAlone) {
  schedule::crew crew;
  const observed_locks observed;
  schedule::enumeration all(3);
  std::atomic<int> together_max = 0;  // by readers side by side; no point of the schedule
  do {
    sync::shared_mutex guard;
    sync::atomic<int> inside = 0;
    const auto read = [&] {
      const sync::shared_guard lock(guard);
      const int now = inside.fetch_add(1, std::memory_order_relaxed) + 1;
      if (now > together_max.load()) together_max.store(now);
      EXPECT_LT(now, 100) << "a reader beside a writer";
      inside.fetch_sub(1, std::memory_order_relaxed);
    };
    const auto write = [&] {
      const sync::lock_guard<sync::shared_mutex> lock(guard);
      EXPECT_EQ(inside.fetch_add(100, std::memory_order_relaxed), 0);
      inside.fetch_sub(100, std::memory_order_relaxed);
    };
    play(crew, {read, read, write}, all.next());
  } while (all.advance(crew));
  EXPECT_EQ(together_max, 2);
}

TEST(Scheduler, ARecursiveMutexIsTakenAgainByItsHolder) {
  schedule::crew crew;
  const observed_locks observed;
  schedule::enumeration all(100);
  do {
    sync::recursive_mutex guard;
    careless_counter counter;
    const auto add = [&] {
      const sync::lock_guard<sync::recursive_mutex> lock(guard);
      const auto again = [&] {
        const sync::lock_guard<sync::recursive_mutex> inner(guard);
        counter.add();
      };
      again();
      counter.add();
    };
    play(crew, {add, add}, all.next());
    ASSERT_EQ(counter.value.load(std::memory_order_relaxed), 4) << crew.choices();
  } while (all.advance(crew));
}

// Every strategy; the list that a schedule prints plays it again, step by step.
TEST(Scheduler, PlaysAScheduleAgainFromItsSeedAndFromItsList) {
  schedule::crew crew;
  const observed_locks observed;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    schedule::plan how;
    how.how = seed % 2 == 0 ? schedule::strategy::walk : schedule::strategy::priorities;
    how.seed = seed;
    const auto once = [&](const schedule::plan& plan) {
      careless_counter counter;
      const auto add = [&] {
        for (int i = 0; i < 5; ++i) counter.add();
      };
      play(crew, {add, add, add}, plan);
      EXPECT_FALSE(crew.diverged());
      return crew.choices() + " = " + std::to_string(counter.value.load(std::memory_order_relaxed));
    };
    const std::string first = once(how);
    std::vector<schedule::choice> listed;
    for (std::uint32_t step = 0; step < crew.steps(); ++step) {
      const schedule::decision& made = crew.at(step);
      if (made.chosen != schedule::usual_choice(made)) listed.push_back({step, made.chosen});
    }
    EXPECT_EQ(once(how), first);
    schedule::plan again;
    again.listed = listed.data();
    again.listed_count = static_cast<std::uint32_t>(listed.size());
    EXPECT_EQ(once(again), first);
  }
}

void lock_both(sync::mutex& first, sync::mutex& second) {
  first.lock();
  second.lock();
  second.unlock();
  first.unlock();
}

void play_crossed_locks() {
  schedule::crew crew;
  crew.describe("two locks in two orders");
  const observed_locks observed;
  schedule::enumeration all(1);
  do {
    sync::mutex a;
    sync::mutex b;
    play(crew, {[&] { lock_both(a, b); }, [&] { lock_both(b, a); }}, all.next());
  } while (all.advance(crew));
  std::_Exit(0);
}

TEST(SchedulerDeathTest, ReportsADeadlockAndEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(play_crossed_locks(), testing::ExitedWithCode(schedule::exit_code),
              "deadlock: no thread can run");
}

void play_endless_loop() {
  schedule::crew crew;
  const observed_locks observed;
  sync::atomic<bool> never = false;
  const auto spin = [&] {
    while (!never.load(std::memory_order_relaxed)) {
    }
  };
  play(crew, {spin, spin}, {});
  std::_Exit(0);
}

TEST(SchedulerDeathTest, ReportsAScheduleThatDoesNotEnd) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(play_endless_loop(), testing::ExitedWithCode(schedule::exit_code), "does not end");
}

}  // namespace

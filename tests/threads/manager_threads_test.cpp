// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: an allocation that needs the memory which another thread is just giving back gets it: it is
// not out of memory.
// Method: every schedule of the two threads with few preemptions, on a fake driver that has memory
// for one of the blocks only.
#include "../support/scheduler.hpp"
#include "../support/test.h"

import vmm.manager;
import vmm.optimizer;
import vmm.suspend;

namespace {

[[nodiscard]] vmm::fake::profile small_machine() {
  vmm::fake::profile plays = vmm::fake::profile::cuda();
  plays.device_memory_bytes = 8 * MiB;
  return plays;
}

// One manager on a machine that one block fills, which has been freed.
struct full_machine {
  explicit full_machine(const vmm::manager_policy& policy) : driver(small_machine()) {
    vmm::manager_options options;
    options.policy = policy;
    options.reservation_bytes = 64 * MiB;
    options.leak_hook.hook = nullptr;
    managed = std::make_unique<vmm::manager>(driver, options);
    const auto at = managed->allocate(8 * MiB);
    EXPECT_TRUE(at && managed->free(*at));
  }
  [[nodiscard]] bool end() {
    EXPECT_TRUE(managed->validate());
    managed.reset();
    EXPECT_TRUE(driver.finish_all());
    EXPECT_TRUE(driver.check_empty()) << driver.report();
    EXPECT_EQ(driver.misuse_count(), 0u);
    return !testing::Test::HasFailure();
  }

  scheduled_driver driver;
  std::unique_ptr<vmm::manager> managed;
};

// While one thread frees all memory, another requests half of it.
void play_all(const vmm::manager_policy& policy) {
  constexpr std::uint32_t preemptions_max = 2;
  schedule::crew crew;
  crew.describe(policy.name);
  const observed_locks observed;
  schedule::enumeration all(preemptions_max);
  bool good = true;
  do {
    full_machine world(policy);
    std::array<schedule::body, 2> bodies{};
    bodies[0] = {[](void* context) {
                   auto& own = *static_cast<full_machine*>(context);
                   EXPECT_EQ(own.managed->trim(0).failure.code, vmm::errc::none);
                 },
                 &world};
    bodies[1] = {[](void* context) {
                   auto& own = *static_cast<full_machine*>(context);
                   const auto at = own.managed->allocate(4 * MiB);
                   EXPECT_TRUE(at) << (at ? "" : vmm::describe(at.error()));
                 },
                 &world};
    crew.play(bodies.data(), 2, all.next());
    good = world.end();
    if (!good) {
      ADD_FAILURE() << policy.name << ": schedule " << all.count() + 1 << ", choices "
                    << crew.choices();
    }
  } while (good && all.advance(crew));
  testing::Test::RecordProperty("schedules", std::to_string(all.count()));
}

// One manager on a machine without aliases, which a live block and a freed one fill. Work on the
// freed one is unfinished: its range is retired, and its memory waits with it.
struct waiting_machine {
  waiting_machine() : driver(without_aliases()) {
    driver.set_manual(true);
    stream = driver.create_stream().value();
    vmm::manager_options options;
    options.reservation_bytes = 64 * MiB;
    managed = std::make_unique<vmm::manager>(driver, options);
    live = managed->allocate({.size_bytes = 2 * MiB, .stream = stream}).value();
    const vmm::address freed = managed->allocate({.size_bytes = 6 * MiB, .stream = stream}).value();
    const vmm::address_range range{freed, 6 * MiB};
    EXPECT_TRUE(driver.launch(stream, {.name = "busy", .writes = {&range, 1}}));
    EXPECT_TRUE(managed->free(freed));
    EXPECT_GT(managed->statistics().retired_bytes, 0u);
  }
  [[nodiscard]] static vmm::fake::profile without_aliases() {
    vmm::fake::profile plays = small_machine();
    plays.can.alias = vmm::alias_level::none;
    return plays;
  }
  [[nodiscard]] bool end() {
    EXPECT_TRUE(managed->validate());
    EXPECT_TRUE(managed->free(live));
    if (taken) EXPECT_TRUE(managed->free(taken));
    managed.reset();
    EXPECT_TRUE(driver.finish_all());
    EXPECT_TRUE(driver.destroy_stream(stream));
    EXPECT_TRUE(driver.check_empty()) << driver.report();
    EXPECT_EQ(driver.misuse_count(), 0u);
    return !testing::Test::HasFailure();
  }

  scheduled_driver driver;
  vmm::stream_handle stream{};
  std::unique_ptr<vmm::manager> managed;
  vmm::address live{};
  vmm::address taken{};
};

// While one thread polls the retired range, since it changes another block, a second thread needs
// the range's memory: it waits for the range's work, whichever thread polls.
TEST(ManagerThreads, ARangeThatAnotherThreadAsksAboutIsWaitedFor) {
  constexpr std::uint32_t preemptions_max = 2;
  schedule::crew crew;
  crew.describe("polled");
  const observed_locks observed;
  schedule::enumeration all(preemptions_max);
  bool good = true;
  do {
    waiting_machine world;
    std::array<schedule::body, 2> bodies{};
    bodies[0] = {[](void* context) {
                   auto& own = *static_cast<waiting_machine*>(context);
                   EXPECT_TRUE(own.managed->resize({.at = own.live, .size_bytes = 2 * MiB}));
                 },
                 &world};
    bodies[1] = {[](void* context) {
                   auto& own = *static_cast<waiting_machine*>(context);
                   const auto at = own.managed->allocate(6 * MiB);
                   EXPECT_TRUE(at) << (at ? "" : vmm::describe(at.error()));
                   if (at) own.taken = *at;
                 },
                 &world};
    crew.play(bodies.data(), 2, all.next());
    good = world.end();
    if (!good) ADD_FAILURE() << "schedule " << all.count() + 1 << ", choices " << crew.choices();
  } while (good && all.advance(crew));
  testing::Test::RecordProperty("schedules", std::to_string(all.count()));
}

// One manager on a machine of two devices, with a live block.
struct shown_machine {
  shown_machine() : driver(of_two_devices()) {
    vmm::manager_options options;
    options.reservation_bytes = 64 * MiB;
    managed = std::make_unique<vmm::manager>(driver, options);
    live = managed->allocate(2 * MiB).value();
  }
  [[nodiscard]] static vmm::fake::profile of_two_devices() {
    vmm::fake::profile plays = small_machine();
    plays.device_count = 2;
    return plays;
  }
  [[nodiscard]] bool end() {
    EXPECT_TRUE(managed->validate());
    EXPECT_EQ(managed->statistics().live_count, 0u);
    managed.reset();
    EXPECT_TRUE(driver.finish_all());
    EXPECT_TRUE(driver.check_empty()) << driver.report();
    EXPECT_EQ(driver.misuse_count(), 0u);
    return !testing::Test::HasFailure();
  }

  scheduled_driver driver;
  std::unique_ptr<vmm::manager> managed;
  vmm::address live{};
  bool has_begun = false;  // a suspension
};

// Plays every schedule of `other`, which is at all blocks, beside the owner of one that frees it:
// that is not a mistake, the process goes on and the block is freed.
void play_beside_a_deallocate(const char* what, void (*other)(void*)) {
  constexpr std::uint32_t preemptions_max = 2;
  schedule::crew crew;
  crew.describe(what);
  const observed_locks observed;
  schedule::enumeration all(preemptions_max);
  bool good = true;
  do {
    shown_machine world;
    std::array<schedule::body, 2> bodies{};
    bodies[0] = {other, &world};
    bodies[1] = {[](void* context) {
                   auto& own = *static_cast<shown_machine*>(context);
                   own.managed->deallocate(own.live, 2 * MiB, 256,
                                           vmm::stream_handle::default_stream);
                 },
                 &world};
    crew.play(bodies.data(), 2, all.next());
    good = world.end();
    if (!good) ADD_FAILURE() << "schedule " << all.count() + 1 << ", choices " << crew.choices();
  } while (good && all.advance(crew));
  testing::Test::RecordProperty("schedules", std::to_string(all.count()));
}

TEST(ManagerThreads, ABlockThatIsJustGivenRightsCanBeDeallocated) {
  play_beside_a_deallocate("given rights", [](void* context) {
    auto& own = *static_cast<shown_machine*>(context);
    const vmm::access_grant second{vmm::device(1), vmm::access::read_write};
    const vmm::status given = own.managed->set_peers({&second, 1});
    EXPECT_TRUE(given || given.error().code == vmm::errc::in_use);
  });
}

// The memory stays: the suspension is given up after its blocks were claimed and listed.
TEST(ManagerThreads, ABlockThatIsJustSuspendedCanBeDeallocated) {
  play_beside_a_deallocate("suspended", [](void* context) {
    auto& own = *static_cast<shown_machine*>(context);
    vmm::suspension_list parts;
    const vmm::status begun = own.managed->suspension().begin_suspend({}, parts);
    EXPECT_TRUE(begun || begun.error().code == vmm::errc::in_use);
    if (begun) own.managed->suspension().end_suspend(parts, false);
  });
}

// A block moves, since another one is behind it, while all of the manager is suspended: the
// suspension is refused, or has the block's memory.
TEST(ManagerThreads, ABlockThatJustMovesIsSuspendedOrRefused) {
  constexpr std::uint32_t preemptions_max = 2;
  schedule::crew crew;
  crew.describe("moves");
  const observed_locks observed;
  schedule::enumeration all(preemptions_max);
  bool good = true;
  std::uint64_t begun_count = 0;
  do {
    shown_machine world;
    const vmm::address behind = world.managed->allocate(2 * MiB).value();
    std::array<schedule::body, 2> bodies{};
    bodies[0] = {[](void* context) {
                   auto& own = *static_cast<shown_machine*>(context);
                   const auto at = own.managed->resize({.at = own.live, .size_bytes = 4 * MiB});
                   EXPECT_TRUE(at || at.error().code == vmm::errc::in_use);
                   if (at) own.live = *at;
                 },
                 &world};
    bodies[1] = {[](void* context) {
                   auto& own = *static_cast<shown_machine*>(context);
                   vmm::suspension_list parts;
                   const vmm::status begun = own.managed->suspension().begin_suspend({}, parts);
                   EXPECT_TRUE(begun || begun.error().code == vmm::errc::in_use);
                   if (!begun) return;
                   own.has_begun = true;
                   EXPECT_EQ(vmm::sum_of(parts), own.managed->statistics().mapped_bytes);
                   own.managed->suspension().end_suspend(parts, false);
                 },
                 &world};
    crew.play(bodies.data(), 2, all.next());
    begun_count += world.has_begun ? 1 : 0;
    EXPECT_TRUE(world.managed->free(world.live));
    EXPECT_TRUE(world.managed->free(behind));
    good = world.end();
    if (!good) ADD_FAILURE() << "schedule " << all.count() + 1 << ", choices " << crew.choices();
  } while (good && all.advance(crew));
  EXPECT_GT(begun_count, 0u);
  testing::Test::RecordProperty("schedules", std::to_string(all.count()));
}

// A growable range grows while all of the manager is suspended: one of the two is refused, and a
// suspended manager holds no memory.
TEST(ManagerThreads, ARangeThatJustGrowsKeepsNoMemoryOfASuspension) {
  constexpr std::uint32_t preemptions_max = 2;
  struct sleeping : shown_machine {
    vmm::suspender sleeper;
    std::unique_ptr<vmm::growable_range> range;
    bool is_asleep = false;
  };
  schedule::crew crew;
  crew.describe("grows");
  const observed_locks observed;
  schedule::enumeration all(preemptions_max);
  bool good = true;
  std::uint64_t asleep_count = 0;
  do {
    sleeping world;
    const vmm::growable_options options{.segment_bytes_max = 4 * MiB, .zero_new = false};
    world.range = std::make_unique<vmm::growable_range>(*world.managed, options);
    EXPECT_TRUE(world.range->reserve());
    EXPECT_TRUE(world.sleeper.add(*world.managed, {.tag = "all"}));
    std::array<schedule::body, 2> bodies{};
    bodies[0] = {[](void* context) {
                   auto& own = *static_cast<sleeping*>(context);
                   const vmm::status grown = own.range->grow(2 * MiB);
                   EXPECT_TRUE(grown || grown.error().code == vmm::errc::in_use);
                 },
                 &world};
    bodies[1] = {[](void* context) {
                   auto& own = *static_cast<sleeping*>(context);
                   own.is_asleep = own.sleeper.suspend().has_value();
                 },
                 &world};
    crew.play(bodies.data(), 2, all.next());
    if (world.is_asleep) {
      ++asleep_count;
      EXPECT_EQ(world.range->statistics().physical_bytes, 0u);
      EXPECT_TRUE(world.sleeper.resume());
    }
    EXPECT_TRUE(world.managed->free(world.live));
    EXPECT_TRUE(world.sleeper.remove(*world.managed));
    world.range.reset();
    good = world.end();
    if (!good) ADD_FAILURE() << "schedule " << all.count() + 1 << ", choices " << crew.choices();
  } while (good && all.advance(crew));
  EXPECT_GT(asleep_count, 0u);
  testing::Test::RecordProperty("schedules", std::to_string(all.count()));
}

TEST(ManagerThreads, MemoryThatIsJustGivenBackIsNotMissed) {
  play_all(vmm::manager_policy::va_pool());
}

TEST(ManagerThreads, ARangeThatIsJustTakenApartIsNotMissed) {
  play_all(vmm::manager_policy::keep_mapped());
}

}  // namespace

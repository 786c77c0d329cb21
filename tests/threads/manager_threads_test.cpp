// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: an allocation that needs the memory which another thread is just giving back gets it: it is
// not out of memory.
// Method: every schedule of the two threads with few preemptions, on a fake driver that has memory
// for one of the blocks only.
#include "pairs.h"

import vmm.manager;
import vmm.optimizer;
import vmm.stream;
import vmm.suspend;

namespace {

[[nodiscard]] vmm::fake::profile small_machine() {
  vmm::fake::profile plays = vmm::fake::profile::cuda();
  plays.device_memory_bytes = 8 * MiB;
  return plays;
}

// One manager on a machine.
struct managed_machine {
  explicit managed_machine(const vmm::fake::profile& plays,
                           const vmm::manager_policy& policy = vmm::manager_policy::va_pool())
      : driver(plays) {
    vmm::manager_options options;
    options.policy = policy;
    options.reservation_bytes = 64 * MiB;
    options.leak_hook.hook = nullptr;
    managed = std::make_unique<vmm::manager>(driver, options);
  }
  [[nodiscard]] bool end() {
    EXPECT_TRUE(managed->validate());
    managed.reset();
    EXPECT_TRUE(driver.finish_all());
    if (stream != vmm::stream_handle::default_stream) EXPECT_TRUE(driver.destroy_stream(stream));
    EXPECT_TRUE(driver.check_empty()) << driver.report();
    EXPECT_EQ(driver.misuse_count(), 0u);
    return !testing::Test::HasFailure();
  }

  scheduled_driver driver;
  vmm::stream_handle stream{};
  std::unique_ptr<vmm::manager> managed;
  vmm::address live{};
};

// One block fills it, which has been freed.
struct full_machine : managed_machine {
  explicit full_machine(const vmm::manager_policy& policy)
      : managed_machine(small_machine(), policy) {
    const auto at = managed->allocate(8 * MiB);
    EXPECT_TRUE(at && managed->free(*at));
  }
};

// While one thread frees all memory, another requests half of it.
void play_all(const vmm::manager_policy& policy) {
  pair_of<full_machine> all{.name = policy.name};
  all.make = [&policy] { return std::make_unique<full_machine>(policy); };
  all.first = [](full_machine& own) {
    EXPECT_EQ(own.managed->trim(0).failure.code, vmm::errc::none);
  };
  all.second = [](full_machine& own) {
    const auto at = own.managed->allocate(4 * MiB);
    EXPECT_TRUE(at) << (at ? "" : vmm::describe(at.error()));
  };
  (void)play_every_schedule(all);
}

// One without aliases, which a live block and a freed one fill. Work on the freed one is
// unfinished: its range is retired, and its memory waits with it.
struct waiting_machine : managed_machine {
  waiting_machine() : managed_machine(without_aliases()) {
    driver.set_manual(true);
    stream = driver.create_stream().value();
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
    return managed_machine::end();
  }

  vmm::address taken{};
};

// While one thread polls the retired range, since it changes another block, a second thread needs
// the range's memory: it waits for the range's work, whichever thread polls.
TEST(ManagerThreads, ARangeThatAnotherThreadAsksAboutIsWaitedFor) {
  pair_of<waiting_machine> all{.name = "polled", .make = anew<waiting_machine>};
  all.first = [](waiting_machine& own) {
    EXPECT_TRUE(own.managed->resize({.at = own.live, .size_bytes = 2 * MiB}));
  };
  all.second = [](waiting_machine& own) {
    const auto at = own.managed->allocate(6 * MiB);
    EXPECT_TRUE(at) << (at ? "" : vmm::describe(at.error()));
    if (at) own.taken = *at;
  };
  (void)play_every_schedule(all);
}

// One of two devices, with a live block.
struct shown_machine : managed_machine {
  shown_machine() : managed_machine(of_two_devices()) { live = managed->allocate(2 * MiB).value(); }
  [[nodiscard]] static vmm::fake::profile of_two_devices() {
    vmm::fake::profile plays = small_machine();
    plays.device_count = 2;
    return plays;
  }
  [[nodiscard]] bool end() {
    EXPECT_EQ(managed->statistics().live_count, 0u);
    return managed_machine::end();
  }

  vmm::address behind{};
  bool has_begun = false;  // a suspension
};

// Plays every schedule of `other`, which is at all blocks, beside the owner of one that frees it:
// that is not a mistake, the process goes on and the block is freed.
void play_beside_a_deallocate(const char* name, std::function<void(shown_machine&)> other) {
  pair_of<shown_machine> all{.name = name, .make = anew<shown_machine>, .first = std::move(other)};
  all.second = [](shown_machine& own) {
    own.managed->deallocate(own.live, 2 * MiB, 256, vmm::stream_handle::default_stream);
  };
  (void)play_every_schedule(all);
}

TEST(ManagerThreads, ABlockThatIsJustGivenRightsCanBeDeallocated) {
  play_beside_a_deallocate("given rights", [](shown_machine& own) {
    const vmm::access_grant second{vmm::device(1), vmm::access::read_write};
    const vmm::status given = own.managed->set_peers({&second, 1});
    EXPECT_TRUE(given || given.error().code == vmm::errc::in_use);
  });
}

// The memory stays: the suspension is given up after its blocks were claimed and listed.
TEST(ManagerThreads, ABlockThatIsJustSuspendedCanBeDeallocated) {
  play_beside_a_deallocate("suspended", [](shown_machine& own) {
    vmm::suspension_list parts;
    const vmm::status begun = own.managed->suspension().begin_suspend({}, parts);
    EXPECT_TRUE(begun || begun.error().code == vmm::errc::in_use);
    if (begun) own.managed->suspension().end_suspend(parts, false);
  });
}

// A block moves, since another one is behind it, while all of the manager is suspended: the
// suspension is refused, or has the block's memory.
TEST(ManagerThreads, ABlockThatJustMovesIsSuspendedOrRefused) {
  std::uint64_t begun_count = 0;
  pair_of<shown_machine> all{.name = "moves"};
  all.make = [] {
    auto world = std::make_unique<shown_machine>();
    world->behind = world->managed->allocate(2 * MiB).value();
    return world;
  };
  all.first = [](shown_machine& own) {
    const auto at = own.managed->resize({.at = own.live, .size_bytes = 4 * MiB});
    EXPECT_TRUE(at || at.error().code == vmm::errc::in_use);
    if (at) own.live = *at;
  };
  all.second = [](shown_machine& own) {
    vmm::suspension_list parts;
    const vmm::status begun = own.managed->suspension().begin_suspend({}, parts);
    EXPECT_TRUE(begun || begun.error().code == vmm::errc::in_use);
    if (!begun) return;
    own.has_begun = true;
    EXPECT_EQ(vmm::sum_of(parts), own.managed->statistics().mapped_bytes);
    own.managed->suspension().end_suspend(parts, false);
  };
  all.after = [&begun_count](shown_machine& own) {
    begun_count += own.has_begun ? 1 : 0;
    EXPECT_TRUE(own.managed->free(own.live));
    EXPECT_TRUE(own.managed->free(own.behind));
  };
  (void)play_every_schedule(all);
  EXPECT_GT(begun_count, 0u);
}

// A growable range grows while all of the manager is suspended: one of the two is refused, and a
// suspended manager holds no memory.
struct sleeping_machine : shown_machine {
  sleeping_machine() {
    const vmm::growable_options options{.segment_bytes_max = 4 * MiB, .zero_new = false};
    range = std::make_unique<vmm::growable_range>(*managed, options);
    EXPECT_TRUE(range->reserve());
    EXPECT_TRUE(sleeper.add(*managed, {.tag = "all"}));
  }
  vmm::suspender sleeper;
  std::unique_ptr<vmm::growable_range> range;
  bool is_asleep = false;
};

TEST(ManagerThreads, ARangeThatJustGrowsKeepsNoMemoryOfASuspension) {
  std::uint64_t asleep_count = 0;
  pair_of<sleeping_machine> all{.name = "grows", .make = anew<sleeping_machine>};
  all.first = [](sleeping_machine& own) {
    const vmm::status grown = own.range->grow(2 * MiB);
    EXPECT_TRUE(grown || grown.error().code == vmm::errc::in_use);
  };
  all.second = [](sleeping_machine& own) { own.is_asleep = own.sleeper.suspend().has_value(); };
  all.after = [&asleep_count](sleeping_machine& own) {
    if (own.is_asleep) {
      ++asleep_count;
      EXPECT_EQ(own.range->statistics().physical_bytes, 0u);
      EXPECT_TRUE(own.sleeper.resume());
    }
    EXPECT_TRUE(own.managed->free(own.live));
    EXPECT_TRUE(own.sleeper.remove(*own.managed));
    own.range.reset();
  };
  (void)play_every_schedule(all);
  EXPECT_GT(asleep_count, 0u);
}

// Two suspenders of the same allocators, to which they were added in other orders. Of two calls at
// once one succeeds.
struct shared_machine : shown_machine {
  shared_machine() {
    vmm::pool_options options;
    options.reservation_bytes = 64 * MiB;
    pool = std::make_unique<vmm::stream_pool>(driver, options);
    EXPECT_TRUE(one.add(*managed, {"all", vmm::suspend_contents::discard}));
    EXPECT_TRUE(one.add(*pool, {"all", vmm::suspend_contents::discard}));
    EXPECT_TRUE(other.add(*pool, {"all", vmm::suspend_contents::discard}));
    EXPECT_TRUE(other.add(*managed, {"all", vmm::suspend_contents::discard}));
  }
  std::unique_ptr<vmm::stream_pool> pool;
  vmm::suspender one, other;
  std::atomic<int> suspended_count = 0;  // no step of a schedule
};

TEST(ManagerThreads, OfTwoSuspensionsOneSucceeds) {
  const auto suspend = [](shared_machine& own, vmm::suspender& by) {
    const auto done = by.suspend();
    EXPECT_TRUE(done || done.error().code == vmm::errc::in_use);
    if (done) own.suspended_count.fetch_add(1, std::memory_order_relaxed);
    if (done) EXPECT_TRUE(by.resume());
  };
  pair_of<shared_machine> all{.name = "suspended twice", .make = anew<shared_machine>};
  all.first = [&](shared_machine& own) { suspend(own, own.one); };
  all.second = [&](shared_machine& own) { suspend(own, own.other); };
  all.preemptions_max = 1;
  all.after = [](shared_machine& own) {
    EXPECT_GE(own.suspended_count.load(std::memory_order_relaxed), 1);
    EXPECT_TRUE(own.managed->free(own.live));
    for (vmm::suspender* each : {&own.one, &own.other})
      EXPECT_TRUE(each->remove(*own.managed) && each->remove(*own.pool));
    own.pool.reset();
  };
  (void)play_every_schedule(all);
}

TEST(ManagerThreads, MemoryThatIsJustGivenBackIsNotMissed) {
  play_all(vmm::manager_policy::va_pool());
}

TEST(ManagerThreads, ARangeThatIsJustTakenApartIsNotMissed) {
  play_all(vmm::manager_policy::keep_mapped());
}

}  // namespace

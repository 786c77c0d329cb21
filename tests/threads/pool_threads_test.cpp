// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: pairs of calls that meet in a stream pool: no schedule of them names a stream that is gone,
// waits for ever or reads what another thread is changing.
// Method: every schedule of the two threads with few preemptions, on a fake driver that reports
// stale handles and hazards. Reads without a lock are ThreadSanitizer's to see (preset tsan): the
// hand-over between the threads is invisible to it.
#include "pairs.h"

#include "../support/silent_observer.hpp"

import vmm.observe;
import vmm.optimizer;

namespace {

// A pool with two streams, made anew for each schedule.
struct pool_case {
  pool_case(const vmm::pool_options& options, const vmm::fake::profile& plays, bool sets_up)
      : driver(plays) {
    driver.set_manual(true);
    a = *driver.create_stream();
    b = *driver.create_stream();
    pool = std::make_unique<vmm::stream_pool>(driver, options);
    if (sets_up) EXPECT_TRUE(pool->set_up());
  }
  [[nodiscard]] static vmm::pool_options small() {
    vmm::pool_options out;
    out.reservation_bytes = 256 * MiB;
    out.policy.handle_bytes_max = 2 * MiB;
    out.policy.headroom = 0;
    out.policy.tuning.slack_bytes = 0;
    out.policy.tuning.min_move_share = 0;
    out.policy.tuning.growth_share = 0;
    return out;
  }

  vmm::address allocate(std::uint64_t size_bytes, vmm::stream_handle stream) {
    const auto at = pool->allocate(size_bytes, stream);
    EXPECT_TRUE(at) << (at ? "" : vmm::describe(at.error()));
    return at.value_or(vmm::address{});
  }
  void work(vmm::stream_handle stream, vmm::address at) {
    const vmm::address_range range{at, 512};
    EXPECT_TRUE(driver.launch(stream, {.duration_us = 5, .writes = {&range, 1}}));
  }
  void free(vmm::address at, vmm::stream_handle stream) { EXPECT_TRUE(pool->free(at, stream)); }
  // After the pool forgot it. The other stream is ordered behind it.
  void destroy(vmm::stream_handle& gone, vmm::stream_handle successor) {
    const auto event = driver.create_event();
    EXPECT_TRUE(event && driver.record_event(*event, gone) && driver.wait_event(successor, *event));
    EXPECT_TRUE(driver.destroy_event(*event) && driver.destroy_stream(gone));
    gone = vmm::stream_handle::default_stream;
  }

  // What is left goes; true when the driver saw nothing wrong.
  [[nodiscard]] bool end() {
    EXPECT_TRUE(pool->validate());
    pool.reset();
    EXPECT_TRUE(driver.finish_all());
    for (const vmm::stream_handle each : {a, b})
      if (each != vmm::stream_handle::default_stream) EXPECT_TRUE(driver.destroy_stream(each));
    (void)driver.check_empty();
    for (const auto& misuse : driver.misuses())
      ADD_FAILURE() << vmm::fake::name_of(misuse.kind) << ": " << misuse.detail;
    return driver.misuse_count() == 0;
  }

  scheduled_driver driver;
  vmm::stream_handle a{};
  vmm::stream_handle b{};
  vmm::stream_handle late{};     // if a test makes a third one
  vmm::address kept{}, other{};  // blocks that its threads meet at
  std::unique_ptr<vmm::stream_pool> pool;
};

using part = std::function<void(pool_case&)>;

struct pair_of_threads {
  vmm::pool_options options = pool_case::small();
  vmm::fake::profile plays = vmm::fake::profile::cuda();
  part before{};
  part first{};
  part second{};
  part after{};
  std::uint32_t preemptions_max = 2;
  bool sets_up = true;
};

void play_all(const char* name, const pair_of_threads& what) {
  pair_of<pool_case> all{.name = name, .first = what.first, .second = what.second};
  all.make = [&what] {
    auto world = std::make_unique<pool_case>(what.options, what.plays, what.sets_up);
    what.before(*world);
    return world;
  };
  if (what.after) all.after = what.after;
  all.preemptions_max = what.preemptions_max;
  (void)play_every_schedule(all);
}

// The work of a forgotten stream is unfinished, and the stream is gone: what waits for it uses the
// mark that was made when it was forgotten, and no thread records a new one.
void forget_with_work(pool_case& world) {
  const vmm::address at = world.allocate(MiB, world.a);
  world.work(world.a, at);
  world.free(at, world.a);
  EXPECT_TRUE(world.pool->forget(world.a));
  world.destroy(world.a, world.b);
}

TEST(PoolThreads, TwoWaitForAForgottenStreamThatIsGone) {
  pair_of_threads what;
  what.before = forget_with_work;
  what.first = [](pool_case& world) { EXPECT_TRUE(world.pool->synchronize()); };
  what.second = what.first;
  play_all("synchronize beside synchronize after forget", what);
}

TEST(PoolThreads, OneWaitsForAForgottenStreamWhileAnotherGrows) {
  pair_of_threads what;
  what.before = forget_with_work;
  what.first = [](pool_case& world) { EXPECT_TRUE(world.pool->synchronize()); };
  what.second = [](pool_case& world) { (void)world.allocate(2 * MiB, world.b); };
  play_all("synchronize beside growth after forget", what);
}

// ThreadSanitizer sees it where a count of streams is read without the lock.
TEST(PoolThreads, OneGrowsWhileAnotherFreesOnANewStream) {
  pair_of_threads what;
  what.preemptions_max = 1;
  what.before = [](pool_case& world) {
    world.kept = world.allocate(MiB, world.a);
    (void)world.allocate(MiB, world.a);
    world.late = *world.driver.create_stream();
  };
  what.first = [](pool_case& world) { (void)world.allocate(4 * MiB, world.a); };
  what.second = [](pool_case& world) {
    world.free(world.kept, world.late);
    EXPECT_TRUE(world.pool->forget(world.late));
    world.destroy(world.late, world.b);
  };
  play_all("growth beside a free on a new stream", what);
}

// Of many streams that ended beside a kernel the last one's memory joins what was freed after
// everything, unless a block that is freed and pinned names its record.
TEST(PoolThreads, AStreamIsGivenAHandleAgainWhileItsPinnedBlockIsFreed) {
  pair_of_threads what;
  what.preemptions_max = 1;
  what.plays.traps.stream_numbers_again = true;
  what.before = [](pool_case& world) {
    const vmm::address used = world.allocate(MiB, world.b);
    world.work(world.b, used);
    world.free(used, world.b);
    constexpr int past_those_with_events = 66;
    for (int count = 0; count < past_those_with_events; ++count) {
      const vmm::stream_handle gone = *world.driver.create_stream();
      world.kept = world.allocate(2 * MiB, gone);
      if (count + 1 < past_those_with_events) world.free(world.kept, gone);
      EXPECT_TRUE(world.driver.destroy_stream(gone));
    }
    EXPECT_TRUE(world.pool->pin(world.kept));
    world.late = *world.driver.create_stream();
  };
  what.first = [](pool_case& world) {
    world.free(world.allocate(2 * MiB, world.late), world.late);
  };
  what.second = [](pool_case& world) { world.free(world.kept, world.late); };
  what.after = [](pool_case& world) {
    EXPECT_TRUE(world.pool->unpin(world.kept));
    EXPECT_TRUE(world.driver.destroy_stream(world.late));
  };
  play_all("a pinned free beside a stream that leaves", what);
}

// ---- free after everything -------------------------------------------------------------------

// The mark queries every stream of the pool for a capture, and none that is destroyed.
TEST(PoolThreads, OneFreesAfterEverythingWhileAnotherForgetsAStream) {
  pair_of_threads what;
  what.before = [](pool_case& world) {
    world.kept = world.allocate(MiB, world.b);
    world.work(world.b, world.kept);
    world.free(world.allocate(MiB, world.a), world.a);
  };
  what.first = [](pool_case& world) { EXPECT_TRUE(world.pool->free(world.kept)); };
  what.second = [](pool_case& world) {
    EXPECT_TRUE(world.pool->forget(world.a));
    world.destroy(world.a, world.b);
  };
  play_all("free after everything beside forget", what);
}

TEST(PoolThreads, TwoFreeAfterEverythingAtOnce) {
  pair_of_threads what;
  what.before = [](pool_case& world) {
    world.kept = world.allocate(MiB, world.a);
    world.other = world.allocate(MiB, world.b);
    world.work(world.a, world.kept);
    world.work(world.b, world.other);
  };
  what.first = [](pool_case& world) { EXPECT_TRUE(world.pool->free(world.kept)); };
  what.second = [](pool_case& world) { EXPECT_TRUE(world.pool->free(world.other)); };
  play_all("free after everything beside another", what);
}

TEST(PoolThreads, OneFreesAfterEverythingWhileAnotherGrows) {
  pair_of_threads what;
  what.options.budget_bytes = 8 * MiB;
  what.before = [](pool_case& world) {
    world.kept = world.allocate(6 * MiB, world.a);
    world.work(world.a, world.kept);
  };
  what.first = [](pool_case& world) { EXPECT_TRUE(world.pool->free(world.kept)); };
  what.second = [](pool_case& world) {
    const auto at = world.pool->allocate(8 * MiB, world.b);  // short, where it comes first
    if (at) world.work(world.b, *at);
  };
  play_all("free after everything beside growth", what);
}

// The capture of a stream that the pool does not know stays good, whenever the free comes.
TEST(PoolThreads, OneFreesAfterEverythingWhileAnotherCaptures) {
  pair_of_threads what;
  what.before = [](pool_case& world) {
    world.kept = world.allocate(MiB, world.b);
    world.work(world.b, world.kept);
  };
  what.first = [](pool_case& world) { EXPECT_TRUE(world.pool->free(world.kept)); };
  what.second = [](pool_case& world) {
    EXPECT_TRUE(world.pool->captures().begin());
    EXPECT_TRUE(world.driver.begin_capture(world.a, vmm::capture_mode::any_thread));
    const auto graph = world.driver.end_capture(world.a);
    EXPECT_TRUE(graph && world.driver.destroy_graph(*graph)) << "the capture was spoiled";
    EXPECT_TRUE(world.pool->captures().end());
  };
  play_all("free after everything beside a capture", what);
}

// A remap callback may free. Allocations and frees take turns where there is an observer.
struct freeing_callback final : vmm::remap_listener {
  void before_change(const vmm::remap_notice&) noexcept override {
    if (handed_over.value == 0 || world->pool == nullptr) return;  // null: the pool is being closed
    world->free(handed_over, world->b);
    handed_over = {};
  }
  pool_case* world = nullptr;
  vmm::address handed_over{};
};

void let_callback_free(pool_case& world, freeing_callback& callback, std::uint64_t size_bytes) {
  callback.world = &world;
  callback.handed_over = world.allocate(4096, world.b);
  EXPECT_TRUE(world.pool->remaps().subscribe(callback));
  world.free(world.allocate(size_bytes, world.a), world.a);
}

TEST(PoolThreads, ACallbackFreesUnderAnObserverWhileAnotherThreadGrows) {
  silent_observer observer;
  freeing_callback callback;
  pair_of_threads what;
  what.preemptions_max = 1;
  what.options.observer = &observer;
  what.options.policy.tuning.first_fit_bytes = 0;  // memory of the other stream moves
  what.before = [&](pool_case& world) { let_callback_free(world, callback, 6 * MiB); };
  what.first = [](pool_case& world) { (void)world.allocate(8 * MiB, world.b); };
  what.second = [](pool_case& world) { (void)world.pool->trim(0); };
  play_all("growth under an observer beside trim with a callback that frees", what);
}

// The thread of a callback has the lock of growth, and the observer's: a free there that fills its
// block waits for no thread that has the lock of changes and needs one of these.
TEST(PoolThreads, ACallbackFreesUnderAnObserverWhereFreesFill) {
  silent_observer observer;
  freeing_callback callback;
  pair_of_threads what;
  what.preemptions_max = 1;
  what.options.observer = &observer;
  what.options.contents = vmm::contents_rule::zero_on_release;
  what.before = [&callback](pool_case& world) {
    world.kept = world.allocate(4096, world.a);
    let_callback_free(world, callback, 8 * MiB);
    EXPECT_TRUE(world.driver.finish_all());
  };
  what.first = [](pool_case& world) { (void)world.pool->trim(0); };
  what.second = [](pool_case& world) { world.free(world.kept, world.a); };
  play_all("trim with a callback that frees and fills beside a free, under an observer", what);
}

TEST(PoolThreads, ACallbackFreesBesideASuspensionWhereFreesFill) {
  freeing_callback callback;
  pair_of_threads what;
  what.preemptions_max = 1;
  what.options.contents = vmm::contents_rule::zero_on_release;
  what.before = [&callback](pool_case& world) {
    let_callback_free(world, callback, 8 * MiB);
    EXPECT_TRUE(world.driver.finish_all());
  };
  what.first = [](pool_case& world) { (void)world.pool->trim(0); };
  what.second = [](pool_case& world) {
    vmm::suspension_list parts;
    if (world.pool->suspension().begin_suspend({}, parts))
      world.pool->suspension().end_suspend(parts, false);
  };
  play_all("trim with a callback that frees and fills beside a suspension", what);
}

// Counts mappings. One that has begun and is not counted yet is a step of the schedule.
struct counting_observer final : vmm::block_observer {
  void reserved(vmm::address_range) noexcept override {}
  void unreserved(vmm::address_range) noexcept override {}
  void mapped(vmm::address_range) noexcept override {
    is_mapping = true;
    schedule::reach(schedule::event::driver, nullptr);
    is_mapping = false;
    ++mapped_count;
  }
  void unmapped(vmm::address_range) noexcept override {}
  void allocated(vmm::address_range) noexcept override { served_at = mapped_count.load(); }
  void freed(vmm::address) noexcept override {}

  std::atomic<bool> is_mapping = false;
  std::atomic<std::uint64_t> mapped_count = 0;
  std::atomic<std::uint64_t> served_at = 0;  // mappings before the latest allocation
};

// A request that comes while a step of an announcement is under way waits for that step alone.
TEST(PoolThreads, OneAllocatesUnderAnObserverWhileAnotherAnnouncesARequest) {
  constexpr std::uint64_t step_count = 6;
  counting_observer observer;
  pair_of_threads what;
  what.preemptions_max = 1;
  what.options.observer = &observer;
  what.options.policy.headroom = 2;
  std::uint64_t late_count = 0;  // schedules in which the request came then
  std::uint64_t most = 0;
  what.before = [](pool_case& world) { world.free(world.allocate(4096, world.b), world.b); };
  what.first = [](pool_case& world) {
    const vmm::preallocate_report done = world.pool->preallocate(step_count * 2 * MiB, world.a);
    EXPECT_EQ(done.created_bytes, step_count * 2 * MiB);
    EXPECT_EQ(done.left_bytes, 0u);
  };
  what.second = [&](pool_case& world) {
    const bool is_late = observer.is_mapping;
    const std::uint64_t before = observer.mapped_count;
    const vmm::address at = world.allocate(4096, world.b);
    if (is_late) most = std::max(most, observer.served_at - before);
    if (is_late) ++late_count;
    world.free(at, world.b);
  };
  play_all("a request beside an announcement under an observer", what);
  EXPECT_EQ(late_count, step_count);
  EXPECT_EQ(most, 1u) << "steps of the announcement before the request";
}

// A graph that is captured gets the memory that another thread is just giving back.
TEST(PoolThreads, ACaptureAllocatesWhileAnotherThreadTrims) {
  pair_of_threads what;
  what.options.streams_forgotten = true;  // an unannounced capture
  what.options.capture = vmm::capture_rule::private_memory;
  what.options.budget_bytes = 8 * MiB;
  what.before = [](pool_case& world) { world.free(world.allocate(8 * MiB, world.b), world.b); };
  what.first = [](pool_case& world) {
    EXPECT_EQ(world.pool->trim(0).failure.code, vmm::errc::none);
  };
  what.second = [](pool_case& world) {
    EXPECT_TRUE(world.driver.begin_capture(world.a, vmm::capture_mode::relaxed));
    const auto number = world.pool->captures().number(world.a);
    const auto at = world.pool->allocate(8 * MiB, world.a);
    EXPECT_TRUE(at) << (at ? "" : vmm::describe(at.error()));
    if (at) EXPECT_TRUE(world.pool->free(*at, world.a));
    const auto graph = world.driver.end_capture(world.a);
    EXPECT_TRUE(number && graph && world.driver.destroy_graph(*graph));
    EXPECT_TRUE(world.pool->captures().release(*number, world.a));
  };
  play_all("allocation in a capture beside trim", what);
}

// ---- arenas ------------------------------------------------------------------------------------

// Stream a has an arena with a live block and free memory; no memory is free elsewhere.
struct arena_pair : pair_of_threads {
  arena_pair() {
    options.stream_arenas = vmm::arena_rule::always;
    before = [](pool_case& world) {
      world.free(world.allocate(MiB, world.a), world.a);
      world.kept = world.allocate(MiB / 2, world.a);
      world.work(world.a, world.kept);
      const vmm::pool_statistics now = world.pool->statistics();
      EXPECT_EQ(now.arena_count, 1u);
      EXPECT_EQ(now.arena_bytes, now.reusable_bytes);
    };
  }
};

// Takes the arena's memory, uses it and frees it, and the block that was live.
void use_arena(pool_case& world) {
  const vmm::address at = world.allocate(4096, world.a);
  world.work(world.a, at);
  world.free(at, world.a);
  world.free(world.kept, world.a);
}

TEST(PoolThreads, AnArenaIsUsedWhileAnotherThreadGrowsOverItsMemory) {
  arena_pair what;
  what.preemptions_max = 1;
  what.options.budget_bytes = 4 * MiB;
  what.first = use_arena;
  what.second = [](pool_case& world) {
    const auto at = world.pool->allocate(3 * MiB + MiB / 2, world.b);
    if (at) world.work(world.b, *at);
  };
  play_all("an arena beside growth", what);
}

TEST(PoolThreads, AnArenaIsUsedWhileItsBlockIsFreedElsewhere) {
  arena_pair what;
  what.first = [](pool_case& world) {
    const vmm::address at = world.allocate(MiB / 2, world.a);
    world.work(world.a, at);
    world.free(at, world.a);
  };
  what.second = [](pool_case& world) {
    EXPECT_TRUE(world.pool->synchronize());
    world.free(world.kept, world.b);
    world.work(world.b, world.allocate(MiB / 2, world.b));
  };
  play_all("an arena beside a free on another stream", what);
}

TEST(PoolThreads, OneBlockOfAnArenaIsFreedByTwoThreads) {
  for (const bool unordered : {false, true}) {
    arena_pair what;
    auto freed = std::make_shared<std::array<vmm::errc, 2>>();
    what.first = [=](pool_case& world) {
      const vmm::status done = world.pool->free(world.kept, world.a);
      (*freed)[0] = done ? vmm::errc::none : done.error().code;
    };
    what.second = [=](pool_case& world) {
      const vmm::status done =
          unordered ? world.pool->free(world.kept) : world.pool->free(world.kept, world.a);
      (*freed)[1] = done ? vmm::errc::none : done.error().code;
    };
    what.after = [=](pool_case& world) {
      EXPECT_EQ(world.pool->statistics().live_bytes, 0u);
      EXPECT_NE((*freed)[0] == vmm::errc::none, (*freed)[1] == vmm::errc::none);
      for (const vmm::errc each : *freed)
        if (each != vmm::errc::none) EXPECT_EQ(each, vmm::errc::not_allocated);
    };
    play_all("a free in an arena beside another of the same block", what);
  }
}

TEST(PoolThreads, ABlockOfAnArenaIsPinnedWhileItIsFreed) {
  arena_pair what;
  auto pinned = std::make_shared<bool>();
  what.first = use_arena;
  what.second = [=](pool_case& world) {
    const vmm::status done = world.pool->pin(world.kept);
    *pinned = done.has_value();
    if (!done) EXPECT_EQ(done.error().code, vmm::errc::not_allocated);
  };
  what.after = [=](pool_case& world) {
    EXPECT_EQ(world.pool->statistics().live_bytes, *pinned ? MiB / 2 : 0);
    if (*pinned) EXPECT_TRUE(world.pool->unpin(world.kept));
    EXPECT_EQ(world.pool->statistics().live_bytes, 0u);
  };
  play_all("a pin beside a free in an arena", what);
}

// Between a beginning and its end in one thread, whether a call of the other lay wholly inside.
struct window {
  std::atomic<bool> is_open = false;
  template <class Call>
  [[nodiscard]] bool surrounds(Call&& call) {
    const bool before = is_open;
    call();
    return before && is_open;
  }
};

TEST(PoolThreads, AnArenaIsUsedWhileAHistoryBeginsAndEnds) {
  arena_pair what;
  window recorded;
  std::uint64_t least_count = 0;
  std::uint64_t seen_count = 0;
  what.first = [&](pool_case& world) {
    least_count = 0;
    vmm::address at{};
    least_count += recorded.surrounds([&] { at = world.allocate(4096, world.a); }) ? 1U : 0U;
    least_count += recorded.surrounds([&] { world.free(at, world.a); }) ? 1U : 0U;
    least_count += recorded.surrounds([&] { world.free(world.kept, world.a); }) ? 1U : 0U;
  };
  what.second = [&](pool_case& world) {
    EXPECT_TRUE(world.pool->history().start({.event_count = 1024}));
    recorded.is_open = true;
    (void)world.pool->statistics();
    recorded.is_open = false;
    const auto taken = *world.pool->history().stop();
    seen_count = 0;
    for (const vmm::history_event& each : taken.events) {
      if (each.kind == vmm::history_kind::allocated || each.kind == vmm::history_kind::freed)
        ++seen_count;
    }
  };
  what.after = [&](pool_case&) { EXPECT_GE(seen_count, least_count); };
  play_all("an arena beside a history", what);
}

TEST(PoolThreads, AnArenaIsUsedWhileThePoolIsToBeSuspended) {
  arena_pair what;
  window emptied;
  what.first = [&](pool_case& world) {
    vmm::address at{};
    const bool is_late = emptied.surrounds([&] {
      const auto made = world.pool->allocate(4096, world.a);
      if (!made) EXPECT_EQ(made.error().code, vmm::errc::in_use);
      if (made) at = *made;
    });
    EXPECT_FALSE(is_late && at) << "a pool that is being suspended hands out memory";
    if (at) world.free(at, world.a);
    world.free(world.kept, world.a);
  };
  what.second = [&](pool_case& world) {
    vmm::suspension_list parts;
    const vmm::status begun = world.pool->suspension().begin_suspend({}, parts);
    if (!begun) EXPECT_EQ(begun.error().code, vmm::errc::in_use);
    if (!begun) return;
    emptied.is_open = true;
    (void)world.pool->statistics();
    emptied.is_open = false;
    world.pool->suspension().end_suspend(parts, false);
  };
  what.after = [](pool_case& world) { EXPECT_EQ(world.pool->statistics().live_bytes, 0u); };
  play_all("an arena beside a suspension", what);
}

TEST(PoolThreads, AnArenaIsUsedWhileABlockOfWholeMappingsIsMade) {
  arena_pair what;
  what.options.budget_bytes = 4 * MiB;
  what.first = use_arena;
  what.second = [](pool_case& world) {
    const auto at = world.pool->allocate_dedicated(2 * MiB, world.b);
    EXPECT_TRUE(at);
    if (at) world.work(world.b, *at);
  };
  play_all("an arena beside a block of whole mappings", what);
}

// A block that is made just before the memory is taken away is filled before, or given back.
TEST(PoolThreads, ABlockIsFilledBesideASuspension) {
  for (const vmm::contents_rule rule :
       {vmm::contents_rule::zero_on_acquire, vmm::contents_rule::poison}) {
    pair_of_threads what;
    what.options.contents = rule;
    what.before = [](pool_case& world) {
      world.free(world.allocate(MiB, world.a), world.a);
      EXPECT_TRUE(world.driver.finish_all());
    };
    what.first = [](pool_case& world) {
      const auto at = world.pool->allocate(4096, world.a);
      if (!at) EXPECT_EQ(at.error().code, vmm::errc::in_use);
      if (at) world.free(*at, world.a);
    };
    what.second = [](pool_case& world) {
      vmm::suspension_list parts;
      if (!world.pool->suspension().begin_suspend({}, parts)) return;
      const std::uint64_t fills = world.driver.calls(vmm::call::fill);
      (void)world.pool->statistics();  // a step, at which the other thread may go on
      EXPECT_EQ(world.driver.calls(vmm::call::fill), fills) << "a block is filled too late";
      world.pool->suspension().end_suspend(parts, false);
    };
    what.after = [](pool_case& world) { EXPECT_EQ(world.pool->statistics().live_bytes, 0u); };
    play_all("an allocation that fills beside a suspension", what);
  }
}

// The other thread allocates, uses and frees memory of the growth whose fill is refused.
TEST(PoolThreads, AFillIsRefusedWhileAnotherThreadUsesItsGrowth) {
  pair_of_threads what;
  what.options.contents = vmm::contents_rule::zero_on_acquire;
  what.before = [](pool_case& world) {
    world.driver.fail({vmm::call::fill, 1, false, {vmm::errc::internal, 78, "FILL"}});
  };
  what.first = [](pool_case& world) {
    const auto at = world.pool->allocate(4096, world.a);
    if (at) world.work(world.a, *at);
    if (at) world.free(*at, world.a);
  };
  what.second = what.first;
  what.after = [](pool_case& world) {
    EXPECT_EQ(world.driver.faults_struck(), 1u);
    EXPECT_LE(world.driver.resource_counts().memory_bytes, 2 * MiB);
    (void)world.pool->trim(0);
    const vmm::address_range other{world.allocate(2 * MiB, world.b), 2 * MiB};
    EXPECT_TRUE(world.driver.launch(world.b, {.duration_us = 5, .writes = {&other, 1}}));
    world.free(other.base, world.b);
  };
  play_all("a refused fill beside a user of its growth", what);
}

// Its second create is refused while the other thread uses what the first one made.
TEST(PoolThreads, AnAnnouncementIsShortBesideAUserOfItsMemory) {
  pair_of_threads what;
  what.options = vmm::pool_options{};
  what.options.reservation_bytes = 256 * MiB;
  what.options.policy.handle_bytes_max = 2 * MiB;
  what.options.contents = vmm::contents_rule::zero_on_acquire;
  what.before = [](pool_case& world) {
    const vmm::address at = world.allocate(4096, world.a);
    world.work(world.a, at);
    world.free(at, world.a);
    world.driver.fail({vmm::call::create, 2, true, {vmm::errc::out_of_memory, 2, "SHORT"}});
  };
  what.first = [](pool_case& world) { (void)world.pool->preallocate(12 * MiB, world.a); };
  what.second = [](pool_case& world) {
    for (const std::uint64_t size_bytes : {3 * MiB, MiB}) {
      const auto at = world.pool->allocate(size_bytes, world.a);
      if (!at) continue;
      world.work(world.a, *at);
      world.free(*at, world.a);
    }
  };
  what.after = [](pool_case& world) { (void)world.pool->trim(0); };
  play_all("a short announcement beside a user of its memory", what);
}

// The memory of the one that is served stays, and each reports what it holds.
TEST(PoolThreads, AnAnnouncementIsShortBesideAnother) {
  pair_of_threads what;
  what.preemptions_max = 1;
  what.options = vmm::pool_options{};
  what.options.reservation_bytes = 256 * MiB;
  what.options.policy.handle_bytes_max = 2 * MiB;
  vmm::preallocate_report served;
  vmm::preallocate_report refused;
  std::uint64_t before_bytes = 0;
  what.before = [&](pool_case& world) {
    world.work(world.a, world.allocate(4096, world.a));
    before_bytes = world.driver.resource_counts().memory_bytes;
    world.driver.fail({vmm::call::create, 5, false, {vmm::errc::out_of_memory, 2, "SHORT"}});
  };
  what.first = [&](pool_case& world) { refused = world.pool->preallocate(24 * MiB, world.a); };
  what.second = [&](pool_case& world) { served = world.pool->preallocate(4 * MiB, world.b); };
  what.after = [&](pool_case& world) {
    EXPECT_EQ(world.driver.resource_counts().memory_bytes - before_bytes,
              served.created_bytes + refused.created_bytes);
  };
  play_all("a short announcement beside another", what);
}

// The stream of an arena goes while its blocks are freed on another.
TEST(PoolThreads, AnArenaEndsWhileItsBlockIsFreedElsewhere) {
  arena_pair what;
  what.first = [](pool_case& world) {
    EXPECT_TRUE(world.pool->forget(world.a));
    world.destroy(world.a, world.b);
  };
  what.second = [](pool_case& world) {
    world.free(world.kept, world.b);
    world.work(world.b, world.allocate(MiB, world.b));
  };
  what.after = [](pool_case& world) { EXPECT_EQ(world.pool->statistics().arena_count, 1u); };
  play_all("the end of an arena beside a free", what);
}

TEST(PoolThreads, TwoSetThePoolUpAtOnce) {
  pair_of_threads what;
  what.sets_up = false;
  what.before = [](pool_case&) {};
  what.first = [](pool_case& world) { world.free(world.allocate(MiB, world.a), world.a); };
  what.second = [](pool_case& world) { world.free(world.allocate(MiB, world.b), world.b); };
  what.preemptions_max = 1;
  play_all("first allocation beside first allocation", what);
}

}  // namespace

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Every public operation of the pool in the situations that take different ways through it, for the
// sweeps that make each driver call and each host allocation in them fail.
//
// A scenario prepares a world and then does one operation. In a world, work is queued on every
// block and finishes only when a call waits for it, so that memory handed out, moved or unmapped
// too early is a misuse that the fake driver reports. It imports what it uses, so it is the last
// include except others with imports.
#pragma once

#include "../support/scenarios.h"

import vmm.stream;

namespace pool_scenarios {

using sweeps::fake_of, sweeps::status_of, sweeps::variant;

/// One live block: its last work leaves `tag` in all of it.
struct slot {
  vmm::address at{};
  std::uint64_t size_bytes = 0;
  std::size_t stream = 0;
  std::uint64_t tag = 0;  ///< 0: nothing has been written
};

/// A pool on a driver with three streams, and a user's view of it. All sizes are multiples of 8
/// bytes.
template <class B>
struct world {
  static constexpr std::size_t a = 0, b = 1, c = 2;
  B driver;
  std::array<vmm::stream_handle, 3> streams{};
  std::unique_ptr<vmm::stream_pool> pool;
  std::vector<slot> slots;
  std::uint64_t last_tag = 0;

  world(B&& made, const vmm::pool_options& options) : driver(std::move(made)) {
    slots.reserve(64);
    for (std::size_t i = 0; i < streams.size(); ++i)
      streams[i] = has_streams() ? *fake().create_stream() : static_cast<vmm::stream_handle>(i);
    if (has_streams()) fake().set_manual(true);
    vmm::pool_options chosen = options;
    chosen.first_stream = streams[a];
    pool = std::make_unique<vmm::stream_pool>(driver, chosen);
  }

  [[nodiscard]] vmm::fake_driver& fake() { return fake_of(driver); }
  [[nodiscard]] bool has_streams() { return fake().feature_set().streams; }

  vmm::status add(std::uint64_t size_bytes, std::size_t stream) {
    return keep(pool->allocate(size_bytes, streams[stream]), size_bytes, stream);
  }
  vmm::status keep(const vmm::result<vmm::address>& at, std::uint64_t size_bytes,
                   std::size_t stream) {
    if (at) slots.push_back({*at, size_bytes, stream, 0});
    return status_of(at);
  }
  vmm::status remove(std::size_t index, bool is_unordered = false) {
    const vmm::status freed = is_unordered
                                  ? pool->free(slots[index].at)
                                  : pool->free(slots[index].at, streams[slots[index].stream]);
    if (freed) slots.erase(slots.begin() + static_cast<std::ptrdiff_t>(index));
    return freed;
  }
  /// The same as a device-wide free.
  vmm::status remove_unordered(std::size_t index) { return remove(index, true); }

  /// Work on the slot's stream that reads what is there and leaves a new tag; unfinished until a
  /// call waits.
  void use(std::size_t index) {
    slot& used = slots[index];
    const vmm::address_range range{used.at, used.size_bytes};
    const std::uint64_t before = std::exchange(used.tag, ++last_tag);
    if (!has_streams()) {
      if (before != 0) EXPECT_EQ(fake().read_tag(used.at).value_or(0), before);
      EXPECT_TRUE(fake().write_tag(range, used.tag));
      return;
    }
    vmm::fake::kernel work{.name = "scenario's work", .duration_us = 5};
    work.writes = {&range, 1};
    if (before != 0) {
      work.reads = {&range, 1};
      work.expected = before;
    }
    work.tag = used.tag;
    EXPECT_TRUE(fake().launch(streams[used.stream], work));
  }
  void use_all() {
    for (std::size_t i = 0; i < slots.size(); ++i) use(i);
  }
  /// A block with unfinished work.
  vmm::status add_used(std::uint64_t size_bytes, std::size_t stream) {
    const vmm::status added = add(size_bytes, stream);
    if (added) use(slots.size() - 1);
    return added;
  }
  void finish_work() {
    if (has_streams()) ASSERT_TRUE(fake().finish_all());
  }

  void expect_valid(const std::string& what) {
    const vmm::status valid = pool->validate();
    EXPECT_TRUE(valid) << what << ": " << (valid ? "" : valid.error().detail);
    const vmm::pool_statistics now = pool->statistics();
    EXPECT_EQ(now.live_count, slots.size()) << what;
    EXPECT_EQ(now.mapped_bytes, now.live_bytes + now.reusable_bytes) << what;
    EXPECT_EQ(now.reserved_bytes,
              now.live_bytes + now.reusable_bytes + now.hole_bytes + now.stale_bytes)
        << what;
    const std::uint64_t budget_bytes = pool->options().budget_bytes;
    if (budget_bytes != 0)
      EXPECT_LE(fake().resource_counts().memory_bytes_max, budget_bytes) << what;
    expect_no_misuse(what);
  }
  void expect_no_misuse(const std::string& what) {
    EXPECT_EQ(fake().misuse_count(), 0u) << what;
    for (const auto& misuse : fake().misuses())
      ADD_FAILURE() << what << ": " << vmm::fake::name_of(misuse.kind) << ", " << misuse.detail;
    fake().clear_misuses();
  }
  void destroy_streams() {
    if (!has_streams()) return;
    for (const vmm::stream_handle stream : streams) EXPECT_TRUE(fake().destroy_stream(stream));
  }
  /// Contents are right, everything goes back, and nothing was used too early on the way.
  void finish(const std::string& what) {
    finish_work();
    for (const slot& each : slots)
      if (each.tag != 0) EXPECT_EQ(fake().read_tag(each.at).value_or(0), each.tag) << what;
    while (!slots.empty()) ASSERT_TRUE(remove(slots.size() - 1)) << what;
    pool.reset();
    finish_work();
    destroy_streams();
    EXPECT_TRUE(fake().check_empty()) << what << '\n' << fake().report();
    expect_no_misuse(what);
  }
};

/// One operation in one situation.
template <class B>
struct scenario {
  const char* name;
  vmm::pool_options options;
  std::function<void(world<B>&)> prepare;
  std::function<vmm::status(world<B>&)> operation;
  bool gives_back = false;  ///< memory may go back to the driver, whatever the answer
  bool is_short = false;  ///< succeeds only after several steps: out of memory is an honest answer
  bool is_refused = false;  ///< no memory can be created: the correct result is a shortage
};

inline vmm::pool_options options_with(const vmm::pool_policy& policy) {
  vmm::pool_options options;
  options.policy = policy;
  options.reservation_bytes = 256 * MiB;
  return options;
}

/// Handles of one page, and every whole one moved before any is created.
inline vmm::pool_options moving() {
  vmm::pool_policy policy;
  policy.handle_bytes_max = 2 * MiB;
  policy.headroom = 0;
  policy.tuning.slack_bytes = 0;
  policy.tuning.min_move_share = 0;
  policy.tuning.growth_share = 0;
  policy.tuning.small_handle_bytes = 0;
  policy.tuning.growth_gap_bytes = 0;
  policy.tuning.first_fit_bytes = 0;
  return options_with(policy);
}
/// Larger handles, new memory before moves while there is headroom.
inline vmm::pool_options growing() {
  vmm::pool_policy policy;
  policy.handle_bytes_max = 8 * MiB;
  policy.tuning.slack_bytes = 16 * MiB;
  policy.tuning.small_handle_bytes = 0;
  policy.tuning.growth_gap_bytes = 32 * MiB;
  policy.tuning.first_fit_bytes = 4 * MiB;
  return options_with(policy);
}
inline vmm::pool_options budgeted(vmm::pool_options options, std::uint64_t budget_bytes) {
  options.budget_bytes = budget_bytes;
  return options;
}
inline vmm::pool_options small_space(vmm::pool_options options, std::uint64_t size_bytes) {
  options.reservation_bytes = size_bytes;
  return options;
}

template <class B>
auto adding(std::uint64_t size_bytes, std::size_t stream) {
  return [=](world<B>& w) { return w.add(size_bytes, stream); };
}
/// On the first stream.
template <class B>
vmm::status add_aligned(world<B>& w) {
  return w.keep(w.pool->allocate(3 * MiB, 2 * MiB, w.streams[w.a]), 3 * MiB, w.a);
}
template <class B>
auto trimming(std::uint64_t limit_bytes) {
  return [=](world<B>& w) { return status_of(w.pool->trim(limit_bytes)); };
}

/// With all work finished afterwards.
template <class Prepare>
auto finished(Prepare prepare) {
  return [prepare](auto& w) {
    prepare(w);
    w.finish_work();
  };
}

/// Free, used, live, free, used, live: two whole pairs of pages that can only serve together when
/// they are moved.
template <class B>
auto two_gaps(std::size_t freed_by) {
  return [=](world<B>& w) {
    ASSERT_TRUE(w.add_used(4 * MiB, freed_by));
    ASSERT_TRUE(w.add_used(2 * MiB, w.a));
    ASSERT_TRUE(w.add_used(4 * MiB, freed_by));
    ASSERT_TRUE(w.add_used(2 * MiB, w.a));
    ASSERT_TRUE(w.remove(2));
    ASSERT_TRUE(w.remove(0));
  };
}

template <class B>
std::vector<scenario<B>> growths() {
  using w_t = world<B>;
  const auto nothing = [](w_t&) {};
  vmm::pool_options first_pages = moving();
  first_pages.page_count = 4;
  const auto free_tail = [](w_t& w) {
    ASSERT_TRUE(w.add_used(2 * MiB, w.a));
    ASSERT_TRUE(w.add_used(4 * MiB, w.a));
    ASSERT_TRUE(w.remove(1));
  };
  return {
      {"first allocation", growing(), nothing, adding<B>(6 * MiB, 0)},
      {"first small allocation", moving(), nothing, adding<B>(512, 0)},
      {"first pages", first_pages, nothing, [](w_t& w) { return w.pool->set_up(); }},
      {"grow behind a live block", growing(),
       [](w_t& w) { ASSERT_TRUE(w.add_used(20 * MiB, w.a)); }, adding<B>(20 * MiB, 0)},
      {"grow in place", moving(), free_tail, adding<B>(8 * MiB, 0)},
      {"grow in place, as the source", options_with(vmm::pool_policy::vpmm()), free_tail,
       adding<B>(8 * MiB, 0)},
      {"move own handles", moving(), two_gaps<B>(0), adding<B>(8 * MiB, 0)},
      {"move own handles, as the source", options_with(vmm::pool_policy::vpmm()), two_gaps<B>(0),
       adding<B>(8 * MiB, 0)},
      {"move another stream's handles", moving(), two_gaps<B>(1), adding<B>(8 * MiB, 2)},
      {"move another stream's handles, as the source", options_with(vmm::pool_policy::vpmm()),
       two_gaps<B>(1), adding<B>(8 * MiB, 2)},
      {"move and create", moving(), two_gaps<B>(1), adding<B>(12 * MiB, 0)},
      {"move what two streams used", moving(),
       [](w_t& w) {
         two_gaps<B>(1)(w);
         ASSERT_TRUE(w.add_used(4 * MiB, w.c));
         ASSERT_TRUE(w.add_used(2 * MiB, w.a));
         ASSERT_TRUE(w.remove(2));
       },
       adding<B>(12 * MiB, 0)},
      {"a further reservation", small_space(moving(), 16 * MiB),
       [](w_t& w) { ASSERT_TRUE(w.add_used(14 * MiB, w.a)); }, adding<B>(6 * MiB, 0)},
  };
}

template <class B>
std::vector<scenario<B>> reuses() {
  using w_t = world<B>;
  const auto freed_by_b = [](w_t& w) {
    ASSERT_TRUE(w.add_used(16 * MiB, w.b));
    ASSERT_TRUE(w.add_used(2 * MiB, w.a));
    ASSERT_TRUE(w.remove(0));
  };
  const auto freed_and_finished = finished(freed_by_b);
  const auto stale = [](w_t& w) {
    two_gaps<B>(0)(w);
    ASSERT_TRUE(w.add_used(8 * MiB, w.a));
    ASSERT_TRUE(w.remove(2));
    w.finish_work();
  };
  // Two stale pages before live memory that fills the rest of the addresses.
  const auto stale_low = [](w_t& w) {
    ASSERT_TRUE(w.add_used(4 * MiB, w.a));
    ASSERT_TRUE(w.add_used(2 * MiB, w.a));
    ASSERT_TRUE(w.remove(0));
    ASSERT_TRUE(w.add_used(6 * MiB, w.a));
    w.finish_work();
  };
  return {
      {"reuse on the same stream", moving(), freed_by_b, adding<B>(16 * MiB, 1)},
      {"reuse what another stream has finished", moving(), freed_and_finished,
       adding<B>(16 * MiB, 0)},
      {"reuse a part of it", moving(), freed_and_finished, adding<B>(MiB, 2)},
      {"reuse behind a wait", moving(), freed_by_b, adding<B>(16 * MiB, 0)},
      {"reuse a part behind a wait", moving(), freed_by_b, adding<B>(MiB, 2)},
      {"stale mappings go first", options_with(vmm::pool_policy::vpmm()), stale, adding<B>(MiB, 2)},
      {"stale mappings make space for a window", small_space(moving(), 12 * MiB), stale_low,
       adding<B>(4 * MiB, 0)},
  };
}

template <class B>
std::vector<scenario<B>> shortages() {
  using w_t = world<B>;
  const auto scattered = [](w_t& w) {
    for (int i = 0; i < 4; ++i) {
      ASSERT_TRUE(w.add_used(4 * MiB, i % 2 == 0 ? w.a : w.b));
      ASSERT_TRUE(w.add_used(2 * MiB, w.a));
    }
    for (const std::size_t index : {6u, 4u, 2u, 0u}) ASSERT_TRUE(w.remove(index));
  };
  // Handles of two pages, each half live, so that nothing can move: a's free page and b's beside it
  // become one only when both streams have finished.
  vmm::pool_options halves = budgeted(moving(), 16 * MiB);
  halves.policy.handle_bytes_max = 4 * MiB;
  halves.page_count = 8;
  const auto free_halves = [](w_t& w) {
    for (int i = 0; i < 8; ++i) ASSERT_TRUE(w.add_used(2 * MiB, w.a));
    w.finish_work();
    w.slots[1].stream = w.b;
    w.use(1);
    w.use(2);
    ASSERT_TRUE(w.remove(2));
    ASSERT_TRUE(w.remove(1));
  };
  const auto full = [](w_t& w) {
    ASSERT_TRUE(w.add_used(8 * MiB, w.a));
    ASSERT_TRUE(w.add_used(6 * MiB, w.b));
    ASSERT_TRUE(w.add_used(2 * MiB, w.a));
    ASSERT_TRUE(w.remove(1));
  };
  // Every second page is free, in handles that cannot move.
  const auto free_between = [](w_t& w) {
    for (int i = 0; i < 8; ++i) ASSERT_TRUE(w.add_used(2 * MiB, w.a));
    w.finish_work();
    w.slots[1].stream = w.b;
    for (const std::size_t index : {1u, 3u, 5u, 7u}) w.use(index);
    for (const std::size_t index : {7u, 5u, 3u, 1u}) ASSERT_TRUE(w.remove(index));
  };
  vmm::pool_options impatient = halves;
  impatient.wait_when_short = false;
  return {
      {"short, moving serves", budgeted(growing(), 24 * MiB), scattered, adding<B>(16 * MiB, 2),
       true, true},
      {"short, waiting serves", halves, free_halves, adding<B>(4 * MiB, 2), false, true},
      {"short of device memory", growing(),
       [](w_t& w) {
         ASSERT_TRUE(w.add_used(40 * MiB, w.a));
         ASSERT_TRUE(w.add_used(16 * MiB, w.b));
         ASSERT_TRUE(w.remove(0));
       },
       adding<B>(44 * MiB, 1), true, true},
      {"nothing serves", halves, free_between, adding<B>(4 * MiB, 2), true, true, true},
      {"nothing serves without waiting", impatient, free_between, adding<B>(4 * MiB, 2), true, true,
       true},
      {"nothing can serve", budgeted(growing(), 16 * MiB), full, adding<B>(10 * MiB, 2), true, true,
       true},
  };
}

template <class B>
std::vector<scenario<B>> returns() {
  using w_t = world<B>;
  const auto idle_with_stale = [](w_t& w) {
    two_gaps<B>(1)(w);
    ASSERT_TRUE(w.add_used(8 * MiB, w.a));
    ASSERT_TRUE(w.remove(2));
    w.finish_work();
  };
  return {
      {"free", moving(), two_gaps<B>(0), [](w_t& w) { return w.remove(0); }},
      {"free on a new stream", moving(),
       [](w_t& w) {
         ASSERT_TRUE(w.add_used(4 * MiB, w.a));
         w.finish_work();
         w.slots[0].stream = w.b;
       },
       [](w_t& w) { return w.remove(0); }},
      {"forget", moving(),
       [](w_t& w) {
         ASSERT_TRUE(w.add_used(4 * MiB, w.c));
         ASSERT_TRUE(w.add_used(2 * MiB, w.a));
         ASSERT_TRUE(w.remove(0));
       },
       [](w_t& w) { return w.pool->forget(w.streams[w.c]); }},
      {"pin", moving(), two_gaps<B>(0), [](w_t& w) { return w.pool->pin(w.slots[0].at); }},
      {"trim", moving(), finished(two_gaps<B>(1)), trimming<B>(0), true},
      {"trim to a limit", moving(), finished(two_gaps<B>(1)), trimming<B>(4 * MiB), true},
      {"trim stale mappings", moving(), idle_with_stale, trimming<B>(0), true},
      {"trim under work", moving(), two_gaps<B>(1), trimming<B>(0), true},
      {"synchronize", moving(), two_gaps<B>(1), [](w_t& w) { return w.pool->synchronize(); }},
  };
}

template <class B>
std::vector<scenario<B>> unordered() {
  using w_t = world<B>;
  const auto used = [](w_t& w) {
    ASSERT_TRUE(w.add_used(16 * MiB, w.b));
    ASSERT_TRUE(w.add_used(2 * MiB, w.a));
  };
  const auto freed = [used](w_t& w) {
    used(w);
    ASSERT_TRUE(w.remove_unordered(0));
  };
  // Two whole pairs of pages, each freed after everything, that serve together when they move.
  const auto pairs = [](w_t& w) {
    for (int i = 0; i < 2; ++i) {
      ASSERT_TRUE(w.add_used(4 * MiB, w.b));
      ASSERT_TRUE(w.add_used(2 * MiB, w.a));
    }
    ASSERT_TRUE(w.remove_unordered(2));
    ASSERT_TRUE(w.remove_unordered(0));
  };
  return {
      {"free after everything", moving(), used, [](w_t& w) { return w.remove_unordered(0); }},
      {"free after everything, twice", moving(), freed,
       [](w_t& w) { return w.remove_unordered(0); }},
      {"reuse what was freed after everything", moving(), finished(freed), adding<B>(16 * MiB, 0)},
      {"grow beside what was freed after everything", moving(), freed, adding<B>(16 * MiB, 0)},
      {"move what was freed after everything", moving(), finished(pairs), adding<B>(8 * MiB, 2)},
      {"short, the device waits for everything", budgeted(moving(), 12 * MiB), pairs,
       adding<B>(8 * MiB, 2), true, true},
      {"short, all of it serves", budgeted(moving(), 18 * MiB), freed, adding<B>(16 * MiB, 2), true,
       true},
      {"trim after everything", moving(), finished(freed), trimming<B>(0), true},
      {"trim under everything", moving(), freed, trimming<B>(0), true},
      {"synchronize with everything", moving(), freed,
       [](w_t& w) { return w.pool->synchronize(); }},
      {"forget before everything is marked", moving(), freed,
       [](w_t& w) { return w.pool->forget(w.streams[w.b]); }},
  };
}

/// Under the policy "off" each block is created and goes back.
template <class B>
std::vector<scenario<B>> off() {
  using w_t = world<B>;
  const vmm::pool_options options = options_with(vmm::pool_policy::off());
  const auto used = [](w_t& w) {
    ASSERT_TRUE(w.add_used(6 * MiB, w.a));
    ASSERT_TRUE(w.add_used(2 * MiB, w.b));
  };
  const auto freed = [used](w_t& w) {
    used(w);
    ASSERT_TRUE(w.remove(0));
  };
  return {
      {"off, allocate", options, used, adding<B>(4 * MiB, 0), true},
      {"off, allocate beside what work still uses", options, freed, adding<B>(4 * MiB, 1), true},
      {"off, allocate aligned", options, used, add_aligned<B>, true},
      {"off, free", options, finished(used), [](w_t& w) { return w.remove(0); }, true},
      {"off, free under work", options, used, [](w_t& w) { return w.remove(0); }, true},
      {"off, free after everything", options, finished(used),
       [](w_t& w) { return w.remove_unordered(0); }, true},
      {"off, short, waiting serves", budgeted(options, 8 * MiB), freed, adding<B>(6 * MiB, 1), true,
       true},
  };
}

/// Blocks that are filled.
template <class B>
std::vector<scenario<B>> fills() {
  using w_t = world<B>;
  const auto filling = [](vmm::pool_options options) {
    options.contents = vmm::contents_rule::zero_on_acquire;
    return options;
  };
  const auto used = [](w_t& w) { ASSERT_TRUE(w.add_used(2 * MiB, w.a)); };
  const auto behind_free = [](w_t& w) {
    ASSERT_TRUE(w.add_used(512, w.a));
    ASSERT_TRUE(w.add_used(MiB, w.a));
    ASSERT_TRUE(w.remove(1));
  };
  return {
      {"filled, new memory", filling(moving()), used, adding<B>(5 * MiB, 0)},
      {"filled, larger handles", filling(growing()), used, adding<B>(20 * MiB, 0)},
      {"filled, behind free memory", filling(moving()), behind_free, adding<B>(5 * MiB, 0)},
      {"filled, moved and new memory", filling(moving()), two_gaps<B>(0), adding<B>(12 * MiB, 0)},
      {"filled, aligned", filling(moving()), behind_free, add_aligned<B>},
      {"filled, a block of mappings of its own", filling(moving()), used,
       [](w_t& w) {
         return w.keep(w.pool->allocate_dedicated(3 * MiB, w.streams[w.a]), 3 * MiB, w.a);
       }},
  };
}

/// What a program announces.
template <class B>
std::vector<scenario<B>> preparations() {
  using w_t = world<B>;
  const auto announcing = [](std::uint64_t size_bytes, std::size_t stream) {
    return [=](w_t& w) { return status_of(w.pool->preallocate(size_bytes, w.streams[stream])); };
  };
  const auto nothing = [](w_t&) {};
  return {
      {"announce before anything else", growing(), nothing, announcing(4 * MiB, 0)},
      {"announce beside live blocks", growing(),
       [](w_t& w) { ASSERT_TRUE(w.add_used(20 * MiB, w.a)); }, announcing(4 * MiB, 1)},
      {"announce, own handles move", moving(), two_gaps<B>(0), announcing(8 * MiB, 0)},
      {"announce, what another stream has finished moves", moving(), finished(two_gaps<B>(1)),
       announcing(8 * MiB, 2)},
      {"announce, another stream's work goes on", moving(), two_gaps<B>(1), announcing(8 * MiB, 2)},
      {"announce in a further reservation", small_space(growing(), 48 * MiB),
       [](w_t& w) { ASSERT_TRUE(w.add_used(8 * MiB, w.a)); }, announcing(4 * MiB, 2)},
  };
}

template <class B>
std::vector<scenario<B>> all() {
  std::vector<scenario<B>> list = growths<B>();
  for (const auto& more : {reuses<B>(), shortages<B>(), returns<B>(), unordered<B>(), off<B>(),
                           fills<B>(), preparations<B>()})
    list.insert(list.end(), more.begin(), more.end());
  return list;
}

inline std::vector<variant> variants() { return sweeps::variants(64 * MiB); }
inline vmm::pool_options options_on(const variant& on, vmm::pool_options options) {
  if (on.arenas) options.stream_arenas = vmm::arena_rule::always;
  return options;
}

}  // namespace pool_scenarios

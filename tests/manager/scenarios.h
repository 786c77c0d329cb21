// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Every public operation of the manager in the situations that take different ways through it, for
// the sweeps that make each driver call and each host allocation in them fail.
//
// A scenario prepares a world and then does one operation. A world records its allocations and the
// memory's contents, so that it can be compared with itself after a failure.
#pragma once

#include "../support/scenarios.h"

import vmm.manager;

namespace scenarios {

using sweeps::fake_of, sweeps::status_of, sweeps::variant;

/// One live allocation: its tag fills its first `tagged_bytes`.
struct slot {
  vmm::address at{};
  std::uint64_t user_bytes = 0;
  std::uint64_t tagged_bytes = 0;
  std::uint64_t tag = 0;
  bool given_up = false;  ///< its memory may have moved to another allocation
};

template <class B>
struct world {
  B driver;
  std::unique_ptr<vmm::manager> managed;
  std::vector<slot> slots;

  world(B&& made, const vmm::manager_options& options) : driver(std::move(made)) {
    managed = std::make_unique<vmm::manager>(driver, options);
    slots.reserve(64);
  }

  [[nodiscard]] vmm::fake_driver& fake() { return fake_of(driver); }

  vmm::status add(std::uint64_t size_bytes, std::uint64_t growth_bytes = 0) {
    const auto at = managed->allocate(vmm::allocate_request{size_bytes, growth_bytes});
    if (!at) return at.error();
    slots.push_back({*at, size_bytes, 0, 0});
    return {};
  }
  void tag_all() {
    for (std::size_t i = 0; i < slots.size(); ++i) {
      slots[i].tag = 100 + i;
      slots[i].tagged_bytes = slots[i].user_bytes;
      ASSERT_TRUE(fake().write_tag({slots[i].at, slots[i].user_bytes}, slots[i].tag));
    }
  }
  vmm::status remove(std::size_t index) {
    const vmm::status freed = managed->free(slots[index].at);
    if (freed) slots.erase(slots.begin() + static_cast<std::ptrdiff_t>(index));
    return freed;
  }
  vmm::status resize(std::size_t index, std::uint64_t size_bytes) {
    const auto at = managed->resize(vmm::resize_request{slots[index].at, size_bytes});
    if (!at) return at.error();
    slots[index].at = *at;
    slots[index].user_bytes = size_bytes;
    slots[index].tagged_bytes = std::min(slots[index].tagged_bytes, size_bytes);
    return {};
  }
  // Work that has not finished on a slot of the default stream.
  void keep_busy(std::size_t index) {
    if (!fake().feature_set().streams) return;
    const vmm::address_range used{slots[index].at, slots[index].user_bytes};
    ASSERT_TRUE(fake().launch(vmm::stream_handle::default_stream,
                              {.duration_us = 1e6, .writes = {&used, 1}}));
  }

  void synchronize(const std::string& what) {
    if (!fake().feature_set().streams) return;
    EXPECT_TRUE(fake().synchronize_stream(vmm::stream_handle::default_stream)) << what;
  }

  /// What a user can see: sizes and contents of every allocation.
  void expect_intact(const std::string& what) {
    synchronize(what);
    for (const slot& live : slots) {
      const auto info = managed->find(live.at);
      ASSERT_TRUE(info) << what;
      EXPECT_EQ(info->base.value, live.at.value) << what;
      if (!live.given_up) EXPECT_EQ(info->sizes.user_bytes, live.user_bytes) << what;
      if (live.tagged_bytes == 0) continue;
      const auto first = fake().read_tag(live.at);
      const auto last = fake().read_tag(live.at + (live.tagged_bytes - 1) / (2 * MiB) * (2 * MiB));
      ASSERT_TRUE(first && last) << what;
      EXPECT_EQ(*first, live.tag) << what;
      EXPECT_EQ(*last, live.tag) << what;
    }
    EXPECT_TRUE(managed->validate()) << what;
  }
  void finish(const std::string& what) {
    fake().clear_faults();
    synchronize(what);
    while (!slots.empty()) ASSERT_TRUE(remove(slots.size() - 1)) << what;
    managed.reset();
    EXPECT_TRUE(fake().check_empty()) << what << '\n' << fake().report();
    EXPECT_EQ(fake().misuse_count(), 0u) << what;
  }
};

/// One operation in one situation.
template <class B>
struct scenario {
  const char* name;
  vmm::manager_policy policy;
  std::function<void(world<B>&)> prepare;
  std::function<vmm::status(world<B>&)> operation;
  bool may_lose = false;  ///< empties an address before it fills it: see device_lost
  bool is_short = false;  ///< succeeds only if draining does: out of memory is an honest answer
};

template <class B>
std::vector<scenario<B>> allocating() {
  const vmm::manager_policy pool = vmm::manager_policy::va_pool();
  const vmm::manager_policy keep = vmm::manager_policy::keep_mapped();
  const vmm::manager_policy caching = vmm::manager_policy::virtual_caching();
  const auto nothing = [](world<B>&) {};
  const auto add_and_free = [](std::vector<std::uint64_t> sizes) {
    return [sizes](world<B>& w) {
      for (const std::uint64_t size_bytes : sizes) ASSERT_TRUE(w.add(size_bytes));
      while (!w.slots.empty()) ASSERT_TRUE(w.remove(w.slots.size() - 1));
    };
  };
  const auto add = [](std::uint64_t size_bytes) {
    return [size_bytes](world<B>& w) { return w.add(size_bytes); };
  };
  const auto two_of_three_freed = [](bool is_busy) {
    return [is_busy](world<B>& w) {
      for (int i = 0; i < 3; ++i) ASSERT_TRUE(w.add(600 * MiB));
      if (is_busy) w.keep_busy(0);
      for (int i = 0; i < 2; ++i) ASSERT_TRUE(w.remove(0));
    };
  };
  return {
      {"first allocation", pool, nothing, add(64 * MiB)},
      {"reuse an exact piece", pool, add_and_free({64 * MiB}), add(64 * MiB)},
      {"gather pieces and create the rest", pool, add_and_free({64 * MiB, 32 * MiB}),
       add(128 * MiB)},
      {"allocate with room to grow", pool, nothing,
       [](world<B>& w) { return w.add(64 * MiB, 64 * MiB); }},
      {"a further reservation", pool, [](world<B>& w) { ASSERT_TRUE(w.add(900 * MiB)); },
       add(200 * MiB)},
      {"reuse a mapped range", keep, add_and_free({64 * MiB}), add(64 * MiB)},
      {"case 1", caching, nothing, add(50 * MiB)},
      {"case 2", caching, add_and_free({40 * MiB}), add(30 * MiB)},
      {"case 3, in place", caching, add_and_free({40 * MiB}), add(80 * MiB)},
      {"case 3, moving", caching,
       [](world<B>& w) {
         ASSERT_TRUE(w.add(40 * MiB));
         ASSERT_TRUE(w.add(20 * MiB));
         ASSERT_TRUE(w.remove(0));
       },
       add(80 * MiB)},
      {"case 4", caching, add_and_free({80 * MiB}), add(20 * MiB)},
      {"memory short, cache drained", pool, two_of_three_freed(false), add(1300 * MiB), false,
       true},
      {"memory short, cached ranges drained", keep, two_of_three_freed(false), add(1300 * MiB),
       false, true},
      {"memory short, unfinished work", pool, two_of_three_freed(true), add(1300 * MiB), false,
       true},
  };
}

template <class B>
std::vector<scenario<B>> changing() {
  const vmm::manager_policy pool = vmm::manager_policy::va_pool();
  const vmm::manager_policy keep = vmm::manager_policy::keep_mapped();
  const auto two = [](world<B>& w) {
    ASSERT_TRUE(w.add(64 * MiB));
    ASSERT_TRUE(w.add(32 * MiB));
    w.tag_all();
  };
  const auto two_busy = [two](world<B>& w) {
    two(w);
    w.keep_busy(0);
  };
  const auto grown = [](world<B>& w) {
    ASSERT_TRUE(w.add(32 * MiB));
    ASSERT_TRUE(w.resize(0, 64 * MiB));
    ASSERT_TRUE(w.resize(0, 96 * MiB));
    w.tag_all();
  };
  const auto grown_busy = [grown](world<B>& w) {
    grown(w);
    w.keep_busy(0);
  };
  const auto resize_first = [](std::uint64_t size_bytes) {
    return [size_bytes](world<B>& w) { return w.resize(0, size_bytes); };
  };
  const auto remove_first = [](world<B>& w) { return w.remove(0); };
  const auto drain = [](world<B>& w) { return status_of(w.managed->trim(0)); };
  const auto freed = [two](world<B>& w) {
    two(w);
    ASSERT_TRUE(w.remove(0));
  };
  return {
      {"free", pool, two, remove_first},
      {"free several pieces", pool, grown, remove_first},
      {"free under work", pool, two_busy, remove_first},
      {"free and keep mapped", keep, two, remove_first},
      {"grow in place", pool, grown, resize_first(128 * MiB)},
      {"grow into room", pool,
       [](world<B>& w) {
         ASSERT_TRUE(w.add(64 * MiB, 64 * MiB));
         w.tag_all();
       },
       resize_first(128 * MiB)},
      {"grow by moving", pool, two, resize_first(128 * MiB), true},
      {"grow by moving under work", pool, two_busy, resize_first(128 * MiB), true},
      {"shrink", pool, grown, resize_first(40 * MiB)},
      {"shrink by nothing", pool, two, resize_first(63 * MiB)},
      {"shrink under work", pool, grown_busy, resize_first(20 * MiB)},
      {"drain", pool, freed, drain},
      {"drain ranges", keep, freed, drain},
  };
}

template <class B>
std::vector<scenario<B>> copying() {
  const vmm::manager_policy pool = vmm::manager_policy::va_pool();
  const auto prepare = [](std::uint64_t source_bytes, std::uint64_t target_bytes) {
    return [=](world<B>& w) {
      ASSERT_TRUE(w.add(source_bytes));
      ASSERT_TRUE(w.add(target_bytes));
      w.tag_all();
    };
  };
  // After success the target shows the source's tag; what the source shows is the mode's affair.
  const auto copy = [](vmm::copy_mode mode) {
    return [mode](world<B>& w) {
      slot& source = w.slots[0];
      slot& target = w.slots[1];
      const std::uint64_t size_bytes = source.user_bytes;
      const vmm::status done = w.managed->copy({target.at, source.at, size_bytes}, mode);
      if (!done) return done;
      target.tag = source.tag;
      target.tagged_bytes = size_bytes;
      if (mode == vmm::copy_mode::move) {
        source.tagged_bytes = 0;
        source.given_up = true;
      }
      return done;
    };
  };
  return {
      {"move a copy", pool, prepare(64 * MiB, 64 * MiB), copy(vmm::copy_mode::move), true},
      {"move a copy and extend", pool, prepare(64 * MiB, 128 * MiB), copy(vmm::copy_mode::move),
       true},
      {"alias a copy", pool, prepare(64 * MiB, 64 * MiB), copy(vmm::copy_mode::alias), true},
      {"alias a copy and extend", pool, prepare(64 * MiB, 128 * MiB), copy(vmm::copy_mode::alias),
       true},
      {"copy bytes", pool, prepare(64 * MiB, 64 * MiB), copy(vmm::copy_mode::copy)},
  };
}

template <class B>
std::vector<scenario<B>> all() {
  std::vector<scenario<B>> list = allocating<B>();
  for (auto& one : changing<B>()) list.push_back(std::move(one));
  for (auto& one : copying<B>()) list.push_back(std::move(one));
  return list;
}

inline std::vector<variant> variants() { return sweeps::variants(2048 * MiB); }

template <class B>
vmm::manager_options options_for(const scenario<B>& one) {
  vmm::manager_options options;
  options.policy = one.policy;
  options.reservation_bytes = 1024 * MiB;
  return options;
}

}  // namespace scenarios

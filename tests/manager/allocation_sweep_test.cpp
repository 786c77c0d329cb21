// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: whatever host allocation inside the library fails, the manager reports out_of_host_memory
// or succeeds all the same, every allocation and its contents are as before, and nothing leaks.
// [R2] Method: operator new is replaced; each scenario is run once to count the library's own
// allocations (the driver's are left out: an observer pauses the count during its calls), then once
// for each of them failing, and once with all from it on failing.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "scenarios.h"

import vmm.backend;
import vmm.fake;
import vmm.manager;

namespace {

// What the replaced operator new does on this thread.
struct allocation_plan {
  bool armed = false;
  int paused_count = 0;
  std::uint64_t seen_count = 0;
  std::uint64_t fail_at = 0;  // counted from 1; 0: none
  bool forever = false;
  std::uint64_t struck_count = 0;
};
thread_local allocation_plan plan;

bool strikes() noexcept {
  if (!plan.armed || plan.paused_count > 0) return false;
  ++plan.seen_count;
  if (plan.fail_at == 0) return false;
  const bool hit =
      plan.seen_count == plan.fail_at || (plan.forever && plan.seen_count > plan.fail_at);
  if (hit) ++plan.struck_count;
  return hit;
}

}  // namespace

void* operator new(std::size_t size_bytes) {
  void* const memory = strikes() ? nullptr : std::malloc(size_bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void* operator new(std::size_t size_bytes, const std::nothrow_t&) noexcept {
  return strikes() ? nullptr : std::malloc(size_bytes);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }

namespace {

/// The driver's own allocations are not the library's.
struct pause_in_driver {
  vmm::status before(const vmm::call_record&) noexcept {
    ++plan.paused_count;
    return {};
  }
  void after(const vmm::call_record&) noexcept { --plan.paused_count; }
};

using B = vmm::observed_backend<vmm::fake_driver, pause_in_driver>;
using world = scenarios::world<B>;
using scenario = scenarios::scenario<B>;

class HostMemory : public testing::Test {
 protected:
  // Returns how many allocations the operation made, or 0 when the failure was not reached.
  std::uint64_t run(const scenario& one, const scenarios::variant& on, std::uint64_t fail_at,
                    bool forever) {
    world w(B(vmm::fake_driver(on.plays), std::make_shared<pause_in_driver>()),
            scenarios::options_for(one));
    one.prepare(w);
    const vmm::manager_statistics before = w.managed->statistics();
    plan = {.armed = true, .fail_at = fail_at, .forever = forever};
    const vmm::status done = one.operation(w);
    plan.armed = false;
    const std::uint64_t seen_count = plan.seen_count;
    const std::string what = std::string(one.name) + " on " + on.name + ", allocation " +
                             std::to_string(fail_at) + (forever ? " and all after it" : "");
    if (fail_at != 0) {
      ++possible_count;
      if (plan.struck_count > 0) ++injected_count;
    }
    if (!done) {
      EXPECT_EQ(done.error().code, vmm::errc::out_of_host_memory) << what;
      EXPECT_EQ(w.managed->statistics().user_bytes, before.user_bytes) << what;
      EXPECT_EQ(w.managed->statistics().mapped_bytes, before.mapped_bytes) << what;
      w.expect_intact(what);
      EXPECT_TRUE(one.operation(w)) << what;
    }
    w.expect_intact(what);
    w.finish(what);
    return seen_count;
  }

  void sweep_all(const scenarios::variant& on) {
    for (const scenario& one : scenarios::all<B>()) {
      const std::uint64_t allocation_count = run(one, on, 0, false);
      for (std::uint64_t nth = 1; nth <= allocation_count; ++nth) {
        run(one, on, nth, false);
        run(one, on, nth, true);
      }
      if (HasFailure()) break;
    }
    std::printf("%s: failed %llu of %llu possible host allocations\n", on.name,
                static_cast<unsigned long long>(injected_count),
                static_cast<unsigned long long>(possible_count));
    EXPECT_EQ(injected_count, possible_count);
    EXPECT_GT(injected_count, 0u);
  }

  std::uint64_t possible_count = 0;
  std::uint64_t injected_count = 0;
};

TEST_F(HostMemory, Cuda) { sweep_all(scenarios::variants().at(0)); }
TEST_F(HostMemory, WithoutAliases) { sweep_all(scenarios::variants().at(1)); }
TEST_F(HostMemory, Host) { sweep_all(scenarios::variants().at(5)); }

}  // namespace

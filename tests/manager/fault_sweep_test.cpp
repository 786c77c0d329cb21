// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: whatever driver call fails, with whatever code, once, for ever, or a second time while the
// first failure is being undone, the manager reports the injected error or succeeds all the same,
// every allocation and its contents are as before, and nothing leaks. [R1, R14]
// Method: each scenario is run once to count its driver calls, then once for every call, code and
// way of failing, on drivers that differ in what they can do with mappings. The driver's ledger is
// empty after each.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "scenarios.h"

import vmm.backend;
import vmm.fake;
import vmm.manager;

namespace {

using B = vmm::fake_driver;
using world = scenarios::world<B>;
using scenario = scenarios::scenario<B>;
using call_counts = std::array<std::uint64_t, vmm::call_count>;

class FaultSweep : public testing::Test {
 protected:
  struct outcome {
    vmm::status result;
    call_counts calls{};
    std::uint64_t struck_count = 0;
  };

  // Does the operation in a fresh world with these faults planned; checks all there is to check.
  outcome inject(const scenario& one, const scenarios::variant& on,
                 const std::vector<vmm::fake::fault>& faults) {
    world w(B(on.plays), scenarios::options_for(one));
    one.prepare(w);
    const vmm::manager_statistics before = w.managed->statistics();
    const std::vector<scenarios::slot> slots_before = w.slots;
    const std::uint64_t struck_before = w.fake().faults_struck();
    w.fake().reset_calls();
    for (const vmm::fake::fault& planned : faults) w.fake().fail(planned);
    outcome seen{one.operation(w), {}, 0};
    for (std::size_t kind = 0; kind < vmm::call_count; ++kind) {
      seen.calls[kind] = w.fake().calls(static_cast<vmm::call>(kind));
    }
    seen.struck_count = w.fake().faults_struck() - struck_before;
    w.fake().clear_faults();
    const std::string what = describe(one, on, faults);
    if (!seen.result) {
      expect_injected(one, seen.result.error(), faults, what);
      if (seen.result.error().code == vmm::errc::device_lost && seen.result.error().native == 0) {
        forget_lost(w);
      } else {
        expect_same(before, w.managed->statistics(), what);
        EXPECT_EQ(w.slots.size(), slots_before.size()) << what;
        w.expect_intact(what);
        const vmm::status again = one.operation(w);
        EXPECT_TRUE(again) << what << ": " << (again ? "" : vmm::describe(again.error()));
      }
    }
    w.expect_intact(what);
    w.finish(what);
    return seen;
  }

  static std::string describe(const scenario& one, const scenarios::variant& on,
                              const std::vector<vmm::fake::fault>& faults) {
    std::string text = std::string(one.name) + " on " + on.name;
    for (const vmm::fake::fault& planned : faults) {
      text += std::string(", ") + vmm::name_of(planned.where) + " " + std::to_string(planned.nth) +
              (planned.forever ? " for ever " : " once ") + planned.failure.native_name;
    }
    return text;
  }

  static void expect_injected(const scenario& one, const vmm::error& seen,
                              const std::vector<vmm::fake::fault>& faults,
                              const std::string& what) {
    const bool injected = std::any_of(faults.begin(), faults.end(), [&seen](const auto& planned) {
      return seen.where == planned.where && seen.native == planned.failure.native;
    });
    const bool lost = one.may_lose && seen.code == vmm::errc::device_lost && seen.native == 0 &&
                      (faults.size() > 1 || faults.front().forever);
    const bool short_of_memory = one.is_short && seen.code == vmm::errc::out_of_memory;
    EXPECT_TRUE(injected || lost || short_of_memory) << what << " reports " << vmm::describe(seen);
  }

  static void expect_same(const vmm::manager_statistics& before,
                          const vmm::manager_statistics& after, const std::string& what) {
    EXPECT_EQ(after.live_count, before.live_count) << what;
    EXPECT_EQ(after.user_bytes, before.user_bytes) << what;
    // A growth whose undoing failed leaves its mappings with the block.
    EXPECT_GE(after.mapped_bytes, before.mapped_bytes) << what;
  }

  // What could not be put back can only be freed.
  static void forget_lost(world& w) {
    for (auto lost = w.slots.begin(); lost != w.slots.end();) {
      const auto info = w.managed->find(lost->at);
      if (info && info->sizes.user_bytes > 0) {
        ++lost;
        continue;
      }
      EXPECT_TRUE(w.managed->free(lost->at));
      lost = w.slots.erase(lost);
    }
  }

  void count(const outcome& seen) {
    ++possible_count;
    if (seen.struck_count > 0) ++injected_count;
  }

  // A second fault at every call that undoing makes, beside the first.
  void sweep_rollback(const scenario& one, const scenarios::variant& on,
                      const vmm::fake::fault& first, const outcome& alone, B& any) {
    using enum vmm::call;
    for (const vmm::call kind : {map, unmap, set_access, release, free_reservation}) {
      const vmm::fake::native_error failure = any.possible_errors(kind).front();
      const std::uint64_t calls_made = alone.calls[static_cast<std::size_t>(kind)];
      for (std::uint64_t nth = 1; nth <= calls_made; ++nth) {
        if (kind == first.where && nth == first.nth) continue;
        count(inject(one, on, {first, {kind, nth, false, failure}}));
      }
    }
  }

  void sweep(const scenario& one, const scenarios::variant& on) {
    const outcome clean = inject(one, on, {});
    ASSERT_TRUE(clean.result) << one.name << " on " << on.name << ": "
                              << vmm::describe(clean.result.error());
    B any(on.plays);
    for (std::size_t index = 1; index < vmm::call_count; ++index) {
      const auto kind = static_cast<vmm::call>(index);
      for (std::uint64_t nth = 1; nth <= clean.calls[index]; ++nth) {
        bool is_first_code = true;
        for (const vmm::fake::native_error& failure : any.possible_errors(kind)) {
          const outcome once = inject(one, on, {{kind, nth, false, failure}});
          count(once);
          count(inject(one, on, {{kind, nth, true, failure}}));
          if (std::exchange(is_first_code, false)) {
            sweep_rollback(one, on, {kind, nth, false, failure}, once, any);
          }
        }
      }
    }
  }

  void sweep_all(const scenarios::variant& on) {
    for (const scenario& one : scenarios::all<B>()) {
      sweep(one, on);
      if (HasFailure()) break;
    }
    std::printf("%s: injected %llu of %llu possible faults\n", on.name,
                static_cast<unsigned long long>(injected_count),
                static_cast<unsigned long long>(possible_count));
    EXPECT_EQ(injected_count, possible_count);
    RecordProperty("injected", std::to_string(injected_count));
  }

  std::uint64_t possible_count = 0;
  std::uint64_t injected_count = 0;
};

TEST_F(FaultSweep, Cuda) { sweep_all(scenarios::variants().at(0)); }
TEST_F(FaultSweep, WithoutAliases) { sweep_all(scenarios::variants().at(1)); }
TEST_F(FaultSweep, WithoutSpanningUnmap) { sweep_all(scenarios::variants().at(2)); }
TEST_F(FaultSweep, WithNeither) { sweep_all(scenarios::variants().at(3)); }
TEST_F(FaultSweep, LevelZero) { sweep_all(scenarios::variants().at(4)); }
TEST_F(FaultSweep, Host) { sweep_all(scenarios::variants().at(5)); }

}  // namespace

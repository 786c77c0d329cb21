// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The order in which a sweep makes driver calls fail: every call that an operation makes, with
// every code that it may return, once and for ever, and with the first code once more beside a
// second fault at every call that undoing makes. What is run, and what must hold after it, is the
// caller's. It imports what it uses, so it is the last include except others with imports.
#pragma once

#include "test.h"

import vmm.backend;
import vmm.fake;

namespace sweeps {

using fault_list = std::vector<vmm::fake::fault>;

/// What one run of an operation did: its result, its driver calls by kind, and how many faults
/// struck in it.
struct outcome {
  vmm::status result;
  std::array<std::uint64_t, vmm::call_count> calls{};
  std::uint64_t struck_count = 0;
};

/// How many faults were planned, and how many of them struck: the same number, or the sweep has
/// holes.
struct totals {
  std::uint64_t possible_count = 0;
  std::uint64_t injected_count = 0;

  void add(const outcome& seen) {
    ++possible_count;
    if (seen.struck_count > 0) ++injected_count;
  }
};

inline std::string describe(const fault_list& faults) {
  std::string text;
  for (const vmm::fake::fault& planned : faults) {
    text += std::string(", ") + vmm::name_of(planned.where) + " " + std::to_string(planned.nth) +
            (planned.forever ? " for ever " : " once ") + planned.failure.native_name;
  }
  return text;
}

inline bool is_injected(const vmm::error& seen, const fault_list& faults) {
  return std::any_of(faults.begin(), faults.end(), [&seen](const vmm::fake::fault& planned) {
    return seen.where == planned.where && seen.native == planned.failure.native;
  });
}

/// Of the driver's counts, those that a failed call leaves as they were, or makes less.
struct held {
  std::uint64_t memory_bytes = 0;
  std::uint64_t handles = 0;
  std::uint64_t mappings = 0;
};
inline held held_of(const vmm::fake_driver& driver) {
  const auto now = driver.resource_counts();
  return {now.memory_bytes, now.handles, now.mappings};
}

/// Checks that a call that failed has left no more with its allocator than before. What the driver
/// does not take back or does not unmap stays.
inline void expect_no_more(const held& before, const vmm::fake_driver& driver,
                           const fault_list& faults, const std::string& what) {
  const bool takes_back =
      std::none_of(faults.begin(), faults.end(), [](const vmm::fake::fault& planned) {
        return planned.where == vmm::call::release || planned.where == vmm::call::unmap;
      });
  if (!takes_back) return;
  const held after = held_of(driver);
  EXPECT_LE(after.memory_bytes, before.memory_bytes) << what;
  EXPECT_LE(after.handles, before.handles) << what;
  EXPECT_LE(after.mappings, before.mappings) << what;
}

/// Runs `operation` on `fake` under the faults; they are gone afterwards.
template <class Operation>
outcome run_under(vmm::fake_driver& fake, const fault_list& faults, Operation&& operation) {
  const std::uint64_t struck_before = fake.faults_struck();
  fake.reset_calls();
  for (const vmm::fake::fault& planned : faults) fake.fail(planned);
  outcome seen{operation(), {}, 0};
  for (std::size_t kind = 0; kind < vmm::call_count; ++kind)
    seen.calls[kind] = fake.calls(static_cast<vmm::call>(kind));
  seen.struck_count = fake.faults_struck() - struck_before;
  fake.clear_faults();
  return seen;
}

/// A second fault at every call that undoing makes, beside the first. `inject` takes a fault_list
/// and gives an outcome.
template <class Inject>
void sweep_undoing(vmm::fake_driver& any, const vmm::fake::fault& first, const outcome& alone,
                   Inject& inject, totals& sums) {
  using enum vmm::call;
  for (const vmm::call kind : {map, unmap, set_access, release, free_reservation}) {
    const vmm::fake::native_error failure = any.possible_errors(kind).front();
    const std::uint64_t calls_made = alone.calls[static_cast<std::size_t>(kind)];
    for (std::uint64_t nth = 1; nth <= calls_made; ++nth) {
      if (kind == first.where && nth == first.nth) continue;
      sums.add(inject(fault_list{first, {kind, nth, false, failure}}));
    }
  }
}

/// All faults for an operation that makes the calls of `clean` when nothing fails. `any` is a
/// driver of the same profile, queried for the codes.
template <class Inject>
void sweep_calls(vmm::fake_driver& any, const outcome& clean, Inject&& inject, totals& sums) {
  for (std::size_t index = 1; index < vmm::call_count; ++index) {
    const auto kind = static_cast<vmm::call>(index);
    for (std::uint64_t nth = 1; nth <= clean.calls[index]; ++nth) {
      bool is_first_code = true;
      for (const vmm::fake::native_error& failure : any.possible_errors(kind)) {
        const outcome once = inject(fault_list{{kind, nth, false, failure}});
        sums.add(once);
        sums.add(inject(fault_list{{kind, nth, true, failure}}));
        if (std::exchange(is_first_code, false))
          sweep_undoing(any, {kind, nth, false, failure}, once, inject, sums);
      }
    }
  }
}

/// Every planned fault was met, and there were more than `least_count`.
inline void expect_complete(const char* name, const totals& sums, std::uint64_t least_count = 100) {
  std::printf("%s: injected %llu of %llu possible faults\n", name,
              static_cast<unsigned long long>(sums.injected_count),
              static_cast<unsigned long long>(sums.possible_count));
  EXPECT_EQ(sums.injected_count, sums.possible_count) << name;
  EXPECT_GT(sums.injected_count, least_count) << name;
  testing::Test::RecordProperty("injected", std::to_string(sums.injected_count));
}

/// All faults for all scenarios. `inject` takes a scenario and a fault_list and gives an outcome,
/// which is a success without faults, except where the scenario `is_refused`.
template <class Scenarios, class Inject>
void sweep_scenarios(const char* name, const vmm::fake::profile& plays, const Scenarios& all,
                     Inject&& inject) {
  vmm::fake_driver any(plays);
  totals sums;
  for (const auto& one : all) {
    const outcome clean = inject(one, fault_list{});
    bool is_refused = false;
    if constexpr (requires { one.is_refused; }) is_refused = one.is_refused;
    ASSERT_EQ(clean.result.has_value(), !is_refused)
        << one.name << " on " << name << ": "
        << (clean.result ? "" : vmm::describe(clean.result.error()));
    sweep_calls(any, clean, [&](const fault_list& faults) { return inject(one, faults); }, sums);
    if (testing::Test::HasFailure()) break;
  }
  expect_complete(name, sums);
}

}  // namespace sweeps

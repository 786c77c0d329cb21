// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Counts how often streams that share a pool use shared locks: the events of bench_threads, made by
// one thread for each stream in turn, so that equal runs count alike. For each number of streams,
// without arenas and with arenas from the start, per 1,000 events: acquisitions of the pool's state
// lock, of the growth lock (by each request that free memory cannot serve), and of all other locks
// (of arenas, of the timeline), driver calls, and requests that grew the pool. Then the peak held
// over the bytes live at the end, mean and maximum of the rounds. The locks of the fake driver are
// among the others.
//
// Built with a library whose locks announce themselves. What is counted begins after a warm-up of a
// quarter as many events. Each round has other numbers. --json prints one object; --events N sets
// the events of all streams, --rounds N the rounds.

#include "churn.hpp"

import vmm.base;
import vmm.fake;
import vmm.stream;

namespace {

using pool = vmm::stream_pool;

/// Counts how often two locks of a pool are taken, and all others together.
class lock_count final : public vmm::sync::schedule_observer {
 public:
  lock_count() { vmm::sync::set_schedule_observer(this); }
  ~lock_count() { vmm::sync::set_schedule_observer(nullptr); }
  lock_count(const lock_count&) = delete;
  lock_count& operator=(const lock_count&) = delete;

  void reach(vmm::sync::step what, const void* object) noexcept override {
    if (what != vmm::sync::step::lock) return;
    if (last_ == nullptr && object != state_) last_ = object;
    ++counts_[object == state_ ? 0 : object == growth_ ? 1 : 2];
  }
  // Finds out which they are: the locks that two calls take first. The pool has allocated.
  void find(pool& of) {
    state_ = last_ = nullptr;
    (void)of.last_shortage();
    state_ = std::exchange(last_, nullptr);
    must(of.forget(static_cast<vmm::stream_handle>(~0U)));
    growth_ = last_;
    if (state_ == nullptr || growth_ == nullptr || state_ == growth_) stop("a lock is not found");
    counts_ = {};
  }
  [[nodiscard]] std::uint64_t of_state() const { return counts_[0]; }
  [[nodiscard]] std::uint64_t of_growth() const { return counts_[1]; }
  [[nodiscard]] std::uint64_t others() const { return counts_[2]; }

 private:
  const void* state_ = nullptr;
  const void* growth_ = nullptr;
  const void* last_ = nullptr;  // the first since it was null, but the state's
  std::array<std::uint64_t, 3> counts_{};
};

/// Per 1,000 events.
struct counts {
  double state_locks = 0;
  double growth_locks = 0;
  double other_locks = 0;
  double driver_calls = 0;
  double growths = 0;
  double held_mean = 0;       // held over live: the mean of the rounds
  double held_over_live = 0;  // and the most
};

struct scene {
  unsigned streams = 0;
  vmm::arena_rule arenas = vmm::arena_rule::never;
  std::uint64_t events = 0;
  std::uint64_t seed = 0;
};

counts count(const scene& of) {
  const unsigned streams = of.streams;
  vmm::fake_driver driver;
  vmm::pool_options options = vmm::pool_options::from_environment({}).value();
  options.capture = vmm::capture_rule::unchecked;
  options.stream_arenas = of.arenas;
  const auto shared = std::make_unique<pool>(driver, options);
  lock_count locks;
  std::vector<vmm::stream_handle> handles;
  std::vector<generator> randoms;
  std::vector<std::vector<vmm::address>> live(streams, std::vector<vmm::address>(live_count));
  for (unsigned i = 0; i < streams; ++i) {
    handles.push_back(must(driver.create_stream()));
    randoms.emplace_back(of.seed + i + 1);
  }
  for (unsigned i = 0; i < streams; ++i) {
    for (vmm::address& each : live[i])
      each = must(shared->allocate(randoms[i].size_bytes(), handles[i]));
  }
  const std::uint64_t pairs = std::max<std::uint64_t>(1, of.events / 2 / streams);
  const auto replace = [&](std::uint64_t times) {
    for (std::uint64_t step = 0; step < times; ++step) {
      for (unsigned i = 0; i < streams; ++i) {
        vmm::address& each = live[i][randoms[i].next() % live_count];
        must(shared->free(each, handles[i]));
        each = must(shared->allocate(randoms[i].size_bytes(), handles[i]));
      }
    }
  };
  replace(pairs / 4);
  const std::uint64_t grown_before = shared->statistics().slow_count;
  driver.reset_calls();
  locks.find(*shared);
  replace(pairs);
  const double thousands = 2e-3 * static_cast<double>(pairs) * streams;
  counts found{.state_locks = static_cast<double>(locks.of_state()) / thousands,
               .growth_locks = static_cast<double>(locks.of_growth()) / thousands,
               .other_locks = static_cast<double>(locks.others()) / thousands,
               .driver_calls = static_cast<double>(driver.calls()) / thousands};
  const vmm::pool_statistics now = shared->statistics();
  found.growths = static_cast<double>(now.slow_count - grown_before) / thousands;
  found.held_over_live =
      static_cast<double>(now.peak_mapped_bytes) / static_cast<double>(now.live_bytes);
  for (unsigned i = 0; i < streams; ++i) {
    for (const vmm::address each : live[i]) must(shared->free(each, handles[i]));
    must(shared->forget(handles[i]));
    must(driver.destroy_stream(handles[i]));
  }
  return found;
}

// The mean over the rounds; of memory held, the maximum.
counts count_rounds(scene of, std::uint64_t rounds) {
  counts sum;
  for (std::uint64_t round = 0; round < rounds; ++round) {
    of.seed = round * 1000;
    const counts now = count(of);
    const double part = 1.0 / static_cast<double>(rounds);
    sum.state_locks += now.state_locks * part;
    sum.growth_locks += now.growth_locks * part;
    sum.other_locks += now.other_locks * part;
    sum.driver_calls += now.driver_calls * part;
    sum.growths += now.growths * part;
    sum.held_over_live = std::max(sum.held_over_live, now.held_over_live);
    sum.held_mean += now.held_over_live * part;
  }
  return sum;
}

constexpr const char* usage =
    "usage: bench_arenas [--json] [--events N] [--rounds N]\n"
    "N is a whole number from 1 on (1000000 events, 5 rounds otherwise).\n";

}  // namespace

int main(int argc, char** argv) {
  const auto [json, events, rounds] =
      read_churn_words(argc, argv, usage, {.events = 1'000'000, .rounds = 5});
  table rows;
  for (const unsigned streams : thread_counts) {
    for (const vmm::arena_rule rule : {vmm::arena_rule::never, vmm::arena_rule::always}) {
      const counts found = count_rounds({streams, rule, events}, rounds);
      rows.row()
          .count("streams", streams, "streams")
          .text("arenas", rule == vmm::arena_rule::never ? "never" : "always", "arenas")
          .figure("pool's lock", found.state_locks, 2, "state_locks")
          .figure("growth's", found.growth_locks, 3, "growth_locks")
          .figure("others", found.other_locks, 1, "other_locks")
          .figure("driver calls", found.driver_calls, 2, "driver_calls")
          .figure("growths", found.growths, 4, "growths")
          .figure("held over live", found.held_mean, 3, "held_over_live")
          .figure("most", found.held_over_live, 3, "held_over_live_max");
    }
  }
  print(json ? "{\"rows\": " + rows.json() + "}\n" : rows.markdown());
  return 0;
}

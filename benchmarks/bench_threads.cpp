// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The cost of an allocation or a free when 1 to 16 threads make them at once, each on its own
// stream: on one stream pool that all share, without arenas, with arenas from the first growth on,
// with a capture query to the driver at each call, on a pool for each thread, and on the C
// library's malloc. The driver is the fake one; a warm pool makes no other call to it than that
// query.
//
// What the threads do is in churn.hpp. "ns" is wall time over the events of all threads, "CPU" the
// processor time that they took; "speed-up" is how many times the events of one thread are served
// in that time. The best of the rounds, in which the sources take turns. The second table has what
// a pool held at most over what was live at the end, which is the same for all of a row, the worst
// of the rounds, and how many of its
// streams had arenas. --json prints one object; --events N sets the events of all threads, --rounds
// N the rounds.

#include "churn.hpp"

import vmm.fake;
import vmm.stream;

namespace {

using pool = vmm::stream_pool;

/// What the pools of a source held.
struct holdings {
  double held_over_live = 0;
  std::uint64_t arena_count = 0;
};

// A pool and streams on it: for all threads, or for one.
class pool_source {
 public:
  pool_source(unsigned streams, vmm::capture_rule captures, vmm::arena_rule arenas) {
    vmm::pool_options options = vmm::pool_options::from_environment({}).value();
    options.capture = captures;
    options.stream_arenas = arenas;
    managed_ = std::make_unique<pool>(driver_, options);
    for (unsigned i = 0; i < streams; ++i) streams_.push_back(must(driver_.create_stream()));
  }
  [[nodiscard]] void* take(std::uint64_t size_bytes, unsigned stream) {
    const vmm::address at = must(managed_->allocate(size_bytes, streams_[stream]));
    return at.as<void>();
  }
  void give(void* at, unsigned stream) {
    must(managed_->free(vmm::address::from_native(at), streams_[stream]));
  }
  void look() {
    const vmm::pool_statistics seen = managed_->statistics();
    held = {static_cast<double>(seen.peak_mapped_bytes) /
                static_cast<double>(std::max<std::uint64_t>(seen.live_bytes, 1)),
            seen.arena_count};
  }

  holdings held;

 private:
  vmm::fake_driver driver_;
  std::unique_ptr<pool> managed_;
  std::vector<vmm::stream_handle> streams_;
};

class own_pools {
 public:
  explicit own_pools(unsigned threads) {
    for (unsigned i = 0; i < threads; ++i)
      each_.push_back(
          std::make_unique<pool_source>(1, vmm::capture_rule::unchecked, vmm::arena_rule::never));
  }
  [[nodiscard]] void* take(std::uint64_t size_bytes, unsigned thread) {
    return each_[thread]->take(size_bytes, 0);
  }
  void give(void* at, unsigned thread) { each_[thread]->give(at, 0); }

 private:
  std::vector<std::unique_ptr<pool_source>> each_;
};

struct c_library {
  [[nodiscard]] void* take(std::uint64_t size_bytes, unsigned) {
    void* const at = std::malloc(size_bytes);
    if (at == nullptr) stop("malloc has no memory");
    *static_cast<volatile char*>(at) = 0;  // so that the pair is not taken out
    return at;
  }
  void give(void* at, unsigned) { std::free(at); }
};

constexpr std::size_t source_count = 6;
constexpr std::array<const char*, source_count> titles{
    "one pool", "without arenas", "arenas at once", "asking", "a pool a thread", "malloc"};
constexpr std::array<const char*, source_count> keys{"one_pool", "without_arenas", "arenas_at_once",
                                                     "asking",   "own_pools",      "malloc"};
constexpr std::size_t shared_count = 4;  // the first ones are pools that all threads share

struct row {
  unsigned threads = 0;
  std::array<figure, source_count> took{};
  std::array<holdings, shared_count> held{};
};

void measure_shared(std::size_t which, vmm::capture_rule captures, vmm::arena_rule arenas,
                    std::uint64_t pairs, row& found) {
  pool_source all(found.threads, captures, arenas);
  measure(all, found.threads, pairs, found.took[which]);
  holdings& worst = found.held[which];
  worst.held_over_live = std::max(worst.held_over_live, all.held.held_over_live);
  worst.arena_count = std::max(worst.arena_count, all.held.arena_count);
}

row measure_all(unsigned threads, std::uint64_t events, std::uint64_t rounds) {
  using vmm::arena_rule;
  using vmm::capture_rule;
  const std::uint64_t pairs = std::max<std::uint64_t>(1, events / 2 / threads);
  row found{threads};
  for (std::uint64_t round = 0; round < rounds; ++round) {
    measure_shared(0, capture_rule::unchecked, arena_rule::when_contended, pairs, found);
    measure_shared(1, capture_rule::unchecked, arena_rule::never, pairs, found);
    measure_shared(2, capture_rule::unchecked, arena_rule::always, pairs, found);
    measure_shared(3, capture_rule::refuse, arena_rule::when_contended, pairs, found);
    own_pools own(threads);
    measure(own, threads, pairs, found.took[4]);
    c_library plain;
    measure(plain, threads, pairs, found.took[5]);
  }
  return found;
}

void add(const row& of, const row& first, table& times, table& held) {
  times.row().count("threads", of.threads, "threads");
  held.row().count("threads", of.threads, "threads");
  for (std::size_t i = 0; i < source_count; ++i)
    times
        .figure(titles[i] + std::string(", ns"), of.took[i].wall_ns, 1,
                keys[i] + std::string("_ns"))
        .figure("CPU", of.took[i].cpu_ns, 1, keys[i] + std::string("_cpu_ns"))
        .figure("speed-up", first.took[i].wall_ns / of.took[i].wall_ns, 2);
  for (std::size_t i = 0; i < shared_count; ++i)
    held.figure(titles[i] + std::string(", held over live"), of.held[i].held_over_live, 3,
                keys[i] + std::string("_held_over_live"))
        .count("arenas", of.held[i].arena_count, keys[i] + std::string("_arenas"));
}

constexpr const char* usage =
    "usage: bench_threads [--json] [--events N] [--rounds N]\n"
    "N is a whole number from 1 on (2000000 events, 7 rounds otherwise).\n";

}  // namespace

int main(int argc, char** argv) {
  const auto [json, events, rounds] =
      read_churn_words(argc, argv, usage, {.events = 2'000'000, .rounds = 7});
  table times;
  table held;
  row first;
  for (const unsigned threads : thread_counts) {
    const row now = measure_all(threads, events, rounds);
    if (first.threads == 0) first = now;
    add(now, first, times, held);
  }
  const std::string cores = std::to_string(std::thread::hardware_concurrency());
  print(json ? "{\"hardware_threads\": " + cores + ", \"rows\": " + times.json() +
                   ", \"held\": " + held.json() + "}\n"
             : cores + " hardware threads\n\n" + times.markdown() + "\n" + held.markdown());
  return 0;
}

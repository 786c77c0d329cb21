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
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "churn.hpp"

import vmm.fake;
import vmm.stream;

namespace {

using pool = vmm::stream_pool;

/// What the pools of a source held.
struct holdings {
  double held_over_live = 0;
  std::uint64_t front_count = 0;
};

// A pool and streams on it: for all threads, or for one.
class pool_source {
 public:
  pool_source(unsigned streams, vmm::capture_rule captures, vmm::front_rule fronts) {
    vmm::pool_options options = vmm::pool_options::from_environment({}).value();
    options.capture = captures;
    options.fronts = fronts;
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
  [[nodiscard]] vmm::pool_statistics numbers() const { return managed_->statistics(); }

 private:
  vmm::fake_driver driver_;
  std::unique_ptr<pool> managed_;
  std::vector<vmm::stream_handle> streams_;
};

template <vmm::capture_rule Captures, vmm::front_rule Fronts>
class shared_pool {
 public:
  explicit shared_pool(unsigned threads) : all_(threads, Captures, Fronts) {}
  [[nodiscard]] void* take(std::uint64_t size_bytes, unsigned thread) {
    return all_.take(size_bytes, thread);
  }
  void give(void* at, unsigned thread) { all_.give(at, thread); }
  void look() { seen_ = all_.numbers(); }
  [[nodiscard]] holdings held() const {
    return {static_cast<double>(seen_.peak_mapped_bytes) /
                static_cast<double>(std::max<std::uint64_t>(seen_.live_bytes, 1)),
            seen_.front_count};
  }

 private:
  pool_source all_;
  vmm::pool_statistics seen_{};
};

using with_fronts = shared_pool<vmm::capture_rule::unchecked, vmm::front_rule::where_contended>;
using without_fronts = shared_pool<vmm::capture_rule::unchecked, vmm::front_rule::never>;
using always_fronts = shared_pool<vmm::capture_rule::unchecked, vmm::front_rule::always>;
using asking = shared_pool<vmm::capture_rule::refuse, vmm::front_rule::where_contended>;

class own_pools {
 public:
  explicit own_pools(unsigned threads) {
    for (unsigned i = 0; i < threads; ++i)
      each_.push_back(
          std::make_unique<pool_source>(1, vmm::capture_rule::unchecked, vmm::front_rule::never));
  }
  [[nodiscard]] void* take(std::uint64_t size_bytes, unsigned thread) {
    return each_[thread]->take(size_bytes, 0);
  }
  void give(void* at, unsigned thread) { each_[thread]->give(at, 0); }

 private:
  std::vector<std::unique_ptr<pool_source>> each_;
};

class c_library {
 public:
  explicit c_library(unsigned) {}
  [[nodiscard]] void* take(std::uint64_t size_bytes, unsigned) {
    void* const at = std::malloc(size_bytes);
    if (at == nullptr) stop("malloc has no memory");
    *static_cast<volatile char*>(at) = 0;  // so that the pair is not taken out
    return at;
  }
  void give(void* at, unsigned) { std::free(at); }
};

struct contender_name {
  const char* shown;
  const char* key;
};
constexpr std::array<contender_name, 6> names{{{"one pool", "one_pool"},
                                               {"without arenas", "without_fronts"},
                                               {"arenas at once", "fronts_at_once"},
                                               {"asking", "asking"},
                                               {"a pool a thread", "own_pools"},
                                               {"malloc", "malloc"}}};
constexpr std::size_t shared_count = 4;  // the first ones are pools that all threads share

struct row {
  unsigned threads = 0;
  std::array<figure, names.size()> took{};
  std::array<holdings, shared_count> held{};
};

template <class Source>
void measure_new(unsigned threads, std::uint64_t pairs, std::size_t which, row& found) {
  Source source(threads);
  measure(source, threads, pairs, found.took[which]);
  if constexpr (requires { source.held(); }) {
    const holdings now = source.held();
    holdings& worst = found.held[which];
    worst.held_over_live = std::max(worst.held_over_live, now.held_over_live);
    worst.front_count = std::max(worst.front_count, now.front_count);
  }
}

row measure_all(unsigned threads, std::uint64_t events, std::uint64_t rounds) {
  const std::uint64_t pairs = std::max<std::uint64_t>(1, events / 2 / threads);
  row found{threads};
  for (std::uint64_t round = 0; round < rounds; ++round) {
    measure_new<with_fronts>(threads, pairs, 0, found);
    measure_new<without_fronts>(threads, pairs, 1, found);
    measure_new<always_fronts>(threads, pairs, 2, found);
    measure_new<asking>(threads, pairs, 3, found);
    measure_new<own_pools>(threads, pairs, 4, found);
    measure_new<c_library>(threads, pairs, 5, found);
  }
  return found;
}

void print_table(const std::vector<row>& rows) {
  std::printf("%u hardware threads\n\n| threads ", std::thread::hardware_concurrency());
  for (const contender_name& name : names) std::printf("| %s, ns | CPU | speed-up ", name.shown);
  std::printf("|\n| ---: ");
  for (std::size_t i = 0; i < 3 * names.size(); ++i) std::printf("| ---: ");
  std::printf("|\n");
  for (const row& each : rows) {
    std::printf("| %u ", each.threads);
    for (std::size_t i = 0; i < names.size(); ++i) {
      const figure& now = each.took[i];
      const double first_ns = rows.front().took[i].wall_ns;
      std::printf("| %.1f | %.1f | %.2f ", now.wall_ns, now.cpu_ns, first_ns / now.wall_ns);
    }
    std::printf("|\n");
  }
  std::printf("\n| threads ");
  for (std::size_t i = 0; i < shared_count; ++i)
    std::printf("| %s, held over live | arenas ", names[i].shown);
  std::printf("|\n| ---: ");
  for (std::size_t i = 0; i < 2 * shared_count; ++i) std::printf("| ---: ");
  std::printf("|\n");
  for (const row& each : rows) {
    std::printf("| %u ", each.threads);
    for (const holdings& held : each.held)
      std::printf("| %.3f | %llu ", held.held_over_live,
                  static_cast<unsigned long long>(held.front_count));
    std::printf("|\n");
  }
}

void print_json(const std::vector<row>& rows) {
  std::printf("{\"hardware_threads\": %u, \"rows\": [", std::thread::hardware_concurrency());
  for (const row& each : rows) {
    std::printf("%s{\"threads\": %u", &each == &rows.front() ? "" : ", ", each.threads);
    for (std::size_t i = 0; i < names.size(); ++i) {
      std::printf(", \"%s_ns\": %.2f, \"%s_cpu_ns\": %.2f", names[i].key, each.took[i].wall_ns,
                  names[i].key, each.took[i].cpu_ns);
    }
    for (std::size_t i = 0; i < shared_count; ++i) {
      std::printf(", \"%s_held_over_live\": %.4f, \"%s_fronts\": %llu", names[i].key,
                  each.held[i].held_over_live, names[i].key,
                  static_cast<unsigned long long>(each.held[i].front_count));
    }
    std::printf("}");
  }
  std::printf("]}\n");
}

constexpr const char* usage =
    "usage: bench_threads [--json] [--events N] [--rounds N]\n"
    "N is a whole number from 1 on (2000000 events, 7 rounds otherwise).\n";

}  // namespace

int main(int argc, char** argv) {
  const auto [json, events, rounds] =
      read_churn_words(argc, argv, usage, {.events = 2'000'000, .rounds = 7});
  std::vector<row> rows;
  for (const unsigned threads : thread_counts) rows.push_back(measure_all(threads, events, rounds));
  json ? print_json(rows) : print_table(rows);
  return 0;
}

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// What an allocation or a free costs when 1 to 16 threads make them at once, each on its own
// stream: on one stream pool that all share, on a pool for each thread, and on the C library's
// malloc. The driver is the fake one; when warm the pool does not call it.
//
// What the threads do is in churn.hpp. "ns" is wall time over the events of all threads, "CPU" the
// processor time that they took; "speed-up" is how many times the events of one thread are served
// in that time. The best of the rounds, in which the three take turns. --json prints one object;
// --events N sets the events of all threads.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>
#include <vector>

#include "../tools/program/usage.hpp"
#include "churn.hpp"

import vmm.fake;
import vmm.stream;

namespace {

constexpr int rounds = 7;

using pool = vmm::stream_pool;

// A pool and streams on it: for all threads, or for one.
class pool_source {
 public:
  explicit pool_source(unsigned streams)
      : managed_(std::make_unique<pool>(driver_, vmm::pool_options::from_environment({}).value())) {
    for (unsigned i = 0; i < streams; ++i) streams_.push_back(must(driver_.create_stream()));
  }
  [[nodiscard]] void* take(std::uint64_t size_bytes, unsigned stream) {
    const vmm::address at = must(managed_->allocate(size_bytes, streams_[stream]));
    return at.as<void>();
  }
  void give(void* at, unsigned stream) {
    must(managed_->free(vmm::address::from_native(at), streams_[stream]));
  }

 private:
  vmm::fake_driver driver_;
  std::unique_ptr<pool> managed_;
  std::vector<vmm::stream_handle> streams_;
};

class shared_pool {
 public:
  static constexpr const char* name = "one pool";
  explicit shared_pool(unsigned threads) : all_(threads) {}
  [[nodiscard]] void* take(std::uint64_t size_bytes, unsigned thread) {
    return all_.take(size_bytes, thread);
  }
  void give(void* at, unsigned thread) { all_.give(at, thread); }

 private:
  pool_source all_;
};

class own_pools {
 public:
  static constexpr const char* name = "a pool a thread";
  explicit own_pools(unsigned threads) {
    for (unsigned i = 0; i < threads; ++i) each_.push_back(std::make_unique<pool_source>(1));
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
  static constexpr const char* name = "malloc";
  explicit c_library(unsigned) {}
  [[nodiscard]] void* take(std::uint64_t size_bytes, unsigned) {
    void* const at = std::malloc(size_bytes);
    if (at == nullptr) stop("malloc has no memory");
    *static_cast<volatile char*>(at) = 0;  // so that the pair is not taken out
    return at;
  }
  void give(void* at, unsigned) { std::free(at); }
};

struct row {
  unsigned threads = 0;
  figure shared{};
  figure own{};
  figure by_library{};
};

template <class Source>
void measure_new(unsigned threads, std::uint64_t pairs, figure& best) {
  Source source(threads);
  measure(source, threads, pairs, best);
}

row measure_all(unsigned threads, std::uint64_t events) {
  const std::uint64_t pairs = std::max<std::uint64_t>(1, events / 2 / threads);
  row found{threads};
  for (int round = 0; round < rounds; ++round) {
    measure_new<shared_pool>(threads, pairs, found.shared);
    measure_new<own_pools>(threads, pairs, found.own);
    measure_new<c_library>(threads, pairs, found.by_library);
  }
  return found;
}

void print_table(const std::vector<row>& rows) {
  std::printf("%u hardware threads\n\n", std::thread::hardware_concurrency());
  std::printf("| threads ");
  for (const char* name : {shared_pool::name, own_pools::name, c_library::name})
    std::printf("| %s, ns | CPU | speed-up ", name);
  std::printf("|\n| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n");
  for (const row& each : rows) {
    const row& one = rows.front();
    std::printf("| %u ", each.threads);
    const auto print = [](const figure& now, const figure& first) {
      std::printf("| %.1f | %.1f | %.2f ", now.wall_ns, now.cpu_ns, first.wall_ns / now.wall_ns);
    };
    print(each.shared, one.shared);
    print(each.own, one.own);
    print(each.by_library, one.by_library);
    std::printf("|\n");
  }
}

void print_json(const std::vector<row>& rows) {
  std::printf("{\"hardware_threads\": %u, \"rows\": [", std::thread::hardware_concurrency());
  const auto print = [](const char* name, const figure& taken) {
    std::printf(", \"%s_ns\": %.2f, \"%s_cpu_ns\": %.2f", name, taken.wall_ns, name, taken.cpu_ns);
  };
  for (const row& each : rows) {
    std::printf("%s{\"threads\": %u", &each == &rows.front() ? "" : ", ", each.threads);
    print("one_pool", each.shared);
    print("own_pools", each.own);
    print("malloc", each.by_library);
    std::printf("}");
  }
  std::printf("]}\n");
}

constexpr const char* usage =
    "usage: bench_threads [--json] [--events N]\n"
    "N is a whole number from 1 on (2000000 otherwise).\n";

}  // namespace

int main(int argc, char** argv) {
  vmm::tools::answer_help(argc, argv, usage);
  bool json = false;
  std::uint64_t events = 2'000'000;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--json") {
      json = true;
      continue;
    }
    const auto count = word == "--events" && i + 1 < argc ? vmm::tools::read_count(argv[++i], 1)
                                                          : std::optional<std::uint64_t>{};
    if (!count) {
      std::fputs(usage, stderr);
      return 2;
    }
    events = *count;
  }
  std::vector<row> rows;
  for (const unsigned threads : thread_counts) rows.push_back(measure_all(threads, events));
  json ? print_json(rows) : print_table(rows);
  return 0;
}

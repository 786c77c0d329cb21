// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// What an allocation or a free costs when several threads make them at once. Each thread keeps a
// fixed number of blocks live and replaces one after the other, in an order and with sizes (512
// bytes to 64 KiB, as many in each doubling) that its own generator draws. An event is one
// allocation or one free. The last include of a file, as must.hpp is.
#pragma once

#include <barrier>

#include "report.hpp"

inline constexpr std::array<unsigned, 5> thread_counts{1, 2, 4, 8, 16};
inline constexpr std::size_t live_count = 256;

/// The options of a benchmark of threads.
struct churn_words {
  bool json = false;
  std::uint64_t events = 0;
  std::uint64_t rounds = 0;
};

inline churn_words read_churn_words(int argc, char** argv, const char* usage, churn_words words) {
  option_list(usage)
      .flag("--json", words.json)
      .count("--events", words.events)
      .count("--rounds", words.rounds)
      .read(argc, argv);
  return words;
}

class generator {
 public:
  explicit generator(std::uint64_t seed) : state_(seed * 2 + 1) {}
  [[nodiscard]] std::uint32_t next() {
    state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<std::uint32_t>(state_ >> 33);
  }
  [[nodiscard]] std::uint64_t size_bytes() {
    const std::uint64_t base = 512ULL << (next() % 7);
    return base + next() % base;
  }

 private:
  std::uint64_t state_;
};

template <class Source>
void churn(Source& source, unsigned thread, std::uint64_t pairs, std::vector<void*>& live,
           generator& random) {
  for (std::uint64_t i = 0; i < pairs; ++i) {
    void*& slot = live[random.next() % live_count];
    source.give(slot, thread);
    slot = source.take(random.size_bytes(), thread);
  }
}

/// Nanoseconds an event, over the events of all threads.
struct figure {
  double wall_ns = std::numeric_limits<double>::infinity();
  double cpu_ns = std::numeric_limits<double>::infinity();
};

/// When a thread's part began and ended, and the processor time that it took.
struct span_of_time {
  std::chrono::steady_clock::time_point begin{};
  std::chrono::steady_clock::time_point end{};
  double cpu_ns = 0;
};

/// Lets `threads` threads, each after a warm-up of a quarter as much, replace `pairs` blocks at
/// once, and lowers `best` where that took less. A source has take and give and, where a thread has
/// to be made ready for it, begin_thread. The threads look at the clock themselves: on a machine
/// with fewer processors, a thread that waits for them may wake when they are done. A source that
/// has look() is looked at when all are done and nothing has been given back.
template <class Source>
void measure(Source& source, unsigned threads, std::uint64_t pairs, figure& best) {
  std::barrier ready(threads);
  std::vector<span_of_time> parts(threads);
  std::vector<std::thread> running;
  for (unsigned thread = 0; thread < threads; ++thread) {
    running.emplace_back([&, thread] {
      if constexpr (requires { source.begin_thread(); }) source.begin_thread();
      generator random(thread + 1);
      std::vector<void*> live(live_count);
      for (void*& slot : live) slot = source.take(random.size_bytes(), thread);
      churn(source, thread, pairs / 4, live, random);  // warm
      ready.arrive_and_wait();
      span_of_time& part = parts[thread];
      part.begin = std::chrono::steady_clock::now();
      const double cpu_begin = cpu_ns();
      churn(source, thread, pairs, live, random);
      part.cpu_ns = cpu_ns() - cpu_begin;
      part.end = std::chrono::steady_clock::now();
      ready.arrive_and_wait();
      if constexpr (requires { source.look(); }) {
        if (thread == 0) source.look();
        ready.arrive_and_wait();
      }
      for (void* slot : live) source.give(slot, thread);
    });
  }
  for (std::thread& each : running) each.join();
  span_of_time whole = parts.front();
  double cpu_ns = 0;
  for (const span_of_time& each : parts) {
    whole.begin = std::min(whole.begin, each.begin);
    whole.end = std::max(whole.end, each.end);
    cpu_ns += each.cpu_ns;
  }
  const double events = 2.0 * static_cast<double>(pairs) * threads;
  const std::chrono::duration<double, std::nano> taken = whole.end - whole.begin;
  if (cpu_ns > 1.05 * threads * taken.count()) stop("more processor time was taken than there was");
  best.wall_ns = std::min(best.wall_ns, taken.count() / events);
  best.cpu_ns = std::min(best.cpu_ns, cpu_ns / events);
}

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The long proof of the pool: many random schedules, each a program of some 90 operations on four
// streams with faults among them, beside the naive model of program.hpp, on a fake driver whose
// work finishes in any order that streams and events allow. A schedule is its seed: what
// fails is named by it and run again alone. Every call that a program can make is among the
// operations: program.hpp lists them. Usage: prove_schedules [COUNT] [--first SEED] [--threads N].
#include <condition_variable>

#include "../../tools/program/options.hpp"
#include "program.hpp"

namespace {

constexpr std::uint64_t validate_every = 32;  // operations; and at the end of each schedule
constexpr std::chrono::seconds report_every{5};

struct wishes {
  std::uint64_t count = 1'000'000;
  std::uint64_t first = 1;
  std::uint64_t threads = std::max(std::thread::hardware_concurrency(), 1u);
};

/// What all threads have done so far, and the first schedule that went wrong.
struct progress {
  std::atomic<std::uint64_t> next = 0;  // schedules given to a thread
  std::atomic<std::uint64_t> schedules = 0;
  std::atomic<std::uint64_t> operations = 0;
  std::atomic<std::uint64_t> refused = 0;
  std::atomic<std::uint64_t> faults = 0;
  std::atomic<bool> is_wrong = false;
  std::mutex guard;
  std::condition_variable changed;
  std::uint64_t running_count = 0;
  stream_program::totals done;  // under guard
  std::uint64_t wrong_seed = 0;
  std::string wrong;

  void fail(std::uint64_t seed, std::string what) {
    const std::lock_guard<std::mutex> lock(guard);
    if (is_wrong.exchange(true)) return;
    wrong_seed = seed;
    wrong = std::move(what);
  }
};

void run_some(const wishes& wish, progress& done) {
  stream_program::totals own;
  for (;;) {
    const std::uint64_t nth = done.next.fetch_add(1);
    if (nth >= wish.count || done.is_wrong) break;
    const std::uint64_t seed = wish.first + nth;
    const std::vector<std::uint8_t> bytes = random_program(seed);
    stream_program program{byte_source{bytes}};
    constexpr std::array rules{vmm::contents_rule::zero_on_acquire,
                               vmm::contents_rule::zero_on_release, vmm::contents_rule::poison};
    stream_program::limits within{.validate_every = validate_every};
    if (seed % 8 < rules.size()) within.contents = rules[seed % 8];
    within.rights = seed % 8 == rules.size();
    const char* const wrong = program.run(within);
    if (wrong != nullptr) done.fail(seed, std::string(wrong) + ": " + program.detail());
    done.operations += program.operations();
    done.refused += program.failures();
    done.faults += program.faults();
    own.add(program.done());
    ++done.schedules;
  }
  const std::lock_guard<std::mutex> lock(done.guard);
  done.done.add(own);
  --done.running_count;
  done.changed.notify_one();
}

[[nodiscard]] std::optional<wishes> read(int argc, char** argv) {
  wishes wish;
  std::vector<std::string> words;
  const std::string why = option_list("")
                              .number("--first", wish.first, "", 1)
                              .number("--threads", wish.threads, "", 1)
                              .words(words)
                              .parse(argc, argv);
  if (!why.empty() || words.size() > 1) return std::nullopt;
  if (!words.empty()) wish.count = vmm::tools::read_count(words.front(), 1).value_or(0);
  return wish.count != 0 ? std::optional(wish) : std::nullopt;
}

[[nodiscard]] double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void run_all(const wishes& wish, progress& done, std::chrono::steady_clock::time_point start) {
  std::vector<std::thread> threads;
  done.running_count = wish.threads;
  for (std::uint64_t i = 0; i < wish.threads; ++i)
    threads.emplace_back(run_some, std::cref(wish), std::ref(done));
  std::unique_lock<std::mutex> lock(done.guard);
  while (!done.changed.wait_for(lock, report_every, [&] { return done.running_count == 0; })) {
    const double seconds = seconds_since(start);
    const std::uint64_t count = done.schedules;
    std::fprintf(stderr, "%llu of %llu schedules, %.0f s, %.0f schedules/s\n",
                 static_cast<unsigned long long>(count),
                 static_cast<unsigned long long>(wish.count), seconds,
                 static_cast<double>(count) / seconds);
  }
  lock.unlock();
  for (std::thread& each : threads) each.join();
}

constexpr const char* usage =
    "usage: prove_schedules [COUNT] [--first SEED] [--threads N]; numbers from 1 on\n";

}  // namespace

int main(int argc, char** argv) {
  vmm::tools::answer_help(argc, argv, usage);
  const std::optional<wishes> wish = read(argc, argv);
  if (!wish) {
    std::fputs(usage, stderr);
    return 2;
  }
  progress done;
  const auto start = std::chrono::steady_clock::now();
  run_all(*wish, done, start);
  const double seconds = seconds_since(start);
  if (done.is_wrong) {
    std::printf("schedule %llu: %s\nto run it alone: ./run prove 1 --first %llu\n",
                static_cast<unsigned long long>(done.wrong_seed), done.wrong.c_str(),
                static_cast<unsigned long long>(done.wrong_seed));
    return 1;
  }
  std::printf(
      "%llu schedules, %llu operations, %llu of them refused, %llu faults injected, 0 hazards, "
      "%.1f s (%.0f schedules/s on %llu threads)\n",
      static_cast<unsigned long long>(done.schedules.load()),
      static_cast<unsigned long long>(done.operations.load()),
      static_cast<unsigned long long>(done.refused.load()),
      static_cast<unsigned long long>(done.faults.load()), seconds,
      static_cast<double>(done.schedules.load()) / seconds,
      static_cast<unsigned long long>(wish->threads));
  const stream_program::totals& all = done.done;
  const auto wide = [](std::uint64_t value) { return static_cast<unsigned long long>(value); };
  std::printf(
      "among them %llu frees after everything, %llu requests prepared, %llu suspensions and "
      "resumptions, %llu histories, %llu captured graphs; %llu streams ended with an arena\n",
      wide(all.unordered), wide(all.prepared), wide(all.suspended), wide(all.histories),
      wide(all.graphs), wide(all.arenas));
  return 0;
}

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The word busy: what each call of the driver takes beside kernels, beside a thread that launches
// and copies, and beside both with the caller's caches thrown out before each call; over what it
// takes alone, in turns in one run. The factors are the table of fake::profile::busy_cuda().

#include "program.hpp"

import vmm.backend;
import vmm.cuda;
import vmm.fidelity;
import vmm.kernels;

namespace fidelity {
namespace {

using vmm::fidelity::mib;

enum beside : std::size_t { nothing, kernels, a_thread, both, beside_count };
constexpr std::array<const char*, beside_count> beside_names{"alone", "kernels", "thread",
                                                             "both, caches thrown out"};

enum timed_call : std::size_t {
  reserve,
  create,
  map,
  set_access,
  record_event,
  query_event,
  unmap,
  release,
  free_reservation,
  call_count
};
constexpr std::array<const char*, call_count> call_names{
    "reserve",     "create", "map",     "set_access",      "record_event",
    "query_event", "unmap",  "release", "free_reservation"};

constexpr std::array<std::uint64_t, 4> handle_mib{2, 16, 64, 256};
constexpr std::uint64_t default_rounds = 12;
constexpr int cycles_in_a_turn = 12;
constexpr int kernels_in_a_turn = 150;
constexpr std::uint64_t kernel_ns = 1'000'000;
constexpr std::size_t thrown_bytes = std::size_t{8} << 20;

using vmm::fidelity::scratch;

/// Two arrays of the device and a stream that kernels copy between them on.
struct load {
  load(vmm::cuda_driver& device, vmm::tools::kernel_set& set, scratch& with)
      : driver(device),
        work(set),
        source(with.mapped(1)),
        target(with.mapped(1)),
        stream(with.stream()) {}

  void copy_by_kernel() { must(work.copy({target.base, source.base, source.size_bytes, stream})); }

  vmm::cuda_driver& driver;
  vmm::tools::kernel_set& work;
  vmm::address_range source;
  vmm::address_range target;
  vmm::stream_handle stream;
};

/// A thread that launches kernels and copies as fast as it can, for its life.
class busy_thread {
 public:
  explicit busy_thread(load& what) : what_(what), thread_([this] { run(); }) {}
  ~busy_thread() {
    stop_.store(true);
    thread_.join();
  }
  busy_thread(const busy_thread&) = delete;
  busy_thread& operator=(const busy_thread&) = delete;

  void wait_until_it_runs() const {
    while (launched_.load() < 64) std::this_thread::yield();
  }

 private:
  void run() {
    for (std::uint64_t i = 1; !stop_.load(std::memory_order_relaxed); ++i) {
      must(what_.work.spin(5'000, what_.stream));
      what_.copy_by_kernel();
      must(what_.driver.copy(
          {what_.target.base, what_.source.base, what_.source.size_bytes, what_.stream}));
      if (i % 32 == 0) must(what_.driver.synchronize_stream(what_.stream));
      launched_.store(i, std::memory_order_relaxed);
    }
    must(what_.driver.synchronize_stream(what_.stream));
  }

  load& what_;
  std::atomic<bool> stop_ = false;
  std::atomic<std::uint64_t> launched_ = 0;
  std::thread thread_;
};

using samples =
    std::array<std::array<std::array<std::vector<double>, call_count>, handle_mib.size()>,
               beside_count>;

/// The calls of one handle's life, each timed.
class meter {
 public:
  meter(vmm::cuda_driver& device, scratch& with)
      : driver_(device), stream_(with.stream()), event_(with.event()), thrown_(thrown_bytes) {}

  void cycle(std::uint64_t size_bytes, bool throws_out,
             std::array<std::vector<double>, call_count>& into) {
    const auto timed = [&](timed_call which, auto&& work) {
      if (throws_out) throw_out();
      const auto begun = std::chrono::steady_clock::now();
      auto answer = work();
      const std::chrono::duration<double, std::micro> taken =
          std::chrono::steady_clock::now() - begun;
      into[which].push_back(taken.count());
      return answer;
    };
    const vmm::access_grant all[] = {{driver_.home(), vmm::access::read_write}};
    const auto room = must(timed(reserve, [&] { return driver_.reserve({size_bytes, 0, {}}); }));
    const auto made =
        must(timed(create, [&] { return driver_.create({size_bytes, driver_.home()}); }));
    must(timed(map, [&] { return driver_.map({room.base, size_bytes, made, 0}); }));
    must(timed(set_access, [&] { return driver_.set_access(room, all); }));
    must(timed(record_event, [&] { return driver_.record_event(event_, stream_); }));
    must(timed(query_event, [&] { return driver_.query_event(event_); }));
    must(timed(unmap, [&] { return driver_.unmap(room); }));
    must(timed(release, [&] { return driver_.release(made); }));
    must(timed(free_reservation, [&] { return driver_.free_reservation(room); }));
  }

 private:
  void throw_out() {
    for (std::size_t at = 0; at < thrown_.size(); at += 64) ++thrown_[at];
  }

  vmm::cuda_driver& driver_;
  vmm::stream_handle stream_;
  vmm::event_handle event_;
  std::vector<unsigned char> thrown_;
};

/// Queues kernels for longer than a turn takes; afterwards says whether it did, and waits.
class queued_kernels {
 public:
  queued_kernels(load& what, vmm::event_handle done) : what_(what), done_(done) {
    for (int i = 0; i < kernels_in_a_turn; ++i) {
      must(what_.work.spin(kernel_ns, what_.stream));
      what_.copy_by_kernel();
    }
    must(what_.driver.record_event(done_, what_.stream));
  }
  [[nodiscard]] bool still_run() { return !must(what_.driver.query_event(done_)); }
  void wait() { must(what_.driver.synchronize_stream(what_.stream)); }

 private:
  load& what_;
  vmm::event_handle done_;
};

struct measured {
  samples us{};
  int turns_with_kernels = 0;
  int turns_they_outlasted = 0;
};

measured measure(vmm::cuda_driver& device, std::uint64_t rounds) {
  measured out;
  auto set = must(vmm::tools::kernel_set::load(device));
  scratch with(device);
  load queue(device, set, with);
  load thread(device, set, with);
  meter calls(device, with);
  const vmm::event_handle done = with.event();
  for (std::uint64_t round = 0; round < rounds; ++round) {
    for (std::size_t state = 0; state < beside_count; ++state) {
      std::unique_ptr<busy_thread> beside_it;
      if (state >= a_thread) beside_it = std::make_unique<busy_thread>(thread);
      if (beside_it != nullptr) beside_it->wait_until_it_runs();
      for (std::size_t size = 0; size < handle_mib.size(); ++size) {
        std::unique_ptr<queued_kernels> running;
        if (state == kernels || state == both)
          running = std::make_unique<queued_kernels>(queue, done);
        for (int i = 0; i < cycles_in_a_turn; ++i)
          calls.cycle(handle_mib[size] * mib, state == both, out.us[state][size]);
        if (running == nullptr) continue;
        ++out.turns_with_kernels;
        if (running->still_run()) ++out.turns_they_outlasted;
        running->wait();
      }
    }
  }
  return out;
}

double at_share(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  const auto place = static_cast<std::size_t>(static_cast<double>(values.size() - 1) * share);
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(place),
                   values.end());
  return values[place];
}

table rows_of(const samples& us) {
  table rows{{"call", "handle"}};
  for (const char* name : beside_names) rows[0].push_back(std::string(name) + ", us: median, 90 %");
  for (std::size_t state = kernels; state < beside_count; ++state)
    rows[0].push_back(std::string(beside_names[state]) + " / alone");
  for (std::size_t call = 0; call < call_count; ++call) {
    for (std::size_t size = 0; size < handle_mib.size(); ++size) {
      const double alone = at_share(us[nothing][size][call], 0.5);
      rows.push_back({call_names[call], std::to_string(handle_mib[size]) + " MiB"});
      for (std::size_t state = 0; state < beside_count; ++state)
        rows.back().push_back(fixed(at_share(us[state][size][call], 0.5), 2) + ", " +
                              fixed(at_share(us[state][size][call], 0.9), 2));
      for (std::size_t state = kernels; state < beside_count; ++state)
        rows.back().push_back(
            fixed(alone > 0 ? at_share(us[state][size][call], 0.5) / alone : 0, 2));
    }
  }
  return rows;
}

// The geometric mean over the sizes, of the medians.
std::string factors_of(const samples& us) {
  std::string text;
  for (std::size_t call = 0; call < call_count; ++call) {
    double sum = 0;
    for (std::size_t size = 0; size < handle_mib.size(); ++size) {
      const double alone = at_share(us[nothing][size][call], 0.5);
      const double busy = at_share(us[both][size][call], 0.5);
      if (alone > 0 && busy > 0) sum += std::log(busy / alone);
    }
    text += std::string(text.empty() ? "" : ", ") + call_names[call] + " " +
            fixed(std::exp(sum / static_cast<double>(handle_mib.size())), 2);
  }
  return text;
}

}  // namespace

int run_busy(const settings& how) {
  vmm::cuda_driver device = open_device(how);
  const std::uint64_t rounds = how.count == 0 ? default_rounds : how.count;
  const measured found = measure(device, rounds);
  const std::string factors = factors_of(found.us);
  const std::string words =
      "Host time of single calls: alone; beside kernels of 1 ms in a row on another stream; "
      "beside a thread that launches kernels of 5 us and copies 2 MiB; beside both, with " +
      std::to_string(thrown_bytes >> 20) + " MiB written before each call. In turns, " +
      std::to_string(rounds) + " rounds of " + std::to_string(cycles_in_a_turn) +
      " handles of each size. In " + std::to_string(found.turns_they_outlasted) + " of " +
      std::to_string(found.turns_with_kernels) +
      " turns with kernels in a row they ran to the end of the turn.\n\nBoth over alone, the "
      "geometric mean over the sizes: " +
      factors + ".\n\nCommand: `vmm-fidelity busy`.";
  const page made{"Driver time beside other work", head_of(device), words, rows_of(found.us)};
  std::fputs(text_of(made).c_str(), stdout);
  publish(how, made);
  return 0;
}

}  // namespace fidelity

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// history_player - a pool that bench_history measures, in a process of its own: it plays a trace on
// command. Built twice: with the library, and with one that has no history in its code.
#include <sys/ptrace.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "history_player.hpp"
#include "report.hpp"

import vmm.fake;
import vmm.observe;
import vmm.stream;

namespace {

using namespace history_player;

constexpr const char* usage =
    "usage: history_player\n"
    "\n"
    "A pool that bench_history starts and measures. Alone it does nothing.\n";

template <class T>
void take(T* into, std::size_t count) {
  if (!read_all(STDIN_FILENO, into, count * sizeof(T))) stop("the orders of bench_history end");
}

class player {
 public:
  player(const head& how, std::vector<step> steps) : steps_(std::move(steps)) {
    vmm::pool_options options = vmm::pool_options::from_environment({}).value();
    if (how.clock_interval != 0) {
      vmm::history_options recording;
      recording.clock_interval = static_cast<std::uint32_t>(how.clock_interval);
      ring_ = must(vmm::history_ring::make(recording));
    }
    options.recorder = ring_.get();
    options.leak_hook.hook = nullptr;
    pool_ = std::make_unique<vmm::stream_pool>(driver_, options);
    slots_.resize(how.slot_count);
  }

  void play() {
    for (const step& each : steps_) {
      vmm::address& slot = slots_[each.slot];
      if (each.size_bytes != 0) {
        slot = must(pool_->allocate(each.size_bytes, stream_));
      } else if (slot) {
        must(pool_->free(std::exchange(slot, {}), stream_));
      }
    }
  }
  [[gnu::noinline]] void take_and_free(std::size_t count) {
    for (std::size_t i = 0; i < count; i += 2) {
      const vmm::address at = must(pool_->allocate(std::uint64_t{1} << 20, stream_));
      must(pool_->free(at, stream_));
    }
  }
  void free_all() {
    for (vmm::address& each : slots_) {
      if (each) must(pool_->free(std::exchange(each, {}), stream_));
    }
  }
  /// Nanoseconds an event.
  double time() {
    const double begin = cpu_ns();
    play();
    const double passed = cpu_ns() - begin;
    free_all();
    return passed / static_cast<double>(steps_.size());
  }
  /// What bench_history counts lies between two stops: of nothing, then of `count` events that find
  /// their memory there.
  void be_counted(std::size_t count) {
    take_and_free(2);
    (void)::raise(SIGSTOP);
    take_and_free(0);
    (void)::raise(SIGSTOP);
    take_and_free(count);
    (void)::raise(SIGSTOP);
  }

 private:
  static constexpr vmm::stream_handle stream_ = vmm::stream_handle::default_stream;
  std::vector<step> steps_;
  std::vector<vmm::address> slots_;
  vmm::fake_driver driver_;
  std::unique_ptr<vmm::history_ring> ring_;
  std::unique_ptr<vmm::stream_pool> pool_;
};

void answer(double value) {
  if (!write_all(STDOUT_FILENO, &value, sizeof(value))) stop("bench_history has ended");
}

}  // namespace

int main(int count, char**) {
  if (count != 1 || ::isatty(STDIN_FILENO) != 0) {
    std::fputs(usage, stderr);
    return 2;
  }
  head how;
  take(&how, 1);
  if (how.step_count == 0) stop("a trace has no events");
  std::vector<step> steps(how.step_count);
  take(steps.data(), steps.size());
  player played(how, std::move(steps));
  // Until each page of a ring has been touched, and the pool has what it needs.
  for (std::uint64_t done = 0; done <= vmm::history_options{}.event_count; done += how.step_count)
    (void)played.time();
  answer(0);
  order now{};
  while (read_all(STDIN_FILENO, &now, sizeof(now))) {
    if (now.count == 0) {
      answer(played.time());
    } else if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) {
      answer(-errno);
    } else {
      answer(1);
      played.be_counted(now.count);
    }
  }
}

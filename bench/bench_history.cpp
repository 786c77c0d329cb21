// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// bench_history - what a history costs an allocation and a free of the stream pool whose memory is
// there. [N1]
//
// Pools that differ in their recorder alone replay a recorded trace on the fake driver in turns:
// none; one whose clock is read at each 32nd event (the default); one that reads it at each event.
// Each has replayed the trace once, unmeasured, and has everything free. A turn is timed in the
// thread's own processor time; what the loop itself costs is in all of them. The figure of a pool
// is
// its median turn; that of a history is the median, over the turns, of the difference to the pool
// without one in the same turn. Two pools have none: the difference between them is the noise. On a
// machine that others use, the fastest turn of each says more: no turn is faster than its work.
#include <time.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../tools/program/usage.hpp"
#include "report.hpp"

import vmm.fake;
import vmm.history;
import vmm.stream;
import vmm.trace;

namespace {

using vmm::tools::event_kind;

constexpr std::string_view usage =
    "usage: bench_history [--turns COUNT] [--trace FILE]\n"
    "\n"
    "What a history costs an event, in nanoseconds.\n"
    "  --turns COUNT  how often each pool replays the trace (default: 25)\n"
    "  --trace FILE   the trace (default: beam_kv, from traces/)\n";

double cpu_ns() {
  timespec now{};
  (void)::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

class subject {
 public:
  subject(std::string name, std::uint32_t clock_interval) : name_(std::move(name)) {
    vmm::pool_options options = vmm::pool_options::from_environment({}).value();
    if (clock_interval != 0) {
      vmm::history_options how;
      how.clock_interval = clock_interval;
      ring_ = must(vmm::history_ring::make(how));
    }
    options.recorder = ring_.get();
    options.at_end.hook = nullptr;
    pool_ = std::make_unique<vmm::stream_pool>(driver_, options);
  }
  [[nodiscard]] const std::string& name() const { return name_; }

  /// Nanoseconds an event.
  double replay(const vmm::tools::trace& input, std::vector<vmm::address>& slots) {
    const double begin = cpu_ns();
    for (const vmm::tools::event& each : input.events) step(each, slots[each.slot]);
    const double passed = cpu_ns() - begin;
    for (vmm::address& each : slots) {
      if (each) must(pool_->free(std::exchange(each, {}), stream_));
    }
    return passed / static_cast<double>(input.events.size());
  }

 private:
  [[gnu::always_inline]] void step(const vmm::tools::event& each, vmm::address& slot) {
    if (each.kind == event_kind::allocate) {
      slot = must(pool_->allocate(each.size_bytes, stream_));
    } else if (slot) {
      must(pool_->free(std::exchange(slot, {}), stream_));
    }
  }

  static constexpr vmm::stream_handle stream_ = vmm::stream_handle::default_stream;
  std::string name_;
  vmm::fake_driver driver_;
  std::unique_ptr<vmm::history_ring> ring_;
  std::unique_ptr<vmm::stream_pool> pool_;
};

void run(const vmm::tools::trace& input, unsigned turns) {
  std::vector<std::unique_ptr<subject>> subjects;
  subjects.push_back(std::make_unique<subject>("no history", 0));
  subjects.push_back(std::make_unique<subject>("no history, again", 0));
  subjects.push_back(std::make_unique<subject>("a history", 32));
  subjects.push_back(std::make_unique<subject>("every event's time", 1));
  std::vector<vmm::address> slots(input.slot_count);
  std::vector<std::vector<double>> taken(subjects.size());
  std::vector<std::vector<double>> more(subjects.size());
  for (const auto& each : subjects) (void)each->replay(input, slots);
  for (unsigned turn = 0; turn < turns; ++turn) {
    std::vector<double> now(subjects.size());
    for (std::size_t i = 0; i < subjects.size(); ++i) {
      const std::size_t which = (i + turn) % subjects.size();
      now[which] = subjects[which]->replay(input, slots);
    }
    for (std::size_t i = 0; i < subjects.size(); ++i) {
      taken[i].push_back(now[i]);
      more[i].push_back(now[i] - now[0]);
    }
  }
  std::printf("%s, %zu events, %u turns\n\n%-22s %12s %12s %14s %12s\n", input.name.c_str(),
              input.events.size(), turns, "pool with", "ns an event", "of history", "fastest turn",
              "of history");
  const auto fastest = [&](std::size_t i) {
    return *std::min_element(taken[i].begin(), taken[i].end());
  };
  for (std::size_t i = 0; i < subjects.size(); ++i) {
    std::printf("%-22s %12.1f %12.1f %14.1f %12.1f\n", subjects[i]->name().c_str(),
                median(taken[i]), median(more[i]), fastest(i), fastest(i) - fastest(0));
  }
}

}  // namespace

int main(int count, char** words) {
  vmm::tools::answer_help(count, words, usage.data());
  unsigned turns = 25;
  std::string path = std::string(VMM_TRACES) + "/beam_kv.trace.gz";
  for (int i = 1; i < count; i += 2) {
    const std::string_view word = words[i];
    if ((word != "--turns" && word != "--trace") || i + 1 == count)
      stop("there is no option '" + std::string(word) + "', or its value is missing");
    if (word == "--turns") turns = count_of(words[i + 1]);
    if (word == "--trace") path = words[i + 1];
  }
  vmm::tools::read_outcome read = vmm::tools::read_trace(path);
  if (!read) stop(vmm::tools::describe(read.trouble));
  run(*read.value, turns);
}

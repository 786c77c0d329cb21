// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// bench_pool: recorded traces through the stream-ordered pool and through other allocators on a
// CUDA device, in one process and interleaved: vmm's pool, cuMemAllocAsync, and what a library of
// peers (bench/peers/peer.h) brings. Each round takes every allocator from nothing through the
// trace once and then through some warm passes. No kernel runs: times are the host's. A shared host
// changes its speed by up to two within a minute, so ratios are taken within a round, which lasts a
// few seconds, and the median of the rounds is told.
//
// A pause after each leaves the device time to clear what was given back, so that nobody pays for
// the one before.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "../tools/program/usage.hpp"
#include "contenders.hpp"
#include "device.hpp"
#include "report.hpp"

import vmm.cuda;
import vmm.replay;
import vmm.stream;
import vmm.trace;

namespace {

constexpr auto pause = std::chrono::milliseconds(150);

struct settings : report_words {
  std::vector<std::string> traces;
  std::string peers;  // a library
  unsigned round_count = 9;
  unsigned warm_count = 4;
};

// ---- measuring ----------------------------------------------------------------------------------

/// What replayer drives.
class subject {
 public:
  subject(contender& who, const std::vector<vmm::stream_handle>& streams)
      : who_(who), streams_(streams) {}
  [[nodiscard]] vmm::result<vmm::address> allocate(const vmm::tools::replay_request& request) {
    return who_.allocate(request.size_bytes, streams_[request.stream]);
  }
  [[nodiscard]] vmm::status free(vmm::address at, std::uint16_t stream) {
    return who_.free(at, streams_[stream]);
  }
  [[nodiscard]] vmm::status free(vmm::address at) { return free(at, 0); }
  [[nodiscard]] std::uint64_t held_bytes() const { return 0; }

 private:
  contender& who_;
  const std::vector<vmm::stream_handle>& streams_;
};

struct figures {
  std::vector<double> first_ms{};  // a pass from nothing, by round
  std::vector<double> warm_ns{};   // an event of a round's warm passes: their median, by round
  double best_warm_ns = std::numeric_limits<double>::infinity();  // of a single pass
  std::uint64_t reserved_bytes = 0;
  std::uint64_t device_bytes = 0;  // by which the device's free memory fell in the first pass
};

/// The median of what `one` is of `other`, each value beside the other's of the same round.
double median_ratio(const std::vector<double>& one, const std::vector<double>& other) {
  std::vector<double> ratios(one.size());
  std::transform(one.begin(), one.end(), other.begin(), ratios.begin(), std::divides<>());
  return median(std::move(ratios));
}

struct entrant {
  std::unique_ptr<contender> who;
  bool on_created_stream = false;  // and the trace's stream 0 is not the default one
};

class bench {
 public:
  bench(vmm::cuda_driver& driver, const settings& how) : driver_(driver), how_(how) {}

  /// The first that is added is the one that the others' times are told in.
  void add(std::unique_ptr<contender> who, bool on_created_stream = false) {
    all_.push_back({std::move(who), on_created_stream});
  }

  [[nodiscard]] std::vector<figures> run(const vmm::tools::trace& input) {
    open_streams(input);
    std::vector<figures> out(all_.size());
    for (unsigned round = 0; round < how_.round_count; ++round) {
      for (std::size_t i = 0; i < all_.size(); ++i) take(all_[i], input, out[i]);
    }
    for (std::size_t i = 1; i < streams_.size(); ++i) must(driver_.destroy_stream(streams_[i]));
    must(driver_.destroy_stream(created_));
    return out;
  }
  [[nodiscard]] const std::vector<entrant>& all() const { return all_; }

 private:
  void open_streams(const vmm::tools::trace& input) {
    std::uint16_t last = 0;
    for (const vmm::tools::event& each : input.events) last = std::max(last, each.stream);
    streams_.assign(std::size_t{last} + 1, vmm::stream_handle::default_stream);
    for (std::size_t i = 1; i < streams_.size(); ++i) streams_[i] = must(driver_.create_stream());
    created_ = must(driver_.create_stream());
  }

  [[nodiscard]] std::uint64_t free_bytes() {
    return must(driver_.query_memory(driver_.home())).free_bytes;
  }

  void take(const entrant& each, const vmm::tools::trace& input, figures& into) {
    contender& who = *each.who;
    who.open();
    const std::uint64_t free_before = free_bytes();
    std::vector<vmm::stream_handle> streams = streams_;
    if (each.on_created_stream) streams[0] = created_;
    subject under_test{who, streams};
    vmm::tools::replayer player{under_test, input};
    const auto passed = [&](const vmm::tools::timed_pass& pass) {
      if (pass.failures.count != 0)
        stop(who.name() + ": " + vmm::describe(pass.failures.first.why));
      return pass.elapsed_ns;
    };
    into.first_ms.push_back(passed(player.play()) / 1e6);
    const std::uint64_t free_after = free_bytes();
    into.reserved_bytes = std::max(into.reserved_bytes, who.peak_reserved_bytes());
    into.device_bytes =
        std::max(into.device_bytes, free_before - std::min(free_before, free_after));
    (void)player.reset();
    std::vector<double> warm_ns;
    for (unsigned i = 0; i < how_.warm_count; ++i) {
      warm_ns.push_back(passed(player.play()) / static_cast<double>(input.events.size()));
      (void)player.reset();
      into.best_warm_ns = std::min(into.best_warm_ns, warm_ns.back());
    }
    into.warm_ns.push_back(median(std::move(warm_ns)));
    must(driver_.synchronize_stream(streams[0]));
    who.close();
    std::this_thread::sleep_for(pause);
  }

  vmm::cuda_driver& driver_;
  const settings& how_;
  std::vector<entrant> all_;
  std::vector<vmm::stream_handle> streams_;
  vmm::stream_handle created_{};
};

// ---- the table ----------------------------------------------------------------------------------

std::string rows(const vmm::tools::trace& input, const bench& from,
                 const std::vector<figures>& seen) {
  std::string text;
  const auto live = static_cast<double>(input.peak_live_bytes);
  const figures& own = seen.front();
  for (std::size_t i = 0; i < seen.size(); ++i) {
    const figures& f = seen[i];
    const double warm_ns = median(f.warm_ns);
    const double first_ms = median(f.first_ms);
    const double warm_ms = warm_ns * static_cast<double>(input.events.size()) / 1e6;
    text += "| " + input.name + " | " + from.all()[i].who->name() + " | " + number(warm_ns, 1) +
            " | " + number(f.best_warm_ns, 1) + " | " +
            number(median_ratio(f.warm_ns, own.warm_ns), 2) + " | " +
            number(f.best_warm_ns / own.best_warm_ns, 2) + " | " + number(first_ms, 1) + " | " +
            number(first_ms - warm_ms, 1) + " | " +
            number(static_cast<double>(f.reserved_bytes) / live, 3) + " | " +
            number(static_cast<double>(f.device_bytes) / live, 3) + " |\n";
  }
  return text;
}

constexpr const char* table_head =
    "| trace | allocator | warm, ns an event | best | by the pool's | best by its best | from "
    "nothing, ms | of which growth, ms | peak reserved / peak live | device's own / peak live |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n";

page page_of(const settings& how, const vmm::cuda_driver& driver) {
  return {
      .path = how.markdown,
      .title = "Traces through the pool and through other allocators",
      .head = head_of(how.head, driver),
      .about = "Recorded traces, one process, " + std::to_string(how.round_count) +
               " interleaved rounds; each takes an allocator from nothing through the trace and "
               "then " +
               std::to_string(how.warm_count) +
               " times more. Medians; host time; no kernel runs. By the pool's: the median of the "
               "rounds' ratios, since a shared host changes its speed from round to round. A "
               "trace's first stream is the default stream, for all of them, as it was where the "
               "trace was recorded; on a created stream the pool asks the driver at each call "
               "whether it is being captured. Growth is the first pass less a warm one: the "
               "driver's calls, and what an allocator does around them. Reserved is the "
               "allocator's own account; the device's own is by how much its free memory fell over "
               "the first pass. Live bytes are requests rounded up to 512.",
      .command = "scripts/gpu.sh pool"};
}

bool read_settings(int count, char** words, settings& into) {
  for (int i = 1; i < count; ++i) {
    const std::string_view word = words[i];
    if (!word.starts_with("--")) {
      into.traces.emplace_back(word);
      continue;
    }
    if (i + 1 >= count) return false;
    const char* const value = words[++i];
    if (word == "--peers") {
      into.peers = value;
    } else if (word == "--rounds") {
      into.round_count = count_of(value);
    } else if (word == "--warm") {
      into.warm_count = count_of(value);
    } else if (!into.take(word, value)) {
      return false;
    }
  }
  return !into.traces.empty();
}

constexpr const char* usage =
    "usage: bench_pool TRACE... [--peers LIBRARY] [--rounds N] [--warm N] [--markdown FILE] "
    "[--head TEXT]\n";

}  // namespace

int main(int count, char** words) {
  vmm::tools::answer_help(count, words, usage);
  settings how;
  if (!read_settings(count, words, how)) {
    std::fputs(usage, stderr);
    return 2;
  }
  vmm::cuda_driver driver = open_device();
  enter(driver);
  bench all(driver, how);
  all.add(std::make_unique<vmm_pool>("vmm, pool", driver));
  all.add(std::make_unique<vmm_pool>("vmm, pool, on a created stream", driver), true);
  all.add(std::make_unique<driver_pool>(driver));
  if (!how.peers.empty()) {
    for (std::unique_ptr<contender>& each : open_peers(how.peers)) all.add(std::move(each));
  }
  std::string table = table_head;
  for (const std::string& path : how.traces) {
    const vmm::tools::read_outcome input = vmm::tools::read_trace(path);
    if (!input) stop(vmm::tools::describe(input.trouble));
    table += rows(*input.value, all, all.run(*input.value));
  }
  publish(page_of(how, driver), table);
  return 0;
}

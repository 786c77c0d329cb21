// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// bench_pool: recorded traces through the stream-ordered pool and through other allocators on a
// CUDA device, in one process and interleaved: vmm's pool, cuMemAllocAsync, and what a library of
// peers (benchmarks/peers/peer.h) brings. Each round takes every allocator from nothing through the
// trace again and again: forty passes in the first round, five in the others. The peak of memory is
// read behind the last pass, since some allocators hold more with each; time is that of the passes
// but the first. No kernel runs: times are the host's. A shared host changes its speed by up to two
// within a minute, so ratios are taken within a round, and the median of the rounds is reported.
//
// A pause after each leaves the device time to clear released memory, so that no allocator pays for
// the one before.

#include "contenders.hpp"
#include "device.hpp"
#include "report.hpp"
#include "traces.hpp"

import vmm.replay;
import vmm.trace;

namespace {

constexpr auto pause = std::chrono::milliseconds(150);

struct settings : report_words {
  std::vector<std::string> traces;
  std::string peers;  // a library
  std::string csv;    // a file for the rows; empty: none
  unsigned round_count = 3;
  unsigned pass_count = 40;  // of the first round
  unsigned warm_count = 4;   // passes of another round, behind its first
};

// ---- measuring ----------------------------------------------------------------------------------

/// What replayer drives.
class subject {
 public:
  subject(contender& rival, const std::vector<vmm::stream_handle>& streams)
      : rival_(rival), streams_(streams) {}
  [[nodiscard]] vmm::result<vmm::address> allocate(const vmm::tools::replay_request& request) {
    return rival_.allocate(request.size_bytes, streams_[request.stream]);
  }
  [[nodiscard]] vmm::status free(vmm::address at, std::uint16_t stream) {
    return rival_.free(at, streams_[stream]);
  }
  [[nodiscard]] vmm::status free(vmm::address at) { return free(at, 0); }
  [[nodiscard]] std::uint64_t held_bytes() const { return 0; }

 private:
  contender& rival_;
  const std::vector<vmm::stream_handle>& streams_;
};

struct figures {
  std::vector<double> first_ms{};  // a pass from nothing, by round
  std::vector<double> warm_ns{};   // an event of a round's warm passes: their median, by round
  double best_warm_ns = std::numeric_limits<double>::infinity();  // of a single pass
  std::uint64_t first_reserved_bytes = 0;                         // peak of the first pass
  std::uint64_t reserved_bytes = 0;                               // peak of all passes of a round
  std::uint64_t device_bytes = 0;  // by which the device's free memory fell at the end of a pass
};

struct entrant {
  std::unique_ptr<contender> rival;
  bool on_created_stream = false;  // and the trace's stream 0 is not the default one
};

class bench {
 public:
  bench(vmm::cuda_driver& driver, const settings& how) : driver_(driver), how_(how) {}

  /// The first one added is the reference for the others' times.
  void add(std::unique_ptr<contender> rival, bool on_created_stream = false) {
    all_.push_back({std::move(rival), on_created_stream});
  }

  [[nodiscard]] std::vector<figures> run(const vmm::tools::trace& input) {
    open_streams(input);
    std::vector<figures> out(all_.size());
    for (unsigned round = 0; round < how_.round_count; ++round) {
      const unsigned pass_count = round == 0 ? how_.pass_count : how_.warm_count + 1;
      for (std::size_t i = 0; i < all_.size(); ++i) take(all_[i], input, pass_count, out[i]);
    }
    for (std::size_t i = 1; i < streams_.size(); ++i) must(driver_.destroy_stream(streams_[i]));
    must(driver_.destroy_stream(created_));
    return out;
  }
  [[nodiscard]] const std::vector<entrant>& all() const { return all_; }

 private:
  void open_streams(const vmm::tools::trace& input) {
    streams_ = ::open_streams(driver_, input);
    created_ = must(driver_.create_stream());
  }

  [[nodiscard]] std::uint64_t free_bytes() {
    return must(driver_.query_memory(driver_.home())).free_bytes;
  }

  void take(const entrant& each, const vmm::tools::trace& input, unsigned pass_count,
            figures& into) {
    contender& rival = *each.rival;
    rival.open();
    const std::uint64_t free_before = free_bytes();
    std::vector<vmm::stream_handle> streams = streams_;
    if (each.on_created_stream) streams[0] = created_;
    subject under_test{rival, streams};
    vmm::tools::replayer player{under_test, input};
    const auto play = [&] {
      const vmm::tools::timed_pass pass = player.play();
      if (pass.failures.count != 0)
        stop(rival.name() + ": " + vmm::describe(pass.failures.first.why));
      const std::uint64_t free_now = std::min(free_before, free_bytes());
      into.device_bytes = std::max(into.device_bytes, free_before - free_now);
      (void)player.reset();
      return pass.elapsed_ns;
    };
    into.first_ms.push_back(play() / 1e6);
    into.first_reserved_bytes = std::max(into.first_reserved_bytes, rival.peak_reserved_bytes());
    std::vector<double> warm_ns;
    for (unsigned i = 1; i < pass_count; ++i)
      warm_ns.push_back(play() / static_cast<double>(input.events.size()));
    into.best_warm_ns = std::min(into.best_warm_ns, std::ranges::min(warm_ns));
    into.warm_ns.push_back(median(std::move(warm_ns)));
    into.reserved_bytes = std::max(into.reserved_bytes, rival.peak_reserved_bytes());
    must(driver_.synchronize_stream(streams[0]));
    rival.close();
    std::this_thread::sleep_for(pause);
  }

  vmm::cuda_driver& driver_;
  const settings& how_;
  std::vector<entrant> all_;
  std::vector<vmm::stream_handle> streams_;
  vmm::stream_handle created_{};
};

// ---- the table ----------------------------------------------------------------------------------

/// What a trace was to the choices of the pool's policy (traces/README.md).
const char* part_in_policy(const std::string& name) {
  struct known {
    const char* name;
    const char* part;
  };
  constexpr const char* chosen_on = "chosen on";
  constexpr const char* while_choosing = "in view of later choices";
  constexpr const char* never_seen = "never seen";
  static constexpr known all[] = {
      {"gpt_train", chosen_on},     {"llama_generate", chosen_on}, {"maskrcnn_train", chosen_on},
      {"beam_kv", chosen_on},       {"diffusion", while_choosing}, {"experts", while_choosing},
      {"speech", while_choosing},   {"serving", while_choosing},   {"neighbours", while_choosing},
      {"feedback", while_choosing}, {"folding", never_seen},       {"rays", never_seen},
      {"search", never_seen},       {"recommend", never_seen},     {"points", never_seen},
      {"video", never_seen},
  };
  for (const known& each : all)
    if (name == each.name) return each.part;
  return "unknown";
}

/// One allocator on one trace.
struct outcome {
  std::string allocator;
  double warm_ns = 0;
  double best_ns = 0;
  double by_own = 0;       // its time by the first allocator's, the median of the rounds' ratios
  double best_by_own = 0;  // its best pass by the first allocator's
  double first_ms = 0;
  double growth_ms = 0;
  double first_ratio = 0;  // peak reserved by peak live, of the first pass
  double ratio = 0;        // and of all of them
  double device_ratio = 0;
};

struct outcomes {
  std::string trace;
  std::vector<outcome> of;
};

outcomes sum_up(const vmm::tools::trace& input, const bench& from,
                const std::vector<figures>& seen) {
  outcomes all{input.name, {}};
  const auto live = static_cast<double>(input.peak_live_bytes);
  const figures& own = seen.front();
  for (std::size_t i = 0; i < seen.size(); ++i) {
    const figures& f = seen[i];
    outcome one{from.all()[i].rival->name(), median(f.warm_ns), f.best_warm_ns};
    one.by_own = median(ratios_of(f.warm_ns, own.warm_ns));
    one.best_by_own = f.best_warm_ns / own.best_warm_ns;
    one.first_ms = median(f.first_ms);
    one.growth_ms = one.first_ms - one.warm_ns * static_cast<double>(input.events.size()) / 1e6;
    one.first_ratio = static_cast<double>(f.first_reserved_bytes) / live;
    one.ratio = static_cast<double>(f.reserved_bytes) / live;
    one.device_ratio = static_cast<double>(f.device_bytes) / live;
    all.of.push_back(std::move(one));
  }
  return all;
}

void add(const outcome& one, table& into) {
  into.figure("warm, ns an event", one.warm_ns, 1)
      .figure("best", one.best_ns, 1)
      .figure("by the pool's", one.by_own, 2)
      .figure("best by its best", one.best_by_own, 2)
      .figure("from nothing, ms", one.first_ms, 1)
      .figure("of which growth, ms", one.growth_ms, 1)
      .figure("peak of the first pass / live", one.first_ratio, 3)
      .figure("peak / live", one.ratio, 3)
      .figure("device's own / live", one.device_ratio, 3);
}

std::string table_of(const std::vector<outcomes>& all) {
  table rows;
  for (const outcomes& each : all) {
    for (const outcome& one : each.of)
      add(one, rows.row().text("trace", each.trace).text("allocator", one.allocator));
  }
  return rows.markdown();
}

/// One row a trace: time and memory of each allocator.
std::string short_table_of(const std::vector<outcomes>& all) {
  table rows;
  for (const outcomes& each : all) {
    rows.row().text("trace", each.trace).text("to the policy", part_in_policy(each.trace));
    for (const outcome& one : each.of)
      rows.text(one.allocator, number(one.warm_ns, 0) + " ns, " + number(one.ratio, 3));
  }
  return rows.markdown();
}

/// The rows as a file, which is written anew behind each trace: what ends the program before its
/// time leaves those that are done.
void write_csv(const settings& how, const vmm::cuda_driver& driver,
               const std::vector<outcomes>& all) {
  if (how.csv.empty()) return;
  std::string text = "# command: gpu_tests/gpu.sh pool; " + head_of(how.head, driver) +
                     "\ntrace,part in the policy,allocator,warm ns,best ns,by the pool,best by its "
                     "best,from nothing ms,growth ms,first peak by live,peak by live,device by "
                     "live\n";
  for (const outcomes& each : all) {
    for (const outcome& one : each.of) {
      table cells;
      add(one, cells.row());
      text += each.trace + "," + part_in_policy(each.trace) + ",\"" + one.allocator + "\"" +
              cells.cells(",") + "\n";
    }
  }
  write_file(how.csv, text);
}

page page_of(const settings& how, const vmm::cuda_driver& driver) {
  return {
      .path = how.markdown,
      .title = "Traces through the pool and through other allocators",
      .head = head_of(how.head, driver),
      .about = "Recorded traces, one process, " + std::to_string(how.round_count) +
               " interleaved rounds, each from nothing; the first plays the trace " +
               std::to_string(how.pass_count) + " times, the others " +
               std::to_string(how.warm_count + 1) +
               " times. The peak is the most memory held in all passes of a round; time is of "
               "passes behind the first. Medians; host time; no kernel runs. In the first table "
               "each cell has time and peak; to the policy: whether the default policy was chosen "
               "on the trace. Its first stream is the default stream in every allocator. By the "
               "pool's: the median of the rounds' ratios. "
               "Growth is the first pass less a warm one. The device's own peak is by how much its "
               "free memory had fallen at the end of a pass. Live bytes are requests rounded up to "
               "512.",
      .command = "gpu_tests/gpu.sh pool"};
}

constexpr const char* usage =
    "usage: bench_pool TRACE... [--peers LIBRARY] [--rounds N] [--passes N] [--warm N] "
    "[--csv FILE] [--markdown FILE] [--head TEXT]\n";

}  // namespace

int main(int count, char** words) {
  settings how;
  option_list(usage)
      .text("--peers", how.peers)
      .text("--csv", how.csv)
      .count("--rounds", how.round_count)
      .count("--passes", how.pass_count)
      .count("--warm", how.warm_count)
      .page(how)
      .files(how.traces)
      .read(count, words);
  if (how.traces.empty()) stop("no TRACE is given (--help lists the options)");
  how.pass_count = std::max(2u, how.pass_count);
  vmm::cuda_driver driver = open_device();
  enter(driver);
  bench all(driver, how);
  all.add(std::make_unique<vmm_pool>("vmm, pool", driver));
  all.add(std::make_unique<vmm_pool>("vmm, pool, on a created stream", driver), true);
  all.add(std::make_unique<vmm_pool>("the same, announced and forgotten", driver, promising()),
          true);
  all.add(std::make_unique<driver_pool>(driver));
  if (!how.peers.empty())
    for (std::unique_ptr<contender>& each : open_peers(how.peers)) all.add(std::move(each));
  std::vector<outcomes> seen;
  for (const std::string& path : how.traces) {
    const vmm::tools::trace input = read_or_stop(path);
    seen.push_back(sum_up(input, all, all.run(input)));
    write_csv(how, driver, seen);
  }
  publish(page_of(how, driver), short_table_of(seen) + "\n" + table_of(seen));
  print("\n" + short_table_of(seen));
  return 0;
}

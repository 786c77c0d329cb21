// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// bench_frontier - memory against driver time: what the stream pool holds and what the driver
// costs on traces, under its default policy and with one knob of it turned at a time.
//
// Every figure is exact and the same on every machine: the fake driver's virtual clock has an
// H200's prices. Reports two times: within the trace, where unmapping of moved memory may be
// deferred for ever, and with all of it unmapped at the end.
// --jitter-seeds N: means over N variants of each trace with sizes changed by up to 3 %, and the
// means of all traces. --knob TEXT: only the default and the knobs whose names begin so.
// --passes N: each trace N times on one pool, and what it held in all of them; JSON has what it
// held in the first, too, and the driver's time for an event of the later ones.

#include "report.hpp"
#include "traces.hpp"

import vmm.fake;
import vmm.stream;
import vmm.trace;

namespace {

using vmm::pool_policy, vmm::tools::event_kind, vmm::tools::trace;

constexpr std::uint64_t mib = 1 << 20;
constexpr double ratio_goal = 1.02;

// ---- settings ------------------------------------------------------------------------

struct setting {
  const char* knob;  // settings of one knob are a line of the plot
  std::string value;
  pool_policy policy;
};

std::vector<setting> every_setting() {
  std::vector<setting> all;
  const auto add = [&all](const char* knob, std::string value, auto&& turn) {
    setting made{knob, std::move(value), pool_policy::near_live()};
    turn(made.policy);
    all.push_back(std::move(made));
  };
  const auto add_each = [&add](const char* knob, std::initializer_list<std::uint64_t> values,
                               auto&& turn) {
    for (const std::uint64_t value : values)
      add(knob, std::to_string(value), [&](pool_policy& policy) { turn(policy, value); });
  };
  const auto add_sizes = [&](const char* knob, double headroom,
                             std::initializer_list<std::uint64_t> values) {
    add_each(knob, values, [headroom](pool_policy& policy, std::uint64_t size) {
      policy.handle_bytes_max = size * mib;
      policy.headroom = headroom;
    });
  };
  add("default", "", [](pool_policy&) {});
  add_sizes("handles, MiB", pool_policy::near_live().headroom, {16, 24, 32, 48, 64, 96, 128, 256});
  add_sizes("handles at headroom 1.00, MiB", 1, {16, 24, 32, 48, 64, 96, 128});
  for (const int percent : {100, 101, 102, 103, 105, 108, 112}) {
    const std::string value = percent == 100 ? "1.00" : "1." + std::to_string(percent).substr(1);
    add("headroom", value, [percent](pool_policy& policy) { policy.headroom = percent / 100.0; });
  }
  add("headroom", "none: nothing moves", [](pool_policy& policy) { policy.headroom = 1000; });
  add_sizes("handles at headroom 1.01, MiB", 1.01, {16, 24, 32, 40, 48, 64, 96, 128});
  add_each("smallest that may move, MiB", {4, 8, 16, 32},
           [](pool_policy& policy, auto size) { policy.tuning.min_move_bytes = size * mib; });
  add("smallest that may move, MiB", "1 / 64 of the peak",
      [](pool_policy& policy) { policy.tuning.min_move_bytes = std::uint64_t{1} << 56; });
  add_each("handles in scattered memory, MiB", {32, 16, 8, 4},
           [](pool_policy& policy, auto size) { policy.tuning.small_handle_bytes = size * mib; });
  add_each("budget of moves, ns an event", {0, 25, 50, 100, 200},
           [](pool_policy& policy, auto ns) { policy.tuning.move_budget_ns = ns; });
  return all;
}

/// The default and the settings whose knob begins with `only`. The program ends if no knob matches.
std::vector<setting> settings(std::string_view only) {
  std::vector<setting> chosen;
  std::string names;
  const char* last = "";
  bool is_there = false;
  for (setting& each : every_setting()) {
    const std::string_view knob = each.knob;
    if (knob != last) names.append(names.empty() ? "" : "; ").append(knob);
    last = each.knob;
    const bool is_wanted = knob.starts_with(only);
    is_there = is_there || is_wanted;
    if (is_wanted || chosen.empty()) chosen.push_back(std::move(each));
  }
  if (is_there) return chosen;
  stop("no knob begins with '" + std::string(only) + "'; knobs are: " + names);
}

// ---- figures -------------------------------------------------------------------------

struct figure {
  double ratio = 0;  // over all passes
  double first_ratio = 0;
  double later_ns = 0;  // the driver's time for an event after the first pass
  double trace_ms = 0;  // in the first pass; unmaps that are put off are not in it
  double whole_ms = 0;  // they are

  /// A mean of `count` figures is the sum of their parts.
  void add_part(const figure& of, std::size_t count) {
    const auto parts = static_cast<double>(count);
    ratio += of.ratio / parts;
    first_ratio += of.first_ratio / parts;
    later_ns += of.later_ns / parts;
    trace_ms += of.trace_ms / parts;
    whole_ms += of.whole_ms / parts;
  }
};

/// What the trace leaves live is freed.
void play(const trace& input, vmm::stream_pool& pool, std::span<const vmm::stream_handle> streams) {
  std::vector<std::pair<vmm::address, vmm::stream_handle>> live(input.slot_count);
  for (const vmm::tools::event& now : input.events) {
    auto& [at, stream] = live[now.slot];
    stream = streams[now.stream];
    if (now.kind == event_kind::allocate) {
      at = must(pool.allocate(now.size_bytes, stream));
    } else {
      must(pool.free(std::exchange(at, {}), stream));
    }
  }
  for (const auto& [at, stream] : live)
    if (at) must(pool.free(at, stream));
}

figure measure(const trace& input, const pool_policy& policy, std::uint32_t pass_count) {
  vmm::pool_options options;
  options.policy = policy;
  options.leak_hook.hook = nullptr;  // blocks that a trace leaves live are not a mistake
  vmm::fake_driver driver;
  const std::vector<vmm::stream_handle> streams = open_streams(driver, input);
  vmm::stream_pool pool(driver, options);
  const auto ratio = [&] {
    return static_cast<double>(pool.statistics().peak_mapped_bytes) /
           static_cast<double>(input.peak_live_bytes);
  };
  play(input, pool, streams);
  figure found{.first_ratio = ratio(), .trace_ms = driver.busy_us() / 1e3};
  for (std::uint32_t pass = 1; pass < pass_count; ++pass) play(input, pool, streams);
  found.ratio = ratio();
  if (pass_count > 1)
    found.later_ns = (driver.busy_us() * 1e3 - found.trace_ms * 1e6) / (pass_count - 1) /
                     static_cast<double>(input.events.size());
  (void)pool.trim(std::numeric_limits<std::uint64_t>::max());  // unmaps, and releases nothing
  found.whole_ms = driver.busy_us() / 1e3;
  return found;
}

struct column {
  std::string name{};
  std::optional<double> goal_ms{};
  std::vector<figure> figures{};  // one a setting
};

struct repetition {
  std::uint32_t seed_count = 0;  // 0: the trace as it is
  std::uint32_t pass_count = 1;
};

/// The mean over the seeds.
figure measure_seeds(const trace& input, const pool_policy& policy, repetition how) {
  if (how.seed_count == 0) return measure(input, policy, how.pass_count);
  figure sum;
  for (std::uint32_t seed = 1; seed <= how.seed_count; ++seed) {
    trace changed = input;
    vmm::tools::jitter_sizes(changed, seed);
    sum.add_part(measure(changed, policy, how.pass_count), how.seed_count);
  }
  return sum;
}

/// The mean over the traces.
column mean_of(const std::vector<column>& columns, std::size_t setting_count) {
  column made{.name = "mean", .figures = std::vector<figure>(setting_count)};
  for (const column& each : columns) {
    for (std::size_t i = 0; i < setting_count; ++i)
      made.figures[i].add_part(each.figures[i], columns.size());
  }
  return made;
}

column measure_all(const std::string& file, const std::vector<setting>& all, repetition how) {
  constexpr std::pair<const char*, double> goals[] = {
      {"gpt_train", 16}, {"llama_generate", 16}, {"maskrcnn_train", 11.5}, {"beam_kv", 3.6}};
  const trace input = read_or_stop(file);
  column made{.name = input.name};
  for (const auto& [name, goal_ms] : goals)
    if (made.name == name) made.goal_ms = goal_ms;
  for (const setting& each : all) made.figures.push_back(measure_seeds(input, each.policy, how));
  return made;
}

// ---- as a table ----------------------------------------------------------------------

std::string table_of(const std::vector<setting>& all, const std::vector<column>& columns) {
  std::string text =
      "Most memory held over most live bytes @ driver ms in the trace (ms with what has\n"
      "moved unmapped at the end). Goal: " +
      number(ratio_goal, 2) + " @";
  for (const column& each : columns) text += " " + (each.goal_ms ? number(*each.goal_ms, 1) : "-");
  table rows;
  for (std::size_t i = 0; i < all.size(); ++i) {
    rows.row().text("knob", all[i].knob).text("value", all[i].value);
    for (const column& each : columns) {
      const figure& now = each.figures[i];
      rows.text(each.name, number(now.ratio, 4) + " @ " + number(now.trace_ms, 1) + " (" +
                               number(now.whole_ms, 1) + ")");
    }
  }
  return text + "\n\n" + rows.markdown();
}

std::string json_of(const std::vector<setting>& all, const std::vector<column>& columns) {
  table rows;
  for (const column& each : columns) {
    for (std::size_t i = 0; i < all.size(); ++i)
      rows.row()
          .text("", each.name, "trace")
          .text("", all[i].knob, "knob")
          .text("", all[i].value, "value")
          .figure("", each.figures[i].ratio, 2, "ratio")
          .figure("", each.figures[i].first_ratio, 2, "first_ratio")
          .figure("", each.figures[i].later_ns, 1, "later_ns")
          .figure("", each.figures[i].trace_ms, 1, "driver_ms")
          .figure("", each.figures[i].whole_ms, 1, "driver_ms_unmapped");
  }
  return rows.json() + "\n";
}

constexpr const char* usage =
    "usage: bench_frontier [--json] [--knob TEXT] [--jitter-seeds N] [--passes N] [TRACE...]\n"
    "\n"
    "What the stream pool holds and what the driver costs on each TRACE (else the first four of\n"
    "traces/), by default and with one knob of its policy turned at a time, on the fake driver.\n"
    "\n"
    "  --json            one array of objects instead of a table\n"
    "  --knob TEXT       only the default and the knobs whose names begin with TEXT, such as\n"
    "                    'handles at'\n"
    "  --jitter-seeds N  means over N variants of each trace, 1 to 1000, with sizes changed by up\n"
    "                    to 3 %, and the means of all traces\n"
    "  --passes N        each trace N times on one pool, 1 to 1000, and what it held in all;\n"
    "                    the first pass's and the later ones' driver time with --json\n";

}  // namespace

int main(int argc, char** argv) {
  bool json = false;
  std::string knob;
  repetition how;
  std::vector<std::string> files;
  option_list(usage)
      .flag("--json", json)
      .text("--knob", knob)
      .number("--jitter-seeds", how.seed_count, "1 to 1000", 1, 1000)
      .number("--passes", how.pass_count, "1 to 1000", 1, 1000)
      .files(files)
      .read(argc, argv);
  const std::vector<setting> all = settings(knob);
  std::vector<column> columns;
  for (const std::string& file : or_those_of_the_project(std::move(files), 4))
    columns.push_back(measure_all(file, all, how));
  if (how.seed_count != 0) columns.push_back(mean_of(columns, all.size()));
  print(json ? json_of(all, columns) : table_of(all, columns));
  return 0;
}

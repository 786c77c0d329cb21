// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// bench_frontier - memory against driver time: what the stream pool holds and what the driver
// costs on traces, under its default policy and with one knob of it turned at a time.
//
// Every figure is exact and the same on every machine: the fake driver's virtual clock has an
// H200's prices. Reports two times: within the trace, where unmapping of moved memory may be
// deferred for ever, and with all of it unmapped at the end. --svg FILE draws a panel for each
// trace.
// --jitter-seeds N: means over N variants of each trace with sizes changed by up to 3 %, and the
// means of all traces. --knob TEXT: only the default and the knobs whose names begin so.

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
  add("default", "", [](pool_policy&) {});
  for (const std::uint64_t size : {16u, 24u, 32u, 48u, 64u, 96u, 128u, 256u}) {
    add("handles, MiB", std::to_string(size),
        [size](pool_policy& policy) { policy.handle_bytes_max = size * mib; });
  }
  for (const std::uint64_t size : {16u, 24u, 32u, 48u, 64u, 96u, 128u}) {
    add("handles at headroom 1.00, MiB", std::to_string(size), [size](pool_policy& policy) {
      policy.handle_bytes_max = size * mib;
      policy.headroom = 1;
    });
  }
  for (const int percent : {100, 101, 102, 103, 105, 108, 112}) {
    const std::string value = percent == 100 ? "1.00" : "1." + std::to_string(percent).substr(1);
    add("headroom", value, [percent](pool_policy& policy) { policy.headroom = percent / 100.0; });
  }
  add("headroom", "none: nothing moves", [](pool_policy& policy) { policy.headroom = 1000; });
  for (const std::uint64_t size : {4u, 8u, 16u, 32u}) {
    add("smallest that may move, MiB", std::to_string(size),
        [size](pool_policy& policy) { policy.tuning.min_move_bytes = size * mib; });
  }
  add("smallest that may move, MiB", "1 / 64 of the peak",
      [](pool_policy& policy) { policy.tuning.min_move_bytes = std::uint64_t{1} << 56; });
  for (const std::uint64_t size : {32u, 16u, 8u}) {
    add("fine handles always, MiB", std::to_string(size), [size](pool_policy& policy) {
      policy.tuning.small_handle_bytes = size * mib;
      policy.tuning.driver_budget_ns = 1'000'000;
    });
  }
  for (const std::uint64_t driver_budget_ns : {0u, 25u, 50u, 100u}) {
    add("spend, ns an event", std::to_string(driver_budget_ns),
        [driver_budget_ns](pool_policy& policy) {
          policy.tuning.driver_budget_ns = driver_budget_ns;
        });
  }
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
  double ratio = 0;
  double trace_ms = 0;  // unmaps that are put off are not in it
  double whole_ms = 0;  // they are

  /// A mean of `count` figures is the sum of their parts.
  void add_part(const figure& of, std::size_t count) {
    const auto parts = static_cast<double>(count);
    ratio += of.ratio / parts;
    trace_ms += of.trace_ms / parts;
    whole_ms += of.whole_ms / parts;
  }
};

figure measure(const trace& input, const pool_policy& policy) {
  vmm::pool_options options;
  options.policy = policy;
  options.leak_hook.hook = nullptr;  // blocks that a trace leaves live are not a mistake
  vmm::fake_driver driver;
  const std::vector<vmm::stream_handle> streams = open_streams(driver, input);
  vmm::stream_pool pool(driver, options);
  std::vector<vmm::address> live(input.slot_count);
  for (const vmm::tools::event& now : input.events) {
    if (now.kind == event_kind::allocate) {
      live[now.slot] = must(pool.allocate(now.size_bytes, streams[now.stream]));
    } else {
      must(pool.free(live[now.slot], streams[now.stream]));
    }
  }
  figure found;
  found.ratio = static_cast<double>(pool.statistics().peak_mapped_bytes) /
                static_cast<double>(input.peak_live_bytes);
  found.trace_ms = driver.busy_us() / 1e3;
  (void)pool.trim(std::numeric_limits<std::uint64_t>::max());  // unmaps, and releases nothing
  found.whole_ms = driver.busy_us() / 1e3;
  return found;
}

struct column {
  std::string name{};
  std::optional<double> goal_ms{};
  std::vector<figure> figures{};  // one a setting
};

/// The mean over the seeds from 1 to `seed_count`; 0: of the trace as it is.
figure measure_seeds(const trace& input, const pool_policy& policy, std::uint32_t seed_count) {
  if (seed_count == 0) return measure(input, policy);
  figure sum;
  for (std::uint32_t seed = 1; seed <= seed_count; ++seed) {
    trace changed = input;
    vmm::tools::jitter_sizes(changed, seed);
    sum.add_part(measure(changed, policy), seed_count);
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

column measure_all(const std::string& file, const std::vector<setting>& all,
                   std::uint32_t seed_count) {
  constexpr std::pair<const char*, double> goals[] = {
      {"gpt_train", 16}, {"llama_generate", 16}, {"maskrcnn_train", 11.5}, {"beam_kv", 3.6}};
  const trace input = read_or_stop(file);
  column made{.name = input.name};
  for (const auto& [name, goal_ms] : goals)
    if (made.name == name) made.goal_ms = goal_ms;
  for (const setting& each : all)
    made.figures.push_back(measure_seeds(input, each.policy, seed_count));
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
          .figure("", each.figures[i].trace_ms, 1, "driver_ms")
          .figure("", each.figures[i].whole_ms, 1, "driver_ms_unmapped");
  }
  return rows.json() + "\n";
}

// ---- as a picture --------------------------------------------------------------------

/// One panel: driver time (logarithmic) to the right, the ratio upwards.
class panel {
 public:
  static constexpr double width = 430;
  static constexpr double height = 300;

  panel(double left, double top) : left_(left), top_(top) {}

  [[nodiscard]] std::string draw(const std::vector<setting>& all, const column& data) const {
    std::string svg = frame(data);
    svg += lines(all, data);
    const figure& now = data.figures.front();
    svg += text(
        "<circle cx='%.1f' cy='%.1f' r='5' fill='#111'><title>default: %.4f @ %.1f ms"
        "</title></circle>\n",
        x(now.whole_ms), y(now.ratio), now.ratio, now.whole_ms);
    return svg;
  }

  template <class... Values>
  [[nodiscard]] static std::string text(const char* format, Values... values) {
    char out[400];
    (void)std::snprintf(out, sizeof out, format, values...);
    return out;
  }
  [[nodiscard]] static const char* color(const char* knob) {
    switch (knob[0] == 'f' ? knob[0] : knob[1]) {
      case 'a': return "#c2410c";  // handles
      case 'e': return "#1d4ed8";  // headroom
      case 'm': return "#0e7490";  // smallest that may move
      case 'f': return "#15803d";  // fine handles
      default: return "#9333ea";   // spend
    }
  }

 private:
  static constexpr double ms_min = 1.5;
  static constexpr double ms_max = 100;
  static constexpr double ratio_max = 1.18;

  [[nodiscard]] double x(double ms) const {
    const double part =
        std::log(std::clamp(ms, ms_min, ms_max) / ms_min) / std::log(ms_max / ms_min);
    return left_ + part * width;
  }
  [[nodiscard]] double y(double ratio) const {
    return top_ + height * (1 - (std::clamp(ratio, 1.0, ratio_max) - 1) / (ratio_max - 1));
  }

  [[nodiscard]] std::string frame(const column& data) const {
    std::string svg = text("<text x='%.0f' y='%.0f' font-weight='bold'>%s</text>\n", left_,
                           top_ - 10, data.name.c_str());
    if (data.goal_ms) {
      svg += text("<rect x='%.1f' y='%.1f' width='%.1f' height='%.1f' fill='#d9f99d'/>\n", left_,
                  y(ratio_goal), x(*data.goal_ms) - left_, y(1) - y(ratio_goal));
    }
    for (const double ratio : {1.0, 1.02, 1.05, 1.1, 1.15}) {
      svg += text("<path d='M%.1f %.1fh%.1f' stroke='#ddd'/>\n", left_, y(ratio), width);
      svg += text("<text x='%.1f' y='%.1f' text-anchor='end'>%.2f</text>\n", left_ - 6,
                  y(ratio) + 4, ratio);
    }
    for (const double ms : {2.0, 4.0, 8.0, 16.0, 32.0, 64.0}) {
      svg += text("<path d='M%.1f %.1fv%.1f' stroke='#eee'/>\n", x(ms), top_, height);
      svg += text("<text x='%.1f' y='%.1f' text-anchor='middle'>%.0f</text>\n", x(ms),
                  top_ + height + 16, ms);
    }
    return svg;
  }

  [[nodiscard]] std::string lines(const std::vector<setting>& all, const column& data) const {
    std::string svg;
    for (std::size_t i = 1; i < all.size(); ++i) {
      const figure& now = data.figures[i];
      const char* const ink = color(all[i].knob);
      if (std::strcmp(all[i].knob, all[i - 1].knob) == 0) {
        const figure& last = data.figures[i - 1];
        svg += text("<path d='M%.1f %.1fL%.1f %.1f' stroke='%s' opacity='.5'/>\n", x(last.whole_ms),
                    y(last.ratio), x(now.whole_ms), y(now.ratio), ink);
      }
      svg += text(
          "<circle cx='%.1f' cy='%.1f' r='3' fill='%s'><title>%s %s: %.4f @ %.1f ms"
          "</title></circle>\n",
          x(now.whole_ms), y(now.ratio), ink, all[i].knob, all[i].value.c_str(), now.ratio,
          now.whole_ms);
    }
    return svg;
  }

  double left_;
  double top_;
};

std::string legend(const std::vector<setting>& all, double top) {
  std::string svg = panel::text(
      "<circle cx='66' cy='%.0f' r='5' fill='#111'/>"
      "<text x='76' y='%.0f'>default</text>\n",
      top - 4, top);
  double left = 140;
  for (std::size_t i = 1; i < all.size(); ++i) {
    if (std::strcmp(all[i].knob, all[i - 1].knob) == 0) continue;
    svg += panel::text(
        "<circle cx='%.0f' cy='%.0f' r='4' fill='%s'/><text x='%.0f' y='%.0f'>%s"
        "</text>\n",
        left, top - 4, panel::color(all[i].knob), left + 8, top, all[i].knob);
    left += 30 + 7 * static_cast<double>(std::strlen(all[i].knob));
  }
  svg += panel::text(
      "<rect x='%.0f' y='%.0f' width='12' height='12' fill='#d9f99d'/>"
      "<text x='%.0f' y='%.0f'>goal</text>\n",
      left, top - 10, left + 16, top);
  return svg;
}

std::string draw(const std::vector<setting>& all, const std::vector<column>& columns) {
  constexpr double gap_x = 70;
  constexpr double gap_y = 60;
  constexpr double head = 70;
  const std::size_t rows = (columns.size() + 1) / 2;
  const double total = head + static_cast<double>(rows) * (panel::height + gap_y) + 10;
  std::string svg = panel::text(
      "<svg xmlns='http://www.w3.org/2000/svg' width='%.0f' height='%.0f' font-family='sans-serif' "
      "font-size='11' stroke-width='1.5'>\n<rect width='100%%' height='100%%' fill='#fff'/>\n",
      2 * (panel::width + gap_x), total);
  svg +=
      "<text x='60' y='18' font-size='13'>Most memory held over most live bytes, against driver "
      "ms on the fake driver with everything unmapped in the end</text>\n";
  svg += legend(all, 38);
  for (std::size_t i = 0; i < columns.size(); ++i) {
    const double left = 60 + static_cast<double>(i % 2) * (panel::width + gap_x);
    const double top = head + static_cast<double>(i / 2) * (panel::height + gap_y);
    svg += panel(left, top).draw(all, columns[i]);
  }
  return svg + "</svg>\n";
}

constexpr const char* usage =
    "usage: bench_frontier [--json] [--svg FILE] [--knob TEXT] [--jitter-seeds N] [TRACE...]\n"
    "\n"
    "What the stream pool holds and what the driver costs on each TRACE (else the first four of\n"
    "traces/), by default and with one knob of its policy turned at a time, on the fake driver.\n"
    "\n"
    "  --json            one array of objects instead of a table\n"
    "  --svg FILE        draws a panel for each trace too\n"
    "  --knob TEXT       only the default and the knobs whose names begin with TEXT, such as\n"
    "                    'handles at'\n"
    "  --jitter-seeds N  means over N variants of each trace, 1 to 1000, with sizes changed by up\n"
    "                    to 3 %, and the means of all traces\n";

}  // namespace

int main(int argc, char** argv) {
  bool json = false;
  std::string svg_path;
  std::string knob;
  std::uint32_t seed_count = 0;
  std::vector<std::string> files;
  option_list(usage)
      .flag("--json", json)
      .text("--svg", svg_path)
      .text("--knob", knob)
      .value("--jitter-seeds",
             [&](const char* value) {
               seed_count = count_of(value);
               if (seed_count > 1000) stop("--jitter-seeds takes 1 to 1000");
             })
      .files(files)
      .read(argc, argv);
  const std::vector<setting> all = settings(knob);
  vmm::tools::output_file plot;
  std::string why = svg_path.empty() ? "" : plot.open(svg_path);
  if (!why.empty()) stop(why);
  std::vector<column> columns;
  for (const std::string& file : or_those_of_the_project(std::move(files), 4))
    columns.push_back(measure_all(file, all, seed_count));
  if (seed_count != 0) columns.push_back(mean_of(columns, all.size()));
  print(json ? json_of(all, columns) : table_of(all, columns));
  if (!svg_path.empty()) why = plot.write(draw(all, columns));
  if (!why.empty()) stop(why);
  return 0;
}

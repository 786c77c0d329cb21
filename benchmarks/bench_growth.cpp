// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// bench_growth - how long a program waits for the stream pool while it grows: driver time within
// the program's requests, without that of calls that it makes beside them.
//
// Each trace is played from nothing and then again and again in one pool, with what it leaves live
// freed in between. After each allocation and free the fake driver's virtual clock says what the
// driver has cost, at the prices of a busy program (profile::busy_cuda), so that every figure is
// the same on every machine. With --peak PERCENT the program announces (stream_pool::prepare())
// that share of the most that it will have live, before its first request; with --announce EVERY
// each request of 8 MiB and more, before each so many events for those that come before the next
// such call. Its own time, of which there is a share, was measured on an H200.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>  // see docs/support.md, clang 22
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../tools/program/options.hpp"

import vmm.fake;
import vmm.stream;
import vmm.trace;

namespace {

using vmm::tools::event;
using vmm::tools::event_kind;
using vmm::tools::trace;

constexpr double long_us = 100;

[[noreturn]] void fail(const std::string& why) {
  std::fprintf(stderr, "bench_growth: %s\n", why.c_str());
  std::exit(1);
}

constexpr std::uint64_t announced_bytes = std::uint64_t{8} << 20;

struct settings {
  std::size_t announce_every = 0;  // events; 0: never
  double peak_share = 0;           // announced before the first request
  std::size_t pass_count = 5;
  std::optional<std::uint64_t> jitter_seed;
  bool json = false;
};

/// The driver calls made.
struct call_sums {
  std::uint64_t created = 0;
  std::uint64_t mapped = 0;
  std::uint64_t unmapped = 0;

  call_sums& operator+=(const call_sums& more) {
    created += more.created;
    mapped += more.mapped;
    unmapped += more.unmapped;
    return *this;
  }
};

/// One pass, or several.
struct figure {
  double request_us = 0;         // within allocations and frees
  double beside_us = 0;          // within prepare()
  double longest_us = 0;         // of an allocation or free
  double longest_step_us = 0;    // of a step of prepare()
  std::uint64_t long_count = 0;  // allocations and frees of more than long_us
  call_sums in_long{};
  std::uint64_t held_bytes = 0;  // the most

  void add(const figure& more) {
    request_us += more.request_us;
    beside_us += more.beside_us;
    longest_us = std::max(longest_us, more.longest_us);
    longest_step_us = std::max(longest_step_us, more.longest_step_us);
    long_count += more.long_count;
    in_long += more.in_long;
    held_bytes = std::max(held_bytes, more.held_bytes);
  }
};

struct row {
  std::string name;
  std::optional<double> program_ms{};  // one pass of the program itself
  std::uint64_t live_bytes = 0;
  std::size_t later_count = 0;
  figure first{};
  figure later{};
};

// ---- playing -------------------------------------------------------------------------

/// What the driver takes from one mapping that prepare() has made to the next.
class step_meter final : public vmm::remap_listener {
 public:
  explicit step_meter(const vmm::fake_driver& driver) : driver_(driver) {}

  void begin() {
    last_us_ = driver_.busy_us();
    longest_us_ = 0;
  }
  [[nodiscard]] double longest_us() const { return longest_us_; }

 private:
  void before_change(const vmm::remap_notice&) noexcept override {}
  void after_change(const vmm::remap_notice&) noexcept override {
    longest_us_ = std::max(longest_us_, driver_.busy_us() - last_us_);
    last_us_ = driver_.busy_us();
  }

  const vmm::fake_driver& driver_;
  double last_us_ = 0;
  double longest_us_ = 0;
};

/// A pool on a busy driver, with one stream for each that the trace names; 0 is the default one.
class player {
 public:
  player(const trace& input, const settings& how)
      : input_(input), how_(how), live_(input.slot_count) {
    std::uint16_t last = 0;
    for (const event& each : input.events) last = std::max(last, each.stream);
    while (streams_.size() <= last) {
      const vmm::result<vmm::stream_handle> made = driver_.create_stream();
      if (!made) fail(describe(made.error()));
      streams_.push_back(*made);
    }
    if (!pool_.remaps().subscribe(steps_)) fail("subscribe() failed");
  }

  /// The whole trace, and what it leaves live is freed.
  [[nodiscard]] figure play() {
    figure seen;
    if (how_.peak_share != 0 && pool_.statistics().mapped_bytes == 0)
      announce(static_cast<double>(input_.peak_live_bytes) * how_.peak_share, 0, seen);
    for (std::size_t i = 0; i < input_.events.size(); ++i) {
      if (how_.announce_every != 0 && i % how_.announce_every == 0) announce_from(i, seen);
      const event& now = input_.events[i];
      meter(seen, [&] { step(now); });
    }
    for (const event& each : input_.events) {
      if (live_[each.slot]) meter(seen, [&] { free(each); });
    }
    seen.held_bytes = std::max(seen.held_bytes, pool_.statistics().mapped_bytes);
    return seen;
  }

 private:
  [[nodiscard]] call_sums sums() const {
    return {driver_.calls(vmm::call::create), driver_.calls(vmm::call::map),
            driver_.calls(vmm::call::unmap)};
  }

  template <class Work>
  void meter(figure& seen, Work&& work) {
    const double before_us = driver_.busy_us();
    const call_sums before = sums();
    work();
    const double taken_us = driver_.busy_us() - before_us;
    if (taken_us == 0) return;
    const call_sums after = sums();
    seen.request_us += taken_us;
    seen.longest_us = std::max(seen.longest_us, taken_us);
    if (after.mapped != before.mapped)
      seen.held_bytes = std::max(seen.held_bytes, pool_.statistics().mapped_bytes);
    if (taken_us <= long_us) return;
    ++seen.long_count;
    seen.in_long += {after.created - before.created, after.mapped - before.mapped,
                     after.unmapped - before.unmapped};
  }

  void step(const event& now) {
    if (now.kind == event_kind::free) return free(now);
    const vmm::result<vmm::address> at = pool_.allocate(now.size_bytes, streams_[now.stream]);
    if (!at) fail(describe(at.error()));
    live_[now.slot] = *at;
  }

  void free(const event& of) {
    if (!pool_.free(live_[of.slot], streams_[of.stream])) fail("the pool refused a free");
    live_[of.slot] = {};
  }

  void announce(double size_bytes, std::uint16_t stream, figure& seen) {
    const double before_us = driver_.busy_us();
    steps_.begin();
    (void)pool_.prepare(static_cast<std::uint64_t>(size_bytes), streams_[stream]);
    seen.beside_us += driver_.busy_us() - before_us;
    seen.longest_step_us = std::max(seen.longest_step_us, steps_.longest_us());
  }

  // What comes before the next such call.
  void announce_from(std::size_t at, figure& seen) {
    const std::size_t end = std::min(at + how_.announce_every, input_.events.size());
    for (std::size_t i = at; i < end; ++i) {
      const event& next = input_.events[i];
      if (next.kind == event_kind::allocate && next.size_bytes >= announced_bytes)
        announce(static_cast<double>(next.size_bytes), next.stream, seen);
    }
  }

  const trace& input_;
  const settings& how_;
  vmm::fake_driver driver_{vmm::fake::profile::busy_cuda()};
  std::vector<vmm::stream_handle> streams_{vmm::stream_handle::default_stream};
  step_meter steps_{driver_};
  vmm::stream_pool pool_{driver_};
  std::vector<vmm::address> live_;
};

row measure(const std::string& file, const settings& how) {
  // What one pass takes on an H200: 200 times the half per cent of docs/results.
  constexpr std::array<std::pair<const char*, double>, 10> programs{{{"gpt_train", 3200},
                                                                     {"llama_generate", 3200},
                                                                     {"maskrcnn_train", 2300},
                                                                     {"beam_kv", 720},
                                                                     {"diffusion", 27600},
                                                                     {"experts", 7000},
                                                                     {"speech", 9000},
                                                                     {"serving", 3000},
                                                                     {"neighbours", 5000},
                                                                     {"feedback", 7600}}};
  vmm::tools::read_outcome read = vmm::tools::read_trace(file);
  if (!read) fail(describe(read.trouble));
  if (how.jitter_seed) vmm::tools::jitter_sizes(*read.value, *how.jitter_seed);
  row made;
  made.name = read.value->name;
  made.live_bytes = read.value->peak_live_bytes;
  made.later_count = how.pass_count - 1;
  for (const auto& [name, ms] : programs) {
    if (made.name == name) made.program_ms = ms;
  }
  player over(*read.value, how);
  made.first = over.play();
  for (std::size_t pass = 0; pass < made.later_count; ++pass) made.later.add(over.play());
  return made;
}

// ---- the report ----------------------------------------------------------------------

std::string share_of(const row& of, const figure& seen, std::size_t pass_count) {
  if (!of.program_ms || pass_count == 0) return "-";
  std::array<char, 32> text{};
  const double whole_ms = *of.program_ms * static_cast<double>(pass_count);
  std::snprintf(text.data(), text.size(), "%.2f", seen.request_us / 10 / whole_ms);
  return text.data();
}

/// Times are of one pass.
void print_half(const row& of, const figure& seen, std::size_t pass_count) {
  const double passes = static_cast<double>(std::max<std::size_t>(pass_count, 1));
  const call_sums& in = seen.in_long;
  const double count = static_cast<double>(std::max<std::uint64_t>(seen.long_count, 1));
  std::printf(
      " %.1f | %s | %llu | %.0f | %.1f + %.1f, %.1f | %.1f | %.0f | %.3f |",
      seen.request_us / 1e3 / passes, share_of(of, seen, pass_count).c_str(),
      static_cast<unsigned long long>(seen.long_count), seen.longest_us,
      static_cast<double>(in.created) / count, static_cast<double>(in.mapped - in.created) / count,
      static_cast<double>(in.unmapped) / count, seen.beside_us / 1e3 / passes, seen.longest_step_us,
      static_cast<double>(seen.held_bytes) / static_cast<double>(of.live_bytes));
}

void print(const std::vector<row>& rows, const settings& how) {
  constexpr const char* head =
      "| trace | in requests, ms | %% of its time | calls over 100 us | longest, us | handles made "
      "+ moved, unmapped in each of those | beside, ms | longest step of it, us | held over live |";
  const auto half = [&](const char* title, auto&& line) {
    std::printf("%s:\n\n", title);
    std::printf(head);
    std::printf("\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
    for (const row& each : rows) {
      std::printf("| %s |", each.name.c_str());
      line(each);
      std::printf("\n");
    }
  };
  half("First pass", [](const row& each) { print_half(each, each.first, 1); });
  if (how.pass_count < 2) return;
  std::printf("\n");
  half("Later passes, times of one",
       [](const row& each) { print_half(each, each.later, each.later_count); });
}

void print_json(const std::vector<row>& rows) {
  std::printf("[");
  const char* between = "";
  const auto half = [&](const row& of, const char* which, const figure& seen) {
    std::printf(
        "%s{\"trace\": \"%s\", \"pass\": \"%s\", \"request_us\": %.1f, \"long_calls\": %llu, "
        "\"longest_us\": %.1f, \"beside_us\": %.1f, \"longest_step_us\": %.1f, \"ratio\": %.4f}",
        between, of.name.c_str(), which, seen.request_us,
        static_cast<unsigned long long>(seen.long_count), seen.longest_us, seen.beside_us,
        seen.longest_step_us,
        static_cast<double>(seen.held_bytes) / static_cast<double>(of.live_bytes));
    between = ", ";
  };
  for (const row& each : rows) {
    half(each, "first", each.first);
    half(each, "later", each.later);
  }
  std::printf("]\n");
}

constexpr const char* usage =
    "usage: bench_growth [--json] [--passes N] [--peak PERCENT] [--announce EVERY]\n"
    "                    [--jitter SEED] [TRACE...]\n"
    "  --passes N         plays each trace so often, the first time from nothing; 5 without it\n"
    "  --peak PERCENT     announces so much of the most that will be live, before anything else\n"
    "  --announce EVERY   announces, before each so many events, the large requests among them\n"
    "  --jitter SEED      sizes are changed by up to 3 %, as in vmm-replay\n"
    "  TRACE              trace files; without one, those of the project\n";

}  // namespace

int main(int argc, char** argv) {
  settings how;
  std::vector<std::string> files;
  option_list(usage)
      .flag("--json", how.json)
      .count("--passes", how.pass_count)
      .value(
          "--peak",
          [&](const char* value) { how.peak_share = static_cast<double>(count_of(value)) / 100; })
      .count("--announce", how.announce_every)
      .count("--jitter", how.jitter_seed)
      .files(files)
      .read(argc, argv);
  if (files.empty()) {
    for (const char* name : {"gpt_train", "llama_generate", "maskrcnn_train", "beam_kv",
                             "diffusion", "experts", "speech", "serving", "neighbours", "feedback"})
      files.push_back(std::string(VMM_TRACES) + "/" + name + ".trace.gz");
  }
  std::vector<row> rows;
  for (const std::string& file : files) rows.push_back(measure(file, how));
  if (how.json) {
    print_json(rows);
  } else {
    print(rows, how);
  }
  return 0;
}

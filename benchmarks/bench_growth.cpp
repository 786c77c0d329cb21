// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// bench_growth - how long a program waits for the stream pool while it grows: driver time within
// the program's requests, without that of calls that it makes beside them.
//
// Each trace is played from nothing and then again and again in one pool, with what it leaves live
// freed in between. After each allocation and free the fake driver's virtual clock says what the
// driver has cost, at the prices of a busy program (profile::busy_cuda), so that every figure is
// the same on every machine. With --peak PERCENT the program announces (stream_pool::preallocate())
// that share of the most that it will have live, before its first request; with --announce EVERY
// each request of 8 MiB and more, before each so many events for those that come before the next
// such call. Its own time, of which there is a share, was measured on an H200.

#include "report.hpp"
#include "traces.hpp"

import vmm.fake;
import vmm.stream;
import vmm.trace;

namespace {

using vmm::tools::event, vmm::tools::event_kind, vmm::tools::trace;

constexpr double long_us = 100;

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
  double beside_us = 0;          // within preallocate()
  double longest_us = 0;         // of an allocation or free
  double longest_step_us = 0;    // of a step of preallocate()
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

// ---- playing -------------------------------------------------------------------------

/// What the driver takes from one mapping that preallocate() has made to the next.
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
    must(pool_.remaps().subscribe(steps_));
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
    live_[now.slot] = must(pool_.allocate(now.size_bytes, streams_[now.stream]));
  }

  void free(const event& of) {
    must(pool_.free(live_[of.slot], streams_[of.stream]));
    live_[of.slot] = {};
  }

  void announce(double size_bytes, std::uint16_t stream, figure& seen) {
    const double before_us = driver_.busy_us();
    steps_.begin();
    (void)pool_.preallocate(static_cast<std::uint64_t>(size_bytes), streams_[stream]);
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
  std::vector<vmm::stream_handle> streams_ = open_streams(driver_, input_);
  step_meter steps_{driver_};
  vmm::stream_pool pool_{driver_};
  std::vector<vmm::address> live_;
};

// Times are of one pass.
void add(const trace& of, const figure& seen, std::size_t pass_count, const char* which,
         table& into) {
  // What one pass takes on an H200: 200 times the half per cent of docs/results.
  static constexpr std::array<double, std::size(project_traces)> programs_ms{
      3200, 3200, 2300, 720, 27600, 7000, 9000, 3000, 5000, 7600};
  const auto passes = static_cast<double>(std::max<std::size_t>(pass_count, 1));
  const call_sums& in = seen.in_long;
  const auto count = static_cast<double>(std::max<std::uint64_t>(seen.long_count, 1));
  const auto known = std::ranges::find(project_traces, of.name);
  const std::string share =
      known == std::end(project_traces)
          ? "-"
          : number(seen.request_us / 10 / passes /
                       programs_ms[static_cast<std::size_t>(known - project_traces)],
                   2);
  into.row()
      .text("trace", of.name, "trace")
      .text("pass", which, "pass")
      .figure("in requests, ms", seen.request_us / 1e3 / passes, 1, "request_ms")
      .text("% of its time", share)
      .count("calls over 100 us", seen.long_count, "long_calls")
      .figure("longest, us", seen.longest_us, 0, "longest_us")
      .text("handles made + moved, unmapped in each of those",
            number(static_cast<double>(in.created) / count, 1) + " + " +
                number(static_cast<double>(in.mapped - in.created) / count, 1) + ", " +
                number(static_cast<double>(in.unmapped) / count, 1))
      .figure("beside, ms", seen.beside_us / 1e3 / passes, 1, "beside_ms")
      .figure("longest step of it, us", seen.longest_step_us, 0, "longest_step_us")
      .figure("held over live",
              static_cast<double>(seen.held_bytes) / static_cast<double>(of.peak_live_bytes), 3,
              "ratio");
}

void measure(const std::string& file, const settings& how, table& first, table& later) {
  trace input = read_or_stop(file);
  if (how.jitter_seed) vmm::tools::jitter_sizes(input, *how.jitter_seed);
  player over(input, how);
  add(input, over.play(), 1, "first", first);
  figure rest;
  for (std::size_t pass = 1; pass < how.pass_count; ++pass) rest.add(over.play());
  if (how.pass_count > 1) add(input, rest, how.pass_count - 1, "later, one", later);
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
  unsigned peak_percent = 0;
  std::vector<std::string> files;
  option_list(usage)
      .flag("--json", how.json)
      .count("--passes", how.pass_count)
      .count("--peak", peak_percent)
      .count("--announce", how.announce_every)
      .count("--jitter", how.jitter_seed)
      .files(files)
      .read(argc, argv);
  how.peak_share = peak_percent / 100.0;
  table first;
  table later;
  for (const std::string& file : or_those_of_the_project(std::move(files), 10))
    measure(file, how, first, later);
  print(how.json ? "{\"first\": " + first.json() + ", \"later\": " + later.json() + "}\n"
                 : first.markdown() + "\n" + later.markdown());
  return 0;
}

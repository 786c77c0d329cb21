// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.replay - plays a trace against an allocator and measures it.
//
// The allocator is anything that satisfies `replayable`; a pass calls it event by event. A timed
// pass reads the clock before the first event and after the last, so that the figure is the
// allocator's (and the loop's: an index and a branch an event). An observed pass queries the memory
// held after each event, and is not timed. A pass may be repeated: reset() frees, untimed, what the
// trace leaves live.
//
// - An allocation that fails is counted, and its free is skipped; every other free must succeed
//   or is counted too.
// - A pass allocates nothing on the host itself; reset() does.
//
// Thread safety: one replayer a thread. Cost: linear in the events.
export module vmm.replay;

export import vmm.backend;
export import vmm.trace;
export import :picture;
export import :report;
export import :run;
export import :seeds;
import vmm.std;

namespace vmm::tools {

/// What a request to an allocator consists of.
export struct replay_request {
  std::uint64_t size_bytes = 0;
  std::uint16_t stream = 0;
};

/// An allocator under test. held_bytes is the physical memory it holds now, for whatever purpose.
/// One that frees in the order of a stream also has free(at, stream), with the number of the
/// allocation's.
export template <class A>
concept replayable = requires(A& a, const A& c, const replay_request& request, address at) {
  { a.allocate(request) } -> std::same_as<result<address>>;
  { a.free(at) } -> std::same_as<status>;
  { c.held_bytes() } -> std::same_as<std::uint64_t>;
};

/// Plays one trace against one allocator, any number of times. Both outlive it.
export template <replayable A>
class replayer {
 public:
  replayer(A& subject, const trace& input)
      : subject_(subject), input_(input), live_(input.slot_count, address{}) {}

  /// The whole trace. Nothing may be live: call reset() between passes. `progress`, if not null, is
  /// called some forty times with the number of events done, while the clock stands.
  [[nodiscard]] timed_pass play(const std::function<void(std::uint64_t)>& progress = {}) {
    using clock = std::chrono::steady_clock;
    constexpr std::size_t part_count = 40;
    const std::size_t total = input_.events.size();
    const std::size_t part = progress ? total / part_count + 1 : total;
    timed_pass out;
    for (std::size_t begin = 0; begin < total; begin += part) {
      const std::size_t end = std::min(begin + part, total);
      const auto started = clock::now();
      for (std::size_t i = begin; i < end; ++i) step(i, out.failures);
      out.elapsed_ns += std::chrono::duration<double, std::nano>(clock::now() - started).count();
      if (progress) progress(end);
    }
    return out;
  }

  /// The whole trace, looking for the most memory held after an event.
  [[nodiscard]] observed_pass observe() {
    observed_pass out;
    for (std::size_t i = 0; i < input_.events.size(); ++i) {
      step(i, out.failures);
      const std::uint64_t held_bytes = subject_.held_bytes();
      if (held_bytes > out.peak_held_bytes) {
        out.peak_held_bytes = held_bytes;
        out.peak_event = i;
      }
    }
    return out;
  }

  /// The trace up to and including event `last`.
  [[nodiscard]] failure_list play_until(std::uint64_t last) {
    failure_list out;
    for (std::size_t i = 0; i <= last && i < input_.events.size(); ++i) step(i, out);
    return out;
  }

  /// Frees the live blocks, slot by slot.
  [[nodiscard]] failure_list reset() {
    failure_list out;
    std::vector<std::uint16_t> streams(live_.size());
    for (const event& each : input_.events) streams[each.slot] = each.stream;
    for (std::size_t slot = 0; slot < live_.size(); ++slot) {
      address& at = live_[slot];
      if (!at) continue;
      if (const status freed = free(at, streams[slot]); !freed) {
        out.add({input_.events.size(), freed.error()});
      }
      at = {};
    }
    return out;
  }

 private:
  void step(std::size_t index, failure_list& failures) {
    const event& now = input_.events[index];
    address& at = live_[now.slot];
    if (now.kind == event_kind::allocate) {
      const result<address> got = subject_.allocate({now.size_bytes, now.stream});
      if (got) [[likely]] {
        at = *got;
      } else {
        failures.add({index, got.error()});
      }
      return;
    }
    if (!at) return;
    if (const status freed = free(at, now.stream); !freed) [[unlikely]] {
      failures.add({index, freed.error()});
    }
    at = {};
  }

  [[nodiscard]] status free(address at, std::uint16_t stream) {
    if constexpr (requires { subject_.free(at, stream); }) {
      return subject_.free(at, stream);
    } else {
      return subject_.free(at);
    }
  }

  A& subject_;
  const trace& input_;
  std::vector<address> live_;
};

}  // namespace vmm::tools

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Whole numbers only, so that a seed changes a size alike on every machine.
module vmm.trace;

import vmm.std;

namespace vmm::tools {
namespace {

constexpr std::uint64_t factor_unit = 100'000;
constexpr std::uint64_t factor_least = 97'000;
constexpr std::uint64_t factor_count = 6'001;  // up to 103,000, both ends taken

/// SplitMix64's last step: every bit of the result hangs on every bit of `value`.
constexpr std::uint64_t mixed(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

constexpr std::uint64_t jittered(std::uint64_t size_bytes, std::uint64_t seed) {
  const std::uint64_t factor =
      factor_least + mixed(size_bytes + mixed(seed + 0x9e3779b97f4a7c15u)) % factor_count;
  const std::uint64_t whole = size_bytes / factor_unit * factor;
  return std::max<std::uint64_t>(1, whole + size_bytes % factor_unit * factor / factor_unit);
}

}  // namespace

void jitter_sizes(trace& input, std::uint64_t seed) {
  std::uint64_t live_bytes = 0;
  input.peak_live_bytes = 0;
  input.peak_live_event = 0;
  for (std::uint64_t i = 0; i < input.events.size(); ++i) {
    event& now = input.events[i];
    now.size_bytes = jittered(now.size_bytes, seed);
    if (now.kind == event_kind::free) {
      live_bytes -= live_bytes_of(now.size_bytes);
      continue;
    }
    live_bytes += live_bytes_of(now.size_bytes);
    if (live_bytes <= input.peak_live_bytes) continue;
    input.peak_live_bytes = live_bytes;
    input.peak_live_event = i;
  }
  input.end_live_bytes = live_bytes;
}

}  // namespace vmm::tools

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module vmm.stream;

import vmm.backend;
import vmm.base;
import vmm.observe;
import vmm.physical;
import vmm.std;
import vmm.timeline;
import vmm.va;

namespace vmm {

namespace {

const char* name_of(pool_region_kind kind) noexcept {
  check(kind <= pool_region_kind::busy, "a region is of no kind");
  switch (kind) {
    case pool_region_kind::live: return "live";
    case pool_region_kind::free: return "free";
    case pool_region_kind::hole: return "hole";
    case pool_region_kind::stale: return "stale";
    default: return "busy";
  }
}

void append_numbers(std::string& text, const pool_statistics& now) {
  const std::pair<const char*, std::uint64_t> lines[] = {
      {"mapped", now.mapped_bytes},     {"reserved", now.reserved_bytes}, {"live", now.live_bytes},
      {"reusable", now.reusable_bytes}, {"captured", now.captured_bytes}, {"holes", now.hole_bytes},
      {"stale", now.stale_bytes}};
  for (const auto& [name, bytes] : lines)
    text.append(name).append(" ").append(std::to_string(bytes)).append("\n");
  check(!text.empty(), "a pool has no numbers");
}

std::string hexadecimal(std::uint64_t value) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text;
  do {
    text.insert(text.begin(), digits[value % 16]);
    value /= 16;
  } while (value != 0);
  check(text.size() <= 16, "a number of 64 bits has more digits than it can");
  return "0x" + text;
}

void append_region(std::string& text, const pool_region& each) {
  check(!each.range.empty(), "an empty region is shown");
  text.append(hexadecimal(each.range.base.value)).append(" ");
  text.append(std::to_string(each.range.size_bytes)).append(" ").append(name_of(each.kind));
  if (each.kind == pool_region_kind::free)
    text.append(" stream ").append(hexadecimal(static_cast<std::uint64_t>(each.stream)));
  text.append("\n");
}

}  // namespace

std::string written(const pool_statistics& now, std::span<const pool_region> regions) {
  std::string text;
  append_numbers(text, now);
  for (const pool_region& each : regions) append_region(text, each);
  return text;
}

}  // namespace vmm

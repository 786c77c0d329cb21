// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: no sequence of calls makes the range allocator differ from the naive model, or breaks one
// of its invariants.
// Method: the first two bytes choose the range, each three bytes after them one call; both sides
// are compared wholly after 16 calls, 32, 64 and so on, and at the end, when all is freed. Where
// they differ, the input runs once more, compared after each call.

#include "../tests/va/checked_range.hpp"

import vmm.va;

namespace {

constexpr std::size_t calls_max = 512;

struct shape {
  std::uint32_t count_granules;
  std::uint32_t size_min;
  std::uint32_t size_mask;
  std::uint32_t stride;
};

// Sizes that share exact bins, one wide bin, few values of one, two bins, or a deep trie.
constexpr shape shapes[] = {
    {256, 1, 15, 1},
    {4'096, 250, 15, 1},
    {200'000, 4096, 31, 1},
    {40'000, 1024, 3, 1},
    {2'000'000, 32'704, 127, 1},
    {vmm::max_range_granules, 1 << 22, 255, 129},
    {100'000, 1, 255, 17},
    {1, 1, 1, 1},
};

vmm::range_options options_of(const std::uint8_t* head) {
  return {
      .count_granules = shapes[head[0] % std::size(shapes)].count_granules,
      .origin_granules = head[1] & 15u,
      .max_blocks = (head[1] & 16u) != 0 ? 12u : 0u,
  };
}

struct step {
  std::uint8_t kind;
  std::uint8_t a;
  std::uint8_t b;
};

void run(checked_range& range, const shape& s, step now) {
  const std::uint32_t size = s.size_min + (now.a & s.size_mask) * s.stride;
  const std::size_t live = range.live_count();
  const std::size_t nth = live == 0 ? 0 : now.b % live;
  switch (now.kind % 16) {
    case 0:
    case 1:
    case 2:
    case 3:
    case 4: range.allocate({size, 1}); return;
    case 5:
    case 6:
    case 7: range.allocate({size, 1u << (now.b % 12)}); return;
    default: break;
  }
  if (live == 0) return;
  switch (now.kind % 16) {
    case 8: range.grow(nth, now.a); return;
    case 9: range.shrink(nth, now.a); return;
    case 10: range.split(nth, now.a); return;
    default: range.free(nth); return;
  }
}

// Both sides wholly after the calls 16, 32, 64, ..., or after each.
enum class comparing : std::uint8_t { rarely, always };

// What differs, or nullptr.
const char* play(const std::uint8_t* data, std::size_t size, comparing how) {
  checked_range range(options_of(data));
  const shape& s = shapes[data[0] % std::size(shapes)];
  std::size_t next_comparison = how == comparing::always ? 1 : 16;
  for (std::size_t call = 0; call < calls_max && 2 + 3 * (call + 1) <= size; ++call) {
    const std::uint8_t* const at = data + 2 + 3 * call;
    run(range, s, {at[0], at[1], at[2]});
    if (call + 1 == next_comparison) {
      range.compare();
      next_comparison = how == comparing::always ? call + 2 : 2 * next_comparison;
    }
    if (range.difference() == nullptr) continue;
    if (how == comparing::always) std::fprintf(stderr, "fuzz_va: in call %zu:\n", call);
    return range.difference();
  }
  range.compare();
  range.free_all();
  return range.difference();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 5) return 0;
  const char* difference = play(data, size, comparing::rarely);
  if (difference == nullptr) return 0;
  // Once more, for the first call that is wrong.
  std::fprintf(stderr, "fuzz_va: %s\n", difference);
  if (difference = play(data, size, comparing::always); difference != nullptr)
    std::fprintf(stderr, "fuzz_va: %s, first\n", difference);
  std::abort();
}

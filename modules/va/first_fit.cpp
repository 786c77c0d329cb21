// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "any_nonzero.h"

module vmm.va;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {

result<first_fit> first_fit::create(std::uint32_t slot_count) noexcept {
  first_fit made;
  std::uint32_t words = 0;
  std::uint32_t count = leaf(std::max(slot_count, 1u) - 1) + 1;
  do {
    check(made.level_count_ < level_count_max, "a tree of maxima is deeper than it can be");
    made.begin_[made.level_count_] = words;
    const auto padded = static_cast<std::uint32_t>(round_up(count, fanout));
    made.count_[made.level_count_++] = padded;
    words += padded;
    count = padded / fanout;
  } while (made.count_[made.level_count_ - 1] > fanout);
  check(words / 2 >= slot_count && made.count_[made.level_count_ - 1] == fanout,
        "a tree of maxima has no root, or fewer leaves than slots");
  const std::uint64_t size_bytes = std::uint64_t{words} * sizeof(std::uint32_t);
  result<reserved_memory> memory =
      reserved_memory::make(size_bytes, "no host memory for the index of large places");
  if (!memory) return memory.error();
  made.memory_ = std::move(*memory);
  made.words_ = reinterpret_cast<std::uint32_t*>(made.memory_.data());
  check(reinterpret_cast<std::uintptr_t>(made.words_) % (fanout * sizeof(std::uint32_t)) == 0,
        "a node of the tree lies across two cache lines");
  return result<first_fit>(std::move(made));
}

namespace {

// Which of sixteen words are `size` or larger, a bit each. Words are signed: a region is smaller.
[[nodiscard]] inline std::uint32_t reaching(const std::uint32_t* words,
                                            std::uint32_t size) noexcept {
#if defined(__SSE2__)
  const __m128i below = _mm_set1_epi32(static_cast<int>(size) - 1);
  const auto four = [&](int which) {
    const auto* const from = reinterpret_cast<const __m128i*>(words) + which;
    return _mm_cmpgt_epi32(_mm_load_si128(from), below);
  };
  const __m128i low = _mm_packs_epi32(four(0), four(1));
  const __m128i high = _mm_packs_epi32(four(2), four(3));
  return static_cast<std::uint32_t>(_mm_movemask_epi8(_mm_packs_epi16(low, high)));
#else
  std::uint32_t mask = 0;
  for (std::uint32_t child = 0; child < 16; ++child)
    mask |= (static_cast<int>(words[child]) >= static_cast<int>(size) ? 1U : 0U) << child;
  return mask;
#endif
}

}  // namespace

// Takes the levels in use that `leaf_node` needs.
void first_fit::widen(std::uint32_t leaf_node) noexcept {
  while (leaf_node >= reach_) {
    check(used_count_ < level_count_, "a place is noted beyond the last slot");
    words_[begin_[used_count_]] = largest_of(words_ + begin_[used_count_ - 1], used_count_ - 1);
    reach_ *= fanout;
    ++used_count_;
  }
  check(leaf_node < reach_, "a slot is outside of the levels in use");
}

std::uint32_t first_fit::find(std::uint32_t size) const noexcept {
  if (level_count_ == 0) return none;
  debug_check([&] { return size != 0 && size <= size_max; }, "a place of size 0 is looked for");
  std::uint32_t index = 0;  // of a node: sixteen words of a level
  std::uint32_t level = used_count_ - 1;
  for (;;) {
    debug_check([&] { return index * fanout < count_[level]; }, "a node is not in its level");
    const std::uint32_t* const words = words_ + begin_[level] + index * fanout;
    const std::uint32_t large_enough = reaching(words, size);
    if (large_enough == 0) [[unlikely]] {
      if (level + 1 == used_count_) return none;
      words_[begin_[level + 1] + index] = largest_of(words, level);  // it promised too much
      ++level;
      index /= fanout;
      continue;
    }
    index = index * fanout + static_cast<std::uint32_t>(std::countr_zero(large_enough));
    if (level-- == 0) {
      debug_check([&] { return index % fanout < leaf_slots && words_[index] >= size; },
                  "a place is found that is too small");
      return index / fanout * leaf_slots + index % fanout;
    }
  }
}

// Slots behind those in use are not checked: set() asserts that it writes before them.
const char* first_fit::broken_invariant(std::uint32_t place_count) const noexcept {
  constexpr std::uint32_t at_a_look = fanout * fanout;
  std::uint32_t seen_count = 0;
  std::uint32_t nodes = reach_;
  for (std::uint32_t level = 0; level < used_count_ && level < level_count_; ++level) {
    const bool top = level + 1 == used_count_;
    const std::uint32_t end = std::min(count_[level], nodes * fanout);
    for (std::uint32_t index = 0; index < end; index += fanout) {
      const std::uint32_t* const words = words_ + begin_[level] + index;
      const std::uint32_t* const above =
          top ? nullptr : words_ + begin_[level + 1] + index / fanout;
      if (index % at_a_look == 0 && index + at_a_look <= end && !any_nonzero(words, at_a_look) &&
          (top || !any_nonzero(above, fanout))) {
        index += at_a_look - fanout;
        continue;
      }
      if (level == 0) {
        seen_count += static_cast<std::uint32_t>(
            std::count_if(words, words + leaf_slots, [](std::uint32_t size) { return size != 0; }));
      }
      if (!top && *above < largest_of(words, level))
        return "I1: a word above is smaller than one of those below it";
    }
    nodes /= fanout;
  }
  for (std::uint32_t level = used_count_; level < level_count_; ++level) {
    if (any_nonzero(words_ + begin_[level], count_[level]))
      return "a level that is not in use is not empty";
  }
  return seen_count == place_count ? nullptr : "the index of large places misses one";
}

}  // namespace vmm

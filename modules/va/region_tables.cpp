// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The cold halves of first_fit and page_starts.
module;
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "any_set.h"

module vmm.va;

import vmm.backend;

namespace vmm {

result<first_fit> first_fit::create(std::uint32_t slot_count) noexcept {
  first_fit made;
  std::uint32_t words = 0;
  std::uint32_t count = std::max(slot_count, 1u);
  do {
    check(made.level_count_ < level_count_max, "a tree of maxima is deeper than it can be");
    made.begin_[made.level_count_] = words;
    const auto padded = static_cast<std::uint32_t>(round_up(count, fanout));
    made.count_[made.level_count_++] = padded;
    words += padded;
    count = padded / fanout;
  } while (made.count_[made.level_count_ - 1] > fanout);
  const std::uint64_t size_bytes = std::uint64_t{words} * sizeof(std::uint32_t);
  result<reserved_memory> memory = reserved_memory::reserve(size_bytes);
  if (!memory) return memory.error();
  if (!memory->commit(size_bytes))
    return refuse(errc::out_of_host_memory, "no host memory for the index of large places");
  made.memory_ = std::move(*memory);
  made.words_ = reinterpret_cast<std::uint32_t*>(made.memory_.data());
  return result<first_fit>(std::move(made));
}

namespace {

// Which of sixteen words are `size` or larger, a bit each. Both are below 2^31.
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
    mask |= (words[child] >= size ? 1U : 0U) << child;
  return mask;
#endif
}

}  // namespace

// Takes the levels in use that `leaf_node` needs.
void first_fit::widen(std::uint32_t leaf_node) noexcept {
  while (leaf_node >= reach_) {
    check(used_count_ < level_count_, "a place is noted beyond the last slot");
    words_[begin_[used_count_]] = largest_of(words_ + begin_[used_count_ - 1]);
    reach_ *= fanout;
    ++used_count_;
  }
}

std::uint32_t first_fit::find(std::uint32_t size) const noexcept {
  if (level_count_ == 0) return none;
  std::uint32_t index = 0;  // of a node: sixteen words of a level
  std::uint32_t level = used_count_ - 1;
  for (;;) {
    const std::uint32_t* const words = words_ + begin_[level] + index * fanout;
    const std::uint32_t large_enough = reaching(words, size);
    if (large_enough == 0) [[unlikely]] {
      if (level + 1 == used_count_) return none;
      words_[begin_[level + 1] + index] = largest_of(words);  // it promised too much
      ++level;
      index /= fanout;
      continue;
    }
    index = index * fanout + static_cast<std::uint32_t>(std::countr_zero(large_enough));
    if (level-- == 0) return index;
  }
}

const char* first_fit::broken_invariant(std::uint32_t place_count) const noexcept {
  std::uint32_t seen_count = 0;
  for (std::uint32_t level = 0; level < level_count_; ++level) {
    for (std::uint32_t index = 0; index < count_[level]; index += fanout) {
      const std::uint32_t* const words = words_ + begin_[level] + index;
      const bool top = level + 1 >= used_count_;
      const bool empty = !any_set(words, fanout);
      if (empty && (top || words_[begin_[level + 1] + index / fanout] == 0)) continue;
      if (level == 0) {
        seen_count += static_cast<std::uint32_t>(
            std::count_if(words, words + fanout, [](std::uint32_t size) { return size != 0; }));
      }
      if (level >= used_count_) return "a level that is not in use is not empty";
      if (top) continue;
      if (words_[begin_[level + 1] + index / fanout] < largest_of(words))
        return "a word above is smaller than one of those below it";
    }
  }
  return seen_count == place_count ? nullptr : "the index of large places misses one";
}

result<page_starts> page_starts::create(std::uint32_t page_count) noexcept {
  page_starts made;
  made.page_count_ = page_count;
  std::uint32_t words = 0;
  std::uint32_t count = std::max(page_count, 1u);
  do {
    check(made.level_count_ < level_count_max, "a bitmap over pages is deeper than it can be");
    made.begin_[made.level_count_] = words;
    count = count / 64 + (count % 64 != 0 ? 1 : 0);
    made.count_[made.level_count_++] = count;
    words += count;
  } while (count > 1);
  const std::uint64_t bits_bytes = std::uint64_t{words} * sizeof(std::uint64_t);
  const std::uint64_t size_bytes = bits_bytes + std::uint64_t{page_count} * sizeof(std::uint32_t);
  result<reserved_memory> memory = reserved_memory::reserve(size_bytes);
  if (!memory) return memory.error();
  if (!memory->commit(size_bytes))
    return refuse(errc::out_of_host_memory, "no host memory for the index of pages");
  made.memory_ = std::move(*memory);
  made.bits_ = reinterpret_cast<std::uint64_t*>(made.memory_.data());
  made.firsts_ = reinterpret_cast<std::uint32_t*>(made.memory_.data() + bits_bytes);
  return result<page_starts>(std::move(made));
}

// A word of the lowest level has become 0, or is so no more.
void page_starts::flip_above(std::uint32_t word) noexcept {
  std::uint32_t index = word;
  for (std::uint32_t level = 1; level < level_count_; ++level) {
    std::uint64_t& above = bits_[begin_[level] + index / 64];
    const std::uint64_t before = above;
    above ^= std::uint64_t{1} << (index % 64);
    if (before != 0 && above != 0) return;
    index /= 64;
  }
}

std::uint32_t page_starts::next(std::uint32_t page) const noexcept {
  std::uint32_t index = page;
  for (std::uint32_t level = 0; level < level_count_; ++level) {
    if (index / 64 >= count_[level]) return page_count_;
    const std::uint64_t bits =
        bits_[begin_[level] + index / 64] & (~std::uint64_t{0} << (index % 64));
    if (bits == 0) {
      index = index / 64 + 1;
      continue;
    }
    index = index / 64 * 64 + static_cast<std::uint32_t>(std::countr_zero(bits));
    while (level-- > 0) {
      const std::uint64_t below = bits_[begin_[level] + index];
      index = index * 64 + static_cast<std::uint32_t>(std::countr_zero(below));
    }
    return index;
  }
  return page_count_;
}

const char* page_starts::broken_invariant() const noexcept {
  for (std::uint32_t first = 0; first < page_count_; first += 64) {
    const std::uint64_t bits = bits_[begin_[0] + first / 64];
    const std::uint32_t end = std::min(first + 64, page_count_);
    if (bits == 0) {  // most are: 64 records at a look
      if (any_set(firsts_ + first, end - first)) return "a page's bit disagrees with its record";
      continue;
    }
    for (std::uint32_t page = first; page < end; ++page) {
      const bool marked = (bits >> (page % 64) & 1) != 0;
      if (marked != (firsts_[page] != 0)) return "a page's bit disagrees with its record";
    }
  }
  for (std::uint32_t level = 0; level + 1 < level_count_; ++level) {
    for (std::uint32_t word = 0; word < count_[level]; ++word) {
      const bool marked = (bits_[begin_[level + 1] + word / 64] >> (word % 64) & 1) != 0;
      if (marked != (bits_[begin_[level] + word] != 0))
        return "a bit above disagrees with the word below it";
    }
  }
  return nullptr;
}

}  // namespace vmm

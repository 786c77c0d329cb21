// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include "any_nonzero.h"

module vmm.va;

import vmm.backend;
import vmm.std;
import vmm.support;

namespace vmm {

result<first_region_by_page> first_region_by_page::create(std::uint32_t page_count) noexcept {
  first_region_by_page made;
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
  check(made.count_[made.level_count_ - 1] == 1, "a bitmap over pages has no root");
  const std::uint64_t bits_bytes = std::uint64_t{words} * sizeof(std::uint64_t);
  const std::uint64_t size_bytes = bits_bytes + std::uint64_t{page_count} * sizeof(std::uint32_t);
  result<reserved_memory> memory =
      reserved_memory::make(size_bytes, "no host memory for the index of pages");
  if (!memory) return memory.error();
  made.memory_ = std::move(*memory);
  made.bits_ = reinterpret_cast<std::uint64_t*>(made.memory_.data());
  made.firsts_ = reinterpret_cast<std::uint32_t*>(made.memory_.data() + bits_bytes);
  check(made.memory_.committed_bytes() >= size_bytes, "the index of pages has too little memory");
  return result<first_region_by_page>(std::move(made));
}

// A word of the lowest level has become 0, or is so no more.
void first_region_by_page::flip_above(std::uint32_t word) noexcept {
  debug_check([&] { return word < count_[0]; }, "a word of the bitmap is not there");
  std::uint32_t index = word;
  for (std::uint32_t level = 1; level < level_count_; ++level) {
    debug_check([&] { return index / 64 < count_[level]; }, "a bitmap over pages is too short");
    std::uint64_t& above = bits_[begin_[level] + index / 64];
    const std::uint64_t before = above;
    above ^= std::uint64_t{1} << (index % 64);
    if (before != 0 && above != 0) return;
    index /= 64;
  }
}

std::uint32_t first_region_by_page::next(std::uint32_t page) const noexcept {
  debug_check([&] { return page <= page_count_; }, "a page is asked for that is not there");
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
      debug_check([&] { return below != 0; }, "a bit above says that an empty word is not");
      index = index * 64 + static_cast<std::uint32_t>(std::countr_zero(below));
    }
    debug_check([&] { return index >= page && index < page_count_ && firsts_[index] != 0; },
                "a page is found in which no region begins");
    return index;
  }
  return page_count_;
}

namespace {

// Up to the last that is not 0.
std::uint32_t count_in_use(const std::uint64_t* words, std::uint32_t count) noexcept {
  constexpr std::uint32_t at_a_look = 64;
  check(words != nullptr || count == 0, "the index of pages has no words");
  while (count != 0) {
    const std::uint32_t step = (count - 1) % at_a_look + 1;
    const auto* const last = reinterpret_cast<const std::uint32_t*>(words + (count - step));
    if (any_nonzero(last, std::size_t{step} * 2)) break;
    count -= step;
  }
  while (count != 0 && words[count - 1] == 0) --count;
  return count;
}

}  // namespace

// Records behind the last bit are not looked at: set() writes a record and its bit together, and
// they are nearly all of the range.
const char* first_region_by_page::broken_invariant() const noexcept {
  std::uint32_t words = count_in_use(bits_ + begin_[0], count_[0]);
  const std::uint32_t pages = std::min(words * 64, page_count_);
  for (std::uint32_t first = 0; first < pages; first += 64) {
    const std::uint64_t bits = bits_[begin_[0] + first / 64];
    const std::uint32_t end = std::min(first + 64, page_count_);
    if (bits == 0) {  // most are: 64 records at a look
      if (any_nonzero(firsts_ + first, end - first))
        return "a page's bit disagrees with its record";
      continue;
    }
    for (std::uint32_t page = first; page < end; ++page) {
      const bool marked = (bits >> (page % 64) & 1) != 0;
      if (marked != (firsts_[page] != 0)) return "a page's bit disagrees with its record";
    }
  }
  for (std::uint32_t level = 0; level + 1 < level_count_; ++level) {
    const std::uint64_t* const above = bits_ + begin_[level + 1];
    for (std::uint32_t word = 0; word < words; ++word) {
      const bool marked = (above[word / 64] >> (word % 64) & 1) != 0;
      if (marked != (bits_[begin_[level] + word] != 0))
        return "a bit above disagrees with the word below it";
    }
    // Behind them every word is 0, and so is every bit.
    const std::uint32_t rest = words % 64;
    if (rest != 0 && above[words / 64] >> rest != 0)
      return "a bit above disagrees with the word below it";
    words = words / 64 + (rest != 0 ? 1 : 0);
    if (any_nonzero(reinterpret_cast<const std::uint32_t*>(above + words),
                    std::size_t{count_[level + 1] - words} * 2))
      return "a bit above disagrees with the word below it";
  }
  return nullptr;
}

}  // namespace vmm

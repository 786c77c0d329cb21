// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include "any_nonzero.h"

module vmm.va;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {

result<first_region_by_page> first_region_by_page::create(std::uint32_t page_count) noexcept {
  first_region_by_page made;
  made.page_count_ = page_count;
  const std::uint32_t groups = page_count / group_pages + (page_count % group_pages != 0 ? 1 : 0);
  made.group_count_ = std::max(groups, 1u);
  std::uint32_t words = 0;
  std::uint32_t count = made.group_count_;
  do {
    check(made.level_count_ < level_count_max, "a bitmap over pages is deeper than it can be");
    made.begin_[made.level_count_] = words;
    count = count / 64 + (count % 64 != 0 ? 1 : 0);
    made.count_[made.level_count_++] = count;
    words += count;
  } while (count > 1);
  check(made.count_[made.level_count_ - 1] == 1, "a bitmap over pages has no root");
  const std::uint64_t firsts_bytes =
      std::uint64_t{made.group_count_} * group_pages * sizeof(std::uint32_t);
  const std::uint64_t size_bytes = firsts_bytes + std::uint64_t{words} * sizeof(std::uint64_t);
  result<reserved_memory> memory =
      reserved_memory::make(size_bytes, "no host memory for the index of pages");
  if (!memory) return memory.error();
  made.memory_ = std::move(*memory);
  made.firsts_ = reinterpret_cast<std::uint32_t*>(made.memory_.data());
  made.bits_ = reinterpret_cast<std::uint64_t*>(made.memory_.data() + firsts_bytes);
  check(made.memory_.committed_bytes() >= size_bytes, "the index of pages has too little memory");
  return result<first_region_by_page>(std::move(made));
}

// A group gets its first record, or loses its last.
void first_region_by_page::flip(std::uint32_t group) noexcept {
  debug_check([&] { return group / 64 < count_[0]; }, "a group of pages has no bit");
  std::uint32_t index = group;
  for (std::uint32_t level = 0; level < level_count_; ++level) {
    debug_check([&] { return index / 64 < count_[level]; }, "a bitmap over pages is too short");
    std::uint64_t& word = bits_[begin_[level] + index / 64];
    const std::uint64_t before = word;
    word ^= std::uint64_t{1} << (index % 64);
    if (before != 0 && word != 0) return;
    index /= 64;
  }
}

// The first group from `group` on that has a record; else group_count_.
std::uint32_t first_region_by_page::next_group(std::uint32_t group) const noexcept {
  debug_check([&] { return group <= group_count_; }, "the group does not exist");
  std::uint32_t index = group;
  for (std::uint32_t level = 0; level < level_count_; ++level) {
    if (index / 64 >= count_[level]) return group_count_;
    const std::uint64_t bits =
        bits_[begin_[level] + index / 64] & (~std::uint64_t{0} << (index % 64));
    if (bits == 0) {
      index = index / 64 + 1;
      continue;
    }
    index = index / 64 * 64 + static_cast<std::uint32_t>(std::countr_zero(bits));
    while (level-- > 0) {
      const std::uint64_t below = bits_[begin_[level] + index];
      debug_check([&] { return below != 0; }, "the upper bit of an empty word is set");
      index = index * 64 + static_cast<std::uint32_t>(std::countr_zero(below));
    }
    debug_check([&] { return index >= group && index < group_count_ && has_any(index); },
                "a group is found in which no region begins");
    return index;
  }
  return group_count_;
}

std::uint32_t first_region_by_page::next(std::uint32_t page) const noexcept {
  debug_check([&] { return page <= page_count_; }, "the page does not exist");
  for (; page % group_pages != 0; ++page) {
    if (page >= page_count_ || firsts_[page] != 0) return std::min(page, page_count_);
  }
  const std::uint32_t group = next_group(page / group_pages);
  if (group == group_count_) return page_count_;
  std::uint32_t found = group * group_pages;
  while (firsts_[found] == 0) ++found;
  debug_check([&] { return found >= page && found < page_count_; }, "a page is found too early");
  return found;
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

// Records behind the last bit are not checked: set() writes a record and its group's bit, and they
// are nearly all of the range.
const char* first_region_by_page::broken_invariant() const noexcept {
  std::uint32_t words = count_in_use(bits_ + begin_[0], count_[0]);
  const std::uint32_t groups = std::min(words * 64, group_count_);
  for (std::uint32_t first = 0; first < groups; first += 64) {
    const std::uint64_t bits = bits_[begin_[0] + first / 64];
    const std::uint32_t end = std::min(first + 64, group_count_);
    if (bits == 0) {  // most are: 1,024 records at a time
      if (any_nonzero(firsts_ + first * group_pages, (end - first) * group_pages))
        return "I1: a group's bit disagrees with its records";
      continue;
    }
    for (std::uint32_t group = first; group < end; ++group) {
      if (is_marked(group) != has_any(group)) return "I1: a group's bit disagrees with its records";
    }
  }
  for (std::uint32_t page = page_count_; page < group_count_ * group_pages; ++page) {
    if (firsts_[page] != 0) return "a region begins in a missing page";
  }
  for (std::uint32_t level = 0; level + 1 < level_count_; ++level) {
    const std::uint64_t* const above = bits_ + begin_[level + 1];
    for (std::uint32_t word = 0; word < words; ++word) {
      const bool marked = (above[word / 64] >> (word % 64) & 1) != 0;
      if (marked != (bits_[begin_[level] + word] != 0))
        return "I1: a bit above disagrees with the word below it";
    }
    // Behind them every word is 0, and so is every bit.
    const std::uint32_t rest = words % 64;
    if (rest != 0 && above[words / 64] >> rest != 0)
      return "I1: a bit above disagrees with the word below it";
    words = words / 64 + (rest != 0 ? 1 : 0);
    if (any_nonzero(reinterpret_cast<const std::uint32_t*>(above + words),
                    std::size_t{count_[level + 1] - words} * 2))
      return "I1: a bit above disagrees with the word below it";
  }
  return nullptr;
}

}  // namespace vmm

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include <sys/mman.h>

module vmm.stream;

import vmm.backend;
import vmm.base;
import vmm.std;
import vmm.va;

namespace vmm {

namespace {

// Slots are accessed at random, so with small pages most of the time is address translation. A
// hint, for the whole huge pages of the table, before the first write.
void prefer_huge_pages(void* memory, std::size_t size_bytes) noexcept {
  constexpr std::uintptr_t huge_page_bytes = std::uintptr_t{2} << 20;
  check(memory != nullptr && size_bytes != 0, "no memory is to lie in huge pages");
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  const std::uintptr_t first = (begin + huge_page_bytes - 1) / huge_page_bytes * huge_page_bytes;
  const std::uintptr_t last = (begin + size_bytes) / huge_page_bytes * huge_page_bytes;
  if (first < last) (void)::madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
}

}  // namespace

// A full bucket has lost an entry: a later one that had to pass it takes its place, and so on.
[[gnu::noinline]] void live_block_table::fill_gap(std::uint32_t gap, std::uint32_t slot) noexcept {
  check(slot < slots && buckets_[gap].offsets[slot] == nowhere, "the filled slot is not a gap");
  for (std::uint32_t at = (gap + 1) & mask_;; at = (at + 1) & mask_) {
    bucket& in = buckets_[at];
    const bool is_full = slots_of(in, nowhere) == 0;
    for (std::uint32_t from = 0; from < slots; ++from) {
      if (in.offsets[from] == nowhere) continue;
      const std::uint32_t walked = (at - home(in.offsets[from])) & mask_;
      if (walked < ((at - gap) & mask_)) continue;
      check(in.regions[from] != region_id::none, "a table of blocks names no region");
      buckets_[gap].offsets[slot] = std::exchange(in.offsets[from], nowhere);
      buckets_[gap].regions[slot] = in.regions[from];
      gap = at;
      slot = from;
      break;
    }
    if (!is_full) return;
  }
}

// Out of line, as begin_taking() is: insert() and take() are inline.
void live_block_table::set_start(std::uint32_t offset) noexcept {
  std::uint64_t& word = starts().words[offset / 64];
  const std::uint64_t bit = std::uint64_t{1} << (offset % 64);
  check((word & bit) == 0, "I3: two blocks begin at one address");
  word |= bit;
  ++starts().count;
}

bool live_block_table::begin_taking(std::uint32_t offset) noexcept {
  std::uint64_t& word = starts().words[offset / 64];
  const std::uint64_t bit = std::uint64_t{1} << (offset % 64);
  if ((word & bit) == 0) return false;
  check(starts().count != 0, "I3: more blocks are taken than begin");
  word &= ~bit;
  --starts().count;
  return true;
}

bool live_block_table::grow(std::uint32_t count_granules) noexcept {
  const std::uint32_t old_count = bucket_count();
  const std::uint32_t wanted = old_count == 0 ? first_buckets : old_count * 2;
  check(wanted > old_count, "a table of blocks has more buckets than can be counted");
  const bool was_large = is_large();
  const bool becomes_large = std::uint64_t{wanted} * (slots / 2) > few_max;
  start_bits bits = was_large ? starts() : start_bits{};
  if (becomes_large && !was_large) {
    bits.words = static_cast<std::uint64_t*>(
        std::calloc(std::size_t{count_granules} / 64 + 1, sizeof(std::uint64_t)));
    if (bits.words == nullptr) return false;
  }
  const std::size_t size_bytes = wanted * sizeof(bucket) + (becomes_large ? sizeof(start_bits) : 0);
  void* const memory = ::operator new(size_bytes, std::align_val_t{alignof(bucket)}, std::nothrow);
  if (memory == nullptr) {
    if (!was_large) std::free(bits.words);
    return false;
  }
  prefer_huge_pages(memory, size_bytes);
  std::memset(memory, 0xFF, size_bytes);
  std::unique_ptr<bucket[], free_buckets> larger{static_cast<bucket*>(memory)};
  std::swap(buckets_, larger);
  mask_ = wanted - 1;
  if (becomes_large) starts() = bits;
  const std::uint32_t before = std::exchange(count_, 0);
  for (std::uint32_t i = 0; i < old_count; ++i) {
    for (std::uint32_t slot = 0; slot < slots; ++slot) {
      const std::uint32_t offset = larger[i].offsets[slot];
      if (offset == nowhere) continue;
      place(offset, larger[i].regions[slot]);
      if (becomes_large && !was_large) set_start(offset);
    }
  }
  check(count_ == before, "a table of blocks lost an entry in its growth");
  check(count_ < count_max(), "a table of blocks has grown and is full");
  return true;
}

const char* live_block_table::broken_invariant() const noexcept {
  std::uint32_t seen_count = 0;
  std::uint32_t start_count = 0;
  for (std::uint32_t i = 0; i < bucket_count(); ++i) {
    for (const std::uint32_t offset : buckets_[i].offsets) {
      if (offset == nowhere) continue;
      ++seen_count;
      if (is_large()) start_count += starts().words[offset / 64] >> (offset % 64) & 1;
      for (std::uint32_t at = home(offset); at != i; at = (at + 1) & mask_) {
        if (slots_of(buckets_[at], nowhere) != 0)
          return "I2: a block is not where it is looked for";
      }
    }
  }
  if (is_large() && start_count != starts().count) return "I3: a bit is set where no block begins";
  if (seen_count != count_) return "the count of a table of blocks is wrong";
  const bool half = count_ <= std::uint64_t{bucket_count()} * (slots / 2);
  return half ? nullptr : "I1: a table of blocks is too full";
}

}  // namespace vmm

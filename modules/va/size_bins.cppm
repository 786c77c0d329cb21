// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.va:size_bins - free blocks by size: bins behind a two-level bitmap, wide bins with an
// intrusive trie. Not exported.
//
// I1  A bin's bit is set exactly when the bin holds a block; a word's bit in the summary exactly
//     when the word is not 0.
// I2  Bins below exact_bins hold one size each, as a list, last in first out. Above, each octave
//     has 128 bins.
// I3  A wide bin's load is the length of its list; an exact bin's is always exact_load, so that one
//     comparison tells where a list is too long.
// I4  A wide bin is a list of at most list_limit blocks, or, with trie_load, a bitwise trie: a
//     vertex at depth d agrees with its path in the d highest bits below the bin's own, and blocks
//     of one size form a ring around one vertex. A vertex has no link to its parent: its size leads
//     there.
// I5  Only ring members that are no vertex carry ring_bit.
// I6  Index 0 is a real record that is never in a bin; unlinking writes to it instead of asking.
//
// Thread safety: none of its own. Cost: constant, plus a trie's depth in a wide bin, which the bits
// of the bin's width bound (22), not the number of blocks; find_aligned is linear.
module;
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

export module vmm.va:size_bins;

import vmm.backend;
import :records;

namespace vmm {

/// A search among holes for `count` granules whose offset plus `origin` is a multiple of
/// `alignment`, a power of two.
struct aligned_fit {
  std::uint32_t count = 1;
  std::uint32_t alignment = 1;
  std::uint32_t origin = 0;

  /// Granules to leave out at the front of a hole that begins at `offset`.
  [[nodiscard]] inline std::uint32_t lead(std::uint32_t offset) const noexcept {
    return (0u - (offset + origin)) & (alignment - 1);
  }
  [[nodiscard]] inline bool fits(const auto& hole) const noexcept {
    return std::uint64_t{lead(hole.offset)} + count <= hole.size();
  }
};

/// Over `Record`s, each with an offset, a size word and bin_links: hole_record or region_record.
template <class Record>
class size_bins {
 public:
  static constexpr std::uint32_t exact_bins = 256;
  static constexpr std::uint32_t bins_per_octave = 128;
  static constexpr std::int32_t list_limit = 8;

  // Without a branch: sizes on either side of exact_bins come in no order.
  [[nodiscard]] static inline std::uint32_t bin_of(std::uint32_t size) noexcept {
    const auto octave = static_cast<std::uint32_t>(std::bit_width(size | bins_per_octave)) - 8;
    return octave * bins_per_octave + (size >> octave);
  }

  /// Bytes that attach() needs, zeroed, for blocks of at most `size_max` granules.
  [[nodiscard]] static std::size_t table_bytes(std::uint32_t size_max) noexcept;
  void attach(Record* nodes, std::byte* table, std::uint32_t size_max) noexcept;

  /// The records lie elsewhere now, with the same contents.
  inline void rebase(Record* nodes) noexcept { nodes_ = nodes; }

  inline void insert(std::uint32_t index) noexcept { put_in(index, bin_of(nodes_[index].size())); }

  /// The same, for a caller that has the block's size at hand and nearly only exact ones.
  inline void insert(std::uint32_t index, std::uint32_t size) noexcept {
    if (size < exact_bins) [[likely]]
      return push_exact(index, size);
    put_in(index, bin_of(size));
  }

  inline void remove(std::uint32_t index) noexcept {
    take_out(index, bin_of(nodes_[index].size()));
  }

  /// Gives a block in the bins another size; within a list it stays where it is.
  inline void resize(std::uint32_t index, std::uint32_t size) noexcept {
    const std::uint32_t before = bin_of(nodes_[index].size());
    const std::uint32_t bin = bin_of(size);
    const bool stays = bin == before && bins_[bin].load <= list_limit;
    if (!stays) take_out(index, before);
    nodes_[index].size_word = size;
    if (!stays) put_in(index, bin);
  }

  /// Takes out a hole of exactly `count` granules, fewer than exact_bins; 0 when there is none.
  [[nodiscard]] inline std::uint32_t pop_exact(std::uint32_t count) noexcept {
    const std::uint32_t head = bins_[count].head;
    if (head == 0) return 0;
    const std::uint32_t next = nodes_[head].links.next;
    bins_[count].head = next;
    if (next == 0) unmark(count);
    return head;
  }

  /// The smallest hole of at least `count` granules, no more than attach() was told of; of equals
  /// the latest freed while their bin is a list, any where it is a trie. 0 when there is none.
  [[nodiscard]] inline std::uint32_t find(std::uint32_t count) const noexcept {
    std::uint32_t bin = bin_of(count);
    if (bin >= exact_bins) {
      const std::uint32_t found = best_in(bin, count);
      if (found != 0) return found;
      ++bin;
    }
    bin = next_filled(bin);
    if (bin == no_bin) return 0;
    return bin < exact_bins ? bins_[bin].head : best_in(bin, 0);
  }

  /// A hole that `wanted` fits into, among those too small to be sure of it by size. 0 when there
  /// is none.
  [[nodiscard]] std::uint32_t find_aligned(const aligned_fit& wanted) const noexcept;

  /// Size of the largest hole; 0 when there is none.
  [[nodiscard]] std::uint32_t largest() const noexcept;

  /// nullptr when I1 to I5 hold and the bins hold `expected_count` blocks, else what is broken.
  [[nodiscard]] const char* broken_invariant(std::uint32_t expected_count) const noexcept;

 private:
  struct bin_entry {
    std::uint32_t head;
    std::int32_t load;
  };
  static constexpr std::uint32_t no_bin = ~0u;
  static constexpr std::uint32_t depth_max = 22;
  static constexpr std::int32_t exact_load = std::numeric_limits<std::int32_t>::min();
  static constexpr std::int32_t trie_load = std::numeric_limits<std::int32_t>::max();

  inline void push_exact(std::uint32_t index, std::uint32_t bin) noexcept {
    Record* const nodes = nodes_;
    const std::uint32_t next = bins_[bin].head;
    bins_[bin].head = index;
    nodes[index].links.next = next;
    nodes[next].links.previous = index;
    if (next == 0) mark(bin);
  }

  // Bins hold one block as often as none, so the mark is made without asking.
  inline void push(std::uint32_t index, std::uint32_t bin) noexcept {
    Record* const nodes = nodes_;
    bin_entry& into = bins_[bin];
    const std::uint32_t next = into.head;
    into = {index, into.load + (bin >= exact_bins ? 1 : 0)};
    nodes[index].links.next = next;
    nodes[next].links.previous = index;
    mark(bin);
  }

  inline void unlink(std::uint32_t index, std::uint32_t bin) noexcept {
    Record* const nodes = nodes_;
    bin_entry& from = bins_[bin];
    check(from.head != 0, "a free block is not in the bin of its size");
    const std::uint32_t next = nodes[index].links.next;
    from.load -= bin >= exact_bins ? 1 : 0;
    if (from.head == index) {
      from.head = next;
      unmark_where(next == 0, bin);
      return;
    }
    const std::uint32_t previous = nodes[index].links.previous;
    nodes[previous].links.next = next;
    nodes[next].links.previous = previous;
  }

  inline void put_in(std::uint32_t index, std::uint32_t bin) noexcept {
    if (bins_[bin].load >= list_limit) [[unlikely]]
      return put_in_trie(index, bin);
    push(index, bin);
  }

  inline void take_out(std::uint32_t index, std::uint32_t bin) noexcept {
    if (bins_[bin].load > list_limit) [[unlikely]]
      return remove_from_trie(index, bin);
    unlink(index, bin);
  }

  inline void mark(std::uint32_t bin) noexcept {
    words_[bin / 64] |= std::uint64_t{1} << (bin % 64);
    summary_ |= std::uint64_t{1} << (bin / 64);
  }

  // Half of the time, and in no order, so there is no branch.
  inline void unmark_where(bool is_empty, std::uint32_t bin) noexcept {
    const std::uint64_t word = words_[bin / 64] & ~(std::uint64_t{is_empty} << (bin % 64));
    words_[bin / 64] = word;
    summary_ &= ~(std::uint64_t{word == 0} << (bin / 64));
  }

  inline void unmark(std::uint32_t bin) noexcept { unmark_where(true, bin); }

  /// The first bin from `bin` on that holds a block.
  [[nodiscard]] inline std::uint32_t next_filled(std::uint32_t bin) const noexcept {
    std::uint32_t word = bin / 64;
    std::uint64_t bits = words_[word] & (~std::uint64_t{0} << (bin % 64));
    if (bits == 0) {
      const std::uint64_t later = summary_ & (~std::uint64_t{1} << word);
      if (later == 0) return no_bin;
      word = static_cast<std::uint32_t>(std::countr_zero(later));
      bits = words_[word];
    }
    return word * 64 + static_cast<std::uint32_t>(std::countr_zero(bits));
  }

  /// Highest bit of a size that tells apart the sizes of this wide bin.
  [[nodiscard]] static inline std::uint32_t top_bit(std::uint32_t bin) noexcept {
    return 1u << (bin / bins_per_octave - 2);
  }

  [[nodiscard]] inline bool is_trie(std::uint32_t bin) const noexcept {
    return bins_[bin].load == trie_load;
  }
  void put_in_trie(std::uint32_t index, std::uint32_t bin) noexcept;
  void insert_in_trie(std::uint32_t index, std::uint32_t bin) noexcept;
  void remove_from_trie(std::uint32_t index, std::uint32_t bin) noexcept;
  void turn_into_trie(std::uint32_t bin) noexcept;
  [[nodiscard]] std::uint32_t* link_to(std::uint32_t index, std::uint32_t bin) noexcept;
  [[nodiscard]] std::uint32_t best_in(std::uint32_t bin, std::uint32_t count) const noexcept;
  [[nodiscard]] std::uint32_t best_in_list(std::uint32_t bin, std::uint32_t count) const noexcept;
  [[nodiscard]] std::uint32_t best_in_trie(std::uint32_t bin, std::uint32_t count) const noexcept;
  [[nodiscard]] std::uint32_t aligned_in_list(std::uint32_t bin,
                                              const aligned_fit& wanted) const noexcept;
  [[nodiscard]] std::uint32_t aligned_in_trie(std::uint32_t bin,
                                              const aligned_fit& wanted) const noexcept;
  [[nodiscard]] const char* broken_bin(std::uint32_t bin, std::uint32_t& seen_count) const noexcept;
  [[nodiscard]] const char* broken_list(std::uint32_t bin,
                                        std::uint32_t& seen_count) const noexcept;
  [[nodiscard]] const char* broken_trie(std::uint32_t bin,
                                        std::uint32_t& seen_count) const noexcept;
  [[nodiscard]] const char* broken_ring(std::uint32_t vertex,
                                        std::uint32_t& seen_count) const noexcept;

  Record* nodes_ = nullptr;
  std::uint64_t* words_ = nullptr;
  bin_entry* bins_ = nullptr;
  std::uint64_t summary_ = 0;
  std::uint32_t bin_count_ = 0;
};

}  // namespace vmm

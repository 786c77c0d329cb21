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
//     comparison detects a list that is too long.
// I4  A wide bin is a list of at most list_limit blocks, or, with trie_load, a bitwise trie: a
//     vertex at depth d agrees with its path in the d highest bits below the bin's own, and blocks
//     of one size form a ring around one vertex. A vertex has no link to its parent: its size leads
//     there.
// I5  Only ring members that are not a vertex carry ring_bit.
// I6  Index 0 is a real record that is never in a bin; unlinking writes to it instead of branching.
//
// Thread safety: none of its own. Cost: constant, plus a trie's depth in a wide bin, which the bits
// of the bin's width bound (22), not the number of blocks; find_aligned is linear.
export module vmm.va:size_bins;

import vmm.backend;
import vmm.base;
import vmm.std;
import :records;

namespace vmm {

/// A search among holes for `count` granules whose offset plus `origin` is a multiple of
/// `alignment`, a power of two.
struct aligned_fit {
  std::uint32_t count = 1;
  std::uint32_t alignment = 1;
  std::uint32_t origin = 0;

  /// Granules to leave out at the start of a hole that begins at `offset`.
  [[nodiscard]] inline std::uint32_t lead(std::uint32_t offset) const noexcept {
    debug_check([this] { return std::has_single_bit(alignment); }, "no power of two");
    return (0u - (offset + origin)) & (alignment - 1);
  }
  [[nodiscard]] inline bool fits(const auto& hole) const noexcept {
    debug_check([this] { return count != 0; }, "a request of 0 granules");
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
    debug_check([&] { return size <= size_mask; }, "a size is more than a record says");
    const auto octave = static_cast<std::uint32_t>(std::bit_width(size | bins_per_octave)) - 8;
    return octave * bins_per_octave + (size >> octave);
  }

  /// Whether a bin exists for blocks of this size: none is much larger than the size passed to
  /// attach().
  [[nodiscard]] inline bool has_bin(std::uint32_t size) const noexcept {
    return bin_of(size) < bin_count_;
  }
  /// Bytes that attach() needs, zeroed, for blocks of at most `size_max` granules.
  [[nodiscard]] static std::size_t table_bytes(std::uint32_t size_max) noexcept;
  void attach(Record* nodes, std::byte* table, std::uint32_t size_max) noexcept;

  /// The records lie elsewhere now, with the same contents.
  inline void rebase(Record* nodes) noexcept {
    check(nodes != nullptr, "records are moved without memory");
    nodes_ = nodes;
  }

  inline void insert(std::uint32_t index) noexcept {
    debug_check([&] { return index != 0; }, "I6: record 0 is put into a bin");
    put_in(index, bin_of(nodes_[index].size()));
  }

  /// The same, for a caller that has the block's size, and almost only exact sizes.
  inline void insert(std::uint32_t index, std::uint32_t size) noexcept {
    debug_check([&] { return nodes_[index].size() == size; }, "a passed size is not the record's");
    if (size < exact_bins) [[likely]]
      return push_exact(index, size);
    put_in(index, bin_of(size));
  }

  inline void remove(std::uint32_t index) noexcept {
    debug_check([&] { return index != 0; }, "record 0 is taken out of a bin");
    take_out(index, bin_of(nodes_[index].size()));
  }

  /// Gives a block in the bins another size; within a list it stays where it is.
  inline void resize(std::uint32_t index, std::uint32_t size) noexcept {
    debug_check([&] { return size != 0 && bin_of(size) < bin_count_; }, "a size has no bin");
    const std::uint32_t before = bin_of(nodes_[index].size());
    const std::uint32_t bin = bin_of(size);
    const bool stays = bin == before && bins_[bin].load <= list_limit;
    if (!stays) take_out(index, before);
    nodes_[index].size_word = size;
    if (!stays) put_in(index, bin);
    debug_check([&] { return nodes_[index].size() == size; }, "a block does not have its new size");
  }

  /// Takes out a hole of exactly `count` granules, fewer than exact_bins, or 0.
  [[nodiscard]] inline std::uint32_t pop_exact(std::uint32_t count) noexcept {
    debug_check([&] { return count < exact_bins; }, "a bin of several sizes is exact");
    const std::uint32_t head = bins_[count].head;
    if (head == 0) return 0;
    debug_check([&] { return nodes_[head].size() == count; }, "a bin holds another size");
    const std::uint32_t next = nodes_[head].links.next;
    debug_check([&] { return next != head; }, "a bin's list is circular");
    bins_[count].head = next;
    if (next == 0) unmark(count);
    return head;
  }

  /// The smallest hole of at least `count` granules, for which there is a bin; of equals the latest
  /// freed while their bin is a list, any if it is a trie. 0 if no hole fits.
  [[nodiscard]] inline std::uint32_t find(std::uint32_t count) const noexcept {
    debug_check([&] { return bin_of(count) < bin_count_; }, "a size is looked for that has no bin");
    std::uint32_t bin = bin_of(count);
    if (bin >= exact_bins) {
      const std::uint32_t found = best_in(bin, count);
      if (found != 0) return found;
      ++bin;
    }
    bin = next_filled(bin);
    if (bin == no_bin) return 0;
    debug_check([&] { return bins_[bin].head != 0; }, "an empty bin is marked");
    const std::uint32_t found = bin < exact_bins ? bins_[bin].head : best_in(bin, 0);
    debug_check([&] { return found != 0 && nodes_[found].size() >= count; }, "a hole is too small");
    return found;
  }

  /// A hole that `wanted` fits into, among those too small to be sure of it by size; or 0.
  [[nodiscard]] std::uint32_t find_aligned(const aligned_fit& wanted) const noexcept;

  /// Size of the largest hole, or 0.
  [[nodiscard]] std::uint32_t largest() const noexcept;

  /// nullptr when I1 to I5 hold and the bins hold `expected_count` blocks, else the broken part.
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

  // What stands before `next`. At a list's end the write goes to `own`, where it is never read: its
  // cache line is loaded, record 0's is not, and no branch is needed.
  inline void link_back(std::uint32_t next, std::uint32_t previous, std::uint32_t own) noexcept {
    debug_check([&] { return own != 0; }, "record 0 is in a list");
    nodes_[next != 0 ? next : own].links.previous = previous;
  }

  inline void push_exact(std::uint32_t index, std::uint32_t bin) noexcept {
    debug_check([&] { return bin != 0 && bin < exact_bins; }, "a bin of several sizes is exact");
    debug_check([&] { return index != 0 && nodes_[index].size() == bin; },
                "a block is put into a bin of another size");
    Record* const nodes = nodes_;
    const std::uint32_t next = bins_[bin].head;
    bins_[bin].head = index;
    nodes[index].links.next = next;
    link_back(next, index, index);
    if (next == 0) mark(bin);
  }

  // Bins hold one block as often as none, so the bit is set unconditionally.
  inline void push(std::uint32_t index, std::uint32_t bin) noexcept {
    Record* const nodes = nodes_;
    debug_check([&] { return !is_trie(bin); }, "a block is pushed on a trie");
    debug_check([&] { return index != 0 && bin < bin_count_; }, "a bin is missing");
    bin_entry& into = bins_[bin];
    const std::uint32_t next = into.head;
    into = {index, into.load + (bin >= exact_bins ? 1 : 0)};
    nodes[index].links.next = next;
    link_back(next, index, index);
    mark(bin);
  }

  inline void unlink(std::uint32_t index, std::uint32_t bin) noexcept {
    Record* const nodes = nodes_;
    bin_entry& from = bins_[bin];
    debug_check([&] { return from.head != 0; }, "a free block is not in the bin of its size");
    debug_check([&] { return bin < exact_bins || from.load > 0; },
                "a bin's load would be negative");
    const std::uint32_t next = nodes[index].links.next;
    from.load -= bin >= exact_bins ? 1 : 0;
    if (from.head == index) {
      from.head = next;
      unmark_where(next == 0, bin);
      return;
    }
    const std::uint32_t previous = nodes[index].links.previous;
    debug_check([&] { return nodes[previous].links.next == index; }, "a list's links disagree");
    nodes[previous].links.next = next;
    link_back(next, previous, index);
  }

  inline void put_in(std::uint32_t index, std::uint32_t bin) noexcept {
    debug_check([&] { return bin_of(nodes_[index].size()) == bin; }, "a block is in a wrong bin");
    if (bins_[bin].load >= list_limit) [[unlikely]]
      return put_in_trie(index, bin);
    push(index, bin);
  }

  inline void take_out(std::uint32_t index, std::uint32_t bin) noexcept {
    debug_check([&] { return is_marked(bin); }, "a block is taken out of an empty bin");
    debug_check([&] { return bin_of(nodes_[index].size()) == bin; },
                "a block is taken out of another size's bin");
    if (bins_[bin].load > list_limit) [[unlikely]]
      return remove_from_trie(index, bin);
    unlink(index, bin);
  }

  inline void mark(std::uint32_t bin) noexcept {
    debug_check([&] { return bin < bin_count_ || bin < exact_bins; }, "a bin is missing");
    words_[bin / 64] |= std::uint64_t{1} << (bin % 64);
    summary_ |= std::uint64_t{1} << (bin / 64);
  }

  // Half of the time, and unpredictably, so this does not branch.
  inline void unmark_where(bool is_empty, std::uint32_t bin) noexcept {
    debug_check([&] { return is_marked(bin); }, "an empty bin is emptied");
    const std::uint64_t word = words_[bin / 64] & ~(std::uint64_t{is_empty} << (bin % 64));
    words_[bin / 64] = word;
    summary_ &= ~(std::uint64_t{word == 0} << (bin / 64));
    debug_check([&] { return is_marked(bin) != is_empty; }, "a bin is marked and empty");
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
      debug_check([&] { return bits != 0; }, "the summary bit of an empty word is set");
    }
    const std::uint32_t found = word * 64 + static_cast<std::uint32_t>(std::countr_zero(bits));
    debug_check([&] { return found >= bin && found < bin_count_; }, "a missing bin is marked");
    return found;
  }

  /// Highest bit in which the sizes of this wide bin differ.
  [[nodiscard]] static inline std::uint32_t top_bit(std::uint32_t bin) noexcept {
    debug_check([&] { return bin >= exact_bins; }, "an exact bin has a width");
    debug_check([&] { return bin / bins_per_octave - 2 < 31; }, "a bin is wider than any size");
    return 1u << (bin / bins_per_octave - 2);
  }

  [[nodiscard]] inline bool is_marked(std::uint32_t bin) const noexcept {
    debug_check([&] { return bin / 64 <= bin_count_ / 64; }, "a bin has no mark");
    return (words_[bin / 64] >> (bin % 64) & 1) != 0;
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

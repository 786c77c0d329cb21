// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The cold half of size_bins: wide bins, the search for aligned holes, and the validator.
module;
#include "any_nonzero.h"

module vmm.va;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {

namespace {

// The state of a word's empty exact bins: no head, but a load.
constexpr auto empty_exact_bins = [] {
  std::array<std::uint32_t, 128> words{};
  for (std::size_t i = 1; i < words.size(); i += 2) words[i] = std::uint32_t{1} << 31;
  return words;
}();

}  // namespace

template <class Record>
std::size_t size_bins<Record>::table_bytes(std::uint32_t size_max) noexcept {
  // Exact bins are searched without a check of the range's length.
  const std::size_t bins = std::max(bin_of(size_max) + 1, exact_bins);
  const std::size_t words =
      bins / 64 + 1;  // one bit past the last bin exists, so that a search may start there
  check(words * 64 > bins, "a search past the last bin has no bit");
  return words * sizeof(std::uint64_t) + bins * sizeof(bin_entry);
}

template <class Record>
void size_bins<Record>::attach(Record* nodes, std::byte* table, std::uint32_t size_max) noexcept {
  check(nodes != nullptr && reinterpret_cast<std::uintptr_t>(table) % alignof(std::uint64_t) == 0,
        "bins are attached to no memory");
  nodes_ = nodes;
  bin_count_ = bin_of(size_max) + 1;
  words_ = reinterpret_cast<std::uint64_t*>(table);
  bins_ = reinterpret_cast<bin_entry*>(words_ + bin_count_ / 64 + 1);
  const std::uint32_t exact = std::min(exact_bins, bin_count_);
  for (std::uint32_t bin = 0; bin < exact; ++bin) bins_[bin].load = exact_load;
  summary_ = 0;
  check(bin_count_ > 0 && bins_ != nullptr, "no bins are allocated");
}

// A list that is as long as one may be turns into a trie first.
template <class Record>
void size_bins<Record>::put_in_trie(std::uint32_t index, std::uint32_t bin) noexcept {
  check(bin >= exact_bins, "an exact bin has become full");
  check(index != 0 && bin < bin_count_, "a block is put into a missing trie");
  if (!is_trie(bin)) turn_into_trie(bin);
  insert_in_trie(index, bin);
}

template <class Record>
void size_bins<Record>::turn_into_trie(std::uint32_t bin) noexcept {
  check(bins_[bin].load == list_limit, "a list is turned into a trie before it is full");
  std::uint32_t index = bins_[bin].head;
  bins_[bin] = {0, trie_load};
  for (std::int32_t left = list_limit; left != 0; --left) {
    const std::uint32_t next = nodes_[index].links.next;
    insert_in_trie(index, bin);
    index = next;
  }
  check(index == 0, "a bin's list is longer than its count says");
  debug_check([&] { return is_trie(bin) && bins_[bin].head != 0; },
              "a trie was made of an empty list");
}

template <class Record>
void size_bins<Record>::insert_in_trie(std::uint32_t index, std::uint32_t bin) noexcept {
  Record& node = nodes_[index];
  const std::uint32_t size = node.size();
  std::uint32_t* link = &bins_[bin].head;
  debug_check([&] { return is_trie(bin) && bin_of(size) == bin; }, "a block is in a wrong trie");
  debug_check([&] { return (node.size_word & ring_bit) == 0; },
              "a new block is marked as in a ring");
  for (std::uint32_t bit = top_bit(bin); *link != 0; bit >>= 1) {
    Record& vertex = nodes_[*link];
    debug_check([&] { return bit != 0 || vertex.size() == size; }, "a trie is deeper than its bin");
    if (vertex.size() == size) {
      node.size_word |= ring_bit;
      node.links = {vertex.links.next, *link, {0, 0}};
      nodes_[vertex.links.next].links.previous = index;
      vertex.links.next = index;
      return;
    }
    link = &vertex.links.child[(size & bit) != 0 ? 1 : 0];
  }
  node.links = {index, index, {0, 0}};
  *link = index;
}

/// The word that holds the trie vertex `index`: a bin's head or a parent's child.
template <class Record>
std::uint32_t* size_bins<Record>::link_to(std::uint32_t index, std::uint32_t bin) noexcept {
  const std::uint32_t size = nodes_[index].size();
  std::uint32_t* link = &bins_[bin].head;
  debug_check([&] { return bin_of(size) == bin; }, "a vertex is looked for in another bin");
  for (std::uint32_t bit = top_bit(bin); *link != index; bit >>= 1) {
    check(*link != 0 && bit != 0, "a free block is not in the trie of its bin");
    link = &nodes_[*link].links.child[(size & bit) != 0 ? 1 : 0];
  }
  return link;
}

template <class Record>
void size_bins<Record>::remove_from_trie(std::uint32_t index, std::uint32_t bin) noexcept {
  check(is_trie(bin), "a free block is in an invalid trie");
  Record& node = nodes_[index];
  const std::uint32_t next = node.links.next;
  debug_check([&] { return nodes_[next].links.previous == index; }, "a ring's links disagree");
  debug_check([&] { return bin_of(node.size()) == bin; }, "a block is in another bin's trie");
  nodes_[node.links.previous].links.next =
      next;  // both write to the node itself when it is alone in its ring
  nodes_[next].links.previous = node.links.previous;
  if ((node.size_word & ring_bit) != 0) {
    node.size_word &= ~ring_bit;
    return;
  }
  std::uint32_t* const link = link_to(index, bin);
  std::uint32_t successor = next;
  if (successor != index) {
    nodes_[successor].size_word &= ~ring_bit;
  } else {
    std::uint32_t* leaf = link;
    for (;;) {
      std::uint32_t(&child)[2] = nodes_[*leaf].links.child;
      if (child[0] == 0 && child[1] == 0) break;
      leaf = child[1] != 0 ? &child[1] : &child[0];
    }
    successor = *leaf;
    *leaf = 0;
  }
  if (successor != index) {
    nodes_[successor].links.child[0] = node.links.child[0];
    nodes_[successor].links.child[1] = node.links.child[1];
    *link = successor;
    debug_check([&] { return bin_of(nodes_[successor].size()) == bin; },
                "a trie has a wrong vertex");
  } else if (bins_[bin].head == 0) {
    bins_[bin].load = 0;
    unmark(bin);
  }
}

template <class Record>
std::uint32_t size_bins<Record>::best_in(std::uint32_t bin, std::uint32_t count) const noexcept {
  debug_check([&] { return bin < bin_count_; }, "a block is looked up in a missing bin");
  if (!is_trie(bin)) return best_in_list(bin, count);
  const std::uint32_t best = best_in_trie(bin, count);
  debug_check([&] { return best == 0 || nodes_[best].size() >= count; }, "a fit is too small");
  return best == 0 ? 0 : nodes_[best].links.next;  // a ring member leaves the trie's shape alone
}

template <class Record>
std::uint32_t size_bins<Record>::best_in_list(std::uint32_t bin,
                                              std::uint32_t count) const noexcept {
  debug_check([&] { return !is_trie(bin); }, "a trie is walked as a list");
  std::uint32_t best = 0;
  std::uint32_t best_size = ~0u;
  for (std::uint32_t index = bins_[bin].head; index != 0; index = nodes_[index].links.next) {
    const std::uint32_t size = nodes_[index].size();
    if (size >= count && size < best_size) {
      best = index;
      best_size = size;
      if (size == count) break;
    }
  }
  debug_check([&] { return best == 0 || nodes_[best].size() == best_size; }, "a fit has moved");
  return best;
}

template <class Record>
std::uint32_t size_bins<Record>::best_in_trie(std::uint32_t bin,
                                              std::uint32_t count) const noexcept {
  debug_check([&] { return is_trie(bin); }, "a list is walked as a trie");
  std::uint32_t best = 0;
  std::uint32_t best_size = ~0u;
  std::uint32_t larger = 0;  // the nearest subtree in which every size is larger than `count`
  std::uint32_t index = bins_[bin].head;
  for (std::uint32_t bit = top_bit(bin); index != 0; bit >>= 1) {
    const Record& vertex = nodes_[index];
    const std::uint32_t size = vertex.size();
    if (size == count) return index;
    if (size > count && size < best_size) {
      best = index;
      best_size = size;
    }
    const bool right = (count & bit) != 0;
    if (!right && vertex.links.child[1] != 0) larger = vertex.links.child[1];
    index = vertex.links.child[right ? 1 : 0];
  }
  while (larger != 0) {
    const Record& vertex = nodes_[larger];
    if (vertex.size() < best_size) {
      best = larger;
      best_size = vertex.size();
    }
    larger = vertex.links.child[0] != 0 ? vertex.links.child[0] : vertex.links.child[1];
  }
  debug_check([&] { return best == 0 || nodes_[best].size() == best_size; }, "a fit has moved");
  return best;
}

template <class Record>
std::uint32_t size_bins<Record>::find_aligned(const aligned_fit& wanted) const noexcept {
  check(wanted.count != 0 && std::has_single_bit(wanted.alignment),
        "no alignment fits the request");
  const std::uint64_t sure = std::uint64_t{wanted.count} + wanted.alignment - 1;
  const std::uint32_t last =
      sure <= size_mask ? bin_of(static_cast<std::uint32_t>(sure)) : bin_count_;
  for (std::uint32_t bin = next_filled(bin_of(wanted.count)); bin <= last;
       bin = next_filled(bin + 1)) {
    const bool trie = is_trie(bin);
    const std::uint32_t found = trie ? aligned_in_trie(bin, wanted) : aligned_in_list(bin, wanted);
    debug_check([&] { return found == 0 || wanted.fits(nodes_[found]); }, "a fit is none");
    if (found != 0) return found;
  }
  return 0;
}

template <class Record>
std::uint32_t size_bins<Record>::aligned_in_list(std::uint32_t bin,
                                                 const aligned_fit& wanted) const noexcept {
  debug_check([&] { return !is_trie(bin); }, "a trie is walked as a list");
  for (std::uint32_t index = bins_[bin].head; index != 0; index = nodes_[index].links.next) {
    if (wanted.fits(nodes_[index])) return index;
  }
  return 0;
}

template <class Record>
std::uint32_t size_bins<Record>::aligned_in_trie(std::uint32_t bin,
                                                 const aligned_fit& wanted) const noexcept {
  std::array<std::uint32_t, depth_max + 2> stack{
      bins_[bin].head};  // each level leaves at most one sibling behind
  debug_check([&] { return is_trie(bin) && bins_[bin].head != 0; }, "a list is walked as a trie");
  std::size_t height = 1;
  while (height != 0) {
    const std::uint32_t vertex = stack[--height];
    std::uint32_t member = vertex;
    do {
      if (wanted.fits(nodes_[member])) return member;
      member = nodes_[member].links.next;
    } while (member != vertex);
    for (const std::uint32_t child : nodes_[vertex].links.child) {
      if (child == 0) continue;
      check(height < stack.size(), "a trie is deeper than its bin is wide");
      stack[height++] = child;
    }
  }
  return 0;
}

template <class Record>
std::uint32_t size_bins<Record>::largest() const noexcept {
  if (summary_ == 0) return 0;
  const auto word = 63 - static_cast<std::uint32_t>(std::countl_zero(summary_));
  const std::uint32_t bin =
      word * 64 + 63 - static_cast<std::uint32_t>(std::countl_zero(words_[word]));
  debug_check([&] { return bin < bin_count_ && bins_[bin].head != 0; }, "an empty bin is marked");
  if (bin < exact_bins) return bin;
  const bool trie = is_trie(bin);
  std::uint32_t size_max = 0;
  for (std::uint32_t index = bins_[bin].head; index != 0;) {
    const Record& node = nodes_[index];
    if (node.size() > size_max) size_max = node.size();
    const std::uint32_t larger =
        node.links.child[1] != 0 ? node.links.child[1] : node.links.child[0];
    index = trie ? larger : node.links.next;
  }
  debug_check([&] { return bin_of(size_max) == bin; }, "the largest hole is in another bin");
  return size_max;
}

template <class Record>
const char* size_bins<Record>::broken_bin(std::uint32_t bin,
                                          std::uint32_t& seen_count) const noexcept {
  const bool marked = (words_[bin / 64] >> (bin % 64) & 1) != 0;
  if (marked != (bins_[bin].head != 0)) return "I1: a bin's bit disagrees with its head";
  if (bin < exact_bins && bins_[bin].load != exact_load)
    return "I3: an exact bin's load has changed";
  if (!marked && bin >= exact_bins && bins_[bin].load != 0) return "an empty bin has a load";
  if (!marked) return nullptr;
  const bool trie = is_trie(bin);
  return trie ? broken_trie(bin, seen_count) : broken_list(bin, seen_count);
}

template <class Record>
const char* size_bins<Record>::broken_invariant(std::uint32_t expected_count) const noexcept {
  std::uint32_t seen_count = 0;
  for (std::uint32_t first = 0; first < bin_count_; first += 64) {
    const std::uint32_t last = std::min(first + 64, bin_count_);
    const std::uint64_t word = words_[first / 64];
    if ((summary_ >> (first / 64) & 1) != (word != 0 ? 1u : 0u))
      return "I1: a summary bit disagrees with its word";
    const auto* const entries = reinterpret_cast<const std::uint32_t*>(bins_ + first);
    constexpr std::size_t entry_words = sizeof(bin_entry) / sizeof(std::uint32_t);
    static_assert(exact_bins % 64 == 0 && 64 * entry_words == empty_exact_bins.size());
    static_assert(static_cast<std::uint32_t>(exact_load) == empty_exact_bins.back());
    const std::size_t word_count = (last - first) * entry_words;
    const auto is_as_made = [&] {
      if (first >= exact_bins) return !any_nonzero(entries, word_count);
      return std::memcmp(entries, empty_exact_bins.data(), word_count * sizeof *entries) == 0;
    };
    if (word == 0 && is_as_made()) continue;
    for (std::uint32_t bin = first; bin < last; ++bin) {
      const char* const broken = broken_bin(bin, seen_count);
      if (broken != nullptr) return broken;
    }
  }
  return seen_count == expected_count ? nullptr : "the bins do not hold every free block";
}

template <class Record>
const char* size_bins<Record>::broken_list(std::uint32_t bin,
                                           std::uint32_t& seen_count) const noexcept {
  const bool exact = bin < exact_bins;
  const std::uint32_t expected = exact ? ~0u : static_cast<std::uint32_t>(bins_[bin].load);
  if (!exact && bins_[bin].load > list_limit) return "I4: a bin's list is too long";
  std::uint32_t length = 0;
  std::uint32_t previous = 0;
  for (std::uint32_t index = bins_[bin].head; index != 0; index = nodes_[index].links.next) {
    const Record& node = nodes_[index];
    if ((node.size_word & ring_bit) != 0) return "I5: a block in a list is marked as a ring's";
    if (bin_of(node.size()) != bin) return "I2: a block is in the list of another size's bin";
    if (previous != 0 && node.links.previous != previous) return "a list's links disagree";
    previous = index;
    if (++length > expected) break;
  }
  if (!exact && length != expected) return "I3: a bin's load disagrees with its list";
  seen_count += length;
  return nullptr;
}

template <class Record>
const char* size_bins<Record>::broken_trie(std::uint32_t bin,
                                           std::uint32_t& seen_count) const noexcept {
  struct step {
    std::uint32_t vertex;
    std::uint32_t open_bits;  // bits of the size that the path has not fixed
    std::uint32_t path;       // the bits that it has fixed
  };
  const std::uint32_t open_bits = top_bit(bin) * 2 - 1;
  const std::uint32_t prefix = nodes_[bins_[bin].head].size() & ~open_bits;
  std::array<step, depth_max + 2> stack{step{bins_[bin].head, open_bits, prefix}};
  std::size_t height = 1;
  while (height != 0) {
    const step at = stack[--height];
    const Record& node = nodes_[at.vertex];
    if (bin_of(node.size()) != bin) return "a block is in the trie of another size's bin";
    if ((node.size() & ~at.open_bits) != at.path)
      return "I4: a trie vertex is not where its size leads";
    if ((node.size_word & ring_bit) != 0) return "I5: a trie vertex is marked as a ring's";
    const char* const broken = broken_ring(at.vertex, seen_count);
    if (broken != nullptr) return broken;
    const std::uint32_t below = at.open_bits >> 1;
    for (std::uint32_t side = 0; side < 2; ++side) {
      const std::uint32_t child = node.links.child[side];
      if (child == 0) continue;
      if (at.open_bits == 0) return "a trie is deeper than its bin is wide";
      check(height < stack.size(), "the walk over a trie has more pending vertices than levels");
      stack[height++] = step{child, below, at.path | (side != 0 ? below + 1 : 0)};
    }
  }
  return nullptr;
}

template <class Record>
const char* size_bins<Record>::broken_ring(std::uint32_t vertex,
                                           std::uint32_t& seen_count) const noexcept {
  const std::uint32_t size = nodes_[vertex].size();
  std::uint32_t member = vertex;
  do {
    const Record& node = nodes_[member];
    const std::uint32_t next = node.links.next;
    if (node.size() != size) return "I4: a ring holds two sizes";
    if (member != vertex && (node.size_word & ring_bit) == 0)
      return "I5: a ring's member is not marked";
    if (nodes_[next].links.previous != member) return "a ring's links disagree";
    ++seen_count;
    member = next;
  } while (member != vertex);
  return nullptr;
}

template class size_bins<hole_record>;
template class size_bins<region_record>;

}  // namespace vmm

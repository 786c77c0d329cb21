// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.va:records - the records of blocks, holes and regions, and the names of regions.
//
// Most blocks of a range are live, and any of them may be freed next; few are free, and the next
// used is known. So a block has 16 bytes, and the fields of a free one are in a separate record
// that it gets when it is freed: 100,000 blocks fit a processor's second cache, and the few
// separate records always do. A region of a region_map has all of its fields in one cache line,
// followed by a note.
//
// Thread safety: values only.
export module vmm.va:records;

import vmm.std;

namespace vmm {

inline constexpr std::uint32_t unlisted_bit = 1u << 31;  // of a region that no list holds
inline constexpr std::uint32_t ring_bit = 1u << 30;
inline constexpr std::uint32_t size_mask = ring_bit - 1;

/// The fields that size_bins writes into its blocks.
struct bin_links {
  std::uint32_t next;
  std::uint32_t previous;  // of a list's head: not used
  std::uint32_t child[2];  // in a trie only
};

/// One block, live or free.
struct block_record {
  std::uint32_t place;   // where it begins; of a free block: its hole
  std::uint32_t size;    // in granules, 0 in a record that is not a block
  std::uint32_t before;  // neighbours in address order; 0 at the ends
  std::uint32_t after;
};
static_assert(sizeof(block_record) == 16);

/// The state of a block, readable without its record: bits of an enumeration, since plain bytes may
/// alias everything that a caller holds in registers.
enum class block_state : std::uint8_t {
  none = 0,
  live = 1,
  behind_hole = 2,  // the block before it is free
};

[[nodiscard]] constexpr bool has(block_state state, block_state bit) noexcept {
  return (static_cast<std::uint32_t>(state) & static_cast<std::uint32_t>(bit)) != 0;
}
[[nodiscard]] constexpr block_state with(block_state state, block_state bit) noexcept {
  return static_cast<block_state>(static_cast<std::uint32_t>(state) |
                                  static_cast<std::uint32_t>(bit));
}
[[nodiscard]] constexpr block_state without(block_state state, block_state bit) noexcept {
  return static_cast<block_state>(static_cast<std::uint32_t>(state) &
                                  ~static_cast<std::uint32_t>(bit));
}

/// The further fields of a free block.
struct hole_record {
  std::uint32_t offset;
  std::uint32_t size_word;  // size in granules, ring_bit
  std::uint32_t block;
  std::uint32_t spare;  // of record n: the n-th spare one, which need not be this
  bin_links links;

  [[nodiscard]] inline std::uint32_t size() const noexcept { return size_word & size_mask; }
};
static_assert(sizeof(hole_record) == 32);

/// A region, until it is joined to the one on its left. Numbers are reused.
export enum class region_id : std::uint32_t { none = 0 };
/// The kind under which a region is listed.
export enum class region_kind : std::uint32_t { unlisted = 0 };

/// One region, listed or not.
struct region_record {
  std::uint32_t offset;
  std::uint32_t size_word;  // size in granules, unlisted_bit, ring_bit
  std::uint32_t before;     // neighbours in address order; 0 at the ends
  std::uint32_t after;
  bin_links links;

  [[nodiscard]] inline std::uint32_t size() const noexcept { return size_word & size_mask; }
  [[nodiscard]] inline bool is_unlisted() const noexcept { return (size_word & unlisted_bit) != 0; }
};
static_assert(sizeof(region_record) == 32);

}  // namespace vmm

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.va:address_index - block by address: an intrusive red-black tree over all blocks of a range,
// live and free, kept only for those who ask for look-up. Its links lie in an array beside the
// blocks' own. Not exported.
//
// I1  The tree's order is the order of the blocks' offsets, and that of the neighbour links.
// I2  Offsets of blocks in the tree change only in ways that keep the order.
//
// The neighbour is known wherever a block is cut, so an insert compares nothing.
//
// Thread safety: none of its own. Cost: insert_after and erase O(1) amortised, find O(log blocks);
// no allocation but in create and commit.
module;
#include <cstddef>
#include <cstdint>
#include <memory>

export module vmm.va:address_index;

import vmm.backend;
import :block_table;

namespace vmm {

class address_index {
 public:
  struct destroy {
    void operator()(address_index* index) const noexcept;
  };
  using owner = std::unique_ptr<address_index, destroy>;

  /// Over the blocks of a table, `count_max` of them at most. Errors: out_of_host_memory.
  [[nodiscard]] static result<owner> create(block_table::places_view places,
                                            std::uint64_t count_max) noexcept;

  /// Room for `node_count` records; false, and nothing changed, when there is no memory for it.
  [[nodiscard]] bool commit(std::uint64_t node_count) noexcept;

  void insert_first(std::uint32_t index) noexcept;
  void insert_after(std::uint32_t before, std::uint32_t index) noexcept;
  void erase(std::uint32_t index) noexcept;

  /// The last block that begins at or before `offset`.
  [[nodiscard]] std::uint32_t find(std::uint32_t offset) const noexcept;

  /// nullptr when I1 holds and the tree holds `expected_count` blocks, else what is broken.
  [[nodiscard]] const char* broken_invariant(std::uint32_t expected_count) const noexcept;

 private:
  struct tree;
  address_index() = default;

  tree* tree_ = nullptr;
};

}  // namespace vmm

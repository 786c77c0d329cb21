// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.va:block_table - the records of a range's blocks and holes, in arrays that never move. Not
// exported.
//
// I1  A free block has a hole, and they name each other; any other block's place is its offset.
// I2  There is memory for as many holes as blocks can leave between them, so that taking one cannot
//     fail.
// I3  Owner's words are zero but in a block whose state says that they are set.
// I4  Record 0 of each kind is never used. Records are used again, the latest first.
//
// Thread safety: none of its own. Cost: constant, a system call each time the arrays double.
module;
#include <cstddef>
#include <cstdint>
#include <utility>

export module vmm.va:block_table;

import vmm.backend;
import :host_memory;
import :records;

namespace vmm {

class block_table {
 public:
  block_table() = default;
  /// Room for `limit` block records, and no memory yet. Errors: out_of_host_memory.
  [[nodiscard]] static result<block_table> reserve(std::uint32_t limit) noexcept;

  block_table(block_table&& other) noexcept { swap(other); }
  inline block_table& operator=(block_table&& other) noexcept {
    swap(other);
    return *this;
  }
  block_table(const block_table&) = delete;
  block_table& operator=(const block_table&) = delete;
  ~block_table() = default;

  /// Sees that `count` more blocks can be made; false, and nothing changed, when the system has no
  /// memory for them or the limit is reached.
  [[nodiscard]] inline bool provide(std::uint32_t count) noexcept {
    const std::uint32_t at_hand = spare_blocks_count_ + (committed_ - used_blocks_);
    return at_hand >= count || commit(used_blocks_ + (count - spare_blocks_count_));
  }

  [[nodiscard]] inline block_record& operator[](std::uint32_t block) const noexcept {
    return blocks_[block];
  }
  [[nodiscard]] inline block_state& state(std::uint32_t block) const noexcept {
    return states_[block];
  }
  [[nodiscard]] inline owner_words& owner(std::uint32_t block) const noexcept {
    return owners_[block];
  }
  [[nodiscard]] inline hole_record& hole(std::uint32_t hole) const noexcept { return holes_[hole]; }
  [[nodiscard]] inline hole_record* holes() const noexcept { return holes_; }
  [[nodiscard]] inline bool is_live(std::uint32_t block) const noexcept {
    return has(states_[block], block_state::live);
  }

  /// A record for a block, its state none. provide() came before.
  [[nodiscard]] inline std::uint32_t new_block() noexcept {
    const std::uint32_t block = spare_block_;
    if (block == 0) return used_blocks_++;
    spare_block_ = blocks_[block].after;
    --spare_blocks_count_;
    return block;
  }
  inline void drop_block(std::uint32_t block) noexcept {
    blocks_[block].size = 0;
    blocks_[block].after = spare_block_;
    states_[block] = block_state::none;
    spare_block_ = block;
    ++spare_blocks_count_;
  }

  /// Gives a block that has just become free its hole.
  [[nodiscard]] inline std::uint32_t new_hole(std::uint32_t block) noexcept {
    block_record& of = blocks_[block];
    const std::uint32_t top = spare_holes_count_;
    std::uint32_t taken = holes_[top].spare;
    if (top != 0) [[likely]] {
      spare_holes_count_ = top - 1;
    } else {
      taken = used_holes_++;
    }
    hole_record& made = holes_[taken];
    made.offset = of.place;
    made.size_word = of.size;
    made.block = block;
    of.place = taken;
    return taken;
  }
  /// Takes it away again, and returns the block.
  inline std::uint32_t drop_hole(std::uint32_t hole) noexcept {
    hole_record& gone = holes_[hole];
    const std::uint32_t block = gone.block;
    blocks_[block].place = gone.offset;
    holes_[++spare_holes_count_].spare = hole;
    return block;
  }

  /// Gives a hole to another block, the one that has what is left of the first.
  inline void move_hole(std::uint32_t hole, std::uint32_t block) noexcept {
    hole_record& moved = holes_[hole];
    moved.offset = blocks_[block].place;
    moved.size_word = blocks_[block].size;
    moved.block = block;
    blocks_[block].place = hole;
  }

  /// Where a block begins, live or free; not of a free one that has no hole yet.
  [[nodiscard]] inline std::uint32_t offset(std::uint32_t block) const noexcept {
    return places().offset(block);
  }

  /// What is needed to find a block's neighbour and offset; good for as long as the table's
  /// records are, wherever the table itself moves.
  struct places_view {
    const block_record* blocks = nullptr;
    const block_state* states = nullptr;
    const hole_record* holes = nullptr;

    [[nodiscard]] inline std::uint32_t offset(std::uint32_t block) const noexcept {
      const std::uint32_t place = blocks[block].place;
      return has(states[block], block_state::live) ? place : holes[place].offset;
    }
  };
  [[nodiscard]] inline places_view places() const noexcept { return {blocks_, states_, holes_}; }

  inline void set_owner(std::uint32_t block, owner_words words) noexcept {
    states_[block] = with(states_[block], block_state::owned);
    owners_[block] = words;
  }
  inline void clear_owner(std::uint32_t block) noexcept {
    if (!has(states_[block], block_state::owned)) return;
    states_[block] = without(states_[block], block_state::owned);
    owners_[block] = {};
  }

  /// Records that have ever been in use, record 0 with them.
  [[nodiscard]] inline std::uint32_t used_blocks() const noexcept { return used_blocks_; }
  [[nodiscard]] inline std::uint32_t spare_blocks() const noexcept { return spare_blocks_count_; }

  /// nullptr when I1, I3 and I4 hold for `free_count` free blocks, else what is broken.
  [[nodiscard]] const char* broken_invariant(std::uint32_t free_count) const noexcept;

 private:
  [[nodiscard]] bool commit(std::uint32_t count) noexcept;
  [[nodiscard]] const char* broken_block(std::uint32_t block) const noexcept;
  void swap(block_table& other) noexcept;

  block_record* blocks_ = nullptr;
  block_state* states_ = nullptr;
  hole_record* holes_ = nullptr;
  owner_words* owners_ = nullptr;
  std::uint32_t spare_block_ = 0;  // unused records, linked through `after`
  std::uint32_t spare_blocks_count_ = 0;
  std::uint32_t spare_holes_count_ = 0;
  std::uint32_t used_blocks_ = 1;
  std::uint32_t used_holes_ = 1;
  std::uint32_t committed_ = 0;  // block records that there is memory for
  std::uint32_t limit_ = 0;      // block records that there is room for
  reserved_memory block_memory_{};
  reserved_memory state_memory_{};
  reserved_memory hole_memory_{};
  reserved_memory owner_memory_{};
};

}  // namespace vmm

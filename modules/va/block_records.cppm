// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.va:block_records - the records of a range's blocks and holes, in arrays that never move. Not
// exported.
//
// I1  A free block has a hole, and they name each other; any other block's place is its offset.
// I2  There is memory for as many holes as blocks can leave between them, so that taking one cannot
//     fail.
// I3  Record 0 of each kind is never used. Records are reused, the latest first.
//
// Thread safety: none of its own. Cost: constant, a system call each time the arrays double.
export module vmm.va:block_records;

import vmm.backend;
import vmm.base;
import vmm.std;
import :host_memory;
import :records;

namespace vmm {

class block_records {
 public:
  block_records() = default;
  /// Addresses for `limit` block records, without memory. Errors: out_of_host_memory.
  [[nodiscard]] static result<block_records> reserve(std::uint32_t limit) noexcept;

  block_records(block_records&& other) noexcept { swap(other); }
  inline block_records& operator=(block_records&& other) noexcept {
    swap(other);
    return *this;
  }
  block_records(const block_records&) = delete;
  block_records& operator=(const block_records&) = delete;
  ~block_records() = default;

  /// Ensures that `count` more blocks can be made. False, without a change, if the system has no
  /// memory for them or the limit is reached.
  [[nodiscard]] inline bool provide(std::uint32_t count) noexcept {
    debug_check([&] { return used_blocks_ <= committed_; }, "a record is used without memory");
    const std::uint32_t at_hand = spare_blocks_count_ + (committed_ - used_blocks_);
    return at_hand >= count || commit(used_blocks_ + (count - spare_blocks_count_));
  }

  [[nodiscard]] inline block_record& operator[](std::uint32_t block) const noexcept {
    debug_check([&] { return block < used_blocks_; }, "a missing record is used");
    return blocks_[block];
  }
  [[nodiscard]] inline block_state& state(std::uint32_t block) const noexcept {
    debug_check([&] { return block < used_blocks_; }, "a missing state is used");
    return states_[block];
  }
  [[nodiscard]] inline hole_record& hole(std::uint32_t hole) const noexcept {
    debug_check([&] { return hole < used_holes_; }, "a missing hole is used");
    return holes_[hole];
  }
  [[nodiscard]] inline hole_record* holes() const noexcept { return holes_; }
  [[nodiscard]] inline bool is_live(std::uint32_t block) const noexcept {
    debug_check([&] { return block < used_blocks_; }, "a missing state is used");
    return has(states_[block], block_state::live);
  }

  /// A record for a block, in the state none. Requires: provide() was called before.
  [[nodiscard]] inline std::uint32_t new_block() noexcept {
    const std::uint32_t block = spare_block_;
    if (block == 0) {
      debug_check([&] { return used_blocks_ < committed_; }, "a block is made without memory");
      return used_blocks_++;
    }
    debug_check([&] { return blocks_[block].size == 0; }, "a spare record is in use");
    debug_check([&] { return states_[block] == block_state::none; }, "a spare record is a block");
    spare_block_ = blocks_[block].after;
    debug_check([&] { return spare_blocks_count_ != 0; }, "more records are spare than counted");
    --spare_blocks_count_;
    return block;
  }
  inline void drop_block(std::uint32_t block) noexcept {
    debug_check([&] { return block != 0 && blocks_[block].size != 0; },
                "a spare record becomes spare again");
    blocks_[block].size = 0;
    blocks_[block].after = spare_block_;
    states_[block] = block_state::none;
    spare_block_ = block;
    ++spare_blocks_count_;
    debug_check([&] { return spare_blocks_count_ < used_blocks_; },
                "more records are spare than exist");
  }

  /// Gives a block that has just become free its hole.
  [[nodiscard]] inline std::uint32_t new_hole(std::uint32_t block) noexcept {
    debug_check([&] { return block != 0 && !is_live(block); }, "a live block is given a hole");
    block_record& of = blocks_[block];
    const std::uint32_t top = spare_holes_count_;
    std::uint32_t taken = holes_[top].spare;
    if (top != 0) [[likely]] {
      spare_holes_count_ = top - 1;
    } else {
      taken = used_holes_++;
    }
    debug_check([&] { return taken != 0 && taken < used_holes_; }, "I2: a hole has no memory");
    hole_record& made = holes_[taken];
    made.offset = of.place;
    made.size_word = of.size;
    made.block = block;
    of.place = taken;
    return taken;
  }
  /// Removes the hole, and returns its block.
  inline std::uint32_t drop_hole(std::uint32_t hole) noexcept {
    debug_check([&] { return hole != 0 && hole < used_holes_; }, "a missing hole is removed");
    hole_record& gone = holes_[hole];
    const std::uint32_t block = gone.block;
    debug_check([&] { return blocks_[block].place == hole; }, "a hole is not its block's");
    blocks_[block].place = gone.offset;
    debug_check([&] { return spare_holes_count_ + 1 < used_holes_; }, "a hole becomes spare twice");
    holes_[++spare_holes_count_].spare = hole;
    return block;
  }

  /// Moves a hole to another block, which has the rest of the first.
  inline void move_hole(std::uint32_t hole, std::uint32_t block) noexcept {
    debug_check([&] { return hole != 0 && !is_live(block); }, "a live block is given a hole");
    debug_check([&] { return hole < used_holes_; }, "a missing hole is moved");
    hole_record& moved = holes_[hole];
    moved.offset = blocks_[block].place;
    moved.size_word = blocks_[block].size;
    moved.block = block;
    blocks_[block].place = hole;
  }

  /// The offset of a block, live or free; not of a free one without a hole.
  [[nodiscard]] inline std::uint32_t offset(std::uint32_t block) const noexcept {
    const std::uint32_t place = (*this)[block].place;
    debug_check([&] { return blocks_[block].size != 0; }, "a spare record is in no list");
    return is_live(block) ? place : hole(place).offset;
  }

  /// The records that have ever been in use, record 0 included.
  [[nodiscard]] inline std::uint32_t used_blocks() const noexcept { return used_blocks_; }
  [[nodiscard]] inline std::uint32_t spare_blocks() const noexcept {
    debug_check([this] { return spare_blocks_count_ < used_blocks_; },
                "more records are spare than exist");
    return spare_blocks_count_;
  }

  /// nullptr when I1 and I3 hold for `free_count` free blocks, else the broken part.
  [[nodiscard]] const char* broken_invariant(std::uint32_t free_count) const noexcept;

 private:
  [[nodiscard]] bool commit(std::uint32_t count) noexcept;
  [[nodiscard]] const char* broken_block(std::uint32_t block) const noexcept;
  void swap(block_records& other) noexcept;

  block_record* blocks_ = nullptr;
  block_state* states_ = nullptr;
  hole_record* holes_ = nullptr;
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
};

}  // namespace vmm

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module vmm.va;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {

namespace {

/// Two free blocks are never neighbours; while one is freed it may be, for a moment. Record 0.
constexpr std::uint64_t holes_for(std::uint64_t block_count) noexcept {
  return block_count / 2 + 3;
}

template <class Record>
[[nodiscard]] Record* array_in(const reserved_memory& memory) noexcept {
  check(reinterpret_cast<std::uintptr_t>(memory.data()) % alignof(Record) == 0,
        "host memory is not aligned for records");
  return reinterpret_cast<Record*>(memory.data());
}

}  // namespace

result<block_records> block_records::reserve(std::uint32_t limit) noexcept {
  check(limit >= 2, "a range has no block");
  block_records made;
  result<reserved_memory> blocks =
      reserved_memory::reserve(std::uint64_t{limit} * sizeof(block_record));
  if (!blocks) return blocks.error();
  result<reserved_memory> states = reserved_memory::reserve(limit);
  if (!states) return states.error();
  result<reserved_memory> holes = reserved_memory::reserve(holes_for(limit) * sizeof(hole_record));
  if (!holes) return holes.error();
  made.block_memory_ = std::move(*blocks);
  made.state_memory_ = std::move(*states);
  made.hole_memory_ = std::move(*holes);
  made.blocks_ = array_in<block_record>(made.block_memory_);
  made.states_ = array_in<block_state>(made.state_memory_);
  made.holes_ = array_in<hole_record>(made.hole_memory_);
  made.limit_ = limit;
  check(made.used_blocks_ == 1 && made.used_holes_ == 1, "record 0 of each kind is not in use");
  if (!made.commit(2)) {
    return refuse(errc::out_of_host_memory, "no host memory for the first block records");
  }
  return result<block_records>(std::move(made));
}

/// Memory for the first `count` blocks, and what goes with them.
bool block_records::commit(std::uint32_t count) noexcept {
  check(committed_ <= limit_, "there is memory for more blocks than the limit");
  if (count > limit_) return false;
  if (!block_memory_.commit(std::uint64_t{count} * sizeof(block_record))) return false;
  const std::uint64_t room = block_memory_.committed_bytes() / sizeof(block_record);
  const std::uint64_t granted = std::min<std::uint64_t>(room, limit_);
  if (!state_memory_.commit(granted)) return false;
  if (!hole_memory_.commit(holes_for(granted) * sizeof(hole_record))) return false;
  check(granted >= count, "memory was granted for fewer blocks than requested");
  check(granted >= committed_, "memory was granted for fewer blocks than before");
  committed_ = static_cast<std::uint32_t>(granted);
  return true;
}

void block_records::swap(block_records& other) noexcept {
  std::swap(blocks_, other.blocks_);
  std::swap(states_, other.states_);
  std::swap(holes_, other.holes_);
  std::swap(spare_block_, other.spare_block_);
  std::swap(spare_blocks_count_, other.spare_blocks_count_);
  std::swap(spare_holes_count_, other.spare_holes_count_);
  std::swap(used_blocks_, other.used_blocks_);
  std::swap(used_holes_, other.used_holes_);
  std::swap(committed_, other.committed_);
  std::swap(limit_, other.limit_);
  std::swap(block_memory_, other.block_memory_);
  std::swap(state_memory_, other.state_memory_);
  std::swap(hole_memory_, other.hole_memory_);
  check(used_blocks_ <= std::max(committed_, 1u), "a record is used without memory");
}

const char* block_records::broken_block(std::uint32_t block) const noexcept {
  const block_record& record = blocks_[block];
  const block_state state = states_[block];
  if (record.size == 0) return state == block_state::none ? nullptr : "a spare record is a block";
  if (is_live(block)) return nullptr;
  if (record.place == 0 || record.place >= used_holes_) return "I1: a free block has no hole";
  const hole_record& hole = holes_[record.place];
  if (hole.block != block || hole.size() != record.size)
    return "I1: a free block and its hole disagree";
  return nullptr;
}

const char* block_records::broken_invariant(std::uint32_t free_count) const noexcept {
  if (is_live(0)) return "I3: the record at the ends is live";
  for (std::uint32_t block = 1; block < used_blocks_; ++block) {
    if (const char* broken = broken_block(block); broken != nullptr) return broken;
  }
  std::uint32_t spare = 0;
  for (std::uint32_t block = spare_block_; block != 0; block = blocks_[block].after) {
    if (blocks_[block].size != 0 || ++spare > used_blocks_) return "a spare record is in use";
  }
  if (spare != spare_blocks_count_) return "the count of spare records is wrong";
  return 1 + free_count + spare_holes_count_ == used_holes_
             ? nullptr
             : "a hole is neither a free block's nor spare";
}

}  // namespace vmm

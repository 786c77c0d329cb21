// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

module vmm.optimizer;

import vmm.backend;
import vmm.intrusive;
import vmm.physical;
import vmm.sync;
import vmm.timeline;
import vmm.tracker;
import vmm.va;

namespace vmm {

void retired_queue::push(block& range) noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  range.next_free = nullptr;
  if (last_ == nullptr) {
    first_ = &range;
  } else {
    last_->next_free = &range;
  }
  last_ = &range;
  ++count_;
  size_bytes_ += range.where.range.size_bytes;
}

block* retired_queue::pop() noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  block* const range = first_;
  if (range == nullptr) return nullptr;
  first_ = range->next_free;
  if (first_ == nullptr) last_ = nullptr;
  range->next_free = nullptr;
  --count_;
  size_bytes_ -= range->where.range.size_bytes;
  return range;
}

std::size_t retired_queue::size() const noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  return count_;
}

std::uint64_t retired_queue::size_bytes() const noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  return size_bytes_;
}

result<block*> block_store::acquire() noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  block* const blank = pool_.acquire();
  if (blank == nullptr)
    return refuse(errc::out_of_host_memory, "no host memory is left for a block");
  check(blank->pieces.empty() && !blank->linked, "a recycled block is still in use");
  return blank;
}

void block_store::release(block& gone) noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  gone.base = address{};
  gone.sizes = range_sizes{};
  gone.stream = stream_handle::default_stream;
  gone.pieces.clear();  // keeps its capacity
  gone.where = extent{};
  gone.last_use.reset();
  gone.room_bytes = 0;
  gone.alignment_bytes = 0;
  gone.holds_pieces = true;
  gone.locked_count = 0;
  pool_.release(gone);
}

std::size_t leading_count(const piece_list& pieces, std::uint64_t size_bytes) noexcept {
  std::size_t count = 0;
  for (std::uint64_t sum_bytes = 0; sum_bytes < size_bytes; ++count) {
    check(count < pieces.size(), "more memory is to be kept than the block has");
    sum_bytes += pieces[count]->size_bytes;
  }
  return count;
}

std::uint64_t size_of(const piece_list& pieces, std::size_t count) noexcept {
  std::uint64_t sum_bytes = 0;
  for (std::size_t i = 0; i < count; ++i) sum_bytes += pieces[i]->size_bytes;
  return sum_bytes;
}

status copy_list(const piece_list& source, piece_list& target, std::size_t more_count) noexcept {
  check(target.empty(), "a list of pieces is copied over another");
  if (status room = reserve_more(target, source.size() + more_count); !room) return room;
  target.insert(target.end(), source.begin(), source.end());
  return {};
}

}  // namespace vmm

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module vmm.optimizer;

import vmm.backend;
import vmm.base;
import vmm.physical;
import vmm.std;
import vmm.timeline;
import vmm.tracker;
import vmm.va;

namespace vmm {

result<block*> block_store::acquire() noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  block* const blank = pool_.acquire();
  if (blank == nullptr)
    return refuse(errc::out_of_host_memory, "no host memory is left for a block");
  check(blank->memories.empty() && !blank->linked, "a recycled block is still in use");
  check(blank->is == unmap_entry::place::outside, "a recycled block still waits to be unmapped");
  check(blank->locked_count == 0 && blank->has_memory, "a recycled block is not as new");
  return blank;
}

void block_store::release(block& gone) noexcept {
  check(!gone.linked && !gone.claimed, "a block is recycled while it is tracked or cached");
  check(gone.pin_count == 0, "a block is recycled while it is exported");
  check(gone.is == unmap_entry::place::outside, "a block is recycled while it waits");
  const sync::lock_guard<sync::mutex> lock(mutex_);
  gone.base = address{};
  gone.sizes = range_sizes{};
  gone.stream = stream_handle::default_stream;
  gone.memories.clear();  // keeps its capacity
  gone.where = extent{};
  gone.set_last_use(ticket_ref{});
  gone.address_bytes = 0;
  gone.alignment_bytes = 0;
  gone.number = 0;
  gone.has_memory = true;
  gone.locked_count = 0;
  check(gone.stale_count.load(std::memory_order_acquire) == 0,
        "a growable block ends before its released memory");
  gone.is_growable = false;
  gone.inside = nullptr;
  gone.own_rights.reset();
  gone.part_rights.reset();
  gone.rights_version = 0;
  gone.is_suspended = false;
  gone.is_handed_out.store(false, std::memory_order_relaxed);
  gone.noted = {};
  pool_.release(gone);
}

std::size_t leading_count(const memory_list& memories, std::uint64_t size_bytes) noexcept {
  std::size_t count = 0;
  for (std::uint64_t sum_bytes = 0; sum_bytes < size_bytes; ++count) {
    check(count < memories.size(), "more memory is kept than the block has");
    sum_bytes += memories[count]->size_bytes;
  }
  check(size_of(memories, count) >= size_bytes, "the leading pieces are too few");
  return count;
}

std::uint64_t size_of(const memory_list& memories, std::size_t count) noexcept {
  check(count <= memories.size(), "more pieces are summed than exist");
  std::uint64_t sum_bytes = 0;
  for (std::size_t i = 0; i < count; ++i) sum_bytes += memories[i]->size_bytes;
  check((count == 0) == (sum_bytes == 0), "pieces without memory are summed");
  return sum_bytes;
}

status copy_list(const memory_list& source, memory_list& target, std::size_t more_count) noexcept {
  check(target.empty(), "a list of pieces is copied over another");
  if (status room = reserve_more(target, source.size() + more_count); !room) return room;
  check(target.capacity() >= source.size() + more_count,
        "a list of pieces has less room than made");
  target.insert(target.end(), source.begin(), source.end());
  check(target.size() == source.size(), "a copied list has another length");
  return {};
}

}  // namespace vmm

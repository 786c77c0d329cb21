// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include "live_blocks.h"

#include <vector>

#include "device_pools.h"
#include "ipc.h"
#include "violation.h"

import vmm.backend;
import vmm.base;

namespace vmm::preload::managed {
namespace {

live_block* block_of(index_node* node) noexcept { return static_cast<live_block*>(node); }

}  // namespace

live_block* live_blocks::begins_at(device_pointer at) const noexcept {
  live_block* const found = block_of(by_address_.at_most(at));
  return found != nullptr && found->at() == at ? found : nullptr;
}

bool live_blocks::is_taken(device_pointer at, std::size_t size) const noexcept {
  const live_block* const last = block_of(by_address_.at_most(at + size - 1));
  return last != nullptr && last->at() + last->size > at;
}

bool live_blocks::add(pending_blocks::owner& entry, device_pointer at) noexcept {
  live_block& block = entry->block;
  const sync::lock_guard turn(locks::blocks);
  if (is_taken(at, block.size)) {
    violated("live_blocks I1: a pool hands out memory of a live block");
    return false;
  }
  block.number = ++last_number_;
  block.entry = entry.release();
  by_address_.insert(block, at);
  block.device->levels().add(block.size);
  return true;
}

pending_blocks::owner live_blocks::take(device_pointer at) noexcept {
  pending_blocks::owner taken;
  {
    const sync::lock_guard turn(locks::blocks);
    live_block* const found = begins_at(at);
    if (found == nullptr) return nullptr;
    by_address_.erase(*found);
    found->device->levels().subtract(found->size);
    taken.reset(found->entry);
  }
  ipc::forget(taken->block.number);
  return taken;
}

bool live_blocks::overlaps(device_pointer at, std::size_t size) const noexcept {
  const sync::shared_guard turn(locks::blocks);
  return is_taken(at, size);
}

place live_blocks::find(device_pointer at, block_facts& into) const noexcept {
  const sync::shared_guard turn(locks::blocks);
  const live_block* const found = block_of(by_address_.at_most(at));
  if (found == nullptr || at - found->at() >= found->size) return place::in_free_memory;
  const device_pools& device = *found->device;
  const pool_id pool = found->is_ordered() ? device.default_pool() : nullptr;
  into = {found->at(), found->size, found->number, device.context(), pool, found->is_ordered()};
  return place::in_block;
}

// The pool lists the memory outside of the lock: a block that is the same one before and after was
// live meanwhile.
block_memory live_blocks::memory_of(device_pointer base) const {
  block_memory memory;
  owner from = owner::unordered;
  device_pools* device = nullptr;
  {
    const sync::shared_guard turn(locks::blocks);
    const live_block* const found = begins_at(base);
    if (found == nullptr || found->is_ordered()) return memory;
    from = found->from;
    device = found->device;
    memory.device = device->device();
    memory.size_bytes = found->size;
    memory.number = found->number;
  }
  const auto segments = device->segments(from, {{base}, memory.size_bytes});
  if (!segments) return memory;
  memory.offset_bytes = base - segments->front().range.base.value;
  for (const memory_segment& each : *segments)
    memory.pieces.push_back({static_cast<physical_id>(each.handle), each.range.size_bytes});
  const sync::shared_guard turn(locks::blocks);
  const live_block* const found = begins_at(base);
  if (found == nullptr || found->number != memory.number) memory.pieces.clear();
  return memory;
}

device_pools* live_blocks::find_copyable(device_pointer target, device_pointer source,
                                         std::size_t size) const noexcept {
  const sync::shared_guard turn(locks::blocks);
  const live_block* const to = begins_at(target);
  const live_block* const from = begins_at(source);
  if (to == nullptr || from == nullptr || to == from || to->device != from->device) return nullptr;
  const bool fits = to->from == owner::manager && from->from == owner::manager &&
                    from->size == size && to->size >= size;
  return fits ? to->device : nullptr;
}

void live_blocks::forget(const device_pools& gone) noexcept {
  const sync::lock_guard turn(locks::blocks);
  for (index_node* node = by_address_.first(); node != nullptr;) {
    live_block& block = *block_of(node);
    node = by_address_.next(*node);
    if (block.device != &gone) continue;
    ipc::forget(block.number);
    by_address_.erase(block);
    const pending_blocks::owner forgotten(block.entry);
  }
}

std::uint64_t live_blocks::bytes_on(const device_pools& device) const noexcept {
  const sync::shared_guard turn(locks::blocks);
  std::uint64_t sum = 0;
  for (index_node* node = by_address_.first(); node != nullptr; node = by_address_.next(*node))
    sum += block_of(node)->device == &device ? block_of(node)->size : 0;
  return sum;
}

const char* live_blocks::find_broken() const {
  std::vector<const live_block*> all;
  {
    const sync::shared_guard turn(locks::blocks);
    for (index_node* node = by_address_.first(); node != nullptr; node = by_address_.next(*node))
      all.push_back(block_of(node));
  }
  device_pointer end = 0;
  for (const live_block* each : all) {
    if (each->at() < end) return "live_blocks I1: two live blocks overlap";
    end = each->at() + each->size;
    if (!each->device->segments(each->from, {{each->at()}, each->size}))
      return "live_blocks I3: a live block has no memory";
  }
  return nullptr;
}

}  // namespace vmm::preload::managed

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm's memory in PyTorch's figures: statistics, and the segments and blocks of a snapshot.
#pragma once

#include <unordered_map>
#include <utility>
#include <vector>

#include "history.hpp"
#include "torch_names.hpp"

namespace vmm_torch {

inline void add(Stat& to, const vmm_level& level) {
  to.current += level.current;
  to.peak += level.peak;
  to.allocated += level.added;
  to.freed += level.removed;
}
// Blocks of every size lie in large segments, as add_segments() lists them.
inline void add(StatArray& to, const vmm_level& all) {
  add(to[VMM_LEVEL_ALL], all);
  add(to[VMM_LEVEL_LARGE], all);
}

inline void add_statistics(vmm_allocator* of, DeviceIndex device, DeviceStats& all) {
  vmm_allocator_statistics ours{};
  ours.struct_size = sizeof(ours);
  check(vmm_allocator_get_statistics(of, device, &ours));
  add(all.allocation, ours.allocations[VMM_LEVEL_ALL]);
  add(all.allocated_bytes, ours.allocated_bytes[VMM_LEVEL_ALL]);
  add(all.active, ours.active[VMM_LEVEL_ALL]);
  add(all.active_bytes, ours.active_bytes[VMM_LEVEL_ALL]);
  add(all.requested_bytes, ours.requested_bytes[VMM_LEVEL_ALL]);
  add(all.reserved_bytes, ours.held_bytes);
  add(all.segment, ours.handles);
  all.num_alloc_retries += static_cast<int64_t>(ours.retry_count);
  all.num_device_alloc += ours.handles.added;
  all.num_device_free += ours.handles.removed;
}

inline std::vector<vmm_pool_region> regions_of(vmm_allocator* of, DeviceIndex device) {
  return listed<vmm_pool_region>([&](vmm_pool_region* into, uint64_t size, uint64_t* count) {
    return vmm_allocator_regions(of, device, into, size, count);
  });
}

inline void add_block(SegmentInfo& to, const vmm_pool_region& region, const vmm_allocation* block,
                      history& contexts) {
  BlockInfo made;
  made.size = region.size_bytes;
  made.active = region.kind == VMM_REGION_LIVE;
  made.allocated = block != nullptr && block->is_pending == 0;
  if (block != nullptr) {
    made.requested_size = block->requested_bytes;
    made.context_when_allocated = contexts.context_of(region.base);
  }
  to.total_size += made.size;
  to.requested_size += made.active ? made.requested_size : 0;
  to.allocated_size += made.allocated ? made.size : 0;
  to.active_size += made.active ? made.size : 0;
  to.blocks.push_back(std::move(made));
}

// A segment for each run of mapped memory that one stream has.
inline void add_segments(vmm_allocator* of, DeviceIndex device, history& contexts,
                         std::vector<SegmentInfo>& out) {
  std::unordered_map<void*, vmm_allocation> blocks;
  const auto found =
      listed<vmm_allocation>([&](vmm_allocation* into, uint64_t size, uint64_t* count) {
        return vmm_allocator_list(of, device, into, size, count);
      });
  for (const vmm_allocation& each : found) blocks.emplace(each.base, each);
  size_t end = 0;
  for (const vmm_pool_region& each : regions_of(of, device)) {
    const auto begin = reinterpret_cast<size_t>(each.base);
    if (each.kind == VMM_REGION_HOLE || each.kind == VMM_REGION_STALE) continue;
    const auto block = blocks.find(each.base);
    const bool is_live = each.kind == VMM_REGION_LIVE;
    void* const stream = is_live && block != blocks.end() ? block->second.stream : each.stream;
    if (begin != end || out.back().stream != stream) {
      out.emplace_back();
      out.back().device = device;
      out.back().address = begin;
      out.back().stream = static_cast<decltype(SegmentInfo::stream)>(stream);
      out.back().is_large = true;
      out.back().is_expandable = true;
    }
    add_block(out.back(), each,
              is_live ? (block != blocks.end() ? &block->second : nullptr) : nullptr, contexts);
    end = begin + each.size_bytes;
  }
}

}  // namespace vmm_torch

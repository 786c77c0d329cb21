// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// NVTX is headers only: its functions look for the tool's library, which NVTX_INJECTION64_PATH
// names, when the first of them is called.
module;
#include <nvtx3/nvToolsExtMem.h>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

module vmm.nvtx;

import vmm.backend;

namespace vmm {

struct nvtx_declarer::state {
  struct heap {
    std::uint64_t size_bytes = 0;
    nvtxMemHeapHandle_t handle = nullptr;
  };

  void declare_region(const heap& in, address_range part);
  void drop_regions(address_range within);
  // The first heap that reaches into the range, or any behind it.
  [[nodiscard]] std::map<std::uint64_t, heap>::iterator first_heap(address_range range);

  mutable std::mutex mutex;
  nvtxDomainHandle_t domain = nullptr;
  std::map<std::uint64_t, heap> heaps;             // by address
  std::map<std::uint64_t, std::uint64_t> regions;  // address to size
  std::map<std::uint64_t, std::uint64_t> blocks;   // likewise
};

namespace {

const void* pointer_to(std::uint64_t at) noexcept {
  return reinterpret_cast<const void*>(static_cast<std::uintptr_t>(at));
}

nvtxMemVirtualRangeDesc_t native(address_range range) noexcept {
  nvtxMemVirtualRangeDesc_t out{};
  out.size = range.size_bytes;
  out.ptr = pointer_to(range.base.value);
  return out;
}

}  // namespace

void nvtx_declarer::state::declare_region(const heap& in, address_range part) {
  const nvtxMemVirtualRangeDesc_t range = native(part);
  nvtxMemRegionsRegisterBatch_t batch{};
  batch.extCompatID = NVTX_EXT_COMPATID_MEM;
  batch.structSize = sizeof batch;
  batch.regionType = NVTX_MEM_TYPE_VIRTUAL_ADDRESS;
  batch.heap = in.handle;
  batch.regionCount = 1;
  batch.regionDescElementSize = sizeof range;
  batch.regionDescElements = &range;
  regions[part.base.value] = part.size_bytes;
  nvtxMemRegionsRegister(domain, &batch);
}

void nvtx_declarer::state::drop_regions(address_range within) {
  auto next = regions.lower_bound(within.base.value);
  if (next != regions.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second > within.base.value) next = before;
  }
  while (next != regions.end() && next->first < within.end().value) {
    nvtxMemRegionRef_t which{};
    which.pointer = pointer_to(next->first);
    nvtxMemRegionsUnregisterBatch_t batch{};
    batch.extCompatID = NVTX_EXT_COMPATID_MEM;
    batch.structSize = sizeof batch;
    batch.refType = NVTX_MEM_REGION_REF_TYPE_POINTER;
    batch.refCount = 1;
    batch.refElementSize = sizeof which;
    batch.refElements = &which;
    nvtxMemRegionsUnregister(domain, &batch);
    next = regions.erase(next);
  }
}

std::map<std::uint64_t, nvtx_declarer::state::heap>::iterator nvtx_declarer::state::first_heap(
    address_range range) {
  auto next = heaps.lower_bound(range.base.value);
  if (next == heaps.begin()) return next;
  const auto before = std::prev(next);
  return before->first + before->second.size_bytes > range.base.value ? before : next;
}

nvtx_declarer::nvtx_declarer(std::unique_ptr<state> made) noexcept : state_(std::move(made)) {}

nvtx_declarer::~nvtx_declarer() {
  for (const auto& [at, each] : state_->heaps) {
    if (each.handle != nullptr) nvtxMemHeapUnregister(state_->domain, each.handle);
  }
}

result<std::unique_ptr<nvtx_declarer>> nvtx_declarer::open() {
  std::unique_ptr<state> made{new (std::nothrow) state};
  if (made != nullptr) {
    made->domain = nvtxDomainCreateA("vmm");
    std::unique_ptr<nvtx_declarer> opened{new (std::nothrow) nvtx_declarer(std::move(made))};
    if (opened != nullptr) return opened;
  }
  return refuse(errc::out_of_host_memory, "no host memory is left for declared blocks");
}

void nvtx_declarer::mapped(address_range memory) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  const nvtxMemVirtualRangeDesc_t range = native(memory);
  nvtxMemHeapDesc_t heap{};
  heap.extCompatID = NVTX_EXT_COMPATID_MEM;
  heap.structSize = sizeof heap;
  heap.usage = NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR;
  heap.type = NVTX_MEM_TYPE_VIRTUAL_ADDRESS;
  heap.typeSpecificDescSize = sizeof range;
  heap.typeSpecificDesc = &range;
  state_->heaps[memory.base.value] = {memory.size_bytes,
                                      nvtxMemHeapRegister(state_->domain, &heap)};
}

void nvtx_declarer::unmapped(address_range memory) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  const auto found = state_->heaps.find(memory.base.value);
  if (found == state_->heaps.end()) return;
  state_->drop_regions(memory);
  if (found->second.handle != nullptr) nvtxMemHeapUnregister(state_->domain, found->second.handle);
  state_->heaps.erase(found);
}

void nvtx_declarer::allocated(address_range block) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->drop_regions(block);  // of blocks that were freed without a word
  state_->blocks[block.base.value] = block.size_bytes;
  for (auto next = state_->first_heap(block);
       next != state_->heaps.end() && next->first < block.end().value; ++next) {
    const std::uint64_t low = std::max(next->first, block.base.value);
    const std::uint64_t high = std::min(next->first + next->second.size_bytes, block.end().value);
    if (next->second.handle != nullptr)
      state_->declare_region(next->second, {address{low}, high - low});
  }
}

void nvtx_declarer::freed(address block) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  const auto found = state_->blocks.find(block.value);
  if (found == state_->blocks.end()) return;
  state_->drop_regions({block, found->second});
  state_->blocks.erase(found);
}

std::uint64_t nvtx_declarer::heap_count() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return static_cast<std::uint64_t>(
      std::count_if(state_->heaps.begin(), state_->heaps.end(),
                    [](const auto& each) { return each.second.handle != nullptr; }));
}

std::uint64_t nvtx_declarer::region_count() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->regions.size();
}

}  // namespace vmm

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// NVTX is headers only: its functions look for the tool's library, which NVTX_INJECTION64_PATH
// names, when the first of them is called.
module;
#include <nvtx3/nvToolsExtMem.h>

module vmm.observe;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {

struct nvtx_declarer::state {
  struct heap {
    std::uint64_t size_bytes = 0;
    nvtxMemHeapHandle_t handle = nullptr;
  };

  void declare_region(const heap& in, address_range part);
  void drop_regions(address_range within);
  // The heap that the block lies in, if a tool has taken note of it.
  [[nodiscard]] const heap* heap_of(address_range block) const;
  // I1.
  [[nodiscard]] bool is_valid() const;

  mutable std::mutex mutex;
  nvtxDomainHandle_t domain = nullptr;
  std::map<std::uint64_t, heap> heaps;             // by address
  std::map<std::uint64_t, std::uint64_t> regions;  // address to size
};

namespace {

const void* pointer_to(std::uint64_t at) noexcept {
  return reinterpret_cast<const void*>(static_cast<std::uintptr_t>(at));
}

nvtxMemVirtualRangeDesc_t native(address_range range) noexcept {
  check(!range.empty(), "a range without addresses is declared");
  nvtxMemVirtualRangeDesc_t out{};
  out.size = range.size_bytes;
  out.ptr = pointer_to(range.base.value);
  return out;
}

}  // namespace

void nvtx_declarer::state::declare_region(const heap& in, address_range part) {
  check(in.handle != nullptr, "I1: a region is declared in an undeclared heap");
  check(!part.empty() && !regions.contains(part.base.value),
        "a region is declared twice, or empty");
  const nvtxMemVirtualRangeDesc_t range = native(part);
  nvtxMemRegionsRegisterBatch_t batch{};
  batch.extCompatID = NVTX_EXT_COMPATID_MEM;
  batch.structSize = sizeof batch;
  batch.regionType = NVTX_MEM_TYPE_VIRTUAL_ADDRESS;
  batch.heap = in.handle;
  batch.regionCount = 1;
  batch.regionDescElementSize = sizeof range;
  batch.regionDescElements = &range;
  try {
    regions[part.base.value] = part.size_bytes;
  } catch (const std::bad_alloc&) {
    return;  // not declared: a tool then reports its use, which is better than to end here
  }
  check(range.ptr == pointer_to(part.base.value) && range.size == part.size_bytes,
        "the declared range is not the block's");
  nvtxMemRegionsRegister(domain, &batch);
}

void nvtx_declarer::state::drop_regions(address_range within) {
  auto next = regions.lower_bound(within.base.value);
  if (next != regions.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second > within.base.value) next = before;
  }
  while (next != regions.end() && next->first < within.end().value) {
    check(next->second > 0, "an empty region was declared");
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
  debug_check([&] { return next == regions.end() || next->first >= within.end().value; },
              "a region is still declared in released addresses");
}

const nvtx_declarer::state::heap* nvtx_declarer::state::heap_of(address_range block) const {
  auto found = heaps.upper_bound(block.base.value);
  if (found == heaps.begin()) return nullptr;
  --found;
  check(found->second.size_bytes != 0, "a heap without addresses was declared");
  const address_range whole{address{found->first}, found->second.size_bytes};
  return found->second.handle != nullptr && whole.contains(block) ? &found->second : nullptr;
}

bool nvtx_declarer::state::is_valid() const {
  std::uint64_t end = 0;
  for (const auto& [at, size_bytes] : regions) {
    if (at < end || size_bytes == 0 || heap_of({{at}, size_bytes}) == nullptr) return false;
    end = at + size_bytes;
  }
  return true;
}

nvtx_declarer::nvtx_declarer(std::unique_ptr<state> made) noexcept : state_(std::move(made)) {
  check(state_ != nullptr, "a declarer that was moved from is used");
}

nvtx_declarer::~nvtx_declarer() {
  paranoid_check([this] { return state_->is_valid(); },
                 "declared regions overlap, or lie in no heap");
  for (const auto& [at, each] : state_->heaps) {
    if (each.handle != nullptr) nvtxMemHeapUnregister(state_->domain, each.handle);
  }
}

result<std::unique_ptr<nvtx_declarer>> nvtx_declarer::open() {
  if (!environment_is_trusted())
    return refuse(errc::not_permitted,
                  "a program with more rights than its caller loads no tool of NVTX");
  std::unique_ptr<state> made{new (std::nothrow) state};
  if (made != nullptr) {
    made->domain = nvtxDomainCreateA("vmm");
    std::unique_ptr<nvtx_declarer> opened{new (std::nothrow) nvtx_declarer(std::move(made))};
    if (opened != nullptr) return opened;
  }
  return refuse(errc::out_of_host_memory, "no host memory is left for declared blocks");
}

void nvtx_declarer::reserved(address_range addresses) noexcept {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  debug_check([&] { return !state_->heaps.contains(addresses.base.value); },
              "reserved addresses are reserved again");
  const nvtxMemVirtualRangeDesc_t range = native(addresses);
  nvtxMemHeapDesc_t heap{};
  heap.extCompatID = NVTX_EXT_COMPATID_MEM;
  heap.structSize = sizeof heap;
  heap.usage = NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR;
  heap.type = NVTX_MEM_TYPE_VIRTUAL_ADDRESS;
  heap.typeSpecificDescSize = sizeof range;
  heap.typeSpecificDesc = &range;
  try {
    state_->heaps[addresses.base.value].size_bytes = addresses.size_bytes;
  } catch (const std::bad_alloc&) {
    return;  // blocks here are not declared: a heap without regions would refuse their use
  }
  state_->heaps[addresses.base.value].handle = nvtxMemHeapRegister(state_->domain, &heap);
  paranoid_check([this] { return state_->is_valid(); },
                 "declared regions overlap, or lie in no heap");
}

void nvtx_declarer::unreserved(address_range addresses) noexcept {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  const auto found = state_->heaps.find(addresses.base.value);
  if (found == state_->heaps.end()) return;
  check(found->second.size_bytes == addresses.size_bytes,
        "addresses are released with a wrong size");
  state_->drop_regions(addresses);
  if (found->second.handle != nullptr) nvtxMemHeapUnregister(state_->domain, found->second.handle);
  state_->heaps.erase(found);
  paranoid_check([this] { return state_->is_valid(); },
                 "declared regions overlap, or lie in no heap");
}

// Access within a heap is allowed block by block, whatever memory is behind it.
void nvtx_declarer::mapped(address_range) noexcept {}

// Blocks that were freed without a word end here.
void nvtx_declarer::unmapped(address_range memory) noexcept {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  check(!memory.empty(), "memory without a size is unmapped");
  state_->drop_regions(memory);
  paranoid_check([this] { return state_->is_valid(); },
                 "declared regions overlap, or lie in no heap");
}

void nvtx_declarer::allocated(address_range block) noexcept {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->drop_regions(block);  // of blocks that were freed without a word
  check(!block.empty(), "a block without a size is declared");
  if (const state::heap* in = state_->heap_of(block)) state_->declare_region(*in, block);
  paranoid_check([this] { return state_->is_valid(); },
                 "declared regions overlap, or lie in no heap");
}

void nvtx_declarer::freed(address block) noexcept {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  const auto found = state_->regions.find(block.value);
  if (found == state_->regions.end()) return;
  state_->drop_regions({block, found->second});
  check(!state_->regions.contains(block.value), "a freed block is still declared");
}

std::uint64_t nvtx_declarer::heap_count() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  paranoid_check([this] { return state_->is_valid(); },
                 "declared regions overlap, or lie in no heap");
  return static_cast<std::uint64_t>(
      std::count_if(state_->heaps.begin(), state_->heaps.end(),
                    [](const auto& each) { return each.second.handle != nullptr; }));
}

std::uint64_t nvtx_declarer::region_count() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  paranoid_check([this] { return state_->is_valid(); },
                 "declared regions overlap, or lie in no heap");
  return state_->regions.size();
}

}  // namespace vmm

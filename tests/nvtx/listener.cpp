// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// A tool that listens to NVTX's memory extension and checks addresses by the rule that the
// extension writes down: in a heap of a sub-allocator only the bytes of registered regions may be
// used. It takes the extension's handshake as nvToolsExtMem.h makes it.
#include "../../tools/program/standard.hpp"

#include <nvtx3/nvToolsExtMem.h>
#if __has_include(<nvtx3/nvToolsExtCounters.h>)
#include <nvtx3/nvToolsExtPayload.h>

#include <nvtx3/nvToolsExtCounters.h>
#endif

namespace {

std::map<std::uint64_t, std::uint64_t> heaps;    // address to size
std::map<std::uint64_t, std::uint64_t> regions;  // likewise
unsigned broken_rules = 0;

std::uint64_t number(const void* pointer) {
  return static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(pointer));
}

bool inside(const std::map<std::uint64_t, std::uint64_t>& all, std::uint64_t at) {
  const auto next = all.upper_bound(at);
  if (next == all.begin()) return false;
  const auto found = std::prev(next);
  return at < found->first + found->second;
}

nvtxMemHeapHandle_t register_heap(nvtxDomainHandle_t, const nvtxMemHeapDesc_t* heap) {
  const auto* range = static_cast<const nvtxMemVirtualRangeDesc_t*>(heap->typeSpecificDesc);
  const bool known = heap->extCompatID == NVTX_EXT_COMPATID_MEM &&
                     heap->usage == NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR &&
                     heap->type == NVTX_MEM_TYPE_VIRTUAL_ADDRESS;
  const bool overlaps = inside(heaps, number(range->ptr));
  if (!known || overlaps) ++broken_rules;
  heaps[number(range->ptr)] = range->size;
  return reinterpret_cast<nvtxMemHeapHandle_t>(number(range->ptr));
}

void unregister_heap(nvtxDomainHandle_t, nvtxMemHeapHandle_t heap) {
  if (heaps.erase(number(heap)) != 1) ++broken_rules;
}

void register_regions(nvtxDomainHandle_t, const nvtxMemRegionsRegisterBatch_t* batch) {
  const auto* each = static_cast<const nvtxMemVirtualRangeDesc_t*>(batch->regionDescElements);
  for (std::size_t i = 0; i < batch->regionCount; ++i) {
    const std::uint64_t at = number(each[i].ptr);
    const auto heap = heaps.find(number(batch->heap));
    const bool fits =
        heap != heaps.end() && at >= heap->first && at + each[i].size <= heap->first + heap->second;
    if (!fits || inside(regions, at) || inside(regions, at + each[i].size - 1)) ++broken_rules;
    regions[at] = each[i].size;
  }
}

void unregister_regions(nvtxDomainHandle_t, const nvtxMemRegionsUnregisterBatch_t* batch) {
  for (std::size_t i = 0; i < batch->refCount; ++i)
    if (regions.erase(number(batch->refElements[i].pointer)) != 1) ++broken_rules;
}

// ---- ranges, marks and counters ----

std::map<std::string, unsigned> counts;       // of pushes and marks, by name
std::map<std::string, std::int64_t> samples;  // the latest of each counter
std::map<std::uint64_t, std::string> counters;
int depth = 0;

int push(nvtxDomainHandle_t, const nvtxEventAttributes_t* what) {
  ++counts[what->message.ascii];
  return depth++;
}
int pop(nvtxDomainHandle_t) {
  if (depth == 0) ++broken_rules;
  return --depth;
}
void mark(nvtxDomainHandle_t, const nvtxEventAttributes_t* what) { ++counts[what->message.ascii]; }

#ifdef NVTX_EXT_COUNTERS_MODULEID
std::uint64_t register_counter(nvtxDomainHandle_t, const nvtxCounterAttr_t* what) {
  const std::uint64_t number = counters.size() + 1;
  counters[number] = what->name;
  return number;
}
void take_sample(nvtxDomainHandle_t, std::uint64_t counter, std::int64_t value) {
  if (!counters.contains(counter)) ++broken_rules;
  samples[counters[counter]] = value;
}
#endif

template <class Function>
void fill(const nvtxExtModuleSegment_t& segment, std::size_t slot, Function* function) {
  segment.functionSlots[slot] = reinterpret_cast<std::intptr_t>(function);
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) int InitializeInjectionNvtxExtension(
    nvtxExtModuleInfo_t* module) {
#ifdef NVTX_EXT_COUNTERS_MODULEID
  if (module->moduleId == NVTX_EXT_COUNTERS_MODULEID && module->segmentsCount != 0) {
    fill(module->segments[0], NVTX3EXT_CBID_nvtxCounterRegister, &register_counter);
    fill(module->segments[0], NVTX3EXT_CBID_nvtxCounterSampleInt64, &take_sample);
    return 1;
  }
#endif
  if (module->moduleId != NVTX_EXT_MODULEID_MEM || module->segmentsCount == 0) return 0;
  const nvtxExtModuleSegment_t& segment = module->segments[0];
  fill(segment, NVTX3EXT_CBID_nvtxMemHeapRegister, &register_heap);
  fill(segment, NVTX3EXT_CBID_nvtxMemHeapUnregister, &unregister_heap);
  fill(segment, NVTX3EXT_CBID_nvtxMemRegionsRegister, &register_regions);
  fill(segment, NVTX3EXT_CBID_nvtxMemRegionsUnregister, &unregister_regions);
  return 1;
}

__attribute__((visibility("default"))) int InitializeInjectionNvtx2(
    NvtxGetExportTableFunc_t table_of) {
  const auto* callbacks =
      static_cast<const NvtxExportTableCallbacks*>(table_of(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned size = 0;
  if (callbacks == nullptr ||
      callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) == 0)
    return 0;
  *table[NVTX_CBID_CORE2_DomainRangePushEx] = reinterpret_cast<NvtxFunctionPointer>(&push);
  *table[NVTX_CBID_CORE2_DomainRangePop] = reinterpret_cast<NvtxFunctionPointer>(&pop);
  *table[NVTX_CBID_CORE2_DomainMarkEx] = reinterpret_cast<NvtxFunctionPointer>(&mark);
  return 1;
}

/// How often a range was begun, or a mark made, by this name.
__attribute__((visibility("default"))) unsigned listener_named(const char* name) {
  return counts[name];
}
__attribute__((visibility("default"))) int listener_depth() { return depth; }
__attribute__((visibility("default"))) std::int64_t listener_sample(const char* counter) {
  return samples.contains(counter) ? samples[counter] : -1;
}

/// Whether a kernel may use the byte: it lies in no heap, or in a region.
__attribute__((visibility("default"))) bool listener_allows(std::uint64_t at) {
  return !inside(heaps, at) || inside(regions, at);
}
__attribute__((visibility("default"))) unsigned listener_heaps() {
  return static_cast<unsigned>(heaps.size());
}
__attribute__((visibility("default"))) unsigned listener_regions() {
  return static_cast<unsigned>(regions.size());
}
__attribute__((visibility("default"))) unsigned listener_broken_rules() { return broken_rules; }

}  // extern "C"

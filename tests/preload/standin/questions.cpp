// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The grown stub driver for libcuda: what the driver says of pointers, contexts and devices.

#include "more.h"
#include "state.h"

import vmm.backend;
import vmm.fake;

using standin::more;

namespace {

struct seen_pointer {
  enum class is { unknown, plain, mapped } what = is::unknown;
  CUdeviceptr base = 0;
  standin::plain_block block;
};

vmm::fake_driver* fake() { return static_cast<vmm::fake_driver*>(standin::the().fake.get()); }

seen_pointer look_at(CUdeviceptr at) {
  {
    const std::lock_guard<std::mutex> hold(more().lock);
    auto found = more().blocks.upper_bound(at);
    if (found != more().blocks.begin() && at - (--found)->first < found->second.size) {
      return {seen_pointer::is::plain, found->first, found->second};
    }
  }
  for (int device = 0; fake() != nullptr && device < standin::the().device_count(); ++device) {
    const auto rights = fake()->get_access({at}, vmm::device(device));
    if (rights && *rights != vmm::access::none) return {seen_pointer::is::mapped, 0, {}};
  }
  return {};
}

template <class Value>
CUresult give(void* data, Value value) {
  std::memcpy(data, &value, sizeof value);
  return CUDA_SUCCESS;
}

int only_default_pool = 0;

// For mapped memory the driver has no context, no range and no number.
CUresult answer(const seen_pointer& seen, CUpointer_attribute attribute, void* data,
                CUdeviceptr at) {
  const bool is_plain = seen.what == seen_pointer::is::plain;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: return give(data, seen.block.context);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: return give(data, unsigned{CU_MEMORYTYPE_DEVICE});
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: return give(data, at);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return is_plain ? give(data, seen.block.number) : CUDA_ERROR_INVALID_VALUE;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: return give(data, 0u);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return is_plain ? give(data, seen.base) : CUDA_ERROR_INVALID_VALUE;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return is_plain ? give(data, seen.block.size) : CUDA_ERROR_INVALID_VALUE;
    case CU_POINTER_ATTRIBUTE_MAPPED: return give(data, 1u);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return give(data, is_plain && !seen.block.has_stream ? 1u : 0u);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: return give(data, is_plain ? 0u : 1u);
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: {
      CUmemoryPool pool = nullptr;
      if (seen.block.has_stream) (void)cuDeviceGetDefaultMemPool(&pool, seen.block.context->device);
      return give(data, pool);
    }
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace

extern "C" {

CUresult cuMemGetAddressRange(CUdeviceptr* base, std::size_t* size, CUdeviceptr at) {
  const seen_pointer seen = look_at(at);
  if (seen.what == seen_pointer::is::unknown) return CUDA_ERROR_NOT_FOUND;
  if (base != nullptr) *base = seen.base;
  if (size != nullptr) *size = seen.block.size;
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr at) {
  const seen_pointer seen = look_at(at);
  if (data == nullptr || seen.what == seen_pointer::is::unknown) return CUDA_ERROR_INVALID_VALUE;
  return answer(seen, attribute, data, at);
}

CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes, void** data,
                                CUdeviceptr at) {
  const seen_pointer seen = look_at(at);
  for (unsigned i = 0; i < count; ++i) {
    if (data[i] == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::memset(data[i], 0, attributes[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE ? 4 : 8);
    if (seen.what == seen_pointer::is::unknown) continue;
    (void)answer(seen, attributes[i], data[i], at);
  }
  return CUDA_SUCCESS;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr at) {
  const seen_pointer seen = look_at(at);
  const bool is_plain = seen.what == seen_pointer::is::plain && !seen.block.has_stream;
  if (!is_plain) return CUDA_ERROR_INVALID_VALUE;
  std::memset(handle, 0, sizeof *handle);
  std::memcpy(handle, &seen.base, sizeof seen.base);
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* device) {
  if (standin::context_stack().empty()) return CUDA_ERROR_INVALID_CONTEXT;
  *device = standin::context_stack().back()->device;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  *flags = 0;
  *active = vmm_standin_context_references(device) > 0 ? 1 : 0;
  return CUDA_SUCCESS;
}

// vmm-owner finds its device by these two.
CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  std::memset(uuid->bytes, 0x20 + device, sizeof uuid->bytes);
  return CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem_v2(std::size_t* bytes, CUdevice device) {
  const auto info = fake()->query_memory(vmm::device(device));
  if (!info) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = info->total_bytes;
  return CUDA_SUCCESS;
}

CUresult cuDeviceSetMemPool(CUdevice, CUmemoryPool pool) {
  return pool == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc*, std::size_t) {
  return pool == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

// The default pool holds its live blocks, in units of 512 bytes.
CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute which, void* value) {
  cuuint64_t live_bytes = 0;
  standin::extras& m = more();
  const std::lock_guard<std::mutex> hold(m.lock);
  for (const auto& [at, block] : m.blocks) {
    if (block.has_stream) live_bytes += (block.size + 511) / 512 * 512;
  }
  if (pool == nullptr || value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const bool is_figure = which >= CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT;
  *static_cast<cuuint64_t*>(value) = is_figure ? live_bytes : 0;
  return CUDA_SUCCESS;
}

// Private tables go between the runtime and the driver untouched.
CUresult cuGetExportTable(const void** table, const CUuuid*) {
  *table = &only_default_pool;
  return CUDA_SUCCESS;
}

}  // extern "C"

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: adapters/preload/abi.h agrees with backends/cuda/abi.h, which `./run check cuda_abi`
// compares with cuda.h. Method: every size, place and number is compared while this file is
// compiled, and so is the type of each entry of the table.
#include <cstddef>
#include <type_traits>

#include "../../adapters/preload/abi.h"
#include "../../backends/cuda/abi.h"

namespace {

using namespace vmm::preload;

static_assert(sizeof(CUresult) == sizeof(result_code));
static_assert(std::is_same_v<CUdeviceptr, device_pointer>);
static_assert(std::is_same_v<CUmemGenericAllocationHandle, physical_id>);
static_assert(std::is_same_v<CUdevice, device_id>);
static_assert(sizeof(CUstream) == sizeof(stream_id) && sizeof(CUcontext) == sizeof(context_id));
static_assert(sizeof(cuuint64_t) == sizeof(flag_set));
static_assert(sizeof(CUmemAllocationProp) == sizeof(memory_properties));
static_assert(offsetof(CUmemAllocationProp, location) == offsetof(memory_properties, location));
static_assert(offsetof(CUmemAllocationProp, allocFlags) == offsetof(memory_properties, flags));
static_assert(sizeof(CUmemAccessDesc) == sizeof(access_description));
static_assert(offsetof(CUmemAccessDesc, flags) == offsetof(access_description, rights));
static_assert(sizeof(CUipcMemHandle) == sizeof(ipc_handle));

static_assert(CUDA_SUCCESS == code::success && CUDA_ERROR_INVALID_VALUE == code::invalid_value);
static_assert(CUDA_ERROR_OUT_OF_MEMORY == code::out_of_memory);
static_assert(CUDA_ERROR_NOT_INITIALIZED == code::not_initialized);
static_assert(CUDA_ERROR_DEINITIALIZED == code::deinitialized);
static_assert(CUDA_ERROR_INVALID_CONTEXT == code::invalid_context);
static_assert(CUDA_ERROR_NOT_FOUND == code::not_found);
static_assert(CUDA_ERROR_NOT_READY == code::not_ready);
static_assert(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED == code::capture_unsupported);
static_assert(CU_GET_PROC_ADDRESS_LEGACY_STREAM == find_legacy_stream);
static_assert(CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM == find_per_thread_stream);
static_assert(CU_STREAM_NON_BLOCKING == non_blocking_stream);
static_assert(CU_EVENT_DISABLE_TIMING == event_without_timing);
static_assert(CU_MEM_LOCATION_TYPE_DEVICE == device_location);
static_assert(CU_MEM_ACCESS_FLAGS_PROT_READWRITE == 3);
static_assert(CU_POINTER_ATTRIBUTE_CONTEXT == pointer_attribute::context);
static_assert(CU_POINTER_ATTRIBUTE_BUFFER_ID == pointer_attribute::buffer_id);
static_assert(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR == pointer_attribute::range_start);
static_assert(CU_POINTER_ATTRIBUTE_RANGE_SIZE == pointer_attribute::range_size);
static_assert(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE ==
              pointer_attribute::legacy_ipc_capable);
static_assert(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES == pointer_attribute::allowed_handle_types);
static_assert(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE == pointer_attribute::memory_pool);
static_assert(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT == pool_attribute::reserved);
static_assert(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH == pool_attribute::reserved_high);
static_assert(CU_MEMPOOL_ATTR_USED_MEM_CURRENT == pool_attribute::used);
static_assert(CU_MEMPOOL_ATTR_USED_MEM_HIGH == pool_attribute::used_high);

// Equal as far as a call goes: the same count of parameters, each of the same size and kind.
template <class One, class Other>
struct same_call : std::false_type {};
template <class... One, class... Other>
  requires(sizeof...(One) == sizeof...(Other))
struct same_call<CUresult (*)(One...), result_code (*)(Other...)>
    : std::bool_constant<(
          (sizeof(One) == sizeof(Other) && std::is_pointer_v<One> == std::is_pointer_v<Other>) &&
          ...)> {};

// The types of the entries of the table, by their symbols.
namespace entry {
#define VMM_ENTRY(symbol, name, version, streams, handler, parameters, arguments) \
  using symbol = result_code(*) parameters;
#include "../../adapters/preload/entries.inc"
#undef VMM_ENTRY
}  // namespace entry

#define VMM_SAME(symbol, type) static_assert(same_call<PFN_##type, entry::symbol>::value);
VMM_SAME(cuMemAlloc_v2, cuMemAlloc_v3020)
VMM_SAME(cuMemAllocPitch_v2, cuMemAllocPitch_v3020)
VMM_SAME(cuMemFree_v2, cuMemFree_v3020)
VMM_SAME(cuMemAllocAsync, cuMemAllocAsync_v11020)
VMM_SAME(cuMemFreeAsync, cuMemFreeAsync_v11020)
VMM_SAME(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync_v11020)
VMM_SAME(cuMemAllocManaged, cuMemAllocManaged_v6000)
VMM_SAME(cuMemGetInfo_v2, cuMemGetInfo_v3020)
VMM_SAME(cuMemGetAddressRange_v2, cuMemGetAddressRange_v3020)
VMM_SAME(cuPointerGetAttribute, cuPointerGetAttribute_v4000)
VMM_SAME(cuPointerGetAttributes, cuPointerGetAttributes_v7000)
VMM_SAME(cuIpcGetMemHandle, cuIpcGetMemHandle_v4010)
VMM_SAME(cuIpcOpenMemHandle_v2, cuIpcOpenMemHandle_v11000)
VMM_SAME(cuIpcCloseMemHandle, cuIpcCloseMemHandle_v4010)
VMM_SAME(cuMemcpyDtoD_v2, cuMemcpyDtoD_v3020)
VMM_SAME(cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync_v3020)
VMM_SAME(cuMemcpy, cuMemcpy_v4000)
VMM_SAME(cuMemcpyAsync, cuMemcpyAsync_v4000)
VMM_SAME(cuMemCreate, cuMemCreate_v10020)
VMM_SAME(cuMemRelease, cuMemRelease_v10020)
VMM_SAME(cuMemMap, cuMemMap_v10020)
VMM_SAME(cuMemUnmap, cuMemUnmap_v10020)
VMM_SAME(cuMemSetAccess, cuMemSetAccess_v10020)
VMM_SAME(cuMemExportToShareableHandle, cuMemExportToShareableHandle_v10020)
VMM_SAME(cuMemImportFromShareableHandle, cuMemImportFromShareableHandle_v10020)
VMM_SAME(cuMemRetainAllocationHandle, cuMemRetainAllocationHandle_v11000)
VMM_SAME(cuMemGetHandleForAddressRange, cuMemGetHandleForAddressRange_v11070)
VMM_SAME(cuMulticastBindMem, cuMulticastBindMem_v12010)
VMM_SAME(cuMulticastBindAddr, cuMulticastBindAddr_v12010)
VMM_SAME(cuStreamDestroy_v2, cuStreamDestroy_v4000)
VMM_SAME(cuStreamBeginCapture_v2, cuStreamBeginCapture_v10010)
VMM_SAME(cuStreamEndCapture, cuStreamEndCapture_v10000)
VMM_SAME(cuDevicePrimaryCtxReset_v2, cuDevicePrimaryCtxReset_v11000)
VMM_SAME(cuCtxEnablePeerAccess, cuCtxEnablePeerAccess_v4000)
VMM_SAME(cuDeviceSetMemPool, cuDeviceSetMemPool_v11020)
VMM_SAME(cuMemPoolGetAttribute, cuMemPoolGetAttribute_v11020)
VMM_SAME(cuMemPoolSetAttribute, cuMemPoolSetAttribute_v11020)
VMM_SAME(cuMemPoolTrimTo, cuMemPoolTrimTo_v11020)
VMM_SAME(cuGetProcAddress, cuGetProcAddress_v11030)
VMM_SAME(cuGetProcAddress_v2, cuGetProcAddress_v12000)

}  // namespace

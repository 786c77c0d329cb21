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

#define VMM_SAME(function, parameters) \
  static_assert(same_call<function, result_code(*) parameters>::value);
VMM_SAME(PFN_cuMemAlloc_v3020, (device_pointer*, std::size_t))
VMM_SAME(PFN_cuMemAllocPitch_v3020,
         (device_pointer*, std::size_t*, std::size_t, std::size_t, unsigned))
VMM_SAME(PFN_cuMemFree_v3020, (device_pointer))
VMM_SAME(PFN_cuMemAllocAsync_v11020, (device_pointer*, std::size_t, stream_id))
VMM_SAME(PFN_cuMemFreeAsync_v11020, (device_pointer, stream_id))
VMM_SAME(PFN_cuMemAllocFromPoolAsync_v11020, (device_pointer*, std::size_t, pool_id, stream_id))
VMM_SAME(PFN_cuMemAllocManaged_v6000, (device_pointer*, std::size_t, unsigned))
VMM_SAME(PFN_cuMemGetInfo_v3020, (std::size_t*, std::size_t*))
VMM_SAME(PFN_cuMemGetAddressRange_v3020, (device_pointer*, std::size_t*, device_pointer))
VMM_SAME(PFN_cuPointerGetAttribute_v4000, (void*, int, device_pointer))
VMM_SAME(PFN_cuPointerGetAttributes_v7000, (unsigned, int*, void**, device_pointer))
VMM_SAME(PFN_cuIpcGetMemHandle_v4010, (ipc_handle*, device_pointer))
VMM_SAME(PFN_cuIpcOpenMemHandle_v11000, (device_pointer*, ipc_handle, unsigned))
VMM_SAME(PFN_cuIpcCloseMemHandle_v4010, (device_pointer))
VMM_SAME(PFN_cuMemcpyDtoD_v3020, (device_pointer, device_pointer, std::size_t))
VMM_SAME(PFN_cuMemcpyDtoDAsync_v3020, (device_pointer, device_pointer, std::size_t, stream_id))
VMM_SAME(PFN_cuMemcpy_v4000, (device_pointer, device_pointer, std::size_t))
VMM_SAME(PFN_cuMemcpyAsync_v4000, (device_pointer, device_pointer, std::size_t, stream_id))
VMM_SAME(PFN_cuMemCreate_v10020, (physical_id*, std::size_t, const memory_properties*, flag_set))
VMM_SAME(PFN_cuMemRelease_v10020, (physical_id))
VMM_SAME(PFN_cuMemMap_v10020, (device_pointer, std::size_t, std::size_t, physical_id, flag_set))
VMM_SAME(PFN_cuMemUnmap_v10020, (device_pointer, std::size_t))
VMM_SAME(PFN_cuMemSetAccess_v10020,
         (device_pointer, std::size_t, const access_description*, std::size_t))
VMM_SAME(PFN_cuMemExportToShareableHandle_v10020, (void*, physical_id, int, flag_set))
VMM_SAME(PFN_cuMemImportFromShareableHandle_v10020, (physical_id*, void*, int))
VMM_SAME(PFN_cuMemRetainAllocationHandle_v11000, (physical_id*, void*))
VMM_SAME(PFN_cuMemGetHandleForAddressRange_v11070,
         (void*, device_pointer, std::size_t, int, flag_set))
VMM_SAME(PFN_cuMulticastBindMem_v12010,
         (physical_id, std::size_t, physical_id, std::size_t, std::size_t, flag_set))
VMM_SAME(PFN_cuMulticastBindAddr_v12010,
         (physical_id, std::size_t, device_pointer, std::size_t, flag_set))
VMM_SAME(PFN_cuStreamDestroy_v4000, (stream_id))
VMM_SAME(PFN_cuStreamBeginCapture_v10010, (stream_id, int))
VMM_SAME(PFN_cuStreamEndCapture_v10000, (stream_id, graph_id*))
VMM_SAME(PFN_cuDevicePrimaryCtxReset_v11000, (device_id))
VMM_SAME(PFN_cuCtxEnablePeerAccess_v4000, (context_id, unsigned))
VMM_SAME(PFN_cuDeviceSetMemPool_v11020, (device_id, pool_id))
VMM_SAME(PFN_cuMemPoolGetAttribute_v11020, (pool_id, int, void*))
VMM_SAME(PFN_cuMemPoolSetAttribute_v11020, (pool_id, int, void*))
VMM_SAME(PFN_cuMemPoolTrimTo_v11020, (pool_id, std::size_t))
VMM_SAME(PFN_cuGetProcAddress_v11030, (const char*, void**, int, flag_set))
VMM_SAME(PFN_cuGetProcAddress_v12000, (const char*, void**, int, flag_set, int*))

}  // namespace

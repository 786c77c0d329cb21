// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The part of the CUDA driver's binary interface that vmm and its tests use: types, numbers and
// types of functions, under the driver's own names, so that nothing here needs CUDA's headers. No
// unit may include these headers as well. `./run check cuda_abi` compares every line with them, for
// CUDA 12.9 and 13.
//
// PFN_<call>_v<version> is the type of <call> since CUDA <version>, as cudaTypedefs.h names it. A
// comment behind an enumerator is the first CUDA version that has it.
#pragma once

#include <cstddef>
#include <cstdint>

using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUmemGenericAllocationHandle = unsigned long long;
using cuuint64_t = std::uint64_t;
using CUcontext = struct CUctx_st*;
using CUevent = struct CUevent_st*;
using CUfunction = struct CUfunc_st*;
using CUgraph = struct CUgraph_st*;
using CUgraphExec = struct CUgraphExec_st*;
using CUmemoryPool = struct CUmemPoolHandle_st*;
using CUmodule = struct CUmod_st*;
using CUstream = struct CUstream_st*;

// ---- numbers -----------------------------------------------------------------------------------

enum CUresult : unsigned {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_INVALID_VALUE = 1,
  CUDA_ERROR_OUT_OF_MEMORY = 2,
  CUDA_ERROR_NOT_INITIALIZED = 3,
  CUDA_ERROR_DEINITIALIZED = 4,
  CUDA_ERROR_STUB_LIBRARY = 34,
  CUDA_ERROR_DEVICE_UNAVAILABLE = 46,
  CUDA_ERROR_NO_DEVICE = 100,
  CUDA_ERROR_INVALID_DEVICE = 101,
  CUDA_ERROR_INVALID_CONTEXT = 201,
  CUDA_ERROR_MAP_FAILED = 205,
  CUDA_ERROR_ALREADY_MAPPED = 208,
  CUDA_ERROR_NOT_MAPPED = 211,
  CUDA_ERROR_ECC_UNCORRECTABLE = 214,
  CUDA_ERROR_PEER_ACCESS_UNSUPPORTED = 217,
  CUDA_ERROR_NVLINK_UNCORRECTABLE = 220,
  CUDA_ERROR_OPERATING_SYSTEM = 304,
  CUDA_ERROR_INVALID_HANDLE = 400,
  CUDA_ERROR_ILLEGAL_STATE = 401,
  CUDA_ERROR_NOT_FOUND = 500,
  CUDA_ERROR_NOT_READY = 600,
  CUDA_ERROR_ILLEGAL_ADDRESS = 700,
  CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES = 701,
  CUDA_ERROR_LAUNCH_TIMEOUT = 702,
  CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED = 704,
  CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
  CUDA_ERROR_ASSERT = 710,
  CUDA_ERROR_HARDWARE_STACK_ERROR = 714,
  CUDA_ERROR_ILLEGAL_INSTRUCTION = 715,
  CUDA_ERROR_MISALIGNED_ADDRESS = 716,
  CUDA_ERROR_INVALID_ADDRESS_SPACE = 717,
  CUDA_ERROR_INVALID_PC = 718,
  CUDA_ERROR_LAUNCH_FAILED = 719,
  CUDA_ERROR_NOT_PERMITTED = 800,
  CUDA_ERROR_NOT_SUPPORTED = 801,
  CUDA_ERROR_SYSTEM_NOT_READY = 802,
  CUDA_ERROR_SYSTEM_DRIVER_MISMATCH = 803,
  CUDA_ERROR_MPS_CLIENT_TERMINATED = 810,
  CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
  CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
  CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
  CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD = 908,
  CUDA_ERROR_EXTERNAL_DEVICE = 911,
  CUDA_ERROR_UNKNOWN = 999,
};

enum CUdevice_attribute : unsigned {
  CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
  CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102,
  CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103,
  CU_DEVICE_ATTRIBUTE_GENERIC_COMPRESSION_SUPPORTED = 107,
  CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED = 110,
  CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED = 124,
  CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED = 128,
  CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED = 132,
  CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID = 134,
  CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 141,
  CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 145,  // 13.0
};

enum CUdevice_P2PAttribute : unsigned {
  CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK = 1,
  CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED = 2,
  CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED = 3,
};

enum CUdriverProcAddress_flags : unsigned {
  CU_GET_PROC_ADDRESS_DEFAULT = 0,
  CU_GET_PROC_ADDRESS_LEGACY_STREAM = 1,
  CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM = 2,
};
enum CUdriverProcAddressQueryResult : unsigned {
  CU_GET_PROC_ADDRESS_SUCCESS = 0,
  CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND = 1,
  CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT = 2,
};

enum CUstream_flags : unsigned { CU_STREAM_DEFAULT = 0, CU_STREAM_NON_BLOCKING = 1 };
enum CUevent_flags : unsigned { CU_EVENT_DEFAULT = 0, CU_EVENT_DISABLE_TIMING = 2 };

enum CUstreamCaptureStatus : unsigned {
  CU_STREAM_CAPTURE_STATUS_NONE = 0,
  CU_STREAM_CAPTURE_STATUS_ACTIVE = 1,
  CU_STREAM_CAPTURE_STATUS_INVALIDATED = 2,
};
enum CUstreamCaptureMode : unsigned {
  CU_STREAM_CAPTURE_MODE_GLOBAL = 0,
  CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1,
  CU_STREAM_CAPTURE_MODE_RELAXED = 2,
};

enum CUmemLocationType : unsigned {
  CU_MEM_LOCATION_TYPE_INVALID = 0,
  CU_MEM_LOCATION_TYPE_DEVICE = 1,
  CU_MEM_LOCATION_TYPE_HOST = 2,
  CU_MEM_LOCATION_TYPE_HOST_NUMA = 3,
};
enum CUmemAllocationType : unsigned {
  CU_MEM_ALLOCATION_TYPE_INVALID = 0,
  CU_MEM_ALLOCATION_TYPE_PINNED = 1,
};
enum CUmemAllocationHandleType : unsigned {
  CU_MEM_HANDLE_TYPE_NONE = 0,
  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1,
  CU_MEM_HANDLE_TYPE_WIN32 = 2,
  CU_MEM_HANDLE_TYPE_FABRIC = 8,
};
enum CUmemAllocationCompType : unsigned {
  CU_MEM_ALLOCATION_COMP_NONE = 0,
  CU_MEM_ALLOCATION_COMP_GENERIC = 1,
};
enum CUmemAllocationGranularity_flags : unsigned {
  CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0,
  CU_MEM_ALLOC_GRANULARITY_RECOMMENDED = 1,
};
enum CUmemAccess_flags : unsigned {
  CU_MEM_ACCESS_FLAGS_PROT_NONE = 0,
  CU_MEM_ACCESS_FLAGS_PROT_READ = 1,
  CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3,
};
enum CUmemRangeHandleType : unsigned { CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD = 1 };
enum CUmulticastGranularity_flags : unsigned {
  CU_MULTICAST_GRANULARITY_MINIMUM = 0,
  CU_MULTICAST_GRANULARITY_RECOMMENDED = 1,
};
enum CUmemPool_attribute : unsigned {
  CU_MEMPOOL_ATTR_RELEASE_THRESHOLD = 4,
  CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT = 5,
  CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH = 6,
  CU_MEMPOOL_ATTR_USED_MEM_CURRENT = 7,
  CU_MEMPOOL_ATTR_USED_MEM_HIGH = 8,
};

enum CUmemorytype : unsigned { CU_MEMORYTYPE_HOST = 1, CU_MEMORYTYPE_DEVICE = 2 };
enum CUpointer_attribute : unsigned {
  CU_POINTER_ATTRIBUTE_CONTEXT = 1,
  CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
  CU_POINTER_ATTRIBUTE_DEVICE_POINTER = 3,
  CU_POINTER_ATTRIBUTE_BUFFER_ID = 7,
  CU_POINTER_ATTRIBUTE_IS_MANAGED = 8,
  CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE = 10,
  CU_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11,
  CU_POINTER_ATTRIBUTE_RANGE_SIZE = 12,
  CU_POINTER_ATTRIBUTE_MAPPED = 13,
  CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES = 14,
  CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE = 17,
};

// ---- structures --------------------------------------------------------------------------------

struct CUmemLocation {
  CUmemLocationType type;
  int id;
};
struct CUmemAccessDesc {
  CUmemLocation location;
  CUmemAccess_flags flags;
};
struct CUmemAllocationProp {
  CUmemAllocationType type;
  CUmemAllocationHandleType requestedHandleTypes;
  CUmemLocation location;
  void* win32HandleMetaData;
  struct {
    unsigned char compressionType;
    unsigned char gpuDirectRDMACapable;
    unsigned short usage;
    unsigned char reserved[4];
  } allocFlags;
};
struct CUmulticastObjectProp {
  unsigned numDevices;
  std::size_t size;
  unsigned long long handleTypes;
  unsigned long long flags;
};
struct CUipcMemHandle {
  char reserved[64];
};
struct CUuuid {
  char bytes[16];
};

// ---- functions ---------------------------------------------------------------------------------

// Start, devices, contexts.
using PFN_cuInit_v2000 = CUresult (*)(unsigned);
using PFN_cuDriverGetVersion_v2020 = CUresult (*)(int*);
using PFN_cuGetErrorName_v6000 = CUresult (*)(CUresult, const char**);
using PFN_cuGetExportTable_v3000 = CUresult (*)(const void**, const CUuuid*);
using PFN_cuGetProcAddress_v11030 = CUresult (*)(const char*, void**, int, cuuint64_t);
using PFN_cuGetProcAddress_v12000 = CUresult (*)(const char*, void**, int, cuuint64_t,
                                                 CUdriverProcAddressQueryResult*);
using PFN_cuDeviceGetCount_v2000 = CUresult (*)(int*);
using PFN_cuDeviceGet_v2000 = CUresult (*)(CUdevice*, int);
using PFN_cuDeviceGetName_v2000 = CUresult (*)(char*, int, CUdevice);
using PFN_cuDeviceGetAttribute_v2000 = CUresult (*)(int*, CUdevice_attribute, CUdevice);
using PFN_cuDeviceCanAccessPeer_v4000 = CUresult (*)(int*, CUdevice, CUdevice);
using PFN_cuDeviceGetP2PAttribute_v8000 = CUresult (*)(int*, CUdevice_P2PAttribute, CUdevice,
                                                       CUdevice);
using PFN_cuDevicePrimaryCtxRetain_v7000 = CUresult (*)(CUcontext*, CUdevice);
using PFN_cuDevicePrimaryCtxRelease_v11000 = CUresult (*)(CUdevice);
using PFN_cuDevicePrimaryCtxReset_v11000 = CUresult (*)(CUdevice);
using PFN_cuDevicePrimaryCtxGetState_v7000 = CUresult (*)(CUdevice, unsigned*, int*);
using PFN_cuCtxGetCurrent_v4000 = CUresult (*)(CUcontext*);
using PFN_cuCtxSetCurrent_v4000 = CUresult (*)(CUcontext);
using PFN_cuCtxPushCurrent_v4000 = CUresult (*)(CUcontext);
using PFN_cuCtxPopCurrent_v4000 = CUresult (*)(CUcontext*);
using PFN_cuCtxGetDevice_v2000 = CUresult (*)(CUdevice*);
using PFN_cuCtxSynchronize_v2000 = CUresult (*)();
using PFN_cuCtxDestroy_v4000 = CUresult (*)(CUcontext);
using PFN_cuCtxEnablePeerAccess_v4000 = CUresult (*)(CUcontext, unsigned);
using PFN_cuCtxRecordEvent_v12050 = CUresult (*)(CUcontext, CUevent);

// Virtual memory.
using PFN_cuMemGetInfo_v3020 = CUresult (*)(std::size_t*, std::size_t*);
using PFN_cuMemGetAllocationGranularity_v10020 = CUresult (*)(std::size_t*,
                                                              const CUmemAllocationProp*,
                                                              CUmemAllocationGranularity_flags);
using PFN_cuMemAddressReserve_v10020 = CUresult (*)(CUdeviceptr*, std::size_t, std::size_t,
                                                    CUdeviceptr, unsigned long long);
using PFN_cuMemAddressFree_v10020 = CUresult (*)(CUdeviceptr, std::size_t);
using PFN_cuMemCreate_v10020 = CUresult (*)(CUmemGenericAllocationHandle*, std::size_t,
                                            const CUmemAllocationProp*, unsigned long long);
using PFN_cuMemRelease_v10020 = CUresult (*)(CUmemGenericAllocationHandle);
using PFN_cuMemMap_v10020 = CUresult (*)(CUdeviceptr, std::size_t, std::size_t,
                                         CUmemGenericAllocationHandle, unsigned long long);
using PFN_cuMemUnmap_v10020 = CUresult (*)(CUdeviceptr, std::size_t);
using PFN_cuMemSetAccess_v10020 = CUresult (*)(CUdeviceptr, std::size_t, const CUmemAccessDesc*,
                                               std::size_t);
using PFN_cuMemGetAccess_v10020 = CUresult (*)(unsigned long long*, const CUmemLocation*,
                                               CUdeviceptr);
using PFN_cuMemRetainAllocationHandle_v11000 = CUresult (*)(CUmemGenericAllocationHandle*, void*);
using PFN_cuMemGetAllocationPropertiesFromHandle_v10020 =
    CUresult (*)(CUmemAllocationProp*, CUmemGenericAllocationHandle);
using PFN_cuMemExportToShareableHandle_v10020 = CUresult (*)(void*, CUmemGenericAllocationHandle,
                                                             CUmemAllocationHandleType,
                                                             unsigned long long);
using PFN_cuMemImportFromShareableHandle_v10020 = CUresult (*)(CUmemGenericAllocationHandle*, void*,
                                                               CUmemAllocationHandleType);
using PFN_cuMemGetHandleForAddressRange_v11070 = CUresult (*)(void*, CUdeviceptr, std::size_t,
                                                              CUmemRangeHandleType,
                                                              unsigned long long);
using PFN_cuMulticastCreate_v12010 = CUresult (*)(CUmemGenericAllocationHandle*,
                                                  const CUmulticastObjectProp*);
using PFN_cuMulticastAddDevice_v12010 = CUresult (*)(CUmemGenericAllocationHandle, CUdevice);
using PFN_cuMulticastBindMem_v12010 = CUresult (*)(CUmemGenericAllocationHandle, std::size_t,
                                                   CUmemGenericAllocationHandle, std::size_t,
                                                   std::size_t, unsigned long long);
using PFN_cuMulticastBindAddr_v12010 = CUresult (*)(CUmemGenericAllocationHandle, std::size_t,
                                                    CUdeviceptr, std::size_t, unsigned long long);
using PFN_cuMulticastUnbind_v12010 = CUresult (*)(CUmemGenericAllocationHandle, CUdevice,
                                                  std::size_t, std::size_t);
using PFN_cuMulticastGetGranularity_v12010 = CUresult (*)(std::size_t*,
                                                          const CUmulticastObjectProp*,
                                                          CUmulticastGranularity_flags);

// Plain memory, the driver's own pools, other processes.
using PFN_cuMemAlloc_v3020 = CUresult (*)(CUdeviceptr*, std::size_t);
using PFN_cuMemAllocPitch_v3020 = CUresult (*)(CUdeviceptr*, std::size_t*, std::size_t, std::size_t,
                                               unsigned);
using PFN_cuMemFree_v3020 = CUresult (*)(CUdeviceptr);
using PFN_cuMemAllocManaged_v6000 = CUresult (*)(CUdeviceptr*, std::size_t, unsigned);
using PFN_cuMemGetAddressRange_v3020 = CUresult (*)(CUdeviceptr*, std::size_t*, CUdeviceptr);
using PFN_cuMemAllocAsync_v11020 = CUresult (*)(CUdeviceptr*, std::size_t, CUstream);
using PFN_cuMemAllocFromPoolAsync_v11020 = CUresult (*)(CUdeviceptr*, std::size_t, CUmemoryPool,
                                                        CUstream);
using PFN_cuMemFreeAsync_v11020 = CUresult (*)(CUdeviceptr, CUstream);
using PFN_cuDeviceGetDefaultMemPool_v11020 = CUresult (*)(CUmemoryPool*, CUdevice);
using PFN_cuDeviceSetMemPool_v11020 = CUresult (*)(CUdevice, CUmemoryPool);
using PFN_cuMemPoolSetAttribute_v11020 = CUresult (*)(CUmemoryPool, CUmemPool_attribute, void*);
using PFN_cuMemPoolGetAttribute_v11020 = CUresult (*)(CUmemoryPool, CUmemPool_attribute, void*);
using PFN_cuMemPoolSetAccess_v11020 = CUresult (*)(CUmemoryPool, const CUmemAccessDesc*,
                                                   std::size_t);
using PFN_cuMemPoolTrimTo_v11020 = CUresult (*)(CUmemoryPool, std::size_t);
using PFN_cuPointerGetAttribute_v4000 = CUresult (*)(void*, CUpointer_attribute, CUdeviceptr);
using PFN_cuPointerGetAttributes_v7000 = CUresult (*)(unsigned, CUpointer_attribute*, void**,
                                                      CUdeviceptr);
using PFN_cuIpcGetMemHandle_v4010 = CUresult (*)(CUipcMemHandle*, CUdeviceptr);
using PFN_cuIpcOpenMemHandle_v11000 = CUresult (*)(CUdeviceptr*, CUipcMemHandle, unsigned);
using PFN_cuIpcCloseMemHandle_v4010 = CUresult (*)(CUdeviceptr);

// Streams, events, captures, bytes.
using PFN_cuStreamCreate_v2000 = CUresult (*)(CUstream*, unsigned);
using PFN_cuStreamDestroy_v4000 = CUresult (*)(CUstream);
using PFN_cuStreamSynchronize_v2000 = CUresult (*)(CUstream);
using PFN_cuStreamQuery_v2000 = CUresult (*)(CUstream);
using PFN_cuStreamGetCtx_v9020 = CUresult (*)(CUstream, CUcontext*);
using PFN_cuStreamGetId_v12000 = CUresult (*)(CUstream, unsigned long long*);
using PFN_cuStreamWaitEvent_v3020 = CUresult (*)(CUstream, CUevent, unsigned);
using PFN_cuEventCreate_v2000 = CUresult (*)(CUevent*, unsigned);
using PFN_cuEventDestroy_v4000 = CUresult (*)(CUevent);
using PFN_cuEventRecord_v2000 = CUresult (*)(CUevent, CUstream);
using PFN_cuEventQuery_v2000 = CUresult (*)(CUevent);
using PFN_cuEventSynchronize_v2000 = CUresult (*)(CUevent);
using PFN_cuStreamBeginCapture_v10010 = CUresult (*)(CUstream, CUstreamCaptureMode);
using PFN_cuStreamEndCapture_v10000 = CUresult (*)(CUstream, CUgraph*);
using PFN_cuStreamIsCapturing_v10000 = CUresult (*)(CUstream, CUstreamCaptureStatus*);
using PFN_cuStreamGetCaptureInfo_v10010 = CUresult (*)(CUstream, CUstreamCaptureStatus*,
                                                       cuuint64_t*);
using PFN_cuThreadExchangeStreamCaptureMode_v10010 = CUresult (*)(CUstreamCaptureMode*);
using PFN_cuGraphInstantiateWithFlags_v11040 = CUresult (*)(CUgraphExec*, CUgraph,
                                                            unsigned long long);
using PFN_cuGraphLaunch_v10000 = CUresult (*)(CUgraphExec, CUstream);
using PFN_cuGraphDestroy_v10000 = CUresult (*)(CUgraph);
using PFN_cuGraphExecDestroy_v10000 = CUresult (*)(CUgraphExec);
using PFN_cuMemcpy_v4000 = CUresult (*)(CUdeviceptr, CUdeviceptr, std::size_t);
using PFN_cuMemcpyAsync_v4000 = CUresult (*)(CUdeviceptr, CUdeviceptr, std::size_t, CUstream);
using PFN_cuMemcpyDtoD_v3020 = CUresult (*)(CUdeviceptr, CUdeviceptr, std::size_t);
using PFN_cuMemcpyDtoDAsync_v3020 = CUresult (*)(CUdeviceptr, CUdeviceptr, std::size_t, CUstream);
using PFN_cuMemcpyHtoDAsync_v3020 = CUresult (*)(CUdeviceptr, const void*, std::size_t, CUstream);
using PFN_cuMemcpyDtoHAsync_v3020 = CUresult (*)(void*, CUdeviceptr, std::size_t, CUstream);
using PFN_cuMemcpyPeerAsync_v4000 = CUresult (*)(CUdeviceptr, CUcontext, CUdeviceptr, CUcontext,
                                                 std::size_t, CUstream);
using PFN_cuMemsetD8Async_v3020 = CUresult (*)(CUdeviceptr, unsigned char, std::size_t, CUstream);
using PFN_cuModuleLoadData_v2000 = CUresult (*)(CUmodule*, const void*);
using PFN_cuModuleUnload_v2000 = CUresult (*)(CUmodule);
using PFN_cuModuleGetFunction_v2000 = CUresult (*)(CUfunction*, CUmodule, const char*);
using PFN_cuLaunchKernel_v4000 = CUresult (*)(CUfunction, unsigned, unsigned, unsigned, unsigned,
                                              unsigned, unsigned, unsigned, CUstream, void**,
                                              void**);

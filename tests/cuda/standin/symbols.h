// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The driver's functions that the stub drivers define, by the names that libcuda exports: a source
// writes the name of the API, and the macro is the form of it that the newest driver exports, as in
// cuda.h. `./run check cuda_abi` compares names and types with cuda.h.
#pragma once

#include <type_traits>

#include "../../../backends/cuda/abi.h"

#define cuGetProcAddress cuGetProcAddress_v2
#define cuDevicePrimaryCtxRelease cuDevicePrimaryCtxRelease_v2
#define cuDevicePrimaryCtxReset cuDevicePrimaryCtxReset_v2
#define cuCtxPushCurrent cuCtxPushCurrent_v2
#define cuCtxPopCurrent cuCtxPopCurrent_v2
#define cuCtxDestroy cuCtxDestroy_v2
#define cuMemGetInfo cuMemGetInfo_v2
#define cuMemAlloc cuMemAlloc_v2
#define cuMemAllocPitch cuMemAllocPitch_v2
#define cuMemFree cuMemFree_v2
#define cuMemGetAddressRange cuMemGetAddressRange_v2
#define cuIpcOpenMemHandle cuIpcOpenMemHandle_v2
#define cuStreamDestroy cuStreamDestroy_v2
#define cuStreamBeginCapture cuStreamBeginCapture_v2
#define cuEventDestroy cuEventDestroy_v2
#define cuMemcpyDtoD cuMemcpyDtoD_v2
#define cuMemcpyDtoDAsync cuMemcpyDtoDAsync_v2
#define cuMemcpyHtoDAsync cuMemcpyHtoDAsync_v2
#define cuMemcpyDtoHAsync cuMemcpyDtoHAsync_v2

/// The version that cuDriverGetVersion of the stub drivers returns.
inline constexpr int standin_version = 13000;

#define VMM_STANDIN_CALL(name, version) \
  extern "C" std::remove_pointer_t<PFN_##name##_v##version> name;
VMM_STANDIN_CALL(cuInit, 2000)
VMM_STANDIN_CALL(cuDriverGetVersion, 2020)
VMM_STANDIN_CALL(cuGetErrorName, 6000)
VMM_STANDIN_CALL(cuGetExportTable, 3000)
VMM_STANDIN_CALL(cuDeviceGetCount, 2000)
VMM_STANDIN_CALL(cuDeviceGet, 2000)
VMM_STANDIN_CALL(cuGetProcAddress, 12000)
VMM_STANDIN_CALL(cuDeviceGetName, 2000)
VMM_STANDIN_CALL(cuDeviceGetAttribute, 2000)
VMM_STANDIN_CALL(cuDeviceCanAccessPeer, 4000)
VMM_STANDIN_CALL(cuDeviceGetP2PAttribute, 8000)
VMM_STANDIN_CALL(cuDevicePrimaryCtxRetain, 7000)
VMM_STANDIN_CALL(cuDevicePrimaryCtxRelease, 11000)
VMM_STANDIN_CALL(cuDevicePrimaryCtxReset, 11000)
VMM_STANDIN_CALL(cuDevicePrimaryCtxGetState, 7000)
VMM_STANDIN_CALL(cuCtxGetCurrent, 4000)
VMM_STANDIN_CALL(cuCtxSetCurrent, 4000)
VMM_STANDIN_CALL(cuCtxPushCurrent, 4000)
VMM_STANDIN_CALL(cuCtxPopCurrent, 4000)
VMM_STANDIN_CALL(cuCtxGetDevice, 2000)
VMM_STANDIN_CALL(cuCtxSynchronize, 2000)
VMM_STANDIN_CALL(cuCtxDestroy, 4000)
VMM_STANDIN_CALL(cuCtxEnablePeerAccess, 4000)
VMM_STANDIN_CALL(cuCtxRecordEvent, 12050)
VMM_STANDIN_CALL(cuStreamGetId, 12000)
VMM_STANDIN_CALL(cuMemGetInfo, 3020)
VMM_STANDIN_CALL(cuMemGetAllocationGranularity, 10020)
VMM_STANDIN_CALL(cuMemAddressReserve, 10020)
VMM_STANDIN_CALL(cuMemAddressFree, 10020)
VMM_STANDIN_CALL(cuMemCreate, 10020)
VMM_STANDIN_CALL(cuMemRelease, 10020)
VMM_STANDIN_CALL(cuMemMap, 10020)
VMM_STANDIN_CALL(cuMemUnmap, 10020)
VMM_STANDIN_CALL(cuMemSetAccess, 10020)
VMM_STANDIN_CALL(cuMemGetAccess, 10020)
VMM_STANDIN_CALL(cuMemRetainAllocationHandle, 11000)
VMM_STANDIN_CALL(cuMemGetAllocationPropertiesFromHandle, 10020)
VMM_STANDIN_CALL(cuMemExportToShareableHandle, 10020)
VMM_STANDIN_CALL(cuMemImportFromShareableHandle, 10020)
VMM_STANDIN_CALL(cuMemGetHandleForAddressRange, 11070)
VMM_STANDIN_CALL(cuMulticastCreate, 12010)
VMM_STANDIN_CALL(cuMulticastAddDevice, 12010)
VMM_STANDIN_CALL(cuMulticastBindMem, 12010)
VMM_STANDIN_CALL(cuMulticastBindAddr, 12010)
VMM_STANDIN_CALL(cuMulticastUnbind, 12010)
VMM_STANDIN_CALL(cuMulticastGetGranularity, 12010)
VMM_STANDIN_CALL(cuMemAlloc, 3020)
VMM_STANDIN_CALL(cuMemAllocPitch, 3020)
VMM_STANDIN_CALL(cuMemFree, 3020)
VMM_STANDIN_CALL(cuMemGetAddressRange, 3020)
VMM_STANDIN_CALL(cuMemAllocAsync, 11020)
VMM_STANDIN_CALL(cuMemAllocFromPoolAsync, 11020)
VMM_STANDIN_CALL(cuMemFreeAsync, 11020)
VMM_STANDIN_CALL(cuDeviceGetDefaultMemPool, 11020)
VMM_STANDIN_CALL(cuDeviceSetMemPool, 11020)
VMM_STANDIN_CALL(cuMemPoolSetAttribute, 11020)
VMM_STANDIN_CALL(cuMemPoolGetAttribute, 11020)
VMM_STANDIN_CALL(cuMemPoolSetAccess, 11020)
VMM_STANDIN_CALL(cuMemPoolTrimTo, 11020)
VMM_STANDIN_CALL(cuPointerGetAttribute, 4000)
VMM_STANDIN_CALL(cuPointerGetAttributes, 7000)
VMM_STANDIN_CALL(cuIpcGetMemHandle, 4010)
VMM_STANDIN_CALL(cuIpcOpenMemHandle, 11000)
VMM_STANDIN_CALL(cuIpcCloseMemHandle, 4010)
VMM_STANDIN_CALL(cuStreamCreate, 2000)
VMM_STANDIN_CALL(cuStreamDestroy, 4000)
VMM_STANDIN_CALL(cuStreamSynchronize, 2000)
VMM_STANDIN_CALL(cuStreamGetCtx, 9020)
VMM_STANDIN_CALL(cuStreamWaitEvent, 3020)
VMM_STANDIN_CALL(cuEventCreate, 2000)
VMM_STANDIN_CALL(cuEventDestroy, 4000)
VMM_STANDIN_CALL(cuEventRecord, 2000)
VMM_STANDIN_CALL(cuEventQuery, 2000)
VMM_STANDIN_CALL(cuEventSynchronize, 2000)
VMM_STANDIN_CALL(cuStreamBeginCapture, 10010)
VMM_STANDIN_CALL(cuStreamEndCapture, 10000)
VMM_STANDIN_CALL(cuStreamIsCapturing, 10000)
VMM_STANDIN_CALL(cuThreadExchangeStreamCaptureMode, 10010)
VMM_STANDIN_CALL(cuGraphDestroy, 10000)
VMM_STANDIN_CALL(cuMemcpy, 4000)
VMM_STANDIN_CALL(cuMemcpyAsync, 4000)
VMM_STANDIN_CALL(cuMemcpyDtoD, 3020)
VMM_STANDIN_CALL(cuMemcpyDtoDAsync, 3020)
VMM_STANDIN_CALL(cuMemcpyHtoDAsync, 3020)
VMM_STANDIN_CALL(cuMemcpyDtoHAsync, 3020)
VMM_STANDIN_CALL(cuMemcpyPeerAsync, 4000)
VMM_STANDIN_CALL(cuMemsetD8Async, 3020)
VMM_STANDIN_CALL(cuModuleLoadData, 2000)
VMM_STANDIN_CALL(cuModuleUnload, 2000)
VMM_STANDIN_CALL(cuModuleGetFunction, 2000)
VMM_STANDIN_CALL(cuLaunchKernel, 4000)
#undef VMM_STANDIN_CALL

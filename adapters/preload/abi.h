// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The part of the CUDA driver's binary interface that the preload library uses, declared here:
// building it needs no CUDA header. tests/preload/abi_test.cpp compares every line with cuda.h, if
// there is one.
#pragma once

#include <cstddef>
#include <cstdint>

namespace vmm::preload {

using result_code = int;  // CUresult
using device_pointer = unsigned long long;
using physical_id = unsigned long long;  // CUmemGenericAllocationHandle
using stream_id = struct CUstream_st*;
using context_id = struct CUctx_st*;
using event_id = struct CUevent_st*;
using pool_id = struct CUmemPoolHandle_st*;
using graph_id = struct CUgraph_st*;
using device_id = int;
using flag_set = unsigned long long;

namespace code {
constexpr result_code success = 0;
constexpr result_code invalid_value = 1;
constexpr result_code out_of_memory = 2;
constexpr result_code not_initialized = 3;
constexpr result_code deinitialized = 4;
constexpr result_code invalid_context = 201;
constexpr result_code not_found = 500;
constexpr result_code not_ready = 600;
constexpr result_code capture_unsupported = 900;
}  // namespace code

/// CU_STREAM_LEGACY and CU_STREAM_PER_THREAD.
constexpr std::uintptr_t legacy_stream = 1;
constexpr std::uintptr_t per_thread_stream = 2;

/// Flags of cuGetProcAddress: what a name without a suffix stands for.
constexpr flag_set find_legacy_stream = 1;
constexpr flag_set find_per_thread_stream = 2;

constexpr unsigned non_blocking_stream = 1;
constexpr unsigned event_without_timing = 2;

/// CUmemLocation.
struct memory_location {
  int type;  // 1: a device
  int id;
};
constexpr int device_location = 1;

/// CUmemAllocationProp.
struct memory_properties {
  int type;
  int handle_types;
  memory_location location;
  void* windows_data;
  struct {
    unsigned char compression;
    unsigned char rdma_capable;
    unsigned short usage;
    unsigned char reserved[4];
  } flags;
};
static_assert(sizeof(memory_properties) == 32);

/// CUmemAccessDesc.
struct access_description {
  memory_location location;
  int rights;  // 0 none, 1 read, 3 read and write
};
static_assert(sizeof(access_description) == 12);

/// CUipcMemHandle.
struct ipc_handle {
  char bytes[64];
};

/// CUpointer_attribute: those that the driver would return differently for a block of a pool than
/// for plain memory.
namespace pointer_attribute {
constexpr int context = 1;
constexpr int buffer_id = 7;
constexpr int legacy_ipc_capable = 10;
constexpr int range_start = 11;
constexpr int range_size = 12;
constexpr int allowed_handle_types = 14;
constexpr int memory_pool = 17;
}  // namespace pointer_attribute

/// CUmemPool_attribute: the figures, each of eight bytes. A high one is set to 0.
namespace pool_attribute {
constexpr int reserved = 5;
constexpr int reserved_high = 6;
constexpr int used = 7;
constexpr int used_high = 8;
}  // namespace pool_attribute

}  // namespace vmm::preload

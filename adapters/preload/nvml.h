// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The part of NVML's binary interface that the preload library intercepts, declared here: building
// it needs no header of NVML.
#pragma once

#include <cstdint>

namespace vmm::preload::nvml {

using result_code = int;  // nvmlReturn_t
using device_id = struct nvmlDevice_st*;

constexpr result_code success = 0;
constexpr result_code function_not_found = 13;

/// nvmlMemory_t.
struct memory {
  std::uint64_t total_bytes;
  std::uint64_t free_bytes;
  std::uint64_t used_bytes;
};

/// nvmlMemory_v2_t. The caller sets the version; another one is of another layout.
struct memory_v2 {
  unsigned version;
  std::uint64_t total_bytes;
  std::uint64_t reserved_bytes;
  std::uint64_t free_bytes;
  std::uint64_t used_bytes;
};
constexpr unsigned memory_v2_version = 0x02000028;
static_assert(sizeof(memory_v2) == (memory_v2_version & 0xffffff));

/// nvmlProcessInfo_v1_t.
struct process_v1 {
  unsigned pid;
  std::uint64_t used_bytes;
};
static_assert(sizeof(process_v1) == 16);

/// nvmlProcessInfo_v2_t, and that of _v3.
struct process {
  unsigned pid;
  std::uint64_t used_bytes;
  unsigned gpu_instance;
  unsigned compute_instance;
};
static_assert(sizeof(process) == 24);

}  // namespace vmm::preload::nvml

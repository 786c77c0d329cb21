// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.cuda:description - the options of open(), and the properties of the device.
//
// Thread safety: values only.
export module vmm.cuda:description;

import vmm.backend;
import vmm.std;

namespace vmm {

/// The kind of memory in reservations.
export enum class cuda_memory : std::uint8_t {
  from_environment,  // VMM_CUDA_MEMORY (mapped or plain), else mapped
  mapped,            // memory mapped by the driver's virtual memory management
  /// cuMemAlloc memory, all of it, from reserve to free_reservation; create, map and set_access
  /// only update records, and contents stay at their addresses (features::contents_stay). For
  /// debugging: compute-sanitizer accepts no other memory as the heap of a pool. docs/observe.md.
  plain,
};

/// The device and driver library to open, and the kind of memory.
export struct cuda_options {
  std::int32_t device = 0;  ///< as the driver counts the visible devices
  const char* driver_library =
      nullptr;  ///< the driver's library; null: $VMM_CUDA_LIBRARY, else libcuda.so.1
  bool allow_multicast = false;  ///< must be set by a program that uses multicast
  cuda_memory memory = cuda_memory::from_environment;  ///< plain excludes allow_multicast
};

/// Effects: none. Errors: bad_option (a malformed VMM_CUDA_MEMORY). Cost: a getenv.
export [[nodiscard]] status check_cuda_environment() noexcept;

/// The device's identity, for reports. Texts are null-terminated.
export struct cuda_description {
  char device_name[128] = {};
  std::int32_t driver_version = 0;  ///< CUDA version of the driver: 13000 is 13.0
  std::int32_t compute_major = 0;
  std::int32_t compute_minor = 0;
  std::int32_t multiprocessor_count = 0;
  std::int32_t closest_host_node = -1;  ///< NUMA node nearest to the device; -1 when not known
  bool dma_buf = false;                 ///< the device can export memory as a DMA-BUF
};

}  // namespace vmm

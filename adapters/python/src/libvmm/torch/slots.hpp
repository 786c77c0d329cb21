// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Whether the class fits the PyTorch of the process, and what it does on a device that vmm cannot
// serve.
#pragma once

#include <link.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

#include "torch_names.hpp"

namespace vmm_torch {

// Whether an address lies in code.
[[nodiscard]] inline bool is_code(std::uintptr_t address) {
  const auto contains = [](dl_phdr_info* library, std::size_t, void* sought) {
    const std::uintptr_t at = *static_cast<std::uintptr_t*>(sought);
    for (int i = 0; i < library->dlpi_phnum; ++i) {
      const auto& part = library->dlpi_phdr[i];
      const std::uintptr_t begin = library->dlpi_addr + part.p_vaddr;
      if (part.p_type == PT_LOAD && (part.p_flags & PF_X) != 0 && at >= begin &&
          at - begin < part.p_memsz)
        return 1;
    }
    return 0;
  };
  return dl_iterate_phdr(contains, &address) != 0;
}

// The virtual functions of an object's class. The table ends at the first word that does not point
// to code: the head of the next table, or other data.
[[nodiscard]] inline std::size_t slot_count(const void* object) {
  constexpr std::size_t most = 256;
  const std::uintptr_t* table = nullptr;
  std::memcpy(&table, object, sizeof table);
  std::size_t count = 0;
  while (count < most && is_code(table[count])) ++count;
  return count;
}

// Why the class cannot stand before PyTorch's allocator. "": it can. `expected`: an object of the
// class; nothing of `native` is called before its table is that of the headers.
[[nodiscard]] inline std::string why_not(torch_cuda::CUDAAllocator* native, const void* expected) {
  const std::size_t theirs = slot_count(native);
  const std::size_t ours = slot_count(expected);
  if (theirs != ours) {
    return "PyTorch's allocator has " + std::to_string(theirs) + " virtual functions, and " +
           std::to_string(ours) + " are expected: it is another build than its headers";
  }
  const std::string name = native->name();
  return name == "native" ? "" : "PyTorch's allocator is '" + name + "', not its native one";
}

[[nodiscard]] inline bool is_refusal(vmm_status status) {
  return status == VMM_ERROR_NOT_SUPPORTED || status == VMM_ERROR_UNAVAILABLE;
}

// Devices that cannot map memory: their new blocks are PyTorch's own.
class refusals {
 public:
  bool are_accepted = false;  // else the program gets the error
  void add(DeviceIndex device) {
    if (refused_.at(static_cast<std::size_t>(device)).exchange(true)) return;
    ++count_;
    ++unusual;
    std::fprintf(stderr, "libvmm: VMM=1 does not serve torch: device %d: %s\n", int{device},
                 vmm_last_error_text());
  }
  [[nodiscard]] bool has(DeviceIndex device) const {
    return refused_.at(static_cast<std::size_t>(device)).load(std::memory_order_relaxed);
  }
  [[nodiscard]] bool has_all() const {
    const int count = count_.load(std::memory_order_relaxed);
    return count != 0 && count == c10::cuda::device_count();
  }

 private:
  std::array<std::atomic<bool>, 128> refused_{};
  std::atomic<int> count_{0};
};

}  // namespace vmm_torch

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm's blocks for other processes, as torch.multiprocessing passes them on. The bytes of a block
// are 255 and those of vmm_allocator_export(). PyTorch's own have the number of a version first: a
// process without vmm reports a handle "from a future version".
#pragma once

#include <cstring>
#include <memory>
#include <string>

#include "torch_names.hpp"

namespace vmm_torch {

inline constexpr char first_byte = '\377';

// "": the block is PyTorch's own.
[[nodiscard]] inline std::string export_block(vmm_allocator* of, const void* at) {
  vmm_block_export exported{};
  const vmm_status done = vmm_allocator_export(of, at, &exported);
  if (done == VMM_ERROR_UNKNOWN_ADDRESS) return {};
  check(done);
  std::string bytes(1, first_byte);
  return bytes.append(reinterpret_cast<const char*>(exported.bytes), sizeof exported.bytes);
}

[[nodiscard]] inline bool is_exported(const std::string& bytes) {
  return bytes.size() == 1 + sizeof(vmm_block_export) && bytes[0] == first_byte;
}

// Mapped until the pointer ends.
[[nodiscard]] inline std::shared_ptr<void> import_block(vmm_allocator* to,
                                                        const std::string& bytes) {
  vmm_block_export exported{};
  std::memcpy(exported.bytes, bytes.data() + 1, sizeof exported.bytes);
  void* at = nullptr;
  check(vmm_allocator_import(to, &exported, c10::cuda::current_device(), &at));
  return {at, [to](void* gone) { (void)vmm_allocator_end_import(to, gone); }};
}

}  // namespace vmm_torch

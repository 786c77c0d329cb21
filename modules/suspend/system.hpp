// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// System calls for backups of contents. Plain C++, so that no module includes a system header.
//
// Thread safety: all of it. Cost: system calls.
#ifndef VMM_SUSPEND_SYSTEM_HPP
#define VMM_SUSPEND_SYSTEM_HPP

#include <cstddef>
#include <cstdint>

namespace vmm::backup_os {

/// Bytes of this process, or the errno of what failed.
struct mapped_bytes {
  std::byte* at = nullptr;
  int failure = 0;
};

/// Memory that the system may swap. Requires: a size.
[[nodiscard]] mapped_bytes map_pageable(std::uint64_t size_bytes) noexcept;
/// A file without a name in the directory, with room for all of it. Requires: a size.
[[nodiscard]] mapped_bytes map_file(const char* directory, std::uint64_t size_bytes) noexcept;
/// Makes and removes a file without a name in the directory. Returns 0, or the errno.
[[nodiscard]] int try_directory(const char* directory) noexcept;
/// Whether the errno is one of a full disk, or a limit of the process or the system.
[[nodiscard]] bool is_shortage(int failure) noexcept;
/// Whether the errno is one of a device or a server behind the directory that fails.
[[nodiscard]] bool is_broken(int failure) noexcept;
/// The errno in words of the system, until the next call.
[[nodiscard]] const char* reason_of(int failure) noexcept;
/// Gives either back.
void unmap(std::byte* at, std::uint64_t size_bytes) noexcept;

}  // namespace vmm::backup_os

#endif

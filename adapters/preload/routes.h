// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Routes of a program's driver calls to the library, and of the library's to the driver; and those
// of NVML's, which programs look up by dlsym or are linked against.
//
// - An address is replaced only if the loader or the driver returned it and it is the known address
//   of an entry of the table: other forms of a call stay the driver's.
// - dlsym runs no code of the driver and reads no setting before a name of the table is looked up.
// - Once an entry's real address is known it stays: the driver's library is kept loaded.
//
// Thread safety: all of it, without a lock; racing look-ups find the same addresses.
#pragma once

#include <cstddef>
#include <cstdint>

#include "abi.h"
#include "nvml.h"

namespace vmm::preload {

enum class entry_id : std::uint8_t {
#define VMM_ENTRY(symbol, name, version, streams, handler, parameters, arguments) symbol,
#include "entries.inc"
#undef VMM_ENTRY
  count
};
constexpr std::size_t entry_count = static_cast<std::size_t>(entry_id::count);

enum class nvml_entry : std::uint8_t {
#define VMM_NVML_ENTRY(symbol, parameters, arguments) symbol,
#include "nvml_entries.inc"
#undef VMM_NVML_ENTRY
  count
};
constexpr std::size_t nvml_entry_count = static_cast<std::size_t>(nvml_entry::count);

/// The exported name of an entry.
[[nodiscard]] const char* symbol_of(entry_id entry) noexcept;

/// The driver's own function of an entry; null if the process has no driver or the driver does not
/// have it.
[[nodiscard]] void* real_of(entry_id entry) noexcept;

/// A function of the driver by its exported name, never one of this library; or null.
[[nodiscard]] void* driver_symbol(const char* symbol) noexcept;

/// The same of NVML.
[[nodiscard]] void* real_of(nvml_entry entry) noexcept;
[[nodiscard]] void* nvml_symbol(const char* symbol) noexcept;

/// The function that a program gets instead of the driver's `found`: the library's, or the same.
[[nodiscard]] void* replacement_of(void* found) noexcept;

/// The file of the driver's library, by its name in the loader; null before the first call.
[[nodiscard]] const char* driver_file() noexcept;

}  // namespace vmm::preload

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.host:failures (internal) - the errors of a host driver: those of the kernel, and refusals of
// the driver's own tables with the equivalent errno.
//
// Thread safety: all of it. Cost: mapping_error() and too_many_mappings() may read /proc/self/maps.
module vmm.host:failures;

import vmm.backend;
import vmm.std;

namespace vmm::host_tables {

/// The text of a check on an object that was moved from.
inline constexpr const char* moved_from = "a host_driver is used that was moved from";

[[nodiscard]] error kernel_error(call where, errc code, int number, const char* detail) noexcept;
/// A refusal of the driver's own table.
[[nodiscard]] error bad_call(call where, errc code, const char* detail) noexcept;
[[nodiscard]] error unknown_handle(call where) noexcept;
/// The error for a place where this driver has no memory. Requires: it is not host().
[[nodiscard]] error unknown_place(call where, location place) noexcept;
[[nodiscard]] error no_host_memory(call where) noexcept;
[[nodiscard]] error too_many_mappings(call where) noexcept;
/// The error of a call that changes a mapping.
[[nodiscard]] error mapping_error(call where, int number) noexcept;
/// The error of a file: of `code`, or out_of_mappings with its text at a limit.
[[nodiscard]] error file_error(call where, errc code, int number, const char* otherwise) noexcept;
/// The error of /proc/meminfo.
[[nodiscard]] error figures_error(call where, errc code, int number) noexcept;

/// False when operator new failed.
template <class Work>
[[nodiscard]] bool allocates(Work&& work) noexcept {
  try {
    work();
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

}  // namespace vmm::host_tables

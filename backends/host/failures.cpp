// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include <cerrno>

#include "linux.hpp"

module vmm.host;

import vmm.backend;
import vmm.base;
import vmm.std;
import :failures;

namespace vmm::host_tables {

error kernel_error(call where, errc code, int number, const char* detail) noexcept {
  check(code != errc::none && number != 0, "the kernel refused a call without an error code");
  return {code, where, number, errno_name(number), detail};
}

error bad_call(call where, errc code, const char* detail) noexcept {
  check(detail != nullptr, "a refusal has no text");
  int number = EINVAL;
  switch (code) {
    case errc::out_of_memory:
    case errc::out_of_host_memory:
    case errc::out_of_addresses: number = ENOMEM; break;
    case errc::overlap: number = EEXIST; break;
    case errc::in_use: number = EBUSY; break;
    case errc::not_supported: number = EOPNOTSUPP; break;
    default: break;
  }
  return kernel_error(where, code, number, detail);
}

error unknown_handle(call where) noexcept {
  return kernel_error(where, errc::invalid_argument, EBADF, "no such handle, or released before");
}

error unknown_place(call where, location place) noexcept {
  check(place != host(), "host memory, this driver's only place, was refused");
  if (place.kind == location::place::device) {
    return bad_call(where, errc::invalid_argument, "the host driver has no devices: use host()");
  }
  return bad_call(where, errc::not_supported,
                  "the host driver cannot choose NUMA nodes: use host()");
}

error no_host_memory(call where) noexcept {
  return bad_call(where, errc::out_of_host_memory,
                  "operator new failed in the host driver's table");
}

error too_many_mappings(call where) noexcept {
  return kernel_error(where, errc::out_of_mappings, ENOMEM,
                      "the process is at its limit on kernel mappings: map larger pieces, or raise "
                      "vm.max_map_count");
}

// The kernel returns ENOMEM both for its own memory and for too many mappings.
error mapping_error(call where, int number) noexcept {
  check(number != 0, "a mapping failed without an error");
  if (number != ENOMEM)
    return kernel_error(where, errc::internal, number, "the kernel refused to change a mapping");
  if (linux_os::mapping_limit_reached()) return too_many_mappings(where);
  return kernel_error(where, errc::out_of_host_memory, number,
                      "the kernel has no memory for its own tables");
}

error file_error(call where, errc code, int number, const char* otherwise) noexcept {
  const char* const limit = limit_text(number);
  if (limit == nullptr) return kernel_error(where, code, number, otherwise);
  return kernel_error(where, errc::out_of_mappings, number, limit);
}

error figures_error(call where, errc code, int number) noexcept {
  return file_error(where, code, number, "the available memory cannot be read from /proc/meminfo");
}

}  // namespace vmm::host_tables

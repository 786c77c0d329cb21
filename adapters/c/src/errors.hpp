// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The latest failure of each thread, and the way out of every call.
#pragma once

#include <array>
#include <cstdint>
#include <new>

#include "vmm.h"

namespace vmm_c {

// Texts have static storage or lie in it, so that it can be made when no memory is left.
struct failure {
  vmm_status status = VMM_SUCCESS;
  const char* call = "none";
  std::int64_t native_code = 0;
  const char* native_name = "";
  const char* advice = "";
  std::array<char, 192> figures{};  // of a shortage: bytes requested, held and allowed
};

// Keeps it for vmm_last_error(), and returns its status.
vmm_status fail(const failure& what) noexcept;
vmm_status fail(vmm_status status, const char* advice) noexcept;
// With "; not VALUE" behind the text.
vmm_status fail_value(vmm_status status, std::int64_t value, const char* advice) noexcept;
// The sizes that a struct has had.
struct known_sizes {
  const char* name;
  std::uint64_t first_bytes;
  std::uint64_t own_bytes;
  std::uint64_t limit_bytes;
};
vmm_status fail_size(std::uint64_t given_bytes, const known_sizes& known) noexcept;
vmm_status fail_handle() noexcept;
vmm_status fail_null() noexcept;
vmm_status fail_forked() noexcept;
vmm_status fail_host_memory() noexcept;

// Runs the body of every function of the interface, and turns exceptions into codes.
template <class Body>
vmm_status run(Body&& body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return fail_host_memory();
  } catch (...) {
    return fail(VMM_ERROR_INTERNAL, "an exception reached the C interface");
  }
}

}  // namespace vmm_c

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include "errors.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "structs.hpp"
#include "vmm.h"

import vmm.base;

namespace vmm_c {
namespace {

struct status_names {
  const char* constant;
  const char* name;
};

// In the order of the values.
constexpr std::array<status_names, VMM_ERROR_INVALID_HANDLE + 1> names{{
    {"VMM_SUCCESS", "success"},
    {"VMM_ERROR_INVALID_ARGUMENT", "invalid_argument"},
    {"VMM_ERROR_BAD_OPTION", "bad_option"},
    {"VMM_ERROR_OUT_OF_MEMORY", "out_of_memory"},
    {"VMM_ERROR_OUT_OF_HOST_MEMORY", "out_of_host_memory"},
    {"VMM_ERROR_OUT_OF_ADDRESSES", "out_of_addresses"},
    {"VMM_ERROR_OUT_OF_MAPPINGS", "out_of_mappings"},
    {"VMM_ERROR_OVER_BUDGET", "over_budget"},
    {"VMM_ERROR_UNKNOWN_ADDRESS", "unknown_address"},
    {"VMM_ERROR_NOT_ALLOCATED", "not_allocated"},
    {"VMM_ERROR_OVERLAP", "overlap"},
    {"VMM_ERROR_IN_USE", "in_use"},
    {"VMM_ERROR_NOT_SUPPORTED", "not_supported"},
    {"VMM_ERROR_NOT_PERMITTED", "not_permitted"},
    {"VMM_ERROR_UNAVAILABLE", "unavailable"},
    {"VMM_ERROR_DEVICE_LOST", "device_lost"},
    {"VMM_ERROR_FOREIGN", "foreign_error"},
    {"VMM_ERROR_INTERNAL", "internal"},
    {"VMM_ERROR_INVALID_HANDLE", "invalid_handle"},
}};

constexpr status_names unknown{"VMM_ERROR_UNKNOWN", "unknown"};

const status_names& names_of(vmm_status status) noexcept {
  const bool is_known = status >= 0 && static_cast<std::size_t>(status) < names.size();
  return is_known ? names[static_cast<std::size_t>(status)] : unknown;
}

constinit thread_local failure last_failure;

constexpr std::size_t text_bytes = 1024;
constinit thread_local std::array<char, text_bytes> last_text{};

class line {
 public:
  explicit line(std::array<char, text_bytes>& out) noexcept : out_(out) { out_[0] = '\0'; }
  template <class... Given>
  void add(const char* format, Given... given) noexcept {
    const int wanted = std::snprintf(out_.data() + used_, out_.size() - used_, format, given...);
    if (wanted > 0) used_ = std::min(used_ + static_cast<std::size_t>(wanted), out_.size() - 1);
  }

 private:
  std::array<char, text_bytes>& out_;
  std::size_t used_ = 0;
};

const char* write_text() noexcept {
  line text(last_text);
  if (last_failure.status == VMM_SUCCESS) return last_text.data();
  text.add("%s", names_of(last_failure.status).name);
  const bool has_call = last_failure.call[0] != '\0' && std::strcmp(last_failure.call, "none") != 0;
  if (last_failure.native_code != 0 || last_failure.native_name[0] != '\0') {
    const bool has_name = last_failure.native_name[0] != '\0';
    text.add(" (%s%s%s%s%lld)", has_call ? last_failure.call : "", has_call ? " returned " : "",
             last_failure.native_name, has_name ? ", " : "",
             static_cast<long long>(last_failure.native_code));
  } else if (has_call) {
    text.add(" (%s)", last_failure.call);
  }
  const bool has_figures = last_failure.figures[0] != '\0';
  if (has_figures || last_failure.advice[0] != '\0')
    text.add(": %s%s", last_failure.figures.data(), last_failure.advice);
  return last_text.data();
}

}  // namespace

vmm_status fail(const failure& what) noexcept {
  last_failure = what;
  return what.status;
}

vmm_status fail(vmm_status status, const char* advice) noexcept {
  return fail({.status = status, .advice = advice});
}

vmm_status fail_value(vmm_status status, std::int64_t value, const char* advice) noexcept {
  vmm::detail_text text;
  text.add(advice).add(value < 0 ? "; not -" : "; not ");
  text.add_number(value < 0 ? 0 - static_cast<std::uint64_t>(value)
                            : static_cast<std::uint64_t>(value));
  return fail(status, text.keep(advice));
}

vmm_status fail_size(std::uint64_t given_bytes, const known_sizes& known) noexcept {
  failure what{.status = VMM_ERROR_INVALID_ARGUMENT,
               .advice = "set it to sizeof of the struct that is passed"};
  std::snprintf(what.figures.data(), what.figures.size(),
                "struct_size of %s is %llu, and multiples of 8 from %llu (the first version's) to "
                "%llu are accepted, of which this version's has %llu: ",
                known.name, static_cast<unsigned long long>(given_bytes),
                static_cast<unsigned long long>(known.first_bytes),
                static_cast<unsigned long long>(known.limit_bytes),
                static_cast<unsigned long long>(known.own_bytes));
  return fail(what);
}

vmm_status fail_handle() noexcept {
  return fail(VMM_ERROR_INVALID_HANDLE,
              "the handle is null, of another kind, or was destroyed: pass the handle that its "
              "creating call wrote");
}

vmm_status fail_null() noexcept {
  return fail(VMM_ERROR_INVALID_ARGUMENT, "a pointer that the call writes or reads is null");
}

vmm_status fail_forked() noexcept {
  return fail(VMM_ERROR_NOT_PERMITTED,
              "this object was created before the process forked: open a driver in the child, and "
              "leave its parent's objects alone");
}

vmm_status fail_host_memory() noexcept {
  return fail(VMM_ERROR_OUT_OF_HOST_MEMORY, "operator new failed inside vmm");
}

}  // namespace vmm_c

extern "C" {

vmm_status vmm_last_error(vmm_error_info* info) VMM_NOEXCEPT {
  const bool sized = info != nullptr && vmm_c::is_sized(*info);
  if (!sized) return VMM_ERROR_INVALID_ARGUMENT;
  vmm_error_info now{};
  now.status = vmm_c::last_failure.status;
  now.native_code = vmm_c::last_failure.native_code;
  now.name = vmm_c::names_of(now.status).name;
  now.call = vmm_c::last_failure.call;
  now.native_name = vmm_c::last_failure.native_name;
  now.advice = vmm_c::last_failure.advice;
  now.text = vmm_c::write_text();
  vmm_c::write_struct(*info, now);
  return VMM_SUCCESS;
}

const char* vmm_last_error_text(void) VMM_NOEXCEPT { return vmm_c::write_text(); }

const char* vmm_status_name(vmm_status status) VMM_NOEXCEPT {
  return vmm_c::names_of(status).constant;
}

uint32_t vmm_version(void) VMM_NOEXCEPT {
  return VMM_VERSION_MAJOR * 10000 + VMM_VERSION_MINOR * 100 + VMM_VERSION_PATCH;
}

}  // extern "C"

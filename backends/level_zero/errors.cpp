// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.level_zero - translation of the driver's results to vmm's errors.
module;
#include "loader.h"

module vmm.level_zero;

import vmm.backend;
import vmm.base;
import vmm.std;
import :state;

namespace vmm::level_zero {
namespace {

struct meaning {
  ze_result_t code;
  errc what;
  const char* name;
};
#define VMM_ZE_CODE(code, what) \
  meaning { code, errc::what, #code }
// A code that headers older than version 1.13 do not have, by its number.
#define VMM_ZE_LATER_CODE(number, code, what) \
  meaning { static_cast<ze_result_t>(number), errc::what, #code }
constexpr std::array meanings{
    VMM_ZE_CODE(ZE_RESULT_NOT_READY, in_use),
    VMM_ZE_CODE(ZE_RESULT_ERROR_DEVICE_LOST, device_lost),
    VMM_ZE_CODE(ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY, out_of_host_memory),
    VMM_ZE_CODE(ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY, out_of_memory),
    VMM_ZE_CODE(ZE_RESULT_ERROR_MODULE_BUILD_FAILURE, internal),
    VMM_ZE_CODE(ZE_RESULT_ERROR_MODULE_LINK_FAILURE, internal),
    VMM_ZE_CODE(ZE_RESULT_ERROR_DEVICE_REQUIRES_RESET, device_lost),
    VMM_ZE_CODE(ZE_RESULT_ERROR_DEVICE_IN_LOW_POWER_STATE, unavailable),
    VMM_ZE_CODE(ZE_RESULT_EXP_ERROR_DEVICE_IS_NOT_VERTEX, internal),
    VMM_ZE_CODE(ZE_RESULT_EXP_ERROR_VERTEX_IS_NOT_DEVICE, internal),
    VMM_ZE_CODE(ZE_RESULT_EXP_ERROR_REMOTE_DEVICE, internal),
    VMM_ZE_CODE(ZE_RESULT_ERROR_INSUFFICIENT_PERMISSIONS, not_permitted),
    VMM_ZE_CODE(ZE_RESULT_ERROR_NOT_AVAILABLE, in_use),
    VMM_ZE_CODE(ZE_RESULT_ERROR_DEPENDENCY_UNAVAILABLE, unavailable),
    VMM_ZE_CODE(ZE_RESULT_WARNING_DROPPED_DATA, internal),
    VMM_ZE_CODE(ZE_RESULT_ERROR_UNINITIALIZED, unavailable),
    VMM_ZE_CODE(ZE_RESULT_ERROR_UNSUPPORTED_VERSION, not_supported),
    VMM_ZE_CODE(ZE_RESULT_ERROR_UNSUPPORTED_FEATURE, not_supported),
    VMM_ZE_CODE(ZE_RESULT_ERROR_INVALID_ARGUMENT, invalid_argument),
    VMM_ZE_CODE(ZE_RESULT_ERROR_INVALID_NULL_HANDLE, invalid_argument),
    VMM_ZE_CODE(ZE_RESULT_ERROR_HANDLE_OBJECT_IN_USE, in_use),
    VMM_ZE_CODE(ZE_RESULT_ERROR_INVALID_NULL_POINTER, invalid_argument),
    VMM_ZE_CODE(ZE_RESULT_ERROR_INVALID_SIZE, invalid_argument),
    VMM_ZE_CODE(ZE_RESULT_ERROR_UNSUPPORTED_SIZE, invalid_argument),
    VMM_ZE_CODE(ZE_RESULT_ERROR_UNSUPPORTED_ALIGNMENT, invalid_argument),
    VMM_ZE_CODE(ZE_RESULT_ERROR_INVALID_SYNCHRONIZATION_OBJECT, invalid_argument),
    VMM_ZE_CODE(ZE_RESULT_ERROR_INVALID_ENUMERATION, invalid_argument),
    VMM_ZE_CODE(ZE_RESULT_ERROR_UNSUPPORTED_ENUMERATION, not_supported),
    VMM_ZE_CODE(ZE_RESULT_ERROR_UNSUPPORTED_IMAGE_FORMAT, internal),
    VMM_ZE_CODE(ZE_RESULT_ERROR_INVALID_NATIVE_BINARY, internal),
    VMM_ZE_CODE(ZE_RESULT_ERROR_INVALID_GLOBAL_NAME, internal),
    VMM_ZE_CODE(ZE_RESULT_ERROR_INVALID_KERNEL_NAME, internal),
    VMM_ZE_CODE(ZE_RESULT_ERROR_INVALID_FUNCTION_NAME, internal),
    VMM_ZE_CODE(ZE_RESULT_ERROR_INVALID_GROUP_SIZE_DIMENSION, internal),
    VMM_ZE_CODE(ZE_RESULT_ERROR_INVALID_GLOBAL_WIDTH_DIMENSION, internal),
    VMM_ZE_CODE(ZE_RESULT_ERROR_INVALID_KERNEL_ARGUMENT_INDEX, internal),
    VMM_ZE_CODE(ZE_RESULT_ERROR_INVALID_KERNEL_ARGUMENT_SIZE, internal),
    VMM_ZE_CODE(ZE_RESULT_ERROR_INVALID_KERNEL_ATTRIBUTE_VALUE, internal),
    VMM_ZE_CODE(ZE_RESULT_ERROR_INVALID_MODULE_UNLINKED, internal),
    VMM_ZE_CODE(ZE_RESULT_ERROR_INVALID_COMMAND_LIST_TYPE, invalid_argument),
    VMM_ZE_CODE(ZE_RESULT_ERROR_OVERLAPPING_REGIONS, invalid_argument),
    VMM_ZE_CODE(ZE_RESULT_WARNING_ACTION_REQUIRED, internal),
    VMM_ZE_LATER_CODE(0x7800001c, ZE_RESULT_ERROR_INVALID_KERNEL_HANDLE, internal),
    VMM_ZE_LATER_CODE(0x7800001d, ZE_RESULT_EXT_RTAS_BUILD_RETRY, internal),
    VMM_ZE_LATER_CODE(0x7800001e, ZE_RESULT_EXT_RTAS_BUILD_DEFERRED, internal),
    VMM_ZE_LATER_CODE(0x7800001f, ZE_RESULT_EXT_ERROR_OPERANDS_INCOMPATIBLE, internal),
    VMM_ZE_LATER_CODE(0x78000020, ZE_RESULT_ERROR_SURVIVABILITY_MODE_DETECTED, device_lost),
    VMM_ZE_CODE(ZE_RESULT_ERROR_UNKNOWN, internal),
};
#undef VMM_ZE_CODE
#undef VMM_ZE_LATER_CODE

const meaning* find(ze_result_t code) noexcept {
  for (const meaning& each : meanings) {
    if (each.code == code) return &each;
  }
  return nullptr;
}

constexpr const char* no_failure = "an error is made of the driver's success";

// reserve() takes address space only, whichever memory the driver names.
errc code_of(call where, ze_result_t code) noexcept {
  check(code != ZE_RESULT_SUCCESS, no_failure);
  const bool is_out =
      code == ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY || code == ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY;
  if (where == call::reserve && is_out) return errc::out_of_addresses;
  const meaning* const known = find(code);
  return known == nullptr ? errc::internal : known->what;
}

const char* advice_for(errc code) noexcept {
  check(code != errc::none, no_failure);
  switch (code) {
    case errc::out_of_memory:
      return "the device has no physical memory left: release or trim some, then try again";
    case errc::out_of_host_memory: return "the driver has no host memory left for this call";
    case errc::out_of_addresses: return "no address range of this size is left: reserve less";
    case errc::invalid_argument:
      return "the driver refused a size, an address or a handle of this call";
    case errc::in_use: return "the object is in use: wait for the work that needs it, or unmap it";
    case errc::not_supported:
      return "the device or the driver cannot do this: check feature_set() first";
    case errc::not_permitted: return "this process is not permitted to do this";
    case errc::unavailable:
      return "the driver is not running for this process: it never started, or the device sleeps";
    case errc::device_lost: return "the device no longer works: start a new process";
    default: return "the driver reports an error that vmm does not classify";
  }
}

}  // namespace

const char* name_of(ze_result_t code) noexcept {
  check(code != ZE_RESULT_SUCCESS, no_failure);
  const meaning* const known = find(code);
  return known == nullptr ? "a code without a name" : known->name;
}

error error_of(call where, ze_result_t code) noexcept {
  const errc what = code_of(where, code);
  check(what != errc::none, no_failure);
  return error{what, where, static_cast<std::int64_t>(code), name_of(code), advice_for(what)};
}

error no_value(call where) noexcept {
  return error{errc::internal, where, 0, "", "the driver returned success without a value"};
}

}  // namespace vmm::level_zero

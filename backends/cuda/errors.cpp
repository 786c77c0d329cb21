// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.cuda - translation of the driver's results to vmm's errors.
module;
#include "loader.h"

module vmm.cuda;

import vmm.backend;
import vmm.base;
import vmm.std;
import :state;

namespace vmm::cuda {
namespace {

// Failures of launched work, and of the machine. Unrelated calls report them, and every later call
// in the context returns the same code.
errc sticky_code(CUresult code) noexcept {
  switch (code) {
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED: return errc::foreign_error;
    case CUDA_ERROR_DEVICE_UNAVAILABLE:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_SYSTEM_NOT_READY:
    case CUDA_ERROR_MPS_CLIENT_TERMINATED:
    case CUDA_ERROR_EXTERNAL_DEVICE: return errc::device_lost;
    default: return errc::none;
  }
}

errc capture_code(CUresult code) noexcept {
  return code >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED &&
                 code <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD
             ? errc::not_permitted
             : errc::none;
}

errc code_of(call where, CUresult code) noexcept {
  check(code != CUDA_SUCCESS, "an error is made from a success code");
  if (const errc sticky = sticky_code(code); sticky != errc::none) return sticky;
  if (const errc capture = capture_code(code); capture != errc::none) return capture;
  switch (code) {
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_INVALID_DEVICE:
    case CUDA_ERROR_INVALID_HANDLE:
    case CUDA_ERROR_NOT_MAPPED: return errc::invalid_argument;
    case CUDA_ERROR_OUT_OF_MEMORY:
      return where == call::reserve ? errc::out_of_addresses : errc::out_of_memory;
    case CUDA_ERROR_UNKNOWN:  // returned for a descriptor that is not memory
      return where == call::import_handle ? errc::invalid_argument : errc::internal;
    case CUDA_ERROR_ALREADY_MAPPED:
    case CUDA_ERROR_ILLEGAL_STATE: return errc::in_use;
    case CUDA_ERROR_NOT_SUPPORTED: return errc::not_supported;
    case CUDA_ERROR_NOT_PERMITTED: return errc::not_permitted;
    case CUDA_ERROR_NOT_INITIALIZED:
    case CUDA_ERROR_DEINITIALIZED:
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_STUB_LIBRARY:
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH: return errc::unavailable;
    default: return errc::internal;
  }
}

const char* advice_for(errc code, CUresult native) noexcept {
  check(code != errc::none, "advice is given for no error");
  if (capture_code(native) != errc::none) {
    return "a stream is being captured into a graph, and this call is not permitted meanwhile: "
           "make it before the capture, or capture in relaxed mode";
  }
  switch (code) {
    case errc::out_of_memory:
      return "the device has no physical memory left: release or trim some, then try again";
    case errc::out_of_addresses: return "no address range of this size is left: reserve less";
    case errc::invalid_argument:
      return "the driver refused a size, an address or a handle of this call";
    case errc::in_use: return "the range or the object is in use: unmap or unbind it first";
    case errc::not_supported:
      return "the device or the driver cannot do this: check feature_set() first";
    case errc::not_permitted:
      return "this process is not permitted to do this (a fabric handle needs an IMEX channel)";
    case errc::unavailable:
      return "the driver is not running for this process: it is shutting down or never started";
    case errc::foreign_error:
      return "an earlier kernel or copy in this context failed; nothing works in it any more, "
             "start a new process";
    case errc::device_lost: return "the device or its context no longer works: start a new process";
    default: return "the driver reports an error that vmm does not classify";
  }
}

}  // namespace

error error_of(const entry_points& cu, call where, CUresult code) noexcept {
  const char* text = nullptr;
  if (cu.get_error_name(code, &text) != CUDA_SUCCESS || text == nullptr)
    text = "a code without a name";
  const errc meaning = code_of(where, code);
  check(meaning != errc::none, "a failure has no meaning");
  return error{meaning, where, static_cast<std::int64_t>(code), text, advice_for(meaning, code)};
}

}  // namespace vmm::cuda

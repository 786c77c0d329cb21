// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The stub libcuda: start-up, devices, contexts, looking up entry points, and the test's controls.
#include <unistd.h>

#include "state.h"

import vmm.backend;
import vmm.fake;

namespace standin {

state& the() {
  static state* const only = new state;  // never destroyed: threads may outlive main
  return *only;
}

thread_contexts& context_stack() {
  static thread_local thread_contexts stack;
  return stack;
}

namespace {

void start(state& s) {
  vmm::fake::profile plays = vmm::fake::profile::cuda();
  plays.device_count = s.device_count();
  if (s.setup.device_bytes != 0) plays.device_memory_bytes = s.setup.device_bytes;
  if (s.setup.no_rdma) plays.can.rdma = false;
  if (s.setup.no_compression) plays.can.compression = false;
  plays.can.multicast = true;
  s.fake = {new vmm::fake_driver(plays),
            [](void* fake) { delete static_cast<vmm::fake_driver*>(fake); }};
  s.contexts.clear();
  for (int i = 0; i < s.device_count(); ++i) s.contexts.push_back({i, 0});
  s.initialised = true;
}

}  // namespace

void report_call(const char* symbol) {
  state& s = the();
  void (*call)(void*) = nullptr;
  void* data = nullptr;
  {
    const std::lock_guard<std::mutex> hold(s.mutex);
    if (s.on_call == nullptr || s.watched != symbol) return;
    call = s.on_call;
    data = s.on_call_data;
  }
  call(data);
}

CUresult enter(const char* symbol, needs need) {
  report_call(symbol);
  const locked s(the());
  ++s->calls[symbol];
  if (const auto code = s->failures.strike(symbol)) return *code;
  if (need == needs::nothing) return CUDA_SUCCESS;
  if (!s->initialised) return CUDA_ERROR_NOT_INITIALIZED;
  if (need == needs::initialised) return CUDA_SUCCESS;
  const thread_contexts& stack = context_stack();
  if (stack.empty() || stack.back() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (stack.back()->references == 0) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return s->poison;
}

}  // namespace standin

using standin::context_stack, standin::needs, standin::the;

// ---- the test's controls ------------------------------------------------------------------------

void vmm_standin_reset(const vmm_standin_setup* setup) {
  const locked s(the());
  s->setup = setup != nullptr ? *setup : vmm_standin_setup{};
  s->fake.reset();
  s->contexts.clear();
  s->calls.clear();
  s->failures.clear();
  s->hidden.clear();
  s->plain.clear();
  for (const standin::exported_descriptor& each : s->exported) close(each.read_end);
  s->exported.clear();
  s->initialised = false;
  s->poison = CUDA_SUCCESS;
  s->on_free = nullptr;
  s->on_call = nullptr;
  context_stack().clear();
}

void* vmm_standin_fake() {
  standin::sweep_descriptors();
  return the().fake.get();
}

void vmm_standin_fail(const char* symbol, int code, unsigned nth, bool forever) {
  locked(the())->failures.add(symbol, code, nth, forever);
}

void vmm_standin_clear_failures() { locked(the())->failures.clear(); }

unsigned long long vmm_standin_calls(const char* symbol) {
  const locked s(the());
  const auto found = s->calls.find(std::string_view(symbol));
  return found == s->calls.end() ? 0 : found->second;
}

void vmm_standin_hide(const char* symbol) { locked(the())->hidden.insert(symbol); }

void vmm_standin_poison(int code) { locked(the())->poison = static_cast<CUresult>(code); }

void vmm_standin_on_free(void (*call)(void*), void* data) {
  const locked s(standin::the());
  s->on_free = call;
  s->on_free_data = data;
}

void vmm_standin_on_call(const char* symbol, void (*call)(void*), void* data) {
  const locked s(standin::the());
  s->watched = symbol;
  s->on_call = call;
  s->on_call_data = data;
}

int vmm_standin_context_references(int device) {
  const locked s(the());
  const auto index = static_cast<std::size_t>(device);
  return index < s->contexts.size() ? s->contexts[index].references : 0;
}

// ---- start-up and devices -----------------------------------------------------------------------

namespace {

template <class Body>
CUresult answer(const char* symbol, needs need, Body&& body) noexcept {
  return standin::answer_with<vmm::fake_driver>(symbol, need, body);
}

struct named_code {
  CUresult code;
  const char* name;
};

// The codes that the backend distinguishes, and a few that it does not.
#define NAMED(code) \
  named_code { code, #code }
constexpr std::array names{NAMED(CUDA_SUCCESS),
                           NAMED(CUDA_ERROR_INVALID_VALUE),
                           NAMED(CUDA_ERROR_OUT_OF_MEMORY),
                           NAMED(CUDA_ERROR_NOT_INITIALIZED),
                           NAMED(CUDA_ERROR_DEINITIALIZED),
                           NAMED(CUDA_ERROR_STUB_LIBRARY),
                           NAMED(CUDA_ERROR_DEVICE_UNAVAILABLE),
                           NAMED(CUDA_ERROR_NO_DEVICE),
                           NAMED(CUDA_ERROR_INVALID_DEVICE),
                           NAMED(CUDA_ERROR_INVALID_CONTEXT),
                           NAMED(CUDA_ERROR_MAP_FAILED),
                           NAMED(CUDA_ERROR_ALREADY_MAPPED),
                           NAMED(CUDA_ERROR_NOT_MAPPED),
                           NAMED(CUDA_ERROR_ECC_UNCORRECTABLE),
                           NAMED(CUDA_ERROR_NVLINK_UNCORRECTABLE),
                           NAMED(CUDA_ERROR_OPERATING_SYSTEM),
                           NAMED(CUDA_ERROR_INVALID_HANDLE),
                           NAMED(CUDA_ERROR_ILLEGAL_STATE),
                           NAMED(CUDA_ERROR_NOT_FOUND),
                           NAMED(CUDA_ERROR_NOT_READY),
                           NAMED(CUDA_ERROR_ILLEGAL_ADDRESS),
                           NAMED(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES),
                           NAMED(CUDA_ERROR_LAUNCH_TIMEOUT),
                           NAMED(CUDA_ERROR_CONTEXT_IS_DESTROYED),
                           NAMED(CUDA_ERROR_ASSERT),
                           NAMED(CUDA_ERROR_HARDWARE_STACK_ERROR),
                           NAMED(CUDA_ERROR_ILLEGAL_INSTRUCTION),
                           NAMED(CUDA_ERROR_MISALIGNED_ADDRESS),
                           NAMED(CUDA_ERROR_INVALID_ADDRESS_SPACE),
                           NAMED(CUDA_ERROR_INVALID_PC),
                           NAMED(CUDA_ERROR_LAUNCH_FAILED),
                           NAMED(CUDA_ERROR_NOT_PERMITTED),
                           NAMED(CUDA_ERROR_NOT_SUPPORTED),
                           NAMED(CUDA_ERROR_SYSTEM_NOT_READY),
                           NAMED(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH),
                           NAMED(CUDA_ERROR_MPS_CLIENT_TERMINATED),
                           NAMED(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
                           NAMED(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD),
                           NAMED(CUDA_ERROR_EXTERNAL_DEVICE),
                           NAMED(CUDA_ERROR_UNKNOWN)};

int feature_value(const vmm::features& can, CUdevice_attribute which) {
  switch (which) {
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
      return can.export_posix_fd ? 1 : 0;
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED: return can.export_fabric ? 1 : 0;
    case CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED: return can.multicast ? 1 : 0;
    case CU_DEVICE_ATTRIBUTE_GENERIC_COMPRESSION_SUPPORTED: return can.compression ? 1 : 0;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED: return can.rdma ? 1 : 0;
    case static_cast<CUdevice_attribute>(141): return can.host_node_location ? 1 : 0;
    case static_cast<CUdevice_attribute>(145): return can.host_location ? 1 : 0;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: return 9;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: return 132;
    case CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED: return 1;
    default: return 0;
  }
}

[[nodiscard]] bool known(CUdevice device) { return device >= 0 && device < the().device_count(); }

}  // namespace

extern "C" {

CUresult cuGetErrorName(CUresult error, const char** text) {
  for (const named_code& each : names) {
    if (each.code != error) continue;
    *text = each.name;
    return CUDA_SUCCESS;
  }
  *text = nullptr;
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuInit(unsigned flags) {
  if (const CUresult code = standin::enter("cuInit", needs::nothing); code != CUDA_SUCCESS)
    return code;
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  standin::state& s = the();
  const std::lock_guard<std::mutex> hold(s.mutex);
  if (s.device_count() <= 0) return CUDA_ERROR_NO_DEVICE;
  if (!s.initialised) standin::start(s);
  return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int* version) {
  return answer("cuDriverGetVersion", needs::nothing, [&](auto&) {
    *version = standin_version;
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetCount(int* count) {
  return answer("cuDeviceGetCount", needs::initialised, [&](auto&) {
    *count = the().device_count();
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  return answer("cuDeviceGet", needs::initialised, [&](auto&) {
    if (!known(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetName(char* name, int size, CUdevice device) {
  return answer("cuDeviceGetName", needs::initialised, [&](auto&) {
    if (!known(device) || size < 1) return CUDA_ERROR_INVALID_DEVICE;
    std::strncpy(name, "vmm stub driver", static_cast<std::size_t>(size));
    name[size - 1] = '\0';
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute which, CUdevice device) {
  return answer("cuDeviceGetAttribute", needs::initialised, [&](vmm::fake_driver& fake) {
    if (!known(device)) return CUDA_ERROR_INVALID_DEVICE;
    *value = which == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
                 ? (the().setup.no_vmm ? 0 : 1)
                 : feature_value(fake.feature_set(), which);
    return CUDA_SUCCESS;
  });
}

// ---- contexts -----------------------------------------------------------------------------------

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  return answer("cuDevicePrimaryCtxRetain", needs::initialised, [&](auto&) {
    if (!known(device)) return CUDA_ERROR_INVALID_DEVICE;
    const locked s(the());
    CUctx_st& primary = s->contexts[static_cast<std::size_t>(device)];
    ++primary.references;
    *context = &primary;
    return CUDA_SUCCESS;
  });
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  return answer("cuDevicePrimaryCtxRelease", needs::initialised, [&](auto&) {
    if (!known(device)) return CUDA_ERROR_INVALID_DEVICE;
    const locked s(the());
    CUctx_st& primary = s->contexts[static_cast<std::size_t>(device)];
    if (primary.references == 0) return CUDA_ERROR_INVALID_CONTEXT;
    --primary.references;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  return answer("cuCtxGetCurrent", needs::initialised, [&](auto&) {
    *context = context_stack().empty() ? nullptr : context_stack().back();
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxSetCurrent(CUcontext context) {
  return answer("cuCtxSetCurrent", needs::initialised, [&](auto&) {
    if (!context_stack().empty()) context_stack().pop_back();
    if (context != nullptr) context_stack().push_back(context);
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxPushCurrent(CUcontext context) {
  return answer("cuCtxPushCurrent", needs::initialised, [&](auto&) {
    if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    context_stack().push_back(context);
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxPopCurrent(CUcontext* context) {
  return answer("cuCtxPopCurrent", needs::initialised, [&](auto&) {
    if (context_stack().empty()) return CUDA_ERROR_INVALID_CONTEXT;
    if (context != nullptr) *context = context_stack().back();
    context_stack().pop_back();
    return CUDA_SUCCESS;
  });
}

STANDIN_ENTRY(cuCtxSynchronize, context, (), standin::code_of(fake.synchronize_all()))

}  // extern "C"

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The stub libcuda: streams, events, bytes, and allocations that are not virtual memory.

#include "state.h"

import vmm.backend;
import vmm.base;
import vmm.fake;

static_assert(static_cast<int>(vmm::capture_mode::any_thread) == CU_STREAM_CAPTURE_MODE_GLOBAL);
static_assert(static_cast<int>(vmm::capture_mode::this_thread) ==
              CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
static_assert(static_cast<int>(vmm::capture_mode::relaxed) == CU_STREAM_CAPTURE_MODE_RELAXED);
static_assert(static_cast<int>(vmm::capture_state::active) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
static_assert(static_cast<int>(vmm::capture_state::invalidated) ==
              CU_STREAM_CAPTURE_STATUS_INVALIDATED);

using standin::code_of, standin::hand_out, standin::needs;

namespace {

template <class Body>
CUresult answer(const char* symbol, needs need, Body&& body) noexcept {
  return standin::answer_with<vmm::fake_driver>(symbol, need, body);
}

vmm::stream_handle stream_of(CUstream stream) {
  return standin::token_of<vmm::stream_handle>(stream);
}
vmm::event_handle event_of(CUevent event) { return standin::token_of<vmm::event_handle>(event); }

template <class Pointer>
constexpr auto to_pointer =
    [](auto made) { return reinterpret_cast<Pointer>(static_cast<std::uintptr_t>(made)); };

constexpr std::uint64_t plain_unit_bytes = 2ull << 20;

// cuMemAlloc over the same memory: one reservation with one handle.
vmm::result<vmm::address_range> allocate_plain(vmm::fake_driver& fake, std::uint64_t size_bytes) {
  const std::uint64_t shift_bytes = standin::the().setup.plain_shift_bytes;
  const std::uint64_t whole = vmm::round_up(size_bytes + shift_bytes, plain_unit_bytes);
  const vmm::location where = vmm::device(standin::context_stack().back()->device);
  const auto memory = fake.create({.size_bytes = whole, .where = where});
  if (!memory) return memory.error();
  const auto range = fake.reserve({.size_bytes = whole});
  vmm::status outcome = range ? fake.map({range->base, whole, *memory, 0}) : range.error();
  const vmm::access_grant all[] = {{where, vmm::access::read_write},
                                   {fake.home(), vmm::access::read_write}};
  if (outcome) outcome = fake.set_access(*range, {all, where == fake.home() ? 1u : 2u});
  if (outcome) {
    const locked s(standin::the());
    const vmm::address given = range->base + shift_bytes;
    s->plain[given.value] = {static_cast<std::uint64_t>(*memory), whole, shift_bytes};
    return vmm::address_range{given, size_bytes};
  }
  if (range) {
    static_cast<void>(fake.unmap(*range));
    static_cast<void>(fake.free_reservation(*range));
  }
  static_cast<void>(fake.release(*memory));
  return outcome.error();
}

CUresult free_plain(vmm::fake_driver& fake, CUdeviceptr at) {
  standin::state& s = standin::the();
  standin::plain_allocation old;
  {
    const std::lock_guard<std::mutex> hold(s.mutex);
    const auto found = s.plain.find(at);
    if (found == s.plain.end()) return CUDA_ERROR_INVALID_VALUE;
    old = found->second;
    s.plain.erase(found);
  }
  const vmm::address_range range{{at - old.shift_bytes}, old.size_bytes};
  static_cast<void>(fake.unmap(range));
  static_cast<void>(fake.release(static_cast<vmm::physical_handle>(old.memory)));
  return code_of(fake.free_reservation(range));
}

}  // namespace

extern "C" {

STANDIN_ENTRY(cuStreamCreate, context, (CUstream * stream, unsigned),
              hand_out(fake.create_stream(), stream, to_pointer<CUstream>))

STANDIN_ENTRY(cuStreamDestroy, context, (CUstream stream),
              code_of(fake.destroy_stream(stream_of(stream))))

STANDIN_ENTRY(cuStreamSynchronize, context, (CUstream stream),
              code_of(fake.synchronize_stream(stream_of(stream))))

STANDIN_ENTRY(cuStreamWaitEvent, context, (CUstream stream, CUevent event, unsigned),
              code_of(fake.wait_event(stream_of(stream), event_of(event))))

STANDIN_ENTRY(cuEventCreate, context, (CUevent * event, unsigned),
              hand_out(fake.create_event(), event, to_pointer<CUevent>))

STANDIN_ENTRY(cuEventDestroy, context, (CUevent event),
              code_of(fake.destroy_event(event_of(event))))

STANDIN_ENTRY(cuEventRecord, context, (CUevent event, CUstream stream),
              code_of(fake.record_event(event_of(event), stream_of(stream))))

STANDIN_ENTRY(cuCtxRecordEvent, context, (CUcontext, CUevent event),
              code_of(fake.record_all(event_of(event))))

CUresult cuStreamGetId(CUstream stream, unsigned long long* identity) {
  return answer("cuStreamGetId", needs::initialised, [&](vmm::fake_driver& fake) {
    const auto captured = fake.query_capture(stream_of(stream));
    if (captured && captured->state != vmm::capture_state::none) {
      (void)fake.synchronize_stream(stream_of(stream));  // invalidates the capture, as CUDA does
      return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    *identity = fake.stream_identity(stream_of(stream));
    return *identity == 0 ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
  });
}

CUresult cuEventQuery(CUevent event) {
  return answer("cuEventQuery", needs::context, [&](vmm::fake_driver& fake) {
    const auto finished = fake.query_event(event_of(event));
    if (!finished) return code_of(finished);
    return *finished ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  });
}

STANDIN_ENTRY(cuEventSynchronize, context, (CUevent event),
              code_of(fake.synchronize_event(event_of(event))))

// ---- capture ------------------------------------------------------------------------------------

STANDIN_ENTRY(cuStreamBeginCapture, context, (CUstream stream, CUstreamCaptureMode mode),
              code_of(fake.begin_capture(stream_of(stream), static_cast<vmm::capture_mode>(mode))))

CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  return answer("cuStreamEndCapture", needs::context, [&](vmm::fake_driver& fake) {
    *graph = nullptr;
    return hand_out(fake.end_capture(stream_of(stream)), graph, to_pointer<CUgraph>);
  });
}

STANDIN_ENTRY(cuGraphDestroy, context, (CUgraph graph),
              code_of(fake.destroy_graph(standin::token_of<vmm::fake::graph_handle>(graph))))

STANDIN_ENTRY(cuStreamIsCapturing, initialised, (CUstream stream, CUstreamCaptureStatus* status),
              hand_out(fake.query_capture(stream_of(stream)), status, [](vmm::capture_info info) {
                return static_cast<CUstreamCaptureStatus>(info.state);
              }))

// The form of before CUDA 12, which headers since then do not declare.
CUresult standin_get_capture(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id) {
  return answer("cuStreamGetCaptureInfo", needs::initialised, [&](vmm::fake_driver& fake) {
    const auto info = fake.query_capture(stream_of(stream));
    if (info) *id = info->id;
    return hand_out(info, status, [](vmm::capture_info seen) {
      return static_cast<CUstreamCaptureStatus>(seen.state);
    });
  });
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  return answer(
      "cuThreadExchangeStreamCaptureMode", needs::initialised, [&](vmm::fake_driver& fake) {
        const auto before = fake.exchange_capture_mode(static_cast<vmm::capture_mode>(*mode));
        *mode = static_cast<CUstreamCaptureMode>(before);
        return CUDA_SUCCESS;
      });
}

// ---- bytes --------------------------------------------------------------------------------------

STANDIN_ENTRY(cuMemcpyDtoDAsync, context,
              (CUdeviceptr target, CUdeviceptr source, std::size_t size, CUstream stream),
              code_of(fake.copy({{target}, {source}, size, stream_of(stream)})))

STANDIN_ENTRY(cuMemcpyPeerAsync, context,
              (CUdeviceptr target, CUcontext, CUdeviceptr source, CUcontext, std::size_t size,
               CUstream stream),
              code_of(fake.copy({{target}, {source}, size, stream_of(stream)})))

// Copies from and to pageable host memory: the real driver finishes the stream first as well.
CUresult cuMemcpyHtoDAsync(CUdeviceptr target, const void* source, std::size_t size,
                           CUstream stream) {
  return answer("cuMemcpyHtoDAsync", needs::context, [&](vmm::fake_driver& fake) {
    const vmm::status idle = fake.synchronize_stream(stream_of(stream));
    if (!idle) return code_of(idle);
    return code_of(fake.write({target}, {static_cast<const std::byte*>(source), size}));
  });
}

CUresult cuMemcpyDtoHAsync(void* target, CUdeviceptr source, std::size_t size, CUstream stream) {
  return answer("cuMemcpyDtoHAsync", needs::context, [&](vmm::fake_driver& fake) {
    const vmm::status idle = fake.synchronize_stream(stream_of(stream));
    if (!idle) return code_of(idle);
    return code_of(fake.read({static_cast<std::byte*>(target), size}, {source}));
  });
}

STANDIN_ENTRY(cuMemsetD8Async, context,
              (CUdeviceptr target, unsigned char value, std::size_t size, CUstream stream),
              code_of(fake.fill({{{target}, size}, value, stream_of(stream)})))

// ---- allocations that are not virtual memory ----------------------------------------------------

CUresult cuMemAlloc(CUdeviceptr* at, std::size_t size) {
  return answer("cuMemAlloc", needs::context, [&](vmm::fake_driver& fake) {
    if (size == 0) return CUDA_ERROR_INVALID_VALUE;
    return hand_out(allocate_plain(fake, size), at,
                    [](vmm::address_range range) { return range.base.value; });
  });
}

// Waits for all work, as the real one does.
CUresult cuMemFree(CUdeviceptr at) {
  return answer("cuMemFree", needs::context, [&](vmm::fake_driver& fake) {
    const vmm::status idle = fake.finish_all();
    const CUresult code = idle ? free_plain(fake, at) : code_of(idle);
    const standin::state& s = standin::the();
    if (code == CUDA_SUCCESS && s.on_free != nullptr) s.on_free(s.on_free_data);
    return code;
  });
}

CUresult cuMemAllocAsync(CUdeviceptr* at, std::size_t size, CUstream) {
  return answer("cuMemAllocAsync", needs::context, [&](vmm::fake_driver& fake) {
    if (size == 0) return CUDA_ERROR_INVALID_VALUE;
    return hand_out(allocate_plain(fake, size), at,
                    [](vmm::address_range range) { return range.base.value; });
  });
}

CUresult cuMemFreeAsync(CUdeviceptr at, CUstream stream) {
  return answer("cuMemFreeAsync", needs::context, [&](vmm::fake_driver& fake) {
    const vmm::status idle = fake.synchronize_stream(stream_of(stream));
    return idle ? free_plain(fake, at) : code_of(idle);
  });
}

// The asynchronous pool here keeps nothing, so there is nothing to set or to trim.
// Each device has its own.
CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice device) {
  return answer("cuDeviceGetDefaultMemPool", needs::initialised, [&](auto&) {
    static int pools[64];
    if (device < 0 || device >= 64 || device >= standin::the().device_count())
      return CUDA_ERROR_INVALID_DEVICE;
    *pool = reinterpret_cast<CUmemoryPool>(&pools[device]);
    return CUDA_SUCCESS;
  });
}

STANDIN_ENTRY(cuMemPoolSetAttribute, initialised, (CUmemoryPool, CUmemPool_attribute, void* value),
              value == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS)

CUresult cuMemPoolGetAttribute(CUmemoryPool, CUmemPool_attribute, void* value) {
  return answer("cuMemPoolGetAttribute", needs::initialised, [&](auto&) {
    if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *static_cast<cuuint64_t*>(value) = 0;
    return CUDA_SUCCESS;
  });
}

STANDIN_ENTRY(cuMemPoolTrimTo, initialised, (CUmemoryPool, std::size_t), CUDA_SUCCESS)

}  // extern "C"

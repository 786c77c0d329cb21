// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The grown stub driver for libcuda: memory by size, streams in both forms, marks of all work.

#include "more.h"
#include "state.h"

import vmm.backend;
import vmm.fake;

namespace standin {

extras& more() {
  static extras* const only = new extras;
  return *only;
}

CUstream meant(CUstream stream, bool per_thread) {
  static thread_local CUstream mine = nullptr;
  const auto number = reinterpret_cast<std::uintptr_t>(stream);
  if (number == 1 || (number == 0 && !per_thread)) return nullptr;
  if (number > 2) return stream;
  {
    const std::lock_guard<std::mutex> hold(more().lock);
    if (!more().streams.contains(mine)) mine = nullptr;  // its context has ended
  }
  if (mine == nullptr) (void)cuStreamCreate(&mine, 0);
  return mine;
}

int played_version() {
  const char* text = std::getenv("VMM_STANDIN_VERSION");
  return text == nullptr ? standin_version : std::atoi(text);
}

namespace {

CUresult note_block(CUresult made, CUdeviceptr* at, std::size_t size, bool has_stream) {
  if (made != CUDA_SUCCESS) return made;
  extras& m = more();
  const std::lock_guard<std::mutex> hold(m.lock);
  m.blocks[*at] = {size, context_stack().back(), ++m.last_number, has_stream};
  return made;
}

std::uint64_t number_of_block(CUdeviceptr at) {
  extras& m = more();
  const std::lock_guard<std::mutex> hold(m.lock);
  const auto found = m.blocks.find(at);
  return found == m.blocks.end() ? 0 : found->second.number;
}

// Another thread may have the address again before its old record is gone: that one stays.
template <class Free>
CUresult free_block(CUdeviceptr at, Free&& free) {
  const std::uint64_t number = number_of_block(at);
  const CUresult freed = free();
  if (freed != CUDA_SUCCESS) return freed;
  extras& m = more();
  const std::lock_guard<std::mutex> hold(m.lock);
  const auto found = m.blocks.find(at);
  if (found != m.blocks.end() && found->second.number == number) m.blocks.erase(found);
  return freed;
}

vmm::fake_driver* fake() { return static_cast<vmm::fake_driver*>(the().fake.get()); }

}  // namespace
}  // namespace standin

using standin::more;

extern "C" {

// ---- the test's controls ------------------------------------------------------------------------

void vmm_standin_manual(int manual) { standin::fake()->set_manual(manual != 0); }
void vmm_standin_finish() { (void)standin::fake()->finish_all(); }
unsigned long long vmm_standin_misuses() {
  return standin::fake() == nullptr ? 0 : standin::fake()->misuse_count();
}

// ---- memory -------------------------------------------------------------------------------------

CUresult cuDriverGetVersion(int* version) {
  *version = standin::played_version();
  return CUDA_SUCCESS;
}

CUresult cuMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) {
  std::size_t unused = 0;
  return base_cuMemGetInfo_v2(free_bytes != nullptr ? free_bytes : &unused,
                              total_bytes != nullptr ? total_bytes : &unused);
}

CUresult cuMemAlloc(CUdeviceptr* at, std::size_t size) {
  if (at == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return standin::note_block(base_cuMemAlloc_v2(at, size), at, size, false);
}

CUresult cuMemFree(CUdeviceptr at) {
  if (at == 0) return CUDA_SUCCESS;
  return standin::free_block(at, [&] { return base_cuMemFree_v2(at); });
}

CUresult cuMemAllocPitch(CUdeviceptr* at, std::size_t* pitch, std::size_t width, std::size_t height,
                         unsigned element) {
  if (at == nullptr || pitch == nullptr || (element != 4 && element != 8 && element != 16))
    return CUDA_ERROR_INVALID_VALUE;
  const std::size_t row = (width + 511) / 512 * 512;
  const CUresult made = cuMemAlloc(at, row * height);
  if (made == CUDA_SUCCESS) *pitch = row;
  return made;
}

#define VMM_BOTH_FORMS(symbol, parameters, body) \
  CUresult symbol parameters {                   \
    const bool per_thread = false;               \
    body                                         \
  }                                              \
  CUresult symbol##_ptsz parameters {            \
    const bool per_thread = true;                \
    body                                         \
  }
// The name with its version, where it has one.
#define VMM_BOTH_FORMS_OF(symbol, parameters, body) VMM_BOTH_FORMS(symbol, parameters, body)

VMM_BOTH_FORMS(cuMemAllocAsync, (CUdeviceptr * at, std::size_t size, CUstream stream), {
  if (at == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUstream on = standin::meant(stream, per_thread);
  CUstreamCaptureStatus state = CU_STREAM_CAPTURE_STATUS_NONE;
  (void)base_cuStreamIsCapturing(on, &state);
  if (state != CU_STREAM_CAPTURE_STATUS_NONE) return CUDA_ERROR_NOT_SUPPORTED;
  return standin::note_block(base_cuMemAllocAsync(at, size, on), at, size, true);
})

VMM_BOTH_FORMS(cuMemFreeAsync, (CUdeviceptr at, CUstream stream), {
  const CUstream on = standin::meant(stream, per_thread);
  if (!standin::has_stream(on)) return CUDA_ERROR_INVALID_HANDLE;
  return standin::free_block(at, [&] { return base_cuMemFreeAsync(at, on); });
})

VMM_BOTH_FORMS(cuMemAllocFromPoolAsync,
               (CUdeviceptr * at, std::size_t size, CUmemoryPool, CUstream stream), {
                 return per_thread ? cuMemAllocAsync_ptsz(at, size, stream)
                                   : cuMemAllocAsync(at, size, stream);
               })

// ---- streams ------------------------------------------------------------------------------------

CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
  const CUresult made = base_cuStreamCreate(stream, flags);
  if (made != CUDA_SUCCESS) return made;
  const std::lock_guard<std::mutex> hold(more().lock);
  more().streams[*stream] = standin::context_stack().back();
  return made;
}

CUresult cuStreamDestroy(CUstream stream) {
  if (!standin::has_stream(stream)) return CUDA_ERROR_INVALID_HANDLE;
  {
    const std::lock_guard<std::mutex> hold(more().lock);
    more().streams.erase(stream);
    std::erase(more().captured, stream);
  }
  return base_cuStreamDestroy_v2(stream);
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext* context) {
  const std::lock_guard<std::mutex> hold(more().lock);
  const auto found = more().streams.find(stream);
  if (found == more().streams.end()) return CUDA_ERROR_INVALID_HANDLE;
  *context = found->second;
  return CUDA_SUCCESS;
}

VMM_BOTH_FORMS(cuStreamSynchronize, (CUstream stream), {
  const CUstream on = standin::meant(stream, per_thread);
  if (!standin::has_stream(on)) return CUDA_ERROR_INVALID_HANDLE;
  return base_cuStreamSynchronize(on);
})

VMM_BOTH_FORMS_OF(cuStreamBeginCapture, (CUstream stream, CUstreamCaptureMode mode), {
  const CUstream on = standin::meant(stream, per_thread);
  const CUresult begun = base_cuStreamBeginCapture_v2(on, mode);
  if (begun != CUDA_SUCCESS) return begun;
  const std::lock_guard<std::mutex> hold(more().lock);
  more().captured.push_back(on);
  return begun;
})

VMM_BOTH_FORMS(cuStreamEndCapture, (CUstream stream, CUgraph* graph), {
  const CUstream on = standin::meant(stream, per_thread);
  const CUresult ended = base_cuStreamEndCapture(on, graph);
  CUstreamCaptureStatus state = CU_STREAM_CAPTURE_STATUS_NONE;
  (void)base_cuStreamIsCapturing(on, &state);
  if (state == CU_STREAM_CAPTURE_STATUS_NONE) {
    const std::lock_guard<std::mutex> hold(more().lock);
    std::erase(more().captured, on);
  }
  return ended;
})

VMM_BOTH_FORMS(cuStreamIsCapturing, (CUstream stream, CUstreamCaptureStatus* state), {
  const CUstream on = standin::meant(stream, per_thread);
  if (!standin::has_stream(on)) return CUDA_ERROR_INVALID_HANDLE;
  return base_cuStreamIsCapturing(on, state);
})

VMM_BOTH_FORMS(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags), {
  const CUstream on = standin::meant(stream, per_thread);
  if (!standin::has_stream(on) || !standin::has_event(event)) return CUDA_ERROR_INVALID_HANDLE;
  return base_cuStreamWaitEvent(on, event, flags);
})

VMM_BOTH_FORMS(cuEventRecord, (CUevent event, CUstream stream), {
  const CUstream on = standin::meant(stream, per_thread);
  if (!standin::has_stream(on) || !standin::has_event(event)) return CUDA_ERROR_INVALID_HANDLE;
  return base_cuEventRecord(event, on);
})

// ---- bytes --------------------------------------------------------------------------------------

CUresult cuMemcpyDtoD(CUdeviceptr target, CUdeviceptr source, std::size_t size) {
  const CUresult code = base_cuMemcpyDtoDAsync_v2(target, source, size, nullptr);
  return code == CUDA_SUCCESS ? base_cuStreamSynchronize(nullptr) : code;
}

// The form of each thread has its suffix behind that of the version.
CUresult cuMemcpyDtoD_v2_ptds(CUdeviceptr target, CUdeviceptr source, std::size_t size) {
  const CUstream mine = standin::meant(nullptr, true);
  const CUresult code = base_cuMemcpyDtoDAsync_v2(target, source, size, mine);
  return code == CUDA_SUCCESS ? base_cuStreamSynchronize(mine) : code;
}

CUresult cuMemcpy(CUdeviceptr target, CUdeviceptr source, std::size_t size) {
  return cuMemcpyDtoD(target, source, size);
}

CUresult cuMemcpy_ptds(CUdeviceptr target, CUdeviceptr source, std::size_t size) {
  return cuMemcpyDtoD_v2_ptds(target, source, size);
}

VMM_BOTH_FORMS(cuMemcpyAsync,
               (CUdeviceptr target, CUdeviceptr source, std::size_t size, CUstream stream), {
                 return base_cuMemcpyDtoDAsync_v2(target, source, size,
                                                  standin::meant(stream, per_thread));
               })

VMM_BOTH_FORMS_OF(cuMemcpyDtoDAsync,
                  (CUdeviceptr target, CUdeviceptr source, std::size_t size, CUstream stream), {
                    return base_cuMemcpyDtoDAsync_v2(target, source, size,
                                                     standin::meant(stream, per_thread));
                  })

VMM_BOTH_FORMS_OF(cuMemcpyHtoDAsync,
                  (CUdeviceptr target, const void* source, std::size_t size, CUstream stream), {
                    return base_cuMemcpyHtoDAsync_v2(target, source, size,
                                                     standin::meant(stream, per_thread));
                  })

VMM_BOTH_FORMS_OF(cuMemcpyDtoHAsync,
                  (void* target, CUdeviceptr source, std::size_t size, CUstream stream), {
                    return base_cuMemcpyDtoHAsync_v2(target, source, size,
                                                     standin::meant(stream, per_thread));
                  })

VMM_BOTH_FORMS(cuMemsetD8Async,
               (CUdeviceptr target, unsigned char value, std::size_t size, CUstream stream), {
                 return base_cuMemsetD8Async(target, value, size,
                                             standin::meant(stream, per_thread));
               })

}  // extern "C"

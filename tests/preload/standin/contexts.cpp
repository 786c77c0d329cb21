// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The grown stub driver for libcuda: contexts, the objects that end with them, and later uses of
// those.
#include <deque>

#include "more.h"
#include "state.h"

using standin::context_stack, standin::more;

namespace standin {
namespace {

CUcontext make_context(int device) {
  static auto* const all = new std::deque<CUctx_st>;
  const std::lock_guard<std::mutex> hold(more().lock);
  if (more().spare_contexts.empty()) return &all->emplace_back(CUctx_st{device, 1});
  const CUcontext again = more().spare_contexts.back();
  more().spare_contexts.pop_back();
  *again = {device, 1};
  return again;
}

bool is_primary(CUcontext context) {
  const std::lock_guard<std::mutex> hold(the().mutex);
  return std::ranges::any_of(the().contexts, [&](CUctx_st& each) { return &each == context; });
}

template <class Key>
std::vector<Key> take_of(std::map<Key, CUcontext>& all, CUcontext context) {
  std::vector<Key> taken;
  const std::lock_guard<std::mutex> hold(more().lock);
  std::erase_if(all, [&](const auto& each) {
    if (each.second == context) taken.push_back(each.first);
    return each.second == context;
  });
  return taken;
}

// Its memory except that of the device's pool, its streams and its events.
void end_context(CUcontext context, bool with_pool) {
  (void)cuCtxPushCurrent(context);
  std::vector<CUdeviceptr> gone;
  {
    const std::lock_guard<std::mutex> hold(more().lock);
    for (const auto& [at, block] : more().blocks) {
      const bool stays = block.has_stream && !with_pool;
      if (block.context == context && !stays) gone.push_back(at);
    }
  }
  for (const CUdeviceptr each : gone) (void)cuMemFree(each);
  (void)base_cuCtxSynchronize();
  for (const CUstream each : take_of(more().streams, context)) {
    const std::lock_guard<std::mutex> hold(more().lock);
    std::erase(more().captured, each);
    (void)base_cuStreamDestroy_v2(each);
  }
  for (const CUevent each : take_of(more().events, context)) (void)base_cuEventDestroy_v2(each);
  CUcontext unused = nullptr;
  (void)cuCtxPopCurrent(&unused);
}

// Makes `stream` wait for what another one has been given.
CUresult wait_for(CUstream stream, CUstream other) {
  CUevent event = nullptr;
  CUresult code = base_cuEventCreate(&event, 0);
  if (code != CUDA_SUCCESS) return code;
  code = base_cuEventRecord(event, other);
  if (code == CUDA_SUCCESS) code = base_cuStreamWaitEvent(stream, event, 0);
  (void)base_cuEventDestroy_v2(event);
  return code;
}

// A stream that waits for others, one for each calling thread; the next thread has it after its
// end.
class joint_stream {
 public:
  joint_stream() {
    const std::lock_guard<std::mutex> hold(spare().lock);
    if (spare().streams.empty()) {
      (void)base_cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING);
    } else {
      stream_ = spare().streams.back();
      spare().streams.pop_back();
    }
  }
  ~joint_stream() {
    const std::lock_guard<std::mutex> hold(spare().lock);
    spare().streams.push_back(stream_);
  }
  joint_stream(const joint_stream&) = delete;
  joint_stream& operator=(const joint_stream&) = delete;
  [[nodiscard]] CUstream get() const { return stream_; }

 private:
  struct spare_streams {
    std::mutex lock;
    std::vector<CUstream> streams;
  };
  static spare_streams& spare() {
    static auto* const only = new spare_streams;
    return *only;
  }
  CUstream stream_ = nullptr;
};

template <class Table, class Key>
bool has(const Table& table, Key key) {
  const std::lock_guard<std::mutex> hold(more().lock);
  if (table.contains(key)) return true;
  ++more().stale_count;
  return false;
}

}  // namespace

bool has_event(CUevent event) { return has(more().events, event); }
bool has_stream(CUstream stream) { return stream == nullptr || has(more().streams, stream); }
bool has_context(CUcontext context) {
  if (context != nullptr && context->references > 0) return true;
  const std::lock_guard<std::mutex> hold(more().lock);
  ++more().stale_count;
  return false;
}

bool spoil_captures() {
  std::vector<CUstream> captured;
  {
    const std::lock_guard<std::mutex> hold(more().lock);
    captured = more().captured;
  }
  for (const CUstream each : captured) (void)base_cuStreamSynchronize(each);
  return !captured.empty();
}

}  // namespace standin

extern "C" {

unsigned long long vmm_standin_stale() {
  const std::lock_guard<std::mutex> hold(more().lock);
  return more().stale_count;
}

int vmm_standin_create_context(CUcontext* context, int device) {
  *context = standin::make_context(device);
  context_stack().push_back(*context);
  return 0;
}

// The primary one is not for it.
CUresult cuCtxDestroy(CUcontext context) {
  const CUresult code = standin::enter("cuCtxDestroy", standin::needs::initialised);
  if (code != CUDA_SUCCESS) return code;
  if (context == nullptr || standin::is_primary(context)) return CUDA_ERROR_INVALID_CONTEXT;
  if (context->references == 0) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  standin::end_context(context, false);
  if (!context_stack().empty() && context_stack().back() == context) context_stack().pop_back();
  context->references = 0;
  const std::lock_guard<std::mutex> hold(more().lock);
  more().spare_contexts.push_back(context);
  return CUDA_SUCCESS;
}

// Everything of the device's context is gone; it stays retained.
CUresult cuDevicePrimaryCtxReset(CUdevice device) {
  const CUresult code = standin::enter("cuDevicePrimaryCtxReset", standin::needs::initialised);
  if (code != CUDA_SUCCESS) return code;
  CUcontext primary = nullptr;
  if (cuDevicePrimaryCtxRetain(&primary, device) != CUDA_SUCCESS) return CUDA_ERROR_INVALID_DEVICE;
  standin::end_context(primary, true);
  return cuDevicePrimaryCtxRelease(device);
}

CUresult cuCtxPushCurrent(CUcontext context) {
  if (!standin::has_context(context)) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return base_cuCtxPushCurrent_v2(context);
}

// Of a context with a stream that is captured it is refused, and spoils the capture.
CUresult cuCtxSynchronize() {
  standin::report_call("cuCtxSynchronize");
  return standin::spoil_captures() ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
                                   : base_cuCtxSynchronize();
}

// The event waits for each stream of the context. While one is captured it spoils that capture.
CUresult cuCtxRecordEvent(CUcontext context, CUevent event) {
  static thread_local const standin::joint_stream own;
  const CUresult code = standin::enter("cuCtxRecordEvent", standin::needs::initialised);
  if (code != CUDA_SUCCESS) return code;
  if (!standin::has_context(context) || !standin::has_event(event))
    return CUDA_ERROR_INVALID_HANDLE;
  if (standin::spoil_captures()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  const CUstream joint = own.get();
  const std::lock_guard<std::mutex> hold(more().lock);  // no stream goes meanwhile
  std::vector<CUstream> all{nullptr};
  for (const auto& [stream, home] : more().streams)
    if (home == context) all.push_back(stream);
  for (const CUstream each : all) {
    const CUresult waits = standin::wait_for(joint, each);
    if (waits != CUDA_SUCCESS) return waits;
  }
  return base_cuEventRecord(event, joint);
}

// ---- events -------------------------------------------------------------------------------------

CUresult cuEventCreate(CUevent* event, unsigned flags) {
  const CUresult made = base_cuEventCreate(event, flags);
  if (made != CUDA_SUCCESS) return made;
  const std::lock_guard<std::mutex> hold(more().lock);
  more().events[*event] = context_stack().back();
  return made;
}

CUresult cuEventDestroy(CUevent event) {
  if (!standin::has_event(event)) return CUDA_ERROR_INVALID_HANDLE;
  {
    const std::lock_guard<std::mutex> hold(more().lock);
    more().events.erase(event);
  }
  return base_cuEventDestroy_v2(event);
}

CUresult cuEventQuery(CUevent event) {
  return standin::has_event(event) ? base_cuEventQuery(event) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuEventSynchronize(CUevent event) {
  return standin::has_event(event) ? base_cuEventSynchronize(event) : CUDA_ERROR_INVALID_HANDLE;
}

}  // extern "C"

// The form of CUDA 2 and 3.
#undef cuCtxDestroy
extern "C" CUresult cuCtxDestroy(CUcontext context) { return cuCtxDestroy_v2(context); }
extern "C" CUresult standin_old_destroy(CUcontext context) { return cuCtxDestroy(context); }

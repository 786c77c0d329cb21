// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The driver's calls that VMM_MODE=vmm needs besides those of vmm.cuda, by their exported names.
#pragma once

#include "abi.h"
#include "routes.h"

namespace vmm::preload {

struct driver_calls {
  result_code (*get_current)(context_id*) = nullptr;
  result_code (*get_device)(device_id*) = nullptr;
  result_code (*push_current)(context_id) = nullptr;
  result_code (*pop_current)(context_id*) = nullptr;
  result_code (*primary_state)(device_id, unsigned*, int*) = nullptr;
  result_code (*retain_primary)(context_id*, device_id) = nullptr;
  result_code (*release_primary)(device_id) = nullptr;
  result_code (*synchronize_context)() = nullptr;
  result_code (*record_context_event)(context_id, event_id) = nullptr;  // 12.5 and newer
  result_code (*create_event)(event_id*, unsigned) = nullptr;
  result_code (*destroy_event)(event_id) = nullptr;
  result_code (*record_event)(event_id, stream_id) = nullptr;
  result_code (*record_event_per_thread)(event_id, stream_id) = nullptr;
  result_code (*query_event)(event_id) = nullptr;
  result_code (*synchronize_event)(event_id) = nullptr;
  result_code (*stream_context)(stream_id, context_id*) = nullptr;
  result_code (*is_capturing)(stream_id, int*) = nullptr;
  result_code (*is_capturing_per_thread)(stream_id, int*) = nullptr;
  result_code (*exchange_capture_mode)(int*) = nullptr;
  result_code (*default_pool)(pool_id*, device_id) = nullptr;
  bool is_usable = false;  ///< the driver has all required ones

  void find() noexcept {
    set(get_current, "cuCtxGetCurrent");
    set(get_device, "cuCtxGetDevice");
    set(push_current, "cuCtxPushCurrent_v2");
    set(pop_current, "cuCtxPopCurrent_v2");
    set(primary_state, "cuDevicePrimaryCtxGetState");
    set(retain_primary, "cuDevicePrimaryCtxRetain");
    set(release_primary, "cuDevicePrimaryCtxRelease_v2");
    set(synchronize_context, "cuCtxSynchronize");
    set(record_context_event, "cuCtxRecordEvent");
    set(create_event, "cuEventCreate");
    set(destroy_event, "cuEventDestroy_v2");
    set(record_event, "cuEventRecord");
    set(record_event_per_thread, "cuEventRecord_ptsz");
    set(query_event, "cuEventQuery");
    set(synchronize_event, "cuEventSynchronize");
    set(stream_context, "cuStreamGetCtx");
    set(is_capturing, "cuStreamIsCapturing");
    set(is_capturing_per_thread, "cuStreamIsCapturing_ptsz");
    set(exchange_capture_mode, "cuThreadExchangeStreamCaptureMode");
    set(default_pool, "cuDeviceGetDefaultMemPool");
    is_usable = get_current != nullptr && get_device != nullptr && push_current != nullptr &&
                pop_current != nullptr && primary_state != nullptr && retain_primary != nullptr &&
                release_primary != nullptr && synchronize_context != nullptr &&
                create_event != nullptr && destroy_event != nullptr && record_event != nullptr &&
                query_event != nullptr && synchronize_event != nullptr &&
                stream_context != nullptr && is_capturing != nullptr;
  }

 private:
  template <class Function>
  static void set(Function*& into, const char* symbol) noexcept {
    into = reinterpret_cast<Function*>(driver_symbol(symbol));
  }
};

}  // namespace vmm::preload

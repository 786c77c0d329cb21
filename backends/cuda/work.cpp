// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.cuda - streams, events, captures, and what moves bytes.
module;
#include "loader.h"

module vmm.cuda;

import vmm.backend;
import vmm.base;
import vmm.std;
import :native;
import :state;

namespace vmm {
namespace {

constexpr const char* no_capture_detail =
    "the CUDA driver has no calls that return whether a stream is being captured";

}  // namespace

// ---- streams and events ------------------------------------------------------------------------

result<stream_handle> cuda_driver::create_stream() {
  check(state_ != nullptr, cuda::moved_from);
  CUstream made = nullptr;
  const status outcome = state_->run(call::create_stream, [&](const cuda::entry_points& cu) {
    return cu.stream_create(&made, CU_STREAM_NON_BLOCKING);
  });
  if (!outcome) return outcome.error();
  return cuda::from_native(made);
}

status cuda_driver::destroy_stream(stream_handle stream) {
  check(state_ != nullptr, cuda::moved_from);
  return state_->run(call::destroy_stream, [&](const cuda::entry_points& cu) {
    return cu.stream_destroy(cuda::native(stream));
  });
}

status cuda_driver::synchronize_stream(stream_handle stream) {
  check(state_ != nullptr, cuda::moved_from);
  return state_->run(call::synchronize_stream, [&](const cuda::entry_points& cu) {
    return cu.stream_synchronize(cuda::native(stream));
  });
}

result<event_handle> cuda_driver::create_event() {
  check(state_ != nullptr, cuda::moved_from);
  CUevent made = nullptr;
  const status outcome = state_->run(call::create_event, [&](const cuda::entry_points& cu) {
    return cu.event_create(&made, CU_EVENT_DISABLE_TIMING);
  });
  if (!outcome) return outcome.error();
  return cuda::from_native(made);
}

status cuda_driver::destroy_event(event_handle event) {
  check(state_ != nullptr, cuda::moved_from);
  return state_->run(call::destroy_event, [&](const cuda::entry_points& cu) {
    return cu.event_destroy(cuda::native(event));
  });
}

status cuda_driver::record_event(event_handle event, stream_handle stream) {
  check(state_ != nullptr, cuda::moved_from);
  return state_->run(call::record_event, [&](const cuda::entry_points& cu) {
    return cu.event_record(cuda::native(event), cuda::native(stream));
  });
}

result<bool> cuda_driver::query_event(event_handle event) {
  check(state_ != nullptr, cuda::moved_from);
  bool finished = true;
  const status outcome = state_->run(call::query_event, [&](const cuda::entry_points& cu) {
    const CUresult code = cu.event_query(cuda::native(event));
    finished = code != CUDA_ERROR_NOT_READY;
    return finished ? code : CUDA_SUCCESS;
  });
  if (!outcome) return outcome.error();
  return finished;
}

status cuda_driver::wait_event(stream_handle stream, event_handle event) {
  check(state_ != nullptr, cuda::moved_from);
  return state_->run(call::wait_event, [&](const cuda::entry_points& cu) {
    return cu.stream_wait_event(cuda::native(stream), cuda::native(event), 0);
  });
}

status cuda_driver::synchronize_event(event_handle event) {
  check(state_ != nullptr, cuda::moved_from);
  return state_->run(call::synchronize_event, [&](const cuda::entry_points& cu) {
    return cu.event_synchronize(cuda::native(event));
  });
}

std::uint64_t cuda_driver::stream_identity(stream_handle stream) noexcept {
  check(state_ != nullptr, cuda::moved_from);
  // On a captured stream the call below invalidates the capture.
  if (!state_->can.stream_identity || !is_uncaptured(stream)) return 0;
  unsigned long long identity = 0;
  const CUresult code = state_->cu.stream_get_id(cuda::native(stream), &identity);
  return code == CUDA_SUCCESS ? identity : 0;
}

status cuda_driver::record_all(event_handle event) {
  check(state_ != nullptr, cuda::moved_from);
  if (!state_->can.record_all) {
    return state_->lacks(call::record_all,
                         "the CUDA driver has no event for all work: it is older than 12.5");
  }
  return state_->run(call::record_all, [&](const cuda::entry_points& cu) {
    check(cu.context_record != nullptr, "all work is recorded by a call that is not there");
    return cu.context_record(state_->context, cuda::native(event));
  });
}

status cuda_driver::synchronize_all() {
  check(state_ != nullptr, cuda::moved_from);
  return state_->run(call::synchronize_all,
                     [](const cuda::entry_points& cu) { return cu.context_synchronize(); });
}

// ---- capture -----------------------------------------------------------------------------------

namespace {

constexpr std::uint64_t reserved_numbers = 2;  // streams up to here are the context's

}  // namespace

bool cuda_driver::is_uncaptured(stream_handle stream) noexcept {
  check(state_ != nullptr, cuda::moved_from);
  const cuda::entry_points& cu = state_->cu;
  check(!state_->can.capture || cu.stream_is_capturing != nullptr,
        "the driver has no call for "
        "the state of a capture");
  const bool is_own = static_cast<std::uint64_t>(stream) > reserved_numbers;
  if (!is_own || !state_->can.capture || !state_->made_in.is_here()) return false;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  return cu.stream_is_capturing(cuda::native(stream), &status) == CUDA_SUCCESS &&
         status == CU_STREAM_CAPTURE_STATUS_NONE;
}

result<capture_info> cuda_driver::query_capture(stream_handle stream) {
  check(state_ != nullptr, cuda::moved_from);
  const cuda::entry_points& cu = state_->cu;
  if (is_uncaptured(stream)) [[likely]]
    return capture_info{};
  if (!state_->made_in.is_here()) return refuse_forked(call::query_capture);
  if (!state_->can.capture)
    return error{errc::not_supported, call::query_capture, 0, "", no_capture_detail};
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const vmm::status asked = state_->run(call::query_capture, [&](const cuda::entry_points&) {
    return cu.stream_is_capturing(cuda::native(stream), &status);
  });
  if (!asked) return asked.error();
  if (status == CU_STREAM_CAPTURE_STATUS_NONE) return capture_info{};
  if (status == CU_STREAM_CAPTURE_STATUS_INVALIDATED)
    return capture_info{capture_state::invalidated, 0};
  cuuint64_t id = 0;
  check(cu.stream_get_capture != nullptr, "the driver has no call for the state of a capture");
  const CUresult code = cu.stream_get_capture(cuda::native(stream), &status, &id);
  if (code != CUDA_SUCCESS) return cuda::error_of(cu, call::query_capture, code);
  return capture_info{capture_state::active, id};
}

capture_mode cuda_driver::exchange_capture_mode(capture_mode mode) {
  check(state_ != nullptr, cuda::moved_from);
  if (!state_->can.capture || !state_->made_in.is_here()) return mode;
  check(state_->cu.exchange_capture_mode != nullptr, "captures have no mode");
  CUstreamCaptureMode exchanged = cuda::native(mode);
  if (state_->cu.exchange_capture_mode(&exchanged) != CUDA_SUCCESS) return mode;
  return cuda::from_native(exchanged);
}

// ---- the context of tools beside vmm -----------------------------------------------------------

bool cuda_driver::push_context() noexcept {
  check(state_ != nullptr, cuda::moved_from);
  return state_->made_in.is_here() && state_->cu.context_push(state_->context) == CUDA_SUCCESS;
}

void cuda_driver::pop_context() noexcept {
  check(state_ != nullptr, cuda::moved_from);
  if (!state_->made_in.is_here()) return;
  CUcontext popped = nullptr;
  const CUresult code = state_->cu.context_pop(&popped);
  check(code != CUDA_SUCCESS || popped == state_->context,
        "the popped context is not the pushed one");
}

// ---- bytes -------------------------------------------------------------------------------------

status cuda_driver::copy(const copy_request& request) {
  check(state_ != nullptr, cuda::moved_from);
  return state_->run(call::copy, [&](const cuda::entry_points& cu) {
    return cu.copy_on_device(request.target.value, request.source.value, request.size_bytes,
                             cuda::native(request.stream));
  });
}

status cuda_driver::fill(const fill_request& request) {
  check(state_ != nullptr, cuda::moved_from);
  return state_->run(call::fill, [&](const cuda::entry_points& cu) {
    return cu.fill(request.target.base.value, request.value, request.target.size_bytes,
                   cuda::native(request.stream));
  });
}

status cuda_driver::write(address at, std::span<const std::byte> source) {
  check(state_ != nullptr, cuda::moved_from);
  check(state_->transfers != nullptr, "an object has no stream for bytes");
  return state_->run(call::write, [&](const cuda::entry_points& cu) {
    const CUresult code =
        cu.copy_to_device(at.value, source.data(), source.size(), state_->transfers);
    return code == CUDA_SUCCESS ? cu.stream_synchronize(state_->transfers) : code;
  });
}

status cuda_driver::read(std::span<std::byte> target, address at) {
  check(state_ != nullptr, cuda::moved_from);
  check(state_->transfers != nullptr, "an object has no stream for bytes");
  return state_->run(call::read, [&](const cuda::entry_points& cu) {
    const CUresult code =
        cu.copy_to_host(target.data(), at.value, target.size(), state_->transfers);
    return code == CUDA_SUCCESS ? cu.stream_synchronize(state_->transfers) : code;
  });
}

}  // namespace vmm

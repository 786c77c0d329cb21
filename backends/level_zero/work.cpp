// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.level_zero - streams, events, bytes.
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "loader.h"

module vmm.level_zero;

import vmm.backend;
import :accounts;
import :state;

namespace vmm {

using level_zero::driver_state;
using level_zero::error_of;
using level_zero::point;
using level_zero::stream_state;
using guard = std::lock_guard<std::mutex>;

namespace {

constexpr std::size_t waits_between_markers = 32;

error no_host_memory(call where) noexcept {
  return error{errc::out_of_host_memory, where, 0, "", "no host memory for streams and events"};
}

void* pointer(address at) noexcept { return reinterpret_cast<void*>(at.value); }

}  // namespace

namespace level_zero {

result<ze_command_list_handle_t> driver_state::make_list(bool is_synchronous) {
  ze_command_queue_desc_t like{};
  like.stype = ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC;
  like.ordinal = queue_ordinal;
  like.mode =
      is_synchronous ? ZE_COMMAND_QUEUE_MODE_SYNCHRONOUS : ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS;
  ze_command_list_handle_t made = nullptr;
  const ze_result_t code = ze.list_create(context, device, &like, &made);
  if (code != ZE_RESULT_SUCCESS) return error_of(call::create_stream, code);
  return made;
}

result<stream_state*> driver_state::find_stream(call where, stream_handle stream) {
  const auto found = streams.find(static_cast<std::uint64_t>(stream));
  if (found == streams.end()) {
    return error{errc::invalid_argument, where, 0, "", "no live stream of this driver object"};
  }
  return &found->second;
}

result<std::map<std::uint64_t, point*>::iterator> driver_state::find_event(call where,
                                                                           event_handle event) {
  const auto found = events.find(static_cast<std::uint64_t>(event));
  if (found == events.end()) {
    return error{errc::invalid_argument, where, 0, "", "no live event of this driver object"};
  }
  return found;
}

// A point behind everything in the stream, with one reference.
result<point*> driver_state::append_point(call where, stream_state& stream) {
  const result<point*> taken = points.take(where);
  if (!taken) return taken;
  const ze_result_t code = ze.append_barrier(stream.list, (*taken)->native, 0, nullptr);
  if (code == ZE_RESULT_SUCCESS) return taken;
  points.put_back(**taken);
  return error_of(where, code);
}

// Puts a marker behind the stream's waits. May throw std::bad_alloc, which changes nothing.
status driver_state::mark_waits(call where, stream_state& stream) {
  stream.marked.emplace_back();
  const result<point*> marker = append_point(where, stream);
  if (!marker) {
    stream.marked.pop_back();
    return marker.error();
  }
  stream.marked.back().marker = *marker;
  stream.marked.back().points.swap(stream.waits);
  return {};
}

void driver_state::drop_passed_waits(stream_state& stream) noexcept {
  while (!stream.marked.empty()) {
    queued_waits& first = stream.marked.front();
    if (ze.event_query(first.marker->native) != ZE_RESULT_SUCCESS) return;
    for (point* const each : first.points) points.forget(each);
    points.forget(first.marker);
    stream.marked.pop_front();
  }
}

void driver_state::end_left_streams() noexcept {
  std::erase_if(leaving, [&](stream_state& each) {
    drop_passed_waits(each);
    return each.marked.empty() && ze.list_destroy(each.list) == ZE_RESULT_SUCCESS;
  });
}

}  // namespace level_zero

// ---- streams and events ------------------------------------------------------------------------

std::uint64_t level_zero_driver::native_stream(stream_handle stream) const noexcept {
  if (!state_->made_in.is_here()) return 0;
  const guard lock(state_->work_lock);
  const auto found = state_->find_stream(call::none, stream);
  return found ? reinterpret_cast<std::uintptr_t>((*found)->list) : 0;
}

result<stream_handle> level_zero_driver::create_stream() {
  driver_state& s = *state_;
  if (!s.made_in.is_here()) return refuse_forked(call::create_stream);
  const guard lock(s.work_lock);
  s.end_left_streams();
  try {
    const std::uint64_t token = ++s.last_token;
    const auto made = s.streams.try_emplace(token).first;
    const auto list = s.make_list(false);
    if (!list) {
      s.streams.erase(made);
      return list.error();
    }
    made->second.list = *list;
    return static_cast<stream_handle>(token);
  } catch (const std::bad_alloc&) {
    return no_host_memory(call::create_stream);
  }
}

// The list may go only when the device is done with it: it waits for its last marker.
status level_zero_driver::destroy_stream(stream_handle stream) {
  driver_state& s = *state_;
  if (!s.made_in.is_here()) return refuse_forked(call::destroy_stream);
  const guard lock(s.work_lock);
  const auto found = s.find_stream(call::destroy_stream, stream);
  if (!found) return found.error();
  if (stream == stream_handle::default_stream) {
    return error{errc::invalid_argument, call::destroy_stream, 0, "",
                 "the default stream stays as long as its driver object"};
  }
  try {
    s.end_left_streams();
    s.leaving.reserve(s.leaving.size() + 1);
    if (const status marked = s.mark_waits(call::destroy_stream, **found); !marked) return marked;
  } catch (const std::bad_alloc&) {
    return no_host_memory(call::destroy_stream);
  }
  s.leaving.push_back(std::move(**found));
  s.streams.erase(static_cast<std::uint64_t>(stream));
  s.end_left_streams();
  return {};
}

status level_zero_driver::synchronize_stream(stream_handle stream) {
  driver_state& s = *state_;
  if (!s.made_in.is_here()) return refuse_forked(call::synchronize_stream);
  point* last = nullptr;
  {
    const guard lock(s.work_lock);
    const auto found = s.find_stream(call::synchronize_stream, stream);
    if (!found) return found.error();
    try {
      const status marked = s.mark_waits(call::synchronize_stream, **found);
      if (!marked) return marked;
    } catch (const std::bad_alloc&) {
      return no_host_memory(call::synchronize_stream);
    }
    last = (*found)->marked.back().marker;
    s.points.refer(*last);
  }
  const ze_result_t code = s.ze.event_synchronize(last->native, UINT64_MAX);
  const guard lock(s.work_lock);
  s.points.forget(last);
  if (const auto found = s.find_stream(call::synchronize_stream, stream); found) {
    s.drop_passed_waits(**found);
  }
  if (code != ZE_RESULT_SUCCESS) return error_of(call::synchronize_stream, code);
  return {};
}

result<event_handle> level_zero_driver::create_event() {
  driver_state& s = *state_;
  if (!s.made_in.is_here()) return refuse_forked(call::create_event);
  const guard lock(s.work_lock);
  try {
    const std::uint64_t token = ++s.last_token;
    s.events.emplace(token, nullptr);
    return static_cast<event_handle>(token);
  } catch (const std::bad_alloc&) {
    return no_host_memory(call::create_event);
  }
}

status level_zero_driver::destroy_event(event_handle event) {
  driver_state& s = *state_;
  if (!s.made_in.is_here()) return refuse_forked(call::destroy_event);
  const guard lock(s.work_lock);
  const auto found = s.find_event(call::destroy_event, event);
  if (!found) return found.error();
  s.points.forget((*found)->second);
  s.events.erase(*found);
  return {};
}

status level_zero_driver::record_event(event_handle event, stream_handle stream) {
  driver_state& s = *state_;
  if (!s.made_in.is_here()) return refuse_forked(call::record_event);
  const guard lock(s.work_lock);
  const auto found = s.find_event(call::record_event, event);
  if (!found) return found.error();
  const auto in = s.find_stream(call::record_event, stream);
  if (!in) return in.error();
  const auto made = s.append_point(call::record_event, **in);
  if (!made) return made.error();
  s.points.forget(std::exchange((*found)->second, *made));
  return {};
}

result<bool> level_zero_driver::query_event(event_handle event) {
  driver_state& s = *state_;
  if (!s.made_in.is_here()) return refuse_forked(call::query_event);
  const guard lock(s.work_lock);
  const auto found = s.find_event(call::query_event, event);
  if (!found) return found.error();
  if ((*found)->second == nullptr) return true;
  const ze_result_t code = s.ze.event_query((*found)->second->native);
  if (code == ZE_RESULT_NOT_READY) return false;
  if (code != ZE_RESULT_SUCCESS) return error_of(call::query_event, code);
  return true;
}

status level_zero_driver::wait_event(stream_handle stream, event_handle event) {
  driver_state& s = *state_;
  if (!s.made_in.is_here()) return refuse_forked(call::wait_event);
  const guard lock(s.work_lock);
  const auto found = s.find_event(call::wait_event, event);
  if (!found) return found.error();
  const auto in = s.find_stream(call::wait_event, stream);
  if (!in) return in.error();
  point* const what = (*found)->second;
  if (what == nullptr) return {};
  stream_state& waiting = **in;
  try {
    s.drop_passed_waits(waiting);
    if (waiting.waits.size() >= waits_between_markers) {
      if (const status marked = s.mark_waits(call::wait_event, waiting); !marked) return marked;
    }
    waiting.waits.reserve(waits_between_markers);
  } catch (const std::bad_alloc&) {
    return no_host_memory(call::wait_event);
  }
  const ze_result_t code = s.ze.append_barrier(waiting.list, nullptr, 1, &what->native);
  if (code != ZE_RESULT_SUCCESS) return error_of(call::wait_event, code);
  s.points.refer(*what);
  waiting.waits.push_back(what);
  return {};
}

status level_zero_driver::synchronize_event(event_handle event) {
  driver_state& s = *state_;
  if (!s.made_in.is_here()) return refuse_forked(call::synchronize_event);
  point* what = nullptr;
  {
    const guard lock(s.work_lock);
    const auto found = s.find_event(call::synchronize_event, event);
    if (!found) return found.error();
    what = (*found)->second;
    if (what == nullptr) return {};
    s.points.refer(*what);
  }
  const ze_result_t code = s.ze.event_synchronize(what->native, UINT64_MAX);
  const guard lock(s.work_lock);
  s.points.forget(what);
  if (code != ZE_RESULT_SUCCESS) return error_of(call::synchronize_event, code);
  return {};
}

// ---- bytes -------------------------------------------------------------------------------------

// The barrier first: where the command itself is refused, it has changed nothing.
status level_zero_driver::copy(const copy_request& request) {
  driver_state& s = *state_;
  if (!s.made_in.is_here()) return refuse_forked(call::copy);
  const guard lock(s.work_lock);
  const auto in = s.find_stream(call::copy, request.stream);
  if (!in) return in.error();
  {
    const guard memory(s.memory_lock);
    for (const address at : {request.target, request.source}) {
      const status usable = s.held.check_usable(call::copy, {at, request.size_bytes});
      if (!usable) return usable;
    }
  }
  if (request.size_bytes == 0) return {};
  const ze_command_list_handle_t list = (*in)->list;
  ze_result_t code = s.ze.append_barrier(list, nullptr, 0, nullptr);
  if (code == ZE_RESULT_SUCCESS) {
    code = s.ze.append_copy(list, pointer(request.target), pointer(request.source),
                            request.size_bytes, nullptr, 0, nullptr);
  }
  if (code != ZE_RESULT_SUCCESS) return error_of(call::copy, code);
  return {};
}

status level_zero_driver::fill(const fill_request& request) {
  driver_state& s = *state_;
  if (!s.made_in.is_here()) return refuse_forked(call::fill);
  const guard lock(s.work_lock);
  const auto in = s.find_stream(call::fill, request.stream);
  if (!in) return in.error();
  {
    const guard memory(s.memory_lock);
    const status usable = s.held.check_usable(call::fill, request.target);
    if (!usable) return usable;
  }
  if (request.target.size_bytes == 0) return {};
  const ze_command_list_handle_t list = (*in)->list;
  ze_result_t code = s.ze.append_barrier(list, nullptr, 0, nullptr);
  if (code == ZE_RESULT_SUCCESS) {
    code = s.ze.append_fill(list, pointer(request.target.base), &request.value, 1,
                            request.target.size_bytes, nullptr, 0, nullptr);
  }
  if (code != ZE_RESULT_SUCCESS) return error_of(call::fill, code);
  return {};
}

status level_zero_driver::write(address at, std::span<const std::byte> source) {
  driver_state& s = *state_;
  if (!s.made_in.is_here()) return refuse_forked(call::write);
  const guard one_at_a_time(s.transfer_lock);
  {
    const guard memory(s.memory_lock);
    const status usable = s.held.check_usable(call::write, {at, source.size()});
    if (!usable) return usable;
  }
  if (source.empty()) return {};
  const ze_result_t code =
      s.ze.append_copy(s.transfers, pointer(at), source.data(), source.size(), nullptr, 0, nullptr);
  if (code != ZE_RESULT_SUCCESS) return error_of(call::write, code);
  return {};
}

status level_zero_driver::read(std::span<std::byte> target, address at) {
  driver_state& s = *state_;
  if (!s.made_in.is_here()) return refuse_forked(call::read);
  const guard one_at_a_time(s.transfer_lock);
  {
    const guard memory(s.memory_lock);
    const status usable = s.held.check_usable(call::read, {at, target.size()});
    if (!usable) return usable;
  }
  if (target.empty()) return {};
  const ze_result_t code =
      s.ze.append_copy(s.transfers, target.data(), pointer(at), target.size(), nullptr, 0, nullptr);
  if (code != ZE_RESULT_SUCCESS) return error_of(call::read, code);
  return {};
}

}  // namespace vmm

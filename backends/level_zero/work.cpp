// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.level_zero - streams, events, bytes.
module;
#include "loader.h"

module vmm.level_zero;

import vmm.backend;
import vmm.base;
import vmm.std;
import :accounts;
import :state;

namespace vmm {

using level_zero::error_of;
using level_zero::level_zero_state;
using level_zero::moved_from;
using level_zero::no_work_memory;
using level_zero::point;
using level_zero::stream_state;
using guard = std::lock_guard<std::mutex>;
using unlockable = std::unique_lock<std::mutex>;

namespace {

void* pointer(address at) noexcept { return reinterpret_cast<void*>(at.value); }

}  // namespace

// ---- streams and events ------------------------------------------------------------------------

std::uint64_t level_zero_driver::native_stream(stream_handle stream) const noexcept {
  check(state_ != nullptr, moved_from);
  if (!state_->is_usable()) return 0;
  const guard lock(state_->work_lock);
  const auto found = state_->find_stream(call::none, stream);
  if (!found) return 0;
  (*found)->is_used = true;
  return reinterpret_cast<std::uintptr_t>((*found)->list);
}

result<stream_handle> level_zero_driver::create_stream() {
  check(state_ != nullptr, moved_from);
  level_zero_state& s = *state_;
  if (!s.is_usable()) return s.refuse_unusable(call::create_stream);
  try {
    const std::uint64_t token = level_zero::next_token();
    std::map<std::uint64_t, stream_state> alone;
    const auto made = alone.try_emplace(token).first;
    const auto list = s.make_list(false);
    if (!list) return list.error();
    made->second.list = *list;
    const guard lock(s.work_lock);
    s.end_left_streams();
    const bool is_new = s.streams.insert(alone.extract(made)).inserted;
    check(is_new, "a stream has the number of another one");
    return static_cast<stream_handle>(token);
  } catch (const std::bad_alloc&) {
    return no_work_memory(call::create_stream);
  }
}

// The list may go only when the device is done with it: it waits for its last marker.
status level_zero_driver::destroy_stream(stream_handle stream) {
  check(state_ != nullptr, moved_from);
  level_zero_state& s = *state_;
  if (!s.is_usable()) return s.refuse_unusable(call::destroy_stream);
  if (stream == stream_handle::default_stream) {
    return error{errc::invalid_argument, call::destroy_stream, 0, "",
                 "the default stream stays as long as its driver object"};
  }
  {
    const auto turn = s.take_turn(call::destroy_stream, stream);
    if (!turn) return turn.error();
    stream_state& ending = turn->stream();
    unlockable lock(s.work_lock);
    s.end_left_streams();
    try {
      const status marked = s.mark_waits(lock, call::destroy_stream, ending);
      if (!marked) return marked;
    } catch (const std::bad_alloc&) {
      return no_work_memory(call::destroy_stream);
    }
    check(ending.waits.empty() && !ending.marked.empty(), "a marker ends the stream");
    ending.is_ended = true;
    // A node that changes its map is neither copied nor made anew: nothing can fail here.
    s.leaving.insert(s.streams.extract(static_cast<std::uint64_t>(stream)));
  }
  const guard lock(s.work_lock);
  s.end_left_streams();
  return {};
}

status level_zero_driver::synchronize_stream(stream_handle stream) {
  check(state_ != nullptr, moved_from);
  level_zero_state& s = *state_;
  if (!s.is_usable()) return s.refuse_unusable(call::synchronize_stream);
  point* last = nullptr;
  {
    const auto turn = s.take_turn(call::synchronize_stream, stream);
    if (!turn) return turn.error();
    unlockable lock(s.work_lock);
    try {
      const status marked = s.mark_waits(lock, call::synchronize_stream, turn->stream());
      if (!marked) return marked;
    } catch (const std::bad_alloc&) {
      return no_work_memory(call::synchronize_stream);
    }
    last = turn->stream().marked.back().marker;
    check(last != nullptr, "a marker stands behind the work");
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
  check(state_ != nullptr, moved_from);
  level_zero_state& s = *state_;
  if (!s.is_usable()) return s.refuse_unusable(call::create_event);
  const guard lock(s.work_lock);
  try {
    const std::uint64_t token = level_zero::next_token();
    const bool is_new = s.events.emplace(token, nullptr).second;
    check(is_new, "an event has the number of another one");
    return static_cast<event_handle>(token);
  } catch (const std::bad_alloc&) {
    return no_work_memory(call::create_event);
  }
}

status level_zero_driver::destroy_event(event_handle event) {
  check(state_ != nullptr, moved_from);
  level_zero_state& s = *state_;
  if (!s.is_usable()) return s.refuse_unusable(call::destroy_event);
  const guard lock(s.work_lock);
  const auto found = s.find_event(call::destroy_event, event);
  if (!found) return found.error();
  s.points.forget((*found)->second);
  s.events.erase(*found);
  debug_check([&] { return !s.find_event(call::destroy_event, event); },
              "a destroyed event is still live");
  return {};
}

status level_zero_driver::record_event(event_handle event, stream_handle stream) {
  check(state_ != nullptr, moved_from);
  level_zero_state& s = *state_;
  if (!s.is_usable()) return s.refuse_unusable(call::record_event);
  if (const status is_live = s.look_for_event(call::record_event, event); !is_live) return is_live;
  const auto turn = s.take_turn(call::record_event, stream);
  if (!turn) return turn.error();
  unlockable lock(s.work_lock);
  const auto made = s.append_point(lock, call::record_event, turn->stream());
  if (!made) return made.error();
  check((*made)->references == 1, "a new point is the event's alone");
  const auto found = s.find_event(call::record_event, event);
  if (!found) {
    s.points.forget(*made);
    return found.error();
  }
  s.points.forget(std::exchange((*found)->second, *made));
  return {};
}

result<bool> level_zero_driver::query_event(event_handle event) {
  check(state_ != nullptr, moved_from);
  level_zero_state& s = *state_;
  if (!s.is_usable()) return s.refuse_unusable(call::query_event);
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
  check(state_ != nullptr, moved_from);
  level_zero_state& s = *state_;
  if (!s.is_usable()) return s.refuse_unusable(call::wait_event);
  if (const status is_live = s.look_for_event(call::wait_event, event); !is_live) return is_live;
  const auto turn = s.take_turn(call::wait_event, stream);
  if (!turn) return turn.error();
  stream_state& waiting = turn->stream();
  unlockable lock(s.work_lock);
  const auto found = s.find_event(call::wait_event, event);
  if (!found) return found.error();
  point* const what = (*found)->second;
  if (what == nullptr) return {};
  s.points.refer(*what);  // the event may change once the lock is released
  const status queued = s.queue_wait(lock, waiting, *what);
  if (!queued) s.points.forget(what);
  return queued;
}

status level_zero_driver::synchronize_event(event_handle event) {
  check(state_ != nullptr, moved_from);
  level_zero_state& s = *state_;
  if (!s.is_usable()) return s.refuse_unusable(call::synchronize_event);
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

// Live streams one after the other, and then those that were destroyed, also meanwhile.
status level_zero_driver::synchronize_all() {
  check(state_ != nullptr, moved_from);
  level_zero_state& s = *state_;
  if (!s.is_usable()) return s.refuse_unusable(call::synchronize_all);
  std::vector<std::uint64_t> live;
  try {
    const guard lock(s.work_lock);
    for (const auto& [token, each] : s.streams) live.push_back(token);
  } catch (const std::bad_alloc&) {
    return no_work_memory(call::synchronize_all);
  }
  check(!live.empty(), "a driver object has no default stream");
  for (const std::uint64_t token : live) {
    const status waited = synchronize_stream(static_cast<stream_handle>(token));
    if (waited) continue;
    error refused = waited.error();
    refused.where = call::synchronize_all;
    const guard lock(s.work_lock);
    if (s.streams.contains(token)) return refused;
  }
  return s.synchronize_left_streams();
}

// ---- bytes -------------------------------------------------------------------------------------

// The barrier first: where the command itself is refused, it has changed nothing.
status level_zero_driver::copy(const copy_request& request) {
  check(state_ != nullptr, moved_from);
  level_zero_state& s = *state_;
  if (!s.is_usable()) return s.refuse_unusable(call::copy);
  const address_range target{request.target, request.size_bytes};
  const address_range source{request.source, request.size_bytes};
  for (const address_range& each : {target, source}) {
    if (const status usable = s.check_usable(call::copy, each); !usable) return usable;
  }
  const auto turn = s.take_turn(call::copy, request.stream);
  if (!turn) return turn.error();
  if (request.size_bytes == 0) return {};
  if (target.overlaps(source)) {
    return error{errc::invalid_argument, call::copy, 0, "", "source and target overlap"};
  }
  turn->stream().is_used = true;
  const ze_command_list_handle_t list = turn->stream().list;
  ze_result_t code = s.ze.append_barrier(list, nullptr, 0, nullptr);
  if (code == ZE_RESULT_SUCCESS) {
    code = s.ze.append_copy(list, pointer(request.target), pointer(request.source),
                            request.size_bytes, nullptr, 0, nullptr);
  }
  if (code != ZE_RESULT_SUCCESS) return error_of(call::copy, code);
  return {};
}

status level_zero_driver::fill(const fill_request& request) {
  check(state_ != nullptr, moved_from);
  level_zero_state& s = *state_;
  if (!s.is_usable()) return s.refuse_unusable(call::fill);
  if (const status usable = s.check_usable(call::fill, request.target); !usable) return usable;
  const auto turn = s.take_turn(call::fill, request.stream);
  if (!turn) return turn.error();
  if (request.target.size_bytes == 0) return {};
  turn->stream().is_used = true;
  const ze_command_list_handle_t list = turn->stream().list;
  ze_result_t code = s.ze.append_barrier(list, nullptr, 0, nullptr);
  if (code == ZE_RESULT_SUCCESS) {
    code = s.ze.append_fill(list, pointer(request.target.base), &request.value, 1,
                            request.target.size_bytes, nullptr, 0, nullptr);
  }
  if (code != ZE_RESULT_SUCCESS) return error_of(call::fill, code);
  return {};
}

status level_zero_driver::write(address at, std::span<const std::byte> source) {
  check(state_ != nullptr, moved_from);
  level_zero_state& s = *state_;
  if (!s.is_usable()) return s.refuse_unusable(call::write);
  const guard one_at_a_time(s.transfer_lock);
  if (const status usable = s.check_usable(call::write, {at, source.size()}); !usable)
    return usable;
  if (source.empty()) return {};
  check(s.transfers != nullptr, "an object has a list for bytes");
  const ze_result_t code =
      s.ze.append_copy(s.transfers, pointer(at), source.data(), source.size(), nullptr, 0, nullptr);
  if (code != ZE_RESULT_SUCCESS) return error_of(call::write, code);
  return {};
}

status level_zero_driver::read(std::span<std::byte> target, address at) {
  check(state_ != nullptr, moved_from);
  level_zero_state& s = *state_;
  if (!s.is_usable()) return s.refuse_unusable(call::read);
  const guard one_at_a_time(s.transfer_lock);
  if (const status usable = s.check_usable(call::read, {at, target.size()}); !usable) return usable;
  if (target.empty()) return {};
  check(s.transfers != nullptr, "an object has a list for bytes");
  const ze_result_t code =
      s.ze.append_copy(s.transfers, target.data(), pointer(at), target.size(), nullptr, 0, nullptr);
  if (code != ZE_RESULT_SUCCESS) return error_of(call::read, code);
  return {};
}

}  // namespace vmm

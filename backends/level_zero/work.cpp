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

using level_zero::driver_state;
using level_zero::error_of;
using level_zero::moved_from;
using level_zero::point;
using level_zero::stream_state;
using guard = std::lock_guard<std::mutex>;
using unlockable = std::unique_lock<std::mutex>;

namespace {

constexpr std::size_t waits_between_markers = 32;

error no_host_memory(call where) noexcept {
  return error{errc::out_of_host_memory, where, 0, "", "no host memory for streams and events"};
}

error no_such_stream(call where) noexcept {
  return error{errc::invalid_argument, where, 0, "", "no live stream of this driver object"};
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
  check(context != nullptr, "the driver is called before there is a context");
  ze_command_list_handle_t made = nullptr;
  const ze_result_t code = ze.list_create(context, device, &like, &made);
  if (code != ZE_RESULT_SUCCESS) return error_of(call::create_stream, code);
  if (made == nullptr) return no_answer(call::create_stream);
  return made;
}

result<stream_state*> driver_state::find_stream(call where, stream_handle stream) {
  const auto found = streams.find(static_cast<std::uint64_t>(stream));
  if (found == streams.end()) return no_such_stream(where);
  check(found->second.list != nullptr, "a live stream has a list");
  return &found->second;
}

result<std::map<std::uint64_t, point*>::iterator> driver_state::find_event(call where,
                                                                           event_handle event) {
  const auto found = events.find(static_cast<std::uint64_t>(event));
  if (found == events.end()) {
    return error{errc::invalid_argument, where, 0, "", "no live event of this driver object"};
  }
  check(found->second == nullptr || found->second->references != 0, "an event holds its point");
  return found;
}

result<stream_turn> driver_state::take_turn(call where, stream_handle stream) {
  stream_state* wanted = nullptr;
  {
    const guard lock(work_lock);
    const auto found = find_stream(where, stream);
    if (!found) return found.error();
    wanted = *found;
    ++wanted->pin_count;
    check(wanted->pin_count != 0, "a stream is pinned more often than can be counted");
  }
  wanted->turn.lock();
  stream_turn turn(*this, *wanted);
  if (wanted->is_ended) return no_such_stream(where);
  return turn;
}

stream_turn::~stream_turn() {
  if (stream_ == nullptr) return;
  stream_->turn.unlock();
  const guard lock(of_->work_lock);
  check(stream_->pin_count != 0, "state I5: a turn ends at a stream that is not pinned");
  --stream_->pin_count;
}

status driver_state::look_for_event(call where, event_handle event) {
  const guard lock(work_lock);
  const auto found = find_event(where, event);
  return found ? status{} : status{found.error()};
}

// A point behind everything in the stream, with one reference.
result<point*> driver_state::append_point(unlockable& lock, call where, stream_state& stream) {
  check(lock.owns_lock(), "state I1: points are taken under their lock");
  const result<point*> taken = points.take(where);
  if (!taken) return taken;
  check((*taken)->references == 1, "a point that was taken is the taker's alone");
  stream.is_used = true;
  lock.unlock();
  const ze_result_t code = ze.append_barrier(stream.list, (*taken)->native, 0, nullptr);
  lock.lock();
  if (code == ZE_RESULT_SUCCESS) return taken;
  points.put_back(**taken);
  return error_of(where, code);
}

// Puts a marker behind the stream's waits. May throw std::bad_alloc, which changes nothing.
status driver_state::mark_waits(unlockable& lock, call where, stream_state& stream) {
  check(stream.list != nullptr, "a marker stands in a list");
  stream.marked.emplace_back();
  const result<point*> marker = append_point(lock, where, stream);
  if (!marker) {
    stream.marked.pop_back();
    return marker.error();
  }
  stream.marked.back().marker = *marker;
  stream.marked.back().points.swap(stream.waits);
  return {};
}

// In the stream's turn. The point is the stream's own reference to it from now on.
status driver_state::queue_wait(unlockable& lock, stream_state& waiting, point& what) {
  check(what.references > 1, "state I3: a stream waits for a point that it does not hold");
  try {
    drop_passed_waits(waiting);
    if (waiting.waits.size() >= waits_between_markers) {
      if (const status marked = mark_waits(lock, call::wait_event, waiting); !marked) return marked;
    }
    waiting.waits.reserve(waits_between_markers);
  } catch (const std::bad_alloc&) {
    return no_host_memory(call::wait_event);
  }
  check(waiting.waits.size() < waiting.waits.capacity(), "there is room for the wait");
  waiting.is_used = true;
  lock.unlock();
  const ze_result_t code = ze.append_barrier(waiting.list, nullptr, 1, &what.native);
  lock.lock();
  if (code != ZE_RESULT_SUCCESS) return error_of(call::wait_event, code);
  waiting.waits.push_back(&what);
  return {};
}

void driver_state::drop_passed_waits(stream_state& stream) noexcept {
  while (!stream.marked.empty()) {
    queued_waits& first = stream.marked.front();
    if (first.marker == nullptr) return;  // it is being queued
    if (ze.event_query(first.marker->native) != ZE_RESULT_SUCCESS) return;
    for (point* const each : first.points) points.forget(each);
    points.forget(first.marker);
    stream.marked.pop_front();
  }
}

void driver_state::end_left_streams() noexcept {
  for (auto at = leaving.begin(); at != leaving.end();) {
    stream_state& each = at->second;
    check(each.waits.empty(), "the last waits of a destroyed stream have a marker");
    drop_passed_waits(each);
    const bool is_idle = each.marked.empty() && each.pin_count == 0;
    const bool is_gone = is_idle && ze.list_destroy(each.list) == ZE_RESULT_SUCCESS;
    at = is_gone ? leaving.erase(at) : std::next(at);
  }
}

// By the markers that they left.
status driver_state::synchronize_left_streams() {
  std::vector<point*> markers;
  try {
    const guard lock(work_lock);
    markers.reserve(leaving.size());
    for (auto& [token, each] : leaving) {
      if (each.marked.empty()) continue;
      check(each.marked.back().marker != nullptr, "state I4: a stream ends without a marker");
      points.refer(*each.marked.back().marker);
      markers.push_back(each.marked.back().marker);
    }
  } catch (const std::bad_alloc&) {
    return no_host_memory(call::synchronize_all);
  }
  ze_result_t code = ZE_RESULT_SUCCESS;
  for (point* const each : markers) {
    if (code == ZE_RESULT_SUCCESS) code = ze.event_synchronize(each->native, UINT64_MAX);
    const guard lock(work_lock);
    points.forget(each);
  }
  if (code != ZE_RESULT_SUCCESS) return error_of(call::synchronize_all, code);
  return {};
}

}  // namespace level_zero

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
  driver_state& s = *state_;
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
    return no_host_memory(call::create_stream);
  }
}

// The list may go only when the device is done with it: it waits for its last marker.
status level_zero_driver::destroy_stream(stream_handle stream) {
  check(state_ != nullptr, moved_from);
  driver_state& s = *state_;
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
      return no_host_memory(call::destroy_stream);
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
  driver_state& s = *state_;
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
      return no_host_memory(call::synchronize_stream);
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
  driver_state& s = *state_;
  if (!s.is_usable()) return s.refuse_unusable(call::create_event);
  const guard lock(s.work_lock);
  try {
    const std::uint64_t token = level_zero::next_token();
    const bool is_new = s.events.emplace(token, nullptr).second;
    check(is_new, "an event has the number of another one");
    return static_cast<event_handle>(token);
  } catch (const std::bad_alloc&) {
    return no_host_memory(call::create_event);
  }
}

status level_zero_driver::destroy_event(event_handle event) {
  check(state_ != nullptr, moved_from);
  driver_state& s = *state_;
  if (!s.is_usable()) return s.refuse_unusable(call::destroy_event);
  const guard lock(s.work_lock);
  const auto found = s.find_event(call::destroy_event, event);
  if (!found) return found.error();
  s.points.forget((*found)->second);
  s.events.erase(*found);
  debug_check([&] { return !s.find_event(call::destroy_event, event); }, "a destroyed event lives");
  return {};
}

status level_zero_driver::record_event(event_handle event, stream_handle stream) {
  check(state_ != nullptr, moved_from);
  driver_state& s = *state_;
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
  driver_state& s = *state_;
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
  driver_state& s = *state_;
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
  s.points.refer(*what);  // the event may go, or stand for another point, while the lock is let go
  const status queued = s.queue_wait(lock, waiting, *what);
  if (!queued) s.points.forget(what);
  return queued;
}

status level_zero_driver::synchronize_event(event_handle event) {
  check(state_ != nullptr, moved_from);
  driver_state& s = *state_;
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
  driver_state& s = *state_;
  if (!s.is_usable()) return s.refuse_unusable(call::synchronize_all);
  std::vector<std::uint64_t> live;
  try {
    const guard lock(s.work_lock);
    for (const auto& [token, each] : s.streams) live.push_back(token);
  } catch (const std::bad_alloc&) {
    return no_host_memory(call::synchronize_all);
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
  driver_state& s = *state_;
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
  driver_state& s = *state_;
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
  driver_state& s = *state_;
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
  driver_state& s = *state_;
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

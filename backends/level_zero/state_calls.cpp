// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.level_zero - the steps that calls on memory and on streams share.
module;
#include "loader.h"

module vmm.level_zero;

import vmm.backend;
import vmm.base;
import vmm.std;
import :accounts;
import :state;

namespace vmm::level_zero {

using guard = std::lock_guard<std::mutex>;
using unlockable = std::unique_lock<std::mutex>;

error lost(error failure) noexcept {
  check(failure.code != errc::none, "a failure has a code");
  failure.code = errc::device_lost;
  failure.detail = "the driver failed midway, and failed again to undo the first part";
  return failure;
}

error no_work_memory(call where) noexcept {
  return error{errc::out_of_host_memory, where, 0, "", "no host memory for streams and events"};
}

namespace {

constexpr std::size_t waits_between_markers = 32;

error no_such_stream(call where) noexcept {
  return error{errc::invalid_argument, where, 0, "", "no live stream of this driver object"};
}

void* pointer(std::uint64_t at) noexcept { return reinterpret_cast<void*>(at); }

// The start of the driver's search without a hint. The validation layer of some loaders refuses a
// null start, which the specification allows.
constexpr std::uint64_t any_start = 1ull << 40;

}  // namespace

// ---- memory ------------------------------------------------------------------------------------

result<std::uint64_t> level_zero_state::page_size(call where, std::uint64_t size_bytes) {
  check(context != nullptr, "the driver is called before there is a context");
  std::size_t page_bytes = 0;
  const ze_result_t code = ze.query_page_size(context, device, size_bytes, &page_bytes);
  if (code != ZE_RESULT_SUCCESS) return error_of(where, code);
  if (!std::has_single_bit(page_bytes)) {
    return error{errc::internal, where, 0, "", "the driver's page size is not a power of two"};
  }
  return page_bytes;
}

result<address_range> level_zero_state::reserve_native(std::uint64_t size_bytes, address hint) {
  check(size_bytes % large_page_bytes == 0, "reserved ranges are made of large pages");
  void* base = nullptr;
  ze_result_t code = ZE_RESULT_ERROR_INVALID_ARGUMENT;
  if (hint) code = ze.reserve(context, pointer(hint.value), size_bytes, &base);
  // A hint is optional: a driver's result for it has no meaning for other addresses.
  if (code != ZE_RESULT_SUCCESS) {
    code = ze.reserve(context, pointer(any_start), size_bytes, &base);
  }
  // Some drivers refuse instead of looking elsewhere, which a null start has them do.
  if (code == ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY || code == ZE_RESULT_ERROR_INVALID_ARGUMENT) {
    if (ze.reserve(context, nullptr, size_bytes, &base) == ZE_RESULT_SUCCESS) {
      code = ZE_RESULT_SUCCESS;
    }
  }
  if (code != ZE_RESULT_SUCCESS) return error_of(call::reserve, code);
  const auto at = reinterpret_cast<std::uintptr_t>(base);
  if (at == 0 || at + size_bytes < at) return no_value(call::reserve);
  return address_range{{at}, size_bytes};
}

status level_zero_state::free_native(call where, address_range given) {
  check(!given.empty(), "a reservation of the driver is an empty range");
  const ze_result_t code = ze.free(context, pointer(given.base.value), given.size_bytes);
  if (code != ZE_RESULT_SUCCESS) return error_of(where, code);
  return {};
}

// The driver takes no alignment. Its own choice is tried first; else the range is cut from a larger
// one. If the driver refuses to release it, the object is unusable. A hint that cannot be the
// result is not passed to the driver: drivers accept only page-aligned ones.
result<address_range> level_zero_state::reserve_aligned(const reserve_request& request,
                                                        std::uint64_t alignment_bytes) {
  check(alignment_bytes % large_page_bytes == 0, "an alignment is one of large pages at least");
  const bool may_be_met = request.hint.value % alignment_bytes == 0;
  result<address_range> given =
      reserve_native(request.size_bytes, may_be_met ? request.hint : address{});
  if (!given) return given.error();
  if (given->base.value % alignment_bytes != 0) {
    if (status back = free_native(call::reserve, *given); !back) return lost(back.error());
    const std::uint64_t enough = request.size_bytes + alignment_bytes;
    given = reserve_native(round_up(enough, large_page_bytes), {});
    if (!given) return given.error();
  }
  const address base{round_up(given->base.value, alignment_bytes)};
  const address_range range{base, request.size_bytes};
  check(given->contains(range), "a range lies in what was reserved for it");
  const status added = [&] {
    const guard lock(memory_lock);
    return records.add_reservation(range, *given);
  }();
  if (added) return range;
  // Addresses that are another reservation's stay that one's.
  if (added.error().code == errc::internal) return added.error();
  if (status back = free_native(call::reserve, *given); !back) return lost(back.error());
  return added.error();
}

// Gives the device all rights to a mapping, or none: the driver's map or unmap. Some drivers map,
// fail to make the memory resident, and leave the mapping: it is taken away again.
ze_result_t level_zero_state::switch_native(std::uint64_t at, const mapping& which, bool on) {
  check(which.native != 0 && which.size_bytes != 0, "a mapping has memory behind it");
  if (!on) return ze.unmap(context, pointer(at), which.size_bytes);
  const auto memory = reinterpret_cast<ze_physical_mem_handle_t>(which.native);
  const ze_result_t code = ze.map(context, pointer(at), which.size_bytes, memory, 0,
                                  ZE_MEMORY_ACCESS_ATTRIBUTE_READWRITE);
  if (code != ZE_RESULT_SUCCESS) {
    static_cast<void>(ze.unmap(context, pointer(at), which.size_bytes));
  }
  return code;
}

// All or nothing, on a chain in transit. One driver call for each mapping: drivers skip what a
// longer range covers.
status level_zero_state::switch_run(call where, mapping& first, bool on) {
  check(first.is_in_transit, "the switched access is the caller's");
  const access wanted = on ? access::read_write : access::none;
  for (mapping* each = &first; each != nullptr; each = each->next) {
    if (each->rights == wanted) continue;
    const ze_result_t code = switch_native(each->at, *each, on);
    each->is_switched = code == ZE_RESULT_SUCCESS;
    if (each->is_switched) continue;
    error failure = error_of(where, code);
    for (mapping* back = &first; back != each; back = back->next) {
      if (!back->is_switched) continue;
      back->is_switched = switch_native(back->at, *back, !on) != ZE_RESULT_SUCCESS;
      if (back->is_switched) failure = lost(failure);
    }
    return failure;
  }
  return {};
}

// Makes the driver's calls for a range of whole mappings, which are in transit meanwhile: only
// calls that change or use one of them wait. `lock` is memory_lock's, and held on return.
result<accounts::run> level_zero_state::switch_range(unlockable& lock, call where,
                                                     address_range range, bool on) {
  check(lock.owns_lock(), "accounts are read under their lock");
  auto run = records.whole_mappings(where, range);
  while (run && accounts::is_in_transit(*run)) {
    arrived.wait(lock);
    run = records.whole_mappings(where, range);
  }
  if (!run) return run;
  mapping& first = accounts::depart(*run);
  lock.unlock();
  const status switched = switch_run(where, first, on);
  lock.lock();
  accounts::arrive(*run, on ? access::read_write : access::none);
  arrived.notify_all();
  if (!switched) return switched.error();
  return run;
}

status level_zero_state::check_usable(call where, address_range range) {
  check(context != nullptr, "bytes are requested before there is a context");
  unlockable lock(memory_lock);
  arrived.wait(lock, [&] { return !records.touches_transit(range); });
  return records.check_usable(where, range);
}

// ---- streams and events ------------------------------------------------------------------------

result<ze_command_list_handle_t> level_zero_state::make_list(bool is_synchronous) {
  ze_command_queue_desc_t like{};
  like.stype = ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC;
  like.ordinal = queue_ordinal;
  like.mode =
      is_synchronous ? ZE_COMMAND_QUEUE_MODE_SYNCHRONOUS : ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS;
  check(context != nullptr, "the driver is called before there is a context");
  ze_command_list_handle_t made = nullptr;
  const ze_result_t code = ze.list_create(context, device, &like, &made);
  if (code != ZE_RESULT_SUCCESS) return error_of(call::create_stream, code);
  if (made == nullptr) return no_value(call::create_stream);
  return made;
}

result<stream_state*> level_zero_state::find_stream(call where, stream_handle stream) {
  const auto found = streams.find(static_cast<std::uint64_t>(stream));
  if (found == streams.end()) return no_such_stream(where);
  check(found->second.list != nullptr, "a live stream has a list");
  return &found->second;
}

result<std::map<std::uint64_t, point*>::iterator> level_zero_state::find_event(call where,
                                                                               event_handle event) {
  const auto found = events.find(static_cast<std::uint64_t>(event));
  if (found == events.end()) {
    return error{errc::invalid_argument, where, 0, "", "no live event of this driver object"};
  }
  check(found->second == nullptr || found->second->references != 0, "an event holds its point");
  return found;
}

result<stream_turn> level_zero_state::take_turn(call where, stream_handle stream) {
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

status level_zero_state::look_for_event(call where, event_handle event) {
  const guard lock(work_lock);
  const auto found = find_event(where, event);
  return found ? status{} : status{found.error()};
}

// A point behind everything in the stream, with one reference.
result<point*> level_zero_state::append_point(unlockable& lock, call where, stream_state& stream) {
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
status level_zero_state::mark_waits(unlockable& lock, call where, stream_state& stream) {
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
status level_zero_state::queue_wait(unlockable& lock, stream_state& waiting, point& what) {
  check(what.references > 1, "state I3: a stream waits for a point that it does not hold");
  try {
    drop_passed_waits(waiting);
    if (waiting.waits.size() >= waits_between_markers) {
      if (const status marked = mark_waits(lock, call::wait_event, waiting); !marked) return marked;
    }
    waiting.waits.reserve(waits_between_markers);
  } catch (const std::bad_alloc&) {
    return no_work_memory(call::wait_event);
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

void level_zero_state::drop_passed_waits(stream_state& stream) noexcept {
  while (!stream.marked.empty()) {
    queued_waits& first = stream.marked.front();
    if (first.marker == nullptr) return;  // it is being queued
    if (ze.event_query(first.marker->native) != ZE_RESULT_SUCCESS) return;
    for (point* const each : first.points) points.forget(each);
    points.forget(first.marker);
    stream.marked.pop_front();
  }
}

void level_zero_state::end_left_streams() noexcept {
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
status level_zero_state::synchronize_left_streams() {
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
    return no_work_memory(call::synchronize_all);
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

}  // namespace vmm::level_zero

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.fake - capture into graphs: what a stream is given is kept instead of run.
//
// The rules are those that cuda.h writes down for capture and its error codes. A call that capture
// forbids spoils it: the capture is invalidated, and ending it gives an error instead of a graph.
// Which calls count as "potentially unsafe" no document lists; here they are those that change
// memory or report work to the host: a caller that keeps away from them keeps away from the real
// ones. A graph runs in the order in which it was captured, without the freedom that forks
// give.
module vmm.fake;

import vmm.backend;
import vmm.base;
import vmm.std;
import :machine;
import :state;

namespace vmm {

using fake::fake_state;
using fake::misuse_kind;
using fake::refusal;

namespace fake {

namespace {

struct capture_code {
  std::int64_t native;
  const char* name;
};
constexpr capture_code unsupported{900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"};
constexpr capture_code invalidated{901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"};
constexpr capture_code merge{902, "CUDA_ERROR_STREAM_CAPTURE_MERGE"};
constexpr capture_code unmatched{903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED"};
constexpr capture_code unjoined{904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED"};
constexpr capture_code isolation{905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION"};
constexpr capture_code implicit{906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"};
constexpr capture_code captured_event{907, "CUDA_ERROR_CAPTURED_EVENT"};
constexpr capture_code wrong_thread{908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD"};

constexpr const char* no_capture = "a stream is captured into nothing";

// As on the real driver, a thread has one for all that it calls.
thread_local capture_mode mode_of_this_thread = capture_mode::any_thread;

// A number that no other running thread has.
std::uint64_t this_thread() noexcept {
  thread_local const char mark = 0;
  return reinterpret_cast<std::uintptr_t>(&mark);
}

error forbidden(call where, const capture_code& code) noexcept {
  check(code.native != 0 && code.name != nullptr, "a refusal has no code");
  return error{errc::not_permitted, where, code.native, code.name,
               "a stream is being captured, and this call is not permitted meanwhile"};
}

bool is_unsafe(call where) noexcept {
  switch (where) {
    case call::query_event:
    case call::synchronize_event:
    case call::synchronize_stream:
    case call::write:
    case call::read: return true;
    default: return false;
  }
}

}  // namespace

void fake_state::note_pending() noexcept {
  fault_or_capture_pending.store(!captures.empty() || !faults.empty(), std::memory_order_relaxed);
}

void fake_state::spoil(std::uint64_t id) noexcept {
  check(id != 0 && id <= last_capture, "a capture is invalidated that never began");
  if (const auto found = captures.find(id); found != captures.end()) found->second.spoiled = true;
}

stream_record* fake_state::captured(stream_handle stream) noexcept {
  if (captures.empty()) return nullptr;
  stream_record* const record = streams.find(static_cast<std::uint64_t>(stream));
  check(record == nullptr || record->capture <= last_capture,
        "a stream is in a capture that never began");
  return record == nullptr || record->capture == 0 ? nullptr : record;
}

// Whether a call that may spoil a capture is made where it may.
std::optional<error> fake_state::capture_refuses(call where) noexcept {
  if (!is_unsafe(where)) return std::nullopt;
  check(!captures.empty(), "a call is refused for a capture, but no stream is captured");
  const std::uint64_t self = this_thread();
  const capture_mode mode = mode_of_this_thread;
  if (mode == capture_mode::relaxed) return std::nullopt;
  bool refused = false;
  for (auto& [id, each] : captures) {
    const bool own = each.owner == self && each.mode != capture_mode::relaxed;
    const bool of_others = each.owner != self && each.mode == capture_mode::any_thread &&
                           mode == capture_mode::any_thread;
    if (!own && !of_others) continue;
    each.spoiled = true;
    refused = true;
  }
  if (!refused) return std::nullopt;
  return forbidden(where, unsupported);
}

status fake_state::capture_work(call where, stream_record& into, work&& what) {
  const auto found = captures.find(into.capture);
  check(found != captures.end(), no_capture);
  capture_sequence& sequence = found->second;
  if (sequence.spoiled) return forbidden(where, invalidated);
  sequence.works.push_back(std::move(what));
  into.unjoined = true;
  return {};
}

status fake_state::capture_event(const stream_record& from, std::uint64_t stream,
                                 event_record& event) {
  check(stream != 0, "an event is captured on no stream");
  const auto found = captures.find(from.capture);
  check(found != captures.end(), no_capture);
  if (found->second.spoiled) return forbidden(call::record_event, invalidated);
  event.capture = from.capture;
  event.captured_from = stream;
  return {};
}

std::optional<error> fake_state::refuse_all_captures(call where) noexcept {
  if (captures.empty()) return std::nullopt;
  for (auto& [id, each] : captures) each.spoiled = true;
  return forbidden(where, unsupported);
}

error fake_state::refuse_captured_event(call where, const event_record& event) noexcept {
  check(event.capture != 0, "an event is refused that was not captured");
  spoil(event.capture);
  return forbidden(where, captured_event);
}

status fake_state::refuse_captured_stream(call where, const stream_record& stream) noexcept {
  check(stream.capture != 0, "a stream is refused that is not captured");
  spoil(stream.capture);
  return forbidden(where, unsupported);
}

// A wait that has to do with a capture: it joins streams to it, or is refused.
status fake_state::capture_wait(stream_handle stream, const event_record& event) {
  stream_record* const waits = captured(stream);
  check(event.capture != 0 || waits != nullptr, "a wait has nothing to do with a capture");
  if (event.capture == 0) {
    spoil(waits->capture);
    return forbidden(call::wait_event, isolation);
  }
  const auto found = captures.find(event.capture);
  if (found == captures.end()) return forbidden(call::wait_event, captured_event);
  if (found->second.spoiled) return forbidden(call::wait_event, invalidated);
  if (stream == stream_handle::default_stream) {
    spoil(event.capture);
    return forbidden(call::wait_event, implicit);
  }
  if (waits != nullptr && waits->capture != event.capture) {
    spoil(event.capture);
    spoil(waits->capture);
    return forbidden(call::wait_event, merge);
  }
  stream_record* const joins = streams.find(static_cast<std::uint64_t>(stream));
  check(joins != nullptr, "a stream joins an invalid capture");
  if (waits == nullptr) {
    joins->capture = event.capture;
    joins->unjoined = true;
  }
  if (stream_record* const from = streams.find(event.captured_from); from != nullptr)
    from->unjoined = false;
  return {};
}

}  // namespace fake

bool fake_driver::is_uncaptured(stream_handle) noexcept {
  check(state_ != nullptr, fake::moved_from);
  const fake_state& s = *state_;
  const bool is_quiet = !s.fault_or_capture_pending.load(std::memory_order_relaxed) &&
                        s.emulated.can.capture && !s.gone_streams_undefined;
  return is_quiet && s.machine->made_in.is_here();
}

result<capture_info> fake_driver::query_capture(stream_handle stream) {
  check(state_ != nullptr, fake::moved_from);
  if (is_uncaptured(stream)) [[likely]]
    return capture_info{};
  fake_state& s = *state_;
  return s.run<capture_info>(call::query_capture, [&]() -> result<capture_info> {
    if (!s.emulated.can.capture) {
      return s.refuse_as(call::query_capture, refusal::unsupported, "this driver has no graphs");
    }
    if (s.gone_streams_undefined && !s.queue_of(stream)) {
      constexpr const char* undefined = "undefined behaviour: the stream was destroyed";
      s.misused(misuse_kind::stale_handle, call::query_capture, {},
                static_cast<std::uint64_t>(stream), undefined);
      return s.refuse_as(call::query_capture, refusal::bad_object, undefined);
    }
    const fake::stream_record* const record = s.captured(stream);
    if (record == nullptr) return capture_info{};
    check(s.captures.contains(record->capture), fake::no_capture);
    if (s.captures.find(record->capture)->second.spoiled)
      return capture_info{capture_state::invalidated, 0};
    return capture_info{capture_state::active, record->capture};
  });
}

capture_mode fake_driver::exchange_capture_mode(capture_mode mode) {
  check(state_ != nullptr, fake::moved_from);
  return std::exchange(fake::mode_of_this_thread, mode);
}

status fake_driver::begin_capture(stream_handle stream, capture_mode mode) {
  check(state_ != nullptr, fake::moved_from);
  fake_state& s = *state_;
  return s.look<void>([&]() -> status {
    fake::stream_record* const record = s.streams.find(static_cast<std::uint64_t>(stream));
    if (!s.emulated.can.capture || record == nullptr)
      return fake::forbidden(call::none, fake::unsupported);
    if (record->capture != 0)
      return s.refuse_as(call::none, refusal::bad_state, "the stream is being captured already");
    const std::uint64_t id = s.last_capture + 1;
    s.captures.emplace(
        id, fake::capture_sequence{mode, fake::this_thread(), static_cast<std::uint64_t>(stream)});
    check(s.captures.contains(id) && id != 0, "a capture that has begun is not recorded");
    s.last_capture = id;
    record->capture = id;
    record->unjoined = false;
    s.note_pending();
    return {};
  });
}

result<fake::graph_handle> fake_driver::end_capture(stream_handle stream) {
  check(state_ != nullptr, fake::moved_from);
  fake_state& s = *state_;
  return s.look<fake::graph_handle>([&]() -> result<fake::graph_handle> {
    fake::stream_record* const record = s.captured(stream);
    if (record == nullptr) {
      return s.refuse_as(call::none, refusal::bad_state, "the stream is not being captured");
    }
    const std::uint64_t id = record->capture;
    const auto found = s.captures.find(id);
    check(found != s.captures.end(), "a stream is captured into nothing");
    if (found->second.origin != static_cast<std::uint64_t>(stream))
      return fake::forbidden(call::none, fake::unmatched);
    const bool own = found->second.owner == fake::this_thread();
    if (!own && found->second.mode != capture_mode::relaxed)
      return fake::forbidden(call::none, fake::wrong_thread);
    fake::capture_sequence sequence = std::move(found->second);
    s.captures.erase(found);
    s.note_pending();
    bool left_out = false;
    for (const std::uint64_t token : s.streams.tokens()) {
      fake::stream_record& each = *s.streams.find(token);
      if (each.capture != id) continue;
      left_out = left_out || (each.unjoined && token != sequence.origin);
      each.capture = 0;
      each.unjoined = false;
    }
    if (sequence.spoiled) return fake::forbidden(call::none, fake::invalidated);
    if (left_out) return fake::forbidden(call::none, fake::unjoined);
    check(s.captures.find(id) == s.captures.end(), "a capture that has ended is still recorded");
    const std::uint64_t made = s.graphs.add({std::move(sequence.works), ++s.machine->serials});
    return static_cast<fake::graph_handle>(made);
  });
}

status fake_driver::launch_graph(fake::graph_handle graph, stream_handle stream) {
  check(state_ != nullptr, fake::moved_from);
  fake_state& s = *state_;
  return s.look<void>([&]() -> status {
    const fake::graph_record* const record = s.graphs.find(static_cast<std::uint64_t>(graph));
    const auto which = s.queue_of(stream);
    if (record == nullptr || !which || s.captured(stream) != nullptr)
      return s.refuse_as(call::none, refusal::bad_object, "not a live graph, or no stream for it");
    check(*which < s.queues.size() && s.queues[*which].open, "a graph is launched in no queue");
    for (const fake::work& each : record->works) s.enqueue(*which, fake::work{each});
    s.charge_us(s.emulated.costs.submit_us);
    return {};
  });
}

status fake_driver::destroy_graph(fake::graph_handle graph) {
  check(state_ != nullptr, fake::moved_from);
  fake_state& s = *state_;
  return s.look<void>([&]() -> status {
    const auto token = static_cast<std::uint64_t>(graph);
    if (s.graphs.find(token) == nullptr)
      return s.refuse_as(call::none, refusal::bad_object, "not a live graph");
    s.graphs.remove(token);
    check(s.graphs.find(token) == nullptr, "a destroyed graph is still live");
    return {};
  });
}

}  // namespace vmm

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.fake - streams, events, kernels, and the manual schedule.
module vmm.fake;

import vmm.backend;
import vmm.base;
import vmm.std;
import :machine;
import :state;

namespace vmm {

using fake::event_record;
using fake::fake_state;
using fake::misuse_kind;
using fake::refusal;

namespace {

constexpr const char* no_stream = "not a live stream: it was destroyed before, or never made";
constexpr const char* no_event = "not a live event: it was destroyed before, or never made";
constexpr const char* no_queues = "this driver has no streams: work is done when a call returns";

error stale(fake_state& s, call where, std::uint64_t token, const char* detail) {
  s.misused(misuse_kind::stale_handle, where, {}, token, detail);
  return s.refuse_as(where, refusal::bad_object, detail);
}

event_record* find(fake_state& s, event_handle event) {
  return s.events.find(static_cast<std::uint64_t>(event));
}

}  // namespace

result<stream_handle> fake_driver::create_stream() {
  check(state_ != nullptr, fake::moved_from);
  fake_state& s = *state_;
  return s.run<stream_handle>(call::create_stream, [&]() -> result<stream_handle> {
    if (!s.emulated.can.streams) {
      return s.refuse_as(call::create_stream, refusal::unsupported, no_queues);
    }
    const std::uint64_t token = s.streams.add({0, s.machine->serials + 1});
    try {
      s.streams.find(token)->queue = s.open_queue();
    } catch (...) {
      s.streams.remove(token);
      throw;
    }
    ++s.machine->serials;
    ++s.counts.streams;
    check(s.counts.streams == s.streams.live(), "the count of streams is wrong");
    s.charge_us(s.emulated.costs.create_stream_us);
    return static_cast<stream_handle>(token);
  });
}

status fake_driver::destroy_stream(stream_handle stream) {
  check(state_ != nullptr, fake::moved_from);
  fake_state& s = *state_;
  return s.run<void>(call::destroy_stream, [&]() -> status {
    const auto token = static_cast<std::uint64_t>(stream);
    const fake::stream_record* record = s.streams.find(token);
    if (record == nullptr) return stale(s, call::destroy_stream, token, no_stream);
    const std::uint32_t which = record->queue;
    if (record->capture != 0) s.spoil(record->capture);
    s.streams.remove(token, s.emulated.traps.stream_numbers_again);
    check(s.queues[which].open && s.counts.streams != 0, "a stream's queue is closed already");
    s.queues[which].open = false;  // its work runs on
    s.close_queue_if_dry(which);
    --s.counts.streams;
    check(s.counts.streams == s.streams.live(), "the count of streams is wrong");
    s.charge_us(s.emulated.costs.destroy_stream_us);
    return {};
  });
}

status fake_driver::synchronize_stream(stream_handle stream) {
  check(state_ != nullptr, fake::moved_from);
  fake_state& s = *state_;
  return s.run<void>(call::synchronize_stream, [&]() -> status {
    const auto which = s.queue_of(stream);
    if (!which) {
      return stale(s, call::synchronize_stream, static_cast<std::uint64_t>(stream), no_stream);
    }
    if (const fake::stream_record* const captured = s.captured(stream))
      return s.refuse_captured_stream(call::synchronize_stream, *captured);
    s.charge_us(s.emulated.costs.query_event_us);
    s.wait_for({*which, s.queues[*which].tail_seq});
    check(s.queues[*which].works.empty(), "a stream has work after a wait for it");
    return {};
  });
}

result<event_handle> fake_driver::create_event() {
  check(state_ != nullptr, fake::moved_from);
  fake_state& s = *state_;
  return s.run<event_handle>(call::create_event, [&]() -> result<event_handle> {
    if (!s.emulated.can.streams) {
      return s.refuse_as(call::create_event, refusal::unsupported, no_queues);
    }
    const std::uint64_t token = s.events.add({{}, {}, s.machine->serials + 1});
    ++s.machine->serials;
    ++s.counts.events;
    check(s.counts.events == s.events.live(), "the count of events is wrong");
    s.charge_us(s.emulated.costs.create_event_us);
    return static_cast<event_handle>(token);
  });
}

status fake_driver::destroy_event(event_handle event) {
  check(state_ != nullptr, fake::moved_from);
  fake_state& s = *state_;
  return s.run<void>(call::destroy_event, [&]() -> status {
    const auto token = static_cast<std::uint64_t>(event);
    if (s.events.find(token) == nullptr) return stale(s, call::destroy_event, token, no_event);
    check(s.counts.events != 0, "the count of events would fall below zero");
    s.events.remove(token);
    --s.counts.events;
    check(s.counts.events == s.events.live(), "the count of events is wrong");
    s.charge_us(s.emulated.costs.destroy_event_us);
    return {};
  });
}

status fake_driver::record_event(event_handle event, stream_handle stream) {
  check(state_ != nullptr, fake::moved_from);
  fake_state& s = *state_;
  return s.run<void>(call::record_event, [&]() -> status {
    event_record* record = find(s, event);
    if (record == nullptr) {
      return stale(s, call::record_event, static_cast<std::uint64_t>(event), no_event);
    }
    const auto which = s.queue_of(stream);
    if (!which) return stale(s, call::record_event, static_cast<std::uint64_t>(stream), no_stream);
    if (const fake::stream_record* const captured = s.captured(stream))
      return s.capture_event(*captured, static_cast<std::uint64_t>(stream), *record);
    record->capture = 0;
    record->after.reserve(s.queues[*which].after.size());
    record->after = s.queues[*which].after;
    record->at = {*which, s.queues[*which].tail_seq};
    record->is_of_all = false;
    s.charge_us(s.emulated.costs.record_event_us);
    return {};
  });
}

// Numbers that are not given again are identities.
std::uint64_t fake_driver::stream_identity(stream_handle stream) noexcept {
  check(state_ != nullptr, fake::moved_from);
  fake_state& s = *state_;
  const auto token = static_cast<std::uint64_t>(stream);
  if (!s.emulated.can.stream_identity || !s.machine->made_in.is_here()) return 0;
  const bool is_unique = !s.emulated.traps.stream_numbers_again;
  if (is_unique && is_uncaptured(stream)) return token;
  const std::lock_guard<std::mutex> locked(s.machine->mutex);
  const bool query_fails = std::any_of(s.faults.begin(), s.faults.end(), [](const auto& each) {
    return each.plan.where == call::query_capture;
  });
  const fake::stream_record* const found = s.streams.find(token);
  if (query_fails || found == nullptr || found->capture != 0) return 0;
  return is_unique ? token : found->serial;
}

status fake_driver::record_all(event_handle event) {
  check(state_ != nullptr, fake::moved_from);
  fake_state& s = *state_;
  return s.run<void>(call::record_all, [&]() -> status {
    if (!s.emulated.can.record_all)
      return s.refuse_as(call::record_all, refusal::unsupported,
                         "this driver has no event for all work");
    event_record* record = find(s, event);
    if (record == nullptr)
      return stale(s, call::record_all, static_cast<std::uint64_t>(event), no_event);
    if (const auto refused = s.refuse_all_captures(call::record_all)) return *refused;
    record->after.resize(s.queues.size());
    for (std::size_t i = 0; i < s.queues.size(); ++i) record->after[i] = s.queues[i].tail_seq;
    record->at = {0, s.queues.front().tail_seq};
    record->capture = 0;
    record->is_of_all = true;
    s.charge_us(s.emulated.costs.record_event_us);
    return {};
  });
}

result<bool> fake_driver::query_event(event_handle event) {
  check(state_ != nullptr, fake::moved_from);
  fake_state& s = *state_;
  return s.run<bool>(call::query_event, [&]() -> result<bool> {
    const event_record* record = find(s, event);
    if (record == nullptr) {
      return stale(s, call::query_event, static_cast<std::uint64_t>(event), no_event);
    }
    if (record->capture != 0) return s.refuse_captured_event(call::query_event, *record);
    s.charge_us(s.emulated.costs.query_event_us);
    return s.reached(*record);
  });
}

status fake_driver::wait_event(stream_handle stream, event_handle event) {
  check(state_ != nullptr, fake::moved_from);
  fake_state& s = *state_;
  return s.run<void>(call::wait_event, [&]() -> status {
    const event_record* record = find(s, event);
    if (record == nullptr) {
      return stale(s, call::wait_event, static_cast<std::uint64_t>(event), no_event);
    }
    const auto which = s.queue_of(stream);
    if (!which) return stale(s, call::wait_event, static_cast<std::uint64_t>(stream), no_stream);
    if (record->capture != 0 || s.captured(stream) != nullptr)
      return s.capture_wait(stream, *record);
    std::vector<std::uint64_t>& after = s.queues[*which].after;
    after.resize(s.queues.size(), 0);
    if (fake::work wait = s.wait_behind(*record, *which); wait.waits_for.seq != 0)
      s.enqueue(*which, std::move(wait));
    for (std::size_t i = 0; i < record->after.size(); ++i) {
      after[i] = std::max(after[i], record->after[i]);
    }
    check(record->at.queue < after.size(), "an event names a missing queue");
    after[record->at.queue] = std::max(after[record->at.queue], record->at.seq);
    s.charge_us(s.emulated.costs.wait_event_us);
    return {};
  });
}

status fake_driver::synchronize_event(event_handle event) {
  check(state_ != nullptr, fake::moved_from);
  fake_state& s = *state_;
  return s.run<void>(call::synchronize_event, [&]() -> status {
    const event_record* record = find(s, event);
    if (record == nullptr) {
      return stale(s, call::synchronize_event, static_cast<std::uint64_t>(event), no_event);
    }
    if (record->capture != 0) return s.refuse_captured_event(call::synchronize_event, *record);
    s.charge_us(s.emulated.costs.query_event_us);
    s.wait_for(record->at);
    for (std::uint32_t i = 0; record->is_of_all && i < record->after.size(); ++i)
      s.wait_for({i, record->after[i]});
    check(s.reached(*record), "an event is not reached after a wait for it");
    return {};
  });
}

status fake_driver::synchronize_all() {
  check(state_ != nullptr, fake::moved_from);
  fake_state& s = *state_;
  return s.run<void>(call::synchronize_all, [&]() -> status {
    if (!s.emulated.can.streams)
      return s.refuse_as(call::synchronize_all, refusal::unsupported, no_queues);
    if (const auto refused = s.refuse_all_captures(call::synchronize_all)) return *refused;
    s.charge_us(s.emulated.costs.query_event_us);
    for (std::uint32_t i = 0; i < s.queues.size(); ++i) s.wait_for({i, s.queues[i].tail_seq});
    check(s.counts.pending_work == 0, "work is pending after a wait for all work");
    return {};
  });
}

// ---- kernels and the manual schedule ----

status fake_driver::launch(stream_handle stream, const fake::kernel& what) {
  check(state_ != nullptr, fake::moved_from);
  fake_state& s = *state_;
  return s.look<void>([&]() -> status {
    check(what.duration_us >= 0, "a kernel has a negative duration");
    const auto which = s.queue_of(stream);
    if (!which) return stale(s, call::none, static_cast<std::uint64_t>(stream), no_stream);
    fake::work queued{};
    queued.device = what.where.value_or(s.emulated.home);
    if (!s.known(queued.device))
      return s.refuse_as(call::none, refusal::bad_location,
                         "the device of a kernel does not exist");
    queued.name = what.name;
    queued.duration_ns = static_cast<std::uint64_t>(what.duration_us * 1000.0 + 0.5);
    queued.reads.assign(what.reads.begin(), what.reads.end());
    queued.writes.assign(what.writes.begin(), what.writes.end());
    queued.has_tag = what.tag.has_value();
    queued.tag = what.tag.value_or(0);
    queued.has_expected = what.expected.has_value();
    queued.expected = what.expected.value_or(0);
    if (fake::stream_record* const captured = s.captured(stream))
      return s.capture_work(call::none, *captured, std::move(queued));
    s.enqueue(*which, std::move(queued));
    s.charge_us(s.emulated.costs.submit_us);
    return {};
  });
}

void fake_driver::set_manual(bool manual) {
  check(state_ != nullptr, fake::moved_from);
  const std::lock_guard<std::mutex> locked(state_->machine->mutex);
  check(state_->counts.pending_work == 0, "the schedule changes while no work is pending");
  state_->moments.clear();
  state_->manual = manual;
}

std::size_t fake_driver::ready_count() const {
  check(state_ != nullptr, fake::moved_from);
  const std::lock_guard<std::mutex> locked(state_->machine->mutex);
  std::size_t count = 0;
  for (const fake::work_queue& each : state_->queues) count += state_->head_ready(each) ? 1U : 0U;
  return count;
}

status fake_driver::finish_ready(std::size_t index) {
  check(state_ != nullptr, fake::moved_from);
  fake_state& s = *state_;
  return s.look<void>([&]() -> status {
    check(s.manual, "work finishes by hand in the manual schedule only");
    std::size_t seen = 0;
    for (std::uint32_t i = 0; i < s.queues.size(); ++i) {
      if (!s.head_ready(s.queues[i]) || seen++ != index) continue;
      s.finish_by_hand(i);
      return {};
    }
    return refuse(errc::invalid_argument, "fewer streams than requested have work that can finish");
  });
}

result<bool> fake_driver::finish_next(stream_handle stream) {
  check(state_ != nullptr, fake::moved_from);
  fake_state& s = *state_;
  return s.look<bool>([&]() -> result<bool> {
    check(s.manual, "work finishes by hand in the manual schedule only");
    const auto which = s.queue_of(stream);
    if (!which) return stale(s, call::none, static_cast<std::uint64_t>(stream), no_stream);
    if (!s.head_ready(s.queues[*which])) return false;
    s.finish_by_hand(*which);
    return true;
  });
}

status fake_driver::finish_all() {
  check(state_ != nullptr, fake::moved_from);
  fake_state& s = *state_;
  return s.look<void>([&]() -> status {
    for (std::uint32_t i = 0; i < s.queues.size(); ++i) s.wait_for({i, s.queues[i].tail_seq});
    check(s.counts.pending_work == 0, "work is pending after all was finished");
    return {};
  });
}

}  // namespace vmm

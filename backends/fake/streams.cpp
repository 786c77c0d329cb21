// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.fake - streams, events, kernels, and the manual schedule.
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

module vmm.fake;

import vmm.backend;
import :state;

namespace vmm {

using fake::driver_state;
using fake::event_record;
using fake::misuse_kind;
using fake::refusal;

namespace {

constexpr const char* no_stream = "not a live stream: it was destroyed before, or never made";
constexpr const char* no_event = "not a live event: it was destroyed before, or never made";
constexpr const char* no_queues = "this driver has no streams: work is done when a call returns";

error stale(driver_state& s, call where, std::uint64_t token, const char* detail) {
  s.misused(misuse_kind::stale_handle, where, {}, token, detail);
  return s.refuse_as(where, refusal::bad_object, detail);
}

event_record* find(driver_state& s, event_handle event) {
  return s.events.find(static_cast<std::uint64_t>(event));
}

}  // namespace

result<stream_handle> fake_driver::create_stream() {
  driver_state& s = *state_;
  return s.run<stream_handle>(call::create_stream, [&]() -> result<stream_handle> {
    if (!s.plays.can.streams) {
      return s.refuse_as(call::create_stream, refusal::unsupported, no_queues);
    }
    const std::uint64_t token = s.streams.add({0, s.world->serials + 1});
    try {
      s.streams.find(token)->lane = s.open_lane();
    } catch (...) {
      s.streams.remove(token);
      throw;
    }
    ++s.world->serials;
    ++s.counts.streams;
    s.charge_us(s.plays.costs.create_stream_us);
    return static_cast<stream_handle>(token);
  });
}

status fake_driver::destroy_stream(stream_handle stream) {
  driver_state& s = *state_;
  return s.run<void>(call::destroy_stream, [&]() -> status {
    const auto token = static_cast<std::uint64_t>(stream);
    const fake::stream_record* record = s.streams.find(token);
    if (record == nullptr) return stale(s, call::destroy_stream, token, no_stream);
    const std::uint32_t which = record->lane;
    if (record->capture != 0) s.spoil(record->capture);
    s.streams.remove(token, s.plays.traps.stream_numbers_again);
    s.lanes[which].open = false;  // its work runs on
    s.close_lane_if_dry(which);
    --s.counts.streams;
    s.charge_us(s.plays.costs.destroy_stream_us);
    return {};
  });
}

status fake_driver::synchronize_stream(stream_handle stream) {
  driver_state& s = *state_;
  return s.run<void>(call::synchronize_stream, [&]() -> status {
    const auto which = s.lane_of(stream);
    if (!which) {
      return stale(s, call::synchronize_stream, static_cast<std::uint64_t>(stream), no_stream);
    }
    if (const fake::stream_record* const captured = s.captured(stream))
      return s.refuse_captured_stream(call::synchronize_stream, *captured);
    s.charge_us(s.plays.costs.query_event_us);
    s.wait_for({*which, s.lanes[*which].tail_seq});
    return {};
  });
}

result<event_handle> fake_driver::create_event() {
  driver_state& s = *state_;
  return s.run<event_handle>(call::create_event, [&]() -> result<event_handle> {
    if (!s.plays.can.streams) {
      return s.refuse_as(call::create_event, refusal::unsupported, no_queues);
    }
    const std::uint64_t token = s.events.add({{}, {}, s.world->serials + 1});
    ++s.world->serials;
    ++s.counts.events;
    s.charge_us(s.plays.costs.create_event_us);
    return static_cast<event_handle>(token);
  });
}

status fake_driver::destroy_event(event_handle event) {
  driver_state& s = *state_;
  return s.run<void>(call::destroy_event, [&]() -> status {
    const auto token = static_cast<std::uint64_t>(event);
    if (s.events.find(token) == nullptr) return stale(s, call::destroy_event, token, no_event);
    s.events.remove(token);
    --s.counts.events;
    s.charge_us(s.plays.costs.destroy_event_us);
    return {};
  });
}

status fake_driver::record_event(event_handle event, stream_handle stream) {
  driver_state& s = *state_;
  return s.run<void>(call::record_event, [&]() -> status {
    event_record* record = find(s, event);
    if (record == nullptr) {
      return stale(s, call::record_event, static_cast<std::uint64_t>(event), no_event);
    }
    const auto which = s.lane_of(stream);
    if (!which) return stale(s, call::record_event, static_cast<std::uint64_t>(stream), no_stream);
    if (const fake::stream_record* const captured = s.captured(stream))
      return s.capture_event(*captured, static_cast<std::uint64_t>(stream), *record);
    record->capture = 0;
    record->after.reserve(s.lanes[*which].after.size());
    record->after = s.lanes[*which].after;
    record->at = {*which, s.lanes[*which].tail_seq};
    s.charge_us(s.plays.costs.record_event_us);
    return {};
  });
}

result<bool> fake_driver::query_event(event_handle event) {
  driver_state& s = *state_;
  return s.run<bool>(call::query_event, [&]() -> result<bool> {
    const event_record* record = find(s, event);
    if (record == nullptr) {
      return stale(s, call::query_event, static_cast<std::uint64_t>(event), no_event);
    }
    if (record->capture != 0) return s.refuse_captured_event(call::query_event, *record);
    s.charge_us(s.plays.costs.query_event_us);
    return s.reached(record->at);
  });
}

status fake_driver::wait_event(stream_handle stream, event_handle event) {
  driver_state& s = *state_;
  return s.run<void>(call::wait_event, [&]() -> status {
    const event_record* record = find(s, event);
    if (record == nullptr) {
      return stale(s, call::wait_event, static_cast<std::uint64_t>(event), no_event);
    }
    const auto which = s.lane_of(stream);
    if (!which) return stale(s, call::wait_event, static_cast<std::uint64_t>(stream), no_stream);
    if (record->capture != 0 || s.captured(stream) != nullptr)
      return s.capture_wait(stream, *record);
    std::vector<std::uint64_t>& after = s.lanes[*which].after;
    after.resize(s.lanes.size(), 0);
    if (record->at.lane != *which && !s.reached(record->at)) {
      fake::work wait{};
      wait.what = fake::work::kind::wait;
      wait.waits_for = record->at;
      s.enqueue(*which, std::move(wait));
    }
    for (std::size_t i = 0; i < record->after.size(); ++i) {
      after[i] = std::max(after[i], record->after[i]);
    }
    after[record->at.lane] = std::max(after[record->at.lane], record->at.seq);
    s.charge_us(s.plays.costs.wait_event_us);
    return {};
  });
}

status fake_driver::synchronize_event(event_handle event) {
  driver_state& s = *state_;
  return s.run<void>(call::synchronize_event, [&]() -> status {
    const event_record* record = find(s, event);
    if (record == nullptr) {
      return stale(s, call::synchronize_event, static_cast<std::uint64_t>(event), no_event);
    }
    if (record->capture != 0) return s.refuse_captured_event(call::synchronize_event, *record);
    s.charge_us(s.plays.costs.query_event_us);
    s.wait_for(record->at);
    return {};
  });
}

// ---- kernels and the manual schedule ----

status fake_driver::launch(stream_handle stream, const fake::kernel& what) {
  driver_state& s = *state_;
  return s.look<void>([&]() -> status {
    check(what.duration_us >= 0, "a kernel takes no negative time");
    const auto which = s.lane_of(stream);
    if (!which) return stale(s, call::none, static_cast<std::uint64_t>(stream), no_stream);
    fake::work queued{};
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
    s.charge_us(s.plays.costs.submit_us);
    return {};
  });
}

void fake_driver::set_manual(bool manual) {
  const std::lock_guard<std::mutex> hold(state_->world->mutex);
  check(state_->counts.pending_work == 0, "the schedule changes while no work is pending");
  state_->moments.clear();
  state_->manual = manual;
}

std::size_t fake_driver::ready_count() const {
  const std::lock_guard<std::mutex> hold(state_->world->mutex);
  std::size_t count = 0;
  for (const fake::lane& each : state_->lanes) count += state_->front_ready(each) ? 1U : 0U;
  return count;
}

status fake_driver::finish_ready(std::size_t index) {
  driver_state& s = *state_;
  return s.look<void>([&]() -> status {
    check(s.manual, "work finishes by hand in the manual schedule only");
    std::size_t seen = 0;
    for (std::uint32_t i = 0; i < s.lanes.size(); ++i) {
      if (!s.front_ready(s.lanes[i]) || seen++ != index) continue;
      s.finish_by_hand(i);
      return {};
    }
    return refuse(errc::invalid_argument, "no so many streams have work that can finish");
  });
}

result<bool> fake_driver::finish_next(stream_handle stream) {
  driver_state& s = *state_;
  return s.look<bool>([&]() -> result<bool> {
    check(s.manual, "work finishes by hand in the manual schedule only");
    const auto which = s.lane_of(stream);
    if (!which) return stale(s, call::none, static_cast<std::uint64_t>(stream), no_stream);
    if (!s.front_ready(s.lanes[*which])) return false;
    s.finish_by_hand(*which);
    return true;
  });
}

status fake_driver::finish_all() {
  driver_state& s = *state_;
  return s.look<void>([&]() -> status {
    for (std::uint32_t i = 0; i < s.lanes.size(); ++i) s.wait_for({i, s.lanes[i].tail_seq});
    return {};
  });
}

}  // namespace vmm

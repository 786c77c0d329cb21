// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The host driver with streams: fills and copies wait in queues and are carried out when the test
// says so, in any order that queues and events allow. The memory is real, so that elements of any
// type can live in it while unfinished device work is on its way to it.
//
// Work on memory that is not mapped when it runs is a misuse, counted.
#pragma once

#include <deque>
#include "../../tools/program/standard.hpp"

import vmm.backend;
import vmm.host;

namespace contents {

class queued_host : vmm::host_driver {
 public:
  queued_host(const vmm::host_options& options, vmm::alias_level alias)
      : host_driver(open(options).value()), can_(host_driver::feature_set()) {
    can_.streams = true;
    can_.alias = alias;
    queues_.emplace_back();
  }

  // backend
  [[nodiscard]] std::string_view name() const noexcept { return "queued host"; }
  [[nodiscard]] const vmm::features& feature_set() const noexcept { return can_; }
  using host_driver::home, host_driver::query_granularity, host_driver::query_memory,
      host_driver::reserve, host_driver::free_reservation, host_driver::create,
      host_driver::release, host_driver::map, host_driver::unmap, host_driver::set_access,
      host_driver::get_access;

  // stream_backend
  [[nodiscard]] vmm::result<vmm::stream_handle> create_stream() {
    queues_.emplace_back();
    return static_cast<vmm::stream_handle>(queues_.size() - 1);
  }
  [[nodiscard]] vmm::status destroy_stream(vmm::stream_handle) { return {}; }
  [[nodiscard]] vmm::status synchronize_stream(vmm::stream_handle stream) {
    finish_until({index_of(stream), queues_[index_of(stream)].queued});
    return {};
  }
  [[nodiscard]] vmm::result<vmm::event_handle> create_event() {
    events_.emplace_back();
    return static_cast<vmm::event_handle>(events_.size());
  }
  [[nodiscard]] vmm::status destroy_event(vmm::event_handle) { return {}; }
  [[nodiscard]] vmm::status record_event(vmm::event_handle event, vmm::stream_handle stream) {
    point_of(event) = {index_of(stream), queues_[index_of(stream)].queued};
    return {};
  }
  [[nodiscard]] vmm::result<bool> query_event(vmm::event_handle event) {
    return reached(point_of(event));
  }
  [[nodiscard]] vmm::status wait_event(vmm::stream_handle stream, vmm::event_handle event) {
    work waiting;
    waiting.after = point_of(event);
    return queue(stream, waiting);
  }
  [[nodiscard]] vmm::status synchronize_event(vmm::event_handle event) {
    finish_until(point_of(event));
    return {};
  }

  // copy_backend
  [[nodiscard]] vmm::status copy(const vmm::copy_request& request) {
    work copying;
    copying.copies = request;
    return queue(request.stream, copying);
  }
  [[nodiscard]] vmm::status fill(const vmm::fill_request& request) {
    work filling;
    filling.fills = request;
    return queue(request.stream, filling);
  }
  using host_driver::write, host_driver::read;

  // the test's
  [[nodiscard]] std::size_t ready_count() const {
    std::size_t count = 0;
    for (const work_queue& each : queues_) count += is_ready(each) ? 1 : 0;
    return count;
  }
  [[nodiscard]] vmm::status finish_ready(std::size_t index) {
    for (std::size_t i = 0; i < queues_.size(); ++i) {
      if (!is_ready(queues_[i]) || index-- > 0) continue;
      finish_head(i);
      return {};
    }
    return vmm::refuse(vmm::errc::invalid_argument, "not so many queues are ready");
  }
  [[nodiscard]] vmm::status finish_all() {
    while (ready_count() > 0)
      if (vmm::status done = finish_ready(0); !done) return done;
    return {};
  }
  [[nodiscard]] std::uint64_t misuse_count() const noexcept { return misuse_count_; }
  [[nodiscard]] bool is_empty() const noexcept { return resource_counts().empty(); }

 private:
  struct point {
    std::size_t queue = 0;
    std::uint64_t seq = 0;
  };
  struct work {
    std::optional<vmm::copy_request> copies{};
    std::optional<vmm::fill_request> fills{};
    point after{};
  };
  struct work_queue {
    std::deque<work> waiting;
    std::uint64_t queued = 0;
    std::uint64_t finished = 0;
  };

  [[nodiscard]] static std::size_t index_of(vmm::stream_handle stream) {
    return static_cast<std::size_t>(stream);
  }
  [[nodiscard]] point& point_of(vmm::event_handle event) {
    return events_[static_cast<std::size_t>(event) - 1];
  }
  [[nodiscard]] bool reached(point at) const { return queues_[at.queue].finished >= at.seq; }
  [[nodiscard]] bool is_ready(const work_queue& each) const {
    return !each.waiting.empty() && reached(each.waiting.front().after);
  }
  [[nodiscard]] vmm::status queue(vmm::stream_handle stream, const work& what) {
    queues_[index_of(stream)].waiting.push_back(what);
    ++queues_[index_of(stream)].queued;
    return {};
  }
  void finish_head(std::size_t index) {
    work_queue& in = queues_[index];
    const work done = in.waiting.front();
    in.waiting.pop_front();
    ++in.finished;
    vmm::status carried_out;
    if (done.copies) {
      vmm::copy_request request = *done.copies;
      request.stream = vmm::stream_handle::default_stream;
      carried_out = host_driver::copy(request);
    }
    if (done.fills) {
      vmm::fill_request request = *done.fills;
      request.stream = vmm::stream_handle::default_stream;
      carried_out = host_driver::fill(request);
    }
    if (!carried_out) ++misuse_count_;
  }
  // Only what the point needs: its queue up to it, and what waits in there name.
  void finish_until(point until) {
    std::vector<point> needed{until};
    while (!needed.empty()) {
      const point next = needed.back();
      if (reached(next)) {
        needed.pop_back();
        continue;
      }
      const point after = queues_[next.queue].waiting.front().after;
      if (reached(after)) {
        finish_head(next.queue);
      } else {
        needed.push_back(after);
      }
    }
  }

  vmm::features can_;
  std::vector<work_queue> queues_;
  std::vector<point> events_;
  std::uint64_t misuse_count_ = 0;
};

static_assert(vmm::stream_backend<queued_host>);
static_assert(vmm::copy_backend<queued_host>);

}  // namespace contents

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.recording - a program's requests, from the events of a device.
//
// A ring has lost its oldest events. The blocks live before the first remaining event are known all
// the same: an address that is freed before it is allocated, and an active block at the end that no
// event names.
module vmm.recording;

import vmm.base;
import vmm.std;

namespace vmm::tools {

namespace {

// More than any device has: an event above it is invalid.
constexpr std::uint64_t request_bytes_max = std::uint64_t{1} << 48;

[[nodiscard]] bool is_block_action(recorded_action action) noexcept {
  return action == recorded_action::alloc || action == recorded_action::free_requested ||
         action == recorded_action::free_completed;
}

[[nodiscard]] std::uint64_t counted_bytes(std::uint64_t size_bytes) noexcept {
  return std::max<std::uint64_t>(live_bytes_of(size_bytes), live_unit_bytes);
}

struct live_record {
  std::uint64_t size_bytes = 0;
  std::uint32_t slot = 0;
  std::uint16_t stream = 0;
  std::uint8_t pool = 0;
  bool is_pending = false;
};

/// Private pools that stood at the end, by address: before 2.12 events do not name theirs.
class pool_finder {
 public:
  pool_finder(const recording& from, std::uint64_t device) {
    for (const recorded_segment& each : from.segments) {
      if (each.device == device && each.pool != 0)
        pools_.emplace(each.base, std::pair{each.base + each.size_bytes, each.pool});
    }
  }
  [[nodiscard]] std::uint8_t find(const recorded_event& event) const {
    std::uint16_t found = event.pool;
    if (found == 0 && !pools_.empty()) {
      auto at = pools_.upper_bound(event.at);
      if (at != pools_.begin() && event.at < (--at)->second.first) found = at->second.second;
    }
    return static_cast<std::uint8_t>(std::min<std::uint16_t>(found, 255));
  }

 private:
  std::map<std::uint64_t, std::pair<std::uint64_t, std::uint16_t>> pools_{};
};

class request_maker {
 public:
  request_maker(const recording& from, std::uint64_t device)
      : from_(from), device_(device), events_(events_of(from, device)), pools_(from, device) {}

  [[nodiscard]] request_stream make() {
    find_live_before();
    if (!events_.empty()) now_us_ = events_.front().time_us;
    for (const auto& [at, event] : before_) {
      allocate(event, at);
      out_.before_addresses.push_back(at);
      ++out_.live_before_count;
      out_.live_before_bytes += counted_bytes(event.size_bytes);
    }
    before_.clear();
    for (std::size_t i = 0; i < events_.size(); ++i) add(i);
    out_.has_events = std::any_of(events_.begin(), events_.end(), [](const recorded_event& each) {
      return is_block_action(each.action);
    });
    return std::move(out_);
  }

 private:
  // ---- before the first event ----

  void find_live_before() {
    std::unordered_map<std::uint64_t, bool> live_by_address;
    for (const recorded_event& each : events_) {
      if (!is_block_action(each.action)) continue;
      const auto [found, is_first] = live_by_address.try_emplace(each.at, false);
      const bool is_alloc = each.action == recorded_action::alloc;
      if (is_first && !is_alloc && is_sound(each)) before_.emplace(each.at, each);
      found->second = is_alloc;
    }
    for (const recorded_segment& segment : from_.segments) {
      if (segment.device != device_) continue;
      for (std::uint32_t i = 0; i < segment.block_count; ++i)
        add_block(segment, from_.blocks[segment.first_block + i], live_by_address);
    }
  }
  void add_block(const recorded_segment& segment, const recorded_block& block,
                 const std::unordered_map<std::uint64_t, bool>& live_by_address) {
    if (block.state == block_state::free) return;
    const auto found = live_by_address.find(block.base);
    if (found != live_by_address.end()) {
      // A block that waits for other streams has been freed by its events already.
      if (!found->second && block.state == block_state::live) ++out_.unknown_live_count;
      return;
    }
    recorded_event made;
    made.at = block.base;
    made.size_bytes = block.asked_bytes != 0 ? block.asked_bytes : block.size_bytes;
    made.stream = segment.stream;
    made.pool = segment.pool;
    made.context = block.context;
    made.action = recorded_action::alloc;
    if (is_sound(made)) before_.emplace(made.at, made);
  }
  [[nodiscard]] static bool is_sound(const recorded_event& event) noexcept {
    return event.size_bytes <= request_bytes_max;
  }

  // ---- events ----

  void add(std::size_t index) {
    const recorded_event& each = events_[index];
    now_us_ = std::max<std::uint64_t>(now_us_, each.time_us);
    switch (each.action) {
      case recorded_action::alloc: return add_alloc(each);
      case recorded_action::free_requested: return add_free_requested(index);
      case recorded_action::free_completed: return add_free_completed(each);
      case recorded_action::iteration:
        return push({each.size_bytes, 0, 0, 0, request_kind::iteration}, 0);
      case recorded_action::segment_free:
      case recorded_action::segment_unmap: return add_release(index);
      default: return;
    }
  }
  void add_alloc(const recorded_event& each) {
    if (!is_sound(each) || live_bytes_ + each.size_bytes > 4 * request_bytes_max) {
      ++out_.left_out_count;
      return;
    }
    // Its free is not in the file.
    if (const auto found = live_.find(each.at); found != live_.end()) {
      ++out_.lost_free_count;
      end(found, found->second.is_pending ? request_kind::free_completed : request_kind::free);
    }
    allocate(each, each.at);
  }
  void allocate(const recorded_event& each, std::uint64_t at) {
    live_record made;
    made.size_bytes = each.size_bytes;
    made.stream = static_cast<std::uint16_t>(each.stream);
    made.pool = pools_.find(each);
    if (unused_slots_.empty()) {
      made.slot = static_cast<std::uint32_t>(out_.slot_count++);
    } else {
      made.slot = unused_slots_.back();
      unused_slots_.pop_back();
    }
    live_.emplace(at, made);
    ++out_.allocation_count;
    live_bytes_ += counted_bytes(made.size_bytes);
    if (live_bytes_ > out_.peak_live_bytes) {
      out_.peak_live_bytes = live_bytes_;
      out_.peak_index = out_.requests.size();
    }
    push({made.size_bytes, made.slot, made.stream, made.pool, request_kind::allocate},
         each.context);
  }
  void add_free_requested(std::size_t index) {
    const recorded_event& each = events_[index];
    const auto found = live_.find(each.at);
    if (found == live_.end() || found->second.is_pending) {
      ++out_.left_out_count;
      return;
    }
    const bool is_at_once = index + 1 < events_.size() &&
                            events_[index + 1].action == recorded_action::free_completed &&
                            events_[index + 1].at == each.at;
    if (is_at_once) return;  // the completion frees
    found->second.is_pending = true;
    out_.is_any_pending = true;
    const live_record& block = found->second;
    push({block.size_bytes, block.slot, block.stream, block.pool, request_kind::free_pending},
         each.context);
  }
  void add_free_completed(const recorded_event& each) {
    const auto found = live_.find(each.at);
    if (found == live_.end()) {
      ++out_.left_out_count;
      return;
    }
    end(found, found->second.is_pending ? request_kind::free_completed : request_kind::free);
  }
  using live_map = std::unordered_map<std::uint64_t, live_record>;
  void end(live_map::iterator found, request_kind kind) {
    const live_record block = found->second;
    live_.erase(found);
    unused_slots_.push_back(block.slot);
    live_bytes_ -= counted_bytes(block.size_bytes);
    push({block.size_bytes, block.slot, block.stream, block.pool, kind}, 0);
  }
  // Releases between a request that is refused and its retry are the allocator's own: they are
  // followed by a segment or by an oom, from the same place of the program. Others are
  // empty_cache(), which also precedes each capture.
  void add_release(std::size_t index) {
    if (is_in_release_) return;
    is_in_release_ = true;
    const std::uint32_t context = events_[index].context;
    const bool has_stack = from_.contexts[context].stack != 0;
    for (std::size_t i = index + 1; i < events_.size(); ++i) {
      const recorded_action next = events_[i].action;
      if (next == recorded_action::segment_free || next == recorded_action::segment_unmap ||
          next == recorded_action::free_completed || next == recorded_action::other)
        continue;
      const bool is_retry = next == recorded_action::segment_alloc ||
                            next == recorded_action::segment_map || next == recorded_action::oom;
      if (is_retry && (!has_stack || events_[i].context == context))
        return push({0, 0, 0, 0, request_kind::shortage}, 0);
      break;
    }
    push({0, 0, 0, 0, request_kind::empty_cache}, 0);
  }
  void push(const request& what, std::uint32_t context) {
    if (what.kind != request_kind::empty_cache && what.kind != request_kind::shortage)
      is_in_release_ = false;
    out_.requests.push_back(what);
    out_.contexts.push_back(context);
    out_.times_us.push_back(now_us_);
  }

  const recording& from_;
  const std::uint64_t device_;
  const std::span<const recorded_event> events_;
  const pool_finder pools_;
  request_stream out_{};
  std::map<std::uint64_t, recorded_event> before_{};
  live_map live_{};
  std::vector<std::uint32_t> unused_slots_{};
  std::uint64_t live_bytes_ = 0;
  std::uint64_t now_us_ = 0;
  bool is_in_release_ = false;
};

}  // namespace

std::uint64_t device_count(const recording& from) {
  std::uint64_t count = std::max<std::uint64_t>(from.traces.size(), 1);
  for (const recorded_segment& each : from.segments)
    count = std::max(count, std::min<std::uint64_t>(each.device, 4095) + 1);
  return count;
}

std::string problem_of_device(const recording& from, const std::optional<std::uint64_t>& device) {
  const std::uint64_t count = device_count(from);
  if (!device || *device < count) return "";
  return "has " + std::to_string(count) + (count == 1 ? " device" : " devices") +
         ", from 0 on; not " + std::to_string(*device);
}

std::span<const recorded_event> events_of(const recording& from, std::uint64_t device) {
  if (device >= from.traces.size()) return {};
  const recorded_range& range = from.traces[device];
  return std::span(from.events).subspan(range.first, range.count);
}

std::uint64_t busiest_device(const recording& from) {
  std::uint64_t device = 0;
  std::uint64_t most = 0;
  for (std::uint64_t i = 0; i < from.traces.size(); ++i) {
    const auto events = events_of(from, i);
    const auto count = static_cast<std::uint64_t>(
        std::count_if(events.begin(), events.end(),
                      [](const recorded_event& each) { return is_block_action(each.action); }));
    if (count > most) device = i;
    most = std::max(most, count);
  }
  if (most != 0) return device;
  std::map<std::uint64_t, std::uint64_t> bytes_by_device;
  for (const recorded_segment& each : from.segments) {
    const std::uint64_t bytes = bytes_by_device[each.device] += each.size_bytes;
    if (bytes > most) device = each.device;
    most = std::max(most, bytes);
  }
  return device;
}

request_stream requests_of(const recording& from, std::uint64_t device) {
  return request_maker(from, device).make();
}

}  // namespace vmm::tools

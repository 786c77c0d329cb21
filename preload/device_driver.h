// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm's CUDA driver with what a program expects of plain memory: other devices that were given
// access reach all of it, also what is mapped later, and network cards do where the device can.
// It imports what it uses, so it is the last include of a file.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <new>
#include <span>
#include <utility>
#include <vector>

import vmm.backend;
import vmm.cuda;
import vmm.support;

namespace vmm::preload::managed {

/// The addresses that pools reserved, of all devices. Read without a lock; entries stay.
class reserved_ranges {
 public:
  [[nodiscard]] bool contains(std::uint64_t at) const noexcept {
    const std::size_t count = count_.load(std::memory_order_acquire);
    for (std::size_t i = 0; i < count; ++i) {
      if (at - begins_[i].load(std::memory_order_relaxed) <
          sizes_[i].load(std::memory_order_relaxed)) {
        return true;
      }
    }
    return false;
  }
  [[nodiscard]] bool add(address_range range) noexcept {
    const std::lock_guard<std::mutex> turn(lock_);
    const std::size_t count = count_.load(std::memory_order_relaxed);
    std::size_t slot = 0;
    while (slot < count && sizes_[slot].load(std::memory_order_relaxed) != 0) ++slot;
    if (slot == begins_.size()) return false;
    begins_[slot].store(range.base.value, std::memory_order_relaxed);
    sizes_[slot].store(range.size_bytes, std::memory_order_relaxed);
    if (slot == count) count_.store(count + 1, std::memory_order_release);
    return true;
  }
  void remove(address_range range) noexcept {
    const std::lock_guard<std::mutex> turn(lock_);
    for (std::size_t i = 0; i < count_.load(std::memory_order_relaxed); ++i) {
      if (begins_[i].load(std::memory_order_relaxed) == range.base.value) {
        sizes_[i].store(0, std::memory_order_relaxed);
      }
    }
  }

 private:
  std::mutex lock_;
  std::array<std::atomic<std::uint64_t>, 256> begins_{};
  std::array<std::atomic<std::uint64_t>, 256> sizes_{};
  std::atomic<std::size_t> count_ = 0;
};

class device_driver : public cuda_driver {
 public:
  device_driver(cuda_driver&& opened, reserved_ranges& ranges) noexcept
      : cuda_driver(std::move(opened)), ranges_(ranges) {}

  [[nodiscard]] result<address_range> reserve(const reserve_request& request) {
    auto made = cuda_driver::reserve(request);
    if (made && !ranges_.add(*made)) {
      (void)cuda_driver::free_reservation(*made);
      return error{errc::out_of_addresses, call::reserve, 0, "", "too many reservations"};
    }
    return made;
  }
  [[nodiscard]] status free_reservation(address_range range) {
    const status outcome = cuda_driver::free_reservation(range);
    if (outcome) ranges_.remove(range);
    return outcome;
  }
  [[nodiscard]] result<physical_handle> create(const physical_request& request) {
    physical_request wider = request;
    wider.rdma_capable = feature_set().rdma;
    if (is_shareable_) wider.shareable = share_kind::posix_fd;
    return cuda_driver::create(wider);
  }
  [[nodiscard]] status map(const map_request& request) {
    const status outcome = cuda_driver::map(request);
    if (!outcome) return outcome;
    const std::lock_guard<std::mutex> turn(lock_);
    try {
      mappings_[request.at.value] = {request.size_bytes, request.memory};
    } catch (const std::bad_alloc&) {
      (void)cuda_driver::unmap({request.at, request.size_bytes});
      return error{errc::out_of_host_memory, call::map, 0, "", "no host memory for a mapping"};
    }
    return {};
  }
  [[nodiscard]] status unmap(address_range range) {
    const status outcome = cuda_driver::unmap(range);
    if (!outcome) return outcome;
    const std::lock_guard<std::mutex> turn(lock_);
    mappings_.erase(mappings_.lower_bound(range.base.value),
                    mappings_.lower_bound(range.end().value));
    return {};
  }
  [[nodiscard]] status set_access(address_range range, std::span<const access_grant> grants) {
    const std::lock_guard<std::mutex> turn(lock_);
    if (peers_.empty()) return cuda_driver::set_access(range, grants);
    try {
      std::vector<access_grant> all(grants.begin(), grants.end());
      all.insert(all.end(), peers_.begin(), peers_.end());
      return cuda_driver::set_access(range, all);
    } catch (const std::bad_alloc&) {
      return error{errc::out_of_host_memory, call::set_access, 0, "", "no host memory"};
    }
  }

  /// Memory that is made from now on can be exported as a descriptor, where the device can.
  void make_shareable(bool wanted) noexcept {
    is_shareable_ = wanted && feature_set().export_posix_fd;
  }

  struct mapping {
    std::uint64_t size_bytes = 0;
    physical_handle memory = physical_handle::none;
  };
  /// Calls `look` with each mapping behind a range that is mapped, in address order. How far behind
  /// the first one's begin the range begins.
  template <class Look>
  [[nodiscard]] std::uint64_t look_behind(address_range range, Look&& look) {
    const std::lock_guard<std::mutex> turn(lock_);
    auto each = mappings_.upper_bound(range.base.value);
    check(each != mappings_.begin(), "a block without memory");
    --each;
    const std::uint64_t offset_bytes = range.base.value - each->first;
    for (; each != mappings_.end() && each->first < range.end().value; ++each) look(each->second);
    return offset_bytes;
  }

  /// The context has ended, with its streams and events: no call names one of them any more, and
  /// all work has passed. Memory and mappings are still to be given back.
  void note_context_ended() noexcept { has_ended_ = true; }

  [[nodiscard]] status destroy_stream(stream_handle stream) {
    return has_ended_ ? status{} : cuda_driver::destroy_stream(stream);
  }
  [[nodiscard]] status synchronize_stream(stream_handle stream) {
    return has_ended_ ? status{} : cuda_driver::synchronize_stream(stream);
  }
  [[nodiscard]] result<event_handle> create_event() {
    if (has_ended_) return static_cast<event_handle>(1);
    return cuda_driver::create_event();
  }
  [[nodiscard]] status destroy_event(event_handle event) {
    return has_ended_ ? status{} : cuda_driver::destroy_event(event);
  }
  [[nodiscard]] status record_event(event_handle event, stream_handle stream) {
    return has_ended_ ? status{} : cuda_driver::record_event(event, stream);
  }
  [[nodiscard]] status record_all(event_handle event) {
    return has_ended_ ? status{} : cuda_driver::record_all(event);
  }
  [[nodiscard]] status synchronize_all() {
    return has_ended_ ? status{} : cuda_driver::synchronize_all();
  }
  [[nodiscard]] result<bool> query_event(event_handle event) {
    if (has_ended_) return true;
    return cuda_driver::query_event(event);
  }
  [[nodiscard]] status wait_event(stream_handle stream, event_handle event) {
    return has_ended_ ? status{} : cuda_driver::wait_event(stream, event);
  }
  [[nodiscard]] status synchronize_event(event_handle event) {
    return has_ended_ ? status{} : cuda_driver::synchronize_event(event);
  }
  [[nodiscard]] result<capture_info> query_capture(stream_handle stream) {
    if (has_ended_) return capture_info{};
    return cuda_driver::query_capture(stream);
  }

  /// Errors: driver errors; out_of_host_memory.
  [[nodiscard]] status add_peer(location who) noexcept {
    const std::lock_guard<std::mutex> turn(lock_);
    const access_grant grant{who, access::read_write};
    for (const access_grant& each : peers_) {
      if (each.who == who) return {};
    }
    try {
      peers_.push_back(grant);
    } catch (const std::bad_alloc&) {
      return error{errc::out_of_host_memory, call::set_access, 0, "", "no host memory"};
    }
    status outcome;
    for (const auto& [base, each] : mappings_) {
      const status granted = cuda_driver::set_access({{base}, each.size_bytes}, {&grant, 1});
      if (!granted) outcome = granted;
    }
    return outcome;
  }

 private:
  reserved_ranges& ranges_;
  std::mutex lock_;
  std::map<std::uint64_t, mapping> mappings_;
  bool is_shareable_ = false;
  std::atomic<bool> has_ended_ = false;
  std::vector<access_grant> peers_;
};

}  // namespace vmm::preload::managed

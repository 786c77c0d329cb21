// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm's CUDA driver for memory in place of the driver's own: it is registrable with network cards
// if the device supports it, exportable by VMM_IPC, and its reserved addresses are listed. After
// the end of its context no stream or event is passed to the driver.
//
// The memory that all allocators of the device hold, also while it is created, is at most the
// budget (VMM_BUDGET). The refusal is out_of_memory: the allocator then requests idle memory of the
// others.
//
// While no capture is in the list of captures the driver is not queried for one: the list names
// each from before it begins, and none begins while the caller shares the capture gate. A driver
// that is newer than the calls in entries.inc may begin one by another call: it is queried.
//
// Locks: those of the list of addresses and of the budget, over no other call. Thread safety: all
// of it.
//
// It imports what it uses, so it comes after every include of the standard library.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>

#include "captures.h"

import vmm.backend;
import vmm.base;
import vmm.cuda;

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
  device_driver(cuda_driver&& opened, reserved_ranges& ranges,
                const capture_list& captures) noexcept
      : cuda_driver(std::move(opened)),
        ranges_(ranges),
        captures_(captures),
        begins_are_listed_(version() <= newest_listed) {}

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
    if (budget_bytes_ == 0) return cuda_driver::create(wider);
    if (!take_from_budget(request.size_bytes))
      return error{errc::out_of_memory, call::create, 0, "", "VMM_BUDGET is spent"};
    result<physical_handle> made = cuda_driver::create(wider);
    const std::lock_guard<std::mutex> turn(budget_lock_);
    if (made && !sizes_.put(static_cast<std::uint64_t>(*made), request.size_bytes)) {
      (void)cuda_driver::release(*made);
      made = error{errc::out_of_host_memory, call::create, 0, "", "no host memory for a record"};
    }
    if (!made) footprint_bytes_ -= request.size_bytes;
    return made;
  }
  // The record is removed first: the driver may reuse the handle's number at once.
  [[nodiscard]] status release(physical_handle handle) {
    std::uint64_t size_bytes = 0;
    const auto number = static_cast<std::uint64_t>(handle);
    if (budget_bytes_ != 0) {
      const std::lock_guard<std::mutex> turn(budget_lock_);
      (void)sizes_.take(number, size_bytes);
    }
    const status outcome = cuda_driver::release(handle);
    if (size_bytes == 0) return outcome;
    const std::lock_guard<std::mutex> turn(budget_lock_);
    if (outcome || !sizes_.put(number, size_bytes)) footprint_bytes_ -= size_bytes;
    return outcome;
  }
  /// Sets the limit of the memory that the allocators of this device hold together, and the unit in
  /// which they create it; 0: no limit. Requires: no memory was created.
  void limit(std::uint64_t budget_bytes, std::uint64_t unit_bytes) noexcept {
    budget_bytes_ = budget_bytes;
    unit_bytes_ = unit_bytes;
  }
  /// Whether the budget has no room for memory of that size.
  [[nodiscard]] bool is_over_budget(std::uint64_t size_bytes) const noexcept {
    if (budget_bytes_ == 0) return false;
    const std::lock_guard<std::mutex> turn(budget_lock_);
    return budget_bytes_ - footprint_bytes_ < std::max(size_bytes, unit_bytes_);
  }
  /// Makes memory that is created later exportable as a descriptor, if the device can.
  void make_shareable(bool wanted) noexcept {
    is_shareable_ = wanted && feature_set().export_posix_fd;
  }

  /// The context has ended, with its streams and events: later calls pass none of them to the
  /// driver, and all work counts as finished. Memory and mappings are still released.
  void note_context_ended() noexcept { has_ended_ = true; }
  /// Whether it has ended, for other threads.
  [[nodiscard]] std::atomic<bool>& ending() noexcept { return has_ended_; }

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
  [[nodiscard]] bool is_uncaptured(stream_handle stream) noexcept {
    const bool is_none_listed = begins_are_listed_ && !captures_.is_any();
    return has_ended_ || is_none_listed || cuda_driver::is_uncaptured(stream);
  }

 private:
  static constexpr int newest_listed = 13'000;  // CUDA's version

  [[nodiscard]] int version() const noexcept {
    using version_query = result_code(int*);
    auto* const query = reinterpret_cast<version_query*>(entry_point("cuDriverGetVersion", 2'020));
    int found = 0;
    const bool is_known = query != nullptr && query(&found) == code::success;
    return is_known ? found : newest_listed + 1;
  }
  [[nodiscard]] bool take_from_budget(std::uint64_t size_bytes) noexcept {
    const std::lock_guard<std::mutex> turn(budget_lock_);
    if (budget_bytes_ - footprint_bytes_ < size_bytes) return false;
    footprint_bytes_ += size_bytes;
    return true;
  }

  reserved_ranges& ranges_;
  const capture_list& captures_;
  const bool begins_are_listed_;
  std::uint64_t budget_bytes_ = 0;
  std::uint64_t unit_bytes_ = 0;
  mutable std::mutex budget_lock_;
  std::uint64_t footprint_bytes_ = 0;  // at most budget_bytes_
  flat_table<std::uint64_t> sizes_;    // by handle
  bool is_shareable_ = false;
  std::atomic<bool> has_ended_ = false;
};

}  // namespace vmm::preload::managed

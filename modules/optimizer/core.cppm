// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.optimizer:core - the base of every allocator: time, physical memory, addresses, mappings.
//
// An allocator is a way of bookkeeping over one device_core. plan_core() queries the driver and
// determines the access to the memory; close_core() releases everything.
//
// I1  The backend's home and the memory's own device always have read and write access.
//
// close_core() repeats a step often enough for a fault that occurs once, and not longer.
//
// Thread safety: all of device_core's parts; plan_core() and close_core() by one thread.
// Cost: plan_core() makes one query for each size; close_core() one driver call for each object
// that it releases. Elsewhere: ranges that wait to be unmapped (:unmap_queue), blocks (:engine,
// vmm.stream).
export module vmm.optimizer:core;

import vmm.backend;
import vmm.base;
import vmm.physical;
import vmm.std;
import vmm.timeline;
import :memory_options;
import :remapper;
import :reservation;

namespace vmm {

/// The options of a core.
export struct core_options {
  physical_options physical{};
  reservation_options reservation{};
  grant_list grants{};
  bool streams_forgotten = false;  ///< memory_options::streams_forgotten
};

/// The options of a core, checked against the driver. Its owner sets the granularity of pieces and
/// extents in `options`.
export struct core_plan {
  core_options options{};
  granularity unit{};  ///< the coarsest of the sizes queried
};

/// Queries the granularity of `like`, at the options' placement, in each of `sizes_bytes`. The plan
/// has the placement, the budget, the reservations' size, and the access of I1. Some devices have a
/// finer granularity for small sizes. Requires: options that validate() accepts; at least one size.
/// Errors: those of query_granularity.
export [[nodiscard]] result<core_plan> plan_core(driver_interface& driver,
                                                 const memory_options& options,
                                                 const physical_request& like,
                                                 std::span<const std::uint64_t> sizes_bytes);

/// Checks with the driver that these locations can get access to memory at that place, so that a
/// grant is refused when it is requested, not by a later growth. Grants that take access away are
/// not checked. Errors: not_supported (without features::peers, if a device does not reach the
/// memory, or for the host and a device's memory), those of query_peer. Cost: one query for each
/// grant.
export [[nodiscard]] status check_reach(driver_interface& driver, location memory_at,
                                        std::span<const access_grant> grants);

/// The error for an option that conflicts with the device or another option: "DETAIL; not 'VALUE':
/// WHY LIMIT". Code: bad_option.
export [[nodiscard]] error refuse_beyond(std::uint64_t value, const char* detail,
                                         std::string_view why, std::uint64_t limit) noexcept;

/// Checks that handles of at least `handle_bytes`, which an option sets, fit the memory at the
/// options' placement. Not checked with a place to spill to, or if the driver does not report its
/// memory. Errors: bad_option, with `detail`. Cost: one query_memory for handles above 1 GiB.
export [[nodiscard]] status check_handle_size(driver_interface& driver,
                                              const memory_options& options,
                                              std::uint64_t handle_bytes, const char* detail);

/// The common base of manager and pool: time, physical memory, addresses and mappings of one
/// device.
export struct device_core {
  device_core(driver_ref driver, const core_options& options)
      : time(driver, options.streams_forgotten),
        memory(driver, options.physical),
        space(driver, options.reservation),
        remaps(driver, time, memory, options.grants) {
    check(options.physical.granularity_bytes % options.reservation.granularity_bytes == 0,
          "pieces of memory do not fit the granules of addresses");
  }
  device_core(const device_core&) = delete;
  device_core& operator=(const device_core&) = delete;

  /// Checks the records of memory and of addresses. Errors: internal. O(everything).
  [[nodiscard]] status validate() const noexcept;

  timeline time;
  physical_pool memory;
  reservation_space space;
  remapper remaps;
};

/// While it exists, driver calls of the calling thread neither disturb captures in progress nor
/// fail because of them. Cost: two driver calls if the driver can capture, else none.
export class relaxed_capture {
 public:
  explicit relaxed_capture(driver_interface& driver, bool is_needed = true)
      : driver_(is_needed && driver.feature_set().capture ? &driver : nullptr) {
    if (driver_ != nullptr) before_ = driver_->exchange_capture_mode(capture_mode::relaxed);
  }
  ~relaxed_capture() {
    if (driver_ != nullptr) (void)driver_->exchange_capture_mode(before_);
  }
  relaxed_capture(const relaxed_capture&) = delete;
  relaxed_capture& operator=(const relaxed_capture&) = delete;

 private:
  driver_interface* const driver_;
  capture_mode before_ = capture_mode::any_thread;
};

/// A fault that occurs once must have no lasting effect; a permanent one cannot be retried away.
export inline constexpr int close_attempts = 3;

/// Calls `step()`, a status, until it succeeds, close_attempts times at most. Errors: the last one.
export template <class Step>
[[nodiscard]] status try_to_close(Step&& step) {
  static_assert(close_attempts > 0);
  status closed = step();
  for (int left = close_attempts - 1; left > 0 && !closed; --left) closed = step();
  return closed;
}

/// Releases retained memory and, if `emptied` is a success, so that every extent is free, the
/// addresses. Errors: `emptied`'s, else those of release and free_reservation; a later call
/// continues.
[[nodiscard]] status give_back_core(device_core& core, const status& emptied);

/// Calls `empty()`, a status, which unmaps everything and frees its pieces and extents, then
/// releases the core's memory and addresses. Repeats all of it on a failure. Errors: the last one;
/// the rest stays allocated in the driver.
export template <class Empty>
[[nodiscard]] status close_core(device_core& core, Empty&& empty) {
  return try_to_close([&] { return give_back_core(core, empty()); });
}

/// Writes one line to stderr about memory that stays with the process. `owner` is "manager" or
/// "stream pool".
export void report_unclosed(const char* owner, const error& failure) noexcept;

/// Continues from `outcome`, a result of `operation()`. If memory is short, calls `next_step()`,
/// which releases memory or waits for it, and then the operation again, until it succeeds, fails
/// otherwise, or no step is left. `next_step()` returns result<bool>: false if none is left; its
/// error ends the loop and is returned.
export template <class Outcome, class Operation, class NextStep>
[[nodiscard]] Outcome retry_while_short(Outcome outcome, Operation&& operation,
                                        NextStep&& next_step) {
  while (!outcome && is_shortage(outcome.error().code)) {
    const result<bool> stepped = next_step();
    check(stepped || stepped.error().code != errc::none, "a step fails without a reason");
    if (!stepped) return stepped.error();
    if (!*stepped) return outcome;
    outcome = operation();
  }
  return outcome;
}

/// Two rungs for retry_while_short(), tried in order; the second may be a ladder. A rung returns
/// result<bool>: true if it released memory or waited for it, false if it has nothing left, which
/// begins the next rung. An error ends the request.
export template <class First, class Next>
class shortage_ladder {
 public:
  shortage_ladder(First first, Next next) : first_(std::move(first)), next_(std::move(next)) {}

  [[nodiscard]] result<bool> operator()() {
    if (!is_past_first_) {
      const result<bool> stepped = first_();
      if (!stepped || *stepped) return stepped;
      is_past_first_ = true;
    }
    return next_();
  }

 private:
  First first_;
  Next next_;
  bool is_past_first_ = false;
};

/// A rung of one step.
export template <class Step>
class single_rung {
 public:
  explicit single_rung(Step step) : step_(std::move(step)) {}

  [[nodiscard]] result<bool> operator()() {
    if (std::exchange(is_done_, true)) return false;
    return step_();
  }

 private:
  Step step_;
  bool is_done_ = false;
};

}  // namespace vmm

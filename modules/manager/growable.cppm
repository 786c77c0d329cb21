// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.manager:growable - a range that reserves addresses for its maximum size and commits memory as
// it grows.
//
// A range has segments with equal address space, side by side, so that one tensor with strides
// shows them all (a key-value cache: one segment per layer). Each segment has memory from its begin
// up to its size. The addresses never change. Memory comes from the manager and returns to it, so
// ranges and blocks of one manager use each other's released memory.
//
// I1  A segment's first size_bytes() bytes are mapped, and keep their contents until the segment is
//     made smaller.
// I2  A failed call leaves every size and every byte below it as they were, and releases the memory
//     that it created: all of its segments grow, or none. If the driver refuses to unmap it, or
//     host memory is out, it stays mapped behind a size: it counts in physical_bytes, and the next
//     resize uses or releases it. If the manager's contents rule fills on release, and the driver
//     refuses every fill from a segment on, the segments before it have the new size already.
// I3  Memory that a call releases is unmapped when the work submitted to the call's stream has
//     finished. Only a growth over the same addresses, or a failed call without an event, waits for
//     that.
// I4  While a pin lives, no segment that it covers gets smaller than its size, and the range stays.
// I5  With growable_options::gives_tail, other tenants of an owner get the memory behind the pins,
//     behind all work submitted to the device: sizes shrink then, at any time between a pin and the
//     next growth.
//
// In a forked child every call that can fail returns not_permitted, and destroying the child's copy
// changes nothing.
//
// Thread safety: all of it; calls on one range wait for each other. Cost: driver calls by handles,
// never by bytes kept, and a fill for each segment that grows; host work O(handles of the segments
// named). Elsewhere: blocks and their memory (:facade, vmm.optimizer).
module;
#include "../base/thread_annotations.h"

export module vmm.manager:growable;

import vmm.backend;
import vmm.base;
import vmm.optimizer;
import vmm.physical;
import vmm.std;
import vmm.timeline;
import :facade;
import :locks;
import :types;

namespace vmm {

/// As few handles as the available memory allows: growable_options::handle_bytes.
export inline constexpr std::uint64_t few_handles = ~std::uint64_t{0};

/// The layout of a range, for its life.
export struct growable_options {
  std::uint64_t segment_bytes_max = 0;  ///< the maximum size of each segment; not 0
  std::uint64_t segment_count = 1;      ///< at most growable_segment_count_max
  std::uint64_t handle_bytes =
      0;                    ///< of each physical handle, a multiple of the granularity; 0: one
                            ///< granule; few_handles. A segment grows and shrinks by whole handles
  bool zero_new = true;     ///< bytes that a growth adds are zero; else they are what the manager's
                            ///< memory_options::contents makes of them
  bool gives_tail = false;  ///< from a pin until the next growth, other tenants of an owner that
                            ///< need memory get what is behind all pins: a pin keeps what is in
                            ///< use, and grow() brings the rest back
};

/// The maximum number of segments of a range.
export inline constexpr std::uint64_t growable_segment_count_max = std::uint64_t{1} << 20;

/// The permitted directions of a resize.
export enum class growable_change : std::uint8_t {
  any,
  grow,    // a segment that is larger is an error
  shrink,  // a segment that is smaller is an error
};

/// A request to resize.
export struct growable_request {
  std::uint64_t size_bytes = 0;     ///< of each segment named; 0 releases its memory
  std::uint64_t first_segment = 0;  ///< the segments named: from this one on
  std::uint64_t segment_count = 0;  ///< their number; 0: all
  /// Added bytes are for work submitted to it from now on; removed bytes may be in use by work
  /// submitted to it so far.
  stream_handle stream = stream_handle::default_stream;
  growable_change change = growable_change::any;
  /// One handle for all of a segment, for code that registers memory. Requires: the segment is
  /// empty; it is released as a whole.
  bool one_handle = false;
  /// False: in_use instead of a wait for unfinished work at released addresses.
  bool may_wait = true;
};

/// The bytes that a pin keeps in place.
export struct pin_request {
  std::uint64_t size_bytes = 0;     ///< of each segment named; 0: their addresses only
  std::uint64_t first_segment = 0;  ///< as growable_request
  std::uint64_t segment_count = 0;
};

/// Sizes of a range, in bytes unless the name has another unit.
export struct growable_statistics {
  address base{};  ///< of the first segment; none before reserve()
  std::uint64_t segment_count = 0;
  std::uint64_t segment_bytes_max = 0;  ///< as requested
  std::uint64_t stride_bytes = 0;       ///< from one segment to the next
  std::uint64_t handle_bytes = 0;       ///< sizes are rounded up to it
  std::uint64_t size_bytes = 0;         ///< of all segments together
  std::uint64_t physical_bytes = 0;     ///< mapped behind them
  std::uint64_t handle_count = 0;
  std::uint64_t pin_count = 0;
  bool is_closed = false;
};

// The error of a segment, a count or a size beyond those of the range.
[[nodiscard]] error refuse_beyond(const char* detail, std::uint64_t given,
                                  std::uint64_t most) noexcept;

/// The range; defined below.
export class growable_range;

/// Keeps bytes of a range in place. Movable; destroyed before the range. Thread safety: one pin is
/// for one thread at a time.
export class growable_pin {
 public:
  growable_pin(growable_pin&& other) noexcept
      : range_(std::exchange(other.range_, nullptr)), number_(other.number_) {}
  growable_pin& operator=(growable_pin&& other) noexcept {
    std::swap(range_, other.range_);
    std::swap(number_, other.number_);
    return *this;
  }
  growable_pin(const growable_pin&) = delete;
  growable_pin& operator=(const growable_pin&) = delete;
  ~growable_pin() { reset(); }
  /// Effects: ends the pin. Errors: none. Cost: O(pins of the range).
  void reset() noexcept;
  /// Effects: the pin stays without this object, until unpin() of its number.
  [[nodiscard]] std::uint64_t release() noexcept {
    check(range_ != nullptr, "a pin is released that pins no bytes");
    range_ = nullptr;
    return number_;
  }

 private:
  friend class growable_range;
  growable_pin(growable_range& range, std::uint64_t number) noexcept
      : range_(&range), number_(number) {
    check(number != 0, "a pin has no number");
  }

  growable_range* range_;
  std::uint64_t number_;
};

/// Segments of memory of a manager that grow and shrink in place.
///
/// Every call: Thread safety: any thread, except the destructor; calls on one range wait for each
/// other. Requires of a stream: it is not being captured, and other streams are ordered behind it
/// before they use added bytes, and before it when bytes are removed. In a forked child every call
/// that can fail returns not_permitted.
export class growable_range {
 public:
  /// Requires: a manager that outlives the range. Effects: none yet. Cost: no driver call.
  growable_range(manager& memory, const growable_options& options) noexcept
      : memory_(&memory),
        memory_use_(memory),
        options_(options),
        acquired_(memory.driver(),
                  options.zero_new ? contents_rule::zero_on_acquire : memory.options().contents),
        released_(memory.driver(), memory.options().contents) {}
  growable_range(const growable_range&) = delete;
  growable_range& operator=(const growable_range&) = delete;
  /// Requires: no pin lives, else the process ends. Effects: as close(), behind all work submitted
  /// to the device. If that fails three times, the memory stays with the manager until its end.
  ~growable_range();

  /// Effects: reserves the addresses of all segments at their maximum size. resize() calls it if it
  /// was not called. Errors: invalid_argument (closed), bad_option (the detail names the option),
  /// not_supported (zeros on a driver that cannot fill), out_of_addresses, out_of_host_memory,
  /// those of manager::set_up and reserve. Cost: O(segments), at most one driver call.
  [[nodiscard]] status reserve();

  /// Effects: sets the size of each segment named; on failure of none, except as I2 says. Addresses
  /// stay; bytes below both sizes keep their contents. The call's stream is ordered, on the device,
  /// behind the work of the memory's earlier users; zeros are queued in it. If the driver has
  /// aliases, removed memory serves the manager's other ranges and blocks at once, behind the work
  /// submitted to the stream; else when that work has finished.
  /// Errors: invalid_argument (closed, beyond the maximum, segments that do not exist, a direction
  /// other than requested, one_handle for a segment that is not empty), in_use (a pin covers bytes
  /// that would go; may_wait; a growth while the manager's memory is suspended), out_of_memory
  /// (after retained memory was released), over_budget, out_of_mappings, out_of_host_memory, those
  /// of reserve(), and of the driver's create, map, set_access, fill, record_event and wait_event.
  /// Cost: a create for each new handle and a map for each, one set_access and one fill for each
  /// segment that grows; one event for a shrink. Blocks if memory is short and the manager's
  /// options allow it; and, with may_wait, if a segment grows over addresses that work before an
  /// earlier shrink may still use, until that work has finished.
  [[nodiscard]] status resize(const growable_request& request);
  /// The same for all segments. Errors: as resize.
  [[nodiscard]] status grow(std::uint64_t size_bytes,
                            stream_handle stream = stream_handle::default_stream) {
    return resize({.size_bytes = size_bytes, .stream = stream, .change = growable_change::grow});
  }
  [[nodiscard]] status shrink(std::uint64_t size_bytes,
                              stream_handle stream = stream_handle::default_stream) {
    return resize({.size_bytes = size_bytes, .stream = stream, .change = growable_change::shrink});
  }
  /// Effects: releases all memory and keeps the addresses. Errors: as resize.
  [[nodiscard]] status release(stream_handle stream = stream_handle::default_stream) {
    return shrink(0, stream);
  }

  /// Effects: releases memory and addresses after the work submitted to `stream` so far. Later
  /// calls return invalid_argument. Errors: invalid_argument (closed), in_use (a pin lives), those
  /// of wait_event, record_event and fill, out_of_host_memory where the contents rule fills; the
  /// range is as before, except as I2 says. Cost: one event. Never waits.
  [[nodiscard]] status close(stream_handle stream = stream_handle::default_stream);

  /// Effects: blocks until the work of the memory's earlier users, and all work submitted to
  /// `stream`, including zeros, have finished, so that the host may access the bytes. Errors:
  /// invalid_argument (closed), those of synchronize_event and synchronize_stream. Cost:
  /// O(handles).
  [[nodiscard]] status synchronize(stream_handle stream = stream_handle::default_stream);

  /// Requires: the pin ends before the range. Effects: I4, until the pin ends. Errors:
  /// invalid_argument (closed, segments that do not exist, more bytes than a segment has),
  /// out_of_host_memory, those of reserve(). Cost: O(segments named).
  [[nodiscard]] result<growable_pin> pin(const pin_request& request);
  /// Effects: ends a pin that was released from its object. Errors: invalid_argument (no pin of
  /// this number). Cost: O(pins).
  [[nodiscard]] status unpin(std::uint64_t number) noexcept;

  /// Effects: none; returns a segment's address. Errors: invalid_argument (closed, not reserved, a
  /// segment that does not exist). Cost: O(1), of parts() O(handles).
  [[nodiscard]] result<address> segment(std::uint64_t index) const;
  [[nodiscard]] result<std::uint64_t> size_bytes(std::uint64_t index = 0) const;
  /// The handles behind a segment, in address order, to register or export them. They change with
  /// the next resize of the segment. Errors: also out_of_host_memory.
  [[nodiscard]] result<std::vector<block_part>> parts(std::uint64_t index) const;
  /// Effects: none. Errors: none. Cost: O(segments).
  [[nodiscard]] growable_statistics statistics() const;
  [[nodiscard]] const growable_options& options() const noexcept { return options_; }
  [[nodiscard]] manager& memory() const noexcept { return *memory_; }
  /// Effects: none; checks I1 and I4 for every segment. Errors: internal, with the broken
  /// invariant.
  /// Cost: O(handles + segments * pins).
  [[nodiscard]] status validate() const;

 private:
  struct pinned_part {
    std::uint64_t number = 0;
    std::uint64_t size_bytes = 0;
    std::uint64_t first = 0;
    std::uint64_t end = 0;
  };
  struct named_segments {
    std::uint64_t first = 0;
    std::uint64_t end = 0;
  };
  // Fills that a call has queued, and their point, which is covered behind the last of them.
  struct queued_fills {
    ticket_ref point;
    bool has_any = false;
  };
  // The steps of a resize. A growth's list has its undoing.
  struct change_plan {
    std::vector<block_cut> grown;
    std::vector<block_cut> cuts;
    relief_pass* pass = nullptr;
    std::uint64_t new_bytes = 0;  // that all of the growths need
    queued_fills fills;
  };

  [[nodiscard]] status resize_once(const growable_request& request, std::uint64_t& new_bytes,
                                   relief_pass& pass);
  [[nodiscard]] creation creation_of(const change_plan& changes) const noexcept
      VMM_REQUIRES(mutex_) {
    check(changes.new_bytes != 0, "no memory is created");
    return {changes.new_bytes, options_.handle_bytes == few_handles ? 0 : handle_bytes_};
  }
  [[nodiscard]] status open() VMM_REQUIRES(mutex_);
  [[nodiscard]] status check_options(std::uint64_t unit_bytes) const noexcept;
  [[nodiscard]] result<named_segments> name(std::uint64_t first,
                                            std::uint64_t count) const noexcept;
  [[nodiscard]] status find(std::uint64_t index) const noexcept VMM_REQUIRES(mutex_);
  [[nodiscard]] status plan(const growable_request& request, change_plan& changes)
      VMM_REQUIRES(mutex_);
  [[nodiscard]] status check_segment(const growable_request& request,
                                     std::uint64_t index) const noexcept VMM_REQUIRES(mutex_);
  [[nodiscard]] status carry_out(const growable_request& request, change_plan& changes)
      VMM_REQUIRES(mutex_);
  [[nodiscard]] status order_behind(stream_handle stream, std::span<const block_cut> cuts)
      VMM_REQUIRES(mutex_);
  [[nodiscard]] status grow_segments(const growable_request& request, change_plan& changes)
      VMM_REQUIRES(mutex_);
  [[nodiscard]] status map_segment(const growable_request& request, block& segment,
                                   const change_plan& changes) VMM_REQUIRES(mutex_);
  [[nodiscard]] status clear_stale(const block& segment, bool may_wait) VMM_REQUIRES(mutex_);
  [[nodiscard]] status fill_segments(const growable_request& request, change_plan& changes)
      VMM_REQUIRES(mutex_);
  [[nodiscard]] status prepare_fill(stream_handle stream, queued_fills& fills) VMM_REQUIRES(mutex_);
  [[nodiscard]] status fill_released(const block& segment, std::uint64_t kept_bytes,
                                     stream_handle stream, queued_fills& fills)
      VMM_REQUIRES(mutex_);
  [[nodiscard]] result<ticket_ref> cut_segments(stream_handle stream, std::span<block_cut> cuts)
      VMM_REQUIRES(mutex_);
  [[nodiscard]] result<ticket_ref> empty_segments(stream_handle stream) VMM_REQUIRES(mutex_);
  void reap_behind(const ticket_ref& point, std::size_t count) VMM_REQUIRES(mutex_);
  void undo(change_plan& changes) noexcept VMM_REQUIRES(mutex_);
  [[nodiscard]] status close_locked(stream_handle stream) VMM_REQUIRES(mutex_);
  [[nodiscard]] status close_unnamed() VMM_REQUIRES(mutex_);
  void end_segments(const ticket_ref& point) VMM_REQUIRES(mutex_);
  void remember(const ticket_ref& point) noexcept VMM_REQUIRES(mutex_);
  [[nodiscard]] std::uint64_t rounded(std::uint64_t size_bytes) const noexcept
      VMM_REQUIRES(mutex_) {
    check(handle_bytes_ > 0, "a size is rounded before the granularity is known");
    return round_up(size_bytes, handle_bytes_);
  }
  [[nodiscard]] std::uint64_t pinned(std::uint64_t index) const noexcept VMM_REQUIRES(mutex_);
  [[nodiscard]] std::uint64_t give_tail(std::uint64_t wanted_bytes) noexcept;
  [[nodiscard]] status cut_tails(std::span<block_cut> cuts) VMM_REQUIRES(mutex_);

  manager* memory_;
  use_of memory_use_;
  const growable_options options_;
  const content_filler acquired_;  // of bytes that a growth adds
  const content_filler released_;
  const process_mark made_in_;
  mutable sync::mutex mutex_;
  engine* engine_ VMM_GUARDED_BY(mutex_) = nullptr;
  std::vector<block*> segments_ VMM_GUARDED_BY(mutex_);  // empty before reserve() and when closed
  std::uint64_t handle_bytes_ VMM_GUARDED_BY(mutex_) = 0;
  std::uint64_t stride_bytes_ VMM_GUARDED_BY(mutex_) = 0;
  stream_handle stream_ VMM_GUARDED_BY(mutex_) = stream_handle::default_stream;  // the last one
  std::vector<ticket_ref> given_up_ VMM_GUARDED_BY(mutex_);  // points of shrinks; may have passed
  std::vector<pinned_part> pins_ VMM_GUARDED_BY(mutex_);
  std::uint64_t pin_number_ VMM_GUARDED_BY(mutex_) = 0;
  bool is_closed_ VMM_GUARDED_BY(mutex_) = false;
  bool has_tail_ VMM_GUARDED_BY(mutex_) = false;  // no growth since the last pin
  relief_member tail_;                            // entered under the mutex, left without it
};

}  // namespace vmm

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:pool_calls - the calls of a pool beside its blocks: captures(), remaps() and
// history(). Each is a reference to its pool, created for a call. Not exported by name.
//
// Thread safety: any thread. In a forked child a call returns not_permitted, or nothing.
export module vmm.stream:pool_calls;

import vmm.backend;
import vmm.observe;
import vmm.std;
import :notices;

namespace vmm {

export class stream_pool;

/// Captures into graphs.
class pool_captures {
 public:
  explicit pool_captures(stream_pool& of) noexcept : of_(of) {}

  /// Effects: announces the capture of a stream: events behind all work are deferred until
  /// `end()` was called as often. None is being recorded when it returns. With
  /// options().captures_announced each call also queries the driver until then.
  /// Errors: not_permitted (in a forked child). Cost: waits for a recording in progress.
  [[nodiscard]] status begin();
  /// Effects: ends one begin(). Errors: invalid_argument (none before). Cost: O(1).
  [[nodiscard]] status end();
  /// The number of announcements that have not ended. Cost: waits for a recording in progress.
  [[nodiscard]] std::uint32_t announced_count() const noexcept;
  /// Requires: called before the capture is ended.
  /// Effects: none; returns the number of the stream's capture, for `release()`.
  /// Errors: invalid_argument (the stream is not being captured), not_supported, driver errors.
  /// Cost: one query to the driver.
  [[nodiscard]] result<std::uint64_t> number(stream_handle stream);
  /// Requires: the graph's last launch is ordered before `stream`. The capture is not in progress.
  /// Effects: the graph's memory (all freed in its capture, or of its memory since) is free for
  /// `stream`, after the work submitted to it so far. Live blocks are then freed like others. An
  /// unknown number is not an error.
  /// Errors: in_use (the capture is in progress on this stream, or max_streams others are in use),
  /// out_of_host_memory, driver errors.
  /// Cost: O(the graph's blocks), one query to the driver and one event.
  [[nodiscard]] status release(std::uint64_t number, stream_handle stream);

 private:
  stream_pool& of_;
};

/// Changes of the memory behind an address.
class pool_remaps {
 public:
  explicit pool_remaps(stream_pool& of) noexcept : of_(of) {}

  /// Requires: the listener does only what remap_listener permits, and is valid until the
  /// subscription or the pool ends.
  /// Effects: the listener is called before the memory behind an address changes, from the next
  /// change on. Errors: out_of_host_memory.
  /// Cost: O(1), and waits for a listener that is being called; one relaxed load per change without
  /// subscribers.
  [[nodiscard]] result<remap_subscription> subscribe(remap_listener& listener);
  /// Requires: not called from a listener.
  /// Effects: after it has returned the listener is not being called and is not called again. Waits
  /// for one that is. Errors: invalid_argument (not a live subscription). Cost: O(subscriptions).
  [[nodiscard]] status unsubscribe(remap_subscription subscription);
  /// Effects: none; returns the number of the latest notified change. It grows before the change:
  /// if two calls return the same number, the first after a change's effect was seen, no change
  /// began in between. Cost: one load.
  [[nodiscard]] std::uint64_t epoch() const noexcept;

 private:
  stream_pool& of_;
};

/// The recording of a pool's events.
class pool_recording {
 public:
  explicit pool_recording(stream_pool& of) noexcept : of_(of) {}

  /// Returns the events of this pool in options().recorder, or in the ring of start(), and the
  /// layout after the last of them. Its type is in vmm.observe. Takes the pool's short lock
  /// repeatedly for some microseconds, and at the end as long as regions() does. Errors:
  /// invalid_argument (nothing is recorded, or nothing was allocated), out_of_host_memory.
  [[nodiscard]] result<history> take() const;
  /// Requires: not called from a listener or an observer.
  /// Effects: sets the pool up, and records its events from now on, into a ring of its own.
  /// Errors: in_use (its history is being recorded), bad_option, as set_up. Cost: waits for a
  /// growth in progress.
  [[nodiscard]] status start(const history_options& how);
  /// Requires: as start().
  /// Effects: as take(), and ends the recording; a ring of the options is released.
  /// Errors: as take(), and the recording continues. Cost: as both.
  [[nodiscard]] result<history> stop();
  /// Requires: the kind is not one of a block's, `allocated` to `unpinned`.
  /// Effects: adds an event of a layer above the pool, such as a suspension, to the history. Does
  /// nothing unless the pool is set up and recorded. Errors: none. Cost: a branch, or a lock and
  /// two records.
  void record(const history_note& what) noexcept;
  /// With VMM_REMEMBER: the memory that the first request that grows makes ready, from the previous
  /// run of the program; else 0, as before the first allocation. Cost: none.
  [[nodiscard]] std::uint64_t remembered_bytes() const noexcept;

 private:
  stream_pool& of_;
};

}  // namespace vmm

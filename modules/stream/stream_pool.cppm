// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream - a stream-ordered pool: memory freed on a stream serves that stream again at once.
//
// A request takes free memory of its stream; else memory that other streams have finished with;
// else the pool grows, and moves free memory before it creates more. Only synchronize(), the
// destructor and the last step before out of memory wait on the host.
//
// - Memory that another stream freed is handed out only when the work before that free has
//   finished, or behind a wait for it on the device. The same holds for memory that moves.
// - Nothing is unmapped that unfinished work may use.
// - A failed call leaves every block and all free memory as they were, and memory held does not
//   grow: memory that it created is released to the driver. Exceptions: reserved addresses stay
//   reserved; if memory was short, retained memory may have been released, and, if a handle can be
//   mapped only once, idle free memory.
// - Physical memory held never exceeds the budget.
// - In a forked child every call returns not_permitted (or an empty value if it returns no error)
//   and takes no lock, and destroying the child's copy changes nothing.
//
// At most max_streams streams at a time: forget() destroyed ones. A stream is passed to the driver
// only in calls that name it (docs/decisions/0028).
//
// For users:        :options :statistics :notices :pool_calls
// Warm memory:      :call_path, over :state_lock > :pool_state > :segment; :arena, :pool_arenas
// Other requests:   :slow_path > :memory_reuse > :pool_growth > :shortage, under :growth_entry
// Streams' work:    :stream_clock > :point_events, :batch_events; captures :capture_watch,
//                   :captured_calls
// Around a call:    :checked_calls, :notifier, :pool_history
// Unused memory:    :reclaimer; rights :block_rights; suspension :pool_suspension
// Plans, reports:   in state/, created for a call: :growth_planner :growth_commit :stream_memory
//                   :own_memory :locked_blocks :idle_handles :state_report :state_audit :state_end
//
// Thread safety: all of it. Requests that need no driver share one short lock; growing has a lock
// of its own, and no driver call is made under the short one (vmm.stream:locks has the order).
// Cost: allocate and free on one stream make no event and no driver call, except a query for a
// capture if the options require it and the stream can be captured; their bookkeeping is O(1)
// except a search of fixed depth. Growth costs driver calls by handles moved and created.
module;
#include "../base/thread_annotations.h"

export module vmm.stream;

export import vmm.backend;
export import :notices;
export import :options;
export import :statistics;
import vmm.base;
import vmm.observe;
import vmm.optimizer;
import vmm.std;
import vmm.timeline;
import :ahead_planner;
import :arena;
import :arena_lending;
import :call_path;
import :capture_table;
import :capture_watch;
import :event_writer;
import :geometry;
import :growth_commit;
import :growth_entry;
import :growth_planner;
import :idle_handles;
import :locked_blocks;
import :locks;
import :mappings;
import :notifier;
import :own_memory;
import :pool_arenas;
import :pool_base;
import :pool_calls;
import :pool_history;
import :pool_parts;
import :pool_state;
import :pool_suspension;
import :segment;
import :state_audit;
import :state_end;
import :state_lock;
import :state_report;
import :stream_memory;

namespace vmm {

// Ends the process if a deallocate failed because of its address. Any other failure leaves the
// block live, and the pool's end reports it.
void check_left_live(const error& failure) noexcept;

/// Blocks of 512 bytes and up, for work in streams: memory freed on a stream serves it again at
/// once.
///
/// Every call: Thread safety: any thread, except the destructor. In a forked child it returns
/// not_permitted, or an empty value if it returns no error. "Driver errors" are those of the calls
/// of docs/contract.md. If the device is short of memory, idle memory of the other pools and
/// managers of the driver is released, on the requesting thread, which calls their remap listeners.
/// Requests from inside a callback of a pool get no memory of others.
export class stream_pool {
 public:
  /// Streams that a pool serves at a time: those that allocated or freed and were not forgotten. A
  /// call on a further one returns in_use. Forgotten streams with unfinished work and streams of
  /// live captured graphs have at least 92 further records; once these are used up, a call on a new
  /// stream returns in_use, too.
  static constexpr std::uint32_t max_streams = stream_progress::max_streams;

  /// Requires: the driver outlives the pool and is not moved. With options.streams_forgotten, or a
  /// driver without features::record_all, every stream passed to the pool lives until it is
  /// forgotten. Otherwise a stream may be destroyed at any time.
  /// Effects: none yet; the first allocation sets the pool up. Cost: no driver call.
  explicit stream_pool(driver_ref driver, const pool_options& options = {}) noexcept
      : driver_(driver),
        driver_use_(driver.use()),
        path_(*driver_, options),
        options_(options),
        notices_(*driver_, options_.observer, path_),
        events_(*driver_, options_, path_),
        entry_(*driver_, notices_,
               {options.observer != nullptr, path_.looks_for_captures(),
                options.streams_forgotten ||
                    (driver->feature_set().streams && !driver->feature_set().record_all),
                options.undeclared_uses && driver->feature_set().record_all}),
        captures_(*driver_, options_, path_, entry_) {}
  stream_pool(const stream_pool&) = delete;
  stream_pool& operator=(const stream_pool&) = delete;
  /// Requires: no buffer uses the pool, and no thread calls it. No stream is being captured, and
  /// captures().announced_count() is 0. No captured graph that uses the pool's memory is launched
  /// again.
  /// Effects: calls options().leak_hook if blocks are live. Waits for all work of the device, or
  /// that of the pool's streams, and releases everything to the driver. Memory that the driver
  /// refuses to release stays with the process, with a line on stderr. Cost: blocks until the work
  /// has finished.
  ~stream_pool();

  /// Effects: reads the granularity, checks the options and maps the requested pages. The first
  /// allocation calls it if it was not called.
  /// Errors: bad_option, not_supported (the granularity is not a power of two), out_of_host_memory,
  /// driver errors; a later call tries again.
  /// Cost: driver calls by requested pages, the first time.
  [[nodiscard]] status set_up();

  /// Requires: work on other streams that uses the block is ordered behind `stream` first.
  /// Effects: returns memory for work submitted to `stream` from now on, aligned to 512 bytes. Its
  /// contents are unspecified.
  /// Errors: those of set_up, the first time; invalid_argument (no bytes), in_use (max_streams
  /// others are in use), not_permitted (the stream is being captured, which options().capture
  /// refuses, or its capture was invalidated; or, during a capture, pinned blocks were freed on a
  /// stream of this handle and unknown identity), out_of_memory, over_budget,
  /// out_of_mappings (these after all steps of last_shortage; at once if the live blocks and the
  /// request exceed the budget or the device), out_of_addresses, out_of_host_memory, driver errors;
  /// no block is changed, and memory held does not grow.
  /// Cost: O(1) and no driver call if free memory of the stream serves, except a query for
  /// `capture` and, without streams_forgotten, one for a created stream's identity. Else driver
  /// calls by handles moved and created. Waits for work only when memory is short and
  /// options().wait_when_short is set.
  [[nodiscard]] inline result<address> allocate(std::uint64_t size_bytes, stream_handle stream);

  /// Requires: work on other streams that uses the block is ordered before `stream`. So is all work
  /// submitted to the allocating stream before the allocation, since the pool may have handed out
  /// memory that was still in use there.
  /// Effects: frees the block after the work submitted to `stream` so far.
  /// Errors: unknown_address, not_allocated (freed before), invalid_argument (inside a block),
  /// in_use (max_streams others are in use), not_permitted (as allocate; or the block is another
  /// captured graph's), out_of_host_memory (the records of a new stream); the block is as before.
  /// Cost: O(1), no driver call but the query for `capture`. Never waits for work.
  [[nodiscard]] inline status free(address at, stream_handle stream);

  /// Requires: `captures().begin()` was called for captures on streams that made no call on the
  /// pool meanwhile and do not synchronise with the default stream. With
  /// options().streams_forgotten the pool's streams are queried too; with capture_rule::unchecked
  /// none is.
  /// Effects: frees the block after all work submitted to the device so far, on every stream, also
  /// one unknown to the pool: what cudaFree promises, without waiting. The memory is reused, on any
  /// stream, once an event behind all that work (driver.record_all) has passed; frees before it is
  /// recorded share it. A stream or caller waits for it only if memory is short. Drivers without
  /// that event: after the work of the pool's streams and of the default stream. While a stream of
  /// the process is captured, recording the event would invalidate the capture: it is deferred, and
  /// the block waits. If recording fails, the free succeeds, and a later call records the event. A
  /// pinned block, or a captured graph's: as free(at, stream).
  /// Errors: as free(at, stream), except those of a captured stream; not_permitted (the block has
  /// access of its own).
  /// Cost: as free(at, stream), and at most one event and a query for each stream, under a lock of
  /// their own. Never waits for work.
  [[nodiscard]] status free(address at);

  /// Requires: a block begins at `at`. Memory that is accessed outside of the streams (by a network
  /// card, another process, a captured graph) must be pinned meanwhile.
  /// Effects: a live block never moves; a pin extends this beyond free(): the block may be freed as
  /// usual, and its memory is reused only after unpin() has been called as often.
  /// Errors: unknown_address, not_allocated (freed, also while pinned), invalid_argument (inside a
  /// block, or pinned 2^32 times), in_use (suspended), out_of_host_memory. Cost: O(1), no driver
  /// call.
  [[nodiscard]] status pin(address at);
  /// Requires: work that no stream orders has finished with the block.
  /// Effects: ends one pin. A freed block without another pin is free after the work submitted to
  /// the freeing stream so far.
  /// Errors: unknown_address, not_allocated, invalid_argument (not pinned, or inside a block).
  /// Cost: O(1), no driver call.
  [[nodiscard]] status unpin(address at);

  /// Requires: the stream has not been destroyed, and no thread allocates or frees on it any more.
  /// Blocks allocated on it are freed later on a stream ordered behind it.
  /// Effects: frees the stream's record; a later stream of this handle counts as new. Its free
  /// memory serves every stream once the work submitted to it so far has finished. Does not wait. A
  /// stream unknown to the pool is not an error.
  /// Errors: in_use (it is being captured, or freed on; or max_streams and the further records are
  /// in use), out_of_host_memory, driver errors; the stream is as before.
  /// Cost: one event if anything was freed on it.
  [[nodiscard]] status forget(stream_handle stream);

  /// Requires: no stream is being captured.
  /// Effects: blocks until all work before the frees so far has finished. Errors: not_permitted (a
  /// stream is being captured), out_of_host_memory, driver errors. Cost: one event and one wait for
  /// each stream.
  [[nodiscard]] status synchronize();

  /// Effects: releases whole free handles, largest first, until at most `limit_bytes` of free
  /// memory are retained. Memory that unfinished work may use stays. Errors: in the report.
  /// Cost: driver calls by handles; never waits for work. It may run in a thread of its own: others
  /// allocate and grow meanwhile, waiting for one step (256 MiB) at most.
  [[nodiscard]] trim_report trim(std::uint64_t limit_bytes);

  /// Requires: not called from a listener or an observer.
  /// Effects: makes a free region of this size available on this stream, of new memory within the
  /// headroom that the request itself would have (options().policy), or by moving whole free
  /// handles. Never makes a stream wait. Unmaps old mappings if many are left. The region is
  /// ordinary free memory: any later request may use it, so pass the sum for two concurrent
  /// requests. Pass the peak of live bytes before the first request, and few requests need the
  /// driver. Call it between requests, or from a thread of its own.
  /// Errors: in the report: those of set_up; invalid_argument (no bytes), in_use (max_streams
  /// others are in use, or the pool is suspended), over_budget, out_of_memory, out_of_addresses,
  /// out_of_host_memory, driver errors. A failed step leaves everything as it was; if memory is
  /// short, memory created by earlier steps is released, except memory that another request has
  /// used meanwhile: created_bytes counts the rest.
  /// Cost: driver calls by handles created and moved; never waits for work. One handle is mapped at
  /// a time, so another thread's request that grows, or any with an observer, waits for a step or
  /// two.
  [[nodiscard]] preallocate_report preallocate(std::uint64_t size_bytes, stream_handle stream);

  /// Effects: the pool expects the driver to refuse more than `limit_bytes` of its memory, for
  /// example because others share the device; 0: no limit. New handles get smaller as memory held
  /// approaches the limit, so that less is stranded. A budget of the options has priority. Errors:
  /// none. Cost: one store.
  void expect_memory_limit(std::uint64_t limit_bytes) noexcept {
    expected_limit_bytes_.store(limit_bytes, std::memory_order_relaxed);
  }

  /// Requires: work of the devices whose rights become less has finished with the pool's memory.
  /// Not called from a listener or an observer.
  /// Effects: each location named has this access to all of the pool's memory, mapped now or later;
  /// the others keep theirs. Several devices in one call, and later ones.
  /// Errors: those of set_up; invalid_argument (no grants, the home or the placement, more
  /// locations than a list takes), in_use (another thread suspends or resumes the pool),
  /// not_supported (a device does not reach the memory, or the driver has no features::peers),
  /// out_of_host_memory, those of query_peer and set_access; all is as before, unless the driver
  /// refuses the undoing. Cost: a query for each grant, one set-access for each mapping, during
  /// which no other thread grows.
  [[nodiscard]] status set_peers(std::span<const access_grant> grants);

  /// Returns a block that shares its mappings with no other, so that it can have access of its own.
  /// Requires, effects: as allocate; the size is rounded up to the pool's pages. Errors: as
  /// allocate; not_permitted (the stream is being captured). Cost: driver calls by handles.
  /// Releases free memory of the pool to the driver if no other is left.
  [[nodiscard]] result<address> allocate_dedicated(std::uint64_t size_bytes, stream_handle stream);
  /// Requires: work of the devices that lose access has finished with the block. Not called from a
  /// listener or an observer.
  /// Effects: each location named has this access to the block, and overrules set_peers(); the
  /// others keep theirs. It lasts until the block is freed, through suspension and resumption.
  /// After a free, on a stream that is not captured, the memory is not reused until that stream's
  /// work has finished and a call that grows or trims the pool has removed the access.
  /// Errors: as free for a wrong address; not_supported (it shares a mapping with other memory of
  /// the pool: see allocate_dedicated(); or options().contents fills freed memory), not_permitted
  /// (a captured graph's), invalid_argument (no grants, the home or the placement, more locations
  /// than a list takes), in_use (the pool is suspended), out_of_host_memory, those of set_access;
  /// nothing is changed. Cost: a set-access for each of its mappings.
  [[nodiscard]] status set_access(address at, std::span<const access_grant> grants);
  /// Effects: none; returns the mappings that the range touches, in address order, for code that
  /// registers memory by segments: a remap_listener is notified before they change.
  /// Errors: unknown_address (not the pool's), not_allocated (a part is not mapped),
  /// out_of_host_memory. Cost: O(mappings touched).
  [[nodiscard]] result<std::vector<memory_segment>> segments(address_range range);

  // ---- Standard forms, and calls of owners of blocks ---------

  /// The largest alignment of a block. Every block is aligned to 512 bytes.
  static constexpr std::uint64_t alignment_bytes_max = std::uint64_t{2} << 20;
  /// As allocate(size_bytes, stream), at a multiple of `alignment_bytes`. The memory before and
  /// behind the block stays free.
  /// Requires: an alignment that is a power of two, from 1 to alignment_bytes_max.
  /// Errors: as above; invalid_argument (not a power of two), not_supported (above 2 MiB: allocate
  /// from a manager).
  /// Cost: up to 512 bytes as above. Above, one search more; arenas do not serve it, so it takes
  /// the slow path if only they have free memory.
  [[nodiscard]] inline result<address> allocate(std::uint64_t size_bytes,
                                                std::uint64_t alignment_bytes,
                                                stream_handle stream) {
    if (alignment_bytes > granule_bytes || !std::has_single_bit(alignment_bytes)) [[unlikely]]
      return allocate_aligned({size_bytes, alignment_bytes}, stream);
    return allocate(size_bytes, stream);
  }
  /// For owners that cannot return an error. Requires: as free(at, stream); a live block of this
  /// pool, with the size and alignment of its allocation.
  /// Effects: as free. The size and the alignment are ignored. An address that is not a live block
  /// ends the process. Any other failure (host memory, too many streams, a captured stream, a
  /// forked child) leaves the block live: free it later, or the pool's end frees it and reports it
  /// to options().leak_hook. Errors: none. Cost: as free.
  inline void deallocate(address at, std::uint64_t size_bytes, std::uint64_t alignment_bytes,
                         stream_handle stream) noexcept {
    (void)size_bytes;
    (void)alignment_bytes;
    if (const status freed = free(at, stream); !freed) [[unlikely]]
      check_left_live(freed.error());
  }
  /// As free(at), for owners that cannot return an error: see above.
  inline void deallocate(address at, std::uint64_t size_bytes,
                         std::uint64_t alignment_bytes) noexcept {
    (void)size_bytes;
    (void)alignment_bytes;
    if (const status freed = free(at); !freed) [[unlikely]]
      check_left_live(freed.error());
  }
  /// The driver of the pool.
  [[nodiscard]] driver_interface& driver() const noexcept { return *driver_; }
  /// The buffers and memory resources of this pool; it must not be destroyed while they exist.
  [[nodiscard]] user_count& users() noexcept { return users_; }

  /// Captures into graphs: announcements, and graphs that have ended. Cost: O(1).
  [[nodiscard]] pool_captures captures() noexcept { return pool_captures(*this); }
  /// Changes of the memory behind an address. Cost: O(1).
  [[nodiscard]] pool_remaps remaps() noexcept { return pool_remaps(*this); }
  /// The recording of the pool's events. Cost: O(1).
  [[nodiscard]] pool_recording history() noexcept { return pool_recording(*this); }
  /// For vmm.suspend. Requires: neither a listener nor an observer makes its calls. begin_suspend()
  /// releases free memory even if it fails. With fills on free, other threads' free() waits during
  /// a suspension and a resumption. Cost: O(1).
  [[nodiscard]] suspendable& suspension() noexcept { return suspension_; }

  /// Effects: none. Errors: none. Cost: O(streams).
  [[nodiscard]] pool_statistics statistics() const;
  /// Effects: none; returns all regions in address order. Errors: out_of_host_memory. Cost:
  /// O(regions).
  [[nodiscard]] result<std::vector<pool_region>> regions() const;
  /// Effects: none; returns a text: the bytes of the statistics by kind, then the regions in
  /// address order, with address, bytes, kind and, of free regions, the stream; all of one moment.
  /// Errors: as regions(). Cost: O(regions).
  [[nodiscard]] result<std::string> dump() const;
  /// Effects: none; returns the steps tried for the last request that failed for lack of memory,
  /// and the memory held then. Cost: O(1).
  [[nodiscard]] shortage_report last_shortage() const;
  [[nodiscard]] const pool_options& options() const noexcept { return options_; }
  /// Requires: not called from a listener or an observer.
  /// Effects: checks every invariant of every part. Errors: internal, whose detail names the
  /// invariant that is broken. Cost: O(everything).
  [[nodiscard]] status validate() const;

 private:
  friend class pool_captures;
  friend class pool_remaps;
  friend class pool_recording;

  // Whether the pool is set up, in this process.
  [[nodiscard]] inline bool is_ready() const noexcept {
    return !path_.gate().is_closed_by(gate_reason::not_set_up) && path_.gate().is_here();
  }
  // Errors: unknown_address (nothing was allocated), not_permitted (in a forked child).
  [[nodiscard]] status check_ready() const noexcept;
  // Of calls that do nothing before the first allocation.
  [[nodiscard]] status check_here() const noexcept {
    return path_.gate().is_here() ? status{} : status{refuse_forked()};
  }
  // Of the first request of a stream, by its identity: an earlier one may have had the handle.
  [[nodiscard]] status identify(stream_handle stream, std::uint64_t identity)
      VMM_EXCLUDES(rank::growth, rank::state);
  // For calls while the gate may be closed: checks the reason.
  [[nodiscard]] status open_to_allocate() VMM_EXCLUDES(rank::growth, rank::state);
  [[nodiscard]] result<address> allocate_closed(std::uint64_t size_bytes, stream_handle stream)
      VMM_EXCLUDES(rank::growth, rank::state);
  [[nodiscard]] result<address> allocate_aligned(const block_shape& shape, stream_handle stream)
      VMM_EXCLUDES(rank::growth, rank::state);
  [[nodiscard]] status free_closed(address at, stream_handle stream) VMM_EXCLUDES(rank::state);

  [[nodiscard]] pool_lower lower() noexcept {
    return {*driver_, options_,  contents_, phases_, path_,
            entry_,   captures_, notices_,  events_, expected_limit_bytes_,
            relief_};
  }
  [[nodiscard]] status make_parts() VMM_REQUIRES(rank::growth) VMM_EXCLUDES(rank::state);
  [[nodiscard]] status close() VMM_REQUIRES(rank::growth) VMM_EXCLUDES(rank::state);

  driver_ref driver_;
  use_of driver_use_;
  std::unique_ptr<pool_parts> parts_;  // goes after the state, whose marks are its timeline's
  call_path path_;
  pool_options options_;
  content_filler contents_{*driver_, options_.contents};
  gate_watch gate_watch_{path_.gate()};
  notifier notices_;
  pool_history events_;
  mutable growth_entry entry_;
  capture_watch captures_;
  sync::atomic<std::uint64_t> expected_limit_bytes_ = 0;
  relief_member relief_;
  suspension_phases phases_;  // its lock comes before growth's; calls that fill take it, too
  pool_suspension suspension_{*this, lower(), parts_};
  stream_identities identities_;
  user_count users_{used_object::pool};
};

// The warm path of every request, inline in its caller. Captures are queried once: the driver's
// quick query is equivalent to query_capture().

inline result<address> stream_pool::allocate(std::uint64_t size_bytes, stream_handle stream) {
  const std::uint64_t identity = path_.identity_of(stream);
  if (identity != 0 && !identities_.has(stream, identity)) [[unlikely]] {
    if (status known = identify(stream, identity); !known) return known.error();
  }
  if (!path_.gate().is_open()) [[unlikely]]
    return allocate_closed(size_bytes, stream);
  debug_check([this] { return is_ready(); }, "a pool allocates before it is set up");
  if (path_.needs_check(stream) && !path_.is_uncaptured(stream, identity))
    return parts_->checked.allocate({size_bytes}, stream);
  if (const arena_table* const arenas = path_.published_arenas()) {
    if (const address at = parts_->reuse.allocate_in_arena(*arenas, size_bytes, stream)) return at;
  }
  if (const address at = path_.allocate(size_bytes, stream)) [[likely]]
    return at;
  return parts_->slow.allocate({size_bytes}, stream);
}

inline status stream_pool::free(address at, stream_handle stream) {
  if (!path_.gate().is_open()) [[unlikely]]
    return free_closed(at, stream);
  debug_check([this] { return is_ready(); }, "a pool frees before it is set up");
  if (path_.needs_check(stream) && !path_.is_uncaptured(stream))
    return parts_->checked.free(at, stream);
  return path_.free(at, stream);
}

}  // namespace vmm

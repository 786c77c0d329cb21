// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream - a stream-ordered pool: memory freed on a stream serves that stream again at once.
// [G1-G9, H2]
//
// A request takes what is free for its stream; else what other streams have finished with; else the
// pool grows, moving free memory to where it is wanted before it creates more. Nothing waits on the
// host but synchronize(), the destructor and the last step before out of memory.
//
// I1  Memory that another stream freed is handed out only when the work before that free has
//     finished, or behind a wait for it on the device. The same holds for memory that moves.
// I2  Nothing is unmapped that unfinished work may use.
// I3  A failed call leaves every block and all free memory as they were, and no more memory is held
//     than before: what it created goes back to the driver. Addresses that it reserved stay
//     reserved. Where memory was short, retained memory may have gone back to the driver, too, and,
//     where a handle can be mapped only once, free memory that was idle.
// I4  Physical memory held never exceeds the budget.
// I5  In a forked child every call is refused with not_permitted (or answers nothing, where there
//     is no error to answer), takes no lock, and destroying the child's copy changes nothing.
//
// At most max_streams streams at a time: forget() those that are gone. A stream is named to the
// driver in calls that name it (docs/decisions/0028).
//
// Thread safety: all of it. Requests that need no driver share one short lock; growing has a lock
// of its own, and no driver call is made under the short one (vmm.stream:locks has the order).
// Cost: allocate and free on one stream make no event and no driver call, but for asking whether
// the stream is being captured where the options want that and the stream can be; their bookkeeping
// is O(1) but for a search of fixed depth. Growth costs driver calls by handles moved and created.
module;
#include "../sync/thread_annotations.h"

export module vmm.stream;

export import :notices;
export import :options;
export import :statistics;
export import vmm.backend;
import :call_path;
import :capture_watch;
import :captures;
import :front;
import :gate;
import :geometry;
import :growth_entry;
import :growth_planner;
import :lending;
import :locked;
import :locks;
import :mappings;
import :notifier;
import :pool_base;
import :pool_history;
import :pool_parts;
import :pool_state;
import :pool_suspension;
import :segment;
import :state_lock;
import vmm.history;
import vmm.optimizer;
import vmm.std;
import vmm.support;
import vmm.sync;
import vmm.timeline;

namespace vmm {

// Ends the process where a deallocate failed for its address. Any other failure leaves the block
// live, which the pool reports when it goes.
void check_left_live(const error& failure) noexcept;

/// Blocks of 512 bytes and up, for work in streams: what a stream freed serves it again at once.
///
/// Every call: Thread safety: any thread, but for the destructor. In a forked child it answers
/// not_permitted, or nothing where there is no error to answer. "Driver errors" are what the calls
/// of docs/contract.md answer. Where the device is short of memory, idle memory of the other pools
/// and managers of the driver goes back to it, on the requesting thread, which calls their remap
/// listeners. Requests from inside a callback of a pool get no memory of others.
export class stream_pool {
 public:
  /// Streams that a pool serves at a time: those that allocated or freed, or freed what is held for
  /// them, and were not forgotten. A call on one more answers in_use. Forgotten streams with
  /// unfinished work and streams of captured graphs that live have at least 92 records besides;
  /// where those are used up a call on a new stream answers in_use, too.
  static constexpr std::uint32_t max_streams = stream_progress::max_streams;

  /// Requires: the driver outlives the pool and stays where it is. With options.streams_forgotten,
  /// and where the driver has no features::record_all, so does every stream that the pool is given,
  /// until it is forgotten. Otherwise a stream may be destroyed at any time.
  /// Effects: none yet; the first allocation sets the pool up. Cost: no driver call.
  explicit stream_pool(driver_ref driver, const pool_options& options = {}) noexcept
      : driver_(driver),
        driver_use_(driver.use()),
        path_(*driver_, options),
        options_(options),
        notices_(*driver_, options_.watcher, path_.gate(), path_.state()),
        events_(options.recorder, *driver_, options_, path_.gate(), path_.state()),
        entry_(*driver_, notices_,
               {options.watcher != nullptr, capture_watch::looks(*driver, options),
                options.streams_forgotten ||
                    (driver->feature_set().streams && !driver->feature_set().record_all)}),
        captures_(*driver_, options_, path_.gate(), path_.state(), entry_) {}
  stream_pool(const stream_pool&) = delete;
  stream_pool& operator=(const stream_pool&) = delete;
  /// Requires: no buffer uses the pool, and no thread calls it. No stream is being captured, and
  /// announced_capture_count() is 0. No captured graph that uses the pool's memory is launched
  /// again.
  /// Effects: options().at_end is called where blocks are live. All work of the device is waited
  /// for, or that of the streams that the pool knows, and everything goes back to the driver. What
  /// the driver does not take back stays with the process, and a line on stderr says so. Cost:
  /// blocks until the work has finished.
  ~stream_pool();

  /// Effects: reads the granularity, checks the options and maps the pages asked for. The first
  /// allocation does it where no call has.
  /// Errors: bad_option, not_supported (the granularity is no power of two), out_of_host_memory,
  /// driver errors; a later call tries again.
  /// Cost: driver calls by pages asked for, the first time.
  [[nodiscard]] status set_up();

  /// Requires: work on other streams that uses the block is ordered behind `stream` first.
  /// Effects: memory for work that `stream` is given from now on, aligned to 512 bytes. The bytes
  /// are not specified. [G1]
  /// Errors: those of set_up, the first time; invalid_argument (no bytes), in_use (max_streams
  /// others are in use), not_permitted (the stream is being captured, which options().capture
  /// refuses, or its capture was invalidated), out_of_memory, over_budget, out_of_mappings (these
  /// after everything was tried: see last_shortage; at once where the live blocks and the request
  /// exceed the budget or the device), out_of_addresses, out_of_host_memory, driver errors; no
  /// block is changed, and no more memory is held than before.
  /// Cost: O(1) and no driver call where memory that is free for the stream serves, but for the
  /// question of `capture`. Else driver calls by handles moved and created. Waits for work only
  /// when memory is short and options().wait_when_short is set.
  [[nodiscard]] inline result<address> allocate(std::uint64_t size_bytes, stream_handle stream);

  /// Requires: work on other streams that uses the block is ordered before `stream`. So is all work
  /// that the stream of its allocation had been given when the block was allocated, used or not:
  /// the memory may have come to the block behind that work.
  /// Effects: the block is free after the work that `stream` has been given so far. [G1]
  /// Errors: unknown_address, not_allocated (freed before), invalid_argument (inside a block),
  /// in_use (max_streams others are in use), not_permitted (as allocate; or the block is another
  /// captured graph's), out_of_host_memory (the records of a new stream); the block is as before.
  /// Cost: O(1), no driver call but the question of `capture`. Never waits for work.
  [[nodiscard]] inline status free(address at, stream_handle stream);

  /// Requires: capture_begins() was called for captures that no call on their stream has seen, on
  /// streams that do not synchronise with the default stream. With options().streams_forgotten the
  /// streams that the pool knows are queried too; with capture_rule::unchecked none is.
  /// Effects: the block is free after all that the device has been given so far, on every stream,
  /// known to this pool or not: what cudaFree promises, without waiting. The memory is handed out
  /// again, to whoever asks, when one event behind all that work (driver.record_all) has passed;
  /// frees before it is recorded share it. Only where memory is short is a stream, or a caller,
  /// made to wait for it. Drivers without that event: after the work of the streams that the pool
  /// knows, and of the default stream. While any stream of the process is captured the event cannot
  /// be recorded, and trying spoils the capture: it is put off until none is, and the block waits.
  /// An event that could not be recorded is recorded by a later call: the free is done all the
  /// same. A block that is pinned, or a captured graph's: as free(at, stream). [K4]
  /// Errors: as free(at, stream), but for those of a captured stream; not_permitted (the block has
  /// rights of its own).
  /// Cost: as free(at, stream), and at most one event's record and a question for each stream,
  /// under a lock of their own. Never waits for work.
  [[nodiscard]] status free(address at);
  /// Effects: a stream is about to be captured that the pool may not know: events behind all work
  /// are put off until capture_ended() was called as often. None is being recorded when it returns.
  /// With options().captures_announced the driver is asked at each call until then, too.
  /// Errors: not_permitted (in a forked child). Cost: waits for a record that is under way. [K4]
  [[nodiscard]] status capture_begins();
  /// Effects: ends one capture_begins(). Errors: invalid_argument (none before). Cost: O(1).
  [[nodiscard]] status capture_ended();
  /// Announcements that have not ended. Cost: waits for a record that is under way.
  [[nodiscard]] std::uint32_t announced_capture_count() const noexcept {
    return captures_.announced_count();
  }

  /// Requires: the block at `at` begins there. Whoever reaches memory beside the streams (a network
  /// card, another process, a captured graph) pins it for as long.
  /// Effects: the block's address and the memory behind it stay joined until unpin() was called as
  /// often. A live block never moves, pinned or not; what a pin adds is that free() does not end
  /// that: the address may be freed as usual, and the block is given back when the last pin goes.
  /// Errors: unknown_address, not_allocated (freed, also while pinned), invalid_argument (inside a
  /// block, or pinned 2^32 times), out_of_host_memory. Cost: O(1), no driver call.
  [[nodiscard]] status pin(address at);
  /// Requires: work that no stream orders has finished with the block.
  /// Effects: ends one pin. When it was the last of a block that has been freed, the block is free
  /// after all work that the freeing stream has been given so far.
  /// Errors: unknown_address, not_allocated, invalid_argument (not pinned, or inside a block).
  /// Cost: O(1), no driver call.
  [[nodiscard]] status unpin(address at);

  /// Requires: the listener does only what remap_listener permits, and stays where it is until the
  /// subscription has ended or the pool is gone.
  /// Effects: the listener is called before the memory behind an address changes, from the next
  /// change on. Errors: out_of_host_memory.
  /// Cost: O(1), and waits for a listener that is being called; one relaxed load at each change
  /// while nobody subscribes.
  [[nodiscard]] result<remap_subscription> subscribe(remap_listener& listener);
  /// Requires: not called from a listener.
  /// Effects: after it has returned the listener is not being called and is not called again. Waits
  /// for one that is. Errors: invalid_argument (not a live subscription). Cost: O(subscriptions).
  [[nodiscard]] status unsubscribe(remap_subscription subscription);
  /// Effects: none; answers the number of the latest change that has been announced. It grows
  /// before the change: two equal answers, the first after a change's effect was seen, say that
  /// none began in between. Cost: one load.
  [[nodiscard]] std::uint64_t remap_epoch() const noexcept { return notices_.epoch(); }

  /// Requires: called before the stream is destroyed, where it is called: see the constructor. No
  /// thread allocates or frees on it any more. Blocks that were allocated on it are freed later on
  /// a stream that is ordered behind it.
  /// Effects: a stream that gets this number later is a new one to the pool, and the record of this
  /// one serves others. What is free for the
  /// stream becomes every stream's when the work it has been given so far has finished; nothing
  /// waits for that. A stream that the pool does not know is no error.
  /// Errors: in_use (it is being captured, or freed on; or max_streams and the records besides are
  /// in use), out_of_host_memory, driver errors; the stream is as before.
  /// Cost: one event where anything was freed on it.
  [[nodiscard]] status forget(stream_handle stream);

  /// Requires: called before the capture is ended.
  /// Effects: none; answers the number of the capture that the stream is in, to release it by.
  /// Errors: invalid_argument (the stream is not being captured), not_supported, driver errors.
  /// Cost: one question to the driver.
  [[nodiscard]] result<std::uint64_t> capture_number(stream_handle stream);
  /// Requires: the graph's last launch is ordered before `stream`. The capture is not under way.
  /// Effects: what the graph kept (all that was freed in its capture, or of its memory since) is
  /// free for `stream`, after the work that it has been given so far. What is live then is freed as
  /// any block. A number that the pool does not know is no error.
  /// Errors: in_use (it is under way on this stream, or max_streams others are in use),
  /// out_of_host_memory, driver errors.
  /// Cost: O(what the graph kept), one question to the driver and one event.
  [[nodiscard]] status release_capture(std::uint64_t number, stream_handle stream);

  /// Requires: no stream is being captured.
  /// Effects: blocks until all work before the frees so far has finished. Errors: not_permitted (a
  /// stream is being captured), out_of_host_memory, driver errors. Cost: one event and one wait for
  /// each stream.
  [[nodiscard]] status synchronize();

  /// Effects: gives whole free handles back, largest first, until at most `limit_bytes` of free
  /// memory are kept. What unfinished work may use is kept. Errors: in the report.
  /// Cost: driver calls by handles; never waits for work. Made for a thread of its own: others
  /// allocate and grow meanwhile, waiting for one step (256 MiB) at most.
  [[nodiscard]] trim_report trim(std::uint64_t limit_bytes);

  /// Requires: not called from a listener or a watcher.
  /// Effects: says that a request of this size is to come on this stream, and makes ready what it
  /// will need: a free region, of new memory within the headroom that the request itself would have
  /// (options().rules), else of whole free handles that move and make no stream wait. Undoes old
  /// mappings where many are left. The memory is free as any other: who asks first has it, and two
  /// requests at a time are announced by their sum. A program that says the most that it will have
  /// live before its first request finds nearly all of it there. For moments when nobody waits, or
  /// a thread beside the requests. [G3]
  /// Errors: in the report: those of set_up; invalid_argument (no bytes), in_use (max_streams
  /// others are in use, or the pool is suspended), over_budget, out_of_memory, out_of_addresses,
  /// out_of_host_memory, driver errors. A step that fails leaves everything as it was; where memory
  /// is short, what the steps before have created goes back.
  /// Cost: driver calls by handles created and moved; never waits for work. One handle is mapped
  /// at a time: a request on another thread that grows meanwhile, or any where there is a watcher,
  /// waits for a step or two.
  [[nodiscard]] prepare_report prepare(std::uint64_t size_bytes, stream_handle stream);

  /// Effects: the driver is expected to refuse more than `limit_bytes` of this pool's memory, as
  /// where others share the device; 0: nothing is expected. New handles get smaller as what is held
  /// comes near, so that less strands in them, and more still fits. A budget of the options goes
  /// before it. Errors: none. Cost: one store.
  void expect_limit(std::uint64_t limit_bytes) noexcept {
    expected_limit_bytes_.store(limit_bytes, std::memory_order_relaxed);
  }

  /// Requires: work of the devices whose rights become less has finished with the pool's memory.
  /// Not called from a listener or a watcher.
  /// Effects: each location named has these rights to all of the pool's memory, what is mapped
  /// now and what will be, wherever it moves; the others keep theirs. Several devices in one call,
  /// and later ones. [I2]
  /// Errors: those of set_up; invalid_argument (no grants, the home or the placement, more
  /// locations than a list takes), in_use (another thread suspends or resumes the pool),
  /// not_supported (a device does not reach the memory, or the driver has no features::peers),
  /// out_of_host_memory, what query_peer and set_access answer; all is as before, as far as the
  /// driver lets it. Cost: a question for each grant, one set-access for each mapping; others grow
  /// afterwards.
  [[nodiscard]] status set_peers(std::span<const access_grant> grants);

  /// A block that shares its mappings with no other, so that it may have rights of its own.
  /// Requires: as allocate. Effects: as allocate, of new memory, or what the pool gave back; the
  /// size is rounded up to the pool's pages. Errors: as allocate; not_permitted (the stream is
  /// being captured). Cost: driver calls by handles. Free memory of the pool goes back to the
  /// driver where there is no other.
  [[nodiscard]] result<address> allocate_whole(std::uint64_t size_bytes, stream_handle stream);
  /// Requires: work of the devices whose rights become less has finished with the block. Not called
  /// from a listener or a watcher.
  /// Effects: each location named has these rights to the block, whatever set_peers() gives; the
  /// others keep theirs. They hold until the block is freed, through suspension and resumption.
  /// Freed, on a stream that is not being captured, its memory serves nobody until that stream's
  /// work has finished and the rights were taken away, by a call that grows or gives back. [I2]
  /// Errors: as free for a wrong address; not_supported (it shares a mapping with other memory of
  /// the pool: see allocate_whole(); or options().contents fills what is freed), not_permitted (a
  /// captured graph's), invalid_argument (no grants, the home or the placement, more locations than
  /// a list takes), in_use (the pool is suspended), out_of_host_memory, what set_access answers;
  /// all is as before. Cost: a set-access for each of its mappings.
  [[nodiscard]] status set_access(address at, std::span<const access_grant> grants);
  /// Effects: none; answers the mappings that the range touches, in address order, for whoever
  /// registers memory by segments: a remap_listener is told before they change.
  /// Errors: unknown_address (not the pool's), not_allocated (a part is not mapped),
  /// out_of_host_memory. Cost: O(mappings touched).
  [[nodiscard]] result<std::vector<memory_segment>> segments(address_range range);
  /// What of the memory held lies at options().spill. Cost: O(1).
  [[nodiscard]] std::uint64_t spilled_bytes() const noexcept;

  // ---- The field's shapes, and what owners of blocks need ----

  /// The largest alignment of a block. Every block is aligned to 512 bytes.
  static constexpr std::uint64_t alignment_bytes_max = std::uint64_t{2} << 20;
  /// As allocate(size_bytes, stream), at a multiple of `alignment_bytes`. The memory before and
  /// behind the block stays free.
  /// Requires: an alignment that is a power of two, from 1 to alignment_bytes_max.
  /// Errors: as above; invalid_argument (no power of two), not_supported (above 2 MiB: allocate
  /// from a manager).
  /// Cost: up to 512 bytes as above. Above, one search more; it takes no memory of a front, so that
  /// where only those have some it takes the slow path.
  [[nodiscard]] inline result<address> allocate(std::uint64_t size_bytes,
                                                std::uint64_t alignment_bytes,
                                                stream_handle stream) {
    if (alignment_bytes > granule_bytes || !std::has_single_bit(alignment_bytes)) [[unlikely]]
      return allocate_aligned({size_bytes, alignment_bytes}, stream);
    return allocate(size_bytes, stream);
  }
  /// For owners that cannot answer an error. Requires: as free(at, stream); a live block of this
  /// pool, with the size and alignment of its allocation.
  /// Effects: as free. The size and the alignment are not looked at. An address that is no live
  /// block ends the process. Any other failure (host memory, too many streams, a captured stream, a
  /// forked child) leaves the block live: free() takes it later, and else it goes with the pool,
  /// which tells options().at_end. Errors: none. Cost: as free.
  inline void deallocate(address at, std::uint64_t size_bytes, std::uint64_t alignment_bytes,
                         stream_handle stream) noexcept {
    (void)size_bytes;
    (void)alignment_bytes;
    if (const status freed = free(at, stream); !freed) [[unlikely]]
      check_left_live(freed.error());
  }
  /// As free(at), for owners that cannot answer an error: see the one above.
  inline void deallocate(address at, std::uint64_t size_bytes,
                         std::uint64_t alignment_bytes) noexcept {
    (void)size_bytes;
    (void)alignment_bytes;
    if (const status freed = free(at); !freed) [[unlikely]]
      check_left_live(freed.error());
  }
  /// What the pool works through.
  [[nodiscard]] driver_interface& driver() const noexcept { return *driver_; }
  /// The buffers and memory resources over this pool; it does not go while there are any.
  [[nodiscard]] user_count& users() noexcept { return users_; }

  /// For vmm.suspend. Requires: neither a listener nor a watcher makes its calls. begin_suspend()
  /// gives free memory back even if it fails. While free() fills blocks, it waits on other threads
  /// from each begin to its end. Cost: O(1).
  [[nodiscard]] suspendable& suspension() noexcept { return suspension_; }

  /// Effects: none. Errors: none. Cost: O(streams).
  [[nodiscard]] pool_statistics statistics() const;
  /// Effects: none; answers all regions in address order. Errors: out_of_host_memory. Cost:
  /// O(regions). [G8]
  [[nodiscard]] result<std::vector<pool_region>> regions() const;
  /// Effects: none; answers a text for people: a line of statistics for each of its kinds of bytes,
  /// then a line for each region in address order, with address, bytes, kind and, of free regions,
  /// the stream. Of one moment. Errors: as regions(). Cost: O(regions). [G8]
  [[nodiscard]] result<std::string> dump() const;
  /// Effects: none; answers what was tried for the last request that memory was too short for, and
  /// what held it. Cost: O(1).
  [[nodiscard]] shortage_report last_shortage() const;
  /// The events that options().recorder, or the ring of start_history(), has of this pool, and what
  /// lies where after the last of them. `import vmm.history;` names its type. Takes the pool's
  /// short lock again and again, for some microseconds, and at the end for as long as regions()
  /// does. [N1]
  /// Errors: invalid_argument (nothing is recorded, or nothing was allocated), out_of_host_memory.
  [[nodiscard]] result<history> take_history() const;
  /// Requires: not called from a listener or a watcher.
  /// Effects: sets the pool up, and records what it does from now on, into a ring of its own. [N1]
  /// Errors: in_use (its history is being recorded), bad_option, as set_up. Cost: waits for a
  /// growth that is under way.
  [[nodiscard]] status start_history(const history_options& how);
  /// Requires: as start_history.
  /// Effects: as take_history(), and nothing is recorded any more; a ring of the options is let go.
  /// Errors: as take_history(), and recording goes on. Cost: as both.
  [[nodiscard]] result<history> stop_history();
  /// Requires: the kind is not one of a block's, `allocated` to `unpinned`.
  /// Effects: an event of whoever stands on the pool (its memory is suspended, say) in the history,
  /// where the pool is set up and recorded; else nothing. Errors: none. Cost: a branch, or a lock
  /// and two records. [N1]
  void record(const history_note& what) noexcept;
  [[nodiscard]] const pool_options& options() const noexcept { return options_; }
  /// Requires: not called from a listener or a watcher.
  /// Effects: checks every invariant of every part. Errors: internal, whose detail names the
  /// invariant that is broken. Cost: O(everything).
  [[nodiscard]] status validate() const;

 private:
  // Whether there is memory to look at or to give back, in this process.
  [[nodiscard]] inline bool is_ready() const noexcept {
    return !path_.gate().is_closed_by(gate_reason::not_set_up) && path_.gate().is_here();
  }
  // Errors: unknown_address (nothing was allocated), not_permitted (in a forked child).
  [[nodiscard]] status check_ready() const noexcept;
  // Of calls that do nothing before the first allocation.
  [[nodiscard]] status check_here() const noexcept {
    return path_.gate().is_here() ? status{} : status{refuse_forked()};
  }
  // Of calls where the gate may be closed. What closes it is looked at here.
  [[nodiscard]] status open_to_allocate() VMM_EXCLUDES(rank::growth, rank::state);
  [[nodiscard]] result<address> allocate_closed(std::uint64_t size_bytes, stream_handle stream)
      VMM_EXCLUDES(rank::growth, rank::state);
  [[nodiscard]] result<address> allocate_aligned(const block_shape& shape, stream_handle stream)
      VMM_EXCLUDES(rank::growth, rank::state);
  [[nodiscard]] status free_closed(address at, stream_handle stream) VMM_EXCLUDES(rank::state);

  [[nodiscard]] pool_lower lower() noexcept {
    return {*driver_,      options_, contents_, phases_,  path_,   path_.gate(),
            path_.state(), entry_,   captures_, notices_, events_, expected_limit_bytes_,
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
  user_count users_{used_object::pool};
};

// What every request takes while nothing is slow, inline in its caller. Behind the query about
// captures nothing looks at it again: what the driver said is as good as query_capture()'s word.

inline result<address> stream_pool::allocate(std::uint64_t size_bytes, stream_handle stream) {
  if (!path_.gate().is_open()) [[unlikely]]
    return allocate_closed(size_bytes, stream);
  debug_check([this] { return is_ready(); }, "a pool allocates before it is set up");
  if (path_.needs_check(stream) && !path_.is_uncaptured(stream))
    return parts_->checked.allocate({size_bytes}, stream);
  if (const front_set* const fronts = path_.fronts()) {
    if (const address at = parts_->reuse.allocate_in_front(*fronts, size_bytes, stream)) return at;
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

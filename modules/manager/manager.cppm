// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.manager - one facade over the parts: allocate, free, resize, copy, statistics. [F1, F2]
//
// A manager turns requests into operations of the engine by its policy, and when memory is short it
// gives back what is kept and tries again. It is set up on its first allocation; making one costs
// nothing and calls no driver.
//
// I1  Whatever fails, every allocation and its contents are as before the call. What may have
//     changed is what was kept for reuse: memory that was in a cache may have gone back to the
//     driver.
// I2  Physical bytes held = behind allocations + behind cached ranges + cached pieces (+ waiting
//     for unfinished work).
// I3  Addresses are unmapped only when the work that may use them has finished; the host waits for
//     it only when memory is short and the options allow it, or to move a block without aliases.
// I4  A block's stream is ordered behind the work of those who had its memory before. The host is
//     when settle() has answered success.
//
// I5  In a forked child every call is refused with not_permitted (or answers nothing, where there
//     is no error to answer), takes no lock, and destroying the child's copy changes nothing.
//
// Thread safety: all of it. No driver call is made under a lock that another allocation needs, but
// allocations for which memory is short recover one after the other.
// Cost: bookkeeping O(log n); driver calls by the number of pieces. With keep_mapped, a request of
// a cached size makes no driver call but for events.
module;
#include "../sync/thread_annotations.h"

export module vmm.manager;

export import :policy;
export import vmm.backend;
import :cache;
import vmm.history;
import vmm.optimizer;
import vmm.physical;
import vmm.reservation;
import vmm.std;
import vmm.support;
import vmm.sync;
import vmm.timeline;
import vmm.top;
import vmm.tracker;
import vmm.va;

namespace vmm {

/// A block as asked for.
export struct allocate_request {
  std::uint64_t size_bytes = 0;  ///< not 0; rounded up to the granularity
  std::uint64_t growth_bytes =
      0;  ///< address space kept free behind the block, so that it can grow in place [B3]
  std::uint64_t alignment_bytes = 0;  ///< a power of two; below the granularity it costs nothing;
                                      ///< kept when the block moves
  stream_handle stream = stream_handle::default_stream;  ///< the stream that uses the block first
};

/// A live block, and the size that it is to have.
export struct resize_request {
  address at{};                    ///< what allocate returned
  std::uint64_t size_bytes = 0;    ///< not 0
  std::uint64_t growth_bytes = 0;  ///< room to keep behind the block where it has to move
  bool may_move = true;       ///< false: grow at the same address or fail with out_of_addresses
  bool names_stream = false;  ///< the block's stream exists: work waits on it instead of the caller
};

/// What a copy may do to its source. [E2, E4]
export enum class copy_mode : std::uint8_t {
  copy,   // bytes are copied; source and target are independent afterwards
  alias,  // both addresses may show the same memory until one of them is freed: write to neither
  // before that, and before the work that the freed one was given has finished. What the target
  // held behind the copied bytes is unspecified afterwards
  move,  // the source is given up: its memory may move to the target; only free it afterwards.
         // What the target held behind the copied bytes is unspecified afterwards
};

/// Numbers of one manager. Bytes but where the name says otherwise. [G8 of the manager]
export struct manager_statistics {
  std::uint64_t live_count = 0;
  std::uint64_t user_bytes = 0;  ///< as asked for, of live allocations
  std::uint64_t mapped_bytes =
      0;  ///< behind live allocations; an aliased piece counts at each address
  std::uint64_t footprint_bytes =
      0;  ///< physical memory that the driver has given and not got back
  std::uint64_t peak_footprint_bytes = 0;
  std::uint64_t cached_memory_bytes = 0;  ///< held, unmapped or waiting to be, free for any request
  std::uint64_t cached_range_bytes = 0;   ///< held and still mapped, free for requests of its size
  std::uint64_t retired_bytes = 0;        ///< address space that waits for unfinished work
  std::uint64_t reserved_bytes = 0;       ///< address space reserved
  std::uint64_t space_live_bytes = 0;     ///< address space handed out
  std::uint64_t space_high_water_bytes = 0;
  std::uint64_t created_count = 0;  ///< pieces made by the driver
  std::uint64_t reused_memory_count = 0;
  std::uint64_t reused_range_count =
      0;  ///< requests served by a cached range of their size (case 2)
  std::uint64_t grown_range_count = 0;    ///< by growing one (case 3)
  std::uint64_t unbound_range_count = 0;  ///< ranges taken apart (case 4)
  std::uint64_t remapped_copy_count = 0;
  std::uint64_t real_copy_count = 0;
  std::uint64_t recovery_count = 0;  ///< times that memory ran short and caches were drained [F2]
  std::uint64_t refused_unmap_count = 0;  ///< times that the driver kept a range that nothing used
  std::uint64_t suspended_bytes =
      0;  ///< of the mapped bytes: given back to the driver until they are resumed
};

/// How a block is exported. [S7]
export enum class export_rule : std::uint8_t {
  pinned,    // it is neither freed nor resized nor remapped until end_export()
  followed,  // it may change; who exported it asks again what it is made of
};

/// One driver's handle of a block.
export struct block_part {
  physical_handle handle = physical_handle::none;  ///< the manager's: not to be released
  std::uint64_t size_bytes = 0;
};

/// What a block is made of while it is exported.
export struct exported_range {
  address base{};
  std::uint64_t size_bytes = 0;  ///< whole granules: what is mapped
  share_kind shareable = share_kind::none;
  physical_properties granted{};
  std::vector<block_part> parts;  ///< in address order
  std::uint64_t number = 0;       ///< of the allocation: no other one of the manager has it
};

/// Told when the memory behind all of a manager's blocks goes, and when it is back, by a
/// suspension: for whoever registers it elsewhere. Neither function may call the manager.
export class suspension_listener {
 public:
  suspension_listener() = default;
  suspension_listener(const suspension_listener&) = delete;
  suspension_listener& operator=(const suspension_listener&) = delete;
  /// Before the first block loses its memory.
  virtual void memory_leaves() noexcept = 0;
  /// When each block that lives has memory at its address again.
  virtual void memory_returned() noexcept = 0;

 protected:
  ~suspension_listener() = default;

 private:
  friend class manager;
  suspension_listener* next_ = nullptr;
};

/// A stretch of the address space, as the picture of it shows it.
export enum class extent_kind : std::uint8_t { live, cached, retired, hole };
/// One of these stretches, with the memory behind it.
export struct extent_info {
  address_range where{};
  std::uint64_t mapped_bytes = 0;
  extent_kind kind = extent_kind::hole;
};

/// Blocks of whole granules that can be resized, copied by remapping and given room to grow.
///
/// Every call: Thread safety: any thread, but for the destructor. In a forked child it answers
/// not_permitted, or nothing where there is no error to answer. Where no errors are named, besides
/// those of set_up, "driver errors" are what the calls of docs/contract.md answer. Where the device
/// is short of memory, idle memory of the other pools and managers of the driver goes back to it:
/// see stream_pool.
export class manager {
 public:
  /// Requires: the driver outlives the manager and stays where it is.
  /// Effects: none yet; the first allocation sets the manager up. Cost: no driver call.
  explicit manager(driver_ref driver, const manager_options& options = {}) noexcept
      : driver_(driver),
        driver_use_(driver.use()),
        options_(options),
        recorder_(options.recorder) {}
  manager(const manager&) = delete;
  manager& operator=(const manager&) = delete;
  /// Requires: no vector or buffer uses the manager, and no thread calls it.
  /// Effects: options().at_end is called where blocks are live. They are freed, their work is
  /// waited for, and everything goes back to the driver. What the driver does not take back stays
  /// with the process, and a line on stderr says so. Cost: blocks until the work has finished.
  ~manager();
  /// The vectors and buffers over this manager; it does not go while there are any.
  [[nodiscard]] user_count& users() noexcept { return users_; }

  /// Effects: checks the options, first among themselves (manager_options::validate), then against
  /// the device's granularity. The first allocation does it where no call has.
  /// Errors: bad_option (the detail names the option and its range; every later call answers the
  /// same), not_supported (the backend's contents_stay), out_of_host_memory, what
  /// query_granularity answers; after these a later call tries again.
  /// Cost: one driver call, the first time.
  [[nodiscard]] status set_up();

  /// Requires: other streams than request.stream are ordered behind it before they use the block;
  /// the host calls settle() before it does.
  /// Effects: a block, whose bytes are not specified. Its stream is ordered, on the device, behind
  /// the work of those who had its memory before. [F1]
  /// Errors: invalid_argument (no bytes, more than any address space has, an alignment that is no
  /// power of two or above 2^31 granules), out_of_memory (after the caches were drained),
  /// over_budget (both at once where the live blocks and the request exceed the device or the
  /// budget), out_of_mappings, out_of_addresses, out_of_host_memory, bad_option and not_supported
  /// as set_up, driver errors. No more memory is held than before.
  /// Cost: O(log n) and driver calls by the number of pieces; none for a cached range of this size
  /// (keep_mapped). Blocks only when memory is short and the options allow it.
  [[nodiscard]] result<address> allocate(const allocate_request& request);
  [[nodiscard]] result<address> allocate(std::uint64_t size_bytes) {
    return allocate(allocate_request{size_bytes});
  }
  /// The same in the field's shape. Requires: an alignment that is a power of two, 1 or more.
  /// Errors: as above; invalid_argument for any other alignment.
  [[nodiscard]] result<address> allocate(std::uint64_t size_bytes, std::uint64_t alignment_bytes,
                                         stream_handle stream);

  /// Requires: other streams that use the block are ordered before the stream that it is freed
  /// behind: `last_use`, which exists, or the block's own, which may have been destroyed where
  /// memory_options::streams_forgotten is unset.
  /// Effects: the block is freed behind the work that the stream has been given so far.
  /// Errors: unknown_address, not_allocated (freed before), invalid_argument (inside a block),
  /// in_use (another thread is at it), driver errors; the block is as before.
  /// Cost: O(log n), one event and, where the work has finished, the unmapping. Never waits.
  [[nodiscard]] status free(address at);
  [[nodiscard]] status free(address at, stream_handle last_use);
  /// Requires: no unfinished work of the caller's uses the block. Work of those who had its memory
  /// before may be unfinished.
  /// Effects: frees at once. Errors: as free. Cost: as free, without an event.
  [[nodiscard]] status free_idle(address at);
  /// For owners that cannot answer an error. Requires: as free(at, stream); a live block of this
  /// manager, which no other thread changes, with the size and alignment of its allocation.
  /// Effects: as free(at, stream). The size and the alignment are not looked at. An address that is
  /// no live block, a stream that is not there, and a block that free() refuses with in_use (it is
  /// exported, a segment of a growable range, or named by another thread's call) end the process.
  /// Any other failure (host memory, the driver, a forked child) leaves the block live until the
  /// manager goes, which tells options().at_end. Errors: none. Cost: as free; waits for set_peers
  /// where that is at the block.
  void deallocate(address at, std::uint64_t size_bytes, std::uint64_t alignment_bytes,
                  stream_handle stream) noexcept;

  /// Requires: other streams that use the block are ordered behind its own, or settle() is called,
  /// before they use what was added; they are ordered before it when the block may move or shrink.
  /// Without request.names_stream and memory_options::streams_forgotten the block's stream may have
  /// been destroyed, and no stream is being captured (on a driver with features::record_all).
  /// Effects: changes the size and keeps the data: in place where the addresses behind the block
  /// are free, else by mapping the same memory at a new address, which is returned. No byte is
  /// copied. The old addresses stay mapped until the work given to the block's stream has finished.
  /// [E1, B3]
  /// Errors: as allocate and free; invalid_argument (a size of 0, or the block's memory is gone);
  /// out_of_addresses when the block may not move and cannot grow. The block is as before, but for
  /// device_lost: where a driver maps no memory twice (alias_level::none), the old mapping is
  /// undone before the new one is made, and a driver that refuses the new one and then the old one
  /// again, each time, leaves the block without contents. Its address and sizes.user_bytes = 0 are
  /// found, and free() is the only call that takes it. What of its memory still stands mapped goes
  /// back with it.
  /// Cost: driver calls by the number of pieces added or moved, not by bytes. Blocks where memory
  /// is short, and to move a block on a driver without aliases. Where the block's stream is not
  /// named, it blocks until the earlier users of the added memory, and fills, have finished.
  [[nodiscard]] result<address> resize(const resize_request& request);

  /// Requires: a stream of which no live block is; called before the stream is destroyed. Its work
  /// may be unfinished.
  /// Effects: memory that was freed behind the stream is no longer taken for another stream that
  /// gets its number. Errors: none.
  /// Cost: no driver call; later, for memory that is in use when it serves again, an event query
  /// and a wait on the device.
  void forget(stream_handle stream) noexcept;

  /// Requires: the caller's own work on the block is ordered by the caller.
  /// Effects: blocks the calling thread until the host may touch the block's bytes: until the work
  /// of those who had its memory before has finished. To be called after allocate, and after a
  /// resize that added memory, before the host's first write or read there.
  /// Errors: unknown_address, not_allocated, in_use, invalid_argument (inside a block, or its
  /// memory is gone), what synchronize_event answers; a later call tries again.
  /// Cost: O(pieces); a driver call only for work that is not known to have finished.
  [[nodiscard]] status settle(address at);

  /// Requires: the manager outlives the point. `import vmm.timeline;` names its type.
  /// Effects: a point behind all that `stream` has been given so far. Errors: as set_up;
  /// out_of_host_memory, what create_event and record_event answer. Cost: one event.
  [[nodiscard]] result<ticket_ref> mark(stream_handle stream);
  /// Requires: a point of this manager.
  /// Effects: blocks the calling thread until the work before it has finished. Errors: what
  /// synchronize_event answers. Cost: no driver call where that is known.
  [[nodiscard]] status wait(const ticket_ref& point);

  /// Requires: request.stream is ordered behind the streams of both blocks. Source and target do
  /// not overlap.
  /// Effects: copies in the order of that stream. alias and move remap where both ends are whole,
  /// idle blocks that fit, and copy bytes otherwise; only the time tells. [E2-E4]
  /// Errors: not_allocated (outside of a block), not_supported where bytes must be copied and the
  /// backend cannot; driver errors; device_lost as resize, for either block.
  /// Cost: that of the copy, or driver calls by the number of pieces.
  [[nodiscard]] status copy(const copy_request& request, copy_mode mode = copy_mode::copy);

  /// Effects: none; answers what is known of the block that `at` lies in. While its memory is
  /// suspended, from the begin of the suspension to the end of the resumption, its sizes are as
  /// before and each of its handles is `none`. [D1]
  /// Errors: unknown_address, not_allocated, out_of_host_memory. Cost: O(log n + pieces).
  [[nodiscard]] result<range_info> find(address at);

  /// Requires: manager_options::shareable. For vmm.share, and for whoever hands handles to others.
  /// Effects: answers what the block is made of. Its memory serves no other block any more: when it
  /// is freed, it goes back to the driver, since those it was given to may still use it. A block
  /// exported as pinned is refused with in_use by free, resize and remapping copies until
  /// end_export() was called as often. With a number, only the block whose exported_range has it.
  /// Errors: as free; not_allocated (another number's), not_supported (memory that was not made
  /// shareable), invalid_argument (the block's memory is gone), out_of_host_memory, what
  /// get_properties and unmap answer. Cost: O(log n + pieces), one driver call.
  [[nodiscard]] result<exported_range> begin_export(address at, export_rule rule,
                                                    std::uint64_t number = 0);
  /// Ends one export that was pinned. Errors: as free; invalid_argument (the block is not pinned).
  [[nodiscard]] status end_export(address at);

  /// Requires: work of the locations whose rights become less has finished with the block.
  /// Effects: each location named has these rights to the block; the others keep theirs. They hold
  /// until the block is freed, wherever it moves and however it grows. A location that the block's
  /// memory is not within reach of is refused. [I2]
  /// Errors: as free; invalid_argument (no grants, or more locations than a list takes),
  /// out_of_host_memory, what set_access answers; the block is as before.
  /// Cost: O(log n), one set-access, which the driver charges for each mapping and device.
  [[nodiscard]] status set_access(address at, std::span<const access_grant> grants);
  /// Requires: as set_access, of all blocks.
  /// Effects: the same for every block, live and to come: several devices in one call, and later
  /// ones. Rights of a block's own stay. Where a freed block waits to be unmapped, its addresses
  /// keep the rights that they had.
  /// Errors: invalid_argument (no grants, the home or the placement, more locations than a list
  /// takes), in_use (another thread is changing a block), not_supported (a device does not reach
  /// the memory, or the driver has no features::peers), out_of_host_memory, what set_up, query_peer
  /// and set_access answer; all is as before, as far as the driver lets it.
  /// Cost: a question for each grant, one set-access for each block.
  [[nodiscard]] status set_peers(std::span<const access_grant> grants);
  /// Effects: none; answers the mappings that the range touches, in address order, for whoever
  /// registers memory by segments. They change with resize and copies by remapping.
  /// Errors: as free; invalid_argument (not inside the bytes of one block), out_of_host_memory.
  /// Cost: O(log n + pieces).
  [[nodiscard]] result<std::vector<memory_segment>> segments(address_range range);
  /// What of the footprint lies at options().spill. Cost: O(1).
  [[nodiscard]] std::uint64_t spilled_bytes() const noexcept;

  // The following are for vmm.suspend, which calls them in pairs, and says what they are for.
  /// Requires: no work is given to any stream that uses the manager's blocks, until their memory is
  /// resumed.
  /// Effects: allocate is refused from now on. Waits for the work of the blocks' streams and of
  /// `streams`; what is cached goes back to the driver. Then `out` has the memory of the live
  /// blocks, unchanged, and no other thread can change those blocks. Blocks that other threads are
  /// just making, and those whose memory has gone to another, are left out. [M1]
  /// Errors: in_use (suspended already; a block is exported, a growable range's, being changed, or
  /// shares its memory; a stream is captured), as set_up, out_of_host_memory, driver errors; all
  /// blocks are as before. Cost: blocks until the work has finished; a trim.
  [[nodiscard]] status begin_suspend(std::span<const stream_handle> streams, suspension_list& out);
  /// Requires: what begin_suspend listed. Effects: with `done` the manager is suspended: its blocks
  /// are live and can be freed, and nothing else. Else it goes on, and all parts are mapped.
  void end_suspend(const suspension_list& parts, bool done) noexcept;
  /// Effects: `out` has what is to be mapped again, without the blocks that were freed meanwhile.
  /// Errors: invalid_argument (it is not suspended), in_use (another thread is at it, or frees one
  /// of its blocks), out_of_host_memory. Cost: O(blocks + pieces).
  [[nodiscard]] status begin_resume(suspension_list& out);
  /// Requires: what begin_resume listed. Effects: with `done` the manager goes on; else it stays
  /// suspended.
  void end_resume(const suspension_list& parts, bool done) noexcept;
  /// Requires: between a begin and its end. Effects: listeners hear that the memory goes, or that
  /// it is back.
  void announce(suspension_phase what) noexcept;
  /// Requires: the listener is the manager's until ignore(). Effects: it is told from now on.
  /// Cost: O(1), of ignore() O(listeners); both wait for one that is being told.
  void listen(suspension_listener& to) noexcept;
  void ignore(suspension_listener& gone) noexcept;
  /// As stream_pool::take_from_others().
  std::uint64_t take_from_others(std::uint64_t size_bytes) { return relief_.relieve(size_bytes); }
  /// Requires: begin_suspend or begin_resume has answered. Effects: none.
  [[nodiscard]] device_core& core() noexcept {
    check(engine_ != nullptr, "a manager that was not set up has no memory");
    return engine_->core();
  }

  /// Effects: gives cached memory back until at most `limit_bytes` of it are kept. [C4]
  /// Errors: in the report. Cost: a release for each piece; waits for no work, only for another
  /// thread that gives memory back.
  [[nodiscard]] trim_report trim(std::uint64_t limit_bytes);
  [[nodiscard]] trim_report drain() { return trim(0); }

  /// Effects: none. Errors: none. Cost: O(1).
  [[nodiscard]] manager_statistics statistics() const;
  /// Effects: none; answers all of the address space in address order up to the last extent in use.
  /// Errors: out_of_host_memory. Cost: O(extents).
  [[nodiscard]] result<std::vector<extent_info>> extents();
  /// The events that options().recorder, or the ring of start_history(), has of this manager, and
  /// what lies where after the last of them, as far as other threads let that be known. `import
  /// vmm.history;` names its type. [N1]
  /// Errors: invalid_argument (nothing is recorded, or nothing was allocated), out_of_host_memory.
  /// Cost: O(events + extents).
  [[nodiscard]] result<history> take_history();
  /// Effects: sets the manager up, and records what it does from now on, into a ring of its own.
  /// Errors: in_use (its history is being recorded), bad_option, as set_up. Cost: a lock. [N1]
  [[nodiscard]] status start_history(const history_options& how);
  /// Effects: as take_history(), and nothing is recorded any more; a ring of the options is let go.
  /// Errors: as take_history(); where host memory ran out, recording may have ended all the same.
  /// Cost: as take_history().
  [[nodiscard]] result<history> stop_history();
  /// Requires: the kind is not one of a block's, `allocated` to `unpinned`.
  /// Effects: an event of whoever stands on the manager (its memory is suspended, say) in the
  /// history, where the manager is set up and recorded; else nothing. Errors: none. Cost: a branch,
  /// or a lock and two records. [N1]
  void record(const history_note& what) noexcept;
  [[nodiscard]] const manager_options& options() const noexcept { return options_; }
  /// What the manager works through.
  [[nodiscard]] driver_interface& driver() const noexcept { return *driver_; }
  /// Sizes are multiples of it. 0 before set_up.
  [[nodiscard]] std::uint64_t granularity_bytes() const noexcept {
    const bool is_ready = is_set_up_.load(std::memory_order_acquire);
    check(!is_ready || unit_bytes_ > 0, "a manager is set up and has no granularity");
    return is_ready ? unit_bytes_ : 0;
  }
  /// Effects: none; asks every validator of every part, each by itself: other threads may go on.
  /// Errors: internal, with what is broken. Cost: O(everything).
  [[nodiscard]] status validate() const;

  /// For vmm.growable, whose segments are blocks of the manager's parts. Effects: as set_up.
  /// Errors: as set_up. Cost: none after set_up.
  [[nodiscard]] result<engine*> parts();
  /// For the same: runs `operation`, which answers a status; where memory is short, gives back what
  /// is kept and runs it again, as allocate does. Requires: parts() has answered. Errors: in_use
  /// (the manager's memory is suspended), those of the operation. Cost: the operation's; blocks
  /// only where memory is short.
  template <class Operation>
  [[nodiscard]] status recover(const creation& what, relief_pass& pass, Operation&& operation) {
    if (suspension_.load(std::memory_order_acquire) != suspension_phase::running)
      return refuse_suspended();
    return with_recovery(what, pass, std::forward<Operation>(operation));
  }
  /// For the same: with_relief() of `attempt(relief_pass&)`. Where that fails, what it created goes
  /// back to the driver, and its error gets its figures. Requires: no lock is held. Errors: the
  /// attempt's.
  template <class Attempt>
  [[nodiscard]] status with_others(const std::uint64_t& size_bytes, Attempt&& attempt) {
    const std::uint64_t mark = creation_mark();
    const status done = with_relief(relief_, size_bytes, std::forward<Attempt>(attempt));
    return done ? done : status{end_failed(mark, size_bytes, done.error())};
  }
  /// For the same: refuses memory that exceeds, together with the live blocks, the budget or the
  /// device. Errors: over_budget, out_of_memory. Cost: O(1), at most one query_memory.
  [[nodiscard]] status check_can_fit(const creation& what);

 private:
  struct counters {
    sync::atomic<std::uint64_t> reused_range_count = 0;
    sync::atomic<std::uint64_t> grown_range_count = 0;
    sync::atomic<std::uint64_t> unbound_range_count = 0;
    sync::atomic<std::uint64_t> remapped_copy_count = 0;
    sync::atomic<std::uint64_t> real_copy_count = 0;
    sync::atomic<std::uint64_t> recovery_count = 0;
    sync::atomic<std::uint64_t> allocated_count = 0;  // numbers that were given
  };

  static constexpr std::uint64_t size_bytes_max = std::uint64_t{1} << 56;
  // The second time finds what threads that were short together had gathered in vain.
  static constexpr int recovery_attempts = 2;
  static constexpr std::size_t reap_count =
      8;  // retired ranges looked at before each request: bounds its cost

  [[nodiscard]] result<core_options> plan_engine();
  [[nodiscard]] result<range_sizes> sizes_for(std::uint64_t size_bytes,
                                              std::uint64_t growth_bytes) const;
  [[nodiscard]] static block& block_of(tracked_range& range) noexcept {
    return static_cast<block&>(range);
  }
  [[nodiscard]] result<block*> claim(address at, pinned_record pinned = pinned_record::refused);
  [[nodiscard]] result<exported_range> describe_export(block& given);
  [[nodiscard]] result<ticket_ref> end_use(block& used, std::uint64_t from_bytes,
                                           bool is_named = false);
  [[nodiscard]] result<stream_handle> choose_filler(stream_handle stream, bool is_named);
  [[nodiscard]] result<ticket_ref> record_use(stream_handle stream, bool is_named) {
    check(engine_ != nullptr, "work is marked before there is memory");
    return is_named ? engine_->time().mark(stream) : engine_->time().mark_unnamed(stream);
  }
  [[nodiscard]] status free_after(block& gone, const ticket_ref& last_use);
  void check_made(const block& made, const block_request& wanted) const noexcept;
  [[nodiscard]] result<address> allocate_checked(const block_request& wanted);
  [[nodiscard]] result<block*> obtain(const block_request& request);
  [[nodiscard]] result<block*> reuse_exact(block& cached, const block_request& request);
  [[nodiscard]] result<block*> grow_cached(block& cached, const block_request& request);
  [[nodiscard]] status unbind(block& cached);
  void uncache_failed(block& cached) noexcept;
  [[nodiscard]] result<address> resize_claimed(block& resized, const resize_request& request);
  [[nodiscard]] status grow(block& grown, const resize_request& request, resize_plan plan);
  [[nodiscard]] status remap_copy(const copy_request& request, copy_mode mode);
  [[nodiscard]] status remap_claimed(block& target, block& source, const copy_request& request,
                                     copy_mode mode);
  [[nodiscard]] bool remap_fits(const block& target, const block& source,
                                const copy_request& request) const;
  [[nodiscard]] status real_copy(const copy_request& request);
  [[nodiscard]] status drain_ranges(std::uint64_t limit_bytes);
  [[nodiscard]] trim_report give_back(std::uint64_t limit_bytes);
  // Of the pieces that no range has.
  [[nodiscard]] trim_report release_memory(std::uint64_t limit_bytes) {
    check(engine_ != nullptr, "a manager that is not set up gives memory back");
    const sync::lock_guard<sync::mutex> releasing(release_mutex_);
    return engine_->memory().trim(limit_bytes);
  }
  [[nodiscard]] status empty();
  void report_live() noexcept;
  // Where there is a recorder. A block's event is written while its record is claimed: before
  // anybody else can have its addresses, or its memory.
  void note(const history_note& what) noexcept;
  void note_block(history_kind kind, block& of) noexcept;
  void note_changed(block& now, address before) noexcept;
  void note_footprint() noexcept;
  void note_failure(const block_request& wanted, const error& why) noexcept;
  void note_resize_failed(const resize_request& request, stream_handle stream,
                          const error& why) noexcept;
  void note_pin(history_kind what, const block& of) noexcept;
  [[nodiscard]] bool list_told(std::vector<history_region>& out) const noexcept;
  [[nodiscard]] status describe(const std::vector<extent_info>& extents, history& into) const;
  [[nodiscard]] result<block*> build(const block_request& request);
  enum class history_end : std::uint8_t { stays, ends };
  [[nodiscard]] result<history> take(history_end how, std::unique_ptr<history_ring>& ended);
  struct take_plan {
    history_end how = history_end::stays;
    std::size_t room_count = 0;  // of live blocks
  };
  [[nodiscard]] result<history> take_once(const take_plan& plan,
                                          std::unique_ptr<history_ring>& ended, bool& is_whole);
  void sample(top_sample& out) const noexcept;

  // Runs `operation`; when memory is short, gives back what is kept and runs it again, then waits
  // for unfinished work on freed memory, oldest first, until it succeeds or nothing is left to wait
  // for. One thread recovers at a time: memory that another is just giving back is not missed. [F2]
  template <class Operation>
  [[nodiscard]] auto with_recovery(const creation& what, relief_pass& pass, Operation&& operation) {
    auto outcome = operation();
    if (outcome || !is_shortage(outcome.error().code)) return outcome;
    check(engine_ != nullptr, "a manager that is not set up is short of memory");
    const bool stops_early =
        pass.stops_early && is_device_shortage(outcome.error().code) && relief_.has_others();
    const relief_pause pause;
    const sync::lock_guard<sync::mutex> recovering(recovery_mutex_);
    counts_.recovery_count.fetch_add(1, std::memory_order_relaxed);
    recovery so_far{.what = what, .pass = stops_early ? &pass : nullptr};
    return retry_while_short(std::move(outcome), operation, [&] { return relieve(so_far); });
  }
  // The same, and where the device has no memory left, once more with the memory of
  // options().spill.
  template <class Operation>
  [[nodiscard]] auto with_spill(const creation& what, relief_pass& pass, Operation&& operation) {
    auto outcome = with_recovery(what, pass, operation);
    if (outcome || outcome.error().code != errc::out_of_memory || !options_.spill) return outcome;
    if (pass.has_stopped) return outcome;
    check(engine_ != nullptr, "a manager that is not set up is short of memory");
    const spill_permit permit(engine_->memory());
    return operation();
  }
  // All of that, with what other allocators can give back.
  template <class Operation>
  [[nodiscard]] auto create_memory(const creation& what, Operation&& operation) {
    return with_relief(relief_, what.size_bytes,
                       [&](relief_pass& pass) { return with_spill(what, pass, operation); });
  }
  struct recovery {
    creation what{};
    relief_pass* pass = nullptr;  // where it stops before it waits
    int drains_left = recovery_attempts;
  };
  // False when nothing is left to give back or to wait for.
  [[nodiscard]] bool relieve(recovery& so_far);
  [[nodiscard]] bool relieve_once(recovery& so_far);
  [[nodiscard]] std::uint64_t creation_mark() const noexcept;
  [[nodiscard]] error end_failed(std::uint64_t mark, std::uint64_t size_bytes, const error& why);
  [[nodiscard]] error with_figures(const error& why, std::uint64_t size_bytes);
  [[nodiscard]] std::uint64_t give_idle_back(std::uint64_t wanted_bytes);
  // ---- suspension.cpp ----
  [[nodiscard]] status claim_to_suspend();
  [[nodiscard]] status claim_suspended();
  [[nodiscard]] status finish_work(std::span<const stream_handle> streams);
  [[nodiscard]] result<bool> finish_stream(stream_handle stream);
  [[nodiscard]] status list_parts(suspension_list& out);
  [[nodiscard]] static status refuse_suspended() noexcept;
  [[nodiscard]] suspension_phase change_phase(suspension_phase from) VMM_NOT_ANALYSED;
  void end_change(suspension_phase next) noexcept VMM_NOT_ANALYSED;
  void unclaim_all() noexcept;
  void set_all_suspended(bool suspended) noexcept;
  // ---- rights.cpp ----
  [[nodiscard]] status check_peers(std::span<const access_grant> grants) const;
  // What set_peers() gives rights to: blocks, and the rooms of growable ranges, whose owners wait.
  struct peers_turn {
    std::vector<address> blocks;
    std::vector<block*> rooms;
  };
  [[nodiscard]] status list_all(peers_turn& out);
  [[nodiscard]] status check_room(const peers_turn& listed, const grant_list& after);
  [[nodiscard]] status refresh_all(const peers_turn& listed);
  // options().contents
  [[nodiscard]] bool clears_on_release() const noexcept {
    return options_.contents == contents_rule::zero_on_release ||
           options_.contents == contents_rule::poison;
  }
  [[nodiscard]] bool clears_on_acquire() const noexcept {
    return options_.contents == contents_rule::zero_on_acquire ||
           options_.contents == contents_rule::poison;
  }
  [[nodiscard]] status finish_made(block& made);
  [[nodiscard]] status fill_acquired(const block& of, std::uint64_t from_bytes,
                                     stream_handle stream);
  [[nodiscard]] status fill_grown(block& of, const range_sizes& before, bool is_named);
  [[nodiscard]] status fill_released(block& of, std::uint64_t from_bytes, stream_handle stream);

  // Between the engine and the history.
  class teller final : public block_listener {
    friend class manager;
    explicit teller(manager& of) noexcept : of_(of) {}
    void changed(block& now, address before) noexcept override { of_.note_changed(now, before); }

    manager& of_;
  };

  driver_ref driver_;
  use_of driver_use_;
  manager_options options_;
  sync::mutex set_up_mutex_;
  sync::mutex recovery_mutex_;
  sync::mutex release_mutex_;  // after that of recovery; held while memory goes back to the driver
  sync::atomic<bool> is_set_up_ = false;
  const process_mark made_in_;
  std::uint64_t unit_bytes_ = 0;   // sizes are multiples of it
  std::uint64_t place_bytes_ = 0;  // addresses are multiples of it
  teller teller_{*this};
  std::unique_ptr<engine> engine_;
  range_cache cache_;
  counters counts_;
  history_use recorder_;
  sync::mutex history_lock_;                 // from taking a history to its end: the ring stays
  sync::spin_lock recorder_lock_;            // around each event; after the other
  std::uint64_t noted_footprint_bytes_ = 0;  // under that lock
  std::uint64_t history_number_ = 1;         // the same: of the recording that there is
  top_use top_;
  sync::mutex peers_mutex_;       // of set_peers
  sync::mutex suspension_mutex_;  // around a change of the next one
  sync::atomic<suspension_phase> suspension_ = suspension_phase::running;
  sync::recursive_mutex changing_mutex_;  // of whoever has made the phase `changing`, until it ends
  std::vector<block*> suspending_;        // under it: the blocks that were claimed
  sync::mutex listeners_mutex_;
  suspension_listener* listeners_ VMM_GUARDED_BY(listeners_mutex_) = nullptr;
  relief_member relief_;
  user_count users_{used_object::manager};
};

}  // namespace vmm

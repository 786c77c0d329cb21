// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.manager:facade - the public class of a manager: allocate, free, resize, rights.
//
// A manager turns requests into operations of the engine by its policy; when memory is short it
// releases retained memory and tries again. The first allocation sets it up; its constructor makes
// no driver call.
//
// - A failed call leaves every allocation and its contents as they were; retained memory may have
//   been released.
// - Physical bytes held = behind allocations + behind retained ranges + retained handles (+ waiting
//   for unfinished work).
// - Addresses are unmapped only when the work that may use them has finished; the host waits for it
//   only when memory is short and the options allow it, or to move a block without aliases.
// - A block's stream is ordered behind the work of its memory's earlier users; so is the host after
//   `synchronize()` of the block.
// - In a forked child every call returns not_permitted (or an empty value if it returns no error)
//   and takes no lock, and destroying the child's copy changes nothing.
//
// Thread safety: all of it. No driver call is made under a lock that another allocation needs, but
// allocations for which memory is short recover one after the other.
// Cost: bookkeeping O(log n); driver calls by the number of handles. With keep_mapped, a request of
// a retained size makes no driver call except for events.
module;
#include "../base/thread_annotations.h"

export module vmm.manager:facade;

import vmm.backend;
import vmm.base;
import vmm.observe;
import vmm.optimizer;
import vmm.physical;
import vmm.std;
import vmm.timeline;
import vmm.tracker;
import :base;
import :contents;
import :copy;
import :exports;
import :history;
import :locks;
import :policy;
import :report;
import :resize;
import :reuse;
import :rights;
import :shortage;
import :statistics;
import :suspension;
import :types;

namespace vmm {

/// Ranges that grow in place: see :growable.
export class growable_range;

/// Defined below.
export class manager;

/// The recording of a manager's events. A view, created for a call.
///
/// Every call: Thread safety: any thread. In a forked child it returns not_permitted, or an empty
/// value.
class manager_recording {
 public:
  explicit manager_recording(manager& of) noexcept : of_(of) {}

  /// Returns the events of this manager in options().recorder, or in the ring of start(), and the
  /// layout after the last of them, except blocks that other threads are changing.
  /// Errors: invalid_argument (nothing is recorded, or nothing was allocated), out_of_host_memory.
  /// Cost: O(events + extents).
  [[nodiscard]] result<history> take();
  /// Effects: sets the manager up, and records its events from now on, into a ring of its own.
  /// Errors: in_use (its history is being recorded), bad_option, as set_up. Cost: a lock.
  [[nodiscard]] status start(const history_options& how);
  /// Effects: as take(), and ends the recording; a ring of the options is released.
  /// Errors: as take(); if host memory ran out, the recording may have ended all the same.
  /// Cost: as take().
  [[nodiscard]] result<history> stop();
  /// Requires: the kind is not one of a block's, `allocated` to `unpinned`.
  /// Effects: adds an event of a layer above the manager, such as a suspension, to the history.
  /// Does nothing unless the manager is set up and recorded. Errors: none. Cost: a branch, or a
  /// lock and two records.
  void record(const history_note& what) noexcept;

 private:
  manager& of_;
};

/// Blocks of whole granules that can be resized, copied by remapping and given room to grow.
///
/// Every call: Thread safety: any thread, except the destructor. In a forked child it returns
/// not_permitted, or an empty value if it returns no error. Besides the named errors a call may
/// return those of set_up. "Driver errors" are those of the calls of docs/contract.md. If the
/// device is short of memory, idle memory of the other pools and managers of the driver is
/// released: see stream_pool. A call does not disturb a capture on another stream, except free(at)
/// and a resize or remapped copy that records an event behind all work.
export class manager {
 public:
  /// Requires: the driver outlives the manager and is not moved.
  /// Effects: none yet; the first allocation sets the manager up. Cost: no driver call.
  explicit manager(driver_ref driver, const manager_options& options = {}) noexcept
      : base_(driver, options) {}
  manager(const manager&) = delete;
  manager& operator=(const manager&) = delete;
  /// Requires: no vector or buffer uses the manager, and no thread calls it. If blocks are live, no
  /// stream is being captured.
  /// Effects: calls options().leak_hook if blocks are live, frees them, waits for all work of the
  /// device, and releases everything to the driver. Memory that the driver refuses to release stays
  /// with the process, with a line on stderr. Cost: blocks until the work has finished.
  ~manager();
  /// The vectors and buffers over this manager; it must not be destroyed while they exist.
  [[nodiscard]] user_count& users() noexcept { return users_; }

  /// Effects: checks the options, first among themselves (manager_options::validate), then against
  /// the device's granularity. The first allocation calls it if it was not called.
  /// Errors: bad_option (the detail names the option and its range; every later call returns the
  /// same), not_supported (the backend's contents_stay), out_of_host_memory, those of
  /// query_granularity; after these a later call tries again.
  /// Cost: one driver call, the first time.
  [[nodiscard]] status set_up();

  /// Requires: other streams than request.stream are ordered behind it before they use the block;
  /// the host calls `synchronize()` before it does.
  /// Effects: returns a block with unspecified bytes. Its stream is ordered, on the device, behind
  /// the work of the memory's earlier users.
  /// Errors: invalid_argument (0 bytes, more than any address space has, an alignment that is not a
  /// power of two or is above 2^31 granules), out_of_memory (after retained memory was released),
  /// over_budget (both at once if the live blocks and the request exceed the device or the budget),
  /// out_of_mappings, out_of_addresses, out_of_host_memory, bad_option and not_supported as set_up,
  /// driver errors. Memory held does not grow.
  /// Cost: O(log n) and driver calls by the number of handles; none for a retained range of this
  /// size (keep_mapped). Blocks only when memory is short and the options allow it.
  [[nodiscard]] result<address> allocate(const allocate_request& request);
  [[nodiscard]] result<address> allocate(std::uint64_t size_bytes) {
    return allocate(allocate_request{size_bytes});
  }
  /// The same in the shape of std::pmr. Requires: an alignment that is a power of two, 1 or more.
  /// Errors: as above; invalid_argument for any other alignment.
  [[nodiscard]] result<address> allocate(std::uint64_t size_bytes, std::uint64_t alignment_bytes,
                                         stream_handle stream);

  /// Requires: other streams that use the block are ordered before the stream on which it is freed:
  /// `last_use`, which exists, or the block's own, which may have been destroyed unless
  /// memory_options::streams_forgotten is set.
  /// Effects: frees the block after the work submitted to that stream so far.
  /// Errors: unknown_address, not_allocated (freed before), invalid_argument (inside a block),
  /// in_use (another thread is changing it), not_permitted (below), driver errors; the block is as
  /// before.
  /// Cost: O(log n), one event and, if the work has finished, the unmapping. Never waits. free(at)
  /// of a block whose stream is neither the default one nor one that may be named records an event
  /// behind all work: while a stream is captured this returns not_permitted and invalidates the
  /// capture. Name the stream there.
  [[nodiscard]] status free(address at);
  [[nodiscard]] status free(address at, stream_handle last_use);
  /// Requires: no unfinished work submitted since the allocation uses the block.
  /// Effects: frees at once. Errors: as free. Cost: as free, without an event.
  [[nodiscard]] status free_idle(address at);
  /// For owners that cannot return an error. Requires: as free(at, stream); a live block of this
  /// manager, which no other thread changes, with the size and alignment of its allocation.
  /// Effects: as free(at, stream). The size and the alignment are ignored. An address that is not a
  /// live block, a stream that does not exist, and a block that free() refuses with in_use (it is
  /// exported, a segment of a growable range, or named by another thread's call) end the process.
  /// Any other failure (host memory, the driver, a forked child) leaves the block live until the
  /// manager's end, which reports it to options().leak_hook. Errors: none. Cost: as free; waits for
  /// a set_peers that is changing the block.
  void deallocate(address at, std::uint64_t size_bytes, std::uint64_t alignment_bytes,
                  stream_handle stream) noexcept;

  /// Requires: other streams that use the block are ordered behind its own, or `synchronize()` is
  /// called, before they use added bytes; they are ordered before it when the block may move or
  /// shrink. Without request.names_stream and memory_options::streams_forgotten no stream is being
  /// captured (on a driver with features::record_all); the block's stream may have been destroyed.
  /// Effects: changes the size and keeps the contents: in place if the addresses behind the block
  /// are free, else by mapping the same memory at a new address, which is returned. No byte is
  /// copied. The old addresses stay mapped until the work submitted to the block's stream has
  /// finished.
  /// Errors: as allocate and free; invalid_argument (a size of 0, or the block's memory was lost);
  /// out_of_addresses when the block may not move and cannot grow. The block is as before, except
  /// after device_lost: if the driver cannot map memory twice (alias_level::none), the old mapping
  /// is undone before the new one is made, and a driver that refuses first the new one and then
  /// repeatedly the old one leaves the block without contents. find() then reports its address and
  /// sizes.user_bytes = 0, and only free() accepts it, which releases the rest of its memory.
  /// Cost: driver calls by the number of handles added or moved, not by bytes. Blocks if memory is
  /// short, and to move a block on a driver without aliases. If the block's stream is not named, it
  /// blocks until the earlier users of the added memory, and fills, have finished.
  [[nodiscard]] result<address> resize(const resize_request& request) {
    return resizer_.resize(request);
  }

  /// Requires: a stream without live blocks; called before the stream is destroyed. Its work may be
  /// unfinished.
  /// Effects: memory freed on the stream is not attributed to a later stream of the same handle.
  /// Errors: none.
  /// Cost: no driver call; later an event query and a wait on the device, for memory that is reused
  /// while work uses it.
  void forget(stream_handle stream) noexcept;

  /// Requires: the caller orders its own work on the block.
  /// Effects: blocks the calling thread until the work of the memory's earlier users has finished.
  /// Call it after allocate, and after a resize that added memory, before the host's first access
  /// there.
  /// Errors: unknown_address, not_allocated, in_use, invalid_argument (inside a block, or its
  /// memory was lost), those of synchronize_event; a later call tries again.
  /// Cost: O(handles); a driver call only for work that is not known to have finished.
  [[nodiscard]] status synchronize(address at);

  /// Requires: the manager outlives the point. `import vmm.timeline;` names its type.
  /// Effects: returns a point behind all work submitted to `stream` so far. Errors: as set_up;
  /// out_of_host_memory, those of create_event and record_event. Cost: one event.
  [[nodiscard]] result<ticket_ref> record(stream_handle stream);
  /// Requires: a point of this manager.
  /// Effects: blocks the calling thread until the work before it has finished. Errors: those of
  /// synchronize_event. Cost: no driver call if the work is known to have finished.
  [[nodiscard]] status wait(const ticket_ref& point);

  /// Requires: request.stream is ordered behind the streams of both blocks. Source and target do
  /// not overlap.
  /// Effects: copies in the order of that stream. alias and move remap if both ends are whole, idle
  /// blocks that fit, and copy bytes otherwise, which only takes longer.
  /// Errors: not_allocated (outside of a block), not_supported (bytes must be copied, and the
  /// backend cannot), driver errors; device_lost as resize, for either block.
  /// Cost: that of the copy, or driver calls by the number of handles.
  [[nodiscard]] status copy(const copy_request& request, copy_mode mode = copy_mode::copy);

  /// Effects: none; returns the block that contains `at`. From the begin of a suspension to the end
  /// of the resumption its sizes are as before, and each of its handles is `none`.
  /// Errors: unknown_address, not_allocated, out_of_host_memory. Cost: O(log n + handles).
  [[nodiscard]] result<range_info> find(address at);

  /// For vmm.share. Cost: O(1).
  [[nodiscard]] manager_exports& exports() noexcept { return exports_; }

  /// Requires: work of the locations that lose rights has finished with the block.
  /// Effects: each location named has these rights to the block; the others keep theirs. They stay
  /// until the block is freed, while it moves and grows. A location that does not reach the block's
  /// memory is refused.
  /// Errors: as free; invalid_argument (no grants, or more locations than a list takes),
  /// out_of_host_memory, those of set_access; the block is as before.
  /// Cost: O(log n), one set-access, which the driver charges for each mapping and device.
  [[nodiscard]] status set_access(address at, std::span<const access_grant> grants) {
    return rights_.set_access(at, grants);
  }
  /// Requires: as set_access of a block.
  /// Effects: the same for a part of a block that begins and ends with mappings of it (segments()
  /// lists them). The rights start as those of the block, and stay while the block grows, moves and
  /// is suspended; bytes that a shrink removes lose them. A copy onto the block copies bytes. Later
  /// grants to all of the block apply to the part, too.
  /// Errors: as for a block; unknown_address, not_allocated, invalid_argument (not inside one
  /// block), not_supported (a border inside a mapping); the block is as before.
  /// Cost: O(log n + mappings), a set-access for each run of mappings with equal rights.
  [[nodiscard]] status set_access(address_range part, std::span<const access_grant> grants) {
    const result<range_info> around = find(part.base);
    return around ? rights_.set_part_access(around->base, part, grants) : status{around.error()};
  }
  /// Requires: as set_access, of all blocks.
  /// Effects: the same for every block, live and later ones. Rights set for a block stay. Addresses
  /// of a freed block that waits to be unmapped keep their rights.
  /// Errors: invalid_argument (no grants, the home or the placement, more locations than a list
  /// takes), in_use (another thread is changing a block), not_supported (a device does not reach
  /// the memory, or the driver has no features::peers), out_of_host_memory, those of set_up,
  /// query_peer and set_access; all is as before, unless the driver refuses the undoing.
  /// Cost: a query for each grant, one set-access for each block.
  [[nodiscard]] status set_peers(std::span<const access_grant> grants);
  /// Effects: none; returns the mappings that the range touches, in address order, for code that
  /// registers memory by segments. They change with resize and copies by remapping.
  /// Errors: as free; invalid_argument (not inside the bytes of one block), out_of_host_memory.
  /// Cost: O(log n + handles).
  [[nodiscard]] result<std::vector<memory_segment>> segments(address_range range);

  /// For vmm.suspend, and listen() for a suspension_listener. Cost: O(1).
  [[nodiscard]] manager_suspension& suspension() noexcept { return suspension_; }

  /// Effects: releases retained memory until at most `limit_bytes` of it are left.
  /// Errors: in the report. Cost: a release for each handle; waits for no work, only for another
  /// thread that releases memory.
  [[nodiscard]] trim_report trim(std::uint64_t limit_bytes) { return shortage_.trim(limit_bytes); }

  /// Effects: none. Errors: none. Cost: O(1).
  [[nodiscard]] manager_statistics statistics() const { return manager_report(base_).statistics(); }
  /// Effects: none; returns the whole address space in address order up to the last extent in use.
  /// Errors: out_of_host_memory. Cost: O(extents).
  [[nodiscard]] result<std::vector<extent_info>> extents() const {
    return manager_report(base_).extents();
  }
  /// The recording of the manager's events. Cost: O(1).
  [[nodiscard]] manager_recording history() noexcept { return manager_recording(*this); }
  [[nodiscard]] const manager_options& options() const noexcept { return base_.options; }
  /// The driver of the manager.
  [[nodiscard]] driver_interface& driver() const noexcept { return *base_.driver; }
  /// The unit of sizes. 0 before set_up.
  [[nodiscard]] std::uint64_t granularity_bytes() const noexcept {
    const bool is_ready = base_.is_set_up.load(std::memory_order_acquire);
    check(!is_ready || base_.unit_bytes > 0, "a manager is set up and has no granularity");
    return is_ready ? base_.unit_bytes : 0;
  }
  /// Effects: none; runs the validator of every part, one after the other: other threads may
  /// continue.
  /// Errors: internal, with the broken invariant. Cost: O(everything).
  [[nodiscard]] status validate() const;

 private:
  friend class growable_range;
  friend class manager_recording;
  friend class manager_suspension;

  [[nodiscard]] result<core_options> plan_engine();
  [[nodiscard]] result<address> allocate_checked(const block_request& wanted);
  [[nodiscard]] status finish_made(block& made);
  [[nodiscard]] status free_after(block& gone, const ticket_ref& last_use);
  [[nodiscard]] status empty();
  [[nodiscard]] status end_blocks();

  // For growable ranges, whose segments are blocks of the manager. Errors: as set_up.
  [[nodiscard]] result<engine*> parts();

  manager_base base_;
  manager_history history_{base_};
  range_reuse ranges_{base_, history_};
  remap_copier copier_{base_, history_};
  manager_exports exports_{base_, history_};
  manager_shortage shortage_{base_, history_, ranges_};
  block_contents contents_{base_};
  block_resizer resizer_{base_, history_, contents_, shortage_};
  manager_suspension suspension_{*this, base_, history_, ranges_};
  manager_rights rights_{base_, suspension_};
  sync::mutex set_up_mutex_;
  top_use top_;
  user_count users_{used_object::manager};
};

}  // namespace vmm

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.optimizer:engine - blocks, which are created, resized, moved, shared and ended without
// copying a byte.
//
// A block is an extent of addresses with pieces mapped to it. The engine performs each change as
// one transaction over the core (addresses, pieces, mappings) and the tracker: steps that can fail
// come first, and undoing them allocates nothing.
//
// I1  A failed operation leaves blocks, contents and records as they were.
// I2  Nothing is unmapped before its ticket has passed: until then a range is retired, and reap()
//     unmaps it later. Its pieces may serve again at once if the backend allows aliases.
// I3  A refused unmap of a retired range, or of an undone step, is counted and retried by later
//     reaps; the addresses stay out of use until then.
// I4  A block is tracked and claimed by its caller, or cached by the manager, or retired: in one
//     place at a time.
// I5  A growable block keeps its addresses at every size: removed memory is retired as a range
//     inside of it, and the addresses are freed when its last such range has been unmapped.
//
// Thread safety: all of it, for blocks that the calling thread has claimed. No driver call is made
// under a lock but the reservation of a further range. Cost: driver calls by the number of pieces,
// never by bytes.
module;
#include "../base/thread_annotations.h"

export module vmm.optimizer:engine;

import vmm.backend;
import vmm.base;
import vmm.physical;
import vmm.std;
import vmm.timeline;
import vmm.tracker;
import vmm.va;
import :core;
import :remapper;
import :reservation;
import :unmap_queue;

namespace vmm {

/// An extent of addresses, and the pieces mapped to it.
export struct block : tracked_range, unmap_entry {
  extent where{};
  /// Cached or retired: the work that may still use its addresses. One point: where several apply,
  /// the freeing stream is ordered behind the others, and its point recorded (manager::free()).
  ticket_ref last_use;
  /// The leading pieces that last_use is a point of; those behind them came later, each with a
  /// point of its own.
  std::size_t covered_count = std::numeric_limits<std::size_t>::max();
  std::uint64_t address_bytes = 0;    ///< the reserved size as requested, kept when it shrinks
  std::uint64_t alignment_bytes = 0;  ///< as requested, kept when it moves
  std::uint64_t number = 0;           ///< of its allocation, kept when it moves
  bool has_memory = true;        ///< false if it is still mapped but its pieces belong to others
  std::size_t locked_count = 0;  ///< pieces at its end without access: see unlock()
  bool is_growable = false;      ///< I5
  block* inside = nullptr;       ///< retired: the growable block whose addresses these are
  sync::atomic<std::uint32_t> stale_count =
      0;                                       ///< of a growable block: retired ranges inside of it
  std::unique_ptr<grant_list> own_rights;      ///< besides those of all blocks, which they overrule
  std::unique_ptr<memory_rights> part_rights;  ///< of some mappings, in place of own_rights
  std::uint64_t rights_version = 0;            ///< of the rights that its mappings have
  sync::atomic<bool> is_handed_out = false;    ///< the manager's: its user has it
  /// The block's state in the manager's history of that number, under the history's lock.
  struct noted {
    std::uint64_t history_number = 0;
    address_range where{};
    bool is_live = false;
  } noted;
  block* next_free = nullptr;

  /// Requires: the point is behind the work on all of its pieces.
  void set_last_use(const ticket_ref& point) noexcept {
    last_use = point;
    covered_count = std::numeric_limits<std::size_t>::max();
  }
  [[nodiscard]] bool has_rights() const noexcept {
    return own_rights != nullptr || part_rights != nullptr;
  }
  /// Null if only the rights of all blocks hold.
  [[nodiscard]] const grant_list* rights_of(const physical_memory& memory) const noexcept {
    const grant_list* const own = part_rights == nullptr ? nullptr : part_rights->of(memory);
    return own != nullptr ? own : own_rights.get();
  }
  /// Whether its own rights and those of all fit into one list.
  [[nodiscard]] bool fits_beside(const grant_list& all) const noexcept {
    const auto fits = [&](const grant_list& each) { return remapper::fit(all, &each); };
    return remapper::fit(all, own_rights.get()) &&
           (part_rights == nullptr || part_rights->all_of(fits));
  }
};

/// Notified of each change of a tracked block's address or size.
export class block_listener {
 public:
  /// Called by the thread that has claimed the block, after the change, and before the addresses
  /// that it gives up can be another block's. It makes no call of the engine. `before` is the
  /// block's previous range.
  virtual void changed(block& now, address before) noexcept = 0;

 protected:
  ~block_listener() = default;
};

/// Creates and recycles blocks.
class block_store {
 public:
  [[nodiscard]] result<block*> acquire() noexcept;
  void release(block& gone) noexcept;

 private:
  sync::mutex mutex_;
  object_pool<block> pool_ VMM_GUARDED_BY(mutex_);
};

/// The number of leading pieces that hold `size_bytes`.
[[nodiscard]] std::size_t leading_count(const memory_list& memories,
                                        std::uint64_t size_bytes) noexcept;
/// The bytes of the first `count` pieces.
[[nodiscard]] std::uint64_t size_of(const memory_list& memories, std::size_t count) noexcept;

/// Copies `source` to the empty `target`, with room for `more_count` further pieces. Errors:
/// out_of_host_memory.
[[nodiscard]] status copy_list(const memory_list& source, memory_list& target,
                               std::size_t more_count) noexcept;

/// The sizes of a new block, and the stream that uses it first.
export struct block_request {
  range_sizes sizes{};
  std::uint64_t alignment_bytes = 0;
  stream_handle stream = stream_handle::default_stream;
};

/// A block's new size. `last_use` covers the submitted work that uses its present addresses.
export struct resize_plan {
  range_sizes sizes{};
  stream_handle stream = stream_handle::default_stream;
  ticket_ref last_use;
  bool is_named = false;           ///< the call is passed the stream, which exists
  std::uint64_t handle_bytes = 0;  ///< no piece is larger; 0: as few as possible
  bool one_handle = false;         ///< missing memory is one piece
};

/// Growable blocks side by side.
export struct growable_blocks_request {
  std::uint64_t count = 0;
  std::uint64_t size_bytes = 0;  ///< of each; a multiple of the granularity
  stream_handle stream = stream_handle::default_stream;
};

/// A growable block, and the part that stays. The spare belongs to reserve_cuts().
export struct block_cut {
  block* growable = nullptr;
  std::uint64_t user_bytes = 0;
  std::uint64_t mapped_bytes = 0;  ///< at most as much as is mapped and not locked
  block* spare = nullptr;
};

/// Blocks, and every change to them as one transaction: a call that fails leaves all as it was.
export class engine {
 public:
  /// The listener, if any, outlives the engine.
  engine(driver_ref driver, const core_options& options, block_listener* listener = nullptr)
      : core_(driver, options),
        listener_(listener),
        may_alias_(driver->feature_set().alias != alias_level::none) {}
  engine(const engine&) = delete;
  engine& operator=(const engine&) = delete;

  /// A mapped block, tracked and claimed. Errors: out_of_memory, out_of_addresses,
  /// out_of_host_memory, driver errors.
  [[nodiscard]] result<block*> build(const block_request& request);

  /// Ends a tracked and claimed block: unmaps it now if `last_use` has passed, else retires it.
  /// Errors: those of query_event and unmap; the block is as before, still claimed.
  [[nodiscard]] status dissolve(block& gone, const ticket_ref& last_use);

  /// Ends a tracked and claimed block; it is unmapped after `last_use`, once the driver permits it.
  /// Cannot fail.
  void discard(block& gone, const ticket_ref& last_use) noexcept;

  /// Unmaps pieces that a growth or a cut left mapped at the block's end because the driver refused
  /// to unmap them. Every change of the block begins with this. Errors: those of unmap; the block
  /// is as before.
  [[nodiscard]] status unlock(block& locked);
  /// Adds memory behind the block, at its address. Errors: out_of_addresses if the addresses behind
  /// it are taken.
  [[nodiscard]] status grow_in_place(block& grown, const resize_plan& plan);
  /// Removes whole pieces from the block's end, as many as the new size leaves unused.
  [[nodiscard]] status shrink(block& shrunk, const resize_plan& plan);
  /// Sets how many of the block's bytes are its user's; its memory stays. Cannot fail.
  void set_user_bytes(block& of, std::uint64_t user_bytes) noexcept {
    range_sizes sizes = of.sizes;
    check(user_bytes <= sizes.mapped_bytes, "a block gets more bytes than memory");
    sizes.user_bytes = user_bytes;
    records_.cut(of, sizes, of.memories.size());
  }
  /// Maps the block's pieces, and more behind them, at new addresses, and retires the old ones.
  /// Blocks the calling thread only if the backend allows no alias and work on the block is
  /// unfinished.
  [[nodiscard]] status move(block& moved, const resize_plan& plan);

  /// Growable blocks at one extent of addresses, in address order, tracked and owned, without
  /// memory. They fill `growables`. Errors: out_of_addresses, out_of_host_memory, those of reserve.
  [[nodiscard]] status build_growable_blocks(const growable_blocks_request& request,
                                             std::span<block*> growables);
  /// Removes whole pieces from the ends of the growable blocks, as many as the new sizes leave
  /// unused; they are unmapped after `last_use`, by reap(). No driver call. Requires:
  /// reserve_cuts() of these.
  void cut_growable_blocks(std::span<block_cut> cuts, const ticket_ref& last_use) noexcept;
  /// Allocates the host memory that cut_growable_blocks() needs. The growable blocks do not change
  /// before that call or drop_cuts(). Errors: out_of_host_memory; nothing is prepared.
  [[nodiscard]] status reserve_cuts(std::span<block_cut> cuts) noexcept;
  void drop_cuts(std::span<block_cut> cuts) noexcept;
  /// Whether ranges inside of the growable block wait to be unmapped: it cannot grow.
  [[nodiscard]] static bool is_stale(const block& growable) noexcept {
    check(growable.is_growable, "a block without addresses of its own cannot keep them");
    return growable.stale_count.load(std::memory_order_acquire) != 0;
  }
  /// Ends the ownership: the growable block is then a block, which close() frees.
  void abandon(block& growable) noexcept {
    check(growable.is_growable && growable.claimed,
          "a growable block without an owner is given up");
    records_.unclaim(growable);
  }

  /// Maps `source`'s memory in `target`, whose own memory is retained, and new memory behind it.
  /// After take_over the source has no memory; after alias both share it. Both blocks are claimed
  /// and idle; `user` is the stream that uses the target next. Errors: as build; device_lost if the
  /// driver refused to restore the memory of either.
  [[nodiscard]] status take_over(block& target, block& source, stream_handle user);
  [[nodiscard]] status alias(block& target, block& source, stream_handle user);

  /// Access of one block, in addition to that of all: recorded, and kept through resize() and
  /// copies by remapping. Errors: invalid_argument (more locations than a list takes),
  /// out_of_host_memory, those of set_access; the block is as before.
  [[nodiscard]] status set_own_rights(block& of, std::span<const access_grant> grants);
  /// The same of a part, in place of those of the block: while its mappings are the block's.
  /// Requires: the part lies in the block. Errors: not_supported (a border inside a mapping).
  [[nodiscard]] status set_part_rights(block& of, address_range part,
                                       std::span<const access_grant> grants);
  /// Sets the recorded access on a block's mappings. Cost: none if they have it. Errors: those of
  /// set_access.
  [[nodiscard]] status refresh_rights(block& of);

  /// Makes later work of `user` wait, on the device, for the work that may still use the block, or
  /// that may still use one of its pieces by an earlier range. Errors: those of query_event and
  /// wait_event.
  [[nodiscard]] status order(stream_handle user, const block& used) {
    check(!used.linked || used.claimed, "a stream is ordered behind a block that is not claimed");
    status ordered = core_.time.order(user, used.last_use);
    if (ordered) ordered = order_memories(user, used.memories);
    return ordered;
  }

  /// Gives the block to the stream, which exists. Requires: a block that is new, or that this
  /// thread took out of a cache.
  void set_stream(block& of, stream_handle stream) noexcept {
    check(!of.linked || of.claimed, "a block that is not claimed changes its stream");
    of.stream = stream;
    of.stream_identity = core_.time.identity_of(stream);
  }

  /// Blocks the calling thread until the work that order() names has finished: then the host may
  /// access the block's bytes, except for work of the block's own user. Errors: those of
  /// synchronize_event.
  [[nodiscard]] status synchronize(const block& used);

  /// Polls at most `count_max` retired ranges, oldest first, and unmaps those whose tickets have
  /// passed. Refusals are counted and tried again by later calls.
  void reap(std::size_t count_max);
  /// Polls all of them. Ranges that another thread is unmapping are unmapped when this returns.
  void reap_all();
  /// Waits for the oldest retired range's work, then unmaps it. False when none is left, waiting
  /// failed, or the driver refused.
  [[nodiscard]] bool reap_waiting();

  /// Unmaps all retired ranges, and waits for their work. Requires: no blocks. The core can then be
  /// closed. Errors: in_use (a range could not be unmapped).
  [[nodiscard]] status empty();

  [[nodiscard]] device_core& core() noexcept { return core_; }
  [[nodiscard]] timeline& time() noexcept { return core_.time; }
  [[nodiscard]] physical_pool& memory() noexcept { return core_.memory; }
  [[nodiscard]] reservation_space& space() noexcept { return core_.space; }
  [[nodiscard]] tracker& records() noexcept { return records_; }
  [[nodiscard]] const unmap_queue& retired() const noexcept { return retired_; }
  /// Whether any of the block's pieces is held by another block too. O(pieces).
  [[nodiscard]] bool is_shared(const block& range) const noexcept {
    return core_.memory.any_shared(range.memories);
  }
  /// Whether one of the block's pieces was held by several blocks and not cached since: another
  /// block's unfinished work may use it, without a ticket here. O(pieces).
  [[nodiscard]] bool was_shared(const block& range) const noexcept {
    return core_.memory.any_was_shared(range.memories);
  }
  /// Checks every record. Errors: internal. O(everything).
  [[nodiscard]] status validate() const noexcept;

 private:
  [[nodiscard]] static mapping_plan plan_of(const block& range) noexcept {
    check(range.memories.empty() || range.base.value != 0, "a block has pieces and no address");
    return {.at = range.base,
            .memories = std::span<physical_memory* const>(range.memories),
            .stream = range.stream,
            .own_rights = range.own_rights.get(),
            .of_memories = range.part_rights.get(),
            .stream_identity = range.stream_identity};
  }
  static void check_block(const block& kept) noexcept;
  [[nodiscard]] status map_fresh(block& fresh, const block_request& request);
  [[nodiscard]] status extend_addresses(block& grown, std::uint64_t size_bytes);
  void trim_addresses(block& shrunk, std::uint64_t size_bytes) noexcept;
  [[nodiscard]] status map_tail(block& grown, memory_list& memories, const resize_plan& plan);
  [[nodiscard]] status cut_idle_tail(block& shrunk, const resize_plan& plan,
                                     std::size_t keep_count);
  [[nodiscard]] status acquire_memory(const resize_plan& plan, std::uint64_t size_bytes,
                                      memory_list& memories);
  [[nodiscard]] status split_growable_blocks(extent space, const growable_blocks_request& request,
                                             std::span<block*> growables);
  [[nodiscard]] status reserve_cut(block_cut& cut) noexcept;
  void apply_cut(block_cut& cut, const ticket_ref& last_use) noexcept;
  void keep_leading(block& cut, memory_list& memories, std::size_t keep_count,
                    const resize_plan& plan) noexcept;
  [[nodiscard]] status retire_tail(block& shrunk, const resize_plan& plan, std::size_t keep_count);
  [[nodiscard]] status map_elsewhere(block& moved, block& spare, const resize_plan& plan);
  void leave_old_place(block& spare, const ticket_ref& last_use) noexcept;
  [[nodiscard]] status order_memories(stream_handle user,
                                      std::span<physical_memory* const> memories);
  struct show_plan {
    stream_handle user = stream_handle::default_stream;
    bool shared = false;
  };
  [[nodiscard]] status show(block& target, block& source, const show_plan& plan);
  [[nodiscard]] status release_source(block& source) noexcept;
  [[nodiscard]] status undo_show(block& target, block& source, memory_list& memories,
                                 const remap_outcome& shown) noexcept;
  void empty_source(block& source) noexcept;
  void lose(block& lost, std::size_t standing_count, memory_list* instead) noexcept;
  void place(block& owner, const range_sizes& sizes, memory_list& memories) noexcept;
  void notify(block& now, const address_range& before) noexcept;
  void drop_holders(const memory_list& memories, std::size_t from,
                    const ticket_ref& last_use) noexcept;
  void retire(block& range, const ticket_ref& last_use) noexcept;
  [[nodiscard]] status unmap_range(block& range);
  [[nodiscard]] status dissolve_suspended(block& gone);
  [[nodiscard]] unmap_answer ask(block& range);
  [[nodiscard]] auto queries() noexcept {
    return [this](unmap_entry& range) { return ask(static_cast<block&>(range)); };
  }
  [[nodiscard]] auto finishes() noexcept {
    return [this](unmap_entry& range) { finish(static_cast<block&>(range)); };
  }
  void finish(block& range) noexcept;

  device_core core_;
  tracker records_;
  block_store blocks_;
  unmap_queue retired_;
  block_listener* const listener_;
  bool may_alias_;
};

}  // namespace vmm

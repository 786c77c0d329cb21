// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.optimizer:engine - blocks, and how they come, change size, move, share and go without a byte
// being copied.
//
// A block is an extent of addresses with pieces mapped to it. The engine performs each change as
// one transaction over addresses, pieces, mappings and the tracker: what can fail comes first, and
// undoing it allocates nothing. [E1-E4, H2]
//
// I1  A failed operation leaves blocks, contents and accounts as they were.
// I2  Nothing is unmapped while a ticket says that work may still use it: such a range is retired,
// and reap() unmaps
//     it when its ticket has passed. Its pieces may serve again at once where the backend allows
//     aliases.
// I3  An unmap that the driver refuses without need of it at once (a retired range, an undone step)
// is tried again by
//     later reaps; the addresses stay out of use until then.
// I4  A block is tracked and claimed by its caller, or cached by the manager, or retired: in one
// place at a time.
//
// Thread safety: all of it, for blocks that the calling thread has claimed. No driver call is made
// under a lock but the reservation of a further range. Cost: driver calls by the number of pieces,
// never by bytes.
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "../sync/thread_annotations.h"

export module vmm.optimizer:engine;

import vmm.backend;
import vmm.intrusive;
import vmm.physical;
import vmm.reservation;
import vmm.sync;
import vmm.timeline;
import vmm.tracker;
import vmm.va;
import :remapper;

namespace vmm {

/// One extent of addresses with the pieces mapped to it.
export struct block : tracked_range {
  extent where{};
  ticket_ref last_use;           ///< cached or retired: the work that may still use its addresses
  std::uint64_t room_bytes = 0;  ///< the reserved size its user asked for, kept when it shrinks
  std::uint64_t alignment_bytes = 0;  ///< as asked for, kept when it moves
  bool holds_pieces =
      true;  ///< false where its mappings stand but its pieces belong to others by now
  std::size_t locked_count = 0;  ///< pieces at its end that nobody may use: see unlock()
  block* next_free = nullptr;
};

/// Ranges that wait for their tickets, oldest first.
class retired_queue {
 public:
  void push(block& range) noexcept;
  [[nodiscard]] block* pop() noexcept;
  [[nodiscard]] std::size_t size() const noexcept;
  [[nodiscard]] std::uint64_t size_bytes() const noexcept;

 private:
  mutable sync::mutex mutex_;
  block* first_ VMM_GUARDED_BY(mutex_) = nullptr;
  block* last_ VMM_GUARDED_BY(mutex_) = nullptr;
  std::size_t count_ VMM_GUARDED_BY(mutex_) = 0;
  std::uint64_t size_bytes_ VMM_GUARDED_BY(mutex_) = 0;
};

/// Blocks are made and recycled here.
class block_store {
 public:
  [[nodiscard]] result<block*> acquire() noexcept;
  void release(block& gone) noexcept;

 private:
  sync::mutex mutex_;
  object_pool<block> pool_ VMM_GUARDED_BY(mutex_);
};

/// How many of the leading pieces are needed for `size_bytes`.
[[nodiscard]] std::size_t leading_count(const piece_list& pieces,
                                        std::uint64_t size_bytes) noexcept;
/// How large the first `count` pieces are together.
[[nodiscard]] std::uint64_t size_of(const piece_list& pieces, std::size_t count) noexcept;

/// Copies `source` to the empty `target`, with room for `more_count` further pieces. Errors:
/// out_of_host_memory.
[[nodiscard]] status copy_list(const piece_list& source, piece_list& target,
                               std::size_t more_count) noexcept;

export struct engine_options {
  physical_options physical{};
  reservation_options reservation{};
  grant_list grants{};
};

/// Sizes of a block to be, and the stream that uses it first.
export struct block_request {
  range_sizes sizes{};
  std::uint64_t alignment_bytes = 0;
  stream_handle stream = stream_handle::default_stream;
};

/// What a block's size is to become. `last_use` covers the work that was given its present
/// addresses.
export struct resize_plan {
  range_sizes sizes{};
  stream_handle stream = stream_handle::default_stream;
  ticket_ref last_use;
};

export class engine {
 public:
  engine(driver_ref driver, const engine_options& options)
      : time_(driver),
        memory_(driver, options.physical),
        space_(driver, options.reservation),
        remaps_(driver, time_, memory_, options.grants),
        may_alias_(driver->feature_set().alias != alias_level::none) {}
  engine(const engine&) = delete;
  engine& operator=(const engine&) = delete;

  /// A mapped block, tracked and claimed. Errors: out_of_memory, out_of_addresses,
  /// out_of_host_memory, driver errors.
  [[nodiscard]] result<block*> build(const block_request& request);

  /// Ends a tracked and claimed block: unmaps it now if `last_use` has passed, else retires it.
  /// Errors: what query_event and unmap answer; the block is as before, still claimed.
  [[nodiscard]] status dissolve(block& gone, const ticket_ref& last_use);

  /// Ends a tracked and claimed block; it is unmapped after `last_use`, when the driver lets it.
  /// Cannot fail.
  void discard(block& gone, const ticket_ref& last_use) noexcept;

  /// Undoes what a growth or a cut left mapped at the block's end because the driver would not undo
  /// it then. A change of the block begins with this. Errors: what unmap answers; the block is as
  /// before.
  [[nodiscard]] status unlock(block& locked);
  /// Adds memory behind the block, at its address. Errors: out_of_addresses where the addresses
  /// behind it are taken.
  [[nodiscard]] status grow_in_place(block& grown, const resize_plan& plan);
  /// Takes whole pieces off the block's end, as many as the new size leaves unused.
  [[nodiscard]] status shrink(block& shrunk, const resize_plan& plan);
  /// Maps the block's pieces, and more behind them, at new addresses, and retires the old ones.
  /// Blocks the calling thread only where the backend allows no alias and work on the block is
  /// unfinished.
  [[nodiscard]] status move(block& moved, const resize_plan& plan);

  /// Makes `target` show `source`'s memory, its own memory going to the cache, new memory filling
  /// what is left. [E2] After take_over the source has no memory; after alias both show the same.
  /// Both blocks are claimed and idle; `user` is the stream that uses the target next. Errors: as
  /// build; device_lost where the driver would not put the memory of either back.
  [[nodiscard]] status take_over(block& target, block& source, stream_handle user);
  [[nodiscard]] status alias(block& target, block& source, stream_handle user);

  /// Makes later work of `user` wait, on the device, for the work that may still use the block, or
  /// that may still use one of its pieces by an earlier range. Errors: what query_event and
  /// wait_event answer.
  [[nodiscard]] status order(stream_handle user, const block& used) {
    status ordered = time_.order(user, used.last_use);
    if (ordered) ordered = order_pieces(user, used.pieces);
    return ordered;
  }

  /// Blocks the calling thread until the work that order() names has finished: then the host may
  /// touch the block's bytes, but for work of the block's own user. Errors: what synchronize_event
  /// answers.
  [[nodiscard]] status settle(const block& used);

  /// Unmaps up to `count_max` retired ranges whose tickets have passed. Failures are counted and
  /// tried again.
  void reap(std::size_t count_max);
  /// Waits for the oldest retired range's work, then unmaps it. False when none is left or waiting
  /// failed.
  [[nodiscard]] bool reap_waiting();

  /// Gives everything retired and all addresses back; blocks must be gone. Errors: what the driver
  /// answers.
  [[nodiscard]] status close();

  [[nodiscard]] timeline& time() noexcept { return time_; }
  [[nodiscard]] physical_pool& memory() noexcept { return memory_; }
  [[nodiscard]] reservation_space& space() noexcept { return space_; }
  [[nodiscard]] tracker& records() noexcept { return records_; }
  [[nodiscard]] const retired_queue& retired() const noexcept { return retired_; }
  [[nodiscard]] bool may_alias() const noexcept { return may_alias_; }
  /// Whether any of the block's pieces is held by another block too. O(pieces).
  [[nodiscard]] bool is_shared(const block& range) const noexcept {
    return memory_.any_shared(range.pieces);
  }
  /// Whether one of the block's pieces was held by several blocks and not cached since: another
  /// block's unfinished work may use it, and no ticket here says so. O(pieces).
  [[nodiscard]] bool was_shared(const block& range) const noexcept {
    return memory_.any_was_shared(range.pieces);
  }
  [[nodiscard]] bool validate() const noexcept {
    return memory_.validate() && space_.validate() && records_.validate();
  }

 private:
  [[nodiscard]] static mapping_plan plan_of(const block& range) noexcept {
    return {range.base, std::span<piece* const>(range.pieces), range.stream};
  }
  [[nodiscard]] status map_fresh(block& fresh, const block_request& request);
  [[nodiscard]] status extend_addresses(block& grown, std::uint64_t size_bytes);
  void trim_addresses(block& shrunk, std::uint64_t size_bytes) noexcept;
  [[nodiscard]] status map_tail(block& grown, piece_list& pieces, const resize_plan& plan);
  [[nodiscard]] status cut_idle_tail(block& shrunk, const resize_plan& plan,
                                     std::size_t keep_count);
  void keep_leading(block& cut, piece_list& pieces, std::size_t keep_count,
                    const resize_plan& plan) noexcept;
  [[nodiscard]] status retire_tail(block& shrunk, const resize_plan& plan, std::size_t keep_count);
  [[nodiscard]] status map_elsewhere(block& moved, block& spare, const resize_plan& plan);
  void leave_old_place(block& spare, const ticket_ref& last_use) noexcept;
  [[nodiscard]] status order_pieces(stream_handle user, std::span<piece* const> pieces);
  struct show_plan {
    stream_handle user = stream_handle::default_stream;
    bool shared = false;
  };
  [[nodiscard]] status show(block& target, block& source, const show_plan& plan);
  [[nodiscard]] status release_source(block& source) noexcept;
  [[nodiscard]] status undo_show(block& target, block& source, piece_list& pieces,
                                 const remap_outcome& shown) noexcept;
  void empty_source(block& source) noexcept;
  void lose(block& lost, std::size_t standing_count, piece_list* instead) noexcept;
  void place(block& owner, const range_sizes& sizes, piece_list& pieces) noexcept;
  void drop_holders(const piece_list& pieces, std::size_t from,
                    const ticket_ref& last_use) noexcept;
  void retire(block& range, const ticket_ref& last_use) noexcept;
  [[nodiscard]] status unmap_retired(block& range);
  void finish(block& range) noexcept;

  timeline time_;
  physical_pool memory_;
  reservation_space space_;
  remapper remaps_;
  tracker records_;
  block_store blocks_;
  retired_queue retired_;
  bool may_alias_;
};

}  // namespace vmm

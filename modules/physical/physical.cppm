// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.physical - physical memory: created once, retained when freed, collected for the next
// request.
//
// A piece is one driver handle and vmm's record of it. Freed pieces go to a cache ordered by size;
// a request takes an exact match, else the largest cached pieces that fit and are not too small for
// it, else new memory for the rest.
//
// I1  held = in use + cached, in bytes and in pieces; every piece is in exactly one of the two.
// I2  A cached piece has no holder. It may still have mappings that wait to be undone, and work
//     that may still use it: its next user is ordered behind its ticket.
// I3  A piece that several ranges have held is cached only after its last mapping is unmapped.
// I4  Held bytes, including those being created, never exceed the budget.
// I5  Every piece's size is a multiple of the granularity.
// I6  An exported piece serves no further request: it is cached until it is released, since the
//     importing process may still use it. The same holds for a spilled piece, so that the next
//     request gets memory of the device if there is any, and for an unfilled one (I9).
// I7  A suspended piece is held by its range and serves nothing else. Without a handle it counts in
//     suspended_bytes, and in no other sum.
// I8  A failed call does not hold more than before: it calls creation_mark() first, and releases
//     the pieces that it created with release_created(). Between its own attempts they are cached.
// I9  A piece whose range ends while it is suspended is released to the driver: a range without
//     memory is not filled, and a piece that kept its handle has the range's bytes. If the driver
//     refuses, the piece is unfilled and serves no further request.
//
// Thread safety: all of it; no driver call is made under the lock. Cost: O(log n) for each piece
// taken or given back, no heap allocation in steady state; driver calls only to create and to
// release. Elsewhere: mapping (vmm.optimizer), the layout (vmm.tracker), trimming (vmm.manager).
module;
#include "../base/thread_annotations.h"

export module vmm.physical;

import vmm.backend;
import vmm.base;
import vmm.std;
import vmm.timeline;

namespace vmm {

/// One physical handle. The pool owns all fields except the first two.
export struct physical_memory : index_node {
  physical_handle handle = physical_handle::none;
  std::uint64_t size_bytes = 0;
  std::uint32_t holder_count = 0;   ///< ranges that hold it; more than one where it is aliased
  std::uint32_t mapping_count = 0;  ///< standing mappings, those that wait to be undone included
  bool was_shared = false;          ///< had several holders since it was last cached
  bool exported = false;            ///< another process imported it; never reset
  bool spilled = false;             ///< it lies at physical_options::spill
  bool unfilled = false;            ///< it has the bytes of a range that ended suspended; see I9
  bool is_suspended = false;  ///< its range is suspended: it may have no handle, or no mapping
  std::uint64_t number = 0;   ///< of its creation: they grow
  std::uint64_t backup_offset = 0;  ///< suspended: where its contents are kept
  std::uint64_t backup_sum = 0;     ///< suspended: a checksum of them, where one is made
  ticket_ref last_use;              ///< while cached: the work that may still use it
  physical_memory* next_free = nullptr;
};

/// Errors of memory that is refused before any is created. The allocator adds their figures.
export inline constexpr error budget_spent =
    refuse(errc::over_budget, "Free or trim memory, or raise budget_bytes.");
export inline constexpr error device_full =
    refuse(errc::out_of_memory, "Free memory, or make the request smaller.");

/// Memory to create, and the size of its handles; 0: that of the options.
export struct creation {
  std::uint64_t size_bytes = 0;
  std::uint64_t handle_bytes = 0;
};

/// Pieces of physical memory, in the order in which they are mapped.
export using memory_list = std::vector<physical_memory*>;

/// How physical memory is created, kept and limited.
export struct physical_options {
  physical_request like{};  ///< placement and properties of every piece; its size is ignored
  std::uint64_t granularity_bytes = 0;  ///< sizes of pieces and requests are multiples of it
  double fragment_ratio =
      0.25;  ///< a smaller share of the request than this is not taken from the cache
  std::uint64_t chunk_bytes =
      0;  ///< new memory comes in pieces of this size; 0: one piece for all that is missing
  std::uint64_t budget_bytes = 0;   ///< never hold more than this; 0: no limit but the device's
  std::optional<location> spill{};  ///< where a spill_permit lets new pieces lie
  bool reuse_while_mapped =
      false;  ///< a freed piece may be mapped again before its old mapping is undone
};

/// Memory held now, and memory created, reused and released over the pool's life.
export struct physical_statistics {
  std::uint64_t held_bytes = 0;
  std::uint64_t peak_held_bytes = 0;
  std::uint64_t cached_bytes = 0;
  std::uint64_t memory_count = 0;
  std::uint64_t cached_count = 0;
  std::uint64_t created_count = 0;  ///< over the pool's life
  std::uint64_t reused_count = 0;   ///< pieces that requests took from the cache
  std::uint64_t released_count = 0;
  std::uint64_t spilled_bytes = 0;    ///< of the footprint, the part at physical_options::spill
  std::uint64_t suspended_bytes = 0;  ///< not of the footprint: released until it is resumed
};

/// The records and the cache: everything except the driver calls.
class memory_store {
 public:
  explicit memory_store(const physical_options& options) noexcept : options_(options) {}
  memory_store(const memory_store&) = delete;
  memory_store& operator=(const memory_store&) = delete;
  ~memory_store();

  /// A cached piece of exactly `remaining_bytes`, else the largest that is smaller and passes the
  /// fragment filter for a request of `request_bytes`; or null. The piece then has one holder.
  struct wanted {
    std::uint64_t remaining_bytes = 0;
    std::uint64_t request_bytes = 0;
  };
  [[nodiscard]] physical_memory* take(const wanted& want) noexcept;
  /// A cached piece of exactly `size_bytes`, with one holder, or null.
  [[nodiscard]] physical_memory* take_exact(std::uint64_t size_bytes) noexcept;
  /// A blank piece that counts `size_bytes` against the budget before the driver call. It counts as
  /// held once it is confirmed.
  [[nodiscard]] result<physical_memory*> admit(std::uint64_t size_bytes) noexcept;
  void abandon(physical_memory& blank) noexcept;
  void confirm(physical_memory& fresh, physical_handle handle) noexcept;
  /// The largest cached piece without mappings, taken out of the cache to be released, or null.
  [[nodiscard]] physical_memory* take_releasable(std::uint64_t limit_bytes) noexcept;
  /// The cached pieces that were created after the mark and have no mapping, taken out of the cache
  /// to be released: a chain by next_free. O(cached pieces).
  [[nodiscard]] physical_memory* take_created(std::uint64_t mark) noexcept;
  void released(physical_memory& gone) noexcept;
  void put_back(physical_memory& kept) noexcept;

  /// The memory serves no further request.
  void mark_exported(std::span<physical_memory* const> memories) noexcept;
  [[nodiscard]] bool any_exported(std::span<physical_memory* const> memories) const noexcept;
  /// Whether exported pieces are cached. No lock.
  [[nodiscard]] bool has_cached_exported() const noexcept {
    return cached_exported_count_.load(std::memory_order_relaxed) != 0;
  }
  /// A cached piece that was exported and has no mapping, taken out to be released; null: none.
  [[nodiscard]] physical_memory* take_exported() noexcept;

  /// See physical_pool.
  [[nodiscard]] bool may_be_suspended(const physical_memory& of) const noexcept;
  /// Reserves a suspended piece's bytes in the budget. Errors: over_budget.
  [[nodiscard]] status admit_again(const physical_memory& suspended) noexcept;
  void abandon_again(const physical_memory& suspended) noexcept;
  /// Records that the driver created its memory again; released it; that the piece ended without
  /// it.
  void resumed(physical_memory& suspended, physical_handle handle) noexcept;
  void suspended(physical_memory& given_up) noexcept;
  void forget_suspended(physical_memory& gone) noexcept;
  /// The driver refused to release its memory: I9.
  void mark_unfilled(physical_memory& kept) noexcept;

  void add_holder(physical_memory& memory) noexcept;
  void drop_holder(physical_memory& memory, const ticket_ref& last_use) noexcept;
  void add_mapping(physical_memory& mapped) noexcept;
  void drop_mapping(physical_memory& mapped) noexcept;
  /// Whether several ranges hold one of the pieces.
  [[nodiscard]] bool any_shared(std::span<physical_memory* const> memories) const noexcept;
  /// Whether several ranges have held one of the pieces since it was last cached.
  [[nodiscard]] bool any_was_shared(std::span<physical_memory* const> memories) const noexcept;

  /// Whether the bytes in use and `size_bytes` more are within a limit; 0: no limit.
  [[nodiscard]] bool fits_within(std::uint64_t limit_bytes,
                                 std::uint64_t size_bytes) const noexcept;
  [[nodiscard]] physical_statistics statistics() const noexcept;
  [[nodiscard]] std::uint64_t still_mapped_bytes() const noexcept;
  [[nodiscard]] std::uint64_t largest_cached_bytes() const noexcept;
  [[nodiscard]] const physical_options& options() const noexcept { return options_; }
  /// A blank piece will be created in another place than its siblings.
  void mark_spilled(physical_memory& blank) noexcept;
  /// Checks I1, I2, I4 and I5 over everything held. Errors: internal. O(n).
  [[nodiscard]] status validate() const noexcept;

 private:
  void cache_if_idle(physical_memory& memory) noexcept VMM_REQUIRES(mutex_);
  [[nodiscard]] physical_memory* hand_out(physical_memory& cached) noexcept VMM_REQUIRES(mutex_);
  void uncache(physical_memory& cached) noexcept VMM_REQUIRES(mutex_);
  [[nodiscard]] bool sums_fit() const noexcept VMM_REQUIRES(mutex_);
  [[nodiscard]] status validate_all() const noexcept VMM_REQUIRES(mutex_);
  void audit() noexcept VMM_REQUIRES(mutex_);

  physical_options options_;
  mutable sync::mutex mutex_;
  ordered_index cache_ VMM_GUARDED_BY(mutex_);  // by size
  object_pool<physical_memory> pool_ VMM_GUARDED_BY(mutex_);
  physical_statistics numbers_ VMM_GUARDED_BY(mutex_);
  std::uint64_t asked_bytes_ VMM_GUARDED_BY(mutex_) = 0;      // of blank pieces
  std::uint64_t unaudited_count_ VMM_GUARDED_BY(mutex_) = 0;  // changes since the last audit
  // Written under the lock. Not a step of a test's schedule: its visibility decides nothing.
  std::atomic<std::uint64_t> cached_exported_count_ = 0;
};

/// Creates, collects, retains and releases physical memory on one backend.
///
/// Every call: Thread safety: any thread, except the destructor. Cost: O(log n) for each piece, no
/// driver call unless named.
export class physical_pool {
 public:
  /// Requires: a driver that outlives the pool; a granularity; a chunk that is a multiple of it; a
  /// ratio from 0 to 1; else the process ends. Effects: none yet.
  physical_pool(driver_ref driver, const physical_options& options) noexcept
      : driver_(driver), store_(options) {
    check(options.granularity_bytes > 0, "a physical pool needs the backend's granularity");
    check(options.chunk_bytes % options.granularity_bytes == 0,
          "the chunk size is not a multiple of the granularity");
    check(options.fragment_ratio >= 0 && options.fragment_ratio <= 1,
          "the least share of a cached piece is not from 0 to 1");
  }

  /// Requires: `size_bytes` and new_bytes_max, the largest size of a new piece, are positive
  /// multiples of the granularity (new_bytes_max 0: the options' limit). Else the process ends.
  /// Effects: appends pieces of `size_bytes` in all to `out`, which then holds them once each: from
  /// the cache by C2 and C3, the rest new. Errors: out_of_memory, over_budget, out_of_host_memory,
  /// those of create; `out` is as before, and pieces already taken are cached.
  /// Cost: a create for each new piece.
  [[nodiscard]] status acquire(std::uint64_t size_bytes, memory_list& out,
                               std::uint64_t new_bytes_max = 0);

  /// Requires: a size that is a positive multiple of the granularity, else the process ends.
  /// Effects: appends one piece of exactly this size to `out`, cached or new. Errors: as acquire;
  /// `out` is as before. Cost: a create where no cached piece has the size.
  [[nodiscard]] status acquire_whole(std::uint64_t size_bytes, memory_list& out);

  /// Requires: pieces that `memories` holds and nothing has used, and an index of at most its size.
  /// Effects: gives back the pieces from `from` on, and shortens the list.
  void give_back(memory_list& memories, std::size_t from) noexcept;

  /// Requires: a piece that is held. Effects: one more range holds it.
  void add_holder(physical_memory& memory) noexcept { store_.add_holder(memory); }
  /// Requires: a piece that is held. Effects: one range gives up its hold; `last_use` is the work
  /// of that range that may still use it. After its last holder the piece is cached.
  void drop_holder(physical_memory& memory, const ticket_ref& last_use) noexcept {
    store_.drop_holder(memory, last_use);
  }
  /// Requires: a piece that is not cached; of drop_mapping, one that is mapped. Effects: counts the
  /// caller's mappings.
  void add_mapping(physical_memory& mapped) noexcept { store_.add_mapping(mapped); }
  void drop_mapping(physical_memory& mapped) noexcept { store_.drop_mapping(mapped); }
  /// Whether several ranges hold one of the pieces; have held one since it was last cached.
  /// Cost: O(pieces).
  [[nodiscard]] bool any_shared(std::span<physical_memory* const> memories) const noexcept {
    return store_.any_shared(memories);
  }
  [[nodiscard]] bool any_was_shared(std::span<physical_memory* const> memories) const noexcept {
    return store_.any_was_shared(memories);
  }

  /// Requires: ranges hold the memory. Effects: it serves no further request once they end.
  /// Errors: none. Cost: O(memories).
  void mark_exported(std::span<physical_memory* const> memories) noexcept {
    store_.mark_exported(memories);
  }
  /// Effects: none. Returns whether any of the memory was exported. Errors: none. Cost:
  /// O(memories).
  [[nodiscard]] bool any_exported(std::span<physical_memory* const> memories) const noexcept {
    return store_.any_exported(memories);
  }
  /// Effects: releases exported pieces that are out of use here. A later call retries those that
  /// the driver refuses. Errors: none. Cost: one load without such pieces.
  void release_exported() noexcept;

  /// Effects: releases cached pieces, largest first, until at most `limit_bytes` stay cached; 0:
  /// all. Mapped pieces stay. Errors: in the report. Cost: a release for each piece.
  [[nodiscard]] trim_report trim(std::uint64_t limit_bytes) noexcept;

  /// A point in the order of creations.
  [[nodiscard]] std::uint64_t creation_mark() const noexcept {
    return store_.statistics().created_count;
  }
  /// Effects: releases the cached pieces that were created after the mark and are not mapped: those
  /// of a call that failed. Errors: in the report. Cost: O(cached pieces), and a release for
  /// each piece.
  trim_report release_created(std::uint64_t mark) noexcept;

  /// Refuses memory that cannot be created: together with the memory in use it exceeds the budget,
  /// or the device. Errors: over_budget, out_of_memory. Cost: O(1), and that of device_bytes().
  [[nodiscard]] status check_room(std::uint64_t size_bytes) noexcept;
  /// For a retry after out_of_memory: whether free memory of the device and cached pieces suffice.
  /// True if the driver has no such query, and for few handles, whose failed creation costs less.
  /// Cost: one query_memory for many.
  [[nodiscard]] bool may_have(const creation& what) noexcept;
  /// The device's memory; 0: not known. Without memory at options().spill. Cost: one query_memory
  /// in the pool's life, for a request of more than queried_bytes_min.
  [[nodiscard]] std::uint64_t device_bytes(std::uint64_t size_bytes) noexcept;
  /// The device's memory and its free part; none if the driver has no such query.
  [[nodiscard]] std::optional<memory_info> query_device() noexcept;
  static constexpr std::uint64_t queried_bytes_min = std::uint64_t{4} << 30;
  static constexpr std::uint64_t queried_count_min = 64;

  /// Whether one range holds the piece, at one address unless it is suspended, and no other process
  /// has imported it. Requires: a piece that is held. Cost: O(1).
  [[nodiscard]] bool may_be_suspended(const physical_memory& of) const noexcept {
    return store_.may_be_suspended(of);
  }
  /// Requires: a piece that one range holds, that is suspended and mapped nowhere. Effects:
  /// releases its memory; if the driver refuses, nothing changes. Errors: those of release. Cost: a
  /// release.
  [[nodiscard]] status suspend(physical_memory& given_up);
  /// Requires: as suspend, and no handle. Effects: new memory for the piece, with unspecified
  /// contents; at options().spill if a spill_permit lives and the device has no memory left.
  /// Errors: over_budget, those of create; nothing is changed. Cost: a create, or two.
  [[nodiscard]] status resume(physical_memory& suspended);
  /// Requires: as suspend. Effects: ends the piece of a destroyed range, and releases its memory:
  /// I9. Errors: none.
  void end_suspended(physical_memory& gone) noexcept;

  /// Whether memory may be made at options().spill now: see spill_permit.
  [[nodiscard]] bool has_spill() const noexcept { return store_.options().spill.has_value(); }
  [[nodiscard]] bool may_spill() const noexcept {
    return spill_permits_.load(std::memory_order_relaxed) != 0;
  }

  /// Effects: none. statistics() returns the sums, largest_cached_bytes() the size of the largest
  /// cached piece; validate() checks I1, I2, I4 and I5.
  /// Errors: internal, with the broken invariant. Cost: O(1); of validate, O(cached pieces).
  [[nodiscard]] physical_statistics statistics() const noexcept { return store_.statistics(); }
  [[nodiscard]] status validate() const noexcept { return store_.validate(); }
  [[nodiscard]] std::uint64_t largest_cached_bytes() const noexcept {
    return store_.largest_cached_bytes();
  }

 private:
  [[nodiscard]] result<physical_memory*> acquire_one(const memory_store::wanted& want,
                                                     std::uint64_t largest_bytes, memory_list& out);

  /// Of two limits, where 0 is none.
  [[nodiscard]] static std::uint64_t smaller_limit(std::uint64_t a, std::uint64_t b) noexcept;

  [[nodiscard]] result<physical_memory*> create(std::uint64_t size_bytes);
  [[nodiscard]] bool is_many(const creation& what) const noexcept;

  friend class spill_permit;
  driver_ref driver_;
  memory_store store_;
  std::atomic<std::uint32_t> spill_permits_ = 0;  // no step of a test's schedule
  std::atomic<std::uint64_t> device_bytes_ = 0;   // the same; 0: not queried yet
};

/// While one exists, memory that the device lacks is created at physical_options::spill, also for
/// other threads: their refusals have the same cause.
export class spill_permit {
 public:
  /// Requires: the pool outlives the permit. Effects: as the head of the class says.
  explicit spill_permit(physical_pool& of) noexcept : of_(of) {
    of_.spill_permits_.fetch_add(1, std::memory_order_relaxed);
  }
  ~spill_permit() {
    const std::uint32_t before = of_.spill_permits_.fetch_sub(1, std::memory_order_relaxed);
    check(before > 0, "more permits end than were granted");
  }
  spill_permit(const spill_permit&) = delete;
  spill_permit& operator=(const spill_permit&) = delete;

 private:
  physical_pool& of_;
};

}  // namespace vmm

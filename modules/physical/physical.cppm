// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.physical - physical memory as an asset: created once, kept when freed, gathered for the next
// request. [C1-C5]
//
// A piece is one driver handle with vmm's account of it. Freed pieces go to a cache ordered by
// size; a request takes an exact match, else the largest cached pieces that fit and are not too
// small for it, else new memory for the rest.
//
// I1  held = in use + cached, in bytes and in pieces; every piece is in exactly one of the two.
// I2  A cached piece has no holder. It may still have mappings that wait to be undone, and work
// that may still use it:
//     its ticket says so, and whoever maps it next is ordered behind that ticket.
// I3  A piece that several ranges have held is cached only when its last mapping is gone.
// I4  Held bytes, with those that the driver is being asked for, never exceed the budget.
// I5  Every piece's size is a multiple of the granularity.
//
// Thread safety: all of it; no driver call is made under the lock. Cost: O(log n) for each piece
// taken or given back, no heap allocation in steady state; driver calls only to create and to
// release. Elsewhere: mapping (vmm.optimizer), which address holds what (vmm.tracker), when to
// drain (vmm.manager).
module;
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <span>
#include <vector>

#include "../sync/thread_annotations.h"

export module vmm.physical;

import vmm.backend;
import vmm.intrusive;
import vmm.sync;
import vmm.timeline;

namespace vmm {

/// One physical handle. Fields but the first two belong to the pool.
export struct piece : index_node {
  physical_handle handle = physical_handle::none;
  std::uint64_t size_bytes = 0;
  std::uint32_t holder_count = 0;   ///< ranges that hold it; more than one where it is aliased
  std::uint32_t mapping_count = 0;  ///< standing mappings, those that wait to be undone included
  bool was_shared = false;          ///< had several holders since it was last cached
  ticket_ref last_use;              ///< while cached: the work that may still use it
  piece* next_free = nullptr;
};

export using piece_list = std::vector<piece*>;

/// Makes room for `count` more elements. Errors: out_of_host_memory; the list is unchanged.
export template <class T>
[[nodiscard]] status reserve_more(std::vector<T>& list, std::size_t count) noexcept {
  try {
    if (list.capacity() - list.size() < count)
      list.reserve(std::max(list.size() + count, 2 * list.capacity()));
    return {};
  } catch (const std::bad_alloc&) {
    return refuse(errc::out_of_host_memory, "no host memory is left for a list of pieces");
  }
}

export struct physical_options {
  physical_request like{};  ///< placement and properties of every piece; its size is ignored
  std::uint64_t granularity_bytes = 0;  ///< sizes of pieces and requests are multiples of it
  double fragment_ratio =
      0.25;  ///< a smaller share of the request than this is not taken from the cache [C3]
  std::uint64_t chunk_bytes =
      0;  ///< new memory comes in pieces of this size; 0: one piece for all that is missing
  std::uint64_t budget_bytes = 0;  ///< never hold more than this; 0: no limit but the device's
  bool reuse_while_mapped =
      false;  ///< a freed piece may be mapped again before its old mapping is undone
};

export struct physical_statistics {
  std::uint64_t held_bytes = 0;
  std::uint64_t peak_held_bytes = 0;
  std::uint64_t cached_bytes = 0;
  std::uint64_t held_count = 0;
  std::uint64_t cached_count = 0;
  std::uint64_t created_count = 0;  ///< over the pool's life
  std::uint64_t reused_count = 0;   ///< pieces that requests took from the cache
  std::uint64_t released_count = 0;
};

/// What trim() gave back, and what kept it from giving more.
export struct trim_report {
  std::uint64_t released_count = 0;
  std::uint64_t released_bytes = 0;
  std::uint64_t still_mapped_bytes = 0;  ///< cached, but a mapping of it waits for work to finish
  error failure{};  ///< code none, or why a release failed: that piece stays cached
};

/// The accounts and the cache: everything but the driver calls.
class piece_store {
 public:
  explicit piece_store(const physical_options& options) noexcept : options_(options) {}
  piece_store(const piece_store&) = delete;
  piece_store& operator=(const piece_store&) = delete;
  ~piece_store();

  /// A cached piece of exactly `remaining_bytes`, else the largest that is smaller and passes the
  /// fragment filter for a request of `request_bytes`; null when there is none. The piece then has
  /// one holder.
  struct wanted {
    std::uint64_t remaining_bytes = 0;
    std::uint64_t request_bytes = 0;
  };
  [[nodiscard]] piece* take(const wanted& want) noexcept;
  /// A blank piece that counts `size_bytes` against the budget, before the driver is asked for it.
  /// It counts as held when it is confirmed.
  [[nodiscard]] result<piece*> admit(std::uint64_t size_bytes) noexcept;
  void abandon(piece& blank) noexcept;
  void confirm(piece& fresh, physical_handle handle) noexcept;
  /// The largest cached piece without mappings, taken out of the cache to be released; null when
  /// there is none.
  [[nodiscard]] piece* take_releasable(std::uint64_t limit_bytes) noexcept;
  void released(piece& gone) noexcept;
  void put_back(piece& kept) noexcept;

  void add_holder(piece& held) noexcept;
  void drop_holder(piece& held, const ticket_ref& last_use) noexcept;
  void add_mapping(piece& mapped) noexcept;
  void drop_mapping(piece& mapped) noexcept;
  /// Whether several ranges hold one of the pieces.
  [[nodiscard]] bool any_shared(std::span<piece* const> pieces) const noexcept;
  /// Whether several ranges have held one of the pieces since it was last cached.
  [[nodiscard]] bool any_was_shared(std::span<piece* const> pieces) const noexcept;

  [[nodiscard]] physical_statistics statistics() const noexcept;
  [[nodiscard]] std::uint64_t still_mapped_bytes() const noexcept;
  [[nodiscard]] const physical_options& options() const noexcept { return options_; }
  /// Checks I1, I2, I4 and I5 over everything held. O(n).
  [[nodiscard]] bool validate() const noexcept;

 private:
  void cache_if_idle(piece& held) noexcept VMM_REQUIRES(mutex_);

  physical_options options_;
  mutable sync::mutex mutex_;
  ordered_index cache_ VMM_GUARDED_BY(mutex_);  // by size
  object_pool<piece> pool_ VMM_GUARDED_BY(mutex_);
  physical_statistics numbers_ VMM_GUARDED_BY(mutex_);
  std::uint64_t asked_bytes_ VMM_GUARDED_BY(mutex_) = 0;  // of blank pieces
};

/// Creates, gathers, keeps and releases physical memory on one backend.
export class physical_pool {
 public:
  physical_pool(driver_ref driver, const physical_options& options) noexcept
      : driver_(driver), store_(options) {
    check(options.granularity_bytes > 0, "a physical pool needs the backend's granularity");
    check(options.chunk_bytes % options.granularity_bytes == 0,
          "the chunk size is not a multiple of the granularity");
  }

  /// Appends pieces of `size_bytes` in all to `out`, which then holds them once each: from the
  /// cache by C2 and C3, the rest new. Errors: out_of_memory, over_budget, out_of_host_memory, and
  /// what create answers; `out` is as before and what had been taken is cached. size_bytes: a
  /// positive multiple of the granularity, as is new_bytes_max, the most that a new piece has; 0:
  /// as much as the options allow.
  [[nodiscard]] status acquire(std::uint64_t size_bytes, piece_list& out,
                               std::uint64_t new_bytes_max = 0);

  /// Gives back the pieces from index `from` on, which nothing has used, and shortens the list.
  void give_back(piece_list& pieces, std::size_t from) noexcept;

  void add_holder(piece& held) noexcept { store_.add_holder(held); }
  /// One range holds the piece no more; `last_use` is the work of that range that may still use it.
  void drop_holder(piece& held, const ticket_ref& last_use) noexcept {
    store_.drop_holder(held, last_use);
  }
  void add_mapping(piece& mapped) noexcept { store_.add_mapping(mapped); }
  void drop_mapping(piece& mapped) noexcept { store_.drop_mapping(mapped); }
  [[nodiscard]] bool any_shared(std::span<piece* const> pieces) const noexcept {
    return store_.any_shared(pieces);
  }
  [[nodiscard]] bool any_was_shared(std::span<piece* const> pieces) const noexcept {
    return store_.any_was_shared(pieces);
  }

  /// Releases cached pieces, largest first, until at most `limit_bytes` stay cached; 0 drains. [C4]
  [[nodiscard]] trim_report trim(std::uint64_t limit_bytes) noexcept;

  [[nodiscard]] physical_statistics statistics() const noexcept { return store_.statistics(); }
  [[nodiscard]] bool validate() const noexcept { return store_.validate(); }

 private:
  [[nodiscard]] result<piece*> acquire_one(const piece_store::wanted& want,
                                           std::uint64_t largest_bytes, piece_list& out);

  /// Of two limits, where 0 is none.
  [[nodiscard]] static std::uint64_t smaller_limit(std::uint64_t a, std::uint64_t b) noexcept;

  [[nodiscard]] result<piece*> create(std::uint64_t size_bytes);

  driver_ref driver_;
  piece_store store_;
};

}  // namespace vmm

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:arena_lending - refills, flushes and transfers between a pool's state and its arenas.
// Not exported.
//
// Owns nothing: it is created for a call, over the pool's state, by the holder of that state. Its
// invariants there:
//
// I1  Each range of an arena is one region of the pool, live in its handles, so that they are
//     neither moved nor unmapped. Two ranges of one arena are not adjacent.
// I2  A lease counts the granules of an arena. The pool's count of live granules includes those of
//     closed arenas, so that it is exact when the pool grows, and not those of open ones: the peak
//     never exceeds the live granules.
// I3  No refill while a growth, a trim or a suspension is in progress, or a history is recorded.
//
// Thread safety: none of its own; under the lock of the pool's state, and it takes those of arenas.
// Cost: O(1), except remove() and validation.
module;
#include "../../base/thread_annotations.h"

export module vmm.stream:arena_lending;

import vmm.backend;
import :arena;
import :geometry;
import :locks;
import :pool_state;
import :segment;
import :state_lock;
import vmm.std;

namespace vmm {

/// Memory of an arena in transfer to another stream. It belongs to that arena until it has arrived.
struct arena_transfer {
  std::uint32_t from = arena_table::none;  // none: no memory
  granule_range what{};
  stream_point freed{};  // the arena's stream has finished with it then
};

class arena_lending {
 public:
  /// Requests up to this size cause refills. A larger one is served by a present region of its
  /// arena, or else by the pool.
  static constexpr std::uint64_t request_bytes_max = std::uint64_t{8} << 20;

  explicit arena_lending(pool_state& state) noexcept : state_(state) {}

  /// Refills the arena with free memory of its stream, and allocates a block from it; no address if
  /// that cannot serve the request, or refills are off.
  [[nodiscard]] address refill_and_take(stream_handle stream, std::uint64_t size_bytes) noexcept;
  /// Flushes some free memory of arenas, all of which it closes first. False if nothing is left,
  /// except memory for which host memory was short.
  [[nodiscard]] bool flush_some() noexcept;
  /// Memory that serves the request leaves another arena, the richest of a few, and closes none;
  /// from none if no arena serves it. It is not allocated until end_transfer(), which is under the
  /// same hold of the growth lock. O(arenas).
  [[nodiscard]] arena_transfer begin_transfer(const stream_request& request) noexcept;
  /// If its stream has finished with it, the memory becomes free for the request's stream, in that
  /// stream's arena if it has one; else it stays. False if it stays.
  [[nodiscard]] bool end_transfer(const arena_transfer& moving, const stream_request& request,
                                  bool passed) noexcept;
  /// Moves a block of an arena that begins there to the pool's tables; does nothing for memory
  /// outside of arenas. Errors: out_of_host_memory; not_allocated, invalid_argument (inside a
  /// block) if it is an arena's memory and no block begins there.
  [[nodiscard]] status recall(segment& in, std::uint64_t offset_bytes) noexcept;
  /// Frees a block that could not be recalled in its arena, if that belongs to the stream.
  [[nodiscard]] bool keep(const segment& in, std::uint64_t offset_bytes,
                          std::uint32_t stream) noexcept;
  /// Removes the stream's arena. Errors: out_of_host_memory.
  [[nodiscard]] status remove(stream_handle stream) noexcept;
  /// Null if I1 and I2 hold, else the broken part.
  [[nodiscard]] static const char* broken_invariant(const pool_state& state) noexcept;

 private:
  static constexpr std::uint32_t steps_max = 256;
  // From an arena that stays open: 64 KiB, or the requested size. More, or more than one region,
  // scatters memory among arenas.
  static constexpr std::uint32_t transfer_granules = 128;
  // Arenas with memory for a request, among which the richest is chosen: each one examined costs
  // cache lines that its threads write.
  static constexpr std::uint32_t looks_max = 4;

  [[nodiscard]] bool may_refill() noexcept {
    return !state_.arenas().is_paused() && state_.suspension() == suspension_phase::running &&
           !state_.events().is_on();
  }
  [[nodiscard]] std::uint32_t richest_for(const stream_request& request) noexcept;
  [[nodiscard]] bool flush(std::uint32_t number, std::uint32_t& steps) noexcept;
  [[nodiscard]] status recall_block(segment& in, std::uint32_t number,
                                    std::uint32_t offset) noexcept;
  [[nodiscard]] status recall_arena(std::uint32_t number) noexcept;
  void count(std::uint32_t number) noexcept;
  void end_count(arena_lease& lease) noexcept;

  pool_state& state_;
};

/// The treatment of free memory of arenas while refills are off.
enum class arena_memory : std::uint8_t {
  comes_back,  // it is the pool's
  stays,       // arenas continue to allocate it
};

/// For its life nothing is lent. Under the lock of growth; one at a time takes effect.
class arena_flush {
 public:
  explicit arena_flush(state_cell& state, arena_memory what = arena_memory::comes_back) noexcept
      VMM_REQUIRES(rank::growth) VMM_EXCLUDES(rank::state);
  ~arena_flush() VMM_REQUIRES(rank::growth) VMM_EXCLUDES(rank::state);
  arena_flush(const arena_flush&) = delete;
  arena_flush& operator=(const arena_flush&) = delete;
  /// Whether any arena had free memory.
  [[nodiscard]] bool flushed_any() const noexcept { return flushed_any_; }

 private:
  state_cell& state_;
  bool is_pausing_ = false;
  bool flushed_any_ = false;
};

}  // namespace vmm

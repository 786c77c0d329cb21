// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:pool_arenas - the arenas of a pool's state, and when a stream gets another one. Not
// exported.
//
// I1  Waits are counted, and arenas exist, only after permit().
//
// Thread safety: none of its own; under the lock of the pool's state. Cost: O(1), except sums and
// release(), O(arenas).
export module vmm.stream:pool_arenas;

import vmm.backend;
import vmm.base;
import vmm.std;
import :arena;

namespace vmm {

class pool_arenas {
 public:
  /// Null before the first arena.
  [[nodiscard]] inline arena_table* table() noexcept { return table_.get(); }
  [[nodiscard]] inline const arena_table* table() const noexcept { return table_.get(); }

  /// From now on contention for the pool's lock is counted, and causes arenas.
  void permit() noexcept { is_permitted_ = true; }
  /// A thread has waited for the lock. True: from now on an arena is wanted.
  [[nodiscard]] bool count_wait() noexcept;
  /// Whether the next stream that allocates is to get an arena.
  [[nodiscard]] inline bool is_wanted() const noexcept { return is_wanted_; }
  /// That was tried, with this outcome.
  void end_want(bool made) noexcept;
  /// Gives the stream an arena, if the table has a place. `where` is the first segment's. Errors:
  /// out_of_host_memory.
  [[nodiscard]] status add(address_range where, stream_handle stream, std::uint32_t record,
                           std::unique_ptr<arena> made) noexcept;

  /// Memory moves from one arena to another. Where that recurs, room is needed from then on. Some
  /// calls are O(arenas).
  void count_transfer() noexcept;
  /// Whether memory is to be created so that transfers become rare; false from then on.
  [[nodiscard]] bool take_room_need() noexcept { return std::exchange(needs_room_, false); }
  [[nodiscard]] bool needs_room() const noexcept { return needs_room_; }

  [[nodiscard]] bool is_paused() const noexcept { return is_paused_; }
  /// Stops refills. False where they are stopped already.
  [[nodiscard]] bool pause() noexcept { return !std::exchange(is_paused_, true); }
  void end_pause() noexcept {
    check(is_paused_, "a pause ends without a begin");
    is_paused_ = false;
  }
  /// In all arenas, live and free.
  [[nodiscard]] std::uint64_t lent_granules() const noexcept;
  /// Live granules that the pool does not count: those of open arenas. O(arenas).
  [[nodiscard]] std::uint64_t uncounted_live_granules() const noexcept;
  /// The pool is going away: the arenas, too. Returns the granules that the pool counts as live in
  /// them.
  [[nodiscard]] std::uint64_t release() noexcept;

 private:
  bool is_wanted_ = false;
  bool is_permitted_ = false;
  bool is_paused_ = false;
  bool needs_room_ = false;
  std::uint32_t contention_count_ = 0;  // times a thread waited for the lock, since the last arena
  std::uint32_t waits_max_ = 32;        // so many cause an arena
  std::uint32_t transfer_count_ = 0;    // since the blocks were counted
  std::uint64_t taken_count_ = 0;       // blocks of all arenas, then
  std::unique_ptr<arena_table> table_;
};

}  // namespace vmm

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:lending - what passes between a pool's state and its fronts. Not exported.
//
// Owns nothing: it is made for a call, over the pool's state, by whoever has that. The rules that
// it keeps there:
//
// I1  What is lent is one region for each stretch of a front, live in its handles, so that nothing
//     moves or unmaps them. Two of one front are no neighbours.
// I2  A lease counts the granules that are lent. The pool's count of live granules has what is live
//     in fronts that are closed, so that it is exact when the pool grows, and nothing of others:
//     the peak is never above what was live.
// I3  Nothing is lent while a growth, a trim or a suspension is under way, or a history is
//     recorded.
//
// Thread safety: none of its own; under the lock of the pool's state, and it takes those of fronts.
// Cost: O(1), but for remove() and validation.
module;
#include "../sync/thread_annotations.h"

export module vmm.stream:lending;

import vmm.backend;
import :front;
import :geometry;
import :locks;
import :state_lock;
import :pool_state;
import :segment;
import vmm.std;

namespace vmm {

/// Memory of a front on its way to another stream. Lent to that front until it has arrived.
struct front_transfer {
  std::uint32_t from = front_set::none;  // none: no memory
  granule_range what{};
  stream_point freed{};  // the front's stream has finished with it then
};

class front_lending {
 public:
  /// Memory is lent for requests up to here. A larger one is served by what its front has in one
  /// piece anyhow, or else by the pool.
  static constexpr std::uint64_t request_bytes_max = std::uint64_t{8} << 20;

  explicit front_lending(pool_state& state) noexcept : state_(state) {}

  /// Lends what is free for the front's stream, and takes a block of what that makes with what the
  /// front has; no address where nothing serves the request, or nothing may be lent.
  [[nodiscard]] address lend_and_take(stream_handle stream, std::uint64_t size_bytes) noexcept;
  /// Takes back some of what is free in fronts, all of which it closes first. False when nothing
  /// is left, but for what host memory was short for.
  [[nodiscard]] bool take_back_some() noexcept;
  /// Memory that serves the request leaves another front, of a few that have some the one that has
  /// most, and closes nothing; from none where no front serves it. Nobody is given it until
  /// end_transfer(), which is under the same hold of the lock of growth. O(fronts).
  [[nodiscard]] front_transfer begin_transfer(const stream_request& request) noexcept;
  /// Where its stream has finished with it, the memory is free for the request's stream, in that
  /// one's front where it has one; else it stays. False where it stays.
  [[nodiscard]] bool end_transfer(const front_transfer& moving, const stream_request& request,
                                  bool passed) noexcept;
  /// A lent block that begins there becomes one of the pool's tables; so that nothing is done when
  /// what lies there is not lent. Errors: out_of_host_memory; not_allocated, invalid_argument
  /// (inside a block) where it is lent and no block begins there.
  [[nodiscard]] status recall(segment& in, std::uint64_t offset_bytes) noexcept;
  /// A lent block that could not be recalled is free in its front, where that is the stream's.
  [[nodiscard]] bool keep(const segment& in, std::uint64_t offset_bytes,
                          std::uint32_t stream) noexcept;
  /// The stream has no front any more. Errors: out_of_host_memory.
  [[nodiscard]] status remove(stream_handle stream) noexcept;
  /// nullptr when I1 and I2 hold, else what is broken.
  [[nodiscard]] static const char* broken_invariant(const pool_state& state) noexcept;

 private:
  static constexpr std::uint32_t steps_max = 256;
  // From a front that stays open: 64 KiB, or as much as is asked for. More, or more than one
  // region, cuts memory up among fronts.
  static constexpr std::uint32_t transfer_granules = 128;
  // Fronts that have memory for a request, among which the richest is chosen: each one that is
  // looked at costs cache lines that its threads write.
  static constexpr std::uint32_t looks_max = 4;

  [[nodiscard]] std::uint32_t richest_for(const stream_request& request) noexcept;
  [[nodiscard]] bool take_back(std::uint32_t number, std::uint32_t& steps) noexcept;
  [[nodiscard]] status recall_block(segment& in, std::uint32_t number,
                                    std::uint32_t offset) noexcept;
  [[nodiscard]] status recall_front(std::uint32_t number) noexcept;
  void count(std::uint32_t number) noexcept;
  void end_count(front_lease& lease) noexcept;

  pool_state& state_;
};

/// What becomes of what is free in fronts while nothing is lent.
enum class front_memory : std::uint8_t {
  comes_back,  // it is the pool's
  stays,       // fronts go on handing it out
};

/// For its life nothing is lent. Under the lock of growth; one at a time takes effect.
class lending_pause {
 public:
  explicit lending_pause(state_cell& state, front_memory what = front_memory::comes_back) noexcept
      VMM_REQUIRES(rank::growth) VMM_EXCLUDES(rank::state);
  ~lending_pause() VMM_REQUIRES(rank::growth) VMM_EXCLUDES(rank::state);
  lending_pause(const lending_pause&) = delete;
  lending_pause& operator=(const lending_pause&) = delete;
  /// Whether anything was free in a front.
  [[nodiscard]] bool took_any() const noexcept { return took_any_; }

 private:
  state_cell& state_;
  bool is_pausing_ = false;
  bool took_any_ = false;
};

}  // namespace vmm

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:call_path - allocate and free on warm memory, and which calls need more than that: the
// data that every call of a pool reads. Not exported.
//
// I1  All of it is on one cache line.
//
// Only is_uncaptured() and the first free on a stream call the driver.
//
// Thread safety: all of it. Cost: O(1), with a search of fixed depth.
module;
#include "../base/thread_annotations.h"

export module vmm.stream:call_path;

import vmm.backend;
import vmm.base;
import vmm.optimizer;
import vmm.std;
import :arena;
import :capture_watch;
import :gate;
import :geometry;
import :identities;
import :locks;
import :options;
import :pool_state;
import :state_lock;

namespace vmm {

class alignas(64) call_path {
 public:
  call_path(driver_interface& driver, const pool_options& options) noexcept
      : looks_for_captures_(capture_watch::looks(driver, options)),
        observes_blocks_(options.watcher != nullptr || options.contents != contents_rule::none ||
                         options.rules.keep_none),
        needs_checks_((looks_for_captures_ && !options.captures_announced) || observes_blocks_),
        first_capturable_(capture_watch::first_capturable(driver, options)),
        first_identified_(stream_identities::first_of(driver.feature_set(), options)),
        driver_(driver) {}
  call_path(const call_path&) = delete;
  call_path& operator=(const call_path&) = delete;

  [[nodiscard]] inline pool_gate& gate() noexcept { return gate_; }
  [[nodiscard]] inline const pool_gate& gate() const noexcept { return gate_; }
  [[nodiscard]] inline state_cell& state() noexcept { return state_; }
  [[nodiscard]] inline const state_cell& state() const noexcept { return state_; }

  // ---- which calls need more ----
  /// Whether each call does more than the state's part: blocks are observed or filled, or none is
  /// kept.
  [[nodiscard]] inline bool observes_blocks() const noexcept { return observes_blocks_; }
  [[nodiscard]] inline bool may_be_captured(stream_handle stream) const noexcept {
    return static_cast<std::uint64_t>(stream) >= first_capturable_;
  }
  /// Whether a call on this stream takes more than the state, unless is_uncaptured().
  [[nodiscard]] inline bool needs_check(stream_handle stream) const noexcept {
    return needs_checks_ && (observes_blocks_ || may_be_captured(stream));
  }
  /// The same where the gate is closed: a capture may be under way that was announced.
  [[nodiscard]] inline bool needs_check_closed(stream_handle stream) const noexcept {
    if (needs_check(stream)) return true;
    return looks_for_captures_ && gate_.is_closed_by(gate_reason::captured) &&
           may_be_captured(stream);
  }
  /// Whether only a capture needs the check, and the driver's quick query finds none.
  [[nodiscard]] inline bool is_uncaptured(stream_handle stream) const noexcept {
    return is_uncaptured(stream, 0);
  }
  /// The same with the identity that the driver has just returned: 0 for a captured stream.
  [[nodiscard]] inline bool is_uncaptured(stream_handle stream,
                                          std::uint64_t identity) const noexcept {
    debug_check([&] { return needs_check(stream); }, "a stream is queried in vain");
    return !observes_blocks_ && (identity != 0 || driver_.is_uncaptured(stream));
  }

  /// Whether a later stream may have the handle while the pool lists memory under it.
  [[nodiscard]] inline bool has_identity(stream_handle stream) const noexcept {
    return static_cast<std::uint64_t>(stream) >= first_identified_;
  }

  // ---- arenas ----
  /// The state's; null while it has none.
  [[nodiscard]] inline arena_table* published_arenas() const noexcept {
    return arenas_.load(std::memory_order_acquire);
  }
  /// From now on calls find the arenas; null: none.
  void publish_arenas(arena_table* arenas) noexcept {
    arenas_.store(arenas, std::memory_order_release);
  }

  // ---- calls ----
  /// From free memory of the stream, beside arenas. Empty: not served.
  [[nodiscard]] inline address allocate(std::uint64_t size_bytes, stream_handle stream) noexcept
      VMM_EXCLUDES(rank::state);
  /// stream_pool::free(), on a stream that is not being captured.
  [[nodiscard]] inline status free(address at, stream_handle stream) VMM_EXCLUDES(rank::state);

 private:
  // Out of line: their variables are not part of a free's stack.
  [[nodiscard]] static bool free_in_arena(const arena_table& arenas, address at,
                                          stream_handle stream) noexcept;
  [[nodiscard]] status free_on_new_stream(address at, stream_handle stream)
      VMM_EXCLUDES(rank::state);

  pool_gate gate_;
  const bool looks_for_captures_;
  const bool observes_blocks_;
  const bool needs_checks_;                      // one of them, or blocks are observed
  const std::uint64_t first_capturable_;         // streams from this number on
  const std::uint64_t first_identified_;         // streams from this number on
  sync::atomic<arena_table*> arenas_ = nullptr;  // the state's, once it has any
  driver_interface& driver_;
  state_cell state_;
};
static_assert(sizeof(call_path) == 64, "I1: what every call reads is on two cache lines");

inline address call_path::allocate(std::uint64_t size_bytes, stream_handle stream) noexcept {
  const warm_lock warm(state_);
  const stream_request request = warm.request(size_bytes, stream);
  if (!warm.serves(request)) [[unlikely]]
    return {};
  const address at = warm.try_allocate(request);
  if (!at) [[unlikely]]
    return {};
  debug_check([&] { return at.value % granule_bytes == 0 && request.size_bytes() >= size_bytes; },
              "a block begins inside a granule, or is smaller than requested");
  warm.note_allocated(at, request, size_bytes, stream);
  return at;
}

inline status call_path::free(address at, stream_handle stream) {
  if (const arena_table* const arenas = published_arenas()) {
    if (free_in_arena(*arenas, at, stream)) return {};
  }
  {
    const warm_lock warm(state_);
    const std::uint32_t number = warm.find_stream(stream);
    if (number != pool_state::no_stream) [[likely]]
      return warm.free_deferring(at, number);
  }
  return free_on_new_stream(at, stream);
}

}  // namespace vmm

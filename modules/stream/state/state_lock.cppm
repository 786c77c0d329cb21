// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:state_lock - a pool's state, which is reached only under its lock. Not exported.
//
//     {
//       const table_lock state(cell);
//       state->change();
//     }
//     cell.with([](auto& state) { return state.value(); });
//
// A guard gives the only reference to the state. table_lock(cell)->call() does not compile: it
// would take the lock to the end of the statement, with all else that stands there. A free that was
// deferred (pool_state, I7) is finished before a table is read: warm_lock reads none, table_lock
// finishes it first.
//
// The state has the lock, beside what each holder reads first: what is read without the lock around
// the pointer to it stays unwritten, so that no thread takes it from another's cache.
//
// Thread safety: all of it. Cost: that of sync::spin_lock.
module;
#include "../../base/thread_annotations.h"

export module vmm.stream:state_lock;

import vmm.backend;
import vmm.base;
import vmm.observe;
import vmm.optimizer;
import vmm.std;
import :geometry;
import :locks;
import :mappings;
import :pool_state;

namespace vmm {

class state_cell {
 public:
  state_cell() = default;
  state_cell(const state_cell&) = delete;
  state_cell& operator=(const state_cell&) = delete;

  /// The work's result, which names nothing of the state by reference.
  template <class Work>
  inline auto with(Work&& work) noexcept VMM_EXCLUDES(rank::state);
  template <class Work>
  inline auto with(Work&& work) const noexcept VMM_EXCLUDES(rank::state);
  [[nodiscard]] address address_of(const mapping& m) const noexcept VMM_EXCLUDES(rank::state);
  [[nodiscard]] std::uint64_t stale_count() const noexcept VMM_EXCLUDES(rank::state);
  [[nodiscard]] bool is_suspended() const noexcept VMM_EXCLUDES(rank::state);
  /// Before any other thread can reach this, or after all others have ended.
  void set(std::unique_ptr<pool_state> state) noexcept {
    check(state_ == nullptr && state != nullptr, "a second state is created");
    state_ = std::move(state);
  }
  /// The state, which nothing here owns or reaches any more.
  [[nodiscard]] pool_state* release() noexcept { return state_.release(); }

 private:
  friend class warm_lock;
  template <class State>
  friend class table_lock;

  // The state, whose lock the caller has.
  [[nodiscard]] inline pool_state& lock() const noexcept VMM_NOT_ANALYSED {
    pool_state* const state = state_.get();
    debug_check([&] { return state != nullptr; }, "the state does not exist");
    // Its first two lines come while the lock is taken, behind which the processor waits with other
    // loads.
    const auto* const first = reinterpret_cast<const std::byte*>(state);
    fetch_ahead(first);
    if constexpr (sizeof(pool_state) > 64) fetch_ahead(first + 64);
    if (!state->own_lock().try_lock()) [[unlikely]]
      wait(*state);
    return *state;
  }
  // Another thread has the lock: the state counts that.
  [[gnu::noinline]] static void wait(pool_state& state) noexcept VMM_NOT_ANALYSED {
    state.own_lock().lock();
    state.note_wait();
  }

  std::unique_ptr<pool_state> state_ VMM_POINTEE_GUARDED_BY(rank::state);
};

/// For requests served from free memory: reaches no table that a deferred free has not updated yet.
class VMM_SCOPED_CAPABILITY warm_lock {
 public:
  inline explicit warm_lock(state_cell& cell) noexcept VMM_ACQUIRE(rank::state)
      : state_(cell.lock()) {}
  inline ~warm_lock() VMM_RELEASE() { state_.own_lock().unlock(); }
  warm_lock(const warm_lock&) = delete;
  warm_lock& operator=(const warm_lock&) = delete;

  [[nodiscard]] inline std::uint32_t find_stream(stream_handle stream) const noexcept {
    return state_.progress().find(stream);
  }
  [[nodiscard]] inline stream_request request(std::uint64_t size_bytes,
                                              stream_handle stream) const noexcept {
    return {state_.granules_for(size_bytes), state_.progress().find(stream)};
  }
  [[nodiscard]] inline bool serves(const stream_request& request) const noexcept {
    return request.count_granules != 0 && request.stream != pool_state::no_stream &&
           !state_.needs_slow_path();
  }
  /// Empty: not served.
  [[nodiscard]] inline address try_allocate(const stream_request& request) const noexcept {
    bool starved = false;
    state_.finish_deferred_free();
    return state_.try_allocate(request, starved);
  }
  /// Writes the event, where there is a recorder.
  inline void note_allocated(address at, const stream_request& request, std::uint64_t asked_bytes,
                             stream_handle stream) const noexcept {
    state_.events().note_block(history_kind::allocated, {at, request.block_bytes()}, asked_bytes,
                               stream);
  }
  [[nodiscard]] inline status free_deferring(address at, std::uint32_t stream) const noexcept {
    debug_check([&] { return stream < state_.streams().count(); }, "a stream has no record");
    return state_.free_deferring(at, stream);
  }
  /// All of the state.
  [[nodiscard]] inline pool_state& tables() const noexcept {
    state_.finish_deferred_free();
    return state_;
  }

 private:
  pool_state& state_;
};

/// For all else. `State` is pool_state, or const where the cell is.
template <class State>
class VMM_SCOPED_CAPABILITY table_lock {
 public:
  inline explicit table_lock(const state_cell& cell) noexcept VMM_ACQUIRE(rank::state)
      : state_(cell.lock()) {
    state_.finish_deferred_free();
  }
  inline ~table_lock() VMM_RELEASE() { state_.own_lock().unlock(); }
  table_lock(const table_lock&) = delete;
  table_lock& operator=(const table_lock&) = delete;

  [[nodiscard]] inline State* operator->() const& noexcept { return &state_; }
  [[nodiscard]] inline State& operator*() const& noexcept { return state_; }
  State* operator->() const&& = delete;
  State& operator*() const&& = delete;

 private:
  pool_state& state_;
};
table_lock(state_cell&) -> table_lock<pool_state>;
table_lock(const state_cell&) -> table_lock<const pool_state>;

template <class Work>
inline auto state_cell::with(Work&& work) noexcept {
  const table_lock state(*this);
  return std::forward<Work>(work)(*state);
}

template <class Work>
inline auto state_cell::with(Work&& work) const noexcept {
  const table_lock state(*this);
  return std::forward<Work>(work)(*state);
}

inline address state_cell::address_of(const mapping& m) const noexcept {
  return with([&](const auto& state) { return state.segments().address_of(m); });
}

inline std::uint64_t state_cell::stale_count() const noexcept {
  return with([](const auto& state) { return state.records().stale_count(); });
}

inline bool state_cell::is_suspended() const noexcept {
  return with([](const auto& state) { return state.suspension() != suspension_phase::running; });
}

}  // namespace vmm

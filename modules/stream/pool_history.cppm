// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:pool_history - takes a pool's histories, and writes events that are not of one
// request; the figures that vmm-top shows. Not exported.
//
// I1  Events are written under the state's lock, and a history is taken with the state as it is
//     after the last event in it.
// I2  A ring is destroyed after the last event is written to it.
//
// The events of blocks and of requests are written by what changes them (pool_state::events).
//
// Thread safety: all of it. Cost: a branch while nothing is recorded.
module;
#include "../base/thread_annotations.h"

export module vmm.stream:pool_history;

import vmm.backend;
import vmm.base;
import vmm.observe;
import vmm.optimizer;
import vmm.std;
import :call_path;
import :locks;
import :options;
import :pool_state;
import :state_lock;

namespace vmm {

class pool_history {
 public:
  pool_history(driver_interface& driver, const pool_options& options, call_path& path) noexcept
      : port_(options.recorder),
        driver_(driver),
        options_(options),
        gate_(path.gate()),
        state_(path.state()) {}
  pool_history(const pool_history&) = delete;
  pool_history& operator=(const pool_history&) = delete;

  // ---- set-up and end ----
  /// Errors: bad_option (the ring records another allocator).
  [[nodiscard]] status attach() noexcept { return port_.attach(); }
  /// Requires: attach(), and that no other thread reaches the state.
  void begin(pool_state& state, const device_core& core) noexcept {
    state.events().set_ring(port_.get());
    core_ = &core;
  }
  void publish();
  /// With VMM_REMEMBER: reads the peak of the previous run, and keeps this one's. `where`: the
  /// pool's memory. Cost: a getenv; with the variable a query of the driver and a file.
  void remember(location where);
  /// Of vmm-top and VMM_REMEMBER.
  void end_publishing() noexcept {
    top_.end();
    peaks_.end();
  }
  /// The bytes to make ready; 0 where nothing is remembered. After remember().
  [[nodiscard]] std::uint64_t remembered_bytes() const noexcept { return remembered_bytes_; }
  /// The same to the first caller, 0 to others. Cost: one relaxed load.
  [[nodiscard]] std::uint64_t take_remembered() noexcept {
    if (!is_to_be_ready_.load(std::memory_order_relaxed)) [[likely]]
      return 0;
    return is_to_be_ready_.exchange(false, std::memory_order_relaxed) ? remembered_bytes_ : 0;
  }

  /// Effects: what is mapped now was made ready, not requested.
  void note_ready() noexcept VMM_EXCLUDES(rank::state);

  // ---- histories ----
  [[nodiscard]] bool is_on() const noexcept { return static_cast<bool>(port_); }
  /// Errors: in_use (one is recorded).
  [[nodiscard]] status start(std::unique_ptr<history_ring> ring) VMM_REQUIRES(rank::growth)
      VMM_EXCLUDES(rank::history, rank::state);
  /// Errors: invalid_argument (nothing is recorded, or nothing was allocated), out_of_host_memory.
  [[nodiscard]] result<history> take() const VMM_EXCLUDES(rank::history, rank::state);
  /// As take(), and ends the recording. `ended` receives a ring of its own, to be destroyed after
  /// the locks.
  [[nodiscard]] result<history> stop(std::unique_ptr<history_ring>& ended)
      VMM_REQUIRES(rank::growth) VMM_EXCLUDES(rank::history, rank::state);

  // ---- events ----
  void note(const history_note& what) noexcept VMM_EXCLUDES(rank::state);
  void note_footprint() noexcept VMM_EXCLUDES(rank::state);
  /// The state's report: three events, and the file of the options, if any.
  void note_shortage() noexcept VMM_REQUIRES(rank::growth) VMM_EXCLUDES(rank::state);

 private:
  [[nodiscard]] result<history> take(std::unique_ptr<history_ring>* ended) const
      VMM_EXCLUDES(rank::history, rank::state);
  void sample(top_sample& out) const noexcept VMM_EXCLUDES(rank::state);
  [[nodiscard]] bool is_ready() const noexcept {
    return !gate_.is_closed_by(gate_reason::not_set_up) && gate_.is_here();
  }

  mutable history_port port_;
  driver_interface& driver_;
  const pool_options& options_;
  const pool_gate& gate_;
  state_cell& state_;
  const device_core* core_ = nullptr;
  top_use top_;
  peak_record peaks_;
  // Of a run that is like the previous one.
  [[nodiscard]] run_peak peak() const noexcept VMM_EXCLUDES(rank::state);

  run_peak before_{};                   // of the previous run
  std::uint64_t remembered_bytes_ = 0;  // to make ready: more than its live bytes
  std::atomic<std::uint64_t> ready_mapped_bytes_ = 0;
  std::atomic<bool> is_to_be_ready_ = false;
};

}  // namespace vmm

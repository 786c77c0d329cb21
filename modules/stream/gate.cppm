// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:gate - whether a call on a pool may go straight on. Not exported.
//
// I1  The gate is open exactly when no reason for a closer check holds.
// I2  It is closed in a forked child: by not_set_up, or by gate_watch, which listens from then on.
//
// A reason may hold for one thread only (a remap callback runs on it). The gate is closed for all
// threads then: the slow entry finds out which reason it is and whether it is the caller's.
//
// Thread safety: all of it. Cost: is_open() is one load, close() and open() one exchange.
export module vmm.stream:gate;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {

/// Why a call goes through the slow entry. A further reason is a further bit here, and a question
/// in stream_pool::open_to_allocate() or check_ready().
enum class gate_reason : std::uint32_t {
  not_set_up = 1u << 0,     // no driver call was made yet, or the last set-up failed
  callback_runs = 1u << 1,  // a remap callback runs, on one thread
  goes_away = 1u << 2,      // the destructor runs
  captured = 1u << 3,       // a capture was announced; without one no query is made
  forked = 1u << 4,         // this is the copy of a forked child
};

class pool_gate {
 public:
  [[nodiscard]] inline bool is_open() const noexcept {
    const bool no_reason = reasons_.load(std::memory_order_acquire) == 0;
    debug_check([&] { return !no_reason || is_here(); }, "I2: a gate is open in a forked child");
    return no_reason;
  }
  /// False in a child that was forked after the gate was made.
  [[nodiscard]] inline bool is_here() const noexcept { return made_in_.is_here(); }
  [[nodiscard]] inline bool is_closed_by(gate_reason why) const noexcept {
    return (reasons_.load(std::memory_order_acquire) & static_cast<std::uint32_t>(why)) != 0;
  }
  inline void close(gate_reason why) noexcept {
    const std::uint32_t before =
        reasons_.fetch_or(static_cast<std::uint32_t>(why), std::memory_order_acq_rel);
    check((before & static_cast<std::uint32_t>(why)) == 0,
          "I1: a gate is closed twice for one reason");
  }
  inline void open(gate_reason why) noexcept {
    const std::uint32_t before =
        reasons_.fetch_and(~static_cast<std::uint32_t>(why), std::memory_order_acq_rel);
    check((before & static_cast<std::uint32_t>(why)) != 0,
          "I1: a gate is opened that was not closed");
  }
  /// For ever; in a child's child again.
  void close_for_child() noexcept {
    check(!is_here(), "a gate is closed for a child in its parent");
    (void)reasons_.fetch_or(static_cast<std::uint32_t>(gate_reason::forked),
                            std::memory_order_acq_rel);
  }

 private:
  sync::atomic<std::uint32_t> reasons_ = static_cast<std::uint32_t>(gate_reason::not_set_up);
  const process_mark made_in_;
};

/// Closes a gate in each forked child, once it listens.
class gate_watch final : public fork_listener {
 public:
  explicit gate_watch(pool_gate& gate) noexcept : gate_(gate) {}
  ~gate_watch() { stop(); }
  void forked() noexcept override { gate_.close_for_child(); }

 private:
  pool_gate& gate_;
};

}  // namespace vmm

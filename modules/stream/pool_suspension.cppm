// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:pool_suspension - a pool whose memory is suspended as a whole: free memory is released
// to the driver, the memory of live blocks is listed for vmm.suspend. Not exported.
//
// I1  While the phase is not `running` nothing is allocated. The state has the phase, too: each
//     call reads it under the state's lock.
// I2  A handle is marked suspended from begin_suspend() until the pool continues.
//
// Thread safety: all of it. Cost: waits for work; a trim; driver calls by handles.
module;
#include "../base/thread_annotations.h"

export module vmm.stream:pool_suspension;

import vmm.backend;
import vmm.base;
import vmm.optimizer;
import vmm.std;
import :call_path;
import :capture_watch;
import :growth_entry;
import :locks;
import :notifier;
import :pool_base;
import :pool_history;
import :pool_parts;
import :state_lock;

namespace vmm {

export class stream_pool;

class pool_suspension final : public suspendable {
 public:
  /// `parts`: null before the set-up.
  pool_suspension(stream_pool& of, const pool_lower& lower,
                  const std::unique_ptr<pool_parts>& parts) noexcept
      : of_(of),
        driver_(lower.driver),
        gate_(lower.path.gate()),
        contents_(lower.contents),
        phases_(lower.phases),
        state_(lower.path.state()),
        entry_(lower.entry),
        captures_(lower.captures),
        notices_(lower.notices),
        events_(lower.events),
        relief_(lower.relief),
        parts_(parts) {}

  [[nodiscard]] device_core& core() noexcept override;
  [[nodiscard]] driver_interface& driver() noexcept override { return driver_; }
  [[nodiscard]] user_count& users() noexcept override;
  [[nodiscard]] suspension_phase phase() const noexcept override { return phases_.phase(); }
  [[nodiscard]] status begin_suspend(std::span<const stream_handle> streams,
                                     suspension_list& out) override;
  void end_suspend(const suspension_list& parts, bool done) noexcept override;
  [[nodiscard]] status begin_resume(suspension_list& out) override;
  void end_resume(const suspension_list& parts, bool done) noexcept override;
  void memory_is_back() noexcept override { phases_.memory_is_back(); }
  void announce(const suspension_list& parts, suspension_phase next) override;
  [[nodiscard]] status clear_freed(stream_handle stream) override;
  [[nodiscard]] bool clears_freed() const noexcept override {
    return contents_.fills_on_release() && phases_.has_unfilled();
  }
  [[nodiscard]] relief_member& relief() noexcept override { return relief_; }

 private:
  // Returns the previous phase; holds rank::change if that was `from`.
  [[nodiscard]] suspension_phase begin_change(suspension_phase from) VMM_EXCLUDES(rank::state);
  void end_change(suspension_phase next) noexcept VMM_REQUIRES(rank::change)
      VMM_EXCLUDES(rank::state);
  [[nodiscard]] status quiesce(std::span<const stream_handle> streams)
      VMM_REQUIRES(rank::change, rank::growth) VMM_EXCLUDES(rank::state);
  [[nodiscard]] status finish_work(std::span<const stream_handle> streams)
      VMM_REQUIRES(rank::change, rank::growth) VMM_EXCLUDES(rank::state);
  [[nodiscard]] status release_free() VMM_REQUIRES(rank::change, rank::growth)
      VMM_EXCLUDES(rank::state);
  [[nodiscard]] status list_parts(suspension_list& out) VMM_REQUIRES(rank::change, rank::growth)
      VMM_EXCLUDES(rank::state);
  void set_in_use(const suspension_list& parts) noexcept VMM_REQUIRES(rank::change)
      VMM_EXCLUDES(rank::state);

  stream_pool& of_;
  driver_interface& driver_;
  const pool_gate& gate_;
  const content_filler& contents_;
  suspension_phases& phases_;
  state_cell& state_;
  growth_entry& entry_;
  capture_watch& captures_;
  notifier& notices_;
  pool_history& events_;
  relief_member& relief_;
  const std::unique_ptr<pool_parts>& parts_;
};

}  // namespace vmm

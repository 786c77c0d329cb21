// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.manager:suspension - a manager whose blocks' memory is suspended. Not exported.
//
// I1  Every live block is claimed while its memory is released and while it is restored, and can be
//     freed in between. No block is created meanwhile: see is_running().
//
// Thread safety: all of it. Cost: waits for work; driver calls by pieces.
module;
#include "../base/thread_annotations.h"

export module vmm.manager:suspension;

import vmm.backend;
import vmm.base;
import vmm.optimizer;
import vmm.std;
import :base;
import :history;
import :locks;
import :reuse;
import :types;

namespace vmm {

export class manager;

class manager_suspension final : public suspendable {
 public:
  manager_suspension(manager& of, manager_base& base, manager_history& history,
                     range_reuse& ranges) noexcept
      : of_(of), base_(base), history_(history), ranges_(ranges) {}

  /// Whether the blocks' memory is mapped and no suspension is in progress. A call that tracks a
  /// block, or gives it memory, checks this afterwards: a suspension that begins later finds the
  /// block.
  [[nodiscard]] bool is_running() const noexcept { return phases_.is_running(); }
  [[nodiscard]] suspension_phases& phases() noexcept { return phases_; }
  /// Requires: the listener is valid until ignore(). Effects: begins to notify it. Cost: O(1), of
  /// ignore() O(listeners); both wait for a notification in progress.
  void listen(suspension_listener& to) noexcept;
  void ignore(suspension_listener& gone) noexcept;

  [[nodiscard]] device_core& core() noexcept override;
  [[nodiscard]] driver_interface& driver() noexcept override { return *base_.driver; }
  [[nodiscard]] user_count& users() noexcept override;
  [[nodiscard]] suspension_phase phase() const noexcept override { return phases_.phase(); }
  [[nodiscard]] status begin_suspend(std::span<const stream_handle> streams,
                                     suspension_list& out) override;
  void end_suspend(const suspension_list& parts, bool done) noexcept override;
  [[nodiscard]] status begin_resume(suspension_list& out) override;
  void end_resume(const suspension_list& parts, bool done) noexcept override;
  void announce(const suspension_list& parts, suspension_phase next) override;
  [[nodiscard]] relief_member& relief() noexcept override;

 private:
  [[nodiscard]] status list_unclaimed(std::vector<address>& out) VMM_REQUIRES(manager_lock::change);
  [[nodiscard]] status claim_to_suspend() VMM_REQUIRES(manager_lock::change);
  [[nodiscard]] status claim_suspended() VMM_REQUIRES(manager_lock::change);
  void unclaim_all() noexcept VMM_REQUIRES(manager_lock::change);
  [[nodiscard]] status finish_work(std::span<const stream_handle> streams)
      VMM_REQUIRES(manager_lock::change);
  [[nodiscard]] result<bool> finish_stream(stream_handle stream);
  [[nodiscard]] status list_parts(suspension_list& out) VMM_REQUIRES(manager_lock::change);
  void set_all_suspended(bool suspended) noexcept VMM_REQUIRES(manager_lock::change);
  void end_change(suspension_phase next) noexcept VMM_REQUIRES(manager_lock::change);

  manager& of_;
  manager_base& base_;
  manager_history& history_;
  range_reuse& ranges_;
  suspension_phases phases_;
  std::vector<block*> suspending_ VMM_GUARDED_BY(manager_lock::change);  // that were claimed
  sync::mutex listeners_mutex_;
  suspension_listener* listeners_ VMM_GUARDED_BY(listeners_mutex_) = nullptr;
};

/// For a call beside the changes of a manager.
class VMM_SCOPED_CAPABILITY manager_change_guard : public beside_change {
 public:
  explicit manager_change_guard(manager_suspension& of) noexcept VMM_ACQUIRE(manager_lock::change)
      : beside_change(&of.phases()) {}
  ~manager_change_guard() VMM_RELEASE() {}
};

}  // namespace vmm

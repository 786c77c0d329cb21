// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.manager:history - the events that a manager writes into its history, and the layout that it
// adds when the history is taken.
//
// A manager has no lock over all of its blocks: each block has its state in the history, under the
// lock of events, and the layout lists these. So the list agrees with the events before it, also
// beside concurrent calls.
//
// I1  A block's event is written while its record is claimed: before its addresses, or its memory,
//     can be another block's.
//
// Thread safety: all of it. Cost: a branch without a recorder.
module;
#include "../base/thread_annotations.h"

export module vmm.manager:history;

import vmm.backend;
import vmm.base;
import vmm.observe;
import vmm.optimizer;
import vmm.std;
import :base;
import :locks;
import :report;
import :statistics;

namespace vmm {

class manager_history final : public block_listener {
 public:
  explicit manager_history(manager_base& base) noexcept
      : base_(base), port_(base.options.recorder) {}
  manager_history(const manager_history&) = delete;
  manager_history& operator=(const manager_history&) = delete;

  /// Called before the first event. Errors: bad_option (the ring records another allocator).
  [[nodiscard]] status attach() noexcept { return port_.attach(); }
  [[nodiscard]] bool is_recorded() const noexcept { return static_cast<bool>(port_); }

  void record(const history_note& what) noexcept;
  void note(const history_note& what) noexcept VMM_EXCLUDES(manager_lock::events);
  void note_block(history_kind kind, block& of) noexcept VMM_EXCLUDES(manager_lock::events);
  void note_pin(history_kind what, const block& of) noexcept VMM_EXCLUDES(manager_lock::events);
  void note_footprint() noexcept VMM_EXCLUDES(manager_lock::events);
  void note_failure(const block_request& wanted, const error& why) noexcept
      VMM_EXCLUDES(manager_lock::history);
  /// Of the engine, for each block in use.
  void changed(block& now, address before) noexcept override VMM_EXCLUDES(manager_lock::events);

  [[nodiscard]] result<history> take() VMM_EXCLUDES(manager_lock::history);
  [[nodiscard]] status start(const history_options& how) VMM_EXCLUDES(manager_lock::history);
  [[nodiscard]] result<history> stop() VMM_EXCLUDES(manager_lock::history);

 private:
  // With `ended` the recording ends: see history_port::take().
  [[nodiscard]] result<history> take(std::unique_ptr<history_ring>* ended)
      VMM_REQUIRES(manager_lock::history);
  struct take_plan {
    std::unique_ptr<history_ring>* ended = nullptr;
    std::size_t room_count = 0;  // of live blocks
  };
  [[nodiscard]] result<history> take_once(const take_plan& plan, bool& lacks_room)
      VMM_REQUIRES(manager_lock::history);
  [[nodiscard]] bool list_noted(std::vector<history_region>& out) const noexcept
      VMM_REQUIRES(manager_lock::events);
  [[nodiscard]] status describe(const std::vector<extent_info>& extents, history& into) const;

  manager_base& base_;
  history_port port_;
  sync::spin_lock event_lock_;
  std::uint64_t noted_footprint_bytes_ VMM_GUARDED_BY(manager_lock::events) = 0;
  std::uint64_t number_ VMM_GUARDED_BY(manager_lock::events) = 1;  // of the recording that there is
};

}  // namespace vmm

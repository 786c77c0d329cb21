// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.manager:rights - which locations may use all blocks, and which single ones. Not exported.
//
// Thread safety: all of it. Cost: a set-access for each piece.
module;
#include "../base/thread_annotations.h"

export module vmm.manager:rights;

import vmm.backend;
import vmm.base;
import vmm.optimizer;
import vmm.std;
import vmm.tracker;
import :base;
import :locks;
import :suspension;

namespace vmm {

class manager_rights {
 public:
  manager_rights(manager_base& base, manager_suspension& suspension) noexcept
      : base_(base), suspension_(suspension) {}
  manager_rights(const manager_rights&) = delete;
  manager_rights& operator=(const manager_rights&) = delete;

  /// manager::set_access().
  [[nodiscard]] status set_access(address at, std::span<const access_grant> grants);
  /// The same for a part of the block at `at`.
  [[nodiscard]] status set_part_access(address at, address_range part,
                                       std::span<const access_grant> grants);
  /// manager::set_peers(), behind set-up.
  [[nodiscard]] status set_peers(std::span<const access_grant> grants)
      VMM_EXCLUDES(manager_lock::change, manager_lock::peers, manager_lock::growable);
  /// While it is held no call gives rights to all blocks. Its rank is manager_lock::peers.
  [[nodiscard]] sync::mutex& mutex() noexcept { return mutex_; }

 private:
  // Blocks, and the rooms of growable ranges, whose owners wait.
  struct peers_list {
    std::vector<address> blocks;
    std::vector<block*> rooms;
  };
  [[nodiscard]] status list_all(peers_list& out) VMM_REQUIRES(manager_lock::growable);
  [[nodiscard]] status check_room(const peers_list& listed, const grant_list& after)
      VMM_REQUIRES(manager_lock::growable);
  [[nodiscard]] status refresh_all(const peers_list& listed) VMM_REQUIRES(manager_lock::growable);

  manager_base& base_;
  manager_suspension& suspension_;
  sync::mutex mutex_;
};

}  // namespace vmm

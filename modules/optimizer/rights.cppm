// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.optimizer:rights - a change of the devices that may use all memory of an allocator, or one
// block of it.
//
// I1  A failed change leaves the rights of present and later mappings as they were, as far as the
//     driver accepts the undoing.
//
// Thread safety: change_peers() by one thread at a time for an allocator; all else any thread.
// Cost: a query for each grant, and the set-access calls of the allocator's mappings.
export module vmm.optimizer:rights;

import vmm.backend;
import vmm.base;
import vmm.std;
import :core;
import :remapper;

namespace vmm {

/// The error for a list of grants that would be too long.
export inline constexpr error too_many_grants =
    refuse(errc::invalid_argument, "rights for more locations than a list can hold");

/// The target of a change of an allocator's rights. `placement` is the place of its memory.
export struct rights_scope {
  driver_interface& driver;
  remapper& remaps;
  location placement{};
};

/// Checks that a list of grants names locations, and neither the home nor the placement. Errors:
/// invalid_argument. Cost: no driver call.
export [[nodiscard]] status check_grants(const rights_scope& scope,
                                         std::span<const access_grant> grants);

/// `before` with `grants`. A location without rights is not added: a driver without it
/// refuses the list. Errors: invalid_argument (more locations than a list takes).
export [[nodiscard]] result<grant_list> add_grants(const grant_list& before,
                                                   std::span<const access_grant> grants);

/// The rights of one block, after a change and after its undoing.
export struct own_rights_change {
  grant_list after{};
  grant_list undo{};  ///< the block's previous rights, with those of all if it had none of its own

  /// Errors: invalid_argument (more locations than a list takes).
  [[nodiscard]] static result<own_rights_change> make(const grant_list& own, const grant_list& all,
                                                      std::span<const access_grant> grants);
};

/// Changes the rights of all of an allocator's memory. `fits(after)` returns a status: whether each
/// block's own rights have room beside these; it calls no driver. `apply()` returns a status: gives
/// every mapping that stands its rights. Requires: check_grants() of the same grants.
/// Errors: invalid_argument (more locations than a list takes), what `fits`, check_reach() and
/// `apply` return. See I1.
export template <class Fits, class Apply>
[[nodiscard]] status change_peers(const rights_scope& scope, std::span<const access_grant> grants,
                                  Fits&& fits, Apply&& apply) {
  const grant_list before = scope.remaps.rights();
  const result<grant_list> after = add_grants(before, grants);
  if (!after) return after.error();
  if (status room = fits(*after); !room) return room;
  if (status reached = check_reach(scope.driver, scope.placement, grants); !reached) return reached;
  if (status set = scope.remaps.set_rights(*after); !set) return set;
  const status applied = apply();
  if (applied) return applied;
  const status undone = scope.remaps.set_rights(before);
  check(undone.has_value(), "I1: rights that were in force do not fit into their list");
  if (try_to_close(apply)) scope.remaps.forget_others(before);
  return applied;
}

}  // namespace vmm

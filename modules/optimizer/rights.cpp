// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module vmm.optimizer;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {

status check_grants(const rights_scope& scope, std::span<const access_grant> grants) {
  if (grants.empty()) return refuse(errc::invalid_argument, "the list of grants is empty");
  check(scope.remaps.rights().of(scope.driver.home()) == access::read_write,
        "the home may not use an allocator's memory");
  for (const access_grant& each : grants) {
    if (each.grantee == scope.driver.home() || each.grantee == scope.placement) {
      return refuse(
          errc::invalid_argument,
          "the home and the placement always have read and write access: name other locations");
    }
  }
  return {};
}

result<grant_list> add_grants(const grant_list& before, std::span<const access_grant> grants) {
  grant_list after = before;
  for (const access_grant& each : grants) {
    if (each.rights == access::none && after.of(each.grantee) == access::none) continue;
    if (!after.set(each)) return too_many_grants;
  }
  check(after.all().size() >= before.all().size(), "a location has lost its rights");
  return after;
}

result<own_rights_change> own_rights_change::make(const grant_list& own, const grant_list& all,
                                                  std::span<const access_grant> grants) {
  own_rights_change change{own, own};
  for (const access_grant& each : grants) {
    const bool is_new =
        std::none_of(own.all().begin(), own.all().end(),
                     [&](const access_grant& b) { return b.grantee == each.grantee; });
    if (!change.after.set(each)) return too_many_grants;
    if (is_new) (void)change.undo.set({each.grantee, all.of(each.grantee)});
  }
  if (!remapper::fit(all, &change.after)) return too_many_grants;
  check(change.undo.all().size() >= own.all().size(), "undoing a change removes a right");
  return change;
}

}  // namespace vmm

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include "../base/thread_annotations.h"

module vmm.manager;

import vmm.backend;
import vmm.base;
import vmm.optimizer;
import vmm.physical;
import vmm.std;
import vmm.timeline;
import vmm.tracker;

namespace vmm {

namespace {

// Calls `change(block&)`, a status, with the block at the address, if it has memory.
template <class Change>
status change_rights(manager_base& base, address at, Change&& change) {
  const result<block*> claimed = claim_block(base, at, pinned_record::allowed);
  if (!claimed) return claimed.error();
  block& of = **claimed;
  check(of.claimed && of.base == at, "the claimed block is not the requested one");
  status given = of.is_suspended ? status{memory_suspended}
                 : of.sizes.user_bytes == 0
                     ? refuse(errc::invalid_argument,
                              "the block's memory has moved to another block: it can only be freed")
                     : change(of);
  base.blocks->records().unclaim(of);
  return given;
}

constexpr error no_grants = refuse(errc::invalid_argument, "the list of grants is empty");

}  // namespace

status manager_rights::set_access(address at, std::span<const access_grant> grants) {
  if (grants.empty()) return no_grants;
  return change_rights(base_, at,
                       [&](block& of) { return base_.blocks->set_own_rights(of, grants); });
}

status manager_rights::set_part_access(address at, address_range part,
                                       std::span<const access_grant> grants) {
  if (grants.empty()) return no_grants;
  return change_rights(base_, at, [&](block& of) -> status {
    const address_range users{of.base, of.sizes.user_bytes};
    const address_range whole{of.base, of.sizes.mapped_bytes};
    if (part.empty() || !whole.contains(part))
      return refuse(errc::invalid_argument, "the part is not inside one block");
    address_range mapped = part;
    if (part.end() == users.end()) mapped.size_bytes = whole.end() - part.base;
    return base_.blocks->set_part_rights(of, mapped, grants);
  });
}

// Errors: in_use, where more blocks were allocated meanwhile than there is room for.
status manager_rights::list_all(peers_list& out) {
  const std::size_t count_max = std::min(out.blocks.capacity(), out.rooms.capacity());
  out.blocks.clear();
  out.rooms.clear();
  bool has_all = true;
  base_.blocks->records().visit([&](const tracked_range& range) {
    has_all = has_all && out.blocks.size() + out.rooms.size() < count_max;
    if (!has_all) return;
    if (range.owned) {
      out.rooms.push_back(&block_of(const_cast<tracked_range&>(range)));
    } else {
      out.blocks.push_back(range.base);
    }
  });
  check(out.blocks.size() + out.rooms.size() <= count_max, "more blocks are listed than fit");
  return has_all ? status{} : status{refuse(errc::in_use, "blocks are being allocated: try again")};
}

// Whether each block's own rights fit beside those that all are to have.
status manager_rights::check_room(const peers_list& listed, const grant_list& after) {
  for (const address at : listed.blocks) {
    const result<block*> claimed = claim_block(base_, at, pinned_record::allowed);
    if (!claimed && is_wrong_address(claimed.error().code)) continue;
    if (!claimed) return claimed.error();
    check((*claimed)->base == at, "the claimed block is not the requested one");
    const bool has_room = (*claimed)->fits_beside(after);
    base_.blocks->records().unclaim(**claimed);
    if (!has_room)
      return refuse(errc::invalid_argument, "rights for more locations than a list can hold");
  }
  return {};
}

// Blocks freed meanwhile have no owner.
status manager_rights::refresh_all(const peers_list& listed) {
  check(base_.blocks != nullptr, "rights are given before there is memory");
  for (block* const room : listed.rooms) {
    check(room->owned && room->is_growable, "a block is handled as a growable block");
    if (status given = base_.blocks->refresh_rights(*room); !given) return given;
  }
  for (const address at : listed.blocks) {
    const result<block*> claimed = claim_block(base_, at, pinned_record::allowed);
    if (!claimed && is_wrong_address(claimed.error().code)) continue;
    if (!claimed) return claimed.error();
    // A suspended block gets its rights at resume: they must fit.
    const status given = base_.blocks->refresh_rights(**claimed);
    check((*claimed)->base == at, "the claimed block is not the requested one");
    base_.blocks->records().unclaim(**claimed);
    if (!given) return given;
  }
  return {};
}

// A block made meanwhile is checked by allocate(), once it is tracked.
status manager_rights::set_peers(std::span<const access_grant> grants) {
  const rights_scope scope{*base_.driver, base_.blocks->core().remaps, base_.placement()};
  if (status valid = check_grants(scope, grants); !valid) return valid;
  // Waits for a suspension or resumption in progress: its mappings get the rights of all.
  const rank_guard changing(manager_lock::change, suspension_.phases().change_mutex());
  const rank_guard giving(manager_lock::peers, mutex_);
  const rank_guard still(manager_lock::growable, base_.growable_mutex);
  peers_list listed;
  const std::size_t count_max = base_.blocks->records().size() + 1;
  if (status room = reserve_more(listed.blocks, count_max); !room) return room;
  if (status room = reserve_more(listed.rooms, count_max); !room) return room;
  const auto fits = [&](const grant_list& after) {
    assume_locked(manager_lock::growable);
    const status complete = list_all(listed);
    return complete ? check_room(listed, after) : complete;
  };
  // If the list is too short for the present blocks, only the listed ones are undone.
  const auto apply = [&] {
    assume_locked(manager_lock::growable);
    const status complete = list_all(listed);
    const status given = refresh_all(listed);
    return given ? complete : given;
  };
  return change_peers(scope, grants, fits, apply);
}

}  // namespace vmm

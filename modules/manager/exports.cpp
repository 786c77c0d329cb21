// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include "../base/thread_annotations.h"

module vmm.manager;

import vmm.backend;
import vmm.base;
import vmm.observe;
import vmm.optimizer;
import vmm.physical;
import vmm.std;
import vmm.tracker;

namespace vmm {

result<exported_range> manager_exports::begin(address at, export_rule rule, std::uint64_t number) {
  const result<block*> claimed = claim_block(base_, at, pinned_record::allowed);
  if (!claimed) return claimed.error();
  block& given = **claimed;
  const bool is_other = number != 0 && given.number != number;
  result<exported_range> made =
      is_other
          ? result<exported_range>{refuse(
                errc::not_allocated, "the block was freed, and another block is at its address")}
          : describe(given);
  check(given.base == at, "the exported block is not the requested one");
  if (made) {
    check(made->parts.size() == given.memories.size(), "a part of an exported block is missing");
    base_.blocks->memory().mark_exported(given.memories);
    if (rule == export_rule::pinned) {
      base_.blocks->records().pin(given);
      history_.note_pin(history_kind::pinned, given);
    }
  }
  base_.blocks->records().unclaim(given);
  return made;
}

result<exported_range> manager_exports::describe(block& given) {
  check(given.claimed, "a block that is not claimed is exported");
  if (given.is_suspended) return memory_suspended;
  if (given.sizes.user_bytes == 0 || given.memories.empty()) {
    return refuse(errc::invalid_argument,
                  "the block's memory has moved to another block: it can only be freed");
  }
  if (base_.options.shareable == share_kind::none) {
    return refuse(errc::not_supported,
                  "the manager's memory cannot be shared: set manager_options::shareable");
  }
  if (status unlocked = base_.blocks->unlock(given); !unlocked) return unlocked.error();
  exported_range made{given.base,  given.sizes.mapped_bytes, base_.options.shareable, {}, {},
                      given.number};
  const result<physical_properties> granted =
      base_.driver->get_properties(given.memories.front()->handle);
  if (!granted) return granted.error();
  check(made.size_bytes >= given.sizes.user_bytes, "an export is smaller than the requested size");
  made.granted = *granted;
  try {
    made.parts.reserve(given.memories.size());
    for (const physical_memory* part : given.memories)
      made.parts.push_back({part->handle, part->size_bytes});
  } catch (const std::bad_alloc&) {
    return refuse(errc::out_of_host_memory, "no host memory is left for the list of handles");
  }
  return made;
}

status manager_exports::end(address at) {
  const result<block*> claimed = claim_block(base_, at, pinned_record::allowed);
  if (!claimed) return claimed.error();
  check((*claimed)->base == at, "the claimed block is not the requested one");
  const bool pinned = (*claimed)->pin_count != 0;
  check((*claimed)->claimed, "an export ends of a block that is not claimed");
  if (pinned) {
    base_.blocks->records().unpin(**claimed);
    history_.note_pin(history_kind::unpinned, **claimed);
  }
  base_.blocks->records().unclaim(**claimed);
  return pinned ? status{} : status{refuse(errc::invalid_argument, "the block is not exported")};
}

}  // namespace vmm

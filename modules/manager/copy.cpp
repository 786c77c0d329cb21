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
import vmm.timeline;
import vmm.tracker;

namespace vmm {

// Does the copy by remapping. An error but device_lost means that nothing has changed.
status remap_copier::remap(const copy_request& request, copy_mode mode) {
  check(base_.blocks != nullptr && request.target != request.source,
        "a block is copied onto itself");
  const result<tracked_range*> target = base_.blocks->records().claim(request.target);
  if (!target) return target.error();
  const result<tracked_range*> source = base_.blocks->records().claim(request.source);
  check(!source || *source != *target, "one block is claimed twice");
  status shown = source ? remap_claimed(block_of(**target), block_of(**source), request, mode)
                        : status{source.error()};
  if (shown) {
    const block& to = block_of(**target);
    history_.note({history_kind::remapped,
                   {to.base, to.sizes.mapped_bytes},
                   request.stream,
                   request.source.value});
    if (history_.is_recorded()) history_.note_footprint();
  }
  if (source) base_.blocks->records().unclaim(**source);
  base_.blocks->records().unclaim(**target);
  if (shown) base_.counts.remapped_copy_count.fetch_add(1, std::memory_order_relaxed);
  return shown;
}

status remap_copier::remap_claimed(block& target, block& source, const copy_request& request,
                                   copy_mode mode) {
  constexpr const char* why = "the copy is not between whole idle blocks";
  check(target.claimed && source.claimed && mode != copy_mode::copy,
        "memory is exchanged without a claim, or where bytes are copied");
  if (!remap_fits(target, source, request)) return refuse(errc::not_supported, why);
  if (base_.blocks->is_shared(source)) return refuse(errc::not_supported, why);
  // Everything that the streams concerned were given must have finished: the target's addresses
  // change hands now.
  for (const stream_handle stream : {request.stream, target.stream, source.stream}) {
    const result<ticket_ref> last_use =
        base_.blocks->time().record_unnamed(stream, 0, stream == request.stream);
    if (!last_use) return last_use.error();
    const result<bool> idle = base_.blocks->time().passed(*last_use);
    if (!idle) return idle.error();
    if (!*idle) return refuse(errc::not_supported, why);
  }
  return mode == copy_mode::move ? base_.blocks->take_over(target, source, request.stream)
                                 : base_.blocks->alias(target, source, request.stream);
}

// The conditions of E3 that need no driver call.
bool remap_copier::remap_fits(const block& target, const block& source,
                              const copy_request& request) const {
  check(&target != &source, "a block is copied onto itself");
  check(request.size_bytes > 0, "no byte is to be copied");
  if (target.is_suspended || source.is_suspended) return false;
  return !base_.contents.fills_on_release() && request.size_bytes == source.sizes.user_bytes &&
         target.sizes.user_bytes >= source.sizes.user_bytes &&
         target.sizes.mapped_bytes >= source.sizes.mapped_bytes && target.has_memory &&
         source.has_memory && target.locked_count == 0 && source.locked_count == 0 &&
         target.part_rights == nullptr;
}

status remap_copier::copy_bytes(const copy_request& request) {
  check(request.size_bytes > 0, "no byte is to be copied");
  for (const address at : {request.target, request.source}) {
    if (base_.blocks->space().contains(at) &&
        !base_.blocks->records().covers({at, request.size_bytes})) {
      return refuse(errc::not_allocated,
                    "the copy reaches outside the allocation that its address lies in");
    }
    if (base_.blocks->records().is_suspended(at)) return memory_suspended;
  }
  if (!base_.driver->feature_set().copy)
    return refuse(errc::not_supported, "this backend cannot copy bytes");
  status copied = base_.driver->copy(request);
  if (copied) base_.counts.real_copy_count.fetch_add(1, std::memory_order_relaxed);
  return copied;
}

}  // namespace vmm

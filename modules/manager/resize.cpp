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

result<address> block_resizer::resize(const resize_request& request) {
  const result<block*> claimed = claim_block(base_, request.at);
  if (!claimed) return claimed.error();
  const relaxed_capture quiet(*base_.driver);
  base_.blocks->reap(reap_count);
  const std::uint64_t before_bytes = (*claimed)->sizes.mapped_bytes;
  const std::uint64_t kept_bytes = std::min((*claimed)->sizes.user_bytes, request.size_bytes);
  const std::uint64_t mark = shortage_.creation_mark();
  result<address> at = resize_claimed(**claimed, request);
  const bool is_same = at && *at == request.at && (*claimed)->sizes.mapped_bytes == before_bytes;
  if (is_same) history_.changed(**claimed, request.at);  // the engine has notified no listener
  if (at && history_.is_recorded()) history_.note_footprint();
  if (!at) note_failed(request, (*claimed)->stream, at.error());
  check(!at || *at == (*claimed)->base, "a block is not at the returned address");
  check(request.may_move || (*claimed)->base == request.at, "a block moved that must not");
  base_.blocks->records().unclaim(**claimed);
  if (!at) at = shortage_.end_failed_growth(mark, request.size_bytes - kept_bytes, at.error());
  return at;
}

result<address> block_resizer::resize_claimed(block& resized, const resize_request& request) {
  const result<range_sizes> sizes = plan_sizes(base_, request.size_bytes, request.growth_bytes);
  if (!sizes) return sizes.error();
  check(resized.claimed && resized.base == request.at,
        "the resized block is not the requested one");
  if (resized.is_suspended) return memory_suspended;
  if (resized.sizes.user_bytes == 0) {
    return refuse(errc::invalid_argument,
                  "the block's memory has moved to another block: it can only be freed");
  }
  if (status unlocked = base_.blocks->unlock(resized); !unlocked) return unlocked.error();
  resize_plan plan{*sizes, resized.stream, ticket_ref{}, request.names_stream};
  status done = contents_.order_behind_fill(resized, plan.is_named);
  if (!done) return done.error();
  const range_sizes before = resized.sizes;
  if (sizes->mapped_bytes > resized.sizes.mapped_bytes) {
    done = grow(resized, request, plan);
  } else {
    done = shrink(resized, plan);
  }
  if (!done) return done.error();
  (void)base_.blocks->refresh_rights(
      resized);  // what the driver refuses now, a later call tries again
  if (status filled = contents_.fill_grown(resized, before, plan.is_named); !filled)
    return filled.error();
  check(resized.sizes.user_bytes == request.size_bytes, "a block does not have the requested size");
  check(resized.sizes.mapped_bytes >= request.size_bytes, "a block has less memory than its size");
  return resized.base;
}

// Filled bytes are lost: if their memory cannot be released, the block keeps it.
status block_resizer::shrink(block& shrunk, resize_plan plan) {
  const std::uint64_t user_bytes = plan.sizes.user_bytes;
  const bool is_cut = plan.sizes.mapped_bytes < shrunk.sizes.mapped_bytes;
  const bool is_filled = is_cut && contents_.fills_released(shrunk);
  const result<ticket_ref> last_use =
      contents_.end_use(shrunk, is_cut ? user_bytes : shrunk.sizes.mapped_bytes, plan.is_named);
  if (!last_use) return last_use.error();
  check(shrunk.claimed && shrunk.locked_count == 0, "a block shrinks that has pieces locked");
  plan.last_use = *last_use;
  if (is_filled) shrunk.set_last_use(*last_use);  // bytes of its last piece may be filled
  const status done = base_.blocks->shrink(shrunk, plan);
  if (done || !is_filled) return done;
  base_.blocks->set_user_bytes(shrunk, user_bytes);
  return {};
}

status block_resizer::grow(block& grown, const resize_request& request, resize_plan plan) {
  check(plan.sizes.mapped_bytes > grown.sizes.mapped_bytes,
        "a block grows to at most its present "
        "size");
  resize_plan in_place = plan;
  in_place.sizes.reserved_bytes = std::max(plan.sizes.mapped_bytes, grown.sizes.reserved_bytes);
  const creation what{plan.sizes.mapped_bytes - grown.sizes.mapped_bytes, 0};
  if (status fits = shortage_.check_can_fit(what); !fits) return fits;
  const status done =
      shortage_.create(what, [&] { return base_.blocks->grow_in_place(grown, in_place); });
  check(!done || grown.sizes.mapped_bytes == plan.sizes.mapped_bytes,
        "a block grew to another size than requested");
  if (done || done.error().code != errc::out_of_addresses || !request.may_move) return done;
  if (base_.options.contents != contents_rule::none) {
    return refuse(
        errc::out_of_addresses,
        "memory_options::contents: a block that is filled grows in place only; leave room "
        "behind it (allocate_request::growth_bytes)");
  }
  const result<ticket_ref> last_use = contents_.record_use(grown, request.names_stream);
  if (!last_use) return last_use.error();
  check(grown.claimed && grown.base == request.at, "the claimed block is not the requested one");
  plan.last_use = *last_use;
  return shortage_.create(what, [&] { return base_.blocks->move(grown, plan); });
}

void block_resizer::note_failed(const resize_request& request, stream_handle stream,
                                const error& why) noexcept {
  if (!history_.is_recorded()) return;
  check(why.code != errc::none, "a resize fails without a reason");
  const result<range_sizes> sizes = plan_sizes(base_, request.size_bytes, request.growth_bytes);
  check(!sizes || sizes->user_bytes == request.size_bytes, "the error has a wrong size");
  if (sizes) history_.note_failure({*sizes, 0, stream}, why);
}

}  // namespace vmm

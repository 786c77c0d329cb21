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

// For the fill of another stream than the block's: the driver refuses the event, then all work is
// waited for.
status wait_for_fill(timeline& time, const ticket_ref& fill, driver_interface& driver) {
  const status waited = try_to_close([&] { return time.wait(fill); });
  return waited ? waited : try_to_close([&] { return driver.synchronize_all(); });
}

}  // namespace

// A point behind the work of the block's stream and behind the fill of its bytes from `from_bytes`
// on, which go. Without `is_named` no caller names the stream. Where bytes stay, and another stream
// fills, the thread waits: the fill reaches into memory that stays. Filled bytes are lost: where
// the driver refuses the wait too, the block shrinks, and order_behind_fill() waits.
result<ticket_ref> block_contents::end_use(block& used, std::uint64_t from_bytes, bool is_named) {
  check(used.claimed, "a block's use ends without a claim");
  const bool may_fill = base_.contents.fills_on_release() && used.sizes.user_bytes != 0 &&
                        from_bytes < used.sizes.mapped_bytes;
  if (!may_fill) return record_use(used, is_named);
  const result<stream_handle> filler = choose_filler(used.stream, is_named);
  if (!filler) return filler.error();
  result<ticket_ref> filled = record_released(used, from_bytes, *filler);
  if (filled && from_bytes != 0 && *filler != used.stream)
    (void)wait_for_fill(base_.blocks->time(), *filled, *base_.driver);
  return filled;
}

result<ticket_ref> block_contents::end_use_after(block& used, const ticket_ref& all) {
  check(used.claimed, "a block's use ends without a claim");
  if (!fills_released(used)) return ticket_ref{all};
  constexpr stream_handle filler = stream_handle::default_stream;
  if (status ordered = base_.blocks->time().order(filler, all); !ordered) return ordered.error();
  return record_released(used, 0, filler);
}

// The stream that fills behind the work of `stream`: the default stream, ordered behind all work,
// where `stream` may have been destroyed.
result<stream_handle> block_contents::choose_filler(stream_handle stream, bool is_named) {
  check(base_.options.contents != contents_rule::none, "a fill is planned where nothing is filled");
  timeline& time = base_.blocks->time();
  if (is_named || time.may_name(stream)) return stream;
  constexpr stream_handle filler = stream_handle::default_stream;
  const result<ticket_ref> last_use = time.record_unnamed(stream);
  if (!last_use) return last_use.error();
  check(last_use->get() == nullptr || !last_use->known_passed(), "a new point has passed");
  if (status ordered = time.order(filler, *last_use); !ordered) return ordered.error();
  return filler;
}

// The block's stream may be another one than that of its last fill, which reaches to the end of its
// last piece.
status block_contents::order_behind_fill(const block& of, bool is_named) {
  check(of.claimed, "a block is resized without a claim");
  if (base_.options.contents == contents_rule::none) return {};
  timeline& time = base_.blocks->time();
  return is_named ? time.order(of.stream, of.last_use)
                  : time.order_unnamed(of.stream, of.stream_identity, of.last_use);
}

// Behind the work of the memory's earlier users: the stream is ordered so.
status block_contents::fill_acquired(block& of, std::uint64_t from_bytes, stream_handle stream) {
  check(from_bytes < of.sizes.mapped_bytes, "no byte of a block is filled");
  if (!base_.contents.fills_on_acquire()) return {};
  const address_range bytes{of.base + from_bytes, of.sizes.mapped_bytes - from_bytes};
  timeline& time = base_.blocks->time();
  const result<ticket_ref> last_use = time.prepare(stream);
  if (!last_use) return last_use.error();
  if (status filled = base_.contents.on_acquire(bytes, stream); !filled) return filled;
  time.cover(*last_use);
  of.set_last_use(*last_use);
  return {};
}

// If the driver refuses, the added memory is released: only a fill with a recorded point has used
// it. Memory that cannot be released stays behind the block's old size. The thread waits for
// another stream than the block's.
status block_contents::fill_grown(block& of, const range_sizes& before, bool is_named) {
  if (of.sizes.user_bytes <= before.user_bytes || !base_.contents.fills_on_acquire()) return {};
  ticket_ref earlier = of.last_use;
  const result<stream_handle> filler = choose_filler(of.stream, is_named);
  status filled = filler ? fill_acquired(of, before.user_bytes, *filler) : status{filler.error()};
  const bool is_queued = filled.has_value();
  if (filled && *filler != of.stream)
    filled = wait_for_fill(base_.blocks->time(), of.last_use, *base_.driver);
  if (filled) return filled;
  range_sizes kept = before;
  kept.mapped_bytes = std::min(before.mapped_bytes, of.sizes.mapped_bytes);
  check(of.claimed && kept.mapped_bytes >= kept.user_bytes, "a block grew to less");
  const ticket_ref last_use = is_queued ? of.last_use : ticket_ref{};
  if (!is_queued) of.last_use = earlier;
  const status is_back = base_.blocks->shrink(of, {kept, of.stream, last_use});
  if (!is_back) base_.blocks->set_user_bytes(of, before.user_bytes);
  return filled;
}

status block_contents::fill_released(block& of, std::uint64_t from_bytes, stream_handle stream) {
  if (!fills_released(of)) return {};
  check(of.claimed && from_bytes < of.sizes.mapped_bytes, "no byte of a block is filled");
  if (status unlocked = base_.blocks->unlock(of); !unlocked) return unlocked;
  const auto may_fill = [&](const physical_memory* memory) {
    const grant_list* const own = of.rights_of(*memory);
    return own == nullptr || own->of(base_.driver->home()) == access::read_write;
  };
  if (of.has_rights() && !std::all_of(of.memories.begin(), of.memories.end(), may_fill)) {
    const access_grant again{base_.driver->home(), access::read_write};
    if (status given = base_.blocks->set_own_rights(of, {&again, 1}); !given) return given;
  }
  return base_.contents.on_release({of.base + from_bytes, of.sizes.mapped_bytes - from_bytes},
                                   stream);
}

result<ticket_ref> block_contents::record_released(block& of, std::uint64_t from_bytes,
                                                   stream_handle stream) {
  check(of.claimed, "a block is given up that is not its caller's");
  timeline& time = base_.blocks->time();
  if (!fills_released(of)) return time.record(stream);
  result<ticket_ref> point = time.prepare(stream);
  if (!point) return point;
  if (status filled = fill_released(of, from_bytes, stream); !filled) return filled.error();
  time.cover(*point);
  return point;
}

}  // namespace vmm

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module vmm.stream;

import vmm.backend;
import vmm.base;
import vmm.physical;
import vmm.std;
import vmm.timeline;
import vmm.va;

namespace vmm {

// Stops counting free memory of captured graphs as live.
void state_end::release_graphs_memory() noexcept {
  for (const auto& in : state_.segments_) {
    const region_map& regions = in->regions();
    for (region_id r = regions.first(); r != region_id::none; r = regions.after(r)) {
      const region_kind kind = in->kind(r);
      check(kind != region_kind::unlisted || state_of(regions.tag(r)) != region_state::claimed,
            "a pool ends while a growth is under way");
      if (is_free_kind(kind) && state_.streams_.is_capture(stream_of(kind)))
        in->release_range(in->range(r), state_.now_for(stream_of(kind)), state_.mappings_);
    }
  }
}

// Blocks that are live, pinned or not, become free.
void state_end::release_blocks() noexcept {
  for (const auto& in : state_.segments_) {
    const region_map& regions = in->regions();
    for (region_id r = regions.first(); r != region_id::none;) {
      const region_id next = regions.after(r);
      const bool lent = in->is_lent(r);
      const bool live = lent || (in->kind(r) == region_kind::unlisted &&
                                 state_of(regions.tag(r)) == region_state::live);
      const granule_range where = in->range(r);
      if (lent) {
        in->free_lent(r, state_.now_for(0), state_.mappings_, state_.streams_);
      } else if (live) {
        const result<segment::found_block> block = in->find_block(where.offset * granule_bytes);
        check(block.has_value(), "a live region is not a block");
        in->forget_block(*block);
        own_memory(state_).free_region(*in, r, 0);
      }
      r = next;
      if (live && next != region_id::none) r = regions.find(where.end());
    }
    check(in->block_count() == 0, "a block stays after all were freed");
  }
}

void state_end::release_all() noexcept {
  release_graphs_memory();
  // Lent memory is released with its regions.
  state_.mappings_.subtract_live(static_cast<std::uint32_t>(state_.arenas_.release()));
  state_.streams_.release_all();
  check(state_.streams_.shared() == stream_table::no_stream, "free memory stays shared at the end");
  state_.captures_.clear();
  state_.totals_.pinned_count = 0;
  release_blocks();
  if (state_.streams_.count() != 0) state_.progress().note_passed({0, state_.progress().clock()});
  check(state_.mappings_.live_granules() == 0, "memory is live after all was freed");
}

}  // namespace vmm

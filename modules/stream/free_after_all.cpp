// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Free after everything: blocks that are given back after all work of the device. [K4]
module vmm.stream;

import vmm.backend;
import vmm.intrusive;
import vmm.optimizer;
import vmm.physical;
import vmm.std;
import vmm.support;
import vmm.sync;
import vmm.timeline;
import vmm.va;

namespace vmm {

status stream_pool::free(address at) {
  if (!gate_.is_open()) [[unlikely]] {
    if (status entered = enter_closed_to_free(); !entered) return entered;
  }
  debug_check([this] { return is_ready(); }, "a pool frees before it is set up");
  if (contents_.fills_on_release()) [[unlikely]]
    return refuse(errc::not_supported,
                  "memory_options::contents fills a block on a stream: free it on one");
  if (!notices_.is_observed()) [[likely]] {
    if (status freed = free_into_batch(at); !freed) return freed;
  } else {
    notices_.check_not_in_observer();
    const observer_guard observed(entry_);
    const bool is_locked =
        state_.with([&](auto& state) { return locked_blocks(state).is_locked(at); });
    if (status freed = free_into_batch(at); !freed) return freed;
    if (!is_locked) notices_.observe([&](block_watcher& who) { who.freed(at); });
  }
  if (!parts_->clock.was_refused()) parts_->clock.try_record_batches();
  return {};
}

status stream_pool::free_into_batch(address at) {
  const table_lock state(state_);
  std::uint32_t batch = state->streams().open_batch();
  if (batch == pool_state::no_stream) [[unlikely]] {
    if (status live = locked_blocks(*state).check_live(at); !live) return live;
    const result<std::uint32_t> made = state->provide_batch(!parts_->core.time.marks_all());
    if (!made) return made.error();
    batch = *made;
    check(batch != pool_state::no_stream, "a batch is made that is none");
  }
  debug_check([&] { return state->streams().phase_of(batch) == stream_phase::unmarked; },
              "a block is freed into a batch whose mark is made");
  return state->free(at, batch);
}

// ---- captures ------------------------------------------------------------------------

status stream_pool::capture_begins() {
  if (status idle = nothing_to_do(); !idle) return idle;
  notices_.check_not_in_callback();
  captures_.begin();
  return {};
}

status stream_pool::capture_ended() {
  if (status idle = nothing_to_do(); !idle) return idle;
  notices_.check_not_in_callback();
  if (status ended = captures_.end(); !ended) return ended;
  if (is_ready()) parts_->clock.try_record_batches();
  return {};
}

}  // namespace vmm

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include "../sync/thread_annotations.h"

module vmm.stream;

import vmm.backend;
import vmm.history;
import vmm.optimizer;
import vmm.physical;
import vmm.std;
import vmm.support;
import vmm.sync;
import vmm.timeline;
import vmm.va;

namespace vmm {

result<address> stream_pool::allocate_watched(const block_shape& shape, stream_handle stream) {
  check(watches_ || captures_.is_on(), "a call that nobody watches takes the slow way");
  const result<address> at = allocate_told(shape, stream);
  if (!at || options_.contents == contents_rule::none) [[likely]]
    return at;
  return fill_acquired(*at, stream);
}

result<address> stream_pool::allocate_told(const block_shape& shape, stream_handle stream) {
  if (notices_.is_observed()) [[unlikely]] {
    notices_.check_not_in_observer();
    return with_relief(relief_, shape.size_bytes, [&](relief_pass&) -> result<address> {
      const observer_guard observed(entry_);
      const result<address> at = check_capture_and_allocate(shape, stream);
      if (at) notices_.observe([&](block_watcher& who) { who.allocated({*at, shape.size_bytes}); });
      return at;
    });
  }
  return check_capture_and_allocate(shape, stream);
}

// Asks first whether the stream is being captured.
result<address> stream_pool::check_capture_and_allocate(const block_shape& shape,
                                                        stream_handle stream) {
  check(watches_ || captures_.is_on(), "a capture is asked for in vain");
  const result<capture_info> seen = captures_.of(stream);
  if (!seen) [[unlikely]]
    return seen.error();
  if (seen->state != capture_state::none) [[unlikely]]
    return parts_->captured.allocate(shape, stream, *seen);
  if (options_.rules.keep_none) return parts_->slow.allocate_dedicated(shape, stream);
  return shape.alignment_bytes > granule_bytes ? parts_->slow.allocate_aligned(shape, stream)
                                               : allocate_uncaptured(shape.size_bytes, stream);
}

status stream_pool::free_watched(address at, stream_handle stream) {
  check(!options_.rules.keep_none || sees_all_, "a pool that keeps nothing takes the fast way");
  const status freed = free_filled(at, stream);
  if (freed && options_.rules.keep_none) parts_->slow.keep_none();
  return freed;
}

// All that a free can fail with comes before the fill: bytes that were filled are gone.
status stream_pool::free_filled(address at, stream_handle stream) {
  check(watches_ || captures_.is_on(), "a call that nobody watches takes the slow way");
  if (!contents_.fills_on_release()) [[likely]]
    return free_told(at, stream);
  const change_guard changing(notices_.is_in_callback() ? nullptr : &suspension_.phases());
  if (notices_.is_observed()) [[unlikely]]
    notices_.check_not_in_observer();
  const result<capture_info> seen = captures_.of(stream);
  if (!seen) return seen.error();
  if (status ready = enter_to_free(at, stream, *seen); !ready) return ready;
  if (status filled = fill_released(at, stream); !filled) return filled;
  return free_as_seen(at, stream, *seen);
}

// The block can be freed on the stream, which has its record from now on.
status stream_pool::enter_to_free(address at, stream_handle stream, const capture_info& seen) {
  check(contents_.fills_on_release(), "a free is entered that fills nothing");
  if (seen.state != capture_state::none) return parts_->captured.enter_to_free(at, stream, seen);
  if (status named = check_stream(*driver_, stream); !named) return named;
  const table_lock state(state_);
  if (status live = locked_blocks(*state).check_live(at); !live) return live;
  if (state->find_stream(stream) != pool_state::no_stream) return {};
  const result<std::uint32_t> added = state->add_stream(driver_->feature_set().canonical(stream));
  return added ? status{} : status{added.error()};
}

status stream_pool::free_told(address at, stream_handle stream) {
  if (notices_.is_observed()) [[unlikely]]
    notices_.check_not_in_observer();
  const result<capture_info> seen = captures_.of(stream);
  if (!seen) [[unlikely]]
    return seen.error();
  return free_as_seen(at, stream, *seen);
}

status stream_pool::free_as_seen(address at, stream_handle stream, const capture_info& seen) {
  if (seen.state != capture_state::none) [[unlikely]]
    return parts_->captured.free(at, stream, seen);
  if (notices_.is_observed()) [[unlikely]] {
    const observer_guard observed(entry_);
    const bool is_locked =
        state_.with([&](auto& state) { return locked_blocks(state).is_locked(at); });
    const status freed = free_uncaptured(at, stream);
    if (freed && !is_locked) notices_.observe([&](block_watcher& who) { who.freed(at); });
    return freed;
  }
  return free_uncaptured(at, stream);
}

status stream_pool::free_on_new_stream(pool_state& state, address at, stream_handle stream) {
  if (status named = check_stream(*driver_, stream); !named) return named;
  if (status live = locked_blocks(state).check_live(at); !live) return live;
  const result<std::uint32_t> added = state.add_stream(driver_->feature_set().canonical(stream));
  if (!added) return added.error();
  check(state.find_stream(stream) == *added, "a new stream is not found");
  return state.free(at, *added);
}

result<address> stream_pool::allocate_aligned(const block_shape& shape, stream_handle stream) {
  if (status valid = check_alignment(shape.alignment_bytes); !valid) return valid.error();
  const bool is_open = gate_.is_open();
  if (!is_open) {
    if (status entered = enter_closed_to_allocate(); !entered) return entered.error();
  }
  check(is_ready(), "a pool allocates before it is set up");
  const bool is_watched =
      is_open ? watches(stream) && !is_uncaptured(stream) : watches_closed(stream);
  const result<address> at =
      is_watched ? allocate_watched(shape, stream) : parts_->slow.allocate_aligned(shape, stream);
  check(!at || at->value % shape.alignment_bytes == 0, "a block has another alignment");
  return at;
}

status stream_pool::check_alignment(std::uint64_t alignment_bytes) noexcept {
  if (!std::has_single_bit(alignment_bytes))
    return refuse(errc::invalid_argument, "an alignment is a power of two");
  if (alignment_bytes <= alignment_bytes_max) return {};
  return refuse(errc::not_supported,
                "a stream pool aligns blocks to 2 MiB at most: ask for less, or allocate from a "
                "manager, which takes any power of two");
}

}  // namespace vmm

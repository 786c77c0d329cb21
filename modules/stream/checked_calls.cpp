// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include "../base/thread_annotations.h"

module vmm.stream;

import vmm.backend;
import vmm.base;
import vmm.observe;
import vmm.optimizer;
import vmm.physical;
import vmm.std;
import vmm.timeline;
import vmm.va;

namespace vmm {

namespace {

constexpr error circular_free = refuse(
    errc::in_use, "callbacks of two pools free blocks of one another's pool: free this one later");

}  // namespace

// ---- allocate --------------------------------------------------------------------------

result<address> checked_calls::allocate(const block_shape& shape, stream_handle stream) {
  check(path_.observes_blocks() || captures_.is_on(), "a call is checked that needs no check");
  if (!contents_.fills_on_acquire()) [[likely]]
    return allocate_observed(shape, stream);
  block_fill fill{shape.size_bytes, stream};
  const std::uint64_t mark = parts_.core.memory.creation_mark();
  const result<address> at =
      allocate_observed({shape.size_bytes, shape.alignment_bytes, &fill}, stream);
  if (!at || *at == fill.done) return at;
  const result<address> filled = fill_acquired(*at, stream, fill.seen);
  if (filled) return filled;
  // The request may have created memory in vain before other memory served it.
  const growth_guard growing(entry_);
  parts_.reclaim.release_created(mark);
  return filled;
}

result<address> checked_calls::allocate_observed(const block_shape& shape, stream_handle stream) {
  if (!notices_.is_observed()) [[likely]]
    return allocate_on(shape, stream);
  notices_.check_not_in_observer();
  return with_relief(relief_, shape.size_bytes, [&](relief_pass&) {
    return observe_made(shape, [&] { return allocate_on(shape, stream); });
  });
}

// A growth that fills its block calls the observer itself.
template <class Make>
result<address> checked_calls::observe_made(const block_shape& shape, Make&& make) {
  if (!notices_.is_observed()) return make();
  const observer_guard observed(entry_);
  const result<address> at = make();
  const address filled = shape.fill == nullptr ? address{} : shape.fill->done;
  check(!at || !filled || *at == filled, "a growth fills another block than it makes");
  notices_.observe([&](block_observer& observer) {
    if (at && !filled) observer.allocated({*at, shape.size_bytes});
    if (!at && filled) observer.freed(filled);
  });
  return at;
}

// The first query is whether the stream is being captured.
result<address> checked_calls::allocate_on(const block_shape& shape, stream_handle stream) {
  const result<capture_info> seen = captures_.of(stream);
  if (!seen) [[unlikely]]
    return seen.error();
  if (seen->state != capture_state::none) [[unlikely]] {
    const result<address> at = captured_.allocate(shape, stream, *seen);
    if (at && shape.fill != nullptr) shape.fill->seen = *seen;
    return at;
  }
  return options_.policy.tuning.keep_none ? slow_.allocate_dedicated(shape, stream)
                                          : allocate_uncaptured(shape, stream);
}

result<address> checked_calls::allocate_uncaptured(const block_shape& shape, stream_handle stream) {
  if (shape.alignment_bytes > granule_bytes) return slow_.allocate_aligned(shape, stream);
  if (const arena_table* const arenas = path_.published_arenas()) {
    if (const address at = parts_.reuse.allocate_in_arena(*arenas, shape.size_bytes, stream))
      return at;
  }
  if (const address at = path_.allocate(shape.size_bytes, stream)) return at;
  return slow_.allocate(shape, stream);
}

result<address> checked_calls::allocate_dedicated(std::uint64_t size_bytes, stream_handle stream) {
  if (notices_.is_observed()) notices_.check_not_in_observer();
  if (status named = check_stream(driver_, stream); !named) return named.error();
  if (path_.may_be_captured(stream)) {
    const result<bool> captured = captures_.is_captured(stream);
    if (!captured) return captured.error();
    if (*captured)
      return refuse(errc::not_permitted, "the stream is being captured: allocate before it is");
  }
  block_fill fill{size_bytes, stream};
  block_shape shape{size_bytes};
  if (contents_.fills_on_acquire()) shape.fill = &fill;
  const result<address> at =
      observe_made(shape, [&] { return slow_.allocate_dedicated(shape, stream); });
  check(!at || shape.fill == nullptr || *at == fill.done,
        "I1: a block of new mappings is not filled");
  return at;
}

// Memory that was free. A suspension that began after the block was made waits, or has the block's
// memory already: then the block goes back. No driver call can keep it from that.
result<address> checked_calls::fill_acquired(address at, stream_handle stream,
                                             const capture_info& seen) {
  const change_guard changing(&phases_);
  status filled = memory_suspended;
  if (!changing.is_refused() && phases_.may_fill_here()) {
    const result<address_range> whole =
        state_.with([&](auto& state) { return locked_blocks(state).live_range(at); });
    check(whole.has_value(), "a new block is not live");
    filled = contents_.on_acquire(*whole, stream);
  }
  if (filled) return at;
  (void)try_to_close([&] { return free_as_seen(at, stream, seen); });  // else nothing would free it
  return filled.error();
}

// ---- free ------------------------------------------------------------------------------

status checked_calls::free(address at, stream_handle stream) {
  check(!options_.policy.tuning.keep_none || path_.observes_blocks(),
        "a pool that keeps nothing takes the warm path");
  const status freed =
      contents_.fills_on_release() ? free_filled(at, stream) : free_observed(at, stream);
  if (freed && options_.policy.tuning.keep_none) slow_.keep_none();
  return freed;
}

// Everything that can fail comes before the fill, which destroys the bytes.
status checked_calls::free_filled(address at, stream_handle stream) {
  const notifier::foreign_call inside(notices_);
  if (notices_.is_observed() && inside.is_circular()) return circular_free;
  const change_guard changing(notices_.is_in_callback() ? nullptr : &phases_);
  if (changing.is_refused()) return memory_suspended;
  if (notices_.is_observed()) [[unlikely]]
    notices_.check_not_in_observer();
  const result<capture_info> seen = captures_.of(stream);
  if (!seen) return seen.error();
  if (status ready = enter_to_free(at, stream, *seen); !ready) return ready;
  if (status filled = fill_released(at, stream); !filled) return filled;
  return free_as_seen(at, stream, *seen);
}

// The block can be freed on the stream, which has its record from now on.
status checked_calls::enter_to_free(address at, stream_handle stream, const capture_info& seen) {
  check(contents_.fills_on_release(), "a free without a fill is recorded as one");
  if (seen.state != capture_state::none) return captured_.enter_to_free(at, stream, seen);
  if (status named = check_stream(driver_, stream); !named) return named;
  const std::uint64_t identity = path_.identity_of(stream);
  const table_lock state(state_);
  if (status live = locked_blocks(*state).check_live(at); !live) return live;
  const result<std::uint32_t> number =
      stream_memory(*state).enter(driver_.feature_set().canonical(stream), identity);
  return number ? status{} : status{number.error()};
}

status checked_calls::fill_released(address at, stream_handle stream) {
  if (!phases_.fills_freed_here()) return {};
  const result<address_range> whole =
      state_.with([&](auto& state) { return locked_blocks(state).live_range(at); });
  if (!whole) return whole.error();
  check(whole->base == at && !whole->empty(), "the filled block is not the requested one");
  const bool is_pinned =
      state_.with([&](auto& state) { return locked_blocks(state).is_pinned(at); });
  if (is_pinned) {
    return refuse(errc::in_use,
                  "memory_options::contents: a pinned block is not filled; unpin it first");
  }
  return contents_.on_release(*whole, stream);
}

status checked_calls::free_observed(address at, stream_handle stream) {
  if (notices_.is_observed()) [[unlikely]]
    notices_.check_not_in_observer();
  const result<capture_info> seen = captures_.of(stream);
  if (!seen) [[unlikely]]
    return seen.error();
  return free_as_seen(at, stream, *seen);
}

// The observer is not called of a block that stays until its pins or its graph have ended.
template <class Free>
status checked_calls::observe_free(address at, Free&& free) {
  if (!notices_.is_observed()) [[likely]]
    return free();
  const notifier::foreign_call inside(notices_);
  if (inside.is_circular()) return circular_free;
  const observer_guard observed(entry_);
  const bool is_locked =
      state_.with([&](auto& state) { return locked_blocks(state).is_locked(at); });
  const status freed = free();
  if (freed && !is_locked) notices_.observe([&](block_observer& observer) { observer.freed(at); });
  return freed;
}

status checked_calls::free_as_seen(address at, stream_handle stream, const capture_info& seen) {
  if (seen.state != capture_state::none) [[unlikely]]
    return captured_.free(at, stream, seen);
  return observe_free(at, [&] { return path_.free(at, stream); });
}

// ---- free after all work: ---------------------------------------------------------

status checked_calls::free(address at) {
  if (contents_.fills_on_release()) [[unlikely]]
    return refuse(errc::not_supported,
                  "memory_options::contents fills a block on a stream: free it on one");
  if (notices_.is_observed()) notices_.check_not_in_observer();
  if (status freed = observe_free(at, [&] { return free_into_batch(at); }); !freed) return freed;
  if (!parts_.clock.batches().was_refused()) parts_.clock.batches().try_record();
  return {};
}

status checked_calls::free_into_batch(address at) {
  const table_lock state(state_);
  std::uint32_t batch = state->streams().open_batch();
  if (batch == pool_state::no_stream) [[unlikely]] {
    if (status live = locked_blocks(*state).check_live(at); !live) return live;
    const result<std::uint32_t> made =
        stream_memory(*state).provide_batch(!parts_.core.time.can_record_all());
    if (!made) return made.error();
    batch = *made;
    check(batch != pool_state::no_stream, "an invalid batch is created");
  }
  debug_check([&] { return state->streams().phase_of(batch) == stream_phase::unrecorded; },
              "batch_events I1: a block is freed into a batch whose event is recorded");
  return state->free(at, batch);
}

}  // namespace vmm

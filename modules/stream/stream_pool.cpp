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

constexpr error nothing_allocated =
    refuse(errc::unknown_address, "the pool has not allocated anything");
constexpr std::uint64_t page_bytes_min = std::uint64_t{2} << 20;
constexpr std::uint64_t segment_bytes_max = std::uint64_t{max_range_granules} * granule_bytes;

void report_live(const pool_options& options, state_cell& state) noexcept {
  if (options.leak_hook.hook == nullptr) return;
  const pool_statistics now = state.with([](auto& of) { return state_report(of).statistics(); });
  if (now.live_count == 0) return;
  options.leak_hook.hook(options.leak_hook.context,
                         {"stream pool", now.live_count, now.live_bytes});
}

[[nodiscard]] status check_alignment(std::uint64_t alignment_bytes) noexcept {
  if (!std::has_single_bit(alignment_bytes))
    return refuse_number(alignment_bytes, "an alignment is a power of two from 1 to 2 MiB",
                         errc::invalid_argument);
  if (alignment_bytes <= stream_pool::alignment_bytes_max) return {};
  return refuse_number(alignment_bytes,
                       "a stream pool aligns blocks to 2 MiB at most: request less, or allocate "
                       "from a manager, which aligns to 2^31 granules",
                       errc::not_supported);
}

}  // namespace

// ---- set-up ------------------------------------------------------------------------

status stream_pool::set_up() {
  if (!path_.gate().is_here()) return refuse_forked();
  if (is_ready()) return {};
  const growth_guard growing(entry_);
  if (is_ready()) return {};
  if (parts_ == nullptr) {
    if (status made = make_parts(); !made) return made;
  }
  if (!gate_watch_.listen())
    return refuse(errc::out_of_host_memory, "no host memory is left to listen for forks");
  check(parts_ != nullptr, "a pool opens without its parts");
  if (status mapped = parts_->growth.map_first_pages(); !mapped)
    return mapped;  // last: no failure maps twice
  path_.gate().open(gate_reason::not_set_up);
  check(is_ready(), "a pool that was set up is not ready");
  events_.publish();
  const location where = options_.placement.value_or(driver_->home());
  events_.remember(where);
  parts_->shortage.enter(relief_key::of(driver_, where));
  return {};
}

status stream_pool::make_parts() {
  if (status valid = options_.validate(); !valid) return valid;
  if (options_.contents != contents_rule::none && !driver_->feature_set().copy)
    return refuse(errc::not_supported, "memory_options::contents: this backend cannot fill memory");
  constexpr std::array<std::uint64_t, 1> sizes_bytes{page_bytes_min};
  const result<core_plan> planned = plan_core(*driver_, options_, {}, sizes_bytes);
  if (!planned) return planned.error();
  const std::uint64_t unit_bytes = planned->unit.minimum_bytes;
  if (!std::has_single_bit(unit_bytes) || unit_bytes < granule_bytes)
    return refuse(errc::not_supported, "the pool needs a granularity that is a power of two");
  std::uint64_t page_bytes = options_.page_bytes;
  if (page_bytes == 0)
    page_bytes = round_up(std::max(planned->unit.recommended_bytes, page_bytes_min), unit_bytes);
  page_bytes = round_up(std::min(page_bytes, segment_bytes_max), unit_bytes);
  std::uint64_t segment_bytes = std::min(segment_bytes_max, options_.reservation_bytes);
  segment_bytes = segment_bytes / page_bytes * page_bytes;
  if (segment_bytes == 0) {
    return refuse_beyond(options_.reservation_bytes,
                         "reservation_bytes (VMM_VA_SIZE, VPMM_VA_SIZE) is at least one page, "
                         "page_bytes (VMM_POOL_PAGE_SIZE)",
                         "the bytes of a page are", page_bytes);
  }
  if (status fits =
          check_handle_size(*driver_, options_, page_bytes,
                            "page_bytes (VMM_POOL_PAGE_SIZE) is at most the device's memory");
      !fits) {
    return fits;
  }
  if (options_.budget_bytes != 0 && options_.budget_bytes < page_bytes)
    return refuse_beyond(options_.budget_bytes,
                         "budget_bytes (VMM_BUDGET) is 0 for no budget, or at least one page, "
                         "page_bytes (VMM_POOL_PAGE_SIZE)",
                         "the bytes of a page are", page_bytes);
  check(page_bytes % unit_bytes == 0, "a page is not a multiple of the granularity");
  check(segment_bytes % page_bytes == 0, "a segment is not a multiple of a page");
  core_options core = planned->options;
  physical_options& memory = core.physical;
  memory.granularity_bytes = page_bytes;
  memory.fragment_ratio = 0;
  const std::uint64_t handle_bytes = std::min(options_.policy.handle_bytes_max, segment_bytes);
  memory.chunk_bytes = round_up(std::max(handle_bytes, page_bytes), page_bytes);
  core.reservation.granularity_bytes = unit_bytes;
  check(memory.chunk_bytes % page_bytes == 0 && memory.chunk_bytes != 0,
        "a new handle is not a multiple of a page");
  const pool_setup setup{options_.policy, unit_bytes, page_bytes, segment_bytes};
  if (status attached = events_.attach(); !attached) return attached;
  try {
    auto state = std::make_unique<pool_state>(setup);
    if (!path_.observes_blocks() && options_.stream_arenas != arena_rule::never &&
        !state->sizes().policy.eager_unmap)
      state->arenas().permit();
    state->progress().set_default_alias(stream_handle{driver_->feature_set().default_stream_alias});
    parts_ = std::make_unique<pool_parts>(driver_, core, lower());
    events_.begin(*state, parts_->core);
    path_.state().set(std::move(state));
    return {};
  } catch (const std::bad_alloc&) {
    return refuse(errc::out_of_host_memory, "no host memory is left for a pool");
  }
}

// ---- the end -----------------------------------------------------------------------

stream_pool::~stream_pool() {
  relief_.leave();
  events_.end_publishing();
  status closed = check_here();
  if (closed && parts_ != nullptr) {
    path_.gate().close(gate_reason::goes_away);
    const ending_guard alone(path_.gate());
    parts_->rights.end_all();
    report_live(options_, path_.state());
    closed = close();
  }
  if (closed) return;
  if (!path_.gate().is_here()) {  // or forked while it closed
    leave_behind(path_.state().release());
    leave_behind(parts_.release());
    return;
  }
  report_unclosed("stream pool", closed.error());
  (void)path_.state()
      .release();  // the driver still has it: taking the records away would only hide that
  (void)parts_.release();
}

// No other thread is here, so no turn is taken; the remap callbacks that run may free and pin.
status stream_pool::close() {
  check(parts_ != nullptr, "a pool that was not set up is closed");
  const relaxed_capture capture(*driver_, captures_.is_on());
  path_.publish_arenas(nullptr);  // remap callbacks may free
  if (status finished = parts_->clock.finish_all(); !finished) return finished;
  {
    const table_lock state(path_.state());
    state_end(*state).release_all();
  }
  bool has_addresses = true;
  return close_core(parts_->core, [&]() -> status {
    assume_locked(rank::growth);
    if (status unmapped = parts_->reclaim.unmap_all(); !unmapped) return unmapped;
    if (std::exchange(has_addresses, false)) parts_->growth.remove_segments();
    return {};
  });
}

// ---- calls where the gate is closed ----------------------------------------------------

status stream_pool::open_to_allocate() {
  if (path_.gate().is_open()) return {};
  if (!path_.gate().is_here()) return refuse_forked();
  notices_.check_not_in_callback();
  check(!path_.gate().is_closed_by(gate_reason::goes_away), "a pool is used while it is destroyed");
  return set_up();
}

result<address> stream_pool::allocate_closed(std::uint64_t size_bytes, stream_handle stream) {
  if (status entered = open_to_allocate(); !entered) return entered.error();
  check(is_ready(), "a pool allocates before it is set up");
  return path_.needs_check_closed(stream)
             ? parts_->checked.allocate({size_bytes}, stream)
             : parts_->checked.allocate_uncaptured({size_bytes}, stream);
}

status stream_pool::free_closed(address at, stream_handle stream) {
  if (status entered = check_ready(); !entered) return entered;
  return path_.needs_check_closed(stream) ? parts_->checked.free(at, stream)
                                          : path_.free(at, stream);
}

status stream_pool::check_ready() const noexcept {
  if (is_ready()) return {};
  return path_.gate().is_here() ? nothing_allocated : refuse_forked();
}

// ---- calls ------------------------------------------------------------------------------

status stream_pool::identify(stream_handle stream, std::uint64_t identity) {
  if (identity == 0 || identities_.has_beside(stream, identity) || !is_ready()) return {};
  if (status known = parts_->clock.identify(stream, identity); !known) return known;
  identities_.add(stream, identity);
  return {};
}

result<address> stream_pool::allocate_aligned(const block_shape& shape, stream_handle stream) {
  if (status valid = check_alignment(shape.alignment_bytes); !valid) return valid.error();
  if (status known = identify(stream, path_.identity_of(stream)); !known) return known.error();
  const bool is_open = path_.gate().is_open();
  if (status entered = open_to_allocate(); !entered) return entered.error();
  check(is_ready(), "a pool allocates before it is set up");
  const bool needs_check = is_open ? path_.needs_check(stream) && !path_.is_uncaptured(stream)
                                   : path_.needs_check_closed(stream);
  const result<address> at = needs_check ? parts_->checked.allocate(shape, stream)
                                         : parts_->checked.allocate_uncaptured(shape, stream);
  check(!at || at->value % shape.alignment_bytes == 0, "a block has another alignment");
  return at;
}

result<address> stream_pool::allocate_dedicated(std::uint64_t size_bytes, stream_handle stream) {
  if (status entered = open_to_allocate(); !entered) return entered.error();
  if (status known = identify(stream, path_.identity_of(stream)); !known) return known.error();
  return parts_->checked.allocate_dedicated(size_bytes, stream);
}

status stream_pool::free(address at) {
  if (!path_.gate().is_open()) [[unlikely]] {
    if (status entered = check_ready(); !entered) return entered;
  }
  return parts_->checked.free(at);
}

status stream_pool::pin(address at) {
  if (status ready = check_ready(); !ready) return ready;
  const table_lock state(path_.state());
  if (state->suspension() != suspension_phase::running) return memory_suspended;
  return locked_blocks(*state).pin(at);
}

status stream_pool::unpin(address at) {
  if (status ready = check_ready(); !ready) return ready;
  notices_.check_not_in_observer();
  return path_.state().with([&](auto& state) { return locked_blocks(state).unpin(at); });
}

void check_left_live(const error& failure) noexcept {
  check(!is_wrong_address(failure.code),
        "deallocate of an address that is not a live block of this stream pool, or on a stream "
        "that does not exist");
}

// ---- streams -------------------------------------------------------------------------

status stream_pool::synchronize() {
  return is_ready() ? parts_->clock.synchronize() : check_here();
}

status stream_pool::forget(stream_handle stream) {
  if (status named = check_stream(*driver_, stream); !named) return named;
  if (!is_ready()) return check_here();
  const bool has_record = path_.state().with(
      [&](auto& state) { return state.progress().find(stream) != pool_state::no_stream; });
  if (has_record) {
    if (status known = identify(stream, path_.identity_of(stream)); !known) return known;
  }
  return parts_->clock.forget(stream);
}

// ---- rights --------------------------------------------------------------------------

status stream_pool::set_peers(std::span<const access_grant> grants) {
  if (status ready = set_up(); !ready) return ready;
  return parts_->rights.set_peers(grants);
}

status stream_pool::set_access(address at, std::span<const access_grant> grants) {
  if (status ready = check_ready(); !ready) return ready;
  return parts_->rights.set_access(at, grants);
}

// ---- memory ---------------------------------------------------------------------

preallocate_report stream_pool::preallocate(std::uint64_t size_bytes, stream_handle stream) {
  if (notices_.is_observed()) notices_.check_not_in_observer();
  status ready = set_up();
  if (ready) ready = identify(stream, path_.identity_of(stream));
  if (!ready) return {.left_bytes = size_bytes, .failure = ready.error()};
  return parts_->slow.preallocate(size_bytes, stream);
}

trim_report stream_pool::trim(std::uint64_t limit_bytes) {
  trim_report report;
  if (is_ready()) return parts_->reclaim.trim(limit_bytes);
  if (const status idle = check_here(); !idle) report.failure = idle.error();
  return report;
}

shortage_report stream_pool::last_shortage() const {
  if (!is_ready()) return {};
  return path_.state().with([](const auto& state) { return state_report(state).last_shortage(); });
}

// ---- reports ---------------------------------------------------------------------------

pool_statistics stream_pool::statistics() const {
  if (!is_ready()) return {};
  pool_statistics now =
      path_.state().with([](const auto& state) { return state_report(state).statistics(); });
  const physical_statistics memory = parts_->core.memory.statistics();
  now.suspended_bytes = memory.suspended_bytes;
  now.held_bytes = memory.held_bytes;
  now.spilled_bytes = memory.spilled_bytes;
  check(now.spilled_bytes <= now.held_bytes, "more memory is spilled than is held");
  return now;
}

result<std::vector<memory_segment>> stream_pool::segments(address_range range) {
  if (status ready = check_ready(); !ready) return ready.error();
  std::vector<memory_segment> listed;
  try {
    const table_lock state(path_.state());
    if (status done = state_report(*state).list_segments(range, listed); !done) return done.error();
  } catch (const std::bad_alloc&) {
    return refuse(errc::out_of_host_memory, "no host memory is left for a list of segments");
  }
  return listed;
}

result<std::vector<pool_region>> stream_pool::regions() const {
  std::vector<pool_region> out;
  if (const status idle = check_here(); !idle) return idle.error();
  if (!is_ready()) return out;
  const status listed =
      path_.state().with([&](const auto& state) { return state_report(state).list_regions(out); });
  if (!listed) return listed.error();
  const auto is_empty = [](const pool_region& each) { return each.range.empty(); };
  debug_check([&] { return std::none_of(out.begin(), out.end(), is_empty); },
              "an empty region is shown");
  return out;
}

result<std::string> stream_pool::dump() const {
  if (const status idle = check_here(); !idle) return idle.error();
  std::vector<pool_region> all;
  pool_statistics now;
  if (is_ready()) {
    const status listed = path_.state().with([&](const auto& state) {
      now = state_report(state).statistics();
      return state_report(state).list_regions(all);
    });
    if (!listed) return listed.error();
  }
  check(all.empty() == (now.reserved_bytes == 0), "regions and statistics disagree");
  try {
    return written(now, all);
  } catch (const std::bad_alloc&) {
    return refuse(errc::out_of_host_memory, "no host memory is left for a dump");
  }
}

status stream_pool::validate() const {
  if (!is_ready()) return check_here();
  const growth_guard growing(entry_);
  const table_lock state(path_.state());
  if (status valid = state_audit(*state).validate(); !valid) return valid;
  const physical_statistics physical = parts_->core.memory.statistics();
  const std::uint64_t held_bytes = physical.held_bytes + physical.suspended_bytes;
  const std::uint64_t cached_bytes = physical.cached_bytes;
  check(cached_bytes <= held_bytes, "more memory is cached than is held");
  if (held_bytes - cached_bytes < state_report(*state).statistics().mapped_bytes)
    return refuse(errc::internal, "the pool maps more memory than it holds");
  if (!parts_->core.memory.validate() || !parts_->core.space.validate())
    return refuse(errc::internal, "the sums of memory or addresses are wrong");
  return {};
}

}  // namespace vmm

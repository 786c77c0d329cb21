// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// How a pool begins and ends.
module;
#include <cstdio>

module vmm.stream;

import vmm.backend;
import vmm.history;
import vmm.optimizer;
import vmm.physical;
import vmm.reservation;
import vmm.std;
import vmm.support;
import vmm.sync;
import vmm.timeline;
import vmm.top;
import vmm.va;

namespace vmm {

namespace {

constexpr error nothing_allocated =
    refuse(errc::unknown_address, "this pool has not allocated anything");
constexpr std::uint64_t page_bytes_min = std::uint64_t{2} << 20;
constexpr std::uint64_t segment_bytes_max = std::uint64_t{max_range_granules} * granule_bytes;

}  // namespace

// ---- set-up ------------------------------------------------------------------------

status stream_pool::set_up() {
  if (!gate_.is_here()) return refuse_forked();
  if (is_ready()) return {};
  const growth_guard growing(entry_);
  if (is_ready()) return {};
  if (parts_ == nullptr) {
    if (status made = make_parts(); !made) return made;
  }
  if (!gate_watch_.listen())
    return refuse(errc::out_of_host_memory, "no host memory is left to listen for forks");
  check(parts_ != nullptr, "a pool opens without the parts that it works with");
  check_first_line();
  if (status mapped = parts_->growth.map_first_pages(); !mapped)
    return mapped;  // last: no failure maps twice
  gate_.open(gate_reason::not_set_up);
  check(is_ready(), "a pool was set up and is not ready");
  events_.publish();
  parts_->shortage.enter({driver_.identity(), options_.placement.value_or(driver_->home())});
  return {};
}

status stream_pool::enter_closed_to_allocate() {
  if (!gate_.is_here()) return refuse_forked();
  notices_.check_not_in_callback();
  check(!gate_.is_closed_by(gate_reason::goes_away), "a pool is used while it is destroyed");
  return set_up();
}

status stream_pool::enter_closed_to_free() {
  return is_ready() ? status{} : status{why_not_ready()};
}

result<address> stream_pool::allocate_closed(std::uint64_t size_bytes, stream_handle stream) {
  if (status entered = enter_closed_to_allocate(); !entered) return entered.error();
  check(is_ready(), "a pool allocates before it is set up");
  return watches_closed(stream) ? allocate_watched({size_bytes}, stream)
                                : allocate_uncaptured(size_bytes, stream);
}

status stream_pool::free_closed(address at, stream_handle stream) {
  if (status entered = enter_closed_to_free(); !entered) return entered;
  check(is_ready(), "a pool frees before it is set up");
  return watches_closed(stream) ? free_watched(at, stream) : free_uncaptured(at, stream);
}

error stream_pool::why_not_ready() const noexcept {
  return gate_.is_here() ? nothing_allocated : refuse_forked();
}

void stream_pool::check_first_line() const noexcept {
  constexpr std::uintptr_t line_bytes = 64;
  const auto first = reinterpret_cast<std::uintptr_t>(&gate_);
  const auto end = reinterpret_cast<std::uintptr_t>(&state_ + 1);
  check(first % line_bytes == 0, "what every call reads does not begin a cache line");
  check(end - first <= line_bytes, "what every call reads is on two cache lines");
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
  if (segment_bytes == 0)
    return refuse(errc::bad_option, "the address space reserved at a time holds no page");
  check(page_bytes % unit_bytes == 0, "a page is no multiple of the granularity");
  check(segment_bytes % page_bytes == 0, "a segment is no multiple of a page");
  core_options core = planned->options;
  physical_options& memory = core.physical;
  memory.granularity_bytes = page_bytes;
  memory.fragment_ratio = 0;
  const std::uint64_t handle_bytes = std::min(options_.rules.handle_bytes, segment_bytes);
  memory.chunk_bytes = round_up(std::max(handle_bytes, page_bytes), page_bytes);
  core.reservation.granularity_bytes = unit_bytes;
  check(memory.chunk_bytes % page_bytes == 0 && memory.chunk_bytes != 0,
        "a new handle is no multiple of a page");
  const pool_setup setup{options_.rules, unit_bytes, page_bytes, segment_bytes};
  if (status attached = events_.attach(); !attached) return attached;
  try {
    auto state = std::make_unique<pool_state>(setup);
    if (!sees_all_ && options_.fronts != front_rule::never) state->permit_fronts();
    state->progress().set_default_alias(stream_handle{driver_->feature_set().default_stream_alias});
    parts_ = std::make_unique<pool_parts>(driver_, core, lower());
    events_.begin(*state, parts_->core);
    state_.set(std::move(state));
    return {};
  } catch (const std::bad_alloc&) {
    return refuse(errc::out_of_host_memory, "no host memory is left for a pool");
  }
}

// ---- the end -----------------------------------------------------------------------

stream_pool::~stream_pool() {
  relief_.leave();
  events_.end_publishing();
  status closed = nothing_to_do();
  if (closed && parts_ != nullptr) {
    gate_.close(gate_reason::goes_away);
    const ending_guard alone(gate_);
    parts_->rights.end_all();
    report_live();
    closed = close();
  }
  if (closed) return;
  if (!gate_.is_here()) {  // or forked while it closed
    leave_behind(state_.release());
    leave_behind(parts_.release());
    return;
  }
  report_unclosed("stream pool", closed.error());
  (void)state_.release();  // the driver still has it: taking the records away would only hide that
  (void)parts_.release();
}

void stream_pool::report_live() noexcept {
  check(gate_.is_closed_by(gate_reason::goes_away), "live blocks are reported before the end");
  if (options_.at_end.hook == nullptr) return;
  const pool_statistics now = state_.with([](auto& state) { return state.statistics(); });
  if (now.live_count == 0) return;
  options_.at_end.hook(options_.at_end.context, {"stream pool", now.live_count, now.live_bytes});
}

// No other thread is here, so no turn is taken; the remap callbacks that run may free and pin.
status stream_pool::close() {
  check(parts_ != nullptr, "a pool that was not set up is closed");
  const relaxed_capture capture(*driver_, captures_.is_on());
  fronts_.store(nullptr, std::memory_order_release);  // remap callbacks may free
  if (status finished = parts_->clock.finish_all(); !finished) return finished;
  {
    const table_lock state(state_);
    state->release_all();
  }
  bool has_addresses = true;
  return close_core(parts_->core, [&]() -> status {
    assume_locked(rank::growth);
    if (status unmapped = parts_->reclaim.unmap_all(); !unmapped) return unmapped;
    if (std::exchange(has_addresses, false)) give_addresses_back();
    return {};
  });
}

// After everything is unmapped.
void stream_pool::give_addresses_back() {
  check(state_.with([](auto& state) { return state.records().handle_count(); }) == 0,
        "addresses go while memory is mapped there");
  const std::uint32_t count = state_.with([](auto& state) { return state.segment_count(); });
  for (std::uint32_t i = 0; i < count; ++i) {
    const extent gone = state_.with([&](auto& state) { return state.segment_at(i).where(); });
    check(gone.range.size_bytes != 0, "a reservation is empty");
    notices_.observe([&](block_watcher& who) { who.unreserved(gone.range); });
    events_.note({history_kind::unreserved, gone.range});
    parts_->core.space.free(gone);
  }
}

// ---- calls -------------------------------------------------------------------------

status stream_pool::pin(address at) {
  if (!is_ready()) return why_not_ready();
  const table_lock state(state_);
  if (state->suspension() != suspension_phase::running) return memory_suspended;
  return locked_blocks(*state).pin(at);
}

status stream_pool::unpin(address at) {
  if (!is_ready()) return why_not_ready();
  notices_.check_not_in_observer();
  return state_.with([&](auto& state) { return locked_blocks(state).unpin(at); });
}

// Whatever else went wrong leaves the block live, and the pool says so when it goes.
void stream_pool::check_left_live(const error& failure) noexcept {
  check(!is_wrong_address(failure.code),
        "deallocate of an address that is no live block of this stream pool, or on a stream that "
        "is not there");
}

result<std::uint64_t> stream_pool::capture_number(stream_handle stream) {
  if (const status idle = nothing_to_do(); !idle) return idle.error();
  return captures_.number(stream);
}

// ---- streams -------------------------------------------------------------------------

status stream_pool::synchronize() {
  return is_ready() ? parts_->clock.synchronize() : nothing_to_do();
}

status stream_pool::release_capture(std::uint64_t number, stream_handle stream) {
  if (status named = check_stream(*driver_, stream); !named) return named;
  return is_ready() ? parts_->captured.release(number, stream) : nothing_to_do();
}

status stream_pool::forget(stream_handle stream) {
  if (status named = check_stream(*driver_, stream); !named) return named;
  return is_ready() ? parts_->clock.forget(stream) : nothing_to_do();
}

// ---- rights --------------------------------------------------------------------------

status stream_pool::set_peers(std::span<const access_grant> grants) {
  if (status ready = set_up(); !ready) return ready;
  return parts_->rights.set_peers(grants);
}

status stream_pool::set_access(address at, std::span<const access_grant> grants) {
  if (!is_ready()) return why_not_ready();
  return parts_->rights.set_access(at, grants);
}

// ---- notices -----------------------------------------------------------------------

result<remap_subscription> stream_pool::subscribe(remap_listener& listener) {
  if (const status idle = nothing_to_do(); !idle) return idle.error();
  return notices_.subscribe(listener);
}

status stream_pool::unsubscribe(remap_subscription subscription) {
  if (const status idle = nothing_to_do(); !idle) return idle;
  return notices_.unsubscribe(subscription);
}

// ---- memory ---------------------------------------------------------------------

prepare_report stream_pool::prepare(std::uint64_t size_bytes, stream_handle stream) {
  if (notices_.is_observed()) notices_.check_not_in_observer();
  if (const status ready = set_up(); !ready)
    return {.left_bytes = size_bytes, .failure = ready.error()};
  return parts_->slow.prepare(size_bytes, stream);
}

trim_report stream_pool::trim(std::uint64_t limit_bytes) {
  trim_report report;
  if (is_ready()) return parts_->reclaim.trim(limit_bytes);
  if (const status idle = nothing_to_do(); !idle) report.failure = idle.error();
  return report;
}

shortage_report stream_pool::last_shortage() const {
  if (!is_ready()) return {};
  return state_.with([](const auto& state) { return state.last_shortage(); });
}

}  // namespace vmm

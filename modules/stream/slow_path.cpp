// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// What allocate and free do where the fast path does not serve: a watcher, a stream that may be
// captured, memory of other streams, growth.
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
import vmm.va;

namespace vmm {

namespace {

constexpr std::size_t reap_count = 8;
constexpr std::size_t reap_count_max = 64;  // by one growth that is not short of memory
// Of the stale mappings that are too many, a growth undoes this part: as many as growths leave on
// the average, and not all that the one before it has left.
constexpr std::size_t surplus_share = 64;
constexpr std::size_t others_count_max = 64;

// Whether an error of a reservation says that a smaller one may succeed.
bool smaller_may_do(errc code) noexcept {
  check(code != errc::none, "a reservation that succeeded is to be made smaller");
  return code == errc::out_of_addresses || code == errc::out_of_memory;
}

}  // namespace

// ---- allocate and free -------------------------------------------------------------

result<address> stream_pool::allocate_watched(const block_shape& shape, stream_handle stream) {
  check(watches_ || watches_capture_, "a call that nobody watches takes the slow way");
  const result<address> at = allocate_told(shape, stream);
  if (!at || options_.contents == contents_rule::none) [[likely]]
    return at;
  return fill_acquired(*at, stream);
}

result<address> stream_pool::allocate_told(const block_shape& shape, stream_handle stream) {
  if (options_.watcher != nullptr) [[unlikely]] {
    board_.check_not_watching();
    return with_relief(relief_, shape.size_bytes, [&](relief_pass&) -> result<address> {
      const watched_turn turn(watcher_turns());
      const result<address> at = check_capture_and_allocate(shape, stream);
      if (at) tell([&](block_watcher& who) { who.allocated({*at, shape.size_bytes}); });
      return at;
    });
  }
  return check_capture_and_allocate(shape, stream);
}

// Asks first whether the stream is being captured.
result<address> stream_pool::check_capture_and_allocate(const block_shape& shape,
                                                        stream_handle stream) {
  check(watches_ || watches_capture_, "a capture is asked for in vain");
  if (asks_about(stream)) {
    const result<capture_info> seen = capture_of(stream);
    if (!seen) [[unlikely]]
      return seen.error();
    if (seen->state != capture_state::none) [[unlikely]]
      return allocate_captured(shape, stream, *seen);
  }
  if (options_.rules.keep_none) return allocate_mappings(shape, stream);
  return shape.alignment_bytes > granule_bytes ? allocate_aligned_uncaptured(shape, stream)
                                               : allocate_uncaptured(shape.size_bytes, stream);
}

status stream_pool::free_watched(address at, stream_handle stream) {
  check(!options_.rules.keep_none || sees_all_, "a pool that keeps nothing takes the fast way");
  const status freed = free_filled(at, stream);
  if (freed && options_.rules.keep_none) keep_none();
  return freed;
}

status stream_pool::free_filled(address at, stream_handle stream) {
  check(watches_ || watches_capture_, "a call that nobody watches takes the slow way");
  if (!clears_on_release()) [[likely]]
    return free_told(at, stream);
  // A callback's thread has the lock of growth: nobody else suspends memory meanwhile.
  if (board_.is_telling_here()) return fill_and_free(at, stream);
  const sync::lock_guard<sync::recursive_mutex> changing(changing_mutex_);
  return fill_and_free(at, stream);
}

status stream_pool::fill_and_free(address at, stream_handle stream) {
  check(clears_on_release(), "a block is filled that nobody wants filled");
  if (status filled = fill_released(at, stream); !filled) return filled;
  return free_told(at, stream);
}

status stream_pool::free_told(address at, stream_handle stream) {
  if (options_.watcher != nullptr) [[unlikely]]
    board_.check_not_watching();
  if (asks_about(stream)) {
    const result<capture_info> seen = capture_of(stream);
    if (!seen) [[unlikely]]
      return seen.error();
    if (seen->state != capture_state::none) [[unlikely]]
      return free_captured(at, stream, *seen);
  }
  if (options_.watcher != nullptr) [[unlikely]] {
    const watched_turn turn(watcher_turns());
    const bool is_locked =
        state_.with([&](auto& state) { return locked_blocks(state).is_locked(at); });
    const status freed = free_uncaptured(at, stream);
    if (freed && !is_locked) tell([&](block_watcher& who) { who.freed(at); });
    return freed;
  }
  return free_uncaptured(at, stream);
}

result<std::uint32_t> stream_pool::enter_stream(stream_handle stream) {
  if (status named = check_stream(stream); !named) return named.error();
  const auto state = state_.lock();
  const std::uint32_t known = state->find_stream(stream);
  if (known != pool_state::no_stream) return known;
  const result<std::uint32_t> added = state->add_stream(driver_->feature_set().canonical(stream));
  check(!added || state->find_stream(stream) == *added, "a new stream is not found");
  return added;
}

status stream_pool::free_on_new_stream(pool_state& state, address at, stream_handle stream) {
  state.settle();
  if (status named = check_stream(stream); !named) return named;
  if (status live = locked_blocks(state).check_live(at); !live) return live;
  const result<std::uint32_t> added = state.add_stream(driver_->feature_set().canonical(stream));
  if (!added) return added.error();
  check(state.find_stream(stream) == *added, "a new stream is not found");
  return state.free_soon(at, *added);
}

result<address> stream_pool::allocate_slow_path(const block_shape& shape, stream_handle given) {
  const stream_handle stream = driver_->feature_set().canonical(given);
  const result<stream_request> counted = request_for(shape);
  if (!counted) return counted.error();
  if (status announced = check_announced(stream); !announced) return announced.error();
  note_uncaptured(stream);
  slow_call call{.size_bytes = shape.size_bytes, .stream = stream, .request = *counted};
  return with_idle_memory(call, [this](slow_call& each, relief_pass& relief) {
    return allocate_in_turn(each, relief);
  });
}

result<address> stream_pool::allocate_in_turn(slow_call& call, relief_pass& relief) {
  check(call.request.count_granules != 0, "no granule is asked for");
  const growth_turn turn(way_in());
  const named_stream named(named_, call.stream);
  if (is_suspended()) return memory_suspended;
  poll_retired_streams();
  if (mark_few_batches()) poll_retired_streams();
  check(may_name(call.stream), "a request does not name its stream");
  const result<std::uint32_t> number = enter_stream(call.stream);
  if (!number) return number.error();
  const std::size_t surplus = state_.with([](auto& state) { return state.surplus_stale_count(); });
  end_freed_rights();
  if (options_.rules.unmap_early || surplus != 0)
    reap(std::clamp(surplus / surplus_share, reap_count, reap_count_max));
  call.request.stream = *number;
  const stream_request request = call.request;
  check(request.block_bytes() >= call.size_bytes, "a request is rounded down");
  provide_front(request, call.stream);
  result<address> at{address{}};
  if (is_placed_among_all(request)) at = reuse_gathered(request);
  if (at && !*at) at = reuse(request);  // its own memory first, then that of others
  if (at && !*at) at = reuse_from_front(request, call.stream);
  if (!at || *at) return note_served(request, call.size_bytes, at);
  const lending_pause pause(state_);
  if (pause.took_any()) at = reuse_taken_back(request);
  if (at && !*at) at = reuse_gathered(request);
  if (!at || *at) return note_served(request, call.size_bytes, at);
  note_growth(request, history_kind::grow, {});
  mark_created(call);
  const result<address> grown = grow(call, relief);
  note_growth(request, history_kind::served, grown ? *grown : address{});
  if (options_.fronts == front_rule::always) provide_front(request, call.stream);
  return note_served(request, call.size_bytes, grown);
}

result<std::uint32_t> stream_pool::count_granules(std::uint64_t size_bytes) {
  if (size_bytes == 0) return refuse(errc::invalid_argument, "a block has at least one byte");
  const std::uint32_t count =
      state_.with([&](auto& state) { return state.granules_for(size_bytes); });
  check(count * granule_bytes >= size_bytes || count == 0, "a request is rounded down");
  if (count != 0) return count;
  check(size_bytes >= granule_bytes, "a granule is too large for a segment");
  return refuse_too_large(size_bytes);
}

// No segment takes the request. Where the budget or the device is smaller too, the error says so.
error stream_pool::refuse_too_large(std::uint64_t size_bytes) {
  const undisturbed capture(*driver_, watches_capture_);
  const std::uint64_t device_bytes = options_.spill ? 0 : parts_->memory.device_bytes(size_bytes);
  const std::uint64_t budget_bytes = options_.budget_bytes;
  check(size_bytes != 0, "no byte is too many");
  if (budget_bytes != 0 && size_bytes > budget_bytes) return with_figures(budget_spent, size_bytes);
  if (device_bytes != 0 && size_bytes > device_bytes) return with_figures(device_full, size_bytes);
  return with_figures(
      refuse(errc::out_of_addresses,
             "A pool's block fits into one segment, which has memory_options::reservation_bytes "
             "of addresses and at most 512 GiB; a manager has larger blocks."),
      size_bytes);
}

// ---- pins --------------------------------------------------------------------------

status stream_pool::pin(address at) {
  if (!is_ready()) return why_not_ready();
  const auto state = state_.lock();
  if (state->suspension() != suspension_phase::running) return memory_suspended;
  return locked_blocks(*state).pin(at);
}

status stream_pool::unpin(address at) {
  if (!is_ready()) return why_not_ready();
  board_.check_not_watching();
  return state_.with([&](auto& state) { return locked_blocks(state).unpin(at); });
}

// ---- other streams' memory ---------------------------------------------------------

// What is free for the stream or the captured graph, and what other streams have finished with.
result<address> stream_pool::reuse(const stream_request& request) {
  check(request.count_granules != 0, "no granule is looked for");
  std::array<stream_point, others_count_max> others;
  std::size_t count = 0;
  {
    const auto state = state_.lock();
    const result<address> own = state->allocate_own(request);
    if (!own || *own) return own;
    count = state->other_stream_candidates(request, others);
  }
  return reuse_passed(request, std::span(others).first(count));
}

// What of these streams' memory is found to be finished with.
result<address> stream_pool::reuse_passed(const stream_request& request,
                                          std::span<const stream_point> others) {
  check(others.size() <= others_count_max, "more streams are asked than there is room for");
  if (others.empty()) return address{};
  for (const stream_point& point : others) {
    if (status asked = poll_events(point); !asked) return asked.error();
  }
  const auto state = state_.lock();
  const result<other_stream_claim> claim = state->claim_from_other(request, {.passed_only = true});
  if (!claim) return claim.error();
  if (claim->region == region_id::none) return address{};
  check(claim->last_use.stream != request.stream, "a stream takes its own memory as another's");
  check(state->streams().passed(claim->last_use), "memory is taken that unfinished work may use");
  return state->settle_claim(*claim);
}

// Requests that take the lowest address that fits: of what one stream after the other has, that is
// another one, and what lies about there breaks up the places of later ones.
bool stream_pool::is_placed_among_all(const stream_request& request) {
  check(request.count_granules != 0, "no granule is looked for");
  return state_.with(
      [&](auto& state) { return request.count_granules >= state.sizes().lowest_granules; });
}

// With all that others have finished with as the stream's own. Where that serves nothing, a growth
// continues it.
result<address> stream_pool::reuse_gathered(const stream_request& request) {
  std::array<stream_point, others_count_max> others;
  const std::size_t count =
      state_.with([&](auto& state) { return state.others_to_gather(request.stream, others); });
  check(count <= others.size(), "more streams are named than there is room for");
  if (count == 0) return address{};
  for (const stream_point& point : std::span(others).first(count)) {
    if (status asked = poll_events(point); !asked) return asked.error();
  }
  region_walk walk;
  for (bool goes_on = true; goes_on;)
    goes_on = state_.with([&](auto& state) { return state.gather_passed(request.stream, walk); });
  return state_.with([&](auto& state) {
    const result<address> at = state.allocate_own(request);
    if (at && *at) ++state.totals().foreign_count;
    return at;
  });
}

result<address> stream_pool::reuse_behind_wait(const growth_attempt& attempt,
                                               const other_stream_search& how) {
  check(attempt.request.count_granules != 0, "no granule is looked for");
  if (!attempt.may_wait) return address{};
  const result<other_stream_claim> claim =
      state_.with([&](auto& state) { return state.claim_from_other(attempt.request, how); });
  if (!claim) return claim.error();
  if (claim->region == region_id::none) return address{};
  check(claim->last_use.stream != attempt.request.stream, "a stream waits for itself");
  const status ordered = order_behind(claim->last_use, attempt.request.stream);
  const auto state = state_.lock();
  if (ordered) return state->settle_claim(*claim);
  state->return_claim(*claim);
  return ordered.error();
}

// ---- growth ------------------------------------------------------------------------

result<address> stream_pool::grow(const slow_call& call, relief_pass& relief) {
  const stream_request& request = call.request;
  check(request.count_granules != 0, "a growth is for nothing");
  growth_attempt attempt{.request = request, .relief = &relief, .created_mark = call.created_mark};
  const std::uint64_t footprint_bytes = parts_->memory.statistics().footprint_bytes;
  attempt.has_headroom = state_.with(
      [&](auto& state) { return growth_planner(state).has_headroom(request, footprint_bytes); });
  attempt.may_wait = may_mark_all();
  const result<address> grown = grow_by_steps(attempt);
  check(!grown || grown->value != 0, "a growth has no address");
  if (grown || !attempt.may_wait || !is_capture_refusal(grown.error())) return grown;
  attempt.may_wait = false;  // a capture has begun meanwhile on a stream that was to be waited for
  attempt.was_refused = true;
  return grow_by_steps(attempt);
}

result<address> stream_pool::grow_by_steps(growth_attempt& attempt) {
  check(attempt.request.count_granules != 0, "a growth is for nothing");
  if (!attempt.has_headroom) {
    const result<address> waited = reuse_behind_wait(attempt, {});
    if (!waited || *waited) return waited;
  }
  growth_effort effort{.may_move = may_alias_ && attempt.may_wait};
  const result<address> grown = try_growth(attempt.request, effort);
  attempt.refusal = effort.refusal;
  if (grown || !is_shortage(grown.error().code)) return grown;
  return grow_short(attempt, grown.error());
}

result<address> stream_pool::try_growth(const stream_request& request, growth_effort& effort) {
  result<growth_plan> plan = plan_growth(request, effort);
  if (!plan) return plan.error();
  if (!may_succeed(*plan, effort)) {
    state_.with([&](auto& state) { growth_planner(state).abandon(*plan, 0); });
    return *effort.refusal;
  }
  if (const status mapped = map_planned(*plan); !mapped) {
    if (mapped.error().code == errc::out_of_memory) effort.refusal = mapped.error();
    return mapped.error();
  }
  check(plan->request.block_granules() == request.block_granules(),
        "a plan is for another request");
  return state_.with([&](auto& state) { return growth_planner(state).commit(*plan); });
}

// After the driver has refused memory once: creating many handles in vain takes long.
bool stream_pool::may_succeed(const growth_plan& plan, const growth_effort& effort) {
  if (!effort.refusal || plan.create_granules == 0) return true;
  check(effort.refusal->code == errc::out_of_memory, "another failure is taken for a shortage");
  check(!plan.slots.empty() || !plan.waits.empty() || plan.target_granules != 0,
        "a plan has no target");
  return parts_->memory.may_have(
      {plan.create_granules * granule_bytes, plan.handle_granules * granule_bytes});
}

// What is mapped is the caller's to commit. A plan that fails is abandoned.
status stream_pool::map_planned(growth_plan& plan) {
  check(plan.target_granules != 0, "a plan maps nothing");
  growth_outcome outcome = carry_out(plan);
  check(!outcome.done || outcome.standing_count == 0, "a growth both failed and did not");
  check(!outcome.done || !plan.slots.empty(), "a target is mapped that has no slot");
  if (outcome.done) return {};
  state_.with([&](auto& state) { growth_planner(state).abandon(plan, outcome.standing_count); });
  parts_->memory.give_back(outcome.fresh, 0);
  return outcome.done;
}

// Physical memory that the pool may have; 0: nobody says.
std::uint64_t stream_pool::limit_bytes() const noexcept {
  if (options_.budget_bytes != 0) return options_.budget_bytes;
  return expected_limit_bytes_.load(std::memory_order_relaxed);
}

// Claims what the growth takes. Where no hole is large enough, stale mappings go first, then more
// addresses are reserved. Where none are left, or they do not help, no more is created than is
// needed: what is more is a wish, for which no hole that serves is passed over.
result<growth_plan> stream_pool::plan_growth(const stream_request& request, growth_effort effort) {
  effort.footprint_bytes = parts_->memory.statistics().footprint_bytes;
  effort.limit_bytes = limit_bytes();
  constexpr int tries_max = 4;
  error cause;
  for (int tries = 0; tries < tries_max; ++tries) {
    std::uint64_t stale = 0;
    {
      const auto state = state_.lock();
      result<growth_plan> planned = growth_planner(*state).plan(request, effort);
      check(!planned || planned->at.value != 0, "a growth has no address");
      if (planned || planned.error().code != errc::out_of_addresses) return planned;
      if (!effort.needed_only) cause = planned.error();
      stale = state->records().stale_count();
    }
    if (effort.needed_only) break;
    if (tries == 0 && stale != 0) {
      reap(stale);
      continue;
    }
    const status added = add_segment(request.size_bytes());
    if (!added && !smaller_may_do(added.error().code)) return added.error();
    if (!added) cause = added.error();
    effort.needed_only = !added || tries + 2 == tries_max;
  }
  check(smaller_may_do(cause.code), "addresses are short, and another error is answered");
  return cause;
}

status stream_pool::add_segment(std::uint64_t needed_bytes) {
  const std::uint64_t page_bytes =
      state_.with([](auto& state) { return state.sizes().page_bytes; });
  std::uint64_t size_bytes = state_.with([](auto& state) { return state.sizes().segment_bytes; });
  const std::uint64_t least_bytes =
      std::min(round_up(needed_bytes, page_bytes) + page_bytes * 64, size_bytes);
  check(least_bytes <= size_bytes && least_bytes % page_bytes == 0,
        "the least segment is larger than any, or holds a part of a page");
  for (;;) {
    check(size_bytes >= least_bytes && size_bytes % page_bytes == 0,
          "less is reserved than is needed, or a part of a page");
    const result<extent> space = parts_->space.allocate({size_bytes, 0});
    if (space) {
      check(space->range.size_bytes == size_bytes, "a reservation has another size than asked for");
      const status added = state_.with([&](auto& state) { return state.add_segment(*space); });
      if (!added) parts_->space.free(*space);
      if (added) tell([&](block_watcher& who) { who.reserved(space->range); });
      if (added) note({history_kind::reserved, space->range});
      return added;
    }
    if (!smaller_may_do(space.error().code) || size_bytes == least_bytes) return space.error();
    const std::uint64_t half = size_bytes / 2 / page_bytes * page_bytes;
    size_bytes = std::max(half, least_bytes);
  }
}

// The driver's part of a plan. Nothing that is mapped has a last use of its own: what unfinished
// work may use is waited for here.
growth_outcome stream_pool::carry_out(growth_plan& plan) {
  growth_outcome outcome;
  outcome.done = carry_out_into(plan, outcome);
  check(outcome.standing_count <= plan.slots.size(), "more is mapped than was planned");
  check(!outcome.done || plan.slots.size() == plan.memories.size(), "a growth lost a slot");
  note_mapped(plan, outcome);
  return outcome;
}

status stream_pool::carry_out_into(growth_plan& plan, growth_outcome& so_far) {
  if (plan.create_granules != 0) {
    const std::uint64_t size_bytes = plan.create_granules * granule_bytes;
    const std::uint64_t new_bytes_max = plan.handle_granules * granule_bytes;
    if (status made = parts_->memory.acquire(size_bytes, so_far.fresh, new_bytes_max); !made)
      return made;
  }
  for (const stream_point& point : plan.waits) {
    if (status ordered = order_behind(point, plan.request.stream); !ordered) return ordered;
  }
  check(so_far.standing_count == 0, "a growth is carried out twice");
  const status prepared =
      state_.with([&](auto& state) { return growth_planner(state).prepare(plan, so_far.fresh); });
  if (!prepared) return prepared;
  announce_moves(plan);
  const remap_outcome mapped =
      parts_->remaps.map({plan.at, std::span<physical_memory* const>(plan.memories), {}});
  check(mapped.mapped_count <= plan.memories.size(), "more is mapped than was planned");
  so_far.standing_count = mapped.result ? 0 : mapped.mapped_count;
  if (!mapped.result) return mapped.result;
  check(mapped.mapped_count == plan.memories.size(), "a piece of a growth was not mapped");
  tell([&](block_watcher& who) {
    for (const mapping_slot& slot : plan.slots)
      who.mapped({address_of(*slot.where), slot.of->memory->size_bytes});
  });
  announce_mapped(plan);
  return mapped.result;
}

// New mappings reach their memory from now on.
void stream_pool::announce_mapped(const growth_plan& plan) {
  if (board_.nobody_listens()) return;
  const std::uint64_t epoch = remap_epoch_.load(std::memory_order_acquire);
  check(!plan.slots.empty(), "a growth maps nothing");
  for (const mapping_slot& slot : plan.slots)
    call_back({epoch, remap_kind::mapped, {address_of(*slot.where), slot.of->memory->size_bytes}});
}

// The memory that a plan moves leaves these addresses. What is claimed stays where it is meanwhile.
void stream_pool::announce_moves(const growth_plan& plan) {
  if (plan.moved.empty()) return;
  check(plan.slots.size() >= plan.moved.size(), "a handle that moves has no slot");
  const std::uint64_t epoch = remap_epoch_.fetch_add(1, std::memory_order_acq_rel) + 1;
  check(epoch != 0, "the numbers of changes are used up");
  if (board_.nobody_listens()) return;
  for (const handle_record* moved : plan.moved) {
    check(!moved->is_free && moved->current != nullptr, "memory moves that nobody has claimed");
    call_back({epoch, remap_kind::moved, {address_of(*moved->current), moved->memory->size_bytes}});
  }
}

}  // namespace vmm

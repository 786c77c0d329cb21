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

constexpr std::size_t others_max = 64;

[[nodiscard]] std::uint64_t read_clock_ns(const features& can) noexcept {
  if (can.clock != nullptr) return can.clock->read_ns();
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

// Whether a smaller reservation may succeed after this error.
bool smaller_may_do(errc code) noexcept {
  check(code != errc::none, "a successful reservation is retried at a smaller size");
  return code == errc::out_of_addresses || code == errc::out_of_memory;
}

}  // namespace

// ---- growth ------------------------------------------------------------------------------

result<address> pool_growth::try_grow(const stream_request& request, growth_effort& effort) {
  result<growth_plan> plan = make_plan(request, effort);
  if (!plan) return plan.error();
  if (!may_succeed(*plan, effort)) {
    {
      const table_lock state(state_);
      growth_commit(*state).abandon(*plan, 0);
    }
    return *effort.refusal;
  }
  if (const status mapped = map_planned(*plan); !mapped) {
    if (mapped.error().code == errc::out_of_memory) effort.refusal = mapped.error();
    return mapped.error();
  }
  check(plan->request.block_granules() == request.block_granules(),
        "a plan is for another request");
  const result<address> at =
      state_.with([&](auto& state) { return growth_commit(state).commit(*plan); });
  check(!at || request.fill == nullptr || *at == request.fill->done,
        "pool_growth I3: a block is handed out that is not filled");
  return at;
}

// Checked after the driver has refused memory once, because creating many handles in vain is slow.
bool pool_growth::may_succeed(const growth_plan& plan, const growth_effort& effort) {
  if (!effort.refusal || plan.create_granules == 0) return true;
  check(effort.refusal->code == errc::out_of_memory,
        "a failure that is not a shortage is handled as one");
  check(!plan.slots.empty() || !plan.waits.empty() || plan.target_granules != 0,
        "a plan has no target");
  return memory_.may_have(
      {plan.create_granules * granule_bytes, plan.handle_granules * granule_bytes});
}

// The caller commits the mapped plan. A failed plan is abandoned.
status pool_growth::map_planned(growth_plan& plan) {
  check(plan.target_granules != 0, "a plan maps nothing");
  growth_outcome outcome = carry_out(plan);
  check(!outcome.done || outcome.standing_count == 0,
        "pool_growth I1: a successful growth left pieces to undo");
  check(!outcome.done || !plan.slots.empty(), "a target is mapped that has no slot");
  if (outcome.done) return {};
  {
    const table_lock state(state_);
    growth_commit(*state).abandon(plan, outcome.standing_count);
  }
  memory_.give_back(outcome.fresh, 0);
  return outcome.done;
}

// The limit of the pool's physical memory; 0: unknown.
std::uint64_t pool_growth::limit_bytes() const noexcept {
  if (options_.budget_bytes != 0) return options_.budget_bytes;
  const std::uint64_t expected_bytes = expected_limit_bytes_.load(std::memory_order_relaxed);
  if (expected_bytes != 0 || !driver_.feature_set().is_lender) return expected_bytes;
  const std::optional<memory_info> lender = memory_.query_device();
  if (!lender || lender->lendable_bytes == 0) return 0;  // a growth is refused, or lies elsewhere
  return memory_.statistics().held_bytes + lender->lendable_bytes;
}

// Claims the growth's memory and addresses. If no hole is large enough, stale mappings are unmapped
// first, then more addresses are reserved. If none are left, or they do not help, only the needed
// memory is created: memory beyond the request is optional, and no suitable hole is skipped for it.
result<growth_plan> pool_growth::make_plan(const stream_request& request, growth_effort effort) {
  effort.held_bytes = memory_.statistics().held_bytes;
  effort.limit_bytes = limit_bytes();
  constexpr int tries_max = 4;
  error cause;
  for (int tries = 0; tries < tries_max; ++tries) {
    std::uint64_t stale = 0;
    {
      const table_lock state(state_);
      result<growth_plan> planned = growth_planner(*state).plan(request, effort);
      check(!planned || planned->at.value != 0, "a growth has no address");
      if (planned || planned.error().code != errc::out_of_addresses) return planned;
      if (!effort.needed_only) cause = planned.error();
      stale = state->records().stale_count();
    }
    if (effort.needed_only) break;
    if (tries == 0 && stale != 0) {
      reclaim_.unmap_stale(stale);
      continue;
    }
    const status added = add_segment(request.size_bytes());
    if (!added && !smaller_may_do(added.error().code)) return added.error();
    if (!added) cause = added.error();
    effort.needed_only = !added || tries + 2 == tries_max;
  }
  check(smaller_may_do(cause.code), "addresses are short, but the error is another one");
  return cause;
}

status pool_growth::add_segment(std::uint64_t needed_bytes) {
  const std::uint64_t page_bytes =
      state_.with([](auto& state) { return state.sizes().page_bytes; });
  std::uint64_t size_bytes = state_.with([](auto& state) { return state.sizes().segment_bytes; });
  const std::uint64_t least_bytes =
      std::min(round_up(needed_bytes, page_bytes) + page_bytes * 64, size_bytes);
  check(least_bytes <= size_bytes && least_bytes % page_bytes == 0,
        "the smallest segment exceeds the largest, or is not whole pages");
  for (;;) {
    check(size_bytes >= least_bytes && size_bytes % page_bytes == 0,
          "a reservation is too small, or not whole pages");
    const result<extent> space = space_.allocate({size_bytes, 0});
    if (space) {
      check(space->range.size_bytes == size_bytes,
            "a reservation does not have the requested "
            "size");
      const status added = state_.with([&](auto& state) { return state.add_segment(*space); });
      if (!added) space_.free(*space);
      if (added)
        notices_.observe([&](block_observer& observer) { observer.reserved(space->range); });
      if (added) events_.note({history_kind::reserved, space->range});
      return added;
    }
    if (!smaller_may_do(space.error().code) || size_bytes == least_bytes) return space.error();
    const std::uint64_t half = size_bytes / 2 / page_bytes * page_bytes;
    size_bytes = std::max(half, least_bytes);
  }
}

// The driver's part of a plan. Nothing that is mapped has a last use of its own: what unfinished
// work may use is waited for here.
growth_outcome pool_growth::carry_out(growth_plan& plan) {
  growth_outcome outcome;
  outcome.done = carry_out_into(plan, outcome);
  check(outcome.standing_count <= plan.slots.size(), "more is mapped than was planned");
  check(!outcome.done || plan.slots.size() == plan.memories.size(), "a growth lost a slot");
  check(!outcome.done || outcome.standing_count == 0, "a successful growth left pieces to undo");
  if (!events_.is_on()) return outcome;
  // A mapping left by a failed growth is stale from the start: the memory is also at its former
  // address, and a reader of the events would count it twice.
  if (outcome.done) {
    const table_lock state(state_);
    growth_commit(*state).note_mapped(plan);
  }
  events_.note_footprint();
  return outcome;
}

status pool_growth::carry_out_into(growth_plan& plan, growth_outcome& so_far) {
  if (plan.create_granules != 0) {
    const std::uint64_t size_bytes = plan.create_granules * granule_bytes;
    const std::uint64_t new_bytes_max = plan.handle_granules * granule_bytes;
    if (status made = memory_.acquire(size_bytes, so_far.fresh, new_bytes_max); !made) return made;
  }
  for (const stream_point& point : plan.waits) {
    if (status ordered = clock_.order_behind(point, plan.request.stream); !ordered) return ordered;
  }
  check(so_far.standing_count == 0, "a growth is carried out twice");
  const status prepared =
      state_.with([&](auto& state) { return growth_commit(state).prepare(plan, so_far.fresh); });
  if (!prepared) return prepared;
  notices_.moving(plan);
  const std::uint64_t begun_ns = read_clock_ns(driver_.feature_set());
  const remap_outcome mapped =
      remaps_.map({plan.at, std::span<physical_memory* const>(plan.memories), {}});
  check(mapped.mapped_count <= plan.memories.size(), "more is mapped than was planned");
  so_far.standing_count = mapped.result ? 0 : mapped.mapped_count;
  if (!mapped.result) return mapped.result;
  check(mapped.mapped_count == plan.memories.size(), "a piece of a growth was not mapped");
  const std::uint64_t taken_ns = read_clock_ns(driver_.feature_set()) - begun_ns;
  plan.piece_ns = taken_ns / plan.memories.size();
  const auto each_from = [&](std::size_t first, auto&& visitor) {
    for (std::size_t i = first; i < plan.slots.size(); ++i)
      visitor(address_range{state_.address_of(*plan.slots[i].where),
                            plan.slots[i].of->memory->size_bytes});
  };
  notices_.observe([&](block_observer& observer) {
    each_from(0, [&](const address_range& memory) { observer.mapped(memory); });
  });
  const status filled = fill_block(plan);
  if (filled) {
    notices_.mapped(plan);
    return filled;
  }
  const mapping_plan target{plan.at, std::span<physical_memory* const>(plan.memories), {}};
  so_far.standing_count = remaps_.undo(target, plan.memories.size(), filled).mapped_count;
  notices_.observe([&](block_observer& observer) {
    each_from(so_far.standing_count,
              [&](const address_range& memory) { observer.unmapped(memory); });
  });
  return filled;
}

// The observer is notified of the block first, as of every block that is filled.
status pool_growth::fill_block(const growth_plan& plan) {
  block_fill* const fill = plan.request.fill;
  if (fill == nullptr) return {};
  check(!fill->done, "pool_growth I3: a block is filled twice");
  address_range block;
  {
    const table_lock state(state_);
    block = growth_commit(*state).block_of(plan);
    if (notices_.is_observed()) growth_commit(*state).count_as_live(plan, true);
  }
  if (notices_.is_observed()) {
    notices_.observe(
        [&](block_observer& observer) { observer.allocated({block.base, fill->size_bytes}); });
    const table_lock state(state_);
    growth_commit(*state).count_as_live(plan, false);
  }
  const status filled = contents_.on_acquire(block, fill->stream);
  if (filled) fill->done = block.base;
  if (!filled) notices_.observe([&](block_observer& observer) { observer.freed(block.base); });
  return filled;
}

status pool_growth::map_first_pages() {
  check(gate_.is_closed_by(gate_reason::not_set_up), "the first pages are mapped late");
  if (options_.page_count == 0) return {};
  const std::uint64_t page_bytes =
      state_.with([](auto& state) { return state.sizes().page_bytes; });
  const std::uint64_t segment_bytes =
      state_.with([](auto& state) { return state.sizes().segment_bytes; });
  if (options_.page_count > segment_bytes / page_bytes) {
    return refuse_beyond(options_.page_count,
                         "page_count (VMM_POOL_PAGES, VPMM_PAGES) is at most the pages of one "
                         "reservation: reservation_bytes (VMM_VA_SIZE), and less than 512 GiB",
                         "its pages are", segment_bytes / page_bytes);
  }
  const result<std::uint32_t> stream = clock_.enter(options_.first_stream);
  if (!stream) return stream.error();
  const std::uint64_t size_bytes = options_.page_count * page_bytes;
  const stream_request request{granules_in(size_bytes), *stream};
  check(request.size_bytes() == size_bytes, "the pages to map first are more than can be counted");
  result<growth_plan> plan = make_plan(request, {.may_move = false});
  if (!plan) return plan.error();
  const std::uint64_t mark = memory_.creation_mark();
  if (const status mapped = map_planned(*plan); !mapped) {
    reclaim_.release_created(mark);
    if (!is_shortage(mapped.error().code)) return mapped;
    error why = with_figures(mapped.error(), size_bytes);
    why.detail =
        "Make page_count (VMM_POOL_PAGES, VPMM_PAGES), the pages that are mapped first, smaller.";
    return why;
  }
  {
    const table_lock state(state_);
    growth_commit(*state).commit_free(*plan);
  }
  return {};
}

error pool_growth::with_figures(const error& why, std::uint64_t size_bytes) {
  if (why.figures.requested_bytes != 0) return why;
  check(size_bytes != 0, "memory is short for no request");
  error detailed = why;
  shortage_figures& figures = detailed.figures;
  figures.requested_bytes = size_bytes;
  figures.held_bytes = memory_.statistics().held_bytes;
  figures.largest_free_bytes =
      state_.with([](const auto& state) { return state_report(state).largest_free_bytes(); });
  if (why.code == errc::over_budget && options_.budget_bytes != 0) {
    figures.used_bytes = figures.held_bytes;
    figures.limit_bytes = options_.budget_bytes;
  } else if (why.code == errc::out_of_memory) {
    const std::optional<memory_info> device = memory_.query_device();
    if (device) figures.limit_bytes = device->total_bytes;
    if (device) figures.used_bytes = device->used_bytes();
  } else if (why.code == errc::out_of_addresses) {
    const pool_statistics now =
        state_.with([](const auto& state) { return state_report(state).statistics(); });
    figures.used_bytes = now.reserved_bytes - now.hole_bytes;
    figures.limit_bytes = now.reserved_bytes;
  }
  return detailed;
}

void pool_growth::remove_segments() {
  check(state_.with([](auto& state) { return state.records().handle_count(); }) == 0,
        "addresses with mapped memory are released");
  const std::uint32_t count = state_.with([](auto& state) { return state.segments().count(); });
  for (std::uint32_t i = 0; i < count; ++i) {
    const extent gone = state_.with([&](auto& state) { return state.segments().at(i).where(); });
    check(gone.range.size_bytes != 0, "a reservation is empty");
    notices_.observe([&](block_observer& observer) { observer.unreserved(gone.range); });
    events_.note({history_kind::unreserved, gone.range});
    space_.free(gone);
  }
}

// ---- steps ---------------------------------------------------------------------------

// Whether the request can be served now without growth or wait.
result<bool> pool_growth::is_served(const stream_request& request) {
  check(request.count_granules != 0, "a request of 0 granules is announced");
  std::array<stream_point, others_max> others;
  std::size_t count = 0;
  {
    const table_lock state(state_);
    bool is_found = false;
    state->segments().for_each([&](const segment& in) {
      is_found = is_found || in.find_free(request) != region_id::none;
    });
    if (is_found) return true;
    count = stream_memory(*state).other_stream_candidates(request, others);
  }
  check(count <= others.size(), "more streams are searched than the list holds");
  for (const stream_point& point : std::span(others).first(count)) {
    if (status asked = clock_.poll(point); !asked) return asked.error();
    if (state_.with([&](auto& state) { return state.progress().passed(point); })) return true;
  }
  return false;
}

// True if there may be more to do. The stream is looked up again: other threads may forget it
// between two steps.
result<bool> pool_growth::preallocate_step(preparation& work, preallocate_report& report) {
  check(work.count_granules != 0, "a request of 0 granules is announced");
  const growth_guard growing(entry_);
  const named_stream named(entry_, driver_.feature_set().canonical(work.stream));
  if (state_.is_suspended()) return memory_suspended;
  check(entry_.may_name(entry_.named()), "a request that is announced does not name its stream");
  const result<std::uint32_t> number = clock_.enter(work.stream);
  if (!number) return number.error();
  const stream_request wanted{work.count_granules, *number};
  const result<bool> served = is_served(wanted);
  if (!served) return served;
  work.is_served = *served;
  if (*served) return false;
  const arena_flush pause(state_, arena_memory::stays);
  growth_effort effort{.may_move = may_alias_};
  effort.held_bytes = memory_.statistics().held_bytes;
  effort.limit_bytes = limit_bytes();
  result<growth_plan> plan =
      state_.with([&](auto& state) { return ahead_planner(state).plan(wanted, effort); });
  if (plan) plan->made_for = work.number;
  if (plan && plan->target_granules != 0) return map_ahead(*plan, report);
  if (plan) {
    if (std::exchange(work.has_asked, true)) return false;
    const status asked = clock_.poll_all();
    return asked ? result<bool>{true} : asked.error();
  }
  const bool is_short_of_addresses = plan.error().code == errc::out_of_addresses;
  if (!is_short_of_addresses || std::exchange(work.has_reserved, true)) return plan.error();
  const status added = add_segment(wanted.size_bytes() + 2 * options_.policy.handle_bytes_max);
  return added ? result<bool>{true} : added.error();
}

// The driver's part of a step.
result<bool> pool_growth::map_ahead(growth_plan& plan, preallocate_report& report) {
  check(plan.waits.empty(), "pool_growth I2: a preallocation makes a stream wait");
  const std::uint64_t mark = memory_.creation_mark();
  if (const status mapped = map_planned(plan); !mapped) {
    reclaim_.release_created(mark);
    return mapped.error();
  }
  {
    const table_lock state(state_);
    growth_commit(*state).commit_free(plan);
  }
  report.created_bytes += plan.create_granules * granule_bytes;
  report.moved_bytes += plan.moved_granules * granule_bytes;
  return true;
}

void pool_growth::add_room(std::uint32_t stream) {
  constexpr std::uint64_t share = 32;  // of the live bytes, and of the limit
  const arena_flush pause(state_, arena_memory::stays);
  growth_effort effort{.may_move = false, .least_headroom = 1.4};
  effort.held_bytes = memory_.statistics().held_bytes;
  effort.limit_bytes = limit_bytes();
  const auto plan_it = [&]() -> result<growth_plan> {
    const table_lock state(state_);
    const std::uint64_t part =
        std::min(live_granules_of(*state) / share + 1, state->sizes().segment_granules());
    const stream_request wanted{state->sizes().rounded_to_pages(part), stream};
    check(wanted.count_granules != 0, "no room is added");
    const std::uint64_t then_bytes = effort.held_bytes + wanted.size_bytes();
    const std::uint64_t spare_bytes = effort.limit_bytes / share;
    const bool exceeds = effort.limit_bytes != 0 && then_bytes > effort.limit_bytes - spare_bytes;
    bool is_there = false;
    state->segments().for_each(
        [&](const segment& in) { is_there = is_there || in.find_free(wanted) != region_id::none; });
    if (exceeds || is_there) return growth_plan{};
    return ahead_planner(*state).plan(wanted, effort);
  };
  result<growth_plan> plan = plan_it();
  preallocate_report report;
  if (plan && plan->target_granules != 0) (void)map_ahead(*plan, report);  // optional
}

status pool_growth::make_ready(preparation work, preallocate_report& report) {
  const std::uint32_t page_granules =
      state_.with([](auto& state) { return state.sizes().page_granules; });
  result<bool> more = true;
  // Each step adds at least a page, except one that reserves addresses and one that queries the
  // device.
  for (std::uint32_t left = work.count_granules / page_granules + 4; left != 0 && more && *more;
       --left)
    more = preallocate_step(work, report);
  report.left_bytes = work.is_served ? 0 : missing_bytes(work);
  return more ? status{} : status{more.error()};
}

std::uint64_t pool_growth::missing_bytes(const preparation& work) {
  const table_lock state(state_);
  const std::uint32_t number = state->progress().find(work.stream);
  std::uint32_t largest = 0;
  if (number != pool_state::no_stream) {
    state->segments().for_each([&](const segment& in) {
      largest = std::max(largest, in.regions().largest(kind_of(number)));
    });
  }
  check(work.count_granules != 0, "a request of 0 granules is preallocated");
  return (work.count_granules - std::min(largest, work.count_granules)) * granule_bytes;
}

}  // namespace vmm

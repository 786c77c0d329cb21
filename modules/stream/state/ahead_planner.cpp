// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
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

constexpr std::uint32_t handles_max = 64;

}  // namespace

// Whether the handle moves without a wait.
bool ahead_planner::moves_at_once(const handle_record& h, std::uint32_t stream) const noexcept {
  check(h.is_free, "a handle in use is to be moved");
  const segment& in = state_.segments().of(*h.current);
  return in.all_regions(*h.current, [&](region_id region) {
    const stream_point freed = in.freed_at(region);
    return freed.stream == stream || state_.streams().passed(freed);
  });
}

// The smallest handle of the stream that is all of the rest, else the largest, of the stream first;
// none that the place does not take; null if all handles together are less than the rest. More than
// handles_max handles are not counted: the largest moves, and the memory that this and later steps
// collect may be less than the request.
handle_record* ahead_planner::choose_ahead(std::uint32_t stream, std::uint32_t rest_granules,
                                           std::uint64_t place_granules) const noexcept {
  check(place_granules >= rest_granules, "a handle is chosen for a range that is too small");
  handle_record* const fitting =
      records_.free_of(stream).at_least(rest_granules / sizes_.page_granules, rest_granules);
  const bool has_fitting = fitting != nullptr && fitting->count_granules <= place_granules;
  if (has_fitting && moves_at_once(*fitting, stream)) return fitting;
  handle_record* best = nullptr;
  std::uint64_t sum_granules = 0;
  std::uint32_t looks = 0;
  const std::uint32_t streams = std::min(state_.streams().count(), handles_max);
  for (std::uint32_t step = 0; step <= streams; ++step) {
    const std::uint32_t owner = step == 0 ? stream : state_.streams().other(stream, step - 1);
    if (step != 0 && owner == stream) continue;
    const free_handle_bins& from = records_.free_of(owner);
    for (handle_record* h = from.largest(); h != nullptr; h = from.next_smaller(*h)) {
      if (looks++ == handles_max) return best;
      if (h->count_granules > place_granules || !moves_at_once(*h, stream)) continue;
      if (best == nullptr) best = h;
      sum_granules += h->count_granules;
      if (sum_granules >= rest_granules) return best;
    }
  }
  return nullptr;
}

// The largest handle of a step: as large as if all that is announced were created at once.
std::uint32_t ahead_planner::step_granules(std::uint32_t rest_granules,
                                           const growth_effort& effort) const noexcept {
  check(rest_granules != 0, "no granule is to be created");
  const std::uint32_t largest = planner_.handle_size(false, effort.held_bytes, rest_granules);
  if (largest != 0) return planner_.within_limit(largest, rest_granules, effort);
  const std::uint64_t bytes = std::min(sizes_.policy.handle_bytes_max, sizes_.segment_bytes);
  check(bytes <= sizes_.segment_bytes, "a handle is larger than a segment");
  return std::max(sizes_.rounded_to_pages(bytes / granule_bytes), sizes_.page_granules);
}

// A hole that takes so much; none where no segment has one.
ahead_planner::place_ahead ahead_planner::find_place(std::uint64_t wanted_granules) const noexcept {
  check(wanted_granules != 0, "a place is looked for that takes nothing");
  const std::uint64_t gap =
      round_up(sizes_.policy.tuning.growth_gap_bytes / granule_bytes, sizes_.page_granules);
  for (std::uint32_t number = 0; number < state_.segments().count(); ++number) {
    const segment& in = state_.segments().at(number);
    const region_id end = in.regions().last();
    const std::uint64_t lead = in.range(end).offset == 0 ? 0 : gap;
    if (in.kind(end) == hole_kind && in.range(end).count >= lead + wanted_granules)
      return {number, end, static_cast<std::uint32_t>(lead), in.range(end).count - lead};
    if (wanted_granules > in.regions().count_granules()) continue;
    const region_id hole =
        in.regions().best_fit(hole_kind, static_cast<std::uint32_t>(wanted_granules));
    if (hole != region_id::none) return {number, hole, 0, in.range(hole).count};
  }
  return {};
}

// Free memory that can go on growing later. Where there is neither that nor a new place for such,
// what just takes the rest: a segment may have little more.
void ahead_planner::choose_start_ahead(growth_plan& plan) noexcept {
  planner_.choose_start(plan, planner_.spare());
  if (plan.start != region_id::none) return;
  const std::uint32_t all = sizes_.rounded_to_pages(plan.request.count_granules);
  check(all != 0, "a growth is for nothing");
  if (find_place(all + planner_.spare()).hole == region_id::none) planner_.choose_start(plan, 0);
}

// Behind the start, or where the rest has room, so that the next step continues there. If no
// segment has such a place, returns the size of one to reserve for the request.
ahead_planner::place_ahead ahead_planner::place_of(const growth_plan& plan,
                                                   std::uint32_t rest_granules) const noexcept {
  check(rest_granules != 0, "a growth adds nothing");
  if (plan.start != region_id::none) {
    const segment& in = state_.segments().at(plan.segment);
    const region_id hole = in.regions().after(plan.start);
    return {plan.segment, hole, 0, in.range(hole).count};
  }
  const place_ahead roomy = find_place(rest_granules + planner_.spare());
  const place_ahead place = roomy.hole != region_id::none ? roomy : find_place(rest_granules);
  if (place.hole != region_id::none) return place;
  return {.count_granules = rest_granules + planner_.spare()};
}

bool ahead_planner::claim_ahead(growth_plan& plan, const place_ahead& place) noexcept {
  if (place.hole == region_id::none) return false;
  plan.segment = place.segment;
  return planner_.take_hole(place.hole, place.lead_granules, plan);
}

result<growth_plan> ahead_planner::plan(const stream_request& wanted,
                                        const growth_effort& effort) noexcept {
  growth_plan made;
  made.request = wanted;
  choose_start_ahead(made);
  const std::uint32_t have = made.start == region_id::none
                                 ? 0
                                 : state_.segments().at(made.segment).range(made.start).count;
  check(have < wanted.count_granules, "a growth continues free memory that is large enough");
  const std::uint32_t rest = sizes_.rounded_to_pages(wanted.count_granules - have);
  const place_ahead place = place_of(made, rest);
  const std::uint64_t room = planner_.headroom(wanted, effort.held_bytes, effort.least_headroom);
  const std::uint32_t step = step_granules(rest, effort);
  if (room >= std::min(rest, step)) {
    made.create_granules = std::min(rest, step);
    made.handle_granules = step;
  } else if (handle_record* const chosen =
                 effort.may_move ? choose_ahead(wanted.stream, rest, place.count_granules)
                                 : nullptr) {
    if (status claimed = planner_.claim_handle(*chosen, made); !claimed) {
      growth_commit(state_).abandon(made, 0);
      return claimed.error();
    }
    check(made.waits.empty(), "a preallocation makes a stream wait");
  }
  made.target_granules = made.create_granules + static_cast<std::uint32_t>(made.moved_granules);
  made.request.count_granules = std::max(have + made.target_granules, 1u);
  const bool is_idle = made.target_granules == 0;
  if (!is_idle && claim_ahead(made, place)) return result<growth_plan>{std::move(made)};
  growth_commit(state_).abandon(made, 0);
  if (is_idle) return result<growth_plan>{std::move(made)};
  return refuse(errc::out_of_addresses, "no hole fits the preallocated request");
}

}  // namespace vmm

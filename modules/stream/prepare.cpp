// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// What is made ready beside requests: a free region for one that a program has announced, and
// addresses. docs/decisions/0006 has the reasons.
//
// A step maps one handle behind free memory of the stream, or undoes one stale mapping, and has the
// lock of growth for that only. No stream is made to wait: what moves is the stream's own, or has
// passed.
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

namespace {

constexpr std::uint32_t handles_max = 64;

}  // namespace

// ---- planning ------------------------------------------------------------------------

// Whether the handle moves without a wait.
bool growth_planner::moves_at_once(const handle_record& h, std::uint32_t stream) const noexcept {
  check(h.is_free, "a handle in use is to be moved");
  const segment& in = state_.segment_of(*h.current);
  return in.all_regions(*h.current, [&](region_id region) {
    const stream_point freed = in.freed_at(region);
    return freed.stream == stream || state_.streams().passed(freed);
  });
}

// The smallest handle of the stream that is all of the rest, else the largest, of the stream first;
// null if all handles together are less than the rest. More than handles_max handles are not
// counted: the largest moves, and the memory that this and later steps collect may be less than the
// request.
handle_record* growth_planner::choose_ahead(std::uint32_t stream,
                                            std::uint32_t rest_granules) const noexcept {
  check(rest_granules != 0, "a handle is chosen for nothing");
  handle_record* const fitting =
      records_.free_of(stream).at_least(rest_granules / sizes_.page_granules, rest_granules);
  if (fitting != nullptr && moves_at_once(*fitting, stream)) return fitting;
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
      if (!moves_at_once(*h, stream)) continue;
      if (best == nullptr) best = h;
      sum_granules += h->count_granules;
      if (sum_granules >= rest_granules) return best;
    }
  }
  return nullptr;
}

// The largest handle of a step: as large as if all that is announced were created at once.
std::uint32_t growth_planner::step_granules(std::uint32_t rest_granules,
                                            const growth_effort& effort) const noexcept {
  check(rest_granules != 0, "no granule is to be created");
  const std::uint32_t largest = handle_size(false, effort.footprint_bytes, rest_granules);
  if (largest != 0) return within_limit(largest, rest_granules, effort);
  const std::uint64_t bytes = std::min(sizes_.rules.handle_bytes, sizes_.segment_bytes);
  check(bytes <= sizes_.segment_bytes, "a handle is larger than a segment");
  return std::max(sizes_.rounded_to_pages(bytes / granule_bytes), sizes_.page_granules);
}

// A hole that takes so much; none where no segment has one.
growth_planner::place_ahead growth_planner::find_place(
    std::uint64_t wanted_granules) const noexcept {
  check(wanted_granules != 0, "a place is looked for that takes nothing");
  const std::uint64_t gap =
      round_up(sizes_.rules.window_gap_bytes / granule_bytes, sizes_.page_granules);
  for (std::uint32_t number = 0; number < state_.segment_count(); ++number) {
    const segment& in = state_.segment_at(number);
    const region_id end = in.regions().last();
    const std::uint64_t lead = in.range(end).offset == 0 ? 0 : gap;
    if (in.kind(end) == hole_kind && in.range(end).count >= lead + wanted_granules)
      return {number, end, static_cast<std::uint32_t>(lead)};
    if (wanted_granules > in.regions().count_granules()) continue;
    const region_id hole =
        in.regions().best_fit(hole_kind, static_cast<std::uint32_t>(wanted_granules));
    if (hole != region_id::none) return {number, hole, 0};
  }
  return {};
}

// Free memory that can go on growing later. Where there is neither that nor a new place for such,
// what just takes the rest: a segment may have little more.
void growth_planner::choose_start_ahead(growth_plan& plan) noexcept {
  choose_start(plan, spare());
  if (plan.start != region_id::none) return;
  const std::uint32_t all = sizes_.rounded_to_pages(plan.request.count_granules);
  check(all != 0, "a growth is for nothing");
  if (find_place(all + spare()).hole == region_id::none) choose_start(plan, 0);
}

// Behind the start, or where the rest has room, so that the next step goes on there.
bool growth_planner::claim_ahead(growth_plan& plan, std::uint32_t rest_granules) noexcept {
  check(plan.target_granules != 0, "a growth adds nothing");
  if (plan.start != region_id::none)
    return take_hole(state_.segment_at(plan.segment).regions().after(plan.start), 0, plan);
  place_ahead place = find_place(rest_granules + spare());
  if (place.hole == region_id::none) place = find_place(rest_granules);
  if (place.hole == region_id::none) return false;
  plan.segment = place.segment;
  return take_hole(place.hole, place.lead_granules, plan);
}

result<growth_plan> growth_planner::plan_ahead(const stream_request& wanted,
                                               const growth_effort& effort) noexcept {
  growth_plan made;
  made.request = wanted;
  choose_start_ahead(made);
  const std::uint32_t have =
      made.start == region_id::none ? 0 : state_.segment_at(made.segment).range(made.start).count;
  check(have < wanted.count_granules, "a growth continues what is large enough");
  const std::uint32_t rest = sizes_.rounded_to_pages(wanted.count_granules - have);
  const std::uint64_t room = headroom(wanted, effort.footprint_bytes);
  const std::uint32_t step = step_granules(rest, effort);
  if (room >= std::min(rest, step)) {
    made.create_granules = std::min(rest, step);
    made.handle_granules = step;
  } else if (handle_record* const chosen =
                 effort.may_move ? choose_ahead(wanted.stream, rest) : nullptr) {
    if (status claimed = claim_handle(*chosen, made); !claimed) {
      abandon(made, 0);
      return claimed.error();
    }
    check(made.waits.empty(), "a stream is made to wait beside its requests");
  }
  made.target_granules = made.create_granules + static_cast<std::uint32_t>(made.moved_granules);
  made.request.count_granules = std::max(have + made.target_granules, 1u);
  const bool is_idle = made.target_granules == 0;
  if (!is_idle && claim_ahead(made, rest)) return result<growth_plan>{std::move(made)};
  abandon(made, 0);
  if (is_idle) return result<growth_plan>{std::move(made)};
  return refuse(errc::out_of_addresses, "no hole takes the request that is made ready for");
}

void growth_planner::commit_ahead(const growth_plan& plan) noexcept {
  check(plan.target_granules != 0, "a step is over that has done nothing");
  commit_free(plan);
  --state_.totals().grown_count;  // of requests
}

}  // namespace vmm

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// What is made ready beside requests: free regions for those that are expected, and addresses.
//
// A step maps one handle behind free memory of the stream, or undoes one stale mapping, and has the
// lock of growth for that only. Nothing waits for work, on the host or on the device: only what is
// the stream's own, or has passed, moves.
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

// ---- planning ------------------------------------------------------------------------

// Whether moving the handle makes no stream wait.
bool growth_planner::moves_at_once(const handle_record& h, std::uint32_t stream) const noexcept {
  check(h.is_free, "a handle in use is to be moved");
  const segment& in = state_.segment_of(*h.current);
  return in.all_regions(*h.current, [&](region_id region) {
    const stream_point freed = in.freed_at(region);
    return freed.stream == stream || state_.streams().passed(freed);
  });
}

// Of one list: the smallest handle that is the whole rest, else the largest; none where all of them
// together are less than the rest.
handle_record* growth_planner::choose_ahead_of(const free_handle_bins& from, std::uint32_t stream,
                                               std::uint32_t rest_granules) const noexcept {
  constexpr int looks_max = 256;
  check(rest_granules != 0, "a handle is chosen for nothing");
  handle_record* const fitting =
      from.at_least(rest_granules / sizes_.page_granules, rest_granules);
  if (fitting != nullptr && moves_at_once(*fitting, stream)) return fitting;
  handle_record* best = nullptr;
  std::uint64_t sum_granules = 0;
  handle_record* next = from.largest();
  for (int looks = 0; next != nullptr && looks < looks_max && sum_granules < rest_granules;
       ++looks, next = from.next_smaller(*next)) {
    if (!moves_at_once(*next, stream)) continue;
    if (best == nullptr) best = next;
    sum_granules += next->count_granules;
  }
  return sum_granules >= rest_granules ? best : nullptr;
}

// The end of a segment, or a hole that takes all that is wanted, so that the next step goes on
// there.
bool growth_planner::claim_ahead(growth_plan& plan, std::uint32_t wanted_granules) noexcept {
  const std::uint32_t wanted = sizes_.rounded_to_pages(wanted_granules);
  const std::uint64_t spare =
      2 * std::max<std::uint64_t>(sizes_.page_granules, sizes_.rules.handle_bytes / granule_bytes);
  check(plan.target_granules != 0, "a growth adds nothing");
  if (plan.start != region_id::none) {
    const segment& in = state_.segment_at(plan.segment);
    const region_id hole = in.regions().after(plan.start);
    if (in.kind(hole) != hole_kind || in.range(hole).count < plan.target_granules) return false;
    return take_hole(hole, 0, plan);
  }
  const std::uint64_t gap =
      round_up(sizes_.rules.window_gap_bytes / granule_bytes, sizes_.page_granules);
  for (std::uint32_t number = 0; number < state_.segment_count(); ++number) {
    const segment& in = state_.segment_at(number);
    plan.segment = number;
    const region_id end = in.regions().last();
    const std::uint64_t lead = in.range(end).offset == 0 ? 0 : gap;
    if (in.kind(end) == hole_kind && in.range(end).count >= lead + wanted + spare)
      return take_hole(end, static_cast<std::uint32_t>(lead), plan);
    const region_id hole =
        in.regions().best_fit(hole_kind, static_cast<std::uint32_t>(wanted + spare));
    if (hole != region_id::none) return take_hole(hole, 0, plan);
  }
  return false;
}

result<growth_plan> growth_planner::plan_ahead(const stream_request& wanted,
                                               const growth_effort& effort,
                                               std::uint64_t room_granules) noexcept {
  growth_plan made;
  made.request = wanted;
  choose_start(made);
  const std::uint32_t have =
      made.start == region_id::none ? 0 : state_.segment_at(made.segment).range(made.start).count;
  check(have < wanted.count_granules, "what is ready is made ready");
  const std::uint32_t rest = sizes_.rounded_to_pages(wanted.count_granules - have);
  const std::uint32_t largest = handle_size(false, effort.footprint_bytes);
  const std::uint32_t one = std::max(largest, sizes_.page_granules);
  if (rest <= room_granules || one <= room_granules) {
    made.create_granules = std::min(rest, one);
    made.handle_granules = one;
  } else {
    handle_record* chosen = nullptr;
    if (effort.may_move)
      chosen = choose_ahead_of(records_.free_of(wanted.stream), wanted.stream, rest);
    if (chosen != nullptr) {
      if (status claimed = claim_handle(*chosen, made); !claimed) {
        abandon(made, 0);
        return claimed.error();
      }
      check(made.waits.empty(), "a stream is made to wait beside its requests");
    }
  }
  made.target_granules = made.create_granules + static_cast<std::uint32_t>(made.moved_granules);
  if (made.target_granules == 0) {
    abandon(made, 0);
    return made;
  }
  made.request.count_granules = have + made.target_granules;
  if (claim_ahead(made, wanted.count_granules - have)) return result<growth_plan>{std::move(made)};
  abandon(made, 0);
  return refuse(errc::out_of_addresses, "no hole takes the target range");
}

void growth_planner::commit_ahead(const growth_plan& plan) noexcept {
  commit_free(plan);
  --state_.totals().grown_count;  // of requests
}

// ---- steps ---------------------------------------------------------------------------

// For its life fronts are lent nothing more: what they have stays theirs.
class lending_stop {
 public:
  explicit lending_stop(guarded<pool_state>& state) noexcept : state_(state) {
    is_stopping_ = state_.with([](auto& held) { return held.pause_lending(); });
  }
  ~lending_stop() {
    if (is_stopping_) state_.with([](auto& held) { held.end_pause(); });
  }
  lending_stop(const lending_stop&) = delete;
  lending_stop& operator=(const lending_stop&) = delete;

 private:
  guarded<pool_state>& state_;
  bool is_stopping_ = false;
};

// Whether the request needs no growth now.
result<bool> stream_pool::is_served(const stream_request& request) {
  std::array<stream_point, 64> others;
  std::size_t count = 0;
  {
    const auto state = state_.lock();
    bool found = false;
    state->for_each_segment([&](const segment& in) {
      found = found || in.find_free(request) != region_id::none;
    });
    if (found) return true;
    count = state->other_stream_candidates(request, others);
  }
  for (const stream_point& point : std::span(others).first(count)) {
    if (status asked = poll_events(point); !asked) return asked.error();
    if (state_.with([&](auto& state) { return state.progress().passed(point); })) return true;
  }
  return false;
}

// True: something was done, and more may be left.
result<bool> stream_pool::prepare_step(const ahead_want& want, prepare_report& report) {
  const growth_turn turn(way_in());
  if (is_suspended()) return memory_suspended;
  const result<bool> served = is_served(want.request);
  if (!served || *served) {
    if (served) report.left_bytes = 0;
    return served ? result<bool>{false} : served;
  }
  const lending_stop stopped(state_);
  growth_effort effort{.may_move = may_alias_};
  effort.footprint_bytes = parts_->memory.statistics().footprint_bytes;
  result<growth_plan> plan = state_.with([&](auto& state) {
    growth_planner planner(state);
    return planner.plan_ahead(want.request, effort,
                              planner.room_for(want.is_expected ? want.request
                                                                : stream_request{1, want.request.stream},
                                               effort.footprint_bytes));
  });
  if (!plan) return plan.error();
  if (plan->target_granules == 0) return false;
  growth_outcome outcome = carry_out(*plan);
  {
    const auto state = state_.lock();
    growth_planner planner(*state);
    if (outcome.done) {
      report.created_bytes += plan->create_granules * granule_bytes;
      report.moved_bytes += plan->moved_granules * granule_bytes;
      planner.commit_ahead(*plan);
      return true;
    }
    planner.abandon(*plan, outcome.standing_count);
  }
  parts_->memory.give_back(outcome.fresh, 0);
  return outcome.done.error();
}

prepare_report stream_pool::prepare() {
  prepare_report report;
  if (!is_ready()) return report;
  static const bool climbs = std::getenv("P_CLIMB") != nullptr;
  static const bool gathers = std::getenv("P_GATHER") != nullptr;
  growth_forecast::list wants;
  std::size_t count = 0;
  std::uint32_t handle = 0;
  {
    const growth_turn turn(way_in());
    if (is_suspended()) return report;
    count = forecast_.largest_of_each(wants);
    const std::uint64_t footprint = parts_->memory.statistics().footprint_bytes;
    handle = state_.with([&](auto& state) { return growth_planner(state).step_granules(footprint); });
  }
  const auto run = [&](const ahead_want& want) {
    for (int i = 0; i < 4096; ++i) {
      const result<bool> more = prepare_step(want, report);
      if (!more) report.failure = more.error();
      if (!more || !*more) return;
    }
  };
  if (climbs && count != 0) run({{handle, wants[0].stream}, false});
  if (gathers)
    for (const stream_request& each : std::span(wants).first(count)) run({each, false});
  return report;
}

prepare_report stream_pool::prepare(std::uint64_t size_bytes, stream_handle stream) {
  prepare_report report;
  if (status ready = set_up(); !ready) {
    report.failure = ready.error();
    return report;
  }
  const result<std::uint32_t> granules = count_granules(size_bytes);
  const result<std::uint32_t> number = granules ? enter_stream(stream) : granules;
  if (!number) {
    report.failure = number.error();
    return report;
  }
  for (int i = 0; i < 4096; ++i) {
    const result<bool> more = prepare_step({{*granules, *number}, true}, report);
    if (!more) report.failure = more.error();
    if (!more || !*more) break;
  }
  return report;
}

}  // namespace vmm

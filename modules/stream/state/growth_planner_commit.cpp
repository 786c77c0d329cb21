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

// ---- carrying out --------------------------------------------------------------------

// The slot of a handle that moves, or of a new one for a fresh piece; an empty one where the host
// has no memory for its records.
mapping_slot growth_planner::make_slot(const growth_plan& plan, handle_record* moved,
                                       physical_memory* fresh) noexcept {
  check((moved == nullptr) != (fresh == nullptr), "a slot is for a handle that moves or a new one");
  check(moved == nullptr || !moved->is_free, "a handle moves that is not claimed");
  handle_record* const of = moved != nullptr ? moved : records_.new_handle(*fresh);
  if (of == nullptr) return {};
  mapping* const where = records_.new_mapping(*of, plan.segment);
  if (where != nullptr) return {where, of, plan.target};
  if (moved == nullptr) records_.drop(*of);
  return {};
}

status growth_planner::prepare(growth_plan& plan, const memory_list& fresh) noexcept {
  segment& in = state_.segment_at(plan.segment);
  const std::size_t count = plan.moved.size() + fresh.size();
  check(count != 0 && plan.slots.empty(), "a growth is prepared twice, or adds nothing");
  check(fresh.empty() == (plan.create_granules == 0), "new memory is not what was planned");
  try {
    plan.slots.reserve(count);
    plan.memories.reserve(count);
  } catch (const std::bad_alloc&) {
    return no_record_memory;
  }
  if (!in.provide(static_cast<std::uint32_t>(count))) return no_record_memory;
  for (std::size_t i = 0; i < count; ++i) {
    const bool moves = i < plan.moved.size();
    const mapping_slot slot = make_slot(plan, moves ? plan.moved[i] : nullptr,
                                        moves ? nullptr : fresh[i - plan.moved.size()]);
    if (slot.where == nullptr) {
      drop_slots(plan, 0);
      return no_record_memory;
    }
    plan.slots.push_back(slot);
    plan.memories.push_back(slot.of->memory);
  }
  check(plan.slots.size() == plan.memories.size(), "a slot has no piece");
  check(plan.slots.size() == count, "a piece has no slot");
  place_slots(plan);
  return {};
}

// Cuts the target at the borders of its slots.
void growth_planner::place_slots(growth_plan& plan) noexcept {
  segment& in = state_.segment_at(plan.segment);
  std::uint32_t offset = in.range(plan.target).offset;
  const std::uint32_t end = in.range(plan.target).end();
  for (std::size_t i = 0; i < plan.slots.size(); ++i) {
    const mapping_slot& slot = plan.slots[i];
    check(in.range(slot.region).offset == offset, "a slot is not where its region begins");
    slot.where->offset = offset;
    offset += slot.where->count_granules;
    if (i + 1 < plan.slots.size())
      plan.slots[i + 1].region = in.cut_claimed(slot.region, slot.where->count_granules);
  }
  check(offset == end, "growth_planner I3: the slots of a growth do not tile its target");
}

// Gives the records of the slots from `from` on back, those of new handles with them.
void growth_planner::drop_slots(growth_plan& plan, std::size_t from) noexcept {
  check(from <= plan.slots.size(), "more slots are kept than there are");
  for (std::size_t i = from; i < plan.slots.size(); ++i) {
    const mapping_slot& slot = plan.slots[i];
    records_.drop(*slot.where);
    if (i >= plan.moved.size()) records_.drop(*slot.of);
  }
  plan.slots.resize(std::min(from, plan.slots.size()));
  plan.memories.resize(plan.slots.size());
}

// A handle that moves leaves a stale mapping behind, whose claimed regions become one.
void growth_planner::put_in_slot(const mapping_slot& slot, bool moves,
                                 const stream_point& now) noexcept {
  handle_record& h = *slot.of;
  pool_statistics& totals = state_.totals();
  check(!h.is_free && moves == (h.current != nullptr),
        "a handle moves that is new, or the reverse");
  check(slot.where->count_granules == h.count_granules, "a handle's mapping has another size");
  if (moves) {
    mapping& old = *h.current;
    segment& in = state_.segment_of(old);
    in.make_stale(in.join_regions(old), old);
    records_.make_stale(old, now);
    ++totals.moved_count;
    totals.moved_bytes += h.memory->size_bytes;
  } else {
    records_.add_handle(h);
    ++totals.made_count;
  }
  h.current = slot.where;
  state_.segment_of(*slot.where).map(*slot.where, records_);
  records_.enter_free(h, now);
}

// Joins the slots' regions, and the start before them, to one unlisted region of own memory.
region_id growth_planner::build_target(const growth_plan& plan) noexcept {
  segment& in = state_.segment_at(plan.segment);
  check(!plan.slots.empty(), "a growth adds nothing");
  check(plan.slots.size() == plan.memories.size(), "a slot has no piece");
  check(plan.slots.size() >= plan.moved.size(), "a handle that moves has no slot");
  const stream_point now = state_.progress().advance(plan.request.stream);
  region_id all = plan.start;
  for (std::size_t i = 0; i < plan.slots.size(); ++i) {
    const mapping_slot& slot = plan.slots[i];
    put_in_slot(slot, i < plan.moved.size(), now);
    if (all == region_id::none) {
      all = slot.region;
    } else {
      in.join_claimed(all, slot.region);
    }
  }
  if (plan.start != region_id::none) reenter_start(plan);
  pool_statistics& totals = state_.totals();
  ++totals.grown_count;
  totals.peak_mapped_bytes =
      std::max(totals.peak_mapped_bytes, records_.handle_granules() * granule_bytes);
  in.set_claim(all, now);
  check(in.range(all).count >= plan.target_granules, "a target has lost a slot");
  return all;
}

void growth_planner::reenter_start(const growth_plan& plan) noexcept {
  segment& in = state_.segment_at(plan.segment);
  check(plan.start != region_id::none,
        "growth_planner I2: a growth that continues nothing gives that back");
  in.for_each_handle(in.range(plan.start), [&](handle_record& h) {
    if (h.current->live_granules == 0 && !h.is_free)
      records_.enter_free(h, now_for(plan.request.stream));
  });
}

result<address> growth_planner::commit(const growth_plan& plan) noexcept {
  segment& in = state_.segment_at(plan.segment);
  const stream_table& streams = state_.streams();
  const region_id all = build_target(plan);
  const stream_point since = in.claimed_at(all);
  check(in.range(all).count >= plan.request.count_granules, "a window is smaller than its request");
  check(since.stream == plan.request.stream, "a target is another stream's");
  if (!in.provide(2) || !in.provide_entry()) {
    in.keep_free(all, since, records_, streams);
    return no_record_memory;
  }
  const granule_range where = in.place_in(all, plan.request);
  const std::uint32_t lead = where.offset - in.range(all).offset;
  check(lead == 0 || plan.request.is_aligned(), "a block that any place takes is put elsewhere");
  const region_id block = lead == 0 ? all : in.cut_claimed(all, lead);
  if (lead != 0) in.keep_free(all, since, records_, streams);
  if (in.range(block).count > where.count)
    in.keep_free(in.cut_claimed(block, where.count), since, records_, streams);
  check(in.range(block) == where, "a block does not have the requested length");
  const address at = in.make_live(block, records_);
  check(at == in.address_of(where.offset), "a growth's block begins elsewhere");
  state_audit(state_).after_growth();
  return at;
}

void growth_planner::commit_free(const growth_plan& plan) noexcept {
  segment& in = state_.segment_at(plan.segment);
  const region_id all = build_target(plan);
  check(!state_.streams().is_capture(plan.request.stream), "first pages are a captured graph's");
  check(in.range(all).count >= plan.request.count_granules, "the first pages are too few");
  in.return_claim(all, state_.streams());
  state_audit(state_).after_growth();
}

// What the driver mapped and would not undo: new handles of it are given up, their pieces are their
// owner's to keep.
void growth_planner::leave_standing(const growth_plan& plan, std::size_t standing_count) noexcept {
  check(standing_count <= plan.slots.size(), "more is mapped than was planned");
  for (std::size_t i = 0; i < standing_count; ++i) {
    segment& in = state_.segment_at(plan.segment);
    const mapping_slot& slot = plan.slots[i];
    if (i >= plan.moved.size()) {
      check(slot.of->current == nullptr, "a new handle is given up that is mapped elsewhere");
      records_.drop(*slot.of);
      slot.where->of = nullptr;
    }
    in.map(*slot.where, records_);
    in.make_stale(slot.region, *slot.where);
    records_.make_stale(*slot.where, {plan.request.stream, 0});
  }
}

void growth_planner::abandon(growth_plan& plan, std::size_t standing_count) noexcept {
  leave_standing(plan, standing_count);
  for (std::size_t i = standing_count; i < plan.slots.size(); ++i)
    state_.segment_at(plan.segment).make_hole(plan.slots[i].region);
  if (plan.slots.empty() && plan.target != region_id::none)
    state_.segment_at(plan.segment).make_hole(plan.target);
  drop_slots(plan, standing_count);
  for (handle_record* h : plan.moved) idle_handles(state_).return_handle(*h);
  if (plan.start != region_id::none) {
    reenter_start(plan);
    state_.segment_at(plan.segment).return_claim(plan.start, state_.streams());
  }
  check(plan.slots.size() == standing_count, "a slot that is not mapped is kept");
  plan = {};
}

// ---- ahead of requests -----------------------------------------------------------------
//
// A free region for a request that a program has announced, and addresses: decision 0006 has the
// reasons. A step maps one handle behind free memory of the stream, or undoes one stale mapping,
// and holds the lock of growth for that only. It makes no stream wait: it moves memory of the
// stream, or memory whose work has finished.

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
// none that the place does not take; null if all handles together are less than the rest. More than
// handles_max handles are not counted: the largest moves, and the memory that this and later steps
// collect may be less than the request.
handle_record* growth_planner::choose_ahead(std::uint32_t stream, std::uint32_t rest_granules,
                                            std::uint64_t place_granules) const noexcept {
  check(place_granules >= rest_granules, "a handle is chosen for a place that is too small");
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
void growth_planner::choose_start_ahead(growth_plan& plan) noexcept {
  choose_start(plan, spare());
  if (plan.start != region_id::none) return;
  const std::uint32_t all = sizes_.rounded_to_pages(plan.request.count_granules);
  check(all != 0, "a growth is for nothing");
  if (find_place(all + spare()).hole == region_id::none) choose_start(plan, 0);
}

// Behind the start, or where the rest has room, so that the next step goes on there. Where no
// segment has such a place, one that is reserved for the request has the size returned.
growth_planner::place_ahead growth_planner::place_of(const growth_plan& plan,
                                                     std::uint32_t rest_granules) const noexcept {
  check(rest_granules != 0, "a growth adds nothing");
  if (plan.start != region_id::none) {
    const segment& in = state_.segment_at(plan.segment);
    const region_id hole = in.regions().after(plan.start);
    return {plan.segment, hole, 0, in.range(hole).count};
  }
  const place_ahead roomy = find_place(rest_granules + spare());
  const place_ahead place = roomy.hole != region_id::none ? roomy : find_place(rest_granules);
  if (place.hole != region_id::none) return place;
  return {.count_granules = rest_granules + spare()};
}

bool growth_planner::claim_ahead(growth_plan& plan, const place_ahead& place) noexcept {
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
  const place_ahead place = place_of(made, rest);
  const std::uint64_t room = headroom(wanted, effort.footprint_bytes);
  const std::uint32_t step = step_granules(rest, effort);
  if (room >= std::min(rest, step)) {
    made.create_granules = std::min(rest, step);
    made.handle_granules = step;
  } else if (handle_record* const chosen =
                 effort.may_move ? choose_ahead(wanted.stream, rest, place.count_granules)
                                 : nullptr) {
    if (status claimed = claim_handle(*chosen, made); !claimed) {
      abandon(made, 0);
      return claimed.error();
    }
    check(made.waits.empty(), "a stream is made to wait beside its requests");
  }
  made.target_granules = made.create_granules + static_cast<std::uint32_t>(made.moved_granules);
  made.request.count_granules = std::max(have + made.target_granules, 1u);
  const bool is_idle = made.target_granules == 0;
  if (!is_idle && claim_ahead(made, place)) return result<growth_plan>{std::move(made)};
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

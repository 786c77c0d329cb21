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

// The slot of a handle that moves, or of a new one for a fresh piece; an empty one where the host
// has no memory for its records.
mapping_slot growth_commit::make_slot(const growth_plan& plan, handle_record* moved,
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

status growth_commit::prepare(growth_plan& plan, const memory_list& fresh) noexcept {
  segment& in = state_.segments().at(plan.segment);
  const std::size_t count = plan.moved.size() + fresh.size();
  check(count != 0 && plan.slots.empty(), "a growth is committed twice, or adds nothing");
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
void growth_commit::place_slots(growth_plan& plan) noexcept {
  segment& in = state_.segments().at(plan.segment);
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
void growth_commit::drop_slots(growth_plan& plan, std::size_t from) noexcept {
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
void growth_commit::put_in_slot(const mapping_slot& slot, bool moves,
                                const stream_point& now) noexcept {
  handle_record& h = *slot.of;
  pool_statistics& totals = state_.totals();
  check(!h.is_free && moves == (h.current != nullptr),
        "a handle moves that is new, or the reverse");
  check(slot.where->count_granules == h.count_granules, "a handle's mapping has another size");
  if (moves) {
    mapping& old = *h.current;
    segment& in = state_.segments().of(old);
    in.make_stale(in.join_regions(old), old);
    records_.make_stale(old, now);
    ++totals.moved_count;
    totals.moved_bytes += h.memory->size_bytes;
  } else {
    records_.add_handle(h);
    h.made_at = now.epoch;
    ++totals.created_count;
  }
  h.current = slot.where;
  state_.segments().of(*slot.where).map(*slot.where, records_);
  records_.enter_free(h, now);
}

// Joins the slots' regions, and the start before them, to one unlisted region of own memory.
region_id growth_commit::build_target(const growth_plan& plan) noexcept {
  segment& in = state_.segments().at(plan.segment);
  check(!plan.slots.empty(), "a growth adds nothing");
  check(plan.slots.size() == plan.memories.size(), "a slot has no piece");
  check(plan.slots.size() >= plan.moved.size(), "a handle that moves has no slot");
  const stream_point now = state_.progress().advance(plan.request.stream);
  if (plan.start != region_id::none) keep_unused(plan, now);
  region_id all = plan.start;
  for (std::size_t i = 0; i < plan.slots.size(); ++i) {
    const mapping_slot& slot = plan.slots[i];
    put_in_slot(slot, i < plan.moved.size(), now);
    if (i >= plan.moved.size()) slot.of->made_for = plan.made_for;
    if (all == region_id::none) {
      all = slot.region;
    } else {
      in.join_claimed(all, slot.region);
    }
  }
  if (plan.start != region_id::none) reenter_start(plan);
  pool_statistics& totals = state_.totals();
  totals.peak_mapped_bytes =
      std::max(totals.peak_mapped_bytes, records_.handle_granules() * granule_bytes);
  in.set_claim(all, now);
  check(in.range(all).count >= plan.target_granules, "a target has lost a slot");
  return all;
}

// What nothing has used in the start, whose regions are as young as the growth from now on.
void growth_commit::keep_unused(const growth_plan& plan, const stream_point& now) noexcept {
  const segment& in = state_.segments().at(plan.segment);
  const granule_range start = in.range(plan.start);
  const std::uint64_t freed_at = in.claimed_at(plan.start).epoch;
  check(freed_at < now.epoch, "memory is free later than now");
  in.for_each_handle(start, [&](handle_record& h) {
    const bool is_inside = h.current->offset >= start.offset && h.current->end() <= start.end();
    if (is_inside && freed_at <= h.made_at) h.made_at = now.epoch;
  });
}

void growth_commit::reenter_start(const growth_plan& plan) noexcept {
  segment& in = state_.segments().at(plan.segment);
  check(plan.start != region_id::none, "growth_planner I2: a growth without a start returns one");
  in.for_each_handle(in.range(plan.start), [&](handle_record& h) {
    if (h.current->live_granules == 0 && !h.is_free)
      records_.enter_free(h, state_.now_for(plan.request.stream));
  });
}

address_range growth_commit::block_of(const growth_plan& plan) const noexcept {
  const segment& in = state_.segments().at(plan.segment);
  check(!plan.slots.empty(), "a growth adds nothing");
  const std::uint32_t begin = plan.start != region_id::none ? in.range(plan.start).offset
                                                            : plan.slots.front().where->offset;
  const granule_range where = in.place_in(begin, plan.request);
  check(where.end() <= plan.slots.back().where->end(), "a block reaches beyond its growth");
  return {in.address_of(where.offset), where.count * granule_bytes};
}

// An observer of a growth's block reads statistics before the growth ends.
void growth_commit::count_as_live(const growth_plan& plan, bool is_counted) noexcept {
  pool_statistics& totals = state_.totals();
  check(is_counted == (totals.live_count == 0), "a growth's block counts twice");
  totals.live_count = is_counted ? 1 : 0;
  totals.live_bytes = is_counted ? plan.request.block_bytes() : 0;
  totals.mapped_bytes = is_counted ? plan.create_granules * granule_bytes : 0;
}

// A program that grows moves little of what it will have: only moves at a size that it has had
// before are charged.
void growth_commit::charge_moves(const growth_plan& plan) noexcept {
  check(plan.moved.empty() == (plan.moved_granules == 0), "the count of moving granules is wrong");
  const std::uint64_t live = records_.live_granules() + plan.request.count_granules;
  if (live < records_.peak_live_granules())
    state_.moves().add(plan.moved.size(), plan.piece_ns, event_count_of(state_));
}

result<address> growth_commit::commit(const growth_plan& plan) noexcept {
  segment& in = state_.segments().at(plan.segment);
  const stream_table& streams = state_.streams();
  charge_moves(plan);
  const region_id all = build_target(plan);
  const stream_point since = in.claimed_at(all);
  ++state_.totals().slow_count;
  check(in.range(all).count >= plan.request.count_granules,
        "a target range is smaller than its request");
  check(since.stream == plan.request.stream, "a target is another stream's");
  if (!in.provide(2) || !in.provide_entry()) {
    // Its fill may run: it has been used since it was mapped.
    in.keep_free(all, state_.progress().advance(since.stream), records_, streams);
    return no_record_memory;
  }
  const granule_range where = in.place_in(in.range(all).offset, plan.request);
  const std::uint32_t lead = where.offset - in.range(all).offset;
  check(lead == 0 || plan.request.is_aligned(), "an unaligned block is put at a chosen place");
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

void growth_commit::commit_free(const growth_plan& plan) noexcept {
  segment& in = state_.segments().at(plan.segment);
  const region_id all = build_target(plan);
  check(!state_.streams().is_capture(plan.request.stream), "first pages are a captured graph's");
  check(in.range(all).count >= plan.request.count_granules, "the first pages are too few");
  in.return_claim(all, state_.streams());
  state_audit(state_).after_growth();
}

// What the driver mapped and would not undo: new handles of it are given up, their pieces are their
// owner's to keep.
void growth_commit::leave_standing(const growth_plan& plan, std::size_t standing_count) noexcept {
  check(standing_count <= plan.slots.size(), "more is mapped than was planned");
  for (std::size_t i = 0; i < standing_count; ++i) {
    segment& in = state_.segments().at(plan.segment);
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

void growth_commit::abandon(growth_plan& plan, std::size_t standing_count) noexcept {
  leave_standing(plan, standing_count);
  for (std::size_t i = standing_count; i < plan.slots.size(); ++i)
    state_.segments().at(plan.segment).make_hole(plan.slots[i].region);
  if (plan.slots.empty() && plan.target != region_id::none)
    state_.segments().at(plan.segment).make_hole(plan.target);
  drop_slots(plan, standing_count);
  for (handle_record* h : plan.moved) idle_handles(state_).return_handle(*h);
  if (plan.start != region_id::none) {
    reenter_start(plan);
    state_.segments().at(plan.segment).return_claim(plan.start, state_.streams());
  }
  check(plan.slots.size() == standing_count, "a slot that is not mapped is kept");
  plan = {};
}

void growth_commit::note_mapped(const growth_plan& plan) noexcept {
  for (const mapping_slot& slot : plan.slots) {
    check(slot.where != nullptr && slot.of != nullptr, "a mapping has no handle");
    const mapping* const before = slot.of->current;
    const bool moves = before != nullptr && before != slot.where;
    const address from = moves ? state_.segments().address_of(*before) : address{};
    state_.events().note({history_kind::mapped,
                          {state_.segments().address_of(*slot.where), slot.of->memory->size_bytes},
                          stream_handle::default_stream,
                          from.value});
  }
}

}  // namespace vmm

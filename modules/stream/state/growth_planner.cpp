// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module vmm.stream;

import vmm.backend;
import vmm.base;
import vmm.physical;
import vmm.std;
import vmm.timeline;
import vmm.va;

namespace vmm {

namespace {

constexpr error no_hole = refuse(errc::out_of_addresses, "no hole fits the target range");

// Free regions that a growth examines in vain for a whole handle.
constexpr std::uint32_t vain_looks_max = 64;

// The free handle at the end of a free region; null if none lies in it as a whole.
[[nodiscard]] handle_record* last_free_in(const segment& in, region_id region) noexcept {
  const granule_range where = in.range(region);
  const mapping* m = in.mapping_at(where.end() - 1);
  if (m->end() > where.end() && m->offset > where.offset) m = in.mapping_at(m->offset - 1);
  const bool is_inside = m->offset >= where.offset && m->end() <= where.end();
  return is_inside && m->of->is_free ? m->of : nullptr;
}

// The request raises the peak of live bytes: a growing program will request more soon.
[[nodiscard]] bool is_climbing(const mappings& records, const stream_request& request) noexcept {
  check(request.count_granules != 0, "a growth is for nothing");
  return records.live_granules() + request.count_granules >= records.peak_live_granules();
}

// The largest handle of a small pool, by the memory held and to be created.
[[nodiscard]] std::uint64_t small_pool_size(const pool_policy& policy, bool scattered,
                                            std::uint64_t held_bytes) noexcept {
  constexpr std::uint64_t least_bytes = std::uint64_t{8} << 20;
  constexpr std::uint64_t share = 12;
  constexpr std::uint64_t scattered_share = 32;
  if (held_bytes >= policy.tuning.small_pool_bytes)
    return std::numeric_limits<std::uint64_t>::max();
  const std::uint64_t part_bytes = held_bytes / (scattered ? scattered_share : share);
  check(part_bytes <= policy.tuning.small_pool_bytes, "a part of a small pool is larger than it");
  return std::max(least_bytes, part_bytes);
}

}  // namespace

// ---- how much ------------------------------------------------------------------------

bool growth_planner::has_headroom(const stream_request& request,
                                  std::uint64_t held_bytes) const noexcept {
  check(request.count_granules != 0, "a growth is for nothing");
  return headroom(request, held_bytes) >= request.count_granules;
}

std::uint64_t growth_planner::headroom(const stream_request& request, std::uint64_t held_bytes,
                                       double least) const noexcept {
  const std::uint64_t live = live_granules_of(state_);  // a preparation leaves arenas open
  const std::uint64_t peak =
      std::max(records_.peak_live_granules(), live + request.count_granules) * granule_bytes;
  check(peak >= live * granule_bytes, "the peak is below the live bytes");
  check(sizes_.policy.headroom >= 0, "the headroom is negative");
  const std::uint64_t budget_ns = sizes_.policy.tuning.move_budget_ns;
  const double raise = budget_ns == 0 ? 0 : state_.moves().raise(event_count_of(state_), budget_ns);
  const double limit = std::max(sizes_.policy.headroom + raise, least) * static_cast<double>(peak) +
                       static_cast<double>(sizes_.policy.tuning.slack_bytes) -
                       static_cast<double>(held_bytes);
  constexpr double limit_max = 9e18;  // fits an integer
  return limit <= 0 ? 0 : static_cast<std::uint64_t>(std::min(limit, limit_max)) / granule_bytes;
}

bool growth_planner::may_move(const stream_request& request,
                              const growth_effort& effort) const noexcept {
  check(request.count_granules != 0, "a growth is for nothing");
  if (!effort.may_move) return false;
  if (effort.use_all_free || sizes_.policy.tuning.min_move_share == 0) return true;
  if (request.size_bytes() >= sizes_.policy.tuning.min_move_bytes) return true;
  return std::uint64_t{request.count_granules} * sizes_.policy.tuning.min_move_share >=
         records_.peak_live_granules();
}

// More than the rest is optional: a target is at most as long as its segment, and nothing is added
// if memory or addresses are short.
std::uint32_t growth_planner::create_size(const growth_plan& plan, std::uint32_t rest_granules,
                                          std::uint64_t room_granules,
                                          const growth_effort& effort) const noexcept {
  check(rest_granules % sizes_.page_granules == 0, "a part of a page is to be created");
  constexpr std::uint64_t climb_part = 3;
  const std::uint64_t share = sizes_.policy.tuning.growth_share;
  const bool has_room = room_granules > rest_granules;
  if (rest_granules == 0 || share == 0 || effort.use_all_free || effort.needed_only)
    return rest_granules;
  if (!has_room && !is_climbing(records_, plan.request)) return rest_granules;
  const std::uint64_t footprint_granules = effort.held_bytes / granule_bytes;
  std::uint64_t wish = footprint_granules / (has_room ? share : share * climb_part);
  if (has_room) wish = std::min(wish, room_granules);
  const std::uint64_t takes =
      sizes_.segment_granules() - std::min(plan.moved_granules, sizes_.segment_granules());
  wish = std::min({wish, sizes_.policy.handle_bytes_max / granule_bytes, takes});
  wish = wish / sizes_.page_granules * sizes_.page_granules;
  return std::max(rest_granules, static_cast<std::uint32_t>(wish));
}

// The largest new handle; 0: the policy's. Memory stranded in a handle is expensive where little is
// live or free memory is scattered; elsewhere driver calls are.
std::uint32_t growth_planner::handle_size(bool scattered, std::uint64_t held_bytes,
                                          std::uint32_t create_granules) const noexcept {
  const pool_policy& policy = sizes_.policy;
  std::uint64_t bytes = 0;
  if (scattered && policy.tuning.small_handle_bytes != 0) {
    bytes = std::min(policy.tuning.small_handle_bytes, policy.handle_bytes_max);
  } else if (policy.tuning.growth_share != 0) {
    const std::uint64_t half_bytes = policy.handle_bytes_max / 2;
    const std::uint64_t share_bytes = held_bytes / (std::uint64_t{2} * policy.tuning.growth_share);
    bytes = scattered ? half_bytes : std::clamp(share_bytes, half_bytes, policy.handle_bytes_max);
  }
  const std::uint64_t reached_bytes = held_bytes + create_granules * granule_bytes;
  bytes = std::min(bytes, small_pool_size(policy, scattered, reached_bytes));
  check(bytes <= policy.handle_bytes_max, "a handle is larger than the policy's largest");
  return sizes_.rounded_to_pages(std::min(bytes, sizes_.segment_bytes) / granule_bytes);
}

// Near a limit, stranded memory of partly live handles decides what still fits: a handle is at most
// the remaining room, times the remaining share of the limit, over room_parts. A growth that
// exceeds the room is refused at its first handle, at its usual size.
std::uint32_t growth_planner::within_limit(std::uint32_t handle_granules,
                                           std::uint32_t create_granules,
                                           const growth_effort& effort) const noexcept {
  constexpr double room_parts = 128;
  const std::uint64_t limit_bytes = effort.limit_bytes;
  const std::uint64_t room_bytes = limit_bytes - std::min(limit_bytes, effort.held_bytes);
  check(room_bytes <= limit_bytes, "the remaining room exceeds the limit");
  if (limit_bytes == 0 || handle_granules == 0 || create_granules * granule_bytes > room_bytes)
    return handle_granules;
  const auto room = static_cast<double>(room_bytes);
  const double most_bytes = room * room / static_cast<double>(limit_bytes) / room_parts;
  const auto most = static_cast<std::uint64_t>(most_bytes) / granule_bytes;
  if (most >= handle_granules) return handle_granules;
  return std::min(handle_granules, sizes_.rounded_to_pages(std::max<std::uint64_t>(1, most)));
}

// ---- planning ------------------------------------------------------------------------

result<growth_plan> growth_planner::plan(const stream_request& request,
                                         const growth_effort& effort) noexcept {
  check(request.count_granules != 0, "a growth is for nothing");
  for (const bool in_place : {true, false}) {
    growth_plan made;
    made.request = request;
    const bool may_start =
        in_place && !effort.dedicated && !state_.streams().is_capture(request.stream);
    if (may_start && sizes_.policy.tuning.smallest_hole) choose_start_at_hole(made);
    if (may_start && !sizes_.policy.tuning.smallest_hole) choose_start(made, spare());
    const bool has_start = made.start != region_id::none;
    // A target that continues nothing begins with a unit.
    if (!has_start && request.spare_granules < sizes_.unit_granules)
      made.request = request.placed();
    if (status collected = collect(effort, made); !collected) {
      growth_commit(state_).abandon(made, 0);
      return collected.error();
    }
    check(effort.may_move || made.moved.empty(), "memory that must not move moves");
    if (claim_target(made)) {
      check(made.moved_granules + made.create_granules == made.target_granules,
            "a target's size is not that of its parts");
      return result<growth_plan>{std::move(made)};
    }
    growth_commit(state_).abandon(made, 0);
    if (!has_start) break;
  }
  return no_hole;
}

// Free memory at the end of a window is where it can grow in place: the longest such stretch saves
// the most. The hole behind it has `more_granules` more than the target needs.
void growth_planner::choose_start(growth_plan& plan, std::uint64_t more_granules) noexcept {
  check(plan.start == region_id::none && plan.moved.empty(), "a start is chosen late");
  constexpr int looks_max = 64;
  const std::uint32_t count = plan.request.count_granules;
  std::uint32_t best = 0;
  int looks = 0;
  for (const mapping* m = records_.last_end(); m != nullptr && looks < looks_max;
       m = records_.end_before(*m), ++looks) {
    const segment& in = state_.segments().of(*m);
    const region_id hole = in.region_at_unit(m->end());
    check(m->is_end, "a mapping in the list of window ends is not one");
    if (in.kind(hole) != hole_kind) continue;
    const region_id tail = in.regions().before(hole);
    if (in.kind(tail) != kind_of(plan.request.stream)) continue;
    const std::uint32_t size = in.range(tail).count;
    if (size >= count || size <= best) continue;
    if (in.range(hole).count < sizes_.rounded_to_pages(count - size) + more_granules) continue;
    best = size;
    plan.start = tail;
    plan.segment = m->segment;
  }
  claim_start(plan);
}

void growth_planner::choose_start_at_hole(growth_plan& plan) noexcept {
  check(plan.start == region_id::none && plan.moved.empty(), "a start is chosen late");
  const std::uint32_t wanted = sizes_.rounded_to_pages(plan.request.count_granules);
  for (std::uint32_t number = 0; number < state_.segments().count(); ++number) {
    const segment& in = state_.segments().at(number);
    const region_id hole = in.regions().best_fit(hole_kind, wanted);
    if (hole == region_id::none) continue;
    const region_id tail = in.regions().before(hole);
    check(in.range(hole).count >= wanted, "a hole is smaller than requested");
    if (in.kind(tail) != kind_of(plan.request.stream)) return;
    if (in.range(tail).count >= plan.request.count_granules) return;
    plan.start = tail;
    plan.segment = number;
    break;
  }
  claim_start(plan);
}

// The start's own handles stay where they are: they are not to be moved by the same plan.
void growth_planner::claim_start(growth_plan& plan) noexcept {
  if (plan.start == region_id::none) return;
  segment& in = state_.segments().at(plan.segment);
  check(in.kind(plan.start) == kind_of(plan.request.stream), "a growth continues another stream's");
  in.claim_free(plan.start);
  in.for_each_handle(in.range(plan.start), [this](handle_record& h) {
    if (h.is_free) records_.leave_free(h);
  });
}

status growth_planner::collect(const growth_effort& effort, growth_plan& plan) noexcept {
  const std::uint32_t have = plan.start == region_id::none
                                 ? 0
                                 : state_.segments().at(plan.segment).range(plan.start).count;
  check(have < plan.request.count_granules, "a growth continues free memory that is large enough");
  std::uint32_t rest = sizes_.rounded_to_pages(plan.request.count_granules - have);
  const std::uint64_t room = effort.use_all_free ? 0 : headroom(plan.request, effort.held_bytes);
  const bool move = may_move(plan.request, effort);
  handle_search search;
  while (rest > room && move) {
    handle_record* const chosen = choose_handle(plan, rest, effort, search);
    if (chosen == nullptr || overshoots(*chosen, plan)) break;
    if (list_with_batch(*chosen, effort)) continue;
    const status claimed = sizes_.policy.tuning.oldest_first
                               ? claim_region_of(*chosen, effort, plan)
                               : claim_handle(*chosen, plan);
    if (!claimed) return claimed;
    const std::uint64_t sum = plan.moved_granules + have;
    rest = sum >= plan.request.count_granules
               ? 0
               : sizes_.rounded_to_pages(plan.request.count_granules - sum);
  }
  check(rest % sizes_.page_granules == 0, "a part of a page is to be created");
  check(plan.moved.empty() == (plan.moved_granules == 0), "the count of moving granules is wrong");
  plan.create_granules = create_size(plan, rest, room, effort);
  const bool scattered = rest > room || !plan.moved.empty();
  const std::uint32_t largest = handle_size(scattered, effort.held_bytes, plan.create_granules);
  plan.handle_granules = within_limit(largest, plan.create_granules, effort);
  return {};
}

// Whether moving memory of that record would make the request's stream wait for all work of the
// device. It may only where memory is short, and after the event of that work was recorded.
bool growth_planner::waits_for_all(const stream_point& freed,
                                   const growth_effort& effort) const noexcept {
  const stream_table& streams = state_.streams();
  if (!streams.is_batch(freed.stream) || streams.passed(freed)) return false;
  return !effort.use_all_free || streams.phase_of(freed.stream) == stream_phase::unrecorded;
}

// A handle of which a part has to wait for all work is listed with that part until it has passed;
// it was listed with the part freed last.
bool growth_planner::list_with_batch(handle_record& h, const growth_effort& effort) noexcept {
  const segment& in = state_.segments().of(*h.current);
  check(h.is_free, "a handle in use is held back");
  std::uint32_t batch = pool_state::no_stream;
  in.for_each_region(*h.current, [&](region_id region) {
    const stream_point freed = in.freed_at(region);
    if (waits_for_all(freed, effort)) batch = freed.stream;
  });
  if (batch == pool_state::no_stream) return false;
  if (h.stream != batch) {
    records_.leave_free(h);
    records_.enter_free(h, state_.now_for(batch));
  }
  return true;
}

// The stream, of those considered, with the oldest free handle; null if none has one.
const free_handle_bins* growth_planner::longest_free(std::uint32_t stream,
                                                     const growth_effort& effort) const noexcept {
  const handle_record* oldest = nullptr;
  const stream_table& streams = state_.streams();
  const std::uint32_t count =
      effort.use_all_free ? streams.count()
                          : std::min(streams.count(), pool_state::streams_looked_at_max + 1);
  for (std::uint32_t step = 0; step < count; ++step) {
    const std::uint32_t number = streams.other(stream, step);
    if (number == stream) continue;
    const handle_record* const candidate = records_.free_of(number).oldest();
    if (candidate == nullptr) continue;
    check(candidate->stream == number, "a free handle is in another stream's list");
    if (waits_for_all({number, streams.progress().last_epoch(number)}, effort)) continue;
    if (oldest == nullptr || candidate->free_since < oldest->free_since) oldest = candidate;
  }
  return oldest == nullptr ? nullptr : &records_.free_of(oldest->stream);
}

// The handle at the end of the smallest free region of the stream that has one as a whole. Moves
// leave long regions long. Null if the search has taken too long, or none is all the stream's.
handle_record* growth_planner::in_smallest_region(std::uint32_t stream,
                                                  handle_search& search) const noexcept {
  if (search.least_granules == 0 || search.stream != stream) {
    search = {
        .stream = stream, .least_granules = sizes_.page_granules, .looks_left = vain_looks_max};
  } else if (search.last != region_id::none) {
    const segment& in = state_.segments().at(search.segment);
    const bool is_left = in.kind(search.last) == kind_of(stream);
    handle_record* const next = is_left ? last_free_in(in, search.last) : nullptr;
    if (next != nullptr) return next;
    search.last = region_id::none;
  }
  for (; search.looks_left != 0; --search.looks_left) {
    std::uint32_t least = std::numeric_limits<std::uint32_t>::max();
    for (std::uint32_t number = 0; number < state_.segments().count(); ++number) {
      const segment& in = state_.segments().at(number);
      const region_id found = in.regions().best_fit(kind_of(stream), search.least_granules);
      if (found == region_id::none || in.range(found).count >= least) continue;
      least = in.range(found).count;
      search.segment = number;
      search.last = found;
    }
    if (search.last == region_id::none) return nullptr;
    if (handle_record* const h = last_free_in(state_.segments().at(search.segment), search.last))
      return h;
    search.last = region_id::none;
    search.least_granules = least + 1;
  }
  return nullptr;
}

// Own stream first.
handle_record* growth_planner::choose_handle(const growth_plan& plan, std::uint32_t rest_granules,
                                             const growth_effort& effort,
                                             handle_search& search) const noexcept {
  check(rest_granules != 0, "a handle is chosen without need");
  const free_handle_bins* from = &records_.free_of(plan.request.stream);
  if (from->empty()) from = longest_free(plan.request.stream, effort);
  if (from == nullptr) return nullptr;
  check(from->empty() == (from->oldest() == nullptr), "a list is empty and has a handle");
  if (sizes_.policy.tuning.oldest_first) return from->oldest();
  if (handle_record* const first = in_smallest_region(from->largest()->stream, search))
    return first;
  handle_record* const fitting =
      from->at_least(rest_granules / sizes_.page_granules, rest_granules);
  check(fitting == nullptr || fitting->is_free, "a handle in use is chosen");
  return fitting != nullptr ? fitting : from->largest();
}

// Whether this handle, with the memory claimed along with it, would make the target longer than a
// segment.
bool growth_planner::overshoots(const handle_record& next, const growth_plan& plan) const noexcept {
  std::uint64_t more = next.count_granules;
  if (sizes_.policy.tuning.oldest_first) {
    const segment& in = state_.segments().of(*next.current);
    more = in.range(in.region_at_unit(next.current->offset)).count;
  }
  check(next.is_free && next.current->live_granules == 0, "a handle in use is chosen");
  check(more != 0, "a handle has no granule");
  return plan.moved_granules + more > sizes_.segment_granules();
}

// The free handles of the free region that `first` begins in, in address order.
status growth_planner::claim_region_of(const handle_record& first, const growth_effort& effort,
                                       growth_plan& plan) noexcept {
  const segment& in = state_.segments().of(*first.current);
  const granule_range region = in.range(in.region_at_unit(first.current->offset));
  check(region.offset <= first.current->offset && region.end() > first.current->offset,
        "a handle does not lie in its region");
  for (std::uint32_t at = region.offset; at < region.end();) {
    const mapping& next = *in.mapping_at(at);
    check(at < next.end(), "a mapping's address is not the one in the table");
    at = next.end();
    if (next.of == nullptr || next.of->current != &next || !next.of->is_free) continue;
    if (list_with_batch(*next.of, effort)) continue;
    if (status claimed = claim_handle(*next.of, plan); !claimed) return claimed;
  }
  return {};
}

status growth_planner::claim_handle(handle_record& h, growth_plan& plan) noexcept {
  if (status room = reserve_more(plan.moved, 1); !room) return room;
  if (status room = reserve_more(plan.waits, state_.streams().count()); !room) return room;
  if (status claimed = idle_handles(state_).claim_handle(h); !claimed) return claimed;
  const segment& in = state_.segments().of(*h.current);
  in.for_each_region(*h.current, [&](region_id region) { add_wait(plan, in.claimed_at(region)); });
  plan.moved.push_back(&h);
  plan.moved_granules += h.count_granules;
  check(!h.is_free, "I1: a handle that is claimed may be claimed again");
  check(plan.waits.size() <= state_.streams().count(), "I4: one stream is waited for twice");
  return {};
}

void growth_planner::add_wait(growth_plan& plan, const stream_point& point) const noexcept {
  check(point.stream < state_.streams().count(), "a claimed region has no stream");
  if (point.stream == plan.request.stream || state_.streams().passed(point)) return;
  for (stream_point& known : plan.waits) {
    if (known.stream != point.stream) continue;
    known.epoch = std::max(known.epoch, point.epoch);
    return;
  }
  check(plan.waits.size() < plan.waits.capacity(), "a wait has no room");
  plan.waits.push_back(point);
}

// ---- targets -------------------------------------------------------------------------

bool growth_planner::claim_target(growth_plan& plan) noexcept {
  const std::uint64_t size = plan.create_granules + plan.moved_granules;
  if (size > sizes_.segment_granules()) return false;
  check(size != 0, "a growth adds nothing");
  check(size % sizes_.page_granules == 0, "a growth ends inside a page");
  plan.target_granules = static_cast<std::uint32_t>(size);
  if (plan.start == region_id::none) return claim_target_anywhere(plan);
  const segment& in = state_.segments().at(plan.segment);
  const region_id hole = in.regions().after(plan.start);
  if (in.kind(hole) != hole_kind) return false;
  return take_hole(hole, 0, plan);
}

bool growth_planner::claim_target_anywhere(growth_plan& plan) noexcept {
  const std::uint32_t size = plan.target_granules;
  const std::uint32_t wanted =
      sizes_.policy.tuning.smallest_hole
          ? std::max(size, sizes_.rounded_to_pages(plan.request.count_granules))
          : size;
  check(plan.start == region_id::none, "a target does not continue its free memory");
  const std::uint64_t gap =
      round_up(sizes_.policy.tuning.growth_gap_bytes / granule_bytes, sizes_.page_granules);
  for (std::uint32_t number = 0; number < state_.segments().count(); ++number) {
    const segment& in = state_.segments().at(number);
    plan.segment = number;
    if (!sizes_.policy.tuning.smallest_hole) {
      const region_id end = in.regions().last();
      const std::uint64_t lead = in.range(end).offset == 0 ? 0 : gap;
      if (in.kind(end) == hole_kind && in.range(end).count >= lead + size)
        return take_hole(end, static_cast<std::uint32_t>(lead), plan);
    }
    const region_id hole = in.regions().best_fit(hole_kind, wanted);
    if (hole != region_id::none) return take_hole(hole, 0, plan);
  }
  return false;
}

bool growth_planner::take_hole(region_id hole, std::uint32_t lead_granules,
                               growth_plan& plan) noexcept {
  segment& in = state_.segments().at(plan.segment);
  plan.target = in.claim_hole(hole, {lead_granules, plan.target_granules}, plan.request.stream);
  if (plan.target == region_id::none) return false;
  plan.at = in.address_of(in.range(plan.target).offset);
  check(in.mapping_at(in.range(plan.target).offset) == nullptr, "a target is mapped already");
  check(plan.start == region_id::none || in.range(plan.start).end() == in.range(plan.target).offset,
        "a target does not continue its start");
  return true;
}

}  // namespace vmm

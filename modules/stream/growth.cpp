// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// What needs the driver: memory and addresses are claimed here, and settled or given back after it.
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <utility>
#include <vector>

module vmm.stream;

import vmm.backend;
import vmm.intrusive;
import vmm.physical;
import vmm.timeline;
import vmm.va;

namespace vmm {

namespace {

constexpr error no_host_memory =
    refuse(errc::out_of_host_memory, "no host memory is left for the pool's records");
constexpr error no_hole = refuse(errc::out_of_addresses, "no hole takes the window");

}  // namespace

// ---- segments and views --------------------------------------------------------------

status pool_book::add_segment(const extent& where) noexcept {
  check(where.range.size_bytes <= segment_bytes_, "a segment is larger than a segment can be");
  const auto count = static_cast<std::uint32_t>(where.range.size_bytes / granule_bytes);
  const std::uint32_t slots = rules_.lowest_fit_bytes == 0 ? 0 : lowest_granules_;
  result<region_map> regions = region_map::create({count, unit_granules_, slots});
  if (!regions) return regions.error();
  for (std::uint32_t kinds = 0; kinds < stream_count() + first_stream_kind - 1; ++kinds) {
    if (const auto kind = regions->add_kind(); !kind) return kind.error();
  }
  const std::uint32_t pages = count / unit_granules_;
  std::unique_ptr<view* [], free_memory> table {
    static_cast<view**>(std::calloc(pages, sizeof(view*)))
  };
  if (table == nullptr) return no_host_memory;
  if (status room = reserve_more(segments_, 1); !room) return no_host_memory;
  try {
    segments_.push_back(std::make_unique<segment>(
        segment{where, std::move(*regions), {}, {}, std::move(table), pages}));
  } catch (const std::bad_alloc&) {
    return no_host_memory;
  }
  if (first_segment_ == nullptr) {
    first_segment_ = segments_.back().get();
    first_range_ = where.range;
  }
  region_map& map = segments_.back()->regions;
  map.list(map.first(), hole_kind);
  return {};
}

view* pool_book::view_at(const segment& in, std::uint32_t unit) const noexcept {
  return unit < in.page_count ? in.pages[unit] : nullptr;
}

void pool_book::set_end(view& v, bool is_end) noexcept {
  if (v.is_end == is_end) return;
  v.is_end = is_end;
  if (is_end) {
    ends_.push_back(v);
  } else {
    ends_.remove(v);
  }
}

void pool_book::map_view(view& v) noexcept {
  segment& in = *segments_[v.segment];
  const std::uint32_t unit = v.offset >> unit_shift_;
  const std::uint32_t count = v.count_granules >> unit_shift_;
  for (std::uint32_t i = 0; i < count; ++i) {
    check(in.pages[unit + i] == nullptr, "a view is put where another one is");
    in.pages[unit + i] = &v;
  }
  if (unit != 0 && in.pages[unit - 1] != nullptr) set_end(*in.pages[unit - 1], false);
  set_end(v, unit + count < in.page_count && in.pages[unit + count] == nullptr);
}

void pool_book::unmap_view(view& v) noexcept {
  segment& in = *segments_[v.segment];
  const std::uint32_t unit = v.offset >> unit_shift_;
  const std::uint32_t count = v.count_granules >> unit_shift_;
  std::fill_n(in.pages.get() + unit, count, nullptr);
  set_end(v, false);
  if (unit != 0 && in.pages[unit - 1] != nullptr) set_end(*in.pages[unit - 1], true);
}

address pool_book::address_of(const view& v) const noexcept {
  return address_in(*segments_[v.segment], v.offset);
}

// ---- planning ------------------------------------------------------------------------

std::uint32_t pool_book::rounded_to_pages(std::uint64_t granules) const noexcept {
  return static_cast<std::uint32_t>(round_up(granules, page_granules_));
}

std::uint64_t pool_book::headroom(const book_request& request,
                                  std::uint64_t held_bytes) const noexcept {
  const std::uint64_t peak =
      std::max(peak_live_granules_, live_granules_ + request.count_granules) * granule_bytes;
  const double limit = rules_.headroom * static_cast<double>(peak) +
                       static_cast<double>(rules_.slack_bytes) - static_cast<double>(held_bytes);
  constexpr double limit_max = 9e18;  // an integer holds that
  return limit <= 0 ? 0 : static_cast<std::uint64_t>(std::min(limit, limit_max)) / granule_bytes;
}

bool pool_book::may_move(const book_request& request, const growth_effort& effort) const noexcept {
  if (!effort.move) return false;
  if (effort.all_whole || rules_.harvest_share == 0) return true;
  if (request.count_granules * granule_bytes >= rules_.harvest_bytes) return true;
  return std::uint64_t{request.count_granules} * rules_.harvest_share >= peak_live_granules_;
}

status pool_book::plan(const book_request& request, const growth_effort& effort,
                       growth_plan& out) noexcept {
  for (const bool in_place : {true, false}) {
    out.clear();
    out.request = request;
    const bool may_start = in_place && phase_of(request.stream) != stream_phase::capture;
    if (may_start && rules_.smallest_hole) choose_start_at_hole(out);
    if (may_start && !rules_.smallest_hole) choose_start(out);
    const bool has_start = out.start != region_id::none;
    if (status gathered = gather(effort, out); !gathered) {
      abandon(out, 0);
      return gathered;
    }
    if (claim_window(out)) return {};
    abandon(out, 0);
    if (!has_start) break;
  }
  return no_hole;
}

// Free memory at the end of a window is where it can grow in place: the longest such stretch saves
// the most.
void pool_book::choose_start(growth_plan& plan) noexcept {
  constexpr int looks_max = 64;
  const std::uint32_t count = plan.request.count_granules;
  const std::uint64_t spare =
      2 * std::max<std::uint64_t>(page_granules_, rules_.handle_bytes / granule_bytes);
  std::uint32_t best = 0;
  int looks = 0;
  for (const view* v = ends_.last(); v != nullptr && looks < looks_max;
       v = ends_.before(*v), ++looks) {
    const region_map& regions = segments_[v->segment]->regions;
    const region_id hole = regions.find_page((v->offset + v->count_granules) >> unit_shift_);
    if (regions.kind(hole) != hole_kind) continue;
    const region_id tail = regions.before(hole);
    if (regions.kind(tail) != kind_of(plan.request.stream)) continue;
    const std::uint32_t size = regions.where(tail).count;
    if (size >= count || size <= best) continue;
    if (regions.where(hole).count < rounded_to_pages(count - size) + spare) continue;
    best = size;
    plan.start = tail;
    plan.segment = v->segment;
  }
  claim_start(plan);
}

void pool_book::choose_start_at_hole(growth_plan& plan) noexcept {
  const std::uint32_t wanted = rounded_to_pages(plan.request.count_granules);
  for (std::uint32_t number = 0; number < segments_.size(); ++number) {
    const region_map& regions = segments_[number]->regions;
    const region_id hole = regions.best_fit(hole_kind, wanted);
    if (hole == region_id::none) continue;
    const region_id tail = regions.before(hole);
    if (regions.kind(tail) != kind_of(plan.request.stream)) return;
    if (regions.where(tail).count >= plan.request.count_granules) return;
    plan.start = tail;
    plan.segment = number;
    break;
  }
  claim_start(plan);
}

// The start's own slabs stay where they are: they are not to be moved by the same plan.
void pool_book::claim_start(growth_plan& plan) noexcept {
  if (plan.start == region_id::none) return;
  segment& in = *segments_[plan.segment];
  in.regions.unlist(plan.start);
  in.regions.set_note(plan.start, {in.regions.word(plan.start), claim_tag(plan.request.stream)});
  for_each_slab(in, in.regions.where(plan.start), [this](slab& s) {
    if (s.is_whole) leave_whole(s);
  });
}

template <class Visitor>
void pool_book::for_each_slab(segment& in, granule_range what, Visitor&& visitor) noexcept {
  std::uint32_t at = what.offset;
  while (at < what.end()) {
    const view& v = *in.pages[at >> unit_shift_];
    at = v.offset + v.count_granules;
    if (v.of != nullptr && v.of->current == &v) visitor(*v.of);
  }
}

status pool_book::gather(const growth_effort& effort, growth_plan& plan) noexcept {
  const std::uint32_t have =
      plan.start == region_id::none ? 0 : segments_[plan.segment]->regions.where(plan.start).count;
  std::uint32_t rest = rounded_to_pages(plan.request.count_granules - have);
  const std::uint64_t room = effort.all_whole ? 0 : headroom(plan.request, effort.held_bytes);
  const bool move = may_move(plan.request, effort);
  const std::uint32_t streams_max = effort.all_whole ? stream_count() : streams_looked_at_max + 1;
  while (rest > room && move) {
    slab* const chosen = choose_slab(plan.request.stream, rest, streams_max);
    if (chosen == nullptr || overshoots(*chosen, plan)) break;
    const status claimed =
        rules_.oldest_first ? claim_region_of(*chosen, plan) : claim_slab(*chosen, plan);
    if (!claimed) return claimed;
    const std::uint64_t sum = plan.moved_granules + have;
    rest = sum >= plan.request.count_granules ? 0
                                              : rounded_to_pages(plan.request.count_granules - sum);
  }
  plan.create_granules = rest == 0 ? 0 : create_size(rest, room, effort.held_bytes);
  const bool scattered = rest > room || !plan.moved.empty();
  if (scattered && rules_.fine_handle_bytes != 0 && may_spend())
    plan.handle_granules =
        rounded_to_pages(std::min(rules_.fine_handle_bytes, segment_bytes_) / granule_bytes);
  return {};
}

// Prices of an H200's driver: a handle created, mapped and opened; one mapped again, opened, and
// unmapped some time later.
bool pool_book::may_spend() const noexcept {
  constexpr std::uint64_t make_ns = 26'000;
  constexpr std::uint64_t move_ns = 31'000;
  const std::uint64_t spent_ns = numbers_.made_count * make_ns + numbers_.moved_count * move_ns;
  const std::uint64_t events = 2 * progress_.clock();  // each free had its allocation
  return spent_ns < events * rules_.spend_ns;
}

std::uint32_t pool_book::create_size(std::uint32_t rest_granules, std::uint64_t room_granules,
                                     std::uint64_t held_bytes) const noexcept {
  if (rules_.growth_share == 0 || room_granules <= rest_granules) return rest_granules;
  std::uint64_t wish = held_bytes / granule_bytes / rules_.growth_share;
  wish = std::min({wish, rules_.handle_bytes / granule_bytes, room_granules});
  wish = wish / page_granules_ * page_granules_;
  return std::max(rest_granules, static_cast<std::uint32_t>(wish));
}

// Own stream first; then the stream whose oldest whole slab is the oldest. [G3]
slab* pool_book::choose_slab(std::uint32_t stream, std::uint32_t rest_granules,
                             std::uint32_t streams_max) noexcept {
  const slab_bins* from = &memory_of_[stream]->whole;
  if (from->empty()) {
    const slab* oldest = nullptr;
    const std::uint32_t streams = std::min(stream_count(), streams_max);
    for (std::uint32_t step = 0; step < streams; ++step) {
      const std::uint32_t number = other_stream(stream, step);
      if (number == stream) continue;
      const slab_bins& other = memory_of_[number]->whole;
      const slab* const candidate = other.oldest();
      if (candidate == nullptr) continue;
      if (oldest != nullptr && oldest->whole_since <= candidate->whole_since) continue;
      oldest = candidate;
      from = &other;
    }
    if (oldest == nullptr) return nullptr;
  }
  if (rules_.oldest_first) return from->oldest();
  slab* const fitting = from->at_least(rest_granules / page_granules_, rest_granules);
  return fitting != nullptr ? fitting : from->largest();
}

// Whether the window would be longer than a segment with what is claimed along with this slab.
bool pool_book::overshoots(const slab& next, const growth_plan& plan) const noexcept {
  std::uint64_t more = next.count_granules;
  if (rules_.oldest_first) {
    const view& v = *next.current;
    const region_map& regions = segments_[v.segment]->regions;
    more = regions.where(regions.find_page(v.offset >> unit_shift_)).count;
  }
  return plan.moved_granules + more > segment_bytes_ / granule_bytes;
}

// The whole slabs of the free region that `first` lies in, in address order.
status pool_book::claim_region_of(slab& first, growth_plan& plan) noexcept {
  const view& v = *first.current;
  segment& in = *segments_[v.segment];
  const granule_range region = in.regions.where(in.regions.find_page(v.offset >> unit_shift_));
  std::uint32_t at = region.offset;
  while (at < region.end()) {
    const view& next = *in.pages[at >> unit_shift_];
    at = next.offset + next.count_granules;
    if (next.of == nullptr || next.of->current != &next || !next.of->is_whole) continue;
    if (status claimed = claim_slab(*next.of, plan); !claimed) return claimed;
  }
  return {};
}

// Makes the borders of `what` borders of regions. All of it is free or claimed.
status pool_book::cut_out(segment& in, granule_range what) noexcept {
  region_map& regions = in.regions;
  if (!regions.provide(2)) return no_host_memory;
  for (const std::uint32_t border : {what.offset, what.end()}) {
    if (border >= regions.count_granules()) continue;
    const region_id around = regions.find_page(border >> unit_shift_);
    const std::uint32_t left = border - regions.where(around).offset;
    if (left == 0) continue;
    const region_kind kind = regions.kind(around);
    check(is_free_kind(kind), "a whole slab's border lies in a region that is not free");
    regions.unlist(around);
    const region_id right = regions.cut(around, left);
    regions.list(around, kind);
    regions.list(right, kind);
  }
  return {};
}

status pool_book::claim_slab(slab& s, growth_plan& plan) noexcept {
  if (status room = reserve_more(plan.moved, 1); !room) return room;
  if (status room = reserve_more(plan.waits, stream_count()); !room) return room;
  if (status freed = detach_regions(s); !freed) return freed;
  const view& v = *s.current;
  const region_map& regions = segments_[v.segment]->regions;
  for (region_id r = regions.find_page(v.offset >> unit_shift_);
       r != region_id::none && regions.where(r).offset < v.offset + v.count_granules;
       r = regions.after(r)) {
    add_wait(plan, {regions.tag(r) >> 8, regions.word(r)});
  }
  plan.moved.push_back(&s);
  plan.moved_granules += s.count_granules;
  return {};
}

// Takes the regions of a whole slab off their lists; each remembers whose it was.
status pool_book::detach_regions(slab& s) noexcept {
  const view& v = *s.current;
  segment& in = *segments_[v.segment];
  region_map& regions = in.regions;
  if (status cut = cut_out(in, {v.offset, v.count_granules}); !cut) return cut;
  leave_whole(s);
  for (region_id r = regions.find_page(v.offset >> unit_shift_);
       r != region_id::none && regions.where(r).offset < v.offset + v.count_granules;
       r = regions.after(r)) {
    const std::uint32_t owner = stream_of(regions.kind(r));
    regions.unlist(r);
    regions.set_note(r, {regions.word(r), claim_tag(owner)});
  }
  return {};
}

void pool_book::attach_regions(slab& s) noexcept {
  const view& v = *s.current;
  segment& in = *segments_[v.segment];
  region_map& regions = in.regions;
  const std::uint32_t end = v.offset + v.count_granules;
  region_id r = regions.find_page(v.offset >> unit_shift_);
  while (r != region_id::none && regions.where(r).offset < end) {
    const region_id next = regions.after(r);
    const bool more = next != region_id::none && regions.where(next).offset < end;
    make_free(in, r, {regions.tag(r) >> 8, regions.word(r)});
    if (!more) break;
    r = next;
  }
  enter_whole(s, s.stream);
}

void pool_book::add_wait(growth_plan& plan, const stream_point& point) noexcept {
  if (point.stream == plan.request.stream || passed(point)) return;
  for (stream_point& known : plan.waits) {
    if (known.stream != point.stream) continue;
    known.epoch = std::max(known.epoch, point.epoch);
    return;
  }
  plan.waits.push_back(point);
}

// ---- windows -------------------------------------------------------------------------

bool pool_book::claim_window(growth_plan& plan) noexcept {
  const std::uint64_t size = plan.create_granules + plan.moved_granules;
  if (size > segment_bytes_ / granule_bytes) return false;
  plan.window_granules = static_cast<std::uint32_t>(size);
  if (plan.start == region_id::none) return claim_window_anywhere(plan);
  segment& in = *segments_[plan.segment];
  const region_id hole = in.regions.after(plan.start);
  if (in.regions.kind(hole) != hole_kind) return false;
  return take_hole(hole, 0, plan);
}

bool pool_book::claim_window_anywhere(growth_plan& plan) noexcept {
  const std::uint32_t size = plan.window_granules;
  const std::uint32_t wanted =
      rules_.smallest_hole ? std::max(size, rounded_to_pages(plan.request.count_granules)) : size;
  const std::uint64_t gap = round_up(rules_.window_gap_bytes / granule_bytes, page_granules_);
  for (std::uint32_t number = 0; number < segments_.size(); ++number) {
    const region_map& regions = segments_[number]->regions;
    plan.segment = number;
    if (!rules_.smallest_hole) {
      const region_id end = regions.last();
      const std::uint64_t lead = regions.where(end).offset == 0 ? 0 : gap;
      if (regions.kind(end) == hole_kind && regions.where(end).count >= lead + size)
        return take_hole(end, static_cast<std::uint32_t>(lead), plan);
    }
    const region_id hole = regions.best_fit(hole_kind, wanted);
    if (hole != region_id::none) return take_hole(hole, 0, plan);
  }
  return false;
}

bool pool_book::take_hole(region_id hole, std::uint32_t lead_granules, growth_plan& plan) noexcept {
  region_map& regions = segments_[plan.segment]->regions;
  if (regions.where(hole).count < std::uint64_t{lead_granules} + plan.window_granules) return false;
  if (!regions.provide(2)) return false;
  regions.unlist(hole);
  region_id window = hole;
  if (lead_granules != 0) {
    window = regions.cut(hole, lead_granules);
    regions.list(hole, hole_kind);
  }
  if (regions.where(window).count > plan.window_granules) {
    const region_id rest = regions.cut(window, plan.window_granules);
    regions.list(rest, hole_kind);
  }
  regions.set_note(window, {0, claim_tag(plan.request.stream)});
  plan.window = window;
  plan.at = address_in(*segments_[plan.segment], regions.where(window).offset);
  return true;
}

// ---- carrying out --------------------------------------------------------------------

status pool_book::prepare(growth_plan& plan, const piece_list& fresh) noexcept {
  segment& in = *segments_[plan.segment];
  const std::size_t count = plan.moved.size() + fresh.size();
  try {
    plan.places.reserve(count);
    plan.pieces.reserve(count);
  } catch (const std::bad_alloc&) {
    return no_host_memory;
  }
  if (!in.regions.provide(static_cast<std::uint32_t>(count))) return no_host_memory;
  for (std::size_t i = 0; i < count; ++i) {
    const bool moves = i < plan.moved.size();
    window_place place{views_.acquire(), moves ? plan.moved[i] : slabs_.acquire(), plan.window};
    if (place.where == nullptr || place.of == nullptr) {
      if (place.where != nullptr) views_.release(*place.where);
      if (place.of != nullptr && !moves) slabs_.release(*place.of);
      drop_places(plan, 0);
      return no_host_memory;
    }
    if (!moves) reset_slab(*place.of, *fresh[i - plan.moved.size()]);
    reset_view(*place.where, *place.of, plan);
    plan.places.push_back(place);
    plan.pieces.push_back(place.of->memory);
  }
  std::uint32_t offset = in.regions.where(plan.window).offset;
  for (std::size_t i = 0; i < count; ++i) {
    window_place& place = plan.places[i];
    place.where->offset = offset;
    offset += place.where->count_granules;
    if (i + 1 < count)
      plan.places[i + 1].region = in.regions.cut(place.region, place.where->count_granules);
  }
  return {};
}

void pool_book::reset_slab(slab& fresh, piece& memory) noexcept {
  fresh = slab{};
  fresh.memory = &memory;
  fresh.count_granules = static_cast<std::uint32_t>(memory.size_bytes / granule_bytes);
  check(fresh.count_granules % unit_granules_ == 0, "a piece is no multiple of the granularity");
  fresh.count_pages = fresh.count_granules / page_granules_;
}

void pool_book::reset_view(view& fresh, slab& of, const growth_plan& plan) noexcept {
  fresh = view{};
  fresh.memory = of.memory;
  fresh.of = &of;
  fresh.segment = plan.segment;
  fresh.count_granules = of.count_granules;
}

// Gives the records of the places from `from` on back, those of fresh slabs with them.
void pool_book::drop_places(growth_plan& plan, std::size_t from) noexcept {
  for (std::size_t i = from; i < plan.places.size(); ++i) {
    const window_place& place = plan.places[i];
    views_.release(*place.where);
    if (i >= plan.moved.size()) slabs_.release(*place.of);
  }
  plan.places.resize(std::min(from, plan.places.size()));
  plan.pieces.resize(plan.places.size());
}

// Joins the places' regions, and the start before them, to one unlisted region of own memory.
region_id pool_book::build_window(growth_plan& plan) noexcept {
  segment& in = *segments_[plan.segment];
  const stream_point now = progress_.advance(plan.request.stream);
  region_id whole = plan.start;
  for (std::size_t i = 0; i < plan.places.size(); ++i) {
    const window_place& place = plan.places[i];
    slab& s = *place.of;
    if (i < plan.moved.size()) {
      retire_view(*s.current, now);
      ++numbers_.moved_count;
      numbers_.moved_bytes += s.memory->size_bytes;
    } else {
      ++slab_count_;
      ++numbers_.made_count;
      slab_granules_ += s.count_granules;
    }
    s.current = place.where;
    map_view(*place.where);
    enter_whole(s, plan.request.stream);
    if (whole == region_id::none) {
      whole = place.region;
    } else {
      in.regions.join(whole, place.region);
    }
  }
  if (plan.start != region_id::none) reenter_start(plan);
  ++numbers_.grown_count;
  numbers_.peak_mapped_bytes = std::max(numbers_.peak_mapped_bytes, slab_granules_ * granule_bytes);
  in.regions.set_note(whole, {now.epoch, claim_tag(plan.request.stream)});
  return whole;
}

void pool_book::reenter_start(growth_plan& plan) noexcept {
  segment& in = *segments_[plan.segment];
  for_each_slab(in, in.regions.where(plan.start), [&](slab& s) {
    if (s.current->live_granules == 0 && !s.is_whole) enter_whole(s, plan.request.stream);
  });
}

result<address> pool_book::commit(growth_plan& plan) noexcept {
  segment& in = *segments_[plan.segment];
  const region_id whole = build_window(plan);
  const std::uint32_t count = plan.request.count_granules;
  const stream_point since{plan.request.stream, in.regions.word(whole)};
  check(in.regions.where(whole).count >= count, "a window is smaller than its request");
  if (!in.regions.provide(1) || !in.starts.reserve()) {
    keep_free(in, whole, since);
    return no_host_memory;
  }
  if (in.regions.where(whole).count > count) keep_free(in, in.regions.cut(whole, count), since);
  return make_live(in, whole);
}

void pool_book::commit_free(growth_plan& plan) noexcept {
  segment& in = *segments_[plan.segment];
  const region_id whole = build_window(plan);
  make_free(in, whole, {plan.request.stream, in.regions.word(whole)});
}

void pool_book::abandon(growth_plan& plan, std::size_t standing_count) noexcept {
  check(standing_count <= plan.places.size(), "more is mapped than was planned");
  for (std::size_t i = 0; i < standing_count; ++i) {
    window_place& place = plan.places[i];
    if (i >= plan.moved.size()) {
      slabs_.release(*place.of);
      place.where->of = nullptr;
    }
    map_view(*place.where);
    make_stale(*place.where, place.region, {plan.request.stream, 0});
  }
  for (std::size_t i = standing_count; i < plan.places.size(); ++i)
    make_hole(*segments_[plan.segment], plan.places[i].region);
  if (plan.places.empty() && plan.window != region_id::none)
    make_hole(*segments_[plan.segment], plan.window);
  drop_places(plan, standing_count);
  for (slab* s : plan.moved) attach_regions(*s);
  if (plan.start != region_id::none) {
    segment& in = *segments_[plan.segment];
    reenter_start(plan);
    make_free(in, plan.start, {plan.request.stream, in.regions.word(plan.start)});
  }
  plan.clear();
}

// ---- zombies and trim ----------------------------------------------------------------

void pool_book::make_stale(view& v, region_id region, const stream_point& last_use) noexcept {
  region_map& regions = segments_[v.segment]->regions;
  regions.set_note(region, {reinterpret_cast<std::uint64_t>(&v),
                            static_cast<std::uint32_t>(region_state::stale)});
  v.is_stale = true;
  v.last_use = last_use;
  stale_.push_back(v);
  if (v.of == nullptr) return;
  v.before_of_slab = nullptr;
  v.next_of_slab = v.of->stale_views;
  if (v.next_of_slab != nullptr) v.next_of_slab->before_of_slab = &v;
  v.of->stale_views = &v;
}

// The claimed regions of a view whose memory moves on become one stale region.
void pool_book::retire_view(view& old, const stream_point& last_use) noexcept {
  region_map& regions = segments_[old.segment]->regions;
  const region_id kept = regions.find_page(old.offset >> unit_shift_);
  while (regions.where(kept).count < old.count_granules) regions.join(kept, regions.after(kept));
  check(regions.where(kept) == granule_range{old.offset, old.count_granules},
        "a view's regions do not tile it");
  make_stale(old, kept, last_use);
}

void pool_book::forget_stale(view& gone) noexcept {
  stale_.remove(gone);
  if (gone.of == nullptr) return;
  view* const before = gone.before_of_slab;
  (before != nullptr ? before->next_of_slab : gone.of->stale_views) = gone.next_of_slab;
  if (gone.next_of_slab != nullptr) gone.next_of_slab->before_of_slab = before;
}

void pool_book::zombie_unmapped(view& gone) noexcept {
  segment& in = *segments_[gone.segment];
  forget_stale(gone);
  const region_id region = in.regions.find_page(gone.offset >> unit_shift_);
  unmap_view(gone);
  make_hole(in, region);
  views_.release(gone);
}

void pool_book::zombie_stays(view& kept) noexcept {
  stale_.remove(kept);
  stale_.push_back(kept);
}

bool pool_book::is_idle(const slab& s) const noexcept {
  const view& v = *s.current;
  const region_map& regions = segments_[v.segment]->regions;
  for (region_id r = regions.find_page(v.offset >> unit_shift_);
       r != region_id::none && regions.where(r).offset < v.offset + v.count_granules;
       r = regions.after(r)) {
    if (!passed({stream_of(regions.kind(r)), regions.word(r)})) return false;
  }
  for (const view* old = s.stale_views; old != nullptr; old = old->next_of_slab) {
    if (!passed(old->last_use)) return false;
  }
  return true;
}

void pool_book::begin_walk(std::uint64_t size_bytes) noexcept {
  walk_ = {.bytes_left = size_bytes, .looks_left = slab_count_ + stream_count()};
}

result<bool> pool_book::claim_idle(std::size_t looks_max, std::vector<slab*>& out) noexcept {
  for (std::size_t looks = 0; looks < looks_max; ++looks) {
    if (walk_.bytes_left == 0 || walk_.looks_left == 0) return false;
    --walk_.looks_left;
    if (walk_.next == nullptr || !walk_.next->is_whole) {
      if (walk_.streams_begun == stream_count()) return false;
      walk_.next = memory_of_[walk_.streams_begun++]->whole.largest();
      continue;
    }
    slab& s = *walk_.next;
    walk_.next = memory_of_[s.stream]->whole.next_smaller(s, s.count_pages);
    if (!is_idle(s)) continue;
    if (status room = reserve_more(out, 1); !room) return room.error();
    if (status detached = detach_regions(s); !detached) return detached.error();
    out.push_back(&s);
    walk_.bytes_left -= std::min(walk_.bytes_left, s.memory->size_bytes);
  }
  return true;
}

piece& pool_book::slab_unmapped(slab& gone) noexcept {
  check(gone.stale_views == nullptr, "a slab goes while a zombie of it is mapped");
  view& v = *gone.current;
  segment& in = *segments_[v.segment];
  const region_id region = in.regions.find_page(v.offset >> unit_shift_);
  while (in.regions.where(region).count < v.count_granules)
    in.regions.join(region, in.regions.after(region));
  unmap_view(v);
  make_hole(in, region);
  views_.release(v);
  piece& memory = *gone.memory;
  --slab_count_;
  slab_granules_ -= gone.count_granules;
  slabs_.release(gone);
  return memory;
}

void pool_book::slab_stays(slab& kept) noexcept {
  kept.current->is_announced = false;
  attach_regions(kept);
}

}  // namespace vmm

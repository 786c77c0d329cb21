// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Operations on several owners, except allocate and free (fast_path.cpp), growth
// (growth_planner.cpp) and pins (locked.cpp).
module vmm.stream;

import vmm.backend;
import vmm.intrusive;
import vmm.physical;
import vmm.std;
import vmm.support;
import vmm.timeline;
import vmm.va;

namespace vmm {

bool pool_state::is_on_two_lines() const noexcept {
  constexpr std::uintptr_t line_bytes = 64;
  const auto line_of = [](const void* at) {
    return reinterpret_cast<std::uintptr_t>(at) / line_bytes;
  };
  const bool first = line_of(&lock_) == line_of(&looks_closer_) &&
                     line_of(&looks_closer_) == line_of(&plain_granules_max_) &&
                     line_of(&looks_closer_) == line_of(mappings_.counts());
  return first && line_of(&streams_) == line_of(streams_.progress().last_read());
}

// ---- segments and streams ------------------------------------------------------------

status pool_state::add_segment(const extent& where) noexcept {
  check(where.range.size_bytes <= sizes_.segment_bytes, "a segment is larger than it may be");
  result<std::unique_ptr<segment>> made = segment::create(where, sizes_, streams_.count());
  if (!made) return made.error();
  if (status room = reserve_more(segments_, 1); !room) return no_record_memory;
  segments_.push_back(std::move(*made));
  if (first_segment_ == nullptr) {
    first_segment_ = segments_.back().get();
    first_range_ = where.range;
  }
  check(!(segments_.size() > 1 && first_range_.contains(where.range.base)),
        "two segments have the same addresses");
  check(first_segment_ == segments_.front().get(), "the first segment is not the one looked at");
  return {};
}

address pool_state::address_of(const mapping& m) const noexcept {
  const address at = segment_of(m).address_of(m.offset);
  check(segment_of(m).where().range.contains(at), "a mapping lies outside of its segment");
  return at;
}

result<segment::found_block> pool_state::find_block(address at) noexcept {
  segment* const in = segment_around(at);
  if (in == nullptr)
    return refuse(errc::unknown_address, "no block of this pool begins or began here");
  if (status recalled = front_lending(*this).recall(*in, at - in->where().range.base); !recalled)
    return recalled.error();
  check(in->where().range.contains(at), "an address is looked for in another segment");
  const result<segment::found_block> found = in->find_block(at - in->where().range.base);
  check(!found || found->in == in, "a block is found in another segment");
  return found;
}

// What the record needs in every segment comes first: adding it to the streams is the last step.
result<std::uint32_t> pool_state::add_record(stream_handle stream, stream_phase phase) noexcept {
  const std::uint32_t number = streams_.next_number();
  if (status room = streams_.provide(); !room) return room.error();
  if (status room = mappings_.provide_stream(number); !room) return room.error();
  for (const auto& in : segments_) {
    if (status room = in->provide_streams(number + 1); !room) return room.error();
  }
  const result<std::uint32_t> added = streams_.add(stream, phase);
  check(!added || *added == number, "I3: a stream has another record than room was made for");
  check(!added || mappings_.free_of(*added).empty(), "a new record has memory");
  return added;
}

status pool_state::provide_shared() noexcept {
  if (streams_.shared() != no_stream) return {};
  const result<std::uint32_t> made =
      add_record(stream_handle::default_stream, stream_phase::shared);
  if (!made) return made.error();
  streams_.set_shared(*made);
  check(streams_.passed({*made, progress().clock()}), "what is shared has to be waited for");
  return {};
}

bool pool_state::move_free(std::uint32_t from, const stream_point& to) noexcept {
  check(from != to.stream, "free memory is moved to where it is");
  check(from < streams_.count() && to.stream < streams_.count(),
        "free memory is moved from or to no record");
  std::uint32_t left = regions_moved_max;
  for (const auto& in : segments_) {
    while (in->regions().listed_count(kind_of(from)) != 0) {
      if (left-- == 0) return false;
      const region_id region = in->regions().best_fit(kind_of(from), 1);
      const granule_range where = in->range(region);
      in->claim_free(region);
      if (streams_.is_capture(from)) in->release_range(where, now_for(to.stream), mappings_);
      in->make_free(region, to, streams_);
    }
  }
  const free_handle_bins& free = mappings_.free_of(from);
  for (handle_record* h = free.largest(); h != nullptr; h = free.largest()) {
    check(h->stream == from, "a free handle is in another stream's list");
    mappings_.leave_free(*h);
    mappings_.enter_free(*h, now_for(to.stream));
  }
  return true;
}

void pool_state::recycle(std::uint32_t stream) noexcept {
  check(mappings_.free_of(stream).empty(), "I4: a record in use is given back");
  check(stream != streams_.open_batch() && stream != streams_.closed_batch(),
        "a batch goes before its mark");
  debug_check(
      [&] {
        for (const auto& in : segments_) {
          if (in->regions().listed_count(kind_of(stream)) != 0) return false;
        }
        return true;
      },
      "I4: a record is given back while memory is free under it");
  streams_.recycle(stream);
}

void pool_state::clear_retired(std::uint32_t stream) noexcept {
  check(streams_.phase_of(stream) == stream_phase::retired,
        "a stream is cleared that is not forgotten");
  check(streams_.shared() != no_stream, "what a forgotten stream left has nowhere to go");
  if (!move_free(stream, {streams_.shared(), 0}) || streams_.has_locked(stream)) return;
  recycle(stream);
}

bool pool_state::has_nothing_to_tidy() const noexcept {
  check(!wants_front_ || may_have_fronts_, "a pool without arenas needs one");
  return surplus_stale_count() == 0 && !streams_.has_unmarked() &&
         streams_.progress().retired_count() == 0;
}

// ---- arenas --------------------------------------------------------------------------

void pool_state::note_wait() noexcept {
  if (!may_have_fronts_ || wants_front_ || ++wait_count_ < waits_wanted_) return;
  check(wait_count_ == waits_wanted_, "a wait was not counted");
  wait_count_ = 0;
  wants_front_ = true;
  look_closer();
}

// If an arena does not help, it is tried ever more seldom.
void pool_state::end_want(bool made) noexcept {
  constexpr std::uint32_t waits_wanted_max = 1u << 20;
  if (!made && wants_front_) waits_wanted_ = std::min(waits_wanted_ * 2, waits_wanted_max);
  check(waits_wanted_ != 0 && waits_wanted_ <= waits_wanted_max, "arenas are never tried again");
  wants_front_ = false;
  look_closer();
}

status pool_state::add_front(stream_handle stream, std::uint32_t record,
                             std::unique_ptr<front> made) noexcept {
  check(made != nullptr && may_have_fronts_, "a pool without arenas gets one");
  if (fronts_ == nullptr) {
    fronts_.reset(new (std::nothrow) front_set(first_range_));
    if (fronts_ == nullptr) return no_record_memory;
  }
  check(fronts_->takes(stream), "a stream has two arenas");
  fronts_->add(stream, record, std::move(made));
  return {};
}

std::uint64_t pool_state::lent_granules() const noexcept {
  if (fronts_ == nullptr) return 0;
  std::uint64_t lent = 0;
  fronts_->for_each(
      [&](std::uint32_t number, const front&) { lent += fronts_->lease_of(number).lent_granules; });
  check(lent <= mappings_.handle_granules(), "I6: more is lent than there is");
  return lent;
}

std::uint64_t pool_state::live_granules() const noexcept {
  std::uint64_t live = mappings_.live_granules();
  if (fronts_ == nullptr) return live;
  fronts_->for_each([&](std::uint32_t number, const front& of) {
    live += of.numbers().live_granules - fronts_->lease_of(number).counted_granules;
  });
  check(live <= mappings_.handle_granules(), "I1: more is live than there is");
  return live;
}

// The pool is going away: what is lent is released with its regions.
void pool_state::release_fronts() noexcept {
  if (fronts_ == nullptr) return;
  fronts_->for_each([&](std::uint32_t number, const front&) {
    const std::uint64_t counted = fronts_->lease_of(number).counted_granules;
    mappings_.count_dead(static_cast<std::uint32_t>(counted));
  });
  check(lending_paused_ || may_have_fronts_, "a pool has arenas although they are off");
  fronts_.reset();
}

// ---- allocate and free ---------------------------------------------------------------

result<address> pool_state::allocate(const stream_request& request) noexcept {
  bool starved = false;
  const address at = request.is_aligned() ? try_allocate_aligned(request, starved)
                                          : try_allocate(request, starved);
  check(!at || !starved, "an allocation both failed and did not");
  debug_check([&] { return !at || segment_around(at) != nullptr; }, "a block lies in no segment");
  if (starved) return no_record_memory;
  return at;
}

address pool_state::try_allocate_aligned(const stream_request& request, bool& starved) noexcept {
  check(request.is_aligned(), "a request that any place takes is given another one");
  for (const auto& in : segments_) {
    const region_id found = in->find_for(request);
    if (found == region_id::none) continue;
    if (!in->provide(2) || !in->provide_entry()) {
      starved = true;
      return {};
    }
    const granule_range where = in->place_in(found, request);
    const std::uint32_t lead = where.offset - in->range(found).offset;
    check(where.end() <= in->range(found).end(), "a region does not take its aligned block");
    if (lead != 0) in->cut_lead(found, lead);
    const address at = in->make_live(in->take_free(found, where.count), mappings_);
    check(at == in->address_of(where.offset), "an aligned block is not where it was looked for");
    return at;
  }
  return {};
}

result<address> pool_state::allocate_own(const stream_request& request) noexcept {
  return streams_.is_capture(request.stream) ? allocate_kept(request) : allocate(request);
}

// Free memory of a captured graph counts as live: it does not while this lives.
result<address> pool_state::allocate_kept(const stream_request& request) noexcept {
  check(streams_.is_capture(request.stream), "memory is kept for no captured graph");
  for (const auto& in : segments_) {
    const region_id found = in->find_for(request);
    if (found == region_id::none) continue;
    const granule_range taken = in->place_in(found, request);
    check(in->range(found).end() >= taken.end(), "a region does not take its request");
    in->release_range(taken, now_for(request.stream), mappings_);
    const result<address> at = allocate(request);
    check(!at || *at == in->address_of(taken.offset),
          "a graph's block is not where it was looked for");
    if (!at) in->count_live(taken, *in->mapping_at(taken.offset), mappings_);
    return at;
  }
  return address{};
}

void pool_state::settle_free(segment& in, region_id block, std::uint32_t stream) noexcept {
  const stream_point freed = streams_.free_point(stream);
  check(freed.stream == stream, "a block is freed for another stream");
  settle_free_since(in, block, freed);
}

void pool_state::settle_free_since(segment& in, region_id block,
                                   const stream_point& freed) noexcept {
  const std::uint32_t stream = freed.stream;
  check(in.kind(block) == region_kind::unlisted, "a block is freed that is free");
  check(stream < streams_.count(), "a block is freed for no record");
  if (!streams_.is_capture(stream)) in.release_live(block, now_for(stream), mappings_);
  check(freed.epoch <= progress().clock(), "a block is freed later than now");
  in.make_free(block, freed, streams_);
}

// The first region that begins at the granule or behind it.
region_id pool_state::region_from(const segment& in, std::uint32_t granule) noexcept {
  const region_map& regions = in.regions();
  if (granule >= regions.count_granules()) return region_id::none;
  const region_id found = regions.find(granule);
  check(found != region_id::none, "a granule lies in no region");
  return in.range(found).offset < granule ? regions.after(found) : found;
}

// A part of the walk ends with a region. What has joined that one meanwhile is passed over.
bool pool_state::give_passed(std::uint32_t stream, taking which, region_walk& walk) noexcept {
  check(stream < streams_.count(), "no record of a stream has this number");
  const auto merges = [&](const segment& in, region_id region) {
    const region_kind kind = in.kind(region);
    return kind == kind_of(stream) || (is_free_kind(kind) && streams_.passed(in.freed_at(region)) &&
                                       !streams_.is_capture(stream));
  };
  std::uint32_t looks_left = walk.looks_max;
  check(looks_left != 0, "a part of a walk looks at nothing");
  for (; walk.segment < segments_.size(); ++walk.segment, walk.granule = 0) {
    segment& in = *segments_[walk.segment];
    const region_map& regions = in.regions();
    for (region_id r = region_from(in, walk.granule); r != region_id::none;) {
      if (looks_left == 0) return true;
      --looks_left;
      ++walk.seen_count;
      walk.granule = in.range(r).end();
      const region_id next = regions.after(r);
      const bool own = in.kind(r) == kind_of(stream);
      const bool joins = merges(in, r) && ((which == taking::all && !own) ||
                                           merges(in, regions.before(r)) || merges(in, next));
      if (joins) {
        const std::uint64_t epoch = own ? regions.word(r) : 0;
        in.claim_free(r);
        in.make_free(r, {stream, epoch}, streams_);
      }
      r = joins ? region_from(in, walk.granule) : next;
    }
  }
  check(walk.seen_count >= segments_.size(), "a segment has no region");
  return false;
}

std::size_t pool_state::others_to_gather(std::uint32_t stream,
                                         std::span<stream_point> out) const noexcept {
  if (streams_.count() < 2 || streams_.is_capture(stream) || fronts_ != nullptr) return 0;
  if (sizes_.rules.lowest_fit_bytes == 0) return 0;  // a policy that looks at no address
  const stream_progress& progress = streams_.progress();
  check(gathered_at_ <= progress.clock(), "free memory was collected at a point in the future");
  if (progress.clock() - gathered_at_ <= gathered_count_ / regions_gathered_max) return 0;
  std::size_t count = 0;
  const std::uint32_t streams = std::min(streams_.count(), streams_looked_at_max + 1);
  for (std::uint32_t step = 0; step < streams && count < out.size(); ++step) {
    const std::uint32_t other = streams_.other(stream, step);
    if (other == stream) continue;
    bool has_free = false;
    for (const auto& in : segments_)
      has_free = has_free || in->regions().listed_count(kind_of(other)) != 0;
    if (has_free) out[count++] = progress.last_point(other);
  }
  check(count <= out.size(), "more streams are named than there is room for");
  return count;
}

bool pool_state::gather_passed(std::uint32_t stream, region_walk& walk) noexcept {
  check(!streams_.is_capture(stream), "a captured graph is given memory of others");
  if (give_passed(stream, taking::all, walk)) return true;
  gathered_count_ = walk.seen_count;
  gathered_at_ = progress().clock();
  return false;
}

// ---- other streams' memory -----------------------------------------------------------

std::size_t pool_state::other_stream_candidates(const stream_request& request,
                                                std::span<stream_point> out) const noexcept {
  check(request.count_granules != 0, "no granule is looked for");
  std::size_t count = 0;
  const std::uint32_t streams = std::min(streams_.count(), streams_looked_at_max + 1);
  for (std::uint32_t step = 0; step < streams && count < out.size(); ++step) {
    const std::uint32_t other = streams_.other(request.stream, step);
    if (other == request.stream) continue;
    for (const auto& in : segments_) {
      const region_id best = in->regions().best_fit(kind_of(other), request.count_granules);
      if (best == region_id::none) continue;
      out[count++] = in->freed_at(best);
      break;
    }
  }
  check(count <= out.size(), "more streams are named than there is room for");
  return count;
}

result<other_stream_claim> pool_state::claim_from_other(const stream_request& request,
                                                        const other_stream_search& how) noexcept {
  other_stream_claim best;
  std::uint32_t best_granules = std::numeric_limits<std::uint32_t>::max();
  const std::uint32_t streams =
      how.all_streams ? streams_.count() : std::min(streams_.count(), streams_looked_at_max + 1);
  for (std::uint32_t step = 0; step < streams; ++step) {
    const std::uint32_t other = streams_.other(request.stream, step);
    if (other == request.stream) continue;
    for (std::uint32_t number = 0; number < segments_.size(); ++number) {
      const segment& in = *segments_[number];
      const region_id found = in.regions().best_fit(kind_of(other), request.count_granules);
      if (found == region_id::none) continue;
      const stream_point last_use = in.freed_at(found);
      const bool passed_only = how.passed_only || (streams_.is_batch(other) && !how.all_streams);
      if (in.range(found).count >= best_granules || (passed_only && !streams_.passed(last_use)))
        continue;
      best = {number, found, last_use};
      best_granules = in.range(found).count;
    }
  }
  if (best.region == region_id::none) return best;
  check(best_granules >= request.count_granules, "a region does not take its request");
  check(!how.passed_only || streams_.passed(best.last_use),
        "memory is claimed that unfinished work may use");
  segment& in = *segments_[best.segment];
  if (!in.provide(2) || !in.provide_entry()) return no_record_memory;
  const granule_range where = in.place_in(best.region, request);
  const std::uint32_t lead = where.offset - in.range(best.region).offset;
  check(lead <= request.spare_granules, "a block is claimed behind the next place for it");
  if (lead != 0) in.cut_lead(best.region, lead);
  in.claim_front(best.region, where.count);
  check(!streams_.is_capture(best.last_use.stream), "a captured graph's memory is given away");
  return best;
}

result<address> pool_state::settle_claim(const other_stream_claim& claim) noexcept {
  check(claim.region != region_id::none, "a claim of nothing is settled");
  check(claim.segment < segments_.size(), "a claim lies in no segment");
  segment& in = *segments_[claim.segment];
  if (!in.provide_entry()) {
    return_claim(claim);
    return no_record_memory;
  }
  check(in.claimed_at(claim.region).epoch == claim.last_use.epoch,
        "I5: a claim has changed meanwhile");
  ++totals_.foreign_count;
  return in.make_live(claim.region, mappings_);
}

void pool_state::return_claim(const other_stream_claim& claim) noexcept {
  check(claim.segment < segments_.size(), "a claim lies in no segment");
  segment& in = *segments_[claim.segment];
  check(in.claimed_at(claim.region).stream == claim.last_use.stream,
        "a claim goes back to another stream than it came from");
  in.return_claim(claim.region, streams_);
}

// ---- claims of handles ---------------------------------------------------------------

status pool_state::claim_handle(handle_record& h) noexcept {
  const mapping& m = *h.current;
  check(m.of == &h && m.live_granules == 0, "a handle in use is claimed");
  segment& in = segment_of(m);
  if (status cut = in.cut_at_borders(m.range()); !cut) return cut;
  mappings_.leave_free(h);
  in.for_each_region(m, [&](region_id region) { in.claim_free(region); });
  check(!h.is_free, "a handle that is claimed may be claimed again");
  return {};
}

void pool_state::return_handle(handle_record& h) noexcept {
  const mapping& m = *h.current;
  check(!h.is_free, "I5: a handle is given back that was not claimed");
  check(!m.is_stale() && m.of == &h, "a handle is not where it says");
  segment& in = segment_of(m);
  in.for_each_region(m, [&](region_id region) { in.return_claim(region, streams_); });
  check(m.live_granules == 0, "a handle in use is given back");
  mappings_.enter_free(h, now_for(h.stream));
}

// ---- giving back ---------------------------------------------------------------------

std::size_t pool_state::surplus_stale_count() const noexcept {
  const std::uint64_t count = mappings_.stale_count();
  const std::uint64_t kept = sizes_.rules.zombie_count_max;
  check(count != 0 || !mappings_.has_listed_stale(), "the count of stale mappings is wrong");
  return count > kept ? count - kept : 0;
}

void pool_state::stale_unmapped(mapping& gone) noexcept {
  segment& in = segment_of(gone);
  check(gone.is_stale(), "a mapping in use is taken as unmapped");
  mappings_.forget_stale(gone);
  const region_id region = in.region_at_unit(gone.offset);
  check(in.range(region) == gone.range(), "a stale region is not its mapping's");
  in.unmap(gone, mappings_);
  in.make_hole(region);
  check(in.mapping_at(gone.offset) == nullptr, "a mapping that is undone stands");
  mappings_.drop(gone);
}

bool pool_state::is_idle(const handle_record& h) const noexcept {
  const mapping& m = *h.current;
  check(h.is_free, "a handle in use is looked at as idle");
  const segment& in = segment_of(m);
  const bool passed =
      in.all_regions(m, [&](region_id region) { return streams_.passed(in.freed_at(region)); });
  if (!passed) return false;
  for (const mapping* old = h.stale_mappings; old != nullptr; old = old->next_of_handle) {
    check(old->is_stale() && old->of == &h, "a stale mapping is another handle's");
    if (!streams_.passed(old->last_use)) return false;
  }
  return true;
}

free_handle_walk pool_state::begin_walk(std::uint64_t size_bytes) const noexcept {
  return {.bytes_left = size_bytes, .looks_left = mappings_.handle_count() + streams_.count()};
}

result<bool> pool_state::claim_idle(free_handle_walk& walk, std::size_t looks_max,
                                    std::vector<handle_record*>& out) noexcept {
  for (std::size_t looks = 0; looks < looks_max; ++looks) {
    if (walk.bytes_left == 0 || walk.looks_left == 0) return false;
    --walk.looks_left;
    if (walk.next == nullptr || !walk.next->is_free) {
      if (walk.streams_begun == streams_.count()) return false;
      const auto stream = static_cast<std::uint32_t>(walk.streams_begun++);
      walk.next = mappings_.free_of(stream).largest();
      continue;
    }
    handle_record& h = *walk.next;
    check(h.memory != nullptr && h.count_granules != 0, "a free handle has no memory");
    walk.next = mappings_.free_of(h.stream).next_smaller(h);
    if (!is_idle(h)) {
      walk.waiting_bytes += h.memory->size_bytes;
      continue;
    }
    if (status room = reserve_more(out, 1); !room) return room.error();
    if (status claimed = claim_handle(h); !claimed) return claimed.error();
    out.push_back(&h);
    walk.bytes_left -= std::min(walk.bytes_left, h.memory->size_bytes);
  }
  return true;
}

physical_memory& pool_state::handle_unmapped(handle_record& gone) noexcept {
  check(gone.stale_mappings == nullptr, "a handle goes while a stale mapping of it stands");
  mapping& m = *gone.current;
  check(!m.is_stale() && m.of == &gone, "a handle is not where it says");
  check(!gone.is_free && m.live_granules == 0, "a handle in use is taken as unmapped");
  segment& in = segment_of(m);
  const region_id region = in.join_regions(m);
  in.unmap(m, mappings_);
  in.make_hole(region);
  mappings_.drop(m);
  check(gone.memory != nullptr, "a handle has no memory");
  physical_memory& memory = *gone.memory;
  mappings_.remove_handle(gone);
  mappings_.drop(gone);
  return memory;
}

void pool_state::handle_stays(handle_record& kept) noexcept {
  check(kept.current != nullptr && !kept.current->is_stale(), "a handle stays that is not mapped");
  check(kept.stale_mappings == nullptr || kept.stale_mappings->is_stale(),
        "a handle names a mapping in use as stale");
  kept.current->is_announced = false;
  return_handle(kept);
}

// Free memory of captured graphs does not count as live any more.
void pool_state::release_graphs_memory() noexcept {
  for (const auto& in : segments_) {
    const region_map& regions = in->regions();
    for (region_id r = regions.first(); r != region_id::none; r = regions.after(r)) {
      const region_kind kind = in->kind(r);
      check(kind != region_kind::unlisted || state_of(regions.tag(r)) != region_state::claimed,
            "a pool ends while a growth is under way");
      if (is_free_kind(kind) && streams_.is_capture(stream_of(kind)))
        in->release_range(in->range(r), now_for(stream_of(kind)), mappings_);
    }
  }
}

// Blocks that are live, pinned or not, become free.
void pool_state::release_blocks() noexcept {
  for (const auto& in : segments_) {
    const region_map& regions = in->regions();
    for (region_id r = regions.first(); r != region_id::none;) {
      const region_id next = regions.after(r);
      const bool lent = in->is_lent(r);
      const bool live = lent || (in->kind(r) == region_kind::unlisted &&
                                 state_of(regions.tag(r)) == region_state::live);
      const granule_range where = in->range(r);
      if (lent) {
        in->free_lent(r, now_for(0), mappings_, streams_);
      } else if (live) {
        const result<segment::found_block> block = in->find_block(where.offset * granule_bytes);
        check(block.has_value(), "a live region is not a block");
        in->forget_block(*block);
        settle_free(*in, r, 0);
      }
      r = next;
      if (live && next != region_id::none) r = regions.find(where.end());
    }
    check(in->block_count() == 0, "a block stays after all were freed");
  }
}

void pool_state::release_all() noexcept {
  release_graphs_memory();
  release_fronts();
  streams_.release_all();
  check(streams_.shared() == no_stream, "free memory stays shared at the end");
  captures_.clear();
  totals_.pinned_count = 0;
  release_blocks();
  if (streams_.count() != 0) progress().note_passed({0, progress().clock()});
  check(mappings_.live_granules() == 0, "memory is live after all was freed");
}

result<address_range> pool_state::live_range(address at) noexcept {
  const result<segment::found_block> found = find_block(at);
  if (!found) return found.error();
  if (status live = locked_blocks(*this).check_live(at); !live) return live.error();
  const granule_range where = found->in->range(found->region);
  check(found->in->address_of(where.offset) == at, "another block is found than was named");
  return address_range{at, where.count * granule_bytes};
}

// ---- device-wide frees ---------------------------------------------------------------
//
// Such a free enters the open batch, a record without a stream. To record an event the batch is
// closed first, so that later frees wait for the next one; then the batch is like a forgotten
// stream: its free memory serves every stream when its event has passed. If recording fails the
// batch stays closed, for the next try.

result<std::uint32_t> pool_state::provide_batch(bool known_only) noexcept {
  if (streams_.open_batch() != no_stream) return streams_.open_batch();
  if (status provided = provide_shared(); !provided) return provided.error();
  const bool needs_default = known_only && find_stream(stream_handle::default_stream) == no_stream;
  if (needs_default) {
    const result<std::uint32_t> added = add_stream(stream_handle::default_stream);
    if (!added) return added;
  }
  const result<std::uint32_t> made =
      add_record(stream_handle::default_stream, stream_phase::unmarked);
  if (!made) return made;
  streams_.open_batch_in(*made, known_only);
  check(!streams_.has_unmarked(), "a new batch waits for a mark");
  return made;
}

// What was freed while it is pinned waits for the mark after its last pin.
status pool_state::close_batch() noexcept {
  const std::uint32_t closed = streams_.open_batch();
  const result<std::uint32_t> next =
      add_record(stream_handle::default_stream, stream_phase::unmarked);
  if (!next) return next.error();
  check(closed != no_stream && *next != closed, "the batch that is closed is used again");
  if (streams_.has_locked(closed)) {
    for_each_segment([&](segment& in) {
      in.for_each_locked([&](region_id block) {
        block_lock lock = in.lock_of(block);
        if (lock.stream != closed) return;
        check(lock.freed && !lock.captured, "a live block is in a batch");
        streams_.remove_locked(closed);
        streams_.add_locked(*next);
        lock.stream = *next;
        in.write_lock(block, lock);
      });
    });
  }
  streams_.close_batch(*next);
  return {};
}

}  // namespace vmm

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
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

bool pool_state::has_nothing_to_tidy() noexcept {
  check(!wants_front_ || may_have_fronts_, "a pool without arenas needs one");
  return idle_handles(*this).surplus_stale_count() == 0 && !streams_.has_unmarked() &&
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
  check(streams_.is_capture(request.stream), "I2: memory is kept for no captured graph");
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

// ---- the end ---------------------------------------------------------------------------

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

// ---- histories -------------------------------------------------------------------------

void pool_state::note_block_now(history_kind kind, const segment& in, region_id block,
                                std::uint32_t stream) noexcept {
  check(recorder_ != nullptr, "an event is written to no history");
  const granule_range where = in.range(block);
  check(where.count != 0, "an event is of an empty block");
  const stream_handle handle =
      stream == no_stream ? stream_handle::default_stream : progress().shown_handle(stream);
  recorder_->note_block(kind, {in.address_of(where.offset), where.count * granule_bytes}, 0,
                        handle);
}

}  // namespace vmm

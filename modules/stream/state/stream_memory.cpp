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

result<std::uint32_t> stream_memory::enter(stream_handle stream, std::uint64_t identity) noexcept {
  const std::uint32_t known = state_.progress().find(stream);
  if (known != pool_state::no_stream) return known;
  const result<std::uint32_t> added = add_stream(stream);
  if (added) state_.progress().set_identity(*added, identity);
  check(!added || state_.progress().find(stream) == *added, "a new stream is not found");
  return added;
}

// What the record needs in every segment comes first: adding it to the streams is the last step.
result<std::uint32_t> stream_memory::add_record(stream_handle stream, stream_phase phase) noexcept {
  const std::uint32_t number = state_.streams_.next_number();
  if (status room = state_.streams_.provide(); !room) return room.error();
  if (status room = state_.mappings_.provide_stream(number); !room) return room.error();
  for (const auto& in : state_.segments_) {
    if (status room = in->provide_streams(number + 1); !room) return room.error();
  }
  const result<std::uint32_t> added = state_.streams_.add(stream, phase);
  check(!added || *added == number,
        "pool_state I3: a stream has another record than room was made for");
  check(!added || state_.mappings_.free_of(*added).empty(), "a new record has memory");
  return added;
}

status stream_memory::provide_shared() noexcept {
  if (state_.streams_.shared() != pool_state::no_stream) return {};
  const result<std::uint32_t> made =
      add_record(stream_handle::default_stream, stream_phase::shared);
  if (!made) return made.error();
  state_.streams_.set_shared(*made);
  check(state_.streams_.passed({*made, state_.progress().clock()}),
        "shared memory has unfinished work");
  return {};
}

void stream_memory::clear_retired(std::uint32_t stream) noexcept {
  check(state_.streams_.phase_of(stream) == stream_phase::retired, "an active stream is cleared");
  check(state_.streams_.shared() != pool_state::no_stream,
        "a forgotten stream's memory has no new owner");
  if (!move_free(stream, {state_.streams_.shared(), 0}) || state_.streams_.has_locked(stream))
    return;
  recycle(stream);
}

bool stream_memory::move_free(std::uint32_t from, const stream_point& to) noexcept {
  check(from != to.stream, "free memory is moved to its own record");
  check(from < state_.streams_.count() && to.stream < state_.streams_.count(),
        "free memory is moved from or to no record");
  std::uint32_t left = pool_state::regions_moved_max;
  for (const auto& in : state_.segments_) {
    while (in->regions().listed_count(kind_of(from)) != 0) {
      if (left-- == 0) return false;
      const region_id region = in->regions().best_fit(kind_of(from), 1);
      const granule_range where = in->range(region);
      in->claim_free(region);
      if (state_.streams_.is_capture(from))
        in->release_range(where, state_.now_for(to.stream), state_.mappings_);
      in->make_free(region, to, state_.streams_);
    }
  }
  const free_handle_bins& free = state_.mappings_.free_of(from);
  for (handle_record* h = free.largest(); h != nullptr; h = free.largest()) {
    check(h->stream == from, "a free handle is in another stream's list");
    state_.mappings_.leave_free(*h);
    state_.mappings_.enter_free(*h, state_.now_for(to.stream));
  }
  return true;
}

void stream_memory::recycle(std::uint32_t stream) noexcept {
  check(state_.mappings_.free_of(stream).empty(), "pool_state I4: a record in use is given back");
  check(stream != state_.streams_.open_batch() && stream != state_.streams_.closed_batch(),
        "a batch is removed before its event");
  debug_check(
      [&] {
        for (const auto& in : state_.segments_) {
          if (in->regions().listed_count(kind_of(stream)) != 0) return false;
        }
        return true;
      },
      "pool_state I4: a record is given back while memory is free under it");
  state_.streams_.recycle(stream);
}

// ---- device-wide frees ---------------------------------------------------------------
//
// Such a free enters the open batch, a record without a stream. To record an event the batch is
// closed first, so that later frees wait for the next one; then the batch is like a forgotten
// stream: its free memory serves every stream when its event has passed. If recording fails the
// batch stays closed, for the next try.

result<std::uint32_t> stream_memory::provide_batch(bool known_only) noexcept {
  if (state_.streams_.open_batch() != pool_state::no_stream) return state_.streams_.open_batch();
  if (status provided = provide_shared(); !provided) return provided.error();
  const bool needs_default =
      known_only && state_.progress().find(stream_handle::default_stream) == pool_state::no_stream;
  if (needs_default) {
    const result<std::uint32_t> added = add_stream(stream_handle::default_stream);
    if (!added) return added;
  }
  const result<std::uint32_t> made =
      add_record(stream_handle::default_stream, stream_phase::unrecorded);
  if (!made) return made;
  state_.streams_.open_batch_in(*made, known_only);
  check(!state_.streams_.has_unrecorded(), "a new batch waits for an event");
  return made;
}

// A block freed while pinned waits for the event after its last unpin.
status stream_memory::close_batch() noexcept {
  const std::uint32_t closed = state_.streams_.open_batch();
  const result<std::uint32_t> next =
      add_record(stream_handle::default_stream, stream_phase::unrecorded);
  if (!next) return next.error();
  check(closed != pool_state::no_stream && *next != closed,
        "the batch that is closed is used again");
  if (state_.streams_.has_locked(closed)) {
    state_.segments().for_each([&](segment& in) {
      in.for_each_locked([&](region_id block) {
        block_lock lock = in.lock_of(block);
        if (lock.stream != closed) return;
        check(lock.freed && !lock.captured, "a live block is in a batch");
        state_.streams_.remove_locked(closed);
        state_.streams_.add_locked(*next);
        lock.stream = *next;
        in.write_lock(block, lock);
      });
    });
  }
  state_.streams_.close_batch(*next);
  return {};
}

std::size_t stream_memory::others_to_reclaim(std::uint32_t stream,
                                             std::span<stream_point> out) const noexcept {
  if (state_.streams_.count() < 2 || state_.streams_.is_capture(stream) ||
      state_.arenas_.table() != nullptr)
    return 0;
  // a policy that ignores addresses
  if (state_.sizes_.policy.tuning.first_fit_bytes == 0) return 0;
  const stream_progress& progress = state_.streams_.progress();
  check(state_.reclaimed_at_ <= progress.clock(),
        "free memory was collected at a point in the future");
  if (progress.clock() - state_.reclaimed_at_ <=
      state_.reclaimed_count_ / pool_state::regions_reclaimed_max)
    return 0;
  std::size_t count = 0;
  const std::uint32_t streams =
      std::min(state_.streams_.count(), pool_state::streams_looked_at_max + 1);
  for (std::uint32_t step = 0; step < streams && count < out.size(); ++step) {
    const std::uint32_t other = state_.streams_.other(stream, step);
    if (other == stream) continue;
    bool has_free = false;
    for (const auto& in : state_.segments_)
      has_free = has_free || in->regions().listed_count(kind_of(other)) != 0;
    if (has_free) out[count++] = progress.last_point(other);
  }
  check(count <= out.size(), "more streams are named than there is room for");
  return count;
}

bool stream_memory::reclaim_finished(std::uint32_t stream, region_walk& walk) noexcept {
  check(!state_.streams_.is_capture(stream), "a captured graph gets memory of other streams");
  if (give_finished(stream, taking::all, walk)) return true;
  state_.reclaimed_count_ = walk.seen_count;
  state_.reclaimed_at_ = state_.progress().clock();
  return false;
}

// A part of the walk ends with a region. Regions coalesced with it meanwhile are skipped.
bool stream_memory::give_finished(std::uint32_t stream, taking which, region_walk& walk) noexcept {
  check(stream < state_.streams_.count(), "no record of a stream has this number");
  const auto merges = [&](const segment& in, region_id region) {
    const region_kind kind = in.kind(region);
    return kind == kind_of(stream) ||
           (is_free_kind(kind) && state_.streams_.passed(in.freed_at(region)) &&
            !state_.streams_.is_capture(stream));
  };
  std::uint32_t looks_left = walk.looks_max;
  check(looks_left != 0, "a part of a walk has a length of 0");
  for (; walk.segment < state_.segments_.count(); ++walk.segment, walk.granule = 0) {
    segment& in = state_.segments_.at(walk.segment);
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
        in.make_free(r, {stream, epoch}, state_.streams_);
      }
      r = joins ? region_from(in, walk.granule) : next;
    }
  }
  check(walk.seen_count >= state_.segments_.count(), "a segment has no region");
  return false;
}

// The first region that begins at the granule or behind it.
region_id stream_memory::region_from(const segment& in, std::uint32_t granule) noexcept {
  const region_map& regions = in.regions();
  if (granule >= regions.count_granules()) return region_id::none;
  const region_id found = regions.find(granule);
  check(found != region_id::none, "a granule lies in no region");
  return in.range(found).offset < granule ? regions.after(found) : found;
}

std::size_t stream_memory::other_stream_candidates(const stream_request& request,
                                                   std::span<stream_point> out) const noexcept {
  check(request.count_granules != 0, "no granule is looked for");
  std::size_t count = 0;
  const std::uint32_t streams =
      std::min(state_.streams_.count(), pool_state::streams_looked_at_max + 1);
  for (std::uint32_t step = 0; step < streams && count < out.size(); ++step) {
    const std::uint32_t other = state_.streams_.other(request.stream, step);
    if (other == request.stream) continue;
    for (const auto& in : state_.segments_) {
      const region_id best = in->regions().best_fit(kind_of(other), request.count_granules);
      if (best == region_id::none) continue;
      out[count++] = in->freed_at(best);
      break;
    }
  }
  check(count <= out.size(), "more streams are named than there is room for");
  return count;
}

result<other_stream_claim> stream_memory::claim_from_other(
    const stream_request& request, const other_stream_search& how) noexcept {
  other_stream_claim best;
  std::uint32_t best_granules = std::numeric_limits<std::uint32_t>::max();
  const std::uint32_t streams =
      how.all_streams ? state_.streams_.count()
                      : std::min(state_.streams_.count(), pool_state::streams_looked_at_max + 1);
  for (std::uint32_t step = 0; step < streams; ++step) {
    const std::uint32_t other = state_.streams_.other(request.stream, step);
    if (other == request.stream) continue;
    for (std::uint32_t number = 0; number < state_.segments_.count(); ++number) {
      const segment& in = state_.segments_.at(number);
      const region_id found = in.regions().best_fit(kind_of(other), request.count_granules);
      if (found == region_id::none) continue;
      const stream_point last_use = in.freed_at(found);
      const bool passed_only =
          how.passed_only || (state_.streams_.is_batch(other) && !how.all_streams);
      if (in.range(found).count >= best_granules ||
          (passed_only && !state_.streams_.passed(last_use)))
        continue;
      best = {number, found, last_use};
      best_granules = in.range(found).count;
    }
  }
  if (best.region == region_id::none) return best;
  check(best_granules >= request.count_granules, "a region does not take its request");
  check(!how.passed_only || state_.streams_.passed(best.last_use),
        "unfinished work may use claimed memory");
  segment& in = state_.segments_.at(best.segment);
  if (!in.provide(2) || !in.provide_entry()) return no_record_memory;
  const granule_range where = in.place_in(in.range(best.region).offset, request);
  const std::uint32_t lead = where.offset - in.range(best.region).offset;
  check(lead <= request.spare_granules, "a block is claimed behind the next place for it");
  if (lead != 0) in.cut_lead(best.region, lead);
  in.claim_head(best.region, where.count);
  check(!state_.streams_.is_capture(best.last_use.stream), "a captured graph's memory is claimed");
  return best;
}

result<address> stream_memory::finish_claim(const other_stream_claim& claim) noexcept {
  check(claim.region != region_id::none, "an empty claim is finished");
  check(claim.segment < state_.segments_.count(), "a claim lies in no segment");
  segment& in = state_.segments_.at(claim.segment);
  if (!in.provide_entry()) {
    return_claim(claim);
    return no_record_memory;
  }
  check(in.claimed_at(claim.region).epoch == claim.last_use.epoch,
        "pool_state I5: a claim has changed");
  ++state_.totals_.other_stream_count;
  return in.make_live(claim.region, state_.mappings_);
}

void stream_memory::return_claim(const other_stream_claim& claim) noexcept {
  check(claim.segment < state_.segments_.count(), "a claim lies in no segment");
  segment& in = state_.segments_.at(claim.segment);
  check(in.claimed_at(claim.region).stream == claim.last_use.stream,
        "a claim is returned to a wrong stream");
  in.return_claim(claim.region, state_.streams_);
}

bool stream_memory::has_nothing_to_tidy() const noexcept {
  const stream_table& streams = state_.streams();
  check(streams.recorded_batch_count() <= streams.progress().retired_count(),
        "stream_table I4: a batch that waits is not retired");
  return idle_handles(state_).surplus_stale_count() == 0 && !streams.has_unrecorded() &&
         streams.progress().retired_count() == 0;
}

}  // namespace vmm

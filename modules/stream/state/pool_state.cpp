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

bool pool_state::is_on_two_lines() const noexcept {
  constexpr std::uintptr_t line_bytes = 64;
  const auto line_of = [](const void* at) {
    return reinterpret_cast<std::uintptr_t>(at) / line_bytes;
  };
  const bool first = line_of(&lock_) == line_of(&needs_slow_check_) &&
                     line_of(&needs_slow_check_) == line_of(&plain_granules_max_) &&
                     line_of(&needs_slow_check_) == line_of(&first_range_) &&
                     line_of(&needs_slow_check_) == line_of(mappings_.last_read());
  return first && line_of(&first_segment_) == line_of(streams_.progress().last_read());
}

// ---- segments and streams ------------------------------------------------------------

status pool_state::add_segment(const extent& where) noexcept {
  check(where.range.size_bytes <= sizes_.segment_bytes, "a segment is larger than it may be");
  result<std::unique_ptr<segment>> made = segment::create(where, sizes_, streams_.count());
  if (!made) return made.error();
  if (status added = segments_.add(std::move(*made)); !added) return added;
  if (first_segment_ == nullptr) {
    first_segment_ = &segments_.at(segments_.count() - 1);
    first_range_ = where.range;
  }
  check(!(segments_.count() > 1 && first_range_.contains(where.range.base)),
        "two segments have the same addresses");
  check(first_segment_ == &segments_.at(0), "the first segment is not the queried one");
  return {};
}

result<segment::found_block> pool_state::find_block(address at) noexcept {
  segment* const in = segment_around(at);
  if (in == nullptr)
    return refuse(errc::unknown_address, "the address is not the start of a block of this pool");
  if (status recalled = arena_lending(*this).recall(*in, at - in->where().range.base); !recalled)
    return recalled.error();
  check(in->where().range.contains(at), "an address is looked up in another segment");
  const result<segment::found_block> found = in->find_block(at - in->where().range.base);
  check(!found || found->in == in, "a block is found in another segment");
  return found;
}

// ---- allocate and free ---------------------------------------------------------------
// Everything that is called here is inline, except rare cases.

address pool_state::try_allocate(const stream_request& request, bool& starved) noexcept {
  debug_check([&] { return request.count_granules != 0; }, "a request of 0 granules");
  segment* in = first_segment_;
  if (in == nullptr) [[unlikely]]
    return {};
  region_id found = in->find_free(request);
  for (std::uint32_t next = 1; found == region_id::none; ++next) {
    if (next >= segments_.count()) return {};
    in = &segments_.at(next);
    found = in->find_free(request);
  }
  if (!in->provide_block()) [[unlikely]] {
    starved = true;
    return {};
  }
  in->fetch_ahead(in->range(found).offset);  // the table's line, while the region is cut
  debug_check([&] { return in->kind(found) == kind_of(request.stream); },
              "memory is handed out that is free for another stream");
  return in->make_live(in->take_free(found, request.count_granules), mappings_);
}

segment* pool_state::segment_around(address at) noexcept {
  debug_check([this] { return (first_segment_ == nullptr) == first_range_.empty(); },
              "the first segment has no addresses");
  if (at.value - first_range_.base.value < first_range_.size_bytes) [[likely]]
    return first_segment_;
  for (const auto& in : segments_) {
    if (in->where().range.contains(at)) return in.get();
  }
  return nullptr;
}

status pool_state::free(address at, std::uint32_t stream) noexcept {
  debug_check([this] { return deferred_ == region_id::none; }, "a free precedes an earlier one");
  segment* const in = segment_around(at);
  if (in == nullptr)
    return refuse(errc::unknown_address, "the address is not the start of a block of this pool");
  const std::uint64_t offset_bytes = at - in->base();
  const region_id block = offset_bytes % granule_bytes == 0
                              ? in->take_block(granules_in(offset_bytes))
                              : region_id::none;
  if (block == region_id::none) [[unlikely]]
    return locked_blocks(*this).free(*in, offset_bytes, stream);
  if (events_.is_on()) [[unlikely]] {
    const std::uint64_t size_bytes = in->range(block).count * granule_bytes;
    events_.note_block(history_kind::freed, {at, size_bytes}, 0,
                       streams_.progress().shown_handle(stream));
  }
  const stream_point now = streams_.progress().advance(stream);
  debug_check([&] { return in->address_of(in->range(block).offset) == at; },
              "a block does not begin where it is found");
  debug_check([&] { return now.stream == stream && !streams_.passed(now); },
              "a block is freed at a point that has passed");
  in->release_live(block, now, mappings_);
  in->make_free(block, now, streams_);
  return {};
}

// ---- frees among many blocks ---------------------------------------------------------

pool_state::deferred_free& frees_among_many::deferred(std::uint32_t age) const noexcept {
  check(age - 1 < state_.free_count_, "no deferred free is so old");
  const std::uint32_t place = state_.oldest_free_ + state_.free_count_ - age;
  return state_.frees_[place % pool_state::frees_deferred_max];
}

void frees_among_many::look_up(pool_state::deferred_free& free) noexcept {
  if (free.block != region_id::none) return;
  free.block = state_.first_segment_->take_block(free.offset);
  check(free.block != region_id::none, "pool_state I7: a block that is freed is in no table");
}

status frees_among_many::free(address at, std::uint32_t stream) noexcept {
  constexpr std::uint32_t most = pool_state::frees_deferred_max;
  constexpr std::uint32_t step = most / 4;
  check(state_.first_range_.contains(at), "a free is deferred in another segment");
  segment& in = *state_.first_segment_;
  if (state_.deferred_ != pool_state::several_deferred) state_.finish_deferred_free();
  const std::uint32_t offset = granules_in(at - state_.first_range_.base);
  if (!in.begin_taking(offset)) [[unlikely]] {
    state_.finish_deferred_free();
    return state_.free(at, stream);
  }
  if (state_.free_count_ == most) finish_oldest();
  if (state_.free_count_ >= step) {
    pool_state::deferred_free& found = deferred(step);
    look_up(found);
    in.regions().fetch_ahead(found.block);
  }
  if (state_.free_count_ >= 2 * step) {
    const region_id block = deferred(2 * step).block;
    // Of a live neighbour only the mark is read.
    for (const region_id beside : {in.regions().before(block), in.regions().after(block)}) {
      if (in.regions().listed(beside)) in.regions().fetch_ahead(beside);
    }
  }
  state_.frees_[(state_.oldest_free_ + state_.free_count_++) % most] = {
      offset, region_id::none, state_.streams_.progress().advance(stream)};
  state_.deferred_ = pool_state::several_deferred;
  return {};
}

void frees_among_many::finish_oldest() noexcept {
  check(state_.free_count_ != 0, "pool_state I7: no free is deferred");
  pool_state::deferred_free& oldest = state_.frees_[state_.oldest_free_];
  look_up(oldest);
  state_.oldest_free_ = (state_.oldest_free_ + 1) % pool_state::frees_deferred_max;
  --state_.free_count_;
  state_.first_segment_->release_live(oldest.block, oldest.at, state_.mappings_);
  state_.first_segment_->make_free(oldest.block, oldest.at, state_.streams_);
}

}  // namespace vmm

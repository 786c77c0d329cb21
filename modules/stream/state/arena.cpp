// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include "../../base/thread_annotations.h"

module vmm.stream;

import vmm.backend;
import vmm.base;
import vmm.std;
import vmm.va;

namespace vmm {

arena::arena(address_range where, const pool_geometry& sizes, region_map&& regions) noexcept
    : where_(where), sizes_(sizes), regions_(std::move(regions)) {
  check(where.size_bytes == regions_.count_granules() * granule_bytes,
        "I1: an arena's addresses differ from its regions'");
}

result<std::unique_ptr<arena>> arena::create(address_range where,
                                             const pool_geometry& sizes) noexcept {
  check(where.size_bytes % sizes.unit_bytes == 0 && !where.empty(), "an arena ends inside a unit");
  result<region_map> regions =
      region_map::create({granules_in(where.size_bytes), sizes.unit_granules, 0, regions_max});
  if (!regions) return regions.error();
  const result<region_kind> kind = regions->add_kind();
  if (!kind) return kind.error();
  check(*kind == free_kind, "an arena's free regions have another kind");
  std::unique_ptr<arena> made{new (std::nothrow) arena(where, sizes, std::move(*regions))};
  if (made == nullptr) return no_record_memory;
  return made;
}

// ---- for threads ---------------------------------------------------------------------

address arena::take(stream_handle stream, std::uint64_t size_bytes) noexcept {
  const std::uint32_t count = sizes_.granules_for(size_bytes);
  if (count == 0) return {};
  const arena_guard held(lock_);
  debug_check(
      [&] {
        assume_locked(rank::arena);
        return has_stream_ || !is_open_;
      },
      "I2: an arena without a stream is open");
  if (!is_open_ || stream_ != stream) return {};
  const region_id found = regions_.best_fit(free_kind, count);
  if (found == region_id::none || !regions_.provide(1) ||
      !blocks_.reserve(regions_.count_granules()))
    return {};
  region_id taken = found;
  if (regions_.where(found).count > count) {
    taken = regions_.take_head(found, count);
  } else {
    regions_.unlist(found);
  }
  regions_.set_note(taken, {0, arena_tag::live});
  const std::uint32_t offset = regions_.where(taken).offset;
  blocks_.insert(offset, taken);
  live_granules_ += count;
  ++taken_count_;
  debug_check(
      [&] {
        assume_locked(rank::arena);
        return regions_.where(taken).count == count;
      },
      "an arena allocates another size than requested");
  return where_.base + offset * granule_bytes;
}

bool arena::give(stream_handle stream, address at) noexcept {
  debug_check([&] { return !where_.empty(); }, "an arena has no addresses");
  const arena_guard held(lock_);
  if (!is_open_ || stream_ != stream || regions_.listed_count(free_kind) >= free_count_max)
    return false;
  return give_here(at);
}

bool arena::keep(address at) noexcept {
  check(where_.contains(at), "a kept block lies outside of the arena");
  const arena_guard held(lock_);
  return give_here(at);
}

bool arena::give_here(address at) noexcept {
  const std::uint64_t offset_bytes = at - where_.base;
  if (offset_bytes >= where_.size_bytes || offset_bytes % granule_bytes != 0) return false;
  const region_id block = blocks_.take(granules_in(offset_bytes));
  if (block == region_id::none) return false;
  debug_check(
      [&] {
        assume_locked(rank::arena);
        return regions_.tag(block) == arena_tag::live;
      },
      "an arena's table names a block that is not live");
  live_granules_ -= regions_.where(block).count;
  has_freed_ = true;
  make_free(block);
  return true;
}

void arena::make_free(region_id region) noexcept {
  debug_check(
      [&] {
        assume_locked(rank::arena);
        return regions_.kind(region) == region_kind::unlisted;
      },
      "I3: a free region of an arena is freed");
  const region_id left = regions_.before(region);
  const region_id right = regions_.after(region);
  if (regions_.kind(left) == free_kind) {
    if (regions_.kind(right) == free_kind) {
      regions_.unlist(right);
      regions_.join(region, right);
    }
    return regions_.absorb_right(left);
  }
  if (regions_.kind(right) == free_kind) return regions_.absorb_left(right);
  regions_.list(region, free_kind);
}

void arena::make_hole(region_id region) noexcept {
  check(regions_.kind(region) == region_kind::unlisted,
        "I1: a listed region becomes an arena's hole");
  regions_.set_note(region, {0, arena_tag::hole});
  region_id kept = region;
  if (const region_id left = regions_.before(kept); is_arena_hole(regions_, left)) {
    regions_.join(left, kept);
    kept = left;
  }
  if (const region_id right = regions_.after(kept); is_arena_hole(regions_, right))
    regions_.join(kept, right);
  debug_check(
      [&] {
        assume_locked(rank::arena);
        return is_arena_hole(regions_, kept);
      },
      "an arena's hole is not a hole");
}

// ---- for the pool --------------------------------------------------------------------

void arena::set_stream(stream_handle stream) noexcept {
  const arena_guard held(lock_);
  check(!has_stream_ && !is_open_ && blocks_.count() == 0,
        "I4: an arena belongs to another "
        "stream");
  has_stream_ = true;
  stream_ = stream;
}

void arena::end_stream() noexcept {
  const arena_guard held(lock_);
  check(has_stream_ && !is_open_, "an arena ends that is open, or has no stream");
  check(blocks_.count() == 0 && regions_.listed_count(free_kind) == 0,
        "an arena ends with memory in it");
  has_stream_ = false;
  has_freed_ = false;
}

bool arena::lend(granule_range what) noexcept {
  const arena_guard held(lock_);
  check(has_stream_ && what.count != 0, "a refill of 0 granules, or of an arena without a stream");
  if (!regions_.provide(2)) return false;
  region_id region = regions_.find(what.offset);
  check(is_arena_hole(regions_, region) && regions_.where(region).end() >= what.end(),
        "a refill overlaps the arena's memory");
  if (const std::uint32_t lead = what.offset - regions_.where(region).offset; lead != 0)
    region = regions_.cut(region, lead);
  if (regions_.where(region).count > what.count) (void)regions_.cut(region, what.count);
  make_free(region);
  is_open_ = true;
  return true;
}

void arena::close() noexcept {
  const arena_guard held(lock_);
  check(has_stream_, "an arena without a stream is closed");
  is_open_ = false;
}

bool arena::end_frees() noexcept {
  const arena_guard held(lock_);
  check(!is_open_, "I2: the frees of an open arena end");
  return std::exchange(has_freed_, false);
}

granule_range arena::take_free() noexcept {
  const arena_guard held(lock_);
  check(!is_open_, "an open arena is flushed");
  const region_id free = regions_.best_fit(free_kind, 1);
  if (free == region_id::none) return {};
  const granule_range where = regions_.where(free);
  check(where.count != 0, "an empty region is free in an arena");
  regions_.unlist(free);
  make_hole(free);
  return where;
}

granule_range arena::begin_leaving(std::uint32_t least, std::uint32_t most) noexcept {
  check(least != 0 && least <= most, "a transfer of 0 granules, or of more at least than at most");
  const arena_guard held(lock_);
  const std::uint32_t largest = regions_.largest(free_kind);
  if (largest < least || !regions_.provide(1)) return {};
  const region_id free = regions_.best_fit(free_kind, largest);
  region_id taken = free;
  if (regions_.where(free).count > most) {
    taken = regions_.take_head(free, most);
  } else {
    regions_.unlist(free);
  }
  const granule_range where = regions_.where(taken);
  check(where.count >= least && where.count <= most,
        "an arena transfers another size than "
        "requested");
  regions_.set_note(taken, {0, arena_tag::leaving});
  leaving_granules_ += where.count;
  return where;
}

void arena::end_leaving(granule_range what, bool goes) noexcept {
  const arena_guard held(lock_);
  const region_id region = regions_.find(what.offset);
  check(regions_.where(region) == what && regions_.tag(region) == arena_tag::leaving,
        "a region leaves an arena that was not leaving");
  leaving_granules_ -= what.count;
  goes ? make_hole(region) : make_free(region);
}

std::uint64_t arena::idle_granules(std::uint32_t least) const noexcept {
  check(least != 0, "a query for 0 granules");
  const arena_guard held(lock_);
  return regions_.largest(free_kind) < least ? 0 : regions_.listed_granules(free_kind);
}

arena_place arena::look(std::uint32_t offset) const noexcept {
  const arena_guard held(lock_);
  check(offset < regions_.count_granules(), "an offset exceeds its arena");
  return look_here(offset);
}

arena_place arena::look_here(std::uint32_t offset) const noexcept {
  const region_id around = regions_.find(offset);
  check(around != region_id::none, "a granule is in no region of an arena");
  return is_arena_block(regions_, around) ? arena_place::inside : arena_place::nothing;
}

granule_range arena::take_block(std::uint32_t offset, arena_place& place) noexcept {
  const arena_guard held(lock_);
  const region_id block = blocks_.take(offset);
  place = block == region_id::none ? look_here(offset) : arena_place::begins;
  if (block == region_id::none) return {};
  const granule_range where = regions_.where(block);
  check(where.offset == offset && where.count != 0, "an arena's block begins elsewhere");
  live_granules_ -= where.count;
  make_hole(block);
  return where;
}

status arena::list_blocks(std::vector<std::uint32_t>& out) const noexcept {
  const arena_guard held(lock_);
  if (status room = reserve_more(out, blocks_.count()); !room) return room;
  blocks_.each([&](region_id block) {
    assume_locked(rank::arena);
    out.push_back(regions_.where(block).offset);
  });
  check(out.size() >= blocks_.count(), "an arena's block is left out");
  return {};
}

void arena::list(granule_range within, std::vector<arena_part>& out) const {
  const arena_guard held(lock_);
  std::uint32_t at = within.offset;
  for (region_id r = regions_.find(at); at < within.end(); r = regions_.after(r)) {
    const granule_range where = regions_.where(r);
    check(!is_arena_hole(regions_, r), "an arena lacks memory of its refills");
    const std::uint32_t end = std::min(where.end(), within.end());
    out.push_back({{at, end - at}, is_arena_block(regions_, r)});
    at = end;
  }
}

arena_numbers arena::numbers() const noexcept {
  const arena_guard held(lock_);
  check(live_granules_ <= regions_.count_granules(),
        "an arena has more live granules than "
        "granules");
  const std::uint64_t free_granules = regions_.listed_granules(free_kind) + leaving_granules_;
  return {live_granules_, free_granules, blocks_.count(), taken_count_};
}

const char* arena::broken_invariant() const noexcept {
  const arena_guard held(lock_);
  if (!regions_.validate()) return "the regions of an arena are broken";
  if (const char* broken = blocks_.broken_invariant(); broken != nullptr) return broken;
  std::uint64_t live_count = 0;
  std::uint64_t live_granules = 0;
  std::uint64_t leaving_granules = 0;
  for (region_id r = regions_.first(); r != region_id::none; r = regions_.after(r)) {
    const region_id next = regions_.after(r);
    const bool is_free = regions_.kind(r) == free_kind;
    if (is_free && next != region_id::none && regions_.kind(next) == free_kind)
      return "two free neighbours in an arena are not coalesced";
    if (is_free || is_arena_hole(regions_, r)) continue;
    if (!is_arena_block(regions_, r)) leaving_granules += regions_.where(r).count;
    if (!is_arena_block(regions_, r)) continue;
    ++live_count;
    live_granules += regions_.where(r).count;
    if (blocks_.find(regions_.where(r).offset) != r) return "an arena's block is in no table";
  }
  check(live_count <= regions_.count_granules(), "an arena has more blocks than granules");
  if (live_count != blocks_.count()) return "an arena's table has a block that is not live";
  if (leaving_granules != leaving_granules_) return "an arena's count of leaving granules is wrong";
  return live_granules == live_granules_ ? nullptr : "an arena's count of granules is wrong";
}

// ---- the arenas of a pool ------------------------------------------------------------

// A place that was used before is used again; a new one keeps the others in a row.
std::uint32_t arena_table::place_for(stream_handle stream) const noexcept {
  const std::uint32_t home = slot_of(stream);
  check(home < bucket_count, "a stream's arena has no place");
  for (std::uint32_t slot = 0; slot < slots; ++slot) {
    const std::uint64_t key = buckets_[home].keys[slot].load(std::memory_order_relaxed);
    if (key == never_used || key == used_before) return home * slots + slot;
  }
  return none;
}

bool arena_table::takes(stream_handle stream) const noexcept {
  check(slot_of(stream) < bucket_count, "a stream's arena has no place");
  return key_of(stream) != used_before && number_of(stream) == none && place_for(stream) != none;
}

void arena_table::add(stream_handle stream, std::uint32_t record,
                      std::unique_ptr<arena> made) noexcept {
  check(takes(stream) && record != none, "an arena is added without a place or a stream");
  const std::uint32_t number = place_for(stream);
  if (arenas_[number] == nullptr) arenas_[number] = std::move(made);
  check(leases_[number].record == none, "I4: an arena's place belongs to another stream");
  leases_[number] = {record};
  arenas_[number]->set_stream(stream);
  buckets_[number / slots].keys[number % slots].store(key_of(stream), std::memory_order_release);
}

void arena_table::remove(stream_handle stream) noexcept {
  const std::uint32_t number = number_of(stream);
  check(number != none, "a missing arena is removed");
  check(leases_[number].lent_granules == 0, "an arena is removed with memory in it");
  arenas_[number]->end_stream();
  leases_[number] = {};
  buckets_[number / slots].keys[number % slots].store(used_before, std::memory_order_release);
}

}  // namespace vmm

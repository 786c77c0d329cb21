// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// What the book says of itself, and how it is checked.
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

module vmm.stream;

import vmm.backend;
import vmm.physical;
import vmm.va;

namespace vmm {

bool pool_book::has_headroom(const book_request& request, std::uint64_t held_bytes) const noexcept {
  return headroom(request, held_bytes) >= request.count_granules;
}

std::uint64_t pool_book::live_count() const noexcept {
  std::uint64_t count = 0;
  for (const auto& in : segments_) count += in->starts.count() + in->held.count();
  return count;
}

std::uint64_t pool_book::largest_free_bytes() const noexcept {
  std::uint32_t largest = 0;
  for (const auto& in : segments_) {
    for (std::uint32_t stream = 0; stream < stream_count(); ++stream) {
      if (phase_of(stream) == stream_phase::capture) continue;
      largest = std::max(largest, in->regions.largest(kind_of(stream)));
    }
  }
  return largest * granule_bytes;
}

pool_statistics pool_book::statistics() const noexcept {
  pool_statistics now = numbers_;
  std::uint64_t free_granules = 0;
  std::uint64_t captured_granules = 0;
  std::uint64_t hole_granules = 0;
  for (const auto& in : segments_) {
    now.reserved_bytes += in->where.range.size_bytes;
    hole_granules += in->regions.listed_granules(hole_kind);
    for (std::uint32_t stream = 0; stream < stream_count(); ++stream) {
      const bool kept = phase_of(stream) == stream_phase::capture;
      (kept ? captured_granules : free_granules) += in->regions.listed_granules(kind_of(stream));
    }
  }
  now.mapped_bytes = slab_granules_ * granule_bytes;
  now.live_bytes = (live_granules_ - captured_granules) * granule_bytes;
  now.peak_live_bytes = peak_live_granules_ * granule_bytes;
  now.reusable_bytes = free_granules * granule_bytes;
  now.captured_bytes = captured_granules * granule_bytes;
  now.hole_bytes = hole_granules * granule_bytes;
  now.zombie_bytes = stale_.granules() * granule_bytes;
  now.zombie_count = stale_.count();
  now.live_count = live_count();
  for (std::uint32_t stream = 0; stream < stream_count(); ++stream)
    now.stream_count += phase_of(stream) == stream_phase::active ? 1U : 0U;
  return now;
}

void pool_book::write_shortage(const book_request& request, shortage_report report) noexcept {
  const pool_statistics now = statistics();
  report.request_bytes = request.count_granules * granule_bytes;
  report.stream = progress_.shown_handle(request.stream);
  report.live_bytes = now.live_bytes;
  report.reusable_bytes = now.reusable_bytes;
  report.largest_free_bytes = largest_free_bytes();
  shortage_ = report;
}

status pool_book::list_regions(std::vector<pool_region>& out) const {
  try {
    for (const auto& in : segments_) {
      const region_map& regions = in->regions;
      for (region_id r = regions.first(); r != region_id::none; r = regions.after(r)) {
        const granule_range where = regions.where(r);
        pool_region shown{{address_in(*in, where.offset), where.count * granule_bytes}};
        const region_kind kind = regions.kind(r);
        if (is_free_kind(kind)) {
          shown.kind = pool_region_kind::free;
          shown.stream = progress_.shown_handle(stream_of(kind));
        } else if (kind == region_kind::unlisted) {
          const region_state state = state_of(regions.tag(r));
          shown.kind = state == region_state::live    ? pool_region_kind::live
                       : state == region_state::stale ? pool_region_kind::zombie
                                                      : pool_region_kind::busy;
        }
        const bool continues = shown.kind == pool_region_kind::zombie && !out.empty() &&
                               out.back().kind == pool_region_kind::zombie &&
                               out.back().range.end() == shown.range.base;
        if (continues) {
          out.back().range.size_bytes += shown.range.size_bytes;
        } else {
          out.push_back(shown);
        }
      }
    }
    return {};
  } catch (const std::bad_alloc&) {
    return refuse(errc::out_of_host_memory, "no host memory is left for a list of regions");
  }
}

void pool_book::merge_passed(std::uint32_t stream) noexcept {
  for (const auto& in : segments_) {
    region_map& regions = in->regions;
    for (region_id r = regions.first(); r != region_id::none;) {
      const region_id next = regions.after(r);
      const bool joins = absorbs(*in, r, stream) &&
                         (absorbs(*in, regions.before(r), stream) || absorbs(*in, next, stream));
      if (!joins) {
        r = next;
        continue;
      }
      const bool own = regions.kind(r) == kind_of(stream);
      const std::uint64_t epoch = own ? regions.word(r) : 0;
      const std::uint32_t end = regions.where(r).end();
      regions.unlist(r);
      make_free(*in, r, {stream, epoch});
      r = end < regions.count_granules() ? regions.find(end) : region_id::none;
      if (r != region_id::none && regions.where(r).offset < end) r = regions.after(r);
    }
  }
}

void pool_book::surrender() noexcept {
  for (const auto& in : segments_) {
    const region_map& regions = in->regions;
    for (region_id r = regions.first(); r != region_id::none; r = regions.after(r)) {
      const region_kind kind = regions.kind(r);
      if (is_free_kind(kind) && phase_of(stream_of(kind)) == stream_phase::capture)
        release_range(*in, regions.where(r), stream_of(kind));
    }
  }
  progress_.surrender();
  commons_ = no_stream;
  captures_.clear();
  numbers_.pinned_count = 0;
  for (const auto& in : segments_) {
    for (region_id r = in->regions.first(); r != region_id::none;) {
      const region_id next = in->regions.after(r);
      const bool live = in->regions.kind(r) == region_kind::unlisted &&
                        state_of(in->regions.tag(r)) == region_state::live;
      const std::uint32_t end = in->regions.where(r).end();
      if (live) {
        const std::uint32_t offset = in->regions.where(r).offset;
        if (in->starts.take(offset) == region_id::none) (void)in->held.take(offset);
        settle_free(*in, r, 0);
      }
      r = next;
      if (live && next != region_id::none) r = in->regions.find(end);
    }
  }
  if (stream_count() != 0) progress_.note_passed({0, progress_.clock()});
}

// ---- validation ----------------------------------------------------------------------

const char* pool_book::broken_region(const segment& in, region_id region,
                                     tally& sums) const noexcept {
  const region_map& regions = in.regions;
  const granule_range where = regions.where(region);
  const region_kind kind = regions.kind(region);
  const view* const under = in.pages[where.offset >> unit_shift_];
  if (kind == hole_kind) {
    if (under != nullptr) return "a hole has memory under it";
    return regions.kind(regions.before(region)) == hole_kind ? "two holes are neighbours" : nullptr;
  }
  if (under == nullptr) return "a region that is no hole has no memory under it";
  const region_state state = state_of(regions.tag(region));
  if (kind == region_kind::unlisted && state == region_state::stale) {
    if (regions.word(region) != reinterpret_cast<std::uint64_t>(under) || !under->is_stale)
      return "a stale region does not know its view";
    if (where != granule_range{under->offset, under->count_granules})
      return "a stale region is not its view's";
    ++sums.zombies;
    return nullptr;
  }
  sums.owned += where.count;
  if (is_free_kind(kind)) {
    if (regions.kind(regions.before(region)) == kind) return "two free neighbours are not merged";
    if (regions.word(region) > progress_.last_epoch(stream_of(kind)))
      return "a free region is newer than its stream";
    if (phase_of(stream_of(kind)) == stream_phase::capture) sums.live += where.count;
    return nullptr;
  }
  if (state != region_state::live) return "a region is claimed while no growth is under way";
  if (regions.link(region) != under) return "a block does not know where it begins";
  sums.live += where.count;
  const bool started = in.starts.find(where.offset) == region;
  const bool held = in.held.find(where.offset) == region;
  if (started && regions.word(region) != 0) return "a block that is not held has a note";
  if (held && hold_of(in, region).pins != 0) ++sums.pinned;
  sums.started += started ? 1U : 0U;
  sums.held += held ? 1U : 0U;
  return started != held ? nullptr : "a block is in no table, or in both";
}

const char* pool_book::broken_slab(const segment& in, const view& v) const noexcept {
  const slab& s = *v.of;
  std::uint64_t live = 0;
  const std::uint32_t end = v.offset + v.count_granules;
  for (region_id r = in.regions.find_page(v.offset >> unit_shift_);
       r != region_id::none && in.regions.where(r).offset < end; r = in.regions.after(r)) {
    const granule_range where = in.regions.where(r);
    const region_kind kind = in.regions.kind(r);
    const bool kept = is_free_kind(kind) && phase_of(stream_of(kind)) == stream_phase::capture;
    if (kind != region_kind::unlisted && !kept) continue;
    live += std::min(where.end(), end) - std::max(where.offset, v.offset);
  }
  if (live != v.live_granules) return "a slab's count of live granules is wrong";
  if (s.is_whole != (live == 0)) return "a slab is whole and not in a list, or the reverse";
  return nullptr;
}

namespace {

// Most of a segment is a hole: as many units at a time are seen to be empty.
constexpr std::uint32_t units_at_a_look = 64;
constexpr const view* nothing_mapped[units_at_a_look] = {};

}  // namespace

const char* pool_book::broken_views(const segment& in, tally& sums) const noexcept {
  const view* before = nullptr;
  for (std::uint32_t unit = 0; unit < in.page_count; ++unit) {
    const view* const v = in.pages[unit];
    if (v == nullptr && unit % units_at_a_look == 0 && unit + units_at_a_look <= in.page_count &&
        std::memcmp(&in.pages[unit], nothing_mapped, sizeof nothing_mapped) == 0) {
      before = nullptr;
      unit += units_at_a_look - 1;
      continue;
    }
    if (v != nullptr && v != before) {
      if (v->offset >> unit_shift_ != unit) return "a view is not where it says";
      const bool last = unit + (v->count_granules >> unit_shift_) >= in.page_count;
      const bool is_end = !last && in.pages[unit + (v->count_granules >> unit_shift_)] == nullptr;
      if (v->is_end != is_end) return "the end of a window is not marked, or another view is";
      if (!v->is_stale) {
        if (v->of == nullptr || v->of->current != v) return "a current view is not its slab's";
        sums.slab_granules += v->count_granules;
        if (const char* broken = broken_slab(in, *v); broken != nullptr) return broken;
      }
    }
    before = v;
  }
  return nullptr;
}

// After all of its regions.
const char* pool_book::broken_tables(const segment& in, tally& sums) const noexcept {
  const std::uint64_t started = std::exchange(sums.started, 0);
  const std::uint64_t held = std::exchange(sums.held, 0);
  if (const char* broken = in.starts.broken_invariant(); broken != nullptr) return broken;
  if (const char* broken = in.held.broken_invariant(); broken != nullptr) return broken;
  const bool agree = started == in.starts.count() && held == in.held.count();
  return agree ? nullptr : "a table of blocks has one that is not live";
}

status pool_book::validate() const noexcept {
  tally sums;
  for (const auto& in : segments_) {
    if (status valid = in->regions.validate(); !valid) return valid;
    const region_map& regions = in->regions;
    for (region_id r = regions.first(); r != region_id::none; r = regions.after(r)) {
      if (const char* broken = broken_region(*in, r, sums); broken != nullptr)
        return refuse(errc::internal, broken);
    }
    for (const char* broken : {broken_views(*in, sums), broken_tables(*in, sums)}) {
      if (broken != nullptr) return refuse(errc::internal, broken);
    }
  }
  const char* broken = nullptr;
  if (sums.live != live_granules_) broken = "the count of live granules is wrong";
  if (sums.slab_granules != slab_granules_) broken = "the count of physical granules is wrong";
  if (sums.owned != slab_granules_) broken = "live and free memory is not all memory";
  if (sums.pinned != numbers_.pinned_count) broken = "the count of pinned blocks is wrong";
  if (sums.zombies != stale_.count()) broken = "the count of zombies is wrong";
  if (broken != nullptr) return refuse(errc::internal, broken);
  return {};
}

}  // namespace vmm

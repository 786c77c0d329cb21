// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module vmm.stream;

import vmm.backend;
import vmm.base;
import vmm.std;
import vmm.timeline;
import vmm.va;

namespace vmm {

namespace {

constexpr error inside_block = refuse(
    errc::invalid_argument, "the address lies inside a block: pass the one that allocate returned");

}  // namespace

segment::segment(const extent& where, const pool_geometry& sizes, region_map&& regions,
                 unit_table&& units) noexcept
    : base_(where.range.base),
      regions_(std::move(regions)),
      where_(where),
      units_(std::move(units)),
      unit_shift_(sizes.unit_shift),
      unit_count_(regions_.count_granules() / sizes.unit_granules) {
  check(unit_count_ != 0 && units_ != nullptr, "a segment holds no unit");
  regions_.list(regions_.first(), hole_kind);
}

result<std::unique_ptr<segment>> segment::create(const extent& where, const pool_geometry& sizes,
                                                 std::uint32_t stream_count) noexcept {
  check(where.range.size_bytes <= sizes.segment_bytes, "a segment is larger than one can be");
  check(where.range.size_bytes % sizes.unit_bytes == 0, "a segment ends inside a unit");
  const std::uint32_t count = granules_in(where.range.size_bytes);
  result<region_map> regions =
      region_map::create({count, page_units * sizes.unit_granules, sizes.slot_granules()});
  if (!regions) return regions.error();
  for (std::uint32_t kinds = 0; kinds < stream_count + first_stream_kind - 1; ++kinds) {
    if (const auto kind = regions->add_kind(); !kind) return kind.error();
  }
  check(regions->kind_count() == stream_count + 1, "a segment has no list for a record");
  const std::uint32_t units = count / sizes.unit_granules;
  unit_table table{static_cast<mapping**>(std::calloc(units, sizeof(mapping*)))};
  if (table == nullptr) return no_record_memory;
  std::unique_ptr<segment> made{new (std::nothrow)
                                    segment(where, sizes, std::move(*regions), std::move(table))};
  if (made == nullptr) return no_record_memory;
  return made;
}

status segment::provide_streams(std::uint32_t count) noexcept {
  while (regions_.kind_count() < count + first_stream_kind - 1) {
    if (const auto kind = regions_.add_kind(); !kind) return kind.error();
  }
  check(hole_kind < kind_of(count), "the lists of holes and of streams overlap");
  return {};
}

// ---- aligned blocks ------------------------------------------------------------------

granule_range segment::place_in(std::uint32_t offset,
                                const stream_request& request) const noexcept {
  check(std::has_single_bit(request.spare_granules + 1), "an alignment is not a power of two");
  const std::uint64_t granule = address_of(offset).value / granule_bytes;
  const auto lead = static_cast<std::uint32_t>(-granule & request.spare_granules);
  check(lead <= request.spare_granules, "a block is not at the next aligned place");
  return {offset + lead, request.block_granules()};
}

region_id segment::find_for(const stream_request& request) const noexcept {
  if (!request.is_aligned()) return find_free(request);
  const region_id found = find_free(request.placed());
  check(found == region_id::none || range(found).count >= request.block_granules(),
        "a region does not take its request");
  if (found == region_id::none ||
      place_in(range(found).offset, request).end() <= range(found).end())
    return found;
  return find_free(request);
}

void segment::cut_lead(region_id found, std::uint32_t count) noexcept {
  const region_kind own = kind(found);
  const std::uint64_t epoch = regions_.word(found);
  check(is_free_kind(own) && range(found).count > count, "more is cut off than is free");
  const region_id lead = regions_.take_head(found, count);
  pass_link_on(lead, found);
  regions_.list(lead, own);
  regions_.set_note(lead, {epoch, 0});
  debug_check([&] { return regions_.after(lead) == found; }, "a cut has lost its neighbour");
}

// ---- live granules -------------------------------------------------------------------

// Out of line: count_live() is inline.
[[gnu::noinline]] void segment::count_live_in_each(granule_range what, mapping& first,
                                                   mappings& records) noexcept {
  mapping* next = &first;
  for (std::uint32_t at = what.offset; at < what.end();) {
    mapping& m = *std::exchange(next, next->right);
    debug_check([&] { return &m == mapping_at(at); }, "a mapping's neighbour is another");
    const std::uint32_t end = std::min(m.end(), what.end());
    debug_check([&] { return end > at && m.of->current == &m; }, "I2: stale memory is allocated");
    if (m.live_granules == 0 && m.of->is_free) records.leave_free(*m.of);
    debug_check([&] { return !m.is_stale() && at >= m.offset; },
                "I2: a range is not under its mapping");
    m.live_granules += end - at;
    check(m.live_granules <= m.count_granules, "more of a mapping is live than there is");
    at = end;
  }
}

void segment::release_range(granule_range what, const stream_point& at,
                            mappings& records) noexcept {
  release_in_each(what, *mapping_at(what.offset), at, records);
  records.subtract_live(what.count);
}

void segment::release_in_each(granule_range what, mapping& first, const stream_point& at,
                              mappings& records) noexcept {
  debug_check([&] { return what.count != 0 && what.end() <= regions_.count_granules(); },
              "a range leaves its segment");
  mapping* next = &first;
  for (std::uint32_t from = what.offset; from < what.end();) {
    mapping& m = *std::exchange(next, next->right);
    debug_check([&] { return &m == mapping_at(from); }, "a mapping's neighbour is another");
    const std::uint32_t end = std::min(m.end(), what.end());
    check(end > from && m.live_granules >= end - from, "more of a mapping is freed than is live");
    debug_check([&] { return !m.is_stale() && m.of->current == &m; }, "stale memory is freed");
    m.live_granules -= end - from;
    debug_check([&] { return m.of != nullptr && !m.of->is_free; },
                "a handle with live memory is free");
    if (m.live_granules == 0) records.enter_free(*m.of, at);
    from = end;
  }
}

void segment::keep_free(region_id region, const stream_point& since, mappings& records,
                        const stream_table& streams) noexcept {
  check(kind(region) == region_kind::unlisted, "a listed region is kept");
  if (streams.is_capture(since.stream)) count_live(range(region), mapping_under(region), records);
  make_free(region, since, streams);
}

// ---- free regions and holes ----------------------------------------------------------

// Merges neighbours as long as one fits. Each step ends one region.
void segment::coalesce(region_id region, const stream_point& since,
                       const stream_table& streams) noexcept {
  check(kind(region) == region_kind::unlisted, "a free region is freed");
  const region_kind own = kind_of(since.stream);
  std::uint64_t epoch = since.epoch;
  region_id kept = region;
  for (region_id left = regions_.before(kept); absorbs(left, since.stream, streams);
       left = regions_.before(kept)) {
    if (regions_.kind(left) == own) epoch = std::max(epoch, regions_.word(left));
    regions_.unlist(left);
    regions_.join(left, kept);
    kept = left;
  }
  for (region_id right = regions_.after(kept); absorbs(right, since.stream, streams);
       right = regions_.after(kept)) {
    if (regions_.kind(right) == own) epoch = std::max(epoch, regions_.word(right));
    regions_.unlist(right);
    regions_.join(kept, right);
  }
  regions_.set_note(kept, {epoch, 0});
  regions_.list(kept, own);
  check(epoch >= since.epoch, "I3: a coalesced region is older than a part of it");
  debug_check([&] { return segment_audit(*this).broken_region(kept) == nullptr; },
              "a free region is broken");
  debug_check(
      [&] {
        return !absorbs(regions_.before(kept), since.stream, streams) &&
               !absorbs(regions_.after(kept), since.stream, streams);
      },
      "I4: a finished neighbour is not coalesced");
  audit();
}

void segment::make_hole(region_id region) noexcept {
  check(kind(region) == region_kind::unlisted, "a listed region becomes a hole");
  check(mapping_at(range(region).offset) == nullptr, "a mapped region becomes a hole");
  region_id kept = region;
  if (const region_id left = regions_.before(kept); regions_.kind(left) == hole_kind) {
    regions_.unlist(left);
    regions_.join(left, kept);
    kept = left;
  }
  if (const region_id right = regions_.after(kept); regions_.kind(right) == hole_kind) {
    regions_.unlist(right);
    regions_.join(kept, right);
  }
  regions_.set_note(kept, {});
  regions_.list(kept, hole_kind);
  debug_check([&] { return segment_audit(*this).broken_region(kept) == nullptr; },
              "a hole is broken");
  audit();
}

// ---- locked blocks -------------------------------------------------------------------

error segment::no_block_at(std::uint64_t offset_bytes) const noexcept {
  const std::uint32_t offset = granules_in(offset_bytes);
  if (offset >= regions_.count_granules()) return no_block;
  const region_id around = regions_.find(offset);
  check(around != region_id::none, "I1: a granule lies in no region");
  const bool is_live =
      kind(around) == region_kind::unlisted && state_of(regions_.tag(around)) == region_state::live;
  const bool begins_there = range(around).offset == offset && offset_bytes % granule_bytes == 0;
  if (!is_live || begins_there) return no_block;
  return (regions_.tag(around) & freed_bit) != 0 ? no_block : inside_block;
}

result<segment::found_block> segment::find_block(std::uint64_t offset_bytes) noexcept {
  if (offset_bytes % granule_bytes != 0) return no_block_at(offset_bytes);
  found_block found{this, granules_in(offset_bytes)};
  found.region = blocks_.find(found.offset);
  if (found.region == region_id::none) {
    found.region = locked_.find(found.offset);
    found.is_locked = true;
  }
  if (found.region == region_id::none) return no_block_at(offset_bytes);
  check(range(found.region).offset == found.offset, "I6: a block does not begin where it is found");
  return found;
}

block_lock segment::lock_of(region_id block) const noexcept {
  const std::uint64_t word = regions_.word(block);
  const std::uint32_t tag = regions_.tag(block);
  check(state_of(tag) == region_state::live, "a region that is not a block is locked");
  check((tag & freed_bit) == 0 || static_cast<std::uint32_t>(word) != 0 ||
            (tag & own_rights_bit) != 0,
        "a block that is freed and not pinned stays");
  return {static_cast<std::uint32_t>(word), static_cast<std::uint32_t>(word >> 32),
          (tag & freed_bit) != 0, (tag & captured_bit) != 0, (tag & own_rights_bit) != 0};
}

void segment::write_lock(region_id block, const block_lock& lock) noexcept {
  check(!lock.freed || lock.pins != 0 || lock.has_own_rights,
        "a block that is freed and not pinned stays");
  check((lock.freed || lock.captured) == (lock.stream != stream_table::no_stream),
        "a locked block names a record and needs none, or the reverse");
  check(state_of(regions_.tag(block)) == region_state::live,
        "a region that is not a block is "
        "locked");
  const std::uint64_t word = lock.pins | std::uint64_t{lock.stream} << 32;
  const std::uint32_t bits = (lock.freed ? freed_bit : 0) | (lock.captured ? captured_bit : 0) |
                             (lock.has_own_rights ? own_rights_bit : 0);
  regions_.set_note(block, {word, tag_of(region_state::live) | bits});
  debug_check(
      [&] { return lock_of(block).pins == lock.pins && lock_of(block).freed == lock.freed; },
      "a block's lock record changed");
}

bool segment::lock_block(const found_block& block) noexcept {
  check(!block.is_locked, "a block is locked twice");
  if (!locked_.reserve(regions_.count_granules())) return false;
  const region_id taken = blocks_.take(block.offset);
  check(taken == block.region, "I7: a live block is in no table");
  locked_.insert(block.offset, block.region);
  debug_check([&] { return blocks_.find(block.offset) == region_id::none; },
              "I7: a block is in both tables");
  check(range(block.region).offset == block.offset, "I6: a block does not begin where it is found");
  return true;
}

bool segment::unlock_block(const found_block& block) noexcept {
  check(block.is_locked, "a block is unlocked that is not locked");
  check(range(block.region).offset == block.offset, "I6: a block does not begin where it is found");
  if (!provide_entry()) return false;
  const region_id taken = locked_.take(block.offset);
  check(taken == block.region, "a locked block is in no table");
  regions_.set_note(block.region, {0, tag_of(region_state::live)});
  blocks_.insert(block.offset, block.region);
  debug_check([&] { return locked_.find(block.offset) == region_id::none; },
              "I7: a block is in both tables");
  return true;
}

void segment::forget_block(const found_block& block) noexcept {
  const region_id taken = (block.is_locked ? locked_ : blocks_).take(block.offset);
  check(taken == block.region, "I7: a live block is in no table");
  check(state_of(regions_.tag(block.region)) == region_state::live, "a block is not live");
  debug_check([&] { return locked_.find(block.offset) == region_id::none; },
              "a block was in both tables");
}

// ---- memory of arenas -----------------------------------------------------

void segment::lend(region_id found, std::uint32_t count, std::uint32_t number,
                   mappings& records) noexcept {
  check(is_free_kind(kind(found)) && count != 0, "a refill has memory that is not free");
  const region_id region = take_free(found, count);
  const granule_range lent = range(region);
  check(lent.count == count, "a refill does not have the requested size");
  count_live_in_each(lent, *mapping_at(lent.offset), records);
  regions_.set_note(region, {0, tag_of(region_state::lent)});
  pass_lent(region, number);
}

void segment::pass_lent(region_id region, std::uint32_t number) noexcept {
  check(is_lent(region), "transferred memory is in no arena");
  regions_.set_note(region, {0, tag_of(region_state::lent) | number << 8});
  const auto joins = [&](region_id neighbour) {
    return is_lent(neighbour) && lent_to(neighbour) == number;
  };
  if (const region_id left = regions_.before(region); joins(left)) {
    regions_.join(left, region);
    region = left;
  }
  if (const region_id right = regions_.after(region); joins(right)) regions_.join(region, right);
  debug_check([&] { return segment_audit(*this).broken_region(region) == nullptr; },
              "I8: a lent region is broken");
}

region_id segment::cut_lent(granule_range what) noexcept {
  region_id region = regions_.find(what.offset);
  check(is_lent(region) && range(region).end() >= what.end(),
        "I8: a range does not belong to one arena");
  if (const std::uint32_t lead = what.offset - range(region).offset; lead != 0)
    region = regions_.cut(region, lead);
  if (range(region).count > what.count) (void)regions_.cut(region, what.count);
  check(range(region) == what, "a lent range was cut elsewhere");
  return region;
}

void segment::free_lent(region_id region, const stream_point& since, mappings& records,
                        const stream_table& streams) noexcept {
  check(is_lent(region), "returned memory was in no arena");
  release_in_each(range(region), mapping_under(region), since, records);
  make_free(region, since, streams);
}

void segment::make_lent_live(region_id region) noexcept {
  check(is_lent(region), "returned memory was in no arena");
  const std::uint32_t offset = range(region).offset;
  regions_.set_note(region, {0, tag_of(region_state::live)});
  regions_.set_link(region, mapping_at(offset));
  blocks_.insert(offset, region);
  debug_check([&] { return segment_audit(*this).broken_region(region) == nullptr; },
              "a block's region is broken");
}

// ---- claims --------------------------------------------------------------------------

void segment::note_claim(region_id region, std::uint64_t epoch, std::uint32_t stream) noexcept {
  check(!regions_.listed(region), "I5: a listed region is claimed");
  regions_.set_note(region, {epoch, claim_tag(stream)});
  regions_.set_link(region, nullptr);
}

void segment::claim_free(region_id region) noexcept {
  const region_kind was = kind(region);
  check(region != region_id::none, "nothing is claimed");
  check(is_free_kind(was), "memory that is not free is claimed");
  regions_.unlist(region);
  note_claim(region, regions_.word(region), stream_of(was));
  debug_check([&] { return is_claimed(region) && claimed_at(region).stream == stream_of(was); },
              "I5: a claim lost its owner");
}

void segment::claim_head(region_id region, std::uint32_t count) noexcept {
  const region_kind was = kind(region);
  check(is_free_kind(was) && range(region).count >= count, "more is claimed than is free");
  regions_.unlist(region);
  if (range(region).count > count) {
    const region_id rest = regions_.cut(region, count);
    regions_.list(rest, was);
    debug_check([&] { return regions_.before(rest) == region; }, "a cut has lost its neighbour");
  }
  note_claim(region, regions_.word(region), stream_of(was));
  check(range(region).count == count, "a claim does not have the requested size");
}

void segment::return_claim(region_id region, const stream_table& streams) noexcept {
  check(is_claimed(region), "an unclaimed region is returned");
  make_free(region, claimed_at(region), streams);
}

status segment::cut_at_borders(granule_range what) noexcept {
  check(what.count != 0 && what.end() <= regions_.count_granules(), "a range leaves its segment");
  if (!regions_.provide(2)) return no_record_memory;
  for (const std::uint32_t border : {what.offset, what.end()}) {
    if (border >= regions_.count_granules()) continue;
    const region_id around = region_at_unit(border);
    const std::uint32_t left = border - range(around).offset;
    if (left == 0) continue;
    const region_kind own = kind(around);
    check(is_free_kind(own), "a free handle's border lies in a region that is not free");
    regions_.unlist(around);
    const region_id right = regions_.cut(around, left);
    regions_.list(around, own);
    regions_.list(right, own);
    debug_check([&] { return regions_.after(around) == right && range(right).offset == border; },
                "a cut is not at the requested place");
  }
  return {};
}

region_id segment::claim_hole(region_id hole, const target_size& size,
                              std::uint32_t stream) noexcept {
  check(kind(hole) == hole_kind && size.count_granules != 0, "addresses that are used are claimed");
  if (range(hole).count < std::uint64_t{size.lead_granules} + size.count_granules)
    return region_id::none;
  if (!regions_.provide(2)) return region_id::none;
  regions_.unlist(hole);
  region_id target = hole;
  if (size.lead_granules != 0) {
    target = regions_.cut(hole, size.lead_granules);
    regions_.list(hole, hole_kind);
    debug_check([&] { return range(hole).count == size.lead_granules; }, "a lead has another size");
  }
  if (range(target).count > size.count_granules) {
    const region_id rest = regions_.cut(target, size.count_granules);
    regions_.list(rest, hole_kind);
  }
  note_claim(target, 0, stream);
  check(range(target).count == size.count_granules, "a claim does not have the requested size");
  return target;
}

region_id segment::cut_claimed(region_id region, std::uint32_t count_left) noexcept {
  check(is_claimed(region), "an unclaimed region is cut");
  const region_id rest = regions_.cut(region, count_left);
  debug_check([&] { return regions_.after(region) == rest && regions_.before(rest) == region; },
              "a cut has lost its neighbour");
  return rest;
}

void segment::join_claimed(region_id left, region_id right) noexcept {
  check(is_claimed(left) && is_claimed(right), "unclaimed regions are joined");
  const std::uint32_t end = range(right).end();
  check(range(left).end() == range(right).offset, "regions are joined that are not adjacent");
  regions_.join(left, right);
  debug_check([&] { return range(left).end() == end; }, "two regions do not make one");
}

void segment::set_claim(region_id region, const stream_point& since) noexcept {
  check(is_claimed(region), "an unclaimed region gets another owner");
  check(since.epoch != 0, "a claim is older than the pool");
  note_claim(region, since.epoch, since.stream);
  debug_check([&] { return claimed_at(region).stream == since.stream; },
              "a claim is another stream's");
}

// ---- mappings ------------------------------------------------------------------------

void segment::map(mapping& m, mappings& records) noexcept {
  const std::uint32_t unit = m.offset >> unit_shift_;
  const std::uint32_t count = m.count_granules >> unit_shift_;
  check(m.offset == unit << unit_shift_ && m.count_granules == count << unit_shift_ && count != 0,
        "a mapping begins or ends inside a unit");
  check(unit + count <= unit_count_, "a mapping leaves its segment");
  for (std::uint32_t i = 0; i < count; ++i) {
    check(units_[unit + i] == nullptr, "a mapping is put over another one");
    units_[unit + i] = &m;
  }
  const bool is_last = unit + count == unit_count_;
  m.right = is_last ? nullptr : units_[unit + count];
  records.set_end(m, !is_last && m.right == nullptr);
  if (unit == 0 || units_[unit - 1] == nullptr) return;
  mapping& left = *units_[unit - 1];
  check(left.right == nullptr, "a mapping is put between neighbours");
  left.right = &m;
  records.set_end(left, false);
}

void segment::unmap(mapping& m, mappings& records) noexcept {
  const std::uint32_t unit = m.offset >> unit_shift_;
  const std::uint32_t count = m.count_granules >> unit_shift_;
  check(units_[unit] == &m && units_[unit + count - 1] == &m, "a missing mapping is removed");
  check(unit + count <= unit_count_ && m.live_granules == 0,
        "a mapping with live memory is removed");
  std::fill_n(units_.get() + unit, count, nullptr);
  records.set_end(m, false);
  m.right = nullptr;
  if (unit == 0 || units_[unit - 1] == nullptr) return;
  units_[unit - 1]->right = nullptr;
  records.set_end(*units_[unit - 1], true);
}

region_id segment::join_regions(const mapping& m) noexcept {
  const region_id kept = region_at_unit(m.offset);
  check(range(kept).offset == m.offset, "a mapping's first region begins elsewhere");
  while (range(kept).count < m.count_granules) regions_.join(kept, regions_.after(kept));
  check(range(kept) == m.range(), "a mapping's regions do not tile it");
  return kept;
}

void segment::make_stale(region_id region, mapping& m) noexcept {
  check(range(region) == m.range(), "a stale region is not its mapping's");
  check(is_claimed(region), "unclaimed memory moves");
  check(mapping_at(m.offset) == &m, "a stale region is not under its mapping");
  check(m.live_granules == 0, "live memory moves");
  regions_.set_note(region, {reinterpret_cast<std::uint64_t>(&m), tag_of(region_state::stale)});
}

}  // namespace vmm

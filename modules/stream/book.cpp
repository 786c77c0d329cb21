// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Streams, and what needs no driver: allocate, free, other streams' memory.
module;
#include <sys/mman.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <span>
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

[[nodiscard]] std::uint32_t granules(std::uint64_t size_bytes) noexcept {
  return static_cast<std::uint32_t>(size_bytes / granule_bytes);
}

// Slots are reached at random, so that with small pages most of what a look costs is address
// translation. A hint, for what lies in whole huge pages, before anything is written there.
void prefer_huge_pages(void* memory, std::size_t size_bytes) noexcept {
  constexpr std::uintptr_t huge_page_bytes = std::uintptr_t{2} << 20;
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  const std::uintptr_t first = (begin + huge_page_bytes - 1) / huge_page_bytes * huge_page_bytes;
  const std::uintptr_t last = (begin + size_bytes) / huge_page_bytes * huge_page_bytes;
  if (first < last) (void)::madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
}

}  // namespace

std::uint32_t start_table::places_of(const bucket& in, std::uint32_t offset) noexcept {
#if defined(__SSE2__)
  const __m128i wanted = _mm_set1_epi32(static_cast<int>(offset));
  const auto four = [&](int which) {
    const auto* const from = reinterpret_cast<const __m128i*>(in.offsets) + which;
    return _mm_cmpeq_epi32(_mm_load_si128(from), wanted);
  };
  const __m128i eight = _mm_packs_epi32(four(0), four(1));
  return static_cast<std::uint32_t>(_mm_movemask_epi8(_mm_packs_epi16(eight, _mm_setzero_si128())));
#else
  std::uint32_t found = 0;
  for (std::uint32_t place = 0; place < places; ++place)
    found |= (in.offsets[place] == offset ? 1U : 0U) << place;
  return found;
#endif
}

void start_table::insert(std::uint32_t offset, region_id region) noexcept {
  std::uint32_t at = home(offset);
  std::uint32_t room = places_of(buckets_[at], nowhere);
  while (room == 0) [[unlikely]] {
    at = (at + 1) & mask_;
    room = places_of(buckets_[at], nowhere);
  }
  const auto place = static_cast<std::uint32_t>(std::countr_zero(room));
  buckets_[at].offsets[place] = offset;
  buckets_[at].regions[place] = region;
  ++count_;
}

region_id start_table::take(std::uint32_t offset) noexcept {
  if (count_ == 0) return region_id::none;
  for (std::uint32_t at = home(offset);; at = (at + 1) & mask_) {
    bucket& in = buckets_[at];
    const std::uint32_t found = places_of(in, offset);
    const bool is_full = places_of(in, nowhere) == 0;
    if (found != 0) [[likely]] {
      const auto place = static_cast<std::uint32_t>(std::countr_zero(found));
      in.offsets[place] = nowhere;
      --count_;
      const region_id taken = in.regions[place];
      if (is_full) [[unlikely]]
        fill_gap(at, place);
      return taken;
    }
    if (!is_full) return region_id::none;
  }
}

region_id start_table::find(std::uint32_t offset) const noexcept {
  if (count_ == 0) return region_id::none;
  for (std::uint32_t at = home(offset);; at = (at + 1) & mask_) {
    const bucket& in = buckets_[at];
    if (const std::uint32_t found = places_of(in, offset); found != 0)
      return in.regions[std::countr_zero(found)];
    if (places_of(in, nowhere) != 0) return region_id::none;
  }
}

// A full bucket has lost an entry: a later one that had to pass it takes its place, and so on.
[[gnu::noinline]] void start_table::fill_gap(std::uint32_t gap, std::uint32_t place) noexcept {
  for (std::uint32_t at = (gap + 1) & mask_;; at = (at + 1) & mask_) {
    bucket& in = buckets_[at];
    const bool is_full = places_of(in, nowhere) == 0;
    for (std::uint32_t from = 0; from < places; ++from) {
      if (in.offsets[from] == nowhere) continue;
      const std::uint32_t walked = (at - home(in.offsets[from])) & mask_;
      if (walked < ((at - gap) & mask_)) continue;
      buckets_[gap].offsets[place] = std::exchange(in.offsets[from], nowhere);
      buckets_[gap].regions[place] = in.regions[from];
      gap = at;
      place = from;
      break;
    }
    if (!is_full) return;
  }
}

bool start_table::grow() noexcept {
  const std::uint32_t old_count = bucket_count();
  const std::uint32_t wanted = old_count == 0 ? first_buckets : old_count * 2;
  const std::size_t size_bytes = wanted * sizeof(bucket);
  void* const memory = ::operator new(size_bytes, std::align_val_t{alignof(bucket)}, std::nothrow);
  if (memory == nullptr) return false;
  prefer_huge_pages(memory, size_bytes);
  std::memset(memory, 0xFF, size_bytes);
  std::unique_ptr<bucket[], free_buckets> larger{static_cast<bucket*>(memory)};
  std::swap(buckets_, larger);
  mask_ = wanted - 1;
  count_max_ = wanted * (places / 2);
  const std::uint32_t before = std::exchange(count_, 0);
  for (std::uint32_t i = 0; i < old_count; ++i) {
    for (std::uint32_t place = 0; place < places; ++place) {
      if (larger[i].offsets[place] != nowhere)
        insert(larger[i].offsets[place], larger[i].regions[place]);
    }
  }
  check(count_ == before, "a table of blocks lost one while growing");
  return true;
}

const char* start_table::broken_invariant() const noexcept {
  std::uint32_t seen_count = 0;
  for (std::uint32_t i = 0; i < bucket_count(); ++i) {
    for (const std::uint32_t offset : buckets_[i].offsets) {
      if (offset == nowhere) continue;
      ++seen_count;
      for (std::uint32_t at = home(offset); at != i; at = (at + 1) & mask_) {
        if (places_of(buckets_[at], nowhere) != 0) return "a block is not where it is looked for";
      }
    }
  }
  if (seen_count != count_) return "the count of a table of blocks is wrong";
  const bool half = count_ <= std::uint64_t{bucket_count()} * (places / 2);
  return half ? nullptr : "a table of blocks is too full";
}

slab* slab_bins::at_least(std::uint32_t pages, std::uint32_t granules) const noexcept {
  constexpr int looks_max = 8;
  const std::uint32_t bin = bin_of(pages);
  if (pages > exact_pages) {
    slab* candidate = bins_[bin].first;
    for (int looks = 0; candidate != nullptr && looks < looks_max; ++looks) {
      if (candidate->count_granules >= granules) return candidate;
      candidate = candidate->after;
    }
  }
  const std::uint32_t from = pages > exact_pages ? bin + 1 : bin;
  const std::uint64_t above = from > 63 ? 0 : filled_ & (~std::uint64_t{0} << from);
  return above == 0 ? nullptr : bins_[static_cast<std::uint32_t>(std::countr_zero(above))].first;
}

slab* slab_bins::oldest() const noexcept {
  slab* found = nullptr;
  for (std::uint64_t left = filled_; left != 0; left &= left - 1) {
    slab* const first = bins_[static_cast<std::uint32_t>(std::countr_zero(left))].first;
    if (found == nullptr || first->whole_since < found->whole_since) found = first;
  }
  return found;
}

void growth_plan::clear() noexcept {
  request = {};
  segment = 0;
  start = window = region_id::none;
  window_granules = create_granules = handle_granules = 0;
  moved_granules = 0;
  moved.clear();
  places.clear();
  waits.clear();
  pieces.clear();
  at = {};
}

pool_book::pool_book(const setup& how) noexcept
    : rules_(how.rules),
      unit_bytes_(how.unit_bytes),
      page_bytes_(how.page_bytes),
      segment_bytes_(how.segment_bytes),
      plain_bytes_max_(how.rules.whole_pages ? how.page_bytes - 1 : how.segment_bytes),
      unit_granules_(granules(how.unit_bytes)),
      unit_shift_(static_cast<std::uint32_t>(std::countr_zero(unit_granules_))),
      page_granules_(granules(how.page_bytes)),
      lowest_granules_(how.rules.lowest_fit_bytes == 0 ? std::numeric_limits<std::uint32_t>::max()
                                                       : granules(how.rules.lowest_fit_bytes)) {
  check(std::has_single_bit(unit_granules_), "the granularity is no power of two");
  check(page_granules_ % unit_granules_ == 0, "a page is no multiple of the granularity");
}

pool_book::~pool_book() {
  check(slab_count_ == 0 && stale_.count() == 0, "a pool's book goes away while it has memory");
}

// ---- streams -------------------------------------------------------------------------

// What the record needs in every segment comes first: adding it to the streams is the last step.
result<std::uint32_t> pool_book::add_record(stream_handle stream, stream_phase phase) noexcept {
  const std::uint32_t number = progress_.next_number();
  if (number == memory_of_.size()) {
    if (status room = reserve_more(memory_of_, 1); !room) return no_host_memory;
    std::unique_ptr<stream_memory> made{new (std::nothrow) stream_memory};
    if (made == nullptr) return no_host_memory;
    memory_of_.push_back(std::move(made));
  }
  for (const auto& in : segments_) {
    while (in->regions.kind_count() < number + first_stream_kind) {
      if (const auto kind = in->regions.add_kind(); !kind) return kind.error();
    }
  }
  const result<std::uint32_t> added = progress_.add(stream, phase);
  if (added) memory_of_[*added]->keeper = *added;
  return added;
}

// ---- slabs ---------------------------------------------------------------------------

void pool_book::enter_whole(slab& s, std::uint32_t stream) noexcept {
  check(!s.is_whole && s.current->live_granules == 0, "a slab in use is entered as whole");
  s.is_whole = true;
  s.stream = stream;
  s.whole_since = progress_.clock();
  memory_of_[stream]->whole.add(s, s.count_pages);
}

void pool_book::leave_whole(slab& s) noexcept {
  check(s.is_whole, "a slab leaves a list that it is not in");
  s.is_whole = false;
  memory_of_[s.stream]->whole.remove(s, s.count_pages);
}

// The view that the range begins in. Most ranges lie in one view, which is not whole before and
// after.
view* pool_book::hold(segment& in, granule_range what) noexcept {
  live_granules_ += what.count;
  if (live_granules_ > peak_live_granules_) peak_live_granules_ = live_granules_;
  view* const first = in.pages[what.offset >> unit_shift_];
  const std::uint32_t room = first->offset + first->count_granules - what.offset;
  if (what.count > room || first->live_granules == 0) {
    hold_views(in, what);
  } else {
    first->live_granules += what.count;
  }
  return first;
}

void pool_book::hold_views(segment& in, granule_range what) noexcept {
  std::uint32_t at = what.offset;
  while (at < what.end()) {
    view& v = *in.pages[at >> unit_shift_];
    const std::uint32_t end = std::min(v.offset + v.count_granules, what.end());
    if (v.live_granules == 0 && v.of->is_whole) leave_whole(*v.of);
    v.live_granules += end - at;
    at = end;
  }
}

void pool_book::release(segment& in, region_id block, std::uint32_t stream) noexcept {
  const granule_range what = in.regions.where(block);
  view& first = *static_cast<view*>(in.regions.link(block));
  const std::uint32_t room = first.offset + first.count_granules - what.offset;
  if (what.count > room || first.live_granules == what.count)
    return release_range(in, what, stream);
  first.live_granules -= what.count;
  live_granules_ -= what.count;
}

// ---- regions -------------------------------------------------------------------------

bool pool_book::absorbs(const segment& in, region_id neighbour,
                        std::uint32_t stream) const noexcept {
  const region_kind kind = in.regions.kind(neighbour);
  if (kind == kind_of(stream)) return true;
  return is_free_kind(kind) && passed({stream_of(kind), in.regions.word(neighbour)}) &&
         phase_of(stream) != stream_phase::capture;
}

// What merges for this stream: its own, and what other streams have finished with. [G4]
void pool_book::make_free(segment& in, region_id region, const stream_point& since) noexcept {
  region_map& regions = in.regions;
  const region_kind own = kind_of(since.stream);
  const region_id left = regions.before(region);
  const region_id right = regions.after(region);
  if (stream_count() > 1 && (absorbs(in, left, since.stream) || absorbs(in, right, since.stream)))
    return merge_free(in, region, since);
  std::uint64_t epoch = since.epoch;
  region_id kept = region;
  if (regions.kind(left) == own) {
    epoch = std::max(epoch, regions.word(left));
    if (regions.kind(right) == own) {
      epoch = std::max(epoch, regions.word(right));
      regions.unlist(right);
      regions.join(region, right);
    }
    regions.absorb_right(left);
    kept = left;
  } else if (regions.kind(right) == own) {
    epoch = std::max(epoch, regions.word(right));
    regions.absorb_left(right);
    kept = right;
  } else {
    regions.list(region, own);
  }
  regions.set_note(kept, {epoch, 0});
}

// As far as it reaches. Each step ends one region.
void pool_book::merge_free(segment& in, region_id region, const stream_point& since) noexcept {
  region_map& regions = in.regions;
  const region_kind own = kind_of(since.stream);
  std::uint64_t epoch = since.epoch;
  region_id kept = region;
  for (region_id left = regions.before(kept); absorbs(in, left, since.stream);
       left = regions.before(kept)) {
    if (regions.kind(left) == own) epoch = std::max(epoch, regions.word(left));
    regions.unlist(left);
    regions.join(left, kept);
    kept = left;
  }
  for (region_id right = regions.after(kept); absorbs(in, right, since.stream);
       right = regions.after(kept)) {
    if (regions.kind(right) == own) epoch = std::max(epoch, regions.word(right));
    regions.unlist(right);
    regions.join(kept, right);
  }
  regions.set_note(kept, {epoch, 0});
  regions.list(kept, own);
}

void pool_book::make_hole(segment& in, region_id region) noexcept {
  region_map& regions = in.regions;
  region_id kept = region;
  if (const region_id left = regions.before(kept); regions.kind(left) == hole_kind) {
    regions.unlist(left);
    regions.join(left, kept);
    kept = left;
  }
  if (const region_id right = regions.after(kept); regions.kind(right) == hole_kind) {
    regions.unlist(right);
    regions.join(kept, right);
  }
  regions.set_note(kept, {});
  regions.list(kept, hole_kind);
}

// An unlisted region becomes a block; its link is the view that it begins in. starts.reserve() came
// before.
address pool_book::make_live(segment& in, region_id region) noexcept {
  const granule_range where = in.regions.where(region);
  in.regions.set_note(region, {0, static_cast<std::uint32_t>(region_state::live)});
  in.regions.set_link(region, hold(in, where));
  in.starts.insert(where.offset, region);
  return address_in(in, where.offset);
}

// ---- allocate and free ---------------------------------------------------------------

region_id pool_book::pick(const segment& in, const book_request& request) const noexcept {
  const region_kind kind = kind_of(request.stream);
  if (request.count_granules >= lowest_granules_)
    return in.regions.lowest_fit(kind, request.count_granules);
  return in.regions.best_fit(kind, request.count_granules);
}

result<address> pool_book::allocate(const book_request& request) noexcept {
  bool starved = false;
  const address at = place(request, starved);
  if (starved) return no_host_memory;
  return at;
}

address pool_book::place(const book_request& request, bool& starved) noexcept {
  for (const auto& held : segments_) {
    segment& in = *held;
    const region_id found = pick(in, request);
    if (found == region_id::none) continue;
    if (!in.regions.provide(1) || !in.starts.reserve()) [[unlikely]] {
      starved = true;
      return {};
    }
    if (in.regions.where(found).count > request.count_granules)
      return make_live(in, in.regions.take_front(found, request.count_granules));
    in.regions.unlist(found);
    return make_live(in, found);
  }
  return {};
}

pool_book::segment* pool_book::segment_around(address at) noexcept {
  if (at.value - first_range_.base.value < first_range_.size_bytes) [[likely]]
    return first_segment_;
  for (const auto& in : segments_) {
    if (in->where.range.contains(at)) return in.get();
  }
  return nullptr;
}

status pool_book::free(address at, std::uint32_t stream) noexcept {
  segment* const in = segment_around(at);
  if (in == nullptr)
    return refuse(errc::unknown_address, "no block of this pool begins or began here");
  const std::uint64_t offset_bytes = at - in->where.range.base;
  const region_id block =
      offset_bytes % granule_bytes == 0 ? in->starts.take(granules(offset_bytes)) : region_id::none;
  if (block == region_id::none) [[unlikely]]
    return free_held(*in, offset_bytes, stream);
  const stream_point now = progress_.advance(stream);
  release(*in, block, stream);
  make_free(*in, block, now);
  return {};
}

// ---- other streams' memory -----------------------------------------------------------

std::size_t pool_book::foreign_candidates(const book_request& request,
                                          std::span<stream_point> out) const noexcept {
  std::size_t count = 0;
  const std::uint32_t streams = std::min(stream_count(), streams_looked_at_max + 1);
  for (std::uint32_t step = 0; step < streams && count < out.size(); ++step) {
    const std::uint32_t other = other_stream(request.stream, step);
    if (other == request.stream) continue;
    for (const auto& in : segments_) {
      const region_id best = in->regions.best_fit(kind_of(other), request.count_granules);
      if (best == region_id::none) continue;
      out[count++] = {other, in->regions.word(best)};
      break;
    }
  }
  return count;
}

result<foreign_claim> pool_book::claim_foreign(const book_request& request,
                                               const foreign_search& how) noexcept {
  foreign_claim best;
  std::uint32_t best_granules = std::numeric_limits<std::uint32_t>::max();
  const std::uint32_t streams =
      how.all_streams ? stream_count() : std::min(stream_count(), streams_looked_at_max + 1);
  for (std::uint32_t step = 0; step < streams; ++step) {
    const std::uint32_t other = other_stream(request.stream, step);
    if (other == request.stream) continue;
    for (std::uint32_t number = 0; number < segments_.size(); ++number) {
      const region_map& regions = segments_[number]->regions;
      const region_id found = regions.best_fit(kind_of(other), request.count_granules);
      if (found == region_id::none) continue;
      const stream_point last_use{other, regions.word(found)};
      if (regions.where(found).count >= best_granules || (how.passed_only && !passed(last_use)))
        continue;
      best = {number, found, last_use};
      best_granules = regions.where(found).count;
    }
  }
  if (best.region == region_id::none) return best;
  segment& in = *segments_[best.segment];
  if (!in.regions.provide(1) || !in.starts.reserve()) return no_host_memory;
  in.regions.unlist(best.region);
  if (best_granules > request.count_granules) {
    const region_id rest = in.regions.cut(best.region, request.count_granules);
    in.regions.list(rest, kind_of(best.last_use.stream));
  }
  in.regions.set_note(best.region, {best.last_use.epoch, claim_tag(best.last_use.stream)});
  return best;
}

result<address> pool_book::settle_foreign(const foreign_claim& claim) noexcept {
  segment& in = *segments_[claim.segment];
  if (!in.starts.reserve()) {
    return_foreign(claim);
    return no_host_memory;
  }
  ++numbers_.foreign_count;
  return make_live(in, claim.region);
}

void pool_book::return_foreign(const foreign_claim& claim) noexcept {
  make_free(*segments_[claim.segment], claim.region, claim.last_use);
}

}  // namespace vmm

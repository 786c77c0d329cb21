// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module vmm.stream;

import vmm.backend;
import vmm.base;
import vmm.optimizer;
import vmm.physical;
import vmm.std;
import vmm.timeline;
import vmm.va;

namespace vmm {

// ---- free handles of one stream ------------------------------------------------------

handle_record* free_handle_bins::at_least(std::uint32_t pages,
                                          std::uint32_t granules) const noexcept {
  constexpr int looks_max = 8;
  check(pages != 0, "a handle of no page is looked for");
  const std::uint32_t bin = bin_of(pages);
  if (pages > exact_pages) {
    handle_record* candidate = bins_[bin].first;
    for (int looks = 0; candidate != nullptr && looks < looks_max; ++looks) {
      if (candidate->count_granules >= granules) return candidate;
      candidate = candidate->after;
    }
  }
  const std::uint32_t from = pages > exact_pages ? bin + 1 : bin;
  const std::uint64_t above = from > 63 ? 0 : filled_ & (~std::uint64_t{0} << from);
  if (above == 0) return nullptr;
  handle_record* const found = bins_[static_cast<std::uint32_t>(std::countr_zero(above))].first;
  check(found != nullptr && found->count_granules >= granules,
        "a bin has no handle of its size, or one that is smaller");
  return found;
}

handle_record* free_handle_bins::next_smaller(const handle_record& h) const noexcept {
  check(h.is_free, "a walk over free handles stands on one that is not");
  check((filled_ >> bin_of(h.count_pages) & 1) != 0, "a free handle is in a bin that is empty");
  if (h.after != nullptr) return h.after;
  const std::uint64_t below = filled_ & ((std::uint64_t{1} << bin_of(h.count_pages)) - 1);
  if (below == 0) return nullptr;
  handle_record* const found =
      bins_[63 - static_cast<std::uint32_t>(std::countl_zero(below))].first;
  check(found != nullptr && found->count_pages < h.count_pages,
        "the next smaller handle is none, or no smaller");
  return found;
}

handle_record* free_handle_bins::oldest() const noexcept {
  handle_record* found = nullptr;
  for (std::uint64_t left = filled_; left != 0; left &= left - 1) {
    handle_record* const first = bins_[static_cast<std::uint32_t>(std::countr_zero(left))].first;
    check(first != nullptr, "a bin that counts as filled is empty");
    if (found == nullptr || first->free_since < found->free_since) found = first;
  }
  return found;
}

bool free_handle_bins::valid(std::uint32_t stream) const noexcept {
  for (std::uint32_t bin = 0; bin < 64; ++bin) {
    const handle_record* before = nullptr;
    for (const handle_record* h = bins_[bin].first; h != nullptr; h = h->after) {
      if (h->before != before || !h->is_free || h->stream != stream) return false;
      if (bin_of(h->count_pages) != bin || h->current->live_granules != 0) return false;
      before = h;
    }
    if (bins_[bin].last != before) return false;
    if (((filled_ >> bin & 1) != 0) != (before != nullptr)) return false;
  }
  return true;
}

// ---- records -------------------------------------------------------------------------

mappings::~mappings() {
  check(handle_count_ == 0 && stale_.size() == 0, "a pool's records end while it has memory");
  check(handle_granules_ == 0 && ends_.count() == 0, "memory that nothing maps is counted");
}

handle_record* mappings::new_handle(physical_memory& memory) noexcept {
  handle_record* const fresh = handles_.acquire();
  if (fresh == nullptr) return nullptr;
  *fresh = handle_record{};
  fresh->memory = &memory;
  fresh->count_granules = granules_in(memory.size_bytes);
  check(fresh->count_granules != 0 && fresh->count_granules % unit_granules_ == 0,
        "a piece is not a multiple of the granularity");
  fresh->count_pages = fresh->count_granules / page_granules_;
  check(fresh->count_pages * page_granules_ == fresh->count_granules,
        "a handle is not a multiple of a page");
  return fresh;
}

mapping* mappings::new_mapping(handle_record& of, std::uint32_t segment) noexcept {
  check(of.memory != nullptr && of.count_granules != 0, "a handle without memory is to be mapped");
  mapping* const fresh = mappings_.acquire();
  if (fresh == nullptr) return nullptr;
  *fresh = mapping{};
  check(!fresh->is_end && !fresh->is_stale(), "a listed record is returned as free");
  fresh->memory = of.memory;
  fresh->of = &of;
  fresh->segment = segment;
  fresh->count_granules = of.count_granules;
  return fresh;
}

void mappings::add_handle(handle_record& fresh) noexcept {
  check(fresh.memory != nullptr && fresh.current == nullptr, "a handle is counted twice");
  ++handle_count_;
  handle_granules_ += fresh.count_granules;
  check(handle_granules_ >= fresh.count_granules, "more granules are held than can be counted");
  check(handle_count_ <= handles_.live_count(), "a handle that counts has no record");
}

void mappings::remove_handle(const handle_record& gone) noexcept {
  check(handle_count_ != 0 && handle_granules_ >= gone.count_granules,
        "more handles are removed than exist");
  check(!gone.is_free && gone.stale_mappings == nullptr,
        "a handle is removed while it is listed as free or mapped");
  --handle_count_;
  handle_granules_ -= gone.count_granules;
  check(live_granules_ <= handle_granules_, "live memory is removed");
}

void mappings::drop(handle_record& gone) noexcept {
  check(!gone.is_free && gone.before == nullptr && gone.after == nullptr,
        "the record of a handle in a list is given back");
  handles_.release(gone);
}

void mappings::drop(mapping& gone) noexcept {
  check(!gone.is_end && !gone.is_stale(), "the record of a mapping in a list is given back");
  debug_check([&] { return ends_.last() != &gone; },
              "the record of a mapping in a list is given back");
  mappings_.release(gone);
}

// ---- free handles --------------------------------------------------------------------

status mappings::provide_stream(std::uint32_t stream) noexcept {
  check(stream <= free_of_.size(), "the records of streams have a gap");
  if (stream < free_of_.size()) {
    check(free_of_[stream].empty(), "a stream's record with memory is used again");
    return {};
  }
  if (status room = reserve_more(free_of_, 1); !room) return no_record_memory;
  free_of_.emplace_back();
  check(free_of_.back().empty(), "a new list of free handles is not empty");
  return {};
}

void mappings::enter_free(handle_record& h, const stream_point& at) noexcept {
  check(!h.is_free && h.current->live_granules == 0, "a handle in use is entered as free");
  debug_check([&] { return !h.current->is_stale() && h.current->of == &h; },
              "I1: a handle's address is not the one in its record");
  debug_check([&] { return at.stream < free_of_.size(); }, "I2: a handle is free for no stream");
  h.is_free = true;
  h.stream = at.stream;
  h.free_since = at.epoch;
  free_of_[at.stream].add(h);
  audit();
}

void mappings::leave_free(handle_record& h) noexcept {
  check(h.is_free, "a handle leaves a list that it is not in");
  h.is_free = false;
  debug_check([&] { return h.stream < free_of_.size() && !free_of_[h.stream].empty(); },
              "a handle leaves a list that is empty");
  free_of_[h.stream].remove(h);
  debug_check([&] { return h.before == nullptr && h.after == nullptr; },
              "a handle that left its list is linked");
}

// ---- stale mappings, and ends --------------------------------------------------------

void mappings::make_stale(mapping& m, const stream_point& last_use) noexcept {
  check(!m.is_stale() && m.live_granules == 0,
        "a mapping with live memory, or a stale one, is left");
  check(m.next_of_handle == nullptr && m.before_of_handle == nullptr,
        "I3: a mapping is stale twice");
  m.last_use = last_use;
  stale_.push(m, m.count_granules * granule_bytes);
  check(m.is_stale(), "I3: a mapping that waits to be unmapped is not stale");
  if (m.of == nullptr) return;
  m.before_of_handle = nullptr;
  m.next_of_handle = m.of->stale_mappings;
  if (m.next_of_handle != nullptr) m.next_of_handle->before_of_handle = &m;
  check(m.next_of_handle != &m, "a mapping is its own neighbour");
  m.of->stale_mappings = &m;
  audit();
}

mapping* mappings::take_oldest_stale() noexcept {
  auto* const oldest = static_cast<mapping*>(stale_.take_oldest());
  check(oldest == nullptr || (oldest->is_stale() && oldest->live_granules == 0),
        "a mapping in use is in the queue of stale ones");
  check(oldest != nullptr || stale_.asked_count() == stale_.size(),
        "I3: a listed stale mapping is not found");
  return oldest;
}

void mappings::put_back_stale(mapping& kept) noexcept {
  check(kept.is_stale(), "a mapping that is in use is put into the queue of stale ones");
  stale_.put_back(kept);
  check(kept.after == nullptr, "a mapping appended to a list is not the last");
}

void mappings::pass_stale_on(std::uint32_t from, const stream_point& to) noexcept {
  check(stale_.asked_count() == 0, "a mapping waits for another point while it is polled");
  stale_.for_each([&](unmap_entry& waiting) {
    auto& stale = static_cast<mapping&>(waiting);
    if (stale.last_use.stream == from) stale.last_use = to;
  });
}

void mappings::forget_stale(mapping& gone) noexcept {
  check(gone.is_stale(), "a mapping that is in use is forgotten");
  stale_.remove(gone);
  check(!gone.is_stale(), "a mapping that was unmapped waits to be");
  if (gone.of == nullptr) return;
  mapping* const before = gone.before_of_handle;
  debug_check(
      [&] {
        return (before != nullptr ? before->next_of_handle : gone.of->stale_mappings) == &gone;
      },
      "a stale mapping is not in its handle's list");
  (before != nullptr ? before->next_of_handle : gone.of->stale_mappings) = gone.next_of_handle;
  if (gone.next_of_handle != nullptr) gone.next_of_handle->before_of_handle = before;
  check(gone.of->stale_mappings != &gone, "a handle names a mapping that was unmapped");
  audit();
}

void mappings::set_end(mapping& m, bool is_end) noexcept {
  if (m.is_end == is_end) return;
  check(m.count_granules != 0, "I4: a mapping without granules is a window end");
  m.is_end = is_end;
  if (is_end) {
    ends_.push_back(m);
  } else {
    ends_.remove(m);
  }
  check(ends_.count() <= mappings_.live_count(), "more mappings are window ends than exist");
}

// ---- validation ----------------------------------------------------------------------

const char* mappings::broken_invariant() const noexcept {
  if (live_granules_ > handle_granules_) return "I5: more granules are live than exist";
  if (live_granules_ > peak_live_granules_) return "I5: the peak of live granules is below them";
  if (handles_.live_count() < handle_count_) return "a handle that counts has no record";
  if (!stale_.validate()) return "the queue of stale mappings is broken";
  if (stale_.size() > mappings_.live_count()) return "a mapping that waits has no record";
  if (!ends_.valid()) return "I4: the list of ends is broken";
  for (std::uint32_t stream = 0; stream < free_of_.size(); ++stream) {
    if (!free_of_[stream].valid(stream)) return "a list of free handles is broken";
  }
  return nullptr;
}

// All of it once for every so many changes as there are records.
void mappings::audit() noexcept {
  if constexpr (check_level >= 3) {
    const std::uint64_t cost = 8 * free_of_.size() + mappings_.live_count();
    if (++unaudited_ < std::max<std::uint64_t>(64, cost)) return;
    unaudited_ = 0;
    paranoid_check([&] { return broken_invariant() == nullptr; }, "a pool's records are broken");
  }
}

}  // namespace vmm

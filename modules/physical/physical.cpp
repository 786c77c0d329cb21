// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

module vmm.physical;

import vmm.backend;
import vmm.intrusive;
import vmm.sync;
import vmm.timeline;

namespace vmm {

piece_store::~piece_store() {
  check(numbers_.held_count == 0, "a physical pool goes away while it holds memory: trim it first");
}

piece* piece_store::take(const wanted& want) noexcept {
  check(want.remaining_bytes <= want.request_bytes, "more is missing than was asked for");
  const sync::lock_guard<sync::mutex> lock(mutex_);
  auto* const found = static_cast<piece*>(cache_.at_most(want.remaining_bytes));
  if (found == nullptr) return nullptr;
  const bool exact = found->size_bytes == want.remaining_bytes;
  const double share =
      static_cast<double>(found->size_bytes) / static_cast<double>(want.request_bytes);
  if (!exact && share < options_.fragment_ratio) return nullptr;
  cache_.erase(*found);
  numbers_.cached_bytes -= found->size_bytes;
  --numbers_.cached_count;
  ++numbers_.reused_count;
  found->holder_count = 1;
  return found;
}

result<piece*> piece_store::admit(std::uint64_t size_bytes) noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  if (options_.budget_bytes != 0 &&
      (size_bytes > options_.budget_bytes ||
       numbers_.held_bytes + asked_bytes_ > options_.budget_bytes - size_bytes)) {
    return refuse(errc::over_budget,
                  "the byte budget is spent: free or trim memory, or raise the budget");
  }
  piece* const blank = pool_.acquire();
  if (blank == nullptr)
    return refuse(errc::out_of_host_memory, "no host memory is left for a piece");
  blank->size_bytes = size_bytes;
  blank->handle = physical_handle::none;
  blank->holder_count = 1;
  blank->mapping_count = 0;
  blank->was_shared = false;
  asked_bytes_ += size_bytes;
  return blank;
}

void piece_store::abandon(piece& blank) noexcept {
  check(blank.handle == physical_handle::none, "a piece that the driver made is not a blank one");
  const sync::lock_guard<sync::mutex> lock(mutex_);
  asked_bytes_ -= blank.size_bytes;
  pool_.release(blank);
}

void piece_store::confirm(piece& fresh, physical_handle handle) noexcept {
  check(handle != physical_handle::none, "a driver that creates memory gives a handle");
  const sync::lock_guard<sync::mutex> lock(mutex_);
  fresh.handle = handle;
  asked_bytes_ -= fresh.size_bytes;
  numbers_.held_bytes += fresh.size_bytes;
  ++numbers_.held_count;
  ++numbers_.created_count;
  numbers_.peak_held_bytes = std::max(numbers_.peak_held_bytes, numbers_.held_bytes);
}

piece* piece_store::take_releasable(std::uint64_t limit_bytes) noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  if (numbers_.cached_bytes <= limit_bytes) return nullptr;
  for (index_node* node = cache_.last(); node != nullptr; node = cache_.previous(*node)) {
    auto& candidate = static_cast<piece&>(*node);
    if (candidate.mapping_count != 0) continue;
    cache_.erase(candidate);
    numbers_.cached_bytes -= candidate.size_bytes;
    --numbers_.cached_count;
    return &candidate;
  }
  return nullptr;
}

void piece_store::released(piece& gone) noexcept {
  check(!gone.linked && gone.mapping_count == 0,
        "a piece is released while it is cached or mapped");
  const sync::lock_guard<sync::mutex> lock(mutex_);
  numbers_.held_bytes -= gone.size_bytes;
  --numbers_.held_count;
  ++numbers_.released_count;
  gone.handle = physical_handle::none;
  gone.last_use.reset();
  pool_.release(gone);
}

void piece_store::put_back(piece& kept) noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  check(kept.holder_count == 0, "a piece that is held is put back into the cache");
  cache_if_idle(kept);
}

void piece_store::add_holder(piece& held) noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  check(held.holder_count > 0 && !held.linked, "a cached piece is held without being taken");
  ++held.holder_count;
  held.was_shared = true;
}

void piece_store::drop_holder(piece& held, const ticket_ref& last_use) noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  check(held.holder_count > 0, "a piece is dropped that nobody holds");
  if (--held.holder_count > 0) return;
  // A range that its stream never used may be freed before the work of the piece's previous holder
  // has finished: the older ticket stays until a newer one, which is ordered behind it, takes its
  // place. A ticket that has passed is let go, so that its event serves again.
  if (!last_use.known_passed()) {
    held.last_use = ticket_ref{last_use};
  } else if (held.last_use.known_passed()) {
    held.last_use.reset();
  }
  cache_if_idle(held);
}

void piece_store::add_mapping(piece& mapped) noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  ++mapped.mapping_count;
}

void piece_store::drop_mapping(piece& mapped) noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  check(mapped.mapping_count > 0, "a mapping is undone that the piece does not have");
  --mapped.mapping_count;
  if (mapped.holder_count == 0 && !mapped.linked) cache_if_idle(mapped);
}

bool piece_store::any_shared(std::span<piece* const> pieces) const noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  return std::any_of(pieces.begin(), pieces.end(),
                     [](const piece* held) { return held->holder_count > 1; });
}

bool piece_store::any_was_shared(std::span<piece* const> pieces) const noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  return std::any_of(pieces.begin(), pieces.end(),
                     [](const piece* held) { return held->was_shared; });
}

// A piece nobody holds goes to the cache at once where the next user can be ordered behind the last
// one's work, else when its last mapping is undone, which happens only after that work.
void piece_store::cache_if_idle(piece& held) noexcept {
  const bool at_once = options_.reuse_while_mapped && !held.was_shared;
  if (held.mapping_count > 0 && !at_once) return;
  if (held.mapping_count == 0 && held.was_shared) held.last_use.reset();
  held.was_shared = false;
  cache_.insert(held, held.size_bytes);
  numbers_.cached_bytes += held.size_bytes;
  ++numbers_.cached_count;
}

physical_statistics piece_store::statistics() const noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  return numbers_;
}

std::uint64_t piece_store::still_mapped_bytes() const noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  std::uint64_t sum_bytes = 0;
  for (index_node* node = cache_.first(); node != nullptr; node = cache_.next(*node)) {
    const auto& cached = static_cast<const piece&>(*node);
    if (cached.mapping_count != 0) sum_bytes += cached.size_bytes;
  }
  return sum_bytes;
}

bool piece_store::validate() const noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  if (!cache_.validate() || cache_.size() != numbers_.cached_count) return false;
  if (numbers_.cached_bytes > numbers_.held_bytes || numbers_.cached_count > numbers_.held_count)
    return false;
  if (options_.budget_bytes != 0 && numbers_.held_bytes > options_.budget_bytes) return false;
  std::uint64_t sum_bytes = 0;
  for (index_node* node = cache_.first(); node != nullptr; node = cache_.next(*node)) {
    const auto& cached = static_cast<const piece&>(*node);
    if (cached.holder_count != 0 || cached.handle == physical_handle::none) return false;
    if (cached.size_bytes == 0 || cached.size_bytes % options_.granularity_bytes != 0) return false;
    if (cached.key != cached.size_bytes) return false;
    sum_bytes += cached.size_bytes;
  }
  return sum_bytes == numbers_.cached_bytes;
}

status physical_pool::acquire(std::uint64_t size_bytes, piece_list& out,
                              std::uint64_t new_bytes_max) {
  check(size_bytes > 0 && size_bytes % store_.options().granularity_bytes == 0,
        "physical memory is asked for in whole granules");
  check(new_bytes_max % store_.options().granularity_bytes == 0,
        "new pieces are made of whole granules");
  const std::uint64_t largest_bytes = smaller_limit(new_bytes_max, store_.options().chunk_bytes);
  const std::size_t before = out.size();
  std::uint64_t remaining_bytes = size_bytes;
  while (remaining_bytes > 0) {
    const result<piece*> next = acquire_one({remaining_bytes, size_bytes}, largest_bytes, out);
    if (!next) {
      give_back(out, before);
      return next.error();
    }
    remaining_bytes -= (*next)->size_bytes;
  }
  return {};
}

void physical_pool::give_back(piece_list& pieces, std::size_t from) noexcept {
  while (pieces.size() > from) {
    store_.drop_holder(*pieces.back(), pieces.back()->last_use);
    pieces.pop_back();
  }
}

trim_report physical_pool::trim(std::uint64_t limit_bytes) noexcept {
  trim_report report;
  for (piece* next = store_.take_releasable(limit_bytes); next != nullptr;
       next = store_.take_releasable(limit_bytes)) {
    const std::uint64_t size_bytes = next->size_bytes;
    if (const status released = driver_->release(next->handle); !released) {
      report.failure = released.error();
      store_.put_back(*next);
      break;
    }
    store_.released(*next);
    ++report.released_count;
    report.released_bytes += size_bytes;
  }
  report.still_mapped_bytes = store_.still_mapped_bytes();
  return report;
}

result<piece*> physical_pool::acquire_one(const piece_store::wanted& want,
                                          std::uint64_t largest_bytes, piece_list& out) {
  if (status room = reserve_more(out, 1); !room) return room.error();
  piece* next = store_.take(want);
  if (next == nullptr) {
    const result<piece*> fresh = create(smaller_limit(want.remaining_bytes, largest_bytes));
    if (!fresh) return fresh;
    next = *fresh;
  }
  out.push_back(next);
  return next;
}

std::uint64_t physical_pool::smaller_limit(std::uint64_t a, std::uint64_t b) noexcept {
  return a == 0 || b == 0 ? std::max(a, b) : std::min(a, b);
}

result<piece*> physical_pool::create(std::uint64_t size_bytes) {
  const result<piece*> fresh = store_.admit(size_bytes);
  if (!fresh) return fresh;
  physical_request request = store_.options().like;
  request.size_bytes = size_bytes;
  const result<physical_handle> handle = driver_->create(request);
  if (!handle) {
    store_.abandon(**fresh);
    return handle.error();
  }
  store_.confirm(**fresh, *handle);
  return fresh;
}

}  // namespace vmm

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include "../base/thread_annotations.h"

module vmm.physical;

import vmm.backend;
import vmm.base;
import vmm.std;
import vmm.timeline;

namespace vmm {

namespace {

// Whether the piece serves one request only: I6.
bool is_for_one_use(const physical_memory& memory) noexcept {
  return memory.exported || memory.spilled || memory.unfilled;
}

}  // namespace

memory_store::~memory_store() {
  check(numbers_.memory_count == 0,
        "a physical pool that holds memory is destroyed: trim it first");
  check(numbers_.held_bytes == 0 && asked_bytes_ == 0, "bytes are held without a piece");
  check(cache_.empty(), "a piece is cached that is not held");
  check(numbers_.suspended_bytes == 0, "a physical pool is destroyed while memory is suspended");
}

// The invariants after each change, in constant time.
bool memory_store::sums_fit() const noexcept {
  return numbers_.cached_bytes <= numbers_.held_bytes &&
         numbers_.cached_count <= numbers_.memory_count && cache_.size() == numbers_.cached_count &&
         (numbers_.memory_count == 0) == (numbers_.held_bytes == 0);
}

// One full validation for every N changes, where N is the number of pieces: amortised O(1).
void memory_store::audit() noexcept {
  check(sums_fit(), "physical I1: the sums of held and cached pieces disagree");
  if constexpr (check_level >= 3) {
    if (++unaudited_count_ <= numbers_.cached_count) return;
    unaudited_count_ = 0;
    const auto is_valid = [this] {
      sync::assume_locked(mutex_);
      return validate_all().has_value();
    };
    paranoid_check(is_valid, "a change broke the sums of memory");
  }
}

// Takes a piece out of the cache.
void memory_store::uncache(physical_memory& cached) noexcept {
  check(cached.linked && cached.holder_count == 0, "a piece is taken that is not cached");
  check(cached.key == cached.size_bytes, "a cached piece has changed its size");
  if (is_for_one_use(cached)) {
    const std::uint64_t before = cached_exported_count_.fetch_sub(1, std::memory_order_relaxed);
    check(before > 0, "more exported memory leaves the cache than entered it");
  }
  check(numbers_.cached_count > 0 && numbers_.cached_bytes >= cached.size_bytes,
        "more is taken out of the cache than is in it");
  cache_.erase(cached);
  numbers_.cached_bytes -= cached.size_bytes;
  --numbers_.cached_count;
}

physical_memory* memory_store::take(const wanted& want) noexcept {
  check(want.remaining_bytes <= want.request_bytes, "more bytes are missing than were requested");
  check(want.remaining_bytes > 0, "nothing is missing");
  const sync::lock_guard<sync::mutex> lock(mutex_);
  auto* found = static_cast<physical_memory*>(cache_.at_most(want.remaining_bytes));
  while (found != nullptr && is_for_one_use(*found))
    found = static_cast<physical_memory*>(cache_.previous(*found));
  if (found == nullptr) return nullptr;
  const bool exact = found->size_bytes == want.remaining_bytes;
  const double share =
      static_cast<double>(found->size_bytes) / static_cast<double>(want.request_bytes);
  if (!exact && share < options_.fragment_ratio) return nullptr;
  check(found->size_bytes <= want.remaining_bytes, "a piece is larger than what is missing");
  return hand_out(*found);
}

physical_memory* memory_store::take_exact(std::uint64_t size_bytes) noexcept {
  check(size_bytes > 0, "a piece of size 0 is looked for");
  const sync::lock_guard<sync::mutex> lock(mutex_);
  auto* found = static_cast<physical_memory*>(cache_.at_most(size_bytes));
  while (found != nullptr && is_for_one_use(*found) && found->size_bytes == size_bytes)
    found = static_cast<physical_memory*>(cache_.previous(*found));
  return found == nullptr || found->size_bytes != size_bytes ? nullptr : hand_out(*found);
}

physical_memory* memory_store::hand_out(physical_memory& cached) noexcept {
  check(cached.mapping_count == 0 || options_.reuse_while_mapped,
        "a piece is handed out that is mapped and may be mapped once");
  uncache(cached);
  ++numbers_.reused_count;
  cached.holder_count = 1;
  check(cached.handle != physical_handle::none, "a piece without memory is handed out");
  check(!cached.was_shared, "a piece is handed out that remembers its holders");
  check(!is_for_one_use(cached), "physical I6: a piece for one use serves a second request");
  audit();
  return &cached;
}

result<physical_memory*> memory_store::admit(std::uint64_t size_bytes) noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  if (options_.budget_bytes != 0 &&
      (size_bytes > options_.budget_bytes ||
       numbers_.held_bytes + asked_bytes_ > options_.budget_bytes - size_bytes)) {
    return budget_spent;
  }
  physical_memory* const blank = pool_.acquire();
  if (blank == nullptr)
    return refuse(errc::out_of_host_memory, "no host memory is left for a piece");
  check(size_bytes > 0 && size_bytes % options_.granularity_bytes == 0,
        "physical I5: a piece is made of whole granules");
  check(!blank->linked && blank->last_use.get() == nullptr, "a recycled piece is still in use");
  blank->size_bytes = size_bytes;
  blank->handle = physical_handle::none;
  blank->holder_count = 1;
  blank->mapping_count = 0;
  blank->was_shared = false;
  blank->exported = false;
  blank->spilled = false;
  blank->unfilled = false;
  blank->is_suspended = false;
  blank->backup_offset = blank->backup_sum = 0;
  asked_bytes_ += size_bytes;
  check(options_.budget_bytes == 0 || numbers_.held_bytes + asked_bytes_ <= options_.budget_bytes,
        "more bytes are requested from the driver than the budget allows");
  return blank;
}

void memory_store::mark_spilled(physical_memory& blank) noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  check(options_.spill.has_value(), "memory is spilled without a place to spill to");
  check(blank.handle == physical_handle::none, "memory that exists is given another place");
  blank.spilled = true;
}

void memory_store::abandon(physical_memory& blank) noexcept {
  check(blank.handle == physical_handle::none, "a piece that the driver made is not a blank one");
  check(!blank.linked && blank.mapping_count == 0, "a piece is released that is cached or mapped");
  const sync::lock_guard<sync::mutex> lock(mutex_);
  check(asked_bytes_ >= blank.size_bytes, "a piece is abandoned that was not being created");
  asked_bytes_ -= blank.size_bytes;
  blank.holder_count = 0;
  pool_.release(blank);
}

void memory_store::confirm(physical_memory& fresh, physical_handle handle) noexcept {
  check(handle != physical_handle::none, "the driver created memory and returned no handle");
  const sync::lock_guard<sync::mutex> lock(mutex_);
  check(fresh.handle == physical_handle::none, "a piece is made twice");
  check(asked_bytes_ >= fresh.size_bytes, "a piece is created that was not counted");
  fresh.handle = handle;
  asked_bytes_ -= fresh.size_bytes;
  numbers_.held_bytes += fresh.size_bytes;
  if (fresh.spilled) numbers_.spilled_bytes += fresh.size_bytes;
  ++numbers_.memory_count;
  fresh.number = ++numbers_.created_count;
  numbers_.peak_held_bytes = std::max(numbers_.peak_held_bytes, numbers_.held_bytes);
  check(options_.budget_bytes == 0 || numbers_.held_bytes <= options_.budget_bytes,
        "physical I4: more is held than the budget allows");
  audit();
}

physical_memory* memory_store::take_releasable(std::uint64_t limit_bytes) noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  if (numbers_.cached_bytes <= limit_bytes) return nullptr;
  for (index_node* node = cache_.last(); node != nullptr; node = cache_.previous(*node)) {
    auto& candidate = static_cast<physical_memory&>(*node);
    if (candidate.mapping_count != 0) continue;
    uncache(candidate);
    check(!candidate.linked && candidate.holder_count == 0, "memory in use is released");
    audit();
    return &candidate;
  }
  return nullptr;
}

physical_memory* memory_store::take_created(std::uint64_t mark) noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  check(mark <= numbers_.created_count, "a mark lies behind all creations");
  if (numbers_.created_count == mark) return nullptr;
  physical_memory* taken = nullptr;
  for (index_node* node = cache_.last(); node != nullptr;) {
    auto& candidate = static_cast<physical_memory&>(*node);
    node = cache_.previous(*node);
    if (candidate.number <= mark || candidate.mapping_count != 0) continue;
    uncache(candidate);
    check(!candidate.linked && candidate.holder_count == 0, "memory in use is released");
    check(candidate.next_free == nullptr, "a piece in use is in a list of free records");
    candidate.next_free = std::exchange(taken, &candidate);
  }
  audit();
  return taken;
}

bool memory_store::fits_within(std::uint64_t limit_bytes, std::uint64_t size_bytes) const noexcept {
  if (limit_bytes == 0) return true;
  const sync::lock_guard<sync::mutex> lock(mutex_);
  check(numbers_.cached_bytes <= numbers_.held_bytes, "more is cached than is held");
  check(size_bytes != 0, "room is looked for that takes nothing");
  const std::uint64_t used_bytes = numbers_.held_bytes - numbers_.cached_bytes;
  return size_bytes <= limit_bytes && used_bytes <= limit_bytes - size_bytes;
}

void memory_store::released(physical_memory& gone) noexcept {
  check(!gone.linked && gone.mapping_count == 0,
        "a piece is released while it is cached or mapped");
  const sync::lock_guard<sync::mutex> lock(mutex_);
  check(gone.holder_count == 0 && gone.handle != physical_handle::none,
        "a piece is released that is held, or was released before");
  check(numbers_.memory_count > 0 && numbers_.held_bytes >= gone.size_bytes,
        "more is released than is held");
  numbers_.held_bytes -= gone.size_bytes;
  if (gone.spilled) {
    check(numbers_.spilled_bytes >= gone.size_bytes, "more spilled memory is released than exists");
    numbers_.spilled_bytes -= gone.size_bytes;
  }
  --numbers_.memory_count;
  ++numbers_.released_count;
  gone.handle = physical_handle::none;
  gone.last_use.reset();
  pool_.release(gone);
  audit();
}

void memory_store::put_back(physical_memory& kept) noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  check(kept.holder_count == 0, "physical I2: a piece that is held is put back into the cache");
  check(kept.mapping_count == 0 && kept.handle != physical_handle::none,
        "a piece is put back that could not be released");
  cache_if_idle(kept);
  check(kept.linked, "a piece that could not be released is not cached");
}

void memory_store::mark_exported(std::span<physical_memory* const> memories) noexcept {
  check(!memories.empty(), "no memory is exported");
  const sync::lock_guard<sync::mutex> lock(mutex_);
  for (physical_memory* const given : memories) {
    check(given->handle != physical_handle::none, "memory is exported that has no handle");
    check(given->holder_count > 0 && !given->linked, "a piece without a holder is exported");
    given->exported = true;
  }
}

bool memory_store::any_exported(std::span<physical_memory* const> memories) const noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  return std::any_of(memories.begin(), memories.end(),
                     [](const physical_memory* each) { return each->exported; });
}

physical_memory* memory_store::take_exported() noexcept {
  if (!has_cached_exported()) return nullptr;
  const sync::lock_guard<sync::mutex> lock(mutex_);
  for (index_node* node = cache_.last(); node != nullptr; node = cache_.previous(*node)) {
    auto& candidate = static_cast<physical_memory&>(*node);
    if (!is_for_one_use(candidate) || candidate.mapping_count != 0) continue;
    uncache(candidate);
    check(!candidate.linked && candidate.holder_count == 0, "memory in use is released");
    audit();
    return &candidate;
  }
  return nullptr;
}

// ---- suspended pieces ----------------------------------------------------------------

bool memory_store::may_be_suspended(const physical_memory& of) const noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  check(of.holder_count > 0, "an unused piece is suspended");
  check(!of.linked, "a cached piece is suspended");
  const bool is_in_place = of.is_suspended || of.mapping_count == 1;
  return of.holder_count == 1 && !of.exported && is_in_place;
}

status memory_store::admit_again(const physical_memory& suspended) noexcept {
  check(suspended.is_suspended && suspended.handle == physical_handle::none,
        "existing memory is created again");
  const sync::lock_guard<sync::mutex> lock(mutex_);
  const std::uint64_t size_bytes = suspended.size_bytes;
  if (options_.budget_bytes != 0 &&
      (size_bytes > options_.budget_bytes ||
       numbers_.held_bytes + asked_bytes_ > options_.budget_bytes - size_bytes)) {
    return budget_spent;
  }
  check(size_bytes > 0 && size_bytes <= numbers_.suspended_bytes, "a piece is not suspended");
  asked_bytes_ += size_bytes;
  return {};
}

void memory_store::abandon_again(const physical_memory& suspended) noexcept {
  check(suspended.is_suspended, "a piece in use is given up");
  const sync::lock_guard<sync::mutex> lock(mutex_);
  check(asked_bytes_ >= suspended.size_bytes, "a piece is abandoned that was not being created");
  asked_bytes_ -= suspended.size_bytes;
}

void memory_store::resumed(physical_memory& suspended, physical_handle handle) noexcept {
  check(handle != physical_handle::none, "the driver created memory and returned no handle");
  check(suspended.is_suspended && suspended.handle == physical_handle::none,
        "existing memory is created again");
  const sync::lock_guard<sync::mutex> lock(mutex_);
  const std::uint64_t size_bytes = suspended.size_bytes;
  check(asked_bytes_ >= size_bytes && numbers_.suspended_bytes >= size_bytes,
        "a piece is created that was not counted, or not suspended");
  suspended.handle = handle;
  asked_bytes_ -= size_bytes;
  numbers_.suspended_bytes -= size_bytes;
  numbers_.held_bytes += size_bytes;
  if (suspended.spilled) numbers_.spilled_bytes += size_bytes;
  ++numbers_.memory_count;
  ++numbers_.created_count;
  numbers_.peak_held_bytes = std::max(numbers_.peak_held_bytes, numbers_.held_bytes);
  audit();
}

void memory_store::suspended(physical_memory& given_up) noexcept {
  check(given_up.is_suspended && !given_up.linked && given_up.holder_count == 1,
        "physical I7: memory is suspended that no range has, or several have");
  const sync::lock_guard<sync::mutex> lock(mutex_);
  check(given_up.mapping_count == 0 && given_up.handle != physical_handle::none,
        "memory is released that is mapped, or was released before");
  check(numbers_.memory_count > 0 && numbers_.held_bytes >= given_up.size_bytes,
        "more is released than is held");
  given_up.handle = physical_handle::none;
  numbers_.held_bytes -= given_up.size_bytes;
  if (given_up.spilled) numbers_.spilled_bytes -= given_up.size_bytes;
  numbers_.suspended_bytes += given_up.size_bytes;
  --numbers_.memory_count;
  ++numbers_.released_count;
  audit();
}

void memory_store::forget_suspended(physical_memory& gone) noexcept {
  check(gone.is_suspended && gone.holder_count == 1, "a piece in use is forgotten");
  const sync::lock_guard<sync::mutex> lock(mutex_);
  check(gone.handle == physical_handle::none && gone.mapping_count == 0,
        "a piece is forgotten that has memory");
  check(numbers_.suspended_bytes >= gone.size_bytes, "more bytes are removed than are suspended");
  numbers_.suspended_bytes -= gone.size_bytes;
  gone.holder_count = 0;
  gone.is_suspended = false;
  gone.last_use.reset();
  pool_.release(gone);
  audit();
}

void memory_store::mark_unfilled(physical_memory& kept) noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  check(kept.is_suspended && kept.handle != physical_handle::none,
        "physical I9: a piece that was filled, or has no memory, is unfilled");
  kept.is_suspended = false;
  kept.unfilled = true;
}

void memory_store::add_holder(physical_memory& memory) noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  check(memory.holder_count > 0 && !memory.linked, "a cached piece is held without being taken");
  check(memory.holder_count < std::numeric_limits<std::uint32_t>::max(),
        "too many ranges hold a piece");
  ++memory.holder_count;
  memory.was_shared = true;
}

void memory_store::drop_holder(physical_memory& memory, const ticket_ref& last_use) noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  check(memory.holder_count > 0, "a piece without a holder is dropped");
  check(!memory.linked && memory.handle != physical_handle::none,
        "a held piece is cached or released");
  if (--memory.holder_count > 0) return;
  // A range that its stream never used may be freed before the work of the piece's previous holder
  // has finished: the older ticket stays until a newer one, which is ordered behind it, takes its
  // place. A passed ticket is released, so that its event is reused.
  if (!last_use.known_passed()) {
    memory.last_use = ticket_ref{last_use};
  } else if (memory.last_use.known_passed()) {
    memory.last_use.reset();
  }
  cache_if_idle(memory);
  check(memory.linked || memory.mapping_count > 0,
        "physical I1: a piece is neither held nor cached nor mapped");
}

void memory_store::add_mapping(physical_memory& mapped) noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  check(mapped.handle != physical_handle::none && !mapped.linked,
        "a mapped piece is cached or released");
  ++mapped.mapping_count;
  check(mapped.mapping_count > 0, "a piece has too many mappings");
}

void memory_store::drop_mapping(physical_memory& mapped) noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  check(mapped.mapping_count > 0, "a mapping is undone that the piece does not have");
  check(mapped.handle != physical_handle::none, "a released piece was mapped");
  --mapped.mapping_count;
  if (mapped.holder_count == 0 && !mapped.linked) cache_if_idle(mapped);
}

bool memory_store::any_shared(std::span<physical_memory* const> memories) const noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  return std::any_of(memories.begin(), memories.end(),
                     [](const physical_memory* memory) { return memory->holder_count > 1; });
}

bool memory_store::any_was_shared(std::span<physical_memory* const> memories) const noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  return std::any_of(memories.begin(), memories.end(),
                     [](const physical_memory* memory) { return memory->was_shared; });
}

// A piece without a holder goes to the cache at once if its next user can be ordered behind its
// last user's work; else when its last mapping is undone, which happens only after that work.
void memory_store::cache_if_idle(physical_memory& memory) noexcept {
  check(memory.holder_count == 0 && !memory.linked,
        "a piece is cached that is held, or cached already");
  check(memory.handle != physical_handle::none && memory.size_bytes != 0,
        "a piece is cached that has no memory");
  const bool at_once = options_.reuse_while_mapped && !memory.was_shared;
  if (memory.mapping_count > 0 && !at_once) return;
  if (memory.mapping_count == 0 && memory.was_shared) memory.last_use.reset();
  check(memory.mapping_count == 0 || !memory.was_shared,
        "physical I3: a piece that several ranges held is cached while it is mapped");
  memory.was_shared = false;
  cache_.insert(memory, memory.size_bytes);
  numbers_.cached_bytes += memory.size_bytes;
  ++numbers_.cached_count;
  if (is_for_one_use(memory)) cached_exported_count_.fetch_add(1, std::memory_order_relaxed);
  audit();
}

physical_statistics memory_store::statistics() const noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  check(sums_fit(), "physical I1: the sums of held and cached pieces disagree");
  check(numbers_.peak_held_bytes >= numbers_.held_bytes, "more memory is held than the peak");
  return numbers_;
}

std::uint64_t memory_store::still_mapped_bytes() const noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  std::uint64_t sum_bytes = 0;
  for (index_node* node = cache_.first(); node != nullptr; node = cache_.next(*node)) {
    const auto& cached = static_cast<const physical_memory&>(*node);
    if (cached.mapping_count != 0) sum_bytes += cached.size_bytes;
  }
  check(sum_bytes <= numbers_.cached_bytes, "more cached memory is mapped than is cached");
  return sum_bytes;
}

std::uint64_t memory_store::largest_cached_bytes() const noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  const index_node* const last = cache_.last();
  check((last == nullptr) == (numbers_.cached_count == 0), "a cached piece is not in the cache");
  return last == nullptr ? 0 : last->key;
}

status memory_store::validate() const noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  return validate_all();
}

status memory_store::validate_all() const noexcept {
  if (status valid = cache_.validate(); !valid) return valid;
  if (cache_.size() != numbers_.cached_count)
    return refuse(errc::internal, "the count of cached pieces is wrong");
  if (numbers_.cached_bytes > numbers_.held_bytes || numbers_.cached_count > numbers_.memory_count)
    return refuse(errc::internal, "more pieces are cached than held");
  if (options_.budget_bytes != 0 && numbers_.held_bytes > options_.budget_bytes)
    return refuse(errc::internal, "physical I4: more is held than the budget allows");
  std::uint64_t sum_bytes = 0;
  for (index_node* node = cache_.first(); node != nullptr; node = cache_.next(*node)) {
    const auto& cached = static_cast<const physical_memory&>(*node);
    if (cached.holder_count != 0 || cached.handle == physical_handle::none)
      return refuse(errc::internal, "physical I2: a cached piece is held, or invalid");
    if (cached.size_bytes == 0 || cached.size_bytes % options_.granularity_bytes != 0)
      return refuse(errc::internal, "physical I5: a cached piece has no whole granules");
    if (cached.key != cached.size_bytes)
      return refuse(errc::internal, "a cached piece is not where the cache has it");
    sum_bytes += cached.size_bytes;
  }
  if (sum_bytes != numbers_.cached_bytes)
    return refuse(errc::internal, "the bytes of cached pieces are wrong");
  return {};
}

}  // namespace vmm

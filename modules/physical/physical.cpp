// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module vmm.physical;

import vmm.backend;
import vmm.base;
import vmm.std;
import vmm.timeline;

namespace vmm {

namespace {

// How large the pieces from index `from` on are together.
std::uint64_t sum_of(const memory_list& memories, std::size_t from) noexcept {
  std::uint64_t sum_bytes = 0;
  for (std::size_t i = from; i < memories.size(); ++i) sum_bytes += memories[i]->size_bytes;
  return sum_bytes;
}

// A lender's limit is not the device's memory, and changes.
status check_lender(driver_interface& driver, const physical_request& like,
                    std::uint64_t used_bytes) {
  const auto refusal_of = [&](std::uint64_t size_bytes) {
    physical_request wanted = like;
    wanted.size_bytes = size_bytes;
    const result<granularity> unit = driver.query_granularity(wanted);
    const bool is_beyond = !unit && unit.error().code == errc::out_of_memory;
    return is_beyond ? status{unit.error()} : status{};
  };
  const status sum = refusal_of(like.size_bytes + used_bytes);
  if (sum || used_bytes == 0) return sum;
  if (const status alone = refusal_of(like.size_bytes); !alone) return alone;
  error why = sum.error();
  why.detail = detail_text()
                   .add("with the ")
                   .add_number(used_bytes >> 20)
                   .add(" MiB that this allocator has mapped, ")
                   .add(why.detail)
                   .keep(why.detail);
  return why;
}

constexpr std::uint64_t common_bytes = std::uint64_t{64} << 20;

// Handles of a lender are powers of two, and those of one size pass between tenants as they are:
// for others the lender releases and creates. Where less is held, one of that size strands much.
std::uint64_t lent_size(std::uint64_t missing_bytes, std::uint64_t largest_bytes,
                        std::uint64_t reached_bytes) noexcept {
  constexpr std::uint64_t small_bytes = std::uint64_t{8} << 20;  // less: a limit is near
  const bool is_common = missing_bytes >= common_bytes && largest_bytes >= small_bytes &&
                         reached_bytes >= 16 * common_bytes;
  return is_common ? common_bytes : std::bit_floor(largest_bytes);
}

}  // namespace

status physical_pool::acquire(std::uint64_t size_bytes, memory_list& out,
                              std::uint64_t new_bytes_max) {
  check(size_bytes > 0 && size_bytes % store_.options().granularity_bytes == 0,
        "a request for physical memory is not whole granules");
  check(new_bytes_max % store_.options().granularity_bytes == 0,
        "new pieces are made of whole granules");
  const std::uint64_t planned_bytes = smaller_limit(new_bytes_max, store_.options().chunk_bytes);
  if (status room = check_room(size_bytes); !room) return room;
  const std::uint64_t granularity_bytes = store_.options().granularity_bytes;
  const bool is_lent = driver_->feature_set().is_lender && std::has_single_bit(granularity_bytes) &&
                       granularity_bytes <= common_bytes;
  const std::uint64_t reached_bytes = is_lent ? statistics().held_bytes + size_bytes : 0;
  const std::size_t before = out.size();
  std::uint64_t remaining_bytes = size_bytes;
  while (remaining_bytes > 0) {
    const std::uint64_t largest_bytes =
        is_lent ? lent_size(remaining_bytes, planned_bytes, reached_bytes) : planned_bytes;
    const result<physical_memory*> next =
        acquire_one({remaining_bytes, size_bytes}, largest_bytes, out);
    if (!next) {
      give_back(out, before);
      return next.error();
    }
    check((*next)->size_bytes <= remaining_bytes, "a piece is larger than what is missing");
    remaining_bytes -= (*next)->size_bytes;
  }
  check(out.size() > before, "memory was collected without a piece");
  debug_check([&] { return sum_of(out, before) == size_bytes; },
              "the pieces' sum is not the requested size");
  return {};
}

status physical_pool::acquire_whole(std::uint64_t size_bytes, memory_list& out) {
  check(size_bytes > 0 && size_bytes % store_.options().granularity_bytes == 0,
        "a request for physical memory is not whole granules");
  if (status room = reserve_more(out, 1); !room) return room;
  physical_memory* next = store_.take_exact(size_bytes);
  if (next == nullptr) {
    const result<physical_memory*> fresh = create(size_bytes);
    if (!fresh) return fresh.error();
    next = *fresh;
  }
  check(next->holder_count == 1 && next->size_bytes == size_bytes,
        "the returned piece is not the requested one");
  out.push_back(next);
  return {};
}

void physical_pool::give_back(memory_list& memories, std::size_t from) noexcept {
  check(from <= memories.size(), "more pieces are retained than exist");
  while (memories.size() > from) {
    store_.drop_holder(*memories.back(), memories.back()->last_use);
    memories.pop_back();
  }
}

void physical_pool::release_exported() noexcept {
  for (physical_memory* next = store_.take_exported(); next != nullptr;
       next = store_.take_exported()) {
    check(next->mapping_count == 0, "memory is released that is mapped");
    if (const status released = driver_->release(next->handle); !released) {
      store_.put_back(*next);
      return;
    }
    store_.released(*next);
  }
}

trim_report physical_pool::trim(std::uint64_t limit_bytes) noexcept {
  trim_report report;
  for (physical_memory* next = store_.take_releasable(limit_bytes); next != nullptr;
       next = store_.take_releasable(limit_bytes)) {
    const std::uint64_t size_bytes = next->size_bytes;
    if (const status released = driver_->release(next->handle); !released) {
      report.failure = released.error();
      store_.put_back(*next);
      break;
    }
    store_.released(*next);
    check(size_bytes > 0, "a piece without bytes was released");
    ++report.released_count;
    report.released_bytes += size_bytes;
  }
  check((report.released_count == 0) == (report.released_bytes == 0),
        "bytes were released without a piece");
  report.still_mapped_bytes = store_.still_mapped_bytes();
  return report;
}

result<physical_memory*> physical_pool::acquire_one(const memory_store::wanted& want,
                                                    std::uint64_t largest_bytes, memory_list& out) {
  if (status room = reserve_more(out, 1); !room) return room.error();
  physical_memory* next = store_.take(want);
  if (next == nullptr) {
    const result<physical_memory*> fresh =
        create(smaller_limit(want.remaining_bytes, largest_bytes));
    if (!fresh) return fresh;
    next = *fresh;
  }
  check(next->holder_count == 1, "a piece with other holders is handed out");
  check(out.size() < out.capacity(), "the list of pieces is full");
  out.push_back(next);
  return next;
}

trim_report physical_pool::release_created(std::uint64_t mark) noexcept {
  trim_report report;
  for (physical_memory* next = store_.take_created(mark); next != nullptr;) {
    physical_memory& gone = *next;
    next = std::exchange(gone.next_free, nullptr);
    const std::uint64_t size_bytes = gone.size_bytes;
    check(gone.number > mark && gone.mapping_count == 0,
          "I8: memory is released that others created");
    const status released =
        report.failure.code == errc::none ? driver_->release(gone.handle) : status{report.failure};
    if (!released) {
      report.failure = released.error();
      store_.put_back(gone);
      continue;
    }
    store_.released(gone);
    ++report.released_count;
    report.released_bytes += size_bytes;
  }
  check((report.released_count == 0) == (report.released_bytes == 0),
        "bytes were released without a piece");
  return report;
}

// ---- room before anything is created ---------------------------------------------------

bool physical_pool::is_many(const creation& what) const noexcept {
  check(what.size_bytes != 0, "room is looked for that takes nothing");
  const std::uint64_t largest_bytes =
      smaller_limit(what.handle_bytes, store_.options().chunk_bytes);
  if (driver_->feature_set().lazy_commit) return false;
  return what.size_bytes > queried_bytes_min ||
         (largest_bytes != 0 && what.size_bytes / largest_bytes > queried_count_min);
}

std::optional<memory_info> physical_pool::query_device() noexcept {
  const result<memory_info> now = driver_->query_memory(store_.options().like.where);
  if (!now || now->total_bytes == 0) return std::nullopt;
  device_bytes_.store(now->total_bytes, std::memory_order_relaxed);
  return *now;
}

std::uint64_t physical_pool::device_bytes(std::uint64_t size_bytes) noexcept {
  if (driver_->feature_set().lazy_commit) return 0;  // more than the device can be created
  const std::uint64_t known_bytes = device_bytes_.load(std::memory_order_relaxed);
  if (known_bytes != 0 || size_bytes <= queried_bytes_min) return known_bytes;
  const std::optional<memory_info> now = query_device();
  check(!now || now->total_bytes != 0, "a device without memory is known");
  return now ? now->total_bytes : 0;
}

status physical_pool::check_room(std::uint64_t size_bytes) noexcept {
  check(size_bytes > 0, "room is looked for that takes nothing");
  check(size_bytes % store_.options().granularity_bytes == 0,
        "a check for room has a size that is not whole granules");
  if (!store_.fits_within(store_.options().budget_bytes, size_bytes)) return budget_spent;
  if (driver_->feature_set().is_lender && !may_spill()) {
    const physical_statistics now = statistics();
    if (size_bytes <= now.cached_bytes) return {};
    physical_request wanted = store_.options().like;
    wanted.size_bytes = size_bytes;
    return check_lender(*driver_, wanted, now.held_bytes - now.cached_bytes);
  }
  std::uint64_t limit_bytes = device_bytes(size_bytes);
  if (limit_bytes != 0) limit_bytes += statistics().spilled_bytes;  // which lies elsewhere
  return may_spill() || store_.fits_within(limit_bytes, size_bytes) ? status{} : device_full;
}

bool physical_pool::may_have(const creation& what) noexcept {
  if (may_spill() || !is_many(what)) return true;
  const std::optional<memory_info> now = query_device();
  if (!now) return true;
  check(now->total_bytes != 0, "a device without memory is known");
  const std::uint64_t cached_bytes = statistics().cached_bytes;
  return what.size_bytes <= cached_bytes || what.size_bytes - cached_bytes <= now->free_bytes;
}

std::uint64_t physical_pool::smaller_limit(std::uint64_t a, std::uint64_t b) noexcept {
  return a == 0 || b == 0 ? std::max(a, b) : std::min(a, b);
}

result<physical_memory*> physical_pool::create(std::uint64_t size_bytes) {
  check(size_bytes > 0, "a piece without bytes is made");
  const result<physical_memory*> fresh = store_.admit(size_bytes);
  if (!fresh) return fresh;
  physical_request request = store_.options().like;
  request.size_bytes = size_bytes;
  result<physical_handle> handle = driver_->create(request);
  if (!handle && handle.error().code == errc::out_of_memory && may_spill() &&
      store_.options().spill) {
    request.where = *store_.options().spill;
    request.compressible = false;
    handle = driver_->create(request);
    if (handle) store_.mark_spilled(**fresh);
  }
  if (!handle) {
    store_.abandon(**fresh);
    return handle.error();
  }
  store_.confirm(**fresh, *handle);
  return fresh;
}

// ---- suspended pieces ----------------------------------------------------------------

status physical_pool::suspend(physical_memory& given_up) {
  check(given_up.is_suspended && given_up.mapping_count == 0,
        "released memory is in use or mapped");
  if (given_up.handle == physical_handle::none) return {};
  const status released = driver_->release(given_up.handle);
  if (released) store_.suspended(given_up);
  return released;
}

status physical_pool::resume(physical_memory& suspended) {
  check(suspended.is_suspended, "memory in use is resumed");
  if (suspended.handle != physical_handle::none) return {};
  if (status admitted = store_.admit_again(suspended); !admitted) return admitted;
  physical_request request = store_.options().like;
  request.size_bytes = suspended.size_bytes;
  if (suspended.spilled) {
    check(store_.options().spill.has_value(), "memory was spilled without a location");
    request.where = *store_.options().spill;
    request.compressible = false;
  }
  result<physical_handle> handle = driver_->create(request);
  if (!handle && handle.error().code == errc::out_of_memory && !suspended.spilled && may_spill() &&
      store_.options().spill) {
    request.where = *store_.options().spill;
    request.compressible = false;
    handle = driver_->create(request);
    if (handle) store_.mark_spilled(suspended);
  }
  if (handle) {
    store_.resumed(suspended, *handle);
    return {};
  }
  store_.abandon_again(suspended);
  return handle.error();
}

void physical_pool::end_suspended(physical_memory& gone) noexcept {
  check(gone.is_suspended && gone.mapping_count == 0, "memory that is mapped ends");
  if (suspend(gone)) return store_.forget_suspended(gone);
  store_.mark_unfilled(gone);
  store_.drop_holder(gone, ticket_ref{});
}

}  // namespace vmm

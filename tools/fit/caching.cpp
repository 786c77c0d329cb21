// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.fit:caching - the request's way: round, search, split, new segments; releases and garbage
// collection. Expandable segments are in expandable.cpp.
module vmm.fit;

import vmm.base;
import vmm.std;

namespace vmm::tools {

namespace {

constexpr std::uint64_t unit_bytes = 512;
constexpr std::uint64_t mib = std::uint64_t{1} << 20;
constexpr std::uint64_t small_bytes_max = mib;
constexpr std::uint64_t small_segment_bytes = 2 * mib;
constexpr std::uint64_t large_request_bytes = 10 * mib;  // from here on a segment of its own size
constexpr std::uint64_t large_rounding_bytes = 2 * mib;

[[nodiscard]] constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) noexcept {
  return value > no_size - unit ? no_size / unit * unit : (value + unit - 1) / unit * unit;
}

[[nodiscard]] std::uint64_t allowed_of(const caching_options& options,
                                       const caching_device& device) {
  if (options.memory_fraction >= 1 || device.device_bytes == no_size) return no_size;
  return static_cast<std::uint64_t>(options.memory_fraction *
                                    static_cast<double>(device.device_bytes));
}

}  // namespace

caching_model::caching_model(const caching_options& options, const caching_device& device)
    : options_(options),
      device_(device),
      allowed_bytes_(allowed_of(options, device)),
      blocks_(1),
      segments_(1),
      next_base_(device.has_descending_addresses ? std::uint64_t{1} << 62
                                                 : std::uint64_t{1} << 30) {
  for (const segment_change& each : device.places)
    if (each.action == segment_action::alloc) places_[each.size_bytes].push_back(each.base);
}
caching_model::~caching_model() = default;

// ---- sizes ----------------------------------------------------------------------------

std::uint64_t caching_model::round(std::uint64_t size_bytes) const noexcept {
  if (size_bytes < unit_bytes) return unit_bytes;
  // Interval 0 ends below 2 MiB; the last one has no end.
  const auto log_size = static_cast<std::uint32_t>(std::bit_width(size_bytes) - 1);
  const std::uint32_t interval = std::min(log_size > 20 ? log_size - 20 : 0, 15U);
  const std::uint64_t divisions = options_.roundup_divisions[interval];
  if (divisions <= 1 || size_bytes <= unit_bytes * divisions)
    return round_up(size_bytes, unit_bytes);
  if (std::has_single_bit(size_bytes)) return size_bytes;
  const std::uint64_t floor_bytes = std::bit_floor(size_bytes);
  const std::uint64_t step_bytes = floor_bytes >> (std::bit_width(divisions) - 1);
  return step_bytes == 0 ? floor_bytes << 1 : round_up(size_bytes, step_bytes);
}

std::uint64_t caching_model::segment_bytes_for(std::uint64_t rounded_bytes) const noexcept {
  if (rounded_bytes <= small_bytes_max) return small_segment_bytes;
  if (rounded_bytes < large_request_bytes) return options_.large_segment_bytes;
  return round_up(rounded_bytes, large_rounding_bytes);
}

std::uint64_t caching_model::max_non_split_rounding() const noexcept {
  return options_.max_non_split_rounding_bytes.value_or(options_.large_segment_bytes);
}

bool caching_model::is_oversize(std::uint64_t size_bytes) const noexcept {
  return size_bytes >= options_.max_split_bytes;
}

// Private pools have expandable segments since 2.5.
bool caching_model::uses_expandable(const block_pool& pool) const noexcept {
  return options_.expandable_segments && (pool.owner == 0 || options_.minor_version >= 5);
}

// ---- a request ------------------------------------------------------------------------

block_number caching_model::allocate(const caching_request& request) {
  search wanted;
  wanted.size_bytes = round(request.size_bytes);
  wanted.segment_bytes = segment_bytes_for(wanted.size_bytes);
  wanted.pool = pool_of(request, wanted.size_bytes <= small_bytes_max);
  wanted.stream = request.stream;
  std::uint32_t found = find_free(wanted);
  if (found == 0) found = get_new(wanted);
  is_next_refused_ = false;
  return found == 0 ? block_number::none : take(found, wanted);
}

std::uint32_t caching_model::pool_of(const caching_request& request, bool is_small) {
  const std::uint64_t name = std::uint64_t{request.pool} << 1 | (is_small ? 1 : 0);
  const auto [found, is_new] =
      pool_numbers_.try_emplace(name, static_cast<std::uint32_t>(pools_.size()));
  if (is_new) pools_.push_back({.owner = request.pool, .is_small = is_small});
  return found->second;
}

std::uint64_t caching_model::expandable_size(std::uint32_t number) const noexcept {
  const block& one = blocks_[number];
  const bool has_frontier = one.next != 0 && !blocks_[one.next].is_mapped;
  return one.size_bytes + (has_frontier ? blocks_[one.next].size_bytes : 0);
}

// The first block that is large enough. An expandable block counts with the unmapped addresses
// behind it: the frontier comes last.
caching_model::block_index::const_iterator caching_model::candidate_of(const search& wanted) const {
  const block_pool& pool = pools_[wanted.pool];
  auto at = pool.free.lower_bound({wanted.stream, wanted.size_bytes, 0});
  const auto is_of_stream = [&](auto each) {
    return each != pool.free.end() && each->first.stream == wanted.stream;
  };
  if (!is_of_stream(at)) return pool.free.end();
  if (!blocks_[at->second].is_expandable) return at;
  auto next = at;
  ++next;
  while (blocks_[at->second].is_expandable && is_of_stream(next) &&
         expandable_size(next->second) < expandable_size(at->second))
    at = next++;
  return at;
}

std::uint32_t caching_model::find_free(const search& wanted) {
  block_pool& pool = pools_[wanted.pool];
  ++pool.search_count;
  const auto at = candidate_of(wanted);
  if (at == pool.free.end()) return 0;
  // One candidate: after a refusal no larger one is tried.
  const block& found = blocks_[at->second];
  if (!is_oversize(wanted.size_bytes) && is_oversize(found.size_bytes)) return 0;
  if (is_oversize(wanted.size_bytes) &&
      found.size_bytes >= wanted.size_bytes + max_non_split_rounding())
    return 0;
  const std::uint32_t number = at->second;
  pool.free.erase(at);
  return number;
}

std::uint32_t caching_model::get_new(const search& wanted) {
  collect_garbage();
  std::uint32_t found = add_segment(wanted);
  if (found != 0 || options_.throw_on_refusal) return found;
  if (release_oversize(wanted)) found = add_segment(wanted);
  if (found != 0) return found;
  release_all();
  ++retry_count_;
  // The pool is not searched again: what the wait has freed serves the next request.
  return add_segment(wanted);
}

std::uint32_t caching_model::add_segment(const search& wanted) {
  if (wanted.segment_bytes > allowed_bytes_ || held_bytes_ > allowed_bytes_ - wanted.segment_bytes)
    return 0;
  if (uses_expandable(pools_[wanted.pool])) return grow_expandable(wanted);
  if (!charge(wanted.segment_bytes)) return 0;
  const block made{.base = place(wanted.segment_bytes),
                   .size_bytes = wanted.segment_bytes,
                   .segment = static_cast<std::uint32_t>(segments_.size()),
                   .pool = wanted.pool,
                   .stream = wanted.stream};
  native_segments_.emplace(made.base, made.base + made.size_bytes);
  segments_.push_back({made.base, made.size_bytes, 0});
  notify({segment_action::alloc, made.size_bytes, made.base});
  return add_block(made);
}

bool caching_model::should_split(const block& from, std::uint64_t size_bytes) const noexcept {
  const std::uint64_t left_bytes = from.size_bytes - size_bytes;
  if (pools_[from.pool].is_small || options_.expandable_segments) return left_bytes >= unit_bytes;
  return !is_oversize(size_bytes) && left_bytes > small_bytes_max;
}

block_number caching_model::take(std::uint32_t number, const search& wanted) {
  if (should_split(blocks_[number], wanted.size_bytes)) {
    block rest = blocks_[number];
    rest.base += wanted.size_bytes;
    rest.size_bytes -= wanted.size_bytes;
    blocks_[number].size_bytes = wanted.size_bytes;
    const std::uint32_t added = add_block(rest);
    insert_after(added, number);
    insert_free(added);
  }
  blocks_[number].is_live = true;
  return static_cast<block_number>(number);
}

// ---- frees ----------------------------------------------------------------------------

void caching_model::free(block_number block) {
  const auto number = static_cast<std::uint32_t>(block);
  check(number != 0 && number < blocks_.size() && blocks_[number].is_live,
        "a block that is not live is freed");
  finish_free(number);
}

std::uint64_t caching_model::free_pending(block_number block) {
  const auto number = static_cast<std::uint32_t>(block);
  check(number != 0 && number < blocks_.size() && blocks_[number].is_live,
        "a block that is not live is freed");
  pending_.emplace(++pending_count_, number);
  return pending_count_;
}

void caching_model::complete(std::uint64_t pending) {
  const auto found = pending_.find(pending);
  if (found == pending_.end()) return;
  const std::uint32_t number = found->second;
  pending_.erase(found);
  finish_free(number);
}

void caching_model::finish_free(std::uint32_t number) {
  blocks_[number].is_live = false;
  merge(number, blocks_[number].previous);
  merge(number, blocks_[number].next);
  insert_free(number);
}

// Joins a free neighbour of the same kind into the block.
void caching_model::merge(std::uint32_t into, std::uint32_t other) {
  if (other == 0 || blocks_[other].is_live) return;
  block& kept = blocks_[into];
  const block& gone = blocks_[other];
  if (kept.is_mapped != gone.is_mapped) return;
  block_pool& pool = pools_[gone.pool];
  if (gone.is_mapped) {
    pool.free.erase(key_of(other));
  } else {
    pool.unmapped.erase(address_key_of(other));
  }
  kept.base = std::min(kept.base, gone.base);
  kept.size_bytes += gone.size_bytes;
  remove_block(other);
}

void caching_model::insert_free(std::uint32_t number) {
  block_pool& pool = pools_[blocks_[number].pool];
  blocks_[number].age_base = pool.search_count;
  pool.free.emplace(key_of(number), number);
}

// ---- releases -------------------------------------------------------------------------

void caching_model::empty_cache() { release_all(); }

// With a largest size to split: one block that is large enough, else the largest until they are.
bool caching_model::release_oversize(const search& wanted) {
  if (options_.max_split_bytes == no_size) return false;
  block_pool& pool = pools_[wanted.pool];
  const std::uint64_t size_bytes = std::max(wanted.size_bytes, options_.max_split_bytes);
  auto at = pool.free.lower_bound({wanted.stream, size_bytes, 0});
  const bool is_there = at != pool.free.end() && at->first.stream == wanted.stream;
  if (is_there && !blocks_[at->second].is_expandable) {
    release_segment(at->second);
    return true;
  }
  std::uint64_t released_bytes = 0;
  while (released_bytes < size_bytes && at != pool.free.begin()) {
    --at;
    if (at->first.stream != wanted.stream || !is_oversize(at->first.size_bytes)) break;
    if (blocks_[at->second].is_expandable) continue;
    released_bytes += at->first.size_bytes;
    const std::uint32_t number = (at++)->second;
    release_segment(number);
  }
  return released_bytes >= size_bytes;
}

// Waits for all work, then releases every free segment.
void caching_model::release_all() {
  const std::map<std::uint64_t, std::uint32_t> pending = std::exchange(pending_, {});
  for (const auto& [ticket, number] : pending) finish_free(number);
  for (std::uint32_t i = 0; i < pools_.size(); ++i)
    if (pools_[i].owner == 0) release_pool(i);
}

void caching_model::release_pool(std::uint32_t pool) {
  std::vector<std::uint32_t> whole;
  std::vector<std::uint32_t> expandable;
  for (const auto& [where, number] : pools_[pool].free) {
    const block& one = blocks_[number];
    if (one.is_expandable) {
      expandable.push_back(number);
    } else if (one.previous == 0 && one.next == 0) {
      whole.push_back(number);
    }
  }
  for (const std::uint32_t each : whole) release_segment(each);
  for (const std::uint32_t each : expandable) unmap(each);
}

void caching_model::release_segment(std::uint32_t number) {
  const block gone = blocks_[number];
  debug_check([&] { return !gone.is_live && gone.previous == 0 && gone.next == 0; },
              "a segment with live blocks is released");
  pools_[gone.pool].free.erase(key_of(number));
  native_segments_.erase(gone.base);
  held_bytes_ -= gone.size_bytes;
  notify({segment_action::free, gone.size_bytes, gone.base});
  remove_block(number);
}

// Unsplit segments of the default large pool, the old ones first. Does nothing without a fraction.
void caching_model::collect_garbage() {
  if (options_.garbage_collection_threshold <= 0 || allowed_bytes_ == no_size) return;
  const auto threshold_bytes = static_cast<std::uint64_t>(options_.garbage_collection_threshold *
                                                          static_cast<double>(allowed_bytes_));
  const auto found = pool_numbers_.find(0);
  if (held_bytes_ <= threshold_bytes || found == pool_numbers_.end()) return;
  const std::uint64_t wanted_bytes = held_bytes_ - threshold_bytes;
  const block_pool& pool = pools_[found->second];
  const auto is_whole = [&](const block& one) { return one.previous == 0 && one.next == 0; };
  const auto age_of = [&](const block& one) {
    return static_cast<double>(pool.search_count - one.age_base);
  };
  double age_sum = 0;
  std::uint64_t count = 0;
  for (const auto& [where, number] : pool.free) {
    if (!is_whole(blocks_[number])) continue;
    age_sum += age_of(blocks_[number]);
    ++count;
  }
  std::uint64_t released_bytes = 0;
  for (bool goes_on = true; goes_on && released_bytes < wanted_bytes && count != 0;) {
    const double age_least = age_sum / static_cast<double>(count);
    goes_on = false;
    for (auto at = pool.free.begin(); at != pool.free.end() && released_bytes < wanted_bytes;) {
      const std::uint32_t number = (at++)->second;
      const block& one = blocks_[number];
      const bool is_skipped = one.is_expandable && options_.minor_version >= 5;
      if (!is_whole(one) || is_skipped || age_of(one) < age_least) continue;
      goes_on = true;
      released_bytes += one.size_bytes;
      age_sum -= age_of(one);
      --count;
      release_segment(number);
    }
  }
}

// ---- blocks ---------------------------------------------------------------------------

caching_model::key caching_model::key_of(std::uint32_t number) const noexcept {
  const block& one = blocks_[number];
  return {one.stream, one.size_bytes, one.base};
}

caching_model::key caching_model::address_key_of(std::uint32_t number) const noexcept {
  const block& one = blocks_[number];
  return {one.stream, 0, one.base};
}

std::uint32_t caching_model::add_block(const block& from) {
  std::uint32_t number = static_cast<std::uint32_t>(blocks_.size());
  if (unused_blocks_.empty()) {
    blocks_.push_back(from);
  } else {
    number = unused_blocks_.back();
    unused_blocks_.pop_back();
    blocks_[number] = from;
  }
  return number;
}

void caching_model::remove_block(std::uint32_t number) {
  const block& gone = blocks_[number];
  if (gone.previous != 0) blocks_[gone.previous].next = gone.next;
  if (gone.next != 0) blocks_[gone.next].previous = gone.previous;
  blocks_[number] = {};
  unused_blocks_.push_back(number);
}

void caching_model::insert_after(std::uint32_t number, std::uint32_t previous) {
  const std::uint32_t next = blocks_[previous].next;
  blocks_[number].previous = previous;
  blocks_[number].next = next;
  blocks_[previous].next = number;
  if (next != 0) blocks_[next].previous = number;
}

std::uint64_t caching_model::reserve(std::uint64_t size_bytes) {
  const std::uint64_t bytes = round_up(size_bytes, large_rounding_bytes);
  if (device_.has_descending_addresses) return next_base_ -= bytes;
  return std::exchange(next_base_, next_base_ + bytes);
}

// A recorded place that no other segment has, else new addresses.
std::uint64_t caching_model::place(std::uint64_t size_bytes) {
  const auto found = places_.find(size_bytes);
  if (found == places_.end() || found->second.empty()) return reserve(size_bytes);
  const std::uint64_t base = found->second.front();
  found->second.pop_front();
  const auto next = native_segments_.lower_bound(base);
  const bool meets_next = next != native_segments_.end() && next->first - base < size_bytes;
  const bool meets_last = next != native_segments_.begin() && std::prev(next)->second > base;
  return meets_next || meets_last ? reserve(size_bytes) : base;
}

bool caching_model::charge(std::uint64_t size_bytes) {
  if (std::exchange(is_next_refused_, false)) return false;
  if (size_bytes > device_.limit_bytes || held_bytes_ > device_.limit_bytes - size_bytes)
    return false;
  held_bytes_ += size_bytes;
  peak_held_bytes_ = std::max(peak_held_bytes_, held_bytes_);
  return true;
}

void caching_model::set_listener(std::function<void(const segment_change&)> listener) {
  listener_ = std::move(listener);
}

void caching_model::notify(const segment_change& change) const {
  if (listener_) listener_(change);
}

std::uint64_t caching_model::size_bytes(block_number block) const {
  return blocks_[static_cast<std::uint32_t>(block)].size_bytes;
}

std::uint64_t caching_model::base(block_number block) const {
  return blocks_[static_cast<std::uint32_t>(block)].base;
}

std::string caching_model::validate() const {
  std::uint64_t mapped_bytes = 0;
  std::uint64_t free_count = 0;
  for (std::uint32_t i = 1; i < blocks_.size(); ++i) {
    const block& one = blocks_[i];
    if (one.size_bytes == 0) continue;
    if (one.is_mapped) mapped_bytes += one.size_bytes;
    const block_pool& pool = pools_[one.pool];
    const bool is_free = pool.free.contains(key_of(i));
    const bool is_unmapped = pool.unmapped.contains(address_key_of(i));
    if (is_free != (!one.is_live && one.is_mapped) || is_unmapped != !one.is_mapped)
      return "I2: a block is in the wrong index";
    free_count += is_free || is_unmapped ? 1 : 0;
    if (one.next == 0) continue;
    const block& next = blocks_[one.next];
    if (next.previous != i || one.base + one.size_bytes != next.base)
      return "I1: the blocks of a segment are not contiguous";
    if (!one.is_live && !next.is_live && one.is_mapped == next.is_mapped)
      return "I1: two free neighbours are not joined";
  }
  for (const block_pool& each : pools_) free_count -= each.free.size() + each.unmapped.size();
  if (free_count != 0) return "I2: an index names a block that is gone";
  return mapped_bytes == held_bytes_ ? "" : "I3: the sum of the blocks is not the memory held";
}

}  // namespace vmm::tools

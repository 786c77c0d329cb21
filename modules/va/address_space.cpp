// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module vmm.va;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {

namespace {

constexpr const char* not_a_multiple =
    "a size in an address space is a multiple of its granularity, and not 0; round it up";

// The end of the highest range is not a 64-bit number.
[[nodiscard]] bool lies_in(address_range whole, address_range part) noexcept {
  return part.size_bytes <= whole.size_bytes &&
         part.base - whole.base <= whole.size_bytes - part.size_bytes;
}

}  // namespace

result<address_space> address_space::create(const address_space_options& options) noexcept {
  if (!std::has_single_bit(options.granularity_bytes)) {
    return refuse_number(options.granularity_bytes,
                         "the granularity of an address space is a power of two",
                         errc::invalid_argument);
  }
  address_space space;
  space.granularity_bytes_ = options.granularity_bytes;
  check(space.max_range_bytes() % options.granularity_bytes == 0, "a range ends inside a granule");
  return result<address_space>(std::move(space));
}

address_space::slot& address_space::slot_of(reservation_id reservation) noexcept {
  return const_cast<slot&>(std::as_const(*this).slot_of(reservation));
}

const address_space::slot& address_space::slot_of(reservation_id reservation) const noexcept {
  const auto index = static_cast<std::size_t>(reservation) - 1;
  check(index < slots_.size(), "not a range of this address space");
  const slot& in = slots_[index];
  check(in.blocks.has_value(), "the range was removed from this address space");
  debug_check([&] { return in.range.base.value % granularity_bytes_ == 0; }, "a range is cut");
  return in;
}

/// The slot whose range holds the address; nullptr when none does.
const address_space::slot* address_space::slot_around(address at) const noexcept {
  const auto after = std::upper_bound(
      order_.begin(), order_.end(), at,
      [this](address wanted, std::uint32_t index) { return wanted < slots_[index].range.base; });
  if (after == order_.begin()) return nullptr;
  debug_check([&] { return slots_[*std::prev(after)].range.base <= at; }, "ranges out of order");
  const slot& in = slots_[*std::prev(after)];
  return at - in.range.base < in.range.size_bytes ? &in : nullptr;
}

/// 0 if the size is not a multiple; the largest value if it exceeds every range.
std::uint32_t address_space::granules(std::uint64_t size_bytes) const noexcept {
  debug_check([this] { return granularity_bytes_ != 0; }, "an address space was moved from");
  if (size_bytes % granularity_bytes_ != 0) return 0;
  const std::uint64_t count = size_bytes / granularity_bytes_;
  return static_cast<std::uint32_t>(
      std::min<std::uint64_t>(count, std::numeric_limits<std::uint32_t>::max()));
}

result<granule_request> address_space::in_granules(const address_request& request) const noexcept {
  const std::uint32_t count = granules(request.size_bytes);
  if (count == 0) return refuse(errc::invalid_argument, not_a_multiple);
  const std::uint64_t alignment = std::max(request.alignment_bytes, granularity_bytes_);
  if (!std::has_single_bit(alignment) || alignment / granularity_bytes_ > (1u << 31) ||
      (request.alignment_bytes & (request.alignment_bytes - 1)) != 0) {
    return refuse(errc::invalid_argument,
                  detail_text()
                      .add("an alignment is a power of two, of 2^31 granules, ")
                      .add_number(granularity_bytes_ << 31)
                      .add(" bytes, at most; not ")
                      .add_number(request.alignment_bytes)
                      .keep("an alignment is a power of two, of 2^31 granules at most"));
  }
  check(alignment % granularity_bytes_ == 0, "an alignment is less than a granule");
  return granule_request{count, static_cast<std::uint32_t>(alignment / granularity_bytes_)};
}

std::uint64_t address_space::max_range_bytes() const noexcept {
  check(granularity_bytes_ != 0, "an address space was moved from");
  const std::uint64_t fits = ~(granularity_bytes_ - 1) / granularity_bytes_;
  return std::min<std::uint64_t>(max_range_granules, fits) * granularity_bytes_;
}

status address_space::check_range(address_range range) const noexcept {
  const std::uint64_t base = range.base.value;
  if (granules(range.size_bytes) == 0 || base % granularity_bytes_ != 0) {
    return refuse(errc::invalid_argument,
                  "a range begins and ends on a multiple of the granularity, and is not empty");
  }
  if (range.size_bytes > max_range_bytes()) {
    return refuse(errc::invalid_argument,
                  "a range holds at most 2^30 - 1 granules; reserve less at a time");
  }
  if (range.size_bytes - 1 > std::numeric_limits<std::uint64_t>::max() - base) {
    return refuse(errc::invalid_argument, "the range runs past the end of the address space");
  }
  // The last byte, because the end of the highest range is not a 64-bit number.
  const address last = range.base + (range.size_bytes - 1);
  const bool overlaps = std::any_of(order_.begin(), order_.end(), [&](std::uint32_t index) {
    const address_range other = slots_[index].range;
    return range.base <= other.base + (other.size_bytes - 1) && other.base <= last;
  });
  if (overlaps) return refuse(errc::overlap, "the range overlaps one that is in use already");
  return {};
}

/// Index of a slot that is not in use, with room in order_ for it.
result<std::uint32_t> address_space::provide_slot() noexcept {
  try {
    order_.reserve(order_.size() + 1);
    const auto unused = std::find_if(slots_.begin(), slots_.end(),
                                     [](const slot& in) { return !in.blocks.has_value(); });
    const auto index = static_cast<std::uint32_t>(unused - slots_.begin());
    if (unused == slots_.end()) slots_.emplace_back();
    check(order_.size() < slots_.size() && order_.capacity() > order_.size(),
          "a slot is given out that is in use, or has no place in the order");
    return index;
  } catch (const std::bad_alloc&) {
    return refuse(errc::out_of_host_memory, "no host memory for one more range");
  }
}

result<reservation_id> address_space::add_range(address_range range) noexcept {
  const status fits = check_range(range);
  if (!fits) return fits.error();
  result<range_allocator> blocks = range_allocator::create({
      .count_granules = granules(range.size_bytes),
      .origin_granules = static_cast<std::uint32_t>(range.base.value / granularity_bytes_),
  });
  if (!blocks) return blocks.error();
  const result<std::uint32_t> index = provide_slot();
  if (!index) return index.error();
  check(!slots_[*index].blocks.has_value(), "a slot is given out that is in use");
  slots_[*index].range = range;
  slots_[*index].blocks.emplace(std::move(*blocks));
  const auto place = std::find_if(order_.begin(), order_.end(), [&](std::uint32_t other) {
    return slots_[other].range.base > range.base;
  });
  order_.insert(place, *index);
  check(order_.size() <= slots_.size(), "a range is in the order of addresses twice");
  paranoid_check([this] { return validate().has_value(); }, "a range was added wrongly");
  return static_cast<reservation_id>(*index + 1);
}

result<address_range> address_space::remove_range(reservation_id reservation) noexcept {
  slot& in = slot_of(reservation);
  if (in.blocks->live_blocks() != 0) {
    return refuse(errc::in_use, "a range can be removed once every extent in it is free");
  }
  check(in.blocks->free_granules() == in.blocks->count_granules(), "a free range is not free");
  in.blocks.reset();
  const auto erased = std::erase(order_, static_cast<std::uint32_t>(reservation) - 1);
  check(erased == 1, "a range in use was not in the order of addresses, or twice");
  check(order_.size() < slots_.size(), "a range that was removed stays in the order of addresses");
  paranoid_check([this] { return validate().has_value(); }, "a range was removed wrongly");
  return in.range;
}

result<extent> address_space::allocate(const address_request& request) noexcept {
  const result<granule_request> wanted = in_granules(request);
  if (!wanted) return wanted.error();
  error failure =
      refuse(errc::out_of_addresses, "no range has room for the request; reserve and add another");
  for (std::size_t index = 0; index < slots_.size(); ++index) {
    slot& in = slots_[index];
    if (!in.blocks.has_value()) continue;
    const result<block_id> block = in.blocks->allocate(*wanted);
    if (block) {
      const extent_id id{static_cast<reservation_id>(index + 1), *block};
      const extent made{id, bytes(in, in.blocks->where(*block))};
      check(lies_in(in.range, made.range) && made.range.size_bytes == request.size_bytes,
            "an extent does not have the requested size or alignment");
      return made;
    }
    if (block.error().code != errc::out_of_addresses) failure = block.error();
  }
  return failure;
}

void address_space::free(extent_id id) noexcept {
  slot& in = slot_of(id.reservation);
  in.blocks->free(id.block);
  check(in.blocks->free_granules() != 0, "an extent was freed and nothing is free");
}

result<extent> address_space::grow(extent_id id, std::uint64_t size_bytes) noexcept {
  const std::uint32_t count = granules(size_bytes);
  slot& in = slot_of(id.reservation);
  if (count == 0) return refuse(errc::invalid_argument, not_a_multiple);
  const status grown = in.blocks->grow(id.block, count);
  if (!grown) return grown.error();
  check(where(id).size_bytes == size_bytes, "an extent has not grown to its size");
  debug_check([&] { return lies_in(in.range, where(id)); }, "an extent grew out of its range");
  return extent{id, where(id)};
}

result<extent> address_space::shrink(extent_id id, std::uint64_t size_bytes) noexcept {
  const std::uint32_t count = granules(size_bytes);
  slot& in = slot_of(id.reservation);
  if (count == 0) return refuse(errc::invalid_argument, not_a_multiple);
  const status shrunk = in.blocks->shrink(id.block, count);
  if (!shrunk) return shrunk.error();
  check(where(id).size_bytes == size_bytes, "an extent has not shrunk to its size");
  debug_check([&] { return lies_in(in.range, where(id)); }, "an extent shrank out of its range");
  return extent{id, where(id)};
}

result<extent> address_space::split(extent_id id, std::uint64_t left_bytes) noexcept {
  const std::uint32_t count = granules(left_bytes);
  slot& in = slot_of(id.reservation);
  if (count == 0) return refuse(errc::invalid_argument, not_a_multiple);
  const result<block_id> right = in.blocks->split(id.block, count);
  if (!right) return right.error();
  check(where(id).size_bytes == left_bytes, "the left part of an extent has another size");
  const extent_id right_id{id.reservation, *right};
  check(where(id).end() == where(right_id).base, "the parts of an extent are not adjacent");
  debug_check([&] { return lies_in(in.range, where(right_id)); },
              "a part of an extent lies outside of its range");
  return extent{right_id, where(right_id)};
}

bool address_space::contains(address at) const noexcept { return slot_around(at) != nullptr; }

address_range address_space::where(extent_id id) const noexcept {
  const slot& in = slot_of(id.reservation);
  const address_range range = bytes(in, in.blocks->where(id.block));
  debug_check([&] { return lies_in(in.range, range); }, "an extent lies outside of its range");
  return range;
}

address_space_statistics address_space::statistics() const noexcept {
  address_space_statistics all;
  for (const std::uint32_t index : order_) {
    const range_statistics one = slots_[index].blocks->statistics();
    all.reserved_bytes += one.count_granules * granularity_bytes_;
    all.live_bytes += one.live_granules * granularity_bytes_;
    all.free_bytes += one.free_granules * granularity_bytes_;
    all.largest_free_bytes =
        std::max(all.largest_free_bytes, one.largest_free_granules * granularity_bytes_);
    all.high_water_bytes += one.high_water_granules * granularity_bytes_;
    all.live_extents += one.live_blocks;
    all.free_extents += one.free_blocks;
    all.ranges += 1;
  }
  check(all.live_bytes + all.free_bytes == all.reserved_bytes, "live and free bytes do not add up");
  check(all.high_water_bytes <= all.reserved_bytes, "more was in use than is reserved");
  check(all.largest_free_bytes <= all.free_bytes, "the largest hole is not the largest");
  return all;
}

status address_space::validate() const noexcept {
  const auto in_use = std::count_if(slots_.begin(), slots_.end(),
                                    [](const slot& in) { return in.blocks.has_value(); });
  if (static_cast<std::size_t>(in_use) != order_.size()) {
    return refuse(errc::internal, "the ranges by address are not the ranges in use");
  }
  const slot* before = nullptr;
  for (const std::uint32_t index : order_) {
    const slot& in = slots_[index];
    if (!in.blocks.has_value()) return refuse(errc::internal, "a range by address is not in use");
    if (in.blocks->count_granules() != in.range.size_bytes / granularity_bytes_) {
      return refuse(errc::internal, "I2: a range's blocks do not cover it");
    }
    if (before != nullptr && before->range.base + (before->range.size_bytes - 1) >= in.range.base) {
      return refuse(errc::internal, "I1: ranges overlap or are out of order");
    }
    const status valid = in.blocks->validate();
    if (!valid) return valid;
    before = &in;
  }
  return {};
}

}  // namespace vmm

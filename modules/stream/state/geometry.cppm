// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:geometry - the units of a pool, the kinds of its regions, and the sizes of its set-up.
// Not exported.
//
// I1  A unit (the driver's granularity) is a power of two of granules; a page, of which handles are
//     multiples, is a multiple of units; a segment is a multiple of pages.
//
// No size changes after set-up.
//
// Thread safety: values only. Cost: O(1).
export module vmm.stream:geometry;

import vmm.backend;
import vmm.base;
import vmm.std;
import vmm.va;
import :options;

namespace vmm {

inline constexpr std::uint64_t granule_bytes = 512;

inline constexpr error no_record_memory =
    refuse(errc::out_of_host_memory, "no host memory is left for the pool's records");

/// The whole granules in a size, rounded down.
[[nodiscard]] constexpr std::uint32_t granules_in(std::uint64_t size_bytes) noexcept {
  debug_check(
      [&] { return size_bytes / granule_bytes <= std::numeric_limits<std::uint32_t>::max(); },
      "a size has more granules than can be counted");
  return static_cast<std::uint32_t>(size_bytes / granule_bytes);
}

/// Whole granules around a size that fits into a segment.
[[nodiscard]] constexpr std::uint32_t granules_around(std::uint64_t size_bytes) noexcept {
  const auto count = static_cast<std::uint32_t>((size_bytes + granule_bytes - 1) / granule_bytes);
  debug_check([&] { return count * granule_bytes - size_bytes < granule_bytes; },
              "a request is not rounded to the next granule");
  return count;
}

/// The fill of a new block, where the options fill.
struct block_fill {
  std::uint64_t size_bytes = 0;  // requested
  stream_handle stream = stream_handle::default_stream;
  address done{};       // the block that a growth has filled, and notified the observer of
  capture_info seen{};  // of the stream, as the allocation found it
};

/// A request: bytes, and a power of two.
struct block_shape {
  std::uint64_t size_bytes = 0;
  std::uint64_t alignment_bytes = granule_bytes;
  block_fill* fill = nullptr;  // null: the block is not filled
};

/// A request in granules, by the number of a known stream's record. Every free region of
/// count_granules takes the block, wherever it begins: where the block is aligned to more than a
/// granule that is more than the block, by the alignment less one granule.
struct stream_request {
  std::uint32_t count_granules = 0;
  std::uint32_t stream = 0;
  std::uint32_t spare_granules = 0;
  block_fill* fill = nullptr;  // the shape's

  [[nodiscard]] constexpr std::uint64_t size_bytes() const noexcept {
    return count_granules * granule_bytes;
  }
  [[nodiscard]] constexpr bool is_aligned() const noexcept { return spare_granules != 0; }
  [[nodiscard]] constexpr std::uint32_t block_granules() const noexcept {
    debug_check([this] { return spare_granules < count_granules || count_granules == 0; },
                "a request is for no granule");
    return count_granules - spare_granules;
  }
  [[nodiscard]] constexpr std::uint64_t block_bytes() const noexcept {
    return block_granules() * granule_bytes;
  }
  /// The block alone, for a place that has the alignment.
  [[nodiscard]] constexpr stream_request placed() const noexcept {
    return {block_granules(), stream, 0, fill};
  }
};

/// What a pool is set up with.
struct pool_setup {
  pool_policy policy{};
  std::uint64_t unit_bytes = 0;  // the driver's granularity
  std::uint64_t page_bytes = 0;  // handles are multiples of it
  std::uint64_t segment_bytes = 0;
};

struct pool_geometry {
  explicit pool_geometry(const pool_setup& how) noexcept
      : policy(how.policy),
        unit_bytes(how.unit_bytes),
        page_bytes(how.page_bytes),
        segment_bytes(how.segment_bytes),
        plain_bytes_max(how.policy.tuning.whole_pages ? how.page_bytes - 1 : how.segment_bytes),
        unit_granules(granules_in(how.unit_bytes)),
        unit_shift(static_cast<std::uint32_t>(std::countr_zero(unit_granules))),
        page_granules(granules_in(how.page_bytes)),
        lowest_granules(how.policy.tuning.first_fit_bytes == 0
                            ? std::numeric_limits<std::uint32_t>::max()
                            : granules_in(how.policy.tuning.first_fit_bytes)) {
    check(unit_bytes % granule_bytes == 0, "a unit ends in a granule");
    check(std::has_single_bit(unit_granules), "the granularity is not a power of two");
    check(page_granules != 0 && page_granules % unit_granules == 0,
          "I1: a page is not a multiple of the granularity");
    check(segment_bytes != 0 && segment_bytes % page_bytes == 0,
          "I1: a segment is not a multiple of a page");
  }

  /// Granules for a request; 0 when it is larger than any segment.
  [[nodiscard]] inline std::uint32_t granules_for(std::uint64_t size_bytes) const noexcept {
    if (size_bytes - 1 < plain_bytes_max) return granules_around(size_bytes);
    if (!policy.tuning.whole_pages || size_bytes == 0 || size_bytes > segment_bytes) return 0;
    const std::uint64_t rounded = round_up(size_bytes, page_bytes);
    check(rounded >= size_bytes, "a request is rounded down");
    return rounded > segment_bytes ? 0 : granules_in(rounded);
  }
  [[nodiscard]] inline std::uint32_t rounded_to_pages(std::uint64_t granules) const noexcept {
    const std::uint64_t rounded = round_up(granules, page_granules);
    check(rounded <= std::numeric_limits<std::uint32_t>::max(),
          "more granules than can be counted");
    return static_cast<std::uint32_t>(rounded);
  }
  [[nodiscard]] inline std::uint64_t segment_granules() const noexcept {
    debug_check([&] { return segment_bytes % granule_bytes == 0; }, "a segment ends in a granule");
    return segment_bytes / granule_bytes;
  }
  /// The smallest size that the rule of the lowest fit is for, as a region_map takes it; 0: none.
  [[nodiscard]] inline std::uint32_t slot_granules() const noexcept {
    check(policy.tuning.first_fit_bytes == 0 || std::has_single_bit(lowest_granules),
          "the rule of the lowest fit begins at no power of two");
    return policy.tuning.first_fit_bytes == 0 ? 0 : lowest_granules;
  }

  pool_policy policy;
  std::uint64_t unit_bytes;
  std::uint64_t page_bytes;
  std::uint64_t segment_bytes;
  std::uint64_t plain_bytes_max;  // requests up to here take the requested size
  std::uint32_t unit_granules;
  std::uint32_t unit_shift;
  std::uint32_t page_granules;
  std::uint32_t lowest_granules;  // smallest request of the lowest-fit rule; max: never
};

/// What an unlisted region is.
enum class region_state : std::uint32_t { live = 1, stale = 2, claimed = 3, lent = 4 };

inline constexpr region_kind hole_kind = static_cast<region_kind>(1);
inline constexpr std::uint32_t first_stream_kind = 2;

[[nodiscard]] inline bool is_free_kind(region_kind kind) noexcept {
  return static_cast<std::uint32_t>(kind) >= first_stream_kind;
}
[[nodiscard]] inline region_kind kind_of(std::uint32_t stream) noexcept {
  debug_check([&] { return stream < region_map::max_kinds; }, "no record has this number");
  return static_cast<region_kind>(first_stream_kind + stream);
}
[[nodiscard]] inline std::uint32_t stream_of(region_kind kind) noexcept {
  debug_check([&] { return is_free_kind(kind); }, "memory that is not free is a stream's");
  return static_cast<std::uint32_t>(kind) - first_stream_kind;
}
[[nodiscard]] inline region_state state_of(std::uint32_t tag) noexcept {
  debug_check([&] { return (tag & 0xFF) <= 4; }, "a region has an unknown state");
  return static_cast<region_state>(tag & 0xFF);
}

}  // namespace vmm

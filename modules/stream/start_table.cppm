// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:start_table - where a live block begins, to its region. Not exported.
//
// Eight entries to a bucket of one cache line, all eight compared at once. Chains of single slots
// would cost a wrong guess at nearly every call: how far to walk is random.
//
// I1  At most half of the entries are taken.
// I2  An entry is in its home bucket, or in a later one with every bucket from its home on full.
//
// Thread safety: none of its own. Cost: one cache line, seldom two; reserve() doubles the table
// when it is half full, which is linear and seldom. Memory: 16 to 32 bytes a live block.
module;
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

export module vmm.stream:start_table;

import vmm.backend;
import vmm.va;

namespace vmm {

class start_table {
 public:
  /// Room for one more; false when the host has no memory.
  [[nodiscard]] inline bool reserve() noexcept { return count_ < count_max_ || grow(); }

  /// After reserve(). The key is not in the table.
  void insert(std::uint32_t offset, region_id region) noexcept;

  /// Takes the block that begins at `offset` out; none when there is none.
  [[nodiscard]] region_id take(std::uint32_t offset) noexcept;

  [[nodiscard]] region_id find(std::uint32_t offset) const noexcept;

  [[nodiscard]] inline std::uint32_t count() const noexcept { return count_; }
  /// All of them, in no order. O(buckets).
  template <class Visitor>
  void each(Visitor&& visitor) const {
    for (std::uint32_t i = 0; i < bucket_count(); ++i) {
      const bucket& in = buckets_[i];
      for (std::uint32_t place = 0; place < places; ++place) {
        if (in.offsets[place] != nowhere) visitor(in.regions[place]);
      }
    }
  }
  /// nullptr when I1 and I2 hold, else what is broken. O(buckets).
  [[nodiscard]] const char* broken_invariant() const noexcept;

 private:
  static constexpr std::uint32_t places = 8;
  static constexpr std::uint32_t nowhere = ~0u;  // no block begins there
  static constexpr std::uint32_t first_buckets = 128;
  struct alignas(64) bucket {
    std::uint32_t offsets[places];
    region_id regions[places];
  };
  struct free_buckets {
    void operator()(bucket* buckets) const noexcept {
      ::operator delete(buckets, std::align_val_t{alignof(bucket)});
    }
  };

  [[nodiscard]] inline std::uint32_t bucket_count() const noexcept {
    return buckets_ == nullptr ? 0 : mask_ + 1;
  }
  [[nodiscard]] inline std::uint32_t home(std::uint32_t offset) const noexcept {
    return static_cast<std::uint32_t>((offset * std::uint64_t{0x9E3779B97F4A7C15}) >> 32) & mask_;
  }
  // Where `offset` stands in a bucket, a bit for each place.
  [[nodiscard]] static std::uint32_t places_of(const bucket& in, std::uint32_t offset) noexcept;
  void fill_gap(std::uint32_t gap, std::uint32_t place) noexcept;
  [[nodiscard]] bool grow() noexcept;

  std::unique_ptr<bucket[], free_buckets> buckets_;
  std::uint32_t mask_ = 0;
  std::uint32_t count_ = 0;
  std::uint32_t count_max_ = 0;
};

}  // namespace vmm

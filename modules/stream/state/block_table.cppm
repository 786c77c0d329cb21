// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:block_table - where a live block begins, to its region. Not exported.
//
// allocate and free go through insert() and take(), which are therefore inline.
//
// Eight entries to a bucket of one cache line, all eight compared at once. Chains of single slots
// would cost a wrong guess at nearly every call: how far to walk is random.
//
// I1  At most half of the entries are taken.
// I2  An entry is in its home bucket, or in a later one with every bucket from its home on full.
// I3  A large table has a bit for each granule, set where an entry begins that is not being taken.
//
// Thread safety: none of its own. Cost: one cache line, seldom two; reserve() doubles the table
// when it is half full, which is linear and seldom. Memory: 16 to 32 bytes a live block, and an
// eighth of a byte a granule of a large table, as touched.
export module vmm.stream:block_table;

import vmm.backend;
import vmm.base;
import vmm.std;
import vmm.va;

namespace vmm {

class live_block_table {
 public:
  live_block_table() = default;
  live_block_table(const live_block_table&) = delete;
  live_block_table& operator=(const live_block_table&) = delete;
  ~live_block_table() {
    if (is_large()) std::free(starts().words);
  }

  /// Whether more blocks than a few were in it at a time, which no near cache has all of. Few under
  /// checks, so that tests pass both ways.
  [[nodiscard]] inline bool is_large() const noexcept { return count_max() > few_max; }

  /// Room for one more, of a segment of so many granules; false when the host has no memory.
  [[nodiscard]] inline bool reserve(std::uint32_t count_granules) noexcept {
    return count_ < count_max() || grow(count_granules);
  }

  /// After reserve(). The key is not in the table.
  inline void insert(std::uint32_t offset, region_id region) noexcept {
    if (is_large()) [[unlikely]]
      set_start(offset);
    place(offset, region);
  }

  /// Of a large table: whether a block begins there that is not being taken, by one bit. From then
  /// on it is, until take().
  [[nodiscard]] bool begin_taking(std::uint32_t offset) noexcept;

  /// Removes and returns the block that begins at `offset`, or none.
  [[nodiscard]] inline region_id take(std::uint32_t offset) noexcept;

  [[nodiscard]] inline region_id find(std::uint32_t offset) const noexcept;

  /// Prefetches the cache line that take() reads; of an empty table nothing.
  inline void fetch_ahead(std::uint32_t offset) const noexcept {
    debug_check([&] { return offset != nowhere; }, "a block without an address is looked up");
    const auto first = reinterpret_cast<std::uintptr_t>(buckets_.get());
    vmm::fetch_ahead(reinterpret_cast<const void*>(first + sizeof(bucket) * place_of(offset)));
  }

  [[nodiscard]] inline std::uint32_t count() const noexcept {
    debug_check([&] { return count_ <= count_max(); }, "a table has more blocks than room");
    return count_;
  }
  /// All of them, in no order. O(buckets).
  template <class Visitor>
  void each(Visitor&& visitor) const {
    std::uint32_t seen_count = 0;
    for (std::uint32_t i = 0; i < bucket_count(); ++i) {
      const bucket& in = buckets_[i];
      for (std::uint32_t slot = 0; slot < slots; ++slot) {
        if (in.offsets[slot] == nowhere) continue;
        ++seen_count;
        visitor(in.regions[slot]);
      }
    }
    check(seen_count == count_, "the count of a table of blocks is wrong");
  }
  /// Null if I1 to I3 hold, else the broken part. O(buckets).
  [[nodiscard]] const char* broken_invariant() const noexcept;

 private:
  static constexpr std::uint32_t slots = 8;
  static constexpr std::uint32_t nowhere = ~0u;  // no block begins there
  static constexpr std::uint32_t few_max = check_level >= 2 ? 16 : 32768;
  static constexpr std::uint32_t first_buckets = check_level >= 2 ? 4 : 128;
  struct alignas(64) bucket {
    std::uint32_t offsets[slots];
    region_id regions[slots];
  };
  // Behind the buckets of a large table.
  struct alignas(64) start_bits {
    std::uint64_t* words = nullptr;
    std::uint32_t count = 0;
  };
  struct free_buckets {
    void operator()(bucket* buckets) const noexcept {
      ::operator delete(buckets, std::align_val_t{alignof(bucket)});
    }
  };

  [[nodiscard]] inline std::uint32_t bucket_count() const noexcept {
    debug_check([this] { return (mask_ & (mask_ + 1)) == 0; },
                "the length of a table of blocks is not a power of two");
    return mask_ + 1;
  }
  [[nodiscard]] inline std::uint32_t home(std::uint32_t offset) const noexcept {
    debug_check([&] { return buckets_ != nullptr && offset != nowhere; },
                "a block is looked up without a table, or without an address");
    return place_of(offset);
  }
  [[nodiscard]] inline std::uint32_t place_of(std::uint32_t offset) const noexcept {
    return static_cast<std::uint32_t>((offset * std::uint64_t{0x9E3779B97F4A7C15}) >> 32) & mask_;
  }
  // Where `offset` stands in a bucket, a bit for each slot.
  [[nodiscard]] static inline std::uint32_t slots_of(const bucket& in,
                                                     std::uint32_t offset) noexcept;
  void fill_gap(std::uint32_t gap, std::uint32_t slot) noexcept;
  [[nodiscard]] bool grow(std::uint32_t count_granules) noexcept;
  inline void place(std::uint32_t offset, region_id region) noexcept;
  [[nodiscard]] inline start_bits& starts() const noexcept {
    debug_check([this] { return is_large(); }, "a small table has no bits");
    return *reinterpret_cast<start_bits*>(buckets_.get() + bucket_count());
  }
  void set_start(std::uint32_t offset) noexcept;

  /// Blocks that there is room for.
  [[nodiscard]] inline std::uint32_t count_max() const noexcept {
    return (mask_ + 1) * (slots / 2);
  }

  // 16 bytes, as a part of the cache line on which a segment has what each call reads.
  std::unique_ptr<bucket[], free_buckets> buckets_;
  std::uint32_t mask_ = ~0u;  // buckets less one
  std::uint32_t count_ = 0;
};

// The compiler's vectors and no header of intrinsics: an interface includes the standard library
// only.
inline std::uint32_t live_block_table::slots_of(const bucket& in, std::uint32_t offset) noexcept {
#if defined(__SSE2__)
  using four_words = int __attribute__((vector_size(16), may_alias));
  using eight_halves = short __attribute__((vector_size(16)));
  const auto wanted = static_cast<int>(offset);
  const four_words all_wanted = {wanted, wanted, wanted, wanted};
  const auto* const from = reinterpret_cast<const four_words*>(in.offsets);
  const four_words low = from[0] == all_wanted;
  const four_words high = from[1] == all_wanted;
  const eight_halves both = __builtin_ia32_packssdw128(low, high);
  const eight_halves none = {};
  return static_cast<std::uint32_t>(
      __builtin_ia32_pmovmskb128(__builtin_ia32_packsswb128(both, none)));
#else
  std::uint32_t found = 0;
  for (std::uint32_t slot = 0; slot < slots; ++slot)
    found |= (in.offsets[slot] == offset ? 1U : 0U) << slot;
  return found;
#endif
}

inline void live_block_table::place(std::uint32_t offset, region_id region) noexcept {
  debug_check([&] { return find(offset) == region_id::none; }, "a block is entered twice");
  debug_check([&] { return region != region_id::none; }, "no region is entered as a block");
  std::uint32_t at = home(offset);
  std::uint32_t room = slots_of(buckets_[at], nowhere);
  while (room == 0) [[unlikely]] {
    at = (at + 1) & mask_;
    room = slots_of(buckets_[at], nowhere);
  }
  const auto slot = static_cast<std::uint32_t>(std::countr_zero(room));
  buckets_[at].offsets[slot] = offset;
  buckets_[at].regions[slot] = region;
  ++count_;
  debug_check([&] { return count_ <= count_max(); }, "a block is entered without room for it");
}

inline region_id live_block_table::take(std::uint32_t offset) noexcept {
  debug_check([&] { return offset != nowhere; }, "a block is removed without an address");
  if (count_ == 0) return region_id::none;
  if (is_large()) [[unlikely]]
    (void)begin_taking(offset);
  for (std::uint32_t at = home(offset);; at = (at + 1) & mask_) {
    bucket& in = buckets_[at];
    const std::uint32_t found = slots_of(in, offset);
    const bool is_full = slots_of(in, nowhere) == 0;
    if (found != 0) [[likely]] {
      const auto slot = static_cast<std::uint32_t>(std::countr_zero(found));
      in.offsets[slot] = nowhere;
      --count_;
      const region_id taken = in.regions[slot];
      if (is_full) [[unlikely]]
        fill_gap(at, slot);
      debug_check([&] { return find(offset) == region_id::none; }, "a block was in a table twice");
      return taken;
    }
    if (!is_full) return region_id::none;
  }
}

inline region_id live_block_table::find(std::uint32_t offset) const noexcept {
  debug_check([&] { return offset != nowhere; }, "a block is looked up without an address");
  if (count_ == 0) return region_id::none;
  for (std::uint32_t at = home(offset);; at = (at + 1) & mask_) {
    const bucket& in = buckets_[at];
    if (const std::uint32_t found = slots_of(in, offset); found != 0)
      return in.regions[std::countr_zero(found)];
    if (slots_of(in, nowhere) != 0) return region_id::none;
  }
}

}  // namespace vmm

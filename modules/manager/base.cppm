// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.manager:base - the state that the parts of a manager share: driver, options and, from set-up
// on, the engine of blocks. Not exported.
//
// Thread safety: fields that set-up writes are constant once `is_set_up` is true.
export module vmm.manager:base;

import vmm.backend;
import vmm.base;
import vmm.optimizer;
import vmm.std;
import vmm.tracker;
import :cache;
import :policy;

namespace vmm {

inline constexpr std::uint64_t size_bytes_max = std::uint64_t{1} << 56;
/// Retired ranges that a request polls first: bounds its cost.
inline constexpr std::size_t reap_count = 8;

struct manager_counts {
  sync::atomic<std::uint64_t> reused_range_count = 0;
  sync::atomic<std::uint64_t> grown_reuse_count = 0;
  sync::atomic<std::uint64_t> unbound_range_count = 0;
  sync::atomic<std::uint64_t> remapped_copy_count = 0;
  sync::atomic<std::uint64_t> real_copy_count = 0;
  sync::atomic<std::uint64_t> recovery_count = 0;
  sync::atomic<std::uint64_t> allocated_count = 0;  // numbers that were given
};

struct manager_base {
  manager_base(driver_ref through, const manager_options& wanted) noexcept
      : driver(through),
        driver_use(driver.use()),
        options(wanted),
        contents(*driver, options.contents) {}
  manager_base(const manager_base&) = delete;
  manager_base& operator=(const manager_base&) = delete;

  [[nodiscard]] bool is_ready() const noexcept {
    return is_set_up.load(std::memory_order_acquire) && made_in.is_here();
  }
  [[nodiscard]] location placement() const { return options.placement.value_or(driver->home()); }

  const driver_ref driver;
  const use_of driver_use;
  const manager_options options;
  const content_filler contents;
  const process_mark made_in;
  sync::atomic<bool> is_set_up = false;
  std::uint64_t unit_bytes = 0;    // sizes are multiples of it
  std::uint64_t place_bytes = 0;   // addresses are multiples of it
  std::unique_ptr<engine> blocks;  // from set-up on
  range_cache cache;
  manager_counts counts;
  sync::shared_mutex growable_mutex;  // alone: rights for all rooms; with others: a room changes
};

[[nodiscard]] inline block& block_of(tracked_range& range) noexcept {
  return static_cast<block&>(range);
}

/// The sizes of a block of `size_bytes` with its addresses for growth. Errors: invalid_argument.
[[nodiscard]] result<range_sizes> plan_sizes(const manager_base& base, std::uint64_t size_bytes,
                                             std::uint64_t growth_bytes);
/// The block that begins at the address, for this thread alone. Errors: unknown_address,
/// not_allocated, invalid_argument (inside a block), in_use, not_permitted (a forked child).
[[nodiscard]] result<block*> claim_block(manager_base& base, address at,
                                         pinned_record pinned = pinned_record::refused);

}  // namespace vmm

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module vmm.stream;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {

bool pool_arenas::count_wait() noexcept {
  if (!is_permitted_ || is_wanted_ || ++contention_count_ < waits_max_) return false;
  check(contention_count_ == waits_max_, "a wait was not counted");
  contention_count_ = 0;
  is_wanted_ = true;
  return true;
}

// If an arena does not help, it is tried ever more seldom.
void pool_arenas::end_want(bool made) noexcept {
  constexpr std::uint32_t limit = 1u << 20;
  if (!made && is_wanted_) waits_max_ = std::min(waits_max_ * 2, limit);
  check(waits_max_ != 0 && waits_max_ <= limit, "arenas are never tried again");
  check(!is_wanted_ || is_permitted_, "I1: a pool without arenas needs one");
  is_wanted_ = false;
}

status pool_arenas::add(address_range where, stream_handle stream, std::uint32_t record,
                        std::unique_ptr<arena> made) noexcept {
  check(made != nullptr && is_permitted_, "I1: a pool without arenas gets one");
  if (table_ == nullptr) {
    table_.reset(new (std::nothrow) arena_table(where));
    if (table_ == nullptr) return no_record_memory;
  }
  check(table_->takes(stream), "a stream has two arenas");
  table_->add(stream, record, std::move(made));
  return {};
}

// A transfer makes driver calls under the lock of growth: sixteen threads wait for it as long as
// two thousand allocations take.
void pool_arenas::count_transfer() noexcept {
  constexpr std::uint32_t transfers = 64;
  constexpr std::uint64_t blocks_each = 2048;
  check(table_ != nullptr, "memory moves between arenas that do not exist");
  if (++transfer_count_ < transfers) return;
  transfer_count_ = 0;
  std::uint64_t taken = 0;
  table_->for_each([&](std::uint32_t, const arena& of) { taken += of.numbers().taken_count; });
  const std::uint64_t before = std::exchange(taken_count_, taken);  // also of streams that went
  needs_room_ = taken < before + transfers * blocks_each;
}

std::uint64_t pool_arenas::lent_granules() const noexcept {
  if (table_ == nullptr) return 0;
  std::uint64_t lent = 0;
  table_->for_each([&](std::uint32_t number, const arena&) {
    const arena_lease& lease = table_->lease_of(number);
    check(lease.counted_granules <= lease.lent_granules, "more is counted than was refilled");
    lent += lease.lent_granules;
  });
  return lent;
}

std::uint64_t pool_arenas::uncounted_live_granules() const noexcept {
  if (table_ == nullptr) return 0;
  std::uint64_t uncounted = 0;
  table_->for_each([&](std::uint32_t number, const arena& of) {
    const std::uint64_t live = of.numbers().live_granules;
    check(table_->lease_of(number).counted_granules <= live, "more is counted than is live");
    uncounted += live - table_->lease_of(number).counted_granules;
  });
  return uncounted;
}

std::uint64_t pool_arenas::release() noexcept {
  std::uint64_t counted = 0;
  if (table_ == nullptr) return counted;
  check(is_permitted_, "I1: a pool has arenas although they are off");
  table_->for_each([&](std::uint32_t number, const arena&) {
    counted += table_->lease_of(number).counted_granules;
  });
  table_.reset();
  return counted;
}

}  // namespace vmm

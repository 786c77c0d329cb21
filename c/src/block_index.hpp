// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The live blocks of a device by their addresses: one flat table, so that a call reads one or two
// lines of cache. It grows by doubling and never shrinks.
//
// I1  A slot whose address is 0 is empty. No block lies behind an empty slot on its way from the
//     slot that its address asks for: what is taken out is closed up at once.
//
// Threads: none; the caller has a lock. Cost: O(1).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>
#include <vector>

namespace vmm_c {

struct live_block {
  std::uint64_t at = 0;
  std::uint64_t requested_bytes = 0;
  std::uint64_t stream = 0;
  std::unique_ptr<std::vector<std::uint64_t>> users;  // other streams; null: none

  // Blocks are multiples of 512 bytes.
  [[nodiscard]] std::uint64_t size_bytes() const noexcept {
    constexpr std::uint64_t unit = 512;
    return (requested_bytes + unit - 1) & ~(unit - 1);
  }
};

class block_index {
 public:
  [[nodiscard]] std::size_t count() const noexcept { return count_; }

  // Makes room for one more. False: no host memory.
  [[nodiscard]] bool make_room() noexcept {
    if ((count_ + 1) * 2 <= slots_.size()) return true;
    try {
      std::vector<live_block> wider(slots_.empty() ? first_slots : slots_.size() * 2);
      slots_.swap(wider);
      for (live_block& each : wider) {
        if (each.at != 0) slots_[free_slot(each.at)] = std::move(each);
      }
      return true;
    } catch (const std::bad_alloc&) {
      return false;
    }
  }

  // Requires: make_room() said so, and the address is not there.
  void add(live_block&& added) noexcept {
    const std::size_t slot = free_slot(added.at);
    slots_[slot] = std::move(added);
    ++count_;
  }

  [[nodiscard]] live_block* find(std::uint64_t at) noexcept {
    if (slots_.empty() || at == 0) return nullptr;
    for (std::size_t slot = wanted(at);; slot = next(slot)) {
      if (slots_[slot].at == at) return &slots_[slot];
      if (slots_[slot].at == 0) return nullptr;
    }
  }

  // Takes a block out that find() answered.
  [[nodiscard]] live_block take(live_block* found) noexcept {
    live_block taken = std::move(*found);
    std::size_t hole = static_cast<std::size_t>(found - slots_.data());
    slots_[hole].at = 0;
    for (std::size_t slot = next(hole); slots_[slot].at != 0; slot = next(slot)) {
      // A block may move into the hole when the hole lies on its way.
      if (distance(wanted(slots_[slot].at), slot) < distance(hole, slot)) continue;
      slots_[hole] = std::move(slots_[slot]);
      slots_[slot].at = 0;
      hole = slot;
    }
    --count_;
    return taken;
  }

  template <class Visit>
  void for_each(Visit&& visit) const {
    for (const live_block& each : slots_) {
      if (each.at != 0) visit(each);
    }
  }

 private:
  static constexpr std::size_t first_slots = 1024;

  [[nodiscard]] std::size_t wanted(std::uint64_t at) const noexcept {
    constexpr std::uint64_t golden = 0x9E3779B97F4A7C15;
    return static_cast<std::size_t>(((at >> 9) * golden) >> std::countl_zero(slots_.size() - 1));
  }
  [[nodiscard]] std::size_t next(std::size_t slot) const noexcept {
    return (slot + 1) & (slots_.size() - 1);
  }
  [[nodiscard]] std::size_t distance(std::size_t from, std::size_t to) const noexcept {
    return (to - from) & (slots_.size() - 1);
  }
  [[nodiscard]] std::size_t free_slot(std::uint64_t at) const noexcept {
    std::size_t slot = wanted(at);
    while (slots_[slot].at != 0) slot = next(slot);
    return slot;
  }

  std::vector<live_block> slots_;  // a power of two, at most half of them taken
  std::size_t count_ = 0;
};

}  // namespace vmm_c

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.fake - which addresses are not reserved .
module vmm.fake;

import vmm.backend;
import vmm.base;
import vmm.std;
import :machine;
import :state;

namespace vmm::fake {

address_space::address_space(std::uint64_t begin, std::uint64_t end,
                             std::pmr::memory_resource* nodes)
    : gaps_(nodes), by_size_(nodes) {
  check(begin != 0 && begin < end, "an address space is empty, or begins at address 0");
  gaps_.emplace(begin, end - begin);
  by_size_.emplace(end - begin, begin);
}

void address_space::split(gap_map::iterator gap, std::uint64_t base, std::uint64_t size_bytes) {
  const std::uint64_t gap_base = gap->first;
  const std::uint64_t gap_size = gap->second;
  const std::uint64_t before = base - gap_base;
  check(base >= gap_base && before <= gap_size && size_bytes <= gap_size - before,
        "addresses are taken outside of a gap");
  const std::uint64_t after = gap_size - before - size_bytes;
  // What can run out of memory comes first: at most one more gap than before.
  if (before > 0 && after > 0) {
    const auto [added, fresh] = gaps_.emplace(base + size_bytes, after);
    try {
      by_size_.emplace(after, base + size_bytes);
    } catch (...) {
      gaps_.erase(added);
      throw;
    }
  }
  auto sized = by_size_.extract({gap_size, gap_base});
  check(!sized.empty(), "a gap is missing from the index of sizes");
  if (before > 0) {
    gap->second = before;
    sized.value() = {before, gap_base};
    by_size_.insert(std::move(sized));
  } else if (after > 0) {
    auto moved = gaps_.extract(gap);
    moved.key() = base + size_bytes;
    moved.mapped() = after;
    gaps_.insert(std::move(moved));
    sized.value() = {after, base + size_bytes};
    by_size_.insert(std::move(sized));
  } else {
    gaps_.erase(gap);
  }
  debug_check([this] { return gaps_.size() == by_size_.size(); },
              "a gap is missing from the index of sizes");
}

std::uint64_t address_space::take(std::uint64_t size_bytes, std::uint64_t alignment_bytes) {
  check(size_bytes != 0 && alignment_bytes != 0, "addresses of no size, or of no alignment");
  debug_check([this] { return gaps_.size() == by_size_.size(); },
              "a gap is missing from the index of sizes");
  // The smallest gap may miss only by its alignment; one larger by an alignment never does.
  for (const std::uint64_t least : {size_bytes, size_bytes + alignment_bytes}) {
    const auto found = by_size_.lower_bound({least, 0});
    if (found == by_size_.end()) continue;
    const std::uint64_t base = round_up(found->second, alignment_bytes);
    if (base + size_bytes > found->second + found->first) continue;
    split(gaps_.find(found->second), base, size_bytes);
    check(base != 0 && base % alignment_bytes == 0, "addresses are taken at another alignment");
    return base;
  }
  return 0;
}

bool address_space::take_at(std::uint64_t base, std::uint64_t size_bytes) {
  check(size_bytes != 0, "a reservation of size 0");
  auto gap = gaps_.upper_bound(base);
  if (gap == gaps_.begin()) return false;
  --gap;
  const std::uint64_t end = gap->first + gap->second;
  if (base >= end || size_bytes > end - base) return false;
  split(gap, base, size_bytes);
  return true;
}

void address_space::give_back(std::uint64_t base, std::uint64_t size_bytes) {
  auto next = gaps_.lower_bound(base);
  check(next == gaps_.end() || next->first - base >= size_bytes, "free addresses are returned");
  check(next == gaps_.begin() || base - std::prev(next)->first >= std::prev(next)->second,
        "free addresses are returned");
  check(base != 0 && size_bytes != 0, "no addresses are given back");
  const bool joins_next = next != gaps_.end() && next->first == base + size_bytes;
  const bool joins_previous =
      next != gaps_.begin() && std::prev(next)->first + std::prev(next)->second == base;
  if (joins_previous) {
    const auto previous = std::prev(next);
    auto sized = by_size_.extract({previous->second, previous->first});
    previous->second += size_bytes;
    if (joins_next) {
      previous->second += next->second;
      by_size_.erase({next->second, next->first});
      gaps_.erase(next);
    }
    sized.value() = {previous->second, previous->first};
    by_size_.insert(std::move(sized));
  } else if (joins_next) {
    auto sized = by_size_.extract({next->second, next->first});
    auto moved = gaps_.extract(next);
    moved.key() = base;
    moved.mapped() += size_bytes;
    sized.value() = {moved.mapped(), base};
    gaps_.insert(std::move(moved));
    by_size_.insert(std::move(sized));
  } else {
    const auto [added, fresh] = gaps_.emplace(base, size_bytes);
    try {
      by_size_.emplace(size_bytes, base);
    } catch (...) {
      gaps_.erase(added);
      throw;
    }
  }
  debug_check([this] { return gaps_.size() == by_size_.size(); },
              "a gap is missing from the index of sizes");
}

}  // namespace vmm::fake

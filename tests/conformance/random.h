// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: no sequence of legal calls leaves wrong contents behind.
// Method: seeded walks of random calls over sixteen slots of addresses, and a model that keeps for
// each memory the first bytes of each of its granules in plain arrays.
#pragma once

#include "fixture.h"

namespace conformance {

class walk {
 public:
  walk(Conformance& test, std::uint64_t seed) : test_(test), random_(seed) {
    range_ = test.reserved(slot_count);
  }

  void step() {
    switch (pick(12)) {
      case 0:
      case 1: return create();
      case 2:
      case 3:
      case 4: return map();
      case 5: return unmap_one();
      case 6: return move();
      case 7: return release();
      case 8: return write();
      case 9: return fill();
      case 10: return copy();
      default: return unmap_run();
    }
  }

  /// Every window of every place against the model.
  void check() {
    test_.finish();
    for (const memory& each : memories_) {
      for (const std::uint64_t slot : each.places) {
        for (std::uint64_t i = 0; i < each.units(); ++i) {
          part seen{};
          ASSERT_TRUE(fine(test_.driver().read(seen, at(slot + i))));
          ASSERT_EQ(seen, each.contents[i]) << "slot " << slot << ", granule " << i;
        }
      }
    }
  }

 private:
  static constexpr std::uint64_t slot_count = 16;
  static constexpr std::size_t memory_max = 8;
  static constexpr std::size_t part_bytes = 256;
  using part = std::array<std::byte, part_bytes>;

  struct memory {
    physical_handle handle = physical_handle::none;
    bool held = true;  // the handle is live
    std::vector<part> contents{};
    std::vector<std::uint64_t> places{};  // first slots

    std::uint64_t units() const { return contents.size(); }
  };

  std::uint64_t pick(std::uint64_t below) { return random_() % below; }
  address at(std::uint64_t slot) const { return range_.base + slot * test_.unit(); }
  address_range range_of(const memory& which, std::uint64_t slot) const {
    return {at(slot), which.units() * test_.unit()};
  }
  memory* any(bool placed) {
    std::vector<memory*> found;
    for (memory& each : memories_)
      if (!placed || !each.places.empty()) found.push_back(&each);
    return found.empty() ? nullptr : found[pick(found.size())];
  }
  bool taken(std::uint64_t slot) const {
    for (const memory& each : memories_) {
      for (const std::uint64_t first : each.places)
        if (slot >= first && slot < first + each.units()) return true;
    }
    return false;
  }
  /// A slot with space for so many units; slot_count if a few tries find none.
  std::uint64_t room(std::uint64_t units) {
    for (int attempt = 0; attempt < 8; ++attempt) {
      const std::uint64_t first = pick(slot_count - units + 1);
      bool free = true;
      for (std::uint64_t i = 0; i < units; ++i) free = free && !taken(first + i);
      if (free) return first;
    }
    return slot_count;
  }
  void forget_freed() {
    std::erase_if(memories_, [](const memory& each) { return !each.held && each.places.empty(); });
  }

  void create() {
    if (memories_.size() == memory_max) return;
    memory made{};
    made.contents.resize(1 + pick(3));
    made.handle = test_.created(made.units());
    memories_.push_back(std::move(made));
    if (test_.can().fresh_memory_zero) return;
    // Contents are not known: give them some.
    memory& unknown = memories_.back();
    place(unknown);
    if (unknown.places.empty()) return;
    for (std::uint64_t i = 0; i < unknown.units(); ++i)
      ASSERT_TRUE(fine(test_.driver().write(at(unknown.places[0] + i), unknown.contents[i])));
  }
  void place(memory& which) {
    const std::uint64_t slot = room(which.units());
    if (slot == slot_count) {
      if (!test_.can().fresh_memory_zero && which.places.empty()) drop(which);
      return;
    }
    test_.usable(range_of(which, slot), which.handle);
    which.places.push_back(slot);
  }
  void drop(memory& which) {
    test_.released(which.handle);
    which.held = false;
    forget_freed();
  }
  void map() {
    memory* which = any(false);
    if (which == nullptr || !which->held) return;
    const bool alias = !which->places.empty();
    if (alias && (test_.can().alias == vmm::alias_level::none || which->places.size() > 2)) return;
    if (!alias && !test_.can().fresh_memory_zero) return;  // place() did it, unmap_one keeps one
    place(*which);
  }
  void unmap_one() {
    memory* which = any(true);
    if (which == nullptr) return;
    test_.finish();
    const std::size_t index = pick(which->places.size());
    test_.unmapped(range_of(*which, which->places[index]));
    which->places.erase(which->places.begin() + static_cast<std::ptrdiff_t>(index));
    forget_freed();
  }
  void unmap_run() {
    if (!test_.can().spanning_unmap) return;
    const std::uint64_t middle = pick(slot_count);
    if (!taken(middle)) return;
    std::uint64_t first = middle;
    std::uint64_t last = middle;
    while (first > 0 && taken(first - 1)) --first;
    while (last + 1 < slot_count && taken(last + 1)) ++last;
    test_.finish();
    ASSERT_TRUE(fine(test_.driver().unmap({at(first), (last - first + 1) * test_.unit()})));
    for (memory& each : memories_) {
      std::erase_if(each.places, [&](std::uint64_t slot) {
        const bool gone = slot >= first && slot <= last;
        if (gone) test_.forget_mapping(range_of(each, slot));
        return gone;
      });
    }
    forget_freed();
  }
  void move() {
    memory* which = any(true);
    if (which == nullptr || !which->held) return;
    const std::uint64_t slot = room(which->units());
    if (slot == slot_count) return;
    test_.finish();
    test_.unmapped(range_of(*which, which->places.back()));
    test_.usable(range_of(*which, slot), which->handle);
    which->places.back() = slot;
  }
  void release() {
    memory* which = any(false);
    if (which == nullptr || !which->held) return;
    if (!which->places.empty() && !test_.can().release_while_mapped) return;
    drop(*which);
  }
  void write() {
    memory* which = any(true);
    if (which == nullptr) return;
    const std::uint64_t unit = pick(which->units());
    const std::size_t offset = pick(part_bytes);
    const std::size_t count = 1 + pick(part_bytes - offset);
    std::vector<std::byte> bytes(count);
    for (std::byte& each : bytes) each = static_cast<std::byte>(random_());
    test_.finish();
    const std::uint64_t slot = which->places[pick(which->places.size())];
    ASSERT_TRUE(fine(test_.driver().write(at(slot + unit) + offset, bytes)));
    std::copy(bytes.begin(), bytes.end(),
              which->contents[unit].begin() + static_cast<std::ptrdiff_t>(offset));
  }
  void fill() {
    memory* which = any(true);
    if (which == nullptr) return;
    const std::uint64_t unit = pick(which->units());
    const auto value = static_cast<std::uint8_t>(random_());
    const std::uint64_t slot = which->places[pick(which->places.size())];
    const bool whole = pick(2) == 0;
    const std::uint64_t size = whole ? test_.unit() : part_bytes;
    ASSERT_TRUE(fine(test_.driver().fill({{at(slot + unit), size}, value})));
    which->contents[unit].fill(std::byte{value});
  }
  void copy() {
    memory* from = any(true);
    memory* to = any(true);
    if (from == nullptr || from == to) return;
    const std::uint64_t source = pick(from->units());
    const std::uint64_t target = pick(to->units());
    const bool whole = pick(2) == 0;
    ASSERT_TRUE(fine(test_.driver().copy({at(to->places[pick(to->places.size())] + target),
                                          at(from->places[pick(from->places.size())] + source),
                                          whole ? test_.unit() : part_bytes})));
    to->contents[target] = from->contents[source];
  }

  Conformance& test_;
  std::mt19937_64 random_;
  address_range range_{};
  std::vector<memory> memories_;
};

TEST_P(Conformance, RandomSequencesAgreeWithTheModel) {
  if (!has_bytes_here()) GTEST_SKIP() << "no bytes";
  if (can().contents_stay) GTEST_SKIP() << "contents do not move with their memory";
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    walk sequence(*this, seed);
    for (int step = 0; step < 300; ++step) {
      ASSERT_NO_FATAL_FAILURE(sequence.step()) << "step " << step;
      if (step % 25 == 24) ASSERT_NO_FATAL_FAILURE(sequence.check()) << "step " << step;
      if (HasFailure()) return;
    }
    ASSERT_NO_FATAL_FAILURE(give_back());
  }
}

}  // namespace conformance

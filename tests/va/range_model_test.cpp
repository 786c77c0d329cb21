// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: whatever the order of operations, the range allocator does what the naive model says: no
// overlap, the best fit, no refusal while a hole fits, blocks in the model's order, and one free
// block when all is given back.
// Method: long random programs over size mixes that crowd single bins, from fixed seeds, compared
// after each operation and wholly from time to time.
#include "../support/test.h"
#include "checked_range.hpp"

namespace {

struct mix {
  const char* name;
  std::uint32_t count_granules;
  std::uint32_t size_min;
  std::uint32_t size_max;
  std::size_t live_target;
};

void PrintTo(const mix& m, std::ostream* out) { *out << m.name; }

class RangeModel : public testing::TestWithParam<mix> {};

using engine = std::mt19937_64;

std::uint32_t draw(engine& random, std::uint32_t low, std::uint32_t high) {
  return std::uniform_int_distribution<std::uint32_t>(low, high)(random);
}

void step(checked_range& range, engine& random, const mix& m) {
  const bool crowded = range.live_count() >= m.live_target;
  const std::uint32_t kind = range.live_count() == 0 ? 0 : draw(random, 0, 99);
  const std::size_t victim = range.live_count() == 0 ? 0 : random() % range.live_count();
  if (kind < (crowded ? 30u : 52u)) {
    const std::uint32_t alignment = draw(random, 0, 7) == 0 ? 1u << draw(random, 0, 9) : 1;
    range.allocate({draw(random, m.size_min, m.size_max), alignment});
  } else if (kind < 75) {
    range.free(victim);
  } else if (kind < 80) {
    range.grow(victim, draw(random, 0, m.size_max / 4));
  } else if (kind < 85) {
    range.shrink(victim, draw(random, 0, range.where(victim).count));
  } else if (kind < 93) {
    range.split(victim, draw(random, 0, range.where(victim).count));
  } else {
    range.free(victim);
  }
}

TEST_P(RangeModel, AgreesAfterEveryOperation) {
  const mix& m = GetParam();
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    engine random(seed);
    const std::uint32_t origin = draw(random, 0, 1000);
    checked_range range({.count_granules = m.count_granules, .origin_granules = origin});
    for (int operation = 0; operation < 40'000; ++operation) {
      step(range, random, m);
      if (operation % 256 == 0) range.compare();
      ASSERT_EQ(range.difference(), nullptr)
          << range.difference() << " after " << operation << ", seed " << seed;
    }
    range.free_all();
    ASSERT_EQ(range.difference(), nullptr) << range.difference() << ", seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(Mixes, RangeModel,
                         testing::Values(mix{"Single", 600, 1, 1, 500},    //
                                         mix{"Small", 4'000, 1, 40, 150},  //
                                         mix{"OneWideBin", 600'000, 4096, 4127, 120},
                                         mix{"TwoWideBins", 4'000'000, 32700, 32800, 110},
                                         mix{"EdgeOfExactBins", 60'000, 250, 262, 200},
                                         mix{"DeepTrie", 1'000'000'000, 8'388'608, 8'454'143, 110},
                                         mix{"FewValues", 40'000, 1024, 1027, 35},
                                         mix{"Mixed", 1'000'000, 1, 20'000, 90}),
                         [](const auto& info) { return std::string(info.param.name); });

struct crowd {
  const char* name;
  std::uint32_t size_min;
  std::uint32_t size_max;
};

void PrintTo(const crowd& c, std::ostream* out) { *out << c.name; }

class CrowdedBin : public testing::TestWithParam<crowd> {};

// Holes of about one size stay separate, behind fences of one granule, and their number swings
// between none and all: bins turn from list to trie and back, tries hold long paths, forks and
// rings.
TEST_P(CrowdedBin, AgreesWhileHolesComeAndGo) {
  constexpr std::uint32_t hole_count = 300;
  const crowd& c = GetParam();
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    engine random(seed);
    checked_range range({.count_granules = hole_count * (c.size_max + 1) + 1});
    for (std::size_t i = 0; i < hole_count; ++i)
      range.allocate({draw(random, c.size_min, c.size_max) + 1});
    range.allocate({range.model().largest_free()});
    const std::size_t fences = range.live_count();
    for (std::size_t i = 0; i < hole_count; ++i) range.split(i, 1);
    for (int operation = 0; operation < 20'000; ++operation) {
      const bool filling = operation / 700 % 2 == 0;
      const std::size_t held = range.live_count() - fences;
      if (held == 0 || draw(random, 0, 9) < (filling ? 7u : 2u)) {
        const std::uint32_t alignment = draw(random, 0, 15) == 0 ? 1u << draw(random, 0, 6) : 1;
        range.allocate({draw(random, c.size_min, c.size_max), alignment});
      } else {
        range.free(fences + random() % held);
      }
      if (operation % 64 == 0) range.compare();
      ASSERT_EQ(range.difference(), nullptr)
          << range.difference() << " after " << operation << ", seed " << seed;
    }
    range.free_all();
    ASSERT_EQ(range.difference(), nullptr) << range.difference() << ", seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, CrowdedBin,
                         testing::Values(crowd{"Exact", 40, 44},        // lists of one size
                                         crowd{"TwoToABin", 300, 303},  // the narrowest tries
                                         crowd{"Rings", 4100, 4103},    //
                                         crowd{"Full", 4096, 4127},     // every size of one bin
                                         crowd{"Sparse", 1 << 20, (1 << 20) + 8191}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace

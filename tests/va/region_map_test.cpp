// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a region map tiles its range, finds the best and the lowest fit of each kind and nothing of
// another kind, and finds the region that covers a page. Method: small cases by hand, then long
// random programs beside a naive model (a vector of regions), compared after each operation.
#include "../support/test.h"

import vmm.va;

namespace {

using vmm::errc, vmm::granule_range, vmm::region_id, vmm::region_kind, vmm::region_map;

region_map made(const vmm::region_map_options& options) {
  auto map = region_map::create(options);
  EXPECT_TRUE(map) << (map ? "" : map.error().detail);
  return std::move(*map);
}

TEST(RegionMap, RefusesSizesThatItCannotHave) {
  const auto code = [](const vmm::region_map_options& options) {
    const auto map = region_map::create(options);
    return map ? errc::none : map.error().code;
  };
  EXPECT_EQ(code({0, 16, 64, 100}), errc::invalid_argument);
  EXPECT_EQ(code({vmm::max_range_granules + 1, 16, 64, 100}), errc::invalid_argument);
  EXPECT_EQ(code({1000, 12, 64, 100}), errc::invalid_argument);
  EXPECT_EQ(code({1000, 16, 60, 100}), errc::invalid_argument);
  EXPECT_EQ(code({1000, 16, 64, 0}), errc::invalid_argument);
}

TEST(RegionMap, SaysWhenThereIsNoRecordForACut) {
  region_map map = made({1000, 16, 0, 3});
  EXPECT_TRUE(map.provide(2));
  const region_id rest = map.cut(map.first(), 10);
  (void)map.cut(rest, 10);
  EXPECT_FALSE(map.provide(1));
  map.join(map.first(), map.after(map.first()));
  EXPECT_TRUE(map.provide(1)) << "a join gives a record back";
  EXPECT_TRUE(map.validate());
}

// Address space that the process has taken, in bytes.
std::uint64_t taken_bytes() {
  constexpr std::uint64_t page_bytes = 4096;
  std::ifstream statm("/proc/self/statm");
  std::uint64_t pages = 0;
  statm >> pages;
  return pages * page_bytes;
}

// A process under `ulimit -v` pays for the regions that there are, not for all that there may be.
TEST(RegionMap, TakesAddressesForTheRegionsThatCome) {
  const std::uint64_t before = taken_bytes();
  ASSERT_NE(before, 0u);
  const region_map map = made({vmm::max_range_granules, 4096, 32768});
  EXPECT_LT(taken_bytes() - before, std::uint64_t{128} << 20);
}

// More regions than addresses are taken for at first: the records move, listed ones with them.
TEST(RegionMap, KeepsEveryRegionWhenItsRecordsMove) {
  constexpr std::uint32_t region_count = 1'200'000;
  region_map map = made({vmm::max_range_granules, 4096, 32768});
  const region_kind low = *map.add_kind();
  const region_kind high = *map.add_kind();
  region_id rest = map.first();
  for (std::uint32_t i = 0; i < region_count; ++i) {
    ASSERT_TRUE(map.provide(1));
    const region_id cut = rest;
    rest = map.cut(cut, 1 + i % 300);
    map.set_note(cut, {i, 7});
    map.list(cut, i % 2 == 0 ? low : high);
  }
  EXPECT_TRUE(map.validate());
  EXPECT_EQ(map.listed_count(low), region_count / 2);
  std::uint64_t number = 0;
  for (region_id each = map.first(); each != rest; each = map.after(each), ++number)
    ASSERT_EQ(map.word(each), number);
  const region_id found = map.best_fit(high, 299);
  ASSERT_NE(found, region_id::none);
  EXPECT_GE(map.where(found).count, 299u);
  map.unlist(found);
  EXPECT_TRUE(map.validate());
}

// The tables of a small range end before the bins of such sizes would begin.
TEST(RegionMap, NothingFitsThatIsLongerThanTheRange) {
  for (const std::uint32_t granules : {1u, 10u, 63u, 64u, 255u, 256u, 1000u, 131'072u}) {
    region_map map = made({granules, 16, 64, 100});
    const region_kind a = *map.add_kind();
    map.list(map.first(), a);
    EXPECT_EQ(map.best_fit(a, granules), map.first());
    for (std::uint32_t count = granules + 1; count <= vmm::max_range_granules;
         count += count / 7 + 1)
      ASSERT_EQ(map.best_fit(a, count), region_id::none) << count << " of " << granules;
    EXPECT_EQ(map.best_fit(a, vmm::max_range_granules), region_id::none);
    EXPECT_EQ(map.lowest_region(a, vmm::max_range_granules), region_id::none);
  }
}

// Kinds below 255 are a byte beside the records, those above are looked up.
TEST(RegionMap, KindsOfMoreThanAByteAreToldApart) {
  constexpr std::uint32_t kind_count = 520;
  region_map map = made({kind_count * 4, 16, 64, kind_count * 2});
  std::vector<region_kind> kinds;
  for (std::uint32_t i = 0; i < kind_count; ++i) kinds.push_back(*map.add_kind());
  std::vector<region_id> regions;
  ASSERT_TRUE(map.provide(kind_count));
  for (region_id left = map.first(); regions.size() < kind_count; left = map.after(left)) {
    if (regions.size() + 1 < kind_count) (void)map.cut(left, 4);
    regions.push_back(left);
  }
  for (std::size_t i = 0; i < kind_count; ++i) map.list(regions[i], kinds[i]);
  ASSERT_TRUE(map.validate());
  for (std::size_t i = 0; i < kind_count; ++i) {
    ASSERT_EQ(map.kind(regions[i]), kinds[i]);
    ASSERT_EQ(map.best_fit(kinds[i], 1), regions[i]);
    ASSERT_EQ(map.listed_granules(kinds[i]), 4u);
  }
  for (std::size_t i = 0; i + 1 < kind_count; i += 2) {
    ASSERT_EQ(map.kind(map.take_head(regions[i], 1)), region_kind::unlisted);
    map.unlist(regions[i + 1]);
    ASSERT_EQ(map.kind(regions[i + 1]), region_kind::unlisted);
    map.absorb_right(regions[i]);
    ASSERT_EQ(map.kind(regions[i]), kinds[i]);
    ASSERT_EQ(map.where(regions[i]).count, 7u);
    ASSERT_EQ(map.best_fit(kinds[i + 1], 1), region_id::none);
  }
  EXPECT_TRUE(map.validate()) << "and no spare record has a kind";
}

// More regions than a list may have grow and shrink where they lie, all of them in one bin, with
// something unlisted between them.
struct OneBin : testing::Test {
  static constexpr std::uint32_t least = 59'904;
  static constexpr std::uint32_t most = least + 255;
  static constexpr std::uint32_t count = 24;

  void SetUp() override {
    ASSERT_TRUE(map.provide(2 * count));
    for (region_id at = map.first(); listed.size() < count; at = map.last()) {
      if (listed.size() + 1 < count) (void)map.cut(at, 61'000);
      (void)map.cut(at, least + up_to(255));
      map.list(at, kind);
      listed.push_back(at);
    }
  }
  std::uint32_t up_to(std::uint32_t limit) {
    return static_cast<std::uint32_t>(random() % (limit + 1));
  }
  std::uint32_t size_of(region_id id) const { return map.where(id).count; }
  // By how much it may grow into `gap`, of which something stays.
  std::uint32_t room(region_id id, region_id gap) const {
    return gap == region_id::none ? 0 : std::min(most - size_of(id), size_of(gap) - 1);
  }
  void shrink_left(region_id id) {
    const std::uint32_t by = up_to(size_of(id) - least);
    if (by == 0) return;
    const region_id front = map.take_head(id, by);
    if (const region_id gap = map.before(front); gap != region_id::none) map.join(gap, front);
  }
  void grow_right(region_id id) {
    const region_id gap = map.after(id);
    const std::uint32_t by = up_to(room(id, gap));
    if (by == 0) return;
    (void)map.cut(gap, by);
    map.absorb_right(id);
  }
  void grow_left(region_id id) {
    const region_id gap = map.before(id);
    const std::uint32_t by = up_to(room(id, gap));
    if (by == 0) return;
    (void)map.cut(gap, size_of(gap) - by);
    map.absorb_left(id);
  }

  std::mt19937 random{5};
  region_map map = made({count * 61'000, 16, 64, 100});
  region_kind kind = *map.add_kind();
  std::vector<region_id> listed;
};

TEST_F(OneBin, RegionsChangeTheirSizes) {
  for (int round = 0; round < 1000; ++round) {
    ASSERT_TRUE(map.provide(1));
    const region_id id = listed[random() % count];
    switch (random() % 3) {
      case 0: shrink_left(id); break;
      case 1: grow_right(id); break;
      default: grow_left(id); break;
    }
    const std::uint32_t wanted = least + up_to(255);
    std::uint32_t best = most + 1;
    for (const region_id other : listed)
      if (size_of(other) >= wanted) best = std::min(best, size_of(other));
    const region_id found = map.best_fit(kind, wanted);
    ASSERT_EQ(found == region_id::none ? most + 1 : size_of(found), best) << round;
    const vmm::status valid = map.validate();
    ASSERT_TRUE(valid) << valid.error().detail;
  }
}

TEST(RegionMap, NotesStayWithTheirRegions) {
  region_map map = made({1000, 16, 64, 100});
  const region_kind a = *map.add_kind();
  ASSERT_TRUE(map.provide(1));
  const region_id left = map.first();
  map.set_note(left, {7, 8});
  const region_id right = map.cut(left, 10);
  EXPECT_EQ(map.word(right), 7u) << "both halves have it";
  map.set_note(right, {9, 10});
  map.list(right, a);
  map.unlist(right);
  EXPECT_EQ(map.word(right), 9u);
  EXPECT_EQ(map.tag(right), 10u);
  map.join(left, right);
  EXPECT_EQ(map.word(left), 7u);
  EXPECT_EQ(map.tag(left), 8u);
}

struct model_region {
  region_id id;
  granule_range where;
  region_kind kind;
};

class Model {
 public:
  explicit Model(std::uint64_t seed, std::uint32_t granules)
      : random(seed), map(made({granules, 16, 64, 4096})) {
    regions.push_back({map.first(), {0, granules}, region_kind::unlisted});
    for (int i = 0; i < 3; ++i) kinds.push_back(*map.add_kind());
  }

  void step() {
    const std::size_t i = random() % regions.size();
    const auto choice = random() % 10;
    if (regions[i].kind != region_kind::unlisted) {
      change_listed(i, choice);
    } else if (choice < 5) {
      cut(i);
    } else if (choice < 7 && i + 1 < regions.size()) {
      join(i);
    } else {
      regions[i].kind = kinds[random() % kinds.size()];
      map.list(regions[i].id, regions[i].kind);
    }
    compare();
  }

  void validate() {
    const vmm::status valid = map.validate();
    ASSERT_TRUE(valid) << valid.error().detail;
    std::size_t i = 0;
    for (region_id id = map.first(); id != region_id::none; id = map.after(id), ++i) {
      ASSERT_EQ(id, regions[i].id);
      ASSERT_EQ(map.where(id), regions[i].where);
      ASSERT_EQ(map.kind(id), regions[i].kind);
    }
    ASSERT_EQ(i, regions.size());
  }

 private:
  void change_listed(std::size_t i, std::uint64_t choice) {
    const auto is_unlisted = [this](std::size_t at) {
      return at < regions.size() && regions[at].kind == region_kind::unlisted;
    };
    if (choice < 3 && regions[i].where.count > 1 && map.provide(1)) {
      take_head(i);
    } else if (choice < 6 && is_unlisted(i + 1)) {
      map.absorb_right(regions[i].id);
      regions[i].where.count += regions[i + 1].where.count;
      regions.erase(regions.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    } else if (choice < 8 && i > 0 && is_unlisted(i - 1)) {
      map.absorb_left(regions[i].id);
      regions[i].where.offset = regions[i - 1].where.offset;
      regions[i].where.count += regions[i - 1].where.count;
      regions.erase(regions.begin() + static_cast<std::ptrdiff_t>(i) - 1);
    } else {
      map.unlist(regions[i].id);
      regions[i].kind = region_kind::unlisted;
    }
  }
  void take_head(std::size_t i) {
    model_region& rest = regions[i];
    const bool small = random() % 2 == 0;
    const std::uint32_t limit = small ? std::min(rest.where.count - 1, 40u) : rest.where.count - 1;
    const std::uint32_t count = 1 + static_cast<std::uint32_t>(random() % limit);
    const region_id front = map.take_head(rest.id, count);
    ASSERT_EQ(map.word(front), 0u);
    const granule_range where{rest.where.offset, count};
    rest.where.offset += count;
    rest.where.count -= count;
    regions.insert(regions.begin() + static_cast<std::ptrdiff_t>(i),
                   {front, where, region_kind::unlisted});
  }
  void cut(std::size_t i) {
    model_region& left = regions[i];
    if (left.where.count < 2 || !map.provide(1)) return;
    const bool small = random() % 2 == 0;
    const std::uint32_t limit = small ? std::min(left.where.count - 1, 40u) : left.where.count - 1;
    const std::uint32_t keep = 1 + static_cast<std::uint32_t>(random() % limit);
    const region_id right = map.cut(left.id, keep);
    const granule_range rest{left.where.offset + keep, left.where.count - keep};
    left.where.count = keep;
    regions.insert(regions.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                   {right, rest, region_kind::unlisted});
  }
  void join(std::size_t i) {
    if (regions[i + 1].kind != region_kind::unlisted) return;
    map.join(regions[i].id, regions[i + 1].id);
    regions[i].where.count += regions[i + 1].where.count;
    regions.erase(regions.begin() + static_cast<std::ptrdiff_t>(i) + 1);
  }

  void compare() {
    const region_kind kind = kinds[random() % kinds.size()];
    const std::uint32_t bits = static_cast<std::uint32_t>(random() % 12);
    const std::uint32_t count = 1 + static_cast<std::uint32_t>(random() % (1u << bits));
    const model_region* best = nullptr;
    const model_region* lowest = nullptr;
    std::uint64_t sum = 0;
    for (const model_region& r : regions) {
      if (r.kind != kind) continue;
      sum += r.where.count;
      if (r.where.count < count) continue;
      if (lowest == nullptr) lowest = &r;
      if (best == nullptr || r.where.count < best->where.count) best = &r;
    }
    ASSERT_EQ(map.listed_granules(kind), sum);
    const region_id found = map.best_fit(kind, count);
    ASSERT_EQ(found == region_id::none, best == nullptr);
    if (best != nullptr) ASSERT_EQ(map.where(found).count, best->where.count);
    if (count >= 64) {
      const region_id low = map.lowest_region(kind, count);
      ASSERT_EQ(low, lowest == nullptr ? region_id::none : lowest->id);
    }
    const auto at = static_cast<std::uint32_t>(random() % map.count_granules());
    const auto covers = [at](const model_region& r) {
      return r.where.offset <= at && at < r.where.end();
    };
    const auto around = std::find_if(regions.begin(), regions.end(), covers);
    ASSERT_EQ(map.find(at), around->id);
  }

  std::mt19937_64 random;
  region_map map;
  std::vector<model_region> regions;
  std::vector<region_kind> kinds;
};

TEST(RegionMap, AgreesWithANaiveModel) {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    Model model(seed, seed % 2 == 0 ? 300'000 : 5'000);
    for (int i = 0; i < 4000 && !HasFatalFailure(); ++i) {
      model.step();
      if (i % 97 == 0) model.validate();
    }
    model.validate();
  }
}

}  // namespace

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: whatever program of allocations, frees, resizes, copies, rights of all, of one block and of
// a part of one runs, with driver faults at random calls, every location has at every granule of
// every live block the access set last: the part's, else the block's own, else that of all. A
// refused call changes no right.
// Method: random programs over a manager of each policy, with a growable range in its memory,
// beside a model that is a table; the fake driver is queried at every granule.
#include "../support/test.h"

import vmm.backend;
import vmm.fake;
import vmm.manager;

namespace {

using vmm::access, vmm::address, vmm::device;

constexpr std::uint64_t granule = 2 * MiB;
constexpr std::array rights{access::none, access::read, access::read_write};

vmm::fake::profile three_devices() {
  vmm::fake::profile made = vmm::fake::profile::cuda();
  made.device_count = 3;
  return made;
}

// What the devices 1 and 2 were given; none: nothing was said.
using table = std::map<std::int32_t, access>;

struct shadow {
  address at{};
  std::uint64_t size_bytes = 0;
  table own;
  std::map<std::uint64_t, table> parts{};  // by granule; each begins with what the block had
};

class program {
 public:
  program(std::uint64_t seed, const vmm::manager_policy& policy)
      : random_(seed),
        memory_(driver_, {{}, policy}),
        range_(memory_, {.segment_bytes_max = 64 * MiB}) {}
  program(const program&) = delete;
  program& operator=(const program&) = delete;
  ~program() {
    driver_.clear_faults();
    for (const shadow& each : blocks_) EXPECT_TRUE(memory_.free(each.at));
    EXPECT_EQ(driver_.misuse_count(), 0u);
  }

  void step() {
    if (any(5) == 0) plan_fault();
    switch (any(12)) {
      case 0:
      case 1: allocate(); break;
      case 2: free_one(); break;
      case 3: resize(); break;
      case 4:
      case 5: give_one(); break;
      case 6: give_all(); break;
      case 7: copy(); break;
      case 8: change_range(); break;
      case 9:
      case 10: give_part(); break;
      default: (void)memory_.trim(any(8) * MiB); break;
    }
    driver_.clear_faults();
  }
  void expect_all(const std::string& where) {
    for (const shadow& each : blocks_) expect(each, where);
    const std::uint64_t range_bytes = range_.statistics().physical_bytes;
    if (range_bytes != 0) expect({range_.statistics().base, range_bytes, {}}, where + ", range");
  }

 private:
  std::size_t any(std::size_t count) { return random_() % count; }
  void expect(const shadow& of, const std::string& where) {
    for (std::int32_t who = 1; who <= 2; ++who) {
      for (std::uint64_t at = 0; at < of.size_bytes; at += granule) {
        const auto part = of.parts.find(at / granule);
        const table& own = part == of.parts.end() ? of.own : part->second;
        access wanted = peers_.contains(who) ? peers_.at(who) : access::none;
        if (own.contains(who)) wanted = own.at(who);
        ASSERT_EQ(*driver_.get_access(of.at + at, device(who)), wanted)
            << where << ": device " << who << ", granule " << at / granule;
      }
    }
    ASSERT_EQ(*driver_.get_access(of.at, device(0)), access::read_write) << where;
  }
  void plan_fault() {
    constexpr std::array calls{vmm::call::create, vmm::call::map, vmm::call::unmap,
                               vmm::call::set_access, vmm::call::release};
    const vmm::call where = calls[any(calls.size())];
    driver_.fail({where, 1 + any(4), false, driver_.possible_errors(where).front()});
  }
  // Up to two devices in one call.
  std::vector<vmm::access_grant> grants() {
    const auto first = static_cast<std::int32_t>(1 + any(2));
    std::vector<vmm::access_grant> made{{device(first), rights[any(3)]}};
    if (any(2) == 0) made.push_back({device(3 - first), rights[any(3)]});
    return made;
  }
  static void note(table& in, const std::vector<vmm::access_grant>& given) {
    for (const vmm::access_grant& each : given) in[each.grantee.ordinal] = each.rights;
  }
  shadow* one() { return blocks_.empty() ? nullptr : &blocks_[any(blocks_.size())]; }

  void allocate() {
    if (blocks_.size() >= 8) return;
    const std::uint64_t size_bytes = (1 + any(6)) * granule;
    const std::uint64_t growth_bytes = any(3) * 4 * granule;
    const auto at = memory_.allocate({.size_bytes = size_bytes, .growth_bytes = growth_bytes});
    if (at) blocks_.push_back({*at, size_bytes, {}});
  }
  void free_one() {
    shadow* const gone = one();
    if (gone == nullptr || !memory_.free(gone->at)) return;
    *gone = blocks_.back();
    blocks_.pop_back();
  }
  void resize() {
    shadow* const of = one();
    if (of == nullptr) return;
    const std::uint64_t size_bytes = (1 + any(8)) * granule;
    const auto at = memory_.resize({of->at, size_bytes});
    if (!at) return;
    of->at = *at;
    of->size_bytes = size_bytes;
    // Of a block that shrinks whole mappings go, with their rights.
    std::uint64_t kept_bytes = 0;
    for (const vmm::memory_segment& each : mappings(*of))
      if (kept_bytes < size_bytes) kept_bytes += each.range.size_bytes;
    of->parts.erase(of->parts.lower_bound(kept_bytes / granule), of->parts.end());
  }
  std::vector<vmm::memory_segment> mappings(const shadow& of) {
    const auto found = memory_.find(of.at);
    EXPECT_TRUE(found);
    const auto listed = memory_.segments({of.at, found->sizes.mapped_bytes});
    EXPECT_TRUE(listed);
    return listed ? *listed : std::vector<vmm::memory_segment>{};
  }
  // From the beginning of one mapping to the end of another.
  void give_part() {
    shadow* const of = one();
    if (of == nullptr) return;
    const auto all = mappings(*of);
    const std::size_t first = any(all.size());
    const std::size_t last = first + any(all.size() - first);
    const vmm::address_range part{all[first].range.base,
                                  all[last].range.end() - all[first].range.base};
    const auto given = grants();
    const vmm::address_range granule_alone{part.base, granule};
    const bool is_cut = all[first].range.size_bytes > granule;
    if (is_cut && granule_alone.end() != of->at + of->size_bytes)
      EXPECT_FALSE(memory_.set_access(granule_alone, given)) << "inside of a mapping";
    if (memory_.set_access(part, given)) note_part(*of, part, given);
  }
  static void note_part(shadow& of, vmm::address_range part,
                        const std::vector<vmm::access_grant>& given) {
    for (std::uint64_t at = part.base - of.at; at < part.end() - of.at; at += granule) {
      const auto there = of.parts.try_emplace(at / granule, of.own).first;
      note(there->second, given);
    }
  }
  void give_one() {
    shadow* const of = one();
    const auto given = grants();
    if (of == nullptr || !memory_.set_access(of->at, given)) return;
    note(of->own, given);
    for (auto& [at, part] : of->parts) note(part, given);
  }
  void give_all() {
    const auto given = grants();
    if (memory_.set_peers(given)) note(peers_, given);
  }
  // By remapping where it can be: rights are the address's.
  void copy() {
    shadow* const from = one();
    shadow* const to = one();
    if (from == nullptr || from == to || from->size_bytes > to->size_bytes) return;
    const std::uint64_t before = memory_.statistics().remapped_copy_count;
    (void)memory_.copy({to->at, from->at, from->size_bytes, {}}, vmm::copy_mode::move);
    EXPECT_TRUE(driver_.finish_all());
    if (memory_.statistics().remapped_copy_count == before) return;
    EXPECT_TRUE(memory_.free(from->at));
    *from = blocks_.back();
    blocks_.pop_back();
  }
  void change_range() { (void)range_.resize({.size_bytes = any(6) * 4 * MiB}); }

  std::mt19937_64 random_;
  vmm::fake_driver driver_{three_devices()};
  vmm::manager memory_;
  vmm::growable_range range_;
  std::vector<shadow> blocks_;
  table peers_;
};

void play(const vmm::manager_policy& policy) {
  constexpr std::uint64_t programs = 150;
  constexpr int steps = 60;
  for (std::uint64_t seed = 1; seed <= programs; ++seed) {
    program one(seed, policy);
    for (int step = 0; step < steps; ++step) {
      one.step();
      one.expect_all("seed " + std::to_string(seed) + " step " + std::to_string(step));
      if (testing::Test::HasFailure()) return;
    }
  }
}

TEST(RightsModel, OfAManagerThatUnmapsWhatIsFreed) { play(vmm::manager_policy::va_pool()); }
TEST(RightsModel, OfAManagerThatKeepsItMapped) { play(vmm::manager_policy::keep_mapped()); }
TEST(RightsModel, OfAManagerThatCutsAndGrowsIt) { play(vmm::manager_policy::virtual_caching()); }

// A list takes 18 locations: the home, and those of all and of one block together.
TEST(RightsOfManyLocations, AreRefusedAndTheOthersStay) {
  vmm::fake::profile many = three_devices();
  many.device_count = 16;
  vmm::fake_driver driver(many);
  vmm::manager memory(driver);
  const address plain = *memory.allocate(4 * MiB);
  const address at = *memory.allocate(4 * MiB);
  std::vector<vmm::access_grant> own;
  std::vector<vmm::access_grant> all;
  for (std::int32_t i = 1; i <= 9; ++i) own.push_back({device(i), access::read});
  for (std::int32_t i = 10; i <= 15; ++i) all.push_back({device(i), access::read});
  for (std::int32_t i = 0; i < 3; ++i) all.push_back({vmm::host_node(i), access::read});
  ASSERT_TRUE(memory.set_access(at, own));
  EXPECT_FALSE(memory.set_peers(all));
  for (const address each : {plain, at})
    EXPECT_EQ(*driver.get_access(each, device(10)), access::none);
  EXPECT_EQ(*driver.get_access(at, device(9)), access::read);
  ASSERT_TRUE(memory.set_access(at, {own.data(), 1})) << "the block is as usable as before";
  const auto moved = *memory.resize({at, 64 * MiB});
  EXPECT_EQ(*driver.get_access(moved + 63 * MiB, device(9)), access::read);
  ASSERT_TRUE(memory.free(moved));
  ASSERT_TRUE(memory.free(plain));
}

TEST(RightsOfRanges, PeersThatComeLaterReachAGrowableRange) {
  vmm::fake_driver driver(three_devices());
  vmm::manager memory(driver);
  vmm::growable_range range(memory, {.segment_bytes_max = 64 * MiB});
  ASSERT_TRUE(range.grow(16 * MiB));
  const vmm::access_grant later{device(1), access::read};
  const vmm::status given = memory.set_peers({&later, 1});
  ASSERT_TRUE(given) << vmm::describe(given.error());
  EXPECT_EQ(*driver.get_access(range.statistics().base, device(1)), access::read);
  ASSERT_TRUE(range.grow(32 * MiB));
  EXPECT_EQ(*driver.get_access(range.statistics().base + 31 * MiB, device(1)), access::read);
}

}  // namespace

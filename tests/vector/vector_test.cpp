// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: vmm::vector behaves as a vector, grows without copying elements, and stays as it was when
// memory runs out or an element's constructor throws.
// Method: on real host memory elements are read through pointers; on the fake driver through the
// backend, with calls counted and made to fail. Elements that count their copies and throw when
// told to show what happens to them.
#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

import vmm.backend;
import vmm.fake;
import vmm.host;
import vmm.manager;
import vmm.vector;

namespace {

constexpr std::uint64_t MiB = std::uint64_t{1} << 20;
using vmm::call;
using vmm::errc;

class OnHost : public testing::Test {
 protected:
  using manager = vmm::manager<vmm::host_driver>;
  template <class T>
  using vector = vmm::vector<T, vmm::host_driver>;

  OnHost() : driver(vmm::host_driver::open().value()) {
    managed = std::make_unique<manager>(driver);
  }
  void TearDown() override {
    EXPECT_EQ(managed->statistics().live_count, 0u);
    managed.reset();
    EXPECT_TRUE(driver.ledger().empty());
  }
  template <class T>
  vector<T> make(std::uint64_t growth_count = 0) {
    return vector<T>(*managed, driver, growth_count);
  }

  vmm::host_driver driver;
  std::unique_ptr<manager> managed;
};

class OnFake : public testing::Test {
 protected:
  using manager = vmm::manager<vmm::fake_driver>;
  template <class T>
  using vector = vmm::vector<T, vmm::fake_driver>;

  OnFake() { managed = std::make_unique<manager>(driver); }
  void TearDown() override {
    managed.reset();
    EXPECT_TRUE(driver.check_empty()) << driver.report();
    EXPECT_EQ(driver.misuse_count(), 0u);
  }

  vmm::fake_driver driver;
  std::unique_ptr<manager> managed;
};

TEST_F(OnHost, GrowsAtTheSameAddressAndKeepsEveryElement) {
  auto numbers = make<std::uint64_t>();
  EXPECT_TRUE(numbers.empty());
  EXPECT_FALSE(numbers.data_address());
  ASSERT_TRUE(numbers.push_back(0));
  const std::uint64_t* const first = numbers.data();
  constexpr std::uint64_t count = 2'000'000;
  for (std::uint64_t i = 1; i < count; ++i) ASSERT_TRUE(numbers.push_back(i));
  EXPECT_EQ(numbers.size(), count);
  EXPECT_EQ(numbers.data(), first);
  for (std::uint64_t i = 0; i < count; ++i) ASSERT_EQ(numbers[i], i);
  EXPECT_GE(numbers.capacity(), count);
}

TEST_F(OnHost, MovesItsMappingWhereItCannotGrow) {
  auto numbers = make<std::uint32_t>();
  ASSERT_TRUE(numbers.resize(2 * MiB / 4));
  std::iota(numbers.begin(), numbers.end(), 0u);
  const auto wall = managed->allocate(2 * MiB);
  ASSERT_TRUE(wall);
  const std::uint32_t* const before = numbers.data();
  const std::uint64_t copies_before = managed->statistics().real_copy_count;
  ASSERT_TRUE(numbers.push_back(7));
  EXPECT_NE(numbers.data(), before);
  EXPECT_EQ(managed->statistics().real_copy_count, copies_before);
  EXPECT_EQ(numbers[2 * MiB / 4 - 1], 2 * MiB / 4 - 1);
  EXPECT_EQ(numbers[2 * MiB / 4], 7u);
  ASSERT_TRUE(managed->free(*wall));
}

TEST_F(OnHost, RoomAskedForKeepsItsAddress) {
  auto numbers = make<std::uint32_t>(16 * MiB / 4);
  ASSERT_TRUE(numbers.push_back(1));
  const auto wall = managed->allocate(2 * MiB);
  ASSERT_TRUE(wall);
  const std::uint32_t* const first = numbers.data();
  ASSERT_TRUE(numbers.resize(16 * MiB / 4));
  EXPECT_EQ(numbers.data(), first);
  ASSERT_TRUE(managed->free(*wall));
}

TEST_F(OnHost, ResizesReservesAndShrinks) {
  auto numbers = make<int>();
  ASSERT_TRUE(numbers.reserve(3'000'000));
  const std::uint64_t capacity = numbers.capacity();
  EXPECT_GE(capacity, 3'000'000u);
  ASSERT_TRUE(numbers.resize(10));
  for (const int one : numbers) EXPECT_EQ(one, 0);
  std::fill(numbers.begin(), numbers.end(), 5);
  ASSERT_TRUE(numbers.resize(4));
  ASSERT_TRUE(numbers.resize(6));
  EXPECT_EQ(numbers[3], 5);
  EXPECT_EQ(numbers[5], 0) << "an element that comes back is a new one";
  numbers.pop_back();
  EXPECT_EQ(numbers.size(), 5u);
  ASSERT_TRUE(numbers.shrink_to_fit());
  numbers.clear();
  ASSERT_TRUE(numbers.shrink_to_fit());
  EXPECT_EQ(numbers.capacity(), 0u);
  EXPECT_EQ(managed->statistics().live_count, 0u);
  ASSERT_TRUE(numbers.push_back(1));
}

TEST_F(OnHost, AppendsSpansEvenItsOwn) {
  auto numbers = make<std::uint32_t>();
  std::vector<std::uint32_t> some(2 * MiB / 4);
  std::iota(some.begin(), some.end(), 1u);
  ASSERT_TRUE(numbers.append(some));
  const auto wall = managed->allocate(2 * MiB);  // so that growing changes the address
  ASSERT_TRUE(wall);
  ASSERT_TRUE(numbers.append({numbers.data(), numbers.size()}));
  ASSERT_EQ(numbers.size(), 2 * some.size());
  EXPECT_TRUE(std::equal(some.begin(), some.end(), numbers.begin() + some.size()));
  ASSERT_TRUE(managed->free(*wall));
}

TEST_F(OnHost, MovesFromOneToAnother) {
  auto numbers = make<int>();
  ASSERT_TRUE(numbers.push_back(3));
  auto other = std::move(numbers);
  EXPECT_EQ(other[0], 3);
  auto third = make<int>();
  third = std::move(other);
  EXPECT_EQ(third[0], 3);
}

TEST_F(OnHost, RefusesALengthThatFitsNoAddressSpace) {
  auto numbers = make<std::uint64_t>();
  ASSERT_TRUE(numbers.push_back(1));
  EXPECT_EQ(numbers.reserve(std::uint64_t{1} << 60).error().code, errc::invalid_argument);
  EXPECT_EQ(numbers.resize(~std::uint64_t{0}).error().code, errc::invalid_argument);
  EXPECT_EQ(numbers.size(), 1u);
  EXPECT_EQ(numbers[0], 1u);
}

/// Knows its own address, counts what happens, and throws when told to.
struct witness {
  static inline int alive = 0;
  static inline int copies = 0;
  static inline int moves = 0;
  static inline int copies_until_throw = -1;

  explicit witness(int v) : value(v), self(this) { ++alive; }
  witness(const witness& other) : value(other.value), self(this) {
    if (copies_until_throw >= 0 && copies_until_throw-- == 0) throw std::runtime_error("planned");
    ++alive;
    ++copies;
  }
  witness(witness&& other) noexcept(false) : witness(static_cast<const witness&>(other)) {
    --copies;
    ++moves;
  }
  ~witness() {
    EXPECT_EQ(self, this);
    --alive;
  }
  int value;
  const witness* self;
  char padding[4080] = {};
};

TEST_F(OnHost, ElementsThatKnowTheirAddressAreMovedOnlyWhenItChanges) {
  witness::alive = witness::copies = witness::moves = 0;
  {
    auto elements = make<witness>();
    for (int i = 0; i < 2000; ++i) ASSERT_TRUE(elements.emplace_back(i));
    EXPECT_EQ(witness::copies, 0 + 2000) << "each is made aside and copied in once, never again";
    for (int i = 0; i < 2000; ++i) {
      ASSERT_EQ(elements[static_cast<std::uint64_t>(i)].value, i);
      ASSERT_EQ(elements[static_cast<std::uint64_t>(i)].self,
                &elements[static_cast<std::uint64_t>(i)]);
    }
  }
  EXPECT_EQ(witness::alive, 0);
}

TEST_F(OnHost, AThrowingConstructorLeavesTheVectorAsItWas) {
  witness::alive = 0;
  {
    auto elements = make<witness>();
    for (int i = 0; i < 512; ++i) ASSERT_TRUE(elements.emplace_back(i));
    EXPECT_EQ(elements.size(), elements.capacity());
    const auto wall = managed->allocate(2 * MiB);  // the next growth changes the address
    ASSERT_TRUE(wall);
    const witness* const before = elements.data();
    for (const int throw_at : {0, 100, 511, 512}) {
      witness::copies_until_throw = throw_at;
      EXPECT_THROW((void)elements.emplace_back(-1), std::runtime_error) << throw_at;
      witness::copies_until_throw = -1;
      EXPECT_EQ(elements.size(), 512u);
      EXPECT_EQ(elements[511].value, 511);
      EXPECT_EQ(elements[511].self, &elements[511]);
      if (throw_at < 512) EXPECT_EQ(elements.data(), before);
      EXPECT_EQ(witness::alive, 512);
    }
    ASSERT_TRUE(elements.emplace_back(512));
    EXPECT_EQ(elements[512].value, 512);
    EXPECT_EQ(elements[0].self, &elements[0]);
    ASSERT_TRUE(managed->free(*wall));
  }
  EXPECT_EQ(witness::alive, 0);
}

TEST_F(OnFake, WorksOnMemoryThatTheHostCannotReach) {
  vector<std::uint32_t> numbers(*managed, driver);
  std::vector<std::uint32_t> some(100'000);
  std::iota(some.begin(), some.end(), 0u);
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(numbers.append(some));
  std::vector<std::uint32_t> seen(some.size());
  for (std::uint64_t i = 0; i < 20; ++i) {
    ASSERT_TRUE(numbers.read(i * some.size(), seen));
    ASSERT_EQ(seen, some);
  }
  EXPECT_EQ(numbers.read(numbers.size(), seen).error().code, errc::invalid_argument);
  EXPECT_EQ(driver.calls(call::copy), 0u);
  EXPECT_EQ(driver.calls(call::unmap), 0u) << "it grew at its address";
}

using OnFakeDeathTest = OnFake;
TEST_F(OnFakeDeathTest, HostAccessWhereThereIsNone) {
  vector<int> numbers(*managed, driver);
  ASSERT_TRUE(numbers.push_back(1));
  EXPECT_DEATH((void)numbers.data(), "not for the host");
}

TEST_F(OnFake, StaysAsItWasWhenAnyCallFails) {
  const std::array<std::uint32_t, 4> tail{1, 2, 3, 4};
  for (const call kind : {call::create, call::map, call::set_access, call::write, call::fill}) {
    for (const vmm::fake::native_error& failure : driver.possible_errors(kind)) {
      vector<std::uint32_t> numbers(*managed, driver);
      ASSERT_TRUE(numbers.resize(2 * MiB / 4));
      ASSERT_TRUE(managed->drain().failure.code == errc::none);
      driver.fail({kind, 1, true, failure});
      const vmm::status done =
          kind == call::fill ? numbers.resize(4 * MiB / 4) : numbers.append(tail);
      driver.clear_faults();
      EXPECT_FALSE(done) << vmm::name_of(kind);
      EXPECT_EQ(numbers.size(), 2 * MiB / 4);
      ASSERT_TRUE(numbers.append(tail));
      std::array<std::uint32_t, 5> seen{};
      ASSERT_TRUE(numbers.read(numbers.size() - 5, seen));
      EXPECT_EQ(seen, (std::array<std::uint32_t, 5>{0, 1, 2, 3, 4}));
    }
  }
}

TEST_F(OnFake, TakesWhatIsLeftWhenDoublingIsTooMuch) {
  vmm::manager_options options;
  options.budget_bytes = 24 * MiB;
  managed = std::make_unique<manager>(driver, options);
  {
    vector<std::uint32_t> numbers(*managed, driver);
    ASSERT_TRUE(numbers.resize(16 * MiB / 4));
    ASSERT_TRUE(numbers.push_back(1));
    EXPECT_EQ(numbers.size(), 16 * MiB / 4 + 1);
    const vmm::status too_much = numbers.resize(32 * MiB / 4);
    ASSERT_FALSE(too_much);
    EXPECT_EQ(too_much.error().code, errc::over_budget);
    EXPECT_EQ(numbers.size(), 16 * MiB / 4 + 1);
  }
}

}  // namespace

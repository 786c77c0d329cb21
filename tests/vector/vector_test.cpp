// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: vmm::vector behaves as a vector, grows without copying elements, and stays as it was when
// memory runs out or an element's constructor throws.
// Method: on real host memory elements are read through pointers; on the fake driver through the
// backend, with calls counted and made to fail. Elements that count their copies and throw on
// request show their treatment.
#include <numeric>
#include <stdexcept>

#include "../support/test.h"

import vmm.backend;
import vmm.containers;
import vmm.fake;
import vmm.host;
import vmm.manager;

namespace {

using vmm::call, vmm::errc;

struct OnHost : testing::Test {
  using manager = vmm::manager;
  template <class T>
  using vector = vmm::vector<T>;

  OnHost() : driver(vmm::host_driver::open().value()) {
    managed = std::make_unique<manager>(driver);
  }
  void TearDown() override {
    EXPECT_EQ(managed->statistics().live_count, 0u);
    managed.reset();
    EXPECT_TRUE(driver.resource_counts().empty());
  }
  template <class T>
  vector<T> make(std::uint64_t growth_count = 0) {
    return vector<T>(*managed, growth_count);
  }

  vmm::host_driver driver;
  std::unique_ptr<manager> managed;
};

struct OnFake : testing::Test {
  using manager = vmm::manager;
  template <class T>
  using vector = vmm::vector<T>;

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
  const auto wall = *managed->allocate(2 * MiB);
  const std::uint32_t* const before = numbers.data();
  const std::uint64_t copies_before = managed->statistics().real_copy_count;
  ASSERT_TRUE(numbers.push_back(7));
  EXPECT_NE(numbers.data(), before);
  EXPECT_EQ(managed->statistics().real_copy_count, copies_before);
  EXPECT_EQ(numbers[2 * MiB / 4 - 1], 2 * MiB / 4 - 1);
  EXPECT_EQ(numbers[2 * MiB / 4], 7u);
  ASSERT_TRUE(managed->free(wall));
}

TEST_F(OnHost, RoomAskedForKeepsItsAddress) {
  auto numbers = make<std::uint32_t>(16 * MiB / 4);
  ASSERT_TRUE(numbers.push_back(1));
  const auto wall = *managed->allocate(2 * MiB);
  const std::uint32_t* const first = numbers.data();
  ASSERT_TRUE(numbers.resize(16 * MiB / 4));
  EXPECT_EQ(numbers.data(), first);
  ASSERT_TRUE(managed->free(wall));
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

TEST_F(OnHost, RefusesALengthThatFitsNoAddressSpace) {
  auto numbers = make<std::uint64_t>();
  ASSERT_TRUE(numbers.push_back(1));
  EXPECT_EQ(numbers.reserve(std::uint64_t{1} << 60).error().code, errc::invalid_argument);
  EXPECT_EQ(numbers.resize(~std::uint64_t{0}).error().code, errc::invalid_argument);
  EXPECT_EQ(numbers.size(), 1u);
  EXPECT_EQ(numbers[0], 1u);
}

/// Records its own address, counts operations, and throws on request.
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
  vector<std::uint32_t> numbers(*managed);
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

struct alignas(32768) sheet {
  std::array<std::uint64_t, 4096> words;
};

TEST(OnSmallGranules, ElementsAreAlignedBeyondTheGranularity) {
  vmm::fake_driver driver(vmm::fake::profile::host());
  vmm::manager memory(driver);
  ASSERT_TRUE(memory.set_up());
  ASSERT_LT(memory.granularity_bytes(), alignof(sheet));
  std::vector<vmm::address> walls;
  const auto one = std::make_unique<sheet>();
  for (int i = 0; i < 8; ++i) {
    walls.push_back(memory.allocate(1).value());
    vmm::vector<sheet> sheets(memory);
    for (int grown = 0; grown < 5; ++grown) {
      ASSERT_TRUE(sheets.append({one.get(), 1}));
      EXPECT_EQ(sheets.data_address().value % alignof(sheet), 0u);
    }
  }
  for (const vmm::address at : walls) EXPECT_TRUE(memory.free(at));
}

TEST_F(OnFake, StaysAsItWasWhenAnyCallFails) {
  const std::array<std::uint32_t, 4> tail{1, 2, 3, 4};
  for (const call kind : {call::create, call::map, call::set_access, call::write, call::fill}) {
    for (const vmm::fake::native_error& failure : driver.possible_errors(kind)) {
      vector<std::uint32_t> numbers(*managed);
      ASSERT_TRUE(numbers.resize(2 * MiB / 4));
      ASSERT_TRUE(managed->trim(0).failure.code == errc::none);
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

// ---- device work that has not finished: the fake finishes it when the test says so

struct policy_case {
  const char* name;
  vmm::manager_policy policy;
  vmm::alias_level alias;
};

struct OnBusyFake : testing::TestWithParam<policy_case> {
  using manager = vmm::manager;
  using vector = vmm::vector<std::uint32_t>;
  static constexpr std::uint64_t count = 20 * MiB / 4;  // a chunk of every policy
  static constexpr std::uint64_t tag = 0x7777'7777'7777'7777U;

  OnBusyFake() {
    vmm::fake::profile plays = vmm::fake::profile::cuda();
    plays.can.alias = GetParam().alias;
    driver = vmm::fake_driver(plays);
    driver.set_manual(true);
    for (vmm::stream_handle& each : streams) each = driver.create_stream().value();
    vmm::manager_options options;
    options.policy = GetParam().policy;
    managed = std::make_unique<manager>(driver, options);
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<std::uint32_t>(i + 1);
  }
  void TearDown() override {
    EXPECT_TRUE(driver.finish_all());
    managed.reset();
    for (const vmm::stream_handle each : streams) EXPECT_TRUE(driver.destroy_stream(each));
    EXPECT_TRUE(driver.check_empty()) << driver.report();
    for (const vmm::fake::misuse& each : driver.misuses())
      ADD_FAILURE() << vmm::fake::name_of(each.kind) << ": " << each.detail;
  }
  void launch(vmm::stream_handle stream, vmm::address_range range) {
    ASSERT_TRUE(driver.launch(stream, {.name = "use", .writes = {&range, 1}, .tag = tag}));
  }
  // A freed block that an unfinished kernel of the first stream writes.
  void leave_in_use(std::uint64_t size_bytes) {
    const auto at = *managed->allocate({size_bytes, 0, 0, streams[0]});
    launch(streams[0], {at, size_bytes});
    ASSERT_TRUE(managed->free(at));
  }
  void expect_numbers(const vector& in, std::uint64_t first, const char* when) {
    std::vector<std::uint32_t> seen(numbers.size());
    ASSERT_TRUE(in.read(first, seen));
    EXPECT_TRUE(std::equal(seen.begin(), seen.end(), numbers.begin())) << when;
  }

  vmm::fake_driver driver;
  std::unique_ptr<manager> managed;
  std::array<vmm::stream_handle, 2> streams{};
  std::array<std::uint32_t, 1000> numbers{};
};

TEST_P(OnBusyFake, WhatIsAppendedOutlivesTheWorkOfWhoeverHadTheMemory) {
  leave_in_use(20 * MiB);
  vector some(*managed);
  ASSERT_TRUE(some.reserve(count));
  ASSERT_TRUE(some.append(numbers));
  EXPECT_EQ(managed->statistics().created_count, 1u) << "the memory serves again";
  expect_numbers(some, 0, "at once");
  ASSERT_TRUE(driver.finish_all());
  expect_numbers(some, 0, "when the earlier user's kernel has finished");
}

TEST_P(OnBusyFake, WhatIsAppendedIsNotZeroedByAnEarlierResize) {
  vector some(*managed);
  ASSERT_TRUE(some.resize(5000));
  ASSERT_TRUE(some.resize(100));
  ASSERT_TRUE(some.append(numbers));
  expect_numbers(some, 100, "at once");
  ASSERT_TRUE(driver.finish_all());
  expect_numbers(some, 100, "when everything has finished");
}

// The caller's kernels are his: nothing but the vector's own work and that of earlier users is
// waited for, and each once.
TEST_P(OnBusyFake, WaitsForNothingElse) {
  vector some(*managed, 0, streams[1]);
  ASSERT_TRUE(some.resize(2000));
  std::vector<std::uint32_t> seen(1);
  ASSERT_TRUE(some.read(1999, seen));
  EXPECT_EQ(driver.calls(call::synchronize_event), 1u);
  launch(streams[1], {some.data_address(), 4000});
  launch(streams[0], {});
  ASSERT_TRUE(some.append(numbers));
  expect_numbers(some, 2000, "behind the caller's kernel");
  ASSERT_TRUE(some.resize(4000));
  ASSERT_TRUE(some.append(numbers));  // beside the zeros
  expect_numbers(some, 4000, "beside the zeros");
  EXPECT_EQ(driver.calls(call::synchronize_event), 1u);
  EXPECT_EQ(driver.calls(call::synchronize_stream), 0u);
  EXPECT_EQ(driver.resource_counts().pending_work, 3u);
}

TEST_P(OnBusyFake, AFillThatCannotBeMarkedIsWaitedForWithItsStream) {
  const auto failures = driver.possible_errors(call::record_event);
  ASSERT_FALSE(failures.empty());
  vector some(*managed, 0, streams[1]);
  ASSERT_TRUE(some.append(numbers));
  driver.fail({call::record_event, 1, true, failures.front()});
  ASSERT_TRUE(some.resize(2000));
  driver.clear_faults();
  some.pop_back();
  launch(streams[0], {});
  ASSERT_TRUE(some.append(numbers));
  expect_numbers(some, 1999, "at once");
  EXPECT_EQ(driver.resource_counts().pending_work, 1u);
  ASSERT_TRUE(driver.finish_all());
  expect_numbers(some, 1999, "when everything has finished");
}

INSTANTIATE_TEST_SUITE_P(
    Policies, OnBusyFake,
    testing::Values(
        policy_case{"va_pool", vmm::manager_policy::va_pool(), vmm::alias_level::coherent},
        policy_case{"keep_mapped", vmm::manager_policy::keep_mapped(), vmm::alias_level::coherent},
        policy_case{"virtual_caching", vmm::manager_policy::virtual_caching(),
                    vmm::alias_level::coherent},
        policy_case{"no_alias", vmm::manager_policy::keep_mapped(), vmm::alias_level::none}),
    [](const testing::TestParamInfo<policy_case>& each) { return std::string(each.param.name); });

// A limit on mappings is a shortage too: what is needed may fit where double does not.
TEST_F(OnFake, TakesWhatIsLeftWhenMappingsRunShort) {
  vector<std::uint32_t> numbers(*managed);
  ASSERT_TRUE(numbers.resize(2 * MiB / 4));
  ASSERT_TRUE(managed->trim(0).failure.code == errc::none);
  // Two recoveries and the first try meet the limit; the smaller request does not.
  for (int i = 0; i < 3; ++i)
    driver.fail({call::map, 1, false, {errc::out_of_mappings, 12, "INJECTED"}});
  EXPECT_TRUE(numbers.push_back(1));
  EXPECT_EQ(numbers.size(), 2 * MiB / 4 + 1);
}

TEST_F(OnFake, TakesWhatIsLeftWhenDoublingIsTooMuch) {
  vmm::manager_options options;
  options.budget_bytes = 24 * MiB;
  managed = std::make_unique<manager>(driver, options);
  {
    vector<std::uint32_t> numbers(*managed);
    ASSERT_TRUE(numbers.resize(16 * MiB / 4));
    ASSERT_TRUE(numbers.push_back(1));
    EXPECT_EQ(numbers.size(), 16 * MiB / 4 + 1);
    const vmm::status too_much = numbers.resize(32 * MiB / 4);
    EXPECT_EQ(too_much.error().code, errc::over_budget);
    EXPECT_EQ(numbers.size(), 16 * MiB / 4 + 1);
  }
}

}  // namespace

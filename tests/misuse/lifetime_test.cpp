// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: objects destroyed or moved in the wrong order are detected, on every driver and adaptor,
// and blocks that are live at an end are reported. Method: the wrong order in a child that must end
// with a text; the right order here; a hook that counts.
#include "fixture.hpp"

import vmm.containers;
import vmm.host;
import vmm.observe;

namespace misuse {

using vmm::address, vmm::errc;

const std::string destroyed =
    check_failed("a driver is destroyed while a pool or manager uses it: destroy those first");
const std::string moved =
    check_failed("a driver is moved while a pool or manager uses it: move it before they are made");
const std::string assigned =
    check_failed("a driver is assigned to while a pool or manager uses it: destroy those first");

// ---- drivers -------------------------------------------------------------------------

struct fake_kind {
  using type = vmm::fake_driver;
  static type make() { return type{}; }
};
struct host_kind {
  using type = vmm::host_driver;
  static type make() { return type::open().value(); }
};
struct any_kind {
  using type = vmm::any_backend;
  static type make() { return type::own(vmm::fake_driver{}).value(); }
};
struct observed_kind {
  using type = vmm::observed_backend<vmm::fake_driver, vmm::call_counter>;
  static type make() { return {vmm::fake_driver{}, std::make_shared<vmm::call_counter>()}; }
};

template <class Kind>
struct LifetimeMisuseDeathTest : testing::Test {
  LifetimeMisuseDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  using driver_type = typename Kind::type;
  void expect_not_moved() {
    EXPECT_DEATH(auto taken = std::move(*driver), moved);
    auto other = Kind::make();
    EXPECT_DEATH(*driver = std::move(other), assigned);
    EXPECT_DEATH(other = std::move(*driver), moved);
  }
  std::optional<driver_type> driver{Kind::make()};
};

using kinds = testing::Types<fake_kind, host_kind, any_kind, observed_kind>;
TYPED_TEST_SUITE(LifetimeMisuseDeathTest, kinds);

TYPED_TEST(LifetimeMisuseDeathTest, DriverDestroyedBeforeItsPool) {
  vmm::stream_pool pool(*this->driver);
  EXPECT_DEATH(this->driver.reset(), destroyed) << "before the pool has done anything";
  ASSERT_TRUE(pool.allocate(4 * KiB, {}));
  EXPECT_DEATH(this->driver.reset(), destroyed);
}

TYPED_TEST(LifetimeMisuseDeathTest, DriverDestroyedBeforeItsManager) {
  vmm::manager manager(*this->driver);
  ASSERT_TRUE(manager.allocate(MiB));
  EXPECT_DEATH(this->driver.reset(), destroyed);
}

TYPED_TEST(LifetimeMisuseDeathTest, DriverMovedBeforeItsPool) {
  vmm::stream_pool pool(*this->driver);
  this->expect_not_moved();
}

TYPED_TEST(LifetimeMisuseDeathTest, DriverMovedBeforeItsManager) {
  vmm::manager manager(*this->driver);
  this->expect_not_moved();
}

TYPED_TEST(LifetimeMisuseDeathTest, PoolOnADriverThatWasMovedFrom) {
  auto taken = std::move(*this->driver);
  const std::string text =
      check_failed("a pool or manager is made on a driver that was moved from");
  EXPECT_DEATH(vmm::stream_pool{*this->driver}, text);
  EXPECT_DEATH(vmm::manager{*this->driver}, text);
  *this->driver = std::move(taken);
  vmm::stream_pool pool(*this->driver);
  EXPECT_TRUE(pool.allocate(4 * KiB, {})) << "one that was assigned to serves again";
}

// ---- vectors -------------------------------------------------------------------------

struct VectorLifetimeMisuseDeathTest : testing::Test {
  VectorLifetimeMisuseDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  vmm::host_driver driver = vmm::host_driver::open().value();
  std::optional<vmm::manager> manager{std::in_place, driver};
};

TEST_F(VectorLifetimeMisuseDeathTest, ManagerDestroyedBeforeItsVector) {
  const std::string text =
      check_failed("a manager is destroyed while a vector or buffer uses it: destroy those first");
  std::optional<vmm::vector<int>> numbers(std::in_place, *manager);
  EXPECT_DEATH(manager.reset(), text) << "an empty one would reach it by growing";
  ASSERT_TRUE(numbers->push_back(7));
  vmm::vector<int> taken = std::move(*numbers);
  numbers.reset();
  EXPECT_DEATH(manager.reset(), text) << "the one that it was moved to";
}

TEST_F(VectorLifetimeMisuseDeathTest, VectorsThatChangeTheirManager) {
  vmm::manager second(driver);
  {
    vmm::vector<int> one(*manager);
    vmm::vector<int> other(second);
    ASSERT_TRUE(other.push_back(7));
    one = std::move(other);
    EXPECT_EQ(manager->users().count(), 1u);
    EXPECT_EQ(second.users().count(), 1u);
  }
  EXPECT_EQ(manager->users().count() + second.users().count(), 0u);
  manager.reset();
}

// ---- blocks live at an end -----------------------------------------------------------

struct heard {
  int count = 0;
  vmm::live_blocks last{};
  static void hear(void* context, const vmm::live_blocks& left) noexcept {
    auto& self = *static_cast<heard*>(context);
    ++self.count;
    self.last = left;
  }
};

TEST_F(PoolMisuse, LiveAtItsEnd) {
  heard report;
  const vmm::pool_options options{{.leak_hook = {&heard::hear, &report}}};
  open(options);
  free(allocate(4 * KiB, a), a);
  pool.reset();
  EXPECT_EQ(report.count, 0) << "nothing is live";
  open(options);
  (void)allocate(4 * KiB, a);
  (void)allocate(512, b);
  pool.reset();
  EXPECT_EQ(report.count, 1);
  EXPECT_STREQ(report.last.owner, "stream pool");
  EXPECT_EQ(report.last.count, 2u);
  EXPECT_EQ(report.last.size_bytes, 4 * KiB + 512);
}

TEST_F(ManagerMisuse, LiveAtItsEnd) {
  heard report;
  {
    vmm::manager other(driver, {{.leak_hook = {&heard::hear, &report}}});
    ASSERT_TRUE(other.allocate(3 * MiB));
  }
  EXPECT_EQ(report.count, 1);
  EXPECT_STREQ(report.last.owner, "manager");
  EXPECT_EQ(report.last.count, 1u);
  EXPECT_EQ(report.last.size_bytes, 3 * MiB);
}

// In a child, since the count of lines is the process's.
TEST(LiveBlocksMisuseDeathTest, LineOnStderr) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto leave = [](std::uint32_t pools) {
    vmm::fake_driver driver;
    for (std::uint32_t i = 0; i < pools; ++i) {
      vmm::stream_pool pool(driver);
      (void)pool.allocate(4 * KiB, {});
    }
    std::exit(0);
  };
  EXPECT_EXIT(leave(1), testing::ExitedWithCode(0),
              "^vmm: a stream pool ends with 1 live block of 4096 bytes; it gives it back\n$");
  EXPECT_EXIT(leave(vmm::leak_report_count_max + 3), testing::ExitedWithCode(0),
              "back \\(no further report is printed\\)\n$");
}

// exit() destroys static objects, and none on the stack.
TEST(ExitMisuseDeathTest, ExitOverAPoolOnTheStack) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto leave = [] {
    static vmm::fake_driver driver;
    vmm::stream_pool pool(driver);
    (void)pool.allocate(4 * KiB, {});
    std::exit(3);
  };
  EXPECT_EXIT(leave(), testing::ExitedWithCode(3), "^$");
}

// A destroyed object cannot be checked: only a tool that tracks all memory detects its use.
TEST(GoneMisuseDeathTest, PoolUsedAfterItsEnd) {
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  vmm::fake_driver driver;
  auto pool = std::make_unique<vmm::stream_pool>(driver);
  ASSERT_TRUE(pool->allocate(4 * KiB, {}));
  vmm::stream_pool* const gone = pool.get();
  pool.reset();
  EXPECT_DEATH((void)gone->allocate(4 * KiB, {}), "heap-use-after-free");
  return;
#endif
#endif
  GTEST_SKIP() << "only AddressSanitizer sees it";
}

}  // namespace misuse

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: the pool's options come from the environment as documented; what is malformed is refused
// with the variable's name and what it may be, and what cannot work is refused when the pool is set
// up, not met later. Method: each variable with values it takes and values it does not; pools with
// options at the ends of their ranges.
#include "../support/test.h"

import vmm.fake;
import vmm.stream;

namespace {

constexpr std::uint64_t longest = std::uint64_t{1} << 56;

const std::vector<const char*> names{"VMM_VA_SIZE",     "VMM_POOL_PAGE_SIZE", "VMM_POOL_PAGES",
                                     "VMM_POOL_POLICY", "VMM_BUDGET",         "VPMM_VA_SIZE",
                                     "VPMM_PAGE_SIZE",  "VPMM_PAGES"};

struct PoolEnvironment : testing::Test {
  void SetUp() override { clear(); }
  void TearDown() override { clear(); }
  static void clear() {
    for (const char* name : names) ::unsetenv(name);
  }
  static vmm::result<vmm::pool_options> read(const char* name, const char* value) {
    clear();
    ::setenv(name, value, 1);
    return vmm::pool_options::from_environment({});
  }
};

TEST_F(PoolEnvironment, UnsetAndEmptyChangeNothing) {
  vmm::pool_options base;
  base.reservation_bytes = 77 * MiB;
  base.page_bytes = 4 * MiB;
  base.page_count = 3;
  base.budget_bytes = 5 * MiB;
  for (const char* name : names) ::setenv(name, "", 1);
  const auto options = *vmm::pool_options::from_environment(base);
  EXPECT_EQ(options.reservation_bytes, base.reservation_bytes);
  EXPECT_EQ(options.page_bytes, base.page_bytes);
  EXPECT_EQ(options.page_count, base.page_count);
  EXPECT_EQ(options.budget_bytes, base.budget_bytes);
  EXPECT_STREQ(options.policy.name, "pool");
}

TEST_F(PoolEnvironment, EachVariableIsRead) {
  EXPECT_EQ(read("VMM_VA_SIZE", "1TiB")->reservation_bytes, 1ull << 40);
  EXPECT_EQ(read("VPMM_VA_SIZE", "1TiB")->reservation_bytes, 1ull << 40);
  EXPECT_EQ(read("VMM_POOL_PAGE_SIZE", "4MiB")->page_bytes, 4 * MiB);
  EXPECT_EQ(read("VPMM_PAGE_SIZE", "4194304")->page_bytes, 4 * MiB);
  EXPECT_EQ(read("VMM_POOL_PAGES", "0")->page_count, 0u);
  EXPECT_EQ(read("VMM_POOL_PAGES", "16384")->page_count, 16384u);
  EXPECT_EQ(read("VPMM_PAGES", "12")->page_count, 12u);
  EXPECT_EQ(read("VMM_BUDGET", "40GiB")->budget_bytes, 40ull << 30);
  EXPECT_EQ(read("VMM_BUDGET", "0")->budget_bytes, 0u);
  EXPECT_STREQ(read("VMM_POOL_POLICY", "vpmm")->policy.name, "vpmm");
  EXPECT_STREQ(read("VMM_POOL_POLICY", "pool")->policy.name, "pool");
  EXPECT_STREQ(read("VMM_POOL_POLICY", "off")->policy.name, "off");
}

TEST_F(PoolEnvironment, APageLargerThanAnyRequestTurnsThePoolOff) {
  for (const char* size : {"34359738368", "32GiB", "1025MiB", "4TiB", "18446744073709551615"}) {
    const auto options = read("VPMM_PAGE_SIZE", size);
    ASSERT_TRUE(options) << size;
    EXPECT_TRUE(options->policy.tuning.keep_none) << size;
    EXPECT_STREQ(options->policy.name, "off") << size;
    EXPECT_EQ(options->page_bytes, 0u) << size;
  }
  EXPECT_FALSE(read("VPMM_PAGE_SIZE", "1GiB")->policy.tuning.keep_none);
  EXPECT_EQ(read("VPMM_PAGE_SIZE", "1GiB")->page_bytes, 1ull << 30);
  EXPECT_FALSE(read("VMM_POOL_PAGE_SIZE", "32GiB")->policy.tuning.keep_none)
      << "the source's name alone";
}

TEST_F(PoolEnvironment, OwnNamesDecide) {
  ::setenv("VPMM_PAGES", "12", 1);
  ::setenv("VMM_POOL_PAGES", "13", 1);
  ::setenv("VPMM_PAGE_SIZE", "2MiB", 1);
  ::setenv("VMM_POOL_PAGE_SIZE", "6MiB", 1);
  ::setenv("VPMM_VA_SIZE", "1GiB", 1);
  ::setenv("VMM_VA_SIZE", "2GiB", 1);
  const auto options = *vmm::pool_options::from_environment({});
  EXPECT_EQ(options.page_count, 13u);
  EXPECT_EQ(options.page_bytes, 6 * MiB);
  EXPECT_EQ(options.reservation_bytes, 2ull << 30);
}

TEST_F(PoolEnvironment, MalformedValuesAreRefusedByName) {
  struct wrong {
    const char* name;
    std::vector<const char*> values;
    const char* may_be;
  };
  const std::vector<const char*> not_sizes{"0",   "much",  "-1",   "1.5",  "2,5MiB",
                                           "MiB", "2MiBs", "0x10", "8EiB", "18446744073709551616"};
  const std::vector<const char*> not_counts{"many", "-1", "1.5", "1e99", "nan", "inf", "3 "};
  const std::vector<wrong> all{
      {"VMM_VA_SIZE", not_sizes, "bytes"},
      {"VPMM_VA_SIZE", not_sizes, "bytes"},
      {"VMM_POOL_PAGE_SIZE", not_sizes, "bytes"},
      {"VPMM_PAGE_SIZE", not_sizes, "bytes"},
      {"VMM_POOL_PAGES", not_counts, "a whole number"},
      {"VPMM_PAGES", not_counts, "a whole number"},
      {"VMM_BUDGET", {"much", "-1", "40 GiB.", "40gallons"}, "0 for no budget"},
      {"VMM_POOL_POLICY", {"best", "Pool", "vpmm "}, "one of pool, vpmm"},
  };
  for (const wrong& each : all) {
    for (const char* value : each.values) {
      const auto options = read(each.name, value);
      ASSERT_FALSE(options) << each.name << "=" << value;
      EXPECT_EQ(options.error().code, vmm::errc::bad_option) << each.name << "=" << value;
      const std::string detail = options.error().detail;
      EXPECT_EQ(detail.find(std::string(each.name) + " takes"), 0u) << detail;
      EXPECT_TRUE(contains(detail, each.may_be));
      EXPECT_TRUE(detail.ends_with("; not '" + std::string(value) + "'")) << detail;
    }
  }
}

TEST_F(PoolEnvironment, AMalformedOlderNameIsNotHiddenByOurs) {
  ::setenv("VMM_POOL_PAGES", "13", 1);
  ::setenv("VPMM_PAGES", "lots", 1);
  const auto options = vmm::pool_options::from_environment({});
  ASSERT_FALSE(options);
  EXPECT_EQ(std::string(options.error().detail).find("VPMM_PAGES"), 0u);
}

vmm::status set_up(const vmm::pool_options& options) {
  vmm::fake_driver driver;
  vmm::status outcome;
  {
    vmm::stream_pool pool(driver, options);
    outcome = pool.set_up();
    if (outcome) {
      const auto at = pool.allocate(3 * MiB, vmm::stream_handle::default_stream);
      if (at) EXPECT_TRUE(pool.free(*at, vmm::stream_handle::default_stream));
      if (!at) outcome = at.error();
      EXPECT_TRUE(pool.validate());
    }
  }
  EXPECT_TRUE(driver.check_empty()) << driver.report();
  return outcome;
}

TEST(PoolOptions, TheEndsOfTheRangesWork) {
  const auto works = [](auto change) {
    vmm::pool_options options;
    change(options);
    const vmm::status outcome = set_up(options);
    EXPECT_TRUE(outcome) << (outcome ? "" : vmm::describe(outcome.error()));
  };
  works([](auto& o) {
    o.policy.tuning.first_fit_bytes = 512;
    o.reservation_bytes = 64 * MiB;
  });
  works([](auto& o) { o.policy.tuning.first_fit_bytes = std::uint64_t{1} << 37; });
  works([](auto& o) { o.policy.handle_bytes_max = longest; });
  works([](auto& o) { o.policy.tuning.slack_bytes = longest; });
  works([](auto& o) { o.policy.tuning.growth_gap_bytes = longest; });
  works([](auto& o) { o.policy.headroom = 1000; });
  works([](auto& o) { o.policy.tuning.growth_share = 1; });
  works([](auto& o) { o.policy.tuning.min_move_share = 1u << 20; });
  works([](auto& o) { o.policy.tuning.min_move_bytes = longest; });
  works([](auto& o) { o.policy.tuning.min_move_bytes = 0; });
  works([](auto& o) { o.reservation_bytes = longest; });
  works([](auto& o) { o.policy.tuning.stale_count_max = longest; });
  works([](auto& o) { o.page_bytes = 3 * MiB; });
  works([](auto& o) { o.budget_bytes = 64 * MiB; });
  works([](auto& o) { o.policy = vmm::pool_policy::vpmm(); });
}

// The part of a growth beyond its request is at most a segment long.
TEST(PoolOptions, SmallSegmentsAreGrownByMoreSegments) {
  for (const bool is_default : {true, false}) {
    vmm::fake_driver driver;
    vmm::pool_options options;
    options.reservation_bytes = 16 * MiB;
    options.leak_hook.hook = nullptr;
    if (!is_default) options.policy.headroom = 1000;
    if (!is_default) options.policy.tuning.growth_share = 1;
    vmm::stream_pool pool(driver, options);
    const std::uint64_t count = is_default ? 400 : 40;
    for (std::uint64_t i = 0; i < count; ++i) {
      const auto at = pool.allocate(2 * MiB, vmm::stream_handle::default_stream);
      ASSERT_TRUE(at) << i << " " << vmm::describe(at.error());
    }
    EXPECT_LE(pool.statistics().reserved_bytes, 3 * count * MiB) << "no segment is left unused";
  }
}

}  // namespace

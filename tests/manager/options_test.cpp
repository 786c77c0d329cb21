// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: each option of both allocators is taken at the ends of its range and refused beyond them,
// before the driver is called, and the common ones are read alike from the environment. Method: the
// ranges once more, as a list of this test; each row of the library's tables tried below, at and
// above its ends, in the options' validate() and in an allocator's set_up().
#include <cmath>

#include "../support/test.h"

import vmm.backend;
import vmm.fake;
import vmm.manager;
import vmm.optimizer;
import vmm.stream;

namespace {

using vmm::errc, vmm::option_row, vmm::option_rule;

constexpr double bytes_max = 72057594037927936.0;   // 2^56
constexpr double page_max = 274877906944.0;         // 2^38
constexpr double share_max = 1048576.0;             // 2^20
constexpr double page_count_max = 1099511627776.0;  // 2^40

struct range {
  const char* name;
  double low;
  double high;
  option_rule rule = option_rule::any;
};

const std::vector<range> memory_ranges{{"memory_options::reservation_bytes", 1, bytes_max},
                                       {"memory_options::budget_bytes", 0, bytes_max}};
const std::vector<range> policy_ranges{{"manager_policy::fragment_ratio", 0, 1},
                                       {"manager_policy::chunk_bytes", 0, bytes_max}};
const std::vector<range> pool_policy_ranges{{"handle_bytes_max", 0, bytes_max},
                                            {"headroom", 0, 1000}};
const std::vector<range> pool_tuning_ranges{
    {"first_fit_bytes", 512, page_max, option_rule::power_of_two},
    {"small_handle_bytes", 0, bytes_max},
    {"move_budget_ns", 0, 1e9},
    {"small_pool_bytes", 0, bytes_max},
    {"slack_bytes", 0, bytes_max},
    {"min_move_share", 0, share_max},
    {"min_move_bytes", 0, bytes_max},
    {"growth_share", 0, share_max},
    {"growth_gap_bytes", 0, bytes_max},
    {"stale_count_max", 0, bytes_max}};
const std::vector<range> pool_ranges{{"page_bytes", 0, page_max},
                                     {"page_count", 0, page_count_max}};

// ---- one row

void expect_refused(const vmm::status& answer, const char* detail, const std::string& what) {
  ASSERT_FALSE(answer) << what << ": " << detail;
  EXPECT_EQ(answer.error().code, errc::bad_option) << what;
  const std::string said = answer.error().detail;
  EXPECT_TRUE(said.starts_with(std::string(detail) + "; not '")) << what << ": " << said;
}

// Calls `look(value, fits)` for values at, within and beyond the ends of the range.
template <class Look>
void try_values(const range& is, std::uint64_t, Look&& look) {
  const auto low = static_cast<std::uint64_t>(is.low);
  const auto high = static_cast<std::uint64_t>(is.high);
  look(low, true);
  look(high, true);
  look(high + 1, false);
  look(std::numeric_limits<std::uint64_t>::max(), false);
  if (is.rule == option_rule::power_of_two) {
    look(0, true);
    look(low / 2, false);
    look(low + 1, false);
    look(high * 2, false);
  } else {
    look(high / 2 + 1, true);
    if (low > 0) look(low - 1, false);
  }
}
template <class Look>
void try_values(const range& is, std::uint32_t, Look&& look) {
  const auto low = static_cast<std::uint32_t>(is.low);
  const auto high = static_cast<std::uint32_t>(is.high);
  look(low, true);
  look(high, true);
  look(high + 1, false);
  look(std::numeric_limits<std::uint32_t>::max(), false);
}
template <class Look>
void try_values(const range& is, double, Look&& look) {
  const double infinity = std::numeric_limits<double>::infinity();
  look(is.low, true);
  look(is.high, true);
  look((is.low + is.high) / 2, true);
  look(std::nextafter(is.low, -infinity), false);
  look(std::nextafter(is.high, infinity), false);
  for (const double none : {infinity, -infinity, std::numeric_limits<double>::quiet_NaN(),
                            -std::numeric_limits<double>::quiet_NaN()})
    look(none, false);
}

// Each row says what the list says, and `check_whole(options, fits, detail)` is called for values
// of each.
template <class Options, class CheckWhole>
void try_rows(const std::vector<range>& ranges, CheckWhole&& check_whole) {
  const auto rows = Options::ranges();
  ASSERT_EQ(rows.size(), ranges.size());
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const option_row<Options>& row = rows[i];
    const range& is = ranges[i];
    EXPECT_EQ(std::string(row.detail).find(std::string(is.name) + " is "), 0u) << row.detail;
    EXPECT_EQ(row.low, is.low) << is.name;
    EXPECT_EQ(row.high, is.high) << is.name;
    EXPECT_EQ(row.rule, is.rule) << is.name;
    row.option.visit([&](auto member) {
      using value_type = std::remove_cvref_t<decltype(std::declval<Options&>().*member)>;
      try_values(is, value_type{}, [&](auto value, bool fits) {
        Options options;
        options.*member = static_cast<value_type>(value);
        const std::string what = std::string(is.name) + " = " + std::to_string(value);
        if (fits) {
          EXPECT_TRUE(row.check_value(options)) << what;
        } else {
          expect_refused(row.check_value(options), row.detail, what);
        }
        check_whole(options, fits, row.detail, what);
      });
    });
  }
}

// ---- both allocators

// Options out of their range are refused by validate(), by the environment's reader as its base,
// and by set_up(), which calls no driver.
template <class Allocator, class Options>
void expect_checked(const Options& options, bool fits, const char* detail,
                    const std::string& what) {
  if (fits) {
    EXPECT_TRUE(options.validate()) << what;
    return;
  }
  expect_refused(options.validate(), detail, what);
  const auto read = Options::from_environment(options);
  expect_refused(read ? vmm::status{} : vmm::status{read.error()}, detail, what);
  vmm::fake_driver driver;
  Allocator allocator(driver, options);
  expect_refused(allocator.set_up(), detail, what);
  EXPECT_EQ(driver.calls(), 0u) << what << " needs no device";
}

TEST(OptionTables, EveryRowOfMemoryOptions) {
  try_rows<vmm::memory_options>(memory_ranges, [](const vmm::memory_options& memory, bool fits,
                                                  const char* detail, const std::string& what) {
    vmm::manager_options managed;
    static_cast<vmm::memory_options&>(managed) = memory;
    expect_checked<vmm::manager>(managed, fits, detail, what);
    vmm::pool_options pooled;
    static_cast<vmm::memory_options&>(pooled) = memory;
    expect_checked<vmm::stream_pool>(pooled, fits, detail, what);
  });
}

TEST(OptionTables, EveryRowOfTheManagersPolicy) {
  try_rows<vmm::manager_policy>(policy_ranges, [](const vmm::manager_policy& policy, bool fits,
                                                  const char* detail, const std::string& what) {
    vmm::manager_options options;
    options.policy = policy;
    expect_checked<vmm::manager>(options, fits, detail, what);
  });
}

TEST(OptionTables, EveryRowOfThePoolsPolicy) {
  try_rows<vmm::pool_policy>(pool_policy_ranges, [](const vmm::pool_policy& policy, bool fits,
                                                    const char* detail, const std::string& what) {
    vmm::pool_options options;
    options.policy = policy;
    expect_checked<vmm::stream_pool>(options, fits, detail, what);
  });
  try_rows<vmm::pool_tuning>(pool_tuning_ranges, [](const vmm::pool_tuning& tuning, bool fits,
                                                    const char* detail, const std::string& what) {
    vmm::pool_options options;
    options.policy.tuning = tuning;
    expect_checked<vmm::stream_pool>(options, fits, detail, what);
  });
}

TEST(OptionTables, EveryRowOfThePool) {
  try_rows<vmm::pool_options>(pool_ranges, [](const vmm::pool_options& options, bool fits,
                                              const char* detail, const std::string& what) {
    expect_checked<vmm::stream_pool>(options, fits, detail, what);
  });
}

TEST(OptionTables, PresetsAndDefaultsAreWithinTheirRanges) {
  for (const vmm::manager_policy& policy :
       {vmm::manager_policy::va_pool(), vmm::manager_policy::keep_mapped(),
        vmm::manager_policy::virtual_caching()})
    EXPECT_TRUE(policy.validate()) << policy.name;
  for (const vmm::pool_policy& policy : {vmm::pool_policy::near_live(), vmm::pool_policy::vpmm()})
    EXPECT_TRUE(policy.validate()) << policy.name;
  EXPECT_TRUE(vmm::manager_options{}.validate());
  EXPECT_TRUE(vmm::pool_options{}.validate());
}

// ---- the environment

struct CommonEnvironment : testing::Test {
  void TearDown() override {
    ::unsetenv("VMM_VA_SIZE");
    ::unsetenv("VMM_BUDGET");
  }
};

TEST_F(CommonEnvironment, IsReadAlikeByBothAllocators) {
  const std::vector<std::pair<const char*, const char*>> settings{
      {"VMM_VA_SIZE", "1TiB"}, {"VMM_VA_SIZE", "1"},        {"VMM_VA_SIZE", "65536TiB"},
      {"VMM_VA_SIZE", "0"},    {"VMM_VA_SIZE", "65537TiB"}, {"VMM_VA_SIZE", "much"},
      {"VMM_BUDGET", "40GiB"}, {"VMM_BUDGET", "0"},         {"VMM_BUDGET", "65536TiB"},
      {"VMM_BUDGET", "-1"},    {"VMM_BUDGET", "65537TiB"},  {"VMM_BUDGET", ""}};
  int refused_count = 0;
  for (const auto& [name, value] : settings) {
    TearDown();
    ::setenv(name, value, 1);
    const auto managed = vmm::manager_options::from_environment({});
    const auto pooled = vmm::pool_options::from_environment({});
    ASSERT_EQ(managed.has_value(), pooled.has_value()) << name << '=' << value;
    if (managed) {
      EXPECT_EQ(managed->reservation_bytes, pooled->reservation_bytes) << name << '=' << value;
      EXPECT_EQ(managed->budget_bytes, pooled->budget_bytes) << name << '=' << value;
      continue;
    }
    ++refused_count;
    EXPECT_EQ(managed.error().code, errc::bad_option);
    EXPECT_STREQ(managed.error().detail, pooled.error().detail);
    EXPECT_EQ(std::string(managed.error().detail).find(std::string(name) + " takes"), 0u);
  }
  EXPECT_EQ(refused_count, 5);
}

struct sample {
  std::uint64_t bytes = 1;
  std::uint32_t share = 2;
  double ratio = 3;
};

// Each type of an option; what is malformed or out of the row's range changes nothing.
TEST_F(CommonEnvironment, AVariableIsReadAsWhatItsOptionIs) {
  const option_row<sample> bytes{"bytes", &sample::bytes, 1, 4096};
  const option_row<sample> share{"share", &sample::share, 0, 4294967295.0};
  const option_row<sample> ratio{"ratio", &sample::ratio, 0, 4};
  const auto read = [](const char* value, const option_row<sample>& row, sample& into) {
    ::setenv("VMM_BUDGET", value, 1);
    return vmm::read_option("VMM_BUDGET", row, into, "what it may be");
  };
  sample one;
  EXPECT_TRUE(read("4KiB", bytes, one));
  EXPECT_TRUE(read("4294967295", share, one));
  EXPECT_TRUE(read("0.5", ratio, one));
  const auto expect_same = [&] {
    EXPECT_EQ(one.bytes, 4096u);
    EXPECT_EQ(one.share, 4294967295u);
    EXPECT_EQ(one.ratio, 0.5);
  };
  expect_same();
  for (const char* value : {"0", "5KiB", "-1", "1.5", "many"})
    expect_refused(read(value, bytes, one), "what it may be", value);
  for (const char* value : {"4294967296", "-1", "1.5", "many"})
    expect_refused(read(value, share, one), "what it may be", value);
  for (const char* value : {"4.01", "-1", "nan", "inf", "1e999", "many"})
    expect_refused(read(value, ratio, one), "what it may be", value);
  EXPECT_TRUE(read("", ratio, one));
  expect_same();
}

TEST_F(CommonEnvironment, UnsetVariablesLeaveTheBaseAlone) {
  vmm::manager_options base;
  base.reservation_bytes = 77;
  base.budget_bytes = 78;
  base.wait_when_short = false;
  base.placement = vmm::host();
  const auto read = *vmm::manager_options::from_environment(base);
  EXPECT_EQ(read.reservation_bytes, 77u);
  EXPECT_EQ(read.budget_bytes, 78u);
  EXPECT_FALSE(read.wait_when_short);
  EXPECT_EQ(read.placement, vmm::host());
}

}  // namespace

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: when operator new fails in the Level Zero backend, the call says so and changes nothing.
// Method: in each call, the first, second, ... allocation of the backend's own fails until the
// call succeeds; those of the loader, its layers and the driver do not fail.
#include "../support/failing_new.h"
#include "../support/test.h"
#include "workbench.hpp"

import vmm.backend;
import vmm.fake;
import vmm.level_zero;

namespace {

using failing_new::plan, vmm::errc, vmm::level_zero_driver, ze_test::simulated;

constexpr std::uint64_t unit = 2ull << 20;

vmm::fake_driver& fake() { return *static_cast<vmm::fake_driver*>(simulated().fake()); }

struct LevelZeroAllocations : testing::Test {
  void SetUp() override {
    simulated().reset(nullptr);
    simulated().clear_complaints();
    simulated().notify([](bool inside) { plan.paused_count += inside ? 1 : -1; });
  }
  void TearDown() override {
    simulated().notify(nullptr);
    EXPECT_STREQ(simulated().complaints(), "");
    EXPECT_STREQ(simulated().misuse(), "");
    EXPECT_EQ(simulated().reset(nullptr), 0u);
  }
  // Repeats the call with ever more memory; `unchanged` is checked after each failure.
  template <class Call, class Unchanged>
  auto insist(Call&& call, Unchanged&& unchanged) {
    for (std::uint64_t nth = 1;; ++nth) {
      plan = {.armed = true, .fail_at = nth, .forever = true};
      auto answer = call();
      const bool struck = plan.struck_count != 0;
      plan = {};
      if (answer) {
        EXPECT_FALSE(struck) << "a failed allocation went unnoticed";
        return answer;
      }
      EXPECT_EQ(answer.error().code, errc::out_of_host_memory) << vmm::describe(answer.error());
      EXPECT_TRUE(struck && unchanged());
      if (!struck || nth > 100) return answer;
      ++failed_count_;
    }
  }
  std::uint64_t failed_count_ = 0;
};

TEST_F(LevelZeroAllocations, OpeningKeepsNothing) {
  const auto opened =
      insist([] { return level_zero_driver::open({.loader_library = VMM_ZE_WITNESS}); },
             [] { return simulated().reset(nullptr) == 0; });
  ASSERT_TRUE(opened);
  EXPECT_GE(failed_count_, 5u);
}

TEST_F(LevelZeroAllocations, EachRecordMayFail) {
  auto opened = *level_zero_driver::open({.loader_library = VMM_ZE_WITNESS});
  level_zero_driver& driver = opened;
  const auto each = [&](auto&& call) {
    const vmm::fake::resource_counts before = fake().resource_counts();
    return insist(call, [&] {
      const vmm::fake::resource_counts now = fake().resource_counts();
      return now.reservations == before.reservations && now.handles == before.handles &&
             now.mappings == before.mappings && now.streams == before.streams;
    });
  };
  const auto range = each([&] { return driver.reserve({.size_bytes = unit}); });
  const vmm::physical_request wanted{.size_bytes = unit, .where = driver.home()};
  const auto memory = each([&] { return driver.create(wanted); });
  ASSERT_TRUE(range && memory);
  ASSERT_TRUE(each([&] { return driver.map({range->base, unit, *memory, 0}); }));
  const vmm::access_grant all[] = {{driver.home(), vmm::access::read_write}};
  ASSERT_TRUE(each([&] { return driver.set_access(*range, all); }));
  const auto stream = each([&] { return driver.create_stream(); });
  const auto event = each([&] { return driver.create_event(); });
  ASSERT_TRUE(stream && event);
  ASSERT_TRUE(each([&] { return driver.record_event(*event, *stream); }));
  ASSERT_TRUE(each([&] { return driver.wait_event(vmm::stream_handle::default_stream, *event); }));
  ASSERT_TRUE(each([&] { return driver.synchronize_stream(vmm::stream_handle::default_stream); }));
  ASSERT_TRUE(each([&] { return driver.destroy_stream(*stream); }));
  ASSERT_TRUE(each([&] { return driver.destroy_event(*event); }));
  ASSERT_TRUE(each([&] { return driver.unmap(*range); }));
  ASSERT_TRUE(each([&] { return driver.release(*memory); }));
  ASSERT_TRUE(each([&] { return driver.free_reservation(*range); }));
  EXPECT_GE(failed_count_, 10u);
}

}  // namespace

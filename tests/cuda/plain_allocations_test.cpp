// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: when operator new fails for a record of plain memory, the call says so and changes nothing.
// Method: operator new fails, once and for ever, in each call that makes a record; the same
// call then works.
#include "../support/failing_new.h"
#include "../support/test.h"
#include "workbench.hpp"

import vmm.backend;
import vmm.cuda;
import vmm.fake;

namespace {

using failing_new::plan, vmm::errc;

constexpr std::uint64_t granule = std::uint64_t{2} << 20;

// Runs `call` with its first allocation failing.
template <class Call>
errc code_without_memory(bool forever, Call&& call) {
  plan = {.armed = true, .fail_at = 1, .forever = forever};
  const auto answer = call();
  const std::uint64_t struck_count = plan.struck_count;
  plan = {};
  EXPECT_GT(struck_count, 0u) << "the call makes no record";
  return answer ? errc::none : answer.error().code;
}

// The record is the last allocation of a reservation; those before it are the stub driver's.
TEST(PlainAllocations, TheRecordOfAReservationMayFail) {
  cuda_test::standin().reset(nullptr);
  {
    auto driver = vmm::cuda_driver::open(
        {.driver_library = VMM_STANDIN_LIBRARY, .memory = vmm::cuda_memory::plain});
    ASSERT_TRUE(driver);
    std::uint64_t last = 0;
    for (int round = 0; round < 2; ++round) {  // the first one fills what the stub driver keeps
      plan = {.armed = true};
      const auto range = driver->reserve({.size_bytes = granule});
      last = plan.seen_count;
      plan = {};
      ASSERT_TRUE(range);
      ASSERT_TRUE(driver->free_reservation(*range));
    }
    plan = {.armed = true, .fail_at = last};
    const auto refused = driver->reserve({.size_bytes = granule});
    const std::uint64_t struck_count = plan.struck_count;
    plan = {};
    EXPECT_EQ(struck_count, 1u);
    EXPECT_EQ(refused.error().code, errc::out_of_host_memory);
    EXPECT_EQ(cuda_test::standin().calls("cuMemFree"), 3u) << "what the driver gave goes back";
  }
  auto& left = *static_cast<vmm::fake_driver*>(cuda_test::standin().fake());
  EXPECT_TRUE(left.check_empty()) << left.report();
}

TEST(PlainAllocations, EachRecordMayFail) {
  cuda_test::standin().reset(nullptr);
  {
    auto driver = *vmm::cuda_driver::open(
        {.driver_library = VMM_STANDIN_LIBRARY, .memory = vmm::cuda_memory::plain});
    const vmm::physical_request wanted{.size_bytes = granule, .where = driver.home()};
    const auto range = *driver.reserve({.size_bytes = granule});
    for (const bool forever : {false, true}) {
      EXPECT_EQ(code_without_memory(forever, [&] { return driver.create(wanted); }),
                errc::out_of_host_memory);
    }
    const auto memory = *driver.create(wanted);
    const vmm::map_request whole{range.base, granule, memory, 0};
    for (const bool forever : {false, true}) {
      EXPECT_EQ(code_without_memory(forever, [&] { return driver.map(whole); }),
                errc::out_of_host_memory);
      EXPECT_FALSE(driver.get_access(range.base, driver.home())) << "nothing is mapped";
    }
    EXPECT_TRUE(driver.map(whole));
    EXPECT_TRUE(driver.unmap(range));
    EXPECT_TRUE(driver.release(memory));
    EXPECT_TRUE(driver.free_reservation(range));
  }
  auto& left = *static_cast<vmm::fake_driver*>(cuda_test::standin().fake());
  EXPECT_TRUE(left.check_empty()) << left.report();
}

}  // namespace

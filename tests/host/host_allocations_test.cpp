// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: when operator new fails inside the host driver, the call reports it and changes nothing.
// Method: operator new is replaced by one that fails on request; every allocation of every call
// that makes one fails once, and the resource counts are compared with the one before.
#include "../support/failing_new.h"
#include "facts.hpp"

namespace {

using failing_new::plan, vmm::access, vmm::errc;

// Each step of a small life of a driver, with one allocation failing; true when the step has
// succeeded.
bool step(vmm::host_driver& driver, int number, vmm::address_range& range,
          vmm::physical_handle& memory) {
  const auto failed_cleanly = [](const vmm::error& failure) {
    return failure.code == errc::out_of_host_memory;
  };
  const auto right = [&](const auto& answer) {
    EXPECT_TRUE(answer || failed_cleanly(answer.error())) << vmm::describe(answer.error());
    return answer.has_value();
  };
  const vmm::access_grant grant{vmm::host(), access::read_write};
  switch (number) {
    case 0: {
      const auto reserved = driver.reserve({.size_bytes = 8 * page});
      if (right(reserved)) range = *reserved;
      return reserved.has_value();
    }
    case 1: {
      const auto made = driver.create(
          {.size_bytes = 8 * page, .where = vmm::host(), .shareable = vmm::share_kind::posix_fd});
      if (right(made)) memory = *made;
      return made.has_value();
    }
    case 2: return right(driver.map({range.base, 8 * page, memory, 0}));
    case 3: return right(driver.set_access({range.base + page, 4 * page}, {&grant, 1}));
    case 4: return right(driver.retain(range.base));
    case 5: return right(driver.unmap({range.base + 2 * page, page}));
    default: return right(driver.unmap({range.base + 3 * page, 5 * page}));
  }
}

TEST(HostAllocations, FailingAllocationsChangeNothing) {
  auto driver = open({});
  vmm::address_range range;
  vmm::physical_handle memory{};
  int injected = 0;
  for (int number = 0; number < 7; ++number) {
    for (std::uint64_t nth = 1;; ++nth) {
      ASSERT_LT(nth, 100u);
      const auto before = driver.resource_counts();
      plan = {.armed = true, .fail_at = nth};
      const bool done = step(driver, number, range, memory);
      const bool struck = plan.struck_count != 0;
      plan = {};
      if (done) {
        EXPECT_FALSE(struck) << "a failed allocation went unnoticed in step " << number;
        break;
      }
      ASSERT_TRUE(struck);
      EXPECT_TRUE(before == driver.resource_counts()) << "step " << number << " allocation " << nth;
      ++injected;
    }
  }
  EXPECT_GE(injected, 8) << "every table of the driver was refused its memory once";
  plan = {.armed = true, .fail_at = 1};
  EXPECT_EQ(code_of(vmm::host_driver::open()), errc::out_of_host_memory);
  plan = {};
}

}  // namespace

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: devices are found by their number over several drivers, and a driver by its own; one that
// fails takes no other with it. Method: two simulated drivers, of two GPUs each, under the
// distribution's loader, which then puts itself between them and their handles.
#include <level_zero/ze_api.h>

#include "../support/test.h"
#include "workbench.hpp"

import vmm.backend;
import vmm.fake;
import vmm.level_zero;

namespace {

using vmm::errc, vmm::level_zero_driver;

constexpr std::uint64_t unit = 2ull << 20;

const ze_test::controls& driver(int which) {
  static const ze_test::controls first(VMM_ZE_DRIVER "," VMM_ZE_SECOND_DRIVER, VMM_ZE_DRIVER);
  static const ze_test::controls second(VMM_ZE_DRIVER "," VMM_ZE_SECOND_DRIVER,
                                        VMM_ZE_SECOND_DRIVER);
  return which == 0 ? first : second;
}
vmm::fake_driver& fake(int which) { return *static_cast<vmm::fake_driver*>(driver(which).fake()); }

struct TwoDrivers : testing::Test {
  void SetUp() override {
    for (const int which : {0, 1}) driver(which).reset(nullptr);
    driver(0).clear_complaints();
  }
  void TearDown() override {
    EXPECT_STREQ(driver(0).complaints(), "");
    for (const int which : {0, 1}) {
      EXPECT_STREQ(driver(which).misuse(), "");
      EXPECT_EQ(driver(which).reset(nullptr), 0u) << "driver " << which;
    }
  }
  static vmm::result<level_zero_driver> open(std::int32_t device, std::int32_t of = -1) {
    return level_zero_driver::open(
        {.device = device, .driver = of, .loader_library = VMM_ZE_WITNESS});
  }
};

TEST_F(TwoDrivers, DevicesAreCountedOverBoth) {
  for (const std::int32_t number : {0, 1, 2, 3}) {
    auto opened = open(number);
    ASSERT_TRUE(opened) << vmm::describe(opened.error());
    EXPECT_EQ(opened->description().driver_number, number / 2);
    EXPECT_TRUE(opened->home() == vmm::device(number));
    ASSERT_TRUE(opened->create({.size_bytes = unit, .where = opened->home()}));
    const auto free_bytes = [](int which, std::int32_t device) {
      return fake(which).query_memory(vmm::device(device))->free_bytes;
    };
    EXPECT_LT(free_bytes(number / 2, number % 2), free_bytes(1 - number / 2, number % 2));
    EXPECT_LT(free_bytes(number / 2, number % 2), free_bytes(number / 2, 1 - number % 2));
  }
  EXPECT_EQ(open(4).error().code, errc::unavailable);
}

TEST_F(TwoDrivers, ADriverIsChosenByItsNumber) {
  auto opened = open(1, 1);
  ASSERT_TRUE(opened) << vmm::describe(opened.error());
  EXPECT_EQ(opened->description().driver_number, 1);
  EXPECT_TRUE(opened->home() == vmm::device(1));
  EXPECT_EQ(driver(0).calls("zeDeviceGet"), 0u) << "the other driver is not called";
  ASSERT_TRUE(opened->reserve({.size_bytes = unit}));
  EXPECT_EQ(fake(1).resource_counts().reservations, 1u);
  EXPECT_EQ(fake(0).resource_counts().reservations, 0u);
  EXPECT_EQ(open(2, 1).error().code, errc::unavailable);
  const auto none = open(0, 2);
  EXPECT_EQ(none.error().code, errc::unavailable);
  EXPECT_TRUE(contains(none.error().detail, "the loader has 2 drivers"));
  const auto behind = open(9);
  ASSERT_FALSE(behind);
  EXPECT_TRUE(contains(behind.error().detail, "see 4 GPUs"));
}

TEST_F(TwoDrivers, ADriverThatFailsTakesNoOtherWithIt) {
  driver(1).fail("zeDeviceGet", ZE_RESULT_ERROR_DEVICE_LOST, 1, true);
  EXPECT_TRUE(open(1)) << "the device is found before the driver is called";
  const auto behind = open(2);
  ASSERT_FALSE(behind);
  EXPECT_STREQ(behind.error().native_name, "ZE_RESULT_ERROR_DEVICE_LOST");
  driver(1).clear_failures();
  driver(0).fail("zeDeviceGet", ZE_RESULT_ERROR_DEVICE_LOST, 1, true);
  EXPECT_FALSE(open(2)) << "no number is certain behind a driver that does not count";
  EXPECT_TRUE(open(0, 1)) << "but a driver that is named is";
}

TEST_F(TwoDrivers, ObjectsOfBothWorkAtOnce) {
  auto first = open(0);
  auto second = open(2);
  ASSERT_TRUE(first && second);
  for (level_zero_driver* const each : {&*first, &*second}) {
    const auto range = each->reserve({.size_bytes = unit});
    const auto memory = each->create({.size_bytes = unit, .where = each->home()});
    ASSERT_TRUE(range && memory);
    ASSERT_TRUE(each->map({range->base, unit, *memory, 0}));
    const vmm::access_grant all[] = {{each->home(), vmm::access::read_write}};
    ASSERT_TRUE(each->set_access(*range, all));
    ASSERT_TRUE(each->fill({*range, 3, vmm::stream_handle::default_stream}));
    ASSERT_TRUE(each->synchronize_stream(vmm::stream_handle::default_stream));
  }
  {
    const level_zero_driver gone = std::move(*first);
  }
  EXPECT_EQ(fake(0).resource_counts().mappings, 0u);
  EXPECT_EQ(fake(1).resource_counts().mappings, 1u);
}

}  // namespace

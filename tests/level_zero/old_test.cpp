// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: an old loader and an old driver are named for what they lack. Method: a loader that has no
// call for virtual memory; the distribution's loader over a driver that fills in none.
#include "../support/test.h"

import vmm.backend;
import vmm.level_zero;

namespace {

TEST(OldLevelZero, ALoaderThatLacksACallNamesIt) {
  const auto opened = vmm::level_zero_driver::open({.loader_library = VMM_ZE_OLD_LOADER});
  EXPECT_EQ(opened.error().code, vmm::errc::unavailable);
  EXPECT_STREQ(opened.error().native_name, "zeVirtualMemQueryPageSize");
  const std::string text = vmm::describe(opened.error());
  EXPECT_TRUE(contains(text, "lacks the call"));
  EXPECT_TRUE(contains(text, VMM_ZE_OLD_LOADER));
}

TEST(OldLevelZero, ADriverWithoutVirtualMemoryIsNamedForThat) {
  ::setenv("ZE_ENABLE_ALT_DRIVERS", VMM_ZE_DRIVER, 1);
  ::setenv("VMM_ZE_WITHOUT_VIRTUAL_MEMORY", "1", 1);
  const auto opened = vmm::level_zero_driver::open();
  EXPECT_EQ(opened.error().code, vmm::errc::not_supported);
  const std::string text = vmm::describe(opened.error());
  EXPECT_TRUE(contains(text, "no virtual memory management"));
}

}  // namespace

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: growable ranges over the CUDA backend make the driver calls that they are said to cost.
// Method: the stub driver, whose simulated device detects every misuse; calls are counted by its
// own names.
#include "../cuda/workbench.hpp"
#include "../support/test.h"

import vmm.backend;
import vmm.cuda;
import vmm.manager;

namespace {

using cuda_test::standin;

struct OnStandIn : testing::Test {
  OnStandIn() { standin().reset(nullptr); }
};

TEST_F(OnStandIn, TwoRangesTakeOneAnothersMemory) {
  auto opened = vmm::cuda_driver::open({.driver_library = VMM_STANDIN_LIBRARY});
  ASSERT_TRUE(opened) << vmm::describe(opened.error());
  vmm::cuda_driver& driver = *opened;
  {
    vmm::manager memory(driver);
    vmm::growable_range first(memory, {.segment_bytes_max = 256 * MiB, .segment_count = 4});
    vmm::growable_range second(memory, {.segment_bytes_max = 256 * MiB, .segment_count = 2});
    ASSERT_TRUE(first.grow(8 * MiB));
    const vmm::address base = *first.segment(3);
    const std::array<std::byte, 4> written{std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}};
    ASSERT_TRUE(driver.write(base + 2 * MiB, written));
    ASSERT_TRUE(first.shrink(4 * MiB));
    const auto made = standin().calls("cuMemCreate");
    ASSERT_TRUE(second.grow(8 * MiB));
    EXPECT_EQ(standin().calls("cuMemCreate"), made) << "all of it came from the first range";
    EXPECT_EQ(standin().calls("cuMemRelease"), 0u);
    ASSERT_TRUE(first.grow(6 * MiB));
    std::array<std::byte, 4> seen{};
    ASSERT_TRUE(first.synchronize());
    ASSERT_TRUE(driver.read(seen, base + 2 * MiB));
    EXPECT_EQ(seen, written);
    ASSERT_TRUE(driver.read(seen, base + 5 * MiB));
    EXPECT_EQ(seen, (std::array<std::byte, 4>{}));
    EXPECT_TRUE(memory.validate());
  }
  EXPECT_EQ(standin().calls("cuMemCreate"), standin().calls("cuMemRelease"));
}

TEST_F(OnStandIn, WhatTheDriverRefusesChangesNothing) {
  auto opened = vmm::cuda_driver::open({.driver_library = VMM_STANDIN_LIBRARY});
  ASSERT_TRUE(opened) << vmm::describe(opened.error());
  {
    vmm::manager memory(*opened);
    vmm::growable_range range(memory, {.segment_bytes_max = 256 * MiB, .segment_count = 3});
    ASSERT_TRUE(range.grow(4 * MiB));
    for (const char* const symbol : {"cuMemMap", "cuMemSetAccess"}) {
      standin().fail(symbol, 999, 2, false);  // the second segment's
      const vmm::status refused = range.grow(8 * MiB);
      standin().clear_failures();
      ASSERT_FALSE(refused) << symbol;
      EXPECT_EQ(refused.error().native, 999) << symbol;
      EXPECT_EQ(range.statistics().size_bytes, 12 * MiB) << symbol;
      EXPECT_TRUE(range.validate());
      EXPECT_TRUE(range.grow(8 * MiB)) << symbol;
      EXPECT_TRUE(range.shrink(4 * MiB));
    }
  }
}

}  // namespace

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// A driver object over the simulated driver, which has nothing left and no complaint when it goes.
// It imports what it uses, so it is the last include except others with imports.
#pragma once

#include "../support/test.h"
#include "workbench.hpp"

import vmm.backend;
import vmm.fake;
import vmm.level_zero;

namespace ze_test {

constexpr std::uint64_t unit = 2ull << 20;

inline vmm::fake_driver& fake() { return *static_cast<vmm::fake_driver*>(simulated().fake()); }

struct OpenedDriver : testing::Test {
  void SetUp() override { start(nullptr); }
  void TearDown() override {
    driver_.reset();
    EXPECT_STREQ(simulated().complaints(), "");
    EXPECT_STREQ(simulated().misuse(), "");
    EXPECT_EQ(simulated().reset(nullptr), 0u) << "the driver object left something";
  }

  void start(const vmm_ze_setup* setup) {
    driver_.reset();
    simulated().reset(setup);
    simulated().clear_complaints();
  }
  static vmm::result<vmm::level_zero_driver> opened(std::int32_t device = 0,
                                                    std::int32_t of_driver = -1) {
    return vmm::level_zero_driver::open(
        {.device = device, .driver = of_driver, .loader_library = VMM_ZE_WITNESS});
  }
  void open() {
    auto made = opened();
    ASSERT_TRUE(made) << vmm::describe(made.error());
    driver_.emplace(std::move(*made));
  }
  vmm::level_zero_driver& driver() {
    if (!driver_) open();
    return *driver_;
  }

  vmm::physical_handle create(std::uint64_t size_bytes = unit) {
    const auto made = driver().create({.size_bytes = size_bytes, .where = driver().home()});
    EXPECT_TRUE(made) << vmm::describe(made.error());
    return *made;
  }
  vmm::status allow(vmm::address_range range, vmm::access rights) {
    const vmm::access_grant all[] = {{driver().home(), rights}};
    return driver().set_access(range, all);
  }
  // A reservation of `count` mapped units, without rights.
  vmm::address_range mapped(std::uint64_t count) {
    const auto range = driver().reserve({.size_bytes = count * unit});
    EXPECT_TRUE(range);
    for (std::uint64_t i = 0; i < count; ++i)
      EXPECT_TRUE(driver().map({range->base + i * unit, unit, create(), 0}));
    return *range;
  }
  // With the right to read and write.
  vmm::address_range usable(std::uint64_t count) {
    const vmm::address_range range = mapped(count);
    EXPECT_TRUE(allow(range, vmm::access::read_write));
    return range;
  }
  std::optional<vmm::level_zero_driver> driver_;
};

}  // namespace ze_test

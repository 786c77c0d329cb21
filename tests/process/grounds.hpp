// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Every driver that runs here, each with what a test compares before and after a fork. It imports
// what it uses, so it is the last include except others with imports.
#pragma once

#ifdef VMM_STANDIN_LIBRARY
#include "../support/test.h"
#include "workbench.hpp"
#endif

import vmm.backend;
import vmm.cuda;
import vmm.fake;
import vmm.host;

namespace process_test {

struct fake_ground {
  using driver = vmm::fake_driver;
  using counts = vmm::fake::resource_counts;
  static void reset() {}
  static std::unique_ptr<driver> open() { return std::make_unique<driver>(); }
  static counts count(driver& of) { return of.resource_counts(); }
};

struct host_ground {
  using driver = vmm::host_driver;
  using counts = vmm::host_resource_counts;
  static void reset() {}
  static std::unique_ptr<driver> open() {
    auto made = driver::open({.capacity_bytes = std::uint64_t{256} << 20});
    return std::make_unique<driver>(std::move(made).value());
  }
  static counts count(driver& of) { return of.resource_counts(); }
};

#ifdef VMM_STANDIN_LIBRARY
struct standin_ground {
  using driver = vmm::cuda_driver;
  using counts = vmm::fake::resource_counts;
  static constexpr vmm::cuda_memory memory = vmm::cuda_memory::mapped;
  static void reset() { cuda_test::standin().reset(nullptr); }
  static std::unique_ptr<driver> open(vmm::cuda_memory kind = memory) {
    auto made = driver::open({.driver_library = VMM_STANDIN_LIBRARY, .memory = kind});
    EXPECT_TRUE(made) << vmm::describe(made.error());
    return std::make_unique<driver>(std::move(made).value());
  }
  static counts count(driver&) {
    return static_cast<vmm::fake_driver*>(cuda_test::standin().fake())->resource_counts();
  }
};
struct plain_ground : standin_ground {
  static std::unique_ptr<driver> open() { return standin_ground::open(vmm::cuda_memory::plain); }
};
using grounds = testing::Types<fake_ground, host_ground, standin_ground, plain_ground>;
using mapped_grounds = testing::Types<fake_ground, host_ground, standin_ground>;
#else
using grounds = testing::Types<fake_ground, host_ground>;
using mapped_grounds = grounds;
#endif

template <class Counts>
[[nodiscard]] bool is_same(const Counts& one, const Counts& other) {
  return std::memcmp(&one, &other, sizeof one) == 0;
}

}  // namespace process_test

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal and method: those of conformance.h, for the Level Zero backend on the distribution's loader
// with its validation layer, over a driver that sees few of its caller's mistakes. The backend sees
// them all. What the loader or a layer complains of fails the test.
#include "../conformance/conformance.h"
#include "workbench.hpp"

import vmm.fake;
import vmm.level_zero;

namespace conformance {
namespace {

struct level_zero_on_the_loader {
  using driver = vmm::level_zero_driver;
  static constexpr bool memory_is_ours_alone = true;

  static opened<driver> make() {
    EXPECT_EQ(ze_test::simulated().reset(nullptr), 0u) << "left by the test before";
    ze_test::simulated().clear_complaints();
    auto made = driver::open({.loader_library = VMM_ZE_WITNESS});
    if (!made) {
      [&] { FAIL() << vmm::describe(made.error()); }();
      return {std::nullopt, "the driver does not open"};
    }
    return {std::move(*made), {}};
  }
  static conformance::unseen unseen() { return {}; }
  // The backend keeps two lists and its events as long as it lives: reset() counts those.
  static bool nothing_left(driver&) {
    auto& fake = *static_cast<vmm::fake_driver*>(ze_test::simulated().fake());
    EXPECT_STREQ(ze_test::simulated().complaints(), "");
    EXPECT_STREQ(ze_test::simulated().misuse(), "");
    EXPECT_EQ(fake.misuse_count(), 0u) << fake.report();
    EXPECT_GT(ze_test::simulated().witnessed(), 0u);
    if (!fake.finish_all()) return false;
    vmm::fake::resource_counts counts = fake.resource_counts();
    counts.streams = 0;
    counts.events = 0;
    return counts.empty();
  }
  static void close(driver&, const vmm::shared_handle&) {}
};

VMM_CONFORMANCE(level_zero_on_the_loader);

}  // namespace
}  // namespace conformance

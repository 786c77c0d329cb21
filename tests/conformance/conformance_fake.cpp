// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal and method: those of conformance.h, for the fake driver in each of its profiles.
#include "conformance.h"
//
#include "../support/fake_device.hpp"

namespace conformance {
namespace {

struct fake_factory {
  using driver = vmm::fake_driver;
  static constexpr bool memory_is_ours_alone = true;

  static bool nothing_left(driver& made) {
    return made.finish_all() && made.check_empty() && made.resource_counts().empty();
  }
  static void close(driver& made, const vmm::shared_handle& shared) {
    EXPECT_TRUE(made.close_descriptor(shared));
  }
};

struct fake_cuda : fake_factory {
  static opened<driver> make() { return {driver{with_devices(3)}, {}}; }
  static conformance::unseen unseen() { return {}; }
};

// What it does not see are its traps.
struct fake_level_zero : fake_factory {
  static opened<driver> make() { return {driver{vmm::fake::profile::level_zero()}, {}}; }
  static conformance::unseen unseen() {
    return {.overlap = true,
            .cut_unmap = true,
            .free_while_mapped = true,
            .release_while_mapped = true,
            .rights_of_neighbours = true};
  }
};

struct fake_host : fake_factory {
  static opened<driver> make() { return {driver{vmm::fake::profile::host()}, {}}; }
  static conformance::unseen unseen() {
    return {
        .overlap = true, .access_over_hole = true, .past_the_end = true, .free_while_mapped = true};
  }
};

VMM_CONFORMANCE(fake_cuda);
VMM_CONFORMANCE(fake_level_zero);
VMM_CONFORMANCE(fake_host);

}  // namespace
}  // namespace conformance

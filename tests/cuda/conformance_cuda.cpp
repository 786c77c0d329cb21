// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal and method: those of conformance.h, for the CUDA backend on the machine's first device, in
// plain memory where VMM_CUDA_MEMORY says so.
#include <unistd.h>

#include "../conformance/conformance.h"

import vmm.cuda;

namespace conformance {
namespace {

struct cuda_device {
  using driver = vmm::cuda_driver;
  static constexpr bool memory_is_ours_alone = true;

  static opened<driver> make() {
    static const auto keeper = driver::open();  // the device's context outlives each test
    auto made = driver::open();
    if (!made) return {std::nullopt, vmm::describe(made.error())};
    return {std::move(*made), {}};
  }
  // As vmm-fidelity found it: a hole between two mappings and the end of a reservation are
  // overlooked, and a handle that was released crashes the process.
  static conformance::unseen unseen() {
    const auto made = driver::open();
    if (made && made->feature_set().contents_stay) return {.bad_bytes = true};
    return {.access_over_hole = true, .past_reservation = true, .stale_handle = true};
  }
  // The driver keeps its own books; the leak check of vmm-fidelity reads them.
  static bool nothing_left(driver&) { return true; }
  static void close(driver&, const vmm::shared_handle& shared) {
    EXPECT_EQ(::close(static_cast<int>(shared.descriptor)), 0);
  }
};

VMM_CONFORMANCE(cuda_device);

}  // namespace
}  // namespace conformance

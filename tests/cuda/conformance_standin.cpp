// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal and method: those of conformance.h, for the CUDA backend on the stub libcuda, with memory
// that is mapped and with plain memory.
#include "../conformance/conformance.h"
#include "workbench.hpp"

import vmm.cuda;
import vmm.fake;

namespace conformance {
namespace {

struct cuda_on_the_standin {
  using driver = vmm::cuda_driver;
  static constexpr bool memory_is_ours_alone = true;

  static opened<driver> make(vmm::cuda_memory memory = vmm::cuda_memory::mapped) {
    cuda_test::standin().reset(nullptr);
    auto made = driver::open({.driver_library = VMM_STANDIN_LIBRARY, .memory = memory});
    if (!made) return {std::nullopt, vmm::describe(made.error())};
    return {std::move(*made), {}};
  }
  static conformance::unseen unseen() { return {}; }
  // The backend keeps one stream for read and write as long as it lives.
  static bool nothing_left(driver&) {
    auto& fake = *static_cast<vmm::fake_driver*>(cuda_test::standin().fake());
    if (!fake.finish_all()) return false;
    vmm::fake::resource_counts counts = fake.resource_counts();
    EXPECT_EQ(counts.streams, 1u);
    counts.streams = 0;
    return counts.empty();
  }
  static void close(driver&, const vmm::shared_handle& shared) {
    EXPECT_EQ(::close(static_cast<int>(shared.descriptor)), 0);
  }
};

struct plain_memory : cuda_on_the_standin {
  static opened<driver> make() { return cuda_on_the_standin::make(vmm::cuda_memory::plain); }
  // Whatever is reserved can be read and written.
  static conformance::unseen unseen() { return {.bad_bytes = true}; }
};

VMM_CONFORMANCE(cuda_on_the_standin);
VMM_CONFORMANCE(plain_memory);

}  // namespace
}  // namespace conformance

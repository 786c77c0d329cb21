// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal and method: those of conformance.h, for the CUDA backend on the machine's first device, in
// plain memory where VMM_CUDA_MEMORY says so.
#include "../conformance/conformance.h"

import vmm.cuda;

namespace conformance {
namespace {

struct cuda_device {
  using driver = vmm::cuda_driver;
  static constexpr bool memory_is_ours_alone = true;

  static opened<driver> make() {
    static const auto context_owner = driver::open();  // the device's context outlives each test
    auto made = driver::open();
    if (!made) return {std::nullopt, vmm::describe(made.error())};
    descriptors_before = open_descriptors();
    if (free_bytes_at_first == 0) free_bytes_at_first = free_bytes(*made);
    return {std::move(*made), {}};
  }
  // As vmm-fidelity found it: a hole between two mappings and the end of a reservation are
  // overlooked, and a handle that was released crashes the process.
  static conformance::unseen unseen() {
    const auto made = driver::open();
    if (made && made->feature_set().contents_stay) return {.bad_bytes = true};
    return {.access_over_hole = true, .past_reservation = true, .stale_handle = true};
  }
  // Descriptors are counted. Memory is compared with that of the first test, less what the driver
  // itself takes on the way, for kernels that fill and for queues: what each test leaves adds up.
  static bool nothing_left(driver& made) {
    constexpr std::uint64_t own_bytes = std::uint64_t{64} << 20;
    EXPECT_EQ(open_descriptors(), descriptors_before);
    const std::uint64_t now = free_bytes(made);
    EXPECT_GE(now + own_bytes, free_bytes_at_first);
    return now + own_bytes >= free_bytes_at_first;
  }
  static std::uint64_t free_bytes(driver& made) {
    const auto info = made.query_memory(made.home());
    EXPECT_TRUE(info);
    return info ? info->free_bytes : 0;
  }
  static long open_descriptors() {
    const auto all = std::filesystem::directory_iterator("/proc/self/fd");
    return std::distance(begin(all), end(all));
  }
  static inline long descriptors_before = 0;
  static inline std::uint64_t free_bytes_at_first = 0;
  static void close(driver&, const vmm::shared_handle& shared) {
    EXPECT_EQ(::close(static_cast<int>(shared.descriptor)), 0);
  }
};

VMM_CONFORMANCE(cuda_device);

}  // namespace
}  // namespace conformance

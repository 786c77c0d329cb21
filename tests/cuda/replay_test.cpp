// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a replay on a CUDA device measures the device's own peak in one more pass, and omits that
// pass on request.
// Method: one trace on the stub driver both ways, with the driver's calls counted.
#include "../support/test.h"
#include "workbench.hpp"

import vmm.replay;
import vmm.trace;

namespace {

using cuda_test::standin;

constexpr std::string_view small = "a 1 4194304 0\na 2 8388608 0\nf 1\nf 2\n";

vmm::tools::run_outcome run(bool asks_device) {
  standin().reset(nullptr);
  ::setenv("VMM_CUDA_LIBRARY", VMM_STANDIN_LIBRARY, 1);
  const auto input = vmm::tools::parse_trace("small.trace", std::as_bytes(std::span{small}));
  EXPECT_TRUE(input);
  return vmm::tools::run_replay(*input.value,
                                {.backend = "cuda", .policy = "pool", .asks_device = asks_device});
}

TEST(CudaReplay, ThePassThatAsksTheDeviceCanBeLeftOut) {
  const vmm::tools::run_outcome with = run(true);
  const auto created_with = standin().calls("cuMemCreate");
  ASSERT_TRUE(with.report) << with.problem;
  EXPECT_EQ(with.report->device_peak_bytes, with.report->peak_reserved_bytes);

  const vmm::tools::run_outcome without = run(false);
  ASSERT_TRUE(without.report) << without.problem;
  EXPECT_FALSE(without.report->device_peak_bytes);
  EXPECT_EQ(standin().calls("cuMemCreate") * 2, created_with);
  EXPECT_EQ(without.report->driver_calls, with.report->driver_calls);
}

}  // namespace

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: suspension on real memory of the host: bytes come back, the process's memory goes down, and
// verify finds what does not come back. Method: a pool and a manager on the host driver.
#include "../support/test.h"

import vmm.backend;
import vmm.host;
import vmm.manager;
import vmm.stream;
import vmm.suspend;

namespace {

std::uint8_t* bytes_at(vmm::address at) {
  return reinterpret_cast<std::uint8_t*>(at.value);  // NOLINT(performance-no-int-to-ptr)
}

TEST(SuspendHost, BytesComeBack) {
  auto driver = *vmm::host_driver::open({});
  vmm::stream_pool pool(driver);
  vmm::manager blocks(driver);
  for (const vmm::backup_tier tier :
       {vmm::backup_tier::best, vmm::backup_tier::pageable, vmm::backup_tier::file}) {
    vmm::suspender sleeper({.tier = tier, .directory = testing::TempDir(), .verify = true});
    ASSERT_TRUE(sleeper.add(pool, {"pool"}));
    ASSERT_TRUE(sleeper.add(blocks, {"blocks", vmm::suspend_contents::zero}));
    const auto kept = pool.allocate(5 * MiB, vmm::stream_handle::default_stream);
    const auto zero = blocks.allocate(3 * MiB);
    ASSERT_TRUE(kept && zero);
    for (std::uint64_t i = 0; i < 5 * MiB; ++i)
      bytes_at(*kept)[i] = static_cast<std::uint8_t>(i % 251);
    std::memset(bytes_at(*zero), 9, 3 * MiB);
    const auto report = sleeper.suspend();
    ASSERT_TRUE(report) << vmm::describe(report.error());
    EXPECT_GE(report->suspended_bytes, 8 * MiB);
    const vmm::status back = sleeper.resume();
    ASSERT_TRUE(back) << vmm::describe(back.error());
    for (std::uint64_t i = 0; i < 5 * MiB; ++i) ASSERT_EQ(bytes_at(*kept)[i], i % 251) << i;
    for (std::uint64_t i = 0; i < 3 * MiB; ++i) ASSERT_EQ(bytes_at(*zero)[i], 0) << i;
    EXPECT_TRUE(pool.free(*kept, vmm::stream_handle::default_stream));
    EXPECT_TRUE(blocks.free(*zero));
  }
}

TEST(SuspendHost, PinnedMemoryNeedsStreams) {
  auto driver = *vmm::host_driver::open({});
  vmm::manager blocks(driver);
  vmm::suspender sleeper({.tier = vmm::backup_tier::pinned});
  ASSERT_TRUE(sleeper.add(blocks, {"blocks"}));
  ASSERT_TRUE(blocks.allocate(MiB));
  EXPECT_EQ(sleeper.suspend().error().code, vmm::errc::not_supported);
}

}  // namespace

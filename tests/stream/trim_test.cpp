// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: memory is given back beside allocations, not before them. Method: an observer stops the
// driver's release until another thread has been served; a pool that held its locks over the
// release would keep that thread waiting.
#include <chrono>
#include <future>

#include "../support/test.h"

import vmm.fake;
import vmm.stream;

namespace {

using vmm::address, vmm::call;

constexpr auto patience = std::chrono::seconds(20);  // reached by a failing test alone

struct release_watch {
  std::function<void()> first_release{};
  std::vector<call> seen{};

  [[nodiscard]] vmm::status before(const vmm::call_record& record) {
    if (record.kind == call::release || record.kind == call::unmap) seen.push_back(record.kind);
    if (record.kind == call::release && first_release) std::exchange(first_release, nullptr)();
    return {};
  }
  void after(const vmm::call_record&) {}
};

using driver_type = vmm::observed_backend<vmm::fake_driver, release_watch>;

struct Trim : testing::Test {
  // Free memory, and one block that stays.
  void free_much(std::uint64_t size_bytes) {
    vmm::pool_options options;
    options.budget_bytes = 65536 * MiB;  // far away: handles get smaller near it
    managed = std::make_unique<vmm::stream_pool>(driver, options);
    const auto large = managed->allocate(size_bytes, stream);
    const auto small = managed->allocate(4096, stream);
    ASSERT_TRUE(large && small);
    kept = *small;
    ASSERT_TRUE(managed->free(*large, stream));
    watch->seen.clear();
  }
  void TearDown() override {
    if (kept) EXPECT_TRUE(managed->free(kept, stream));
    EXPECT_TRUE(managed->validate());
    managed.reset();
    EXPECT_TRUE(driver.driver().check_empty()) << driver.driver().report();
  }

  std::shared_ptr<release_watch> watch = std::make_shared<release_watch>();
  driver_type driver{vmm::fake_driver{}, watch};
  vmm::stream_handle stream = vmm::stream_handle::default_stream;
  std::unique_ptr<vmm::stream_pool> managed;
  address kept{};
};

TEST_F(Trim, OthersGrowWhileMemoryIsReleased) {
  free_much(1024 * MiB);
  std::future<vmm::result<address>> grown;
  bool is_served = false;
  watch->first_release = [&] {
    // More than the free memory: it takes the driver and the growth lock.
    grown = std::async(std::launch::async, [&] { return managed->allocate(2048 * MiB, stream); });
    is_served = grown.wait_for(patience) == std::future_status::ready;
  };
  const vmm::trim_report report = managed->trim(0);
  EXPECT_TRUE(is_served) << "a growing thread waits for a release";
  EXPECT_EQ(report.failure.code, vmm::errc::none);
  const vmm::result<address> at = grown.get();
  ASSERT_TRUE(at) << vmm::describe(at.error());
  EXPECT_TRUE(managed->free(*at, stream));
}

TEST_F(Trim, GivesBackInSteps) {
  free_much(1024 * MiB);
  EXPECT_GE(managed->trim(0).released_bytes, 1024 * MiB);
  // What was unmapped first is released before the last is unmapped.
  const auto first_release = std::ranges::find(watch->seen, call::release);
  EXPECT_NE(std::find(first_release, watch->seen.end(), call::unmap), watch->seen.end());
}

}  // namespace

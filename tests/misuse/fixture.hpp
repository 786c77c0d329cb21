// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// A pool and a manager on the fake driver, each with what a misuse needs: streams, blocks, and the
// promise that after a refused call everything is as before. It imports what it uses, so it is the
// last include of a file.
#pragma once

#include "../stream/fake_pool.hpp"
#include "../support/child.hpp"

import vmm.manager;
import vmm.suspend;

namespace misuse {

/// That of the per-thread default stream, and numbers that are not a pointer's.
inline constexpr std::uint64_t no_streams[] = {2, std::uint64_t{1} << 63, ~std::uint64_t{0}};

/// What a failed check writes, as a pattern of a death test.
inline std::string check_failed(const std::string& text) { return "vmm: check failed: " + text; }

/// Two threads free at once: one is taken, the other refused with one of these codes.
template <class Free>
void free_by_two_threads(Free&& free, std::initializer_list<vmm::errc> refusals) {
  std::array<std::atomic<int>, 2> counts{};  // taken, refused
  const auto one = [&] {
    const vmm::errc code = code_of(free());
    if (code == vmm::errc::none) ++counts[0];
    if (std::ranges::find(refusals, code) != refusals.end()) ++counts[1];
  };
  std::thread other(one);
  one();
  other.join();
  ASSERT_EQ(counts[0].load(), 1);
  ASSERT_EQ(counts[1].load(), 1);
}

struct PoolMisuse : FakePool {
  PoolMisuse() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  std::unique_ptr<vmm::stream_pool>& pool = managed;
};

struct ManagerMisuse : FakeDevice {
  ManagerMisuse() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  void SetUp() override {
    FakeDevice::SetUp();
    manager = std::make_unique<vmm::manager>(driver);
  }
  void TearDown() override {
    if (manager != nullptr) EXPECT_TRUE(manager->validate());
    manager.reset();
    FakeDevice::TearDown();
  }
  [[nodiscard]] vmm::address allocate(std::uint64_t size_bytes) {
    const auto at = manager->allocate({.size_bytes = size_bytes, .stream = a});
    EXPECT_TRUE(at) << (at ? "" : vmm::describe(at.error()));
    return at.value_or(vmm::address{});
  }
  std::unique_ptr<vmm::manager> manager;
};

}  // namespace misuse

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// What every test of the fake driver stands on: a driver, short words for its calls, and
// resource counts that must be zero at the end. Included last, because it imports.
#pragma once

#include "../support/fake_device.hpp"

import vmm.base;

namespace fake_test {

inline constexpr std::uint64_t tib = 1024 * GiB;

/// The native number of a call's result; 0 for success.
template <class T>
std::int64_t code(const vmm::result<T>& answer) {
  return answer ? 0 : answer.error().native;
}

inline constexpr std::int64_t success = 0;
inline constexpr std::int64_t invalid_value = 1;
inline constexpr std::int64_t out_of_memory = 2;
inline constexpr std::int64_t not_permitted = 800;
inline constexpr std::int64_t not_supported = 801;

/// A driver, and what a test made with it; teardown releases the latter and requires
/// resource counts of zero.
struct workbench {
  explicit workbench(const vmm::fake::profile& plays = vmm::fake::profile::cuda())
      : driver(plays) {}

  vmm::address_range reserved(std::uint64_t size_bytes) {
    const auto range = driver.reserve({size_bytes, 0, {}});
    EXPECT_TRUE(range) << "reserve failed";
    ranges.push_back(*range);
    return *range;
  }
  vmm::physical_handle created(std::uint64_t size_bytes) {
    const auto handle = driver.create({size_bytes, driver.home()});
    EXPECT_TRUE(handle) << "create failed";
    handles.push_back(*handle);
    return *handle;
  }
  /// A whole handle at an address, with access for home.
  void mapped(vmm::address at, vmm::physical_handle handle, std::uint64_t size_bytes) {
    ASSERT_EQ(code(driver.map({at, size_bytes, handle, 0})), success);
    ASSERT_EQ(code(open({at, size_bytes})), success);
  }
  vmm::status open(vmm::address_range range, vmm::access rights = vmm::access::read_write) {
    const vmm::access_grant grant{driver.home(), rights};
    return driver.set_access(range, {&grant, 1});
  }
  void clear() {
    driver.clear_faults();
    for (const auto range : ranges) EXPECT_EQ(code(driver.unmap(range)), success);
    for (const auto range : ranges) EXPECT_EQ(code(driver.free_reservation(range)), success);
    for (const auto handle : handles) EXPECT_EQ(code(driver.release(handle)), success);
    ranges.clear();
    handles.clear();
    EXPECT_TRUE(driver.check_empty()) << driver.report();
  }

  vmm::fake_driver driver;
  std::vector<vmm::address_range> ranges;
  std::vector<vmm::physical_handle> handles;
};

struct Fake : ::testing::Test, workbench {
  void TearDown() override { clear(); }
};

/// With two streams and an event, and a range whose first bytes are mapped.
struct FakeWork : Fake {
  explicit FakeWork(std::uint64_t range_bytes, std::uint64_t mapped_bytes)
      : range(reserved(range_bytes)), memory(created(mapped_bytes)) {
    mapped(range.base, memory, mapped_bytes);
  }
  void TearDown() override {
    ASSERT_TRUE(driver.finish_all());
    EXPECT_TRUE(driver.destroy_event(event));
    EXPECT_TRUE(driver.destroy_stream(first));
    EXPECT_TRUE(driver.destroy_stream(second));
    Fake::TearDown();
  }

  vmm::stream_handle first = *driver.create_stream();
  vmm::stream_handle second = *driver.create_stream();
  vmm::event_handle event = *driver.create_event();
  vmm::address_range range;
  vmm::physical_handle memory;
};

}  // namespace fake_test

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a manager's calls leave a capture on another stream whole, in the default mode, which
// includes the calls of all threads. Method: each call beside a capture on the fake driver, which
// ends a capture that a call disturbs.
#include "../relief/fixture.hpp"
#include "../support/scenarios.h"

namespace {

using sweeps::status_of, vmm::address, vmm::stream_handle;

struct ManagerCapture : relief::OneDevice {
  void SetUp() override {
    captured = *driver.create_stream();
    used = *driver.create_stream();
  }
  void TearDown() override {
    EXPECT_TRUE(driver.destroy_stream(captured));
    EXPECT_TRUE(driver.destroy_stream(used));
  }
  // Beside a capture.
  template <class Call>
  void expect_whole(const char* what, Call&& call) {
    ASSERT_TRUE(driver.begin_capture(captured, vmm::capture_mode::any_thread));
    const vmm::status done = call();
    EXPECT_EQ(driver.query_capture(captured)->state, vmm::capture_state::active) << what;
    const auto graph = driver.end_capture(captured);
    EXPECT_TRUE(graph) << what;
    if (graph) EXPECT_TRUE(driver.destroy_graph(*graph));
    EXPECT_TRUE(done) << what << ": " << (done ? "" : vmm::describe(done.error()));
    EXPECT_TRUE(driver.finish_all());
  }
  // A block with unfinished work.
  address use(vmm::manager& of, std::uint64_t size_bytes) {
    const auto at = of.allocate({.size_bytes = size_bytes, .stream = used});
    EXPECT_TRUE(at);
    const vmm::address_range what{*at, size_bytes};
    EXPECT_TRUE(driver.launch(used, {.duration_us = 1e6, .writes = {&what, 1}}));
    return *at;
  }

  stream_handle captured{}, used{};
};

TEST_F(ManagerCapture, OnAnotherStreamStaysWhole) {
  vmm::manager blocks(driver);
  address at = use(blocks, 8 * MiB);
  ASSERT_TRUE(blocks.free(at, used));
  expect_whole("trim", [&] { return status_of(blocks.trim(0)); });
  at = use(blocks, 8 * MiB);
  ASSERT_TRUE(blocks.free(at, used));
  expect_whole("allocate", [&] {
    const auto made = blocks.allocate({.size_bytes = 8 * MiB, .stream = used});
    at = made.value_or(address{});
    return status_of(made);
  });
  expect_whole("free", [&] { return blocks.free(at, used); });
  at = use(blocks, 8 * MiB);
  ASSERT_TRUE(driver.finish_all());
  expect_whole("free_idle", [&] { return blocks.free_idle(at); });
  at = use(blocks, 8 * MiB);
  expect_whole("wait", [&] { return blocks.synchronize(at); });
  expect_whole("resize", [&] {
    const auto now = blocks.resize({.at = at, .size_bytes = 16 * MiB, .names_stream = true});
    at = now.value_or(at);
    return status_of(now);
  });
  ASSERT_TRUE(blocks.free(at, used));
  vmm::growable_range range(blocks, {.segment_bytes_max = 64 * MiB});
  ASSERT_TRUE(range.grow(8 * MiB, used));
  expect_whole("grow", [&] { return range.grow(16 * MiB, used); });
  expect_whole("shrink", [&] { return range.shrink(2 * MiB, used); });
}

}  // namespace

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// A pool and a manager on the fake driver, as two regions of one suspender. After every test the
// validators pass, the driver's resource counts are zero, and it has seen no misuse. It imports
// what it uses, so it is the last include of a file.
#pragma once

#include "../support/fake_device.hpp"

import vmm.manager;
import vmm.stream;
import vmm.suspend;

struct Regions : FakeDevice {
  using contents = vmm::suspend_contents;

  using FakeDevice::FakeDevice;
  void SetUp() override {
    FakeDevice::SetUp();
    open();
  }
  void open(contents of_pool = contents::keep, contents of_blocks = contents::keep,
            const vmm::suspend_options& options = {}) {
    close();
    pool = std::make_unique<vmm::stream_pool>(driver, pool_options);
    blocks = std::make_unique<vmm::manager>(driver, manager_options);
    sleeper = std::make_unique<vmm::suspender>(options);
    fine(sleeper->add(*pool, {"kv", of_pool}));
    fine(sleeper->add(*blocks, {"weights", of_blocks}));
  }
  void close() {
    if (pool != nullptr) validate();
    sleeper.reset();
    pool.reset();
    blocks.reset();
  }
  // Another suspender, which has nothing of the first one's.
  void change_suspender() {
    sleeper = std::make_unique<vmm::suspender>();
    fine(sleeper->add(*pool, {"kv"}));
    fine(sleeper->add(*blocks, {"weights"}));
  }
  void validate() {
    fine(pool->validate());
    fine(blocks->validate());
  }
  void TearDown() override {
    EXPECT_TRUE(driver.finish_all());
    close();
    FakeDevice::TearDown();
  }

  template <class Answer>
  static void refused(const Answer& answer, vmm::errc code) {
    EXPECT_EQ(answer.error().code, code) << vmm::describe(answer.error());
    EXPECT_NE(std::string(answer.error().detail), "");
  }
  vmm::address in_pool(std::uint64_t size_bytes) {
    const auto at = pool->allocate(size_bytes, a);
    EXPECT_TRUE(at);
    return at.value_or(vmm::address{});
  }
  vmm::address in_blocks(std::uint64_t size_bytes) {
    const auto at = blocks->allocate({.size_bytes = size_bytes, .stream = a});
    EXPECT_TRUE(at);
    return at.value_or(vmm::address{});
  }
  void write(vmm::address at, std::uint64_t size_bytes, std::uint64_t tag) {
    fine(driver.write_tag({at, size_bytes}, tag));
  }
  void expect_tag(vmm::address at, std::uint64_t tag) {
    const auto seen = driver.read_tag(at);
    EXPECT_TRUE(seen);
    EXPECT_EQ(seen.value_or(~tag), tag);
  }
  vmm::suspend_report suspend(const vmm::suspend_request& request = {}) {
    const auto report = sleeper->suspend(request);
    EXPECT_TRUE(report) << (report ? "" : vmm::describe(report.error()));
    return report ? *report : vmm::suspend_report{};
  }
  void resume() { fine(sleeper->resume()); }

  vmm::pool_options pool_options;
  vmm::manager_options manager_options;
  std::unique_ptr<vmm::stream_pool> pool;
  std::unique_ptr<vmm::manager> blocks;
  std::unique_ptr<vmm::suspender> sleeper;
};

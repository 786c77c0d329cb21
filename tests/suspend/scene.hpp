// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Two regions with contents, of several handles each, for the sweeps that make each driver call and
// each host allocation of a suspender fail. It imports what it uses, so it is the last include
// except others with imports.
#pragma once

#include "../support/scenarios.h"

import vmm.manager;
import vmm.stream;
import vmm.suspend;

/// `B` is the fake driver, or one over it.
template <class B>
struct scene {
  explicit scene(B&& made, const vmm::suspend_options& options) : driver(std::move(made)) {
    of_pool.policy.handle_bytes_max = 2 * MiB;
    pool = std::make_unique<vmm::stream_pool>(driver, of_pool);
    vmm::manager_options of_blocks;
    of_blocks.policy.chunk_bytes = 2 * MiB;
    blocks = std::make_unique<vmm::manager>(driver, of_blocks);
    sleeper = std::make_unique<vmm::suspender>(options);
    EXPECT_TRUE(sleeper->add(*pool, {"kv", vmm::suspend_contents::keep}));
    EXPECT_TRUE(sleeper->add(*blocks, {"weights", vmm::suspend_contents::keep}));
    stream = *driver.create_stream();
    in_pool = *pool->allocate(6 * MiB, stream);
    const vmm::address gone = *pool->allocate(2 * MiB, stream);
    in_blocks = *blocks->allocate({.size_bytes = 4 * MiB, .stream = stream});
    EXPECT_TRUE(fake().write_tag({in_pool, 6 * MiB}, 11));
    EXPECT_TRUE(fake().write_tag({in_blocks, 4 * MiB}, 12));
    EXPECT_TRUE(pool->free(gone, stream));
    EXPECT_TRUE(fake().launch(stream, {.name = "writer", .duration_us = 100}));
  }
  scene(const scene&) = delete;
  scene& operator=(const scene&) = delete;
  ~scene() = default;

  [[nodiscard]] vmm::fake_driver& fake() { return sweeps::fake_of(driver); }
  [[nodiscard]] vmm::status suspend() { return sweeps::status_of(sleeper->suspend()); }
  [[nodiscard]] bool is_suspended(const char* tag) const {
    return sleeper->is_suspended(tag).value_or(false);
  }
  [[nodiscard]] bool is_any_suspended() const {
    return is_suspended("kv") || is_suspended("weights");
  }

  // The contents of what is not suspended.
  void expect_whole(const std::string& what) {
    const vmm::status one = pool->validate();
    ASSERT_TRUE(one) << what << ": " << one.error().detail;
    ASSERT_TRUE(blocks->validate()) << what;
    if (!is_suspended("kv")) expect_tag(in_pool, 6 * MiB, 11, what);
    if (!is_suspended("weights")) expect_tag(in_blocks, 4 * MiB, 12, what);
  }
  // Everything comes back, is freed, and nothing is left.
  void finish(const std::string& what) {
    const vmm::status back = is_any_suspended() ? sleeper->resume() : vmm::status{};
    EXPECT_TRUE(back) << what << ": " << (back ? "" : vmm::describe(back.error()));
    EXPECT_FALSE(is_any_suspended()) << what;
    expect_whole(what);
    EXPECT_TRUE(fake().finish_all());
    sleeper.reset();
    pool.reset();
    blocks.reset();
    EXPECT_TRUE(driver.destroy_stream(stream));
    EXPECT_TRUE(fake().check_empty()) << what << fake().report();
    for (const auto& misuse : fake().misuses()) ADD_FAILURE() << what << ": " << misuse.detail;
  }

  B driver;
  vmm::stream_handle stream{};
  vmm::address in_pool{}, in_blocks{};
  vmm::pool_options of_pool;
  std::unique_ptr<vmm::stream_pool> pool;
  std::unique_ptr<vmm::manager> blocks;
  std::unique_ptr<vmm::suspender> sleeper;

 private:
  void expect_tag(vmm::address at, std::uint64_t size_bytes, std::uint64_t tag,
                  const std::string& what) {
    for (std::uint64_t byte = 0; byte < size_bytes; byte += MiB)
      ASSERT_EQ(fake().read_tag(at + byte).value_or(0), tag) << what;
  }
};

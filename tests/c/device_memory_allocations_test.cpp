// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: where the host has no memory, a free of the C library's allocator fails and leaves the
// block live, or succeeds; no block is lost between the two.
// Method: frees that wait for another stream or for a capture, with each host allocation that they
// make failing in its turn. A call that failed is made again. At the end no block is in use, and
// the pool can serve all of its memory.
#include "../support/failing_new.h"
#include "../support/test.h"

#include "device_memory.hpp"

import vmm.backend;
import vmm.fake;
import vmm.stream;

namespace {

struct world {
  world() : opened(vmm::any_backend::own(std::make_unique<vmm::fake_driver>())) {
    fake = opened->get_if<vmm::fake_driver>();
    fake->set_manual(true);
    const vmm::pool_options options{.capture = vmm::capture_rule::private_memory};
    memory = std::make_unique<vmm_c::device_memory>(std::move(*opened), options);
    side = *fake->create_stream();
    at = memory->allocate(4 * MiB, {}, false)->value;
  }
  ~world() {
    EXPECT_TRUE(fake->finish_all());
    memory->collect(false);
    vmm_allocator_statistics now{};
    memory->write_statistics(now);
    EXPECT_EQ(now.active[VMM_LEVEL_ALL].current, 0);
    EXPECT_EQ(now.allocations[VMM_LEVEL_ALL].current, 0);
    EXPECT_EQ(memory->pool().statistics().live_bytes, 0U);
    EXPECT_EQ(fake->misuse_count(), 0U) << fake->report();
  }
  world(const world&) = delete;
  world& operator=(const world&) = delete;

  // Whether an allocation was made to fail.
  [[nodiscard]] bool free_failing(std::uint64_t nth, bool captures) {
    failing_new::plan = {.armed = true, .fail_at = nth};
    bool is_done = false;
    try {
      const auto done = memory->free(at, captures);
      is_done = done.has_value();
      if (done) EXPECT_TRUE(*done);
    } catch (const std::bad_alloc&) {
      is_done = false;
    }
    const bool has_struck = failing_new::plan.struck_count != 0;
    failing_new::plan = {};
    EXPECT_STREQ(memory->find_broken(), nullptr) << "allocation " << nth;
    if (is_done) return has_struck;
    const auto again = memory->free(at, captures);
    EXPECT_TRUE(again && *again) << "allocation " << nth << ": the block is lost";
    return has_struck;
  }

  vmm::result<vmm::any_backend> opened;
  vmm::fake_driver* fake = nullptr;
  std::unique_ptr<vmm_c::device_memory> memory;
  vmm::stream_handle side{};
  std::uint64_t at = 0;
};

TEST(FreesWithoutHostMemory, BehindAnotherStreamLoseNoBlock) {
  bool has_struck = true;
  for (std::uint64_t nth = 1; has_struck; ++nth) {
    ASSERT_LT(nth, 100U);
    world in;
    const vmm::address_range range{{in.at}, 4 * MiB};
    ASSERT_TRUE(in.fake->launch(in.side, {.name = "use", .writes = {&range, 1}}));
    ASSERT_TRUE(in.memory->record(in.at, in.side));
    has_struck = in.free_failing(nth, false);
    if (HasFailure()) return;
  }
}

TEST(FreesWithoutHostMemory, InACaptureLoseNoBlock) {
  bool has_struck = true;
  for (std::uint64_t nth = 1; has_struck; ++nth) {
    ASSERT_LT(nth, 100U);
    world in;
    ASSERT_TRUE(in.memory->record(in.at, in.side));
    ASSERT_TRUE(in.fake->begin_capture(in.side, vmm::capture_mode::any_thread));
    has_struck = in.free_failing(nth, true);
    const auto graph = in.fake->end_capture(in.side);
    ASSERT_TRUE(graph) << "the capture was spoiled";
    EXPECT_TRUE(in.fake->destroy_graph(*graph));
    if (HasFailure()) return;
  }
}

}  // namespace

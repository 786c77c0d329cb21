// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// A stream pool or a manager on the fake driver with two streams. After every test nothing is live,
// the driver's resource counts are zero, and it has seen no misuse. It imports what it uses, so it
// is the last include of a file.
#ifndef VMM_TESTS_BUFFER_BOTH_HPP
#define VMM_TESTS_BUFFER_BOTH_HPP

#include "../support/test.h"

import vmm.fake;
import vmm.manager;
import vmm.stream;

namespace both {

template <class Allocator>
struct Both : testing::Test {
  static constexpr bool is_manager = std::is_same_v<Allocator, vmm::manager>;

  void SetUp() override {
    a = *driver.create_stream();
    b = *driver.create_stream();
    memory = std::make_unique<Allocator>(driver);
  }
  void TearDown() override {
    EXPECT_EQ(memory->statistics().live_count, 0u);
    EXPECT_TRUE(driver.finish_all());
    memory.reset();
    for (const vmm::stream_handle stream : {a, b}) EXPECT_TRUE(driver.destroy_stream(stream));
    EXPECT_TRUE(driver.check_empty()) << driver.report();
    for (const auto& misuse : driver.misuses()) ADD_FAILURE() << misuse.detail;
  }
  // A kernel on `stream` that writes the range.
  void run(vmm::stream_handle stream, vmm::address_range what) {
    vmm::fake::kernel work{"writer", 1000};
    work.writes = {&what, 1};
    ASSERT_TRUE(driver.launch(stream, work));
  }
  [[nodiscard]] std::uint64_t live_count() { return memory->statistics().live_count; }

  vmm::fake_driver driver;
  vmm::stream_handle a{}, b{};
  std::unique_ptr<Allocator> memory;
};

using allocators = testing::Types<vmm::stream_pool, vmm::manager>;

/// The code of a refusal; none where the call was taken.
template <class Answer>
[[nodiscard]] vmm::errc code_of(const Answer& answer) {
  return answer ? vmm::errc::none : answer.error().code;
}

}  // namespace both

#endif

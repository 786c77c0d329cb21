// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The fake driver with two streams. After every test its work has finished, its resource counts are
// zero, and it has seen no misuse. It imports what it uses, so it is the last include of a file,
// except others with imports.
#pragma once

#include "test.h"

import vmm.backend;
import vmm.fake;

/// CUDA's driver with a change.
template <class Change>
[[nodiscard]] vmm::fake::profile cuda_with(Change&& change) {
  vmm::fake::profile plays = vmm::fake::profile::cuda();
  change(plays);
  return plays;
}
[[nodiscard]] inline vmm::fake::profile without_record_all() {
  return cuda_with([](auto& plays) { plays.can.record_all = false; });
}
/// As on CUDA, a new stream has the handle of one that was destroyed under its running kernel.
[[nodiscard]] inline vmm::fake::profile with_handles_again() {
  return cuda_with([](auto& plays) { plays.traps.stream_numbers_again = true; });
}
[[nodiscard]] inline vmm::fake::profile with_devices(std::int32_t count) {
  return cuda_with([count](auto& plays) { plays.device_count = count; });
}

struct FakeDevice : testing::Test {
  explicit FakeDevice(const vmm::fake::profile& plays = vmm::fake::profile::cuda())
      : driver(plays) {}
  void SetUp() override {
    a = *driver.create_stream();
    b = *driver.create_stream();
  }
  // Behind the end of all that is on the driver.
  void TearDown() override {
    EXPECT_TRUE(driver.finish_all());
    for (const vmm::stream_handle stream : {a, b})
      if (stream != vmm::stream_handle::default_stream) EXPECT_TRUE(driver.destroy_stream(stream));
    EXPECT_TRUE(driver.check_empty()) << driver.report();
    if (reports_gone_streams) driver.clear_misuses();
    for (const auto& misuse : driver.misuses()) ADD_FAILURE() << misuse.detail;
  }
  static void fine(const vmm::status& answer) {
    EXPECT_TRUE(answer) << (answer ? "" : vmm::describe(answer.error()));
  }
  // A kernel on `stream` that writes the range.
  void run(vmm::stream_handle stream, vmm::address_range what, double us = 1000) {
    ASSERT_TRUE(driver.launch(stream, {.name = "writer", .duration_us = us, .writes = {&what, 1}}));
  }

  // The call of its kind that is the nth from now on fails, with the driver's first reason.
  void fail(vmm::call where, std::uint64_t nth = 1, bool forever = false) {
    driver.fail({where, nth, forever, driver.possible_errors(where).front()});
  }

  vmm::fake_driver driver;
  vmm::stream_handle a{}, b{};
  bool reports_gone_streams = false;  // that are not there: a misuse that the driver reports
};

/// The code of a refusal; none where the call was taken.
template <class Answer>
[[nodiscard]] vmm::errc code_of(const Answer& answer) {
  return answer ? vmm::errc::none : answer.error().code;
}

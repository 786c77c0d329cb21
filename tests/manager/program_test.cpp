// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: whatever program of allocations, frees, resizes, copies and rights runs on a manager, with
// driver faults among its calls, every block keeps size, address, contents and rights. Method:
// random programs from fixed seeds beside the model in program.hpp. VMM_SCHEDULES is their count.
#include "program.hpp"
#include "../support/test.h"

namespace {

TEST(ManagerPrograms, KeepBlocksAsTheModelHasThem) {
  const std::uint64_t count = wish("VMM_SCHEDULES", 400);
  std::uint64_t refused_count = 0;
  std::uint64_t fault_count = 0;
  std::uint64_t rights_count = 0;
  std::uint64_t remapped_count = 0;
  for (std::uint64_t seed = 1; seed <= count; ++seed) {
    std::vector<std::uint8_t> bytes = random_program(seed);
    if (seed % 2 == 0) bytes[3] |= 0x30;  // rights are among the operations
    basic_manager_program<vmm::fake_driver> program{byte_source{bytes}};
    const char* const wrong = program.run(~std::uint64_t{0});
    ASSERT_EQ(wrong, nullptr) << "program " << seed << ", after " << program.operations()
                              << " operations: " << wrong << ": " << program.detail();
    refused_count += program.failures();
    fault_count += program.faults();
    rights_count += program.rights_given();
    remapped_count += program.last_statistics().remapped_copy_count;
  }
  if (count < 400) return;
  EXPECT_GT(refused_count, count);
  EXPECT_GT(fault_count, count);
  EXPECT_GT(rights_count, 2 * count);
  EXPECT_GT(remapped_count, count / 4);
}

}  // namespace

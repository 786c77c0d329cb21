// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: the content of memory follows the memory, not the address.
// Method: tags written through one address and read through others, across unmapping, remapping and
// aliases.
#include "bench.h"

namespace fake_test {
namespace {

using Tags = Fake;

TEST_F(Tags, MayBeSmallerThanAGranule) {
  const auto range = reserved(2 * MiB);
  mapped(range.base, created(2 * MiB), 2 * MiB);
  ASSERT_TRUE(driver.write_tag({range.base + 4096, 4096}, 1));
  ASSERT_TRUE(driver.write_tag({range.base + 16 * KiB, 512}, 2));
  EXPECT_EQ(*driver.read_tag(range.base), 0u);
  EXPECT_EQ(*driver.read_tag(range.base + 4096), 1u);
  EXPECT_EQ(*driver.read_tag(range.base + 8191), 1u);
  EXPECT_EQ(*driver.read_tag(range.base + 8192), 0u);
  EXPECT_EQ(*driver.read_tag(range.base + 16 * KiB), 2u);
  EXPECT_EQ(*driver.read_tag(range.base + 16 * KiB + 512), 0u);
  ASSERT_TRUE(driver.write_tag(range, 9));
  EXPECT_EQ(*driver.read_tag(range.base + 4096), 9u);
}

TEST_F(Tags, AreAllOrNothingOverAHole) {
  const auto range = reserved(4 * MiB);
  mapped(range.base, created(2 * MiB), 2 * MiB);
  EXPECT_FALSE(driver.write_tag(range, 5));
  EXPECT_EQ(*driver.read_tag(range.base), 0u);
}

}  // namespace
}  // namespace fake_test

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: every wrong use of a growable range has the result in docs/misuse.md.
// Method: one test a row; a refused call leaves the range as it was, which its sizes and validators
// show.
#include "fixture.hpp"

namespace misuse {

using vmm::errc, vmm::growable_range;

struct GrowableMisuse : ManagerMisuse {
  void SetUp() override {
    ManagerMisuse::SetUp();
    range = std::make_unique<growable_range>(
        *manager, vmm::growable_options{.segment_bytes_max = 32 * MiB, .segment_count = 2});
    ASSERT_TRUE(range->grow(8 * MiB, a));
  }
  void TearDown() override {
    if (range != nullptr) EXPECT_TRUE(range->validate());
    range.reset();
    ManagerMisuse::TearDown();
  }
  void expect_unchanged() const {
    EXPECT_EQ(range->statistics().size_bytes, 16 * MiB);
    EXPECT_EQ(range->statistics().physical_bytes, 16 * MiB);
  }
  std::unique_ptr<growable_range> range;
};
using GrowableMisuseDeathTest = GrowableMisuse;

TEST_F(GrowableMisuse, BeyondTheMost) {
  for (const std::uint64_t size_bytes : {32 * MiB + 1, ~std::uint64_t{0}})
    EXPECT_EQ(code_of(range->grow(size_bytes, a)), errc::invalid_argument);
  expect_unchanged();
}

TEST_F(GrowableMisuse, OptionsThatCannotBe) {
  for (const vmm::growable_options& options :
       {vmm::growable_options{}, vmm::growable_options{.segment_bytes_max = ~std::uint64_t{0}},
        vmm::growable_options{.segment_bytes_max = 1ull << 50, .segment_count = 1ull << 20},
        vmm::growable_options{.segment_bytes_max = MiB, .segment_count = 0},
        vmm::growable_options{.segment_bytes_max = MiB, .handle_bytes = MiB + 1}}) {
    growable_range wrong(*manager, options);
    EXPECT_EQ(code_of(wrong.reserve()), errc::bad_option);
    EXPECT_EQ(code_of(wrong.grow(MiB, a)), errc::bad_option);
  }
}

TEST_F(GrowableMisuse, AnotherChangeThanAskedFor) {
  EXPECT_EQ(code_of(range->grow(4 * MiB, a)), errc::invalid_argument);
  EXPECT_EQ(code_of(range->shrink(9 * MiB, a)), errc::invalid_argument);
  EXPECT_EQ(code_of(range->resize({.size_bytes = 9 * MiB, .stream = a, .one_handle = true})),
            errc::invalid_argument);
  expect_unchanged();
}

TEST_F(GrowableMisuse, SegmentsThatAreNotThere) {
  EXPECT_EQ(code_of(range->segment(2)), errc::invalid_argument);
  EXPECT_EQ(code_of(range->size_bytes(~std::uint64_t{0})), errc::invalid_argument);
  EXPECT_EQ(code_of(range->parts(2)), errc::invalid_argument);
  EXPECT_EQ(code_of(range->resize({.size_bytes = MiB, .first_segment = 1, .segment_count = 2})),
            errc::invalid_argument);
  EXPECT_EQ(code_of(range->pin({.first_segment = 2})), errc::invalid_argument);
  expect_unchanged();
}

TEST_F(GrowableMisuse, SegmentGivenToItsManager) {
  const vmm::address at = *range->segment(1);
  EXPECT_EQ(code_of(manager->free(at)), errc::in_use);
  EXPECT_EQ(code_of(manager->free_idle(at)), errc::in_use);
  EXPECT_EQ(code_of(manager->resize({.at = at, .size_bytes = MiB})), errc::in_use);
  EXPECT_EQ(code_of(manager->free(at + MiB)), errc::invalid_argument);
  EXPECT_EQ(code_of(manager->exports().begin(at, vmm::export_rule::pinned)), errc::in_use);
  EXPECT_EQ(code_of(manager->exports().end(at)), errc::in_use);
  expect_unchanged();
}

TEST_F(GrowableMisuse, UsedAfterClose) {
  ASSERT_TRUE(range->close(a));
  EXPECT_EQ(code_of(range->grow(MiB, a)), errc::invalid_argument);
  EXPECT_EQ(code_of(range->release(a)), errc::invalid_argument);
  EXPECT_EQ(code_of(range->close(a)), errc::invalid_argument);
  EXPECT_EQ(code_of(range->segment(0)), errc::invalid_argument);
  EXPECT_EQ(code_of(range->pin({})), errc::invalid_argument);
  EXPECT_EQ(code_of(range->synchronize(a)), errc::invalid_argument);
  EXPECT_TRUE(range->statistics().is_closed);
}

TEST_F(GrowableMisuse, ShrunkOnAnUnorderedStream) {
  const vmm::address_range read{*range->segment(0), 8 * MiB};
  ASSERT_TRUE(driver.launch(a, {.duration_us = 1e6}));
  ASSERT_TRUE(driver.launch(a, {.duration_us = 1, .reads = {&read, 1}}));
  ASSERT_TRUE(range->shrink(MiB, b)) << "b is not ordered behind a";
  ASSERT_TRUE(driver.finish_all());
  EXPECT_GT(driver.misuse_count(), 0u);
  reports_gone_streams = true;
}

TEST_F(GrowableMisuse, UsedAfterAFork) {
  const int code = code_of_child([&] {
    const bool refused = code_of(range->grow(16 * MiB, a)) == errc::not_permitted &&
                         code_of(range->pin({})) == errc::not_permitted &&
                         code_of(range->close(a)) == errc::not_permitted &&
                         code_of(range->segment(0)) == errc::not_permitted;
    range.reset();
    return refused ? 7 : 1;
  });
  EXPECT_EQ(code, 7);
  expect_unchanged();
}

TEST_F(GrowableMisuseDeathTest, RangeDestroyedBeforeItsPin) {
  const auto pin = range->pin({});
  ASSERT_TRUE(pin);
  EXPECT_DEATH(range.reset(),
               check_failed("a growable range is destroyed before its views and pins"));
}

TEST_F(GrowableMisuseDeathTest, ManagerDestroyedBeforeItsRange) {
  EXPECT_DEATH(manager.reset(), check_failed("a manager is destroyed while a vector or buffer"));
}

}  // namespace misuse

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: every wrong use of a manager and of a vector has the result in docs/misuse.md.
// Method: one test a row; a refused call leaves the manager as it was, which the validator and the
// resource counts check at the end.
#include "fixture.hpp"

import vmm.containers;
import vmm.host;

namespace misuse {

using vmm::address, vmm::errc, vmm::stream_handle;

TEST_F(ManagerMisuse, FreedTwice) {
  const address at = allocate(4 * MiB);
  EXPECT_TRUE(manager->free(at));
  EXPECT_EQ(code_of(manager->free(at)), errc::not_allocated);
  EXPECT_EQ(code_of(manager->free(at, b)), errc::not_allocated);
  EXPECT_EQ(code_of(manager->free_idle(at)), errc::not_allocated);
}

TEST_F(ManagerMisuse, FreedTwiceAfterReuse) {
  const address at = allocate(4 * MiB);
  EXPECT_TRUE(manager->free_idle(at));
  ASSERT_EQ(allocate(4 * MiB), at) << "the address is handed out again";
  EXPECT_EQ(code_of(manager->free(at)), errc::none) << "the address names the new block";
  EXPECT_EQ(code_of(manager->free(at)), errc::not_allocated) << "its owner gets an error";
}

TEST_F(ManagerMisuse, FreedInside) {
  const address at = allocate(4 * MiB);
  for (const std::uint64_t offset : {std::uint64_t{1}, 2 * MiB, 4 * MiB - 1}) {
    EXPECT_EQ(code_of(manager->free(at + offset)), errc::invalid_argument) << offset;
    EXPECT_EQ(code_of(manager->resize({.at = at + offset, .size_bytes = MiB})),
              errc::invalid_argument);
  }
  EXPECT_EQ(code_of(manager->free(at + 4 * MiB)), errc::not_allocated) << "behind it";
  EXPECT_TRUE(manager->free(at));
}

TEST_F(ManagerMisuse, ForeignAddress) {
  EXPECT_EQ(code_of(manager->free(address{4096})), errc::unknown_address) << "before set-up";
  const address at = allocate(4 * MiB);
  int local = 0;
  for (const address foreign :
       {address{1}, address::from_native(&local), address{~std::uint64_t{0}}}) {
    EXPECT_EQ(code_of(manager->free(foreign)), errc::unknown_address);
    EXPECT_EQ(code_of(manager->find(foreign)), errc::unknown_address);
  }
  EXPECT_TRUE(manager->free(at));
}

TEST_F(ManagerMisuse, NullAddress) {
  const address at = allocate(4 * MiB);
  EXPECT_EQ(code_of(manager->free(address{})), errc::unknown_address);
  EXPECT_TRUE(manager->free(at));
}

TEST_F(ManagerMisuse, AddressOfAnotherManager) {
  const address at = allocate(4 * MiB);
  vmm::manager second(driver);
  const auto theirs = *second.allocate(4 * MiB);
  EXPECT_EQ(code_of(manager->free(theirs)), errc::unknown_address);
  EXPECT_EQ(code_of(second.resize({.at = at, .size_bytes = MiB})), errc::unknown_address);
  EXPECT_TRUE(second.free(theirs));
  EXPECT_TRUE(manager->free(at));
}

TEST_F(ManagerMisuse, SizesThatCannotBe) {
  EXPECT_EQ(code_of(manager->allocate(0)), errc::invalid_argument);
  EXPECT_NE(code_of(manager->allocate(~std::uint64_t{0})), errc::none);
  EXPECT_EQ(code_of(manager->allocate({.size_bytes = MiB, .alignment_bytes = 3})),
            errc::invalid_argument);
  const address at = allocate(4 * MiB);
  EXPECT_EQ(code_of(manager->resize({.at = at, .size_bytes = 0})), errc::invalid_argument);
  EXPECT_TRUE(manager->free(at));
}

TEST_F(ManagerMisuse, StreamThatNeverWas) {
  reports_gone_streams = true;
  const address at = allocate(4 * MiB);
  EXPECT_EQ(code_of(manager->free(at, static_cast<stream_handle>(0x7777))), errc::invalid_argument);
  EXPECT_TRUE(manager->free(at)) << "the block is as before";
}

TEST_F(ManagerMisuse, StreamThatWasDestroyed) {
  const stream_handle gone = *driver.create_stream();
  const auto at = *manager->allocate({.size_bytes = MiB, .stream = gone});
  ASSERT_TRUE(driver.destroy_stream(gone));
  EXPECT_TRUE(manager->free(at)) << "behind all work";
}

TEST_F(ManagerMisuse, StreamOfAnotherDevice) {
  reports_gone_streams = true;
  vmm::fake_driver other;
  stream_handle theirs = a;
  for (int i = 0; i < 4; ++i) theirs = *other.create_stream();
  const address at = allocate(4 * MiB);
  EXPECT_EQ(code_of(manager->free(at, theirs)), errc::invalid_argument);
  EXPECT_TRUE(manager->free(at));
}

TEST_F(ManagerMisuse, StreamOfEachThread) {
  vmm::fake_driver cuda;
  vmm::manager made(cuda);
  vmm::growable_range range(made, {.segment_bytes_max = 4 * MiB});
  const auto at = *made.allocate({.size_bytes = MiB});
  for (const std::uint64_t number : no_streams) {
    const auto wrong = static_cast<stream_handle>(number);
    EXPECT_EQ(code_of(made.allocate({.size_bytes = MiB, .stream = wrong})), errc::invalid_argument);
    for (const vmm::copy_mode mode : {vmm::copy_mode::copy, vmm::copy_mode::alias})
      EXPECT_EQ(code_of(made.copy({at, at, MiB, wrong}, mode)), errc::invalid_argument);
    EXPECT_EQ(code_of(made.record(wrong)), errc::invalid_argument);
    EXPECT_EQ(code_of(made.free(at, wrong)), errc::invalid_argument);
    EXPECT_EQ(code_of(range.grow(MiB, wrong)), errc::invalid_argument);
    EXPECT_EQ(code_of(range.shrink(0, wrong)), errc::invalid_argument);
    EXPECT_EQ(code_of(range.synchronize(wrong)), errc::invalid_argument);
    EXPECT_EQ(code_of(range.close(wrong)), errc::invalid_argument);
  }
  EXPECT_TRUE(made.free(at));
}

TEST_F(ManagerMisuse, ResizedAfterFree) {
  const address at = allocate(4 * MiB);
  EXPECT_TRUE(manager->free(at));
  EXPECT_EQ(code_of(manager->resize({.at = at, .size_bytes = 8 * MiB})), errc::not_allocated);
  EXPECT_EQ(code_of(manager->find(at)), errc::not_allocated);
}

TEST_F(ManagerMisuse, CopyOutsideOfABlock) {
  const address at = allocate(4 * MiB);
  const address to = allocate(4 * MiB);
  for (const vmm::copy_mode mode :
       {vmm::copy_mode::copy, vmm::copy_mode::alias, vmm::copy_mode::move}) {
    EXPECT_EQ(code_of(manager->copy({to, at, 4 * MiB + 1, a}, mode)), errc::not_allocated);
    EXPECT_EQ(code_of(manager->copy({to + MiB, at, 4 * MiB, a}, mode)), errc::not_allocated);
    EXPECT_EQ(code_of(manager->copy({to, at + 8, ~std::uint64_t{0}, a}, mode)), errc::not_allocated)
        << "the end exceeds 64 bits";
  }
  EXPECT_TRUE(manager->free(to));
  EXPECT_EQ(code_of(manager->copy({to, at, MiB, a})), errc::not_allocated) << "a freed target";
  EXPECT_TRUE(manager->free(at));
}

TEST_F(ManagerMisuse, FreedByTwoThreads) {
  for (int round = 0; round < 20 && !HasFatalFailure(); ++round) {
    const address at = allocate(4 * MiB);
    free_by_two_threads([&] { return manager->free(at); }, {errc::not_allocated, errc::in_use});
  }
}

TEST_F(ManagerMisuse, OptionsOutOfRange) {
  std::vector<vmm::manager_options> wrong(6);
  wrong[0].policy.chunk_bytes = 3;
  wrong[1].policy.fragment_ratio = 2;
  wrong[2].policy.fragment_ratio = -1;
  wrong[3].policy.on_free = static_cast<vmm::free_rule>(2);
  wrong[4].contents = static_cast<vmm::contents_rule>(4);
  wrong[5].policy.name = nullptr;
  for (const vmm::manager_options& options : wrong) {
    vmm::manager refused(driver, options);
    EXPECT_EQ(code_of(refused.set_up()), errc::bad_option);
    EXPECT_EQ(code_of(refused.allocate(MiB)), errc::bad_option);
  }
}

// ---- vector --------------------------------------------------------------------------

struct VectorMisuse : testing::Test {
  VectorMisuse() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  vmm::host_driver driver = vmm::host_driver::open().value();
  vmm::manager manager{driver};
  vmm::vector<int> numbers{manager};
};

TEST_F(VectorMisuse, ReadPastTheEnd) {
  ASSERT_TRUE(numbers.push_back(7));
  std::array<int, 2> target{};
  EXPECT_EQ(code_of(numbers.read(0, target)), errc::invalid_argument);
  EXPECT_EQ(code_of(numbers.read(2, std::span<int>{})), errc::invalid_argument);
  EXPECT_EQ(code_of(numbers.read(~std::uint64_t{0}, target)), errc::invalid_argument);
}

using VectorMisuseDeathTest = VectorMisuse;

TEST_F(VectorMisuseDeathTest, IndexPastTheEnd) {
  ASSERT_TRUE(numbers.push_back(7));
  EXPECT_DEATH((void)numbers[1], check_failed("a vector has no element of that index"));
}

TEST_F(VectorMisuseDeathTest, PopOfAnEmptyVector) {
  EXPECT_DEATH(numbers.pop_back(), check_failed("an element is removed from an empty vector"));
}

TEST_F(VectorMisuseDeathTest, HostAccessWhereThereIsNone) {
  vmm::fake_driver device;
  vmm::manager memory(device);
  vmm::vector<int> far(memory);
  EXPECT_DEATH(
      (void)far.data(),
      check_failed("this backend's memory is not for the host: use read\\(\\) and append"));
}

}  // namespace misuse

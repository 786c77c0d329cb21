// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: every wrong use of lent or borrowed memory has the result in docs/misuse.md.
// Method: one test a row, with both ends of a connection in this process, on the host driver.
#include <cerrno>

#include "../share/both_sides.hpp"
#include "fixture.hpp"

import vmm.host;

namespace misuse {

using vmm::address, vmm::errc, vmm::exported_block, vmm::imported_block, vmm::share_channel,
    vmm::share_role;

struct ShareMisuse : testing::Test {
  ShareMisuse() : driver(*vmm::host_driver::open()) {}
  void SetUp() override { ends = share_test::make_channels(); }
  void TearDown() override {
    ends.client.close();
    ends.server.close();
    EXPECT_TRUE(driver.resource_counts().empty());
  }
  exported_block make_block() { return *exported_block::make(driver, {.size_bytes = 2 * MiB}); }
  vmm::host_driver driver;
  share_test::channels ends;
};

TEST_F(ShareMisuse, ReleasedWhileLent) {
  auto block = make_block();
  ASSERT_TRUE(ends.client.send(block));
  EXPECT_EQ(block.release().error().code, errc::in_use);
  auto borrowed = *ends.server.borrow(driver);
  EXPECT_EQ(block.release().error().code, errc::in_use);
  ASSERT_TRUE(ends.server.give_back(borrowed));
  ASSERT_TRUE(ends.client.next());  // accepted
  ASSERT_TRUE(ends.client.next());  // released
  ASSERT_TRUE(block.release());
  EXPECT_EQ(ends.server.give_back(borrowed).error().code, errc::invalid_argument) << "twice";
}

TEST_F(ShareMisuse, NumbersThatNameNoLoan) {
  EXPECT_EQ(ends.client.withdraw(9).error().code, errc::invalid_argument);
  EXPECT_EQ(ends.client.update(9).error().code, errc::invalid_argument);
  EXPECT_EQ(ends.server.accept(9).error().code, errc::invalid_argument);
  EXPECT_EQ(ends.server.refuse_offer(9, errc::not_supported).error().code, errc::invalid_argument);
  EXPECT_TRUE(ends.client.is_open()) << "nothing was said to the peer";
  EXPECT_TRUE(ends.server.is_open());
}

TEST_F(ShareMisuse, ChannelThatIsClosedOrSilent) {
  const auto late = ends.client.next(10);
  EXPECT_EQ(late.error().code, errc::unavailable);
  EXPECT_EQ(late.error().native, ETIMEDOUT);
  EXPECT_TRUE(ends.client.is_open());
  ends.server.close();
  EXPECT_EQ(ends.client.next().error().code, errc::unavailable);
  auto block = make_block();
  EXPECT_EQ(ends.client.send(block).error().code, errc::unavailable);
  EXPECT_EQ(ends.server.send(block).error().code, errc::unavailable);
  ASSERT_TRUE(block.release()) << "it was not lent";
}

TEST_F(ShareMisuse, BorrowedBlockUsedAfterItWasGivenBack) {
  auto block = make_block();
  ASSERT_TRUE(ends.client.send(block));
  auto borrowed = *ends.server.borrow(driver);
  const vmm::access_grant read{driver.home(), vmm::access::read};
  EXPECT_EQ(borrowed.set_access({borrowed.data_address(), 4 * MiB}, {&read, 1}).error().code,
            errc::invalid_argument)
      << "outside";
  ASSERT_TRUE(ends.server.give_back(borrowed));
  EXPECT_TRUE(borrowed.empty());
  EXPECT_FALSE(borrowed.data_address());
  ASSERT_TRUE(ends.client.next());
  ASSERT_TRUE(ends.client.next());
}

TEST_F(ShareMisuse, UsedInAForkedChild) {
  auto block = make_block();
  ASSERT_TRUE(ends.client.send(block));
  auto borrowed = *ends.server.borrow(driver);
  const int code = code_of_child([&] {
    const bool refused = block.release().error().code == errc::not_permitted &&
                         borrowed.release().error().code == errc::not_permitted &&
                         ends.server.give_back(borrowed).error().code == errc::not_permitted;
    return refused ? 0 : 1;
  });
  EXPECT_EQ(code, 0);
  ASSERT_TRUE(ends.server.give_back(borrowed));
  ASSERT_TRUE(ends.client.next());
  ASSERT_TRUE(ends.client.next());
}

}  // namespace misuse

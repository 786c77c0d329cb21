// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: every wrong use of lent or borrowed memory has the result in docs/misuse.md.
// Method: one test a row, with both ends of a connection in this process, on the host driver.
#include <fcntl.h>
#include <sys/socket.h>

#include <cerrno>

#include "../share/both_sides.hpp"
#include "fixture.hpp"

import vmm.host;

namespace misuse {

using vmm::address, vmm::errc, vmm::exported_block, vmm::imported_block, vmm::share_channel,
    vmm::share_role;

class ShareMisuse : public testing::Test {
 protected:
  ShareMisuse() : driver(*vmm::host_driver::open()) {}
  void SetUp() override { ends = share_test::make_channels(); }
  void TearDown() override {
    ends.client.close();
    ends.server.close();
    EXPECT_TRUE(driver.resource_counts().empty());
  }
  vmm::manager_options shareable() {
    vmm::manager_options options;
    options.shareable = vmm::share_kind::posix_fd;
    options.reservation_bytes = 64 * MiB;
    return options;
  }
  exported_block make_block() { return *exported_block::make(driver, {.size_bytes = 2 * MiB}); }
  vmm::host_driver driver;
  share_test::channels ends;
};

TEST_F(ShareMisuse, ExportedBlockFreedOrMoved) {
  vmm::manager owner(driver, shareable());
  const address at = *owner.allocate(2 * MiB);
  auto block = *exported_block::from(owner, at);
  EXPECT_EQ(owner.free(at).error().code, errc::in_use);
  EXPECT_EQ(owner.resize({at, 4 * MiB}).error().code, errc::in_use);
  EXPECT_EQ(block.moved_to(at).error().code, errc::invalid_argument) << "it is not followed";
  ASSERT_TRUE(block.release());
  ASSERT_TRUE(owner.free(at));
}

TEST_F(ShareMisuse, BlockThatWasNotMadeToBeShared) {
  vmm::manager owner(driver);
  const address at = *owner.allocate(2 * MiB);
  EXPECT_EQ(exported_block::from(owner, at).error().code, errc::not_supported);
  vmm::manager shared(driver, shareable());
  EXPECT_EQ(exported_block::from(shared, address{0x1000}).error().code, errc::unknown_address);
  EXPECT_EQ(exported_block::make(driver, {}).error().code, errc::invalid_argument);
  EXPECT_EQ(exported_block::make(driver, {.size_bytes = 2 * MiB, .kind = vmm::share_kind::win32})
                .error()
                .code,
            errc::not_supported);
  ASSERT_TRUE(owner.free(at));
}

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

TEST_F(ShareMisuse, SocketOrSecretThatIsWrong) {
  std::array<int, 2> pipe_ends{-1, -1};
  ASSERT_EQ(::pipe2(pipe_ends.data(), O_CLOEXEC), 0);
  EXPECT_EQ(share_channel::adopt(pipe_ends[0], share_role::accepting, share_test::options_of(1))
                .error()
                .code,
            errc::invalid_argument);
  for (const int each : pipe_ends) EXPECT_EQ(::close(each), 0) << "the caller's still";
  const std::array<int, 2> sockets = share_test::socket_pair();
  errc accepting = errc::none;
  std::thread other([&] {
    const auto made =
        share_channel::adopt(sockets[1], share_role::accepting, share_test::options_of(2));
    if (!made) accepting = made.error().code;
  });
  const auto made =
      share_channel::adopt(sockets[0], share_role::connecting, share_test::options_of(1));
  other.join();
  ASSERT_FALSE(made);
  EXPECT_EQ(accepting, errc::not_permitted) << "it sees the proof first";
  EXPECT_EQ(made.error().code, errc::unavailable) << "and ends the connection";
  for (const int each : sockets) EXPECT_EQ(::close(each), 0);
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
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const bool refused = block.release().error().code == errc::not_permitted &&
                         borrowed.release().error().code == errc::not_permitted &&
                         ends.server.give_back(borrowed).error().code == errc::not_permitted;
    std::_Exit(refused ? 0 : 1);
  }
  int state = 0;
  ASSERT_EQ(::waitpid(child, &state, 0), child);
  EXPECT_TRUE(WIFEXITED(state) && WEXITSTATUS(state) == 0) << state;
  ASSERT_TRUE(ends.server.give_back(borrowed));
  ASSERT_TRUE(ends.client.next());
  ASSERT_TRUE(ends.client.next());
}

}  // namespace misuse

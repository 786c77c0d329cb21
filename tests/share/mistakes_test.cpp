// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a program's wrong or late calls on a block fail in that program: they end no connection,
// and neither lend nor return another block; and a copy of a connection that a fork left somewhere
// keeps no lease.
// Method: two honest sides in one process, and one mistake each.
#include <cerrno>

#include "both_sides.hpp"

import vmm.host;

namespace {

using share_test::channels, share_test::code, share_test::make_channels, vmm::errc,
    vmm::exported_block, vmm::share_event;

struct Mistake : ::testing::Test {
  vmm::host_driver lender = vmm::host_driver::open().value();
  vmm::host_driver user = vmm::host_driver::open().value();
};

TEST_F(Mistake, ABlockInUseIsNotRefused) {
  vmm::manager owner(lender, share_test::shareable());
  const vmm::address at = owner.allocate(2 * MiB).value();
  channels both = make_channels();
  const auto block = exported_block::from(owner, at, {.rule = vmm::export_rule::followed});
  ASSERT_TRUE(block);
  const std::uint64_t id = both.client.send(*block).value();
  auto borrowed = *both.server.borrow(user);
  ASSERT_EQ(both.client.next().value().kind, share_event::what::accepted);
  EXPECT_EQ(code(both.server.refuse_offer(id, errc::out_of_memory)), errc::invalid_argument);
  ASSERT_TRUE(both.client.update(id));
  ASSERT_EQ(both.server.next().value().kind, share_event::what::updated);
  EXPECT_EQ(code(both.server.refuse_offer(id, errc::out_of_memory)), errc::invalid_argument)
      << "an update is not refused: the block is given back";
  EXPECT_TRUE(block->is_lent());
  ASSERT_TRUE(both.server.give_back(borrowed));
  EXPECT_EQ(both.client.next().value().kind, share_event::what::released);
}

// lend() returns no number then: the block could never be taken back.
TEST_F(Mistake, AnOfferWithoutAReplyIsWithdrawn) {
  channels both = make_channels(share_test::at_once_ms);
  const auto block = exported_block::make(lender, {.size_bytes = 2 * MiB});
  const auto late = both.client.lend(*block);
  EXPECT_EQ(late.error().native, ETIMEDOUT);
  EXPECT_TRUE(contains(late.error().detail, "it is withdrawn"));
  auto borrowed = *both.server.borrow(user);  // the peer was late: it may use the block, or not
  ASSERT_EQ(both.server.next().value().kind, share_event::what::withdrawn);
  ASSERT_TRUE(both.server.give_back(borrowed));
  EXPECT_EQ(both.client.next().value().kind, share_event::what::accepted);
  EXPECT_EQ(both.client.next().value().kind, share_event::what::released);
  EXPECT_FALSE(block->is_lent());
  EXPECT_EQ(both.client.lent_count(), 0u);
}

TEST_F(Mistake, TakingBackGoesOnAfterATimeout) {
  channels both = make_channels(share_test::at_once_ms);
  const auto block = exported_block::make(lender, {.size_bytes = 2 * MiB});
  const std::uint64_t id = both.client.send(*block).value();
  auto borrowed = *both.server.borrow(user);
  EXPECT_EQ(both.client.take_back(id).error().native, ETIMEDOUT);
  EXPECT_EQ(both.client.take_back(id).error().native, ETIMEDOUT) << "it was withdrawn before";
  ASSERT_TRUE(both.server.give_back(borrowed));
  const vmm::status back = both.client.take_back(id);
  EXPECT_TRUE(back) << vmm::describe(back.error());
  EXPECT_FALSE(block->is_lent());
  EXPECT_EQ(code(both.client.take_back(id)), errc::invalid_argument) << "it is not lent";
}

TEST_F(Mistake, ABlockGoesBackWhereItCameFrom) {
  channels one = make_channels();
  channels other = make_channels();
  const auto block = exported_block::make(lender, {.size_bytes = 2 * MiB});
  ASSERT_TRUE(one.client.send(*block));
  ASSERT_TRUE(other.client.send(*block));
  auto first = one.server.borrow(user);
  auto second = other.server.borrow(user);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->id(), second->id()) << "numbers are a connection's";
  EXPECT_EQ(code(other.server.give_back(*first)), errc::invalid_argument);
  EXPECT_FALSE(first->empty()) << "it is still mapped";
  EXPECT_EQ(other.client.lent(second->id()), vmm::loan_state::offered);
  EXPECT_TRUE(one.server.give_back(*first));
  EXPECT_TRUE(other.server.give_back(*second));
}

TEST_F(Mistake, AnUpdateOfAnotherBlockIsRefused) {
  vmm::manager owner(lender, share_test::shareable());
  const vmm::address at[] = {owner.allocate(2 * MiB).value(), owner.allocate(4 * MiB).value()};
  channels both = make_channels();
  const vmm::block_export followed{.rule = vmm::export_rule::followed};
  const auto first = exported_block::from(owner, at[0], followed);
  const auto second = exported_block::from(owner, at[1], followed);
  ASSERT_TRUE(both.client.send(*first) && both.client.send(*second));
  auto a = both.server.borrow(user);
  auto b = both.server.borrow(user);
  ASSERT_TRUE(a && b);
  ASSERT_EQ(both.client.next().value().id, 1u);
  ASSERT_EQ(both.client.next().value().id, 2u);
  ASSERT_TRUE(both.client.update(2));
  const auto changed = *both.server.next();
  EXPECT_EQ(code(a->update(changed.block)), errc::invalid_argument);
  EXPECT_EQ(a->size_bytes(), 2 * MiB);
  EXPECT_TRUE(b->update(changed.block));
}

// The address of a followed block that was freed is another block's soon.
TEST_F(Mistake, AFreedBlockIsNotTheNextOneAtItsAddress) {
  vmm::manager owner(lender, share_test::shareable());
  const vmm::address at = owner.allocate(2 * MiB).value();
  channels both = make_channels();
  auto block = *exported_block::from(owner, at, {.rule = vmm::export_rule::followed});
  const std::uint64_t id = both.client.send(block).value();
  auto borrowed = *both.server.borrow(user);
  ASSERT_EQ(both.client.next().value().kind, share_event::what::accepted);
  ASSERT_TRUE(owner.free(at));
  const vmm::address other = owner.allocate(2 * MiB).value();
  ASSERT_EQ(other, at) << "else the test shows nothing";
  other.as<char>()[0] = 's';
  EXPECT_EQ(code(both.client.update(id)), errc::not_allocated);
  EXPECT_EQ(code(both.client.send(block)), errc::not_allocated);
  EXPECT_EQ(code(block.moved_to(at)), errc::not_allocated);
  EXPECT_TRUE(both.client.is_open());
  EXPECT_EQ(borrowed.data_address().as<char>()[0], 0) << "the memory that it had";
  EXPECT_TRUE(owner.free(other)) << "it is not exported";
}

// An importer that waits for a reply receives many updates: only the last one counts.
TEST_F(Mistake, UpdatesThatNobodyReadEndNoConnection) {
  vmm::manager owner(lender, share_test::shareable());
  const vmm::address at = owner.allocate(2 * MiB).value();
  channels both = make_channels(share_test::at_once_ms);
  const auto block = exported_block::from(owner, at, {.rule = vmm::export_rule::followed});
  const std::uint64_t id = both.client.send(*block).value();
  auto borrowed = *both.server.borrow(user);
  ASSERT_EQ(both.client.next().value().kind, share_event::what::accepted);
  const auto own = exported_block::make(user, {.size_bytes = 2 * MiB});
  const std::ptrdiff_t before = share_test::descriptor_count();
  for (std::uint64_t round = 1; round <= 200;) {
    while (round <= 200 && both.client.update(id)) ++round;  // until the queue is full
    if (both.server.lent_count() == 0) {
      EXPECT_EQ(both.server.lend(*own).error().native, ETIMEDOUT) << "no reply";
    } else {
      EXPECT_EQ(both.server.take_back(1).error().native, ETIMEDOUT);
    }
    ASSERT_TRUE(both.server.is_open()) << "after " << round << " updates";
  }
  EXPECT_LE(share_test::descriptor_count(), before + 1) << "those of the last one";
  const auto last = *both.server.next();
  EXPECT_EQ(last.epoch, 200u);
  ASSERT_TRUE(borrowed.update(last.block));
  EXPECT_TRUE(both.server.accept(id));
}

// An update that came while this side waited for something else was not seen yet.
TEST_F(Mistake, WhatIsAcceptedIsWhatWasSeen) {
  vmm::manager owner(lender, share_test::shareable());
  const vmm::address at = owner.allocate(2 * MiB).value();
  channels both = make_channels(share_test::at_once_ms);
  const auto block = exported_block::from(owner, at, {.rule = vmm::export_rule::followed});
  const std::uint64_t id = both.client.send(*block).value();
  auto borrowed = *both.server.borrow(user);
  ASSERT_EQ(both.client.next().value().kind, share_event::what::accepted);
  ASSERT_TRUE(both.client.update(id));
  const auto first = *both.server.next();
  ASSERT_TRUE(both.client.update(id));
  const auto own = exported_block::make(user, {.size_bytes = 2 * MiB});
  ASSERT_EQ(both.server.lend(*own).error().native, ETIMEDOUT) << "the second update comes now";
  ASSERT_TRUE(borrowed.update(first.block));
  ASSERT_TRUE(both.server.accept(id));
  ASSERT_EQ(both.client.next().value().kind, share_event::what::offered);
  ASSERT_EQ(both.client.next().value().kind, share_event::what::withdrawn);
  EXPECT_EQ(both.client.next().value().epoch, 1u);
  EXPECT_EQ(both.client.accepted_epoch(id), 1u);
  const auto second = *both.server.next();
  ASSERT_TRUE(borrowed.update(second.block));
  ASSERT_TRUE(both.server.accept(id));
  EXPECT_EQ(both.client.next().value().epoch, 2u);
}

// A thread that forks while a connection opens or closes leaves a copy of it in the child.
TEST_F(Mistake, ACopyOfAConnectionKeepsNoLease) {
  const auto ends = share_test::socket_pair();
  const int copy = ::dup(ends[0]);
  vmm::share_channel server;
  std::thread accepting([&] {
    server =
        vmm::share_channel::adopt(ends[1], vmm::share_role::accepting, share_test::options_of(1))
            .value();
  });
  auto client =
      vmm::share_channel::adopt(ends[0], vmm::share_role::connecting, share_test::options_of(1));
  accepting.join();
  ASSERT_TRUE(client);
  client->close();
  EXPECT_EQ(server.next().error().native, ECONNRESET);
  ::close(copy);
}

}  // namespace

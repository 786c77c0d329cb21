// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: each rule of an owner and each byte of a message, one at a time.
// Method: an owner's machine whose driver returns at once, and tenants that are lists of messages.
#include "desk.hpp"

namespace {

using namespace market_test;

// ---- messages ------------------------------------------------------------------------

std::vector<market_message> every_message() {
  std::vector<market_message> all;
  for (int kind = 1; kind <= static_cast<int>(market_kind::report); ++kind) {
    market_message message = desk::of(static_cast<market_kind>(kind));
    message.request = 0x0102030405060708;
    message.bytes = message.wish_bytes = 64 * MiB;
    message.within_ns = 77;
    message.tenant = 3;
    message.share = {.guarantee_bytes = 1, .limit_bytes = 2, .priority = 7, .elastic = true};
    message.name = vmm::make_market_name("a name");
    if (message.kind == market_kind::grant || message.kind == market_kind::inventory) {
      message.more = true;
      message.handle_count = vmm::market_handles_max;
      for (std::uint32_t i = 0; i < message.handle_count; ++i)
        message.handles[i] = {.id = i + 1,
                              .generation = i,
                              .granules = 1U << (i % 10),
                              .must_clear = i % 2 == 0,
                              .has_descriptor = i % 3 == 0,
                              .in_use = i % 5 == 0};
    }
    if (message.kind == market_kind::denied) {
      message.reason = market_reason::deadlock;
      message.row_count = vmm::market_rows_max;
      for (std::uint32_t i = 0; i < message.row_count; ++i)
        message.rows[i] = {
            .tenant = i, .held_bytes = 7, .overdue = i % 2 == 0, .is_silent = i % 3 == 0};
    }
    all.push_back(message);
  }
  return all;
}

TEST(MarketWire, AMessageComesBackAndNoOtherBytesAreIt) {
  std::size_t refused = 0;
  for (const market_message& sent : every_message()) {
    const vmm::market_bytes bytes = vmm::encode_market_message(sent);
    const auto came = vmm::decode_market_message(bytes);
    ASSERT_TRUE(came) << static_cast<int>(sent.kind);
    EXPECT_TRUE(*came == sent);
    EXPECT_EQ(vmm::descriptor_count_of(*came), vmm::descriptor_count_of(sent));
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      vmm::market_bytes changed = bytes;
      changed[i] ^= std::byte{0x80};
      const auto other = vmm::decode_market_message(changed);
      if (!other) {
        ++refused;
        continue;
      }
      EXPECT_FALSE(*other == sent) << i;
      EXPECT_TRUE(vmm::encode_market_message(*other) == changed) << i;
    }
    for (const std::size_t size : {std::size_t{0}, bytes.size() - 1})
      EXPECT_FALSE(vmm::decode_market_message(std::span(bytes).first(size)));
  }
  EXPECT_GT(refused, 40'000u);
}

TEST(MarketWire, AHandleHasANumberAndTheFlagsOfItsKind) {
  market_message message = desk::of(market_kind::drop);
  message.handle_count = 1;
  message.handles[0] = {.id = 7, .generation = 1, .granules = 1};
  const vmm::market_bytes bytes = vmm::encode_market_message(message);
  ASSERT_TRUE(vmm::decode_market_message(bytes));
  vmm::market_bytes changed = bytes;
  changed[vmm::market_header_bytes] = std::byte{0};
  EXPECT_FALSE(vmm::decode_market_message(changed)) << "the number 0";
  for (const int flag : {1, 2, 4}) {
    changed = bytes;
    changed[vmm::market_header_bytes + 15] = static_cast<std::byte>(flag);
    EXPECT_FALSE(vmm::decode_market_message(changed)) << "a drop clears, has or uses nothing";
  }
}

TEST(MarketWire, AnotherVersionIsNamed) {
  vmm::market_bytes bytes = vmm::encode_market_message(desk::of(market_kind::query));
  bytes[0] = std::byte{9};
  EXPECT_EQ(vmm::decode_market_message(bytes).error().code, vmm::errc::not_supported);
}

// ---- rules ---------------------------------------------------------------------------

TEST(MarketOwner, AGuaranteeGoesBeforeABorrowerWhoWaitsLonger) {
  desk all(1024 * MiB, {{}, {.priority = 7}, {.guarantee_bytes = 256 * MiB}});
  const auto first = all.want(1, 896 * MiB);
  ASSERT_TRUE(all.has(first));
  const auto borrower = all.want(2, 128 * MiB);
  const auto guaranteed = all.want(3, 256 * MiB);
  EXPECT_FALSE(all.has(borrower) || all.has(guaranteed));
  all.pass(10 * ms);
  all.give(1, all.lots[first]);
  ASSERT_EQ(all.order.size(), 3u);
  EXPECT_EQ(all.order[1], guaranteed);
  EXPECT_EQ(all.order[2], borrower);
}

TEST(MarketOwner, AClassGoesFirstAndAgeLiftsIt) {
  for (const bool is_old : {false, true}) {
    desk all(1024 * MiB, {{}, {.priority = 0}, {.priority = 1}});
    const auto first = all.want(1, 1024 * MiB);
    const auto low = all.want(2, 64 * MiB, 10'000 * ms);
    if (is_old) all.pass(2500 * ms);
    const auto high = all.want(3, 64 * MiB, 10'000 * ms);
    all.give(1, all.lots[first]);
    for (int i = 0; i < 4; ++i) all.pass(4 * ms);  // a handle is cleared, and others are created
    ASSERT_EQ(all.order.size(), 3u);
    EXPECT_EQ(all.order[1], is_old ? low : high);
  }
}

// Two borrowers together have the rest: no request of one alone exceeds what it can ever have.
TEST(MarketOwner, TheReserveOfAFirmGuaranteeIsNotLentAndAnElasticOneIs) {
  for (const bool elastic : {false, true}) {
    desk all(1024 * MiB, {{.guarantee_bytes = 512 * MiB, .elastic = elastic}, {}, {}});
    EXPECT_TRUE(all.has(all.want(2, 512 * MiB)));
    const auto most = all.want(3, 512 * MiB, 100 * ms);
    all.pass(200 * ms);
    EXPECT_EQ(all.has(most), elastic);
    EXPECT_EQ(all.has(all.want(3, 384 * MiB, 100 * ms)), !elastic);
    EXPECT_EQ(all.has(all.want(1, 128 * MiB, 100 * ms)), !elastic);
  }
}

TEST(MarketOwner, TheReserveIsThatOfTheLargestRequest) {
  desk all(1024 * MiB, {{.guarantee_bytes = 512 * MiB}, {}});
  all.give(1, all.lots[all.want(1, 256 * MiB)]);
  const auto most = all.want(2, 896 * MiB, 100 * ms);
  all.pass(200 * ms);
  EXPECT_FALSE(all.has(most));
  EXPECT_TRUE(all.has(all.want(2, 768 * MiB, 100 * ms)));
  EXPECT_TRUE(all.has(all.want(1, 256 * MiB, 100 * ms)));
}

TEST(MarketOwner, ATenantIsRecalledAfterItsStayByItsOverageAndOnce) {
  desk all(1024 * MiB, {{}, {}, {.guarantee_bytes = 512 * MiB}});
  const auto large = all.want(1, 640 * MiB);
  const auto small = all.want(2, 192 * MiB);
  ASSERT_TRUE(all.has(large) && all.has(small));
  const auto wanted = all.want(3, 512 * MiB, 5000 * ms);
  EXPECT_TRUE(all.asks.empty()) << "it has had the memory for 0 ms";
  all.pass(60 * ms);
  ASSERT_TRUE(all.asks.contains(1)) << "the larger overage";
  EXPECT_FALSE(all.asks.contains(2)) << "one is enough";
  EXPECT_EQ(all.asks[1].bytes, 400 * MiB) << "320 and a quarter";
  const auto first = all.asks[1].request;
  all.pass(20 * ms);
  EXPECT_EQ(all.asks[1].request, first) << "recalled again";
  all.cannot(1);
  EXPECT_TRUE(all.asks.contains(2)) << "the next one";
  all.give(2, all.lots[small]);
  EXPECT_FALSE(all.has(wanted));
  all.pass(150 * ms);
  EXPECT_NE(all.asks[1].request, first) << "not recalled again";
  all.pass(500 * ms);
  EXPECT_TRUE(all.owner.state().rows()[0].overdue);
  all.give(1, all.lots[large]);
  EXPECT_TRUE(all.has(wanted));
  EXPECT_FALSE(all.owner.state().rows()[0].overdue);
}

// An allocator tries free memory before it gives up its own idle memory and waits.
TEST(MarketOwner, ARequestThatDoesNotWaitRecallsNothing) {
  desk all(1024 * MiB, {{}, {}});
  EXPECT_TRUE(all.has(all.want(1, 1024 * MiB)));
  all.pass(100 * ms);
  all.idle.insert(1);  // or its answer would hide the recall
  const auto at_once = all.want(2, 64 * MiB, 0);
  EXPECT_EQ(all.denied.at(at_once), market_reason::deadline);
  EXPECT_TRUE(all.asks.empty());
  (void)all.want(2, 64 * MiB);
  EXPECT_TRUE(all.asks.contains(1));
}

TEST(MarketOwner, RefaultsBuyPeaceFromBorrowers) {
  desk all(1024 * MiB, {{}, {.priority = 1}});
  auto mine = all.want(1, 1024 * MiB);
  const auto theirs = all.want(2, 512 * MiB, 60'000 * ms);
  all.pass(60 * ms);
  ASSERT_TRUE(all.asks.contains(1));
  all.give(1, all.lots[mine]);
  all.pass(4 * ms);
  ASSERT_TRUE(all.has(theirs));
  mine = all.want(1, 512 * MiB);  // again, at once
  ASSERT_TRUE(all.has(mine));
  const auto before = all.asks[1].request;
  (void)all.want(2, 256 * MiB, 60'000 * ms);
  all.pass(5000 * ms);
  EXPECT_EQ(all.asks[1].request, before);
  all.pass(6000 * ms);
  EXPECT_NE(all.asks[1].request, before) << "the peace is over";
}

// Not before they have waited for a second: a tenant that waits may have threads that do not.
TEST(MarketOwner, WhereAllWaitTheLowestAndYoungestIsRefused) {
  // What the tenants hold and request in parts of 64 MiB, and the tenant that is refused.
  constexpr std::array<std::array<std::uint64_t, 7>, 3> cases{{
      {5, 5, 6, 1, 1, 1, 3},    // the youngest
      {5, 2, 9, 1, 1, 1, 1},    // of the lowest class the one that loses less
      {1, 4, 11, 12, 2, 2, 3},  // the memory of the first serves no request
  }};
  for (const auto& each : cases) {
    desk all(1024 * MiB);
    for (std::uint64_t i = 1; i <= 3; ++i) all.join(i, {.priority = std::uint8_t{i == 2}});
    for (std::uint64_t i = 1; i <= 3; ++i) (void)all.want(i, each[i - 1] * 64 * MiB);
    all.pass(400 * ms);
    std::map<std::uint64_t, std::uint64_t> waits;
    for (std::uint64_t i = 1; i <= 3; ++i) {
      EXPECT_TRUE(all.denied.empty()) << "others have memory and do not wait";
      waits[i] = all.want(i, each[i + 2] * 64 * MiB, 60'000 * ms);
      all.pass(ms);
    }
    for (int turn = 0; turn < 4; ++turn) {  // a refused ask does not stand for ever
      EXPECT_TRUE(turn >= 2 || all.denied.empty());
      for (const auto& [connection, ask] : std::map(all.asks)) all.cannot(connection);
      all.pass(turn == 1 ? 1000 * ms : ms);
    }
    EXPECT_EQ(all.denied.size(), 1u);
    EXPECT_EQ(all.denied[waits[each[6]]], market_reason::deadlock);
  }
}

TEST(MarketOwner, BetweenGroupsMemoryIsReleasedOnceTheLastImportHasEnded) {
  desk all(256 * MiB);
  all.keeps_imports = true;
  all.join(1, {}, "one");
  all.join(2, {}, "one");
  all.join(3, {}, "two");
  auto lot = all.want(1, 256 * MiB);
  all.give(1, all.lots[lot]);
  lot = all.want(2, 256 * MiB);
  EXPECT_EQ(all.lots[lot][0].id, all.lots[all.order[0]][0].id) << "handed over in the group";
  EXPECT_TRUE(all.lots[lot][0].must_clear);
  EXPECT_EQ(all.creates, 1);
  all.give(2, all.lots[lot]);
  const auto other = all.want(3, 256 * MiB, 5000 * ms);
  EXPECT_FALSE(all.has(other));
  for (const std::uint64_t each : {1u, 2u}) {
    ASSERT_EQ(all.drops[each].handle_count, 1u);
    EXPECT_FALSE(all.has(other)) << "an import is left";
    market_message gone = all.drops[each];
    gone.kind = market_kind::dropped;
    all.say(each, gone);
  }
  EXPECT_EQ(all.creates, 1) << "it is being cleared";
  all.pass(4 * ms);
  ASSERT_TRUE(all.has(other));
  EXPECT_EQ(all.creates, 2);
  EXPECT_FALSE(all.lots[other][0].must_clear) << "the driver cleared it";
}

TEST(MarketOwner, OneJobClearsNothing) {
  desk all(256 * MiB);
  all.join(1, {}, "g", 9);
  all.join(2, {}, "g", 9);
  auto lot = all.want(1, 256 * MiB);
  all.give(1, all.lots[lot]);
  lot = all.want(2, 256 * MiB);
  EXPECT_FALSE(all.lots[lot][0].must_clear);
}

TEST(MarketOwner, ARefusedCreateIsNotRepeatedBeforeARelease) {
  desk all(1024 * MiB, {{}});
  const auto mine = all.want(1, 512 * MiB);
  all.join(2);
  all.refuses = true;
  const auto wanted = all.want(2, 512 * MiB, 5000 * ms);
  EXPECT_EQ(all.creates, 2);
  all.refuses = false;
  for (int i = 0; i < 90; ++i) all.pass(10 * ms);
  EXPECT_EQ(all.creates, 2) << "the driver is polled";
  EXPECT_EQ(all.owner.state().records.sums().free_bytes, 0u);
  all.give(1, all.lots[mine]);
  EXPECT_TRUE(all.has(wanted)) << "it has the other's";
  EXPECT_EQ(all.creates, 2);
}

TEST(MarketOwner, ALotThatIsNotWholeIsFreeAgain) {
  desk all(1024 * MiB, {{}});
  all.give(1, all.lots[all.want(1, 128 * MiB)]);
  all.refuses = true;
  (void)all.want(1, 512 * MiB, 100 * ms);
  EXPECT_EQ(all.owner.state().records.sums().free_bytes, 128 * MiB);
  EXPECT_EQ(all.owner.state().records.sums().granted_bytes, 0u);
}

TEST(MarketOwner, ATenantLeavesWhileALotIsOnItsWay) {
  desk all(1024 * MiB, {{}, {}});
  const auto lost = all.want(1, 1024 * MiB);
  all.say(1, desk::of(market_kind::leave));
  EXPECT_FALSE(all.refused.contains(1));
  const auto lot = all.want(2, 1024 * MiB);
  ASSERT_TRUE(all.has(lot));
  EXPECT_EQ(all.lots[lot][0].id, all.lots[lost][0].id);
  EXPECT_TRUE(all.lots[lot][0].must_clear);
}

TEST(MarketOwner, ARepeatedRequestHasOneEnd) {
  desk all(1024 * MiB, {{}});
  const auto lot = all.want(1, 512 * MiB);
  market_message again = desk::of(market_kind::want);
  again.request = lot;
  again.bytes = again.wish_bytes = 512 * MiB;
  all.say(1, again);
  EXPECT_EQ(all.lots[lot].size(), 2u) << "the same handle twice";
  EXPECT_EQ(all.lots[lot][0].id, all.lots[lot][1].id);
  EXPECT_EQ(all.owner.state().records.sums().granted_bytes, 512 * MiB);
}

TEST(MarketOwner, TwoThatUseOneHandleKeepItFromOthers) {
  desk all(1024 * MiB, true);
  const market_handle claimed{.id = 7, .generation = 4, .granules = 32, .in_use = true};
  for (const std::uint64_t each : {1u, 2u}) {
    market_message hello = all.hello({});
    hello.tenant = each;
    hello.epoch = 99;  // of an earlier owner
    all.say(each, hello);
    market_message list = desk::of(market_kind::inventory);
    list.handles[list.handle_count++] = claimed;
    all.say(each, list);
  }
  EXPECT_TRUE(all.closed.empty());
  all.keeps_imports = true;
  all.give(1, {claimed});
  all.join(3);
  const auto lot = all.want(3, 64 * MiB);
  ASSERT_TRUE(all.has(lot));
  EXPECT_NE(all.lots[lot][0].id, 7u);
  EXPECT_EQ(all.drops[2].handle_count, 1u);
}

TEST(MarketOwner, AHandleThatAnotherHasDroppedIsClaimedAfterwards) {
  desk all(1024 * MiB, true);
  all.returns_releases = false;
  for (const std::uint64_t each : {1u, 2u}) {
    market_message hello = all.hello({});
    hello.tenant = each;
    hello.epoch = 99;
    all.say(each, hello);
    market_message list = desk::of(market_kind::inventory);
    list.handles[list.handle_count++] = {
        .id = 7, .generation = 4, .granules = 32, .in_use = each == 2};
    all.say(each, list);  // the first one has an idle import, and drops it
  }
  EXPECT_TRUE(all.closed.empty());
  EXPECT_EQ(all.owner.state().records.sums().granted_bytes, 64 * MiB);
  all.owner.released(7, all.now);
  EXPECT_EQ(all.owner.state().records.sums().granted_bytes, 64 * MiB);
}

TEST(MarketOwner, AfterAnOwnersEndANewGuaranteeWaitsForTheEarlierTenants) {
  desk all(1024 * MiB, true);
  market_message late = all.hello({.guarantee_bytes = 768 * MiB});
  all.say(1, late);
  all.say(2, all.hello({.guarantee_bytes = 768 * MiB}));
  market_message earlier = all.hello({.guarantee_bytes = 512 * MiB});
  earlier.tenant = 4;
  earlier.epoch = 99;
  all.say(3, earlier);
  all.pass(1100 * ms);
  EXPECT_EQ(all.refused[1], market_reason::guarantees);
  EXPECT_EQ(all.refused[2], market_reason::guarantees);
  EXPECT_FALSE(all.refused.contains(3));
}

// As a program that is started again at once.
TEST(MarketOwner, AGuaranteeWaitsForThatOfAnEndedTenant) {
  desk all(1024 * MiB);
  const market_share share{.guarantee_bytes = 768 * MiB};
  all.join(1, share);
  all.say(2, all.hello(share));
  EXPECT_EQ(all.refused[2], market_reason::guarantees) << "it runs";
  EXPECT_TRUE(all.has(all.want(1, 64 * MiB)));
  all.owner.lost(1, all.now);
  all.owner.ended(1, all.now);
  all.owner.witness_closed(1, all.now);
  all.pass(10 * ms);
  all.say(3, all.hello({.guarantee_bytes = 896 * MiB + 1}));
  EXPECT_EQ(all.refused[3], market_reason::guarantees) << "it never fits";
  all.say(4, all.hello(share));
  EXPECT_FALSE(all.welcomed.contains(4) || all.refused.contains(4));
  all.pass(200 * ms);
  EXPECT_TRUE(all.welcomed.contains(4));
}

TEST(MarketOwner, LimitsHoldForRequestsTogether) {
  desk all(1024 * MiB, {{.limit_bytes = 128 * MiB}, {}});
  const auto all_memory = all.want(2, 1024 * MiB);
  const auto one = all.want(1, 128 * MiB, 1000 * ms);
  const auto two = all.want(1, 128 * MiB, 1000 * ms);
  all.give(2, all.lots[all_memory]);
  all.pass(4 * ms);
  EXPECT_TRUE(all.has(one));
  EXPECT_FALSE(all.has(two));
  EXPECT_EQ(all.denied[all.want(1, 2 * MiB)], market_reason::limit);
}

// Beyond the owner's memory, less what others' firm guarantees keep, or beyond the limit.
TEST(MarketOwner, ARequestThatCanNeverBeServedIsRefusedAtOnce) {
  desk all(1024 * MiB, {{},
                        {.guarantee_bytes = 256 * MiB},
                        {.guarantee_bytes = 64 * MiB, .elastic = true},
                        {.guarantee_bytes = 64 * MiB, .limit_bytes = 128 * MiB}});
  EXPECT_EQ(all.kept[1], 192 * MiB) << "128 MiB of the second, and the fourth's 64";
  EXPECT_EQ(all.kept[2], 64 * MiB);
  const auto held = all.want(2, 2 * MiB);
  EXPECT_TRUE(all.has(held));
  const auto later = all.want(1, 832 * MiB);
  EXPECT_FALSE(all.denied.contains(later)) << "the second tenant may give back";
  EXPECT_EQ(all.denied[all.want(1, 834 * MiB)], market_reason::too_large);
  EXPECT_EQ(all.denied[all.want(3, 2048 * MiB)], market_reason::too_large);
  EXPECT_EQ(all.denied[all.want(4, 130 * MiB)], market_reason::limit);
  all.give(2, all.lots[held]);
  EXPECT_TRUE(all.has(later));
  all.say(2, desk::of(market_kind::leave));
  EXPECT_EQ(all.kept[1], 64 * MiB);
  EXPECT_FALSE(all.denied.contains(all.want(3, 834 * MiB)));
}

// Of one group and name: one guarantee, one limit, and what one has idle serves the other.
TEST(MarketOwner, TenantsOfAProcessHaveOneShare) {
  desk all(1024 * MiB);
  const market_share share{.guarantee_bytes = 640 * MiB, .limit_bytes = 768 * MiB};
  all.processes = {{1, 7}, {2, 7}, {3, 8}, {4, 9}};
  all.join(1, share);
  all.join(2, {.limit_bytes = 64 * MiB});
  EXPECT_TRUE(all.welcomed.contains(2));
  all.join(3);
  EXPECT_EQ(all.kept[3], 128 * MiB);
  all.say(4, all.hello(share));
  EXPECT_EQ(all.refused[4], market_reason::guarantees);
  const auto borrowed = all.want(3, 384 * MiB);
  const auto first = all.want(1, 512 * MiB), second = all.want(2, 128 * MiB);
  EXPECT_TRUE(all.has(borrowed) && all.has(first) && all.has(second));
  EXPECT_FALSE(all.has(all.want(2, 2 * MiB, 0))) << "it is beyond their guarantee";
  all.give(3, all.lots[borrowed]);
  EXPECT_EQ(all.denied[all.want(2, 192 * MiB)], market_reason::limit) << "the other has none idle";
  all.idle.insert(1);
  all.pass(1 * ms);
  const auto third = all.want(2, 192 * MiB);
  EXPECT_EQ(all.asks[1].bytes, 64 * MiB);
  all.give(1, all.lots[first]);
  all.pass(4 * ms);
  EXPECT_TRUE(all.has(third));
  market_message change = desk::of(market_kind::set_share);
  change.tenant = 2;
  change.share.limit_bytes = 256 * MiB;
  all.say(9, change);
  EXPECT_EQ(all.owner.state().records.tenant(1)->share, change.share);
  all.pass(100 * ms);
  EXPECT_EQ(all.asks[2].bytes, 64 * MiB) << "together they have more than that";
}

// Also that within the guarantee, which they have together.
TEST(MarketOwner, IdleMemoryOfItsProcessIsRecalledFirst) {
  desk all(1024 * MiB);
  const market_share share{.guarantee_bytes = 256 * MiB, .limit_bytes = 512 * MiB};
  all.processes = {{1, 7}, {2, 7}, {3, 8}};
  all.join(1, share);
  all.join(2, share);
  all.join(3, {.guarantee_bytes = 640 * MiB});
  const auto first = all.want(1, 256 * MiB), other = all.want(3, 640 * MiB);
  EXPECT_TRUE(all.has(first) && all.has(other));
  all.idle = {1, 3};
  const auto second = all.want(2, 256 * MiB);
  EXPECT_GE(all.asks[1].bytes, 128 * MiB);
  EXPECT_FALSE(all.asks.contains(3)) << "it has its guarantee";
  all.give(1, all.lots[first]);
  all.pass(4 * ms);
  EXPECT_TRUE(all.has(second));
}

TEST(MarketOwner, WhatBreaksTheProtocolEndsTheConnection) {
  const auto broken = [](const std::function<void(desk&)>& what) {
    desk all(1024 * MiB, {{}});
    what(all);
    return all.closed.contains(1);
  };
  EXPECT_TRUE(broken([](desk& all) { all.say(1, all.hello({})); }));
  EXPECT_TRUE(broken([](desk& all) { all.say(1, desk::of(market_kind::inventory)); }));
  EXPECT_TRUE(broken([](desk& all) { all.say(1, desk::of(market_kind::grant)); }));
  EXPECT_TRUE(broken([](desk& all) { (void)all.want(1, 3 * MiB); }));
  EXPECT_TRUE(broken([](desk& all) {
    market_message old = desk::of(market_kind::leave);
    old.epoch = 4;
    all.say(1, old);
  }));
  EXPECT_TRUE(broken([](desk& all) {
    const auto lot = all.want(1, 64 * MiB);
    market_message gone = desk::of(market_kind::dropped);
    gone.handles[gone.handle_count++] = all.lots[lot][0];
    all.say(1, gone);
  })) << "it drops what it has";
  EXPECT_FALSE(broken([](desk& all) { (void)all.want(1, 64 * MiB); }));
}

TEST(MarketOwner, ALostDeviceEndsAll) {
  desk all(1024 * MiB, {{}, {}});
  (void)all.want(1, 512 * MiB);
  (void)all.want(2, 512 * MiB);
  const auto waits = all.want(1, 64 * MiB, 60'000 * ms);  // refused after its stay, not before
  all.owner.lose_device(all.now);
  all.pump();
  EXPECT_EQ(all.denied[waits], market_reason::device_lost);
  EXPECT_EQ(all.refused[1], market_reason::device_lost);
  EXPECT_TRUE(all.closed.contains(1));
}

}  // namespace

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: shares hold over time: which tenant waits, gives, joins, and in which order.
// Method: an owner's machine whose driver returns at once, and a clock of the test.
#include "desk.hpp"
#include "loans.hpp"

namespace {

using namespace market_test;

bool is_overdue(desk& all, std::uint64_t tenant) {
  const auto rows = all.owner.state().rows();
  return std::ranges::any_of(
      rows, [&](const auto& each) { return each.tenant == tenant && each.overdue; });
}

TEST(MarketPolicy, OnlyWhatWasGrantedLastStays) {
  desk all(1024 * MiB, {{}, {.guarantee_bytes = 512 * MiB}});
  (void)all.want(1, 640 * MiB);
  all.pass(40 * ms);
  const auto recent = all.want(1, 64 * MiB);
  ASSERT_TRUE(all.has(recent));
  (void)all.want(2, 512 * MiB, 5000 * ms);
  all.pass(20 * ms);
  ASSERT_TRUE(all.asks.contains(1)) << "a recent lot protects an older one";
  EXPECT_LE(all.asks[1].bytes, 640 * MiB);
}

TEST(MarketPolicy, AStoppedTenantsImportDelaysOthersByOneAsk) {
  desk all(1024 * MiB);
  all.join(1, {}, "one");
  all.join(2, {}, "two");
  all.join(3, {.guarantee_bytes = 384 * MiB}, "two");
  all.give(1, all.lots[all.want(1, 256 * MiB)]);
  all.stopped.insert(1);
  const auto theirs = all.want(2, 640 * MiB);
  ASSERT_TRUE(all.has(theirs));
  all.pass(60 * ms);
  const auto wanted = all.want(3, 384 * MiB, 60'000 * ms);
  EXPECT_FALSE(all.has(wanted)) << "the import of the first tenant";
  EXPECT_FALSE(all.asks.contains(2));
  all.pass(110 * ms);
  EXPECT_TRUE(is_overdue(all, 1));
  ASSERT_TRUE(all.asks.contains(2)) << "the lot waits for the stopped tenant";
  all.give(2, all.lots[theirs]);
  all.pass(4 * ms);
  EXPECT_TRUE(all.has(wanted));
  EXPECT_TRUE(all.owner.state().counts.overdue_count == 1);
  market_message gone = all.drops[1];
  gone.kind = market_kind::dropped;
  all.say(1, gone);
  EXPECT_FALSE(is_overdue(all, 1));
  EXPECT_EQ(all.owner.state().records.sums().void_bytes, 0u);
}

TEST(MarketPolicy, MemoryOfASlowTenantIsReleasedLast) {
  desk all(1024 * MiB);
  all.join(1, {}, "one");
  all.join(2, {}, "one");
  all.join(3, {}, "two");
  const auto lot = all.want(1, 256 * MiB), other = all.want(2, 512 * MiB);
  all.give(1, all.lots[lot]);
  all.give(2, all.lots[other]);
  all.stopped.insert(1);
  all.owner.lost(1, all.now);
  const auto wanted = all.want(3, 512 * MiB);
  all.pass(4 * ms);
  EXPECT_TRUE(all.has(wanted)) << "the smaller handle has an import that does not end";
}

TEST(MarketPolicy, PeaceDoesNotHoldAgainstAGuarantee) {
  desk all(1024 * MiB, {{}, {.priority = 1}, {.guarantee_bytes = 512 * MiB}});
  const auto mine = all.want(1, 896 * MiB);
  (void)all.want(2, 384 * MiB, 1000 * ms);
  all.pass(60 * ms);
  ASSERT_TRUE(all.asks.contains(1));
  all.give(1, all.lots[mine]);
  all.pass(4 * ms);
  ASSERT_TRUE(all.has(all.want(1, 512 * MiB))) << "again, at once: it has peace";
  all.pass(100 * ms);
  const auto before = all.asks[1].request;
  (void)all.want(3, 512 * MiB, 60'000 * ms);
  EXPECT_NE(all.asks[1].request, before);
}

// Each peak is more than an equal part of the device, and begins when the other's has ended.
TEST(MarketPolicy, TurnsOfIdleMemoryNeedNoTime) {
  desk all(1024 * MiB, {{}, {}});
  all.idle = {1, 2};
  std::vector<market_handle> idle;
  for (std::uint64_t turn = 0; turn < 12; ++turn) {
    const std::uint64_t self = turn % 2 + 1, other = 3 - self;
    all.asks.clear();
    const auto wanted = all.want(self, 768 * MiB, 10'000 * ms);
    if (turn != 0) {
      ASSERT_TRUE(all.asks.contains(other)) << turn;
      EXPECT_TRUE(all.asks[other].only_idle);
      all.give(other, idle);
    }
    ASSERT_TRUE(all.has(wanted)) << turn;
    idle = all.lots[wanted];
  }
  EXPECT_EQ(all.owner.state().counts.refault_bytes, 0u);
  // Memory in use stays with its tenant for its time, and beyond its part of the device.
  const auto wanted = all.want(1, 768 * MiB, 10'000 * ms);
  all.cannot(2);
  all.asks.clear();
  all.pass(10 * ms);
  EXPECT_FALSE(all.asks.contains(2)) << "recalled again at once";
  all.pass(15 * ms);
  ASSERT_TRUE(all.asks.contains(2));
  EXPECT_TRUE(all.asks[2].only_idle);
  EXPECT_FALSE(all.has(wanted));
}

// A loan for growths with handles of 96 MiB, whose last one may be smaller.
TEST(MarketPolicy, ALotIsCutForTheRequestsThatItServes) {
  desk all(2048 * MiB, {{}});
  all.give(1, all.lots[all.want(1, 1024 * MiB)]);
  market_message message = desk::of(market_kind::want);
  message.request = ++all.last;
  message.bytes = message.wish_bytes = 384 * MiB;
  message.unit_bytes = 96 * MiB;
  message.within_ns = 1000 * ms;
  all.say(1, message);
  const std::vector<market_handle>& lot = all.lots[all.last];
  EXPECT_LE(lot.size(), 3u * 2u + 7u);
  for (std::uint64_t end_bytes = 2 * MiB; end_bytes <= 96 * MiB; end_bytes += 2 * MiB)
    EXPECT_TRUE(serves(lot, std::array{96 * MiB, 96 * MiB, 96 * MiB, end_bytes})) << end_bytes;
}

TEST(MarketPolicy, ALoweredLimitIsReachedByRecalls) {
  desk all(1024 * MiB, {{}});
  const auto lot = all.want(1, 512 * MiB);
  market_message share = desk::of(market_kind::set_share);
  share.tenant = 1;
  share.share.limit_bytes = 256 * MiB;
  all.say(99, share);
  ASSERT_TRUE(all.asks.contains(1));
  EXPECT_EQ(all.asks[1].bytes, 256 * MiB);
  const auto first = all.asks[1].request;
  all.cannot(1);
  EXPECT_EQ(all.asks[1].request, first) << "recalled again at once";
  all.pass(110 * ms);
  EXPECT_NE(all.asks[1].request, first) << "it has more than its limit";
  all.give(1, all.lots[lot]);
  EXPECT_EQ(all.owner.state().records.sums().granted_bytes, 0u);
}

TEST(MarketPolicy, InAClassTheOneThatHeldLessGoesFirst) {
  desk all(1024 * MiB, {{}, {}, {}});
  (void)all.want(1, 512 * MiB);
  (void)all.want(2, 64 * MiB);
  std::vector<std::uint64_t> lots;
  for (int i = 0; i < 7; ++i) lots.push_back(all.want(3, 64 * MiB));
  ASSERT_TRUE(all.has(lots.back()));
  all.pass(20'000 * ms);
  const auto greedy = all.want(1, 64 * MiB, 60'000 * ms);
  const auto modest = all.want(2, 64 * MiB, 60'000 * ms);
  all.give(3, all.lots[lots[0]]);
  EXPECT_TRUE(all.has(modest)) << "a borrower of half the device goes first by its age";
  EXPECT_FALSE(all.has(greedy));
  all.pass(1100 * ms);
  const auto again = all.want(2, 64 * MiB, 60'000 * ms);
  all.give(3, all.lots[lots[1]]);
  EXPECT_TRUE(all.has(greedy)) << "age lifts a request over all credit";
  EXPECT_FALSE(all.has(again));
}

// Two peaks that do not fit together: the first tenant ends after a small request.
TEST(MarketPolicy, ARequestThatFitsPassesOneThatWaitsForItsTenantsEnd) {
  for (const std::uint64_t guarantee_bytes : {std::uint64_t{0}, 640 * MiB}) {
    desk all(1024 * MiB, {{}, {.guarantee_bytes = guarantee_bytes}, {}});
    if (guarantee_bytes != 0) (void)all.want(3, 2 * MiB);  // it may give that: no deadlock
    const auto first = all.want(1, 544 * MiB, 10'000 * ms);
    const auto large = all.want(2, 544 * MiB, 10'000 * ms);
    all.pass(2000 * ms);
    all.cannot(1);
    const auto small = all.want(1, 8 * MiB, 10'000 * ms);
    EXPECT_FALSE(all.has(small)) << "the other one may be served soon";
    const std::int64_t next_ns = all.owner.next_deadline_ns();
    EXPECT_LE(next_ns, all.now + 125 * ms);
    all.pass(125 * ms);
    EXPECT_EQ(all.has(small), guarantee_bytes == 0);
    all.give(1, all.lots[first]);
    EXPECT_TRUE(all.has(large) && all.has(small));
  }
}

TEST(MarketPolicy, LotsWithinAGuaranteeAreCollectedFirst) {
  desk all(1024 * MiB, {{}, {.guarantee_bytes = 64 * MiB}});
  all.holds_creates = true;
  const auto first = all.want(1, 64 * MiB);
  const auto second = all.want(1, 64 * MiB);
  const auto guaranteed = all.want(2, 64 * MiB);
  for (int left = 3; left > 0; --left) all.end_create();
  EXPECT_EQ(all.order, (std::vector{guaranteed, first, second}));
}

// A lot of many handles takes a while, and cannot be recalled before it is granted.
TEST(MarketPolicy, ALotThatIsCollectedIsGivenUpForAGuarantee) {
  desk all(1024 * MiB,
           {{.guarantee_bytes = 128 * MiB}, {.guarantee_bytes = 512 * MiB, .elastic = true}, {}});
  all.holds_creates = true;
  const auto own = all.want(1, 96 * MiB);
  const auto large = all.want(3, 768 * MiB, 10'000 * ms);
  const auto guaranteed = all.want(2, 512 * MiB, 10'000 * ms);
  while (!all.has(guaranteed)) {
    ASSERT_NE(all.held, 0u) << "no create is due";
    all.end_create();
  }
  EXPECT_TRUE(all.has(own)) << "within its guarantee, too";
  EXPECT_FALSE(all.has(large));
}

// Tenants that keep what they have for 0.3 s and request it again.
TEST(MarketPolicy, SmallRequestsDoNotStarveALargeOne) {
  desk all(1024 * MiB);
  std::map<std::uint64_t, std::uint64_t> small;
  for (std::uint64_t each = 1; each <= 7; ++each) all.join(each);
  for (std::uint64_t each = 1; each <= 6; ++each) small[each] = all.want(each, 96 * MiB);
  const auto large = all.want(7, 640 * MiB, 10'000 * ms);
  std::uint64_t turns = 0;
  for (int step = 0; step < 999 && !all.has(large); ++step) {
    all.pass(10 * ms);
    for (auto& [tenant, request] : small) {
      if ((static_cast<std::uint64_t>(step) + 5 * tenant) % 30 != 0 || !all.has(request)) continue;
      all.give(tenant, all.lots[request]);
      request = all.want(tenant, 96 * MiB, 10'000 * ms);
      ++turns;
    }
  }
  EXPECT_TRUE(all.has(large));
  EXPECT_GT(turns, 10u);
}

TEST(MarketPolicy, CreditIsForgotten) {
  desk all(1024 * MiB, {{}, {}});
  const auto lot = all.want(1, 1024 * MiB);
  all.pass(60'000 * ms);
  all.give(1, all.lots[lot]);
  const auto credit = [&](std::size_t place) {
    return all.owner.state().records.tenants()[place].credit_byte_s;
  };
  const double before = credit(1) - credit(0);
  EXPECT_GT(before, 0.0);
  for (int i = 0; i < 60; ++i) all.pass(10'000 * ms);
  EXPECT_LT(credit(1) - credit(0), before / 100);
}

TEST(MarketPolicy, AGuaranteeWaitsForRoomAndSmallerOnesDoNotStarveIt) {
  desk all(1024 * MiB, {{.guarantee_bytes = 512 * MiB}});
  const auto hello = [&](std::uint64_t connection, std::uint64_t bytes, std::int64_t within) {
    market_message message = all.hello({.guarantee_bytes = bytes});
    message.within_ns = static_cast<std::uint64_t>(within);
    all.say(connection, message);
  };
  hello(2, 768 * MiB, 10'000 * ms);
  EXPECT_FALSE(all.welcomed.contains(2) || all.refused.contains(2));
  hello(3, 128 * MiB, 0);
  EXPECT_TRUE(all.welcomed.contains(3)) << "it fits beside both";
  hello(4, 64 * MiB, 0);
  EXPECT_EQ(all.refused[4], market_reason::guarantees) << "it would keep the second one out";
  hello(5, 64 * MiB, 1000 * ms);
  hello(6, 1000 * MiB, 60'000 * ms);
  EXPECT_EQ(all.refused[6], market_reason::guarantees) << "it never fits";
  all.pass(1100 * ms);
  EXPECT_EQ(all.refused[5], market_reason::guarantees) << "its time has passed";
  EXPECT_FALSE(all.refused.contains(2));
  all.say(1, desk::of(market_kind::leave));
  EXPECT_TRUE(all.welcomed.contains(2));
}

TEST(MarketPolicy, AGroupHasTheSecretOfItsFirstTenant) {
  desk all(1024 * MiB);
  const auto hello = [&](std::uint64_t connection, int secret) {
    market_message message = all.hello({});
    message.key[0] = static_cast<std::byte>(secret);
    all.say(connection, message);
    if (all.welcomed.contains(connection)) all.say(connection, desk::of(market_kind::inventory));
  };
  hello(1, 7);
  hello(2, 7);
  EXPECT_TRUE(all.welcomed.contains(2));
  hello(3, 8);
  EXPECT_EQ(all.refused[3], market_reason::secret);
  EXPECT_FALSE(all.welcomed.contains(3));
  all.give(1, all.lots[all.want(1, 64 * MiB)]);
  for (const std::uint64_t each : {1u, 2u}) all.say(each, desk::of(market_kind::leave));
  hello(4, 8);
  EXPECT_EQ(all.refused[4], market_reason::secret) << "the owner has bytes of the group";
}

TEST(MarketPolicy, ADrainTurnsAwayThoseThatWait) {
  desk all(1024 * MiB, {{.guarantee_bytes = 512 * MiB}});
  market_message message = all.hello({.guarantee_bytes = 768 * MiB});
  message.within_ns = 10'000'000'000;
  all.say(2, message);
  all.say(99, desk::of(market_kind::drain));
  EXPECT_EQ(all.refused[2], market_reason::draining);
  EXPECT_TRUE(all.closed.contains(2));
}

TEST(MarketPolicy, ADeadlockDoesNotEndAGuaranteedRequest) {
  desk all(1024 * MiB, {{.priority = 1}, {.guarantee_bytes = 256 * MiB}});
  (void)all.want(1, 832 * MiB);
  (void)all.want(2, 128 * MiB);
  all.pass(100 * ms);
  const auto guaranteed = all.want(2, 128 * MiB, 60'000 * ms);
  const auto borrowed = all.want(1, 64 * MiB, 60'000 * ms);
  for (const std::int64_t passed : {1000 * ms, 1 * ms}) {
    all.cannot(1);
    all.pass(passed);
  }
  EXPECT_EQ(all.denied[borrowed], market_reason::deadlock);
  EXPECT_FALSE(all.denied.contains(guaranteed));
}

// Only its own memory could serve it, or that of a guarantee, which is never lent.
TEST(MarketPolicy, ARequestThatNoOtherTenantCanServeIsRefusedAtOnce) {
  for (const std::uint64_t guarantee_bytes : {std::uint64_t{0}, 64 * MiB}) {
    desk all(1024 * MiB, {{}, {.guarantee_bytes = guarantee_bytes}});
    const auto lot = all.want(1, 512 * MiB);
    const std::uint64_t most_bytes = 512 * MiB - guarantee_bytes;
    const auto beyond = all.want(1, most_bytes + 2 * MiB, 60'000 * ms);
    EXPECT_EQ(all.denied[beyond], market_reason::limit);
    (void)all.want(2, 64 * MiB);
    const auto whole = all.want(1, most_bytes, 60'000 * ms);
    EXPECT_FALSE(all.denied.contains(whole));
    EXPECT_EQ(all.has(whole), guarantee_bytes != 0);
    all.give(1, all.lots[lot]);
    EXPECT_TRUE(all.has(whole));
  }
}

// Its memory is free after a delay; its guarantee is that of its successor at once.
TEST(MarketPolicy, AKilledTenantsGuaranteeKeepsNothing) {
  desk all(1024 * MiB, {{}, {.guarantee_bytes = 128 * MiB}});
  (void)all.want(1, 768 * MiB);
  all.owner.ended(2, all.now);
  all.pump();
  all.join(3, {.guarantee_bytes = 128 * MiB});
  EXPECT_EQ(all.kept[1], 128 * MiB);
  EXPECT_TRUE(all.has(all.want(1, 128 * MiB)));
}

TEST(MarketPolicy, TimeInWhichSomeAndAllWaitIsCounted) {
  desk all(1024 * MiB, {{}, {}});
  (void)all.want(1, 512 * MiB);
  (void)all.want(2, 512 * MiB);
  all.pass(60 * ms);
  (void)all.want(2, 64 * MiB, 60'000 * ms);
  all.pass(10 * ms);
  (void)all.want(1, 64 * MiB, 60'000 * ms);
  all.pass(5 * ms);
  EXPECT_EQ(all.owner.state().counts.some_waited_ns, 15 * ms);
  EXPECT_EQ(all.owner.state().counts.all_waited_ns, 5 * ms);
}

}  // namespace

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a connection opens only for two sides with one secret, and each side accepts only messages
// that are legal at that point.
// Method: two sessions whose messages the test carries; every message at every stage that must
// refuse it; random walks of two honest sides, after which both agree on every loan.
#include <deque>
#include <new>

#include "../support/test.h"
#include "messages.hpp"

namespace {

using vmm::errc, vmm::loan_state, vmm::share_message, vmm::share_message_kind, vmm::share_role,
    vmm::share_session;
using meaning = vmm::share_session::meaning;

share_session side(share_role role, unsigned char secret, unsigned char nonce) {
  return {role, share_test::secret_of(secret), share_test::secret_of(nonce).bytes};
}

struct two_sides {
  share_session client = side(share_role::connecting, 1, 10);
  share_session server = side(share_role::accepting, 1, 20);

  two_sides() {
    EXPECT_TRUE(server.take(client.hello()));
    EXPECT_TRUE(client.take(server.hello()));
    EXPECT_TRUE(server.take(client.proof().value()));
    EXPECT_FALSE(server.is_open()) << "it has not proved itself";
    EXPECT_TRUE(client.take(server.proof().value()));
    EXPECT_TRUE(client.is_open() && server.is_open());
  }
};

TEST(Session, OpensForOneSecret) { const two_sides both; }

// The bytes of the object, and of what it was in when it has ended.
bool has_secret(const unsigned char* bytes, std::size_t size, unsigned char seed) {
  const vmm::share_secret wanted = share_test::secret_of(seed);
  const auto* const begin = reinterpret_cast<const unsigned char*>(wanted.bytes.data());
  const unsigned char* const end = bytes + size;
  return std::search(bytes, end, begin, begin + wanted.bytes.size()) != end;
}

TEST(Session, KeepsTheSecretUntilItIsOpenOrHasEnded) {
  alignas(share_session) std::array<unsigned char, sizeof(share_session)> place{};
  auto* const session = new (place.data()) share_session(side(share_role::connecting, 1, 10));
  EXPECT_TRUE(has_secret(place.data(), place.size(), 1)) << "it needs it";
  session->close();
  EXPECT_FALSE(has_secret(place.data(), place.size(), 1)) << "closed";
  session->~share_session();
  auto* const again = new (place.data()) share_session(side(share_role::connecting, 1, 10));
  again->~share_session();
  EXPECT_FALSE(has_secret(place.data(), place.size(), 1)) << "destroyed";
  const two_sides both;
  for (const share_session* each : {&both.client, &both.server}) {
    const auto* const bytes = reinterpret_cast<const unsigned char*>(each);
    EXPECT_FALSE(has_secret(bytes, sizeof *each, 1)) << "open";
  }
}

TEST(Session, AnotherSecretIsRefusedOnEitherSide) {
  share_session client = side(share_role::connecting, 1, 10);
  share_session server = side(share_role::accepting, 2, 20);
  ASSERT_TRUE(server.take(client.hello()) && client.take(server.hello()));
  EXPECT_EQ(server.take(client.proof().value()).error().code, errc::not_permitted);
  EXPECT_TRUE(server.is_closed());

  // A server that takes any proof, and has another secret.
  share_session honest = side(share_role::connecting, 1, 10);
  share_session liar = side(share_role::accepting, 2, 20);
  (void)honest.hello();
  ASSERT_TRUE(honest.take(liar.hello()));
  (void)honest.proof();
  share_session helper = side(share_role::connecting, 2, 10);
  ASSERT_TRUE(liar.take(helper.hello()));
  EXPECT_EQ(honest.take(liar.proof().value()).error().code, errc::not_permitted);
}

TEST(Session, ANonceThatComesBackIsRefused) {
  share_session client = side(share_role::connecting, 1, 10);
  EXPECT_EQ(client.take(client.hello()).error().code, errc::foreign_error);
}

TEST(Session, TheSidesOwnProofIsNoProof) {
  share_session client = side(share_role::connecting, 1, 10);
  share_session server = side(share_role::accepting, 1, 20);
  ASSERT_TRUE(server.take(client.hello()) && client.take(server.hello()));
  const share_message own = client.proof().value();
  EXPECT_EQ(client.take(own).error().code, errc::not_permitted);
}

TEST(Session, NothingIsTakenBeforeTheProof) {
  for (const share_message_kind kind :
       {share_message_kind::offer, share_message_kind::update, share_message_kind::withdraw,
        share_message_kind::accept, share_message_kind::refuse, share_message_kind::release}) {
    for (const bool greeted : {false, true}) {
      share_session client = side(share_role::connecting, 1, 10);
      share_session server = side(share_role::accepting, 1, 20);
      share_message early;
      early.kind = kind;
      early.block = share_test::block_of(1, 4096);
      if (greeted) {
        ASSERT_TRUE(server.take(client.hello()));
        early.sequence = 1;
      }
      EXPECT_EQ(server.take(early).error().code, errc::foreign_error);
      EXPECT_TRUE(server.is_closed());
    }
  }
}

TEST(Session, ALostOrRepeatedMessageIsRefused) {
  for (const std::uint64_t step : {std::uint64_t{0}, std::uint64_t{2}}) {
    two_sides both;
    auto block = share_test::block_of(1, 4096);
    share_message offer = both.client.offer(block).value();
    offer.sequence = offer.sequence - 1 + step;
    EXPECT_EQ(both.server.take(offer).error().code, errc::foreign_error);
    EXPECT_TRUE(both.server.is_closed());
  }
}

TEST(Session, ABlockGoesAndComesBack) {
  two_sides both;
  auto block = share_test::block_of(2, 4096);
  ASSERT_TRUE(both.server.take(both.client.offer(block).value()));
  EXPECT_EQ(block.id, 1U);
  EXPECT_EQ(both.client.lent(1), loan_state::offered);
  ASSERT_TRUE(both.client.take(both.server.accept(1).value()));
  EXPECT_EQ(both.client.lent(1), loan_state::accepted);
  ASSERT_TRUE(both.server.take(both.client.update(block).value()));
  EXPECT_EQ(both.server.borrowed_epoch(1), 1U);
  EXPECT_EQ(both.client.accepted_epoch(1), 0U);
  ASSERT_TRUE(both.client.take(both.server.accept(1).value()));
  EXPECT_EQ(both.client.accepted_epoch(1), 1U);
  ASSERT_TRUE(both.server.take(both.client.withdraw(1).value()));
  EXPECT_FALSE(both.client.withdraw(1)) << "it was withdrawn before";
  EXPECT_FALSE(both.client.update(block)) << "withdrawn";
  ASSERT_TRUE(both.client.take(both.server.release(1).value()));
  EXPECT_EQ(both.client.lent(1), loan_state::none);
  EXPECT_EQ(both.server.borrowed(1), loan_state::none);
  EXPECT_TRUE(both.client.validate() && both.server.validate());
}

TEST(Session, MessagesThatCrossAreTaken) {
  two_sides both;
  auto block = share_test::block_of(1, 4096);
  ASSERT_TRUE(both.server.take(both.client.offer(block).value()));
  ASSERT_TRUE(both.client.take(both.server.accept(1).value()));
  const share_message withdrawal = both.client.withdraw(1).value();
  const share_message released = both.server.release(1).value();
  EXPECT_EQ(both.server.take(withdrawal).value(), meaning::ignored);
  EXPECT_EQ(both.client.take(released).value(), meaning::reported);
}

TEST(Session, WhatIsOutOfTurnEndsIt) {
  const auto refused = [](auto&& change) {
    two_sides both;
    auto block = share_test::block_of(1, 4096);
    EXPECT_TRUE(both.server.take(both.client.offer(block).value()));
    EXPECT_TRUE(both.client.take(both.server.accept(1).value()));
    share_message to_server = both.client.update(block).value();
    change(to_server);
    const auto taken = both.server.take(to_server);
    return !taken && taken.error().code == errc::foreign_error && both.server.is_closed();
  };
  EXPECT_FALSE(refused([](share_message&) {})) << "as it should be";
  EXPECT_TRUE(refused([](share_message& m) { m.block.epoch = 3; }));
  EXPECT_TRUE(refused([](share_message& m) { m.block.epoch = 0; }));
  EXPECT_TRUE(refused([](share_message& m) { m.block.id = 2; }));
  EXPECT_TRUE(refused([](share_message& m) { m.kind = share_message_kind::offer; }));
  EXPECT_TRUE(refused([](share_message& m) { m.kind = share_message_kind::hello; }));
  EXPECT_TRUE(refused([](share_message& m) { m.kind = share_message_kind::proof; }));
  EXPECT_TRUE(refused([](share_message& m) { m.kind = share_message_kind::accept; }));
  EXPECT_TRUE(refused([](share_message& m) { m.kind = share_message_kind::release; }));
}

TEST(Session, LendsSoManyAtATime) {
  two_sides both;
  auto block = share_test::block_of(1, 4096);
  for (std::size_t i = 0; i < vmm::share_loans_max; ++i)
    ASSERT_TRUE(both.server.take(both.client.offer(block).value())) << i;
  EXPECT_EQ(both.client.offer(block).error().code, errc::in_use);
  ASSERT_TRUE(both.client.take(both.server.refuse_offer(7, errc::out_of_memory).value()));
  EXPECT_EQ(both.client.lent(7), loan_state::none);
  ASSERT_TRUE(both.server.take(both.client.offer(block).value()));
  EXPECT_EQ(block.id, vmm::share_loans_max + 1) << "no number serves twice";
}

// Messages wait in two queues; a side sends or takes as the seed says.
TEST(Session, TwoHonestSidesAgree) {
  constexpr int walks = 50;
  constexpr int steps = 400;
  std::mt19937 random(20261122);
  for (int walk = 0; walk < walks; ++walk) {
    two_sides both;
    std::deque<share_message> to_server;
    std::deque<share_message> to_client;
    std::uint64_t offered = 0;
    for (int step = 0; step < steps; ++step) {
      const std::uint64_t id = offered == 0 ? 1 : 1 + random() % offered;
      auto block = share_test::block_of(1, 4096);
      const auto say = [](std::deque<share_message>& to, const vmm::result<share_message>& made) {
        if (made) to.push_back(*made);
        return made.has_value();
      };
      switch (random() % 8) {
        case 0: offered += say(to_server, both.client.offer(block)) ? 1 : 0; break;
        case 1:
          block.id = id;
          (void)say(to_server, both.client.update(block));
          break;
        case 2: (void)say(to_server, both.client.withdraw(id)); break;
        case 3: (void)say(to_client, both.server.accept(id)); break;
        case 4: (void)say(to_client, both.server.release(id)); break;
        case 5:
          if (both.server.borrowed(id) == loan_state::offered)
            (void)say(to_client, both.server.refuse_offer(id, errc::out_of_memory));
          break;
        case 6:
          if (to_server.empty()) break;
          ASSERT_TRUE(both.server.take(to_server.front())) << walk << " " << step;
          to_server.pop_front();
          break;
        default:
          if (to_client.empty()) break;
          ASSERT_TRUE(both.client.take(to_client.front())) << walk << " " << step;
          to_client.pop_front();
      }
      ASSERT_TRUE(both.client.validate() && both.server.validate());
    }
    for (; !to_server.empty(); to_server.pop_front())
      ASSERT_TRUE(both.server.take(to_server.front()));
    for (; !to_client.empty(); to_client.pop_front())
      ASSERT_TRUE(both.client.take(to_client.front()));
    for (std::uint64_t id = 1; id <= offered; ++id)
      EXPECT_EQ(both.client.lent(id) == loan_state::none,
                both.server.borrowed(id) == loan_state::none);
  }
}

}  // namespace

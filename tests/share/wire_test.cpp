// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a message is its bytes and the bytes are the message; nothing else is taken.
// Method: messages of every kind there and back; every byte of some changed in turn, after which
// they are refused or mean something else, and are the same bytes again; each limit and one more.
#include "../support/test.h"
#include "messages.hpp"

namespace {

using vmm::errc, vmm::share_message, vmm::share_message_kind;

constexpr std::array kinds{share_message_kind::hello,    share_message_kind::proof,
                           share_message_kind::offer,    share_message_kind::update,
                           share_message_kind::withdraw, share_message_kind::accept,
                           share_message_kind::refuse,   share_message_kind::release};

share_message message_of(share_message_kind kind) {
  share_message made;
  made.kind = kind;
  made.sequence = 7;
  if (kind == share_message_kind::hello || kind == share_message_kind::proof) {
    made.digest = share_test::secret_of(3).bytes;
    return made;
  }
  made.block.id = 5;
  if (kind == share_message_kind::accept) made.block.epoch = 2;
  if (kind == share_message_kind::refuse) made.reason = 4;
  if (kind == share_message_kind::offer) made.block = share_test::block_of(3, 8192);
  if (kind == share_message_kind::update) {
    made.block = share_test::block_of(2, 4096);
    made.block.epoch = 9;
    made.block.kind = vmm::share_kind::fabric;
    made.block.fabric[0].fill(0xAB);
    made.block.fabric[1].fill(0xCD);
  }
  return made;
}

TEST(Wire, AMessageComesBack) {
  for (const share_message_kind kind : kinds) {
    const share_message sent = message_of(kind);
    const auto received = vmm::decode_message(vmm::encode_message(sent));
    ASSERT_TRUE(received) << static_cast<int>(kind);
    EXPECT_TRUE(*received == sent) << static_cast<int>(kind);
  }
}

// Also shows that what a kind does not use is zero.
TEST(Wire, NoTwoRowsOfBytesAreOneMessage) {
  std::size_t refused_count = 0;
  for (const share_message_kind kind : kinds) {
    const vmm::share_bytes sent = vmm::encode_message(message_of(kind));
    for (std::size_t i = 0; i < sent.size(); ++i) {
      for (const unsigned change : {1U, 0x80U, 0xFFU}) {
        vmm::share_bytes changed = sent;
        changed[i] ^= static_cast<std::byte>(change);
        const auto received = vmm::decode_message(changed);
        if (!received) {
          ++refused_count;
          continue;
        }
        EXPECT_FALSE(*received == message_of(kind)) << i;
        EXPECT_TRUE(vmm::encode_message(*received) == changed) << i;
      }
    }
  }
  EXPECT_GT(refused_count, 30'000U);
}

TEST(Wire, OtherSizesAreRefused) {
  const vmm::share_bytes sent = vmm::encode_message(message_of(share_message_kind::hello));
  std::vector<std::byte> longer(sent.begin(), sent.end());
  longer.push_back(std::byte{0});
  EXPECT_EQ(vmm::decode_message(longer).error().code, errc::foreign_error);
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, sent.size() - 1})
    EXPECT_EQ(vmm::decode_message(std::span(sent).first(size)).error().code, errc::foreign_error);
}

TEST(Wire, AnotherVersionIsNamed) {
  vmm::share_bytes sent = vmm::encode_message(message_of(share_message_kind::hello));
  sent[4] = std::byte{2};
  EXPECT_EQ(vmm::decode_message(sent).error().code, errc::not_supported);
}

TEST(Wire, LimitsOfABlock) {
  const auto refused = [](const std::function<void(vmm::share_description&)>& change) {
    vmm::share_description block = share_test::block_of(2, 8192);
    change(block);
    const auto fits = vmm::check_share_description(block);
    return fits ? errc::none : fits.error().code;
  };
  using block = vmm::share_description;
  constexpr errc wrong = errc::invalid_argument;
  EXPECT_EQ(refused([](block&) {}), errc::none);
  EXPECT_EQ(refused([](block& b) { b.kind = vmm::share_kind::win32; }), errc::not_supported);
  EXPECT_EQ(refused([](block& b) { b.kind = vmm::share_kind::none; }), wrong);
  EXPECT_EQ(refused([](block& b) { b.kind = static_cast<vmm::share_kind>(5); }), wrong);
  EXPECT_EQ(refused([](block& b) { b.part_count = 0; }), wrong);
  EXPECT_EQ(refused([](block& b) { b.part_count = 0xFFFFFFFF; }), wrong);
  EXPECT_EQ(refused([](block& b) { b = share_test::block_of(240, 4096); }), errc::none);
  EXPECT_EQ(refused([](block& b) { b.part_bytes[1] = 0; }), wrong);
  EXPECT_EQ(refused([](block& b) { b.part_bytes[1] = ~std::uint64_t{4095}; }), wrong);
  EXPECT_EQ(refused([](block& b) { b.size_bytes += 4096; }), wrong);
  EXPECT_EQ(refused([](block& b) { b.granularity_bytes = 3; }), wrong);
  EXPECT_EQ(refused([](block& b) { b.granularity_bytes = 16384; }), wrong);
  EXPECT_EQ(refused([](block& b) { b.where.ordinal = -1; }), wrong);
  EXPECT_EQ(refused([](block& b) { b.where.ordinal = 1; }), wrong);
  EXPECT_EQ(refused([](block& b) { b.id = 0; }), wrong);
  EXPECT_EQ(refused([](block& b) {
              b = share_test::block_of(27, 4096);
              b.kind = vmm::share_kind::fabric;
            }),
            wrong);
}

TEST(Wire, DescriptorsGoWithDescriptorsOnly) {
  EXPECT_EQ(vmm::descriptor_count_of(message_of(share_message_kind::offer)), 3U);
  EXPECT_EQ(vmm::descriptor_count_of(message_of(share_message_kind::update)), 0U) << "fabric";
  EXPECT_EQ(vmm::descriptor_count_of(message_of(share_message_kind::accept)), 0U);
}

// The value is that of `openssl dgst -sha256 -mac
// HMAC` over the same bytes, with the same key.
TEST(Proof, IsHmacOfTheSecret) {
  vmm::share_secret secret;
  secret.bytes.fill(std::byte{0x0b});
  const std::string text = "Hi There";
  const auto made = *vmm::sign_bytes(secret, std::as_bytes(std::span(text)));
  std::string hex;
  for (const std::byte each : made) {
    constexpr std::string_view digits = "0123456789abcdef";
    hex += digits[std::to_integer<unsigned>(each) >> 4U];
    hex += digits[std::to_integer<unsigned>(each) & 15U];
  }
  EXPECT_EQ(hex, "198a607eb44bfbc69903a0f1cf2bbdc5ba0aa3f3d9ae3c1c7a3b1696a0b68cf7");
}

}  // namespace

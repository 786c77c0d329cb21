// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: bytes, streams and events are as docs/contract.md says.
// Method: patterns written and read across mappings; chains of copies that come out wrong when an
// order is not kept.
#pragma once

#include "fixture.h"

namespace conformance {

TEST_P(Conformance, FreshMemoryIsZeroWhereItSaysSo) {
  if (!has_bytes_here()) GTEST_SKIP() << "no bytes";
  if (!can().fresh_memory_zero) GTEST_SKIP() << "this backend does not promise zeroed memory";
  const auto range = reserved(1);
  for (int round = 0; round < 3; ++round) {
    const auto handle = created(1);
    usable(range, handle);
    expect_all(range, 0);
    ASSERT_TRUE(fine(driver().fill({range, 0xA5})));
    finish();
    unmapped(range);
    released(handle);
  }
}

TEST_P(Conformance, WriteAndRead) {
  if (!has_bytes_here()) GTEST_SKIP() << "no bytes";
  const auto range = reserved(1);
  usable(range, created(1));
  put(range.base, 1, 4096);
  put(range.base + 13, 200, 7);
  expect_bytes(range.base, 1, 13);
  expect_bytes(range.base + 13, 200, 7);
  expect_bytes(range.base + 20, 21, 4096 - 20);
  put(range.base + (unit() - 1), 9, 1);
  expect_bytes(range.base + (unit() - 1), 9, 1);
}

TEST_P(Conformance, BytesAcrossMappings) {
  if (!has_bytes_here()) GTEST_SKIP() << "no bytes";
  const auto range = reserved(4);
  for (const std::uint64_t slot : {0U, 1U, 2U, 3U}) usable(slots(range, slot, 1), created(1));
  const address seam = range.base + (unit() - 100);
  put(seam, 3, 200);
  expect_bytes(seam, 3, 200);
  ASSERT_TRUE(fine(driver().fill({{seam + 50, 100}, 77})));
  finish();
  expect_all({seam + 50, 100}, 77);
  ASSERT_TRUE(fine(driver().copy({seam + 2 * unit(), seam, 200})));
  finish();
  expect_bytes(seam + 2 * unit(), 3, 50);
  expect_bytes(seam + (2 * unit() + 150), 153, 50);
}

TEST_P(Conformance, FillAndCopy) {
  if (!has_bytes_here()) GTEST_SKIP() << "no bytes";
  const auto range = reserved(4);
  usable(slots(range, 0, 2), created(2));
  usable(slots(range, 2, 2), created(2));
  const auto low = slots(range, 0, 2);
  const auto high = slots(range, 2, 2);
  ASSERT_TRUE(fine(driver().fill({low, 0x3C})));
  ASSERT_TRUE(fine(driver().copy({high.base, low.base, low.size_bytes})));
  finish();
  expect_all(high, 0x3C);
  // Odd places and sizes.
  put(low.base + 3, 100, 99);
  ASSERT_TRUE(fine(driver().copy({high.base + 1001, low.base + 3, 99})));
  finish();
  expect_bytes(high.base + 1001, 100, 99);
}

TEST_P(Conformance, CopiesOfNothing) {
  if (!has_bytes_here()) GTEST_SKIP() << "no bytes";
  const auto range = reserved(2);
  usable(range, created(2));
  put(range.base, 5);
  EXPECT_TRUE(fine(driver().copy({range.base, range.base + unit(), 0})));
  EXPECT_TRUE(fine(driver().fill({{range.base, 0}, 1})));
  EXPECT_TRUE(fine(driver().write(range.base, {})));
  EXPECT_TRUE(fine(driver().read({}, range.base)));
  finish();
  expect_bytes(range.base, 5);
}

TEST_P(Conformance, BadRangesAreRefused) {
  if (!has_bytes_here()) GTEST_SKIP() << "no bytes";
  if (unseen().bad_bytes) GTEST_SKIP() << "this backend does not see it";
  const auto range = reserved(2);
  usable(slots(range, 0, 1), created(1));
  put(range.base + (unit() - 64), 11);
  const address edge = range.base + (unit() - 10);
  std::vector<std::byte> bytes(20);
  ASSERT_TRUE(fine(driver().write(range.base, bytes)));
  const std::initializer_list<errc> codes{errc::invalid_argument, errc::foreign_error};
  EXPECT_TRUE(refused(driver().write(edge, bytes), vmm::call::write, codes));
  EXPECT_TRUE(refused(driver().read(bytes, edge), vmm::call::read, codes));
  EXPECT_TRUE(refused(driver().fill({{edge, 20}, 1}), vmm::call::fill, codes));
  EXPECT_TRUE(refused(driver().copy({range.base, edge, 20}), vmm::call::copy, codes));
  EXPECT_TRUE(refused(driver().copy({edge, range.base, 20}), vmm::call::copy, codes));
  expect_bytes(range.base + (unit() - 64), 11);
  ASSERT_TRUE(fine(rights(slots(range, 0, 1), access::none)));
  EXPECT_TRUE(refused(driver().read(bytes, range.base), vmm::call::read, codes));
  if (can().read_only != vmm::read_only_level::enforced) return;
  ASSERT_TRUE(fine(rights(slots(range, 0, 1), access::read)));
  EXPECT_TRUE(fine(driver().read(bytes, range.base)));
  EXPECT_TRUE(refused(driver().write(range.base, bytes), vmm::call::write, codes));
}

// ---- streams ----

TEST_P(Conformance, StreamsKeepTheirOrder) {
  if (!has_streams_here() || !has().bytes) GTEST_SKIP() << "no streams";
  const auto range = reserved(4);
  usable(range, created(4));
  const auto stream = driver().create_stream();
  ASSERT_TRUE(fine(stream));
  EXPECT_LT(static_cast<std::uint64_t>(*stream), std::uint64_t{1} << 63);
  // Each step needs the one before it: the last value arrives only in order.
  const auto part = slots(range, 0, 2);
  for (std::uint8_t value = 1; value <= 20; ++value) {
    ASSERT_TRUE(fine(driver().fill({part, value, *stream})));
  }
  ASSERT_TRUE(fine(driver().copy({range.base + 2 * unit(), range.base, part.size_bytes, *stream})));
  ASSERT_TRUE(fine(driver().fill({part, 99, *stream})));
  ASSERT_TRUE(fine(driver().synchronize_stream(*stream)));
  expect_all(slots(range, 2, 2), 20);
  EXPECT_TRUE(fine(driver().destroy_stream(*stream)));
}

TEST_P(Conformance, EventsOrderStreams) {
  if (!has_streams_here() || !has().bytes) GTEST_SKIP() << "no streams";
  const auto range = reserved(4);
  usable(range, created(4));
  const vmm::stream_handle streams[] = {*driver().create_stream(), *driver().create_stream()};
  const auto event = driver().create_event();
  ASSERT_TRUE(fine(event));
  const auto low = slots(range, 0, 2);
  const auto high = slots(range, 2, 2);
  // Ping-pong: each stream copies what the other has made, and adds a mark of its own.
  ASSERT_TRUE(fine(driver().fill({low, 1, streams[0]})));
  for (std::uint8_t round = 0; round < 8; ++round) {
    const vmm::stream_handle from = streams[round % 2];
    const vmm::stream_handle to = streams[(round + 1) % 2];
    ASSERT_TRUE(fine(driver().record_event(*event, from)));
    ASSERT_TRUE(fine(driver().wait_event(to, *event)));
    const auto& source = round % 2 == 0 ? low : high;
    const auto& target = round % 2 == 0 ? high : low;
    ASSERT_TRUE(fine(driver().copy({target.base, source.base, low.size_bytes, to})));
    const address_range mark{target.base + round * 16, 16};
    ASSERT_TRUE(fine(driver().fill({mark, static_cast<std::uint8_t>(50 + round), to})));
  }
  ASSERT_TRUE(fine(driver().synchronize_stream(streams[0])));
  std::vector<std::byte> seen(8 * 16 + 1);
  ASSERT_TRUE(fine(driver().read(seen, low.base)));
  for (std::size_t round = 0; round < 8; ++round)
    EXPECT_EQ(seen[round * 16], static_cast<std::byte>(50 + round)) << round;
  EXPECT_EQ(seen.back(), std::byte{1});
  EXPECT_TRUE(fine(driver().destroy_event(*event)));
  for (const auto stream : streams) EXPECT_TRUE(fine(driver().destroy_stream(stream)));
}

// Captures are begun by a program, not by vmm: here none is under way.
TEST_P(Conformance, AStreamThatIsNotCapturedSaysSo) {
  if (!has().capture) GTEST_SKIP() << "this backend captures no streams";
  const auto plain = vmm::stream_handle::default_stream;
  if (!can().capture) {
    EXPECT_TRUE(
        refused(driver().query_capture(plain), vmm::call::query_capture, {errc::not_supported}));
    return;
  }
  const auto stream = driver().create_stream();
  ASSERT_TRUE(fine(stream));
  EXPECT_TRUE(vmm::can_capture(can(), *stream));
  EXPECT_FALSE(vmm::can_capture(can(), plain));
  for (const vmm::stream_handle each : {plain, *stream}) {
    const auto seen = driver().query_capture(each);
    ASSERT_TRUE(fine(seen));
    EXPECT_EQ(seen->state, vmm::capture_state::none);
    EXPECT_EQ(seen->id, 0u);
  }
  const vmm::capture_mode before = driver().exchange_capture_mode(vmm::capture_mode::relaxed);
  EXPECT_EQ(driver().exchange_capture_mode(before), vmm::capture_mode::relaxed);
  EXPECT_TRUE(fine(driver().destroy_stream(*stream)));
}

// Streams that were destroyed, too.
TEST_P(Conformance, AllWorkIsWaitedFor) {
  if (!has().all_wait || !can().streams) {
    EXPECT_TRUE(
        refused(driver().synchronize_all(), vmm::call::synchronize_all, {errc::not_supported}));
    return;
  }
  if (!has().bytes) GTEST_SKIP() << "no bytes";
  EXPECT_TRUE(fine(driver().synchronize_all()));
  const auto range = reserved(4);
  usable(range, created(4));
  for (std::uint8_t round = 0; round < 8; ++round) {
    const vmm::stream_handle streams[] = {*driver().create_stream(), *driver().create_stream()};
    const auto low = slots(range, 0, 2);
    const auto high = slots(range, 2, 2);
    ASSERT_TRUE(fine(driver().fill({low, round, streams[0]})));
    ASSERT_TRUE(fine(driver().fill({high, round, streams[1]})));
    ASSERT_TRUE(fine(driver().destroy_stream(streams[0])));
    ASSERT_TRUE(fine(driver().synchronize_all()));
    for (const vmm::address_range half : {low, high}) expect_all(half, round);
    ASSERT_TRUE(fine(driver().destroy_stream(streams[1])));
  }
}

TEST_P(Conformance, OneEventStandsForAllWork) {
  if (!has().streams || !has().bytes) GTEST_SKIP() << "no streams";
  if (!has().all_work) {
    EXPECT_FALSE(can().record_all);
    GTEST_SKIP() << "this backend has no event for all work";
  }
  if (!can().record_all) {
    EXPECT_TRUE(refused(driver().record_all(vmm::event_handle::none), vmm::call::record_all,
                        {errc::not_supported}));
    return;
  }
  const auto range = reserved(4);
  usable(range, created(4));
  const vmm::stream_handle streams[] = {*driver().create_stream(), *driver().create_stream(),
                                        *driver().create_stream()};
  const auto event = driver().create_event();
  ASSERT_TRUE(fine(event));
  for (std::uint8_t round = 0; round < 8; ++round) {
    // Two streams fill a half each; the third copies one over the other behind the event.
    const auto low = slots(range, 0, 2);
    const auto high = slots(range, 2, 2);
    ASSERT_TRUE(fine(driver().fill({low, round, streams[0]})));
    const auto value = static_cast<std::uint8_t>(100 + round);
    ASSERT_TRUE(fine(driver().fill({high, value, streams[1]})));
    ASSERT_TRUE(fine(driver().record_all(*event)));
    EXPECT_TRUE(fine(driver().query_event(*event)));
    ASSERT_TRUE(fine(driver().wait_event(streams[2], *event)));
    ASSERT_TRUE(fine(driver().copy({low.base, high.base, low.size_bytes, streams[2]})));
    ASSERT_TRUE(fine(driver().record_all(*event))) << "again: the earlier point is forgotten";
    ASSERT_TRUE(fine(driver().synchronize_event(*event)));
    EXPECT_EQ(driver().query_event(*event).value_or(false), true);
    expect_all(low, value);
  }
  EXPECT_TRUE(fine(driver().destroy_event(*event)));
  for (const auto stream : streams) EXPECT_TRUE(fine(driver().destroy_stream(stream)));
}

// A handle is given again while work of the earlier stream runs; an identity never is.
TEST_P(Conformance, IdentitiesAreNotGivenAgain) {
  if (!can().stream_identity) GTEST_SKIP() << "streams have no identities";
  const auto range = reserved(4);
  usable(range, created(4));
  std::vector<std::uint64_t> seen;
  const vmm::stream_handle stays = *driver().create_stream();
  const std::uint64_t own = driver().stream_identity(stays);
  for (int round = 0; round < 20; ++round) {
    const vmm::stream_handle stream = *driver().create_stream();
    seen.push_back(driver().stream_identity(stream));
    EXPECT_EQ(driver().stream_identity(stream), seen.back());
    if (has().bytes)
      ASSERT_TRUE(fine(driver().fill({range, static_cast<std::uint8_t>(round), stream})));
    ASSERT_TRUE(fine(driver().destroy_stream(stream)));
  }
  EXPECT_EQ(driver().stream_identity(stays), own);
  seen.push_back(own);
  std::sort(seen.begin(), seen.end());
  EXPECT_NE(seen.front(), 0u);
  EXPECT_EQ(std::adjacent_find(seen.begin(), seen.end()), seen.end());
  ASSERT_TRUE(fine(driver().destroy_stream(stays)));
}

TEST_P(Conformance, EventsPass) {
  if (!has().streams || !has().bytes) GTEST_SKIP() << "no streams";
  if (!has_streams_here()) {
    EXPECT_TRUE(refused(driver().create_stream(), vmm::call::create_stream, {errc::not_supported}));
    return;
  }
  const auto range = reserved(4);
  usable(range, created(4));
  const auto stream = driver().create_stream();
  const auto event = driver().create_event();
  ASSERT_TRUE(fine(event));
  EXPECT_EQ(driver().query_event(*event).value_or(false), true) << "never recorded";
  ASSERT_TRUE(fine(driver().fill({range, 7, *stream})));
  ASSERT_TRUE(fine(driver().record_event(*event, *stream)));
  EXPECT_TRUE(fine(driver().query_event(*event)));
  ASSERT_TRUE(fine(driver().synchronize_event(*event)));
  EXPECT_EQ(driver().query_event(*event).value_or(false), true) << "synchronised";
  expect_all(range, 7);
  // A destroyed stream's work still finishes, and its events can be queried.
  ASSERT_TRUE(fine(driver().fill({range, 8, *stream})));
  ASSERT_TRUE(fine(driver().record_event(*event, *stream)));
  ASSERT_TRUE(fine(driver().destroy_stream(*stream)));
  ASSERT_TRUE(fine(driver().synchronize_event(*event)));
  expect_all(range, 8);
  EXPECT_TRUE(fine(driver().destroy_event(*event)));
}

}  // namespace conformance

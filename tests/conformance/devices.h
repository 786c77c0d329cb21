// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: links between devices, exports of address ranges, and the context are as in
// docs/contract.md.
// Method: each query, and then the call that it predicts: access for a device is set exactly if
// query_peer reports that it reaches the memory. Multicast is left alone: on real machines it stays
// uncalled, and tests/fake holds the simulated one to the page.
#pragma once

#include "fixture.h"

namespace conformance {

TEST_P(Conformance, PeersSayWhatLiesBetween) {
  if (!has().peers) GTEST_SKIP() << "no peers";
  const vmm::peer_query itself{home(), home()};
  if (!can().peers) {
    EXPECT_TRUE(refused(driver().query_peer(itself), vmm::call::query_peer, {errc::not_supported}));
    return;
  }
  const auto range = reserved(1);
  usable(range, created(1));
  const auto own = driver().query_peer(itself);
  ASSERT_TRUE(fine(own));
  EXPECT_EQ(own->link, vmm::link_kind::itself);
  EXPECT_TRUE(own->is_reachable());
  const vmm::location nowhere = vmm::device(1'000);
  for (const vmm::peer_query query :
       {vmm::peer_query{home(), nowhere}, vmm::peer_query{nowhere, home()}}) {
    EXPECT_TRUE(refused(driver().query_peer(query), vmm::call::query_peer,
                        {errc::invalid_argument, errc::not_supported}));
  }
  EXPECT_EQ(rights_at(range.base), access::read_write) << "a question changes nothing";
}

TEST_P(Conformance, RightsGoToDevicesThatReachTheMemory) {
  if (!has().peers || !can().peers || !can().access_per_location) GTEST_SKIP() << "no peers";
  int asked = 0;
  for (std::int32_t number = 0; number < 16; ++number) {
    const vmm::location other = vmm::device(number);
    const auto between = driver().query_peer({other, home()});
    if (other == home() || !between) continue;
    ++asked;
    const auto range = reserved(1);
    usable(range, created(1));
    const vmm::access_grant grant{other, access::read_write};
    const vmm::status given = driver().set_access(range, {&grant, 1});
    if (between->is_reachable()) {
      EXPECT_TRUE(fine(given)) << number;
      EXPECT_EQ(driver().get_access(range.base, other).value_or(access::none), access::read_write);
    } else {
      EXPECT_TRUE(
          refused(given, vmm::call::set_access, {errc::not_supported, errc::invalid_argument}))
          << number;
    }
    EXPECT_EQ(rights_at(range.base), access::read_write) << "the others keep theirs";
  }
  if (asked == 0) GTEST_SKIP() << "one device alone";
}

TEST_P(Conformance, ARangeIsExportedAsADescriptor) {
  if (!has().range_export) GTEST_SKIP() << "no export of ranges";
  const auto range = reserved(3);
  if (!can().export_dma_buf) {
    EXPECT_TRUE(
        refused(driver().export_range(range), vmm::call::export_range, {errc::not_supported}));
    return;
  }
  vmm::physical_request wanted = request(1);
  wanted.rdma_capable = can().rdma;
  const auto whole = slots(range, 0, 1);
  const auto handle = created(wanted);
  usable(whole, handle);
  const auto sent = driver().export_range(whole);
  ASSERT_TRUE(fine(sent));
  EXPECT_GE(sent->descriptor, 0);
  EXPECT_EQ(sent->size_bytes, whole.size_bytes);
  for (const address_range wrong :
       {slots(range, 1, 1), slots(range, 0, 2), address_range{range.base + 1, 4096},
        address_range{range.base, 100}}) {
    EXPECT_TRUE(
        refused(driver().export_range(wrong), vmm::call::export_range, {errc::invalid_argument}));
  }
  unmapped(whole);
  released(handle);
  vmm::shared_handle open{};
  open.kind = vmm::share_kind::posix_fd;
  open.descriptor = sent->descriptor;
  close(open);
}

TEST_P(Conformance, AContextIsPushedAndTakenAway) {
  if (!has().context) GTEST_SKIP() << "no context";
  for (int depth = 0; depth < 3; ++depth) EXPECT_TRUE(driver().push_context());
  const auto range = reserved(1);
  usable(range, created(1));
  for (int depth = 0; depth < 3; ++depth) driver().pop_context();
  unmapped(range);
  // On a thread that has made no call before.
  std::thread([&] {
    EXPECT_TRUE(driver().push_context());
    EXPECT_TRUE(fine(driver().query_memory(home())));
    driver().pop_context();
  }).join();
}

}  // namespace conformance

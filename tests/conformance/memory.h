// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: physical memory, its handles and their sharing are as docs/contract.md says.
// Method: memory made, referred to in each way, and given back in each order.
#pragma once

#include "fixture.h"

namespace conformance {

TEST_P(Conformance, TellsWhatItIs) {
  EXPECT_FALSE(std::string_view{driver().name()}.empty());
  const vmm::features& once = driver().feature_set();
  const vmm::features& again = driver().feature_set();
  EXPECT_EQ(&once, &again);
  EXPECT_TRUE(driver().home() == home());
}

TEST_P(Conformance, GranularityIsSane) {
  for (const std::uint64_t size :
       {std::uint64_t{0}, std::uint64_t{1} << 16, std::uint64_t{1} << 21, std::uint64_t{1} << 34}) {
    vmm::physical_request wanted = request(0);
    wanted.size_bytes = size;
    const auto granule = driver().query_granularity(wanted);
    if (driver().feature_set().lazy_commit && size > (std::uint64_t{1} << 21) && !granule) {
      EXPECT_EQ(granule.error().code, errc::out_of_memory) << "no create can have it";
      continue;
    }
    ASSERT_TRUE(fine(granule));
    EXPECT_GT(granule->minimum_bytes, 0u);
    EXPECT_GE(granule->recommended_bytes, granule->minimum_bytes);
    EXPECT_EQ(granule->recommended_bytes % granule->minimum_bytes, 0u);
  }
  vmm::physical_request nowhere = request(1);
  nowhere.where = vmm::device(1'000);
  EXPECT_TRUE(refused(driver().query_granularity(nowhere), vmm::call::query_granularity,
                      {errc::invalid_argument, errc::not_supported}));
}

TEST_P(Conformance, MemoryInfoIsSane) {
  const auto info = driver().query_memory(home());
  ASSERT_TRUE(fine(info));
  EXPECT_GT(info->total_bytes, 0u);
  EXPECT_LE(info->free_bytes, info->total_bytes);
  EXPECT_TRUE(refused(driver().query_memory(vmm::device(1'000)), vmm::call::memory_info,
                      {errc::invalid_argument, errc::not_supported}));
}

TEST_P(Conformance, CreateRefusesBadSizes) {
  for (const std::uint64_t size : {std::uint64_t{0}, unit() / 2 + 1, unit() + 1}) {
    vmm::physical_request wanted = request(0);
    wanted.size_bytes = size;
    EXPECT_TRUE(refused(driver().create(wanted), vmm::call::create, {errc::invalid_argument}))
        << size;
  }
}

TEST_P(Conformance, CreatingMoreThanThereIsIsOutOfMemory) {
  const auto info = driver().query_memory(home());
  ASSERT_TRUE(fine(info));
  vmm::physical_request wanted = request(0);
  wanted.size_bytes = vmm::round_up(info->total_bytes, unit()) + unit();
  EXPECT_TRUE(refused(driver().create(wanted), vmm::call::create, {errc::out_of_memory}));
  (void)created(1);
}

TEST_P(Conformance, CreateRefusesWhatItDoesNotKnow) {
  const auto answer = [&](const vmm::physical_request& wanted) {
    return refused(driver().create(wanted), vmm::call::create,
                   {errc::not_supported, errc::invalid_argument, errc::not_permitted});
  };
  vmm::physical_request wanted = request(1);
  wanted.where = vmm::device(1'000);
  EXPECT_TRUE(answer(wanted));
  wanted = request(1);
  wanted.shareable = vmm::share_kind::win32;
  EXPECT_TRUE(answer(wanted));
  if (!can().export_posix_fd) {
    wanted.shareable = vmm::share_kind::posix_fd;
    EXPECT_TRUE(answer(wanted));
  }
  if (!can().export_fabric) {
    wanted.shareable = vmm::share_kind::fabric;
    EXPECT_TRUE(answer(wanted));
  }
  if (!can().rdma) {
    wanted = request(1);
    wanted.rdma_capable = true;
    EXPECT_TRUE(answer(wanted));
  }
  if (!can().host_node_location) {
    wanted = request(1);
    wanted.where = vmm::host_node(0);
    EXPECT_TRUE(answer(wanted));
  }
}

TEST_P(Conformance, StaleHandlesAreRefused) {
  if (unseen().stale_handle) GTEST_SKIP() << "this backend does not see it";
  const auto range = reserved(1);
  const auto handle = created(1);
  released(handle);
  for (const auto stale : {handle, physical_handle::none}) {
    EXPECT_TRUE(refused(driver().release(stale), vmm::call::release, {errc::invalid_argument}));
    EXPECT_TRUE(refused(driver().map({range.base, unit(), stale, 0}), vmm::call::map,
                        {errc::invalid_argument}));
  }
}

TEST_P(Conformance, MemoryComesBack) {
  const auto before = driver().query_memory(home());
  ASSERT_TRUE(fine(before));
  for (int round = 0; round < 64; ++round) {
    const auto range = reserved(4);
    const auto handle = created(4);
    usable(range, handle);
    unmapped(range);
    released(handle);
    freed(range);
  }
  if (GetParam().memory_is_ours_alone) {
    const auto after = driver().query_memory(home());
    EXPECT_EQ(after->free_bytes, before->free_bytes);
  }
}

TEST_P(Conformance, ReleasedMemoryLivesWhileItIsMapped) {
  const auto range = reserved(2);
  const auto handle = created(1);
  usable(slots(range, 0, 1), handle);
  put(range.base, 70);
  if (!can().release_while_mapped) {
    if (unseen().release_while_mapped) GTEST_SKIP() << "this backend does not see it";
    EXPECT_TRUE(refused(driver().release(handle), vmm::call::release, {errc::in_use}));
    return;
  }
  released(handle);
  EXPECT_EQ(rights_at(range.base), access::read_write);
  // Memory made meanwhile is other memory.
  usable(slots(range, 1, 1), created(1));
  put(range.base + unit(), 90);
  expect_bytes(range.base, 70);
}

TEST_P(Conformance, RetainGivesAHandle) {
  if (!has().retain) GTEST_SKIP() << "no retain";
  const auto range = reserved(4);
  const auto handle = created(2);
  usable(slots(range, 0, 2), handle);
  if (!can().retain) {
    EXPECT_TRUE(refused(driver().retain(range.base), vmm::call::retain, {errc::not_supported}));
    return;
  }
  put(range.base + unit(), 30);
  const auto again = driver().retain(range.base + (2 * unit() - 1));
  ASSERT_TRUE(fine(again));
  unmapped(slots(range, 0, 2));
  released(handle);
  adopted(*again);
  usable(slots(range, 2, 2), *again);
  expect_bytes(range.base + 3 * unit(), 30);
  EXPECT_TRUE(refused(driver().retain(range.base), vmm::call::retain, {errc::invalid_argument}));
}

TEST_P(Conformance, PropertiesAreWhatWasGranted) {
  if (!has().properties) GTEST_SKIP() << "no properties";
  vmm::physical_request wanted = request(1);
  wanted.compressible = true;  // a wish
  if (can().export_posix_fd) wanted.shareable = vmm::share_kind::posix_fd;
  const auto granted = driver().get_properties(created(wanted));
  ASSERT_TRUE(fine(granted));
  EXPECT_TRUE(granted->where == home());
  EXPECT_EQ(granted->shareable, wanted.shareable);
  EXPECT_FALSE(granted->rdma_capable);
  if (!can().compression) EXPECT_FALSE(granted->compressible);
}

TEST_P(Conformance, SharedMemoryIsTheSameMemory) {
  if (!has().sharing) GTEST_SKIP() << "no sharing";
  if (!can().export_posix_fd) GTEST_SKIP() << "no descriptors";
  vmm::physical_request wanted = request(2);
  wanted.shareable = vmm::share_kind::posix_fd;
  const auto range = reserved(4);
  const auto handle = created(wanted);
  usable(slots(range, 0, 2), handle);
  put(range.base + unit(), 40);
  auto sent = driver().export_handle(handle, vmm::share_kind::posix_fd);
  ASSERT_TRUE(fine(sent));
  EXPECT_TRUE(sent->size_bytes == wanted.size_bytes || sent->size_bytes == 0);
  sent->size_bytes = wanted.size_bytes;
  // The descriptor alone keeps the memory.
  unmapped(slots(range, 0, 2));
  released(handle);
  const auto received = driver().import_handle(*sent);
  const auto twice = driver().import_handle(*sent);
  close(*sent);
  ASSERT_TRUE(fine(received));
  ASSERT_TRUE(fine(twice));
  adopted(*received);
  released(*twice);
  // Of the ways of sharing a driver may say nothing here, and it may refuse to export again.
  const auto granted = driver().get_properties(*received);
  ASSERT_TRUE(fine(granted));
  EXPECT_EQ(granted->where, wanted.where);
  EXPECT_TRUE(granted->shareable == wanted.shareable ||
              granted->shareable == vmm::share_kind::none);
  if (const auto again = driver().export_handle(*received, vmm::share_kind::posix_fd)) {
    close(*again);
  } else {
    EXPECT_TRUE(refused(again, vmm::call::export_handle, {errc::invalid_argument}));
  }
  usable(slots(range, 2, 2), *received);
  expect_bytes(range.base + 3 * unit(), 40);
}

TEST_P(Conformance, SharingIsAskedForAtCreation) {
  if (!has().sharing) GTEST_SKIP() << "no sharing";
  const auto answer = driver().export_handle(created(1), vmm::share_kind::posix_fd);
  EXPECT_TRUE(
      refused(answer, vmm::call::export_handle, {errc::invalid_argument, errc::not_supported}));
  vmm::shared_handle closed{};
  closed.kind = vmm::share_kind::posix_fd;
  closed.descriptor = -1;
  closed.size_bytes = unit();
  EXPECT_TRUE(refused(driver().import_handle(closed), vmm::call::import_handle,
                      {errc::invalid_argument, errc::not_supported}));
}

TEST_P(Conformance, CallsFromSeveralThreads) {
  constexpr int threads = 4;
  const std::uint64_t unit = this->unit();
  const auto range = reserved(threads * 4);
  std::array<int, threads> failures{};
  std::vector<std::thread> workers;
  for (std::size_t t = 0; t < threads; ++t) {
    workers.emplace_back([&, t] {
      const vmm::access_grant grant{home(), access::read_write};
      vmm::physical_request wanted{};
      wanted.size_bytes = 2 * unit;
      wanted.where = home();
      for (std::uint64_t round = 0; round < 32; ++round) {
        const address at = range.base + (t * 4 + round % 3) * unit;
        const auto handle = driver().create(wanted);
        const bool good = handle && driver().map({at, 2 * unit, *handle, 0}) &&
                          driver().set_access({at, 2 * unit}, {&grant, 1}) &&
                          driver().unmap({at, 2 * unit}) && driver().release(*handle);
        failures[t] += good ? 0 : 1;
      }
    });
  }
  for (std::thread& each : workers) each.join();
  for (const int count : failures) EXPECT_EQ(count, 0);
}

}  // namespace conformance

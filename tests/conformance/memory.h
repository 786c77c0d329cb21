// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: physical memory, its handles and their sharing are as docs/contract.md says.
// Method: memory made, referred to in each way, and given back in each order.
#pragma once

#include "fixture.h"

namespace conformance {

TYPED_TEST_P(Conformance, TellsWhatItIs) {
  EXPECT_FALSE(std::string_view{this->driver().name()}.empty());
  const vmm::features& once = this->driver().feature_set();
  const vmm::features& again = this->driver().feature_set();
  EXPECT_EQ(&once, &again);
  EXPECT_TRUE(this->driver().home() == this->home());
}

TYPED_TEST_P(Conformance, GranularityIsSane) {
  for (const std::uint64_t size :
       {std::uint64_t{0}, std::uint64_t{1} << 16, std::uint64_t{1} << 21, std::uint64_t{1} << 34}) {
    vmm::physical_request wanted = this->request(0);
    wanted.size_bytes = size;
    const auto granule = this->driver().query_granularity(wanted);
    ASSERT_TRUE(fine(granule));
    EXPECT_GT(granule->minimum_bytes, 0u);
    EXPECT_GE(granule->recommended_bytes, granule->minimum_bytes);
    EXPECT_EQ(granule->recommended_bytes % granule->minimum_bytes, 0u);
  }
  vmm::physical_request nowhere = this->request(1);
  nowhere.where = vmm::device(1'000);
  EXPECT_TRUE(refused(this->driver().query_granularity(nowhere), vmm::call::query_granularity,
                      {errc::invalid_argument, errc::not_supported}));
}

TYPED_TEST_P(Conformance, MemoryInfoIsSane) {
  const auto info = this->driver().query_memory(this->home());
  ASSERT_TRUE(fine(info));
  EXPECT_GT(info->total_bytes, 0u);
  EXPECT_LE(info->free_bytes, info->total_bytes);
  EXPECT_TRUE(refused(this->driver().query_memory(vmm::device(1'000)), vmm::call::memory_info,
                      {errc::invalid_argument, errc::not_supported}));
}

TYPED_TEST_P(Conformance, CreateRefusesBadSizes) {
  for (const std::uint64_t size : {std::uint64_t{0}, this->unit() / 2 + 1, this->unit() + 1}) {
    vmm::physical_request wanted = this->request(0);
    wanted.size_bytes = size;
    EXPECT_TRUE(refused(this->driver().create(wanted), vmm::call::create, {errc::invalid_argument}))
        << size;
  }
}

TYPED_TEST_P(Conformance, CreatingMoreThanThereIsIsOutOfMemory) {
  const auto info = this->driver().query_memory(this->home());
  ASSERT_TRUE(fine(info));
  vmm::physical_request wanted = this->request(0);
  wanted.size_bytes = vmm::round_up(info->total_bytes, this->unit()) + this->unit();
  EXPECT_TRUE(refused(this->driver().create(wanted), vmm::call::create, {errc::out_of_memory}));
  (void)this->created(1);
}

TYPED_TEST_P(Conformance, CreateRefusesWhatItDoesNotKnow) {
  const auto answer = [&](const vmm::physical_request& wanted) {
    return refused(this->driver().create(wanted), vmm::call::create,
                   {errc::not_supported, errc::invalid_argument, errc::not_permitted});
  };
  vmm::physical_request wanted = this->request(1);
  wanted.where = vmm::device(1'000);
  EXPECT_TRUE(answer(wanted));
  wanted = this->request(1);
  wanted.shareable = vmm::share_kind::win32;
  EXPECT_TRUE(answer(wanted));
  if (!this->can().export_posix_fd) {
    wanted.shareable = vmm::share_kind::posix_fd;
    EXPECT_TRUE(answer(wanted));
  }
  if (!this->can().export_fabric) {
    wanted.shareable = vmm::share_kind::fabric;
    EXPECT_TRUE(answer(wanted));
  }
  if (!this->can().rdma) {
    wanted = this->request(1);
    wanted.rdma_capable = true;
    EXPECT_TRUE(answer(wanted));
  }
  if (!this->can().host_node_location) {
    wanted = this->request(1);
    wanted.where = vmm::host_node(0);
    EXPECT_TRUE(answer(wanted));
  }
}

TYPED_TEST_P(Conformance, StaleHandlesAreRefused) {
  if (this->unseen().stale_handle) GTEST_SKIP() << "this backend does not see it";
  const auto range = this->reserved(1);
  const auto handle = this->created(1);
  this->released(handle);
  for (const auto stale : {handle, physical_handle::none}) {
    EXPECT_TRUE(
        refused(this->driver().release(stale), vmm::call::release, {errc::invalid_argument}));
    EXPECT_TRUE(refused(this->driver().map({range.base, this->unit(), stale, 0}), vmm::call::map,
                        {errc::invalid_argument}));
  }
}

TYPED_TEST_P(Conformance, MemoryComesBack) {
  const auto before = this->driver().query_memory(this->home());
  ASSERT_TRUE(fine(before));
  for (int round = 0; round < 64; ++round) {
    const auto range = this->reserved(4);
    const auto handle = this->created(4);
    this->usable(range, handle);
    this->unmapped(range);
    this->released(handle);
    this->freed(range);
  }
  if (TypeParam::memory_is_ours_alone) {
    const auto after = this->driver().query_memory(this->home());
    EXPECT_EQ(after->free_bytes, before->free_bytes);
  }
}

TYPED_TEST_P(Conformance, ReleasedMemoryLivesWhileItIsMapped) {
  const auto range = this->reserved(2);
  const auto handle = this->created(1);
  this->usable(this->slots(range, 0, 1), handle);
  this->put(range.base, 70);
  if (!this->can().release_while_mapped) {
    if (this->unseen().release_while_mapped) GTEST_SKIP() << "this backend does not see it";
    EXPECT_TRUE(refused(this->driver().release(handle), vmm::call::release, {errc::in_use}));
    return;
  }
  this->released(handle);
  EXPECT_EQ(this->rights_at(range.base), access::read_write);
  // Memory made meanwhile is other memory.
  this->usable(this->slots(range, 1, 1), this->created(1));
  this->put(range.base + this->unit(), 90);
  this->expect_bytes(range.base, 70);
}

TYPED_TEST_P(Conformance, RetainGivesAHandle) {
  if constexpr (vmm::retain_backend<typename TestFixture::driver_type>) {
    const auto range = this->reserved(4);
    const auto handle = this->created(2);
    this->usable(this->slots(range, 0, 2), handle);
    if (!this->can().retain) {
      EXPECT_TRUE(
          refused(this->driver().retain(range.base), vmm::call::retain, {errc::not_supported}));
      return;
    }
    this->put(range.base + this->unit(), 30);
    const auto again = this->driver().retain(range.base + (2 * this->unit() - 1));
    ASSERT_TRUE(fine(again));
    this->unmapped(this->slots(range, 0, 2));
    this->released(handle);
    this->adopted(*again);
    this->usable(this->slots(range, 2, 2), *again);
    this->expect_bytes(range.base + 3 * this->unit(), 30);
    EXPECT_TRUE(
        refused(this->driver().retain(range.base), vmm::call::retain, {errc::invalid_argument}));
  } else {
    GTEST_SKIP() << "no retain";
  }
}

TYPED_TEST_P(Conformance, PropertiesAreWhatWasGranted) {
  if constexpr (vmm::property_backend<typename TestFixture::driver_type>) {
    vmm::physical_request wanted = this->request(1);
    wanted.compressible = true;  // a wish
    if (this->can().export_posix_fd) wanted.shareable = vmm::share_kind::posix_fd;
    const auto granted = this->driver().get_properties(this->created(wanted));
    ASSERT_TRUE(fine(granted));
    EXPECT_TRUE(granted->where == this->home());
    EXPECT_EQ(granted->shareable, wanted.shareable);
    EXPECT_FALSE(granted->rdma_capable);
    if (!this->can().compression) EXPECT_FALSE(granted->compressible);
  } else {
    GTEST_SKIP() << "no properties";
  }
}

TYPED_TEST_P(Conformance, SharedMemoryIsTheSameMemory) {
  if constexpr (vmm::sharing_backend<typename TestFixture::driver_type>) {
    if (!this->can().export_posix_fd) GTEST_SKIP() << "no descriptors";
    vmm::physical_request wanted = this->request(2);
    wanted.shareable = vmm::share_kind::posix_fd;
    const auto range = this->reserved(4);
    const auto handle = this->created(wanted);
    this->usable(this->slots(range, 0, 2), handle);
    this->put(range.base + this->unit(), 40);
    auto sent = this->driver().export_handle(handle, vmm::share_kind::posix_fd);
    ASSERT_TRUE(fine(sent));
    EXPECT_TRUE(sent->size_bytes == wanted.size_bytes || sent->size_bytes == 0);
    sent->size_bytes = wanted.size_bytes;
    // The descriptor alone keeps the memory.
    this->unmapped(this->slots(range, 0, 2));
    this->released(handle);
    const auto received = this->driver().import_handle(*sent);
    const auto twice = this->driver().import_handle(*sent);
    TypeParam::close(this->driver(), *sent);
    ASSERT_TRUE(fine(received));
    ASSERT_TRUE(fine(twice));
    this->adopted(*received);
    this->released(*twice);
    // Of the ways of sharing a driver may say nothing here, and it may refuse to export again.
    const auto granted = this->driver().get_properties(*received);
    ASSERT_TRUE(fine(granted));
    EXPECT_EQ(granted->where, wanted.where);
    EXPECT_TRUE(granted->shareable == wanted.shareable ||
                granted->shareable == vmm::share_kind::none);
    if (const auto again = this->driver().export_handle(*received, vmm::share_kind::posix_fd)) {
      TypeParam::close(this->driver(), *again);
    } else {
      EXPECT_TRUE(refused(again, vmm::call::export_handle, {errc::invalid_argument}));
    }
    this->usable(this->slots(range, 2, 2), *received);
    this->expect_bytes(range.base + 3 * this->unit(), 40);
  } else {
    GTEST_SKIP() << "no sharing";
  }
}

TYPED_TEST_P(Conformance, SharingIsAskedForAtCreation) {
  if constexpr (vmm::sharing_backend<typename TestFixture::driver_type>) {
    const auto answer = this->driver().export_handle(this->created(1), vmm::share_kind::posix_fd);
    EXPECT_TRUE(
        refused(answer, vmm::call::export_handle, {errc::invalid_argument, errc::not_supported}));
    vmm::shared_handle closed{};
    closed.kind = vmm::share_kind::posix_fd;
    closed.descriptor = -1;
    closed.size_bytes = this->unit();
    EXPECT_TRUE(refused(this->driver().import_handle(closed), vmm::call::import_handle,
                        {errc::invalid_argument, errc::not_supported}));
  } else {
    GTEST_SKIP() << "no sharing";
  }
}

TYPED_TEST_P(Conformance, CallsFromSeveralThreads) {
  constexpr int threads = 4;
  const std::uint64_t unit = this->unit();
  const auto range = this->reserved(threads * 4);
  std::array<int, threads> failures{};
  std::vector<std::thread> workers;
  for (std::size_t t = 0; t < threads; ++t) {
    workers.emplace_back([&, t] {
      const vmm::access_grant grant{this->home(), access::read_write};
      vmm::physical_request wanted{};
      wanted.size_bytes = 2 * unit;
      wanted.where = this->home();
      for (std::uint64_t round = 0; round < 32; ++round) {
        const address at = range.base + (t * 4 + round % 3) * unit;
        const auto handle = this->driver().create(wanted);
        const bool good = handle && this->driver().map({at, 2 * unit, *handle, 0}) &&
                          this->driver().set_access({at, 2 * unit}, {&grant, 1}) &&
                          this->driver().unmap({at, 2 * unit}) && this->driver().release(*handle);
        failures[t] += good ? 0 : 1;
      }
    });
  }
  for (std::thread& each : workers) each.join();
  for (const int count : failures) EXPECT_EQ(count, 0);
}

}  // namespace conformance

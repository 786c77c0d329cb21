// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: the fake returns the real driver's results, to the return code: one test for each row
// of docs/results/data/fake-rules.csv.
// Method: each call as it was tried on the device, and the CUDA code that came back.
#include "bench.h"

namespace fake_test {
namespace {

using Rules = Fake;

TEST_F(Rules, MapAtAnOffsetInsideAHandleIsNotSupported) {
  const auto range = reserved(8 * MiB);
  const auto handle = created(4 * MiB);
  const auto answer = driver.map({range.base, 2 * MiB, handle, 2 * MiB});
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().native, not_supported);
  EXPECT_STREQ(answer.error().native_name, "CUDA_ERROR_NOT_SUPPORTED");
  EXPECT_EQ(answer.error().code, vmm::errc::not_supported);
  EXPECT_EQ(answer.error().where, vmm::call::map);
}

TEST_F(Rules, MapLessThanTheWholeHandleIsNotSupported) {
  const auto range = reserved(8 * MiB);
  const auto handle = created(4 * MiB);
  EXPECT_EQ(code(driver.map({range.base, 2 * MiB, handle, 0})), not_supported);
}

TEST_F(Rules, OneHandleAtTwoAddressesIsAnAlias) {
  const auto range = reserved(8 * MiB);
  const auto handle = created(4 * MiB);
  mapped(range.base, handle, 4 * MiB);
  mapped(range.base + 4 * MiB, handle, 4 * MiB);
  ASSERT_TRUE(driver.write_tag({range.base + 2 * MiB, 2 * MiB}, 7));
  EXPECT_EQ(*driver.read_tag(range.base + 6 * MiB), 7u);
  EXPECT_EQ(driver.misuse_count(), 0u);
}

TEST_F(Rules, MapOverAMappedAddressIsInvalid) {
  const auto range = reserved(8 * MiB);
  const auto first = created(4 * MiB);
  const auto second = created(4 * MiB);
  mapped(range.base, first, 4 * MiB);
  EXPECT_EQ(code(driver.map({range.base, 4 * MiB, second, 0})), invalid_value);
  EXPECT_EQ(code(driver.map({range.base + 2 * MiB, 4 * MiB, second, 0})), invalid_value);
  EXPECT_EQ(driver.misuse_count(vmm::fake::misuse_kind::double_map), 2u);
  EXPECT_EQ(driver.resource_counts().mappings, 1u);
}

TEST_F(Rules, SetAccessOnPartOfAMappingIsInvalid) {
  const auto range = reserved(4 * MiB);
  mapped(range.base, created(4 * MiB), 4 * MiB);
  EXPECT_EQ(code(open({range.base, 2 * MiB}, vmm::access::none)), invalid_value);
  EXPECT_EQ(code(open({range.base + 2 * MiB, 2 * MiB}, vmm::access::none)), invalid_value);
  EXPECT_EQ(*driver.get_access(range.base, driver.home()), vmm::access::read_write);
}

TEST_F(Rules, SetAccessOverARangeWithAHoleIsInvalid) {
  const auto range = reserved(6 * MiB);
  const auto low = created(2 * MiB);
  const auto high = created(2 * MiB);
  ASSERT_TRUE(driver.map({range.base, 2 * MiB, low, 0}));
  ASSERT_TRUE(driver.map({range.base + 4 * MiB, 2 * MiB, high, 0}));
  EXPECT_EQ(code(open(range)), invalid_value);
  EXPECT_EQ(code(open({range.base, 4 * MiB})), invalid_value);
  EXPECT_EQ(code(open({range.base + 2 * MiB, 4 * MiB})), invalid_value);
  EXPECT_EQ(*driver.get_access(range.base, driver.home()), vmm::access::none);
}

TEST_F(Rules, UnmapPartOfAMappingIsInvalid) {
  const auto range = reserved(4 * MiB);
  mapped(range.base, created(4 * MiB), 4 * MiB);
  EXPECT_EQ(code(driver.unmap({range.base, 2 * MiB})), invalid_value);
  EXPECT_EQ(code(driver.unmap({range.base + 2 * MiB, 2 * MiB})), invalid_value);
  EXPECT_EQ(driver.resource_counts().mappings, 1u);
  EXPECT_EQ(driver.misuse_count(vmm::fake::misuse_kind::cut_mapping), 2u);
}

TEST_F(Rules, UnmapSeveralAdjacentWholeMappingsSucceeds) {
  const auto range = reserved(6 * MiB);
  for (std::uint64_t at = 0; at < 6 * MiB; at += 2 * MiB)
    mapped(range.base + at, created(2 * MiB), 2 * MiB);
  EXPECT_EQ(code(driver.unmap(range)), success);
  EXPECT_EQ(driver.resource_counts().mappings, 0u);
}

TEST_F(Rules, UnmapAReservedRangeThatWasNeverMappedSucceeds) {
  const auto range = reserved(6 * MiB);
  EXPECT_EQ(code(driver.unmap(range)), success);
  EXPECT_EQ(code(driver.unmap({range.base + 2 * MiB, 2 * MiB})), success);
}

TEST_F(Rules, CreateWithASizeThatIsNoMultipleOfTheGranularityIsInvalid) {
  for (const std::uint64_t size :
       {std::uint64_t{0}, std::uint64_t{1}, 2 * MiB - 1, 2 * MiB + 1, 3 * MiB}) {
    EXPECT_EQ(code(driver.create({size, driver.home()})), invalid_value) << size;
  }
}

TEST_F(Rules, CreateMoreThanTheDeviceHasIsOutOfMemory) {
  const auto info = *driver.query_memory(driver.home());
  EXPECT_EQ(info.total_bytes, 143'771 * MiB);
  const auto answer =
      driver.create({vmm::round_up(info.free_bytes, 2 * MiB) + 2 * MiB, driver.home()});
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().native, out_of_memory);
  EXPECT_STREQ(answer.error().native_name, "CUDA_ERROR_OUT_OF_MEMORY");
  EXPECT_EQ(answer.error().code, vmm::errc::out_of_memory);
}

TEST_F(Rules, MemoryReleasedWhileMappedLivesUntilTheLastUnmap) {
  const auto before = driver.query_memory(driver.home())->free_bytes;
  const auto range = reserved(8 * MiB);
  const auto handle = *driver.create({4 * MiB, driver.home()});
  mapped(range.base, handle, 4 * MiB);
  mapped(range.base + 4 * MiB, handle, 4 * MiB);
  EXPECT_EQ(code(driver.release(handle)), success);
  EXPECT_TRUE(driver.write_tag({range.base, 4 * MiB}, 9));
  EXPECT_EQ(code(driver.unmap({range.base, 4 * MiB})), success);
  EXPECT_EQ(*driver.read_tag(range.base + 4 * MiB), 9u);
  EXPECT_EQ(driver.query_memory(driver.home())->free_bytes, before - 4 * MiB);
  EXPECT_EQ(code(driver.unmap({range.base + 4 * MiB, 4 * MiB})), success);
  EXPECT_EQ(driver.query_memory(driver.home())->free_bytes, before);
  EXPECT_EQ(driver.misuse_count(), 0u);
}

TEST_F(Rules, RetainGivesAnotherHandleForAnyAddressInside) {
  const auto range = reserved(4 * MiB);
  const auto handle = created(4 * MiB);
  mapped(range.base, handle, 4 * MiB);
  const auto again = *driver.retain(range.base + 3 * MiB + 17);
  EXPECT_NE(again, handle);
  EXPECT_EQ(driver.resource_counts().handles, 2u);
  EXPECT_EQ(driver.resource_counts().memories, 1u);
  EXPECT_EQ(code(driver.release(again)), success);
  EXPECT_EQ(*driver.read_tag(range.base), 0u);
}

TEST_F(Rules, AccessMayBeReadOnlyOrNone) {
  const auto range = reserved(2 * MiB);
  mapped(range.base, created(2 * MiB), 2 * MiB);
  EXPECT_EQ(code(open(range, vmm::access::read)), success);
  EXPECT_EQ(*driver.get_access(range.base, driver.home()), vmm::access::read);
  EXPECT_TRUE(driver.read_tag(range.base));
  EXPECT_FALSE(driver.write_tag(range, 1));
  EXPECT_EQ(code(open(range, vmm::access::none)), success);
  EXPECT_FALSE(driver.read_tag(range.base));
  EXPECT_EQ(driver.misuse_count(vmm::fake::misuse_kind::no_access), 2u);
}

TEST_F(Rules, GranularityIsTwoMebibytesMinimumAndRecommended) {
  for (const auto where : {vmm::device(0), vmm::host_node(0)}) {
    const auto unit = *driver.query_granularity({0, where});
    EXPECT_EQ(unit.minimum_bytes, 2 * MiB);
    EXPECT_EQ(unit.recommended_bytes, 2 * MiB);
  }
}

TEST_F(Rules, FreshMemoryIsZeroAlsoAfterBeingFilledReleasedAndCreatedAgain) {
  const auto range = reserved(2 * MiB);
  for (int round = 0; round < 3; ++round) {
    const auto handle = *driver.create({2 * MiB, driver.home()});
    mapped(range.base, handle, 2 * MiB);
    EXPECT_EQ(*driver.read_tag(range.base), 0u);
    ASSERT_TRUE(driver.write_tag(range, 0xAB));
    EXPECT_EQ(code(driver.unmap(range)), success);
    EXPECT_EQ(code(driver.release(handle)), success);
  }
}

TEST_F(Rules, HostNumaMemoryMayBeUsedByDeviceAndHost) {
  const auto range = reserved(64 * MiB);
  const auto handle = *driver.create({64 * MiB, vmm::host_node(0)});
  handles.push_back(handle);
  ASSERT_EQ(code(driver.map({range.base, 64 * MiB, handle, 0})), success);
  const vmm::access_grant both[] = {{vmm::device(0)}, {vmm::host_node(0)}};
  EXPECT_EQ(code(driver.set_access(range, both)), success);
  EXPECT_EQ(*driver.get_access(range.base, vmm::host_node(0)), vmm::access::read_write);
}

TEST_F(Rules, CreateWithAFabricHandleTypeIsNotPermitted) {
  const auto answer = driver.create({2 * MiB, driver.home(), vmm::share_kind::fabric});
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().native, not_permitted);
  EXPECT_STREQ(answer.error().native_name, "CUDA_ERROR_NOT_PERMITTED");
  EXPECT_EQ(answer.error().code, vmm::errc::not_permitted);
}

TEST_F(Rules, CompressibleMemoryIsGranted) {
  const auto handle = *driver.create({2 * MiB, driver.home(), vmm::share_kind::none, true});
  EXPECT_TRUE(driver.get_properties(handle)->compressible);
  EXPECT_TRUE(driver.release(handle));
}

TEST_F(Rules, DeviceAttributesAreThoseOfTheDevice) {
  const vmm::features& can = driver.feature_set();
  EXPECT_TRUE(can.export_posix_fd);
  EXPECT_TRUE(can.export_fabric);
  EXPECT_FALSE(can.multicast);
  EXPECT_TRUE(can.compression);
  EXPECT_TRUE(can.rdma);
  EXPECT_TRUE(can.host_node_location);
}

TEST_F(Rules, ReservingUpTo64TebibytesWorksAnd128IsOutOfMemory) {
  for (const std::uint64_t size : {16 * GiB, 1 * tib, 64 * tib}) {
    const auto range = driver.reserve({size, 0, {}});
    ASSERT_TRUE(range) << size;
    EXPECT_EQ(range->base.value % (2 * MiB), 0u);
    EXPECT_EQ(code(driver.free_reservation(*range)), success);
  }
  const auto answer = driver.reserve({128 * tib, 0, {}});
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().native, out_of_memory);
  EXPECT_EQ(answer.error().code, vmm::errc::out_of_addresses);
}

}  // namespace
}  // namespace fake_test

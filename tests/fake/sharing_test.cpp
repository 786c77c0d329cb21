// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: two drivers of one machine share memory as two processes do, and multicast objects go
// through their states in order.
// Method: an exporter and an importer that take turns giving up what they hold; each state of a
// team against the calls that belong to another.
#include "bench.h"

namespace fake_test {
namespace {

using vmm::fake::misuse_kind, vmm::fake::profile;

vmm::address_range joined(vmm::fake_driver& driver, vmm::physical_handle handle) {
  const auto range = driver.reserve({4 * MiB, 0, {}});
  EXPECT_TRUE(driver.map({range->base, 4 * MiB, handle, 0}));
  const vmm::access_grant grant{driver.home()};
  EXPECT_TRUE(driver.set_access(*range, {&grant, 1}));
  return *range;
}
void parted(vmm::fake_driver& driver, vmm::address_range range) {
  EXPECT_TRUE(driver.unmap(range));
  EXPECT_TRUE(driver.free_reservation(range));
}

struct Sharing : ::testing::Test {
  Sharing()
      : machine(profile::cuda()),
        exporter(profile::cuda(), machine),
        importer(profile::cuda(), machine) {}
  void TearDown() override {
    EXPECT_TRUE(exporter.check_empty()) << exporter.report();
    EXPECT_TRUE(importer.check_empty()) << importer.report();
  }
  // Memory to be shared, and its descriptor.
  void export_memory() {
    handle = *exporter.create({4 * MiB, vmm::device(0), vmm::share_kind::posix_fd});
    sent = *exporter.export_handle(handle, vmm::share_kind::posix_fd);
  }
  std::uint64_t free_bytes() { return exporter.query_memory(vmm::device(0))->free_bytes; }

  vmm::fake::machine machine;
  vmm::fake_driver exporter;
  vmm::fake_driver importer;
  vmm::physical_handle handle{};
  vmm::shared_handle sent{};
};

TEST_F(Sharing, BothSeeOneMemory) {
  export_memory();
  EXPECT_EQ(sent.size_bytes, 4 * MiB);
  EXPECT_EQ(exporter.resource_counts().descriptors, 1u);
  const auto received = *importer.import_handle(sent);
  ASSERT_TRUE(importer.close_descriptor(sent));
  EXPECT_EQ(exporter.resource_counts().descriptors, 0u);
  const auto here = joined(exporter, handle);
  const auto there = joined(importer, received);
  ASSERT_TRUE(exporter.write_tag(here, 5));
  EXPECT_EQ(*importer.read_tag(there.base + 2 * MiB), 5u);
  parted(exporter, here);
  ASSERT_TRUE(exporter.release(handle));
  EXPECT_EQ(*importer.read_tag(there.base), 5u) << "the exporter is gone, the memory is not";
  parted(importer, there);
  ASSERT_TRUE(importer.release(received));
}

// As on an H200, in the exporter's own process as in another one (driver 580.159.04).
TEST_F(Sharing, WhatWasImportedSaysNothingOfSharingAndIsNotExportedAgain) {
  vmm::physical_request wanted{4 * MiB, vmm::device(0), vmm::share_kind::posix_fd};
  wanted.rdma_capable = true;
  handle = *exporter.create(wanted);
  sent = *exporter.export_handle(handle, vmm::share_kind::posix_fd);
  for (vmm::fake_driver* each : {&importer, &exporter}) {
    const auto received = *each->import_handle(sent);
    EXPECT_EQ(each->get_properties(received)->where, vmm::device(0));
    EXPECT_EQ(each->get_properties(received)->shareable, vmm::share_kind::none);
    EXPECT_FALSE(each->get_properties(received)->rdma_capable);
    EXPECT_EQ(code(each->export_handle(received, vmm::share_kind::posix_fd)), invalid_value);
    ASSERT_TRUE(each->release(received));
  }
  EXPECT_EQ(exporter.get_properties(handle)->shareable, vmm::share_kind::posix_fd);
  EXPECT_TRUE(exporter.get_properties(handle)->rdma_capable);
  ASSERT_TRUE(exporter.close_descriptor(sent));
  ASSERT_TRUE(exporter.release(handle));
}

TEST_F(Sharing, AnOpenDescriptorKeepsTheMemory) {
  const std::uint64_t before = free_bytes();
  export_memory();
  ASSERT_TRUE(exporter.release(handle));
  EXPECT_EQ(free_bytes(), before - 4 * MiB);
  const auto received = *importer.import_handle(sent);
  ASSERT_TRUE(importer.close_descriptor(sent));
  ASSERT_TRUE(importer.release(received));
  EXPECT_EQ(free_bytes(), before);
}

TEST_F(Sharing, AClosedDescriptorIsNoMemory) {
  export_memory();
  ASSERT_TRUE(exporter.close_descriptor(sent));
  EXPECT_EQ(code(importer.import_handle(sent)), invalid_value);
  EXPECT_EQ(importer.misuse_count(misuse_kind::stale_handle), 1u);
  EXPECT_FALSE(exporter.close_descriptor(sent));
  ASSERT_TRUE(exporter.release(handle));
}

TEST_F(Sharing, AnUnclosedDescriptorIsALeak) {
  export_memory();
  ASSERT_TRUE(exporter.release(handle));
  EXPECT_FALSE(exporter.check_empty());
  EXPECT_FALSE(exporter.resource_counts().empty());
  ASSERT_TRUE(exporter.close_descriptor(sent));
}

TEST_F(Sharing, ExportAndImportCostWhatWasMeasured) {
  const auto handle = exporter.create({4 * MiB, vmm::device(0), vmm::share_kind::posix_fd});
  const double before = exporter.busy_us();
  const auto sent = exporter.export_handle(*handle, vmm::share_kind::posix_fd);
  EXPECT_NEAR(exporter.busy_us() - before, 906.0, 0.001);
  const auto received = importer.import_handle(*sent);
  EXPECT_NEAR(importer.busy_us(), 23.0, 0.001);
  ASSERT_TRUE(importer.close_descriptor(*sent));
  ASSERT_TRUE(importer.release(*received));
  ASSERT_TRUE(exporter.release(*handle));
}

TEST(SharingByFabric, WorksWhereItIsPermitted) {
  auto plays = profile::cuda();
  plays.fabric_permitted = true;
  vmm::fake::machine machine{plays};
  vmm::fake_driver exporter{plays, machine};
  vmm::fake_driver importer{plays, machine};
  const auto handle = *exporter.create({4 * MiB, vmm::device(0), vmm::share_kind::fabric});
  const auto sent = *exporter.export_handle(handle, vmm::share_kind::fabric);
  const auto received = *importer.import_handle(sent);
  ASSERT_TRUE(importer.release(received));
  ASSERT_TRUE(exporter.release(handle));
  EXPECT_EQ(code(importer.import_handle(sent)), invalid_value) << "it keeps nothing alive";
  EXPECT_TRUE(exporter.resource_counts().empty());
}

// ---- multicast ----

struct Multicast : ::testing::Test {
  void SetUp() override {
    for (int i = 0; i < 2; ++i) own.push_back(*driver.create({4 * MiB, vmm::device(i)}));
    team = *driver.create_multicast({4 * MiB, 2});
  }
  void TearDown() override {
    for (const auto handle : own) EXPECT_TRUE(driver.release(handle));
    EXPECT_TRUE(driver.release(static_cast<vmm::physical_handle>(team)));
    EXPECT_TRUE(driver.check_empty()) << driver.report();
  }
  vmm::multicast_binding whole(int device) {
    return {team, vmm::device(device), own[static_cast<std::size_t>(device)], 0, 0, 4 * MiB};
  }
  void fill_team() {
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(driver.add_multicast_device(team, vmm::device(i)));
  }

  vmm::fake_driver driver{cuda_with([](auto& plays) {
    plays.can.multicast = true;
    plays.device_count = 2;
  })};
  std::vector<vmm::physical_handle> own;
  vmm::multicast_handle team{};
};

TEST_F(Multicast, AWriteGoesToEveryBoundMemory) {
  fill_team();
  ASSERT_TRUE(driver.bind_multicast(whole(0)));
  ASSERT_TRUE(driver.bind_multicast(whole(1)));
  const auto all = joined(driver, static_cast<vmm::physical_handle>(team));
  const vmm::address_range each[] = {joined(driver, own[0]), joined(driver, own[1])};
  ASSERT_TRUE(driver.write_tag({all.base + 2 * MiB, 2 * MiB}, 6));
  const std::byte bytes[3] = {std::byte{1}, std::byte{2}, std::byte{3}};
  ASSERT_TRUE(driver.write(all.base + 100, bytes));
  for (const auto range : each) {
    EXPECT_EQ(*driver.read_tag(range.base), 0u);
    EXPECT_EQ(*driver.read_tag(range.base + 2 * MiB), 6u);
    std::byte seen[3]{};
    ASSERT_TRUE(driver.read(seen, range.base + 100));
    EXPECT_EQ(seen[2], std::byte{3});
    parted(driver, range);
  }
  parted(driver, all);
}

TEST_F(Multicast, NothingIsBoundOrMappedBeforeTheTeamIsFull) {
  EXPECT_EQ(code(driver.bind_multicast(whole(0))), 401);
  ASSERT_TRUE(driver.add_multicast_device(team, vmm::device(0)));
  EXPECT_EQ(code(driver.bind_multicast(whole(0))), 401);
  const auto range = driver.reserve({4 * MiB, 0, {}});
  EXPECT_EQ(code(driver.map({range->base, 4 * MiB, static_cast<vmm::physical_handle>(team), 0})),
            401);
  ASSERT_TRUE(driver.add_multicast_device(team, vmm::device(1)));
  EXPECT_TRUE(driver.bind_multicast(whole(0)));
  EXPECT_TRUE(driver.map({range->base, 4 * MiB, static_cast<vmm::physical_handle>(team), 0}));
  parted(driver, *range);
}

TEST_F(Multicast, ADeviceIsAddedOnce) {
  ASSERT_TRUE(driver.add_multicast_device(team, vmm::device(0)));
  EXPECT_EQ(code(driver.add_multicast_device(team, vmm::device(0))), invalid_value);
  EXPECT_EQ(code(driver.add_multicast_device(team, vmm::device(2))), 101);
  EXPECT_EQ(code(driver.add_multicast_device(vmm::multicast_handle::none, vmm::device(1))), 400);
  EXPECT_EQ(
      code(driver.add_multicast_device(static_cast<vmm::multicast_handle>(own[0]), vmm::device(1))),
      400);
}

TEST_F(Multicast, BindingKeepsToGranularityAndBounds) {
  fill_team();
  auto binding = whole(0);
  binding.size_bytes = 1 * MiB;
  EXPECT_EQ(code(driver.bind_multicast(binding)), invalid_value);
  binding = whole(0);
  binding.team_offset_bytes = 2 * MiB;
  EXPECT_EQ(code(driver.bind_multicast(binding)), invalid_value);
  binding = whole(0);
  binding.memory_offset_bytes = 2 * MiB;
  EXPECT_EQ(code(driver.bind_multicast(binding)), invalid_value);
  binding = whole(0);
  binding.device = vmm::device(1);  // not where the memory is
  EXPECT_EQ(code(driver.bind_multicast(binding)), 101);
  ASSERT_TRUE(driver.bind_multicast(whole(0)));
  EXPECT_EQ(code(driver.bind_multicast(whole(0))), invalid_value) << "bound there already";
}

TEST_F(Multicast, UnbindRepeatsTheBindExactly) {
  fill_team();
  ASSERT_TRUE(driver.bind_multicast(whole(0)));
  auto half = whole(0);
  half.size_bytes = 2 * MiB;
  EXPECT_EQ(code(driver.unbind_multicast(half)), invalid_value);
  EXPECT_TRUE(driver.unbind_multicast(whole(0)));
  EXPECT_EQ(code(driver.unbind_multicast(whole(0))), invalid_value);
}

TEST_F(Multicast, BoundMemoryLivesUntilTheTeamDoesNot) {
  fill_team();
  const auto before = driver.query_memory(vmm::device(0))->free_bytes;
  ASSERT_TRUE(driver.bind_multicast(whole(0)));
  ASSERT_TRUE(driver.release(own[0]));
  EXPECT_EQ(driver.query_memory(vmm::device(0))->free_bytes, before);
  ASSERT_TRUE(driver.release(static_cast<vmm::physical_handle>(team)));
  EXPECT_EQ(driver.query_memory(vmm::device(0))->free_bytes, before + 4 * MiB);
  own[0] = *driver.create({4 * MiB, vmm::device(0)});
  team = *driver.create_multicast({4 * MiB, 2});
}

TEST_F(Multicast, CreationIsChecked) {
  EXPECT_EQ(code(driver.create_multicast({4 * MiB, 0})), invalid_value);
  EXPECT_EQ(code(driver.create_multicast({1 * MiB, 2})), invalid_value);
  EXPECT_EQ(driver.query_multicast_granularity({4 * MiB, 2})->minimum_bytes, 2 * MiB);
  vmm::fake_driver without;
  EXPECT_EQ(code(without.create_multicast({4 * MiB, 2})), not_supported);
}

}  // namespace
}  // namespace fake_test

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: vmm.multi_device does what its heads say: the topology is the driver's, multicast refuses
// each wrong order before the driver sees it, aliases keep their ordering policy, granted
// properties are reported, and registrations follow every change of the memory.
// Method: a fake machine of three devices, and of drivers that lack the requested features. Its
// misuses and its counts are empty after each test that does not plan one.
#include "three_devices.hpp"

import vmm.manager;
import vmm.multi_device;
import vmm.stream;
import vmm.suspend;

namespace {

using vmm::access, vmm::address, vmm::address_range, vmm::device, vmm::errc, vmm::multicast_phase,
    vmm::fake::misuse_kind;

using Special = ThreeDevices;

// ---- topology ----------------------------------------------------------------------

TEST_F(Special, TheTopologyIsTheDrivers) {
  vmm::fake::profile partial = three_devices();
  partial.reaches[0] = 0b011;
  partial.reaches[2] = 0b110;
  vmm::fake_driver some(partial);
  vmm::any_backend any = *vmm::any_backend::own(std::move(some));
  const auto seen = vmm::peer_topology::query(*any.get());
  ASSERT_TRUE(seen) << vmm::describe(seen.error());
  EXPECT_EQ(seen->device_count(), 3);
  EXPECT_EQ(seen->link(device(0), device(1)).link, vmm::link_kind::peer);
  EXPECT_EQ(seen->link(device(0), device(2)).link, vmm::link_kind::none);
  EXPECT_EQ(seen->link(device(2), device(0)).link, vmm::link_kind::none);
  EXPECT_EQ(seen->link(device(1), device(1)).link, vmm::link_kind::itself);
  EXPECT_EQ(*seen->peers_of(device(0)), std::vector<vmm::location>{device(1)});
  EXPECT_EQ(seen->peers_of(device(1))->size(), 2u);
  EXPECT_EQ(seen->to_text(),
            "device 0: itself peer+atomics none\n"
            "device 1: peer+atomics itself peer+atomics\n"
            "device 2: none peer+atomics itself\n");
}

TEST(Topology, ADriverWithoutPeersSaysSo) {
  vmm::fake_driver host(vmm::fake::profile::host());
  vmm::driver_ref driver(host);
  EXPECT_EQ(vmm::peer_topology::query(*driver).error().code, errc::not_supported);
}

// ---- what was granted ----------------------------------------------------------------

TEST_F(Special, CompressionIsGrantedOrSaidNotToBe) {
  vmm::manager wished(driver, {.compressible = true});
  const address at = *wished.allocate(8 * MiB);
  EXPECT_TRUE(vmm::granted_of(wished, at)->compressible);
  EXPECT_EQ(vmm::granted_of(wished, at)->where, device(0));
  ASSERT_TRUE(wished.free(at));
  vmm::fake::profile poor = three_devices();
  poor.can.compression = false;
  vmm::fake_driver without(poor);
  vmm::manager declined(without, {.compressible = true});
  const address there = *declined.allocate(8 * MiB);
  EXPECT_FALSE(vmm::granted_of(declined, there)->compressible) << "a wish, declined in silence";
  ASSERT_TRUE(declined.free(there));
  vmm::driver_ref with(driver);
  EXPECT_TRUE(vmm::probe_memory(*with, {.compressible = true, .rdma_capable = true})->rdma_capable);
  EXPECT_EQ(vmm::granted_of(wished, at).error().code, errc::not_allocated);
}

// ---- aliases -----------------------------------------------------------------------

struct Alias : Special {
  void SetUp() override {
    memory = *vmm::aliased_memory::make(driver, {.size_bytes = 4 * MiB});
    first = memory.mappings()[0];
    second = *memory.add_mapping();
    for (vmm::stream_handle& each : streams) each = *driver.create_stream();
  }
  void TearDown() override {
    ASSERT_TRUE(driver.finish_all());
    ASSERT_TRUE(memory.release());
    for (const vmm::stream_handle each : streams) ASSERT_TRUE(driver.destroy_stream(each));
    Special::TearDown();
  }
  void write(int stream, address_range where, std::uint64_t tag) {
    const vmm::fake::kernel work{.duration_us = 5, .writes = {&where, 1}, .tag = tag};
    ASSERT_TRUE(driver.launch(streams[stream], work));
  }
  void read(int stream, address_range where, std::uint64_t expected) {
    const vmm::fake::kernel work{.duration_us = 5, .reads = {&where, 1}, .expected = expected};
    ASSERT_TRUE(driver.launch(streams[stream], work));
  }

  vmm::aliased_memory memory;
  address_range first{};
  address_range second{};
  vmm::stream_handle streams[2]{};
};

TEST_F(Alias, ViewsShowOneMemoryAtSeveralAddresses) {
  EXPECT_NE(first.base, second.base);
  EXPECT_EQ(memory.size_bytes(), 4 * MiB);
  EXPECT_EQ(memory.level(), vmm::alias_level::after_work);
  EXPECT_EQ(driver.resource_counts().memory_bytes, 4 * MiB);
  ASSERT_TRUE(driver.write_tag(first, 9));
  EXPECT_EQ(*driver.read_tag(second.base + 2 * MiB), 9u);
}

TEST_F(Alias, Rule1WorkOfOneStreamIsInOrderThroughAnyView) {
  write(0, first, 4);
  read(0, second, 4);
  write(0, second, 5);
  read(0, first, 5);
}

TEST_F(Alias, Rule2WorkOfAnotherStreamIsOrderedBehindTheWrite) {
  write(0, first, 4);
  ASSERT_TRUE(memory.order(streams[0], streams[1]));
  read(1, second, 4);
}

TEST_F(Alias, Rule2WithoutTheOrderItIsAMistake) {
  write(0, first, 4);
  read(1, second, 4);
  EXPECT_EQ(driver.misuse_count(misuse_kind::unordered), 1u);
  ASSERT_TRUE(driver.finish_all());
  driver.clear_misuses();
}

TEST_F(Alias, Rule3DisjointBytesMayBeUsedAtTheSameTime) {
  write(0, {first.base, 2 * MiB}, 4);
  write(1, {second.base + 2 * MiB, 2 * MiB}, 5);
  ASSERT_TRUE(driver.finish_all());
  EXPECT_EQ(*driver.read_tag(second.base), 4u);
  EXPECT_EQ(*driver.read_tag(first.base + 2 * MiB), 5u);
}

TEST_F(Alias, Rule4TheHostReadsWhenTheWorkHasFinished) {
  write(0, first, 4);
  ASSERT_TRUE(driver.synchronize_stream(streams[0]));
  EXPECT_EQ(*driver.read_tag(second.base), 4u);
}

TEST_F(Alias, Rule5AViewGoesWithoutTheOthers) {
  write(0, first, 4);
  ASSERT_TRUE(driver.synchronize_stream(streams[0]));
  ASSERT_TRUE(memory.drop_mapping(first.base));
  EXPECT_EQ(*driver.read_tag(second.base), 4u);
  EXPECT_EQ(memory.drop_mapping(first.base).error().code, errc::unknown_address);
  EXPECT_EQ(memory.drop_mapping(second.base).error().code, errc::invalid_argument)
      << "the last one";
}

// Memory of the host, used by the device and by the host.
TEST_F(Special, HostNodeMemoryIsUsedByTheDeviceAndTheHost) {
  vmm::aliased_memory memory =
      *vmm::aliased_memory::make(driver, {.size_bytes = 4 * MiB, .placement = vmm::host_node(0)});
  const address_range where = memory.mappings()[0];
  EXPECT_EQ(*driver.get_access(where.base, device(0)), access::read_write);
  EXPECT_EQ(*driver.get_access(where.base, vmm::host_node(0)), access::read_write);
  ASSERT_TRUE(driver.launch({}, {.writes = {&where, 1}, .tag = 6}));
  ASSERT_TRUE(driver.finish_all());
  EXPECT_EQ(*driver.read_tag(where.base), 6u);
  ASSERT_TRUE(memory.release());
}

// ---- multicast ---------------------------------------------------------------------

struct Team : Special {
  static constexpr std::uint64_t size_bytes = 4 * MiB;
  void SetUp() override {
    for (int i = 0; i < 2; ++i) own.push_back(*driver.create({size_bytes, device(i)}));
    team = *vmm::multicast_team::create(driver, {size_bytes - 5, 2});
  }
  void TearDown() override {
    ASSERT_TRUE(team.release());
    EXPECT_EQ(team.phase(), multicast_phase::gone);
    for (const vmm::physical_handle each : own) ASSERT_TRUE(driver.release(each));
    Special::TearDown();
  }
  vmm::multicast_part whole(int i) {
    return {device(i), own[static_cast<std::size_t>(i)], 0, 0, size_bytes};
  }
  void add_both() {
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(team.add(device(i)));
  }
  void bind_both() {
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(team.bind(whole(i)));
  }
  address_range mapped(vmm::physical_handle handle) {
    const auto range = driver.reserve({size_bytes, 0, {}});
    EXPECT_TRUE(driver.map({range->base, size_bytes, handle, 0}));
    EXPECT_TRUE(driver.set_access(*range, grants));
    return *range;
  }
  void unmapped(address_range range) {
    EXPECT_TRUE(driver.unmap(range));
    EXPECT_TRUE(driver.free_reservation(range));
  }
  // No driver call is made for a step that is out of turn.
  template <class Step>
  void refused(errc code, Step&& step) {
    const std::uint64_t before = driver.calls();
    const auto answer = step();
    EXPECT_EQ(answer.error().code, code) << vmm::describe(answer.error());
    EXPECT_EQ(driver.calls(), before) << "the driver was called";
  }

  const std::vector<vmm::access_grant> grants{{device(0), access::read_write},
                                              {device(1), access::read_write}};
  std::vector<vmm::physical_handle> own;
  vmm::multicast_team team;
};

TEST_F(Team, ReachesTheMemoryOfEveryDevice) {
  EXPECT_EQ(team.size_bytes(), size_bytes) << "rounded up";
  EXPECT_EQ(team.phase(), multicast_phase::gathering);
  add_both();
  EXPECT_EQ(team.phase(), multicast_phase::binding);
  bind_both();
  EXPECT_EQ(team.phase(), multicast_phase::ready);
  const auto where = team.map(grants);
  ASSERT_TRUE(where) << vmm::describe(where.error());
  EXPECT_EQ(team.phase(), multicast_phase::mapped);
  ASSERT_TRUE(driver.launch({}, {.where = device(1), .writes = {&*where, 1}, .tag = 6}));
  ASSERT_TRUE(driver.finish_all());
  for (const vmm::physical_handle each : own) {
    const address_range range = mapped(each);
    EXPECT_EQ(*driver.read_tag(range.base + 2 * MiB), 6u);
    unmapped(range);
  }
  ASSERT_TRUE(team.unmap());
  ASSERT_TRUE(team.unbind(device(1), 0));
  EXPECT_EQ(team.phase(), multicast_phase::binding);
}

TEST_F(Team, TakesMemoryByItsAddressAndInParts) {
  add_both();
  const address_range range = mapped(own[0]);
  ASSERT_TRUE(team.bind(vmm::multicast_team::mapped_part{device(0), {range.base, 2 * MiB}, 0}));
  ASSERT_TRUE(team.bind(
      vmm::multicast_team::mapped_part{device(0), {range.base + 2 * MiB, 2 * MiB}, 2 * MiB}));
  EXPECT_EQ(team.phase(), multicast_phase::binding);
  ASSERT_TRUE(team.bind(whole(1)));
  EXPECT_EQ(team.phase(), multicast_phase::ready);
  const address_range all = *team.map(grants);
  ASSERT_TRUE(driver.write_tag(all, 8));
  EXPECT_EQ(*driver.read_tag(range.base + 2 * MiB), 8u);
  unmapped(range);
}

TEST_F(Team, RefusesEachWrongOrder) {
  const vmm::access_grant more{device(0), access::read};
  // Nothing but adding before every device is there.
  refused(errc::in_use, [&] { return team.bind(whole(0)); });
  refused(errc::in_use, [&] { return team.map(grants); });
  refused(errc::in_use, [&] { return team.set_access({&more, 1}); });
  refused(errc::in_use, [&] { return team.unmap(); });
  refused(errc::invalid_argument, [&] { return team.unbind(device(0), 0); });
  ASSERT_TRUE(team.add(device(0)));
  refused(errc::invalid_argument, [&] { return team.add(device(0)); });
  refused(errc::invalid_argument, [&] { return team.add(vmm::host()); });
  ASSERT_TRUE(team.add(device(1)));
  refused(errc::in_use, [&] { return team.add(device(2)); });
  // Nothing is mapped before every byte has memory of every device.
  ASSERT_TRUE(team.bind(whole(0)));
  refused(errc::in_use, [&] { return team.map(grants); });
  refused(errc::invalid_argument, [&] { return team.bind(whole(0)); });
  refused(errc::invalid_argument, [&] { return team.bind({device(2), own[1], 0, 0, size_bytes}); });
  refused(errc::invalid_argument, [&] { return team.bind({device(1), own[1], 0, 0, 1 * MiB}); });
  refused(errc::invalid_argument,
          [&] { return team.bind({device(1), own[1], 0, 2 * MiB, size_bytes}); });
  ASSERT_TRUE(team.bind(whole(1)));
  refused(errc::invalid_argument, [&] { return team.map({}); });
  ASSERT_TRUE(team.map(grants));
  // Nothing is bound or unbound, and it is not mapped again, while it is mapped.
  refused(errc::in_use, [&] { return team.map(grants); });
  refused(errc::in_use, [&] { return team.bind(whole(0)); });
  refused(errc::in_use, [&] { return team.unbind(device(0), 0); });
  refused(errc::in_use, [&] { return team.add(device(2)); });
  ASSERT_TRUE(team.set_access({&more, 1}));
  ASSERT_TRUE(team.unmap());
  refused(errc::in_use, [&] { return team.unmap(); });
  ASSERT_TRUE(team.unbind(device(0), 0));
  refused(errc::invalid_argument, [&] { return team.unbind(device(0), 0); });
  ASSERT_TRUE(team.release());
  refused(errc::invalid_argument, [&] { return team.add(device(0)); });
  refused(errc::invalid_argument, [&] { return team.map(grants); });
}

TEST(TeamElsewhere, ADriverWithoutMulticastSaysSo) {
  vmm::fake_driver driver;
  EXPECT_EQ(vmm::multicast_team::create(driver, {4 * MiB, 2}).error().code, errc::not_supported);
  EXPECT_EQ(vmm::multicast_team::create(driver, {0, 2}).error().code, errc::invalid_argument);
  EXPECT_STREQ(vmm::name_of(multicast_phase::ready), "ready");
}

// ---- registration ------------------------------------------------------------------

// A library that registers memory, and counts what outlives it.
struct card {
  std::vector<address_range> held;
  std::uint64_t entered_count = 0;
  bool refuses = false;

  static vmm::status enter(void* context, address_range range) noexcept {
    auto& self = *static_cast<card*>(context);
    if (self.refuses) return vmm::refuse(errc::not_supported, "the card takes no more");
    ++self.entered_count;
    self.held.push_back(range);
    return {};
  }
  static void leave(void* context, address_range range) noexcept {
    auto& self = *static_cast<card*>(context);
    const auto found = std::find(self.held.begin(), self.held.end(), range);
    EXPECT_NE(found, self.held.end()) << "left without being entered";
    if (found != self.held.end()) self.held.erase(found);
  }
  vmm::registration_hooks hooks() { return {&enter, &leave, this}; }
};

// Every range that the card holds is mapped from end to end.
std::uint64_t count_dangling(vmm::fake_driver& driver, const card& library) {
  std::uint64_t count = 0;
  for (const address_range& each : library.held) {
    for (std::uint64_t at = 0; at < each.size_bytes; at += 2 * MiB)
      count += driver.get_access(each.base + at, device(0)) ? 0 : 1;
  }
  return count;
}

TEST_F(Special, MemoryForRegistrationIsOneHandleThatCanBeShared) {
  vmm::driver_ref with(driver);
  const auto options = vmm::registrable_options(*with);
  ASSERT_TRUE(options) << vmm::describe(options.error());
  EXPECT_EQ(options->shareable, vmm::share_kind::posix_fd) << "fabric is not permitted here";
  EXPECT_TRUE(options->rdma_capable);
  vmm::manager managed(driver, *options);
  for (const std::uint64_t size_bytes : {2 * MiB, 30 * MiB, 6 * MiB, 30 * MiB}) {
    const address at = *managed.allocate(size_bytes);
    const auto report = vmm::check_registrable(managed, at);
    ASSERT_TRUE(report) << vmm::describe(report.error());
    EXPECT_EQ(report->segment_count, 1u);
    EXPECT_TRUE(report->is_registrable());
    EXPECT_TRUE(report->rdma_capable);
    const auto listed = managed.segments({at, size_bytes});
    ASSERT_EQ(listed->size(), 1u);
    EXPECT_EQ(listed->front().range, (address_range{at, size_bytes}));
    const auto shared = driver.export_range({at, size_bytes});
    ASSERT_TRUE(shared) << vmm::describe(shared.error());
    ASSERT_TRUE(driver.close_descriptor(
        {.kind = vmm::share_kind::posix_fd, .descriptor = shared->descriptor}));
    ASSERT_TRUE(managed.free(at));
  }
}

TEST(Registration, FabricIsAskedForWhereThisProcessMayHaveIt) {
  vmm::fake::profile open = vmm::fake::profile::cuda();
  open.fabric_permitted = true;
  vmm::fake_driver driver(open);
  vmm::driver_ref with(driver);
  const auto options = *vmm::registrable_options(*with);
  EXPECT_EQ(static_cast<unsigned>(options.shareable),
            static_cast<unsigned>(vmm::share_kind::posix_fd) |
                static_cast<unsigned>(vmm::share_kind::fabric));
  EXPECT_TRUE(driver.check_empty());
}

TEST(Registration, WhatALibraryRefusesIsPredicted) {
  vmm::fake::profile small = vmm::fake::profile::cuda();
  small.device_memory_bytes = 64 * MiB;
  vmm::fake_driver driver(small);
  vmm::manager plain(driver);
  const address unshared = *plain.allocate(8 * MiB);
  EXPECT_FALSE(vmm::check_registrable(plain, unshared)->is_registrable()) << "no kind of handle";
  vmm::driver_ref with(driver);
  vmm::manager spilling(driver, *vmm::registrable_options(*with, {{.spill = vmm::host_node(0)}}));
  const address far = *spilling.allocate(64 * MiB);
  const auto report = vmm::check_registrable(spilling, far);
  EXPECT_FALSE(report->on_device) << "a segment of the host";
  EXPECT_FALSE(report->is_registrable());
  ASSERT_TRUE(spilling.free(far));
  ASSERT_TRUE(plain.free(unshared));
}

TEST_F(Special, APoolsMappingsAreRegisteredWhileTheyStand) {
  card library;
  {
    vmm::stream_pool pool(driver);
    const vmm::stream_handle stream = *driver.create_stream();
    auto watch = *vmm::pool_registrations::watch(pool, library.hooks());
    const address a = *pool.allocate(200 * MiB, stream);
    const address keep = *pool.allocate(200 * MiB, stream);
    EXPECT_GT(watch->size(), 0u);
    const auto listed = pool.segments({a, 200 * MiB});
    ASSERT_TRUE(listed) << vmm::describe(listed.error());
    for (const vmm::memory_segment& each : *listed) {
      EXPECT_NE(std::find(library.held.begin(), library.held.end(), each.range),
                library.held.end());
    }
    EXPECT_EQ(pool.segments({a + 4096 * MiB, 8}).error().code, errc::not_allocated);
    ASSERT_TRUE(pool.free(a, stream));
    const address b = *pool.allocate(300 * MiB, stream);
    EXPECT_EQ(count_dangling(driver, library), 0u);
    ASSERT_TRUE(pool.free(b, stream));
    ASSERT_TRUE(pool.free(keep, stream));
    ASSERT_TRUE(driver.synchronize_stream(stream));
    (void)pool.trim(0);
    EXPECT_EQ(count_dangling(driver, library), 0u);
    EXPECT_EQ(watch->size(), library.held.size());
    library.refuses = true;
    const address c = *pool.allocate(100 * MiB, stream);
    EXPECT_GT(watch->refused_count(), 0u) << "the block lives, unregistered";
    ASSERT_TRUE(pool.free(c, stream));
    watch.reset();
    EXPECT_TRUE(library.held.empty());
    ASSERT_TRUE(pool.forget(stream));
    ASSERT_TRUE(driver.destroy_stream(stream));
  }
  EXPECT_GT(library.entered_count, 4u);
}

TEST_F(Special, AManagersBlocksAreRegisteredAroundEachChange) {
  card library;
  vmm::manager managed(driver);
  {
    vmm::registered_blocks blocks(managed, library.hooks());
    const address at = *blocks.allocate({.size_bytes = 8 * MiB});
    const address fence = *blocks.allocate({.size_bytes = 2 * MiB});
    EXPECT_EQ(blocks.size(), 2u);
    const address moved = *blocks.resize({at, 64 * MiB});
    EXPECT_NE(moved, at);
    EXPECT_TRUE(blocks.is_registered(moved));
    EXPECT_EQ(count_dangling(driver, library), 0u);
    EXPECT_EQ(blocks.resize({moved, 0}).error().code, errc::invalid_argument);
    EXPECT_TRUE(blocks.is_registered(moved)) << "as before";
    EXPECT_EQ(blocks.free(at).error().code, errc::not_allocated);
    ASSERT_TRUE(blocks.free(moved));
    library.refuses = true;
    EXPECT_EQ(blocks.allocate({.size_bytes = 2 * MiB}).error().code, errc::not_supported);
    EXPECT_EQ(managed.statistics().live_count, 1u);
    EXPECT_EQ(library.held.size(), 1u);
    ASSERT_TRUE(blocks.free(fence));
  }
  EXPECT_TRUE(library.held.empty());
}

// What a suspension takes away is left before, and entered when it is back.
TEST_F(Special, RegistrationsDoNotOutliveSuspendedMemory) {
  card library;
  vmm::manager managed(driver);
  vmm::stream_pool pool(driver);
  vmm::suspender sleeper;
  ASSERT_TRUE(sleeper.add(managed, {"blocks", vmm::suspend_contents::keep}));
  ASSERT_TRUE(sleeper.add(pool, {"pool", vmm::suspend_contents::keep}));
  {
    vmm::registered_blocks blocks(managed, library.hooks());
    const auto watch = *vmm::pool_registrations::watch(pool, library.hooks());
    const address kept = *blocks.allocate({.size_bytes = 8 * MiB});
    const address gone = *blocks.allocate({.size_bytes = 4 * MiB});
    const address of_pool = *pool.allocate(8 * MiB, {});
    const std::size_t count = library.held.size();
    EXPECT_GE(count, 3u);
    ASSERT_TRUE(sleeper.suspend({}));
    EXPECT_TRUE(library.held.empty());
    ASSERT_TRUE(blocks.free(gone));
    ASSERT_TRUE(sleeper.resume({}));
    EXPECT_EQ(library.held.size(), count - 1);
    EXPECT_TRUE(blocks.is_registered(kept));
    EXPECT_EQ(count_dangling(driver, library), 0u);

    driver.fail({vmm::call::unmap, 1, false, driver.possible_errors(vmm::call::unmap).front()});
    EXPECT_FALSE(sleeper.suspend({})) << "and all is as before";
    EXPECT_EQ(library.held.size(), count - 1);
    EXPECT_EQ(count_dangling(driver, library), 0u);

    ASSERT_TRUE(sleeper.suspend({}));
    library.refuses = true;
    ASSERT_TRUE(sleeper.resume({}));
    EXPECT_FALSE(blocks.is_registered(kept)) << "it lives, unregistered";
    EXPECT_TRUE(library.held.empty());
    ASSERT_TRUE(blocks.free(kept));
    ASSERT_TRUE(pool.free(of_pool, {}));
  }
  ASSERT_TRUE(sleeper.remove(managed));
  ASSERT_TRUE(sleeper.remove(pool));
}

}  // namespace

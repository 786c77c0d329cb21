// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: every wrong use of access, topology, registration, multicast and aliases has the result in
// docs/misuse.md.
// Method: one test a row, on three devices of the fake driver, of which the last reaches nothing.
#include "fixture.hpp"

import vmm.multi_device;

namespace misuse {

using vmm::access, vmm::access_grant, vmm::address, vmm::address_range, vmm::device, vmm::errc;

struct PeerMisuse : testing::Test {
  PeerMisuse() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  static vmm::fake::profile three_devices() {
    vmm::fake::profile made = vmm::fake::profile::cuda();
    made.device_count = 3;
    made.reaches[2] = 0b100;
    made.can.multicast = true;
    return made;
  }
  void TearDown() override {
    EXPECT_EQ(driver.misuse_count(), 0u) << driver.report();
    EXPECT_TRUE(driver.check_empty()) << driver.report();
  }
  [[nodiscard]] access right_of(int ordinal, address at) {
    return *driver.get_access(at, device(ordinal));
  }
  vmm::fake_driver driver{three_devices()};
};
using PeerMisuseDeathTest = PeerMisuse;
using SpecialMisuse = PeerMisuse;
using SpecialMisuseDeathTest = PeerMisuse;

// ---- rights ----------------------------------------------------------------------------

TEST_F(PeerMisuse, RightsThatCannotBe) {
  vmm::manager managed(driver);
  vmm::stream_pool pool(driver);
  const address at = *managed.allocate(4 * MiB);
  const address of_pool = *pool.allocate(4 * MiB, {});
  const access_grant home{device(0), access::read};
  const access_grant far{device(2), access::read};
  const access_grant none_such{device(7), access::read};
  EXPECT_EQ(managed.set_access(at, {}).error().code, errc::invalid_argument);
  EXPECT_EQ(managed.set_peers({}).error().code, errc::invalid_argument);
  EXPECT_EQ(pool.set_peers({}).error().code, errc::invalid_argument);
  EXPECT_EQ(managed.set_peers({&home, 1}).error().code, errc::invalid_argument);
  EXPECT_EQ(pool.set_peers({&home, 1}).error().code, errc::invalid_argument);
  for (const access_grant& each : {far, none_such}) {
    const errc wanted = each.grantee == device(2) ? errc::not_supported : errc::invalid_argument;
    EXPECT_EQ(managed.set_access(at, {&each, 1}).error().code, wanted);
    EXPECT_EQ(managed.set_peers({&each, 1}).error().code, wanted);
    EXPECT_EQ(pool.set_peers({&each, 1}).error().code, wanted);
  }
  EXPECT_EQ(right_of(2, at), access::none);
  EXPECT_EQ(right_of(0, at), access::read_write);
  ASSERT_TRUE(managed.free(at));
  ASSERT_TRUE(pool.free(of_pool, {}));
}

TEST_F(PeerMisuse, RightsOfWhatIsNoBlock) {
  vmm::manager managed(driver);
  const access_grant read{device(1), access::read};
  const address at = *managed.allocate(4 * MiB);
  EXPECT_EQ(managed.set_access(at + 2 * MiB, {&read, 1}).error().code, errc::invalid_argument);
  EXPECT_EQ(managed.set_access(address{0x1000}, {&read, 1}).error().code, errc::unknown_address);
  ASSERT_TRUE(managed.free(at));
  EXPECT_EQ(managed.set_access(at, {&read, 1}).error().code, errc::not_allocated);
}

TEST_F(PeerMisuse, RightsOfAPartOfABlock) {
  vmm::manager managed(driver);
  const access_grant read{device(1), access::read};
  const access_grant far{device(2), access::read};
  const auto refusal = [&](address at, std::uint64_t size_bytes, const access_grant& grant) {
    return managed.set_access(vmm::address_range{at, size_bytes}, {&grant, 1}).error();
  };
  const address at = *managed.allocate({.size_bytes = 4 * MiB, .growth_bytes = 12 * MiB});
  ASSERT_TRUE(managed.resize({at, 8 * MiB, 0, false}));
  const vmm::error cut = refusal(at, 2 * MiB, read);
  EXPECT_EQ(cut.code, errc::not_supported);
  EXPECT_TRUE(contains(vmm::describe(cut), "segments()"));
  EXPECT_EQ(refusal(at + 2 * MiB, 4 * MiB, read).code, errc::not_supported);
  EXPECT_EQ(refusal(at + 4 * MiB, 8 * MiB, read).code, errc::invalid_argument);
  EXPECT_EQ(refusal(at + 4 * MiB, 0, read).code, errc::invalid_argument);
  EXPECT_EQ(refusal(address{0x1000}, 4 * MiB, read).code, errc::unknown_address);
  EXPECT_EQ(refusal(at + 4 * MiB, 4 * MiB, far).code, errc::not_supported);
  EXPECT_EQ(managed.set_access(vmm::address_range{at, 4 * MiB}, {}).error().code,
            errc::invalid_argument);
  for (const std::uint64_t offset : {0 * MiB, 4 * MiB}) {
    EXPECT_EQ(right_of(1, at + offset), access::none);
    EXPECT_EQ(right_of(2, at + offset), access::none);
  }
  ASSERT_TRUE(managed.free(at));
  EXPECT_EQ(refusal(at, 4 * MiB, read).code, errc::not_allocated);
}

TEST_F(PeerMisuse, KernelAndCopyWithoutARight) {
  vmm::manager managed(driver);
  const address at = *managed.allocate(4 * MiB);
  const address to = *managed.allocate(4 * MiB);
  const address_range all{at, 4 * MiB};
  ASSERT_TRUE(driver.launch({}, {.where = device(1), .writes = {&all, 1}, .tag = 1}));
  ASSERT_TRUE(driver.finish_all());
  EXPECT_EQ(driver.misuse_count(vmm::fake::misuse_kind::no_access), 1u);
  EXPECT_EQ(*driver.read_tag(at), 0u) << "a kernel is stopped";
  ASSERT_TRUE(driver.write_tag(all, 7));
  const access_grant others[] = {{device(0), access::none}, {device(1), access::read}};
  ASSERT_TRUE(managed.set_access(at, others));
  EXPECT_TRUE(driver.copy({to, at, 4 * MiB, {}})) << "a copy of the driver's is not";
  ASSERT_TRUE(driver.finish_all());
  EXPECT_EQ(*driver.read_tag(to), 7u);
  EXPECT_EQ(driver.misuse_count(vmm::fake::misuse_kind::no_access), 2u);
  driver.clear_misuses();
  ASSERT_TRUE(managed.free(at));
  ASSERT_TRUE(managed.free(to));
}

// ---- topology --------------------------------------------------------------------------

TEST_F(PeerMisuseDeathTest, DeviceThatIsNotThere) {
  const vmm::peer_topology seen = *vmm::peer_topology::query(*vmm::driver_ref(driver));
  EXPECT_FALSE(seen.link(device(2), device(0)).is_reachable());
  EXPECT_DEATH((void)seen.link(device(3), device(0)),
               check_failed("the accessing device does not exist"));
  EXPECT_DEATH((void)seen.link(device(0), device(-1)),
               check_failed("the accessed device does not exist"));
  EXPECT_DEATH((void)seen.peers_of(vmm::host_node(0)),
               check_failed("peers are queried of a device"));
}

// ---- registration ----------------------------------------------------------------------

struct counted_hooks {
  int entered = 0;
  int left = 0;
  [[nodiscard]] vmm::registration_hooks hooks() {
    return {
        [](void* context, address_range) noexcept -> vmm::status {
          ++static_cast<counted_hooks*>(context)->entered;
          return {};
        },
        [](void* context, address_range) noexcept { ++static_cast<counted_hooks*>(context)->left; },
        this};
  }
};

TEST_F(SpecialMisuse, RegistrationOfAWrongAddress) {
  counted_hooks library;
  vmm::manager managed(driver);
  vmm::registered_blocks blocks(managed, library.hooks());
  const address at = *blocks.allocate({.size_bytes = 4 * MiB});
  EXPECT_EQ(blocks.free(at + 2 * MiB).error().code, errc::invalid_argument);
  EXPECT_EQ(blocks.free(address{0x1000}).error().code, errc::unknown_address);
  EXPECT_EQ(blocks.resize({at + 2 * MiB, 8 * MiB}).error().code, errc::invalid_argument);
  EXPECT_EQ(vmm::check_registrable(managed, address{0x1000}).error().code, errc::unknown_address);
  EXPECT_EQ(library.entered, 1) << "refused calls change no registration";
  EXPECT_EQ(library.left, 0);
  ASSERT_TRUE(blocks.free(at));
  EXPECT_EQ(blocks.free(at).error().code, errc::not_allocated);
  EXPECT_EQ(library.left, 1);
}

TEST_F(SpecialMisuse, RegisteredBlockFreedByItsManager) {
  counted_hooks library;
  vmm::manager managed(driver);
  {
    vmm::registered_blocks blocks(managed, library.hooks());
    const address at = *blocks.allocate({.size_bytes = 4 * MiB});
    ASSERT_TRUE(managed.free(at));
    EXPECT_TRUE(blocks.is_registered(at)) << "it was not notified";
    EXPECT_EQ(blocks.free(at).error().code, errc::not_allocated);
  }
  EXPECT_GE(library.left, 1);
}

TEST_F(SpecialMisuseDeathTest, RegistrationWithoutHooks) {
  vmm::manager managed(driver);
  vmm::stream_pool pool(driver);
  EXPECT_DEATH((vmm::registered_blocks{managed, {}}), check_failed("registration has two hooks"));
  EXPECT_DEATH((void)vmm::pool_registrations::watch(pool, {}),
               check_failed("registration has two hooks"));
}

TEST_F(SpecialMisuseDeathTest, ManagerDestroyedBeforeItsRegistrations) {
  EXPECT_DEATH(
      {
        counted_hooks library;
        auto managed = std::make_unique<vmm::manager>(driver);
        vmm::registered_blocks blocks(*managed, library.hooks());
        managed.reset();
      },
      check_failed("a manager is destroyed while a vector or buffer uses it"));
}

// ---- aliases and multicast -------------------------------------------------------------

TEST_F(SpecialMisuse, AliasesThatCannotBe) {
  EXPECT_EQ(vmm::aliased_memory::make(driver, {}).error().code, errc::invalid_argument);
  vmm::aliased_memory memory = *vmm::aliased_memory::make(driver, {.size_bytes = 2 * MiB});
  const address only = memory.mappings()[0].base;
  EXPECT_EQ(memory.drop_mapping(only).error().code, errc::invalid_argument) << "the last one";
  EXPECT_EQ(memory.drop_mapping(only + 4096).error().code, errc::unknown_address);
  ASSERT_TRUE(memory.add_mapping());
  ASSERT_TRUE(memory.drop_mapping(only));
  EXPECT_EQ(memory.drop_mapping(only).error().code, errc::unknown_address) << "twice";
  ASSERT_TRUE(memory.release());
  EXPECT_EQ(memory.add_mapping().error().code, errc::invalid_argument);
  ASSERT_TRUE(memory.release()) << "nothing is left to release";
  vmm::fake::profile single = three_devices();
  single.can.alias = vmm::alias_level::none;
  vmm::fake_driver without(single);
  vmm::aliased_memory one = *vmm::aliased_memory::make(without, {.size_bytes = 2 * MiB});
  EXPECT_EQ(one.add_mapping().error().code, errc::not_supported);
  ASSERT_TRUE(one.release());
}

}  // namespace misuse

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: the locations that were granted access have it, and no other has any, from creation and
// later, in pools and in managers, through growth, moves, reuse and copies by remapping; memory
// goes where the options say, to the host too when the device is full.
// Method: a fake machine of three devices. Access is queried from the driver at every granule, and
// tried by kernels of the other devices. The driver's list of misuses and its counts are empty.
#include "../support/test.h"

import vmm.backend;
import vmm.fake;
import vmm.manager;
import vmm.stream;

namespace {

using vmm::access, vmm::address, vmm::device, vmm::errc, vmm::fake::misuse_kind;

constexpr std::uint64_t granule = 2 * MiB;

vmm::fake::profile three_devices() {
  vmm::fake::profile made = vmm::fake::profile::cuda();
  made.device_count = 3;
  made.node_count = 2;
  return made;
}

class Rights : public testing::Test {
 protected:
  void TearDown() override {
    EXPECT_EQ(driver.misuse_count(), 0u);
    EXPECT_TRUE(driver.check_empty()) << driver.report();
  }
  // What every granule of a range gives to a location; none where two differ.
  access of(address at, std::uint64_t size_bytes, vmm::location grantee) {
    const access first = *driver.get_access(at, grantee);
    for (std::uint64_t i = 0; i < size_bytes; i += granule)
      EXPECT_EQ(*driver.get_access(at + i, grantee), first) << "granule " << i / granule;
    return first;
  }
  // Whether a kernel of that device may write there. A refused one is a misuse, which is forgotten.
  bool may_write(vmm::location grantee, address at, std::uint64_t size_bytes) {
    const vmm::address_range range{at, size_bytes};
    const std::uint64_t before = driver.misuse_count(misuse_kind::no_access);
    EXPECT_TRUE(driver.launch({}, {.where = grantee, .writes = {&range, 1}, .tag = 7}));
    EXPECT_TRUE(driver.finish_all());
    const bool allowed = driver.misuse_count(misuse_kind::no_access) == before;
    driver.clear_misuses();
    return allowed;
  }

  vmm::fake_driver driver{three_devices()};
};

vmm::grant_list peers(std::initializer_list<vmm::access_grant> grants) {
  vmm::grant_list list;
  for (const vmm::access_grant& each : grants) EXPECT_TRUE(list.set(each));
  return list;
}

// ---- a list of rights --------------------------------------------------------------

TEST(GrantList, NamesEachLocationOnce) {
  vmm::grant_list list{{device(0), access::read_write}, {device(0), access::read}};
  EXPECT_EQ(list.all().size(), 1u);
  EXPECT_EQ(list.of(device(0)), access::read);
  EXPECT_EQ(list.of(device(1)), access::none);
  ASSERT_TRUE(list.set({device(1), access::none}));
  EXPECT_EQ(list.granted().all().size(), 1u);
  for (std::int32_t i = 2; list.all().size() < vmm::grant_list::grants_max; ++i)
    ASSERT_TRUE(list.set({device(i), access::read}));
  const vmm::grant_list full = list;
  EXPECT_FALSE(list.set({vmm::host(), access::read})) << "the list is full";
  EXPECT_EQ(list, full);
  EXPECT_TRUE(list.set({device(1), access::read})) << "known locations still fit";
}

// ---- managers ----------------------------------------------------------------------

TEST_F(Rights, OfAManagersPeersHoldThroughGrowthMovesAndReuse) {
  vmm::manager managed(driver, {{.peers = peers({{device(1), access::read}})}});
  const address at = *managed.allocate(8 * MiB);
  EXPECT_EQ(of(at, 8 * MiB, device(0)), access::read_write);
  EXPECT_EQ(of(at, 8 * MiB, device(1)), access::read);
  EXPECT_EQ(of(at, 8 * MiB, device(2)), access::none);
  const address fence = *managed.allocate(2 * MiB);
  const address moved = *managed.resize({at, 64 * MiB});
  EXPECT_NE(moved, at) << "the fence stands in the way";
  EXPECT_EQ(of(moved, 64 * MiB, device(1)), access::read);
  EXPECT_FALSE(may_write(device(1), moved, 64 * MiB));
  EXPECT_TRUE(may_write(device(0), moved, 64 * MiB));
  const address grown = *managed.resize({moved, 96 * MiB, 0, false});
  EXPECT_EQ(of(grown, 96 * MiB, device(1)), access::read);
  ASSERT_TRUE(managed.free(grown));
  const address again = *managed.allocate(64 * MiB);
  EXPECT_EQ(of(again, 64 * MiB, device(1)), access::read);
  ASSERT_TRUE(managed.free(again));
  ASSERT_TRUE(managed.free(fence));
}

TEST_F(Rights, OfOneBlockOverruleThoseOfAllAndGoWithIt) {
  vmm::manager managed(driver, {{}, vmm::manager_policy::keep_mapped()});
  const address at = *managed.allocate({.size_bytes = 8 * MiB, .growth_bytes = 8 * MiB});
  const address other = *managed.allocate(8 * MiB);
  const vmm::access_grant two[] = {{device(1), access::read_write}, {device(2), access::read}};
  ASSERT_TRUE(managed.set_access(at, two)) << "several devices in one call";
  EXPECT_EQ(of(at, 8 * MiB, device(1)), access::read_write);
  EXPECT_EQ(of(at, 8 * MiB, device(2)), access::read);
  EXPECT_EQ(of(other, 8 * MiB, device(1)), access::none);
  EXPECT_TRUE(may_write(device(1), at, 8 * MiB));
  EXPECT_FALSE(may_write(device(2), at, 8 * MiB));
  EXPECT_EQ(*managed.resize({at, 16 * MiB, 0, false}), at);
  EXPECT_EQ(of(at, 16 * MiB, device(1)), access::read_write) << "also what was added";
  const address moved = *managed.resize({at, 256 * MiB});
  EXPECT_EQ(of(moved, 256 * MiB, device(1)), access::read_write);
  EXPECT_EQ(of(moved, 256 * MiB, device(2)), access::read);
  const vmm::access_grant none{device(1), access::none};
  ASSERT_TRUE(managed.set_access(moved, {&none, 1}));
  EXPECT_EQ(of(moved, 256 * MiB, device(1)), access::none);
  EXPECT_EQ(of(moved, 256 * MiB, device(2)), access::read) << "what is not named stays";
  ASSERT_TRUE(managed.free(moved));
  const address next = *managed.allocate(256 * MiB);
  EXPECT_EQ(of(next, 256 * MiB, device(2)), access::none) << "the next block has none of it";
  ASSERT_TRUE(managed.free(next));
  ASSERT_TRUE(managed.free(other));
}

TEST_F(Rights, OfAPartOverruleThoseOfItsBlockAndGoWithIt) {
  vmm::manager managed(driver, {{}, vmm::manager_policy::keep_mapped()});
  const address at = *managed.allocate({.size_bytes = 8 * MiB, .growth_bytes = 24 * MiB});
  const vmm::access_grant reads{device(1), access::read};
  const vmm::access_grant writes{device(2), access::read_write};
  const vmm::access_grant none{device(1), access::none};
  ASSERT_TRUE(managed.set_access(at, {&reads, 1}));
  EXPECT_EQ(*managed.resize({at, 12 * MiB, 0, false}), at);
  EXPECT_EQ(*managed.resize({at, 24 * MiB - 5, 0, false}), at) << "three mappings";
  const address fence = *managed.allocate(2 * MiB);
  const vmm::address_range part{at + 8 * MiB, 4 * MiB};
  const vmm::access_grant both[] = {none, writes};
  ASSERT_TRUE(managed.set_access(part, both)) << "several devices in one call";
  EXPECT_EQ(of(at, 8 * MiB, device(1)), access::read);
  EXPECT_EQ(of(part.base, 4 * MiB, device(1)), access::none);
  EXPECT_EQ(of(part.end(), 12 * MiB, device(1)), access::read);
  EXPECT_TRUE(may_write(device(2), part.base, 4 * MiB));
  EXPECT_FALSE(may_write(device(2), at, 8 * MiB));
  EXPECT_FALSE(may_write(device(2), part.end(), 12 * MiB));
  EXPECT_TRUE(may_write(device(0), at, 24 * MiB)) << "the home's are as before";

  const address moved = *managed.resize({at, 256 * MiB});
  EXPECT_NE(moved, at) << "the fence stands in the way";
  EXPECT_EQ(of(moved + 8 * MiB, 4 * MiB, device(2)), access::read_write) << "they move";
  EXPECT_EQ(of(moved + 12 * MiB, 244 * MiB, device(2)), access::none) << "what was added is not";
  const vmm::access_grant later{device(2), access::read};
  ASSERT_TRUE(managed.set_peers({&later, 1}));
  EXPECT_EQ(of(moved, 8 * MiB, device(2)), access::read);
  EXPECT_EQ(of(moved + 8 * MiB, 4 * MiB, device(2)), access::read_write);
  ASSERT_TRUE(managed.set_access(moved, {&writes, 1})) << "of the part, too";
  ASSERT_TRUE(managed.set_access(moved, {&reads, 1}));
  EXPECT_EQ(of(moved, 256 * MiB, device(1)), access::read);
  EXPECT_EQ(of(moved, 256 * MiB, device(2)), access::read_write);

  ASSERT_TRUE(managed.set_access({moved + 8 * MiB, 4 * MiB}, {&none, 1}));
  const address shrunk = *managed.resize({moved, 4 * MiB});
  EXPECT_EQ(*managed.resize({shrunk, 12 * MiB, 0, false}), shrunk);
  EXPECT_EQ(of(shrunk, 12 * MiB, device(1)), access::read) << "a part that went has none any more";
  ASSERT_TRUE(managed.free(shrunk));
  const address next = *managed.allocate(12 * MiB);
  EXPECT_EQ(of(next, 12 * MiB, device(1)), access::none) << "the next block has none of it";
  ASSERT_TRUE(managed.free(next));
  ASSERT_TRUE(managed.free(fence));
}

TEST_F(Rights, OfAPartStayWhereACopyCouldRemap) {
  vmm::manager managed(driver);
  const address source = *managed.allocate(8 * MiB);
  const address target = *managed.allocate(8 * MiB);
  const vmm::access_grant one{device(1), access::read};
  ASSERT_TRUE(managed.set_access(vmm::address_range{target, 8 * MiB}, {&one, 1}));
  ASSERT_TRUE(driver.write_tag({source, 8 * MiB}, 6));
  ASSERT_TRUE(managed.copy({target, source, 8 * MiB, {}}, vmm::copy_mode::move));
  ASSERT_TRUE(driver.finish_all());
  EXPECT_EQ(managed.statistics().real_copy_count, 1u);
  EXPECT_EQ(*driver.read_tag(target), 6u);
  EXPECT_EQ(of(target, 8 * MiB, device(1)), access::read);
  EXPECT_EQ(of(source, 8 * MiB, device(1)), access::none);
  ASSERT_TRUE(managed.free(source));
  ASSERT_TRUE(managed.free(target));
}

// What is filled when it is freed is filled where a part keeps the home out, too.
TEST_F(Rights, OfAPartLetAFreeFill) {
  vmm::manager managed(driver, {{.contents = vmm::contents_rule::zero_on_release}});
  const address at = *managed.allocate(8 * MiB);
  const vmm::access_grant home{device(0), access::none};
  ASSERT_TRUE(managed.set_access(vmm::address_range{at, 8 * MiB}, {&home, 1}));
  ASSERT_TRUE(managed.free(at));
}

TEST_F(Rights, OfPeersAddedLaterReachWhatIsThereAndWhatComes) {
  vmm::manager managed(driver, {{}, vmm::manager_policy::keep_mapped()});
  const address at = *managed.allocate(8 * MiB);
  const address cached = *managed.allocate(4 * MiB);
  ASSERT_TRUE(managed.free(cached));
  const vmm::access_grant two[] = {{device(1), access::read}, {device(2), access::read_write}};
  ASSERT_TRUE(managed.set_peers(two));
  EXPECT_EQ(of(at, 8 * MiB, device(1)), access::read);
  EXPECT_EQ(of(at, 8 * MiB, device(2)), access::read_write);
  const address reused = *managed.allocate(4 * MiB);
  EXPECT_EQ(reused, cached) << "mapped before the peers came";
  EXPECT_EQ(of(reused, 4 * MiB, device(1)), access::read);
  const vmm::access_grant gone{device(2), access::none};
  ASSERT_TRUE(managed.set_peers({&gone, 1}));
  EXPECT_EQ(of(at, 8 * MiB, device(2)), access::none);
  EXPECT_EQ(of(at, 8 * MiB, device(1)), access::read);
  const address fresh = *managed.allocate(16 * MiB);
  EXPECT_EQ(of(fresh, 16 * MiB, device(1)), access::read);
  EXPECT_EQ(of(fresh, 16 * MiB, device(2)), access::none);
  for (const address each : {at, reused, fresh}) ASSERT_TRUE(managed.free(each));
}

TEST_F(Rights, AreKeptByACopyThatRemaps) {
  vmm::manager managed(driver);
  const address source = *managed.allocate(8 * MiB);
  const address target = *managed.allocate(8 * MiB);
  const vmm::access_grant one{device(1), access::read};
  ASSERT_TRUE(managed.set_access(target, {&one, 1}));
  ASSERT_TRUE(managed.copy({target, source, 8 * MiB, {}}, vmm::copy_mode::move));
  EXPECT_EQ(managed.statistics().remapped_copy_count, 1u);
  EXPECT_EQ(of(target, 8 * MiB, device(1)), access::read) << "rights are the address's";
  ASSERT_TRUE(managed.free(source));
  ASSERT_TRUE(managed.free(target));
}

TEST_F(Rights, ThatCannotBeAreRefusedAndNothingChanges) {
  vmm::manager managed(driver);
  const address at = *managed.allocate(8 * MiB);
  EXPECT_EQ(managed.set_access(at, {}).error().code, errc::invalid_argument);
  const vmm::access_grant nobody{device(9), access::read};
  EXPECT_EQ(managed.set_access(at, {&nobody, 1}).error().code, errc::invalid_argument);
  EXPECT_EQ(managed.set_peers({&nobody, 1}).error().code, errc::invalid_argument);
  const vmm::access_grant home{device(0), access::read};
  EXPECT_EQ(managed.set_peers({&home, 1}).error().code, errc::invalid_argument);
  EXPECT_EQ(managed.set_access(at + granule, {&home, 1}).error().code, errc::invalid_argument);
  EXPECT_EQ(of(at, 8 * MiB, device(0)), access::read_write);
  const address more = *managed.allocate(8 * MiB);
  EXPECT_EQ(of(more, 8 * MiB, device(0)), access::read_write) << "a refused peer is forgotten";
  ASSERT_TRUE(managed.free(more));
  ASSERT_TRUE(managed.free(at));
}

TEST(Reach, PeersThatDoNotReachTheMemoryAreRefused) {
  vmm::fake::profile far = three_devices();
  far.reaches[2] = 0b100;
  vmm::fake_driver driver(far);
  EXPECT_EQ(driver.query_peer({device(1), device(0)})->link, vmm::link_kind::peer);
  EXPECT_FALSE(driver.query_peer({device(2), device(0)})->is_reachable());
  vmm::manager early(driver, {{.peers = peers({{device(2), access::read}})}});
  EXPECT_EQ(early.set_up().error().code, errc::not_supported);
  vmm::manager managed(driver);
  const address at = *managed.allocate(4 * MiB);
  const vmm::access_grant grants[] = {{device(1), access::read}, {device(2), access::read}};
  EXPECT_EQ(managed.set_access(at, grants).error().code, errc::not_supported);
  EXPECT_EQ(managed.set_peers(grants).error().code, errc::not_supported);
  EXPECT_EQ(*driver.get_access(at, device(1)), access::none) << "all or none";
  ASSERT_TRUE(managed.free(at));
}

// Before there is memory the driver's set_access cannot refuse: the growth that follows would.
TEST(Reach, PeersThatDoNotReachTheMemoryToBeAreRefused) {
  vmm::fake::profile far = three_devices();
  far.reaches[2] = 0b100;
  vmm::fake_driver driver(far);
  vmm::manager managed(driver);
  vmm::stream_pool pool(driver);
  const vmm::access_grant grants[] = {{device(1), access::read}, {device(2), access::read}};
  const vmm::access_grant of_host{vmm::host_node(0), access::read};
  const vmm::access_grant of_none{device(9), access::read};
  const auto refuses_all = [&](auto& memory) {
    EXPECT_EQ(memory.set_peers(grants).error().code, errc::not_supported);
    EXPECT_EQ(memory.set_peers({&of_host, 1}).error().code, errc::not_supported);
    EXPECT_EQ(memory.set_peers({&of_none, 1}).error().code, errc::invalid_argument);
    EXPECT_TRUE(memory.set_peers({grants, 1}));
  };
  refuses_all(managed);
  refuses_all(pool);
  const auto at = managed.allocate(4 * MiB);
  const auto of_pool = pool.allocate(4 * MiB, {});
  ASSERT_TRUE(at && of_pool) << "what was refused is forgotten";
  for (const address each : {*at, *of_pool}) {
    EXPECT_EQ(*driver.get_access(each, device(1)), access::read);
    EXPECT_EQ(*driver.get_access(each, device(2)), access::none);
  }
  ASSERT_TRUE(managed.free(*at));
  ASSERT_TRUE(pool.free(*of_pool, {}));
}

TEST_F(Rights, TakenFromWhoeverIsNotThereAreForgotten) {
  vmm::manager managed(driver);
  vmm::stream_pool pool(driver);
  const vmm::access_grant none{device(9), access::none};
  const vmm::access_grant good{device(1), access::read};
  EXPECT_TRUE(managed.set_peers({&none, 1}));
  EXPECT_TRUE(pool.set_peers({&none, 1}));
  const auto at = managed.allocate(4 * MiB);
  const auto of_pool = pool.allocate(4 * MiB, {});
  ASSERT_TRUE(at && of_pool);
  EXPECT_TRUE(managed.set_peers({&good, 1}));
  EXPECT_TRUE(pool.set_peers({&good, 1}));
  EXPECT_EQ(of(*at, 4 * MiB, device(1)), access::read);
  EXPECT_EQ(of(*of_pool, 4 * MiB, device(1)), access::read);
  ASSERT_TRUE(managed.free(*at));
  ASSERT_TRUE(pool.free(*of_pool, {}));
  vmm::manager other(driver, {{.peers = peers({none})}});
  const auto of_other = *other.allocate(4 * MiB);
  EXPECT_TRUE(other.set_peers({&good, 1})) << "nor are those of the options kept";
  ASSERT_TRUE(other.free(of_other));
}

TEST_F(Rights, OfANodeThatIsNotThereAreRefusedBeforeThereIsMemory) {
  const vmm::access_grant nobody{vmm::host_node(99), access::read};
  const vmm::access_grant near{vmm::host_node(1), access::read};
  vmm::manager managed(driver, {{.placement = vmm::host_node(0)}});
  vmm::stream_pool pool(driver, {{.placement = vmm::host_node(0)}});
  EXPECT_EQ(managed.set_peers({&nobody, 1}).error().code, errc::invalid_argument);
  EXPECT_EQ(pool.set_peers({&nobody, 1}).error().code, errc::invalid_argument);
  EXPECT_TRUE(managed.set_peers({&near, 1}));
  EXPECT_TRUE(pool.set_peers({&near, 1}));
  const auto at = managed.allocate(4 * MiB);
  const auto of_pool = pool.allocate(4 * MiB, {});
  EXPECT_TRUE(at && of_pool) << "what was refused is forgotten";
  if (at) ASSERT_TRUE(managed.free(*at));
  if (of_pool) ASSERT_TRUE(pool.free(*of_pool, {}));
  vmm::manager wrong(driver, {{.placement = vmm::host_node(0), .peers = peers({nobody})}});
  EXPECT_EQ(wrong.set_up().error().code, errc::invalid_argument);
}

TEST(Reach, ADriverThatKnowsNoPeersGivesThemNoRightsToMemoryToBe) {
  vmm::fake_driver driver(vmm::fake::profile::level_zero());
  vmm::manager managed(driver);
  vmm::stream_pool pool(driver);
  for (const access right : {access::read, access::read_write}) {
    const vmm::access_grant other{device(1), right};
    EXPECT_EQ(managed.set_peers({&other, 1}).error().code, errc::not_supported);
    EXPECT_EQ(pool.set_peers({&other, 1}).error().code, errc::not_supported);
  }
  const vmm::memory_options of_others{.peers = peers({{device(1), access::read}})};
  vmm::manager wrong(driver, {of_others});
  vmm::stream_pool wrong_pool(driver, {of_others});
  EXPECT_EQ(wrong.set_up().error().code, errc::not_supported);
  EXPECT_EQ(wrong_pool.set_up().error().code, errc::not_supported);
  const vmm::access_grant none{device(1), access::none};
  EXPECT_TRUE(pool.set_peers({&none, 1}));
  const auto at = managed.allocate(4 * MiB);
  const auto of_pool = pool.allocate(4 * MiB, {});
  ASSERT_TRUE(at && of_pool);
  ASSERT_TRUE(managed.free(*at));
  ASSERT_TRUE(pool.free(*of_pool, {}));
}

// ---- pools -------------------------------------------------------------------------

TEST_F(Rights, OfAPoolsPeersHoldWhereItsMemoryMoves) {
  vmm::stream_pool pool(driver, {{.peers = peers({{device(1), access::read}})}});
  const vmm::stream_handle stream = *driver.create_stream();
  const address small = *pool.allocate(600, stream);
  EXPECT_EQ(*driver.get_access(small, device(1)), access::read);
  EXPECT_EQ(*driver.get_access(small, device(2)), access::none);
  const address a = *pool.allocate(200 * MiB, stream);
  const address keep = *pool.allocate(200 * MiB, stream);
  const address b = *pool.allocate(200 * MiB, stream);
  ASSERT_TRUE(pool.free(a, stream));
  ASSERT_TRUE(pool.free(b, stream));
  const address moved = *pool.allocate(400 * MiB, stream);
  EXPECT_GT(pool.statistics().moved_count, 0u) << "collected from two places";
  EXPECT_EQ(of(moved, 400 * MiB, device(1)), access::read);
  const vmm::access_grant later{device(2), access::read_write};
  ASSERT_TRUE(pool.set_peers({&later, 1}));
  EXPECT_EQ(of(moved, 400 * MiB, device(2)), access::read_write);
  EXPECT_EQ(*driver.get_access(small, device(2)), access::read_write);
  const address more = *pool.allocate(300 * MiB, stream);
  EXPECT_EQ(of(more, 300 * MiB, device(2)), access::read_write);
  EXPECT_EQ(of(more, 300 * MiB, device(1)), access::read);
  EXPECT_TRUE(may_write(device(2), more, 300 * MiB));
  EXPECT_FALSE(may_write(device(1), more, 300 * MiB));
  for (const address each : {small, keep, moved, more}) ASSERT_TRUE(pool.free(each, stream));
  ASSERT_TRUE(pool.forget(stream));
  ASSERT_TRUE(driver.destroy_stream(stream));
}

TEST_F(Rights, OfAPoolAreAsBeforeWhenTheDriverRefusesOne) {
  vmm::stream_pool pool(driver);
  const address a = *pool.allocate(64 * MiB, {});
  const address b = *pool.allocate(64 * MiB, {});
  const vmm::access_grant later{device(1), access::read};
  const auto failure = driver.possible_errors(vmm::call::set_access).front();
  driver.fail({vmm::call::set_access, 2, false, failure});
  EXPECT_EQ(pool.set_peers({&later, 1}).error().native, failure.native);
  EXPECT_EQ(of(a, 64 * MiB, device(1)), access::none);
  EXPECT_EQ(of(b, 64 * MiB, device(1)), access::none);
  ASSERT_TRUE(pool.set_peers({&later, 1}));
  EXPECT_EQ(of(b, 64 * MiB, device(1)), access::read);
  ASSERT_TRUE(pool.free(a, {}));
  ASSERT_TRUE(pool.free(b, {}));
}

TEST(RightsElsewhere, ADriverWithoutRightsForEachLocationRefusesPeers) {
  vmm::fake_driver driver(vmm::fake::profile::level_zero());
  vmm::manager managed(driver);
  const address at = *managed.allocate(4 * MiB);
  const vmm::access_grant other{device(1), access::read};
  EXPECT_FALSE(managed.set_peers({&other, 1}));
  EXPECT_EQ(*driver.get_access(at, device(0)), access::read_write);
  ASSERT_TRUE(managed.free(at));
}

// ---- placement and spilling ----------------------------------------------------------

TEST_F(Rights, ToMemoryOfAnotherDeviceOrTheHostAreTheHomesToo) {
  for (const vmm::location where : {device(1), vmm::host_node(1)}) {
    const std::uint64_t free_bytes = driver.query_memory(where)->free_bytes;
    vmm::stream_pool pool(driver, {{.placement = where}});
    const address at = *pool.allocate(8 * MiB, {});
    EXPECT_LT(driver.query_memory(where)->free_bytes, free_bytes);
    EXPECT_EQ(*driver.get_access(at, device(0)), access::read_write);
    EXPECT_EQ(*driver.get_access(at, where), access::read_write);
    ASSERT_TRUE(pool.free(at, {}));
  }
}

vmm::fake::profile small_device() {
  vmm::fake::profile made = three_devices();
  made.device_memory_bytes = 256 * MiB;
  return made;
}

TEST(Spill, AManagersBlocksGoToTheHostWhenTheDeviceIsFull) {
  vmm::fake_driver driver(small_device());
  vmm::manager managed(driver,
                       {{.peers = peers({{device(1), access::read}}), .spill = vmm::host_node(0)}});
  const address near = *managed.allocate(192 * MiB);
  EXPECT_EQ(managed.statistics().spilled_bytes, 0u);
  const auto far = managed.allocate(128 * MiB);
  ASSERT_TRUE(far) << vmm::describe(far.error());
  EXPECT_EQ(managed.statistics().spilled_bytes, 128 * MiB);
  EXPECT_EQ(*driver.get_access(*far, device(0)), access::read_write) << "the device uses it";
  EXPECT_EQ(*driver.get_access(*far, device(1)), access::read) << "and so do the peers";
  ASSERT_TRUE(driver.fill({{*far, 128 * MiB}, 3, {}}));
  ASSERT_TRUE(driver.finish_all());
  ASSERT_TRUE(managed.free(near));
  ASSERT_TRUE(managed.free(*far));
  const address again = *managed.allocate(128 * MiB);
  EXPECT_EQ(managed.statistics().spilled_bytes, 0u) << "spilled memory serves no second block";
  ASSERT_TRUE(managed.free(again));
  EXPECT_EQ(driver.misuse_count(), 0u);
}

TEST(Spill, AGrowingBlockMayLieInBoth) {
  vmm::fake_driver driver(small_device());
  vmm::manager managed(driver, {{.spill = vmm::host_node(0)}});
  const address at = *managed.allocate({.size_bytes = 192 * MiB, .growth_bytes = GiB});
  ASSERT_TRUE(driver.write_tag({at, 192 * MiB}, 5));
  ASSERT_TRUE(managed.resize({at, 512 * MiB, 0, false}));
  EXPECT_EQ(managed.statistics().spilled_bytes, 320 * MiB);
  EXPECT_EQ(*driver.read_tag(at), 5u);
  EXPECT_EQ(*driver.get_access(at + 400 * MiB, device(0)), access::read_write);
  ASSERT_TRUE(managed.free(at));
}

TEST(Spill, APoolGoesToTheHostLastAndSaysSo) {
  vmm::fake_driver driver(small_device());
  {
    vmm::stream_pool pool(driver, {{.spill = vmm::host_node(0)}});
    std::vector<address> blocks;
    for (int i = 0; i < 12; ++i) {
      const auto at = pool.allocate(32 * MiB, {});
      ASSERT_TRUE(at) << i << ": " << vmm::describe(at.error());
      blocks.push_back(*at);
    }
    EXPECT_GE(pool.statistics().spilled_bytes, 128 * MiB);
    EXPECT_LE(pool.statistics().spilled_bytes, 192 * MiB);
    for (const address each : blocks) {
      EXPECT_EQ(*driver.get_access(each, device(0)), access::read_write);
      ASSERT_TRUE(pool.free(each, {}));
    }
  }
  EXPECT_TRUE(driver.check_empty()) << driver.report();
  vmm::stream_pool without(driver);
  EXPECT_EQ(without.allocate(512 * MiB, {}).error().code, errc::out_of_memory);
}

TEST(Spill, ToWhereMemoryIsMadeAnyhowIsABadOption) {
  vmm::fake_driver driver(small_device());
  vmm::manager managed(driver, {{.spill = device(0)}});
  EXPECT_EQ(managed.set_up().error().code, errc::bad_option);
}

// A list takes 18 locations: the home, and those of all and of one block together.
TEST(RightsOfManyLocations, AreRefusedAndTheOthersStay) {
  vmm::fake::profile many = three_devices();
  many.device_count = 16;
  vmm::fake_driver driver(many);
  vmm::manager memory(driver);
  const address plain = *memory.allocate(4 * MiB);
  const address at = *memory.allocate(4 * MiB);
  std::vector<vmm::access_grant> own;
  std::vector<vmm::access_grant> all;
  for (std::int32_t i = 1; i <= 9; ++i) own.push_back({device(i), access::read});
  for (std::int32_t i = 10; i <= 15; ++i) all.push_back({device(i), access::read});
  for (std::int32_t i = 0; i < 3; ++i) all.push_back({vmm::host_node(i), access::read});
  ASSERT_TRUE(memory.set_access(at, own));
  EXPECT_FALSE(memory.set_peers(all));
  for (const address each : {plain, at})
    EXPECT_EQ(*driver.get_access(each, device(10)), access::none);
  EXPECT_EQ(*driver.get_access(at, device(9)), access::read);
  ASSERT_TRUE(memory.set_access(at, {own.data(), 1})) << "the block is as usable as before";
  const auto moved = memory.resize({at, 64 * MiB});
  ASSERT_TRUE(moved);
  EXPECT_EQ(*driver.get_access(*moved + 63 * MiB, device(9)), access::read);
  ASSERT_TRUE(memory.free(*moved));
  ASSERT_TRUE(memory.free(plain));
}

TEST(RightsOfRanges, PeersThatComeLaterReachAGrowableRange) {
  vmm::fake_driver driver(three_devices());
  vmm::manager memory(driver);
  vmm::growable_range range(memory, {.segment_bytes_max = 64 * MiB});
  ASSERT_TRUE(range.grow(16 * MiB));
  const vmm::access_grant later{device(1), access::read};
  const vmm::status given = memory.set_peers({&later, 1});
  ASSERT_TRUE(given) << vmm::describe(given.error());
  EXPECT_EQ(*driver.get_access(range.statistics().base, device(1)), access::read);
  ASSERT_TRUE(range.grow(32 * MiB));
  EXPECT_EQ(*driver.get_access(range.statistics().base + 31 * MiB, device(1)), access::read);
}

}  // namespace

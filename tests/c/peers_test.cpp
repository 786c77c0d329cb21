// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: access of several devices from C: queried, set, removed, and wrong grants refused.
// Method: the stub libcuda, a machine of two devices.
#include "bench.hpp"
#include "vmm.h"
#include "vmm.hpp"

namespace {

struct Peers : c_test::Bench {
  void SetUp() override {
    ASSERT_EQ(setenv("VMM_CUDA_LIBRARY", VMM_STANDIN_LIBRARY, 1), 0);
    open("cuda:0");
  }
  std::uint32_t rights(const void* at, std::int32_t device) {
    std::uint32_t seen = 99;
    EXPECT_GOOD(vmm_driver_get_access(driver, at, VMM_PLACE_DEVICE, device, &seen));
    return seen;
  }
  void* take_dedicated(std::uint64_t size_bytes) {
    void* at = nullptr;
    EXPECT_GOOD(vmm_pool_allocate_dedicated(pool, size_bytes, nullptr, &at));
    return at;
  }
};

constexpr vmm_status wrong = VMM_ERROR_INVALID_ARGUMENT;
constexpr vmm_grant reads{VMM_PLACE_DEVICE, 1, VMM_RIGHTS_READ, 0};
constexpr vmm_grant nothing{VMM_PLACE_DEVICE, 1, VMM_RIGHTS_NONE, 0};
constexpr std::array<vmm_grant, 6> impossible{{{VMM_PLACE_DEVICE, 0, VMM_RIGHTS_READ, 0},
                                               {7, 1, VMM_RIGHTS_READ, 0},
                                               {VMM_PLACE_DEVICE, -1, VMM_RIGHTS_READ, 0},
                                               {VMM_PLACE_DEVICE, 9, VMM_RIGHTS_READ, 0},
                                               {VMM_PLACE_DEVICE, 1, 3, 0},
                                               {VMM_PLACE_DEVICE, 1, VMM_RIGHTS_READ, 5}}};

TEST_F(Peers, TheLinkIsTold) {
  std::uint32_t link = 99;
  std::uint32_t flags = 99;
  EXPECT_GOOD(vmm_driver_query_peer(driver, 0, 1, &link, &flags));
  EXPECT_EQ(link, VMM_LINK_PEER);
  EXPECT_EQ(flags, VMM_LINK_ATOMICS);
  EXPECT_GOOD(vmm_driver_query_peer(driver, 1, 1, &link, nullptr));
  EXPECT_EQ(link, VMM_LINK_ITSELF);
  EXPECT_FAILS(vmm_driver_query_peer(driver, 0, 9, &link, nullptr), wrong);
  EXPECT_FAILS(vmm_driver_query_peer(driver, -1, 0, &link, nullptr), wrong);
  EXPECT_FAILS(vmm_driver_query_peer(driver, 0, 1, nullptr, nullptr), wrong);
}

TEST_F(Peers, BlocksAndPoolsAreGivenAndTaken) {
  void* const block = build(4 * MiB);
  void* const small = take(4096);
  EXPECT_EQ(rights(block, 1), VMM_RIGHTS_NONE);
  EXPECT_GOOD(vmm_manager_set_access(manager, block, &reads, 1));
  EXPECT_EQ(rights(block, 1), VMM_RIGHTS_READ);
  EXPECT_EQ(rights(block, 0), VMM_RIGHTS_READ_WRITE);
  EXPECT_EQ(rights(small, 1), VMM_RIGHTS_NONE);
  EXPECT_GOOD(vmm_pool_set_peers(pool, &reads, 1));
  EXPECT_EQ(rights(small, 1), VMM_RIGHTS_READ);
  EXPECT_GOOD(vmm_pool_set_peers(pool, &nothing, 1));
  EXPECT_EQ(rights(small, 1), VMM_RIGHTS_NONE);
  EXPECT_GOOD(vmm_manager_set_peers(manager, &reads, 1));
  EXPECT_GOOD(vmm_manager_set_access(manager, block, &nothing, 1));
  EXPECT_EQ(rights(block, 1), VMM_RIGHTS_NONE) << "a block's own overrule those of all";
  EXPECT_GOOD(vmm_pool_free(pool, small, nullptr));
  EXPECT_GOOD(vmm_manager_free(manager, block));
}

TEST_F(Peers, APartOfAManagersBlockIsGivenAndTaken) {
  auto request = c_test::sized<vmm_block_request>(4 << 20);
  request.growth_bytes = 60 << 20;
  void* block = nullptr;
  ASSERT_GOOD(vmm_manager_allocate(manager, &request, &block));
  auto grown = c_test::sized<vmm_resize_request>(10 << 20);
  grown.at = block;
  grown.in_place = 1;
  void* at = nullptr;
  ASSERT_GOOD(vmm_manager_resize(manager, &grown, &at));  // a mapping behind the first
  std::uint64_t count = 0;
  ASSERT_GOOD(vmm_manager_parts(manager, block, nullptr, 0, &count));
  ASSERT_EQ(count, 2u);
  vmm_growable_part parts[2]{};
  ASSERT_GOOD(vmm_manager_parts(manager, block, parts, 2, &count));
  EXPECT_EQ(parts[0].size_bytes, 4u << 20);
  EXPECT_EQ(parts[1].size_bytes, 6u << 20);
  EXPECT_NE(parts[0].handle, parts[1].handle);
  char* const second = static_cast<char*>(block) + (4 << 20);
  EXPECT_GOOD(vmm_manager_set_part_access(manager, second, 6 << 20, &reads, 1));
  EXPECT_EQ(rights(block, 1), VMM_RIGHTS_NONE);
  EXPECT_EQ(rights(second, 1), VMM_RIGHTS_READ);
  EXPECT_GOOD(vmm_manager_set_part_access(manager, second, 6 << 20, &nothing, 1));
  EXPECT_EQ(rights(second, 1), VMM_RIGHTS_NONE);
  EXPECT_FAILS(vmm_manager_set_part_access(manager, second, 2 << 20, &reads, 1),
               VMM_ERROR_NOT_SUPPORTED);
  EXPECT_FAILS(vmm_manager_set_part_access(manager, second, 8 << 20, &reads, 1), wrong);
  EXPECT_FAILS(vmm_manager_set_part_access(manager, second, 0, &reads, 1), wrong);
  EXPECT_FAILS(vmm_manager_set_part_access(manager, second, 6 << 20, &reads, 0), wrong);
  EXPECT_FAILS(vmm_manager_parts(manager, block, nullptr, 1, &count), wrong);
  EXPECT_EQ(rights(second, 1), VMM_RIGHTS_NONE);
  EXPECT_GOOD(vmm_manager_free(manager, block));
  EXPECT_FAILS(vmm_manager_parts(manager, block, nullptr, 0, &count), VMM_ERROR_NOT_ALLOCATED);
}

TEST_F(Peers, OneBlockOfAPoolHasRightsOfItsOwn) {
  void* const shared = take(4096);
  void* const whole = take_dedicated(MiB);
  EXPECT_EQ(rights(whole, 1), VMM_RIGHTS_NONE);
  EXPECT_GOOD(vmm_pool_set_access(pool, whole, &reads, 1));
  EXPECT_EQ(rights(whole, 1), VMM_RIGHTS_READ);
  EXPECT_EQ(rights(whole, 0), VMM_RIGHTS_READ_WRITE);
  EXPECT_EQ(rights(shared, 1), VMM_RIGHTS_NONE);
  EXPECT_GOOD(vmm_pool_set_peers(pool, &reads, 1));
  EXPECT_GOOD(vmm_pool_set_access(pool, whole, &nothing, 1));
  EXPECT_EQ(rights(whole, 1), VMM_RIGHTS_NONE) << "a block's own overrule those of all";
  EXPECT_EQ(rights(shared, 1), VMM_RIGHTS_READ);
  EXPECT_GOOD(vmm_pool_free(pool, whole, nullptr));
  EXPECT_GOOD(vmm_pool_synchronize(pool));
  void* const again = take_dedicated(MiB);
  EXPECT_EQ(rights(again, 1), VMM_RIGHTS_READ) << "whose memory it had is forgotten";
  EXPECT_GOOD(vmm_pool_free(pool, again, nullptr));
  EXPECT_GOOD(vmm_pool_free(pool, shared, nullptr));
}

TEST_F(Peers, AsThePageShowsIt) {  // docs/c.md
  vmm_stream stream = nullptr;
  void* at = nullptr;
  const vmm_grant reader = {VMM_PLACE_DEVICE, 1, VMM_RIGHTS_READ, 0}; /* kernels of device 1 */
  vmm_status status = vmm_pool_allocate_dedicated(pool, 64 << 20, stream, &at);
  if (status == VMM_SUCCESS) status = vmm_pool_set_access(pool, at, &reader, 1);
  EXPECT_GOOD(status);
  EXPECT_EQ(rights(at, 1), VMM_RIGHTS_READ);
  EXPECT_GOOD(vmm_pool_free(pool, at, stream));
}

TEST_F(Peers, RightsThatABlockOfAPoolCannotHave) {
  void* const shared = take(4096);
  void* const whole = take_dedicated(MiB);
  EXPECT_FAILS(vmm_pool_set_access(pool, shared, &reads, 1), VMM_ERROR_NOT_SUPPORTED);
  EXPECT_TRUE(c_test::says("vmm_pool_allocate_dedicated()"));
  EXPECT_FAILS(vmm_pool_set_access(pool, whole, nullptr, 1), wrong);
  EXPECT_FAILS(vmm_pool_set_access(pool, whole, &reads, 0), wrong);
  EXPECT_FAILS(vmm_pool_set_access(pool, whole, &reads, VMM_GRANTS_MAX + 1), wrong);
  for (const vmm_grant& each : impossible)
    EXPECT_FAILS(vmm_pool_set_access(pool, whole, &each, 1), wrong);
  auto* const inside = static_cast<char*>(whole) + 512;
  EXPECT_FAILS(vmm_pool_set_access(pool, inside, &reads, 1), wrong);
  int here = 0;
  EXPECT_FAILS(vmm_pool_set_access(pool, &here, &reads, 1), VMM_ERROR_UNKNOWN_ADDRESS);
  EXPECT_FAILS(vmm_pool_set_access(pool, nullptr, &reads, 1), VMM_ERROR_UNKNOWN_ADDRESS);
  EXPECT_EQ(rights(whole, 1), VMM_RIGHTS_NONE) << "a refused call has changed rights";
  EXPECT_GOOD(vmm_pool_free(pool, whole, nullptr));
  EXPECT_FAILS(vmm_pool_set_access(pool, whole, &reads, 1), VMM_ERROR_NOT_ALLOCATED);
  void* none = &here;
  EXPECT_FAILS(vmm_pool_allocate_dedicated(pool, 0, nullptr, &none), wrong);
  EXPECT_EQ(none, nullptr);
  EXPECT_FAILS(vmm_pool_allocate_dedicated(pool, 4096, nullptr, nullptr), wrong);
  EXPECT_FAILS(vmm_pool_allocate_dedicated(pool, ~std::uint64_t{0}, nullptr, &none),
               VMM_ERROR_OUT_OF_MEMORY);
  EXPECT_GOOD(vmm_pool_free(pool, shared, nullptr));
}

TEST_F(Peers, FromCpp17) {
  vmm::driver on("cuda:0");
  {
    vmm::pool from(on);
    void* const whole = from.allocate_dedicated(1 << 20, nullptr);
    from.set_access(whole, {reads});
    EXPECT_EQ(rights(whole, 1), VMM_RIGHTS_READ);
    void* const shared = from.allocate(4096, nullptr);
    EXPECT_THROW(from.set_access(shared, {reads}), vmm::error);
    from.set_peers({reads});
    EXPECT_EQ(rights(shared, 1), VMM_RIGHTS_READ);
    vmm::manager ranges(on);
    void* const block = ranges.allocate(1 << 20, nullptr);
    ranges.set_peers({reads});
    EXPECT_EQ(rights(block, 1), VMM_RIGHTS_READ);
    ranges.set_access(block, {nothing});
    EXPECT_EQ(rights(block, 1), VMM_RIGHTS_NONE);
    void* none = block;
    EXPECT_EQ(from.try_allocate_dedicated(0, nullptr, none), VMM_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(none, nullptr);
    for (void* const each : {whole, shared}) from.free(each, nullptr);
    ranges.free(block);
  }
}

TEST_F(Peers, WrongGrantsAreRefused) {
  EXPECT_FAILS(vmm_manager_set_peers(manager, nullptr, 1), wrong);
  EXPECT_FAILS(vmm_manager_set_peers(manager, &reads, 0), wrong);
  EXPECT_FAILS(vmm_manager_set_peers(manager, &reads, VMM_GRANTS_MAX + 1), wrong);
  for (const vmm_grant& each : impossible) EXPECT_FAILS(vmm_pool_set_peers(pool, &each, 1), wrong);
  int here = 0;
  EXPECT_FAILS(vmm_manager_set_access(manager, &here, &reads, 1), VMM_ERROR_UNKNOWN_ADDRESS);
}

}  // namespace

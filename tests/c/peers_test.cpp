// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: rights of several devices are there from C: asked, given, taken, and wrong ones refused.
// Method: the stand-in for libcuda, a machine of two devices.
#include <cstdint>
#include <cstdlib>

#include <gtest/gtest.h>

#include "bench.hpp"
#include "vmm.h"

namespace {

class Peers : public c_test::Bench {
 protected:
  void SetUp() override {
    ASSERT_EQ(setenv("VMM_CUDA_LIBRARY", VMM_STANDIN_LIBRARY, 1), 0);
    open("cuda:0");
  }
  std::uint32_t rights(const void* at, std::int32_t device) {
    std::uint32_t seen = 99;
    EXPECT_GOOD(vmm_driver_get_access(driver, at, VMM_PLACE_DEVICE, device, &seen));
    return seen;
  }
};

constexpr vmm_grant reads{VMM_PLACE_DEVICE, 1, VMM_RIGHTS_READ, 0};
constexpr vmm_grant nothing{VMM_PLACE_DEVICE, 1, VMM_RIGHTS_NONE, 0};

TEST_F(Peers, TheLinkIsTold) {
  std::uint32_t link = 99;
  std::uint32_t flags = 99;
  EXPECT_GOOD(vmm_driver_query_peer(driver, 0, 1, &link, &flags));
  EXPECT_EQ(link, VMM_LINK_PEER);
  EXPECT_EQ(flags, VMM_LINK_ATOMICS);
  EXPECT_GOOD(vmm_driver_query_peer(driver, 1, 1, &link, nullptr));
  EXPECT_EQ(link, VMM_LINK_ITSELF);
  EXPECT_FAILS(vmm_driver_query_peer(driver, 0, 9, &link, nullptr), VMM_ERROR_INVALID_ARGUMENT);
  EXPECT_FAILS(vmm_driver_query_peer(driver, -1, 0, &link, nullptr), VMM_ERROR_INVALID_ARGUMENT);
  EXPECT_FAILS(vmm_driver_query_peer(driver, 0, 1, nullptr, nullptr), VMM_ERROR_INVALID_ARGUMENT);
}

TEST_F(Peers, BlocksAndPoolsAreGivenAndTaken) {
  auto request = c_test::sized<vmm_block_request>();
  request.size_bytes = 4 << 20;
  void* block = nullptr;
  ASSERT_GOOD(vmm_manager_allocate(manager, &request, &block));
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

TEST_F(Peers, WrongGrantsAreRefused) {
  constexpr vmm_status wrong = VMM_ERROR_INVALID_ARGUMENT;
  EXPECT_FAILS(vmm_manager_set_peers(manager, nullptr, 1), wrong);
  EXPECT_FAILS(vmm_manager_set_peers(manager, &reads, 0), wrong);
  EXPECT_FAILS(vmm_manager_set_peers(manager, &reads, VMM_GRANTS_MAX + 1), wrong);
  const vmm_grant home{VMM_PLACE_DEVICE, 0, VMM_RIGHTS_READ, 0};
  EXPECT_FAILS(vmm_pool_set_peers(pool, &home, 1), wrong);
  const vmm_grant nowhere{7, 1, VMM_RIGHTS_READ, 0};
  EXPECT_FAILS(vmm_pool_set_peers(pool, &nowhere, 1), wrong);
  const vmm_grant no_right{VMM_PLACE_DEVICE, 1, 3, 0};
  EXPECT_FAILS(vmm_pool_set_peers(pool, &no_right, 1), wrong);
  const vmm_grant kept{VMM_PLACE_DEVICE, 1, VMM_RIGHTS_READ, 5};
  EXPECT_FAILS(vmm_pool_set_peers(pool, &kept, 1), wrong);
  int here = 0;
  EXPECT_FAILS(vmm_manager_set_access(manager, &here, &reads, 1), VMM_ERROR_UNKNOWN_ADDRESS);
}

}  // namespace

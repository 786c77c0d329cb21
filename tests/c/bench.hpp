// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// A driver, a pool and a manager by way of vmm.h, and texts for failures. C++17, no module.
#pragma once

#include "../support/test.h"
#include "vmm.h"
#include "vmm_allocator.h"

namespace c_test {

inline std::string said(vmm_status status) {
  return std::string(vmm_status_name(status)) + ": " + vmm_last_error_text();
}

#define EXPECT_GOOD(call)                                     \
  do {                                                        \
    const vmm_status of_call = (call);                        \
    EXPECT_EQ(of_call, VMM_SUCCESS) << c_test::said(of_call); \
  } while (false)

#define ASSERT_GOOD(call)                                     \
  do {                                                        \
    const vmm_status of_call = (call);                        \
    ASSERT_EQ(of_call, VMM_SUCCESS) << c_test::said(of_call); \
  } while (false)

#define EXPECT_FAILS(call, code)                       \
  do {                                                 \
    const vmm_status of_call = (call);                 \
    EXPECT_EQ(of_call, code) << c_test::said(of_call); \
  } while (false)

template <class Struct>
Struct sized() {
  Struct made{};
  made.struct_size = sizeof(made);
  return made;
}

inline vmm_pool_options pool_defaults() {
  vmm_pool_options options;
  EXPECT_GOOD(vmm_pool_options_init(&options, sizeof(options)));
  return options;
}

inline vmm_manager_options manager_defaults() {
  vmm_manager_options options;
  EXPECT_GOOD(vmm_manager_options_init(&options, sizeof(options)));
  return options;
}

inline vmm_allocator* make_allocator(const char* driver) {
  vmm_allocator_options options;
  vmm_allocator* made = nullptr;
  EXPECT_GOOD(vmm_allocator_options_init(&options, sizeof(options)));
  options.driver = driver;
  EXPECT_GOOD(vmm_allocator_create(&options, &made));
  return made;
}

// Everything on one driver, closed in order and found whole at the end.
struct Bench : testing::Test {
  void open(const char* name) {
    ASSERT_GOOD(vmm_driver_open(name, VMM_ANY_DEVICE, &driver));
    ASSERT_GOOD(vmm_pool_create(driver, nullptr, &pool));
    ASSERT_GOOD(vmm_manager_create(driver, nullptr, &manager));
  }
  void SetUp() override { open("fake"); }
  void TearDown() override {
    if (pool != nullptr) EXPECT_GOOD(vmm_pool_validate(pool));
    if (manager != nullptr) EXPECT_GOOD(vmm_manager_validate(manager));
    EXPECT_GOOD(vmm_pool_destroy(pool));
    EXPECT_GOOD(vmm_manager_destroy(manager));
    EXPECT_GOOD(vmm_driver_close(driver));
  }
  void* take(std::uint64_t size_bytes, vmm_stream stream = nullptr) {
    void* at = nullptr;
    EXPECT_GOOD(vmm_pool_allocate(pool, size_bytes, stream, &at));
    return at;
  }
  void* build(std::uint64_t size_bytes, vmm_stream stream = nullptr) {
    auto request = sized<vmm_block_request>();
    request.size_bytes = size_bytes;
    request.stream = stream;
    void* at = nullptr;
    EXPECT_GOOD(vmm_manager_allocate(manager, &request, &at));
    return at;
  }

  vmm_driver* driver = nullptr;
  vmm_pool* pool = nullptr;
  vmm_manager* manager = nullptr;
};

}  // namespace c_test

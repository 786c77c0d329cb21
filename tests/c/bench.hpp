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

// Of the text of the latest failure.
inline testing::AssertionResult says(std::string_view part) {
  return contains(vmm_last_error_text(), part);
}

template <class Struct>
Struct sized() {
  Struct made{};
  made.struct_size = sizeof(made);
  return made;
}
template <class Struct>
Struct sized(std::uint64_t size_bytes) {
  auto made = sized<Struct>();
  made.size_bytes = size_bytes;
  return made;
}

// What a call writes of an object.
template <class Struct, class Object>
Struct queried(vmm_status (*call)(Object*, Struct*), std::common_type_t<Object*> of) {
  auto out = sized<Struct>();
  EXPECT_GOOD(call(of, &out));
  return out;
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

// Of the first device.
inline vmm_allocator_statistics numbers(vmm_allocator* of) {
  auto out = sized<vmm_allocator_statistics>();
  EXPECT_GOOD(vmm_allocator_get_statistics(of, 0, &out));
  return out;
}

// An object that ends with its scope.
template <class Object, vmm_status (*End)(Object*)>
class owned {
 public:
  explicit owned(Object* made) : made_(made) {}
  owned(const owned&) = delete;
  owned& operator=(const owned&) = delete;
  ~owned() { EXPECT_GOOD(End(made_)); }
  operator Object*() const { return made_; }  // NOLINT(google-explicit-constructor)

 private:
  Object* made_;
};

struct own_driver : owned<vmm_driver, vmm_driver_close> {
  explicit own_driver(const char* name) : owned(open(name)) {}
  static vmm_driver* open(const char* name) {
    vmm_driver* made = nullptr;
    EXPECT_GOOD(vmm_driver_open(name, VMM_ANY_DEVICE, &made));
    return made;
  }
};
struct own_pool : owned<vmm_pool, vmm_pool_destroy> {
  explicit own_pool(vmm_driver* on, const vmm_pool_options& options = pool_defaults())
      : owned(make(on, options)) {}
  static vmm_pool* make(vmm_driver* on, const vmm_pool_options& options) {
    vmm_pool* made = nullptr;
    EXPECT_GOOD(vmm_pool_create(on, &options, &made));
    return made;
  }
};
struct own_allocator : owned<vmm_allocator, vmm_allocator_destroy> {
  explicit own_allocator(const char* driver) : owned(make_allocator(driver)) {}
};

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
    auto request = sized<vmm_block_request>(size_bytes);
    request.stream = stream;
    void* at = nullptr;
    EXPECT_GOOD(vmm_manager_allocate(manager, &request, &at));
    return at;
  }

  vmm_stream make_stream() {
    vmm_stream made = nullptr;
    EXPECT_GOOD(vmm_driver_create_stream(driver, &made));
    return made;
  }
  void end_stream(vmm_stream gone) {
    EXPECT_GOOD(vmm_pool_forget_stream(pool, gone));
    EXPECT_GOOD(vmm_driver_destroy_stream(driver, gone));
  }
  struct memory {
    std::uint64_t free_bytes = 0;
    std::uint64_t total_bytes = 0;
  };
  memory memory_now() {
    memory now;
    EXPECT_GOOD(vmm_driver_memory(driver, &now.free_bytes, &now.total_bytes));
    return now;
  }

  vmm_driver* driver = nullptr;
  vmm_pool* pool = nullptr;
  vmm_manager* manager = nullptr;
};

}  // namespace c_test

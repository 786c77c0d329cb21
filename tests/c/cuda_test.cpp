// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: the C library loads CUDA's driver when it is requested, interprets CUDA's numbers of
// default streams, and queries captures as the options require.
// Method: the stub libcuda, named by VMM_CUDA_LIBRARY.
#include <dlfcn.h>

#include "bench.hpp"
#include "vmm.h"

namespace {

struct Cuda : c_test::Bench {
  void SetUp() override {
    ASSERT_EQ(setenv("VMM_CUDA_LIBRARY", VMM_STANDIN_LIBRARY, 1), 0);
    open("cuda:0");
  }
};

vmm_stream stream_of(std::uintptr_t number) { return reinterpret_cast<vmm_stream>(number); }

TEST_F(Cuda, TheLegacyStreamHasTwoNumbers) {
  void* const first = take(4096, stream_of(1));
  EXPECT_GOOD(vmm_pool_free(pool, first, nullptr));
  EXPECT_EQ(take(4096, nullptr), first) << "one stream under both";
  EXPECT_GOOD(vmm_pool_free(pool, first, stream_of(1)));
  EXPECT_EQ(c_test::queried(vmm_pool_get_statistics, pool).stream_count, 1u);
  EXPECT_FAILS(vmm_driver_destroy_stream(driver, stream_of(1)), VMM_ERROR_INVALID_ARGUMENT);
}

TEST_F(Cuda, TheStreamOfEachThreadIsRefused) {
  constexpr vmm_status refused = VMM_ERROR_INVALID_ARGUMENT;
  vmm_stream const each = stream_of(2);
  void* at = nullptr;
  std::uint64_t number = 0;
  EXPECT_FAILS(vmm_pool_allocate(pool, 4096, each, &at), refused);
  void* const block = take(4096);
  EXPECT_FAILS(vmm_pool_free(pool, block, each), refused);
  EXPECT_FAILS(vmm_pool_forget_stream(pool, each), refused);
  EXPECT_FAILS(vmm_pool_capture_number(pool, each, &number), refused);
  EXPECT_FAILS(vmm_pool_capture_release(pool, 1, each), refused);
  EXPECT_GOOD(vmm_pool_free(pool, block, nullptr));
  EXPECT_FAILS(vmm_driver_synchronize_stream(driver, each), refused);
  EXPECT_FAILS(vmm_driver_fill(driver, block, 0, 1, each), refused);
  auto request = c_test::sized<vmm_block_request>(4096);
  request.stream = each;
  EXPECT_FAILS(vmm_manager_allocate(manager, &request, &at), refused);
  EXPECT_FAILS(vmm_manager_forget_stream(manager, each), refused);
  vmm_pool_options options = c_test::pool_defaults();
  options.first_stream = each;
  vmm_pool* made = nullptr;
  EXPECT_FAILS(vmm_pool_create(driver, &options, &made), refused);
}

// A free waits for what the block was recorded on: of the stream of each thread that would be the
// freeing thread's own, and not the recording one's.
TEST_F(Cuda, TheStreamOfEachThreadIsNotRecorded) {
  const c_test::own_allocator made("cuda");
  void* block = nullptr;
  EXPECT_GOOD(vmm_allocator_allocate(made, 4096, 0, nullptr, &block));
  EXPECT_FAILS(vmm_allocator_record_stream(made, block, stream_of(2)), VMM_ERROR_INVALID_ARGUMENT);
  EXPECT_GOOD(vmm_allocator_record_stream(made, block, stream_of(1)));
  EXPECT_FAILS(vmm_allocator_record_stream(made, &block, nullptr), VMM_ERROR_UNKNOWN_ADDRESS);
  EXPECT_GOOD(vmm_allocator_free(made, block));
}

// ---- several drivers ---------------------------------------------------------------------------

// Each opens the device for itself, as a framework's allocator and a program's pool do.
TEST_F(Cuda, IdleMemoryServesAllocatorsOverOtherDriversOfTheDevice) {
  const std::uint64_t total = memory_now().total_bytes;
  const c_test::own_allocator framework("cuda");
  const std::uint64_t most = total / 4 * 3;
  void* at = nullptr;
  EXPECT_GOOD(vmm_allocator_allocate(framework, most, 0, nullptr, &at));
  EXPECT_GOOD(vmm_allocator_free(framework, at));
  void* const mine = take(most);
  ASSERT_NE(mine, nullptr) << "the allocator keeps what nothing uses";
  EXPECT_FAILS(vmm_allocator_allocate(framework, most, 0, nullptr, &at), VMM_ERROR_OUT_OF_MEMORY);
  EXPECT_GOOD(vmm_pool_free(pool, mine, nullptr));
  EXPECT_GOOD(vmm_allocator_allocate(framework, most, 0, nullptr, &at));
  EXPECT_GOOD(vmm_allocator_free(framework, at));
}

TEST_F(Cuda, IdleMemoryOfAnotherDeviceIsLeftAlone) {
  const std::uint64_t total = memory_now().total_bytes;
  const c_test::own_driver second("cuda:1");
  const c_test::own_pool elsewhere(second);
  void* at = nullptr;
  EXPECT_GOOD(vmm_pool_allocate(elsewhere, total / 4, nullptr, &at));
  EXPECT_GOOD(vmm_pool_free(elsewhere, at, nullptr));
  void* const mine = take(total / 2);
  EXPECT_FAILS(vmm_pool_allocate(pool, total / 4 * 3, nullptr, &at), VMM_ERROR_OUT_OF_MEMORY);
  EXPECT_GE(c_test::queried(vmm_pool_get_statistics, elsewhere).reusable_bytes, total / 4);
  EXPECT_GOOD(vmm_pool_free(pool, mine, nullptr));
}

// ---- captures ----------------------------------------------------------------------------------

// The program's own calls of the driver that the library has loaded.
struct Captures : Cuda {
  void SetUp() override {
    Cuda::SetUp();
    standin = dlopen(VMM_STANDIN_LIBRARY, RTLD_NOW);
    ASSERT_NE(standin, nullptr) << dlerror();
    void* context = nullptr;
    ASSERT_EQ(call("cuDevicePrimaryCtxRetain", &context, 0), 0);
    ASSERT_EQ(call("cuCtxPushCurrent_v2", context), 0);
    stream = make_stream();
  }
  void TearDown() override {
    end_stream(stream);
    void* context = nullptr;
    EXPECT_EQ(call("cuCtxPopCurrent_v2", &context), 0);
    EXPECT_EQ(call("cuDevicePrimaryCtxRelease_v2", 0), 0);
    Cuda::TearDown();
    dlclose(standin);
  }
  // Under the types of this file, which does not include CUDA's.
  template <class... Given>
  __attribute__((no_sanitize("function"))) int call(const char* name, Given... given) {
    return reinterpret_cast<int (*)(Given...)>(dlsym(standin, name))(given...);
  }
  void begin() {
    constexpr int relaxed = 2;
    ASSERT_EQ(call("cuStreamBeginCapture_v2", stream, relaxed), 0);
  }
  void end() {
    void* graph = nullptr;
    ASSERT_EQ(call("cuStreamEndCapture", stream, &graph), 0);
    ASSERT_EQ(call("cuGraphDestroy", graph), 0);
  }

  void* standin = nullptr;
  vmm_stream stream = nullptr;
};

TEST_F(Captures, AnnouncedOnesAreAskedAboutAlone) {
  vmm_pool_options options = c_test::pool_defaults();
  EXPECT_EQ(options.captures_announced, 0u);
  options.captures_announced = 1;
  const c_test::own_pool announced(driver, options);
  void* at = nullptr;
  for (vmm_pool* const each : {pool, static_cast<vmm_pool*>(announced)}) {
    EXPECT_GOOD(vmm_pool_allocate(each, 4096, stream, &at));
    EXPECT_GOOD(vmm_pool_free(each, at, stream));
  }

  begin();
  EXPECT_FAILS(vmm_pool_allocate(pool, 4096, stream, &at), VMM_ERROR_NOT_PERMITTED);
  EXPECT_GOOD(vmm_pool_allocate(announced, 4096, stream, &at));  // the program said nothing
  EXPECT_GOOD(vmm_pool_free(announced, at, stream));
  EXPECT_FAILS(vmm_pool_allocate(announced, 1024 * MiB, stream, &at), VMM_ERROR_NOT_PERMITTED);
  EXPECT_TRUE(c_test::says("vmm_pool_capture_begin()"));
  end();

  EXPECT_GOOD(vmm_pool_capture_begin(announced));
  begin();
  EXPECT_FAILS(vmm_pool_allocate(announced, 4096, stream, &at), VMM_ERROR_NOT_PERMITTED);
  end();
  EXPECT_GOOD(vmm_pool_capture_end(announced));
  EXPECT_FAILS(vmm_pool_capture_end(announced), VMM_ERROR_INVALID_ARGUMENT);
  EXPECT_GOOD(vmm_pool_allocate(announced, 4096, stream, &at));
  EXPECT_GOOD(vmm_pool_free(announced, at, stream));
}

TEST(CudaAbsent, SaysWhatIsMissing) {
  ASSERT_EQ(setenv("VMM_CUDA_LIBRARY", "/there/is/no/libcuda.so.1", 1), 0);
  vmm_driver* driver = nullptr;
  EXPECT_FAILS(vmm_driver_open("cuda", 0, &driver), VMM_ERROR_BAD_OPTION);
  EXPECT_FAILS(vmm_driver_open(nullptr, VMM_ANY_DEVICE, &driver), VMM_ERROR_BAD_OPTION);
  EXPECT_TRUE(c_test::says("VMM_CUDA_LIBRARY is '/there/is/no/libcuda"));
}

}  // namespace

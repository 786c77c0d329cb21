// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: suspension through vmm.h does what the header says: contents come back to the same
// addresses, all regions or none, and every wrong use is refused by a code.
// Method: on the host's memory, read and written directly, and on the simulated device.
#include "bench.hpp"
#include "vmm.h"

namespace {

using c_test::says, c_test::sized, c_test::queried;

struct SuspendC : c_test::Bench {
  void start(const char* name, std::uint32_t tier = VMM_BACKUP_BEST) {
    open(name);
    vmm_suspender_options options;
    EXPECT_GOOD(vmm_suspender_options_init(&options, sizeof(options)));
    options.tier = tier;
    options.verify = 1;
    EXPECT_GOOD(vmm_suspender_create(&options, &suspender));
    EXPECT_GOOD(vmm_suspender_add_pool(suspender, pool, "kv", VMM_CONTENTS_KEEP));
    EXPECT_GOOD(vmm_suspender_add_manager(suspender, manager, "weights", VMM_CONTENTS_ZERO));
  }
  void SetUp() override {}
  void TearDown() override {
    EXPECT_GOOD(vmm_suspender_destroy(suspender));
    c_test::Bench::TearDown();
  }
  vmm_suspender_info info(const char* tag = nullptr) {
    auto out = sized<vmm_suspender_info>();
    EXPECT_GOOD(vmm_suspender_query(suspender, tag, &out));
    return out;
  }
  void expect_access_is_named(const char* name);
  vmm_suspender* suspender = nullptr;
};

TEST_F(SuspendC, ContentsComeBackToTheSameAddresses) {
  start("host", VMM_BACKUP_PAGEABLE);
  void* const kept = take(4 * MiB);
  void* const zeroed = build(2 * MiB);
  std::memset(kept, 7, 4 * MiB);
  std::memset(zeroed, 7, 2 * MiB);
  auto report = sized<vmm_suspend_report>();
  ASSERT_GOOD(vmm_suspender_suspend(suspender, nullptr, &report));
  EXPECT_GE(report.suspended_bytes, 6 * MiB);
  EXPECT_GE(report.backup_bytes, 4 * MiB);
  EXPECT_EQ(report.region_count, 2u);
  EXPECT_EQ(report.refused_bytes + report.cached_bytes + report.unfinished_bytes, 0u);
  const auto suspended_bytes = [&] {
    return queried(vmm_pool_get_statistics, pool).suspended_bytes +
           queried(vmm_manager_get_statistics, manager).suspended_bytes;
  };
  EXPECT_EQ(suspended_bytes(), report.suspended_bytes);
  EXPECT_EQ(info("kv").is_suspended, 1u);
  EXPECT_GE(info().backup_bytes, 4 * MiB);
  void* none = nullptr;
  unsigned char seen[2] = {};
  EXPECT_GOOD(vmm_suspender_read_backup(suspender, seen, kept, 2));
  EXPECT_EQ(seen[1], 7);
  EXPECT_EQ(vmm_suspender_read_backup(suspender, seen, seen, 2), VMM_ERROR_UNKNOWN_ADDRESS);
  EXPECT_EQ(vmm_suspender_read_backup(suspender, nullptr, kept, 2), VMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(vmm_pool_allocate(pool, MiB, nullptr, &none), VMM_ERROR_IN_USE);
  const auto request = sized<vmm_block_request>(2 * MiB);
  EXPECT_EQ(vmm_manager_allocate(manager, &request, &none), VMM_ERROR_IN_USE);
  ASSERT_GOOD(vmm_suspender_resume(suspender, nullptr, 0));
  EXPECT_EQ(suspended_bytes(), 0u);
  EXPECT_EQ(static_cast<unsigned char*>(kept)[4 * MiB - 1], 7);
  EXPECT_EQ(static_cast<unsigned char*>(zeroed)[2 * MiB - 1], 0);
  EXPECT_GOOD(vmm_suspender_return_backups(suspender));
  EXPECT_EQ(info().backup_bytes, 0u);
  EXPECT_GOOD(vmm_pool_free(pool, kept, nullptr));
  EXPECT_GOOD(vmm_manager_free(manager, zeroed));
}

// To the driver the memory is unmapped, and the address an invalid one.
void SuspendC::expect_access_is_named(const char* name) {
  start(name);
  void* const in_pool = take(4 * MiB);
  void* const in_manager = build(4 * MiB);
  vmm_manager* other = nullptr;
  ASSERT_GOOD(vmm_manager_create(driver, nullptr, &other));
  auto copy = sized<vmm_copy_request>(2);
  const auto request = sized<vmm_block_request>(4 * MiB);
  ASSERT_GOOD(vmm_manager_allocate(other, &request, &copy.target));
  const auto expect_named = [](vmm_status given) {
    EXPECT_EQ(given, VMM_ERROR_IN_USE);
    EXPECT_TRUE(says("suspended: resume it first, by vmm_suspender_resume()"));
  };
  unsigned char bytes[2] = {1, 2};
  std::uint32_t rights = 0;
  const auto use = [&](const auto& outcome) {
    for (void* const at : {in_pool, in_manager}) {
      auto* const inside = static_cast<unsigned char*>(at) + MiB;
      outcome(vmm_driver_read(driver, bytes, inside, 2));
      outcome(vmm_driver_read(driver, bytes, static_cast<unsigned char*>(at) + 4 * MiB - 1, 1));
      outcome(vmm_driver_write(driver, inside, bytes, 2));
      outcome(vmm_driver_fill(driver, inside, 3, 2, nullptr));
      copy.source = inside;
      outcome(vmm_manager_copy(other, &copy));
    }
  };
  ASSERT_GOOD(vmm_suspender_suspend(suspender, nullptr, nullptr));
  use(expect_named);
  expect_named(vmm_manager_synchronize(manager, in_manager));
  EXPECT_GOOD(vmm_pool_synchronize(pool));  // for what was freed
  if (*name == 'f')
    expect_named(vmm_driver_get_access(driver, in_pool, VMM_PLACE_DEVICE, 0, &rights));
  EXPECT_EQ(vmm_driver_read(driver, bytes, copy.target, ~std::uint64_t{0} >> 8),
            VMM_ERROR_INVALID_ARGUMENT)
      << "memory that is not suspended";
  ASSERT_GOOD(vmm_suspender_destroy(suspender));
  suspender = nullptr;
  use(expect_named);
  ASSERT_GOOD(vmm_suspender_create(nullptr, &suspender));
  ASSERT_GOOD(vmm_suspender_add_pool(suspender, pool, "kv", VMM_CONTENTS_DISCARD));
  ASSERT_GOOD(vmm_suspender_add_manager(suspender, manager, "w", VMM_CONTENTS_DISCARD));
  EXPECT_GOOD(vmm_pool_free(pool, in_pool, nullptr));
  EXPECT_GOOD(vmm_manager_free(manager, in_manager));
  ASSERT_GOOD(vmm_suspender_resume(suspender, nullptr, 0));
  EXPECT_GOOD(vmm_manager_free(other, copy.target));
  EXPECT_GOOD(vmm_manager_destroy(other));
}

TEST_F(SuspendC, AccessToSuspendedMemoryIsNamed) { expect_access_is_named("fake"); }
TEST_F(SuspendC, AccessToSuspendedMemoryOfTheHostIsNamed) { expect_access_is_named("host"); }

struct seen_inside {
  vmm_suspender* suspender = nullptr;
  vmm_pool* pool = nullptr;
  void* block = nullptr;
  int notice_count = 0;
};

// The thread holds the suspender's lock, where it suspends.
void use_the_suspender(void* context, const vmm_remap_notice*) {
  auto& seen = *static_cast<seen_inside*>(context);
  ++seen.notice_count;
  vmm_suspender* const of = seen.suspender;
  auto info = sized<vmm_suspender_info>();
  char byte = 0;
  for (const vmm_status refused :
       {vmm_suspender_query(of, "kv", &info), vmm_suspender_query(of, nullptr, &info),
        vmm_suspender_read_backup(of, &byte, seen.block, 1), vmm_suspender_return_backups(of),
        vmm_suspender_add_pool(of, seen.pool, "again", VMM_CONTENTS_KEEP),
        vmm_suspender_remove_pool(of, seen.pool), vmm_suspender_suspend(of, nullptr, nullptr),
        vmm_suspender_resume(of, nullptr, 0)})
    EXPECT_EQ(refused, VMM_ERROR_NOT_PERMITTED) << vmm_last_error_text();
}

TEST_F(SuspendC, CallsInACallback) {
  start("host");
  seen_inside seen{suspender, pool, take(4 * MiB), 0};
  std::uint64_t number = 0;
  ASSERT_GOOD(vmm_pool_subscribe(pool, &use_the_suspender, &seen, &number));
  ASSERT_GOOD(vmm_suspender_suspend(suspender, nullptr, nullptr));
  EXPECT_EQ(info("kv").is_suspended, 1u);
  ASSERT_GOOD(vmm_suspender_resume(suspender, nullptr, 0));
  EXPECT_GT(seen.notice_count, 0);
  seen.notice_count = 0;
  ASSERT_GOOD(vmm_pool_free(pool, seen.block, nullptr));
  ASSERT_GOOD(vmm_pool_trim(pool, 0, nullptr));
  EXPECT_GT(seen.notice_count, 0) << "by a call on the pool";
  ASSERT_GOOD(vmm_pool_unsubscribe(pool, number));
}

TEST_F(SuspendC, TagsAndContentsOfOneRequest) {
  start("fake");
  const char* const weights[] = {"weights"};
  auto request = sized<vmm_suspend_request>();
  request.tags = weights;
  request.tag_count = 1;
  request.use_contents = 1;
  request.contents = VMM_CONTENTS_DISCARD;
  const vmm_stream stream = make_stream();
  request.streams = &stream;
  request.stream_count = 1;
  ASSERT_GOOD(vmm_suspender_suspend(suspender, &request, nullptr));
  EXPECT_EQ(info("kv").is_suspended, 0u);
  EXPECT_EQ(vmm_suspender_suspend(suspender, &request, nullptr), VMM_ERROR_IN_USE);
  EXPECT_STREQ(info().obstacle, "weights");
  ASSERT_GOOD(vmm_suspender_resume(suspender, weights, 1));
  EXPECT_EQ(vmm_suspender_resume(suspender, weights, 1), VMM_ERROR_INVALID_ARGUMENT);
  ASSERT_GOOD(vmm_suspender_offer(suspender, weights, 1));
  ASSERT_GOOD(vmm_suspender_resume(suspender, weights, 1));
  const char* const none[] = {"none"};
  EXPECT_EQ(vmm_suspender_offer(suspender, none, 1), VMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(vmm_suspender_offer(suspender, nullptr, 1), VMM_ERROR_INVALID_ARGUMENT);
  end_stream(stream);
}

TEST_F(SuspendC, CloseKeepsContents) {
  start("host");
  void* const kept = take(4 * MiB);
  std::memset(kept, 7, 4 * MiB);
  ASSERT_GOOD(vmm_suspender_suspend(suspender, nullptr, nullptr));
  EXPECT_EQ(vmm_suspender_close(suspender, 2), VMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(vmm_suspender_close(suspender, 0), VMM_ERROR_IN_USE);
  EXPECT_TRUE(says("would be lost"));
  ASSERT_GOOD(vmm_suspender_resume(suspender, nullptr, 0));
  EXPECT_EQ(static_cast<unsigned char*>(kept)[4 * MiB - 1], 7);
  ASSERT_GOOD(vmm_suspender_suspend(suspender, nullptr, nullptr));
  EXPECT_GOOD(vmm_suspender_close(suspender, 1));
  EXPECT_EQ(vmm_suspender_close(suspender, 1), VMM_ERROR_INVALID_HANDLE);
  EXPECT_GOOD(vmm_suspender_close(nullptr, 0));
  ASSERT_GOOD(vmm_suspender_create(nullptr, &suspender));
  ASSERT_GOOD(vmm_suspender_add_pool(suspender, pool, "kv", VMM_CONTENTS_KEEP));
  EXPECT_EQ(vmm_suspender_resume(suspender, nullptr, 0), VMM_ERROR_IN_USE);
  EXPECT_TRUE(says("the contents were lost"));
  ASSERT_GOOD(vmm_pool_free(pool, kept, nullptr));
  EXPECT_GOOD(vmm_suspender_resume(suspender, nullptr, 0));
}

// Either the suspender ends before the pool is suspended, or it stays and has the contents.
TEST_F(SuspendC, CloseBesideSuspend) {
  open("host");
  void* const kept = take(MiB);
  constexpr int rounds = 200;
  std::array<int, 2> outcomes{};
  for (int round = 0; round < rounds; ++round) {
    ASSERT_GOOD(vmm_suspender_create(nullptr, &suspender));
    ASSERT_GOOD(vmm_suspender_add_pool(suspender, pool, "kv", VMM_CONTENTS_KEEP));
    std::memset(kept, round, MiB);
    vmm_status suspended = VMM_SUCCESS;
    std::thread other([&] { suspended = vmm_suspender_suspend(suspender, nullptr, nullptr); });
    vmm_status closed = VMM_ERROR_IN_USE;
    for (int tries = round % 8; tries >= 0 && closed == VMM_ERROR_IN_USE; --tries)
      closed = vmm_suspender_close(suspender, 0);
    other.join();
    ASSERT_EQ(closed == VMM_SUCCESS, suspended == VMM_ERROR_INVALID_HANDLE);
    ++outcomes[closed == VMM_SUCCESS ? 0 : 1];
    if (closed != VMM_SUCCESS) {
      ASSERT_EQ(closed, VMM_ERROR_IN_USE);
      ASSERT_GOOD(suspended);
      ASSERT_GOOD(vmm_suspender_resume(suspender, nullptr, 0));
      ASSERT_GOOD(vmm_suspender_close(suspender, 0));
    }
    ASSERT_EQ(*static_cast<unsigned char*>(kept), round % 256);
  }
  suspender = nullptr;
  EXPECT_EQ(outcomes[0] + outcomes[1], rounds);
}

TEST_F(SuspendC, ADirectoryThatTakesNoFile) {
  start("fake");
  vmm_suspender_options options;
  EXPECT_GOOD(vmm_suspender_options_init(&options, sizeof(options)));
  options.directory = "/nowhere/at/all";
  vmm_suspender* none = nullptr;
  EXPECT_EQ(vmm_suspender_create(&options, &none), VMM_ERROR_BAD_OPTION);
  EXPECT_TRUE(says("/nowhere/at/all"));
  EXPECT_EQ(none, nullptr);
}

TEST_F(SuspendC, WrongUse) {
  start("fake");
  EXPECT_EQ(vmm_suspender_create(nullptr, nullptr), VMM_ERROR_INVALID_ARGUMENT);
  vmm_suspender_options options;
  EXPECT_GOOD(vmm_suspender_options_init(&options, sizeof(options)));
  vmm_suspender* none = nullptr;
  options.tier = 4;
  EXPECT_EQ(vmm_suspender_create(&options, &none), VMM_ERROR_BAD_OPTION);
  options.tier = 0;
  options.verify = 2;
  EXPECT_EQ(vmm_suspender_create(&options, &none), VMM_ERROR_BAD_OPTION);
  auto request = sized<vmm_suspend_request>();
  request.tag_count = 1;
  EXPECT_EQ(vmm_suspender_suspend(suspender, &request, nullptr), VMM_ERROR_INVALID_ARGUMENT);
  request = sized<vmm_suspend_request>();
  request.stream_count = 1;
  EXPECT_EQ(vmm_suspender_suspend(suspender, &request, nullptr), VMM_ERROR_INVALID_ARGUMENT);
  request = sized<vmm_suspend_request>();
  request.contents = 3;
  EXPECT_EQ(vmm_suspender_suspend(suspender, &request, nullptr), VMM_ERROR_INVALID_ARGUMENT);
  request.contents = 0;
  request.use_contents = 2;
  EXPECT_EQ(vmm_suspender_suspend(suspender, &request, nullptr), VMM_ERROR_INVALID_ARGUMENT);
  const char* const unknown[] = {"nothing"};
  EXPECT_EQ(vmm_suspender_resume(suspender, unknown, 1), VMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(vmm_suspender_query(suspender, "nothing", nullptr), VMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(vmm_suspender_add_pool(suspender, pool, "again", 0), VMM_ERROR_IN_USE);
  EXPECT_EQ(vmm_suspender_add_pool(suspender, pool, "kv", 3), VMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(vmm_suspender_add_pool(suspender, nullptr, "kv", 0), VMM_ERROR_INVALID_HANDLE);
  EXPECT_EQ(vmm_suspender_add_manager(suspender, manager, nullptr, 0), VMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(vmm_suspender_resume(nullptr, nullptr, 0), VMM_ERROR_INVALID_HANDLE);
  EXPECT_EQ(vmm_pool_destroy(pool), VMM_ERROR_IN_USE) << "it is a region";
  EXPECT_TRUE(says("a suspender"));
  EXPECT_EQ(vmm_manager_destroy(manager), VMM_ERROR_IN_USE);
  EXPECT_TRUE(says("a suspender"));
  EXPECT_EQ(vmm_driver_close(driver), VMM_ERROR_IN_USE);
  EXPECT_TRUE(says("a suspender"));
  EXPECT_GOOD(vmm_suspender_remove_pool(suspender, pool));
  EXPECT_EQ(vmm_suspender_remove_pool(suspender, pool), VMM_ERROR_INVALID_ARGUMENT);
  EXPECT_GOOD(vmm_suspender_remove_manager(suspender, manager));
}

}  // namespace

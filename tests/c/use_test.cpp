// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: the C interface does what its header says, on the simulated device and on the host's
// memory: blocks come and go in stream order, contents stay, numbers are the library's own,
// callbacks are called and kept in their bounds, and a forked child leaves its parent alone.
// Method: short programs on either driver; contents are written and read through the driver, and
// directly where the host may. The fixture validates pool and manager after each test, and closes
// all.
#include "../support/child.hpp"
#include "bench.hpp"
#include "calls.hpp"
#include "vmm.h"

namespace {

using c_test::Bench, c_test::call_with_handle, c_test::manager_defaults, c_test::own_driver,
    c_test::own_pool, c_test::pool_defaults, c_test::says, c_test::sized, c_test::queried;

struct Use : Bench {
  [[nodiscard]] vmm_pool_statistics numbers() const {
    return queried(vmm_pool_get_statistics, pool);
  }
};

struct UseOfTheHost : Use {
  void SetUp() override { open("host"); }
};

// ---- drivers -----------------------------------------------------------------------------------

TEST(Drivers, AreListed) {
  std::uint64_t count = 0;
  EXPECT_GOOD(vmm_list_drivers(nullptr, 0, &count));
  std::vector<vmm_driver_entry> entries(count);
  EXPECT_GOOD(vmm_list_drivers(entries.data(), 2, &count));
  ASSERT_EQ(count, entries.size());
  EXPECT_EQ(entries[2].name, nullptr) << "beyond the capacity";
  EXPECT_GOOD(vmm_list_drivers(entries.data(), count, &count));
  bool has_fake = false;
  for (const vmm_driver_entry& each : entries) {
    EXPECT_EQ(each.available == 0, each.reason[0] != '\0') << each.name;
    if (std::string(each.name) == "fake") has_fake = each.available == 1;
  }
  EXPECT_TRUE(has_fake);
}

TEST(Drivers, OfEveryName) {
  for (const char* name : {"fake", "fake:cuda", "fake:level_zero", "fake:host", "host"}) {
    const own_driver driver(name);
    const auto info = queried(vmm_driver_query, driver);
    EXPECT_NE(info.granularity, 0u);
    EXPECT_EQ(info.recommended % info.granularity, 0u);
    std::uint64_t free_bytes = 0;
    std::uint64_t total_bytes = 0;
    EXPECT_GOOD(vmm_driver_memory(driver, &free_bytes, &total_bytes));
    EXPECT_LE(free_bytes, total_bytes);
    const bool is_host = std::string(name) == "host";
    EXPECT_EQ((info.features & VMM_FEATURE_HOST_ACCESSIBLE) != 0, is_host);
    if (is_host) EXPECT_EQ(info.place, std::uint32_t{VMM_PLACE_HOST});
  }
}

TEST(Drivers, OfTheEnvironment) {
  ASSERT_EQ(setenv("VMM_BACKEND", "fake:level_zero", 1), 0);
  const own_driver driver(nullptr);
  unsetenv("VMM_BACKEND");
  EXPECT_STREQ(queried(vmm_driver_query, driver).name, "fake-level-zero");
}

// ---- pools -------------------------------------------------------------------------------------

TEST_F(Use, BlocksOfAStreamComeBackToIt) {
  const vmm_stream stream = make_stream();
  void* const first = take(3 * MiB, stream);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first) % 512, 0u);
  EXPECT_EQ(numbers().live_count, 1u);
  EXPECT_EQ(numbers().live_bytes, 3 * MiB);
  EXPECT_GOOD(vmm_pool_free_sized(pool, first, 3 * MiB, stream));
  EXPECT_EQ(take(3 * MiB, stream), first);
  EXPECT_EQ(numbers().slow_count, 1u) << "one driver's work for both";
  EXPECT_GOOD(vmm_pool_free(pool, first, stream));
  EXPECT_GOOD(vmm_pool_synchronize(pool));
  auto prepared = sized<vmm_preallocate_report>();
  EXPECT_GOOD(vmm_pool_preallocate(pool, 64 * MiB, stream, &prepared));
  EXPECT_GT(prepared.created_bytes, 0u);
  EXPECT_EQ(prepared.left_bytes, 0u);
  void* const announced = take(64 * MiB, stream);
  EXPECT_EQ(numbers().slow_count, 1u) << "what was announced is there";
  EXPECT_GOOD(vmm_pool_free(pool, announced, stream));
  EXPECT_GOOD(vmm_pool_synchronize(pool));
  end_stream(stream);
  auto report = sized<vmm_trim_report>();
  EXPECT_GOOD(vmm_pool_trim(pool, 0, &report));
  EXPECT_GE(report.released_bytes, 3 * MiB);
  EXPECT_EQ(numbers().mapped_bytes, 0u);
}

TEST_F(Use, AStreamIsOrderedBehindAnother) {
  const vmm_stream first = make_stream();
  const vmm_stream then = make_stream();
  void* const block = take(3 * MiB, first);
  ASSERT_GOOD(vmm_driver_fill(driver, block, 'a', 3 * MiB, first));
  EXPECT_GOOD(vmm_driver_order_streams(driver, first, then));
  EXPECT_GOOD(vmm_driver_order_streams(driver, then, then));
  ASSERT_GOOD(vmm_driver_fill(driver, block, 'b', 1, then));
  ASSERT_GOOD(vmm_driver_synchronize_stream(driver, then));
  ASSERT_GOOD(vmm_driver_synchronize_stream(driver, first));
  std::array<char, 2> bytes{};
  EXPECT_GOOD(vmm_driver_read(driver, bytes.data(), block, bytes.size()));
  EXPECT_EQ(bytes[0], 'b') << "the second fill came behind the first";
  EXPECT_EQ(bytes[1], 'a');
  EXPECT_GOOD(vmm_pool_free(pool, block, first));
  for (vmm_stream each : {first, then}) end_stream(each);
}

TEST(Use_Python, NeedsAnInterpreter) {
  static int notified = 0;
  const vmm_remap_callback notify = [](void* context, const vmm_remap_notice*) {
    notified += context == nullptr ? 1 : 100;
  };
  const vmm_status refused = vmm_python_on_tensor_end([](std::uint64_t, std::uint32_t*) {});
  EXPECT_FAILS(refused, VMM_ERROR_NOT_SUPPORTED);
  vmm_python_remapped(reinterpret_cast<void*>(notify), nullptr);
  EXPECT_EQ(notified, 1);
  EXPECT_GOOD(vmm_python_on_tensor_end(nullptr));
  vmm_python_remapped(reinterpret_cast<void*>(notify), nullptr);
  EXPECT_EQ(notified, 1) << "Python has ended";
  int tensor = 0;
  vmm_python_end_tensor(&tensor);
  vmm_python_end_capsule(&tensor);
  vmm_python_end_capsule(nullptr);
  EXPECT_FAILS(vmm_python_run_handlers(1), VMM_ERROR_NOT_SUPPORTED);
  EXPECT_GOOD(vmm_python_run_handlers(0));
  vmm_python_raise();
}

TEST_F(Use, BlocksThatAreFreedAfterEverything) {
  const vmm_stream stream = make_stream();
  void* const first = take(3 * MiB, stream);
  EXPECT_GOOD(vmm_pool_free_unordered(pool, nullptr));
  EXPECT_GOOD(vmm_pool_capture_begin(pool));
  EXPECT_GOOD(vmm_pool_free_unordered(pool, first));
  EXPECT_EQ(vmm_pool_free_unordered(pool, first), VMM_ERROR_NOT_ALLOCATED);
  EXPECT_NE(take(3 * MiB, stream), first) << "no event may be recorded while something is captured";
  EXPECT_FAILS(vmm_pool_destroy(pool), VMM_ERROR_IN_USE);
  EXPECT_TRUE(says("vmm_pool_capture_end()"));
  EXPECT_GOOD(vmm_pool_capture_end(pool));
  EXPECT_EQ(vmm_pool_capture_end(pool), VMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(take(3 * MiB, nullptr), first) << "all work has finished: any stream may have it";
  end_stream(stream);
}

TEST_F(Use, AlignedBlocks) {
  for (const std::uint64_t alignment : {1u, 16u, 256u, 512u, 4096u, 65536u, 2u << 20}) {
    void* at = nullptr;
    EXPECT_GOOD(vmm_pool_allocate_aligned(pool, 24, alignment, nullptr, &at));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(at) % alignment, 0u);
    EXPECT_GOOD(vmm_pool_free(pool, at, nullptr));
  }
}

TEST_F(Use, ADumpIsCutAtItsCapacity) {
  void* const block = take(4 * MiB);
  std::uint64_t size = 0;
  EXPECT_GOOD(vmm_pool_dump(pool, nullptr, 0, &size));
  ASSERT_GT(size, 1u);
  std::vector<char> text(size, 'x');
  EXPECT_GOOD(vmm_pool_dump(pool, text.data(), text.size(), &size));
  ASSERT_EQ(size, text.size());
  const std::string all(text.data());
  EXPECT_EQ(all.size() + 1, size);
  EXPECT_TRUE(contains(all, "live 4194304\n"));
  char cut[10] = "xxxxxxxxx";
  EXPECT_GOOD(vmm_pool_dump(pool, cut, 8, &size));
  EXPECT_EQ(std::string(cut), all.substr(0, 7));
  EXPECT_EQ(cut[8], 'x');
  EXPECT_GOOD(vmm_pool_free(pool, block, nullptr));
}

TEST_F(Use, RegionsTellWhatIsWhere) {
  void* const block = take(4 * MiB);
  std::uint64_t count = 0;
  EXPECT_GOOD(vmm_pool_regions(pool, nullptr, 0, &count));
  std::vector<vmm_pool_region> regions(count);
  EXPECT_GOOD(vmm_pool_regions(pool, regions.data(), regions.size(), &count));
  ASSERT_EQ(count, regions.size());
  const vmm_pool_region* found = nullptr;
  for (const vmm_pool_region& each : regions)
    if (each.base == block) found = &each;
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->kind, std::uint32_t{VMM_REGION_LIVE});
  EXPECT_EQ(found->size_bytes, 4 * MiB);
  EXPECT_GOOD(vmm_pool_free(pool, block, nullptr));
}

TEST_F(Use, PinsKeepABlockThatIsFreed) {
  void* const block = take(4 * MiB);
  EXPECT_GOOD(vmm_pool_pin(pool, block));
  EXPECT_GOOD(vmm_pool_free(pool, block, nullptr));
  EXPECT_EQ(numbers().pinned_count, 1u);
  EXPECT_GOOD(vmm_pool_trim(pool, 0, nullptr));
  EXPECT_GE(numbers().mapped_bytes, 4 * MiB);
  EXPECT_GOOD(vmm_pool_unpin(pool, block));
  EXPECT_GOOD(vmm_pool_trim(pool, 0, nullptr));
  EXPECT_EQ(numbers().mapped_bytes, 0u);
}

TEST_F(Use, AShortageIsReported) {
  EXPECT_EQ(queried(vmm_pool_last_shortage, pool).request_bytes, 0u);
  vmm_pool_options options = pool_defaults();
  options.budget_bytes = 64 * MiB;
  const own_pool small(driver, options);
  void* at = nullptr;
  EXPECT_FAILS(vmm_pool_allocate(small, 128 * MiB, nullptr, &at), VMM_ERROR_OVER_BUDGET);
  const auto shortage = queried(vmm_pool_last_shortage, small);
  EXPECT_EQ(shortage.request_bytes, 128 * MiB);
  EXPECT_EQ(shortage.failure, VMM_ERROR_OVER_BUDGET);
  EXPECT_EQ(shortage.budget_bytes, 64 * MiB);
}

TEST_F(Use, TheEnvironmentChangesOptionsWhereItIsAsked) {
  ASSERT_EQ(setenv("VMM_BUDGET", "64MiB", 1), 0);
  vmm_pool_options options = pool_defaults();
  const auto budget_of = [&] {
    const own_pool made(driver, options);
    void* at = nullptr;
    const vmm_status answered = vmm_pool_allocate(made, 128 * MiB, nullptr, &at);
    EXPECT_GOOD(vmm_pool_free(made, at, nullptr));
    return answered;
  };
  EXPECT_EQ(budget_of(), VMM_SUCCESS);
  options.read_environment = 1;
  EXPECT_EQ(budget_of(), VMM_ERROR_OVER_BUDGET);
  ASSERT_EQ(setenv("VMM_BUDGET", "much", 1), 0);
  vmm_pool* made = nullptr;
  EXPECT_FAILS(vmm_pool_create(driver, &options, &made), VMM_ERROR_BAD_OPTION);
  EXPECT_TRUE(says("VMM_BUDGET"));
  vmm_manager_options managed = manager_defaults();
  managed.read_environment = 1;
  vmm_manager* other = nullptr;
  EXPECT_FAILS(vmm_manager_create(driver, &managed, &other), VMM_ERROR_BAD_OPTION);
  unsetenv("VMM_BUDGET");
  // What can be a value, and nothing here can meet.
  ASSERT_EQ(setenv("VMM_POOL_PAGE_SIZE", "256GiB", 1), 0);
  ASSERT_EQ(setenv("VMM_CHUNK_SIZE", "256GiB", 1), 0);
  EXPECT_FAILS(vmm_pool_create(driver, &options, &made), VMM_ERROR_BAD_OPTION);
  EXPECT_TRUE(says("page_bytes (VMM_POOL_PAGE_SIZE) is at most the device's memory; not "));
  EXPECT_FAILS(vmm_manager_create(driver, &managed, &other), VMM_ERROR_BAD_OPTION);
  EXPECT_TRUE(says("chunk_bytes of the options (VMM_CHUNK_SIZE) is at most the device's"));
  unsetenv("VMM_POOL_PAGE_SIZE");
  unsetenv("VMM_CHUNK_SIZE");
}

TEST(Sizes, AreTextsAsInTheEnvironment) {
  std::uint64_t size_bytes = 7;
  EXPECT_FAILS(vmm_parse_bytes("3 apples", &size_bytes), VMM_ERROR_BAD_OPTION);
  EXPECT_STREQ(
      vmm_last_error_text(),
      "bad_option: a size is a number with a unit, such as 512MiB or 1.5GiB; not '3 apples'");
  EXPECT_FAILS(vmm_parse_bytes(nullptr, &size_bytes), VMM_ERROR_INVALID_ARGUMENT);
  EXPECT_FAILS(vmm_parse_bytes("1", nullptr), VMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(size_bytes, 7u);
  EXPECT_GOOD(vmm_parse_bytes("1.5 gib", &size_bytes));
  EXPECT_EQ(size_bytes, std::uint64_t{3} << 29);
}

TEST_F(Use, MemoryIsMadeWhereTheOptionsSay) {
  vmm_pool_options options = pool_defaults();
  options.place = VMM_PLACE_HOST;
  options.page_count = 8;
  for (const bool is_used : {true, false}) {
    options.use_place = is_used ? 1 : 0;
    const std::uint64_t before = memory_now().free_bytes;
    const own_pool made(driver, options);
    EXPECT_EQ(before - memory_now().free_bytes, is_used ? 0 : 16 * MiB) << "of the device";
  }
}

TEST_F(Use, StreamsGetArenasWhereTheOptionsSay) {
  for (const std::uint32_t arenas :
       {VMM_ARENAS_WHEN_CONTENDED, VMM_ARENAS_ALWAYS, VMM_ARENAS_NEVER}) {
    vmm_pool_options options = pool_defaults();
    EXPECT_EQ(options.stream_arenas, std::uint32_t{VMM_ARENAS_WHEN_CONTENDED});
    options.stream_arenas = arenas;
    const own_pool made(driver, options);
    void* at = nullptr;
    for (int i = 0; i < 3; ++i) {
      EXPECT_GOOD(vmm_pool_allocate(made, 4096, nullptr, &at));
      EXPECT_GOOD(vmm_pool_free(made, at, nullptr));
    }
    const auto now = queried(vmm_pool_get_statistics, made);
    EXPECT_EQ(now.arena_count, arenas == VMM_ARENAS_ALWAYS ? 1u : 0u) << arenas;
    EXPECT_EQ(now.arena_bytes != 0, arenas == VMM_ARENAS_ALWAYS) << arenas;
    EXPECT_LE(now.arena_bytes, now.reusable_bytes);
  }
}

// ---- memory that is short ----------------------------------------------------------------------

TEST_F(Use, ARequestThatFailsHoldsNothingAndSaysHowMuch) {
  (void)take(64 * MiB);
  const auto [before, total] = memory_now();
  const std::uint64_t made = numbers().created_count;
  void* none = nullptr;
  EXPECT_FAILS(vmm_pool_allocate(pool, total + MiB, nullptr, &none), VMM_ERROR_OUT_OF_MEMORY);
  EXPECT_TRUE(says(" exceeds the available memory: "));
  EXPECT_FAILS(vmm_pool_allocate(pool, total - MiB, nullptr, &none), VMM_ERROR_OUT_OF_MEMORY);
  const std::uint64_t after = memory_now().free_bytes;
  EXPECT_EQ(before, after);
  EXPECT_EQ(numbers().created_count, made) << "none was created in vain";
  EXPECT_EQ(numbers().held_bytes, total - after);
}

TEST_F(Use, APoolsIdleMemoryServesAManager) {
  const std::uint64_t total = memory_now().total_bytes;
  void* const kept = take(total / 2);
  EXPECT_GOOD(vmm_pool_free(pool, kept, nullptr));
  EXPECT_GOOD(vmm_manager_free(manager, build(total / 4 * 3)));
}

TEST_F(Use, AnAllocatorsRequestThatFailsHoldsNothing) {
  const c_test::own_allocator made("fake");
  void* at = nullptr;
  ASSERT_GOOD(vmm_allocator_allocate(made, MiB, 0, nullptr, &at));
  const auto before = c_test::numbers(made);
  void* none = nullptr;
  EXPECT_FAILS(vmm_allocator_allocate(made, 200 * GiB, 0, nullptr, &none), VMM_ERROR_OUT_OF_MEMORY);
  const auto after = c_test::numbers(made);
  EXPECT_EQ(before.held_bytes.current, after.held_bytes.current);
  EXPECT_EQ(before.handles.added, after.handles.added) << "none was created in vain";
  EXPECT_GOOD(vmm_allocator_free(made, at));
}

TEST_F(Use, LiveBlocksAreSaidWhereItIsWanted) {
  for (const std::uint32_t report_live : {0u, 1u}) {
    vmm_pool_options options = pool_defaults();
    options.report_live = report_live;
    vmm_pool* made = nullptr;
    ASSERT_GOOD(vmm_pool_create(driver, &options, &made));
    void* at = nullptr;
    EXPECT_GOOD(vmm_pool_allocate(made, 4096, nullptr, &at));
    testing::internal::CaptureStderr();
    EXPECT_GOOD(vmm_pool_destroy(made));
    EXPECT_EQ(testing::internal::GetCapturedStderr().empty(), report_live == 0);
  }
}

// ---- callbacks ---------------------------------------------------------------------------------

struct notice_list {
  vmm_pool* pool = nullptr;
  void* freed = nullptr;
  std::vector<vmm_remap_notice> notices;
  std::vector<vmm_status> answers;
};

void note(void* context, const vmm_remap_notice* notice) {
  static_cast<notice_list*>(context)->notices.push_back(*notice);
}

TEST_F(Use, SubscribersAreToldOfChanges) {
  notice_list seen;
  std::uint64_t number = 0;
  std::uint64_t before = 0;
  std::uint64_t after = 0;
  ASSERT_GOOD(vmm_pool_subscribe(pool, &note, &seen, &number));
  void* const block = take(4 * MiB);
  EXPECT_GOOD(vmm_pool_free(pool, block, nullptr));
  EXPECT_GOOD(vmm_pool_remap_epoch(pool, &before));
  EXPECT_GOOD(vmm_pool_trim(pool, 0, nullptr));
  EXPECT_GOOD(vmm_pool_remap_epoch(pool, &after));
  EXPECT_GT(after, before);
  ASSERT_FALSE(seen.notices.empty());
  EXPECT_EQ(seen.notices[0].kind, std::uint32_t{VMM_REMAP_RELEASED});
  EXPECT_EQ(seen.notices[0].struct_size, sizeof(vmm_remap_notice));
  EXPECT_GE(seen.notices[0].size_bytes, 4 * MiB);
  EXPECT_GOOD(vmm_pool_unsubscribe(pool, number));
  EXPECT_FAILS(vmm_pool_unsubscribe(pool, number), VMM_ERROR_INVALID_ARGUMENT);
  seen.notices.clear();
  EXPECT_GOOD(vmm_pool_free(pool, take(4 * MiB), nullptr));
  EXPECT_GOOD(vmm_pool_trim(pool, 0, nullptr));
  EXPECT_TRUE(seen.notices.empty());
}

// Every call on the pool, from inside its callback.
void misbehave(void* context, const vmm_remap_notice*) {
  auto& seen = *static_cast<notice_list*>(context);
  if (!seen.answers.empty()) return;
  for (const call_with_handle& each : c_test::pool_calls) {
    seen.answers.push_back(each.make(seen.pool));
    const std::string name = each.name;
    static const std::set<std::string> allowed{
        "vmm_pool_free",  "vmm_pool_free_sized",     "vmm_pool_free_unordered", "vmm_pool_pin",
        "vmm_pool_unpin", "vmm_pool_capture_number", "vmm_pool_get_statistics", "vmm_pool_regions",
        "vmm_pool_dump",  "vmm_pool_last_shortage",  "vmm_pool_remap_epoch"};
    EXPECT_EQ(seen.answers.back() == VMM_ERROR_NOT_PERMITTED, allowed.count(name) == 0) << name;
  }
  EXPECT_EQ(vmm_pool_destroy(seen.pool), VMM_ERROR_IN_USE);
  EXPECT_EQ(vmm_pool_free(seen.pool, seen.freed, nullptr), VMM_SUCCESS);
}

TEST_F(Use, ACallbackIsKeptInItsBounds) {
  notice_list seen;
  seen.pool = pool;
  seen.freed = take(4096);
  std::uint64_t number = 0;
  ASSERT_GOOD(vmm_pool_subscribe(pool, &misbehave, &seen, &number));
  EXPECT_GOOD(vmm_pool_free(pool, take(64 * MiB), nullptr));
  EXPECT_GOOD(vmm_pool_trim(pool, 0, nullptr));
  EXPECT_EQ(seen.answers.size(), c_test::pool_calls.size());
  EXPECT_GOOD(vmm_pool_unsubscribe(pool, number));
  EXPECT_GOOD(vmm_pool_free(pool, take(4096), nullptr));  // outside again
}

void use_while_it_goes(void* context, const vmm_remap_notice*) {
  auto& seen = *static_cast<notice_list*>(context);
  seen.answers.push_back(vmm_pool_free(seen.pool, seen.freed, nullptr));
}

TEST_F(Use, ACallbackOfAPoolThatGoesFindsNoPool) {
  notice_list seen;
  ASSERT_GOOD(vmm_pool_create(driver, nullptr, &seen.pool));
  ASSERT_GOOD(vmm_pool_allocate(seen.pool, 4096, nullptr, &seen.freed));
  EXPECT_GOOD(vmm_pool_free(seen.pool, seen.freed, nullptr));
  std::uint64_t number = 0;
  ASSERT_GOOD(vmm_pool_subscribe(seen.pool, &use_while_it_goes, &seen, &number));
  EXPECT_GOOD(vmm_pool_destroy(seen.pool));
  for (const vmm_status answered : seen.answers) EXPECT_EQ(answered, VMM_ERROR_INVALID_HANDLE);
}

// ---- managers ----------------------------------------------------------------------------------

TEST_F(UseOfTheHost, ABlockGrowsWithItsContents) {
  auto request = sized<vmm_block_request>(2 * MiB);
  request.growth_bytes = 8 * MiB;
  void* at = nullptr;
  ASSERT_GOOD(vmm_manager_allocate(manager, &request, &at));
  void* const behind = build(2 * MiB);  // behind the addresses that are kept for growth
  EXPECT_GOOD(vmm_manager_synchronize(manager, at));
  std::memset(at, 0x5A, 2 * MiB);
  auto resize = sized<vmm_resize_request>(6 * MiB);
  resize.at = at;
  resize.in_place = 1;
  void* grown = nullptr;
  EXPECT_GOOD(vmm_manager_resize(manager, &resize, &grown));
  EXPECT_EQ(grown, at);
  resize.size_bytes = 64 * MiB;
  EXPECT_FAILS(vmm_manager_resize(manager, &resize, &grown), VMM_ERROR_OUT_OF_ADDRESSES);
  EXPECT_EQ(grown, at);
  resize.in_place = 0;
  EXPECT_GOOD(vmm_manager_resize(manager, &resize, &grown));
  EXPECT_EQ(static_cast<unsigned char*>(grown)[2 * MiB - 1], 0x5A);
  auto info = sized<vmm_block_info>();
  EXPECT_GOOD(vmm_manager_find(manager, static_cast<unsigned char*>(grown) + 5, &info));
  EXPECT_EQ(info.user_bytes, 64 * MiB);
  EXPECT_GE(info.handle_count, 2u);
  EXPECT_GOOD(vmm_manager_free_idle(manager, behind));
  EXPECT_GOOD(vmm_manager_free(manager, grown));
}

TEST_F(UseOfTheHost, CopiesInEveryMode) {
  for (const std::uint32_t mode : {VMM_COPY_BYTES, VMM_COPY_ALIAS, VMM_COPY_MOVE}) {
    void* const source = build(4 * MiB);
    void* const target = build(4 * MiB);
    EXPECT_GOOD(vmm_manager_synchronize(manager, source));
    std::memset(source, 7, 4 * MiB);
    auto copy = sized<vmm_copy_request>(4 * MiB);
    copy.target = target;
    copy.source = source;
    copy.mode = mode;
    EXPECT_GOOD(vmm_manager_copy(manager, &copy));
    EXPECT_EQ(static_cast<unsigned char*>(target)[4 * MiB - 1], 7);
    EXPECT_GOOD(vmm_manager_free(manager, source));
    EXPECT_EQ(static_cast<unsigned char*>(target)[0], 7);
    EXPECT_GOOD(vmm_manager_free(manager, target));
  }
  const auto now = queried(vmm_manager_get_statistics, manager);
  EXPECT_EQ(now.real_copy_count, 1u);
  EXPECT_EQ(now.remapped_copy_count, 2u);
}

TEST_F(UseOfTheHost, ExtentsTellWhatIsWhere) {
  void* const block = build(4 * MiB);
  std::uint64_t count = 0;
  EXPECT_GOOD(vmm_manager_extents(manager, nullptr, 0, &count));
  std::vector<vmm_extent> extents(count);
  EXPECT_GOOD(vmm_manager_extents(manager, extents.data(), extents.size(), &count));
  ASSERT_EQ(count, 1u);
  EXPECT_EQ(extents[0].base, block);
  EXPECT_EQ(extents[0].mapped_bytes, 4 * MiB);
  EXPECT_EQ(extents[0].kind, std::uint32_t{VMM_EXTENT_LIVE});
  EXPECT_GOOD(vmm_manager_free(manager, block));
  auto report = sized<vmm_trim_report>();
  EXPECT_GOOD(vmm_manager_trim(manager, 0, &report));
  EXPECT_EQ(report.released_bytes, 4 * MiB);
}

TEST_F(UseOfTheHost, BytesGoThroughTheDriver) {
  const std::string text = "what is written is read";
  void* const block = take(text.size());
  EXPECT_GOOD(vmm_driver_write(driver, block, text.data(), text.size()));
  std::string back(text.size(), '\0');
  EXPECT_GOOD(vmm_driver_read(driver, back.data(), block, back.size()));
  EXPECT_EQ(back, text);
  EXPECT_GOOD(vmm_driver_fill(driver, block, 'x', text.size(), nullptr));
  EXPECT_GOOD(vmm_driver_synchronize_stream(driver, nullptr));
  EXPECT_EQ(std::string(static_cast<char*>(block), text.size()), std::string(text.size(), 'x'));
  EXPECT_GOOD(vmm_pool_free(pool, block, nullptr));
}

// ---- allocators that are kept ------------------------------------------------------------------

struct KeptAllocator : testing::Test {
  void SetUp() override {
    made = c_test::make_allocator("fake");
    calls.struct_size = sizeof(calls);
    ASSERT_GOOD(vmm_allocator_keep(made, &calls));
  }
  [[nodiscard]] std::int64_t allocated_bytes() const {
    return c_test::numbers(made).allocated_bytes[VMM_LEVEL_ALL].current;
  }

  vmm_allocator* made = nullptr;  // for the life of the process
  vmm_allocator_calls calls{};
};

TEST_F(KeptAllocator, ItsFunctionsDoWhatTheCallsDo) {
  void* at = nullptr;
  ASSERT_GOOD(calls.allocate(calls.self, 1000, 0, nullptr, &at));
  EXPECT_EQ(allocated_bytes(), 1024);
  EXPECT_GOOD(vmm_allocator_free(made, at));
  EXPECT_FAILS(calls.free(calls.self, at), VMM_ERROR_UNKNOWN_ADDRESS);
  ASSERT_GOOD(vmm_allocator_allocate(made, 1000, 0, nullptr, &at));
  EXPECT_GOOD(calls.free(calls.self, at));
  EXPECT_EQ(allocated_bytes(), 0);
  at = &at;
  EXPECT_FAILS(calls.allocate(calls.self, 0, 0, nullptr, &at), VMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(at, nullptr);
  EXPECT_FAILS(calls.allocate(calls.self, 1, 64, nullptr, &at), VMM_ERROR_INVALID_ARGUMENT);
}

TEST_F(KeptAllocator, IsNotDestroyed) {
  EXPECT_FAILS(vmm_allocator_destroy(made), VMM_ERROR_IN_USE);
  EXPECT_TRUE(says("vmm_allocator_keep()"));
  EXPECT_FAILS(vmm_allocator_keep(made, nullptr), VMM_ERROR_INVALID_ARGUMENT);
  vmm_allocator_calls again{};
  EXPECT_FAILS(vmm_allocator_keep(made, &again), VMM_ERROR_INVALID_ARGUMENT);  // no size
  again.struct_size = sizeof(again);
  EXPECT_GOOD(vmm_allocator_keep(made, &again));
  EXPECT_EQ(again.self, calls.self);
}

TEST_F(KeptAllocator, IsLeftAloneByAForkedChild) {
  void* block = nullptr;
  ASSERT_GOOD(calls.allocate(calls.self, 1000, 0, nullptr, &block));
  const int code = code_of_child([&] {
    void* at = block;
    if (calls.allocate(calls.self, 1000, 0, nullptr, &at) != VMM_ERROR_NOT_PERMITTED) return 1;
    if (at != nullptr) return 2;
    return calls.free(calls.self, block) == VMM_ERROR_NOT_PERMITTED ? 0 : 3;
  });
  EXPECT_EQ(code, 0);
  EXPECT_GOOD(calls.free(calls.self, block));
}

// ---- forks -------------------------------------------------------------------------------------

// In the child a call is refused, has nothing to do, or returns zeros.
int child_of(vmm_driver* driver, vmm_pool* pool, vmm_manager* manager, void* block,
             const std::array<std::function<vmm_status()>, 5>& ends) {
  const auto is_refused = [](vmm_status answered) { return answered == VMM_ERROR_NOT_PERMITTED; };
  void* at = nullptr;
  if (!is_refused(vmm_pool_allocate(pool, 4096, nullptr, &at))) return 1;
  if (!is_refused(vmm_pool_free(pool, block, nullptr))) return 2;
  vmm_pool* other = nullptr;
  if (!is_refused(vmm_pool_create(driver, nullptr, &other))) return 3;
  vmm_manager* another = nullptr;
  if (!is_refused(vmm_manager_create(driver, nullptr, &another))) return 4;
  std::uint64_t number = 0;
  if (!is_refused(vmm_pool_subscribe(pool, &note, nullptr, &number))) return 5;
  if (!is_refused(vmm_pool_unsubscribe(pool, 1))) return 6;
  if (!is_refused(vmm_manager_forget_stream(manager, nullptr))) return 7;
  if (!is_refused(vmm_manager_validate(manager)) || !is_refused(vmm_pool_validate(pool))) return 18;
  for (const call_with_handle& each : c_test::pool_calls) (void)each.make(pool);
  for (const call_with_handle& each : c_test::manager_calls) (void)each.make(manager);
  for (const call_with_handle& each : c_test::driver_calls) (void)each.make(driver);
  for (const auto& end : ends) {
    if (end() != VMM_SUCCESS) return 8;
    if (end() != VMM_ERROR_INVALID_HANDLE) return 9;
  }
  if (vmm_driver_open("fake", VMM_ANY_DEVICE, &driver) != VMM_SUCCESS) return 12;
  if (vmm_pool_create(driver, nullptr, &pool) != VMM_SUCCESS) return 13;
  if (vmm_pool_allocate(pool, 4096, nullptr, &at) != VMM_SUCCESS) return 14;
  if (vmm_pool_free(pool, at, nullptr) != VMM_SUCCESS) return 15;
  if (vmm_pool_destroy(pool) != VMM_SUCCESS) return 16;
  return vmm_driver_close(driver) == VMM_SUCCESS ? 0 : 17;
}

TEST_F(UseOfTheHost, AForkedChildLeavesItsParentAlone) {
  void* const block = take(4096);
  std::memset(block, 3, 4096);
  auto options = sized<vmm_growable_options>();
  EXPECT_GOOD(vmm_growable_options_init(&options, sizeof options));
  options.segment_bytes_max = 1 << 22;
  vmm_growable* range = nullptr;
  ASSERT_GOOD(vmm_growable_create(manager, &options, &range));
  vmm_suspender* suspender = nullptr;
  ASSERT_GOOD(vmm_suspender_create(nullptr, &suspender));
  ASSERT_GOOD(vmm_suspender_add_pool(suspender, pool, "region", 0));
  std::array<std::function<vmm_status()>, 5> ends{
      [&] { return vmm_driver_close(driver); }, [&] { return vmm_manager_destroy(manager); },
      [&] { return vmm_growable_destroy(range, nullptr); }, [&] { return vmm_pool_destroy(pool); },
      [&] { return vmm_suspender_destroy(suspender); }};
  for (const bool owners_first : {true, false}) {
    const int code = code_of_child([&] {
      if (vmm_growable_validate(range) != VMM_ERROR_NOT_PERMITTED) return 19;
      return child_of(driver, pool, manager, block, ends);
    });
    EXPECT_EQ(code, 0) << owners_first;
    std::reverse(ends.begin(), ends.end());
  }
  EXPECT_GOOD(vmm_suspender_destroy(suspender));
  EXPECT_GOOD(vmm_growable_destroy(range, nullptr));
  EXPECT_EQ(static_cast<unsigned char*>(block)[4095], 3);
  EXPECT_GOOD(vmm_pool_free(pool, block, nullptr));
}

}  // namespace

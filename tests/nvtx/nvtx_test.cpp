// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a memory checker that listens to NVTX can decide for each byte of the pool whether a kernel
// may use it: the requested bytes, and none between blocks. Method: a tool of our own listens, and
// is queried for single bytes; it also counts declarations that break NVTX's rules.
#include "../support/loaded_library.hpp"
#include "../support/test.h"

import vmm.fake;
import vmm.observe;
import vmm.stream;

namespace {

using vmm::address;

// NVTX looks for the tool once, at its first call.
class listener : loaded_library {
 public:
  listener() : loaded_library(VMM_NVTX_LISTENER) {
    setenv("NVTX_INJECTION64_PATH", VMM_NVTX_LISTENER, 1);
  }
  [[nodiscard]] bool allows(address at) const {
    return find<bool(std::uint64_t)>("listener_allows")(at.value);
  }
  [[nodiscard]] unsigned named(const char* name) const {
    return find<unsigned(const char*)>("listener_named")(name);
  }
  [[nodiscard]] std::int64_t sample(const char* counter) const {
    return find<std::int64_t(const char*)>("listener_sample")(counter);
  }
  [[nodiscard]] int depth() const { return find<int()>("listener_depth")(); }
  [[nodiscard]] unsigned count(const char* what) const { return find<unsigned()>(what)(); }
};

const listener& tool() {
  static const listener only;
  return only;
}

struct Nvtx : testing::Test {
  using pool = vmm::stream_pool;
  void SetUp() override {
    (void)tool();  // before NVTX looks for one
    stream = *driver.create_stream();
    auto opened = *vmm::nvtx_declarer::open();
    declarer = std::move(opened);
    vmm::pool_options options;
    options.observer = declarer.get();
    options.policy.handle_bytes_max = 2 * MiB;
    options.policy.headroom = 0;
    options.policy.tuning.slack_bytes = 0;
    options.policy.tuning.min_move_share = 0;
    managed = std::make_unique<pool>(driver, options);
  }
  void TearDown() override {
    managed.reset();
    EXPECT_EQ(tool().count("listener_heaps"), 0u);
    EXPECT_EQ(tool().count("listener_regions"), 0u);
    EXPECT_EQ(tool().count("listener_broken_rules"), 0u);
    ASSERT_TRUE(driver.destroy_stream(stream));
    EXPECT_TRUE(driver.check_empty()) << driver.report();
  }
  [[nodiscard]] address allocate(std::uint64_t size_bytes) {
    const auto at = managed->allocate(size_bytes, stream);
    EXPECT_TRUE(at);
    return at.value_or(address{});
  }
  void free(address at) { EXPECT_TRUE(managed->free(at, stream)); }

  vmm::fake_driver driver;
  vmm::stream_handle stream{};
  std::unique_ptr<vmm::nvtx_declarer> declarer;
  std::unique_ptr<pool> managed;
};

TEST_F(Nvtx, OneByteBetweenTwoBlocksIsSeen) {
  const address first = allocate(1000);
  const address second = allocate(1000);
  ASSERT_EQ(second - first, 1024u);
  EXPECT_EQ(declarer->heap_count(), 1u);
  for (const address block : {first, second}) {
    EXPECT_TRUE(tool().allows(block));
    EXPECT_TRUE(tool().allows(block + 999));
    EXPECT_FALSE(tool().allows(block + 1000)) << "one byte over the end";
  }
  free(first);
  EXPECT_FALSE(tool().allows(first)) << "freed";
  EXPECT_TRUE(tool().allows(second));
  const address again = allocate(100);
  EXPECT_EQ(again, first);
  EXPECT_TRUE(tool().allows(again + 99));
  EXPECT_FALSE(tool().allows(again + 100));
  free(again);
  free(second);
}

TEST_F(Nvtx, ABlockMayLieInManyMappings) {
  const address block = allocate(9 * MiB + 5);
  EXPECT_EQ(managed->statistics().mapped_bytes, 10 * MiB);
  EXPECT_EQ(declarer->heap_count(), 1u) << "a heap is a reservation";
  EXPECT_EQ(declarer->region_count(), 1u);
  for (std::uint64_t at = 0; at < 9 * MiB + 5; at += 4096) EXPECT_TRUE(tool().allows(block + at));
  EXPECT_TRUE(tool().allows(block + (9 * MiB + 4)));
  EXPECT_FALSE(tool().allows(block + (9 * MiB + 5)));
  free(block);
  EXPECT_EQ(declarer->region_count(), 0u);
}

TEST_F(Nvtx, MemoryThatMovesIsDeclaredWhereItGoes) {
  const address first = allocate(4 * MiB);
  const address wall = allocate(2 * MiB);
  free(first);
  const address whole = allocate(8 * MiB);
  for (std::uint64_t at = 0; at < 8 * MiB; at += MiB) EXPECT_TRUE(tool().allows(whole + at));
  (void)managed->trim(0);
  free(whole);
  free(wall);
}

TEST_F(Nvtx, NoByteBehindTheBlocksIsAllowedWhateverIsMapped) {
  const address block = allocate(4 * MiB + 5);
  free(block);
  EXPECT_FALSE(tool().allows(block)) << "mapped, but free";
  ASSERT_TRUE(managed->synchronize());
  EXPECT_GT(managed->trim(0).released_bytes, 0u);
  for (std::uint64_t at = 0; at < 64 * MiB; at += MiB)
    EXPECT_FALSE(tool().allows(block + at)) << "an address with nothing behind it";
}

TEST_F(Nvtx, AFailedCallDeclaresNothing) {
  const address block = allocate(4096);
  EXPECT_FALSE(managed->free(block + 512, stream));
  EXPECT_FALSE(managed->allocate(std::uint64_t{1} << 60, stream));
  EXPECT_TRUE(tool().allows(block));
  EXPECT_EQ(declarer->region_count(), 1u);
  free(block);
}

TEST_F(Nvtx, APinnedBlockStaysDeclaredWhenItIsFreed) {
  const address block = allocate(4096);
  ASSERT_TRUE(managed->pin(block));
  free(block);
  EXPECT_TRUE(tool().allows(block)) << "the pin's owner still uses it";
  ASSERT_TRUE(managed->unpin(block));
  EXPECT_EQ(allocate(100), block);
  EXPECT_FALSE(tool().allows(block + 200));
  free(block);
}

TEST_F(Nvtx, EachByteIsAllowedJustWhileItIsLive) {
  std::mt19937_64 random(7);
  struct live_block {
    address at;
    std::uint64_t size_bytes;
  };
  std::vector<live_block> live;
  for (int i = 0; i < 1000; ++i) {
    if (live.size() < 20 || random() % 2 == 0) {
      const std::uint64_t size = 1 + random() % (i % 10 == 0 ? 6 * MiB : 5000);
      live.push_back({allocate(size), size});
    } else {
      const std::size_t index = random() % live.size();
      free(live[index].at);
      live[index] = live.back();
      live.pop_back();
    }
    const live_block& some = live[random() % live.size()];
    EXPECT_TRUE(tool().allows(some.at));
    EXPECT_TRUE(tool().allows(some.at + (some.size_bytes - 1)));
    if (some.size_bytes % 512 != 0) EXPECT_FALSE(tool().allows(some.at + some.size_bytes));
    if (i % 100 == 0) (void)managed->trim(0);
  }
  for (const live_block& each : live) free(each.at);
}

// Ranges nest, one for each growth and wait; counters are the pool's own sums.
TEST(NvtxRanges, AToolSeesGrowthsShortagesAndBytes) {
  (void)tool();
  vmm::fake_driver driver;
  {
    auto opened = *vmm::nvtx_ranges::open();
    vmm::pool_options options;
    options.budget_bytes = 64 * MiB;
    vmm::stream_pool pool(driver, options);
    vmm::history_options how;
    how.listener = opened.get();
    ASSERT_TRUE(pool.history().start(how));
    constexpr auto stream = vmm::stream_handle::default_stream;
    const auto first = pool.allocate(3 * MiB, stream);
    const auto second = pool.allocate(1000, stream);
    ASSERT_TRUE(first && second);
    EXPECT_GE(tool().named("vmm: grow"), 1u);
    EXPECT_EQ(tool().depth(), 0);
    const auto shown = [&](const char* counter) {
      return vmm::nvtx_ranges::has_counters() ? tool().sample(counter) : -1;
    };
    const auto is = [&](std::uint64_t bytes) {
      return vmm::nvtx_ranges::has_counters() ? static_cast<std::int64_t>(bytes) : -1;
    };
    EXPECT_EQ(shown("live bytes"), is(pool.statistics().live_bytes));
    EXPECT_EQ(shown("held bytes"), is(pool.statistics().mapped_bytes));
    EXPECT_FALSE(pool.allocate(100 * MiB, stream));
    EXPECT_EQ(tool().named("vmm: short of memory"), 1u);
    pool.history().record({vmm::history_kind::suspended, {*first, 3 * MiB}});
    EXPECT_EQ(tool().named("vmm: suspended"), 1u);
    ASSERT_TRUE(pool.free(*first, stream));
    ASSERT_TRUE(pool.free(*second, stream));
    EXPECT_EQ(shown("live bytes"), is(0));
    ASSERT_TRUE(pool.synchronize());
    EXPECT_EQ(tool().depth(), 0);
    ASSERT_TRUE(pool.history().stop());
  }
  EXPECT_EQ(tool().count("listener_broken_rules"), 0u);
}

}  // namespace

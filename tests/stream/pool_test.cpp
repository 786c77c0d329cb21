// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: the pool hands out memory in the order of G2, moves it by G3, merges by G4 and says what it
// has by G8; nothing is used while unfinished work may touch it. Method: on the fake driver;
// kernels are left running, driver calls are counted, and after every test the driver's resource
// counts and its list of misuses are empty and the pool's validator passes.
#include <sstream>

#include "fake_pool.hpp"

namespace {

using vmm::address, vmm::address_range, vmm::call, vmm::errc, vmm::pool_options, vmm::pool_policy,
    vmm::stream_handle;

struct Pool : FakePool {
  [[nodiscard]] std::uint64_t events() {
    return driver.calls(call::create_event) + driver.calls(call::record_event) +
           driver.calls(call::query_event) + driver.calls(call::wait_event);
  }
  // The dump says what statistics() and regions() do, a line each.
  void check_dump(const vmm::pool_statistics& now, const std::vector<vmm::pool_region>& regions) {
    constexpr std::array kinds{"live", "free", "hole", "stale", "busy"};
    const auto dumped = *managed->dump();
    std::istringstream text{dumped};
    std::map<std::string, std::uint64_t> numbers;
    std::string name;
    for (std::uint64_t value = 0; numbers.size() < 7 && text >> name >> value;)
      numbers[name] = value;
    const std::map<std::string, std::uint64_t> expected{
        {"mapped", now.mapped_bytes},     {"reserved", now.reserved_bytes},
        {"live", now.live_bytes},         {"reusable", now.reusable_bytes},
        {"captured", now.captured_bytes}, {"holes", now.hole_bytes},
        {"stale", now.stale_bytes}};
    EXPECT_EQ(numbers, expected);
    for (const vmm::pool_region& each : regions) {
      std::string base;
      std::uint64_t number = 0;
      text >> base >> number >> name;
      EXPECT_EQ(std::stoull(base, nullptr, 16), each.range.base.value);
      EXPECT_EQ(number, each.range.size_bytes);
      EXPECT_EQ(name, kinds[static_cast<std::size_t>(each.kind)]);
      if (each.kind != vmm::pool_region_kind::free) continue;
      text >> name >> std::hex >> number >> std::dec;
      EXPECT_EQ(name, "stream");
      EXPECT_EQ(number, static_cast<std::uint64_t>(each.stream));
    }
    EXPECT_FALSE(text >> name) << "more lines than regions: " << name;
  }
  [[nodiscard]] static pool_options with_slack() {
    pool_options options;
    options.policy.tuning.slack_bytes = 256 * MiB;
    return options;
  }
  // What one stream has finished is seen beside the work of others.
  [[nodiscard]] static pool_options with_events_of_each() {
    pool_options options = moving();
    options.streams_forgotten = true;
    return options;
  }
};

TEST_F(Pool, OneStreamReusesWithoutADriverCall) {
  free(allocate(40 * MiB, a), a);
  const std::uint64_t before = driver.calls();
  for (int i = 0; i < 100; ++i) {
    const address small = allocate(10 * KiB, a);
    const address large = allocate(30 * MiB, a);
    run(a, {large, 30 * MiB}, 10);
    free(small, a);
    free(large, a);
  }
  EXPECT_EQ(driver.calls(), before);
}

TEST_F(Pool, SmallRequestsTakeTheBestFitAndLargeOnesTheLowest) {
  const address low = allocate(64 * MiB, a);
  allocate(512, a);
  const address high = allocate(20 * MiB, a);
  allocate(512, a);
  free(low, a);
  free(high, a);
  const address small = allocate(8 * MiB, a);
  EXPECT_EQ(small, high);
  free(small, a);
  EXPECT_EQ(allocate(20 * MiB, a), low);
}

// Two streams' free memory side by side, all of whose work has finished, is one place: a large
// request looks for it there, and a small one before the pool grows.
TEST_F(Pool, WhatTwoStreamsHaveFinishedWithMakesOnePlace) {
  for (const std::uint64_t part_bytes : {32 * MiB, 4 * MiB}) {
    SCOPED_TRACE(part_bytes);
    open();
    const address both = allocate(2 * part_bytes, a);
    free(both, a);
    const address left = allocate(part_bytes, a);
    const address right = allocate(part_bytes, a);
    ASSERT_EQ(left, both);
    ASSERT_EQ(right, both + part_bytes);
    run(b, {right, part_bytes});
    ASSERT_TRUE(driver.finish_all());
    free(left, a);
    free(right, b);
    const std::uint64_t maps = driver.calls(call::map);
    EXPECT_EQ(allocate(2 * part_bytes, a), both);
    run(a, {both, 2 * part_bytes});
    EXPECT_EQ(driver.calls(call::map), maps) << "the pool has grown";
    EXPECT_EQ(driver.calls(call::wait_event), 0u);
    EXPECT_EQ(managed->statistics().other_stream_count, 1u);
  }
}

TEST_F(Pool, WhatAnotherStreamStillUsesIsNotGathered) {
  open(with_slack());
  const address both = allocate(64 * MiB, a);
  free(both, a);
  const address left = allocate(32 * MiB, a);
  const address right = allocate(32 * MiB, a);
  ASSERT_EQ(right, left + 32 * MiB);
  run(b, {right, 32 * MiB}, 1e6);
  free(left, a);
  free(right, b);
  const address other = allocate(64 * MiB, a);
  EXPECT_FALSE((address_range{other, 64 * MiB}.contains(right)));
  run(a, {other, 64 * MiB});  // a hazard if it were
  EXPECT_EQ(driver.calls(call::wait_event), 0u);
}

// Large requests take the lowest address of all that is finished with, whosever it was: not the
// smallest place of one stream after the other.
TEST_F(Pool, ALargeRequestTakesTheLowestAddressOfAll) {
  const address low = allocate(64 * MiB, a);
  allocate(1 * MiB, a);
  const address high = allocate(32 * MiB, a);
  ASSERT_LT(low, high);
  free(low, a);
  free(high, a);
  EXPECT_EQ(allocate(32 * MiB, b), low);
}

TEST_F(Pool, AnotherStreamWaitsOnTheDeviceWhereMemoryIsShort) {
  open(moving());
  const address at = allocate(64 * MiB, a);
  run_and_free(a, {at, 64 * MiB}, 1e6);
  const std::uint64_t before_ns = driver.now_ns();
  EXPECT_EQ(allocate(64 * MiB, b), at);
  EXPECT_LT(driver.now_ns() - before_ns, 1'000'000u) << "the host did not wait";
  EXPECT_EQ(driver.calls(call::wait_event), 1u);
  run_and_free(b, {at, 64 * MiB});
}

TEST_F(Pool, WithHeadroomAnotherStreamGrowsInstead) {
  open(with_slack());
  const address at = allocate(64 * MiB, a);
  run_and_free(a, {at, 64 * MiB}, 1e6);
  EXPECT_NE(allocate(64 * MiB, b), at);
  EXPECT_EQ(driver.calls(call::wait_event), 0u);
}

TEST_F(Pool, MovesWholeHandlesInsteadOfCreating) {
  open(moving());
  const address first = allocate(4 * MiB, a);
  const address wall = allocate(2 * MiB, a);
  const address second = allocate(4 * MiB, a);
  allocate(2 * MiB, a);
  ASSERT_TRUE(driver.write_tag({wall, 2 * MiB}, 7));
  free(first, a);
  free(second, a);
  const std::uint64_t created = driver.calls(call::create);
  const address whole = allocate(8 * MiB, a);
  EXPECT_EQ(driver.calls(call::create), created);
  EXPECT_EQ(whole, second) << "it grows where free memory ends a window";
  EXPECT_EQ(managed->statistics().moved_count, 2u);
  EXPECT_EQ(managed->statistics().stale_bytes, 4 * MiB);
  run(a, {whole, 8 * MiB});
  EXPECT_EQ(*driver.read_tag(wall), 7u) << "live blocks do not move";
}

// A hundred handles of 8 MiB lie free between live ones. A request that none of them takes moves
// memory where it is as large as min_move_bytes, or its share of the peak (25 MiB), and has some
// made where it is neither.
TEST_F(Pool, SmallRequestsMoveNothing) {
  constexpr std::size_t count = 200;
  for (const auto& [min_move_bytes, enough] :
       {std::pair{16 * MiB, 16 * MiB}, std::pair{64 * MiB, 25 * MiB}}) {
    pool_options options = moving();
    options.policy.handle_bytes_max = 8 * MiB;
    options.policy.tuning.min_move_share = 64;
    options.policy.tuning.min_move_bytes = min_move_bytes;
    open(options);
    const std::vector<address> blocks = allocate_each(count, 8 * MiB, a);
    for (std::size_t i = 0; i < count; i += 2) free(blocks[i], a);
    ASSERT_EQ(managed->statistics().peak_live_bytes / 64, 25 * MiB);
    const auto before = managed->statistics();
    allocate(enough - 512, a);
    const auto made = managed->statistics();
    EXPECT_GT(made.created_count, before.created_count);
    EXPECT_EQ(made.moved_count, before.moved_count);
    allocate(enough, a);
    EXPECT_EQ(managed->statistics().created_count, made.created_count);
    EXPECT_GT(managed->statistics().moved_count, made.moved_count);
  }
}

// Blocks whose sizes change move memory in nearly each step. Above the budget the pool takes more
// memory instead, and moves less.
TEST_F(Pool, MovesBeyondTheirBudgetBecomeRare) {
  std::uint64_t most = 0;  // without a budget
  for (const std::uint64_t budget_ns : {0u, 50u}) {
    SCOPED_TRACE(budget_ns);
    pool_options options;
    options.policy.handle_bytes_max = 8 * MiB;
    options.policy.headroom = 1;
    options.policy.tuning.slack_bytes = 0;
    options.policy.tuning.move_budget_ns = budget_ns;
    open(options);
    std::mt19937 random(3);
    std::array<address, 6> blocks{};
    const auto moves_in = [&](std::size_t steps) {
      const std::uint64_t before = managed->statistics().moved_count;
      for (std::size_t i = 0; i < steps; ++i) {
        address& next = blocks[i % blocks.size()];
        if (next) free(next, a);
        next = allocate((64 + random() % 8) * MiB, a);
      }
      return managed->statistics().moved_count - before;
    };
    EXPECT_GT(moves_in(300), 300u);
    (void)moves_in(3000);
    const std::uint64_t last = moves_in(300);
    if (budget_ns == 0) most = last;
    if (budget_ns != 0) EXPECT_LT(last * 4, most);
    const auto now = managed->statistics();
    EXPECT_LT(now.peak_mapped_bytes, now.peak_live_bytes + now.peak_live_bytes / 4 + 8 * MiB);
  }
}

TEST_F(Pool, MovesWhatAnotherStreamStillUsesBehindAWait) {
  open(moving());
  const address first = allocate(4 * MiB, a);
  allocate(2 * MiB, a);
  const address second = allocate(4 * MiB, a);
  run(a, {first, 4 * MiB}, 500);
  run(a, {second, 4 * MiB}, 500);
  free(first, a);
  free(second, a);
  const address whole = allocate(8 * MiB, b);
  EXPECT_GE(driver.calls(call::wait_event), 1u);
  EXPECT_EQ(driver.resource_counts().memory_bytes, 10 * MiB);
  run(b, {whole, 8 * MiB});  // a hazard if b does not wait: the fake looks at the memory
}

TEST_F(Pool, StaleMappingsGoWhenTheirWorkHasFinished) {
  open({}, &pool_options::policy, pool_policy::vpmm());
  const address first = allocate(4 * MiB, a);
  allocate(2 * MiB, a);
  run_and_free(a, {first, 4 * MiB}, 1e6);
  allocate(6 * MiB, a);
  EXPECT_EQ(managed->statistics().stale_bytes, 4 * MiB);
  allocate(512, a);
  EXPECT_EQ(managed->statistics().stale_bytes, 4 * MiB) << "the kernel still writes there";
  ASSERT_TRUE(driver.finish_all());
  allocate(512, a);
  EXPECT_EQ(managed->statistics().stale_bytes, 0u);
}

TEST_F(Pool, AStaleMappingThatWaitsHoldsNoOthersBack) {
  open(with_events_of_each());
  for (const stream_handle stream : {a, b}) {
    const address first = allocate(2 * MiB, stream);
    allocate(2 * MiB, stream);
    const address second = allocate(2 * MiB, stream);
    allocate(2 * MiB, stream);
    if (stream == a) run(a, {first, 2 * MiB}, 1e6);
    free(first, stream);
    free(second, stream);
    allocate(4 * MiB, stream);
  }
  ASSERT_EQ(managed->statistics().stale_count, 2u);
  (void)managed->trim(0);
  EXPECT_EQ(managed->statistics().stale_count, 1u) << "the work on a runs, that on b is done";
}

TEST_F(Pool, StaleMappingsStayWithinThePolicysCount) {
  pool_options options = moving();
  options.policy.tuning.stale_count_max = 3;
  open(options);
  for (int i = 0; i < 20; ++i) {
    const address first = allocate(2 * MiB, a);
    allocate(2 * MiB, a);
    const address second = allocate(2 * MiB, a);
    allocate(2 * MiB, a);
    free(first, a);
    free(second, a);
    allocate(4 * MiB, a);
    ASSERT_TRUE(driver.finish_all());
    EXPECT_LE(managed->statistics().stale_count, 3u + 1u) << "the one of this round, and three";
  }
  EXPECT_EQ(managed->statistics().moved_count, 20u);
}

TEST_F(Pool, TrimFindsTheIdleAmongTheBusy) {
  open(with_events_of_each());
  const std::vector<address> busy = allocate_each(100, 2 * MiB, b);
  const std::vector<address> idle = allocate_each(150, 2 * MiB, a);
  for (const address at : busy) run(b, {at, 2 * MiB}, 1e6);
  for (const address at : busy) free(at, b);
  for (const address at : idle) free(at, a);
  EXPECT_EQ(managed->trim(0).released_bytes, 300 * MiB) << "more handles than one look sees";
  ASSERT_TRUE(driver.finish_all());
  EXPECT_EQ(managed->trim(0).released_bytes, 200 * MiB);
}

TEST_F(Pool, StatisticsAddUp) {
  open(moving());
  const address first = allocate(4 * MiB, a);
  allocate(3 * MiB, b);
  free(first, a);
  allocate(30 * MiB, a);
  const vmm::pool_statistics now = managed->statistics();
  EXPECT_EQ(now.live_bytes, 33 * MiB);
  EXPECT_EQ(now.mapped_bytes, driver.resource_counts().memory_bytes);
  EXPECT_EQ(now.mapped_bytes, now.live_bytes + now.reusable_bytes);
  EXPECT_EQ(now.reserved_bytes,
            now.live_bytes + now.reusable_bytes + now.hole_bytes + now.stale_bytes);
  EXPECT_EQ(now.live_count, 2u);
  const auto regions = *managed->regions();
  address next = regions.front().range.base;
  for (const vmm::pool_region& region : regions) {
    EXPECT_EQ(region.range.base, next);
    next = region.range.end();
  }
  check_dump(now, regions);
}

// Granules of 512 bytes; with whole_pages a request of a page or more takes pages.
TEST_F(Pool, ARequestIsRoundedUpAtItsBorders) {
  constexpr std::uint64_t page = 2 * MiB;
  constexpr std::uint64_t longest = 64 * MiB;
  constexpr std::uint64_t most = ~std::uint64_t{0};
  for (const bool whole_pages : {false, true}) {
    pool_options options;
    options.page_bytes = page;
    options.reservation_bytes = longest;
    options.policy.tuning.whole_pages = whole_pages;
    open(options);
    for (const std::uint64_t size :
         {std::uint64_t{1}, std::uint64_t{511}, std::uint64_t{512}, std::uint64_t{513}, page - 512,
          page - 511, page - 1, page, page + 1, longest - page + 1, longest - 1, longest}) {
      const std::uint64_t unit = whole_pages && size >= page ? page : 512;
      const address at = allocate(size, a);
      EXPECT_EQ(managed->statistics().live_bytes, (size + unit - 1) / unit * unit) << size;
      run_and_free(a, {at, size}, 1);
      ASSERT_TRUE(driver.finish_all());
      (void)managed->trim(0);
    }
    EXPECT_EQ(managed->allocate(0, a).error().code, errc::invalid_argument);
    for (const std::uint64_t size : {longest + 1, longest + page})
      EXPECT_EQ(managed->allocate(size, a).error().code, errc::out_of_addresses) << size;
    for (const std::uint64_t size : {most - 511, most - 510, most})
      EXPECT_EQ(managed->allocate(size, a).error().code, errc::out_of_memory) << size;
  }
}

TEST_F(Pool, TrimGivesIdleHandlesBack) {
  const address large = allocate(512 * MiB, a);
  allocate(512, a);
  free(large, a);
  EXPECT_GE(driver.resource_counts().memory_bytes, 512 * MiB);
  const auto some = managed->trim(128 * MiB);
  EXPECT_GE(some.released_bytes, 320 * MiB);
  EXPECT_LE(managed->statistics().reusable_bytes, 128 * MiB);
  validate();
  const auto rest = managed->trim(0);
  EXPECT_EQ(rest.failure.code, errc::none);
  EXPECT_LE(driver.resource_counts().memory_bytes, 64 * MiB)
      << "the handle with the small block stays";
  allocate(512 * MiB, a);
}

TEST_F(Pool, FirstPagesAreMappedAtSetUp) {
  pool_options options;
  options.page_count = 8;
  options.first_stream = a;
  open(options);
  ASSERT_TRUE(managed->set_up());
  EXPECT_EQ(managed->statistics().reusable_bytes, 16 * MiB);
  const std::uint64_t before = driver.calls();
  allocate(16 * MiB, a);
  EXPECT_EQ(driver.calls(), before);
}

// More than the map of regions has a byte for.
TEST_F(Pool, ManyStreamsKeepTheirOwn) {
  std::vector<stream_handle> streams;
  for (int i = 0; i < 300; ++i) streams.push_back(*driver.create_stream());
  std::vector<address> blocks;
  for (const stream_handle stream : streams) {
    blocks.push_back(allocate(1 * MiB, stream));
    run(stream, {blocks.back(), 1 * MiB}, 1e5);
  }
  for (std::size_t i = 0; i < streams.size(); ++i) free(blocks[i], streams[i]);
  const std::uint64_t before = events();
  for (std::size_t i = 0; i < streams.size(); ++i) {
    EXPECT_EQ(allocate(1 * MiB, streams[i]), blocks[i]);
    run(streams[i], {blocks[i], 1 * MiB}, 10);
    free(blocks[i], streams[i]);
  }
  EXPECT_EQ(events(), before);
  close();
  for (const stream_handle stream : streams) EXPECT_TRUE(driver.destroy_stream(stream));
}

// The table of blocks is as full as it gets: some of its buckets overflow into the next ones.
TEST_F(Pool, ManyBlocksAreFoundAndForgotten) {
  constexpr std::size_t live_count = 8190;
  constexpr int rounds = 12'000;
  open();
  std::vector<address> blocks(live_count);
  std::mt19937 random(3);
  const auto take = [&] { return allocate((1 + random() % 3) * 512, a); };
  for (address& block : blocks) block = take();
  validate();
  for (int round = 0; round < rounds; ++round) {
    address& block = blocks[random() % live_count];
    free(block, a);
    EXPECT_EQ(managed->free(block, a).error().code, errc::not_allocated);
    block = take();
    if (round % 3000 == 0) validate();
  }
  for (const address block : blocks) free(block, a);
  EXPECT_EQ(managed->statistics().live_count, 0u);
}

// Blocks that begin where the table of blocks would have all of them in its last two places and its
// first: the walks to most of them are long, over the table's end, and a gap is filled from afar.
TEST_F(Pool, BlocksThatWouldAllBeInOnePlaceOfTheirTable) {
  constexpr std::uint32_t bucket_count = 128;  // of a table with 512 blocks at most
  constexpr std::uint32_t last = 512 * 200;
  std::vector<std::uint32_t> starts;
  for (std::uint32_t at = 0; at < last && starts.size() <= 500; ++at) {
    const std::uint64_t mixed = at * std::uint64_t{0x9E3779B97F4A7C15} >> 32;
    if ((mixed + 2) % bucket_count < 3) starts.push_back(at);
  }
  ASSERT_EQ(starts.size(), 501u);
  open();
  std::vector<address> blocks;
  for (std::size_t i = 0; i + 1 < starts.size(); ++i) {
    blocks.push_back(allocate((starts[i + 1] - starts[i]) * std::uint64_t{512}, a));
    ASSERT_EQ(blocks[i] - blocks[0], starts[i] * std::uint64_t{512});
  }
  validate();
  std::mt19937 random(4);
  for (int round = 0; round < 400; ++round) {
    const std::size_t i = random() % blocks.size();
    free(blocks[i], a);
    EXPECT_EQ(managed->free(blocks[i], a).error().code, errc::not_allocated);
    if (round % 8 == 0) validate();
    EXPECT_EQ(allocate((starts[i + 1] - starts[i]) * std::uint64_t{512}, a), blocks[i]);
  }
  std::shuffle(blocks.begin(), blocks.end(), random);
  for (const address block : blocks) {
    free(block, a);
    EXPECT_EQ(managed->free(block, a).error().code, errc::not_allocated);
    if (managed->statistics().live_count % 8 == 0) validate();
  }
}

// A slab that the walk over idle ones is about to look at is taken meanwhile.
TEST_F(Pool, TrimWalksBesideAllocations) {
  open(moving());
  std::vector<address> blocks = allocate_each(300, 2 * MiB, a);
  for (const address at : blocks) free(at, a);
  std::atomic<bool> done = false;
  std::thread trimming([&] {
    while (!done) (void)managed->trim(64 * MiB);
  });
  const address kept = allocate(3 * MiB, a);
  ASSERT_TRUE(driver.write_tag({kept, 3 * MiB}, 1));
  std::uint64_t state = 1;
  for (std::uint64_t tag = 2; tag < 2002; ++tag) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const std::uint64_t size_bytes = ((state >> 33) % 200 + 1) * MiB;
    const address at = allocate(size_bytes, a);
    ASSERT_TRUE(driver.write_tag({at, size_bytes}, tag));
    EXPECT_EQ(driver.read_tag(at + (size_bytes - 8)).value(), tag);
    free(at, a);
  }
  done = true;
  trimming.join();
  EXPECT_EQ(driver.read_tag(kept).value(), 1u);
  EXPECT_EQ(driver.read_tag(kept + (3 * MiB - 8)).value(), 1u);
}

}  // namespace

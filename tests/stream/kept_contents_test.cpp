// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: under a contents rule, a free that fails leaves the block's bytes as they were: bytes are
// filled only by a free that then succeeds, and no graph fills a block that it was refused. A block
// whose bytes could not be filled when it was allocated is not live, and its memory is not held.
// [G8]
// Method: calls that fail for each reason, on the fake driver, whose memory remembers a tag.
#include "fake_pool.hpp"

namespace {

using vmm::address, vmm::call, vmm::contents_rule, vmm::errc, vmm::stream_handle;

constexpr std::uint64_t tag = 7;
constexpr std::uint64_t nth_max = 8;

struct PoolContents : FakePool {
  void open_filling(vmm::pool_options options = moving()) {
    open(options, &vmm::pool_options::contents, contents_rule::zero_on_release);
  }
  [[nodiscard]] address tagged(std::uint64_t size_bytes, stream_handle stream) {
    const address at = allocate(size_bytes, stream);
    EXPECT_TRUE(driver.finish_all());
    EXPECT_TRUE(driver.write_tag({at, size_bytes}, tag));
    return at;
  }
  void expect_kept(address at, const std::string& when) {
    ASSERT_TRUE(driver.finish_all());
    EXPECT_EQ(driver.read_tag(at).value_or(0), tag) << when;
    EXPECT_EQ(managed->statistics().live_count, 1u) << when;
  }
};

TEST_F(PoolContents, AreKeptByAFreeWhoseDriverCallFails) {
  open_filling();
  const address at = tagged(4 * MiB, a);
  for (const call kind : {call::query_capture, call::fill, call::record_event}) {
    bool has_struck = true;
    for (std::uint64_t nth = 1; has_struck && managed->statistics().live_count == 1; ++nth) {
      ASSERT_LE(nth, nth_max);
      const std::uint64_t before = driver.faults_struck();
      driver.fail({kind, nth, false, {errc::internal, 77, "INJECTED"}});
      const vmm::status freed = managed->free(at, a);
      has_struck = driver.faults_struck() != before;
      driver.clear_faults();
      if (freed) {
        EXPECT_EQ(allocate(4 * MiB, a), at);
        ASSERT_TRUE(driver.finish_all());
        EXPECT_EQ(driver.read_tag(at).value_or(1), 0u);
        ASSERT_TRUE(driver.write_tag({at, 4 * MiB}, tag));
      }
      expect_kept(at, vmm::name_of(kind));
    }
  }
}

TEST_F(PoolContents, AreKeptByAFreeInACaptureThatIsRefused) {
  open_filling();
  const address at = tagged(4 * MiB, a);
  ASSERT_TRUE(driver.begin_capture(a, vmm::capture_mode::any_thread));
  EXPECT_EQ(managed->free(at, a).error().code, errc::not_permitted);
  const auto made = *driver.end_capture(a);
  ASSERT_TRUE(driver.launch_graph(made, a));
  expect_kept(at, "a graph that was refused the block");
  ASSERT_TRUE(driver.destroy_graph(made));
}

// A block of one graph that another one frees.
TEST_F(PoolContents, AreKeptByAFreeInAnotherGraph) {
  vmm::pool_options options = moving();
  options.capture = vmm::capture_rule::private_memory;
  open_filling(options);
  ASSERT_TRUE(driver.begin_capture(a, vmm::capture_mode::any_thread));
  const std::uint64_t number = managed->captures().number(a).value_or(0);
  const address at = allocate(4 * MiB, a);
  const auto first = *driver.end_capture(a);
  ASSERT_TRUE(driver.write_tag({at, 4 * MiB}, tag));
  ASSERT_TRUE(driver.begin_capture(b, vmm::capture_mode::any_thread));
  EXPECT_EQ(managed->free(at, b).error().code, errc::not_permitted);
  const auto second = *driver.end_capture(b);
  ASSERT_TRUE(driver.launch_graph(second, b));
  expect_kept(at, "a graph that was refused another graph's block");
  ASSERT_TRUE(driver.destroy_graph(first));
  ASSERT_TRUE(driver.destroy_graph(second));
  fine(managed->captures().release(number, a));
}

TEST_F(PoolContents, AreKeptByAFreeOnOneStreamTooMany) {
  open_filling();
  const address at = tagged(4 * MiB, a);
  std::vector<stream_handle> streams;
  while (managed->statistics().stream_count < pool::max_streams) {
    streams.push_back(*driver.create_stream());
    free(allocate(512, streams.back()), streams.back());
  }
  EXPECT_EQ(managed->free(at, b).error().code, errc::in_use);
  expect_kept(at, "a stream more than a pool serves");
  for (const stream_handle stream : streams) {
    fine(managed->forget(stream));
    ASSERT_TRUE(driver.destroy_stream(stream));
  }
}

// The fill is refused, and every driver call of the free that undoes the allocation would be.
TEST_F(PoolContents, AreFilledOrTheBlockIsNotLive) {
  open(moving(), &vmm::pool_options::contents, contents_rule::zero_on_acquire);
  free(allocate(4 * MiB, a), a);
  driver.fail({call::fill, 1, false, {errc::internal, 78, "FILL"}});
  driver.fail({call::query_capture, 2, true, {errc::internal, 77, "INJECTED"}});
  const auto refused = managed->allocate(4 * MiB, a);
  EXPECT_EQ(driver.faults_struck(), 1u) << "the free makes no query";
  driver.clear_faults();
  ASSERT_FALSE(refused);
  EXPECT_EQ(managed->statistics().live_count, 0u);
}

// Statistics count a block when its observer is notified, and no longer when it has been freed.
TEST_F(PoolContents, AnObserverReadsStatisticsWithItsBlocks) {
  struct : vmm::block_observer {
    pool* of = nullptr;
    std::uint64_t live_count = 0;
    std::uint64_t wrong_count = 0;
    void look() { wrong_count += of->statistics().live_count != live_count ? 1 : 0; }
    void reserved(vmm::address_range) noexcept override {}
    void unreserved(vmm::address_range) noexcept override {}
    void mapped(vmm::address_range) noexcept override {}
    void unmapped(vmm::address_range) noexcept override {}
    void allocated(vmm::address_range) noexcept override { ++live_count, look(); }
    void freed(address) noexcept override { --live_count, look(); }
  } observer;
  for (const contents_rule rule : {contents_rule::none, contents_rule::zero_on_acquire}) {
    vmm::pool_options options;
    options.contents = rule;
    options.observer = &observer;
    open(options);
    observer.of = managed.get();
    const address at = allocate(4 * MiB, a);
    const address whole = managed->allocate_dedicated(4 * MiB, a).value();
    free(at, a);
    free(whole, a);
    driver.fail({call::fill, 1, false, {errc::internal, 78, "FILL"}});
    EXPECT_EQ(managed->allocate(64 * MiB, a).has_value(), rule == contents_rule::none);
    driver.clear_faults();
    free(allocate(4 * MiB, a), a);
    EXPECT_EQ(observer.wrong_count, 0u) << int(rule);
    managed.reset();
    observer.live_count = 0;
  }
}

// Nothing has used the memory: neither work of the stream nor a graph that is captured keeps it.
TEST_F(PoolContents, AreNotFilledInMemoryThatStays) {
  enum class stream_is : std::uint8_t { idle, busy, captured };
  for (const stream_is state : {stream_is::idle, stream_is::busy, stream_is::captured}) {
    for (const bool is_whole : {false, true}) {
      if (is_whole && state == stream_is::captured) continue;
      vmm::pool_options options;
      options.contents = contents_rule::zero_on_acquire;
      options.capture = vmm::capture_rule::private_memory;
      open(options);
      const address at = allocate(2 * MiB, a);
      if (state == stream_is::busy) run(a, {at, 2 * MiB}, 1e6);
      if (state == stream_is::captured)
        ASSERT_TRUE(driver.begin_capture(a, vmm::capture_mode::relaxed));
      const auto before = driver.resource_counts();
      fail(call::fill);
      EXPECT_FALSE(is_whole ? managed->allocate_dedicated(64 * MiB, a)
                            : managed->allocate(64 * MiB, a));
      EXPECT_EQ(managed->statistics().live_count, 1u);
      EXPECT_LE(driver.resource_counts().memory_bytes, before.memory_bytes) << int(state);
      EXPECT_LE(driver.resource_counts().mappings, before.mappings) << int(state);
      if (state == stream_is::captured) ASSERT_TRUE(driver.destroy_graph(*driver.end_capture(a)));
    }
  }
}

// A request that is short creates a piece in vain, and is served behind another stream's work.
TEST_F(PoolContents, AreNotFilledAndNothingThatWasCreatedForThemStays) {
  vmm::fake::profile small = vmm::fake::profile::cuda();
  small.device_memory_bytes = 64 * MiB;
  vmm::fake_driver full(small);
  full.set_manual(true);
  const auto other = *full.create_stream();
  vmm::pool_options options = moving();
  options.policy.handle_bytes_max = 16 * MiB;
  options.policy.headroom = 8;
  options.contents = contents_rule::zero_on_acquire;
  {
    pool short_of(full, options);
    const auto live = short_of.allocate(16 * MiB, stream_handle::default_stream);
    const auto freed = short_of.allocate(32 * MiB, other);
    ASSERT_TRUE(live && freed);
    ASSERT_TRUE(short_of.free(*freed, other));
    const std::uint64_t before_bytes = full.resource_counts().memory_bytes;
    full.fail({call::fill, 1, false, {errc::internal, 78, "FILL"}});
    EXPECT_FALSE(short_of.allocate(32 * MiB, stream_handle::default_stream));
    EXPECT_EQ(full.faults_struck(), 1u);
    EXPECT_GT(full.calls(call::create), 3u) << "nothing was created in vain";
    EXPECT_EQ(full.resource_counts().memory_bytes, before_bytes);
    EXPECT_TRUE(full.finish_all());
    EXPECT_TRUE(short_of.allocate(32 * MiB, stream_handle::default_stream));
    EXPECT_TRUE(full.finish_all());
  }
  EXPECT_TRUE(full.destroy_stream(other));
  EXPECT_TRUE(full.check_empty()) << full.report();
}

}  // namespace

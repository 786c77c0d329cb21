// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: during a capture the pool refuses, or returns memory that only the graph has while it
// lives; it never invalidates a capture, on any stream, and a graph and other work never share
// memory unordered. Method: graphs captured on the fake driver, which follows the policy of the
// real one, are played again and again while the pool serves other streams; their contents and the
// driver's list of misuses are checked.
#include "fake_pool.hpp"

namespace {

using vmm::address, vmm::address_range, vmm::call, vmm::capture_mode, vmm::capture_rule, vmm::errc,
    vmm::stream_handle;
using graph = vmm::fake::graph_handle;

struct Captures : FakePool {
  void open_for(capture_rule rule, vmm::pool_options options = moving()) {
    options.capture = rule;
    open(options);
  }
  // For captures that are not announced, and that no call has seen.
  [[nodiscard]] static vmm::pool_options queried() {
    vmm::pool_options options = moving();
    options.streams_forgotten = true;
    return options;
  }
  void begin(capture_mode mode = capture_mode::any_thread) {
    ASSERT_TRUE(driver.begin_capture(a, mode));
  }
  // The capture must not be spoiled.
  [[nodiscard]] graph end() {
    const auto made = driver.end_capture(a);
    EXPECT_TRUE(made) << (made ? "" : vmm::describe(made.error()));
    return made.value_or(graph::none);
  }
  void write(stream_handle stream, address_range what, std::uint64_t tag) {
    ASSERT_TRUE(driver.launch(
        stream, {.name = "tagged", .duration_us = 10, .writes = {&what, 1}, .tag = tag}));
  }
  void expect_read(stream_handle stream, address_range what, std::uint64_t tag) {
    ASSERT_TRUE(driver.launch(
        stream, {.name = "reader", .duration_us = 10, .reads = {&what, 1}, .expected = tag}));
  }
  // The graph has been played for the last time, and nothing of it runs.
  void destroy(graph gone, std::uint64_t number) {
    ASSERT_TRUE(driver.finish_all());
    fine(managed->captures().release(number, a));
    ASSERT_TRUE(driver.destroy_graph(gone));
  }
};

TEST_F(Captures, AreRefusedAndNotSpoiled) {
  open_for(capture_rule::refuse);
  const address at = allocate(4 * MiB, a);
  begin();
  EXPECT_EQ(managed->allocate(4 * MiB, a).error().code, errc::not_permitted);
  EXPECT_EQ(managed->free(at, a).error().code, errc::not_permitted);
  EXPECT_EQ(managed->statistics().live_count, 1u);
  ASSERT_TRUE(driver.destroy_graph(end()));
}

// The failure without queries: a graph and other work get one block.
TEST_F(Captures, UncheckedTheyShareMemoryWithOthers) {
  open_for(capture_rule::unchecked);
  free(allocate(4 * MiB, a), a);
  begin();
  const address inside = allocate(4 * MiB, a);
  free(inside, a);
  ASSERT_TRUE(driver.destroy_graph(end()));
  EXPECT_EQ(allocate(4 * MiB, a), inside);
}

// A capture that begins and ends between two calls is seen by neither. The one call inside it, an
// allocate or a free, is made without a query: the graph overwrites another block. Hence a query in
// each call of a stream that may be captured is the least (docs/decisions/0034).
TEST_F(Captures, OneCallWithoutAQueryGivesAGraphsMemoryAway) {
  for (const bool allocates : {true, false}) {
    open_for(capture_rule::unchecked);
    const auto is_unseen = [&] {
      return driver.query_capture(a)->state == vmm::capture_state::none;
    };
    const address warm = allocate(4 * MiB, a);
    if (allocates) free(warm, a);
    EXPECT_TRUE(is_unseen());
    begin();
    const address inside = allocates ? allocate(4 * MiB, a) : warm;
    write(a, {inside, 4 * MiB}, 7);
    if (!allocates) free(inside, a);
    const graph made = end();
    EXPECT_TRUE(is_unseen());
    if (allocates) free(inside, a);
    EXPECT_EQ(allocate(4 * MiB, a), inside);
    write(a, {inside, 4 * MiB}, 8);
    ASSERT_TRUE(driver.launch_graph(made, a));
    ASSERT_TRUE(driver.finish_all());
    EXPECT_EQ(driver.read_tag(inside).value_or(0), 7u) << "the graph's, and not the block's";
    ASSERT_TRUE(driver.destroy_graph(made));
  }
}

TEST_F(Captures, PrivateMemoryIsNobodyElsesWhileTheGraphLives) {
  open_for(capture_rule::private_memory);
  begin();
  const std::uint64_t number = managed->captures().number(a).value_or(0);
  EXPECT_NE(number, 0u);
  const address temporary = allocate(4 * MiB, a);
  write(a, {temporary, 4 * MiB}, 1);
  free(temporary, a);
  const address again = allocate(4 * MiB, a);
  EXPECT_EQ(again, temporary) << "within a capture memory is used again";
  write(a, {again, 4 * MiB}, 2);
  const address result = allocate(2 * MiB, a);
  write(a, {result, 2 * MiB}, 3);
  free(again, a);
  const graph made = end();
  EXPECT_EQ(managed->statistics().captured_bytes, 4 * MiB);
  for (int round = 0; round < 20; ++round) {
    const stream_handle other = round % 2 == 0 ? a : b;
    const address block = allocate(4 * MiB, other);
    EXPECT_FALSE((address_range{block, 4 * MiB}.overlaps({temporary, 4 * MiB})));
    write(other, {block, 4 * MiB}, 100);
    ASSERT_TRUE(driver.launch_graph(made, other == a ? b : a));
    expect_read(other, {block, 4 * MiB}, 100);
    free(block, other);
    if (round % 5 == 0) (void)managed->trim(0);
    ASSERT_TRUE(driver.finish_all());
    EXPECT_EQ(driver.read_tag(result).value_or(0), 3u);
  }
  destroy(made, number);
  EXPECT_EQ(managed->statistics().captured_bytes, 0u);
  EXPECT_EQ(allocate(4 * MiB, a), temporary);
}

TEST_F(Captures, ACaptureTakesOnlyMemoryThatIsDone) {
  open_for(capture_rule::private_memory, queried());
  const address busy = allocate(4 * MiB, a);
  const address done = allocate(2 * MiB, b);
  run_and_free(a, {busy, 4 * MiB}, 1e6);
  free(done, b);
  begin();
  const std::uint64_t number = *managed->captures().number(a);
  EXPECT_EQ(allocate(2 * MiB, a), done) << "another stream's, whose work has finished";
  const address fresh = allocate(4 * MiB, a);
  EXPECT_NE(fresh, busy) << "its own stream's, whose work has not";
  write(a, {fresh, 4 * MiB}, 1);
  EXPECT_EQ(driver.calls(call::wait_event), 0u);
  const graph made = end();
  ASSERT_TRUE(driver.launch_graph(made, b));  // not ordered behind the work of a
  destroy(made, number);
}

TEST_F(Captures, OtherStreamsGrowAndTrimWithoutSpoilingIt) {
  for (const capture_mode mode :
       {capture_mode::any_thread, capture_mode::this_thread, capture_mode::relaxed}) {
    open_for(capture_rule::private_memory, queried());
    const address first = allocate(4 * MiB, a);
    allocate(2 * MiB, a);
    run_and_free(a, {first, 4 * MiB}, 1e6);
    begin(mode);
    const address large = allocate(8 * MiB, b);  // a's memory would come behind a mark on a
    run_and_free(b, {large, 8 * MiB}, 10);
    (void)managed->trim(0);
    EXPECT_EQ(managed->forget(a).error().code, errc::in_use);
    EXPECT_EQ(managed->synchronize().error().code, errc::not_permitted);
    std::thread([&] { free(allocate(16 * MiB, b), b); }).join();
    ASSERT_TRUE(driver.destroy_graph(end()));
    fine(managed->synchronize());
    EXPECT_EQ(allocate(4 * MiB, a), first);
  }
}

TEST_F(Captures, MarksThatWereMadeBeforeAreStillAsked) {
  open_for(capture_rule::private_memory);
  const address at = allocate(8 * MiB, a);
  run_and_free(a, {at, 8 * MiB}, 1e6);
  (void)managed->trim(0);  // marks a
  ASSERT_TRUE(driver.finish_all());
  begin();
  EXPECT_EQ(allocate(8 * MiB, b), at);
  ASSERT_TRUE(driver.destroy_graph(end()));
}

TEST_F(Captures, AForkedStreamIsInTheSameGraph) {
  open_for(capture_rule::private_memory);
  const vmm::event_handle there = *driver.create_event();
  const vmm::event_handle back = *driver.create_event();
  begin();
  const std::uint64_t number = *managed->captures().number(a);
  const address one = allocate(2 * MiB, a);
  free(one, a);
  ASSERT_TRUE(driver.record_event(there, a));
  ASSERT_TRUE(driver.wait_event(b, there));
  EXPECT_EQ(managed->captures().number(b).value_or(0), number);
  const address two = allocate(2 * MiB, b);
  EXPECT_NE(two, one) << "free memory of one stream is not ordered before the other";
  free(two, b);
  EXPECT_EQ(allocate(2 * MiB, b), two);
  free(two, b);
  ASSERT_TRUE(driver.record_event(back, b));
  ASSERT_TRUE(driver.wait_event(a, back));
  const graph made = end();
  EXPECT_EQ(managed->statistics().captured_bytes, 4 * MiB);
  destroy(made, number);
  EXPECT_EQ(managed->statistics().captured_bytes, 0u);
  ASSERT_TRUE(driver.destroy_event(there));
  ASSERT_TRUE(driver.destroy_event(back));
}

TEST_F(Captures, PinsAndGraphsHoldABlockBoth) {
  open_for(capture_rule::private_memory);
  begin();
  const std::uint64_t number = *managed->captures().number(a);
  const address one = allocate(2 * MiB, a);
  const address two = allocate(2 * MiB, a);
  fine(managed->pin(one));
  fine(managed->pin(two));
  free(one, a);
  EXPECT_NE(allocate(2 * MiB, a), one) << "pinned";
  const graph made = end();
  free(two, a);
  fine(managed->unpin(two));
  EXPECT_NE(allocate(2 * MiB, a), two) << "the graph's";
  validate();
  destroy(made, number);
  EXPECT_EQ(allocate(2 * MiB, b), two);
  fine(managed->unpin(one));
  EXPECT_EQ(managed->statistics().pinned_count, 0u);
}

TEST_F(Captures, ASpoiledOneIsServedNothing) {
  open_for(capture_rule::private_memory);
  const address at = allocate(4 * MiB, a);
  begin();
  EXPECT_FALSE(driver.synchronize_stream(a)) << "spoils it";
  EXPECT_EQ(managed->allocate(4 * MiB, a).error().code, errc::not_permitted);
  EXPECT_EQ(managed->free(at, a).error().code, errc::not_permitted);
  EXPECT_FALSE(driver.end_capture(a));
}

TEST_F(Captures, AFailedAnswerOfTheDriverChangesNothing) {
  open_for(capture_rule::private_memory);
  const address at = allocate(4 * MiB, a);
  for (const vmm::fake::native_error& failure : driver.possible_errors(call::query_capture)) {
    driver.fail({call::query_capture, 1, false, failure});
    EXPECT_EQ(managed->free(at, a).error().code, failure.code);
    driver.fail({call::query_capture, 1, false, failure});
    EXPECT_EQ(managed->allocate(4 * MiB, a).error().code, failure.code);
    EXPECT_EQ(managed->statistics().live_count, 1u);
  }
}

// A stream that can never be captured is not queried if its memory is free: a fault planned for the
// query does not strike.
TEST_F(Captures, TheDefaultStreamIsNotAskedAfter) {
  open_for(capture_rule::refuse);
  const stream_handle none = stream_handle::default_stream;
  const address at = allocate(4 * MiB, none);
  fail(call::query_capture, 1, true);
  free(at, none);
  allocate(4 * MiB, none);
  EXPECT_EQ(driver.calls(call::query_capture), 0u);
  EXPECT_EQ(managed->allocate(512, a).error().code,
            driver.possible_errors(call::query_capture).front().code);
  driver.clear_faults();
}

// Beside a capture it stays what it is: allocated and freed without a question, its memory left
// where it is while a mark on it could not be trusted.
TEST_F(Captures, TheDefaultStreamGoesOnBesideACapture) {
  open_for(capture_rule::refuse);
  const stream_handle none = stream_handle::default_stream;
  free(allocate(4 * MiB, none), none);
  begin();
  const std::uint64_t before = driver.calls(call::query_capture);
  for (int i = 0; i < 10; ++i) free(allocate(4 * MiB, none), none);
  EXPECT_EQ(driver.calls(call::query_capture), before);
  EXPECT_EQ(managed->allocate(512, a).error().code, errc::not_permitted);
  ASSERT_TRUE(driver.destroy_graph(end()));
}

TEST_F(Captures, GrowthThatFailsLeavesThePool) {
  open_for(capture_rule::private_memory);
  begin();
  for (const call where : {call::create, call::map, call::set_access}) {
    for (const vmm::fake::native_error& failure : driver.possible_errors(where)) {
      driver.fail({where, 1, true, failure});
      EXPECT_FALSE(managed->allocate(4 * MiB, a));
      driver.clear_faults();
      EXPECT_EQ(managed->statistics().live_count, 0u);
    }
  }
  validate();
  const std::uint64_t number = *managed->captures().number(a);
  destroy(end(), number);
}

TEST_F(Captures, ManyGraphsComeAndGo) {
  open_for(capture_rule::private_memory);
  for (int i = 0; i < 5000; ++i) {
    begin();
    const std::uint64_t number = *managed->captures().number(a);
    free(allocate(2 * MiB, a), a);
    destroy(end(), number);
  }
  EXPECT_LE(driver.resource_counts().memory_bytes_max, 8 * MiB);
}

// Begins a capture without the pool, right after a query of the stream.
class late_capture : public vmm::fake_driver {
 public:
  using fake_driver::fake_driver;
  void begin_after(stream_handle on, int questions) {
    on_ = on;
    left_ = questions;
  }
  [[nodiscard]] bool has_begun() const {
    return on_ != stream_handle::default_stream && left_ == 0;
  }
  [[nodiscard]] vmm::result<vmm::capture_info> query_capture(stream_handle stream) {
    const auto seen = fake_driver::query_capture(stream);
    if (stream == on_ && left_ > 0 && --left_ == 0)
      EXPECT_TRUE(begin_capture(stream, capture_mode::any_thread));
    return seen;
  }

 private:
  stream_handle on_ = stream_handle::default_stream;
  int left_ = 0;
};

TEST(LateCapture, OfAStreamToBeWaitedForFailsNoAllocation) {
  int begun_count = 0;
  for (int questions = 1; questions <= 6; ++questions) {
    late_capture driver;
    driver.set_manual(true);
    const stream_handle user = driver.create_stream().value();
    const stream_handle other = driver.create_stream().value();
    {
      vmm::pool_options queried;
      queried.streams_forgotten = true;
      vmm::stream_pool pool(driver, queried);
      const auto first = *pool.allocate(16 * MiB, other);
      ASSERT_TRUE(driver.launch(other, {.duration_us = 10}));
      ASSERT_TRUE(pool.free(first, other));
      driver.begin_after(other, questions);
      const auto second = pool.allocate(16 * MiB, user);
      EXPECT_TRUE(second) << questions << ": " << (second ? "" : vmm::describe(second.error()));
      if (driver.has_begun()) {
        ++begun_count;
        const auto made = driver.end_capture(other);
        ASSERT_TRUE(made) << "the capture was spoiled";
        ASSERT_TRUE(driver.destroy_graph(*made));
      }
      driver.begin_after(stream_handle::default_stream, 0);
      ASSERT_TRUE(driver.finish_all());
      if (second) EXPECT_TRUE(pool.free(*second, user));
    }
    EXPECT_EQ(driver.misuse_count(), 0u) << driver.report();
    ASSERT_TRUE(driver.destroy_stream(user));
    ASSERT_TRUE(driver.destroy_stream(other));
  }
  EXPECT_GE(begun_count, 2);
}

// With announced captures the pool makes no query without one, and every query during one.
TEST_F(Captures, AnnouncedOnesAreAskedAboutAlone) {
  vmm::pool_options options = moving();
  options.captures_announced = true;
  open_for(capture_rule::private_memory, options);
  free(allocate(MiB, a), a);
  const std::uint64_t asked = driver.calls(call::query_capture);
  for (int i = 0; i < 100; ++i) free(allocate(MiB, a), a);
  EXPECT_EQ(driver.calls(call::query_capture), asked) << "the memory was there";
  ASSERT_TRUE(managed->captures().begin());
  begin();
  const auto number = *managed->captures().number(a);
  const std::uint64_t asked_before = driver.calls(call::query_capture);
  const address kept = allocate(MiB, a);
  write(a, {kept, MiB}, 7);
  expect_read(a, {kept, MiB}, 7);
  free(kept, a);
  EXPECT_GE(driver.calls(call::query_capture), asked_before + 2);
  const graph made = end();
  ASSERT_TRUE(managed->captures().end());
  const std::uint64_t asked_after = driver.calls(call::query_capture);
  EXPECT_NE(allocate(MiB, a), kept) << "the graph has it until it is released";
  EXPECT_EQ(driver.calls(call::query_capture), asked_after);
  ASSERT_TRUE(driver.launch_graph(made, a));
  destroy(made, number);
}

// The largest handle of a stream does not mean a driver without captures; a larger one is refused.
TEST(AnnouncedCaptures, AnyNumberOfAStreamIsTakenWhereTheDriverCapturesNothing) {
  vmm::fake_driver driver;
  vmm::pool_options options;
  options.capture = capture_rule::unchecked;
  options.captures_announced = true;
  vmm::stream_pool pool(driver, options);
  const stream_handle last{~std::uint64_t{0} >> 1U};
  const auto first = pool.allocate(4096, last);
  ASSERT_TRUE(pool.captures().begin());
  const stream_handle beyond{~std::uint64_t{0}};
  EXPECT_EQ(pool.allocate(4096, beyond).error().code, errc::invalid_argument);
  const auto second = pool.allocate(4096, last);
  EXPECT_TRUE(pool.captures().end());
  ASSERT_TRUE(first);
  ASSERT_TRUE(second);
  EXPECT_TRUE(pool.free(*first, last));
  EXPECT_TRUE(pool.free(*second, last));
}

// Each announcement ends by itself: with one left the driver is queried.
TEST_F(Captures, AnnouncementsAreCounted) {
  vmm::pool_options options = moving();
  options.captures_announced = true;
  open_for(capture_rule::refuse, options);
  const address at = allocate(MiB, a);
  ASSERT_TRUE(managed->captures().begin());
  ASSERT_TRUE(managed->captures().begin());
  begin();
  ASSERT_TRUE(managed->captures().end());
  EXPECT_EQ(managed->allocate(MiB, a).error().code, errc::not_permitted);
  EXPECT_EQ(managed->free(at, a).error().code, errc::not_permitted);
  ASSERT_TRUE(driver.destroy_graph(end()));
  ASSERT_TRUE(managed->captures().end());
  free(at, a);
  allocate(MiB, a);
}

}  // namespace

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: every wrong use of a pool has the result in docs/misuse.md. Method: one test a row; a
// refused call leaves the pool as it was, which the validator and the resource counts check at the
// end. A use that ends the process does so in a child, with its text.
#include "fixture.hpp"

#include "../support/silent_observer.hpp"

namespace misuse {

using vmm::address, vmm::errc, vmm::remap_notice, vmm::stream_handle;

constexpr errc inside_a_block = errc::invalid_argument;

TEST_F(PoolMisuse, FreedTwice) {
  const address at = allocate(4 * KiB, a);
  const address other = allocate(4 * KiB, a);
  free(at, a);
  EXPECT_EQ(code_of(pool->free(at, a)), errc::not_allocated);
  EXPECT_EQ(code_of(pool->free(at, b)), errc::not_allocated) << "on another stream";
  free(other, a);
  EXPECT_EQ(code_of(pool->free(at, a)), errc::not_allocated) << "coalesced with its neighbour";
  (void)pool->trim(0);
  EXPECT_EQ(code_of(pool->free(at, a)), errc::not_allocated) << "unmapped";
}

TEST_F(PoolMisuse, FreedTwiceAfterReuse) {
  const address at = allocate(4 * KiB, a);
  free(at, a);
  ASSERT_EQ(allocate(4 * KiB, a), at) << "the address is handed out again";
  EXPECT_EQ(code_of(pool->free(at, a)), errc::none) << "the address names the new block";
  EXPECT_EQ(code_of(pool->free(at, a)), errc::not_allocated) << "its owner gets an error";
}

TEST_F(PoolMisuse, FreedTwiceAfterReuseInside) {
  const address first = allocate(4 * KiB, a);
  const address second = allocate(4 * KiB, a);
  free(first, a);
  free(second, a);
  const address whole = allocate(8 * KiB, a);
  ASSERT_EQ(whole, first);
  EXPECT_EQ(code_of(pool->free(second, a)), inside_a_block);
  free(whole, a);
}

TEST_F(PoolMisuse, FreedInside) {
  const address at = allocate(4 * KiB, a);
  for (const std::uint64_t offset : {std::uint64_t{1}, std::uint64_t{512}, 4 * KiB - 1})
    EXPECT_EQ(code_of(pool->free(at + offset, a)), inside_a_block) << offset;
  EXPECT_EQ(code_of(pool->free(at + 4 * KiB, a)), errc::not_allocated) << "behind it";
  EXPECT_EQ(code_of(pool->free(at + 512, b)), inside_a_block) << "on a new stream";
  EXPECT_EQ(pool->statistics().stream_count, 1u);
  free(at, a);
}

TEST_F(PoolMisuse, ForeignAddress) {
  EXPECT_EQ(code_of(pool->free(address{4096}, a)), errc::unknown_address) << "before set-up";
  const address at = allocate(4 * KiB, a);
  int local = 0;
  for (const address foreign :
       {address{1}, address::from_native(&local), address{~std::uint64_t{0}}}) {
    EXPECT_EQ(code_of(pool->free(foreign, a)), errc::unknown_address);
    EXPECT_EQ(code_of(pool->pin(foreign)), errc::unknown_address);
    EXPECT_EQ(code_of(pool->unpin(foreign)), errc::unknown_address);
  }
  free(at, a);
}

TEST_F(PoolMisuse, NullAddress) {
  const address at = allocate(4 * KiB, a);
  EXPECT_EQ(code_of(pool->free(address{}, a)), errc::unknown_address);
  EXPECT_EQ(code_of(pool->pin(address{})), errc::unknown_address);
  free(at, a);
}

TEST_F(PoolMisuse, AddressOfAnotherPool) {
  const address at = allocate(4 * KiB, a);
  vmm::stream_pool second(driver);
  const auto theirs = *second.allocate(4 * KiB, a);
  EXPECT_EQ(code_of(pool->free(theirs, a)), errc::unknown_address);
  EXPECT_EQ(code_of(second.free(at, a)), errc::unknown_address);
  vmm::manager third(driver);
  EXPECT_EQ(code_of(third.free(at)), errc::unknown_address) << "a manager that has no block";
  EXPECT_TRUE(second.free(theirs, a));
  free(at, a);
}

TEST_F(PoolMisuse, SizesThatCannotBe) {
  EXPECT_EQ(code_of(pool->allocate(0, a)), errc::invalid_argument);
  EXPECT_EQ(code_of(pool->allocate(~std::uint64_t{0}, a)), errc::out_of_memory);
  EXPECT_EQ(code_of(pool->allocate(std::uint64_t{1} << 63, a)), errc::out_of_memory);
  const auto odd = pool->allocate(512, 3, a);
  EXPECT_EQ(code_of(odd), errc::invalid_argument);
  EXPECT_STREQ(odd.error().detail, "an alignment is a power of two from 1 to 2 MiB; not '3'");
  const auto large = pool->allocate(512, 4 * MiB, a);
  EXPECT_EQ(code_of(large), errc::not_supported);
  EXPECT_NE(std::string(large.error().detail).find("2 MiB at most"), std::string::npos);
  EXPECT_NE(std::string(large.error().detail).find("; not '4194304'"), std::string::npos);
}

// A driver that checks its streams refuses the query for captures. A free without one is taken, and
// no call is the worse for it: an event behind all work covers the stream.
TEST_F(PoolMisuse, StreamThatNeverWas) {
  open(moving());
  const auto never = static_cast<stream_handle>(0x7777);
  const address at = allocate(4 * MiB, a);
  EXPECT_TRUE(pool->free(at, never));
  free(allocate(4 * MiB, a), a);
  EXPECT_TRUE(pool->synchronize());
  EXPECT_EQ(pool->trim(0).failure.code, errc::none);
  free(allocate(4 * MiB, b), b);
  free(allocate(4 * MiB, never), a);
  EXPECT_EQ(pool->trim(0).failure.code, errc::none);
  EXPECT_EQ(pool->statistics().mapped_bytes, 0u);

  reports_gone_streams = true;
  driver.set_gone_streams_undefined(true);
  for (int row = 0; row < 4; ++row) {
    vmm::pool_options options = moving();
    options.captures_announced = row == 3;
    options.capture = static_cast<vmm::capture_rule>(row % 3);
    open(options);
    const address freed = allocate(4 * MiB, stream_handle::default_stream);
    const bool is_queried = row < 2;  // refuse, private_memory
    EXPECT_EQ(code_of(pool->free(freed, never)), is_queried ? errc::invalid_argument : errc::none);
    if (is_queried) free(freed, stream_handle::default_stream);
  }
}

TEST_F(PoolMisuse, StreamThatWasDestroyed) {
  open(moving());
  const stream_handle gone = *driver.create_stream();
  const address at = allocate(4 * MiB, gone);
  ASSERT_TRUE(driver.destroy_stream(gone));
  EXPECT_TRUE(pool->free(at, gone));
  free(allocate(4 * MiB, a), a);
  EXPECT_TRUE(pool->synchronize());
}

// forget() names the stream to the driver.
TEST_F(PoolMisuse, StreamForgottenAfterItWasDestroyed) {
  reports_gone_streams = true;
  open(moving());
  const stream_handle gone = *driver.create_stream();
  free(allocate(4 * MiB, gone), gone);
  ASSERT_TRUE(driver.destroy_stream(gone));
  EXPECT_TRUE(pool->forget(gone));
  EXPECT_EQ(pool->statistics().stream_count, 0u);
  free(allocate(4 * MiB, a), a);
}

TEST_F(PoolMisuse, StreamOfAnotherDevice) {
  open(moving());
  vmm::fake_driver other;
  stream_handle theirs = a;
  for (int i = 0; i < 4; ++i) theirs = *other.create_stream();
  const address at = allocate(4 * MiB, a);
  EXPECT_TRUE(pool->free(at, theirs));
  free(allocate(4 * MiB, a), a);
  EXPECT_TRUE(pool->synchronize());
}

TEST_F(PoolMisuse, StreamOfEachThread) {
  vmm::fake_driver cuda;
  vmm::stream_pool made(cuda);
  const auto at = *made.allocate(4 * MiB, stream_handle::default_stream);
  for (const std::uint64_t number : no_streams) {
    const auto wrong = static_cast<stream_handle>(number);
    EXPECT_EQ(code_of(made.allocate(4 * MiB, wrong)), errc::invalid_argument);
    EXPECT_EQ(code_of(made.allocate_dedicated(4 * MiB, wrong)), errc::invalid_argument);
    EXPECT_EQ(code_of(made.free(at, wrong)), errc::invalid_argument);
    const errc of_unknown = number == 2 ? errc::invalid_argument : errc::none;
    EXPECT_EQ(code_of(made.forget(wrong)), of_unknown);
    EXPECT_EQ(made.preallocate(MiB, wrong).failure.code, errc::invalid_argument);
    EXPECT_EQ(code_of(made.captures().number(wrong)), errc::invalid_argument);
    EXPECT_EQ(code_of(made.captures().release(1, wrong)), of_unknown);
    vmm::stream_pool first(cuda, {.page_count = 1, .first_stream = wrong});
    EXPECT_EQ(code_of(first.set_up()), errc::invalid_argument);
    vmm::suspender sleeper;
    EXPECT_TRUE(sleeper.add(made, {"all"}));
    EXPECT_EQ(code_of(sleeper.suspend({.streams = {&wrong, 1}})), errc::invalid_argument);
  }
  EXPECT_EQ(made.statistics().stream_count, 1u);
  EXPECT_TRUE(made.free(at, stream_handle::default_stream));
}

TEST_F(PoolMisuse, Pins) {
  const address at = allocate(4 * KiB, a);
  EXPECT_EQ(code_of(pool->unpin(at)), errc::invalid_argument) << "not pinned";
  EXPECT_EQ(code_of(pool->pin(at + 512)), inside_a_block);
  EXPECT_TRUE(pool->pin(at));
  free(at, a);
  EXPECT_EQ(code_of(pool->free(at, a)), errc::not_allocated) << "freed while pinned";
  EXPECT_EQ(code_of(pool->pin(at)), errc::not_allocated);
  EXPECT_TRUE(pool->unpin(at));
  EXPECT_EQ(code_of(pool->unpin(at)), errc::not_allocated) << "gone with its last pin";
}

using PoolMisuseDeathTest = PoolMisuse;

struct caller final : vmm::remap_listener {
  caller(vmm::stream_pool& calls, stream_handle on) : pool(&calls), stream(on) {}
  void before_change(const remap_notice&) noexcept override {
    switch (what) {
      case 0: (void)pool->allocate(64 * MiB, stream); break;
      case 1: (void)pool->trim(0); break;
      case 2: (void)pool->synchronize(); break;
      case 3: (void)pool->forget(stream); break;
      case 4: (void)pool->remaps().subscribe(*this); break;
      case 5: (void)pool->captures().release(1, stream); break;
      case 6: (void)pool->captures().begin(); break;
      case 7: (void)pool->captures().end(); break;
      case 8: (void)pool->validate(); break;
      default: (void)pool->remaps().unsubscribe(vmm::remap_subscription{1}); break;
    }
  }
  vmm::stream_pool* pool;
  stream_handle stream;
  int what = 0;
};

TEST_F(PoolMisuseDeathTest, CallInARemapCallback) {
  open(moving());
  free(allocate(8 * MiB, a), a);
  caller calls(*pool, a);
  for (calls.what = 0; calls.what < 10; ++calls.what) {
    EXPECT_DEATH(
        {
          (void)pool->remaps().subscribe(calls);
          (void)pool->trim(0);
        },
        check_failed("a remap callback makes a forbidden call: see remap_listener"))
        << calls.what;
  }
}

struct meddler final : silent_observer {
  void allocated(vmm::address_range block) noexcept override {
    if (what == 0) (void)pool->allocate(512, stream);
    if (what == 1) (void)pool->free(block.base, stream);
    if (what == 2) (void)pool->trim(0);
    if (what == 3) (void)pool->unpin(held);
    if (what == 4) (void)pool->free(held, captured);
  }
  vmm::stream_pool* pool = nullptr;
  stream_handle stream{};
  stream_handle captured{};
  address held{};
  int what = -1;
};

TEST_F(PoolMisuseDeathTest, CallInAnObserver) {
  meddler observer;
  open({.capture = vmm::capture_rule::private_memory, .observer = &observer});
  observer.pool = pool.get();
  observer.stream = a;
  observer.held = allocate(512, a);
  ASSERT_TRUE(pool->pin(observer.held));
  ASSERT_TRUE(driver.begin_capture(b, vmm::capture_mode::relaxed));
  observer.captured = b;
  for (observer.what = 0; observer.what < 5; ++observer.what) {
    EXPECT_DEATH((void)pool->allocate(512, a),
                 check_failed("a block observer calls the pool that calls it"))
        << observer.what;
  }
  observer.what = -1;
  EXPECT_TRUE(driver.destroy_graph(*driver.end_capture(b)));
  EXPECT_TRUE(pool->unpin(observer.held));
  free(observer.held, a);
  pool.reset();
}

TEST_F(PoolMisuse, FreedAfterEverythingBesideAnUnannouncedCapture) {
  const address at = allocate(4 * KiB, a);
  const vmm::stream_handle unknown = *driver.create_stream();
  ASSERT_TRUE(driver.begin_capture(unknown, vmm::capture_mode::relaxed));
  EXPECT_TRUE(pool->free(at));
  EXPECT_EQ(pool->statistics().live_count, 0u);
  EXPECT_FALSE(driver.end_capture(unknown)) << "the driver has spoiled it";
  ASSERT_TRUE(driver.destroy_stream(unknown));
  EXPECT_EQ(pool->trim(0).failure.code, vmm::errc::none);
  EXPECT_EQ(pool->statistics().mapped_bytes, 0u) << "nothing is lost";
}

TEST_F(PoolMisuse, CaptureEndedThatWasNotAnnounced) {
  EXPECT_EQ(pool->captures().end().error().code, vmm::errc::invalid_argument);
  EXPECT_TRUE(pool->captures().begin());
  EXPECT_TRUE(pool->captures().end());
  EXPECT_EQ(pool->captures().end().error().code, vmm::errc::invalid_argument);
}

// A call whose memory is there takes the program at its word; one that needs the driver does not.
TEST_F(PoolMisuse, CaptureThatWasNotAnnounced) {
  open({.captures_announced = true});
  const address at = allocate(4 * KiB, a);
  ASSERT_TRUE(driver.begin_capture(a, vmm::capture_mode::relaxed));
  EXPECT_EQ(code_of(pool->allocate(std::uint64_t{1} << 30, a)), errc::not_permitted);
  const auto graph = driver.end_capture(a);
  ASSERT_TRUE(graph) << "the capture is not spoiled";
  EXPECT_TRUE(driver.destroy_graph(*graph));
  free(at, a);
}

TEST_F(PoolMisuse, CaptureReleasedWrongly) {
  open({.capture = vmm::capture_rule::private_memory});
  EXPECT_EQ(code_of(pool->captures().number(a)), errc::invalid_argument) << "not being captured";
  EXPECT_TRUE(pool->captures().release(77, a)) << "a number that the pool does not know";
  ASSERT_TRUE(driver.begin_capture(a, vmm::capture_mode::relaxed));
  const auto number = *pool->captures().number(a);
  const address at = allocate(4 * KiB, a);
  EXPECT_EQ(code_of(pool->captures().release(number, a)), errc::in_use) << "under way";
  free(at, a);
  EXPECT_EQ(code_of(pool->free(at, a)), errc::not_allocated);
  const auto graph = *driver.end_capture(a);
  EXPECT_TRUE(driver.destroy_graph(graph));
  EXPECT_TRUE(pool->captures().release(number, a));
  EXPECT_TRUE(pool->captures().release(number, a)) << "released before: not known any more";
}

TEST_F(PoolMisuse, BlockOfAnotherGraph) {
  open({.capture = vmm::capture_rule::private_memory});
  ASSERT_TRUE(driver.begin_capture(a, vmm::capture_mode::relaxed));
  const std::uint64_t first = *pool->captures().number(a);
  const address at = allocate(4 * KiB, a);
  ASSERT_TRUE(driver.destroy_graph(*driver.end_capture(a)));
  ASSERT_TRUE(driver.begin_capture(b, vmm::capture_mode::relaxed));
  const std::uint64_t second = *pool->captures().number(b);
  EXPECT_EQ(code_of(pool->free(at, b)), errc::not_permitted);
  ASSERT_TRUE(driver.destroy_graph(*driver.end_capture(b)));
  EXPECT_TRUE(pool->captures().release(second, b));
  EXPECT_TRUE(pool->captures().release(first, a));
  free(at, a);
}

TEST_F(PoolMisuse, FreedByTwoThreads) {
  for (int round = 0; round < 50 && !HasFatalFailure(); ++round) {
    const address at = allocate(4 * KiB, a);
    free_by_two_threads([&] { return pool->free(at, a); }, {errc::not_allocated});
  }
}

TEST_F(PoolMisuse, OptionsOutOfRange) {
  std::vector<vmm::pool_options> wrong(9);
  wrong[0].policy.tuning.first_fit_bytes = 3;
  wrong[1].policy.headroom = -1;
  wrong[2].policy.headroom = 1e9;
  wrong[3].reservation_bytes = 1;
  wrong[4].page_count = std::uint64_t{1} << 40;
  wrong[5].capture = static_cast<vmm::capture_rule>(3);
  wrong[6].stream_arenas = static_cast<vmm::arena_rule>(3);
  wrong[7].contents = static_cast<vmm::contents_rule>(4);
  wrong[8].policy.name = nullptr;
  for (std::size_t i = 0; i < wrong.size(); ++i) {
    open(wrong[i]);
    EXPECT_EQ(code_of(pool->set_up()), errc::bad_option) << i;
    EXPECT_EQ(code_of(pool->allocate(4 * KiB, a)), errc::bad_option) << i;
  }
}

}  // namespace misuse

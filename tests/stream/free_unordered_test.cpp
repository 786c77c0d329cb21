// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a block of a device-wide free is handed out again, to any stream, once all work submitted
// to the device has finished, and not before; no thread waits for it, it never invalidates a
// capture, and a failed mark loses nothing. Method: kernels on streams that the pool has not seen,
// finished by hand; calls are counted, and the driver's list of misuses is checked.
#include "fake_pool.hpp"

namespace {

using vmm::address, vmm::address_range, vmm::call, vmm::capture_mode, vmm::capture_rule, vmm::errc,
    vmm::stream_handle;

struct Unordered : FakePool {
  explicit Unordered(const vmm::fake::profile& plays = vmm::fake::profile::cuda())
      : FakePool(plays) {}
  void SetUp() override {
    FakePool::SetUp();
    unknown = *driver.create_stream();
    driver.set_manual(true);
  }
  void TearDown() override {
    if (unknown != stream_handle::default_stream) {
      EXPECT_TRUE(driver.finish_all());
      EXPECT_TRUE(driver.destroy_stream(unknown));
    }
    FakePool::TearDown();
  }

  void free_unordered(address at) { fine(managed->free(at)); }
  // The next kernels of a stream.
  void finish(stream_handle stream, int count = 1) {
    for (int left = count; left > 0; --left)
      ASSERT_TRUE(driver.finish_next(stream).value_or(false)) << "no work is there to finish";
  }
  [[nodiscard]] std::uint64_t waits() const {
    return driver.calls(call::wait_event) + driver.calls(call::synchronize_event) +
           driver.calls(call::synchronize_stream);
  }
  [[nodiscard]] std::uint64_t waiting_bytes() const { return managed->statistics().pending_bytes; }
  // One handle, free for the first stream: its blocks lie side by side.
  [[nodiscard]] vmm::pool_options roomy() {
    vmm::pool_options options;
    options.policy.handle_bytes_max = 64 * MiB;
    options.page_count = 16;
    options.first_stream = a;
    return options;
  }

  stream_handle unknown{};
};

using FreeUnordered = Unordered;

TEST_F(FreeUnordered, WaitsForStreamsThatThePoolDoesNotKnow) {
  open(moving());
  const address at = allocate(8 * MiB, a);
  run(a, {at, 8 * MiB});
  finish(a);
  run(unknown, {at, 8 * MiB});
  free_unordered(at);
  EXPECT_EQ(driver.calls(call::record_all), 1u);
  EXPECT_EQ(waiting_bytes(), 8 * MiB);
  const address other = allocate(8 * MiB, a);
  EXPECT_NE(other, at) << "a kernel of another stream still writes there";
  run(a, {other, 8 * MiB});
  finish(unknown);
  EXPECT_EQ(allocate(8 * MiB, b), at) << "all work has finished: any stream may have it";
  run(b, {at, 8 * MiB});
  EXPECT_EQ(waits(), 0u) << "no wait, on the host or on the device";
}

TEST_F(FreeUnordered, WhatIsIdleServesTheNextRequestAtOnce) {
  open(moving());
  for (int round = 0; round < 20; ++round)
    free_unordered(allocate(8 * MiB, round % 2 == 0 ? a : b));
  EXPECT_EQ(managed->statistics().mapped_bytes, 8 * MiB);
  EXPECT_EQ(waits(), 0u);
}

TEST_F(FreeUnordered, ManyShareAMark) {
  open(moving());
  std::vector<address> blocks = allocate_each(100, 2 * MiB, a);
  run(unknown, {blocks.front(), 2 * MiB});
  for (const address at : blocks) free_unordered(at);
  EXPECT_EQ(driver.calls(call::record_all), 4u) << "the others wait together for the fifth";
  EXPECT_EQ(waiting_bytes(), 200 * MiB);
  validate();
  finish(unknown);
  allocate(64 * MiB, b);
  EXPECT_EQ(driver.calls(call::record_all), 5u);
  EXPECT_EQ(managed->trim(0).released_bytes, 200 * MiB - 64 * MiB);
  EXPECT_EQ(waits(), 0u);
}

TEST_F(FreeUnordered, AMarkCoversOnlyWhatWasFreedBeforeIt) {
  open(roomy());
  const address first = allocate(2 * MiB, a);
  allocate(2 * MiB, a);
  const address second = allocate(2 * MiB, a);
  run(unknown, {first, 2 * MiB});
  free_unordered(first);
  run(unknown, {second, 2 * MiB});
  free_unordered(second);
  finish(unknown);
  EXPECT_EQ(allocate(2 * MiB, b), first);
  EXPECT_EQ(waiting_bytes(), 2 * MiB) << "the second waits for its own mark";
  finish(unknown);
  EXPECT_EQ(allocate(2 * MiB, b), second);
}

TEST_F(FreeUnordered, ANeighbourThatHasPassedDoesNotWaitAgain) {
  open(roomy());
  const address large = allocate(16 * MiB, a);
  const address small = allocate(2 * MiB, a);
  ASSERT_EQ(small, large + 16 * MiB);
  free_unordered(large);
  allocate(512, b);  // looks, and finds that the mark has passed
  run(unknown, {small, 2 * MiB});
  free_unordered(small);
  EXPECT_EQ(waiting_bytes(), 2 * MiB);
  const address again = allocate(14 * MiB, b);
  EXPECT_LT(again, small);
  EXPECT_GE(again, large);
}

// ---- captures --------------------------------------------------------------------------

// As with PyTorch's own allocator, where memory stays with its stream. The driver's list of misuses
// has each write beside another stream's, and each unmapping under it.
TEST_F(FreeUnordered, AnUndeclaredUseMayOutliveAFree) {
  for (const bool is_moving : {false, true}) {
    vmm::pool_options options = is_moving ? moving() : vmm::pool_options{};
    options.undeclared_uses = options.streams_forgotten = true;
    open(options);
    const std::vector<address> held = allocate_each(4, 8 * MiB, a);
    for (const std::size_t freed : {std::size_t{0}, std::size_t{2}}) {
      run(unknown, {held[freed], 8 * MiB});
      free(held[freed], a);
    }
    for (const std::uint64_t size_bytes : {8 * MiB, 16 * MiB}) {
      const address other = allocate(size_bytes, b);
      run_and_free(b, {other, size_bytes});
    }
    EXPECT_TRUE(managed->trim(0).failure.code == errc::none);
    EXPECT_TRUE(driver.finish_all());
    EXPECT_TRUE(managed->trim(0).failure.code == errc::none);
    EXPECT_EQ(managed->statistics().held_bytes, 16 * MiB) << "all work has finished";
  }
}

TEST_F(FreeUnordered, ACaptureOfAKnownStreamPutsTheMarkOff) {
  open(moving(), &vmm::pool_options::streams_forgotten, true);
  const address at = allocate(8 * MiB, a);
  ASSERT_TRUE(driver.begin_capture(a, capture_mode::any_thread));
  free_unordered(at);
  const address other = allocate(8 * MiB, b);
  EXPECT_NE(other, at);
  EXPECT_EQ(driver.calls(call::record_all), 0u);
  EXPECT_EQ(waiting_bytes(), 8 * MiB);
  EXPECT_EQ(managed->synchronize().error().code, errc::not_permitted);
  end_capture(a);
  free(other, b);
  EXPECT_EQ(managed->trim(0).released_bytes, 16 * MiB);
  EXPECT_EQ(driver.calls(call::record_all), 1u);
}

TEST_F(FreeUnordered, AnAnnouncedCapturePutsTheMarkOff) {
  open(moving());
  const address at = allocate(8 * MiB, a);
  fine(managed->captures().begin());
  ASSERT_TRUE(driver.begin_capture(unknown, capture_mode::relaxed));
  free_unordered(at);
  free_unordered(allocate(4 * MiB, b));
  EXPECT_EQ(driver.calls(call::record_all), 0u);
  EXPECT_EQ(managed->synchronize().error().code, errc::not_permitted);
  const vmm::trim_report kept = managed->trim(0);
  EXPECT_EQ(kept.released_bytes, 0u);
  EXPECT_EQ(kept.still_mapped_bytes, managed->statistics().mapped_bytes);
  EXPECT_GE(kept.still_mapped_bytes, 12 * MiB);
  EXPECT_EQ(managed->trim(64 * MiB).still_mapped_bytes, 0u) << "no more is to go than is kept";
  end_capture(unknown);
  EXPECT_EQ(driver.calls(call::record_all), 0u);
  fine(managed->captures().end());
  EXPECT_EQ(driver.calls(call::record_all), 1u) << "what was put off is marked when it ends";
  EXPECT_EQ(managed->captures().end().error().code, errc::invalid_argument);
  EXPECT_EQ(managed->trim(0).still_mapped_bytes, 0u);
}

// The failure without an announcement: the driver refuses, and invalidates the capture.
TEST_F(FreeUnordered, ACaptureThatNobodyToldOfIsSpoiledAndNothingIsLost) {
  open(moving());
  ASSERT_TRUE(driver.begin_capture(unknown, capture_mode::any_thread));
  for (int i = 0; i < 10; ++i) {
    free_unordered(allocate(2 * MiB, a));
    if (i == 0) EXPECT_EQ(driver.calls(call::record_all), 1u);
  }
  const std::uint64_t tries = driver.calls(call::record_all);
  const std::vector<address> blocks = allocate_each(4, 512, a);
  const std::uint64_t before = driver.calls(call::record_all);
  for (const address at : blocks) free_unordered(at);
  EXPECT_EQ(driver.calls(call::record_all), before) << "a free does not try again";
  EXPECT_GE(before, tries);
  EXPECT_FALSE(driver.end_capture(unknown));
  EXPECT_EQ(managed->trim(0).failure.code, errc::none);
  EXPECT_EQ(managed->statistics().mapped_bytes, 0u);
}

TEST_F(FreeUnordered, ABlockOfAGraphGoesToTheGraph) {
  open(moving(), &vmm::pool_options::capture, capture_rule::private_memory);
  ASSERT_TRUE(driver.begin_capture(a, capture_mode::any_thread));
  const std::uint64_t number = managed->captures().number(a).value_or(0);
  const address at = allocate(4 * MiB, a);
  run(a, {at, 4 * MiB});
  const auto graph = *driver.end_capture(a);
  free_unordered(at);
  EXPECT_EQ(managed->statistics().captured_bytes, 4 * MiB);
  EXPECT_EQ(waiting_bytes(), 0u);
  EXPECT_NE(allocate(4 * MiB, b), at);
  fine(managed->captures().release(number, a));
  ASSERT_TRUE(driver.destroy_graph(graph));
  EXPECT_EQ(managed->statistics().captured_bytes, 0u);
}

// ---- failures --------------------------------------------------------------------------

TEST_F(FreeUnordered, AMarkThatFailsIsMadeLater) {
  for (const vmm::fake::native_error& failure : driver.possible_errors(call::record_all)) {
    open(moving());
    const address at = allocate(8 * MiB, a);
    const address held = allocate(2 * MiB, a);
    driver.fail({call::record_all, 1, true, failure});
    free_unordered(at);
    free_unordered(held);
    EXPECT_EQ(waiting_bytes(), 10 * MiB);
    validate();
    EXPECT_FALSE(managed->synchronize());
    driver.clear_faults();
    EXPECT_EQ(allocate(8 * MiB, b), at);
    free(at, b);
    fine(managed->synchronize());
    EXPECT_EQ(managed->trim(0).released_bytes, 10 * MiB);
  }
}

// ---- pins ------------------------------------------------------------------------------

TEST_F(FreeUnordered, APinnedBlockWaitsForTheWorkUntilItsLastPin) {
  open(moving());
  const address at = allocate(8 * MiB, a);
  fine(managed->pin(at));
  free_unordered(at);
  EXPECT_EQ(managed->pin(at).error().code, errc::not_allocated);
  free_unordered(allocate(2 * MiB, a));  // its mark is none of the pinned block's
  run(unknown, {at, 8 * MiB});           // the pin's owner may use it beside the pool
  fine(managed->unpin(at));
  EXPECT_NE(allocate(8 * MiB, b), at);
  finish(unknown);
  EXPECT_EQ(allocate(8 * MiB, b), at);
  run(b, {at, 8 * MiB});
}

// ---- looking and giving back -----------------------------------------------------------

TEST_F(FreeUnordered, TrimGivesBackOnlyWhatHasPassed) {
  open(moving());
  const address at = allocate(8 * MiB, a);
  run(unknown, {at, 8 * MiB});
  free_unordered(at);
  EXPECT_EQ(managed->trim(0).released_bytes, 0u);
  const auto regions = *managed->regions();
  EXPECT_TRUE(std::ranges::any_of(regions, [&](const vmm::pool_region& each) {
    return each.range.base == at && each.kind == vmm::pool_region_kind::free;
  }));
  EXPECT_EQ(managed->statistics().live_count, 0u);
  EXPECT_EQ(managed->statistics().reusable_bytes, 8 * MiB);
  finish(unknown);
  EXPECT_EQ(managed->trim(0).released_bytes, 8 * MiB);
  EXPECT_EQ(waiting_bytes(), 0u);
}

TEST_F(FreeUnordered, SynchronizeWaitsForIt) {
  open(moving());
  const address at = allocate(8 * MiB, a);
  run(unknown, {at, 8 * MiB});
  free_unordered(at);
  fine(managed->synchronize());
  EXPECT_FALSE(driver.finish_next(unknown).value_or(true)) << "it was waited for";
  EXPECT_EQ(managed->trim(0).released_bytes, 8 * MiB);
}

TEST_F(FreeUnordered, ThePoolsEndMarksWhatWasPutOff) {
  open(moving());
  const address at = allocate(8 * MiB, a);
  fine(managed->captures().begin());
  run(unknown, {at, 8 * MiB});
  free_unordered(at);
  fine(managed->captures().end());
  EXPECT_EQ(driver.calls(call::record_all), 1u);
  managed.reset();
  EXPECT_EQ(driver.calls(call::record_all), 2u) << "all work is waited for at the end";
}

TEST_F(FreeUnordered, ShortOfMemoryARequestWaitsForIt) {
  open(moving(), &vmm::pool_options::budget_bytes, 16 * MiB);
  const address at = allocate(16 * MiB, a);
  run(unknown, {at, 16 * MiB});
  free_unordered(at);
  const std::uint64_t waited = driver.calls(call::wait_event);
  const address again = allocate(16 * MiB, b);
  EXPECT_EQ(driver.calls(call::wait_event), waited + 1) << "on the device, not on the host";
  EXPECT_EQ(managed->statistics().host_wait_count, 0u);
  run_and_free(b, {again, 16 * MiB});
}

TEST_F(FreeUnordered, ShortOfMemoryInPartsTheHostWaits) {
  vmm::pool_options options = moving();
  options.budget_bytes = 16 * MiB;
  options.policy.handle_bytes_max = 16 * MiB;
  options.page_count = 8;
  options.first_stream = a;
  open(options);
  allocate(2 * MiB, a);
  const address left = allocate(6 * MiB, a);
  const address right = allocate(6 * MiB, a);
  run(unknown, {left, 12 * MiB});
  free_unordered(left);
  free(right, a);
  const address both = allocate(12 * MiB, b);
  EXPECT_EQ(both, left);
  EXPECT_GE(managed->statistics().host_wait_count, 1u);
  run_and_free(b, {both, 12 * MiB});
}

TEST_F(FreeUnordered, ARemapListenerMayDoIt) {
  open(moving());
  struct parker final : vmm::remap_listener {
    parker(pool& freeing, address to_free) : in(&freeing), at(to_free) {}
    void before_change(const vmm::remap_notice&) noexcept override {
      if (at.value != 0) EXPECT_TRUE(in->free(std::exchange(at, address{})));
    }
    pool* in;
    address at;
  } listener{*managed, allocate(2 * MiB, a)};
  const auto subscription = *managed->remaps().subscribe(listener);
  const address at = allocate(8 * MiB, a);
  free(at, a);
  (void)managed->trim(0);
  EXPECT_EQ(listener.at.value, 0u);
  EXPECT_EQ(managed->statistics().live_count, 0u);
  fine(managed->remaps().unsubscribe(subscription));
}

// ---- drivers without an event for all work ---------------------------------------------

struct AfterKnown : Unordered {
  AfterKnown() : Unordered(without_record_all()) {}
  void TearDown() override {
    EXPECT_EQ(driver.calls(call::record_all), 0u);
    Unordered::TearDown();
  }
};

TEST_F(AfterKnown, WaitsForEveryStreamThatThePoolKnows) {
  open(moving());
  const address at = allocate(8 * MiB, a);
  free(allocate(2 * MiB, b), b);
  run(a, {at, 2 * MiB});
  run(b, {at + 2 * MiB, 2 * MiB});
  run(stream_handle::default_stream, {at + 4 * MiB, 2 * MiB});
  free_unordered(at);
  for (const stream_handle last : {b, stream_handle::default_stream, a}) {
    const address other = allocate(8 * MiB, a);
    EXPECT_NE(other, at) << "work of one of its streams still writes there";
    free(other, a);
    finish(last);
  }
  EXPECT_EQ(managed->trim(0).failure.code, errc::none);
  EXPECT_EQ(managed->statistics().mapped_bytes, 0u);
}

TEST_F(AfterKnown, AStreamThatIsForgottenBeforeTheMarkCounts) {
  open(moving());
  const address at = allocate(8 * MiB, a);
  free(allocate(2 * MiB, b), b);
  ASSERT_TRUE(driver.finish_all());
  EXPECT_EQ(managed->trim(0).released_bytes, 2 * MiB) << "all that b freed has passed";
  run(b, {at, 8 * MiB});
  free_unordered(at);  // no mark yet: the next call that takes its turn records it
  fine(managed->forget(b));
  ASSERT_TRUE(driver.destroy_stream(b));
  b = stream_handle::default_stream;
  EXPECT_NE(allocate(8 * MiB, a), at);
  ASSERT_TRUE(driver.finish_all());
  EXPECT_EQ(allocate(8 * MiB, a), at);
}

TEST_F(AfterKnown, ACaptureOfOneOfThemPutsTheMarkOff) {
  open(moving());
  const address at = allocate(8 * MiB, a);
  ASSERT_TRUE(driver.begin_capture(a, capture_mode::any_thread));
  free_unordered(at);
  EXPECT_NE(allocate(8 * MiB, b), at);
  end_capture(a);
  EXPECT_EQ(allocate(8 * MiB, b), at);
}

struct AfterNothing : Unordered {
  AfterNothing() : Unordered(vmm::fake::profile::host()) {}
  void SetUp() override {}
};

TEST_F(AfterNothing, WhereWorkIsDoneWhenACallReturnsItIsFreeAtOnce) {
  open(moving(), &vmm::pool_options::page_bytes, 2 * MiB);
  const address at = allocate(8 * MiB, a);
  free_unordered(at);
  EXPECT_EQ(allocate(8 * MiB, a), at);
  EXPECT_EQ(driver.calls(call::record_all), 0u);
  free_unordered(at);
  EXPECT_EQ(managed->trim(0).released_bytes, 8 * MiB);
}

}  // namespace

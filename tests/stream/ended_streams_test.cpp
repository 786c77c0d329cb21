// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: streams may be destroyed without forget(), and a wrong stream harms only the call that
// names it. The pool never names a destroyed stream to the driver, never takes its work as
// finished, and goes on for all other callers. Method: streams that are destroyed under
// running kernels and handles that never were, on a fake driver that reports each use of a
// destroyed stream as a misuse; the fixture expects none.
#include "fake_pool.hpp"

import vmm.optimizer;

namespace {

using vmm::address, vmm::address_range, vmm::call, vmm::errc, vmm::stream_handle;

struct Ended : FakePool {
  explicit Ended(const vmm::fake::profile& plays = vmm::fake::profile::cuda()) : FakePool(plays) {
    driver.set_gone_streams_undefined(true);
  }
  // The block of a stream that is destroyed while its kernel still writes there.
  [[nodiscard]] address live_of_ended(std::uint64_t size_bytes, bool is_freed = false) {
    const stream_handle gone = *driver.create_stream();
    const address at = allocate(size_bytes, gone);
    run(gone, {at, size_bytes}, 1e6);
    if (is_freed) free(at, gone);
    EXPECT_TRUE(driver.destroy_stream(gone));
    return at;
  }
  address freed_on_ended(std::uint64_t size_bytes) { return live_of_ended(size_bytes, true); }
  // A block of b's. While a is captured, the call that would spoil that is not made.
  address waits_for_capture(call not_made) {
    const address other = allocate(8 * MiB, b);
    EXPECT_EQ(managed->synchronize().error().code, errc::not_permitted);
    EXPECT_EQ(driver.calls(not_made), 0u);
    const auto graph = driver.end_capture(a);
    EXPECT_TRUE(graph && driver.destroy_graph(*graph)) << "the capture was spoiled";
    return other;
  }
};

TEST_F(Ended, ItsMemoryWaitsForItsWorkAndServesOthersThen) {
  open(moving());
  const address at = freed_on_ended(8 * MiB);
  const address other = allocate(8 * MiB, a);  // moves the memory behind a wait, or creates some
  run(a, {other, 8 * MiB}, 10);
  EXPECT_EQ(managed->trim(0).released_bytes, 0u) << "its kernel still runs";
  ASSERT_TRUE(driver.finish_all());
  free(other, a);
  const address again = allocate(8 * MiB, b);
  EXPECT_TRUE(again == at || again == other);
  EXPECT_EQ(managed->statistics().mapped_bytes % (8 * MiB), 0u);
  free(again, b);
  fine(managed->synchronize());
}

// Also where the free fills the block.
TEST_F(Ended, AStreamThatFreesFirstWaitsForNoOtherStreamsWork) {
  for (const auto rule : {vmm::contents_rule::none, vmm::contents_rule::zero_on_release}) {
    open({}, &vmm::pool_options::contents, rule);
    const stream_handle fresh = *driver.create_stream();
    const address at = allocate(8 * MiB, a);
    const address other = allocate(8 * MiB, b);
    ASSERT_TRUE(driver.finish_all());
    free(at, fresh);
    run(b, {other, 8 * MiB}, 1e6);
    driver.reset_calls();
    allocate(8 * MiB, fresh);
    EXPECT_EQ(driver.calls(call::synchronize_event), 0u);
    EXPECT_GT(driver.resource_counts().pending_work, 0u);
    close();
    ASSERT_TRUE(driver.destroy_stream(fresh));
  }
}

TEST_F(Ended, ShortOfMemoryARequestHasWhatItLeft) {
  open(moving(), &vmm::pool_options::budget_bytes, 16 * MiB);
  freed_on_ended(12 * MiB);
  const address at = allocate(16 * MiB, a);
  run_and_free(a, {at, 16 * MiB}, 10);
}

TEST_F(Ended, ThePoolEndsWithItsLiveBlock) {
  (void)live_of_ended(8 * MiB);
  managed.reset();  // a misuse where the kernel is not waited for
  EXPECT_EQ(driver.resource_counts().memory_bytes, 0u);
}

TEST_F(Ended, ItIsFreedOnAnotherStreamOrAfterEverything) {
  open(moving());
  for (const bool is_named : {true, false}) {
    const address at = live_of_ended(8 * MiB);
    if (is_named) {
      ASSERT_TRUE(driver.finish_all());
      free(at, a);
    } else {
      fine(managed->free(at));
    }
    const address other = allocate(8 * MiB, b);
    run_and_free(b, {other, 8 * MiB}, 10);
  }
}

TEST_F(Ended, SuspensionWaitsForItsWork) {
  (void)live_of_ended(8 * MiB);
  vmm::suspension_list parts;
  fine(managed->suspension().begin_suspend({}, parts));
  EXPECT_EQ(driver.resource_counts().pending_work, 0u);
  managed->suspension().end_suspend(parts, false);
}

// A free names the stream: the driver's error of the capture query is the free's error.
TEST_F(Ended, ACallThatNamesItIsRefusedAndHarmsNoOther) {
  open(moving());
  const stream_handle gone = *driver.create_stream();
  const address at = allocate(8 * MiB, gone);
  ASSERT_TRUE(driver.destroy_stream(gone));
  EXPECT_EQ(managed->free(at, gone).error().code, errc::invalid_argument);
  EXPECT_EQ(managed->allocate(8 * MiB, gone).error().code, errc::invalid_argument);
  EXPECT_EQ(driver.misuse_count(), 2u) << "both calls name it to the driver";
  driver.clear_misuses();
  const address other = allocate(8 * MiB, a);
  free(other, a);
  free(at, a);
  fine(managed->synchronize());
  EXPECT_EQ(managed->trim(0).failure.code, errc::none);
}

// ---- programs that forget ----------------------------------------------------------------

// A refusal of the stream, of one that was destroyed or by a fault that passes: an event behind all
// work covers it, so that nothing is handed out early, and nothing is remembered of the refusal.
TEST_F(Ended, WhereStreamsAreNamedARefusalIsCovered) {
  vmm::pool_options options = moving();
  options.streams_forgotten = true;
  options.capture = vmm::capture_rule::unchecked;
  open(options);
  const address at = allocate(8 * MiB, a);
  run_and_free(a, {at, 8 * MiB}, 1e6);
  const auto failures = driver.possible_errors(call::record_event);
  const auto refusal = std::ranges::find(failures, errc::invalid_argument,
                                         [](const auto& each) { return each.code; });
  ASSERT_NE(refusal, failures.end());
  driver.fail({call::record_event, 1, false, *refusal});
  const address other = allocate(8 * MiB, b);
  EXPECT_EQ(driver.faults_struck(), 1u);
  run(b, {other, 8 * MiB}, 10);  // a misuse where a's kernel was taken as finished
  free(other, b);
  EXPECT_EQ(driver.calls(call::record_all), 1u);
  const std::uint64_t records = driver.calls(call::record_event);
  free(allocate(8 * MiB, a), a);
  fine(managed->synchronize());
  EXPECT_GT(driver.calls(call::record_event), records) << "the stream is named again";
}

TEST_F(Ended, WhereStreamsAreNamedADestroyedOneStopsNoCall) {
  open(moving(), &vmm::pool_options::streams_forgotten, true);
  freed_on_ended(8 * MiB);
  const address other = allocate(8 * MiB, a);
  run_and_free(a, {other, 8 * MiB}, 10);
  fine(managed->synchronize());
  EXPECT_EQ(managed->trim(0).failure.code, errc::none);
  managed.reset();
  EXPECT_GT(driver.misuse_count(), 0u) << "forget() is what the program has promised";
  driver.clear_misuses();
}

struct EndedWithoutTheEvent : Ended {
  EndedWithoutTheEvent() : Ended(without_record_all()) {}
};

// No event covers its work: all work is waited for, once, and once more for a batch of frees after
// everything.
TEST_F(EndedWithoutTheEvent, ItsMemoryIsWaitedForAndServesOthers) {
  for (const bool is_unordered : {false, true}) {
    open(moving());
    driver.reset_calls();
    const address at = freed_on_ended(8 * MiB);
    if (is_unordered) fine(managed->free(allocate(2 * MiB, b)));
    const address other = allocate(8 * MiB, a);
    EXPECT_EQ(other, at);
    run(a, {other, 8 * MiB}, 10);  // a misuse where the kernel of the ended one still runs
    free(other, a);
    const std::uint64_t waits = is_unordered ? 2 : 1;
    EXPECT_EQ(driver.calls(call::synchronize_all), waits);
    EXPECT_EQ(driver.misuse_count(), driver.misuse_count(vmm::fake::misuse_kind::stale_handle));
    driver.clear_misuses();
    fine(managed->synchronize());
    EXPECT_EQ(managed->trim(0).failure.code, errc::none);
    EXPECT_EQ(managed->statistics().mapped_bytes, 0u);
    EXPECT_EQ(driver.calls(call::synchronize_all), waits);
    EXPECT_EQ(driver.misuse_count(), 0u) << "it is not named again before the end";
    close();
    driver.clear_misuses();
  }
}

TEST_F(EndedWithoutTheEvent, ThePoolEndsBehindItsWork) {
  (void)live_of_ended(8 * MiB);
  managed.reset();
  EXPECT_EQ(driver.resource_counts().memory_bytes, 0u);
  EXPECT_EQ(driver.misuse_count(), driver.misuse_count(vmm::fake::misuse_kind::stale_handle));
  driver.clear_misuses();
}

// The wait would spoil a capture: the memory is left alone until it has ended.
TEST_F(EndedWithoutTheEvent, ItIsNotWaitedForBesideAnAnnouncedCapture) {
  open(moving());
  const address at = freed_on_ended(8 * MiB);
  fine(managed->captures().begin());
  ASSERT_TRUE(driver.begin_capture(a, vmm::capture_mode::any_thread));
  EXPECT_NE(waits_for_capture(call::synchronize_all), at);
  fine(managed->captures().end());
  fine(managed->synchronize());
  EXPECT_EQ(driver.calls(call::synchronize_all), 1u);
  close();
  driver.clear_misuses();
}

// ---- a new stream has its handle -----------------------------------------------------------

struct EndedAgain : Ended {
  EndedAgain() : Ended(with_handles_again()) {}
  void TearDown() override {
    if (fresh != stream_handle::default_stream) EXPECT_TRUE(driver.destroy_stream(fresh));
    Ended::TearDown();
  }
  // A stream whose handle an earlier one had that still writes to a block that it freed.
  void again() {
    const stream_handle first = *driver.create_stream();
    EXPECT_TRUE(driver.destroy_stream(first));
    freed = freed_on_ended(8 * MiB);
    fresh = *driver.create_stream();
    EXPECT_EQ(fresh, first) << "the handle is not given again";
  }
  void use(address at, stream_handle stream) {
    run(stream, {at, 8 * MiB}, 10);  // a misuse where the other kernel still writes there
    free(at, stream);
  }
  stream_handle fresh{};
  address freed{};
};

TEST_F(EndedAgain, ItHasNoneOfItsMemoryUntilItsWorkHasFinished) {
  open(moving());
  again();
  use(allocate(8 * MiB, fresh), fresh);
  use(managed->allocate(8 * MiB, 2 * MiB, fresh).value(), fresh);
  EXPECT_EQ(driver.calls(call::record_all), 1u) << "once for a stream";
  fine(managed->synchronize());
  EXPECT_EQ(managed->statistics().mapped_bytes % (8 * MiB), 0u);
}

TEST_F(EndedAgain, AnAlignedRequestComesFirst) {
  open(moving());
  again();
  use(managed->allocate(8 * MiB, 2 * MiB, fresh).value(), fresh);
}

// Beside a kernel that goes on, with and without a capture that puts events off. Neither events nor
// records grow in number with the streams that went, and their memory serves in the end.
TEST_F(EndedAgain, ManyEndBesideAKernel) {
  for (const bool is_captured : {false, true}) {
    open(moving());
    const address at = allocate(2 * MiB, b);
    run(b, {at, 2 * MiB}, 1e9);
    free(allocate(2 * MiB, a), a);
    if (is_captured) {
      fine(managed->captures().begin());
      ASSERT_TRUE(driver.begin_capture(a, vmm::capture_mode::relaxed));
    }
    for (int count = 0; count < 400; ++count) {
      const stream_handle gone = *driver.create_stream();
      const address first = allocate(2 * MiB, gone);
      run_and_free(gone, {first, 2 * MiB}, 1);
      const address grown = allocate(4 * MiB, gone);  // moves the first one
      run_and_free(gone, {grown, 4 * MiB}, 1);
      ASSERT_TRUE(driver.destroy_stream(gone));
      if (count % 50 == 0) validate();
    }
    EXPECT_LE(driver.resource_counts().events, 100u);
    if (is_captured) {
      end_capture(a);
      fine(managed->captures().end());
    }
    free(at, b);
    fine(managed->synchronize());
    EXPECT_EQ(managed->trim(0).failure.code, errc::none);
    EXPECT_EQ(managed->statistics().mapped_bytes, 0u);
    EXPECT_EQ(managed->statistics().stale_count, 0u);
  }
}

// A block that is freed and pinned keeps the record of a stream that went.
TEST_F(EndedAgain, ManyEndWithPinnedBlocks) {
  open(moving());
  const address at = allocate(2 * MiB, b);
  run(b, {at, 2 * MiB}, 1e9);
  std::vector<address> pinned;
  for (int count = 0; count < 100; ++count) {
    const stream_handle gone = *driver.create_stream();
    pinned.push_back(allocate(2 * MiB, gone));
    fine(managed->pin(pinned.back()));
    run(gone, {pinned.back(), 2 * MiB}, 1e8);
    free(pinned.back(), gone);
    ASSERT_TRUE(driver.destroy_stream(gone));
  }
  for (const address each : pinned) fine(managed->unpin(each));
  const address other = allocate(64 * MiB, a);
  run_and_free(a, {other, 64 * MiB}, 10);
  free(at, b);
  fine(managed->synchronize());
  EXPECT_EQ(managed->trim(0).failure.code, errc::none);
  EXPECT_EQ(managed->statistics().mapped_bytes, 0u);
}

// What is made ready is the stream's own: nothing that the earlier one still uses is moved.
TEST_F(EndedAgain, MemoryIsMadeReady) {
  open(moving());
  again();
  EXPECT_EQ(managed->preallocate(16 * MiB, fresh).failure.code, errc::none);
  use(allocate(16 * MiB, fresh), fresh);
}

// What it frees first is taken as the earlier stream's.
TEST_F(EndedAgain, AFreeComesFirst) {
  open(moving());
  const address other = allocate(8 * MiB, a);
  again();
  run(a, {other, 8 * MiB}, 10);
  ASSERT_TRUE(driver.synchronize_stream(a));
  free(other, fresh);
  use(allocate(8 * MiB, fresh), fresh);
}

// An event on the new stream does not stand for the earlier one's work.
TEST_F(EndedAgain, ItIsForgottenWithoutARequest) {
  open(moving());
  const address other = allocate(8 * MiB, a);
  again();
  free(other, fresh);
  fine(managed->forget(fresh));
  EXPECT_EQ(driver.calls(call::record_all), 1u);
  EXPECT_TRUE(driver.destroy_stream(std::exchange(fresh, {})));
  use(allocate(8 * MiB, a), a);
  use(allocate(8 * MiB, a), a);
  fine(managed->synchronize());
}

TEST_F(EndedAgain, AGraphIsReleasedOnIt) {
  open(moving(), &vmm::pool_options::capture, vmm::capture_rule::private_memory);
  ASSERT_TRUE(driver.begin_capture(a, vmm::capture_mode::relaxed));
  free(allocate(8 * MiB, a), a);
  const vmm::result<std::uint64_t> number = managed->captures().number(a);
  const auto graph = driver.end_capture(a);
  ASSERT_TRUE(number && graph);
  ASSERT_TRUE(driver.destroy_graph(*graph));
  again();
  fine(managed->captures().release(*number, fresh));
  use(allocate(8 * MiB, fresh), fresh);
  use(allocate(8 * MiB, fresh), fresh);
  use(allocate(8 * MiB, a), a);
}

// The refused call leaves the capture seen: the next request spoils nothing.
TEST_F(EndedAgain, ACaptureOutlivesARefusedForget) {
  open(moving(), &vmm::pool_options::capture, vmm::capture_rule::private_memory);
  again();
  free(allocate(2 * MiB, fresh), fresh);
  ASSERT_TRUE(driver.begin_capture(fresh, vmm::capture_mode::any_thread));
  free(allocate(8 * MiB, fresh), fresh);
  EXPECT_EQ(managed->forget(fresh).error().code, errc::in_use);
  const address other = allocate(8 * MiB, b);
  run_and_free(b, {other, 8 * MiB}, 10);
  end_capture(fresh);
}

// No event can be recorded: its memory is left alone, and its record goes when the next one ends.
TEST_F(EndedAgain, BesideACapture) {
  open(moving());
  again();
  fine(managed->captures().begin());
  ASSERT_TRUE(driver.begin_capture(a, vmm::capture_mode::any_thread));
  const address at = allocate(8 * MiB, fresh);
  EXPECT_NE(at, freed);
  use(at, fresh);
  EXPECT_EQ(driver.calls(call::record_all), 0u);
  validate();
  end_capture(a);
  fine(managed->captures().end());
  EXPECT_TRUE(driver.destroy_stream(fresh));
  ASSERT_EQ(*driver.create_stream(), fresh);
  use(allocate(8 * MiB, fresh), fresh);
  fine(managed->synchronize());
  use(allocate(8 * MiB, fresh), fresh);
  EXPECT_LE(managed->statistics().stream_count, 2u) << "records of streams that ended stay";
}

// The new stream is captured itself, unannounced: its own request spoils nothing.
TEST_F(EndedAgain, InsideACapture) {
  open(moving(), &vmm::pool_options::capture, vmm::capture_rule::private_memory);
  again();
  ASSERT_TRUE(driver.begin_capture(fresh, vmm::capture_mode::any_thread));
  const address at = allocate(8 * MiB, fresh);
  EXPECT_NE(at, freed);
  free(at, fresh);
  end_capture(fresh);
  use(allocate(8 * MiB, fresh), fresh);
}

TEST_F(EndedAgain, ManyEndAtRandom) {
  open(moving());
  std::mt19937 random(7);
  std::array<stream_handle, 4> streams{};
  for (stream_handle& each : streams) each = *driver.create_stream();
  std::vector<address> live;
  for (int step = 0; step < 4000; ++step) {
    stream_handle& stream = streams[random() % streams.size()];
    if (random() % 4 == 0) {
      ASSERT_TRUE(driver.destroy_stream(stream));
      stream = *driver.create_stream();
    }
    const std::uint64_t size_bytes = (1 + random() % 8) * MiB;
    const address at = allocate(size_bytes, stream);
    run_and_free(stream, {at, size_bytes}, 50);
    if (step % 200 == 0) validate();
  }
  EXPECT_LE(managed->statistics().stream_count, streams.size() + 1);
  for (const stream_handle each : streams) EXPECT_TRUE(driver.destroy_stream(each));
}

// ---- captures ----------------------------------------------------------------------------

TEST_F(Ended, AnAnnouncedCaptureIsNotSpoiled) {
  open(moving());
  const address at = freed_on_ended(8 * MiB);
  fine(managed->captures().begin());
  ASSERT_TRUE(driver.begin_capture(a, vmm::capture_mode::any_thread));
  EXPECT_NE(waits_for_capture(call::record_all), at);
  fine(managed->captures().end());
  fine(managed->synchronize());
}

TEST_F(Ended, ACaptureThatACallHasSeenIsNotSpoiled) {
  open(moving());
  freed_on_ended(8 * MiB);
  ASSERT_TRUE(driver.begin_capture(a, vmm::capture_mode::any_thread));
  EXPECT_EQ(managed->allocate(MiB, a).error().code, errc::not_permitted);
  waits_for_capture(call::record_all);
  free(allocate(MiB, a), a);  // its end is seen
  fine(managed->synchronize());
}

// The end of a capture on a stream that is destroyed then is never seen.
TEST_F(Ended, AfterItsCaptureItStopsNoRequest) {
  open(moving(), &vmm::pool_options::budget_bytes, 16 * MiB);
  const address at = allocate(12 * MiB, b);
  run_and_free(b, {at, 12 * MiB}, 1e6);
  const stream_handle gone = *driver.create_stream();
  ASSERT_TRUE(driver.begin_capture(gone, vmm::capture_mode::any_thread));
  EXPECT_EQ(managed->allocate(MiB, gone).error().code, errc::not_permitted);
  end_capture(gone);
  ASSERT_TRUE(driver.destroy_stream(gone));
  const address other = allocate(16 * MiB, a);  // of b's memory
  run_and_free(a, {other, 16 * MiB}, 10);
  EXPECT_EQ(managed->synchronize().error().code, errc::not_permitted);
  fine(managed->forget(gone));
  fine(managed->synchronize());
}

TEST_F(Ended, TheLegacyNumberIsTheDefaultStream) {
  constexpr stream_handle legacy{1};
  constexpr stream_handle zero = stream_handle::default_stream;
  const address at = allocate(8 * MiB, zero);
  free(at, legacy);
  EXPECT_EQ(allocate(8 * MiB, legacy), at);
  free(at, zero);
  EXPECT_EQ(allocate(8 * MiB, zero), at);
  EXPECT_EQ(managed->statistics().stream_count, 1u);
  free(at, legacy);
  fine(managed->forget(legacy));
  EXPECT_EQ(managed->statistics().stream_count, 0u);
  const address whole = managed->allocate_dedicated(8 * MiB, legacy).value_or(address{});
  free(whole, zero);
  EXPECT_EQ(managed->statistics().stream_count, 1u);
}

}  // namespace

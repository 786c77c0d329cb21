// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a growable range keeps its addresses and its bytes, adds zeros, gives memory back in stream
// order without waiting, and shares its manager's memory with other ranges.
// Method: contents are written and read through pointers on the host driver, and by tags and reads
// on the fake driver, whose work finishes when the test chooses. Driver calls are counted; the fake
// driver finds every use of memory that is not mapped.
#include "../support/test.h"

import vmm.backend;
import vmm.fake;
import vmm.host;
import vmm.manager;

namespace {

using vmm::address, vmm::call, vmm::errc, vmm::growable_options, vmm::growable_range,
    vmm::stream_handle;

template <class Answer>
errc code_of(const Answer& answer) {
  return answer ? errc::none : answer.error().code;
}

std::byte* bytes_at(address at) { return at.as<std::byte>(); }
bool is_all(address at, std::uint64_t size_bytes, std::byte value) {
  const std::span<const std::byte> bytes(bytes_at(at), size_bytes);
  return std::all_of(bytes.begin(), bytes.end(), [&](std::byte one) { return one == value; });
}

// ---- on real memory --------------------------------------------------------------------

struct GrowableOnHost : testing::Test {
  GrowableOnHost() : driver(vmm::host_driver::open({.recommended_bytes = 64 << 10}).value()) {
    managed = std::make_unique<vmm::manager>(driver);
    EXPECT_TRUE(managed->set_up());
    unit = managed->granularity_bytes();
  }
  void TearDown() override {
    EXPECT_EQ(managed->statistics().live_count, 0u);
    EXPECT_TRUE(managed->validate());
    managed.reset();
    EXPECT_TRUE(driver.resource_counts().empty());
  }

  vmm::host_driver driver;
  std::unique_ptr<vmm::manager> managed;
  std::uint64_t unit = 0;
};

TEST_F(GrowableOnHost, GrowsInPlaceAndKeepsItsBytes) {
  growable_range range(*managed, {.segment_bytes_max = 120 * GiB});
  ASSERT_TRUE(range.reserve());
  EXPECT_EQ(range.statistics().physical_bytes, 0u);
  EXPECT_EQ(managed->statistics().held_bytes, 0u) << "addresses cost no memory";
  ASSERT_TRUE(range.grow(unit));
  const address base = *range.segment(0);
  std::uint64_t written_bytes = 0;
  for (int step = 1; step <= 64; ++step) {
    const std::uint64_t size_bytes = static_cast<std::uint64_t>(step) * MiB + 100;
    ASSERT_TRUE(range.grow(size_bytes)) << step;
    ASSERT_EQ(*range.segment(0), base);
    ASSERT_EQ(*range.size_bytes(), size_bytes);
    ASSERT_TRUE(is_all(base + written_bytes, size_bytes - written_bytes, std::byte{0})) << step;
    std::memset(bytes_at(base + written_bytes), step, size_bytes - written_bytes);
    written_bytes = size_bytes;
    ASSERT_LT(range.statistics().physical_bytes - size_bytes, unit);
  }
  for (int step = 1; step <= 64; ++step)
    ASSERT_EQ(bytes_at(base)[static_cast<std::uint64_t>(step) * MiB], static_cast<std::byte>(step));
  ASSERT_TRUE(range.shrink(8 * MiB));
  EXPECT_LT(range.statistics().physical_bytes - 8 * MiB, unit);
  EXPECT_EQ(managed->statistics().mapped_bytes, range.statistics().physical_bytes);
  ASSERT_TRUE(range.grow(20 * MiB));
  EXPECT_TRUE(is_all(base, 1 * MiB, std::byte{1}));
  EXPECT_EQ(bytes_at(base)[8 * MiB - 1], std::byte{8});
  EXPECT_TRUE(is_all(base + 8 * MiB, 12 * MiB, std::byte{0})) << "new bytes are zero";
  EXPECT_TRUE(range.validate());
}

TEST_F(GrowableOnHost, BytesThatComeBackInsideOfAGranuleAreZero) {
  growable_range range(*managed, {.segment_bytes_max = 4 * unit});
  ASSERT_TRUE(range.grow(unit));
  const address base = *range.segment(0);
  std::memset(bytes_at(base), 7, unit);
  ASSERT_TRUE(range.shrink(100));
  ASSERT_TRUE(range.grow(unit));
  EXPECT_TRUE(is_all(base, 100, std::byte{7}));
  EXPECT_TRUE(is_all(base + 100, unit - 100, std::byte{0}));
}

TEST_F(GrowableOnHost, SegmentsGrowInStepAtAStride) {
  constexpr std::uint64_t layers = 6;
  growable_range range(*managed, {.segment_bytes_max = 4 * MiB + 1, .segment_count = layers});
  ASSERT_TRUE(range.grow(MiB));
  const vmm::growable_statistics now = range.statistics();
  EXPECT_EQ(now.stride_bytes % unit, 0u);
  EXPECT_GE(now.stride_bytes, 4 * MiB + 1);
  for (std::uint64_t layer = 0; layer < layers; ++layer) {
    ASSERT_EQ(*range.segment(layer), now.base + layer * now.stride_bytes);
    std::memset(bytes_at(*range.segment(layer)), static_cast<int>(layer + 1), MiB);
  }
  ASSERT_TRUE(range.grow(3 * MiB));
  ASSERT_TRUE(range.shrink(2 * MiB));
  for (std::uint64_t layer = 0; layer < layers; ++layer) {
    const address at = now.base + layer * now.stride_bytes;
    EXPECT_TRUE(is_all(at, MiB, static_cast<std::byte>(layer + 1)));
    EXPECT_TRUE(is_all(at + MiB, MiB, std::byte{0}));
  }
  EXPECT_EQ(range.statistics().size_bytes, layers * 2 * MiB);
  ASSERT_TRUE(range.release());
  EXPECT_EQ(range.statistics().physical_bytes, 0u);
  ASSERT_TRUE(range.grow(unit));
  EXPECT_EQ(range.statistics().base, now.base);
}

TEST_F(GrowableOnHost, PagesComeAndGoInAnyOrder) {
  constexpr std::uint64_t pages = 32;
  growable_range range(*managed, {.segment_bytes_max = unit, .segment_count = pages});
  const auto set = [&](std::uint64_t page, std::uint64_t size_bytes) {
    return range.resize({.size_bytes = size_bytes, .first_segment = page, .segment_count = 1});
  };
  for (const std::uint64_t page : {31u, 0u, 7u}) {
    ASSERT_TRUE(set(page, unit));
    std::memset(bytes_at(*range.segment(page)), static_cast<int>(page + 1), unit);
  }
  ASSERT_TRUE(set(0, 0));
  ASSERT_TRUE(set(8, unit));
  EXPECT_TRUE(is_all(*range.segment(7), unit, std::byte{8}));
  EXPECT_TRUE(is_all(*range.segment(31), unit, std::byte{32}));
  EXPECT_TRUE(is_all(*range.segment(8), unit, std::byte{0})) << "not what page 0 had";
  EXPECT_EQ(range.statistics().physical_bytes, 3 * unit);
  EXPECT_EQ(code_of(range.grow(0)), errc::invalid_argument);
  EXPECT_EQ(code_of(range.shrink(unit)), errc::invalid_argument) << "page 1 is smaller";
  ASSERT_TRUE(range.resize({.size_bytes = unit})) << "all of them";
  EXPECT_EQ(range.statistics().physical_bytes, pages * unit);
}

TEST_F(GrowableOnHost, MemoryServesBlocksAndRanges) {
  growable_range range(*managed, {.segment_bytes_max = 4 * MiB});
  ASSERT_TRUE(range.grow(4 * MiB));
  ASSERT_TRUE(range.release());
  const std::uint64_t made = managed->statistics().created_count;
  std::vector<address> blocks;
  for (std::uint64_t taken = 0; taken < 4 * MiB; taken += unit)
    blocks.push_back(*managed->allocate(unit));
  EXPECT_EQ(managed->statistics().created_count, made);
  for (const address at : blocks) EXPECT_TRUE(managed->free(at));
}

// ---- under unfinished work -------------------------------------------------------------

struct GrowableOnFake : testing::Test {
  GrowableOnFake() : GrowableOnFake(vmm::fake::profile::cuda()) {}
  explicit GrowableOnFake(const vmm::fake::profile& plays) : driver(plays) {
    open({});
    a = *driver.create_stream();
    b = *driver.create_stream();
  }
  void open(const vmm::manager_options& options) {
    managed = std::make_unique<vmm::manager>(driver, options);
    EXPECT_TRUE(managed->set_up());
    unit = managed->granularity_bytes();
  }
  void TearDown() override {
    EXPECT_TRUE(managed->validate());
    managed.reset();
    EXPECT_TRUE(driver.finish_all());
    for (const stream_handle each : {a, b}) EXPECT_TRUE(driver.destroy_stream(each));
    EXPECT_TRUE(driver.check_empty()) << driver.report();
    for (const auto& each : driver.misuses()) ADD_FAILURE() << each.detail;
  }
  // A kernel that reads the range until the test lets it finish.
  void read_slowly(const growable_range& range, std::uint64_t size_bytes, stream_handle stream) {
    const vmm::address_range read{*range.segment(0), size_bytes};
    ASSERT_TRUE(driver.launch(stream, {.duration_us = 1e9, .reads = {&read, 1}}));
  }
  [[nodiscard]] std::uint64_t waits() const {
    return driver.calls(call::synchronize_event) + driver.calls(call::synchronize_stream);
  }

  vmm::fake_driver driver;
  std::unique_ptr<vmm::manager> managed;
  std::uint64_t unit = 0;
  stream_handle a{}, b{};
};

TEST_F(GrowableOnFake, AShrinkUnderAReaderDoesNotWait) {
  growable_range range(*managed, {.segment_bytes_max = 64 * unit, .zero_new = false});
  ASSERT_TRUE(range.grow(8 * unit, a));
  read_slowly(range, 8 * unit, a);
  const std::uint64_t unmaps = driver.calls(call::unmap);
  ASSERT_TRUE(range.shrink(2 * unit, a));
  EXPECT_EQ(waits(), 0u);
  EXPECT_EQ(driver.calls(call::unmap), unmaps) << "the reader still uses the addresses";
  EXPECT_EQ(range.statistics().physical_bytes, 2 * unit);
  EXPECT_EQ(managed->statistics().retained_bytes, 6 * unit) << "others may have it";
  ASSERT_TRUE(driver.finish_all());
  ASSERT_TRUE(range.grow(8 * unit, a));
  EXPECT_EQ(waits(), 0u) << "the reader had finished";
}

TEST_F(GrowableOnFake, MemoryIsTakenByAnotherWhileAReaderRuns) {
  growable_range first(*managed, {.segment_bytes_max = 64 * unit, .zero_new = false});
  growable_range second(*managed, {.segment_bytes_max = 64 * unit, .zero_new = false});
  ASSERT_TRUE(first.grow(8 * unit, a));
  ASSERT_TRUE(second.grow(unit, b));
  ASSERT_TRUE(driver.write_tag({*first.segment(0), 8 * unit}, 11));
  const std::uint64_t made = driver.calls(call::create);
  const vmm::address_range read{*first.segment(0), 8 * unit};
  const vmm::address_range written{*second.segment(0), 7 * unit};
  ASSERT_TRUE(driver.launch(a, {.duration_us = 100, .reads = {&read, 1}, .expected = 11}));
  ASSERT_TRUE(first.shrink(2 * unit, a));
  ASSERT_TRUE(second.grow(7 * unit, b));
  ASSERT_TRUE(driver.launch(b, {.duration_us = 1, .writes = {&written, 1}, .tag = 22}));
  EXPECT_EQ(driver.calls(call::create), made) << "nothing goes back to the driver and comes again";
  EXPECT_EQ(waits(), 0u);
  ASSERT_TRUE(driver.finish_all()) << "the writer runs behind the reader";
  EXPECT_EQ(driver.misuse_count(), 0u);
  EXPECT_EQ(*driver.read_tag(*first.segment(0)), 11u);
  EXPECT_EQ(*driver.read_tag(*second.segment(0) + 6 * unit), 22u);
}

TEST_F(GrowableOnFake, AGrowthOverAddressesInUseWaitsOrSaysSo) {
  growable_range range(*managed, {.segment_bytes_max = 64 * unit, .zero_new = false});
  ASSERT_TRUE(range.grow(8 * unit, a));
  read_slowly(range, 8 * unit, a);
  ASSERT_TRUE(range.shrink(2 * unit, a));
  EXPECT_EQ(code_of(range.resize({.size_bytes = 4 * unit, .stream = b, .may_wait = false})),
            errc::in_use);
  EXPECT_EQ(*range.size_bytes(), 2 * unit);
  EXPECT_EQ(waits(), 0u);
  ASSERT_TRUE(range.grow(4 * unit, b));
  EXPECT_EQ(waits(), 1u);
  EXPECT_EQ(range.statistics().physical_bytes, 4 * unit);
}

TEST_F(GrowableOnFake, AShrinkOnAnotherStreamIsBehindTheFirstOnes) {
  growable_range first(*managed, {.segment_bytes_max = 64 * unit, .zero_new = false});
  growable_range second(*managed, {.segment_bytes_max = 64 * unit, .zero_new = false});
  growable_range third(*managed, {.segment_bytes_max = 64 * unit, .zero_new = false});
  ASSERT_TRUE(first.grow(4 * unit, a));
  ASSERT_TRUE(driver.write_tag({*first.segment(0), 4 * unit}, 5));
  const vmm::address_range read{*first.segment(0), 4 * unit};
  ASSERT_TRUE(driver.launch(a, {.duration_us = 100, .reads = {&read, 1}, .expected = 5}));
  ASSERT_TRUE(first.release(a));
  // Taken on a stream that never uses it, and released on one that is not ordered behind the
  // reader.
  ASSERT_TRUE(second.grow(4 * unit, b));
  ASSERT_TRUE(second.release(stream_handle::default_stream));
  ASSERT_TRUE(third.grow(4 * unit, stream_handle::default_stream));
  const vmm::address_range written{*third.segment(0), 4 * unit};
  ASSERT_TRUE(driver.launch(stream_handle::default_stream,
                            {.duration_us = 1, .writes = {&written, 1}, .tag = 6}));
  ASSERT_TRUE(driver.finish_all());
  EXPECT_EQ(driver.misuse_count(), 0u);
}

TEST_F(GrowableOnFake, AClosedRangeGoesBehindItsReader) {
  auto range = std::make_unique<growable_range>(
      *managed, growable_options{.segment_bytes_max = 64 * unit, .segment_count = 3});
  ASSERT_TRUE(range->grow(8 * unit, a));
  read_slowly(*range, 8 * unit, a);
  ASSERT_TRUE(range->shrink(unit, a));
  ASSERT_TRUE(range->close(a));
  EXPECT_EQ(code_of(range->close(a)), errc::invalid_argument);
  EXPECT_EQ(code_of(range->grow(unit, a)), errc::invalid_argument);
  range.reset();
  EXPECT_EQ(managed->statistics().live_count, 0u);
  EXPECT_GT(managed->statistics().retired_bytes, 0u);
  EXPECT_EQ(waits(), 0u);
  ASSERT_TRUE(driver.finish_all());
  (void)managed->trim(0);
  (void)managed->trim(0);
  EXPECT_EQ(managed->statistics().retired_bytes, 0u);
  EXPECT_EQ(managed->statistics().held_bytes, 0u);
}

TEST_F(GrowableOnFake, ABudgetIsSharedAndSaysWhenItIsSpent) {
  managed.reset();
  vmm::manager_options options;
  options.budget_bytes = 32 * unit;
  open(options);
  growable_range first(*managed, {.segment_bytes_max = 64 * unit, .segment_count = 2});
  growable_range second(*managed, {.segment_bytes_max = 64 * unit, .segment_count = 2});
  ASSERT_TRUE(first.grow(12 * unit, a));
  const auto refused = second.grow(6 * unit, b);
  EXPECT_EQ(code_of(refused), errc::over_budget);
  EXPECT_EQ(*second.size_bytes(0), 0u) << "one segment had room";
  EXPECT_EQ(second.statistics().physical_bytes, 0u);
  ASSERT_TRUE(first.shrink(8 * unit, a));
  const std::uint64_t released = driver.calls(call::release);  // by the growth that was refused
  const std::uint64_t made = driver.calls(call::create);
  ASSERT_TRUE(second.grow(6 * unit, b));
  EXPECT_LE(driver.calls(call::create) - made, 12u - 8u) << "8 granules came from the first range";
  EXPECT_EQ(driver.calls(call::release), released) << "none of it by way of the driver";
  EXPECT_LE(managed->statistics().peak_held_bytes, 32 * unit);
}

TEST_F(GrowableOnFake, PiecesAreWhatWasAskedFor) {
  growable_range plain(*managed, {.segment_bytes_max = 64 * unit});
  growable_range large(*managed, {.segment_bytes_max = 64 * unit, .handle_bytes = 4 * unit});
  growable_range few(*managed, {.segment_bytes_max = 64 * unit, .handle_bytes = vmm::few_handles});
  ASSERT_TRUE(plain.grow(8 * unit));
  ASSERT_TRUE(large.grow(5 * unit));
  ASSERT_TRUE(few.grow(8 * unit));
  EXPECT_EQ(plain.parts(0)->size(), 8u);
  EXPECT_EQ(large.statistics().physical_bytes, 8 * unit) << "whole pieces";
  EXPECT_EQ(few.parts(0)->size(), 1u);
  ASSERT_TRUE(large.shrink(4 * unit));
  EXPECT_EQ(large.statistics().physical_bytes, 4 * unit);
  ASSERT_TRUE(few.shrink(unit));
  EXPECT_EQ(few.statistics().physical_bytes, 8 * unit) << "one handle is not cut";
  ASSERT_TRUE(plain.release());
  // Eight cached pieces are there; one handle is made all the same.
  ASSERT_TRUE(plain.resize({.size_bytes = 8 * unit, .one_handle = true}));
  ASSERT_EQ(plain.parts(0)->size(), 1u);
  EXPECT_EQ(plain.parts(0)->front().size_bytes, 8 * unit);
  EXPECT_EQ(code_of(plain.resize({.size_bytes = 9 * unit, .one_handle = true})),
            errc::invalid_argument);
  ASSERT_TRUE(plain.release());
  ASSERT_TRUE(plain.resize({.size_bytes = 8 * unit, .one_handle = true}));
  EXPECT_EQ(plain.parts(0)->size(), 1u) << "the one that it gave up";
}

TEST_F(GrowableOnFake, HoldsKeepBytesAndTheRange) {
  growable_range range(*managed, {.segment_bytes_max = 64 * unit, .segment_count = 3});
  ASSERT_TRUE(range.grow(4 * unit));
  EXPECT_EQ(code_of(range.pin({.size_bytes = 4 * unit + 1})), errc::invalid_argument);
  const auto beyond = range.pin({.first_segment = 3});
  EXPECT_EQ(code_of(beyond), errc::invalid_argument);
  EXPECT_TRUE(std::string_view(beyond.error().detail).ends_with("not '3': the range has 3"));
  const auto larger = range.grow(65 * unit);
  EXPECT_EQ(code_of(larger), errc::invalid_argument);
  EXPECT_TRUE(std::string_view(larger.error().detail).ends_with(std::to_string(64 * unit)));
  {
    auto kept = *range.pin({.size_bytes = 3 * unit, .first_segment = 1, .segment_count = 1});
    EXPECT_EQ(code_of(range.shrink(2 * unit)), errc::in_use);
    EXPECT_EQ(*range.size_bytes(0), 4 * unit) << "all or none";
    EXPECT_TRUE(range.shrink(3 * unit));
    EXPECT_TRUE(range.grow(8 * unit)) << "a view stays valid while the range grows";
    EXPECT_TRUE(range.resize({.size_bytes = 0, .first_segment = 2}));
    EXPECT_EQ(code_of(range.close()), errc::in_use);
    vmm::growable_pin moved = std::move(kept);
    EXPECT_EQ(range.statistics().pin_count, 1u);
  }
  EXPECT_EQ(range.statistics().pin_count, 0u);
  auto addresses = range.pin({});
  ASSERT_TRUE(addresses);
  EXPECT_TRUE(range.release()) << "addresses are pinned, memory is not";
  EXPECT_EQ(code_of(range.close()), errc::in_use);
  const std::uint64_t number = addresses->release();
  EXPECT_TRUE(range.unpin(number));
  EXPECT_EQ(code_of(range.unpin(number)), errc::invalid_argument);
  EXPECT_TRUE(range.close());
}

TEST_F(GrowableOnFake, EveryByteCountedWhenMemoryIsShort) {
  managed.reset();
  vmm::fake::profile small = vmm::fake::profile::cuda();
  small.device_memory_bytes = 64 * MiB;
  vmm::fake_driver tiny(small);
  {
    vmm::manager memory(tiny);
    growable_range first(memory, {.segment_bytes_max = 128 * MiB});
    growable_range second(memory, {.segment_bytes_max = 128 * MiB});
    std::uint64_t got_bytes = 0;
    while (first.grow(got_bytes + 2 * MiB)) got_bytes += 2 * MiB;
    EXPECT_GT(got_bytes, 32 * MiB);
    const auto refused = second.grow(16 * MiB);
    EXPECT_EQ(code_of(refused), errc::out_of_memory);
    EXPECT_EQ(second.statistics().physical_bytes, 0u);
    const vmm::address_range read{*first.segment(0), got_bytes};
    ASSERT_TRUE(
        tiny.launch(stream_handle::default_stream, {.duration_us = 50, .reads = {&read, 1}}));
    ASSERT_TRUE(first.shrink(got_bytes - 16 * MiB));
    EXPECT_TRUE(second.grow(16 * MiB));
    EXPECT_TRUE(memory.validate());
  }
  EXPECT_TRUE(tiny.check_empty()) << tiny.report();
  EXPECT_EQ(tiny.misuse_count(), 0u);
  open({});
}

// Where no memory is mapped twice, it waits with its addresses.
struct GrowableWithoutAliases : GrowableOnFake {
  static vmm::fake::profile plays() {
    vmm::fake::profile without = vmm::fake::profile::cuda();
    without.can.alias = vmm::alias_level::none;
    return without;
  }
  GrowableWithoutAliases() : GrowableOnFake(plays()) {}
};

TEST_F(GrowableWithoutAliases, MemoryMovesWhenTheReaderHasFinished) {
  vmm::manager_options options;
  options.budget_bytes = 8 * unit;
  managed.reset();
  open(options);
  growable_range first(*managed, {.segment_bytes_max = 64 * unit, .zero_new = false});
  growable_range second(*managed, {.segment_bytes_max = 64 * unit, .zero_new = false});
  ASSERT_TRUE(first.grow(8 * unit, a));
  read_slowly(first, 8 * unit, a);
  ASSERT_TRUE(first.shrink(2 * unit, a));
  EXPECT_EQ(waits(), 0u);
  ASSERT_TRUE(second.grow(6 * unit, b)) << "memory is short: it waits for the reader";
  EXPECT_EQ(waits(), 1u);
  EXPECT_LE(managed->statistics().peak_held_bytes, 8 * unit);
}

// ---- threads ---------------------------------------------------------------------------

TEST_F(GrowableOnHost, ThreadsShareOneManagerAndOneRange) {
  constexpr int threads = 4;
  constexpr std::uint64_t rounds = 120;
  growable_range shared(*managed, {.segment_bytes_max = 16 * unit, .segment_count = threads});
  ASSERT_TRUE(shared.reserve());
  std::atomic<std::uint64_t> wrong = 0;
  const auto work = [&](std::uint64_t number) {
    growable_range own(*managed, {.segment_bytes_max = 16 * unit});
    const auto mine = static_cast<std::byte>(number + 1);
    for (std::uint64_t round = 0; round < rounds; ++round) {
      const std::uint64_t size_bytes = (1 + (round * 7 + number) % 15) * unit;
      if (!own.resize({.size_bytes = size_bytes})) ++wrong;
      bytes_at(*own.segment(0))[size_bytes - 1] = mine;
      if (!shared.resize({.size_bytes = size_bytes, .first_segment = number, .segment_count = 1}))
        ++wrong;
      std::byte* const last = bytes_at(*shared.segment(number)) + size_bytes - 1;
      *last = mine;
      if (bytes_at(*own.segment(0))[size_bytes - 1] != mine || *last != mine) ++wrong;
      if (!shared.pin({}) || shared.statistics().segment_count != threads) ++wrong;
    }
  };
  std::vector<std::thread> running;
  for (std::uint64_t i = 0; i < threads; ++i) running.emplace_back(work, i);
  for (std::thread& each : running) each.join();
  EXPECT_EQ(wrong.load(), 0u);
  EXPECT_TRUE(shared.validate());
}

// Of each segment's streams, not only of the last resize's.
TEST(GrowableEnd, GoesBehindAllWorkOfTheDevice) {
  for (int mode = 0; mode < 4; ++mode) {
    vmm::fake::profile plays = vmm::fake::profile::cuda();
    plays.can.record_all = mode != 2;
    vmm::fake_driver driver(plays);
    const vmm::stream_handle a = *driver.create_stream();
    const vmm::stream_handle b =
        mode == 3 ? vmm::stream_handle::default_stream : *driver.create_stream();
    {
      vmm::manager_options options;
      options.streams_forgotten = mode == 1;
      vmm::manager memory(driver, options);
      {
        vmm::growable_range range(memory, {.segment_bytes_max = 8 << 20, .segment_count = 2});
        ASSERT_TRUE(range.resize(
            {.size_bytes = 8 << 20, .first_segment = 0, .segment_count = 1, .stream = a}));
        ASSERT_TRUE(range.resize(
            {.size_bytes = 8 << 20, .first_segment = 1, .segment_count = 1, .stream = b}));
        const vmm::address_range first{*range.segment(0), 8 << 20};
        ASSERT_TRUE(driver.launch(a, {.duration_us = 1e6, .writes = {&first, 1}}));
      }
      (void)memory.trim(0);
    }
    ASSERT_TRUE(driver.finish_all());
    EXPECT_EQ(driver.misuse_count(), 0u) << "mode " << mode;
    driver.clear_misuses();
  }
}

}  // namespace

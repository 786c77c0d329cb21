// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: physical memory is created once, retained when freed and collected by the rules of the
// sources; accounts, budget and tickets hold whatever fails. Method: a pool on the fake driver
// without any mapping of its own (mappings are counts here), driver calls counted, and a naive
// model that picks pieces from a plain list.
#include <numeric>

#include "../support/fake_device.hpp"

import vmm.physical;
import vmm.timeline;

namespace {

using vmm::call, vmm::errc, vmm::memory_list, vmm::physical_memory, vmm::ticket_ref;

std::vector<std::uint64_t> in_mib(const memory_list& pieces) {
  std::vector<std::uint64_t> sizes;
  for (const physical_memory* part : pieces) sizes.push_back(part->size_bytes / MiB);
  return sizes;
}

struct Physical : testing::Test {
  using pool = vmm::physical_pool;
  using sizes_in_mib = std::vector<std::uint64_t>;

  static vmm::physical_options plain() {
    vmm::physical_options options;
    options.like.where = vmm::device(0);
    options.granularity_bytes = 2 * MiB;
    return options;
  }
  void open(const vmm::physical_options& options = plain()) {
    memory = std::make_unique<pool>(driver, options);
  }
  template <class Value>
  void open(Value vmm::physical_options::* field, Value value) {
    vmm::physical_options options = plain();
    options.*field = value;
    open(options);
  }
  void SetUp() override { open(); }
  void TearDown() override {
    driver.clear_faults();
    EXPECT_TRUE(memory->validate());
    EXPECT_EQ(memory->trim(0).failure.code, errc::none);
    EXPECT_EQ(memory->statistics().held_bytes, 0u);
    memory.reset();
    time.reset();
    EXPECT_TRUE(driver.finish_all());
    for (const vmm::stream_handle stream : streams) EXPECT_TRUE(driver.destroy_stream(stream));
    EXPECT_TRUE(driver.check_empty()) << driver.report();
    EXPECT_EQ(driver.misuse_count(), 0u);
  }

  [[nodiscard]] memory_list take(std::uint64_t size_bytes) {
    memory_list pieces;
    const vmm::status taken = memory->acquire(size_bytes, pieces);
    EXPECT_TRUE(taken) << (taken ? "" : vmm::describe(taken.error()));
    EXPECT_TRUE(memory->validate());
    return pieces;
  }
  void drop(const memory_list& pieces, const ticket_ref& last_use = {}) {
    for (physical_memory* part : pieces) memory->drop_holder(*part, last_use);
    EXPECT_TRUE(memory->validate());
  }
  // Fills the cache with one piece of each size.
  void cache(const sizes_in_mib& wanted) {
    std::vector<memory_list> taken;
    for (const std::uint64_t size : wanted) taken.push_back(take(size * MiB));
    for (const memory_list& each : taken) drop(each);
  }
  void fail(call where, errc code, std::uint64_t nth = 1, bool forever = false) {
    driver.fail({where, nth, forever, {code, 1, "INJECTED"}});
  }
  // A ticket that passes when the stream's work of 10 us has been finished.
  [[nodiscard]] ticket_ref pending_ticket(vmm::stream_handle stream) {
    EXPECT_TRUE(driver.launch(stream, {.duration_us = 10}));
    return time->record(stream).value();
  }
  [[nodiscard]] vmm::stream_handle new_stream() {
    return streams.emplace_back(driver.create_stream().value());
  }

  vmm::fake_driver driver;
  std::optional<vmm::timeline> time{std::in_place, driver};
  std::vector<vmm::stream_handle> streams;
  std::unique_ptr<pool> memory;
};

// ---- new memory

TEST_F(Physical, MakesChunksAndAShorterLastOne) {
  open(&vmm::physical_options::chunk_bytes, 20 * MiB);
  const memory_list pieces = take(50 * MiB);
  EXPECT_EQ(in_mib(pieces), (sizes_in_mib{20, 20, 10}));
  drop(pieces);
}

// Of a lender alone: of other drivers that lend nothing, whatever their features.
TEST_F(Physical, CutsMemoryIntoPowersOfTwo) {
  for (const bool is_lender : {false, true}) {
    vmm::fake::profile plays = vmm::fake::profile::cuda();
    plays.can.lazy_commit = !is_lender;
    plays.can.memory_source = is_lender ? nullptr : this;
    plays.can.is_lender = is_lender;
    vmm::fake_driver other(plays);
    vmm::physical_options options = plain();
    options.chunk_bytes = 24 * MiB;
    pool lent(other, options);
    memory_list pieces;
    ASSERT_TRUE(lent.acquire(24 * MiB, pieces));
    EXPECT_EQ(in_mib(pieces), (is_lender ? sizes_in_mib{16, 8} : sizes_in_mib{24}));
    lent.give_back(pieces, 0);
    EXPECT_EQ(lent.trim(0).failure.code, errc::none);
  }
}

TEST_F(Physical, AppendsToTheList) {
  memory_list pieces = take(4 * MiB);
  physical_memory* const first = pieces[0];
  ASSERT_TRUE(memory->acquire(6 * MiB, pieces));
  EXPECT_EQ(in_mib(pieces), (sizes_in_mib{4, 6}));
  EXPECT_EQ(pieces[0], first);
  memory->give_back(pieces, 1);
  EXPECT_EQ(pieces, memory_list{first});
  EXPECT_EQ(memory->statistics().cached_bytes, 6 * MiB);
  drop(pieces);
}

// ---- reuse

TEST_F(Physical, ARatioOfZeroTakesAnythingAndOneOnlyWholeMatches) {
  open(&vmm::physical_options::fragment_ratio, 0.0);
  cache({2, 2, 2});
  drop(take(512 * MiB));
  EXPECT_EQ(memory->statistics().reused_count, 3u);
  EXPECT_EQ(memory->trim(0).released_count, 4u);

  open(&vmm::physical_options::fragment_ratio, 1.0);
  cache({62, 64});
  const memory_list pieces = take(66 * MiB);
  EXPECT_EQ(in_mib(pieces), sizes_in_mib{66});
  drop(pieces);
}

// ---- failures

TEST_F(Physical, AFailedRequestGivesBackWhatItTook) {
  cache({32, 16});
  memory_list pieces = take(4 * MiB);
  const memory_list before = pieces;
  fail(call::create, errc::out_of_memory);
  const vmm::status refused = memory->acquire(64 * MiB, pieces);
  EXPECT_EQ(refused.error().code, errc::out_of_memory);
  EXPECT_EQ(refused.error().where, call::create);
  EXPECT_EQ(pieces, before);
  EXPECT_EQ(memory->statistics().cached_bytes, 48 * MiB);
  EXPECT_EQ(memory->statistics().held_bytes, 52 * MiB);
  EXPECT_TRUE(memory->validate());
  drop(pieces);
}

TEST_F(Physical, AFailedSecondChunkGivesBackTheFirst) {
  open(&vmm::physical_options::chunk_bytes, 20 * MiB);
  fail(call::create, errc::internal, 2);
  memory_list pieces;
  EXPECT_EQ(memory->acquire(40 * MiB, pieces).error().code, errc::internal);
  EXPECT_TRUE(pieces.empty());
  EXPECT_EQ(memory->statistics().held_bytes, 20 * MiB);
  EXPECT_EQ(memory->statistics().cached_bytes, 20 * MiB);
}

// ---- budget

TEST_F(Physical, TheBudgetIsHeldToTheByte) {
  open(&vmm::physical_options::budget_bytes, 64 * MiB);
  const memory_list most = take(62 * MiB);
  memory_list more;
  EXPECT_EQ(memory->acquire(4 * MiB, more).error().code, errc::over_budget);
  const std::uint64_t call_count = driver.calls(call::create);
  ASSERT_TRUE(memory->acquire(2 * MiB, more));  // to the last granule of it
  EXPECT_EQ(driver.calls(call::create), call_count + 1) << "a refused request makes no driver call";
  EXPECT_EQ(memory->statistics().held_bytes, 64 * MiB);
  memory_list none;
  EXPECT_EQ(memory->acquire(2 * MiB, none).error().code, errc::over_budget);
  drop(more);
  EXPECT_EQ(memory->acquire(66 * MiB, none).error().code, errc::over_budget);
  drop(most);
  EXPECT_EQ(memory->acquire(60 * MiB, none).error().code, errc::over_budget)
      << "cached memory is held too";
  EXPECT_EQ(memory->trim(2 * MiB).released_bytes, 62 * MiB);
  drop(take(62 * MiB));
  EXPECT_EQ(memory->statistics().peak_held_bytes, 64 * MiB);
}

TEST_F(Physical, AFailedCreateDoesNotCountAgainstTheBudget) {
  open(&vmm::physical_options::budget_bytes, 64 * MiB);
  fail(call::create, errc::internal);
  memory_list pieces;
  EXPECT_FALSE(memory->acquire(64 * MiB, pieces));
  EXPECT_EQ(memory->statistics().memory_count, 0u);
  EXPECT_EQ(memory->statistics().peak_held_bytes, 0u);
  drop(take(64 * MiB));
}

// ---- trim

TEST_F(Physical, TrimsTheLargestFirstDownToTheLimit) {
  cache({8, 32, 16});
  const vmm::trim_report none = memory->trim(56 * MiB);
  EXPECT_EQ(none.released_count, 0u);
  const vmm::trim_report part = memory->trim(24 * MiB);
  EXPECT_EQ(part.released_count, 1u);
  EXPECT_EQ(part.released_bytes, 32 * MiB);
  EXPECT_EQ(part.still_mapped_bytes, 0u);
  const vmm::trim_report rest = memory->trim(0);
  EXPECT_EQ(rest.released_count, 2u);
  EXPECT_EQ(rest.released_bytes, 24 * MiB);
  EXPECT_EQ(memory->statistics().released_count, 3u);
  EXPECT_EQ(driver.resource_counts().handles, 0u);
}

TEST_F(Physical, TrimLeavesWhatIsStillMapped) {
  open(&vmm::physical_options::reuse_while_mapped, true);
  const memory_list large = take(32 * MiB);
  const memory_list small = take(8 * MiB);
  memory->add_mapping(*large[0]);
  drop(large);
  drop(small);
  const vmm::trim_report report = memory->trim(0);
  EXPECT_EQ(report.released_bytes, 8 * MiB);
  EXPECT_EQ(report.still_mapped_bytes, 32 * MiB);
  EXPECT_EQ(memory->statistics().cached_bytes, 32 * MiB);
  memory->drop_mapping(*large[0]);
  EXPECT_EQ(memory->trim(0).released_bytes, 32 * MiB);
}

TEST_F(Physical, ARefusedReleaseKeepsThePieceCached) {
  cache({16, 8});
  fail(call::release, errc::internal);
  const vmm::trim_report report = memory->trim(0);
  EXPECT_EQ(report.failure.code, errc::internal);
  EXPECT_EQ(report.failure.where, call::release);
  EXPECT_EQ(report.released_count, 0u);
  EXPECT_EQ(memory->statistics().cached_bytes, 24 * MiB);
  EXPECT_TRUE(memory->validate());
  const memory_list again = take(16 * MiB);  // and serves as before
  EXPECT_EQ(driver.calls(call::create), 2u);
  drop(again);
}

// ---- mappings and holders: when a freed piece is cached

TEST_F(Physical, APieceIsCachedWhenItsLastMappingIsUndone) {
  const memory_list pieces = take(8 * MiB);
  memory->add_mapping(*pieces[0]);
  drop(pieces);
  EXPECT_EQ(memory->statistics().cached_count, 0u);
  memory->drop_mapping(*pieces[0]);
  EXPECT_EQ(memory->statistics().cached_count, 1u);
}

TEST_F(Physical, APieceIsCachedAtOnceWhereItMayBeMappedTwice) {
  open(&vmm::physical_options::reuse_while_mapped, true);
  const memory_list pieces = take(8 * MiB);
  memory->add_mapping(*pieces[0]);
  drop(pieces);
  EXPECT_EQ(memory->statistics().cached_count, 1u);
  const memory_list again = take(8 * MiB);
  EXPECT_EQ(again, pieces);
  memory->drop_mapping(*again[0]);  // the old mapping goes while the new holder has it
  EXPECT_EQ(memory->statistics().cached_count, 0u);
  drop(again);
  EXPECT_EQ(memory->statistics().cached_count, 1u);
}

TEST_F(Physical, ASharedPieceWaitsForAllOfItsMappings) {
  open(&vmm::physical_options::reuse_while_mapped, true);
  const memory_list pieces = take(8 * MiB);
  physical_memory& shared = *pieces[0];
  memory->add_mapping(shared);
  memory->add_holder(shared);
  memory->add_mapping(shared);
  EXPECT_TRUE(memory->any_shared(pieces));
  drop(pieces);
  EXPECT_FALSE(memory->any_shared(pieces));
  EXPECT_EQ(memory->statistics().cached_count, 0u) << "one holder is left";
  drop(pieces);
  EXPECT_EQ(memory->statistics().cached_count, 0u) << "two mappings stand";
  memory->drop_mapping(shared);
  EXPECT_EQ(memory->statistics().cached_count, 0u) << "one mapping stands";
  memory->drop_mapping(shared);
  EXPECT_EQ(memory->statistics().cached_count, 1u);
  // Once it has been cached it is like any other piece.
  const memory_list again = take(8 * MiB);
  memory->add_mapping(*again[0]);
  drop(again);
  EXPECT_EQ(memory->statistics().cached_count, 1u);
  memory->drop_mapping(*again[0]);
}

// ---- tickets

TEST_F(Physical, ACachedPieceCarriesTheTicketOfItsLastUse) {
  const memory_list pieces = take(8 * MiB);
  const ticket_ref last_use = pending_ticket(new_stream());
  drop(pieces, last_use);
  EXPECT_EQ(pieces[0]->last_use.get(), last_use.get());
  const memory_list again = take(8 * MiB);
  EXPECT_EQ(again[0]->last_use.get(), last_use.get()) << "the next holder must see it";
  drop(again);
}

// Freed by a holder that never used it, while the work of the holder before still runs.
TEST_F(Physical, AnUnfinishedTicketIsNotForgottenForAPassedOne) {
  const memory_list pieces = take(8 * MiB);
  const ticket_ref unfinished = pending_ticket(new_stream());
  drop(pieces, unfinished);
  drop(take(8 * MiB), ticket_ref{});
  EXPECT_EQ(pieces[0]->last_use.get(), unfinished.get());
  // A newer unfinished one takes its place, and so does anything once it has passed.
  const ticket_ref newer = pending_ticket(new_stream());
  drop(take(8 * MiB), newer);
  EXPECT_EQ(pieces[0]->last_use.get(), newer.get());
  ASSERT_TRUE(driver.finish_all());
  EXPECT_TRUE(time->passed(newer).value());
  drop(take(8 * MiB), ticket_ref{});
  EXPECT_EQ(pieces[0]->last_use.get(), nullptr);
}

TEST_F(Physical, AnUnusedPieceGivenBackKeepsItsTicket) {
  const memory_list first = take(8 * MiB);
  const ticket_ref unfinished = pending_ticket(new_stream());
  drop(first, unfinished);
  memory_list pieces = take(8 * MiB);
  memory->give_back(pieces, 0);
  EXPECT_EQ(first[0]->last_use.get(), unfinished.get());
}

TEST_F(Physical, ASharedPieceIsCachedWithoutATicket) {
  const memory_list pieces = take(8 * MiB);
  memory->add_mapping(*pieces[0]);
  memory->add_holder(*pieces[0]);
  drop(pieces);
  drop(pieces, pending_ticket(new_stream()));
  memory->drop_mapping(*pieces[0]);  // which happens after that work
  EXPECT_EQ(memory->statistics().cached_count, 1u);
  EXPECT_EQ(pieces[0]->last_use.get(), nullptr);
}

TEST_F(Physical, AReleasedPieceLetsGoOfItsTicket) {
  const ticket_ref last_use = pending_ticket(new_stream());
  drop(take(8 * MiB), last_use);
  EXPECT_EQ(last_use.get()->reference_count.load(std::memory_order_relaxed), 2u);
  EXPECT_EQ(memory->trim(0).released_count, 1u);
  EXPECT_EQ(last_use.get()->reference_count.load(std::memory_order_relaxed), 1u);
}

// ---- misuse

TEST(PhysicalDeathTest, MisuseEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a forked child is refused this driver
  vmm::fake_driver driver;
  vmm::physical_options options;
  options.like.where = vmm::device(0);
  using pool = vmm::physical_pool;
  EXPECT_DEATH(pool(driver, options), "needs the backend's granularity");
  options.granularity_bytes = 2 * MiB;
  options.chunk_bytes = 3 * MiB;
  EXPECT_DEATH(pool(driver, options), "not a multiple of the granularity");
  options.chunk_bytes = 0;
  pool memory(driver, options);
  memory_list pieces;
  EXPECT_DEATH((void)memory.acquire(0, pieces), "whole granules");
  EXPECT_DEATH((void)memory.acquire(3 * MiB, pieces), "whole granules");
  ASSERT_TRUE(memory.acquire(2 * MiB, pieces));
  EXPECT_DEATH(memory.drop_mapping(*pieces[0]), "does not have");
  EXPECT_DEATH(
      {
        pool going(driver, options);
        memory_list held;
        (void)going.acquire(2 * MiB, held);
      },
      "that holds memory is destroyed");
  memory.drop_holder(*pieces[0], {});
  EXPECT_DEATH(memory.drop_holder(*pieces[0], {}), "without a holder");
  EXPECT_DEATH(memory.add_holder(*pieces[0]), "held without being taken");
  EXPECT_EQ(memory.trim(0).released_count, 1u);
}

// ---- the naive model: cached pieces in a plain list, the latest last

struct ModelledPhysical : Physical {
  // The piece that C2 and C3 pick for what is left of a request; none when it is to be new.
  [[nodiscard]] physical_memory* pick(std::uint64_t remaining_bytes,
                                      std::uint64_t request_bytes) const {
    physical_memory* best = nullptr;
    for (physical_memory* each : cached) {  // the latest of equals wins
      if (each->size_bytes > remaining_bytes) continue;
      const bool exact = each->size_bytes == remaining_bytes;
      const double share =
          static_cast<double>(each->size_bytes) / static_cast<double>(request_bytes);
      if (!exact && share < ratio) continue;
      if (best == nullptr || each->size_bytes >= best->size_bytes) best = each;
    }
    return best;
  }
  void expect_picks(const memory_list& pieces, std::uint64_t size_bytes) {
    std::uint64_t remaining_bytes = size_bytes;
    for (physical_memory* part : pieces) {
      physical_memory* const wanted = pick(remaining_bytes, size_bytes);
      if (wanted != nullptr) {
        ASSERT_EQ(part, wanted);
        std::erase(cached, wanted);
      } else {
        ASSERT_EQ(std::count(cached.begin(), cached.end(), part), 0);
        ASSERT_EQ(part->size_bytes, std::min(remaining_bytes, chunk_bytes));
      }
      remaining_bytes -= part->size_bytes;
    }
    ASSERT_EQ(remaining_bytes, 0u);
  }
  void expect_numbers(const std::vector<memory_list>& live) const {
    std::uint64_t cached_bytes = 0;
    for (const physical_memory* part : cached) cached_bytes += part->size_bytes;
    std::uint64_t live_bytes = 0;
    for (const memory_list& pieces : live)
      for (const physical_memory* part : pieces) live_bytes += part->size_bytes;
    ASSERT_EQ(memory->statistics().cached_bytes, cached_bytes);
    ASSERT_EQ(memory->statistics().held_bytes, cached_bytes + live_bytes);
    ASSERT_EQ(driver.resource_counts().memory_bytes, cached_bytes + live_bytes);
  }

  std::vector<physical_memory*> cached;
  double ratio = 0.25;
  std::uint64_t chunk_bytes = ~std::uint64_t{0};
};

TEST_F(ModelledPhysical, AgreesWithAListOfPieces) {
  std::mt19937_64 random(3);
  std::vector<memory_list> live;
  for (int step = 0; step < 3000; ++step) {
    const bool grow = live.empty() || (live.size() < 40 && random() % 2 == 0);
    if (grow) {
      const std::uint64_t size_bytes = (1 + random() % 32) * 2 * MiB;
      live.push_back(take(size_bytes));
      expect_picks(live.back(), size_bytes);
    } else {
      const auto gone = live.begin() + static_cast<std::ptrdiff_t>(random() % live.size());
      for (physical_memory* part : *gone) cached.push_back(part);
      drop(*gone);
      live.erase(gone);
    }
    expect_numbers(live);
    if (HasFailure()) FAIL() << "at step " << step;
  }
  for (const memory_list& pieces : live) drop(pieces);
}

// ---- threads

// Another thread looks while the driver creates: an observer of the driver does so in its place.
TEST(PhysicalAccounts, WhatIsHeldIsNeverMoreThanThePeak) {
  struct looker {
    [[nodiscard]] vmm::status before(const vmm::call_record& record) {
      if (record.kind != call::create) return {};
      ++looks;
      const vmm::physical_statistics now = look();
      EXPECT_LE(now.held_bytes, now.peak_held_bytes);
      EXPECT_LE(now.held_bytes, given_bytes) << "the driver has not given it yet";
      return {};
    }
    void after(const vmm::call_record& record) {
      if (record.kind == call::create) given_bytes += 4 * MiB;
    }
    std::function<vmm::physical_statistics()> look;
    std::uint64_t given_bytes = 0;
    int looks = 0;
  };
  using observed = vmm::observed_backend<vmm::fake_driver, looker>;
  auto observer = std::make_shared<looker>();
  observed driver(vmm::fake_driver{}, observer);
  vmm::physical_options options = Physical::plain();
  options.budget_bytes = 8 * MiB;
  vmm::physical_pool memory(driver, options);
  observer->look = [&] { return memory.statistics(); };
  memory_list pieces;
  EXPECT_TRUE(memory.acquire(4 * MiB, pieces));
  EXPECT_TRUE(memory.acquire(4 * MiB, pieces));
  const vmm::status refused = memory.acquire(2 * MiB, pieces);
  EXPECT_EQ(refused.error().code, errc::over_budget);
  EXPECT_EQ(observer->looks, 2);
  EXPECT_EQ(memory.statistics().peak_held_bytes, 8 * MiB);
  memory.give_back(pieces, 0);
  EXPECT_EQ(memory.trim(0).released_bytes, 8 * MiB);
}

TEST_F(Physical, ManyThreadsTakeAndGiveBack) {
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 3; ++t) {
    threads.emplace_back([this, t] {
      std::mt19937_64 random(t);
      for (int i = 0; i < 300; ++i) {
        memory_list pieces;
        ASSERT_TRUE(memory->acquire((1 + random() % 16) * 2 * MiB, pieces));
        for (physical_memory* part : pieces) memory->add_mapping(*part);
        if (i % 16 == 0) EXPECT_EQ(memory->trim(8 * MiB).failure.code, errc::none);
        for (physical_memory* part : pieces) memory->drop_mapping(*part);
        memory->give_back(pieces, 0);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(memory->statistics().held_bytes, memory->statistics().cached_bytes);
}

// What was spilled takes no memory of the device.
TEST_F(Physical, WhatWasSpilledLeavesTheDeviceItsMemory) {
  driver = vmm::fake_driver(cuda_with([](auto& plays) { plays.device_memory_bytes = 64 * MiB; }));
  open(&vmm::physical_options::spill, std::optional(vmm::host_node(0)));
  const memory_list first = take(48 * MiB);
  memory_list spilled;
  {
    const vmm::spill_permit permit(*memory);
    spilled = take(32 * MiB);
  }
  ASSERT_EQ(memory->statistics().spilled_bytes, 32 * MiB);
  ASSERT_TRUE(memory->query_device()) << "its size is known from here on";
  drop(first);
  ASSERT_EQ(memory->trim(0).released_bytes, 48 * MiB);
  const memory_list again = take(48 * MiB);
  EXPECT_EQ(memory->statistics().spilled_bytes, 32 * MiB);
  const std::uint64_t created_count = driver.calls(call::create);
  memory_list refused;
  EXPECT_EQ(memory->acquire(32 * MiB, refused).error().code, errc::out_of_memory);
  EXPECT_EQ(driver.calls(call::create), created_count) << "it cannot fit";
  drop(spilled);
  drop(again);
}

// An importing process may still use the memory of an exported piece.
TEST_F(Physical, AnExportedPieceIsGivenToNoOtherRequest) {
  const memory_list exported = take(16 * MiB);
  memory->mark_exported(exported);
  const physical_memory* const gone = exported.front();
  drop(exported);
  memory_list next = take(16 * MiB);
  ASSERT_TRUE(memory->acquire_whole(16 * MiB, next));
  for (const physical_memory* part : next) EXPECT_NE(part, gone);
  EXPECT_EQ(memory->statistics().reused_count, 0u);
  memory->release_exported();
  EXPECT_EQ(memory->statistics().released_count, 1u);
  drop(next);
}

}  // namespace

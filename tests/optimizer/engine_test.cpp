// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a transaction of the engine that the driver refuses again and again leaves a block as it
// was, or lost and able to end; retired ranges wait for their work. Whole transactions are tested
// through the manager. Method: the engine by itself on fake drivers that differ in aliases and in
// how they unmap; contents are tags, work finishes when the test says so, and the driver's misuse
// list and resource counts are empty at the end.
#include "../support/test.h"

import vmm.backend;
import vmm.fake;
import vmm.optimizer;
import vmm.physical;
import vmm.timeline;
import vmm.tracker;

namespace {

using vmm::address, vmm::block, vmm::call, vmm::errc, vmm::range_sizes, vmm::stream_handle,
    vmm::ticket_ref;

constexpr std::uint64_t granule = 2 * MiB;

struct driver_kind {
  const char* name;
  bool aliases;
  bool spanning_unmap;
};

struct EngineOn : testing::Test {
  using driver_type = vmm::fake_driver;
  using engine_type = vmm::engine;

  void open(const driver_kind& kind) {
    vmm::fake::profile plays = vmm::fake::profile::cuda();
    plays.can.spanning_unmap = kind.spanning_unmap;
    if (!kind.aliases) plays.can.alias = vmm::alias_level::none;
    driver = driver_type(plays);
    driver.set_misuse_fatal(true);
    driver.set_manual(true);
    first = driver.create_stream().value();
    second = driver.create_stream().value();
    vmm::core_options options;
    options.physical.like.where = driver.home();
    options.physical.granularity_bytes = granule;
    options.physical.chunk_bytes = 4 * MiB;
    options.physical.reuse_while_mapped = kind.aliases;
    options.reservation.reservation_bytes = 256 * MiB;
    options.reservation.granularity_bytes = granule;
    options.grants = vmm::grants_for(driver.home(), driver.home());
    engine.emplace(driver, options);
  }
  void TearDown() override {
    driver.clear_faults();
    EXPECT_TRUE(driver.finish_all());
    EXPECT_TRUE(engine->validate());
    while (!blocks.empty()) end(*blocks.back());
    const vmm::status closed = close();
    EXPECT_TRUE(closed) << (closed ? "" : vmm::describe(closed.error()));
    engine.reset();
    EXPECT_TRUE(driver.destroy_stream(first));
    EXPECT_TRUE(driver.destroy_stream(second));
    EXPECT_TRUE(driver.check_empty()) << driver.report();
  }

  vmm::status close() {
    return vmm::close_core(engine->core(), [this] { return engine->empty(); });
  }
  static range_sizes sizes_of(std::uint64_t size_bytes, std::uint64_t address_bytes = 0) {
    return {size_bytes, size_bytes, size_bytes + address_bytes};
  }
  // A block whose memory the host does not touch.
  block& build_untouched(std::uint64_t size_bytes, std::uint64_t address_bytes = 0) {
    const auto made = engine->build({sizes_of(size_bytes, address_bytes), 0, first});
    EXPECT_TRUE(made) << (made ? "" : vmm::describe(made.error()));
    return *blocks.emplace_back(*made);
  }
  block& build(std::uint64_t size_bytes, std::uint64_t address_bytes = 0) {
    block& made = build_untouched(size_bytes, address_bytes);
    fill(made);
    return made;
  }
  // Ends an idle block.
  void end(block& gone) {
    const vmm::status ended = engine->dissolve(gone, {});
    EXPECT_TRUE(ended) << (ended ? "" : vmm::describe(ended.error()));
    std::erase(blocks, &gone);
  }
  void fill(const block& into) {
    for (std::uint64_t at = 0; at < into.sizes.user_bytes; at += granule) {
      ASSERT_TRUE(driver.write_tag({into.base + at, granule}, tag_of(into, at)));
    }
  }
  // Named by the record, which stays, not by the address.
  static std::uint64_t tag_of(const block& of, std::uint64_t offset) {
    return reinterpret_cast<std::uintptr_t>(&of) + offset / granule;
  }
  // `shown` holds, from its start, what was filled into `of`.
  void expect_contents(const block& shown, const block& of, std::uint64_t size_bytes) {
    for (std::uint64_t at = 0; at < size_bytes; at += granule) {
      const auto tag = driver.read_tag(shown.base + at);
      ASSERT_TRUE(tag) << "at " << at / MiB << " MiB";
      ASSERT_EQ(*tag, tag_of(of, at)) << "at " << at / MiB << " MiB";
    }
  }
  void expect_intact(const block& same) { expect_contents(same, same, same.sizes.user_bytes); }
  void fail(call where, std::uint64_t nth = 1, bool forever = false) {
    driver.fail({where, nth, forever, {errc::invalid_argument, 77, "INJECTED"}});
  }
  // Unfinished work on a block, and the ticket that passes with it.
  ticket_ref keep_busy(const block& used) {
    const vmm::address_range range{used.base, used.sizes.user_bytes};
    EXPECT_TRUE(driver.launch(used.stream, {.name = "busy", .writes = {&range, 1}}));
    return engine->time().record(used.stream).value();
  }
  [[nodiscard]] vmm::resize_plan to(std::uint64_t size_bytes, ticket_ref last_use = {}) {
    return {sizes_of(size_bytes), first, std::move(last_use)};
  }
  [[nodiscard]] std::uint64_t cached_bytes() { return engine->memory().statistics().cached_bytes; }

  driver_type driver;
  std::optional<engine_type> engine;
  std::vector<block*> blocks;
  stream_handle first{};
  stream_handle second{};
};

struct Engine : EngineOn, testing::WithParamInterface<driver_kind> {
  void SetUp() override { open(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(Drivers, Engine,
                         testing::Values(driver_kind{"cuda", true, true},
                                         driver_kind{"no_alias", false, true},
                                         driver_kind{"no_span", true, false},
                                         driver_kind{"neither", false, false}),
                         [](const auto& each) { return std::string(each.param.name); });

// For what only one kind of driver can show.
struct EngineWithAliases : EngineOn {
  void SetUp() override { open({"cuda", true, true}); }
};
struct EngineWithoutAliases : EngineOn {
  void SetUp() override { open({"no_alias", false, true}); }
};

// ---- coming and going

TEST_P(Engine, ABuildThatWillNotBeUndoneKeepsItsAddressesOutOfUse) {
  build(4 * MiB);
  fail(call::set_access);
  fail(call::unmap, 1, true);
  ASSERT_FALSE(engine->build({sizes_of(12 * MiB), 0, first}));
  EXPECT_EQ(engine->retired().size(), 1u);
  EXPECT_EQ(engine->retired().size_bytes(), 12 * MiB);
  block& other = build(12 * MiB);  // elsewhere: the driver would refuse a second mapping there
  expect_intact(other);
  engine->reap(8);
  EXPECT_EQ(engine->retired().size(), 1u) << "still refused";
  driver.clear_faults();
  engine->reap(8);
  EXPECT_EQ(engine->retired().size(), 0u);
  EXPECT_EQ(engine->space().statistics().live_bytes, 16 * MiB);
}

TEST_P(Engine, ABusyBlockWaitsForItsWork) {
  block& gone = build(12 * MiB);
  const address base = gone.base;
  const ticket_ref last_use = keep_busy(gone);
  ASSERT_TRUE(engine->dissolve(gone, last_use));
  blocks.clear();
  EXPECT_EQ(engine->retired().size(), 1u);
  EXPECT_EQ(engine->records().find(base).error().code, errc::not_allocated);
  EXPECT_EQ(cached_bytes(), GetParam().aliases ? 12 * MiB : 0) << "where they may be mapped twice";
  engine->reap(8);
  EXPECT_EQ(driver.resource_counts().mappings, 3u) << "unmapped under its work";
  EXPECT_NE(build_untouched(12 * MiB).base, base);
  ASSERT_TRUE(driver.finish_all());
  engine->reap(8);
  EXPECT_EQ(engine->retired().size(), 0u);
  EXPECT_EQ(driver.resource_counts().mappings, 3u) << "those of the second block";
}

TEST_P(Engine, ReapingTouchesNoMoreThanItIsTold) {
  for (int i = 0; i < 4; ++i) {
    block& gone = build_untouched(4 * MiB);
    const ticket_ref last_use = keep_busy(gone);
    ASSERT_TRUE(engine->dissolve(gone, last_use));
  }
  blocks.clear();
  ASSERT_TRUE(driver.finish_all());
  engine->reap(3);
  EXPECT_EQ(engine->retired().size(), 1u);
  engine->reap(0);
  EXPECT_EQ(engine->retired().size(), 1u);
}

TEST_P(Engine, ReapingGoesOnPastARangeThatMustWait) {
  block& waiting = build(4 * MiB);
  block& done = build(4 * MiB);
  const ticket_ref never = keep_busy(waiting);
  ASSERT_TRUE(engine->dissolve(waiting, never));
  ASSERT_TRUE(driver.launch(second, {.name = "other"}));
  const ticket_ref soon = engine->time().record(second).value();
  ASSERT_TRUE(engine->dissolve(done, soon));
  blocks.clear();
  ASSERT_TRUE(driver.finish_next(second).value());
  engine->reap(8);
  EXPECT_EQ(engine->retired().size(), 1u);
}

TEST_P(Engine, WaitingForTheOldestFinishesItsWork) {
  EXPECT_FALSE(engine->reap_waiting());
  block& gone = build(4 * MiB);
  const ticket_ref last_use = keep_busy(gone);
  ASSERT_TRUE(engine->dissolve(gone, last_use));
  blocks.clear();
  fail(call::synchronize_event);
  EXPECT_FALSE(engine->reap_waiting());
  EXPECT_EQ(engine->retired().size(), 1u);
  EXPECT_TRUE(engine->reap_waiting());
  EXPECT_EQ(engine->retired().size(), 0u);
}

TEST_P(Engine, CloseUnmapsWhatIsRetiredAndCanBeTriedAgain) {
  block& gone = build(4 * MiB);
  const ticket_ref last_use = keep_busy(gone);
  ASSERT_TRUE(engine->dissolve(gone, last_use));
  blocks.clear();
  for (const call where : {call::unmap, call::release, call::free_reservation}) {
    driver.fail({where, 1, true, {errc::internal, 1, "INJECTED"}});
    EXPECT_FALSE(close()) << vmm::name_of(where);
    driver.clear_faults();
  }
  EXPECT_TRUE(close());
  EXPECT_EQ(driver.resource_counts().reservations, 0u);
}

// ---- what a growth left and the driver would not undo

struct LockedTail : Engine {
  // A block of 4 MiB with mappings behind it that it must not use.
  block& make() {
    block& locked = build(4 * MiB);
    fail(call::set_access);
    fail(call::unmap, 1, true);
    EXPECT_FALSE(engine->grow_in_place(locked, to(12 * MiB)));
    EXPECT_EQ(locked.locked_count, 2u);
    EXPECT_EQ(locked.sizes.user_bytes, 4 * MiB);
    EXPECT_EQ(locked.sizes.mapped_bytes, 12 * MiB);
    EXPECT_TRUE(engine->validate());
    expect_intact(locked);
    return locked;
  }
};

INSTANTIATE_TEST_SUITE_P(Drivers, LockedTail,
                         testing::Values(driver_kind{"cuda", true, true},
                                         driver_kind{"neither", false, false}),
                         [](const auto& each) { return std::string(each.param.name); });

TEST_P(LockedTail, StaysWhileTheDriverRefuses) {
  block& locked = make();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(engine->grow_in_place(locked, to(8 * MiB)).error().where, call::unmap);
    EXPECT_EQ(engine->shrink(locked, to(2 * MiB)).error().where, call::unmap);
    EXPECT_EQ(engine->move(locked, to(16 * MiB)).error().where, call::unmap);
    EXPECT_EQ(locked.locked_count, 2u);
    expect_intact(locked);
  }
}

TEST_P(LockedTail, GivesItsMemoryBackWhenItGoes) {
  block& locked = make();
  driver.clear_faults();
  ASSERT_TRUE(engine->unlock(locked));
  EXPECT_EQ(locked.sizes.mapped_bytes, 4 * MiB);
  EXPECT_EQ(locked.sizes.reserved_bytes, 4 * MiB);
  EXPECT_EQ(locked.where.range.size_bytes, 4 * MiB);
  EXPECT_EQ(cached_bytes(), 8 * MiB);
  EXPECT_EQ(driver.resource_counts().mappings, 1u);
  EXPECT_TRUE(engine->validate());
}

// ---- shrinking

TEST_P(Engine, ShrinksByWholePiecesAndKeepsItsRoom) {
  block& cut = build(12 * MiB, 4 * MiB);
  ASSERT_TRUE(engine->shrink(cut, to(6 * MiB)));  // the second piece is needed for half
  EXPECT_EQ(cut.sizes.user_bytes, 6 * MiB);
  EXPECT_EQ(cut.sizes.mapped_bytes, 8 * MiB);
  EXPECT_EQ(cut.sizes.reserved_bytes, 16 * MiB);
  EXPECT_EQ(cached_bytes(), 4 * MiB);
  EXPECT_EQ(driver.resource_counts().mappings, 2u);
  expect_intact(cut);
}

// ---- moving

TEST_P(Engine, KeepsItsAlignmentWhenItMoves) {
  const auto made = *engine->build({sizes_of(4 * MiB), 32 * MiB, first});
  blocks.push_back(made);
  build(2 * MiB);
  ASSERT_TRUE(engine->move(*made, to(8 * MiB)));
  EXPECT_EQ(made->base.value % (32 * MiB), 0u);
}

TEST_P(Engine, AnOldPlaceThatWillNotGoWaits) {
  block& moved = build(8 * MiB);
  fail(call::unmap, 1, GetParam().aliases);
  const vmm::status done = engine->move(moved, to(16 * MiB));
  EXPECT_EQ(done.has_value(), GetParam().aliases) << "without aliases the old place goes first";
  EXPECT_EQ(engine->retired().size(), GetParam().aliases ? 1u : 0u);
  expect_contents(moved, moved, 8 * MiB);
  driver.clear_faults();
  engine->reap(8);
  EXPECT_EQ(engine->retired().size(), 0u);
}

TEST_F(EngineWithoutAliases, ABlockThatCannotGoEitherWayIsLostAndCanOnlyEnd) {
  block& lost = build(8 * MiB);
  block& other = build(4 * MiB);
  fail(call::map, 1, true);
  const vmm::status refused = engine->move(lost, to(16 * MiB));
  EXPECT_EQ(refused.error().code, errc::device_lost);
  EXPECT_EQ(lost.sizes.user_bytes, 0u);
  EXPECT_TRUE(engine->validate());
  driver.clear_faults();
  expect_intact(other);
  end(lost);
  EXPECT_EQ(cached_bytes(), 16 * MiB);
  EXPECT_EQ(engine->space().statistics().live_bytes, 4 * MiB);
}

// ---- showing one block's memory at another's address

// The target has the memory already: what will not go at the source's address goes with the source.
TEST_F(EngineOn, ASourceThatComesApartOnlyInPartCanStillEnd) {
  open({"no_span", true, false});
  block& source = build(12 * MiB);
  block& target = build(12 * MiB);
  fail(call::unmap, 5, true);  // three for the target, one of the source's three
  ASSERT_TRUE(engine->take_over(target, source, first));
  EXPECT_EQ(source.sizes.user_bytes, 0u);
  EXPECT_EQ(source.sizes.mapped_bytes, 8 * MiB);
  expect_contents(target, source, 12 * MiB);
  EXPECT_TRUE(engine->validate());
  driver.clear_faults();
  end(source);
  expect_contents(target, source, 12 * MiB);
  EXPECT_EQ(driver.resource_counts().mappings, 3u);
}

TEST_F(EngineWithoutAliases, ATakeOverThatCannotGoEitherWayLosesBoth) {
  block& source = build(8 * MiB);
  block& target = build(8 * MiB);
  fail(call::map, 1, true);
  EXPECT_EQ(engine->take_over(target, source, first).error().code, errc::device_lost);
  EXPECT_EQ(target.sizes.user_bytes, 0u);
  EXPECT_EQ(source.sizes.user_bytes, 0u);
  EXPECT_TRUE(engine->validate());
  driver.clear_faults();
  end(target);
  end(source);
  EXPECT_EQ(cached_bytes(), 16 * MiB);
}

TEST_F(EngineWithAliases, ATargetThatCannotGoEitherWayIsLostAlone) {
  block& source = build(8 * MiB);
  block& target = build(8 * MiB);
  fail(call::map, 1, true);
  EXPECT_EQ(engine->take_over(target, source, first).error().code, errc::device_lost);
  driver.clear_faults();
  EXPECT_EQ(target.sizes.user_bytes, 0u);
  expect_intact(source);
}

TEST_F(EngineWithAliases, SharedMemoryIsFreeWhenBothHaveEnded) {
  block& source = build(8 * MiB);
  block& target = build(8 * MiB);
  ASSERT_TRUE(engine->alias(target, source, first));
  const ticket_ref last_use = keep_busy(source);
  end(target);
  EXPECT_EQ(cached_bytes(), 8 * MiB);
  ASSERT_TRUE(engine->dissolve(source, last_use));
  blocks.clear();
  EXPECT_EQ(cached_bytes(), 8 * MiB) << "shared memory waits for its last mapping";
  ASSERT_TRUE(driver.finish_all());
  engine->reap(8);
  EXPECT_EQ(cached_bytes(), 16 * MiB);
}

// ---- work of another stream that still uses a piece by an earlier range

struct EarlierUser : EngineWithAliases {
  // 8 MiB of cached memory that unfinished work of the second stream uses.
  void SetUp() override {
    EngineWithAliases::SetUp();
    block& earlier = build(8 * MiB);
    earlier.stream = second;
    const ticket_ref last_use = keep_busy(earlier);
    ASSERT_TRUE(engine->dissolve(earlier, last_use));
    blocks.clear();
  }
  // A kernel on this stream that uses the block; the driver dies where it is not ordered.
  void use(const block& used, stream_handle stream) {
    const vmm::address_range range{used.base, used.sizes.user_bytes};
    ASSERT_TRUE(driver.launch(stream, {.name = "use", .writes = {&range, 1}}));
  }
};

TEST_F(EarlierUser, IsWaitedForByTheStreamThatABlockIsBuiltFor) {
  use(build_untouched(8 * MiB), first);
  EXPECT_FALSE(driver.finish_next(first).value());
}

TEST_F(EarlierUser, IsWaitedForByWhoeverIsOrdered) {
  block& made = build_untouched(8 * MiB);
  ASSERT_TRUE(engine->order(stream_handle::default_stream, made));
  use(made, stream_handle::default_stream);
}

TEST_F(EarlierUser, IsWaitedForByTheStreamOfACopyThatExtends) {
  ASSERT_EQ(cached_bytes(), 8 * MiB);
  const auto take = [&] { return &build_untouched(8 * MiB); };
  block* const busy = take();  // so that the next two are of new memory
  block* const source = take();
  block* const target = &build_untouched(16 * MiB);
  ASSERT_TRUE(engine->dissolve(*busy, {}));  // never used: its piece keeps the earlier ticket
  std::erase(blocks, busy);
  ASSERT_EQ(cached_bytes(), 8 * MiB);
  ASSERT_TRUE(engine->take_over(*target, *source, stream_handle::default_stream));
  use(*target, stream_handle::default_stream);
}

}  // namespace

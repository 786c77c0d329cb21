// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: what happens beside a suspension, or to the objects of one: rights that are given in
// between, frees that promise to clear, forks, tags of which one region is suspended, a driver that
// refuses to end a backup, work of streams whose blocks were freed.
// Method: each once, on the fake driver.
#include "../support/child.hpp"
#include "regions.hpp"

import vmm.optimizer;

namespace {

using vmm::address, vmm::errc;

constexpr std::string_view kv[] = {"kv"};

struct SuspendBeside : Regions {
  SuspendBeside() : Regions(with_devices(3)) {}
};

TEST_F(SuspendBeside, RightsThatAreGivenWhileAPoolIsBeingSuspended) {
  const address block = in_pool(4 * MiB);
  vmm::suspension_list parts;
  fine(pool->suspension().begin_suspend({}, parts));
  const vmm::access_grant one{vmm::device(1), vmm::access::read_write};
  const vmm::status given = pool->set_peers({&one, 1});
  pool->suspension().end_suspend(parts, false);
  const vmm::access seen = *driver.get_access(block, vmm::device(1));
  EXPECT_EQ(seen, given ? vmm::access::read_write : vmm::access::none);
}

TEST_F(SuspendBeside, RightsThatAreGivenWhileAPoolIsBeingResumed) {
  const address block = in_pool(4 * MiB);
  suspend({.tags = kv});
  vmm::suspension_list parts;
  fine(pool->suspension().begin_resume(parts));
  fine(vmm::provide_parts(pool->suspension().core(), parts));
  fine(vmm::attach_parts(pool->suspension().core(), parts));
  const vmm::access_grant one{vmm::device(1), vmm::access::read_write};
  const vmm::status given = pool->set_peers({&one, 1});
  pool->suspension().end_resume(parts, true);
  const vmm::access seen = *driver.get_access(block, vmm::device(1));
  EXPECT_EQ(seen, given ? vmm::access::read_write : vmm::access::none);
  vmm::suspension_list again;
  fine(pool->suspension().begin_suspend({}, again));
  fine(vmm::detach_parts(pool->suspension().core(), again));
  EXPECT_EQ(vmm::release_parts(pool->suspension().core(), again), 0u);
  pool->suspension().end_suspend(again, true);
  fine(sleeper->resume(kv));
}

// Another program has taken the memory that a suspension gave back: what is missing is spilled.
TEST_F(SuspendBeside, MemoryThatOthersHaveTakenIsSpilled) {
  pool_options.spill = manager_options.spill = vmm::host_node(0);
  open();
  const address block = in_pool(4 * MiB);
  const address other = in_blocks(4 * MiB);
  write(block, 4 * MiB, 5);
  write(other, 4 * MiB, 6);
  suspend({});
  const std::uint64_t free_bytes = driver.query_memory(vmm::device(0))->free_bytes;
  const std::uint64_t whole_bytes = free_bytes / (2 * MiB) * (2 * MiB);
  const auto taken = *driver.create({.size_bytes = whole_bytes, .where = vmm::device(0)});
  fine(sleeper->resume());
  EXPECT_EQ(driver.read_tag(block).value_or(0), 5u);
  EXPECT_EQ(driver.read_tag(other).value_or(0), 6u);
  EXPECT_EQ(blocks->statistics().spilled_bytes, 4 * MiB);
  EXPECT_GE(pool->statistics().spilled_bytes, 4 * MiB);
  fine(driver.release(taken));
}

// A block's bytes are gone when it is freed, also where it had no memory then.
TEST_F(SuspendBeside, WhatIsFreedMeanwhileIsClearedWhenItComesBack) {
  pool_options.contents = vmm::contents_rule::zero_on_release;
  open();
  const address stays = in_pool(MiB);
  const address goes = in_pool(MiB);
  write(stays, MiB, 5);
  write(goes, MiB, 6);
  suspend();
  fine(pool->free(goes, a));
  resume();
  expect_tag(stays, 5);
  const address next = in_pool(MiB);
  EXPECT_EQ(next, goes);
  expect_tag(next, 0);
}

// Frees a block at the first notice of a kind.
class freeing_listener final : public vmm::remap_listener {
 public:
  freeing_listener(vmm::stream_pool& of, vmm::remap_kind what, address at,
                   vmm::stream_handle stream)
      : pool_(of), what_(what), at_(at), stream_(stream), number_(*of.remaps().subscribe(*this)) {}
  ~freeing_listener() { EXPECT_TRUE(pool_.remaps().unsubscribe(number_)); }
  void before_change(const vmm::remap_notice& notice) noexcept override { look(notice); }
  void after_change(const vmm::remap_notice& notice) noexcept override { look(notice); }

  std::optional<vmm::status> freed{};

 private:
  void look(const vmm::remap_notice& notice) noexcept {
    if (notice.kind == what_ && !freed) freed = pool_.free(at_, stream_);
  }
  vmm::stream_pool& pool_;
  const vmm::remap_kind what_;
  const address at_;
  const vmm::stream_handle stream_;
  const vmm::remap_subscription number_;
};

// Also where a remap listener frees it, of a suspension that succeeds or fails, or of a resumption.
TEST_F(SuspendBeside, WhatAListenerFreesIsCleared) {
  pool_options.contents = vmm::contents_rule::zero_on_release;
  for (const auto kind : {vmm::remap_kind::released, vmm::remap_kind::mapped}) {
    for (const bool fails : {false, true}) {
      for (const auto size_bytes : {MiB, 2 * MiB}) {
        SCOPED_TRACE(testing::Message() << int(kind) << " " << fails << " " << size_bytes);
        open();
        const address stays = in_pool(size_bytes);
        const address goes = in_pool(size_bytes);
        write(stays, size_bytes, 5);
        write(goes, size_bytes, 6);
        {
          freeing_listener listener(*pool, kind, goes, a);
          if (fails) fail(vmm::call::unmap);
          const auto gone = sleeper->suspend();
          EXPECT_EQ(gone.has_value(), !fails);
          if (gone) resume();
          ASSERT_TRUE(listener.freed);
          fine(*listener.freed);
        }
        expect_tag(stays, 5);
        const address next = in_pool(size_bytes);
        expect_tag(next, 0);
        fine(pool->free(next, a));
      }
    }
  }
}

// While free memory is unmapped before it: the fill is waited for.
TEST_F(SuspendBeside, WhatAListenerFreesBeforehandIsCleared) {
  pool_options.contents = vmm::contents_rule::zero_on_release;
  pool_options.policy.handle_bytes_max = 2 * MiB;
  for (const auto size_bytes : {MiB, 2 * MiB}) {
    open();
    const address stays = in_pool(size_bytes);
    const address goes = in_pool(size_bytes);
    const address free = in_pool(2 * MiB);
    write(stays, size_bytes, 5);
    write(goes, size_bytes, 6);
    driver.set_manual(true);
    fine(pool->free(free, a));
    {
      freeing_listener listener(*pool, vmm::remap_kind::released, goes, a);
      suspend();
      ASSERT_TRUE(listener.freed);
      fine(*listener.freed);
    }
    resume();
    driver.set_manual(false);
    expect_tag(stays, 5);
    expect_tag(in_pool(size_bytes), 0);
  }
}

// Nor do they come back where the driver did not take the memory: it goes, or serves no block.
TEST_F(SuspendBeside, WhatIsFreedMeanwhileIsGoneWhereItsMemoryStayed) {
  pool_options.contents = manager_options.contents = vmm::contents_rule::zero_on_release;
  for (const auto rule : {contents::keep, contents::zero, contents::discard}) {
    for (const bool forever : {false, true}) {
      for (std::uint64_t nth = 1; nth <= 2; ++nth) {
        SCOPED_TRACE(testing::Message() << int(rule) << " " << forever << " " << nth);
        open(rule, rule);
        const address in_kv = in_pool(2 * MiB);
        const address weight = in_blocks(2 * MiB);
        write(in_kv, 2 * MiB, 5);
        write(weight, 2 * MiB, 6);
        fail(vmm::call::release, nth, forever);
        EXPECT_FALSE(suspend().retained.empty());
        if (!forever) driver.clear_faults();
        fine(pool->free(in_kv, a));
        fine(blocks->free(weight, a));
        resume();
        for (int left = 4; left > 0; --left) {
          expect_tag(in_pool(2 * MiB), 0);
          expect_tag(in_blocks(2 * MiB), 0);
        }
        driver.clear_faults();
      }
    }
  }
}

// Kept contents are lost with their suspender. Once the blocks are freed the regions resume, also
// where the driver refused to release the memory, or to unmap it after a resumption that failed.
TEST_F(SuspendBeside, AfterALossFreedBlocksBarNoResumption) {
  using rule = vmm::contents_rule;
  const auto play = [&](std::uint64_t size_bytes, bool has_handles, bool is_mapped) {
    open();
    const address first = in_pool(size_bytes);
    const address second = in_pool(size_bytes);
    const address weight = in_blocks(2 * MiB);
    for (const address each : {first, second}) write(each, size_bytes, 5);
    write(weight, 2 * MiB, 6);
    if (has_handles) fail(vmm::call::release, 1, true);
    suspend();
    driver.clear_faults();
    if (is_mapped) {
      for (const vmm::call each : {vmm::call::copy, vmm::call::unmap}) fail(each, 1, true);
      EXPECT_FALSE(sleeper->resume());
      driver.clear_faults();
      EXPECT_NE(pool->statistics().mapped_bytes, pool->statistics().suspended_bytes);
    }
    change_suspender();
    fine(pool->free(first, a));
    if (!is_mapped) refused(sleeper->resume(), errc::in_use);  // it would unmap what is mapped
    fine(pool->free(second, b));
    fine(blocks->free(weight, a));
    resume();
    validate();
    const bool is_filled = pool_options.contents != rule::none;
    for (int left = 4; left > 0 && is_filled; --left) {
      const address next = in_pool(size_bytes);
      EXPECT_NE(driver.read_tag(next).value_or(5), 5u);
      EXPECT_NE(driver.read_tag(in_blocks(2 * MiB)).value_or(6), 6u);
    }
    EXPECT_TRUE(driver.finish_all());
    close();
    EXPECT_EQ(driver.misuse_count(), 0u);
  };
  for (const auto each : {rule::none, rule::zero_on_acquire, rule::zero_on_release, rule::poison}) {
    for (const auto arenas : {vmm::arena_rule::never, vmm::arena_rule::always}) {
      for (const std::uint64_t size_bytes : {MiB, 2 * MiB}) {
        for (const bool has_handles : {false, true}) {
          for (const bool is_mapped : {false, true}) {
            SCOPED_TRACE(testing::Message() << int(each) << int(arenas) << " " << size_bytes << " "
                                            << has_handles << is_mapped);
            pool_options.contents = manager_options.contents = each;
            pool_options.stream_arenas = arenas;
            play(size_bytes, has_handles, is_mapped);
          }
        }
      }
    }
  }
}

TEST_F(SuspendBeside, AForkedChildMayEndItsCopy) {
  for (const vmm::backup_tier tier : {vmm::backup_tier::pinned, vmm::backup_tier::pageable}) {
    open(contents::keep, contents::keep, {.tier = tier});
    const address block = in_blocks(2 * MiB);
    write(block, 2 * MiB, 5);
    suspend();
    const int code = code_of_child([&] {
      const bool is_refused =
          !sleeper->suspend() && !sleeper->resume() && !sleeper->return_backups();
      sleeper.reset();
      pool.reset();
      blocks.reset();
      return is_refused ? 0 : 1;
    });
    EXPECT_EQ(code, 0);
    resume();
    expect_tag(block, 5);
  }
}

// One region of a tag that is suspended and one that is not: the tag can still be resumed.
TEST_F(SuspendBeside, ATagThatIsHalfSuspendedCanBeResumed) {
  suspend({.tags = kv});
  vmm::stream_pool second(driver);
  fine(sleeper->add(second, {"kv"}));
  refused(sleeper->suspend({.tags = kv}), errc::in_use);
  EXPECT_TRUE(*sleeper->is_suspended("kv"));
  fine(sleeper->resume(kv));
  EXPECT_FALSE(*sleeper->is_suspended("kv"));
  suspend({.tags = kv});
  fine(sleeper->resume(kv));
  fine(sleeper->remove(second));
}

TEST_F(SuspendBeside, ARegionStaysWhereTheDriverDoesNotTakeItsBackup) {
  open(contents::keep, contents::keep, {.tier = vmm::backup_tier::pinned});
  const address block = in_blocks(2 * MiB);
  write(block, 2 * MiB, 5);
  suspend();
  resume();
  fine(sleeper->remove(*pool));
  for (const vmm::call where : {vmm::call::unmap, vmm::call::release, vmm::call::free_reservation,
                                vmm::call::destroy_stream}) {
    fail(where, 1, true);
    EXPECT_FALSE(sleeper->remove(*blocks));
    driver.clear_faults();
    suspend();
    resume();
    expect_tag(block, 5);
  }
  fine(sleeper->remove(*blocks));
  EXPECT_EQ(sleeper->backup_bytes(), 0u);
}

// A destroyed stream is not waited for; a failed call, once or always, does not by itself mean that
// a stream is destroyed.
TEST_F(SuspendBeside, AStreamThatOneCallSeemsNotToHave) {
  for (const vmm::call where : {vmm::call::record_event, vmm::call::query_capture}) {
    for (const bool forever : {false, true}) {
      SCOPED_TRACE(testing::Message() << vmm::name_of(where) << (forever ? " always" : " once"));
      open(contents::discard, contents::discard);
      const address in_kv = in_pool(4 * MiB);
      const address weight = *blocks->allocate({.size_bytes = 4 * MiB, .stream = b});
      run(a, {in_kv, 4 * MiB}, 1e6);
      run(b, {weight, 4 * MiB}, 1e6);
      fail(where, 1, forever);
      for (const auto only : {std::string_view("kv"), std::string_view("weights")})
        (void)sleeper->suspend({.tags = {&only, 1}});
      driver.clear_faults();
      resume();
      EXPECT_EQ(driver.misuse_count(), 0u);
    }
  }
}

// Both calls: the code that destroyed it has waited for its work. A stream that the request names
// exists.
TEST_F(SuspendBeside, AStreamThatIsGoneIsNotWaitedFor) {
  write(in_pool(4 * MiB), 4 * MiB, 5);
  write(in_blocks(4 * MiB), 4 * MiB, 6);
  for (const vmm::call where : {vmm::call::record_event, vmm::call::synchronize_stream})
    fail(where, 1, true);
  refused(sleeper->suspend({.streams = {&b, 1}}), errc::invalid_argument);
  EXPECT_EQ(*sleeper->last_obstacle(), "kv");
  const auto report = sleeper->suspend({.contents = vmm::suspend_contents::discard});
  driver.clear_faults();
  ASSERT_TRUE(report) << vmm::describe(report.error());
  resume();
}

TEST_F(SuspendBeside, AStreamThatAManagerIsToWaitForIsThere) {
  write(in_blocks(4 * MiB), 4 * MiB, 6);
  constexpr std::string_view only[] = {"weights"};
  for (const vmm::call where : {vmm::call::record_event, vmm::call::synchronize_stream})
    fail(where, 1, true);
  refused(sleeper->suspend({.tags = only, .streams = {&b, 1}}), errc::invalid_argument);
  driver.clear_faults();
  suspend({.tags = only});
  resume();
}

// Their memory waits for work that the allocator tracks: it goes, too.
TEST_F(SuspendBeside, MemoryOfFreedBlocksWhoseWorkGoesOn) {
  const address in_kv = in_pool(4 * MiB);
  const address weight = *blocks->allocate({.size_bytes = 4 * MiB, .stream = b});
  run(a, {in_kv, 4 * MiB}, 5000);
  run(b, {weight, 4 * MiB}, 7000);
  fine(pool->free(in_kv, a));
  fine(blocks->free(weight, b));
  const vmm::suspend_report report = suspend();
  EXPECT_TRUE(report.retained.empty());
  EXPECT_EQ(blocks->statistics().held_bytes, 0u);
  EXPECT_EQ(pool->statistics().mapped_bytes, 0u);
  resume();
}

}  // namespace

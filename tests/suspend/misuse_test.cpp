// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: what cannot be suspended is refused with an error that says why, what is suspended is
// refused to everybody but free(), and a refusal changes nothing.
// Method: each misuse once, then the call that it kept from being done.
#include <fcntl.h>

#include <cerrno>

#include "regions.hpp"

import vmm.containers;
import vmm.optimizer;

namespace {

int failure_of_the_disk = 0;

}  // namespace

// Before the system's own, which the library calls for the blocks of a backup's file.
extern "C" int posix_fallocate(int file, off_t offset, off_t size) {
  if (failure_of_the_disk != 0) return failure_of_the_disk;
  return ::fallocate(file, 0, offset, size) == 0 ? 0 : errno;
}

namespace {

using vmm::address, vmm::errc;

struct SuspendMisuse : Regions {
  void expect_running(std::string_view obstacle) {
    EXPECT_EQ(*sleeper->last_obstacle(), obstacle);
    EXPECT_FALSE(*sleeper->is_suspended("kv"));
    EXPECT_FALSE(*sleeper->is_suspended("weights"));
    validate();
    EXPECT_NE(in_pool(MiB), address{});
    EXPECT_NE(in_blocks(MiB), address{});
  }
  void expect_works() {
    suspend();
    resume();
  }
};

constexpr std::string_view kv[] = {"kv"};
constexpr std::string_view unknown[] = {"kv", "nothing"};

TEST_F(SuspendMisuse, Tags) {
  refused(sleeper->suspend({.tags = unknown}), errc::invalid_argument);
  refused(sleeper->resume(unknown), errc::invalid_argument);
  refused(sleeper->is_suspended("nothing"), errc::invalid_argument);
  refused(sleeper->add(*pool, {"again"}), errc::in_use);
  vmm::stream_pool other(driver);
  refused(sleeper->add(other, {""}), errc::invalid_argument);
  refused(sleeper->remove(other), errc::invalid_argument);
  expect_running("");
}

TEST_F(SuspendMisuse, SuspendedTwiceAndResumedTwice) {
  refused(sleeper->resume(kv), errc::invalid_argument);
  fine(sleeper->resume());  // none is suspended
  suspend({.tags = kv});
  refused(sleeper->suspend({.tags = kv}), errc::in_use);
  constexpr std::string_view both[] = {"weights", "kv"};
  refused(sleeper->suspend({.tags = both}), errc::in_use);
  EXPECT_FALSE(*sleeper->is_suspended("weights")) << "all or nothing";
  refused(sleeper->remove(*pool), errc::in_use);
  vmm::suspender second;
  fine(second.add(*pool, {"kv"}));
  refused(second.suspend(), errc::in_use);
  fine(second.remove(*pool));
  resume();
  refused(sleeper->resume(kv), errc::invalid_argument);
  expect_running("kv");
}

TEST_F(SuspendMisuse, ResumedByAnotherSuspender) {
  in_pool(4 * MiB);
  suspend({.tags = kv});
  vmm::suspender second;
  fine(second.add(*pool, {"kv"}));
  fine(second.add(*blocks, {"weights"}));
  refused(second.resume(), errc::in_use);
  EXPECT_EQ(*second.last_obstacle(), "kv");
  refused(second.resume(kv), errc::in_use);
  EXPECT_TRUE(sleeper->keeps_contents());
  EXPECT_FALSE(second.keeps_contents());
  EXPECT_TRUE(second.suspend({.tags = std::array{std::string_view{"weights"}}}));
  fine(second.resume());  // its own region
  sleeper.reset();
  const vmm::status lost = second.resume();
  refused(lost, errc::in_use);
  EXPECT_TRUE(contains(vmm::describe(lost.error()), "add it again"));
}

TEST_F(SuspendMisuse, ContentsThatTheEndWouldLose) {
  open(contents::keep, contents::keep, {.tier = vmm::backup_tier::pageable});
  const address block = in_pool(4 * MiB);
  EXPECT_FALSE(sleeper->keeps_contents());
  suspend();
  EXPECT_TRUE(sleeper->keeps_contents());
  resume();
  EXPECT_FALSE(sleeper->keeps_contents()) << "a backup that is kept for reuse";
  suspend({.contents = vmm::suspend_contents::discard});
  EXPECT_FALSE(sleeper->keeps_contents());
  resume();
  // A suspension that fails, and its undoing, too: contents stay in memory without a mapping.
  in_blocks(4 * MiB);
  write(block, 4 * MiB, 8);
  for (const auto& [kind, nth] : {std::pair{vmm::call::unmap, 2U}, {vmm::call::map, 1U}})
    fail(kind, nth, true);
  EXPECT_FALSE(sleeper->suspend());
  driver.clear_faults();
  ASSERT_TRUE(*sleeper->is_suspended("kv"));
  EXPECT_TRUE(sleeper->keeps_contents());
  resume();
  expect_tag(block, 8);
}

TEST_F(SuspendMisuse, UseOfAPoolWhileItIsSuspended) {
  const address block = in_pool(4 * MiB);
  suspend();
  refused(pool->allocate(MiB, a), errc::in_use);
  refused(pool->allocate(MiB, b), errc::in_use);
  refused(pool->pin(block), errc::in_use);
  refused(pool->segments({block, MiB}), errc::in_use);
  refused(pool->free(block + 512, a), errc::invalid_argument);
  EXPECT_EQ(pool->trim(0).released_count, 0u);
  fine(pool->synchronize());
  fine(pool->forget(b));
  resume();
  fine(pool->pin(block));
  fine(pool->unpin(block));
}

TEST_F(SuspendMisuse, UseOfAManagerWhileItIsSuspended) {
  const address block = in_blocks(4 * MiB);
  const address other = in_blocks(4 * MiB);
  suspend();
  refused(blocks->allocate(MiB), errc::in_use);
  refused(blocks->resize({block, 8 * MiB}), errc::in_use);
  refused(blocks->synchronize(block), errc::in_use);
  refused(blocks->segments({block, MiB}), errc::in_use);
  refused(blocks->copy({other, block, MiB, a}), errc::in_use);
  refused(blocks->copy({other, block, 4 * MiB, a}, vmm::copy_mode::move), errc::in_use);
  const vmm::access_grant one{vmm::device(0), vmm::access::read};
  refused(blocks->set_access(block, {&one, 1}), errc::in_use);
  EXPECT_EQ(blocks->trim(0).released_count, 0u);
  EXPECT_TRUE(blocks->find(block));
  resume();
  EXPECT_TRUE(blocks->resize({block, 8 * MiB}));
}

TEST_F(SuspendMisuse, UseOfAVectorWhileItIsSuspended) {
  vmm::vector<std::uint64_t> values(*blocks, 0, a);
  const std::uint64_t some[] = {1, 2};
  ASSERT_TRUE(values.append(some));
  suspend();
  std::uint64_t seen[2] = {};
  refused(values.read(0, seen), errc::in_use);
  refused(values.append(some), errc::in_use);
  EXPECT_STREQ(values.read(0, seen).error().detail, vmm::memory_suspended.detail);
  std::byte byte[1] = {};
  refused(driver.read(byte, values.data_address()), errc::invalid_argument);
  driver.clear_misuses();
  EXPECT_EQ(values.size(), 2u);
  resume();
  ASSERT_TRUE(values.append(some));
  ASSERT_TRUE(values.read(2, seen));
  EXPECT_EQ(seen[1], 2u);
}

TEST_F(SuspendMisuse, PinnedMemoryStays) {
  const address block = in_pool(4 * MiB);
  fine(pool->pin(block));
  refused(sleeper->suspend(), errc::in_use);
  expect_running("kv");
  fine(pool->unpin(block));
  expect_works();
}

TEST_F(SuspendMisuse, ExportedMemoryStays) {
  manager_options.shareable = vmm::share_kind::posix_fd;
  open();
  const address block = in_blocks(4 * MiB);
  ASSERT_TRUE(blocks->exports().begin(block, vmm::export_rule::pinned));
  refused(sleeper->suspend(), errc::in_use);
  expect_running("weights");
  fine(blocks->exports().end(block));
  refused(sleeper->suspend(), errc::in_use);  // another process may still use it
  fine(blocks->free(block));
  expect_works();
}

TEST_F(SuspendMisuse, SharedMemoryStays) {
  const address one = in_blocks(4 * MiB);
  const address two = in_blocks(4 * MiB);
  fine(blocks->copy({two, one, 4 * MiB, a}, vmm::copy_mode::alias));
  refused(sleeper->suspend(), errc::in_use);
  expect_running("weights");
  fine(blocks->free(two));
  expect_works();
}

TEST_F(SuspendMisuse, AGrowableRangesMemoryStays) {
  {
    vmm::growable_range range(*blocks, {.segment_bytes_max = 64 * MiB});
    fine(range.reserve());
    expect_works();
    fine(range.resize({.size_bytes = 4 * MiB, .stream = a}));
    refused(sleeper->suspend(), errc::in_use);
    expect_running("weights");
  }
  expect_works();
}

TEST_F(SuspendMisuse, ContentsThatTheHomeMustNotReadAreNotKept) {
  const address block = in_blocks(4 * MiB);
  const vmm::access_grant none{driver.home(), vmm::access::none};
  fine(blocks->set_access(block, {&none, 1}));
  refused(sleeper->suspend(), errc::not_permitted);
  suspend({.contents = vmm::suspend_contents::discard});
  resume();
}

TEST_F(SuspendMisuse, ATierThatIsNotThere) {
  const vmm::suspend_options missing{.tier = vmm::backup_tier::file,
                                     .directory = "/nowhere/at/all"};
  refused(missing.validate(), errc::bad_option);
  refused(vmm::suspend_options{.directory = "/nowhere/at/all"}.validate(), errc::bad_option);
  fine(vmm::suspend_options{.tier = vmm::backup_tier::file}.validate());
  fine(vmm::suspend_options{}.validate());
  open(contents::keep, contents::keep, missing);
  const address block = in_pool(4 * MiB);
  write(block, 4 * MiB, 8);
  const auto outcome = sleeper->suspend();
  refused(outcome, errc::bad_option);
  EXPECT_TRUE(contains(outcome.error().detail, "'/nowhere/at/all': No such file"));
  expect_tag(block, 8);
  expect_running("kv");
}

TEST_F(SuspendMisuse, ATierWhoseDiskFails) {
  open(contents::keep, contents::keep, {.tier = vmm::backup_tier::file, .directory = "/tmp"});
  const address block = in_pool(4 * MiB);
  write(block, 4 * MiB, 8);
  for (const auto& [failure, code] : {std::pair{EIO, errc::unavailable},
                                      {ESTALE, errc::unavailable},
                                      {ENOSPC, errc::out_of_host_memory},
                                      {EOPNOTSUPP, errc::bad_option}}) {
    failure_of_the_disk = failure;
    refused(sleeper->suspend(), code);
    expect_tag(block, 8);
  }
  failure_of_the_disk = 0;
  expect_running("kv");
}

TEST_F(SuspendMisuse, VerifyFindsContentsThatAreNotThose) {
  open(contents::keep, contents::keep, {.tier = vmm::backup_tier::pinned, .verify = true});
  const address block = in_blocks(2 * MiB);
  write(block, 2 * MiB, 8);
  suspend();
  // The one fill of a zero region that is left out: the fake forgets nothing by itself.
  fail(vmm::call::copy);
  EXPECT_FALSE(sleeper->resume());
  driver.clear_faults();
  resume();
  expect_tag(block, 8);
}

}  // namespace

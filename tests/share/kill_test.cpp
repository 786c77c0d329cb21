// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: whichever side is killed, at whatever step of the protocol, the other side gets a typed
// error at once and keeps nothing: no descriptor, no memory, no reservation.
// Method: a forked child plays one side and kills itself (SIGKILL) before its n-th step, for every
// n until a child gets through; this process plays the other side with a wait of one second, which
// must not pass, and counts what it has before and after. VMM_SHARE_KILL_ROUNDS says how many
// rounds at least (default 100).
#include <cerrno>

#include "../process/child.hpp"
#include "both_sides.hpp"

import vmm.host;

namespace {

using share_test::killer, share_test::options_of, vmm::exported_block, vmm::share_channel,
    vmm::share_event, vmm::share_role;

constexpr std::uint32_t second_ms = 1000;

// What a side did: nothing, or the error that stopped it.
using outcome = vmm::status;

// The exporter lends a block of three handles, changes it, withdraws it.
outcome play_exporter(int end, killer& fate, bool by_manager) {
  auto driver = vmm::host_driver::open();
  if (!driver) return driver.error();
  outcome done;
  {
    vmm::manager owner(*driver, share_test::shareable());
    vmm::share_options how = options_of(1, second_ms);
    how.watch = {&killer::hook, &fate};
    auto channel = share_channel::adopt(end, share_role::connecting, how);
    if (!channel) {
      ::close(end);
      return channel.error();
    }
    fate.step();
    vmm::address at = owner.allocate(2 * MiB).value();
    auto block = by_manager
                     ? exported_block::from(owner, at, {.rule = vmm::export_rule::followed})
                     : exported_block::make(*driver, {.size_bytes = 3 * MiB, .handle_bytes = MiB});
    if (!block) return block.error();
    fate.step();
    const auto id = channel->lend(*block);
    done = id ? outcome{} : outcome{id.error()};
    fate.step();
    if (done && by_manager) {
      at = owner.resize({.at = at, .size_bytes = 4 * MiB}).value();
      done = block->moved_to(at);
      if (done) {
        const auto epoch = channel->update(*id);
        if (!epoch) done = epoch.error();
      }
      if (done) {
        const auto seen = channel->next();
        if (!seen) done = seen.error();
      }
    }
    fate.step();
    if (done) done = channel->take_back(*id);
    fate.step();
    channel->close();
    if (!block->release()) return vmm::refuse(vmm::errc::internal, "the block stays lent");
    if (!owner.free(at)) return vmm::refuse(vmm::errc::internal, "the block stays pinned");
  }
  if (!driver->resource_counts().empty())
    return vmm::refuse(vmm::errc::internal, "the exporter leaks");
  return done;
}

// The importer uses its blocks until they are withdrawn.
outcome play_importer(int end, killer& fate, bool) {
  auto driver = vmm::host_driver::open();
  if (!driver) return driver.error();
  outcome done;
  {
    vmm::share_options how = options_of(1, second_ms);
    how.watch = {&killer::hook, &fate};
    auto channel = share_channel::adopt(end, share_role::accepting, how);
    if (!channel) {
      ::close(end);
      return channel.error();
    }
    fate.step();
    auto block = channel->borrow(*driver);
    if (!block) {
      done = block.error();
    } else {
      fate.step();
      block->data_address().as<char>()[0] = 'i';
      while (done && !block->empty()) {
        const auto seen = channel->next();
        fate.step();
        if (!seen) {
          done = seen.error();
        } else if (seen->kind == share_event::what::updated) {
          const auto at = block->update(seen->block);
          fate.step();
          done = at ? channel->accept(seen->id) : outcome{at.error()};
        } else {
          done = channel->give_back(*block);
        }
      }
      if (!block->release()) return vmm::refuse(vmm::errc::internal, "the mapping stays");
    }
  }
  if (!driver->resource_counts().empty())
    return vmm::refuse(vmm::errc::internal, "the importer leaks");
  return done;
}

struct round_end {
  bool child_died = false;
  outcome survivor;
};

round_end play_round(bool child_exports, int step, bool by_manager) {
  const std::array<int, 2> ends = share_test::socket_pair();
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(ends[0]);
    killer fate{step};
    const outcome done = child_exports ? play_exporter(ends[1], fate, by_manager)
                                       : play_importer(ends[1], fate, by_manager);
    std::_Exit(done ? 0 : 1);
  }
  ::close(ends[1]);
  killer nobody;
  round_end seen;
  seen.survivor = child_exports ? play_importer(ends[0], nobody, by_manager)
                                : play_exporter(ends[0], nobody, by_manager);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  seen.child_died = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  if (!seen.child_died) EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  return seen;
}

std::uint64_t rounds_wanted() {
  const char* const text = std::getenv("VMM_SHARE_KILL_ROUNDS");
  return text == nullptr ? 100 : std::strtoull(text, nullptr, 10);
}

void expect_clean(const round_end& seen, const std::string& where) {
  if (seen.survivor) return;  // it had what it needed before the other side died
  const vmm::error why = seen.survivor.error();
  EXPECT_TRUE(seen.child_died) << where << vmm::describe(why);
  EXPECT_EQ(why.code, vmm::errc::unavailable) << where << vmm::describe(why);
  EXPECT_NE(why.native, ETIMEDOUT) << where << "the survivor waited for the whole second";
}

TEST(Kill, EitherSideAtEveryStep) {
  (void)vmm::sign_bytes({}, {});
  const std::ptrdiff_t before = share_test::descriptor_count();
  std::uint64_t rounds = 0;
  std::uint64_t kills = 0;
  while (rounds < rounds_wanted()) {
    for (const bool child_exports : {true, false}) {
      for (const bool by_manager : {false, true}) {
        bool got_through = false;
        for (int step = 0; !got_through; ++step) {
          ASSERT_LT(step, 200) << "the steps have no end";
          const round_end seen = play_round(child_exports, step, by_manager);
          const std::string where = std::string(child_exports ? "exporter" : "importer") +
                                    (by_manager ? ", followed, step " : ", step ") +
                                    std::to_string(step) + ": ";
          expect_clean(seen, where);
          EXPECT_EQ(share_test::descriptor_count(), before) << where;
          got_through = !seen.child_died;
          if (got_through) {
            EXPECT_TRUE(seen.survivor) << where << vmm::describe(seen.survivor.error());
            EXPECT_GT(step, 15) << where << "too few steps were met";
          }
          ++rounds;
          kills += seen.child_died ? 1 : 0;
        }
      }
    }
  }
  EXPECT_GT(kills, rounds * 9 / 10);
  RecordProperty("rounds", std::to_string(rounds));
  RecordProperty("kills", std::to_string(kills));
  std::printf("%llu rounds, %llu kills\n", static_cast<unsigned long long>(rounds),
              static_cast<unsigned long long>(kills));
}

// A child that the parent forks must not keep the parent's lease.
TEST(Kill, AForkedChildKeepsNoLease) {
  share_test::channels both = share_test::make_channels(share_test::patient_ms);
  const auto seen = process_test::in_child(
      [&] {
        process_test::expect_refused(both.client.next(), "next in a child");
        process_test::expect_refused(both.client.withdraw(1), "withdraw in a child");
      },
      process_test::leave_by::quick_exit);
  process_test::expect_good(seen, "the child");
  std::array<int, 2> hold{-1, -1};
  ASSERT_EQ(::pipe(hold.data()), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    char byte = 0;
    ::close(hold[1]);
    (void)!::read(hold[0], &byte, 1);  // stays until the test has checked it
    std::_Exit(0);
  }
  ::close(hold[0]);
  both.client.close();
  const auto next = both.server.next();
  EXPECT_FALSE(next);
  EXPECT_NE(next.error().native, ETIMEDOUT) << "the child has a copy of the connection";
  ::close(hold[1]);
  ::waitpid(child, nullptr, 0);
}

TEST(Fork, AChildCannotUseOrFreeSharedBlocks) {
  auto driver = vmm::host_driver::open().value();
  auto other = vmm::host_driver::open().value();
  auto block = exported_block::make(driver, {.size_bytes = 2 * MiB});
  ASSERT_TRUE(block);
  block->data_address().as<char>()[0] = 'p';
  std::array<vmm::shared_handle, 1> handles{};
  ASSERT_TRUE(block->export_handles(handles));
  vmm::share_description said = block->describe().value();
  said.id = 1;
  const auto received = vmm::received_block::of(said, handles).value();
  auto borrowed = vmm::imported_block::import_block(other, received);
  ASSERT_TRUE(borrowed && borrowed->map());
  const auto seen = process_test::in_child(
      [&] {
        process_test::expect_refused(block->release(), "release of an exported block");
        process_test::expect_refused(block->describe(), "describe");
        process_test::expect_refused(block->export_handles(handles), "export");
        process_test::expect_refused(borrowed->release(), "release of an imported block");
        process_test::expect_refused(borrowed->map(), "map");
        process_test::expect_refused(borrowed->update(received), "update");
        *block = {};
        *borrowed = {};
      },
      process_test::leave_by::quick_exit);
  process_test::expect_good(seen, "the child");
  EXPECT_EQ(borrowed->data_address().as<char>()[0], 'p');
  ::close(static_cast<int>(handles[0].descriptor));
}

}  // namespace

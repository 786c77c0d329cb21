// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: memory is shared between processes that have nothing in common but a socket, on each driver
// that this machine has: what one writes the other reads, on another device too; when the importer
// is killed at any step, the exporter's device has its memory back.
// Method: this program starts itself again as the importer (a forked child could not use CUDA),
// which compares and writes through its driver. On the host always, on a GPU where there is one;
// the importer takes the second device where there are two.
#include <cerrno>

#include "both_sides.hpp"

import vmm.registry;

namespace {

using share_test::options_of, share_test::patient_ms, vmm::exported_block, vmm::share_event;

std::vector<std::byte> pattern(std::uint64_t size_bytes, unsigned seed) {
  std::vector<std::byte> made(size_bytes);
  for (std::uint64_t i = 0; i < size_bytes; ++i)
    made[i] = static_cast<std::byte>((i * 2654435761U >> 13U) + seed);
  return made;
}

bool has(vmm::any_backend& driver, vmm::address at, std::uint64_t size_bytes, unsigned seed) {
  std::vector<std::byte> seen(size_bytes);
  return driver.read(seen, at).has_value() && seen == pattern(size_bytes, seed);
}

// ---- the importer, in a process of its own ----

// Compares what it is given with the pattern, adds one to the seed, and gives it back.
int import_until_asked(const char* name, int socket, int die_at) {
  auto driver = vmm::open_backend(name);
  if (!driver) return 10;
  share_test::killer mine{die_at};
  vmm::share_options options = options_of(1, patient_ms);
  options.watch = {&share_test::killer::hook, &mine};
  auto channel = vmm::share_channel::adopt(socket, vmm::share_role::accepting, options);
  if (!channel) return 11;
  auto block = channel->borrow(*driver);
  if (!block) return std::fprintf(stderr, "%s\n", vmm::describe(block.error()).c_str()), 12;
  unsigned seed = 1;
  for (;;) {
    const auto event = channel->next();
    if (!event) return 13;
    if (event->kind == share_event::what::withdrawn) break;
    if (!block->update(event->block)) return 14;
    if (!has(*driver, block->data_address(), block->size_bytes(), seed)) return 15;
    ++seed;
    if (!driver->write(block->data_address(), pattern(block->size_bytes(), seed))) return 16;
    ++seed;
    if (!channel->accept(event->id)) return 17;
  }
  return channel->give_back(*block) ? 0 : 18;
}

TEST(Child, DISABLED_Importer) {
  const char* const name = std::getenv("VMM_SHARE_TEST_DRIVER");
  const char* const socket = std::getenv("VMM_SHARE_TEST_SOCKET");
  const char* const die_at = std::getenv("VMM_SHARE_TEST_DIE_AT");
  if (name == nullptr || socket == nullptr || die_at == nullptr)
    GTEST_SKIP() << "started by the other tests only";
  std::_Exit(import_until_asked(name, std::atoi(socket), std::atoi(die_at)));
}

// ---- the exporter ----

struct importer {
  pid_t process = -1;
  int socket = -1;
};

// The child's end keeps its number: this exec does not close it, and the next one does.
importer start_importer(const std::string& driver, int die_at) {
  const std::array<int, 2> ends = share_test::socket_pair();
  const std::string socket = std::to_string(ends[1]);
  const std::string at = std::to_string(die_at);
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    ::setenv("VMM_SHARE_TEST_DRIVER", driver.c_str(), 1);
    ::setenv("VMM_SHARE_TEST_SOCKET", socket.c_str(), 1);
    ::setenv("VMM_SHARE_TEST_DIE_AT", at.c_str(), 1);
    ::fcntl(ends[1], F_SETFD, 0);
    ::execl("/proc/self/exe", "importer", "--gtest_filter=Child.DISABLED_Importer",
            "--gtest_also_run_disabled_tests", static_cast<char*>(nullptr));
    std::_Exit(127);
  }
  ::close(ends[1]);
  return {child, ends[0]};
}

// Writes, lets the importer compare and write, compares; grows the block between two rounds.
vmm::status export_rounds(vmm::any_backend& driver, vmm::manager& owner, int socket) {
  auto channel =
      vmm::share_channel::adopt(socket, vmm::share_role::connecting, options_of(1, patient_ms));
  if (!channel) return channel.error();
  constexpr std::uint64_t unit = 2 * MiB;
  const auto made = owner.allocate(unit);
  if (!made) return made.error();
  vmm::address at = *made;
  vmm::status done;
  {
    auto block = exported_block::from(owner, at, {.rule = vmm::export_rule::followed});
    if (!block) return block.error();
    const auto id = channel->lend(*block);
    if (!id) done = id.error();
    unsigned seed = 1;
    for (std::uint64_t round = 1; done && round <= 3; ++round) {
      const auto grown = owner.resize({.at = at, .size_bytes = (1 + round) * unit});
      if (!grown) return grown.error();
      at = *grown;
      done = block->moved_to(at);
      if (done) done = owner.synchronize(at);
      if (done) done = driver.write(at, pattern(block->size_bytes(), seed));
      ++seed;
      if (!done) break;
      const auto epoch = channel->update(*id);
      const auto answer = epoch ? channel->next() : vmm::result<share_event>{epoch.error()};
      if (!answer) {
        done = answer.error();
      } else if (!has(driver, at, block->size_bytes(), seed)) {
        done = vmm::refuse(vmm::errc::internal, "the importer's bytes are not here");
      }
      ++seed;
    }
    if (done) done = channel->take_back(*id);
  }
  channel->close();
  const vmm::status freed = owner.free(at);
  return freed ? done : freed;
}

class Processes : public testing::TestWithParam<const char*> {};

TEST_P(Processes, ShareMemoryAndMayBeKilled) {
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
  GTEST_SKIP() << "ThreadSanitizer's own threads do not survive a fork";
#endif
#endif
  auto driver = vmm::open_backend(GetParam());
  if (!driver) GTEST_SKIP() << vmm::describe(driver.error());
  if (!driver->feature_set().export_posix_fd) GTEST_SKIP() << "memory is not shared here";
  std::string other = GetParam();
  if (other == "cuda" && vmm::open_backend("cuda:1")) other = "cuda:1";
  vmm::manager_options options = share_test::shareable();
  options.reservation_bytes = GiB;
  vmm::manager owner(*driver, options);
  bool got_through = false;
  int died = 0;
  for (int step = 0; !got_through; step += got_through ? 0 : 2) {
    ASSERT_LT(step, 200);
    const importer child = start_importer(other, step);
    const vmm::status done = export_rounds(*driver, owner, child.socket);
    int state = 0;
    ASSERT_EQ(::waitpid(child.process, &state, 0), child.process);
    const bool killed = WIFSIGNALED(state) && WTERMSIG(state) == SIGKILL;
    got_through = !killed;
    died += killed ? 1 : 0;
    if (killed && !done) {
      EXPECT_EQ(done.error().code, vmm::errc::unavailable) << vmm::describe(done.error());
      EXPECT_NE(done.error().native, ETIMEDOUT);
    }
    if (!killed) {
      EXPECT_TRUE(WIFEXITED(state) && WEXITSTATUS(state) == 0) << WEXITSTATUS(state);
      EXPECT_TRUE(done) << vmm::describe(done.error());
    }
    EXPECT_TRUE(owner.validate());
    EXPECT_EQ(owner.statistics().held_bytes, 0U) << "exported memory goes back at step " << step;
  }
  EXPECT_GT(died, 4);
  std::printf("%s with an importer on %s: %d killed, one got through\n", GetParam(), other.c_str(),
              died);
}

INSTANTIATE_TEST_SUITE_P(On, Processes, testing::Values("host", "cuda"),
                         [](const auto& each) { return std::string(each.param); });

}  // namespace

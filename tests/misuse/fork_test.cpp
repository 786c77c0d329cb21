// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a forked child that uses its parent's pool or manager is refused, and the objects it
// destroys are left to the parent. Method: a child of fork() reports by its exit status; the parent
// looks at its own block afterwards.
#include "fixture.hpp"

namespace misuse {

using vmm::address, vmm::errc;

// The number that the child's work returns, or -1 if it did not end by itself.
template <class Work>
[[nodiscard]] int in_a_child(Work&& work) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(work());
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

TEST_F(PoolMisuse, UsedAfterAFork) {
  open();
  const address at = allocate(4 * KiB, a);
  const int answer = in_a_child([&] {
    const bool refused = code_of(pool->allocate(4 * KiB, a)) == errc::not_permitted &&
                         code_of(pool->free(at, a)) == errc::not_permitted &&
                         code_of(pool->synchronize()) == errc::not_permitted;
    pool.reset();
    return refused ? 7 : 1;
  });
  EXPECT_EQ(answer, 7);
  free(at, a);
}

TEST_F(ManagerMisuse, UsedAfterAFork) {
  const address at = allocate(4 * MiB);
  const int answer = in_a_child([&] {
    const bool refused = code_of(manager->allocate(4 * MiB)) == errc::not_permitted &&
                         code_of(manager->free(at)) == errc::not_permitted;
    manager.reset();
    return refused ? 7 : 1;
  });
  EXPECT_EQ(answer, 7);
  EXPECT_TRUE(manager->free(at));
}

}  // namespace misuse

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: VMM_OWNER makes a program of the C interface a tenant, without a change of its code.
// Method: vmm-owner over the host's memory, and processes that take turns in three quarters of it.
#include "../support/program.hpp"
#include "bench.hpp"
#include "vmm.h"

namespace {

constexpr std::uint64_t block_bytes = std::uint64_t{48} << 20;

// Does `work` for each letter that the test says, and replies.
auto reply_with(char (*work)(int turn)) {
  return [work](const program::line& talk) {
    while (const char turn = talk.hear()) talk.say(work(turn));
  };
}

char run(const program& of, char turn) {
  of.talk().say(turn);
  return of.talk().hear();
}

char allocate_and_free(int turn) {
  static vmm_driver* driver = nullptr;
  static vmm_manager* blocks = nullptr;
  if (blocks == nullptr) {
    if (vmm_driver_open("host", VMM_ANY_DEVICE, &driver) != VMM_SUCCESS) return 'd';
    if (vmm_manager_create(driver, nullptr, &blocks) != VMM_SUCCESS) return 'm';
  }
  void* at = nullptr;
  const vmm_block_request request{sizeof(vmm_block_request), block_bytes, 0, 0, nullptr};
  if (vmm_manager_allocate(blocks, &request, &at) != VMM_SUCCESS) {
    std::fprintf(stderr, "%s\n", vmm_last_error_text());
    return 'a';
  }
  std::memset(at, turn, block_bytes);
  const bool is_whole = static_cast<const char*>(at)[block_bytes - 1] == turn;
  return vmm_manager_free_idle(blocks, at) == VMM_SUCCESS && is_whole ? 'y' : 'w';
}

char open_beyond_the_device(int) {
  ::setenv("VMM_TENANT", "guarantee=1GiB", 1);
  vmm_driver* driver = nullptr;
  if (vmm_driver_open("host", VMM_ANY_DEVICE, &driver) != VMM_ERROR_OUT_OF_MEMORY) return 'o';
  return std::strstr(vmm_last_error_text(), "a guarantee of 1024 MiB") != nullptr ? 'y' : 't';
}

char open_with_a_limit(int) {
  ::setenv("VMM_TENANT", "limit=16MiB", 1);
  vmm_driver* driver = nullptr;
  std::uint64_t free_bytes = 0, total_bytes = 0;
  if (vmm_driver_open("host", VMM_ANY_DEVICE, &driver) != VMM_SUCCESS) return 'o';
  if (vmm_driver_memory(driver, &free_bytes, &total_bytes) != VMM_SUCCESS) return 'q';
  return total_bytes == std::uint64_t{16} << 20 ? 'y' : 't';
}

TEST(Owner, OneVariableMakesProcessesTenants) {
  char folder[] = "/tmp/vmm-c-owner-XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  const ::pid_t serving = ::fork();
  if (serving == 0) {
    ::execl(VMM_TEST_OWNER_PROGRAM, "vmm-owner", "serve", folder, "host", "--daemon", "--capacity",
            "64MiB", "--quiet-ms", "50", nullptr);
    ::_exit(127);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(serving, &status, 0), serving);
  ASSERT_EQ(status, 0) << "no owner";
  ::setenv("VMM_OWNER", folder, 1);
  {
    const program one(reply_with(allocate_and_free)), two(reply_with(allocate_and_free));
    for (char turn = 1; turn <= 10; ++turn)
      ASSERT_EQ(run(turn % 2 == 0 ? one : two, turn), 'y') << int{turn};
    EXPECT_EQ(run(program(reply_with(open_beyond_the_device)), 1), 'y');
    EXPECT_EQ(run(program(reply_with(open_with_a_limit)), 1), 'y');
  }
  ::unsetenv("VMM_OWNER");
  std::filesystem::remove_all(folder);
}

}  // namespace

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Two ends of a connection, and what a process has open. It imports what it uses, so it is the last
// include but for those that do the same.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>

#include <gtest/gtest.h>

#include "messages.hpp"

import vmm.backend;
import vmm.share;

namespace share_test {

inline std::array<int, 2> socket_pair() {
  std::array<int, 2> ends{-1, -1};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()), 0);
  return ends;
}

/// Long enough for a loaded machine; what waits for so long has failed.
inline constexpr std::uint32_t patient_ms = 20'000;

inline vmm::share_options options_of(unsigned char secret, std::uint32_t timeout_ms = patient_ms) {
  vmm::share_options made;
  made.secret = secret_of(secret);
  made.timeout_ms = timeout_ms;
  return made;
}

/// An open channel's two ends, for one process.
struct channels {
  vmm::share_channel client;
  vmm::share_channel server;
};
inline channels make_channels(std::uint32_t timeout_ms = patient_ms) {
  const std::array<int, 2> ends = socket_pair();
  channels made;
  std::thread accepting([&] {
    auto server =
        vmm::share_channel::adopt(ends[1], vmm::share_role::accepting, options_of(1, timeout_ms));
    ASSERT_TRUE(server) << vmm::describe(server.error());
    made.server = std::move(*server);
  });
  auto client =
      vmm::share_channel::adopt(ends[0], vmm::share_role::connecting, options_of(1, timeout_ms));
  accepting.join();
  EXPECT_TRUE(client) << vmm::describe(client.error());
  made.client = std::move(*client);
  return made;
}

/// How many descriptors this process has open.
inline std::size_t descriptor_count() {
  DIR* const folder = ::opendir("/proc/self/fd");
  if (folder == nullptr) return 0;
  std::size_t count = 0;
  while (::readdir(folder) != nullptr) ++count;
  ::closedir(folder);
  return count;
}

}  // namespace share_test

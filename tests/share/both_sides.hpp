// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Two ends of a connection, and what a process has open. It imports what it uses, so it is the last
// include except others with imports.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>

#include "../support/test.h"
#include "messages.hpp"

import vmm.manager;

namespace share_test {

inline std::array<int, 2> socket_pair() {
  std::array<int, 2> ends{-1, -1};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()), 0);
  return ends;
}

/// Long enough for a loaded machine; what waits for so long has failed.
inline constexpr std::uint32_t patient_ms = 20'000;
/// For two ends in one thread: what has not come yet does not come while one of them waits.
inline constexpr std::uint32_t at_once_ms = 0;

inline vmm::share_options options_of(unsigned char secret, std::uint32_t timeout_ms = patient_ms) {
  vmm::share_options made;
  made.secret = secret_of(secret);
  made.timeout_ms = timeout_ms;
  return made;
}

/// Of a manager whose blocks may be exported.
inline vmm::manager_options shareable() {
  vmm::manager_options options;
  options.shareable = vmm::share_kind::posix_fd;
  options.reservation_bytes = 64 * MiB;
  return options;
}

/// An open channel's two ends, for one process.
struct channels {
  vmm::share_channel client;
  vmm::share_channel server;
};
inline vmm::result<vmm::share_channel> adopt(int end, vmm::share_role role,
                                             std::uint32_t timeout_ms) {
  // The end that this thread's channel has until hands are shaken: its messages are awaited here,
  // so that a channel whose own waits are short, or none, opens on a loaded machine, too.
  static thread_local int opening = -1;
  vmm::share_options options = options_of(1, timeout_ms);
  options.watch.hook = [](void*, vmm::share_step step, vmm::share_message_kind) {
    if (step != vmm::share_step::receiving || opening == -1) return;
    pollfd asked{opening, POLLIN, 0};
    EXPECT_EQ(::poll(&asked, 1, static_cast<int>(patient_ms)), 1) << "the other end says nothing";
  };
  opening = end;
  auto made = vmm::share_channel::adopt(end, role, options);
  opening = -1;
  return made;
}
inline channels make_channels(std::uint32_t timeout_ms = patient_ms) {
  const std::array<int, 2> ends = socket_pair();
  channels made;
  std::thread accepting([&] {
    auto server = adopt(ends[1], vmm::share_role::accepting, timeout_ms);
    ASSERT_TRUE(server) << vmm::describe(server.error());
    made.server = std::move(*server);
  });
  auto client = adopt(ends[0], vmm::share_role::connecting, timeout_ms);
  accepting.join();
  EXPECT_TRUE(client) << vmm::describe(client.error());
  made.client = std::move(*client);
  return made;
}

/// Counts the steps of a side, and ends the process at one of them.
struct killer {
  int steps_left = -1;  // below 0: never

  void step() {
    if (steps_left-- == 0) (void)::raise(SIGKILL);
  }
  static void hook(void* context, vmm::share_step, vmm::share_message_kind) {
    static_cast<killer*>(context)->step();
  }
};

/// How many descriptors this process has open.
inline std::ptrdiff_t descriptor_count() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
}

template <class T>
vmm::errc code(const vmm::result<T>& answer) {
  return answer ? vmm::errc::none : answer.error().code;
}

}  // namespace share_test

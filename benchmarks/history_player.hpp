// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The messages of bench_history and history_player, through a pipe each way: the head, the steps,
// then orders. The reply to an order is a double; for a trace played without counting, nanoseconds
// per event.
#ifndef VMM_BENCH_HISTORY_PLAYER_HPP
#define VMM_BENCH_HISTORY_PLAYER_HPP

#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>

namespace history_player {

struct head {
  std::uint64_t clock_interval = 0;  ///< 0: no history
  std::uint64_t slot_count = 0;
  std::uint64_t step_count = 0;
};
/// An allocation, or a free: of no size.
struct step {
  std::uint64_t size_bytes = 0;
  std::uint64_t slot = 0;
};
/// Play all of it; or, where `count` is not 0, make as many events whose instructions can be
/// counted. The reply to that is 1, or the negative error that keeps it from being traced.
struct order {
  std::uint64_t count = 0;
};

inline bool read_all(int from, void* into, std::size_t size_bytes) {
  auto* at = static_cast<char*>(into);
  while (size_bytes != 0) {
    const ::ssize_t count = ::read(from, at, size_bytes);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    at += count;
    size_bytes -= static_cast<std::size_t>(count);
  }
  return true;
}

inline bool write_all(int to, const void* from, std::size_t size_bytes) {
  const auto* at = static_cast<const char*>(from);
  while (size_bytes != 0) {
    const ::ssize_t count = ::write(to, at, size_bytes);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    at += count;
    size_bytes -= static_cast<std::size_t>(count);
  }
  return true;
}

}  // namespace history_player

#endif

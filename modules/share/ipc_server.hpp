// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The thread of a process that shares blocks, and its socket.
//
// - No connection makes another one wait: the thread waits for all of them at once, and sends only
//   what a socket takes. If no place is left, the oldest connection without a request ends.
// - A connection ends after exchange_ms.
//
// Thread safety: one call at a time, under the caller's lock.
#pragma once

#include <cstdint>

#include "ipc_wire.hpp"

namespace vmm::ipc {

/// The blocks that are shared. Both are called on the server's thread.
struct block_source {
  /// Of a block that is not shared: no pieces.
  wire_reply (*describe)(std::uint64_t number) noexcept;
  /// Sends one piece to a socket, if it takes it: as send() does. ENOENT: the block was freed.
  int (*send_piece)(std::uint64_t number, std::uint64_t index, int socket) noexcept;
};

class server {
 public:
  /// Makes the socket and starts a thread that takes no signal. False: that cannot be.
  [[nodiscard]] bool start(const block_source& blocks) noexcept;
  [[nodiscard]] bool is_started() const noexcept { return is_started_; }
  [[nodiscard]] std::uint64_t token() const noexcept { return token_; }
  /// Takes the socket's name away: the process ends.
  void take_name_away() const noexcept;
  /// In a forked child, which has no such thread: the socket is its parent's.
  void leave_to_parent() noexcept;

 private:
  [[nodiscard]] bool listen() noexcept;

  std::uint64_t token_ = 0;
  os::listening at_{};
  place_name name_;
  bool is_started_ = false;
};

}  // namespace vmm::ipc

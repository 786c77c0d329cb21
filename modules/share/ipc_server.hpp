// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The thread of a process that shares blocks, and its socket.
//
// - No connection makes another one wait: the thread waits for all of them at once, and sends only
//   what a socket takes. If no place is left, the oldest connection without a request ends.
// - A connection ends after exchange_ms; a lease with its process and all children that it left its
//   sockets to.
// - The end of a socket alone ends no lease: a process may close it, and the device may still work
//   for a process that was killed. A lease ends quiet_ms after the process itself has, too.
//
// Thread safety: one call at a time, under the caller's lock.
#pragma once

#include <cstdint>

#include "ipc_wire.hpp"

namespace vmm::ipc {

/// After a process and its descriptors have ended, until no work of it runs on a device.
constexpr std::uint32_t quiet_ms = 200;

/// The blocks that are shared. All are called on the server's thread.
struct block_source {
  /// Of a block that is not shared: no pieces.
  wire_reply (*describe)(std::uint64_t number) noexcept;
  /// Sends one piece to a socket, if it takes it: as send() does. ENOENT: the block was freed.
  int (*send_piece)(std::uint64_t number, std::uint64_t index, int socket) noexcept;
  /// Whether a process is still to count this counter down. Null: leases are refused.
  bool (*is_held)(std::uint64_t counter) noexcept = nullptr;
  /// The process has ended.
  void (*take_back)(std::uint64_t counter) noexcept = nullptr;
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

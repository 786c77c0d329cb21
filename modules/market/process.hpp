// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The calls of the system behind vmm.market and its owner, beside those of modules/share. No
// policy. Each function returns 0 or an errno, or a value with one. Thread safety: as the kernel's.
#ifndef VMM_MODULES_MARKET_PROCESS_HPP
#define VMM_MODULES_MARKET_PROCESS_HPP

#include <cstddef>
#include <cstdint>

#include "../share/system.hpp"

namespace vmm::unix_os {

[[nodiscard]] std::int64_t clock_ns() noexcept;
[[nodiscard]] std::uint64_t own_process() noexcept;

/// Two connected sockets, or two descriptors of -1 and why.
struct descriptor_pair {
  int first = -1;
  int second = -1;
  int failure = 0;
};
/// Both are closed by exec and inherited by forked children.
[[nodiscard]] descriptor_pair make_pair() noexcept;

/// A descriptor that wakes a poll.
[[nodiscard]] opened make_wake() noexcept;
void wake(int descriptor) noexcept;
void clear_wake(int descriptor) noexcept;

/// What a descriptor is watched for, and what came.
struct watched {
  int descriptor = -1;
  bool for_writing = false;
  bool is_ready = false;  ///< readable or ended
  bool is_writable = false;
};
/// Waits until one is ready, at most until `until_ns` (the largest value: for ever).
void wait_for_events(watched* list, std::size_t count, std::int64_t until_ns) noexcept;

/// The process at the other end of a connection, as a descriptor that is readable once it has
/// ended; -1 where the kernel has none.
[[nodiscard]] int process_of(int connection) noexcept;

/// A number that no other process has, of that at the other end, whose descriptor `process` is (or
/// -1). Before Linux 6.9 its process number. 0: it is of a namespace that this process cannot see.
[[nodiscard]] std::uint64_t identity_of(int connection, int process) noexcept;

/// No signal handler of the program runs on a thread that is started between the two.
struct signals_before {
  alignas(8) std::byte bytes[128];
};
void block_signals(signals_before& before) noexcept;
void restore_signals(const signals_before& before) noexcept;

/// Raises the limit on open files as far as this process may, and returns it.
std::uint64_t raise_descriptor_limit() noexcept;

/// A folder of mode 0700 that is this user's. 0: it is there, or was created.
[[nodiscard]] int make_private_folder(const char* path) noexcept;
/// Why make_private_folder() has refused the path with `failure`: a text of at most `size` bytes.
void explain_folder(const char* path, int failure, char* text, std::size_t size) noexcept;

/// The program beside the library or executable that this code is in, or in `../bin` of its folder:
/// writes its path and a null. False: no such program, or the path is too long.
[[nodiscard]] bool find_beside(const char* name, char* path, std::size_t size) noexcept;

/// That an owner at `place` is silent, with its process where the kernel has it, and what helps: a
/// text of at most `size` bytes. A connection of -1 has none.
void explain_silence(int connection, const char* place, char* text, std::size_t size) noexcept;

/// Starts a program that ends at once and leaves a daemon; waits for its end. After 5 s it is
/// killed with its process group: ETIMEDOUT. Its environment is this process's without LD_PRELOAD
/// and the variables that begin with VMM; its output is discarded, and if `is_silent` its errors.
/// `words` ends with null.
[[nodiscard]] int start_daemon(const char* const* words, bool is_silent) noexcept;

}  // namespace vmm::unix_os

#endif

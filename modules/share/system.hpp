// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The calls of the system behind vmm.share: no bookkeeping, no policy of the protocol. Private to
// modules/share.
//
// Each function returns 0 or an errno, or a value with one. Interrupted calls are repeated. Every
// wait has a deadline. None allocates. Thread safety: as the kernel's.
#ifndef VMM_MODULES_SHARE_SYSTEM_HPP
#define VMM_MODULES_SHARE_SYSTEM_HPP

#include <cstddef>
#include <cstdint>

namespace vmm::unix_os {

struct bytes_in {
  const std::byte* data = nullptr;
  std::size_t size = 0;
};

/// A point in time of the monotonic clock.
struct deadline {
  std::int64_t at_ns = 0;
};
[[nodiscard]] deadline deadline_in(std::uint32_t milliseconds) noexcept;

/// Ends waits of the calling thread: each calls `is_over` at least ten times a second, and returns
/// EINTR where that returns true.
struct interruption {
  bool (*is_over)(void* context) = nullptr;
  void* context = nullptr;
};
/// Returns the thread's interruption before.
interruption interrupt_by(interruption next) noexcept;
/// Whether the thread has one, and whether its waits are over. For waits elsewhere.
[[nodiscard]] bool is_interruptible() noexcept;
[[nodiscard]] bool is_interrupted() noexcept;

/// A descriptor, or -1 and why.
struct opened {
  int descriptor = -1;
  int failure = 0;
};

/// The result of a check of a place in the file system.
enum class place_fault : std::uint8_t {
  none,
  bad_name,         // empty, too long, a zero byte in it, or "." or ".."
  no_directory,     // it is not there
  not_a_directory,  // a symbolic link, or another file
  other_user,       // the directory is not this user's
  other_mode,       // the directory is open to others
  exists,           // something has the name already
  not_a_socket,     // the file of that name is not a socket of this user
};
/// The limits of a path, and of the name that it ends in.
inline constexpr std::size_t path_bytes_max = 4095;
inline constexpr std::size_t name_bytes_max = 63;
struct listening {
  int descriptor = -1;
  int directory = -1;  // where the socket's name stands
  std::uint64_t inode = 0;
  int failure = 0;
  place_fault fault = place_fault::none;
  unsigned mode = 0;  // of a directory with another mode
};

/// A socket for connections at a path in a directory of mode 0700 that is this user's. The
/// directory is checked by its descriptor, and the socket is created through that descriptor.
[[nodiscard]] listening listen_at(const char* path, std::size_t length) noexcept;
/// Takes the name away, if it is still this socket's, and closes the descriptors.
void stop_listening(const listening& ended, const char* path, std::size_t length) noexcept;
/// A connection to such a socket.
struct connected {
  int descriptor = -1;
  int failure = 0;  // ETIMEDOUT: the deadline has passed; EINTR: see interruption
  place_fault fault = place_fault::none;
  unsigned mode = 0;
};
[[nodiscard]] connected connect_at(const char* path, std::size_t length, deadline until) noexcept;
/// A connection that waits at the socket; ETIMEDOUT if none waits.
[[nodiscard]] opened accept_now(int descriptor) noexcept;

/// Waits until one of the descriptors can be read, or its peer has ended; sets `ready` of each.
/// Returns 0, ETIMEDOUT, EINTR or poll's error.
inline constexpr std::size_t waits_max = 64;
[[nodiscard]] int wait_for_any(const int* descriptors, std::size_t count, bool* ready,
                               deadline until) noexcept;

/// 0 if the descriptor is a connected Unix socket that keeps message boundaries (SOCK_SEQPACKET).
[[nodiscard]] int check_connected(int descriptor) noexcept;
/// Another descriptor of the same file, closed by exec.
[[nodiscard]] opened duplicate(int descriptor) noexcept;

/// The user that was at the other end when the connection was made.
struct peer {
  std::uint32_t uid = 0;
  int failure = 0;
};
[[nodiscard]] peer peer_of(int descriptor) noexcept;
[[nodiscard]] std::uint32_t own_uid() noexcept;

/// The most descriptors that the kernel passes at a time.
inline constexpr std::size_t descriptors_max = 253;

struct descriptors_in {
  const int* data = nullptr;
  std::size_t count = 0;
};

/// Sends one message with its descriptors. EPIPE or ECONNRESET: the peer has ended. ETIMEDOUT,
/// EINTR.
[[nodiscard]] int send_message(int descriptor, bytes_in bytes, descriptors_in passed,
                               deadline until) noexcept;

/// The received message. Also after an error every received descriptor is in the list, and
/// close-on-exec.
enum class receive_fault : std::uint8_t {
  none,
  failed,           // see failure; ETIMEDOUT where nothing came
  ended,            // the peer has closed the connection
  wrong_size,       // the message is longer or shorter than requested
  cut_descriptors,  // not all of the descriptors could be taken; see failure for a limit
};
struct received {
  std::size_t descriptor_count = 0;
  receive_fault fault = receive_fault::none;
  int failure = 0;
};
[[nodiscard]] received receive_message(int descriptor, std::byte* bytes, std::size_t size,
                                       int* descriptors, deadline until) noexcept;

void close(int descriptor) noexcept;
/// Ends a connection, even if copies of the descriptor exist, and closes it.
void end_connection(int descriptor) noexcept;

/// Registers a descriptor that a forked child closes at once: a connection is a lease, and must not
/// outlive its process in a child. False where too many are registered.
[[nodiscard]] bool close_in_children(int descriptor) noexcept;
void forget_in_children(int descriptor) noexcept;
inline constexpr std::size_t connections_max = 512;

/// Zeros that stay, even where nothing reads them.
void wipe(std::byte* bytes, std::size_t size) noexcept;
[[nodiscard]] int random_bytes(std::byte* to, std::size_t size) noexcept;

struct secret_file {
  int failure = 0;
  bool is_private = false;  // this user's, mode 0600 or less
  bool has_size = false;
  std::uint64_t size_bytes = 0;
};
[[nodiscard]] secret_file read_secret(const char* path, std::byte* to, std::size_t size) noexcept;

/// 32 bytes at `digest`. False where neither libcrypto nor the kernel's AF_ALG is there.
[[nodiscard]] bool hmac_sha256(bytes_in key, bytes_in text, std::byte* digest) noexcept;

}  // namespace vmm::unix_os

#endif

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// What two processes send each other when one opens a block of the other's: a request, a reply, and
// a message with a descriptor for each piece of the block's memory, over a socket that keeps
// message boundaries. The socket's name is in a folder that only its user can enter. A connection
// whose first message has lease_magic is a lease: each message names a counter that the sender is
// to count down, and nothing is replied.
//
// - Both sides check the user at the other end before they read a byte.
// - A message is taken with exactly its size and its descriptors. Of any other, each descriptor is
//   closed, and the connection ends.
// - No number of a peer's is added or compared before it was seen to fit, and none is the size of
//   an allocation.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "system.hpp"

namespace vmm::ipc {

namespace os = vmm::unix_os;

/// The 64 bytes that a program passes on.
struct wire_handle {
  char magic[16];
  std::uint64_t token;  ///< of the process: its socket's name
  std::uint64_t number;
  std::uint64_t size_bytes;
  std::uint64_t zero[3];
};
static_assert(sizeof(wire_handle) == 64);
constexpr char magic[16] = {'v', 'm', 'm', ' ', 'p', 'r', 'e', 'l', 'o', 'a', 'd', '.', '2'};

/// Of a wire_handle whose number is a counter's, of counter_number().
constexpr char lease_magic[16] = {'v', 'm', 'm', ' ', 'l', 'e', 'a', 's', 'e', '.', '1'};

struct wire_reply {
  std::uint64_t handle_count;  ///< 0: no such block
  std::uint64_t offset_bytes;
  std::uint64_t size_bytes;
};

constexpr std::uint64_t pieces_max = std::uint64_t{1} << 16;
/// The longest that an exchange takes.
constexpr std::uint32_t exchange_ms = 10'000;

/// A descriptor that is closed with its owner.
class descriptor {
 public:
  explicit descriptor(int number = -1) noexcept : number_(number) {}
  ~descriptor() { reset(-1); }
  descriptor(descriptor&& other) noexcept : number_(other.number_) { other.number_ = -1; }
  descriptor& operator=(descriptor&& other) noexcept {
    const int taken = other.number_;
    other.number_ = -1;
    reset(taken);
    return *this;
  }
  void reset(int number) noexcept {
    os::close(number_);
    number_ = number;
  }
  [[nodiscard]] int get() const noexcept { return number_; }
  [[nodiscard]] int release() noexcept {
    const int given = number_;
    number_ = -1;
    return given;
  }
  explicit operator bool() const noexcept { return number_ >= 0; }

 private:
  int number_;
};

/// Folders for sockets, in order of preference. They depend on no environment variable: two
/// processes of one user find the same folders. The first one outlives the user's session.
constexpr std::size_t folder_count = 2;
struct place_name {
  std::array<char, 96> text{};
  std::size_t size = 0;

  [[nodiscard]] std::string_view view() const noexcept { return {text.data(), size}; }
};
[[nodiscard]] place_name folder_at(std::size_t index, std::uint32_t user) noexcept;
/// The socket of the process that has this token.
[[nodiscard]] place_name socket_in(const place_name& folder, std::uint64_t token) noexcept;
/// What the names of all sockets begin with.
constexpr std::string_view socket_prefix = "ipc-";

/// Whether the other end of a connection is a process of this user.
[[nodiscard]] bool is_own_peer(int socket) noexcept;

/// The process that made the connection, as a descriptor that can be read once it has ended; -1
/// where the kernel has none, or this process cannot see that one.
[[nodiscard]] int process_of(int socket) noexcept;
/// Whether a number is still such a descriptor's: a program may close all that it finds open.
[[nodiscard]] bool is_process(int descriptor) noexcept;
/// The file that a socket is, by the same reason; 0: none.
[[nodiscard]] std::uint64_t inode_of(int socket) noexcept;

/// A message of the size of `into`, with its descriptor where `passed` is not null.
enum class taken : std::uint8_t { whole, nothing_yet, broken };
[[nodiscard]] taken receive(int socket, void* into, std::size_t size_bytes, descriptor* passed,
                            os::deadline until) noexcept;
/// 0, or why it was not sent; ETIMEDOUT where the peer reads nothing.
[[nodiscard]] int send(int socket, const void* what, std::size_t size_bytes, int passed,
                       os::deadline until) noexcept;

/// A physical handle behind a block, as a descriptor.
struct shared_piece {
  descriptor exported;
  std::uint64_t size_bytes = 0;
};

struct received_block {
  std::vector<shared_piece> pieces;
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;
  std::uint64_t whole_bytes = 0;
};

/// A connection to the process that has this token; none where it has ended, or is another user's.
[[nodiscard]] descriptor connect_to(std::uint64_t token, os::deadline until) noexcept;

/// Requests the block of the handle and receives it. False: the reply is not such a block. Throws
/// std::bad_alloc.
[[nodiscard]] bool fetch_from(int socket, const wire_handle& handle, os::deadline until,
                              received_block& into);
/// The same, from the process whose token the handle has.
[[nodiscard]] bool fetch(const wire_handle& handle, received_block& into);

}  // namespace vmm::ipc

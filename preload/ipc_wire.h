// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// What two processes say to each other when one opens a block of the other's: a request, a reply,
// and a message with a descriptor for each piece of the block's memory, over a socket that keeps
// messages apart. The socket has no file: its name goes with the process.
#pragma once

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "abi.h"

namespace vmm::preload::ipc {

/// The 64 bytes that a program passes on.
struct wire_handle {
  char magic[16];
  std::uint64_t token;  ///< of the process: its socket's name
  std::uint64_t number;
  std::uint64_t size_bytes;
  std::int32_t process;
  std::int32_t zero[5];
};
static_assert(sizeof(wire_handle) == sizeof(ipc_handle));
constexpr char magic[16] = {'v', 'm', 'm', ' ', 'p', 'r', 'e', 'l', 'o', 'a', 'd', '.', '1'};

struct wire_reply {
  std::uint64_t piece_count;  ///< 0: no such block
  std::uint64_t offset_bytes;
  std::uint64_t size_bytes;
};

constexpr std::uint64_t pieces_max = std::uint64_t{1} << 16;

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
    if (number_ >= 0) (void)::close(number_);
    number_ = number;
  }
  [[nodiscard]] int get() const noexcept { return number_; }
  explicit operator bool() const noexcept { return number_ >= 0; }

 private:
  int number_;
};

inline socklen_t name_socket(sockaddr_un& into, std::int32_t process,
                             std::uint64_t token) noexcept {
  std::memset(&into, 0, sizeof into);
  into.sun_family = AF_UNIX;
  const int length =
      std::snprintf(into.sun_path + 1, sizeof into.sun_path - 1, "vmm-preload-%d-%016llx",
                    static_cast<int>(process), static_cast<unsigned long long>(token));
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 +
                                static_cast<std::size_t>(length));
}

/// A peer that says nothing for so long is given up.
inline void limit_waits(int socket) noexcept {
  const timeval limit{10, 0};
  (void)setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  (void)setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

template <class Message>
[[nodiscard]] bool send_message(int socket, const Message& what) noexcept {
  return send(socket, &what, sizeof what, MSG_NOSIGNAL) == ssize_t{sizeof what};
}
template <class Message>
[[nodiscard]] bool receive_message(int socket, Message& into) noexcept {
  return recv(socket, &into, sizeof into, 0) == ssize_t{sizeof into};
}

/// A piece's size with its descriptor.
[[nodiscard]] inline bool send_piece(int socket, std::uint64_t size_bytes, int passed) noexcept {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof passed)] = {};
  iovec bytes{&size_bytes, sizeof size_bytes};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* head = CMSG_FIRSTHDR(&message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof passed);
  std::memcpy(CMSG_DATA(head), &passed, sizeof passed);
  return sendmsg(socket, &message, MSG_NOSIGNAL) == ssize_t{sizeof size_bytes};
}
[[nodiscard]] inline bool receive_piece(int socket, std::uint64_t& size_bytes,
                                        descriptor& passed) noexcept {
  int number = -1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof number)] = {};
  iovec bytes{&size_bytes, sizeof size_bytes};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != ssize_t{sizeof size_bytes}) return false;
  const cmsghdr* head = CMSG_FIRSTHDR(&message);
  if (head == nullptr || head->cmsg_type != SCM_RIGHTS ||
      head->cmsg_len != CMSG_LEN(sizeof number)) {
    return false;
  }
  std::memcpy(&number, CMSG_DATA(head), sizeof number);
  passed.reset(number);
  return true;
}

}  // namespace vmm::preload::ipc

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include "ipc_wire.hpp"

#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <limits>
#include <utility>

namespace vmm::ipc {
namespace {

void add(place_name& to, std::string_view more) noexcept {
  for (const char each : more) {
    if (to.size + 1 < to.text.size()) to.text[to.size++] = each;
  }
}

void add_number(place_name& to, std::uint64_t value, std::uint64_t base,
                std::size_t width_min) noexcept {
  char digits[20];
  std::size_t begin = sizeof digits;
  while (value != 0 || sizeof digits - begin < width_min) {
    digits[--begin] = "0123456789abcdef"[value % base];
    value /= base;
  }
  add(to, {digits + begin, sizeof digits - begin});
}

// Takes the piece into the block. False where it makes no block of a possible size.
bool add_piece(received_block& into, shared_piece&& piece) {
  constexpr std::uint64_t whole_max = std::numeric_limits<std::uint64_t>::max() / 2;
  if (piece.size_bytes == 0 || piece.size_bytes > whole_max - into.whole_bytes) return false;
  into.pieces.push_back(std::move(piece));
  into.whole_bytes += into.pieces.back().size_bytes;
  return true;
}

}  // namespace

place_name folder_at(std::size_t index, std::uint32_t user) noexcept {
  place_name made;
  add(made, index == 0 ? "/tmp/vmm-" : "/run/user/");
  add_number(made, user, 10, 1);
  if (index != 0) add(made, "/vmm");
  return made;
}

place_name socket_in(const place_name& folder, std::uint64_t token) noexcept {
  place_name made = folder;
  add(made, "/");
  add(made, socket_prefix);
  add_number(made, token, 16, 16);
  return made;
}

bool is_own_peer(int socket) noexcept {
  const os::peer peer = os::peer_of(socket);
  return peer.failure == 0 && peer.uid == os::own_uid();
}

int process_of(int socket) noexcept {
  constexpr int peer_process = 77;  // SO_PEERPIDFD, of Linux 6.5
  int found = -1;
  socklen_t size = sizeof found;
  if (getsockopt(socket, SOL_SOCKET, peer_process, &found, &size) == 0) return found;
  ucred peer{};
  size = sizeof peer;
  // A process outside of this one's namespace has the number 0.
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.pid <= 0) return -1;
  constexpr long pidfd_open = 434;
  return static_cast<int>(syscall(pidfd_open, peer.pid, 0));
}

bool is_process(int descriptor) noexcept {
  place_name path;
  add(path, "/proc/self/fd/");
  add_number(path, static_cast<std::uint64_t>(descriptor), 10, 1);
  std::array<char, 64> target{};
  const ssize_t size = readlink(path.text.data(), target.data(), target.size());
  if (size <= 0) return false;
  const std::string_view found(target.data(), static_cast<std::size_t>(size));
  return found.starts_with("pidfd:") || found == "anon_inode:[pidfd]";
}

std::uint64_t inode_of(int socket) noexcept {
  struct stat about{};
  const bool is_socket = fstat(socket, &about) == 0 && S_ISSOCK(about.st_mode);
  return is_socket ? about.st_ino : 0;
}

taken receive(int socket, void* into, std::size_t size_bytes, descriptor* passed,
              os::deadline until) noexcept {
  std::array<int, os::descriptors_max> descriptors{};
  const os::received came = os::receive_message(socket, static_cast<std::byte*>(into), size_bytes,
                                                descriptors.data(), until);
  const std::size_t wanted_count = passed != nullptr ? 1 : 0;
  if (came.fault == os::receive_fault::none && came.descriptor_count == wanted_count) {
    if (passed != nullptr) passed->reset(descriptors[0]);
    return taken::whole;
  }
  for (std::size_t i = 0; i < came.descriptor_count; ++i) os::close(descriptors[i]);
  const bool is_late = came.fault == os::receive_fault::failed && came.failure == ETIMEDOUT;
  return is_late ? taken::nothing_yet : taken::broken;
}

int send(int socket, const void* what, std::size_t size_bytes, int passed,
         os::deadline until) noexcept {
  const std::size_t count = passed >= 0 ? 1 : 0;
  return os::send_message(socket, {static_cast<const std::byte*>(what), size_bytes},
                          {&passed, count}, until);
}

bool fetch_from(int socket, const wire_handle& handle, os::deadline until, received_block& into) {
  wire_reply reply{};
  if (!is_own_peer(socket) || send(socket, &handle, sizeof handle, -1, until) != 0 ||
      receive(socket, &reply, sizeof reply, nullptr, until) != taken::whole) {
    return false;
  }
  if (reply.handle_count == 0 || reply.handle_count > pieces_max) return false;
  if (reply.size_bytes == 0 || reply.size_bytes != handle.size_bytes) return false;
  for (std::uint64_t i = 0; i < reply.handle_count; ++i) {
    shared_piece piece;
    const taken came =
        receive(socket, &piece.size_bytes, sizeof piece.size_bytes, &piece.exported, until);
    if (came != taken::whole || !add_piece(into, std::move(piece))) return false;
  }
  into.offset_bytes = reply.offset_bytes;
  into.size_bytes = reply.size_bytes;
  return into.offset_bytes <= into.whole_bytes &&
         into.size_bytes <= into.whole_bytes - into.offset_bytes;
}

descriptor connect_to(std::uint64_t token, os::deadline until) noexcept {
  for (std::size_t i = 0; i < folder_count; ++i) {
    const place_name name = socket_in(folder_at(i, os::own_uid()), token);
    descriptor made(os::connect_at(name.text.data(), name.size, until).descriptor);
    if (made) return made;
  }
  return descriptor();
}

bool fetch(const wire_handle& handle, received_block& into) {
  const os::deadline until = os::deadline_in(exchange_ms);
  const descriptor peer = connect_to(handle.token, until);
  return peer && fetch_from(peer.get(), handle, until, into);
}

}  // namespace vmm::ipc

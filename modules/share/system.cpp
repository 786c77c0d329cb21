// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include "system.hpp"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <span>
#include <utility>

import vmm.base;

namespace vmm::unix_os {
namespace {

constexpr int interrupted_max = 1000;

template <class Call>
auto repeat(Call&& make_call) noexcept {
  auto answer = make_call();
  for (int left = interrupted_max; left > 0 && answer < 0 && errno == EINTR; --left)
    answer = make_call();
  return answer;
}

std::int64_t now_ns() noexcept {
  timespec now{};
  (void)::clock_gettime(CLOCK_MONOTONIC, &now);
  check(now.tv_sec >= 0 && now.tv_nsec >= 0, "the monotonic clock is before its start");
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

thread_local interruption interrupted_by;
constexpr std::int64_t slice_ns = 100'000'000;  // of a wait that can be interrupted

// The rest of a wait, or of its slice.
std::int64_t rest_of(deadline until, std::int64_t low_ns) noexcept {
  const std::int64_t rest_ns = std::max(until.at_ns - now_ns(), low_ns);
  return is_interruptible() ? std::min(rest_ns, slice_ns) : rest_ns;
}

// Waits until a descriptor may be ready. Returns 0, ETIMEDOUT, EINTR or poll's error.
int wait_until(std::span<pollfd> asked, deadline until) noexcept {
  check(!asked.empty(), "a wait is for no descriptor");
  for (int left = interrupted_max; left > 0;) {
    const std::int64_t rest_ns = rest_of(until, 0);
    // Rounded up, so that the last wait does not become a busy one.
    const int rest_ms =
        static_cast<int>(std::min<std::int64_t>((rest_ns + 999'999) / 1'000'000, 60'000));
    const int ready = ::poll(asked.data(), asked.size(), rest_ms);
    if (ready > 0) return 0;
    if (ready < 0 && errno != EINTR) return errno;
    if (rest_ns == 0) return ETIMEDOUT;
    if (is_interrupted()) return EINTR;
    left -= ready < 0 ? 1 : 0;
  }
  return ETIMEDOUT;
}

int wait_for(int descriptor, short events, deadline until) noexcept {
  check(descriptor >= 0 && events != 0, "a wait is for no descriptor");
  pollfd asked{descriptor, events, 0};
  return wait_until({&asked, 1}, until);
}

// ---- paths ---------------------------------------------------------------------------

// A path in two: the directory, and the name in it.
struct split_path {
  std::array<char, path_bytes_max + 1> directory{};
  std::array<char, name_bytes_max + 1> name{};
  bool good = false;
};

split_path split(const char* path, std::size_t length) noexcept {
  split_path parts;
  if (length == 0 || length >= parts.directory.size()) return parts;
  if (std::memchr(path, 0, length) != nullptr) return parts;  // an abstract name, or a cut one
  std::size_t slash = length;
  while (slash > 0 && path[slash - 1] != '/') --slash;
  const std::size_t name_size = length - slash;
  if (name_size == 0 || name_size >= parts.name.size()) return parts;
  std::memcpy(parts.name.data(), path + slash, name_size);
  if (std::strcmp(parts.name.data(), ".") == 0 || std::strcmp(parts.name.data(), "..") == 0)
    return parts;
  if (slash == 0) {
    parts.directory[0] = '.';
  } else {
    std::memcpy(parts.directory.data(), path, slash == 1 ? 1 : slash - 1);
  }
  check(parts.name[0] != 0 && parts.directory[0] != 0, "a path is split into nothing");
  parts.good = true;
  return parts;
}

struct open_directory {
  int descriptor = -1;
  int failure = 0;
  place_fault fault = place_fault::none;
  unsigned mode = 0;
};

open_directory open_private_directory(const split_path& parts) noexcept {
  if (!parts.good) return {-1, EINVAL, place_fault::bad_name};
  const int directory = repeat([&] {
    return ::open(parts.directory.data(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  });
  if (directory < 0) {
    const int failure = errno;
    const bool is_other = failure == ENOTDIR || failure == ELOOP;
    if (failure == ENOENT) return {-1, failure, place_fault::no_directory};
    return {-1, failure, is_other ? place_fault::not_a_directory : place_fault::none};
  }
  struct stat facts{};
  const int failure = ::fstat(directory, &facts) == 0 ? 0 : errno;
  const unsigned mode = facts.st_mode & 07777U;
  if (failure == 0 && facts.st_uid == ::geteuid() && mode == 0700) return {directory};
  close(directory);
  if (failure != 0) return {-1, failure};
  const bool is_own = facts.st_uid == ::geteuid();
  return {-1, EACCES, is_own ? place_fault::other_mode : place_fault::other_user, mode};
}

// The name relative to the checked directory's descriptor, even if the path has changed since.
bool address_in(int directory, const char* name, sockaddr_un& to) noexcept {
  check(directory >= 0 && name[0] != 0, "a name is looked for in no directory");
  to.sun_family = AF_UNIX;
  const int size =
      std::snprintf(to.sun_path, sizeof to.sun_path, "/proc/self/fd/%d/%s", directory, name);
  return size > 0 && static_cast<std::size_t>(size) < sizeof to.sun_path;
}

int make_socket() noexcept { return ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0); }

// A blocking connect waits while the other side's queue is full: the deadline is the socket's.
int connect_until(int descriptor, const sockaddr_un& name, deadline until) noexcept {
  check(descriptor >= 0, "a socket connects that is closed");
  for (;;) {
    const std::int64_t rest_ns = rest_of(until, 1'000'000);
    const timeval rest{static_cast<time_t>(rest_ns / 1'000'000'000),
                       static_cast<suseconds_t>(rest_ns / 1000 % 1'000'000)};
    (void)::setsockopt(descriptor, SOL_SOCKET, SO_SNDTIMEO, &rest, sizeof rest);
    if (::connect(descriptor, reinterpret_cast<const sockaddr*>(&name), sizeof name) == 0) return 0;
    if (errno != EAGAIN && errno != EINTR) return errno;
    if (is_interrupted()) return EINTR;
    if (now_ns() >= until.at_ns) return ETIMEDOUT;
  }
}

bool is_own_socket(int directory, const char* name, std::uint64_t* inode) noexcept {
  check(directory >= 0 && inode != nullptr, "a socket is looked for in no directory");
  struct stat facts{};
  if (::fstatat(directory, name, &facts, AT_SYMLINK_NOFOLLOW) != 0) return false;
  *inode = facts.st_ino;
  return S_ISSOCK(facts.st_mode) && facts.st_uid == ::geteuid();
}

}  // namespace

interruption interrupt_by(interruption next) noexcept {
  return std::exchange(interrupted_by, next);
}

bool is_interruptible() noexcept { return interrupted_by.is_over != nullptr; }

bool is_interrupted() noexcept {
  return is_interruptible() && interrupted_by.is_over(interrupted_by.context);
}

deadline deadline_in(std::uint32_t milliseconds) noexcept {
  return {now_ns() + std::int64_t{milliseconds} * 1'000'000};
}

void close(int descriptor) noexcept {
  if (descriptor >= 0) (void)::close(descriptor);
}

// A child forked meanwhile may have a copy of the descriptor, which would keep the lease.
void end_connection(int descriptor) noexcept {
  check(descriptor >= 0, "an invalid connection is closed");
  (void)::shutdown(descriptor, SHUT_RDWR);
  close(descriptor);
}

listening listen_at(const char* path, std::size_t length) noexcept {
  constexpr int waiting_max = 16;
  const split_path parts = split(path, length);
  const open_directory at = open_private_directory(parts);
  if (at.descriptor < 0) return {-1, -1, 0, at.failure, at.fault, at.mode};
  // Not blocking: a connection may have ended before it is accepted.
  listening made{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), at.descriptor,
                 0, 0, place_fault::none};
  sockaddr_un name{};
  bool bound = false;
  if (made.descriptor < 0) {
    made.failure = errno;
  } else if (!address_in(at.descriptor, parts.name.data(), name)) {
    made.failure = ENAMETOOLONG;
    made.fault = place_fault::bad_name;
  } else if (::bind(made.descriptor, reinterpret_cast<const sockaddr*>(&name), sizeof name) != 0) {
    made.failure = errno;
    if (made.failure == EADDRINUSE) made.fault = place_fault::exists;
  } else {
    bound = true;
    if (!is_own_socket(at.descriptor, parts.name.data(), &made.inode)) {
      made.failure = EACCES;
      made.fault = place_fault::not_a_socket;
    } else if (::listen(made.descriptor, waiting_max) != 0) {
      made.failure = errno;
    }
  }
  check(made.failure != 0 || (bound && made.inode != 0), "a socket listens that has no name");
  if (made.failure == 0) return made;
  if (bound) (void)::unlinkat(at.descriptor, parts.name.data(), 0);
  close(made.descriptor);
  close(made.directory);
  return {-1, -1, 0, made.failure, made.fault};
}

void stop_listening(const listening& ended, const char* path, std::size_t length) noexcept {
  check(ended.descriptor >= 0 && ended.directory >= 0, "a listener is closed twice");
  check(ended.inode != 0, "a listener is closed that had no name");
  const split_path parts = split(path, length);
  std::uint64_t inode = 0;
  if (parts.good && is_own_socket(ended.directory, parts.name.data(), &inode) &&
      inode == ended.inode) {
    (void)::unlinkat(ended.directory, parts.name.data(), 0);
  }
  close(ended.descriptor);
  close(ended.directory);
}

connected connect_at(const char* path, std::size_t length, deadline until) noexcept {
  const split_path parts = split(path, length);
  const open_directory at = open_private_directory(parts);
  if (at.descriptor < 0) return {-1, at.failure, at.fault, at.mode};
  connected made;
  std::uint64_t inode = 0;
  sockaddr_un name{};
  if (!is_own_socket(at.descriptor, parts.name.data(), &inode)) {
    made = {-1, inode == 0 ? ENOENT : EACCES,
            inode == 0 ? place_fault::none : place_fault::not_a_socket};
  } else if (!address_in(at.descriptor, parts.name.data(), name)) {
    made = {-1, ENAMETOOLONG, place_fault::bad_name};
  } else if (made.descriptor = make_socket(); made.descriptor < 0) {
    made.failure = errno;
  }
  if (made.failure == 0) made.failure = connect_until(made.descriptor, name, until);
  close(at.descriptor);
  if (made.failure != 0) {
    close(made.descriptor);
    made.descriptor = -1;
  }
  check((made.descriptor >= 0) == (made.failure == 0), "a connection failed for no reason");
  return made;
}

int wait_for_any(const int* descriptors, std::size_t count, bool* ready, deadline until) noexcept {
  check(count != 0 && count <= waits_max, "a wait is for nothing, or for too many");
  check(descriptors != nullptr && ready != nullptr, "a wait has no list of descriptors");
  std::array<pollfd, waits_max> asked{};
  for (std::size_t i = 0; i < count; ++i) asked[i] = {descriptors[i], POLLIN, 0};
  const int failure = wait_until({asked.data(), count}, until);
  for (std::size_t i = 0; i < count; ++i) ready[i] = failure == 0 && asked[i].revents != 0;
  return failure;
}

opened accept_now(int descriptor) noexcept {
  check(descriptor >= 0, "a connection is accepted at no socket");
  const int accepted =
      repeat([&] { return ::accept4(descriptor, nullptr, nullptr, SOCK_CLOEXEC); });
  if (accepted < 0) return {-1, errno == EAGAIN ? ETIMEDOUT : errno};
  check(accepted != descriptor, "a connection is its listening socket");
  return {accepted, 0};
}

opened duplicate(int descriptor) noexcept {
  const int copy = ::fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  if (copy >= 0) return {copy, 0};
  return {-1, errno == EINVAL ? EMFILE : errno};  // EINVAL: the limit of open files is 0
}

int check_connected(int descriptor) noexcept {
  const auto option = [&](int name) noexcept {
    int value = -1;
    socklen_t size = sizeof value;
    return ::getsockopt(descriptor, SOL_SOCKET, name, &value, &size) == 0 ? value : -1;
  };
  if (option(SO_DOMAIN) != AF_UNIX || option(SO_TYPE) != SOCK_SEQPACKET) return EPROTOTYPE;
  sockaddr_un name{};
  socklen_t size = sizeof name;
  return ::getpeername(descriptor, reinterpret_cast<sockaddr*>(&name), &size) == 0 ? 0 : errno;
}

peer peer_of(int descriptor) noexcept {
  check(descriptor >= 0, "the peer of a closed connection is queried");
  ucred facts{};
  socklen_t size = sizeof facts;
  if (::getsockopt(descriptor, SOL_SOCKET, SO_PEERCRED, &facts, &size) != 0) return {0, errno};
  if (size != sizeof facts) return {0, EPROTO};
  return {facts.uid, 0};  // the process id is not checked: the system may have reused it
}

std::uint32_t own_uid() noexcept { return ::geteuid(); }

// ---- messages ------------------------------------------------------------------------

int send_message(int descriptor, bytes_in bytes, descriptors_in passed, deadline until) noexcept {
  check(descriptor >= 0 && bytes.size != 0,
        "a message without bytes, or without a socket, is sent");
  check(passed.count == 0 || passed.data != nullptr, "missing descriptors are sent");
  check(bytes.data != nullptr, "a message has no bytes");
  alignas(cmsghdr) std::array<char, CMSG_SPACE(descriptors_max * sizeof(int))> control{};
  if (passed.count > descriptors_max) return E2BIG;
  iovec part{const_cast<std::byte*>(bytes.data), bytes.size};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (passed.count != 0) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(passed.count * sizeof(int));
    cmsghdr* const head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(passed.count * sizeof(int));
    std::memcpy(CMSG_DATA(head), passed.data, passed.count * sizeof(int));
  }
  for (;;) {
    const ssize_t sent =
        repeat([&] { return ::sendmsg(descriptor, &message, MSG_NOSIGNAL | MSG_DONTWAIT); });
    if (sent >= 0) return static_cast<std::size_t>(sent) == bytes.size ? 0 : EMSGSIZE;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return errno;
    if (const int failure = wait_for(descriptor, POLLOUT, until); failure != 0) return failure;
  }
}

namespace {

// Collects the descriptors of a message. False if it has other control data.
bool take_descriptors(msghdr& message, int* to, std::size_t& count) noexcept {
  bool only_rights = true;
  for (cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr;
       head = CMSG_NXTHDR(&message, head)) {
    if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) {
      only_rights = false;
      continue;
    }
    const std::size_t came = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < came; ++i) {
      int passed = -1;
      std::memcpy(&passed, CMSG_DATA(head) + i * sizeof(int), sizeof passed);
      check(passed >= 0, "the kernel passes an invalid descriptor");
      if (count < descriptors_max) {
        to[count++] = passed;
      } else {
        close(passed);
        only_rights = false;
      }
    }
  }
  check(count <= descriptors_max, "too many descriptors are listed");
  return only_rights;
}

}  // namespace

received receive_message(int descriptor, std::byte* bytes, std::size_t size, int* descriptors,
                         deadline until) noexcept {
  check(descriptor >= 0 && size != 0, "a message is received without room, or without a socket");
  check(bytes != nullptr && descriptors != nullptr, "a received message has no room");
  // Room for two full lists: all descriptors are received, so that all of them can be closed.
  alignas(cmsghdr) std::array<char, 2 * CMSG_SPACE(descriptors_max * sizeof(int))> control{};
  iovec part{bytes, size};
  for (;;) {
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t came =
        repeat([&] { return ::recvmsg(descriptor, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC); });
    if (came < 0) {
      // The kernel reports once that the peer closed with messages unread; its own are still there.
      if (errno == ECONNRESET) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) return {0, receive_fault::failed, errno};
      const int failure = wait_for(descriptor, POLLIN, until);
      if (failure != 0) return {0, receive_fault::failed, failure};
      continue;
    }
    check(message.msg_controllen <= control.size(), "the kernel returns more bytes than the room");
    received answer;
    const bool only_rights = take_descriptors(message, descriptors, answer.descriptor_count);
    if ((message.msg_flags & MSG_CTRUNC) != 0 || !only_rights) {
      answer.fault = receive_fault::cut_descriptors;
      const opened probe = duplicate(descriptor);  // fails at the limit of open files
      close(probe.descriptor);
      answer.failure = probe.failure;
    } else if (came == 0 && answer.descriptor_count == 0) {
      answer.fault = receive_fault::ended;
    } else if ((message.msg_flags & MSG_TRUNC) != 0 || static_cast<std::size_t>(came) != size) {
      answer.fault = receive_fault::wrong_size;
    }
    return answer;
  }
}

// ---- forked children -----------------------------------------------------------------

namespace {

// A descriptor plus one; 0 marks a free place.
std::array<std::atomic<int>, connections_max> closed_in_children{};

void close_registered() noexcept {
  for (std::atomic<int>& place : closed_in_children) {
    const int registered = place.exchange(0, std::memory_order_relaxed);
    if (registered != 0) (void)::close(registered - 1);
  }
}

// Registered before main: no connection can be older than the handler.
[[maybe_unused]] const int fork_handler = ::pthread_atfork(nullptr, nullptr, close_registered);

}  // namespace

bool close_in_children(int descriptor) noexcept {
  check(descriptor >= 0, "no descriptor is registered for children");
  for (std::atomic<int>& place : closed_in_children) {
    int free_place = 0;
    if (place.compare_exchange_strong(free_place, descriptor + 1, std::memory_order_relaxed))
      return true;
  }
  return false;
}

void forget_in_children(int descriptor) noexcept {
  check(descriptor >= 0, "no descriptor is forgotten for children");
  for (std::atomic<int>& place : closed_in_children) {
    int registered = descriptor + 1;
    if (place.compare_exchange_strong(registered, 0, std::memory_order_relaxed)) return;
  }
}

// ---- secrets -------------------------------------------------------------------------

void wipe(std::byte* bytes, std::size_t size) noexcept {
  check(bytes != nullptr || size == 0, "no bytes are wiped");
  ::explicit_bzero(bytes, size);
}

int random_bytes(std::byte* to, std::size_t size) noexcept {
  check(size > 0 && size <= 256, "the system gives at most 256 random bytes in one go");
  check(to != nullptr, "random bytes have no room");
  const ssize_t came = repeat([&] { return ::getrandom(to, size, 0); });
  if (came < 0) return errno;
  return static_cast<std::size_t>(came) == size ? 0 : EIO;
}

secret_file read_secret(const char* path, std::byte* to, std::size_t size) noexcept {
  check(path != nullptr && size > 0, "a secret is read without a path");
  check(to != nullptr, "a secret has no room");
  const int file =
      repeat([&] { return ::open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK); });
  secret_file answer;
  if (file < 0) answer.failure = errno;
  if (file < 0) return answer;
  struct stat facts{};
  if (::fstat(file, &facts) != 0) {
    answer.failure = errno;
  } else {
    answer.is_private =
        S_ISREG(facts.st_mode) && facts.st_uid == ::geteuid() && (facts.st_mode & 0177) == 0;
    answer.size_bytes = static_cast<std::uint64_t>(facts.st_size);
    answer.has_size = answer.size_bytes == size;
  }
  if (answer.failure == 0 && answer.is_private && answer.has_size) {
    const ssize_t came = repeat([&] { return ::read(file, to, size); });
    if (came < 0) answer.failure = errno;
    check(came <= static_cast<ssize_t>(size), "more bytes were read than requested");
    answer.has_size = came >= 0 && static_cast<std::size_t>(came) == size;
  }
  close(file);
  check(answer.failure == 0 || !answer.has_size, "a secret was read in part");
  return answer;
}

}  // namespace vmm::unix_os

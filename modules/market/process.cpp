// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include "process.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

import vmm.base;

// Of newer systems than the oldest supported.
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

extern char** environ;

namespace vmm::unix_os {
namespace {

constexpr std::int64_t daemon_ns = 5'000'000'000;

// 0: the kernel has none, or the process is of a namespace that this one cannot see.
pid_t process_number(int connection) noexcept {
  ucred facts{};
  socklen_t size = sizeof facts;
  const bool is_there = ::getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &facts, &size) == 0;
  return is_there ? facts.pid : 0;
}

}  // namespace

std::int64_t clock_ns() noexcept {
  timespec now{};
  (void)::clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

std::uint64_t own_process() noexcept { return static_cast<std::uint64_t>(::getpid()); }

descriptor_pair make_pair() noexcept {
  int ends[2] = {-1, -1};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return {-1, -1, errno};
  return {ends[0], ends[1], 0};
}

opened make_wake() noexcept {
  const int made = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  return made < 0 ? opened{-1, errno} : opened{made, 0};
}

void wake(int descriptor) noexcept {
  const std::uint64_t one = 1;
  (void)!::write(descriptor, &one, sizeof one);
}

void clear_wake(int descriptor) noexcept {
  std::uint64_t count = 0;
  (void)!::read(descriptor, &count, sizeof count);
}

void wait_for_events(watched* list, std::size_t count, std::int64_t until_ns) noexcept {
  check(count != 0, "a wait is for nothing");
  std::vector<pollfd> polled(count);
  for (std::size_t i = 0; i < count; ++i) {
    polled[i].fd = list[i].descriptor;
    polled[i].events = static_cast<short>(POLLIN | (list[i].for_writing ? POLLOUT : 0));
  }
  int wait_ms = -1;
  if (until_ns != std::numeric_limits<std::int64_t>::max()) {
    const std::int64_t rest_ns = std::max<std::int64_t>(until_ns - clock_ns(), 0);
    wait_ms = static_cast<int>(std::min<std::int64_t>((rest_ns + 999'999) / 1'000'000, 60'000));
  }
  const int found = ::poll(polled.data(), count, wait_ms);
  for (std::size_t i = 0; i < count; ++i) {
    const short came = found > 0 ? polled[i].revents : short{0};
    list[i].is_ready = (came & (POLLIN | POLLHUP | POLLERR | POLLNVAL)) != 0;
    list[i].is_writable = (came & POLLOUT) != 0;
  }
}

int process_of(int connection) noexcept {
  int found = -1;
  socklen_t size = sizeof found;
  if (::getsockopt(connection, SOL_SOCKET, SO_PEERPIDFD, &found, &size) == 0 && found >= 0) {
    (void)::fcntl(found, F_SETFD, FD_CLOEXEC);
    return found;
  }
#ifdef SYS_pidfd_open
  const pid_t number = process_number(connection);
  return number <= 0 ? -1 : static_cast<int>(::syscall(SYS_pidfd_open, number, 0));
#else
  return -1;
#endif
}

std::uint64_t identity_of(int connection, int process) noexcept {
  constexpr auto process_files = 0x50494446;  // the type of a file system whose inodes are unique
  struct statfs system{};
  struct stat facts{};
  if (process >= 0 && ::fstatfs(process, &system) == 0 && system.f_type == process_files &&
      ::fstat(process, &facts) == 0)
    return facts.st_ino;
  return static_cast<std::uint64_t>(std::max(process_number(connection), 0));
}

void block_signals(signals_before& before) noexcept {
  static_assert(sizeof(sigset_t) <= sizeof before.bytes);
  sigset_t all, earlier;
  ::sigfillset(&all);
  ::sigemptyset(&earlier);
  (void)::pthread_sigmask(SIG_SETMASK, &all, &earlier);
  std::memcpy(before.bytes, &earlier, sizeof earlier);
}

void restore_signals(const signals_before& before) noexcept {
  sigset_t earlier;
  std::memcpy(&earlier, before.bytes, sizeof earlier);
  (void)::pthread_sigmask(SIG_SETMASK, &earlier, nullptr);
}

std::uint64_t raise_descriptor_limit() noexcept {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return ~std::uint64_t{0};
  const rlim_t before = std::exchange(limit.rlim_cur, limit.rlim_max);
  const bool is_raised = before == limit.rlim_max || ::setrlimit(RLIMIT_NOFILE, &limit) == 0;
  return is_raised ? limit.rlim_max : before;
}

int make_private_folder(const char* path) noexcept {
  if (::mkdir(path, 0700) != 0 && errno != EEXIST) return errno;
  const int folder = ::open(path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (folder < 0) return errno;
  struct stat facts{};
  const bool is_private = ::fstat(folder, &facts) == 0 && facts.st_uid == ::geteuid() &&
                          (facts.st_mode & 07777) == 0700;
  (void)::close(folder);
  return is_private ? 0 : EACCES;
}

void explain_folder(const char* path, int failure, char* text, std::size_t size) noexcept {
  struct stat facts{};
  const bool is_there = ::lstat(path, &facts) == 0;
  const unsigned mode = facts.st_mode & 07777U;
  if (const char* const limit = limit_text(failure); limit != nullptr) {
    (void)std::snprintf(text, size, "%s", limit);
  } else if (!is_there) {
    (void)std::snprintf(text, size, "it cannot be made (%s): %s", errno_name(failure),
                        failure == ENOENT ? "the folder above it is to be there"
                                          : file_text(failure, "name another folder"));
  } else if (!S_ISDIR(facts.st_mode)) {
    (void)std::snprintf(text, size, "it is %s: name a folder",
                        S_ISLNK(facts.st_mode) ? "a symbolic link" : "not a folder");
  } else if (facts.st_uid != ::geteuid()) {
    (void)std::snprintf(text, size, "it is of user %u, and this is user %u: name another folder",
                        facts.st_uid, ::geteuid());
  } else {
    (void)std::snprintf(text, size,
                        "it has mode %04o, and must have 0700: name a folder in it, which is made",
                        mode);
  }
}

void explain_silence(int connection, const char* place, char* text, std::size_t size) noexcept {
  const pid_t owner = process_number(connection);
  if (owner > 0) {
    (void)std::snprintf(text, size,
                        "the owner in %s, process %d, is silent: continue it with kill -CONT %d, "
                        "or end it with kill -KILL %d and start it again",
                        place, owner, owner, owner);
  } else {
    (void)std::snprintf(text, size, "the owner in %s is silent: continue or restart it", place);
  }
}

bool find_beside(const char* name, char* path, std::size_t size) noexcept {
  Dl_info facts{};
  const auto own = reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(&clock_ns));
  if (::dladdr(own, &facts) == 0 || facts.dli_fname == nullptr || facts.dli_fname[0] != '/')
    return false;
  const auto folder = static_cast<int>(std::strrchr(facts.dli_fname, '/') - facts.dli_fname);
  for (const char* between : {"/", "/../bin/"}) {
    const int length =
        std::snprintf(path, size, "%.*s%s%s", folder, facts.dli_fname, between, name);
    if (length > 0 && static_cast<std::size_t>(length) < size && ::access(path, X_OK) == 0)
      return true;
  }
  return false;
}

int start_daemon(const char* const* words, bool is_silent) noexcept {
  check(words[0] != nullptr, "a program without a name is started");
  std::vector<char*> kept;
  for (char** each = environ; each != nullptr && *each != nullptr; ++each) {
    if (std::strncmp(*each, "LD_PRELOAD=", 11) != 0 && std::strncmp(*each, "VMM", 3) != 0)
      kept.push_back(*each);
  }
  kept.push_back(nullptr);
  posix_spawnattr_t rules;
  posix_spawn_file_actions_t files;
  if (::posix_spawnattr_init(&rules) != 0) return ENOMEM;
  if (::posix_spawn_file_actions_init(&files) != 0) {
    (void)::posix_spawnattr_destroy(&rules);
    return ENOMEM;
  }
  (void)::posix_spawnattr_setflags(&rules, POSIX_SPAWN_SETSID);
  for (int each = STDOUT_FILENO; each <= (is_silent ? STDERR_FILENO : STDOUT_FILENO); ++each)
    (void)::posix_spawn_file_actions_addopen(&files, each, "/dev/null", O_WRONLY, 0);
  pid_t child = -1;
  const int failure = ::posix_spawnp(&child, words[0], &files, &rules,
                                     const_cast<char* const*>(words), kept.data());
  (void)::posix_spawn_file_actions_destroy(&files);
  (void)::posix_spawnattr_destroy(&rules);
  if (failure != 0) return failure;
  const std::int64_t until_ns = clock_ns() + daemon_ns;
  bool is_late = false;
  int ended = 0;
  pid_t found = 0;
  for (int wait_ms = 1; found != child; wait_ms = std::min(2 * wait_ms, 16)) {
    found = ::waitpid(child, &ended, is_late ? 0 : WNOHANG);
    if (found < 0 && errno != EINTR) return is_late ? ETIMEDOUT : 0;  // it is collected elsewhere
    if (found != 0) continue;
    is_late = clock_ns() >= until_ns;
    if (is_late) (void)::kill(-child, SIGKILL);
    (void)::poll(nullptr, 0, is_late ? 0 : wait_ms);
  }
  if (is_late) return ETIMEDOUT;
  return WIFEXITED(ended) && WEXITSTATUS(ended) == 0 ? 0 : ECHILD;
}

}  // namespace vmm::unix_os

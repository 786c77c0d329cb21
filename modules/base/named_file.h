// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// open() for files that users and variables name. It never waits: a named pipe would wait for its
// other end, so it, a socket and a block device are refused with ENXIO. Regular files, character
// devices and pipes without a name (/dev/stdout, /dev/fd/N of a shell's `>(...)`) are opened. A
// signal handler may call it.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>

namespace vmm {

inline constexpr const char* not_a_file_text =
    "it is a named pipe (FIFO), a socket or a device without its other end: name a file, or a pipe "
    "by /dev/fd/N";

/// Why an open file is refused: a code of the system's; 0 if it is not.
[[nodiscard]] inline int check_file_kind(int descriptor) noexcept {
  constexpr long pipefs_magic = 0x50495045;
  struct stat found{};
  if (::fstat(descriptor, &found) != 0) return errno;
  if (S_ISREG(found.st_mode) || S_ISCHR(found.st_mode)) return 0;
  if (S_ISDIR(found.st_mode)) return EISDIR;
  struct statfs system{};
  const bool is_nameless = S_ISFIFO(found.st_mode) && ::fstatfs(descriptor, &system) == 0 &&
                           system.f_type == pipefs_magic;
  return is_nameless ? 0 : ENXIO;
}

/// A descriptor whose reads and writes wait as usual, or -1 and errno.
[[nodiscard]] inline int open_named_file(const char* path, int flags, unsigned mode) noexcept {
  const int descriptor = ::open(path, flags | O_NONBLOCK | O_CLOEXEC | O_NOCTTY, mode);
  if (descriptor < 0) return -1;
  int failure = check_file_kind(descriptor);
  const int now = ::fcntl(descriptor, F_GETFL);
  const bool waits = now >= 0 && ::fcntl(descriptor, F_SETFL, now & ~O_NONBLOCK) == 0;
  if (failure == 0 && !waits) failure = errno;
  if (failure == 0) return descriptor;
  (void)::close(descriptor);
  errno = failure;
  return -1;
}

}  // namespace vmm

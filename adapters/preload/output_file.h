// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Opens the files that the user names. Names in /tmp can be guessed, so an existing file may be
// another user's trap. No heap, no lock: it is also called in a signal handler.
#pragma once

#include "../../modules/base/named_file.h"

namespace vmm::preload {

/// The treatment of an existing file.
enum class existing_file : unsigned char {
  appended,  // appends to the file
  emptied,   // by the caller: so it is this user's, has no other name, and no link led to it
};

/// A descriptor, or the negative of the system's code. A link of another user's is not followed. A
/// pipe without a name or a device may be reached by a link, as /dev/stdout is.
[[nodiscard]] inline int open_output(const char* path, existing_file rule) noexcept {
  const int more_flags = rule == existing_file::appended ? O_APPEND : 0;
  const int flags = O_WRONLY | more_flags;
  int descriptor = open_named_file(path, flags | O_CREAT | O_NOFOLLOW, 0644);
  const bool is_link = descriptor < 0 && errno == ELOOP;
  struct stat found{};
  if (is_link) {
    const bool is_trusted =
        lstat(path, &found) == 0 && (found.st_uid == geteuid() || found.st_uid == 0);
    descriptor = is_trusted ? open_named_file(path, flags, 0) : -1;
    if (descriptor < 0) return is_trusted && errno == ENXIO ? -ENXIO : -ELOOP;
  }
  if (descriptor < 0) return -errno;
  int failure = fstat(descriptor, &found) == 0 ? 0 : errno;
  if (failure == 0 && rule == existing_file::emptied && S_ISREG(found.st_mode)) {
    if (found.st_uid != geteuid() || found.st_nlink > 1) failure = EEXIST;
    if (is_link) failure = ELOOP;
  }
  if (failure == 0) return descriptor;
  (void)close(descriptor);
  return -failure;
}

}  // namespace vmm::preload

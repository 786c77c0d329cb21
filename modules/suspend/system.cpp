// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include "system.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>

import vmm.base;

namespace vmm::backup_os {

namespace {

constexpr int interrupted_max = 1000;

mapped_bytes map(std::uint64_t size_bytes, int flags, int file) noexcept {
  check(size_bytes != 0, "no bytes are mapped");
  void* const at = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, flags, file, 0);
  if (at == MAP_FAILED) return {nullptr, errno};
  return {static_cast<std::byte*>(at), 0};
}

// The file has all its blocks, so that no write to the mapping finds the disk full.
int allocate(int file, std::uint64_t size_bytes) noexcept {
  check(file >= 0, "blocks are allocated without a file");
  int failure = EINTR;
  without_write_signals([&] {
    for (int left = interrupted_max; left > 0 && failure == EINTR; --left)
      failure = ::posix_fallocate(file, 0, static_cast<off_t>(size_bytes));
  });
  return failure;
}

int open_unnamed(const char* directory) noexcept {
  check(directory != nullptr, "a file is made in no directory");
  return ::open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
}

}  // namespace

mapped_bytes map_pageable(std::uint64_t size_bytes) noexcept {
  return map(size_bytes, MAP_PRIVATE | MAP_ANONYMOUS, -1);
}

mapped_bytes map_file(const char* directory, std::uint64_t size_bytes) noexcept {
  const int file = open_unnamed(directory);
  if (file < 0) return {nullptr, errno};
  const int failure = allocate(file, size_bytes);
  const mapped_bytes made =
      failure == 0 ? map(size_bytes, MAP_SHARED, file) : mapped_bytes{nullptr, failure};
  (void)::close(file);
  return made;
}

int try_directory(const char* directory) noexcept {
  const int file = open_unnamed(directory);
  if (file < 0) return errno;
  (void)::close(file);
  return 0;
}

bool is_shortage(int failure) noexcept {
  check(failure != 0, "a call that succeeded has no reason");
  switch (failure) {
    case ENOSPC:
    case EDQUOT:
    case ENOMEM:
    case EFBIG:
    case EMFILE:
    case ENFILE:
    case EAGAIN:
    case EINTR: return true;
    default: return false;
  }
}

bool is_broken(int failure) noexcept {
  check(failure != 0, "a call that succeeded has no reason");
  constexpr int broken[] = {EIO, ENXIO, ENODEV, ENOTCONN, ESTALE, ETIMEDOUT, EREMOTEIO};
  return std::find(std::begin(broken), std::end(broken), failure) != std::end(broken);
}

const char* reason_of(int failure) noexcept { return std::strerror(failure); }

void unmap(std::byte* at, std::uint64_t size_bytes) noexcept {
  check(at != nullptr && size_bytes != 0, "no bytes are unmapped");
  const int failure = ::munmap(at, size_bytes);
  check(failure == 0, "bytes are unmapped that were not mapped");
}

}  // namespace vmm::backup_os

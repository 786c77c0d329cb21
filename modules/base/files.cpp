// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "named_file.h"

module vmm.base;

import vmm.std;

namespace vmm {
namespace {

struct code_name {
  int code;
  const char* name;
};

constexpr std::array code_names{
    code_name{0, ""},
    code_name{EACCES, "EACCES"},
    code_name{EADDRINUSE, "EADDRINUSE"},
    code_name{EAGAIN, "EAGAIN"},
    code_name{EBADF, "EBADF"},
    code_name{EBUSY, "EBUSY"},
    code_name{ECONNREFUSED, "ECONNREFUSED"},
    code_name{ECONNRESET, "ECONNRESET"},
    code_name{EDQUOT, "EDQUOT"},
    code_name{EEXIST, "EEXIST"},
    code_name{EFAULT, "EFAULT"},
    code_name{EFBIG, "EFBIG"},
    code_name{EINTR, "EINTR"},
    code_name{EINVAL, "EINVAL"},
    code_name{EIO, "EIO"},
    code_name{EISDIR, "EISDIR"},
    code_name{ELOOP, "ELOOP"},
    code_name{EMFILE, "EMFILE"},
    code_name{EMSGSIZE, "EMSGSIZE"},
    code_name{ENAMETOOLONG, "ENAMETOOLONG"},
    code_name{ENFILE, "ENFILE"},
    code_name{ENOBUFS, "ENOBUFS"},
    code_name{ENODATA, "ENODATA"},
    code_name{ENODEV, "ENODEV"},
    code_name{ENOENT, "ENOENT"},
    code_name{ENOMEM, "ENOMEM"},
    code_name{ENOSPC, "ENOSPC"},
    code_name{ENOSYS, "ENOSYS"},
    code_name{ENOTCONN, "ENOTCONN"},
    code_name{ENOTDIR, "ENOTDIR"},
    code_name{ENOTSOCK, "ENOTSOCK"},
    code_name{ENXIO, "ENXIO"},
    code_name{EOPNOTSUPP, "EOPNOTSUPP"},
    code_name{EOVERFLOW, "EOVERFLOW"},
    code_name{EPERM, "EPERM"},
    code_name{EPIPE, "EPIPE"},
    code_name{EPROTO, "EPROTO"},
    code_name{EPROTOTYPE, "EPROTOTYPE"},
    code_name{EROFS, "EROFS"},
    code_name{ETIMEDOUT, "ETIMEDOUT"},
    code_name{ETOOMANYREFS, "ETOOMANYREFS"},
};

// The soft limit; 0 if it is unlimited or not known.
[[nodiscard]] std::uint64_t limit_of(decltype(RLIMIT_NOFILE) resource) noexcept {
  ::rlimit found{};
  const bool is_known = ::getrlimit(resource, &found) == 0 && found.rlim_cur != RLIM_INFINITY;
  return is_known ? found.rlim_cur : 0;
}

// Whether a named pipe is the first of the name in the folders of LD_LIBRARY_PATH. The loader opens
// it and waits.
[[nodiscard]] bool loader_would_wait(std::string_view name) noexcept {
  const char* const folders = ::secure_getenv("LD_LIBRARY_PATH");
  std::string_view left = folders != nullptr ? folders : "";
  while (!left.empty()) {
    const std::string_view folder = left.substr(0, left.find_first_of(":;"));
    left.remove_prefix(std::min(folder.size() + 1, left.size()));
    char path[PATH_MAX] = {};
    if (folder.size() + name.size() + 2 > sizeof path) continue;
    folder.copy(path, folder.size());
    path[folder.size()] = '/';
    name.copy(path + folder.size() + 1, name.size());
    struct ::stat found{};
    if (::stat(folder.empty() ? path + 1 : path, &found) != 0) continue;
    if (S_ISFIFO(found.st_mode) || S_ISREG(found.st_mode)) return S_ISFIFO(found.st_mode);
  }
  return false;
}

}  // namespace

opened_file open_named(const char* path, int flags, unsigned mode) noexcept {
  check(path != nullptr, "a file without a name is opened");
  const int descriptor = open_named_file(path, flags, mode);
  return descriptor >= 0 ? opened_file{descriptor, 0} : opened_file{-1, errno};
}

loaded_library load_named(const char* name) noexcept {
  check(name != nullptr, "a library has no name");
  struct ::stat found{};
  const bool is_path = std::string_view(name).find('/') != std::string_view::npos;
  if (is_path && ::stat(name, &found) == 0 && !S_ISREG(found.st_mode))
    return {nullptr, "it is not a regular file"};
  if (!is_path && loader_would_wait(name))
    return {nullptr, "a folder of LD_LIBRARY_PATH has a named pipe (FIFO) of this name"};
  void* const handle = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (handle != nullptr) return {handle, nullptr};
  const char* const reason = ::dlerror();
  return {nullptr, reason != nullptr ? reason : "for an unknown reason"};
}

const char* errno_name(int failure) noexcept {
  const auto found = std::ranges::find(code_names, failure, &code_name::code);
  return found != code_names.end() ? found->name : "errno";
}

const char* limit_text(int failure) noexcept {
  detail_text text;
  switch (failure) {
    case EMFILE:
      return text.add("the process is at its limit of ")
          .add_number(limit_of(RLIMIT_NOFILE))
          .add(" open files: close some, or raise it (ulimit -n)")
          .keep("the process is at its limit of open files: close some, or raise it (ulimit -n)");
    case ENFILE: return "the system is at its limit of open files: raise fs.file-max";
    case EFBIG:
      return text.add("the file would exceed the process's limit of file size, ")
          .add_number(limit_of(RLIMIT_FSIZE))
          .add(" bytes: raise it (ulimit -f)")
          .keep("the file would exceed the process's limit of file size: raise it (ulimit -f)");
    case ENOSPC: return "no space is left on the disk: free some, or name a path on another";
    case EDQUOT: return "the user's quota of the disk is used up: free some, or raise it";
    case ENXIO: return not_a_file_text;
    default: return nullptr;
  }
}

const char* file_text(int failure, const char* otherwise) noexcept {
  check(otherwise != nullptr, "a failure has no text");
  if (const char* const limit = limit_text(failure); limit != nullptr) return limit;
  switch (failure) {
    case EISDIR: return "the path is a folder: name a file";
    case ELOOP: return "the path is a symbolic link that is not followed here: name the file";
    case ENAMETOOLONG: return "the path or a name in it is too long";
    case ENOENT: return "the path, or a folder of it, does not exist: create it, or name another";
    case ENOTDIR: return "a part of the path is not a folder";
    case EACCES:
    case EPERM: return "this user has no right to the file or to its folder";
    case EROFS: return "the path is in a file system that is read-only: name another folder";
    default: return otherwise;
  }
}

}  // namespace vmm

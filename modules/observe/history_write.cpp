// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// How a history comes into its file: a new file in the same folder takes the place of the old one
// once it is whole. history_file.cpp has the format.
module;
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

module vmm.observe;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {
namespace {

// What failed with errno on the history at this path.
[[nodiscard]] error system_error(std::string_view path, std::string_view what) noexcept {
  const int number = errno;
  check(number > 0, "an error of the system's has no number");
  const char* const why = file_text(number, "the system refuses it");
  constexpr std::size_t shown_max = 200;  // the reason stays visible
  error failure = refuse(errc::unavailable, detail_text()
                                                .add("the history '")
                                                .add(path.substr(0, shown_max))
                                                .add(path.size() > shown_max ? "..." : "")
                                                .add("' cannot be ")
                                                .add(what)
                                                .add(": ")
                                                .add(why)
                                                .keep(why));
  failure.native = number;
  failure.native_name = errno_name(number);
  return failure;
}

// ---- files ---------------------------------------------------------------------------

[[nodiscard]] status write_all(int descriptor, std::span<const std::byte> left,
                               std::string_view path) noexcept {
  check(descriptor >= 0, "bytes are written to no file");
  const written_bytes written = write_whole(descriptor, left);
  if (written.failure == 0) return {};
  errno = written.failure;
  return system_error(path, "written");
}

[[nodiscard]] status write_in_place(std::span<const std::byte> bytes, const char* path) noexcept {
  const opened_file opened = open_named(path, O_WRONLY | O_CREAT | O_TRUNC);
  errno = opened.failure;
  if (opened.failure != 0) return system_error(path, "opened");
  check(!bytes.empty(), "a file is replaced by nothing");
  status written = write_all(opened.descriptor, bytes, path);
  if (::close(opened.descriptor) != 0 && written) written = system_error(path, "written");
  return written;
}

// Where a link leads to, so that it stays one.
[[nodiscard]] std::string followed(const char* path) {
  const std::unique_ptr<char, void (*)(void*)> whole(::realpath(path, nullptr), std::free);
  check(path[0] != '\0', "a link has no name");
  return whole != nullptr ? whole.get() : path;
}

// A new file in the folder of another, whose place it takes once it is whole. Its name has a length
// of its own: that of the other may be as long as names can be.
class file_beside {
 public:
  explicit file_beside(const std::string& place) : place_(place) {
    static sync::atomic<std::uint32_t> created_count = 0;
    const std::size_t slash = place.find_last_of('/');
    const std::string folder = slash == std::string::npos ? "" : place.substr(0, slash + 1);
    check(folder.size() <= place.size(), "a file's folder is longer than its path");
    for (int tries = 0; tries < 100 && descriptor_ < 0; ++tries) {
      path_ = folder + ".vmm-history-" + std::to_string(::getpid()) + "-" +
              std::to_string(created_count.fetch_add(1, std::memory_order_relaxed));
      descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
      if (descriptor_ < 0 && errno != EEXIST) break;
    }
    if (descriptor_ < 0) path_.clear();  // a file at this path belongs to another writer
    check(path_.empty() == (descriptor_ < 0), "a file has no name");
  }
  ~file_beside() {
    if (descriptor_ >= 0) (void)::close(descriptor_);
    if (!path_.empty()) (void)::unlink(path_.c_str());
  }
  file_beside(const file_beside&) = delete;
  file_beside& operator=(const file_beside&) = delete;
  // Negative, with the system's code, where the folder takes no file.
  [[nodiscard]] int get() const noexcept { return descriptor_; }
  [[nodiscard]] status take_place(std::span<const std::byte> bytes) noexcept {
    check(descriptor_ >= 0, "a missing file replaces another one");
    status written = write_all(descriptor_, bytes, place_);
    if (::close(std::exchange(descriptor_, -1)) != 0 && written)
      written = system_error(place_, "written");
    if (!written) return written;
    if (::rename(path_.c_str(), place_.c_str()) != 0) return system_error(place_, "given its name");
    path_.clear();
    return {};
  }

 private:
  std::string place_;
  std::string path_{};
  int descriptor_ = -1;
};

}  // namespace

// A pipe, a device and what a link leads to for the first time are written as they stand; so is a
// file in a folder that takes no new one.
status write_history(const history& taken, const char* path) noexcept {
  check(path != nullptr, "a history is written to no path");
  const result<std::vector<std::byte>> bytes = encode_history(taken);
  if (!bytes) return bytes.error();
  check(!bytes->empty(), "an invalid history is written");
  struct ::stat there{};
  const bool is_there = ::stat(path, &there) == 0;
  struct ::stat link{};
  const bool is_named = ::lstat(path, &link) == 0;
  const bool is_own = link.st_uid == ::geteuid() || link.st_uid == 0;
  if (is_named && S_ISLNK(link.st_mode) && !is_own) {
    errno = EPERM;
    return system_error(path, "reached by a symbolic link of another user's");
  }
  const bool leads_nowhere = !is_there && is_named;
  if (leads_nowhere || (is_there && !S_ISREG(there.st_mode))) return write_in_place(*bytes, path);
  try {
    const std::string place = is_there ? followed(path) : std::string(path);
    file_beside beside(place);
    const bool is_refused = beside.get() < 0 && (errno == EACCES || errno == EPERM);
    if (is_refused && is_there) return write_in_place(*bytes, path);
    if (beside.get() < 0) return system_error(path, "opened");
    if (is_there) (void)::fchmod(beside.get(), there.st_mode & 07777U);
    return beside.take_place(*bytes);
  } catch (const std::bad_alloc&) {
    return refuse(errc::out_of_host_memory, "no host memory is left for a history's path");
  }
}

}  // namespace vmm

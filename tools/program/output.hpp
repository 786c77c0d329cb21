// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Output of programs: a file that is opened before the work and written after it, and standard
// output. Both report failures with the system's reason.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include "../../modules/base/named_file.h"
#include "standard.hpp"

namespace vmm::tools {

/// A file whose contents come at the end of a program's work. open() shows at its beginning that
/// the file can be written, and leaves what stands in it. write() replaces the contents as a whole:
/// what cannot be written in full, as on a full disk, leaves the old file. A file that open() made
/// and that is never written, or not in full, is removed.
class output_file {
 public:
  output_file() = default;
  output_file(const output_file&) = delete;
  output_file& operator=(const output_file&) = delete;
  ~output_file() {
    if (descriptor_ < 0) return;
    ::close(descriptor_);
    if (is_new_) ::unlink(path_.c_str());
  }

  /// Empty, or why the file cannot be written.
  [[nodiscard]] std::string open(const std::string& path) {
    path_ = path;
    if (path == "-") return "-: cannot be written: name a file, such as /dev/stdout";
    descriptor_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    is_new_ = descriptor_ >= 0;
    if (!is_new_ && errno == EEXIST) descriptor_ = open_named_file(path.c_str(), O_WRONLY, 0);
    return descriptor_ >= 0 ? "" : complaint();
  }

  /// Once, after open(): replaces the contents. Empty, or why they are not whole.
  [[nodiscard]] std::string write(std::string_view text) {
    const int descriptor = std::exchange(descriptor_, -1);
    std::string why;
    if (!write_beside(descriptor, text, why)) {
      // A file that is not regular cannot be truncated, and need not be.
      if (::ftruncate(descriptor, 0) != 0 && errno != EINVAL) why = complaint();
      if (why.empty()) why = write_all(descriptor, text);
    }
    if (::close(descriptor) != 0 && why.empty()) why = complaint();
    if (!why.empty() && is_new_) ::unlink(path_.c_str());
    return why;
  }

 private:
  /// Empty, or why not all of `text` is there.
  [[nodiscard]] std::string write_all(int descriptor, std::string_view text) const {
    while (!text.empty()) {
      const ::ssize_t written = ::write(descriptor, text.data(), text.size());
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) return complaint();
      text.remove_prefix(static_cast<std::size_t>(written));
    }
    return "";
  }

  /// Writes a file beside the one behind `old` and puts it in its place. False, with nothing done,
  /// if this is not a regular file or the folder takes no other.
  [[nodiscard]] bool write_beside(int old, std::string_view text, std::string& why) const {
    struct ::stat is{};
    if (::fstat(old, &is) != 0 || !S_ISREG(is.st_mode)) return false;
    char* const target = ::realpath(path_.c_str(), nullptr);
    if (target == nullptr) return false;
    const std::string place = target;
    std::free(target);
    std::string beside = place + ".XXXXXX";
    const int descriptor = ::mkstemp(beside.data());
    if (descriptor < 0) return false;
    if (::fchown(descriptor, is.st_uid, is.st_gid) != 0 ||
        ::fchmod(descriptor, is.st_mode & 07777) != 0) {  // another user's
      ::close(descriptor);
      ::unlink(beside.c_str());
      return false;
    }
    why = write_all(descriptor, text);
    if (::close(descriptor) != 0 && why.empty()) why = complaint();
    if (why.empty() && ::rename(beside.c_str(), place.c_str()) != 0) why = complaint();
    if (!why.empty()) ::unlink(beside.c_str());
    return true;
  }

  [[nodiscard]] std::string complaint() const {
    const char* why = std::strerror(errno);
    if (errno == ENXIO) why = not_a_file_text;
    if (errno == EFBIG) why = "the process's limit of file size is reached: raise it (ulimit -f)";
    return path_ + ": cannot be written: " + why;
  }

  std::string path_;
  int descriptor_ = -1;
  bool is_new_ = false;
};

/// Whether two paths, however they are spelt, name one regular file.
[[nodiscard]] inline bool is_same_file(const std::string& one, const std::string& other) {
  if (one == other) return true;
  struct ::stat left{}, right{};
  if (::stat(one.c_str(), &left) != 0 || ::stat(other.c_str(), &right) != 0) return false;
  return S_ISREG(left.st_mode) && left.st_dev == right.st_dev && left.st_ino == right.st_ino;
}

/// Empty, or that the picture would be written over the trace that it is drawn from.
[[nodiscard]] inline std::string why_no_picture(const std::string& picture,
                                                const std::string& trace) {
  if (!is_same_file(picture, trace)) return "";
  return picture + " is the trace: --svg takes another file";
}

/// Whether print() has returned an error of standard output. Its caller reports that error; errors
/// of other output are reported at the end of the program (program.cpp).
inline bool is_output_given_up = false;

/// Writes `text` and whatever standard output holds back. Empty, or why this or an earlier write
/// failed.
[[nodiscard]] inline std::string print(std::string_view text) {
  const bool was_whole = std::ferror(stdout) == 0;
  errno = 0;
  const bool is_whole = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (is_whole && std::fflush(stdout) == 0 && was_whole) return "";
  is_output_given_up = true;
  return std::string("standard output cannot be written: ") +
         (errno != 0 ? std::strerror(errno) : "an earlier part of it is lost");
}

}  // namespace vmm::tools

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include "linux.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstdio>
#include <cstring>
#include <limits>
#include <string_view>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

import vmm.backend;
import vmm.base;

namespace vmm::linux_os {
namespace {

// A timer signal can interrupt a long fallocate again and again: it is done in pieces, so that each
// try gets further.
constexpr std::uint64_t commit_step_bytes = 64ull << 20;
constexpr int interrupted_tries_max = 1000;
// The kernel's count may change between its refusal and this check.
constexpr std::uint64_t mapping_count_slack = 16;
constexpr std::uint64_t spare_pages = 8;
constexpr int group_depth_max = 16;
constexpr unsigned memfd_huge_2mib = 21u
                                     << 26;  // MFD_HUGE_2MB, which only the kernel's own header has

constexpr int reservation_flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

constexpr const char* no_descriptor = "a closed file is used";
constexpr const char* more_read = "more bytes were read than requested";
constexpr const char* no_size = "a range of size 0 is passed to the kernel";

void* pointer(std::uint64_t value) noexcept {
  return reinterpret_cast<void*>(
      static_cast<std::uintptr_t>(value));  // NOLINT(performance-no-int-to-ptr)
}

template <class Work>
int repeat_while_interrupted(Work&& work) noexcept {
  for (int tries = 0; tries < interrupted_tries_max; ++tries) {
    if (work() == 0) return 0;
    check(errno != 0, "a call of the system failed without an error");
    if (errno != EINTR) return errno;
  }
  return EINTR;
}

// Reads the start of a small file. The view points into `buffer`; on failure it is empty, and errno
// has the reason.
template <std::size_t Size>
std::string_view read_start(const char* path, std::array<char, Size>& buffer) noexcept {
  check(path != nullptr && path[0] == '/', "a kernel file has no path");
  const int descriptor = ::open(path, O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return {};
  const ssize_t count = ::read(descriptor, buffer.data(), buffer.size());
  const int failure = count < 0 ? errno : ENODATA;
  check(count <= static_cast<ssize_t>(buffer.size()), more_read);
  ::close(descriptor);
  errno = failure;
  return count <= 0 ? std::string_view{}
                    : std::string_view{buffer.data(), static_cast<std::size_t>(count)};
}

// The first decimal number after `key`; `otherwise` without a number ("max", a missing file).
std::uint64_t number_after(std::string_view text, std::string_view key,
                           std::uint64_t otherwise) noexcept {
  const std::size_t found = text.find(key);
  if (found == std::string_view::npos) return otherwise;
  std::string_view rest = text.substr(found + key.size());
  check(rest.size() + key.size() <= text.size(), "a number lies outside of its text");
  rest.remove_prefix(std::min(rest.find_first_not_of(" \t"), rest.size()));
  std::uint64_t value = 0;
  const auto [end, failure] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
  return failure == std::errc{} ? value : otherwise;
}

std::uint64_t number_in(const char* path, std::uint64_t otherwise) noexcept {
  std::array<char, 64> buffer;
  return number_after(read_start(path, buffer), "", otherwise);
}

constexpr std::uint64_t unlimited = std::numeric_limits<std::uint64_t>::max();

struct group_files {
  const char* mount;
  const char* limit;
  const char* usage;
  const char*
      cache_key;  // in memory.stat: file pages that the kernel drops before it kills a process
};

// Reads `group`'s file `name` into `buffer`; empty when it is not there or its path is too long.
template <std::size_t Size>
std::string_view read_group_file(const char* mount, std::string_view group, const char* name,
                                 std::array<char, Size>& buffer) noexcept {
  std::array<char, PATH_MAX> path;
  const int length = std::snprintf(path.data(), path.size(), "%s%.*s/%s", mount,
                                   static_cast<int>(group.size()), group.data(), name);
  if (length < 0 || static_cast<std::size_t>(length) >= path.size()) return {};
  return read_start(path.data(), buffer);
}

// What one control group still lets its members use.
std::uint64_t group_room(const group_files& files, std::string_view group) noexcept {
  std::array<char, 4096> buffer;
  const std::uint64_t limit =
      number_after(read_group_file(files.mount, group, files.limit, buffer), "", unlimited);
  if (limit == unlimited) return unlimited;
  const std::uint64_t usage =
      number_after(read_group_file(files.mount, group, files.usage, buffer), "", 0);
  const std::uint64_t cache =
      number_after(read_group_file(files.mount, group, "memory.stat", buffer), files.cache_key, 0);
  const std::uint64_t in_use = usage > cache ? usage - cache : 0;
  return limit > in_use ? limit - in_use : 0;
}

// The least room of a group and those above it. Inside a container the group's path may not be
// visible; then the loop still reaches the root, which is where the container's own limit stands.
std::uint64_t group_room_upwards(const group_files& files, std::string_view group) noexcept {
  std::uint64_t room = unlimited;
  for (int depth = 0; depth < group_depth_max; ++depth) {
    if (group == "/") group = {};
    check(group.empty() || group.front() == '/', "a control group has no path");
    room = std::min(room, group_room(files, group));
    if (group.empty()) break;
    group = group.substr(0, group.rfind('/'));
  }
  return room;
}

// The path that follows `key` on a line of /proc/self/cgroup.
std::string_view group_path(std::string_view text, std::string_view key) noexcept {
  const std::size_t found = text.find(key);
  if (found == std::string_view::npos) return {};
  const std::string_view rest = text.substr(found + key.size());
  return rest.substr(0, rest.find('\n'));
}

std::uint64_t group_room() noexcept {
  static constexpr group_files version_2{"/sys/fs/cgroup", "memory.max", "memory.current",
                                         "\ninactive_file "};
  static constexpr group_files version_1{"/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                                         "memory.usage_in_bytes", "\ntotal_inactive_file "};
  std::array<char, 4096> buffer;
  const std::string_view text = read_start("/proc/self/cgroup", buffer);
  return std::min(group_room_upwards(version_2, group_path(text, "0::")),
                  group_room_upwards(version_1, group_path(text, ":memory:")));
}

}  // namespace

std::uint64_t page_size_bytes() noexcept {
  const long answer = ::sysconf(_SC_PAGESIZE);
  check(answer > 0 && (answer & (answer - 1)) == 0, "the system's page size is not a power of two");
  return static_cast<std::uint64_t>(answer);
}

opened open_memory_file(std::uint64_t size_bytes, page_kind pages, bool sealed) noexcept {
  unsigned flags = MFD_CLOEXEC;
  if (sealed) flags |= MFD_ALLOW_SEALING;
  if (pages == page_kind::huge) flags |= MFD_HUGETLB | memfd_huge_2mib;
  check(size_bytes != 0, no_size);
  const int descriptor = ::memfd_create("vmm", flags);
  if (descriptor < 0) return {-1, errno};
  int failure = 0;
  without_write_signals([&] {
    failure = repeat_while_interrupted(
        [&] { return ::ftruncate(descriptor, static_cast<off_t>(size_bytes)); });
  });
  if (failure == 0 && sealed &&
      ::fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    failure = errno;
  }
  if (failure == 0) return {descriptor, 0};
  ::close(descriptor);
  return {-1, failure};
}

opened duplicate(int descriptor) noexcept {
  check(descriptor >= 0, no_descriptor);
  const int copy = ::fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  check(copy != descriptor, "a descriptor is its own copy");
  if (copy >= 0) return {copy, 0};
  return {-1, errno == EINVAL ? EMFILE : errno};  // EINVAL: the limit of open files is 0
}

void close(int descriptor) noexcept {
  check(descriptor >= 0, no_descriptor);
  ::close(descriptor);
}

file_facts examine(int descriptor) noexcept {
  check(descriptor >= 0, no_descriptor);
  struct ::stat status{};
  if (::fstat(descriptor, &status) != 0) return {.failure = errno};
  check(status.st_size >= 0, "a file has a negative size");
  const int mode = ::fcntl(descriptor, F_GETFL);
  if (mode < 0) return {.failure = errno};
  const int seals = ::fcntl(descriptor, F_GET_SEALS);
  return {.size_bytes = static_cast<std::uint64_t>(status.st_size),
          .memory_file = seals >= 0 && S_ISREG(status.st_mode),
          .shrink_sealed = seals >= 0 && (seals & F_SEAL_SHRINK) != 0,
          .writable = (mode & O_ACCMODE) == O_RDWR && (seals < 0 || (seals & F_SEAL_WRITE) == 0)};
}

int commit(int descriptor, extent pages) noexcept {
  check(descriptor >= 0, no_descriptor);
  check(pages.size_bytes != 0, no_size);
  for (std::uint64_t done = 0; done < pages.size_bytes; done += commit_step_bytes) {
    check(pages.offset_bytes + done >= done, "memory lies past the end of all files");
    const auto offset = static_cast<off_t>(pages.offset_bytes + done);
    const auto size = static_cast<off_t>(std::min(commit_step_bytes, pages.size_bytes - done));
    const int failure =
        repeat_while_interrupted([&] { return ::fallocate(descriptor, 0, offset, size); });
    if (failure == 0) continue;
    // Of huge pages the kernel keeps those that it had found when the others ran out.
    (void)decommit(descriptor, pages);
    return failure;
  }
  return 0;
}

int decommit(int descriptor, extent pages) noexcept {
  check(descriptor >= 0 && pages.size_bytes != 0, no_descriptor);
  return repeat_while_interrupted([&] {
    return ::fallocate(descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                       static_cast<off_t>(pages.offset_bytes),
                       static_cast<off_t>(pages.size_bytes));
  });
}

placed reserve(span where) noexcept {
  check(where.size_bytes != 0, no_size);
  const int flags = where.base == 0 ? reservation_flags : reservation_flags | MAP_FIXED_NOREPLACE;
  void* base = ::mmap(pointer(where.base), where.size_bytes, PROT_NONE, flags, -1, 0);
  if (base == MAP_FAILED) return {0, errno};
  const auto value = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(base));
  if (where.base != 0 &&
      value != where.base) {  // a kernel from before MAP_FIXED_NOREPLACE takes it for a hint
    ::munmap(base, where.size_bytes);
    return {0, EEXIST};
  }
  check(value != 0, "the kernel reserved addresses from zero on");
  debug_check([&] { return value % page_size_bytes() == 0; },
              "the kernel reserved addresses from inside a page");
  return {value, 0};
}

int unreserve(span where) noexcept {
  check(where.base != 0 && where.size_bytes != 0, no_size);
  return ::munmap(pointer(where.base), where.size_bytes) == 0 ? 0 : errno;
}

int map(span where, int descriptor, std::uint64_t offset_bytes) noexcept {
  check(where.base != 0 && descriptor >= 0, "a file is mapped over nothing, or no file");
  debug_check([&] { return (where.base | offset_bytes) % page_size_bytes() == 0; },
              "a file is mapped from inside a page, or to there");
  void* base = ::mmap(pointer(where.base), where.size_bytes, PROT_NONE, MAP_SHARED | MAP_FIXED,
                      descriptor, static_cast<off_t>(offset_bytes));
  if (base == MAP_FAILED) return errno;
  // A child that is forked from now on has a hole here, not the parent's bytes.
  if (::madvise(base, where.size_bytes, MADV_DONTFORK) == 0) return 0;
  const int failure = errno;
  return unmap(where) == 0 ? failure : EIO;
}

int unmap(span where) noexcept {
  check(where.base != 0 && where.size_bytes != 0, no_size);
  void* base = ::mmap(pointer(where.base), where.size_bytes, PROT_NONE,
                      reservation_flags | MAP_FIXED, -1, 0);
  return base == MAP_FAILED ? errno : 0;
}

int protect(span where, protection rights) noexcept {
  check(where.base != 0 && where.size_bytes != 0, no_size);
  int bits = PROT_NONE;
  if (rights == protection::read) bits = PROT_READ;
  if (rights == protection::read_write) bits = PROT_READ | PROT_WRITE;
  return ::mprotect(pointer(where.base), where.size_bytes, bits) == 0 ? 0 : errno;
}

std::uint64_t mapping_limit() noexcept { return number_in("/proc/sys/vm/max_map_count", 0); }

bool mapping_limit_reached() noexcept {
  const std::uint64_t limit = mapping_limit();
  const int descriptor = ::open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (limit == 0 || descriptor < 0) {
    if (descriptor >= 0) ::close(descriptor);
    return false;
  }
  std::array<char, 16384> buffer;
  std::uint64_t lines = 0;
  // A line has at least 40 characters, so this many reads cover every possible mapping.
  for (std::uint64_t reads = 0; reads < limit * 2 && lines <= limit; ++reads) {
    const ssize_t count = ::read(descriptor, buffer.data(), buffer.size());
    if (count <= 0) break;
    check(count <= static_cast<ssize_t>(buffer.size()), more_read);
    lines += static_cast<std::uint64_t>(std::count(buffer.data(), buffer.data() + count, '\n'));
  }
  ::close(descriptor);
  return lines + mapping_count_slack >= limit;
}

bool no_mapping_left() noexcept {
  const placed page = reserve({0, page_size_bytes()});
  if (page.failure == 0) (void)unreserve({page.base, page_size_bytes()});
  return page.failure != 0 && mapping_limit_reached();
}

memory_figures query_memory(page_kind pages) noexcept {
  std::array<char, 4096> buffer;
  const std::string_view text = read_start("/proc/meminfo", buffer);
  if (text.empty()) return {.failure = errno};
  if (pages == page_kind::huge) {
    const std::uint64_t size = number_after(text, "Hugepagesize:", 0) * 1024;
    const std::uint64_t free = number_after(text, "HugePages_Free:", 0);
    const std::uint64_t promised = number_after(text, "HugePages_Rsvd:", 0);
    return {(free > promised ? free - promised : 0) * size,
            number_after(text, "HugePages_Total:", 0) * size, 0};
  }
  const std::uint64_t available = number_after(text, "MemAvailable:", 0) * 1024;
  return {std::min(available, group_room()), number_after(text, "MemTotal:", 0) * 1024, 0};
}

void spare_mappings::take_back() noexcept {
  if (pages_.base != 0) return;
  const std::uint64_t page = page_size_bytes();
  const placed stock = reserve({0, page * spare_pages});
  if (stock.failure != 0) return;
  check(stock.base % page == 0, "the kernel reserves half a page");
  pages_ = {stock.base, page * spare_pages};
  // Neighbours with equal rights would be one mapping: every second page gets others.
  for (std::uint64_t i = 1; i < spare_pages; i += 2) {
    if (protect({stock.base + i * page, page}, protection::read) != 0) return;
  }
}

void spare_mappings::lend() noexcept {
  check((pages_.base == 0) == (pages_.size_bytes == 0), "spare mappings have a place and no size");
  if (pages_.base != 0) (void)unreserve(pages_);
  pages_ = {};
}

}  // namespace vmm::linux_os

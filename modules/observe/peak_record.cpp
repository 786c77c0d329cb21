// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include <fcntl.h>
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

constexpr std::uint64_t peak_bytes_limit = std::uint64_t{1} << 56;
constexpr std::uint64_t place_count = 1024;

using peak_key = std::array<std::uint64_t, 2>;

struct peak_file {
  static constexpr std::uint64_t magic_number = 0x0a316b6165706d76;  // "vmpeak1\n"
  static constexpr std::uint64_t version_number = 1;

  std::uint64_t magic = magic_number;
  std::uint64_t version = version_number;
  peak_key key{};
  run_peak peak{};
  std::uint64_t reserved = 0;
  std::uint64_t sum = 0;  // of the bytes before it
};
constexpr ::ssize_t file_bytes = 64;
static_assert(sizeof(peak_file) == file_bytes);

// FNV-1a, from two starts.
void add_to(peak_key& to, std::string_view bytes) noexcept {
  for (const char each : bytes) {
    for (std::uint64_t& half : to) half = (half ^ static_cast<unsigned char>(each)) * 0x100000001b3;
  }
}

void add_part(peak_key& to, std::string_view text) noexcept {
  add_to(to, text);
  add_to(to, {"\0", 1});
}

[[nodiscard]] std::uint64_t checksum(const peak_file& of) noexcept {
  peak_key sums{0xcbf29ce484222325, 0};
  add_to(sums, {reinterpret_cast<const char*>(&of), __builtin_offsetof(peak_file, sum)});
  return sums.front();
}

// The program and its arguments, of which at most 1 MiB count.
[[nodiscard]] bool add_program(peak_key& to) noexcept {
  std::array<char, 4096> text;
  const ::ssize_t length = ::readlink("/proc/self/exe", text.data(), text.size());
  if (length <= 0) return false;
  add_part(to, {text.data(), static_cast<std::size_t>(length)});
  const int from = ::open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
  if (from < 0) return false;
  ::ssize_t count = 1;
  for (int left = 256; left > 0 && count > 0; --left) {
    count = ::read(from, text.data(), text.size());
    if (count > 0) add_to(to, {text.data(), static_cast<std::size_t>(count)});
  }
  ::close(from);
  return count >= 0;
}

[[nodiscard]] std::string file_of(const peak_key& key) {
  return "peak." + std::to_string(key.front() % place_count);
}

// Zeros without a file of this key.
[[nodiscard]] run_peak read_peak(int folder, const peak_key& key) {
  constexpr int flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  const int from = ::openat(folder, file_of(key).c_str(), flags);
  if (from < 0) return {};
  peak_file found;
  struct ::stat facts{};
  const bool is_whole = ::fstat(from, &facts) == 0 && S_ISREG(facts.st_mode) &&
                        facts.st_uid == ::geteuid() && facts.st_size == file_bytes &&
                        ::read(from, &found, sizeof found) == file_bytes;
  ::close(from);
  const bool is_right = is_whole && found.magic == peak_file::magic_number &&
                        found.version == peak_file::version_number && found.key == key &&
                        found.peak.mapped_bytes < peak_bytes_limit &&
                        found.peak.live_bytes <= found.peak.mapped_bytes &&
                        found.sum == checksum(found);
  return is_right ? found.peak : run_peak{};
}

// A file of this user under the name, in place of whatever else has it. Its bytes are written in
// one call and checked by their sum: no draft is left behind by a process that is killed.
[[nodiscard]] opened_file open_peak(int folder, const char* name) {
  constexpr int flags = O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  for (const bool is_last : {false, true}) {
    const int to = ::openat(folder, name, flags, 0600);
    int failure = to < 0 ? errno : 0;
    struct ::stat facts{};
    if (to >= 0 && ::fstat(to, &facts) != 0) failure = errno;
    const bool is_own =
        S_ISREG(facts.st_mode) && facts.st_uid == ::geteuid() && facts.st_nlink == 1;
    if (failure == 0 && is_own) return {to, 0};
    if (to >= 0) ::close(to);
    const bool is_other =  // not of a limit, at which the file stays
        failure == 0 || failure == ELOOP || failure == ENXIO || failure == EACCES;
    if (is_last || !is_other || ::unlinkat(folder, name, 0) != 0)
      return {-1, failure != 0 ? failure : EEXIST};
  }
  return {-1, EEXIST};
}

// 0, or the system's code.
[[nodiscard]] int write_peak(int folder, const peak_key& key, const run_peak& peak) {
  peak_file now;
  now.key = key;
  now.peak = peak;
  now.sum = checksum(now);
  const opened_file to = open_peak(folder, file_of(key).c_str());
  if (to.failure != 0) return to.failure;
  const written_bytes written = write_whole(to.descriptor, std::as_bytes(std::span(&now, 1)));
  const bool is_whole = ::ftruncate(to.descriptor, file_bytes) == 0;
  const int failure = written.failure != 0 || is_whole ? written.failure : errno;
  return ::close(to.descriptor) == 0 ? failure : errno;
}

void complain_of_peaks(const char* folder, const char* why) noexcept {
  static std::atomic<bool> has_complained = false;
  check(why != nullptr, "a complaint has no text");
  if (has_complained.exchange(true)) return;
  without_write_signals([&] {
    std::fprintf(stderr, "vmm: VMM_REMEMBER: '%s': %s; no peak is remembered\n", folder, why);
  });
}

// Runs of a program differ by less.
[[nodiscard]] bool is_same_load(const run_peak& left, const run_peak& right) noexcept {
  const std::uint64_t more_bytes = std::max(left.live_bytes, right.live_bytes);
  return more_bytes - std::min(left.live_bytes, right.live_bytes) <= more_bytes / 64;
}

// `sudo -E` keeps the variable: a folder of root's among a user's would stop the user.
[[nodiscard]] bool is_made_by_root_for_another(const std::string& path) {
  struct ::stat found{};
  if (::geteuid() != 0 || ::lstat(path.c_str(), &found) == 0) return false;
  const std::size_t name = path.rfind('/', path.find_last_not_of('/'));
  return ::stat(path.substr(0, name + 1).c_str(), &found) == 0 && found.st_uid != 0;
}

[[nodiscard]] int open_peaks(const std::string& path) {
  if (path.front() != '/' || path.find_first_not_of('/') == std::string::npos) {
    complain_of_peaks(path.c_str(),
                      path.front() == '/'
                          ? "name a folder of this user in it, such as /home/me/peaks"
                          : "name a folder by its whole path, such as /home/me/peaks");
    return -1;
  }
  if (is_made_by_root_for_another(path)) {
    complain_of_peaks(path.c_str(),
                      "root makes no folder in another user's: run the program as that user, or "
                      "name a folder elsewhere");
    return -1;
  }
  const bool is_made = ::mkdir(path.c_str(), 0700) == 0;
  const int failure = is_made ? 0 : errno;
  if (is_made) {
    without_write_signals(
        [&] { std::fprintf(stderr, "vmm: VMM_REMEMBER: the folder '%s' is new\n", path.c_str()); });
  } else if (failure != EEXIST) {
    complain_of_peaks(path.c_str(), file_text(failure, "the folder cannot be made"));
    return -1;
  }
  const result<int> folder = open_own_folder(path, folder_rule::others_may_read);
  if (!folder) complain_of_peaks(path.c_str(), folder.error().detail);
  // The peak of the previous run can be read nevertheless.
  if (folder && ::faccessat(*folder, ".", W_OK | X_OK, AT_EACCESS) != 0)
    complain_of_peaks(path.c_str(),
                      errno == EACCES ? "this user cannot write to the folder: run chmod u+rwx on "
                                        "it, or name another"
                                      : file_text(errno, "the folder cannot be written to"));
  return folder.value_or(-1);
}

}  // namespace

// Of this process. Never destroyed: allocators may be static.
struct peak_records {
  [[nodiscard]] static peak_records& all() {
    static peak_records* const made = [] {
      auto* const fresh = new peak_records;
      (void)std::atexit([] { all().write_all(); });
      return fresh;
    }();
    return *made;
  }

  [[nodiscard]] static peak_key key_of(const peak_record& of) {
    peak_key key = of.about_;
    add_part(key, std::to_string(of.number_));
    return key;
  }

  [[nodiscard]] run_peak add(peak_record& fresh) {
    if (!made_in.is_here()) return {};
    const int folder = open_peaks(fresh.folder_);
    if (folder < 0) return {};
    const std::lock_guard<std::mutex> lock(mutex);
    fresh.number_ = 1;
    for (peak_record* each = first; each != nullptr;) {
      const bool is_taken = each->about_ == fresh.about_ && each->number_ == fresh.number_;
      if (is_taken) ++fresh.number_;
      each = is_taken ? first : each->next_;
    }
    fresh.next_ = std::exchange(first, &fresh);
    const run_peak before = read_peak(folder, key_of(fresh));
    ::close(folder);
    return before;
  }

  void remove(peak_record& gone) {
    if (!made_in.is_here()) return;
    const std::lock_guard<std::mutex> lock(mutex);
    write(gone);
    peak_record** at = &first;
    while (*at != nullptr && *at != &gone) at = &(*at)->next_;
    check(*at == &gone, "a record ends that is not listed");
    *at = gone.next_;
    gone.number_ = 0;
  }

  void write_all() noexcept {
    if (!made_in.is_here()) return;
    const std::lock_guard<std::mutex> lock(mutex);
    for (const peak_record* each = first; each != nullptr; each = each->next_) write(*each);
  }

  static void write(const peak_record& of) noexcept {
    run_peak now = of.source_.peak(of.source_.of);
    if (now.live_bytes == 0) return;
    try {
      const int folder = open_peaks(of.folder_);
      if (folder < 0) return;
      const peak_key key = key_of(of);
      const run_peak before = read_peak(folder, key);
      if (is_same_load(before, now))
        now.mapped_bytes = std::clamp(before.mapped_bytes, now.live_bytes,
                                      std::max(now.live_bytes, now.mapped_bytes));
      if (const int failure = write_peak(folder, key, now); failure != 0)
        complain_of_peaks((of.folder_ + "/" + file_of(key)).c_str(),
                          failure == EISDIR ? "a folder has the name of the file: remove it"
                                            : file_text(failure, "the file cannot be written"));
      ::close(folder);
    } catch (const std::bad_alloc&) {
      // Nothing is remembered.
    }
  }

  const process_mark made_in{};
  std::mutex mutex;
  peak_record* first = nullptr;
};

bool peak_record::is_wanted() noexcept { return environment_text("VMM_REMEMBER") != nullptr; }

void peak_record::check_folder() noexcept {
  static std::atomic<bool> is_checked = false;
  const char* const folder = environment_text("VMM_REMEMBER");
  if (folder == nullptr || is_checked.exchange(true)) return;
  try {
    const int opened = open_peaks(folder);
    if (opened >= 0) (void)::close(opened);
  } catch (const std::bad_alloc&) {
    // The allocator that needs the folder reports it.
  }
}

run_peak peak_record::begin(const peak_source& source, std::string_view about) noexcept {
  check(number_ == 0, "a record begins twice");
  check(source.peak != nullptr, "a record has no source");
  const char* const folder = environment_text("VMM_REMEMBER");
  if (folder == nullptr) return {};
  source_ = source;
  about_ = {0xcbf29ce484222325, 0x9e3779b97f4a7c15};
  if (!add_program(about_)) return {};
  add_part(about_, about);
  try {
    folder_ = folder;
    return peak_records::all().add(*this);
  } catch (const std::bad_alloc&) {
    return {};
  }
}

void peak_record::end() noexcept {
  if (number_ != 0) peak_records::all().remove(*this);
}

}  // namespace vmm

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The file of this process and the thread that writes it. Both are there while a source is.
module;
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

module vmm.observe;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {

namespace {

std::atomic<bool> is_on = false;
std::atomic<bool> has_complained = false;

void complain(const char* where, const char* why) noexcept {
  check(where != nullptr && why != nullptr, "a complaint has no text");
  if (has_complained.exchange(true)) return;
  without_write_signals([&] {
    std::fprintf(stderr, "vmm: allocators are not shown to vmm-top: %s%s%s\n", where,
                 *where == '\0' ? "" : ": ", why);
  });
}

// No signal handler of the program runs on a thread of the library.
class without_signals {
 public:
  without_signals() noexcept {
    ::sigset_t all;
    ::sigfillset(&all);
    is_set_ = ::pthread_sigmask(SIG_SETMASK, &all, &before_) == 0;
  }
  ~without_signals() {
    if (is_set_) (void)::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  without_signals(const without_signals&) = delete;
  without_signals& operator=(const without_signals&) = delete;

 private:
  ::sigset_t before_{};
  bool is_set_ = false;
};

std::uint64_t time_ns() noexcept {
  ::timespec now{};
  (void)::clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 +
         static_cast<std::uint64_t>(now.tv_nsec);
}

// The file whose lock this process has; -1: none. A forked child that kept it open would keep the
// lock of a dead parent.
std::atomic<int> locked_file = -1;

void close_in_child() noexcept {
  const int file = locked_file.exchange(-1, std::memory_order_relaxed);
  if (file >= 0) (void)::close(file);
}
// Registered before main: no file can be older than the handler.
[[maybe_unused]] const int fork_handler = ::pthread_atfork(nullptr, nullptr, close_in_child);

// The file, under its name and its lock. It is written by pwrite() and not mapped: a store to a
// mapping ends the process if the file system is full or the file was truncated.
class top_file {
 public:
  top_file() noexcept = default;
  top_file(const top_file&) = delete;
  top_file& operator=(const top_file&) = delete;
  ~top_file() { close(); }

  /// True: it is there.
  [[nodiscard]] bool open() {
    check(!is_open_ && file_ < 0 && folder_ < 0, "a file is opened that is open");
    const std::string path = top_folders().front();
    errno = 0;
    if (!make_folder(path)) {
      complain(path.c_str(), file_text(errno, "the folder cannot be made"));
      return false;
    }
    const result<int> folder = open_own_folder(path, folder_rule::is_private);
    if (!folder) {
      complain(path.c_str(), folder.error().detail);
      return false;
    }
    folder_ = *folder;
    const std::string process = std::to_string(::getpid());
    const std::string draft = "new." + process;
    name_ = "top." + process;
    (void)::unlinkat(folder_, draft.c_str(), 0);  // of a dead process
    file_ =
        ::openat(folder_, draft.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    is_open_ =
        file_ >= 0 && prepare() && ::renameat(folder_, draft.c_str(), folder_, name_.c_str()) == 0;
    check(!is_open_ || folder_ >= 0, "an open file has no path");
    if (is_open_) return true;
    complain(path.c_str(), file_text(errno, "the file cannot be made"));
    if (file_ >= 0) (void)::unlinkat(folder_, draft.c_str(), 0);
    close();
    return false;
  }
  void close() noexcept {
    check(!is_open_ || file_ >= 0, "top I2: an open file has no descriptor");
    if (std::exchange(is_open_, false)) (void)::unlinkat(folder_, name_.c_str(), 0);
    locked_file.store(-1, std::memory_order_relaxed);
    if (file_ >= 0) ::close(file_);
    if (folder_ >= 0) ::close(folder_);
    sequences_.fill(0);
    file_ = folder_ = -1;
  }
  [[nodiscard]] bool is_open() const noexcept { return is_open_; }

  // I1: a reader that finds the same even sequence number before and after has read one sample.
  void write(std::size_t place, const top_sample& what) noexcept {
    check(place < top_slot_count && is_open_, "a sample is written to no slot");
    const std::size_t at = sizeof(top_head) + place * sizeof(top_slot);
    const std::uint64_t before = std::exchange(sequences_[place], sequences_[place] + 2);
    check(before % 2 == 0, "top I1: two write one slot");
    const bool is_written = put(at, before + 1) &&
                            put(at + __builtin_offsetof(top_slot, words), encode_sample(what)) &&
                            put(at, before + 2);
    if (!is_written) complain(name_.c_str(), "the file cannot be written");
  }
  void write_hidden(std::uint64_t count) noexcept {
    check(is_open_, "a count is written to no file");
    (void)put(__builtin_offsetof(top_head, hidden_count), count);
  }

 private:
  // In a folder of this user, or in one like /tmp, where users cannot remove each other's files.
  [[nodiscard]] static bool make_folder(const std::string& path) {
    const std::size_t slash = path.rfind('/');
    check(slash != std::string::npos && slash + 1 < path.size(), "a folder has no name");
    const int above = ::open(path.substr(0, slash).c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
    struct ::stat found{};
    const bool is_right =
        above >= 0 && ::fstat(above, &found) == 0 &&
        (found.st_uid == ::geteuid() || (found.st_uid == 0 && (found.st_mode & S_ISVTX) != 0));
    const bool is_there =
        is_right && (::mkdirat(above, path.c_str() + slash + 1, 0700) == 0 || errno == EEXIST);
    if (above >= 0) ::close(above);
    check(!is_there || is_right, "top I3: a folder is made below another user's");
    return is_there;
  }

  // The lock is the open file's, which no other open and close of the file in this process drops.
  // An exec does not hand it on, nor does a fork: the child closes its copy at once.
  [[nodiscard]] bool prepare() {
    check(file_ >= 0 && !is_open_, "no file is prepared, or one twice");
    locked_file.store(file_, std::memory_order_relaxed);
    struct ::flock whole{};
    whole.l_type = F_WRLCK;
    whole.l_whence = SEEK_SET;
    if (::fchmod(file_, 0600) != 0 || ::fcntl(file_, F_OFD_SETLK, &whole) != 0) return false;
    bool has_size = false;
    without_write_signals(
        [&] { has_size = ::ftruncate(file_, static_cast<::off_t>(top_file_bytes)) == 0; });
    if (!has_size) return false;
    top_head head;
    head.slot_count = top_slot_count;
    head.process = static_cast<std::uint64_t>(::getpid());
    const std::string program = program_name();
    std::copy_n(program.begin(), std::min(program.size(), head.program.size() - 1),
                head.program.begin());
    check(head.program.back() == '\0', "a program's name has no end");
    return put(0, head);
  }
  template <class T>
  [[nodiscard]] bool put(std::size_t offset_bytes, const T& what) noexcept {
    check(file_ >= 0, "no file is written to");
    check(offset_bytes + sizeof(what) <= top_file_bytes, "the file is written past its end");
    const auto at = static_cast<::off_t>(offset_bytes);
    bool is_written = false;
    check(at >= 0, "an offset has no place in a file");
    without_write_signals([&] {
      is_written = ::pwrite(file_, &what, sizeof(what), at) == static_cast<::ssize_t>(sizeof(what));
    });
    return is_written;
  }
  [[nodiscard]] static std::string program_name() {
    std::array<char, 16> name{};
    const int from = ::open("/proc/self/comm", O_RDONLY | O_CLOEXEC);
    if (from < 0) return "";
    const ::ssize_t count = ::read(from, name.data(), name.size() - 1);
    ::close(from);
    std::string out(name.data(), count > 0 ? static_cast<std::size_t>(count) : 0);
    check(out.size() < name.size(), "a program's name is longer than there is room for");
    if (out.ends_with('\n')) out.pop_back();
    return out;
  }

  int folder_ = -1;
  int file_ = -1;
  std::string name_;
  bool is_open_ = false;  // it stands under its name
  std::array<std::uint64_t, top_slot_count> sequences_{};
};

class publisher {
 public:
  explicit publisher(const publisher* before) noexcept : before_(before) {}

  /// That of this process. Never destroyed, and the parent's stays reachable.
  [[nodiscard]] static publisher& here() {
    static std::atomic<publisher*> now = nullptr;
    publisher* found = now.load(std::memory_order_acquire);
    while (found == nullptr || !found->made_in_.is_here()) {
      auto made = std::make_unique<publisher>(found);
      check(made->made_in_.is_here(), "a publisher is made in another process");
      if (now.compare_exchange_strong(found, made.get())) return *made.release();
    }
    return *found;
  }

  /// The source's number; 0 where it cannot be shown.
  [[nodiscard]] std::uint64_t add(const top_source& source) {
    check(source.sample != nullptr, "a source without a sample function");
    const std::lock_guard<std::mutex> life(life_mutex_);
    if (!file_.is_open() && !file_.open()) return 0;
    const std::uint64_t number = ++number_;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      auto place = std::find_if(sources_.begin(), sources_.end(),
                                [](const shown& each) { return each.number == 0; });
      if (place == sources_.end()) {
        file_.write_hidden(++hidden_count_);
        return 0;
      }
      *place = {source, number};
      ++count_;
      check(count_ <= sources_.size(), "more sources are shown than there are slots");
      write(static_cast<std::size_t>(place - sources_.begin()));
    }
    if (!thread_.joinable()) {
      try {
        start();
      } catch (...) {
        const std::lock_guard<std::mutex> lock(mutex_);
        sources_.fill({});
        count_ = 0;
        file_.close();
        throw;
      }
    }
    return number;
  }

  void remove(std::uint64_t number) noexcept {
    const std::lock_guard<std::mutex> life(life_mutex_);
    bool is_last = false;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto place = std::find_if(sources_.begin(), sources_.end(),
                                      [&](const shown& each) { return each.number == number; });
      check(place != sources_.end(), "a source is removed that is not shown");
      check(count_ != 0, "more sources are removed than are shown");
      *place = {};
      file_.write(static_cast<std::size_t>(place - sources_.begin()), {});
      is_last = --count_ == 0;
      is_ending_ = is_last;
    }
    if (!is_last) return;
    wakes_.notify_all();
    if (thread_.joinable()) thread_.join();
    file_.close();
    hidden_count_ = 0;
  }

 private:
  struct shown {
    top_source source{};
    std::uint64_t number = 0;
  };

  // Under the lock.
  void write(std::size_t place) noexcept {
    const shown& each = sources_[place];
    check(each.number != 0 && each.source.sample != nullptr,
          "an entry without a source is "
          "sampled");
    top_sample now;
    each.source.sample(each.source.of, now);
    now.number = each.number;
    now.time_ns = time_ns();
    file_.write(place, now);
  }
  void start() {
    is_ending_ = false;
    const without_signals quiet;
    check(!thread_.joinable(), "two threads write one file");
    check(file_.is_open(), "a thread writes no file");
    thread_ = std::thread([this] { run(); });
  }
  void run() noexcept {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!is_ending_) {
      for (std::size_t place = 0; place < sources_.size(); ++place) {
        if (sources_[place].number != 0) write(place);
      }
      check(count_ != 0, "a thread writes without a source");
      (void)wakes_.wait_for(lock, period);
    }
    check(count_ == 0, "the thread ends while a source is shown");
  }

  static constexpr std::chrono::milliseconds period{250};

  const process_mark made_in_;
  [[maybe_unused]] const publisher* before_;  // of the parent: it stays reachable
  std::mutex life_mutex_;  // before the other; over the beginning and the end of the thread
  std::mutex mutex_;
  std::condition_variable wakes_;
  std::array<shown, top_slot_count> sources_{};
  std::size_t count_ = 0;
  std::uint64_t number_ = 0;
  std::uint64_t hidden_count_ = 0;
  bool is_ending_ = false;
  std::thread thread_;
  top_file file_;
};

// A malformed value is reported, and nothing is shown.
[[nodiscard]] bool is_asked_for() noexcept {
  bool wanted = is_on.load(std::memory_order_relaxed);
  const status read = read_switch_option("VMM_TOP", wanted, "VMM_TOP is 0, off, 1 or on");
  if (!read) complain("", read.error().detail);
  check(read || read.error().code == errc::bad_option, "a variable is refused for another reason");
  return wanted;
}

}  // namespace

void top_use::publish(const top_source& source, bool is_wanted) noexcept {
  check(source.of != nullptr && source.sample != nullptr, "nothing is shown");
  if (number_ != 0 || !(is_wanted || is_asked_for())) return;
  try {
    number_ = publisher::here().add(source);
  } catch (const std::exception& trouble) {
    complain("", trouble.what());
  }
}

void top_use::end() noexcept {
  const std::uint64_t number = std::exchange(number_, 0);
  if (number == 0 || !made_in_.is_here()) return;
  publisher::here().remove(number);
  check(number_ == 0, "a removed source is shown");
}

bool publish_allocators(bool on) noexcept { return is_on.exchange(on); }

}  // namespace vmm

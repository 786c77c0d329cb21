// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.base:support - assertions, forked processes, and the users of an object.
//
// Assertions: check, debug_check, paranoid_check. A programmer's mistake ends the process.
// Processes: a forked child has a copy of every object and lock, but none of the threads that may
// hold the locks. In the child every call on an object of the parent is therefore refused before it
// takes a lock or calls a driver, and destroying the child's copy changes nothing.
// Users: a driver has a user_count and returns it from users(); a pool and a manager hold a use_of
// their driver, a vector or buffer one of its allocator. Destroying or moving an object that has
// users ends the process with a text that names the mistake. Exception: exit() destroys a static
// driver before a pool on the stack of main(), which is not a mistake.
//
// Writing: a failed write to a file returns an error and raises no signal.
//
// I1  is_here() is false in every process that was forked after the mark was made, and stays false.
//     Children of vfork() and of clone() without fork handlers are not detected; they may only
//     exec.
// I2  A user_count whose object is destroyed, moved from or assigned to has no user. A forked
//     child's copies are not checked.
//
// leave_behind() gives an object up: it is not destroyed, and stays reachable for leak checkers.
//
// Thread safety: all of it. Cost: is_here() is one relaxed load and a comparison; a user is one
// relaxed addition when it is made and one when it goes, and a function for exit() when an object
// gets its first user.
export module vmm.base:support;

import vmm.std;

namespace vmm {

// ---- assertions ----------------------------------------------------------------------

/// Prints the place and the text to stderr and aborts. The end of every failed assertion.
export [[noreturn]] void fail_check(const char* what, std::source_location where) noexcept;

#ifndef VMM_CHECK_LEVEL
#define VMM_CHECK_LEVEL 1
#endif
/// 1: constant-time assertions (always on, also in release); 2: logarithmic ones too; 3:
/// whole-structure validators.
export inline constexpr int check_level = VMM_CHECK_LEVEL;

/// Assertion that is on in every build. Keep the condition constant-time.
export constexpr void check(bool condition, const char* what,
                            std::source_location where = std::source_location::current()) noexcept {
  if (!condition) [[unlikely]]
    fail_check(what, where);
}

/// Assertion for debug builds (check_level 2). The condition is a callable, so that it costs
/// nothing when off.
export template <class Condition>
constexpr void debug_check(Condition&& condition, const char* what,
                           std::source_location where = std::source_location::current()) {
  if constexpr (check_level >= 2) {
    if (!condition()) [[unlikely]]
      fail_check(what, where);
  }
}

/// Whole-structure validator, on in tests and fuzzing (check_level 3).
export template <class Condition>
constexpr void paranoid_check(Condition&& condition, const char* what,
                              std::source_location where = std::source_location::current()) {
  if constexpr (check_level >= 3) {
    if (!condition()) [[unlikely]]
      fail_check(what, where);
  }
}

/// Rounds up to a multiple of `unit`. Requires: a unit that is not zero, and a sum that fits.
export [[nodiscard]] constexpr std::uint64_t round_up(std::uint64_t value,
                                                      std::uint64_t unit) noexcept {
  check(unit != 0, "a value is rounded up to a multiple of 0");
  const std::uint64_t rest = value % unit;
  const std::uint64_t rounded = rest == 0 ? value : value + (unit - rest);
  check(rounded >= value, "a value is rounded up past the largest number");
  debug_check([&] { return rounded % unit == 0 && rounded - value < unit; },
              "a value is not rounded up to the next multiple");
  return rounded;
}

/// Prefetches a cache line. A hint: the address may be invalid.
export inline void fetch_ahead(const void* line) noexcept { __builtin_prefetch(line, 1); }

// ---- processes -----------------------------------------------------------------------

// How many forks lie between the first process and this one. A fork handler raises it in the child.
extern std::atomic<std::uint32_t> forks_passed;

/// The process in which an object was made. A copy names the same process.
export class process_mark {
 public:
  process_mark() noexcept : made_after_(forks_passed.load(std::memory_order_relaxed)) {}
  [[nodiscard]] inline bool is_here() const noexcept {
    return made_after_ == forks_passed.load(std::memory_order_relaxed);
  }

 private:
  std::uint32_t made_after_;
};

/// An object that is notified of a fork, in the child, before fork() returns there. It records the
/// fork in its owner's own state. It may call only functions that a signal handler may call.
export class fork_listener {
 public:
  fork_listener() = default;
  fork_listener(const fork_listener&) = delete;
  fork_listener& operator=(const fork_listener&) = delete;

  /// Begins to call forked() in each child; a second call has no effect. False if the host has no
  /// memory. Takes no lock: a concurrent fork may or may not be notified.
  [[nodiscard]] bool listen() noexcept;
  /// Ends the calls. Requires: called before the object's own destructor ends.
  void stop() noexcept;
  virtual void forked() noexcept = 0;

 protected:
  ~fork_listener();

 private:
  std::atomic<fork_listener*>* slot_ = nullptr;  // while it listens
};

/// Gives up an object without destroying it. Null is allowed.
export void leave_behind(const void* object) noexcept;

/// The same for an object inside another one: its parts are moved out.
export template <class T>
void leave_parts_behind(T& parts) noexcept {
  leave_behind(new (std::nothrow) T(std::move(parts)));
}

// ---- writing -------------------------------------------------------------------------

/// Runs `work`, which writes to files. SIGPIPE (no reader) and SIGXFSZ (the limit of file size),
/// which the kernel sends besides the error, do not reach the program: they are blocked in this
/// thread and consumed. errno is that of the work. May be called in a signal handler.
export void without_write_signals(void (*work)(void*), void* context) noexcept;
/// The same for a callable.
export template <class Work>
void without_write_signals(Work work) noexcept {
  without_write_signals([](void* given) { (*static_cast<Work*>(given))(); }, &work);
}

/// The bytes written; `failure` is the system's code, 0 if all are written.
export struct written_bytes {
  std::size_t count = 0;
  int failure = 0;
};
/// write() without its signals, repeated after an interruption or a partial write. May be called
/// in a signal handler.
export [[nodiscard]] written_bytes write_whole(int descriptor,
                                               std::span<const std::byte> bytes) noexcept;

// ---- users ---------------------------------------------------------------------------

/// The name of an owner of users in the texts of failed checks.
export enum class used_object : std::uint8_t { driver, manager, pool };

/// The number of objects that refer to the object that has this as its last member. It moves with
/// its object: a moved-from one accepts no user until it is assigned to.
export class user_count {
 public:
  explicit user_count(used_object what = used_object::driver) noexcept : what_(what) {}
  user_count(user_count&& other) noexcept : what_(other.what_) { take(other); }
  user_count& operator=(user_count&& other) noexcept {
    check_replaced();
    if (this != &other) take(other);
    return *this;
  }
  ~user_count() { check_destroyed(); }

  /// Ends the process if the object has users: it is about to be destroyed or moved.
  inline void check_destroyed() const noexcept {
    if (has_users()) [[unlikely]]
      fail_destroyed();
  }
  void add() noexcept;
  void remove() noexcept;
  [[nodiscard]] inline bool has_users() const noexcept {
    return count() != 0 && made_in_.is_here();
  }
  [[nodiscard]] inline std::uint32_t count() const noexcept {
    return count_.load(std::memory_order_acquire);
  }

 private:
  void take(user_count& other) noexcept;
  void check_replaced() const noexcept;
  void fail_destroyed() const noexcept;

  std::atomic<std::uint32_t> count_ = 0;
  bool is_gone_ = false;  // its object was moved from
  process_mark made_in_;
  used_object what_;
};

/// A user of an object, for its life. An object without users() is not checked: its owner must
/// keep it alive and in place.
export class use_of {
 public:
  template <class Used>
    requires(!std::same_as<Used, use_of>)  // copying is not using
  explicit use_of(Used& used) noexcept : use_of(count_of(used)) {}
  /// Null: an object that is not watched.
  explicit use_of(user_count* count) noexcept : count_(count) {
    if (count_ != nullptr) count_->add();
  }
  template <class Used>
  [[nodiscard]] static user_count* count_of(Used& used) noexcept {
    if constexpr (requires { used.users().add(); }) {
      return &used.users();
    } else {
      return nullptr;
    }
  }
  use_of(const use_of& other) noexcept : count_(other.count_), made_in_(other.made_in_) {
    if (count_ == nullptr || !made_in_.is_here()) return;
    check(count_->count() != 0, "a user is copied that its object does not count");
    count_->add();
  }
  use_of& operator=(const use_of& other) noexcept {
    use_of made(other);
    std::swap(count_, made.count_);
    std::swap(made_in_, made.made_in_);
    return *this;
  }
  ~use_of() {
    if (count_ != nullptr && made_in_.is_here()) count_->remove();
  }

 private:
  user_count* count_ = nullptr;
  process_mark made_in_;
};

}  // namespace vmm

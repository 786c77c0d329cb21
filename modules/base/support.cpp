// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include <cerrno>
#include <cstdio>

#if __has_include(<pthread.h>)
#include <pthread.h>
#include <signal.h>
#include <unistd.h>
#define VMM_CAN_SEE_FORKS
#endif

module vmm.base;

import vmm.std;

namespace vmm {

void fail_check(const char* what, std::source_location where) noexcept {
  std::fprintf(stderr, "vmm: check failed: %s\n  at %s:%u in %s\n", what, where.file_name(),
               static_cast<unsigned>(where.line()), where.function_name());
  std::fflush(stderr);
  std::abort();
}

// ---- processes -----------------------------------------------------------------------

// Alone on its cache line: every call reads it, and nothing writes beside it.
alignas(64) std::atomic<std::uint32_t> forks_passed = 0;

namespace {

// Abandoned objects, in a list that leak checkers follow.
struct left_object {
  const void* object = nullptr;
  left_object* next = nullptr;
};
std::atomic<left_object*> left_objects = nullptr;

// The fork listeners. Blocks are never freed, and every word is atomic: a child finds each listener
// complete or absent, whatever other threads were doing.
struct listener_block {
  std::array<std::atomic<fork_listener*>, 63> listeners{};
  std::atomic<listener_block*> next = nullptr;
};
constinit listener_block first_listeners;

// Each takes a free place of the block; null if the block is full.
std::atomic<fork_listener*>* take_place(listener_block& in, fork_listener& listener) noexcept {
  for (std::atomic<fork_listener*>& place : in.listeners) {
    fork_listener* expected = nullptr;
    if (place.compare_exchange_strong(expected, &listener, std::memory_order_acq_rel))
      return &place;
    check(expected != &listener, "an object listens for forks twice");
  }
  return nullptr;
}

// The block behind; null when the host has no memory for one.
listener_block* block_behind(listener_block& in) noexcept {
  listener_block* next = in.next.load(std::memory_order_acquire);
  if (next != nullptr) return next;
  auto* const made = new (std::nothrow) listener_block;
  if (made == nullptr) return nullptr;
  if (in.next.compare_exchange_strong(next, made, std::memory_order_acq_rel)) return made;
  delete made;
  check(next != nullptr, "a block of listeners is lost");
  return next;
}

// Held over a registration of a function for exit(), which takes a lock of the C library. fork()
// waits for it: nothing would release that lock in the child.
std::atomic<bool> is_registering = false;
void begin_registration() noexcept {
  while (is_registering.exchange(true, std::memory_order_acquire)) std::this_thread::yield();
}
void end_registration() noexcept { is_registering.store(false, std::memory_order_release); }

#ifdef VMM_CAN_SEE_FORKS
void see_fork() noexcept {
  end_registration();
  forks_passed.fetch_add(1, std::memory_order_relaxed);
  for (const listener_block* in = &first_listeners; in != nullptr;
       in = in->next.load(std::memory_order_acquire)) {
    for (const std::atomic<fork_listener*>& place : in->listeners) {
      if (fork_listener* const listener = place.load(std::memory_order_acquire)) listener->forked();
    }
  }
  check(forks_passed.load(std::memory_order_relaxed) != 0,
        "I1: a child has its parent's process id");
}

// Registered before main: no driver can be older than the handlers.
[[maybe_unused]] const int fork_handler =
    pthread_atfork(begin_registration, end_registration, see_fork);
#endif

}  // namespace

bool fork_listener::listen() noexcept {
  if (slot_ != nullptr) return true;
  listener_block* in = &first_listeners;
  slot_ = take_place(*in, *this);
  while (slot_ == nullptr) {
    in = block_behind(*in);
    if (in == nullptr) return false;
    slot_ = take_place(*in, *this);
  }
  check(slot_ == nullptr || slot_->load(std::memory_order_relaxed) == this,
        "a listener's slot belongs to another listener");
  return slot_ != nullptr;
}

void fork_listener::stop() noexcept {
  if (slot_ == nullptr) return;
  check(slot_->load(std::memory_order_relaxed) == this,
        "a listener's slot belongs to another listener");
  slot_->store(nullptr, std::memory_order_release);
  slot_ = nullptr;
}

fork_listener::~fork_listener() {
  check(slot_ == nullptr, "an object that listens for forks goes away");
}

void leave_behind(const void* object) noexcept {
  if (object == nullptr) return;
  auto* const kept = new (std::nothrow) left_object{object, nullptr};
  if (kept == nullptr) return;
  kept->next = left_objects.load(std::memory_order_relaxed);
  while (!left_objects.compare_exchange_weak(kept->next, kept, std::memory_order_relaxed)) {
  }
}

// ---- writing -------------------------------------------------------------------------

#ifdef VMM_CAN_SEE_FORKS
namespace {

// The kernel sends them to the thread that writes.
class blocked_write_signals {
 public:
  blocked_write_signals() noexcept {
    ::sigemptyset(&both_);
    for (const int each : signals) ::sigaddset(&both_, each);
    ::sigset_t now{};
    ::sigemptyset(&now);
    (void)::sigpending(&now);
    for (std::size_t i = 0; i < signals.size(); ++i)
      was_pending_[i] = ::sigismember(&now, signals[i]) == 1;
    is_blocked_ = ::pthread_sigmask(SIG_BLOCK, &both_, &before_) == 0;
  }
  ~blocked_write_signals() {
    const int code = errno;
    ::sigset_t now{};
    ::sigemptyset(&now);
    if (is_blocked_) (void)::sigpending(&now);
    for (std::size_t i = 0; i < signals.size(); ++i) {
      if (was_pending_[i] || ::sigismember(&now, signals[i]) != 1) continue;
      ::sigset_t only{};
      ::sigemptyset(&only);
      ::sigaddset(&only, signals[i]);
      int taken = 0;
      (void)::sigwait(&only, &taken);
    }
    if (is_blocked_) (void)::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    errno = code;
  }
  blocked_write_signals(const blocked_write_signals&) = delete;
  blocked_write_signals& operator=(const blocked_write_signals&) = delete;

 private:
  static constexpr std::array signals{SIGPIPE, SIGXFSZ};
  ::sigset_t both_{};
  ::sigset_t before_{};
  std::array<bool, 2> was_pending_{};
  bool is_blocked_ = false;
};

}  // namespace

void without_write_signals(void (*work)(void*), void* context) noexcept {
  check(work != nullptr, "nothing is to be written");
  const blocked_write_signals blocked;
  work(context);
}

written_bytes write_whole(int descriptor, std::span<const std::byte> bytes) noexcept {
  constexpr int interrupted_max = 1000;
  written_bytes done;
  without_write_signals([&] {
    for (int left = interrupted_max; left > 0 && done.count < bytes.size();) {
      const std::span<const std::byte> rest = bytes.subspan(done.count);
      const auto count = ::write(descriptor, rest.data(), rest.size());
      if (count > 0) {
        done.count += static_cast<std::size_t>(count);
        left = interrupted_max;
      } else if (count < 0 && errno == EINTR) {
        --left;
      } else {
        done.failure = count < 0 ? errno : EIO;
        return;
      }
    }
    if (done.count < bytes.size()) done.failure = EINTR;
  });
  check(done.count <= bytes.size() && (done.failure != 0) == (done.count < bytes.size()),
        "a failed write wrote every byte, or a complete one failed");
  return done;
}
#else
void without_write_signals(void (*work)(void*), void* context) noexcept { work(context); }
#endif

// ---- users ---------------------------------------------------------------------------

namespace {

std::atomic<bool> exit_has_begun = false;

// Registered when an object gets its first user, so after the destructor of a static object: exit()
// calls the function before that destructor. A bound, since what is registered stays: programs have
// few drivers, and one that makes them in a loop has no static one after so many.
void notice_exit() noexcept {
  static std::atomic<std::uint32_t> registered_count = 0;
  constexpr std::uint32_t registered_count_max = 1024;
  if (registered_count.fetch_add(1, std::memory_order_relaxed) >= registered_count_max) return;
  begin_registration();
  (void)std::atexit([] { exit_has_begun.store(true, std::memory_order_relaxed); });
  end_registration();
}

}  // namespace

void user_count::add() noexcept {
  check(!is_gone_, "a pool or manager is made on a driver that was moved from");
  const std::uint32_t before = count_.fetch_add(1, std::memory_order_relaxed);
  check(before != std::numeric_limits<std::uint32_t>::max(), "an object has too many users");
  if (before == 0) notice_exit();
}

void user_count::remove() noexcept {
  const std::uint32_t before = count_.fetch_sub(1, std::memory_order_release);
  check(before > 0, "an object loses a user that it does not have");
  check(!is_gone_, "I2: an object that was moved from had a user");
}

void user_count::take(user_count& other) noexcept {
  check(&other != this, "an object takes over its own users");
  check(!other.has_users(),
        "a driver is moved while a pool or manager uses it: move it before they are made");
  is_gone_ = std::exchange(other.is_gone_, true);
}

void user_count::check_replaced() const noexcept {
  check(!has_users(),
        "a driver is assigned to while a pool or manager uses it: destroy those first");
}

void user_count::fail_destroyed() const noexcept {
  if (exit_has_begun.load(std::memory_order_relaxed)) return;
  const char* what = "a driver is destroyed while a pool or manager uses it: destroy those first";
  if (what_ == used_object::manager)
    what = "a manager is destroyed while a vector or buffer uses it: destroy those first";
  if (what_ == used_object::pool)
    what = "a stream pool is destroyed while a buffer uses it: destroy the buffers first";
  fail_check(what, std::source_location::current());
}

}  // namespace vmm

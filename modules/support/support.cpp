// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstdio>

#if __has_include(<pthread.h>)
#include <pthread.h>
#define VMM_CAN_SEE_FORKS
#endif

module vmm.support;

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

// What was given up, in a list that leak checkers follow.
struct left_object {
  const void* object = nullptr;
  left_object* next = nullptr;
};
std::atomic<left_object*> left_objects = nullptr;

#ifdef VMM_CAN_SEE_FORKS
// Registered before main: no driver can be older than the handler.
[[maybe_unused]] const int fork_handler =
    pthread_atfork(nullptr, nullptr, [] { forks_passed.fetch_add(1, std::memory_order_relaxed); });
#endif

}  // namespace

void leave_behind(const void* object) noexcept {
  if (object == nullptr) return;
  auto* const kept = new (std::nothrow) left_object{object, nullptr};
  if (kept == nullptr) return;
  kept->next = left_objects.load(std::memory_order_relaxed);
  while (!left_objects.compare_exchange_weak(kept->next, kept, std::memory_order_relaxed)) {
  }
}

// ---- users ---------------------------------------------------------------------------

namespace {

std::atomic<bool> exit_has_begun = false;

// Registered when an object gets its first user, so after its destructor where it is static: exit()
// calls the function before that destructor. A bound, since what is registered stays: programs have
// few drivers, and one that makes them in a loop has no static one after so many.
void notice_exit() noexcept {
  static std::atomic<std::uint32_t> registered_count = 0;
  constexpr std::uint32_t registered_count_max = 1024;
  if (registered_count.fetch_add(1, std::memory_order_relaxed) >= registered_count_max) return;
  (void)std::atexit([] { exit_has_begun.store(true, std::memory_order_relaxed); });
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
  check(!is_gone_, "an object that was moved from had a user");
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

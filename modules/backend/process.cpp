// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include <atomic>
#include <cstdint>
#include <new>

#if __has_include(<pthread.h>)
#include <pthread.h>
#endif

module vmm.backend;

namespace vmm {

// Alone on its cache line: every call reads it, and nothing writes beside it.
alignas(64) std::atomic<std::uint32_t> forks_passed = 0;

namespace {

// What was given up, in a list that leak checkers follow.
struct left_object {
  const void* object = nullptr;
  left_object* next = nullptr;
};
std::atomic<left_object*> left_objects = nullptr;

#if __has_include(<pthread.h>)
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

}  // namespace vmm

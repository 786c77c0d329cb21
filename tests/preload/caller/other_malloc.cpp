// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// A preloaded allocator, as jemalloc is: the process's malloc, which calls dlsym for the next one
// inside the first allocation, before anything is ready. Reports at the end that it served.
#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>

namespace {

using function = void* (*)(std::size_t);
std::atomic<function> next_malloc = nullptr;
std::atomic<bool> is_asking = false;
std::atomic<unsigned> served_count = 0;

[[gnu::destructor]] void say() {
  if (served_count.load() != 0) (void)!write(STDERR_FILENO, "other malloc served\n", 20);
}

}  // namespace

extern "C" [[gnu::visibility("default")]] void* malloc(std::size_t size) noexcept {
  function next = next_malloc.load(std::memory_order_acquire);
  if (next == nullptr) {
    // A dlsym that needs memory would recurse for ever.
    if (is_asking.exchange(true)) _exit(97);
    next = reinterpret_cast<function>(dlsym(RTLD_NEXT, "malloc"));
    is_asking.store(false);
    next_malloc.store(next, std::memory_order_release);
  }
  served_count.fetch_add(1, std::memory_order_relaxed);
  return next(size);
}

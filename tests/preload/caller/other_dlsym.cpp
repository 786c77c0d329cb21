// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Another preloaded library that overrides dlsym, as jemalloc's profilers and NCCL's do at times:
// it forwards everything to the next library, and reports at the end that it was called.
#include <dlfcn.h>
#include <unistd.h>

#include <atomic>

namespace {

std::atomic<unsigned> asked_count = 0;

[[gnu::destructor]] void say() {
  if (asked_count.load() != 0) (void)!write(STDERR_FILENO, "other dlsym called\n", 19);
}

}  // namespace

extern "C" [[gnu::visibility("default")]] void* dlsym(void* handle, const char* symbol) noexcept {
  using function = void* (*)(void*, const char*);
  function next = nullptr;
  for (const char* version : {"GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_2.17"}) {
    next = reinterpret_cast<function>(dlvsym(RTLD_NEXT, "dlsym", version));
    if (next != nullptr) break;
  }
  asked_count.fetch_add(1);
  return next == nullptr ? nullptr : next(handle, symbol);
}

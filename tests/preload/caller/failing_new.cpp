// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Linked into a second build of the preload library: its host memory, which is short at a test's
// choice.
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

thread_local int countdown = 0;
thread_local bool was_struck = false;

void* take(std::size_t size, std::size_t alignment = 16) {
  if (countdown > 0 && --countdown == 0) {
    was_struck = true;
    throw std::bad_alloc();
  }
  void* const made =
      std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment + alignment);
  if (made == nullptr) throw std::bad_alloc();
  return made;
}

}  // namespace

/// The nth request of the calling thread from now on fails, 0: none. Whether the last one set did.
extern "C" [[gnu::visibility("default")]] bool vmm_preload_fail_new(int nth) {
  const bool before = was_struck;
  was_struck = false;
  countdown = nth;
  return before;
}

void* operator new(std::size_t size) { return take(size); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return take(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* at) noexcept { std::free(at); }
void operator delete(void* at, std::size_t) noexcept { std::free(at); }
void operator delete(void* at, std::align_val_t) noexcept { std::free(at); }
void operator delete(void* at, std::size_t, std::align_val_t) noexcept { std::free(at); }

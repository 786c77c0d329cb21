// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// What a fuzz program does differently from others for the sake of speed, and finds no less by.
//
// The library has its tables in host memory of its own, mapped when a range, a segment or a pool is
// made and unmapped when it goes: up to half of an input's time without this file. Here such memory
// is kept for the next input that requests the same size. While it is kept, and behind the part
// that its present owner has made accessible, it is poisoned: AddressSanitizer reports what else
// would have been a fault. It is zero again when it is handed out.
//
// Only calls of the library come here (the linker's --wrap), from one thread.
#include <sanitizer/asan_interface.h>
#include <sys/mman.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

extern "C" {
void* __real_mmap(void* at, std::size_t size, int rights, int flags, int file, off_t offset);
int __real_munmap(void* at, std::size_t size);
int __real_mprotect(void* at, std::size_t size, int rights);
}

namespace {

constexpr std::size_t kept_bytes_max = std::size_t{1} << 20;  // of one mapping that is accessible

struct mapping {
  std::byte* base = nullptr;
  std::size_t size_bytes = 0;
  std::size_t left_bytes = 0;   // not given back by its owner
  std::byte* begin = nullptr;   // the owner's part begins here, in the same place each time
  std::size_t open_bytes = 0;   // from there on: accessible
  std::size_t given_bytes = 0;  // from there on: made accessible by its present owner
  mapping* next = nullptr;

  [[nodiscard]] bool contains(const void* at) const { return at >= base && at < base + size_bytes; }
};

mapping* in_use = nullptr;
mapping* kept = nullptr;
mapping* spare = nullptr;  // records of what was unmapped

// Takes the first one that fits off its list; nullptr when none does.
template <class Fits>
mapping* take(mapping*& list, const Fits& fits) {
  for (mapping** link = &list; *link != nullptr; link = &(*link)->next) {
    if (!fits(**link)) continue;
    mapping* const found = *link;
    *link = found->next;
    return found;
  }
  return nullptr;
}

// Not from the heap: an input that allocates more than it frees is run once more, for its leaks.
mapping* fresh_record() {
  static mapping records[1024];
  static std::size_t used_count = 0;
  if (used_count == std::size(records)) {
    std::fprintf(stderr, "kept_tables: more than %zu mappings at a time\n", std::size(records));
    std::abort();
  }
  return &records[used_count++];
}

void put(mapping*& list, mapping* entry) {
  entry->next = list;
  list = entry;
}

mapping* find(const void* at) {
  for (mapping* each = in_use; each != nullptr; each = each->next)
    if (each->contains(at)) return each;
  return nullptr;
}

void give_back(mapping& gone) {
  if (gone.open_bytes > kept_bytes_max) {
    __asan_unpoison_memory_region(gone.begin, gone.open_bytes);
    (void)__real_munmap(gone.base, gone.size_bytes);
    return put(spare, &gone);
  }
  if (gone.given_bytes != 0) std::memset(gone.begin, 0, gone.given_bytes);
  if (gone.open_bytes != 0) __asan_poison_memory_region(gone.begin, gone.open_bytes);
  put(kept, &gone);
}

}  // namespace

extern "C" {

void* __wrap_mmap(void* at, std::size_t size, int rights, int flags, int file, off_t offset) {
  const bool is_of_tables = at == nullptr && rights == PROT_NONE &&
                            flags == (MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE);
  if (!is_of_tables) return __real_mmap(at, size, rights, flags, file, offset);
  mapping* entry = take(kept, [size](const mapping& each) { return each.size_bytes == size; });
  if (entry == nullptr) {
    void* const fresh = __real_mmap(at, size, rights, flags, file, offset);
    if (fresh == MAP_FAILED) return fresh;
    entry = take(spare, [](const mapping&) { return true; });
    if (entry == nullptr) entry = fresh_record();
    *entry = {.base = static_cast<std::byte*>(fresh), .size_bytes = size};
  }
  entry->left_bytes = size;
  entry->given_bytes = 0;
  put(in_use, entry);
  return entry->base;
}

int __wrap_mprotect(void* at, std::size_t size, int rights) {
  mapping* const entry = find(at);
  if (entry == nullptr) return __real_mprotect(at, size, rights);
  auto* const begin = static_cast<std::byte*>(at);
  if (rights != (PROT_READ | PROT_WRITE) || !entry->contains(begin + size - 1)) std::abort();
  if (entry->begin != nullptr && entry->begin != begin) std::abort();
  if (size > entry->open_bytes) {
    if (const int answer = __real_mprotect(at, size, rights); answer != 0) return answer;
    entry->open_bytes = size;
  }
  entry->begin = begin;
  if (size > entry->given_bytes) entry->given_bytes = size;
  __asan_unpoison_memory_region(begin, entry->given_bytes);
  return 0;
}

int __wrap_munmap(void* at, std::size_t size) {
  mapping* const entry = find(at);
  if (entry == nullptr) return __real_munmap(at, size);
  if (size > entry->left_bytes) std::abort();
  entry->left_bytes -= size;
  if (entry->left_bytes == 0) {
    give_back(*take(in_use, [entry](const mapping& each) { return &each == entry; }));
  }
  return 0;
}

// What ASAN_OPTIONS can bring back when an input is run again: where memory was allocated, and the
// copies of stack frames by which the use of one that has ended is found. ./run fuzz runs the
// inputs that it keeps with both. Little freed memory waits, more than an input frees, so that it
// stays in the processor's caches.
__attribute__((used, visibility("default"))) const char* __asan_default_options() {
  return "malloc_context_size=0:detect_stack_use_after_return=0:quarantine_size_mb=4";
}
}

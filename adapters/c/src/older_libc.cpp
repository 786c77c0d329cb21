// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Lets a library built with a newer C library run with glibc 2.28: hidden functions with the names
// that the C++ runtime and the modules call, which forward to the versions in 2.28. Until 2.34
// these were in libpthread.so.0 and libdl.so.2, which newer versions still have as empty files: a
// library that links this needs both. adapters/python/tests/test_wheel.py checks the versions.
//
// Three have no older version. Exceptions find their tables by _dl_find_object (2.35): here by
// dl_iterate_phdr, as before 2.35. __libc_single_threaded (2.32) is false. pthread_cond_clockwait
// (2.30) is used if present, and is else a wait by the wall clock, which may last longer if that
// clock is set.
#include <link.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <ctime>

#if defined(__x86_64__)
#define VMM_FIRST "GLIBC_2.2.5"
#define VMM_FIRST_COND "GLIBC_2.3.2"
#define VMM_FIRST_INFO "GLIBC_2.3.3"
#define VMM_FIRST_AT "GLIBC_2.4"
constexpr int stat_version = 1;
#elif defined(__aarch64__)
#define VMM_FIRST "GLIBC_2.17"
#define VMM_FIRST_COND "GLIBC_2.17"
#define VMM_FIRST_INFO "GLIBC_2.17"
#define VMM_FIRST_AT "GLIBC_2.17"
constexpr int stat_version = 0;
#else
#error "not a processor whose first versions are known"
#endif

// The C library's `name` of that version, as older_NAME: declared by hand, since newer headers name
// the versions that they use.
#define VMM_OLDER(result, name, version, ...)                          \
  extern "C" result older_##name(__VA_ARGS__) noexcept;                \
  __asm__(".symver older_" #name "," #name "@" version);               \
  extern "C" __attribute__((visibility("hidden"))) result here_##name( \
      __VA_ARGS__) noexcept __asm__(#name)

using thread_id = unsigned long;

VMM_OLDER(void*, dlopen, VMM_FIRST, const char* path, int how);
void* here_dlopen(const char* path, int how) noexcept { return older_dlopen(path, how); }
VMM_OLDER(int, dlclose, VMM_FIRST, void* library);
int here_dlclose(void* library) noexcept { return older_dlclose(library); }
VMM_OLDER(int, dladdr, VMM_FIRST, const void* at, void* found);
int here_dladdr(const void* at, void* found) noexcept { return older_dladdr(at, found); }
VMM_OLDER(char*, dlerror, VMM_FIRST);
char* here_dlerror() noexcept { return older_dlerror(); }
VMM_OLDER(void*, dlvsym, VMM_FIRST, void* library, const char* name, const char* version);
void* here_dlvsym(void* library, const char* name, const char* version) noexcept {
  return older_dlvsym(library, name, version);
}
VMM_OLDER(int, dlinfo, VMM_FIRST_INFO, void* library, int what, void* out);
int here_dlinfo(void* library, int what, void* out) noexcept {
  return older_dlinfo(library, what, out);
}
#ifndef VMM_HAS_OWN_DLSYM
VMM_OLDER(void*, dlsym, VMM_FIRST, void* library, const char* name);
void* here_dlsym(void* library, const char* name) noexcept { return older_dlsym(library, name); }
#endif

VMM_OLDER(int, __fxstat, VMM_FIRST, int version, int file, void* out);
VMM_OLDER(int, __xstat, VMM_FIRST, int version, const char* path, void* out);
VMM_OLDER(int, __lxstat, VMM_FIRST, int version, const char* path, void* out);
VMM_OLDER(int, __fxstatat, VMM_FIRST_AT, int version, int folder, const char* path, void* out,
          int how);
extern "C" {
__attribute__((visibility("hidden"))) int here_fstat(int file, void* out) noexcept __asm__("fstat");
__attribute__((visibility("hidden"))) int here_stat(const char* path, void* out) noexcept
    __asm__("stat");
__attribute__((visibility("hidden"))) int here_lstat(const char* path, void* out) noexcept
    __asm__("lstat");
__attribute__((visibility("hidden"))) int here_fstatat(int folder, const char* path, void* out,
                                                       int how) noexcept __asm__("fstatat");
}
int here_fstat(int file, void* out) noexcept { return older___fxstat(stat_version, file, out); }
int here_stat(const char* path, void* out) noexcept {
  return older___xstat(stat_version, path, out);
}
int here_lstat(const char* path, void* out) noexcept {
  return older___lxstat(stat_version, path, out);
}
int here_fstatat(int folder, const char* path, void* out, int how) noexcept {
  return older___fxstatat(stat_version, folder, path, out, how);
}

VMM_OLDER(int, pthread_create, VMM_FIRST, thread_id* made, const void* how, void* (*start)(void*),
          void* argument);
int here_pthread_create(thread_id* made, const void* how, void* (*start)(void*),
                        void* argument) noexcept {
  return older_pthread_create(made, how, start, argument);
}
VMM_OLDER(int, pthread_join, VMM_FIRST, thread_id thread, void** answer);
int here_pthread_join(thread_id thread, void** answer) noexcept {
  return older_pthread_join(thread, answer);
}
VMM_OLDER(int, pthread_detach, VMM_FIRST, thread_id thread);
int here_pthread_detach(thread_id thread) noexcept { return older_pthread_detach(thread); }
VMM_OLDER(int, pthread_sigmask, VMM_FIRST, int how, const void* set, void* before);
int here_pthread_sigmask(int how, const void* set, void* before) noexcept {
  return older_pthread_sigmask(how, set, before);
}
VMM_OLDER(int, pthread_key_create, VMM_FIRST, unsigned* key, void (*end)(void*));
int here_pthread_key_create(unsigned* key, void (*end)(void*)) noexcept {
  return older_pthread_key_create(key, end);
}
VMM_OLDER(int, __pthread_key_create, VMM_FIRST, unsigned* key, void (*end)(void*));
int here___pthread_key_create(unsigned* key, void (*end)(void*)) noexcept {
  return older___pthread_key_create(key, end);
}
VMM_OLDER(int, pthread_setspecific, VMM_FIRST, unsigned key, const void* value);
int here_pthread_setspecific(unsigned key, const void* value) noexcept {
  return older_pthread_setspecific(key, value);
}
VMM_OLDER(int, pthread_mutex_trylock, VMM_FIRST, void* mutex);
int here_pthread_mutex_trylock(void* mutex) noexcept { return older_pthread_mutex_trylock(mutex); }
VMM_OLDER(int, pthread_rwlock_init, VMM_FIRST, void* lock, const void* how);
int here_pthread_rwlock_init(void* lock, const void* how) noexcept {
  return older_pthread_rwlock_init(lock, how);
}
VMM_OLDER(int, pthread_rwlock_rdlock, VMM_FIRST, void* lock);
int here_pthread_rwlock_rdlock(void* lock) noexcept { return older_pthread_rwlock_rdlock(lock); }
VMM_OLDER(int, pthread_rwlock_tryrdlock, VMM_FIRST, void* lock);
int here_pthread_rwlock_tryrdlock(void* lock) noexcept {
  return older_pthread_rwlock_tryrdlock(lock);
}
VMM_OLDER(int, pthread_rwlock_wrlock, VMM_FIRST, void* lock);
int here_pthread_rwlock_wrlock(void* lock) noexcept { return older_pthread_rwlock_wrlock(lock); }
VMM_OLDER(int, pthread_rwlock_unlock, VMM_FIRST, void* lock);
int here_pthread_rwlock_unlock(void* lock) noexcept { return older_pthread_rwlock_unlock(lock); }
VMM_OLDER(int, pthread_rwlockattr_init, VMM_FIRST, void* how);
int here_pthread_rwlockattr_init(void* how) noexcept { return older_pthread_rwlockattr_init(how); }
VMM_OLDER(int, pthread_rwlockattr_destroy, VMM_FIRST, void* how);
int here_pthread_rwlockattr_destroy(void* how) noexcept {
  return older_pthread_rwlockattr_destroy(how);
}
VMM_OLDER(int, pthread_rwlockattr_setkind_np, VMM_FIRST, void* how, int kind);
int here_pthread_rwlockattr_setkind_np(void* how, int kind) noexcept {
  return older_pthread_rwlockattr_setkind_np(how, kind);
}

// The function called once may throw: no noexcept here.
extern "C" int older_pthread_once(int* done, void (*what)());
__asm__(".symver older_pthread_once,pthread_once@" VMM_FIRST);
extern "C" __attribute__((visibility("hidden"))) int here_pthread_once(
    int* done, void (*what)()) __asm__("pthread_once");
int here_pthread_once(int* done, void (*what)()) { return older_pthread_once(done, what); }

// ---- what has no older version -------------------------------------------------------

extern "C" {
extern __attribute__((visibility("hidden"))) char here_single_threaded __asm__(
    "__libc_single_threaded");
__attribute__((visibility("hidden"))) int here_pthread_cond_clockwait(
    void* condition, void* mutex, int clock,
    const timespec* until) __asm__("pthread_cond_clockwait");
int older_pthread_cond_timedwait(void* condition, void* mutex, const timespec* until);
__asm__(".symver older_pthread_cond_timedwait,pthread_cond_timedwait@" VMM_FIRST_COND);
}
char here_single_threaded = 0;

namespace {

constexpr long second_ns = 1'000'000'000;
using clock_wait = int (*)(void*, void*, int, const timespec*);
std::atomic<bool> has_looked{false};
std::atomic<clock_wait> found_clock_wait{nullptr};

clock_wait find_clock_wait() noexcept {
  if (!has_looked.load(std::memory_order_acquire)) {
    void* const found = older_dlvsym(nullptr, "pthread_cond_clockwait", "GLIBC_2.30");
    found_clock_wait.store(reinterpret_cast<clock_wait>(found), std::memory_order_relaxed);
    has_looked.store(true, std::memory_order_release);
  }
  return found_clock_wait.load(std::memory_order_relaxed);
}

// As struct dl_find_object of <dlfcn.h>.
struct object_found {
  unsigned long long flags;
  void* begin;
  void* end;
  void* link_map;
  void* exception_tables;
  unsigned long long reserved[7];
};
struct object_search {
  std::uintptr_t at;
  object_found* out;
};

int look_into(dl_phdr_info* in, std::size_t, void* context) noexcept {
  auto& search = *static_cast<object_search*>(context);
  const ElfW(Phdr)* tables = nullptr;
  std::uintptr_t begin = ~std::uintptr_t{0};
  std::uintptr_t end = 0;
  bool is_here = false;
  for (int i = 0; i < in->dlpi_phnum; ++i) {
    const ElfW(Phdr)& part = in->dlpi_phdr[i];
    if (part.p_type == PT_GNU_EH_FRAME) tables = &part;
    if (part.p_type != PT_LOAD) continue;
    const std::uintptr_t first = in->dlpi_addr + part.p_vaddr;
    begin = first < begin ? first : begin;
    end = first + part.p_memsz > end ? first + part.p_memsz : end;
    is_here = is_here || (search.at >= first && search.at - first < part.p_memsz);
  }
  if (!is_here || tables == nullptr) return 0;
  *search.out = {0,
                 reinterpret_cast<void*>(begin),
                 reinterpret_cast<void*>(end),
                 nullptr,
                 reinterpret_cast<void*>(in->dlpi_addr + tables->p_vaddr),
                 {}};
  return 1;
}

}  // namespace

int here_pthread_cond_clockwait(void* condition, void* mutex, int clock, const timespec* until) {
  if (const clock_wait real = find_clock_wait(); real != nullptr)
    return real(condition, mutex, clock, until);
  timespec now{};
  timespec wall{};
  if (clock_gettime(clock, &now) != 0 || clock_gettime(CLOCK_REALTIME, &wall) != 0) return EINVAL;
  wall.tv_sec += until->tv_sec - now.tv_sec;
  wall.tv_nsec += until->tv_nsec - now.tv_nsec;
  if (wall.tv_nsec < 0) {
    wall.tv_nsec += second_ns;
    --wall.tv_sec;
  } else if (wall.tv_nsec >= second_ns) {
    wall.tv_nsec -= second_ns;
    ++wall.tv_sec;
  }
  return older_pthread_cond_timedwait(condition, mutex, &wall);
}

extern "C" __attribute__((visibility("hidden"))) int here_dl_find_object(void* at,
                                                                         object_found* out) noexcept
    __asm__("_dl_find_object");
int here_dl_find_object(void* at, object_found* out) noexcept {
  object_search search{reinterpret_cast<std::uintptr_t>(at), out};
  return dl_iterate_phdr(look_into, &search) == 1 ? 0 : -1;
}

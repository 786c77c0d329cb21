// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// dlsym runs before anything else is ready, in processes that have nothing to do with CUDA: this
// file uses no heap, no lock and no C++ runtime, and is compiled without sanitizers.
#include "routes.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "settings.h"

extern "C" {
#define VMM_ENTRY(symbol, name, version, streams, handler, parameters, arguments) \
  vmm::preload::result_code symbol parameters;
using vmm::preload::access_description;
using vmm::preload::context_id;
using vmm::preload::device_id;
using vmm::preload::device_pointer;
using vmm::preload::flag_set;
using vmm::preload::graph_id;
using vmm::preload::ipc_handle;
using vmm::preload::memory_properties;
using vmm::preload::physical_id;
using vmm::preload::pool_id;
using vmm::preload::stream_id;
#include "entries.inc"
#undef VMM_ENTRY
namespace nvml = vmm::preload::nvml;
#define VMM_NVML_ENTRY(symbol, parameters, arguments) nvml::result_code symbol parameters;
#include "nvml_entries.inc"
#undef VMM_NVML_ENTRY
}

namespace vmm::preload {
namespace {

struct route {
  const char* symbol;
  const char* name;
  int version;
  bool per_thread;
  void* ours;
};

// Those of the driver come first.
constexpr std::size_t route_count = entry_count + nvml_entry_count;

constexpr bool legacy = false;
constexpr bool per_thread = true;

const route routes[route_count] = {
#define VMM_ENTRY(symbol, name, version, streams, handler, parameters, arguments) \
  {#symbol, name, version, streams, reinterpret_cast<void*>(&symbol)},
#include "entries.inc"
#undef VMM_ENTRY
#define VMM_NVML_ENTRY(symbol, parameters, arguments) \
  {#symbol, nullptr, 0, legacy, reinterpret_cast<void*>(&symbol)},
#include "nvml_entries.inc"
#undef VMM_NVML_ENTRY
};

// Found by dlsym, and by cuGetProcAddress with the version of the entry.
std::atomic<void*> named[route_count];
std::atomic<void*> found_by_version[entry_count];
std::atomic<bool> has_learned;

// A library whose calls are intercepted, where the process has one.
struct library {
  const char* file;    // begins with '/', which is not in it again
  const char* soname;  // in the loader
  const char* symbol;  // one that this library does not export
  std::atomic<void*> handle;
  std::atomic<void*> base;  // where the loader put it
  std::atomic<const char*> path;

  [[nodiscard]] bool has_name(const char* of) const noexcept {
    const char* const slash = of == nullptr ? nullptr : std::strrchr(of, '/');
    const char* const name = slash == nullptr ? of : slash + 1;
    return name != nullptr && std::strncmp(name, file + 1, std::strlen(file + 1)) == 0;
  }
};

constinit library driver{"/libcuda.so", "libcuda.so.1", "cuInit", {}, {}, {}};
constinit library nvml_library{"/libnvidia-ml.so", "libnvidia-ml.so.1", "nvmlInit_v2", {}, {}, {}};

library& library_of(std::size_t index) noexcept {
  return index < entry_count ? driver : nvml_library;
}

using dlsym_function = void* (*)(void*, const char*);
std::atomic<dlsym_function> next_dlsym;

// In a scope, dlsym with the C library's version.
dlsym_function versioned_dlsym(void* scope) noexcept {
  void* found = nullptr;
  for (const char* version : {"GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_2.17"}) {
    if (found == nullptr) found = dlvsym(scope, "dlsym", version);
  }
  return reinterpret_cast<dlsym_function>(found);
}

// The next dlsym with the C library's version: the C library's, or that of another preloaded
// library. One without a version may be a driver's own, which would call this one again. No known
// library overrides dlvsym. At the driver boundary the C library may come before this one.
dlsym_function real_dlsym() noexcept {
  dlsym_function found = next_dlsym.load(std::memory_order_acquire);
  if (found != nullptr) return found;
  found = versioned_dlsym(RTLD_NEXT);
  for (const char* name : {"libc.so.6", "libdl.so.2"}) {
    void* library = found == nullptr ? dlopen(name, RTLD_LAZY | RTLD_NOLOAD) : nullptr;
    if (library != nullptr) found = versioned_dlsym(library);
  }
  next_dlsym.store(found, std::memory_order_release);
  return found;
}

// Not a tail call: the loader derives the start of RTLD_NEXT from the return address.
[[gnu::noinline]] void* look_up(void* handle, const char* symbol) noexcept {
  void* volatile found = real_dlsym()(handle, symbol);
  return found;
}

bool is_our_own(const void* address) noexcept {
  for (const route& each : routes) {
    if (each.ours == address) return true;
  }
  return false;
}

// Where the library behind a handle lies. One of the same file in another namespace of the loader
// lies elsewhere.
void* base_of(void* handle) noexcept {
  link_map* map = nullptr;
  Dl_info about{};
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || dladdr(map->l_ld, &about) == 0) return nullptr;
  return about.dli_fbase;
}

// Takes the library that an address lies in, if it has that name, and keeps it loaded. A second
// one, of another file or in another namespace, is not taken.
bool adopt(library& as, void* address) noexcept {
  Dl_info about{};
  if (dladdr(address, &about) == 0 || !as.has_name(about.dli_fname)) return false;
  void* base = as.base.load(std::memory_order_acquire);
  if (base != nullptr) return base == about.dli_fbase;
  void* handle = dlopen(about.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
  if (handle == nullptr) return false;
  if (base_of(handle) != about.dli_fbase ||
      (!as.base.compare_exchange_strong(base, about.dli_fbase) && base != about.dli_fbase)) {
    dlclose(handle);
    return false;
  }
  as.path.store(about.dli_fname, std::memory_order_release);
  as.handle.store(handle, std::memory_order_release);
  return true;
}

// Whether text of a list of mappings names a file; called in pieces.
class file_in_text {
 public:
  explicit file_in_text(const char* file) noexcept : wanted_(file) {}
  void look_at(const char* text, std::size_t size) noexcept {
    for (std::size_t i = 0; i < size && !is_found_; ++i) {
      if (text[i] != wanted_[matched_])
        matched_ = text[i] == wanted_[0] ? 1 : 0;
      else
        ++matched_;
      is_found_ = wanted_[matched_] == '\0';
    }
  }
  [[nodiscard]] bool is_found() const noexcept { return is_found_; }

 private:
  const char* const wanted_;
  std::size_t matched_ = 0;
  bool is_found_ = false;
};

// Whether the process maps the library. Queries the system instead of the loader: dlopen
// of a missing library reads the loader's list of all libraries, which in a forked child may be
// incomplete if another thread of the parent was changing it.
bool is_mapped(const library& which) noexcept {
  const int before = errno;
  const int list = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  file_in_text mapped(which.file);
  char text[4096];
  while (list >= 0 && !mapped.is_found()) {
    const ssize_t size = read(list, text, sizeof text);
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) break;
    mapped.look_at(text, static_cast<std::size_t>(size));
  }
  if (list >= 0) close(list);
  errno = before;
  return list < 0 || mapped.is_found();
}

// Its handle, where the process has it.
void* find(library& which) noexcept {
  void* handle = which.handle.load(std::memory_order_acquire);
  if (handle != nullptr) return handle;
  void* known = look_up(RTLD_NEXT, which.symbol);
  if (known == nullptr) {
    if (!is_mapped(which)) return nullptr;
    void* loaded = dlopen(which.soname, RTLD_LAZY | RTLD_NOLOAD);
    if (loaded == nullptr) return nullptr;
    known = look_up(loaded, which.symbol);
    dlclose(loaded);
  }
  if (known == nullptr || !adopt(which, known)) return nullptr;
  return which.handle.load(std::memory_order_acquire);
}

// One library of a kind is intercepted in a process; a second one's functions stay its own.
bool adopt_entry(std::size_t index, void* real) noexcept {
  if (!adopt(library_of(index), real)) return false;
  void* before = nullptr;
  return named[index].compare_exchange_strong(before, real) || before == real;
}

std::size_t index_of_name(const char* symbol) noexcept {
  const bool is_of_cuda =
      symbol[0] == 'c' && symbol[1] == 'u' && symbol[2] >= 'A' && symbol[2] <= 'Z';
  if (!is_of_cuda && std::strncmp(symbol, "nvml", 4) != 0) return route_count;
  std::size_t i = is_of_cuda ? 0 : entry_count;
  while (i < route_count && std::strcmp(routes[i].symbol, symbol) != 0) ++i;
  return i;
}

void* real_at(std::size_t index) noexcept {
  void* real = named[index].load(std::memory_order_acquire);
  if (real != nullptr) return real;
  if (index < entry_count) real = found_by_version[index].load(std::memory_order_acquire);
  if (real != nullptr) return real;
  void* handle = find(library_of(index));
  if (handle == nullptr) return nullptr;
  real = look_up(handle, routes[index].symbol);
  if (real == nullptr || is_our_own(real)) return nullptr;
  named[index].store(real, std::memory_order_release);
  return real;
}

void* symbol_in(library& which, const char* symbol) noexcept {
  void* handle = find(which);
  void* found = handle == nullptr ? nullptr : look_up(handle, symbol);
  return found == nullptr || is_our_own(found) ? nullptr : found;
}

using find_new_function = result_code (*)(const char*, void**, int, flag_set, int*);
using find_old_function = result_code (*)(const char*, void**, int, flag_set);

void* find_in_driver(const route& wanted) noexcept {
  const flag_set flags = wanted.per_thread ? find_per_thread_stream : find_legacy_stream;
  void* found = nullptr;
  int why = 0;
  if (void* finder = real_of(entry_id::cuGetProcAddress_v2); finder != nullptr) {
    const auto find = reinterpret_cast<find_new_function>(finder);
    if (find(wanted.name, &found, wanted.version, flags, &why) != code::success) return nullptr;
  } else if (void* old = real_of(entry_id::cuGetProcAddress); old != nullptr) {
    const auto find = reinterpret_cast<find_old_function>(old);
    if (find(wanted.name, &found, wanted.version, flags) != code::success) return nullptr;
  }
  return found;
}

// Where the driver lacks a per-thread form it returns the legacy function, another entry's.
bool is_own_form(std::size_t index, const void* found) noexcept {
  for (std::size_t i = 0; i < entry_count; ++i) {
    if (i != index && (named[i].load(std::memory_order_acquire) == found ||
                       found_by_version[i].load(std::memory_order_acquire) == found)) {
      return false;
    }
  }
  return true;
}

// The addresses that the driver's own finder gives out, which need not be the exported ones.
void fill_routes() noexcept {
  if (has_learned.load(std::memory_order_acquire)) return;
  for (std::size_t i = 0; i < entry_count; ++i) {
    (void)real_of(static_cast<entry_id>(i));
  }
  for (std::size_t i = 0; i < entry_count; ++i) {
    void* found = find_in_driver(routes[i]);
    if (found == nullptr || is_our_own(found) || !is_own_form(i, found)) continue;
    found_by_version[i].store(found, std::memory_order_release);
  }
  has_learned.store(true, std::memory_order_release);
}

}  // namespace

const char* symbol_of(entry_id entry) noexcept {
  return routes[static_cast<std::size_t>(entry)].symbol;
}

void* real_of(entry_id entry) noexcept { return real_at(static_cast<std::size_t>(entry)); }

void* real_of(nvml_entry entry) noexcept {
  return real_at(entry_count + static_cast<std::size_t>(entry));
}

void* driver_symbol(const char* symbol) noexcept { return symbol_in(driver, symbol); }

void* nvml_symbol(const char* symbol) noexcept { return symbol_in(nvml_library, symbol); }

void* replacement_of(void* found) noexcept {
  fill_routes();
  for (std::size_t i = 0; i < entry_count; ++i) {
    if (named[i].load(std::memory_order_acquire) == found ||
        found_by_version[i].load(std::memory_order_acquire) == found) {
      return routes[i].ours;
    }
  }
  return found;
}

const char* driver_file() noexcept { return driver.path.load(std::memory_order_acquire); }

}  // namespace vmm::preload

// ---- dlsym --------------------------------------------------------------------------------------

namespace {

/// In two registers: whether this is the result, and the result.
struct chosen {
  std::uintptr_t is_answered;
  void* found;
};

}  // namespace

extern "C" {

// The library's result of dlsym for a name; the code below calls it before the real one.
[[gnu::visibility("hidden"), gnu::used]] chosen vmm_preload_choose(void* handle,
                                                                   const char* symbol) {
  using namespace vmm::preload;
  if (symbol == nullptr) return {0, nullptr};
  const std::size_t index = index_of_name(symbol);
  if (index == route_count) return {0, nullptr};
  if (handle == RTLD_NEXT) {
    // Our name comes next for the program itself; without a driver no such name exists.
    if (real_at(index) != nullptr) return {0, nullptr};
    return {1, look_up(RTLD_NEXT, symbol)};
  }
  void* found = look_up(handle, symbol);
  if (found == nullptr) return {1, nullptr};
  if (is_our_own(found)) {
    // The handle is of all that the program has, and we come first. Without a driver there would be
    // no such name.
    if (real_at(index) != nullptr) return {1, found};
    return {1, look_up(RTLD_NEXT, symbol)};
  }
  if (is_passive() || !adopt_entry(index, found)) return {1, found};
  return {1, routes[index].ours};
}

[[gnu::visibility("hidden"), gnu::used]] void* vmm_preload_real_dlsym() {
  return reinterpret_cast<void*>(vmm::preload::real_dlsym());
}

// What our own code, and the parts of vmm in it, means by dlsym: the linker's --wrap.
[[gnu::visibility("hidden"), gnu::used]] void* __wrap_dlsym(void* handle, const char* symbol) {
  return vmm::preload::look_up(handle, symbol);
}
}

// dlsym depends on its caller: for RTLD_NEXT and RTLD_DEFAULT the result depends on the return
// address. So other names are forwarded by a jump, with the caller's return address in place. It
// has the versions of the C library's dlsym: another preloaded library that forwards to the next
// one looks it up by dlvsym, which finds no name without a version.
#if defined(__x86_64__)
asm(R"(
  .text
  .globl vmm_preload_dlsym, vmm_preload_dlsym_before
  .type vmm_preload_dlsym, @function
  .type vmm_preload_dlsym_before, @function
  .symver vmm_preload_dlsym, dlsym@@GLIBC_2.34, remove
  .symver vmm_preload_dlsym_before, dlsym@GLIBC_2.2.5, remove
vmm_preload_dlsym:
vmm_preload_dlsym_before:
  endbr64
  pushq %rdi
  pushq %rsi
  subq $8, %rsp
  call vmm_preload_choose
  testq %rax, %rax
  jne 1f
  call vmm_preload_real_dlsym
  addq $8, %rsp
  popq %rsi
  popq %rdi
  jmp *%rax
1:
  movq %rdx, %rax
  addq $24, %rsp
  ret
  .size vmm_preload_dlsym, .-vmm_preload_dlsym
  .size vmm_preload_dlsym_before, .-vmm_preload_dlsym_before
)");
#elif defined(__aarch64__)
asm(R"(
  .text
  .globl vmm_preload_dlsym, vmm_preload_dlsym_before
  .type vmm_preload_dlsym, %function
  .type vmm_preload_dlsym_before, %function
  .symver vmm_preload_dlsym, dlsym@@GLIBC_2.34, remove
  .symver vmm_preload_dlsym_before, dlsym@GLIBC_2.17, remove
vmm_preload_dlsym:
vmm_preload_dlsym_before:
  stp x29, x30, [sp, #-32]!
  mov x29, sp
  stp x0, x1, [sp, #16]
  bl vmm_preload_choose
  cbnz x0, 1f
  bl vmm_preload_real_dlsym
  mov x16, x0
  ldp x0, x1, [sp, #16]
  ldp x29, x30, [sp], #32
  br x16
1:
  mov x0, x1
  ldp x29, x30, [sp], #32
  ret
  .size vmm_preload_dlsym, .-vmm_preload_dlsym
  .size vmm_preload_dlsym_before, .-vmm_preload_dlsym_before
)");
#else
#error "the preload library supports x86-64 and AArch64"
#endif

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Stands before the real loader with the same entry points, calls the loader, and notes each
// refusal that the driver behind it did not make: those are complaints of the loader or a layer.
#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <string_view>

#include <level_zero/ze_api.h>

#include "controls.h"

namespace {

struct noted {
  std::mutex lock;
  std::string complaints;
  unsigned long long calls = 0;
};

noted& all() {
  static noted* const only = new noted;  // never destroyed: threads may outlive main
  return *only;
}

void* open_or_abort(const char* name) {
  void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) std::abort();
  return library;
}

void* loader() {
  static void* const library = open_or_abort("libze_loader.so.1");
  return library;
}

// Programs under test cannot ask: they are heard at their end.
struct last_word {
  ~last_word() {
    const std::lock_guard<std::mutex> hold(all().lock);
    if (!all().complaints.empty()) std::fprintf(stderr, "witness: %s", all().complaints.c_str());
  }
};
const last_word at_end;

// The driver is loaded a second time by name, which gives the same one.
decltype(&vmm_ze_last) driver_last() {
  static const auto found = reinterpret_cast<decltype(&vmm_ze_last)>(
      dlsym(open_or_abort(std::getenv("ZE_ENABLE_ALT_DRIVERS")), "vmm_ze_last"));
  return found;
}

// The layer of loader 1.8 refuses a null start, with which the specification has the driver choose.
// The backend asks for that only where the driver gave nothing at another start.
bool is_known(std::string_view symbol, ze_result_t code) {
  return symbol == "zeVirtualMemReserve" && code == ZE_RESULT_ERROR_INVALID_NULL_POINTER;
}

void note(const char* symbol, ze_result_t code, unsigned long long before) {
  unsigned long long after = 0;
  int from_driver = 0;
  driver_last()(&after, &from_driver);
  const bool is_drivers_own = after != before && from_driver == static_cast<int>(code);
  noted& n = all();
  const std::lock_guard<std::mutex> hold(n.lock);
  ++n.calls;
  if (code == ZE_RESULT_SUCCESS || is_drivers_own || is_known(symbol, code)) return;
  n.complaints += symbol;
  n.complaints += ": code " + std::to_string(static_cast<int>(code)) + "\n";
}

template <std::size_t N>
struct text {
  constexpr text(const char (&from)[N]) { std::copy_n(from, N, value); }
  char value[N];
};

template <text Symbol, class Function>
struct through;
template <text Symbol, class... Arguments>
struct through<Symbol, ze_result_t(Arguments...)> {
  static ze_result_t call(Arguments... arguments) {
    using function = ze_result_t (*)(Arguments...);
    static const auto real = reinterpret_cast<function>(dlsym(loader(), Symbol.value));
    unsigned long long before = 0;
    int unused = 0;
    driver_last()(&before, &unused);
    const ze_result_t code = real(arguments...);
    note(Symbol.value, code, before);
    return code;
  }
};

}  // namespace

// The entry point is whatever its resolver answers when the library is loaded.
#define WITNESS(symbol)                                                   \
  extern "C" __attribute__((used)) decltype(&symbol) resolve_##symbol() { \
    return &through<#symbol, decltype(symbol)>::call;                     \
  }                                                                       \
  extern "C" decltype(symbol) symbol __attribute__((ifunc("resolve_" #symbol)))

WITNESS(zeInit);
WITNESS(zeDriverGet);
WITNESS(zeDriverGetApiVersion);
WITNESS(zeDriverGetProperties);
WITNESS(zeDeviceGet);
WITNESS(zeDeviceGetProperties);
WITNESS(zeDeviceGetMemoryProperties);
WITNESS(zeDeviceGetCommandQueueGroupProperties);
WITNESS(zeContextCreate);
WITNESS(zeContextDestroy);
WITNESS(zeVirtualMemQueryPageSize);
WITNESS(zeVirtualMemReserve);
WITNESS(zeVirtualMemFree);
WITNESS(zePhysicalMemCreate);
WITNESS(zePhysicalMemDestroy);
WITNESS(zeVirtualMemMap);
WITNESS(zeVirtualMemUnmap);
WITNESS(zeCommandListCreateImmediate);
WITNESS(zeCommandListDestroy);
WITNESS(zeCommandListAppendBarrier);
WITNESS(zeCommandListAppendMemoryCopy);
WITNESS(zeCommandListAppendMemoryFill);
WITNESS(zeEventPoolCreate);
WITNESS(zeEventPoolDestroy);
WITNESS(zeEventCreate);
WITNESS(zeEventDestroy);
WITNESS(zeEventQueryStatus);
WITNESS(zeEventHostSynchronize);
WITNESS(zeEventHostReset);

const char* vmm_witness_complaints() {
  static thread_local std::string copy;
  noted& n = all();
  const std::lock_guard<std::mutex> hold(n.lock);
  copy = n.complaints;
  return copy.c_str();
}

unsigned long long vmm_witness_calls() {
  noted& n = all();
  const std::lock_guard<std::mutex> hold(n.lock);
  return n.calls;
}

void vmm_witness_clear() {
  noted& n = all();
  const std::lock_guard<std::mutex> hold(n.lock);
  n.complaints.clear();
}

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Stands before the real loader with the same entry points, calls the loader, and notes each
// refusal that the driver behind it did not make: those are complaints of the loader or a layer.
#include <dlfcn.h>

#include <level_zero/ze_api.h>

#include "../../../tools/program/standard.hpp"
#include "../../support/planned_failures.hpp"
#include "controls.h"
#include "detour.h"

namespace {

struct noted {
  std::mutex mutex;
  std::string complaints;
  unsigned long long calls = 0;
  std::map<std::string, void*, std::less<>> detours;
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

// Programs under test have no call for them: they are printed at their end.
struct last_word {
  ~last_word() {
    const locked n(all());
    if (!n->complaints.empty()) std::fprintf(stderr, "witness: %s", n->complaints.c_str());
  }
};
const last_word last_words;

// ZE_ENABLE_ALT_DRIVERS is a list with commas. Each driver is loaded a second time by name, which
// gives the same one.
const std::vector<decltype(&vmm_ze_last)>& drivers_last() {
  static const auto found = [] {
    std::vector<decltype(&vmm_ze_last)> all;
    std::string_view names = std::getenv("ZE_ENABLE_ALT_DRIVERS");
    while (!names.empty()) {
      const std::string name(names.substr(0, names.find(',')));
      names.remove_prefix(std::min(names.size(), name.size() + 1));
      all.push_back(reinterpret_cast<decltype(&vmm_ze_last)>(
          dlsym(open_or_abort(name.c_str()), "vmm_ze_last")));
    }
    return all;
  }();
  return found;
}

constexpr std::size_t driver_count_max = 4;

// How many calls of this thread have reached each driver.
struct reached {
  unsigned long long count[driver_count_max] = {};
  int code[driver_count_max] = {};
};
reached look() {
  reached now;
  const auto& all = drivers_last();
  if (all.size() > driver_count_max) std::abort();
  for (std::size_t i = 0; i < all.size(); ++i) all[i](&now.count[i], &now.code[i]);
  return now;
}

// Whether the driver refused this thread's last zeVirtualMemReserve.
thread_local bool reserve_was_refused = false;
std::atomic<void (*)(bool)> hook = nullptr;

// The layer of loader 1.8 refuses a null start, with which the specification has the driver choose.
// The backend requests that only if the driver refused another start.
bool is_known(std::string_view symbol, ze_result_t code) {
  return symbol == "zeVirtualMemReserve" && code == ZE_RESULT_ERROR_INVALID_NULL_POINTER &&
         reserve_was_refused;
}

void note(const char* symbol, ze_result_t code, const reached& before) {
  const reached after = look();
  bool is_drivers_own = false;
  for (std::size_t i = 0; i < driver_count_max; ++i)
    is_drivers_own |= after.count[i] != before.count[i] && after.code[i] == static_cast<int>(code);
  const bool is_known_refusal = is_known(symbol, code);
  if (std::string_view(symbol) == "zeVirtualMemReserve")
    reserve_was_refused = code != ZE_RESULT_SUCCESS && is_drivers_own;
  const locked n(all());
  ++n->calls;
  if (code == ZE_RESULT_SUCCESS || is_drivers_own || is_known_refusal) return;
  n->complaints += std::string(symbol) + ": code " + std::to_string(static_cast<int>(code)) + "\n";
}

void* detour_of(std::string_view symbol) {
  const locked n(all());
  const auto found = n->detours.find(symbol);
  return found == n->detours.end() ? nullptr : found->second;
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
  using function = ze_result_t (*)(Arguments...);
  static ze_result_t checked(Arguments... arguments) {
    const auto notify = hook.load();
    if (notify != nullptr) notify(true);
    static const auto real = reinterpret_cast<function>(dlsym(loader(), Symbol.value));
    const reached before = look();
    const ze_result_t code = real(arguments...);
    note(Symbol.value, code, before);
    if (notify != nullptr) notify(false);
    return code;
  }
  static ze_result_t call(Arguments... arguments) {
    void* const other = detour_of(Symbol.value);
    return (other != nullptr ? reinterpret_cast<function>(other) : &checked)(arguments...);
  }
};

}  // namespace

// The entry point is its resolver's result when the library is loaded.
#define WITNESS(symbol)                                                   \
  extern "C" __attribute__((used)) decltype(&symbol) resolve_##symbol() { \
    return &through<#symbol, decltype(symbol)>::call;                     \
  }                                                                       \
  extern "C" decltype(symbol) symbol __attribute__((ifunc("resolve_" #symbol)))

#define WITNESSED(X)                        \
  X(zeInit)                                 \
  X(zeDriverGet)                            \
  X(zeDriverGetApiVersion)                  \
  X(zeDriverGetProperties)                  \
  X(zeDeviceGet)                            \
  X(zeDeviceGetProperties)                  \
  X(zeDeviceGetMemoryProperties)            \
  X(zeDeviceGetCommandQueueGroupProperties) \
  X(zeContextCreate)                        \
  X(zeContextDestroy)                       \
  X(zeVirtualMemQueryPageSize)              \
  X(zeVirtualMemReserve)                    \
  X(zeVirtualMemFree)                       \
  X(zePhysicalMemCreate)                    \
  X(zePhysicalMemDestroy)                   \
  X(zeVirtualMemMap)                        \
  X(zeVirtualMemUnmap)                      \
  X(zeCommandListCreateImmediate)           \
  X(zeCommandListDestroy)                   \
  X(zeCommandListAppendBarrier)             \
  X(zeCommandListAppendMemoryCopy)          \
  X(zeCommandListAppendMemoryFill)          \
  X(zeEventPoolCreate)                      \
  X(zeEventPoolDestroy)                     \
  X(zeEventCreate)                          \
  X(zeEventDestroy)                         \
  X(zeEventQueryStatus)                     \
  X(zeEventHostSynchronize)                 \
  X(zeEventHostReset)

#define WITNESS_ONE(symbol) WITNESS(symbol);
WITNESSED(WITNESS_ONE)

void vmm_witness_detour(const char* symbol, void* function) {
  const locked n(all());
  if (function == nullptr) {
    n->detours.erase(symbol);
  } else {
    n->detours[symbol] = function;
  }
}

#define WITNESS_ENTRY(symbol) \
  {#symbol, reinterpret_cast<void*>(&through<#symbol, decltype(symbol)>::checked)},
void* vmm_witness_loader(const char* symbol) {
  static const std::map<std::string, void*, std::less<>> all{WITNESSED(WITNESS_ENTRY)};
  const auto found = all.find(symbol);
  return found == all.end() ? nullptr : found->second;
}

void vmm_witness_notify(void (*notify)(bool)) { hook = notify; }

const char* vmm_witness_complaints() {
  static thread_local std::string copy;
  const locked n(all());
  copy = n->complaints;
  return copy.c_str();
}

unsigned long long vmm_witness_calls() { return locked(all())->calls; }

void vmm_witness_clear() { locked(all())->complaints.clear(); }

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// A stub driver for a shared libcudart: its entry-point calls hand out what the driver's finder
// says, and its memory calls go to the driver, as those of the real one do.
#include <dlfcn.h>

#include <cstddef>

#include "../../../adapters/preload/abi.h"

namespace {

using namespace vmm::preload;

using finder = result_code (*)(const char*, void**, int, flag_set, int*);

finder find() {
  static const auto found = [] {
    void* driver = dlopen("libcuda.so.1", RTLD_NOW);
    return reinterpret_cast<finder>(dlsym(driver, "cuGetProcAddress_v2"));
  }();
  return found;
}

constexpr int own_version = 12000;

}  // namespace

extern "C" {

int cudaGetDriverEntryPointByVersion(const char* symbol, void** found, unsigned version,
                                     unsigned long long flags, int* why) {
  return find()(symbol, found, static_cast<int>(version), flags, why);
}
int cudaGetDriverEntryPoint(const char* symbol, void** found, unsigned long long flags, int* why) {
  return find()(symbol, found, own_version, flags, why);
}
int cudaGetDriverEntryPoint_ptsz(const char* symbol, void** found, unsigned long long flags,
                                 int* why) {
  return find()(symbol, found, own_version, flags | find_per_thread_stream, why);
}
int cudaMalloc(void** at, std::size_t size) {
  void* found = nullptr;
  int why = 0;
  if (find()("cuMemAlloc", &found, own_version, find_legacy_stream, &why) != 0) return 1;
  device_pointer made = 0;
  const int code = reinterpret_cast<int (*)(device_pointer*, std::size_t)>(found)(&made, size);
  *at = reinterpret_cast<void*>(made);
  return code;
}
}

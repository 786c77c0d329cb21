// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// A program that is linked against libcuda and NVML, and calls them by exported names.
#include <dlfcn.h>

#include <cstdio>
#include <cstring>

#include "../../../adapters/preload/abi.h"
#include "../../../adapters/preload/nvml.h"

using namespace vmm::preload;

extern "C" {
result_code cuInit(unsigned);
result_code cuDevicePrimaryCtxRetain(context_id*, device_id);
result_code cuCtxSetCurrent(context_id);
result_code cuMemAlloc_v2(device_pointer*, std::size_t);
result_code cuMemFree_v2(device_pointer);
result_code cuMemGetInfo_v2(std::size_t*, std::size_t*);
result_code cuMemAllocAsync(device_pointer*, std::size_t, stream_id);
result_code cuMemFreeAsync(device_pointer, stream_id);
int nvmlDeviceGetHandleByIndex_v2(unsigned, nvml::device_id*);
int nvmlDeviceGetMemoryInfo(nvml::device_id, nvml::memory*);
}

namespace {

const char* owner_of(void* address) {
  Dl_info about{};
  if (address == nullptr || dladdr(address, &about) == 0) return "none";
  const char* slash = std::strrchr(about.dli_fname, '/');
  return slash == nullptr ? about.dli_fname : slash + 1;
}

}  // namespace

int main() {
  context_id context = nullptr;
  device_pointer one = 0;
  device_pointer two = 0;
  std::size_t free_bytes = 0;
  int sum = cuInit(0) + cuDevicePrimaryCtxRetain(&context, 0) + cuCtxSetCurrent(context);
  sum += cuMemAlloc_v2(&one, 1 << 20) + cuMemAllocAsync(&two, 1 << 20, nullptr);
  sum += cuMemGetInfo_v2(&free_bytes, nullptr) == 0 ? 0 : 1;
  sum += cuMemFree_v2(one) + cuMemFreeAsync(two, nullptr);
  nvml::device_id device = nullptr;
  nvml::memory memory{};
  sum += nvmlDeviceGetHandleByIndex_v2(0, &device) + nvmlDeviceGetMemoryInfo(device, &memory);
  std::printf("nvml %llu\n", static_cast<unsigned long long>(memory.total_bytes >> 20));
  // As everybody in the process sees the name.
  std::printf("default %s\n", owner_of(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2")));
  std::printf("codes %d\n", sum);
  return sum;
}

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// A libcuda.so.1 that does next to nothing: what bench_preload takes is then the preload library's
// own time. Addresses come back in the order of a stack, each thread has its own.
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace {

struct stack {
  std::array<std::uint64_t, 1024> freed{};
  std::size_t count = 0;
  std::uint64_t made = 0;
};
thread_local stack mine;

constexpr int success = 0;
constexpr int not_found = 500;

}  // namespace

extern "C" {

int cuInit(unsigned) { return success; }
int cuCtxGetDevice(int* device) {
  *device = 0;
  return success;
}
int cuCtxGetCurrent(void** context) {
  *context = &mine;
  return success;
}

int cuMemAlloc_v2(std::uint64_t* at, std::size_t) {
  constexpr std::uint64_t block_bytes = 512;
  const auto base = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(&mine)) << 8;
  *at = mine.count != 0 ? mine.freed[--mine.count] : base + block_bytes * ++mine.made;
  return success;
}
int cuMemFree_v2(std::uint64_t at) {
  if (mine.count < mine.freed.size()) mine.freed[mine.count++] = at;
  return success;
}
int cuMemAllocAsync(std::uint64_t* at, std::size_t size, void*) { return cuMemAlloc_v2(at, size); }
int cuMemFreeAsync(std::uint64_t at, void*) { return cuMemFree_v2(at); }

int cuGetProcAddress_v2(const char* name, void** found, int, unsigned long long, int* why) {
  const std::string_view asked(name);
  *found = nullptr;
  if (asked == "cuMemAlloc") *found = reinterpret_cast<void*>(&cuMemAlloc_v2);
  if (asked == "cuMemFree") *found = reinterpret_cast<void*>(&cuMemFree_v2);
  if (asked == "cuMemAllocAsync") *found = reinterpret_cast<void*>(&cuMemAllocAsync);
  if (asked == "cuMemFreeAsync") *found = reinterpret_cast<void*>(&cuMemFreeAsync);
  if (why != nullptr) *why = *found == nullptr ? 1 : 0;
  return *found == nullptr ? not_found : success;
}

}  // extern "C"

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// A stub driver for NCCL over the stub libcuda: two devices of one process, all-reduce of floats.
// It ends the process where it is started without NVLink multicast switched off, where a
// registration outlives the communicator, and where a window is opened on one device alone.
#include <dlfcn.h>
#include <unistd.h>

#include <condition_variable>

#include "../../tools/program/standard.hpp"
#include "../cuda/standin/symbols.h"

namespace {

struct communicator {
  int device = 0;
  CUcontext context = nullptr;
  std::set<void*> registered;
  std::set<void*> windows;
};

struct reduction {
  communicator* by;
  CUdeviceptr source;
  CUdeviceptr target;
  std::size_t count;
  CUstream stream;
};

struct state {
  std::mutex mutex;
  std::condition_variable changed;
  int arrived_count = 0;
  std::vector<reduction> group;
};

state& the() {
  static state only;
  return only;
}

template <class Function>
Function* cuda(const char* name) {
  void* const library = dlopen(std::getenv("VMM_CUDA_LIBRARY"), RTLD_NOW | RTLD_NOLOAD);
  return reinterpret_cast<Function*>(dlsym(library, name));
}

[[noreturn]] void end(const char* why) {
  std::fprintf(stderr, "stub driver of NCCL: %s\n", why);
  std::abort();
}

bool is_named(const char* name, std::string_view value) {
  const char* const found = std::getenv(name);
  return found != nullptr && found == value;
}

// Waits until both devices' threads are here: the even arrival lets the odd one go on.
void meet() {
  state& s = the();
  std::unique_lock lock(s.mutex);
  const int mine = s.arrived_count++;
  s.changed.notify_all();
  if (mine % 2 != 0) return;
  const bool met = s.changed.wait_for(lock, std::chrono::seconds(20),
                                      [&] { return s.arrived_count > mine + 1; });
  if (!met) end("a window is opened on one device alone");
}

// Sums of the sources, into each target.
int reduce(const std::vector<reduction>& all) {
  const std::size_t bytes = all.front().count * sizeof(float);
  std::vector<float> sum(all.front().count);
  std::vector<float> part(all.front().count);
  CUcontext popped = nullptr;
  for (const reduction& each : all) {
    cuda<decltype(cuCtxPushCurrent)>("cuCtxPushCurrent_v2")(each.by->context);
    const CUresult code = cuda<decltype(cuMemcpyDtoHAsync)>("cuMemcpyDtoHAsync_v2")(
        part.data(), each.source, bytes, each.stream);
    cuda<decltype(cuCtxPopCurrent)>("cuCtxPopCurrent_v2")(&popped);
    if (code != CUDA_SUCCESS) return 1;
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
  }
  for (const reduction& each : all) {
    cuda<decltype(cuCtxPushCurrent)>("cuCtxPushCurrent_v2")(each.by->context);
    const CUresult code = cuda<decltype(cuMemcpyHtoDAsync)>("cuMemcpyHtoDAsync_v2")(
        each.target, sum.data(), bytes, each.stream);
    cuda<decltype(cuCtxPopCurrent)>("cuCtxPopCurrent_v2")(&popped);
    if (code != CUDA_SUCCESS) return 1;
  }
  return 0;
}

}  // namespace

extern "C" {

int ncclGetVersion(int* version) {
  *version = 22900;
  return 0;
}

const char* ncclGetLastError(void*) { return "the stub driver says nothing"; }

int ncclCommInitAll(void** comms, int count, const int* devices) {
  if (!is_named("NCCL_NVLS_ENABLE", "0") || !is_named("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1") ||
      !is_named("NVSHMEM_DISABLE_NVLS", "1"))
    end("it is started with NVLink multicast");
  if (is_named("STANDIN_NCCL_HANGS", "1"))
    while (true) pause();
  for (int i = 0; i < count; ++i) {
    auto* const made = new communicator{devices[i], nullptr, {}, {}};
    cuda<decltype(cuDevicePrimaryCtxRetain)>("cuDevicePrimaryCtxRetain")(&made->context,
                                                                         made->device);
    comms[i] = made;
  }
  return 0;
}

int ncclCommDestroy(void* comm) {
  auto* const of = static_cast<communicator*>(comm);
  if (!of->registered.empty() || !of->windows.empty()) end("a registration outlives its owner");
  cuda<decltype(cuDevicePrimaryCtxRelease)>("cuDevicePrimaryCtxRelease_v2")(of->device);
  delete of;
  return 0;
}

int ncclGroupStart() { return 0; }

int ncclAllReduce(const void* from, void* to, std::size_t count, int type, int operation,
                  void* comm, void* stream) {
  if (type != 7 || operation != 0) return 4;
  the().group.push_back({static_cast<communicator*>(comm), reinterpret_cast<CUdeviceptr>(from),
                         reinterpret_cast<CUdeviceptr>(to), count, static_cast<CUstream>(stream)});
  return 0;
}

int ncclGroupEnd() {
  const int code = the().group.size() == 2 ? reduce(the().group) : 5;
  the().group.clear();
  return code;
}

int ncclCommRegister(void* comm, void* at, std::size_t size, void** handle) {
  auto* const of = static_cast<communicator*>(comm);
  if (size == 0 || reinterpret_cast<std::size_t>(at) % (2U << 20) != 0) return 4;
  of->registered.insert(at);
  *handle = at;
  return 0;
}

int ncclCommDeregister(void* comm, void* handle) {
  return static_cast<communicator*>(comm)->registered.erase(handle) == 1 ? 0 : 4;
}

int ncclCommWindowRegister(void* comm, void* at, std::size_t size, void** window, int flags) {
  auto* const of = static_cast<communicator*>(comm);
  if (size == 0 || flags != 1) return 4;
  meet();
  of->windows.insert(at);
  *window = at;
  return 0;
}

int ncclCommWindowDeregister(void* comm, void* window) {
  return static_cast<communicator*>(comm)->windows.erase(window) == 1 ? 0 : 4;
}

}  // extern "C"

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Plain CUDA C++ for the preload library, a word each: work, pools, graphs, fork, ipc, dmabuf,
// fragment, spread, latency. It prints a digest of its results and the device's memory that the
// process has at its end, as NVML and the driver report it. With `turns` behind the word, work and
// pools do each round after a line `go` on the standard input.
#include <cuda.h>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace {

std::uint64_t digest = 0xCBF29CE484222325u;
bool in_turns = false;

void must(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return;
  std::printf("FAILED %s: %s\n", what, cudaGetErrorString(code));
  std::fflush(stdout);
  std::_Exit(3);
}

void note(std::uint64_t value) { digest = (digest ^ value) * 0x100000001B3u; }

double now_ms() {
  return std::chrono::duration<double, std::milli>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

__global__ void fill(std::uint32_t* at, std::size_t count, std::uint32_t seed) {
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x) {
    at[i] = seed + static_cast<std::uint32_t>(i) * 2654435761u;
  }
}

__global__ void sum(const std::uint32_t* at, std::size_t count, unsigned long long* into) {
  unsigned long long own = 0;
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x) {
    own += at[i];
  }
  atomicAdd(into, own);
}

__global__ void spin(long long clocks) {
  const long long begin = clock64();
  while (clock64() - begin < clocks) {
  }
}

unsigned long long sum_of(const std::uint32_t* at, std::size_t count, cudaStream_t stream,
                          unsigned long long* counter) {
  unsigned long long host = 0;
  must(cudaMemsetAsync(counter, 0, sizeof host, stream), "memset");
  sum<<<256, 256, 0, stream>>>(at, count, counter);
  must(cudaMemcpyAsync(&host, counter, sizeof host, cudaMemcpyDeviceToHost, stream), "copy");
  must(cudaStreamSynchronize(stream), "a stream");
  return host;
}

void make_streams(cudaStream_t (&streams)[4]) {
  for (cudaStream_t& each : streams)
    must(cudaStreamCreateWithFlags(&each, cudaStreamNonBlocking), "a stream");
}

// Calls `round` so many times, or once per command.
template <class Round>
void play(int rounds, Round&& round) {
  if (!in_turns) {
    for (int i = 0; i < rounds; ++i) round();
    return;
  }
  for (int i = 0; i < 5; ++i) round();
  std::printf("ready\n");
  std::fflush(stdout);
  char line[16];
  while (std::fgets(line, sizeof line, stdin) != nullptr && std::strcmp(line, "go\n") == 0) {
    round();  // others had the device
    const double begin = now_ms();
    for (int i = 0; i < 6; ++i) round();
    std::printf("round_ms %.5f\n", (now_ms() - begin) / 6);
    std::fflush(stdout);
  }
}

// Blocks of random size on four streams, freed while others run.
void work(int rounds) {
  std::mt19937_64 draw(7);
  cudaStream_t streams[4];
  make_streams(streams);
  unsigned long long* counter = nullptr;
  must(cudaMalloc(&counter, 8), "cudaMalloc");
  play(rounds, [&] {
    for (int i = 0; i < 40; ++i) {
      const std::size_t count = 1 + draw() % (4u << 20);
      std::uint32_t* at = nullptr;
      must(cudaMalloc(&at, count * 4), "cudaMalloc");
      fill<<<256, 256, 0, streams[i % 4]>>>(at, count, static_cast<std::uint32_t>(i));
      note(sum_of(at, count, streams[i % 4], counter));
      must(cudaFree(at), "cudaFree");
    }
  });
  must(cudaFree(counter), "cudaFree");
}

void pools(int rounds) {
  std::mt19937_64 draw(8);
  cudaStream_t streams[4];
  make_streams(streams);
  unsigned long long* counters = nullptr;
  must(cudaMalloc(&counters, 64), "cudaMalloc");
  play(rounds, [&] {
    for (int i = 0; i < 200; ++i) {
      const cudaStream_t stream = streams[draw() % 4];
      const std::size_t count = 1 + draw() % (1u << 20);
      std::uint32_t* at = nullptr;
      must(cudaMallocAsync(&at, count * 4, stream), "cudaMallocAsync");
      fill<<<64, 256, 0, stream>>>(at, count, static_cast<std::uint32_t>(i));
      if (i % 20 == 0) note(sum_of(at, count, stream, counters));
      must(cudaFreeAsync(at, stream), "cudaFreeAsync");
    }
    must(cudaDeviceSynchronize(), "all work");
  });
}

void graphs(int rounds) {
  cudaStream_t stream = nullptr;
  must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
  constexpr std::size_t count = 1u << 20;
  std::uint32_t* at = nullptr;
  unsigned long long* counter = nullptr;
  must(cudaMalloc(&at, count * 4), "cudaMalloc");
  must(cudaMalloc(&counter, 8), "cudaMalloc");
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t launchable = nullptr;
  must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "a capture");
  std::uint32_t* inside = nullptr;
  must(cudaMallocAsync(&inside, count * 4, stream), "cudaMallocAsync in a capture");
  fill<<<64, 256, 0, stream>>>(inside, count, 5);
  must(cudaMemcpyAsync(at, inside, count * 4, cudaMemcpyDeviceToDevice, stream), "a copy");
  must(cudaFreeAsync(inside, stream), "cudaFreeAsync in a capture");
  must(cudaStreamEndCapture(stream, &graph), "the capture");
  must(cudaGraphInstantiate(&launchable, graph, 0), "the graph");
  for (int round = 0; round < rounds; ++round) {
    void* between = nullptr;
    must(cudaMalloc(&between, (1 + round % 7) << 20), "cudaMalloc");
    must(cudaGraphLaunch(launchable, stream), "a launch");
    must(cudaFree(between), "cudaFree");
    note(sum_of(at, count, stream, counter));
  }
}

void fork_workers() {
  for (int i = 0; i < 2; ++i) {
    std::fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
      work(3);
      std::printf("child %016llx\n", static_cast<unsigned long long>(digest));
      std::fflush(stdout);
      std::_Exit(0);
    }
    int how = 0;
    waitpid(child, &how, 0);
    note(static_cast<std::uint64_t>(how));
  }
  work(3);
}

// Writes late, so that what comes too early is written over.
__global__ void fill_late(std::uint32_t* at, std::size_t count, std::uint32_t value,
                          long long clocks) {
  const long long begin = clock64();
  while (clock64() - begin < clocks) {
  }
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x) {
    at[i] = value;
  }
}

__global__ void count_others(const std::uint32_t* at, std::size_t count, std::uint32_t value,
                             unsigned long long* into) {
  unsigned long long own = 0;
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x) {
    own += at[i] != value ? 1 : 0;
  }
  if (own != 0) atomicAdd(into, own);
}

// Memory is freed beside kernels that still write to it, on 19 streams; the next block, used on
// another stream at once, must not see those writes.
void in_flight(int rounds) {
  std::mt19937_64 draw(9);
  cudaStream_t streams[19] = {};  // the last three: the default one, a thread's, one that waits
  for (int i = 0; i < 16; ++i)
    must(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking), "a stream");
  streams[17] = cudaStreamPerThread;
  must(cudaStreamCreate(&streams[18]), "a stream");
  unsigned long long* wrong = nullptr;
  must(cudaMalloc(&wrong, 8), "cudaMalloc");
  must(cudaMemset(wrong, 0, 8), "a fill");
  must(cudaDeviceSynchronize(), "all work");
  for (int round = 0; round < rounds; ++round) {
    const std::size_t count = 1024 + draw() % (1u << 20);
    std::uint32_t* at = nullptr;
    must(cudaMalloc(&at, count * 4), "cudaMalloc");
    const auto value = static_cast<std::uint32_t>(round) * 2 + 1;
    const cudaStream_t stream = streams[draw() % 19];
    fill<<<32, 256, 0, stream>>>(at, count, value);
    fill_late<<<32, 256, 0, stream>>>(at, count, value, 200'000);
    count_others<<<32, 256, 0, stream>>>(at, count, value, wrong);
    must(cudaFree(at), "cudaFree");
  }
  unsigned long long host = 0;
  must(cudaDeviceSynchronize(), "all work");
  must(cudaMemcpy(&host, wrong, 8, cudaMemcpyDeviceToHost), "a copy");
  std::printf("%d rounds, wrong words %llu\n", rounds, host);
}

// Whether an event of the whole context waits for a kernel on each kind of stream.
void record_all() {
  must(cudaFree(nullptr), "the context");
  void* found = nullptr;
  cudaDriverEntryPointQueryResult why;
  const auto get = [&](const char* name, unsigned version) {
    must(cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &why), name);
    return found;
  };
  const auto record =
      reinterpret_cast<CUresult (*)(CUcontext, CUevent)>(get("cuCtxRecordEvent", 12050));
  const auto current = reinterpret_cast<CUresult (*)(CUcontext*)>(get("cuCtxGetCurrent", 4000));
  CUcontext context = nullptr;
  if (record == nullptr || current(&context) != CUDA_SUCCESS) return;
  cudaStream_t own = nullptr;
  cudaStream_t blocking = nullptr;
  must(cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking), "a stream");
  must(cudaStreamCreate(&blocking), "a stream");
  const struct {
    const char* name;
    cudaStream_t stream;
  } all[] = {{"non-blocking", own},
             {"blocking", blocking},
             {"default", nullptr},
             {"legacy", cudaStreamLegacy},
             {"per thread", cudaStreamPerThread}};
  cudaEvent_t event = nullptr;
  must(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "an event");
  for (int round = 0; round < 2; ++round) {
    for (const auto& each : all) {
      must(cudaDeviceSynchronize(), "all work");
      const double begin = now_ms();
      spin<<<1, 1, 0, each.stream>>>(40'000'000);
      const CUresult code = record(context, event);
      const cudaError_t at_once = cudaEventQuery(event);
      must(cudaEventSynchronize(event), "the event");
      const bool has_waited = now_ms() - begin > 10;
      std::printf("mark, %s stream: %d, %s, %s\n", each.name, static_cast<int>(code),
                  at_once == cudaErrorNotReady ? "not passed at once" : "PASSED at once",
                  has_waited ? "waits" : "DOES NOT WAIT");
    }
  }
}

// Two processes: one makes memory and shares it, the other opens it, looks and writes.
void share() {
  int to_child[2];
  int to_parent[2];
  if (pipe(to_child) != 0 || pipe(to_parent) != 0) std::_Exit(5);
  constexpr std::size_t sizes[] = {1000, 3u << 20, 200u << 20};
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    unsigned long long* counter = nullptr;
    must(cudaMalloc(&counter, 8), "cudaMalloc");
    for (const std::size_t size : sizes) {
      cudaIpcMemHandle_t handle;
      if (read(to_child[0], &handle, sizeof handle) != sizeof handle) std::_Exit(6);
      void* at = nullptr;
      must(cudaIpcOpenMemHandle(&at, handle, cudaIpcMemLazyEnablePeerAccess), "an open");
      auto* words = static_cast<std::uint32_t*>(at);
      const unsigned long long seen = sum_of(words, size / 4, nullptr, counter);
      fill<<<64, 256>>>(words, size / 4, 99);
      must(cudaDeviceSynchronize(), "all work");
      must(cudaIpcCloseMemHandle(at), "a close");
      if (write(to_parent[1], &seen, sizeof seen) != sizeof seen) std::_Exit(6);
    }
    std::_Exit(0);
  }
  unsigned long long* counter = nullptr;
  must(cudaMalloc(&counter, 8), "cudaMalloc");
  for (const std::size_t size : sizes) {
    std::uint32_t* at = nullptr;
    must(cudaMalloc(&at, size), "cudaMalloc");
    fill<<<64, 256>>>(at, size / 4, 7);
    must(cudaDeviceSynchronize(), "all work");
    cudaIpcMemHandle_t handle;
    must(cudaIpcGetMemHandle(&handle, at), "a handle");
    unsigned long long seen = 0;
    if (write(to_child[1], &handle, sizeof handle) != sizeof handle ||
        read(to_parent[0], &seen, sizeof seen) != sizeof seen) {
      break;
    }
    note(seen);
    note(sum_of(at, size / 4, nullptr, counter));
    must(cudaFree(at), "cudaFree");
  }
  close(to_child[1]);
  int how = 0;
  waitpid(child, &how, 0);
  std::printf("child %d\n", how);
  note(static_cast<std::uint64_t>(how));
}

// A descriptor for network cards, of blocks of three sizes.
void dma_buf() {
  must(cudaFree(nullptr), "the context");
  void* found = nullptr;
  cudaDriverEntryPointQueryResult why;
  must(cudaGetDriverEntryPointByVersion("cuMemGetHandleForAddressRange", &found, 12000,
                                        cudaEnableDefault, &why),
       "the entry point");
  using function = CUresult (*)(void*, CUdeviceptr, std::size_t, int, unsigned long long);
  const auto get = reinterpret_cast<function>(found);
  for (const std::size_t size : {std::size_t{4096}, std::size_t{3} << 20, std::size_t{500} << 20}) {
    void* at = nullptr;
    must(cudaMalloc(&at, size), "cudaMalloc");
    const auto where = reinterpret_cast<CUdeviceptr>(at);
    const CUdeviceptr begin = where / 4096 * 4096;
    int descriptor = -1;
    const CUresult code = get == nullptr
                              ? CUDA_ERROR_NOT_FOUND
                              : get(&descriptor, begin, (where - begin + size + 4095) / 4096 * 4096,
                                    CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
    std::printf("dma_buf %zu: %d %s\n", size, static_cast<int>(code),
                descriptor >= 0 ? "a descriptor" : "none");
    if (descriptor >= 0) close(descriptor);
    must(cudaFree(at), "cudaFree");
  }
}

// Blocks of little more than 1 MiB, for nine tenths of the device's memory.
void fragment() {
  std::size_t free_bytes = 0;
  std::size_t total = 0;
  must(cudaMemGetInfo(&free_bytes, &total), "cudaMemGetInfo");
  constexpr std::size_t size = (1u << 20) + (64u << 10);
  const std::size_t wanted = free_bytes / 10 * 9 / size;
  std::size_t made = 0;
  for (void* at = nullptr; made < wanted && cudaMalloc(&at, size) == cudaSuccess; ++made) {
  }
  std::printf("blocks %zu of %zu, %.1f of %.1f GiB free at the start\n", made, wanted,
              static_cast<double>(made * size) / (1u << 30),
              static_cast<double>(free_bytes) / (1u << 30));
  if (made < wanted) std::exit(4);
}

// Every second block of a full device is freed; then one of 40 % of the memory is requested.
void spread(std::size_t size) {
  std::size_t free_bytes = 0;
  std::size_t total = 0;
  must(cudaMemGetInfo(&free_bytes, &total), "cudaMemGetInfo");
  std::vector<void*> all;
  const std::size_t limit = free_bytes / 20 * 19;
  for (void* at = nullptr; all.size() * size < limit && cudaMalloc(&at, size) == cudaSuccess;)
    all.push_back(at);
  for (std::size_t i = 0; i < all.size(); i += 2) must(cudaFree(all[i]), "cudaFree");
  (void)cudaGetLastError();
  void* at = nullptr;
  const cudaError_t code = cudaMalloc(&at, free_bytes / 10 * 4);
  std::printf("spread %zu KiB: %zu blocks, then 40 %%: %s\n", size >> 10, all.size(),
              cudaGetErrorString(code));
}

// The time of cudaFree while a kernel of some 2 ms runs on another stream.
void latency() {
  cudaStream_t stream = nullptr;
  must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
  std::vector<double> taken;
  for (int i = 0; i < 300; ++i) {
    void* at = nullptr;
    must(cudaMalloc(&at, 1u << 20), "cudaMalloc");
    spin<<<1, 1, 0, stream>>>(3'500'000);
    const double begin = now_ms();
    must(cudaFree(at), "cudaFree");
    taken.push_back((now_ms() - begin) * 1e3);
    must(cudaStreamSynchronize(stream), "a stream");
  }
  std::sort(taken.begin(), taken.end());
  std::printf("free_us median %.1f, 99th percentile %.1f\n", taken[150], taken[296]);
}

// NVML's figure, which no library intercepts: of this process if known, else of the device.
void say_memory() {
  struct memory {
    unsigned long long total, free, used;
  } seen{};
  struct process {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
  } all[128] = {};
  void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  if (library == nullptr) return;
  const auto init = reinterpret_cast<int (*)()>(dlsym(library, "nvmlInit_v2"));
  const auto find =
      reinterpret_cast<int (*)(unsigned, void**)>(dlsym(library, "nvmlDeviceGetHandleByIndex_v2"));
  const auto ask =
      reinterpret_cast<int (*)(void*, memory*)>(dlsym(library, "nvmlDeviceGetMemoryInfo"));
  const auto list = reinterpret_cast<int (*)(void*, unsigned*, process*)>(
      dlsym(library, "nvmlDeviceGetComputeRunningProcesses_v3"));
  void* device = nullptr;
  if (init == nullptr || find == nullptr || ask == nullptr || list == nullptr) return;
  init();
  find(0, &device);
  unsigned count = 128;
  if (list(device, &count, all) != 0) count = 0;
  for (unsigned i = 0; i < count; ++i) {
    if (all[i].pid != static_cast<unsigned>(getpid()) || all[i].used >= 1ull << 50) continue;
    std::printf("used_mib %llu process\n", all[i].used >> 20);
    return;
  }
  ask(device, &seen);
  std::printf("used_mib %llu device\n", seen.used >> 20);
}

bool multicast_is_off() {
  const char* const all[][2] = {{"NCCL_NVLS_ENABLE", "0"},
                                {"TORCH_SYMM_MEM_DISABLE_MULTICAST", "1"},
                                {"NVSHMEM_DISABLE_NVLS", "1"}};
  for (const auto& each : all) {
    const char* value = std::getenv(each[0]);
    if (value == nullptr || std::strcmp(value, each[1]) != 0) return false;
  }
  return true;
}

}  // namespace

int main(int count, char** words) {
  if (!multicast_is_off()) {
    std::printf("NVLink multicast is not switched off\n");
    return 9;
  }
  const std::string word = count > 1 ? words[1] : "work";
  const int rounds = count > 2 ? std::atoi(words[2]) : 20;
  in_turns = count > 2 && std::strcmp(words[count - 1], "turns") == 0;
  if (word == "work") work(rounds);
  if (word == "pools") pools(rounds);
  if (word == "graphs") graphs(rounds);
  if (word == "inflight") in_flight(rounds);
  if (word == "mark") record_all();
  if (word == "fork") fork_workers();
  if (word == "ipc") share();
  if (word == "dmabuf") dma_buf();
  if (word == "fragment") fragment();
  if (word == "spread") spread(static_cast<std::size_t>(rounds) << 10);
  if (word == "latency") latency();
  std::printf("digest %016llx\n", static_cast<unsigned long long>(digest));
  say_memory();
  return 0;
}

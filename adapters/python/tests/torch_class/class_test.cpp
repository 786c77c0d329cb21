// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: the PyTorch class, with PyTorch's own allocator behind it, does what PyTorch's callers
// expect: one deleter, checkpoints of pools, figures that are those of a snapshot, record_stream
// after disable(), histories with metadata, blocks for other processes.
// Method: libc10.so and libc10_cuda.so of a wheel of PyTorch over cudart.c, vmm on its simulated
// driver; two processes with vmm on the host's memory. `./run check torch` builds and runs it; 0:
// all holds.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vmm_allocator.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

extern "C" {
const char* vmm_torch_install(vmm_allocator* vmm, int stands_back);
void vmm_torch_remove();
void vmm_torch_route_native(int by);
void cuda_set_device_count(int count);  // of cudart.c
}

// What importing torch sets; no header has it.
namespace c10::cuda::_internal {
void setHasPrimaryContext(bool (*function)(DeviceIndex));
}

namespace {

namespace torch_cuda = c10::cuda::CUDACachingAllocator;
#if VMM_TORCH >= 209
using c10::MempoolId_t;
#else
using c10::cuda::MempoolId_t;
#endif

int failures = 0;

#define EXPECT(condition)                                                  \
  do {                                                                     \
    if (!(condition)) {                                                    \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      ++failures;                                                          \
    }                                                                      \
  } while (false)

vmm_allocator* make_vmm(const char* driver) {
  vmm_allocator_options options;
  (void)vmm_allocator_options_init(&options, sizeof(options));
  options.driver = driver;
  vmm_allocator* made = nullptr;
  EXPECT(vmm_allocator_create(&options, &made) == VMM_SUCCESS);
  EXPECT(vmm_plugin_use(made) == VMM_SUCCESS);
  return made;
}

bool is_ours(vmm_allocator* vmm, void* at) {
  vmm_allocation found{};
  return vmm_allocator_find(vmm, at, &found) == VMM_SUCCESS;
}

uint64_t count_pending(vmm_allocator* vmm) {
  std::vector<vmm_allocation> found(64);
  uint64_t count = 0;
  EXPECT(vmm_allocator_list(vmm, 0, found.data(), found.size(), &count) == VMM_SUCCESS);
  uint64_t pending = 0;
  for (uint64_t i = 0; i < count; ++i) pending += found[i].is_pending;
  return pending;
}

c10::cuda::CUDAStream other_stream() {
  static char is_a_stream;
  return c10::cuda::getStreamFromExternal(reinterpret_cast<cudaStream_t>(&is_a_stream), 0);
}

// As PyTorch's test_memory_stats compares them.
void figures_are_those_of_the_snapshot(torch_cuda::CUDAAllocator& torch) {
  int64_t allocated[2] = {}, active[2] = {}, requested[2] = {}, blocks[2] = {};
  for (const auto& segment : torch.snapshot().segments) {
    int64_t of_blocks = 0;
    for (const auto& block : segment.blocks) {
      blocks[segment.is_large] += block.allocated ? 1 : 0;
      of_blocks += block.active ? static_cast<int64_t>(block.requested_size) : 0;
    }
    EXPECT(of_blocks == static_cast<int64_t>(segment.requested_size));
    allocated[segment.is_large] += static_cast<int64_t>(segment.allocated_size);
    active[segment.is_large] += static_cast<int64_t>(segment.active_size);
    requested[segment.is_large] += of_blocks;
  }
  const auto stats = torch.getDeviceStats(0);
  for (const size_t is_large : {size_t{0}, size_t{1}}) {
    EXPECT(stats.allocated_bytes[1 + is_large].current == allocated[is_large]);
    EXPECT(stats.active_bytes[1 + is_large].current == active[is_large]);
    EXPECT(stats.requested_bytes[1 + is_large].current == requested[is_large]);
    EXPECT(stats.allocation[1 + is_large].current == blocks[is_large]);
  }
  EXPECT(stats.allocated_bytes[0].current == allocated[0] + allocated[1]);
  EXPECT(stats.requested_bytes[0].current == requested[0] + requested[1]);
}

void blocks(torch_cuda::CUDAAllocator& torch, vmm_allocator* vmm) {
  std::vector<c10::DataPtr> live;
  for (const size_t size : {size_t{4}, size_t{800}, size_t{48'000'000}})
    live.push_back(torch.allocate(size));
  for (const auto& each : live) {
    EXPECT(is_ours(vmm, each.get()));
    EXPECT(each.get_deleter() == torch.raw_deleter());
  }
  figures_are_those_of_the_snapshot(torch);
  torch.recordStream(live[1], other_stream());
  live[1].clear();
  EXPECT(count_pending(vmm) == 1);
  figures_are_those_of_the_snapshot(torch);
  EXPECT(torch.allocate(0).get() == nullptr);
}

// As PyTorch's callback, which ends tensors that other processes have returned.
c10::DataPtr returned;
class callback final : public c10::FreeMemoryCallback {
 public:
  bool Execute() override {
    returned.clear();
    return true;
  }
};

void shortages(torch_cuda::CUDAAllocator& torch, vmm_allocator* vmm) {
  c10::FreeCudaMemoryCallbacksRegistry()->Register("returned",
                                                   [] { return std::make_unique<callback>(); });
  constexpr size_t most = size_t{90} << 30;  // of 140
  returned = torch.allocate(most);
  const c10::DataPtr next = torch.allocate(most);
  EXPECT(is_ours(vmm, next.get()) && returned.get() == nullptr);
}

// As cudagraph_trees does between recordings: what a checkpoint undoes loses its deleter, what it
// brings back has one.
void checkpoints(torch_cuda::CUDAAllocator& torch, vmm_allocator* vmm) {
  const MempoolId_t pool{0, 7};
#if VMM_TORCH >= 208
  torch.createOrIncrefPool(0, pool, nullptr);
#else
  torch.ensureExistsAndIncrefPool(0, pool);
#endif
  torch.beginAllocateToPool(0, pool, [](cudaStream_t) { return true; });
#if VMM_TORCH >= 213
  torch.markCaptureBegin(0);
#endif
  c10::DataPtr first = torch.allocate(3000);
  EXPECT(!is_ours(vmm, first.get()));
  EXPECT(first.get_deleter() == torch.raw_deleter());
  const auto with_first = torch.getCheckpointState(0, pool);
  c10::DataPtr second = torch.allocate(5000);
  EXPECT(second.get_deleter() == torch.raw_deleter());
  std::memset(second.get(), 1, 5000);
#if VMM_TORCH >= 213
  torch.markCaptureEnd(0);
#endif
  torch.endAllocateToPool(0, pool);
  EXPECT(torch.checkPoolLiveAllocations(0, pool, {first.get(), second.get()}));
  figures_are_those_of_the_snapshot(torch);

  const auto with_both = torch.getCheckpointState(0, pool);
  auto change = torch.setCheckpointPoolState(0, with_first);
  const auto& freed = change.ptrs_freed;
  EXPECT(std::count(freed.begin(), freed.end(), second.get()) == 1);
  EXPECT(second.compare_exchange_deleter(torch.raw_deleter(), &c10::detail::deleteNothing));
  second.clear();
  EXPECT(change.dataptrs_allocd.size() == 1);
  for (auto& each : change.dataptrs_allocd) {
    EXPECT(each.get_deleter() == torch.raw_deleter());
    (void)each.release_context();
  }
  EXPECT(torch.checkPoolLiveAllocations(0, pool, {first.get()}));
  change = torch.setCheckpointPoolState(0, with_both);
  EXPECT(first.compare_exchange_deleter(torch.raw_deleter(), &c10::detail::deleteNothing));
  first.clear();
  EXPECT(change.dataptrs_allocd.size() == 2);
  for (const auto& each : change.dataptrs_allocd) EXPECT(each.get_deleter() == torch.raw_deleter());
  change.dataptrs_allocd.clear();
  EXPECT(torch.checkPoolLiveAllocations(0, pool, {}));
  torch.releasePool(0, pool);
}

void natives(torch_cuda::CUDAAllocator& torch, vmm_allocator* vmm) {
  vmm_torch_route_native(1);
  c10::DataPtr inside = torch.allocate(1000);
  vmm_torch_route_native(-1);
  EXPECT(!is_ours(vmm, inside.get()) && inside.get_deleter() == torch.raw_deleter());
  torch.recordStream(inside, other_stream());
  EXPECT(inside.get_deleter() == torch.raw_deleter());
  size_t size = 0;
  EXPECT(torch.getBaseAllocation(inside.get(), &size) == inside.get() && size >= 1000);
}

std::shared_ptr<c10::GatheredContext> no_context() { return nullptr; }

void histories(torch_cuda::CUDAAllocator& torch) {
  torch.recordHistory(true, &no_context, 100, torch_cuda::RecordContext::NEVER
#if VMM_TORCH >= 208
                      ,
                      true
#endif
#if VMM_TORCH >= 211
                      ,
                      {}
#endif
  );
#if VMM_TORCH >= 210
  torch.setUserMetadata("step 7");
#endif
  c10::DataPtr block = torch.allocate(1000);
#if VMM_TORCH >= 214
  EXPECT(torch.supportsUserMetadata());
  torch.annotateMemory(block.get(), "a name");
#endif
  block.clear();
  const auto traces = torch.snapshot().device_traces;
  std::set<std::string> seen;
  for (const auto& each : traces.at(0)) {
    if (each.size_ != 1000) continue;
    seen.insert(std::to_string(each.action_));
#if VMM_TORCH >= 210
    EXPECT(each.user_metadata_ == "step 7" || each.user_metadata_ == "a name");
#endif
  }
#if VMM_TORCH >= 214
  EXPECT(seen.size() == 4);
#else
  EXPECT(seen.size() == 3);
#endif
}

void taken_out(torch_cuda::CUDAAllocator& torch, vmm_allocator* vmm) {
  c10::DataPtr before = torch.allocate(1000);
  vmm_torch_remove();
  vmm_torch_remove();
  EXPECT(torch_cuda::get()->name() == "native");
  c10::DataPtr after = torch_cuda::get()->allocate(1000);
  EXPECT(is_ours(vmm, before.get()) && !is_ours(vmm, after.get()));
  const uint64_t pending = count_pending(vmm);
  torch_cuda::get()->recordStream(before, other_stream());
  torch_cuda::get()->recordStream(after, other_stream());
  before.clear();
  EXPECT(count_pending(vmm) == pending + 1);
  EXPECT(std::strlen(vmm_torch_install(vmm, 0)) == 0);
  EXPECT(torch_cuda::get()->name() == "vmm");
  c10::DataPtr again = torch_cuda::get()->allocate(1000);
  EXPECT(is_ours(vmm, again.get()));
}

// Under VMM=1: devices that vmm cannot open, here by one without a driver. Each is refused
// by itself.
int refused() {
  (void)setenv("ZE_ENABLE_ALT_DRIVERS", "/nowhere", 1);
  vmm_allocator* const vmm = make_vmm("level_zero");
  EXPECT(std::strlen(vmm_torch_install(vmm, 1)) == 0);
  EXPECT(torch_cuda::get()->name() == "vmm");
  for (const int device : {0, 0, 1, 1}) {
    c10::cuda::set_device(static_cast<c10::DeviceIndex>(device));
    const c10::DataPtr block = torch_cuda::get()->allocate(1000);
    EXPECT(block.get() != nullptr && !is_ours(vmm, block.get()));
    EXPECT(torch_cuda::get()->name() == (device == 0 ? "vmm" : "native"));
  }
  return failures == 0 ? 0 : 1;
}

// As torch.multiprocessing passes a storage on: the exporter's bytes of a handle, over a pipe.
constexpr size_t shared_words[] = {1 << 10, 3 << 17, 9 << 20};

template <class Work>
bool fails(Work&& work) {
  try {
    work();
    return false;
  } catch (const c10::Error&) {
    return true;
  }
}

void importer(torch_cuda::CUDAAllocator& torch, int in, int out) {
  for (const size_t words : shared_words) {
    char bytes[65];
    EXPECT(read(in, bytes, sizeof bytes) == static_cast<ssize_t>(sizeof bytes));
    const std::string handle(bytes, sizeof bytes);
    const std::shared_ptr<void> block = torch.getIpcDevPtr(handle);
    auto* const at = static_cast<size_t*>(block.get());
    EXPECT(at[0] == words && at[words - 1] == ~words);
    at[words / 2] = words;
    EXPECT(write(out, bytes, 1) == 1);
  }
}

void exporter(torch_cuda::CUDAAllocator& torch, vmm_allocator* vmm, int in, int out) {
  for (const size_t words : shared_words) {
    const c10::DataPtr block = torch.allocate(words * sizeof words);
    auto* const at = static_cast<size_t*>(block.get());
    EXPECT(is_ours(vmm, at));
    at[0] = words;
    at[words - 1] = ~words;
    const auto shared = torch.shareIpcHandle(at);
    EXPECT(shared.offset == 0 && shared.handle.size() == 65);
    EXPECT(torch.shareIpcHandle(at).handle == shared.handle);
    EXPECT(write(out, shared.handle.data(), 65) == 65);
    char done = 0;
    EXPECT(read(in, &done, 1) == 1 && at[words / 2] == words);
  }
  vmm_torch_route_native(1);
  const c10::DataPtr native = torch.allocate(1000);
  vmm_torch_route_native(-1);
  EXPECT(fails([&] { (void)torch.shareIpcHandle(native.get()); }));  // the stub has no handles
  EXPECT(fails([&] { (void)torch.getIpcDevPtr("\002c"); }));
  EXPECT(fails([&] { (void)torch.getIpcDevPtr("\377"); }));
  EXPECT(fails([&] { (void)torch.getIpcDevPtr("\377" + std::string(64, 'x')); }));
}

int shared() {
  int there[2], back[2];
  EXPECT(pipe(there) == 0 && pipe(back) == 0);
  const pid_t child = fork();
  try {  // of a process without vmm
    (void)torch_cuda::get()->getIpcDevPtr("\377" + std::string(64, 'x'));
    EXPECT(false);
  } catch (const c10::Error& refused) {
    EXPECT(std::strstr(refused.what(), "from a future version") != nullptr);
  }
  vmm_allocator* const vmm = make_vmm("host");
  EXPECT(std::strlen(vmm_torch_install(vmm, 0)) == 0);
  if (child == 0) {
    importer(*torch_cuda::get(), there[0], back[1]);
    _exit(failures == 0 ? 0 : 1);
  }
  exporter(*torch_cuda::get(), vmm, back[0], there[1]);
  int state = 0;
  EXPECT(waitpid(child, &state, 0) == child && state == 0);
  return failures == 0 ? 0 : 1;
}

}  // namespace

int main(int count, char** words) {
  c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
  const bool is_refused = count > 1 && std::strcmp(words[1], "refused") == 0;
  cuda_set_device_count(is_refused ? 2 : 1);
  torch_cuda::init(is_refused ? 2 : 1);
  if (count > 1) return is_refused ? refused() : shared();
  vmm_allocator* const vmm = make_vmm("fake");
  EXPECT(std::strlen(vmm_torch_install(vmm, 0)) == 0);
  torch_cuda::CUDAAllocator& torch = *torch_cuda::get();
  EXPECT(torch.name() == "vmm");
  blocks(torch, vmm);
  shortages(torch, vmm);
  checkpoints(torch, vmm);
  natives(torch, vmm);
  histories(torch);
  taken_out(torch, vmm);
  if (failures != 0) std::fprintf(stderr, "%d failed\n", failures);
  return failures == 0 ? 0 : 1;
}

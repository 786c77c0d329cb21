// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Measures each allocation and free that PyTorch's C++ makes on its CUDA allocator, inside a
// running program and for any allocator: a class that forwards every call. Blocks that were made
// before it was put in are freed past it.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <x86intrin.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace {

namespace torch_cuda = c10::cuda::CUDACachingAllocator;
using c10::DataPtr;
using c10::DeviceIndex;
using c10::MempoolId_t;
using torch_cuda::CUDAAllocator;

void timed_delete(void* at);

// Cycles of each call, both kinds; a program makes some 100,000 of them.
class record {
 public:
  void add(std::uint64_t cycles) {
    const std::lock_guard<std::mutex> lock(lock_);
    cycles_.push_back(static_cast<std::uint32_t>(std::min<std::uint64_t>(cycles, 0xffffffffu)));
  }
  std::vector<std::uint32_t> take() {
    const std::lock_guard<std::mutex> lock(lock_);
    return std::exchange(cycles_, {});
  }
  void prepare() { cycles_.reserve(std::size_t{1} << 22); }

 private:
  std::mutex lock_;
  std::vector<std::uint32_t> cycles_;
};
record allocations;
record frees;

std::uint64_t now() {
  unsigned unused = 0;
  const std::uint64_t cycles = __rdtscp(&unused);
  _mm_lfence();
  return cycles;
}

class timed final : public CUDAAllocator {
 public:
  explicit timed(CUDAAllocator* of) : of_(of) {}
  [[nodiscard]] CUDAAllocator* of() const { return of_; }

  DataPtr allocate(size_t size) override {
    const std::uint64_t begun = now();
    DataPtr made = of_->allocate(size);
    allocations.add(now() - begun);
    if (made.get() != nullptr)
      (void)made.compare_exchange_deleter(made.get_deleter(), &timed_delete);
    return made;
  }
  c10::DeleterFnPtr raw_deleter() const override { return &timed_delete; }
  void* raw_alloc(size_t size) override {
    const std::uint64_t begun = now();
    void* const at = of_->raw_alloc(size);
    allocations.add(now() - begun);
    return at;
  }
  void* raw_alloc_with_stream(size_t size, cudaStream_t stream) override {
    const std::uint64_t begun = now();
    void* const at = of_->raw_alloc_with_stream(size, stream);
    allocations.add(now() - begun);
    return at;
  }
  void raw_delete(void* at) override {
    const std::uint64_t begun = now();
    of_->raw_delete(at);
    frees.add(now() - begun);
  }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    of_->copy_data(to, from, count);
  }
  void recordStream(const DataPtr& block, c10::cuda::CUDAStream stream) override {
    if (block.get_deleter() != &timed_delete) return of_->recordStream(block, stream);
    // The allocator recognises its blocks by its own deleter.
    DataPtr same(block.get(), block.get_context(), of_->raw_deleter(), block.device());
    of_->recordStream(same, stream);
    (void)same.release_context();
  }

  void init(int device_count) override { of_->init(device_count); }
  bool initialized() override { return of_->initialized(); }
  void enable(bool value) override { of_->enable(value); }
  bool isEnabled() const override { return of_->isEnabled(); }
  std::string name() override { return of_->name(); }
  double getMemoryFraction(DeviceIndex device) override { return of_->getMemoryFraction(device); }
  void setMemoryFraction(double fraction, DeviceIndex device) override {
    of_->setMemoryFraction(fraction, device);
  }
  void emptyCache(MempoolId_t pool) override { of_->emptyCache(pool); }
  void cacheInfo(DeviceIndex device, size_t* largest) override { of_->cacheInfo(device, largest); }
  void* getBaseAllocation(void* at, size_t* size) override {
    return of_->getBaseAllocation(at, size);
  }
  std::vector<torch_cuda::StreamSegmentSize> getExpandableSegmentSizes(
      DeviceIndex device) override {
    return of_->getExpandableSegmentSizes(device);
  }
  void beginAllocateToPool(DeviceIndex device, MempoolId_t pool,
                           std::function<bool(cudaStream_t)> takes) override {
    of_->beginAllocateToPool(device, pool, std::move(takes));
  }
  void endAllocateToPool(DeviceIndex device, MempoolId_t pool) override {
    of_->endAllocateToPool(device, pool);
  }
  void releasePool(DeviceIndex device, MempoolId_t pool) override {
    of_->releasePool(device, pool);
  }
  int getPoolUseCount(DeviceIndex device, MempoolId_t pool) override {
    return of_->getPoolUseCount(device, pool);
  }
  void createOrIncrefPool(DeviceIndex device, MempoolId_t pool,
                          std::shared_ptr<CUDAAllocator> with) override {
    of_->createOrIncrefPool(device, pool, std::move(with));
  }
  void setUseOnOOM(DeviceIndex device, MempoolId_t pool, bool use) override {
    of_->setUseOnOOM(device, pool, use);
  }
  void setNoSplit(DeviceIndex device, MempoolId_t pool) override { of_->setNoSplit(device, pool); }
  bool checkPoolLiveAllocations(DeviceIndex device, MempoolId_t pool,
                                const std::unordered_set<void*>& expected) override {
    return of_->checkPoolLiveAllocations(device, pool, expected);
  }
  std::shared_ptr<torch_cuda::AllocatorState> getCheckpointState(DeviceIndex device,
                                                                 MempoolId_t pool) override {
    return of_->getCheckpointState(device, pool);
  }
  torch_cuda::CheckpointDelta setCheckpointPoolState(
      DeviceIndex device, std::shared_ptr<torch_cuda::AllocatorState> state) override {
    return of_->setCheckpointPoolState(device, std::move(state));
  }
  void enablePeerAccess(DeviceIndex device, DeviceIndex to) override {
    of_->enablePeerAccess(device, to);
  }
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device, size_t count,
                          cudaStream_t stream, bool p2p) override {
    return of_->memcpyAsync(to, to_device, from, from_device, count, stream, p2p);
  }
  torch_cuda::ShareableHandle shareIpcHandle(void* at) override { return of_->shareIpcHandle(at); }
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override {
    return of_->getIpcDevPtr(std::move(handle));
  }
  torch_cuda::DeviceStats getDeviceStats(DeviceIndex device) override {
    return of_->getDeviceStats(device);
  }
  void resetAccumulatedStats(DeviceIndex device) override { of_->resetAccumulatedStats(device); }
  void resetPeakStats(DeviceIndex device) override { of_->resetPeakStats(device); }
  torch_cuda::SnapshotInfo snapshot(MempoolId_t pool, bool traces) override {
    return of_->snapshot(pool, traces);
  }
  void recordHistory(bool enabled, torch_cuda::CreateContextFn gather, size_t entries_max,
                     torch_cuda::RecordContext when, bool clears,
                     const std::vector<std::string>& skipped) override {
    of_->recordHistory(enabled, gather, entries_max, when, clears, skipped);
  }
  bool isHistoryEnabled() override { return of_->isHistoryEnabled(); }
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& words) override {
    of_->recordAnnotation(words);
  }
  void pushCompileContext(std::string& words) override { of_->pushCompileContext(words); }
  void popCompileContext() override { of_->popCompileContext(); }
  void setUserMetadata(const std::string& words) override { of_->setUserMetadata(words); }
  std::string getUserMetadata() override { return of_->getUserMetadata(); }
  void attachOutOfMemoryObserver(torch_cuda::OutOfMemoryObserver observer) override {
    of_->attachOutOfMemoryObserver(std::move(observer));
  }
  void attachAllocatorTraceTracker(torch_cuda::AllocatorTraceTracker tracker) override {
    of_->attachAllocatorTraceTracker(std::move(tracker));
  }

 private:
  CUDAAllocator* const of_;
};

timed* installed = nullptr;

void timed_delete(void* at) { installed->raw_delete(at); }

// Nanoseconds of a cycle, over some milliseconds.
double measure_cycle() {
  using clock = std::chrono::steady_clock;
  const auto begun = clock::now();
  const std::uint64_t first = now();
  while (clock::now() - begun < std::chrono::milliseconds(20)) {
  }
  const std::uint64_t last = now();
  const std::chrono::duration<double, std::nano> spent = clock::now() - begun;
  return spent.count() / static_cast<double>(last - first);
}

// Into out: calls, ns in all, median ns, ns and number of the calls of 10 us and more.
void summarize(std::vector<std::uint32_t> cycles, double cycle_ns, double* out) {
  double all = 0;
  double slow = 0;
  double slow_count = 0;
  for (const std::uint32_t each : cycles) {
    const double ns = each * cycle_ns;
    all += ns;
    if (ns < 10e3) continue;
    slow += ns;
    slow_count += 1;
  }
  const auto middle = cycles.begin() + static_cast<std::ptrdiff_t>(cycles.size() / 2);
  std::nth_element(cycles.begin(), middle, cycles.end());
  out[0] = static_cast<double>(cycles.size());
  out[1] = all;
  out[2] = cycles.empty() ? 0 : *middle * cycle_ns;
  out[3] = slow;
  out[4] = slow_count;
}

}  // namespace

extern "C" {

// Puts the class in place of the allocator that there is.
__attribute__((visibility("default"))) void vmm_timed_install() {
  if (installed != nullptr) return;
  allocations.prepare();
  frees.prepare();
  installed = new timed(torch_cuda::get());  // lives as long as the process
  torch_cuda::allocator.store(installed);
  c10::SetAllocator(c10::kCUDA, installed, 20);
}

// Eleven numbers: five of allocations and five of frees, as summarize() says, and what two looks at
// the clock take, which is in every one.
__attribute__((visibility("default"))) void vmm_timed_take(double* out) {
  const double cycle_ns = measure_cycle();
  summarize(allocations.take(), cycle_ns, out);
  summarize(frees.take(), cycle_ns, out + 5);
  std::vector<std::uint64_t> empty(1001);
  for (std::uint64_t& each : empty) {
    const std::uint64_t begun = now();
    each = now() - begun;
  }
  std::nth_element(empty.begin(), empty.begin() + 500, empty.end());
  out[10] = static_cast<double>(empty[500]) * cycle_ns;
}

}  // extern "C"

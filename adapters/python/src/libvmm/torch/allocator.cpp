// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// PyTorch's CUDA allocator over libvmm.so: compiled on the machine where it is used, against the
// PyTorch that is there, since the class that it derives from changes with each of its versions.
//
// Tensors have vmm's memory. PyTorch's own allocator serves captured graphs, MemPool, and threads
// inside libvmm.torch.native(). Each allocator releases its cached memory before the other one
// reports a shortage.
//
// VMM_TORCH is the minor version, 207 to 215; differences are noted at each function.
//
// - A block is vmm's if its address is in vmm's table, else PyTorch's. Both have one deleter:
//   graphs of torch.compile compare the deleter of a tensor with raw_deleter().
// - No lock is held over a call of either allocator.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <functional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "exports.hpp"
#include "figures.hpp"
#include "history.hpp"
#include "routes.hpp"
#include "slots.hpp"
#include "torch_names.hpp"

namespace {

using namespace vmm_torch;

class allocator;
allocator* installed = nullptr;
std::atomic<bool> removed{false};
refusals refused;
thread_local int native_depth = 0;
void delete_block(void* at);

class allocator final : public torch_cuda::CUDAAllocator {
 public:
  allocator(torch_cuda::CUDAAllocator* native, vmm_allocator* vmm)
      : native_(native), vmm_(vmm), native_deleter_(cached_deleter(native)) {
    calls_.struct_size = sizeof(calls_);
    check(vmm_allocator_keep(vmm, &calls_));
  }
  // Only its virtual functions are counted: no call of it is valid.
  explicit allocator(std::nullptr_t) : native_(nullptr), vmm_(nullptr), native_deleter_(nullptr) {}

  // ---- memory ----------------------------------------------------------------------------------

  DataPtr allocate(size_t size) override {
    const DeviceIndex device = current_device();
    const c10::Device where(c10::DeviceType::CUDA, device);
    if (size == 0) return {nullptr, nullptr, &delete_block, where};
    const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(device).stream();
    if (is_native(device, stream)) return allocate_native(size);
    void* const at = take(size, device, stream);
    // PyTorch's own allocator serves it, or returns its error to the program.
    if (at == nullptr) return adopted(native_->allocate(size));
    return {at, at, &delete_block, where};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &delete_block; }
  void* raw_alloc(size_t size) override {
    if (size == 0) return nullptr;
    const DeviceIndex device = current_device();
    return raw_alloc_with_stream(size, c10::cuda::getCurrentCUDAStream(device).stream());
  }
  void* raw_alloc_with_stream(size_t size, cudaStream_t stream) override {
    if (size == 0) return nullptr;
    const DeviceIndex device = current_device();
    if (is_native(device, stream)) return native_->raw_alloc_with_stream(size, stream);
    void* const at = take(size, device, stream);
    return at != nullptr ? at : native_->raw_alloc_with_stream(size, stream);
  }
  void raw_delete(void* at) override {
    if (at == nullptr) return;
    if (is_traced()) [[unlikely]]
      record_free(at);
    const vmm_status done = calls_.free(calls_.self, at);
    if (done == VMM_SUCCESS) [[likely]]
      return;
    if (done == VMM_ERROR_UNKNOWN_ADDRESS) return native_->raw_delete(at);
    // In a forked child, inherited memory is the parent's.
    if (done != VMM_ERROR_NOT_PERMITTED)
      std::fprintf(stderr, "vmm: %p was not freed: %s\n", at, vmm_last_error_text());
  }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    native_->copy_data(to, from, count);
  }
  void recordStream(const DataPtr& block, c10::cuda::CUDAStream stream) override {
    if (!block.get()) return;
    if (block.get_deleter() != &delete_block) return native_->recordStream(block, stream);
    const vmm_status done = vmm_allocator_record_stream(vmm_, block.get(), stream.stream());
    if (done != VMM_ERROR_UNKNOWN_ADDRESS) return check(done);
    // PyTorch's own allocator checks the deleter, and skips other blocks.
    DataPtr shown(block.get(), block.get(), native_deleter_, block.device());
    native_->recordStream(shown, stream);
    (void)shown.release_context();
  }
  void* getBaseAllocation(void* at, size_t* size) override {
    vmm_allocation block{};
    if (vmm_allocator_find(vmm_, at, &block) != VMM_SUCCESS)
      return native_->getBaseAllocation(at, size);
    if (size != nullptr) *size = block.size_bytes;
    return block.base;
  }

  // ---- setting up, limits, caches --------------------------------------------------------------

  void init(int device_count) override { native_->init(device_count); }
  bool initialized() override { return native_->initialized(); }
  void enable(bool value) override { native_->enable(value); }
  bool isEnabled() const override { return native_->isEnabled(); }
  std::string name() override { return removed || refused.has_all() ? native_->name() : "vmm"; }

  double getMemoryFraction(DeviceIndex device) override {
    const auto found = fractions_.find(device);
    return found == fractions_.end() ? native_->getMemoryFraction(device) : found->second;
  }
  // One limit for both allocators: leave_the_rest() deducts vmm's memory from PyTorch's share.
  void setMemoryFraction(double fraction, DeviceIndex device) override {
    native_->setMemoryFraction(fraction, device);
    vmm_plugin_memory_fraction(fraction, device);
    fractions_[device] = fraction;
  }
#if VMM_TORCH >= 208
  void emptyCache(MempoolId_t pool) override {
    native_->emptyCache(pool);
    if (pool == MempoolId_t{0, 0}) vmm_plugin_empty_cache();
  }
#else
  void emptyCache() override {
    native_->emptyCache();
    vmm_plugin_empty_cache();
  }
#endif
  void cacheInfo(DeviceIndex device, size_t* largest) override {
    native_->cacheInfo(device, largest);
    for (const vmm_pool_region& each : regions_of(vmm_, device)) {
      if (each.kind == VMM_REGION_FREE) *largest = std::max<size_t>(*largest, each.size_bytes);
    }
  }
#if VMM_TORCH >= 210
  std::vector<torch_cuda::StreamSegmentSize> getExpandableSegmentSizes(
      DeviceIndex device) override {
    return native_->getExpandableSegmentSizes(device);
  }
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex device) override {
    return native_->getMemoryInfo(device);
  }
#endif

  // ---- pools: PyTorch's own --------------------------------------------------------------------

  void beginAllocateToPool(DeviceIndex device, MempoolId_t pool,
                           std::function<bool(cudaStream_t)> takes) override {
    native_->beginAllocateToPool(device, pool, takes);
    check(vmm_allocator_begin_capture(vmm_));
    routes_.add(device, pool, std::move(takes));
  }
  void endAllocateToPool(DeviceIndex device, MempoolId_t pool) override {
    if (routes_.remove(device, pool)) (void)vmm_allocator_end_capture(vmm_);
    native_->endAllocateToPool(device, pool);
  }
#if VMM_TORCH >= 213
  void markCaptureBegin(DeviceIndex device) override {
    native_->markCaptureBegin(device);
    check(vmm_allocator_begin_capture(vmm_));
  }
  void markCaptureEnd(DeviceIndex device) override {
    (void)vmm_allocator_end_capture(vmm_);
    native_->markCaptureEnd(device);
  }
#endif
  void releasePool(DeviceIndex device, MempoolId_t pool) override {
    native_->releasePool(device, pool);
  }
  int getPoolUseCount(DeviceIndex device, MempoolId_t pool) override {
    return native_->getPoolUseCount(device, pool);
  }
#if VMM_TORCH >= 211
  void createOrIncrefPool(DeviceIndex device, MempoolId_t pool,
                          std::shared_ptr<CUDAAllocator> with) override {
    native_->createOrIncrefPool(device, pool, std::move(with));
  }
  void setUseOnOOM(DeviceIndex device, MempoolId_t pool, bool use) override {
    native_->setUseOnOOM(device, pool, use);
  }
#elif VMM_TORCH >= 208
  void createOrIncrefPool(DeviceIndex device, MempoolId_t pool, CUDAAllocator* with) override {
    native_->createOrIncrefPool(device, pool, with);
  }
  void setUseOnOOM(DeviceIndex device, MempoolId_t pool) override {
    native_->setUseOnOOM(device, pool);
  }
#else
  void ensureExistsAndIncrefPool(DeviceIndex device, MempoolId_t pool) override {
    native_->ensureExistsAndIncrefPool(device, pool);
  }
#endif
#if VMM_TORCH >= 210
  void setNoSplit(DeviceIndex device, MempoolId_t pool) override {
    native_->setNoSplit(device, pool);
  }
#endif
  bool checkPoolLiveAllocations(DeviceIndex device, MempoolId_t pool,
                                const std::unordered_set<void*>& expected) override {
    return native_->checkPoolLiveAllocations(device, pool, expected);
  }
  std::shared_ptr<torch_cuda::AllocatorState> getCheckpointState(DeviceIndex device,
                                                                 MempoolId_t pool) override {
    return native_->getCheckpointState(device, pool);
  }
  torch_cuda::CheckpointDelta setCheckpointPoolState(
      DeviceIndex device, std::shared_ptr<torch_cuda::AllocatorState> state) override {
    torch_cuda::CheckpointDelta changes = native_->setCheckpointPoolState(device, std::move(state));
    for (DataPtr& each : changes.dataptrs_allocd) each = adopted(std::move(each));
    return changes;
  }
#if VMM_TORCH >= 213
  DataPtr allocateWithAddress(size_t size, void* at) override {
    return adopted(native_->allocateWithAddress(size, at));
  }
#endif

  // ---- other devices and processes -------------------------------------------------------------

  void enablePeerAccess(DeviceIndex device, DeviceIndex to) override {
    native_->enablePeerAccess(device, to);
    check(vmm_allocator_add_peer(vmm_, to, device));
  }
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device, size_t count,
                          cudaStream_t stream, bool p2p) override {
    using copy = cudaError_t (*)(void*, int, const void*, int, size_t, cudaStream_t);
    static const auto between = runtime<copy>("cudaMemcpyPeerAsync");
    // Without peer access, the plain call cannot copy mapped memory.
    if (!p2p && to_device != from_device && between != nullptr)
      return between(to, to_device, from, from_device, count, stream);
    return native_->memcpyAsync(to, to_device, from, from_device, count, stream, p2p);
  }
  torch_cuda::ShareableHandle shareIpcHandle(void* at) override {
    const std::string exported = export_block(vmm_, at);
    return exported.empty() ? native_->shareIpcHandle(at)
                            : torch_cuda::ShareableHandle{0, exported};
  }
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override {
    return is_exported(handle) ? import_block(vmm_, handle)
                               : native_->getIpcDevPtr(std::move(handle));
  }

  // ---- figures and histories -------------------------------------------------------------------

  DeviceStats getDeviceStats(DeviceIndex device) override {
    DeviceStats all = native_->getDeviceStats(device);
    add_statistics(vmm_, device, all);
    return all;
  }
  void resetAccumulatedStats(DeviceIndex device) override {
    native_->resetAccumulatedStats(device);
    check(vmm_allocator_reset_counts(vmm_, device));
  }
  void resetPeakStats(DeviceIndex device) override {
    native_->resetPeakStats(device);
    check(vmm_allocator_reset_peaks(vmm_, device));
  }
#if VMM_TORCH >= 211
  SnapshotInfo snapshot(MempoolId_t pool, bool traces) override {
    SnapshotInfo all = native_->snapshot(pool, traces);
    return pool == MempoolId_t{0, 0} ? with_ours(std::move(all), traces) : all;
  }
#elif VMM_TORCH >= 208
  SnapshotInfo snapshot(MempoolId_t pool) override {
    SnapshotInfo all = native_->snapshot(pool);
    return pool == MempoolId_t{0, 0} ? with_ours(std::move(all), true) : all;
  }
#else
  SnapshotInfo snapshot() override { return with_ours(native_->snapshot(), true); }
#endif
#if VMM_TORCH >= 211
  void recordHistory(bool enabled, torch_cuda::CreateContextFn gather, size_t entries_max,
                     RecordContext when, bool clears,
                     const std::vector<std::string>& skipped) override {
    native_->recordHistory(enabled, gather, entries_max, when, clears, skipped);
    history_.set(enabled, gather, entries_max, when, clears);
  }
#elif VMM_TORCH >= 208
  void recordHistory(bool enabled, torch_cuda::CreateContextFn gather, size_t entries_max,
                     RecordContext when, bool clears) override {
    native_->recordHistory(enabled, gather, entries_max, when, clears);
    history_.set(enabled, gather, entries_max, when, clears);
  }
#else
  void recordHistory(bool enabled, torch_cuda::CreateContextFn gather, size_t entries_max,
                     RecordContext when) override {
    native_->recordHistory(enabled, gather, entries_max, when);
    history_.set(enabled, gather, entries_max, when, false);
  }
#endif
  bool isHistoryEnabled() override { return native_->isHistoryEnabled(); }
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& words) override {
    native_->recordAnnotation(words);
  }
#if VMM_TORCH >= 208
  void pushCompileContext(std::string& words) override { native_->pushCompileContext(words); }
  void popCompileContext() override { native_->popCompileContext(); }
#endif
#if VMM_TORCH >= 210
  void setUserMetadata(const std::string& words) override { native_->setUserMetadata(words); }
  std::string getUserMetadata() override { return native_->getUserMetadata(); }
#endif
#if VMM_TORCH >= 214
  bool supportsUserMetadata() override { return native_->supportsUserMetadata(); }
  void annotateMemory(const void* at, const std::string& words) override {
    vmm_allocation block{};
    if (vmm_allocator_find(vmm_, at, &block) != VMM_SUCCESS)
      return native_->annotateMemory(at, words);
    if (history_.is_on()) history_.annotated(block, words);
  }
#endif
#if VMM_TORCH >= 212
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void* at) override {
    const context ours = history_.context_of(at);
    return ours != nullptr ? ours : native_->getContextForPointer(at);
  }
  void attachOomRejectionObserver(torch_cuda::OomRejectionObserver observer) override {
    native_->attachOomRejectionObserver(std::move(observer));
  }
#endif
  void attachOutOfMemoryObserver(torch_cuda::OutOfMemoryObserver observer) override {
    native_->attachOutOfMemoryObserver(std::move(observer));
  }
  void attachAllocatorTraceTracker(torch_cuda::AllocatorTraceTracker tracker) override {
    history_.track(tracker);
    native_->attachAllocatorTraceTracker(std::move(tracker));
  }

 private:
  // A process with one device makes no query for the current one.
  [[nodiscard]] DeviceIndex current_device() {
    const DeviceIndex count = device_count_.load(std::memory_order_relaxed);
    if (count == 1) [[likely]]
      return 0;
    if (count == 0) device_count_.store(c10::cuda::device_count(), std::memory_order_relaxed);
    return c10::cuda::current_device();
  }
  // Whether a tracer of blocks is registered.
  [[nodiscard]] bool is_traced() const {
    return (unusual.load(std::memory_order_relaxed) != 0 && history_.is_on()) ||
           c10::impl::GPUTrace::get_trace() != nullptr || c10::memoryProfilingEnabled();
  }
  [[nodiscard]] bool is_native(DeviceIndex device, cudaStream_t stream) {
    if (unusual.load(std::memory_order_acquire) == 0) [[likely]]
      return false;
    if (native_depth > 0 || removed || refused.has(device)) return true;
    return routes_.has_any() && routes_.takes(device, stream);
  }

  // PyTorch's own block with our deleter, which sends it back.
  [[nodiscard]] DataPtr adopted(DataPtr block) const {
    if (native_deleter_ != nullptr && block.get() != nullptr)
      (void)block.compare_exchange_deleter(native_deleter_, &delete_block);
    return block;
  }
  DataPtr allocate_native(size_t size) {
    try {
      return adopted(native_->allocate(size));
    } catch (const c10::OutOfMemoryError&) {
      check(vmm_allocator_trim(vmm_, VMM_ALL_DEVICES, 0, nullptr));
      leave_the_rest(c10::cuda::current_device());
      return adopted(native_->allocate(size));
    }
  }

  // Null: memory is short, and both allocators have released their cached memory.
  void* take(size_t size, DeviceIndex device, cudaStream_t stream) {
    void* at = nullptr;
    vmm_status done = calls_.allocate(calls_.self, size, device, stream, &at);
    if (done != VMM_SUCCESS) [[unlikely]] {
      if (is_shortage(done)) {
        run_free_callbacks();
        native_->emptyCache();
        done = vmm_allocator_allocate(vmm_, size, device, stream, &at);
      }
      if (is_shortage(done)) {
        (void)vmm_allocator_trim(vmm_, device, 0, nullptr);
        leave_the_rest(device);
        return nullptr;
      }
      if (refused.are_accepted && is_refusal(done)) {
        refused.add(device);
        return nullptr;
      }
      check(done);
    }
    if (is_traced()) [[unlikely]]
      record_allocation(size, device, stream, at);
    return at;
  }

  // Where a fraction is set: PyTorch's own allocator may hold what vmm leaves of it.
  void leave_the_rest(DeviceIndex device) {
    const auto fraction = fractions_.find(device);
    if (fraction == fractions_.end() || fraction->second >= 1.0) return;
    vmm_allocator_statistics ours{};
    ours.struct_size = sizeof(ours);
    check(vmm_allocator_get_statistics(vmm_, device, &ours));
    const auto limit = static_cast<double>(ours.limit_bytes);
    const double rest = std::max(0.0, limit - static_cast<double>(ours.held_bytes.current));
    if (limit > 0) native_->setMemoryFraction(fraction->second * rest / limit, device);
  }

  void record_allocation(size_t size, DeviceIndex device, cudaStream_t stream, void* at) {
    if (history_.is_on()) history_.allocated(device, at, size, stream);
    report(at, static_cast<int64_t>((size + 511) & ~size_t{511}), device);
    if (const auto* tracer = c10::impl::GPUTrace::get_trace())
      (*tracer)->trace_gpu_memory_allocation(c10::DeviceType::CUDA,
                                             reinterpret_cast<uintptr_t>(at));
  }
  void record_free(void* at) {
    vmm_allocation block{};
    if (vmm_allocator_find(vmm_, at, &block) != VMM_SUCCESS) return;
    if (history_.is_on()) history_.freed(block);
    report(at, -static_cast<int64_t>(block.size_bytes), static_cast<DeviceIndex>(block.device));
    if (const auto* tracer = c10::impl::GPUTrace::get_trace())
      (*tracer)->trace_gpu_memory_deallocation(c10::DeviceType::CUDA,
                                               reinterpret_cast<uintptr_t>(at));
  }
  void report(void* at, int64_t by, DeviceIndex device) {
    if (!c10::memoryProfilingEnabled()) return;
    const DeviceStats now = getDeviceStats(device);
    c10::reportMemoryUsageToProfiler(at, by, static_cast<size_t>(now.allocated_bytes[0].current),
                                     static_cast<size_t>(now.reserved_bytes[0].current),
                                     c10::Device(c10::DeviceType::CUDA, device));
  }

  SnapshotInfo with_ours(SnapshotInfo all, bool traces) {
    for (DeviceIndex device = 0; device < c10::cuda::device_count(); ++device)
      add_segments(vmm_, device, history_, all.segments);
    if (traces) history_.merge_into(all.device_traces);
    return all;
  }

  // The members that every call reads first.
  std::atomic<DeviceIndex> device_count_{0};  // 0: not queried yet
  vmm_allocator_calls calls_{};
  torch_cuda::CUDAAllocator* const native_;
  vmm_allocator* const vmm_;
  const c10::DeleterFnPtr native_deleter_;
  routes routes_;
  std::unordered_map<DeviceIndex, double> fractions_;  // set by programs when they begin
  history history_;
};

void delete_block(void* at) { installed->raw_delete(at); }

}  // namespace

extern "C" {

// Installs the allocator in PyTorch. Returns "", or the reason of a failure.
__attribute__((visibility("default"))) const char* vmm_torch_install(vmm_allocator* vmm,
                                                                     int stands_back) {
  static std::string text;
  try {
    if (installed == nullptr) {
      torch_cuda::CUDAAllocator* const before = torch_cuda::get();
      if (before == nullptr) return "PyTorch has no CUDA allocator";
      const allocator expected(nullptr);
      text = why_not(before, &expected);
      if (!text.empty()) return text.c_str();
      installed = new allocator(before, vmm);  // lives as long as the process
      refused.are_accepted = stands_back != 0;
      torch_cuda::allocator.store(installed);
      c10::SetAllocator(c10::kCUDA, installed, 10);
    }
    if (removed.exchange(false)) --unusual;
    return "";
  } catch (const std::exception& failure) {
    text = failure.what();
    return text.c_str();
  }
}

// New blocks are PyTorch's own again. Ours stays in between: streams are recorded for the blocks of
// vmm that live on, and they find their way back.
__attribute__((visibility("default"))) void vmm_torch_remove() {
  if (installed != nullptr && !removed.exchange(true)) ++unusual;
}

__attribute__((visibility("default"))) void vmm_torch_route_native(int by) {
  native_depth += by;
  unusual += by;
}

}  // extern "C"

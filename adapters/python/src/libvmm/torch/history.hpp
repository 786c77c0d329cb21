// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The history of record_memory_history, as PyTorch keeps it.
//
// Thread safety: all of it; trackers are called under the lock.
#pragma once

#include <algorithm>
#include <atomic>
#include <deque>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "torch_names.hpp"

namespace vmm_torch {

class history {
 public:
  void set(bool enabled, torch_cuda::CreateContextFn gather, size_t entries_max, RecordContext when,
           bool clears) {
    const std::lock_guard<std::mutex> lock(lock_);
    gather_.store(gather);
    entries_max_ = std::max<size_t>(1, entries_max);
    when_.store(enabled ? when : RecordContext::NEVER);
    if (!enabled || clears) {
      entries_.clear();
      contexts_.clear();
    }
    if (enabled_.exchange(enabled) != enabled) unusual += enabled ? 1 : -1;
  }
  [[nodiscard]] bool is_on() const { return enabled_.load(std::memory_order_relaxed) || tracked_; }
  void track(torch_cuda::AllocatorTraceTracker tracker) {
    const std::lock_guard<std::mutex> lock(lock_);
    trackers_.push_back(std::move(tracker));
    if (!tracked_.exchange(true)) ++unusual;
  }

  void allocated(DeviceIndex device, void* at, size_t size, cudaStream_t stream) {
    const context frames = gather(RecordContext::STATE);
    const std::lock_guard<std::mutex> lock(lock_);
    if (frames != nullptr) contexts_[at] = frames;
    add(TraceEntry::ALLOC, device, at, size, stream,
        when_.load() >= RecordContext::ALLOC ? frames : nullptr);
  }
  void freed(const vmm_allocation& block) {
    const context frames = gather(RecordContext::ALL);
    const std::lock_guard<std::mutex> lock(lock_);
    contexts_.erase(block.base);
    const auto stream = static_cast<cudaStream_t>(block.stream);
    const auto device = static_cast<DeviceIndex>(block.device);
    add(TraceEntry::FREE_REQUESTED, device, block.base, block.requested_bytes, stream, frames);
    add(TraceEntry::FREE_COMPLETED, device, block.base, block.requested_bytes, stream, frames);
  }
#if VMM_TORCH >= 214
  void annotated(const vmm_allocation& block, const std::string& words) {
    const context frames = gather(RecordContext::STATE);
    const std::lock_guard<std::mutex> lock(lock_);
    add(TraceEntry::ANNOTATE, static_cast<DeviceIndex>(block.device), block.base,
        block.requested_bytes, static_cast<cudaStream_t>(block.stream), frames, &words);
  }
#endif

  [[nodiscard]] context context_of(const void* at) {
    const std::lock_guard<std::mutex> lock(lock_);
    const auto found = contexts_.find(at);
    return found == contexts_.end() ? nullptr : found->second;
  }
  // Adds the entries to those of PyTorch's own allocator, in the order of their times.
  void merge_into(std::vector<std::vector<TraceEntry>>& traces) {
    const std::lock_guard<std::mutex> lock(lock_);
    if (entries_.empty()) return;
    const auto to_ns = clock_.makeConverter();
    for (TraceEntry each : entries_) {
      each.time_.t_ = to_ns(each.time_.approx_t_) / 1000;
      const auto device = static_cast<size_t>(each.device_);
      if (traces.size() <= device) traces.resize(device + 1);
      traces[device].push_back(std::move(each));
    }
    for (auto& trace : traces) {
      std::stable_sort(trace.begin(), trace.end(), [](const TraceEntry& a, const TraceEntry& b) {
        return a.time_.t_ < b.time_.t_;
      });
    }
  }

 private:
  [[nodiscard]] context gather(RecordContext least) const {
    const auto how = gather_.load();
    if (how == nullptr || when_.load(std::memory_order_relaxed) < least) return nullptr;
    return how();
  }
  void add(TraceEntry::Action action, DeviceIndex device, void* at, size_t size,
           cudaStream_t stream, context frames,
           [[maybe_unused]] const std::string* words = nullptr) {
    TraceEntry made(action, device, reinterpret_cast<size_t>(at), size, stream,
#if VMM_TORCH >= 208
                    MempoolId_t{0, 0},
#endif
                    c10::getApproximateTime(), std::move(frames));
#if VMM_TORCH >= 210
    made.user_metadata_ = words != nullptr ? *words : torch_cuda::get()->getUserMetadata();
#endif
    for (const auto& tracker : trackers_) tracker(made);
    if (!enabled_.load(std::memory_order_relaxed)) return;
    if (entries_.size() >= entries_max_) entries_.pop_front();
    entries_.push_back(std::move(made));
  }

  std::mutex lock_;
  std::deque<TraceEntry> entries_;
  std::unordered_map<const void*, context> contexts_;
  std::vector<torch_cuda::AllocatorTraceTracker> trackers_;
  std::atomic<bool> tracked_{false};
  c10::ApproximateClockToUnixTimeConverter clock_;
  std::atomic<torch_cuda::CreateContextFn> gather_{nullptr};
  std::atomic<RecordContext> when_{RecordContext::NEVER};
  size_t entries_max_ = 1;
  std::atomic<bool> enabled_{false};
};

}  // namespace vmm_torch

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Which streams' blocks go to a pool of PyTorch's own.
//
// Thread safety: all of it. Cost: has_any() one load; takes() a shared lock and one call a route.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <mutex>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "torch_names.hpp"

namespace vmm_torch {

class routes {
 public:
  void add(DeviceIndex device, MempoolId_t pool, std::function<bool(cudaStream_t)> takes) {
    const std::unique_lock<std::shared_mutex> lock(lock_);
    routes_.push_back({device, pool, std::move(takes)});
    ++unusual;
    count_.store(routes_.size(), std::memory_order_release);
  }
  // Removes the latest one to the pool. False: the pool has no route.
  bool remove(DeviceIndex device, MempoolId_t pool) {
    const std::unique_lock<std::shared_mutex> lock(lock_);
    const auto found = std::find_if(routes_.rbegin(), routes_.rend(), [&](const route& each) {
      return each.device == device && each.pool == pool;
    });
    if (found == routes_.rend()) return false;
    routes_.erase(std::next(found).base());
    --unusual;
    count_.store(routes_.size(), std::memory_order_release);
    return true;
  }
  [[nodiscard]] bool has_any() const { return count_.load(std::memory_order_acquire) != 0; }
  [[nodiscard]] bool takes(DeviceIndex device, cudaStream_t stream) {
    const std::shared_lock<std::shared_mutex> lock(lock_);
    return std::any_of(routes_.begin(), routes_.end(), [&](const route& each) {
      return each.device == device && each.takes(stream);
    });
  }

 private:
  struct route {
    DeviceIndex device;
    MempoolId_t pool;
    std::function<bool(cudaStream_t)> takes;
  };

  std::shared_mutex lock_;
  std::vector<route> routes_;
  std::atomic<size_t> count_{0};
};

}  // namespace vmm_torch

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The allocators that benchmarks on a GPU set beside each other. It imports what it uses, so it is
// the last include of a file.
#pragma once

#include <dlfcn.h>

#include "peers/peer.h"

#include "../tools/program/cuda_calls.hpp"

import vmm.stream;

inline void* native(vmm::stream_handle stream) { return vmm::native_stream<void*>(stream); }

/// An allocator of a device's memory, called through one virtual call an event. Thread safe where
/// it is itself, from open to close.
class contender {
 public:
  explicit contender(std::string name) : name_(std::move(name)) {}
  contender(const contender&) = delete;
  contender& operator=(const contender&) = delete;
  virtual ~contender() = default;

  [[nodiscard]] const std::string& name() const { return name_; }
  virtual void open() = 0;
  [[nodiscard]] virtual vmm::result<vmm::address> allocate(std::uint64_t size_bytes,
                                                           vmm::stream_handle stream) = 0;
  [[nodiscard]] virtual vmm::status free(vmm::address at, vmm::stream_handle stream) = 0;
  [[nodiscard]] virtual std::uint64_t peak_reserved_bytes() = 0;
  virtual void close() = 0;

 private:
  std::string name_;
};

class vmm_pool : public contender {
 public:
  vmm_pool(std::string name, vmm::cuda_driver& driver, vmm::pool_options options = {})
      : contender(std::move(name)), driver_(driver), options_(options) {}
  void open() override { pool_.emplace(driver_, options_); }
  [[nodiscard]] vmm::result<vmm::address> allocate(std::uint64_t size_bytes,
                                                   vmm::stream_handle stream) override {
    return pool_->allocate(size_bytes, stream);
  }
  [[nodiscard]] vmm::status free(vmm::address at, vmm::stream_handle stream) override {
    return pool_->free(at, stream);
  }
  [[nodiscard]] std::uint64_t peak_reserved_bytes() override {
    return pool_->statistics().peak_mapped_bytes;
  }
  void close() override { pool_.reset(); }

 private:
  vmm::cuda_driver& driver_;
  vmm::pool_options options_;
  std::optional<vmm::stream_pool> pool_;
};

/// Of a program that announces its captures and forgets its streams: a warm call calls no driver.
inline vmm::pool_options promising() {
  vmm::pool_options options;
  options.captures_announced = true;
  options.streams_forgotten = true;
  return options;
}

inline vmm::error refused(const char* detail) {
  return vmm::refuse(vmm::errc::out_of_memory, detail);
}

/// The driver's own pool, which keeps what is freed.
class driver_pool : public contender {
 public:
  explicit driver_pool(vmm::cuda_driver& driver)
      : contender("cuMemAllocAsync"),
        allocate_(call_of<PFN_cuMemAllocAsync_v11020>(driver, "cuMemAllocAsync", 11020)),
        free_(call_of<PFN_cuMemFreeAsync_v11020>(driver, "cuMemFreeAsync", 11020)),
        trim_(call_of<PFN_cuMemPoolTrimTo_v11020>(driver, "cuMemPoolTrimTo", 11020)),
        set_(call_of<PFN_cuMemPoolSetAttribute_v11020>(driver, "cuMemPoolSetAttribute", 11020)),
        get_(call_of<PFN_cuMemPoolGetAttribute_v11020>(driver, "cuMemPoolGetAttribute", 11020)) {
    const auto default_pool =
        call_of<PFN_cuDeviceGetDefaultMemPool_v11020>(driver, "cuDeviceGetDefaultMemPool", 11020);
    if (default_pool(&pool_, driver.home().ordinal) != CUDA_SUCCESS) stop("no asynchronous pool");
    set(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, ~std::uint64_t{0});
  }
  void open() override { set(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, 0); }
  [[nodiscard]] vmm::result<vmm::address> allocate(std::uint64_t size_bytes,
                                                   vmm::stream_handle stream) override {
    CUdeviceptr at = 0;
    const CUresult code = allocate_(&at, size_bytes, static_cast<CUstream>(native(stream)));
    if (code != CUDA_SUCCESS) return refused("cuMemAllocAsync refuses");
    return vmm::address{at};
  }
  [[nodiscard]] vmm::status free(vmm::address at, vmm::stream_handle stream) override {
    const CUresult code = free_(at.value, static_cast<CUstream>(native(stream)));
    if (code != CUDA_SUCCESS) return refused("cuMemFreeAsync refuses");
    return {};
  }
  [[nodiscard]] std::uint64_t peak_reserved_bytes() override {
    std::uint64_t bytes = 0;
    (void)get_(pool_, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &bytes);
    return bytes;
  }
  void close() override {
    if (trim_(pool_, 0) != CUDA_SUCCESS) stop("cuMemPoolTrimTo refuses");
  }

 private:
  void set(CUmemPool_attribute what, std::uint64_t value) {
    if (set_(pool_, what, &value) != CUDA_SUCCESS) stop("cuMemPoolSetAttribute refuses");
  }

  PFN_cuMemAllocAsync_v11020 allocate_;
  PFN_cuMemFreeAsync_v11020 free_;
  PFN_cuMemPoolTrimTo_v11020 trim_;
  PFN_cuMemPoolSetAttribute_v11020 set_;
  PFN_cuMemPoolGetAttribute_v11020 get_;
  CUmemoryPool pool_ = nullptr;
};

class peer_allocator : public contender {
 public:
  explicit peer_allocator(const vmm_peer& peer) : contender(peer.name), peer_(peer) {}
  void open() override { expect(peer_.open()); }
  [[nodiscard]] vmm::result<vmm::address> allocate(std::uint64_t size_bytes,
                                                   vmm::stream_handle stream) override {
    void* const at = peer_.allocate(size_bytes, native(stream));
    if (at == nullptr) return refused("a peer refuses to allocate");
    return vmm::address::from_native(at);
  }
  [[nodiscard]] vmm::status free(vmm::address at, vmm::stream_handle stream) override {
    if (peer_.release(at.as<void>(), native(stream)) != 0) return refused("a peer refuses to free");
    return {};
  }
  [[nodiscard]] std::uint64_t peak_reserved_bytes() override { return peer_.peak_reserved_bytes(); }
  void close() override { expect(peer_.close()); }

 private:
  void expect(int code) {
    if (code != 0) stop(name() + ": " + peer_.describe());
  }
  vmm_peer peer_;
};

/// What a library of peers (peers/peer.h) brings; ends the program where it brings nothing.
inline std::vector<std::unique_ptr<contender>> open_peers(const std::string& library) {
  void* const opened = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (opened == nullptr) stop(::dlerror());
  const auto list = reinterpret_cast<vmm_peers_function>(::dlsym(opened, "vmm_peers"));
  if (list == nullptr) stop(library + " is not a library of peers");
  const vmm_peer* first = nullptr;
  const int count = list(&first);
  std::vector<std::unique_ptr<contender>> all;
  for (int i = 0; i < count; ++i) all.push_back(std::make_unique<peer_allocator>(first[i]));
  return all;
}

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include "device.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>

#include "../../backends/cuda/abi.h"

import vmm;
import vmm.backend;
import vmm.base;

namespace vmm::tools {
namespace {

// A driver of the library, in the owner's process.
class library_device final : public owner_device {
 public:
  explicit library_device(any_backend driver) : driver_(std::move(driver)) {}

  std::optional<device_memory> create(std::uint64_t size_bytes) override {
    const auto made = driver_.create(
        {.size_bytes = size_bytes, .where = driver_.home(), .shareable = share_kind::posix_fd});
    if (!made) return std::nullopt;
    const auto shared = driver_.export_handle(*made, share_kind::posix_fd);
    if (!shared) {
      (void)driver_.release(*made).has_value();
      return std::nullopt;
    }
    return device_memory{static_cast<std::uint64_t>(*made), static_cast<int>(shared->descriptor)};
  }
  void release(const device_memory& memory) override {
    if (memory.handle != 0)
      (void)driver_.release(static_cast<physical_handle>(memory.handle)).has_value();
    ::close(memory.descriptor);
  }
  std::uint64_t total_bytes() const override { return total_bytes_; }

  [[nodiscard]] std::string prepare() {
    const auto memory = driver_.query_memory(driver_.home());
    if (!memory) return describe(memory.error());
    total_bytes_ = memory->total_bytes;
    return "";
  }

 private:
  any_backend driver_;
  std::uint64_t total_bytes_ = 0;
};

// CUDA after cuInit alone: the owner has no memory on the device.
class cuda_device final : public owner_device {
 public:
  [[nodiscard]] std::string open(const std::string& digits) {
    const loaded_library loaded = load_named("libcuda.so.1");
    void* const library = loaded.handle;
    if (library == nullptr)
      return std::string("libcuda.so.1 cannot be loaded (") + loaded.reason +
             "): install the CUDA driver";
    const auto find = [&](const char* name, auto& call) {
      call = reinterpret_cast<std::remove_reference_t<decltype(call)>>(::dlsym(library, name));
      return call != nullptr;
    };
    PFN_cuInit_v2000 init = nullptr;
    PFN_cuDeviceGetCount_v2000 get_count = nullptr;
    PFN_cuDeviceGet_v2000 get = nullptr;
    CUresult (*get_uuid)(CUuuid*, CUdevice) = nullptr;
    CUresult (*get_bytes)(std::size_t*, CUdevice) = nullptr;
    if (!find("cuInit", init) || !find("cuDeviceGetCount", get_count) ||
        !find("cuDeviceGet", get) || !find("cuDeviceGetUuid_v2", get_uuid) ||
        !find("cuDeviceTotalMem_v2", get_bytes) || !find("cuMemCreate", create_) ||
        !find("cuMemRelease", release_) || !find("cuMemExportToShareableHandle", export_))
      return "the CUDA driver is older than 11.4";
    int count = 0;
    if (init(0) != CUDA_SUCCESS || get_count(&count) != CUDA_SUCCESS)
      return "the CUDA driver finds no device";
    for (int i = 0; i < count; ++i) {
      CUdevice device{};
      CUuuid uuid{};
      std::size_t bytes = 0;
      if (get(&device, i) != CUDA_SUCCESS || get_uuid(&uuid, device) != CUDA_SUCCESS ||
          text_of(uuid) != digits || get_bytes(&bytes, device) != CUDA_SUCCESS)
        continue;
      device_ = i;
      total_bytes_ = bytes;
      return keep_export() ? "" : "the CUDA device does not export memory as descriptors";
    }
    return "no CUDA device has the UUID " + digits;
  }

  std::optional<device_memory> create(std::uint64_t size_bytes) override {
    CUmemAllocationProp what{};
    what.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    what.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    what.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    what.location.id = device_;
    CUmemGenericAllocationHandle made{};
    if (create_(&made, size_bytes, &what, 0) != CUDA_SUCCESS) return std::nullopt;
    int descriptor = -1;
    if (export_(&descriptor, made, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) != CUDA_SUCCESS) {
      (void)release_(made);
      return std::nullopt;
    }
    return device_memory{static_cast<std::uint64_t>(made), descriptor};
  }
  void release(const device_memory& memory) override {
    if (memory.handle != 0)
      (void)release_(static_cast<CUmemGenericAllocationHandle>(memory.handle));
    ::close(memory.descriptor);
  }
  std::uint64_t total_bytes() const override { return total_bytes_; }

 private:
  static std::string text_of(const CUuuid& uuid) {
    std::string text;
    for (const char each : uuid.bytes) {
      constexpr std::string_view digits = "0123456789abcdef";
      text += digits[static_cast<unsigned char>(each) >> 4];
      text += digits[static_cast<unsigned char>(each) & 15];
    }
    return text;
  }
  // The first export while no other is open takes 0.8 ms: one stays open.
  bool keep_export() { return create(std::uint64_t{2} << 20).has_value(); }

  PFN_cuMemCreate_v10020 create_ = nullptr;
  PFN_cuMemRelease_v10020 release_ = nullptr;
  PFN_cuMemExportToShareableHandle_v10020 export_ = nullptr;
  int device_ = 0;
  std::uint64_t total_bytes_ = 0;
};

}  // namespace

std::unique_ptr<owner_device> open_device(const std::string& name, std::string& why) {
  if (name == "host" || name == "fake") {
    (void)::unsetenv("VMM_OWNER");  // the owner is not a tenant
    auto driver = open_backend(name);
    if (!driver) {
      why = describe(driver.error());
      return nullptr;
    }
    auto made = std::make_unique<library_device>(std::move(*driver));
    why = made->prepare();
    if (why.empty()) return made;
    return nullptr;
  }
  auto made = std::make_unique<cuda_device>();
  why = made->open(name);
  if (why.empty()) return made;
  return nullptr;
}

}  // namespace vmm::tools

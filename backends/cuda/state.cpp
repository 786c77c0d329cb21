// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.cuda - an open device: the driver, what the device can do, its context, and the memory that
// its reservations are made of.
module;
#include "loader.h"

module vmm.cuda;

import vmm.backend;
import vmm.base;
import vmm.std;
import :mapped;
import :native;
import :plain;
import :state;

namespace vmm {
namespace cuda {
namespace {

constexpr std::uint64_t largest_reservation_bytes =
    1ull << 46;  // 64 TiB works, 128 TiB is refused: measured

load_options what_to_load(const cuda_options& options) noexcept {
  const char* const named = environment_text("VMM_CUDA_LIBRARY");
  load_options load{"libcuda.so.1", false, options.allow_multicast};
  if (options.driver_library != nullptr) {
    load.driver_library = options.driver_library;
  } else if (named != nullptr) {
    load.driver_library = named;
    load.is_variable = true;
  }
  return load;
}

// Whether plain memory was selected.
result<bool> wants_plain(const cuda_options& options) noexcept {
  if (options.memory != cuda_memory::from_environment) return options.memory == cuda_memory::plain;
  std::string_view named = "mapped";
  read_text_option("VMM_CUDA_MEMORY", named);
  if (named != "mapped" && named != "plain")
    return refuse_value(named, "VMM_CUDA_MEMORY takes one of mapped, plain");
  return named == "plain";
}

// An error of open(): no device is usable, for any reason.
error unusable(const entry_points& cu, CUresult code, const char* detail) noexcept {
  check(detail != nullptr, "an unusable device is reported without a reason");
  check(code != CUDA_SUCCESS, "an unusable device is reported after CUDA_SUCCESS");
  error failure = error_of(cu, call::none, code);
  failure.code = errc::unavailable;
  failure.detail = detail;
  return failure;
}

}  // namespace

namespace {

constexpr const char* not_loaded = "the driver is called before its library is loaded";

// They are looked up where the options allow multicast, and nowhere else.
bool has_multicast(const entry_points& cu) noexcept {
  check(cu.get_error_name != nullptr, not_loaded);
  return cu.multicast_get_granularity != nullptr && cu.multicast_create != nullptr &&
         cu.multicast_add_device != nullptr && cu.multicast_bind != nullptr &&
         cu.multicast_bind_address != nullptr && cu.multicast_unbind != nullptr;
}

}  // namespace

// Fills features and description from the device's attributes. Values without an attribute were
// measured: docs/contract.md.
status cuda_state::read_device() {
  check(context == nullptr && !can.streams, "a device is read twice, or too late");
  if (attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) == 0) {
    return refuse(errc::not_supported,
                  "the device has no virtual memory management: choose another device or backend");
  }
  can.spanning_unmap = true;
  can.access_per_location = true;
  can.release_while_mapped = true;
  can.unmap_may_stall = true;
  can.fresh_memory_zero = true;
  can.streams = true;
  can.stream_identity = cu.stream_get_id != nullptr && cu.stream_is_capturing != nullptr;
  can.record_all = cu.context_record != nullptr;
  can.copy = true;
  can.capture = cu.stream_is_capturing != nullptr && cu.stream_get_capture != nullptr &&
                cu.exchange_capture_mode != nullptr;
  // The default stream under both of its numbers, 0 and 1 (CU_STREAM_LEGACY), is not captured; that
  // of each thread, 2 (CU_STREAM_PER_THREAD), can be.
  can.capturable_from = 2;
  can.default_stream_alias = 1;
  can.stream_per_thread = 2;
  can.retain = true;
  can.host_location = attribute(CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) != 0;
  can.host_node_location =
      attribute(CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) != 0;
  can.export_posix_fd =
      attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) != 0;
  can.export_fabric = attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED) != 0;
  can.multicast_capable = attribute(CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED) != 0;
  can.multicast = can.multicast_capable && has_multicast(cu);
  can.compression = attribute(CU_DEVICE_ATTRIBUTE_GENERIC_COMPRESSION_SUPPORTED) != 0;
  can.peers = cu.device_can_access_peer != nullptr && cu.device_get_p2p_attribute != nullptr;
  can.export_dma_buf =
      cu.mem_get_range_handle != nullptr && attribute(CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED) != 0;
  can.rdma = attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) != 0;
  can.memory_source = reinterpret_cast<const void*>(cu.mem_create);  // of one library's devices
  can.alias = alias_level::after_work;
  can.read_only = read_only_level::enforced;
  can.max_reservation_bytes = largest_reservation_bytes;
  check(!can.multicast || multicast_allowed, "multicast is a feature although not allowed");
  check(!can.offset_map && !can.short_map, "the driver is reported to map parts of handles");
  read_description();
  return {};
}

void cuda_state::read_description() noexcept {
  check(cu.device_get_name != nullptr, not_loaded);
  constexpr int name_size = static_cast<int>(sizeof description.device_name);
  if (cu.device_get_name(description.device_name, name_size, device) != CUDA_SUCCESS)
    description.device_name[0] = 0;
  check(description.device_name[name_size - 1] == 0, "a device's name has no end");
  static_cast<void>(cu.driver_get_version(&description.driver_version));
  description.compute_major = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  description.compute_minor = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  description.multiprocessor_count = attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  description.dma_buf = attribute(CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED) != 0;
  int node = -1;
  const bool node_known =
      cu.device_get_attribute(&node, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, device) == CUDA_SUCCESS;
  description.closest_host_node = node_known ? node : -1;
}

status cuda_state::find_device() {
  check(cu.init != nullptr, not_loaded);
  check(ordinal >= 0, "a device has a number below zero");
  if (const CUresult code = cu.init(0); code != CUDA_SUCCESS) {
    if (code == CUDA_ERROR_NOT_INITIALIZED) {
      return unusable(
          cu, code,
          "the CUDA driver does not start in a process that was forked after its parent "
          "had started it: start the child with exec (spawn), or fork before");
    }
    return unusable(cu, code,
                    code == CUDA_ERROR_NO_DEVICE
                        ? "the CUDA driver is installed but sees no device: check "
                          "CUDA_VISIBLE_DEVICES and nvidia-smi"
                        : "the CUDA driver is installed but does not start: check nvidia-smi and "
                          "the kernel's log");
  }
  int count = 0;
  if (const CUresult code = cu.device_get_count(&count); code != CUDA_SUCCESS) {
    return unusable(cu, code, "the CUDA driver does not report the number of devices");
  }
  check(count >= 0, "the driver reports a negative number of devices");
  if (ordinal >= count) {
    return refuse(errc::unavailable,
                  detail_text()
                      .add("device ")
                      .add_number(static_cast<std::uint64_t>(ordinal))
                      .add(" was requested, and the CUDA driver sees ")
                      .add_number(static_cast<std::uint64_t>(count))
                      .add(count == 1 ? " device" : " devices")
                      .add("; the first is 0: look at CUDA_VISIBLE_DEVICES")
                      .keep("cuda_options::device is not a device that the CUDA driver sees"));
  }
  if (const CUresult code = cu.device_get(&device, ordinal); code != CUDA_SUCCESS) {
    return unusable(cu, code, "the CUDA driver does not return the device");
  }
  return {};
}

status cuda_state::take_context() {
  check(context == nullptr && transfers == nullptr, "a context is taken twice");
  if (const CUresult code = cu.primary_context_retain(&context, device); code != CUDA_SUCCESS) {
    context = nullptr;
    error failure = error_of(cu, call::none, code);
    failure.detail =
        "the device's primary context cannot be retained: the device is out of memory, or another "
        "process uses it exclusively";
    return failure;
  }
  check(context != nullptr, "the driver retained a context and returned no handle");
  const status made = run(call::create_stream, [&](const entry_points& points) {
    return points.stream_create(&transfers, CU_STREAM_NON_BLOCKING);
  });
  check(!made || transfers != nullptr, "the driver created a stream and returned no handle");
  return made;
}

int cuda_state::attribute(CUdevice_attribute which) const noexcept {
  check(cu.device_get_attribute != nullptr, not_loaded);
  int value = 0;
  return cu.device_get_attribute(&value, which, device) == CUDA_SUCCESS ? value : 0;
}

// Plain memory depends on the device's grants.
status cuda_state::choose_memory(bool is_plain) {
  check(context != nullptr && memory == nullptr, "memory is chosen without a context, or twice");
  constexpr error no_memory =
      refuse(errc::out_of_host_memory, "no host memory for the CUDA backend");
  if (!is_plain) {
    memory.reset(new (std::nothrow) mapped_memory(*this));
    if (memory == nullptr) return no_memory;
    check(!can.contents_stay, "mapped memory is reported as fixed in place");
    return {};
  }
  physical_request like;
  like.where = home();
  const CUmemAllocationProp prop = native(like, can);
  std::size_t granule_bytes = 0;
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  status outcome = run(call::query_granularity, [&](const entry_points& points) {
    return points.mem_get_granularity(&granule_bytes, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  });
  if (outcome) {
    outcome = run(call::memory_info, [&](const entry_points& points) {
      return points.mem_get_info(&free_bytes, &total_bytes);
    });
  }
  if (!outcome) return outcome;
  check(free_bytes <= total_bytes, "a device has more memory free than it has");
  const plain_memory::limits known{granule_bytes, total_bytes, home()};
  memory.reset(new (std::nothrow) plain_memory(*this, known));
  if (memory == nullptr) return refuse(errc::out_of_host_memory, "no host memory for plain memory");
  plain_memory::restrict_features(can);
  check(can.contents_stay && !can.retain, "plain memory reports features that need mappings");
  return {};
}

// Builds a complete state, or destroys the parts that were built.
result<std::unique_ptr<cuda_state>> cuda_state::open(const cuda_options& options) {
  if (options.device < 0) {
    return refuse(errc::bad_option, "cuda_options::device is a device number: 0 or more");
  }
  const result<bool> plain = wants_plain(options);
  if (!plain) return plain.error();
  if (*plain && options.allow_multicast) {
    return refuse(errc::bad_option,
                  "plain memory (cuda_options::memory, VMM_CUDA_MEMORY) cannot be multicast");
  }
  std::unique_ptr<cuda_state> opened(new (std::nothrow) cuda_state);
  if (!opened) return refuse(errc::out_of_host_memory, "no host memory for the CUDA backend");
  const load_options load = what_to_load(options);
  if (const char* problem = load_driver(load, opened->cu); problem != nullptr)
    return refuse(load.is_variable ? errc::bad_option : errc::unavailable, problem);
  opened->ordinal = options.device;
  opened->multicast_allowed = options.allow_multicast;
  if (const status found = opened->find_device(); !found) return found.error();
  if (const status readable = opened->read_device(); !readable) return readable.error();
  if (const status current = opened->take_context(); !current) return current.error();
  if (const status chosen = opened->choose_memory(*plain); !chosen) return chosen.error();
  check(opened->context != nullptr && opened->memory != nullptr, "an opened driver lacks a part");
  return opened;
}

// ---- the context, and the end ------------------------------------------------------------------

current_context::current_context(const entry_points& cu, CUcontext mine) noexcept
    : cu_(cu), mine_(mine) {
  check(mine != nullptr, "no context is made current");
  CUcontext now = nullptr;
  failure_ = cu.context_get_current(&now);
  if (failure_ != CUDA_SUCCESS || now == mine) return;
  failure_ = cu.context_push(mine);
  pushed_ = failure_ == CUDA_SUCCESS;
}

current_context::~current_context() {
  if (!pushed_) return;
  CUcontext popped = nullptr;
  const CUresult code = cu_.context_pop(&popped);
  check(code != CUDA_SUCCESS || popped == mine_, "a driver call left another context current");
}

cuda_state::~cuda_state() {
  check(context != nullptr || transfers == nullptr, "an object has a stream and no context");
  check(made_in.is_here(), "a child destroys what its parent has");
  if (context == nullptr) return;
  if (transfers != nullptr) {
    const current_context current(cu, context);
    static_cast<void>(cu.stream_destroy(transfers));
  }
  static_cast<void>(cu.primary_context_release(device));
}

}  // namespace cuda

status check_cuda_environment() noexcept {
  const result<bool> plain = cuda::wants_plain({});
  return plain ? status{} : plain.error();
}

}  // namespace vmm

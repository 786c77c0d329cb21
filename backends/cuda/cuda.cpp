// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "loader.h"

module vmm.cuda;

import vmm.backend;
import :plain;

namespace vmm {
namespace {

using cuda::entry_points;

constexpr std::uint64_t largest_reservation_bytes =
    1ull << 46;  // 64 TiB works, 128 TiB is refused: measured
constexpr std::size_t inline_grant_count = 16;

// ---- what the driver answers, in vmm's words ---------------------------------------------------

// Failures of work that somebody launched, and of the machine. They come back from calls that have
// nothing to do with them, and the context answers every later call with the same code.
errc sticky_code(CUresult code) noexcept {
  switch (code) {
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED: return errc::foreign_error;
    case CUDA_ERROR_DEVICE_UNAVAILABLE:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_SYSTEM_NOT_READY:
    case CUDA_ERROR_MPS_CLIENT_TERMINATED:
    case CUDA_ERROR_EXTERNAL_DEVICE: return errc::device_lost;
    default: return errc::none;
  }
}

errc capture_code(CUresult code) noexcept {
  return code >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED &&
                 code <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD
             ? errc::not_permitted
             : errc::none;
}

errc code_of(call where, CUresult code) noexcept {
  if (const errc sticky = sticky_code(code); sticky != errc::none) return sticky;
  if (const errc capture = capture_code(code); capture != errc::none) return capture;
  switch (code) {
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_INVALID_DEVICE:
    case CUDA_ERROR_INVALID_HANDLE:
    case CUDA_ERROR_NOT_MAPPED: return errc::invalid_argument;
    case CUDA_ERROR_OUT_OF_MEMORY:
      return where == call::reserve ? errc::out_of_addresses : errc::out_of_memory;
    case CUDA_ERROR_UNKNOWN:  // the answer to a descriptor that is not memory
      return where == call::import_handle ? errc::invalid_argument : errc::internal;
    case CUDA_ERROR_ALREADY_MAPPED:
    case CUDA_ERROR_ILLEGAL_STATE: return errc::in_use;
    case CUDA_ERROR_NOT_SUPPORTED: return errc::not_supported;
    case CUDA_ERROR_NOT_PERMITTED: return errc::not_permitted;
    case CUDA_ERROR_NOT_INITIALIZED:
    case CUDA_ERROR_DEINITIALIZED:
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_STUB_LIBRARY:
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH: return errc::unavailable;
    default: return errc::internal;
  }
}

const char* advice_for(errc code, CUresult native) noexcept {
  if (capture_code(native) != errc::none) {
    return "a stream is being captured into a graph and this call may not run meanwhile: make it "
           "before the capture, "
           "or capture in relaxed mode";
  }
  switch (code) {
    case errc::out_of_memory:
      return "the device has no physical memory left: release or trim some, then try again";
    case errc::out_of_addresses: return "no address range of this size is left: reserve less";
    case errc::invalid_argument:
      return "the driver refused a size, an address or a handle of this call";
    case errc::in_use: return "the range or the object is in use: unmap or unbind it first";
    case errc::not_supported:
      return "the device or the driver cannot do this: look at feature_set() before";
    case errc::not_permitted:
      return "the device could, but this process may not (a fabric handle needs an IMEX channel)";
    case errc::unavailable:
      return "the driver is not running for this process: it is shutting down or never started";
    case errc::foreign_error:
      return "an earlier kernel or copy in this context failed; nothing works in it any more, "
             "start a new process";
    case errc::device_lost: return "the device or its context no longer works: start a new process";
    default: return "the driver reports a condition that vmm has no word for";
  }
}

error error_of(const entry_points& cu, call where, CUresult code) noexcept {
  const char* text = nullptr;
  if (cu.get_error_name(code, &text) != CUDA_SUCCESS || text == nullptr)
    text = "a code without a name";
  const errc meaning = code_of(where, code);
  return error{meaning, where, static_cast<std::int64_t>(code), text, advice_for(meaning, code)};
}

// ---- vmm's words in the driver's ---------------------------------------------------------------

// Location types by number: headers before 12.2 name only the device.
constexpr auto host_type = static_cast<CUmemLocationType>(2);
constexpr auto host_node_type = static_cast<CUmemLocationType>(3);
#if CUDA_VERSION >= 12030
static_assert(CU_MEM_LOCATION_TYPE_HOST == host_type);
static_assert(CU_MEM_LOCATION_TYPE_HOST_NUMA == host_node_type);
#endif

CUmemLocation native(location where) noexcept {
  CUmemLocation out{};
  out.id = where.ordinal;
  switch (where.kind) {
    case location::place::device: out.type = CU_MEM_LOCATION_TYPE_DEVICE; break;
    case location::place::host: out.type = host_type; break;
    case location::place::host_node: out.type = host_node_type; break;
  }
  return out;
}

location from_native(const CUmemLocation& where) noexcept {
  if (where.type == host_type) return host();
  if (where.type == host_node_type) return host_node(where.id);
  return device(where.id);
}

constexpr unsigned fabric_bit =
    8;  // CU_MEM_HANDLE_TYPE_FABRIC, which headers before 12.3 do not name
#if CUDA_VERSION >= 12030
static_assert(CU_MEM_HANDLE_TYPE_FABRIC == fabric_bit);
#endif

// share_kind numbers its bits without a gap; the driver's bit for a fabric handle is 8.
CUmemAllocationHandleType native(share_kind kinds) noexcept {
  const auto bits = static_cast<unsigned>(kinds);
  const unsigned plain = bits & ~static_cast<unsigned>(share_kind::fabric);
  const unsigned fabric = (bits & static_cast<unsigned>(share_kind::fabric)) != 0 ? fabric_bit : 0;
  return static_cast<CUmemAllocationHandleType>(plain | fabric);
}

share_kind from_native(CUmemAllocationHandleType kinds) noexcept {
  const auto bits = static_cast<unsigned>(kinds);
  const unsigned fabric = (bits & fabric_bit) != 0 ? static_cast<unsigned>(share_kind::fabric) : 0;
  return static_cast<share_kind>((bits & 3u) | fabric);
}

CUmemAccess_flags native(access rights) noexcept {
  switch (rights) {
    case access::none: return CU_MEM_ACCESS_FLAGS_PROT_NONE;
    case access::read: return CU_MEM_ACCESS_FLAGS_PROT_READ;
    case access::read_write: return CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  }
  return CU_MEM_ACCESS_FLAGS_PROT_NONE;
}

CUmemAllocationProp native(const physical_request& request, const features& can) noexcept {
  CUmemAllocationProp out{};
  out.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  out.requestedHandleTypes = native(request.shareable);
  out.location = native(request.where);
  const bool on_device = request.where.kind == location::place::device;
  if (request.compressible && can.compression && on_device) {
    out.allocFlags.compressionType = CU_MEM_ALLOCATION_COMP_GENERIC;
  }
  out.allocFlags.gpuDirectRDMACapable = request.rdma_capable ? 1 : 0;
  return out;
}

CUmulticastObjectProp native(const multicast_request& request) noexcept {
  CUmulticastObjectProp out{};
  out.numDevices = request.device_count;
  out.size = request.size_bytes;
  out.handleTypes = static_cast<unsigned long long>(native(request.shareable));
  return out;
}

CUmemGenericAllocationHandle native(physical_handle handle) noexcept {
  return static_cast<CUmemGenericAllocationHandle>(handle);
}
CUstream native(stream_handle stream) noexcept {
  return reinterpret_cast<CUstream>(static_cast<std::uintptr_t>(stream));
}
CUstreamCaptureMode native(capture_mode mode) noexcept {
  switch (mode) {
    case capture_mode::any_thread: return CU_STREAM_CAPTURE_MODE_GLOBAL;
    case capture_mode::this_thread: return CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    case capture_mode::relaxed: return CU_STREAM_CAPTURE_MODE_RELAXED;
  }
  return CU_STREAM_CAPTURE_MODE_GLOBAL;
}
CUevent native(event_handle event) noexcept {
  return reinterpret_cast<CUevent>(static_cast<std::uintptr_t>(event));
}

// ---- the current context -----------------------------------------------------------------------

// Makes `mine` current for the guard's life and restores what was current. One cheap look when it
// already is.
class current_context {
 public:
  current_context(const entry_points& cu, CUcontext mine) noexcept : cu_(cu) {
    CUcontext now = nullptr;
    failure_ = cu.context_get_current(&now);
    if (failure_ != CUDA_SUCCESS || now == mine) return;
    failure_ = cu.context_push(mine);
    pushed_ = failure_ == CUDA_SUCCESS;
  }
  ~current_context() {
    CUcontext popped = nullptr;
    if (pushed_) static_cast<void>(cu_.context_pop(&popped));
  }
  current_context(const current_context&) = delete;
  current_context& operator=(const current_context&) = delete;

  [[nodiscard]] CUresult failure() const noexcept { return failure_; }

 private:
  const entry_points& cu_;
  CUresult failure_ = CUDA_SUCCESS;
  bool pushed_ = false;
};

constexpr const char* no_capture_detail =
    "the CUDA driver has no calls that tell whether a stream is being captured";
constexpr const char* multicast_detail =
    "multicast is off: open the device with cuda_options::allow_multicast on a machine where it "
    "may be used";

}  // namespace

// ---- the object --------------------------------------------------------------------------------

struct cuda_driver::state {
  process_mark made_in;
  entry_points cu;
  CUdevice device = 0;
  CUcontext context = nullptr;
  CUstream transfers = nullptr;  // read and write run here
  std::int32_t ordinal = 0;
  bool multicast_allowed = false;
  std::unique_ptr<plain_space> plain;  // null: memory is mapped
  features can;
  cuda_description description;

  ~state() {
    if (context == nullptr) return;
    if (transfers != nullptr) {
      const current_context current(cu, context);
      static_cast<void>(cu.stream_destroy(transfers));
    }
    static_cast<void>(cu.primary_context_release(device));
  }

  // Runs `body(cu)`, which answers a CUresult, with the context current, and says in vmm's words
  // how it went.
  template <class Body>
  [[nodiscard]] status run(call where, Body&& body) {
    if (!made_in.is_here()) [[unlikely]]
      return refuse_forked(where);
    const current_context current(cu, context);
    CUresult code = current.failure();
    if (code == CUDA_SUCCESS) code = body(cu);
    if (code != CUDA_SUCCESS) [[unlikely]]
      return error_of(cu, where, code);
    return {};
  }

  // The same for calls that hand something back: `value` holds it after `body` succeeded.
  template <class Value, class Native, class Body>
  [[nodiscard]] result<Value> make(call where, Native& made, Body&& body) {
    if (const status outcome = run(where, body); !outcome) return outcome.error();
    return static_cast<Value>(made);
  }

  [[nodiscard]] status find_device();
  [[nodiscard]] status read_device();
  [[nodiscard]] status take_context();
  [[nodiscard]] status make_plain();
  [[nodiscard]] result<address_range> reserve_plain(const reserve_request& request);
  [[nodiscard]] status free_plain(address_range range);
  [[nodiscard]] int attribute(CUdevice_attribute which) const noexcept {
    int value = 0;
    return cu.device_get_attribute(&value, which, device) == CUDA_SUCCESS ? value : 0;
  }
};

cuda_driver::cuda_driver(std::unique_ptr<state> opened) noexcept : state_(std::move(opened)) {}
cuda_driver::~cuda_driver() { leave_if_forked(); }
cuda_driver::cuda_driver(cuda_driver&&) noexcept = default;
cuda_driver& cuda_driver::operator=(cuda_driver&& other) noexcept {
  if (this != &other) {
    users_ = std::move(other.users_);
    leave_if_forked();
    state_ = std::move(other.state_);
  }
  return *this;
}

// The context is the parent's: the CUDA driver's own state does not survive a fork.
void cuda_driver::leave_if_forked() noexcept {
  if (state_ != nullptr && !state_->made_in.is_here()) leave_behind(state_.release());
}

const features& cuda_driver::feature_set() const noexcept { return state_->can; }
location cuda_driver::home() const noexcept { return vmm::device(state_->ordinal); }
const cuda_description& cuda_driver::description() const noexcept { return state_->description; }
std::uint64_t cuda_driver::native_context() const noexcept {
  return static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(state_->context));
}

void* cuda_driver::entry_point(const char* symbol, std::int32_t version) const noexcept {
  if (!state_->made_in.is_here()) return nullptr;
  if (!state_->multicast_allowed && std::string_view(symbol).starts_with("cuMulticast"))
    return nullptr;
  return state_->cu.find(symbol, version);
}

// ---- opening -----------------------------------------------------------------------------------

namespace {

const char* library_name(const cuda_options& options) noexcept {
  if (options.driver_library != nullptr) return options.driver_library;
  const char* named = std::getenv("VMM_CUDA_LIBRARY");
  return named != nullptr && *named != '\0' ? named : "libcuda.so.1";
}

// Whether memory is to be plain.
result<bool> wants_plain(const cuda_options& options) noexcept {
  if (options.memory != cuda_memory::from_environment) return options.memory == cuda_memory::plain;
  std::string_view named = "mapped";
  read_text_option("VMM_CUDA_MEMORY", named);
  if (named != "mapped" && named != "plain")
    return refuse(errc::bad_option, "VMM_CUDA_MEMORY takes one of mapped, plain");
  return named == "plain";
}

// An error of open(): there is no usable device, whatever word the driver has for it.
error unusable(const entry_points& cu, CUresult code, const char* detail) noexcept {
  error failure = error_of(cu, call::none, code);
  failure.code = errc::unavailable;
  failure.detail = detail;
  return failure;
}

// Device attributes by number where headers before the CUDA version in the comment do not name
// them.
constexpr auto fabric_attribute = static_cast<CUdevice_attribute>(128);         // 12.3
constexpr auto multicast_attribute = static_cast<CUdevice_attribute>(132);      // 12.1
constexpr auto host_node_attribute = static_cast<CUdevice_attribute>(134);      // 12.2
constexpr auto host_node_vmm_attribute = static_cast<CUdevice_attribute>(141);  // 12.8
constexpr auto host_vmm_attribute = static_cast<CUdevice_attribute>(145);       // 13.0
#if CUDA_VERSION >= 13000
static_assert(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED == fabric_attribute);
static_assert(CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED == multicast_attribute);
static_assert(CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID == host_node_attribute);
static_assert(CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED ==
              host_node_vmm_attribute);
static_assert(CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED == host_vmm_attribute);
#endif

}  // namespace

// Fills features and description from the device's attributes. What no attribute tells was
// measured: docs/contract.md.
status cuda_driver::state::read_device() {
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
  can.copy = true;
  can.capture = cu.stream_is_capturing != nullptr && cu.stream_get_capture != nullptr &&
                cu.exchange_capture_mode != nullptr;
  // The default stream under both of its numbers, 0 and 1 (CU_STREAM_LEGACY), is not captured; that
  // of each thread, 2 (CU_STREAM_PER_THREAD), can be.
  can.capturable_from = 2;
  can.retain = true;
  can.host_location = attribute(host_vmm_attribute) != 0;
  can.host_node_location = attribute(host_node_vmm_attribute) != 0;
  can.export_posix_fd =
      attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) != 0;
  can.export_fabric = attribute(fabric_attribute) != 0;
  can.multicast = cu.multicast_create != nullptr && attribute(multicast_attribute) != 0;
  can.compression = attribute(CU_DEVICE_ATTRIBUTE_GENERIC_COMPRESSION_SUPPORTED) != 0;
  can.rdma = attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) != 0;
  can.alias = alias_level::after_work;
  can.read_only = read_only_level::enforced;
  can.max_reservation_bytes = largest_reservation_bytes;

  constexpr int name_size = static_cast<int>(sizeof description.device_name);
  if (cu.device_get_name(description.device_name, name_size, device) != CUDA_SUCCESS)
    description.device_name[0] = 0;
  static_cast<void>(cu.driver_get_version(&description.driver_version));
  description.compute_major = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  description.compute_minor = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  description.multiprocessor_count = attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  description.dma_buf = attribute(CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED) != 0;
  int node = -1;
  const bool node_known =
      cu.device_get_attribute(&node, host_node_attribute, device) == CUDA_SUCCESS;
  description.closest_host_node = node_known ? node : -1;
  return {};
}

status cuda_driver::state::find_device() {
  if (const CUresult code = cu.init(0); code != CUDA_SUCCESS) {
    if (code == CUDA_ERROR_NOT_INITIALIZED) {
      return unusable(
          cu, code,
          "the CUDA driver does not start in a process that was forked after its parent "
          "had started it: start the child with exec (spawn), or fork before");
    }
    return unusable(cu, code,
                    code == CUDA_ERROR_NO_DEVICE ? "the CUDA driver is there but sees no device: "
                                                   "look at CUDA_VISIBLE_DEVICES and nvidia-smi"
                                                 : "the CUDA driver is there but does not start: "
                                                   "look at nvidia-smi and the kernel's log");
  }
  int count = 0;
  if (const CUresult code = cu.device_get_count(&count); code != CUDA_SUCCESS) {
    return unusable(cu, code, "the CUDA driver does not say how many devices there are");
  }
  if (ordinal >= count) {
    return refuse(errc::unavailable,
                  "cuda_options::device is not a device that the CUDA driver sees");
  }
  if (const CUresult code = cu.device_get(&device, ordinal); code != CUDA_SUCCESS) {
    return unusable(cu, code, "the CUDA driver does not give the device");
  }
  return {};
}

status cuda_driver::state::take_context() {
  if (const CUresult code = cu.primary_context_retain(&context, device); code != CUDA_SUCCESS) {
    context = nullptr;
    error failure = error_of(cu, call::none, code);
    failure.detail =
        "the device's primary context could not be had: the device is out of memory, or another "
        "process holds it for itself";
    return failure;
  }
  return run(call::create_stream, [&](const entry_points& points) {
    return points.stream_create(&transfers, CU_STREAM_NON_BLOCKING);
  });
}

result<cuda_driver> cuda_driver::open(const cuda_options& options) {
  if (options.device < 0) {
    return refuse(errc::bad_option, "cuda_options::device is a device number: 0 or more");
  }
  const result<bool> plain = wants_plain(options);
  if (!plain) return plain.error();
  if (*plain && options.allow_multicast) {
    return refuse(errc::bad_option,
                  "plain memory (cuda_options::memory, VMM_CUDA_MEMORY) cannot be multicast");
  }
  std::unique_ptr<state> opened(new (std::nothrow) state);
  if (!opened) return refuse(errc::out_of_host_memory, "no host memory for the CUDA backend");
  const cuda::load_options load{library_name(options), options.allow_multicast};
  if (const char* problem = cuda::load_driver(load, opened->cu); problem != nullptr) {
    return refuse(errc::unavailable, problem);
  }
  opened->ordinal = options.device;
  opened->multicast_allowed = options.allow_multicast;
  if (const status found = opened->find_device(); !found) return found.error();
  if (const status readable = opened->read_device(); !readable) return readable.error();
  if (const status current = opened->take_context(); !current) return current.error();
  if (*plain) {
    if (const status made = opened->make_plain(); !made) return made.error();
  }
  return cuda_driver(std::move(opened));
}

// ---- plain memory ------------------------------------------------------------------------------

// What the device grants for plain memory, and the accounts of it.
status cuda_driver::state::make_plain() {
  physical_request like;
  like.where = vmm::device(ordinal);
  const CUmemAllocationProp prop = native(like, can);
  std::size_t granule_bytes = 0;
  status outcome = run(call::query_granularity, [&](const entry_points& points) {
    return points.mem_get_granularity(&granule_bytes, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  });
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  if (outcome) {
    outcome = run(call::memory_info, [&](const entry_points& points) {
      return points.mem_get_info(&free_bytes, &total_bytes);
    });
  }
  if (!outcome) return outcome;
  const plain_space::limits known{granule_bytes, total_bytes, like.where};
  plain.reset(new (std::nothrow) plain_space(known));
  if (plain == nullptr) return refuse(errc::out_of_host_memory, "no host memory for plain memory");
  plain_space::restrict_features(can);
  return {};
}

// The driver does not say to what it aligns: the range is taken out of a larger one.
result<address_range> cuda_driver::state::reserve_plain(const reserve_request& request) {
  const result<std::uint64_t> alignment_bytes = plain->check_reserve(request);
  if (!alignment_bytes) return alignment_bytes.error();
  CUdeviceptr origin = 0;
  const status taken = run(call::reserve, [&](const entry_points& points) {
    return points.mem_alloc(&origin, request.size_bytes + *alignment_bytes);
  });
  if (!taken) {
    error why = taken.error();
    if (why.native == CUDA_ERROR_OUT_OF_MEMORY) {  // not of addresses, as from cuMemAddressReserve
      why.code = errc::out_of_memory;
      why.detail = "the device has no memory of this size left: free some, or reserve less";
    }
    return why;
  }
  const address_range range{{round_up(origin, *alignment_bytes)}, request.size_bytes};
  const status added = plain->add(range, {origin});
  if (added) return range;
  static_cast<void>(
      run(call::reserve, [&](const entry_points& points) { return points.mem_free(origin); }));
  return added.error();
}

status cuda_driver::state::free_plain(address_range range) {
  const result<address> origin = plain->begin_removal(range);
  if (!origin) return origin.error();
  const status freed = run(call::free_reservation, [&](const entry_points& points) {
    return points.mem_free(origin->value);
  });
  plain->end_removal(range, freed.has_value());
  return freed;
}

// ---- virtual memory ----------------------------------------------------------------------------

result<granularity> cuda_driver::query_granularity(const physical_request& request) {
  const CUmemAllocationProp prop = native(request, state_->can);
  std::size_t minimum = 0;
  std::size_t recommended = 0;
  const status outcome = state_->run(call::query_granularity, [&](const entry_points& cu) {
    // The driver answers for devices that are not there; the device's number is looked at first.
    CUdevice there = 0;
    const bool elsewhere =
        request.where.kind == location::place::device && !(request.where == home());
    CUresult code = elsewhere ? cu.device_get(&there, request.where.ordinal) : CUDA_SUCCESS;
    if (code != CUDA_SUCCESS) return code;
    code = cu.mem_get_granularity(&minimum, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    if (code != CUDA_SUCCESS) return code;
    return cu.mem_get_granularity(&recommended, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
  });
  if (!outcome) return outcome.error();
  return granularity{minimum, recommended};
}

result<memory_info> cuda_driver::query_memory(location who) {
  if (who.kind != location::place::device) {
    return error{errc::not_supported, call::memory_info, 0, "",
                 "the CUDA driver tells only devices' memory"};
  }
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  const status outcome = state_->run(call::memory_info, [&](const entry_points& cu) {
    if (who == home()) return cu.mem_get_info(&free_bytes, &total_bytes);
    CUdevice other = 0;
    CUresult code = cu.device_get(&other, who.ordinal);
    if (code != CUDA_SUCCESS) return code;
    CUcontext theirs = nullptr;
    code = cu.primary_context_retain(&theirs, other);
    if (code != CUDA_SUCCESS) return code;
    {
      const current_context current(cu, theirs);
      code = current.failure();
      if (code == CUDA_SUCCESS) code = cu.mem_get_info(&free_bytes, &total_bytes);
    }
    static_cast<void>(cu.primary_context_release(other));
    return code;
  });
  if (!outcome) return outcome.error();
  return memory_info{free_bytes, total_bytes};
}

result<address_range> cuda_driver::reserve(const reserve_request& request) {
  if (state_->plain) [[unlikely]]
    return state_->reserve_plain(request);
  CUdeviceptr base = 0;
  const status outcome = state_->run(call::reserve, [&](const entry_points& cu) {
    return cu.mem_address_reserve(&base, request.size_bytes, request.alignment_bytes,
                                  request.hint.value, 0);
  });
  if (!outcome) return outcome.error();
  return address_range{{base}, request.size_bytes};
}

status cuda_driver::free_reservation(address_range range) {
  if (state_->plain) [[unlikely]]
    return state_->free_plain(range);
  return state_->run(call::free_reservation, [&](const entry_points& cu) {
    return cu.mem_address_free(range.base.value, range.size_bytes);
  });
}

result<physical_handle> cuda_driver::create(const physical_request& request) {
  if (state_->plain) [[unlikely]]
    return state_->plain->create(request);
  if (request.rdma_capable && !state_->can.rdma) {
    return error{errc::not_supported, call::create, 0, "",
                 "the device cannot make memory that RDMA can reach"};
  }
  const CUmemAllocationProp prop = native(request, state_->can);
  CUmemGenericAllocationHandle made = 0;
  return state_->make<physical_handle>(call::create, made, [&](const entry_points& cu) {
    return cu.mem_create(&made, request.size_bytes, &prop, 0);
  });
}

status cuda_driver::release(physical_handle handle) {
  if (state_->plain) [[unlikely]]
    return state_->plain->release(handle);
  return state_->run(call::release,
                     [&](const entry_points& cu) { return cu.mem_release(native(handle)); });
}

status cuda_driver::map(const map_request& request) {
  if (state_->plain) [[unlikely]]
    return state_->plain->map(request);
  return state_->run(call::map, [&](const entry_points& cu) {
    return cu.mem_map(request.at.value, request.size_bytes, request.offset_bytes,
                      native(request.memory), 0);
  });
}

status cuda_driver::unmap(address_range range) {
  if (state_->plain) [[unlikely]]
    return state_->plain->unmap(range);
  return state_->run(call::unmap, [&](const entry_points& cu) {
    return cu.mem_unmap(range.base.value, range.size_bytes);
  });
}

status cuda_driver::set_access(address_range range, std::span<const access_grant> grants) {
  if (state_->plain) [[unlikely]]
    return state_->plain->set_access(range, grants);
  std::array<CUmemAccessDesc, inline_grant_count> few{};
  std::vector<CUmemAccessDesc> many;
  CUmemAccessDesc* wanted = few.data();
  if (grants.size() > few.size()) {
    try {
      many.resize(grants.size());
    } catch (const std::bad_alloc&) {
      return error{errc::out_of_host_memory, call::set_access, 0, "",
                   "no host memory for the list of grants"};
    }
    wanted = many.data();
  }
  for (std::size_t i = 0; i < grants.size(); ++i) {
    wanted[i].location = native(grants[i].who);
    wanted[i].flags = native(grants[i].rights);
  }
  return state_->run(call::set_access, [&](const entry_points& cu) {
    return cu.mem_set_access(range.base.value, range.size_bytes, wanted, grants.size());
  });
}

result<access> cuda_driver::get_access(address at, location who) {
  if (state_->plain) [[unlikely]]
    return state_->plain->get_access(at, who);
  const CUmemLocation where = native(who);
  unsigned long long flags = 0;
  const status outcome = state_->run(call::get_access, [&](const entry_points& cu) {
    return cu.mem_get_access(&flags, &where, at.value);
  });
  if (!outcome) return outcome.error();
  if (flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE) return access::read_write;
  return flags == CU_MEM_ACCESS_FLAGS_PROT_READ ? access::read : access::none;
}

result<physical_handle> cuda_driver::retain(address at) {
  if (state_->plain) [[unlikely]]
    return plain_space::unsupported(call::retain);
  CUmemGenericAllocationHandle made = 0;
  return state_->make<physical_handle>(call::retain, made, [&](const entry_points& cu) {
    return cu.mem_retain(&made, reinterpret_cast<void*>(static_cast<std::uintptr_t>(at.value)));
  });
}

result<physical_properties> cuda_driver::get_properties(physical_handle handle) {
  if (state_->plain) [[unlikely]]
    return state_->plain->get_properties(handle);
  CUmemAllocationProp prop{};
  const status outcome = state_->run(call::get_properties, [&](const entry_points& cu) {
    return cu.mem_get_properties(&prop, native(handle));
  });
  if (!outcome) return outcome.error();
  return physical_properties{from_native(prop.location), from_native(prop.requestedHandleTypes),
                             prop.allocFlags.compressionType == CU_MEM_ALLOCATION_COMP_GENERIC,
                             prop.allocFlags.gpuDirectRDMACapable != 0};
}

// ---- streams and events ------------------------------------------------------------------------

result<stream_handle> cuda_driver::create_stream() {
  CUstream made = nullptr;
  const status outcome = state_->run(call::create_stream, [&](const entry_points& cu) {
    return cu.stream_create(&made, CU_STREAM_NON_BLOCKING);
  });
  if (!outcome) return outcome.error();
  return static_cast<stream_handle>(reinterpret_cast<std::uintptr_t>(made));
}

status cuda_driver::destroy_stream(stream_handle stream) {
  return state_->run(call::destroy_stream,
                     [&](const entry_points& cu) { return cu.stream_destroy(native(stream)); });
}

status cuda_driver::synchronize_stream(stream_handle stream) {
  return state_->run(call::synchronize_stream,
                     [&](const entry_points& cu) { return cu.stream_synchronize(native(stream)); });
}

result<event_handle> cuda_driver::create_event() {
  CUevent made = nullptr;
  const status outcome = state_->run(call::create_event, [&](const entry_points& cu) {
    return cu.event_create(&made, CU_EVENT_DISABLE_TIMING);
  });
  if (!outcome) return outcome.error();
  return static_cast<event_handle>(reinterpret_cast<std::uintptr_t>(made));
}

status cuda_driver::destroy_event(event_handle event) {
  return state_->run(call::destroy_event,
                     [&](const entry_points& cu) { return cu.event_destroy(native(event)); });
}

status cuda_driver::record_event(event_handle event, stream_handle stream) {
  return state_->run(call::record_event, [&](const entry_points& cu) {
    return cu.event_record(native(event), native(stream));
  });
}

result<bool> cuda_driver::query_event(event_handle event) {
  bool finished = true;
  const status outcome = state_->run(call::query_event, [&](const entry_points& cu) {
    const CUresult code = cu.event_query(native(event));
    finished = code != CUDA_ERROR_NOT_READY;
    return finished ? code : CUDA_SUCCESS;
  });
  if (!outcome) return outcome.error();
  return finished;
}

status cuda_driver::wait_event(stream_handle stream, event_handle event) {
  return state_->run(call::wait_event, [&](const entry_points& cu) {
    return cu.stream_wait_event(native(stream), native(event), 0);
  });
}

status cuda_driver::synchronize_event(event_handle event) {
  return state_->run(call::synchronize_event,
                     [&](const entry_points& cu) { return cu.event_synchronize(native(event)); });
}

// ---- capture -----------------------------------------------------------------------------------

result<capture_info> cuda_driver::query_capture(stream_handle stream) {
  const entry_points& cu = state_->cu;
  if (!state_->made_in.is_here()) [[unlikely]]
    return refuse_forked(call::query_capture);
  if (!state_->can.capture)
    return error{errc::not_supported, call::query_capture, 0, "", no_capture_detail};
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  constexpr std::uint64_t reserved_numbers = 2;  // up to here they name a stream of the context
  if (static_cast<std::uint64_t>(stream) <= reserved_numbers) {
    const vmm::status asked = state_->run(call::query_capture, [&](const entry_points&) {
      return cu.stream_is_capturing(native(stream), &status);
    });
    if (!asked) return asked.error();
  } else if (const CUresult code = cu.stream_is_capturing(native(stream), &status);
             code != CUDA_SUCCESS) [[unlikely]] {
    return error_of(cu, call::query_capture, code);
  }
  if (status == CU_STREAM_CAPTURE_STATUS_NONE) [[likely]]
    return capture_info{};
  if (status == CU_STREAM_CAPTURE_STATUS_INVALIDATED)
    return capture_info{capture_state::invalidated, 0};
  cuuint64_t id = 0;
  const CUresult code = cu.stream_get_capture(native(stream), &status, &id);
  if (code != CUDA_SUCCESS) return error_of(cu, call::query_capture, code);
  return capture_info{capture_state::active, id};
}

capture_mode cuda_driver::exchange_capture_mode(capture_mode mode) {
  if (!state_->can.capture || !state_->made_in.is_here()) return mode;
  CUstreamCaptureMode exchanged = native(mode);
  if (state_->cu.exchange_capture_mode(&exchanged) != CUDA_SUCCESS) return mode;
  if (exchanged == CU_STREAM_CAPTURE_MODE_RELAXED) return capture_mode::relaxed;
  return exchanged == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL ? capture_mode::this_thread
                                                          : capture_mode::any_thread;
}

// ---- the context of tools beside vmm -----------------------------------------------------------

bool cuda_driver::push_context() noexcept {
  return state_->made_in.is_here() && state_->cu.context_push(state_->context) == CUDA_SUCCESS;
}

void cuda_driver::pop_context() noexcept {
  CUcontext popped = nullptr;
  if (state_->made_in.is_here()) static_cast<void>(state_->cu.context_pop(&popped));
}

// ---- bytes -------------------------------------------------------------------------------------

status cuda_driver::copy(const copy_request& request) {
  return state_->run(call::copy, [&](const entry_points& cu) {
    return cu.copy_on_device(request.target.value, request.source.value, request.size_bytes,
                             native(request.stream));
  });
}

status cuda_driver::fill(const fill_request& request) {
  return state_->run(call::fill, [&](const entry_points& cu) {
    return cu.fill(request.target.base.value, request.value, request.target.size_bytes,
                   native(request.stream));
  });
}

status cuda_driver::write(address at, std::span<const std::byte> source) {
  return state_->run(call::write, [&](const entry_points& cu) {
    const CUresult code =
        cu.copy_to_device(at.value, source.data(), source.size(), state_->transfers);
    return code == CUDA_SUCCESS ? cu.stream_synchronize(state_->transfers) : code;
  });
}

status cuda_driver::read(std::span<std::byte> target, address at) {
  return state_->run(call::read, [&](const entry_points& cu) {
    const CUresult code =
        cu.copy_to_host(target.data(), at.value, target.size(), state_->transfers);
    return code == CUDA_SUCCESS ? cu.stream_synchronize(state_->transfers) : code;
  });
}

// ---- sharing -----------------------------------------------------------------------------------

result<shared_handle> cuda_driver::export_handle(physical_handle handle, share_kind kind) {
  if (state_->plain) [[unlikely]]
    return plain_space::unsupported(call::export_handle);
  shared_handle out;
  out.kind = kind;
  int descriptor = -1;
  void* into = kind == share_kind::posix_fd ? static_cast<void*>(&descriptor)
                                            : static_cast<void*>(out.fabric);
  if (kind != share_kind::posix_fd && kind != share_kind::fabric) {
    return error{errc::not_supported, call::export_handle, 0, "",
                 "this backend exports descriptors and fabric handles"};
  }
  const status outcome = state_->run(call::export_handle, [&](const entry_points& cu) {
    return cu.mem_export(into, native(handle), native(kind), 0);
  });
  if (!outcome) return outcome.error();
  out.descriptor = descriptor;
  return out;
}

result<physical_handle> cuda_driver::import_handle(const shared_handle& shared) {
  if (state_->plain) [[unlikely]]
    return plain_space::unsupported(call::import_handle);
  if (shared.kind != share_kind::posix_fd && shared.kind != share_kind::fabric) {
    return error{errc::not_supported, call::import_handle, 0, "",
                 "this backend imports descriptors and fabric handles"};
  }
  shared_handle copy = shared;  // the driver takes a pointer to bytes that may change
  void* from = shared.kind == share_kind::posix_fd
                   ? reinterpret_cast<void*>(static_cast<std::intptr_t>(shared.descriptor))
                   : static_cast<void*>(copy.fabric);
  CUmemGenericAllocationHandle made = 0;
  return state_->make<physical_handle>(call::import_handle, made, [&](const entry_points& cu) {
    return cu.mem_import(&made, from, native(shared.kind));
  });
}

status cuda_driver::probe_fabric() {
  physical_request request;
  request.where = home();
  request.shareable = share_kind::fabric;
  const result<granularity> unit = query_granularity(request);
  if (!unit) return unit.error();
  request.size_bytes = unit->minimum_bytes;
  const result<physical_handle> memory = create(request);
  if (!memory) return memory.error();
  status outcome;
  if (const result<shared_handle> sent = export_handle(*memory, share_kind::fabric); !sent) {
    outcome = sent.error();
  } else if (const result<physical_handle> received = import_handle(*sent); !received) {
    outcome = received.error();
  } else {
    outcome = release(*received);
  }
  const status released = release(*memory);
  return outcome ? released : outcome;
}

// ---- multicast ---------------------------------------------------------------------------------

namespace {

// Null when the calls were looked up and found; they are not even looked up unless the options
// allow multicast.
const char* multicast_problem(const entry_points& cu, bool allowed) noexcept {
  if (!allowed) return multicast_detail;
  const bool there = cu.multicast_get_granularity != nullptr && cu.multicast_create != nullptr &&
                     cu.multicast_add_device != nullptr && cu.multicast_bind != nullptr &&
                     cu.multicast_unbind != nullptr;
  return there ? nullptr : "the CUDA driver has no multicast calls: it is older than 12.1";
}

error multicast_refusal(bool allowed, call where, const char* problem) noexcept {
  return error{allowed ? errc::not_supported : errc::not_permitted, where, 0, "", problem};
}

}  // namespace

result<granularity> cuda_driver::query_multicast_granularity(const multicast_request& request) {
  if (const char* problem = multicast_problem(state_->cu, state_->multicast_allowed);
      problem != nullptr) {
    return multicast_refusal(state_->multicast_allowed, call::query_granularity, problem);
  }
  const CUmulticastObjectProp prop = native(request);
  std::size_t minimum = 0;
  std::size_t recommended = 0;
  const status outcome = state_->run(call::query_granularity, [&](const entry_points& cu) {
    const CUresult code =
        cu.multicast_get_granularity(&minimum, &prop, CU_MULTICAST_GRANULARITY_MINIMUM);
    if (code != CUDA_SUCCESS) return code;
    return cu.multicast_get_granularity(&recommended, &prop, CU_MULTICAST_GRANULARITY_RECOMMENDED);
  });
  if (!outcome) return outcome.error();
  return granularity{minimum, recommended};
}

result<multicast_handle> cuda_driver::create_multicast(const multicast_request& request) {
  if (const char* problem = multicast_problem(state_->cu, state_->multicast_allowed);
      problem != nullptr) {
    return multicast_refusal(state_->multicast_allowed, call::create_multicast, problem);
  }
  const CUmulticastObjectProp prop = native(request);
  CUmemGenericAllocationHandle made = 0;
  return state_->make<multicast_handle>(call::create_multicast, made, [&](const entry_points& cu) {
    return cu.multicast_create(&made, &prop);
  });
}

status cuda_driver::add_multicast_device(multicast_handle team, location who) {
  if (const char* problem = multicast_problem(state_->cu, state_->multicast_allowed);
      problem != nullptr) {
    return multicast_refusal(state_->multicast_allowed, call::add_multicast_device, problem);
  }
  return state_->run(call::add_multicast_device, [&](const entry_points& cu) {
    CUdevice member = 0;
    const CUresult code = cu.device_get(&member, who.ordinal);
    if (code != CUDA_SUCCESS) return code;
    return cu.multicast_add_device(static_cast<CUmemGenericAllocationHandle>(team), member);
  });
}

status cuda_driver::bind_multicast(const multicast_binding& binding) {
  if (const char* problem = multicast_problem(state_->cu, state_->multicast_allowed);
      problem != nullptr) {
    return multicast_refusal(state_->multicast_allowed, call::bind_multicast, problem);
  }
  return state_->run(call::bind_multicast, [&](const entry_points& cu) {
    return cu.multicast_bind(static_cast<CUmemGenericAllocationHandle>(binding.team),
                             binding.team_offset_bytes, native(binding.memory),
                             binding.memory_offset_bytes, binding.size_bytes, 0);
  });
}

status cuda_driver::unbind_multicast(const multicast_binding& binding) {
  if (const char* problem = multicast_problem(state_->cu, state_->multicast_allowed);
      problem != nullptr) {
    return multicast_refusal(state_->multicast_allowed, call::unbind_multicast, problem);
  }
  return state_->run(call::unbind_multicast, [&](const entry_points& cu) {
    CUdevice member = 0;
    const CUresult code = cu.device_get(&member, binding.device.ordinal);
    if (code != CUDA_SUCCESS) return code;
    return cu.multicast_unbind(static_cast<CUmemGenericAllocationHandle>(binding.team), member,
                               binding.team_offset_bytes, binding.size_bytes);
  });
}

}  // namespace vmm

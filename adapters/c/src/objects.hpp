// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The objects of drivers' handles, and names that all calls share. It imports what it uses, so it
// is the last include of a file.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "handles.hpp"
#include "structs.hpp"
#include "vmm.h"
#include "words.hpp"

import vmm.backend;
import vmm.base;
import vmm.optimizer;

namespace vmm_c {

// Lets the preload library, if the process has it, use idle memory of allocators here. At each
// driver that is opened: that library comes before the first.
void join_preload() noexcept;

struct driver_object {
  static constexpr handle_kind kind = handle_kind::driver;
  explicit driver_object(vmm::any_backend opened) noexcept
      : backend(std::move(opened)),
        is_cuda(backend.name() == "cuda"),
        has_streams(backend.feature_set().streams) {}

  [[nodiscard]] bool has_users() const noexcept { return user_count.load() != 0; }
  // Whether the range begins or ends in memory that one of the driver's allocators has suspended.
  [[nodiscard]] bool has_suspended(vmm::address_range range) noexcept {
    if (!made_in.is_here() || range.empty()) return false;
    const vmm::sync::lock_guard<vmm::sync::mutex> lock(allocators_mutex);
    return std::any_of(allocators.begin(), allocators.end(), [&](vmm::suspendable* each) {
      const auto is_in = [each](vmm::address at) { return each->core().space.contains(at); };
      return each->phase() != vmm::suspension_phase::running &&
             (is_in(range.base) || is_in({range.end().value - 1}));
    });
  }
  [[nodiscard]] const char* text_of_use() const noexcept {
    if (region_count.load() == 0) return nullptr;
    return "a suspender has pools or managers of the driver as regions: remove them there and "
           "destroy them, or destroy the suspender, first";
  }

  vmm::any_backend backend;
  const bool is_cuda;
  const bool has_streams;
  const made_here made_in;
  std::atomic<std::uint32_t> user_count = 0;    // pools, managers and shared blocks on it
  std::atomic<std::uint32_t> region_count = 0;  // of these, what suspenders have as regions
  vmm::sync::mutex allocators_mutex;
  std::vector<vmm::suspendable*> allocators;  // of its pools and managers
};

// A pool or manager among the driver's allocators. The last member of its object: it ends first.
class listed_allocator {
 public:
  listed_allocator(driver_object& on, vmm::suspendable& of) : on_(on), of_(of) {
    const vmm::sync::lock_guard<vmm::sync::mutex> lock(on_.allocators_mutex);
    on_.allocators.push_back(&of_);
  }
  ~listed_allocator() {
    if (!on_.made_in.is_here()) return;  // another thread of the parent may hold the lock
    const vmm::sync::lock_guard<vmm::sync::mutex> lock(on_.allocators_mutex);
    std::erase(on_.allocators, &of_);
  }
  listed_allocator(const listed_allocator&) = delete;
  listed_allocator& operator=(const listed_allocator&) = delete;

 private:
  driver_object& on_;
  vmm::suspendable& of_;
};

[[nodiscard]] constexpr vmm_status status_of(vmm::errc code) noexcept {
  using enum vmm::errc;
  switch (code) {
    case none: return VMM_SUCCESS;
    case invalid_argument: return VMM_ERROR_INVALID_ARGUMENT;
    case bad_option: return VMM_ERROR_BAD_OPTION;
    case out_of_memory: return VMM_ERROR_OUT_OF_MEMORY;
    case out_of_host_memory: return VMM_ERROR_OUT_OF_HOST_MEMORY;
    case out_of_addresses: return VMM_ERROR_OUT_OF_ADDRESSES;
    case out_of_mappings: return VMM_ERROR_OUT_OF_MAPPINGS;
    case over_budget: return VMM_ERROR_OVER_BUDGET;
    case unknown_address: return VMM_ERROR_UNKNOWN_ADDRESS;
    case not_allocated: return VMM_ERROR_NOT_ALLOCATED;
    case overlap: return VMM_ERROR_OVERLAP;
    case in_use: return VMM_ERROR_IN_USE;
    case not_supported: return VMM_ERROR_NOT_SUPPORTED;
    case not_permitted: return VMM_ERROR_NOT_PERMITTED;
    case unavailable: return VMM_ERROR_UNAVAILABLE;
    case device_lost: return VMM_ERROR_DEVICE_LOST;
    case foreign_error: return VMM_ERROR_FOREIGN;
    case internal: return VMM_ERROR_INTERNAL;
  }
  return VMM_ERROR_INTERNAL;
}

inline vmm_status fail(const vmm::error& what) noexcept {
  failure full{.status = status_of(what.code),
               .call = vmm::name_of(what.where),
               .native_code = what.native,
               .native_name = what.native_name,
               .advice = words_of_c(what.detail),
               .figures = {}};
  (void)vmm::write_figures(what, full.figures);
  return fail(full);
}

inline vmm_status answer(const vmm::status& outcome) noexcept {
  return outcome ? VMM_SUCCESS : fail(outcome.error());
}

// Of a driver's call on memory. Unmapped memory is an invalid argument to the driver.
inline vmm_status answer_access(driver_object& on, vmm::address_range range,
                                const vmm::status& outcome) noexcept {
  if (!outcome && on.has_suspended(range)) return fail(vmm::memory_suspended);
  return answer(outcome);
}

[[nodiscard]] inline vmm::address address_of(const void* at) noexcept {
  return {reinterpret_cast<std::uint64_t>(at)};
}
[[nodiscard]] inline void* pointer_to(vmm::address at) noexcept {
  return reinterpret_cast<void*>(at.value);
}
[[nodiscard]] inline void* native(vmm::stream_handle stream) noexcept {
  return reinterpret_cast<void*>(stream);
}

// Whether a range ends at or before the last address.
[[nodiscard]] inline bool fits(const void* at, std::uint64_t size_bytes) noexcept {
  return size_bytes <= ~std::uint64_t{0} - address_of(at).value;
}
inline vmm_status fail_range() noexcept {
  return fail(VMM_ERROR_INVALID_ARGUMENT, "the range ends behind the last address");
}

// CUDA's numbers for its default streams: the legacy one has two, and the per-thread one is a
// different stream in each thread under one number, so it cannot be ordered.
enum class cuda_default : std::uint64_t { legacy = 1, per_thread = 2 };

[[nodiscard]] inline bool is_per_thread(const driver_object& driver, vmm_stream stream) noexcept {
  const auto number = static_cast<std::uint64_t>(cuda_default::per_thread);
  return driver.is_cuda && address_of(stream).value == number;
}
// Whether allocators of a driver take the stream. Without streams the default one has both of its
// numbers; the last number is the library's own mark of a stream that was forgotten.
[[nodiscard]] inline bool takes_stream(bool has_streams, bool is_cuda, vmm_stream stream) noexcept {
  const std::uint64_t number = address_of(stream).value;
  if (!has_streams) return number <= static_cast<std::uint64_t>(cuda_default::legacy);
  const bool is_per_thread =
      is_cuda && number == static_cast<std::uint64_t>(cuda_default::per_thread);
  return !is_per_thread && number != ~std::uint64_t{0};
}
[[nodiscard]] inline bool names_stream(const driver_object& driver, vmm_stream stream) noexcept {
  return takes_stream(driver.has_streams, driver.is_cuda, stream);
}
[[nodiscard]] inline vmm::stream_handle stream_of(const driver_object& driver,
                                                  vmm_stream stream) noexcept {
  const std::uint64_t number = address_of(stream).value;
  const bool has_legacy = driver.is_cuda || !driver.has_streams;
  const bool legacy = has_legacy && number == static_cast<std::uint64_t>(cuda_default::legacy);
  return vmm::stream_handle{legacy ? 0 : number};
}
inline vmm_status fail_stream() noexcept {
  return fail(
      VMM_ERROR_INVALID_ARGUMENT,
      "not a stream of the driver: a driver without streams has only NULL, and "
      "cudaStreamPerThread is a different stream in each thread (create a stream and pass it)");
}

// The place of options, where it can be one.
template <class Options>
[[nodiscard]] bool is_place(const Options& options) noexcept {
  const bool host = options.place == VMM_PLACE_HOST;
  return options.place <= VMM_PLACE_HOST_NODE && options.place_ordinal >= 0 &&
         (!host || options.place_ordinal == 0);
}
template <class Options>
[[nodiscard]] vmm::location place_in(const Options& options) noexcept {
  if (options.place == VMM_PLACE_HOST) return vmm::host();
  if (options.place == VMM_PLACE_HOST_NODE) return vmm::host_node(options.place_ordinal);
  return vmm::device(options.place_ordinal);
}

// What pools' and managers' options share.
template <class Given>
[[nodiscard]] vmm_status check_shared(const Given& given) noexcept {
  if (given.reserved != 0) return fail(VMM_ERROR_BAD_OPTION, "a reserved member of options is 0");
  const vmm_status flags =
      check_flags(VMM_ERROR_BAD_OPTION, {{given.wait_when_short, "wait_when_short is 0 or 1"},
                                         {given.use_place, "use_place is 0 or 1"},
                                         {given.read_environment, "read_environment is 0 or 1"},
                                         {given.report_live, "report_live is 0 or 1"}});
  if (flags != VMM_SUCCESS) return flags;
  if (given.use_place != 0 && !is_place(given)) {
    if (given.place > VMM_PLACE_HOST_NODE) {
      return fail_value(VMM_ERROR_BAD_OPTION, given.place,
                        "place is one of VMM_PLACE_DEVICE, VMM_PLACE_HOST, VMM_PLACE_HOST_NODE");
    }
    return fail_value(VMM_ERROR_BAD_OPTION, given.place_ordinal,
                      "place_ordinal is the number of a device or node, and 0 on the host");
  }
  return VMM_SUCCESS;
}
template <class Given, class Options>
void apply_shared(const Given& given, Options& options) noexcept {
  options.reservation_bytes = given.reservation_bytes;
  options.budget_bytes = given.budget_bytes;
  options.wait_when_short = given.wait_when_short != 0;
  if (given.use_place != 0) options.placement = place_in(given);
  if (given.report_live == 0) options.leak_hook.hook = nullptr;
}

// Requires: `out` is null or sized.
template <class Report>
vmm_status answer_trim(const Report& report, vmm_trim_report* out) noexcept {
  if (out != nullptr) {
    vmm_trim_report numbers{};
    numbers.released_count = report.released_count;
    numbers.released_bytes = report.released_bytes;
    numbers.still_mapped_bytes = report.still_mapped_bytes;
    write_struct(*out, numbers);
  }
  return report.failure.code == vmm::errc::none ? VMM_SUCCESS : fail(report.failure);
}

// A pool or manager on a driver: made, given its handle, and counted by the driver.
template <class Object, class Handle>
vmm_status hand_out(std::unique_ptr<Object> made, driver_object& driver, Handle** out) noexcept {
  void* const handle = add_handle(Object::kind, made.get());
  if (handle == nullptr)
    return fail(VMM_ERROR_OUT_OF_HOST_MEMORY,
                "no handle is left: at most 65,536 can exist at a time");
  (void)made.release();
  driver.user_count.fetch_add(1, std::memory_order_relaxed);
  *out = static_cast<Handle*>(handle);
  return VMM_SUCCESS;
}

inline constexpr const char* has_region_text =
    "a suspender has it as a region: remove it there, or destroy the suspender, first";

// Why an object that is used is not destroyed. An object may have a text of its own, or several.
template <class Object>
const char* text_of_use(Object& used) noexcept {
  if constexpr (requires { used.text_of_use(); }) {
    if (const char* const own = used.text_of_use()) return own;
  }
  if constexpr (requires { Object::is_used_text; }) {
    return Object::is_used_text;
  } else {
    return "the object is in use: pools and managers are destroyed before their driver, and "
           "nothing is destroyed inside a call on it";
  }
}

// Destroys an object that no call uses; `last` runs afterwards. `obstacle` returns the text of a
// reason against it, or null; it makes no call on the handle.
template <class Object, class Last, class Obstacle>
vmm_status destroy(const void* handle, Last&& last, Obstacle&& obstacle) noexcept {
  handle_slot* const slot = claim_handle(handle, Object::kind);
  if (slot == nullptr) return fail_handle();
  auto* const object = static_cast<Object*>(slot->object);
  // Calls of the parent's other threads stay counted in a child, and never return there.
  const bool is_here = object->made_in.is_here();
  if (!is_here && object->has_users()) {  // they refer to it until they go
    close_handle(*slot);
    vmm::leave_behind(object);
    drop_handle(*slot);
    return VMM_SUCCESS;
  }
  std::chrono::milliseconds patience{10};
  if constexpr (requires { object->ends_calls; }) {
    object->ends_calls.store(is_here);
    patience = std::chrono::seconds(10);
  }
  const bool is_used = object->has_users() || (is_here && slot->has_long_callers(patience)) ||
                       object->has_users();  // a call may have made one
  const char* const why = is_used ? text_of_use(*object) : is_here ? obstacle(*object) : nullptr;
  if (why != nullptr) {
    if constexpr (requires { object->ends_calls; }) object->ends_calls.store(false);
    keep_handle(*slot);
    return fail(VMM_ERROR_IN_USE, why);
  }
  close_handle(*slot);
  last(*object);
  drop_handle(*slot);
  return VMM_SUCCESS;
}

template <class Object, class Last>
vmm_status destroy(const void* handle, Last&& last) noexcept {
  return destroy<Object>(handle, std::forward<Last>(last),
                         [](Object&) -> const char* { return nullptr; });
}

}  // namespace vmm_c

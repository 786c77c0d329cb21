// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.level_zero - a Level Zero device as a backend.
//
// The loader (libze_loader.so.1) is loaded when open() is called; without Level Zero's headers at
// build time, open() returns an error. No vendor header is needed to import this module.
// docs/contract.md has its state: it has not run on a device.
//
// - One object is one device and one context of its own. No other device has rights here.
// - A driver may keep one access for a whole reservation, skip mappings that a range cuts, and
//   detect neither overlap nor use. The records of :accounts decide instead: no mistake reaches the
//   driver.
// - The driver's map call includes the access. map() therefore only updates records; set_access()
// makes the driver's map and unmap calls, one for each mapping.
// - Each call reports the driver's result, under the name in level_zero/ze_api.h.
// - A stream is an immediate command list with a barrier before each command.
// - In a forked child every call is refused before it reaches the driver, and destroying the
//   child's copy changes nothing. The same holds for static objects that exit() destroys after the
//   driver's own: calls of such an object return unavailable, and the system reclaims its
//   resources.
//
// Thread safety: all members may be called from any thread at once. Destroy the object when no call
// is running and the caller's work is finished: it waits for its own markers. Cost: the driver's
// own, and O(log n) in the live mappings. A call waits for another thread's only if both use the
// same mappings, submit to the same stream, or are read or write: no lock is held over a driver
// call that may be slow.
export module vmm.level_zero;

export import :description;
import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {

namespace level_zero {
struct level_zero_state;
}

/// Level Zero on one GPU, loaded when it is opened.
export class level_zero_driver {
 public:
  /// Loads the loader, starts the drivers, makes a context for one device. Errors: unavailable (no
  /// loader, no driver, no such device, built without the headers; where the loader lacks a call,
  /// native_name is the call's), not_supported (the device has no virtual memory), bad_option,
  /// out_of_host_memory, or driver errors.
  [[nodiscard]] static result<level_zero_driver> open(const level_zero_options& options = {});
  ~level_zero_driver();
  /// A moved-from object may only be destroyed or assigned to; another use ends the process.
  level_zero_driver(level_zero_driver&&) noexcept;
  level_zero_driver& operator=(level_zero_driver&&) noexcept;
  /// The pools and managers over this object; it must neither be moved nor destroyed while they
  /// exist.
  [[nodiscard]] user_count& users() noexcept { return users_; }

  // The concept `backend`. Contracts: docs/contract.md. Every place except home() returns
  // not_supported.
  [[nodiscard]] std::string_view name() const noexcept { return "level_zero"; }
  [[nodiscard]] const features& feature_set() const noexcept;
  [[nodiscard]] location home() const noexcept;
  /// The page size depends on the requested size. The recommended granularity is that of large
  /// sizes.
  [[nodiscard]] result<granularity> query_granularity(const physical_request& request);
  /// free_bytes is the device's memory less what this object created: the core calls report no
  /// more.
  [[nodiscard]] result<memory_info> query_memory(location place);
  /// The driver has no alignment argument: if its result is not aligned, a larger range is reserved
  /// around it.
  [[nodiscard]] result<address_range> reserve(const reserve_request& request);
  [[nodiscard]] status free_reservation(address_range range);
  [[nodiscard]] result<physical_handle> create(const physical_request& request);
  [[nodiscard]] status release(physical_handle handle);
  [[nodiscard]] status map(const map_request& request);
  [[nodiscard]] status unmap(address_range range);
  /// Returns device_lost if a step failed and the steps before it could not be undone.
  [[nodiscard]] status set_access(address_range range, std::span<const access_grant> grants);
  [[nodiscard]] result<access> get_access(address at, location place);

  // `property_backend`.
  [[nodiscard]] result<physical_properties> get_properties(physical_handle handle);

  // `stream_backend`.
  [[nodiscard]] result<stream_handle> create_stream();
  [[nodiscard]] status destroy_stream(stream_handle stream);
  [[nodiscard]] status synchronize_stream(stream_handle stream);
  [[nodiscard]] result<event_handle> create_event();
  [[nodiscard]] status destroy_event(event_handle event);
  [[nodiscard]] status record_event(event_handle event, stream_handle stream);
  [[nodiscard]] result<bool> query_event(event_handle event);
  [[nodiscard]] status wait_event(stream_handle stream, event_handle event);
  [[nodiscard]] status synchronize_event(event_handle event);

  // `all_wait_backend`.
  [[nodiscard]] status synchronize_all();

  // `copy_backend`. read and write use a command list of their own, one call at a time.
  [[nodiscard]] status copy(const copy_request& request);
  [[nodiscard]] status fill(const fill_request& request);
  [[nodiscard]] status write(address at, std::span<const std::byte> source);
  [[nodiscard]] status read(std::span<std::byte> target, address at);

  /// The driver's properties of the device, read when the object was opened.
  [[nodiscard]] const level_zero_description& description() const noexcept;
  /// The ze_context_handle_t and ze_device_handle_t, for programs that run kernels beside vmm.
  [[nodiscard]] std::uint64_t native_context() const noexcept;
  [[nodiscard]] std::uint64_t native_device() const noexcept;
  /// The stream's ze_command_list_handle_t; 0: no such stream. A caller that appends to it appends
  /// a barrier first, and makes no call of vmm on the same stream meanwhile.
  [[nodiscard]] std::uint64_t native_stream(stream_handle stream) const noexcept;

 private:
  explicit level_zero_driver(std::unique_ptr<level_zero::level_zero_state> opened) noexcept;
  void leave_if_unusable() noexcept;
  std::unique_ptr<level_zero::level_zero_state> state_;
  user_count users_;
};

static_assert(check_backend<level_zero_driver>());
static_assert(property_backend<level_zero_driver>);
static_assert(stream_backend<level_zero_driver>);
static_assert(copy_backend<level_zero_driver>);

}  // namespace vmm

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.backend:driver_interface - every call that a driver can have, as one interface.
//
// A driver call takes microseconds, so a virtual call is free. Everything above the backends works
// through driver_interface, is compiled once, and needs no backend to be named. A call that a
// driver lacks returns not_supported.
//
// A new call changes this file, :driver_model, :forwarding, the concepts and the drivers, and
// nothing else. It has no body here: a class that lacks it does not compile.
//
// Thread safety: that of the driver. Cost: one virtual call.
export module vmm.backend:driver_interface;

import vmm.std;
import :concepts;
import :result;
import :types;

namespace vmm {

/// Every call that a driver can have. docs/contract.md has the contract of each.
export class driver_interface {
 public:
  virtual ~driver_interface() = default;

  // backend
  [[nodiscard]] virtual std::string_view name() const = 0;
  [[nodiscard]] virtual const features& feature_set() const = 0;
  [[nodiscard]] virtual location home() const = 0;
  [[nodiscard]] virtual result<granularity> query_granularity(const physical_request&) = 0;
  [[nodiscard]] virtual result<memory_info> query_memory(location) = 0;
  [[nodiscard]] virtual result<address_range> reserve(const reserve_request&) = 0;
  [[nodiscard]] virtual status free_reservation(address_range) = 0;
  [[nodiscard]] virtual result<physical_handle> create(const physical_request&) = 0;
  [[nodiscard]] virtual status release(physical_handle) = 0;
  [[nodiscard]] virtual status map(const map_request&) = 0;
  [[nodiscard]] virtual status unmap(address_range) = 0;
  [[nodiscard]] virtual status set_access(address_range, std::span<const access_grant>) = 0;
  [[nodiscard]] virtual result<access> get_access(address, location) = 0;

  // stream_backend
  [[nodiscard]] virtual result<stream_handle> create_stream() = 0;
  [[nodiscard]] virtual status destroy_stream(stream_handle) = 0;
  [[nodiscard]] virtual status synchronize_stream(stream_handle) = 0;
  [[nodiscard]] virtual result<event_handle> create_event() = 0;
  [[nodiscard]] virtual status destroy_event(event_handle) = 0;
  [[nodiscard]] virtual status record_event(event_handle, stream_handle) = 0;
  [[nodiscard]] virtual result<bool> query_event(event_handle) = 0;
  [[nodiscard]] virtual status wait_event(stream_handle, event_handle) = 0;
  [[nodiscard]] virtual status synchronize_event(event_handle) = 0;

  /// stream_identity_backend; 0 without it.
  [[nodiscard]] virtual std::uint64_t stream_identity(stream_handle) noexcept = 0;

  // all_work_backend
  [[nodiscard]] virtual status record_all(event_handle) = 0;

  // all_wait_backend
  [[nodiscard]] virtual status synchronize_all() = 0;

  // capture_backend. Exchanging the mode makes no call on a device and cannot fail: without
  // captures it returns its argument.
  virtual capture_mode exchange_capture_mode(capture_mode) = 0;
  [[nodiscard]] virtual result<capture_info> query_capture(stream_handle) = 0;
  /// quick_capture_backend; without it, or under an observer, false.
  [[nodiscard]] virtual bool is_uncaptured(stream_handle) noexcept = 0;

  // context_backend: false if the driver has no context; do not pop then.
  [[nodiscard]] virtual bool push_context() = 0;
  virtual void pop_context() = 0;

  // copy_backend
  [[nodiscard]] virtual status copy(const copy_request&) = 0;
  [[nodiscard]] virtual status fill(const fill_request&) = 0;
  [[nodiscard]] virtual status write(address, std::span<const std::byte>) = 0;
  [[nodiscard]] virtual status read(std::span<std::byte>, address) = 0;

  // retain_backend
  [[nodiscard]] virtual result<physical_handle> retain(address) = 0;

  // property_backend
  [[nodiscard]] virtual result<physical_properties> get_properties(physical_handle) = 0;

  // sharing_backend
  [[nodiscard]] virtual result<shared_handle> export_handle(physical_handle, share_kind) = 0;
  [[nodiscard]] virtual result<physical_handle> import_handle(const shared_handle&) = 0;

  // peer_backend
  [[nodiscard]] virtual result<peer_info> query_peer(const peer_query&) = 0;

  // range_export_backend
  [[nodiscard]] virtual result<dma_buf> export_range(address_range) = 0;

  // multicast_backend
  [[nodiscard]] virtual result<granularity> query_multicast_granularity(
      const multicast_request&) = 0;
  [[nodiscard]] virtual result<multicast_handle> create_multicast(const multicast_request&) = 0;
  [[nodiscard]] virtual status add_multicast_device(multicast_handle, location) = 0;
  [[nodiscard]] virtual status bind_multicast(const multicast_binding&) = 0;
  [[nodiscard]] virtual status bind_multicast_address(const multicast_address_binding&) = 0;
  [[nodiscard]] virtual status unbind_multicast(const multicast_binding&) = 0;

 protected:
  driver_interface() = default;
  driver_interface(const driver_interface&) = default;
  driver_interface& operator=(const driver_interface&) = default;
};
static_assert(backend<driver_interface> && stream_backend<driver_interface> &&
              all_work_backend<driver_interface> && all_wait_backend<driver_interface> &&
              quick_capture_backend<driver_interface> &&
              stream_identity_backend<driver_interface> && context_backend<driver_interface> &&
              copy_backend<driver_interface> && retain_backend<driver_interface> &&
              property_backend<driver_interface> && sharing_backend<driver_interface> &&
              peer_backend<driver_interface> && range_export_backend<driver_interface> &&
              multicast_backend<driver_interface>);

}  // namespace vmm

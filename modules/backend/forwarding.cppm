// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.backend:forwarding - a driver that passes every call on to another, for drivers that change
// some of them.
//
// Thread safety: that of the other driver. Cost: a virtual call.
export module vmm.backend:forwarding;

import vmm.std;
import :driver_interface;
import :result;
import :types;

namespace vmm {

/// A driver that passes every call on to another.
export class forwarding_driver : public driver_interface {
 public:
  /// Requires: the other driver outlives this one.
  explicit forwarding_driver(driver_interface& inside) noexcept : inside_(inside) {}

  [[nodiscard]] std::string_view name() const override { return inside_.name(); }
  [[nodiscard]] const features& feature_set() const override { return inside_.feature_set(); }
  [[nodiscard]] location home() const override { return inside_.home(); }
  [[nodiscard]] result<granularity> query_granularity(const physical_request& a) override {
    return inside_.query_granularity(a);
  }
  [[nodiscard]] result<memory_info> query_memory(location a) override {
    return inside_.query_memory(a);
  }
  [[nodiscard]] result<address_range> reserve(const reserve_request& a) override {
    return inside_.reserve(a);
  }
  [[nodiscard]] status free_reservation(address_range a) override {
    return inside_.free_reservation(a);
  }
  [[nodiscard]] result<physical_handle> create(const physical_request& a) override {
    return inside_.create(a);
  }
  [[nodiscard]] status release(physical_handle a) override { return inside_.release(a); }
  [[nodiscard]] status map(const map_request& a) override { return inside_.map(a); }
  [[nodiscard]] status unmap(address_range a) override { return inside_.unmap(a); }
  [[nodiscard]] status set_access(address_range a, std::span<const access_grant> b) override {
    return inside_.set_access(a, b);
  }
  [[nodiscard]] result<access> get_access(address a, location b) override {
    return inside_.get_access(a, b);
  }
  [[nodiscard]] result<stream_handle> create_stream() override { return inside_.create_stream(); }
  [[nodiscard]] status destroy_stream(stream_handle a) override {
    return inside_.destroy_stream(a);
  }
  [[nodiscard]] status synchronize_stream(stream_handle a) override {
    return inside_.synchronize_stream(a);
  }
  [[nodiscard]] result<event_handle> create_event() override { return inside_.create_event(); }
  [[nodiscard]] status destroy_event(event_handle a) override { return inside_.destroy_event(a); }
  [[nodiscard]] status record_event(event_handle a, stream_handle b) override {
    return inside_.record_event(a, b);
  }
  [[nodiscard]] status record_all(event_handle a) override { return inside_.record_all(a); }
  [[nodiscard]] status synchronize_all() override { return inside_.synchronize_all(); }
  [[nodiscard]] result<bool> query_event(event_handle a) override { return inside_.query_event(a); }
  [[nodiscard]] status wait_event(stream_handle a, event_handle b) override {
    return inside_.wait_event(a, b);
  }
  [[nodiscard]] status synchronize_event(event_handle a) override {
    return inside_.synchronize_event(a);
  }
  [[nodiscard]] std::uint64_t stream_identity(stream_handle a) noexcept override {
    return inside_.stream_identity(a);
  }
  capture_mode exchange_capture_mode(capture_mode a) override {
    return inside_.exchange_capture_mode(a);
  }
  [[nodiscard]] result<capture_info> query_capture(stream_handle a) override {
    return inside_.query_capture(a);
  }
  [[nodiscard]] bool is_uncaptured(stream_handle a) noexcept override {
    return inside_.is_uncaptured(a);
  }
  [[nodiscard]] bool push_context() override { return inside_.push_context(); }
  void pop_context() override { inside_.pop_context(); }
  [[nodiscard]] status copy(const copy_request& a) override { return inside_.copy(a); }
  [[nodiscard]] status fill(const fill_request& a) override { return inside_.fill(a); }
  [[nodiscard]] status write(address a, std::span<const std::byte> b) override {
    return inside_.write(a, b);
  }
  [[nodiscard]] status read(std::span<std::byte> a, address b) override {
    return inside_.read(a, b);
  }
  [[nodiscard]] result<physical_handle> retain(address a) override { return inside_.retain(a); }
  [[nodiscard]] result<physical_properties> get_properties(physical_handle a) override {
    return inside_.get_properties(a);
  }
  [[nodiscard]] result<shared_handle> export_handle(physical_handle a, share_kind b) override {
    return inside_.export_handle(a, b);
  }
  [[nodiscard]] result<physical_handle> import_handle(const shared_handle& a) override {
    return inside_.import_handle(a);
  }
  [[nodiscard]] result<peer_info> query_peer(const peer_query& a) override {
    return inside_.query_peer(a);
  }
  [[nodiscard]] result<dma_buf> export_range(address_range a) override {
    return inside_.export_range(a);
  }
  [[nodiscard]] result<granularity> query_multicast_granularity(
      const multicast_request& a) override {
    return inside_.query_multicast_granularity(a);
  }
  [[nodiscard]] result<multicast_handle> create_multicast(const multicast_request& a) override {
    return inside_.create_multicast(a);
  }
  [[nodiscard]] status add_multicast_device(multicast_handle a, location b) override {
    return inside_.add_multicast_device(a, b);
  }
  [[nodiscard]] status bind_multicast(const multicast_binding& a) override {
    return inside_.bind_multicast(a);
  }
  [[nodiscard]] status bind_multicast_address(const multicast_address_binding& a) override {
    return inside_.bind_multicast_address(a);
  }
  [[nodiscard]] status unbind_multicast(const multicast_binding& a) override {
    return inside_.unbind_multicast(a);
  }

 protected:
  [[nodiscard]] driver_interface& inside() const noexcept { return inside_; }

 private:
  driver_interface& inside_;
};

}  // namespace vmm

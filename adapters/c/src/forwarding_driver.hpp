// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// A driver that passes every call on to another, for those that change some of them. The other one
// outlives it. It imports what it uses, so it is the last include of a file.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

import vmm.backend;

namespace vmm_c {

class forwarding_driver : public vmm::driver_interface {
 public:
  explicit forwarding_driver(vmm::driver_interface& inside) noexcept : inside_(inside) {}

  [[nodiscard]] std::string_view name() const override { return inside_.name(); }
  [[nodiscard]] const vmm::features& feature_set() const override { return inside_.feature_set(); }
  [[nodiscard]] vmm::location home() const override { return inside_.home(); }
  [[nodiscard]] vmm::result<vmm::granularity> query_granularity(
      const vmm::physical_request& a) override {
    return inside_.query_granularity(a);
  }
  [[nodiscard]] vmm::result<vmm::memory_info> query_memory(vmm::location a) override {
    return inside_.query_memory(a);
  }
  [[nodiscard]] vmm::result<vmm::address_range> reserve(const vmm::reserve_request& a) override {
    return inside_.reserve(a);
  }
  [[nodiscard]] vmm::status free_reservation(vmm::address_range a) override {
    return inside_.free_reservation(a);
  }
  [[nodiscard]] vmm::result<vmm::physical_handle> create(const vmm::physical_request& a) override {
    return inside_.create(a);
  }
  [[nodiscard]] vmm::status release(vmm::physical_handle a) override { return inside_.release(a); }
  [[nodiscard]] vmm::status map(const vmm::map_request& a) override { return inside_.map(a); }
  [[nodiscard]] vmm::status unmap(vmm::address_range a) override { return inside_.unmap(a); }
  [[nodiscard]] vmm::status set_access(vmm::address_range a,
                                       std::span<const vmm::access_grant> b) override {
    return inside_.set_access(a, b);
  }
  [[nodiscard]] vmm::result<vmm::access> get_access(vmm::address a, vmm::location b) override {
    return inside_.get_access(a, b);
  }
  [[nodiscard]] vmm::result<vmm::stream_handle> create_stream() override {
    return inside_.create_stream();
  }
  [[nodiscard]] vmm::status destroy_stream(vmm::stream_handle a) override {
    return inside_.destroy_stream(a);
  }
  [[nodiscard]] vmm::status synchronize_stream(vmm::stream_handle a) override {
    return inside_.synchronize_stream(a);
  }
  [[nodiscard]] vmm::result<vmm::event_handle> create_event() override {
    return inside_.create_event();
  }
  [[nodiscard]] vmm::status destroy_event(vmm::event_handle a) override {
    return inside_.destroy_event(a);
  }
  [[nodiscard]] vmm::status record_event(vmm::event_handle a, vmm::stream_handle b) override {
    return inside_.record_event(a, b);
  }
  [[nodiscard]] vmm::status record_all(vmm::event_handle a) override {
    return inside_.record_all(a);
  }
  [[nodiscard]] vmm::status synchronize_all() override { return inside_.synchronize_all(); }
  [[nodiscard]] vmm::result<bool> query_event(vmm::event_handle a) override {
    return inside_.query_event(a);
  }
  [[nodiscard]] vmm::status wait_event(vmm::stream_handle a, vmm::event_handle b) override {
    return inside_.wait_event(a, b);
  }
  [[nodiscard]] vmm::status synchronize_event(vmm::event_handle a) override {
    return inside_.synchronize_event(a);
  }
  vmm::capture_mode exchange_capture_mode(vmm::capture_mode a) override {
    return inside_.exchange_capture_mode(a);
  }
  [[nodiscard]] vmm::result<vmm::capture_info> query_capture(vmm::stream_handle a) override {
    return inside_.query_capture(a);
  }
  [[nodiscard]] bool push_context() override { return inside_.push_context(); }
  void pop_context() override { inside_.pop_context(); }
  [[nodiscard]] vmm::status copy(const vmm::copy_request& a) override { return inside_.copy(a); }
  [[nodiscard]] vmm::status fill(const vmm::fill_request& a) override { return inside_.fill(a); }
  [[nodiscard]] vmm::status write(vmm::address a, std::span<const std::byte> b) override {
    return inside_.write(a, b);
  }
  [[nodiscard]] vmm::status read(std::span<std::byte> a, vmm::address b) override {
    return inside_.read(a, b);
  }
  [[nodiscard]] vmm::result<vmm::physical_handle> retain(vmm::address a) override {
    return inside_.retain(a);
  }
  [[nodiscard]] vmm::result<vmm::physical_properties> get_properties(
      vmm::physical_handle a) override {
    return inside_.get_properties(a);
  }
  [[nodiscard]] vmm::result<vmm::shared_handle> export_handle(vmm::physical_handle a,
                                                              vmm::share_kind b) override {
    return inside_.export_handle(a, b);
  }
  [[nodiscard]] vmm::result<vmm::physical_handle> import_handle(
      const vmm::shared_handle& a) override {
    return inside_.import_handle(a);
  }
  [[nodiscard]] vmm::result<vmm::peer_info> query_peer(const vmm::peer_query& a) override {
    return inside_.query_peer(a);
  }
  [[nodiscard]] vmm::result<vmm::dma_buf> export_range(vmm::address_range a) override {
    return inside_.export_range(a);
  }
  [[nodiscard]] vmm::result<vmm::granularity> query_multicast_granularity(
      const vmm::multicast_request& a) override {
    return inside_.query_multicast_granularity(a);
  }
  [[nodiscard]] vmm::result<vmm::multicast_handle> create_multicast(
      const vmm::multicast_request& a) override {
    return inside_.create_multicast(a);
  }
  [[nodiscard]] vmm::status add_multicast_device(vmm::multicast_handle a,
                                                 vmm::location b) override {
    return inside_.add_multicast_device(a, b);
  }
  [[nodiscard]] vmm::status bind_multicast(const vmm::multicast_binding& a) override {
    return inside_.bind_multicast(a);
  }
  [[nodiscard]] vmm::status bind_multicast_address(
      const vmm::multicast_address_binding& a) override {
    return inside_.bind_multicast_address(a);
  }
  [[nodiscard]] vmm::status unbind_multicast(const vmm::multicast_binding& a) override {
    return inside_.unbind_multicast(a);
  }

 private:
  vmm::driver_interface& inside_;
};

}  // namespace vmm_c

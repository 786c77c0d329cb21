// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.backend:any - a backend chosen at run time. [A6]
//
// any_backend owns a driver of any type and is a backend with every refinement itself; what the
// driver inside lacks answers not_supported. Code that knows its driver's type pays nothing.
//
// I1  Name, home and features are those of the driver inside: what features promise can be called.
//
// Thread safety: that of the driver inside.
// Cost: one virtual call; two allocations for the object's life.
module;
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <string_view>
#include <utility>

export module vmm.backend:any;

import :concepts;
import :result;
import :types;
import :users;

namespace vmm {

// Every call that a backend can have.
struct erased_backend {
  erased_backend() = default;
  erased_backend(const erased_backend&) = delete;
  erased_backend& operator=(const erased_backend&) = delete;
  virtual ~erased_backend() = default;

  virtual std::string_view name() const = 0;
  virtual const features& feature_set() const = 0;
  virtual location home() const = 0;
  virtual result<granularity> query_granularity(const physical_request&) = 0;
  virtual result<memory_info> query_memory(location) = 0;
  virtual result<address_range> reserve(const reserve_request&) = 0;
  virtual status free_reservation(address_range) = 0;
  virtual result<physical_handle> create(const physical_request&) = 0;
  virtual status release(physical_handle) = 0;
  virtual status map(const map_request&) = 0;
  virtual status unmap(address_range) = 0;
  virtual status set_access(address_range, std::span<const access_grant>) = 0;
  virtual result<access> get_access(address, location) = 0;
  virtual result<stream_handle> create_stream() = 0;
  virtual status destroy_stream(stream_handle) = 0;
  virtual status synchronize_stream(stream_handle) = 0;
  virtual result<event_handle> create_event() = 0;
  virtual status destroy_event(event_handle) = 0;
  virtual status record_event(event_handle, stream_handle) = 0;
  virtual result<bool> query_event(event_handle) = 0;
  virtual status wait_event(stream_handle, event_handle) = 0;
  virtual status synchronize_event(event_handle) = 0;
  virtual bool can_capture(stream_handle) const = 0;
  virtual result<capture_info> query_capture(stream_handle) = 0;
  virtual capture_mode exchange_capture_mode(capture_mode) = 0;
  virtual bool push_context() = 0;
  virtual void pop_context() = 0;
  virtual status copy(const copy_request&) = 0;
  virtual status fill(const fill_request&) = 0;
  virtual status write(address, std::span<const std::byte>) = 0;
  virtual status read(std::span<std::byte>, address) = 0;
  virtual result<physical_handle> retain(address) = 0;
  virtual result<physical_properties> get_properties(physical_handle) = 0;
  virtual result<shared_handle> export_handle(physical_handle, share_kind) = 0;
  virtual result<physical_handle> import_handle(const shared_handle&) = 0;
  virtual result<granularity> query_multicast_granularity(const multicast_request&) = 0;
  virtual result<multicast_handle> create_multicast(const multicast_request&) = 0;
  virtual status add_multicast_device(multicast_handle, location) = 0;
  virtual status bind_multicast(const multicast_binding&) = 0;
  virtual status unbind_multicast(const multicast_binding&) = 0;
};

template <class B>
struct erased_model;

/// Owns one backend of any type. Moved-from objects may only be destroyed or assigned to.
export class any_backend {
 public:
  /// Takes a driver over. Errors: out_of_host_memory (the driver is then destroyed).
  template <backend B>
    requires(!std::same_as<B, any_backend>)
  [[nodiscard]] static result<any_backend> own(B driver) {
    return own(std::unique_ptr<B>{new (std::nothrow) B(std::move(driver))});
  }
  /// The same for a driver that cannot be moved. Null counts as a failed operator new.
  template <backend B>
  [[nodiscard]] static result<any_backend> own(std::unique_ptr<B> driver) {
    if (driver != nullptr) {
      std::unique_ptr<erased_backend> made{new (std::nothrow) erased_model<B>(std::move(driver))};
      if (made != nullptr) return any_backend{std::move(made)};
    }
    return refuse(errc::out_of_host_memory, "operator new failed for a type-erased backend");
  }

  /// The driver inside if it is a B, else nullptr.
  template <backend B>
  [[nodiscard]] B* get_if() noexcept {
    auto* found = dynamic_cast<erased_model<B>*>(face_.get());
    return found == nullptr ? nullptr : found->owned.get();
  }

  /// The pools and managers over this object; it neither moves nor goes while there are any.
  [[nodiscard]] user_count& users() noexcept { return users_; }

  // backend
  [[nodiscard]] std::string_view name() const { return face_->name(); }
  [[nodiscard]] const features& feature_set() const { return face_->feature_set(); }
  [[nodiscard]] location home() const { return face_->home(); }
  [[nodiscard]] result<granularity> query_granularity(const physical_request& r) {
    return face_->query_granularity(r);
  }
  [[nodiscard]] result<memory_info> query_memory(location where) {
    return face_->query_memory(where);
  }
  [[nodiscard]] result<address_range> reserve(const reserve_request& r) {
    return face_->reserve(r);
  }
  [[nodiscard]] status free_reservation(address_range range) {
    return face_->free_reservation(range);
  }
  [[nodiscard]] result<physical_handle> create(const physical_request& r) {
    return face_->create(r);
  }
  [[nodiscard]] status release(physical_handle handle) { return face_->release(handle); }
  [[nodiscard]] status map(const map_request& r) { return face_->map(r); }
  [[nodiscard]] status unmap(address_range range) { return face_->unmap(range); }
  [[nodiscard]] status set_access(address_range range, std::span<const access_grant> grants) {
    return face_->set_access(range, grants);
  }
  [[nodiscard]] result<access> get_access(address at, location who) {
    return face_->get_access(at, who);
  }

  // stream_backend
  [[nodiscard]] result<stream_handle> create_stream() { return face_->create_stream(); }
  [[nodiscard]] status destroy_stream(stream_handle s) { return face_->destroy_stream(s); }
  [[nodiscard]] status synchronize_stream(stream_handle s) { return face_->synchronize_stream(s); }
  [[nodiscard]] result<event_handle> create_event() { return face_->create_event(); }
  [[nodiscard]] status destroy_event(event_handle e) { return face_->destroy_event(e); }
  [[nodiscard]] status record_event(event_handle e, stream_handle s) {
    return face_->record_event(e, s);
  }
  [[nodiscard]] result<bool> query_event(event_handle e) { return face_->query_event(e); }
  [[nodiscard]] status wait_event(stream_handle s, event_handle e) {
    return face_->wait_event(s, e);
  }
  [[nodiscard]] status synchronize_event(event_handle e) { return face_->synchronize_event(e); }

  // capture_backend
  [[nodiscard]] bool can_capture(stream_handle s) const { return face_->can_capture(s); }
  [[nodiscard]] result<capture_info> query_capture(stream_handle s) {
    return face_->query_capture(s);
  }
  capture_mode exchange_capture_mode(capture_mode mode) {
    return face_->exchange_capture_mode(mode);
  }

  // context_backend: false where the driver inside has no context
  [[nodiscard]] bool push_context() { return face_->push_context(); }
  void pop_context() { face_->pop_context(); }

  // copy_backend
  [[nodiscard]] status copy(const copy_request& r) { return face_->copy(r); }
  [[nodiscard]] status fill(const fill_request& r) { return face_->fill(r); }
  [[nodiscard]] status write(address at, std::span<const std::byte> source) {
    return face_->write(at, source);
  }
  [[nodiscard]] status read(std::span<std::byte> target, address at) {
    return face_->read(target, at);
  }

  // retain_backend, property_backend, sharing_backend
  [[nodiscard]] result<physical_handle> retain(address at) { return face_->retain(at); }
  [[nodiscard]] result<physical_properties> get_properties(physical_handle h) {
    return face_->get_properties(h);
  }
  [[nodiscard]] result<shared_handle> export_handle(physical_handle h, share_kind kind) {
    return face_->export_handle(h, kind);
  }
  [[nodiscard]] result<physical_handle> import_handle(const shared_handle& s) {
    return face_->import_handle(s);
  }

  // multicast_backend
  [[nodiscard]] result<granularity> query_multicast_granularity(const multicast_request& r) {
    return face_->query_multicast_granularity(r);
  }
  [[nodiscard]] result<multicast_handle> create_multicast(const multicast_request& r) {
    return face_->create_multicast(r);
  }
  [[nodiscard]] status add_multicast_device(multicast_handle team, location who) {
    return face_->add_multicast_device(team, who);
  }
  [[nodiscard]] status bind_multicast(const multicast_binding& b) {
    return face_->bind_multicast(b);
  }
  [[nodiscard]] status unbind_multicast(const multicast_binding& b) {
    return face_->unbind_multicast(b);
  }

 private:
  explicit any_backend(std::unique_ptr<erased_backend> made) noexcept : face_(std::move(made)) {}

  std::unique_ptr<erased_backend> face_;
  user_count users_;
};

template <class B>
struct erased_model final : erased_backend {
  explicit erased_model(std::unique_ptr<B> inside) noexcept
      : owned(std::move(inside)), driver(*owned) {}

  // Does the work if the driver has the refinement. `Has` is known when compiling; the other branch
  // is not built.
  template <bool Has, class Answer, class Work>
  Answer refined(call kind, Work&& work) {
    if constexpr (Has) {
      return work(driver);
    } else {
      return error{errc::not_supported, kind, 0, "",
                   "this backend does not have the call: see its features"};
    }
  }

  std::string_view name() const override { return driver.name(); }
  const features& feature_set() const override { return driver.feature_set(); }
  location home() const override { return driver.home(); }
  result<granularity> query_granularity(const physical_request& r) override {
    return driver.query_granularity(r);
  }
  result<memory_info> query_memory(location where) override { return driver.query_memory(where); }
  result<address_range> reserve(const reserve_request& r) override { return driver.reserve(r); }
  status free_reservation(address_range range) override { return driver.free_reservation(range); }
  result<physical_handle> create(const physical_request& r) override { return driver.create(r); }
  status release(physical_handle h) override { return driver.release(h); }
  status map(const map_request& r) override { return driver.map(r); }
  status unmap(address_range range) override { return driver.unmap(range); }
  status set_access(address_range range, std::span<const access_grant> grants) override {
    return driver.set_access(range, grants);
  }
  result<access> get_access(address at, location who) override {
    return driver.get_access(at, who);
  }

  result<stream_handle> create_stream() override {
    return refined<stream_backend<B>, result<stream_handle>>(
        call::create_stream, [](auto& d) { return d.create_stream(); });
  }
  status destroy_stream(stream_handle s) override {
    return refined<stream_backend<B>, status>(call::destroy_stream,
                                              [&](auto& d) { return d.destroy_stream(s); });
  }
  status synchronize_stream(stream_handle s) override {
    return refined<stream_backend<B>, status>(call::synchronize_stream,
                                              [&](auto& d) { return d.synchronize_stream(s); });
  }
  result<event_handle> create_event() override {
    return refined<stream_backend<B>, result<event_handle>>(
        call::create_event, [](auto& d) { return d.create_event(); });
  }
  status destroy_event(event_handle e) override {
    return refined<stream_backend<B>, status>(call::destroy_event,
                                              [&](auto& d) { return d.destroy_event(e); });
  }
  status record_event(event_handle e, stream_handle s) override {
    return refined<stream_backend<B>, status>(call::record_event,
                                              [&](auto& d) { return d.record_event(e, s); });
  }
  result<bool> query_event(event_handle e) override {
    return refined<stream_backend<B>, result<bool>>(call::query_event,
                                                    [&](auto& d) { return d.query_event(e); });
  }
  status wait_event(stream_handle s, event_handle e) override {
    return refined<stream_backend<B>, status>(call::wait_event,
                                              [&](auto& d) { return d.wait_event(s, e); });
  }
  status synchronize_event(event_handle e) override {
    return refined<stream_backend<B>, status>(call::synchronize_event,
                                              [&](auto& d) { return d.synchronize_event(e); });
  }

  bool can_capture(stream_handle s) const override {
    if constexpr (capture_backend<B>) {
      return driver.can_capture(s);
    } else {
      return false;
    }
  }
  result<capture_info> query_capture(stream_handle s) override {
    return refined<capture_backend<B>, result<capture_info>>(
        call::query_capture, [&](auto& d) { return d.query_capture(s); });
  }
  capture_mode exchange_capture_mode(capture_mode mode) override {
    if constexpr (capture_backend<B>) {
      return driver.exchange_capture_mode(mode);
    } else {
      return mode;
    }
  }

  bool push_context() override {
    if constexpr (context_backend<B>) {
      return driver.push_context();
    } else {
      return false;
    }
  }
  void pop_context() override {
    if constexpr (context_backend<B>) driver.pop_context();
  }

  status copy(const copy_request& r) override {
    return refined<copy_backend<B>, status>(call::copy, [&](auto& d) { return d.copy(r); });
  }
  status fill(const fill_request& r) override {
    return refined<copy_backend<B>, status>(call::fill, [&](auto& d) { return d.fill(r); });
  }
  status write(address at, std::span<const std::byte> source) override {
    return refined<copy_backend<B>, status>(call::write,
                                            [&](auto& d) { return d.write(at, source); });
  }
  status read(std::span<std::byte> target, address at) override {
    return refined<copy_backend<B>, status>(call::read,
                                            [&](auto& d) { return d.read(target, at); });
  }

  result<physical_handle> retain(address at) override {
    return refined<retain_backend<B>, result<physical_handle>>(
        call::retain, [&](auto& d) { return d.retain(at); });
  }
  result<physical_properties> get_properties(physical_handle h) override {
    return refined<property_backend<B>, result<physical_properties>>(
        call::get_properties, [&](auto& d) { return d.get_properties(h); });
  }
  result<shared_handle> export_handle(physical_handle h, share_kind kind) override {
    return refined<sharing_backend<B>, result<shared_handle>>(
        call::export_handle, [&](auto& d) { return d.export_handle(h, kind); });
  }
  result<physical_handle> import_handle(const shared_handle& s) override {
    return refined<sharing_backend<B>, result<physical_handle>>(
        call::import_handle, [&](auto& d) { return d.import_handle(s); });
  }

  result<granularity> query_multicast_granularity(const multicast_request& r) override {
    return refined<multicast_backend<B>, result<granularity>>(
        call::query_granularity, [&](auto& d) { return d.query_multicast_granularity(r); });
  }
  result<multicast_handle> create_multicast(const multicast_request& r) override {
    return refined<multicast_backend<B>, result<multicast_handle>>(
        call::create_multicast, [&](auto& d) { return d.create_multicast(r); });
  }
  status add_multicast_device(multicast_handle team, location who) override {
    return refined<multicast_backend<B>, status>(
        call::add_multicast_device, [&](auto& d) { return d.add_multicast_device(team, who); });
  }
  status bind_multicast(const multicast_binding& b) override {
    return refined<multicast_backend<B>, status>(call::bind_multicast,
                                                 [&](auto& d) { return d.bind_multicast(b); });
  }
  status unbind_multicast(const multicast_binding& b) override {
    return refined<multicast_backend<B>, status>(call::unbind_multicast,
                                                 [&](auto& d) { return d.unbind_multicast(b); });
  }

  std::unique_ptr<B> owned;
  B& driver;
};

}  // namespace vmm

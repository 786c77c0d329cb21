// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.backend:driver_model - driver_interface over a driver of any type, with or without an
// observer. Not exported: :driver has the types for users.
//
// - Name, home and features are those of the driver inside.
// - after() of an observer is called once for every before(), also for a call that before()
//   refused. A result passes unchanged; a refusal of before() gets the call's kind as its place.
// - A call that the driver lacks does not reach an observer; nor does any call in a forked child.
//
// Thread safety: that of the driver inside. Cost: one virtual call, and that of the observer.
export module vmm.backend:driver_model;

import vmm.base;
import vmm.std;
import :calls;
import :concepts;
import :driver_interface;
import :result;
import :types;

namespace vmm {

/// No observer.
struct unobserved {};

/// A driver as a value; `*` of it, like that of a pointer, is the driver.
template <class B>
struct owned_driver {
  mutable B driver;
  [[nodiscard]] B& operator*() const noexcept { return driver; }
};

/// The interface over what `*Holder` is: a B. The holder is a pointer to a driver, or owns it.
template <class Holder, class Observer = unobserved>
class driver_model : public driver_interface {
 public:
  using B = std::remove_cvref_t<decltype(*std::declval<Holder&>())>;

  explicit driver_model(Holder owner) noexcept : owner_(std::move(owner)) {
    check(has_driver(), "a backend is made without a driver");
  }
  driver_model(Holder owner, std::shared_ptr<Observer> observer) noexcept
      : owner_(std::move(owner)), observer_(std::move(observer)) {
    check(has_driver(), "a backend is made without a driver");
    check(observer_ != nullptr, "an observed backend needs an observer");
  }

  [[nodiscard]] B& inside() const noexcept {
    check(has_driver(), "a backend is used that was moved from");
    return *owner_;
  }

  // backend
  [[nodiscard]] std::string_view name() const override { return inside().name(); }
  [[nodiscard]] const features& feature_set() const override { return inside().feature_set(); }
  [[nodiscard]] location home() const override { return inside().home(); }
  [[nodiscard]] result<granularity> query_granularity(const physical_request& request) override {
    return run<backend<B>, result<granularity>>(
        call::query_granularity,
        [](auto& d, const auto&... given) { return d.query_granularity(given...); }, request);
  }
  [[nodiscard]] result<memory_info> query_memory(location where) override {
    return run<backend<B>, result<memory_info>>(
        call::memory_info, [](auto& d, const auto&... given) { return d.query_memory(given...); },
        where);
  }
  [[nodiscard]] result<address_range> reserve(const reserve_request& request) override {
    return run<backend<B>, result<address_range>>(
        call::reserve, [](auto& d, const auto&... given) { return d.reserve(given...); }, request);
  }
  [[nodiscard]] status free_reservation(address_range range) override {
    return run<backend<B>, status>(
        call::free_reservation,
        [](auto& d, const auto&... given) { return d.free_reservation(given...); }, range);
  }
  [[nodiscard]] result<physical_handle> create(const physical_request& request) override {
    return run<backend<B>, result<physical_handle>>(
        call::create, [](auto& d, const auto&... given) { return d.create(given...); }, request);
  }
  [[nodiscard]] status release(physical_handle handle) override {
    return run<backend<B>, status>(
        call::release, [](auto& d, const auto&... given) { return d.release(given...); }, handle);
  }
  [[nodiscard]] status map(const map_request& request) override {
    return run<backend<B>, status>(
        call::map, [](auto& d, const auto&... given) { return d.map(given...); }, request);
  }
  [[nodiscard]] status unmap(address_range range) override {
    return run<backend<B>, status>(
        call::unmap, [](auto& d, const auto&... given) { return d.unmap(given...); }, range);
  }
  [[nodiscard]] status set_access(address_range range,
                                  std::span<const access_grant> grants) override {
    return run<backend<B>, status>(
        call::set_access, [](auto& d, const auto&... given) { return d.set_access(given...); },
        range, grants);
  }
  [[nodiscard]] result<access> get_access(address at, location place) override {
    return run<backend<B>, result<access>>(
        call::get_access, [](auto& d, const auto&... given) { return d.get_access(given...); }, at,
        place);
  }

  // stream_backend
  [[nodiscard]] result<stream_handle> create_stream() override {
    return run<stream_backend<B>, result<stream_handle>>(
        call::create_stream,
        [](auto& d, const auto&... given) { return d.create_stream(given...); });
  }
  [[nodiscard]] status destroy_stream(stream_handle stream) override {
    return run<stream_backend<B>, status>(
        call::destroy_stream,
        [](auto& d, const auto&... given) { return d.destroy_stream(given...); }, stream);
  }
  [[nodiscard]] status synchronize_stream(stream_handle stream) override {
    return run<stream_backend<B>, status>(
        call::synchronize_stream,
        [](auto& d, const auto&... given) { return d.synchronize_stream(given...); }, stream);
  }
  [[nodiscard]] result<event_handle> create_event() override {
    return run<stream_backend<B>, result<event_handle>>(
        call::create_event, [](auto& d, const auto&... given) { return d.create_event(given...); });
  }
  [[nodiscard]] status destroy_event(event_handle event) override {
    return run<stream_backend<B>, status>(
        call::destroy_event,
        [](auto& d, const auto&... given) { return d.destroy_event(given...); }, event);
  }
  [[nodiscard]] status record_event(event_handle event, stream_handle stream) override {
    return run<stream_backend<B>, status>(
        call::record_event, [](auto& d, const auto&... given) { return d.record_event(given...); },
        event, stream);
  }
  [[nodiscard]] result<bool> query_event(event_handle event) override {
    return run<stream_backend<B>, result<bool>>(
        call::query_event, [](auto& d, const auto&... given) { return d.query_event(given...); },
        event);
  }
  [[nodiscard]] status wait_event(stream_handle stream, event_handle event) override {
    return run<stream_backend<B>, status>(
        call::wait_event, [](auto& d, const auto&... given) { return d.wait_event(given...); },
        stream, event);
  }
  [[nodiscard]] status synchronize_event(event_handle event) override {
    return run<stream_backend<B>, status>(
        call::synchronize_event,
        [](auto& d, const auto&... given) { return d.synchronize_event(given...); }, event);
  }

  [[nodiscard]] std::uint64_t stream_identity(stream_handle stream) noexcept override {
    if constexpr (stream_identity_backend<B>) {
      return inside().stream_identity(stream);
    } else {
      return 0;
    }
  }

  // all_work_backend
  [[nodiscard]] status record_all(event_handle event) override {
    return run<all_work_backend<B>, status>(
        call::record_all, [](auto& d, const auto&... given) { return d.record_all(given...); },
        event);
  }

  // all_wait_backend
  [[nodiscard]] status synchronize_all() override {
    return run<all_wait_backend<B>, status>(call::synchronize_all,
                                            [](auto& d) { return d.synchronize_all(); });
  }

  // capture_backend
  capture_mode exchange_capture_mode(capture_mode mode) override {
    if constexpr (capture_backend<B>) {
      return inside().exchange_capture_mode(mode);
    } else {
      return mode;
    }
  }
  [[nodiscard]] result<capture_info> query_capture(stream_handle stream) override {
    return run<capture_backend<B>, result<capture_info>>(
        call::query_capture,
        [](auto& d, const auto&... given) { return d.query_capture(given...); }, stream);
  }
  [[nodiscard]] bool is_uncaptured(stream_handle stream) noexcept override {
    if constexpr (quick_capture_backend<B> && !is_observed) {
      return inside().is_uncaptured(stream);
    } else {
      return false;
    }
  }

  // context_backend
  [[nodiscard]] bool push_context() override {
    if constexpr (context_backend<B>) {
      return inside().push_context();
    } else {
      return false;
    }
  }
  void pop_context() override {
    if constexpr (context_backend<B>) inside().pop_context();
  }

  // copy_backend
  [[nodiscard]] status copy(const copy_request& request) override {
    return run<copy_backend<B>, status>(
        call::copy, [](auto& d, const auto&... given) { return d.copy(given...); }, request);
  }
  [[nodiscard]] status fill(const fill_request& request) override {
    return run<copy_backend<B>, status>(
        call::fill, [](auto& d, const auto&... given) { return d.fill(given...); }, request);
  }
  [[nodiscard]] status write(address at, std::span<const std::byte> source) override {
    return run<copy_backend<B>, status>(
        call::write, [](auto& d, const auto&... given) { return d.write(given...); }, at, source);
  }
  [[nodiscard]] status read(std::span<std::byte> target, address at) override {
    return run<copy_backend<B>, status>(
        call::read, [](auto& d, const auto&... given) { return d.read(given...); }, target, at);
  }

  // retain_backend
  [[nodiscard]] result<physical_handle> retain(address at) override {
    return run<retain_backend<B>, result<physical_handle>>(
        call::retain, [](auto& d, const auto&... given) { return d.retain(given...); }, at);
  }

  // property_backend
  [[nodiscard]] result<physical_properties> get_properties(physical_handle handle) override {
    return run<property_backend<B>, result<physical_properties>>(
        call::get_properties,
        [](auto& d, const auto&... given) { return d.get_properties(given...); }, handle);
  }

  // sharing_backend
  [[nodiscard]] result<shared_handle> export_handle(physical_handle handle,
                                                    share_kind kind) override {
    return run<sharing_backend<B>, result<shared_handle>>(
        call::export_handle,
        [](auto& d, const auto&... given) { return d.export_handle(given...); }, handle, kind);
  }
  [[nodiscard]] result<physical_handle> import_handle(const shared_handle& shared) override {
    return run<sharing_backend<B>, result<physical_handle>>(
        call::import_handle,
        [](auto& d, const auto&... given) { return d.import_handle(given...); }, shared);
  }

  // peer_backend
  [[nodiscard]] result<peer_info> query_peer(const peer_query& query) override {
    return run<peer_backend<B>, result<peer_info>>(
        call::query_peer, [](auto& d, const auto&... given) { return d.query_peer(given...); },
        query);
  }

  // range_export_backend
  [[nodiscard]] result<dma_buf> export_range(address_range range) override {
    return run<range_export_backend<B>, result<dma_buf>>(
        call::export_range, [](auto& d, const auto&... given) { return d.export_range(given...); },
        range);
  }

  // multicast_backend
  [[nodiscard]] result<granularity> query_multicast_granularity(
      const multicast_request& request) override {
    return run<multicast_backend<B>, result<granularity>>(
        call::query_granularity,
        [](auto& d, const auto&... given) { return d.query_multicast_granularity(given...); },
        request);
  }
  [[nodiscard]] result<multicast_handle> create_multicast(
      const multicast_request& request) override {
    return run<multicast_backend<B>, result<multicast_handle>>(
        call::create_multicast,
        [](auto& d, const auto&... given) { return d.create_multicast(given...); }, request);
  }
  [[nodiscard]] status add_multicast_device(multicast_handle team, location place) override {
    return run<multicast_backend<B>, status>(
        call::add_multicast_device,
        [](auto& d, const auto&... given) { return d.add_multicast_device(given...); }, team,
        place);
  }
  [[nodiscard]] status bind_multicast(const multicast_binding& binding) override {
    return run<multicast_backend<B>, status>(
        call::bind_multicast,
        [](auto& d, const auto&... given) { return d.bind_multicast(given...); }, binding);
  }
  [[nodiscard]] status bind_multicast_address(const multicast_address_binding& binding) override {
    return run<multicast_backend<B>, status>(
        call::bind_multicast,
        [](auto& d, const auto&... given) { return d.bind_multicast_address(given...); }, binding);
  }
  [[nodiscard]] status unbind_multicast(const multicast_binding& binding) override {
    return run<multicast_backend<B>, status>(
        call::unbind_multicast,
        [](auto& d, const auto&... given) { return d.unbind_multicast(given...); }, binding);
  }

 protected:
  [[nodiscard]] Observer& watching() const noexcept {
    check(observer_ != nullptr, "an observed backend is used that was moved from");
    return *observer_;
  }
  [[nodiscard]] const Holder& holder() const noexcept { return owner_; }

 private:
  static constexpr bool is_observed = !std::same_as<Observer, unobserved>;
  struct no_observer {};
  struct no_process_mark {};

  // A pointer is null when its object was moved from.
  [[nodiscard]] bool has_driver() const noexcept {
    if constexpr (requires { owner_ == nullptr; }) {
      return owner_ != nullptr;
    } else {
      return true;
    }
  }

  // Makes the call if the driver has the refinement, and notifies the observer, if any.
  template <bool Has, class Answer, class Work, class... Given>
  Answer run(call kind, Work&& work, const Given&... given) {
    if constexpr (!Has) {
      return error{errc::not_supported, kind, 0, "",
                   "this backend does not have the call: see its features"};
    } else if constexpr (is_observed) {
      return observe<Answer>({.kind = kind, .arguments = facts_of(given...)},
                             [&] { return work(inside(), given...); });
    } else {
      return work(inside(), given...);
    }
  }

  template <class Answer, class Work>
  Answer observe(call_record record, Work&& work) {
    if (!made_in_.is_here()) [[unlikely]]
      return refuse_forked(record.kind);
    check(record.kind != call::none, "a call of no kind is observed");
    if (const status allowed = watching().before(record); !allowed) {
      error refused = allowed.error();
      if (refused.where == call::none) refused.where = record.kind;
      check(refused.code != errc::none, "a call is refused without a code");
      record.failure = &refused;
      observer_->after(record);
      return refused;
    }
    Answer answer = work();
    if (!answer) {
      record.failure = &answer.error();
    } else if constexpr (!std::same_as<Answer, status>) {
      record.results = facts_of(*answer);
    }
    observer_->after(record);
    return answer;
  }

  Holder owner_;
  [[no_unique_address]] std::conditional_t<is_observed, std::shared_ptr<Observer>, no_observer>
      observer_{};
  [[no_unique_address]] std::conditional_t<is_observed, process_mark, no_process_mark> made_in_{};
};

}  // namespace vmm

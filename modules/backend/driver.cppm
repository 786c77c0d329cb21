// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.backend:driver - a driver of any type behind one interface.
//
// Everything above the backends costs driver calls of microseconds, where a virtual call is free.
// So it works through driver_interface, is compiled once, and can be named without a backend.
//
// driver_interface  every call of every refinement; calls that a driver lacks return not_supported
// driver_ref        makes a driver of any type a driver_interface, without owning it
// any_backend       owns a driver of any type
// observed_backend  owns a driver, and an observer sees its calls
//
// I1  Name, home and features are those of the driver inside: what features promise can be called.
// I2  after() of an observer is called once for every before(), also for a call that before()
//     refused. An answer passes unchanged; a refusal of before() gets the call's kind as its place.
// I3  A call that the driver lacks does not reach an observer; nor does any call in a forked child.
//
// This file, the concepts and the drivers are all that a new call touches.
//
// Thread safety: that of the driver inside. Cost: one virtual call; an observer's own cost, and
// copying some 100 bytes where there is one. any_backend allocates once.
export module vmm.backend:driver;

import vmm.std;
import vmm.support;
import :concepts;
import :observe;
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
  [[nodiscard]] virtual std::uint64_t stream_identity(stream_handle) noexcept { return 0; }

  // all_work_backend
  [[nodiscard]] virtual status record_all(event_handle) = 0;

  // all_wait_backend
  [[nodiscard]] virtual status synchronize_all() = 0;

  // capture_backend. Exchanging the mode makes no call on a device and cannot fail: without
  // captures it returns its argument.
  virtual capture_mode exchange_capture_mode(capture_mode) = 0;
  [[nodiscard]] virtual result<capture_info> query_capture(stream_handle) = 0;
  /// quick_capture_backend; without it, or under an observer, false.
  [[nodiscard]] virtual bool is_uncaptured(stream_handle) noexcept { return false; }

  // context_backend: false where the driver has no context; nothing is to be popped then.
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
              capture_backend<driver_interface> && context_backend<driver_interface> &&
              copy_backend<driver_interface> && retain_backend<driver_interface> &&
              property_backend<driver_interface> && sharing_backend<driver_interface> &&
              peer_backend<driver_interface> && range_export_backend<driver_interface> &&
              multicast_backend<driver_interface>);

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
  [[nodiscard]] result<access> get_access(address at, location who) override {
    return run<backend<B>, result<access>>(
        call::get_access, [](auto& d, const auto&... given) { return d.get_access(given...); }, at,
        who);
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
  [[nodiscard]] status add_multicast_device(multicast_handle team, location who) override {
    return run<multicast_backend<B>, status>(
        call::add_multicast_device,
        [](auto& d, const auto&... given) { return d.add_multicast_device(given...); }, team, who);
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
  struct nobody {};
  struct nobody_there {};

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
  [[no_unique_address]] std::conditional_t<is_observed, std::shared_ptr<Observer>, nobody>
      observer_{};
  [[no_unique_address]] std::conditional_t<is_observed, process_mark, nobody_there> made_in_{};
};

/// Owns one driver of any type. Moved-from objects may only be destroyed or assigned to.
export class any_backend final : public driver_model<std::unique_ptr<driver_interface>> {
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
    using owner = driver_model<std::unique_ptr<B>>;
    if (driver != nullptr) {
      std::unique_ptr<driver_interface> made{new (std::nothrow) owner(std::move(driver))};
      if (made != nullptr) return any_backend{std::move(made)};
    }
    return refuse(errc::out_of_host_memory, "operator new failed for a type-erased backend");
  }

  /// The driver inside if it is a B, else nullptr.
  template <backend B>
  [[nodiscard]] B* get_if() noexcept {
    auto* found = dynamic_cast<driver_model<std::unique_ptr<B>>*>(&inside());
    return found == nullptr ? nullptr : &found->inside();
  }

  /// The driver; null when it was moved from.
  [[nodiscard]] driver_interface* get() const noexcept { return holder().get(); }
  /// The pools and managers over this object; it must neither be moved nor destroyed while they
  /// exist.
  [[nodiscard]] user_count& users() noexcept { return users_; }

 private:
  using driver_model::driver_model;

  user_count users_;
};

/// A driver of any type as a driver_interface, without owning it: what vmm's parts hold. The driver
/// outlives it and stays where it is. Copies refer to the same driver; nothing is allocated.
export class driver_ref {
 public:
  /// Requires: the driver outlives the reference and its copies, and stays where it is.
  template <backend B>
    requires(!std::derived_from<B, driver_interface>)
  driver_ref(B& driver) noexcept
      : users_(use_of::count_of(driver)),
        place_(&place_model<B>),
        object_(&driver),
        face_(place_(model_, object_)) {}
  template <std::derived_from<driver_interface> B>
  driver_ref(B& driver) noexcept : users_(use_of::count_of(driver)), face_(&driver) {}
  driver_ref(any_backend& driver) noexcept : users_(&driver.users()), face_(driver.get()) {}
  driver_ref(const driver_ref& other) noexcept
      : users_(other.users_),
        place_(other.place_),
        object_(other.object_),
        face_(place_ == nullptr ? other.face_ : place_(model_, object_)) {
    check((place_ == nullptr) == (object_ == nullptr), "a reference has half a driver");
  }
  driver_ref& operator=(const driver_ref&) = delete;

  /// The driver. Requires: it was not moved from.
  [[nodiscard]] driver_interface& operator*() const noexcept {
    debug_check([this] { return face_ != nullptr; }, "a driver is reached that was moved from");
    return *face_;
  }
  [[nodiscard]] driver_interface* operator->() const noexcept {
    debug_check([this] { return face_ != nullptr; }, "a driver is reached that was moved from");
    return face_;
  }
  /// The object that the reference was made of: equal for all references to one driver.
  [[nodiscard]] const void* identity() const noexcept {
    return object_ != nullptr ? object_ : static_cast<const void*>(face_);
  }
  /// One more user of the driver: see user_count. A reference alone is none.
  [[nodiscard]] use_of use() const noexcept { return use_of(users_); }

 private:
  static constexpr std::size_t model_bytes = 2 * sizeof(void*);

  // A model of a pointer owns nothing: it is never destroyed.
  template <class B>
  static driver_interface* place_model(void* where, void* object) noexcept {
    static_assert(sizeof(driver_model<B*>) <= model_bytes);
    check(object != nullptr && reinterpret_cast<std::uintptr_t>(where) % alignof(void*) == 0,
          "a reference is made of no driver, or where it cannot lie");
    return ::new (where) driver_model<B*>(static_cast<B*>(object));
  }

  user_count* users_;
  alignas(void*) std::byte model_[model_bytes];
  driver_interface* (*place_)(void* where, void* object) noexcept = nullptr;
  void* object_ = nullptr;
  driver_interface* face_;
};

/// A B whose calls an observer sees. The observer is shared, so that its owner can query it.
export template <backend B, call_observer Observer>
class observed_backend : public driver_model<owned_driver<B>, Observer> {
 public:
  /// Requires: an observer, else the process ends.
  observed_backend(B driver, std::shared_ptr<Observer> observer) noexcept
      : driver_model<owned_driver<B>, Observer>(owned_driver<B>{std::move(driver)},
                                                std::move(observer)) {}

  /// What is inside: the driver, whose calls the observer does not see, and the observer.
  [[nodiscard]] B& driver() noexcept { return this->inside(); }
  [[nodiscard]] Observer& observer() noexcept { return this->watching(); }
  /// The pools and managers over this object; it must neither be moved nor destroyed while they
  /// exist.
  [[nodiscard]] user_count& users() noexcept { return users_; }

 private:
  user_count users_;
};

}  // namespace vmm

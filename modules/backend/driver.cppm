// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.backend:driver - a driver of any type as a value, or by reference.
//
// driver_ref        makes a driver of any type a driver_interface, without owning it
// any_backend       owns a driver of any type
// observed_backend  owns a driver, and notifies an observer of its calls
//
// Thread safety: that of the driver inside. Cost: one virtual call; with an observer its own
// cost, and a copy of some 100 bytes. any_backend allocates once.
export module vmm.backend:driver;

import vmm.base;
import vmm.std;
import :calls;
import :concepts;
import :driver_interface;
import :driver_model;
import :result;

namespace vmm {

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

  /// The driver inside if its type is B, else nullptr.
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

/// A driver of any type as a driver_interface, without owning it. The driver outlives it and is not
/// moved. Copies refer to the same driver; nothing is allocated.
export class driver_ref {
 public:
  /// Requires: the driver outlives the reference and its copies, and is not moved.
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
    debug_check([this] { return face_ != nullptr; }, "a driver is used that was moved from");
    return *face_;
  }
  [[nodiscard]] driver_interface* operator->() const noexcept {
    debug_check([this] { return face_ != nullptr; }, "a driver is used that was moved from");
    return face_;
  }
  /// The referenced object: equal for all references to one driver.
  [[nodiscard]] const void* identity() const noexcept {
    return object_ != nullptr ? object_ : static_cast<const void*>(face_);
  }
  /// One more user of the driver: see user_count. A reference alone does not count.
  [[nodiscard]] use_of use() const noexcept { return use_of(users_); }

 private:
  static constexpr std::size_t model_bytes = 2 * sizeof(void*);

  // A model over a pointer owns nothing: it is never destroyed.
  template <class B>
  static driver_interface* place_model(void* where, void* object) noexcept {
    static_assert(sizeof(driver_model<B*>) <= model_bytes);
    check(object != nullptr && reinterpret_cast<std::uintptr_t>(where) % alignof(void*) == 0,
          "a reference has no driver, or no room for one");
    return ::new (where) driver_model<B*>(static_cast<B*>(object));
  }

  user_count* users_;
  alignas(void*) std::byte model_[model_bytes];
  driver_interface* (*place_)(void* where, void* object) noexcept = nullptr;
  void* object_ = nullptr;
  driver_interface* face_;
};

/// A B with an observer of its calls. The observer is shared with its owner.
export template <backend B, call_observer Observer>
class observed_backend : public driver_model<owned_driver<B>, Observer> {
 public:
  /// Requires: an observer, else the process ends.
  observed_backend(B driver, std::shared_ptr<Observer> observer) noexcept
      : driver_model<owned_driver<B>, Observer>(owned_driver<B>{std::move(driver)},
                                                std::move(observer)) {}

  /// Direct access to the driver, around the observer, and to the observer.
  [[nodiscard]] B& driver() noexcept { return this->inside(); }
  [[nodiscard]] Observer& observer() noexcept { return this->watching(); }
  /// The pools and managers over this object; it must neither be moved nor destroyed while they
  /// exist.
  [[nodiscard]] user_count& users() noexcept { return users_; }

 private:
  user_count users_;
};

}  // namespace vmm

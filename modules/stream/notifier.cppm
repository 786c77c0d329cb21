// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:notifier - numbers each change of the memory behind an address, and calls the remap
// listeners and the observer of a pool, one at a time. Not exported.
//
// I1  After unsubscribe() has returned, the listener is not being called and is not called again.
// I2  The number of a change grows before the change. A retried unmapping keeps the number of the
// first try, and its listeners are not called again.
// I3  A listener is called under the ranks of growth and notices, with the gate closed, and the
//     observer under that of observer, or alone.
//
// I4  No two threads wait for one another's pool in callbacks: of such calls one is_circular().
//
// Thread safety: all of it. Cost: one relaxed load a change without listeners; a notice is one call
// of each listener.
module;
#include "../base/thread_annotations.h"

export module vmm.stream:notifier;

import vmm.backend;
import vmm.base;
import vmm.std;
import :call_path;
import :growth_planner;
import :locks;
import :mappings;
import :notices;
import :options;
import :state_lock;

namespace vmm {

class notifier {
 public:
  /// `observer` is null if the pool has none.
  notifier(driver_interface& driver, block_observer* observer, call_path& path) noexcept
      : driver_(driver), observer_(observer), gate_(path.gate()), state_(path.state()) {}
  notifier(const notifier&) = delete;
  notifier& operator=(const notifier&) = delete;
  ~notifier() {
    if (!gate_.is_here()) leave_parts_behind(listeners_);
  }

  /// For its life, if the calling thread is in a callback of another pool, that pool waits for this
  /// one's locks.
  class foreign_call {
   public:
    explicit foreign_call(notifier& of) noexcept;
    ~foreign_call();
    foreign_call(const foreign_call&) = delete;
    foreign_call& operator=(const foreign_call&) = delete;
    /// Whether this pool waits for that one. Then the call takes no lock of this pool.
    [[nodiscard]] bool is_circular() const noexcept { return is_circular_; }

   private:
    notifier* caller_;  // null: no other pool's callback, or it is circular
    const notifier* before_ = nullptr;
    bool is_circular_ = false;
  };

  // ---- listeners ----
  /// Errors: out_of_host_memory.
  [[nodiscard]] result<remap_subscription> subscribe(remap_listener& listener) noexcept
      VMM_EXCLUDES(rank::notices);
  /// Waits until its listener is not being called. Errors: invalid_argument (not a live
  /// subscription).
  [[nodiscard]] status unsubscribe(remap_subscription gone) noexcept VMM_EXCLUDES(rank::notices);
  /// The number of the latest change that has been announced.
  [[nodiscard]] std::uint64_t epoch() const noexcept {
    return epoch_.load(std::memory_order_acquire);
  }

  // ---- changes, before they are made ----
  /// The memory that a plan moves leaves these addresses. It is claimed, and stays there until
  /// then.
  void moving(const growth_plan& plan) VMM_REQUIRES(rank::growth) VMM_EXCLUDES(rank::state);
  void unmapping(mapping& gone, remap_kind kind) VMM_REQUIRES(rank::growth)
      VMM_EXCLUDES(rank::state);
  /// `released` or, when it is done, `mapped`: a change of its own.
  void announce(remap_kind what, address_range range) VMM_REQUIRES(rank::growth)
      VMM_EXCLUDES(rank::state);

  // ---- changes that are done ----
  /// New mappings reach their memory.
  void mapped(const growth_plan& plan) VMM_REQUIRES(rank::growth) VMM_EXCLUDES(rank::state);

  // ---- the observer ----
  [[nodiscard]] bool is_observed() const noexcept { return observer_ != nullptr; }
  /// words(observer), if there is one, with the context that a tool expects.
  template <class Words>
  void observe(Words&& words) {
    if (observer_ == nullptr) [[likely]]
      return;
    const observer_scope inside(*this);
    const bool is_current = driver_.push_context();
    words(*observer_);
    if (is_current) driver_.pop_context();
  }

  // ---- calls from inside ----
  /// Ends the process when the calling thread is inside a listener or the observer of this pool.
  void check_not_in_callback() const noexcept;
  /// The same for the observer alone.
  void check_not_in_observer() const noexcept;
  /// Whether the calling thread is inside a listener or the observer of any pool.
  [[nodiscard]] static bool is_in_any_callback() noexcept;
  /// Whether the calling thread is inside a listener of this pool: it has the lock of growth.
  [[nodiscard]] bool is_in_callback() const noexcept {
    return calling_.load(std::memory_order_relaxed) == this_thread();
  }

 private:
  struct subscriber {
    remap_listener* listener = nullptr;
    std::uint64_t number = 0;
  };
  // While it exists the calling thread is inside the observer.
  class observer_scope {
   public:
    explicit observer_scope(notifier& of) noexcept;
    ~observer_scope();
    observer_scope(const observer_scope&) = delete;
    observer_scope& operator=(const observer_scope&) = delete;

   private:
    const notifier* before_;
    notifier* caller_before_;
  };

  [[nodiscard]] bool has_listeners() const noexcept {
    return count_.load(std::memory_order_relaxed) != 0;
  }
  [[nodiscard]] std::uint64_t next_epoch() noexcept;
  void notify(const remap_notice& notice) VMM_REQUIRES(rank::growth) VMM_EXCLUDES(rank::notices);
  [[nodiscard]] address_range range_of(const mapping& m, const physical_memory& memory)
      VMM_EXCLUDES(rank::state);

  driver_interface& driver_;
  block_observer* const observer_;
  pool_gate& gate_;
  state_cell& state_;
  notices_lock lock_;  // held over the callbacks
  std::vector<subscriber> listeners_ VMM_GUARDED_BY(rank::notices);
  std::uint64_t last_number_ VMM_GUARDED_BY(rank::notices) = 0;
  sync::atomic<std::size_t> count_ = 0;
  sync::atomic<std::uint64_t> calling_ = 0;  // the thread
  sync::atomic<std::uint64_t> epoch_ = 0;
  const notifier* waits_for_ = nullptr;  // under the lock of all foreign calls
};

}  // namespace vmm

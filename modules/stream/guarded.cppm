// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:guarded - a pool's locks and their order, and an object that is reached only under its
// lock. Not exported.
//
// The order of a pool's locks, outermost first: that of changes (suspension, and frees that fill,
// but for those of remap callbacks), the watcher's, that of growth, that of the remap
// callbacks (notices), that of release, that of marks of all work, the state's (guarded), under
// which no driver call and no callback is made, and those of fronts, one at a time. growth_turn
// takes the first two.
//
// Thread safety: what it is for. Cost: that of sync::spin_lock.
module;
#include "../sync/thread_annotations.h"

export module vmm.stream:guarded;

import vmm.backend;
import vmm.std;
import vmm.support;
import vmm.sync;

namespace vmm {

/// Given on in nearly the order of asking: who waits for the second mutex has the first. A thread
/// that takes the lock again and again, as one that prepares or trims does, gets it once more at
/// most before one that waits.
class VMM_CAPABILITY("mutex") growth_lock {
 public:
  growth_lock() = default;
  growth_lock(const growth_lock&) = delete;
  growth_lock& operator=(const growth_lock&) = delete;
  inline void lock() noexcept VMM_ACQUIRE() VMM_NOT_ANALYSED {
    next_.lock();
    growing_.lock();
    next_.unlock();
  }
  inline void unlock() noexcept VMM_RELEASE() VMM_NOT_ANALYSED { growing_.unlock(); }

 private:
  sync::watched_mutex next_;
  sync::watched_mutex growing_;
};

using release_lock = sync::mutex;
/// Held over the questions and the record of a mark of all work: some microseconds.
using mark_lock = sync::mutex;

/// Given on as growth_lock is. Its holder may take it again: a thread that allocates or trims has
/// it while remap callbacks run on that thread, and a callback may free.
class VMM_CAPABILITY("mutex") watcher_lock {
 public:
  watcher_lock() = default;
  watcher_lock(const watcher_lock&) = delete;
  watcher_lock& operator=(const watcher_lock&) = delete;
  void lock() noexcept VMM_ACQUIRE() VMM_NOT_ANALYSED;
  void unlock() noexcept VMM_RELEASE() VMM_NOT_ANALYSED;

 private:
  growth_lock turns_;
  sync::atomic<std::uint64_t> holder_ = 0;  // the thread: each sees its own number, or another
  std::uint32_t depth_ = 0;                 // under turns_
};

/// One object that nobody reaches without its lock.
///
///     {
///       const auto state = guarded.lock();
///       state->change();
///     }
///     guarded.with([](auto& state) { return state.answer(); });
///
/// The object has the lock, beside what each holder reads first: what is read without the lock
/// around the pointer to it stays unwritten, so that no thread takes it from another's cache.
///
/// An object that puts work off has settle(), which does it: whoever takes the lock finds it done,
/// but for lock_unsettled().
///
/// lock()->call() does not compile: the lock would be held to the end of the statement, with
/// whatever else stands there. The type leaves no way around the lock, and the compiler's analysis
/// of locks refuses a member that would be one.
template <class T>
class guarded {
 public:
  /// The object under its lock; `Object` is T, or const T for whoever may only look.
  template <class Object>
  class locked {
   public:
    locked(const locked&) = delete;
    locked& operator=(const locked&) = delete;
    inline ~locked() VMM_NOT_ANALYSED { object_.own_lock().unlock(); }

    [[nodiscard]] inline Object* operator->() const& noexcept { return &object_; }
    [[nodiscard]] inline Object& operator*() const& noexcept { return object_; }
    Object* operator->() const&& = delete;
    Object& operator*() const&& = delete;

   private:
    friend class guarded;
    inline locked(const guarded& owner, bool settles) noexcept VMM_NOT_ANALYSED
        : object_(object_of(owner)) {
      owner.fetch_object();
      if (!object_.own_lock().try_lock()) [[unlikely]]
        owner.wait();
      if constexpr (requires(T& object) { object.settle(); }) {
        if (settles) owner.object_->settle();
      }
    }

    [[nodiscard]] static inline Object& object_of(const guarded& owner) noexcept VMM_NOT_ANALYSED {
      debug_check([&]() VMM_NOT_ANALYSED { return owner.object_ != nullptr; },
                  "nothing is guarded yet, or any more");
      return *owner.object_;
    }

    Object& object_;
  };

  guarded() = default;
  guarded(const guarded&) = delete;
  guarded& operator=(const guarded&) = delete;

  /// After set(). The result is held for the block that it is named in.
  [[nodiscard]] inline locked<T> lock() noexcept { return locked<T>(*this, true); }
  [[nodiscard]] inline locked<const T> lock() const noexcept {
    return locked<const T>(*this, true);
  }
  /// The same, and what the object has put off stays so.
  [[nodiscard]] inline locked<T> lock_unsettled() noexcept { return locked<T>(*this, false); }
  /// The work's result, which names nothing of the object by reference.
  template <class Work>
  inline auto with(Work&& work) noexcept {
    const locked<T> state(*this, true);
    return std::forward<Work>(work)(*state);
  }
  template <class Work>
  inline auto with(Work&& work) const noexcept {
    const locked<const T> state(*this, true);
    return std::forward<Work>(work)(*state);
  }
  /// Before any other thread can reach this, or after every other one has gone.
  void set(std::unique_ptr<T> object) noexcept VMM_NOT_ANALYSED {
    check(object_ == nullptr && object != nullptr, "an object is guarded in place of another");
    object_ = std::move(object);
  }
  /// The object, which nothing here owns or reaches any more.
  [[nodiscard]] T* release() noexcept VMM_NOT_ANALYSED { return object_.release(); }

 private:
  // Its first two lines come while the lock is taken, behind which the processor waits with other
  // loads.
  inline void fetch_object() const noexcept VMM_NOT_ANALYSED {
    const auto* const first = reinterpret_cast<const std::byte*>(object_.get());
    fetch_ahead(first);
    if constexpr (sizeof(T) > 64) fetch_ahead(first + 64);
  }
  // Another thread has the lock. The object may count that.
  [[gnu::noinline]] void wait() const noexcept VMM_NOT_ANALYSED {
    check(object_ != nullptr, "nothing is guarded yet, or any more");
    object_->own_lock().lock();
    if constexpr (requires(T& object) { object.note_wait(); }) object_->note_wait();
  }

  // Stands for the object's lock, which the analysis cannot name.
  class VMM_CAPABILITY("spin_lock") lock_of_object {};
  [[no_unique_address]] lock_of_object lock_;
  std::unique_ptr<T> object_ VMM_GUARDED_BY(lock_);
};

}  // namespace vmm

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:guarded - a pool's locks and their order, and an object that is reached only under its
// lock. Not exported.
//
// The order of a pool's locks, outermost first: the watcher's, that of growth, that of the remap
// callbacks (notices), that of release, and the state's (guarded), under which no driver call and
// no callback is made. stream_pool::growth_turn takes the first two.
//
// Thread safety: what it is for. Cost: that of sync::spin_lock.
module;
#include <memory>
#include <utility>

#include "../sync/thread_annotations.h"

export module vmm.stream:guarded;

import vmm.sync;

namespace vmm {

using growth_lock = sync::mutex;
using release_lock = sync::mutex;
/// Recursive: a thread that allocates or trims has it while remap callbacks run on that thread, and
/// a callback may free, which takes it again.
using watcher_lock = sync::recursive_mutex;

/// One object that nobody reaches without its lock.
///
///     {
///       const auto state = guarded.lock();
///       state->change();
///     }
///     guarded.with([](auto& state) { return state.answer(); });
///
/// lock()->call() does not compile: the lock would be held to the end of the statement, with
/// whatever else stands there. Clang's analysis of locks is not needed here: the type leaves no way
/// around the lock.
template <class T>
class guarded {
 public:
  class locked {
   public:
    locked(const locked&) = delete;
    locked& operator=(const locked&) = delete;
    inline ~locked() VMM_NOT_ANALYSED { owner_.lock_.unlock(); }

    [[nodiscard]] inline T* operator->() const& noexcept { return owner_.object_.get(); }
    [[nodiscard]] inline T& operator*() const& noexcept { return *owner_.object_; }
    T* operator->() const&& = delete;
    T& operator*() const&& = delete;

   private:
    friend class guarded;
    inline explicit locked(guarded& owner) noexcept VMM_NOT_ANALYSED : owner_(owner) {
      owner_.lock_.lock();
    }

    guarded& owner_;
  };

  guarded() = default;
  guarded(const guarded&) = delete;
  guarded& operator=(const guarded&) = delete;

  /// After set(). The result is held for the block that it is named in.
  [[nodiscard]] inline locked lock() noexcept { return locked(*this); }
  /// The work's result, which names nothing of the object by reference.
  template <class Work>
  inline auto with(Work&& work) noexcept {
    const locked state(*this);
    return std::forward<Work>(work)(*state);
  }
  /// Before any other thread can reach this, or after every other one has gone.
  void set(std::unique_ptr<T> object) noexcept { object_ = std::move(object); }
  /// The object, which nothing here owns or reaches any more.
  [[nodiscard]] T* release() noexcept { return object_.release(); }

 private:
  sync::spin_lock lock_;
  std::unique_ptr<T> object_;
};

}  // namespace vmm

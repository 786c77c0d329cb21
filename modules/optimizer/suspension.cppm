// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.optimizer:suspension - memory released for a while, and new memory at the same addresses.
//
// A part is one piece at the one address where it is mapped. Its state is the piece's own: mapped
// or not, with a handle or without. Every function accepts parts in any state, so that a later call
// completes one that failed half-way and could not be undone.
//
// I1  A part that is mapped has a handle. A part without a handle counts as suspended, in no other
//     sum.
// I2  If a function fails, the parts that it changed are as before, unless the driver repeatedly
//     refuses the undoing, too; even then no piece is lost and no address is freed.
//
// I3  Between try_begin() and end() of suspension_phases one thread has the phase, and its lock. A
//     thread that changes several allocators begins them in the order of suspendable::lock_order().
//
// Thread safety: all of it, for parts that one thread works on. Cost: driver calls by parts.
module;
#include "../base/thread_annotations.h"

export module vmm.optimizer:suspension;

import vmm.backend;
import vmm.base;
import vmm.physical;
import vmm.std;
import vmm.timeline;
import :core;
import :relief;

namespace vmm {

/// The phase of an allocator whose memory is suspended as a whole.
export enum class suspension_phase : std::uint8_t {
  running,
  changing,   // one thread suspends or resumes it
  suspended,  // its blocks are live and have no memory: they can only be freed
};

/// The error of every call that needs the memory of a suspended allocator or block.
export inline constexpr error memory_suspended =
    refuse(errc::in_use,
           "the memory is suspended, or is being suspended: resume it first, by "
           "suspender::resume(); if its suspender was closed, add the allocator to another "
           "suspender, and resume it there");

/// Contents of memory that the end of its suspender left suspended.
export enum class left_contents : std::uint8_t {
  none,     // it was not left
  lost,     // of live blocks, if there are any: promised, and gone with the suspender
  zero,     // to be zero after the resumption
  discard,  // unspecified
  intact,   // in the memory, which the driver refused to release or to map
};

/// One piece, where it is mapped, and the rights of its range besides those of all.
export struct suspension_part {
  address at{};
  physical_memory* memory = nullptr;
  const grant_list* own_rights = nullptr;
  bool is_bare = false;  ///< it was mapped, but both its rights and the undoing failed

  [[nodiscard]] address_range range() const noexcept {
    check(memory != nullptr && memory->size_bytes != 0, "a part has no memory");
    return {at, memory->size_bytes};
  }
  [[nodiscard]] bool is_attached() const noexcept {
    check(memory != nullptr, "a part has no memory");
    return memory->mapping_count != 0;
  }
};

/// The parts of one allocator.
export using suspension_list = std::vector<suspension_part>;

// A number of the calling thread, not 0.
[[nodiscard]] std::uint64_t calling_thread() noexcept;

/// The phase of one allocator, and the lock of the thread that changes it. A call whose work must
/// not run beside a suspension holds that lock, too: see may_fill_here().
export class suspension_phases {
 public:
  suspension_phases() = default;
  suspension_phases(const suspension_phases&) = delete;
  suspension_phases& operator=(const suspension_phases&) = delete;

  [[nodiscard]] suspension_phase phase() const noexcept {
    return shown(state_.load(std::memory_order_acquire));
  }
  [[nodiscard]] bool is_running() const noexcept { return phase() == suspension_phase::running; }

  /// Effects: if the phase is `from`, changes it to `changing`, and this thread holds the lock
  /// until end(). `publish(phase)` is called before the wait for the lock. Returns the previous
  /// phase. The analysis does not follow a lock from one call to another.
  template <class Publish>
  [[nodiscard]] suspension_phase try_begin(suspension_phase from,
                                           Publish&& publish) VMM_NOT_ANALYSED {
    check(from != suspension_phase::changing, "two threads suspend or resume one allocator");
    {
      const sync::lock_guard<sync::mutex> lock(mutex_);
      const suspension_phase before = phase();
      if (before != from) return before;
      state_.store(from == suspension_phase::running ? state::suspending : state::resuming,
                   std::memory_order_release);
      publish(suspension_phase::changing);
    }
    change_.lock();
    check(changer_.load(std::memory_order_relaxed) == 0, "I3: two threads change one allocator");
    step_ = from == suspension_phase::running ? step::begun : step::away;
    has_unfilled_ = from == suspension_phase::suspended;
    has_filled_ = false;
    changer_.store(calling_thread(), std::memory_order_relaxed);
    return from;
  }
  [[nodiscard]] suspension_phase try_begin(suspension_phase from) {
    return try_begin(from, [](suspension_phase) {});
  }
  /// Requires: try_begin() of this thread returned `from`. Effects: the phase is `next`;
  /// `publish(next)` is called first.
  template <class Publish>
  void end(suspension_phase next, Publish&& publish) noexcept VMM_NOT_ANALYSED {
    check(next != suspension_phase::changing, "a change of phase ends in a wrong phase");
    check(changer_.load(std::memory_order_relaxed) == calling_thread(),
          "I3: a change ends on another thread than its own");
    {
      const sync::lock_guard<sync::mutex> lock(mutex_);
      check(phase() == suspension_phase::changing, "a change ends that was not begun");
      publish(next);
      state_.store(next == suspension_phase::running ? state::running : state::suspended,
                   std::memory_order_release);
    }
    changer_.store(0, std::memory_order_relaxed);
    change_.unlock();
  }

  void end(suspension_phase next) noexcept {
    end(next, [](suspension_phase) {});
  }

  /// Requires: as end(). Effects: marks the begin of releasing or restoring memory: callbacks of
  /// the change fill nothing.
  void memory_leaves() noexcept { set_step(step::away); }
  /// Requires: as end(). Effects: marks that all memory is restored.
  void memory_is_back() noexcept { set_step(step::back); }
  /// Requires: as end(). Whether free memory may have bytes that should have been filled.
  [[nodiscard]] bool has_unfilled() const noexcept {
    check(is_changed_here(), "I3: another thread's change is looked at");
    return has_unfilled_;
  }
  /// Requires: as end(). Whether a callback has filled memory since the last call.
  [[nodiscard]] bool take_filled() noexcept {
    check(is_changed_here(), "I3: another thread's change is looked at");
    return std::exchange(has_filled_, false);
  }
  /// Requires: the lock, or a callback. Whether a block that is freed here is filled at once. Else
  /// it is filled when all memory is restored.
  [[nodiscard]] bool fills_freed_here() noexcept {
    if (!is_changed_here()) return may_fill_here();
    has_filled_ = has_filled_ || step_ == step::begun;
    has_unfilled_ = has_unfilled_ || step_ == step::away;
    return step_ != step::away;
  }
  /// Requires: the lock. Whether blocks have their memory, and keep it until the lock is released:
  /// a suspending thread waits for the lock before it changes anything. In a callback of the change
  /// itself part of the memory may be released.
  [[nodiscard]] bool may_fill_here() const noexcept {
    const state now = state_.load(std::memory_order_acquire);
    if (is_changed_here()) return false;
    return now == state::running || now == state::suspending;
  }
  [[nodiscard]] sync::recursive_mutex& change_mutex() noexcept { return change_; }
  /// Takes change_mutex(). In a callback of another allocator, whose locks a changing thread may
  /// need: false while another thread changes this one. A schedule does not see the attempts.
  [[nodiscard]] bool lock_beside() noexcept VMM_TRY_ACQUIRE(true, change_) {
    if (!relief_pause::is_here()) {
      change_.lock();
      return true;
    }
    while (!change_.try_lock()) {
      if (phase() == suspension_phase::changing) return false;
      std::this_thread::yield();  // another thread fills a block
    }
    return true;
  }
  /// Requires: lock_beside() has returned true.
  void unlock_beside() noexcept {
    sync::assume_locked(change_);
    change_.unlock();
  }

 private:
  enum class state : std::uint8_t { running, suspending, suspended, resuming };
  [[nodiscard]] static suspension_phase shown(state of) noexcept {
    if (of == state::running) return suspension_phase::running;
    return of == state::suspended ? suspension_phase::suspended : suspension_phase::changing;
  }

  // The steps of a change. In `begun` all memory is mapped, and the change waits for a fill.
  enum class step : std::uint8_t { begun, away, back };
  void set_step(step next) noexcept {
    check(is_changed_here(), "I3: a change continues on another thread than its own");
    step_ = next;
  }
  [[nodiscard]] bool is_changed_here() const noexcept {
    return changer_.load(std::memory_order_relaxed) == calling_thread();
  }

  sync::mutex mutex_;  // around a change of the phase
  sync::atomic<state> state_ = state::running;
  sync::recursive_mutex change_;
  std::atomic<std::uint64_t> changer_ = 0;  // no step of a test's schedule; 0: no thread
  step step_ = step::begun;                 // the changer's, as the next two
  bool has_unfilled_ = false;
  bool has_filled_ = false;
};

/// For its life, the lock of lock_beside(), unless that is refused or `phases` is null.
export class beside_change {
 public:
  explicit beside_change(suspension_phases* phases) noexcept
      : phases_(phases), is_held_(phases != nullptr && phases->lock_beside()) {}
  beside_change(const beside_change&) = delete;
  beside_change& operator=(const beside_change&) = delete;
  ~beside_change() {
    if (is_held_) phases_->unlock_beside();
  }
  [[nodiscard]] bool is_refused() const noexcept { return phases_ != nullptr && !is_held_; }

 private:
  suspension_phases* const phases_;
  const bool is_held_;
};

/// Unmaps the mapped pieces. Requires: no unfinished work uses them. Errors: those of unmap; all
/// are mapped again, unless the driver refuses.
export [[nodiscard]] status detach_parts(device_core& core, std::span<suspension_part> parts);
/// Maps unmapped parts, and sets the rights of all. Requires: parts with handles. Errors: those of
/// map and set_access; parts that were unmapped before are unmapped again, unless the driver
/// refuses.
export [[nodiscard]] status attach_parts(device_core& core, std::span<suspension_part> parts);
/// Creates memory for pieces without memory. Errors: over_budget, those of create; the created
/// memory is released, unless the driver refuses.
export [[nodiscard]] status provide_parts(device_core& core,
                                          std::span<const suspension_part> parts);
/// Releases the memory of pieces that are not mapped. Returns the bytes that the driver refused to
/// release; their pieces keep their handles, for attach_parts().
export [[nodiscard]] std::uint64_t release_parts(device_core& core,
                                                 std::span<const suspension_part> parts) noexcept;
/// The interface of an allocator for vmm.suspend: its calls are pairs of begin and end.
export class suspendable {
 public:
  suspendable() = default;
  suspendable(const suspendable&) = delete;
  suspendable& operator=(const suspendable&) = delete;

  /// Requires: begin_suspend or begin_resume has succeeded, or the memory is suspended.
  [[nodiscard]] virtual device_core& core() noexcept = 0;
  [[nodiscard]] virtual driver_interface& driver() noexcept = 0;
  [[nodiscard]] virtual user_count& users() noexcept = 0;
  [[nodiscard]] virtual suspension_phase phase() const noexcept = 0;
  /// Requires: no work that uses the memory is submitted to any stream until it is resumed.
  /// Effects: ends allocation. Waits for all work of the device, or with streams_forgotten for that
  /// of the allocator's streams and of `streams`; releases free memory to the driver. Then `out`
  /// has the memory of the live blocks, unchanged, and no other thread can change those blocks.
  /// Errors: in_use (suspended already, or a block or a stream that cannot be suspended), driver
  /// errors; all is as before. Cost: blocks until the work has finished; a trim.
  [[nodiscard]] virtual status begin_suspend(std::span<const stream_handle> streams,
                                             suspension_list& out) = 0;
  /// Requires: the list of begin_suspend. Effects: with `done` the allocator is suspended: its
  /// blocks are live and can only be freed. Else it continues, and all parts are mapped.
  virtual void end_suspend(const suspension_list& parts, bool done) noexcept = 0;
  /// Effects: `out` lists the parts to map again, without blocks freed meanwhile.
  /// Errors: invalid_argument (it is not suspended), in_use, out_of_host_memory, driver errors.
  [[nodiscard]] virtual status begin_resume(suspension_list& out) = 0;
  /// Requires: the list of begin_resume. Effects: with `done` the allocator continues; else it
  /// stays suspended.
  virtual void end_resume(const suspension_list& parts, bool done) noexcept = 0;
  /// Requires: between a begin and its end. Effects: marks that all parts are mapped and cleared.
  virtual void memory_is_back() noexcept {}
  /// Requires: between a begin and its end. Effects: calls the listeners: with `suspended`, before
  /// the memory of the parts goes; with `running`, after
  /// memory_is_back().
  virtual void announce(const suspension_list& parts, suspension_phase next) = 0;
  /// Requires: between a begin and its end, with all parts mapped. Effects: fills free memory whose
  /// old bytes must not remain, in the order of `stream`. Errors: out_of_host_memory, those of
  /// fill.
  [[nodiscard]] virtual status clear_freed(stream_handle stream) {
    (void)stream;
    return {};
  }
  /// Requires: as clear_freed. Whether such memory may exist.
  [[nodiscard]] virtual bool clears_freed() const noexcept { return false; }
  /// Its place among the allocators of the device. Errors: none.
  [[nodiscard]] virtual relief_member& relief() noexcept = 0;

  /// Requires: the memory is suspended, by the calling suspender. Effects: another one can take it;
  /// `has_copies`: copies that could not be waited for may use it.
  void leave(left_contents contents, bool has_copies) noexcept {
    check(phase() == suspension_phase::suspended, "memory is left that is not suspended");
    has_copies_.store(has_copies, std::memory_order_relaxed);
    left_.store(contents, std::memory_order_release);
  }
  /// Effects: of several callers one takes the memory that was left.
  [[nodiscard]] left_contents take_left() noexcept {
    return left_.exchange(left_contents::none, std::memory_order_acq_rel);
  }
  /// Requires: take_left() returned contents. Whether copies of the earlier suspender may go on.
  [[nodiscard]] bool has_left_copies() const noexcept {
    return has_copies_.load(std::memory_order_relaxed);
  }
  /// The allocator's place among all of the process, by construction: see I3.
  [[nodiscard]] std::uint64_t lock_order() const noexcept { return lock_order_; }

 protected:
  ~suspendable() = default;

 private:
  [[nodiscard]] static std::uint64_t next_lock_order() noexcept;

  const std::uint64_t lock_order_ = next_lock_order();
  std::atomic<left_contents> left_ = left_contents::none;
  std::atomic<bool> has_copies_ = false;
};

/// Maps all parts, repeated for a fault that occurs once; for code that undoes. Returns whether all
/// are mapped.
export bool try_to_attach(device_core& core, std::span<suspension_part> parts) noexcept;
/// Whether nothing is mapped.
export bool try_to_detach(device_core& core, std::span<suspension_part> parts) noexcept;

/// Whether every part is mapped.
export [[nodiscard]] bool are_attached(std::span<const suspension_part> parts) noexcept;
/// The bytes of all parts.
export [[nodiscard]] std::uint64_t sum_of(std::span<const suspension_part> parts) noexcept;

}  // namespace vmm

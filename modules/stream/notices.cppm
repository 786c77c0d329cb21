// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:notices - who is told before the memory behind an address changes.
//
// A pool changes what is behind an address only where nothing is live: free memory moves to where
// it is wanted, zombies are unmapped, free memory is given back. Who keeps something about an
// address after the block there was freed (a registration with a network card or NCCL, a graph that
// was captured) is told first, and lets go of it. A notice cannot be refused: who needs the memory
// to stay pins the block.
//
// I1  After remove() has returned, the listener is not being called and is not called again.
//
// Thread safety: all of it; one notice at a time. Cost: nobody_listens() is one relaxed load; a
// notice is one call of each listener.
module;
#include "../sync/thread_annotations.h"

export module vmm.stream:notices;

import vmm.backend;
import vmm.std;
import vmm.support;
import vmm.sync;
import :locks;

namespace vmm {

/// What happens to the memory behind an address.
export enum class remap_kind : std::uint8_t {
  moved,     // the memory goes to another address; this one stays mapped until `unmapped`
  unmapped,  // an address whose memory has moved is unmapped: it reaches nothing then
  released,  // an address is unmapped and its memory is given back
  mapped,    // an address has got memory: after_change() alone is told
};

/// What is about to happen to an address range. Numbers grow by one with each change; a change of
/// several ranges (a request that gathers memory from many places) has one number.
export struct remap_notice {
  std::uint64_t epoch = 0;
  remap_kind kind = remap_kind::moved;
  address_range range{};
};

/// What is called before the memory behind an address changes. The object stays where it is until
/// its subscription has ended, or the pool is gone.
export class remap_listener {
 public:
  /// Called before the change, on the thread that makes it, with no lock that allocate and free on
  /// other threads need while they reuse memory, but where the pool has a watcher, whose turns it
  /// takes part in. It may free, pin and unpin, and ask for statistics; it must not allocate, trim,
  /// synchronize, forget, release a capture, validate, subscribe or unsubscribe on the same pool:
  /// that ends the process. Where the driver then refuses the change, nothing happens to the range;
  /// an unmap that is tried again is not told again.
  virtual void before_change(const remap_notice& notice) noexcept = 0;
  /// Called when an address has got memory (`mapped`), with the number of the change that this
  /// ends, on the thread that made it and under the same rules: for whoever registers memory.
  virtual void after_change(const remap_notice& notice) noexcept { (void)notice; }

 protected:
  ~remap_listener() = default;
};

/// Names a subscription.
export enum class remap_subscription : std::uint64_t { none = 0 };

/// A number that no other running thread has; not 0.
[[nodiscard]] std::uint64_t this_thread() noexcept;

class remap_board {
 public:
  remap_board() = default;
  remap_board(const remap_board&) = delete;
  remap_board& operator=(const remap_board&) = delete;
  ~remap_board() {
    if (!made_in_.is_here()) leave_parts_behind(listeners_);
  }
  /// Errors: out_of_host_memory.
  [[nodiscard]] result<remap_subscription> add(remap_listener& told) noexcept;
  /// Waits until it is not being called. Errors: invalid_argument (not a live subscription).
  [[nodiscard]] status remove(remap_subscription gone) noexcept;
  [[nodiscard]] bool nobody_listens() const noexcept {
    return count_.load(std::memory_order_relaxed) == 0;
  }
  void tell(const remap_notice& notice) noexcept;
  /// Ends the process when the calling thread is inside a callback of this board or a watcher.
  void check_not_telling() const noexcept;
  /// Ends the process when the calling thread is inside the watcher of the pool with this board.
  void check_not_watching() const noexcept;
  /// Whether the calling thread is inside a callback of this board: it has the lock of growth.
  [[nodiscard]] bool is_telling_here() const noexcept;

 private:
  struct listener {
    remap_listener* told = nullptr;
    std::uint64_t number = 0;
  };
  const process_mark made_in_;
  notices_lock lock_;  // held over the callbacks
  std::vector<listener> listeners_ VMM_GUARDED_BY(rank::notices);
  std::uint64_t last_number_ VMM_GUARDED_BY(rank::notices) = 0;
  sync::atomic<std::size_t> count_ = 0;
  sync::atomic<std::uint64_t> telling_ = 0;  // the thread
};

// While it lives the calling thread is inside the watcher of the pool with this board.
class watcher_turn {
 public:
  explicit watcher_turn(const remap_board& of) noexcept;
  ~watcher_turn();
  watcher_turn(const watcher_turn&) = delete;
  watcher_turn& operator=(const watcher_turn&) = delete;

 private:
  const remap_board* before_;
};

}  // namespace vmm

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:notices - notifications before the memory behind an address changes.
//
// A pool changes the memory behind an address only without live blocks: free memory moves, stale
// mappings are unmapped, free memory is released. Code that keeps state about an address after its
// block was freed (a registration with a network card or NCCL, a captured graph) is notified first,
// and drops it. A notification cannot be refused: to keep the memory in place, pin the block.
//
// Elsewhere: the caller of listeners (:notifier).
export module vmm.stream:notices;

import vmm.backend;
import vmm.std;

namespace vmm {

/// The kinds of changes of the memory behind an address.
export enum class remap_kind : std::uint8_t {
  moved,     // the memory goes to another address; this one stays mapped until `unmapped`
  unmapped,  // an address whose memory has moved is unmapped
  released,  // an address is unmapped and its memory released
  mapped,    // an address has memory again: only after_change() is called
};

/// A change that is about to be made to an address range. Numbers grow by one with each change; a
/// change of several ranges (a request served from many places) has one number.
export struct remap_notice {
  std::uint64_t epoch = 0;
  remap_kind kind = remap_kind::moved;
  address_range range{};
};

/// Notified before the memory behind an address changes. The object must not move before its
/// subscription or the pool has ended.
export class remap_listener {
 public:
  /// Called before the change, on the thread that makes it, with no lock that allocate and free on
  /// other threads need while they reuse memory, except the observer's lock, if the pool has one.
  /// It may free, pin and unpin, and query statistics; it must not allocate, trim, synchronize,
  /// forget, release a capture, validate, subscribe or unsubscribe on the same pool: that ends the
  /// process. Of other pools and managers it may free, too; free returns in_use while another
  /// thread suspends or resumes that memory, or waits, in a callback there, for this pool. Other
  /// calls of another pool wait for its locks: none of its callbacks may then call this pool. If
  /// the driver then refuses the change, nothing happens to the range; a repeated unmap is not
  /// notified again.
  virtual void before_change(const remap_notice& notice) noexcept = 0;
  /// Called when an address has memory again (`mapped`), with the number of the change that this
  /// ends, on the thread that made it and with the same restrictions: for code that registers
  /// memory.
  virtual void after_change(const remap_notice& notice) noexcept { (void)notice; }

 protected:
  ~remap_listener() = default;
};

/// The number of a subscription.
export enum class remap_subscription : std::uint64_t { none = 0 };

}  // namespace vmm

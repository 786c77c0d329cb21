// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.optimizer:relief - allocators of one device whose idle memory serves one another. Not
// exported to users. docs/decisions/0029 has the reasons.
//
// One registry per process. An allocator enters it at set-up and leaves it first in its destructor.
// An allocator that is out of memory calls relieve(), which trims the others of its source of
// memory and placement, in the order in which they entered, until enough is released. A lender, as
// the driver of an owner's tenant, gets memory of other processes: with_relief() borrows last.
// Members of the ranks behind `idle` give memory that is in use, only for other processes.
//
// I1  relieve() does nothing on a thread that holds a lock of an allocator: such a thread has a
//     relief_pause. So no thread waits for one allocator's locks while it holds another's.
// I2  A member is called only by threads that share its `use_`, which they take while it is linked;
//     leave() unlinks it and then takes `use_` alone. After leave() it is not called again.
//
// A lender waits for other processes on a thread without a lock of an allocator, after the idle
// memory of this process was released, so that their requests are served meanwhile.
//
// The registry's lock is held over no call of an allocator or of a driver. A forked child has a
// registry of its own, without its parent's members.
//
// Thread safety: all of it; enter() and leave() by the owner. Cost: enter() and leave() a lock and
// O(members of the process); relieve() a lock for each member and what the trims cost. No heap
// allocation but the registry itself.
module;
#include "../base/thread_annotations.h"

export module vmm.optimizer:relief;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {

/// While one exists, relieve() does nothing on the calling thread, which holds a lock of an
/// allocator, runs a callback of one, or waits for other processes later, by a relief_loan.
export class relief_pause {
 public:
  relief_pause() noexcept;
  ~relief_pause();
  relief_pause(const relief_pause&) = delete;
  relief_pause& operator=(const relief_pause&) = delete;
  [[nodiscard]] static bool is_here() noexcept;
};

/// Whether memory of other allocators may help: the device is short, not a budget.
export [[nodiscard]] constexpr bool is_device_shortage(errc code) noexcept {
  return code == errc::out_of_memory || code == errc::out_of_mappings;
}

/// Allocators with equal keys get their memory from the same place.
export struct relief_key {
  const void* source = nullptr;
  location where{};

  /// The key of an allocator whose memory is at `where`.
  [[nodiscard]] static relief_key of(const driver_ref& driver, location where) noexcept {
    const void* const shared = driver->feature_set().memory_source;
    return {shared != nullptr ? shared : driver.identity(), where};
  }
  friend bool operator==(const relief_key&, const relief_key&) = default;
};

/// What a member gives.
export enum class relief_rank : std::uint8_t {
  idle,     // memory that no block uses
  tail,     // of a growable range, behind its pins
  discard,  // offered memory whose contents are not kept
  keep,     // offered memory whose contents are copied
};

/// An allocator's membership in the registry.
export class relief_member {
 public:
  /// Releases `wanted_bytes` of idle memory to the driver, or all of it; returns the bytes
  /// released. Called on threads of other allocators, without their locks. Waits for no work, in
  /// the ranks behind `idle` for that of the device.
  using give_back = std::uint64_t (*)(void* of, std::uint64_t wanted_bytes) noexcept;
  /// Of a lender: gets memory for the next create() calls of this thread, and may wait for it,
  /// briefly where relief_pause::is_here(). Returns the bytes. 0 bytes: what is left goes back.
  /// `until_ns` is 0 in a request's first call, which sets it: the end of its waits.
  using lend = std::uint64_t (*)(void* of, std::uint64_t wanted_bytes,
                                 std::int64_t& until_ns) noexcept;
  struct source {
    void* of = nullptr;
    give_back call = nullptr;
  };

  relief_member() = default;
  relief_member(const relief_member&) = delete;
  relief_member& operator=(const relief_member&) = delete;
  ~relief_member() { leave(); }

  /// Requires: `from` can be called until leave() returns. Effects: adds the allocator to the
  /// registry; without host memory for the registry, nothing.
  void enter(const relief_key& key, const source& from,
             relief_rank rank = relief_rank::idle) noexcept;
  /// The same for a lender, which is not trimmed.
  void enter_lender(const relief_key& key, void* of, lend call) noexcept;
  /// Effects: removes it. Waits for a call in progress. A second call does nothing.
  void leave() noexcept;
  [[nodiscard]] const relief_key& key() const noexcept { return key_; }
  /// Whether the registry has another allocator with this key. Cost: a lock, O(members).
  [[nodiscard]] bool has_others() const noexcept;
  /// Effects: trims other allocators, one after the other, until `wanted_bytes` are released to the
  /// driver or all were trimmed. Returns the bytes released.
  std::uint64_t relieve(std::uint64_t wanted_bytes) noexcept;

 private:
  friend struct relief_registry;
  friend class relief_loan;

  void link(const relief_key& key) noexcept;

  relief_key key_{};
  source from_{};
  relief_rank rank_ = relief_rank::idle;
  lend lend_ = nullptr;       // of a lender
  std::uint64_t number_ = 0;  // 0: not in the registry
  relief_member* next_ = nullptr;
  process_mark made_in_;
  sync::shared_mutex use_;
};

/// The same for a request outside of the registry, as another library's or an owner's. Without a
/// source in the key: of every source whose memory lies at `where`. Of members of the rank.
export std::uint64_t relieve(const relief_key& key, std::uint64_t wanted_bytes,
                             relief_rank rank = relief_rank::idle) noexcept;

/// For its life, memory that the lender of an allocator's source has for this thread. First
/// releases the idle memory of the source's allocators, except under a relief_pause. All loans of a
/// request have one `until_ns`, which is 0 before the first: together they wait as long as one.
export class relief_loan {
 public:
  relief_loan(const relief_member& of, std::uint64_t wanted_bytes, std::int64_t& until_ns) noexcept;
  ~relief_loan();
  relief_loan(const relief_loan&) = delete;
  relief_loan& operator=(const relief_loan&) = delete;
  [[nodiscard]] bool has_memory() const noexcept { return bytes_ != 0; }

 private:
  relief_key key_;
  std::uint64_t bytes_ = 0;
};

/// One attempt of a request.
export struct relief_pass {
  bool stops_early = false;  ///< with others in the registry, fail before waiting for work
  bool has_stopped = false;  ///< it failed so: the waits are left to try
};

/// Runs `attempt(relief_pass&)`, which returns a result. While the device is short of memory, trims
/// others by `size_bytes`, then completely, and runs it again: another thread's request may take
/// what was released, and free it in its own allocator. Then runs it without an early stop, and at
/// last with memory of a lender. The first attempt may set `size_bytes`. Requires: no lock of an
/// allocator is held, or relief_pause::is_here().
export template <class Attempt>
[[nodiscard]] auto with_relief(relief_member& from, const std::uint64_t& size_bytes,
                               Attempt&& attempt) {
  constexpr std::uint64_t everything = ~std::uint64_t{0};
  constexpr int rounds_max = 16;
  relief_pass pass{.stops_early = !relief_pause::is_here()};
  auto outcome = attempt(pass);
  for (int round = 0; round < rounds_max; ++round) {
    if (outcome || !is_device_shortage(outcome.error().code)) break;
    if (from.relieve(round == 0 ? size_bytes : everything) == 0) break;
    pass.has_stopped = false;
    outcome = attempt(pass);
  }
  check(!pass.has_stopped || pass.stops_early, "an attempt stops early without permission");
  if (!outcome && pass.has_stopped) {
    pass = {};
    outcome = attempt(pass);
  }
  constexpr int loans_max = 4;  // other threads' requests may take a part
  std::int64_t until_ns = 0;
  for (int loans = 0; loans < loans_max; ++loans) {
    if (outcome || !is_device_shortage(outcome.error().code)) break;
    const relief_loan loan(from, size_bytes, until_ns);
    if (!loan.has_memory()) break;
    pass = {};
    outcome = attempt(pass);
  }
  return outcome;
}

}  // namespace vmm

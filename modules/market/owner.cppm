// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.market:owner - an owner's decisions: (state, event, clock) -> actions.
//
// L2  Each request has one end, by its deadline: a grant of at least the least bytes, or a refusal
//     with the holders.
// L5  A tenant has one ask at a time, for at most what it has beyond its share. Idle memory is
//     recalled at any time; memory in use not within its minimum stay.
//
// No clock, socket, descriptor or driver. Same events, same actions. Host memory that runs out ends
// the owner: tenants keep what they have.
//
// Thread safety: one thread at a time. Cost: O(requests * tenants^2 + handles) for an event.
export module vmm.market:owner;

import vmm.backend;
import vmm.base;
import vmm.std;
import :admission;
import :lots;
import :records;
import :requests;
import :state;
import :wire;

namespace vmm {

/// The owner's machine.
export class market_owner {
 public:
  /// Requires: a capacity, and an epoch that no other owner has. With takes_stock new guarantees
  /// wait for the grace, from `now_ns` on.
  market_owner(const owner_options& options, std::int64_t now_ns);
  market_owner(const market_owner&) = delete;
  market_owner& operator=(const market_owner&) = delete;

  /// A message of a connection. The first one of a tenant is hello. `process` is a number that no
  /// other process has, as the system has it; 0: not known.
  void receive(std::uint64_t connection, const market_message& message, std::int64_t now_ns,
               std::uint64_t process = 0);
  /// A message that does not decode, or comes with the wrong descriptors.
  void reject(std::uint64_t connection, std::int64_t now_ns);
  /// The connection has ended.
  void lost(std::uint64_t connection, std::int64_t now_ns);
  /// The process of a tenant has ended; the last process that has its witness.
  void ended(std::uint64_t tenant, std::int64_t now_ns);
  void witness_closed(std::uint64_t tenant, std::int64_t now_ns);
  /// A create has returned.
  void created(std::uint64_t handle, bool has_memory, std::int64_t now_ns);
  /// A release has returned.
  void released(std::uint64_t handle, std::int64_t now_ns);
  /// The device was reset: every handle is void, every tenant is refused, the owner ends.
  void lose_device(std::int64_t now_ns);
  void tick(std::int64_t now_ns);
  /// An owner without tenants that stays: its free memory goes back to the driver.
  void release_free(std::int64_t now_ns);

  /// The next time at which tick() changes something; the largest value: never.
  [[nodiscard]] std::int64_t next_deadline_ns() const noexcept;
  [[nodiscard]] std::vector<owner_action> take_actions() noexcept {
    return std::exchange(state_.actions, {});
  }
  /// The tenant of a connection, or 0.
  [[nodiscard]] std::uint64_t tenant_of(std::uint64_t connection) noexcept;
  [[nodiscard]] const owner_state& state() const noexcept { return state_; }
  /// Checks B1, B2, B4 and L1 to L6. Errors: internal. O(handles + requests^3).
  [[nodiscard]] status validate() const noexcept;

 private:
  void at(std::int64_t now_ns) noexcept;
  void end_event();
  void break_off(std::uint64_t connection);
  [[nodiscard]] bool dispatch(tenant_record& from, const market_message& message);
  [[nodiscard]] bool control(std::uint64_t connection, const market_message& message);
  void report(std::uint64_t connection);

  owner_state state_;
  market_lots lots_{state_};
  market_requests requests_{state_, lots_};
  market_admission admission_{state_, lots_};
};

}  // namespace vmm

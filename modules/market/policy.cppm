// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.market:policy - which request goes first, what a tenant is entitled to, which tenant gives.
// Functions of an owner's state, without effects except those of pass_time(). Internal.
//
// Tenants of one process have one share: limits, guarantees, entitlements and credits are of what
// they have together, in these functions' "tenant".
//
// Entitled is a guarantee, and of what remains, class by class, equal shares up to each limit and
// demand. A tenant earns credit for the part of the device that it does not use, and pays for what
// it uses beyond it: in a class the request of the larger credit goes first.
//
// Thread safety: values. Cost: O(tenants^2 + requests + handles).
export module vmm.market:policy;

import vmm.backend;
import vmm.std;
import :records;
import :state;

namespace vmm {

/// Until `now_ns` credits and waiting times change as the charges say.
void pass_time(owner_state& state, std::int64_t now_ns) noexcept;
/// Void bytes whose imports have not ended in time.
[[nodiscard]] std::uint64_t late_bytes(const owner_state& state) noexcept;
/// The bytes that may be granted: negative where more is granted than the driver has.
[[nodiscard]] std::int64_t free_room(const owner_state& state) noexcept;
/// A tenant's charge, and what was decided for it and is being collected.
export [[nodiscard]] std::uint64_t claimed_bytes(const owner_state& state,
                                                 const tenant_record& tenant) noexcept;
/// The same of all tenants of its process.
export [[nodiscard]] std::uint64_t process_bytes(const owner_state& state,
                                                 const tenant_record& tenant) noexcept;
/// What they are charged.
[[nodiscard]] std::uint64_t process_charge(const owner_state& state,
                                           const tenant_record& tenant) noexcept;
/// Whether one of them has an ask that has not ended.
[[nodiscard]] bool has_ask(const owner_state& state, const tenant_record& tenant) noexcept;
/// Whether a tenant with `more_bytes` has at most its limit.
[[nodiscard]] bool is_within_limit(const owner_state& state, const tenant_record& tenant,
                                   std::uint64_t more_bytes) noexcept;
/// Whether a connected tenant has more than its limit, which was lowered.
[[nodiscard]] bool is_above_limit(const owner_state& state, const tenant_record& tenant) noexcept;
/// The unused parts of other tenants' firm guarantees that are not lent.
[[nodiscard]] std::uint64_t reserve_bytes(const owner_state& state,
                                          const tenant_record& borrower) noexcept;
/// The owner's memory, less what firm guarantees keep from a tenant at any time.
[[nodiscard]] market_reach reach_of(const owner_state& state, const tenant_record& tenant) noexcept;
/// Whether a tenant with `more_bytes` has at most its guarantee.
[[nodiscard]] bool is_guaranteed(const owner_state& state, const tenant_record& tenant,
                                 std::uint64_t more_bytes) noexcept;
/// A tenant's class: its priority, and one for each second of its oldest request, at most 7.
[[nodiscard]] std::uint32_t class_of(const owner_state& state,
                                     const tenant_record& tenant) noexcept;
/// When a request that fits passes one that has waited since `before_ns` and does not.
[[nodiscard]] std::int64_t passing_ns(const owner_state& state, const request_record& request,
                                      std::int64_t before_ns) noexcept;
/// Whether a request waits that fits, and passes all others in its time.
[[nodiscard]] bool may_pass(const owner_state& state, const request_record& request) noexcept;
/// The requests that wait, in the order in which they are served, by tenant and number.
struct waiting_request {
  std::uint64_t tenant = 0;
  std::uint64_t request = 0;
};
[[nodiscard]] std::vector<waiting_request> waiting_order(const owner_state& state);
/// By the tenants' places.
using placed_bytes = std::array<std::uint64_t, market_tenants_max>;
[[nodiscard]] placed_bytes entitlements(const owner_state& state) noexcept;
/// What was granted so recently that it is not recalled.
[[nodiscard]] placed_bytes staying_bytes(const owner_state& state) noexcept;
/// A tenant that may give, and how much it has beyond its share.
struct giver {
  std::uint64_t tenant = 0;
  std::uint64_t overage_bytes = 0;
};
/// The memory that a recall may take: idle memory at any time; memory in use after its stay, for a
/// guarantee in any peace.
enum class recall_kind : std::uint8_t { idle, borrowed, guaranteed };
/// For a request of `borrower`: the lowest class first, then the largest overage.
[[nodiscard]] std::vector<giver> givers(const owner_state& state, const tenant_record& borrower,
                                        recall_kind kind);
/// Whether every tenant with memory waits, each request for a second, and no event but a deadline
/// is due.
[[nodiscard]] bool is_deadlocked(const owner_state& state) noexcept;

}  // namespace vmm

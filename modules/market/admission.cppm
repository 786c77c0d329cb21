// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.market:admission - tenants that come, come back, and go. Internal.
//
// A guarantee is admitted if all fit the device beside contexts and one reserve, and those that
// wait to join and came before. A process that has a tenant of this group and name gets another one
// with the same share, which both have together. A tenant of an earlier owner is admitted without
// this test, and lists its handles; for a while after such an owner's end new guarantees wait. A
// tenant whose connection ended comes back with its number and key; handles that it does not list
// were never received, or given.
//
// L6  A tenant's memory is lent again once its process and witness have ended and the delay passed.
//
// Thread safety: one thread at a time. Cost: O(handles) for each event.
export module vmm.market:admission;

import vmm.backend;
import vmm.std;
import :lots;
import :records;
import :state;
import :wire;

namespace vmm {

/// The rules by which tenants come and go.
class market_admission {
 public:
  market_admission(owner_state& state, market_lots& lots) noexcept : state_(state), lots_(lots) {}

  /// `process` is that of the connection; 0: not known.
  void greet(std::uint64_t connection, const market_message& hello, std::uint64_t process);
  /// False: the tenant broke the protocol.
  [[nodiscard]] bool take_stock(tenant_record& tenant, const market_message& list);
  /// A tenant has no handle any more.
  void leave(tenant_record& tenant);
  /// The connection has ended.
  void silence(tenant_record& tenant);
  /// A process or a witness has ended.
  void note_end(tenant_record& tenant);
  /// Lends what is quiet.
  void tick();
  /// Admits those that waited for the grace or for room, and refuses those whose time has passed.
  void admit();
  /// Sends each tenant what the guarantees of others keep from it, where that has changed.
  void send_shares();
  /// Of all tenants of its process. Else it is not a share, or the guarantees do not fit.
  [[nodiscard]] market_reason change_share(tenant_record& tenant, const market_share& share);
  /// A refusal with the figures that its reason has. `self`: null for a tenant without a record.
  [[nodiscard]] market_message refusal(market_reason reason, const tenant_record* self) const;

 private:
  void resume(std::uint64_t connection, const market_message& hello, std::uint64_t process);
  [[nodiscard]] market_reason examine(const market_message& hello);
  /// `self`: null for a tenant that has no record.
  /// `is_late`: once the memory of tenants that have ended is lent again.
  [[nodiscard]] bool fits(const tenant_record* self, const market_share& share,
                          bool is_late = false) const noexcept;
  [[nodiscard]] std::uint64_t group_of(const market_message& hello);
  void welcome(tenant_record& tenant);
  void send_share(tenant_record& tenant);
  void refuse(std::uint64_t connection, market_reason reason);
  [[nodiscard]] bool take_one(tenant_record& tenant, const market_handle& listed,
                              std::uint32_t index);
  void finish_stock(tenant_record& tenant);
  void forget_stock(const tenant_record& tenant) noexcept;
  [[nodiscard]] bool has_nothing(const tenant_record& tenant) const noexcept;
  void turn_away(tenant_record& tenant, market_reason reason);
  void bury(tenant_record& tenant);
  void remove(tenant_record& tenant);

  owner_state& state_;
  market_lots& lots_;
};

}  // namespace vmm

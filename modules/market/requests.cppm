// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.market:requests - the messages of a tenant that is there: requests, gives, refusals, ended
// imports. Internal. A function that returns false received a message that breaks the protocol.
//
// Thread safety: one thread at a time. Cost: O(handles) for a repeated request, else O(handles of
// the message * log handles).
export module vmm.market:requests;

import vmm.backend;
import vmm.std;
import :lots;
import :records;
import :state;
import :wire;

namespace vmm {

/// The rules of a tenant's messages.
class market_requests {
 public:
  market_requests(owner_state& state, market_lots& lots) noexcept : state_(state), lots_(lots) {}

  [[nodiscard]] bool want(tenant_record& from, const market_message& message);
  [[nodiscard]] bool give(tenant_record& from, const market_message& message);
  [[nodiscard]] bool dropped(tenant_record& from, const market_message& message);
  void cannot(tenant_record& from, const market_message& message);
  void cancel(const tenant_record& from, std::uint64_t request);

 private:
  void repeat(const tenant_record& to, std::uint64_t request);
  void count_refault(tenant_record& of, std::uint64_t bytes) noexcept;

  owner_state& state_;
  market_lots& lots_;
};

}  // namespace vmm

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// What an owner's user requests of it, and the audit.
module vmm.market;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {

void market_owner::report(std::uint64_t connection) {
  const std::vector<market_row> rows = state_.rows();
  market_message message;
  message.kind = market_kind::report;
  message.bytes = state_.options.capacity_bytes;
  message.wish_bytes = state_.records.sums().free_bytes;
  if (state_.is_draining) message.reason = market_reason::draining;
  for (const market_row& each : rows) {
    if (message.row_count == market_rows_max) {
      message.more = true;
      state_.send_to(connection, message);
      message.more = false;
      message.row_count = 0;
    }
    message.rows[message.row_count++] = each;
  }
  state_.send_to(connection, message);
}

bool market_owner::control(std::uint64_t connection, const market_message& message) {
  if (message.kind == market_kind::drain) {
    state_.is_draining = true;
    const auto tenants = state_.records.tenants();
    if (std::none_of(tenants.begin(), tenants.end(),
                     [](const auto& each) { return each.is_there(); }))
      state_.actions.push_back({.kind = owner_action::what::end});
  }
  if (message.kind == market_kind::set_share) {
    tenant_record* const of = state_.records.tenant(message.tenant);
    const market_reason reason =
        of == nullptr ? market_reason::unknown : admission_.change_share(*of, message.share);
    if (reason != market_reason::none) {
      state_.send_to(connection, admission_.refusal(reason, of));
      return true;
    }
  }
  report(connection);
  return true;
}

status market_owner::validate() const noexcept {
  if (status records = state_.records.validate(); !records) return records;
  const auto broken = [](const char* what) { return status{refuse(errc::internal, what)}; };
  const auto tenants = state_.records.tenants();
  for (const request_record& each : state_.records.requests) {
    if (each.missing_bytes > each.target_bytes)
      return broken("L1: more is missing than was decided");
    const auto of = std::find_if(tenants.begin(), tenants.end(),
                                 [&](const auto& one) { return one.number == each.tenant; });
    if (of == tenants.end() || !of->is_open())
      return broken("L2: a request waits without a tenant");
    if (each.request > of->last_request) return broken("L2: a request waits that was not made");
    const bool is_its_time = state_.now_ns >= each.since_ns + state_.options.pass_ns_max;
    if (is_its_time && may_pass(state_, each)) return broken("L4: a request that fits waits");
  }
  const std::uint64_t creating_bytes = state_.records.sums().creating_bytes;
  if ((state_.creating == 0) != (creating_bytes == 0) || creating_bytes > market_handle_bytes_max)
    return broken("L3: two creates at a time");
  for (const tenant_record& each : tenants) {
    if (std::any_of(tenants.begin(), tenants.end(), [&](const tenant_record& other) {
          return !each.has_ended && state_.records.are_one(other, each) &&
                 other.share != each.share;
        }))
      return broken("L6: a process has two shares");
    if (each.ask.request != 0 && !each.is_open()) return broken("L5: an ask is without a tenant");
    if (!each.is_there() && state_.records.charge_of(each) != 0)
      return broken("L6: a tenant that has left is charged");
  }
  return {};
}

}  // namespace vmm

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module vmm.market;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {

std::vector<market_row> owner_state::rows() const {
  std::vector<market_row> rows;
  const std::uint64_t late = records.late_importers();
  for (const tenant_record& each : records.tenants()) {
    if (!each.is_there()) continue;
    market_row row{.tenant = each.number,
                   .name = each.name,
                   .held_bytes = records.charge_of(each),
                   .waiting_bytes = each.is_waiting_to_join ? each.share.guarantee_bytes : 0,
                   .share = each.share,
                   .overdue = each.is_overdue || (late & records.bit_of(each)) != 0,
                   .is_silent = each.connection == 0};
    for (const owned_handle& handle : records.handles()) {
      if (handle.state == handle_state::quarantined && handle.holder == each.number)
        row.held_bytes += handle.size_bytes;
    }
    for (const request_record& waiting : records.requests) {
      if (waiting.tenant != each.number) continue;
      row.held_bytes += waiting.missing_bytes;  // L1: decided
      if (!waiting.is_building()) row.waiting_bytes += waiting.least_bytes;
    }
    rows.push_back(row);
  }
  // The largest holders first: a refusal has room for some.
  std::stable_sort(rows.begin(), rows.end(),
                   [](const auto& a, const auto& b) { return a.held_bytes > b.held_bytes; });
  return rows;
}

void owner_state::send_to(std::uint64_t connection, market_message message) {
  if (connection == 0) return;
  message.epoch = options.epoch;
  actions.push_back(
      {.kind = owner_action::what::send, .connection = connection, .message = message});
}

void owner_state::send(const tenant_record& to, market_message message) {
  send_to(to.connection, message);
}

market_message owner_state::refusal(market_kind kind, market_reason reason) const {
  check(reason != market_reason::none, "a refusal has no reason");
  market_message message;
  message.kind = kind;
  message.reason = reason;
  message.bytes = options.capacity_bytes;
  for (const market_row& each : rows()) {
    if (message.row_count == market_rows_max) break;
    message.rows[message.row_count++] = each;
  }
  return message;
}

void owner_state::close(std::uint64_t connection) {
  if (connection == 0) return;
  actions.push_back({.kind = owner_action::what::close, .connection = connection});
}

void owner_state::forget_request(const request_record& request) {
  counts.waited_ns += now_ns - request.since_ns;
  const std::ptrdiff_t place = &request - records.requests.data();
  check(static_cast<std::size_t>(place) < records.requests.size(), "L2: a request ends twice");
  records.requests.erase(records.requests.begin() + place);
}

void owner_state::deny(const request_record& request, market_reason reason) {
  check(!request.is_building(), "L2: a request is refused with its lot");
  ++counts.denied_count;
  market_message message = refusal(market_kind::denied, reason);
  message.request = request.request;
  message.wish_bytes = request.least_bytes;
  message.within_ns = static_cast<std::uint64_t>(now_ns - request.since_ns);
  if (const tenant_record* const to = records.tenant(request.tenant); to != nullptr) {
    message.tenant = to->number;
    message.share = to->share;
    message.job = process_bytes(*this, *to);
    message.unit_bytes = reach_of(*this, *to).kept_bytes;
    send(*to, message);
  }
  forget_request(request);
}

}  // namespace vmm

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module vmm.market;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {
namespace {

constexpr std::size_t requests_max = 64;  // of a tenant
constexpr std::uint64_t within_ns_max = 3'600'000'000'000;

}  // namespace

// A request that ended has the same end again, and one that waits waits.
void market_requests::repeat(const tenant_record& to, std::uint64_t request) {
  const auto& requests = state_.records.requests;
  const auto handles = state_.records.handles();
  if (std::any_of(requests.begin(), requests.end(), [&](const auto& each) {
        return each.tenant == to.number && each.request == request;
      }))
    return;
  const bool is_granted = std::any_of(handles.begin(), handles.end(), [&](const auto& each) {
    return each.state == handle_state::granted && each.holder == to.number &&
           each.request == request;
  });
  if (is_granted) return lots_.send_grant(to, request);
  market_message message = state_.refusal(market_kind::denied, market_reason::deadline);
  message.request = request;
  state_.send(to, message);
}

bool market_requests::want(tenant_record& from, const market_message& message) {
  if (message.request == 0 || message.bytes == 0 || message.bytes % market_granule_bytes != 0 ||
      message.wish_bytes % market_granule_bytes != 0 || message.wish_bytes < message.bytes ||
      message.unit_bytes % market_granule_bytes != 0)
    return false;
  if (message.request <= from.last_request) {
    repeat(from, message.request);
    return true;
  }
  from.last_request = message.request;
  auto& requests = state_.records.requests;
  const auto count = std::count_if(requests.begin(), requests.end(),
                                   [&](const auto& each) { return each.tenant == from.number; });
  requests.push_back({.tenant = from.number,
                      .request = message.request,
                      .least_bytes = message.bytes,
                      .wish_bytes = message.wish_bytes,
                      .unit_bytes = message.unit_bytes,
                      .since_ns = state_.now_ns,
                      .deadline_ns = state_.now_ns + static_cast<std::int64_t>(std::min(
                                                         message.within_ns, within_ns_max))});
  if (count >= static_cast<std::ptrdiff_t>(requests_max)) {
    state_.deny(requests.back(), market_reason::requests);
  } else if (const market_reach reach = reach_of(state_, from);
             message.bytes > reach.most_bytes()) {
    state_.deny(requests.back(),
                reach.is_at_limit() ? market_reason::limit : market_reason::too_large);
  } else if (claimed_bytes(state_, from) > reach.most_bytes() - message.bytes) {
    // No other tenant can serve it.
    state_.deny(requests.back(), market_reason::limit);
  } else if (message.bytes >= from.largest_bytes ||
             state_.now_ns - from.largest_ns > 60'000'000'000) {
    from.largest_bytes = message.bytes;
    from.largest_ns = state_.now_ns;
  }
  count_refault(from, message.bytes);
  return true;
}

// Memory that was recalled and is requested again soon: a tenth of it buys peace.
void market_requests::count_refault(tenant_record& of, std::uint64_t bytes) noexcept {
  if (of.moved_bytes == 0) return;
  if (state_.now_ns - of.moved_ns > state_.options.peace_ns) {
    of.moved_bytes = of.refault_bytes = 0;
    return;
  }
  const std::uint64_t again_bytes = std::min(bytes, of.moved_bytes - of.refault_bytes);
  of.refault_bytes += again_bytes;
  state_.counts.refault_bytes += again_bytes;
  if (of.refault_bytes <= of.moved_bytes / 10) return;
  of.peace_ns = state_.now_ns + state_.options.peace_ns;
  of.moved_bytes = of.refault_bytes = 0;
}

bool market_requests::give(tenant_record& from, const market_message& message) {
  std::uint64_t given_bytes = 0;
  for (const market_handle& each : message.handle_list()) {
    owned_handle* const found = state_.records.find(each.id);
    if (found == nullptr || found->state != handle_state::granted || found->holder != from.number ||
        found->generation != each.generation)
      continue;  // a repetition
    given_bytes += found->size_bytes;
    found->must_clear = each.must_clear;
    lots_.free(*found);
  }
  if (from.ask.request != 0) {
    state_.counts.given_bytes += std::min(given_bytes, from.ask.bytes);
    if (!from.ask.only_idle) {
      from.moved_bytes += std::min(given_bytes, from.ask.bytes);
      from.moved_ns = state_.now_ns;
    }
    from.ask.bytes -= std::min(given_bytes, from.ask.bytes);
    if (from.ask.bytes == 0) from.ask = {};
  }
  if (given_bytes != 0) from.is_overdue = false;
  market_message recorded;
  recorded.kind = market_kind::given;
  recorded.request = message.request;
  state_.send(from, recorded);
  return true;
}

void market_requests::cannot(tenant_record& from, const market_message& message) {
  from.is_overdue = false;
  if (from.ask.request == 0 || from.ask.request != message.request) return;
  from.busy_ns = state_.now_ns + state_.options.busy_ns;
  if (!from.ask.only_idle) from.cannot_ns = state_.now_ns + state_.options.cannot_ns;
  from.ask = {};
}

bool market_requests::dropped(tenant_record& from, const market_message& message) {
  for (const market_handle& each : message.handle_list()) {
    owned_handle* const found = state_.records.find(each.id);
    if (found == nullptr || (found->importers & state_.records.bit_of(from)) == 0) continue;
    if (found->state == handle_state::granted && found->holder == from.number) return false;
    lots_.drop_import(*found, from);
  }
  return true;
}

void market_requests::cancel(const tenant_record& from, std::uint64_t request) {
  auto& requests = state_.records.requests;
  const auto found = std::find_if(requests.begin(), requests.end(), [&](const auto& each) {
    return each.tenant == from.number && each.request == request;
  });
  if (found == requests.end()) return;  // its lot is given back
  if (found->is_building()) lots_.unbuild(*found);
  state_.forget_request(*found);
}

}  // namespace vmm

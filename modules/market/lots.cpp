// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module vmm.market;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {
namespace {

constexpr std::uint64_t gib = std::uint64_t{1} << 30;

std::int64_t per_gib(std::int64_t ns, std::uint64_t bytes) noexcept {
  return static_cast<std::int64_t>(static_cast<double>(ns) * static_cast<double>(bytes) /
                                   static_cast<double>(gib));
}

// The driver clears released memory in the background: an immediate create sleeps in its lock.
std::int64_t clearing_ns(std::uint64_t size_bytes) noexcept {
  if (size_bytes <= (std::uint64_t{64} << 20)) return 200'000;
  return size_bytes <= (std::uint64_t{256} << 20) ? 1'000'000 : 3'000'000;
}

// The lots that were decided last are given up first. False: all of them are not enough.
bool give_up_for(market_lots& lots, owner_state& state, const request_record& guaranteed) {
  auto& all = state.records.requests;
  const auto lot_bytes = [&](const request_record& each) {
    const bool is_given_up =
        each.is_building() && !is_guaranteed(state, *state.records.tenant(each.tenant), 0);
    return is_given_up ? static_cast<std::int64_t>(each.target_bytes) : 0;
  };
  auto missing = static_cast<std::int64_t>(guaranteed.least_bytes) - free_room(state);
  std::int64_t sum_bytes = 0;
  for (const request_record& each : all) sum_bytes += lot_bytes(each);
  if (sum_bytes < missing) return false;
  for (std::size_t i = all.size(); i > 0 && missing > 0; --i) {
    missing -= lot_bytes(all[i - 1]);
    if (lot_bytes(all[i - 1]) != 0) lots.unbuild(all[i - 1]);
  }
  return true;
}

request_record& request_of(owner_state& state, const waiting_request& what) {
  auto& all = state.records.requests;
  const auto found = std::find_if(all.begin(), all.end(), [&](const auto& each) {
    return each.tenant == what.tenant && each.request == what.request;
  });
  check(found != all.end(), "L2: a request waits that has ended");
  return *found;
}

}  // namespace

// ---- handles -------------------------------------------------------------------------

void market_lots::free(owned_handle& handle) {
  check(handle.state != handle_state::free, "B1: a handle is freed twice");
  // A tenant that never received it, or has died, may not have cleared it: two jobs' bytes.
  if (std::exchange(handle.must_clear, false)) handle.job = 0;
  if (handle.is_doubled) return make_void(handle);
  state_.records.move_to(handle, handle_state::free);
}

void market_lots::make_void(owned_handle& handle) {
  if (handle.state == handle_state::releasing) return;
  if (handle.state != handle_state::leaving) handle.drop_ns = state_.now_ns + state_.options.ask_ns;
  state_.records.move_to(handle, handle_state::leaving);
  if (handle.importers != 0) return;
  state_.records.move_to(handle, handle_state::releasing);
  state_.actions.push_back({.kind = owner_action::what::release, .handle = handle.id});
  state_.create_after_ns =
      std::max(state_.create_after_ns, state_.now_ns + clearing_ns(handle.size_bytes));
}

void market_lots::release_free() {
  for (owned_handle& each : state_.records.handles())
    if (each.state == handle_state::free) make_void(each);
}

void market_lots::drop_import(owned_handle& handle, const tenant_record& of) {
  handle.importers &= ~state_.records.bit_of(of);
  if (handle.state == handle_state::leaving) make_void(handle);
}

void market_lots::send_drops() {
  for (const tenant_record& each : state_.records.tenants()) {
    if (!each.is_open()) continue;
    market_message message;
    message.kind = market_kind::drop;
    for (owned_handle& handle : state_.records.handles()) {
      const std::uint64_t bit = state_.records.bit_of(each);
      if (handle.state != handle_state::leaving || (handle.importers & bit) == 0 ||
          (handle.drops_sent & bit) != 0)
        continue;
      handle.drops_sent |= bit;
      message.handles[message.handle_count++] = {
          .id = handle.id,
          .generation = handle.generation,
          .granules = static_cast<std::uint32_t>(handle.size_bytes / market_granule_bytes)};
      if (message.handle_count < market_handles_max) continue;
      message.request = ++state_.last_drop;
      state_.send(each, message);
      message.handle_count = 0;
    }
    if (message.handle_count == 0) continue;
    message.request = ++state_.last_drop;
    state_.send(each, message);
  }
}

// ---- one lot -------------------------------------------------------------------------

owned_handle* market_lots::best_free(const request_record& request,
                                     const tenant_record& tenant) noexcept {
  owned_handle* best = nullptr;
  for (owned_handle& each : state_.records.handles()) {
    if (each.state != handle_state::free || each.size_bytes > request.next_bytes_max()) continue;
    if (each.group != 0 && each.group != tenant.group) continue;
    // An import that the tenant has kept saves a descriptor; bytes of its job save a clearing.
    const auto rank = [&](const owned_handle& one) {
      const bool is_known = (one.importers & state_.records.bit_of(tenant)) != 0;
      const bool is_own = one.group == 0 || (one.job != 0 && one.job == tenant.job);
      return std::tuple{one.size_bytes, is_known, is_own};
    };
    if (best == nullptr || rank(each) > rank(*best)) best = &each;
  }
  return best;
}

bool market_lots::create(std::uint64_t size_bytes) {
  if (state_.creating != 0 || state_.now_ns < state_.create_after_ns) return false;
  check(state_.creating == 0, "L3: two creates at a time");
  const owned_handle& made = state_.records.add_handle(size_bytes);
  state_.creating = made.id;
  state_.actions.push_back(
      {.kind = owner_action::what::create, .handle = made.id, .bytes = size_bytes});
  return true;
}

void market_lots::make_room(std::uint64_t over_bytes) {
  std::uint64_t slow = state_.records.late_importers();  // tenants whose imports may not end
  for (const tenant_record& each : state_.records.tenants()) {
    if (each.is_there() && (!each.is_open() || each.is_overdue))
      slow |= state_.records.bit_of(each);
  }
  std::uint64_t leaving_bytes = state_.records.sums().void_bytes - late_bytes(state_);
  while (leaving_bytes < over_bytes) {
    owned_handle* best = nullptr;  // the smallest that is enough, else the largest
    const auto rank = [&](const owned_handle& each) {
      const bool is_enough = each.size_bytes >= over_bytes - leaving_bytes;
      return std::tuple{(each.importers & slow) == 0, is_enough,
                        is_enough ? ~each.size_bytes : each.size_bytes};
    };
    for (owned_handle& each : state_.records.handles()) {
      if (each.state != handle_state::free) continue;
      if (best == nullptr || rank(each) > rank(*best)) best = &each;
    }
    if (best == nullptr) return;  // the rest is quarantined
    leaving_bytes += best->size_bytes;
    make_void(*best);
  }
}

void market_lots::begin(request_record& request, const tenant_record& tenant, std::uint64_t room) {
  request.target_bytes = request.least_bytes;
  if (state_.records.requests.size() == 1 && request.wish_bytes > request.least_bytes) {
    const std::uint64_t limit_bytes =
        tenant.share.limit_bytes == 0 ? state_.options.capacity_bytes : tenant.share.limit_bytes;
    const std::uint64_t left_bytes = limit_bytes - process_charge(state_, tenant);
    std::uint64_t more_bytes = std::min({request.wish_bytes, room, left_bytes});
    more_bytes -= more_bytes % market_granule_bytes;
    request.target_bytes = std::max(request.target_bytes, more_bytes);
  }
  request.missing_bytes = request.target_bytes;
  // Lots are collected in the order in which they were decided, those within a guarantee first: one
  // handle is created at a time.
  auto& all = state_.records.requests;
  const auto place = all.begin() + (&request - all.data());
  const bool is_first = is_guaranteed(state_, tenant, 0);
  const auto before = std::find_if(all.begin(), place, [&](const request_record& each) {
    const tenant_record* const of = state_.records.tenant(each.tenant);
    return !each.is_building() || (is_first && of != nullptr && !is_guaranteed(state_, *of, 0));
  });
  std::rotate(before, place, place + 1);
}

void market_lots::advance(request_record& request) {
  tenant_record* const tenant = state_.records.tenant(request.tenant);
  check(tenant != nullptr, "L2: a request outlives its tenant");
  while (request.missing_bytes > 0) {
    if (owned_handle* const found = best_free(request, *tenant); found != nullptr) {
      state_.records.grant(*found, *tenant, request.request);
      request.missing_bytes -= found->size_bytes;
      continue;
    }
    const std::uint64_t size_bytes = next_market_size(request.next_bytes_max());
    const std::uint64_t after_bytes = state_.records.sums().created_bytes() + size_bytes;
    if (state_.creating != 0) return;
    if (after_bytes > state_.usable_bytes) return make_room(after_bytes - state_.usable_bytes);
    if (!create(size_bytes)) return;
  }
  finish(request, *tenant);
}

void market_lots::unbuild(request_record& request) {
  for (owned_handle& each : state_.records.handles()) {
    if (each.state == handle_state::granted && each.holder == request.tenant &&
        each.request == request.request)
      free(each);
  }
  request.target_bytes = request.missing_bytes = 0;
}

void market_lots::send_grant(const tenant_record& to, std::uint64_t request) {
  market_message message;
  message.kind = market_kind::grant;
  message.request = request;
  const std::uint64_t bit = state_.records.bit_of(to);
  for (owned_handle& each : state_.records.handles()) {
    if (each.state != handle_state::granted || each.holder != to.number || each.request != request)
      continue;
    if (message.handle_count == market_handles_max) {
      message.more = true;
      state_.send(to, message);
      message.more = false;
      message.handle_count = 0;
    }
    message.handles[message.handle_count++] = {
        .id = each.id,
        .generation = each.generation,
        .granules = static_cast<std::uint32_t>(each.size_bytes / market_granule_bytes),
        .must_clear = each.must_clear,
        .has_descriptor = (each.importers & bit) == 0};
    each.importers |= bit;
  }
  if (message.handle_count != 0) state_.send(to, message);
}

void market_lots::finish(request_record& request, tenant_record& tenant) {
  const std::uint64_t number = request.request;
  const std::uint64_t bytes = request.target_bytes;
  check(bytes >= request.least_bytes, "L2: a lot is smaller than the request");
  const std::int64_t move_ns = per_gib(state_.options.move_ns_per_gib, bytes);
  const std::int64_t stay_ns = state_.now_ns + std::max(state_.options.stay_ns, 20 * move_ns);
  for (owned_handle& each : state_.records.handles()) {
    if (each.state != handle_state::granted || each.holder != tenant.number ||
        each.request != number)
      continue;
    each.must_clear = each.group != 0 && (each.job == 0 || each.job != tenant.job);
    each.group = tenant.group;
    each.job = tenant.job;
    each.stay_ns = stay_ns;
  }
  send_grant(tenant, number);
  ++state_.counts.granted_count;
  state_.counts.granted_bytes += bytes;
  state_.forget_request(request);
}

// ---- all requests --------------------------------------------------------------------

// A lot that is being created is awaited a little longer.
bool market_lots::expire() {
  bool any = false;
  for (std::size_t i = 0; i < state_.records.requests.size();) {
    request_record& each = state_.records.requests[i];
    const std::int64_t late_ns = each.is_building() ? state_.options.build_ns : 0;
    if (state_.now_ns < each.deadline_ns + late_ns) {
      ++i;
      continue;
    }
    if (each.is_building()) unbuild(each);
    state_.deny(each, market_reason::deadline);
    any = true;
  }
  return any;
}

void market_lots::retry_creates() {
  if (state_.refused_ns < 0 || state_.now_ns < state_.refused_ns + state_.options.retry_ns) return;
  if (state_.records.requests.empty()) return;
  state_.usable_bytes = state_.options.capacity_bytes;
  state_.refused_ns = -1;
}

void market_lots::note_late() {
  const std::uint64_t before = state_.records.late_importers();
  bool any = false;
  for (owned_handle& each : state_.records.handles()) {
    if (each.state != handle_state::leaving || each.is_late || state_.now_ns < each.drop_ns)
      continue;
    each.is_late = any = true;
  }
  if (!any) return;
  state_.counts.overdue_count +=
      static_cast<std::uint64_t>(std::popcount(state_.records.late_importers() & ~before));
  auto& all = state_.records.requests;  // the lots that were decided last are the last ones
  for (std::size_t i = all.size(); i > 0 && free_room(state_) < 0; --i) {
    if (all[i - 1].is_building()) unbuild(all[i - 1]);
  }
}

void market_lots::serve() {
  note_late();
  retry_creates();
  // Each turn ends a request.
  for (std::size_t left = state_.records.requests.size() + 1; left > 0; --left) {
    grant_all();
    if (!expire() && !end_deadlock()) break;
  }
  recall_above_limits();
  send_drops();
  state_.records.remove_adopted();
}

void market_lots::grant_all() {
  auto& all = state_.records.requests;
  for (std::size_t left = all.size() + 1; left > 0; --left) {
    for (std::size_t i = 0; i < all.size();) {
      const std::size_t before = all.size();
      if (all[i].is_building()) advance(all[i]);
      if (all.size() == before) ++i;
    }
    if (!decide()) return;
  }
}

// Begins the first request that fits. Recalls memory for those before it.
bool market_lots::decide() {
  const std::int64_t room = free_room(state_);
  std::uint64_t before_bytes = 0;  // of requests that wait for memory of others
  std::int64_t before_ns = state_.now_ns;
  bool is_before_guaranteed = false;
  for (const waiting_request& each : waiting_order(state_)) {
    request_record& request = request_of(state_, each);
    const tenant_record& tenant = *state_.records.tenant(each.tenant);
    if (!is_within_limit(state_, tenant, request.least_bytes)) {
      if (!may_give_itself(request, tenant)) state_.deny(request, market_reason::limit);
      continue;
    }
    const bool guaranteed = is_guaranteed(state_, tenant, request.least_bytes);
    const std::int64_t left =
        room - (guaranteed ? 0 : static_cast<std::int64_t>(reserve_bytes(state_, tenant)));
    const auto least = static_cast<std::int64_t>(request.least_bytes);
    if (left < least && guaranteed && give_up_for(*this, state_, request)) {
      begin(request, tenant, static_cast<std::uint64_t>(free_room(state_)));
      return true;
    }
    if (left >= least) {
      request.pass_ns = passing_ns(state_, request, before_ns);
      const bool passes = !is_before_guaranteed && state_.now_ns >= request.pass_ns;
      if (before_bytes == 0 || guaranteed || passes) {
        begin(request, tenant, static_cast<std::uint64_t>(left));
        return true;
      }
    }
    const std::uint64_t after = process_bytes(state_, tenant) + request.least_bytes;
    const bool is_entitled =
        guaranteed || after <= entitlements(state_)[state_.records.place_of(tenant)];
    const std::int64_t missing =
        static_cast<std::int64_t>(before_bytes + request.least_bytes) - left;
    if (is_entitled) {
      before_bytes += request.least_bytes;
      before_ns = std::min(before_ns, request.since_ns);
      is_before_guaranteed = is_before_guaranteed || guaranteed;
    }
    if (missing <= 0 || state_.now_ns >= request.deadline_ns) continue;
    recall(tenant, static_cast<std::uint64_t>(missing), recall_kind::idle);
    if (is_entitled)
      recall(tenant, static_cast<std::uint64_t>(missing),
             guaranteed ? recall_kind::guaranteed : recall_kind::borrowed);
  }
  return false;
}

// What it gives itself, and idle memory of the other tenants of its process, until they have none.
bool market_lots::may_give_itself(const request_record& request, const tenant_record& tenant) {
  const std::uint64_t limit_bytes = tenant.share.limit_bytes;
  if (claimed_bytes(state_, tenant) + request.least_bytes > limit_bytes) return true;
  const std::uint64_t over_bytes =
      process_bytes(state_, tenant) + request.least_bytes - limit_bytes;
  bool may_come = false;
  for (tenant_record& each : state_.records.tenants()) {
    if (&each == &tenant || !state_.records.are_one(each, tenant)) continue;
    const std::uint64_t charge = state_.records.charge_of(each);
    const bool has_none = each.busy_ns >= request.since_ns + state_.options.busy_ns;
    if (charge == 0 || !each.is_open() || each.is_overdue || has_none) continue;
    may_come = true;
    if (state_.now_ns >= request.deadline_ns || has_ask(state_, each)) continue;
    ask(each, std::min(charge, over_bytes), true);
  }
  return may_come;
}

void market_lots::recall(const tenant_record& borrower, std::uint64_t missing_bytes,
                         recall_kind kind) {
  std::uint64_t need_bytes = missing_bytes + missing_bytes / 4;
  for (const tenant_record& each : state_.records.tenants()) {
    if (each.ask.request == 0) continue;
    if (kind != recall_kind::idle && each.ask.only_idle) return;  // it may be enough
    need_bytes -= std::min(need_bytes, each.ask.bytes);
  }
  for (const giver& each : givers(state_, borrower, kind)) {
    if (need_bytes == 0) return;
    tenant_record& from = *state_.records.tenant(each.tenant);
    const std::uint64_t bytes =
        std::min(each.overage_bytes, round_up(need_bytes, market_granule_bytes));
    ask(from, bytes, kind == recall_kind::idle);
    need_bytes -= std::min(need_bytes, bytes);
  }
}

// A limit that was lowered is reached by recalls.
void market_lots::recall_above_limits() {
  for (tenant_record& each : state_.records.tenants()) {
    if (!is_above_limit(state_, each) || has_ask(state_, each) || each.is_overdue) continue;
    const std::uint64_t charge = state_.records.charge_of(each);
    if (charge == 0 || state_.now_ns < each.cannot_ns) continue;
    ask(each, std::min(charge, process_charge(state_, each) - each.share.limit_bytes), false);
  }
}

void market_lots::ask(tenant_record& from, std::uint64_t bytes, bool only_idle) {
  check(from.ask.request == 0, "L5: a tenant has two recalls");
  check(bytes <= state_.records.charge_of(from), "L5: an ask is for more than a tenant has");
  const std::int64_t within_ns =
      state_.options.ask_ns +
      per_gib(only_idle ? state_.options.move_ns_per_gib : state_.options.ask_ns_per_gib, bytes);
  from.ask = {++state_.last_ask, bytes, state_.now_ns + within_ns, only_idle};
  market_message message;
  message.kind = market_kind::ask;
  message.request = from.ask.request;
  message.bytes = bytes;
  message.only_idle = only_idle;
  message.within_ns = static_cast<std::uint64_t>(within_ns);
  state_.send(from, message);
  ++state_.counts.ask_count;
  state_.counts.ask_bytes += bytes;
}

// A request beyond its guarantee, of the lowest class, is refused: of a tenant whose memory would
// serve another request, and of these one that loses little. Of equal ones the youngest.
bool market_lots::end_deadlock() {
  if (!is_deadlocked(state_)) return false;
  const auto& all = state_.records.requests;
  const std::int64_t room = free_room(state_);
  const auto rank = [&](const request_record& each) {
    const tenant_record& of = *state_.records.tenant(each.tenant);
    const std::uint64_t charge = process_charge(state_, of);
    const bool serves = std::any_of(all.begin(), all.end(), [&](const request_record& other) {
      const auto missing = static_cast<std::int64_t>(other.least_bytes) - room;
      return other.tenant != each.tenant && missing <= static_cast<std::int64_t>(charge);
    });
    return std::tuple{is_guaranteed(state_, of, each.least_bytes), of.share.priority, !serves,
                      std::bit_width(charge), -each.since_ns};
  };
  const auto last = std::min_element(
      all.begin(), all.end(), [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
  ++state_.counts.deadlock_count;
  const bool holds_none = state_.records.sums().granted_bytes == 0;
  state_.deny(*last, holds_none ? market_reason::too_large : market_reason::deadlock);
  return true;
}

}  // namespace vmm

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module vmm.market;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {
namespace {

bool is_of_control(market_kind kind) noexcept {
  return kind == market_kind::query || kind == market_kind::set_share || kind == market_kind::drain;
}

}  // namespace

market_owner::market_owner(const owner_options& options, std::int64_t now_ns) : state_(options) {
  check(options.epoch != 0, "an owner has no epoch");
  check(options.capacity_bytes != 0, "an owner has no memory");
  state_.now_ns = now_ns;
  state_.grace_end_ns = options.takes_stock ? now_ns + options.grace_ns : now_ns;
}

// A clock that jumps back does not move deadlines.
void market_owner::at(std::int64_t now_ns) noexcept { pass_time(state_, now_ns); }

void market_owner::end_event() {
  admission_.admit();
  lots_.serve();
  admission_.send_shares();
  paranoid_check([this] { return validate().has_value(); }, "an event breaks the owner's state");
}

std::uint64_t market_owner::tenant_of(std::uint64_t connection) noexcept {
  const tenant_record* const found = state_.records.tenant_of(connection);
  return found == nullptr ? 0 : found->number;
}

// ---- connections ---------------------------------------------------------------------

void market_owner::break_off(std::uint64_t connection) {
  market_message message;
  message.kind = market_kind::refused;
  message.reason = market_reason::broken;
  state_.send_to(connection, message);
  state_.close(connection);
  if (tenant_record* const from = state_.records.tenant_of(connection); from != nullptr)
    admission_.silence(*from);
}

void market_owner::receive(std::uint64_t connection, const market_message& message,
                           std::int64_t now_ns, std::uint64_t process) {
  check(connection != 0, "a message comes from nowhere");
  at(now_ns);
  tenant_record* const from = state_.records.tenant_of(connection);
  bool is_good = false;
  if (is_of_control(message.kind)) {
    is_good = control(connection, message);
  } else if (from == nullptr) {
    is_good = message.kind == market_kind::hello;
    if (is_good) admission_.greet(connection, message, process);
  } else {
    is_good = message.epoch == state_.options.epoch && dispatch(*from, message);
  }
  if (!is_good) break_off(connection);
  end_event();
}

void market_owner::reject(std::uint64_t connection, std::int64_t now_ns) {
  at(now_ns);
  break_off(connection);
  end_event();
}

void market_owner::lost(std::uint64_t connection, std::int64_t now_ns) {
  at(now_ns);
  if (tenant_record* const from = state_.records.tenant_of(connection); from != nullptr)
    admission_.silence(*from);
  end_event();
}

void market_owner::ended(std::uint64_t tenant, std::int64_t now_ns) {
  at(now_ns);
  if (tenant_record* const from = state_.records.tenant(tenant); from != nullptr) {
    from->has_ended = true;
    const std::uint64_t connection = from->connection;
    if (connection != 0) admission_.silence(*from);
    state_.close(connection);
    admission_.note_end(*from);
  }
  end_event();
}

void market_owner::witness_closed(std::uint64_t tenant, std::int64_t now_ns) {
  at(now_ns);
  if (tenant_record* const from = state_.records.tenant(tenant); from != nullptr) {
    from->has_witness = false;
    admission_.note_end(*from);
  }
  end_event();
}

// ---- messages ------------------------------------------------------------------------

bool market_owner::dispatch(tenant_record& from, const market_message& message) {
  if (message.kind == market_kind::inventory) return admission_.take_stock(from, message);
  if (!from.has_stock) return false;
  switch (message.kind) {
    case market_kind::want: return requests_.want(from, message);
    case market_kind::cancel: requests_.cancel(from, message.request); return true;
    case market_kind::give: return requests_.give(from, message);
    case market_kind::cannot: requests_.cannot(from, message); return true;
    case market_kind::dropped: return requests_.dropped(from, message);
    case market_kind::leave: admission_.leave(from); return true;
    default: return false;
  }
}

// ---- the driver ----------------------------------------------------------------------

void market_owner::created(std::uint64_t handle, bool has_memory, std::int64_t now_ns) {
  at(now_ns);
  owned_handle* const made = state_.records.find(handle);
  check(state_.creating == handle, "L3: a create returns that was not made");
  check(made != nullptr, "B1: a handle that is being created is not recorded");
  state_.creating = 0;
  if (has_memory) {
    ++state_.counts.created_count;
    state_.records.move_to(*made, handle_state::free);
  } else {
    ++state_.counts.refused_count;
    state_.records.remove_handle(handle);
    state_.usable_bytes = std::min(state_.usable_bytes, state_.records.sums().created_bytes());
    state_.refused_ns = state_.now_ns;
    for (request_record& each : state_.records.requests) {
      if (each.is_building()) lots_.unbuild(each);
    }
  }
  end_event();
}

void market_owner::released(std::uint64_t handle, std::int64_t now_ns) {
  at(now_ns);
  const owned_handle* const gone = state_.records.find(handle);
  if (gone == nullptr || gone->is_adopted) return;  // removed, and perhaps claimed since
  check(gone->state == handle_state::releasing, "B1: a release returns that was not made");
  state_.records.remove_handle(handle);
  end_event();
}

void market_owner::lose_device(std::int64_t now_ns) {
  at(now_ns);
  while (!state_.records.requests.empty()) {
    request_record& each = state_.records.requests.back();
    if (each.is_building()) lots_.unbuild(each);
    state_.deny(each, market_reason::device_lost);
  }
  for (tenant_record& each : state_.records.tenants()) {
    if (!each.is_there() || each.connection == 0) continue;
    const std::uint64_t connection = each.connection;
    state_.send(each, state_.refusal(market_kind::refused, market_reason::device_lost));
    admission_.silence(each);
    state_.close(connection);
  }
  state_.is_draining = true;
  state_.actions.push_back({.kind = owner_action::what::end});
}

// ---- time ----------------------------------------------------------------------------

void market_owner::tick(std::int64_t now_ns) {
  at(now_ns);
  for (tenant_record& each : state_.records.tenants()) {
    if (each.ask.request == 0 || state_.now_ns < each.ask.deadline_ns) continue;
    each.ask = {};
    each.is_overdue = true;
    ++state_.counts.overdue_count;
  }
  admission_.tick();
  end_event();
}

void market_owner::release_free(std::int64_t now_ns) {
  at(now_ns);
  lots_.release_free();
  end_event();
}

std::int64_t market_owner::next_deadline_ns() const noexcept {
  std::int64_t next = std::numeric_limits<std::int64_t>::max();
  const auto at_least = [&](std::int64_t at) {
    if (at > state_.now_ns) next = std::min(next, at);
  };
  bool any_waits = false;
  const bool any_leaves = state_.records.sums().void_bytes != 0;
  for (const request_record& each : state_.records.requests) {
    next = std::min(next, each.deadline_ns + (each.is_building() ? state_.options.build_ns : 0));
    if (each.is_building()) at_least(state_.create_after_ns);
    at_least(each.since_ns + state_.options.age_ns);
    at_least(each.pass_ns);
    any_waits = true;
  }
  if (any_waits && state_.refused_ns >= 0)
    next = std::min(next, state_.refused_ns + state_.options.retry_ns);
  for (const owned_handle& each : state_.records.handles()) {
    if (!any_leaves && !any_waits) break;
    if (each.state == handle_state::leaving && !each.is_late) next = std::min(next, each.drop_ns);
    if (any_waits && each.state == handle_state::granted) at_least(each.stay_ns);
  }
  for (const tenant_record& each : state_.records.tenants()) {
    if (!each.is_there()) continue;
    if (each.ask.request != 0) next = std::min(next, each.ask.deadline_ns);
    if (each.quiet_ns != 0 && each.connection == 0) next = std::min(next, each.quiet_ns);
    if (each.is_waiting_to_join) {
      at_least(state_.grace_end_ns);
      next = std::min(next, each.join_ns);
    }
    if (any_waits || is_above_limit(state_, each)) at_least(each.cannot_ns);
    if (any_waits) at_least(each.peace_ns);
    if (any_waits) at_least(each.busy_ns);
  }
  return next;
}

}  // namespace vmm

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module vmm.market;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {
namespace {

constexpr std::uint64_t join_ns_max = 3'600'000'000'000;
constexpr std::int64_t leaving_slack_ns = 1'000'000'000;  // the owner's loop and its driver's calls

bool is_a_share(const market_share& share) noexcept {
  return share.priority <= market_priority_max &&
         (share.limit_bytes == 0 || share.guarantee_bytes <= share.limit_bytes);
}

// Another one for each tenant: it protects against a mistake of a process of the same user.
market_key key_of(market_key base, std::uint64_t number) noexcept {
  for (std::size_t i = 0; i < sizeof(number); ++i)
    base[i] = static_cast<std::byte>(std::to_integer<std::uint64_t>(base[i]) ^
                                     ((number >> (8 * i)) & 0xFF));
  return base;
}

// A tenant of the process that the new one is one with; null: none.
const tenant_record* sibling_of(const owner_state& state, const market_message& hello,
                                std::uint64_t process) noexcept {
  if (process == 0) return nullptr;
  const auto is_its = [&](const tenant_record& each) {
    return each.is_there() && !each.has_ended && each.process == process &&
           each.name == hello.name &&
           std::any_of(state.groups.begin(), state.groups.end(), [&](const auto& group) {
             return group.number == each.group && group.name == hello.group;
           });
  };
  const auto tenants = state.records.tenants();
  const auto found = std::find_if(tenants.begin(), tenants.end(), is_its);
  return found == tenants.end() ? nullptr : &*found;
}

// A program that ends without a call of the library leaves its guarantee until the delay is over:
// the next one waits that long. 0: none has ended.
std::int64_t when_left(const owner_state& state) noexcept {
  std::int64_t last_ns = 0;
  for (const tenant_record& each : state.records.tenants()) {
    if (each.is_there()) last_ns = std::max(last_ns, each.quiet_ns);
  }
  return last_ns == 0 ? 0 : last_ns + leaving_slack_ns;
}

}  // namespace

// ---- coming --------------------------------------------------------------------------

market_message market_admission::refusal(market_reason reason, const tenant_record* self) const {
  market_message message = state_.refusal(market_kind::refused, reason);
  if (reason != market_reason::guarantees) return message;
  message.unit_bytes = state_.options.reserve_bytes + state_.options.context_bytes;
  for (const tenant_record& each : state_.records.tenants()) {
    if (!each.is_there() || !is_first(state_.records, each)) continue;
    if (self != nullptr && state_.records.are_one(each, *self)) continue;
    message.unit_bytes += state_.options.context_bytes;
    message.wish_bytes += std::min(each.share.guarantee_bytes, ~message.wish_bytes);
  }
  return message;
}

void market_admission::refuse(std::uint64_t connection, market_reason reason) {
  state_.send_to(connection, refusal(reason, nullptr));
  state_.close(connection);
}

// Beside the tenants that are there; and beside those that wait and came before, with the tenants
// that passed them: a guarantee that waits is not starved by smaller ones.
bool market_admission::fits(const tenant_record* self, const market_share& share,
                            bool is_late) const noexcept {
  if (share.guarantee_bytes == 0) return true;
  const auto is_self = [&](const tenant_record& each) {
    return self != nullptr && state_.records.are_one(each, *self);
  };
  const auto tenants = state_.records.tenants();
  if (std::any_of(tenants.begin(), tenants.end(), [&](const tenant_record& each) {
        return is_self(each) && !each.is_waiting_to_join &&
               each.share.guarantee_bytes >= share.guarantee_bytes;
      }))
    return true;
  const bool is_there = self != nullptr && !self->is_waiting_to_join;
  const std::uint64_t number = self == nullptr ? ~std::uint64_t{0} : self->number;
  std::uint64_t first = number;  // of those that wait
  for (const tenant_record& each : state_.records.tenants()) {
    if (each.is_waiting_to_join && !is_there) first = std::min(first, each.number);
  }
  std::uint64_t sum_bytes = share.guarantee_bytes, later_bytes = share.guarantee_bytes;
  std::uint64_t spare_bytes = state_.options.reserve_bytes + state_.options.context_bytes;
  std::uint64_t later_spare_bytes = spare_bytes;
  const auto add = [&](const tenant_record& of, std::uint64_t& sum, std::uint64_t& spare) {
    sum += std::min(of.share.guarantee_bytes, ~sum);
    spare += state_.options.context_bytes;
  };
  for (const tenant_record& each : state_.records.tenants()) {
    if (!each.is_there() || !is_first(state_.records, each) || is_self(each)) continue;
    if (is_late && each.quiet_ns != 0) continue;
    if (!each.is_waiting_to_join) add(each, sum_bytes, spare_bytes);
    if (each.is_waiting_to_join ? each.number < number : each.number > first)
      add(each, later_bytes, later_spare_bytes);
  }
  const auto is_enough = [&](std::uint64_t sum, std::uint64_t spare) {
    const std::uint64_t capacity_bytes = state_.options.capacity_bytes;
    return sum <= capacity_bytes && spare <= capacity_bytes - sum;
  };
  return is_enough(sum_bytes, spare_bytes) &&
         (first == number || is_enough(later_bytes, later_spare_bytes));
}

market_reason market_admission::examine(const market_message& hello) {
  if (hello.device != state_.options.device) return market_reason::device;
  if (!is_a_share(hello.share)) return market_reason::share;
  if (state_.is_draining) return market_reason::draining;
  for (const owner_state::group& each : state_.groups) {
    if (each.name == hello.group && each.secret != hello.key) return market_reason::secret;
  }
  const std::uint64_t spare_bytes = state_.options.context_bytes + state_.options.reserve_bytes;
  if (hello.tenant == 0 && hello.share.guarantee_bytes != 0 &&
      (spare_bytes > state_.options.capacity_bytes ||
       hello.share.guarantee_bytes > state_.options.capacity_bytes - spare_bytes))
    return market_reason::guarantees;  // of no use to wait
  return market_reason::none;
}

// Groups that no tenant and no handle has any more are forgotten.
std::uint64_t market_admission::group_of(const market_message& hello) {
  std::erase_if(state_.groups, [this](const owner_state::group& each) {
    const auto has = [&](const auto& one) { return one.group == each.number; };
    const auto tenants = state_.records.tenants();
    const auto handles = state_.records.handles();
    return std::none_of(tenants.begin(), tenants.end(), has) &&
           std::none_of(handles.begin(), handles.end(), has);
  });
  for (const owner_state::group& each : state_.groups) {
    if (each.name == hello.group) return each.number;
  }
  state_.groups.push_back({++state_.last_group, hello.group, hello.key});
  return state_.last_group;
}

void market_admission::greet(std::uint64_t connection, const market_message& hello,
                             std::uint64_t process) {
  if (hello.tenant != 0 && hello.epoch == state_.options.epoch)
    return resume(connection, hello, process);
  const bool is_earlier = hello.tenant != 0;
  market_reason reason = examine(hello);
  const tenant_record* const sibling = sibling_of(state_, hello, process);
  const market_share share = sibling == nullptr ? hello.share : sibling->share;
  const bool is_admitted = sibling != nullptr && !sibling->is_waiting_to_join;
  const bool is_fitting = is_earlier || is_admitted || (sibling == nullptr && fits(nullptr, share));
  const bool has_room_later = !is_fitting && fits(nullptr, share, true);
  const std::int64_t left_ns = has_room_later ? when_left(state_) : 0;
  if (reason == market_reason::none && !is_fitting && sibling == nullptr && hello.within_ns == 0 &&
      left_ns == 0)
    reason = market_reason::guarantees;
  if (reason != market_reason::none) return refuse(connection, reason);
  const std::uint64_t group = group_of(hello);
  tenant_record* const made = state_.records.add_tenant();
  if (made == nullptr) return refuse(connection, market_reason::tenants);
  made->connection = connection;
  made->name = hello.name;
  made->group = group;
  made->job = hello.job;
  made->process = process;
  made->share = share;
  made->is_earlier = is_earlier;
  made->resume = key_of(state_.options.key, made->number);
  const bool is_grace =
      state_.now_ns < state_.grace_end_ns && share.guarantee_bytes != 0 && !is_admitted;
  made->is_waiting_to_join = !is_earlier && (is_grace || !is_fitting);
  made->join_ns =
      std::max({state_.grace_end_ns, left_ns,
                state_.now_ns + static_cast<std::int64_t>(std::min(hello.within_ns, join_ns_max))});
  if (!made->is_waiting_to_join) welcome(*made);
}

void market_admission::resume(std::uint64_t connection, const market_message& hello,
                              std::uint64_t process) {
  tenant_record* const found = state_.records.tenant(hello.tenant);
  if (found == nullptr) {  // forgotten, since it had nothing
    market_message fresh = hello;
    fresh.tenant = 0;
    return greet(connection, fresh, process);
  }
  if (found->has_ended || found->resume != hello.resume)
    return refuse(connection, market_reason::silent);
  if (found->connection != 0) {
    state_.close(found->connection);
    silence(*found);
  }
  found->connection = connection;
  found->has_stock = false;
  for (owned_handle& each : state_.records.handles()) {
    each.drops_sent &= ~state_.records.bit_of(*found);
  }
  welcome(*found);
}

void market_admission::welcome(tenant_record& tenant) {
  tenant.is_waiting_to_join = false;
  market_message message;
  message.kind = market_kind::welcome;
  message.tenant = tenant.number;
  message.resume = tenant.resume;
  message.bytes = state_.options.capacity_bytes;
  message.share = tenant.share;
  message.unit_bytes = tenant.sent_kept_bytes = reach_of(state_, tenant).kept_bytes;
  state_.send(tenant, message);
}

void market_admission::send_share(tenant_record& tenant) {
  market_message message;
  message.kind = market_kind::view;
  message.share = tenant.share;
  message.bytes = state_.options.capacity_bytes;
  message.wish_bytes = state_.records.charge_of(tenant);
  message.unit_bytes = tenant.sent_kept_bytes = reach_of(state_, tenant).kept_bytes;
  state_.send(tenant, message);
}

void market_admission::send_shares() {
  for (tenant_record& each : state_.records.tenants()) {
    if (each.is_open() && each.sent_kept_bytes != reach_of(state_, each).kept_bytes)
      send_share(each);
  }
}

// ---- stock ---------------------------------------------------------------------------

bool market_admission::take_one(tenant_record& tenant, const market_handle& listed,
                                std::uint32_t index) {
  const std::uint64_t bit = state_.records.bit_of(tenant);
  owned_handle* known = state_.records.find(listed.id);
  if (known == nullptr) {
    if (!tenant.is_earlier) return false;
    known = &state_.records.adopt_handle(listed);
    known->drop_ns = state_.now_ns + state_.options.ask_ns;
    known->group = tenant.group;
    state_.actions.push_back({.kind = owner_action::what::adopt,
                              .connection = tenant.connection,
                              .handle = listed.id,
                              .index = index});
  }
  if (known->size_bytes != listed.size_bytes() || known->group != tenant.group ||
      known->state == handle_state::releasing || known->state == handle_state::creating)
    return false;
  known->importers |= bit;
  known->listed |= bit;
  if (!listed.in_use) return true;
  const bool is_own = known->state == handle_state::granted && known->holder == tenant.number;
  if (is_own && known->generation == listed.generation) {
    known->listed_use |= bit;
    return true;
  }
  if (!tenant.is_earlier) return false;
  const bool is_claimed = known->state == handle_state::granted;
  if (is_claimed && known->generation == listed.generation) {
    known->is_doubled = true;  // two tenants use it: no third one may
    return true;
  }
  if (listed.generation < known->generation) return true;  // the claim of a later grant holds
  if (known->state != handle_state::leaving && !is_claimed) return false;
  if (is_claimed) known->is_doubled = true;
  state_.records.move_to(*known, handle_state::leaving);
  known->holder = tenant.number;
  state_.records.move_to(*known, handle_state::granted);
  known->generation = listed.generation;
  known->job = tenant.job;
  known->listed_use |= bit;
  return true;
}

bool market_admission::take_stock(tenant_record& tenant, const market_message& list) {
  if (tenant.has_stock || tenant.is_waiting_to_join) return false;
  for (std::uint32_t i = 0; i < list.handle_count; ++i) {
    if (!take_one(tenant, list.handles[i], i)) return false;
  }
  if (!list.more) finish_stock(tenant);
  return true;
}

// A handle that is granted and not listed has been returned, or was never received.
void market_admission::finish_stock(tenant_record& tenant) {
  tenant.has_stock = true;
  const std::uint64_t bit = state_.records.bit_of(tenant);
  for (owned_handle& each : state_.records.handles()) {
    if (each.state == handle_state::granted && each.holder == tenant.number &&
        (each.listed_use & bit) == 0)
      lots_.free(each);
    if ((each.importers & bit) != 0 && (each.listed & bit) == 0) lots_.drop_import(each, tenant);
  }
  forget_stock(tenant);
}

void market_admission::forget_stock(const tenant_record& tenant) noexcept {
  for (owned_handle& each : state_.records.handles()) {
    each.listed &= ~state_.records.bit_of(tenant);
    each.listed_use &= ~state_.records.bit_of(tenant);
  }
}

// ---- going ---------------------------------------------------------------------------

void market_admission::remove(tenant_record& tenant) {
  const std::uint64_t bit = state_.records.bit_of(tenant);
  check(state_.records.charge_of(tenant) == 0, "L6: a tenant ends that holds memory");
  for (owned_handle& each : state_.records.handles()) {
    check(each.holder != tenant.number, "L6: a handle outlives its tenant");
    each.drops_sent &= ~bit;
    if ((each.importers & bit) != 0) lots_.drop_import(each, tenant);
  }
  tenant = {};
  const auto tenants = state_.records.tenants();
  if (std::none_of(tenants.begin(), tenants.end(),
                   [](const auto& each) { return each.is_there(); }))
    state_.actions.push_back({.kind = owner_action::what::end});
}

// A grant may be on its way: what it has is free.
void market_admission::leave(tenant_record& tenant) {
  const std::uint64_t connection = tenant.connection;
  silence(tenant);
  for (owned_handle& each : state_.records.handles()) {
    if (each.state == handle_state::granted && each.holder == tenant.number) lots_.free(each);
  }
  remove(tenant);
  state_.close(connection);
}

void market_admission::silence(tenant_record& tenant) {
  for (std::size_t i = 0; i < state_.records.requests.size();) {
    request_record& each = state_.records.requests[i];
    if (each.tenant != tenant.number) {
      ++i;
      continue;
    }
    if (each.is_building()) lots_.unbuild(each);
    state_.forget_request(each);
  }
  forget_stock(tenant);
  const bool had_stock = tenant.has_stock;
  tenant.ask = {};
  tenant.connection = 0;
  tenant.has_stock = false;
  tenant.last_request = 0;
  if (!had_stock && has_nothing(tenant)) return remove(tenant);
  note_end(tenant);
}

bool market_admission::has_nothing(const tenant_record& tenant) const noexcept {
  const auto handles = state_.records.handles();
  return std::none_of(handles.begin(), handles.end(), [&](const owned_handle& each) {
    return each.holder == tenant.number || (each.importers & state_.records.bit_of(tenant)) != 0;
  });
}

void market_admission::note_end(tenant_record& tenant) {
  if (!tenant.has_ended) return;
  for (owned_handle& each : state_.records.handles()) {
    if (each.state == handle_state::granted && each.holder == tenant.number) {
      state_.records.move_to(each, handle_state::quarantined);
    }
  }
  if (!tenant.has_witness && tenant.quiet_ns == 0)
    tenant.quiet_ns = state_.now_ns + state_.options.quiet_delay_ns;
}

void market_admission::bury(tenant_record& tenant) {
  check(tenant.has_ended, "L6: memory is lent while its tenant runs");
  check(!tenant.has_witness, "L6: memory is lent while a child of its tenant may use it");
  for (owned_handle& each : state_.records.handles()) {
    if (each.holder == tenant.number) lots_.free(each);
  }
  state_.usable_bytes = state_.options.capacity_bytes;  // its context has ended, too
  state_.refused_ns = -1;
  remove(tenant);
}

void market_admission::tick() {
  for (tenant_record& each : state_.records.tenants()) {
    if (!each.is_there()) continue;
    if (each.quiet_ns != 0 && each.connection == 0 && state_.now_ns >= each.quiet_ns) {
      bury(each);
    }
  }
}

void market_admission::turn_away(tenant_record& tenant, market_reason reason) {
  const std::uint64_t connection = tenant.connection;
  tenant.is_waiting_to_join = false;
  remove(tenant);
  refuse(connection, reason);
}

// In the order in which they came.
void market_admission::admit() {
  std::vector<tenant_record*> waiting;
  for (tenant_record& each : state_.records.tenants()) {
    if (each.is_waiting_to_join) waiting.push_back(&each);
  }
  std::sort(waiting.begin(), waiting.end(),
            [](const tenant_record* a, const tenant_record* b) { return a->number < b->number; });
  for (tenant_record* const each : waiting) {
    if (state_.is_draining) {
      turn_away(*each, market_reason::draining);
    } else if (state_.now_ns >= state_.grace_end_ns && fits(each, each->share)) {
      welcome(*each);
    } else if (state_.now_ns >= each->join_ns) {
      turn_away(*each, market_reason::guarantees);
    }
  }
}

market_reason market_admission::change_share(tenant_record& tenant, const market_share& share) {
  if (!is_a_share(share)) return market_reason::share;
  if (share.guarantee_bytes > tenant.share.guarantee_bytes && !fits(&tenant, share))
    return market_reason::guarantees;
  for (tenant_record& each : state_.records.tenants()) {
    if (!state_.records.are_one(each, tenant)) continue;
    each.share = share;
    send_share(each);
  }
  return market_reason::none;
}

}  // namespace vmm

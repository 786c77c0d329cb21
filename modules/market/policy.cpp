// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module vmm.market;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {
namespace {

// No age lifts a request by more classes than there are.
constexpr std::int64_t age_max = market_priority_max;

// Whether the request is of a tenant of its process.
bool is_of(const owner_state& state, const request_record& request,
           const tenant_record& tenant) noexcept {
  if (request.tenant == tenant.number || tenant.process == 0)
    return request.tenant == tenant.number;
  const tenant_record* const from = state.records.tenant(request.tenant);
  return from != nullptr && state.records.are_one(*from, tenant);
}

// Over the tenants of its process.
template <class Value>
std::uint64_t sum_of(const owner_state& state, const tenant_record& tenant,
                     Value&& value) noexcept {
  if (tenant.process == 0) return value(tenant);
  std::uint64_t sum = 0;
  for (const tenant_record& each : state.records.tenants()) {
    if (state.records.are_one(each, tenant)) sum += value(each);
  }
  return sum;
}

// The bytes that its requests are waiting for.
std::uint64_t waiting_bytes(const owner_state& state, const tenant_record& tenant) noexcept {
  std::uint64_t sum_bytes = 0;
  for (const request_record& each : state.records.requests) {
    if (!each.is_building() && is_of(state, each, tenant)) sum_bytes += each.least_bytes;
  }
  return sum_bytes;
}

// The largest request of the last minute.
std::uint64_t largest_bytes(const owner_state& state, const tenant_record& tenant) noexcept {
  std::uint64_t largest = 0;
  for (const tenant_record& each : state.records.tenants()) {
    const bool is_recent = state.now_ns - each.largest_ns < 60'000'000'000;
    if (is_recent && state.records.are_one(each, tenant))
      largest = std::max(largest, each.largest_bytes);
  }
  return largest;
}

std::uint64_t limit_of(const owner_state& state, const tenant_record& tenant) noexcept {
  const std::uint64_t limit_bytes = tenant.share.limit_bytes;
  return limit_bytes == 0 ? state.options.capacity_bytes : limit_bytes;
}

bool has_request(const owner_state& state, const tenant_record& tenant) noexcept {
  const auto& requests = state.records.requests;
  return std::any_of(requests.begin(), requests.end(),
                     [&](const auto& each) { return is_of(state, each, tenant); });
}

// Its guarantee, and an equal part of what is not guaranteed.
placed_bytes parts_of_device(const owner_state& state) noexcept {
  const std::span<const tenant_record> tenants = state.records.tenants();
  std::uint64_t rest_bytes = state.options.capacity_bytes;
  std::uint64_t count = 0;
  for (const tenant_record& each : tenants) {
    const bool is_counted = std::any_of(tenants.data(), &each, [&](const tenant_record& other) {
      return other.is_open() && state.records.are_one(other, each);
    });
    if (!each.is_open() || is_counted) continue;
    rest_bytes -= std::min(rest_bytes, each.share.guarantee_bytes);
    ++count;
  }
  placed_bytes parts{};
  for (std::size_t i = 0; i < tenants.size(); ++i) {
    if (tenants[i].is_open())
      parts[i] = std::min(tenants[i].share.guarantee_bytes + rest_bytes / count,
                          limit_of(state, tenants[i]));
  }
  return parts;
}

// Credits that differ by less are equal.
std::int64_t credit_steps(const owner_state& state, const tenant_record& tenant) noexcept {
  const double step_byte_s = static_cast<double>(state.options.capacity_bytes) / 64;
  return static_cast<std::int64_t>(std::floor(tenant.credit_byte_s / step_byte_s));
}

}  // namespace

void pass_time(owner_state& state, std::int64_t now_ns) noexcept {
  const std::int64_t passed_ns = now_ns - state.now_ns;
  if (passed_ns <= 0) return;
  state.now_ns = now_ns;
  const double passed_s = static_cast<double>(passed_ns) * 1e-9;
  constexpr double log_of_2 = 0.6931471805599453;
  const double kept = 1 / (1 + log_of_2 * static_cast<double>(passed_ns) /
                                   static_cast<double>(state.options.credit_half_ns));
  const placed_bytes parts = parts_of_device(state);
  bool all_wait = !state.records.requests.empty();
  for (tenant_record& each : state.records.tenants()) {
    if (!each.is_open()) continue;
    const double unused_bytes = static_cast<double>(parts[state.records.place_of(each)]) -
                                static_cast<double>(process_charge(state, each));
    each.credit_byte_s = (each.credit_byte_s + unused_bytes * passed_s) * kept;
    all_wait = all_wait && has_request(state, each);
  }
  if (!state.records.requests.empty()) state.counts.some_waited_ns += passed_ns;
  if (all_wait) state.counts.all_waited_ns += passed_ns;
}

std::uint64_t late_bytes(const owner_state& state) noexcept {
  std::uint64_t sum_bytes = 0;
  if (state.records.sums().void_bytes == 0) return 0;
  for (const owned_handle& each : state.records.handles())
    sum_bytes += each.is_late ? each.size_bytes : 0;
  return sum_bytes;
}

placed_bytes staying_bytes(const owner_state& state) noexcept {
  placed_bytes staying{};
  for (const owned_handle& each : state.records.handles()) {
    if (each.state != handle_state::granted || state.now_ns >= each.stay_ns) continue;
    const tenant_record* const holder = state.records.tenant(each.holder);
    check(holder != nullptr, "B1: a granted handle has no holder");
    staying[state.records.place_of(*holder)] += each.size_bytes;
  }
  return staying;
}

std::int64_t free_room(const owner_state& state) noexcept {
  const market_sums& sums = state.records.sums();
  auto room = static_cast<std::int64_t>(state.usable_bytes);
  room -= static_cast<std::int64_t>(sums.granted_bytes + sums.quarantined_bytes);
  room -= static_cast<std::int64_t>(late_bytes(state));
  for (const request_record& each : state.records.requests)
    room -= static_cast<std::int64_t>(each.missing_bytes);
  return room;
}

std::uint64_t claimed_bytes(const owner_state& state, const tenant_record& tenant) noexcept {
  std::uint64_t sum_bytes = state.records.charge_of(tenant);
  for (const request_record& each : state.records.requests) {
    if (each.tenant == tenant.number) sum_bytes += each.missing_bytes;
  }
  return sum_bytes;
}

std::uint64_t process_bytes(const owner_state& state, const tenant_record& tenant) noexcept {
  return sum_of(state, tenant,
                [&](const tenant_record& each) { return claimed_bytes(state, each); });
}

std::uint64_t process_charge(const owner_state& state, const tenant_record& tenant) noexcept {
  return sum_of(state, tenant,
                [&](const tenant_record& each) { return state.records.charge_of(each); });
}

bool has_ask(const owner_state& state, const tenant_record& tenant) noexcept {
  return sum_of(state, tenant, [](const tenant_record& each) {
           return std::uint64_t{each.ask.request != 0 ? 1U : 0U};
         }) != 0;
}

bool is_within_limit(const owner_state& state, const tenant_record& tenant,
                     std::uint64_t more_bytes) noexcept {
  const std::uint64_t limit_bytes = tenant.share.limit_bytes;
  if (limit_bytes == 0) return true;
  const std::uint64_t claimed = process_bytes(state, tenant);
  return claimed <= limit_bytes && more_bytes <= limit_bytes - claimed;
}

bool is_above_limit(const owner_state& state, const tenant_record& tenant) noexcept {
  return tenant.is_open() && tenant.share.limit_bytes != 0 &&
         process_charge(state, tenant) > tenant.share.limit_bytes;
}

std::uint64_t reserve_bytes(const owner_state& state, const tenant_record& borrower) noexcept {
  std::uint64_t sum_bytes = 0;
  for (const tenant_record& each : state.records.tenants()) {
    if (!each.is_there() || each.has_ended || each.share.elastic ||
        !is_first(state.records, each) || state.records.are_one(each, borrower))
      continue;
    const std::uint64_t charge = process_bytes(state, each);
    if (charge >= each.share.guarantee_bytes) continue;
    const std::uint64_t kept_bytes =
        std::max(state.options.reserve_bytes, largest_bytes(state, each));
    sum_bytes += std::min(each.share.guarantee_bytes - charge, kept_bytes);
  }
  return sum_bytes;
}

market_reach reach_of(const owner_state& state, const tenant_record& tenant) noexcept {
  market_reach reach{state.options.capacity_bytes, 0, tenant.share};
  for (const tenant_record& each : state.records.tenants()) {
    if (!each.is_there() || each.has_ended || each.is_waiting_to_join || each.share.elastic ||
        !is_first(state.records, each) || state.records.are_one(each, tenant))
      continue;
    reach.kept_bytes += std::min(each.share.guarantee_bytes, state.options.reserve_bytes);
  }
  return reach;
}

bool is_guaranteed(const owner_state& state, const tenant_record& tenant,
                   std::uint64_t more_bytes) noexcept {
  return process_bytes(state, tenant) + more_bytes <= tenant.share.guarantee_bytes;
}

std::uint32_t class_of(const owner_state& state, const tenant_record& tenant) noexcept {
  std::int64_t oldest_ns = state.now_ns;
  for (const request_record& each : state.records.requests) {
    if (is_of(state, each, tenant)) oldest_ns = std::min(oldest_ns, each.since_ns);
  }
  const std::int64_t age = (state.now_ns - oldest_ns) / state.options.age_ns;
  return tenant.share.priority + static_cast<std::uint32_t>(std::min<std::int64_t>(age, age_max));
}

std::int64_t passing_ns(const owner_state& state, const request_record& request,
                        std::int64_t before_ns) noexcept {
  constexpr std::int64_t age_parts = 16;
  return request.since_ns + std::clamp((request.since_ns - before_ns) / age_parts,
                                       state.options.pass_ns, state.options.pass_ns_max);
}

bool may_pass(const owner_state& state, const request_record& request) noexcept {
  const std::int64_t room = free_room(state);
  if (room < static_cast<std::int64_t>(request.least_bytes)) return false;
  const auto waits = [&](const request_record& one, bool guaranteed) {
    const tenant_record* const of = state.records.tenant(one.tenant);
    return of != nullptr && !one.is_building() && is_within_limit(state, *of, one.least_bytes) &&
           is_guaranteed(state, *of, one.least_bytes) == guaranteed;
  };
  if (waits(request, true)) return true;
  const auto& all = state.records.requests;
  if (!waits(request, false) ||
      std::any_of(all.begin(), all.end(), [&](const auto& each) { return waits(each, true); }))
    return false;
  const std::uint64_t kept_bytes = reserve_bytes(state, *state.records.tenant(request.tenant));
  return room >= static_cast<std::int64_t>(request.least_bytes + kept_bytes);
}

std::vector<waiting_request> waiting_order(const owner_state& state) {
  struct place {
    waiting_request what;
    bool guaranteed;
    std::uint32_t level;
    std::int64_t credit;
    std::int64_t since_ns;
  };
  std::vector<place> places;
  for (const request_record& each : state.records.requests) {
    if (each.is_building()) continue;
    const tenant_record* const tenant = state.records.tenant(each.tenant);
    check(tenant != nullptr, "L2: a request outlives its tenant");
    places.push_back({{each.tenant, each.request},
                      is_guaranteed(state, *tenant, each.least_bytes),
                      class_of(state, *tenant),
                      credit_steps(state, *tenant),
                      each.since_ns});
  }
  std::stable_sort(places.begin(), places.end(), [](const place& a, const place& b) {
    if (a.guaranteed != b.guaranteed) return a.guaranteed;
    if (a.level != b.level) return a.level > b.level;
    if (a.credit != b.credit) return a.credit > b.credit;
    return a.since_ns < b.since_ns;
  });
  std::vector<waiting_request> order;
  order.reserve(places.size());
  for (const place& each : places) order.push_back(each.what);
  return order;
}

placed_bytes entitlements(const owner_state& state) noexcept {
  const std::span<const tenant_record> tenants = state.records.tenants();
  placed_bytes entitled{};
  placed_bytes most{};  // what demand and limit allow
  auto rest = static_cast<std::int64_t>(state.usable_bytes);
  rest -= static_cast<std::int64_t>(state.records.sums().quarantined_bytes + late_bytes(state));
  std::uint32_t level = 0;
  for (std::size_t i = 0; i < tenants.size(); ++i) {
    if (!tenants[i].is_there() || !is_first(state.records, tenants[i])) continue;
    most[i] = std::min(process_bytes(state, tenants[i]) + waiting_bytes(state, tenants[i]),
                       limit_of(state, tenants[i]));
    entitled[i] = std::min(most[i], tenants[i].share.guarantee_bytes);
    rest -= static_cast<std::int64_t>(entitled[i]);
    level = std::max(level, class_of(state, tenants[i]));
  }
  // Class by class; in a class the smallest demand comes first: one pass by size is enough.
  for (std::uint32_t left = level + 1; left > 0 && rest > 0; --left) {
    std::array<std::size_t, market_tenants_max> members{};
    std::size_t count = 0;
    for (std::size_t i = 0; i < tenants.size(); ++i) {
      if (tenants[i].is_there() && most[i] > entitled[i] && class_of(state, tenants[i]) == left - 1)
        members[count++] = i;
    }
    std::sort(members.begin(), members.begin() + static_cast<std::ptrdiff_t>(count),
              [&](std::size_t a, std::size_t b) {
                return most[a] - entitled[a] < most[b] - entitled[b];
              });
    for (std::size_t i = 0; i < count && rest > 0; ++i) {
      const std::size_t place = members[i];
      const std::uint64_t part =
          std::min(most[place] - entitled[place], static_cast<std::uint64_t>(rest) / (count - i));
      entitled[place] += part;
      rest -= static_cast<std::int64_t>(part);
    }
  }
  for (std::size_t i = 0; i < tenants.size(); ++i) {  // of one process the first place has it
    for (std::size_t first = 0; first < i && tenants[i].process != 0; ++first) {
      if (state.records.are_one(tenants[first], tenants[i]))
        entitled[i] = std::max(entitled[i], entitled[first]);
    }
  }
  return entitled;
}

std::vector<giver> givers(const owner_state& state, const tenant_record& borrower,
                          recall_kind kind) {
  const placed_bytes entitled = entitlements(state);
  const bool is_idle = kind == recall_kind::idle;
  const placed_bytes staying = is_idle ? placed_bytes{} : staying_bytes(state);
  const std::span<const tenant_record> tenants = state.records.tenants();
  const std::uint64_t late = state.records.late_importers();
  std::vector<giver> found;
  for (std::size_t i = 0; i < tenants.size(); ++i) {
    const tenant_record& each = tenants[i];
    if (!each.is_open() || &each == &borrower || has_ask(state, each) || each.is_overdue) continue;
    if ((late & state.records.bit_of(each)) != 0) continue;
    if (state.now_ns < (is_idle ? each.busy_ns : each.cannot_ns)) continue;
    if (kind == recall_kind::borrowed && state.now_ns < each.peace_ns) continue;
    const bool is_own = is_idle && state.records.are_one(each, borrower);
    const std::uint64_t kept_bytes = kind == recall_kind::borrowed
                                         ? std::max(entitled[i], each.share.guarantee_bytes)
                                     : is_own ? 0
                                              : each.share.guarantee_bytes;
    const std::uint64_t charge = state.records.charge_of(each);
    const std::uint64_t sum_bytes = process_charge(state, each);
    if (sum_bytes <= kept_bytes || charge <= staying[i]) continue;
    const giver made{each.number, std::min(sum_bytes - kept_bytes, charge - staying[i])};
    const auto other = std::find_if(found.begin(), found.end(), [&](const giver& one) {
      return state.records.are_one(*state.records.tenant(one.tenant), each);
    });
    if (other == found.end()) {
      found.push_back(made);
    } else if (other->overage_bytes < made.overage_bytes) {
      *other = made;  // one of a process at a time
    }
  }
  const auto level = [&](const giver& each) {
    return state.records.tenant(each.tenant)->share.priority;
  };
  std::stable_sort(found.begin(), found.end(), [&](const giver& a, const giver& b) {
    if (level(a) != level(b)) return level(a) < level(b);
    return a.overage_bytes > b.overage_bytes;
  });
  return found;
}

bool is_deadlocked(const owner_state& state) noexcept {
  const market_sums& sums = state.records.sums();
  if (state.records.requests.empty() || state.creating != 0) return false;
  if (sums.void_bytes != 0 || sums.quarantined_bytes != 0 || state.refused_ns >= 0) return false;
  const placed_bytes staying = staying_bytes(state);
  if (std::any_of(staying.begin(), staying.end(), [](std::uint64_t bytes) { return bytes != 0; }))
    return false;
  // A tenant that waits may have threads that do not.
  const std::int64_t least_ns = sums.granted_bytes == 0 ? 0 : state.options.age_ns;
  for (const request_record& each : state.records.requests) {
    if (each.is_building() || state.now_ns < each.since_ns + least_ns || may_pass(state, each))
      return false;
  }
  for (const tenant_record& each : state.records.tenants()) {
    if (!each.is_there()) continue;
    if (each.ask.request != 0 || state.now_ns < each.peace_ns) return false;
    if (state.records.charge_of(each) == 0) continue;
    if (!each.is_open() || !has_request(state, each)) return false;
  }
  return true;
}

}  // namespace vmm

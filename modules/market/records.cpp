// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module vmm.market;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {
namespace {

bool has_holder(const owned_handle& handle) noexcept {
  return handle.state == handle_state::granted || handle.state == handle_state::quarantined;
}

bool is_before(const owned_handle& handle, std::uint64_t id) noexcept { return handle.id < id; }

}  // namespace

// ---- handles -------------------------------------------------------------------------

std::uint64_t& market_records::sum_of(handle_state state) noexcept {
  switch (state) {
    case handle_state::creating: return sums_.creating_bytes;
    case handle_state::free: return sums_.free_bytes;
    case handle_state::granted: return sums_.granted_bytes;
    case handle_state::quarantined: return sums_.quarantined_bytes;
    default: return sums_.void_bytes;
  }
}

owned_handle* market_records::find(std::uint64_t id) noexcept {
  const auto found = std::lower_bound(handles_.begin(), handles_.end(), id, is_before);
  return found == handles_.end() || found->id != id ? nullptr : &*found;
}

owned_handle& market_records::insert(const owned_handle& made) {
  check(is_market_size(made.size_bytes), "a handle has no size of a market");
  const auto place = std::lower_bound(handles_.begin(), handles_.end(), made.id, is_before);
  check(place == handles_.end() || place->id != made.id, "B1: a handle is recorded twice");
  sum_of(made.state) += made.size_bytes;
  return *handles_.insert(place, made);
}

owned_handle& market_records::add_handle(std::uint64_t size_bytes) {
  while (find(next_id_) != nullptr) ++next_id_;  // adopted ones have numbers of other owners
  return insert({.id = next_id_++, .size_bytes = size_bytes});
}

owned_handle& market_records::adopt_handle(const market_handle& of_a_tenant) {
  return insert({.id = of_a_tenant.id,
                 .size_bytes = of_a_tenant.size_bytes(),
                 .generation = of_a_tenant.generation,
                 .state = handle_state::leaving,
                 .is_adopted = true});
}

void market_records::remove_adopted() noexcept {
  std::erase_if(handles_, [this](const owned_handle& each) {
    if (!each.is_adopted || each.state != handle_state::releasing) return false;
    sums_.void_bytes -= each.size_bytes;
    return true;
  });
}

void market_records::remove_handle(std::uint64_t id) noexcept {
  owned_handle* const gone = find(id);
  check(gone != nullptr, "B1: a handle is removed twice");
  check(!has_holder(*gone), "B1: a handle is removed that a tenant has");
  sum_of(gone->state) -= gone->size_bytes;
  handles_.erase(handles_.begin() + (gone - handles_.data()));
}

void market_records::move_to(owned_handle& handle, handle_state state) noexcept {
  if (handle.state == handle_state::granted) {
    const tenant_record* const holder = tenant(handle.holder);
    check(holder != nullptr, "B1: a granted handle has no holder");
    charges_[place_of(*holder)] -= handle.size_bytes;
  }
  sum_of(handle.state) -= handle.size_bytes;
  handle.state = state;
  handle.is_late = handle.is_late && state == handle_state::leaving;
  sum_of(state) += handle.size_bytes;
  if (!has_holder(handle)) handle.holder = handle.request = 0;
  if (state != handle_state::granted) return;
  const tenant_record* const holder = tenant(handle.holder);
  check(holder != nullptr, "B1: a handle is granted without a holder");
  charges_[place_of(*holder)] += handle.size_bytes;
}

void market_records::grant(owned_handle& handle, const tenant_record& to,
                           std::uint64_t request) noexcept {
  check(handle.state == handle_state::free, "B1: a handle is granted that is not free");
  check(handle.group == 0 || handle.group == to.group, "B4: bytes leave their group");
  ++handle.generation;
  check(handle.generation != 0, "B3: the generations of a handle overflow");
  handle.holder = to.number;
  move_to(handle, handle_state::granted);
  handle.request = request;
}

std::uint64_t market_records::late_importers() const noexcept {
  std::uint64_t late = 0;
  if (sums_.void_bytes == 0) return late;
  for (const owned_handle& each : handles_) late |= each.is_late ? each.importers : 0;
  return late;
}

// ---- tenants -------------------------------------------------------------------------

tenant_record* market_records::add_tenant() noexcept {
  for (tenant_record& each : tenants_) {
    if (each.is_there()) continue;
    check(charge_of(each) == 0, "a free place has a charge");
    each = {.number = ++last_tenant_};
    return &each;
  }
  return nullptr;
}

const tenant_record* market_records::tenant(std::uint64_t number) const noexcept {
  if (number == 0) return nullptr;
  const auto found = std::find_if(tenants_.begin(), tenants_.end(),
                                  [=](const auto& each) { return each.number == number; });
  return found == tenants_.end() ? nullptr : &*found;
}

tenant_record* market_records::tenant(std::uint64_t number) noexcept {
  return const_cast<tenant_record*>(std::as_const(*this).tenant(number));
}

tenant_record* market_records::tenant_of(std::uint64_t connection) noexcept {
  if (connection == 0) return nullptr;
  const auto found = std::find_if(tenants_.begin(), tenants_.end(), [=](const auto& each) {
    return each.is_there() && each.connection == connection;
  });
  return found == tenants_.end() ? nullptr : &*found;
}

bool market_records::are_one(const tenant_record& a, const tenant_record& b) const noexcept {
  if (a.number == b.number || a.process == 0) return a.number == b.number;
  return a.process == b.process && a.group == b.group && a.name == b.name &&
         a.has_ended == b.has_ended && a.is_there() && b.is_there();
}

bool is_first(const market_records& records, const tenant_record& tenant) noexcept {
  return std::none_of(records.tenants().data(), &tenant,
                      [&](const tenant_record& each) { return records.are_one(each, tenant); });
}

// ---- audits --------------------------------------------------------------------------

status market_records::validate() const noexcept {
  market_records fresh(1);
  std::array<std::uint64_t, market_tenants_max> charges{};
  std::uint64_t last = 0;
  for (const owned_handle& each : handles_) {
    if (each.id <= last) return refuse(errc::internal, "B1: the handles are not in order");
    last = each.id;
    fresh.sum_of(each.state) += each.size_bytes;
    if (has_holder(each) != (each.holder != 0))
      return refuse(errc::internal, "B1: a handle's holder and state disagree");
    if (each.state != handle_state::granted) continue;
    const auto holder = std::find_if(tenants_.begin(), tenants_.end(),
                                     [&](const auto& one) { return one.number == each.holder; });
    if (holder == tenants_.end()) return refuse(errc::internal, "B1: a holder is not there");
    charges[static_cast<std::size_t>(holder - tenants_.begin())] += each.size_bytes;
    if (each.group != 0 && each.group != holder->group)
      return refuse(errc::internal, "B4: a tenant has another group's bytes");
  }
  if (charges != charges_) return refuse(errc::internal, "B1: a charge is not what is granted");
  return fresh.sums_ == sums_ ? status{}
                              : status{refuse(errc::internal, "B2: the sums are not the handles'")};
}

}  // namespace vmm

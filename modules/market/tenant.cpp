// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module vmm.market;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {
namespace {

// An owner that is there ends a request itself; a lot that is created may be late.
constexpr std::int64_t slack_ns = 100'000'000;

bool is_whole(std::uint64_t bytes) noexcept {
  return bytes != 0 && bytes % market_granule_bytes == 0;
}

// At least what was requested once it is whole, and never more than was wished for.
bool has_good_size(std::span<const market_handle> lot, const market_tenant::wanted& what,
                   bool is_whole) noexcept {
  std::uint64_t sum_bytes = 0;
  for (const market_handle& each : lot) sum_bytes += each.size_bytes();
  return sum_bytes <= what.wish_bytes && (!is_whole || sum_bytes >= what.least_bytes);
}

}  // namespace

held_handle* held_handles::find(std::uint64_t id) noexcept {
  const auto found = std::lower_bound(
      list_.begin(), list_.end(), id,
      [](const held_handle& each, std::uint64_t wanted_id) { return each.handle.id < wanted_id; });
  return found == list_.end() || found->handle.id != id ? nullptr : &*found;
}

held_handle& held_handles::insert(const market_handle& handle) {
  const auto place = std::lower_bound(
      list_.begin(), list_.end(), handle.id,
      [](const held_handle& each, std::uint64_t id) { return each.handle.id < id; });
  return *list_.insert(place, {.handle = handle});
}

void held_handles::erase(const held_handle& gone) noexcept {
  list_.erase(list_.begin() + (&gone - list_.data()));
}

std::uint64_t held_handles::held_bytes() const noexcept {
  std::uint64_t sum_bytes = 0;
  for (const held_handle& each : list_) {
    if (each.state != held_handle::use::imported) sum_bytes += each.handle.size_bytes();
  }
  return sum_bytes;
}

std::vector<market_handle> held_handles::in_use() const {
  std::vector<market_handle> used;
  for (const held_handle& each : list_) {
    if (each.state == held_handle::use::used) used.push_back(each.handle);
  }
  return used;
}

bool held_handles::is_held(std::uint64_t id) const noexcept {
  return std::any_of(list_.begin(), list_.end(),
                     [=](const held_handle& each) { return each.handle.id == id; });
}

bool held_handles::is_used(std::uint64_t id) const noexcept {
  return std::any_of(list_.begin(), list_.end(), [=](const held_handle& each) {
    return each.handle.id == id && each.state == held_handle::use::used;
  });
}

std::vector<market_handle> held_handles::record(std::uint64_t request) {
  std::vector<market_handle> dropped;
  for (held_handle& each : list_) {
    if (each.state != held_handle::use::given || each.request != request) continue;
    each.state = held_handle::use::imported;
    if (each.is_void) dropped.push_back(each.handle);
  }
  return dropped;
}

bool held_handles::is_in_order() const noexcept {
  std::uint64_t last = 0;
  for (const held_handle& each : list_) {
    if (each.handle.id <= last) return false;
    last = each.handle.id;
  }
  return true;
}

market_tenant::pending* market_tenant::pending_list::find(std::uint64_t request) noexcept {
  const auto found =
      std::find_if(begin(), end(), [=](const auto& each) { return each.request == request; });
  return found == end() ? nullptr : &*found;
}

void market_tenant::send(market_message message) {
  // Before the welcome nothing but hello: the inventory will say the rest.
  const bool is_hello = message.kind == market_kind::hello;
  if (stage_ != (is_hello ? tenant_stage::greeting : tenant_stage::open)) return;
  message.epoch = epoch_;
  actions_.push_back({.kind = tenant_action::what::send, .message = message});
}

// ---- connections ---------------------------------------------------------------------

void market_tenant::connected(std::int64_t now_ns) {
  check(stage_ == tenant_stage::alone, "a tenant connects twice");
  tick(now_ns);
  stage_ = tenant_stage::greeting;
  market_message hello;
  hello.kind = market_kind::hello;
  hello.tenant = number_;
  hello.resume = resume_;
  hello.device = self_.device;
  hello.name = self_.name;
  hello.group = self_.group;
  hello.key = self_.secret;
  hello.job = self_.job;
  hello.share = self_.share;
  hello.within_ns = self_.wait_ns;
  send(hello);
}

// Lots that came in part are given; gives that were not recorded are not listed.
void market_tenant::lost(std::int64_t now_ns) {
  if (stage_ != tenant_stage::refused) stage_ = tenant_stage::alone;
  for (pending& each : pending_) {
    if (each.is_granted) continue;
    for (const market_handle& part : each.lot) {
      held_handle* const found = held_.find(part.id);
      check(found != nullptr, "I2: a lot has a handle that is not held");
      found->state = held_handle::use::given;
    }
    each.lot.clear();
  }
  for (held_handle& each : held_.all()) {
    if (each.state == held_handle::use::given) each.state = held_handle::use::imported;
    each.is_void = false;  // a drop comes again
  }
  tick(now_ns);
}

bool market_tenant::greet(const market_message& message, std::int64_t now_ns) {
  if (stage_ != tenant_stage::greeting) return false;
  stage_ = tenant_stage::open;
  epoch_ = message.epoch;
  number_ = message.tenant;
  resume_ = message.resume;
  self_.share = message.share;
  capacity_bytes_ = message.bytes;
  kept_bytes_ = message.unit_bytes;
  market_message list;
  list.kind = market_kind::inventory;
  for (const held_handle& each : held_.all()) {
    if (list.handle_count == market_handles_max) {
      list.more = true;
      send(list);
      list.more = false;
      list.handle_count = 0;
    }
    market_handle& entry = list.handles[list.handle_count++];
    entry = each.handle;
    entry.must_clear = false;
    entry.has_descriptor = false;
    entry.in_use = each.state == held_handle::use::used;
  }
  send(list);
  for (const pending& each : pending_) {
    if (!each.is_granted) send_want(each, now_ns);
  }
  return true;
}

// ---- messages ------------------------------------------------------------------------

void market_tenant::receive(const market_message& message, std::int64_t now_ns) {
  if (stage_ == tenant_stage::alone || stage_ == tenant_stage::refused) return;
  const bool is_first =
      message.kind == market_kind::welcome || message.kind == market_kind::refused;
  const bool is_good = (is_first || message.epoch == epoch_) && dispatch(message, now_ns);
  if (!is_good) {
    lost(now_ns);
    actions_.push_back({.kind = tenant_action::what::close});
  }
  paranoid_check([this] { return validate().has_value(); }, "a message breaks a tenant's state");
}

bool market_tenant::dispatch(const market_message& message, std::int64_t now_ns) {
  if (message.kind == market_kind::welcome) return greet(message, now_ns);
  if (message.kind == market_kind::refused) {
    stage_ = tenant_stage::refused;
    for (const pending& each : std::vector<pending>(pending_)) {
      if (!each.is_granted) end(each.request, &message);
    }
    actions_.push_back({.kind = tenant_action::what::close, .message = message});
    return true;
  }
  if (stage_ != tenant_stage::open) return false;
  switch (message.kind) {
    case market_kind::grant: return take_grant(message);
    case market_kind::denied: end(message.request, &message); return true;
    case market_kind::given:
      for (const market_handle& each : held_.record(message.request))
        actions_.push_back({.kind = tenant_action::what::drop, .handle = each});
      return true;
    case market_kind::ask:
      actions_.push_back(
          {.kind = tenant_action::what::ask, .request = message.request, .message = message});
      return true;
    case market_kind::drop: take_drop(message); return true;
    case market_kind::view:
      self_.share = message.share;
      kept_bytes_ = message.unit_bytes;
      return true;
    default: return false;
  }
}

bool market_tenant::take_grant(const market_message& message) {
  if (message.request > last_request_) return false;
  std::vector<market_handle> late;
  pending* const request = pending_.find(message.request);
  const bool is_wanted = request != nullptr && !request->is_granted;
  for (const market_handle& each : message.handle_list()) {
    held_handle* found = held_.find(each.id);
    if (found != nullptr && found->handle.generation >= each.generation) continue;  // a repetition
    if (found != nullptr && (found->state == held_handle::use::used || found->is_void))
      return false;
    if (found == nullptr) {
      if (!each.has_descriptor) return false;
      found = &held_.insert(each);
    }
    *found = {.handle = each};
    actions_.push_back({.kind = tenant_action::what::keep, .handle = each});
    if (is_wanted) {
      request->lot.push_back(each);
    } else {
      late.push_back(each);
    }
  }
  if (!late.empty()) give(late);
  if (is_wanted && !has_good_size(request->lot, request->what, !message.more)) return false;
  if (is_wanted && !message.more) {
    request->is_granted = true;
    actions_.push_back({.kind = tenant_action::what::granted, .request = message.request});
  }
  return true;
}

void market_tenant::take_drop(const market_message& message) {
  market_message gone;
  gone.kind = market_kind::dropped;
  gone.request = message.request;
  for (const market_handle& each : message.handle_list()) {
    held_handle* const found = held_.find(each.id);
    if (found == nullptr) {
      gone.handles[gone.handle_count++] = each;
      continue;
    }
    found->is_void = true;
    if (found->state == held_handle::use::imported)
      actions_.push_back({.kind = tenant_action::what::drop, .handle = found->handle});
  }
  if (gone.handle_count != 0) send(gone);
}

bool market_tenant::dropped(std::uint64_t id) {
  held_handle* const found = held_.find(id);
  if (found == nullptr || found->state != held_handle::use::imported) return false;
  market_message gone;
  gone.kind = market_kind::dropped;
  gone.handles[gone.handle_count++] = found->handle;
  held_.erase(*found);
  send(gone);
  return true;
}

// ---- requests ------------------------------------------------------------------------

void market_tenant::send_want(const pending& each, std::int64_t now_ns) {
  market_message message;
  message.kind = market_kind::want;
  message.request = each.request;
  message.bytes = each.what.least_bytes;
  message.wish_bytes = each.what.wish_bytes;
  message.unit_bytes = each.what.unit_bytes;
  message.within_ns =
      static_cast<std::uint64_t>(std::max<std::int64_t>(each.deadline_ns - now_ns, 0));
  send(message);
}

std::uint64_t market_tenant::want(const wanted& what, std::int64_t now_ns) {
  check(is_whole(what.least_bytes), "a request of a tenant is not whole granules");
  check(is_whole(what.wish_bytes), "a wish of a tenant is not whole granules");
  check(what.wish_bytes >= what.least_bytes, "a tenant's wish is less than its need");
  const std::int64_t within_ns =
      static_cast<std::int64_t>(std::min<std::uint64_t>(what.within_ns, 3'600'000'000'000));
  pending_.push_back({.request = ++last_request_, .what = what, .deadline_ns = now_ns + within_ns});
  if (stage_ == tenant_stage::open) send_want(pending_.back(), now_ns);
  return last_request_;
}

std::vector<market_handle> market_tenant::take_lot(std::uint64_t request) {
  pending* const found = pending_.find(request);
  if (found == nullptr || !found->is_granted) return {};
  std::vector<market_handle> lot = std::move(found->lot);
  pending_.erase(pending_.begin() + (found - pending_.data()));
  return lot;
}

void market_tenant::end(std::uint64_t request, const market_message* why) {
  pending* const found = pending_.find(request);
  if (found == nullptr) return;
  std::vector<market_handle> parts = std::move(found->lot);
  const bool was_granted = found->is_granted;
  pending_.erase(pending_.begin() + (found - pending_.data()));
  if (!parts.empty()) give(parts);
  if (was_granted || why == nullptr) return;
  actions_.push_back({.kind = tenant_action::what::denied, .request = request, .message = *why});
}

void market_tenant::cancel(std::uint64_t request, const market_message* why) {
  const pending* const found = pending_.find(request);
  if (found == nullptr) return;
  if (!found->is_granted) {
    market_message message;
    message.kind = market_kind::cancel;
    message.request = request;
    send(message);
  }
  end(request, why);
}

void market_tenant::tick(std::int64_t now_ns) {
  for (std::size_t i = 0; i < pending_.size();) {
    const pending& each = pending_[i];
    const std::int64_t late_ns = stage_ == tenant_stage::open ? slack_ns : 0;
    if (each.is_granted || now_ns < each.deadline_ns + late_ns) {
      ++i;
      continue;
    }
    const std::uint64_t request = each.request;
    market_message why;
    why.kind = market_kind::denied;
    why.reason = market_reason::deadline;
    why.bytes = capacity_bytes_;
    why.wish_bytes = each.what.least_bytes;
    cancel(request, &why);
  }
}

std::int64_t market_tenant::next_deadline_ns() const noexcept {
  std::int64_t next = std::numeric_limits<std::int64_t>::max();
  const std::int64_t late_ns = stage_ == tenant_stage::open ? slack_ns : 0;
  for (const pending& each : pending_) {
    if (!each.is_granted) next = std::min(next, each.deadline_ns + late_ns);
  }
  return next;
}

// ---- giving --------------------------------------------------------------------------

void market_tenant::give(std::span<const market_handle> handles) {
  market_message message;
  message.kind = market_kind::give;
  const auto flush = [&] {
    if (message.handle_count == 0) return;
    message.request = last_give_;
    send(message);
    message.handle_count = 0;
  };
  ++last_give_;
  for (const market_handle& each : handles) {
    held_handle* const found = held_.find(each.id);
    if (found == nullptr || found->state != held_handle::use::used ||
        found->handle.generation != each.generation)
      continue;
    // Without an owner it is given by its absence from the next inventory.
    found->state =
        stage_ == tenant_stage::open ? held_handle::use::given : held_handle::use::imported;
    found->request = last_give_;
    message.handles[message.handle_count] = found->handle;
    message.handles[message.handle_count++].must_clear = each.must_clear;
    if (message.handle_count < market_handles_max) continue;
    flush();
    ++last_give_;
  }
  flush();
}

void market_tenant::cannot(const refusal& kept) {
  market_message message;
  message.kind = market_kind::cannot;
  message.request = kept.request;
  message.bytes = kept.bytes;
  message.reason = market_reason::busy;
  send(message);
}

void market_tenant::leave() {
  market_message message;
  message.kind = market_kind::leave;
  send(message);
  held_.clear();
}

// ---- state ---------------------------------------------------------------------------

status market_tenant::validate() const noexcept {
  if (!held_.is_in_order()) return refuse(errc::internal, "I2: a handle is held twice");
  for (const pending& each : pending_) {
    if (each.request > last_request_)
      return refuse(errc::internal, "I1: a request waits that was not made");
    for (const market_handle& part : each.lot) {
      if (!held_.is_used(part.id))
        return refuse(errc::internal, "I1: a lot has a handle that is not held");
    }
  }
  return {};
}

}  // namespace vmm

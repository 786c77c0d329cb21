// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module vmm.multi_device;

import vmm.backend;
import vmm.base;
import vmm.manager;
import vmm.std;
import vmm.stream;

namespace vmm {

// ---- properties required of memory -------------------------------------------------------

result<manager_options> registrable_options(driver_interface& driver, const manager_options& base) {
  manager_options wanted = base;
  const features& can = driver.feature_set();
  if (!can.export_posix_fd && !can.export_fabric)
    return refuse(errc::not_supported,
                  "this backend has no kind of shared memory that can be registered");
  wanted.shareable = can.export_posix_fd ? share_kind::posix_fd : share_kind::none;
  wanted.rdma_capable = can.rdma;
  wanted.policy.chunk_bytes = 0;     // one handle for all that is missing,
  wanted.policy.fragment_ratio = 1;  // and none of others' sizes
  if (can.export_fabric) {
    physical_request like;
    like.where = base.placement.value_or(driver.home());
    like.rdma_capable = wanted.rdma_capable;
    like.shareable = static_cast<share_kind>(static_cast<unsigned>(wanted.shareable) |
                                             static_cast<unsigned>(share_kind::fabric));
    const result<physical_properties> granted = probe_memory(driver, like);
    const bool is_refused = !granted && (granted.error().code == errc::not_permitted ||
                                         granted.error().code == errc::not_supported ||
                                         granted.error().code == errc::invalid_argument);
    if (!granted && !is_refused) return granted.error();
    if (granted) wanted.shareable = like.shareable;
  }
  if (wanted.shareable == share_kind::none)
    return refuse(errc::not_supported, "this process cannot share memory");
  check(wanted.policy.fragment_ratio == 1, "a block may be made of several handles");
  return wanted;
}

result<registration_report> check_registrable(manager& owner, address at) {
  const result<std::vector<memory_segment>> listed = all_segments(owner, at);
  if (!listed) return listed.error();
  registration_report report;
  report.segment_count = listed->size();
  const result<physical_properties> granted = granted_of(owner.driver(), *listed);
  if (!granted && granted.error().code == errc::foreign_error) return report;
  if (!granted) return granted.error();
  report.shareable = granted->shareable;
  report.rdma_capable = granted->rdma_capable;
  report.on_device = granted->where.kind == location::place::device;
  physical_request like;
  like.where = granted->where;
  like.shareable = granted->shareable;
  like.rdma_capable = granted->rdma_capable;
  const result<granularity> unit = owner.driver().query_granularity(like);
  if (!unit) return unit.error();
  check(unit->recommended_bytes != 0, "a granule has no bytes");
  report.is_aligned = listed->front().range.base.value % unit->recommended_bytes == 0;
  for (const memory_segment& each : *listed) {
    if (each.range.size_bytes % unit->recommended_bytes != 0) report.is_aligned = false;
  }
  return report;
}

// ---- a pool's mappings ---------------------------------------------------------------

result<std::unique_ptr<pool_registrations>> pool_registrations::watch(
    stream_pool& pool, const registration_hooks& hooks) {
  check(hooks.enter != nullptr && hooks.leave != nullptr, "registration has two hooks");
  std::unique_ptr<pool_registrations> made{new (std::nothrow) pool_registrations(pool, hooks)};
  if (made == nullptr)
    return refuse(errc::out_of_host_memory, "no host memory is left for registrations");
  const result<remap_subscription> subscribed = pool.remaps().subscribe(*made);
  if (!subscribed) return subscribed.error();
  made->subscription_ = *subscribed;
  check(made->subscription_ != remap_subscription::none, "a subscription has no number");
  return made;
}

pool_registrations::~pool_registrations() {
  if (subscription_ != remap_subscription::none) (void)pool_.remaps().unsubscribe(subscription_);
  for (const auto& [base, size_bytes] : ranges_) {
    check(size_bytes > 0, "a range without bytes is registered");
    hooks_.leave(hooks_.context, {{base}, size_bytes});
  }
}

void pool_registrations::before_change(const remap_notice& notice) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = ranges_.find(notice.range.base.value);
  if (found == ranges_.end()) return;  // notified before, or never entered
  check(found->second == notice.range.size_bytes, "a mapping changes that has another size");
  hooks_.leave(hooks_.context, notice.range);
  ranges_.erase(found);
}

void pool_registrations::after_change(const remap_notice& notice) noexcept {
  check(notice.kind == remap_kind::mapped, "I1: a notification came after its change");
  const std::lock_guard<std::mutex> lock(mutex_);
  try {
    const auto made = ranges_.emplace(notice.range.base.value, notice.range.size_bytes);
    check(made.second, "I2: a mapping is registered twice");
    if (hooks_.enter(hooks_.context, notice.range)) return;
    ranges_.erase(made.first);
  } catch (const std::bad_alloc&) {  // counted: the range stays unregistered
  }
  ++refused_count_;
}

std::size_t pool_registrations::size() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return ranges_.size();
}

std::uint64_t pool_registrations::refused_count() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return refused_count_;
}

// ---- a manager's blocks --------------------------------------------------------------

registered_blocks::registered_blocks(manager& owner, const registration_hooks& hooks) noexcept
    : owner_(owner), owner_use_(use_of::count_of(owner)), hooks_(hooks) {
  check(hooks.enter != nullptr && hooks.leave != nullptr, "registration has two hooks");
  owner_.suspension().listen(*this);
}

registered_blocks::~registered_blocks() {
  owner_.suspension().ignore(*this);
  if (is_away_) return;
  for (const auto& [base, size_bytes] : ranges_) {
    check(size_bytes > 0, "a range without bytes is registered");
    hooks_.leave(hooks_.context, {{base}, size_bytes});
  }
}

void registered_blocks::memory_leaves() noexcept {
  check(!is_away_, "memory is removed twice");
  for (const auto& [base, size_bytes] : ranges_) hooks_.leave(hooks_.context, {{base}, size_bytes});
  is_away_ = true;
}

void registered_blocks::memory_returned() noexcept {
  if (!std::exchange(is_away_, false)) return;  // it was suspended before this object was made
  std::erase_if(ranges_, [this](const auto& each) {
    check(each.second > 0, "a range without bytes is registered");
    return !hooks_.enter(hooks_.context, {{each.first}, each.second});
  });
}

status registered_blocks::enter(address at) {
  const result<range_info> found = owner_.find(at);
  if (!found) return found.error();
  check(found->base == at, "a block is registered from its base on");
  try {
    const auto made = ranges_.emplace(at.value, found->sizes.mapped_bytes);
    check(made.second, "I2: a block is registered twice");
    if (is_away_) return {};
    const status entered = hooks_.enter(hooks_.context, {at, found->sizes.mapped_bytes});
    if (!entered) ranges_.erase(made.first);
    return entered;
  } catch (const std::bad_alloc&) {
    return refuse(errc::out_of_host_memory, "no host memory is left for registrations");
  }
}

void registered_blocks::leave(address at) noexcept {
  const auto found = ranges_.find(at.value);
  if (found == ranges_.end()) return;
  check(found->second > 0, "a range without bytes is registered");
  if (!is_away_) hooks_.leave(hooks_.context, {at, found->second});
  ranges_.erase(found);
}

result<address> registered_blocks::allocate(const allocate_request& request) {
  const result<address> made = owner_.allocate(request);
  if (!made) return made;
  const status entered = enter(*made);
  if (entered) return made;
  check(!is_registered(*made), "a block is registered that was refused");
  (void)owner_.free(*made);
  return entered.error();
}

result<address> registered_blocks::resize(const resize_request& request) {
  const bool was_registered = is_registered(request.at);
  leave(request.at);
  const result<address> resized = owner_.resize(request);
  const address now = resized ? *resized : request.at;
  check(!is_registered(now), "I1: a block is registered while it changes");
  if (was_registered) (void)enter(now);
  return resized;
}

status registered_blocks::free(address at) {
  const bool was_registered = is_registered(at);
  leave(at);
  status freed = owner_.free(at);
  if (!freed && was_registered) (void)enter(at);
  check(!freed || !is_registered(at), "a block that was freed is registered");
  return freed;
}

bool registered_blocks::is_registered(address at) const { return ranges_.contains(at.value); }

}  // namespace vmm

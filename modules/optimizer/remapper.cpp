// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module vmm.optimizer;

import vmm.backend;
import vmm.base;
import vmm.physical;
import vmm.std;
import vmm.timeline;

namespace vmm {

remap_outcome remapper::checked(const mapping_plan& plan, const remap_outcome& outcome) noexcept {
  check(outcome.mapped_count <= plan.memories.size(), "I2: more pieces are mapped than exist");
  check(!outcome.of_new || outcome.lost, "a new plan is mapped although nothing was lost");
  return outcome;
}

// ---- rights of single mappings ---------------------------------------------------------

result<std::unique_ptr<memory_rights>> memory_rights::copy_of(const memory_rights* before,
                                                              std::size_t count) noexcept {
  std::unique_ptr<memory_rights> made{new (std::nothrow) memory_rights};
  if (made == nullptr)
    return refuse(errc::out_of_host_memory, "no host memory is left for a block's rights");
  const std::size_t before_count = before == nullptr ? 0 : before->rows_.size();
  if (status room = reserve_more(made->rows_, before_count + count); !room) return room.error();
  if (before != nullptr)
    made->rows_.insert(made->rows_.end(), before->rows_.begin(), before->rows_.end());
  return made;
}

const grant_list* memory_rights::of(const physical_memory& memory) const noexcept {
  const auto found = std::find_if(rows_.begin(), rows_.end(),
                                  [&](const row& each) { return each.memory == &memory; });
  return found == rows_.end() ? nullptr : &found->rights;
}

void memory_rights::set(const physical_memory& memory, const grant_list& rights) noexcept {
  const auto found = std::find_if(rows_.begin(), rows_.end(),
                                  [&](const row& each) { return each.memory == &memory; });
  if (found != rows_.end()) {
    found->rights = rights;
    return;
  }
  check(rows_.size() < rows_.capacity(), "memory has rights without room for them");
  rows_.push_back({&memory, rights});
}

void memory_rights::keep_only(std::span<physical_memory* const> memories) noexcept {
  std::erase_if(rows_, [&](const row& each) {
    return std::find(memories.begin(), memories.end(), each.memory) == memories.end();
  });
  check(rows_.size() <= memories.size(), "memory has rights twice");
}

// ---- rights ------------------------------------------------------------------------

grant_list remapper::rights() const {
  const std::lock_guard<std::mutex> lock(rights_mutex_);
  check(!grants_.empty(), "memory is mapped without access");
  return grants_;
}

grant_list remapper::effective(const grant_list* own_rights) const {
  grant_list merged = rights();
  if (own_rights == nullptr) return merged;
  for (const access_grant& each : own_rights->all()) {
    const bool fits = merged.set(each);
    check(fits, "a range has rights for more locations than a list can hold");
  }
  return merged;
}

void remapper::forget_others(const grant_list& grants) {
  const std::lock_guard<std::mutex> lock(rights_mutex_);
  check(grants.all().size() <= grants_.all().size(), "a list of rights grows when it is restored");
  grants_ = grants;
}

bool remapper::fit(const grant_list& all, const grant_list* own_rights) noexcept {
  check(!all.empty(), "memory is mapped without access");
  if (own_rights == nullptr) return true;
  grant_list merged = all;
  return std::all_of(own_rights->all().begin(), own_rights->all().end(),
                     [&](const access_grant& each) { return merged.set(each); });
}

status remapper::set_rights(const grant_list& grants) {
  check(!grants.empty(), "memory is mapped without access");
  const std::lock_guard<std::mutex> lock(rights_mutex_);
  grant_list named = grants;
  for (const access_grant& each : grants_.all()) {
    const bool is_named =
        std::any_of(grants.all().begin(), grants.all().end(),
                    [&](const access_grant& g) { return g.grantee == each.grantee; });
    if (!is_named && !named.set({each.grantee, access::none}))
      return refuse(errc::invalid_argument, "rights for more locations than a list can hold");
  }
  grants_ = named;
  version_.fetch_add(1, std::memory_order_release);
  return {};
}

status remapper::give_access(address_range range, const grant_list* own_rights) {
  check(range.base.value != 0 && !range.empty(), "access is given to no memory");
  const grant_list given = effective(own_rights);
  return driver_->set_access(range, given.all());
}

// One call for neighbours of equal rights. A fresh mapping has none yet: those that may do nothing
// need not be named.
status remapper::give_each(const mapping_plan& plan, bool is_fresh) {
  const auto has_rights_of = [&](const physical_memory& a, const physical_memory& b) {
    const grant_list* const one = plan.rights_of(a);
    const grant_list* const other = plan.rights_of(b);
    return one == other || (one != nullptr && other != nullptr && *one == *other);
  };
  address at = plan.at;
  for (std::size_t i = 0; i < plan.memories.size();) {
    const physical_memory& first = *plan.memories[i];
    address end = at;
    for (; i < plan.memories.size() && has_rights_of(first, *plan.memories[i]); ++i)
      end = end + plan.memories[i]->size_bytes;
    const grant_list given = effective(plan.rights_of(first));
    const grant_list named = is_fresh ? given.granted() : given;
    const status allowed = driver_->set_access({at, end - at}, named.all());
    if (!allowed) return allowed;
    at = end;
  }
  check(at == plan.at + plan.size_bytes(), "I3: a mapping of a plan has no rights");
  return {};
}

// ---- mappings ----------------------------------------------------------------------

remap_outcome remapper::map(const mapping_plan& plan) {
  check(!plan.memories.empty(), "a mapping plan without pieces");
  check(plan.at.value != 0, "a mapping plan without an address");
  for (const physical_memory* part : plan.memories) {
    const status ordered =
        plan.is_named ? time_.order(plan.stream, part->last_use)
                      : time_.order_unnamed(plan.stream, plan.stream_identity, part->last_use);
    if (!ordered) return {ordered, 0};
  }
  std::size_t mapped_count = 0;
  address at = plan.at;
  for (physical_memory* part : plan.memories) {
    check(part->handle != physical_handle::none && part->size_bytes > 0, "a piece without memory");
    const status mapped = driver_->map({at, part->size_bytes, part->handle, 0});
    if (!mapped) return undo(plan, mapped_count, mapped);
    memory_.add_mapping(*part);
    ++mapped_count;
    at = at + part->size_bytes;
  }
  check(at == plan.at + plan.size_bytes(), "the pieces are not side by side");
  const status allowed = give_each(plan, true);
  if (!allowed) return undo(plan, mapped_count, allowed);
  check(mapped_count == plan.memories.size(), "I1: a piece of a plan was not mapped");
  return checked(plan, {status{}, mapped_count});
}

remap_outcome remapper::unmap(const mapping_plan& plan) {
  if (plan.memories.empty()) return {status{}, 0};
  check(plan.at.value != 0, "a range without an address is unmapped");
  if (driver_->feature_set().spanning_unmap || plan.memories.size() == 1) {
    const status undone = driver_->unmap({plan.at, plan.size_bytes()});
    if (!undone) return {undone, plan.memories.size()};
    for (physical_memory* part : plan.memories) memory_.drop_mapping(*part);
    return {status{}, 0};
  }
  address end = plan.at + plan.size_bytes();
  for (std::size_t left_count = plan.memories.size(); left_count > 0; --left_count) {
    physical_memory& part = *plan.memories[left_count - 1];
    const address_range range{address{end.value - part.size_bytes}, part.size_bytes};
    if (status undone = driver_->unmap(range); !undone) return {undone, left_count};
    memory_.drop_mapping(part);
    end = range.base;
  }
  check(end == plan.at, "the pieces unmapped are not those of the plan");
  return {status{}, 0};
}

remap_outcome remapper::detach(const mapping_plan& plan) {
  const remap_outcome undone = unmap(plan);
  if (undone.result) return undone;
  const remap_outcome restored = restore(plan, undone.mapped_count);
  check(restored.mapped_count >= undone.mapped_count, "restoring has undone more");
  return checked(plan, {undone.result, restored.mapped_count, !restored.result});
}

remap_outcome remapper::exchange(const mapping_plan& old_plan, const mapping_plan& new_plan) {
  check(!old_plan.memories.empty() && !new_plan.memories.empty(),
        "a plan without pieces is exchanged");
  const remap_outcome undone = detach(old_plan);
  if (undone.lost) return {contents_lost(), undone.mapped_count, true};
  if (!undone.result) return undone;
  check(undone.mapped_count == 0, "an undone plan is mapped");
  const remap_outcome done = map(new_plan);
  if (done.result) return done;
  if (done.mapped_count > 0) return {contents_lost(), done.mapped_count, true, true};
  const remap_outcome restored = restore(old_plan, 0);
  if (restored.result) return {done.result, restored.mapped_count};
  return {contents_lost(), restored.mapped_count, true};
}

remap_outcome remapper::restore(const mapping_plan& plan, std::size_t standing_count) {
  check(standing_count <= plan.memories.size(), "I2: more pieces are mapped than exist");
  if (standing_count == plan.memories.size()) return {status{}, standing_count};
  const mapping_plan standing{plan.at, plan.memories.first(standing_count), plan.stream,
                              plan.own_rights};
  mapping_plan missing = plan;
  missing.at = plan.at + standing.size_bytes();
  missing.memories = plan.memories.subspan(standing_count);
  remap_outcome again = map(missing);
  for (int left = undo_attempts - 1; left > 0 && !again.result && again.mapped_count == 0; --left)
    again = map(missing);
  return checked(plan, {again.result, standing_count + again.mapped_count});
}

remap_outcome remapper::undo(const mapping_plan& plan, std::size_t mapped_count,
                             const status& cause) {
  check(!cause, "a plan that was mapped is undone");
  check(mapped_count <= plan.memories.size(), "I2: more pieces are mapped than exist");
  std::size_t left_count = mapped_count;
  for (int attempt = 0; attempt < undo_attempts && left_count > 0; ++attempt) {
    const mapping_plan left{plan.at, plan.memories.first(left_count), plan.stream, nullptr};
    left_count = unmap(left).mapped_count;
  }
  return checked(plan, {cause, left_count});
}

}  // namespace vmm

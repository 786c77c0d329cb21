// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include "../base/thread_annotations.h"

module vmm.suspend;

import vmm.backend;
import vmm.base;
import vmm.manager;
import vmm.optimizer;
import vmm.physical;
import vmm.std;
import vmm.stream;

namespace vmm {

namespace {

constexpr error no_list_memory =
    refuse(errc::out_of_host_memory, "no host memory is left for a list of regions");

// A resume() that would find nothing to do.
constexpr error suspended_elsewhere =
    refuse(errc::in_use,
           "another suspender has suspended the memory: resume it there; if that one was closed, "
           "remove the allocator here, add it again, and resume it");

using all_regions = std::vector<std::unique_ptr<suspended_region>>;

const suspended_region* find_tag(const all_regions& regions, std::string_view tag) noexcept {
  const auto found = std::find_if(regions.begin(), regions.end(),
                                  [&](const auto& each) { return each->tag == tag; });
  return found == regions.end() ? nullptr : found->get();
}

status check_tags(const all_regions& regions, std::span<const std::string_view> tags) noexcept {
  for (const std::string_view tag : tags) {
    if (find_tag(regions, tag) == nullptr)
      return refuse(errc::invalid_argument, "no region has this tag");
  }
  return {};
}

// Without tags every region is.
bool is_named(const suspended_region& region, std::span<const std::string_view> tags) noexcept {
  return tags.empty() || std::find(tags.begin(), tags.end(), region.tag) != tags.end();
}

bool has_suspended(const all_regions& regions, std::string_view tag) noexcept {
  check(find_tag(regions, tag) != nullptr, "a query for a tag that no region has");
  return std::any_of(regions.begin(), regions.end(),
                     [&](const auto& each) { return each->tag == tag && each->is_suspended; });
}

bool has_offered(const all_regions& regions, std::string_view tag) noexcept {
  return std::any_of(regions.begin(), regions.end(),
                     [&](const auto& each) { return each->tag == tag && each->offers != nullptr; });
}

// The first region with the tag (or any, without one) that another suspender has suspended.
const suspended_region* find_elsewhere(const all_regions& regions, std::string_view tag) noexcept {
  const auto found = std::find_if(regions.begin(), regions.end(), [&](const auto& each) {
    const bool is_meant = tag.empty() || each->tag == tag;
    return is_meant && !each->is_suspended &&
           each->allocator->phase() == suspension_phase::suspended;
  });
  return found == regions.end() ? nullptr : found->get();
}

const char* default_directory() noexcept {
  const char* const given = environment_text("TMPDIR");
  return given != nullptr ? given : "/tmp";
}

}  // namespace

status suspend_options::validate() const {
  if (directory.empty() && tier != backup_tier::file) return {};
  return check_directory(directory.empty() ? default_directory() : directory.c_str());
}

suspender::suspender(const suspend_options& options) : options_(options) {
  if (options_.directory.empty()) options_.directory = default_directory();
  check(!options_.directory.empty(), "suspend_options::directory is not set");
}

suspender::~suspender() {
  if (!made_in_.is_here()) {
    leave_parts_behind(regions_);
    return;
  }
  const sync::lock_guard<sync::mutex> lock(mutex_);
  for (const auto& each : regions_) {
    each->offer.leave();
    check(!each->is_begun, "a suspender is destroyed while a region is being changed");
    forget_backup(*each);
    if (each->has_stream) (void)each->driver.destroy_stream(each->stream);
    each->leave();
  }
  (void)arena_.release_unused(nullptr);
}

void suspender::forget_backup(suspended_region& of) noexcept {
  if (of.backup == nullptr) return;
  check(of.backup->is_taken, "a region has a backup that it did not take");
  of.backup->is_busy = !of.has_finished_copies();
  arena_.give_back(*std::exchange(of.backup, nullptr));
  of.kept.clear();
}

// ---- which regions there are ---------------------------------------------------------

status suspender::add_region(std::unique_ptr<suspended_region>&& fresh, const suspend_region& how) {
  if (how.tag.empty()) return refuse(errc::invalid_argument, "a region has a tag");
  if (how.contents != suspend_contents::discard && !fresh->driver.feature_set().copy)
    return refuse(errc::not_supported, "this driver cannot copy: contents can only be discarded");
  for (const auto& each : regions_) {
    if (each->object == fresh->object)
      return refuse(errc::in_use, "the allocator is a region of this suspender already");
  }
  fresh->tag = how.tag;
  fresh->contents = how.contents;
  const std::uint64_t order = fresh->allocator->lock_order();
  const auto behind = std::find_if(regions_.begin(), regions_.end(), [&](const auto& each) {
    return each->allocator->lock_order() > order;
  });
  const auto added = regions_.insert(behind, std::move(fresh));
  (*added)->take_left();
  check(added == regions_.begin() || added[-1]->allocator->lock_order() < order,
        "suspend I3: a region is locked out of order");
  return {};
}

status suspender::add(stream_pool& pool, const suspend_region& how) {
  if (!made_in_.is_here()) return refuse_forked();
  const sync::lock_guard<sync::mutex> lock(mutex_);
  try {
    return add_region(std::make_unique<suspended_region>(pool.suspension(), &pool), how);
  } catch (const std::bad_alloc&) {
    return no_list_memory;
  }
}

status suspender::add(manager& blocks, const suspend_region& how) {
  if (!made_in_.is_here()) return refuse_forked();
  const sync::lock_guard<sync::mutex> lock(mutex_);
  try {
    return add_region(std::make_unique<suspended_region>(blocks.suspension(), &blocks), how);
  } catch (const std::bad_alloc&) {
    return no_list_memory;
  }
}

status suspender::remove(const stream_pool& pool) { return remove_region(&pool); }
status suspender::remove(const manager& blocks) { return remove_region(&blocks); }

status suspender::remove_region(const void* object) {
  if (!made_in_.is_here()) return refuse_forked();
  const sync::lock_guard<sync::mutex> lock(mutex_);
  const auto found = std::find_if(regions_.begin(), regions_.end(),
                                  [&](const auto& each) { return each->object == object; });
  if (found == regions_.end())
    return refuse(errc::invalid_argument, "the allocator is not a region of this suspender");
  suspended_region& gone = **found;
  if (gone.is_suspended) return refuse(errc::in_use, "the region is suspended: resume it first");
  check(gone.backup == nullptr && !gone.is_begun, "a region is removed while it is being changed");
  const bool is_used = std::any_of(regions_.begin(), regions_.end(), [&](const auto& each) {
    return each.get() != &gone && &each->driver == &gone.driver;
  });
  if (!is_used) {  // first: a region that could not be removed can be removed later
    if (status released = arena_.release_unused(&gone.driver); !released) return released;
  }
  if (gone.has_stream) {
    if (status destroyed = gone.driver.destroy_stream(gone.stream); !destroyed) return destroyed;
    gone.has_stream = false;
  }
  if (obstacle_ == &gone) obstacle_ = nullptr;
  regions_.erase(found);
  check(obstacle_ == nullptr || obstacle_->object != object, "a removed region is named");
  return {};
}

// The regions with these tags that the call acts on. A tag with a suspended region cannot be
// suspended again; a tag with any suspended region can be resumed.
status suspender::choose(std::span<const std::string_view> tags, bool is_suspended,
                         region_list& out) {
  obstacle_ = nullptr;
  out.reserve(regions_.size());
  if (status known = check_tags(regions_, tags); !known) return known;
  for (const std::string_view tag : tags) {
    if (!is_suspended || has_suspended(regions_, tag) || has_offered(regions_, tag)) continue;
    obstacle_ = find_elsewhere(regions_, tag);
    if (obstacle_ != nullptr) return suspended_elsewhere;
    obstacle_ = find_tag(regions_, tag);
    return refuse(errc::invalid_argument, "no region with this tag is suspended");
  }
  for (const auto& each : regions_) {
    if (!is_named(*each, tags)) continue;
    if (each->is_suspended == is_suspended) {
      out.push_back(each.get());
      continue;
    }
    if (tags.empty() || is_suspended) continue;
    obstacle_ = each.get();
    return refuse(errc::in_use, "a region with this tag is suspended already");
  }
  check(out.size() <= regions_.size(), "more regions are named than exist");
  if (is_suspended && out.empty()) obstacle_ = find_elsewhere(regions_, {});
  return obstacle_ == nullptr ? status{} : suspended_elsewhere;
}

// ---- suspend -------------------------------------------------------------------------

result<suspend_report> suspender::suspend(const suspend_request& request) {
  if (!made_in_.is_here()) return refuse_forked();
  const sync::lock_guard<sync::mutex> lock(mutex_);
  region_list regions;
  try {
    if (status chosen = choose(request.tags, false, regions); !chosen) return chosen.error();
    status done = prepare(request, regions);
    if (done) done = detach(regions);
    if (done) return finish(regions);
    abandon(regions);
    return done.error();
  } catch (const std::bad_alloc&) {
    abandon(regions);
    return no_list_memory;
  }
}

status suspender::prepare(const suspend_request& request, const region_list& regions) {
  for (suspended_region* each : regions) {
    obstacle_ = each;
    const relaxed_capture quiet(each->driver);
    each->promised = request.contents.value_or(each->contents);
    check(!each->is_suspended && each->backup == nullptr, "a region is suspended twice");
    if (each->promised != suspend_contents::discard && !each->driver.feature_set().copy)
      return refuse(errc::not_supported, "this driver cannot copy: contents can only be discarded");
    if (status begun = each->begin_suspend(request.streams); !begun) return begun;
    if (status saved = save(*each); !saved) return saved;
  }
  obstacle_ = nullptr;
  return {};
}

// The contents of a region whose work has finished.
status suspender::save(suspended_region& of) {
  if (of.parts.empty()) return {};
  const bool is_kept = of.promised == suspend_contents::keep;
  const bool writes = of.promised != suspend_contents::discard || options_.verify;
  if (writes) {
    if (status provided = of.provide_stream(); !provided) return provided;
  }
  if (!is_kept) return {};
  if (!of.is_readable()) {
    return refuse(errc::not_permitted,
                  "the driver's home has no access to a block: its contents cannot be kept");
  }
  const backup_arena::wanted want{of.driver, options_.tier, sum_of(of.parts),
                                  options_.directory.c_str()};
  const result<backup_space*> taken = arena_.take(want);
  if (!taken) return taken.error();
  of.backup = *taken;
  check(of.backup->size_bytes >= want.size_bytes, "a backup is too small");
  if (status copied = of.copy_out(); !copied) return copied;
  return options_.verify ? of.make_sums() : status{};
}

status suspender::detach(const region_list& regions) {
  for (suspended_region* each : regions) {
    check(each->is_begun, "a region is removed whose change was not begun");
    obstacle_ = each;
    const relaxed_capture quiet(each->driver);
    each->announce(suspension_phase::suspended);
    if (status detached = detach_parts(each->core(), each->parts); !detached) return detached;
  }
  obstacle_ = nullptr;
  return {};
}

// The suspension failed: all regions are mapped again. A region that the driver refuses to map, or
// whose copy out cannot be waited for, is suspended with its memory and its contents.
void suspender::abandon(const region_list& regions) noexcept {
  for (suspended_region* each : regions) {
    if (!each->is_begun) continue;
    const relaxed_capture quiet(each->driver);
    const bool has_copied = each->has_finished_copies();
    const bool is_back = try_to_attach(each->core(), each->parts) && has_copied &&
                         try_to_close([&] { return each->clear_freed(); });
    check(!is_back || are_attached(each->parts), "I1: a region is resumed without its memory");
    if (!has_copied && !each->is_announced) each->announce(suspension_phase::suspended);
    if (is_back) each->allocator->memory_is_back();
    if (is_back) each->announce(suspension_phase::running);
    each->is_intact = !is_back;
    if (has_copied) forget_backup(*each);
    each->end_suspend(!is_back);
  }
}

// From here on no step fails: memory that the driver refuses to release stays, and is reported.
suspend_report suspender::finish(const region_list& regions) {
  suspend_report report;
  report.region_count = regions.size();
  const auto retain = [&](const suspended_region& of, std::uint64_t size_bytes, retain_reason why) {
    if (size_bytes == 0) return;
    try {
      report.retained.push_back({of.tag, size_bytes, why});
    } catch (const std::bad_alloc&) {
      // The report leaves this region out.
    }
  };
  for (suspended_region* each : regions) {
    const relaxed_capture quiet(each->driver);
    device_core& core = each->core();
    const std::uint64_t all_bytes = sum_of(each->parts);
    const std::uint64_t kept_bytes = release_parts(core, each->parts);
    const physical_statistics now = core.memory.statistics();
    check(now.held_bytes >= kept_bytes, "more memory is retained than is held");
    report.suspended_bytes += all_bytes - kept_bytes;
    report.backup_bytes += each->backup != nullptr ? all_bytes : 0;
    const std::uint64_t rest_bytes = now.held_bytes - kept_bytes;
    const std::uint64_t cached_bytes = std::min(now.cached_bytes, rest_bytes);
    retain(*each, kept_bytes, retain_reason::refused);
    retain(*each, cached_bytes, retain_reason::cached);
    retain(*each, rest_bytes - cached_bytes, retain_reason::unfinished);
    each->is_intact = false;
    each->end_suspend(true);
  }
  return report;
}

// ---- offers --------------------------------------------------------------------------

// On the owner's thread (vmm.optimizer:relief), which never waits for a thread that itself waits
// for memory of other tenants.
std::uint64_t suspended_region::give() noexcept {
  suspender& all = *offers;
  if (!all.mutex_.try_lock()) return 0;
  const suspended_region* const obstacle = all.obstacle_;
  std::uint64_t given_bytes = 0;
  suspender::region_list alone;
  try {
    if (!is_suspended) alone.push_back(this);
    if (all.prepare({}, alone) && all.detach(alone))
      given_bytes = all.finish(alone).suspended_bytes;
    else
      all.abandon(alone);
  } catch (const std::bad_alloc&) {
    all.abandon(alone);
  }
  all.obstacle_ = obstacle;
  all.mutex_.unlock();
  return given_bytes;
}

status suspender::offer(std::span<const std::string_view> tags) {
  if (!made_in_.is_here()) return refuse_forked();
  const sync::lock_guard<sync::mutex> lock(mutex_);
  if (status known = check_tags(regions_, tags); !known) return known;
  const auto give = [](void* of, std::uint64_t) noexcept {
    return static_cast<suspended_region*>(of)->give();
  };
  for (const auto& each : regions_) {
    if (!is_named(*each, tags) || each->is_suspended || each->offers != nullptr) continue;
    each->offers = this;
    each->offer.enter(
        each->relief().key(), {each.get(), give},
        each->contents == suspend_contents::keep ? relief_rank::keep : relief_rank::discard);
  }
  return {};
}

// ---- resume --------------------------------------------------------------------------

status suspender::resume(std::span<const std::string_view> tags) {
  if (!made_in_.is_here()) return refuse_forked();
  const sync::lock_guard<sync::mutex> lock(mutex_);
  region_list regions;
  try {
    if (status chosen = choose(tags, true, regions); !chosen) return chosen;
    const status done = resumption(regions, options_.verify, obstacle_).run();
    if (!done) return done;
  } catch (const std::bad_alloc&) {
    return no_list_memory;
  }
  for (suspended_region* each : regions) each->allocator->memory_is_back();
  for (suspended_region* each : regions) {
    each->announce(suspension_phase::running);
    each->end_resume(true);
    each->is_intact = false;
    forget_backup(*each);
    check(!each->is_suspended, "a resumed region is still suspended");
  }
  for (const auto& each : regions_) {  // no thread takes an offer now
    if (!is_named(*each, tags) || each->offers == nullptr) continue;
    each->offer.leave();
    each->offers = nullptr;
  }
  return {};
}

// ---- looking -------------------------------------------------------------------------

result<bool> suspender::is_suspended(std::string_view tag) const {
  if (!made_in_.is_here()) return refuse_forked();
  const sync::lock_guard<sync::mutex> lock(mutex_);
  if (find_tag(regions_, tag) == nullptr)
    return refuse(errc::invalid_argument, "no region has this tag");
  return has_suspended(regions_, tag);
}

result<std::string> suspender::last_obstacle() const {
  if (!made_in_.is_here()) return refuse_forked();
  const sync::lock_guard<sync::mutex> lock(mutex_);
  try {
    return obstacle_ == nullptr ? std::string{} : obstacle_->tag;
  } catch (const std::bad_alloc&) {
    return no_list_memory;
  }
}

bool suspender::keeps_contents() const noexcept {
  if (!made_in_.is_here()) return false;
  const sync::lock_guard<sync::mutex> lock(mutex_);
  return std::any_of(regions_.begin(), regions_.end(), [](const auto& each) {
    check(each->backup == nullptr || each->is_suspended, "a running region has a backup");
    return each->backup != nullptr || (each->is_intact && each->promised == suspend_contents::keep);
  });
}

std::uint64_t suspender::backup_bytes() const noexcept {
  if (!made_in_.is_here()) return 0;
  const sync::lock_guard<sync::mutex> lock(mutex_);
  check(arena_.taken_bytes() <= arena_.size_bytes(), "more backups are in use than exist");
  return arena_.size_bytes();
}

namespace {

// Copies the part of `wanted` that is in the backup, and returns its size.
result<std::uint64_t> read_kept(const suspended_region& of, address_range wanted,
                                std::span<std::byte> into) {
  std::uint64_t found_bytes = 0;
  for (const suspended_region::kept_part& each : of.kept) {
    const address begin = std::max(each.range.base, wanted.base);
    const address end = std::min(each.range.end(), wanted.end());
    if (begin >= end) continue;
    const std::uint64_t offset = each.offset + (begin - each.range.base);
    const auto target = into.subspan(begin - wanted.base, end - begin);
    if (of.backup->tier == backup_tier::pinned) {
      if (status copied = of.driver.read(target, of.backup->range.base + offset); !copied)
        return copied.error();
    } else {
      std::memcpy(target.data(), of.bytes_at(offset, target.size()).data(), target.size());
    }
    found_bytes += target.size();
  }
  check(found_bytes <= wanted.size_bytes, "more is kept than there was");
  return found_bytes;
}

}  // namespace

status suspender::read_backup(std::span<std::byte> into, address from) const {
  if (!made_in_.is_here()) return refuse_forked();
  const sync::lock_guard<sync::mutex> lock(mutex_);
  if (into.empty()) return {};
  for (const auto& each : regions_) {
    if (!each->is_suspended || each->backup == nullptr) continue;
    const result<std::uint64_t> found = read_kept(*each, {from, into.size()}, into);
    if (!found) return found.error();
    if (*found == into.size()) return {};
  }
  return refuse(errc::unknown_address, "no backup has these bytes: no suspended region keeps them");
}

status suspender::return_backups() {
  if (!made_in_.is_here()) return refuse_forked();
  const sync::lock_guard<sync::mutex> lock(mutex_);
  return arena_.release_unused(nullptr);
}

}  // namespace vmm

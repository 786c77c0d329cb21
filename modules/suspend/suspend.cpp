// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include "../sync/thread_annotations.h"

module vmm.suspend;

import vmm.backend;
import vmm.environment;
import vmm.manager;
import vmm.optimizer;
import vmm.options;
import vmm.physical;
import vmm.std;
import vmm.stream;
import vmm.support;
import vmm.sync;

namespace vmm {

namespace {

constexpr std::uint64_t verify_step_bytes = std::uint64_t{1} << 20;
constexpr std::uint64_t sum_start = 0xcbf29ce484222325;
constexpr std::uint64_t sum_factor = 0x100000001b3;

constexpr error no_list_memory =
    refuse(errc::out_of_host_memory, "no host memory is left for a list of regions");

std::uint64_t add_to_sum(std::uint64_t sum, std::span<const std::byte> bytes) noexcept {
  for (const std::byte each : bytes) sum = (sum ^ static_cast<std::uint64_t>(each)) * sum_factor;
  return sum;
}

}  // namespace

// ---- regions -------------------------------------------------------------------------

// One allocator.
struct suspended_region {
  suspended_region(suspendable& of, const void* of_object)
      : driver(of.driver()),
        allocator(&of),
        object(of_object),
        use(&of.users()),
        driver_use(driver_ref(driver).use()) {}

  driver_interface& driver;
  suspendable* allocator;
  const void* object;  // the pool or manager
  use_of use;
  use_of driver_use;
  std::string tag;
  suspend_contents contents = suspend_contents::keep;  // as added
  suspend_contents promised = suspend_contents::keep;  // of the suspension under way
  bool is_suspended = false;
  bool is_intact = false;  // suspended by a call that failed: contents are in the memory
  stream_handle stream = stream_handle::default_stream;  // for copies
  bool has_stream = false;
  backup_space* backup = nullptr;
  struct kept_part {
    address_range range;
    std::uint64_t offset = 0;  // in the backup
  };
  std::vector<kept_part> kept;  // by copy_out(), while there is a backup

  // Of the call under way.
  bool is_begun = false;
  bool is_announced = false;
  suspension_list parts;

  [[nodiscard]] device_core& core() noexcept { return allocator->core(); }
  [[nodiscard]] status begin_suspend(std::span<const stream_handle> streams) {
    check(!is_begun && parts.empty(), "a region is begun twice");
    const status begun = allocator->begin_suspend(streams, parts);
    is_begun = begun.has_value();
    return begun;
  }
  void end_suspend(bool done) noexcept {
    check(is_begun, "a region ends that was not begun");
    allocator->end_suspend(parts, done);
    end(done);
  }
  [[nodiscard]] status begin_resume() {
    check(!is_begun && parts.empty(), "a region is begun twice");
    const status begun = allocator->begin_resume(parts);
    is_begun = begun.has_value();
    return begun;
  }
  void end_resume(bool done) noexcept {
    check(is_begun, "a region ends that was not begun");
    allocator->end_resume(parts, done);
    end(!done);
  }
  // What other allocators of the device give back for a resumption that was short of memory.
  [[nodiscard]] std::uint64_t take_from_others() {
    check(!is_begun, "others give memory back while an allocator is being changed");
    return allocator->take_from_others(core().memory.statistics().suspended_bytes);
  }
  void announce(suspension_phase next) {
    check(is_begun, "a change is announced that is not under way");
    const bool is_told = next == suspension_phase::suspended || is_announced || is_suspended;
    if (is_told) allocator->announce(parts, next);
    is_announced = next == suspension_phase::suspended;
  }
  [[nodiscard]] status provide_stream();
  [[nodiscard]] status finish_copies() {
    check(has_stream || !driver.feature_set().streams,
          "a wait for copies without a stream of "
          "copies");
    return has_stream ? driver.synchronize_stream(stream) : status{};
  }

 private:
  void end(bool suspended) noexcept {
    check(is_begun, "a region ends that was not begun");
    is_suspended = suspended;
    is_begun = is_announced = false;
    parts.clear();
  }
};

// A stream that waits for no other.
status suspended_region::provide_stream() {
  if (has_stream || !driver.feature_set().streams) return {};
  const result<stream_handle> made = driver.create_stream();
  if (!made) return made.error();
  check(*made != stream_handle::default_stream, "a stream of a region's own is the default one");
  stream = *made;
  has_stream = true;
  return {};
}

namespace {

// Reads each part in steps; `look` returns whether the bytes are as expected.
template <class Look>
status look_at(suspended_region& of, const suspension_part& part, std::vector<std::byte>& buffer,
               Look&& look) {
  const std::uint64_t size_bytes = part.range().size_bytes;
  for (std::uint64_t at = 0; at < size_bytes;) {
    const std::uint64_t step_bytes = std::min<std::uint64_t>(buffer.size(), size_bytes - at);
    const std::span<std::byte> bytes(buffer.data(), step_bytes);
    check(!bytes.empty(), "no byte is looked at");
    if (status seen = of.driver.read(bytes, part.at + at); !seen) return seen;
    if (status right = look(bytes); !right) return right;
    at += step_bytes;
  }
  return {};
}

status make_sums(suspended_region& of) {
  std::vector<std::byte> buffer(verify_step_bytes);
  for (const suspension_part& part : of.parts) {
    std::uint64_t sum = sum_start;
    const status seen = look_at(of, part, buffer, [&](std::span<const std::byte> bytes) -> status {
      sum = add_to_sum(sum, bytes);
      return {};
    });
    if (!seen) return seen;
    part.memory->backup_sum = sum;
  }
  check(buffer.size() == verify_step_bytes, "a buffer has changed its size");
  return {};
}

status verify(suspended_region& of) {
  if (of.promised == suspend_contents::discard) return {};
  std::vector<std::byte> buffer(verify_step_bytes);
  check(of.is_begun, "contents are looked at of a region that is not resumed");
  for (const suspension_part& part : of.parts) {
    std::uint64_t sum = sum_start;
    bool is_zero = true;
    const status seen = look_at(of, part, buffer, [&](std::span<const std::byte> bytes) -> status {
      sum = add_to_sum(sum, bytes);
      is_zero = is_zero && std::all_of(bytes.begin(), bytes.end(),
                                       [](std::byte each) { return each == std::byte{0}; });
      return {};
    });
    if (!seen) return seen;
    const bool is_right =
        of.promised == suspend_contents::zero ? is_zero : sum == part.memory->backup_sum;
    if (!is_right) {
      return refuse(errc::internal,
                    "suspend_options::verify: memory came back with other contents than promised");
    }
  }
  return {};
}

// ---- contents --------------------------------------------------------------------------

std::span<std::byte> bytes_of(const suspended_region& of, std::uint64_t offset,
                              std::uint64_t size_bytes) noexcept {
  const backup_space& space = *of.backup;
  check(offset + size_bytes <= space.size_bytes, "contents lie outside of their backup");
  return {space.bytes + offset, size_bytes};
}
std::span<std::byte> bytes_of(const suspended_region& of, const suspension_part& part) noexcept {
  return bytes_of(of, part.memory->backup_offset, part.range().size_bytes);
}

status copy_out(suspended_region& of) {
  check(of.backup != nullptr, "contents are kept nowhere");
  std::uint64_t offset = 0;
  of.kept.clear();
  of.kept.reserve(of.parts.size());
  for (const suspension_part& part : of.parts) {
    part.memory->backup_offset = offset;
    const std::uint64_t size_bytes = part.range().size_bytes;
    of.kept.push_back({part.range(), offset});
    offset += size_bytes;
    const status copied = of.backup->tier == backup_tier::pinned
                              ? of.driver.copy({of.backup->range.base + part.memory->backup_offset,
                                                part.at, size_bytes, of.stream})
                              : of.driver.read(bytes_of(of, part), part.at);
    if (copied) continue;
    (void)of.finish_copies();
    return copied;
  }
  return of.finish_copies();
}

status copy_in(suspended_region& of) {
  check(of.backup != nullptr && of.backup->is_taken, "contents are kept nowhere");
  for (const suspension_part& part : of.parts) {
    const status copied =
        of.backup->tier == backup_tier::pinned
            ? of.driver.copy({part.at, of.backup->range.base + part.memory->backup_offset,
                              part.range().size_bytes, of.stream})
            : of.driver.write(part.at, bytes_of(of, part));
    if (copied) continue;
    (void)of.finish_copies();
    return copied;
  }
  return of.finish_copies();
}

status fill(suspended_region& of, std::uint8_t value) {
  for (const suspension_part& part : of.parts) {
    const status filled = of.driver.fill({part.range(), value, of.stream});
    if (filled) continue;
    (void)of.finish_copies();
    return filled;
  }
  check(of.has_stream || !of.driver.feature_set().streams, "memory is filled in no stream");
  return of.finish_copies();
}

status restore(suspended_region& of, bool is_verified) {
  if (of.is_intact || of.parts.empty()) return {};
  status done;
  switch (of.promised) {
    case suspend_contents::keep: done = copy_in(of); break;
    case suspend_contents::zero: done = fill(of, 0); break;
    case suspend_contents::discard:
      if (is_verified) done = fill(of, poison_byte);
      break;
  }
  check(of.is_begun, "contents come back to a region that is not resumed");
  return done && is_verified ? verify(of) : done;
}

// What was freed meanwhile, of a pool whose frees promise to clear.
status clear_freed(suspended_region& of) {
  if (!of.allocator->clears_freed() || of.parts.empty()) return {};
  if (status provided = of.provide_stream(); !provided) return provided;
  check(of.is_begun, "memory is cleared of a region that is not resumed");
  const status cleared = of.allocator->clear_freed(of.stream);
  const status finished = of.finish_copies();
  return cleared ? finished : cleared;
}

// Whether the driver's home may read all of it: rights of its own may keep it out.
bool is_readable(const suspended_region& of) noexcept {
  check(of.is_begun, "rights are looked at of a region that is not being changed");
  return std::all_of(of.parts.begin(), of.parts.end(), [&](const suspension_part& part) {
    if (part.own_rights == nullptr) return true;
    const auto all = part.own_rights->all();
    return std::none_of(all.begin(), all.end(), [&](const access_grant& each) {
      return each.who == of.driver.home() && each.rights == access::none;
    });
  });
}

// Mapped so that the home may write, whatever its own rights are; and then with these.
status attach(suspended_region& of, bool is_verified) {
  suspension_list open = of.parts;
  for (suspension_part& part : open) part.own_rights = nullptr;
  if (status attached = attach_parts(of.core(), open); !attached) return attached;
  if (status restored = restore(of, is_verified); !restored) return restored;
  if (status cleared = clear_freed(of); !cleared) return cleared;
  for (const suspension_part& part : of.parts) {
    if (part.own_rights == nullptr) continue;
    const status given = of.core().remaps.give_access(part.range(), part.own_rights);
    if (!given) return given;
  }
  check(are_attached(of.parts), "I1: a region is resumed without its memory");
  return {};
}

}  // namespace

namespace {

using all_regions = std::vector<std::unique_ptr<suspended_region>>;

const suspended_region* find_tag(const all_regions& regions, std::string_view tag) noexcept {
  const auto found = std::find_if(regions.begin(), regions.end(),
                                  [&](const auto& each) { return each->tag == tag; });
  return found == regions.end() ? nullptr : found->get();
}

bool has_suspended(const all_regions& regions, std::string_view tag) noexcept {
  check(find_tag(regions, tag) != nullptr, "a query for a tag that no region has");
  return std::any_of(regions.begin(), regions.end(),
                     [&](const auto& each) { return each->tag == tag && each->is_suspended; });
}

}  // namespace

suspender::suspender(const suspend_options& options) : options_(options) {
  if (!options_.directory.empty()) return;
  const char* const given = environment_text("TMPDIR");
  options_.directory = given != nullptr ? given : "/tmp";
  check(!options_.directory.empty(), "the directory for files is not set");
}

suspender::~suspender() {
  if (!made_in_.is_here()) {
    leave_parts_behind(regions_);
    return;
  }
  const sync::lock_guard<sync::mutex> lock(mutex_);
  for (const auto& each : regions_) {
    check(!each->is_begun, "a suspender goes while a region is being changed");
    forget_backup(*each);
    if (each->has_stream) (void)each->driver.destroy_stream(each->stream);
  }
  (void)arena_.release_unused(nullptr);
}

void suspender::forget_backup(suspended_region& of) noexcept {
  if (of.backup == nullptr) return;
  check(of.backup->is_taken, "a region has a backup that it did not take");
  arena_.give_back(*std::exchange(of.backup, nullptr));
  of.kept.clear();
}

// ---- which regions there are ---------------------------------------------------------

status suspender::add_region(std::unique_ptr<suspended_region>&& fresh, const suspend_region& how) {
  if (how.tag.empty()) return refuse(errc::invalid_argument, "a region has a tag");
  if (how.contents != suspend_contents::discard && !fresh->driver.feature_set().copy)
    return refuse(errc::not_supported, "this driver cannot copy: discard is all that it can do");
  for (const auto& each : regions_) {
    if (each->object == fresh->object)
      return refuse(errc::in_use, "the allocator is a region of this suspender already");
  }
  fresh->tag = how.tag;
  fresh->contents = how.contents;
  regions_.push_back(std::move(fresh));
  check(!regions_.empty(), "a region was added that is not there");
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
  check(gone.backup == nullptr && !gone.is_begun, "a region goes that is being changed");
  const bool is_used = std::any_of(regions_.begin(), regions_.end(), [&](const auto& each) {
    return each.get() != &gone && &each->driver == &gone.driver;
  });
  if (!is_used) {  // first: a region that stays can be removed again
    if (status released = arena_.release_unused(&gone.driver); !released) return released;
  }
  if (gone.has_stream) {
    if (status destroyed = gone.driver.destroy_stream(gone.stream); !destroyed) return destroyed;
    gone.has_stream = false;
  }
  if (obstacle_ == &gone) obstacle_ = nullptr;
  regions_.erase(found);
  check(obstacle_ == nullptr || obstacle_->object != object, "a region that is gone is named");
  return {};
}

// The regions with these tags that are in the state that the call is for. A tag of which a region
// is suspended is not suspended again; one of which any is can be resumed.
status suspender::choose(std::span<const std::string_view> tags, bool is_suspended,
                         region_list& out) {
  obstacle_ = nullptr;
  out.reserve(regions_.size());
  for (const std::string_view tag : tags) {
    if (find_tag(regions_, tag) == nullptr)
      return refuse(errc::invalid_argument, "no region has this tag");
  }
  for (const std::string_view tag : tags) {
    if (!is_suspended || has_suspended(regions_, tag)) continue;
    obstacle_ = find_tag(regions_, tag);
    return refuse(errc::invalid_argument, "no region with this tag is suspended");
  }
  for (const auto& each : regions_) {
    const bool is_named = std::find(tags.begin(), tags.end(), each->tag) != tags.end();
    if (!tags.empty() && !is_named) continue;
    if (each->is_suspended == is_suspended) {
      out.push_back(each.get());
      continue;
    }
    if (!is_named || is_suspended) continue;
    obstacle_ = each.get();
    return refuse(errc::in_use, "a region with this tag is suspended already");
  }
  check(out.size() <= regions_.size(), "more regions are named than there are");
  return {};
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
      return refuse(errc::not_supported, "this driver cannot copy: discard is all that it can do");
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
  if (!is_readable(of)) {
    return refuse(errc::not_permitted,
                  "a block is given rights that keep its driver's home out: its contents cannot be "
                  "kept");
  }
  const backup_arena::wanted want{of.driver, options_.tier, sum_of(of.parts),
                                  options_.directory.c_str()};
  const result<backup_space*> taken = arena_.take(want);
  if (!taken) return taken.error();
  of.backup = *taken;
  check(of.backup->size_bytes >= want.size_bytes, "a backup is too small");
  if (status copied = copy_out(of); !copied) return copied;
  return options_.verify ? make_sums(of) : status{};
}

status suspender::detach(const region_list& regions) {
  for (suspended_region* each : regions) {
    check(each->is_begun, "a region is taken away that was not begun");
    obstacle_ = each;
    const relaxed_capture quiet(each->driver);
    each->announce(suspension_phase::suspended);
    if (status detached = detach_parts(each->core(), each->parts); !detached) return detached;
  }
  obstacle_ = nullptr;
  return {};
}

// The suspension failed: all is mapped again. Where the driver refuses that, the region is
// suspended with its memory and its contents.
void suspender::abandon(const region_list& regions) noexcept {
  for (suspended_region* each : regions) {
    if (!each->is_begun) continue;
    const relaxed_capture quiet(each->driver);
    const bool is_back = try_to_attach(each->core(), each->parts);
    check(!is_back || are_attached(each->parts), "I1: a region is back without its memory");
    if (is_back) each->announce(suspension_phase::running);
    each->is_intact = !is_back;
    forget_backup(*each);
    each->end_suspend(!is_back);
  }
}

// From here on nothing fails: what the driver does not take back stays, and is reported.
suspend_report suspender::finish(const region_list& regions) {
  suspend_report report;
  report.region_count = regions.size();
  const auto stays = [&](const suspended_region& of, std::uint64_t size_bytes, stay_reason why) {
    if (size_bytes == 0) return;
    try {
      report.stays.push_back({of.tag, size_bytes, why});
    } catch (const std::bad_alloc&) {
      // The report has one line less.
    }
  };
  for (suspended_region* each : regions) {
    const relaxed_capture quiet(each->driver);
    device_core& core = each->core();
    const std::uint64_t all_bytes = sum_of(each->parts);
    const std::uint64_t kept_bytes = release_parts(core, each->parts);
    const physical_statistics now = core.memory.statistics();
    check(now.footprint_bytes >= kept_bytes, "more stays than there is");
    report.suspended_bytes += all_bytes - kept_bytes;
    report.backup_bytes += each->backup != nullptr ? all_bytes : 0;
    const std::uint64_t rest_bytes = now.footprint_bytes - kept_bytes;
    const std::uint64_t cached_bytes = std::min(now.cached_bytes, rest_bytes);
    stays(*each, kept_bytes, stay_reason::refused);
    stays(*each, cached_bytes, stay_reason::cached);
    stays(*each, rest_bytes - cached_bytes, stay_reason::unfinished);
    each->is_intact = false;
    each->end_suspend(true);
  }
  return report;
}

// ---- resume --------------------------------------------------------------------------

status suspender::resume(std::span<const std::string_view> tags) {
  if (!made_in_.is_here()) return refuse_forked();
  const sync::lock_guard<sync::mutex> lock(mutex_);
  region_list regions;
  try {
    if (status chosen = choose(tags, true, regions); !chosen) return chosen;
    status done = try_to_bring_back(regions, spilling::no);
    if (!done && is_device_shortage(done.error().code) && relieve(regions))
      done = try_to_bring_back(regions, spilling::no);
    const bool can_spill = std::any_of(regions.begin(), regions.end(), [](suspended_region* each) {
      return each->core().memory.has_spill();
    });
    if (!done && done.error().code == errc::out_of_memory && can_spill)
      done = try_to_bring_back(regions, spilling::yes);
    if (!done) return done;
  } catch (const std::bad_alloc&) {
    take_again(regions);
    return no_list_memory;
  }
  for (suspended_region* each : regions) {
    each->announce(suspension_phase::running);
    each->end_resume(true);
    each->is_intact = false;
    forget_backup(*each);
    check(!each->is_suspended, "a region is resumed and is suspended");
  }
  return {};
}

// Whether others have given memory back, with no allocator being changed.
bool suspender::relieve(const region_list& regions) {
  std::uint64_t given_bytes = 0;
  for (suspended_region* each : regions) given_bytes += each->take_from_others();
  check(obstacle_ != nullptr, "a resumption was short of memory for no region");
  return given_bytes != 0;
}

status suspender::try_to_bring_back(const region_list& regions, spilling spills) {
  status done = bring_back(regions, spills);
  if (!done) take_again(regions);
  check(done || done.error().code != errc::none, "a resumption fails without a reason");
  return done;
}

status suspender::bring_back(const region_list& regions, spilling spills) {
  for (suspended_region* each : regions) {
    obstacle_ = each;
    check(each->is_suspended, "a region comes back that is not suspended");
    if (status begun = each->begin_resume(); !begun) return begun;
  }
  for (suspended_region* each : regions) {
    obstacle_ = each;
    check(each->is_begun, "a region comes back that was not begun");
    const relaxed_capture quiet(each->driver);
    std::optional<spill_permit> permit;
    if (spills == spilling::yes) permit.emplace(each->core().memory);
    if (status provided = provide_parts(each->core(), each->parts); !provided) return provided;
  }
  for (suspended_region* each : regions) {
    obstacle_ = each;
    const relaxed_capture quiet(each->driver);
    if (status attached = attach(*each, options_.verify); !attached) return attached;
  }
  obstacle_ = nullptr;
  return {};
}

// The resumption failed: what came back goes again. Memory whose contents are in it stays.
void suspender::take_again(const region_list& regions) noexcept {
  for (suspended_region* each : regions) {
    if (!each->is_begun) continue;
    check(each->is_suspended, "a region is taken again that is not suspended");
    const relaxed_capture quiet(each->driver);
    if (!each->is_intact) {
      (void)try_to_detach(each->core(), each->parts);
      (void)release_parts(each->core(), each->parts);
    }
    each->end_resume(false);
  }
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

std::uint64_t suspender::backup_bytes() const noexcept {
  if (!made_in_.is_here()) return 0;
  const sync::lock_guard<sync::mutex> lock(mutex_);
  check(arena_.taken_bytes() <= arena_.size_bytes(), "more backups are in use than there are");
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
      std::memcpy(target.data(), bytes_of(of, offset, target.size()).data(), target.size());
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

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.suspend - regions whose memory is released to the driver for a while, and restored at the
// same addresses.
//
// A region is a pool or a manager with a tag. suspend() releases the physical memory of the regions
// with these tags to the driver; their addresses stay reserved and their blocks live. resume() maps
// new memory at the same addresses, with the contents that each region's policy promises.
//
// I1  A call changes all of its regions or none. Only if the driver refuses a step and then
//     repeatedly its undoing does a failed call leave a region suspended: its contents are kept,
//     and resume() restores it.
// I2  Kept contents are copied before anything is unmapped, and are restored when resume() returns.
// I3  Regions are changed in the order in which their allocators were constructed, not in that of
//     add(): suspenders of the same allocators cannot wait for each other, and of several calls at
//     once one has all of its regions.
//
// Nothing is unmapped before the work of the streams that use it has finished: suspend() waits for
// all work of the device, or for streams (see its cost). A suspended block can be freed; every
// other use of it through its allocator returns in_use. After resume(), every location has its
// access again. In a forked child every call returns not_permitted, and destroying the child's copy
// changes nothing.
//
// Thread safety: all of it; one call at a time. Cost: driver calls by handles, copies by bytes
// kept. Elsewhere: the allocators' parts (vmm.stream, vmm.manager), mappings (vmm.optimizer).
module;
#include "../base/thread_annotations.h"

export module vmm.suspend;

export import vmm.backend;
export import :backup;
export import :region;
import vmm.base;
import vmm.manager;
import vmm.optimizer;
import vmm.std;
import vmm.stream;
import :resumption;

namespace vmm {

/// Options of a suspender.
export struct suspend_options {
  backup_tier tier = backup_tier::best;  ///< the place of kept contents
  std::string directory{};  ///< of backup_tier::file; empty: the environment's TMPDIR, or /tmp
  /// Each resume checks contents (kept ones against a checksum, zeroed ones against zero) and fills
  /// discarded ones with poison_byte, so that code that relies on them fails visibly. Slow.
  bool verify = false;

  /// Effects: creates and removes an unnamed file in the directory, if there is one in the options
  /// or the tier is `file`. Errors: bad_option (it takes no file), unavailable (its disk fails),
  /// out_of_host_memory (no room, no descriptor).
  [[nodiscard]] status validate() const;
};

/// The options of a region: its tag, and the treatment of its contents.
export struct suspend_region {
  std::string_view tag{};  ///< any text; several regions may have it
  suspend_contents contents = suspend_contents::keep;
};

/// A request to suspend.
export struct suspend_request {
  std::span<const std::string_view> tags{};  ///< none: every region that is not suspended
  /// Streams that use the memory and were not passed to the allocators: waited for, too.
  std::span<const stream_handle> streams{};
  std::optional<suspend_contents> contents{};  ///< instead of the regions' own, this once
};

/// Why physical memory of a suspended region was retained.
export enum class retain_reason : std::uint8_t {
  refused,     // the driver refused to release it: the next resume maps it again
  cached,      // the driver refused to release free memory
  unfinished,  // it waits for work
};

/// Retained memory.
export struct retained_memory {
  std::string tag;
  std::uint64_t size_bytes = 0;
  retain_reason why = retain_reason::refused;
};

/// The memory that a suspension released and retained.
export struct suspend_report {
  std::uint64_t suspended_bytes = 0;  ///< memory of live blocks, released to the driver
  std::uint64_t backup_bytes = 0;     ///< contents kept
  std::uint64_t region_count = 0;
  std::vector<retained_memory> retained;
};

/// Suspends and resumes regions by their tags.
///
/// Every call: Thread safety: any thread, except the destructor. "Driver errors" are those of the
/// calls of docs/contract.md.
export class suspender {
 public:
  /// Effects: none yet; suspend() reports options that suspend_options::validate() refuses. Cost:
  /// no driver call.
  explicit suspender(const suspend_options& options = {});
  suspender(const suspender&) = delete;
  suspender& operator=(const suspender&) = delete;
  /// Requires: no thread calls it.
  /// Effects: releases the backups. Suspended regions stay suspended: kept contents are lost.
  /// Blocks can be freed, and allocators destroyed, or added to another suspender.
  ~suspender();

  /// Requires: the allocator outlives the suspender, or is removed first. Effects: makes the
  /// allocator a region; a suspended one, with the contents promised then, if the end of another
  /// suspender left it suspended. Errors: in_use (it is one already), invalid_argument (an empty
  /// tag), not_supported (`contents` requires copies, which the driver lacks), out_of_host_memory.
  /// Cost: O(regions).
  [[nodiscard]] status add(stream_pool& pool, const suspend_region& how);
  [[nodiscard]] status add(manager& blocks, const suspend_region& how);
  /// Effects: removes the region. Errors: in_use (it is suspended), invalid_argument (it is not a
  /// region), driver errors of releasing backups that only it used. Cost: O(regions).
  [[nodiscard]] status remove(const stream_pool& pool);
  [[nodiscard]] status remove(const manager& blocks);

  /// Requires: from the call until resume() has returned, no work that uses the regions' memory is
  /// submitted to any stream (replays of captured graphs included); work on streams that neither
  /// the allocators nor the request name has finished. Not called from a listener or an observer.
  /// Effects: suspends the regions: they allocate nothing, and their memory is released to the
  /// driver. Pools notify listeners with `released` before each mapping is undone. Free memory of
  /// the regions is released first, even if the call then fails.
  /// Errors: invalid_argument (a tag that no region has), in_use (suspended already; a block is
  /// pinned, exported, a growable range's, being changed, or shares its memory; a stream is
  /// captured), not_permitted (contents that the driver's home must not read, a forked child),
  /// not_supported (no pinned memory), bad_option (the directory of the options takes no file),
  /// unavailable (its disk fails),
  /// out_of_host_memory, driver errors. All regions are as
  /// before: see I1.
  /// Cost: waits for all work of the device; with memory_options::streams_forgotten only for that
  /// of the regions' streams and the request's: then name the streams of a manager's copies. So
  /// does a pool on a driver without features::record_all. Driver calls by handles; contents by
  /// bytes.
  [[nodiscard]] result<suspend_report> suspend(const suspend_request& request = {});
  /// Requires: from the call until resume() has returned, what suspend() requires. Effects: offers
  /// the regions, or with no tags all that are not suspended: when other tenants of an owner need
  /// memory, one after the other is suspended on a thread of the source, those without contents to
  /// keep first. resume() ends the offer of its regions, suspended or not. Without an owner:
  /// nothing. Errors: invalid_argument (a tag that no region has). Cost: O(regions).
  [[nodiscard]] status offer(std::span<const std::string_view> tags = {});
  /// Effects: restores the regions' memory at the same addresses, with the promised contents and
  /// all access that was granted; when it returns, any stream may use it. Without tags: every
  /// suspended region. Listeners of pools are notified with `mapped`. If the device is short of
  /// memory, other allocators are trimmed; a tenant of an owner waits for memory of other tenants,
  /// for all or nothing; what is still missing is created at the regions' memory_options::spill.
  /// Errors: invalid_argument (a tag of no region, or of none that is suspended or offered), in_use
  /// (another thread frees a block; instead of regions of this suspender, another one has suspended
  /// the memory), out_of_memory, over_budget, internal (options().verify: other contents
  /// than promised), driver errors. All regions stay suspended, and a later call tries again.
  /// Cost: driver calls by handles; contents by bytes.
  [[nodiscard]] status resume(std::span<const std::string_view> tags = {});

  /// Effects: none; returns whether any region with the tag is suspended. Errors: invalid_argument
  /// (a tag that no region has). Cost: O(regions).
  [[nodiscard]] result<bool> is_suspended(std::string_view tag) const;
  /// Effects: none; returns the tag of the region at which the last suspend() or resume() failed;
  /// empty if it did not fail. Errors: out_of_host_memory.
  [[nodiscard]] result<std::string> last_obstacle() const;
  /// Effects: none; returns whether the end of the suspender would lose contents: those that it
  /// keeps of a suspended region. Cost: O(regions).
  [[nodiscard]] bool keeps_contents() const noexcept;
  /// Effects: none; returns the bytes of all backups, including those kept for reuse.
  /// Cost: O(backups).
  [[nodiscard]] std::uint64_t backup_bytes() const noexcept;
  /// Effects: copies kept contents of the suspended memory at `from` to `into`.
  /// Errors: unknown_address (any of the bytes is not kept), driver errors; `into` may be changed.
  /// Cost: O(handles of the regions), and a copy on the host.
  [[nodiscard]] status read_backup(std::span<std::byte> into, address from) const;
  /// Effects: releases unused backups. Errors: driver errors; a later call tries again. Cost:
  /// driver calls by backups.
  [[nodiscard]] status return_backups();
  [[nodiscard]] const suspend_options& options() const noexcept { return options_; }

 private:
  friend struct suspended_region;  // gives memory of an offer
  using region_list = std::vector<suspended_region*>;

  [[nodiscard]] status add_region(std::unique_ptr<suspended_region>&& fresh,
                                  const suspend_region& how) VMM_REQUIRES(mutex_);
  [[nodiscard]] status remove_region(const void* object);
  [[nodiscard]] status choose(std::span<const std::string_view> tags, bool is_suspended,
                              region_list& out) VMM_REQUIRES(mutex_);
  [[nodiscard]] status prepare(const suspend_request& request, const region_list& regions)
      VMM_REQUIRES(mutex_);
  [[nodiscard]] status save(suspended_region& of) VMM_REQUIRES(mutex_);
  [[nodiscard]] status detach(const region_list& regions) VMM_REQUIRES(mutex_);
  void abandon(const region_list& regions) noexcept VMM_REQUIRES(mutex_);
  [[nodiscard]] suspend_report finish(const region_list& regions) VMM_REQUIRES(mutex_);
  void forget_backup(suspended_region& of) noexcept VMM_REQUIRES(mutex_);

  const process_mark made_in_;
  suspend_options options_;
  mutable sync::mutex mutex_;
  backup_arena arena_ VMM_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<suspended_region>> regions_ VMM_GUARDED_BY(mutex_);  // I3
  const suspended_region* obstacle_ VMM_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace vmm

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.suspend:region - one allocator whose memory is suspended, and the contents of its parts.
//
// Thread safety: none of its own; the suspender has a lock. Cost: copies and fills by parts.
export module vmm.suspend:region;

import vmm.backend;
import vmm.base;
import vmm.optimizer;
import vmm.std;
import :backup;

namespace vmm {

/// Contents of a region's blocks after resume().
export enum class suspend_contents : std::uint8_t {
  keep,     // the old contents
  zero,     // zero
  discard,  // anything
};

/// Suspends and resumes regions; defined in vmm.suspend.
export class suspender;

// A suspender's record of one allocator.
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
  suspend_contents promised = suspend_contents::keep;  // of the suspension in progress
  bool is_suspended = false;
  bool is_intact = false;  // suspended by a call that failed: contents are in the memory
  stream_handle stream = stream_handle::default_stream;  // for copies
  bool has_stream = false;
  suspender* offers = nullptr;  // it has offered the region
  relief_member offer;
  bool is_copying = false;  // copies or fills are queued that could not be waited for
  backup_space* backup = nullptr;
  struct kept_part {
    address_range range;
    std::uint64_t offset = 0;  // in the backup
  };
  std::vector<kept_part> kept;  // by copy_out(), while there is a backup

  // Of the call in progress.
  bool is_begun = false;
  bool is_announced = false;
  suspension_list parts;

  /// Suspends the offered region, if no other call runs. Returns the bytes.
  [[nodiscard]] std::uint64_t give() noexcept;
  [[nodiscard]] device_core& core() noexcept { return allocator->core(); }
  /// Effects: takes memory that a suspender left suspended when it ended.
  void take_left() noexcept;
  /// Effects: leaves suspended memory for another suspender.
  void leave() noexcept;
  // Whether the resumption in progress would have to restore contents that are lost.
  [[nodiscard]] bool has_lost() const noexcept {
    check(is_begun, "contents of an unchanged region are looked for");
    const bool is_kept = promised == suspend_contents::keep && !parts.empty();
    return is_kept && !is_intact && backup == nullptr;
  }
  [[nodiscard]] status begin_suspend(std::span<const stream_handle> streams) {
    check(!is_begun && parts.empty(), "a change of a region begins twice");
    const status begun = allocator->begin_suspend(streams, parts);
    is_begun = begun.has_value();
    return begun;
  }
  void end_suspend(bool done) noexcept {
    check(is_begun, "a change of a region ends without a begin");
    allocator->end_suspend(parts, done);
    end(done);
  }
  [[nodiscard]] status begin_resume() {
    check(!is_begun && parts.empty(), "a change of a region begins twice");
    const status begun = allocator->begin_resume(parts);
    is_begun = begun.has_value();
    return begun;
  }
  void end_resume(bool done) noexcept {
    check(is_begun, "a change of a region ends without a begin");
    allocator->end_resume(parts, done);
    end(!done);
  }
  // Its place among the allocators of the device, for a resumption that is short of memory.
  [[nodiscard]] relief_member& relief() noexcept {
    check(!is_begun, "relief runs while an allocator is being changed");
    return allocator->relief();
  }
  [[nodiscard]] std::uint64_t suspended_bytes() noexcept {
    return core().memory.statistics().suspended_bytes;
  }
  void announce(suspension_phase next) {
    check(is_begun, "a change is announced that is not under way");
    const bool is_announced_now =
        next == suspension_phase::suspended || is_announced || is_suspended;
    if (is_announced_now) allocator->announce(parts, next);
    is_announced = next == suspension_phase::suspended;
  }
  /// Errors: driver errors.
  [[nodiscard]] status provide_stream();
  /// Whether the driver's home may read all parts, which may have rights of their own.
  [[nodiscard]] bool is_readable() const noexcept;
  /// Copies the parts' contents into the backup. Throws std::bad_alloc. Errors: driver errors.
  [[nodiscard]] status copy_out();
  /// Computes the checksums for suspend_options::verify. Throws std::bad_alloc. Errors: driver
  /// errors.
  [[nodiscard]] status make_sums();
  /// Maps the parts with access for the home, restores their contents, and then sets their own
  /// rights. Errors: as attach_parts(); internal (other contents than promised).
  [[nodiscard]] status attach(bool is_verified);
  /// Requires: all parts are mapped. Errors: as suspendable::clear_freed, create_stream,
  /// synchronize_stream.
  [[nodiscard]] status clear_freed();
  [[nodiscard]] std::span<std::byte> bytes_at(std::uint64_t offset,
                                              std::uint64_t size_bytes) const noexcept;
  // Waits for the work queued for the region. On failure is_copying is true while copies continue.
  [[nodiscard]] status finish_copies();
  /// Waits for copies that an earlier call could not wait for, and that may use the memory. Errors:
  /// those of synchronize_stream and synchronize_all.
  [[nodiscard]] status finish_earlier() {
    if (!is_copying) return {};
    const status finished = finish_copies();
    return is_copying ? finished : status{};
  }
  // Whether no copy uses the memory or the backup.
  [[nodiscard]] bool has_finished_copies() {
    if (is_copying) (void)finish_copies();
    return !is_copying;
  }

 private:
  void end(bool suspended) noexcept {
    check(is_begun, "a change of a region ends without a begin");
    is_suspended = suspended;
    is_begun = is_announced = false;
    parts.clear();
  }
};

// For a resumption that is short of memory, while no allocator is being changed.
using region_span = std::span<suspended_region* const>;
// Whether other allocators have released memory.
[[nodiscard]] bool relieve_for(region_span regions) noexcept;
// Borrows memory of other processes, of each source for all regions at once. Whether there is any.
// Throws std::bad_alloc.
[[nodiscard]] bool borrow_for(region_span regions, std::vector<std::unique_ptr<relief_loan>>& loans,
                              std::int64_t& until_ns);

}  // namespace vmm

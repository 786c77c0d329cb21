// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.optimizer:remapper - the only caller of map, unmap and set_access.
//
// I1  map() is all or nothing: a set-access or a map that fails leaves no mapping behind.
// I2  If the driver refuses the undoing too, the outcome has the number of leading pieces that are
//     still mapped, and the caller keeps their addresses out of use until a later try succeeds.
// I3  Every mapping has the rights that its plan names, else those of set_rights(): see
//     give_access().
//
// Before a piece is mapped for a stream, that stream is ordered behind the piece's last use, on the
// device.
//
// Thread safety: all of it, for ranges that one thread works on at a time. Cost: one map call a
// piece, one set-access call a range of equal rights (the driver charges for each mapping all the
// same), one unmap call a range where it may span several mappings. No heap allocation.
export module vmm.optimizer:remapper;

import vmm.backend;
import vmm.base;
import vmm.physical;
import vmm.std;
import vmm.timeline;

namespace vmm {

/// Reads and writes for the device that works (`home`) and for the memory's place (`where`): one
/// grant if they are the same. The rights do not differ, so that a driver without
/// access_per_location takes them too.
export [[nodiscard]] inline grant_list grants_for(location home, location where) noexcept {
  const access_grant works{home, access::read_write};
  if (home == where) return works;
  return {works, access_grant{where, access::read_write}};
}

/// One mapping of a range, and the driver's handle behind it.
export struct memory_segment {
  address_range range{};
  physical_handle handle = physical_handle::none;  ///< the allocator's: not to be released
};

/// Rights of single mappings of a block, by their memory. They overrule those of the block.
export class memory_rights {
 public:
  /// A copy of `before`, which may be null, with room for `count` more mappings. Errors:
  /// out_of_host_memory.
  [[nodiscard]] static result<std::unique_ptr<memory_rights>> copy_of(const memory_rights* before,
                                                                      std::size_t count) noexcept;
  /// Null if the memory has none of its own.
  [[nodiscard]] const grant_list* of(const physical_memory& memory) const noexcept;
  /// Requires: room for new memory.
  void set(const physical_memory& memory, const grant_list& rights) noexcept;
  /// Removes those of all other memory.
  void keep_only(std::span<physical_memory* const> memories) noexcept;
  /// Whether each list meets the condition.
  template <class Condition>
  [[nodiscard]] bool all_of(Condition&& condition) const noexcept {
    return std::all_of(rows_.begin(), rows_.end(),
                       [&](const row& each) { return condition(each.rights); });
  }

 private:
  struct row {
    const physical_memory* memory = nullptr;
    grant_list rights;
  };
  std::vector<row> rows_;
};

/// Pieces side by side from `at` on.
export struct mapping_plan {
  address at{};
  std::span<physical_memory* const> memories;
  stream_handle stream = stream_handle::default_stream;
  const grant_list* own_rights = nullptr;  ///< besides those of everything, which they overrule
  bool is_named = false;  ///< the call is passed the stream, which exists: see timeline
  const memory_rights* of_memories = nullptr;  ///< these overrule own_rights
  std::uint64_t stream_identity = 0;           ///< 0: not known

  /// Those of the memory, else own_rights.
  [[nodiscard]] const grant_list* rights_of(const physical_memory& memory) const noexcept {
    const grant_list* const own = of_memories == nullptr ? nullptr : of_memories->of(memory);
    return own != nullptr ? own : own_rights;
  }
  [[nodiscard]] std::uint64_t size_bytes() const noexcept {
    std::uint64_t sum_bytes = 0;
    for (const physical_memory* part : memories) sum_bytes += part->size_bytes;
    check(memories.empty() == (sum_bytes == 0), "a plan has pieces without bytes");
    return sum_bytes;
  }
};

/// The outcome of a plan: the failure, if any, and the number of its leading pieces that are
/// mapped.
export struct remap_outcome {
  status result;
  std::size_t mapped_count = 0;
  bool lost = false;    ///< the former mappings could not be restored
  bool of_new = false;  ///< lost, and the count is of the new plan's pieces
};

/// Maps, unmaps and sets access. A plan of several steps is all or nothing.
export class remapper {
 public:
  remapper(driver_ref driver, timeline& time, physical_pool& memory,
           const grant_list& grants) noexcept
      : driver_(driver), time_(time), memory_(memory), grants_(grants) {
    check(!grants.all().empty(), "memory is mapped without access");
  }
  remapper(const remapper&) = delete;
  remapper& operator=(const remapper&) = delete;

  /// Sets the access of a mapped range: that of everything, overruled by that of its own. For
  /// callers that map without map(): after each move, growth and resumption. Requires: whole
  /// mappings. Errors: those of set_access; nothing is changed.
  [[nodiscard]] status give_access(address_range range, const grant_list* own_rights = nullptr);
  /// The same for a mapped plan, whose mappings may have rights of their own. Errors: what
  /// set_access returns; some of the mappings may have their rights.
  [[nodiscard]] status give_access(const mapping_plan& plan) { return give_each(plan, false); }
  /// Sets the rights of all memory, from the next map() or give_access() on. Locations that it had
  /// named and that are not in `grants` stay named, without rights. Errors: invalid_argument (more
  /// locations than a list takes); nothing is changed.
  [[nodiscard]] status set_rights(const grant_list& grants);
  [[nodiscard]] grant_list rights() const;
  /// Requires: every mapping has these rights again. Effects: stops naming locations that are not
  /// in the list.
  void forget_others(const grant_list& grants);
  /// Whether the list of all memory and this one fit into one list.
  [[nodiscard]] bool fits(const grant_list* own_rights) const {
    return own_rights == nullptr || fit(rights(), own_rights);
  }
  [[nodiscard]] static bool fit(const grant_list& all, const grant_list* own_rights) noexcept;
  /// Grows with each set_rights(): older mappings need give_access().
  [[nodiscard]] std::uint64_t rights_version() const noexcept {
    return version_.load(std::memory_order_acquire);
  }

  /// Orders the stream behind the earlier users of the pieces, maps and gives access. Blocks where
  /// the stream is not named (timeline::order_unnamed). On failure mapped_count is 0 unless undoing
  /// failed too.
  [[nodiscard]] remap_outcome map(const mapping_plan& plan);

  /// Undoes the mappings of an unused plan. On failure mapped_count is the number of pieces still
  /// mapped: all of them if one call undoes the whole range, else a leading part.
  [[nodiscard]] remap_outcome unmap(const mapping_plan& plan);

  /// unmap() of the first `mapped_count` pieces of a failed plan, repeated for a fault that occurs
  /// once. The outcome has the `cause`.
  [[nodiscard]] remap_outcome undo(const mapping_plan& plan, std::size_t mapped_count,
                                   const status& cause);

  /// unmap(), all or nothing: a part that was unmapped is mapped again. If the driver refuses that
  /// too, the plan is `lost`, and mapped_count is the number of pieces still mapped.
  [[nodiscard]] remap_outcome detach(const mapping_plan& plan);

  /// Undoes an unused plan's mappings, and makes another's. If the new plan cannot be mapped, the
  /// old one is mapped again, and mapped_count is all of it; if the driver refuses that too, the
  /// error is device_lost, and mapped_count is the number of pieces still mapped.
  [[nodiscard]] remap_outcome exchange(const mapping_plan& old_plan, const mapping_plan& new_plan);

  /// Maps the pieces of a plan behind its first `standing_count`. On failure mapped_count is the
  /// number of mapped pieces; those of this call have no access.
  [[nodiscard]] remap_outcome restore(const mapping_plan& plan, std::size_t standing_count);

  /// The outcome if neither the new nor the old plan can be mapped.
  [[nodiscard]] static error contents_lost() noexcept {
    return refuse(errc::device_lost,
                  "the driver refused a mapping and then refused to put the old one back: free "
                  "this allocation, since its contents are lost");
  }

 private:
  // A fault that occurs once while undoing must have no lasting effect; a permanent one cannot be
  // retried away.
  static constexpr int undo_attempts = 3;

  // Called after each change: the mappings are those of the outcome.
  [[nodiscard]] static remap_outcome checked(const mapping_plan& plan,
                                             const remap_outcome& outcome) noexcept;
  [[nodiscard]] grant_list effective(const grant_list* own_rights) const;
  [[nodiscard]] status give_each(const mapping_plan& plan, bool is_fresh);

  driver_ref driver_;
  timeline& time_;
  physical_pool& memory_;
  // No step of a test's schedule: held for a copy, over no other lock and no call.
  mutable std::mutex rights_mutex_;
  grant_list grants_;
  std::atomic<std::uint64_t> version_ = 0;
};

}  // namespace vmm

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.suspend:resumption - the return of the memory of several regions, of all or of none.
//
// I1  An attempt that fails leaves every region suspended.
//
// Thread safety: none of its own; the suspender has a lock. Cost: driver calls by handles.
export module vmm.suspend:resumption;

import vmm.backend;
import vmm.optimizer;
import vmm.std;
import :region;

namespace vmm {

/// The resumption of one call. After success the suspender ends the change of each region.
class resumption {
 public:
  /// `obstacle` is the region at which the last step failed; null after success.
  resumption(region_span regions, bool is_verified, const suspended_region*& obstacle) noexcept
      : regions_(regions), is_verified_(is_verified), obstacle_(obstacle) {}

  /// Maps memory of all regions, with its contents: first with memory of the device, then with that
  /// of other allocators and other processes, last at memory_options::spill. Throws std::bad_alloc.
  /// Errors: as suspender::resume().
  [[nodiscard]] status run();

 private:
  enum class spilling : bool { no, yes };
  [[nodiscard]] status run_steps();
  [[nodiscard]] status attempt(spilling spills);
  [[nodiscard]] status bring_back(spilling spills);
  void take_again() noexcept;

  const region_span regions_;
  const bool is_verified_;
  const suspended_region*& obstacle_;
};

}  // namespace vmm

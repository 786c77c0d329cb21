// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.observe:nvtx - blocks for memory checkers and events for Nsight Systems, through NVTX.
//
// A checker treats the memory of a pool as one large allocation, so a kernel that writes past the
// end of one block into the next goes undetected. nvtx_declarer, set as a pool's `observer`,
// declares the pool's addresses (a heap without access) and its blocks (regions with access).
// compute-sanitizer reads this if it is started with --nvtx yes; it supports plain memory only:
// open the CUDA backend with cuda_memory::plain, docs/observe.md. Without a tool it has no effect.
//
// I1  Declared regions do not overlap, and each lies in one declared heap.
//
// Thread safety: all of it, one lock. Cost: for a program that is being debugged.
export module vmm.observe:nvtx;

import vmm.backend;
import vmm.std;
import :block_observer;
import :history;

namespace vmm {

/// Declares a pool's reservations as NVTX heaps and its live blocks as regions of them, as the
/// pool's observer. docs/observe.md has the command of a memory checker.
export class nvtx_declarer final : public block_observer {
 public:
  /// Errors: unavailable (vmm was built without NVTX's headers), out_of_host_memory. heap_count()
  /// shows whether a tool accepts the declarations.
  [[nodiscard]] static result<std::unique_ptr<nvtx_declarer>> open();
  ~nvtx_declarer();
  nvtx_declarer(const nvtx_declarer&) = delete;
  nvtx_declarer& operator=(const nvtx_declarer&) = delete;

  /// Implements `block_observer`: declares or undeclares the regions that the pool reports. Cost:
  /// O(log n) and the tool's own, for each region.
  void reserved(address_range addresses) noexcept override;
  void unreserved(address_range addresses) noexcept override;
  void mapped(address_range memory) noexcept override;
  void unmapped(address_range memory) noexcept override;
  void allocated(address_range block) noexcept override;
  void freed(address block) noexcept override;

  /// Reservations that a tool accepted; 0 without a tool.
  [[nodiscard]] std::uint64_t heap_count() const;
  /// Declared regions: one per block, in heaps that a tool accepted.
  [[nodiscard]] std::uint64_t region_count() const;

 private:
  struct state;
  explicit nvtx_declarer(std::unique_ptr<state> made) noexcept;

  std::unique_ptr<state> state_;
};

/// An allocator's events for Nsight Systems: a range for each growth and each wait of the caller,
/// on its thread; marks for shortages, trims and suspensions; and two counters, live bytes and
/// physical memory held.
///
/// Set it as history_options::listener of one ring. Live bytes are those of blocks allocated since
/// then. Without a tool it has no effect.
export class nvtx_ranges final : public history_listener {
 public:
  /// Errors: unavailable (vmm was built without NVTX's headers), out_of_host_memory.
  [[nodiscard]] static result<std::unique_ptr<nvtx_ranges>> open();
  /// Requires: its ring is destroyed, or not recording.
  ~nvtx_ranges();
  nvtx_ranges(const nvtx_ranges&) = delete;
  nvtx_ranges& operator=(const nvtx_ranges&) = delete;
  /// Whether NVTX's headers had counters when vmm was built, as those of CUDA 13 do.
  [[nodiscard]] static bool has_counters() noexcept;

  /// As history_listener. Cost: the tool's own, and a lookup for a block.
  void heard(const history_note& what) noexcept override;

 private:
  struct state;
  explicit nvtx_ranges(std::unique_ptr<state> made) noexcept;
  void count_block(const history_note& what) noexcept;

  std::unique_ptr<state> state_;
};

}  // namespace vmm

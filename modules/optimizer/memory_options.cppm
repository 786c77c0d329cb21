// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.optimizer:memory_options - the options that every allocator has.
//
// Thread safety: values only; read_environment() as getenv. Cost: constant, no allocation.
export module vmm.optimizer:memory_options;

import vmm.backend;
import vmm.observe;
import vmm.std;

namespace vmm {

/// Treatment of old bytes: those of the memory's earlier user.
export enum class contents_rule : std::uint8_t {
  none,             // bytes are not specified
  zero_on_acquire,  // a block reads as zero, behind a fill on the stream that it is allocated on
  zero_on_release,  // a block's bytes are filled with zeros when it is freed, on that stream
  poison,           // a block's bytes are poison_byte when it is freed, and when it is allocated
};
/// The byte that a use before the first write, or after the free, reads under
/// contents_rule::poison.
export inline constexpr std::uint8_t poison_byte = 0xDB;

/// The options of memory and addresses that every allocator has.
export struct memory_options {
  /// Address space reserved at a time. If the driver refuses, half of it is tried, and so on.
  std::uint64_t reservation_bytes = std::uint64_t{8} << 40;
  /// Never hold more physical memory than this; 0: no limit but the device's.
  std::uint64_t budget_bytes = 0;
  /// The last step before out of memory may block the caller until work on freed memory has
  /// finished.
  bool wait_when_short = true;
  /// The place of memory; none: the backend's home. Both the home and this place may read and write
  /// it.
  std::optional<location> placement{};
  /// Other devices with access to all of the memory, from the first mapping on. The home and the
  /// placement may read and write it besides.
  grant_list peers{};
  /// The place of memory that the placement no longer has, after all other steps; nullopt: none.
  /// The home and the peers may use it like other memory. A manager does not reuse it for a second
  /// block.
  std::optional<location> spill{};
  /// Needs features::copy. A manager's block grows in place only under the rules that fill, and a
  /// block is freed on a stream under those that fill on release.
  contents_rule contents = contents_rule::none;
  /// The program calls forget() before a stream passed to the allocator is destroyed. The allocator
  /// may then name streams to the driver at any time: an event stands for the work of the one
  /// stream that matters, and streams are queried for captures that were not announced. Without it
  /// a stream may be destroyed at any time. It is then used only in calls that name it, and events
  /// behind all work of the device cover it otherwise. On drivers without features::record_all
  /// streams are named as if this was set; a refused one costs a wait for all work.
  bool streams_forgotten = false;
  /// Called with the blocks that are live when the allocator is destroyed
  leak_report leak_hook{};
  /// The ring to which the allocator writes its events. It outlives the allocator; its type is in
  /// vmm.observe. Null: no recording.
  history_ring* recorder = nullptr;
  /// Publishes the allocator's statistics to the user's other processes, for vmm-top: as VMM_TOP=1.
  bool publish = false;

  /// The options that have a range: reservation_bytes from 1 to 2^56, budget_bytes to 2^56.
  [[nodiscard]] static std::span<const option_row<memory_options>> ranges() noexcept;
  /// Errors: bad_option; the detail names the option and its range.
  [[nodiscard]] status validate() const noexcept;
  /// Applies VMM_VA_SIZE and VMM_BUDGET. Errors: bad_option; the detail names the variable and its
  /// valid values, and the effect of the other variable stays.
  [[nodiscard]] status read_environment() noexcept;
};

}  // namespace vmm

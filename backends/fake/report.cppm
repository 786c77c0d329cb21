// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.fake:report - the fake's reports to a test: misuse, resource counts, and planned faults.
//
// Thread safety: values only. Cost: no allocation.
export module vmm.fake:report;

import vmm.backend;
import :profile;
import vmm.std;

namespace vmm::fake {

/// A caller's mistake that no driver permits, whether or not this profile's driver refuses it.
export enum class misuse_kind : std::uint8_t {
  leak,                   // an object was left at check_empty()
  double_map,             // map over addresses that are mapped
  use_after_unmap,        // memory used through addresses with nothing behind them
  no_access,              // memory used without the right to
  past_the_end,           // memory used beyond the end of the handle that is mapped there
  stale_handle,           // a token used after its release, or never returned
  cut_mapping,            // unmap or set_access with a part of a mapping
  access_over_hole,       // set_access over addresses with nothing behind them
  freed_while_mapped,     // a reservation freed with live mappings
  released_while_mapped,  // memory released while mapped, on a driver that forbids it
  in_flight,              // unmap, revoke or host use of memory that unfinished device work uses
  unordered,              // device work on memory that unfinished work of another stream uses
  wrong_contents,         // a kernel read other contents than it expected
};

/// One misuse. `range` is where, `object` the token involved, or 0; texts have static storage.
export struct misuse {
  misuse_kind kind = misuse_kind::leak;
  call where = call::none;
  address_range range{};
  std::uint64_t object = 0;
  const char* detail = "";
};

/// The kind in words; static storage.
export [[nodiscard]] const char* name_of(misuse_kind kind) noexcept;

/// The live objects of one driver object, and the device memory that it holds.
export struct resource_counts {
  std::uint64_t reservations = 0;
  std::uint64_t reserved_bytes = 0;
  std::uint64_t handles = 0;       ///< created, retained or imported and not released
  std::uint64_t memories = 0;      ///< pieces of physical memory that this driver keeps alive
  std::uint64_t memory_bytes = 0;  ///< their bytes, each counted once
  std::uint64_t mappings = 0;
  std::uint64_t mapped_bytes =
      0;  ///< address bytes with something behind them; aliases count each time
  std::uint64_t accessible_mappings = 0;  ///< mappings that some location may use
  std::uint64_t streams = 0;
  std::uint64_t events = 0;
  std::uint64_t pending_work = 0;  ///< kernels, copies and fills not yet finished
  std::uint64_t descriptors = 0;   ///< exported and neither imported nor closed
  std::uint64_t teams = 0;         ///< multicast objects
  std::uint64_t memories_max = 0;  ///< high-water marks since the driver was made
  std::uint64_t memory_bytes_max = 0;
  std::uint64_t reserved_bytes_max = 0;
  std::uint64_t mapped_bytes_max = 0;

  /// Whether no object is alive.
  [[nodiscard]] constexpr bool empty() const noexcept {
    return (reservations | handles | memories | mappings | streams | events | pending_work |
            descriptors | teams) == 0;
  }
};

/// A failure to inject: the nth call of a kind (counted from when the fault is planned) returns
/// `failure` and does nothing.
export struct fault {
  call where = call::none;  ///< which calls count; none: every call
  std::uint64_t nth = 1;    ///< 1 is the next one
  bool forever = false;     ///< every such call from the nth on, not that one alone
  native_error failure{};
};

/// Device work for a test to launch: the memory it touches, its duration, the contents it leaves
/// and expects.
export struct kernel {
  const char* name = "kernel";  ///< static storage
  double duration_us = 0;
  /// The device that runs it, whose rights count; none: the driver's home. Its streams are the
  /// driver's in either case.
  std::optional<location> where{};
  std::span<const address_range> reads{};
  std::span<const address_range> writes{};
  std::optional<std::uint64_t> tag{};       ///< fills `writes` when it finishes
  std::optional<std::uint64_t> expected{};  ///< the tag that `reads` must begin with, part by part
};

}  // namespace vmm::fake

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.fake:profile - the driver that the fake emulates: its features, sizes, traps and costs.
//
// A profile is a plain value: copy one of the four, change any field, and create a driver from it.
// The figures of profile::cuda() were measured on one GPU
// (docs/decisions/0004-fake-driver-fidelity.md); the traps of the others were read in their
// documents and sources.
//
// A trap is a driver's success or change of state in a case that the contract forbids. Code that
// keeps the contract never reaches one.
//
// Thread safety: values only. Cost: cost_curve::at is linear in its (at most eight) points.
export module vmm.fake:profile;

import vmm.backend;
import vmm.std;

namespace vmm::fake {

/// The numbers and names in errors: those of CUresult, ze_result_t or errno.
export enum class error_code_set : std::uint8_t { cuda, level_zero, posix };

/// The cost of an operation on one piece of memory, by its size: straight lines between measured
/// points.
export struct cost_curve {
  struct point {
    std::uint64_t size_bytes = 0;
    double us = 0;
  };
  std::array<point, 8> points{};
  std::size_t count = 0;

  /// The cost in microseconds: below the first point that of the first; above the last point along
  /// the last line; 0 without points.
  [[nodiscard]] double at(std::uint64_t size_bytes) const noexcept;
};

/// Costs of calls, in microseconds of virtual time.
export struct cost_table {
  cost_curve create{};      ///< by the size of the handle
  cost_curve release{};     ///< by the size of the handle
  cost_curve map{};         ///< by the size of the mapping
  cost_curve set_access{};  ///< for each mapping, by its size
  cost_curve unmap{};       ///< for each mapping, by its size
  double reserve_us = 0;
  double free_reservation_us = 0;
  double query_us = 0;  ///< any query, and any refused call
  double create_event_us = 0;
  double record_event_us = 0;
  double query_event_us = 0;
  double wait_event_us = 0;
  double destroy_event_us = 0;
  double create_stream_us = 0;
  double destroy_stream_us = 0;
  double submit_us = 0;  ///< to queue a kernel, a copy or a fill
  /// For each further device that set_access names on a mapping, and that unmap takes it from.
  double peer_access_us = 0;
  double peer_unmap_us = 0;
  double export_us = 0;
  double import_us = 0;
  double clear_bytes_per_us =
      0;  ///< released device memory is cleared before it serves again; 0: at once
  double traffic_bytes_per_us =
      1;                         ///< bytes read plus bytes written by the device in a microsecond
  double host_bytes_per_us = 1;  ///< bytes that write and read move between host and device
};

/// The factors by which calls cost more in a running program than in a tight loop on a quiet
/// machine: one for all calls that change memory. Other calls cost the same.
export struct busy_table {
  double create = 2.9;
  double release = 2.9;
  double map = 2.9;
  double set_access = 2.9;
  double unmap = 2.9;
  double reserve = 2.9;
  double free_reservation = 2.9;
  double peer_access = 2.9;
  double peer_unmap = 2.9;
  double record_event = 1;
  double query_event = 1;
};

/// Cases in which a real driver returns success, or does half of its work, and another would
/// refuse.
export struct trap_set {
  bool cut_unmap_skips = false;  ///< unmap that cuts a mapping succeeds and leaves it mapped
  bool overlap_unseen = false;   ///< map over a mapping is refused only at an equal start address
  bool map_past_end = false;     ///< map may run past the end of the memory; using that part faults
  bool rights_per_reservation = false;  ///< set_access changes all mappings of the reservation
  bool access_resets_offset = false;    ///< changing rights maps the memory anew from its start
  bool access_over_hole = false;        ///< set_access over unmapped addresses succeeds
  bool access_stops_midway =
      false;  ///< a refused set_access has changed the mappings before the bad place
  bool hint_ignored = false;       ///< reserve never gives the address of the hint
  bool free_unmaps = false;        ///< free_reservation with live mappings succeeds and drops them
  bool release_unchecked = false;  ///< release of mapped memory succeeds although it is not allowed
  /// A copy that the driver makes uses memory to which home has no right, where another has one.
  bool copies_ignore_rights = false;
  /// An imported handle reports no kind of sharing and no RDMA, and cannot be exported.
  bool imports_are_plain = false;
  bool stream_numbers_again = false;  ///< a new stream may have the number of a destroyed one
};

/// A driver to emulate.
export struct profile {
  const char* name = "";
  error_code_set codes = error_code_set::cuda;
  features can{};
  trap_set traps{};
  cost_table costs{};
  granularity device_granularity{};
  granularity host_granularity{};
  /// If not zero: device memory smaller than this has `small_granularity` instead.
  std::uint64_t small_below_bytes = 0;
  granularity small_granularity{};
  std::uint64_t address_alignment_bytes =
      0;                                  ///< every reservation starts and ends at a multiple of it
  std::uint64_t device_memory_bytes = 0;  ///< of each device
  std::uint64_t host_memory_bytes = 0;    ///< of the host, over all nodes
  std::int32_t device_count = 1;          ///< at most max_device_count
  /// For each device, one bit for each device whose memory it reaches; its own always.
  std::array<std::uint16_t, 16> reaches{0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF,
                                        0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF,
                                        0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF};
  std::int32_t node_count = 1;  ///< NUMA nodes; at most max_node_count
  location home{};
  bool fabric_permitted = false;  ///< this process may export fabric handles
  granularity multicast_granularity{};

  /// CUDA as measured on an H200, Level Zero by its specification, and memory files of Linux.
  /// docs/decisions/0004 has their accuracy.
  [[nodiscard]] static profile cuda() noexcept;
  [[nodiscard]] static profile level_zero() noexcept;
  [[nodiscard]] static profile host() noexcept;
  /// cuda() with calls that cost busy_factors times as much, as beside kernels and a busy host
  /// thread. docs/decisions/0004 has the measurements.
  [[nodiscard]] static profile busy_cuda() noexcept;
  static constexpr busy_table busy_factors{};
};

/// The maximum numbers of devices and NUMA nodes of a profile.
export inline constexpr std::int32_t max_device_count = 16;
export inline constexpr std::int32_t max_node_count = 15;

/// A failure as a driver names it.
export struct native_error {
  errc code = errc::none;
  std::int64_t native = 0;
  const char* native_name = "";
};

}  // namespace vmm::fake

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.fake:profile - the profiles and where their figures come from.
module vmm.fake;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm::fake {

namespace {

constexpr std::uint64_t kib = 1024;
constexpr std::uint64_t mib = 1024 * kib;
constexpr std::uint64_t gib = 1024 * mib;
constexpr std::uint64_t tib = 1024 * gib;

constexpr const char* half_granule = "addresses are aligned to a part of a granule";

cost_curve curve(std::initializer_list<cost_curve::point> points) {
  cost_curve made{};
  check(points.size() <= made.points.size(), "a curve has too many points");
  for (const cost_curve::point& each : points) {
    check(made.count == 0 || made.points[made.count - 1].size_bytes < each.size_bytes,
          "the sizes of a curve are not ascending");
    check(each.us >= 0, "a call has a negative cost");
    made.points[made.count++] = each;
  }
  return made;
}

void raise(cost_curve& of, double factor) {
  check(of.count != 0, "a call that changes memory costs nothing");
  check(factor >= 1, "a call is cheaper in a busy program");
  for (cost_curve::point& point : of.points) point.us *= factor;
}

cost_curve flat(double us) { return curve({{0, us}}); }

// One handle of a size, median host time on an H200 with driver 580.159.
cost_table h200_costs() {
  cost_table costs{};
  costs.create = curve({{2 * mib, 5.6},
                        {64 * mib, 5.9},
                        {256 * mib, 7.0},
                        {gib, 12.0},
                        {4 * gib, 60.0},
                        {16 * gib, 367.0}});
  costs.map = curve({{2 * mib, 0.5},
                     {64 * mib, 0.4},
                     {256 * mib, 0.5},
                     {gib, 0.5},
                     {4 * gib, 0.6},
                     {16 * gib, 1.0}});
  costs.set_access = curve({{2 * mib, 16.3},
                            {64 * mib, 16.7},
                            {256 * mib, 18.0},
                            {gib, 44.7},
                            {4 * gib, 112.0},
                            {16 * gib, 370.0}});
  costs.unmap = curve({{2 * mib, 11.3},
                       {64 * mib, 11.3},
                       {256 * mib, 11.3},
                       {gib, 22.2},
                       {4 * gib, 47.0},
                       {16 * gib, 144.0}});
  costs.release = curve({{2 * mib, 7.3},
                         {64 * mib, 19.3},
                         {256 * mib, 56.6},
                         {gib, 192.0},
                         {4 * gib, 784.0},
                         {16 * gib, 4236.0}});
  costs.reserve_us = 2.0;
  costs.free_reservation_us = 2.0;  // not measured: taken as reserve
  costs.query_us = 0.1;             // not measured: taken as an event query
  costs.create_event_us = 0.13;
  costs.record_event_us = 0.12;
  costs.query_event_us = 0.11;
  costs.wait_event_us = 0.09;
  costs.destroy_event_us = 0.07;
  costs.create_stream_us = 10.0;  // not measured
  costs.destroy_stream_us = 5.0;  // not measured
  costs.submit_us = 2.0;          // not measured
  // On two devices, 64 MiB: 64 to 82 us to give access and 39 to 48 to unmap, where one device took
  // 26 to 35 and 11.3. Other sizes were not measured, nor more devices.
  costs.peer_access_us = 42.0;
  costs.peer_unmap_us = 32.0;
  costs.export_us = 906.0;  // of the first export; later ones were not measured separately
  costs.import_us = 23.0;
  costs.clear_bytes_per_us = 430e3;    // 16 GiB in 40 ms
  costs.traffic_bytes_per_us = 4.2e6;  // 4.2 TB/s of reads plus writes
  costs.host_bytes_per_us = 50e3;      // not measured: a PCIe 5 link
  return costs;
}

// memfd and mmap on a Linux host: a map and unmap pair of 2 MiB 2.3 us, create and close 2.3, one
// mprotect 0.27.
cost_table linux_costs() {
  cost_table costs{};
  costs.create = flat(1.6);
  costs.release = flat(0.7);
  costs.map = flat(1.2);
  costs.unmap = flat(1.1);
  costs.set_access = flat(0.27);
  costs.reserve_us = 1.0;
  costs.free_reservation_us = 1.0;
  costs.query_us = 0.05;
  costs.submit_us = 0.05;
  costs.create_event_us = costs.record_event_us = costs.query_event_us = 0.05;
  costs.wait_event_us = costs.destroy_event_us = 0.05;
  costs.create_stream_us = costs.destroy_stream_us = 0.05;
  costs.export_us = 0.3;
  costs.import_us = 0.3;
  costs.traffic_bytes_per_us = 20e3;
  costs.host_bytes_per_us = 10e3;
  return costs;
}

}  // namespace

double cost_curve::at(std::uint64_t size_bytes) const noexcept {
  if (count == 0) return 0;
  if (count == 1 || size_bytes <= points[0].size_bytes) return points[0].us;
  std::size_t upper = 1;
  check(count <= points.size(), "a curve has too many points");
  while (upper + 1 < count && points[upper].size_bytes < size_bytes) ++upper;
  const point& low = points[upper - 1];
  const point& high = points[upper];
  check(high.size_bytes > low.size_bytes, "the points of a curve are out of order");
  const double share = static_cast<double>(size_bytes - low.size_bytes) /
                       static_cast<double>(high.size_bytes - low.size_bytes);
  return low.us + share * (high.us - low.us);
}

profile profile::cuda() noexcept {
  profile made{};
  made.name = "fake-cuda";
  made.codes = error_code_set::cuda;
  made.can.spanning_unmap = true;
  made.can.access_per_location = true;
  made.can.release_while_mapped = true;
  made.can.unmap_may_stall = true;
  made.can.fresh_memory_zero = true;
  made.can.streams = true;
  made.can.stream_identity = true;
  made.can.record_all = true;
  made.can.copy = true;
  made.can.capture = true;
  made.can.capturable_from = 2;  // the default stream is never captured
  made.can.default_stream_alias = 1;
  made.can.stream_per_thread = 2;
  made.can.retain = true;
  made.can.host_location = true;
  made.can.host_node_location = true;
  made.can.export_posix_fd = true;
  made.can.export_fabric = true;
  made.can.compression = true;
  made.can.rdma = true;
  made.can.peers = true;
  made.can.export_dma_buf = true;
  made.can.alias = alias_level::after_work;
  made.can.read_only = read_only_level::enforced;
  made.can.max_reservation_bytes = 64 * tib;
  made.traps.copies_ignore_rights = true;
  made.traps.imports_are_plain = true;
  made.costs = h200_costs();
  made.device_granularity = {2 * mib, 2 * mib};
  made.host_granularity = {2 * mib, 2 * mib};
  made.multicast_granularity = {2 * mib, 2 * mib};
  made.address_alignment_bytes = 2 * mib;
  made.device_memory_bytes = 143'771 * mib;
  made.host_memory_bytes = 256 * gib;
  made.home = device(0);
  check(made.address_alignment_bytes % made.device_granularity.minimum_bytes == 0, half_granule);
  return made;
}

profile profile::busy_cuda() noexcept {
  profile made = cuda();
  const busy_table& by = busy_factors;
  raise(made.costs.create, by.create);
  raise(made.costs.release, by.release);
  raise(made.costs.map, by.map);
  raise(made.costs.set_access, by.set_access);
  raise(made.costs.unmap, by.unmap);
  made.costs.reserve_us *= by.reserve;
  made.costs.free_reservation_us *= by.free_reservation;
  made.costs.peer_access_us *= by.peer_access;
  made.costs.peer_unmap_us *= by.peer_unmap;
  made.costs.record_event_us *= by.record_event;
  made.costs.query_event_us *= by.query_event;
  return made;
}

profile profile::level_zero() noexcept {
  profile made = cuda();  // its prices too: none were measured on such a device
  made.name = "fake-level-zero";
  made.codes = error_code_set::level_zero;
  made.can = features{};
  made.traps = trap_set{};
  made.can.offset_map = true;
  made.can.short_map = true;
  made.can.spanning_unmap = true;
  made.can.fresh_memory_zero = true;
  made.can.streams = true;
  made.can.copy = true;
  made.can.host_location = true;
  made.can.export_posix_fd = true;
  made.can.read_only = read_only_level::hint;
  made.can.alias = alias_level::none;
  made.can.max_reservation_bytes = 64 * tib;
  made.traps.cut_unmap_skips = true;
  made.traps.overlap_unseen = true;
  made.traps.rights_per_reservation = true;
  made.traps.access_resets_offset = true;
  made.traps.hint_ignored = true;
  made.traps.free_unmaps = true;
  made.traps.release_unchecked = true;
  made.small_below_bytes = 2 * mib;
  made.small_granularity = {64 * kib, 64 * kib};
  made.host_granularity = {64 * kib, 2 * mib};
  made.device_memory_bytes = 48 * gib;
  made.fabric_permitted = false;
  made.multicast_granularity = {};
  check(made.address_alignment_bytes % made.device_granularity.minimum_bytes == 0, half_granule);
  check(made.small_granularity.minimum_bytes < made.device_granularity.minimum_bytes,
        "small memory has no smaller granules");
  return made;
}

profile profile::host() noexcept {
  profile made{};
  made.name = "fake-host";
  made.codes = error_code_set::posix;
  made.can.offset_map = true;
  made.can.short_map = true;
  made.can.partial_unmap = true;
  made.can.spanning_unmap = true;
  made.can.partial_access = true;
  made.can.release_while_mapped = true;
  made.can.replace_in_place = true;
  made.can.exact_hint = true;
  made.can.fresh_memory_zero = true;
  made.can.copy = true;
  made.can.host_location = true;
  made.can.export_posix_fd = true;
  made.can.alias = alias_level::coherent;
  made.can.read_only = read_only_level::enforced;
  made.can.max_reservation_bytes = 64 * tib;
  made.can.max_mapping_count = 32'700;
  made.traps.map_past_end = true;
  made.traps.access_over_hole = true;
  made.traps.access_stops_midway = true;
  made.traps.free_unmaps = true;
  made.costs = linux_costs();
  made.device_granularity = {4 * kib, 4 * kib};
  made.host_granularity = {4 * kib, 4 * kib};
  made.address_alignment_bytes = 4 * kib;
  made.device_memory_bytes = 0;
  made.device_count = 0;
  made.host_memory_bytes = 64 * gib;
  made.home = vmm::host();
  check(made.address_alignment_bytes % made.host_granularity.minimum_bytes == 0, half_granule);
  return made;
}

}  // namespace vmm::fake

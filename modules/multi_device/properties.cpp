// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module vmm.multi_device;

import vmm.backend;
import vmm.base;
import vmm.manager;
import vmm.std;

namespace vmm {

result<physical_properties> probe_memory(driver_interface& driver, const physical_request& like) {
  const result<granularity> unit = driver.query_granularity(like);
  if (!unit) return unit.error();
  physical_request request = like;
  request.size_bytes = unit->minimum_bytes;
  check(request.size_bytes > 0, "a granule has no bytes");
  const result<physical_handle> made = driver.create(request);
  if (!made) return made.error();
  const result<physical_properties> granted = driver.get_properties(*made);
  status released = driver.release(*made);
  if (!released) released = driver.release(*made);  // a fault that strikes once leaves no trace
  if (!granted) return granted;
  return released ? granted : result<physical_properties>{released.error()};
}

result<physical_properties> granted_of(driver_interface& driver,
                                       std::span<const memory_segment> segments) {
  check(!segments.empty(), "a query for the properties of no memory");
  result<physical_properties> all = driver.get_properties(segments.front().handle);
  if (!all) return all;
  for (const memory_segment& each : segments.subspan(1)) {
    const result<physical_properties> one = driver.get_properties(each.handle);
    if (!one) return one;
    if (one->where != all->where) {
      return refuse(errc::foreign_error,
                    "the memory lies at several places: a part was spilled to the host");
    }
    const auto ways = static_cast<unsigned>(all->shareable) & static_cast<unsigned>(one->shareable);
    all->shareable = static_cast<share_kind>(ways);
    all->compressible = all->compressible && one->compressible;
    all->rdma_capable = all->rdma_capable && one->rdma_capable;
    check(!all->compressible || one->compressible, "I1: a property is granted that a handle lacks");
  }
  return all;
}

result<std::vector<memory_segment>> all_segments(manager& owner, address at) {
  const result<range_info> found = owner.find(at);
  if (!found) return found.error();
  const address_range whole{found->base, found->sizes.mapped_bytes};
  check(whole.contains({at, 1}) || whole.empty(), "the found block is not the requested one");
  result<std::vector<memory_segment>> listed = owner.segments(whole);
  check(!listed || !listed->empty(), "a block has no memory");
  return listed;
}

result<physical_properties> granted_of(manager& owner, address at) {
  const result<std::vector<memory_segment>> listed = all_segments(owner, at);
  if (!listed) return listed.error();
  return granted_of(owner.driver(), *listed);
}

}  // namespace vmm

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.multi_device:properties - the properties that a driver granted.
//
// A driver may decline compression without an error, so code that relies on it must query the
// handle. RDMA and shareable kinds are refused with an error if unavailable, and can be queried as
// well.
//
// I1  A property is granted only if every queried handle has it.
//
// Thread safety: that of the driver. Cost: a driver call for each handle.
export module vmm.multi_device:properties;

import vmm.backend;
import vmm.manager;
import vmm.std;

namespace vmm {

/// Creates one granule of memory with the requested properties, queries the granted ones, and
/// releases it. Errors: those of query_granularity, create, get_properties and release.
export [[nodiscard]] result<physical_properties> probe_memory(driver_interface& driver,
                                                              const physical_request& like);

/// The properties common to all the handles. Requires: at least one. Errors: foreign_error (they
/// are at several places), those of get_properties.
export [[nodiscard]] result<physical_properties> granted_of(
    driver_interface& driver, std::span<const memory_segment> segments);

/// All mappings of the manager's block that `at` lies in. Errors: as manager::segments.
[[nodiscard]] result<std::vector<memory_segment>> all_segments(manager& owner, address at);

/// The granted properties of a manager's block. Errors: as manager::segments and granted_of.
export [[nodiscard]] result<physical_properties> granted_of(manager& owner, address at);

}  // namespace vmm

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.special:properties - what a driver granted of what was wished for.
//
// Compression is a wish that a driver may decline without a word, so whoever counts on it asks the
// handle. RDMA and ways of sharing are refused when they cannot be had, and asked all the same.
//
// I1  A property is granted only if every handle asked about has it.
//
// Thread safety: that of the driver. Cost: a driver call for each handle.
export module vmm.special:properties;

import vmm.backend;
import vmm.manager;
import vmm.std;

namespace vmm {

/// Creates one granule of memory as wished for, asks what it is, and releases it.
/// Errors: what query_granularity, create, get_properties and release answer.
export [[nodiscard]] result<physical_properties> probe_memory(driver_interface& driver,
                                                              const physical_request& like);

/// What all the handles have. Requires: one at least. Errors: foreign_error (they lie at several
/// places), what get_properties answers.
export [[nodiscard]] result<physical_properties> granted_of(
    driver_interface& driver, std::span<const memory_segment> segments);

/// All mappings of the manager's block that `at` lies in. Errors: as manager::segments.
[[nodiscard]] result<std::vector<memory_segment>> all_segments(manager& owner, address at);

/// What the memory of a manager's block has. Errors: as manager::segments and granted_of.
export [[nodiscard]] result<physical_properties> granted_of(manager& owner, address at);

}  // namespace vmm

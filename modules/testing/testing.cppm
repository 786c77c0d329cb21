// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.testing - for tests of programs: a driver in plain memory (vmm.fake), and observers that
// count the calls of any driver and make them fail.
export module vmm.testing;

export import vmm.fake;
import vmm.observe;

namespace vmm {

export using vmm::call_counter;
export using vmm::fail_plan;

}  // namespace vmm

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include "../base/thread_annotations.h"

module vmm.manager;

import vmm.backend;
import vmm.base;
import vmm.optimizer;
import vmm.std;
import vmm.tracker;

namespace vmm {

result<block*> claim_block(manager_base& base, address at, pinned_record pinned) {
  if (!base.made_in.is_here()) return refuse_forked();
  if (!base.is_set_up.load(std::memory_order_acquire)) {
    return refuse(errc::unknown_address,
                  "the address is not of this manager: it has not allocated anything");
  }
  const result<tracked_range*> claimed = base.blocks->records().claim(at, pinned);
  if (claimed) {
    check((*claimed)->claimed && (*claimed)->base == at,
          "the claimed block is not the requested one");
    debug_check([&] { return base.blocks->space().contains(at); },
                "a block lies in no reservation");
    return &block_of(**claimed);
  }
  if (claimed.error().code == errc::not_allocated && !base.blocks->space().contains(at)) {
    return refuse(errc::unknown_address,
                  "the address is not of this manager: free it where it was allocated");
  }
  return claimed.error();
}

result<range_sizes> plan_sizes(const manager_base& base, std::uint64_t size_bytes,
                               std::uint64_t growth_bytes) {
  if (size_bytes == 0)
    return refuse(errc::invalid_argument, "a size of 0 bytes cannot be allocated");
  if (size_bytes > size_bytes_max || growth_bytes > size_bytes_max) {
    constexpr const char* detail = "a size is at most 2^56 bytes";
    return refuse(errc::invalid_argument, detail_text()
                                              .add(detail)
                                              .add("; not ")
                                              .add_number(std::max(size_bytes, growth_bytes))
                                              .keep(detail));
  }
  check(base.unit_bytes > 0, "sizes are computed before the granularity is known");
  const std::uint64_t mapped_bytes = round_up(size_bytes, base.unit_bytes);
  check(mapped_bytes >= size_bytes && mapped_bytes % base.unit_bytes == 0,
        "a size was rounded wrongly");
  return range_sizes{size_bytes, mapped_bytes,
                     mapped_bytes + round_up(growth_bytes, base.unit_bytes)};
}

}  // namespace vmm

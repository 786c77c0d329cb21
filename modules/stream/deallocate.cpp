// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// What allocate with an alignment and deallocate say when they cannot.
module vmm.stream;

import vmm.backend;
import vmm.std;
import vmm.support;

namespace vmm {

error stream_pool::refuse_alignment(std::uint64_t alignment_bytes) noexcept {
  if (!std::has_single_bit(alignment_bytes))
    return refuse(errc::invalid_argument, "an alignment is a power of two");
  check(alignment_bytes > alignment_bytes_max, "an alignment is refused that every block has");
  return refuse(errc::not_supported,
                "a stream pool aligns blocks to 512 bytes: ask for 512 or less, or allocate from a "
                "manager, which takes any power of two");
}

// Whatever else went wrong leaves the block live, and the pool says so when it goes.
void stream_pool::check_left_live(const error& failure) noexcept {
  check(!is_wrong_address(failure.code),
        "deallocate of an address that is no live block of this stream pool, or on a stream that "
        "is not there");
}

}  // namespace vmm

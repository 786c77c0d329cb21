// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Messages and secrets for the tests of vmm.share. It imports what it uses, so it is the last
// include.
#pragma once

#include <cstddef>
#include <cstdint>

import vmm.backend;
import vmm.share;

namespace share_test {

/// A secret, or a nonce, that differs with `seed`.
inline vmm::share_secret secret_of(unsigned char seed) {
  vmm::share_secret made;
  for (std::size_t i = 0; i < made.bytes.size(); ++i)
    made.bytes[i] = static_cast<std::byte>(seed * 31 + i);
  return made;
}

/// A block of `count` parts of `part_bytes` each, on the host.
inline vmm::share_description block_of(std::uint32_t count, std::uint64_t part_bytes) {
  vmm::share_description block;
  block.id = 1;
  block.kind = vmm::share_kind::posix_fd;
  block.where = vmm::host();
  block.granularity_bytes = 4096;
  block.part_count = count;
  for (std::uint32_t i = 0; i < count; ++i) block.part_bytes[i] = part_bytes;
  block.size_bytes = count * part_bytes;
  block.label = vmm::make_share_label("a block");
  return block;
}

}  // namespace share_test

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The live blocks of VMM_MODE=vmm, by address. A block's record is the entry that its free becomes:
// it is made before the block, goes from the table to the pending frees of its device, and neither
// of these steps takes host memory.
//
// I1  No two live blocks overlap: memory that is handed out is not handed out again.
// I2  The sizes of a device's live blocks add up to its levels().
// I3  A live block has memory, of an open device.
//
// Lock: blocks. Thread safety: all of it. Cost: O(log n) a call. The table is ordered, because
// queries pass addresses inside of blocks.
//
// It imports what it uses, so it comes after every include of the standard library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "abi.h"
#include "all_work_events.h"
#include "locks.h"

import vmm.backend;
import vmm.timeline;

namespace vmm::preload::managed {

class device_pools;
struct live_block;
using pending_blocks = pending_frees<live_block, event_point>;

/// The allocator of a device that a block is from.
enum class owner : std::uint8_t {
  unordered,  // the pool of the calls without a stream
  ordered,    // the pool of the calls with one
  manager,    // its blocks are copied by remapping: VMM_COPY
};

/// A block, live or freed. The key is its address.
struct live_block : index_node {
  std::size_t size = 0;
  std::uint64_t number = 0;  // no other block of the process has it
  device_pools* device = nullptr;
  owner from = owner::unordered;
  pending_blocks::entry* entry = nullptr;  // that this is in

  [[nodiscard]] device_pointer at() const noexcept { return key; }
  [[nodiscard]] bool is_ordered() const noexcept { return from == owner::ordered; }
  /// In whole units of its allocator, which counts so.
  [[nodiscard]] std::uint64_t held_bytes() const noexcept {
    const std::uint64_t unit_bytes = from == owner::manager ? std::uint64_t{2} << 20 : 512;
    return (size + unit_bytes - 1) / unit_bytes * unit_bytes;
  }
};

/// The block that an address lies in.
struct block_facts {
  device_pointer base = 0;
  std::size_t size = 0;
  std::uint64_t number = 0;
  context_id context = nullptr;
  pool_id pool = nullptr;   // of blocks that were allocated with a stream
  bool is_ordered = false;  // the block was
};
enum class place : std::uint8_t { elsewhere, in_block, in_free_memory };

/// The physical memory behind a block.
struct memory_piece {
  physical_id handle = 0;
  std::uint64_t size_bytes = 0;
};
struct block_memory {
  device_id device = -1;
  std::vector<memory_piece> pieces;  // in address order; empty: no such block
  std::uint64_t offset_bytes = 0;    // of the block in the first piece
  std::uint64_t size_bytes = 0;
  std::uint64_t number = 0;
};

class live_blocks {
 public:
  live_blocks() = default;
  live_blocks(const live_blocks&) = delete;
  live_blocks& operator=(const live_blocks&) = delete;

  /// Requires: an entry whose block has all but its number. Effects: the block is live. False: it
  /// overlaps a live one, and nothing is changed.
  [[nodiscard]] bool add(pending_blocks::owner& entry, device_pointer at) noexcept
      VMM_EXCLUDES(locks::blocks);
  /// Removes the block that begins there; null if none does.
  [[nodiscard]] pending_blocks::owner take(device_pointer at) noexcept VMM_EXCLUDES(locks::blocks);
  /// Whether any live block overlaps the range.
  [[nodiscard]] bool overlaps(device_pointer at, std::size_t size) const noexcept
      VMM_EXCLUDES(locks::blocks);

  /// Requires: an address of a reservation of the pools. `elsewhere` is not returned.
  [[nodiscard]] place find(device_pointer at, block_facts& into) const noexcept
      VMM_EXCLUDES(locks::blocks);
  /// The memory of a block of the calls without a stream. Throws std::bad_alloc.
  [[nodiscard]] block_memory memory_of(device_pointer base) const VMM_EXCLUDES(locks::blocks);
  /// The device on which both are whole blocks of the manager, the source of `size` bytes and the
  /// target of at least as many; null otherwise.
  [[nodiscard]] device_pools* find_copyable(device_pointer target, device_pointer source,
                                            std::size_t size) const noexcept
      VMM_EXCLUDES(locks::blocks);

  /// The device's context has ended, with its blocks.
  void forget(const device_pools& gone) noexcept VMM_EXCLUDES(locks::blocks);

  /// The bytes of a device's live blocks. O(n).
  [[nodiscard]] std::uint64_t bytes_on(const device_pools& device) const noexcept
      VMM_EXCLUDES(locks::blocks);
  /// Null, or the invariant that does not hold. Requires: no other call is in progress. Throws
  /// std::bad_alloc.
  [[nodiscard]] const char* find_broken() const VMM_EXCLUDES(locks::blocks);

 private:
  [[nodiscard]] live_block* begins_at(device_pointer at) const noexcept
      VMM_REQUIRES_SHARED(locks::blocks);
  [[nodiscard]] bool is_taken(device_pointer at, std::size_t size) const noexcept
      VMM_REQUIRES_SHARED(locks::blocks);

  ordered_index by_address_ VMM_GUARDED_BY(locks::blocks);
  std::uint64_t last_number_ VMM_GUARDED_BY(locks::blocks) = 0;
};

}  // namespace vmm::preload::managed

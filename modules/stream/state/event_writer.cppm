// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:event_writer - writes events of a pool to the history that is recorded. Not exported.
//
// Thread safety: none of its own; under the lock of the pool's state. Cost: a branch while nothing
// is recorded.
export module vmm.stream:event_writer;

import vmm.backend;
import vmm.base;
import vmm.observe;
import vmm.std;
import vmm.va;
import :geometry;
import :segment;

namespace vmm {

class event_writer {
 public:
  /// Null: nothing is recorded.
  void set_ring(history_ring* ring) noexcept { ring_ = ring; }
  [[nodiscard]] inline bool is_on() const noexcept { return ring_ != nullptr; }

  inline void note(const history_note& what) noexcept {
    if (is_on()) ring_->note(what);
  }
  /// A block's event, with the bytes that were requested.
  inline void note_block(history_kind kind, address_range block, std::uint64_t asked_bytes,
                         stream_handle stream) noexcept {
    if (is_on()) [[unlikely]]
      ring_->note_block(kind, block, asked_bytes, stream);
  }
  /// An event of the block of a region.
  void note_region(history_kind kind, const segment& in, region_id block,
                   stream_handle stream) noexcept {
    const granule_range where = in.range(block);
    check(where.count != 0, "an event is of an empty block");
    note_block(kind, {in.address_of(where.offset), where.count * granule_bytes}, 0, stream);
  }

 private:
  history_ring* ring_ = nullptr;
};

}  // namespace vmm

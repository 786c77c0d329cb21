// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:locked_blocks - pins, and allocations and frees of captured graphs: blocks that stay
// although they may be freed. Not exported.
//
// Owns nothing: it is created for a call, over the pool's state, by the holder of that state. Its
// invariants there:
//
// I1  A block that is freed while it is pinned stays, and is free when its last pin goes: for its
//     owner after free, which is the stream that freed it, or the graph's record.
// I2  A live block of a graph is locked until the graph is released; freed, it is free under the
//     graph's records only.
// I3  Each locked block that is freed or captured counts in the record that it names.
// I4  A block that is held stays as a pinned one does, until let_go(). Freed meanwhile, it is
//     freed on a stream that is not captured.
//
// Thread safety: none of its own; under the lock of the pool's state. Cost: O(1), except
// `release_graph()` and searches through graphs.
export module vmm.stream:locked_blocks;

import vmm.backend;
import vmm.observe;
import vmm.std;
import vmm.timeline;
import :capture_table;
import :geometry;
import :pool_state;
import :segment;

namespace vmm {

class locked_blocks {
 public:
  explicit locked_blocks(pool_state& state) noexcept : state_(state) {}

  // ---- pins ----
  /// Errors: unknown_address, not_allocated, out_of_host_memory, invalid_argument (2^32 pins, or
  /// inside a block).
  [[nodiscard]] status pin(address at) noexcept;
  /// Errors: unknown_address, not_allocated, invalid_argument (it is not pinned, or the address is
  /// inside a block).
  [[nodiscard]] status unpin(address at) noexcept;
  /// Live, and pinned or a captured graph's.
  [[nodiscard]] bool is_locked(address at) noexcept;
  /// Live, and pinned.
  [[nodiscard]] bool is_pinned(address at) noexcept;
  /// Whether the block has its mappings to itself. Errors: as pin.
  [[nodiscard]] result<bool> has_own_mappings(address at) noexcept;
  /// The block is held. Errors: as pin; not_permitted (a captured graph's).
  [[nodiscard]] status keep(address at) noexcept;
  /// Whose a held block is that was freed: the record, or none while it is live.
  [[nodiscard]] std::uint32_t freed_by(address at) noexcept;
  /// Requires: a block that is held. True where it was freed, and is free now: since `last_use`,
  /// where that is later than its free and its last pin.
  bool let_go(address at, const stream_point* last_use = nullptr) noexcept;
  /// The result of free(); changes nothing.
  [[nodiscard]] status check_live(address at) noexcept;
  /// The bytes that free() would release. Errors: as check_live().
  [[nodiscard]] result<address_range> live_range(address at) noexcept;
  /// What the table of blocks that are not locked does not have. Errors: as pool_state::free().
  [[nodiscard]] status free(segment& in, std::uint64_t offset_bytes, std::uint32_t stream) noexcept;

  // ---- captured graphs ----
  /// The record of what a stream of a capture may take. Errors: out_of_host_memory,
  /// in_use (too many).
  [[nodiscard]] result<std::uint32_t> enter_capture(std::uint64_t id,
                                                    stream_handle stream) noexcept;
  /// The block, just allocated for such a record, is the graph's until release_graph(). Errors:
  /// out_of_host_memory; the block is free for the record.
  [[nodiscard]] status give_to_capture(address at, std::uint32_t record) noexcept;
  /// What a captured stream frees: the capture's own goes to the record, any other is kept for the
  /// graph. Errors: unknown_address, not_allocated, not_permitted (another capture's).
  [[nodiscard]] status free_in_capture(address at, std::uint32_t record) noexcept;
  /// The error that free_in_capture() would return; changes nothing.
  [[nodiscard]] status check_free_in_capture(address at, std::uint32_t record) noexcept;
  /// What a graph keeps becomes free for `to`, some of it: true when that was the last, and the
  /// graph is forgotten; its live blocks are as any others then. Cost: O(1) for each of at most
  /// 1024 regions, and at the last the locked blocks.
  [[nodiscard]] bool release_graph(std::uint64_t id, const stream_point& to) noexcept;

 private:
  [[nodiscard]] result<captured_graph*> provide_capture(std::uint64_t id,
                                                        stream_handle stream) noexcept;
  [[nodiscard]] result<std::uint32_t> owner_after_free(const segment::found_block& block,
                                                       std::uint32_t record) const noexcept;
  void note(history_kind kind, const segment::found_block& block, std::uint32_t stream) noexcept;
  [[nodiscard]] history_kind freed_for(std::uint32_t stream) const noexcept;
  void end_capture(block_lock& lock) noexcept;
  void give_free(const segment::found_block& block, const block_lock& lock,
                 const stream_point& since) noexcept;
  void free_for(const segment::found_block& block, block_lock lock, std::uint32_t owner) noexcept;
  void forget_captured(const captured_graph& gone, std::uint32_t owner) noexcept;

  pool_state& state_;
};

}  // namespace vmm

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:idle_handles - claims of free handles; handles and stale mappings that are unmapped.
// Not exported.
//
// Owns nothing: it is made for a call, over the pool's state, and keeps I5 of pool_state.
//
// Thread safety: none of its own; under the lock of the pool's state. Cost: at each call.
export module vmm.stream:idle_handles;

import vmm.backend;
import vmm.physical;
import vmm.std;
import :mappings;
import :pool_state;

namespace vmm {

class idle_handles {
 public:
  explicit idle_handles(pool_state& state) noexcept : state_(state) {}

  /// How many stale mappings to unmap before there may be more: those beyond the policy's count.
  [[nodiscard]] std::size_t surplus_stale_count() const noexcept;
  /// A stale mapping is undone.
  void stale_unmapped(mapping& gone) noexcept;
  /// A walk over the free handles that ends when it has claimed `size_bytes` or has visited as many
  /// handles as exist now. With `made_for` it claims what that announcement created and nothing
  /// has used.
  /// One walk at a time, under the lock of growth.
  [[nodiscard]] free_handle_walk begin_walk(std::uint64_t size_bytes,
                                            std::uint64_t made_for = 0) const noexcept;
  /// Continues the walk, past `looks_max` handles at most, and claims those whose memory and
  /// addresses are unused. False when the walk has ended. Where the next one ceased to be free
  /// between two calls, the rest of its stream is left out. Errors: out_of_host_memory; claimed
  /// handles are in `out`.
  [[nodiscard]] result<bool> claim_idle(free_handle_walk& walk, std::size_t looks_max,
                                        std::vector<handle_record*>& out) noexcept;
  /// All the mappings of a claimed handle are undone: its addresses become a hole, and its record
  /// is freed.
  [[nodiscard]] physical_memory& handle_unmapped(handle_record& gone) noexcept;
  /// A claimed handle could not be unmapped: it is free again.
  void handle_stays(handle_record& kept) noexcept;
  /// A free handle leaves its list, and its regions theirs; each remembers whose it was.
  /// Errors: out_of_host_memory; nothing is claimed.
  [[nodiscard]] status claim_handle(handle_record& h) noexcept;
  /// Frees the handle again, and its regions for their former owners.
  void return_handle(handle_record& h) noexcept;
  /// Appends each current mapping in address order. Errors: out_of_host_memory.
  [[nodiscard]] status list_current(std::vector<mapping*>& out) const noexcept;

 private:
  [[nodiscard]] bool is_idle(const handle_record& h) const noexcept;
  [[nodiscard]] bool is_unused(const handle_record& h) const noexcept;

  pool_state& state_;
};

}  // namespace vmm

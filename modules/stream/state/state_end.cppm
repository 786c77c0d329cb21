// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:state_end - the end of a pool's state: all of its memory becomes free. Not exported.
//
// Owns nothing: it is made for a call, over the pool's state.
//
// Thread safety: none of its own; no other thread reaches the state. Cost: O(regions).
export module vmm.stream:state_end;

import vmm.std;
import :pool_state;

namespace vmm {

class state_end {
 public:
  explicit state_end(pool_state& state) noexcept : state_(state) {}

  /// Requires: all work has finished. Effects: every block and captured graph ends, and all memory
  /// is free and finished.
  void release_all() noexcept;

 private:
  void release_graphs_memory() noexcept;
  void release_blocks() noexcept;

  pool_state& state_;
};

}  // namespace vmm

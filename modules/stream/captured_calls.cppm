// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:captured_calls - allocate and free on streams that are being captured into a graph,
// and the end of a graph. Not exported.
//
// I1  A captured graph gets memory that no unfinished work uses, since it cannot be made to wait;
//     nothing else gets that memory before the graph is released.
//
// Thread safety: all of it. Cost: driver calls by handles created; no memory moves to a graph.
module;
#include "../base/thread_annotations.h"

export module vmm.stream:captured_calls;

import vmm.backend;
import vmm.base;
import vmm.optimizer;
import vmm.std;
import :capture_watch;
import :geometry;
import :growth_entry;
import :locks;
import :memory_parts;
import :options;
import :pool_base;
import :pool_history;
import :shortage;
import :slow_path;
import :state_lock;

namespace vmm {

class captured_calls {
 public:
  captured_calls(const pool_base& base, memory_parts& parts, pool_shortage& shortage,
                 slow_path& slow) noexcept
      : driver_(base.driver),
        state_(base.path.state()),
        entry_(base.entry),
        captures_(base.captures),
        events_(base.events),
        parts_(parts),
        shortage_(shortage),
        slow_(slow) {}
  captured_calls(const captured_calls&) = delete;
  captured_calls& operator=(const captured_calls&) = delete;

  /// Requires: `seen` is the stream's capture. Errors: not_permitted (it was invalidated, or the
  /// options refuse it), as slow_path::allocate().
  [[nodiscard]] result<address> allocate(const block_shape& shape, stream_handle stream,
                                         const capture_info& seen)
      VMM_EXCLUDES(rank::growth, rank::events, rank::state);
  /// Requires: `seen` is the stream's capture. Errors: not_permitted, those of a wrong address.
  [[nodiscard]] status free(address at, stream_handle stream, const capture_info& seen)
      VMM_EXCLUDES(rank::events, rank::state);
  /// Checks that free() will succeed, and makes the stream's record. Errors: as free().
  [[nodiscard]] status enter_to_free(address at, stream_handle stream, const capture_info& seen)
      VMM_EXCLUDES(rank::events, rank::state);
  /// pool_captures::release().
  [[nodiscard]] status release(std::uint64_t number, stream_handle stream)
      VMM_EXCLUDES(rank::growth, rank::events, rank::state);

 private:
  [[nodiscard]] status enter(stream_handle stream, const capture_info& seen)
      VMM_EXCLUDES(rank::events, rank::state);
  [[nodiscard]] result<address> allocate_once(slow_call& call, const capture_info& seen)
      VMM_EXCLUDES(rank::growth, rank::events, rank::state);
  [[nodiscard]] result<address> take(const stream_request& request, slow_call& call)
      VMM_REQUIRES(rank::growth) VMM_EXCLUDES(rank::events, rank::state);

  driver_interface& driver_;
  state_cell& state_;
  growth_entry& entry_;
  capture_watch& captures_;
  pool_history& events_;
  memory_parts& parts_;
  pool_shortage& shortage_;
  slow_path& slow_;
};

}  // namespace vmm

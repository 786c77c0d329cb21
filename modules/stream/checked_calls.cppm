// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:checked_calls - the steps of allocate and free beside the memory itself: the query
// whether the stream is being captured, fills, the observer. Not exported.
//
// I1  A block of new mappings is filled before it is returned.
//
// A block is filled only while its memory cannot be suspended. The observer is called for a block
// under the rank of observer.
//
// Thread safety: all of it. Cost: a query of the driver if the stream can be captured, one fill if
// the options fill.
module;
#include "../base/thread_annotations.h"

export module vmm.stream:checked_calls;

import vmm.backend;
import vmm.base;
import vmm.optimizer;
import vmm.std;
import :call_path;
import :capture_watch;
import :captured_calls;
import :geometry;
import :growth_entry;
import :locks;
import :memory_parts;
import :notifier;
import :options;
import :pool_base;
import :slow_path;
import :state_lock;

namespace vmm {

class checked_calls {
 public:
  checked_calls(const pool_base& base, memory_parts& parts, slow_path& slow,
                captured_calls& captured) noexcept
      : driver_(base.driver),
        options_(base.options),
        contents_(base.contents),
        phases_(base.phases),
        path_(base.path),
        state_(base.path.state()),
        entry_(base.entry),
        captures_(base.captures),
        notices_(base.notices),
        relief_(base.relief),
        parts_(parts),
        slow_(slow),
        captured_(captured) {}
  checked_calls(const checked_calls&) = delete;
  checked_calls& operator=(const checked_calls&) = delete;

  /// stream_pool::allocate(), with or without the check.
  [[nodiscard]] result<address> allocate(const block_shape& shape, stream_handle stream)
      VMM_EXCLUDES(rank::growth, rank::events, rank::state);
  [[nodiscard]] result<address> allocate_uncaptured(const block_shape& shape, stream_handle stream)
      VMM_EXCLUDES(rank::growth, rank::events, rank::state);
  /// stream_pool::allocate_dedicated().
  [[nodiscard]] result<address> allocate_dedicated(std::uint64_t size_bytes, stream_handle stream)
      VMM_EXCLUDES(rank::growth, rank::events, rank::state);
  /// stream_pool::free(), with the check.
  [[nodiscard]] status free(address at, stream_handle stream)
      VMM_EXCLUDES(rank::growth, rank::events, rank::state);
  /// The same after all work of the device.
  [[nodiscard]] status free(address at) VMM_EXCLUDES(rank::growth, rank::events, rank::state);

 private:
  [[nodiscard]] result<address> allocate_observed(const block_shape& shape, stream_handle stream)
      VMM_EXCLUDES(rank::growth, rank::events, rank::state);
  [[nodiscard]] result<address> allocate_on(const block_shape& shape, stream_handle stream)
      VMM_EXCLUDES(rank::growth, rank::events, rank::state);
  [[nodiscard]] status free_observed(address at, stream_handle stream)
      VMM_EXCLUDES(rank::events, rank::state);
  [[nodiscard]] status free_as_seen(address at, stream_handle stream, const capture_info& seen)
      VMM_EXCLUDES(rank::events, rank::state);
  [[nodiscard]] status enter_to_free(address at, stream_handle stream, const capture_info& seen)
      VMM_EXCLUDES(rank::events, rank::state);
  [[nodiscard]] status free_filled(address at, stream_handle stream)
      VMM_EXCLUDES(rank::events, rank::state);
  [[nodiscard]] result<address> fill_acquired(address at, stream_handle stream,
                                              const capture_info& seen)
      VMM_EXCLUDES(rank::events, rank::state);
  [[nodiscard]] status fill_released(address at, stream_handle stream) VMM_REQUIRES(rank::change)
      VMM_EXCLUDES(rank::state);
  [[nodiscard]] status free_into_batch(address at) VMM_EXCLUDES(rank::state);
  // Allocates by `make`, which returns result<address>, and calls the observer.
  template <class Make>
  [[nodiscard]] result<address> observe_made(const block_shape& shape, Make&& make)
      VMM_EXCLUDES(rank::growth, rank::events, rank::state);
  // Frees by `free`, which returns a status, and calls the observer for a block that is not locked.
  template <class Free>
  [[nodiscard]] status observe_free(address at, Free&& free) VMM_EXCLUDES(rank::state);

  driver_interface& driver_;
  const pool_options& options_;
  const content_filler& contents_;
  suspension_phases& phases_;
  call_path& path_;
  state_cell& state_;
  growth_entry& entry_;
  capture_watch& captures_;
  notifier& notices_;
  relief_member& relief_;
  memory_parts& parts_;
  slow_path& slow_;
  captured_calls& captured_;
};

}  // namespace vmm

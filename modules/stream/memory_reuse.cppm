// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:memory_reuse - serves a request from free memory: the stream's own, memory that others
// have finished with, also after coalescing, another arena's. Not exported.
//
// I1  Memory that unfinished work of another stream may use is handed out only behind a wait for
//     that work on the device.
//
// Each call returns no address if it does not serve the request. Errors: out_of_host_memory, driver
// errors.
//
// Thread safety: all of it, under the lock of growth. Cost: a query of the driver for each stream
// whose memory is considered.
module;
#include "../base/thread_annotations.h"

export module vmm.stream:memory_reuse;

import vmm.backend;
import vmm.base;
import vmm.std;
import vmm.timeline;
import :arena;
import :arena_lending;
import :block_rights;
import :call_path;
import :geometry;
import :growth_entry;
import :growth_planner;
import :locks;
import :options;
import :pool_base;
import :pool_state;
import :state_lock;
import :stream_clock;
import :stream_memory;

namespace vmm {

class memory_reuse {
 public:
  memory_reuse(const pool_base& base, stream_clock& clock, block_rights& rights) noexcept
      : options_(base.options),
        state_(base.path.state()),
        entry_(base.entry),
        path_(base.path),
        time_(base.core.time),
        clock_(clock),
        rights_(rights) {}
  memory_reuse(const memory_reuse&) = delete;
  memory_reuse& operator=(const memory_reuse&) = delete;

  // ---- memory of streams ----
  /// Free memory of the stream or the captured graph, and memory that other streams have finished
  /// with.
  [[nodiscard]] result<address> own_or_finished(const stream_request& request)
      VMM_REQUIRES(rank::growth) VMM_EXCLUDES(rank::events, rank::state);
  /// Whether the request takes the lowest address that fits in the memory of all streams. Searching
  /// one stream after the other finds another address, and splits large places of later streams.
  [[nodiscard]] bool is_first_fit(const stream_request& request) VMM_EXCLUDES(rank::state);
  /// From the stream's memory after it has received all memory that others have finished with. If
  /// that does not serve the request, a growth continues it.
  [[nodiscard]] result<address> finished_of_all(const stream_request& request)
      VMM_REQUIRES(rank::growth) VMM_EXCLUDES(rank::events, rank::state);
  /// From memory of another stream, for whose work this one waits on the device.
  [[nodiscard]] result<address> behind_wait(const growth_attempt& attempt,
                                            const other_stream_search& how)
      VMM_REQUIRES(rank::growth) VMM_EXCLUDES(rank::events, rank::state);
  /// After coalescing finished memory with its neighbours.
  [[nodiscard]] result<address> coalesced(const stream_request& request) VMM_REQUIRES(rank::growth)
      VMM_EXCLUDES(rank::state);

  // ---- memory of arenas ----
  /// For a warm call with arenas: from the stream's own, which the pool refills, then from another
  /// one. Empty: not served.
  [[nodiscard]] address allocate_in_arena(const arena_table& arenas, std::uint64_t size_bytes,
                                          stream_handle stream) noexcept
      VMM_EXCLUDES(rank::growth, rank::events, rank::state);
  /// From memory of another arena whose stream has finished with it.
  [[nodiscard]] result<address> from_arena(const stream_request& request, stream_handle stream)
      VMM_REQUIRES(rank::growth) VMM_EXCLUDES(rank::events, rank::state);
  /// From memory of arenas. If much is free and no region serves, neighbours of several arenas are
  /// coalesced: else each stream that splits transferred memory would make the pool grow.
  [[nodiscard]] result<address> after_flush(const stream_request& request)
      VMM_REQUIRES(rank::growth) VMM_EXCLUDES(rank::events, rank::state);
  /// An arena is optional: without host memory for one the pool serves. A request that its stream's
  /// arena may serve leaves the memory to a stream without one.
  void provide_arena(const stream_request& request, stream_handle stream) noexcept
      VMM_REQUIRES(rank::growth) VMM_EXCLUDES(rank::state);

 private:
  struct transfer_under_way {
    arena_transfer what{};
    point_answer answer{};  // with permission to record an event for its free
  };

  // The first steps of the slow path with arenas, under three holds of the state's lock instead of
  // a dozen. The slow path reports errors.
  [[nodiscard]] address take_between_arenas(std::uint64_t size_bytes, stream_handle stream) noexcept
      VMM_EXCLUDES(rank::growth, rank::events, rank::state);
  [[nodiscard]] result<address> finished_of(const stream_request& request,
                                            std::span<const stream_point> others)
      VMM_REQUIRES(rank::growth) VMM_EXCLUDES(rank::events, rank::state);
  [[nodiscard]] static transfer_under_way begin_transfer(pool_state& state,
                                                         const stream_request& request) noexcept
      VMM_REQUIRES(rank::state);
  [[nodiscard]] result<address> finish_transfer(transfer_under_way&& moving,
                                                const stream_request& request, stream_handle stream)
      VMM_REQUIRES(rank::growth) VMM_EXCLUDES(rank::events, rank::state);
  const pool_options& options_;
  state_cell& state_;
  growth_entry& entry_;
  call_path& path_;
  timeline& time_;
  stream_clock& clock_;
  block_rights& rights_;
};

}  // namespace vmm

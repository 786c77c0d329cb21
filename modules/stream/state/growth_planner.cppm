// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:growth_planner - the plan of a growth: its memory and its target. Not exported.
//
// Owns nothing: it is created for a call, over the pool's state, by the holder of that state. A
// growth is one growth_plan, which its caller keeps from plan() to commit(), commit_free() or
// abandon() (:growth_commit). :ahead_planner plans growths ahead of requests.
//
// I1  plan() claims the target range, the handles that move and, where the target continues free
//     memory of the stream, that. Claimed memory is in no list and belongs to the plan.
// I2  A refused plan has claimed nothing; abandon() returns everything claimed.
// I3  After prepare() the slots tile the target, in the order of the pieces.
// I4  The plan's waits cover every point of another stream's work that may use what moves.
//
// One plan at a time: the claims of one are invisible to the next. Thread safety: none of its own;
// each call under the lock of the pool's state, the plan under that of growth. Cost: O(1) for each
// handle and region that a plan claims; it considers at most 64 ends and 64 streams.
export module vmm.stream:growth_planner;

import vmm.backend;
import vmm.base;
import vmm.optimizer;
import vmm.physical;
import vmm.std;
import vmm.timeline;
import vmm.va;
import :geometry;
import :mappings;
import :pool_state;
import :segment;
import :statistics;

namespace vmm {

/// One handle's place in a target range.
struct mapping_slot {
  mapping* where = nullptr;
  handle_record* of = nullptr;
  region_id region = region_id::none;
};

/// Memory and addresses claimed for one request.
struct growth_plan {
  stream_request request{};
  std::uint32_t segment = 0;
  region_id start = region_id::none;  // free memory of the stream that the target continues
  region_id target = region_id::none;
  std::uint32_t target_granules = 0;
  std::uint32_t create_granules = 0;
  std::uint32_t handle_granules = 0;  // largest new handle; 0: the policy's
  std::uint64_t made_for = 0;         // an announcement; 0: a request
  std::uint64_t moved_granules = 0;
  std::uint64_t piece_ns = 0;  // what the driver took to map a piece, in the mean
  std::vector<handle_record*> moved{};
  std::vector<mapping_slot> slots{};
  std::vector<stream_point> waits{};
  memory_list memories{};  // in mapping order
  address at{};
};

/// How hard a plan tries.
struct growth_effort {
  bool may_move = true;            ///< handles may be moved
  bool use_all_free = false;       ///< free handles are used up before anything is created
  bool needed_only = false;        ///< no more is created than the request lacks
  bool dedicated = false;          ///< the target continues no free memory
  double least_headroom = 0;       ///< where it is more than the policy's
  std::uint64_t held_bytes = 0;    ///< physical memory that the pool has now
  std::uint64_t limit_bytes = 0;   ///< the limit of its physical memory; 0: unknown
  std::optional<error> refusal{};  ///< out_of_memory of an earlier attempt for this request
};

/// A request that nothing free serves, and what may be done for it.
struct growth_attempt {
  stream_request request{};
  bool has_headroom = false;       // new memory is wanted rather than that of other streams
  bool may_wait = true;            // no stream that would be waited for is being captured
  bool was_refused = false;        // a wait, by a capture
  relief_pass* relief = nullptr;   // of an attempt that may stop before it waits for work
  std::optional<error> refusal{};  // out_of_memory, of the latest attempt
  std::optional<std::uint64_t> created_mark{};  // memory created since belongs to this request
  shortage_report tried{};
};

/// What the driver has made of a plan.
struct growth_outcome {
  status done{};
  memory_list fresh{};             // new pieces
  std::size_t standing_count = 0;  // of a failure: leading pieces that are still mapped
};

/// A search for free handles in the smallest free regions first, from one handle to the next.
struct handle_search {
  std::uint32_t stream = 0;
  std::uint32_t least_granules = 0;  // smaller regions have none; 0: not begun
  std::uint32_t looks_left = 0;
  std::uint32_t segment = 0;
  region_id last = region_id::none;  // in that segment, had one
};

class growth_planner {
 public:
  explicit growth_planner(pool_state& state) noexcept
      : state_(state), sizes_(state.sizes()), records_(state.records()) {}

  /// True where creating all of it would keep the pool's memory within the policy's headroom.
  [[nodiscard]] bool has_headroom(const stream_request& request,
                                  std::uint64_t held_bytes) const noexcept;
  /// Claims memory to move, and addresses for it and for memory to create.
  /// Errors: out_of_addresses (no hole takes it), out_of_host_memory; nothing is claimed.
  [[nodiscard]] result<growth_plan> plan(const stream_request& request,
                                         const growth_effort& effort) noexcept;

 private:
  friend class ahead_planner;  // a plan of one step

  [[nodiscard]] std::uint64_t headroom(const stream_request& request, std::uint64_t held_bytes,
                                       double least = 0) const noexcept;
  [[nodiscard]] bool may_move(const stream_request& request,
                              const growth_effort& effort) const noexcept;
  void choose_start(growth_plan& plan, std::uint64_t more_granules) noexcept;
  void choose_start_at_hole(growth_plan& plan) noexcept;
  void claim_start(growth_plan& plan) noexcept;
  [[nodiscard]] status collect(const growth_effort& effort, growth_plan& plan) noexcept;
  [[nodiscard]] std::uint32_t create_size(const growth_plan& plan, std::uint32_t rest_granules,
                                          std::uint64_t room_granules,
                                          const growth_effort& effort) const noexcept;
  [[nodiscard]] std::uint32_t handle_size(bool scattered, std::uint64_t held_bytes,
                                          std::uint32_t create_granules) const noexcept;
  [[nodiscard]] std::uint32_t within_limit(std::uint32_t handle_granules,
                                           std::uint32_t create_granules,
                                           const growth_effort& effort) const noexcept;
  [[nodiscard]] handle_record* choose_handle(const growth_plan& plan, std::uint32_t rest_granules,
                                             const growth_effort& effort,
                                             handle_search& search) const noexcept;
  [[nodiscard]] handle_record* in_smallest_region(std::uint32_t stream,
                                                  handle_search& search) const noexcept;
  [[nodiscard]] const free_handle_bins* longest_free(std::uint32_t stream,
                                                     const growth_effort& effort) const noexcept;
  [[nodiscard]] bool waits_for_all(const stream_point& freed,
                                   const growth_effort& effort) const noexcept;
  [[nodiscard]] bool list_with_batch(handle_record& h, const growth_effort& effort) noexcept;
  // The size of a hole beyond the target to be continued there.
  [[nodiscard]] std::uint64_t spare() const noexcept {
    check(sizes_.page_granules != 0, "a page has no granule");
    return 2 * std::max<std::uint64_t>(sizes_.page_granules,
                                       sizes_.policy.handle_bytes_max / granule_bytes);
  }
  [[nodiscard]] bool overshoots(const handle_record& next, const growth_plan& plan) const noexcept;
  [[nodiscard]] status claim_region_of(const handle_record& first, const growth_effort& effort,
                                       growth_plan& plan) noexcept;
  [[nodiscard]] status claim_handle(handle_record& h, growth_plan& plan) noexcept;
  void add_wait(growth_plan& plan, const stream_point& point) const noexcept;
  [[nodiscard]] bool claim_target(growth_plan& plan) noexcept;
  [[nodiscard]] bool claim_target_anywhere(growth_plan& plan) noexcept;
  [[nodiscard]] bool take_hole(region_id hole, std::uint32_t lead_granules,
                               growth_plan& plan) noexcept;

  pool_state& state_;
  const pool_geometry& sizes_;
  mappings& records_;
};

}  // namespace vmm

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:options - the options of a pool: placement, growth and movement, as values.
//
// Thread safety: values only; from_environment as getenv. Cost: none.
export module vmm.stream:options;

import vmm.backend;
import vmm.observe;
import vmm.optimizer;
import vmm.std;

namespace vmm {

export using vmm::block_observer;
export using vmm::contents_rule;
export using vmm::memory_segment;
export using vmm::poison_byte;

/// The parts of a policy that are set by measurements. They may change with any release.
/// docs/decisions/0006 has the origin of the default's numbers.
export struct pool_tuning {
  /// Requests of at least this size take the lowest address that fits in any stream's finished
  /// memory. Smaller ones take the smallest region, of their own stream first, and of every stream
  /// before the pool grows. A power of two from 512 to 2^38; 0: always the smallest region, and a
  /// stream takes only the requested size of another's memory. In a pool with arenas such a request
  /// is placed in memory of its own stream.
  std::uint64_t first_fit_bytes = std::uint64_t{16} << 20;
  /// Largest new handle if free memory is scattered, since stranded memory is part of a handle.
  /// At most handle_bytes_max. 0: no such rule.
  std::uint64_t small_handle_bytes = std::uint64_t{16} << 20;
  /// Driver time of moves for an allocation or free, in the mean of the last 200,000, above which
  /// the headroom increases: by 0.23 at twice this time. Moves of requests that raise the peak of
  /// live bytes do not count, and a move counts 17.5 us at most. 0: no such rule.
  std::uint64_t move_budget_ns = 40;
  /// While less than this is held, a new handle is at most a 12th of it, or a 32nd if free memory
  /// is scattered, but at least 8 MiB: a large handle is a large part of a small program. Only with
  /// a growth_share or small handles. 0: no such rule.
  std::uint64_t small_pool_bytes = std::uint64_t{512} << 20;
  /// Added to the memory that a policy's headroom allows.
  std::uint64_t slack_bytes = std::uint64_t{4} << 20;
  /// Requests smaller than both move nothing: than this share of the live bytes' peak
  /// (1 / min_move_share; 0: any request may move memory), and than min_move_bytes.
  std::uint32_t min_move_share = 64;
  std::uint64_t min_move_bytes = std::uint64_t{8} << 20;
  /// New memory is at least this share of memory held (1 / growth_share), within the headroom; and
  /// a third of that beyond the headroom if live bytes reach a new peak. At most handle_bytes_max.
  /// 0: the requested size alone.
  std::uint32_t growth_share = 32;
  std::uint64_t growth_gap_bytes = std::uint64_t{4} << 30;  ///< addresses left for growth in place
  bool whole_pages = false;    ///< requests of a page and more take whole pages
  bool smallest_hole = false;  ///< new places go to the smallest hole that takes the whole request
  bool oldest_first =
      false;  ///< free regions are moved whole and oldest first, not handles by size
  /// Every block is driver memory of its own, of whole pages, which is released once the work
  /// before its free has finished: at that free, or at a later allocation or free.
  bool keep_none = false;
  /// Stale mappings beyond this count whose work has finished are unmapped at the start of growths:
  /// 8 of them, or a 64th, at most 64. preallocate() unmaps those beyond half of it. Each holds
  /// addresses and a mapping, but no memory.
  std::uint64_t stale_count_max = 4096;

  /// The options that have a range; the rows' details say which.
  [[nodiscard]] static std::span<const option_row<pool_tuning>> ranges() noexcept;
};

/// Placement, growth and movement.
export struct pool_policy {
  const char* name = "pool";
  /// Largest new handle; 0: one page. With a growth_share a new handle is 1 / (2 * growth_share) of
  /// memory held, from half of handle_bytes_max to all of it; at most half while little memory is
  /// held, or if free memory is too scattered to serve.
  std::uint64_t handle_bytes_max = std::uint64_t{24} << 20;
  /// Memory is created without moving any while memory held stays below headroom times the peak of
  /// live bytes, plus slack_bytes. From 0 to 1000.
  double headroom = 1.02;
  /// Stale mappings are unmapped at the start of each allocation, not on demand.
  bool eager_unmap = false;
  pool_tuning tuning{};  ///< for measurements

  /// The default: little memory above live bytes for little driver time.
  [[nodiscard]] static pool_policy near_live() noexcept;
  /// The original vpmm: page-sized handles, best fit, oldest regions moved first.
  [[nodiscard]] static pool_policy vpmm() noexcept;
  /// Pooling turned off (tuning.keep_none), for comparisons and for programs that share a device.
  [[nodiscard]] static pool_policy off() noexcept;
  /// One of the above: "pool", "vpmm" or "off". Errors: bad_option.
  [[nodiscard]] static result<pool_policy> by_name(std::string_view name) noexcept;

  /// The options of the policy itself that have a range.
  [[nodiscard]] static std::span<const option_row<pool_policy>> ranges() noexcept;
  /// Errors: bad_option; the detail names the option and its range.
  [[nodiscard]] status validate() const noexcept;
};

/// Allocate and free on a stream that is being captured into a graph. Memory of a graph must stay
/// in place while the graph lives, freed or not.
export enum class capture_rule : std::uint8_t {
  refuse,          // they return not_permitted and change nothing
  private_memory,  // the graph gets memory of its own, until captures().release()
  unchecked,       // no driver queries: no stream of this pool is ever captured
};

/// When a stream gets an arena: free memory with a lock of its own, from which allocate and free
/// take no lock that other streams use. Arenas are flushed before the pool grows.
/// docs/decisions/0021.
export enum class arena_rule : std::uint8_t {
  when_contended,  // once threads have waited for another on the pool's lock
  always,          // from a stream's first growth on
  never,
};

/// The options of a pool: placement, pages, captures, and those shared with the manager
/// (memory_options).
export struct pool_options : memory_options {
  pool_policy policy = pool_policy::near_live();
  /// Handles are multiples of it; rounded up to the granularity. 0: the recommended one.
  std::uint64_t page_bytes = 0;
  std::uint64_t page_count = 0;  ///< pages mapped when the pool is set up
  stream_handle first_stream = stream_handle::default_stream;  ///< their stream
  /// On backends that can capture, refuse and private_memory query the driver in every call on a
  /// stream that can be captured: any but CUDA's default stream.
  capture_rule capture = capture_rule::refuse;
  /// The program promises `captures().begin()` before each capture on a stream used with the pool,
  /// and `captures().end()` after it. The driver is then queried only in between, and when the pool
  /// needs it anyway. A call served from free memory does not detect an unannounced capture.
  bool captures_announced = false;
  /// Streams that a free is not ordered behind may still use the block, as PyTorch's own allocator
  /// allows: it keeps memory with its stream. The memory goes to another stream, or is unmapped,
  /// only behind all work of the device. No effect on drivers without features::record_all.
  bool undeclared_uses = false;
  /// No arenas with an observer, with fills, and under policy.eager_unmap; empty while a history is
  /// recorded.
  arena_rule stream_arenas = arena_rule::when_contended;
  block_observer* observer = nullptr;  ///< outlives the pool; for debugging

  /// The options of the pool itself that have a range.
  [[nodiscard]] static std::span<const option_row<pool_options>> ranges() noexcept;
  /// Checks without a device that each option is within its range (memory_options, pool_policy, and
  /// these). Errors: bad_option; the detail names the option and its range.
  /// Cost: constant, no driver call.
  [[nodiscard]] status validate() const noexcept;

  /// `base`, with the values of VPMM_VA_SIZE, VPMM_PAGE_SIZE, VPMM_PAGES, and then by VMM_VA_SIZE,
  /// VMM_POOL_PAGE_SIZE, VMM_POOL_PAGES, VMM_POOL_POLICY, VMM_POOL_CAPTURE and VMM_BUDGET that are
  /// set. A VPMM_PAGE_SIZE above 1 GiB stands for the policy "off", as in the original. Errors:
  /// bad_option; the detail names the variable and its valid values, or the option of `base` that
  /// validate() refuses.
  [[nodiscard]] static result<pool_options> from_environment(const pool_options& base) noexcept;
};

}  // namespace vmm

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:options - how a stream-ordered pool places, grows and moves, as values.
//
// Thread safety: values only; from_environment as getenv. Cost: none.
export module vmm.stream:options;

import vmm.backend;
import vmm.optimizer;
import vmm.std;

namespace vmm {

export using vmm::contents_rule;
export using vmm::memory_segment;
export using vmm::poison_byte;

/// Placement, growth and movement. docs/decisions/0006 says where the default's numbers come from.
export struct pool_policy {
  const char* name = "pool";
  /// Requests of at least this size take the lowest address that fits, of all memory that any
  /// stream has finished with; smaller ones the smallest region, their own stream's first, and of
  /// all before the pool grows. A power of two from 512 to 2^38; 0: the smallest region, and a
  /// stream gets only its request of the others' memory. A pool with arenas collects nothing for
  /// such a request: it is placed in memory of its own stream.
  std::uint64_t lowest_fit_bytes = std::uint64_t{16} << 20;
  /// Largest new handle; 0: one page. With a growth_share a new handle has at most half of it while
  /// little memory is held, or if free memory is too scattered to serve; else its share of memory
  /// held (1 / (2 * growth_share)), from half of handle_bytes to all of it.
  std::uint64_t handle_bytes = std::uint64_t{128} << 20;
  /// Largest new handle if free memory is scattered: stranded memory is part of a handle. Only
  /// while the driver has cost less than spend_ns for each allocation and free so far, by the
  /// prices of docs/decisions/0006. 0: as without this rule.
  std::uint64_t fine_handle_bytes = std::uint64_t{24} << 20;
  std::uint64_t spend_ns = 50;
  /// While less than this is held, a new handle is a 12th of it at most, a 32nd where free memory
  /// is scattered, from 8 MiB on: of a small program a large handle is a large part. Only with a
  /// growth_share or where handles are fine. 0: as without this rule.
  std::uint64_t small_pool_bytes = std::uint64_t{512} << 20;
  /// Memory is created without moving any while memory held stays below headroom times the peak of
  /// live bytes, plus slack_bytes. From 0 to 1000.
  double headroom = 1.02;
  std::uint64_t slack_bytes = std::uint64_t{4} << 20;
  /// Requests smaller than both move nothing: than this share of the live bytes' peak
  /// (1 / harvest_share; 0: any request may move memory), and than harvest_bytes.
  std::uint32_t harvest_share = 64;
  std::uint64_t harvest_bytes = std::uint64_t{8} << 20;
  /// New memory is at least this share of memory held (1 / growth_share), within the headroom; and
  /// a third of that beyond the headroom, if live bytes reach a new peak: more will follow. Never
  /// more than handle_bytes. 0: the requested size alone.
  std::uint32_t growth_share = 32;
  std::uint64_t window_gap_bytes = std::uint64_t{4} << 30;  ///< addresses left for growth in place
  bool whole_pages = false;    ///< requests of a page and more take whole pages
  bool smallest_hole = false;  ///< new places go to the smallest hole that takes the whole request
  bool oldest_first =
      false;                 ///< free regions are moved whole and oldest first, not handles by size
  bool unmap_early = false;  ///< stale mappings are unmapped at the start of each allocation, not
                             ///< when needed
  /// Every block is driver memory of its own, of whole pages, which is released to the driver when
  /// the work before its free has finished: at that free, or at a later allocation or free.
  bool keep_none = false;
  /// Stale mappings beyond this count are unmapped, as their work finishes, at the start of
  /// growths: 8 of them, or a 64th, at most 64. Those beyond half of it are unmapped in prepare().
  /// Each holds addresses and a mapping, no memory.
  std::uint64_t zombie_count_max = 4096;

  /// The default: near-live memory for little driver time.
  [[nodiscard]] static pool_policy near_live() noexcept;
  /// The pool of the source: page-sized handles, best fit, oldest regions moved first.
  [[nodiscard]] static pool_policy vpmm() noexcept;
  /// Pooling turned off: keep_none. For comparing, and for a program that shares its device.
  [[nodiscard]] static pool_policy off() noexcept;
  /// One of the above: "pool", "vpmm" or "off". Errors: bad_option.
  [[nodiscard]] static result<pool_policy> by_name(std::string_view name) noexcept;

  /// The options that have a range; the rows' details say which.
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

/// When streams get arenas of their own, in which a warm allocate or free takes no lock that other
/// streams use. Memory of arenas is ordinary free memory: it is flushed before the pool grows.
/// docs/decisions/0021.
export enum class front_rule : std::uint8_t {
  where_contended,  // where threads have waited for one another
  always,           // from a stream's first growth on
  never,
};

/// Notified of every reservation, mapping and block of a pool, for tools that check accesses. While
/// a pool has a watcher its allocations and frees are serialised. A block that is freed while it is
/// pinned, or that a captured graph may use, is not reported as freed: a later block at its
/// addresses ends it. Called from any thread, with the device's context current on it where the
/// backend is a context_backend. It calls nothing of the pool: a call that could change blocks or
/// mappings ends the process.
export class block_watcher {
 public:
  /// Before anything is mapped there, and after nothing is.
  virtual void reserved(address_range addresses) noexcept = 0;
  virtual void unreserved(address_range addresses) noexcept = 0;
  /// Before the first block there, and after the last.
  virtual void mapped(address_range memory) noexcept = 0;
  virtual void unmapped(address_range memory) noexcept = 0;
  /// The requested bytes, not rounded up.
  virtual void allocated(address_range block) noexcept = 0;
  virtual void freed(address block) noexcept = 0;

 protected:
  ~block_watcher() = default;
};

/// The options of a pool: placement, pages, captures, and those shared with the manager
/// (memory_options).
export struct pool_options : memory_options {
  pool_policy rules = pool_policy::near_live();
  std::uint64_t page_bytes = 0;  ///< handles are multiples of it; 0: the recommended granularity
  std::uint64_t page_count = 0;  ///< pages mapped when the pool is set up
  stream_handle first_stream = stream_handle::default_stream;  ///< these pages are free for it
  /// On backends that can capture, refuse and private_memory query the driver at every call on a
  /// stream that can be captured: not on CUDA's default stream.
  capture_rule capture = capture_rule::refuse;
  /// The program calls `captures().begin()` before it begins a capture on any stream used with the
  /// pool, and `captures().end()` after the capture has ended: calls query the driver between the
  /// two, and when the pool needs the driver anyway. A call served from free memory does not notice
  /// an unannounced capture.
  bool captures_announced = false;
  /// None with a watcher, with fills, and under rules.unmap_early; and nothing is kept there while
  /// a history is recorded.
  front_rule fronts = front_rule::where_contended;
  block_watcher* watcher = nullptr;  ///< outlives the pool; for debugging

  /// The options of the pool itself that have a range.
  [[nodiscard]] static std::span<const option_row<pool_options>> ranges() noexcept;
  /// Checks without a device that each option is within its range (memory_options, pool_policy, and
  /// these). Errors: bad_option; the detail names the option and its range.
  /// Cost: constant, no driver call.
  [[nodiscard]] status validate() const noexcept;

  /// `base`, changed by VPMM_VA_SIZE, VPMM_PAGE_SIZE, VPMM_PAGES, and then by VMM_VA_SIZE,
  /// VMM_POOL_PAGE_SIZE, VMM_POOL_PAGES, VMM_POOL_POLICY, VMM_POOL_CAPTURE and VMM_BUDGET, where
  /// they are set. A VPMM_PAGE_SIZE above 1 GiB, larger than any request is to be, stands for the
  /// policy "off", as in the source.
  /// Errors: bad_option; the detail names the variable and its valid values, or the option of
  /// `base` that validate() refuses.
  [[nodiscard]] static result<pool_options> from_environment(const pool_options& base) noexcept;
};

}  // namespace vmm

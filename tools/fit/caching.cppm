// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.fit:caching - models of PyTorch's two caching policies: native segments and expandable
// segments. Written from the published rules; no device, no driver, no contents: only sizes and
// places.
//
// The two policies are one class, as they share pools, search and free. Segments come from an
// account of a device: a request beyond its limit fails as cudaMalloc does, and is followed by
// the releases and the retry that PyTorch makes.
//
// I1  The blocks of a segment are contiguous, in address order, and no two free neighbours of the
//     same kind (mapped or not) exist.
// I2  A free block is in exactly one pool's index; a block that is live or pending is in none.
// I3  held_bytes() is the sum of the native segments and of the mapped pages of expandable ones.
//
// Not modelled: frees that a capture defers to its end. A recording has them as they happened.
//
// Thread safety: values only. Cost: O(log n) of the free blocks for a request or a free.
export module vmm.fit:caching;

import vmm.std;

namespace vmm::tools {

/// A size that no option sets.
export inline constexpr std::uint64_t no_size = std::numeric_limits<std::uint64_t>::max();

/// What PYTORCH_CUDA_ALLOC_CONF and the library's version decide.
export struct caching_options {
  bool expandable_segments = false;
  std::uint64_t max_split_bytes = no_size;
  std::uint64_t large_segment_bytes = std::uint64_t{20} << 20;
  /// Without a value: large_segment_bytes.
  std::optional<std::uint64_t> max_non_split_rounding_bytes{};
  /// Divisions of a power of two by interval, 1 MiB to 32 GiB; 0 and 1 are off.
  std::array<std::uint32_t, 16> roundup_divisions{};
  double garbage_collection_threshold = 0;  ///< 0 is off
  double memory_fraction = 1;               ///< of device_bytes; 1 is off
  /// Whether a refused segment is out of memory at once, without a release.
  bool throw_on_refusal = false;
  std::uint32_t minor_version = 12;  ///< of PyTorch 2

  [[nodiscard]] friend bool operator==(const caching_options&, const caching_options&) = default;
};

/// What happened to a segment, as PyTorch's own history has it.
export enum class segment_action : std::uint8_t { alloc, free, map, unmap };
export struct segment_change {
  segment_action action = segment_action::alloc;
  std::uint64_t size_bytes = 0;
  std::uint64_t base = 0;
};

/// One device, for one allocator.
export struct caching_device {
  std::uint64_t limit_bytes = no_size;   ///< what the allocator can get of it
  std::uint64_t device_bytes = no_size;  ///< its whole memory, for memory_fraction
  /// New segments lie below the older ones: the other of two orders of addresses.
  bool has_descending_addresses = false;
  /// Where the driver put native segments, in order: each place is taken by the next segment of its
  /// size. Equal blocks are chosen by address.
  std::span<const segment_change> places{};
};

/// Which pool of PyTorch's a request goes to.
export struct caching_request {
  std::uint64_t size_bytes = 0;
  std::uint16_t stream = 0;
  std::uint16_t pool = 0;  ///< 0 is the default; others are private pools
};

/// What a segment held when a recording began, from its base on without a gap.
export enum class start_part_kind : std::uint8_t { free, live, unmapped };
export struct start_part {
  std::uint64_t size_bytes = 0;
  start_part_kind kind = start_part_kind::free;
  std::uint32_t slot = 0;  ///< of a live block
};
export struct start_layout {
  std::uint64_t base = 0;
  std::uint16_t stream = 0;
  std::uint16_t pool = 0;
  bool is_small = false;
  bool is_expandable = false;
  std::vector<start_part> parts{};
};

/// A live block of the model: an index that is valid until the block is freed.
export enum class block_number : std::uint32_t { none = 0 };

export class caching_model {
 public:
  explicit caching_model(const caching_options& options, const caching_device& device = {});
  caching_model(const caching_model&) = delete;
  caching_model& operator=(const caching_model&) = delete;
  ~caching_model();

  /// Returns none where the device has no memory left after all releases and retries.
  [[nodiscard]] block_number allocate(const caching_request& request);
  /// Requires: the block is live.
  void free(block_number block);
  /// The block waits for work of other streams, until complete() or until a shortage waits for all
  /// work. Returns what complete() takes. Requires: the block is live.
  [[nodiscard]] std::uint64_t free_pending(block_number block);
  /// No effect where a shortage has freed the block since. Requires: free_pending() returned it.
  void complete(std::uint64_t pending);
  /// Begins with this segment, and writes its live blocks to `blocks` by their slots. Requires: no
  /// segment of the model overlaps it; slots are below blocks.size().
  void adopt(const start_layout& layout, std::span<block_number> blocks);
  /// torch.cuda.empty_cache().
  void empty_cache();
  /// The device refuses the first segment of the next request.
  void refuse_next() noexcept { is_next_refused_ = true; }

  [[nodiscard]] std::uint64_t held_bytes() const noexcept { return held_bytes_; }
  [[nodiscard]] std::uint64_t peak_held_bytes() const noexcept { return peak_held_bytes_; }
  [[nodiscard]] std::uint64_t retry_count() const noexcept { return retry_count_; }
  [[nodiscard]] std::uint64_t size_bytes(block_number block) const;
  [[nodiscard]] std::uint64_t base(block_number block) const;
  /// Called at each change of a segment.
  void set_listener(std::function<void(const segment_change&)> listener);
  /// Empty, or the invariant that does not hold. Cost: linear in the blocks.
  [[nodiscard]] std::string validate() const;

 private:
  struct block {
    std::uint64_t base = 0;
    std::uint64_t size_bytes = 0;
    std::uint64_t age_base = 0;  // searches of its pool when it became free
    std::uint32_t previous = 0;
    std::uint32_t next = 0;
    std::uint32_t segment = 0;
    std::uint32_t pool = 0;  // in pools_
    std::uint16_t stream = 0;
    bool is_live = false;  // or pending
    bool is_mapped = true;
    bool is_expandable = false;
  };
  struct key {
    std::uint64_t stream = 0;
    std::uint64_t size_bytes = 0;
    std::uint64_t base = 0;
    friend auto operator<=>(const key&, const key&) = default;
  };
  using block_index = std::map<key, std::uint32_t>;
  struct block_pool {
    block_index free{};
    block_index unmapped{};  // by address: the size of the key is 0
    std::uint64_t search_count = 0;
    std::uint16_t owner = 0;  // 0 or a private pool
    bool is_small = false;
  };
  struct segment_record {
    std::uint64_t base = 0;
    std::uint64_t size_bytes = 0;
    std::uint64_t page_bytes = 0;  // expandable only
  };

  [[nodiscard]] std::uint64_t round(std::uint64_t size_bytes) const noexcept;
  [[nodiscard]] std::uint64_t segment_bytes_for(std::uint64_t rounded_bytes) const noexcept;
  [[nodiscard]] std::uint64_t max_non_split_rounding() const noexcept;
  [[nodiscard]] bool is_oversize(std::uint64_t size_bytes) const noexcept;
  [[nodiscard]] bool uses_expandable(const block_pool& pool) const noexcept;

  struct search {
    std::uint64_t size_bytes = 0;
    std::uint64_t segment_bytes = 0;
    std::uint32_t pool = 0;
    std::uint16_t stream = 0;
  };
  [[nodiscard]] std::uint32_t pool_of(const caching_request& request, bool is_small);
  [[nodiscard]] std::uint32_t find_free(const search& wanted);
  [[nodiscard]] block_index::const_iterator candidate_of(const search& wanted) const;
  [[nodiscard]] std::uint64_t expandable_size(std::uint32_t number) const noexcept;
  [[nodiscard]] std::uint32_t get_new(const search& wanted);
  [[nodiscard]] std::uint32_t add_segment(const search& wanted);
  [[nodiscard]] block_number take(std::uint32_t number, const search& wanted);
  [[nodiscard]] bool should_split(const block& from, std::uint64_t size_bytes) const noexcept;

  [[nodiscard]] bool release_oversize(const search& wanted);
  void release_all();
  void release_pool(std::uint32_t pool);
  void collect_garbage();
  void release_segment(std::uint32_t number);

  [[nodiscard]] std::uint32_t grow_expandable(const search& wanted);
  [[nodiscard]] std::uint32_t find_expandable(const search& wanted);
  [[nodiscard]] bool has_room(std::uint32_t first, std::uint64_t size_bytes) const noexcept;
  [[nodiscard]] bool is_allocatable(std::uint32_t number) const noexcept;
  [[nodiscard]] bool map(std::uint32_t number, std::uint64_t size_bytes);
  void unmap(std::uint32_t number);

  void finish_free(std::uint32_t number);
  void merge(std::uint32_t into, std::uint32_t other);
  void insert_free(std::uint32_t number);
  [[nodiscard]] key key_of(std::uint32_t number) const noexcept;
  [[nodiscard]] key address_key_of(std::uint32_t number) const noexcept;
  [[nodiscard]] std::uint32_t add_block(const block& from);
  void remove_block(std::uint32_t number);
  void insert_after(std::uint32_t number, std::uint32_t previous);
  [[nodiscard]] std::uint64_t reserve(std::uint64_t size_bytes);
  [[nodiscard]] std::uint64_t place(std::uint64_t size_bytes);
  [[nodiscard]] bool charge(std::uint64_t size_bytes);
  void notify(const segment_change& change) const;

  const caching_options options_;
  const caching_device device_;
  const std::uint64_t allowed_bytes_;
  std::vector<block> blocks_;
  std::vector<std::uint32_t> unused_blocks_{};
  std::vector<segment_record> segments_;
  std::vector<block_pool> pools_{};
  std::map<std::uint64_t, std::uint32_t> pending_{};  // by the number that free_pending() returned
  std::uint64_t pending_count_ = 0;
  std::map<std::uint64_t, std::uint32_t> pool_numbers_{};
  std::map<std::uint64_t, std::deque<std::uint64_t>> places_{};  // by size
  std::map<std::uint64_t, std::uint64_t> native_segments_{};     // base and end
  bool is_next_refused_ = false;
  std::uint64_t next_base_ = 0;
  std::uint64_t held_bytes_ = 0;
  std::uint64_t peak_held_bytes_ = 0;
  std::uint64_t retry_count_ = 0;
  std::function<void(const segment_change&)> listener_{};
};

}  // namespace vmm::tools

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.containers:pmr - memory of a pool or manager for the standard library's containers.
//
// Containers access their memory on the host, so the driver must have features::host_accessible, as
// vmm.host does.
//
// The host may use a returned block at once: the work of the memory's earlier users has finished.
//
// Thread safety: that of the allocator. Cost: that of the allocator, a virtual and an indirect
// call. A pool's blocks take 512 bytes at least, a manager's whole granules: for small objects put
// a std::pmr::unsynchronized_pool_resource or monotonic_buffer_resource over it.
export module vmm.containers:pmr;

export import :buffer;
import vmm.base;
import vmm.std;

namespace vmm {

/// A std::pmr::memory_resource over an allocator, which outlives it. Two are equal if they have the
/// same allocator and stream.
///
/// allocate and deallocate are those of std::pmr: allocate throws std::bad_alloc for every error,
/// and blocks until the host may access the block. Thread safety: that of the allocator.
export class host_memory_resource final : public std::pmr::memory_resource {
 public:
  /// Requires: the allocator and the stream outlive the resource. Effects: returns a resource;
  /// nothing is allocated. Errors: not_supported (the host cannot access this driver's memory).
  /// Cost: none.
  [[nodiscard]] static result<host_memory_resource> open(
      allocator_ref memory, stream_handle stream = stream_handle::default_stream) noexcept;

  /// The arguments of open().
  [[nodiscard]] allocator_ref memory() const noexcept { return memory_; }
  [[nodiscard]] stream_handle stream() const noexcept { return stream_; }

 private:
  host_memory_resource(allocator_ref memory, stream_handle stream) noexcept
      : memory_(memory), use_(memory.users()), stream_(stream) {}

  // Throws std::bad_alloc for every error, the only one that the interface has.
  void* do_allocate(std::size_t size_bytes, std::size_t alignment_bytes) override;
  void do_deallocate(void* pointer, std::size_t size_bytes, std::size_t alignment_bytes) override;
  [[nodiscard]] bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override;

  allocator_ref memory_;
  use_of use_;
  stream_handle stream_;
};

}  // namespace vmm

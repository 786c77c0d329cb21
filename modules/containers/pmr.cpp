// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module vmm.containers;

import vmm.base;
import vmm.std;

namespace vmm {
namespace {

// The standard's resources take requests of no bytes; vmm's allocators refuse them.
std::size_t at_least_one(std::size_t size_bytes) { return std::max<std::size_t>(size_bytes, 1); }

}  // namespace

result<host_memory_resource> host_memory_resource::open(allocator_ref memory,
                                                        stream_handle stream) noexcept {
  if (!memory.driver().feature_set().host_accessible) {
    return refuse(
        errc::not_supported,
        "the host cannot access this driver's memory: open the host driver for containers "
        "of the standard library, or take vmm::device_array");
  }
  return host_memory_resource(memory, stream);
}

void* host_memory_resource::do_allocate(std::size_t size_bytes, std::size_t alignment_bytes) {
  size_bytes = at_least_one(size_bytes);
  const result<address> at = memory_.allocate(size_bytes, alignment_bytes, stream_);
  if (!at) throw std::bad_alloc();
  if (const status finished = memory_.synchronize(*at, stream_); !finished) {
    memory_.deallocate(*at, size_bytes, alignment_bytes, stream_);
    throw std::bad_alloc();
  }
  check(static_cast<bool>(*at), "an allocator gave a block at no address");
  check(alignment_bytes == 0 || at->value % alignment_bytes == 0,
        "an allocator gave a block at another alignment");
  return at->as<void>();
}

void host_memory_resource::do_deallocate(void* pointer, std::size_t size_bytes,
                                         std::size_t alignment_bytes) {
  check(pointer != nullptr, "a block at address 0 is freed");
  check(alignment_bytes == 0 || address::from_native(pointer).value % alignment_bytes == 0,
        "a block is freed with a wrong alignment");
  memory_.deallocate(address::from_native(pointer), at_least_one(size_bytes), alignment_bytes,
                     stream_);
}

bool host_memory_resource::do_is_equal(const std::pmr::memory_resource& other) const noexcept {
  const auto* const same = dynamic_cast<const host_memory_resource*>(&other);
  return same != nullptr && same->memory_ == memory_ && same->stream_ == stream_;
}

}  // namespace vmm

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module vmm.containers;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {

result<address> allocator_ref::resize(address at, std::uint64_t size_bytes) const {
  if (calls_->resize == nullptr) {
    return refuse(
        errc::not_supported,
        "this allocator does not resize blocks: allocate another one and copy, or use a manager");
  }
  const result<address> moved = calls_->resize(object_, at, size_bytes);
  check(!moved || (at && *moved), "an allocator resized a block to no address");
  return moved;
}

result<device_buffer> device_buffer::allocate(allocator_ref memory, std::uint64_t size_bytes,
                                              stream_handle stream, std::uint64_t alignment_bytes) {
  if (!std::has_single_bit(alignment_bytes))
    return refuse_number(alignment_bytes, "an alignment is a power of two", errc::invalid_argument);
  device_buffer made(memory, stream, alignment_bytes);
  if (size_bytes == 0) return made;
  const result<address> at = memory.allocate(size_bytes, alignment_bytes, stream);
  if (!at) return at.error();
  check(static_cast<bool>(*at), "an allocator gave a block at no address");
  check(at->value % alignment_bytes == 0, "an allocator gave a block at another alignment");
  made.block_ = {*at, size_bytes};
  check(made.owns_block(), "I1: a buffer was made without its block");
  return made;
}

void device_buffer::reset() noexcept {
  check(is_whole(), half_block);
  const address_range gone = std::exchange(block_, address_range{});
  if (!gone.empty()) memory_.deallocate(gone.base, gone.size_bytes, alignment_bytes_, stream_);
  check(!owns_block(), "I1: a buffer has the block that it has freed");
}

status device_buffer::resize(std::uint64_t size_bytes) {
  check(is_whole(), half_block);
  if (size_bytes == block_.size_bytes) return {};
  if (size_bytes == 0) {
    reset();
    return {};
  }
  const result<address> at = empty() ? memory_.allocate(size_bytes, alignment_bytes_, stream_)
                                     : memory_.resize(block_.base, size_bytes);
  if (!at) return at.error();
  block_ = {*at, size_bytes};
  check(owns_block() && is_whole(), half_block);
  check(alignment_bytes_ == 0 || block_.base.value % alignment_bytes_ == 0,
        "an allocator gave a block at another alignment");
  return {};
}

void device_buffer::swap(device_buffer& other) noexcept {
  check(is_whole() && other.is_whole(), half_block);
  std::swap(memory_, other.memory_);
  std::swap(use_, other.use_);
  std::swap(stream_, other.stream_);
  std::swap(alignment_bytes_, other.alignment_bytes_);
  std::swap(block_, other.block_);
  check(is_whole() && other.is_whole(), half_block);
}

}  // namespace vmm

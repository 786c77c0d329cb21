// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.fake:node_pool (internal) - memory for the nodes of the fake driver's maps.
//
// Nodes of up to 256 bytes come from chunks and return to a free list of their size; larger blocks
// come from operator new. A pool of our own because std::pmr::unsynchronized_pool_resource of
// libstdc++ 12 does not survive an operator new that fails once.
//
// An allocation that throws leaves the pool as it was. Thread safety: none. Cost: O(1); operator
// new once for each chunk, which double up to 64 KiB.
module vmm.fake:node_pool;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm::fake {

class node_pool final : public std::pmr::memory_resource {
 private:
  static constexpr std::size_t grain_bytes = 16;
  static constexpr std::size_t node_bytes_max = 256;
  static constexpr std::size_t chunk_bytes_max = std::size_t{64} << 10;

  struct free_node {
    free_node* next = nullptr;
  };

  static bool pooled(std::size_t bytes, std::size_t alignment) noexcept {
    return bytes <= node_bytes_max && alignment <= grain_bytes;
  }

  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    if (!pooled(bytes, alignment)) return ::operator new(bytes, std::align_val_t{alignment});
    const std::size_t grains = bytes == 0 ? 1 : (bytes + grain_bytes - 1) / grain_bytes;
    check(grains < free_.size(), "a node is larger than the largest");
    free_node*& head = free_[grains];
    if (head != nullptr) {
      free_node* const taken = head;
      head = taken->next;
      return taken;
    }
    const std::size_t size = grains * grain_bytes;
    if (left_bytes_ < size) add_chunk();
    check(left_bytes_ >= size, "a chunk is smaller than a node");
    std::byte* const taken = next_;
    next_ += size;
    left_bytes_ -= size;
    return taken;
  }

  void do_deallocate(void* block, std::size_t bytes, std::size_t alignment) override {
    if (!pooled(bytes, alignment)) return ::operator delete(block, std::align_val_t{alignment});
    const std::size_t grains = bytes == 0 ? 1 : (bytes + grain_bytes - 1) / grain_bytes;
    check(block != nullptr && grains < free_.size(), "a released node is null or too large");
    free_[grains] = ::new (block) free_node{free_[grains]};
  }

  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
    return this == &other;
  }

  // The rest of the chunk before is given up: at most node_bytes_max of it.
  void add_chunk() {
    chunks_.reserve(chunks_.size() + 1);
    chunks_.push_back(std::make_unique_for_overwrite<std::byte[]>(chunk_bytes_));
    next_ = chunks_.back().get();
    left_bytes_ = chunk_bytes_;
    check(chunk_bytes_ >= node_bytes_max, "a chunk has no room for the largest node");
    if (chunk_bytes_ < chunk_bytes_max) chunk_bytes_ *= 2;
  }

  std::vector<std::unique_ptr<std::byte[]>> chunks_;
  std::size_t chunk_bytes_ = 1024;
  std::byte* next_ = nullptr;
  std::size_t left_bytes_ = 0;
  std::array<free_node*, node_bytes_max / grain_bytes + 1> free_{};
};

}  // namespace vmm::fake

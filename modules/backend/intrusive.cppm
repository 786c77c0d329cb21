// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.backend:intrusive - an ordered index and an object pool without heap traffic on the hot path.
//
// Every structure that vmm keeps about memory is linked through its own nodes, so that inserting,
// finding and removing cannot fail: what a call needs is allocated before its first side effect,
// and undoing it allocates nothing.
//
// I1  A node is in at most one index, once.
// I2  Among equal keys the node inserted last comes first (LIFO: the warmest is reused first).
// I3  An object of a pool is either handed out or on its free list. It is constructed once and
//     recycled without being destroyed, so it keeps its acquired memory (a vector's capacity).
//
// Thread safety: none; the owner has the lock. Cost: index operations O(log n), pool operations
// O(1). The trees are Boost.Intrusive's algorithms, which stay in the implementation unit.
export module vmm.backend:intrusive;

import vmm.base;
import vmm.std;
import :result;
import :types;

namespace vmm {

/// The base class of objects in an ordered_index. Plain data: copying an object does not link it.
export struct index_node {
  index_node* parent = nullptr;
  index_node* left = nullptr;
  index_node* right = nullptr;
  std::uint64_t key = 0;
  std::uint8_t color = 0;
  bool linked = false;
};

/// Nodes in order of a 64-bit key, equal keys allowed. Neither copied nor moved: the nodes point
/// into it.
export class ordered_index {
 public:
  ordered_index() noexcept;
  ordered_index(const ordered_index&) = delete;
  ordered_index& operator=(const ordered_index&) = delete;
  ~ordered_index() = default;

  /// Links `node` under `key`. The node must not be in an index. O(log n).
  void insert(index_node& node, std::uint64_t key) noexcept;
  /// Unlinks a node of this index. O(1) amortised.
  void erase(index_node& node) noexcept;

  /// The first node whose key is at least `key`, or null. O(log n).
  [[nodiscard]] index_node* at_least(std::uint64_t key) const noexcept;
  /// The node with the greatest key up to `key`, the latest inserted of equals, or null.
  [[nodiscard]] index_node* at_most(std::uint64_t key) const noexcept;
  /// Neighbours in key order; null at the ends. O(1) amortised.
  [[nodiscard]] index_node* first() const noexcept;
  [[nodiscard]] index_node* last() const noexcept;
  [[nodiscard]] index_node* next(const index_node& node) const noexcept;
  [[nodiscard]] index_node* previous(const index_node& node) const noexcept;

  [[nodiscard]] std::size_t size() const noexcept { return count_; }
  [[nodiscard]] bool empty() const noexcept { return count_ == 0; }
  /// Checks order, links and count of the whole index. Errors: internal. O(n).
  [[nodiscard]] status validate() const noexcept;

 private:
  void audit() noexcept;
  [[nodiscard]] bool in_order(const index_node& node) const noexcept;

  mutable index_node header_;
  std::size_t count_ = 0;
  std::size_t unaudited_count_ = 0;  // changes since the last full validation
};

/// Recycles objects of one type. T is default-constructible and has a public member `T* next_free`.
export template <class T>
class object_pool {
 public:
  object_pool() = default;
  object_pool(const object_pool&) = delete;
  object_pool& operator=(const object_pool&) = delete;
  ~object_pool() {
    check(live_count_ == 0, "an object pool is destroyed while objects of it are in use");
    paranoid_check([this] { return count_free() == object_count_; },
                   "I3: an object pool lost an object");
    while (chunks_ != nullptr) {
      chunk* const next = chunks_->next;
      delete chunks_;
      chunks_ = next;
    }
  }

  /// An object as it was when last released, or a fresh one; null when the host is out of memory.
  [[nodiscard]] T* acquire() noexcept {
    if (free_ == nullptr && !refill()) return nullptr;
    T* const object = free_;
    check(object != nullptr && live_count_ < object_count_,
          "I3: an object pool has fewer objects than it made");
    free_ = object->next_free;
    object->next_free = nullptr;
    ++live_count_;
    return object;
  }

  void release(T& object) noexcept {
    check(live_count_ > 0, "an object is released to a pool without live objects");
    check(object.next_free == nullptr && &object != free_, "I3: an object is released twice");
    paranoid_check([&] { return owns(object); }, "an object is released to another pool");
    object.next_free = free_;
    free_ = &object;
    --live_count_;
    check(live_count_ < object_count_, "a free object of a pool is in use");
  }

  [[nodiscard]] std::size_t live_count() const noexcept { return live_count_; }

 private:
  static constexpr std::size_t chunk_count = 64;
  struct chunk {
    chunk* next = nullptr;
    T objects[chunk_count];
  };

  [[nodiscard]] bool owns(const T& object) const noexcept {
    check(object_count_ % chunk_count == 0, "an object pool has a part of a chunk");
    for (const chunk* each = chunks_; each != nullptr; each = each->next) {
      if (&object >= each->objects && &object < each->objects + chunk_count) return true;
    }
    return false;
  }
  [[nodiscard]] std::size_t count_free() const noexcept {
    std::size_t count = 0;
    for (const T* each = free_; each != nullptr && count <= object_count_; each = each->next_free)
      ++count;
    check(count <= object_count_, "the list of free objects is circular");
    return count;
  }
  [[nodiscard]] bool refill() noexcept {
    check(free_ == nullptr && live_count_ == object_count_,
          "an object pool grows while it has free objects");
    auto* const fresh = new (std::nothrow) chunk;
    if (fresh == nullptr) return false;
    fresh->next = chunks_;
    chunks_ = fresh;
    for (std::size_t i = chunk_count; i-- > 0;) {
      fresh->objects[i].next_free = free_;
      free_ = &fresh->objects[i];
    }
    object_count_ += chunk_count;
    check(free_ != nullptr && live_count_ < object_count_, "an object pool grew by nothing");
    return true;
  }

  chunk* chunks_ = nullptr;
  T* free_ = nullptr;
  std::size_t live_count_ = 0;
  std::size_t object_count_ = 0;  // constructed so far
};

/// Makes room for `count` more elements, at least doubling. Errors: out_of_host_memory; the list is
/// unchanged.
export template <class T>
[[nodiscard]] status reserve_more(std::vector<T>& list, std::size_t count) noexcept {
  try {
    if (list.capacity() - list.size() < count)
      list.reserve(std::max(list.size() + count, 2 * list.capacity()));
    check(list.capacity() - list.size() >= count, "a list has less room than was reserved");
    return {};
  } catch (const std::bad_alloc&) {
    return refuse(errc::out_of_host_memory, "no host memory is left for a list");
  }
}

}  // namespace vmm

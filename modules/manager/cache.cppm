// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.manager:cache - freed ranges that stay mapped, by size.
//
// I1  A cached block is in no tracker, holds its pieces, and carries the ticket of its last use.
//
// Thread safety: all of it. Cost: O(log n), no heap allocation, no driver call.
module;
#include "../base/thread_annotations.h"

export module vmm.manager:cache;

import vmm.backend;
import vmm.base;
import vmm.optimizer;
import vmm.std;

namespace vmm {

class range_cache {
 public:
  void put(block& freed) noexcept;
  /// The cached block of exactly this mapped size, the latest freed of equals; or null.
  [[nodiscard]] block* take_exact(std::uint64_t mapped_bytes) noexcept;
  /// The largest block that is smaller, or null.
  [[nodiscard]] block* take_smaller(std::uint64_t mapped_bytes) noexcept;
  /// The smallest block that is larger, or null.
  [[nodiscard]] block* take_larger(std::uint64_t mapped_bytes) noexcept;
  /// The largest block of all, or null.
  [[nodiscard]] block* take_largest() noexcept;

  [[nodiscard]] std::size_t size() const noexcept;
  [[nodiscard]] std::uint64_t size_bytes() const noexcept;
  [[nodiscard]] std::uint64_t largest_bytes() const noexcept;
  /// Checks I1 and the sum. Errors: internal. O(n).
  [[nodiscard]] status validate() const noexcept;

  /// Calls visitor(const block&) for each cached block, under the lock.
  template <class Visitor>
  void visit(Visitor&& visitor) const {
    const sync::lock_guard<sync::mutex> lock(mutex_);
    for (const index_node* node = by_size_.first(); node != nullptr; node = by_size_.next(*node)) {
      const auto& cached = static_cast<const block&>(*node);
      check(cached.linked && !cached.claimed, "a cached range is in use");
      visitor(cached);
    }
  }

 private:
  [[nodiscard]] block* take(index_node* found) noexcept VMM_REQUIRES(mutex_);
  [[nodiscard]] static bool is_cacheable(const block& range) noexcept;
  [[nodiscard]] status validate_all() const noexcept VMM_REQUIRES(mutex_);
  void audit() noexcept VMM_REQUIRES(mutex_);

  mutable sync::mutex mutex_;
  ordered_index by_size_ VMM_GUARDED_BY(mutex_);
  std::uint64_t size_bytes_ VMM_GUARDED_BY(mutex_) = 0;
  std::size_t unaudited_count_ VMM_GUARDED_BY(mutex_) = 0;  // changes since the last audit
};

}  // namespace vmm

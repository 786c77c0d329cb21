// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.manager:reuse - reuse of freed memory: cached ranges as they are, grown or unmapped; and its
// release to the driver. Not exported.
//
// I1  A range that is not served, or not unmapped, is back in the cache, or is retired.
//
// Thread safety: all of it. Cost: O(log n); driver calls by the pieces that are mapped or go.
module;
#include "../base/thread_annotations.h"

export module vmm.manager:reuse;

import vmm.backend;
import vmm.base;
import vmm.optimizer;
import vmm.std;
import :base;
import :history;
import :locks;

namespace vmm {

class range_reuse {
 public:
  range_reuse(manager_base& base, manager_history& history) noexcept
      : base_(base), history_(history) {}
  range_reuse(const range_reuse&) = delete;
  range_reuse& operator=(const range_reuse&) = delete;

  /// A tracked and claimed block. Errors: as engine::build.
  [[nodiscard]] result<block*> obtain(const block_request& request);
  /// Unmaps a range that was taken from the cache. Errors: as engine::dissolve; it is then cached.
  [[nodiscard]] status unbind(block& cached);
  /// Releases retained memory until at most `limit_bytes` of it are left. Releases in progress on
  /// other threads have finished when this returns: a thread that is short of memory can use them.
  [[nodiscard]] trim_report give_back(std::uint64_t limit_bytes)
      VMM_EXCLUDES(manager_lock::release);
  /// The same for pieces outside of ranges.
  [[nodiscard]] trim_report release_cached(std::uint64_t limit_bytes)
      VMM_EXCLUDES(manager_lock::release);
  /// The same for pieces created since.
  [[nodiscard]] trim_report release_created(std::uint64_t mark) VMM_EXCLUDES(manager_lock::release);

 private:
  [[nodiscard]] result<block*> build(const block_request& request);
  [[nodiscard]] result<block*> reuse_exact(block& cached, const block_request& request);
  [[nodiscard]] result<block*> grow_cached(block& cached, const block_request& request);
  void uncache_failed(block& cached) noexcept;
  [[nodiscard]] status drain_ranges(std::uint64_t limit_bytes) VMM_REQUIRES(manager_lock::release);

  manager_base& base_;
  manager_history& history_;
  sync::mutex release_mutex_;
};

}  // namespace vmm

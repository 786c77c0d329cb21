// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include "../base/thread_annotations.h"

module vmm.manager;

import vmm.backend;
import vmm.base;
import vmm.observe;
import vmm.optimizer;
import vmm.physical;
import vmm.std;
import vmm.timeline;
import vmm.tracker;

namespace vmm {

// A tracked and claimed block: a cached range where the policy allows it, else a new one.
result<block*> range_reuse::obtain(const block_request& request) {
  const manager_policy& policy = base_.options.policy;
  check(request.sizes.mapped_bytes > 0 && request.sizes.mapped_bytes % base_.unit_bytes == 0,
        "a request has no whole granules");
  const bool plain = request.alignment_bytes <= base_.place_bytes &&
                     request.sizes.reserved_bytes == request.sizes.mapped_bytes;
  if (policy.on_free == free_rule::unmap || !plain) return build(request);
  if (block* exact = base_.cache.take_exact(request.sizes.mapped_bytes))
    return reuse_exact(*exact, request);
  if (policy.grow_cached) {
    if (block* smaller = base_.cache.take_smaller(request.sizes.mapped_bytes))
      return grow_cached(*smaller, request);
  }
  if (policy.unbind_cached) {
    if (block* larger = base_.cache.take_larger(request.sizes.mapped_bytes)) {
      if (status unbound = unbind(*larger); !unbound) return unbound.error();
      base_.counts.unbound_range_count.fetch_add(1, std::memory_order_relaxed);
    }
  }
  return build(request);
}

// No range that is cached serves.
result<block*> range_reuse::build(const block_request& request) {
  const address_range wanted{{}, request.sizes.mapped_bytes};
  history_.note({history_kind::grow, wanted, request.stream});
  result<block*> built = base_.blocks->build(request);
  const address at = built ? (*built)->base : address{};
  check(!built || at, "a block is built at no address");
  history_.note({history_kind::served, {at, wanted.size_bytes}, request.stream});
  return built;
}

result<block*> range_reuse::reuse_exact(block& cached, const block_request& request) {
  if (status ordered = base_.blocks->order(request.stream, cached); !ordered) {
    base_.cache.put(cached);
    return ordered.error();
  }
  check(cached.sizes.mapped_bytes == request.sizes.mapped_bytes,
        "a cached range is of another size");
  cached.sizes.user_bytes = request.sizes.user_bytes;
  cached.alignment_bytes = request.alignment_bytes;
  base_.blocks->set_stream(cached, request.stream);
  const status tracked = base_.blocks->records().insert_claimed(cached);
  check(tracked.has_value(), "a cached range overlaps an allocation");
  check(cached.claimed, "a cached range is not claimed by its creator");
  base_.counts.reused_range_count.fetch_add(1, std::memory_order_relaxed);
  return &cached;
}

result<block*> range_reuse::grow_cached(block& cached, const block_request& request) {
  check(cached.sizes.mapped_bytes < request.sizes.mapped_bytes, "a cached range is large enough");
  if (status ordered = base_.blocks->order(request.stream, cached); !ordered) {
    base_.cache.put(cached);
    return ordered.error();
  }
  base_.blocks->set_stream(cached, request.stream);
  const status tracked = base_.blocks->records().insert_claimed(cached);
  check(tracked.has_value(), "a cached range overlaps an allocation");
  const resize_plan plan{request.sizes, request.stream, cached.last_use, true};
  status grown = base_.blocks->grow_in_place(cached, plan);
  if (!grown && grown.error().code == errc::out_of_addresses)
    grown = base_.blocks->move(cached, plan);
  if (!grown && (cached.sizes.user_bytes == 0 || cached.locked_count > 0)) {
    base_.blocks->discard(cached, plan.last_use);  // it is not needed, and its loss has no
                                                   // effect
    return base_.blocks->build(request);
  }
  if (!grown) {
    base_.blocks->records().erase(cached);
    base_.cache.put(cached);
    return grown.error();
  }
  check(cached.sizes.mapped_bytes == request.sizes.mapped_bytes, "a range grew to another size");
  cached.alignment_bytes = request.alignment_bytes;
  base_.counts.grown_reuse_count.fetch_add(1, std::memory_order_relaxed);
  return &cached;
}

// Back into the cache, as it was.
void range_reuse::uncache_failed(block& cached) noexcept {
  check(cached.claimed && cached.has_memory, "a range without memory is cached");
  base_.blocks->records().erase(cached);
  check(!cached.claimed && !cached.linked, "I1: a cached range is still tracked");
  base_.cache.put(cached);
}

// Dissolves a cached range: its pieces are reused, its addresses wait for its last use.
status range_reuse::unbind(block& cached) {
  check(!cached.linked && !cached.claimed, "a range in use is dissolved");
  const status tracked = base_.blocks->records().insert_claimed(cached);
  check(tracked.has_value(), "a cached range overlaps an allocation");
  const ticket_ref last_use = cached.last_use;
  status gone = base_.blocks->dissolve(cached, last_use);
  if (!gone) uncache_failed(cached);
  return gone;
}

status range_reuse::drain_ranges(std::uint64_t limit_bytes) {
  for (std::size_t left = base_.cache.size(); left > 0 && base_.cache.size_bytes() > limit_bytes;
       --left) {
    block* const largest = base_.cache.take_largest();
    if (largest == nullptr) return {};
    check(largest->sizes.mapped_bytes > 0, "a cached range has no memory");
    if (status unbound = unbind(*largest); !unbound) return unbound;
  }
  return {};
}

// Memory that another thread is releasing is released when this returns, so no request that is
// short of memory misses it.
trim_report range_reuse::give_back(std::uint64_t limit_bytes) {
  const rank_guard releasing(manager_lock::release, release_mutex_);
  base_.blocks->reap_all();
  const status drained = drain_ranges(limit_bytes);
  check(drained || drained.error().code != errc::none, "ranges stay cached without a reason");
  const std::uint64_t kept_bytes = base_.cache.size_bytes();
  base_.blocks->reap_all();
  trim_report report =
      base_.blocks->memory().trim(limit_bytes > kept_bytes ? limit_bytes - kept_bytes : 0);
  if (!drained && report.failure.code == errc::none) report.failure = drained.error();
  return report;
}

trim_report range_reuse::release_cached(std::uint64_t limit_bytes) {
  const rank_guard releasing(manager_lock::release, release_mutex_);
  check(base_.blocks != nullptr, "a manager that is not set up gives memory back");
  return base_.blocks->memory().trim(limit_bytes);
}

trim_report range_reuse::release_created(std::uint64_t mark) {
  const rank_guard releasing(manager_lock::release, release_mutex_);
  const trim_report report = base_.blocks->memory().release_created(mark);
  check(report.released_count != 0 || report.released_bytes == 0,
        "bytes were released in no handle");
  return report;
}

}  // namespace vmm

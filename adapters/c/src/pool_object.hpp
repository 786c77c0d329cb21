// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The object of a pool's handle. It imports what it uses, so it comes after every include but those
// that do the same.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "objects.hpp"

import vmm.backend;
import vmm.base;
import vmm.stream;

namespace vmm_c {

struct pool_object;

// The pool's listener, and the C callback that it calls.
class listener final : public vmm::remap_listener {
 public:
  listener(pool_object& owner, vmm_remap_callback callback, void* context) noexcept
      : owner_(owner), callback_(callback), context_(context) {}
  void before_change(const vmm::remap_notice& notice) noexcept override;

  vmm::remap_subscription number = vmm::remap_subscription::none;

 private:
  pool_object& owner_;
  vmm_remap_callback callback_;
  void* context_;
};

// The number of remap callbacks that this thread is inside of. Their pools' locks are held.
inline thread_local std::uint32_t callbacks_inside = 0;

inline vmm_status fail_in_callback() noexcept {
  return fail(VMM_ERROR_NOT_PERMITTED,
              "a remap callback may free, pin, unpin and query its pool, and make no other call on "
              "it, and none on a suspender");
}

inline std::uint64_t this_thread() noexcept { return static_cast<std::uint64_t>(pthread_self()); }

struct pool_object {
  static constexpr handle_kind kind = handle_kind::pool;
  pool_object(driver_object& on, const vmm::pool_options& options)
      : driver(on), pool(on.backend, options) {}

  // Suspenders that it is a region of, and captures: events that its end needs would spoil them.
  [[nodiscard]] bool has_users() noexcept {
    return region_count.load() != 0 ||
           (made_in.is_here() && pool.captures().announced_count() != 0);
  }
  [[nodiscard]] const char* text_of_use() noexcept {
    if (region_count.load() != 0) return has_region_text;
    return made_in.is_here() && pool.captures().announced_count() != 0
               ? "a capture was announced with vmm_pool_capture_begin(): end it with "
                 "vmm_pool_capture_end() first"
               : nullptr;
  }
  [[nodiscard]] vmm_status subscribe(vmm_remap_callback callback, void* context,
                                     std::uint64_t& out);
  [[nodiscard]] vmm_status unsubscribe(std::uint64_t subscription);
  // Whether the calling thread is inside a callback of this pool. Only its own number matters to
  // it.
  [[nodiscard]] bool is_telling() const noexcept {
    const std::uint64_t caller = telling.load(std::memory_order_relaxed);
    return caller != 0 && caller == this_thread();
  }

  driver_object& driver;
  const made_here made_in;
  std::atomic<std::uint32_t> region_count = 0;
  std::atomic<std::uint64_t> telling = 0;  // the thread that runs a callback
  vmm::sync::mutex listeners_mutex;
  std::vector<std::unique_ptr<listener>> listeners;  // they outlive the pool below
  vmm::stream_pool pool;
  const listed_allocator listed{driver, pool.suspension()};
};

}  // namespace vmm_c

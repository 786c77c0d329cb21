// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The allocators of each device of VMM_MODE=vmm, opened with the first request in its primary
// context.
//
// A device has two pools. One serves the calls without a stream (cuMemAlloc): all of its memory is
// free for one service stream that is never given work, so that a block can be used on every stream
// at once, without a wait. The other serves the calls with a stream. VMM_COPY adds a manager.
//
// I1  An open device is that of a primary context that has not ended.
//
// With VMM_OWNER the memory is an owner's, of whom the process is a tenant. A thread waits for
// other tenants outside of the gate (serve.cpp); the owner's requests for memory share the gate. If
// the owner refuses the tenant, the device is barred: its requests are refused.
//
// Freed memory beyond the limit (VMM_KEEP) is released to the driver: a host that runs ahead of the
// device waits. During a capture nothing is released. Nothing here is destroyed at the end of the
// process.
//
// Lock: opening. Thread safety: all of it. Cost: the pools of a context are found in a thread-local
// cache; opening takes driver calls.
//
// It imports what it uses, so it comes after every include of the standard library.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "abi.h"
#include "all_work_events.h"
#include "captures.h"
#include "contexts.h"
#include "device_driver.h"
#include "live_blocks.h"
#include "live_levels.h"
#include "locks.h"
#include "waiting_frees.h"

import vmm.backend;
import vmm.manager;
import vmm.market;
import vmm.stream;

namespace vmm::preload::managed {

[[nodiscard]] inline stream_handle handle_of(stream_id stream) noexcept {
  return static_cast<stream_handle>(number_of(stream));
}

/// Null, or the reason why the environment variables of the pools are refused.
[[nodiscard]] const char* check_settings() noexcept;

/// The allocators of one device.
class device_pools {
 public:
  struct place_of {
    device_id device = -1;
    context_id context = nullptr;
    tenant_driver* tenant = nullptr;  // inside of `calls`; null without an owner
  };
  /// What all devices share.
  struct shared_parts {
    const driver_calls& cu;
    reserved_ranges& ranges;
    all_work_events& events;
    const capture_list& captures;
    const live_blocks& live;
  };
  device_pools(const place_of& where, any_backend&& calls, device_driver& inside,
               const shared_parts& parts) noexcept
      : where_(where),
        cu_(parts.cu),
        captures_(parts.captures),
        calls_(std::move(calls)),
        driver_(inside),
        waiting_(*this, parts.events, parts.captures, parts.live) {}
  device_pools(const device_pools&) = delete;
  device_pools& operator=(const device_pools&) = delete;

  /// Creates the allocators. False after an error, which was reported.
  [[nodiscard]] bool set_up();

  /// False after end(). A wait outside of the gate may end before a context that ends meanwhile.
  [[nodiscard]] bool is_open() const noexcept { return ordered_.has_value(); }
  [[nodiscard]] device_id device() const noexcept { return where_.device; }
  [[nodiscard]] context_id context() const noexcept { return where_.context; }
  [[nodiscard]] pool_id default_pool() const noexcept { return default_pool_; }
  [[nodiscard]] waiting_frees& waiting() noexcept { return waiting_; }
  [[nodiscard]] const memory_users& users() const noexcept { return users_; }
  [[nodiscard]] device_driver& driver() const noexcept { return driver_; }
  /// Null without an owner.
  [[nodiscard]] tenant_driver* tenant() const noexcept { return where_.tenant; }
  /// The manager; null without VMM_COPY.
  [[nodiscard]] vmm::manager* remapping() noexcept { return manager_ ? &*manager_ : nullptr; }
  [[nodiscard]] stream_pool& pool(owner of) noexcept {
    return of == owner::ordered ? *ordered_ : *unordered_;
  }
  [[nodiscard]] stream_handle service_stream() const noexcept { return service_stream_; }

  /// Frees a block, which no work uses, to its allocator.
  [[nodiscard]] status take_back(const live_block& block) noexcept;
  [[nodiscard]] result<std::vector<memory_segment>> segments(owner of, address_range range);
  /// A new descriptor of the memory, which the caller closes; -1: the driver gives none.
  [[nodiscard]] int export_piece(const memory_piece& piece) noexcept;

  /// Records that another device or context may use the memory. Throws std::bad_alloc.
  void add_user(const memory_users::user& user) VMM_REQUIRES(locks::opening);
  void forget_context(context_id gone) noexcept;
  /// Records that the program selected a pool of its own for the device, or this library's.
  void choose_pool(pool_id chosen) noexcept {
    has_pool_of_user_.store(chosen != nullptr && chosen != default_pool_);
  }
  [[nodiscard]] bool has_pool_of_user() const noexcept {
    return has_pool_of_user_.load(std::memory_order_relaxed);
  }

  [[nodiscard]] live_levels& levels() noexcept { return levels_; }
  /// Memory that the allocators hold and no live block uses.
  [[nodiscard]] std::uint64_t reusable_bytes() const noexcept;
  /// Releases all memory that no work uses to the driver. Returns the bytes.
  std::uint64_t trim() noexcept VMM_REQUIRES_SHARED(locks::gate);
  void enforce_retention() noexcept VMM_REQUIRES_SHARED(locks::gate);

  /// The context has ended, with all streams and events. Memory is released through the primary
  /// context that replaces it, during this call. The object is kept, because its driver would use
  /// its stream.
  static void end(std::unique_ptr<device_pools> gone) noexcept;

 private:
  const place_of where_;
  const driver_calls& cu_;
  const capture_list& captures_;
  any_backend calls_;      // called by the allocators: the driver, or a log before it
  device_driver& driver_;  // inside of it
  pool_id default_pool_ = nullptr;
  stream_handle service_stream_{};
  std::optional<stream_pool> unordered_;
  std::optional<stream_pool> ordered_;
  std::optional<vmm::manager> manager_;
  std::atomic<bool> has_pool_of_user_ = false;
  memory_users users_;
  waiting_frees waiting_;
  live_levels levels_;
};

/// All devices of the process.
class device_table {
 public:
  static constexpr int devices_max = 64;

  device_table(const driver_calls& cu, context_table& contexts,
               const device_pools::shared_parts& parts) noexcept
      : cu_(cu), contexts_(contexts), parts_(parts) {}
  device_table(const device_table&) = delete;
  device_table& operator=(const device_table&) = delete;

  /// The allocators of the device whose primary context is current; opens them if needed. Null: the
  /// device is not managed, or another context is current.
  [[nodiscard]] device_pools* of_current() noexcept VMM_REQUIRES_SHARED(locks::gate);
  [[nodiscard]] device_pools* of(stream_name name) noexcept VMM_REQUIRES_SHARED(locks::gate);
  /// Whether the owner of the current device's memory has refused this process.
  [[nodiscard]] bool is_barred() noexcept;
  /// The same of the device with this UUID, as an owner has it.
  [[nodiscard]] bool is_barred(std::string_view uuid) const noexcept;
  /// Null if the device is not open.
  [[nodiscard]] device_pools* of_device(device_id device) const noexcept;
  [[nodiscard]] device_pools* of_context(context_id context) const noexcept;
  /// visitor(device_pools&) for each open device.
  template <class Visitor>
  void visit(Visitor&& visitor) const {
    for (const auto& each : open_) {
      device_pools* const pools = each.load(std::memory_order_acquire);
      if (pools != nullptr) visitor(*pools);
    }
  }

  /// The current context may use the memory of the device of `owner`.
  void grant_context(context_id owner) noexcept VMM_EXCLUDES(locks::gate);
  /// The device may use the memory of the pool's device.
  void grant_device(pool_id pool, device_id device) noexcept VMM_EXCLUDES(locks::gate);
  /// The program chose the pool of a device.
  void choose_pool(device_id device, pool_id pool) noexcept VMM_EXCLUDES(locks::opening);

  /// Null if no open device has the context; else closes the device, whose blocks the caller
  /// removes.
  [[nodiscard]] std::unique_ptr<device_pools> close(context_id gone) noexcept
      VMM_REQUIRES(locks::gate, locks::opening);

 private:
  struct context_grant {
    context_id owner = nullptr;
    context_id user = nullptr;
    device_id device = 0;
  };
  struct pool_grant {
    pool_id pool = nullptr;
    device_id device = 0;
  };

  [[nodiscard]] device_pools* find(context_id context, device_id device) noexcept;
  [[nodiscard]] device_pools* open(device_id device, context_id context) noexcept
      VMM_EXCLUDES(locks::opening);
  [[nodiscard]] std::unique_ptr<device_pools> make(device_id device, context_id context)
      VMM_REQUIRES(locks::opening);
  void apply_choices(device_pools& pools) VMM_REQUIRES(locks::opening);

  const driver_calls& cu_;
  context_table& contexts_;
  const device_pools::shared_parts parts_;
  std::array<std::atomic<device_pools*>, devices_max> open_{};
  std::atomic<std::uint64_t> generation_ = 1;  // of open_
  std::array<bool, devices_max> is_refused_ VMM_GUARDED_BY(locks::opening){};
  std::array<std::atomic<bool>, devices_max> is_barred_{};
  std::array<std::string, devices_max> barred_uuids_;
  std::vector<context_grant> context_grants_ VMM_GUARDED_BY(locks::opening);
  std::vector<pool_grant> pool_grants_ VMM_GUARDED_BY(locks::opening);
  // Chosen by cuDeviceSetMemPool, also before the device is open.
  std::array<pool_id, devices_max> chosen_pools_ VMM_GUARDED_BY(locks::opening){};
};

}  // namespace vmm::preload::managed

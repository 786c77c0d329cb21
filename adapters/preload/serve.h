// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// VMM_MODE=vmm: the calls of a program, served from vmm's allocators.
//
// - A block is handed out again only when no work that the device received before its free can use
//   it: at once in the order of the stream for cuMemFreeAsync, behind all work for cuMemFree
//   (waiting_frees). cuMemFree does not wait.
// - A request is passed to the driver only after the pool's steps (vmm.stream:shortage, with the
//   idle memory of the device's other allocators) and those of outer_ladder (serve.cpp), which
//   wait. A request beyond VMM_BUDGET is not passed on. For a request that the driver itself
//   serves, handlers.cpp (call_driver) releases idle memory.
//
// Thread safety: all of it. Cost: the pool's, and two locks; waits only if memory is short or
// VMM_KEEP or VMM_FREE require it, outside of the gate.
//
// It imports what it uses, so it comes after every include of the standard library.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "abi.h"
#include "accounts.h"
#include "contexts.h"
#include "live_blocks.h"
#include "locks.h"

namespace vmm::preload::managed {

/// The address, or the reason why the request is left to the driver.
struct answer {
  device_pointer at = 0;  // 0: not served
  unmanaged_reason why = unmanaged_reason::no_context;
};
[[nodiscard]] answer allocate(std::size_t size) noexcept VMM_EXCLUDES(locks::gate);
[[nodiscard]] answer allocate(std::size_t size, stream_name stream) noexcept
    VMM_EXCLUDES(locks::gate);
/// Whether a pool is the default one of the stream's device, whose memory is served. A program may
/// name a stream of one device and a pool of another.
[[nodiscard]] bool serves_pool(pool_id pool, stream_name stream) noexcept VMM_EXCLUDES(locks::gate);

enum class free_answer : std::uint8_t {
  done,     // it was a block of the library
  wrong,    // an address of the library, where no live block begins
  foreign,  // the driver's
};
[[nodiscard]] free_answer free_now(device_pointer at) noexcept VMM_EXCLUDES(locks::gate);
[[nodiscard]] free_answer free_async(device_pointer at, stream_name stream) noexcept
    VMM_EXCLUDES(locks::gate);

/// The block that an address lies in.
[[nodiscard]] place find(device_pointer at, block_facts& into) noexcept;

/// With VMM_OWNER, a device as this process sees it: the memory of all of its tenants is taken.
struct device_share {
  std::uint64_t total_bytes = 0;
  std::uint64_t free_bytes = 0;
  bool is_refused = false;  ///< the owner refused this process: nothing is free

  [[nodiscard]] std::uint64_t used_bytes() const noexcept { return total_bytes - free_bytes; }
  /// Of a device with that memory, which a share may exceed.
  [[nodiscard]] device_share within(std::uint64_t device_bytes) const noexcept {
    const std::uint64_t total = std::min(total_bytes, device_bytes);
    return {total, total - std::min(total, used_bytes()), is_refused};
  }
};
/// Of the current context's device.
[[nodiscard]] bool find_share(device_share& into) noexcept VMM_EXCLUDES(locks::gate);
/// Of the device with this UUID, as an owner has it. Makes no tenant of the process: until it is
/// one, the share is that in VMM_TENANT, and all of it is free. Throws std::bad_alloc.
[[nodiscard]] bool find_share(const std::string& uuid, device_share& into)
    VMM_EXCLUDES(locks::gate);
/// With VMM_OWNER, the total of a device as this tenant sees it; 0: the device's own. Before the
/// process is a tenant: from VMM_TENANT.
[[nodiscard]] std::uint64_t share_of(device_id device) noexcept VMM_EXCLUDES(locks::gate);
/// Memory of the current context's device that the allocators hold and no live block uses.
[[nodiscard]] std::uint64_t reusable_bytes() noexcept VMM_EXCLUDES(locks::gate);
/// What cuMemPoolGetAttribute adds for the memory that the library holds in place of a device's
/// default pool; 0 for another pool or attribute.
[[nodiscard]] std::uint64_t figure_of_pool(pool_id pool, int attribute) noexcept
    VMM_EXCLUDES(locks::gate);
/// A high figure starts again.
void reset_figure_of_pool(pool_id pool, int attribute) noexcept VMM_EXCLUDES(locks::gate);
/// Releases free memory of the calls with a stream until at most `kept_size` bytes are held, or no
/// more can be. Waits for no work; nothing is released during a capture.
void trim_pool(pool_id pool, std::size_t kept_size) noexcept VMM_EXCLUDES(locks::gate);
/// Releases all idle memory of every device to the driver. Waits for freed blocks if `may_wait`.
/// Returns the bytes.
std::uint64_t release_idle(bool may_wait) noexcept VMM_EXCLUDES(locks::gate);

/// Under VMM_COPY: maps the source's memory at the target if both are whole blocks, after waiting
/// for all work of the device. False: nothing was done.
[[nodiscard]] bool copy_by_remapping(device_pointer target, device_pointer source,
                                     std::size_t size) noexcept VMM_EXCLUDES(locks::gate);

}  // namespace vmm::preload::managed

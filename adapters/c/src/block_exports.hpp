// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Blocks of allocators that other processes of the user map, and blocks of other processes that are
// mapped here. A thread of the process sends the physical handles behind a block as descriptors
// (modules/share/ipc_server.hpp); each is exported for one request, so an exported block holds no
// descriptor.
//
// - An exported block is live, so its physical handles exist: a free ends the export first.
// - No lock is held over a message that waits, nor over a driver call but an export.
// - A forked child has lists of its own, which are empty.
//
// Threads: all of it. Cost: of a free without exported blocks, one relaxed load.
#pragma once

#include <atomic>
#include <cstdint>

#include "vmm_allocator.h"

#include "device_memory.hpp"

import vmm.backend;

namespace vmm_c {

/// The number of exported blocks of the process.
inline std::atomic<std::uint64_t> exported_count = 0;

/// Exports a live block: the same bytes until it is freed.
[[nodiscard]] vmm_status export_block(device_memory& device, const vmm_allocation& block,
                                      vmm_block_export& out);
/// Ends the export of the block that begins at `at`, if there is one.
void end_export(const device_memory& device, std::uint64_t at) noexcept;

/// Maps another process's block for the device. `captures`: as end_import().
[[nodiscard]] vmm_status import_block(device_memory& device, const vmm_block_export& from,
                                      bool captures, vmm::address& at);
/// Unmaps it after all work of the device. `captures`: captures are announced; a later call of the
/// same allocator does. False: no block that is imported for the device begins there.
[[nodiscard]] bool end_import(const device_memory& device, std::uint64_t at, bool captures);

/// The device's memory ends: so do its exports and imports.
void end_sharing_of(device_memory& device) noexcept;

}  // namespace vmm_c

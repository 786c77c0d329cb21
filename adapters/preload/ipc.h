// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// cuIpcGetMemHandle and related calls for blocks of a pool, which the driver does not share.
//
// The process that shares a block exports the physical handles behind it as descriptors, and a
// thread of the library sends them to a process of the same user that names the block on a socket.
// The 64 bytes of the handle name both. The process that opens it, which has this library too, maps
// the same memory at an address of its own.
//
// - Other handles are passed to the driver.
// - The block stays where it is while it is live, as the driver's own memory would. When it is
//   freed its descriptors are closed; a process that has it open keeps the memory until it closes
//   it.
// - Processes of one user share: each side checks the other's before it reads a byte.
// - No lock is held over a call of the driver, or over a message that waits.
// - A closed block is unmapped once the work of its context has finished; during a capture of the
//   process, by a later call.
// - A forked child keeps no descriptor, so memory that its parent frees is free.
//
// Thread safety: all of it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "abi.h"

namespace vmm::preload::ipc {

/// Makes the handle of the block, the same one each time. False: it cannot be shared.
[[nodiscard]] bool share(device_pointer base, ipc_handle& into) noexcept;
/// The block is being freed.
void forget(std::uint64_t number) noexcept;

/// The context has ended, with the blocks opened in it, as with the driver.
void forget_context(context_id gone) noexcept;

/// Whether a handle was made by share(), in any process.
[[nodiscard]] bool is_ours(const ipc_handle& handle) noexcept;
/// The result of cuIpcOpenMemHandle for such a handle.
[[nodiscard]] result_code open(device_pointer* at, const ipc_handle& handle) noexcept;
/// Whether `at` was opened here; then `answer` is the result of cuIpcCloseMemHandle.
[[nodiscard]] bool close(device_pointer at, result_code& answer) noexcept;
/// A capture ended: unmaps blocks closed meanwhile.
void end_capture() noexcept;

struct opened_range {
  device_pointer base = 0;
  std::size_t size = 0;
  std::uint64_t number = 0;
  context_id context = nullptr;
};
/// The opened block that an address lies in.
[[nodiscard]] bool find(device_pointer at, opened_range& into) noexcept;

/// The process ends: its socket's name goes.
void finish() noexcept;

void before_fork() noexcept;
void after_fork(bool is_child) noexcept;

}  // namespace vmm::preload::ipc

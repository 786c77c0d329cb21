// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// VMM_MODE=vmm: the program's device memory comes from vmm's stream-ordered pools.
//
// Each device has two pools. One serves the calls without a stream (cuMemAlloc): all of its memory
// is free for one quiet stream that is never given work, so that a block can be used on every
// stream at once, without a wait. The other serves the calls with a stream.
//
// I1  A block is reused only when no work submitted to the device before its free can still use it:
//     at once in the order of the stream for cuMemFreeAsync, and when a mark of all work has passed
//     for cuMemFree (free_after_everything). cuMemFree does not wait.
// I2  Addresses other than our live blocks go to the driver, except those inside our reservations,
//     which are unknown to the driver.
// I3  No call of ours disturbs a capture in progress: marks are deferred until it has ended, and
//     none begins beside a call that may make one (gate.h).
// I4  Nothing here is destroyed at the end of the process.
// I5  A free takes no host memory: what it needs was made with the block.
//
// Thread safety: all of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "abi.h"
#include "accounts.h"

namespace vmm::preload::managed {

/// Null, or what is wrong with the variables that the pools read.
[[nodiscard]] const char* check_settings() noexcept;

struct counts {
  std::uint64_t served_count = 0;
  std::uint64_t deferred_count = 0;
  std::uint64_t waited_count = 0;
  std::uint64_t remapped_count = 0;  // copies
};
[[nodiscard]] counts figures() noexcept;

/// A stream as a call named it: 0 means the stream of each thread in the forms for such programs.
struct stream_name {
  stream_id stream = nullptr;
  bool per_thread = false;

  /// The stream that is another one in each thread.
  [[nodiscard]] bool is_per_thread() const noexcept;
};

/// The result of an allocation: the address, or the reason to call the driver.
struct answer {
  device_pointer at = 0;  // 0: not served
  unmanaged_reason why = unmanaged_reason::no_context;
};
[[nodiscard]] answer allocate(std::size_t size) noexcept;
[[nodiscard]] answer allocate(std::size_t size, stream_name stream) noexcept;
/// Whether a pool is the default one of the stream's device, whose memory is served. A program may
/// name a stream of one device and a pool of another.
[[nodiscard]] bool serves_pool(pool_id pool, stream_name stream) noexcept;

enum class free_answer : std::uint8_t {
  done,     // it was a block of ours
  wrong,    // an address of ours, but no live block begins there
  foreign,  // the driver's to answer
};
[[nodiscard]] free_answer free_now(device_pointer at) noexcept;
[[nodiscard]] free_answer free_async(device_pointer at, stream_name stream) noexcept;

/// The block that an address lies in.
struct block_facts {
  device_pointer base = 0;
  std::size_t size = 0;
  std::uint64_t number = 0;
  context_id context = nullptr;
  pool_id pool = nullptr;   // of blocks that were allocated with a stream
  bool is_ordered = false;  // it was
};
enum class place : std::uint8_t { elsewhere, in_block, in_free_memory };
[[nodiscard]] place find(device_pointer at, block_facts& into) noexcept;

/// The physical memory behind a block that was allocated without a stream.
struct memory_piece {
  physical_id handle = 0;
  std::uint64_t size_bytes = 0;
};
struct block_memory {
  device_id device = -1;
  std::vector<memory_piece> pieces;  // in address order; none: the block is not there
  std::uint64_t offset_bytes = 0;    // of the block in the first piece
  std::uint64_t size_bytes = 0;
  std::uint64_t number = 0;
};
[[nodiscard]] block_memory memory_of(device_pointer base);
/// A new descriptor of a piece, which the caller closes; -1: the driver gives none.
[[nodiscard]] int export_piece(const block_memory& block, const memory_piece& piece) noexcept;

/// Memory of the current context's device that the pools hold unused.
[[nodiscard]] std::uint64_t reusable_bytes() noexcept;
/// Gives all that can be released to the driver, of every device. Waits for work where `may_wait`
/// says so. The bytes.
std::uint64_t give_back(bool may_wait) noexcept;

/// As VMM_COPY says: shows the source's memory at the target where both are whole blocks without
/// work, after waiting for all work of the device. False: nothing was done.
[[nodiscard]] bool copy_by_remapping(device_pointer target, device_pointer source,
                                     std::size_t size) noexcept;

/// Before a stream is destroyed.
void forget(stream_id stream) noexcept;
/// While it lives the driver may end a context: no other call of ours is in progress.
class ending_turn {
 public:
  ending_turn() noexcept;
  ~ending_turn();
  ending_turn(const ending_turn&) = delete;
  ending_turn& operator=(const ending_turn&) = delete;

  /// A device's primary context, or null.
  [[nodiscard]] context_id primary_context(device_id device) const noexcept;
  /// The driver has ended it: what is known of it, and the blocks in it, are gone.
  void note_ended(context_id gone) const noexcept;
};

/// Waits for all work of a context; while it lives no capture begins.
class idle_turn {
 public:
  explicit idle_turn(context_id context) noexcept;
  ~idle_turn();
  idle_turn(const idle_turn&) = delete;
  idle_turn& operator=(const idle_turn&) = delete;

  /// False: a stream of the process is captured, and no driver call was made.
  [[nodiscard]] bool is_idle() const noexcept { return is_idle_; }

 private:
  bool is_idle_ = false;
};

/// The current context's device may from now on use the memory of `owner`'s device.
void grant_peer(context_id owner) noexcept;
/// A device may use the memory of the pool's device from now on.
void grant_pool_peer(pool_id pool, device_id device) noexcept;
/// The program chose the pool of a device.
void note_device_pool(device_id device, pool_id pool) noexcept;

/// A capture is about to begin on the stream: marks of all work that are under way are recorded
/// first, and none is afterwards.
void note_capture_begin(stream_name stream) noexcept;
/// It did not begin; the one on the stream may have ended.
void note_capture_refused(stream_name stream) noexcept;
void note_capture_end(stream_name stream) noexcept;

}  // namespace vmm::preload::managed

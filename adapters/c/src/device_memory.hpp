// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// One device of an allocator: its driver, its pool, its blocks, and the frees that wait for other
// streams. It imports what it uses, so it is the last include of a file.
//
// I1  A block is in the table, or pending behind work of other streams, or deferred until captures
//     end; the pool has it in each of these cases. A free that fails leaves it in the table.
// I2  The table and the counts change under lock_, which comes before the lock of pending frees.
//     The pool and the driver are called outside of it. Under lock_ the table allocates host memory
//     when it doubles, and for the few blocks whose data exceed an entry.
//
// Threads: all of it. Cost: the pool's, and a spin lock over three lines of cache: one of its own,
// one of the table and one of the counts.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "block_counts.hpp"
#include "block_index.hpp"
#include "vmm_allocator.h"

#include "objects.hpp"

import vmm.backend;
import vmm.base;
import vmm.stream;
import vmm.timeline;

namespace vmm_c {

// A driver whose physical memory is counted and limited, and can be exported as a descriptor.
class device_driver final : public vmm::forwarding_driver {
 public:
  using forwarding_driver::forwarding_driver;

  [[nodiscard]] vmm::result<vmm::physical_handle> create(
      const vmm::physical_request& request) override;
  [[nodiscard]] vmm::status release(vmm::physical_handle handle) override;

  void set_limit(std::uint64_t limit_bytes) noexcept;
  void write_levels(vmm_allocator_statistics& out) const noexcept;
  void reset_peaks() noexcept;
  void reset_counts() noexcept;

 private:
  mutable vmm::sync::mutex lock_;
  vmm::flat_table<std::uint64_t> sizes_;  // by handle
  vmm_level held_{};
  vmm_level handles_{};
  std::uint64_t limit_bytes_ = 0;
};

// Which numbers of streams the driver has.
struct stream_rules {
  bool is_cuda = false;
  bool has_any = false;
};

class device_memory {
 public:
  device_memory(vmm::any_backend opened, const vmm::pool_options& options)
      : streams_{opened.name() == "cuda", opened.feature_set().streams},
        backend_(std::move(opened)),
        driver_(*backend_.get()),
        pool_(driver_, options),
        clock_(std::make_unique<vmm::timeline>(driver_)) {}
  ~device_memory();
  device_memory(const device_memory&) = delete;
  device_memory& operator=(const device_memory&) = delete;

  [[nodiscard]] const stream_rules& streams() const noexcept { return streams_; }
  [[nodiscard]] vmm::stream_pool& pool() noexcept { return pool_; }
  [[nodiscard]] device_driver& driver() noexcept { return driver_; }

  [[nodiscard]] vmm::result<vmm::address> allocate(std::uint64_t size_bytes,
                                                   vmm::stream_handle stream, bool captures);
  // True: the block was this device's.
  [[nodiscard]] vmm::result<bool> free(std::uint64_t at, bool captures);
  [[nodiscard]] vmm::result<bool> record(std::uint64_t at, vmm::stream_handle stream);
  [[nodiscard]] bool find(std::uint64_t at, std::int32_t device, vmm_allocation& found);
  void list(std::int32_t device, std::vector<vmm_allocation>& out);

  // Completes what can be. `captures`: captures are announced, and blocks that wait for their end
  // stay.
  void collect(bool captures);
  // The same, and waits for the work that frees wait for. True: any block was freed.
  bool wait_for_frees(bool captures);
  // 0: as much as the device has.
  void set_limit(std::uint64_t limit_bytes) noexcept;
  void write_statistics(vmm_allocator_statistics& out) noexcept;
  void reset_peaks() noexcept;
  void reset_counts() noexcept;

  // Checks every invariant. Returns null, or the broken one. Requires: no other call is in
  // progress. Throws std::bad_alloc.
  [[nodiscard]] const char* find_broken();

 private:
  using pending_blocks = vmm::pending_frees<live_block, vmm::ticket_ref>;

  [[nodiscard]] bool is_in_capture(const live_block& block);
  [[nodiscard]] bool record_users(pending_blocks::entry& gone);
  [[nodiscard]] bool end_wait(pending_blocks::owner&& gone);
  [[nodiscard]] bool retire(pending_blocks::owner&& gone);
  [[nodiscard]] bool retire_deferred();
  [[nodiscard]] bool collect_finished(std::size_t misses_max);
  [[nodiscard]] vmm::result<bool> return_to_pool(live_block&& gone, pending_blocks::owner&& entry);
  [[nodiscard]] const char* find_broken_table() const noexcept;  // under lock_

  // What a call reads first, on one line.
  alignas(64) const made_here made_in_;
  const stream_rules streams_;
  std::atomic<bool> has_pending_ = false;
  vmm::sync::spin_lock lock_;
  block_index blocks_;
  block_counts counts_;
  std::uint64_t short_count_ = 0;
  std::uint64_t retry_count_ = 0;
  std::uint64_t host_wait_count_ = 0;
  unsigned unaudited_count_ = 0;  // allocations; debug builds check the table once for each hundred

  vmm::any_backend backend_;
  device_driver driver_;
  vmm::stream_pool pool_;

  std::unique_ptr<vmm::timeline> clock_;
  pending_blocks pending_{has_pending_};
};

}  // namespace vmm_c

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.manager - one facade over the parts: allocate, free, resize, copy, statistics. [F1, F2]
//
// A manager turns requests into operations of the engine by its policy, and when memory is short it
// gives back what is kept and tries again. It is set up on its first allocation; making one costs
// nothing and calls no driver.
//
// I1  Whatever fails, every allocation and its contents are as before the call. What may have
//     changed is what was kept for reuse: memory that was in a cache may have gone back to the
//     driver.
// I2  Physical bytes held = behind allocations + behind cached ranges + cached pieces (+ waiting
//     for unfinished work).
// I3  Addresses are unmapped only when the work that may use them has finished; the host waits for
//     it only when memory is short and the options allow it, or to move a block without aliases.
// I4  A block's stream is ordered behind the work of those who had its memory before. The host is
//     when settle() has answered success.
//
// I4  In a forked child every call is refused with not_permitted (or answers nothing, where there
//     is no error to answer), takes no lock, and destroying the child's copy changes nothing.
//
// Thread safety: all of it. No driver call is made under a lock that another allocation needs, but
// allocations for which memory is short recover one after the other.
// Cost: bookkeeping O(log n); driver calls by the number of pieces. With keep_mapped, a request of
// a cached size makes no driver call but for events.
module;
#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <new>
#include <utility>
#include <vector>

export module vmm.manager;

export import :policy;
export import vmm.backend;
export import vmm.physical;
export import vmm.timeline;
export import vmm.tracker;
import :cache;
import vmm.optimizer;
import vmm.reservation;
import vmm.sync;
import vmm.va;

namespace vmm {

/// A block as asked for.
export struct allocate_request {
  std::uint64_t size_bytes = 0;  ///< not 0; rounded up to the granularity
  std::uint64_t growth_bytes =
      0;  ///< address space kept free behind the block, so that it can grow in place [B3]
  std::uint64_t alignment_bytes = 0;  ///< a power of two; below the granularity it costs nothing;
                                      ///< kept when the block moves
  stream_handle stream = stream_handle::default_stream;  ///< the stream that uses the block first
};

export struct resize_request {
  address at{};                    ///< what allocate returned
  std::uint64_t size_bytes = 0;    ///< not 0
  std::uint64_t growth_bytes = 0;  ///< room to keep behind the block where it has to move
  bool may_move = true;  ///< false: grow at the same address or fail with out_of_addresses
};

/// What a copy may do to its source. [E2, E4]
export enum class copy_mode : std::uint8_t {
  copy,   // bytes are copied; source and target are independent afterwards
  alias,  // both addresses may show the same memory until one of them is freed: write to neither
  // before that, and before the work that the freed one was given has finished. What the target
  // held behind the copied bytes is unspecified afterwards
  move,  // the source is given up: its memory may move to the target; only free it afterwards.
         // What the target held behind the copied bytes is unspecified afterwards
};

/// Numbers of one manager. Bytes but where the name says otherwise. [G8 of the manager]
export struct manager_statistics {
  std::uint64_t live_count = 0;
  std::uint64_t user_bytes = 0;  ///< as asked for, of live allocations
  std::uint64_t mapped_bytes =
      0;  ///< behind live allocations; an aliased piece counts at each address
  std::uint64_t held_bytes = 0;  ///< physical memory that the driver has given and not got back
  std::uint64_t peak_held_bytes = 0;
  std::uint64_t cached_piece_bytes = 0;  ///< held, unmapped or waiting to be, free for any request
  std::uint64_t cached_range_bytes = 0;  ///< held and still mapped, free for requests of its size
  std::uint64_t retired_bytes = 0;       ///< address space that waits for unfinished work
  std::uint64_t reserved_bytes = 0;      ///< address space reserved
  std::uint64_t space_live_bytes = 0;    ///< address space handed out
  std::uint64_t space_high_water_bytes = 0;
  std::uint64_t created_count = 0;  ///< pieces made by the driver
  std::uint64_t reused_piece_count = 0;
  std::uint64_t reused_range_count =
      0;  ///< requests served by a cached range of their size (case 2)
  std::uint64_t grown_range_count = 0;    ///< by growing one (case 3)
  std::uint64_t unbound_range_count = 0;  ///< ranges taken apart (case 4)
  std::uint64_t remapped_copy_count = 0;
  std::uint64_t real_copy_count = 0;
  std::uint64_t recovery_count = 0;  ///< times that memory ran short and caches were drained [F2]
};

/// A stretch of the address space, as the picture of it shows it.
export enum class extent_kind : std::uint8_t { live, cached, retired, hole };
export struct extent_view {
  address_range where{};
  std::uint64_t mapped_bytes = 0;
  extent_kind kind = extent_kind::hole;
};

export class manager {
 public:
  /// `driver` outlives the manager. Makes no driver call.
  explicit manager(driver_ref driver, const manager_options& options = {}) noexcept
      : driver_(driver), driver_use_(driver.use()), options_(options) {}
  manager(const manager&) = delete;
  manager& operator=(const manager&) = delete;
  /// Frees what is still allocated, waiting for its work, and gives everything back; no vector uses
  /// it any more. What the driver will not take back stays with the process, and a line on stderr
  /// says so. Blocks that are live are told to options().at_end before.
  ~manager();
  /// The vectors over this manager; it does not go while there are any.
  [[nodiscard]] user_count& users() noexcept { return users_; }

  /// Checks the options, first among themselves (manager_options::validate), then against the
  /// device's granularity; the first allocation does it where nobody has. Errors: bad_option (the
  /// detail names the option and its range; every later call answers the same), not_supported (the
  /// backend's contents_stay), out_of_host_memory, what query_granularity answers; after these a
  /// later call tries again.
  [[nodiscard]] status set_up();

  /// A block. Its bytes are not known. Its stream is ordered, on the device, behind the work of
  /// those who had its memory before; other streams are the caller's to order behind that one, and
  /// the host waits in settle().
  /// Errors: invalid_argument, out_of_memory (after the caches were drained), over_budget,
  /// out_of_mappings, out_of_addresses, out_of_host_memory, bad_option and not_supported as
  /// set_up(), driver errors. [F1]
  [[nodiscard]] result<address> allocate(const allocate_request& request);
  [[nodiscard]] result<address> allocate(std::uint64_t size_bytes) {
    return allocate(allocate_request{size_bytes});
  }

  /// Frees after the work that the block's stream (or `last_use`) has been given so far. The caller
  /// orders other streams that used the block before that one, and keeps the stream alive until
  /// then; before the stream is destroyed, forget() is called. Never waits. Errors:
  /// unknown_address, not_allocated (freed before), invalid_argument (inside a block), in_use
  /// (another thread is at it), driver errors; the block is as before.
  [[nodiscard]] status free(address at);
  [[nodiscard]] status free(address at, stream_handle last_use);
  /// Frees at once: the caller promises that no unfinished work of his uses the block. Work of
  /// those who had its memory before may be unfinished. Errors: as free.
  [[nodiscard]] status free_idle(address at);

  /// Changes the size and keeps the data: in place where the addresses behind the block are free,
  /// else by mapping the same memory at a new address, which is returned. No byte is copied. The
  /// old addresses stay mapped until the work given to the block's stream has finished. [E1, B3]
  /// Requires: other streams that use the block are ordered behind its stream before they use what
  /// was added, and before it when the block may move or shrink.
  /// Errors: as allocate and free; invalid_argument (a size of 0, or the block's memory is gone);
  /// out_of_addresses when the block may not move and cannot grow. The block is as before, but for
  /// device_lost: where a driver maps no memory twice (alias_level::none), the old mapping is
  /// undone before the new one is made, and a driver that refuses the new one and then the old one
  /// again, each time, leaves the block without contents. Its address and sizes.user_bytes = 0 are
  /// found, and free() is the only call that takes it. What of its memory still stands mapped goes
  /// back with it.
  [[nodiscard]] result<address> resize(const resize_request& request);

  /// To be called before a stream is destroyed that blocks were allocated for or freed on: its
  /// number may come back for another stream, which would be taken for the one that had the memory
  /// before. Its work may be unfinished. Requires: no live block has this stream. Never fails.
  /// Cost: no driver call; later, for memory that is in use when it serves again, an event query
  /// and a wait on the device.
  void forget(stream_handle stream) noexcept;

  /// Blocks the calling thread until the host may touch the block's bytes: until the work of those
  /// who had its memory before has finished. The block's stream is ordered behind that work, the
  /// host is not. Does not wait for any other work: what the caller gave the block he orders
  /// himself. To be called after allocate, and after a resize that added memory, before the host's
  /// first write or read there.
  /// Errors: unknown_address, not_allocated, in_use, invalid_argument (inside a block, or its
  /// memory is gone), what synchronize_event answers; a later call tries again.
  /// Cost: O(pieces); a driver call only for work that is not known to have finished.
  [[nodiscard]] status settle(address at);

  /// A point behind all that `stream` has been given so far; the manager outlives it. Errors: as
  /// set_up; out_of_host_memory, what create_event and record_event answer.
  [[nodiscard]] result<ticket_ref> mark(stream_handle stream);
  /// Blocks the calling thread until the work before a point of this manager has finished. No
  /// driver call where that is known. Errors: what synchronize_event answers.
  [[nodiscard]] status wait(const ticket_ref& point);

  /// Copies in the order of `request.stream`, which the caller orders behind the streams of both
  /// blocks. alias and move remap where both ends are whole, idle blocks that fit, and copy bytes
  /// otherwise; only the time tells. [E2-E4] Errors: not_supported where bytes must be copied and
  /// the backend cannot; driver errors; device_lost as resize, for either block.
  [[nodiscard]] status copy(const copy_request& request, copy_mode mode = copy_mode::copy);

  /// What is known of the block that `at` lies in. Errors: unknown_address, not_allocated,
  /// out_of_host_memory. [D1]
  [[nodiscard]] result<range_info> find(address at);

  /// Gives cached memory back until at most `limit_bytes` of it are kept. Waits for no work, only
  /// for another thread that gives memory back. [C4]
  [[nodiscard]] trim_report trim(std::uint64_t limit_bytes);
  [[nodiscard]] trim_report drain() { return trim(0); }

  /// O(1).
  [[nodiscard]] manager_statistics statistics();
  /// All of the address space in address order up to the last extent in use. Errors:
  /// out_of_host_memory.
  [[nodiscard]] result<std::vector<extent_view>> extents();
  [[nodiscard]] const manager_options& options() const noexcept { return options_; }
  /// What the manager works through. Thread safety: any thread.
  [[nodiscard]] driver_interface& driver() const noexcept { return *driver_; }
  /// Sizes are multiples of it. 0 before set_up.
  [[nodiscard]] std::uint64_t granularity_bytes() const noexcept {
    return is_set_up_.load(std::memory_order_acquire) ? unit_bytes_ : 0;
  }
  /// Every validator of every part. O(everything).
  [[nodiscard]] bool validate();

 private:
  struct counters {
    sync::atomic<std::uint64_t> reused_range_count = 0;
    sync::atomic<std::uint64_t> grown_range_count = 0;
    sync::atomic<std::uint64_t> unbound_range_count = 0;
    sync::atomic<std::uint64_t> remapped_copy_count = 0;
    sync::atomic<std::uint64_t> real_copy_count = 0;
    sync::atomic<std::uint64_t> recovery_count = 0;
  };

  static constexpr std::uint64_t size_bytes_max = std::uint64_t{1} << 56;
  // The second time finds what threads that were short together had gathered in vain.
  static constexpr int recovery_attempts = 2;
  // A fault that strikes the end once must not leave a trace; one that stays cannot be outwaited.
  static constexpr int close_attempts = 3;
  static constexpr std::size_t reap_count =
      8;  // retired ranges looked at before each request: bounds its cost

  [[nodiscard]] result<engine_options> plan_engine();
  [[nodiscard]] result<std::uint64_t> query_unit(physical_request like);
  [[nodiscard]] result<range_sizes> sizes_for(std::uint64_t size_bytes,
                                              std::uint64_t growth_bytes) const;
  [[nodiscard]] static block& block_of(tracked_range& range) noexcept {
    return static_cast<block&>(range);
  }
  [[nodiscard]] result<block*> claim(address at);
  [[nodiscard]] status free_after(block& gone, const ticket_ref& last_use);
  [[nodiscard]] result<block*> obtain(const block_request& request);
  [[nodiscard]] result<block*> reuse_exact(block& cached, const block_request& request);
  [[nodiscard]] result<block*> grow_cached(block& cached, const block_request& request);
  [[nodiscard]] status unbind(block& cached);
  void uncache_failed(block& cached) noexcept;
  [[nodiscard]] result<address> resize_claimed(block& resized, const resize_request& request);
  [[nodiscard]] status grow(block& grown, const resize_request& request, resize_plan plan);
  [[nodiscard]] status remap_copy(const copy_request& request, copy_mode mode);
  [[nodiscard]] status remap_claimed(block& target, block& source, const copy_request& request,
                                     copy_mode mode);
  [[nodiscard]] bool remap_fits(const block& target, const block& source,
                                const copy_request& request) const;
  [[nodiscard]] status real_copy(const copy_request& request);
  [[nodiscard]] status drain_ranges(std::uint64_t limit_bytes);
  [[nodiscard]] trim_report give_back(std::uint64_t limit_bytes);
  // Of the pieces that no range has.
  [[nodiscard]] trim_report release_pieces(std::uint64_t limit_bytes) {
    const sync::lock_guard<sync::mutex> releasing(release_mutex_);
    return engine_->memory().trim(limit_bytes);
  }
  [[nodiscard]] status close();
  void report_live() noexcept;

  // Runs `operation`; when memory is short, gives back what is kept and runs it again, then waits
  // for unfinished work on freed memory, oldest first, until it succeeds or nothing is left to wait
  // for. One thread recovers at a time: memory that another is just giving back is not missed. [F2]
  template <class Operation>
  [[nodiscard]] auto with_recovery(Operation&& operation) {
    auto outcome = operation();
    if (outcome || !is_shortage(outcome.error().code)) return outcome;
    const sync::lock_guard<sync::mutex> recovering(recovery_mutex_);
    counts_.recovery_count.fetch_add(1, std::memory_order_relaxed);
    for (int left = recovery_attempts; left > 0 && !outcome; --left) {
      if (!is_shortage(outcome.error().code)) return outcome;
      (void)give_back(0);
      outcome = operation();
    }
    while (options_.wait_when_short && !outcome && is_shortage(outcome.error().code) &&
           engine_->reap_waiting()) {
      (void)release_pieces(0);
      outcome = operation();
    }
    return outcome;
  }

  driver_ref driver_;
  use_of driver_use_;
  manager_options options_;
  sync::mutex set_up_mutex_;
  sync::mutex recovery_mutex_;
  sync::mutex release_mutex_;  // after that of recovery; held while memory goes back to the driver
  sync::atomic<bool> is_set_up_ = false;
  const process_mark made_in_;
  std::uint64_t unit_bytes_ = 0;   // sizes are multiples of it
  std::uint64_t place_bytes_ = 0;  // addresses are multiples of it
  std::unique_ptr<engine> engine_;
  range_cache cache_;
  counters counts_;
  user_count users_{used_object::manager};
};

}  // namespace vmm

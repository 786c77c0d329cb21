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

export template <backend B>
class manager {
 public:
  using backend_type = B;

  /// `driver` outlives the manager. Makes no driver call.
  explicit manager(B& driver, const manager_options& options = {}) noexcept
      : driver_(driver), driver_use_(driver), options_(options) {}
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

  B& driver_;
  use_of driver_use_;
  manager_options options_;
  sync::mutex set_up_mutex_;
  sync::mutex recovery_mutex_;
  sync::mutex release_mutex_;  // after that of recovery; held while memory goes back to the driver
  sync::atomic<bool> is_set_up_ = false;
  const process_mark made_in_;
  std::uint64_t unit_bytes_ = 0;   // sizes are multiples of it
  std::uint64_t place_bytes_ = 0;  // addresses are multiples of it
  std::unique_ptr<engine<B>> engine_;
  range_cache cache_;
  counters counts_;
  user_count users_{used_object::manager};
};

// ---- set-up --------------------------------------------------------------------------

template <backend B>
status manager<B>::set_up() {
  if (!made_in_.is_here()) return refuse_forked();
  if (is_set_up_.load(std::memory_order_acquire)) return {};
  const sync::lock_guard<sync::mutex> lock(set_up_mutex_);
  if (engine_ != nullptr) return {};
  const result<engine_options> plan = plan_engine();
  if (!plan) return plan.error();
  engine_.reset(new (std::nothrow) engine<B>(driver_, *plan));
  if (engine_ == nullptr)
    return refuse(errc::out_of_host_memory, "no host memory is left for the manager");
  is_set_up_.store(true, std::memory_order_release);
  return {};
}

template <backend B>
result<engine_options> manager<B>::plan_engine() {
  if (status valid = options_.validate(); !valid) return valid.error();
  physical_request like;
  like.where = options_.use_location ? options_.where : driver_.home();
  like.shareable = options_.shareable;
  like.compressible = options_.compressible;
  like.rdma_capable = options_.rdma_capable;
  if (driver_.feature_set().contents_stay) {
    return refuse(
        errc::not_supported,
        "the backend keeps contents at their addresses (VMM_CUDA_MEMORY=plain): blocks of "
        "a manager could not move; only a stream_pool works there");
  }
  const result<std::uint64_t> queried = query_unit(like);
  if (!queried) return queried.error();
  const std::uint64_t unit_bytes = *queried;
  const policy& rules = options_.rules;
  if (rules.chunk_bytes % unit_bytes != 0) {
    return refuse(errc::bad_option,
                  "policy::chunk_bytes (VMM_CHUNK_SIZE) is a multiple of the device's granularity, "
                  "or 0 for no chunks");
  }
  engine_options plan;
  plan.physical.like = like;
  plan.physical.granularity_bytes = unit_bytes;
  plan.physical.fragment_ratio = rules.fragment_ratio;
  plan.physical.chunk_bytes = rules.chunk_bytes;
  plan.physical.budget_bytes = options_.budget_bytes;
  plan.physical.reuse_while_mapped = driver_.feature_set().alias != alias_level::none;
  plan.reservation.reservation_bytes = options_.reservation_bytes;
  plan.reservation.granularity_bytes = unit_bytes;
  plan.grants = grants_for(driver_.home(), like.where);
  // Every range is a multiple of the chunk, so that any cached chunk serves any request.
  unit_bytes_ = std::max(unit_bytes, rules.chunk_bytes);
  place_bytes_ = unit_bytes;
  return plan;
}

// The coarsest granularity of any size, so that every piece may stand at any place. Some devices
// have a finer one for small sizes.
template <backend B>
result<std::uint64_t> manager<B>::query_unit(physical_request like) {
  std::uint64_t unit_bytes = 0;
  for (const std::uint64_t size_bytes : {std::uint64_t{1}, std::uint64_t{1} << 30}) {
    like.size_bytes = size_bytes;
    const result<granularity> unit = driver_.query_granularity(like);
    if (!unit) return unit.error();
    unit_bytes = std::max(unit_bytes, unit->recommended_bytes);
  }
  if (!std::has_single_bit(unit_bytes)) {
    return refuse(errc::not_supported, "the device's granularity is not a power of two");
  }
  return unit_bytes;
}

template <backend B>
manager<B>::~manager() {
  users_.check_destroyed();
  if (engine_ == nullptr) return;
  if (made_in_.is_here()) report_live();
  for (int left = close_attempts; left > 0 && made_in_.is_here(); --left) {
    if (close()) return;
  }
  if (!made_in_.is_here()) {  // or forked while it closed
    leave_behind(engine_.release());
    return;
  }
  std::fputs("vmm: the driver did not take all memory back; the rest stays with the process\n",
             stderr);
  (void)engine_.release();
}

template <backend B>
void manager<B>::report_live() noexcept {
  if (options_.at_end.hook == nullptr) return;
  const std::uint64_t count = engine_->records().size();
  if (count == 0) return;
  const std::uint64_t size_bytes = engine_->records().totals().user_bytes;
  options_.at_end.hook(options_.at_end.context, {"manager", count, size_bytes});
}

template <backend B>
status manager<B>::close() {
  for (address first = engine_->records().lowest(); first; first = engine_->records().lowest()) {
    const result<block*> claimed = claim(first);
    if (!claimed) return claimed.error();
    const result<ticket_ref> last_use = engine_->time().mark((*claimed)->stream);
    const status gone = last_use ? engine_->dissolve(**claimed, *last_use) : last_use.error();
    if (!gone) {
      engine_->records().unclaim(**claimed);
      return gone;
    }
  }
  for (block* cached = cache_.take_largest(); cached != nullptr; cached = cache_.take_largest()) {
    if (status gone = unbind(*cached); !gone) return gone;
  }
  return engine_->close();
}

// ---- allocate ------------------------------------------------------------------------

template <backend B>
result<range_sizes> manager<B>::sizes_for(std::uint64_t size_bytes,
                                          std::uint64_t growth_bytes) const {
  if (size_bytes == 0) return refuse(errc::invalid_argument, "a size of 0 bytes is not allocated");
  if (size_bytes > size_bytes_max || growth_bytes > size_bytes_max) {
    return refuse(errc::invalid_argument, "the size is larger than any address space");
  }
  const std::uint64_t mapped_bytes = round_up(size_bytes, unit_bytes_);
  return range_sizes{size_bytes, mapped_bytes, mapped_bytes + round_up(growth_bytes, unit_bytes_)};
}

template <backend B>
result<address> manager<B>::allocate(const allocate_request& request) {
  if (status ready = set_up(); !ready) return ready.error();
  const result<range_sizes> sizes = sizes_for(request.size_bytes, request.growth_bytes);
  if (!sizes) return sizes.error();
  const std::uint64_t alignment_bytes = request.alignment_bytes;
  if (alignment_bytes != 0 &&
      (!std::has_single_bit(alignment_bytes) || alignment_bytes > size_bytes_max)) {
    return refuse(errc::invalid_argument, "an alignment is a power of two");
  }
  engine_->reap(reap_count);
  const block_request wanted{*sizes, alignment_bytes, request.stream};
  const result<block*> made = with_recovery([&] { return obtain(wanted); });
  if (!made) return made.error();
  const address at = (*made)->base;
  engine_->records().unclaim(**made);
  return at;
}

// A tracked and claimed block: a cached range where the policy allows it, else a new one.
template <backend B>
result<block*> manager<B>::obtain(const block_request& request) {
  const policy& rules = options_.rules;
  const bool plain = request.alignment_bytes <= place_bytes_ &&
                     request.sizes.reserved_bytes == request.sizes.mapped_bytes;
  if (rules.on_free == free_rule::unmap || !plain) return engine_->build(request);
  if (block* exact = cache_.take_exact(request.sizes.mapped_bytes))
    return reuse_exact(*exact, request);
  if (rules.grow_cached) {
    if (block* smaller = cache_.take_smaller(request.sizes.mapped_bytes))
      return grow_cached(*smaller, request);
  }
  if (rules.unbind_cached) {
    if (block* larger = cache_.take_larger(request.sizes.mapped_bytes)) {
      if (status unbound = unbind(*larger); !unbound) return unbound.error();
      counts_.unbound_range_count.fetch_add(1, std::memory_order_relaxed);
    }
  }
  return engine_->build(request);
}

template <backend B>
result<block*> manager<B>::reuse_exact(block& cached, const block_request& request) {
  if (status ordered = engine_->order(request.stream, cached); !ordered) {
    cache_.put(cached);
    return ordered.error();
  }
  cached.sizes.user_bytes = request.sizes.user_bytes;
  cached.alignment_bytes = request.alignment_bytes;
  cached.stream = request.stream;
  const status tracked = engine_->records().insert_claimed(cached);
  check(tracked.has_value(), "a cached range overlaps an allocation");
  counts_.reused_range_count.fetch_add(1, std::memory_order_relaxed);
  return &cached;
}

template <backend B>
result<block*> manager<B>::grow_cached(block& cached, const block_request& request) {
  if (status ordered = engine_->order(request.stream, cached); !ordered) {
    cache_.put(cached);
    return ordered.error();
  }
  const stream_handle old_stream = std::exchange(cached.stream, request.stream);
  const status tracked = engine_->records().insert_claimed(cached);
  check(tracked.has_value(), "a cached range overlaps an allocation");
  const resize_plan plan{request.sizes, request.stream, cached.last_use};
  status grown = engine_->grow_in_place(cached, plan);
  if (!grown && grown.error().code == errc::out_of_addresses) grown = engine_->move(cached, plan);
  if (!grown && (cached.sizes.user_bytes == 0 || cached.locked_count > 0)) {
    engine_->discard(cached, plan.last_use);  // of no use any more, and it mattered to nobody
    return engine_->build(request);
  }
  if (!grown) {
    engine_->records().erase(cached);
    cached.stream = old_stream;
    cache_.put(cached);
    return grown.error();
  }
  cached.alignment_bytes = request.alignment_bytes;
  counts_.grown_range_count.fetch_add(1, std::memory_order_relaxed);
  return &cached;
}

// Back into the cache, as it was.
template <backend B>
void manager<B>::uncache_failed(block& cached) noexcept {
  engine_->records().erase(cached);
  cache_.put(cached);
}

// Takes a cached range apart: its pieces move on, its addresses wait for its last use.
template <backend B>
status manager<B>::unbind(block& cached) {
  const status tracked = engine_->records().insert_claimed(cached);
  check(tracked.has_value(), "a cached range overlaps an allocation");
  const ticket_ref last_use = cached.last_use;
  status gone = engine_->dissolve(cached, last_use);
  if (!gone) uncache_failed(cached);
  return gone;
}

// ---- free ----------------------------------------------------------------------------

template <backend B>
result<block*> manager<B>::claim(address at) {
  if (!made_in_.is_here()) return refuse_forked();
  if (!is_set_up_.load(std::memory_order_acquire)) {
    return refuse(errc::unknown_address,
                  "the address is not of this manager, which has not allocated anything");
  }
  const result<tracked_range*> claimed = engine_->records().claim(at);
  if (claimed) return &block_of(**claimed);
  if (claimed.error().code == errc::not_allocated && !engine_->space().contains(at)) {
    return refuse(errc::unknown_address,
                  "the address is not of this manager: free it where it was allocated");
  }
  return claimed.error();
}

template <backend B>
status manager<B>::free(address at) {
  const result<block*> claimed = claim(at);
  if (!claimed) return claimed.error();
  const result<ticket_ref> last_use = engine_->time().mark((*claimed)->stream);
  if (last_use) return free_after(**claimed, *last_use);
  engine_->records().unclaim(**claimed);
  return last_use.error();
}

template <backend B>
status manager<B>::free(address at, stream_handle last_use) {
  const result<block*> claimed = claim(at);
  if (!claimed) return claimed.error();
  // The block's own stream has been ordered behind the earlier users of its pieces; this one not.
  status ordered = engine_->order(last_use, **claimed);
  if (ordered) {
    const result<ticket_ref> marked = engine_->time().mark(last_use);
    if (marked) return free_after(**claimed, *marked);
    ordered = marked.error();
  }
  engine_->records().unclaim(**claimed);
  return ordered;
}

template <backend B>
status manager<B>::free_idle(address at) {
  const result<block*> claimed = claim(at);
  if (!claimed) return claimed.error();
  return free_after(**claimed, ticket_ref{});
}

template <backend B>
status manager<B>::free_after(block& gone, const ticket_ref& last_use) {
  // A reused range that its stream never touched may be freed before the work of its previous user
  // has finished.
  const bool is_older = last_use.known_passed() && !gone.last_use.known_passed();
  const ticket_ref until = is_older ? gone.last_use : last_use;
  const bool whole = gone.holds_pieces && gone.sizes.user_bytes > 0 && gone.locked_count == 0;
  const bool plain = gone.sizes.reserved_bytes == gone.sizes.mapped_bytes;
  // A range is reused behind one ticket. Memory that was shared may still be in use by the block it
  // was shared with, which has a ticket of its own: only unmapping everywhere waits for both.
  if (options_.rules.on_free == free_rule::keep_mapped && whole && plain &&
      !engine_->was_shared(gone)) {
    gone.last_use = until;
    engine_->records().erase(gone);
    cache_.put(gone);
    return {};
  }
  status dissolved = engine_->dissolve(gone, until);
  if (!dissolved) engine_->records().unclaim(gone);
  return dissolved;
}

// ---- resize --------------------------------------------------------------------------

template <backend B>
result<address> manager<B>::resize(const resize_request& request) {
  const result<block*> claimed = claim(request.at);
  if (!claimed) return claimed.error();
  engine_->reap(reap_count);
  const result<address> at = resize_claimed(**claimed, request);
  engine_->records().unclaim(**claimed);
  return at;
}

template <backend B>
result<address> manager<B>::resize_claimed(block& resized, const resize_request& request) {
  const result<range_sizes> sizes = sizes_for(request.size_bytes, request.growth_bytes);
  if (!sizes) return sizes.error();
  if (resized.sizes.user_bytes == 0) {
    return refuse(errc::invalid_argument,
                  "the block's memory has moved to another: it can only be freed");
  }
  if (status unlocked = engine_->unlock(resized); !unlocked) return unlocked.error();
  resize_plan plan{*sizes, resized.stream, ticket_ref{}};
  status done;
  if (sizes->mapped_bytes > resized.sizes.mapped_bytes) {
    done = grow(resized, request, plan);
  } else {
    const result<ticket_ref> last_use = engine_->time().mark(resized.stream);
    if (!last_use) return last_use.error();
    plan.last_use = *last_use;
    done = engine_->shrink(resized, plan);
  }
  if (!done) return done.error();
  return resized.base;
}

template <backend B>
status manager<B>::grow(block& grown, const resize_request& request, resize_plan plan) {
  resize_plan in_place = plan;
  in_place.sizes.reserved_bytes = std::max(plan.sizes.mapped_bytes, grown.sizes.reserved_bytes);
  const status done = with_recovery([&] { return engine_->grow_in_place(grown, in_place); });
  if (done || done.error().code != errc::out_of_addresses || !request.may_move) return done;
  const result<ticket_ref> last_use = engine_->time().mark(grown.stream);
  if (!last_use) return last_use.error();
  plan.last_use = *last_use;
  return with_recovery([&] { return engine_->move(grown, plan); });
}

// ---- what the host must be behind ----------------------------------------------------

// Nothing is known of a stream but its number, in tickets that other threads look at: all that were
// made so far are taken for another stream's.
template <backend B>
void manager<B>::forget(stream_handle) noexcept {
  if (is_set_up_.load(std::memory_order_acquire)) engine_->time().begin_era();
}

template <backend B>
status manager<B>::settle(address at) {
  const result<block*> claimed = claim(at);
  if (!claimed) return claimed.error();
  const status settled =
      (*claimed)->sizes.user_bytes == 0
          ? refuse(errc::invalid_argument, "the block's memory is gone: it can only be freed")
          : engine_->settle(**claimed);
  engine_->records().unclaim(**claimed);
  return settled;
}

template <backend B>
result<ticket_ref> manager<B>::mark(stream_handle stream) {
  if (status ready = set_up(); !ready) return ready.error();
  return engine_->time().mark(stream);
}

template <backend B>
status manager<B>::wait(const ticket_ref& point) {
  if (!made_in_.is_here()) return refuse_forked();
  return point.known_passed() ? status{} : engine_->time().wait(point);
}

// ---- copy ----------------------------------------------------------------------------

template <backend B>
status manager<B>::copy(const copy_request& request, copy_mode mode) {
  if (status ready = set_up(); !ready) return ready;
  if (request.size_bytes == 0) return {};
  if (mode == copy_mode::copy || request.target == request.source) return real_copy(request);
  const status remapped = remap_copy(request, mode);
  if (remapped || remapped.error().code == errc::device_lost) return remapped;
  const status copied = real_copy(request);
  const bool cannot = !copied && copied.error().code == errc::not_supported;
  return cannot ? remapped : copied;
}

// Does the copy by remapping. An error but device_lost means that nothing has changed.
template <backend B>
status manager<B>::remap_copy(const copy_request& request, copy_mode mode) {
  const result<tracked_range*> target = engine_->records().claim(request.target);
  if (!target) return target.error();
  const result<tracked_range*> source = engine_->records().claim(request.source);
  status shown = source ? remap_claimed(block_of(**target), block_of(**source), request, mode)
                        : status{source.error()};
  if (source) engine_->records().unclaim(**source);
  engine_->records().unclaim(**target);
  if (shown) counts_.remapped_copy_count.fetch_add(1, std::memory_order_relaxed);
  return shown;
}

template <backend B>
status manager<B>::remap_claimed(block& target, block& source, const copy_request& request,
                                 copy_mode mode) {
  constexpr const char* why = "the copy is not one of whole, idle blocks";
  if (!remap_fits(target, source, request)) return refuse(errc::not_supported, why);
  if (engine_->is_shared(source)) return refuse(errc::not_supported, why);
  // Everything that the streams concerned were given must have finished: the target's addresses
  // change hands now.
  for (const stream_handle stream : {request.stream, target.stream, source.stream}) {
    const result<ticket_ref> last_use = engine_->time().mark(stream);
    if (!last_use) return last_use.error();
    const result<bool> idle = engine_->time().passed(*last_use);
    if (!idle) return idle.error();
    if (!*idle) return refuse(errc::not_supported, why);
  }
  return mode == copy_mode::move ? engine_->take_over(target, source, request.stream)
                                 : engine_->alias(target, source, request.stream);
}

// The conditions of E3 that need no driver call.
template <backend B>
bool manager<B>::remap_fits(const block& target, const block& source,
                            const copy_request& request) const {
  return request.size_bytes == source.sizes.user_bytes &&
         target.sizes.user_bytes >= source.sizes.user_bytes &&
         target.sizes.mapped_bytes >= source.sizes.mapped_bytes && target.holds_pieces &&
         source.holds_pieces && target.locked_count == 0 && source.locked_count == 0;
}

template <backend B>
status manager<B>::real_copy(const copy_request& request) {
  for (const address at : {request.target, request.source}) {
    if (engine_->space().contains(at) && !engine_->records().covers({at, request.size_bytes})) {
      return refuse(errc::not_allocated,
                    "the copy reaches outside the allocation that its address lies in");
    }
  }
  if constexpr (copy_backend<B>) {
    status copied = driver_.copy(request);
    if (copied) counts_.real_copy_count.fetch_add(1, std::memory_order_relaxed);
    return copied;
  } else {
    return refuse(errc::not_supported, "this backend cannot copy bytes");
  }
}

// ---- looking -------------------------------------------------------------------------

template <backend B>
result<range_info> manager<B>::find(address at) {
  if (!made_in_.is_here()) return refuse_forked();
  if (!is_set_up_.load(std::memory_order_acquire)) {
    return refuse(errc::unknown_address,
                  "the address is not of this manager, which has not allocated anything");
  }
  result<range_info> found = engine_->records().find(at);
  if (found || found.error().code != errc::not_allocated || engine_->space().contains(at))
    return found;
  return refuse(errc::unknown_address, "the address is not of this manager");
}

template <backend B>
status manager<B>::drain_ranges(std::uint64_t limit_bytes) {
  for (std::size_t left = cache_.size(); left > 0 && cache_.size_bytes() > limit_bytes; --left) {
    block* const largest = cache_.take_largest();
    if (largest == nullptr) return {};
    if (status unbound = unbind(*largest); !unbound) return unbound;
  }
  return {};
}

template <backend B>
trim_report manager<B>::trim(std::uint64_t limit_bytes) {
  if (!made_in_.is_here()) return {.failure = refuse_forked()};
  if (!is_set_up_.load(std::memory_order_acquire)) return {};
  return give_back(limit_bytes);
}

// What another thread is just giving back has gone when this returns: nobody who is short of memory
// misses it.
template <backend B>
trim_report manager<B>::give_back(std::uint64_t limit_bytes) {
  const sync::lock_guard<sync::mutex> releasing(release_mutex_);
  engine_->reap(engine_->retired().size());
  const status drained = drain_ranges(limit_bytes);
  const std::uint64_t kept_bytes = cache_.size_bytes();
  engine_->reap(engine_->retired().size());
  trim_report report =
      engine_->memory().trim(limit_bytes > kept_bytes ? limit_bytes - kept_bytes : 0);
  if (!drained && report.failure.code == errc::none) report.failure = drained.error();
  return report;
}

template <backend B>
manager_statistics manager<B>::statistics() {
  manager_statistics numbers;
  if (!is_set_up_.load(std::memory_order_acquire) || !made_in_.is_here()) return numbers;
  numbers.live_count = engine_->records().size();
  const range_sizes live = engine_->records().totals();
  numbers.user_bytes = live.user_bytes;
  numbers.mapped_bytes = live.mapped_bytes;
  const physical_statistics physical = engine_->memory().statistics();
  numbers.held_bytes = physical.held_bytes;
  numbers.peak_held_bytes = physical.peak_held_bytes;
  numbers.cached_piece_bytes = physical.cached_bytes;
  numbers.created_count = physical.created_count;
  numbers.reused_piece_count = physical.reused_count;
  numbers.cached_range_bytes = cache_.size_bytes();
  numbers.retired_bytes = engine_->retired().size_bytes();
  const address_space_statistics space = engine_->space().statistics();
  numbers.reserved_bytes = space.reserved_bytes;
  numbers.space_live_bytes = space.live_bytes;
  numbers.space_high_water_bytes = space.high_water_bytes;
  numbers.reused_range_count = counts_.reused_range_count.load(std::memory_order_relaxed);
  numbers.grown_range_count = counts_.grown_range_count.load(std::memory_order_relaxed);
  numbers.unbound_range_count = counts_.unbound_range_count.load(std::memory_order_relaxed);
  numbers.remapped_copy_count = counts_.remapped_copy_count.load(std::memory_order_relaxed);
  numbers.real_copy_count = counts_.real_copy_count.load(std::memory_order_relaxed);
  numbers.recovery_count = counts_.recovery_count.load(std::memory_order_relaxed);
  return numbers;
}

template <backend B>
result<std::vector<extent_view>> manager<B>::extents() {
  if (!made_in_.is_here()) return refuse_forked();
  std::vector<extent_view> views;
  if (!is_set_up_.load(std::memory_order_acquire)) return views;
  try {
    // Handed out but neither live nor cached: retired.
    engine_->space().visit([&views](address_range where, bool is_live) {
      views.push_back({where, 0, is_live ? extent_kind::retired : extent_kind::hole});
    });
    const auto by_base = [](const extent_view& a, const extent_view& b) {
      return a.where.base < b.where.base;
    };
    std::sort(views.begin(), views.end(), by_base);
    const auto mark = [&](const tracked_range& range, extent_kind kind) {
      const extent_view wanted{{range.base, 0}, 0, kind};
      const auto found = std::lower_bound(views.begin(), views.end(), wanted, by_base);
      if (found == views.end() || found->where.base != range.base) return;
      found->kind = kind;
      found->mapped_bytes = range.sizes.mapped_bytes;
    };
    engine_->records().visit(
        [&mark](const tracked_range& range) { mark(range, extent_kind::live); });
    cache_.visit([&mark](const block& cached) { mark(cached, extent_kind::cached); });
    while (!views.empty() && views.back().kind == extent_kind::hole) views.pop_back();
  } catch (const std::bad_alloc&) {
    return refuse(errc::out_of_host_memory, "no host memory is left for the list of extents");
  }
  return views;
}

template <backend B>
bool manager<B>::validate() {
  if (!made_in_.is_here()) return true;
  return !is_set_up_.load(std::memory_order_acquire) || (engine_->validate() && cache_.validate());
}

}  // namespace vmm

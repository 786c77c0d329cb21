// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream - a stream-ordered pool: memory freed on a stream serves that stream again at once.
// [G1-G9, H2]
//
// A request takes what is free for its stream; else what other streams have finished with; else the
// pool grows, moving free memory to where it is wanted before it creates more. Nothing waits on the
// host but synchronize(), the destructor and the last step before out of memory.
//
// I1  Memory that another stream freed is handed out only when the work before that free has
//     finished, or behind a wait for it on the device. The same holds for memory that moves.
// I2  Nothing is unmapped that unfinished work may use.
// I3  A failed call leaves every block and all free memory as they were; what it created is kept as
//     cached memory and serves the next call. Where a handle can be mapped only once, free memory
//     that was idle may have gone back to the driver when memory was short.
// I4  Physical memory held never exceeds the budget.
// I5  In a forked child every call is refused with not_permitted (or answers nothing, where there
//     is no error to answer), takes no lock, and destroying the child's copy changes nothing.
//
// At most max_streams streams at a time: forget() those that are gone.
//
// Thread safety: all of it. Requests that need no driver share one short lock; growing has a lock
// of its own, and no driver call is made under the short one (vmm.stream:guarded has the order).
// Cost: allocate and free on one stream make no event and no driver call, but for asking whether
// the stream is being captured where the options want that and the stream can be; their bookkeeping
// is O(1) but for a search of fixed depth. Growth costs driver calls by handles moved and created.
module;
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "../sync/thread_annotations.h"

export module vmm.stream;

export import :book;
export import :notices;
export import :options;
export import vmm.backend;
export import vmm.physical;
import :gate;
import :guarded;
import :progress;
import :slabs;
import :start_table;
import vmm.optimizer;
import vmm.reservation;
import vmm.sync;
import vmm.timeline;
import vmm.va;

namespace vmm {

export class stream_pool {
 public:
  /// Streams that a pool serves at a time: those that allocated or freed, or freed what is held for
  /// them, and were not forgotten. A call on one more answers in_use. Forgotten streams with
  /// unfinished work and streams of captured graphs that live have at least 92 records besides;
  /// where those are used up a call on a new stream answers in_use, too.
  static constexpr std::uint32_t max_streams = stream_progress::max_streams;

  /// `driver` outlives the pool, and so do the streams that the pool was given and that were not
  /// forgotten. Makes no driver call.
  explicit stream_pool(driver_ref driver, const pool_options& options = {}) noexcept
      : driver_(driver),
        driver_use_(driver.use()),
        watches_capture_(driver->feature_set().capture &&
                         options.capture != capture_rule::unchecked),
        asked_from_(watches_capture_ ? driver->feature_set().capturable_from : never_asked),
        watches_(watches_capture_ || options.watcher != nullptr),
        options_(options) {}
  stream_pool(const stream_pool&) = delete;
  stream_pool& operator=(const stream_pool&) = delete;
  /// No stream that the pool knows is being captured, and no captured graph that uses its memory is
  /// launched again.
  /// Waits for the work of every stream that the pool knows and gives everything back. What the
  /// driver will not take back stays with the process, and a line on stderr says so. Blocks that
  /// are live are told to options().at_end before.
  ~stream_pool();

  /// Reads the granularity, checks the options and maps the pages asked for; the first allocation
  /// does it where nobody has. Errors: bad_option, out_of_host_memory, driver errors; a later call
  /// tries again.
  [[nodiscard]] status set_up();

  /// Memory for work that `stream` will be given. 512-byte blocks; contents are not specified. [G1]
  /// Errors: invalid_argument (no bytes), in_use (max_streams others are in use), out_of_memory,
  /// over_budget (both after everything was tried: see last_shortage), out_of_addresses,
  /// out_of_host_memory, driver errors.
  [[nodiscard]] inline result<address> allocate(std::uint64_t size_bytes, stream_handle stream);

  /// Gives a block back after all work that `stream` has been given so far. Work on other streams
  /// that uses it must be ordered before that, and so must, used or not, what the stream that it
  /// was allocated on had been given then: the block may have come to it behind that work. No
  /// driver call but the question of `capture`. [G1]
  /// Errors: unknown_address, not_allocated (freed before), invalid_argument (inside a block),
  /// in_use (max_streams others are in use), out_of_host_memory (a new stream's records); the block
  /// is as before.
  [[nodiscard]] inline status free(address at, stream_handle stream);

  /// Keeps the block that begins at `at` where it is until unpin() was called as often: its address
  /// and the memory behind it stay joined. A live block never moves, pinned or not; what a pin adds
  /// is that free() does not end that. The address may be freed as usual, and the block is then
  /// given back when the last pin goes. So whoever reaches the memory beside the streams (a network
  /// card, another process, a captured graph) pins it for as long. O(1), no driver call.
  /// Errors: unknown_address, not_allocated (freed, also while pinned), invalid_argument (inside a
  /// block), out_of_host_memory.
  [[nodiscard]] status pin(address at);
  /// Ends one pin. When it was the last of a block that has been freed, the block is free from then
  /// on, after all work that the freeing stream has been given so far; work that no stream orders
  /// must have finished. Errors: unknown_address, not_allocated, invalid_argument (not pinned, or
  /// inside a block).
  [[nodiscard]] status unpin(address at);

  /// Calls `callback` with `context` before the memory behind an address changes, from the next
  /// change on; see remap_callback for what it may do. Costs nothing while nobody subscribes.
  /// Errors: invalid_argument (no callback), out_of_host_memory.
  [[nodiscard]] result<remap_subscription> subscribe(remap_callback callback, void* context) {
    if (const status idle = nothing_to_do(); !idle) return idle.error();
    return board_.add(callback, context);
  }
  /// After it has returned the callback is not running and is not called again. Waits for one that
  /// runs. Errors: invalid_argument (not a live subscription).
  [[nodiscard]] status unsubscribe(remap_subscription subscription) {
    if (const status idle = nothing_to_do(); !idle) return idle;
    return board_.remove(subscription);
  }
  /// The number of the latest change that has been announced. It grows before the change: two equal
  /// answers, the first after a change's effect was seen, say that none began in between.
  [[nodiscard]] std::uint64_t remap_epoch() const noexcept {
    return remap_epoch_.load(std::memory_order_acquire);
  }

  /// To be called before a stream is destroyed, when nobody allocates or frees on it any more: the
  /// driver may give its number to a new stream, which is then a new one here too. What is free for
  /// the stream becomes everyone's when the work it has been given so far has finished; nothing
  /// waits for that. Blocks allocated on it stay live, to be freed on any stream that is ordered
  /// behind it. A stream that the pool does not know is no error. One event where
  /// anything was freed on it.
  /// Errors: in_use (it is being captured, or freed on), out_of_host_memory, driver errors; the
  /// stream is as before.
  [[nodiscard]] status forget(stream_handle stream);

  /// The number of the capture that the stream is in, to release it by: ask before it is ended.
  /// Errors: invalid_argument (the stream is not being captured), not_supported, driver errors.
  [[nodiscard]] result<std::uint64_t> capture_number(stream_handle stream);
  /// Ends what a captured graph keeps, when the graph is destroyed: all that was freed in its
  /// capture, or of its memory since, becomes free for `stream`, after the work that it has been
  /// given so far; what is live then is freed as any block. The graph's last launch is ordered
  /// before that. Not while the capture is under way. A number that the pool does not know is no
  /// error.
  /// Errors: in_use (it is under way on this stream), out_of_host_memory, driver errors.
  [[nodiscard]] status release_capture(std::uint64_t number, stream_handle stream);

  /// Blocks until all work before the frees so far has finished. Errors: driver errors.
  [[nodiscard]] status synchronize();

  /// Gives whole free handles back, largest first, until at most `limit_bytes` of free memory are
  /// kept. Never waits for work: what unfinished work may use is kept. Made for a thread of its
  /// own: others allocate and grow meanwhile, waiting for one step (256 MiB) at most.
  [[nodiscard]] trim_report trim(std::uint64_t limit_bytes);

  /// O(streams).
  [[nodiscard]] pool_statistics statistics();
  /// All regions in address order. O(regions). Errors: out_of_host_memory. [G8]
  [[nodiscard]] result<std::vector<pool_region>> regions();
  [[nodiscard]] shortage_report last_shortage();
  [[nodiscard]] const pool_options& options() const noexcept { return options_; }
  /// Checks every invariant of every part. O(everything).
  [[nodiscard]] status validate();

 private:
  struct parts {
    parts(driver_ref driver, const physical_options& memory_options,
          const reservation_options& space_options, const grant_list& grants)
        : time(driver),
          memory(driver, memory_options),
          space(driver, space_options),
          remaps(driver, time, memory, grants) {}
    timeline time;
    physical_pool memory;
    reservation_space space;
    remapper remaps;
  };

  // For its life the calling thread's driver calls do not disturb captures that are under way.
  class undisturbed {
   public:
    undisturbed(driver_interface& driver, bool watches) : driver_(driver), watches_(watches) {
      if (watches_) before_ = driver_.exchange_capture_mode(capture_mode::relaxed);
    }
    ~undisturbed() {
      if (watches_) (void)driver_.exchange_capture_mode(before_);
    }
    undisturbed(const undisturbed&) = delete;
    undisturbed& operator=(const undisturbed&) = delete;

   private:
    driver_interface& driver_;
    bool watches_;
    capture_mode before_ = capture_mode::any_thread;
  };

  // Where there is a watcher, one thread at a time. A thread that has it may take it again.
  class watched_turn {
   public:
    explicit watched_turn(stream_pool& pool) VMM_NOT_ANALYSED
        : lock_(pool.options_.watcher == nullptr ? nullptr : &pool.watcher_lock_) {
      if (lock_ != nullptr) [[unlikely]]
        lock_->lock();
    }
    ~watched_turn() VMM_NOT_ANALYSED {
      if (lock_ != nullptr) [[unlikely]]
        lock_->unlock();
    }
    watched_turn(const watched_turn&) = delete;
    watched_turn& operator=(const watched_turn&) = delete;

   private:
    watcher_lock* lock_;
  };

  // The way into all that may call the driver for memory, or a remap callback, but for the
  // destructor, which is alone. It takes, in this order, the only one in which they are taken: the
  // watcher's lock, that of growth, and the capture mode. The watcher's comes first since a watched
  // allocation holds it when it turns out to have to grow; and since a remap callback, which runs
  // under the lock of growth, may free and so take the watcher's, which its thread has then.
  // A remap callback itself must not come here: that ends the process.
  class growth_turn {
   public:
    explicit growth_turn(stream_pool& pool)
        : watched_(not_in_callback(pool)),
          growing_(pool.growth_lock_),
          capture_(*pool.driver_, pool.watches_capture_) {}
    growth_turn(const growth_turn&) = delete;
    growth_turn& operator=(const growth_turn&) = delete;

   private:
    [[nodiscard]] static stream_pool& not_in_callback(stream_pool& pool) {
      pool.board_.check_not_telling();
      return pool;
    }

    watched_turn watched_;
    sync::lock_guard<growth_lock> growing_;
    undisturbed capture_;
  };

  // Tells the watcher, if there is one. What it tells a tool may be for the current device only.
  template <class Words>
  void tell(Words&& words) {
    if (options_.watcher == nullptr) [[likely]]
      return;
    const watcher_turn turn(board_);
    const bool is_current = driver_->push_context();
    words(*options_.watcher);
    if (is_current) driver_->pop_context();
  }

  // Whether a call on this stream takes more than the book: a watcher, or the driver's word that
  // the stream is not being captured.
  [[nodiscard]] inline bool watches(stream_handle stream) const noexcept {
    return watches_ && (options_.watcher != nullptr || asks_about(stream));
  }
  [[nodiscard]] inline bool asks_about(stream_handle stream) const noexcept {
    return static_cast<std::uint64_t>(stream) >= asked_from_;
  }

  static constexpr error nothing_allocated =
      refuse(errc::unknown_address, "this pool has not allocated anything");
  [[nodiscard]] error why_not_ready() const noexcept {
    return gate_.is_here() ? nothing_allocated : refuse_forked();
  }
  // Of calls that have nothing to do before the first allocation.
  [[nodiscard]] status nothing_to_do() const noexcept {
    return gate_.is_here() ? status{} : status{refuse_forked()};
  }
  static constexpr error stream_captured =
      refuse(errc::not_permitted,
             "a stream whose memory is to be waited for is being captured into a graph");
  [[nodiscard]] static bool is_capture_refusal(const error& failure) noexcept {
    return failure.code == errc::not_permitted && failure.where == call::none;
  }
  static constexpr std::uint64_t never_asked = ~std::uint64_t{0};
  static constexpr std::size_t reap_count = 8;
  static constexpr std::size_t reap_count_max = 64;  // by one growth that is not short of memory
  static constexpr std::uint64_t trim_step_bytes = std::uint64_t{256} << 20;
  static constexpr int close_attempts = 3;  // a fault that strikes once leaves no trace
  static constexpr std::size_t foreign_count_max = 64;
  static constexpr std::uint64_t page_bytes_min = std::uint64_t{2} << 20;
  static constexpr std::uint64_t segment_bytes_max =
      std::uint64_t{max_range_granules} * granule_bytes;

  // The slow entries, where the gate is closed: each finds out why, and whether that is a reason
  // for this call. What the gate learns to be closed by is asked about here.
  [[nodiscard]] status enter_closed_to_allocate();
  [[nodiscard]] status enter_closed_to_free();
  // Whether there is anything to look at or to give back, in this process.
  [[nodiscard]] inline bool is_ready() const noexcept {
    return !gate_.is_closed_by(gate_reason::not_set_up) && gate_.is_here();
  }
  [[nodiscard]] status make_parts();
  [[nodiscard]] status map_first_pages();
  [[nodiscard]] result<address> allocate_watched(std::uint64_t size_bytes, stream_handle stream);
  [[nodiscard]] result<address> allocate_asking(std::uint64_t size_bytes, stream_handle stream);
  [[nodiscard]] status free_watched(address at, stream_handle stream);
  [[nodiscard]] result<address> allocate_known(std::uint64_t size_bytes, stream_handle stream);
  [[nodiscard]] inline status free_known(address at, stream_handle stream);
  [[nodiscard]] result<capture_info> capture_of(stream_handle stream);
  [[nodiscard]] result<bool> is_captured(stream_handle stream);
  [[nodiscard]] status refuse_capture(const capture_info& seen) const;
  [[nodiscard]] result<address> allocate_captured(std::uint64_t size_bytes, stream_handle stream,
                                                  const capture_info& seen);
  [[nodiscard]] result<address> take_for_capture(const book_request& request);
  [[nodiscard]] status free_captured(address at, stream_handle stream, const capture_info& seen);
  [[nodiscard]] bool may_mark_all();
  [[nodiscard]] result<address> allocate_slowly(std::uint64_t size_bytes, stream_handle stream);
  [[nodiscard]] result<std::uint32_t> enter_stream(stream_handle stream);
  [[nodiscard]] result<std::uint32_t> count_granules(std::uint64_t size_bytes);
  [[nodiscard]] result<address> reuse(const book_request& request);
  [[nodiscard]] result<address> reuse_passed(const book_request& request,
                                             std::span<const stream_point> others);
  [[nodiscard]] result<address> reuse_behind_wait(const book_request& request,
                                                  const foreign_search& how);
  [[nodiscard]] result<address> grow(const book_request& request);
  [[nodiscard]] result<address> grow_by_steps(const book_request& request, bool room);
  [[nodiscard]] result<address> grow_short(const book_request& request, error cause);
  [[nodiscard]] result<address> grow_from_all(const book_request& request, shortage_report& tried);
  trim_report release_cached();
  [[nodiscard]] result<address> grow_blocking(const book_request& request, error cause,
                                              shortage_report& tried);
  [[nodiscard]] status plan_growth(const book_request& request, growth_effort effort);
  [[nodiscard]] result<address> try_growth(const book_request& request,
                                           const growth_effort& effort);
  [[nodiscard]] status carry_out(growth_plan& plan, piece_list& fresh, std::size_t& standing_count);
  [[nodiscard]] status add_segment(std::uint64_t needed_bytes);
  [[nodiscard]] status learn(const stream_point& point);
  [[nodiscard]] result<ticket_ref> mark_for(point_answer&& answer);
  [[nodiscard]] status order_behind(const stream_point& point, std::uint32_t stream);
  [[nodiscard]] result<ticket_ref> record(mark_order&& order);
  [[nodiscard]] result<bool> wait_for(const stream_point& point);
  [[nodiscard]] status mark_all(std::vector<known_mark>& out);
  void tend_retired();
  void announce_moves(const growth_plan& plan);
  void announce_unmap(view& gone, remap_kind kind);
  void call_back(const remap_notice& notice);
  [[nodiscard]] address address_of(const view& v) noexcept;
  [[nodiscard]] std::uint64_t zombie_count() noexcept;
  void reap(std::size_t count_max);
  [[nodiscard]] status unmap_view(view& gone, remap_kind kind);
  [[nodiscard]] status ask_streams();
  void reap_in_steps();
  [[nodiscard]] result<bool> trim_step(std::uint64_t limit_bytes);
  [[nodiscard]] std::size_t surplus_zombies();
  [[nodiscard]] status claim_idle(std::uint64_t size_bytes, std::vector<slab*>& claimed);
  [[nodiscard]] status dissolve_idle(std::uint64_t size_bytes);
  [[nodiscard]] status dissolve(slab& gone);
  [[nodiscard]] status finish_stream(std::uint32_t stream);
  [[nodiscard]] status finish_streams();
  [[nodiscard]] status close();
  void report_live() noexcept;

  // What every call reads is side by side.
  driver_ref driver_;
  use_of driver_use_;
  const bool watches_capture_;
  const std::uint64_t asked_from_;  // streams from this number on can be captured, and are asked
  const bool watches_;              // or there is a watcher
  pool_gate gate_;
  std::unique_ptr<parts> parts_;  // goes after the book, whose marks are its timeline's
  guarded<pool_book> book_;
  pool_options options_;
  watcher_lock watcher_lock_;
  growth_lock growth_lock_;    // held while the driver is called
  release_lock release_lock_;  // held while memory goes back to the driver
  remap_board board_;
  sync::atomic<std::uint64_t> remap_epoch_ = 0;
  bool may_alias_ = false;
  bool may_wait_ = true;  // of a growth: no stream that would be waited for is being captured
  growth_plan plan_;      // of the growth that is under way
};

// What every request takes while nothing is slow, inline in its caller.

// On a stream that is not being captured.
inline result<address> stream_pool::allocate_known(std::uint64_t size_bytes, stream_handle stream) {
  {
    const auto book = book_.lock();
    const book_request request{book->granules_for(size_bytes), book->find_stream(stream)};
    const bool plain = request.count_granules != 0 && request.stream != pool_book::no_stream &&
                       !book->wants_reaping();
    if (plain) [[likely]] {
      bool starved = false;
      if (const address at = book->place(request, starved)) [[likely]]
        return at;
    }
  }
  return allocate_slowly(size_bytes, stream);
}

inline result<address> stream_pool::allocate(std::uint64_t size_bytes, stream_handle stream) {
  if (!gate_.is_open()) [[unlikely]] {
    if (status entered = enter_closed_to_allocate(); !entered) return entered.error();
  }
  if (watches(stream)) return allocate_watched(size_bytes, stream);
  return allocate_known(size_bytes, stream);
}

inline status stream_pool::free_known(address at, stream_handle stream) {
  const auto book = book_.lock();
  std::uint32_t number = book->find_stream(stream);
  if (number == pool_book::no_stream) [[unlikely]] {
    if (status known = book->knows(at); !known) return known;
    const result<std::uint32_t> added = book->add_stream(stream);
    if (!added) return added.error();
    number = *added;
  }
  return book->free(at, number);
}

inline status stream_pool::free(address at, stream_handle stream) {
  if (!gate_.is_open()) [[unlikely]] {
    if (status entered = enter_closed_to_free(); !entered) return entered;
  }
  if (watches(stream)) return free_watched(at, stream);
  return free_known(at, stream);
}

}  // namespace vmm

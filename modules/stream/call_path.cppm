// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:call_path - allocate and free on warm memory, the test which calls need more, and the
// data that every call of a pool reads. Not exported.
//
// I1  All that each call reads is on one cache line.
// I2  The gate is open exactly when no reason for a closer check holds. It is closed in a forked
//     child: by not_set_up, or by gate_watch, which is notified of forks.
//
// A reason may hold for one thread only (a remap callback runs on it), but closes the gate for all
// threads: the slow entry determines the reason, and whether it holds for the caller.
//
// Only is_uncaptured() and the first free on a stream call the driver.
//
// Thread safety: all of it. Cost: O(1), with a search of fixed depth; the gate is one load, its
// changes one exchange each.
module;
#include "../base/thread_annotations.h"

export module vmm.stream:call_path;

import vmm.backend;
import vmm.base;
import vmm.optimizer;
import vmm.std;
import :arena;
import :geometry;
import :locks;
import :options;
import :pool_state;
import :state_lock;

namespace vmm {

/// Why a call goes through the slow entry. A further reason is a further bit here, and a test in
/// stream_pool::open_to_allocate() or check_ready().
enum class gate_reason : std::uint32_t {
  not_set_up = 1u << 0,     // no driver call was made so far, or the last set-up failed
  callback_runs = 1u << 1,  // a remap callback runs, on one thread
  goes_away = 1u << 2,      // the destructor runs
  captured = 1u << 3,       // a capture was announced; without one no query is made
  forked = 1u << 4,         // this is the copy of a forked child
};

class pool_gate {
 public:
  [[nodiscard]] inline bool is_open() const noexcept {
    const bool no_reason = reasons_.load(std::memory_order_acquire) == 0;
    debug_check([&] { return !no_reason || is_here(); },
                "call_path I2: a gate is open in a forked child");
    return no_reason;
  }
  /// False in a child that was forked after the gate was made.
  [[nodiscard]] inline bool is_here() const noexcept { return made_in_.is_here(); }
  [[nodiscard]] inline bool is_closed_by(gate_reason why) const noexcept {
    return (reasons_.load(std::memory_order_acquire) & static_cast<std::uint32_t>(why)) != 0;
  }
  inline void close(gate_reason why) noexcept {
    const std::uint32_t before =
        reasons_.fetch_or(static_cast<std::uint32_t>(why), std::memory_order_acq_rel);
    check((before & static_cast<std::uint32_t>(why)) == 0,
          "call_path I2: a gate is closed twice for one reason");
  }
  inline void open(gate_reason why) noexcept {
    const std::uint32_t before =
        reasons_.fetch_and(~static_cast<std::uint32_t>(why), std::memory_order_acq_rel);
    check((before & static_cast<std::uint32_t>(why)) != 0,
          "call_path I2: a gate is opened that is not closed");
  }
  /// Permanent; repeated in a child's child.
  void close_for_child() noexcept {
    check(!is_here(), "a gate is closed for a child in its parent");
    (void)reasons_.fetch_or(static_cast<std::uint32_t>(gate_reason::forked),
                            std::memory_order_acq_rel);
  }

 private:
  sync::atomic<std::uint32_t> reasons_ = static_cast<std::uint32_t>(gate_reason::not_set_up);
  const process_mark made_in_;
};

/// Closes a gate in each forked child, once it listens.
class gate_watch final : public fork_listener {
 public:
  explicit gate_watch(pool_gate& gate) noexcept : gate_(gate) {}
  ~gate_watch() { stop(); }
  void forked() noexcept override { gate_.close_for_child(); }

 private:
  pool_gate& gate_;
};

/// Streams whose requests a pool has served, by identity: a driver gives the handle of a destroyed
/// stream to a new one while the old one's work runs. An identity is recorded only while no memory
/// freed on an earlier stream of the same handle is listed under the handle. A free lists memory
/// under the handle without reading this: memory that a new stream frees counts as the old one's
/// until the new one's first request. Cost: one call of the driver for streams that have an
/// identity, else a branch.
class stream_identities {
 public:
  /// The first number of a stream with an identity; that of none if handles are kept until they are
  /// forgotten, or the driver has no identities or no event behind all work.
  [[nodiscard]] static std::uint64_t first_of(const features& can,
                                              const pool_options& options) noexcept {
    if (!can.stream_identity || !can.record_all || options.streams_forgotten)
      return ~std::uint64_t{0};
    return can.first_created_stream();
  }
  /// Whether the identity is recorded at the place of the stream; a false result may be wrong.
  [[nodiscard]] inline bool has(stream_handle stream, std::uint64_t identity) const noexcept {
    return known_[place_of(stream)].load(std::memory_order_acquire) == identity;
  }
  /// Whether it is recorded at all: another stream may have had the place first.
  [[nodiscard]] bool has_beside(stream_handle stream, std::uint64_t identity) const noexcept;
  void add(stream_handle stream, std::uint64_t identity) noexcept;

 private:
  static constexpr std::size_t places = 128;
  static constexpr std::size_t ways = 8;  // on one cache line

  [[nodiscard]] static inline std::size_t place_of(stream_handle stream) noexcept {
    const std::uint64_t mixed = static_cast<std::uint64_t>(stream) * 0x9E3779B97F4A7C15u;
    return (mixed >> 32) % places;
  }

  alignas(64) std::array<sync::atomic<std::uint64_t>, places> known_{};
  sync::atomic<std::uint32_t> turn_ = 0;  // the way that the next identity takes on a full line
};

class alignas(64) call_path {
 public:
  call_path(driver_interface& driver, const pool_options& options) noexcept
      : looks_for_captures_(driver.feature_set().capture &&
                            options.capture != capture_rule::unchecked),
        observes_blocks_(options.observer != nullptr || options.contents != contents_rule::none ||
                         options.policy.tuning.keep_none),
        needs_checks_((looks_for_captures_ && !options.captures_announced) || observes_blocks_),
        first_capturable_(looks_for_captures_ ? driver.feature_set().capturable_from
                                              : ~std::uint64_t{0}),
        first_identified_(stream_identities::first_of(driver.feature_set(), options)),
        driver_(driver) {}
  call_path(const call_path&) = delete;
  call_path& operator=(const call_path&) = delete;

  [[nodiscard]] inline pool_gate& gate() noexcept { return gate_; }
  [[nodiscard]] inline const pool_gate& gate() const noexcept { return gate_; }
  [[nodiscard]] inline state_cell& state() noexcept { return state_; }
  [[nodiscard]] inline const state_cell& state() const noexcept { return state_; }

  // ---- which calls need more ----
  /// Whether every call needs more than the state: blocks are observed or filled, or no memory is
  /// kept.
  [[nodiscard]] inline bool observes_blocks() const noexcept { return observes_blocks_; }
  /// Whether captures are queried.
  [[nodiscard]] inline bool looks_for_captures() const noexcept { return looks_for_captures_; }
  [[nodiscard]] inline bool may_be_captured(stream_handle stream) const noexcept {
    return static_cast<std::uint64_t>(stream) >= first_capturable_;
  }
  /// Whether a call on this stream needs more than the state, unless is_uncaptured().
  [[nodiscard]] inline bool needs_check(stream_handle stream) const noexcept {
    return needs_checks_ && (observes_blocks_ || may_be_captured(stream));
  }
  /// The same while the gate is closed: an announced capture may be in progress.
  [[nodiscard]] inline bool needs_check_closed(stream_handle stream) const noexcept {
    if (needs_check(stream)) return true;
    return looks_for_captures_ && gate_.is_closed_by(gate_reason::captured) &&
           may_be_captured(stream);
  }
  /// Whether only a capture needs the check, and the driver's quick query finds none.
  [[nodiscard]] inline bool is_uncaptured(stream_handle stream) const noexcept {
    return is_uncaptured(stream, 0);
  }
  /// The same with the identity that the driver has just returned: 0 for a captured stream.
  [[nodiscard]] inline bool is_uncaptured(stream_handle stream,
                                          std::uint64_t identity) const noexcept {
    debug_check([&] { return needs_check(stream); }, "a stream without an identity is queried");
    return !observes_blocks_ && (identity != 0 || driver_.is_uncaptured(stream));
  }

  /// The identity of a stream whose handle a later stream may get while the pool lists memory under
  /// it; 0: the stream has none, or is captured, and then only memory whose work has finished
  /// serves it.
  [[nodiscard]] inline std::uint64_t identity_of(stream_handle stream) const noexcept {
    const bool has_identity = static_cast<std::uint64_t>(stream) >= first_identified_;
    return has_identity ? driver_.stream_identity(stream) : 0;
  }

  // ---- arenas ----
  /// The arenas of the state; null while it has none.
  [[nodiscard]] inline arena_table* published_arenas() const noexcept {
    return arenas_.load(std::memory_order_acquire);
  }
  /// Makes calls find the arenas; null: none.
  void publish_arenas(arena_table* arenas) noexcept {
    arenas_.store(arenas, std::memory_order_release);
  }

  // ---- calls ----
  /// From free memory of the stream, beside arenas. Empty: not served.
  [[nodiscard]] inline address allocate(std::uint64_t size_bytes, stream_handle stream) noexcept
      VMM_EXCLUDES(rank::state);
  /// stream_pool::free(), on a stream that is not being captured.
  [[nodiscard]] inline status free(address at, stream_handle stream) VMM_EXCLUDES(rank::state);

 private:
  // Out of line: a free's stack is without their variables.
  [[nodiscard]] static bool free_in_arena(const arena_table& arenas, address at,
                                          stream_handle stream) noexcept;
  [[nodiscard]] status free_on_new_stream(address at, stream_handle stream)
      VMM_EXCLUDES(rank::state);

  pool_gate gate_;
  const bool looks_for_captures_;
  const bool observes_blocks_;
  const bool needs_checks_;                      // one of them, or blocks are observed
  const std::uint64_t first_capturable_;         // streams from this number on; no stream's
  const std::uint64_t first_identified_;         // streams from this number on
  sync::atomic<arena_table*> arenas_ = nullptr;  // the state's, once it has any
  driver_interface& driver_;
  state_cell state_;
};
static_assert(sizeof(call_path) == 64,
              "I1: the members that every call reads are on two cache lines");

inline address call_path::allocate(std::uint64_t size_bytes, stream_handle stream) noexcept {
  const warm_lock warm(state_);
  const stream_request request = warm.request(size_bytes, stream);
  if (!warm.serves(request)) [[unlikely]]
    return {};
  const address at = warm.try_allocate(request);
  if (!at) [[unlikely]]
    return {};
  debug_check([&] { return at.value % granule_bytes == 0 && request.size_bytes() >= size_bytes; },
              "a block begins inside a granule, or is smaller than requested");
  warm.note_allocated(at, request, size_bytes, stream);
  return at;
}

inline status call_path::free(address at, stream_handle stream) {
  if (const arena_table* const arenas = published_arenas()) {
    if (free_in_arena(*arenas, at, stream)) return {};
  }
  {
    const warm_lock warm(state_);
    const std::uint32_t number = warm.find_stream(stream);
    if (number != pool_state::no_stream) [[likely]]
      return warm.free_deferring(at, number);
  }
  return free_on_new_stream(at, stream);
}

}  // namespace vmm

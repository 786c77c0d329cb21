// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include "handles.hpp"

#include <pthread.h>

#include <array>
#include <atomic>
#include <cassert>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <thread>

namespace vmm_c {
namespace {

// How many forks lie between the first process and this one.
std::atomic<std::uint32_t> forks_passed = 0;
void begin_in_child() noexcept;
[[maybe_unused]] const int fork_handler = pthread_atfork(nullptr, nullptr, begin_in_child);

// A handle, from the top: a mark that no address has, the kind, the generation, the slot.
constexpr unsigned slot_bits = 16;
constexpr unsigned generation_bits = 32;
constexpr std::uint64_t slot_mask = (std::uint64_t{1} << slot_bits) - 1;
constexpr std::uint64_t generation_mask = (std::uint64_t{1} << generation_bits) - 1;
constexpr unsigned kind_shift = slot_bits + generation_bits;
constexpr std::uint64_t mark = std::uint64_t{0xC7} << 56;
constexpr std::uint64_t mark_mask = std::uint64_t{0xFF} << 56;
static_assert(sizeof(void*) == sizeof(std::uint64_t), "handles are 64 bits wide");

// Deciding: a thread finds out whether the object may go, and others wait. Busy: it is not there
// yet, or goes.
enum class phase : std::uint8_t { unused, busy, deciding, live };

constexpr std::uint64_t state_of(std::uint64_t generation, handle_kind kind, phase now) noexcept {
  return generation << 16 | static_cast<std::uint64_t>(kind) << 8 | static_cast<std::uint64_t>(now);
}
constexpr phase phase_of(std::uint64_t state) noexcept { return static_cast<phase>(state & 0xFF); }
constexpr std::uint64_t generation_of(std::uint64_t state) noexcept { return state >> 16; }

constexpr std::size_t chunk_slots = 16;
constexpr std::size_t chunk_count = (std::size_t{1} << slot_bits) / chunk_slots;
using chunk = std::array<handle_slot, chunk_slots>;

// Chunks come when they are needed and stay: a handle of any age finds its slot. Slots are used in
// turn, so that a slot's generations last, but only those of chunks that are there.
std::array<std::atomic<chunk*>, chunk_count> chunks{};
std::atomic<std::size_t> slot_count = 0;  // of the chunks that are there
std::atomic<std::size_t> first_guess = 0;

chunk* chunk_at(std::size_t number) noexcept {
  chunk* found = chunks[number].load(std::memory_order_acquire);
  if (found != nullptr) return found;
  std::unique_ptr<chunk> made(new (std::nothrow) chunk);
  if (made == nullptr) return nullptr;
  if (chunks[number].compare_exchange_strong(found, made.get(), std::memory_order_acq_rel))
    return made.release();
  return found;
}

handle_slot* slot_of(std::uint64_t handle) noexcept {
  const std::size_t index = handle & slot_mask;
  chunk* const found = chunks[index / chunk_slots].load(std::memory_order_acquire);
  return found == nullptr ? nullptr : &(*found)[index % chunk_slots];
}

std::uint64_t number_of(const void* handle) noexcept {
  return reinterpret_cast<std::uint64_t>(handle);
}

// The state that a live slot has under this handle; 0, which no live slot has, for no handle.
std::uint64_t state_expected(std::uint64_t handle, handle_kind kind) noexcept {
  const bool is_handle = (handle & mark_mask) == mark;
  const std::uint64_t kind_there = (handle & ~mark_mask) >> kind_shift;
  if (!is_handle || kind_there != static_cast<std::uint64_t>(kind)) return 0;
  return state_of((handle >> slot_bits) & generation_mask, kind, phase::live);
}

// Stacks of threads have distances of megabytes, so threads mostly use different stripes; sharing
// one costs time only.
handle_slot::stripe& stripe_of(handle_slot& slot) noexcept {
  constexpr unsigned stack_shift = 20;
  constexpr std::uint64_t golden = 0x9E3779B97F4A7C15;
  const std::uint64_t stack = number_of(__builtin_frame_address(0)) >> stack_shift;
  static_assert(handle_slot::stripe_count == 8);
  return slot.stripes[(stack * golden) >> 61];
}

constexpr std::uint64_t in_phase(std::uint64_t state, phase now) noexcept {
  return state_of(generation_of(state), static_cast<handle_kind>(state >> 8 & 0xFF), now);
}

// A thread of the parent's that decided is not in the child: what it looked at stays.
void begin_in_child() noexcept {
  forks_passed.fetch_add(1, std::memory_order_relaxed);
  const std::size_t count = slot_count.load(std::memory_order_acquire);
  for (std::size_t index = 0; index < count; ++index) {
    handle_slot& slot = *slot_of(index);
    const std::uint64_t state = slot.state.load(std::memory_order_relaxed);
    if (phase_of(state) == phase::deciding) slot.state.store(in_phase(state, phase::live));
  }
}

// Returns when no thread decides about this generation: whether it is live.
bool wait_until_decided(const handle_slot& slot, std::uint64_t live) noexcept {
  const std::uint64_t deciding = in_phase(live, phase::deciding);
  std::uint64_t now = slot.state.load();
  while (now == deciding) {
    std::this_thread::yield();
    now = slot.state.load();
  }
  return now == live;
}

void* take_slot(std::size_t index, handle_kind kind, void* object) noexcept {
  handle_slot& slot =
      (*chunks[index / chunk_slots].load(std::memory_order_acquire))[index % chunk_slots];
  std::uint64_t before = slot.state.load(std::memory_order_relaxed);
  if (phase_of(before) != phase::unused) return nullptr;
  const std::uint64_t generation = (generation_of(before) + 1) & generation_mask;
  if (!slot.state.compare_exchange_strong(before, state_of(generation, kind, phase::busy)))
    return nullptr;
  assert(slot.object == nullptr && "I1: a slot in use is given out");
  slot.object = object;
  slot.state.store(state_of(generation, kind, phase::live));
  const std::uint64_t handle =
      mark | static_cast<std::uint64_t>(kind) << kind_shift | generation << slot_bits | index;
  return reinterpret_cast<void*>(handle);
}

}  // namespace

made_here::made_here() noexcept : made_after_(forks_passed.load(std::memory_order_relaxed)) {}

bool made_here::is_here() const noexcept {
  return made_after_.load(std::memory_order_relaxed) ==
         forks_passed.load(std::memory_order_relaxed);
}

void made_here::move_here() noexcept {
  made_after_.store(forks_passed.load(std::memory_order_relaxed), std::memory_order_relaxed);
}

bool handle_slot::has_callers() const noexcept {
  for (const stripe& each : stripes) {
    if (each.callers.load() != 0) return true;
  }
  return false;
}

bool handle_slot::has_long_callers(std::chrono::milliseconds patience) const noexcept {
  const auto begin = std::chrono::steady_clock::now();
  while (has_callers()) {
    if (std::chrono::steady_clock::now() - begin > patience) return true;
    std::this_thread::yield();
  }
  return false;
}

namespace {

// One of `steps` slots from the first guess on; null where all are in use.
void* add_among(std::size_t steps, handle_kind kind, void* object) noexcept {
  const std::size_t count = slot_count.load(std::memory_order_acquire);
  const std::size_t first = first_guess.load(std::memory_order_relaxed);
  for (std::size_t step = 0; step < steps && step < count; ++step) {
    const std::size_t index = (first + step) % count;
    if (void* const handle = take_slot(index, kind, object); handle != nullptr) {
      first_guess.store(index + 1, std::memory_order_relaxed);
      return handle;
    }
  }
  return nullptr;
}

// False where there are as many chunks as may be, or no host memory.
bool add_chunk() noexcept {
  std::size_t before = slot_count.load(std::memory_order_acquire);
  if (before == chunk_slots * chunk_count || chunk_at(before / chunk_slots) == nullptr)
    return false;
  if (slot_count.compare_exchange_strong(before, before + chunk_slots, std::memory_order_acq_rel))
    first_guess.store(before, std::memory_order_relaxed);
  return true;
}

}  // namespace

void* add_handle(handle_kind kind, void* object) noexcept {
  constexpr std::size_t near_slots = 64;
  void* handle = add_among(near_slots, kind, object);
  while (handle == nullptr && add_chunk()) handle = add_among(near_slots, kind, object);
  return handle != nullptr ? handle : add_among(chunk_slots * chunk_count, kind, object);
}

// A caller is counted before it reads the state; the destroying thread changes the state before it
// reads the counts. These operations have one total order, so at least one of the two threads finds
// the other.
entered_slot enter_handle(const void* handle, handle_kind kind) noexcept {
  const std::uint64_t number = number_of(handle);
  const std::uint64_t expected = state_expected(number, kind);
  handle_slot* const slot = expected == 0 ? nullptr : slot_of(number);
  if (slot == nullptr) return {};
  handle_slot::stripe& stripe = stripe_of(*slot);
  do {
    stripe.callers.fetch_add(1);
    if (slot->state.load() == expected) [[likely]]
      return {slot, &stripe};
    stripe.callers.fetch_sub(1, std::memory_order_release);
  } while (wait_until_decided(*slot, expected));
  return {};
}

handle_slot* claim_handle(const void* handle, handle_kind kind) noexcept {
  const std::uint64_t number = number_of(handle);
  const std::uint64_t live = state_expected(number, kind);
  handle_slot* const slot = live == 0 ? nullptr : slot_of(number);
  if (slot == nullptr) return nullptr;
  do {
    std::uint64_t expected = live;
    if (slot->state.compare_exchange_strong(expected, in_phase(live, phase::deciding))) return slot;
  } while (wait_until_decided(*slot, live));
  return nullptr;
}

void close_handle(handle_slot& claimed) noexcept {
  const std::uint64_t state = claimed.state.load(std::memory_order_relaxed);
  assert(phase_of(state) == phase::deciding && "I2: a handle ends that was not claimed");
  claimed.state.store(in_phase(state, phase::busy));
}

void keep_handle(handle_slot& claimed) noexcept {
  const std::uint64_t state = claimed.state.load(std::memory_order_relaxed);
  assert((phase_of(state) == phase::deciding || phase_of(state) == phase::busy) &&
         "I2: a handle is kept that was not claimed");
  claimed.state.store(in_phase(state, phase::live));
}

void drop_handle(handle_slot& claimed) noexcept {
  claimed.object = nullptr;
  const std::uint64_t generation = generation_of(claimed.state.load(std::memory_order_relaxed));
  claimed.state.store(state_of(generation, handle_kind::none, phase::unused));
}

}  // namespace vmm_c

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The table of slots behind the handles of vmm.h. A handle is the number of a slot, its generation
// and its kind in the shape of a pointer, so that destroyed and invalid handles are detected
// without dereferencing them.
//
// I1  A slot's object exists while a thread is inside a call on it: each call is counted, and
//     destroying is refused while there are any.
// I2  A handle is valid for one object only. Its number is reused after 2^32 others of its slot.
//
// No lock anywhere: a forked child finds the table usable, whatever other threads were doing.
//
// Threads: all of it. Cost of a call: an atomic addition and subtraction, on one of eight cache
// lines of the handle, chosen by the thread's stack.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace vmm_c {

enum class handle_kind : std::uint8_t {
  none,
  driver,
  pool,
  manager,
  allocator,
  listener,
  channel,
  exported,
  imported,
  growable,
  suspender
};

// The process that an object was made in. The modules have the same; this one is the table's own.
class made_here {
 public:
  made_here() noexcept;
  [[nodiscard]] bool is_here() const noexcept;
  // From now on this process is the one: for an object that has nothing of its parent's.
  void move_here() noexcept;

 private:
  std::atomic<std::uint32_t> made_after_;
};

struct handle_slot {
  static constexpr std::size_t stripe_count = 8;
  struct alignas(64) stripe {
    std::atomic<std::uint32_t> callers = 0;
  };

  [[nodiscard]] bool has_callers() const noexcept;
  // Requires: no call can enter. Calls that end soon are waited for.
  [[nodiscard]] bool has_long_callers(
      std::chrono::milliseconds patience = std::chrono::milliseconds(10)) const noexcept;

  // Generation, kind and phase in one word: a thread that reads the handle's values from it may use
  // the object.
  std::atomic<std::uint64_t> state = 0;
  void* object = nullptr;
  std::array<stripe, stripe_count> stripes;
};

// Takes an object over. Null where no slot is left, or no memory for one.
[[nodiscard]] void* add_handle(handle_kind kind, void* object) noexcept;

// The slot while it is live and of this kind, counted as called; null otherwise.
struct entered_slot {
  handle_slot* slot = nullptr;
  handle_slot::stripe* stripe = nullptr;
};
[[nodiscard]] entered_slot enter_handle(const void* handle, handle_kind kind) noexcept;
inline void leave_handle(const entered_slot& entered) noexcept {
  entered.stripe->callers.fetch_sub(1, std::memory_order_release);
}

// Destroying, in steps. From claim on calls wait; the claiming thread decides without a call on
// this handle. Then the object is kept, or closed: from close on calls find nothing, and it goes.
[[nodiscard]] handle_slot* claim_handle(const void* handle, handle_kind kind) noexcept;
void close_handle(handle_slot& claimed) noexcept;
void keep_handle(handle_slot& claimed) noexcept;
void drop_handle(handle_slot& claimed) noexcept;

// A call on an object, for its life.
template <class Object>
class call_on {
 public:
  explicit call_on(const void* handle) noexcept : in_(enter_handle(handle, Object::kind)) {}
  ~call_on() {
    if (in_.slot != nullptr) leave_handle(in_);
  }
  call_on(const call_on&) = delete;
  call_on& operator=(const call_on&) = delete;

  [[nodiscard]] explicit operator bool() const noexcept { return in_.slot != nullptr; }
  [[nodiscard]] Object* operator->() const noexcept {
    return static_cast<Object*>(in_.slot->object);
  }
  [[nodiscard]] Object& operator*() const noexcept { return *operator->(); }

 private:
  entered_slot in_;
};

}  // namespace vmm_c

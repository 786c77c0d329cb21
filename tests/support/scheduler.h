// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// A scheduler for tests of threads: real threads, of which exactly one runs. At each step (a lock,
// an unlock, an atomic operation, a driver call, the end of a thread) the scheduler says which one
// runs next: by a seed, or by a list. Equal plans over equal programs make equal schedules.
//
// It keeps a model of the locks, so that a thread that needs a held lock is not chosen and never
// blocks on it. If no thread can be chosen, that is a deadlock: the waiting threads, the locks and
// their holders, the stacks and the list that replays the schedule go to stderr, and the process
// ends with `exit_code`. It cannot go on: threads inside noexcept functions hold locks that nothing
// can take from them. A schedule that does not end, or a thread that blocks on what the scheduler
// does not see, ends the same way.
//
// The baton is a futex and plain memory, in a file that is compiled without ThreadSanitizer, which
// therefore sees no order between two threads but the one that the program makes. Only the start
// and the end of a schedule are visible to it.
#pragma once

#include "../../tools/program/standard.hpp"

namespace schedule {

inline constexpr std::uint32_t threads_max = 4;
inline constexpr std::uint32_t steps_max = 1U << 15;
inline constexpr int exit_code = 86;

/// What a thread is about to do; of unlocks, what it has done.
enum class event : std::uint8_t {
  begin,
  lock,
  lock_again,  // its holder may take it again
  lock_shared,
  unlock,
  unlock_shared,
  atomic,
  driver,
  end,
};

enum class strategy : std::uint8_t {
  listed,      // the running thread goes on while it can, but where the list says otherwise
  walk,        // now and then any thread; how often, the seed says
  priorities,  // the first of a random order that can run, with few changes of the order (PCT)
};

/// At this step this thread is chosen.
struct choice {
  std::uint32_t step = 0;
  std::uint32_t thread = 0;
};

struct plan {
  strategy how = strategy::listed;
  std::uint64_t seed = 0;
  const choice* listed = nullptr;  // by step
  std::uint32_t listed_count = 0;
  bool at_unlocks =
      true;  // an unlock is a step: needed only where something is used without a lock
};

/// One decision.
struct decision {
  std::uint8_t runnable = 0;  // a bit for each thread
  std::uint8_t before = 0;    // the thread that ran
  std::uint8_t chosen = 0;
};

struct body {
  void (*run)(void* context) = nullptr;
  void* context = nullptr;
};

/// The thread that goes on where no list says otherwise.
[[nodiscard]] std::uint32_t usual_choice(const decision& at) noexcept;

/// The threads. One crew at a time.
struct crew {
  crew();
  ~crew();
  crew(const crew&) = delete;
  crew& operator=(const crew&) = delete;

  /// Runs each body on a thread of its own until all have returned. At most threads_max.
  void play(const body* bodies, std::uint32_t count, const plan& how) noexcept;

  /// Of the latest schedule.
  [[nodiscard]] std::uint32_t steps() const noexcept;
  [[nodiscard]] std::uint32_t switches() const noexcept;
  /// A listed choice could not be taken: the program is not the one that was listed.
  [[nodiscard]] bool diverged() const noexcept;
  [[nodiscard]] const decision& at(std::uint32_t step) const noexcept;
  /// "STEP:THREAD ...", where the choice is not the usual one: plays the schedule again.
  [[nodiscard]] std::string choices() const;
  /// Printed with a deadlock. Static storage, or unchanged while a schedule runs.
  void describe(const char* program) noexcept;
};

/// Every schedule with at most `preemptions_max` switches away from a thread that could go on,
/// depth first.
class enumeration {
 public:
  explicit enumeration(std::uint32_t preemptions_max) : preemptions_max_(preemptions_max) {}
  ~enumeration();
  enumeration(const enumeration&) = delete;
  enumeration& operator=(const enumeration&) = delete;

  [[nodiscard]] plan next() const noexcept;
  /// Takes note of the schedule that was played by next(). False: it was the last one.
  [[nodiscard]] bool advance(const crew& played) noexcept;
  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }

 private:
  std::uint32_t preemptions_max_;
  choice* listed_ = nullptr;
  std::uint32_t listed_count_ = 0;
  std::uint64_t count_ = 0;
};

/// Called by the thread that runs. Nothing on a thread that is not of the crew.
void reach(event what, const void* object) noexcept;

/// Between the two ThreadSanitizer sees nothing of the calling thread: neither what it uses nor
/// what it orders. For the simulated driver, whose lock would order what a real driver does not.
void begin_unseen() noexcept;
void end_unseen() noexcept;

}  // namespace schedule

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Compiled without ThreadSanitizer, and therefore with nothing in it that another file instantiates
// too: plain arrays instead of containers on the threads' side.
#include "scheduler.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <bit>
#include <cerrno>

extern "C" {
[[gnu::weak]] void __tsan_acquire(void* address);
[[gnu::weak]] void __tsan_release(void* address);
[[gnu::weak]] void AnnotateIgnoreReadsBegin(const char* file, int line);
[[gnu::weak]] void AnnotateIgnoreReadsEnd(const char* file, int line);
[[gnu::weak]] void AnnotateIgnoreWritesBegin(const char* file, int line);
[[gnu::weak]] void AnnotateIgnoreWritesEnd(const char* file, int line);
[[gnu::weak]] void AnnotateIgnoreSyncBegin(const char* file, int line);
[[gnu::weak]] void AnnotateIgnoreSyncEnd(const char* file, int line);
[[gnu::weak]] void __sanitizer_print_stack_trace();
}

namespace schedule {
namespace {

constexpr std::uint32_t locks_max = 64;
constexpr std::uint32_t changes_max = 3;
constexpr std::uint32_t no_thread = 0xFF;
constexpr long seconds_max = 100;

// ---- gates -------------------------------------------------------------------------------------

// A thread sleeps until its gate is opened once.
struct alignas(64) gate {
  int open = 0;
};

void let_go(gate& of) noexcept {
  __atomic_store_n(&of.open, 1, __ATOMIC_SEQ_CST);
  ::syscall(SYS_futex, &of.open, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

// False: `seconds` have passed. 0 seconds: no limit.
bool wait_at(gate& own, long seconds) noexcept {
  const timespec limit{seconds, 0};
  while (__atomic_exchange_n(&own.open, 0, __ATOMIC_SEQ_CST) == 0) {
    const timespec* const within = seconds != 0 ? &limit : nullptr;
    const long woken = ::syscall(SYS_futex, &own.open, FUTEX_WAIT_PRIVATE, 0, within, nullptr, 0);
    if (woken != 0 && seconds != 0 && errno == ETIMEDOUT) return false;
  }
  return true;
}

// ---- state -------------------------------------------------------------------------------------

struct held_lock {
  const void* object = nullptr;
  std::uint32_t owner = no_thread;  // none where it is shared
  std::uint32_t depth = 0;
  std::uint32_t readers = 0;  // a bit for each thread
};

struct worker {
  gate turn{};
  pthread_t thread{};
  body job{};
  event wants = event::begin;
  const void* object = nullptr;
  std::uint32_t priority = 0;
  bool is_done = true;
  bool shows_stack = false;
};

struct whole {
  worker workers[threads_max];
  gate finished{};
  gate shown{};
  held_lock locks[locks_max];
  decision decisions[steps_max];
  plan how{};
  std::uint32_t changes[changes_max]{};
  const char* program = "";
  std::uint64_t random = 0;
  std::uint64_t stay_mask = 0;
  std::uint32_t count = 0;
  std::uint32_t steps = 0;
  std::uint32_t switches = 0;
  std::uint32_t cursor = 0;
  std::uint32_t current = no_thread;
  std::uint32_t plays = 0;
  bool diverged = false;
  bool stops = false;
  char start_mark = 0;
  char end_marks[threads_max]{};
  cpu_set_t processors{};
};

whole state;
__thread std::uint32_t self = no_thread;

std::uint64_t next_random() noexcept {
  state.random += 0x9E3779B97F4A7C15U;
  std::uint64_t value = state.random;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9U;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBU;
  return value ^ (value >> 31);
}

// ---- locks -------------------------------------------------------------------------------------

held_lock* find_lock(const void* object) noexcept {
  for (held_lock& each : state.locks)
    if (each.object == object) return &each;
  return nullptr;
}

bool is_free_for(std::uint32_t thread) noexcept {
  const worker& entry = state.workers[thread];
  const bool locks = entry.wants == event::lock || entry.wants == event::lock_again;
  if (!locks && entry.wants != event::lock_shared) return true;
  const held_lock* const held = find_lock(entry.object);
  if (held == nullptr) return true;
  if (entry.wants == event::lock_shared) return held->owner == no_thread;
  return entry.wants == event::lock_again && held->owner == thread;
}

void take(std::uint32_t thread) noexcept {
  worker& entry = state.workers[thread];
  if (entry.wants != event::lock && entry.wants != event::lock_again &&
      entry.wants != event::lock_shared)
    return;
  held_lock* held = find_lock(entry.object);
  if (held == nullptr) held = find_lock(nullptr);
  if (held == nullptr) std::abort();
  held->object = entry.object;
  if (entry.wants == event::lock_shared) {
    held->readers |= 1U << thread;
  } else {
    held->owner = thread;
    ++held->depth;
  }
}

void give_back(std::uint32_t thread, event how, const void* object) noexcept {
  held_lock* const held = find_lock(object);
  if (held == nullptr) return;  // taken before the schedule began
  if (how == event::unlock_shared) {
    held->readers &= ~(1U << thread);
  } else if (--held->depth == 0) {
    held->owner = no_thread;
  }
  if (held->readers == 0 && held->depth == 0) *held = held_lock{};
}

// ---- reports -----------------------------------------------------------------------------------

const char* name_of(event what) noexcept {
  switch (what) {
    case event::begin: return "begin";
    case event::lock: return "a lock";
    case event::lock_again: return "a recursive lock";
    case event::lock_shared: return "a shared lock";
    case event::unlock:
    case event::unlock_shared: return "an unlock";
    case event::atomic: return "an atomic operation";
    case event::driver: return "a driver call";
    case event::end: return "its end";
  }
  return "";
}

void print_choices(std::FILE* out) noexcept {
  for (std::uint32_t step = 0; step < state.steps; ++step) {
    const decision& made = state.decisions[step];
    if (made.chosen != usual_choice(made)) std::fprintf(out, "%u:%u ", step, made.chosen);
  }
  std::fputc('\n', out);
}

void print_thread(std::uint32_t thread) noexcept {
  const worker& entry = state.workers[thread];
  if (entry.is_done) {
    std::fprintf(stderr, "  thread %u has ended\n", thread);
    return;
  }
  std::fprintf(stderr, "  thread %u is before %s %p", thread, name_of(entry.wants), entry.object);
  const held_lock* const held = entry.object == nullptr ? nullptr : find_lock(entry.object);
  if (held != nullptr && held->owner != no_thread)
    std::fprintf(stderr, ", held by thread %u", held->owner);
  if (held != nullptr && held->readers != 0)
    std::fprintf(stderr, ", held by readers %x", held->readers);
  std::fputc('\n', stderr);
}

void show_stack() noexcept {
  if (__sanitizer_print_stack_trace != nullptr) __sanitizer_print_stack_trace();
}

// The stacks are printed by their threads, one after the other; nothing else runs.
[[noreturn]] void give_up(const char* why) noexcept {
  std::fprintf(stderr, "schedule: %s at step %u\n  program: %s\n", why, state.steps, state.program);
  for (std::uint32_t thread = 0; thread < state.count; ++thread) print_thread(thread);
  std::fprintf(stderr, "  seed %llu, choices: ", static_cast<unsigned long long>(state.how.seed));
  print_choices(stderr);
  for (std::uint32_t thread = 0; thread < state.count; ++thread) {
    worker& entry = state.workers[thread];
    if (entry.is_done) continue;
    std::fprintf(stderr, "  thread %u:\n", thread);
    if (thread == self) {
      show_stack();
      continue;
    }
    entry.shows_stack = true;
    let_go(entry.turn);
    (void)wait_at(state.shown, 10);
  }
  std::fflush(stderr);
  std::_Exit(exit_code);
}

// ---- choosing ----------------------------------------------------------------------------------

std::uint32_t lowest(std::uint32_t mask) noexcept {
  return static_cast<std::uint32_t>(std::countr_zero(mask));
}

std::uint32_t any_of(std::uint32_t mask) noexcept {
  auto left =
      static_cast<std::uint32_t>(next_random() % static_cast<std::uint32_t>(std::popcount(mask)));
  for (; left != 0; --left) mask &= mask - 1;
  return lowest(mask);
}

std::uint32_t first_of(std::uint32_t mask) noexcept {
  std::uint32_t best = lowest(mask);
  for (std::uint32_t thread = 0; thread < state.count; ++thread) {
    const bool can = ((mask >> thread) & 1U) != 0;
    if (can && state.workers[thread].priority > state.workers[best].priority) best = thread;
  }
  return best;
}

std::uint32_t pick(const decision& now) noexcept {
  const std::uint32_t usual = usual_choice(now);
  switch (state.how.how) {
    case strategy::walk:
      if (usual == now.before && (next_random() & state.stay_mask) != 0) return usual;
      return any_of(now.runnable);
    case strategy::priorities:
      for (std::uint32_t i = 0; i < changes_max; ++i) {
        if (state.changes[i] == state.steps && state.current != no_thread)
          state.workers[state.current].priority = i;
      }
      return first_of(now.runnable);
    case strategy::listed: {
      if (state.cursor == state.how.listed_count) return usual;
      const choice& next = state.how.listed[state.cursor];
      if (next.step != state.steps) return usual;
      ++state.cursor;
      if (((now.runnable >> next.thread) & 1U) != 0) return next.thread;
      state.diverged = true;
      return usual;
    }
  }
  return usual;
}

std::uint32_t choose() noexcept {
  std::uint32_t runnable = 0;
  for (std::uint32_t thread = 0; thread < state.count; ++thread)
    if (!state.workers[thread].is_done && is_free_for(thread)) runnable |= 1U << thread;
  if (runnable == 0) give_up("deadlock: no thread can run");
  if (state.steps == steps_max) give_up("a schedule that does not end");
  decision& now = state.decisions[state.steps];
  now.runnable = static_cast<std::uint8_t>(runnable);
  now.before = static_cast<std::uint8_t>(state.current);
  now.chosen = static_cast<std::uint8_t>(pick(now));
  if (now.chosen != now.before) ++state.switches;
  ++state.steps;
  return now.chosen;
}

void wait_for_turn(std::uint32_t thread) noexcept {
  worker& entry = state.workers[thread];
  for (;;) {
    (void)wait_at(entry.turn, 0);
    if (!entry.shows_stack) return;
    show_stack();
    entry.shows_stack = false;
    let_go(state.shown);
  }
}

void finish(std::uint32_t thread) noexcept {
  worker& entry = state.workers[thread];
  entry.is_done = true;
  entry.wants = event::end;
  entry.object = nullptr;
  for (std::uint32_t other = 0; other < state.count; ++other) {
    if (state.workers[other].is_done) continue;
    const std::uint32_t next = choose();
    state.current = next;
    let_go(state.workers[next].turn);
    return;
  }
  let_go(state.finished);
}

void* work(void* number) noexcept {
  const auto thread = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(number));
  worker& entry = state.workers[thread];
  for (;;) {
    wait_for_turn(thread);
    if (state.stops) return nullptr;
    if (__tsan_acquire != nullptr) __tsan_acquire(&state.start_mark);
    self = thread;
    entry.job.run(entry.job.context);
    self = no_thread;
    if (__tsan_release != nullptr) __tsan_release(&state.end_marks[thread]);
    finish(thread);
  }
}

// All on one processor: a hand-over is then a switch of threads and no message to another
// processor. Which one is looked at now and then, since others may have come to this one.
void move_together() noexcept {
  cpu_set_t one;
  (void)::pthread_setaffinity_np(::pthread_self(), sizeof state.processors, &state.processors);
  const int here = ::sched_getcpu();
  if (here < 0) return;
  CPU_ZERO(&one);
  CPU_SET(static_cast<std::size_t>(here), &one);
  (void)::pthread_setaffinity_np(::pthread_self(), sizeof one, &one);
  for (const worker& each : state.workers)
    (void)::pthread_setaffinity_np(each.thread, sizeof one, &one);
}

void begin(const body* bodies, std::uint32_t count, const plan& how) noexcept {
  state.how = how;
  state.count = count;
  state.steps = 0;
  state.switches = 0;
  state.cursor = 0;
  state.current = no_thread;
  state.diverged = false;
  state.random = how.seed * 0x2545F4914F6CDD1DU + 1;
  state.stay_mask = (std::uint64_t{1} << (1 + next_random() % 5)) - 1;
  for (held_lock& each : state.locks) each = held_lock{};
  const std::uint32_t length = 16U << (next_random() % 6);
  for (std::uint32_t& change : state.changes)
    change = static_cast<std::uint32_t>(next_random() % length);
  for (std::uint32_t thread = 0; thread < count; ++thread) {
    worker& entry = state.workers[thread];
    entry.job = bodies[thread];
    entry.wants = event::begin;
    entry.object = nullptr;
    entry.is_done = false;
    entry.priority = changes_max + static_cast<std::uint32_t>(next_random() % 1024);
  }
}

}  // namespace

std::uint32_t usual_choice(const decision& at) noexcept {
  const bool goes_on = at.before != no_thread && ((at.runnable >> at.before) & 1U) != 0;
  return goes_on ? at.before : lowest(at.runnable);
}

crew::crew() {
  (void)::pthread_getaffinity_np(::pthread_self(), sizeof state.processors, &state.processors);
  state.stops = false;
  for (std::uint32_t thread = 0; thread < threads_max; ++thread) {
    void* const number = reinterpret_cast<void*>(static_cast<std::uintptr_t>(thread));
    if (::pthread_create(&state.workers[thread].thread, nullptr, work, number) != 0) std::abort();
  }
}

crew::~crew() {
  state.stops = true;
  for (worker& each : state.workers) {
    let_go(each.turn);
    (void)::pthread_join(each.thread, nullptr);
  }
  (void)::pthread_setaffinity_np(::pthread_self(), sizeof state.processors, &state.processors);
}

void crew::play(const body* bodies, std::uint32_t count, const plan& how) noexcept {
  if (count == 0 || count > threads_max) std::abort();
  if (state.plays++ % 512 == 0) move_together();
  begin(bodies, count, how);
  if (__tsan_release != nullptr) __tsan_release(&state.start_mark);
  const std::uint32_t first = choose();
  state.current = first;
  let_go(state.workers[first].turn);
  if (!wait_at(state.finished, seconds_max))
    give_up("a thread blocks on what the scheduler does not see, or does not end");
  if (__tsan_acquire != nullptr)
    for (char& mark : state.end_marks) __tsan_acquire(&mark);
}

std::uint32_t crew::steps() const noexcept { return state.steps; }
std::uint32_t crew::switches() const noexcept { return state.switches; }
bool crew::diverged() const noexcept {
  return state.diverged || state.cursor != state.how.listed_count;
}
const decision& crew::at(std::uint32_t step) const noexcept { return state.decisions[step]; }
void crew::describe(const char* program) noexcept { state.program = program; }

std::string crew::choices() const {
  std::string out;
  for (std::uint32_t step = 0; step < state.steps; ++step) {
    const decision& made = state.decisions[step];
    if (made.chosen == usual_choice(made)) continue;
    char text[32];
    std::snprintf(text, sizeof text, "%s%u:%u", out.empty() ? "" : " ", step, made.chosen);
    out += text;
  }
  return out;
}

// ---- all of them -------------------------------------------------------------------------------

enumeration::~enumeration() { std::free(listed_); }

plan enumeration::next() const noexcept {
  plan out;
  out.how = strategy::listed;
  out.listed = listed_;
  out.listed_count = listed_count_;
  out.at_unlocks = false;
  return out;
}

namespace {

// The next thread to try at a decision, in the order usual, then the others by number; else
// no_thread.
std::uint32_t alternative(const decision& made) noexcept {
  const std::uint32_t usual = usual_choice(made);
  const std::uint32_t from = made.chosen == usual ? 0 : made.chosen + 1U;
  for (std::uint32_t thread = from; thread < threads_max; ++thread)
    if (thread != usual && ((made.runnable >> thread) & 1U) != 0) return thread;
  return no_thread;
}

bool is_preemption(const decision& made) noexcept {
  return usual_choice(made) == made.before && made.chosen != made.before;
}

}  // namespace

bool enumeration::advance(const crew& played) noexcept {
  ++count_;
  if (listed_ == nullptr) listed_ = static_cast<choice*>(std::calloc(steps_max, sizeof(choice)));
  if (listed_ == nullptr) std::abort();
  std::uint32_t preemptions = 0;
  std::uint32_t turn = steps_max;
  for (std::uint32_t step = 0; step < played.steps(); ++step) {
    const decision& made = played.at(step);
    const bool may = usual_choice(made) != made.before || preemptions < preemptions_max_;
    if (may && alternative(made) != no_thread) turn = step;
    if (is_preemption(made)) ++preemptions;
  }
  if (turn == steps_max) return false;
  listed_count_ = 0;
  for (std::uint32_t step = 0; step < turn; ++step) {
    const decision& made = played.at(step);
    if (made.chosen != usual_choice(made)) listed_[listed_count_++] = {step, made.chosen};
  }
  listed_[listed_count_++] = {turn, alternative(played.at(turn))};
  return true;
}

// ---- what the threads call ---------------------------------------------------------------------

void reach(event what, const void* object) noexcept {
  if (self == no_thread) return;
  const std::uint32_t thread = self;
  worker& entry = state.workers[thread];
  const bool unlocks = what == event::unlock || what == event::unlock_shared;
  if (unlocks) give_back(thread, what, object);
  if (unlocks && !state.how.at_unlocks) return;
  entry.wants = what;
  entry.object = object;
  const std::uint32_t next = choose();
  if (next != thread) {
    state.current = next;
    let_go(state.workers[next].turn);
    wait_for_turn(thread);
  }
  state.current = thread;
  take(thread);
  entry.wants = event::begin;
  entry.object = nullptr;
}

void begin_unseen() noexcept {
  if (AnnotateIgnoreSyncBegin == nullptr) return;
  AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  AnnotateIgnoreSyncBegin(__FILE__, __LINE__);
}

void end_unseen() noexcept {
  if (AnnotateIgnoreSyncEnd == nullptr) return;
  AnnotateIgnoreSyncEnd(__FILE__, __LINE__);
  AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
  AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
}

}  // namespace schedule

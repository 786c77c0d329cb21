// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// What the programs for several threads have in common: numbers from a seed, and how a schedule is
// chosen for the n-th of many.
#pragma once

#include "../support/scheduler.h"

/// Equal seeds, equal numbers, on every machine.
class number_source {
 public:
  explicit number_source(std::uint64_t seed) : state_(seed * 0xD1342543DE82EF95U + 1) {}
  [[nodiscard]] std::uint64_t next() {
    state_ += 0x9E3779B97F4A7C15U;
    std::uint64_t value = state_;
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9U;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBU;
    return value ^ (value >> 31);
  }
  [[nodiscard]] std::uint64_t below(std::uint64_t limit) { return next() % limit; }
  [[nodiscard]] bool one_in(std::uint64_t count) { return below(count) == 0; }

 private:
  std::uint64_t state_;
};

/// Each program is played under this many schedules.
inline constexpr std::uint64_t schedules_of_program = 4;

[[nodiscard]] inline schedule::plan plan_of(std::uint64_t number) {
  schedule::plan out;
  out.how = number % 3 == 0 ? schedule::strategy::walk : schedule::strategy::priorities;
  out.seed = number;
  return out;
}

/// Runs the threads of `program`, which has thread_count() and run_thread(index), and returns what
/// is wrong afterwards: nullptr, or what its finish() says.
template <class Program>
[[nodiscard]] const char* play(schedule::crew& crew, Program& program, const schedule::plan& how) {
  struct part {
    Program* whole = nullptr;
    std::size_t thread = 0;
  };
  std::array<part, schedule::threads_max> parts{};
  std::array<schedule::body, schedule::threads_max> bodies{};
  for (std::size_t thread = 0; thread < program.thread_count(); ++thread) {
    parts[thread] = {&program, thread};
    bodies[thread].context = &parts[thread];
    bodies[thread].run = [](void* context) {
      const part& own = *static_cast<const part*>(context);
      own.whole->run_thread(own.thread);
    };
  }
  crew.play(bodies.data(), static_cast<std::uint32_t>(program.thread_count()), how);
  return program.finish();
}

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// schedule_threads pool|pool_unordered|manager COUNT [--first N] [--choices LIST]: plays COUNT
// schedules of programs of two and three threads over one pool or one manager, and says what the
// first bad one was. pool_unordered is pool with frees after everything. The N-th schedule is the
// same in every run; --choices plays a listed one of its program. Ends with 1 where a schedule
// went wrong, with 86 where one did not end.

#include "program.h"

#include "manager_program.hpp"
#include "pool_program.hpp"

namespace {

struct order {
  const char* kind = "pool";
  std::uint64_t count = 0;
  std::uint64_t first = 0;
  std::vector<schedule::choice> listed{};
  bool is_listed = false;
};

struct totals {
  std::uint64_t played = 0;
  std::uint64_t steps = 0;
  std::uint64_t switches = 0;
};

std::vector<schedule::choice> parse_choices(const char* text) {
  std::vector<schedule::choice> out;
  while (*text != '\0') {
    char* end = nullptr;
    schedule::choice next;
    next.step = static_cast<std::uint32_t>(std::strtoul(text, &end, 10));
    if (*end != ':') break;
    next.thread = static_cast<std::uint32_t>(std::strtoul(end + 1, &end, 10));
    out.push_back(next);
    text = end;
    while (*text == ' ') ++text;
  }
  return out;
}

schedule::plan plan_for(const order& what, std::uint64_t number) {
  schedule::plan how = plan_of(number);
  if (!what.is_listed) return how;
  how.how = schedule::strategy::listed;
  how.listed = what.listed.data();
  how.listed_count = static_cast<std::uint32_t>(what.listed.size());
  return how;
}

template <class Program>
int play_all(const order& what) {
  schedule::crew crew;
  const observed_locks observed;
  totals done;
  const auto start = std::chrono::steady_clock::now();
  for (std::uint64_t number = what.first; number < what.first + what.count; ++number) {
    char name[96];
    std::snprintf(name, sizeof name, "schedule_threads %s 1 --first %llu", what.kind,
                  static_cast<unsigned long long>(number));
    crew.describe(name);
    Program program(number / schedules_of_program);
    const char* const wrong = play(crew, program, plan_for(what, number));
    ++done.played;
    done.steps += crew.steps();
    done.switches += crew.switches();
    if (wrong == nullptr) continue;
    std::printf("%s: %s (%s)\n  after %llu schedules; --choices \"%s\"\n", name, wrong,
                program.detail().c_str(), static_cast<unsigned long long>(done.played),
                crew.choices().c_str());
    return 1;
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  const auto played = static_cast<double>(done.played);
  std::printf("%s: %llu schedules, %.0f a second, %.1f steps and %.1f switches each, all good\n",
              what.kind, static_cast<unsigned long long>(done.played), played / took.count(),
              static_cast<double>(done.steps) / played,
              static_cast<double>(done.switches) / played);
  return 0;
}

}  // namespace

int main(int count, char** words) {
  order what;
  if (count >= 3) {
    what.kind = words[1];
    what.count = std::strtoull(words[2], nullptr, 10);
  }
  for (int at = 3; at + 1 < count; at += 2) {
    if (std::strcmp(words[at], "--first") == 0)
      what.first = std::strtoull(words[at + 1], nullptr, 10);
    if (std::strcmp(words[at], "--choices") == 0) {
      what.listed = parse_choices(words[at + 1]);
      what.is_listed = true;
    }
  }
  if (what.count == 0) {
    std::fputs(
        "usage: schedule_threads pool|pool_unordered|manager COUNT [--first N] [--choices LIST]\n",
        stderr);
    return 2;
  }
  if (std::strcmp(what.kind, "manager") == 0) return play_all<manager_program>(what);
  if (std::strcmp(what.kind, "pool_unordered") == 0) return play_all<pool_unordered_program>(what);
  return play_all<pool_program>(what);
}

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Every schedule of two threads over a world that is made anew for each. It imports what it uses,
// so it is the last include except others with imports.
#pragma once

#include "../support/scheduler.hpp"
#include "../support/test.h"

template <class World>
std::unique_ptr<World> anew() {
  return std::make_unique<World>();
}

/// A world has end(), which is true where nothing went wrong. `after` runs before it.
template <class World>
struct pair_of {
  const char* name = "";
  std::function<std::unique_ptr<World>()> make{};
  std::function<void(World&)> first{};
  std::function<void(World&)> second{};
  std::function<void(World&)> after = [](World&) {};
  std::uint32_t preemptions_max = 2;
};

// VMM_TEST_PREEMPTIONS_MAX, if set, bounds them: ThreadSanitizer finds two accesses without an
// order in any schedule that has both.
[[nodiscard]] inline std::uint32_t bounded_preemptions(std::uint32_t preemptions_max) {
  const char* const text = std::getenv("VMM_TEST_PREEMPTIONS_MAX");
  if (text == nullptr) return preemptions_max;
  return std::min(preemptions_max, static_cast<std::uint32_t>(std::strtoul(text, nullptr, 10)));
}

/// Plays all schedules, or up to the first that is bad. Returns their count.
template <class World>
std::uint64_t play_every_schedule(const pair_of<World>& what) {
  schedule::crew crew;
  crew.describe(what.name);
  const observed_locks observed;
  schedule::enumeration all(bounded_preemptions(what.preemptions_max));
  bool good = true;
  do {
    const std::unique_ptr<World> world = what.make();
    struct job {
      const std::function<void(World&)>* run;
      World* world;
    };
    std::array<job, 2> jobs{{{&what.first, world.get()}, {&what.second, world.get()}}};
    std::array<schedule::body, 2> bodies{};
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      bodies[i].context = &jobs[i];
      bodies[i].run = [](void* context) {
        const job& own = *static_cast<const job*>(context);
        (*own.run)(*own.world);
      };
    }
    crew.play(bodies.data(), 2, all.next());
    what.after(*world);
    good = world->end() && !testing::Test::HasFailure();
    if (!good) {
      ADD_FAILURE() << what.name << ": schedule " << all.count() + 1 << ", choices "
                    << crew.choices();
    }
  } while (good && all.advance(crew));
  testing::Test::RecordProperty("schedules", std::to_string(all.count()));
  std::printf("%s: %s%llu schedules\n", what.name, good ? "all " : "bad after ",
              static_cast<unsigned long long>(all.count() + (good ? 0 : 1)));
  return all.count();
}

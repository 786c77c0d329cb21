// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: two allocators of one device that are short at once, and one that is destroyed while the
// other trims it, stop no thread in any schedule.
// Method: every schedule of the two threads with one preemption at most, on a device that neither
// allocator can fill without what the other one retains.
#include "../support/scheduler.hpp"
#include "../support/test.h"

import vmm.manager;
import vmm.stream;

namespace {

constexpr auto stream = vmm::stream_handle::default_stream;

vmm::fake::profile small_device() {
  vmm::fake::profile plays = vmm::fake::profile::cuda();
  plays.device_memory_bytes = 16 * MiB;
  return plays;
}

// Two pools and a manager, each of which retains 4 MiB unused; made anew for each schedule.
struct world {
  world() : driver(small_device()) {
    vmm::pool_options options;
    options.reservation_bytes = 256 * MiB;
    options.policy.handle_bytes_max = 4 * MiB;
    options.policy.tuning.growth_share = 0;
    options.policy.headroom = 0;
    one = std::make_unique<vmm::stream_pool>(driver, options);
    other = std::make_unique<vmm::stream_pool>(driver, options);
    blocks = std::make_unique<vmm::manager>(driver);
    for (vmm::stream_pool* each : {one.get(), other.get()}) {
      const auto at = each->allocate(4 * MiB, stream);
      EXPECT_TRUE(at && each->free(*at, stream));
    }
    const auto at = blocks->allocate(4 * MiB);
    EXPECT_TRUE(at && blocks->free(*at));
  }
  void use(vmm::stream_pool& pool) {
    const auto at = pool.allocate(10 * MiB, stream);
    if (at) EXPECT_TRUE(pool.free(*at, stream));
    if (at) is_served.store(true, std::memory_order_relaxed);
  }
  void use(vmm::manager& of) {
    const auto at = of.allocate(10 * MiB);
    if (at) EXPECT_TRUE(of.free(*at));
    if (at) is_served.store(true, std::memory_order_relaxed);
  }
  [[nodiscard]] bool end() {
    for (vmm::stream_pool* each : {one.get(), other.get()})
      if (each != nullptr) EXPECT_TRUE(each->validate());
    one.reset();
    other.reset();
    EXPECT_TRUE(blocks->validate());
    blocks.reset();
    EXPECT_TRUE(driver.check_empty());
    return driver.misuse_count() == 0;
  }

  scheduled_driver driver;
  std::unique_ptr<vmm::stream_pool> one;
  std::unique_ptr<vmm::stream_pool> other;
  std::unique_ptr<vmm::manager> blocks;
  std::atomic<bool> is_served = false;  // no step of a schedule
};

using part = std::function<void(world&)>;

void play_all(const char* name, const part& first, const part& second) {
  schedule::crew crew;
  crew.describe(name);
  const observed_locks observed;
  schedule::enumeration all(1);
  bool good = true;
  std::uint64_t served_count = 0;
  do {
    world in;
    struct job {
      const part* run;
      world* in;
    };
    std::array<job, 2> jobs{{{&first, &in}, {&second, &in}}};
    std::array<schedule::body, 2> bodies{};
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      bodies[i].context = &jobs[i];
      bodies[i].run = [](void* context) {
        const job& own = *static_cast<const job*>(context);
        (*own.run)(*own.in);
      };
    }
    crew.play(bodies.data(), 2, all.next());
    served_count += in.is_served.load(std::memory_order_relaxed) ? 1 : 0;
    good = in.end() && !testing::Test::HasFailure();
    if (!good)
      ADD_FAILURE() << name << ": schedule " << all.count() + 1 << ", choices " << crew.choices();
  } while (good && all.advance(crew));
  EXPECT_GT(served_count, all.count() / 2) << "others give what is missing, in most schedules";
  std::printf("%s: %s%llu schedules\n", name, good ? "all " : "bad after ",
              static_cast<unsigned long long>(all.count() + (good ? 0 : 1)));
}

TEST(ReliefThreads, TwoPoolsAreShortAtOnce) {
  play_all("two pools", [](world& in) { in.use(*in.one); }, [](world& in) { in.use(*in.other); });
}

TEST(ReliefThreads, APoolAndAManagerAreShortAtOnce) {
  play_all(
      "a pool and a manager", [](world& in) { in.use(*in.one); },
      [](world& in) { in.use(*in.blocks); });
}

TEST(ReliefThreads, APoolIsDestroyedWhileItIsTrimmed) {
  play_all(
      "a pool that goes", [](world& in) { in.use(*in.one); }, [](world& in) { in.other.reset(); });
}

}  // namespace

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: two allocators of one device that are short at once, and one that is destroyed while the
// other trims it, stop no thread in any schedule.
// Method: every schedule of the two threads with one preemption at most, on a device that neither
// allocator can fill without what the other one retains.
#include "pairs.h"

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
  std::uint64_t served_count = 0;
  pair_of<world> all{
      .name = name, .make = anew<world>, .first = first, .second = second, .preemptions_max = 1};
  all.after = [&served_count](world& in) {
    served_count += in.is_served.load(std::memory_order_relaxed) ? 1 : 0;
  };
  const std::uint64_t count = play_every_schedule(all);
  EXPECT_GT(served_count, count / 2) << "others give what is missing, in most schedules";
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

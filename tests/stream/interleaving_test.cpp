// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: threads that meet inside a pool neither name a stream that is gone to the driver nor lock
// each other out. Method: a driver that stops one thread inside a call until another thread has
// reached a chosen point; latches order both, and an alarm ends a child process that hangs.
#include <chrono>
#include <condition_variable>

#include "fake_pool.hpp"

namespace {

using vmm::address, vmm::stream_handle;

/// A fake driver that runs a function once before it serves a call.
class stopping_driver : public vmm::fake_driver {
 public:
  using fake_driver::fake_driver;
  std::function<void()> before_create{};
  std::function<void()> before_query_capture{};
  std::function<void(int)> before_synchronize{};  // with the number of the call, from 1 on

  [[nodiscard]] vmm::result<vmm::physical_handle> create(const vmm::physical_request& request) {
    if (auto stop = std::exchange(before_create, nullptr)) stop();
    return fake_driver::create(request);
  }
  [[nodiscard]] vmm::result<vmm::capture_info> query_capture(stream_handle stream) {
    if (auto stop = std::exchange(before_query_capture, nullptr)) stop();
    return fake_driver::query_capture(stream);
  }
  [[nodiscard]] vmm::status synchronize_event(vmm::event_handle event) {
    if (before_synchronize) before_synchronize(synchronize_count.fetch_add(1) + 1);
    return fake_driver::synchronize_event(event);
  }

 private:
  std::atomic<int> synchronize_count = 0;
};
static_assert(vmm::stream_backend<stopping_driver>);
static_assert(vmm::capture_backend<stopping_driver>);

/// Set once; waited for by any thread.
class flag {
 public:
  void set() {
    const std::lock_guard lock(mutex_);
    is_set_ = true;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return is_set_; });
  }
  /// False when it was not set within the time.
  bool wait_at_most(std::chrono::milliseconds time) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, time, [this] { return is_set_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_set_ = false;
};

using pool = vmm::stream_pool;

vmm::pool_options moving() {
  vmm::pool_options options;
  options.policy.handle_bytes_max = 2 * MiB;
  options.policy.headroom = 0;
  options.policy.tuning.slack_bytes = 0;
  options.policy.tuning.min_move_share = 0;
  options.policy.tuning.growth_share = 0;
  options.streams_forgotten = true;  // an event of each stream
  return options;
}

// A growth has planned to wait for a forgotten stream; another thread finds meanwhile that all of
// that stream's work has finished, and its mark goes. No new mark may be made: the stream is gone.
TEST(Interleaving, AForgottenStreamThatPassesDuringAGrowthIsNotNamedAgain) {
  stopping_driver driver{vmm::fake::profile::cuda()};
  const stream_handle a = *driver.create_stream();
  const stream_handle b = *driver.create_stream();
  const stream_handle c = *driver.create_stream();
  flag first_wait;
  flag may_finish;
  flag second_wait;
  flag may_end;
  {
    pool managed(driver, moving());
    const address of_a = *managed.allocate(8 * MiB, a);
    const address of_b = *managed.allocate(2 * MiB, b);
    const vmm::address_range written{of_a, 8 * MiB};
    vmm::fake::kernel work{"writer", 1e6};
    work.writes = {&written, 1};
    ASSERT_TRUE(driver.launch(a, work));
    ASSERT_TRUE(driver.launch(b, {"other", 2e6}));
    ASSERT_TRUE(managed.free(of_b, b));
    ASSERT_TRUE(managed.free(of_a, a));  // the newest of all: no later mark covers it

    driver.before_synchronize = [&](int number) {
      if (number == 1) {
        first_wait.set();
        may_finish.wait();
      } else if (number == 2) {
        second_wait.set();
        may_end.wait();
      }
    };
    std::thread waits([&] { EXPECT_TRUE(managed.synchronize()); });
    first_wait.wait();
    ASSERT_TRUE(managed.forget(a));
    ASSERT_TRUE(driver.destroy_stream(a));
    driver.before_create = [&] {
      may_finish.set();
      second_wait.wait();  // the first stream's point is noted as passed by then
    };
    const auto grown = managed.allocate(16 * MiB, c);
    EXPECT_TRUE(grown) << (grown ? "" : vmm::describe(grown.error()));
    may_finish.set();
    may_end.set();
    waits.join();
    if (grown) EXPECT_TRUE(managed.free(*grown, c));
    EXPECT_TRUE(managed.validate());
  }
  for (const stream_handle each : {b, c}) EXPECT_TRUE(driver.destroy_stream(each));
  for (const auto& misuse : driver.misuses()) ADD_FAILURE() << misuse.detail;
}

// Goal of its own under ThreadSanitizer: streams that free() adds while another thread grows and
// queries all streams.
TEST(Interleaving, StreamsComeWhileAnotherThreadGrows) {
  constexpr int rounds = 40;
  constexpr int stream_count = 8;
  stopping_driver driver{vmm::fake::profile::cuda()};
  pool managed(driver, moving());
  std::vector<address> blocks;
  std::vector<stream_handle> streams;
  for (int i = 0; i < rounds * stream_count; ++i) {
    blocks.push_back(*managed.allocate(512, stream_handle::default_stream));
    if (i < rounds) streams.push_back(*driver.create_stream());
  }
  std::thread frees([&] {
    for (int i = 0; i < rounds; ++i) {
      const auto index = static_cast<std::size_t>(i);
      EXPECT_TRUE(managed.free(blocks[index], streams[index]));
    }
  });
  for (int i = 0; i < rounds; ++i) {
    const auto at = *managed.allocate(4 * MiB, stream_handle::default_stream);
    ASSERT_TRUE(managed.free(at, stream_handle::default_stream));
    (void)managed.trim(0);
  }
  frees.join();
  EXPECT_TRUE(managed.validate());
}

/// Takes no note of anything.
struct silent_observer final : vmm::block_observer {
  void reserved(vmm::address_range) noexcept override {}
  void unreserved(vmm::address_range) noexcept override {}
  void mapped(vmm::address_range) noexcept override {}
  void unmapped(vmm::address_range) noexcept override {}
  void allocated(vmm::address_range) noexcept override {}
  void freed(address) noexcept override {}
};

struct freeing_listener final : vmm::remap_listener {
  freeing_listener(stream_handle on, flag& set_inside) : stream(on), inside(&set_inside) {}
  void before_change(const vmm::remap_notice&) noexcept override {
    if (!to_free) return;
    inside->set();
    EXPECT_TRUE(managed->free(std::exchange(to_free, {}), stream));
  }
  pool* managed = nullptr;
  address to_free{};
  stream_handle stream;
  flag* inside;
};

// One thread allocates: inside, it has what a watched allocation locks first. Another one trims,
// and its remap callback frees. Runs to its end or hangs.
void allocate_beside_a_trim_that_frees() {
  stopping_driver driver{vmm::fake::profile::cuda()};
  const stream_handle a = *driver.create_stream();
  silent_observer observer;
  vmm::pool_options options = moving();
  options.observer = &observer;
  flag callback_runs;
  freeing_listener listener(a, callback_runs);  // called to the pool's end
  pool managed(driver, options);
  listener.managed = &managed;
  listener.to_free = *managed.allocate(4096, a);
  const address idle = *managed.allocate(8 * MiB, a);
  if (!managed.free(idle, a)) std::abort();
  if (!managed.remaps().subscribe(listener)) std::abort();
  std::thread trims;
  driver.before_query_capture = [&] {
    trims = std::thread([&] { (void)managed.trim(0); });
    // With the locks in order the trim waits for this thread, and the time runs out.
    (void)callback_runs.wait_at_most(std::chrono::milliseconds(500));
  };
  const auto at = managed.allocate(32 * MiB, a);
  if (!at) std::abort();
  trims.join();
  if (!managed.free(*at, a)) std::abort();
  if (!managed.validate()) std::abort();
}

TEST(InterleavingDeathTest, AWatchedAllocationAndATrimThatFreesEnd) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        ::alarm(30);
        allocate_beside_a_trim_that_frees();
        std::_Exit(0);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a forked child is refused every call of its parent's managers, pools and vectors, and may
// destroy its copies in any order without a trace: the parent's bytes, resource counts and accounts
// are as they were.
// Method: programs of a few calls, with a fork after each. Each child makes every call there is,
// destroys what it has in one of several orders, and exits; the parent compares and goes on.
#include "child.hpp"
#include "grounds.hpp"

import vmm.containers;
import vmm.manager;
import vmm.stream;

namespace {

using process_test::expect, process_test::expect_good_child, process_test::expect_refused;

constexpr auto stream = vmm::stream_handle::default_stream;

template <class Manager>
void use_manager(Manager& managed, vmm::address at) {
  expect_refused(managed.set_up(), "set_up");
  expect_refused(managed.allocate(MiB), "allocate");
  expect_refused(managed.free(at), "free");
  expect_refused(managed.free(at, stream), "free behind a stream");
  expect_refused(managed.free_idle(at), "free_idle");
  expect_refused(managed.resize({.at = at, .size_bytes = 64 * MiB}), "resize");
  expect_refused(managed.copy({at, at + MiB, MiB, stream}), "copy");
  expect_refused(managed.copy({at, at + MiB, MiB, stream}, vmm::copy_mode::move), "move");
  expect_refused(managed.find(at), "find");
  expect_refused(managed.extents(), "extents");
  expect(managed.trim(0).failure.code == vmm::errc::not_permitted, "drain succeeded");
  expect(managed.statistics().live_count == 0, "statistics of the parent's");
  expect_refused(managed.validate(), "validate");
}

struct silent_listener final : vmm::remap_listener {
  void before_change(const vmm::remap_notice&) noexcept override {}
};

template <class Pool>
void use_pool(Pool& pool, vmm::address at) {
  silent_listener listener;
  expect_refused(pool.set_up(), "set_up");
  expect_refused(pool.allocate(MiB, stream), "allocate");
  expect_refused(pool.free(at, stream), "free");
  expect_refused(pool.pin(at), "pin");
  expect_refused(pool.unpin(at), "unpin");
  expect_refused(pool.remaps().subscribe(listener), "subscribe");
  expect_refused(pool.remaps().unsubscribe(vmm::remap_subscription{1}), "unsubscribe");
  expect_refused(pool.forget(stream), "forget");
  expect_refused(pool.captures().release(1, stream), "release of a capture");
  expect_refused(pool.synchronize(), "synchronize");
  expect(pool.trim(0).failure.code == vmm::errc::not_permitted, "trim succeeded");
  expect(pool.statistics().live_bytes == 0, "statistics of the parent's");
  expect_refused(pool.regions(), "regions");
  expect(pool.last_shortage().request_bytes == 0, "a shortage of the parent's");
  expect_refused(pool.validate(), "validate");
}

template <class Ground>
struct Forked : testing::Test {
  using driver_type = typename Ground::driver;
  void SetUp() override {
    Ground::reset();
    driver = Ground::open();
  }

  // `use` is what the child does with the owner; then it destroys both, in both orders.
  template <class Owner, class Use>
  void fork_here(std::unique_ptr<Owner>& owner, const std::string& where, Use&& use) {
    const auto before = Ground::count(*driver);
    for (const bool owner_first : {true, false}) {
      expect_good_child(where, [&] {
        use();
        if (owner_first) owner.reset();
        driver.reset();
        owner.reset();
      });
      EXPECT_TRUE(process_test::is_same(before, Ground::count(*driver))) << where;
    }
    check_bytes(where);
  }

  // A block of the test's own whose bytes must not change while it lives.
  void fill(vmm::address at, std::uint64_t size_bytes) {
    filled = at;
    pattern.assign(size_bytes, std::byte{0x3c});
    ASSERT_TRUE(driver->write(at, pattern));
  }
  void check_bytes(const std::string& where) {
    if (pattern.empty()) return;
    std::vector<std::byte> now(pattern.size());
    ASSERT_TRUE(driver->read(now, filled)) << where;
    EXPECT_EQ(now, pattern) << where;
  }

  std::unique_ptr<driver_type> driver;
  vmm::address filled{};
  std::vector<std::byte> pattern;
};

template <class Ground>
struct ForkedManager : Forked<Ground> {
  void fork_here(const std::string& where) {
    Forked<Ground>::fork_here(managed, where, [this] { use_manager(*managed, at); });
    if (managed != nullptr) EXPECT_TRUE(managed->validate()) << where;
  }
  std::unique_ptr<vmm::manager> managed;
  vmm::address at{0x10000000};
};
TYPED_TEST_SUITE(ForkedManager, process_test::mapped_grounds);

TYPED_TEST(ForkedManager, IsRefusedEverythingAfterEachCall) {
  for (const vmm::manager_policy& policy :
       {vmm::manager_policy::va_pool(), vmm::manager_policy::keep_mapped()}) {
    const vmm::manager_options options{{.reservation_bytes = GiB}, policy};
    this->managed = std::make_unique<vmm::manager>(*this->driver, options);
    auto& on = *this->managed;
    this->fork_here("not set up");
    ASSERT_TRUE(on.set_up());
    this->fork_here("set up");
    this->at = on.allocate(4 * MiB).value();
    this->fill(this->at, 4 * MiB);
    this->fork_here("allocate");
    const vmm::address other = on.allocate(4 * MiB).value();
    this->fork_here("allocate again");
    this->at = on.resize({.at = this->at, .size_bytes = 8 * MiB}).value();
    this->filled = this->at;
    this->fork_here("resize");
    ASSERT_TRUE(on.free(other));
    this->fork_here("free");
    const auto before = on.statistics();
    EXPECT_EQ(before.live_count, 1u);
    ASSERT_EQ(on.trim(0).failure.code, vmm::errc::none);
    this->fork_here("drain");
    EXPECT_EQ(on.statistics().live_count, 1u);
    this->pattern.clear();
    ASSERT_TRUE(on.free(this->at));
    this->managed.reset();
  }
}

template <class Ground>
struct ForkedPool : Forked<Ground> {
  void fork_here(const std::string& where) {
    Forked<Ground>::fork_here(managed, where, [this] { use_pool(*managed, at); });
    EXPECT_TRUE(managed->validate()) << where;
  }
  std::unique_ptr<vmm::stream_pool> managed;
  vmm::address at{0x10000000};
};
TYPED_TEST_SUITE(ForkedPool, process_test::grounds);

TYPED_TEST(ForkedPool, IsRefusedEverythingAfterEachCall) {
  vmm::pool_options options;
  options.reservation_bytes = std::uint64_t{64} << 20;  // a plain reservation is memory
  options.policy.handle_bytes_max = 4 * MiB;
  this->managed = std::make_unique<vmm::stream_pool>(*this->driver, options);
  auto& on = *this->managed;
  this->fork_here("not set up");
  ASSERT_TRUE(on.set_up());
  this->fork_here("set up");
  this->at = on.allocate(3 * MiB, stream).value();
  this->fill(this->at, 3 * MiB);
  this->fork_here("allocate");
  const vmm::address other = on.allocate(2 * MiB, stream).value();
  ASSERT_TRUE(on.pin(other));
  this->fork_here("pin");
  ASSERT_TRUE(on.free(other, stream));
  this->fork_here("free");
  ASSERT_TRUE(on.unpin(other));
  this->fork_here("unpin");
  const std::uint64_t live_bytes = on.statistics().live_bytes;
  ASSERT_EQ(on.trim(0).failure.code, vmm::errc::none);
  this->fork_here("trim");
  EXPECT_EQ(on.statistics().live_bytes, live_bytes);
  this->pattern.clear();
  ASSERT_TRUE(on.free(this->at, stream));
  ASSERT_TRUE(on.synchronize());
  this->fork_here("synchronize");
}

// ---- vectors -------------------------------------------------------------------------

int destroyed_count = 0;

// An element with a destructor that reads it: in a child its bytes are not there.
struct watched {
  explicit watched(int with = 0) : value(with) {}
  watched(const watched& other) = default;
  watched& operator=(const watched& other) = default;
  ~watched() { destroyed_count += value != -1 ? 1 : 0; }
  int value = 0;
};

template <class Vector>
void use_vector(Vector& values) {
  expect_refused(values.emplace_back(1), "emplace_back");
  expect_refused(values.resize(0), "resize to nothing");
  expect_refused(values.resize(2 * values.capacity()), "resize");
  expect_refused(values.reserve(1), "reserve what is there");
  expect_refused(values.reserve(2 * values.capacity()), "reserve");
  expect_refused(values.shrink_to_fit(), "shrink_to_fit");
  Vector moved = std::move(values);
  expect_refused(moved.emplace_back(1), "emplace_back to a moved vector");
  moved.pop_back();
  moved.clear();
  values = std::move(moved);
  expect_refused(values.emplace_back(1), "emplace_back to one moved back");
}

TEST(ForkedVector, ReachesNoElementOfTheParents) {
  auto driver = std::make_optional(vmm::host_driver::open().value());
  auto managed = std::make_unique<vmm::manager>(*driver);
  {
    auto values = std::make_optional<vmm::vector<watched>>(*managed);
    auto numbers = std::make_optional<vmm::vector<int>>(*managed);
    for (int i = 0; i < 1000; ++i) {
      ASSERT_TRUE(values->emplace_back(i));
      ASSERT_TRUE(numbers->emplace_back(i));
    }
    for (const bool manager_first : {false, true}) {
      expect_good_child("a vector", [&] {
        destroyed_count = 0;
        use_vector(*values);
        use_vector(*numbers);
        std::array<int, 4> some{};
        expect_refused(numbers->read(0, some), "read");
        if (manager_first) {
          managed.reset();
          driver.reset();
        }
        values.reset();
        numbers.reset();
        managed.reset();
        driver.reset();
        expect(destroyed_count <= 8, "elements of the parent's were destroyed");
      });
    }
    for (int i = 0; i < 1000; ++i) {
      EXPECT_EQ((*values)[static_cast<std::uint64_t>(i)].value, i);
      EXPECT_EQ((*numbers)[static_cast<std::uint64_t>(i)], i);
    }
    ASSERT_TRUE(values->emplace_back(1000));
  }
  managed.reset();
  EXPECT_TRUE(driver->resource_counts().empty());
}

// More than fit into one block of those that listen for forks, and places that were taken before.
TEST(ForkedPools, AreAllRefusedHoweverManyThereAre) {
  constexpr std::size_t pool_count = 80;
  vmm::fake_driver driver;
  const vmm::pool_options options{{.reservation_bytes = 64 * MiB}};
  std::vector<std::unique_ptr<vmm::stream_pool>> pools(pool_count);
  for (const std::size_t step : {std::size_t{1}, std::size_t{3}}) {
    for (std::size_t i = 0; i < pool_count; i += step) {
      pools[i] = std::make_unique<vmm::stream_pool>(driver, options);
      ASSERT_TRUE(pools[i]->set_up());
    }
  }
  expect_good_child("many pools", [&] {
    for (auto& pool : pools) expect_refused(pool->allocate(MiB, stream), "a pool");
    pools.clear();
  });
  for (auto& pool : pools) {
    const auto at = *pool->allocate(MiB, stream);
    EXPECT_TRUE(pool->free(at, stream));
  }
}

// What a program does that forks workers: each with a driver, a manager and a pool of its own.
TYPED_TEST(ForkedPool, TheChildsOwnWorks) {
  const vmm::pool_options options{{.reservation_bytes = 64 * MiB}};
  this->managed = std::make_unique<vmm::stream_pool>(*this->driver, options);
  this->at = this->managed->allocate(3 * MiB, stream).value();
  this->fill(this->at, 3 * MiB);
  expect_good_child("a worker", [&] {
    TypeParam::reset();
    auto own_driver = TypeParam::open();
    vmm::stream_pool own(*own_driver, options);
    for (int round = 0; round < 3; ++round) {
      const auto block = own.allocate(5 * MiB, stream);
      expect(block.has_value(), "allocate from the child's own");
      const std::vector<std::byte> bytes(5 * MiB, std::byte{1});
      expect(own_driver->write(*block, bytes).has_value(), "write to the child's own");
      expect_refused(this->managed->allocate(MiB, stream), "the parent's");
      expect(own.free(*block, stream).has_value(), "free to the child's own");
    }
    expect(own.validate().has_value(), "the child's own is valid");
    this->managed.reset();
  });
  this->check_bytes("after a worker");
  EXPECT_TRUE(this->managed->free(this->at, stream));
}

}  // namespace

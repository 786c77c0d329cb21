// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a pool's block of whole mappings has rights of its own, through suspension and whatever is
// given to all; freed, its memory serves nobody before its work has finished and the rights are
// gone; no other block has any of them, ever. [I2]
// Method: a fake machine of three devices, kernels that are late, and random programs of two
// streams beside a model, with driver faults at random calls; the driver is asked at every granule.
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "../support/fake_fixture.h"

import vmm.backend;
import vmm.fake;
import vmm.stream;
import vmm.suspend;

namespace {

using sizes::MiB;
using vmm::access;
using vmm::address;
using vmm::device;
using vmm::errc;

constexpr std::uint64_t granule = 2 * MiB;
constexpr vmm::access_grant reads{device(1), access::read};
constexpr std::array rights{access::none, access::read, access::read_write};

vmm::fake::profile three_devices() {
  vmm::fake::profile made = vmm::fake::profile::cuda();
  made.device_count = 3;
  made.device_memory_bytes = 512 * MiB;
  return made;
}

class PoolRights : public testing::Test {
 protected:
  void TearDown() override {
    EXPECT_TRUE(driver.finish_all());
    EXPECT_TRUE(pool->validate());
    EXPECT_TRUE(pool->forget(stream));
    pool.reset();
    EXPECT_TRUE(driver.destroy_stream(stream));
    EXPECT_EQ(driver.misuse_count(), 0u);
    EXPECT_TRUE(driver.check_empty()) << driver.report();
  }
  access of(address at, vmm::location who = device(1)) { return *driver.get_access(at, who); }

  vmm::fake_driver driver{three_devices()};
  vmm::stream_handle stream = *driver.create_stream();
  std::unique_ptr<vmm::stream_pool> pool = std::make_unique<vmm::stream_pool>(driver);
};

TEST_F(PoolRights, AreOfABlockOfWholeMappingsOnly) {
  const address small = *pool->allocate(600, stream);
  const address large = *pool->allocate(40 * MiB + 512, stream);
  const address whole = *pool->allocate_whole(5 * MiB, stream);
  for (const address each : {small, large})
    EXPECT_EQ(pool->set_access(each, {&reads, 1}).error().code, errc::not_supported);
  EXPECT_EQ(pool->set_access(whole + 512, {&reads, 1}).error().code, errc::invalid_argument);
  EXPECT_EQ(pool->set_access(whole, {}).error().code, errc::invalid_argument);
  const vmm::access_grant home{device(0), access::read};
  EXPECT_EQ(pool->set_access(whole, {&home, 1}).error().code, errc::invalid_argument);
  const vmm::access_grant nobody{device(9), access::read};
  EXPECT_FALSE(pool->set_access(whole, {&nobody, 1}));
  EXPECT_EQ(of(whole), access::none);

  const vmm::access_grant two[] = {{device(1), access::read}, {device(2), access::read_write}};
  ASSERT_TRUE(pool->set_access(whole, two)) << "several devices in one call";
  for (std::uint64_t at = 0; at < 6 * MiB; at += granule) {
    EXPECT_EQ(of(whole + at), access::read);
    EXPECT_EQ(of(whole + at, device(2)), access::read_write);
  }
  EXPECT_EQ(of(small), access::none);
  EXPECT_EQ(of(large), access::none);
  for (const address each : {small, large, whole}) ASSERT_TRUE(pool->free(each, stream));
}

TEST_F(PoolRights, OverruleThoseOfAll) {
  const address whole = *pool->allocate_whole(4 * MiB, stream);
  const address plain = *pool->allocate(4 * MiB, stream);
  ASSERT_TRUE(pool->set_access(whole, {&reads, 1}));
  const vmm::access_grant all[] = {{device(1), access::read_write}, {device(2), access::read}};
  ASSERT_TRUE(pool->set_peers(all));
  EXPECT_EQ(of(whole), access::read);
  EXPECT_EQ(of(whole, device(2)), access::read) << "what is not its own is that of all";
  EXPECT_EQ(of(plain), access::read_write);
  const vmm::access_grant none{device(1), access::none};
  ASSERT_TRUE(pool->set_access(whole, {&none, 1}));
  EXPECT_EQ(of(whole), access::none);
  ASSERT_TRUE(pool->free(whole, stream));
  ASSERT_TRUE(driver.finish_all());
  (void)pool->trim(~std::uint64_t{0});
  EXPECT_EQ(of(whole), access::read_write) << "it is plain memory of the pool again";
  ASSERT_TRUE(pool->free(plain, stream));
}

// What a peer may still be reading is neither taken from it nor handed to the next.
TEST_F(PoolRights, GoWhenTheBlocksWorkHasFinished) {
  driver.set_manual(true);
  const address whole = *pool->allocate_whole(64 * MiB, stream);
  ASSERT_TRUE(pool->set_access(whole, {&reads, 1}));
  const vmm::address_range range{whole, 64 * MiB};
  ASSERT_TRUE(driver.launch(stream, {.where = device(1), .reads = {&range, 1}}));
  ASSERT_TRUE(pool->free(whole, stream));
  EXPECT_EQ(pool->free(whole, stream).error().code, errc::not_allocated);
  std::vector<address> others;
  for (int i = 0; i < 3; ++i) others.push_back(*pool->allocate(64 * MiB, stream));
  for (const address each : others) {
    EXPECT_NE(each, whole);
    EXPECT_EQ(of(each), access::none);
  }
  EXPECT_EQ(of(whole), access::read) << "its work goes on";
  ASSERT_TRUE(driver.finish_all());
  (void)pool->trim(~std::uint64_t{0});
  EXPECT_EQ(of(whole), access::none);
  const address again = *pool->allocate(64 * MiB, stream);
  EXPECT_EQ(again, whole) << "free for its stream";
  for (const address each : others) ASSERT_TRUE(pool->free(each, stream));
  ASSERT_TRUE(pool->free(again, stream));
}

TEST_F(PoolRights, AreThereAfterSuspensionAndResumption) {
  const address whole = *pool->allocate_whole(4 * MiB, stream);
  const address freed = *pool->allocate_whole(4 * MiB, stream);
  ASSERT_TRUE(pool->set_access(whole, {&reads, 1}));
  ASSERT_TRUE(pool->set_access(freed, {&reads, 1}));
  ASSERT_TRUE(driver.write_tag({whole, 4 * MiB}, 7));
  vmm::suspender sleeper;
  ASSERT_TRUE(sleeper.add(*pool, {"pool", vmm::suspend_contents::keep}));
  ASSERT_TRUE(sleeper.suspend({}));
  EXPECT_FALSE(pool->set_access(whole, {&reads, 1}));
  EXPECT_FALSE(pool->allocate_whole(4 * MiB, stream));
  ASSERT_TRUE(pool->free(freed, stream));
  ASSERT_TRUE(sleeper.resume({}));
  EXPECT_EQ(of(whole), access::read);
  EXPECT_EQ(of(whole + granule), access::read);
  EXPECT_EQ(*driver.read_tag(whole), 7u);
  (void)pool->trim(~std::uint64_t{0});
  EXPECT_EQ(of(freed), access::none);
  ASSERT_TRUE(sleeper.remove(*pool));
  ASSERT_TRUE(pool->free(whole, stream));
}

// Freed, its memory goes back with the first trim after its work has finished.
TEST_F(PoolRights, AreNothingThatATrimWaitsFor) {
  driver.set_manual(true);
  const address whole = *pool->allocate_whole(4 * MiB, stream);
  ASSERT_TRUE(pool->set_access(whole, {&reads, 1}));
  const vmm::address_range range{whole, 4 * MiB};
  ASSERT_TRUE(driver.launch(stream, {.where = device(1), .reads = {&range, 1}}));
  ASSERT_TRUE(pool->free(whole, stream));
  EXPECT_EQ(pool->trim(0).released_bytes, 0u);
  EXPECT_EQ(of(whole), access::read);
  ASSERT_TRUE(driver.finish_all());
  EXPECT_EQ(pool->trim(0).released_bytes, 4 * MiB);
  EXPECT_EQ(pool->statistics().mapped_bytes, 0u);
}

// A block is freed before the suspension, or while there is no memory.
TEST_F(PoolRights, GoWithAPoolThatEndsWhileItIsSuspended) {
  std::uint64_t live_count = 0;
  vmm::pool_options options;
  options.at_end = {[](void* context, const vmm::live_blocks& left) noexcept {
                      *static_cast<std::uint64_t*>(context) = left.count;
                    },
                    &live_count};
  for (const bool is_suspended : {false, true}) {
    live_count = 0;
    pool = std::make_unique<vmm::stream_pool>(driver, options);
    const address stays = *pool->allocate_whole(4 * MiB, stream);
    const address freed = *pool->allocate_whole(4 * MiB, stream);
    for (const address each : {stays, freed}) ASSERT_TRUE(pool->set_access(each, {&reads, 1}));
    auto sleeper = std::make_unique<vmm::suspender>();
    ASSERT_TRUE(sleeper->add(*pool, {"pool", vmm::suspend_contents::keep}));
    if (is_suspended) ASSERT_TRUE(sleeper->suspend({}));
    ASSERT_TRUE(pool->free(freed, stream));
    EXPECT_EQ(pool->free(freed, stream).error().code, errc::not_allocated);
    if (!is_suspended) {
      const auto done = sleeper->suspend({});
      ASSERT_TRUE(done) << vmm::describe(done.error());
      EXPECT_EQ(done->suspended_bytes, 4 * MiB);
    }
    EXPECT_FALSE(pool->set_access(stays, {&reads, 1}));
    ASSERT_TRUE(pool->forget(stream));
    ASSERT_TRUE(pool->validate());
    sleeper.reset();
    pool.reset();
    EXPECT_EQ(live_count, 1u) << "what was freed is nobody's";
    EXPECT_EQ(driver.resource_counts().handles, 0u);
    EXPECT_EQ(driver.misuse_count(), 0u) << driver.report();
  }
  pool = std::make_unique<vmm::stream_pool>(driver);
}

TEST_F(PoolRights, EndOnAStreamThatIsNotCaptured) {
  const address whole = *pool->allocate_whole(4 * MiB, stream);
  ASSERT_TRUE(pool->set_access(whole, {&reads, 1}));
  EXPECT_EQ(pool->free(whole).error().code, errc::not_permitted) << "after everything: no stream";
  const vmm::stream_handle other = *driver.create_stream();
  ASSERT_TRUE(driver.begin_capture(other, vmm::capture_mode::relaxed));
  EXPECT_EQ(pool->free(whole, other).error().code, errc::not_permitted);
  EXPECT_EQ(pool->allocate_whole(4 * MiB, other).error().code, errc::not_permitted);
  const auto graph = driver.end_capture(other);
  ASSERT_TRUE(graph);
  ASSERT_TRUE(driver.destroy_graph(*graph));
  ASSERT_TRUE(pool->pin(whole));
  ASSERT_TRUE(pool->free(whole, stream));
  (void)pool->trim(0);
  EXPECT_EQ(of(whole), access::none) << "the rights go, the pinned block stays";
  ASSERT_TRUE(pool->unpin(whole));
  ASSERT_TRUE(pool->forget(other));
  ASSERT_TRUE(driver.destroy_stream(other));
}

TEST_F(PoolRights, MemoryComesFromWhatIsFreeWhereThereIsNoOther) {
  const address first = *pool->allocate(400 * MiB, stream);
  ASSERT_TRUE(pool->free(first, stream));
  const auto whole = pool->allocate_whole(300 * MiB, stream);
  ASSERT_TRUE(whole) << vmm::describe(whole.error());
  EXPECT_EQ(pool->allocate_whole(300 * MiB, stream).error().code, errc::out_of_memory);
  ASSERT_TRUE(pool->set_access(*whole, {&reads, 1}));
  ASSERT_TRUE(pool->free(*whole, stream));
  const auto again = pool->allocate(400 * MiB, stream);
  ASSERT_TRUE(again) << "what waits is found: " << vmm::describe(again.error());
  EXPECT_EQ(of(*again), access::none);
  ASSERT_TRUE(pool->free(*again, stream));
}

TEST(PoolRightsElsewhere, AreRefusedWhereFreesFill) {
  vmm::fake_driver driver(three_devices());
  vmm::stream_pool pool(driver, {{.contents = vmm::contents_rule::zero_on_release}});
  const address whole = *pool.allocate_whole(4 * MiB, {});
  EXPECT_EQ(pool.set_access(whole, {&reads, 1}).error().code, errc::not_supported);
  ASSERT_TRUE(pool.free(whole, {}));
}

// A list takes 18 locations: the home, and those of all and of one block together.
TEST(PoolRightsElsewhere, TooManyLocationsAreRefused) {
  vmm::fake::profile many = three_devices();
  many.device_count = 16;
  vmm::fake_driver driver(many);
  vmm::stream_pool pool(driver);
  const address whole = *pool.allocate_whole(4 * MiB, {});
  std::vector<vmm::access_grant> own;
  std::vector<vmm::access_grant> all;
  for (std::int32_t i = 1; i <= 9; ++i) own.push_back({device(i), access::read});
  for (std::int32_t i = 10; i <= 15; ++i) all.push_back({device(i), access::read});
  for (std::int32_t i = 0; i < 3; ++i) all.push_back({vmm::host_node(i), access::read});
  ASSERT_TRUE(pool.set_access(whole, own));
  EXPECT_EQ(pool.set_peers(all).error().code, errc::invalid_argument);
  EXPECT_EQ(*driver.get_access(whole, device(10)), access::none);
  EXPECT_EQ(*driver.get_access(whole, device(9)), access::read);
  ASSERT_TRUE(pool.free(whole, {}));
}

// Threads with blocks of their own, while another gives rights to all and trims.
TEST(PoolRightsThreads, EachBlockHasItsOwn) {
  vmm::fake_driver driver(three_devices());
  {
    vmm::stream_pool pool(driver);
    ASSERT_TRUE(pool.set_up());
    constexpr int rounds = 60;
    const auto lend = [&](std::int32_t who, access right) {
      const vmm::stream_handle stream = *driver.create_stream();
      const vmm::access_grant given{device(who), right};
      for (int i = 0; i < rounds; ++i) {
        const auto at = pool.allocate_whole(4 * MiB, stream);
        ASSERT_TRUE(at) << vmm::describe(at.error());
        ASSERT_TRUE(pool.set_access(*at, {&given, 1}));
        EXPECT_EQ(*driver.get_access(*at + granule, device(who)), right);
        ASSERT_TRUE(pool.free(*at, stream));
      }
      ASSERT_TRUE(pool.forget(stream));
      ASSERT_TRUE(driver.destroy_stream(stream));
    };
    std::vector<std::thread> threads;
    threads.emplace_back(lend, 1, access::read);
    threads.emplace_back(lend, 2, access::read_write);
    threads.emplace_back([&] {
      for (int i = 0; i < rounds; ++i) {
        const vmm::access_grant all{device(1), rights[static_cast<std::size_t>(i) % 3]};
        EXPECT_TRUE(pool.set_peers({&all, 1}));
        const auto at = pool.allocate(600, {});
        ASSERT_TRUE(at);
        EXPECT_EQ(*driver.get_access(*at, device(2)), access::none);
        EXPECT_EQ(*driver.get_access(*at, device(1)), all.rights);
        ASSERT_TRUE(pool.free(*at, {}));
        (void)pool.trim(0);
      }
    });
    for (std::thread& each : threads) each.join();
    EXPECT_TRUE(pool.validate());
  }
  EXPECT_EQ(driver.misuse_count(), 0u);
  EXPECT_TRUE(driver.check_empty()) << driver.report();
}

// ---- random programs -------------------------------------------------------------------

using table = std::map<std::int32_t, access>;

struct shadow {
  address at{};
  std::uint64_t size_bytes = 0;
  bool is_whole = false;
  vmm::stream_handle stream{};
  table own;
};

class program {
 public:
  explicit program(std::uint64_t seed) : random_(seed) {
    driver_.set_manual(true);
    for (auto& each : streams_) each = *driver_.create_stream();
    vmm::pool_options how;
    if (any(2) == 0) how.rules.handle_bytes = 4 * MiB;
    if (any(3) == 0) how.rules.unmap_early = true;
    if (any(2) == 0) how.fronts = vmm::front_rule::always;
    pool_ = std::make_unique<vmm::stream_pool>(driver_, how);
    EXPECT_TRUE(sleeper_.add(*pool_, {"pool", vmm::suspend_contents::keep}));
  }
  program(const program&) = delete;
  program& operator=(const program&) = delete;
  ~program() {
    driver_.clear_faults();
    EXPECT_TRUE(driver_.finish_all());
    EXPECT_TRUE(sleeper_.remove(*pool_));
    for (const auto each : streams_) EXPECT_TRUE(pool_->forget(each));
    pool_.reset();
    for (const auto each : streams_) EXPECT_TRUE(driver_.destroy_stream(each));
    EXPECT_EQ(driver_.misuse_count(), 0u) << driver_.report();
    EXPECT_TRUE(driver_.check_empty()) << driver_.report();
  }

  void step() {
    if (any(5) == 0) plan_fault();
    switch (any(12)) {
      case 0:
      case 1: allocate(false); break;
      case 2:
      case 3: allocate(true); break;
      case 4:
      case 5: free_one(); break;
      case 6:
      case 7: give_one(); break;
      case 8: give_all(); break;
      case 9: work(); break;
      case 10: (void)pool_->trim(any(4) * 8 * MiB); break;
      default: sleep(); break;
    }
    driver_.clear_faults();
    if (any(3) == 0) EXPECT_TRUE(driver_.finish_all());
  }
  void expect_all(const std::string& where) {
    const vmm::status valid = pool_->validate();
    ASSERT_TRUE(valid) << where << ": " << valid.error().detail;
    for (const shadow& each : blocks_) {
      for (std::int32_t who = 1; who <= 2; ++who) {
        access wanted = peers_.contains(who) ? peers_.at(who) : access::none;
        if (each.own.contains(who)) wanted = each.own.at(who);
        for (std::uint64_t at = 0; at < each.size_bytes; at += granule)
          ASSERT_EQ(*driver_.get_access(each.at + at, device(who)), wanted)
              << where << ": device " << who << (each.is_whole ? ", whole" : "");
      }
    }
  }

 private:
  std::size_t any(std::size_t count) { return random_() % count; }
  void plan_fault() {
    constexpr std::array calls{vmm::call::create,     vmm::call::map,     vmm::call::unmap,
                               vmm::call::set_access, vmm::call::release, vmm::call::record_event};
    const vmm::call where = calls[any(calls.size())];
    driver_.fail({where, 1 + any(4), false, driver_.possible_errors(where).front()});
  }
  vmm::access_grant grant() {
    return {device(static_cast<std::int32_t>(1 + any(2))), rights[any(3)]};
  }
  shadow* one() { return blocks_.empty() ? nullptr : &blocks_[any(blocks_.size())]; }

  void allocate(bool is_whole) {
    if (blocks_.size() >= 12) return;
    const vmm::stream_handle stream = streams_[any(2)];
    const bool is_large = is_whole || any(2) == 0;
    const std::uint64_t size_bytes = is_large ? (1 + any(20)) * MiB : std::uint64_t{512} << any(12);
    const auto at =
        is_whole ? pool_->allocate_whole(size_bytes, stream) : pool_->allocate(size_bytes, stream);
    if (at) blocks_.push_back({*at, size_bytes, is_whole, stream, {}});
  }
  void free_one() {
    shadow* const gone = one();
    if (gone == nullptr || !pool_->free(gone->at, gone->stream)) return;
    *gone = blocks_.back();
    blocks_.pop_back();
  }
  void give_one() {
    shadow* const of = one();
    if (of == nullptr) return;
    EXPECT_TRUE(driver_.finish_all());  // rights may become less
    const vmm::access_grant given = grant();
    const vmm::status done = pool_->set_access(of->at, {&given, 1});
    if (done) of->own[given.who.ordinal] = given.rights;
    if (of->is_whole && !done)
      EXPECT_NE(done.error().code, errc::not_supported) << "it was allocated for this";
  }
  void give_all() {
    EXPECT_TRUE(driver_.finish_all());
    const vmm::access_grant given = grant();
    if (pool_->set_peers({&given, 1})) peers_[given.who.ordinal] = given.rights;
  }
  // By a device that may, on the block's stream.
  void work() {
    const shadow* const of = one();
    if (of == nullptr) return;
    const vmm::address_range range{of->at, of->size_bytes};
    const std::int32_t who = static_cast<std::int32_t>(any(3));
    if (who != 0 && *driver_.get_access(of->at, device(who)) == access::none) return;
    (void)driver_.launch(of->stream, {.where = device(who), .reads = {&range, 1}});
  }
  void sleep() {
    EXPECT_TRUE(driver_.finish_all());
    if (!sleeper_.suspend({})) return (void)sleeper_.resume({});
    free_one();
    driver_.clear_faults();
    EXPECT_TRUE(sleeper_.resume({}));
  }

  std::mt19937_64 random_;
  vmm::fake_driver driver_{three_devices()};
  std::array<vmm::stream_handle, 2> streams_{};
  std::unique_ptr<vmm::stream_pool> pool_;
  vmm::suspender sleeper_;
  std::vector<shadow> blocks_;
  table peers_;
};

TEST(PoolRightsModel, EveryBlockHasWhatItWasGiven) {
  constexpr std::uint64_t programs = 200;
  constexpr int steps = 60;
  for (std::uint64_t seed = 1; seed <= programs; ++seed) {
    program one(seed);
    for (int step = 0; step < steps; ++step) {
      one.step();
      one.expect_all("seed " + std::to_string(seed) + " step " + std::to_string(step));
      if (HasFailure()) return;
    }
  }
}

}  // namespace

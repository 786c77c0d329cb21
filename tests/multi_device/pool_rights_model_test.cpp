// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: in every program, a pool's block of whole mappings has its granted access, and no other
// block ever has any of it.
// Method: random programs of two streams beside a model, with driver faults at random calls; the
// driver is queried at every granule.
#include "../support/test.h"
#include "three_devices.hpp"

import vmm.backend;
import vmm.stream;
import vmm.suspend;

namespace {

using vmm::access, vmm::address, vmm::device, vmm::errc;

constexpr std::uint64_t granule = 2 * MiB;
constexpr std::array rights{access::none, access::read, access::read_write};

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
    if (any(2) == 0) how.policy.handle_bytes_max = 4 * MiB;
    if (any(3) == 0) how.policy.eager_unmap = true;
    if (any(2) == 0) how.stream_arenas = vmm::arena_rule::always;
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
      for (std::int32_t grantee = 1; grantee <= 2; ++grantee) {
        access wanted = peers_.contains(grantee) ? peers_.at(grantee) : access::none;
        if (each.own.contains(grantee)) wanted = each.own.at(grantee);
        for (std::uint64_t at = 0; at < each.size_bytes; at += granule)
          ASSERT_EQ(*driver_.get_access(each.at + at, device(grantee)), wanted)
              << where << ": device " << grantee << (each.is_whole ? ", whole" : "");
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
    const auto at = is_whole ? pool_->allocate_dedicated(size_bytes, stream)
                             : pool_->allocate(size_bytes, stream);
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
    if (done) of->own[given.grantee.ordinal] = given.rights;
    if (of->is_whole && !done)
      EXPECT_NE(done.error().code, errc::not_supported) << "it was allocated for this";
  }
  void give_all() {
    EXPECT_TRUE(driver_.finish_all());
    const vmm::access_grant given = grant();
    if (pool_->set_peers({&given, 1})) peers_[given.grantee.ordinal] = given.rights;
  }
  // By a device that may, on the block's stream.
  void work() {
    const shadow* const of = one();
    if (of == nullptr) return;
    const vmm::address_range range{of->at, of->size_bytes};
    const std::int32_t grantee = static_cast<std::int32_t>(any(3));
    if (grantee != 0 && *driver_.get_access(of->at, device(grantee)) == access::none) return;
    (void)driver_.launch(of->stream, {.where = device(grantee), .reads = {&range, 1}});
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

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: through random schedules of two ranges that take one another's memory, every byte is what a
// naive model says: what was written stays, what was added is zero, and no work of one range
// reaches the other's bytes.
// Method: the host driver with queued work, so that memory is real and work is finished by the
// test, in random order, or by a call that has to wait. The model is a vector of bytes for each
// segment; the device writes a byte over a part of a segment, in the order of the range's stream.
#include "../contents/queued_host.hpp"
#include "../support/test.h"

import vmm.manager;

namespace {

constexpr std::uint64_t unit = 4096;
constexpr std::uint64_t size_bytes_max = 12 * unit;
constexpr std::uint64_t segments = 2;

class program {
 public:
  program(std::uint64_t seed, vmm::alias_level alias)
      : random_(seed), driver_({.recommended_bytes = unit}, alias) {
    vmm::manager_options options;
    options.budget_bytes = 30 * unit;
    memory_ = std::make_unique<vmm::manager>(driver_, options);
    for (side& each : sides_) {
      each.stream = *driver_.create_stream();
      const std::uint64_t handle_bytes = pick(2) == 0 ? 0 : vmm::few_handles;
      const vmm::growable_options wanted{.segment_bytes_max = size_bytes_max,
                                         .segment_count = segments,
                                         .handle_bytes = handle_bytes};
      each.range = std::make_unique<vmm::growable_range>(*memory_, wanted);
    }
  }
  ~program() {
    for (side& each : sides_) {
      each.held.reset();
      each.range.reset();
    }
    memory_.reset();
    EXPECT_EQ(driver_.misuse_count(), 0u) << "work reached memory that was gone";
    EXPECT_TRUE(driver_.is_empty());
  }
  program(const program&) = delete;
  program& operator=(const program&) = delete;

  void step() {
    side& one = sides_[pick(sides_.size())];
    switch (pick(6)) {
      case 0:
      case 1: resize(one); break;
      case 2: write(one); break;
      case 3: compare(one); break;
      case 4:
        if (driver_.ready_count() > 0)
          ASSERT_TRUE(driver_.finish_ready(pick(driver_.ready_count())));
        break;
      default: pin(one); break;
    }
  }
  void finish() {
    ASSERT_TRUE(driver_.finish_all());
    for (side& each : sides_) {
      compare(each);
      ASSERT_TRUE(each.range->validate());
    }
    ASSERT_TRUE(memory_->validate());
  }
  std::uint64_t resized_count = 0;
  std::uint64_t refused_count = 0;

 private:
  struct side {
    vmm::stream_handle stream{};
    std::unique_ptr<vmm::growable_range> range;
    std::array<std::vector<std::byte>, segments> model;
    std::optional<vmm::growable_pin> held;
    std::uint64_t pinned_bytes = 0;
  };

  std::uint64_t pick(std::uint64_t count) { return random_() % count; }

  void resize(side& one) {
    vmm::growable_request request{.size_bytes = pick(size_bytes_max + 1), .stream = one.stream};
    if (pick(3) == 0) {
      request.first_segment = pick(segments);
      request.segment_count = 1;
    }
    request.may_wait = pick(3) != 0;
    const vmm::status done = one.range->resize(request);
    if (!done) {
      const vmm::errc code = done.error().code;
      ASSERT_TRUE(code == vmm::errc::over_budget || code == vmm::errc::in_use)
          << vmm::describe(done.error());
      ++refused_count;
      return;
    }
    ++resized_count;
    const std::uint64_t end = request.segment_count == 0 ? segments : request.first_segment + 1;
    for (std::uint64_t i = request.first_segment; i < end; ++i) {
      ASSERT_GE(request.size_bytes, one.pinned_bytes) << "a hold keeps its bytes";
      one.model[i].resize(request.size_bytes);
    }
  }
  void write(side& one) {
    const std::uint64_t index = pick(segments);
    std::vector<std::byte>& model = one.model[index];
    if (model.empty()) return;
    const std::uint64_t first = pick(model.size());
    const std::uint64_t count = 1 + pick(model.size() - first);
    const auto value = static_cast<unsigned char>(1 + pick(255));
    const vmm::address at = *one.range->segment(index) + first;
    ASSERT_TRUE(driver_.fill({{at, count}, value, one.stream}));
    std::fill_n(model.begin() + static_cast<std::ptrdiff_t>(first), count,
                static_cast<std::byte>(value));
  }
  void compare(side& one) {
    for (std::uint64_t i = 0; i < segments; ++i) {
      ASSERT_EQ(one.range->size_bytes(i).value_or(0), one.model[i].size());
      if (one.model[i].empty()) continue;
      ASSERT_TRUE(one.range->synchronize(one.stream));
      const auto* const bytes = one.range->segment(i)->as<const std::byte>();
      ASSERT_TRUE(std::equal(one.model[i].begin(), one.model[i].end(), bytes));
    }
  }
  void pin(side& one) {
    if (one.held) {
      one.held.reset();
      one.pinned_bytes = 0;
      return;
    }
    const std::uint64_t most = std::min(one.model[0].size(), one.model[1].size());
    const std::uint64_t kept_bytes = pick(most + 1);
    auto kept = *one.range->pin({.size_bytes = kept_bytes});
    one.pinned_bytes = kept_bytes;
    one.held.emplace(std::move(kept));
  }

  std::mt19937_64 random_;
  contents::queued_host driver_;
  std::unique_ptr<vmm::manager> memory_;
  std::array<side, 2> sides_;
};

void play(vmm::alias_level alias) {
  std::uint64_t resized_count = 0;
  std::uint64_t refused_count = 0;
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    program one(seed, alias);
    for (int i = 0; i < 150; ++i) {
      one.step();
      if (testing::Test::HasFatalFailure()) FAIL() << "seed " << seed << ", step " << i;
    }
    one.finish();
    resized_count += one.resized_count;
    refused_count += one.refused_count;
  }
  EXPECT_GT(resized_count, 500u);
  EXPECT_GT(refused_count, 20u) << "the budget and the holds were never met";
}

TEST(GrowableContents, WithAliases) { play(vmm::alias_level::coherent); }
TEST(GrowableContents, WithoutAliases) { play(vmm::alias_level::none); }

}  // namespace

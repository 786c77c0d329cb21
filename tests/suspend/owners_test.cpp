// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a manager that is suspended may have vectors and growable ranges: each of their calls does
// what it promises or is refused with in_use, in any order with suspensions, and every byte that
// was promised is there.
// Method: random programs on the host's memory, with a budget or without one, beside a model that
// has the same words in the process; seeds print.
#include "../support/test.h"

import vmm.backend;
import vmm.containers;
import vmm.host;
import vmm.manager;
import vmm.suspend;

namespace {

using vmm::address, vmm::errc;

constexpr std::uint64_t words_of_piece = MiB / sizeof(std::uint64_t) / 4;

class program {
 public:
  program(std::uint64_t seed, vmm::suspend_contents contents) : random_(seed) {
    vmm::manager_options options;
    options.reservation_bytes = 1024 * MiB;
    if (any(2) == 0) options.budget_bytes = 24 * MiB;
    has_budget_ = options.budget_bytes != 0;
    blocks_ = std::make_unique<vmm::manager>(driver_, options);
    words_ = std::make_unique<vmm::vector<std::uint64_t>>(*blocks_, 8 * words_of_piece);
    range_ = std::make_unique<vmm::growable_range>(
        *blocks_, vmm::growable_options{.segment_bytes_max = 32 * MiB, .segment_count = 2});
    sleeper_ = std::make_unique<vmm::suspender>(
        vmm::suspend_options{.tier = vmm::backup_tier::pageable, .verify = any(2) == 0});
    contents_ = contents;
    EXPECT_TRUE(sleeper_->add(*blocks_, {"all", contents}));
  }
  program(const program&) = delete;
  program& operator=(const program&) = delete;
  ~program() {
    if (is_away_) EXPECT_TRUE(sleeper_->resume());
    sleeper_.reset();
    words_.reset();
    range_.reset();
    for (const address each : plain_) EXPECT_TRUE(blocks_->free(each));
    EXPECT_TRUE(blocks_->validate());
    blocks_.reset();
  }

  void step() {
    switch (any(8)) {
      case 0: push(); break;
      case 1: shrink(); break;
      case 2:
      case 3: resize_range(); break;
      case 4: allocate(); break;
      case 5: suspend(); break;
      default: resume(); break;
    }
  }
  void expect_all() {
    ASSERT_TRUE(blocks_->validate());
    ASSERT_TRUE(range_->validate() || !is_reserved_);
    if (is_away_) return;
    ASSERT_EQ(words_->size(), model_.size());
    if (model_.empty()) return;
    ASSERT_EQ(std::memcmp(words_->data(), model_.data(), model_.size() * sizeof(std::uint64_t)), 0);
  }

 private:
  std::size_t any(std::size_t count) { return random_() % count; }
  // Whether a call that may be short or asleep went; the rest are failures.
  [[nodiscard]] bool went(const vmm::status& done) {
    if (done) {
      EXPECT_FALSE(is_away_);
      return true;
    }
    const errc code = done.error().code;
    EXPECT_TRUE(is_away_ ? code == errc::in_use : has_budget_ && code == errc::over_budget)
        << vmm::describe(done.error());
    return false;
  }
  void push() {
    std::vector<std::uint64_t> more(words_of_piece);
    for (auto& each : more) each = random_();
    if (is_away_) {  // its bytes cannot be written: only its growth is requested
      EXPECT_FALSE(words_->reserve(words_->capacity() + 8 * words_of_piece));
      return;
    }
    if (!went(words_->append(more))) return;
    model_.insert(model_.end(), more.begin(), more.end());
  }
  void shrink() {
    if (is_away_ || model_.empty()) return;
    words_->clear();
    model_.clear();
    if (any(2) == 0) EXPECT_TRUE(words_->shrink_to_fit());
  }
  void resize_range() {
    const std::uint64_t size_bytes = any(2) == 0 ? 0 : 2 * MiB * any(5);
    const vmm::status done = range_->resize({.size_bytes = size_bytes});
    if (is_away_ && done) {  // nothing was to be done
      EXPECT_EQ(size_bytes, 0u);
      return;
    }
    if (!went(done)) return;
    is_reserved_ = true;
    range_bytes_ = size_bytes;
    for (std::uint64_t i = 0; i < 2 && size_bytes != 0; ++i)
      std::memset(range_->segment(i)->as<char>(), 'r', size_bytes);
  }
  void allocate() {
    if (!plain_.empty() && any(2) == 0) {
      EXPECT_TRUE(blocks_->free(plain_.back()));
      plain_.pop_back();
      return;
    }
    const auto at = blocks_->allocate({.size_bytes = 2 * MiB});
    if (went(at ? vmm::status{} : vmm::status{at.error()})) plain_.push_back(*at);
  }
  void suspend() {
    const auto report = sleeper_->suspend();
    if (is_away_) {  // no region is left that runs
      EXPECT_TRUE(report);
      EXPECT_EQ(report->region_count, 0u);
      return;
    }
    if (range_bytes_ != 0) {
      EXPECT_EQ(report.error().code, errc::in_use);
      EXPECT_EQ(*sleeper_->last_obstacle(), "all");
      return;
    }
    ASSERT_TRUE(report) << vmm::describe(report.error());
    is_away_ = true;
  }
  void resume() {
    const vmm::status back = sleeper_->resume();
    ASSERT_TRUE(back) << vmm::describe(back.error());
    if (!is_away_) return;
    is_away_ = false;
    if (model_.empty() || contents_ == vmm::suspend_contents::keep) return;
    std::uint64_t* const first = words_->data();
    for (std::size_t i = 0; i < model_.size(); ++i) {
      if (contents_ == vmm::suspend_contents::zero) ASSERT_EQ(first[i], 0u);
      first[i] = model_[i];
    }
  }

  std::mt19937_64 random_;
  vmm::host_driver driver_{*vmm::host_driver::open({})};
  std::unique_ptr<vmm::manager> blocks_;
  std::unique_ptr<vmm::vector<std::uint64_t>> words_;
  std::unique_ptr<vmm::growable_range> range_;
  std::unique_ptr<vmm::suspender> sleeper_;
  vmm::suspend_contents contents_{};
  std::vector<std::uint64_t> model_;
  std::vector<address> plain_;
  std::uint64_t range_bytes_ = 0;
  bool has_budget_ = false, is_away_ = false, is_reserved_ = false;
};

class SuspendOwners : public testing::TestWithParam<vmm::suspend_contents> {};

TEST_P(SuspendOwners, RandomPrograms) {
  for (std::uint64_t seed = 1; seed <= 25; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    program one(seed, GetParam());
    for (int step = 0; step < 100; ++step) {
      SCOPED_TRACE(testing::Message() << "step " << step);
      one.step();
      one.expect_all();
      if (testing::Test::HasFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Contents, SuspendOwners,
                         testing::Values(vmm::suspend_contents::keep, vmm::suspend_contents::zero,
                                         vmm::suspend_contents::discard));

}  // namespace

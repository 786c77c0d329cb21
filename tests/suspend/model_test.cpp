// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: whatever program of allocations, frees, work, rights, trims, pins, suspensions and
// resumptions runs, with driver faults at random calls, each call does what it promises or is
// refused as documented, contents and addresses are those promised, pools that clear freed memory
// hand out zeros, and nothing leaks.
// Method: random programs over two pools and two managers with two tags, some with budgets and some
// that spill, whose remap listeners free blocks, beside a model that has each block's contents and
// each tag's state, for every tier;
// the fake driver reports misuse.
#include "regions.hpp"

namespace {

using vmm::address, vmm::errc, vmm::suspend_contents;

constexpr std::array<std::string_view, 2> tags{"kv", "weights"};
constexpr std::array policies{suspend_contents::keep, suspend_contents::zero,
                              suspend_contents::discard};

struct shadow {
  std::size_t owner = 0;  // 0 and 1: the pools; 2 and 3: the managers
  address at{};
  std::uint64_t size_bytes = 0;
  vmm::stream_handle stream{};
  std::optional<std::uint64_t> tag;  // none: anything
  bool is_pinned = false;
};

// Calls `what` at every notice of a pool.
class listener final : public vmm::remap_listener {
 public:
  listener(vmm::stream_pool& of, std::function<void()> what)
      : of_(of), what_(std::move(what)), number_(*of.remaps().subscribe(*this)) {}
  ~listener() { EXPECT_TRUE(of_.remaps().unsubscribe(number_)); }
  listener(const listener&) = delete;
  listener& operator=(const listener&) = delete;
  void before_change(const vmm::remap_notice&) noexcept override { what_(); }
  void after_change(const vmm::remap_notice&) noexcept override { what_(); }

 private:
  vmm::stream_pool& of_;
  const std::function<void()> what_;
  const vmm::remap_subscription number_;
};

class program {
 public:
  program(std::uint64_t seed, vmm::backup_tier tier) : random_(seed) {
    for (auto& each : streams_) each = *driver_.create_stream();
    for (std::size_t i = 0; i < 2; ++i) {
      vmm::pool_options of_pool;
      if (any(2) == 0) of_pool.policy.handle_bytes_max = 4 * MiB;
      clears_[i] = any(2) == 0;
      if (clears_[i]) of_pool.contents = vmm::contents_rule::zero_on_release;
      limit(of_pool);
      if (any(2) == 0) of_pool.stream_arenas = vmm::arena_rule::always;
      pools_[i] = std::make_unique<vmm::stream_pool>(driver_, of_pool);
      if (any(2) == 0)
        listeners_[i] = std::make_unique<listener>(*pools_[i], [this] { free_in_callback(); });
      vmm::manager_options of_blocks;
      of_blocks.policy.chunk_bytes = 2 * MiB << any(3);
      if (any(2) == 0) of_blocks.policy.on_free = vmm::free_rule::keep_mapped;
      limit(of_blocks);
      blocks_[i] = std::make_unique<vmm::manager>(driver_, of_blocks);
      if (any(2) == 0) EXPECT_TRUE(pools_[i]->history().start({}));
    }
    sleeper_ = std::make_unique<vmm::suspender>(
        vmm::suspend_options{.tier = tier, .directory = testing::TempDir()});
    for (std::size_t i = 0; i < 4; ++i) {
      contents_[i] = policies[any(3)];
      const vmm::suspend_region how{tags[i % 2], contents_[i]};
      EXPECT_TRUE(i < 2 ? sleeper_->add(*pools_[i], how) : sleeper_->add(*blocks_[i - 2], how));
    }
  }
  program(const program&) = delete;
  program& operator=(const program&) = delete;
  ~program() {
    EXPECT_TRUE(driver_.finish_all());
    sleeper_.reset();  // also where regions are suspended
    for (auto& each : listeners_) each.reset();
    for (auto& each : pools_) each.reset();
    for (auto& each : blocks_) each.reset();
    for (const auto each : streams_) EXPECT_TRUE(driver_.destroy_stream(each));
    EXPECT_TRUE(driver_.check_empty()) << driver_.report();
    for (const auto& misuse : driver_.misuses()) ADD_FAILURE() << misuse.detail;
  }

  void step() {
    callback_frees_ = any(3);
    switch (any(12)) {
      case 0:
      case 1:
      case 2: allocate(); break;
      case 3:
      case 4: free_one(); break;
      case 5: work(); break;
      case 6: suspend(); break;
      case 7:
      case 8: resume(); break;
      case 9: resize(); break;
      case 10: pin(); break;
      default: give_rights_or_trim(); break;
    }
  }
  void expect_all() {
    ASSERT_TRUE(driver_.finish_all());
    for (std::size_t i = 0; i < 2; ++i) {
      const vmm::status valid = pools_[i]->validate();
      EXPECT_TRUE(valid) << valid.error().detail;
      EXPECT_TRUE(blocks_[i]->validate());
      expect_numbers(i);
    }
    for (const shadow& each : shadows_) {
      if (is_suspended(each) || !each.tag) continue;
      for (std::uint64_t at = 0; at < each.size_bytes; at += MiB / 2)
        ASSERT_EQ(driver_.read_tag(each.at + at).value_or(~*each.tag), *each.tag);
      const vmm::access peer = *driver_.get_access(each.at, vmm::device(1));
      ASSERT_EQ(peer, peers_[each.owner]);
    }
  }

 private:
  std::size_t any(std::size_t count) { return random_() % count; }
  // A budget, and memory of the host where the device has none left.
  void limit(vmm::memory_options& of) {
    if (any(3) == 0) of.budget_bytes = (1 + any(4)) * 16 * MiB;
    if (any(3) == 0) of.spill = vmm::host_node(0);
    budgets_.push_back(of.budget_bytes);
  }
  // In the order of owners: pools first.
  [[nodiscard]] std::uint64_t budget_of(std::size_t owner) const {
    return budgets_[owner < 2 ? owner * 2 : (owner - 2) * 2 + 1];
  }
  bool is_suspended(const shadow& of) const { return away_[of.owner % 2]; }
  void plan_fault() {
    constexpr std::array calls{vmm::call::create,
                               vmm::call::map,
                               vmm::call::unmap,
                               vmm::call::release,
                               vmm::call::set_access,
                               vmm::call::copy,
                               vmm::call::fill,
                               vmm::call::create_stream,
                               vmm::call::create_event,
                               vmm::call::record_event,
                               vmm::call::synchronize_event,
                               vmm::call::synchronize_stream};
    driver_.clear_faults();
    const vmm::call where = calls[any(calls.size())];
    if (any(3) != 0 || driver_.possible_errors(where).empty()) return;
    driver_.fail({where, 1 + any(4), false, driver_.possible_errors(where).front()});
  }
  void expect_numbers(std::size_t i) {
    std::uint64_t live_count = 0;
    for (const shadow& each : shadows_) live_count += each.owner == 2 + i ? 1 : 0;
    const vmm::manager_statistics now = blocks_[i]->statistics();
    EXPECT_EQ(now.live_count, live_count);
    for (const std::size_t owner : {i, 2 + i}) {
      const std::uint64_t held_bytes =
          owner < 2 ? pools_[i]->statistics().mapped_bytes - pools_[i]->statistics().suspended_bytes
                    : now.held_bytes;
      EXPECT_TRUE(budget_of(owner) == 0 || held_bytes <= budget_of(owner)) << owner;
    }
    EXPECT_LE(now.suspended_bytes, now.mapped_bytes);
    const vmm::pool_statistics then = pools_[i]->statistics();
    EXPECT_LE(then.suspended_bytes, then.mapped_bytes);
    if (!away_[i]) {
      EXPECT_EQ(now.suspended_bytes, 0u);
      EXPECT_EQ(then.suspended_bytes, 0u);
    } else if (!struck_[i]) {
      EXPECT_EQ(now.suspended_bytes, now.mapped_bytes);
      EXPECT_EQ(now.held_bytes, 0u);
    }
  }
  void allocate() {
    shadow made;
    made.owner = any(4);
    made.stream = streams_[any(streams_.size())];
    made.size_bytes = any(3) == 0 ? MiB / 2 * (1 + any(4)) : 2 * MiB * (1 + any(4));
    const auto at = made.owner < 2 ? pools_[made.owner]->allocate(made.size_bytes, made.stream)
                                   : blocks_[made.owner - 2]->allocate(
                                         {.size_bytes = made.size_bytes, .stream = made.stream});
    if (is_suspended(made)) {
      ASSERT_FALSE(at);
      ASSERT_EQ(at.error().code, errc::in_use);
      return;
    }
    if (!at && at.error().code == errc::over_budget) {
      ASSERT_NE(budget_of(made.owner), 0u);
      return;
    }
    ASSERT_TRUE(at) << vmm::describe(at.error());
    made.at = *at;
    if (made.owner < 2 && clears_[made.owner]) {
      ASSERT_TRUE(driver_.finish_all());
      for (std::uint64_t i = 0; i < made.size_bytes; i += MiB / 2)
        ASSERT_EQ(driver_.read_tag(made.at + i).value_or(1), 0u) << "old bytes are handed out";
    }
    for (const shadow& each : shadows_)
      ASSERT_TRUE(each.at.value + each.size_bytes <= at->value ||
                  at->value + made.size_bytes <= each.at.value);
    write(made);
    shadows_.push_back(made);
  }
  void write(shadow& to) {
    const double us = 10.0 + static_cast<double>(any(500));
    const vmm::address_range what{to.at, to.size_bytes};
    to.tag = 100 + next_tag_++;
    ASSERT_TRUE(
        driver_.launch(to.stream, {.duration_us = us, .writes = {&what, 1}, .tag = to.tag}));
  }
  void free_one() {
    if (shadows_.empty()) return;
    const std::size_t which = any(shadows_.size());
    const shadow gone = shadows_[which];
    if (gone.is_pinned) return;
    const vmm::status freed = gone.owner < 2 ? pools_[gone.owner]->free(gone.at, gone.stream)
                                             : blocks_[gone.owner - 2]->free(gone.at, gone.stream);
    ASSERT_TRUE(freed) << vmm::describe(freed.error());
    shadows_.erase(shadows_.begin() + static_cast<std::ptrdiff_t>(which));
  }
  // By a remap listener, of any pool. A planned fault may refuse it.
  void free_in_callback() {
    if (shadows_.empty() || callback_frees_ == 0) return;
    const auto gone = shadows_.begin() + static_cast<std::ptrdiff_t>(any(shadows_.size()));
    if (gone->owner >= 2 || gone->is_pinned) return;
    const std::uint64_t struck = driver_.faults_struck();
    const vmm::status freed = pools_[gone->owner]->free(gone->at, gone->stream);
    EXPECT_TRUE(freed || driver_.faults_struck() != struck) << vmm::describe(freed.error());
    if (!freed) return;
    --callback_frees_;
    shadows_.erase(gone);
  }
  void work() {
    if (shadows_.empty()) return;
    shadow& to = shadows_[any(shadows_.size())];
    if (!is_suspended(to)) write(to);
  }
  void resize() {
    for (shadow& each : shadows_) {
      if (each.owner < 2 || any(3) != 0) continue;
      const std::uint64_t size_bytes = 2 * MiB * (1 + any(6));
      const auto at = blocks_[each.owner - 2]->resize({each.at, size_bytes});
      if (!at && at.error().code == errc::over_budget) {
        ASSERT_NE(budget_of(each.owner), 0u);
        return;
      }
      ASSERT_EQ(at.has_value(), !is_suspended(each));
      if (!at) {
        ASSERT_EQ(at.error().code, errc::in_use);
        return;
      }
      each.at = *at;
      each.size_bytes = size_bytes;
      write(each);
      return;
    }
  }
  void pin() {
    for (shadow& each : shadows_) {
      if (each.owner >= 2 || any(3) != 0) continue;
      if (each.is_pinned) {
        ASSERT_TRUE(pools_[each.owner]->unpin(each.at));
        each.is_pinned = false;
      } else {
        each.is_pinned = pools_[each.owner]->pin(each.at).has_value();
        ASSERT_EQ(each.is_pinned, !is_suspended(each));
      }
      return;
    }
  }
  void give_rights_or_trim() {
    const std::size_t i = any(4);
    if (any(2) == 0) {
      if (i < 2) (void)pools_[i]->trim(0);
      if (i >= 2) (void)blocks_[i - 2]->trim(0);
      return;
    }
    ASSERT_TRUE(driver_.finish_all());
    const vmm::access_grant one{vmm::device(1),
                                any(2) == 0 ? vmm::access::read : vmm::access::read_write};
    const vmm::status given =
        i < 2 ? pools_[i]->set_peers({&one, 1}) : blocks_[i - 2]->set_peers({&one, 1});
    ASSERT_TRUE(given) << vmm::describe(given.error());
    peers_[i] = one.rights;
  }
  void suspend() {
    const std::size_t tag = any(2);
    vmm::suspend_request request;
    request.tags = {&tags[tag], 1};
    if (any(3) == 0) request.contents = policies[any(3)];
    bool is_pinned = false;
    for (const shadow& each : shadows_)
      is_pinned = is_pinned || (each.is_pinned && each.owner == tag);
    const bool was_away = away_[tag];
    plan_fault();
    const std::uint64_t struck = driver_.faults_struck();
    const auto report = sleeper_->suspend(request);
    const bool has_struck = driver_.faults_struck() != struck;
    driver_.clear_faults();
    if (!report) {
      ASSERT_TRUE(was_away || is_pinned || has_struck) << vmm::describe(report.error());
      if (was_away || (is_pinned && !has_struck)) ASSERT_EQ(report.error().code, errc::in_use);
      ASSERT_EQ(*sleeper_->is_suspended(tags[tag]), was_away);
      return;
    }
    ASSERT_FALSE(was_away || is_pinned);
    away_[tag] = true;
    struck_[tag] = has_struck;
    for (shadow& each : shadows_) {
      if (each.owner % 2 != tag) continue;
      const suspend_contents promised = request.contents.value_or(contents_[each.owner]);
      if (promised == suspend_contents::zero) each.tag = 0;
      if (promised == suspend_contents::discard) each.tag.reset();
    }
  }
  void resume() {
    const std::size_t tag = any(2);
    std::optional<vmm::physical_handle> thief;
    if (any(4) == 0) {  // others take all there is
      const std::uint64_t free_bytes = driver_.query_memory(driver_.home())->free_bytes;
      const auto taken = driver_.create({free_bytes / (2 * MiB) * (2 * MiB), driver_.home()});
      if (taken) thief = *taken;
    }
    plan_fault();
    const std::uint64_t struck = driver_.faults_struck();
    const vmm::status back = sleeper_->resume({&tags[tag], 1});
    const bool has_struck = driver_.faults_struck() != struck;
    driver_.clear_faults();
    if (thief) ASSERT_TRUE(driver_.release(*thief));
    if (!away_[tag]) {
      ASSERT_FALSE(back);
      ASSERT_EQ(back.error().code, errc::invalid_argument);
      return;
    }
    if (!back) ASSERT_TRUE(thief || has_struck) << vmm::describe(back.error());
    ASSERT_EQ(*sleeper_->is_suspended(tags[tag]), !back);
    away_[tag] = !back;
    if (!back) struck_[tag] = struck_[tag] || has_struck;
  }

  std::mt19937_64 random_;
  vmm::fake_driver driver_{with_devices(2)};
  std::array<vmm::stream_handle, 3> streams_{};
  std::array<std::unique_ptr<vmm::stream_pool>, 2> pools_;
  std::array<std::unique_ptr<vmm::manager>, 2> blocks_;
  std::unique_ptr<vmm::suspender> sleeper_;
  std::array<std::unique_ptr<listener>, 2> listeners_;
  std::size_t callback_frees_ = 0;  // left in this step
  std::array<bool, 2> clears_{};
  std::array<suspend_contents, 4> contents_{};
  std::array<vmm::access, 4> peers_{};
  std::array<bool, 2> away_{}, struck_{};
  std::vector<std::uint64_t> budgets_;
  std::vector<shadow> shadows_;
  std::uint64_t next_tag_ = 0;
};

class SuspendModel : public testing::TestWithParam<vmm::backup_tier> {};

TEST_P(SuspendModel, RandomPrograms) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    program one(seed, GetParam());
    for (int step = 0; step < 120; ++step) {
      SCOPED_TRACE(testing::Message() << "step " << step);
      one.step();
      if (step % 4 == 0) one.expect_all();
      if (testing::Test::HasFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tiers, SuspendModel,
                         testing::Values(vmm::backup_tier::pinned, vmm::backup_tier::pageable,
                                         vmm::backup_tier::file));

}  // namespace

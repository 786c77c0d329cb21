// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: whatever part of a history a ring still has, going back through it from its end arrives at
// the allocator's state when that part began; and the listener's events add up to the allocator's
// statistics at every check. Method: seeded programs with every kind of event, faults of the driver
// among them, over rings that are much too small; a model gets all events and is compared at any
// moment of the past.
#include "moment.hpp"

import vmm.fake;
import vmm.history_tools;
import vmm.manager;
import vmm.stream;
import vmm.suspend;

namespace {

using vmm::history_kind;

struct model final : vmm::history_listener {
  void heard(const vmm::history_note& what) noexcept override { all.push_back(what); }
  [[nodiscard]] moment at(std::size_t count) const {
    moment out;
    for (std::size_t i = 0; i < count; ++i) {
      out.apply(all[i]);
      if (out.wrong.empty()) continue;
      out.wrong += ", event " + std::to_string(i);
      break;
    }
    return out;
  }

  std::vector<vmm::history_note> all;
};

// A map's own comparison, made in a module's file, is not found here.
[[nodiscard]] bool are_equal(const places& one, const places& other) {
  if (one.size() != other.size()) return false;
  for (const auto& [at, size] : one) {
    const auto found = other.find(at);
    if (found == other.end() || found->second != size) return false;
  }
  return true;
}

[[nodiscard]] places sizes_of(const std::map<std::uint64_t, vmm::tools::known_block>& blocks) {
  places out;
  for (const auto& [at, block] : blocks) out[at] = block.size_bytes;
  return out;
}

[[nodiscard]] std::uint64_t fact(const vmm::history& of, const char* name) {
  return std::stoull("0" + vmm::tools::fact_of(of, name));
}

void expect_same_events(const vmm::history& taken, const model& heard) {
  ASSERT_EQ(taken.lost_count + taken.events.size(), heard.all.size());
  for (std::size_t i = 0; i < taken.events.size(); ++i) {
    const vmm::history_event& event = taken.events[i];
    const vmm::history_note& note = heard.all[taken.lost_count + i];
    ASSERT_EQ(event.kind, note.kind) << i;
    ASSERT_EQ(event.at, note.where.base) << i;
    ASSERT_EQ(event.size_bytes, note.where.size_bytes) << i;
    ASSERT_EQ(event.stream, static_cast<std::uint64_t>(note.stream)) << i;
  }
}

// Of a pool without concurrent calls.
void expect_agreement(const vmm::history& taken, const model& heard) {
  expect_same_events(taken, heard);
  const moment now = heard.at(heard.all.size());
  const moment then = heard.at(taken.lost_count);
  ASSERT_EQ(now.wrong, "");
  const vmm::tools::history_account account = vmm::tools::account_for(taken);
  EXPECT_EQ(account.left_out_count, 0u);
  EXPECT_TRUE(are_equal(sizes_of(account.live_after), now.live));
  EXPECT_TRUE(are_equal(account.mapped_before, then.current));
  EXPECT_TRUE(are_equal(account.mapped_after, now.current));
  places before = sizes_of(account.live_before);
  EXPECT_EQ(before.size(), then.live.size());
  for (const auto& [at, size] : then.live) {
    const auto known = account.live_before.find(at);
    if (known != account.live_before.end() && known->second.is_size_unknown)
      EXPECT_LE(before[at], size) << "resized since";
    else
      EXPECT_EQ(before[at], size);
  }
  EXPECT_EQ(fact(taken, "held_bytes"), now.held_bytes);
  EXPECT_EQ(fact(taken, "live_bytes"), now.live_bytes());
  EXPECT_EQ(fact(taken, "live_count"), now.live.size());
  const auto bytes = *vmm::encode_history(taken);
  const auto read = vmm::decode_history(bytes);
  ASSERT_TRUE(read) << read.error().detail;
  EXPECT_EQ(read->events.size(), taken.events.size());
}

struct Model : testing::TestWithParam<unsigned> {
  [[nodiscard]] vmm::history_options small_ring() {
    vmm::history_options how;
    how.event_count = std::uint64_t{1} << (10 + random() % 3);
    how.clock_interval = std::uint32_t{1} << (random() % 13);
    how.listener = &heard;
    return how;
  }
  void fail_somewhere() {
    constexpr vmm::call calls[] = {vmm::call::create, vmm::call::map, vmm::call::set_access,
                                   vmm::call::unmap};
    const vmm::call where = calls[random() % 4];
    const auto answers = driver.possible_errors(where);
    if (answers.empty()) return;
    driver.fail({where, 1 + random() % 3, false, answers[random() % answers.size()]});
  }

  std::mt19937 random{GetParam()};
  vmm::fake_driver driver;
  model heard;
};

struct PoolModel : Model {
  struct block {
    vmm::address at{};
    vmm::stream_handle stream{};
    unsigned pin_count = 0;
  };

  void open() {
    vmm::pool_options options;
    options.policy.handle_bytes_max = 2 * MiB;
    options.policy.headroom = 0;
    options.policy.tuning.slack_bytes = 0;
    options.policy.tuning.min_move_share = 0;
    options.policy.tuning.growth_share = 0;
    options.budget_bytes = 72 * MiB;
    options.wait_when_short = random() % 2 == 0;
    options.capture = vmm::capture_rule::private_memory;
    options.leak_hook.hook = nullptr;
    ring = std::move(*vmm::history_ring::make(small_ring()));
    options.recorder = ring.get();
    pool = std::make_unique<vmm::stream_pool>(driver, options);
    for (vmm::stream_handle& each : streams) each = *driver.create_stream();
  }
  void TearDown() override {
    driver.clear_faults();
    EXPECT_TRUE(driver.finish_all());
    pool.reset();
    EXPECT_EQ(heard.at(heard.all.size()).wrong, "") << "at the end, too";
    ring.reset();
    for (const vmm::stream_handle each : streams) (void)driver.destroy_stream(each);
  }

  void step() {
    switch (random() % 24) {
      case 0: (void)pool->trim(random() % (32 * MiB)); return;
      case 1: (void)driver.finish_all(); return;
      case 2: return fail_somewhere();
      case 3: return pin();
      case 4: return unpin();
      case 5: return capture();
      case 6: return change_stream();
      case 7: (void)pool->synchronize(); return;
      case 8:
        pool->history().record(
            {random() % 2 == 0 ? history_kind::suspended : history_kind::resumed, {{4096}, 512}});
        return;
      default: break;
    }
    allocate_or_free();
  }
  void allocate_or_free() {
    if (random() % 5 < 3 || blocks.empty()) return allocate();
    free(random() % blocks.size());
  }
  void free(std::size_t which) {
    const bool unordered = random() % 6 == 0;
    const block gone = blocks[which];
    if (!(unordered ? pool->free(gone.at) : pool->free(gone.at, gone.stream))) return;
    blocks[which] = blocks.back();
    blocks.pop_back();
    for (unsigned left = gone.pin_count; left != 0; --left) freed_pins.push_back(gone.at);
  }
  void look() {
    const auto taken = pool->history().take();
    ASSERT_TRUE(taken) << taken.error().detail;
    expect_agreement(*taken, heard);
    const vmm::pool_statistics now = pool->statistics();
    const moment seen = heard.at(heard.all.size());
    EXPECT_EQ(seen.live_bytes(), now.live_bytes);
    EXPECT_EQ(moment::sum(seen.current), now.mapped_bytes);
    EXPECT_LE(seen.stale.size(), now.stale_count) << "more where growths have failed";
    EXPECT_EQ(seen.pins.size(), now.pinned_count);
  }

  std::unique_ptr<vmm::history_ring> ring;
  std::unique_ptr<vmm::stream_pool> pool;
  vmm::stream_handle streams[3]{};
  std::vector<block> blocks;

 private:
  void allocate() {
    const vmm::stream_handle stream = streams[random() % 3];
    const std::uint64_t size = 1 + random() % (random() % 3 == 0 ? 10 * MiB : 90'000);
    const auto at = pool->allocate(size, stream);
    if (!at) return;
    blocks.push_back({*at, stream});
    const vmm::address_range what{*at, size};
    (void)driver.launch(stream, {.duration_us = 20, .writes = {&what, 1}});
  }
  void pin() {
    if (blocks.empty()) return;
    block& which = blocks[random() % blocks.size()];
    which.pin_count += pool->pin(which.at) ? 1 : 0;
  }
  void unpin() {
    if (!freed_pins.empty()) {
      (void)pool->unpin(freed_pins.back());
      freed_pins.pop_back();
      return;
    }
    for (block& each : blocks) {
      if (each.pin_count == 0) continue;
      each.pin_count -= pool->unpin(each.at) ? 1 : 0;
      return;
    }
  }
  // A graph that keeps a block for a while, and frees another of its own.
  void capture() {
    const vmm::stream_handle stream = streams[random() % 3];
    if (!driver.begin_capture(stream, vmm::capture_mode::any_thread)) return;
    const auto number = pool->captures().number(stream);
    const auto inside = pool->allocate(1 + random() % (3 * MiB), stream);
    const auto stays = pool->allocate(1 + random() % MiB, stream);
    if (inside) (void)pool->free(*inside, stream);
    const auto graph = driver.end_capture(stream);
    if (number) (void)pool->captures().release(*number, stream);
    if (stays) (void)pool->free(*stays, stream);
    if (graph) (void)driver.destroy_graph(*graph);
  }
  void change_stream() {
    const std::size_t which = random() % 3;
    for (const block& each : blocks)
      if (each.stream == streams[which]) return;
    if (!pool->forget(streams[which])) return;
    (void)driver.destroy_stream(streams[which]);
    streams[which] = *driver.create_stream();
  }

  std::vector<vmm::address> freed_pins;
};

TEST_P(PoolModel, EveryPartOfAHistoryLeadsBackToWhatWasThere) {
  open();
  for (int i = 0; i < 1'500; ++i) {
    step();
    if (random() % 15 == 0) look();
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
  driver.clear_faults();
  look();
}

// In the middle of a growth, and of giving back.
class looks_at_each_change final : public vmm::remap_listener {
 public:
  looks_at_each_change(vmm::stream_pool& pool, const model& heard) : pool_(pool), heard_(heard) {}
  void before_change(const vmm::remap_notice&) noexcept override { look(); }
  void after_change(const vmm::remap_notice&) noexcept override { look(); }

  int look_count = 0;

 private:
  void look() {
    if (++look_count % 10 != 0) return;
    const auto taken = *pool_.history().take();
    expect_same_events(taken, heard_);
    EXPECT_TRUE(vmm::decode_history(*vmm::encode_history(taken)));
    (void)vmm::tools::account_for(taken);
  }

  vmm::stream_pool& pool_;
  const model& heard_;
};

TEST_P(PoolModel, AListenerMayLookInTheMiddleOfAChange) {
  open();
  ASSERT_TRUE(pool->set_up());
  looks_at_each_change listener(*pool, heard);
  const auto subscription = *pool->remaps().subscribe(listener);
  for (int i = 0; i < 400; ++i) step();
  EXPECT_GT(listener.look_count, 30);
  EXPECT_TRUE(pool->remaps().unsubscribe(subscription));
  driver.clear_faults();
  look();
}

// From the middle on: what was live when it began is known from the end alone.
TEST_P(PoolModel, AHistoryThatStartsInTheMiddleLeadsBackToItsStart) {
  open();
  pool.reset();
  vmm::pool_options options;
  // their memory is flushed, and calls are recorded
  options.stream_arenas = vmm::arena_rule::always;
  options.budget_bytes = 72 * MiB;
  options.capture = vmm::capture_rule::private_memory;
  options.leak_hook.hook = nullptr;
  pool = std::make_unique<vmm::stream_pool>(driver, options);
  for (int turn = 0; turn < 6; ++turn) {
    for (int i = 0; i < 150; ++i) step();
    heard.all.clear();
    const auto before = *pool->regions();
    ASSERT_TRUE(pool->history().start(small_ring()));
    for (int i = 0; i < 150; ++i) step();
    const auto taken = *pool->history().stop();
    expect_same_events(taken, heard);
    const vmm::tools::history_account account = vmm::tools::account_for(taken);
    EXPECT_EQ(account.left_out_count, 0u);
    if (taken.lost_count != 0) continue;
    places live;
    for (const vmm::pool_region& each : before) {
      if (each.kind == vmm::pool_region_kind::live)
        live[each.range.base.value] = each.range.size_bytes;
    }
    EXPECT_TRUE(are_equal(sizes_of(account.live_before), live));
    if (HasFailure()) return;
  }
  heard.all.clear();
}

// The blocks that the first one left behind have no owner: they are left out, and change nothing.
TEST_P(PoolModel, ARingOutlivesItsPoolAndServesAnother) {
  open();
  for (int i = 0; i < 200; ++i) step();
  driver.clear_faults();
  vmm::pool_options options = pool->options();
  pool.reset();
  EXPECT_EQ(heard.at(heard.all.size()).wrong, "");
  EXPECT_TRUE(heard.at(heard.all.size()).current.empty()) << "a pool ends with all its memory";
  heard.all.clear();
  blocks.clear();
  pool = std::make_unique<vmm::stream_pool>(driver, options);
  EXPECT_FALSE(pool->history().take()) << "it has allocated nothing";
  ASSERT_TRUE(pool->set_up());
  for (int i = 0; i < 200; ++i) step();
  driver.clear_faults();
  const auto taken = *pool->history().take();
  const vmm::tools::history_account account = vmm::tools::account_for(taken);
  EXPECT_TRUE(are_equal(sizes_of(account.live_after), heard.at(heard.all.size()).live));
  EXPECT_TRUE(are_equal(account.mapped_after, heard.at(heard.all.size()).current));
  EXPECT_TRUE(vmm::decode_history(*vmm::encode_history(taken)));
}

// Each look is a piece of the one history, whatever the others do meanwhile.
TEST_P(PoolModel, LooksBesideWorkingThreadsAreOfOneHistory) {
  open();
  std::vector<vmm::history> looks;
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 3; ++i) {
    threads.emplace_back([this, i] {
      std::mt19937 mine(GetParam() * 10 + i);
      std::vector<vmm::address> live;
      for (int step = 0; step < 500; ++step) {
        if (mine() % 2 == 0 || live.empty()) {
          const auto at = pool->allocate(1 + mine() % (3 * MiB), streams[i]);
          if (at) live.push_back(*at);
        } else {
          EXPECT_TRUE(pool->free(live.back(), streams[mine() % 3]));
          live.pop_back();
        }
        if (mine() % 100 == 0) (void)pool->trim(0);
      }
      for (const vmm::address each : live) EXPECT_TRUE(pool->free(each, streams[i]));
    });
  }
  for (int i = 0; i < 30; ++i) {
    auto taken = pool->history().take();
    if (taken) looks.push_back(std::move(*taken));
  }
  for (std::thread& each : threads) each.join();
  for (const vmm::history& each : looks) {
    ASSERT_LE(each.lost_count + each.events.size(), heard.all.size());
    for (std::size_t i = 0; i < each.events.size(); ++i) {
      ASSERT_EQ(each.events[i].kind, heard.all[each.lost_count + i].kind);
      ASSERT_EQ(each.events[i].at, heard.all[each.lost_count + i].where.base);
    }
    EXPECT_TRUE(vmm::decode_history(*vmm::encode_history(each)));
    (void)vmm::tools::account_for(each);
  }
  look();
}

struct ManagerModel : Model {
  void open(const vmm::manager_policy& policy) {
    vmm::manager_options options;
    options.policy = policy;
    options.budget_bytes = 80 * MiB;
    options.shareable = vmm::share_kind::posix_fd;
    options.leak_hook.hook = nullptr;
    ring = std::move(*vmm::history_ring::make(small_ring()));
    options.recorder = ring.get();
    blocks = std::make_unique<vmm::manager>(driver, options);
    stream = *driver.create_stream();
  }
  void TearDown() override {
    driver.clear_faults();
    EXPECT_TRUE(driver.finish_all());
    blocks.reset();
    ring.reset();
    (void)driver.destroy_stream(stream);
  }

  void step() {
    const std::size_t which = live.empty() ? 0 : random() % live.size();
    const std::uint64_t size = 1 + random() % (9 * MiB);
    switch (live.empty() ? 9 : random() % 20) {
      case 0: (void)blocks->trim(random() % (32 * MiB)); return;
      case 1: (void)driver.finish_all(); return;
      case 2: return fail_somewhere();
      case 3: (void)blocks->synchronize(live[which]); return;
      case 4:
        if (blocks->exports().begin(live[which], vmm::export_rule::pinned))
          (void)blocks->exports().end(live[which]);
        return;
      case 5:
        (void)blocks->copy({.target = live[which], .source = live.back(), .size_bytes = 2 * MiB},
                           random() % 2 == 0 ? vmm::copy_mode::alias : vmm::copy_mode::move);
        return;
      case 6:
      case 7:
      case 8:
        if (const auto at = blocks->resize({.at = live[which], .size_bytes = size * 2}))
          live[which] = *at;
        return;
      default: break;
    }
    if (random() % 7 < 4 || live.empty()) {
      const auto at = blocks->allocate(
          {.size_bytes = size, .growth_bytes = random() % 3 * MiB, .stream = stream});
      if (at) live.push_back(*at);
    } else if (blocks->free(live[which])) {
      live[which] = live.back();
      live.pop_back();
    }
  }
  void look() {
    const auto taken = blocks->history().take();
    ASSERT_TRUE(taken) << taken.error().detail;
    expect_agreement(*taken, heard);
    const vmm::manager_statistics now = blocks->statistics();
    EXPECT_EQ(heard.at(heard.all.size()).live_bytes(), now.mapped_bytes);
    EXPECT_EQ(live.size(), now.live_count);
  }

  void work_beside_others(unsigned seed) {
    std::mt19937 mine(seed);
    std::vector<vmm::address> own;
    for (int i = 0; i < 400; ++i) {
      const std::uint64_t size = 1 + mine() % (5 * MiB);
      const std::size_t which = own.empty() ? 0 : mine() % own.size();
      const unsigned what = own.empty() ? 0 : mine() % 6;
      if (what < 2) {
        if (const auto at = blocks->allocate({.size_bytes = size, .stream = stream}))
          own.push_back(*at);
      } else if (what < 5) {
        if (const auto at = blocks->resize({.at = own[which], .size_bytes = size}))
          own[which] = *at;
      } else {
        EXPECT_TRUE(blocks->free(own[which]));
        own[which] = own.back();
        own.pop_back();
      }
      if (mine() % 60 == 0) (void)blocks->trim(0);
    }
    for (const vmm::address each : own) EXPECT_TRUE(blocks->free(each));
  }
  // Of a manager that others were calling.
  void expect_true_look(const vmm::history& taken) {
    const std::size_t end = taken.lost_count + taken.events.size();
    ASSERT_LE(end, heard.all.size());
    const moment then = heard.at(end);
    const vmm::tools::history_account account = vmm::tools::account_for(taken);
    EXPECT_EQ(account.left_out_count, 0u);
    EXPECT_TRUE(are_equal(sizes_of(account.live_after), then.live));
    EXPECT_EQ(fact(taken, "held_bytes"), then.held_bytes);
    EXPECT_EQ(fact(taken, "live_bytes"), then.live_bytes());
    EXPECT_EQ(fact(taken, "live_count"), then.live.size());
    const auto read = vmm::decode_history(*vmm::encode_history(taken));
    EXPECT_TRUE(read) << read.error().detail;
  }

  std::unique_ptr<vmm::history_ring> ring;
  std::unique_ptr<vmm::manager> blocks;
  vmm::stream_handle stream{};
  std::vector<vmm::address> live;
};

TEST_P(ManagerModel, EveryPartOfAHistoryLeadsBackToWhatWasThere) {
  open(GetParam() % 3 == 0   ? vmm::manager_policy::va_pool()
       : GetParam() % 3 == 1 ? vmm::manager_policy::keep_mapped()
                             : vmm::manager_policy::virtual_caching());
  for (int i = 0; i < 1'500; ++i) {
    step();
    if (random() % 15 == 0 && blocks->granularity_bytes() != 0) look();
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
  driver.clear_faults();
  look();
}

// A block that moves leaves addresses that another thread's next block may have at once, and a look
// comes at any moment between.
TEST_P(ManagerModel, LooksBesideWorkingThreadsSayWhatWasThere) {
  open(GetParam() % 2 == 0 ? vmm::manager_policy::va_pool() : vmm::manager_policy::keep_mapped());
  std::vector<vmm::history> looks;
  std::vector<std::thread> threads;
  std::atomic<int> working = 3;
  for (unsigned i = 0; i < 3; ++i) {
    threads.emplace_back([this, i, &working] {
      work_beside_others(GetParam() * 10 + i);
      --working;
    });
  }
  while (working != 0) {
    auto taken = blocks->history().take();
    if (taken && looks.size() < 200) looks.push_back(std::move(*taken));
  }
  for (std::thread& each : threads) each.join();
  ASSERT_EQ(heard.at(heard.all.size()).wrong, "");
  for (const vmm::history& each : looks) {
    expect_true_look(each);
    if (HasFailure()) return;
  }
  look();
}

// Suspended and resumed for true, with frees in between: released memory is recorded as such,
// mapping by mapping, and every resumed mapping was suspended.
void expect_naps(const vmm::history& taken) {
  if (taken.lost_count != 0) return;
  places gone;
  std::size_t nap_count = 0;
  for (const vmm::history_event& each : taken.events) {
    const std::uint64_t at = each.at.value;
    if (each.kind == history_kind::suspended) {
      ++nap_count;
      ASSERT_TRUE(gone.emplace(at, each.size_bytes).second);
    }
    if (each.kind == history_kind::resumed) ASSERT_EQ(gone.erase(at), 1u);
    if (each.kind == history_kind::released) gone.erase(at);
    const bool is_manager = vmm::tools::fact_of(taken, "allocator") == "manager";
    if (is_manager && each.kind == history_kind::freed)  // with all of its mappings
      gone.erase(gone.lower_bound(at), gone.lower_bound(at + each.size_bytes));
  }
  EXPECT_GT(nap_count, 0u);
  EXPECT_TRUE(gone.empty()) << "all memory is back";
}

TEST_P(PoolModel, SuspendedAndResumed) {
  open();
  for (int turn = 0; turn < 8; ++turn) {
    for (int i = 0; i < 40; ++i) allocate_or_free();
    driver.clear_faults();
    vmm::suspender sleeper;
    ASSERT_TRUE(sleeper.add(*pool, {.tag = "all"}));
    ASSERT_TRUE(sleeper.suspend());
    look();
    EXPECT_FALSE(pool->allocate(512, streams[0]));
    for (int i = 0; i < 12 && !blocks.empty(); ++i) free(0);
    look();
    ASSERT_TRUE(sleeper.resume());
    look();
    if (HasFailure()) return;
  }
  expect_naps(*pool->history().take());
}

TEST_P(ManagerModel, SuspendedAndResumed) {
  open(GetParam() % 2 == 0 ? vmm::manager_policy::va_pool() : vmm::manager_policy::keep_mapped());
  for (int turn = 0; turn < 8; ++turn) {
    for (int i = 0; i < 30; ++i) {
      const auto at = blocks->allocate({.size_bytes = 1 + random() % (2 * MiB), .stream = stream});
      if (at) live.push_back(*at);
      if (live.size() < 12) continue;
      EXPECT_TRUE(blocks->free(live.back()));
      live.pop_back();
    }
    vmm::suspender sleeper;
    ASSERT_TRUE(sleeper.add(*blocks, {.tag = "all"}));
    ASSERT_TRUE(sleeper.suspend());
    look();
    EXPECT_FALSE(blocks->allocate(MiB));
    EXPECT_TRUE(blocks->free(live.back()));
    live.pop_back();
    look();
    ASSERT_TRUE(sleeper.resume());
    look();
    if (HasFailure()) return;
  }
  expect_naps(*blocks->history().take());
}

INSTANTIATE_TEST_SUITE_P(Seeds, ManagerModel, testing::Range(1U, 9U));
INSTANTIATE_TEST_SUITE_P(Seeds, PoolModel, testing::Range(1U, 9U));

}  // namespace

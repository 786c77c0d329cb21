// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: if any host allocation inside the library fails, a call of a suspender returns
// out_of_host_memory or succeeds all the same; regions are as before or as promised, contents are
// never lost, and nothing leaks.
// Method: the allocation sweep (../support/allocation_sweep.hpp) over the calls of a suspender.
#include "../support/allocation_sweep.hpp"

import vmm.manager;
import vmm.stream;
import vmm.suspend;

namespace {

using vmm::address, vmm::suspend_contents;

constexpr std::string_view weights[] = {"weights"};

using B = sweeps::paused_driver;

// A pool and a manager of several handles each, as two regions, and a pool that is none.
struct world {
  B driver = sweeps::paused(vmm::fake::profile::cuda());
  std::unique_ptr<vmm::stream_pool> pool, other;
  std::unique_ptr<vmm::manager> blocks;
  std::unique_ptr<vmm::suspender> sleeper;
  vmm::stream_handle stream{};
  address in_pool{}, in_blocks{};

  explicit world(const vmm::suspend_options& options) {
    vmm::pool_options of_pool;
    of_pool.policy.handle_bytes_max = 2 * MiB;
    vmm::manager_options of_blocks;
    of_blocks.policy.chunk_bytes = 2 * MiB;
    pool = std::make_unique<vmm::stream_pool>(driver, of_pool);
    other = std::make_unique<vmm::stream_pool>(driver, of_pool);
    blocks = std::make_unique<vmm::manager>(driver, of_blocks);
    sleeper = std::make_unique<vmm::suspender>(options);
    EXPECT_TRUE(sleeper->add(*pool, {"kv", suspend_contents::keep}));
    EXPECT_TRUE(sleeper->add(*blocks, {"weights", suspend_contents::keep}));
    stream = *driver.create_stream();
    in_pool = *pool->allocate(6 * MiB, stream);
    const address gone = *pool->allocate(2 * MiB, stream);
    in_blocks = *blocks->allocate({.size_bytes = 4 * MiB, .stream = stream});
    EXPECT_TRUE(fake().write_tag({in_pool, 6 * MiB}, 11));
    EXPECT_TRUE(fake().write_tag({in_blocks, 4 * MiB}, 12));
    EXPECT_TRUE(pool->free(gone, stream));
  }
  [[nodiscard]] vmm::fake_driver& fake() { return driver.driver(); }
  [[nodiscard]] bool is_suspended(const char* tag) const {
    const auto known = sleeper->is_suspended(tag);
    return known && *known;
  }

  void expect_whole(const std::string& what) {
    ASSERT_TRUE(pool->validate()) << what;
    ASSERT_TRUE(blocks->validate()) << what;
    if (!is_suspended("kv")) expect_tag(in_pool, 6 * MiB, 11, what);
    if (!is_suspended("weights")) expect_tag(in_blocks, 4 * MiB, 12, what);
  }
  void expect_tag(address at, std::uint64_t size_bytes, std::uint64_t tag,
                  const std::string& what) {
    for (std::uint64_t byte = 0; byte < size_bytes; byte += 2 * MiB)
      ASSERT_EQ(fake().read_tag(at + byte).value_or(0), tag) << what;
  }
  // Everything comes back, is freed, and nothing is left.
  void finish(const std::string& what) {
    if (is_suspended("kv") || is_suspended("weights")) {
      const vmm::status back = sleeper->resume();
      EXPECT_TRUE(back) << what << (back ? "" : vmm::describe(back.error()));
    }
    expect_whole(what);
    sleeper.reset();
    pool.reset();
    other.reset();
    blocks.reset();
    EXPECT_TRUE(driver.destroy_stream(stream));
    EXPECT_TRUE(fake().check_empty()) << what << fake().report();
    for (const auto& misuse : fake().misuses()) ADD_FAILURE() << what << ": " << misuse.detail;
  }
};

template <class Answer>
vmm::status status_of(const Answer& answer) {
  return answer ? vmm::status{} : vmm::status{answer.error()};
}

struct operation {
  const char* name;
  bool begins_suspended;
  bool allocates;
  std::function<vmm::status(world&)> run;
};

std::vector<operation> all_operations() {
  using is = world;
  return {
      {"add", false, true,
       [](is& w) { return w.sleeper->add(*w.other, {"a tag that is too long for a small text"}); }},
      {"remove", false, false, [](is& w) { return w.sleeper->remove(*w.other); }},
      {"suspend all", false, true, [](is& w) { return status_of(w.sleeper->suspend()); }},
      {"suspend one", false, true,
       [](is& w) { return status_of(w.sleeper->suspend({.tags = weights})); }},
      {"suspend beside a stream", false, true,
       [](is& w) { return status_of(w.sleeper->suspend({.streams = {&w.stream, 1}})); }},
      {"discard", false, true,
       [](is& w) {
         const auto away = w.sleeper->suspend({.contents = suspend_contents::keep});
         return status_of(away);
       }},
      {"resume all", true, true, [](is& w) { return w.sleeper->resume(); }},
      {"resume one", true, true, [](is& w) { return w.sleeper->resume(weights); }},
      {"suspend what is away", true, false,
       [](is& w) {
         const auto refused = w.sleeper->suspend({.tags = weights});
         return refused || refused.error().code == vmm::errc::in_use ? vmm::status{}
                                                                     : vmm::status{refused.error()};
       }},
      {"ask for the obstacle", true, false,
       [](is& w) { return status_of(w.sleeper->last_obstacle()); }},
      {"return backups", false, false, [](is& w) { return w.sleeper->return_backups(); }},
  };
}

void run(const operation& one, const vmm::suspend_options& options, sweeps::allocation_sweep& all,
         sweeps::planned_failure planned) {
  world w(options);
  if (one.begins_suspended) EXPECT_TRUE(w.sleeper->suspend());
  if (one.name == std::string_view("remove")) EXPECT_TRUE(w.sleeper->add(*w.other, {"other"}));
  const bool kv_before = w.is_suspended("kv");
  const bool weights_before = w.is_suspended("weights");
  const vmm::status done = all.run_under(planned, [&] { return one.run(w); });
  const std::string what = one.name + sweeps::describe(planned);
  w.expect_whole(what);
  if (!done) {
    EXPECT_EQ(w.is_suspended("kv"), kv_before) << what;
    EXPECT_EQ(w.is_suspended("weights"), weights_before) << what;
    sweeps::expect_repeatable(done.error(), [&] { return one.run(w); }, what);
    w.expect_whole(what);
  }
  w.finish(what);
}

void sweep(const vmm::suspend_options& options) {
  sweeps::allocation_sweep all;
  for (const operation& one : all_operations()) {
    const std::uint64_t created_count =
        all.sweep([&](sweeps::planned_failure planned) { run(one, options, all, planned); });
    EXPECT_TRUE(created_count > 0 || !one.allocates) << one.name;
    if (testing::Test::HasFailure()) break;
  }
  all.expect_complete("suspender");
}

TEST(SuspendHostMemory, InPinnedMemory) { sweep({.tier = vmm::backup_tier::pinned}); }
TEST(SuspendHostMemory, InPageableMemory) { sweep({.tier = vmm::backup_tier::pageable}); }
TEST(SuspendHostMemory, InAFile) {
  sweep({.tier = vmm::backup_tier::file, .directory = testing::TempDir()});
}
TEST(SuspendHostMemory, Verified) { sweep({.tier = vmm::backup_tier::pageable, .verify = true}); }

}  // namespace

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: if any host allocation inside the library fails, a call of a suspender returns
// out_of_host_memory or succeeds all the same; regions are as before or as promised, contents are
// never lost, and nothing leaks. Method: operator new is replaced; each operation is run
// once to count the library's own allocations (an observer leaves the driver's out), then once for
// each of them failing, and once with all from it on failing.
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "../support/failing_new.h"

import vmm.backend;
import vmm.fake;
import vmm.manager;
import vmm.stream;
import vmm.suspend;

namespace {

using failing_new::plan;
using vmm::address;
using vmm::suspend_contents;

constexpr std::uint64_t MiB = std::uint64_t{1} << 20;
constexpr std::string_view weights[] = {"weights"};

struct pause_in_driver {
  vmm::status before(const vmm::call_record&) noexcept {
    ++plan.paused_count;
    return {};
  }
  void after(const vmm::call_record&) noexcept { --plan.paused_count; }
};

using B = vmm::observed_backend<vmm::fake_driver, pause_in_driver>;

// A pool and a manager of several handles each, as two regions, and a pool that is none.
struct world {
  B driver{vmm::fake_driver{}, std::make_shared<pause_in_driver>()};
  std::unique_ptr<vmm::stream_pool> pool, other;
  std::unique_ptr<vmm::manager> blocks;
  std::unique_ptr<vmm::suspender> sleeper;
  vmm::stream_handle stream{};
  address in_pool{}, in_blocks{};

  explicit world(const vmm::suspend_options& options) {
    vmm::pool_options of_pool;
    of_pool.rules.handle_bytes = 2 * MiB;
    vmm::manager_options of_blocks;
    of_blocks.rules.chunk_bytes = 2 * MiB;
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

// Returns the number of allocations that the operation made, or 0 if the planned one was not
// reached.
std::uint64_t run(const operation& one, const vmm::suspend_options& options, std::uint64_t fail_at,
                  bool forever) {
  world w(options);
  if (one.begins_suspended) EXPECT_TRUE(w.sleeper->suspend());
  if (one.name == std::string_view("remove")) EXPECT_TRUE(w.sleeper->add(*w.other, {"other"}));
  const bool kv_before = w.is_suspended("kv");
  const bool weights_before = w.is_suspended("weights");
  plan = {.armed = true, .fail_at = fail_at, .forever = forever};
  const vmm::status done = one.run(w);
  plan.armed = false;
  const std::uint64_t seen_count = plan.seen_count;
  const bool struck = plan.struck_count > 0;
  const std::string what = std::string(one.name) + ", allocation " + std::to_string(fail_at) +
                           (forever ? " and all behind it" : "");
  w.expect_whole(what);
  if (!done) {
    EXPECT_EQ(done.error().code, vmm::errc::out_of_host_memory)
        << what << ": " << vmm::describe(done.error());
    EXPECT_EQ(w.is_suspended("kv"), kv_before) << what;
    EXPECT_EQ(w.is_suspended("weights"), weights_before) << what;
    const vmm::status again = one.run(w);
    EXPECT_TRUE(again) << what << ": " << (again ? "" : vmm::describe(again.error()));
    w.expect_whole(what);
  }
  w.finish(what);
  return fail_at == 0 || struck ? seen_count : 0;
}

void sweep(const vmm::suspend_options& options) {
  std::uint64_t failed_count = 0;
  for (const operation& one : all_operations()) {
    const std::uint64_t made_count = run(one, options, 0, false);
    EXPECT_TRUE(made_count > 0 || !one.allocates) << one.name;
    for (std::uint64_t nth = 1; nth <= made_count; ++nth) {
      for (const bool forever : {false, true}) {
        EXPECT_GT(run(one, options, nth, forever), 0u) << one.name << ", allocation " << nth;
        ++failed_count;
      }
    }
    if (testing::Test::HasFailure()) break;
  }
  std::printf("%llu failing allocations\n", static_cast<unsigned long long>(failed_count));
  EXPECT_GT(failed_count, 50u);
}

TEST(SuspendHostMemory, InPinnedMemory) { sweep({.tier = vmm::backup_tier::pinned}); }
TEST(SuspendHostMemory, InPageableMemory) { sweep({.tier = vmm::backup_tier::pageable}); }
TEST(SuspendHostMemory, InAFile) {
  sweep({.tier = vmm::backup_tier::file, .directory = testing::TempDir()});
}
TEST(SuspendHostMemory, Verified) { sweep({.tier = vmm::backup_tier::pageable, .verify = true}); }

}  // namespace

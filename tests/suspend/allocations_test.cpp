// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: if any host allocation inside the library fails, a call of a suspender returns
// out_of_host_memory or succeeds all the same; regions are as before or as promised, contents are
// never lost, and nothing leaks.
// Method: the allocation sweep (../support/allocation_sweep.hpp) over the calls of a suspender.
#include "../support/allocation_sweep.hpp"
#include "scene.hpp"

namespace {

using sweeps::status_of, vmm::address, vmm::suspend_contents;

constexpr std::string_view weights[] = {"weights"};

using B = sweeps::paused_driver;

// Beside a pool without a region.
struct world : scene<B> {
  explicit world(const vmm::suspend_options& options)
      : scene(sweeps::paused(vmm::fake::profile::cuda()), options) {}
  vmm::stream_pool other{driver, of_pool};
};

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
       [](is& w) { return w.sleeper->add(w.other, {"a tag that is too long for a small text"}); }},
      {"remove", false, false, [](is& w) { return w.sleeper->remove(w.other); }},
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
  if (one.name == std::string_view("remove")) EXPECT_TRUE(w.sleeper->add(w.other, {"other"}));
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

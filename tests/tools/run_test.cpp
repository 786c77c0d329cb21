// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a replay through the manager reports what the driver saw, on every driver and policy.
// Method: a trace small enough to follow by hand, with the driver's calls and bytes worked out; the
// same on the host driver; a trace of more memory than any machine has; a budget that is too small.
#include "../support/test.h"

import vmm.replay;
import vmm.trace;

namespace {

using vmm::call, vmm::tools::replay_report, vmm::tools::run_outcome;

// va_pool, in granules of 2 MiB: 1 takes 4 MiB and 2 takes 2 MiB, both new. 3 takes the 4 MiB that
// 1 left. 4 needs 6 MiB: the 2 MiB that 2 left pass the fragment filter, 4 MiB are new.
constexpr std::string_view tiny =
    "a 1 3145728 0\n"
    "a 2 1 0\n"
    "f 1\n"
    "a 3 4194304 0\n"
    "f 2\n"
    "i 1\n"
    "a 4 6291456 0\n"
    "f 3\n"
    "f 4\n";

vmm::tools::trace parse(std::string_view text) {
  vmm::tools::read_outcome outcome =
      vmm::tools::parse_trace("tiny.trace", std::as_bytes(std::span{text}));
  EXPECT_TRUE(outcome) << vmm::tools::describe(outcome.trouble);
  return outcome ? std::move(*outcome.value) : vmm::tools::trace{};
}

run_outcome run(std::string_view text, const vmm::tools::run_options& options) {
  return vmm::tools::run_replay(parse(text), options);
}

std::uint64_t calls(const replay_report& report, call kind) {
  return report.driver_calls[static_cast<std::size_t>(kind)];
}

TEST(Run, ReportsWhatTheDriverSaw) {
  const run_outcome outcome = run(tiny, {.policy = "va_pool"});
  ASSERT_TRUE(outcome.report) << outcome.problem;
  const replay_report& report = *outcome.report;
  EXPECT_EQ(report.trace, "tiny");
  EXPECT_EQ(report.backend, "fake");
  EXPECT_EQ(report.policy, "va_pool");
  EXPECT_EQ(report.event_count(), 8u);
  EXPECT_EQ(report.iteration_count, 1u);
  EXPECT_EQ(report.peak_live_bytes, 10 * MiB);
  EXPECT_EQ(report.peak_reserved_bytes, 10 * MiB);
  EXPECT_DOUBLE_EQ(report.ratio(), 1.0);
  EXPECT_EQ(report.failures.count, 0u);
  EXPECT_EQ(calls(report, call::reserve), 1u);
  EXPECT_EQ(calls(report, call::create), 3u);
  EXPECT_EQ(calls(report, call::release), 0u);
  EXPECT_EQ(calls(report, call::map), 5u);
  EXPECT_GT(*report.driver_us, 0);
  EXPECT_TRUE(report.driver_us_is_virtual);
  EXPECT_TRUE(outcome.drawn.extents.empty());
}

// ThreadSanitizer keeps most of the address space for itself: a reservation of 8 TiB is refused,
// and the manager requests less.
bool has_little_address_space() {
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
  return true;
#endif
#endif
  return false;
}

TEST(Run, SameCallsOnTheHostDriver) {
  if (has_little_address_space()) GTEST_SKIP() << "ThreadSanitizer leaves too few addresses";
  const run_outcome outcome = run(tiny, {.backend = "host", .policy = "va_pool"});
  ASSERT_TRUE(outcome.report) << outcome.problem;
  const replay_report& report = *outcome.report;
  EXPECT_EQ(report.peak_reserved_bytes, 10 * MiB);
  EXPECT_EQ(report.failures.count, 0u);
  EXPECT_EQ(calls(report, call::reserve), 1u);
  EXPECT_EQ(calls(report, call::create), 3u);
  EXPECT_EQ(calls(report, call::map), 5u);
  EXPECT_GT(*report.driver_us, 0);
  EXPECT_FALSE(report.driver_us_is_virtual);
  ASSERT_EQ(report.notes.size(), 1u);
  EXPECT_EQ(report.notes[0].find("host memory is committed lazily and never touched"), 0u);
}

TEST(Run, TheHostDriverHoldsMoreThanTheMachineHas) {
  if (has_little_address_space()) GTEST_SKIP() << "ThreadSanitizer leaves too few addresses";
  std::string text;
  for (int i = 0; i < 64; ++i) text += "a " + std::to_string(i) + " 1099511627776 0\n";  // 1 TiB
  const run_outcome outcome = run(text, {.backend = "host", .policy = "va_pool"});
  ASSERT_TRUE(outcome.report) << outcome.problem;
  EXPECT_EQ(outcome.report->failures.count, 0u);
  EXPECT_EQ(outcome.report->peak_reserved_bytes, std::uint64_t{64} << 40);
  ASSERT_EQ(outcome.report->notes.size(), 2u);
  EXPECT_EQ(outcome.report->notes[1].find("the peak is more than this machine's"), 0u);
}

TEST(Run, EveryPolicyServesTheTrace) {
  for (const char* policy : {"va_pool", "keep_mapped", "virtual_caching"}) {
    for (const char* backend : {"fake", "host"}) {
      const run_outcome outcome =
          run(tiny, {.backend = backend, .policy = policy, .warm_pass_count = 2});
      ASSERT_TRUE(outcome.report) << policy << " on " << backend << ": " << outcome.problem;
      EXPECT_EQ(outcome.report->policy, policy);
      EXPECT_EQ(outcome.report->failures.count, 0u) << policy << " on " << backend;
      EXPECT_GE(outcome.report->peak_reserved_bytes, outcome.report->peak_live_bytes);
      EXPECT_EQ(outcome.report->warm_passes_ns.size(), 2u);
    }
  }
}

TEST(Run, KeepMappedServesWarmPassesWithoutTheDriver) {
  // Warm passes must not add to the first pass's calls.
  const run_outcome cold = run(tiny, {.policy = "keep_mapped"});
  const run_outcome warm = run(tiny, {.policy = "keep_mapped", .warm_pass_count = 5});
  ASSERT_TRUE(cold.report && warm.report);
  EXPECT_EQ(cold.report->driver_calls, warm.report->driver_calls);
  EXPECT_EQ(cold.report->driver_us, warm.report->driver_us);
}

TEST(Run, StreamsOfTheTraceAreStreamsOfTheDriver) {
  for (const char* backend : {"fake", "host"}) {
    const run_outcome outcome =
        run("a 1 5 3\na 2 5 0\nf 1\na 3 5 1\nf 3\n", {.backend = backend, .policy = "va_pool"});
    ASSERT_TRUE(outcome.report) << outcome.problem;
    EXPECT_EQ(outcome.report->failures.count, 0u);
  }
}

TEST(Run, DrawsThePeak) {
  for (const char* backend : {"fake", "host"}) {
    const run_outcome outcome =
        run(tiny, {.backend = backend, .policy = "keep_mapped", .draw = true});
    ASSERT_TRUE(outcome.report) << outcome.problem;
    const std::string svg = vmm::tools::draw_svg(outcome.drawn);
    // keep_mapped reuses exact sizes only: 4, 2, and 6 MiB for 4. At that peak 3 and 4 are live,
    // both whole, and the 2 MiB that 2 left are kept.
    for (const char* text : {"after event 6 of 8, in iteration 1", ">live</text>", ">10.00 MiB<",
                             ">free but mapped</text>", ">2.00 MiB<", ">12.00 MiB of physical"}) {
      EXPECT_TRUE(contains(svg, text)) << text;
    }
  }
}

TEST(Run, TheProgressEndsWithTheLastEvent) {
  std::vector<std::uint64_t> heard;
  vmm::tools::run_options options{.policy = "va_pool"};
  options.progress = [&heard](std::uint64_t done) { heard.push_back(done); };
  ASSERT_TRUE(run(tiny, options).report);
  ASSERT_FALSE(heard.empty());
  EXPECT_EQ(heard.back(), 8u);
}

TEST(Run, FailuresAreToldNotHidden) {
  ::setenv("VMM_BUDGET", "6MiB", 1);
  const run_outcome outcome = run(tiny, {.policy = "va_pool"});
  ::unsetenv("VMM_BUDGET");
  ASSERT_TRUE(outcome.report) << outcome.problem;
  EXPECT_EQ(outcome.report->failures.count, 1u);
  EXPECT_EQ(outcome.report->failures.first.event, 5u);
  EXPECT_EQ(outcome.report->failures.first.why.code, vmm::errc::over_budget);
}

TEST(Run, CostsOfABusyProgramChangeTimesAndNothingElse) {
  const run_outcome quiet = run(tiny, {.policy = "pool"});
  const run_outcome busy = run(tiny, {.policy = "pool", .busy_costs = true});
  ASSERT_TRUE(quiet.report && busy.report);
  EXPECT_EQ(quiet.report->driver_calls, busy.report->driver_calls);
  EXPECT_EQ(quiet.report->peak_reserved_bytes, busy.report->peak_reserved_bytes);
  EXPECT_NEAR(*busy.report->driver_us, 2.9 * *quiet.report->driver_us, 1);
  EXPECT_TRUE(quiet.report->notes.empty());
  ASSERT_EQ(busy.report->notes.size(), 1u);
  EXPECT_TRUE(contains(busy.report->notes[0], "2.9 times"));
  const run_outcome elsewhere = run(tiny, {.backend = "host", .busy_costs = true});
  EXPECT_TRUE(elsewhere.is_callers_fault);
  EXPECT_EQ(elsewhere.problem, "only the fake driver has costs to choose from");
}

TEST(Run, SeedsAreReplaysOfTheirOwnAndTheirMeans) {
  const vmm::tools::run_options options{.policy = "pool"};
  const vmm::tools::seeds_outcome outcome = vmm::tools::run_seeds(parse(tiny), options, 3);
  ASSERT_EQ(outcome.problem, "");
  ASSERT_EQ(outcome.report.runs.size(), 3u);
  double ratio = 0;
  double most = 0;
  double us = 0;
  double calls = 0;
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    vmm::tools::trace changed = parse(tiny);
    jitter_sizes(changed, seed);
    const run_outcome alone = vmm::tools::run_replay(changed, options);
    ASSERT_TRUE(alone.report);
    EXPECT_EQ(alone.report->ratio(), outcome.report.runs[seed - 1].ratio()) << seed;
    ratio += alone.report->ratio() / 3;
    most = std::max(most, alone.report->ratio());
    us += *alone.report->driver_us / 3;
    calls += static_cast<double>(alone.report->memory_call_count()) / 3;
  }
  EXPECT_NEAR(outcome.report.ratio_mean(), ratio, 1e-9);
  EXPECT_DOUBLE_EQ(outcome.report.ratio_most(), most);
  EXPECT_NEAR(outcome.report.driver_us_mean(), us, 1e-6);
  EXPECT_NEAR(outcome.report.memory_calls_mean(), calls, 1e-9);
  EXPECT_GT(most, outcome.report.ratio_mean()) << "all seeds hold the same";
  const vmm::tools::seeds_outcome refused =
      vmm::tools::run_seeds(parse(tiny), {.policy = "best"}, 3);
  EXPECT_TRUE(refused.is_callers_fault);
  EXPECT_TRUE(contains(refused.problem, "is one of"));
}

TEST(Run, MemoryCallsAreThoseThatEveryBackendHas) {
  const run_outcome outcome = run(tiny, {.policy = "va_pool"});
  ASSERT_TRUE(outcome.report);
  std::uint64_t sum = 0;
  for (const call each : {call::reserve, call::free_reservation, call::create, call::release,
                          call::map, call::unmap, call::set_access})
    sum += calls(*outcome.report, each);
  EXPECT_EQ(outcome.report->memory_call_count(), sum);
  EXPECT_GT(calls(*outcome.report, call::record_event), 0u);
}

TEST(Run, RefusesOptionsThatMeanNothing) {
  for (const vmm::tools::run_options& bad :
       {vmm::tools::run_options{.backend = "gpu"}, vmm::tools::run_options{.policy = "best"}}) {
    const run_outcome outcome = run(tiny, bad);
    EXPECT_FALSE(outcome.report);
    EXPECT_TRUE(outcome.is_callers_fault);
    EXPECT_TRUE(contains(outcome.problem, "is one of"));
  }
  ::setenv("VMM_FRAG_RATIO", "much", 1);
  const run_outcome outcome = run(tiny, {});
  ::unsetenv("VMM_FRAG_RATIO");
  EXPECT_TRUE(outcome.is_callers_fault);
  EXPECT_EQ(outcome.problem.find("VMM_FRAG_RATIO takes"), 0u) << outcome.problem;
}

TEST(Run, TheCommandLinesPolicyKeepsTheEnvironmentsRatio) {
  // With a ratio of 1 the 2 MiB that 2 left do not serve 4, which needs 6 MiB of new memory.
  ::setenv("VMM_POLICY", "keep_mapped", 1);
  ::setenv("VMM_FRAG_RATIO", "1", 1);
  const run_outcome outcome = run(tiny, {.policy = "va_pool"});
  ::unsetenv("VMM_FRAG_RATIO");
  const run_outcome by_environment = run(tiny, {});
  ::unsetenv("VMM_POLICY");
  ASSERT_TRUE(outcome.report && by_environment.report);
  EXPECT_EQ(outcome.report->policy, "va_pool");
  EXPECT_EQ(outcome.report->peak_reserved_bytes, 12 * MiB);
  EXPECT_EQ(by_environment.report->policy, "keep_mapped");
}

}  // namespace

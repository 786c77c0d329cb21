// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a replay makes exactly the trace's calls, in order, and its report's figures are right.
// Method: a recording allocator with scripted failures plays hand-written traces; every figure is
// worked out by hand. program_test.py reads the JSON of the program.
#include "../support/test.h"

import vmm.replay;

namespace {

vmm::tools::trace parse(std::string_view text) {
  vmm::tools::read_outcome outcome =
      vmm::tools::parse_trace("tiny.trace", std::as_bytes(std::span{text}));
  EXPECT_TRUE(outcome) << vmm::tools::describe(outcome.trouble);
  return outcome ? std::move(*outcome.value) : vmm::tools::trace{};
}

/// Records its calls; holds the requested memory, and never releases more than `keep_bytes`.
class recorder {
 public:
  std::string calls;
  std::uint64_t live_bytes = 0;
  std::uint64_t limit_bytes = ~std::uint64_t{0};
  bool refuse_frees = false;

  vmm::result<vmm::address> allocate(const vmm::tools::replay_request& request) {
    calls += "a" + std::to_string(request.size_bytes) + "/" + std::to_string(request.stream) + " ";
    if (request.size_bytes > limit_bytes - live_bytes)
      return vmm::refuse(vmm::errc::out_of_memory, "full");
    live_bytes += request.size_bytes;
    sizes_.push_back(request.size_bytes);
    return vmm::address{sizes_.size()};
  }
  vmm::status free(vmm::address at) {
    calls += "f" + std::to_string(at.value) + " ";
    if (refuse_frees) return vmm::refuse(vmm::errc::unknown_address, "no");
    live_bytes -= sizes_[at.value - 1];
    return {};
  }
  std::uint64_t held_bytes() const { return live_bytes; }

 private:
  std::vector<std::uint64_t> sizes_;
};
static_assert(vmm::tools::replayable<recorder>);

constexpr std::string_view tiny =
    "a 1 100 0\n"
    "a 2 600 7\n"
    "f 1\n"
    "i 1\n"
    "a 3 200 0\n"
    "f 2\n";

TEST(Replay, MakesTheTracesCallsInOrder) {
  const vmm::tools::trace input = parse(tiny);
  recorder subject;
  vmm::tools::replayer player{subject, input};
  const vmm::tools::timed_pass pass = player.play();
  EXPECT_EQ(subject.calls, "a100/0 a600/7 f1 a200/0 f2 ");
  EXPECT_EQ(pass.failures.count, 0u);
  EXPECT_GE(pass.elapsed_ns, 0);
  EXPECT_EQ(subject.live_bytes, 200u);
}

TEST(Replay, ResetFreesWhatTheTraceLeavesLive) {
  const vmm::tools::trace input = parse(tiny);
  recorder subject;
  vmm::tools::replayer player{subject, input};
  (void)player.play();
  EXPECT_EQ(player.reset().count, 0u);
  EXPECT_EQ(subject.live_bytes, 0u);
  EXPECT_TRUE(subject.calls.ends_with("f2 f3 ")) << subject.calls;
  EXPECT_EQ(player.reset().count, 0u);
  (void)player.play();
  EXPECT_EQ(subject.live_bytes, 200u);
}

TEST(Replay, FindsThePeakAndStopsThere) {
  const vmm::tools::trace input =
      parse("a 1 100 0\nf 1\na 2 300 0\na 3 300 0\nf 2\na 4 300 0\nf 3\nf 4\n");
  recorder subject;
  vmm::tools::replayer player{subject, input};
  const vmm::tools::observed_pass seen = player.observe();
  EXPECT_EQ(seen.peak_held_bytes, 600u);
  EXPECT_EQ(seen.peak_event, 3u);  // the first of two peaks
  EXPECT_EQ(player.play_until(seen.peak_event).count, 0u);
  EXPECT_EQ(subject.live_bytes, 600u);
}

TEST(Replay, CountsFailuresAndGoesOn) {
  const vmm::tools::trace input = parse(tiny);
  recorder subject;
  subject.limit_bytes = 650;
  vmm::tools::replayer player{subject, input};
  const vmm::tools::timed_pass pass = player.play();
  EXPECT_EQ(subject.calls, "a100/0 a600/7 f1 a200/0 ");  // the free of what failed is left out
  EXPECT_EQ(pass.failures.count, 1u);
  EXPECT_EQ(pass.failures.first.event, 1u);
  EXPECT_EQ(pass.failures.first.why.code, vmm::errc::out_of_memory);
}

TEST(Replay, CountsFreesThatAreRefused) {
  const vmm::tools::trace input = parse(tiny);
  recorder subject;
  subject.refuse_frees = true;
  vmm::tools::replayer player{subject, input};
  const vmm::tools::timed_pass pass = player.play();
  EXPECT_EQ(pass.failures.count, 2u);
  EXPECT_EQ(pass.failures.first.event, 2u);
  EXPECT_EQ(player.reset().count, 1u);
}

/// Figures that can be checked in the head: 5 events, 1000 ns, 3 GiB held over 2 GiB live.
vmm::tools::replay_report sample() {
  vmm::tools::replay_report report;
  report.trace = "say \"hi\" \\ \n \xff";
  report.backend = "fake";
  report.policy = "va_pool";
  report.allocation_count = 3;
  report.free_count = 2;
  report.iteration_count = 1;
  report.peak_live_bytes = 2ull << 30;
  report.peak_reserved_bytes = 3ull << 30;
  report.first_pass_ns = 1000;
  report.driver_us = 12.5;
  report.driver_us_is_virtual = true;
  report.driver_calls[static_cast<std::size_t>(vmm::call::create)] = 4;
  report.driver_calls[static_cast<std::size_t>(vmm::call::record_event)] = 1234;
  return report;
}

TEST(Report, DerivesItsFigures) {
  vmm::tools::replay_report report = sample();
  EXPECT_EQ(report.event_count(), 5u);
  EXPECT_DOUBLE_EQ(report.ns_per_event(), 200);
  EXPECT_DOUBLE_EQ(report.ratio(), 1.5);
  EXPECT_FALSE(report.best_warm_ns_per_event().has_value());
  report.warm_passes_ns = {900, 500, 700};
  EXPECT_DOUBLE_EQ(*report.best_warm_ns_per_event(), 100);
  EXPECT_DOUBLE_EQ(*report.median_warm_ns_per_event(), 140);
  report.warm_passes_ns = {900, 500};
  EXPECT_DOUBLE_EQ(*report.median_warm_ns_per_event(), 140);
  EXPECT_DOUBLE_EQ(vmm::tools::replay_report{}.ratio(), 0);
  EXPECT_DOUBLE_EQ(vmm::tools::replay_report{}.ns_per_event(), 0);
}

TEST(Report, IsOneJsonObject) {
  vmm::tools::replay_report report = sample();
  report.notes = {"one", "two"};
  const std::string text = vmm::tools::to_json(report);
  EXPECT_EQ(text.find('\n'), std::string::npos);
  for (const char* member :
       {R"("trace": "say \"hi\" \\ \u000a )", R"("events": 5,)", R"("ns_per_event": 200.00,)",
        R"("peak_live_bytes": 2147483648,)", R"("peak_reserved_bytes": 3221225472,)",
        R"("ratio": 1.500000,)", R"("driver_us": 12.500,)", R"("driver_clock": "virtual",)",
        R"("backend": "fake",)", R"("policy": "va_pool",)", R"("failures": 0)",
        R"("notes": ["one", "two"])", R"("create": 4)", R"("record_event": 1234)", R"("unmap": 0)",
        R"("warm_ns_per_event_best": null)"})
    EXPECT_NE(text.find(member), std::string::npos) << member << " in " << text;
  EXPECT_EQ(text.find("query_event"), std::string::npos) << "0, and not a base call";
}

TEST(Report, ReadsWellAsText) {
  vmm::tools::replay_report report = sample();
  report.trace = "tiny";
  report.failures.add({1234, vmm::refuse(vmm::errc::out_of_memory, "full")});
  EXPECT_EQ(vmm::tools::to_text(report),
            "Replay of tiny on the fake driver, policy va_pool\n"
            "  events                      5 (3 allocations, 2 frees)\n"
            "  wall time an event          200 ns (first pass)\n"
            "  peak live                   2.00 GiB (requests rounded up to 512 bytes)\n"
            "  peak reserved               3.00 GiB of physical memory\n"
            "  reserved over live          1.500\n"
            "  driver calls                4 create, 1,234 record_event\n"
            "  time in the driver          0.01 ms (virtual: what a real GPU's driver would take)\n"
            "  failures                    1; the first at event 1,234: out of memory: full\n");
}

TEST(Report, ShowsNumbersForPeople) {
  EXPECT_EQ(vmm::tools::show_bytes(0), "0 B");
  EXPECT_EQ(vmm::tools::show_bytes(1023), "1023 B");
  EXPECT_EQ(vmm::tools::show_bytes(1024), "1.00 KiB");
  EXPECT_EQ(vmm::tools::show_bytes((1ull << 20) - 1), "1.00 MiB");
  EXPECT_EQ(vmm::tools::show_bytes(3ull << 29), "1.50 GiB");
  EXPECT_EQ(vmm::tools::show_bytes(1ull << 60), "1048576.00 TiB");
  EXPECT_EQ(vmm::tools::show_count(0), "0");
  EXPECT_EQ(vmm::tools::show_count(999), "999");
  EXPECT_EQ(vmm::tools::show_count(1000), "1,000");
  EXPECT_EQ(vmm::tools::show_count(1234567), "1,234,567");
}

TEST(Report, JsonStringsAreAlwaysUtf8) {
  EXPECT_EQ(vmm::tools::json_string("\xe2\x82\xac \xf0\x9f\x98\x80"),
            "\"\xe2\x82\xac \xf0\x9f\x98\x80\"");
  EXPECT_EQ(vmm::tools::json_string("\xc0\xaf"), "\"\xef\xbf\xbd\xef\xbf\xbd\"");  // overlong
  EXPECT_EQ(vmm::tools::json_string("\xed\xa0\x80"),
            "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"");                           // surrogate
  EXPECT_EQ(vmm::tools::json_string("\xe2\x82"), "\"\xef\xbf\xbd\xef\xbf\xbd\"");  // cut short
}

}  // namespace

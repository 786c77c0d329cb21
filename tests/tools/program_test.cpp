// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: vmm-replay and vmm-demo do what their help says: options, report, JSON, picture, messages,
// exit codes.
// Method: the real program is run with its output in files; a strict JSON reader and a check for
// well-formed XML read what it wrote.
#include "gzip.hpp"
#include "strict_json.hpp"
#include "strict_xml.hpp"

namespace {

using vmm::tests::json_reader;
using vmm::tests::xml_checker;

const std::string program = VMM_REPLAY_PROGRAM;
const std::string demo = VMM_DEMO_PROGRAM;
const std::string example = VMM_EXAMPLE_PROGRAM;
const std::string mask_rcnn = VMM_TRACES_FOLDER "/maskrcnn_train.trace.gz";
const std::string of_mask_rcnn = "'" + mask_rcnn + "'";  // for the shell

struct finished {
  int code = -1;
  std::string out;
  std::string err;
};

class Program : public testing::Test {
 protected:
  void SetUp() override {
    const auto* const info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = testing::TempDir() + "vmm-replay-" + info->name() + "-" + std::to_string(::getpid());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string file(const std::string& name, const std::string& content) const {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }
  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  static std::string read(const std::string& from) {
    std::ifstream stream(from, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }

  /// `arguments` go through the shell; they hold no character that it would take amiss. Settings
  /// of the environment are those of `environment` alone.
  finished run(const std::string& arguments, const std::string& environment = "") const {
    return run_program(program, arguments, environment);
  }
  finished run_program(const std::string& named, const std::string& arguments,
                       const std::string& environment = "") const {
    const std::string command =
        "env -u VMM_POLICY -u VMM_FRAG_RATIO -u VMM_BUDGET -u VMM_BACKEND " + environment + " '" +
        named + "' " + arguments + " >'" + path("out") + "' 2>'" + path("err") + "'";
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read(path("out")), read(path("err"))};
  }

 private:
  std::string folder_;
};

const char* const tiny = "a 1 3145728 0\na 2 1 0\nf 1\n";

TEST_F(Program, PrintsAReportForPeople) {
  const finished got = run(file("tiny.trace", tiny));
  EXPECT_EQ(got.code, 0) << got.err;
  EXPECT_EQ(got.err, "");
  EXPECT_EQ(got.out.find("Replay of tiny on the fake driver, policy va_pool\n"), 0u) << got.out;
  EXPECT_NE(got.out.find("  events                      3 (2 allocations, 1 frees)\n"),
            std::string::npos);
}

TEST_F(Program, PrintsOneJsonObject) {
  const finished got = run(of_mask_rcnn + " --json");
  ASSERT_EQ(got.code, 0) << got.err;
  EXPECT_EQ(got.out.find('\n'), got.out.size() - 1);
  const auto members = json_reader::read(got.out.substr(0, got.out.size() - 1));
  ASSERT_TRUE(members.has_value()) << got.out;
  for (const char* key : {"events", "ns_per_event", "peak_live_bytes", "peak_reserved_bytes",
                          "ratio", "driver_calls", "driver_us", "backend", "policy", "failures"}) {
    EXPECT_TRUE(members->contains(key)) << key;
  }
  EXPECT_EQ(members->at("events"), "62574");
  EXPECT_EQ(members->at("failures"), "0");
  const double live = std::stod(members->at("peak_live_bytes"));
  const double reserved = std::stod(members->at("peak_reserved_bytes"));
  EXPECT_NEAR(live / (1 << 30), 15.273, 0.0005);
  EXPECT_NEAR(std::stod(members->at("ratio")), reserved / live, 1e-6);
  EXPECT_GE(reserved, live);
  EXPECT_GT(std::stod(members->at("driver_us")), 0);
  EXPECT_GT(std::stod(members->at("driver_calls.create")), 0);
}

TEST_F(Program, SaysTheSameOfTheSameTrace) {
  std::vector<json_reader::members> runs;
  for (int i = 0; i < 2; ++i) {
    const finished got = run(of_mask_rcnn + " --json --policy virtual_caching");
    ASSERT_EQ(got.code, 0) << got.err;
    auto members = json_reader::read(got.out.substr(0, got.out.size() - 1));
    ASSERT_TRUE(members.has_value());
    members->erase("ns_per_event");
    runs.push_back(*members);
  }
  EXPECT_EQ(runs[0], runs[1]);
}

TEST_F(Program, DrawsAPicture) {
  const finished got = run(of_mask_rcnn + " --svg " + path("peak.svg"));
  ASSERT_EQ(got.code, 0) << got.err;
  EXPECT_NE(got.out.find("  picture: " + path("peak.svg")), std::string::npos) << got.out;
  const std::string svg = read(path("peak.svg"));
  EXPECT_EQ(xml_checker::complaint(svg), "");
  EXPECT_LT(svg.size(), 500'000u);
  for (const char* text : {"Trace maskrcnn_train on the fake driver, policy va_pool", ">live<",
                           ">free but mapped<", ">hole<", " GiB<"}) {
    EXPECT_NE(svg.find(text), std::string::npos) << text;
  }
}

TEST_F(Program, RepeatsOnTheHostDriver) {
  const finished got =
      run(file("tiny.trace", tiny) + " --backend=host --repeat 3 --json --policy=keep_mapped");
  ASSERT_EQ(got.code, 0) << got.err;
  const auto members = json_reader::read(got.out.substr(0, got.out.size() - 1));
  ASSERT_TRUE(members.has_value()) << got.out;
  EXPECT_EQ(members->at("backend"), "\"host\"");
  EXPECT_EQ(members->at("policy"), "\"keep_mapped\"");
  EXPECT_EQ(members->at("warm_passes"), "3");
  EXPECT_EQ(members->at("driver_clock"), "\"wall\"");
}

TEST_F(Program, ReportsThePeakOfAllPassesAndOfTheFirst) {
  const finished once = run(of_mask_rcnn + " --json");
  const finished twice = run(of_mask_rcnn + " --json --repeat 1");
  ASSERT_EQ(once.code + twice.code, 0) << once.err << twice.err;
  const auto first = json_reader::read(once.out.substr(0, once.out.size() - 1));
  const auto both = json_reader::read(twice.out.substr(0, twice.out.size() - 1));
  ASSERT_TRUE(first && both) << once.out << twice.out;
  const std::string& peak = first->at("peak_reserved_bytes");
  EXPECT_EQ(first->at("first_pass_peak_reserved_bytes"), peak);
  EXPECT_EQ(both->at("first_pass_peak_reserved_bytes"), peak);
  EXPECT_GT(std::stoull(both->at("peak_reserved_bytes")), std::stoull(peak));
  EXPECT_NEAR(std::stod(both->at("ratio")) / std::stod(first->at("ratio")),
              std::stod(both->at("peak_reserved_bytes")) / std::stod(peak), 1e-4);
  EXPECT_EQ(first->at("warm_driver_calls.map"), "0");
  EXPECT_GT(std::stoull(both->at("warm_driver_calls.map")), 0u);
}

TEST_F(Program, JittersSizesAndSaysSo) {
  const finished one = run(of_mask_rcnn + " --policy pool --jitter 2 --json");
  ASSERT_EQ(one.code, 0) << one.err;
  const auto alone = json_reader::read(one.out.substr(0, one.out.size() - 1));
  ASSERT_TRUE(alone.has_value()) << one.out;
  EXPECT_EQ(alone->at("notes"), "[\"sizes are changed by up to 3 %, seed 2\"]");
  const finished two = run(of_mask_rcnn + " --policy pool --jitter-seeds 2 --json");
  ASSERT_EQ(two.code, 0) << two.err;
  const auto means = json_reader::read(two.out.substr(0, two.out.size() - 1));
  ASSERT_TRUE(means.has_value()) << two.out;
  EXPECT_EQ(means->at("seeds"), "2");
  EXPECT_EQ(means->at("policy"), "\"pool\"");
  const std::string last = ", " + alone->at("ratio") + "]";
  EXPECT_NE(means->at("ratios").find(last), std::string::npos) << two.out;
  EXPECT_GE(std::stod(means->at("ratio_most")), std::stod(means->at("ratio_mean")));
  const finished text = run(file("tiny.trace", tiny) + " --policy=pool --jitter-seeds=2");
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_NE(text.out.find("driver, policy pool, sizes changed by up to 3 %\n"), std::string::npos)
      << text.out;
  EXPECT_NE(text.out.find("\n  mean "), std::string::npos) << text.out;
  const finished few = run(file("tiny.trace", tiny) + " --jitter-seeds 2", "VMM_BUDGET=4MiB");
  EXPECT_EQ(few.code, 1);
  EXPECT_EQ(few.err, "vmm-replay: calls that failed: 2\n");
}

TEST_F(Program, ReadsATraceFromAPipe) {
  const finished got = run("/dev/stdin <" + file("tiny.trace", tiny));
  EXPECT_EQ(got.code, 0) << got.err;
}

TEST_F(Program, NamesTheLineOfAMalformedTrace) {
  const std::string bad = file("bad.trace", "a 1 5 0\na 2 5 0\nf 3\n");
  for (const char* more : {"", " --json", " --backend host"}) {
    const finished got = run(bad + more);
    EXPECT_EQ(got.code, 2);
    EXPECT_EQ(got.out, "");
    EXPECT_EQ(got.err, "vmm-replay: " + bad +
                           ":3: free of id 3, which is not live; expected the id of an earlier "
                           "'a' line that was not freed since\n");
  }
}

TEST_F(Program, RefusesFilesThatAreNoTraces) {
  const std::string whole = read(mask_rcnn);
  struct row {
    std::string path;
    const char* message;
  };
  for (const row& each :
       {row{file("cut.gz", whole.substr(0, whole.size() / 2)), "the gzip data is cut short here"},
        row{file("long.gz", whole + "x"), "further bytes behind the end"},
        row{file("empty", ""), ":1: the file is empty"},
        row{path("missing"), "cannot be read: No such file"},
        row{path(""), "cannot be read: Is a directory"}}) {
    const finished got = run(each.path);
    EXPECT_EQ(got.code, 2) << each.message;
    EXPECT_EQ(got.out, "");
    EXPECT_NE(got.err.find(each.message), std::string::npos) << got.err;
    EXPECT_NE(got.err.find(each.path), std::string::npos) << got.err;
  }
}

TEST_F(Program, FailuresAreReportedAndInTheExitCode) {
  const finished got = run(file("tiny.trace", tiny) + " --json", "VMM_BUDGET=4MiB");
  EXPECT_EQ(got.code, 1);
  const auto members = json_reader::read(got.out.substr(0, got.out.size() - 1));
  ASSERT_TRUE(members.has_value()) << got.out << got.err;
  EXPECT_EQ(members->at("failures"), "1");
  EXPECT_EQ(members->at("first_failure.event"), "1");
  EXPECT_EQ(members->at("first_failure.error"), "\"over budget\"");
  EXPECT_EQ(members->at("first_failure.call"), "\"none\"");
  EXPECT_EQ(members->at("first_failure.native"), "0");
  EXPECT_EQ(members->at("first_failure.text").find("\"over budget: "), 0u);
  EXPECT_EQ(got.err.find("vmm-replay: calls that failed: 1; the first at event 1: over budget: "),
            0u)
      << got.err;
  const finished well = run(file("tiny.trace", tiny) + " --json");
  EXPECT_NE(well.out.find("\"first_failure\": null"), std::string::npos) << well.out;
}

TEST_F(Program, ARequestBeyondTheDeviceSaysHowMuchIsThere) {
  for (const char* policy : {"va_pool", "pool"}) {
    const finished got =
        run(file("huge.trace", "a 1 281474976710656 0\n") + " --json --policy " + policy);
    EXPECT_EQ(got.code, 1);
    const auto members = json_reader::read(got.out.substr(0, got.out.size() - 1));
    ASSERT_TRUE(members.has_value()) << got.out;
    EXPECT_EQ(members->at("failures"), "1");
    EXPECT_EQ(members->at("first_failure.error"), "\"out of memory\"");
    EXPECT_EQ(members->at("first_failure.call"), "\"none\"");
    EXPECT_EQ(members->at("driver_calls.create"), "0");
    EXPECT_NE(got.err.find("request of 256 TiB exceeds the device's memory"), std::string::npos)
        << got.err;
  }
}

/// 2^20 marks as one member of gzip.
std::string marks() {
  std::string text;
  for (int i = 0; i < 1 << 20; ++i) text += "i 1\n";
  return gzip(text);
}

// 64 members are 67 million lines in 300 KB.
TEST_F(Program, ASmallFileOfManyMarksIsRefusedInLittleMemory) {
  const std::string member = marks();
  std::string bomb;
  for (int i = 0; i < 64; ++i) bomb += member;
  const std::string path = file("bomb.trace.gz", bomb);
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
  const std::string limit;  // a sanitizer takes all of the address space for itself
#else
  const std::string limit = "ulimit -v 200000; ";
#endif
#else
  const std::string limit = "ulimit -v 200000; ";
#endif
  const std::string command = limit + "'" + program + "' '" + path + "' 2>'" + this->path("err") +
                              "' >'" + this->path("out") + "'";
  const int status = std::system(command.c_str());
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 2);
  EXPECT_EQ(read(this->path("err")), "vmm-replay: " + path +
                                         ":1048577: the trace has too many marks of iterations; "
                                         "expected at most 1048576\n");
}

TEST_F(Program, APictureThatCannotBeKeptHasTheSystemsReasonAndTheReportStands) {
  const finished full = run(file("tiny.trace", tiny) + " --svg /dev/full");
  EXPECT_EQ(full.code, 1);
  EXPECT_EQ(full.err, "vmm-replay: /dev/full: cannot be written: No space left on device\n");
  EXPECT_EQ(full.out.find("Replay of tiny on the fake driver"), 0u);
  EXPECT_EQ(full.out.find("picture"), std::string::npos);
  // What was there before stays when the replay is refused, and no empty file is left behind.
  const std::string kept = file("kept.svg", "mine");
  EXPECT_EQ(run(path("tiny.trace") + " --svg " + kept, "VMM_CHUNK_SIZE=3").code, 2);
  EXPECT_EQ(read(kept), "mine");
  EXPECT_EQ(run(path("tiny.trace") + " --svg " + path("new.svg"), "VMM_CHUNK_SIZE=3").code, 2);
  EXPECT_FALSE(std::filesystem::exists(path("new.svg")));
  EXPECT_EQ(run(path("tiny.trace") + " --svg " + kept).code, 0);
  EXPECT_EQ(xml_checker::complaint(read(kept)), "");
}

// The limit of a file's size stands for a disk that fills while the file is written.
TEST_F(Program, AFileThatCannotBeWrittenInFullLeavesTheOldOne) {
  const std::string trace = file("tiny.trace", tiny);
  for (const char* option : {"--svg", "--history"}) {
    for (const bool is_old : {true, false}) {
      std::filesystem::create_directories(path("out"));
      if (is_old) file("out/x", "mine");
      const std::string command = "(ulimit -f 0; exec '" + program + "' '" + trace + "' " + option +
                                  " '" + path("out/x") + "') >'" + path("said") + "' 2>&1";
      const int status = std::system(command.c_str());
      ASSERT_TRUE(WIFEXITED(status));
      EXPECT_EQ(WEXITSTATUS(status), 1) << option;
      std::string left;
      for (const auto& each : std::filesystem::directory_iterator(path("out")))
        left += each.path().filename().string() + ": " + read(each.path()) + "\n";
      EXPECT_EQ(left, is_old ? "x: mine\n" : "") << option;
      std::filesystem::remove_all(path("out"));
    }
  }
}

TEST_F(Program, AFileIsReplacedWithItsRightsAndBehindItsLink) {
  const std::string kept = file("kept.svg", "mine");
  std::filesystem::permissions(
      kept, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  std::filesystem::create_symlink("kept.svg", path("link.svg"));
  EXPECT_EQ(run(file("tiny.trace", tiny) + " --svg " + path("link.svg")).code, 0);
  EXPECT_TRUE(std::filesystem::is_symlink(path("link.svg")));
  EXPECT_EQ(xml_checker::complaint(read(kept)), "");
  EXPECT_EQ(std::filesystem::status(kept).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
}

TEST_F(Program, TheEnvironmentsBackendIsTheDefault) {
  const std::string trace = file("tiny.trace", tiny);
  EXPECT_NE(run(trace, "VMM_BACKEND=host").out.find("on the host driver"), std::string::npos);
  EXPECT_NE(run(trace + " --backend fake", "VMM_BACKEND=host").out.find("on the fake driver"),
            std::string::npos);
}

TEST_F(Program, WhatCannotBeWrittenIsToldInTheExitCode) {
  const finished picture = run(file("tiny.trace", tiny) + " --svg " + path("no/such/x.svg"));
  EXPECT_EQ(picture.code, 1);
  EXPECT_NE(picture.err.find("x.svg: cannot be written: No such file or directory"),
            std::string::npos);
  const std::string command = "'" + program + "' " + path("tiny.trace") + " >/dev/full 2>/dev/null";
  const int status = std::system(command.c_str());
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 1);
}

// The demo sees it before its work, an example when it ends.
TEST_F(Program, OutputThatCannotBeWrittenIsToldByEveryProgram) {
  const std::string trace = file("tiny.trace", tiny);
  const std::string full = " >/dev/full 2>'" + path("stderr") + "'";
  for (const std::string& command :
       {"'" + demo + "' --backend host --up-to 4MiB --trace '" + trace + "' --svg '" +
            path("demo.svg") + "'",
        "'" + program + "' '" + trace + "'", "VMM_BACKEND=fake '" + example + "'"}) {
    const int status = std::system((command + full).c_str());
    ASSERT_TRUE(WIFEXITED(status)) << command;
    EXPECT_EQ(WEXITSTATUS(status), 1) << command;
    const std::string told = read(path("stderr"));
    EXPECT_NE(told.find("standard output cannot be written: No space left on device"),
              std::string::npos)
        << command << "\n"
        << told;
    EXPECT_EQ(told.find("written"), told.rfind("written")) << "reported once: " << told;
  }
}

TEST_F(Program, HelpsOnRequest) {
  const finished got = run("--help");
  EXPECT_EQ(got.code, 0);
  EXPECT_EQ(got.out.find("usage: vmm-replay FILE"), 0u);
  for (const char* option : {"--backend", "--policy", "--costs", "--repeat", "--json", "--svg",
                             "--jitter", "--jitter-seeds"}) {
    EXPECT_NE(got.out.find(option), std::string::npos) << option;
  }
}

TEST_F(Program, TheDemoGrowsReplaysAndDraws) {
  const finished got =
      run_program(demo, "--backend host --up-to 8MiB --trace " + file("tiny.trace", tiny) +
                            " --svg " + path("demo.svg"));
  ASSERT_EQ(got.code, 0) << got.out << got.err;
  for (const char* text :
       {"Driver: host", "2 MiB to 4 MiB", "4 MiB to 8 MiB", "bytes copied", "replaying: 100 %\n",
        "Replay of tiny on the fake driver", "pool          va_pool\n"}) {
    EXPECT_NE(got.out.find(text), std::string::npos) << text << " in\n" << got.out;
  }
  EXPECT_EQ(got.out.find("8 MiB to 16 MiB"), std::string::npos);
  EXPECT_EQ(got.out.find('\r'), std::string::npos) << "not a terminal";
  EXPECT_NE(got.out.find(path("demo.svg")), std::string::npos);
  EXPECT_EQ(xml_checker::complaint(read(path("demo.svg"))), "");
  EXPECT_NE(got.out.find(path("demo.html")), std::string::npos);
  EXPECT_NE(read(path("demo.html")).find("{name:\"the pool\",data:\""), std::string::npos);
}

TEST_F(Program, TheDemoDrawsIntoTheCurrentFolder) {
  std::filesystem::create_directories(path("a b"));
  const std::string trace = file("tiny.trace", tiny);
  const finished got = run_program(demo, "--backend host --up-to 4MiB --trace '" + trace + "'",
                                   "-C '" + path("a b") + "'");
  ASSERT_EQ(got.code, 0) << got.out << got.err;
  for (const char* name : {"vmm-demo.svg", "vmm-demo.html"}) {
    EXPECT_NE(got.out.find(path(std::string("a b/") + name)), std::string::npos) << got.out;
    EXPECT_NE(read(path(std::string("a b/") + name)), "") << name;
  }
}

TEST_F(Program, TheDemoHasItsHelpUnderBothNames) {
  const finished whole = run_program(demo, "--help");
  const finished brief = run_program(demo, "-h");
  EXPECT_EQ(whole.code, 0);
  EXPECT_EQ(brief.code, 0) << brief.err;
  EXPECT_NE(brief.out.find("--up-to"), std::string::npos);
  EXPECT_EQ(brief.out, whole.out);
}

}  // namespace

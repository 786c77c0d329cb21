// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: processes that fork, exec, close the library, end with threads running or never touch CUDA
// behave as without us. Method: each runs with the library and without, in every mode.
#include "../support/test.h"
#include "child.h"

namespace {

const std::vector<std::string> modes{"off", "monitor", "cache", "vmm"};

TEST(Life, AProgramThatNeverTouchesCuda) {
  const child::outcome native = child::plain({"nothing"});
  EXPECT_EQ(native.out, "signal default\ndriver absent\n");
  for (const char* mode : {"", "off", "monitor", "cache", "vmm", "no such mode"}) {
    const child::outcome ours = child::preloaded(mode, {"nothing"}, {"VMM_REPORT=stderr"});
    EXPECT_EQ(native.out, ours.out) << mode;
    EXPECT_EQ(ours.err, "") << mode;
    EXPECT_EQ(ours.code, 0) << mode;
  }
}

// A sanitizer's library cannot be loaded into programs without it.
TEST(Life, OtherProgramsOfTheSystem) {
  if (VMM_PRELOAD_SANITIZED) GTEST_SKIP() << "the library is built with a sanitizer";
  const child::outcome ours =
      child::run({.program = "/bin/sh",
                  .arguments = {"-c", "echo one; (echo two); exec echo three"},
                  .variables = {"VMM_MODE=vmm", "VMM_REPORT=stderr"},
                  .is_preloaded = true});
  EXPECT_EQ(ours.out, "one\ntwo\nthree\n");
  EXPECT_EQ(ours.err, "");
}

TEST(Life, ForkBeforeTheDriverIsUsed) {
  for (const std::string& mode : modes) child::expect_same(mode, {"fork_before"});
}

TEST(Life, ForkAfterTheDriverWasUsed) {
  for (const std::string& mode : modes) child::expect_same(mode, {"fork_after"});
}

// Many forks beside threads that look names up and open libraries, without a driver and with one.
TEST(Life, ForksBesideThreadsThatLookNamesUp) {
  if (VMM_PRELOAD_SANITIZED) GTEST_SKIP() << "a sanitizer's dlopen has locks of its own";
  for (const bool has_driver : {false, true}) {
    child::command what{.arguments = {"fork_storm", "60"},
                        .variables = {has_driver ? "VMM_MODE=vmm" : "VMM_MODE=off"},
                        .is_preloaded = true};
    if (has_driver) what.arguments.emplace_back("driver");
    if (!has_driver) what.driver = "";
    const child::outcome ours = child::run(what);
    EXPECT_EQ(ours.out, "0 children that did not end by themselves\n")
        << (has_driver ? "with" : "without") << " a driver\n"
        << ours.err;
  }
}

// The locks that a fork takes are in the order of those that the end of a context takes.
TEST(Life, ForksBesideContextsThatEnd) {
  const std::string file = child::temporary_file("ends.trace");
  const char* const rounds = VMM_PRELOAD_SANITIZED ? "40" : "500";  // forks are slow there
  child::expect_output("monitor", {"fork_beside_ends", rounds},
                       "0 children that did not end by themselves\n",
                       {"VMM_REPORT=off", "VMM_TRACE=" + file});
  unlink(file.c_str());
}

TEST(Life, Exec) {
  for (const std::string& mode : modes) child::expect_same(mode, {"exec_self", VMM_PRELOAD_CALLER});
}

TEST(Life, ExitWithThreads) {
  for (const std::string& mode : modes) {
    const child::outcome ours = child::preloaded(mode, {"exit_with_threads"});
    EXPECT_EQ(ours.code, 5) << mode << ours.out << ours.err;
    EXPECT_EQ(ours.out, "running\n") << mode;
  }
}

TEST(Life, MemoryIsFreedByHandlersOfTheEnd) {
  for (const std::string& mode : modes) child::expect_same(mode, {"free_at_the_end"}, {}, 3);
  EXPECT_EQ(child::preloaded("vmm", {"free_at_the_end"}).code, 3);
}

// The report is written in a handler, in the middle of whatever the thread does.
TEST(Life, TheReportIsWrittenInTheMiddleOfCalls) {
  for (const char* mode : {"monitor", "cache", "vmm"}) {
    const std::string file = child::temporary_file("report");
    child::expect_output(mode, {"signal_storm"}, "failed 0\n",
                         {"VMM_REPORT_SIGNAL=usr1", "VMM_REPORT=" + file});
    EXPECT_TRUE(contains(child::read_file(file), "cuMemAlloc_v2")) << mode;
    unlink(file.c_str());
  }
}

TEST(Life, TheLibrariesAreClosed) {
  for (const std::string& mode : modes) child::expect_same(mode, {"close_library"});
}

// What a program with a wrong value says first of two lines. It runs as without the library.
std::string said_of(const std::string& setting) {
  static const child::outcome native = child::plain({"work"});
  child::command what{.arguments = {"work"}, .variables = {setting}, .is_preloaded = true};
  if (!setting.starts_with("VMM_MODE")) what.variables.emplace_back("VMM_MODE=vmm");
  const child::outcome ours = child::run(what);
  EXPECT_EQ(ours.out, native.out) << setting;
  EXPECT_EQ(ours.code, native.code) << setting;
  const std::vector<std::string> said = child::lines_of(ours.err);
  if (said.size() == 2 && said[1] == "vmm_preload: the program runs unmanaged") return said[0];
  ADD_FAILURE() << setting << "\n" << ours.err;
  return {};
}

// A value that is none of those that the variable may have, in every shape that people write.
TEST(Life, MoreWrongValues) {
  const std::pair<const char*, std::vector<const char*>> all[] = {
      {"VMM_MODE", {"VMM", "vmm ", " vmm", "1", "on", "vmm,cache"}},
      {"VMM_KEEP", {"-1", "1.5", "4 G iB", "4Gibs", "MiB", "0x10", "1e9", "nan"}},
      {"VMM_CACHE_LIMIT", {"-1", "99999999999999999999", "16EiB", "4GX", "inf"}},
      {"VMM_BUDGET", {"-1", "128PiB", "8TiBs", "99999999999999999999"}},
      {"VMM_VA_SIZE", {"0", "-1", "128PiB"}},
      {"VPMM_VA_SIZE", {"0", "much"}},
      {"VMM_POOL_PAGE_SIZE", {"0", "128PiB"}},
      {"VMM_POOL_PAGES", {"-1", "1.5", "1e3", "1e30", "many"}},
      {"VPMM_PAGES", {"-1", "0.5"}},
      {"VMM_POOL_CAPTURE", {"all"}},
      {"VMM_POLICY", {"pool"}},
      {"VMM_FRAG_RATIO", {"-0.1", "nan", "50%", "0,5"}},
      {"VMM_CHUNK_SIZE", {"-1", "1PX"}},
      {"VMM_REPORT_FORMAT", {"JSON"}},
      {"VMM_FREE", {"now"}},
  };
  for (const auto& [variable, values] : all) {
    for (const char* value : values) {
      const std::string said = said_of(std::string(variable) + "=" + value);
      EXPECT_TRUE(said.starts_with(std::string("vmm_preload: ") + variable + " ")) << said;
      EXPECT_TRUE(said.ends_with("; not '" + std::string(value) + "'")) << said;
    }
  }
}

// Empty variables are as none, in every mode.
TEST(Life, EmptyValuesAreNone) {
  const child::outcome native = child::plain({"work"});
  for (const std::string& mode : modes) {
    std::vector<std::string> empty;
    for (const char* name :
         {"VMM_REPORT_FORMAT", "VMM_REPORT_SIGNAL", "VMM_TRACE",       "VMM_CACHE_LIMIT",
          "VMM_IPC",           "VMM_FREE",          "VMM_KEEP",        "VMM_COPY",
          "VMM_BUDGET",        "VMM_VA_SIZE",       "VMM_POOL_POLICY", "VMM_POOL_PAGE_SIZE",
          "VMM_POOL_PAGES",    "VPMM_VA_SIZE",      "VPMM_PAGE_SIZE",  "VPMM_PAGES",
          "VMM_POOL_CAPTURE",  "VMM_POLICY",        "VMM_FRAG_RATIO",  "VMM_CHUNK_SIZE"}) {
      empty.push_back(std::string(name) + "=");
    }
    empty.emplace_back("VMM_REPORT=off");
    const child::outcome ours = child::preloaded(mode, {"work"}, empty);
    EXPECT_EQ(ours.out, native.out) << mode;
    EXPECT_EQ(ours.err, "") << mode;
  }
}

// What can be a value, and only the device refuses: reported once, however many requests follow.
TEST(Life, AValueThatTheDeviceRefusesIsReportedOnce) {
  const child::outcome native = child::plain({"work"});
  const std::pair<std::vector<std::string>, const char*> all[] = {
      {{"VMM_VA_SIZE=64K"},
       "a device is not managed: reservation_bytes (VMM_VA_SIZE, VPMM_VA_SIZE) is at least one "
       "page, page_bytes (VMM_POOL_PAGE_SIZE); not '65536'"},
      {{"VMM_BUDGET=1"},
       "a device is not managed: budget_bytes (VMM_BUDGET) is 0 for no budget, or at least one "
       "unit of the device's memory; not '1'"},
      {{"VMM_POOL_PAGES=5000000"},
       "page_count (VMM_POOL_PAGES, VPMM_PAGES) is at most the pages of one"},
      {{"VMM_POOL_PAGES=250000"},
       "Make page_count (VMM_POOL_PAGES, VPMM_PAGES), the pages that are mapped"},
      {{"VMM_COPY=move", "VMM_CHUNK_SIZE=3"},
       "copies are not remapped: manager_policy::chunk_bytes (VMM_CHUNK_SIZE)"},
  };
  for (const auto& [variables, says] : all) {
    const child::outcome ours = child::preloaded("vmm", {"work"}, variables);
    EXPECT_EQ(ours.out, native.out) << says;
    EXPECT_EQ(ours.code, native.code) << says;
    ASSERT_EQ(child::lines_of(ours.err).size(), 1u) << ours.err;
    EXPECT_TRUE(contains(ours.err, says));
  }
}

TEST(Life, AWrongValueIsReportedOnceAndTheProgramRuns) {
  constexpr std::pair<const char*, const char*> all[] = {
      {"VMM_MODE=fast", "VMM_MODE takes one of off, monitor, vmm, cache"},
      {"VMM_REPORT_FORMAT=xml", "VMM_REPORT_FORMAT takes one of text, json"},
      {"VMM_REPORT_SIGNAL=hup", "VMM_REPORT_SIGNAL takes one of usr1, off"},
      {"VMM_IPC=yes", "VMM_IPC takes one of share, refuse, plain"},
      {"VMM_FREE=soon", "VMM_FREE takes one of later, wait"},
      {"VMM_KEEP=some", "VMM_KEEP is a size"},
      {"VMM_COPY=yes", "VMM_COPY takes one of off, alias, move"},
      {"VMM_FRAG_RATIO=2", "VMM_FRAG_RATIO"},
      {"VMM_CACHE_LIMIT=lots", "VMM_CACHE_LIMIT is a size"},
      {"VMM_POOL_POLICY=none", "VMM_POOL_POLICY"},
      {"VPMM_PAGE_SIZE=none", "VPMM_PAGE_SIZE"},
  };
  for (const auto& [setting, says] : all) EXPECT_TRUE(contains(said_of(setting), says));
}

}  // namespace

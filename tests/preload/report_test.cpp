// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: the monitor counts what the program did, and its trace is that program's. Method: a program
// whose calls are known.
#include "../support/test.h"
#include "child.h"

namespace {

// The text after `key` up to the next comma or brace.
std::string value_of(const std::string& json, const std::string& key) {
  const std::size_t at = json.find("\"" + key + "\":");
  if (at == std::string::npos) return "absent";
  const std::size_t begin = at + key.size() + 3;
  return json.substr(begin, json.find_first_of(",}", begin) - begin);
}

std::string object_of(const std::string& json, const std::string& key) {
  const std::size_t at = json.find("\"" + key + "\":{");
  return at == std::string::npos ? "" : json.substr(at, json.find('}', at) - at + 1);
}

}  // namespace

TEST(Monitor, CountsCallsSizesAndPeaksForEachDevice) {
  const child::outcome seen = child::preloaded("monitor", {"work"}, {"VMM_REPORT_FORMAT=json"});
  EXPECT_EQ(seen.code, 0);
  EXPECT_EQ(value_of(seen.err, "mode"), "\"monitor\"");
  EXPECT_EQ(value_of(seen.err, "device"), "0");
  const auto of = [&](const char* object, const char* key) {
    return value_of(object_of(seen.err, object), key);
  };
  EXPECT_EQ(of("cuMemAlloc_v2", "count"), "6");
  EXPECT_EQ(of("cuMemAlloc_v2", "failed"), "1");
  EXPECT_NE(of("cuMemAlloc_v2", "ns"), "0");
  EXPECT_EQ(of("cuMemFree_v2", "count"), "3");
  EXPECT_EQ(of("cuMemAllocAsync", "count"), "2");
  EXPECT_EQ(of("cuMemFreeAsync", "count"), "1");
  EXPECT_EQ(of("memory", "peak_bytes"), std::to_string(15 * MiB + 8000));
  EXPECT_EQ(of("memory", "peak_count"), "6");
  EXPECT_EQ(of("memory", "live_bytes"), std::to_string(10 * MiB + 5000));
  for (const char* size : {"128", "4096", "8388608"}) EXPECT_EQ(of("sizes", size), "1");
  EXPECT_EQ(value_of(seen.err, "trace_complete"), "true");
}

// Four blocks of contexts that were destroyed are gone; memory of the device's pool is not.
TEST(Monitor, MemoryOfAContextThatEndedIsNotLive) {
  const child::outcome seen = child::reported("monitor", {"contexts"});
  EXPECT_EQ(value_of(object_of(seen.err, "memory"), "live_bytes"), std::to_string(4 << 20));
  EXPECT_EQ(value_of(object_of(seen.err, "memory"), "live_count"), "4");
}

TEST(Monitor, ReportsAsTextToAFile) {
  const std::string file = child::temporary_file("report");
  const child::outcome seen = child::preloaded("monitor", {"work"}, {"VMM_REPORT=" + file});
  EXPECT_EQ(seen.err, "");
  const std::string report = child::read_file(file);
  EXPECT_TRUE(contains(report, ", mode monitor\ndevice 0:\n"));
  EXPECT_TRUE(contains(report, "cuMemAllocAsync"));
  EXPECT_TRUE(contains(report, "peak       15.007 MiB in at most 6; live now 10.004 MiB in 3\n"));
  std::remove(file.c_str());
}

TEST(Monitor, ReportsOnRequestAndOnASignal) {
  const child::outcome asked = child::preloaded("monitor", {"ask_for_report"}, {"VMM_REPORT=off"});
  EXPECT_TRUE(contains(asked.out, "{\"process\":"));
  EXPECT_TRUE(contains(asked.out, "reported 1"));
  EXPECT_EQ(asked.err, "");
  const child::outcome signalled =
      child::preloaded("monitor", {"default_signal"}, {"VMM_REPORT=off"});
  EXPECT_EQ(signalled.out, "works 0\ngoes on\n");
  EXPECT_TRUE(contains(signalled.err, "vmm_preload: process"));
}

TEST(Monitor, TheSignalIsTheProgramsWhereItWantsIt) {
  child::expect_same("monitor", {"own_signal"});
  // Without a report on the signal it does what it does.
  const child::outcome native = child::plain({"default_signal"});
  const child::outcome ours =
      child::preloaded("monitor", {"default_signal"}, {"VMM_REPORT_SIGNAL=off", "VMM_REPORT=off"});
  EXPECT_EQ(native.code, 1010);
  EXPECT_EQ(ours.code, native.code);
  EXPECT_EQ(child::preloaded("vmm", {"default_signal"}).code, native.code);
}

TEST(Monitor, WritesATraceOfTheProgram) {
  const std::string file = child::temporary_file("trace");
  const child::outcome seen =
      child::preloaded("monitor", {"work"}, {"VMM_REPORT=off", "VMM_TRACE=" + file});
  EXPECT_EQ(seen.err, "");
  EXPECT_EQ(child::read_file(file),
            "a 1 1048576 0\na 2 2097152 0\na 3 4194304 0\na 4 8388608 0\na 5 3000 1\na 6 5000 2\n"
            "f 1\nf 3\nf 5\na 7 100 0\nf 7\n");
  std::remove(file.c_str());
}

TEST(Monitor, ATraceMayGoToWhatIsNoFile) {
  const child::outcome seen =
      child::preloaded("monitor", {"work"}, {"VMM_REPORT=off", "VMM_TRACE=/dev/null"});
  EXPECT_EQ(seen.err, "");
  EXPECT_EQ(seen.code, 0);
}

#ifdef VMM_PRELOAD_REPLAY
TEST(Monitor, TheTraceIsReplayed) {
  const std::string file = child::temporary_file("whole.trace");
  (void)child::preloaded("monitor", {"work", "whole"}, {"VMM_REPORT=off", "VMM_TRACE=" + file});
  const child::outcome played =
      child::run({.program = VMM_PRELOAD_REPLAY, .arguments = {file, "--json"}});
  EXPECT_EQ(played.code, 0) << played.err;
  EXPECT_TRUE(contains(played.out, "\"allocations\": 7"));
  EXPECT_TRUE(contains(played.out, "\"frees\": 7"));
  std::remove(file.c_str());
}
#endif

TEST(Monitor, ChangesNothingThatAProgramSees) {
  for (const char* word : {"in_flight", "captured", "questions", "foreign", "copies", "devices",
                           "short_of_memory", "reset", "per_thread", "failed_growth",
                           "small_blocks", "handles", "shared_handles", "ipc", "dma_buf"})
    child::expect_same("monitor", {word});
}

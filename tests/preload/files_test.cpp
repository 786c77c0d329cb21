// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a trace or a report that cannot be written ends no program and is reported once, the trace
// ends with a whole line, and no file is lost through a name that another user has prepared.
// Method: a program that writes some 400 KB of trace to full devices, past limits, to readers that
// go, and to links.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "../support/test.h"
#include "child.h"

namespace {

namespace fs = std::filesystem;

child::outcome traced_to(const std::string& name, const std::string& report = "off") {
  return child::preloaded("monitor", {"many"},
                          {"VMM_REPORT=" + report, "VMM_REPORT_FORMAT=json", "VMM_TRACE=" + name});
}

// The program goes on, and one line says what is wrong.
void expect_reported(const child::outcome& seen, const std::string& line) {
  EXPECT_EQ(seen.code, 0);
  EXPECT_EQ(seen.out, "done\n");
  const std::vector<std::string> lines = child::lines_of(seen.err);
  EXPECT_EQ(std::count(lines.begin(), lines.end(), "vmm_preload: " + line), 1) << seen.err;
}

struct victim {
  fs::path path = child::temporary_file("victim");
  victim() { std::ofstream(path) << "what the user has"; }
  victim(const victim&) = delete;
  victim& operator=(const victim&) = delete;
  ~victim() { fs::remove(path); }
  [[nodiscard]] std::string contents() const { return child::read_file(path.string()); }
};

}  // namespace

TEST(Files, AFullDiskEndsTheTraceAndNotTheProgram) {
  const child::outcome seen = traced_to("/dev/full", "stderr");
  expect_reported(seen, "the trace is incomplete: /dev/full: no space is left");
  EXPECT_TRUE(contains(seen.err, "\"trace_complete\":false"));
}

TEST(Files, AFullDiskIsSeenInTheLastWriteToo) {
  const child::outcome seen = child::reported("monitor", {"work"}, {"VMM_TRACE=/dev/full"});
  EXPECT_TRUE(contains(seen.err, "\"trace_complete\":false"));
  EXPECT_TRUE(contains(seen.err, "/dev/full: no space is left"));
}

TEST(Files, AReaderThatGoesEndsTheTraceAndNotTheProgram) {
  int ends[2] = {};
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  ASSERT_EQ(fcntl(ends[1], F_SETFD, 0), 0);  // the program has it, as of a shell's >(...)
  std::thread reader([&] {
    char first = 0;
    EXPECT_EQ(read(ends[0], &first, 1), 1);
    close(ends[0]);
  });
  const std::string pipe = "/dev/fd/" + std::to_string(ends[1]);
  const child::outcome seen = traced_to(pipe);
  close(ends[1]);
  reader.join();
  expect_reported(seen, "the trace is incomplete: " + pipe + ": its reader is gone");
}

TEST(Files, ANamedPipeIsNotWaitedFor) {
  const std::string pipe = child::temporary_file("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const child::outcome seen = traced_to(pipe);
  EXPECT_EQ(seen.code, 0);
  EXPECT_EQ(seen.out, "done\n");
  EXPECT_TRUE(contains(seen.err, "the trace cannot be written: " + pipe + ": it is a named pipe"));
  fs::remove(pipe);
}

TEST(Files, TheLimitOfFileSizeEndsTheTraceAndNotTheProgram) {
  const std::string file = child::temporary_file("trace");
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{100'000, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const child::outcome seen = traced_to(file);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  expect_reported(seen, "the trace is incomplete: " + file + ": the limit of file size is reached");
  const std::string written = child::read_file(file);
  EXPECT_GT(written.size(), 90'000u);
  EXPECT_LE(written.size(), 100'000u);
  EXPECT_TRUE(written.ends_with('\n')) << written.substr(written.size() - 20);
  fs::remove(file);
}

TEST(Files, NoFileIsEmptiedThroughALink) {
  const victim other;
  const std::string link = child::temporary_file("link");
  fs::create_symlink(other.path, link);
  expect_reported(traced_to(link), "the trace cannot be written: " + link +
                                       ": it is a symbolic link to a file; name the file itself");
  EXPECT_EQ(other.contents(), "what the user has");
  fs::remove(link);
  fs::create_hard_link(other.path, link);
  expect_reported(traced_to(link), "the trace cannot be written: " + link +
                                       ": another user owns it, or it has a second name");
  EXPECT_EQ(other.contents(), "what the user has");
  fs::remove(link);
}

TEST(Files, AFileOfAnotherUserIsNotTaken) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to be two users";
  const victim other;
  ASSERT_EQ(chown(other.path.c_str(), 65534, 65534), 0);
  expect_reported(traced_to(other.path.string()),
                  "the trace cannot be written: " + other.path.string() +
                      ": another user owns it, or it has a second name");
  EXPECT_EQ(other.contents(), "what the user has");
  const std::string link = child::temporary_file("link");
  const victim own;
  fs::create_symlink(own.path, link);
  ASSERT_EQ(lchown(link.c_str(), 65534, 65534), 0);
  const child::outcome seen = child::preloaded("monitor", {"work"}, {"VMM_REPORT=" + link});
  EXPECT_TRUE(contains(seen.err, "the report cannot be written: " + link));
  EXPECT_EQ(own.contents(), "what the user has");
  fs::remove(link);
}

TEST(Files, AnOwnFileIsWrittenAnew) {
  const victim old;
  const child::outcome seen = traced_to(old.path.string());
  EXPECT_EQ(seen.err, "");
  EXPECT_TRUE(old.contents().starts_with("a 1 "));
}

TEST(Files, ADeviceBehindALinkTakesATrace) {
  const std::string link = child::temporary_file("link");
  fs::create_symlink("/dev/null", link);
  EXPECT_EQ(traced_to(link).err, "");
  fs::remove(link);
}

TEST(Files, AReportThatCannotBeWrittenIsReported) {
  const child::outcome seen = child::preloaded("monitor", {"work"}, {"VMM_REPORT=/dev/full"});
  EXPECT_EQ(seen.code, 0);
  EXPECT_EQ(seen.err, "vmm_preload: the report cannot be written: /dev/full: no space is left\n");
}

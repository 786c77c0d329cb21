// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: no file makes the reader of histories take memory without a bound: what is too large, never
// ends, or is small and says much is refused with a reason. Method: devices, pipes, a sparse file,
// and pickles that are made of the opcodes with the most effect for a byte.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../support/test.h"

import vmm.history_tools;
import vmm.recording;

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t history_bytes_max = std::uint64_t{1} << 30;

std::string problem_of(const std::string& path, std::uint64_t bytes_max = history_bytes_max) {
  return vmm::tools::read_history_file(path, {}, {.history_bytes_max = bytes_max}).problem;
}

std::string problem_of_pickle(const std::string& pickle) {
  return vmm::tools::parse_recording("made", std::as_bytes(std::span(pickle))).problem;
}

std::string place(const char* name) {
  return testing::TempDir() + "vmm_read_" + std::to_string(::getpid()) + "_" + name;
}

TEST(ReadHistory, ADeviceWithoutAnEndIsNoHistory) {
  EXPECT_TRUE(contains(problem_of("/dev/zero"), "first bytes differ"));
  EXPECT_EQ(problem_of("/dev/null"), "/dev/null: is empty");
}

TEST(ReadHistory, APipeIsReadToTheLimit) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  const std::string path = "/dev/fd/" + std::to_string(ends[0]);
  ASSERT_NE(::signal(SIGPIPE, SIG_IGN), SIG_ERR);
  std::thread writer([&] {
    const std::array<char, 65536> zeros{};
    bool goes_on = ::write(ends[1], "vmmhist\n", 8) == 8;
    while (goes_on) goes_on = ::write(ends[1], zeros.data(), zeros.size()) > 0;
    ::close(ends[1]);
  });
  EXPECT_EQ(problem_of(path, MiB), path +
                                       ": is larger than 1048576 bytes, which is the most that "
                                       "is read: record fewer events");
  ::close(ends[0]);
  writer.join();
}

TEST(ReadHistory, ANamedPipeIsNotWaitedFor) {
  const std::string path = place("pipe");
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_TRUE(contains(problem_of(path), "cannot be read: it is a named pipe (FIFO)"));
  fs::remove(path);
}

TEST(ReadHistory, AFileThatIsTooLargeIsNotRead) {
  const std::string path = place("large");
  std::ofstream(path) << "vmmhist\n";
  fs::resize_file(path, history_bytes_max + 1);  // sparse
  EXPECT_TRUE(contains(problem_of(path), "is larger than 1073741824 bytes"));
  fs::remove(path);
}

// A byte each, and a value, a container, a mark or an entry of the memo each.
TEST(ReadHistory, APickleHoldsNoMoreAtOnceThanASnapshot) {
  const std::string protocol = "\x80\x04";
  const auto refuses = [](const std::string& pickle, const char* why) {
    return problem_of_pickle(pickle).starts_with(std::string("made: ") + why);
  };
  for (const char each : {']', '}', '('})
    EXPECT_TRUE(refuses(protocol + std::string(2 * MiB, each) + ".",
                        "the pickle holds more values at once than a snapshot has (opcode 0x"));
  for (const char each : {'N', ')'})
    EXPECT_TRUE(refuses(protocol + std::string(MiB, each),
                        "the pickle is cut short (after byte 1048578 of the pickle); expected"));
  EXPECT_TRUE(refuses(protocol + "]r\xff\xff\xff\x7f.",
                      "the pickle counts further than it has values (opcode 0x72 at byte 3 of"));
}

}  // namespace

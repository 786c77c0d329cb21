// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a text that is put together for an error is whole, stays, and costs bounded memory; opening
// a file that a user names waits for nothing, and its failure names a limit with its figure.
// Method: texts of each length around the bound; equal texts, from several threads; more texts than
// are kept. Each kind of file, and limits of this process.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>

#include "../support/test.h"

import vmm.base;

namespace {

using vmm::detail_text;

constexpr const char* otherwise = "what stands there without room";

TEST(Texts, AreMadeOfWordsAndNumbers) {
  detail_text made;
  made.add("GPU ").add_number(0).add(" of ").add_number(120).add("");
  EXPECT_EQ(made.text(), "GPU 0 of 120");
  const std::uint64_t largest = std::numeric_limits<std::uint64_t>::max();
  EXPECT_EQ(detail_text().add_number(largest).text(), std::to_string(largest));
  EXPECT_STREQ(detail_text().keep(otherwise), "");
}

TEST(Texts, AreCutWhereTheyAreTooLong) {
  const std::string most(vmm::detail_bytes_max - 4, 'x');
  detail_text made;
  made.add(most);
  EXPECT_EQ(made.text(), most);
  made.add("y").add("z");
  EXPECT_EQ(made.text(), most + "...") << "cut once";
  EXPECT_EQ(std::string(made.keep(otherwise)), most + "...");
  EXPECT_EQ(detail_text().add(most + "y").text(), most + "...");
}

TEST(Texts, EqualOnesAreKeptOnce) {
  const char* const first = detail_text().add("a library").keep(otherwise);
  const char* const other = detail_text().add("another library").keep(otherwise);
  EXPECT_NE(first, other);
  EXPECT_EQ(detail_text().add("a lib").add("rary").keep(otherwise), first);
  EXPECT_STREQ(first, "a library");
}

TEST(Texts, NoMoreThanSoManyAreKept) {
  std::vector<const char*> kept;
  for (std::size_t i = 0; i < 2 * vmm::kept_count_max; ++i)
    kept.push_back(detail_text().add("text ").add_number(i).keep(otherwise));
  std::size_t refused_count = 0;
  for (std::size_t i = 0; i < kept.size(); ++i) {
    if (kept[i] == otherwise) {
      ++refused_count;
    } else {
      EXPECT_EQ(kept[i], "text " + std::to_string(i));
    }
  }
  EXPECT_GE(refused_count, vmm::kept_count_max);
  EXPECT_LT(refused_count, kept.size());
  EXPECT_EQ(detail_text().add("text 0").keep(otherwise), kept[0]) << "what is kept is found still";
}

TEST(Texts, ThreadsKeepTheSame) {
  constexpr std::size_t text_count = 20;
  std::array<std::array<const char*, text_count>, 4> kept{};
  {
    std::vector<std::jthread> threads;
    for (auto& mine : kept) {
      threads.emplace_back([&mine] {
        for (std::size_t i = 0; i < text_count; ++i)
          mine[i] = detail_text().add("shared ").add_number(i).keep(otherwise);
      });
    }
  }
  for (const auto& mine : kept) EXPECT_EQ(mine, kept[0]);
}

// ---- files -----------------------------------------------------------------------------

struct Files : testing::Test {
  void SetUp() override { ASSERT_NE(::mkdtemp(folder.data()), nullptr); }
  void TearDown() override { std::filesystem::remove_all(folder); }
  static int failure_of(const std::string& path, int flags) {
    const vmm::opened_file opened = vmm::open_named(path.c_str(), flags);
    EXPECT_EQ(opened.descriptor < 0, opened.failure != 0);
    if (opened.descriptor >= 0) ::close(opened.descriptor);
    return opened.failure;
  }
  std::string folder = (std::filesystem::temp_directory_path() / "vmm-files-XXXXXX").string();
};

TEST_F(Files, NoneIsWaitedFor) {
  const std::string pipe = folder + "/pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const int flags : {O_RDONLY, O_WRONLY, O_WRONLY | O_CREAT | O_APPEND}) {
    EXPECT_EQ(failure_of(pipe, flags), ENXIO);
    const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    EXPECT_EQ(failure_of(pipe, flags), ENXIO) << "also with its other end";
    ::close(reader);
  }
  EXPECT_EQ(failure_of(folder, O_RDONLY), EISDIR);
  EXPECT_EQ(failure_of(folder + "/none", O_RDONLY), ENOENT);
  EXPECT_EQ(failure_of("/dev/null", O_WRONLY), 0);
  EXPECT_EQ(failure_of(folder + "/new", O_WRONLY | O_CREAT), 0);
  EXPECT_NE(std::string_view(vmm::limit_text(ENXIO)).find("named pipe"), std::string_view::npos);
}

TEST_F(Files, PipesOfAShellAreOpenedAndWait) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  for (const std::size_t end : {0u, 1u}) {
    const std::string path = "/dev/fd/" + std::to_string(ends[end]);
    const vmm::opened_file opened = vmm::open_named(path.c_str(), end == 0 ? O_RDONLY : O_WRONLY);
    ASSERT_EQ(opened.failure, 0) << end;
    EXPECT_EQ(::fcntl(opened.descriptor, F_GETFL) & O_NONBLOCK, 0);
    EXPECT_EQ(::fcntl(opened.descriptor, F_GETFD), FD_CLOEXEC);
    ::close(opened.descriptor);
  }
  for (const int each : ends) ::close(each);
}

// As of a profiler's timer: each interrupts a write() that has written nothing.
TEST_F(Files, SignalsCutNothingThatIsWritten) {
  std::array<int, 2> ends{-1, -1};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  struct sigaction handler{}, before{};
  handler.sa_handler = [](int) {};
  ASSERT_EQ(::sigaction(SIGUSR1, &handler, &before), 0);
  const ::pthread_t writer = ::pthread_self();
  std::vector<std::byte> wanted(MiB);
  for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] = static_cast<std::byte>(i * 7 >> 8);
  std::vector<std::byte> seen;
  std::thread reader([&] {
    std::array<std::byte, 4096> some{};
    for (::ssize_t count = 1; count > 0;
         seen.insert(seen.end(), some.begin(), some.begin() + count)) {
      (void)::pthread_kill(writer, SIGUSR1);
      count = std::max<::ssize_t>(::read(ends[0], some.data(), some.size()), 0);
    }
  });
  const vmm::written_bytes written = vmm::write_whole(ends[1], wanted);
  ::close(ends[1]);
  reader.join();
  ::close(ends[0]);
  EXPECT_EQ(::sigaction(SIGUSR1, &before, nullptr), 0);
  EXPECT_EQ(written.failure, 0);
  EXPECT_EQ(written.count, wanted.size());
  EXPECT_EQ(seen, wanted);
}

TEST_F(Files, LibrariesThatAreNoFilesAreRefused) {
  const std::string pipe = folder + "/libcuda.so.1";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const vmm::loaded_library loaded = vmm::load_named(pipe.c_str());
  EXPECT_EQ(loaded.handle, nullptr);
  EXPECT_STREQ(loaded.reason, "it is not a regular file");
  const std::string before = getenv("LD_LIBRARY_PATH") == nullptr ? "" : getenv("LD_LIBRARY_PATH");
  ASSERT_EQ(::setenv("LD_LIBRARY_PATH", ("/none:" + folder + ":" + before).c_str(), 1), 0);
  EXPECT_STREQ(vmm::load_named("libcuda.so.1").reason,
               "a folder of LD_LIBRARY_PATH has a named pipe (FIFO) of this name");
  ASSERT_EQ(::setenv("LD_LIBRARY_PATH", before.c_str(), 1), 0);
  EXPECT_NE(vmm::load_named((folder + "/none").c_str()).reason, nullptr);
  EXPECT_NE(vmm::load_named("libc.so.6").handle, nullptr);
}

TEST_F(Files, LimitsAreNamedWithTheirFigures) {
  ::rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const ::rlimit three{3, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &three), 0);
  const int failure = failure_of("/dev/null", O_RDONLY);
  const std::string said = vmm::limit_text(EMFILE);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(failure, EMFILE);
  EXPECT_EQ(said,
            "the process is at its limit of 3 open files: close some, or raise it (ulimit -n)");
  EXPECT_EQ(vmm::limit_text(ENOENT), nullptr);
  EXPECT_STREQ(vmm::file_text(EPIPE, otherwise), otherwise);
  EXPECT_STREQ(vmm::file_text(ENOSPC, otherwise), vmm::limit_text(ENOSPC));
  EXPECT_STREQ(vmm::errno_name(EMFILE), "EMFILE");
  EXPECT_STREQ(vmm::errno_name(-1), "errno");
}

}  // namespace

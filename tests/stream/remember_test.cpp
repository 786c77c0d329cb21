// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: with VMM_REMEMBER the second run of a program makes few driver calls and holds no more
// memory; a damaged, foreign or stale file changes nothing, a folder that others control is not
// used, and memory that was made ready goes first when memory is short.
// Method: the life of a pool on the fake driver is a run; for two processes and for the exit, this
// program runs itself.
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "../support/test.h"

import vmm.backend;
import vmm.fake;
import vmm.manager;
import vmm.stream;

namespace {

namespace files = std::filesystem;
using vmm::call, vmm::stream_handle, vmm::stream_pool;

constexpr const char* variable = "VMM_REMEMBER";
constexpr std::uint64_t half_gib = 512 * MiB;

std::uint64_t memory_calls(const vmm::fake_driver& driver) {
  return driver.calls(call::create) + driver.calls(call::map) + driver.calls(call::unmap) +
         driver.calls(call::set_access);
}

struct run {
  std::uint64_t ready_bytes = 0;  // mapped by the first request
  std::uint64_t call_count = 0;   // after it
  std::uint64_t peak_bytes = 0;
};

run play(vmm::fake_driver& driver, int steps, std::uint64_t scale_bytes = MiB / 2,
         unsigned seed = 7) {
  run seen;
  stream_pool pool(driver);
  std::vector<vmm::address> live{pool.allocate(MiB, stream_handle::default_stream).value()};
  seen.ready_bytes = pool.statistics().mapped_bytes;
  const std::uint64_t before = memory_calls(driver);
  std::mt19937 random(seed);
  for (int i = 0; i < steps; ++i) {
    if (live.empty() || random() % 5 < 3) {
      const std::uint64_t size_bytes = (1 + random() % 48) * scale_bytes;
      live.push_back(pool.allocate(size_bytes, stream_handle::default_stream).value());
      continue;
    }
    std::swap(live[random() % live.size()], live.back());
    EXPECT_TRUE(pool.free(live.back(), stream_handle::default_stream));
    live.pop_back();
  }
  seen.call_count = memory_calls(driver) - before;
  seen.peak_bytes = pool.statistics().peak_mapped_bytes;
  for (const vmm::address at : live) EXPECT_TRUE(pool.free(at, stream_handle::default_stream));
  return seen;
}

run play(int steps = 400, std::uint64_t scale_bytes = MiB / 2, unsigned seed = 7) {
  vmm::fake_driver driver;
  return play(driver, steps, scale_bytes, seed);
}

struct Remember : testing::Test {
  void SetUp() override {
    std::string name = (files::temp_directory_path() / "vmm-remember-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    outer = name;
    use(outer / "peaks");
    ASSERT_EQ(::unsetenv(variable), 0);
    cold_bytes = play(0).ready_bytes;
    use(folder);
  }
  void TearDown() override {
    ::unsetenv(variable);
    files::remove_all(outer);
  }
  void use(const files::path& path) {
    folder = path;
    ASSERT_EQ(::setenv(variable, path.c_str(), 1), 0);
  }
  // The only file of the folder.
  files::path file() {
    files::path found;
    for (const auto& each : files::directory_iterator(folder)) {
      EXPECT_TRUE(found.empty()) << each.path() << " beside " << found;
      found = each.path();
    }
    return found;
  }
  static std::string bytes_of(const files::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static void write(const files::path& path, std::string_view bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
  }
  void expect_cold(const std::string& when) { EXPECT_EQ(play(0).ready_bytes, cold_bytes) << when; }
  // This program again, as one process or as two at once.
  static void run_children(int count, const std::string& name = "RememberChild") {
    const std::string one = "'" + files::read_symlink("/proc/self/exe").string() +
                            "' --gtest_filter=" + name + ".* --gtest_also_run_disabled_tests";
    std::string all = "( ";
    for (int i = 0; i < count; ++i) all += one + " & p" + std::to_string(i) + "=$!; ";
    for (int i = 0; i < count; ++i) all += "wait $p" + std::to_string(i) + " || exit 1; ";
    EXPECT_EQ(std::system((all + ") > /dev/null").c_str()), 0);
  }

  files::path outer;
  files::path folder;
  std::uint64_t cold_bytes = 0;
};

// Of eight programs. One holds up to a request more, because its blocks lie elsewhere.
TEST_F(Remember, ASecondRunIsReady) {
  constexpr unsigned programs = 8;
  constexpr unsigned runs = 3;
  double more = 0;
  for (unsigned seed = 1; seed <= programs; ++seed) {
    SCOPED_TRACE(seed);
    use(outer / std::to_string(seed));
    const auto play_it = [seed] { return play(400, MiB / 2, seed); };
    const run first = play_it();
    EXPECT_EQ(first.ready_bytes, cold_bytes);
    EXPECT_EQ(bytes_of(file()).size(), 64u);
    for (unsigned i = 0; i < runs; ++i) {
      const run next = play_it();
      EXPECT_LE(next.call_count * 20, first.call_count);
      EXPECT_LE(next.peak_bytes, first.peak_bytes + 24 * MiB);
      EXPECT_GT(next.ready_bytes, cold_bytes);
      more += static_cast<double>(next.peak_bytes) / static_cast<double>(first.peak_bytes) - 1;
    }
  }
  EXPECT_LE(more / (programs * runs), 0.0075);
}

// Of a program that needs less from run to run: each holds what itself or the run before needs.
TEST_F(Remember, ASmallerRunForgetsTheLargerOne) {
  constexpr int runs = 20;
  const auto scale_of = [](int i) { return (MiB / 32) * static_cast<std::uint64_t>(runs - i); };
  std::array<std::uint64_t, runs> alone_bytes{};
  ASSERT_EQ(::unsetenv(variable), 0);
  for (int i = 0; i < runs; ++i)
    alone_bytes[static_cast<std::size_t>(i)] = play(400, scale_of(i)).peak_bytes;
  use(folder);
  for (std::size_t i = 0; i < runs; ++i) {
    const std::uint64_t most_bytes = std::max(alone_bytes[i], alone_bytes[i == 0 ? 0 : i - 1]);
    EXPECT_LE(play(400, scale_of(static_cast<int>(i))).peak_bytes, most_bytes + most_bytes / 50)
        << "run " << i;
  }
  const std::uint64_t last_bytes = alone_bytes.back();
  EXPECT_LE(play(0).ready_bytes, last_bytes + last_bytes / 50) << "and so does one after them";
}

// One large run beside many small ones.
TEST_F(Remember, ALargeRunIsForgottenByTheNext) {
  ASSERT_EQ(::unsetenv(variable), 0);
  const std::uint64_t small_bytes = play(400, MiB / 16).peak_bytes;
  use(folder);
  (void)play();
  (void)play(400, MiB / 16);
  const run third = play(400, MiB / 16);
  EXPECT_LE(third.ready_bytes, small_bytes + small_bytes / 50);
  EXPECT_LE(third.peak_bytes, small_bytes + small_bytes / 50);
}

TEST_F(Remember, FilesThatAreNotWholeAreIgnored) {
  (void)play();
  const files::path place = file();
  const std::string good = bytes_of(place);
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 1);
    write(place, bad);
    expect_cold("byte " + std::to_string(i));
  }
  for (const std::string& bad : {std::string(), good.substr(1), good + good}) {
    write(place, bad);
    expect_cold(std::to_string(bad.size()) + " bytes");
  }
  files::remove(place);
  files::create_directory(place);
  expect_cold("a folder in its place");
}

TEST_F(Remember, FilesOfOthersAreIgnored) {
  (void)play();
  const files::path place = file();
  const files::path target = outer / "target";
  files::rename(place, target);
  const std::string good = bytes_of(target);
  files::create_symlink(target, place);
  expect_cold("a link");
  EXPECT_FALSE(files::is_symlink(place));
  EXPECT_EQ(bytes_of(target), good);
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to be two users";
  write(place, good);
  ASSERT_EQ(::chown(place.c_str(), 65534, 65534), 0);
  expect_cold("another user's file");
}

// A draft beside it would stay if the process were killed before it has its name.
TEST_F(Remember, AFileIsWrittenUnderItsName) {
  (void)play();
  const files::path place = file();
  for (const char* beside : {"a pipe", "a second name"}) {
    files::remove(place);
    if (beside[2] == 'p') ASSERT_EQ(::mkfifo(place.c_str(), 0600), 0);
    if (beside[2] == 's') {
      std::ofstream(outer / "other") << "what the user has";
      files::create_hard_link(outer / "other", place);
    }
    (void)play();
    EXPECT_EQ(bytes_of(file()).size(), 64u) << beside;
  }
  EXPECT_EQ(bytes_of(outer / "other"), "what the user has");
}

TEST_F(Remember, WrongFoldersAreNamedWithTheReason) {
  const auto said_of = [&](const files::path& path) {
    use(path);
    testing::internal::CaptureStderr();
    run_children(1);
    return testing::internal::GetCapturedStderr();
  };
  ASSERT_EQ(::setenv("VMM_TEST_READY", "0", 1), 0);
  std::ofstream(outer / "file") << "";
  files::create_symlink(outer, outer / "link");
  EXPECT_TRUE(contains(said_of("/"), "'/': name a folder of this user in it"));
  EXPECT_TRUE(contains(said_of(outer / "file"), "the path is not a folder"));
  EXPECT_TRUE(contains(said_of(outer / "link"), "the path is a symbolic link"));
  EXPECT_TRUE(contains(said_of(outer / std::string(300, 'n')), "too long"));
  EXPECT_TRUE(contains(said_of(outer / "no" / "such"), "does not exist"));
  use(outer / "file");
  testing::internal::CaptureStderr();
  run_children(1, "OptionsOfAManager");
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(contains(said, "the path is not a folder")) << said;
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
  const std::string fresh = (outer / "new").string();
  EXPECT_TRUE(contains(said_of(fresh), "the folder '" + fresh + "' is new"));
  ASSERT_EQ(::setenv("VMM_TEST_READY", "1", 1), 0);
  EXPECT_EQ(said_of(fresh), "") << "the second time";
  ASSERT_EQ(::unsetenv("VMM_TEST_READY"), 0);
}

TEST_F(Remember, RootPublishesNoFolderOfAUsers) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to be two users";
  ASSERT_EQ(::chown(outer.c_str(), 65534, 65534), 0);
  for (const char* name : {"fresh", "fresh//"}) {
    use(outer / name);
    (void)play();
    EXPECT_TRUE(files::is_empty(outer)) << name;
  }
  use(outer / "given");
  files::create_directory(folder);
  (void)play();
  EXPECT_FALSE(files::is_empty(folder)) << "one that was made for root";
}

// Before the program's work, not at its end.
TEST_F(Remember, AFolderThatCannotBeWrittenIsNamedAtOnce) {
  files::create_directory(folder);
  ASSERT_EQ(::chmod(folder.c_str(), 0555), 0);
  testing::internal::CaptureStderr();
  const ::pid_t child = ::fork();
  if (child == 0) {
    (void)::prctl(PR_CAPBSET_DROP, 1, 0, 0, 0);  // CAP_DAC_OVERRIDE, of root
    run_children(1, "OptionsOfAManager");
    ::_exit(0);
  }
  int ended = 1;
  ASSERT_EQ(::waitpid(child, &ended, 0), child);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(ended, 0);
  EXPECT_EQ(said, "vmm: VMM_REMEMBER: '" + folder.string() +
                      "': this user cannot write to the folder: run chmod u+rwx on it, or name "
                      "another; no peak is remembered\n");
}

TEST_F(Remember, FoldersOfOthersAreNotUsed) {
  (void)play();
  const files::path real = folder;
  const files::path name = file().filename();
  const std::string good = bytes_of(real / name);
  const auto expect_unused = [&](const char* when) {
    expect_cold(when);
    EXPECT_EQ(bytes_of(real / name), good) << when;
  };
  ASSERT_EQ(::chmod(folder.c_str(), 0777), 0);
  expect_unused("others may write");
  ASSERT_EQ(::chmod(folder.c_str(), 0755), 0);
  files::create_symlink(real, outer / "link");
  use(outer / "link");
  expect_unused("a link");
  use(files::relative(real));
  expect_unused("a relative path");
  use(outer / "no" / "such");
  expect_unused("no folder above");
  use(real);
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to be two users";
  ASSERT_EQ(::chown(folder.c_str(), 65534, 65534), 0);
  expect_unused("another user's");
}

TEST_F(Remember, AFolderInTheFilesPlaceIsNamed) {
  ASSERT_EQ(::setenv("VMM_TEST_READY", "0", 1), 0);
  run_children(1);
  const files::path place = file();
  files::remove(place);
  files::create_directory(place);
  testing::internal::CaptureStderr();
  run_children(1);
  const std::string said = testing::internal::GetCapturedStderr();
  ASSERT_EQ(::unsetenv("VMM_TEST_READY"), 0);
  EXPECT_TRUE(contains(said, "'" + place.string() + "': a folder has the name of the file"))
      << said;
}

TEST_F(Remember, AFullDiskLeavesTheFile) {
  (void)play();
  const std::string good = bytes_of(file());
  ::rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const ::rlimit none{0, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &none), 0);
  const run next = play(0);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_GT(next.ready_bytes, cold_bytes);
  EXPECT_EQ(bytes_of(file()), good);
}

TEST_F(Remember, ALimitOfOpenFilesLeavesTheFile) {
  (void)play();
  const std::string good = bytes_of(file());
  ::rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  {
    vmm::fake_driver driver;
    stream_pool pool(driver);
    EXPECT_TRUE(pool.free(pool.allocate(MiB, stream_handle::default_stream).value(),
                          stream_handle::default_stream));
    const int lowest = ::dup(0);
    ::close(lowest);
    const ::rlimit one{static_cast<::rlim_t>(lowest) + 1, before.rlim_max};  // for the folder
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &one), 0);
  }
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(bytes_of(file()), good);
}

TEST_F(Remember, AnotherDeviceIsAnotherKey) {
  (void)play();
  vmm::fake::profile other = vmm::fake::profile::cuda();
  other.device_memory_bytes /= 2;
  vmm::fake_driver driver(other);
  EXPECT_EQ(play(driver, 0).ready_bytes, cold_bytes);
}

// Also by a process that exits with its pool.
TEST_F(Remember, ProcessesAtOnceLeaveOneFile) {
  ASSERT_EQ(::setenv("VMM_TEST_READY", "0", 1), 0);
  run_children(1);
  ASSERT_EQ(::setenv("VMM_TEST_READY", "1", 1), 0);
  run_children(2);
  run_children(1);
  ASSERT_EQ(::unsetenv("VMM_TEST_READY"), 0);
  EXPECT_EQ(bytes_of(file()).size(), 64u);
}

// Its parent is Remember.ProcessesAtOnceLeaveOneFile.
TEST(RememberChild, DISABLED_Runs) {
  static auto* const driver = new vmm::fake_driver;
  static auto* const pool = new stream_pool(*driver);
  const bool is_ready = std::string_view(std::getenv("VMM_TEST_READY")) == "1";
  const auto small = pool->allocate(MiB, stream_handle::default_stream);
  ASSERT_TRUE(small);
  EXPECT_EQ(pool->statistics().mapped_bytes >= half_gib / 2, is_ready);
  ASSERT_TRUE(pool->allocate(half_gib / 2, stream_handle::default_stream));
}

TEST(OptionsOfAManager, DISABLED_AreRead) {
  EXPECT_TRUE(vmm::manager_options::from_environment({}));
  EXPECT_TRUE(vmm::manager_options::from_environment({}));
}

// Work of the stream that the memory is ready for goes on.
TEST_F(Remember, WhatIsReadyGoesFirstWhenMemoryIsShort) {
  vmm::fake::profile plays = vmm::fake::profile::cuda();
  plays.device_memory_bytes = 2 * half_gib;
  for (const bool is_own : {false, true}) {
    vmm::fake_driver driver(plays);
    driver.set_manual(true);
    const stream_handle a = *driver.create_stream();
    const stream_handle b = *driver.create_stream();
    for (const bool is_second : {false, true}) {
      stream_pool pool(driver);
      stream_pool other(driver);
      const vmm::address at = pool.allocate(MiB, a).value();
      const vmm::address_range bytes{at, MiB};
      ASSERT_TRUE(driver.launch(a, {.duration_us = 1e6, .writes = {&bytes, 1}}));
      if (!is_second) {
        const vmm::address most = pool.allocate(half_gib, a).value();
        EXPECT_TRUE(pool.free(most, a));
      } else {
        EXPECT_GE(pool.statistics().mapped_bytes, half_gib);
        stream_pool& requests = is_own ? pool : other;
        const auto large = requests.allocate(half_gib + half_gib / 2, b);
        ASSERT_TRUE(large) << vmm::describe(large.error());
        EXPECT_EQ(requests.statistics().host_wait_count, 0u);
        EXPECT_NE(driver.resource_counts().pending_work, 0u);
        EXPECT_TRUE(requests.free(*large, b));
      }
      EXPECT_TRUE(pool.free(at, a));
      EXPECT_TRUE(driver.finish_all());
    }
    for (const stream_handle each : {a, b}) EXPECT_TRUE(driver.destroy_stream(each));
    EXPECT_EQ(driver.misuse_count(), 0u);
  }
}

}  // namespace

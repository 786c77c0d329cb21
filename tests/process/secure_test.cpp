// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a program that runs with rights that its caller lacks obeys no variable of its caller's: it
// loads no library and writes no file that they name. Method: one program, run as it is and with
// the set-uid (or set-gid) bit, with the same environment.
#include <fcntl.h>
#include <grp.h>
#include <sys/stat.h>

#include "child.hpp"

namespace {

namespace fs = std::filesystem;

constexpr uid_t nobody = 65534;

struct Secure : testing::Test {
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "vmm_secure_XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder = name;
    ASSERT_EQ(::chmod(name.c_str(), 0755), 0);
    program = folder / "program";
    fs::copy_file(VMM_SECURE_PROGRAM, program);
    log = folder / "log";
  }
  void TearDown() override {
    std::error_code ignored;
    fs::remove_all(folder, ignored);
  }

  // What the program says; as another user where the test's is root.
  [[nodiscard]] std::string run(bool as_other) const {
    std::array<int, 2> ends{-1, -1};
    EXPECT_EQ(::pipe(ends.data()), 0);
    const ::pid_t child = ::fork();
    if (child == 0) {
      ::dup2(ends[1], STDOUT_FILENO);
      if (as_other && ::geteuid() == 0 &&
          (::setgroups(0, nullptr) != 0 || ::setgid(nobody) != 0 || ::setuid(nobody) != 0))
        ::_exit(96);
      std::vector<std::string> texts{"VMM_CUDA_LIBRARY=" VMM_SECURE_LIBRARY,
                                     "NVTX_INJECTION64_PATH=" VMM_SECURE_LIBRARY,
                                     "VMM_LOG=" + log.string(),
                                     "VMM_POLICY=keep_mapped",
                                     "VMM_BUDGET=64MiB",
                                     "VMM_MODE=vmm",
                                     "XDG_RUNTIME_DIR=" + folder.string(),
                                     "ASAN_OPTIONS=detect_leaks=0"};
      std::vector<char*> environment;
      for (std::string& each : texts) environment.push_back(each.data());
      environment.push_back(nullptr);
      std::string path = program.string();
      const std::array<char*, 2> words{path.data(), nullptr};
      ::execve(path.c_str(), words.data(), environment.data());
      ::_exit(97);
    }
    ::close(ends[1]);
    const process_test::child_end seen = process_test::end_of(child, ends[0]);
    EXPECT_EQ(seen.code, 0) << seen.said;
    return seen.said;
  }

  // Gives the program rights that its caller will not have. False where there are none to give.
  [[nodiscard]] bool give_more_rights() const {
    if (::geteuid() == 0) return ::chmod(program.c_str(), 04755) == 0;
    std::array<::gid_t, 64> groups{};
    const int count = ::getgroups(static_cast<int>(groups.size()), groups.data());
    for (int i = 0; i < count; ++i) {
      const ::gid_t group = groups[static_cast<std::size_t>(i)];
      if (group == ::getegid() || ::chown(program.c_str(), static_cast<::uid_t>(-1), group) != 0)
        continue;
      return ::chmod(program.c_str(), 02755) == 0;
    }
    return false;
  }

  fs::path folder;
  fs::path program;
  fs::path log;
};

TEST_F(Secure, WhatIsNotSetUidObeysItsEnvironment) {
  const std::string said = run(false);
  EXPECT_TRUE(contains(said, "caller 0\n"));
#ifdef VMM_SECURE_CUDA
  EXPECT_TRUE(contains(said, "a library of the caller's choice runs\n"));
#endif
  EXPECT_TRUE(
      contains(said, "policy keep_mapped\nbudget 1\nfolder " + folder.string() + "/vmm\nset 1\n"));
  EXPECT_TRUE(fs::exists(log));
}

TEST_F(Secure, AProgramWithMoreRightsThanItsCallerObeysNoVariable) {
  if (!give_more_rights()) GTEST_SKIP() << "needs root, or a second group";
  const std::string said = run(true);
  if (said.find("caller 0\n") != std::string::npos)
    GTEST_SKIP() << "the system gives set-uid programs no rights here (nosuid, no_new_privs)";
  EXPECT_EQ(said, "more rights than its caller 1\npolicy va_pool\nbudget 0\nfolder /tmp/vmm-" +
                      std::to_string(::geteuid()) + "\nset 0\n");
  EXPECT_FALSE(fs::exists(log));
}

}  // namespace

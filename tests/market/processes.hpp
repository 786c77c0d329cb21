// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// An owner as a process, and tenants in forked processes.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <chrono>

#include "../support/program.hpp"

import vmm;
import vmm.backend;
import vmm.market;

namespace market_test {

using vmm::lent_list, vmm::memory_source, vmm::tenant_options;

inline constexpr std::uint64_t second_ns = 1'000'000'000;
// For a request that is granted: the host may be slow.
inline constexpr std::uint64_t patience_ns = 30 * second_ns;

// The device of the tests: "host", or with VMM_TEST_DEVICE=UUID that of VMM_TEST_BACKEND=cuda:N.
inline std::string variable(const char* name, const char* usual) {
  const char* const text = std::getenv(name);
  return text == nullptr ? usual : text;
}
inline std::string device() { return variable("VMM_TEST_DEVICE", "host"); }

inline const char* owner_program() {
  const char* const other = std::getenv("VMM_TEST_OWNER");
  return other != nullptr ? other : VMM_TEST_OWNER_PROGRAM;
}

inline std::string run_program(const std::vector<std::string>& words, int* code = nullptr) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return "";
  const ::pid_t child = ::fork();
  if (child == 0) {
    ::dup2(ends[1], STDOUT_FILENO);
    ::dup2(ends[1], STDERR_FILENO);
    std::vector<char*> line;
    for (const std::string& each : words) line.push_back(const_cast<char*>(each.c_str()));
    line.push_back(nullptr);
    ::execv(line[0], line.data());
    ::_exit(127);
  }
  ::close(ends[1]);
  std::string text;
  char part[4096];
  for (ssize_t came = 0; (came = ::read(ends[0], part, sizeof part)) > 0;)
    text.append(part, static_cast<std::size_t>(came));
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (code != nullptr) *code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return text;
}

struct MarketProcesses : testing::Test {
  MarketProcesses() {
    char name[] = "/tmp/vmm-market-test-XXXXXX";
    folder_ = ::mkdtemp(name);
  }
  ~MarketProcesses() override {
    stop_owner();
    std::filesystem::remove_all(folder_);
  }
  void start_owner(const std::vector<std::string>& more = {}, const rlimit* files = nullptr) {
    std::vector<std::string> words{owner_program(), "serve",   folder_,      device(),
                                   "--capacity",    "1024MiB", "--quiet-ms", "50"};
    words.insert(words.end(), more.begin(), more.end());
    owner_ = ::fork();
    if (owner_ == 0) {
      if (files != nullptr) (void)::setrlimit(RLIMIT_NOFILE, files);
      std::vector<char*> line;
      for (std::string& each : words) line.push_back(each.data());
      line.push_back(nullptr);
      ::execv(line[0], line.data());
      ::_exit(127);
    }
  }
  int stop_owner(int how = SIGKILL) {
    if (owner_ <= 0) return 0;
    ::kill(owner_, how);
    return wait_owner();
  }
  int wait_owner() {
    int status = 0;
    ::waitpid(owner_, &status, 0);
    owner_ = -1;
    return status;
  }
  [[nodiscard]] tenant_options options(const char* name, std::uint64_t guarantee_bytes = 0) const {
    tenant_options made;
    made.share.guarantee_bytes = guarantee_bytes;
    made.directory = folder_;
    made.device = vmm::make_market_device(device());
    made.name = vmm::make_market_name(name);
    made.timeout_ms = 5000;
    return made;
  }
  static void expect_program(const std::vector<std::string>& words, int status,
                             const std::string& text) {
    int code = -1;
    const std::string said = run_program(words, &code);
    EXPECT_TRUE(contains(said, text)) << said;
    EXPECT_EQ(code, status) << said;
  }
  static void expect_control(std::vector<std::string> words, int status, const std::string& text) {
    words.insert(words.begin(), {owner_program(), "ctl"});
    expect_program(words, status, text);
  }
  static std::string control(std::vector<std::string> words) {
    words.insert(words.begin(), {owner_program(), "ctl"});
    return run_program(words);
  }

  std::string folder_;
  ::pid_t owner_ = -1;
};

inline std::unique_ptr<memory_source> join(const tenant_options& options,
                                           const vmm::source_callbacks& callbacks = {}) {
  auto made = vmm::join_market(options, callbacks);
  EXPECT_TRUE(made) << vmm::describe(made.error());
  return made ? std::move(*made) : nullptr;
}

// A request that is refused until a refusal has the text: on a slow host a tenant ends its request
// before the owner does.
inline void expect_refused_with(memory_source& source, std::uint64_t bytes, const char* text) {
  lent_list lot;
  for (int left = 60; left > 0; --left) {
    ASSERT_FALSE(source.take({bytes, second_ns / 2}, lot));
    if (contains(source.last_refusal(), text)) return;
  }
  ADD_FAILURE() << "no \"" << text << "\" in: " << source.last_refusal();
}

}  // namespace market_test

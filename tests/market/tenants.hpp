// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm-owner over the host driver, and drivers of its tenants. It imports what it uses, so it is the
// last include except others with imports.
#pragma once

#include <signal.h>
#include <sys/stat.h>

#include "../support/test.h"

import vmm.backend;
import vmm.host;
import vmm.market;

namespace market_test {

inline constexpr std::uint64_t second_ns = 1'000'000'000;
/// Of most owners of the tests.
inline constexpr std::uint64_t capacity_bytes = 64 * MiB;

/// A private directory for a socket, removed at its end.
class private_directory {
 public:
  private_directory() {
    char name[] = "/tmp/vmm-market-test-XXXXXX";
    path_ = ::mkdtemp(name);
  }
  private_directory(const private_directory&) = delete;
  private_directory& operator=(const private_directory&) = delete;
  ~private_directory() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline vmm::tenant_options options_of(const private_directory& in, std::string_view name) {
  vmm::tenant_options made;
  made.directory = in.path();
  made.device = vmm::make_market_device("host");
  made.name = vmm::make_market_name(name);
  made.timeout_ms = 20'000;
  return made;
}

/// An owner process, in a folder of its own. A tenant without memory makes it stay until the end.
class owner_process {
 public:
  explicit owner_process(const char* bytes = "64MiB", bool is_late = false) : bytes_(bytes) {
    if (!is_late) begin();
  }
  void begin() {
    start();
    auto made = vmm::join_market(options_of(in, "idle"), {});
    EXPECT_TRUE(made) << vmm::describe(made.error());
    if (made) idle_ = std::move(*made);
  }
  owner_process(const owner_process&) = delete;
  owner_process& operator=(const owner_process&) = delete;
  ~owner_process() {
    idle_.reset();
    kill();
  }
  void start() {
    const char* const other = std::getenv("VMM_TEST_OWNER");
    const char* const program = other != nullptr ? other : VMM_TEST_OWNER_PROGRAM;
    process_ = ::fork();
    if (process_ != 0) return;
    (void)::execl(program, program, "serve", in.path().c_str(), "host", "--capacity", bytes_,
                  "--quiet-ms", "1", nullptr);
    ::_exit(127);
  }
  void kill() {
    if (process_ <= 0) return;
    ::kill(process_, SIGKILL);
    ::waitpid(std::exchange(process_, -1), nullptr, 0);
  }

  const private_directory in;

 private:
  const char* bytes_;
  pid_t process_ = -1;
  std::unique_ptr<vmm::memory_source> idle_;
};
inline vmm::tenant_options options_of(const owner_process& owner, std::string_view name) {
  return options_of(owner.in, name);
}

inline vmm::result<std::unique_ptr<vmm::tenant_driver>> open_host_tenant(
    const vmm::tenant_options& options, std::uint64_t wait_ns = 10'000'000'000) {
  auto host = vmm::host_driver::open();
  if (!host) return host.error();
  auto any = vmm::any_backend::own(std::move(*host));
  if (!any) return any.error();
  return vmm::open_tenant(std::move(*any), options, {.wait_ns = wait_ns});
}

}  // namespace market_test

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: under VMM_OWNER a program's memory is an owner's, within its share, and its queries of the
// device's memory return that share.
// Method: vmm-owner and programs over the stub driver, whose descriptors pass as copies.
#include <signal.h>

#include "../support/test.h"
#include "child.h"

namespace {

// Of the stub's first device.
constexpr const char* device = "20202020202020202020202020202020";

class stub_owner {
 public:
  // `runtime`: the user's, where owners of a device notice each other; empty: one of its own.
  explicit stub_owner(const char* capacity, const std::string& runtime = "") {
    char name[] = "/tmp/vmm-preload-market-XXXXXX";
    folder_ = ::mkdtemp(name);
    process_ = ::fork();
    if (process_ != 0) {
      wait_for_socket();
      return;
    }
    ::setenv("LD_LIBRARY_PATH", VMM_PRELOAD_DRIVER, 1);
    ::setenv("XDG_RUNTIME_DIR", runtime.empty() ? folder_.c_str() : runtime.c_str(), 1);
    (void)::execl(VMM_OWNER_PROGRAM, VMM_OWNER_PROGRAM, "serve", folder_.c_str(), device,
                  "--capacity", capacity, "--context", "0", "--quiet-ms", "1", nullptr);
    ::_exit(127);
  }
  stub_owner(const stub_owner&) = delete;
  stub_owner& operator=(const stub_owner&) = delete;
  ~stub_owner() {
    kill();
    std::filesystem::remove_all(folder_);
  }
  void kill() {
    if (process_ > 0) ::kill(process_, SIGKILL);
    if (process_ > 0) ::waitpid(std::exchange(process_, -1), nullptr, 0);
  }
  std::string variable() const { return "VMM_OWNER=" + folder_; }
  const std::string& folder() const { return folder_; }
  pid_t process() const { return process_; }

 private:
  void wait_for_socket() const {
    const std::string socket = folder_ + "/owner-" + device;
    for (int turns = 0; turns < 5000; ++turns) {
      for (const auto& each : std::filesystem::directory_iterator(folder_)) {
        if (each.is_socket()) return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ADD_FAILURE() << "no socket " << socket;
  }

  std::string folder_;
  pid_t process_ = -1;
};

// Each would lend the whole device. A killed one leaves nothing that stops the next.
TEST(PreloadMarket, TwoOwnersOfADeviceNoticeEachOther) {
  stub_owner first("64MiB");
  const std::string other = first.folder() + "/other";
  const child::command second{.program = VMM_OWNER_PROGRAM,
                              .arguments = {"serve", other, device, "--capacity", "64MiB"},
                              .variables = {"XDG_RUNTIME_DIR=" + first.folder()}};
  for (const std::vector<std::string>& more : {std::vector<std::string>{}, {"--daemon"}}) {
    child::command again = second;
    again.arguments.insert(again.arguments.end(), more.begin(), more.end());
    const child::outcome refused = child::run(again);
    EXPECT_EQ(refused.code, 1) << refused.err;
    EXPECT_TRUE(contains(refused.err, "an owner of " + std::string(device) + ", process " +
                                          std::to_string(first.process()) + ", serves in " +
                                          first.folder() + ", and two would lend the same memory"))
        << refused.err;
    EXPECT_TRUE(std::filesystem::is_empty(other)) << "a file is left";
  }
  first.kill();
  const stub_owner next("64MiB", first.folder());
  EXPECT_TRUE(contains(child::run(second).err, "process " + std::to_string(next.process())));
}

TEST(PreloadMarket, TheDeviceIsTheTenantsShare) {
  const stub_owner owner("96MiB");
  child::expect_output(
      "vmm", {"market"},
      "device 0 64\nfree 64 of 64\ndevice 0 64\nallocate 0\nfree 24 of 64\ntoo much 2\nfree 0\n"
      "free 64 of 64\ndone\n",
      {owner.variable(), "VMM_TENANT=limit=64MiB", "VMM_REPORT=off"});
}

// NVML's device is the tenants' share, as cuMemGetInfo's, whichever of the process' tenants holds
// memory; MIG's and other processes' figures stay.
TEST(PreloadMarket, NvmlShowsTheTenantsShare) {
  const std::string plain = "1024-600=424 24; 300+124 300+124 300+124\n";
  const stub_owner owner("128MiB");
  const auto lines = [&](const std::string& first) {
    return "0: " + first + "1: " + plain + "2: " + plain;
  };
  const auto expect = [&](const std::vector<std::string>& words, const std::string& before,
                          const std::string& after, const std::vector<std::string>& variables) {
    const child::outcome seen = child::preloaded("", words, variables);
    EXPECT_TRUE(seen.out.starts_with(lines(before) + lines(after) + "free "))
        << variables.back() << "\n"
        << seen.out << seen.err;
    EXPECT_TRUE(seen.out.ends_with(lines(after))) << seen.out;
    EXPECT_EQ(contains(seen.out, "free 24\n"), contains(after, "64-24=40")) << seen.out;
    EXPECT_EQ(seen.code, 0) << seen.err;
  };
  const std::string empty = "64-64=0 0; 0+124 0+124 0+124\n";
  const std::string held = "64-24=40 0; 40+124 40+124 40+124\n";
  const std::string share = "VMM_TENANT=limit=64MiB";
  const std::vector<std::string> word{"market_nvml"};
  expect(word, empty, held, {owner.variable(), share, "VMM_REPORT=off", "VMM_MODE=vmm"});
  expect(word, "1024-1024=0 0; 0+124 0+124 0+124\n", "1024-984=40 0; 40+124 40+124 40+124\n",
         {owner.variable(), "VMM_TENANT=limit=2GiB", "VMM_REPORT=off", "VMM_MODE=vmm"});
  const std::string zero = "=0 0; 0+124 0+124 0+124\n";
  for (const auto& [variable, total] : {std::pair{"VMM_TENANT=guarantee=200MiB", "200"},
                                        std::pair{"VMM_TENANT=guarantee=2GiB", "1024"}})
    expect(word, std::string(total) + "-" + total + zero,
           std::string(total) + "-0=" + total + zero.substr(2),
           {owner.variable(), variable, "VMM_REPORT=off", "VMM_MODE=vmm"});
  for (const char* mode : {"VMM_MODE=off", "VMM_MODE=monitor"})
    expect(word, plain, plain, {owner.variable(), share, "VMM_REPORT=off", mode});
  expect(word, plain, plain, {share, "VMM_REPORT=off", "VMM_MODE=vmm"});
#ifdef VMM_C_LIBRARY
  if (!VMM_PRELOAD_SANITIZED)  // it names types of the stub otherwise
    expect({"market_nvml", VMM_C_LIBRARY}, empty, held,
           {owner.variable(), share, "VMM_REPORT=off", "VMM_MODE=vmm"});
#endif
}

#ifdef VMM_C_LIBRARY
// The guarantee does not fit twice, and the limit counts what both hold.
TEST(PreloadMarket, TheTenantsOfBothLibrariesHaveOneShare) {
  if (VMM_PRELOAD_SANITIZED) GTEST_SKIP() << "it names types of the stub otherwise";
  for (const char* first : {"library", "driver"}) {
    for (const auto& [share, out] :
         {std::pair{"guarantee=80MiB", "free 60 of 80\nfree 40 of 80\nmore 0\n"},
          std::pair{"limit=64MiB", "free 44 of 64\nfree 24 of 64\nmore 2\n"}}) {
      const stub_owner owner("128MiB");
      SCOPED_TRACE(first);
      child::expect_output(
          "vmm", {"market_both", VMM_C_LIBRARY, first}, out,
          {owner.variable(), std::string("VMM_TENANT=") + share, "VMM_REPORT=off"});
    }
  }
}
#endif

// As with VMM_BUDGET: both pools have one share, and the driver serves no request beyond it.
TEST(PreloadMarket, ThePoolsOfADeviceShareOneTenant) {
  const stub_owner owner("96MiB");
  const child::outcome seen =
      child::reported("vmm", {"budget"}, {owner.variable(), "VMM_TENANT=limit=64MiB"});
  EXPECT_EQ(seen.out,
            "plain 0 ordered 2\nfree 0 ordered 0\nplain 2 small 0\nfree 0 0 plain 0\ndone\n")
      << seen.err;
  EXPECT_TRUE(contains(seen.err, "\"over_budget\":2")) << seen.err;
}

TEST(PreloadMarket, WhatOneProcessFreesServesAnother) {
  const stub_owner owner("64MiB");
  child::expect_output("vmm", {"market_pair"}, "allocate 0\nfree 0\nchild 0\n",
                       {owner.variable(), "VMM_REPORT=off"});
}

TEST(PreloadMarket, ARefusedTenantGetsNothing) {
  const stub_owner owner("64MiB");
  const child::outcome seen = child::preloaded(
      "vmm", {"market"}, {owner.variable(), "VMM_TENANT=guarantee=80MiB", "VMM_REPORT=off"});
  EXPECT_TRUE(
      seen.out.starts_with("device 0 80\nfree 0 of 80\ndevice 0 80\nallocate 2\nfree 0 of 80\n"))
      << seen.out;
  EXPECT_TRUE(contains(seen.err, "VMM_OWNER")) << seen.err;
  const child::outcome alone =
      child::preloaded("vmm", {"market"}, {"VMM_OWNER=/tmp/vmm-no-market", "VMM_REPORT=off"});
  EXPECT_TRUE(contains(alone.out, "device 0 143771\nfree 0 of 143771\n")) << alone.out << alone.err;
  const child::outcome malformed = child::preloaded(
      "vmm", {"market"}, {owner.variable(), "VMM_TENANT=guarantee", "VMM_REPORT=off"});
  EXPECT_TRUE(contains(malformed.err, "VMM_TENANT")) << malformed.err;
}

}  // namespace

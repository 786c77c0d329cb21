// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: the times of memory that goes from one tenant of vmm-owner to another on a GPU.
// Method: two processes, each a tenant, in which copy kernels run without a pause. The giver's
// memory is idle in its manager; the taker measures from its create to the end of the first kernel.
// A vmm-owner with room for one of them runs for each size. Warm calls of a pool are measured as a
// tenant and without an owner.
//
//   vmm-gpu-market PATH-OF-vmm-owner
#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

import vmm;
import vmm.cuda;
import vmm.kernels;
import vmm.manager;
import vmm.market;
import vmm.registry;
import vmm.stream;

namespace {

constexpr std::uint64_t gib = std::uint64_t{1} << 30;

double microseconds() {
  return static_cast<double>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                 std::chrono::steady_clock::now().time_since_epoch())
                                 .count()) /
         1000.0;
}

[[noreturn]] void fail(const std::string& why) {
  std::printf("failed: %s\n", why.c_str());
  std::fflush(stdout);
  std::_Exit(1);
}

template <class T>
T good(vmm::result<T> made) {
  if (!made) fail(vmm::describe(made.error()));
  return std::move(*made);
}
void good(const vmm::status& done) {
  if (!done) fail(vmm::describe(done.error()));
}

void say(int to) { (void)!::write(to, "x", 1); }
bool hear(int from) {
  char byte = 0;
  return ::read(from, &byte, 1) == 1;
}

vmm::tools::kernel_set kernels_of(vmm::any_backend& driver) {
  return good(vmm::tools::kernel_set::load(*vmm::driver_in<vmm::cuda_driver>(driver)));
}

// Memory of a driver, mapped.
vmm::address_range mapped(vmm::any_backend& driver, std::uint64_t bytes) {
  const vmm::access_grant own{driver.home(), vmm::access::read_write};
  const vmm::address_range range = good(driver.reserve({bytes, 0, {}}));
  const auto memory = good(driver.create({.size_bytes = bytes, .where = driver.home()}));
  good(driver.map({range.base, bytes, memory, 0}));
  good(driver.set_access(range, {&own, 1}));
  return range;
}

constexpr std::uint64_t array_bytes = std::uint64_t{128} << 20;

// Copies on a stream of its own until the end of the process.
void keep_busy(vmm::any_backend& driver, vmm::tools::kernel_set& kernels) {
  const vmm::address_range arrays = mapped(driver, 2 * array_bytes);
  const vmm::stream_handle stream = good(driver.create_stream());
  std::thread([&driver, &kernels, arrays, stream] {
    for (;;) {
      for (int i = 0; i < 16; ++i)
        good(kernels.copy({arrays.base, arrays.base + array_bytes, array_bytes, stream}));
      good(driver.synchronize_stream(stream));
    }
  }).detach();
}

// Has `bytes` idle in a manager whenever it has replied.
[[noreturn]] void give(int from, int to, std::uint64_t bytes) {
  auto driver = good(vmm::open_backend("cuda"));
  vmm::tools::kernel_set kernels = kernels_of(driver);
  keep_busy(driver, kernels);
  vmm::manager blocks(driver);
  while (hear(from)) {
    const vmm::address block = good(blocks.allocate(bytes));
    good(driver.fill({{block, bytes}, 0x5a, vmm::stream_handle::default_stream}));
    good(driver.synchronize_stream(vmm::stream_handle::default_stream));
    good(blocks.free(block));
    ::usleep(100'000);  // past the least time between a grant and an ask
    say(to);
  }
  std::_Exit(0);  // the copies use what a return would destroy
}

[[noreturn]] void take(int from, int to, std::uint64_t bytes, int rounds, bool is_one_job) {
  auto driver = good(vmm::open_backend("cuda"));
  vmm::tools::kernel_set kernels = kernels_of(driver);
  keep_busy(driver, kernels);
  const vmm::stream_handle stream = good(driver.create_stream());
  const vmm::access_grant own{driver.home(), vmm::access::read_write};
  const vmm::address_range range = good(driver.reserve({bytes, 0, {}}));
  std::vector<double> all;
  std::uint64_t wrong_words = 0;
  for (int round = 0; round < rounds; ++round) {
    say(to);
    if (!hear(from)) fail("the giver has ended");
    const double begin = microseconds();
    const auto memory = good(driver.create({.size_bytes = bytes, .where = driver.home()}));
    good(driver.map({range.base, bytes, memory, 0}));
    good(driver.set_access(range, {&own, 1}));
    good(kernels.poke(range.base, 1, stream));
    good(driver.synchronize_stream(stream));
    all.push_back(microseconds() - begin);
    std::vector<std::uint64_t> words(8192);
    for (std::uint64_t at = 2 << 20; !is_one_job && at < bytes; at += bytes / 16) {
      good(driver.read({reinterpret_cast<std::byte*>(words.data()), words.size() * 8},
                       range.base + at));
      wrong_words += static_cast<std::uint64_t>(
          std::count_if(words.begin(), words.end(), [](std::uint64_t word) { return word != 0; }));
    }
    good(driver.unmap(range));
    good(driver.release(memory));
  }
  std::sort(all.begin(), all.end());
  std::printf("%3llu GiB, %-9s p50 %9.1f us, most %9.1f us, %llu wrong words\n",
              static_cast<unsigned long long>(bytes / gib),
              is_one_job ? "one job:" : "cleared:", all[all.size() / 2], all.back(),
              static_cast<unsigned long long>(wrong_words));
  std::fflush(stdout);
  std::_Exit(0);
}

// Starts an owner of the first device.
void serve(const std::string& owner, const std::string& folder, const std::string& capacity) {
  constexpr const char* device =
      " $(nvidia-smi --query-gpu=uuid --format=csv,noheader -i 0 | sed 's/GPU-//;s/-//g')";
  const std::string line = owner + " serve " + folder + device + " --daemon --capacity " + capacity;
  if (std::system(line.c_str()) != 0) fail("vmm-owner does not start");
}

void measure(const char* owner, std::uint64_t bytes, int rounds, bool is_one_job) {
  char folder[] = "/tmp/vmm-gpu-market-XXXXXX";
  if (::mkdtemp(folder) == nullptr) fail("no folder");
  const std::string capacity =  // both have arrays
      std::to_string(bytes / gib * 1536 + 4 * (array_bytes >> 20)) + "MiB";
  ::setenv("VMM_OWNER", folder, 1);
  ::setenv("VMM_TENANT", is_one_job ? "job=1" : "", 1);
  int down[2], up[2];
  if (::pipe2(down, O_CLOEXEC) != 0 || ::pipe2(up, O_CLOEXEC) != 0) fail("no pipe");
  serve(owner, folder, capacity);
  const pid_t giver = ::fork();
  if (giver == 0) {
    ::close(down[1]);
    give(down[0], up[1], bytes);
  }
  const pid_t taker = ::fork();
  if (taker == 0) {
    ::close(up[1]);
    take(up[0], down[1], bytes, rounds, is_one_job);
  }
  for (const int each : {down[0], down[1], up[0], up[1]}) ::close(each);
  int status = 0;
  ::waitpid(taker, &status, 0);
  if (status != 0) std::printf("failed: the taker ended with status %d\n", status);
  ::kill(giver, SIGTERM);
  ::waitpid(giver, nullptr, 0);
}

// A warm pair of calls, in ns: the least of several passes.
void warm(const char* what) {
  const pid_t child = ::fork();
  if (child == 0) {
    auto driver = good(vmm::open_backend("cuda"));
    vmm::stream_pool pool(driver);
    double least_us = 1e18;
    for (int pass = 0; pass < 20; ++pass) {
      const double begin = microseconds();
      for (int i = 0; i < 100'000; ++i) {
        const vmm::address at = good(pool.allocate(1 << 20, vmm::stream_handle::default_stream));
        good(pool.free(at, vmm::stream_handle::default_stream));
      }
      least_us = std::min(least_us, microseconds() - begin);
    }
    std::printf("warm pair of calls, %-14s %7.1f ns\n", what, least_us / 100);
    std::fflush(stdout);
    std::_Exit(0);
  }
  ::waitpid(child, nullptr, 0);
}

}  // namespace

int main(int count, char** words) {
  if (count != 2) fail("name the program vmm-owner");
  const long process = ::syscall(SYS_pidfd_open, ::getpid(), 0);
  std::printf("pidfd_open: %s\n", process >= 0 ? "there" : "not there");
  std::fflush(stdout);
  for (const bool is_one_job : {true, false}) {
    measure(words[1], gib, 30, is_one_job);
    measure(words[1], 32 * gib, 5, is_one_job);
  }
  for (int turn = 0; turn < 3; ++turn) {
    char folder[] = "/tmp/vmm-gpu-market-XXXXXX";
    if (::mkdtemp(folder) == nullptr) fail("no folder");
    ::unsetenv("VMM_OWNER");
    warm("plain:");
    serve(words[1], folder, "8GiB");
    ::setenv("VMM_OWNER", folder, 1);
    ::setenv("VMM_TENANT", "", 1);
    warm("a tenant:");
  }
  return 0;
}

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// What the parts of vmm-gpu-market share: a folder with an owner, forked processes that each open
// the driver, and lines to them. Each part runs in a process that has no driver itself.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

import vmm;
import vmm.backend;
import vmm.cuda;
import vmm.kernels;
import vmm.manager;
import vmm.market;
import vmm.registry;
import vmm.stream;
import vmm.suspend;

namespace vmm::market_gpu {

struct settings {
  std::string owner{};
  std::string backend = "cuda";
  std::string device{};
  std::uint64_t total_bytes = 0;
  std::uint64_t gib = std::uint64_t{1} << 30;  // 16 MiB on the host driver
  int divisor = 1;                             // of the numbers of rounds
};
inline settings chosen;

inline double now_us() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::micro>(now).count();
}

// A row of the table on stdout.
template <class... Values>
void row(const char* form, Values... values) {
  std::printf(form, values...);
  std::putchar('\n');
  std::fflush(stdout);
}

[[noreturn]] inline void fail(const std::string& why) {
  row("failed: %s", why.c_str());
  std::_Exit(1);
}

template <class T>
T good(vmm::result<T> made) {
  if (!made) fail(vmm::describe(made.error()));
  return std::move(*made);
}
inline void good(const vmm::status& done) {
  if (!done) fail(vmm::describe(done.error()));
}

inline int rounds_of(int count) { return std::max(2, count / chosen.divisor); }

// ---- processes -----------------------------------------------------------------------

// What a process reports of a step.
struct report {
  double begin_us = 0, end_us = 0;
  std::uint64_t wrong_words = 0;
  char text[1000] = {};
};

// One end of a line to a process. The other end's process is killed with this one.
class line {
 public:
  line(int from, int to) : from_(from), to_(to) {}
  void send(const report& what = {}) const { (void)!::write(to_, &what, sizeof what); }
  // Without a report: the other process has ended.
  [[nodiscard]] std::optional<report> receive() const {
    report came;
    ssize_t count = 0;
    while ((count = ::read(from_, &came, sizeof came)) < 0 && errno == EINTR) {
    }
    if (count != sizeof came) return std::nullopt;
    return came;
  }
  [[nodiscard]] report expect() const {
    const std::optional<report> came = receive();
    if (!came) fail("a process of the part has ended");
    return *came;
  }
  void close() const {
    ::close(from_);
    ::close(to_);
  }

 private:
  int from_, to_;
};

struct process {
  pid_t number = -1;
  line to{-1, -1};

  void end(int how = SIGKILL) const {
    ::kill(number, how);
    ::waitpid(number, nullptr, 0);
    to.close();
  }
};

// Forks; the child runs `call` with its end of the line and the share in VMM_TENANT.
inline process start(const std::string& share, const std::function<void(const line&)>& call) {
  int down[2], up[2];
  if (::pipe2(down, O_CLOEXEC) != 0 || ::pipe2(up, O_CLOEXEC) != 0) fail("no pipe");
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::close(down[1]);
    ::close(up[0]);
    ::setenv("VMM_TENANT", share.c_str(), 1);
    call({down[0], up[1]});
    std::fflush(stdout);
    std::_Exit(0);  // running work uses what a return would destroy
  }
  ::close(down[0]);
  ::close(up[1]);
  return {child, {up[0], down[1]}};
}

// An owner in a folder of its own, which VMM_OWNER names from then on.
class owner {
 public:
  owner(std::uint64_t capacity_bytes, int quiet_ms) {
    char name[] = "/tmp/vmm-gpu-market-XXXXXX";
    if (::mkdtemp(name) == nullptr) fail("no folder");
    folder_ = name;
    ::setenv("VMM_OWNER", name, 1);
    capacity_ = std::to_string(capacity_bytes);
    quiet_ = std::to_string(quiet_ms);
    run();
  }
  void run() {
    number_ = ::fork();
    if (number_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::execl(chosen.owner.c_str(), "vmm-owner", "serve", folder_.c_str(), chosen.device.c_str(),
            "--capacity", capacity_.c_str(), "--quiet-ms", quiet_.c_str(), "--stay", "--context",
            "0", nullptr);
    std::_Exit(127);
  }
  void kill() {
    ::kill(number_, SIGKILL);
    ::waitpid(number_, nullptr, 0);
  }
  void wait() {
    int status = 0;
    ::kill(number_, SIGTERM);
    if (::waitpid(number_, &status, 0) != number_ || status != 0) fail("the owner has failed");
    const std::string line = "rm -rf " + folder_;
    (void)!std::system(line.c_str());
  }

 private:
  std::string folder_, capacity_, quiet_;
  pid_t number_ = -1;
};

// ---- a process's driver --------------------------------------------------------------

// The owner may still begin.
inline vmm::result<vmm::any_backend> open_patiently() {
  for (int turn = 0;; ++turn) {
    auto opened = vmm::open_backend(chosen.backend);
    if (opened || opened.error().code != vmm::errc::unavailable || turn == 9) return opened;
  }
}

// The driver, mapped memory, and words in it: by kernels, or by the processor for the host driver.
class place {
 public:
  place() : driver(good(open_patiently())) {
    if (auto* const cuda = vmm::driver_in<vmm::cuda_driver>(driver)) {
      kernels_.emplace(good(vmm::tools::kernel_set::load(*cuda)));
      stream = good(driver.create_stream());
      counter_ = mapped(std::uint64_t{2} << 20).base;
    }
  }

  void map(vmm::address_range range, vmm::physical_handle memory) {
    const vmm::access_grant own{driver.home(), vmm::access::read_write};
    good(driver.map({range.base, range.size_bytes, memory, 0}));
    good(driver.set_access(range, {&own, 1}));
  }
  vmm::address_range mapped(std::uint64_t bytes) {
    const vmm::address_range range = good(driver.reserve({bytes, 0, {}}));
    map(range, good(driver.create({.size_bytes = bytes, .where = driver.home()})));
    return range;
  }
  // The first use of new memory.
  void touch(vmm::address at) {
    if (kernels_) {
      good(kernels_->poke(at, 0, stream));
      good(driver.synchronize_stream(stream));
    } else {
      *reinterpret_cast<volatile char*>(at.value) = 0;
    }
  }
  void fill(vmm::address_range range, std::uint64_t seed) {
    if (kernels_) {
      good(kernels_->fill({range, seed, stream}));
      good(driver.synchronize_stream(stream));
      return;
    }
    for (std::uint64_t i = 0; i < range.size_bytes / 8; ++i)
      words(range)[i] = seed + i * vmm::tools::pattern_step;
  }
  [[nodiscard]] std::uint64_t wrong(vmm::address_range range, std::uint64_t seed) {
    std::uint64_t count = 0;
    if (!kernels_) {
      for (std::uint64_t i = 0; i < range.size_bytes / 8; ++i)
        count += words(range)[i] != seed + i * vmm::tools::pattern_step ? 1 : 0;
      return count;
    }
    good(driver.fill({{counter_, 8}, 0, stream}));
    good(kernels_->check({range, seed, stream}, counter_));
    good(driver.synchronize_stream(stream));
    good(driver.read({reinterpret_cast<std::byte*>(&count), 8}, counter_));
    return count;
  }
  // Words that are not zero, of 64 KiB in each sixteenth.
  [[nodiscard]] std::uint64_t uncleared(vmm::address_range range) {
    std::uint64_t count = 0;
    std::vector<std::uint64_t> some(8192);
    for (std::uint64_t part = 0; part < 16; ++part) {
      const std::uint64_t at = part * (range.size_bytes / 16) + 4096;
      good(driver.read({reinterpret_cast<std::byte*>(some.data()), some.size() * 8},
                       range.base + at));
      count += static_cast<std::uint64_t>(
          std::count_if(some.begin(), some.end(), [](std::uint64_t word) { return word != 0; }));
    }
    return count;
  }
  // Writes the range from a thread until the end of the process.
  void keep_busy(vmm::address_range range, std::uint64_t seed) {
    const auto on = kernels_ ? good(driver.create_stream()) : stream;
    std::thread([this, range, seed, on] {
      for (;;) {
        for (int i = 0; kernels_ && i < 16; ++i) good(kernels_->fill({range, seed, on}));
        if (kernels_)
          good(driver.synchronize_stream(on));
        else
          fill(range, seed);
      }
    }).detach();
  }
  void keep_busy() { keep_busy(mapped(chosen.gib / 8), 1); }

  vmm::any_backend driver;
  vmm::stream_handle stream = vmm::stream_handle::default_stream;

 private:
  static std::uint64_t* words(vmm::address_range range) {
    return reinterpret_cast<std::uint64_t*>(range.base.value);
  }

  std::optional<vmm::tools::kernel_set> kernels_;
  vmm::address counter_{};
};

// What a process needs beside what a part measures: keep_busy() and the counter.
inline std::uint64_t beside_bytes() { return chosen.gib / 8 + (std::uint64_t{4} << 20); }

// Of figures in us: the median and the largest.
struct spread {
  double p50 = 0, most = 0;
  explicit spread(std::vector<double> all) {
    if (all.empty()) return;
    std::sort(all.begin(), all.end());
    p50 = all[all.size() / 2];
    most = all.back();
  }
};

void run_kills(bool with_children);
void run_owner_kills();
void run_engines();

}  // namespace vmm::market_gpu

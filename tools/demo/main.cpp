// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm-demo: what vmm does, seen in some seconds on any machine. A vector that grows by mapping
// against one that grows by copying, on real memory; then a recorded workload on the fake driver.
//
// Exit codes: 0 all well; 1 something failed; 2 the command line is wrong.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

import vmm.cuda;
import vmm.host;
import vmm.replay;
import vmm.vector;

namespace {

using number = std::uint64_t;
using memory_manager = vmm::manager<vmm::host_driver>;

constexpr std::uint64_t mib = 1 << 20;
constexpr std::uint64_t first_target_bytes = 4 * mib;
constexpr std::uint64_t last_target_bytes = 1024 * mib;
constexpr std::size_t warm_round_count = 3;

bool is_terminal() { return ::isatty(STDOUT_FILENO) != 0; }

[[nodiscard]] int fail(const std::string& why) {
  std::fflush(stdout);
  std::fprintf(stderr, "vmm-demo: %s\n", why.c_str());
  return 1;
}

std::string show_time(double ns) {
  if (ns < 1e6) return vmm::tools::show_number(ns / 1e3, 1) + " us";
  return vmm::tools::show_number(ns / 1e6, 1) + " ms";
}

/// 2^k MiB or GiB without decimals.
std::string show_size(std::uint64_t size_bytes) {
  const std::uint64_t in_mib = size_bytes / mib;
  return in_mib % 1024 == 0 ? std::to_string(in_mib / 1024) + " GiB"
                            : std::to_string(in_mib) + " MiB";
}

// ---- two vectors ---------------------------------------------------------------------

/// What the demo needs of a vector of plain numbers: filled once, then doubled.
class mapping_vector {
 public:
  mapping_vector(memory_manager& memory, vmm::host_driver& driver, std::uint64_t most_count)
      : numbers_(memory, driver, most_count) {}

  [[nodiscard]] vmm::status start(std::uint64_t count) { return numbers_.resize(count); }
  [[nodiscard]] vmm::status grow(std::uint64_t count) { return numbers_.reserve(count); }
  [[nodiscard]] number* data() { return numbers_.data(); }

 private:
  vmm::vector<number, vmm::host_driver> numbers_;
};

/// Grows as std::vector does with plain numbers: new memory, one memcpy, the old memory freed. The
/// memory comes from the same manager on the same driver.
class copying_vector {
 public:
  copying_vector(memory_manager& memory, vmm::host_driver&, std::uint64_t) : memory_(memory) {}
  copying_vector(const copying_vector&) = delete;
  copying_vector& operator=(const copying_vector&) = delete;
  ~copying_vector() {
    if (at_) (void)memory_.free(at_);
  }

  [[nodiscard]] vmm::status start(std::uint64_t count) { return grow(count); }
  [[nodiscard]] vmm::status grow(std::uint64_t count) {
    const vmm::result<vmm::address> fresh = memory_.allocate(count * sizeof(number));
    if (!fresh) return fresh.error();
    const vmm::address old = at_;
    number* const from = data();
    at_ = *fresh;
    if (!old) {
      count_ = count;
      return {};
    }
    std::memcpy(data(), from, count_ * sizeof(number));
    count_ = count;
    return memory_.free(old);
  }
  [[nodiscard]] number* data() { return reinterpret_cast<number*>(at_.value); }

 private:
  memory_manager& memory_;
  vmm::address at_{};
  std::uint64_t count_ = 0;
};

// ---- the race ------------------------------------------------------------------------

/// Nanoseconds that one doubling took.
struct growth_times {
  double cold_ns = 0;  ///< memory fresh from the system
  double warm_ns = 0;  ///< memory that the manager keeps: the median of some rounds
};

/// One round: a full vector doubles; then every number is looked at and the new half is written.
template <class Vector>
[[nodiscard]] vmm::result<double> double_once(memory_manager& memory, vmm::host_driver& driver,
                                              std::uint64_t count) {
  Vector numbers{memory, driver, count};
  const std::uint64_t half = count / 2;
  if (const vmm::status started = numbers.start(half); !started) return started.error();
  for (std::uint64_t i = 0; i < half; ++i) numbers.data()[i] = i;
  const auto begin = std::chrono::steady_clock::now();
  const vmm::status grown = numbers.grow(count);
  const std::chrono::duration<double, std::nano> taken = std::chrono::steady_clock::now() - begin;
  if (!grown) return grown.error();
  std::uint64_t wrong_count = 0;
  for (std::uint64_t i = 0; i < half; ++i) wrong_count += numbers.data()[i] != i ? 1 : 0;
  if (wrong_count != 0) return vmm::refuse(vmm::errc::internal, "a number changed in growing");
  for (std::uint64_t i = half; i < count; ++i) numbers.data()[i] = i;
  return taken.count();
}

template <class Vector>
[[nodiscard]] vmm::result<growth_times> race(vmm::host_driver& driver, std::uint64_t size_bytes) {
  memory_manager memory{driver};
  const std::uint64_t count = size_bytes / sizeof(number);
  growth_times out;
  std::array<double, warm_round_count> warm{};
  for (std::size_t round = 0; round <= warm_round_count; ++round) {
    const vmm::result<double> taken = double_once<Vector>(memory, driver, count);
    if (!taken) return taken.error();
    (round == 0 ? out.cold_ns : warm[round - 1]) = *taken;
  }
  std::ranges::sort(warm);
  out.warm_ns = warm[warm_round_count / 2];
  return out;
}

/// Copying holds one and a half times the target, and some room is left to the rest of the machine.
std::uint64_t largest_target(std::uint64_t wished_bytes, std::uint64_t free_bytes) {
  std::uint64_t target_bytes = last_target_bytes;
  while (target_bytes > first_target_bytes && target_bytes > wished_bytes) target_bytes /= 2;
  while (target_bytes > first_target_bytes && 2 * target_bytes > free_bytes) target_bytes /= 2;
  return target_bytes;
}

void print_row(std::uint64_t size_bytes, const growth_times& mapped, const growth_times& copied) {
  const std::string grows = show_size(size_bytes / 2) + " to " + show_size(size_bytes);
  std::printf("  %-20s %13s %13s %12s %13s\n", grows.c_str(), show_time(mapped.warm_ns).c_str(),
              show_time(copied.warm_ns).c_str(), show_size(size_bytes / 2).c_str(),
              (vmm::tools::show_number(copied.warm_ns / mapped.warm_ns, 0) + " times").c_str());
  std::fflush(stdout);
}

[[nodiscard]] int show_growth(std::uint64_t wished_bytes) {
  vmm::result<vmm::host_driver> driver = vmm::host_driver::open();
  if (!driver) return fail(vmm::describe(driver.error()));
  const vmm::result<vmm::memory_info> memory = driver->query_memory(vmm::host());
  if (!memory) return fail(vmm::describe(memory.error()));
  const std::uint64_t last_bytes = largest_target(wished_bytes, memory->free_bytes);
  std::puts(
      "1. A vector that is full doubles. vmm maps more memory behind it, where the usual vector\n"
      "   takes new memory, copies every byte and frees the old memory. Both take memory that vmm\n"
      "   keeps, and the contents are checked afterwards.\n");
  std::printf("  %-20s %13s %13s %12s %13s\n", "the vector grows", "by mapping", "by copying",
              "bytes copied", "mapping wins");
  growth_times mapped_last;
  growth_times copied_last;
  for (std::uint64_t bytes = first_target_bytes; bytes <= last_bytes; bytes *= 2) {
    const vmm::result<growth_times> mapped = race<mapping_vector>(*driver, bytes);
    if (!mapped) return fail(vmm::describe(mapped.error()));
    const vmm::result<growth_times> copied = race<copying_vector>(*driver, bytes);
    if (!copied) return fail(vmm::describe(copied.error()));
    print_row(bytes, *mapped, *copied);
    mapped_last = *mapped;
    copied_last = *copied;
  }
  std::printf(
      "\n  Mapping copies no byte. With no memory kept, so that the system has to clear it first,\n"
      "  the last row is %s by mapping and %s by copying.\n",
      show_time(mapped_last.cold_ns).c_str(), show_time(copied_last.cold_ns).c_str());
  if (last_bytes < std::min(wished_bytes, last_target_bytes)) {
    std::printf("  (Larger sizes are left out: only %s of memory are free here.)\n",
                vmm::tools::show_bytes(memory->free_bytes).c_str());
  }
  return 0;
}

// ---- the trace -----------------------------------------------------------------------

/// A line that overwrites itself on a terminal; elsewhere a line at each quarter.
class progress_line {
 public:
  explicit progress_line(std::uint64_t total) : total_(total) {}

  void operator()(std::uint64_t done) {
    const std::uint64_t percent = total_ == 0 ? 100 : 100 * done / total_;
    if (is_terminal()) {
      std::printf("\r  replaying: %3d %%%s", static_cast<int>(percent), done == total_ ? "\n" : "");
    } else if (percent / 25 != told_quarter_) {
      told_quarter_ = percent / 25;
      std::printf("  replaying: %d %%\n", static_cast<int>(25 * told_quarter_));
    }
    std::fflush(stdout);
  }

 private:
  std::uint64_t total_;
  std::uint64_t told_quarter_ = 0;
};

[[nodiscard]] int show_replay(const std::string& trace_path, const std::string& picture_path) {
  const vmm::tools::read_outcome input = vmm::tools::read_trace(trace_path);
  if (!input) return fail(vmm::tools::describe(input.trouble));
  std::printf(
      "\n2. A real workload: every allocation that a training run (%s) made on a GPU, in\n"
      "   order, on vmm's fake driver, which has a real GPU driver's rules and prices.\n\n",
      input.value->name.c_str());
  vmm::tools::run_options options;
  options.draw = true;
  progress_line progress{input.value->events.size()};
  options.progress = [&progress](std::uint64_t done) { progress(done); };
  const vmm::tools::run_outcome outcome = vmm::tools::run_replay(*input.value, options);
  if (!outcome.report) return fail(outcome.problem);
  std::printf("\n%s", vmm::tools::to_text(*outcome.report).c_str());
  std::FILE* const file = std::fopen(picture_path.c_str(), "wb");
  bool is_written = file != nullptr;
  if (file != nullptr) {
    is_written = std::fwrite(outcome.svg.data(), 1, outcome.svg.size(), file) == outcome.svg.size();
    is_written = std::fclose(file) == 0 && is_written;
  }
  if (!is_written) return fail(picture_path + ": the picture cannot be written there");
  std::printf("\n  The address space at the peak, as a picture: %s\n", picture_path.c_str());
  return outcome.report->failures.count == 0 ? 0 : fail("the trace was not served in full");
}

// ---- the program ---------------------------------------------------------------------

void say_what_runs() {
  const vmm::result<vmm::cuda_driver> gpu = vmm::cuda_driver::open();
  std::puts("vmm grows memory by mapping, not by copying.\n");
  if (gpu) {
    std::puts(
        "Driver: host, this machine's own memory. There is a GPU too: ./run gpu is for it.\n");
    return;
  }
  std::printf(
      "Driver: host, this machine's own memory, since there is no GPU to use here\n(%s).\n\n",
      vmm::describe(gpu.error()).c_str());
}

constexpr const char* usage =
    "usage: vmm-demo [--up-to SIZE] [--trace FILE] [--svg FILE]\n"
    "\n"
    "A vector that grows by mapping against one that copies, then the replay of a trace.\n"
    "  --up-to SIZE  the largest vector, from 4MiB to 1GiB (default: 1GiB)\n"
    "  --trace FILE  the trace to replay (default: Mask R-CNN training, from traces/)\n"
    "  --svg FILE    where the picture goes (default: vmm-demo.svg in the build folder)\n";

struct command_line {
  std::uint64_t wished_bytes = last_target_bytes;
  std::string trace_path = VMM_DEMO_TRACE;
  std::string picture_path = VMM_DEMO_PICTURE;
};

/// Empty when the option was taken, else what is wrong with it.
std::string take_option(command_line& into, const std::string& name, const char* value) {
  if (name != "--up-to" && name != "--trace" && name != "--svg")
    return "there is no option " + name;
  if (value == nullptr || *value == '\0') return name + " takes a value";
  if (name == "--trace") into.trace_path = value;
  if (name == "--svg") into.picture_path = value;
  if (name != "--up-to") return "";
  const std::optional<std::uint64_t> size_bytes = vmm::parse_bytes(value);
  if (!size_bytes || *size_bytes < first_target_bytes || *size_bytes > last_target_bytes) {
    return "--up-to takes a size from 4MiB to 1GiB; not '" + std::string(value) + "'";
  }
  into.wished_bytes = *size_bytes;
  return "";
}

}  // namespace

int main(int count, char** words) {
  command_line wanted;
  for (int i = 1; i < count; i += 2) {
    if (std::string_view(words[i]) == "--help") return std::fputs(usage, stdout) < 0 ? 1 : 0;
    const std::string problem =
        take_option(wanted, words[i], i + 1 < count ? words[i + 1] : nullptr);
    if (problem.empty()) continue;
    std::fprintf(stderr, "vmm-demo: %s\n%s", problem.c_str(), usage);
    return 2;
  }
  say_what_runs();
  if (const int code = show_growth(wanted.wished_bytes); code != 0) return code;
  return show_replay(wanted.trace_path, wanted.picture_path);
}

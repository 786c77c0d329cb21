// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm-demo: vmm in some seconds on any machine. A vector that grows by mapping against one that
// grows by copying; then a recorded workload, served by the pool and by one block for each request.
// On a GPU, or else on this machine's memory and the fake driver.
//
// The command line, the variables, the trace and the picture's place are checked first. Exit codes:
// 0 all well; 1 something failed; 2 the command line, a variable or the trace is wrong; 4 the
// program's own memory ran out.
#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "../program/backend_name.hpp"
#include "../program/options.hpp"
#include "../program/output.hpp"
#include "race.hpp"

import vmm.backend;
import vmm.history_tools;
import vmm.replay;
import vmm.trace;

namespace {

using demo::mib;

constexpr std::uint64_t last_target_on_host_bytes = 1024 * mib;
constexpr std::uint64_t last_target_on_gpu_bytes = 8192 * mib;
constexpr std::uint64_t wish_max_bytes = 16384 * mib;

/// Whether lines can be written over.
bool is_terminal() {
  const char* const kind = std::getenv("TERM");
  return ::isatty(STDOUT_FILENO) != 0 && kind != nullptr && std::string_view(kind) != "dumb";
}

[[nodiscard]] int fail(const std::string& why) {
  std::fflush(stdout);
  std::fprintf(stderr, "vmm-demo: %s\n", why.c_str());
  return 1;
}

// ---- two vectors ---------------------------------------------------------------------

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

/// Copying holds one and a half times the target, and some room is left to the rest of the machine.
std::uint64_t largest_target(std::uint64_t wished_bytes, std::uint64_t free_bytes) {
  std::uint64_t target_bytes = wish_max_bytes;
  while (target_bytes > demo::first_target_bytes &&
         (target_bytes > wished_bytes || 2 * target_bytes > free_bytes))
    target_bytes /= 2;
  return target_bytes;
}

/// Each row takes longer than the one before: on a terminal its place shows the step in progress.
void announce_row(std::uint64_t size_bytes, const char* how) {
  if (!is_terminal()) return;
  std::printf("\r  %s to %s: measuring %s\033[K", show_size(size_bytes / 2).c_str(),
              show_size(size_bytes).c_str(), how);
  std::fflush(stdout);
}

void print_row(std::uint64_t size_bytes, const demo::growth_times& mapped,
               const demo::growth_times& copied) {
  if (is_terminal()) std::printf("\r\033[K");
  const std::string grows = show_size(size_bytes / 2) + " to " + show_size(size_bytes);
  std::printf("  %-20s %13s %13s %12s %13s\n", grows.c_str(), show_time(mapped.warm_ns).c_str(),
              show_time(copied.warm_ns).c_str(), show_size(size_bytes / 2).c_str(),
              (vmm::tools::show_number(copied.warm_ns / mapped.warm_ns, 0) + " times").c_str());
}

template <class Stage>
[[nodiscard]] int show_growth(Stage& stage, std::uint64_t wished_bytes) {
  const vmm::result<vmm::memory_info> memory = stage.driver().query_memory(stage.driver().home());
  if (!memory) return fail(vmm::describe(memory.error()));
  const std::uint64_t last_bytes = largest_target(wished_bytes, memory->free_bytes);
  std::puts(
      "1. A vector that is full doubles. vmm maps more memory behind it, where the usual vector\n"
      "   takes new memory, copies every byte and frees the old memory. Both take memory that vmm\n"
      "   keeps, and the contents are checked afterwards.\n");
  std::printf("  %-20s %13s %13s %12s %13s\n", "the vector grows", "by mapping", "by copying",
              "bytes copied", "mapping wins");
  if (const std::string why = vmm::tools::print(""); !why.empty()) return fail(why);
  demo::growth_times mapped_last;
  demo::growth_times copied_last;
  for (std::uint64_t bytes = demo::first_target_bytes; bytes <= last_bytes; bytes *= 2) {
    announce_row(bytes, "mapping");
    const auto mapped = demo::race<demo::mapping_vector>(stage, bytes);
    if (!mapped) return fail(vmm::describe(mapped.error()));
    announce_row(bytes, "copying");
    const auto copied = demo::race<demo::copying_vector>(stage, bytes);
    if (!copied) return fail(vmm::describe(copied.error()));
    print_row(bytes, *mapped, *copied);
    if (const std::string why = vmm::tools::print(""); !why.empty()) return fail(why);
    mapped_last = *mapped;
    copied_last = *copied;
  }
  std::printf(
      "\n  Mapping copies no byte. With no memory kept, so that it comes from the %s first,\n"
      "  the last row is %s by mapping and %s by copying.\n",
      Stage::owner, show_time(mapped_last.cold_ns).c_str(), show_time(copied_last.cold_ns).c_str());
  if (last_bytes < wished_bytes && 2 * last_bytes <= wished_bytes) {
    std::printf("  (Larger sizes are left out: only %s of memory are free here.)\n",
                vmm::tools::show_bytes(memory->free_bytes).c_str());
  }
  return 0;
}

// ---- the command line -----------------------------------------------------------------

constexpr const char* usage =
    "usage: vmm-demo [--backend NAME] [--up-to SIZE] [--trace FILE] [--svg FILE]\n"
    "                [--page FILE]\n"
    "\n"
    "A vector that grows by mapping against one that copies, then the replay of a trace.\n"
    "  --backend NAME  cuda, level_zero or host; cuda:N or level_zero:N for GPU N, where 0 is the\n"
    "                  first (default: VMM_BACKEND, else the GPU where CUDA has one, else host)\n"
    "  --up-to SIZE    the largest vector, 4MiB to 16GiB (default: 1GiB, on a GPU 8GiB)\n"
    "  --trace FILE    the trace to replay (default: Mask R-CNN training, from traces/)\n"
    "  --svg FILE      where the picture goes (default: vmm-demo.svg, here)\n"
    "  --page FILE     where the page of both histories goes (default: the picture's name, with\n"
    "                  .html)\n"
    "  --help, --version\n";

struct command_line {
  vmm::tools::backend_name backend;  // an empty kind: what there is
  std::uint64_t wished_bytes = 0;    // 0: the backend's own
  std::string trace_path = VMM_DEMO_TRACE;
  std::string picture_path = "vmm-demo.svg";
  std::string page_path;  // empty: beside the picture
};

/// The picture's path with another end.
std::string page_beside(const std::string& picture_path) {
  const bool is_svg = picture_path.ends_with(".svg");
  return picture_path.substr(0, picture_path.size() - (is_svg ? 4 : 0)) + ".html";
}

std::string take_backend(command_line& into, const std::string& name, std::string_view value) {
  static constexpr std::array<std::string_view, 3> kinds = {"cuda", "level_zero", "host"};
  return vmm::tools::read_backend(name, value, kinds,
                                  "cuda, cuda:N, level_zero, level_zero:N or host", into.backend);
}

/// Empty, or what is wrong with the command line.
std::string read_words(int count, char** words, command_line& into) {
  const auto size = [&](std::string_view value) {
    const std::optional<std::uint64_t> bytes = vmm::parse_bytes(value);
    if (bytes) into.wished_bytes = *bytes;
    return bytes && *bytes >= demo::first_target_bytes && *bytes <= wish_max_bytes;
  };
  std::string why =
      option_list(usage)
          .value("--backend",
                 [&](const char* value) { return take_backend(into, "--backend", value); })
          .checked("--up-to", "a size from 4MiB to 16GiB", size)
          .text("--trace", into.trace_path)
          .text("--svg", into.picture_path)
          .text("--page", into.page_path)
          .parse(count, words);
  std::string_view backend;
  vmm::read_text_option("VMM_BACKEND", backend);
  if (why.empty() && into.backend.kind.empty() && !backend.empty())
    why = take_backend(into, "VMM_BACKEND", backend);
  return why;
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
    } else if (percent / 25 != printed_quarter_) {
      printed_quarter_ = percent / 25;
      std::printf("  replaying: %d %%\n", static_cast<int>(25 * printed_quarter_));
    }
    std::fflush(stdout);
  }

 private:
  std::uint64_t total_;
  std::uint64_t printed_quarter_ = 0;
};

using vmm::tools::replay_report;

void show_both(const replay_report& one, const replay_report& other) {
  const auto row = [](const char* what, const std::string& left, const std::string& right) {
    std::printf("  %-22s %16s %16s\n", what, left.c_str(), right.c_str());
  };
  const auto calls = [](const replay_report& each) {
    return vmm::tools::show_count(
        std::accumulate(each.driver_calls.begin(), each.driver_calls.end(), std::uint64_t{0}));
  };
  const auto in_driver = [](const replay_report& each) {
    return each.driver_us ? show_time(*each.driver_us * 1e3) : std::string("unknown");
  };
  row("", one.policy, other.policy);
  row("peak reserved", vmm::tools::show_bytes(one.peak_reserved_bytes),
      vmm::tools::show_bytes(other.peak_reserved_bytes));
  row("reserved over live", vmm::tools::show_number(one.ratio(), 3),
      vmm::tools::show_number(other.ratio(), 3));
  row("driver calls", calls(one), calls(other));
  row("time in the driver", in_driver(one), in_driver(other));
}

/// What stands ready before the first line is printed.
struct prepared {
  vmm::tools::trace input;
  vmm::tools::output_file picture;
  vmm::tools::output_file page;
};

[[nodiscard]] int refuse_to_start(const std::string& why) {
  (void)fail(why);
  return 2;
}

/// Reads the trace, opens the picture's file and tries the environment's options on the fake
/// driver. 0, or the exit code.
[[nodiscard]] int prepare(const command_line& wanted, prepared& into) {
  vmm::tools::read_outcome read = vmm::tools::read_trace(wanted.trace_path);
  if (!read) return refuse_to_start(vmm::tools::describe(read.trouble));
  into.input = std::move(*read.value);
  for (const char* const policy : {"", "pool"}) {
    const vmm::tools::run_outcome tried =
        vmm::tools::run_replay(into.input, {.policy = policy, .plays = false});
    if (tried.report) continue;
    return tried.is_callers_fault ? refuse_to_start(tried.problem) : fail(tried.problem);
  }
  std::string why = vmm::tools::why_no_picture(wanted.picture_path, wanted.trace_path);
  if (!why.empty()) return refuse_to_start(why);
  why = into.picture.open(wanted.picture_path);
  if (!why.empty()) return fail(why);
  for (const std::string* const other : {&wanted.trace_path, &wanted.picture_path}) {
    if (vmm::tools::is_same_file(wanted.page_path, *other))
      return refuse_to_start(wanted.page_path +
                             " is the trace or the picture: --page takes another file");
  }
  why = into.page.open(wanted.page_path);
  return why.empty() ? 0 : fail(why);
}

[[nodiscard]] int show_replay(const command_line& wanted, prepared& ready, const char* backend) {
  const vmm::tools::trace& input = ready.input;
  const auto replay = [&](const char* policy) {
    progress_line progress{input.events.size()};
    return vmm::tools::run_replay(
        input, {.backend = backend,
                .device = std::string_view(backend) == "fake" ? 0 : wanted.backend.device,
                .policy = policy,
                .draw = true,
                .record = true,
                .progress = [&progress](std::uint64_t done) { progress(done); }});
  };
  std::printf(
      "\n2. A real workload: every allocation that a training run (%s) made on a GPU, in\n"
      "   order, on %s. The stream-ordered\n"
      "   pool serves it: small blocks share memory, and free memory is moved by mapping before\n"
      "   more is created.\n\n",
      input.name.c_str(),
      std::string_view(backend) == "fake"
          ? "vmm's fake driver, with a real GPU driver's rules and costs"
          : "this GPU");
  const vmm::tools::run_outcome pooled = replay("pool");
  if (!pooled.report) return fail(pooled.problem);
  std::printf("\n%s", vmm::tools::to_text(*pooled.report).c_str());

  std::puts(
      "\n3. The same requests, each served by a block of its own, which takes whole granules.\n");
  const vmm::tools::run_outcome apart = replay("");
  if (!apart.report) return fail(apart.problem);
  std::puts("");
  show_both(*pooled.report, *apart.report);
  const std::array pictures{pooled.drawn, apart.drawn};
  if (const std::string why = ready.picture.write(vmm::tools::draw_svg(pictures)); !why.empty())
    return fail(why);
  std::printf("\n  Both address spaces at their peaks, on one scale, as a picture:\n  %s\n",
              wanted.picture_path.c_str());
  const std::vector<vmm::tools::named_history> shown{{"the pool", pooled.taken},
                                                     {"a block for each request", apart.taken}};
  if (const std::string why = ready.page.write(vmm::tools::to_page(shown)); !why.empty())
    return fail(why);
  std::printf("\n  What each of them did, event by event, as a page for any browser:\n  %s\n",
              wanted.page_path.c_str());
  const bool all_served = pooled.report->failures.count == 0 && apart.report->failures.count == 0;
  return all_served ? 0 : fail("the trace was not served in full");
}

// ---- the program ---------------------------------------------------------------------

template <class Stage>
int show(Stage& stage, std::uint64_t last_bytes, const char* backend, const command_line& wanted,
         prepared& ready) {
  if (wanted.wished_bytes != 0) last_bytes = wanted.wished_bytes;
  const int code = show_growth(stage, last_bytes);
  return code != 0 ? code : show_replay(wanted, ready, backend);
}

void print_head(const std::string& driver) {
  std::printf("vmm grows memory by mapping, not by copying.\n\nDriver: %s.\n\n", driver.c_str());
}

int run_on_gpu(vmm::cuda_driver driver, const command_line& wanted, prepared& ready) {
  print_head(std::string("cuda. There is a GPU here: ") + driver.description().device_name);
  auto stage = demo::gpu_stage::open(driver);
  if (!stage) return fail(vmm::describe(stage.error()));
  return show(*stage, last_target_on_gpu_bytes, "cuda", wanted, ready);
}

int run_on_level_zero(const command_line& wanted, prepared& ready) {
  auto driver = vmm::level_zero_driver::open({.device = wanted.backend.device});
  if (!driver) return fail("no Level Zero device is usable here: " + vmm::describe(driver.error()));
  print_head(std::string("level_zero, on ") + driver->description().device_name);
  const auto stage = std::make_unique<demo::level_zero_stage>(*driver);
  return show(*stage, last_target_on_host_bytes, "level_zero", wanted, ready);
}

int run_on_host(const std::string& reason, const command_line& wanted, prepared& ready) {
  print_head("host, this machine's own memory, since " + reason);
  auto driver = vmm::host_driver::open();
  if (!driver) return fail(vmm::describe(driver.error()));
  demo::host_stage stage(*driver);
  return show(stage, last_target_on_host_bytes, "fake", wanted, ready);
}

int run(const command_line& wanted) {
  prepared ready;
  if (const int code = prepare(wanted, ready); code != 0) return code;
  if (wanted.backend.kind == "host") return run_on_host("it was requested", wanted, ready);
  if (wanted.backend.kind == "level_zero") return run_on_level_zero(wanted, ready);
  auto gpu = vmm::cuda_driver::open({.device = wanted.backend.device});
  if (gpu) return run_on_gpu(std::move(*gpu), wanted, ready);
  const std::string reason = vmm::describe(gpu.error());
  const bool is_wrong_setting = gpu.error().code == vmm::errc::bad_option;
  if (is_wrong_setting || wanted.backend.kind == "cuda")
    return fail("no GPU is usable here: " + reason);
  return run_on_host("no GPU is usable here\n(" + reason + ")", wanted, ready);
}

}  // namespace

int main(int count, char** words) {
  vmm::tools::answer_help(count, words, usage);
  command_line wanted;
  const std::string problem = read_words(count, words, wanted);
  std::error_code ignored;  // without a current folder the names stay as they are
  const auto whole = std::filesystem::absolute(wanted.picture_path, ignored);
  if (!ignored && wanted.picture_path != "-") wanted.picture_path = whole.string();
  if (wanted.page_path.empty()) wanted.page_path = page_beside(wanted.picture_path);
  if (problem.empty()) return run(wanted);
  vmm::tools::refuse_line("vmm-demo", problem);
  return 2;
}

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm-gpu-test: vmm on CUDA devices while kernels run in its memory.

#include "../tools/program/options.hpp"

#include "pair/parts.hpp"

namespace {

namespace gpu = vmm::gpu;
using gpu::settings;

constexpr const char* usage = R"(usage: vmm-gpu-test COMMAND [OPTIONS]

  rounds                free, reuse and defragment while kernels still run
  trace FILE...         recorded traces with real work on four streams
  graph                 calls forbidden during a capture; a graph with the pool's memory
  everything            device-wide frees under kernels on 16 streams, and their cost
  overflow              blocks that are declared to a memory checker, and a byte written by a kernel
  pair                  two GPUs of one host, in parts, each in a process of its own; or one part:
    rights              a kernel of each device reads and writes under each right
    copies              between memory of both, beside cuMemcpyPeerAsync of cuMemAlloc memory
    import              a block of device 0, checked by a kernel of device 1 in another process
    aliases             each rule of one memory at two addresses, on device 0
    nccl                all-reduce on registered memory and other, before and after a move; NVLink
                        multicast has to be off by name in the environment
    kill                importers are killed while they use the block; the memory comes back

  --count N             rounds (10,000 otherwise); of each trace the first N events
  --seed N              rounds: of the sizes (1 otherwise)
  --policy NAME         rounds, trace: the pool's policy, pool (default) or vpmm
  --markdown FILE       rounds, trace: add the table to a file
  --planted             rounds: free blocks on a wrong stream, which the checks must find;
                        overflow: the byte behind a block
  --gap, --freed, --trimmed, --workload COUNT
                        overflow: the byte elsewhere; many blocks
  --kills N             kill: importers (100 otherwise)
  --limit SECONDS       of each part of pair (150 otherwise)
  --nccl PATH           NCCL's library
  --quick               pair: small sizes and 4 kills, for the stub driver of the tests

Exit code: 0 all as it should be (planted: wrong contents were found), 1 not so, 2 it could not be
tried, 77 there are not two GPUs.
)";

void soak_options(option_list& list, settings& how) {
  list.count("--count", how.count).text("--policy", how.policy).text("--markdown", how.markdown);
}

void rounds_options(option_list& list, settings& how) {
  soak_options(list, how);
  list.count("--seed", how.seed).flag("--planted", how.is_planted);
}

void trace_options(option_list& list, settings& how) {
  soak_options(list, how);
  list.files(how.traces);
}

void count_options(option_list& list, settings& how) { list.count("--count", how.count); }

void overflow_options(option_list& list, settings& how) {
  for (const char* const name : {"--planted", "--gap", "--freed", "--trimmed"})
    list.flag(name, [&how, name] { how.target = name; });
  list.count("--workload", how.count);
}

void pair_options(option_list& list, settings& how) {
  list.count("--kills", how.kill_count)
      .count("--limit", how.limit_s)
      .text("--nccl", how.nccl_library)
      .flag("--quick", how.is_quick);
}

struct command {
  std::string_view name;
  int (*run)(const settings&);
  void (*options)(option_list&, settings&);
};

constexpr std::array<command, 5> commands{{
    {"rounds", gpu::run_rounds, rounds_options},
    {"trace", gpu::run_traces, trace_options},
    {"graph", gpu::run_graph, [](option_list&, settings&) {}},
    {"everything", gpu::run_everything, count_options},
    {"overflow", gpu::run_overflow, overflow_options},
}};

}  // namespace

int main(int count, char** words) {
  vmm::tools::answer_help(count, words, usage);
  const std::string_view name = count > 1 ? words[1] : "";
  const auto found = std::ranges::find(commands, name, &command::name);
  if (found == commands.end() && name != "pair" && !gpu::is_part(name)) {
    std::fputs(usage, stderr);
    return 2;
  }
  settings how;
  option_list list(usage);
  found == commands.end() ? pair_options(list, how) : found->options(list, how);
  list.read(count - 1, words + 1);
  return found == commands.end() ? gpu::run_pair(how, name) : found->run(how);
}

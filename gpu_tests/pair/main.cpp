// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm-pair - two GPUs of one host: rights by trial, copies, imports, kills, and NCCL on vmm's
// memory. Each part runs in a process of its own, for a limited time, and prints what it saw; a
// table of all parts comes last.
//
//   rights  a kernel of each device reads and writes under each right, in a child process, since a
//           kernel that is refused takes its context along
//   copies  between mapped memory of both, beside cuMemcpyPeerAsync of cuMemAlloc memory
//   import  a block of device 0, checked by a kernel of device 1 in another process
//   aliases each rule of one memory at two addresses, by kernels of device 0
//   nccl    all-reduce on registered memory and on memory that is not, before and after a move.
//           NVLink multicast has to be switched off by name in the environment.
//   kill    importers are killed while they use the block; the memory comes back
#include <array>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string_view>
#include <vector>

#include "../../tools/program/usage.hpp"
#include "parts.hpp"

namespace {

using vmm::tools::pair_settings;
using vmm::tools::part_report;
using vmm::tools::verdict;

constexpr const char* usage =
    "usage: vmm-pair all | rights | copies | import | aliases | nccl | kill [COUNT]\n"
    "                [--kills COUNT] [--limit SECONDS] [--nccl PATH] [--quick]\n"
    "  What two GPUs of one host do with vmm's memory. Each part has SECONDS (150), and\n"
    "  COUNT (100) importers are killed. The part aliases needs one GPU.\n"
    "  0: nothing failed; 1: a part failed or took too long; 77: there are not two GPUs.\n"
    "  --quick: small sizes and 4 kills, for the stub driver of the tests.\n";

struct part {
  std::string_view name;
  verdict (*run)(const pair_settings&);
};

// The longest one comes last.
constexpr std::array<part, 6> parts{{{"rights", &vmm::tools::try_rights},
                                     {"copies", &vmm::tools::measure_copies},
                                     {"import", &vmm::tools::import_elsewhere},
                                     {"aliases", &vmm::tools::try_aliases},
                                     {"nccl", &vmm::tools::reduce_with_nccl},
                                     {"kill", &vmm::tools::kill_importers}}};

struct command {
  std::string_view word;
  pair_settings how;
};

// False where the word at `at`, and its value behind it, mean nothing.
bool take_option(int count, char** words, int& at, pair_settings& how) {
  const std::string_view name = words[at];
  if (name == "--quick") {
    how.is_quick = true;
    return true;
  }
  if (at + 1 == count) return false;
  ++at;
  if (name == "--nccl") {
    how.nccl_library = words[at];
    return !how.nccl_library.empty();
  }
  const std::optional<std::uint64_t> count_or_seconds = vmm::tools::read_count(words[at], 1);
  if (!count_or_seconds) return false;
  if (name == "--kills") {
    how.kill_count = *count_or_seconds;
    return true;
  }
  how.limit_s = static_cast<double>(*count_or_seconds);
  return name == "--limit";
}

std::optional<command> read_command(int count, char** words) {
  command asked;
  bool has_count = false;
  const std::uint64_t kill_count = asked.how.kill_count;
  for (int at = 1; at < count; ++at) {
    const std::string_view word = words[at];
    if (asked.word.empty() && !word.starts_with("--")) {
      asked.word = word;
    } else if (const auto rounds = vmm::tools::read_count(word, 1);
               rounds && asked.word == "kill" && !has_count) {
      asked.how.kill_count = *rounds;
      has_count = true;
    } else if (!take_option(count, words, at, asked.how)) {
      return std::nullopt;
    }
  }
  if (asked.how.is_quick && asked.how.kill_count == kill_count) asked.how.kill_count = 4;
  bool is_known = asked.word == "all";
  for (const part& each : parts) is_known = is_known || asked.word == each.name;
  return is_known ? std::optional(asked) : std::nullopt;
}

void print(const std::vector<part_report>& reports, const std::vector<const part*>& of) {
  std::printf("\n| part | result | figure | s |\n| --- | --- | --- | --- |\n");
  for (std::size_t i = 0; i < reports.size(); ++i) {
    std::printf("| %s | %s | %s | %.1f |\n", of[i]->name.data(), name_of(reports[i].result),
                reports[i].figure.c_str(), reports[i].seconds);
  }
}

}  // namespace

int main(int count, char** words) {
  vmm::tools::answer_help(count, words, usage);
  const std::optional<command> asked = read_command(count, words);
  if (!asked) {
    std::fputs(usage, stderr);
    return 2;
  }
  std::vector<part_report> reports;
  std::vector<const part*> ran;
  bool has_failed = false;
  for (const part& each : parts) {
    if (asked->word != "all" && asked->word != each.name) continue;
    std::printf("\n### %s\n\n", each.name.data());
    reports.push_back(
        vmm::tools::run_part(asked->how.limit_s, [&] { return each.run(asked->how); }));
    ran.push_back(&each);
    const verdict result = reports.back().result;
    if (result == verdict::no_pair) return static_cast<int>(verdict::no_pair);
    if (result == verdict::failed || result == verdict::timed_out) has_failed = true;
  }
  print(reports, ran);
  return has_failed ? 1 : 0;
}

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The command pair: two GPUs of one host, in parts. Each part runs in a process of its own, for a
// limited time, and prints its tables; a table of all parts comes last.

#include "parts.hpp"

namespace vmm::gpu {
namespace {

struct part {
  std::string_view name;
  verdict (*run)(const settings&);
};

// The longest one comes last.
constexpr std::array<part, 6> parts{{{"rights", &try_rights},
                                     {"copies", &measure_copies},
                                     {"import", &import_elsewhere},
                                     {"aliases", &try_aliases},
                                     {"nccl", &reduce_with_nccl},
                                     {"kill", &kill_importers}}};

}  // namespace

bool is_part(std::string_view name) {
  return std::ranges::find(parts, name, &part::name) != parts.end();
}

int run_pair(const settings& given, std::string_view name) {
  settings how = given;
  if (how.kill_count == 0) how.kill_count = how.is_quick ? 4 : 100;
  // The reason is the part's figure.
  before_stop = [](std::string_view text) { end_part(verdict::failed, std::string(text)); };
  std::string table = "\n| part | result | figure | s |\n| --- | --- | --- | --- |\n";
  bool has_failed = false;
  for (const part& each : parts) {
    if (name != "pair" && name != each.name) continue;
    std::printf("\n### %s\n\n", each.name.data());
    const part_report report =
        run_part(static_cast<double>(how.limit_s), [&] { return each.run(how); });
    if (report.result == verdict::no_pair) return static_cast<int>(verdict::no_pair);
    has_failed =
        has_failed || report.result == verdict::failed || report.result == verdict::timed_out;
    table += "| " + std::string(each.name) + " | " + name_of(report.result) + " | " +
             report.figure + text_of(" | %.1f |\n", report.seconds);
  }
  std::fputs(table.c_str(), stdout);
  return has_failed ? 1 : 0;
}

}  // namespace vmm::gpu

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// bench_manager - what calls of a manager cost the host, on the fake driver: an allocation and a
// free of retained memory, a growth at the same address and the resize back, and a resize that
// moves. Blocks have 2 to 64 MiB. Times are medians of the rounds, in the thread's own processor
// time, and hold what the fake driver takes. --json prints one object; --rounds N sets the rounds.

#include "report.hpp"

import vmm.fake;
import vmm.manager;

namespace {

constexpr std::uint64_t mib = std::uint64_t{1} << 20;
constexpr std::size_t block_count = 200;

struct figures {
  std::vector<double> pair_ns;
  std::vector<double> grow_ns;
  std::vector<double> shrink_ns;
  std::vector<double> move_ns;
};

/// Nanoseconds a block of what is done to each.
template <class Work>
double time_each(std::vector<vmm::address>& blocks, Work&& work) {
  const double begin_ns = cpu_ns();
  for (std::size_t i = 0; i < blocks.size(); ++i) work(blocks[i], 2 * mib << (i % 6));
  return (cpu_ns() - begin_ns) / static_cast<double>(blocks.size());
}

void play(vmm::manager& memory, figures& found) {
  const auto resize = [&](vmm::address& at, std::uint64_t size_bytes, bool may_move) {
    at = must(memory.resize({.at = at, .size_bytes = size_bytes, .may_move = may_move}));
  };
  std::vector<vmm::address> blocks(block_count);
  const double allocate_ns = time_each(blocks, [&](vmm::address& at, std::uint64_t size_bytes) {
    at = must(memory.allocate({.size_bytes = size_bytes, .growth_bytes = size_bytes}));
  });
  found.grow_ns.push_back(time_each(blocks, [&](vmm::address& at, std::uint64_t size_bytes) {
    resize(at, 2 * size_bytes, false);
  }));
  found.shrink_ns.push_back(time_each(
      blocks, [&](vmm::address& at, std::uint64_t size_bytes) { resize(at, size_bytes, false); }));
  found.move_ns.push_back(time_each(blocks, [&](vmm::address& at, std::uint64_t size_bytes) {
    resize(at, 5 * size_bytes, true);
  }));
  const double free_ns =
      time_each(blocks, [&](vmm::address at, std::uint64_t) { must(memory.free(at)); });
  found.pair_ns.push_back(allocate_ns + free_ns);
}

constexpr const char* usage =
    "usage: bench_manager [--json] [--rounds N]\n"
    "N is a whole number from 1 on (40 rounds otherwise).\n";

}  // namespace

int main(int argc, char** argv) {
  bool json = false;
  unsigned rounds = 40;
  option_list(usage).flag("--json", json).count("--rounds", rounds).read(argc, argv);
  auto plays = vmm::fake::profile::cuda();
  plays.device_memory_bytes = 256 * 1024 * mib;
  vmm::fake_driver driver{plays};
  vmm::manager memory(driver);
  figures found;
  play(memory, found);  // not counted: memory is created
  found = {};
  for (unsigned round = 0; round < rounds; ++round) play(memory, found);
  table rows;
  rows.row()
      .figure("pair, ns", median(found.pair_ns), 1, "pair_ns")
      .figure("grow", median(found.grow_ns), 1, "grow_ns")
      .figure("shrink", median(found.shrink_ns), 1, "shrink_ns")
      .figure("move", median(found.move_ns), 1, "move_ns");
  const std::string text = rows.shown(json);
  print(json ? text.substr(1, text.size() - 2) + "\n" : text);  // one object, not a list
  return 0;
}

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// bench_growable: growing a buffer in equal steps with its data, by a growable range, by the
// driver's calls written by hand, and by allocating anew and copying.
//
// All ways run in turns in one process, each from a fresh start; what ends one is not timed. Each
// step ends with the default stream synchronised. Handles have one size in the first two; the copy
// goes from one block of a manager to a larger one, whose memory is one handle at most. After each
// way the last word of each step is compared. The table shows medians of the whole growth, and
// ratios of the same turn, as the middle one of all turns.

#include "report.hpp"

import vmm.manager;
import vmm.registry;

namespace {

constexpr const char* usage =
    "usage: bench_growable [--backend NAME] [--steps COUNT] [--step BYTES]\n"
    "                      [--rounds COUNT] [--markdown FILE] [--head TEXT]\n"
    "\n"
    "Growing a buffer in steps: in place, by hand, and by allocating anew and copying.\n"
    "  --backend NAME   host, cuda, fake, ... (default: host)\n"
    "  --steps COUNT    how often it grows (default: 32)\n"
    "  --step BYTES     by how much, such as 8MiB (default: 4MiB)\n"
    "  --rounds COUNT   turns (default: 11)\n"
    "  --markdown FILE  also write the page there\n"
    "  --head TEXT      what stands at its head\n";

struct plan {
  std::uint64_t steps = 32;
  std::uint64_t step_bytes = std::uint64_t{4} << 20;
  std::uint64_t handle_bytes = 0;
  unsigned rounds = 11;
  std::string backend = "host";

  [[nodiscard]] std::uint64_t most_bytes() const { return steps * step_bytes; }
};

constexpr vmm::stream_handle stream = vmm::stream_handle::default_stream;

struct rig {
  rig(vmm::driver_interface& on, const plan& of) : driver(on), wanted(of) {}

  void finish() const {
    if (driver.feature_set().streams) must(driver.synchronize_stream(stream));
  }
  // Each step's last word is its number.
  void write(vmm::address base, std::uint64_t step) const {
    const std::array<std::uint64_t, 1> word{step};
    must(driver.write(base + (step * wanted.step_bytes - sizeof(word)),
                      std::as_bytes(std::span(word))));
  }
  void verify(vmm::address base) const {
    for (std::uint64_t step = 1; step <= wanted.steps; ++step) {
      std::array<std::uint64_t, 1> word{};
      must(driver.read(std::as_writable_bytes(std::span(word)),
                       base + (step * wanted.step_bytes - sizeof(word))));
      if (word[0] != step) stop("a step's last word is lost");
    }
  }
  // Microseconds of growing alone: writing a step's word is between the clocks.
  template <class Grow>
  [[nodiscard]] double time_steps(Grow&& grow) const {
    double sum_us = 0;
    for (std::uint64_t step = 1; step <= wanted.steps; ++step) {
      finish();
      vmm::address base{};
      sum_us += time_us([&] {
        base = grow(step);
        finish();
      });
      write(base, step);
    }
    return sum_us;
  }

  vmm::driver_interface& driver;
  const plan& wanted;
};

double grow_range(const rig& on, vmm::manager& memory, bool zero_new) {
  vmm::growable_range range(memory, {.segment_bytes_max = on.wanted.most_bytes(),
                                     .handle_bytes = on.wanted.handle_bytes,
                                     .zero_new = zero_new});
  must(range.reserve());
  const vmm::address base = must(range.segment(0));
  const double taken_us = on.time_steps([&](std::uint64_t step) {
    must(range.grow(step * on.wanted.step_bytes, stream));
    return base;
  });
  on.verify(base);
  must(range.close(stream));
  return taken_us;
}

// New memory, and then memory that the manager has.
std::pair<double, double> grow_ranges(const rig& on) {
  vmm::manager memory(on.driver);
  const double fresh_us = grow_range(on, memory, false);
  return {fresh_us, grow_range(on, memory, false)};
}

double grow_zeroed(const rig& on) {
  vmm::manager memory(on.driver);
  return grow_range(on, memory, true);
}

double grow_by_hand(const rig& on) {
  const vmm::location home = on.driver.home();
  const vmm::physical_request like{.size_bytes = on.wanted.handle_bytes, .where = home};
  const vmm::address_range space =
      must(on.driver.reserve({on.wanted.most_bytes(), on.wanted.handle_bytes, {}}));
  std::vector<vmm::physical_handle> handles;
  const vmm::access_grant grant{home, vmm::access::read_write};
  const double taken_us = on.time_steps([&](std::uint64_t step) {
    const vmm::address at = space.base + (step - 1) * on.wanted.step_bytes;
    for (std::uint64_t done = 0; done < on.wanted.step_bytes; done += on.wanted.handle_bytes) {
      handles.push_back(must(on.driver.create(like)));
      must(on.driver.map({at + done, on.wanted.handle_bytes, handles.back(), 0}));
    }
    must(on.driver.set_access({at, on.wanted.step_bytes}, {&grant, 1}));
    return space.base;
  });
  on.verify(space.base);
  for (std::uint64_t at = 0; at < on.wanted.most_bytes(); at += on.wanted.handle_bytes)
    must(on.driver.unmap({space.base + at, on.wanted.handle_bytes}));
  for (const vmm::physical_handle each : handles) must(on.driver.release(each));
  must(on.driver.free_reservation(space));
  return taken_us;
}

double grow_by_copying(const rig& on) {
  vmm::manager memory(on.driver);
  vmm::address block{};
  const double taken_us = on.time_steps([&](std::uint64_t step) {
    const vmm::address larger = must(memory.allocate(step * on.wanted.step_bytes));
    if (block) {
      must(on.driver.copy({larger, block, (step - 1) * on.wanted.step_bytes, stream}));
      must(memory.free(block));
    }
    block = larger;
    return block;
  });
  on.verify(block);
  must(memory.free(block));
  return taken_us;
}

struct row {
  const char* name;
  std::vector<double> taken_us;
  std::vector<double> of_copying;
  std::vector<double> by_hand;
};

std::string run(const rig& on) {
  std::array<row, 5> rows{{{"growable range, new memory", {}, {}, {}},
                           {"growable range, the manager's memory", {}, {}, {}},
                           {"growable range, new memory, zeroed", {}, {}, {}},
                           {"the driver's calls by hand", {}, {}, {}},
                           {"allocate anew and copy", {}, {}, {}}}};
  for (unsigned round = 0; round < on.wanted.rounds; ++round) {
    std::array<double, 5> now{};
    for (unsigned turn = 0; turn < 4; ++turn) {
      switch ((turn + round) % 4) {
        case 0: std::tie(now[0], now[1]) = grow_ranges(on); break;
        case 1: now[2] = grow_zeroed(on); break;
        case 2: now[3] = grow_by_hand(on); break;
        default: now[4] = grow_by_copying(on); break;
      }
    }
    for (std::size_t i = 0; i < rows.size(); ++i) {
      rows[i].taken_us.push_back(now[i]);
      rows[i].of_copying.push_back(now[i] / now[4]);
      rows[i].by_hand.push_back(now[i] / now[3]);
    }
  }
  table shown;
  for (const row& each : rows)
    shown.row()
        .text("way", each.name)
        .figure("us a step", median(each.taken_us) / static_cast<double>(on.wanted.steps), 1)
        .figure("of copying", median(each.of_copying), 3)
        .figure("of by hand", median(each.by_hand), 2);
  return shown.markdown();
}

std::uint64_t bytes_of(const char* value) {
  const std::optional<std::uint64_t> bytes = vmm::parse_bytes(value);
  if (!bytes || *bytes == 0) stop("bytes are such as 4MiB; not '" + std::string(value) + "'");
  return *bytes;
}

}  // namespace

int main(int count, char** words) {
  plan wanted;
  report_words report;
  option_list(usage)
      .text("--backend", wanted.backend)
      .count("--steps", wanted.steps)
      .value("--step", [&](const char* value) { wanted.step_bytes = bytes_of(value); })
      .count("--rounds", wanted.rounds)
      .page(report)
      .read(count, words);
  vmm::any_backend opened = must(vmm::open_backend(wanted.backend));
  vmm::driver_interface& driver = *opened.get();
  const vmm::physical_request like{.size_bytes = wanted.step_bytes, .where = driver.home()};
  wanted.handle_bytes = must(driver.query_granularity(like)).recommended_bytes;
  if (wanted.step_bytes % wanted.handle_bytes != 0) stop("--step is a multiple of the granularity");
  std::string about =
      std::to_string(wanted.steps) + " steps of " + std::to_string(wanted.step_bytes >> 20) +
      " MiB on " + std::string(opened.name()) + ", handles of " +
      std::to_string(wanted.handle_bytes >> 10) + " KiB, " + std::to_string(wanted.rounds) +
      " turns; medians. Ratios are of the same turn.";
  print(about + "\n\n");
  publish({.path = report.markdown,
           .title = "Growing in place",
           .head = report.head.empty() ? std::string(opened.name()) : report.head,
           .about = about,
           .command = "bench_growable --backend " + wanted.backend},
          run(rig(driver, wanted)));
}

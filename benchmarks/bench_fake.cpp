// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// How many calls the fake driver serves in a second, by the number of live mappings, and how many
// drivers can be made and destroyed in one: what every simulation and fuzzer above it pays. Prints
// one line for each count; --json prints one object.

#include "report.hpp"

import vmm.fake;

namespace {

constexpr std::uint64_t granule = 2ULL << 20;

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

struct figures {
  std::uint64_t live = 0;
  double cycle_calls_per_second = 0;  // create, map, set_access, unmap, release
  double map_calls_per_second = 0;    // map and unmap
};

figures measure(std::uint64_t live, std::uint64_t rounds) {
  auto plays = vmm::fake::profile::cuda();
  plays.device_memory_bytes = (live + 2) * granule;
  vmm::fake_driver driver{plays};
  const vmm::address_range range = must(driver.reserve({(2 * live + 2) * granule, 0, {}}));
  const vmm::access_grant grant{driver.home()};
  // Every other granule is mapped; the measured ones go in between, all over the range.
  for (std::uint64_t i = 0; i < live; ++i) {
    const vmm::address at = range.base + (2 * i + 1) * granule;
    must(driver.map({at, granule, must(driver.create({granule, driver.home()})), 0}));
    must(driver.set_access({at, granule}, {&grant, 1}));
  }
  std::uint64_t place = 1;
  const auto next = [&] {
    place = place * 6364136223846793005ULL + 1442695040888963407ULL;
    return range.base + ((place >> 33) % (live + 1)) * 2 * granule;
  };
  figures found{live, 0, 0};
  auto begin = std::chrono::steady_clock::now();
  for (std::uint64_t i = 0; i < rounds; ++i) {
    const vmm::address at = next();
    const vmm::physical_handle handle = must(driver.create({granule, driver.home()}));
    must(driver.map({at, granule, handle, 0}));
    must(driver.set_access({at, granule}, {&grant, 1}));
    must(driver.unmap({at, granule}));
    must(driver.release(handle));
  }
  found.cycle_calls_per_second = 5.0 * static_cast<double>(rounds) / seconds_since(begin);
  const vmm::physical_handle handle = must(driver.create({granule, driver.home()}));
  begin = std::chrono::steady_clock::now();
  for (std::uint64_t i = 0; i < rounds; ++i) {
    const vmm::address at = next();
    must(driver.map({at, granule, handle, 0}));
    must(driver.unmap({at, granule}));
  }
  found.map_calls_per_second = 2.0 * static_cast<double>(rounds) / seconds_since(begin);
  return found;
}

double drivers_per_second() {
  constexpr int rounds = 20'000;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < rounds; ++i) {
    vmm::fake_driver driver;
    (void)must(driver.reserve({granule, 0, {}}));
  }
  return rounds / seconds_since(begin);
}

constexpr const char* usage = "usage: bench_fake [--json]\n";

}  // namespace

int main(int argc, char** argv) {
  bool json = false;
  option_list(usage).flag("--json", json).read(argc, argv);
  table rows;
  for (const std::uint64_t live : {0ULL, 1'000ULL, 10'000ULL, 100'000ULL}) {
    const figures each = measure(live, 1'000'000);
    rows.row()
        .count("live", each.live, "live")
        .figure("create-to-release calls/s", each.cycle_calls_per_second, 0,
                "cycle_calls_per_second")
        .figure("map+unmap calls/s", each.map_calls_per_second, 0, "map_calls_per_second");
  }
  const std::string made = number(drivers_per_second(), 0);
  print(json ? "{\"fake_calls\": " + rows.json() + ", \"drivers_per_second\": " + made + "}\n"
             : rows.markdown() + "\ndrivers made, used once and destroyed: " + made + "/s\n");
  return 0;
}

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Spilling: a pool that goes on in the host's memory when the device is full. The device uses that
// memory like any other. On a simulated device of 256 MiB.
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <vector>

import vmm;
import vmm.testing;

namespace {

constexpr std::uint64_t MiB = std::uint64_t{1} << 20;

int fail(const vmm::error& what) {
  std::fprintf(stderr, "%s\n", vmm::describe(what).c_str());
  return 1;
}

}  // namespace

int main() {
  vmm::fake::profile machine = vmm::fake::profile::cuda();
  machine.device_memory_bytes = 256 * MiB;
  vmm::fake_driver driver(machine);
  vmm::stream_pool pool(driver, {{.spill = vmm::host_node(0)}});
  std::vector<vmm::address> blocks;
  for (int i = 0; i < 6; ++i) {
    const auto made = pool.allocate(64 * MiB, {});
    if (!made) return fail(made.error());
    blocks.push_back(*made);
    std::printf("%d blocks of 64 MiB: %" PRIu64 " MiB spilled\n", i + 1,
                pool.statistics().spilled_bytes / MiB);
  }
  const vmm::address_range last{blocks.back(), 64 * MiB};
  if (const auto ran = driver.launch({}, {.writes = {&last, 1}, .tag = 1}); !ran)
    return fail(ran.error());
  if (const auto done = driver.finish_all(); !done) return fail(done.error());
  std::printf("the device has written the last one, %" PRIu64 " mistakes\n", driver.misuse_count());
  for (const vmm::address each : blocks) {
    if (const auto freed = pool.free(each, {}); !freed) return fail(freed.error());
  }
  if (const auto trimmed = pool.trim(0); trimmed.failure.code != vmm::errc::none)
    return fail(trimmed.failure);
  std::printf("trimmed: %" PRIu64 " MiB spilled\n", pool.statistics().spilled_bytes / MiB);
  return 0;
}

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Two GPUs: device 1 reads what device 0 computes, without a copy. The block grows and moves, and
// the right goes with it. On the simulated machine of two devices, where a kernel is a struct.
#include <cinttypes>
#include <cstdint>
#include <cstdio>

import vmm;
import vmm.multi_device;
import vmm.testing;

namespace {

constexpr std::uint64_t MiB = std::uint64_t{1} << 20;

int fail(const vmm::error& what) {
  std::fprintf(stderr, "%s\n", vmm::describe(what).c_str());
  return 1;
}

const char* says(vmm::access rights) {
  return rights == vmm::access::none ? "nothing" : rights == vmm::access::read ? "read" : "write";
}

}  // namespace

int main() {
  vmm::fake::profile machine = vmm::fake::profile::cuda();
  machine.device_count = 2;
  vmm::fake_driver driver(machine);
  vmm::driver_ref with(driver);

  const auto topology = vmm::peer_topology::query(*with);
  if (!topology) return fail(topology.error());
  std::printf("%s", topology->to_text().c_str());

  vmm::manager_options options;
  if (!options.peers.set({vmm::device(1), vmm::access::read})) return 1;
  vmm::manager memory(driver, options);
  const auto made = memory.allocate(8 * MiB);
  if (!made) return fail(made.error());
  const auto fence = memory.allocate(2 * MiB);  // stands in the way, so that the block moves
  if (!fence) return fail(fence.error());
  const auto grown = memory.resize({*made, 64 * MiB});
  if (!grown) return fail(grown.error());
  std::printf("the block has %s\n", *grown == *made ? "grown" : "moved");

  const vmm::address_range block{*grown, 64 * MiB};
  if (const auto ran = driver.launch({}, {.writes = {&block, 1}, .tag = 42}); !ran)
    return fail(ran.error());
  const vmm::fake::kernel reader{.where = vmm::device(1), .reads = {&block, 1}, .expected = 42};
  if (const auto ran = driver.launch({}, reader); !ran) return fail(ran.error());
  if (const auto done = driver.finish_all(); !done) return fail(done.error());
  std::printf("device 1 has read it, %" PRIu64 " mistakes\n", driver.misuse_count());
  std::printf("device 1 may %s\n", says(*driver.get_access(block.base, vmm::device(1))));

  const vmm::access_grant none{vmm::device(1), vmm::access::none};
  if (const auto taken = memory.set_peers({&none, 1}); !taken) return fail(taken.error());
  std::printf("device 1 may %s\n", says(*driver.get_access(block.base, vmm::device(1))));
  if (!memory.free(*grown) || !memory.free(*fence)) return 1;
  return 0;
}

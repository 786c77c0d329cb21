// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Multicast: one write reaches the memory of two devices. On the simulated machine alone; a real
// driver is opened with cuda_options::allow_multicast for it, on a machine where that may be done.
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <utility>

import vmm;
import vmm.multi_device;
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
  machine.device_count = 2;
  machine.can.multicast = true;
  vmm::fake_driver driver(machine);
  vmm::aliased_memory own[2];  // each device's memory, and where it can be read
  for (int i = 0; i < 2; ++i) {
    vmm::alias_request request{.size_bytes = 4 * MiB, .placement = vmm::device(i)};
    auto made = vmm::aliased_memory::make(driver, request);
    if (!made) return fail(made.error());
    own[i] = std::move(*made);
  }
  auto team = vmm::multicast_team::create(driver, {4 * MiB, 2});
  if (!team) return fail(team.error());
  const vmm::access_grant grants[] = {{vmm::device(0)}, {vmm::device(1)}};
  if (const auto early = team->map(grants); !early)
    std::printf("too early: %s\n", early.error().detail);
  for (int i = 0; i < 2; ++i) {
    if (const auto added = team->add(vmm::device(i)); !added) return fail(added.error());
  }
  for (int i = 0; i < 2; ++i) {
    const vmm::multicast_team::mapped_part part{vmm::device(i), own[i].mappings()[0], 0};
    if (const auto bound = team->bind(part); !bound) return fail(bound.error());
  }
  const auto all = team->map(grants);
  if (!all) return fail(all.error());
  std::printf("the object is %s\n", vmm::name_of(team->phase()));
  if (const auto ran = driver.launch({}, {.writes = {&*all, 1}, .tag = 7}); !ran)
    return fail(ran.error());
  if (const auto done = driver.finish_all(); !done) return fail(done.error());
  for (int i = 0; i < 2; ++i) {
    std::printf("device %d has %" PRIu64 "\n", i, *driver.read_tag(own[i].mappings()[0].base));
  }
  if (const auto released = team->release(); !released) return fail(released.error());
  std::printf("the object is %s\n", vmm::name_of(team->phase()));
  return 0;
}

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// A driver may decline compressible memory, so a program that relies on it queries the granted
// properties. Uses the first GPU if there is one, else two simulated devices, one of which
// declines.
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

int ask(vmm::driver_ref driver, const char* name) {
  vmm::manager memory(driver, {.compressible = true});
  const auto made = memory.allocate(8 * MiB);
  if (!made) return fail(made.error());
  const auto granted = vmm::granted_of(memory, *made);
  if (!granted) return fail(granted.error());
  std::printf("%s: compression %s\n", name, granted->compressible ? "granted" : "declined");
  if (const auto freed = memory.free(*made); !freed) return fail(freed.error());
  return 0;
}

}  // namespace

int main() {
  if (auto gpu = vmm::cuda_driver::open()) return ask(*gpu, "the GPU");
  vmm::fake_driver able;
  vmm::fake::profile poor = vmm::fake::profile::cuda();
  poor.can.compression = false;
  vmm::fake_driver unable(poor);
  const int first = ask(able, "a device with compression");
  return first != 0 ? first : ask(unable, "a device without");
}

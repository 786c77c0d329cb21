// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// A cache with a segment for each layer that grows and shrinks at one address, beside another that
// takes the memory it gives up.
#include <cstdint>
#include <cstdio>

import vmm;

namespace {

constexpr std::uint64_t MiB = std::uint64_t{1} << 20;

vmm::status run() {
  vmm::result<vmm::host_driver> driver = vmm::host_driver::open();
  if (!driver) return driver.error();
  vmm::manager memory(*driver, {.policy = vmm::manager_policy::va_pool()});
  vmm::growable_range cache(memory, {.segment_bytes_max = 1024 * MiB, .segment_count = 4});
  vmm::growable_range other(memory, {.segment_bytes_max = 1024 * MiB});
  if (vmm::status grown = cache.grow(2 * MiB); !grown) return grown;
  const vmm::address first = *cache.segment(0);
  *first.as<char>() = 'k';
  if (vmm::status grown = cache.grow(16 * MiB); !grown) return grown;
  std::printf("4 layers of 16 MiB: %llu MiB, %s, %c\n",
              static_cast<unsigned long long>(cache.statistics().physical_bytes / MiB),
              *cache.segment(0) == first ? "the same address" : "moved", *first.as<char>());
  if (vmm::status shrunk = cache.shrink(4 * MiB); !shrunk) return shrunk;
  const std::uint64_t made = memory.statistics().created_count;
  if (vmm::status grown = other.grow(48 * MiB); !grown) return grown;
  std::printf("the other has 48 MiB, %llu handles of it new\n",
              static_cast<unsigned long long>(memory.statistics().created_count - made));
  return {};
}

}  // namespace

int main() {
  const vmm::status done = run();
  if (!done) std::fprintf(stderr, "%s\n", vmm::describe(done.error()).c_str());
  return done ? 0 : 1;
}

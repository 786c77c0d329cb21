// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The vector on a GPU under Level Zero. The host cannot touch its elements: they are written and
// read through the driver, in parts. The vector grows by mapping; no byte is copied for it.
#include <array>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <span>

import vmm;
import vmm.level_zero;

namespace {

int fail(const vmm::error& what) {
  std::fprintf(stderr, "%s\n", vmm::describe(what).c_str());
  return 1;
}

}  // namespace

int main() {
  auto driver = vmm::level_zero_driver::open();
  if (!driver) return fail(driver.error());
  std::printf("on %s\n", driver->description().device_name);
  vmm::manager memory(*driver);
  vmm::vector<std::uint64_t> numbers(memory);
  std::array<std::uint64_t, 1 << 16> part{};
  constexpr std::uint64_t part_count = 16;
  std::uint64_t capacity = 0;
  for (std::uint64_t at = 0; at < part_count * part.size(); at += part.size()) {
    for (std::size_t i = 0; i < part.size(); ++i) part[i] = at + i;
    if (const auto added = numbers.append(part); !added) return fail(added.error());
    if (numbers.capacity() == capacity) continue;
    capacity = numbers.capacity();
    std::printf("%9" PRIu64 " elements: room for %9" PRIu64 " at %#" PRIx64 "\n", numbers.size(),
                capacity, numbers.data_address().value);
  }
  for (std::uint64_t at = 0; at < numbers.size(); at += part.size()) {
    if (const auto got = numbers.read(at, part); !got) return fail(got.error());
    for (std::size_t i = 0; i < part.size(); ++i) {
      if (part[i] != at + i) return std::fputs("an element has changed\n", stderr), 1;
    }
  }
  std::printf("every element is there; %" PRIu64 " copies of bytes were made to grow\n",
              memory.statistics().real_copy_count);
  return 0;
}

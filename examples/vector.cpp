// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// A realloc-style vector: a million numbers are pushed back, and the program prints each growth,
// the address, and the bytes copied for it (none).
#include <cinttypes>
#include <cstdint>
#include <cstdio>

import vmm;

namespace {

int fail(const vmm::error& what) {
  std::fprintf(stderr, "%s\n", vmm::describe(what).c_str());
  return 1;
}

}  // namespace

int main() {
  auto driver = vmm::host_driver::open();
  if (!driver) return fail(driver.error());
  vmm::manager memory(*driver);
  vmm::vector<std::uint64_t> numbers(memory);
  std::uint64_t capacity = 0;
  for (std::uint64_t i = 0; i < 1'000'000; ++i) {
    if (const vmm::status pushed = numbers.push_back(i); !pushed) return fail(pushed.error());
    if (numbers.capacity() == capacity) continue;
    capacity = numbers.capacity();
    std::printf("%9" PRIu64 " elements: room for %9" PRIu64 " at %#" PRIx64 "\n", numbers.size(),
                capacity, numbers.data_address().value);
  }
  for (std::uint64_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] != i) return std::fputs("an element has changed\n", stderr), 1;
  }
  std::printf("every element is there; %" PRIu64 " copies of bytes were made to grow\n",
              memory.statistics().real_copy_count);
  return 0;
}

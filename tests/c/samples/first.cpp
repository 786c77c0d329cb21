// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <vmm.hpp>

int main() try {
  vmm::driver driver("host");  // or "cuda"
  vmm::pool pool(driver);
  vmm::stream stream(driver);
  vmm::device_array<float> values(pool, 1'000'000, stream.get());
  std::printf("%zu values, %llu bytes live\n", values.size(),
              static_cast<unsigned long long>(pool.statistics().live_bytes));
  return 0;
} catch (const std::exception& failure) {
  std::printf("%s\n", failure.what());
  return 1;
}

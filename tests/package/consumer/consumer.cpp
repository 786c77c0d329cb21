// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a stranger's program works with `import vmm;` and links to what the package brings.
// Method: a round through the vocabulary; the exit code says whether it came out right.
#include <cstdio>

import vmm;

int main() {
  const auto size = vmm::parse_bytes("64MiB");
  if (!size || *size != 64ull << 20) return 1;
  std::printf("%llu bytes\n", static_cast<unsigned long long>(*size));
  return 0;
}

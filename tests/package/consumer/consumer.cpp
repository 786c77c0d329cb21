// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a stranger's program works with `import vmm;` and links to what the package brings.
// Method: a round through the library; the exit code says whether it came out right. No unit of
// this program includes anything but <cstdio>.
#include <cstdio>

import vmm;

int use_names();  // names.cpp
int use_parts();  // parts.cpp

namespace {

int use_umbrella() {
  const auto size = vmm::parse_bytes("64MiB");
  if (!size || *size != 64ull << 20) return 1;
  std::printf("64MiB is %llu bytes\n", static_cast<unsigned long long>(*size));
  return 0;
}

}  // namespace

int main() { return use_umbrella() + use_names() + use_parts(); }

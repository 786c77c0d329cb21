// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a stranger's program works with `import vmm;` and links to what the package brings.
// Method: a block is allocated, grown and freed on the fake driver, and real bytes stay where they
// are on the host's; the exit code says whether it came out right. No unit of this program includes
// anything but <cstdio>.
#include <cstdio>

import vmm;
import vmm.testing;

int use_hidden();     // hidden.cpp
int use_parts();      // parts.cpp
int use_templates();  // templates.cpp

namespace {

constexpr unsigned long long MiB = 1ull << 20;

int fail(const vmm::error& failure) {
  std::fprintf(stderr, "%s\n", vmm::describe(failure).c_str());
  return 1;
}

// Grows a block on `driver` and checks that nothing is left behind but what the manager keeps.
template <vmm::backend B>
int grow_a_block(B& driver) {
  vmm::manager manager(driver);
  const auto block = manager.allocate(64 * MiB);
  if (!block) return fail(block.error());
  const auto grown = manager.resize({.at = *block, .size_bytes = 128 * MiB});
  if (!grown) return fail(grown.error());
  if (manager.statistics().mapped_bytes != 128 * MiB) return 1;
  if (const auto freed = manager.free(*grown); !freed) return fail(freed.error());
  return manager.validate() ? 0 : 1;
}

int use_fake() {
  vmm::fake_driver driver;
  const int outcome = grow_a_block(driver);
  return driver.check_empty() ? outcome : 1;
}

int use_host() {
  auto driver = vmm::host_driver::open();
  if (!driver) return fail(driver.error());
  return grow_a_block(*driver);
}

}  // namespace

int main() {
  const int failed = use_fake() + use_host() + use_hidden() + use_parts() + use_templates();
  std::printf("%s\n", failed == 0 ? "all is reachable and works" : "something failed");
  return failed;
}

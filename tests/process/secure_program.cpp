// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Says which variables of its environment vmm heeds.
#include <sys/auxv.h>

#include <cstdio>
#include <cstdlib>

import vmm;
import vmm.backend;
import vmm.observe;

int main() {
  std::printf("more rights than its caller %lu\n", getauxval(AT_SECURE));
  std::fflush(stdout);
  (void)vmm::open_backend("cuda");
  const auto logged = vmm::open_backend("fake");
  if (!logged) return 2;
  (void)logged->get()->reserve({std::uint64_t{2} << 20, 0, {}});
  (void)vmm::nvtx_declarer::open();
  const auto options = vmm::manager_options::from_environment({});
  const auto pool = vmm::pool_options::from_environment({});
  if (!options || !pool) return 3;
  std::printf("policy %s\n", options->policy.name);
  std::printf("budget %d\n", pool->budget_bytes != vmm::pool_options{}.budget_bytes ? 1 : 0);
  std::printf("folder %s\n", vmm::top_folders().front().c_str());
  std::printf("set %d\n", vmm::option_is_set("VMM_MODE") ? 1 : 0);
  return 0;
}

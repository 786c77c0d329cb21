// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// What docs/observe.md and docs/contract.md show, on the fake driver.
#include <cstdio>

import vmm.fake;
import vmm.observe;
import vmm.stream;

namespace {

template <class D>
vmm::result<vmm::stream_handle> stream_of(D& driver) {
  if constexpr (vmm::stream_backend<D>) {
    if (driver.feature_set().streams) return driver.create_stream();
  }
  return vmm::refuse(vmm::errc::not_supported, "the driver has no streams");
}

bool records() {
  vmm::history_options how;
  how.shortage_path = "short.history";  // written when a shortage is about to be returned
  auto ring = *vmm::history_ring::make(how);

  vmm::fake_driver driver;
  vmm::pool_options options;
  options.recorder = ring.get();  // the ring outlives the pool
  vmm::stream_pool pool(driver, options);

  const vmm::history_label label({vmm::history_tag("weights"), 0});
  auto block = pool.allocate(1 << 20, vmm::stream_handle::default_stream);

  auto taken = pool.history().take();
  if (taken) (void)vmm::write_history(*taken, "run.history");

  if (!block || !taken || !stream_of(driver)) return false;
  return !taken->events.empty() && pool.free(*block, vmm::stream_handle::default_stream);
}

}  // namespace

int main() {
  const bool recorded = records();
  (void)std::remove("run.history");
  std::puts(recorded ? "recorded" : "a call did not do what docs/observe.md says");
  return recorded ? 0 : 1;
}

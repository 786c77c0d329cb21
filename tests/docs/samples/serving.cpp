// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The functions of docs/pool.md and docs/manager.md, on the fake driver: two models.
#include <cstdint>
#include <cstdio>

import vmm;
import vmm.testing;

namespace {

vmm::pool_options options_of_a_model(std::uint64_t budget_bytes) {
  vmm::pool_options options;
  options.budget_bytes = budget_bytes;
  options.page_count = 64;          // mapped at the start, so that the first requests are warm
  options.wait_when_short = false;  // fail at once: the server decides what waits
  return options;
}

vmm::result<vmm::address> allocate_or_make_room(vmm::stream_pool& pool, vmm::stream_pool& other,
                                                std::uint64_t size_bytes,
                                                vmm::stream_handle stream) {
  auto block = pool.allocate(size_bytes, stream);
  if (block || !vmm::is_shortage(block.error().code)) return block;
  (void)other.trim(0);  // free memory of the other model goes back to the driver
  return pool.allocate(size_bytes, stream);
}

vmm::result<vmm::address> open_cache(vmm::manager& memory, std::uint64_t first_bytes,
                                     std::uint64_t longest_bytes, vmm::stream_handle stream) {
  return memory.allocate(
      {.size_bytes = first_bytes, .growth_bytes = longest_bytes - first_bytes, .stream = stream});
}

vmm::status longer(vmm::manager& memory, vmm::address cache, std::uint64_t size_bytes) {
  auto same = memory.resize({.at = cache, .size_bytes = size_bytes, .may_move = false});
  return same ? vmm::status{} : vmm::status{same.error()};
}

bool serves(vmm::driver_ref driver) {
  constexpr std::uint64_t mib = std::uint64_t{1} << 20;
  constexpr auto stream = vmm::stream_handle::default_stream;
  vmm::stream_pool model(driver, options_of_a_model(256 * mib));
  vmm::stream_pool other(driver, options_of_a_model(256 * mib));
  const auto block = allocate_or_make_room(model, other, 200 * mib, stream);
  const auto refused = allocate_or_make_room(model, other, 200 * mib, stream);
  if (!block || refused || refused.error().code != vmm::errc::over_budget) return false;
  if (!model.free(*block, stream)) return false;
  vmm::manager memory(driver);
  const auto cache = open_cache(memory, 16 * mib, 64 * mib, stream);
  if (!cache || !longer(memory, *cache, 64 * mib)) return false;
  return memory.free(*cache).has_value();
}

}  // namespace

int main() {
  vmm::fake_driver driver;
  const bool served = serves(driver);
  std::puts(served ? "two models were served" : "a call did not do what the pages say");
  return served ? 0 : 1;
}

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// A program that releases the memory of its weights and its cache while another process needs it,
// and restores both at the same addresses. It runs on the host's memory.
#include <cstdint>
#include <cstdio>
#include <string_view>

import vmm;
import vmm.suspend;

namespace {

constexpr std::uint64_t MiB = std::uint64_t{1} << 20;

vmm::status run() {
  vmm::result<vmm::host_driver> driver = vmm::host_driver::open();
  if (!driver) return driver.error();
  vmm::manager weights(*driver);
  vmm::stream_pool cache(*driver);
  vmm::suspender sleeper;
  if (vmm::status added = sleeper.add(weights, {"weights"}); !added) return added;
  if (vmm::status added = sleeper.add(cache, {"kv", vmm::suspend_contents::discard}); !added)
    return added;

  const vmm::result<vmm::address> weight = weights.allocate(64 * MiB);
  if (!weight) return weight.error();
  const auto block = cache.allocate(32 * MiB, vmm::stream_handle::default_stream);
  if (!block) return block.error();
  *weight->as<char>() = 'w';

  const vmm::result<vmm::suspend_report> report = sleeper.suspend();
  if (!report) return report.error();
  std::printf("given back: %llu MiB, kept in host memory: %llu MiB\n",
              static_cast<unsigned long long>(report->suspended_bytes / MiB),
              static_cast<unsigned long long>(report->backup_bytes / MiB));
  const vmm::result<vmm::address> refused = weights.allocate(MiB);
  std::printf("an allocation meanwhile: %s\n", vmm::name_of(refused.error().code));

  constexpr std::string_view first[] = {"weights"};
  if (vmm::status back = sleeper.resume(first); !back) return back;
  std::printf("the weights are back: %c\n", *weight->as<char>());
  if (vmm::status back = sleeper.resume(); !back) return back;  // the cache, too
  if (vmm::status freed = weights.free(*weight); !freed) return freed;
  return cache.free(*block, vmm::stream_handle::default_stream);
}

}  // namespace

int main() {
  const vmm::status done = run();
  if (!done) std::fprintf(stderr, "%s\n", vmm::describe(done.error()).c_str());
  return done ? 0 : 1;
}

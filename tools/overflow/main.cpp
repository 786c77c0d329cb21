// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm-overflow - two neighbouring blocks of a pool on a CUDA device, and a kernel that writes into
// the first of them: within it, or one byte over its end. For a memory checker: the pool declares
// its blocks through NVTX, and the byte over the end is one that the checker must see. [G4]
//
//   compute-sanitizer --nvtx yes --tool memcheck vmm-overflow            no error
//   compute-sanitizer --nvtx yes --tool memcheck vmm-overflow --planted  one error
//
// vmm-overflow --ask prints what it costs to ask a stream whether it is being captured, which the
// pool does at every call unless it is told that nothing ever is.
//
// Exits with 0 when the kernels ran or the checker stopped the planted one.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string_view>

import vmm;
import vmm.kernels;

namespace {

constexpr std::uint64_t block_bytes = 1000;

int fail(const vmm::error& what) {
  std::fprintf(stderr, "vmm-overflow: %s\n", vmm::describe(what).c_str());
  return 1;
}

vmm::status ask(vmm::cuda_driver& driver) {
  constexpr std::uint64_t count = 1'000'000;
  const auto stream = driver.create_stream();
  if (!stream) return stream.error();
  double best_ns = 1e300;
  for (int round = 0; round < 5; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    for (std::uint64_t i = 0; i < count; ++i) {
      if (const auto seen = driver.query_capture(*stream); !seen) return seen.error();
    }
    const std::chrono::duration<double, std::nano> taken = std::chrono::steady_clock::now() - begin;
    best_ns = std::min(best_ns, taken.count() / static_cast<double>(count));
  }
  std::printf("asking whether a stream is being captured: %.1f ns (best of 5 rounds of %llu)\n",
              best_ns, static_cast<unsigned long long>(count));
  return driver.destroy_stream(*stream);
}

vmm::status play(vmm::cuda_driver& driver, vmm::nvtx_declarer& declarer, bool planted) {
  auto kernels = vmm::tools::kernel_set::load(driver);
  if (!kernels) return kernels.error();
  const auto stream = driver.create_stream();
  if (!stream) return stream.error();
  vmm::pool_options options;
  options.watcher = &declarer;
  vmm::stream_pool<vmm::cuda_driver> pool(driver, options);
  const auto first = pool.allocate(block_bytes, *stream);
  if (!first) return first.error();
  const auto second = pool.allocate(block_bytes, *stream);
  if (!second) return second.error();
  std::printf("blocks of %llu bytes at 0x%llx and 0x%llx; heaps declared: %llu, regions: %llu\n",
              static_cast<unsigned long long>(block_bytes),
              static_cast<unsigned long long>(first->value),
              static_cast<unsigned long long>(second->value),
              static_cast<unsigned long long>(declarer.heap_count()),
              static_cast<unsigned long long>(declarer.region_count()));
  const std::uint64_t last = planted ? block_bytes : block_bytes - 1;
  for (const vmm::address at : {*first, *second, *first + last}) {
    if (vmm::status poked = kernels->poke(at, 1, *stream); !poked) return poked;
  }
  const vmm::status finished = driver.synchronize_stream(*stream);
  std::printf("%s: %s\n", planted ? "one byte over the end" : "the last byte",
              finished ? "the kernel ran" : "the kernel was stopped");
  if (!finished && planted) return {};
  if (!finished) return finished;
  if (vmm::status freed = pool.free(*second, *stream); !freed) return freed;
  return pool.free(*first, *stream);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view word = argc == 2 ? argv[1] : "";
  if (argc > 2 || !(word.empty() || word == "--planted" || word == "--ask")) {
    std::fprintf(stderr, "usage: vmm-overflow [--planted | --ask]\n");
    return 2;
  }
  auto declarer = vmm::nvtx_declarer::open();
  if (!declarer) return fail(declarer.error());
  auto driver = vmm::cuda_driver::open();
  if (!driver) return fail(driver.error());
  const vmm::status played =
      word == "--ask" ? ask(*driver) : play(*driver, **declarer, word == "--planted");
  return played ? 0 : fail(played.error());
}

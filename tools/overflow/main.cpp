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
// Exits with 0 when the kernels ran or the checker stopped the planted one.
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
  const bool planted = argc == 2 && std::string_view(argv[1]) == "--planted";
  if (argc > 2 || (argc == 2 && !planted)) {
    std::fprintf(stderr, "usage: vmm-overflow [--planted]\n");
    return 2;
  }
  auto declarer = vmm::nvtx_declarer::open();
  if (!declarer) return fail(declarer.error());
  auto driver = vmm::cuda_driver::open();
  if (!driver) return fail(driver.error());
  const vmm::status played = play(*driver, **declarer, planted);
  return played ? 0 : fail(played.error());
}

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The functions of docs/pool.md and docs/manager.md, called on the fake driver.
#include <cstdint>
#include <cstdio>
#include <memory_resource>
#include <numeric>
#include <vector>

import vmm;
import vmm.testing;

using cudaStream_t = struct CUstream_st*;

namespace {

vmm::status scale(vmm::stream_pool& pool, cudaStream_t native) {
  const vmm::stream_handle stream = vmm::stream_from_native(native);
  auto values = vmm::device_array<float>::allocate(pool, 1000, stream);
  if (!values) return values.error();
  // kernel<<<8, 128, 0, native>>>(values->data(), values->size());
  return {};
}  // frees the array on the stream, after the kernel

vmm::status hand_over(vmm::device_buffer& block, vmm::stream_handle next) {
  vmm::driver_interface& driver = block.memory().driver();
  const auto done = driver.create_event();
  if (!done) return done.error();
  vmm::status ordered = driver.record_event(*done, block.stream());
  if (ordered) ordered = driver.wait_event(next, *done);
  if (ordered) block.set_stream(next);  // freed there from now on
  const vmm::status gone = driver.destroy_event(*done);
  return ordered ? gone : ordered;
}

void print_figures(vmm::stream_pool& pool) {
  const vmm::pool_statistics now = pool.statistics();
  std::printf("%llu bytes are live, %llu are held for them\n",
              static_cast<unsigned long long>(now.live_bytes),
              static_cast<unsigned long long>(now.mapped_bytes));
}

vmm::status grow(vmm::manager& memory, vmm::stream_handle stream) {
  auto weights = vmm::device_buffer::allocate(memory, 64 << 20, stream);
  if (!weights) return weights.error();
  return weights->resize(128 << 20);  // copies no byte; the address may change
}

vmm::result<std::uint64_t> sum_on_the_host(vmm::stream_pool& pool) {
  auto memory = vmm::host_memory_resource::open(pool);
  if (!memory) return memory.error();
  std::pmr::vector<std::uint64_t> numbers(1000, 7, &*memory);
  return std::accumulate(numbers.begin(), numbers.end(), std::uint64_t{0});
}

int fail(const vmm::error& failure) {
  std::fprintf(stderr, "%s\n", vmm::describe(failure).c_str());
  return 1;
}

int run_on_the_fake() {
  vmm::fake_driver driver;
  const auto first = driver.create_stream();
  if (!first) return fail(first.error());
  const auto second = driver.create_stream();
  if (!second) return fail(second.error());
  {
    vmm::stream_pool pool(driver);
    if (const auto done = scale(pool, nullptr); !done) return fail(done.error());
    auto block = vmm::device_buffer::allocate(pool, 1 << 20, *first);
    if (!block) return fail(block.error());
    if (const auto done = hand_over(*block, *second); !done) return fail(done.error());
    print_figures(pool);
  }
  vmm::manager memory(driver);
  if (const auto done = grow(memory, *first); !done) return fail(done.error());
  return driver.misuses().empty() ? 0 : 1;
}

int run_on_the_host() {
  auto driver = vmm::host_driver::open();
  if (!driver) return fail(driver.error());
  vmm::stream_pool pool(*driver);
  const auto sum = sum_on_the_host(pool);
  if (!sum) return fail(sum.error());
  return *sum == 7000 ? 0 : 1;
}

}  // namespace

int main() { return run_on_the_fake() + run_on_the_host(); }

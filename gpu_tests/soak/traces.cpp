// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Recorded traces with real work on four streams: a kernel writes each block when it is allocated,
// another checks it before it is freed, both on the block's own stream. The host waits for nothing
// but the last.

#include "../rig.hpp"

import vmm.trace;

namespace vmm::gpu {
namespace {

constexpr std::uint64_t spin_every = 256;
constexpr std::uint64_t spin_ns = 300'000;

struct outcome {
  std::uint64_t event_count = 0;
  std::uint64_t kernel_count = 0;
  std::uint64_t wrong_words = 0;
  double seconds = 0;
  vmm::pool_statistics numbers{};
};

// Neighbours in time are spread over the streams, in no fixed order.
std::size_t stream_of(std::uint64_t number) { return number * vmm::tools::pattern_step >> 62; }

/// A block whose contents a kernel wrote, in whole words.
struct block {
  vmm::address_range words{};
  std::uint64_t seed = 0;
  vmm::stream_handle stream{};
};

std::uint64_t play(rig& r, vmm::stream_pool& pool, const vmm::tools::trace& input,
                   std::uint64_t event_count) {
  std::vector<block> live(input.slot_count);
  std::uint64_t checked_count = 0;
  const auto free = [&](block& old) {
    r.check(old.words, old.seed, old.stream);
    ++checked_count;
    must(pool.free(old.words.base, old.stream));
    old = {};
  };
  for (std::uint64_t i = 0; i < event_count; ++i) {
    const vmm::tools::event& now = input.events[i];
    block& b = live[now.slot];
    if (now.kind == vmm::tools::event_kind::allocate) {
      const vmm::stream_handle stream = r.streams[stream_of(i)];
      const vmm::address at = must(pool.allocate(now.size_bytes, stream));
      b = {{at, std::max<std::uint64_t>(1, now.size_bytes / 8) * 8}, i * 0x1'0001 + 1, stream};
      if (i % spin_every == 0) r.spin(spin_ns, stream);
      r.fill(b.words, b.seed, stream);
    } else {
      free(b);
    }
  }
  for (block& left : live)
    if (left.words.base) free(left);
  return checked_count;
}

outcome run_one(vmm::cuda_driver& driver, const settings& how, const vmm::tools::trace& input) {
  rig r(driver, {.stream_count = 4});
  vmm::pool_options options;
  options.policy = policy_of(how);
  vmm::stream_pool pool(driver, options);
  outcome out;
  out.event_count = input.events.size();
  if (how.count != 0) out.event_count = std::min(out.event_count, how.count);
  const double begin_us = now_us();
  out.kernel_count = 2 * play(r, pool, input, out.event_count);
  out.numbers = pool.statistics();
  out.wrong_words = r.wrong_words();
  out.seconds = (now_us() - begin_us) / 1e6;
  must(pool.synchronize());
  must(pool.validate());
  return out;
}

std::string row(const vmm::tools::trace& input, const outcome& seen) {
  const vmm::pool_statistics& n = seen.numbers;
  const auto live_bytes = static_cast<double>(n.peak_live_bytes);
  return "| " + input.name +
         text_of(" | %llu | %llu | %.3f | %.3f | %llu | %llu | %llu | %llu | %.2f | %llu |\n",
                 wide(seen.event_count), wide(seen.kernel_count), live_bytes / (1 << 30),
                 static_cast<double>(n.peak_mapped_bytes) / live_bytes, wide(n.other_stream_count),
                 wide(n.moved_count), wide(n.device_wait_count), wide(n.host_wait_count),
                 seen.seconds, wide(seen.wrong_words));
}

}  // namespace

int run_traces(const settings& how) {
  if (how.traces.empty()) stop("which traces?");
  vmm::cuda_driver driver = open_device();
  std::string text =
      "| trace | events | kernels | peak live GiB | peak held / peak live | requests met by "
      "another stream's memory | handles moved | waits on the device | waits of the host | "
      "seconds | wrong words |\n"
      "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n";
  bool is_clean = true;
  for (const std::string& path : how.traces) {
    const vmm::tools::read_outcome input = vmm::tools::read_trace(path);
    if (!input) stop(vmm::tools::describe(input.trouble));
    const outcome seen = run_one(driver, how, *input.value);
    text += row(*input.value, seen);
    is_clean = is_clean && seen.wrong_words == 0;
  }
  text +=
      "\nThe host waits for nothing and runs ahead of the device. What one stream freed serves "
      "another only when its work is done or behind a wait, so four streams that lag hold more "
      "than "
      "one.\n\n";
  publish(how, text);
  return is_clean ? 0 : 1;
}

}  // namespace vmm::gpu

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm-after-all - device-wide frees of a pool's blocks, on a CUDA device.
//
// Each round allocates on one of eight streams, writes there, and lets a kernel on one of eight
// streams that were never passed to the pool read the block, late; meanwhile it frees the block and
// requests the next one, which another stream writes. A kernel counts wrong words. Some of the
// reading streams are destroyed while they still read. Beside some rounds a stream is captured: one
// of the pool's, or one whose capture is announced. Then the cost of such a free is measured beside
// those of cuMemFree and cuMemFreeAsync, with an idle device and with a busy one.
//
//   vmm-after-all [ROUNDS]    default: 10000
//
// Exits with 0 when all words were right, no capture was spoiled and nothing is left.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>  // see docs/support.md, clang 22
#include <string>
#include <utility>
#include <vector>

#include "../../tools/program/usage.hpp"

#include "../../tools/program/cuda_calls.hpp"

import vmm;
import vmm.backend;
import vmm.kernels;

namespace {

constexpr std::uint64_t mib = std::uint64_t{1} << 20;
constexpr std::size_t known_count = 8;
constexpr std::size_t reader_count = 8;
constexpr std::uint64_t late_ns = 30'000;  // a reader reads so much later

// The calls beside vmm's own: captures, and the allocators to compare with.
struct driver_calls {
  explicit driver_calls(const vmm::cuda_driver& driver)
      : begin(call_of<PFN_cuStreamBeginCapture_v10010>(driver, "cuStreamBeginCapture", 10010)),
        end(call_of<PFN_cuStreamEndCapture_v10000>(driver, "cuStreamEndCapture", 10000)),
        destroy_graph(call_of<PFN_cuGraphDestroy_v10000>(driver, "cuGraphDestroy", 10000)),
        allocate(call_of<PFN_cuMemAlloc_v3020>(driver, "cuMemAlloc", 3020)),
        free(call_of<PFN_cuMemFree_v3020>(driver, "cuMemFree", 3020)),
        allocate_async(call_of<PFN_cuMemAllocAsync_v11020>(driver, "cuMemAllocAsync", 11020)),
        free_async(call_of<PFN_cuMemFreeAsync_v11020>(driver, "cuMemFreeAsync", 11020)) {
    enter(driver);
  }

  PFN_cuStreamBeginCapture_v10010 begin;
  PFN_cuStreamEndCapture_v10000 end;
  PFN_cuGraphDestroy_v10000 destroy_graph;
  PFN_cuMemAlloc_v3020 allocate;
  PFN_cuMemFree_v3020 free;
  PFN_cuMemAllocAsync_v11020 allocate_async;
  PFN_cuMemFreeAsync_v11020 free_async;
};

CUstream native(vmm::stream_handle stream) { return vmm::native_stream<CUstream>(stream); }

struct bench {
  explicit bench(vmm::cuda_driver& on)
      : driver(on), calls(on), kernels(must(vmm::tools::kernel_set::load(on))) {
    for (vmm::stream_handle& each : known) each = must(driver.create_stream());
    for (vmm::stream_handle& each : readers) each = must(driver.create_stream());
    captured = must(driver.create_stream());
    event = must(driver.create_event());
  }
  bench(const bench&) = delete;
  bench& operator=(const bench&) = delete;

  void finish() {
    for (const vmm::stream_handle each : known) must(driver.synchronize_stream(each));
    for (const vmm::stream_handle each : readers) must(driver.synchronize_stream(each));
  }
  void destroy() {
    for (const vmm::stream_handle each : known) must(driver.destroy_stream(each));
    for (const vmm::stream_handle each : readers) must(driver.destroy_stream(each));
    must(driver.destroy_stream(captured));
    must(driver.destroy_event(event));
  }

  vmm::cuda_driver& driver;
  driver_calls calls;
  vmm::tools::kernel_set kernels;
  std::array<vmm::stream_handle, known_count> known{};
  std::array<vmm::stream_handle, reader_count> readers{};  // the pool does not know them
  vmm::stream_handle captured{};
  vmm::event_handle event{};
};

// ---- contents -----------------------------------------------------------------------------------

struct found {
  std::uint64_t wrong_words = 0;
  std::uint64_t spoiled_count = 0;
  std::uint64_t capture_count = 0;
  std::uint64_t gone_count = 0;  // readers that were destroyed while they read
  vmm::pool_statistics end{};
};

// One block: written by `writer`, read late by a stream that nothing comes behind, and freed.
void play_block(bench& on, vmm::stream_pool& pool, std::uint64_t round, vmm::address wrong,
                vmm::stream_handle reader) {
  const vmm::stream_handle writer = on.known[round % known_count];
  const std::uint64_t size_bytes = (1 + round % 7) * mib;
  const vmm::address at = must(pool.allocate(size_bytes, writer));
  const vmm::address_range range{at, size_bytes};
  must(on.kernels.fill({range, round * 3 + 1, writer}));
  must(on.driver.record_event(on.event, writer));
  must(on.driver.wait_event(reader, on.event));
  must(on.kernels.spin(late_ns, reader));
  must(on.kernels.check({range, round * 3 + 1, reader}, wrong));
  must(pool.free(at));
}

// 100 rounds beside a capture, of every 1,000: alternately of a stream of the pool, and of one
// whose capture is announced.
class capture_beside {
 public:
  capture_beside(bench& on, vmm::stream_pool& pool, found& seen)
      : on_(on), pool_(pool), seen_(seen) {}

  void before(std::uint64_t round) {
    if (round % 1'000 != 500) return;
    is_announced_ = round % 2'000 == 500;
    stream_ = is_announced_ ? on_.captured : own_known();
    if (is_announced_) must(pool_.captures().begin());
    must(on_.calls.begin(native(stream_), CU_STREAM_CAPTURE_MODE_GLOBAL), "cuStreamBeginCapture");
    is_open_ = true;
  }
  void after(std::uint64_t round) {
    if (!is_open_ || round % 1'000 != 599) return;
    is_open_ = false;
    CUgraph made = nullptr;
    const CUresult code = on_.calls.end(native(stream_), &made);
    ++seen_.capture_count;
    if (code != CUDA_SUCCESS) ++seen_.spoiled_count;
    if (code == CUDA_SUCCESS) must(on_.calls.destroy_graph(made), "cuGraphDestroy");
    if (is_announced_) must(pool_.captures().end());
  }
  void forget() {
    if (known_ == vmm::stream_handle::default_stream) return;
    must(pool_.forget(known_));
    must(on_.driver.destroy_stream(known_));
  }

 private:
  // A stream of the pool that no round uses.
  [[nodiscard]] vmm::stream_handle own_known() {
    if (known_ != vmm::stream_handle::default_stream) return known_;
    known_ = must(on_.driver.create_stream());
    must(pool_.free(must(pool_.allocate(512, known_)), known_));
    return known_;
  }

  bench& on_;
  vmm::stream_pool& pool_;
  found& seen_;
  vmm::stream_handle stream_{};
  vmm::stream_handle known_{};
  bool is_announced_ = false;
  bool is_open_ = false;
};

found check_contents(bench& on, std::uint64_t rounds) {
  found seen;
  vmm::pool_options options;
  options.rules.handle_bytes = 2 * mib;  // handles move, too
  options.streams_forgotten = true;      // so that an unannounced capture of its own is seen
  options.rules.headroom = 0;
  options.rules.harvest_share = 0;
  vmm::stream_pool pool(on.driver, options);
  const vmm::address counter = must(pool.allocate(512, on.known[0]));
  must(on.driver.fill({{counter, 512}, 0, on.known[0]}));
  must(on.driver.synchronize_stream(on.known[0]));
  capture_beside beside(on, pool, seen);
  for (std::uint64_t round = 0; round < rounds; ++round) {
    beside.before(round);
    if (round % 50 == 49) {  // a reader that is gone before it has read
      const vmm::stream_handle gone = must(on.driver.create_stream());
      play_block(on, pool, round, counter, gone);
      must(on.driver.destroy_stream(gone));
      ++seen.gone_count;
    } else {
      play_block(on, pool, round, counter, on.readers[round * 5 % reader_count]);
    }
    beside.after(round);
  }
  on.finish();
  must(pool.synchronize());
  std::array<std::byte, 8> bytes{};
  must(on.driver.read(bytes, counter));
  for (std::size_t i = bytes.size(); i > 0; --i)
    seen.wrong_words = seen.wrong_words << 8 | std::to_integer<std::uint64_t>(bytes[i - 1]);
  must(pool.validate());
  seen.end = pool.statistics();
  must(pool.free(counter));
  beside.forget();
  return seen;
}

// ---- price --------------------------------------------------------------------------------------

using clock_type = std::chrono::steady_clock;

struct price {
  std::vector<double> free_us{};
  std::vector<double> allocate_us{};

  [[nodiscard]] static double at(std::vector<double>& sorted, double share) {
    std::sort(sorted.begin(), sorted.end());
    const auto last = static_cast<double>(sorted.size() - 1);
    return sorted[static_cast<std::size_t>(share * last)];
  }
};

template <class Call>
double time_us(Call&& call) {
  const auto begin = clock_type::now();
  call();
  return std::chrono::duration<double, std::micro>(clock_type::now() - begin).count();
}

// A block is allocated, a kernel of each of four streams is put in where the device is to be busy,
// and the block is freed. `busy_ns` 0: idle.
template <class Allocate, class Free>
price take_price(bench& on, std::uint64_t count, std::uint64_t busy_ns, Allocate&& allocate,
                 Free&& free) {
  price out;
  for (std::uint64_t i = 0; i < count; ++i) {
    std::uint64_t at = 0;
    out.allocate_us.push_back(time_us([&] { at = allocate(); }));
    for (std::size_t j = 0; busy_ns != 0 && j < 4; ++j)
      must(on.kernels.spin(busy_ns, on.readers[(i + j) % reader_count]));
    out.free_us.push_back(time_us([&] { free(at); }));
  }
  on.finish();
  return out;
}

void show(const char* name, const char* device, price&& taken) {
  std::printf("| %s | %s | %zu | %.2f | %.2f | %.2f | %.2f |\n", name, device, taken.free_us.size(),
              price::at(taken.free_us, 0.5), price::at(taken.free_us, 0.99),
              price::at(taken.allocate_us, 0.5), price::at(taken.allocate_us, 0.99));
}

void show_prices(bench& on) {
  constexpr std::uint64_t size_bytes = 4 * mib;
  constexpr std::uint64_t busy_ns = 1'000'000;
  std::printf(
      "\n| free | device | rounds | free p50 us | free p99 us | allocate p50 us | allocate p99 us |"
      "\n| --- | --- | --- | --- | --- | --- | --- |\n");
  vmm::stream_pool pool(on.driver);
  for (const std::uint64_t spin_ns : {std::uint64_t{0}, busy_ns}) {
    const char* const device = spin_ns == 0 ? "idle" : "kernels of 1 ms on 8 streams";
    const std::uint64_t count = spin_ns == 0 ? 2'000 : 200;
    show("pool, after everything", device,
         take_price(
             on, count, spin_ns, [&] { return must(pool.allocate(size_bytes, on.known[0])).value; },
             [&](std::uint64_t at) { must(pool.free(vmm::address{at})); }));
    show("cuMemFree", device,
         take_price(
             on, count, spin_ns,
             [&] {
               CUdeviceptr at = 0;
               must(on.calls.allocate(&at, size_bytes), "cuMemAlloc");
               return static_cast<std::uint64_t>(at);
             },
             [&](std::uint64_t at) { must(on.calls.free(at), "cuMemFree"); }));
    show("cuMemFreeAsync (after its stream only)", device,
         take_price(
             on, count, spin_ns,
             [&] {
               CUdeviceptr at = 0;
               must(on.calls.allocate_async(&at, size_bytes, native(on.known[0])),
                    "cuMemAllocAsync");
               return static_cast<std::uint64_t>(at);
             },
             [&](std::uint64_t at) {
               must(on.calls.free_async(at, native(on.known[0])), "cuMemFreeAsync");
             }));
  }
}

constexpr const char* usage = "usage: vmm-after-all [ROUNDS]; a number from 1 on\n";

}  // namespace

int main(int count, char** words) {
  vmm::tools::answer_help(count, words, usage);
  std::uint64_t rounds = 10'000;
  if (count > 1) {
    char* end = nullptr;
    rounds = std::strtoull(words[1], &end, 10);
    if (count > 2 || *end != '\0' || *words[1] == '-' || rounds == 0) {
      std::fputs(usage, stderr);
      return 2;
    }
  }
  vmm::cuda_driver driver = must(vmm::cuda_driver::open({}));
  if (!driver.feature_set().record_all) stop("the driver has no event for all work: 12.5 has");
  bench on(driver);
  const found seen = check_contents(on, rounds);
  std::printf(
      "%llu rounds on %zu streams, %zu of them not known to the pool, %llu destroyed while they\n"
      "read: %llu words wrong. %llu captures beside them, %llu spoiled. %llu events, %llu waits,\n"
      "%llu handles made, %llu moved, peak %.1f MiB.\n",
      static_cast<unsigned long long>(rounds), known_count + reader_count, reader_count,
      static_cast<unsigned long long>(seen.gone_count),
      static_cast<unsigned long long>(seen.wrong_words),
      static_cast<unsigned long long>(seen.capture_count),
      static_cast<unsigned long long>(seen.spoiled_count),
      static_cast<unsigned long long>(seen.end.mark_count),
      static_cast<unsigned long long>(seen.end.wait_count),
      static_cast<unsigned long long>(seen.end.made_count),
      static_cast<unsigned long long>(seen.end.moved_count),
      static_cast<double>(seen.end.peak_mapped_bytes) / static_cast<double>(mib));
  show_prices(on);
  on.destroy();
  return seen.wrong_words == 0 && seen.spoiled_count == 0 ? 0 : 1;
}

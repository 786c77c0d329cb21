// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The command everything: device-wide frees of a pool's blocks, on a CUDA device.
//
// Each round allocates on one of eight streams, writes there, and lets a kernel on one of eight
// streams that were never passed to the pool read the block, late; meanwhile it frees the block and
// requests the next one, which another stream writes. A kernel counts wrong words. Some of the
// reading streams are destroyed while they still read. Beside some rounds a stream is captured: one
// of the pool's, or one whose capture is announced. Then the cost of such a free is measured beside
// those of cuMemFree and cuMemFreeAsync, with an idle device and with a busy one.
//
// Exits with 0 when all words were right, no capture was spoiled and nothing is left.

#include "../graphs.hpp"

namespace vmm::gpu {
namespace {

constexpr std::size_t known_count = 8;
constexpr std::size_t reader_count = 8;
constexpr std::uint64_t late_ns = 30'000;  // a reader reads so much later

struct bench {
  explicit bench(vmm::cuda_driver& on)
      : driven(on), r(on, {.stream_count = known_count + reader_count}) {}

  // The pool does not know them.
  [[nodiscard]] vmm::stream_handle reader(std::uint64_t i) const {
    return r.streams[known_count + i % reader_count];
  }

  graphs driven;
  rig r;
};

// ---- contents -----------------------------------------------------------------------------------

struct found {
  std::uint64_t wrong_words = 0;
  std::uint64_t spoiled_count = 0;
  std::uint64_t capture_count = 0;
  std::uint64_t gone_count = 0;  // readers that were destroyed while they read
  vmm::pool_statistics end{};
};

// One block: written on a stream of the pool, read late by a stream that nothing comes behind, and
// freed.
void play_block(rig& r, vmm::stream_pool& pool, std::uint64_t round, vmm::stream_handle reader) {
  const vmm::stream_handle writer = r.streams[round % known_count];
  const std::uint64_t size_bytes = (1 + round % 7) * mib;
  const vmm::address_range range{must(pool.allocate(size_bytes, writer)), size_bytes};
  r.fill(range, round * 3 + 1, writer);
  r.order(writer, reader);
  r.spin(late_ns, reader);
  r.check(range, round * 3 + 1, reader);
  must(pool.free(range.base));
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
    stream_ = is_announced_ ? captured_ : own_known();
    if (is_announced_) must(pool_.captures().begin());
    on_.driven.begin(stream_);
    is_open_ = true;
  }
  void after(std::uint64_t round) {
    if (!is_open_ || round % 1'000 != 599) return;
    is_open_ = false;
    ++seen_.capture_count;
    if (on_.driven.end(stream_) != CUDA_SUCCESS) ++seen_.spoiled_count;
    if (is_announced_) must(pool_.captures().end());
  }
  void forget() {
    must(on_.r.driver.destroy_stream(captured_));
    if (known_ == vmm::stream_handle::default_stream) return;
    must(pool_.forget(known_));
    must(on_.r.driver.destroy_stream(known_));
  }

 private:
  // A stream of the pool that no round uses.
  [[nodiscard]] vmm::stream_handle own_known() {
    if (known_ != vmm::stream_handle::default_stream) return known_;
    known_ = must(on_.r.driver.create_stream());
    must(pool_.free(must(pool_.allocate(512, known_)), known_));
    return known_;
  }

  bench& on_;
  vmm::stream_pool& pool_;
  found& seen_;
  vmm::stream_handle captured_ = must(on_.r.driver.create_stream());
  vmm::stream_handle stream_{};
  vmm::stream_handle known_{};
  bool is_announced_ = false;
  bool is_open_ = false;
};

found check_contents(bench& on, std::uint64_t rounds) {
  found seen;
  vmm::pool_options options;
  options.policy.handle_bytes_max = 2 * mib;  // handles move, too
  options.streams_forgotten = true;           // so that an unannounced capture of its own is seen
  options.policy.headroom = 0;
  options.policy.tuning.min_move_share = 0;
  rig& r = on.r;
  vmm::stream_pool pool(r.driver, options);
  capture_beside beside(on, pool, seen);
  for (std::uint64_t round = 0; round < rounds; ++round) {
    beside.before(round);
    if (round % 50 == 49) {  // a reader that is gone before it has read
      const vmm::stream_handle gone = must(r.driver.create_stream());
      play_block(r, pool, round, gone);
      must(r.driver.destroy_stream(gone));
      ++seen.gone_count;
    } else {
      play_block(r, pool, round, on.reader(round * 5));
    }
    beside.after(round);
  }
  r.finish();
  must(pool.synchronize());
  seen.wrong_words = r.wrong_words();
  must(pool.validate());
  seen.end = pool.statistics();
  beside.forget();
  return seen;
}

// ---- price --------------------------------------------------------------------------------------

struct costs {
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
  const double begin_us = now_us();
  call();
  return now_us() - begin_us;
}

// A block is allocated, a kernel of each of four streams is put in where the device is to be busy,
// and the block is freed. `busy_ns` 0: idle.
template <class Allocate, class Free>
costs measure_costs(bench& on, std::uint64_t count, std::uint64_t busy_ns, Allocate&& allocate,
                    Free&& free) {
  costs out;
  for (std::uint64_t i = 0; i < count; ++i) {
    std::uint64_t at = 0;
    out.allocate_us.push_back(time_us([&] { at = allocate(); }));
    for (std::size_t j = 0; busy_ns != 0 && j < 4; ++j) on.r.spin(busy_ns, on.reader(i + j));
    out.free_us.push_back(time_us([&] { free(at); }));
  }
  on.r.finish();
  return out;
}

void show(const char* name, const char* device, costs&& taken) {
  std::printf("| %s | %s | %zu | %.2f | %.2f | %.2f | %.2f |\n", name, device, taken.free_us.size(),
              costs::at(taken.free_us, 0.5), costs::at(taken.free_us, 0.99),
              costs::at(taken.allocate_us, 0.5), costs::at(taken.allocate_us, 0.99));
}

void show_costs(bench& on) {
  constexpr std::uint64_t size_bytes = 4 * mib;
  constexpr std::uint64_t busy_ns = 1'000'000;
  std::printf(
      "\n| free | device | rounds | free p50 us | free p99 us | allocate p50 us | allocate p99 us |"
      "\n| --- | --- | --- | --- | --- | --- | --- |\n");
  const vmm::cuda_driver& driver = on.r.driver;
  const auto allocate = call_of<PFN_cuMemAlloc_v3020>(driver, "cuMemAlloc", 3020);
  const auto free = call_of<PFN_cuMemFree_v3020>(driver, "cuMemFree", 3020);
  const auto allocate_async = call_of<PFN_cuMemAllocAsync_v11020>(driver, "cuMemAllocAsync", 11020);
  const auto free_async = call_of<PFN_cuMemFreeAsync_v11020>(driver, "cuMemFreeAsync", 11020);
  const vmm::stream_handle stream = on.r.streams[0];
  vmm::stream_pool pool(on.r.driver);
  for (const std::uint64_t spin_ns : {std::uint64_t{0}, busy_ns}) {
    const char* const device = spin_ns == 0 ? "idle" : "kernels of 1 ms on 8 streams";
    const std::uint64_t count = spin_ns == 0 ? 2'000 : 200;
    CUdeviceptr made = 0;
    show("pool, after everything", device,
         measure_costs(
             on, count, spin_ns, [&] { return must(pool.allocate(size_bytes, stream)).value; },
             [&](std::uint64_t at) { must(pool.free(vmm::address{at})); }));
    show("cuMemFree", device,
         measure_costs(
             on, count, spin_ns,
             [&] {
               must(allocate(&made, size_bytes), "cuMemAlloc");
               return made;
             },
             [&](std::uint64_t at) { must(free(at), "cuMemFree"); }));
    show("cuMemFreeAsync (after its stream only)", device,
         measure_costs(
             on, count, spin_ns,
             [&] {
               must(allocate_async(&made, size_bytes, native(stream)), "cuMemAllocAsync");
               return made;
             },
             [&](std::uint64_t at) { must(free_async(at, native(stream)), "cuMemFreeAsync"); }));
  }
}

}  // namespace

int run_everything(const settings& how) {
  const std::uint64_t rounds = how.count == 0 ? 10'000 : how.count;
  vmm::cuda_driver driver = open_device();
  if (!driver.feature_set().record_all) stop("the driver has no event for all work: 12.5 has");
  bench on(driver);
  const found seen = check_contents(on, rounds);
  std::printf(
      "%llu rounds on %zu streams, %zu of them not known to the pool, %llu destroyed while they\n"
      "read: %llu words wrong. %llu captures beside them, %llu spoiled. %llu events, %llu waits,\n"
      "%llu handles made, %llu moved, peak %.1f MiB.\n",
      wide(rounds), known_count + reader_count, reader_count, wide(seen.gone_count),
      wide(seen.wrong_words), wide(seen.capture_count), wide(seen.spoiled_count),
      wide(seen.end.event_count), wide(seen.end.device_wait_count), wide(seen.end.created_count),
      wide(seen.end.moved_count),
      static_cast<double>(seen.end.peak_mapped_bytes) / static_cast<double>(mib));
  show_costs(on);
  return seen.wrong_words == 0 && seen.spoiled_count == 0 ? 0 : 1;
}

}  // namespace vmm::gpu

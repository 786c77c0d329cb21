// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// bench_resize: doubling a buffer on a CUDA device with its data, by copying, by the driver's calls
// written by hand, and by vmm.
//
// All ways run interleaved in one process; each run prepares its buffer and checks the contents on
// the device outside the timed part, which ends with the stream synchronised. A wrong word ends the
// program. Ways that are compared run one right after the other, in turns the one first and the
// other. The tables show medians, and of ratios, which are taken pair by pair, the middle half and
// all of them too.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../tools/program/cuda_calls.hpp"
#include "device.hpp"
#include "report.hpp"

import vmm.backend;
import vmm.cuda;
import vmm.kernels;
import vmm.manager;

namespace {

constexpr std::uint64_t mib = 1ull << 20;
constexpr std::uint64_t seed = 0x5eed;

// ---- the device, the clock and the contents -----------------------------------------------------

// The driver's calls that vmm does not use.
struct plain_calls {
  explicit plain_calls(const vmm::cuda_driver& driver)
      : allocate(call_of<PFN_cuMemAlloc_v3020>(driver, "cuMemAlloc", 3020)),
        release(call_of<PFN_cuMemFree_v3020>(driver, "cuMemFree", 3020)),
        allocate_async(call_of<PFN_cuMemAllocAsync_v11020>(driver, "cuMemAllocAsync", 11020)),
        release_async(call_of<PFN_cuMemFreeAsync_v11020>(driver, "cuMemFreeAsync", 11020)) {}

  PFN_cuMemAlloc_v3020 allocate;
  PFN_cuMemFree_v3020 release;
  PFN_cuMemAllocAsync_v11020 allocate_async;
  PFN_cuMemFreeAsync_v11020 release_async;
};

class rig {
 public:
  explicit rig(vmm::cuda_driver& on)
      : driver(on), plain(on), kernels_(load(on)), stream(must(on.create_stream())) {
    enter(on);
    counter_ = plain_allocate(8);
    keep_pool_warm();
  }
  ~rig() {
    must(driver.synchronize_stream(stream));
    plain_release(counter_);
    must(driver.destroy_stream(stream));
  }
  rig(const rig&) = delete;
  rig& operator=(const rig&) = delete;

  // Microseconds of `work`, the device's part included.
  template <class Work>
  double time(Work&& work) {
    must(driver.synchronize_stream(stream));
    const auto begin = std::chrono::steady_clock::now();
    work();
    must(driver.synchronize_stream(stream));
    const std::chrono::duration<double, std::micro> taken =
        std::chrono::steady_clock::now() - begin;
    return taken.count();
  }

  void fill(vmm::address_range range) {
    must(kernels_.fill({range, seed, stream}));
    must(driver.synchronize_stream(stream));
  }
  // The whole of `range` holds the pattern.
  void verify(vmm::address_range range, const char* what) {
    std::array<std::uint64_t, 1> wrong{0};
    must(driver.write(counter_, std::as_bytes(std::span(wrong))));
    must(kernels_.check({range, seed, stream}, counter_));
    must(driver.synchronize_stream(stream));
    must(driver.read(std::as_writable_bytes(std::span(wrong)), counter_));
    if (wrong[0] != 0) stop(std::string(what) + ": " + std::to_string(wrong[0]) + " wrong words");
  }
  // The old data is there, and all of the new range can be written and read.
  void verify_grown(vmm::address_range grown, std::uint64_t old_bytes, const char* what) {
    verify({grown.base, old_bytes}, what);
    fill(grown);
    verify(grown, what);
  }
  void copy(vmm::address target, vmm::address source, std::uint64_t size_bytes) {
    must(driver.copy({target, source, size_bytes, stream}));
  }

  vmm::address plain_allocate(std::uint64_t size_bytes) {
    CUdeviceptr at = 0;
    if (plain.allocate(&at, size_bytes) != CUDA_SUCCESS) stop("cuMemAlloc refuses");
    return {at};
  }
  void plain_release(vmm::address at) {
    if (plain.release(at.value) != CUDA_SUCCESS) stop("cuMemFree refuses");
  }
  vmm::address async_allocate(std::uint64_t size_bytes) {
    CUdeviceptr at = 0;
    if (plain.allocate_async(&at, size_bytes, native_stream()) != CUDA_SUCCESS) {
      stop("cuMemAllocAsync refuses");
    }
    return {at};
  }
  void async_release(vmm::address at) {
    if (plain.release_async(at.value, native_stream()) != CUDA_SUCCESS) {
      stop("cuMemFreeAsync refuses");
    }
  }
  // Gives the asynchronous pool's memory back to the device.
  void empty_pool() {
    const auto trim = call_of<PFN_cuMemPoolTrimTo_v11020>(driver, "cuMemPoolTrimTo", 11020);
    must(driver.synchronize_stream(stream));
    trim(pool_, 0);
  }

  vmm::cuda_driver& driver;
  plain_calls plain;

 private:
  static vmm::tools::kernel_set load(vmm::cuda_driver& driver) {
    auto loaded = vmm::tools::kernel_set::load(driver);
    if (!loaded) stop(vmm::describe(loaded.error()));
    return std::move(*loaded);
  }
  [[nodiscard]] CUstream native_stream() const { return vmm::native_stream<CUstream>(stream); }
  // The asynchronous pool keeps what is freed: the warm case.
  void keep_pool_warm() {
    const auto default_pool =
        call_of<PFN_cuDeviceGetDefaultMemPool_v11020>(driver, "cuDeviceGetDefaultMemPool", 11020);
    const auto set =
        call_of<PFN_cuMemPoolSetAttribute_v11020>(driver, "cuMemPoolSetAttribute", 11020);
    std::uint64_t all = ~0ull;
    if (default_pool(&pool_, driver.home().ordinal) != CUDA_SUCCESS ||
        set(pool_, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all) != CUDA_SUCCESS) {
      stop("the asynchronous pool cannot be set up");
    }
  }

  vmm::tools::kernel_set kernels_;
  CUmemoryPool pool_ = nullptr;
  vmm::address counter_{};

 public:
  vmm::stream_handle stream;
};

// ---- the ways to double a buffer ----------------------------------------------------------------

// Each prepares, times the doubling from `size` bytes, checks, and undoes everything.

double by_allocating(rig& r, std::uint64_t size) {
  const vmm::address old = r.plain_allocate(size);
  r.fill({old, size});
  vmm::address grown{};
  const double us = r.time([&] {
    grown = r.plain_allocate(2 * size);
    r.copy(grown, old, size);
    r.plain_release(old);
  });
  r.verify_grown({grown, 2 * size}, size, "cuMemAlloc and copy");
  r.plain_release(grown);
  return us;
}

double by_pool(rig& r, std::uint64_t size) {
  const vmm::address old = r.async_allocate(size);
  r.fill({old, size});
  vmm::address grown{};
  const double us = r.time([&] {
    grown = r.async_allocate(2 * size);
    r.copy(grown, old, size);
    r.async_release(old);
  });
  r.verify_grown({grown, 2 * size}, size, "cuMemAllocAsync and copy");
  r.async_release(grown);
  return us;
}

enum class handles { fresh, cached };

// The driver's calls by hand: a reservation with room, and one more handle behind the first.
double by_hand(rig& r, std::uint64_t size, handles from) {
  vmm::cuda_driver& d = r.driver;
  const vmm::physical_request request{.size_bytes = size, .where = d.home()};
  const vmm::access_grant all[] = {{d.home(), vmm::access::read_write}};
  const vmm::address_range room = must(d.reserve({.size_bytes = 2 * size}));
  const vmm::physical_handle first = must(d.create(request));
  vmm::physical_handle second = vmm::physical_handle::none;
  if (from == handles::cached) second = must(d.create(request));
  must(d.map({room.base, size, first, 0}));
  must(d.set_access({room.base, size}, all));
  r.fill({room.base, size});
  const double us = r.time([&] {
    if (from == handles::fresh) second = must(d.create(request));
    must(d.map({room.base + size, size, second, 0}));
    must(d.set_access({room.base + size, size}, all));
  });
  r.verify_grown(room, size, "the driver's calls by hand");
  must(d.unmap(room));
  must(d.release(first));
  must(d.release(second));
  must(d.free_reservation(room));
  return us;
}

using manager = vmm::manager;

// A manager for one run; nothing is left in it at the end.
double by_resize(rig& r, manager& m, std::uint64_t size, handles from) {
  const vmm::address at = must(m.allocate({.size_bytes = size, .growth_bytes = size}));
  if (from == handles::cached) {
    const vmm::address spare = must(m.allocate(size));
    must(m.free_idle(spare));
  }
  r.fill({at, size});
  vmm::address grown{};
  const double us = r.time([&] { grown = must(m.resize({.at = at, .size_bytes = 2 * size})); });
  if (grown != at) stop("resize moved a buffer that had room");
  r.verify_grown({grown, 2 * size}, size, "vmm resize");
  must(m.free_idle(grown));
  (void)m.drain();
  return us;
}

// A new buffer of twice the size, a copy that may remap, and the old one freed. Its memory and the
// extension's come from the cache: right after a large release a create was seen to wait, as if for
// the scrubbing of what was released, about 2.5 ms a GiB; that is not what is measured here.
double by_remap(rig& r, manager& m, std::uint64_t size, vmm::copy_mode mode) {
  const vmm::address old = must(m.allocate(size));
  const vmm::address large_spare = must(m.allocate(2 * size));
  const vmm::address small_spare = must(m.allocate(size));
  must(m.free_idle(large_spare));
  must(m.free_idle(small_spare));
  r.fill({old, size});
  vmm::address grown{};
  const auto remapped = m.statistics().remapped_copy_count;
  const double us = r.time([&] {
    grown = must(m.allocate(2 * size));
    must(m.copy({grown, old, size, r.stream}, mode));
    if (mode == vmm::copy_mode::move) must(m.free_idle(old));
  });
  if (m.statistics().remapped_copy_count != remapped + 1) stop("the copy was not remapped");
  if (mode == vmm::copy_mode::alias) {
    r.verify({old, size}, "vmm alias: the source");
    r.verify({grown, size}, "vmm alias: the target");
    must(m.free_idle(old));
  }
  r.verify_grown({grown, 2 * size}, size, "vmm copy by remapping");
  must(m.free_idle(grown));
  (void)m.drain();
  return us;
}

// ---- the table ----------------------------------------------------------------------------------

constexpr std::size_t way_count = 8;
constexpr std::array<const char*, way_count> way_names{
    "cuMemAlloc, copy, free",      "cuMemAllocAsync warm, copy", "by hand, new handle",
    "vmm resize, new handle",      "by hand, cached handle",     "vmm resize, cached handle",
    "vmm discard and map, cached", "vmm alias, cached"};
enum way : std::size_t { plain, pool, hand_new, vmm_new, hand_cached, vmm_cached, moved, aliased };

double run(rig& r, manager& m, std::uint64_t size, std::size_t which) {
  switch (which) {
    case plain: return by_allocating(r, size);
    case pool: return by_pool(r, size);
    case hand_new: return by_hand(r, size, handles::fresh);
    case vmm_new: return by_resize(r, m, size, handles::fresh);
    case hand_cached: return by_hand(r, size, handles::cached);
    case vmm_cached: return by_resize(r, m, size, handles::cached);
    case moved: return by_remap(r, m, size, vmm::copy_mode::move);
    default: return by_remap(r, m, size, vmm::copy_mode::alias);
  }
}

// The ways in the order of one round. Ways that are compared with one another stand side by side,
// and each second round has them the other way round: what runs after a release pays for it.
std::array<std::size_t, way_count> order_of(unsigned round) {
  std::array<std::size_t, way_count> order{};
  for (std::size_t i = 0; i < way_count; ++i) order[i] = i;
  if (round % 2 == 1) {
    std::swap(order[hand_new], order[vmm_new]);
    std::swap(order[hand_cached], order[vmm_cached]);
  }
  return order;
}

// Of every way its times, round by round.
using times = std::array<std::vector<double>, way_count>;

times measure(rig& r, std::uint64_t size, unsigned repeat_count) {
  manager m(r.driver);
  times all;
  for (unsigned i = 0; i <= repeat_count; ++i) {
    for (const std::size_t which : order_of(i)) {
      const double us = run(r, m, size, which);
      if (i > 0) all[which].push_back(us);  // the first round warms everything up
    }
  }
  r.empty_pool();
  return all;
}

std::string size_text(std::uint64_t bytes) {
  return bytes % (1024 * mib) == 0 ? std::to_string(bytes / (1024 * mib)) + " GiB"
                                   : std::to_string(bytes / mib) + " MiB";
}

struct line {
  std::uint64_t size;
  times us;
};

std::string times_table(const std::vector<line>& lines) {
  std::string text = "| from, to |";
  for (const char* name : way_names) text += std::string(" ") + name + " |";
  text += "\n| --- |";
  for (std::size_t i = 0; i < way_count; ++i) text += " --- |";
  text += "\n";
  for (const line& each : lines) {
    text += "| " + size_text(each.size) + ", " + size_text(2 * each.size) + " |";
    for (const std::vector<double>& way : each.us) {
      const double us = median(way);
      text += " " + number(us, us < 100 ? 1 : 0) + " |";
    }
    text += "\n";
  }
  return text;
}

// The ratios of the rounds' pairs, in ascending order.
std::vector<double> ratios_of(const line& at, way above, way below) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < at.us[above].size(); ++i)
    ratios.push_back(at.us[above][i] / at.us[below][i]);
  std::sort(ratios.begin(), ratios.end());
  return ratios;
}

// median (quarters) lowest to highest
std::string spread_text(const std::vector<double>& sorted) {
  if (sorted.empty()) return "none";
  const std::size_t last = sorted.size() - 1;
  return number(median(sorted), 3) + " (" + number(sorted[last / 4], 3) + " to " +
         number(sorted[last - last / 4], 3) + ") " + number(sorted.front(), 3) + " to " +
         number(sorted.back(), 3);
}

std::string pairs_table(const std::vector<line>& lines) {
  std::string text =
      "| from, to | vmm / by hand, new: median (middle half) lowest to highest | vmm / by hand, "
      "cached: median (middle half) lowest to highest |\n| --- | --- | --- |\n";
  for (const line& each : lines) {
    text += "| " + size_text(each.size) + ", " + size_text(2 * each.size) + " | " +
            spread_text(ratios_of(each, vmm_new, hand_new)) + " | " +
            spread_text(ratios_of(each, vmm_cached, hand_cached)) + " |\n";
  }
  return text;
}

std::string ratios_table(const std::vector<line>& lines) {
  std::string text =
      "| from, to | cuMemAlloc / vmm, new | cuMemAlloc / vmm, cached | warm pool / vmm, cached "
      "|\n| --- | --- | --- | --- |\n";
  for (const line& each : lines) {
    text += "| " + size_text(each.size) + ", " + size_text(2 * each.size) + " |";
    for (const auto& [above, below] :
         {std::pair{plain, vmm_new}, {plain, vmm_cached}, {pool, vmm_cached}})
      text += " " + number(median(ratios_of(each, above, below)), 1) + " |";
    text += "\n";
  }
  return text;
}

struct settings : report_words {
  unsigned repeat_count = 15;
  bool quick = false;
};

page page_of(const settings& how, const vmm::cuda_driver& driver) {
  return {.path = how.markdown,
          .title = "Doubling a buffer with its data",
          .head = head_of(how.head, driver),
          .about = "Microseconds, medians of " + std::to_string(how.repeat_count) +
                   " interleaved runs, the stream synchronised at the end, contents checked on "
                   "the device after each run. Ratios are medians over pairs of runs that follow "
                   "one another, in turns the one first and the other.",
          .command = "./run bench resize"};
}

constexpr const char* usage =
    "usage: bench_resize [--quick] [--repeat N] [--markdown FILE] [--head TEXT]\n";

}  // namespace

int main(int count, char** words) {
  settings how;
  option_list(usage)
      .flag("--quick", how.quick)
      .count("--repeat", how.repeat_count)
      .page(how)
      .read(count, words);
  vmm::cuda_driver driver = open_device();
  const std::vector<std::uint64_t> sizes =
      how.quick ? std::vector<std::uint64_t>{8 * mib, 64 * mib}
                : std::vector<std::uint64_t>{64 * mib, 512 * mib, 1536 * mib, 8192 * mib};
  rig r(driver);
  std::vector<line> lines;
  for (const std::uint64_t size : sizes)
    lines.push_back({size, measure(r, size, how.repeat_count)});
  publish(page_of(how, driver),
          times_table(lines) + "\n" + pairs_table(lines) + "\n" + ratios_table(lines));
  return 0;
}

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

#include "../gpu_tests/rig.hpp"
#include "device.hpp"
#include "report.hpp"

namespace {

using vmm::gpu::mib;

constexpr std::uint64_t seed = 0x5eed;

// ---- the device, the clock and the contents -----------------------------------------------------

class rig : public vmm::gpu::rig {
 public:
  explicit rig(vmm::cuda_driver& on) : vmm::gpu::rig(on) {
    enter(on);
    keep_pool_warm();
  }

  // Microseconds of `work`, the device's part included.
  template <class Work>
  double time(Work&& work) {
    finish();
    return time_us([&] {
      work();
      finish();
    });
  }

  void fill(vmm::address_range range) { must(try_fill(range, seed)); }
  // The whole of `range` holds the pattern.
  void verify(vmm::address_range range, const char* what) {
    const std::uint64_t wrong = must(try_count(range, seed));
    if (wrong != 0) stop(std::string(what) + ": " + std::to_string(wrong) + " wrong words");
  }
  // The old data is there, and all of the new range can be written and read.
  void verify_grown(vmm::address_range grown, std::uint64_t old_bytes, const char* what) {
    verify({grown.base, old_bytes}, what);
    fill(grown);
    verify(grown, what);
  }
  // Gives the asynchronous pool's memory back to the device.
  void empty_pool() {
    const auto trim = call_of<PFN_cuMemPoolTrimTo_v11020>(driver, "cuMemPoolTrimTo", 11020);
    finish();
    trim(pool_, 0);
  }

  const vmm::stream_handle stream = streams[0];

 private:
  // The asynchronous pool keeps what is freed: the warm case.
  void keep_pool_warm() {
    const auto default_pool =
        call_of<PFN_cuDeviceGetDefaultMemPool_v11020>(driver, "cuDeviceGetDefaultMemPool", 11020);
    const auto set =
        call_of<PFN_cuMemPoolSetAttribute_v11020>(driver, "cuMemPoolSetAttribute", 11020);
    std::uint64_t all = ~0ull;
    must(default_pool(&pool_, driver.home().ordinal), "cuDeviceGetDefaultMemPool");
    must(set(pool_, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all), "cuMemPoolSetAttribute");
  }

  CUmemoryPool pool_ = nullptr;
};

// ---- the ways to double a buffer ----------------------------------------------------------------

// Each prepares, times the doubling from `size` bytes, checks, and undoes everything.

template <class Allocate, class Free>
double by_copying(rig& r, std::uint64_t size, const char* what, Allocate&& allocate, Free&& free) {
  const CUdeviceptr old = allocate(size);
  r.fill({{old}, size});
  CUdeviceptr grown = 0;
  const double us = r.time([&] {
    grown = allocate(2 * size);
    must(r.driver.copy({{grown}, {old}, size, r.stream}));
    free(old);
  });
  r.verify_grown({{grown}, 2 * size}, size, what);
  free(grown);
  return us;
}

double by_allocating(rig& r, std::uint64_t size) {
  const auto allocate = call_of<PFN_cuMemAlloc_v3020>(r.driver, "cuMemAlloc", 3020);
  const auto release = call_of<PFN_cuMemFree_v3020>(r.driver, "cuMemFree", 3020);
  return by_copying(
      r, size, "cuMemAlloc and copy",
      [&](std::uint64_t bytes) {
        CUdeviceptr at = 0;
        must(allocate(&at, bytes), "cuMemAlloc");
        return at;
      },
      [&](CUdeviceptr at) { must(release(at), "cuMemFree"); });
}

double by_pool(rig& r, std::uint64_t size) {
  const auto allocate = call_of<PFN_cuMemAllocAsync_v11020>(r.driver, "cuMemAllocAsync", 11020);
  const auto release = call_of<PFN_cuMemFreeAsync_v11020>(r.driver, "cuMemFreeAsync", 11020);
  const auto stream = vmm::native_stream<CUstream>(r.stream);
  return by_copying(
      r, size, "cuMemAllocAsync and copy",
      [&](std::uint64_t bytes) {
        CUdeviceptr at = 0;
        must(allocate(&at, bytes, stream), "cuMemAllocAsync");
        return at;
      },
      [&](CUdeviceptr at) { must(release(at, stream), "cuMemFreeAsync"); });
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
  (void)m.trim(0);
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
  (void)m.trim(0);
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

std::string growth_text(const line& of) {
  return size_text(of.size) + ", " + size_text(2 * of.size);
}

std::string times_table(const std::vector<line>& lines) {
  table rows;
  for (const line& each : lines) {
    rows.row().text("from, to", growth_text(each));
    for (std::size_t i = 0; i < way_count; ++i) {
      const double us = median(each.us[i]);
      rows.figure(way_names[i], us, us < 100 ? 1 : 0);
    }
  }
  return rows.markdown();
}

// The ratios of the rounds' pairs, in ascending order.
std::vector<double> sorted_ratios(const line& at, way above, way below) {
  std::vector<double> ratios = ratios_of(at.us[above], at.us[below]);
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
  const std::string what = ": median (middle half) lowest to highest";
  table rows;
  for (const line& each : lines)
    rows.row()
        .text("from, to", growth_text(each))
        .text("vmm / by hand, new" + what, spread_text(sorted_ratios(each, vmm_new, hand_new)))
        .text("vmm / by hand, cached" + what,
              spread_text(sorted_ratios(each, vmm_cached, hand_cached)));
  return rows.markdown();
}

std::string ratios_table(const std::vector<line>& lines) {
  table rows;
  for (const line& each : lines)
    rows.row()
        .text("from, to", growth_text(each))
        .figure("cuMemAlloc / vmm, new", median(ratios_of(each.us[plain], each.us[vmm_new])), 1)
        .figure("cuMemAlloc / vmm, cached", median(ratios_of(each.us[plain], each.us[vmm_cached])),
                1)
        .figure("warm pool / vmm, cached", median(ratios_of(each.us[pool], each.us[vmm_cached])),
                1);
  return rows.markdown();
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

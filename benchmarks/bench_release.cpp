// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// bench_release: the cost of releasing memory to a CUDA device, and of the waits that it causes.
// The driver's create and release of one handle, on an idle device and while a kernel runs; then
// allocations from a pool while another thread trims it, beside the same without a trim.

#include "../gpu_tests/rig.hpp"
#include "device.hpp"
#include "report.hpp"

namespace {

using vmm::gpu::mib;

constexpr std::size_t repeat_count = 5;
constexpr std::uint64_t spin_ns = 60'000'000;
constexpr auto pause = std::chrono::milliseconds(20);

using vmm::gpu::rig;

// ---- one handle ---------------------------------------------------------------------------------

struct handle_times {
  std::vector<double> create_us{};
  std::vector<double> unmap_us{};
  std::vector<double> release_us{};
};

void take(rig& r, std::uint64_t size_bytes, bool is_busy, handle_times& into) {
  vmm::cuda_driver& d = r.driver;
  const vmm::address_range range = must(d.reserve({.size_bytes = size_bytes}));
  const vmm::access_grant all[] = {{d.home(), vmm::access::read_write}};
  if (is_busy) must(r.kernels.spin(spin_ns, r.streams[0]));
  vmm::physical_handle handle = vmm::physical_handle::none;
  into.create_us.push_back(
      time_us([&] { handle = must(d.create({.size_bytes = size_bytes, .where = d.home()})); }));
  must(d.map({range.base, size_bytes, handle, 0}));
  must(d.set_access(range, all));
  into.unmap_us.push_back(time_us([&] { must(d.unmap(range)); }));
  into.release_us.push_back(time_us([&] { must(d.release(handle)); }));
  must(d.synchronize_stream(r.streams[0]));
  must(d.free_reservation(range));
  std::this_thread::sleep_for(pause);
}

std::string handle_table(rig& r, const std::vector<std::uint64_t>& sizes) {
  table rows;
  for (const std::uint64_t size_bytes : sizes) {
    handle_times idle;
    handle_times busy;
    for (std::size_t i = 0; i < repeat_count; ++i) {
      take(r, size_bytes, false, idle);
      take(r, size_bytes, true, busy);
    }
    rows.row()
        .text("one handle of", std::to_string(size_bytes / mib) + " MiB")
        .figure("create, idle", median(idle.create_us), 1)
        .figure("create, a kernel runs", median(busy.create_us), 1)
        .figure("unmap, idle", median(idle.unmap_us), 1)
        .figure("unmap, a kernel runs", median(busy.unmap_us), 1)
        .figure("release, idle", median(idle.release_us), 1)
        .figure("release, a kernel runs", median(busy.release_us), 1);
  }
  return rows.markdown();
}

// ---- a pool under trim --------------------------------------------------------------------------

struct waits {
  std::vector<double> warm_us{};    // an allocation and a free that need no driver
  std::vector<double> growth_us{};  // an allocation that needs new memory
  double trim_ms = 0;
  std::uint64_t trimmed_bytes = 0;
};

/// A pool with much free memory in handles of one size, and a stream that keeps a little of it.
class trimmed_pool {
 public:
  trimmed_pool(rig& r, std::uint64_t handle_bytes, std::uint64_t free_bytes)
      : rig_(r), pool_(r.driver, options(handle_bytes)) {
    std::vector<vmm::address> spare;
    for (std::uint64_t held = 0; held < free_bytes; held += handle_bytes)
      spare.push_back(must(pool_.allocate(handle_bytes, stream_)));
    kept_ = must(pool_.allocate(handle_bytes / 2, stream_));
    for (const vmm::address at : spare) must(pool_.free(at, stream_));
    must(pool_.synchronize());
  }
  trimmed_pool(const trimmed_pool&) = delete;
  trimmed_pool& operator=(const trimmed_pool&) = delete;

  [[nodiscard]] waits measure(bool does_trim) {
    waits seen;
    std::atomic<bool> is_done = false;
    must(rig_.kernels.spin(spin_ns * 4, rig_.streams[0]));
    std::thread worker([&] {
      if (does_trim) {
        seen.trim_ms = time_us([&] { seen.trimmed_bytes = pool_.trim(0).released_bytes; }) / 1e3;
      } else {
        std::this_thread::sleep_for(pause);
      }
      is_done = true;
    });
    // Requests beyond free memory: the first ones of each size take the memory that the trim
    // leaves.
    std::vector<vmm::address> grown;
    while (!is_done && grown.size() < 256) {
      seen.warm_us.push_back(time_us([&] { touch(); }));
      if (seen.warm_us.size() % 64 == 0)
        seen.growth_us.push_back(time_us([&] { grown.push_back(grow()); }));
    }
    worker.join();
    for (const vmm::address at : grown) must(other_->free(at, stream_));
    must(rig_.driver.synchronize_stream(rig_.streams[0]));
    return seen;
  }
  /// Where the requests that grow go: the same pool, or one beside it.
  void grow_in(vmm::stream_pool& pool) { other_ = &pool; }
  [[nodiscard]] vmm::stream_pool& pool() { return pool_; }
  void close() {
    must(pool_.free(kept_, stream_));
    must(pool_.synchronize());
  }

 private:
  static vmm::pool_options options(std::uint64_t handle_bytes) {
    vmm::pool_options out;
    out.policy.handle_bytes_max = handle_bytes;
    return out;
  }
  void touch() {
    const vmm::address at = must(pool_.allocate(4096, stream_));
    must(pool_.free(at, stream_));
  }
  [[nodiscard]] vmm::address grow() { return must(other_->allocate(48 * mib, stream_)); }

  rig& rig_;
  vmm::stream_handle stream_ = vmm::stream_handle::default_stream;
  vmm::stream_pool pool_;
  vmm::stream_pool* other_ = &pool_;
  vmm::address kept_{};
};

double largest(const std::vector<double>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

void add(std::uint64_t handle_bytes, const char* what, const waits& seen, table& into) {
  into.row()
      .text("handles", std::to_string(handle_bytes / mib) + " MiB")
      .text("meanwhile", what)
      .count("MiB given back", seen.trimmed_bytes / mib)
      .figure("trim, ms", seen.trim_ms, 1)
      .count("pairs without the driver", seen.warm_us.size())
      .figure("median us", median(seen.warm_us), 2)
      .figure("largest us", largest(seen.warm_us), 1)
      .count("allocations of 48 MiB", seen.growth_us.size())
      .figure("median us", median(seen.growth_us), 1)
      .figure("largest us", largest(seen.growth_us), 1);
}

std::string pool_table(rig& r, const std::vector<std::uint64_t>& handle_sizes,
                       std::uint64_t free_bytes) {
  table rows;
  for (const std::uint64_t handle_bytes : handle_sizes) {
    {
      trimmed_pool under_test(r, handle_bytes, free_bytes);
      add(handle_bytes, "no trim", under_test.measure(false), rows);
      add(handle_bytes, "a trim, the same pool", under_test.measure(true), rows);
      under_test.close();
    }
    trimmed_pool under_test(r, handle_bytes, free_bytes);
    vmm::stream_pool beside(r.driver);
    under_test.grow_in(beside);
    add(handle_bytes, "a trim, growth in another pool", under_test.measure(true), rows);
    under_test.close();
  }
  return rows.markdown();
}

constexpr const char* usage = "usage: bench_release [--quick] [--markdown FILE] [--head TEXT]\n";

}  // namespace

int main(int count, char** words) {
  report_words page;
  bool is_quick = false;
  option_list(usage).flag("--quick", is_quick).page(page).read(count, words);
  vmm::cuda_driver driver = open_device();
  rig r(driver);
  const std::vector<std::uint64_t> sizes =
      is_quick ? std::vector<std::uint64_t>{2 * mib, 64 * mib}
               : std::vector<std::uint64_t>{2 * mib, 64 * mib, 128 * mib, 256 * mib, 1024 * mib};
  const std::vector<std::uint64_t> handle_sizes =
      is_quick ? std::vector<std::uint64_t>{64 * mib}
               : std::vector<std::uint64_t>{64 * mib, 256 * mib};
  const std::string tables =
      "Microseconds, medians of " + std::to_string(repeat_count) + ".\n\n" +
      handle_table(r, sizes) +
      "\nA thread allocates and frees 4 KiB and now and then allocates 48 MiB more, while another "
      "trims the pool and a kernel runs. Each pool has " +
      std::string(is_quick ? "0.5" : "8") + " GiB free.\n\n" +
      pool_table(r, handle_sizes, (is_quick ? 512 : 8192) * mib);
  publish({.path = page.markdown,
           .title = "Releasing memory, and the waits it causes",
           .head = head_of(page.head, driver),
           .about = "",
           .command = "./run bench release"},
          tables);
  return 0;
}

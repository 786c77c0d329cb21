// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// bench_memory: how fast kernels run on memory of different make: cuMemAlloc's, the stream-ordered
// pool's (new, and after a trace has been through it), and mappings of handles of one size by hand.
// All arrays exist at the same time, each round runs every kernel on every make once, and medians
// are reported. The kernels' results are checked on the device.

#include "../gpu_tests/rig.hpp"
#include "device.hpp"
#include "report.hpp"
#include "traces.hpp"

namespace {

using vmm::gpu::mib;

constexpr std::uint64_t source_seed = 17;
constexpr std::uint64_t second_seed = 99;
constexpr std::size_t launches_a_sample = 4;

struct settings : report_words {
  std::string trace;  // played through the pool before its second set of arrays
  std::uint64_t array_bytes = 4096 * mib;
  unsigned round_count = 9;
  std::vector<std::uint64_t> handle_bytes{2 * mib,  8 * mib,   32 * mib,
                                          64 * mib, 128 * mib, 256 * mib};
};

// ---- makes of memory ----------------------------------------------------------------------------

/// Three arrays of one make.
struct arrays {
  vmm::address target{};
  vmm::address source{};
  vmm::address second{};
};

/// Where arrays come from; gives them back at the end.
class maker {
 public:
  maker() = default;
  maker(const maker&) = delete;
  maker& operator=(const maker&) = delete;
  virtual ~maker() = default;
  [[nodiscard]] virtual vmm::address make(std::uint64_t size_bytes) = 0;
};

class plain_maker : public maker {
 public:
  explicit plain_maker(vmm::cuda_driver& driver)
      : allocate_(call_of<PFN_cuMemAlloc_v3020>(driver, "cuMemAlloc", 3020)),
        free_(call_of<PFN_cuMemFree_v3020>(driver, "cuMemFree", 3020)) {
    // cuMemAlloc works in the thread's current context.
    enter(driver);
  }
  ~plain_maker() override {
    for (const CUdeviceptr at : made_) free_(at);
  }
  [[nodiscard]] vmm::address make(std::uint64_t size_bytes) override {
    CUdeviceptr at = 0;
    if (allocate_(&at, size_bytes) != CUDA_SUCCESS) stop("cuMemAlloc refuses");
    made_.push_back(at);
    return {at};
  }

 private:
  PFN_cuMemAlloc_v3020 allocate_;
  PFN_cuMemFree_v3020 free_;
  std::vector<CUdeviceptr> made_;
};

class handle_maker : public maker {
 public:
  handle_maker(vmm::cuda_driver& driver, std::uint64_t handle_bytes)
      : driver_(driver), handle_bytes_(handle_bytes) {}
  ~handle_maker() override {
    for (const vmm::address_range& range : ranges_) {
      must(driver_.unmap(range));
      must(driver_.free_reservation(range));
    }
    for (const vmm::physical_handle handle : handles_) must(driver_.release(handle));
  }
  [[nodiscard]] vmm::address make(std::uint64_t size_bytes) override {
    const vmm::address_range range = must(driver_.reserve({.size_bytes = size_bytes}));
    ranges_.push_back(range);
    const vmm::access_grant all[] = {{driver_.home(), vmm::access::read_write}};
    const std::uint64_t part_bytes = std::min(handle_bytes_, size_bytes);
    for (std::uint64_t at = 0; at < size_bytes; at += part_bytes) {
      const vmm::physical_handle handle =
          must(driver_.create({.size_bytes = part_bytes, .where = driver_.home()}));
      handles_.push_back(handle);
      must(driver_.map({range.base + at, part_bytes, handle, 0}));
      must(driver_.set_access({range.base + at, part_bytes}, all));
    }
    return range.base;
  }

 private:
  vmm::cuda_driver& driver_;
  std::uint64_t handle_bytes_;
  std::vector<vmm::address_range> ranges_;
  std::vector<vmm::physical_handle> handles_;
};

class pool_maker : public maker {
 public:
  explicit pool_maker(vmm::cuda_driver& driver) : pool_(driver) {}
  /// Plays the trace, so that free memory has the layout that a program would leave.
  void play(const vmm::tools::trace& input) {
    std::vector<vmm::address> live(input.slot_count);
    for (const vmm::tools::event& now : input.events) {
      vmm::address& at = live[now.slot];
      if (now.kind == vmm::tools::event_kind::allocate) {
        at = must(pool_.allocate(now.size_bytes, vmm::stream_handle::default_stream));
      } else {
        must(pool_.free(at, vmm::stream_handle::default_stream));
        at = {};
      }
    }
    for (const vmm::address at : live)
      if (at) must(pool_.free(at, vmm::stream_handle::default_stream));
  }
  [[nodiscard]] vmm::address make(std::uint64_t size_bytes) override {
    return must(pool_.allocate(size_bytes, vmm::stream_handle::default_stream));
  }

 private:
  vmm::stream_pool pool_;
};

// ---- kernels ------------------------------------------------------------------------------------

enum kernel : std::size_t { copy_engine, copy_kernel, triad, gather, kernel_count };

class bench {
 public:
  bench(vmm::cuda_driver& on, std::uint64_t array_bytes) : rig_(on), array_bytes_(array_bytes) {}

  void prepare(const arrays& a) {
    rig_.fill({a.target, array_bytes_}, 1, stream_);
    rig_.fill({a.source, array_bytes_}, source_seed, stream_);
    rig_.fill({a.second, array_bytes_}, second_seed, stream_);
    rig_.finish();
  }

  /// Microseconds of one launch.
  [[nodiscard]] double time(kernel which, const arrays& a) {
    rig_.finish();
    return time_us([&] {
             for (std::size_t i = 0; i < launches_a_sample; ++i) launch(which, a);
             rig_.finish();
           }) /
           launches_a_sample;
  }

  /// Each kernel once, with its target looked at.
  void verify(const arrays& a, const std::string& make) {
    launch(copy_engine, a);
    expect(a.target, source_seed, make + ", memcpy");
    launch(triad, a);
    expect(a.target, 3 * second_seed - 2 * source_seed, make + ", triad");
    launch(copy_kernel, a);
    expect(a.target, source_seed, make + ", copy");
    launch(gather, a);
    rig_.finish();
    expect_gathered(a.target, make);
  }

 private:
  void launch(kernel which, const arrays& a) {
    const vmm::tools::array_request request{a.target, a.source, a.second, array_bytes_, stream_};
    switch (which) {
      case copy_engine: return must(rig_.driver.copy({a.target, a.source, array_bytes_, stream_}));
      case copy_kernel: return must(rig_.kernels.copy(request));
      case triad: return must(rig_.kernels.triad(request));
      default: return must(rig_.kernels.gather(request));
    }
  }

  void expect(vmm::address at, std::uint64_t seed, const std::string& what) {
    rig_.clear();
    rig_.check({at, array_bytes_}, seed, stream_);
    const std::uint64_t wrong = rig_.wrong_words();
    if (wrong != 0) stop(what + ": " + std::to_string(wrong) + " wrong words");
  }

  // A part of the words, compared on the host.
  void expect_gathered(vmm::address at, const std::string& make) {
    const std::uint64_t word_count = array_bytes_ / 8;
    std::vector<std::uint64_t> words(std::min<std::uint64_t>(word_count, 1 << 16));
    const std::uint64_t first = word_count - words.size();
    must(rig_.driver.read(std::as_writable_bytes(std::span(words)), at + first * 8));
    for (std::size_t i = 0; i < words.size(); ++i) {
      const std::uint64_t place = vmm::tools::gather_place(first + i, word_count);
      if (words[i] != source_seed + place * vmm::tools::pattern_step) stop(make + ": gather");
    }
  }

  vmm::gpu::rig rig_;
  vmm::stream_handle stream_ = rig_.streams[0];
  std::uint64_t array_bytes_;
};

// ---- the tables ---------------------------------------------------------------------------------

struct make {
  std::string name;
  std::unique_ptr<maker> from;
  arrays memory{};
  std::array<std::vector<double>, kernel_count> samples{};
};

// GB/s by the bytes that have to move; for gather, words a nanosecond.
double rate(kernel which, std::uint64_t array_bytes, double us) {
  const auto bytes = static_cast<double>(array_bytes);
  if (which == gather) return bytes / 8 / us / 1e3;
  return bytes * (which == triad ? 3 : 2) / us / 1e3;
}

std::string table_of(const std::vector<make>& makes, std::uint64_t array_bytes) {
  constexpr std::array<const char*, kernel_count> titles{"memcpy", "copy", "triad", "gather"};
  std::array<double, kernel_count> plain{};
  for (std::size_t k = 0; k < kernel_count; ++k) plain[k] = median(makes.front().samples[k]);
  table rows;
  for (const make& each : makes) {
    rows.row().text("memory", each.name);
    for (const kernel k : {copy_engine, copy_kernel, triad, gather})
      rows.figure(std::string(titles[k]) + (k == gather ? " G/s" : " GB/s"),
                  rate(k, array_bytes, median(each.samples[k])), k == gather ? 2 : 0);
    for (std::size_t k = 0; k < kernel_count; ++k)
      rows.figure(titles[k], plain[k] / median(each.samples[k]), 3);
  }
  return rows.markdown();
}

std::vector<make> make_all(vmm::cuda_driver& driver, const settings& how) {
  std::vector<make> all;
  all.push_back({"cuMemAlloc", std::make_unique<plain_maker>(driver)});
  all.push_back({"pool, new", std::make_unique<pool_maker>(driver)});
  if (!how.trace.empty()) {
    const vmm::tools::trace input = read_or_stop(how.trace);
    auto used = std::make_unique<pool_maker>(driver);
    used->play(input);
    all.push_back({"pool, after " + input.name, std::move(used)});
  }
  for (const std::uint64_t bytes : how.handle_bytes) {
    all.push_back({"handles of " + std::to_string(bytes / mib) + " MiB",
                   std::make_unique<handle_maker>(driver, bytes)});
  }
  for (make& each : all) {
    each.memory.source = each.from->make(how.array_bytes);
    each.memory.second = each.from->make(how.array_bytes);
    each.memory.target = each.from->make(how.array_bytes);
  }
  return all;
}

void measure(vmm::cuda_driver& driver, std::vector<make>& all, const settings& how) {
  bench r(driver, how.array_bytes);
  for (make& each : all) {
    r.prepare(each.memory);
    r.verify(each.memory, each.name);
  }
  for (unsigned round = 0; round <= how.round_count; ++round) {
    for (std::size_t k = 0; k < kernel_count; ++k) {
      for (make& each : all) {
        const double us = r.time(static_cast<kernel>(k), each.memory);
        if (round > 0) each.samples[k].push_back(us);  // the first round warms everything up
      }
    }
  }
}

page page_of(const settings& how, const vmm::cuda_driver& driver) {
  return {.path = how.markdown,
          .title = "Kernels on memory of different make",
          .head = head_of(how.head, driver),
          .about = "Three arrays of " + std::to_string(how.array_bytes / mib) +
                   " MiB of each make, all there at once; medians of " +
                   std::to_string(how.round_count) + " interleaved rounds of " +
                   std::to_string(launches_a_sample) +
                   " launches. memcpy is the driver's own copy, copy a kernel; triad reads two "
                   "arrays and writes one; gather reads 64-bit words in a scattered order and "
                   "writes them in order. Bytes read and written are counted. The last four "
                   "columns are cuMemAlloc's time by this memory's: above 1 is faster than "
                   "cuMemAlloc. Targets were checked on the device.",
          .command = "./run bench memory"};
}

std::uint64_t array_bytes_of(const char* value) {
  const auto bytes = vmm::parse_bytes(value);
  if (!bytes || *bytes < 2 * mib || (*bytes & (*bytes - 1)) != 0)
    stop("--array takes a power of two from 2MiB on; not '" + std::string(value) + "'");
  return *bytes;
}

constexpr const char* usage =
    "usage: bench_memory [--array SIZE] [--rounds N] [--trace FILE] [--markdown FILE] "
    "[--head TEXT]\nSIZE is a power of two from 2MiB on; four gigabytes otherwise.\n";

}  // namespace

int main(int count, char** words) {
  settings how;
  option_list(usage)
      .text("--trace", how.trace)
      .value("--array", [&](const char* value) { how.array_bytes = array_bytes_of(value); })
      .count("--rounds", how.round_count)
      .page(how)
      .read(count, words);
  vmm::cuda_driver driver = open_device();
  std::vector<make> all = make_all(driver, how);
  measure(driver, all, how);
  publish(page_of(how, driver), table_of(all, how.array_bytes));
  return 0;
}

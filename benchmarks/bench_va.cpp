// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// bench_va - what an allocation and a free of an address range cost, and how much address space
// they waste, beside the textbook free list of std::map and std::multimap.
//
// Random churn: sizes from a bounded power law (exponent 1.2, 1 to 4096 granules), a random victim
// replaced by a block of a random new size. 64 frees and 64 allocations are timed together; victims
// and sizes are drawn outside the timed part; the slowest 2 % of these are dropped as the
// machine's, not the allocator's. Both allocators see the same requests, in turns, in one run; a
// figure is the median of the turns. The harness (a call, two array accesses, 1/64 of reading the
// clock twice) is not subtracted. Refusals count every request that some hole could have held, here
// and in two workloads that are served wholly only by an exact fit.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "report.hpp"

import vmm.va;

namespace {

constexpr std::uint32_t range_granules = 1u << 23;  // 16 TiB of 2 MiB granules
constexpr std::size_t batch = 64;
using engine = std::mt19937_64;

/// The textbook: holes by address and by size, best fit, each entry knowing the other.
class std_pair {
 public:
  struct handle {
    std::uint32_t offset;
    std::uint32_t count;
  };

  std_pair() { add(0, range_granules); }

  [[gnu::noinline]] handle take(std::uint32_t count) {
    const auto found = by_size_.lower_bound(count);
    if (found == by_size_.end()) {
      ++refusals;
      return {0, 0};
    }
    const auto hole = found->second;
    const std::uint32_t offset = hole->first;
    const std::uint32_t rest = hole->second.count - count;
    by_size_.erase(found);
    by_address_.erase(hole);
    if (rest != 0) add(offset + count, rest);
    high_water_ = std::max(high_water_, offset + count);
    return {offset, count};
  }

  [[gnu::noinline]] void give(handle block) {
    const auto after = by_address_.lower_bound(block.offset);
    if (after != by_address_.begin()) {
      const auto before = std::prev(after);
      if (before->first + before->second.count == block.offset) {
        block = {before->first, before->second.count + block.count};
        remove(before);
      }
    }
    if (after != by_address_.end() && block.offset + block.count == after->first) {
      block.count += after->second.count;
      remove(after);
    }
    add(block.offset, block.count);
  }

  [[nodiscard]] std::uint32_t high_water() const { return high_water_; }

  std::uint64_t refusals = 0;

 private:
  struct hole;
  using address_map = std::map<std::uint32_t, hole>;
  using size_map = std::multimap<std::uint32_t, address_map::iterator>;
  struct hole {
    std::uint32_t count;
    size_map::iterator size;
  };

  void add(std::uint32_t offset, std::uint32_t count) {
    const auto at = by_address_.emplace(offset, hole{count, {}}).first;
    at->second.size = by_size_.emplace(count, at);
  }
  void remove(address_map::iterator at) {
    by_size_.erase(at->second.size);
    by_address_.erase(at);
  }

  std::uint32_t high_water_ = 0;
  address_map by_address_;
  size_map by_size_;
};

class vmm_range {
 public:
  using handle = vmm::block_id;

  handle take(std::uint32_t count) {
    const auto block = range_.allocate({count});
    if (block) return *block;
    ++refusals;
    return vmm::block_id::none;
  }
  void give(handle block) { range_.free(block); }
  [[nodiscard]] std::uint32_t high_water() const { return range_.high_water_granules(); }

  std::uint64_t refusals = 0;

 private:
  vmm::range_allocator range_ =
      vmm::range_allocator::create({.count_granules = range_granules}).value();
};

/// Sizes drawn beforehand, so that drawing one in between costs next to nothing and leaves caches
/// and branch predictors alone.
std::vector<std::uint16_t> draw_sizes() {
  constexpr double exponent = 1.2;
  constexpr double size_max = 4096;
  engine random(11);
  std::uniform_real_distribution<double> uniform(0, 1);
  std::vector<std::uint16_t> sizes(1 << 20);
  for (std::uint16_t& size : sizes) {
    const double rest = 1 - uniform(random) * (1 - std::pow(size_max, -exponent));
    const double drawn = std::clamp(std::pow(rest, -1 / exponent), 1.0, size_max);
    size = static_cast<std::uint16_t>(drawn);
  }
  return sizes;
}

/// One allocator, its live blocks, and the random requests that it is sent.
template <class Subject>
class churn {
 public:
  churn(std::size_t live_count, std::uint64_t seed) : random_(seed), next_size_(random_()) {
    for (std::size_t i = 0; i < live_count; ++i) {
      const std::uint32_t count = next_size();
      live_.push_back({subject_.take(count), count});
      count_live(count, 0);
    }
  }

  /// Nanoseconds for a free and an allocation, over `batches` of 64 of each.
  double replace(std::size_t batches) {
    using clock = std::chrono::steady_clock;
    std::vector<double> times;
    times.reserve(batches);
    for (std::size_t b = 0; b < batches; ++b) {
      draw();
      const auto start = clock::now();
      for (std::size_t i = 0; i < batch; ++i) subject_.give(handles_[i]);
      for (std::size_t i = 0; i < batch; ++i) handles_[i] = subject_.take(counts_[i]);
      times.push_back(std::chrono::duration<double, std::nano>(clock::now() - start).count());
      for (std::size_t i = 0; i < batch; ++i) {
        count_live(counts_[i], live_[victims_[i]].count);
        live_[victims_[i]] = {handles_[i], counts_[i]};
      }
    }
    if (times.empty()) return 0;
    const auto kept = times.begin() + static_cast<std::ptrdiff_t>(times.size() - times.size() / 50);
    std::nth_element(times.begin(), kept - 1, times.end());
    return std::accumulate(times.begin(), kept, 0.0) /
           (static_cast<double>(kept - times.begin()) * batch);
  }

  [[nodiscard]] std::uint64_t refusals() const { return subject_.refusals; }
  /// Highest address ever in use over most granules ever live.
  [[nodiscard]] double high_water_mark() const {
    return static_cast<double>(subject_.high_water()) / static_cast<double>(peak_live_);
  }

 private:
  struct entry {
    typename Subject::handle handle;
    std::uint32_t count;
  };

  std::uint32_t next_size() {
    static const std::vector<std::uint16_t> sizes = draw_sizes();
    return sizes[next_size_++ % sizes.size()];
  }

  void draw() {
    for (std::size_t i = 0; i < batch; ++i) {
      do {
        victims_[i] = random_() % live_.size();
      } while (std::find(victims_, victims_ + i, victims_[i]) != victims_ + i);
      handles_[i] = live_[victims_[i]].handle;
      counts_[i] = next_size();
    }
  }

  void count_live(std::uint32_t taken, std::uint32_t given) {
    now_live_ += taken - std::uint64_t{given};
    peak_live_ = std::max(peak_live_, now_live_);
  }

  engine random_;
  std::size_t next_size_ = 0;
  Subject subject_;
  std::vector<entry> live_;
  std::size_t victims_[batch] = {};
  std::uint32_t counts_[batch] = {};
  typename Subject::handle handles_[batch] = {};
  std::uint64_t now_live_ = 0;
  std::uint64_t peak_live_ = 0;
};

struct row {
  std::size_t live_count;
  double std_ns = 0;
  double vmm_ns = 0;
  double ratio = 0;
};

/// Batches that replace every live block once, on average.
std::size_t round_batches(std::size_t live_count) { return live_count / batch + 1; }

/// Allocators take turns. Before each, a part of its round is not counted: the other one has had
/// the caches.
row measure(std::size_t live_count, std::uint64_t& refusals) {
  const int turns = live_count < 1'000'000 ? 15 : 7;
  const std::size_t counted =
      std::clamp(round_batches(live_count), std::size_t{1'000}, std::size_t{4'000});
  churn<std_pair> textbook(live_count, 1);
  churn<vmm_range> ours(live_count, 1);
  (void)textbook.replace(2 * round_batches(live_count));
  (void)ours.replace(2 * round_batches(live_count));
  std::vector<double> std_ns;
  std::vector<double> vmm_ns;
  std::vector<double> ratios;
  for (int turn = 0; turn < turns; ++turn) {
    (void)textbook.replace(counted / 4);
    std_ns.push_back(textbook.replace(counted));
    (void)ours.replace(counted / 4);
    vmm_ns.push_back(ours.replace(counted));
    ratios.push_back(vmm_ns.back() / std_ns.back());
  }
  refusals += ours.refusals();
  return {live_count, median(std_ns), median(vmm_ns), median(ratios)};
}

struct marks {
  double textbook = 0;
  double ours = 0;
};

constexpr int mark_seeds = 15;
constexpr int mark_rounds = 10;

/// How far up addresses were ever in use, over the most that was ever live: the median of
/// mark_seeds runs that fill the range and then replace each block mark_rounds times, on average.
marks measure_marks(std::size_t live_count, std::uint64_t& refusals) {
  std::vector<double> textbook;
  std::vector<double> ours;
  for (std::uint64_t seed = 1; seed <= mark_seeds; ++seed) {
    churn<std_pair> a(live_count, seed);
    churn<vmm_range> b(live_count, seed);
    (void)a.replace(mark_rounds * round_batches(live_count));
    (void)b.replace(mark_rounds * round_batches(live_count));
    textbook.push_back(a.high_water_mark());
    ours.push_back(b.high_water_mark());
    refusals += b.refusals();
  }
  return {median(textbook), median(ours)};
}

/// Blocks of [low, high] granules fill a range exactly; every other one is freed, and its size
/// requested again, in another order. A perfect fit serves all.
std::uint64_t refusals_in_exact_refill(std::uint32_t low, std::uint32_t high) {
  constexpr std::size_t block_count = 60'000;
  engine random(7);
  std::vector<std::uint32_t> counts(block_count);
  for (std::uint32_t& count : counts)
    count = low + static_cast<std::uint32_t>(random() % (high - low + 1));
  auto range = vmm::range_allocator::create({
      .count_granules = std::accumulate(counts.begin(), counts.end(), 0u),
  });
  std::vector<vmm::block_id> blocks;
  for (const std::uint32_t count : counts) blocks.push_back(range->allocate({count}).value());
  std::vector<std::uint32_t> again;
  for (std::size_t i = 0; i < block_count; i += 2) {
    range->free(blocks[i]);
    again.push_back(counts[i]);
  }
  std::shuffle(again.begin(), again.end(), random);
  return static_cast<std::uint64_t>(std::count_if(again.begin(), again.end(), [&](std::uint32_t n) {
    return !range->allocate({n}).has_value();
  }));
}

struct report {
  std::vector<row> rows;
  marks high_water{};
  std::uint64_t refusals = 0;
};

constexpr std::size_t judged_count = 100'000;

const row& judged(const report& all) {
  return *std::find_if(all.rows.begin(), all.rows.end(),
                       [](const row& r) { return r.live_count == judged_count; });
}

void print_json(const report& all) {
  std::printf("{\"ratio_to_std\": %.4f, \"high_water_mark\": %.4f, \"refusals\": %llu",
              judged(all).ratio, all.high_water.ours,
              static_cast<unsigned long long>(all.refusals));
  std::printf(", \"ns_per_pair\": {");
  for (const row& r : all.rows) {
    std::printf("%s\"%zu\": %.2f", &r == all.rows.data() ? "" : ", ", r.live_count, r.vmm_ns);
  }
  std::printf("}}\n");
}

void print_table(const report& all) {
  std::printf("An allocation and a free in random churn, ns (medians of turns):\n\n");
  std::printf("  %12s %22s %12s %8s\n", "live blocks", "std::map + multimap", "vmm.va", "ratio");
  for (const row& r : all.rows) {
    std::printf("  %12zu %22.1f %12.1f %8.4f\n", r.live_count, r.std_ns, r.vmm_ns, r.ratio);
  }
  std::printf("\nHighest address in use over peak live, %zu blocks, each replaced %d times:\n",
              judged_count, mark_rounds);
  std::printf("  vmm.va %.3f, std %.3f (medians of %d seeds)\n", all.high_water.ours,
              all.high_water.textbook, mark_seeds);
  std::printf("Requests refused that a hole could have held: %llu\n",
              static_cast<unsigned long long>(all.refusals));
#ifndef NDEBUG
  std::printf("\nThis is not a release build: the figures above say little. Use ./run bench va.\n");
#endif
}

constexpr const char* usage = "usage: bench_va [--json]\n";

}  // namespace

int main(int argc, char** argv) {
  bool json = false;
  option_list(usage).flag("--json", json).read(argc, argv);
  report all;
  for (const std::size_t live_count : {1'000u, 10'000u, 100'000u, 1'000'000u}) {
    all.rows.push_back(measure(live_count, all.refusals));
  }
  all.high_water = measure_marks(judged_count, all.refusals);
  all.refusals += refusals_in_exact_refill(4096, 4127);
  all.refusals += refusals_in_exact_refill(64, 127);
  if (json) {
    print_json(all);
  } else {
    print_table(all);
  }
  return 0;
}

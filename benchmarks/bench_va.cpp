// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// bench_va - what an allocation and a free of an address range cost, and how much address space
// they waste, beside the textbook free list of std::map and std::multimap.
//
// Random churn: batches.hpp, in granules, victims among all. Both allocators see the same requests,
// in turns, in one run; a figure is the median of the turns. The harness (a call, two array
// accesses, 1/64 of reading the clock twice) is not subtracted. Refusals count every request that
// some hole could have held, here and in two workloads that are served wholly only by an exact fit.

#include "batches.hpp"
#include "report.hpp"

import vmm.va;

namespace {

constexpr std::uint32_t range_granules = 1u << 23;  // 16 TiB of 2 MiB granules

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

using textbook_churn = batch_churn<std_pair, 1>;
using vmm_churn = batch_churn<vmm_range, 1>;

constexpr std::size_t judged_count = 100'000;

struct report {
  table rows{};
  double ratio = 0;  // of judged_count
  std::uint64_t refusals = 0;
};

/// Allocators take turns. Before each, a part of its round is not counted: the other one has had
/// the caches.
void measure(std::size_t live_count, report& into) {
  const int turns = live_count < 1'000'000 ? 15 : 7;
  const std::size_t round = round_of(live_count);
  const std::size_t counted = std::clamp(round, std::size_t{1'000}, std::size_t{4'000});
  textbook_churn textbook(live_count);
  vmm_churn ours(live_count);
  (void)textbook.replace(2 * round);
  (void)ours.replace(2 * round);
  std::vector<double> std_ns;
  std::vector<double> vmm_ns;
  for (int turn = 0; turn < turns; ++turn) {
    (void)textbook.replace(counted / 4);
    std_ns.push_back(textbook.replace(counted));
    (void)ours.replace(counted / 4);
    vmm_ns.push_back(ours.replace(counted));
  }
  into.refusals += ours.subject().refusals;
  const double ratio = median(ratios_of(vmm_ns, std_ns));
  if (live_count == judged_count) into.ratio = ratio;
  into.rows.row()
      .count("live blocks", live_count, "count")
      .figure("std::map + multimap, ns", median(std_ns), 1, "std_ns")
      .figure("vmm.va", median(vmm_ns), 1, "ns_per_pair")
      .figure("ratio", ratio, 4, "ratio");
}

constexpr int mark_seeds = 15;
constexpr int mark_rounds = 10;

template <class Churn>
double high_water_of(std::size_t live_count, std::uint64_t seed, std::uint64_t& refusals) {
  Churn churn(live_count, seed);
  (void)churn.replace(mark_rounds * round_of(live_count));
  refusals += churn.subject().refusals;
  return static_cast<double>(churn.subject().high_water()) / static_cast<double>(churn.peak_live());
}

/// How far up addresses were ever in use, over the most that was ever live: the median of
/// mark_seeds runs that fill the range and then replace each block mark_rounds times, on average.
template <class Churn>
double measure_mark(std::size_t live_count, std::uint64_t& refusals) {
  std::vector<double> marks;
  for (std::uint64_t seed = 1; seed <= mark_seeds; ++seed)
    marks.push_back(high_water_of<Churn>(live_count, seed, refusals));
  return median(marks);
}

/// Blocks of [low, high] granules fill a range exactly; every other one is freed, and its size
/// requested again, in another order. A perfect fit serves all.
std::uint64_t refusals_in_exact_refill(std::uint32_t low, std::uint32_t high) {
  constexpr std::size_t block_count = 60'000;
  batch_engine random(7);
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

constexpr const char* usage = "usage: bench_va [--json]\n";

}  // namespace

int main(int argc, char** argv) {
  bool json = false;
  option_list(usage).flag("--json", json).read(argc, argv);
  report all;
  for (const std::size_t live_count : {1'000u, 10'000u, 100'000u, 1'000'000u})
    measure(live_count, all);
  std::uint64_t of_textbook = 0;  // its refusals
  const double mark = measure_mark<vmm_churn>(judged_count, all.refusals);
  const double std_mark = measure_mark<textbook_churn>(judged_count, of_textbook);
  all.refusals += refusals_in_exact_refill(4096, 4127);
  all.refusals += refusals_in_exact_refill(64, 127);
  if (json) {
    print("{\"ratio_to_std\": " + number(all.ratio, 4) + ", \"high_water_mark\": " +
          number(mark, 4) + ", \"refusals\": " + std::to_string(all.refusals) +
          ", \"rows\": " + all.rows.json() + "}\n");
    return 0;
  }
  print("An allocation and a free in random churn, ns (medians of turns):\n\n" +
        all.rows.markdown() + "\nHighest address in use over peak live, " +
        std::to_string(judged_count) + " blocks, each replaced " + std::to_string(mark_rounds) +
        " times:\n  vmm.va " + number(mark, 3) + ", std " + number(std_mark, 3) + " (medians of " +
        std::to_string(mark_seeds) + " seeds)\nRequests refused that a hole could have held: " +
        std::to_string(all.refusals) + "\n");
#ifndef NDEBUG
  print("\nThis is not a release build: the figures above say little. Use ./run bench va.\n");
#endif
  return 0;
}

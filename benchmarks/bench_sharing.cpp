// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// bench_sharing: what an allocation or a free costs when 1 to 16 threads make them at once on a
// CUDA device, each on a stream of its own, all of one allocator: vmm's pool, cuMemAllocAsync, and
// what a library of peers (benchmarks/peers/peer.h) brings. What the threads do is in churn.hpp. No
// kernel runs: times are the host's.

#include "churn.hpp"
#include "contenders.hpp"
#include "device.hpp"
#include "report.hpp"

namespace {

struct settings : report_words {
  std::string peers;  // a library
  unsigned round_count = 5;
  std::uint64_t event_count = 400'000;  // of all threads
};

/// An allocator and the streams of its threads, as churn.hpp needs them.
class source {
 public:
  source(vmm::cuda_driver& driver, contender& rival, unsigned threads)
      : driver_(driver), rival_(rival) {
    for (unsigned i = 0; i < threads; ++i) streams_.push_back(must(driver.create_stream()));
    rival_.open();
  }
  source(const source&) = delete;
  source& operator=(const source&) = delete;
  ~source() {
    for (const vmm::stream_handle each : streams_) must(driver_.synchronize_stream(each));
    rival_.close();
    for (const vmm::stream_handle each : streams_) must(driver_.destroy_stream(each));
  }
  void begin_thread() { enter(driver_); }
  [[nodiscard]] void* take(std::uint64_t size_bytes, unsigned thread) {
    const vmm::address at = must(rival_.allocate(size_bytes, streams_[thread]));
    return at.as<void>();
  }
  void give(void* at, unsigned thread) {
    must(rival_.free(vmm::address::from_native(at), streams_[thread]));
  }

 private:
  vmm::cuda_driver& driver_;
  contender& rival_;
  std::vector<vmm::stream_handle> streams_;
};

using contenders = std::vector<std::unique_ptr<contender>>;

/// One row: nanoseconds an event, the best of the rounds, for each contender.
std::vector<figure> measure_all(vmm::cuda_driver& driver, const contenders& all,
                                const settings& how, unsigned threads) {
  const std::uint64_t pairs = std::max<std::uint64_t>(1, how.event_count / 2 / threads);
  std::vector<figure> best(all.size());
  for (unsigned round = 0; round < how.round_count; ++round) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      source from(driver, *all[i], threads);
      measure(from, threads, pairs, best[i]);
    }
  }
  return best;
}

table measure_counts(vmm::cuda_driver& driver, const contenders& all, const settings& how) {
  table rows;
  std::vector<figure> alone;
  for (const unsigned threads : thread_counts) {
    const std::vector<figure> best = measure_all(driver, all, how, threads);
    if (alone.empty()) alone = best;
    rows.row().count("threads", threads);
    for (std::size_t i = 0; i < best.size(); ++i)
      rows.figure(all[i]->name() + ", ns", best[i].wall_ns, 1)
          .figure("speed-up", alone[i].wall_ns / best[i].wall_ns, 2)
          .figure("by the pool's", best[i].wall_ns / best.front().wall_ns, 2);
  }
  return rows;
}

page page_of(const settings& how, const vmm::cuda_driver& driver) {
  return {
      .path = how.markdown,
      .title = "Threads that share an allocator",
      .head = head_of(how.head, driver),
      .about = "Nanoseconds of wall time over the allocations and frees of all threads, " +
               std::to_string(how.event_count) + " of them; the best of " +
               std::to_string(how.round_count) +
               " rounds, in which the allocators take turns, each from nothing and warmed "
               "before. Speed-up: how many times the events of one thread are served in that "
               "time. No kernel runs. Asking nothing is `capture_rule::unchecked`; announced and "
               "forgotten is a pool whose warm calls query no driver. What the threads do is in "
               "benchmarks/churn.hpp.",
      .command = "gpu_tests/gpu.sh sharing"};
}

constexpr const char* usage =
    "usage: bench_sharing [--peers LIBRARY] [--rounds N] [--events N] [--markdown FILE] "
    "[--head TEXT]\n";

}  // namespace

int main(int count, char** words) {
  settings how;
  option_list(usage)
      .text("--peers", how.peers)
      .count("--rounds", how.round_count)
      .count("--events", how.event_count)
      .page(how)
      .read(count, words);
  vmm::cuda_driver driver = open_device();
  enter(driver);
  contenders all;
  all.push_back(std::make_unique<vmm_pool>("vmm, pool", driver));
  vmm::pool_options unchecked;
  unchecked.capture = vmm::capture_rule::unchecked;
  all.push_back(std::make_unique<vmm_pool>("the same, asking nothing", driver, unchecked));
  all.push_back(
      std::make_unique<vmm_pool>("the same, announced and forgotten", driver, promising()));
  all.push_back(std::make_unique<driver_pool>(driver));
  if (!how.peers.empty())
    for (std::unique_ptr<contender>& each : open_peers(how.peers)) all.push_back(std::move(each));
  publish(page_of(how, driver), measure_counts(driver, all, how).markdown());
  return 0;
}

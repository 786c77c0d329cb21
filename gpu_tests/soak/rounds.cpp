// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Rounds of free, reuse and defragment while kernels still run. Each round keeps a stream busy,
// checks and frees blocks on their streams, hands some to another stream, and allocates on any of
// them, now and then more than any free stretch holds, so that free memory has to move. The host
// waits for nothing. A block that is handed out, moved or unmapped too early is overwritten before
// its last check has run, and the check counts the words.

#include "../rig.hpp"

namespace vmm::gpu {
namespace {

constexpr std::uint64_t kib = 1 << 10;
constexpr std::uint64_t round_count_default = 10'000;
constexpr std::uint64_t budget_bytes = 2048 * mib;
constexpr std::uint64_t live_bytes_max = 1400 * mib;
constexpr std::size_t blocks_a_round = 3;
constexpr std::size_t stream_count = 4;

/// A block whose contents a kernel wrote, in whole words.
struct block {
  vmm::address_range words{};
  std::uint64_t size_bytes = 0;
  std::uint64_t seed = 0;
  vmm::stream_handle stream{};
};

/// What the rounds showed beside the pool's own numbers.
struct account {
  std::uint64_t still_running = 0;  // rounds whose first kernel still ran when all was queued
  std::uint64_t freed_count = 0;
  std::uint64_t checked_bytes = 0;
  std::uint64_t handed_over = 0;
  std::uint64_t refused = 0;  // requests for which memory was too short
};

class rounds {
 public:
  rounds(rig& r, const settings& how) : rig_(r), how_(how), chance_(how.seed) {
    vmm::pool_options options;
    options.policy = policy_of(how);
    options.budget_bytes = budget_bytes;
    pool_.emplace(r.driver, options);
    mark_ = must(r.driver.create_event());
  }

  void play() {
    const vmm::stream_handle busy = any_stream();
    rig_.spin((100 + below(300)) * 1000, busy);
    must(rig_.driver.record_event(mark_, busy));
    for (std::size_t i = 0; i < blocks_a_round && !live_.empty(); ++i) free_one();
    if (below(4) == 0 && !live_.empty()) hand_over();
    for (std::size_t i = 0; i < blocks_a_round; ++i) allocate(some_size());
    if (below(8) == 0) allocate_more_than_any_hole();
    while (live_bytes_ > live_bytes_max) free_one();
    if (!must(rig_.driver.query_event(mark_))) ++seen_.still_running;
  }

  void finish() {
    while (!live_.empty()) free_one();
    numbers_ = pool_->statistics();  // before the wait that follows, which is ours
    must(pool_->synchronize());
    must(pool_->validate());
    must(rig_.driver.destroy_event(mark_));
  }

  [[nodiscard]] const account& seen() const { return seen_; }
  [[nodiscard]] const vmm::pool_statistics& numbers() const { return numbers_; }

 private:
  [[nodiscard]] std::uint64_t below(std::uint64_t limit) { return chance_() % limit; }

  [[nodiscard]] vmm::stream_handle any_stream() { return rig_.streams[below(stream_count)]; }

  [[nodiscard]] std::uint64_t some_size() {
    switch (below(4)) {
      case 0: return 1 + below(256 * kib);
      case 1: return 1 + below(4 * mib);
      case 2: return 1 + below(16 * mib);
      default: return 1 + below(64 * mib);
    }
  }

  void allocate(std::uint64_t size_bytes) {
    const vmm::stream_handle stream = any_stream();
    const auto got = pool_->allocate(size_bytes, stream);
    if (!got) {
      const vmm::errc code = got.error().code;
      if (code != vmm::errc::out_of_memory && code != vmm::errc::over_budget)
        stop(vmm::describe(got.error()));
      ++seen_.refused;
      return;
    }
    const vmm::address_range words{*got, std::max<std::uint64_t>(1, size_bytes / 8) * 8};
    live_.push_back({words, size_bytes, chance_(), stream});
    live_bytes_ += size_bytes;
    rig_.fill(words, live_.back().seed, stream);
  }

  // Holes are what neighbours left: a request of a third of all free memory fits into few of them.
  void allocate_more_than_any_hole() {
    const std::uint64_t free_bytes = budget_bytes - std::min(budget_bytes, live_bytes_);
    allocate(free_bytes / 3 / mib * mib + mib);
  }

  void free_one() {
    std::swap(live_[below(live_.size())], live_.back());
    const block gone = live_.back();
    live_.pop_back();
    live_bytes_ -= gone.size_bytes;
    rig_.check(gone.words, gone.seed, gone.stream);
    must(pool_->free(gone.words.base, how_.is_planted ? next_of(gone.stream) : gone.stream));
    ++seen_.freed_count;
    seen_.checked_bytes += gone.size_bytes / 8 * 8;
  }

  [[nodiscard]] vmm::stream_handle next_of(vmm::stream_handle stream) const {
    const auto at = std::ranges::find(rig_.streams, stream);
    return at + 1 == rig_.streams.end() ? rig_.streams.front() : *(at + 1);
  }

  void hand_over() {
    block& moved = live_[below(live_.size())];
    const vmm::stream_handle next = any_stream();
    rig_.order(moved.stream, next);
    moved.stream = next;
    ++seen_.handed_over;
  }

  rig& rig_;
  const settings& how_;
  std::mt19937_64 chance_;
  std::optional<vmm::stream_pool> pool_;
  std::vector<block> live_;
  std::uint64_t live_bytes_ = 0;
  account seen_;
  vmm::pool_statistics numbers_{};
  vmm::event_handle mark_{};
};

std::string row(const std::string& name, std::uint64_t value) {
  return "| " + name + " | " + std::to_string(value) + " |\n";
}

std::string table_of(const settings& how, std::uint64_t round_count, double seconds,
                     const rounds& played, std::uint64_t wrong_words) {
  const vmm::pool_statistics numbers = played.numbers();
  const account& seen = played.seen();
  std::string text = "| policy " + how.policy + (how.is_planted ? ", planted fault" : "") +
                     ", seed " + std::to_string(how.seed) + " | |\n| --- | --- |\n";
  text += row("rounds", round_count);
  text += row("rounds whose kernel still ran when all of the round was queued", seen.still_running);
  text += row("blocks freed, each checked by a kernel before", seen.freed_count);
  text += row("MiB checked", seen.checked_bytes / mib);
  text += row("blocks handed to another stream", seen.handed_over);
  text += row("requests met by memory that another stream freed", numbers.other_stream_count);
  text += row("requests that needed the driver", numbers.slow_count);
  text += row("handles moved", numbers.moved_count);
  text += row("waits put on the device", numbers.device_wait_count);
  text += row("waits of the host (memory was short)", numbers.host_wait_count);
  text += row("requests refused, memory was short", seen.refused);
  text += row("peak of memory held, MiB", numbers.peak_mapped_bytes / mib);
  text += row("wrong words", wrong_words);
  return text + text_of("| seconds | %.2f |\n\n", seconds);
}

}  // namespace

int run_rounds(const settings& how) {
  vmm::cuda_driver driver = open_device();
  rig r(driver, {.stream_count = stream_count});
  rounds play(r, how);
  const std::uint64_t round_count = how.count == 0 ? round_count_default : how.count;
  const double begin_us = now_us();
  for (std::uint64_t i = 0; i < round_count; ++i) play.play();
  play.finish();
  const std::uint64_t wrong_words = r.wrong_words();
  publish(how, table_of(how, round_count, (now_us() - begin_us) / 1e6, play, wrong_words));
  // The planted fault has to be found: otherwise the checks show nothing.
  return (wrong_words == 0) != how.is_planted ? 0 : 1;
}

}  // namespace vmm::gpu

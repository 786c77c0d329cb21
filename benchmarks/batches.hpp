// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Random churn, timed in batches: sizes from a bounded power law (exponent 1.2, 1 to 4096 units);
// 64 blocks are freed and 64 allocated in a timed batch, victims and sizes drawn outside it; the
// slowest 2 % of the batches are dropped as the machine's.
#pragma once

#include "../tools/program/standard.hpp"

constexpr std::size_t batch_size = 64;
constexpr std::size_t among_all = ~std::size_t{0};
using batch_engine = std::mt19937_64;

/// Batches that replace every live block once, on average.
inline std::size_t round_of(std::size_t live_count) { return live_count / batch_size + 1; }

/// Drawn beforehand, so that drawing one in between leaves caches and branch predictors alone.
inline const std::vector<std::uint16_t>& drawn_sizes() {
  static const std::vector<std::uint16_t> sizes = [] {
    constexpr double exponent = 1.2;
    constexpr double size_max = 4096;
    batch_engine random(11);
    std::uniform_real_distribution<double> uniform(0, 1);
    std::vector<std::uint16_t> made(1 << 20);
    for (std::uint16_t& size : made) {
      const double rest = 1 - uniform(random) * (1 - std::pow(size_max, -exponent));
      const double drawn = std::clamp(std::pow(rest, -1 / exponent), 1.0, size_max);
      size = static_cast<std::uint16_t>(drawn);
    }
    return made;
  }();
  return sizes;
}

/// One allocator, with take(size) and give(handle), its live blocks, and the requests that it is
/// sent, whose sizes are multiples of `Unit`.
template <class Subject, std::uint32_t Unit>
class batch_churn {
 public:
  explicit batch_churn(std::size_t live_count, std::uint64_t seed = 1) : random_(seed) {
    for (std::size_t i = 0; i < live_count; ++i) {
      const std::uint32_t size = next_size();
      live_.push_back({subject_->take(size), size});
      count_live(size, 0);
    }
  }

  /// Nanoseconds for a free and an allocation, over `batches` of 64 of each; victims are among the
  /// last `reach` blocks.
  double replace(std::size_t batches, std::size_t reach = among_all) {
    using clock = std::chrono::steady_clock;
    std::vector<double> times;
    times.reserve(batches);
    for (std::size_t b = 0; b < batches; ++b) {
      draw(reach);
      const auto start = clock::now();
      for (std::size_t i = 0; i < batch_size; ++i) subject_->give(handles_[i]);
      for (std::size_t i = 0; i < batch_size; ++i) handles_[i] = subject_->take(sizes_[i]);
      times.push_back(std::chrono::duration<double, std::nano>(clock::now() - start).count());
      for (std::size_t i = 0; i < batch_size; ++i) {
        count_live(sizes_[i], live_[victims_[i]].size);
        live_[victims_[i]] = {handles_[i], sizes_[i]};
      }
    }
    if (times.empty()) return 0;
    const auto kept = times.begin() + static_cast<std::ptrdiff_t>(times.size() - times.size() / 50);
    std::nth_element(times.begin(), kept - 1, times.end());
    return std::accumulate(times.begin(), kept, 0.0) /
           (static_cast<double>(kept - times.begin()) * batch_size);
  }

  [[nodiscard]] const Subject& subject() const { return *subject_; }
  /// The most that was ever live.
  [[nodiscard]] std::uint64_t peak_live() const { return peak_live_; }

 private:
  struct entry {
    typename Subject::handle handle;
    std::uint32_t size;
  };

  std::uint32_t next_size() { return drawn_sizes()[next_size_++ % drawn_sizes().size()] * Unit; }

  void draw(std::size_t reach) {
    const std::size_t from = live_.size() - std::min(reach, live_.size());
    for (std::size_t i = 0; i < batch_size; ++i) {
      do {
        victims_[i] = from + random_() % (live_.size() - from);
      } while (std::find(victims_, victims_ + i, victims_[i]) != victims_ + i);
      handles_[i] = live_[victims_[i]].handle;
      sizes_[i] = next_size();
    }
  }

  void count_live(std::uint32_t taken, std::uint32_t given) {
    now_live_ += taken - std::uint64_t{given};
    peak_live_ = std::max(peak_live_, now_live_);
  }

  batch_engine random_;
  std::size_t next_size_ = random_();
  std::unique_ptr<Subject> subject_ = std::make_unique<Subject>();
  std::vector<entry> live_;
  std::size_t victims_[batch_size] = {};
  std::uint32_t sizes_[batch_size] = {};
  typename Subject::handle handles_[batch_size] = {};
  std::uint64_t now_live_ = 0;
  std::uint64_t peak_live_ = 0;
};

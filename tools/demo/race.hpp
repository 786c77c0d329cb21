// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The demo's race: a vector that grows by mapping against one that grows as std::vector does. A
// stage is a driver, with functions that write and check numbers in its memory. It imports what it
// uses, so it is the last include of a file.
#pragma once

#include "../program/standard.hpp"

import vmm.containers;
import vmm.cuda;
import vmm.host;
import vmm.kernels;
import vmm.level_zero;

namespace demo {

using number = std::uint64_t;

inline constexpr std::uint64_t mib = 1 << 20;
inline constexpr std::uint64_t first_target_bytes = 4 * mib;
inline constexpr std::size_t warm_round_count = 3;

/// Numbers in memory.
struct numbers_at {
  vmm::address at{};
  std::uint64_t first = 0;  ///< which number the first one is
  std::uint64_t count = 0;
};

/// This machine's memory.
class host_stage {
 public:
  static constexpr const char* owner = "system, which clears it";

  explicit host_stage(vmm::host_driver& driver) : driver_(driver) {}
  [[nodiscard]] vmm::host_driver& driver() { return driver_; }

  [[nodiscard]] vmm::status write(const numbers_at& what) {
    number* const to = what.at.as<number>();
    for (std::uint64_t i = 0; i < what.count; ++i) to[i] = what.first + i;
    return {};
  }
  [[nodiscard]] vmm::result<std::uint64_t> count_wrong(const numbers_at& what) {
    const number* const from = what.at.as<const number>();
    std::uint64_t wrong_count = 0;
    for (std::uint64_t i = 0; i < what.count; ++i) wrong_count += from[i] != what.first + i;
    return wrong_count;
  }
  [[nodiscard]] vmm::status copy(vmm::address target, vmm::address source, std::uint64_t bytes) {
    std::memcpy(target.as<void>(), source.as<const void>(), bytes);
    return {};
  }

 private:
  vmm::host_driver& driver_;
};

/// A GPU: kernels write and check the numbers.
class gpu_stage {
 public:
  static constexpr const char* owner = "driver";

  [[nodiscard]] static vmm::result<gpu_stage> open(vmm::cuda_driver& driver) {
    auto kernels = vmm::tools::kernel_set::load(driver);
    if (!kernels) return kernels.error();
    return gpu_stage(driver, std::move(*kernels));
  }
  [[nodiscard]] vmm::cuda_driver& driver() { return *driver_; }

  [[nodiscard]] vmm::status write(const numbers_at& what) {
    if (auto begun = kernels_.fill(pattern_of(what)); !begun) return begun;
    return synchronize();
  }
  [[nodiscard]] vmm::result<std::uint64_t> count_wrong(const numbers_at& what) {
    vmm::manager memory(*driver_);
    vmm::vector<number> wrong(memory);
    if (auto made = wrong.resize(1); !made) return made.error();
    if (auto finished = synchronize(); !finished) return finished.error();
    auto begun = kernels_.check(pattern_of(what), wrong.data_address());
    if (begun) begun = synchronize();
    if (!begun) return begun.error();
    std::array<number, 1> count{};
    if (auto got = wrong.read(0, count); !got) return got.error();
    return count[0];
  }
  [[nodiscard]] vmm::status copy(vmm::address target, vmm::address source, std::uint64_t bytes) {
    const auto begun = driver_->copy({target, source, bytes, vmm::stream_handle::default_stream});
    return begun ? synchronize() : begun;
  }

 private:
  gpu_stage(vmm::cuda_driver& driver, vmm::tools::kernel_set kernels)
      : driver_(&driver), kernels_(std::move(kernels)) {}
  [[nodiscard]] vmm::status synchronize() {
    return driver_->synchronize_stream(vmm::stream_handle::default_stream);
  }
  // Number n is the pattern's word n.
  [[nodiscard]] static vmm::tools::pattern_request pattern_of(const numbers_at& what) {
    return {.range = {what.at, what.count * sizeof(number)},
            .seed = what.first * vmm::tools::pattern_step};
  }

  vmm::cuda_driver* driver_;
  vmm::tools::kernel_set kernels_;
};

/// A GPU under Level Zero: the numbers come and go through the host, a part at a time. The driver's
/// write and read follow no stream: each waits first for what is queued, as the zeros of a vector
/// that was made longer are.
class level_zero_stage {
 public:
  static constexpr const char* owner = "driver";

  explicit level_zero_stage(vmm::level_zero_driver& driver) : driver_(driver) {}
  [[nodiscard]] vmm::level_zero_driver& driver() { return driver_; }

  [[nodiscard]] vmm::status write(const numbers_at& what) {
    vmm::status outcome = synchronize();
    if (!outcome) return outcome;
    each_part(what, [&](vmm::address at, std::uint64_t first, std::span<number> part) {
      for (std::size_t i = 0; i < part.size(); ++i) part[i] = first + i;
      outcome = driver_.write(at, std::as_bytes(part));
      return outcome.has_value();
    });
    return outcome;
  }
  [[nodiscard]] vmm::result<std::uint64_t> count_wrong(const numbers_at& what) {
    std::uint64_t wrong_count = 0;
    vmm::status outcome = synchronize();
    if (!outcome) return outcome.error();
    each_part(what, [&](vmm::address at, std::uint64_t first, std::span<number> part) {
      outcome = driver_.read(std::as_writable_bytes(part), at);
      for (std::size_t i = 0; i < part.size(); ++i) wrong_count += part[i] != first + i;
      return outcome.has_value();
    });
    if (!outcome) return outcome.error();
    return wrong_count;
  }
  [[nodiscard]] vmm::status copy(vmm::address target, vmm::address source, std::uint64_t bytes) {
    const auto begun = driver_.copy({target, source, bytes, vmm::stream_handle::default_stream});
    return begun ? synchronize() : begun;
  }

 private:
  [[nodiscard]] vmm::status synchronize() {
    return driver_.synchronize_stream(vmm::stream_handle::default_stream);
  }
  template <class Body>
  void each_part(const numbers_at& what, Body&& body) {
    for (std::uint64_t done = 0; done < what.count; done += part_.size()) {
      const std::size_t count = std::min<std::uint64_t>(part_.size(), what.count - done);
      const std::span part = std::span(part_).first(count);
      if (!body(what.at + done * sizeof(number), what.first + done, part)) return;
    }
  }

  vmm::level_zero_driver& driver_;
  std::array<number, 1 << 16> part_{};
};

/// What the race needs of a vector of plain numbers: filled once, then doubled.
template <class Stage>
class mapping_vector {
 public:
  mapping_vector(vmm::manager& memory, Stage&, std::uint64_t most_count)
      : numbers_(memory, most_count) {}

  [[nodiscard]] vmm::status start(std::uint64_t count) { return numbers_.resize(count); }
  [[nodiscard]] vmm::status grow(std::uint64_t count) { return numbers_.reserve(count); }
  [[nodiscard]] vmm::address at() const { return numbers_.data_address(); }

 private:
  vmm::vector<number> numbers_;
};

/// Grows as std::vector does with plain numbers: new memory, one copy, the old memory freed. The
/// memory comes from the same manager on the same driver.
template <class Stage>
class copying_vector {
 public:
  copying_vector(vmm::manager& memory, Stage& stage, std::uint64_t)
      : memory_(memory), stage_(stage) {}
  copying_vector(const copying_vector&) = delete;
  copying_vector& operator=(const copying_vector&) = delete;
  ~copying_vector() {
    if (at_) (void)memory_.free(at_);
  }

  [[nodiscard]] vmm::status start(std::uint64_t count) { return grow(count); }
  [[nodiscard]] vmm::status grow(std::uint64_t count) {
    const vmm::result<vmm::address> fresh = memory_.allocate(count * sizeof(number));
    if (!fresh) return fresh.error();
    const vmm::address old = std::exchange(at_, *fresh);
    const std::uint64_t old_count = std::exchange(count_, count);
    if (!old) return {};
    if (auto copied = stage_.copy(at_, old, old_count * sizeof(number)); !copied) return copied;
    return memory_.free(old);
  }
  [[nodiscard]] vmm::address at() const { return at_; }

 private:
  vmm::manager& memory_;
  Stage& stage_;
  vmm::address at_{};
  std::uint64_t count_ = 0;
};

/// Nanoseconds that one doubling took.
struct growth_times {
  double cold_ns = 0;  ///< memory fresh from the system
  double warm_ns = 0;  ///< memory that the manager keeps: the median of some rounds
};

/// One round: a full vector doubles; then every number is checked and the new half is written.
template <class Vector, class Stage>
[[nodiscard]] vmm::result<double> double_once(vmm::manager& memory, Stage& stage,
                                              std::uint64_t count) {
  Vector numbers{memory, stage, count};
  const std::uint64_t half = count / 2;
  if (const vmm::status started = numbers.start(half); !started) return started.error();
  if (auto written = stage.write({numbers.at(), 0, half}); !written) return written.error();
  const auto begin = std::chrono::steady_clock::now();
  const vmm::status grown = numbers.grow(count);
  const std::chrono::duration<double, std::nano> taken = std::chrono::steady_clock::now() - begin;
  if (!grown) return grown.error();
  const auto wrong_count = stage.count_wrong({numbers.at(), 0, half});
  if (!wrong_count) return wrong_count.error();
  if (*wrong_count != 0) return vmm::refuse(vmm::errc::internal, "a number changed in growing");
  const vmm::address behind = numbers.at() + half * sizeof(number);
  if (auto written = stage.write({behind, half, count - half}); !written) return written.error();
  return taken.count();
}

template <template <class> class Vector, class Stage>
[[nodiscard]] vmm::result<growth_times> race(Stage& stage, std::uint64_t size_bytes) {
  vmm::manager memory{stage.driver()};
  const std::uint64_t count = size_bytes / sizeof(number);
  growth_times out;
  std::array<double, warm_round_count> warm{};
  for (std::size_t round = 0; round <= warm_round_count; ++round) {
    const vmm::result<double> taken = double_once<Vector<Stage>>(memory, stage, count);
    if (!taken) return taken.error();
    (round == 0 ? out.cold_ns : warm[round - 1]) = *taken;
  }
  std::ranges::sort(warm);
  out.warm_ns = warm[warm_round_count / 2];
  return out;
}

}  // namespace demo

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The clock of calls: the processor's counter if its rate is constant, which takes a third of the
// time of the system's clock to read; else that clock. A count becomes nanoseconds when the report
// is written, by the advance of both since start().
//
// Thread safety: all of it but start(), which is called once and before the others.
#pragma once

#include <cstdint>
#include <ctime>

#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#endif

namespace vmm::preload {

class call_clock {
 public:
  void start() noexcept {
    has_counter_ = has_counter();
    first_ = read_both();
  }

  [[nodiscard]] std::uint64_t now() const noexcept {
    return has_counter_ ? counter() : system_ns();
  }

  /// Of a sum of differences.
  [[nodiscard]] std::uint64_t nanoseconds(std::uint64_t ticks) const noexcept {
    if (!has_counter_) return ticks;
    const moment last = read_both();
    const std::uint64_t gone = last.ticks - first_.ticks;
    if (gone == 0) return 0;
    __extension__ using wide = unsigned __int128;
    return static_cast<std::uint64_t>(static_cast<wide>(ticks) * (last.ns - first_.ns) / gone);
  }

 private:
  struct moment {
    std::uint64_t ticks = 0;
    std::uint64_t ns = 0;
  };
  // Both at once: of a few readings the least disturbed.
  [[nodiscard]] static moment read_both() noexcept {
    moment best;
    std::uint64_t least = ~std::uint64_t{0};
    for (int i = 0; i < 4; ++i) {
      const std::uint64_t before = counter();
      const std::uint64_t ns = system_ns();
      const std::uint64_t took = counter() - before;
      if (took > least) continue;
      least = took;
      best = {before + took / 2, ns};
    }
    return best;
  }

  [[nodiscard]] static std::uint64_t system_ns() noexcept {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000u +
           static_cast<std::uint64_t>(now.tv_nsec);
  }

#if defined(__x86_64__)
  // Invariant: its rate is constant in all power states.
  [[nodiscard]] static bool has_counter() noexcept {
    constexpr unsigned leaf = 0x8000'0007;
    constexpr unsigned invariant = 1u << 8;
    unsigned a = 0;
    unsigned b = 0;
    unsigned c = 0;
    unsigned d = 0;
    return __get_cpuid(leaf, &a, &b, &c, &d) != 0 && (d & invariant) != 0;
  }
  [[nodiscard]] static std::uint64_t counter() noexcept { return __rdtsc(); }
#elif defined(__aarch64__)
  [[nodiscard]] static bool has_counter() noexcept { return true; }
  [[nodiscard]] static std::uint64_t counter() noexcept {
    std::uint64_t value = 0;
    asm volatile("mrs %0, cntvct_el0" : "=r"(value));
    return value;
  }
#else
  [[nodiscard]] static bool has_counter() noexcept { return false; }
  [[nodiscard]] static std::uint64_t counter() noexcept { return 0; }
#endif

  bool has_counter_ = false;
  moment first_;
};

}  // namespace vmm::preload

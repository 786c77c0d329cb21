// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:move_budget - what moves of handles cost the driver, for an event of the program. Not
// exported.
//
// The mean is exponential over `span_events` events, so that a program's first moves, and a short
// run of them, weigh little.
//
// I1  The mean is not negative, and without moves it only falls.
//
// Thread safety: none of its own; under the lock of the pool's state. Cost: O(1), on growths alone.
export module vmm.stream:move_budget;

import vmm.base;
import vmm.std;

namespace vmm {

class move_budget {
 public:
  static constexpr std::uint64_t span_events = 200'000;
  static constexpr double raise_max = 0.23;
  /// Of one move, as on an idle H200: a driver that is slow for a time costs no memory for good.
  static constexpr std::uint64_t move_ns_max = 17'500;

  /// So many moves took the driver `each_ns`, after `events` allocations and frees of the pool.
  void add(std::uint64_t move_count, std::uint64_t each_ns, std::uint64_t events) noexcept {
    check(events >= last_events_, "a pool's events are counted backwards");
    const std::uint64_t spent_ns = move_count * std::min(each_ns, move_ns_max);
    mean_ns_ = mean_ns(events) + static_cast<double>(spent_ns) / span_events;
    last_events_ = events;
    check(mean_ns_ >= 0, "move_budget I1: moves have taken less than no time");
  }
  /// The time of moves for an event.
  [[nodiscard]] double mean_ns(std::uint64_t events) const noexcept {
    check(events >= last_events_, "a pool's events are counted backwards");
    constexpr auto span = static_cast<double>(span_events);
    return mean_ns_ * span / (span + static_cast<double>(events - last_events_));
  }
  /// What is added to a headroom: nothing up to the budget, raise_max from twice that on.
  [[nodiscard]] double raise(std::uint64_t events, std::uint64_t budget_ns) const noexcept {
    check(budget_ns != 0, "moves have a budget of nothing");
    const double excess = mean_ns(events) / static_cast<double>(budget_ns) - 1;
    return std::clamp(excess, 0.0, 1.0) * raise_max;
  }

 private:
  double mean_ns_ = 0;
  std::uint64_t last_events_ = 0;
};

}  // namespace vmm

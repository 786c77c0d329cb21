// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:forecast - which requests made a pool grow lately, and so may come again. Not
// exported. docs/decisions/0026 has the reasons.
//
// I1  It has the newest requests that the pool grew for, requests_max at most, newest first.
//
// Thread safety: none of its own; under the lock of growth. Cost: O(requests_max).
export module vmm.stream:forecast;

import :geometry;
import vmm.std;
import vmm.support;

namespace vmm {

class growth_forecast {
 public:
  static constexpr std::size_t requests_max = 16;
  using list = std::array<stream_request, requests_max>;

  /// The pool grows for this request.
  void note(const stream_request& request) noexcept {
    check(request.count_granules != 0, "a growth is for nothing");
    std::move_backward(newest_.begin(), newest_.end() - 1, newest_.end());
    newest_.front() = request;
    count_ = std::min(count_ + 1, requests_max);
  }
  /// For each stream the largest of them, the stream of the newest first. Answers how many.
  [[nodiscard]] std::size_t largest_of_each(list& out) const noexcept {
    std::size_t found = 0;
    for (const stream_request& each : std::span(newest_).first(count_)) {
      const auto known = std::find_if(out.begin(), out.begin() + found, [&](const auto& other) {
        return other.stream == each.stream;
      });
      if (known == out.begin() + found) {
        out[found++] = each;
      } else {
        known->count_granules = std::max(known->count_granules, each.count_granules);
      }
    }
    check((found == 0) == (count_ == 0), "requests are of no stream");
    return found;
  }

 private:
  list newest_{};
  std::size_t count_ = 0;
};

}  // namespace vmm

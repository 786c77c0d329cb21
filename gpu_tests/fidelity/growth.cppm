// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.fidelity:growth - the driver calls of a growing program, timed: what a host takes for them,
// over what the fake charges, is how much slower it is than the host of the fake's prices.
//
// Thread safety: one growth a thread. Cost: the driver's.
export module vmm.fidelity:growth;

import vmm.backend;
import vmm.std;
import :scratch;

namespace vmm::fidelity {

export inline constexpr std::uint64_t mib = 1ull << 20;

/// Handles of one size, each created, mapped behind the last and given access, and all kept until
/// the end. No call meets memory or records that an earlier release left.
export class growth {
 public:
  /// Room for `handle_count_max` handles. Throws setup_failure when the driver refuses it.
  growth(driver_ref driver, std::uint64_t handle_bytes, std::uint32_t handle_count_max)
      : s_(driver),
        handle_bytes_(handle_bytes),
        room_(must(s_.try_reserve({.size_bytes = handle_bytes * handle_count_max}))) {}

  /// Makes `count` more, or as many as there is room for. Throws setup_failure when the driver
  /// refuses a call; what it made before stays.
  void grow(std::uint32_t count) {
    const access_grant one[] = {{s_.b.home(), access::read_write}};
    for (; count > 0 && made_bytes_ < room_.size_bytes; --count) {
      const address_range next{room_.base + made_bytes_, handle_bytes_};
      const auto made =
          must(s_.keep(timed([&] { return s_.b.create({handle_bytes_, s_.b.home()}); })));
      const map_request request{next.base, handle_bytes_, made, 0};
      must(s_.keep_mapping(request, timed([&] { return s_.b.map(request); })));
      must(timed([&] { return s_.b.set_access(next, one); }));
      made_bytes_ += handle_bytes_;
    }
  }
  /// Of all calls but the reservation.
  [[nodiscard]] std::chrono::nanoseconds taken() const noexcept { return taken_; }

 private:
  template <class T>
  static T must(const result<T>& outcome) {
    if (!outcome) throw setup_failure{outcome.error()};
    return *outcome;
  }
  static void must(const status& outcome) {
    if (!outcome) throw setup_failure{outcome.error()};
  }
  template <class Call>
  auto timed(Call&& call) -> decltype(call()) {
    const auto begin = std::chrono::steady_clock::now();
    auto answer = call();
    taken_ += std::chrono::steady_clock::now() - begin;
    return answer;
  }

  scratch s_;
  std::uint64_t handle_bytes_;
  address_range room_;
  std::uint64_t made_bytes_ = 0;
  std::chrono::nanoseconds taken_{};
};

}  // namespace vmm::fidelity

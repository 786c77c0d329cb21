// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:segment_list - the segments of a pool, by number. Not exported.
//
// A segment keeps its number and its place in memory as long as the pool lives.
//
// Thread safety: none of its own; under the lock of the pool's state. Cost: O(1).
export module vmm.stream:segment_list;

import vmm.backend;
import vmm.base;
import vmm.std;
import :geometry;
import :mappings;
import :segment;

namespace vmm {

class segment_list {
 public:
  [[nodiscard]] inline std::uint32_t count() const noexcept {
    return static_cast<std::uint32_t>(all_.size());
  }
  [[nodiscard]] inline bool empty() const noexcept { return all_.empty(); }
  [[nodiscard]] inline segment& at(std::uint32_t number) noexcept {
    check(number < all_.size(), "no segment has this number");
    return *all_[number];
  }
  [[nodiscard]] inline const segment& at(std::uint32_t number) const noexcept {
    check(number < all_.size(), "no segment has this number");
    return *all_[number];
  }
  /// The segment that the mapping lies in.
  [[nodiscard]] inline segment& of(const mapping& m) noexcept { return at(m.segment); }
  [[nodiscard]] inline const segment& of(const mapping& m) const noexcept { return at(m.segment); }
  [[nodiscard]] inline address address_of(const mapping& m) const noexcept {
    const address where = of(m).address_of(m.offset);
    check(of(m).where().range.contains(where), "a mapping lies outside of its segment");
    return where;
  }
  /// Errors: out_of_host_memory.
  [[nodiscard]] status add(std::unique_ptr<segment> made) noexcept {
    if (status room = reserve_more(all_, 1); !room) return no_record_memory;
    all_.push_back(std::move(made));
    return {};
  }
  template <class Visitor>
  void for_each(Visitor&& visitor) {
    for (const auto& in : all_) visitor(*in);
  }
  [[nodiscard]] inline auto begin() const noexcept { return all_.begin(); }
  [[nodiscard]] inline auto end() const noexcept { return all_.end(); }

 private:
  std::vector<std::unique_ptr<segment>> all_;
};

}  // namespace vmm

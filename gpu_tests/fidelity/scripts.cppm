// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.fidelity:scripts - twenty synthetic call sequences, to compare the driver time that the fake
// predicts with what a device takes.
//
// A script is data: rounds of create, map, access, unmap and release over one reservation, with the
// handle sizes and the reuse that allocators show. play() runs one against a driver. A growth makes
// handles and keeps them, some at a time.
//
// Thread safety: scripts and times are values; one growth a thread. Cost: the driver's.
export module vmm.fidelity:scripts;

import vmm.backend;
import vmm.std;
import :scratch;

namespace vmm::fidelity {

export inline constexpr std::uint64_t mib = 1ull << 20;

/// What a script does in each round with `handle_count` handles of `handle_bytes`.
export enum class pattern : std::uint8_t {
  make_and_drop,  ///< create, map, access each; unmap and release each
  remap,          ///< handles made once; each round maps them at new addresses and unmaps the old
  grow,           ///< each handle mapped behind the last and given access alone; dropped together
  span,           ///< all mapped, one set_access and one unmap over all
  alternate,      ///< handles of `handle_bytes` and of a quarter of it, dropped in reverse order
};

export struct script {
  const char* name;
  pattern shape;
  std::uint64_t handle_bytes;
  std::uint32_t handle_count;
  std::uint32_t round_count;
};

export inline constexpr std::array<script, 20> scripts{{
    {"make and drop, 2 MiB", pattern::make_and_drop, 2 * mib, 512, 2},
    {"make and drop, 8 MiB", pattern::make_and_drop, 8 * mib, 256, 2},
    {"make and drop, 32 MiB", pattern::make_and_drop, 32 * mib, 128, 2},
    {"make and drop, 64 MiB", pattern::make_and_drop, 64 * mib, 64, 4},
    {"make and drop, 256 MiB", pattern::make_and_drop, 256 * mib, 32, 4},
    {"make and drop, 1 GiB", pattern::make_and_drop, 1024 * mib, 16, 4},
    {"make and drop, 4 GiB", pattern::make_and_drop, 4096 * mib, 4, 4},
    {"make and drop, 16 GiB", pattern::make_and_drop, 16384 * mib, 1, 16},
    {"remap, 2 MiB", pattern::remap, 2 * mib, 256, 4},
    {"remap, 32 MiB", pattern::remap, 32 * mib, 128, 4},
    {"remap, 128 MiB", pattern::remap, 128 * mib, 64, 4},
    {"remap, 1 GiB", pattern::remap, 1024 * mib, 8, 8},
    {"grow, 2 MiB", pattern::grow, 2 * mib, 512, 2},
    {"grow, 20 MiB", pattern::grow, 20 * mib, 200, 2},
    {"grow, 64 MiB", pattern::grow, 64 * mib, 128, 2},
    {"span, 2 MiB", pattern::span, 2 * mib, 1024, 2},
    {"span, 32 MiB", pattern::span, 32 * mib, 256, 2},
    {"span, 512 MiB", pattern::span, 512 * mib, 16, 4},
    {"alternate, 16 MiB", pattern::alternate, 16 * mib, 256, 2},
    {"alternate, 128 MiB", pattern::alternate, 128 * mib, 64, 2},
}};

/// The calls of a script.
export enum class call_kind : std::uint8_t { reserve, create, map, set_access, unmap, release };
export inline constexpr std::array<const char*, 6> call_names{"reserve",    "create", "map",
                                                              "set_access", "unmap",  "release"};

/// Driver calls made and the wall time that they took, in nanoseconds, by kind.
export struct play_time {
  struct of_kind {
    std::uint64_t call_count = 0;
    std::uint64_t wall_ns = 0;
    std::uint64_t longest_ns = 0;
  };
  std::array<of_kind, call_names.size()> kinds{};

  [[nodiscard]] std::uint64_t call_count() const noexcept {
    std::uint64_t sum = 0;
    for (const of_kind& each : kinds) sum += each.call_count;
    return sum;
  }
  [[nodiscard]] std::uint64_t wall_ns() const noexcept {
    std::uint64_t sum = 0;
    for (const of_kind& each : kinds) sum += each.wall_ns;
    return sum;
  }
};

template <class T>
T must(const result<T>& outcome) {
  if (!outcome) throw setup_failure{outcome.error()};
  return *outcome;
}
inline void must(const status& outcome) {
  if (!outcome) throw setup_failure{outcome.error()};
}

/// Makes the calls of scripts, adds up what each took, and undoes what is left.
class timed_calls {
 public:
  explicit timed_calls(driver_ref driver) : s_(driver) {}
  [[nodiscard]] const play_time& taken() const noexcept { return taken_; }

 protected:
  struct piece {
    physical_handle memory;
    std::uint64_t size_bytes;
  };

  template <class Call>
  auto timed(call_kind kind, Call&& call) {
    const auto begin = std::chrono::steady_clock::now();
    auto answer = call();
    const auto end = std::chrono::steady_clock::now();
    const auto ns = static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(end - begin).count());
    play_time::of_kind& of = taken_.kinds[static_cast<std::size_t>(kind)];
    ++of.call_count;
    of.wall_ns += ns;
    of.longest_ns = std::max(of.longest_ns, ns);
    return answer;
  }
  address_range reserve(std::uint64_t size_bytes) {
    return must(s_.keep(timed(call_kind::reserve, [&] { return s_.b.reserve({size_bytes}); })));
  }
  void make(address at, std::uint64_t size_bytes, bool with_access) {
    const physical_request request{.size_bytes = size_bytes, .where = s_.b.home()};
    const physical_handle made =
        must(s_.keep(timed(call_kind::create, [&] { return s_.b.create(request); })));
    pieces_.push_back({made, size_bytes});
    join({at, size_bytes, made, 0});
    if (with_access) open({at, size_bytes});
  }
  void join(const map_request& request) {
    must(s_.keep_mapping(request, timed(call_kind::map, [&] { return s_.b.map(request); })));
  }
  void open(address_range range) {
    const access_grant one[] = {{s_.b.home(), access::read_write}};
    must(timed(call_kind::set_access, [&] { return s_.b.set_access(range, one); }));
  }
  void close(address_range range) {
    must(s_.forget_mappings(range, timed(call_kind::unmap, [&] { return s_.b.unmap(range); })));
  }
  void drop(const piece& old) {
    must(
        s_.forget(old.memory, timed(call_kind::release, [&] { return s_.b.release(old.memory); })));
  }

  scratch s_;
  std::vector<piece> pieces_;
  play_time taken_;
};

class player : timed_calls {
 public:
  player(driver_ref driver, const script& what) : timed_calls(driver), what_(what) {}

  play_time run() {
    const std::uint64_t total = what_.handle_bytes * what_.handle_count;
    const address_range low = reserve(total);
    const address_range high = reserve(total);
    if (what_.shape == pattern::remap) make_all(low.base);
    for (std::uint32_t round = 0; round < what_.round_count; ++round) one_round(low, high, round);
    if (what_.shape == pattern::remap) drop_all(what_.round_count % 2 == 0 ? low.base : high.base);
    return taken_;
  }

 private:
  void one_round(address_range low, address_range high, std::uint32_t round) {
    const bool upward = round % 2 == 0;
    switch (what_.shape) {
      case pattern::remap:
        return move_all(upward ? low.base : high.base, upward ? high.base : low.base);
      case pattern::make_and_drop:
      case pattern::grow: make_all(low.base); return drop_all(low.base);
      case pattern::alternate: make_alternating(low.base); return drop_backwards();
      case pattern::span: return span(low);
    }
  }

  void make_all(address base) {
    for (std::uint32_t i = 0; i < what_.handle_count; ++i)
      make(base + i * what_.handle_bytes, what_.handle_bytes, true);
  }
  void drop_all(address base) {
    address at = base;
    for (const piece& each : pieces_) {
      close({at, each.size_bytes});
      at = at + each.size_bytes;
    }
    for (const piece& each : pieces_) drop(each);
    pieces_.clear();
  }
  void make_alternating(address base) {
    address at = base;
    for (std::uint32_t i = 0; i < what_.handle_count; ++i) {
      const std::uint64_t size = i % 2 == 0 ? what_.handle_bytes : what_.handle_bytes / 4;
      make(at, size, true);
      at = at + size;
    }
    end_ = at;
  }
  void drop_backwards() {
    address at = end_;
    for (; !pieces_.empty(); pieces_.pop_back()) {
      const piece& last = pieces_.back();
      at = {at.value - last.size_bytes};
      close({at, last.size_bytes});
      drop(last);
    }
  }
  void move_all(address from, address to) {
    std::uint64_t offset = 0;
    for (const piece& each : pieces_) {
      join({to + offset, each.size_bytes, each.memory, 0});
      open({to + offset, each.size_bytes});
      close({from + offset, each.size_bytes});
      offset += each.size_bytes;
    }
  }
  void span(address_range room) {
    for (std::uint32_t i = 0; i < what_.handle_count; ++i)
      make(room.base + i * what_.handle_bytes, what_.handle_bytes, false);
    open(room);
    close(room);
    for (const piece& each : pieces_) drop(each);
    pieces_.clear();
  }

  script what_;
  address end_{};
};

/// Plays a script and undoes what it made. Throws setup_failure when the driver refuses a call.
export inline play_time play(driver_ref driver, const script& what) {
  return player(driver, what).run();
}

/// Handles of one size, each created, mapped behind the last and given access, and all kept until
/// the end: the driver calls of a growing program. No call meets memory or records that an earlier
/// release left, as all but the first round of a script's do.
export class growth : timed_calls {
 public:
  /// Room for `handle_count_max` handles. Throws setup_failure when the driver refuses it.
  growth(driver_ref driver, std::uint64_t handle_bytes, std::uint32_t handle_count_max)
      : timed_calls(driver),
        handle_bytes_(handle_bytes),
        room_(must(s_.try_reserve({.size_bytes = handle_bytes * handle_count_max}))) {}

  /// Makes `count` more, or as many as there is room for. Throws setup_failure when the driver
  /// refuses a call; what it made before stays.
  void grow(std::uint32_t count) {
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::uint64_t used_bytes = pieces_.size() * handle_bytes_;
      if (used_bytes >= room_.size_bytes) return;
      make(room_.base + used_bytes, handle_bytes_, true);
    }
  }
  /// Of all calls but the reservation.
  using timed_calls::taken;

 private:
  std::uint64_t handle_bytes_;
  address_range room_;
};

}  // namespace vmm::fidelity

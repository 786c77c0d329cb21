// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.fidelity:sequences - random sequences of calls with equal results on two drivers.
//
// Both drivers get the same calls in lockstep, places named by reservation and offset since their
// addresses differ. After each call the results are compared, at the end the contents of every
// accessible granule. Many calls are invalid on purpose; those that could spoil a real process
// (stale handles, touching memory without the right to) are left to the probes.
//
// Thread safety: one sequence a thread. Cost: some dozens of driver calls a sequence.
export module vmm.fidelity:sequences;

import vmm.backend;
import vmm.base;
import vmm.std;
import :scratch;

namespace vmm::fidelity {

export struct sequence_options {
  std::uint64_t seed = 0;
  unsigned step_count = 48;
};

/// The result of a sequence. `difference` is empty if both drivers returned equal results.
export struct sequence_outcome {
  unsigned call_count = 0;
  unsigned refused_count = 0;  ///< calls that both refused, with the same code
  unsigned content_count = 0;  ///< granules whose contents were compared
  std::string difference;
};

/// splitmix64: the same numbers everywhere.
class dice {
 public:
  explicit dice(std::uint64_t seed) noexcept : state_(seed) {}
  std::uint64_t roll() noexcept {
    state_ += 0x9E37'79B9'7F4A'7C15u;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58'476D'1CE4'E5B9u;
    z = (z ^ (z >> 27)) * 0x94D0'49BB'1331'11EBu;
    return z ^ (z >> 31);
  }
  /// 0 ... count - 1
  std::uint64_t below(std::uint64_t count) noexcept { return roll() % count; }
  bool chance(unsigned percent) noexcept { return below(100) < percent; }

 private:
  std::uint64_t state_;
};

class lockstep {
 public:
  lockstep(driver_ref first, driver_ref second, const sequence_options& options)
      : a_(first), b_(second), dice_(options.seed), step_count_(options.step_count) {}

  sequence_outcome run() {
    if (a_.g != b_.g) return {0, 0, 0, "the granularities differ"};
    for (unsigned step = 0; step < step_count_ && out_.difference.empty(); ++step) one_step();
    if (out_.difference.empty()) compare_contents();
    return out_;
  }

 private:
  struct room {
    address_range a;
    address_range b;
    bool live = true;
  };
  struct token {
    physical_handle a;
    physical_handle b;
    std::uint64_t granules;
    bool live = true;
  };
  struct place {
    std::size_t room;
    std::uint64_t offset_bytes;
  };

  // Compares two results; true if both are successes.
  template <class X, class Y>
  bool same(const char* what, const X& x, const Y& y) {
    ++out_.call_count;
    const std::string first = text(x);
    const std::string second = text(y);
    if (first != second) {
      out_.difference = "call " + std::to_string(out_.call_count) + " (" + what + "): " + first +
                        " and " + second;
      return false;
    }
    if (!x) ++out_.refused_count;
    return static_cast<bool>(x);
  }

  address at_a(place p) const { return rooms_[p.room].a.base + p.offset_bytes; }
  address at_b(place p) const { return rooms_[p.room].b.base + p.offset_bytes; }

  bool pick_room(std::size_t& into) {
    if (rooms_.empty()) return false;
    into = dice_.below(rooms_.size());
    return rooms_[into].live;
  }
  bool pick_token(std::size_t& into) {
    if (tokens_.empty()) return false;
    into = dice_.below(tokens_.size());
    return tokens_[into].live;
  }
  place pick_place(std::size_t in) {
    const std::uint64_t granules = rooms_[in].a.size_bytes / a_.g;
    return {in, dice_.below(granules) * a_.g};
  }
  // Where a mapping of so many granules may fit, more often than not.
  place pick_place_for(std::size_t in, std::uint64_t wanted) {
    const std::uint64_t granules = rooms_[in].a.size_bytes / a_.g;
    if (wanted >= granules || dice_.chance(10)) return pick_place(in);
    return {in, dice_.below(granules - wanted + 1) * a_.g};
  }
  access pick_rights() {
    constexpr std::array all{access::read_write, access::read_write, access::read_write,
                             access::read, access::none};
    return all[dice_.below(all.size())];
  }

  void one_step() {
    const std::uint64_t roll = dice_.below(100);
    if (roll < 10) return reserve();
    if (roll < 13) return free_room();
    if (roll < 23) return create();
    if (roll < 27) return release();
    if (roll < 52) return map();
    if (roll < 60) return unmap();
    if (roll < 74) return set_access();
    if (roll < 77) return get_access();
    if (roll < 83) return look();
    if (roll < 96) return put();
    return retain();
  }

  void reserve() {
    std::uint64_t size = (1 + dice_.below(8)) * a_.g;
    if (dice_.chance(8)) size = dice_.chance(50) ? 0 : size + 4096;
    const reserve_request request{.size_bytes = size};
    const auto x = a_.try_reserve(request);
    const auto y = b_.try_reserve(request);
    if (same("reserve", x, y)) rooms_.push_back({*x, *y});
  }

  void free_room() {
    std::size_t which = 0;
    if (!pick_room(which)) return;
    room& old = rooms_[which];
    if (mapped_[which] != 0) return;
    const std::uint64_t cut = dice_.chance(20) ? a_.g : 0;
    if (cut != 0 && old.a.size_bytes == a_.g) return;
    const address_range in_a{old.a.base, old.a.size_bytes - cut};
    const address_range in_b{old.b.base, old.b.size_bytes - cut};
    if (same("free_reservation", a_.try_free(in_a), b_.try_free(in_b))) old.live = false;
  }

  void create() {
    physical_request request{.size_bytes = (1 + dice_.below(4)) * a_.g};
    if (dice_.chance(8)) request.size_bytes = dice_.chance(50) ? 0 : request.size_bytes + 4096;
    const std::uint64_t granules = request.size_bytes / a_.g;
    request.where = a_.b.home();
    const auto x = a_.try_create(request);
    request.where = b_.b.home();
    const auto y = b_.try_create(request);
    if (same("create", x, y)) tokens_.push_back({*x, *y, granules});
  }

  void release() {
    std::size_t which = 0;
    if (!pick_token(which)) return;
    token& old = tokens_[which];
    if (same("release", a_.try_release(old.a), b_.try_release(old.b))) old.live = false;
  }

  void map() {
    std::size_t in = 0;
    std::size_t which = 0;
    if (!pick_room(in) || !pick_token(which)) return;
    const token& from = tokens_[which];
    const place to = pick_place_for(in, from.granules);
    std::uint64_t size = from.granules * a_.g;
    std::uint64_t offset = 0;
    if (dice_.chance(6) && from.granules > 1) size -= a_.g;
    if (dice_.chance(4) && from.granules > 1) offset = a_.g;
    if (dice_.chance(4)) size -= 4096;
    if (to.offset_bytes + size > rooms_[in].a.size_bytes) return;  // left to the probes
    if (same("map", a_.try_map({at_a(to), size, from.a, offset}),
             b_.try_map({at_b(to), size, from.b, offset}))) {
      ++mapped_[in];
      mappings_.push_back({in, to.offset_bytes, size});
      if (dice_.chance(60)) allow({in, to.offset_bytes}, size, access::read_write);
    }
  }

  // A range in a room: often a whole mapping, else any run of granules.
  bool pick_range(std::size_t& in, std::uint64_t& offset, std::uint64_t& size) {
    if (!mappings_.empty() && dice_.chance(70)) {
      const mapping& one = mappings_[dice_.below(mappings_.size())];
      in = one.room;
      offset = one.offset_bytes;
      size = one.size_bytes;
      return true;
    }
    if (!pick_room(in)) return false;
    const std::uint64_t granules = rooms_[in].a.size_bytes / a_.g;
    const std::uint64_t first = dice_.below(granules);
    offset = first * a_.g;
    size = (1 + dice_.below(granules - first)) * a_.g;
    return true;
  }

  void unmap() {
    std::size_t in = 0;
    std::uint64_t offset = 0;
    std::uint64_t size = 0;
    if (!pick_range(in, offset, size)) return;
    if (!same("unmap", a_.try_unmap({at_a({in, offset}), size}),
              b_.try_unmap({at_b({in, offset}), size}))) {
      return;
    }
    mapped_[in] -= static_cast<unsigned>(std::erase_if(mappings_, [&](const mapping& m) {
      return m.room == in && m.offset_bytes >= offset &&
             m.offset_bytes + m.size_bytes <= offset + size;
    }));
  }

  void set_access() {
    std::size_t in = 0;
    std::uint64_t offset = 0;
    std::uint64_t size = 0;
    if (!pick_range(in, offset, size)) return;
    if (hole_before_mapping(in, offset, size)) return;
    allow({in, offset}, size, pick_rights());
  }
  // A hole with a mapping behind it: a real driver overlooks it, which is left to the probes.
  bool hole_before_mapping(std::size_t in, std::uint64_t offset, std::uint64_t size) const {
    std::vector<bool> full(size / a_.g);
    for (const mapping& m : mappings_) {
      for (std::uint64_t at = m.offset_bytes; m.room == in && at < m.offset_bytes + m.size_bytes;
           at += a_.g) {
        if (at >= offset && at < offset + size) full[(at - offset) / a_.g] = true;
      }
    }
    bool hole = false;
    for (const bool one : full) {
      if (one && hole) return true;
      hole = hole || !one;
    }
    return false;
  }
  void allow(place at, std::uint64_t size, access rights) {
    same("set_access", a_.try_access({at_a(at), size}, a_.b.home(), rights),
         b_.try_access({at_b(at), size}, b_.b.home(), rights));
  }

  void get_access() {
    std::size_t in = 0;
    if (!pick_room(in)) return;
    const place at = pick_place(in);
    same("get_access", a_.b.get_access(at_a(at), a_.b.home()),
         b_.b.get_access(at_b(at), b_.b.home()));
  }

  // Writes a word in a mapping where both drivers say that it may be written.
  void put() {
    if (mappings_.empty()) return;
    const mapping& into = mappings_[dice_.below(mappings_.size())];
    const std::uint64_t granule = dice_.below(into.size_bytes / a_.g);
    const place at{into.room, into.offset_bytes + granule * a_.g};
    const auto x = a_.b.get_access(at_a(at), a_.b.home());
    const auto y = b_.b.get_access(at_b(at), b_.b.home());
    if (!same("get_access", x, y) || *x != access::read_write) return;
    const std::array<std::uint64_t, 1> word{dice_.roll()};
    const auto bytes = std::as_bytes(std::span(word));
    same("write", a_.b.write(at_a(at), bytes), b_.b.write(at_b(at), bytes));
  }

  // Compares what a granule holds.
  void look() {
    if (mappings_.empty()) return;
    const mapping& in = mappings_[dice_.below(mappings_.size())];
    compare_granule({in.room, in.offset_bytes + dice_.below(in.size_bytes / a_.g) * a_.g});
  }

  void retain() {
    std::size_t in = 0;
    if (!pick_room(in)) return;
    const place at = pick_place(in);
    const auto x = a_.keep(a_.b.retain(at_a(at)));
    const auto y = b_.keep(b_.b.retain(at_b(at)));
    if (!same("retain", x, y)) return;
    for (const mapping& m : mappings_) {
      const bool inside = m.room == in && at.offset_bytes >= m.offset_bytes &&
                          at.offset_bytes < m.offset_bytes + m.size_bytes;
      if (inside) tokens_.push_back({*x, *y, m.size_bytes / a_.g});
    }
  }

  void compare_contents() {
    for (const mapping& m : mappings_) {
      for (std::uint64_t done = 0; done < m.size_bytes && out_.difference.empty(); done += a_.g) {
        compare_granule({m.room, m.offset_bytes + done});
      }
    }
  }

  void compare_granule(place at) {
    const auto x = a_.b.get_access(at_a(at), a_.b.home());
    const auto y = b_.b.get_access(at_b(at), b_.b.home());
    if (!same("get_access", x, y) || *x == access::none) return;
    std::array<std::byte, 16> in_a{};
    std::array<std::byte, 16> in_b{};
    if (!same("read", a_.b.read(in_a, at_a(at)), b_.b.read(in_b, at_b(at)))) return;
    ++out_.content_count;
    if (in_a != in_b) {
      out_.difference = "contents differ in reservation " + std::to_string(at.room) + " at " +
                        std::to_string(at.offset_bytes);
    }
  }

  struct mapping {
    std::size_t room;
    std::uint64_t offset_bytes;
    std::uint64_t size_bytes;
  };
  static constexpr std::size_t room_count_max = 256;

  scratch a_;
  scratch b_;
  dice dice_;
  unsigned step_count_;
  std::vector<room> rooms_;
  std::vector<token> tokens_;
  std::vector<mapping> mappings_;
  std::array<unsigned, room_count_max> mapped_{};  // mappings in each room
  sequence_outcome out_;
};

/// Runs one sequence against both drivers and undoes what it made.
/// Precondition: options.step_count is at most 256.
export inline sequence_outcome run_sequence(driver_ref first, driver_ref second,
                                            const sequence_options& options) {
  check(options.step_count <= 256, "a sequence has at most 256 steps");
  try {
    return lockstep(first, second, options).run();
  } catch (const setup_failure& failure) {
    return {0, 0, 0, "set-up failed: " + text(failure.why)};
  }
}

}  // namespace vmm::fidelity

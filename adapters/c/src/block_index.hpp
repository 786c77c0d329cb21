// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The live blocks of a device by their addresses: one flat table of buckets of one line of cache,
// so that a call reads one line, seldom two. It grows by doubling and never shrinks.
//
// I1  At most half of the entries are taken. An entry whose address is 0 is empty.
// I2  A block is in its home bucket, or in a later one with every bucket from its home on full.
// I3  Rare properties of blocks (users, a stream without a number) are in a map beside the table,
//     and the entry has a bit for it.
//
// Threads: none; the caller has a lock. Cost: O(1). Memory: 32 to 64 bytes a live block.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <new>
#include <utility>
#include <vector>

namespace vmm_c {

struct live_block {
  std::uint64_t at = 0;
  std::uint64_t requested_bytes = 0;
  std::uint64_t stream = 0;
  std::unique_ptr<std::vector<std::uint64_t>> users;  // other streams; null: none

  // Blocks are multiples of 512 bytes.
  [[nodiscard]] std::uint64_t size_bytes() const noexcept {
    constexpr std::uint64_t unit = 512;
    return (requested_bytes + unit - 1) & ~(unit - 1);
  }
};

class block_index {
 public:
  [[nodiscard]] std::size_t count() const noexcept { return count_; }

  // Makes room for one more. False: no host memory.
  [[nodiscard]] bool make_room() noexcept {
    return count_ < buckets_.size() * (slot_count / 2) || grow();
  }

  // Requires: make_room() returned true, and the address is not in the table. False: no host memory
  // for a stream without a number; the block is not added.
  [[nodiscard]] bool add(std::uint64_t at, std::uint64_t requested_bytes,
                         std::uint64_t stream) noexcept {
    const std::uint64_t number = number_of(stream);
    if (number == unnumbered) [[unlikely]] {
      if (!add_rare(at, stream)) return false;
    }
    free_entry(at) = {at | (number == unnumbered ? rare_mark : 0),
                      requested_bytes | number << number_shift};
    ++count_;
    return true;
  }

  enum class take_outcome { absent, refused, taken };
  // Takes the block out that begins at the address, where `may_take(users)` returns true of the
  // number of its users.
  template <class MayTake>
  [[nodiscard]] take_outcome take(std::uint64_t at, live_block& taken,
                                  MayTake&& may_take) noexcept {
    if (buckets_.empty() || at == 0) return take_outcome::absent;
    for (std::size_t home = slot_of(at);; home = next(home)) {
      bucket& in = buckets_[home];
      for (std::size_t slot = 0; slot < slot_count; ++slot) {
        if (address_in(in[slot]) != at) continue;
        if (!may_take(count_users(in[slot]))) return take_outcome::refused;
        read(in[slot], taken);
        if (is_rare(in[slot])) [[unlikely]]
          take_rare(taken);
        const bool was_full = is_full(in);
        in[slot] = {};
        --count_;
        if (was_full) [[unlikely]]
          fill_gap(home);
        return take_outcome::taken;
      }
      if (!is_full(in)) return take_outcome::absent;
    }
  }

  // The block, as a copy without its users. False: none begins there.
  [[nodiscard]] bool find(std::uint64_t at, live_block& found) const noexcept {
    const entry* const there = find_entry(at);
    if (there == nullptr) return false;
    read(*there, found);
    if (const rare* const more = rare_of(*there); more != nullptr) found.stream = more->stream;
    return true;
  }

  // Adds a stream that uses a block, other than its own. False: no block begins there. Throws
  // std::bad_alloc.
  [[nodiscard]] bool add_user(std::uint64_t at, std::uint64_t user) {
    entry* const there = find_entry(at);
    if (there == nullptr) return false;
    live_block block;
    (void)find(at, block);
    if (user == block.stream) return true;
    rare& more = rare_[at];
    if (!is_rare(*there)) more.stream = block.stream;
    there->at |= rare_mark;
    if (more.users == nullptr) more.users = std::make_unique<std::vector<std::uint64_t>>();
    for (const std::uint64_t known : *more.users) {
      if (known == user) return true;
    }
    more.users->push_back(user);
    return true;
  }

  // Null, or the invariant that does not hold. O(n).
  [[nodiscard]] const char* find_broken() const noexcept {
    std::size_t taken = 0;
    for (const bucket& in : buckets_) {
      for (const entry& each : in) {
        if (each.at == 0) continue;
        ++taken;
        if (find_entry(address_in(each)) != &each)
          return "block_index I2: a block is not found from its home bucket on";
        if (is_rare(each) && rare_of(each) == nullptr)
          return "block_index I3: a block has no part in the map that its entry names";
      }
    }
    if (taken != count_) return "block_index I1: a taken entry is not counted";
    if (taken > buckets_.size() * (slot_count / 2))
      return "block_index I1: more than half of the entries are taken";
    return nullptr;
  }

  // Each block, without its users.
  template <class Visit>
  void for_each(Visit&& visit) const {
    for (const bucket& in : buckets_) {
      for (const entry& each : in) {
        live_block block;
        if (each.at != 0 && find(address_in(each), block)) visit(block);
      }
    }
  }

 private:
  static constexpr std::size_t slot_count = 4;
  static constexpr std::size_t first_buckets = 512;
  static constexpr std::uint64_t rare_mark = 1;  // addresses are multiples of 512
  static constexpr unsigned number_shift = 56;
  static constexpr std::uint64_t requested_mask = (std::uint64_t{1} << number_shift) - 1;
  static constexpr std::uint64_t unnumbered = 255;

  struct entry {
    std::uint64_t at = 0;
    std::uint64_t requested_and_stream = 0;  // the number of the stream in the highest byte
  };
  struct alignas(64) bucket : std::array<entry, slot_count> {};
  static_assert(sizeof(bucket) == 64);
  struct rare {
    std::uint64_t stream = 0;
    std::unique_ptr<std::vector<std::uint64_t>> users;
  };

  [[nodiscard]] static std::uint64_t address_in(const entry& of) noexcept {
    return of.at & ~rare_mark;
  }
  [[nodiscard]] static bool is_rare(const entry& of) noexcept { return (of.at & rare_mark) != 0; }
  [[nodiscard]] static bool is_full(const bucket& in) noexcept {
    for (const entry& each : in) {
      if (each.at == 0) return false;
    }
    return true;
  }
  void read(const entry& from, live_block& into) const noexcept {
    into.at = address_in(from);
    into.requested_bytes = from.requested_and_stream & requested_mask;
    const std::uint64_t number = from.requested_and_stream >> number_shift;
    if (number == last_number_) [[likely]]
      into.stream = last_stream_;
    else if (number != unnumbered)
      into.stream = streams_[number];
  }

  [[nodiscard]] const rare* rare_of(const entry& of) const noexcept {
    if (!is_rare(of)) [[likely]]
      return nullptr;
    const auto found = rare_.find(address_in(of));
    return found == rare_.end() ? nullptr : &found->second;
  }
  [[nodiscard]] std::size_t count_users(const entry& of) const noexcept {
    const rare* const more = rare_of(of);
    return more == nullptr || more->users == nullptr ? 0 : more->users->size();
  }
  [[nodiscard]] bool add_rare(std::uint64_t at, std::uint64_t stream) noexcept {
    try {
      rare_[at].stream = stream;
      return true;
    } catch (const std::bad_alloc&) {
      return false;
    }
  }
  void take_rare(live_block& taken) noexcept {
    const auto found = rare_.find(taken.at);
    if (found == rare_.end()) return;
    taken.stream = found->second.stream;
    taken.users = std::move(found->second.users);
    rare_.erase(found);
  }

  // The first 255 streams have permanent numbers: programs have few, and their handles are reused.
  [[nodiscard]] std::uint64_t number_of(std::uint64_t stream) noexcept {
    if (stream == last_stream_ && last_number_ != unnumbered) [[likely]]
      return last_number_;
    std::uint64_t number = 0;
    while (number < stream_count_ && streams_[number] != stream) ++number;
    if (number == unnumbered) return unnumbered;
    if (number == stream_count_) streams_[stream_count_++] = stream;
    last_stream_ = stream;
    last_number_ = number;
    return number;
  }

  [[nodiscard]] std::size_t slot_of(std::uint64_t at) const noexcept {
    constexpr std::uint64_t golden = 0x9E3779B97F4A7C15;
    return static_cast<std::size_t>(((at >> 9) * golden) >> shift_);
  }
  [[nodiscard]] std::size_t next(std::size_t number) const noexcept {
    return (number + 1) & (buckets_.size() - 1);
  }
  [[nodiscard]] std::size_t distance(std::size_t from, std::size_t to) const noexcept {
    return (to - from) & (buckets_.size() - 1);
  }
  [[nodiscard]] const entry* find_entry(std::uint64_t at) const noexcept {
    if (buckets_.empty() || at == 0) return nullptr;
    for (std::size_t home = slot_of(at);; home = next(home)) {
      const bucket& in = buckets_[home];
      for (const entry& each : in) {
        if (address_in(each) == at) return &each;
      }
      if (!is_full(in)) return nullptr;
    }
  }
  [[nodiscard]] entry* find_entry(std::uint64_t at) noexcept {
    return const_cast<entry*>(std::as_const(*this).find_entry(at));
  }
  // An empty one, in the first bucket from the home on that is not full.
  [[nodiscard]] entry& free_entry(std::uint64_t at) noexcept {
    for (std::size_t home = slot_of(at);; home = next(home)) {
      for (entry& each : buckets_[home]) {
        if (each.at == 0) return each;
      }
    }
  }

  // A bucket that was full has room: what went past it moves back.
  void fill_gap(std::size_t gap) noexcept {
    for (std::size_t from = next(gap); from != gap; from = next(from)) {
      bucket& in = buckets_[from];
      const bool was_full = is_full(in);
      for (entry& each : in) {
        if (each.at == 0) continue;
        const std::size_t home = slot_of(address_in(each));
        if (distance(home, from) < distance(gap, from)) continue;
        for (entry& room : buckets_[gap]) {
          if (room.at != 0) continue;
          room = std::exchange(each, entry{});
          break;
        }
        gap = from;
        break;
      }
      if (!was_full) return;
    }
  }

  [[nodiscard]] bool grow() noexcept {
    try {
      const std::size_t wanted = buckets_.empty() ? first_buckets : buckets_.size() * 2;
      std::vector<bucket> wider(wanted);
      buckets_.swap(wider);
      shift_ = static_cast<unsigned>(std::countl_zero(wanted - 1));
      for (const bucket& in : wider) {
        for (const entry& each : in) {
          if (each.at != 0) free_entry(address_in(each)) = each;
        }
      }
      return true;
    } catch (const std::bad_alloc&) {
      return false;
    }
  }

  std::vector<bucket> buckets_;  // a power of two
  std::size_t count_ = 0;
  unsigned shift_ = 0;
  std::uint64_t last_number_ = unnumbered;
  std::uint64_t last_stream_ = 0;
  std::uint64_t stream_count_ = 0;
  std::map<std::uint64_t, rare> rare_;
  std::array<std::uint64_t, unnumbered> streams_{};
};

}  // namespace vmm_c

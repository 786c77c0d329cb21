// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.base:flat_table - values by a 64-bit key, such as an address or a handle, in one flat
// table: a call touches one or two cache lines and allocates host memory only when the table grows.
//
// An unused place ends a probe sequence, so removing an entry moves the entries behind it up. At
// most half of the places are used.
//
// Thread safety: none; the caller has a lock. Cost: O(1); erase_if is O(places).
export module vmm.base:flat_table;

import vmm.std;

namespace vmm {

/// Entries by a 64-bit key, in one flat table. Requires: a default-constructible, copyable Entry.
export template <class Entry>
class flat_table {
 public:
  /// Adds the entry, or replaces that of the key. False: no host memory is left; the table is as it
  /// was.
  [[nodiscard]] bool put(std::uint64_t key, const Entry& entry) noexcept {
    if (place* const there = find(key); there != nullptr) {
      there->entry = entry;
      return true;
    }
    if ((count_ + 1) * 2 > size_ && !grow()) return false;
    places_[free_index(key)] = {key, entry, true};
    ++count_;
    return true;
  }

  /// Removes the key's entry. False: the table has none.
  [[nodiscard]] bool take(std::uint64_t key, Entry& into) noexcept {
    place* const there = find(key);
    if (there == nullptr) return false;
    into = there->entry;
    close_up(static_cast<std::size_t>(there - places_.get()));
    return true;
  }

  /// `is_gone(entry)` may be called twice for an entry that stays.
  template <class IsGone>
  void erase_if(IsGone&& is_gone) noexcept {
    for (std::size_t i = 0; i < size_; ++i) {
      while (places_[i].is_taken && is_gone(std::as_const(places_[i].entry))) close_up(i);
    }
  }

  [[nodiscard]] std::size_t count() const noexcept { return count_; }

 private:
  struct place {
    std::uint64_t key = 0;
    Entry entry{};
    bool is_taken = false;
  };
  static constexpr std::size_t first_size = 32;

  [[nodiscard]] std::size_t wanted(std::uint64_t key) const noexcept {
    return static_cast<std::size_t>((key * 0x9E37'79B9'7F4A'7C15u) >> std::countl_zero(size_ - 1));
  }
  [[nodiscard]] std::size_t next(std::size_t index) const noexcept {
    return (index + 1) & (size_ - 1);
  }
  [[nodiscard]] std::size_t distance(std::size_t from, std::size_t to) const noexcept {
    return (to - from) & (size_ - 1);
  }
  [[nodiscard]] std::size_t free_index(std::uint64_t key) const noexcept {
    std::size_t index = wanted(key);
    while (places_[index].is_taken) index = next(index);
    return index;
  }

  [[nodiscard]] place* find(std::uint64_t key) noexcept {
    if (size_ == 0) return nullptr;
    for (std::size_t index = wanted(key); places_[index].is_taken; index = next(index)) {
      if (places_[index].key == key) return &places_[index];
    }
    return nullptr;
  }

  void close_up(std::size_t hole) noexcept {
    places_[hole].is_taken = false;
    for (std::size_t index = next(hole); places_[index].is_taken; index = next(index)) {
      // An entry may move into a hole that lies on its probe sequence.
      if (distance(wanted(places_[index].key), index) < distance(hole, index)) continue;
      places_[hole] = places_[index];
      places_[index].is_taken = false;
      hole = index;
    }
    --count_;
  }

  [[nodiscard]] bool grow() noexcept {
    const std::size_t before = size_;
    const std::size_t wider = before == 0 ? first_size : before * 2;
    std::unique_ptr<place[]> made(new (std::nothrow) place[wider]);
    if (made == nullptr) return false;
    made.swap(places_);
    size_ = wider;
    for (std::size_t i = 0; i < before; ++i) {
      if (made[i].is_taken) places_[free_index(made[i].key)] = made[i];
    }
    return true;
  }

  std::unique_ptr<place[]> places_;
  std::size_t size_ = 0;  // a power of two
  std::size_t count_ = 0;
};

}  // namespace vmm

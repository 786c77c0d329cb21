// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.va:region_map - one range tiled by regions of several kinds, each kind searched by itself.
//
// A range_allocator distinguishes live and free; a pool over mapped memory has more kinds: free for
// one stream or another, an unmapped hole, a range whose memory has moved away. A region is listed
// under a kind, and then found by size or as the lowest that fits, or it is unlisted, and then cut,
// joined or used. Regions never coalesce by themselves: the owner joins them.
//
// I1  Regions tile the range in the order of their neighbour links; none is empty.
// I2  A listed region is in the bins of its kind, and in its index of large places when it is at
//     least a slot long; an unlisted one is in neither.
// I3  For each page, the first region that begins in it is recorded.
//
// A failed call changes nothing.
//
// Thread safety: none, the caller has the lock. Cost: a few cache lines a call, and one path of a
// trie (22 records) for listed sizes above 255 granules; no allocation but in provide and add_kind,
// and there in doublings, where the records move. Memory: 64 bytes and a bit a region; 24 KiB a
// kind and 8.6 bytes a slot, as touched.
export module vmm.va:region_map;

import vmm.backend;
import vmm.base;
import vmm.std;
import :first_fit;
import :first_region_by_page;
import :host_memory;
import :range_allocator;
import :records;
import :size_bins;

namespace vmm {

/// The size of a map, and the units in which it is searched.
export struct region_map_options {
  std::uint32_t count_granules = 0;
  std::uint32_t page_granules = 0;       ///< a power of two; find_page() searches by these
  std::uint32_t slot_granules = 0;       ///< smallest size of lowest_region(); 0: it is not used
  std::uint32_t max_regions = 1u << 24;  ///< most regions at a time
};

/// The owner's note beside a region. A join keeps that of the left one.
export struct region_note {
  std::uint64_t word = 0;
  std::uint32_t tag = 0;
};

/// Movable; a moved-from object may only be destroyed or assigned to. Ids must name regions of this
/// object: anything else is undefined, unless a check finds it. Not thread-safe.
export class region_map {
 public:
  /// One unlisted region over the whole range.
  /// Errors: invalid_argument (sizes that the options do not allow), out_of_host_memory.
  [[nodiscard]] static result<region_map> create(const region_map_options& options) noexcept;

  /// One more kind, numbered from 1 on. Errors: out_of_host_memory, invalid_argument (too many).
  [[nodiscard]] result<region_kind> add_kind() noexcept;
  [[nodiscard]] inline std::uint32_t kind_count() const noexcept {
    debug_check([this] { return !kinds_.empty(); }, "a region map was moved from");
    return static_cast<std::uint32_t>(kinds_.size()) - 1;
  }
  static constexpr std::uint32_t max_kinds = 4096;

  /// Ensures that the next `count` cuts need no memory; false if memory is exhausted.
  [[nodiscard]] inline bool provide(std::uint32_t count) noexcept {
    debug_check([this] { return used_ <= committed_; }, "a record is used without memory");
    return (count == 1 && spare_ != 0) || provide_fresh(count);
  }

  // ---- looking ----
  [[nodiscard]] inline granule_range where(region_id id) const noexcept {
    const region_record& node = node_of(id);
    debug_check([&] { return node.offset + node.size() <= count_granules_; }, "past the range");
    return {node.offset, node.size()};
  }
  [[nodiscard]] inline region_kind kind(region_id id) const noexcept {
    debug_check([&] { return is_region(id); }, no_region);
    return is_marked(index_of(id)) ? note_of(id).kind : region_kind::unlisted;
  }
  [[nodiscard]] inline bool listed(region_id id) const noexcept {
    return kind(id) != region_kind::unlisted;
  }
  [[nodiscard]] inline std::uint64_t word(region_id id) const noexcept { return note_of(id).word; }
  [[nodiscard]] inline std::uint32_t tag(region_id id) const noexcept { return note_of(id).tag; }
  inline void set_note(region_id id, region_note note) noexcept {
    debug_check([&] { return is_region(id) && id != region_id::none; }, no_region);
    note_of(id).word = note.word;
    note_of(id).tag = note.tag;
  }
  /// A pointer of the owner for the region's first address. Parts that are cut off have none.
  inline void set_link(region_id id, void* link) noexcept {
    debug_check([&] { return is_region(id) && id != region_id::none; }, no_region);
    note_of(id).link = link;
  }
  [[nodiscard]] inline void* link(region_id id) const noexcept { return note_of(id).link; }
  /// Prefetches the cache line of a region's records.
  inline void fetch_ahead(region_id id) const noexcept { vmm::fetch_ahead(&node_of(id)); }
  /// Neighbours; none at the ends.
  [[nodiscard]] inline region_id before(region_id id) const noexcept {
    return static_cast<region_id>(node_of(id).before);
  }
  [[nodiscard]] inline region_id after(region_id id) const noexcept {
    return static_cast<region_id>(node_of(id).after);
  }
  [[nodiscard]] inline region_id first() const noexcept {
    debug_check([this] { return nodes_ != nullptr; }, "a region map was moved from");
    return static_cast<region_id>(nodes_[0].after);
  }
  [[nodiscard]] inline region_id last() const noexcept {
    debug_check([this] { return nodes_ != nullptr; }, "a region map was moved from");
    return static_cast<region_id>(nodes_[0].before);
  }
  /// The region that covers the first granule of a page.
  [[nodiscard]] region_id find_page(std::uint32_t page) const noexcept;
  /// The region that covers a granule. Cost: the regions of one page, in the worst case.
  [[nodiscard]] region_id find(std::uint32_t offset) const noexcept;

  /// The smallest region of this kind with `count` granules or more; of equals the latest listed,
  /// or any where more than a few regions of about this size are listed.
  [[nodiscard]] inline region_id best_fit(region_kind kind, std::uint32_t count) const noexcept {
    const size_bins<region_record>& bins = kind_of(kind).bins;
    if (!bins.has_bin(count)) [[unlikely]]
      return region_id::none;
    const auto found = static_cast<region_id>(bins.find(count));
    debug_check([&] { return found == region_id::none || this->kind(found) == kind; },
                "a region is found under a wrong kind");
    debug_check([&] { return found == region_id::none || where(found).count >= count; },
                "a region is found that is too small");
    return found;
  }
  /// Whether lowest_region() accepts a size: at least that of a slot.
  [[nodiscard]] inline bool is_large(std::uint32_t count) const noexcept {
    return count >> slot_shift_ != 0;
  }
  /// The lowest region of this kind with `count` granules or more. `count` is a slot or more.
  [[nodiscard]] inline region_id lowest_region(region_kind kind,
                                               std::uint32_t count) const noexcept {
    debug_check([&] { return is_large(count); }, "too small for the lowest fit");
    const kind_state& state = kind_of(kind);
    const std::uint32_t slot = state.large.find(count);
    if (slot == first_fit::none) return region_id::none;
    const std::uint32_t found = state.large.region_at(slot);
    debug_check([&] { return nodes_[found].size() >= count; }, "too small");
    debug_check([&] { return nodes_[found].offset >> slot_shift_ == slot; },
                "a large region begins in another slot");
    return static_cast<region_id>(found);
  }
  [[nodiscard]] inline std::uint64_t listed_granules(region_kind kind) const noexcept {
    debug_check([&] { return kind_of(kind).granules <= count_granules_; },
                "a kind has too many granules");
    return kind_of(kind).granules;
  }
  [[nodiscard]] inline std::uint32_t listed_count(region_kind kind) const noexcept {
    debug_check([&] { return (kind_of(kind).count == 0) == (kind_of(kind).granules == 0); },
                "a listed region is empty");
    return kind_of(kind).count;
  }
  /// Size of the largest region of this kind, or 0.
  [[nodiscard]] inline std::uint32_t largest(region_kind kind) const noexcept {
    return kind_of(kind).bins.largest();
  }
  [[nodiscard]] inline std::uint32_t count_granules() const noexcept { return count_granules_; }

  // ---- changing ----
  void list(region_id id, region_kind kind) noexcept;
  void unlist(region_id id) noexcept;
  /// Cuts an unlisted region: `id` keeps `count_left` granules, the rest is the returned region,
  /// which is unlisted too and has the same note. Requires: provide() was called before.
  [[nodiscard]] region_id cut(region_id id, std::uint32_t count_left) noexcept;
  /// Makes one region of two unlisted neighbours; `left` keeps its id and its note.
  void join(region_id left, region_id right) noexcept;
  /// Cuts the first `count` granules off a listed region that is longer than that and stays listed
  /// as it is; they are the returned region, unlisted, without a note. Requires: provide(1) was
  /// called before.
  [[nodiscard]] region_id take_head(region_id id, std::uint32_t count) noexcept;
  /// Lengthens a listed region by its unlisted neighbour on the right, or on the left; it keeps its
  /// id and its note.
  void absorb_right(region_id id) noexcept;
  void absorb_left(region_id id) noexcept;

  /// Checks every invariant, over the whole structure. Errors: internal, with the one that is
  /// broken.
  [[nodiscard]] status validate() const noexcept;

 private:
  // A region has two records of 32 bytes in one cache line, its node and its note, so that its
  // index is even and its note is the record behind it.
  static constexpr std::uint32_t stride = 2;
  struct note_record {
    std::uint64_t word;
    region_kind kind;
    std::uint32_t tag;
    void* link;
  };
  static_assert(sizeof(note_record) <= sizeof(region_record));
  static constexpr const char* no_region = "an id names no region of this map";

  // The fields for sizes below a slot, in one cache line.
  struct alignas(64) kind_state {
    size_bins<region_record> bins{};
    std::uint64_t granules = 0;
    std::uint32_t count = 0;
    first_fit large{};
    reserved_memory memory{};
  };

  region_map() = default;

  [[nodiscard]] static inline std::uint32_t index_of(region_id id) noexcept {
    return static_cast<std::uint32_t>(id);
  }
  [[nodiscard]] inline bool is_region(region_id id) const noexcept {
    const std::uint32_t index = index_of(id);
    return index % stride == 0 && index < used_ && (index == 0 || nodes_[index].size() != 0);
  }
  [[nodiscard]] inline const region_record& node_of(region_id id) const noexcept {
    debug_check([&] { return is_region(id); }, no_region);
    return nodes_[index_of(id)];
  }
  [[nodiscard]] inline note_record& note_of(std::uint32_t index) const noexcept {
    debug_check([&] { return index % stride == 0 && index < used_; }, no_region);
    return *reinterpret_cast<note_record*>(nodes_ + index + 1);
  }
  [[nodiscard]] inline note_record& note_of(region_id id) const noexcept {
    return note_of(index_of(id));
  }
  /// Whether a region is listed, which is a bit outside of the records, so that a query for a live
  /// neighbour's kind does not fetch its record: 512 regions' bits are a cache line.
  [[nodiscard]] inline bool is_marked(std::uint32_t index) const noexcept {
    debug_check([&] { return index % stride == 0 && index < used_; }, no_region);
    return (marks_[index / (64 * stride)] >> (index / stride % 64) & 1) != 0;
  }
  [[gnu::always_inline]] inline void set_kind(std::uint32_t index, region_kind kind) noexcept {
    debug_check([&] { return static_cast<std::uint32_t>(kind) < kinds_.size(); }, "no such kind");
    debug_check([&] { return is_marked(index) == (kind == region_kind::unlisted); },
                "a region is marked as it was");
    note_of(index).kind = kind;
    marks_[index / (64 * stride)] ^= std::uint64_t{1} << (index / stride % 64);
  }
  [[nodiscard]] inline const kind_state& kind_of(region_kind kind) const noexcept {
    debug_check([&] { return static_cast<std::uint32_t>(kind) < kinds_.size(); }, "no such kind");
    return states_[static_cast<std::uint32_t>(kind)];
  }
  /// A slot's size is known where large regions are listed.
  [[nodiscard]] inline bool has_slots() const noexcept { return slot_shift_ != no_slots; }
  static constexpr std::uint8_t no_slots = 31;  // no size is so large
  /// Whether a region is the first that begins in its page.
  [[nodiscard]] inline bool begins_page(const region_record& node) const noexcept {
    debug_check([&] { return nodes_[node.before].offset <= node.offset; }, "out of order");
    return node.before == 0 ||
           nodes_[node.before].offset >> page_shift_ != node.offset >> page_shift_;
  }
  [[nodiscard]] bool provide_fresh(std::uint32_t count) noexcept;
  [[nodiscard]] bool commit(std::uint32_t count) noexcept;
  [[nodiscard]] bool extend(std::uint64_t size_bytes) noexcept;
  // Addresses are reserved for so many regions at first, and doubled when they are used up, so that
  // a limit of address space is not spent on regions that never exist.
  static constexpr std::uint32_t first_regions = 1u << 20;
  [[nodiscard]] result<kind_state> make_kind() const noexcept;
  void resize_listed(std::uint32_t index, granule_range to) noexcept;
  [[nodiscard]] std::uint32_t new_record() noexcept;
  void drop_record(std::uint32_t index) noexcept;
  void note_start(std::uint32_t index, std::uint32_t offset_before) noexcept;
  void forget_start(std::uint32_t index, std::uint32_t offset_before) noexcept;
  [[nodiscard]] const char* broken_chain(std::uint32_t& region_count) const noexcept;
  [[nodiscard]] const char* broken_kinds() const noexcept;
  [[nodiscard]] const char* broken_large(const kind_state& state, region_kind kind) const noexcept;

  // The first 40 bytes, to the first word of starts_, are what most calls read of the map itself.
  region_record* nodes_ = nullptr;
  std::uint64_t* marks_ = nullptr;  // a bit a region; 0 of spare records
  kind_state* states_ = nullptr;    // kinds_
  std::uint32_t spare_ = 0;         // unused records, linked through `after`
  std::uint8_t page_shift_ = 0;
  std::uint8_t slot_shift_ = no_slots;
  first_region_by_page starts_{};
  std::vector<kind_state> kinds_{};  // the first one is not used
  std::uint32_t used_ = stride;      // records that have ever been in use, the first two with them
  std::uint32_t committed_ = 0;
  std::uint32_t limit_ = 0;
  std::uint32_t count_granules_ = 0;
  reserved_memory node_memory_{};
  reserved_memory mark_memory_{};
};

/// A region begins at a new place, the first of its page if its left neighbour, which begins at
/// `offset_before`, is in an earlier page.
inline void region_map::note_start(std::uint32_t index, std::uint32_t offset_before) noexcept {
  debug_check([&] { return offset_before <= nodes_[index].offset; }, "neighbours are out of order");
  const std::uint32_t page = nodes_[index].offset >> page_shift_;
  if (page != offset_before >> page_shift_) starts_.set(page, index);
}

/// Undoes that. Called before the region's links are undone.
inline void region_map::forget_start(std::uint32_t index, std::uint32_t offset_before) noexcept {
  const std::uint32_t page = nodes_[index].offset >> page_shift_;
  if (page == offset_before >> page_shift_) return;
  debug_check([&] { return starts_.at(page) == index; }, "a page's first region is another");
  const std::uint32_t next = nodes_[index].after;
  const bool same_page = next != 0 && nodes_[next].offset >> page_shift_ == page;
  starts_.set(page, same_page ? next : 0);
}

inline void region_map::list(region_id id, region_kind kind) noexcept {
  const std::uint32_t index = index_of(id);
  region_record& node = nodes_[index];
  debug_check([&] { return node.is_unlisted() && kind != region_kind::unlisted; },
              "a region is listed twice, or under no kind");
  kind_state& state = states_[static_cast<std::uint32_t>(kind)];
  debug_check([&] { return static_cast<std::uint32_t>(kind) < kinds_.size(); }, "no such kind");
  node.size_word &= size_mask;
  set_kind(index, kind);
  std::construct_at(&node.links);
  state.bins.insert(index);
  state.granules += node.size();
  ++state.count;
  debug_check([&] { return state.count < used_; }, "a kind has more regions than exist");
  debug_check([&] { return state.granules <= count_granules_; }, "a kind has too many granules");
  if (is_large(node.size())) {
    state.large.set(node.offset >> slot_shift_, node.size(), index);
  }
}

inline void region_map::unlist(region_id id) noexcept {
  const std::uint32_t index = index_of(id);
  region_record& node = nodes_[index];
  debug_check([&] { return !node.is_unlisted(); },
              "a region is taken off a list that it is not on");
  kind_state& state = states_[static_cast<std::uint32_t>(note_of(index).kind)];
  state.bins.remove(index);
  check(state.count != 0 && state.granules >= node.size(), "a kind's count would fall below zero");
  state.granules -= node.size();
  --state.count;
  debug_check([&] { return state.count != 0 || state.granules == 0; },
              "a kind without regions has granules");
  if (is_large(node.size())) state.large.remove(node.offset >> slot_shift_);
  set_kind(index, region_kind::unlisted);
  node.size_word |= unlisted_bit;
}

inline std::uint32_t region_map::new_record() noexcept {
  const std::uint32_t index = spare_;
  if (index == 0) {
    check(used_ < committed_, "a region is cut without memory for its record");
    used_ += stride;
    debug_check([this] { return used_ <= committed_; }, "a record is partly outside of its memory");
    return used_ - stride;
  }
  debug_check([&] { return nodes_[index].size() == 0; }, "a spare record is in use");
  spare_ = nodes_[index].after;
  return index;
}

inline void region_map::drop_record(std::uint32_t index) noexcept {
  debug_check([&] { return index != 0 && nodes_[index].size() != 0; }, "a record is spare already");
  nodes_[index].size_word = 0;
  nodes_[index].after = spare_;
  spare_ = index;
}

inline region_id region_map::cut(region_id id, std::uint32_t count_left) noexcept {
  const std::uint32_t index = index_of(id);
  region_record& left = nodes_[index];
  check(left.is_unlisted() && count_left - 1 < left.size() - 1,
        "a region is cut outside of itself");
  const std::uint32_t rest = new_record();
  region_record& right = nodes_[rest];
  right.offset = left.offset + count_left;
  right.size_word = (left.size() - count_left) | unlisted_bit;
  right.before = index;
  right.after = left.after;
  nodes_[left.after].before = rest;
  left.after = rest;
  left.size_word = count_left | unlisted_bit;
  debug_check([&] { return left.size() != 0 && right.size() != 0; }, "a part of a region is empty");
  debug_check([&] { return nodes_[right.after].before == rest; }, "neighbour links disagree");
  note_of(rest) = note_of(index);
  note_of(rest).link = nullptr;
  note_start(rest, left.offset);
  return static_cast<region_id>(rest);
}

inline void region_map::join(region_id left_id, region_id right_id) noexcept {
  const std::uint32_t index = index_of(left_id);
  const std::uint32_t gone = index_of(right_id);
  region_record& left = nodes_[index];
  region_record& right = nodes_[gone];
  check(left.is_unlisted() && right.is_unlisted() && left.after == gone && gone != 0,
        "regions are joined that are not adjacent and unlisted");
  debug_check([&] { return left.offset + left.size() == right.offset; }, "regions have a gap");
  forget_start(gone, left.offset);
  debug_check([&] { return right.before == index; }, "neighbour links disagree");
  left.size_word += right.size();
  left.after = right.after;
  debug_check(
      [&] { return left.after == 0 || nodes_[left.after].offset == left.offset + left.size(); },
      "joined regions leave a gap");
  nodes_[right.after].before = index;
  drop_record(gone);
}

/// Moves a listed region's borders, and updates its kind's tables. The caller updates links and
/// starts.
[[gnu::always_inline]] inline void region_map::resize_listed(std::uint32_t index,
                                                             granule_range to) noexcept {
  region_record& node = nodes_[index];
  kind_state& state = states_[static_cast<std::uint32_t>(note_of(index).kind)];
  const granule_range from{node.offset, node.size()};
  debug_check([&] { return to.count != 0 && to.end() <= count_granules_; },
              "a region is moved out");
  state.granules += std::uint64_t{to.count} - from.count;
  debug_check([&] { return state.granules <= count_granules_; }, "a kind has too many granules");
  state.bins.resize(index, to.count);
  node.offset = to.offset;
  if (!is_large(from.count) && !is_large(to.count)) return;
  const std::uint32_t slot = to.offset >> slot_shift_;
  const bool moves = from.offset >> slot_shift_ != slot;
  if (is_large(from.count) && (!is_large(to.count) || moves))
    state.large.remove(from.offset >> slot_shift_);
  if (is_large(to.count)) state.large.set(slot, to.count, index);
}

inline region_id region_map::take_head(region_id id, std::uint32_t count) noexcept {
  const std::uint32_t index = index_of(id);
  region_record& node = nodes_[index];
  const granule_range all{node.offset, node.size()};
  debug_check([&] { return !node.is_unlisted() && count - 1 < all.count - 1; },
              "a listed region is cut outside of itself");
  const std::uint32_t taken = new_record();
  region_record& front = nodes_[taken];
  front.offset = all.offset;
  front.size_word = count | unlisted_bit;
  front.before = node.before;
  front.after = index;
  if (begins_page(node)) starts_.replace(all.offset >> page_shift_, index, taken);
  nodes_[node.before].after = taken;
  node.before = taken;
  note_of(taken) = note_record{0, region_kind::unlisted, 0, note_of(index).link};
  note_of(index).link = nullptr;
  resize_listed(index, {all.offset + count, all.count - count});
  debug_check([&] { return front.offset + front.size() == node.offset; }, "regions have a gap");
  note_start(index, all.offset);
  return static_cast<region_id>(taken);
}

inline void region_map::absorb_right(region_id id) noexcept {
  const std::uint32_t index = index_of(id);
  region_record& node = nodes_[index];
  const std::uint32_t gone = node.after;
  region_record& right = nodes_[gone];
  debug_check([&] { return !node.is_unlisted() && right.is_unlisted() && gone != 0; },
              "a listed region absorbs a region that it cannot");
  forget_start(gone, node.offset);
  const std::uint32_t count = node.size() + right.size();
  debug_check([&] { return node.offset + node.size() == right.offset; }, "regions have a gap");
  node.after = right.after;
  nodes_[right.after].before = index;
  resize_listed(index, {node.offset, count});
  debug_check([&] { return node.size() == count; }, "a joined region has a wrong size");
  drop_record(gone);
}

inline void region_map::absorb_left(region_id id) noexcept {
  const std::uint32_t index = index_of(id);
  region_record& node = nodes_[index];
  const std::uint32_t gone = node.before;
  region_record& left = nodes_[gone];
  debug_check([&] { return !node.is_unlisted() && left.is_unlisted() && gone != 0; },
              "a listed region absorbs a region that it cannot");
  forget_start(index, left.offset);
  if (begins_page(left)) starts_.replace(left.offset >> page_shift_, gone, index);
  note_of(index).link = note_of(gone).link;
  debug_check([&] { return left.offset + left.size() == node.offset; }, "regions have a gap");
  const granule_range all{left.offset, left.size() + node.size()};
  node.before = left.before;
  nodes_[left.before].after = index;
  resize_listed(index, all);
  debug_check([&] { return node.offset == all.offset && node.size() == all.count; },
              "a joined region has a wrong size");
  drop_record(gone);
}

}  // namespace vmm

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module vmm.va;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {

namespace {

[[nodiscard]] bool allowed(const region_map_options& options) noexcept {
  const bool sizes = options.count_granules != 0 && options.count_granules <= max_range_granules;
  const bool page = std::has_single_bit(options.page_granules);
  const bool slot = options.slot_granules == 0 || std::has_single_bit(options.slot_granules);
  return sizes && page && slot && options.max_regions != 0;
}

[[nodiscard]] std::uint32_t parts(std::uint32_t count, std::uint32_t unit) noexcept {
  check(unit != 0, "a count is divided into parts of nothing");
  return count / unit + (count % unit != 0 ? 1 : 0);
}

/// Of a bit for each region.
[[nodiscard]] std::uint64_t mark_bytes(std::uint64_t region_count) noexcept {
  check(region_count != 0, "a region map has no room for a region");
  return round_up(region_count, 64) / 8;
}

}  // namespace

result<region_map> region_map::create(const region_map_options& options) noexcept {
  if (!allowed(options)) {
    return refuse(errc::invalid_argument,
                  "a region map needs 1 to 2^30 - 1 granules, and pages and slots that are powers "
                  "of two");
  }
  region_map made;
  made.count_granules_ = options.count_granules;
  made.page_shift_ = static_cast<std::uint8_t>(std::countr_zero(options.page_granules));
  if (options.slot_granules != 0)
    made.slot_shift_ = static_cast<std::uint8_t>(std::countr_zero(options.slot_granules));
  made.limit_ = (std::min(options.max_regions, options.count_granules) + 1) * stride;
  check(made.limit_ >= 2 * stride, "a region map has no room for a region");
  const std::uint32_t first = std::min(made.limit_, (first_regions + 1) * stride);
  result<reserved_memory> nodes =
      reserved_memory::reserve(std::uint64_t{first} * sizeof(region_record));
  if (!nodes) return nodes.error();
  result<first_region_by_page> starts =
      first_region_by_page::create(parts(options.count_granules, options.page_granules));
  if (!starts) return starts.error();
  result<reserved_memory> marks = reserved_memory::reserve(mark_bytes(made.limit_ / stride));
  if (!marks) return marks.error();
  made.node_memory_ = std::move(*nodes);
  made.mark_memory_ = std::move(*marks);
  made.starts_ = std::move(*starts);
  check(std::uint64_t{made.starts_.page_count()} << made.page_shift_ >= options.count_granules,
        "a granule lies in no page");
  made.nodes_ = reinterpret_cast<region_record*>(made.node_memory_.data());
  made.marks_ = reinterpret_cast<std::uint64_t*>(made.mark_memory_.data());
  constexpr error no_memory = refuse(errc::out_of_host_memory, "no host memory for a region map");
  if (!made.commit(2 * stride)) return no_memory;
  try {
    made.kinds_.resize(1);
    made.states_ = made.kinds_.data();
  } catch (const std::bad_alloc&) {
    return no_memory;
  }
  made.used_ = 2 * stride;
  *made.nodes_ = region_record{0, unlisted_bit, stride, stride, {bin_links{}}};
  made.nodes_[stride] =
      region_record{0, options.count_granules | unlisted_bit, 0, 0, {bin_links{}}};
  made.note_of(stride) = note_record{0, region_kind::unlisted, 0, nullptr};
  made.starts_.set(0, stride);
  paranoid_check([&] { return made.validate().has_value(); }, "a region map begins wrongly");
  return result<region_map>(std::move(made));
}

// For what the spare records do not serve.
bool region_map::provide_fresh(std::uint32_t count) noexcept {
  check(used_ <= committed_, "a record is used without memory");
  for (std::uint32_t spare = spare_; spare != 0 && count != 0; spare = nodes_[spare].after) --count;
  return committed_ - used_ >= count * stride || commit(used_ + count * stride);
}

/// Memory for the first `count` records.
bool region_map::commit(std::uint32_t count) noexcept {
  if (count > limit_) return false;
  const std::uint64_t size_bytes = std::uint64_t{count} * sizeof(region_record);
  if (size_bytes > node_memory_.reserved_bytes() && !extend(size_bytes)) return false;
  if (!node_memory_.commit(size_bytes)) return false;
  const std::uint64_t room =
      node_memory_.committed_bytes() / sizeof(region_record) / stride * stride;
  const std::uint64_t granted = std::min<std::uint64_t>(room, limit_);
  if (!mark_memory_.commit(mark_bytes(granted / stride))) return false;
  check(granted >= count && granted % stride == 0, "memory for half a record, or for too few");
  check(granted >= committed_ && granted >= used_, "there is memory for fewer records than before");
  committed_ = static_cast<std::uint32_t>(granted);
  return true;
}

// Every holder of the records' address gets the new one.
bool region_map::extend(std::uint64_t size_bytes) noexcept {
  const std::uint64_t limit_bytes = std::uint64_t{limit_} * sizeof(region_record);
  const std::uint64_t twice = node_memory_.reserved_bytes() * 2;
  if (!node_memory_.extend(std::min(std::max(size_bytes, twice), limit_bytes))) return false;
  check(node_memory_.reserved_bytes() >= size_bytes, "records are extended by too little");
  nodes_ = reinterpret_cast<region_record*>(node_memory_.data());
  check(nodes_ != nullptr && nodes_[0].size() == 0, "records were extended and not copied");
  for (kind_state& each : kinds_) each.bins.rebase(nodes_);
  return true;
}

result<region_map::kind_state> region_map::make_kind() const noexcept {
  kind_state made;
  const std::uint32_t slots = has_slots() ? parts(count_granules_, 1u << slot_shift_) : 0;
  const std::uint64_t size_bytes = size_bins<region_record>::table_bytes(count_granules_);
  result<reserved_memory> memory =
      reserved_memory::make(size_bytes, "no host memory for one more kind of region");
  if (!memory) return memory.error();
  made.memory = std::move(*memory);
  made.bins.attach(nodes_, made.memory.data(), count_granules_);
  if (slots != 0) {
    result<first_fit> large = first_fit::create(slots);
    if (!large) return large.error();
    made.large = std::move(*large);
  }
  check(made.bins.largest() == 0 && made.count == 0, "a kind begins with regions");
  return result<kind_state>(std::move(made));
}

result<region_kind> region_map::add_kind() noexcept {
  if (kinds_.size() > max_kinds)
    return refuse(errc::invalid_argument, "a region map has 4096 kinds at most");
  result<kind_state> made = make_kind();
  if (!made) return made.error();
  try {
    kinds_.push_back(std::move(*made));
    states_ = kinds_.data();
  } catch (const std::bad_alloc&) {
    return refuse(errc::out_of_host_memory, "no host memory for one more kind of region");
  }
  check(kind_count() <= max_kinds, "there are too many kinds");
  return static_cast<region_kind>(kinds_.size() - 1);
}

region_id region_map::find_page(std::uint32_t page) const noexcept {
  const std::uint32_t offset = page << page_shift_;
  check(offset < count_granules_, "a page is looked up that is not in the range");
  const std::uint32_t next = starts_.next(page);
  if (next == starts_.page_count()) return last();
  const std::uint32_t start = starts_.at(next);
  check(start != 0 && nodes_[start].offset >= offset, "a page's first region begins elsewhere");
  if (nodes_[start].offset == offset) return static_cast<region_id>(start);
  return static_cast<region_id>(nodes_[start].before);
}

region_id region_map::find(std::uint32_t offset) const noexcept {
  region_id id = find_page(offset >> page_shift_);
  check(offset < count_granules_, "a granule is looked up that is not in the range");
  while (where(id).end() <= offset) id = after(id);
  debug_check([&] { return where(id).offset <= offset; },
              "a found region begins behind the granule");
  return id;
}

const char* region_map::broken_chain(std::uint32_t& region_count) const noexcept {
  std::uint32_t offset = 0;
  std::uint32_t before = 0;
  std::uint32_t page_next = 0;  // the first page that no region seen so far begins in
  for (std::uint32_t index = nodes_[0].after; index != 0; index = nodes_[index].after) {
    if (index >= used_ || ++region_count >= used_) return "neighbour links are wrong";
    const region_record& node = nodes_[index];
    if (node.before != before) return "neighbour links disagree";
    if (node.offset != offset || node.size() == 0) return "I1: regions do not tile the range";
    const region_kind noted = note_of(index).kind;
    if (node.is_unlisted() != (noted == region_kind::unlisted) ||
        node.is_unlisted() == is_marked(index))
      return "I2: a region's kind disagrees with its mark";
    const std::uint32_t page = offset >> page_shift_;
    for (; page_next < page; ++page_next) {
      if (starts_.at(page_next) != 0) return "a page has a region that begins elsewhere";
    }
    if (page_next == page) {
      if (starts_.at(page) != index) return "I3: a page's first region is not recorded";
      ++page_next;
    }
    offset += node.size();
    before = index;
  }
  if (offset != count_granules_ || nodes_[0].before != before)
    return "I1: regions do not fill the range";
  return starts_.broken_invariant();
}

const char* region_map::broken_large(const kind_state& state, region_kind kind) const noexcept {
  std::uint32_t large_count = 0;
  for (std::uint32_t index = nodes_[0].after; index != 0; index = nodes_[index].after) {
    const region_record& node = nodes_[index];
    if (note_of(index).kind != kind || !is_large(node.size())) continue;
    const std::uint32_t slot = node.offset >> slot_shift_;
    if (state.large.size_at(slot) != node.size() || state.large.region_at(slot) != index)
      return "I2: a large region is not in the index of large places";
    ++large_count;
  }
  return state.large.broken_invariant(large_count);
}

const char* region_map::broken_kinds() const noexcept {
  for (std::size_t number = 1; number < kinds_.size(); ++number) {
    const kind_state& state = kinds_[number];
    const auto kind = static_cast<region_kind>(number);
    if (const char* broken = state.bins.broken_invariant(state.count); broken != nullptr)
      return broken;
    std::uint64_t granules = 0;
    for (region_id id = first(); id != region_id::none; id = after(id)) {
      if (this->kind(id) == kind) granules += where(id).count;
    }
    if (granules != state.granules) return "a kind's count of granules is wrong";
    if (!has_slots()) continue;
    if (const char* broken = broken_large(state, kind); broken != nullptr) return broken;
  }
  return nullptr;
}

status region_map::validate() const noexcept {
  std::uint32_t region_count = 0;
  const char* broken = broken_chain(region_count);
  if (broken == nullptr) broken = broken_kinds();
  std::uint32_t spare_count = 0;
  for (std::uint32_t index = spare_; index != 0 && spare_count < used_;
       index = nodes_[index].after) {
    ++spare_count;
    if (is_marked(index)) broken = "a spare record has a kind";
  }
  if ((1 + region_count + spare_count) * stride != used_)
    broken = "a record is neither a region nor spare";
  if (broken != nullptr) return refuse(errc::internal, broken);
  return {};
}

}  // namespace vmm

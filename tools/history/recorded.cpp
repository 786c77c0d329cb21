// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// A recording of another library as a history: to stand beside one of ours.
//
// Events of blocks have the requested size, blocks the one that it was rounded up to: an event's
// size is its block's if that is known, else rounded up to 512, which is the same for an allocation
// and its free. Memory that can be unmapped in parts is listed in parts, cut wherever an event of
// the recording cuts it.
module vmm.history_tools;

import vmm.backend;
import vmm.observe;
import vmm.recording;
import vmm.std;
import vmm.trace;

namespace vmm::tools {

namespace {

constexpr std::uint64_t part_count_max = std::uint64_t{1} << 22;

class recorded_history {
 public:
  recorded_history(const recording& from, std::uint64_t device)
      : from_(from), device_(device), events_(events_of(from, device)) {}

  [[nodiscard]] history make() {
    find_cuts();
    for (const recorded_segment& each : from_.segments)
      if (each.device == device_) add_segment(each);
    if (from_.form == recording_form::rmm_log) add_last_blocks();
    const auto by_address = [](const auto& a, const auto& b) {
      return a.where.base < b.where.base;
    };
    std::sort(out_.regions.begin(), out_.regions.end(), by_address);
    std::sort(out_.mappings.begin(), out_.mappings.end(), by_address);
    for (const history_mapping& each : out_.mappings) held_bytes_ += each.where.size_bytes;
    for (const history_region& each : out_.regions)
      live_bytes_ += each.kind == history_region_kind::live ? each.where.size_bytes : 0;
    find_last_allocations();
    out_.events.reserve(events_.size());
    add_live_before();
    for (std::size_t i = 0; i < events_.size(); ++i) add_event(i);
    count_footprint();
    add_facts();
    return std::move(out_);
  }

 private:
  // ---- the layout at the end ---------

  static bool is_whole(std::uint64_t at, std::uint64_t size_bytes) {
    return size_bytes != 0 && size_bytes <= std::numeric_limits<std::uint64_t>::max() - at;
  }
  void find_cuts() {
    for (const recorded_event& each : events_) {
      const bool is_part = each.action == recorded_action::segment_map ||
                           each.action == recorded_action::segment_unmap;
      if (!is_part || !is_whole(each.at, each.size_bytes)) continue;
      cuts_.push_back(each.at);
      cuts_.push_back(each.at + each.size_bytes);
    }
    std::sort(cuts_.begin(), cuts_.end());
    cuts_.erase(std::unique(cuts_.begin(), cuts_.end()), cuts_.end());
  }
  // Beyond a bound of all parts, which no allocator's file reaches, ranges are not cut.
  template <class Each>
  void for_each_part(std::uint64_t at, std::uint64_t size_bytes, Each&& each) {
    if (!is_whole(at, size_bytes)) return;
    const std::uint64_t end = at + size_bytes;
    auto cut = std::upper_bound(cuts_.begin(), cuts_.end(), at);
    while (at < end) {
      const bool is_cut = cut != cuts_.end() && *cut < end && part_count_ < part_count_max;
      const std::uint64_t next = is_cut ? *cut++ : end;
      each(at, next - at);
      at = next;
      ++part_count_;
    }
  }
  void add_segment(const recorded_segment& segment) {
    is_any_expandable_ = is_any_expandable_ || segment.is_expandable;
    const auto add = [&](std::uint64_t at, std::uint64_t bytes) {
      out_.mappings.push_back({{{at}, bytes}, false});
    };
    if (segment.is_expandable) {
      for_each_part(segment.base, segment.size_bytes, add);
    } else if (is_whole(segment.base, segment.size_bytes)) {
      add(segment.base, segment.size_bytes);
    }
    for (std::uint32_t i = 0; i < segment.block_count; ++i) {
      const recorded_block& block = from_.blocks[segment.first_block + i];
      if (!is_whole(block.base, block.size_bytes)) continue;
      const bool is_live = block.state != block_state::free;
      out_.regions.push_back({{{block.base}, block.size_bytes},
                              from_.streams[segment.stream],
                              is_live ? history_region_kind::live : history_region_kind::free});
      if (is_live) live_blocks_.emplace(block.base, &block);
    }
  }

  // A log has no segments: what its events leave live. Of blocks that overlap the first is taken.
  void add_last_blocks() {
    std::map<std::uint64_t, const recorded_event*> live;
    for (const recorded_event& each : events_) {
      if (each.action == recorded_action::alloc) live[each.at] = &each;
      if (each.action == recorded_action::free_completed) live.erase(each.at);
    }
    std::uint64_t end = 0;
    for (const auto& [at, event] : live) {
      const std::uint64_t bytes = rounded(event->size_bytes);
      if (at < end || !is_whole(at, bytes)) continue;
      end = at + bytes;
      out_.regions.push_back(
          {{{at}, bytes}, from_.streams[event->stream], history_region_kind::live});
    }
  }

  // ---- events ----

  void find_last_allocations() {
    for (std::size_t i = 0; i < events_.size(); ++i) {
      const recorded_event& each = events_[i];
      if (each.action == recorded_action::alloc) last_allocation_[each.at] = i;
      if (each.action == recorded_action::free_completed) last_allocation_.erase(each.at);
      if (each.action == recorded_action::free_completed ||
          each.action == recorded_action::free_requested)
        is_freed_.insert(each.at);
      first_time_us_ = std::min<std::uint64_t>(first_time_us_, each.time_us);
    }
  }
  // Blocks that no event names, and whose stack the file has.
  void add_live_before() {
    for (const auto& [at, block] : live_blocks_) {
      if (block->context == 0 || is_freed_.contains(at) || last_allocation_.contains(at)) continue;
      history_event event{
          .at = {at},
          .size_bytes = block->size_bytes,
          .detail = block->asked_bytes != 0 ? block->asked_bytes : block->size_bytes,
          .kind = history_kind::allocated};
      name({.context = block->context}, event);
      out_.events.push_back(event);
    }
  }
  void add_event(std::size_t index) {
    const recorded_event& each = events_[index];
    history_event made;
    const std::uint64_t us = each.time_us > first_time_us_ ? each.time_us - first_time_us_ : 0;
    now_ns_ = std::max(now_ns_, us * 1000);
    made.time_ns = now_ns_;
    made.at = {each.at};
    made.size_bytes = each.size_bytes;
    made.stream = from_.streams[each.stream];
    switch (each.action) {
      case recorded_action::segment_alloc:
      case recorded_action::segment_map: return add_mapping(made, history_kind::mapped, each);
      case recorded_action::segment_free:
      case recorded_action::segment_unmap: return add_mapping(made, history_kind::released, each);
      case recorded_action::alloc:
        made.kind = history_kind::allocated;
        made.detail = each.size_bytes;
        made.size_bytes = block_bytes(each, index);
        break;
      case recorded_action::free_completed:
        made.kind = history_kind::freed;
        made.size_bytes = block_bytes(each, index);
        break;
      case recorded_action::free_requested:
        if (index + 1 < events_.size() && events_[index + 1].at == each.at &&
            events_[index + 1].action == recorded_action::free_completed)
          return;
        made.kind = history_kind::free_pinned;
        made.size_bytes = block_bytes(each, index);
        break;
      case recorded_action::oom:
        made.kind = history_kind::short_of_memory;
        made.at = {static_cast<std::uint64_t>(errc::out_of_memory)};
        break;
      default: return;
    }
    name(each, made);
    out_.events.push_back(made);
  }
  [[nodiscard]] std::uint64_t block_bytes(const recorded_event& each, std::size_t index) const {
    const auto block = live_blocks_.find(each.at);
    const auto last = last_allocation_.find(each.at);
    const bool is_block =
        block != live_blocks_.end() && last != last_allocation_.end() && index >= last->second;
    return is_block ? block->second->size_bytes : rounded(each.size_bytes);
  }
  [[nodiscard]] std::uint64_t rounded(std::uint64_t size_bytes) const noexcept {
    constexpr std::uint64_t most = std::uint64_t{1} << 62;
    constexpr std::uint64_t rmm_unit_bytes = 256;
    const std::uint64_t unit_bytes =
        from_.form == recording_form::rmm_log ? rmm_unit_bytes : live_unit_bytes;
    if (size_bytes >= most) return size_bytes;
    return std::max((size_bytes + unit_bytes - 1) / unit_bytes * unit_bytes, unit_bytes);
  }
  void add_mapping(const history_event& made, history_kind kind, const recorded_event& from) {
    const auto add = [&](std::uint64_t at, std::uint64_t bytes) {
      history_event each = made;
      each.kind = kind;
      each.at = {at};
      each.size_bytes = bytes;
      out_.events.push_back(each);
    };
    const bool is_part = from.action == recorded_action::segment_map ||
                         from.action == recorded_action::segment_unmap;
    if (is_part) {
      for_each_part(from.at, from.size_bytes, add);
    } else {
      add(from.at, from.size_bytes);
    }
    out_.events.push_back({.time_ns = made.time_ns, .kind = history_kind::footprint});
  }
  // The memory held before the first event, from that held after the last.
  void count_footprint() {
    std::uint64_t held = held_bytes_;
    for (std::size_t i = out_.events.size(); i-- != 0;) {
      history_event& each = out_.events[i];
      if (each.kind == history_kind::footprint) each.size_bytes = held;
      if (each.kind == history_kind::mapped) held -= std::min(held, each.size_bytes);
      if (each.kind == history_kind::released) held += each.size_bytes;
    }
  }

  // ---- names ----

  void name(const recorded_event& from, history_event& into) {
    const recorded_context& context = from_.contexts[from.context];
    into.frame = frame_of(context.stack);
    into.tag = tag_of(context.tag);
  }
  // The innermost line of Python; without one the innermost line.
  [[nodiscard]] std::uint32_t frame_of(std::uint32_t stack) {
    if (stack == 0) return 0;
    const auto [known, is_new] = frames_by_stack_.try_emplace(stack, 0);
    if (!is_new) return known->second;
    const recorded_range& range = from_.stacks[stack];
    const auto frames = std::span(from_.stack_frames).subspan(range.first, range.count);
    if (frames.size() > 1) ++cut_stack_count_;
    std::uint32_t chosen = frames.front();
    for (const std::uint32_t each : frames) {
      if (!from_.text(from_.frames[each].file).ends_with(".py")) continue;
      chosen = each;
      break;
    }
    const auto [place, is_first] =
        frames_.try_emplace(chosen, static_cast<std::uint32_t>(out_.frames.size() + 1));
    const recorded_frame& frame = from_.frames[chosen];
    if (is_first)
      out_.frames.push_back({from_.text(frame.file), from_.text(frame.function), frame.line});
    return known->second = place->second;
  }
  [[nodiscard]] std::uint16_t tag_of(std::uint32_t text) {
    if (text == 0) return 0;
    if (const auto known = tags_.find(text); known != tags_.end()) return known->second;
    if (out_.tags.size() == 0xffff) {
      ++dropped_tag_count_;
      return 0;
    }
    out_.tags.push_back(from_.text(text));
    const auto number = static_cast<std::uint16_t>(out_.tags.size());
    tags_.emplace(text, number);
    return number;
  }
  void add_facts() {
    const auto add = [&](const char* name, std::string what) {
      out_.facts.push_back({name, std::move(what)});
    };
    const bool is_torch = from_.form == recording_form::torch_snapshot;
    add("allocator", is_torch ? "PyTorch" : "RMM");
    if (is_torch) add("policy", is_any_expandable_ ? "expandable segments" : "caching");
    add("page_bytes", std::to_string(std::uint64_t{2} << 20));
    add("device", std::to_string(device_) + " of " + std::to_string(device_count(from_)));
    add("live_bytes", std::to_string(live_bytes_));
    add("held_bytes", std::to_string(held_bytes_));
    const auto add_count = [&](const char* name, std::uint64_t count) {
      if (count != 0) add(name, std::to_string(count));
    };
    add_count("stacks cut to a line", cut_stack_count_);
    add_count("tags left out", dropped_tag_count_);
    add_count("texts left out", from_.dropped_text_count);
    add_count("stacks left out", from_.dropped_stack_count);
  }

  const recording& from_;
  const std::uint64_t device_;
  const std::span<const recorded_event> events_;
  history out_{};
  std::vector<std::uint64_t> cuts_{};
  std::map<std::uint64_t, const recorded_block*> live_blocks_{};
  std::unordered_map<std::uint64_t, std::size_t> last_allocation_{};  // of the blocks live at the
                                                                      // end
  std::unordered_set<std::uint64_t> is_freed_{};
  std::unordered_map<std::uint32_t, std::uint32_t> frames_by_stack_{};
  std::unordered_map<std::uint32_t, std::uint32_t> frames_{};
  std::unordered_map<std::uint32_t, std::uint16_t> tags_{};
  std::uint64_t first_time_us_ = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t now_ns_ = 0;
  std::uint64_t held_bytes_ = 0;
  std::uint64_t live_bytes_ = 0;
  std::uint64_t part_count_ = 0;
  std::uint64_t cut_stack_count_ = 0;
  std::uint64_t dropped_tag_count_ = 0;
  bool is_any_expandable_ = false;
};

// Empty, or that two segments or blocks claim the same addresses.
[[nodiscard]] std::string overlap_of(const history& made) {
  std::uint64_t end = 0;
  for (const history_mapping& each : made.mappings) {
    if (each.where.base.value < end) return "two segments of the recording overlap";
    end = each.where.base.value + each.where.size_bytes;
  }
  end = 0;
  for (const history_region& each : made.regions) {
    if (each.where.base.value < end) return "two blocks of the recording overlap";
    end = each.where.base.value + each.where.size_bytes;
  }
  return "";
}

}  // namespace

history_outcome to_history(recording_outcome&& read, const std::optional<std::uint64_t>& device) {
  history_outcome out;
  out.problem = std::move(read.problem);
  if (!out.problem.empty()) return out;
  out.problem = problem_of_device(read.value, device);
  if (!out.problem.empty()) return out;
  if (read.value.taken) {
    out.taken = std::move(*read.value.taken);
    return out;
  }
  if (read.value.form == recording_form::trace) {
    out.problem = "a trace has no addresses: ./run replay TRACE --history FILE makes a history";
    return out;
  }
  history made = recorded_history(read.value, device ? *device : busiest_device(read.value)).make();
  out.problem = overlap_of(made);
  if (out.problem.empty()) out.taken = std::move(made);
  return out;
}

}  // namespace vmm::tools

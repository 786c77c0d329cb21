// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// PyTorch's memory snapshot. Its viewer lays the blocks of a segment end to end, runs the events
// backward from the segments, and joins neighbours of one stream; so a run of mapped memory is one
// segment, free memory in it is a block, and all segments are of stream 0, since a run may serve
// several. Sizes of blocks are as rounded up: allocations and frees cancel out.
module vmm.history_tools;

import vmm.backend;
import vmm.observe;
import vmm.std;
import vmm.trace;

namespace vmm::tools {

namespace {

// ---- pickle, protocol 4 ----------------------------------------------------------------

// Of the opcodes of protocol 4 only those that the viewer's reader has.
class pickle_writer {
 public:
  pickle_writer() { out_ = "\x80\x04"; }
  [[nodiscard]] std::string end() && {
    out_ += '.';
    return std::move(out_);
  }

  // Readers take nothing but UTF-8.
  void text(std::string_view bytes) {
    const std::string value = to_utf8(bytes);
    const auto known = memo_.find(value);
    if (known != memo_.end()) {
      const bool is_short = known->second < 256;
      out_ += is_short ? 'h' : 'j';
      little(known->second, is_short ? 1 : 4);
      return;
    }
    const bool is_short = value.size() < 256;
    out_ += is_short ? '\x8c' : 'X';
    little(value.size(), is_short ? 1 : 4);
    out_ += value;
    out_ += '\x94';
    memo_.emplace(value, memo_.size());
  }
  void number(std::uint64_t value) {
    if (value < 0x100) return numbered('K', value, 1);
    if (value < 0x10000) return numbered('M', value, 2);
    if (value < 0x80000000) return numbered('J', value, 4);
    // The top bit is the sign's.
    std::size_t bytes = 0;
    while (bytes < 8 && value >> (8 * bytes) != 0) ++bytes;
    const bool is_negative = (value >> (8 * bytes - 1) & 1) != 0;
    out_ += '\x8a';
    out_ += static_cast<char>(bytes + (is_negative ? 1 : 0));
    little(value, bytes);
    if (is_negative) out_ += '\0';
  }
  void truth(bool value) { out_ += value ? '\x88' : '\x89'; }
  void begin_dict() { out_ += "}("; }
  void end_dict() { out_ += 'u'; }
  void begin_list() { out_ += "]("; }
  void end_list() { out_ += 'e'; }
  void pair_of_zeros() {
    number(0);
    number(0);
    out_ += '\x86';
  }

  void entry(std::string_view key, std::uint64_t value) {
    text(key);
    number(value);
  }
  void entry(std::string_view key, std::string_view value) {
    text(key);
    text(value);
  }

 private:
  void numbered(char opcode, std::uint64_t value, std::size_t bytes) {
    out_ += opcode;
    little(value, bytes);
  }
  void little(std::uint64_t value, std::size_t bytes) {
    for (std::size_t i = 0; i < bytes; ++i) out_ += static_cast<char>(value >> (8 * i) & 0xff);
  }

  std::string out_;
  std::map<std::string, std::uint64_t> memo_;
};

// ---- the snapshot ----------------------------------------------------------------------

class snapshot_writer {
 public:
  snapshot_writer(const history& taken, const history_account& account)
      : taken_(taken), account_(account) {}

  [[nodiscard]] std::string write() && {
    out_.begin_dict();
    out_.text("segments");
    write_segments();
    out_.text("device_traces");
    out_.begin_list();
    write_trace();
    out_.end_list();
    out_.text("allocator_settings");
    out_.begin_dict();
    for (const history_fact& each : taken_.facts) out_.entry("vmm_" + each.name, each.value);
    out_.entry("vmm_events_lost", taken_.lost_count);
    out_.end_dict();
    out_.end_dict();
    return std::move(out_).end();
  }

 private:
  struct part {
    std::uint64_t size_bytes = 0;
    const known_block* block = nullptr;  // null: free
  };

  // ---- segments ----
  void write_segments() {
    out_.begin_list();
    if (account_.is_manager) {
      for (const auto& [at, block] : account_.live_after) {
        if (block.size_bytes == 0) continue;  // its memory is another's
        write_segment(at, block.size_bytes, {{block.size_bytes, &block}});
      }
      out_.end_list();
      return;
    }
    auto next = account_.mapped_after.begin();
    while (next != account_.mapped_after.end()) {
      const std::uint64_t base = next->first;
      std::uint64_t end = base;
      for (; next != account_.mapped_after.end() && next->first == end; ++next) end += next->second;
      write_segment(base, end - base, parts_of(base, end));
    }
    out_.end_list();
  }
  [[nodiscard]] std::vector<part> parts_of(std::uint64_t base, std::uint64_t end) const {
    std::vector<part> out;
    std::uint64_t at = base;
    for (auto each = account_.live_after.lower_bound(base);
         each != account_.live_after.end() && each->first < end; ++each) {
      if (each->first > at) out.push_back({each->first - at, nullptr});
      out.push_back({each->second.size_bytes, &each->second});
      at = each->first + each->second.size_bytes;
    }
    if (at < end) out.push_back({end - at, nullptr});
    return out;
  }
  void write_segment(std::uint64_t base, std::uint64_t size_bytes, const std::vector<part>& parts) {
    std::uint64_t allocated_bytes = 0;
    std::uint64_t active_bytes = 0;
    std::uint64_t asked_bytes = 0;
    for (const part& each : parts) {
      if (each.block == nullptr) continue;
      active_bytes += each.size_bytes;
      asked_bytes += each.block->asked_bytes;
      if (!each.block->is_pending) allocated_bytes += each.size_bytes;
    }
    out_.begin_dict();
    out_.entry("device", 0);
    out_.entry("address", base);
    out_.entry("total_size", size_bytes);
    out_.entry("allocated_size", allocated_bytes);
    out_.entry("active_size", active_bytes);
    out_.entry("requested_size", asked_bytes);
    out_.entry("stream", 0);
    out_.entry("segment_type", "large");
    out_.text("segment_pool_id");
    out_.pair_of_zeros();
    out_.text("is_expandable");
    out_.truth(true);
    write_frames(0);
    out_.text("blocks");
    out_.begin_list();
    for (const part& each : parts) {
      write_block(base, each);
      base += each.size_bytes;
    }
    out_.end_list();
    out_.end_dict();
  }
  void write_block(std::uint64_t at, const part& each) {
    const bool is_live = each.block != nullptr;
    const char* const state = !is_live                 ? "inactive"
                              : each.block->is_pending ? "active_pending_free"
                                                       : "active_allocated";
    out_.begin_dict();
    out_.entry("address", at);
    out_.entry("size", each.size_bytes);
    out_.entry("requested_size", is_live ? each.block->asked_bytes : 0);
    out_.entry("state", state);
    write_frames(is_live ? each.block->frame : 0);
    out_.end_dict();
  }
  void write_frames(std::uint32_t frame) {
    out_.text("frames");
    out_.begin_list();
    if (frame != 0) {
      const history_frame& at = taken_.frames[frame - 1];
      out_.begin_dict();
      out_.entry("filename", at.file);
      out_.entry("line", at.line);
      out_.entry("name", at.function);
      out_.end_dict();
    }
    out_.end_list();
  }

  // ---- events ----
  void write_trace() {
    out_.begin_list();
    for (const auto& [at, block] : account_.live_before)
      if (block.size_bytes != 0) live_[at] = {block.size_bytes, false};
    for (std::size_t i = 0; i < taken_.events.size(); ++i)
      if (account_.is_kept[i]) write_event(taken_.events[i]);
    out_.end_list();
  }
  struct place {
    std::uint64_t at = 0;
    std::uint64_t size_bytes = 0;
  };
  void write_action(const char* action, const place& where, const history_event& of,
                    const std::string& remark = "") {
    out_.begin_dict();
    out_.entry("action", action);
    out_.entry("addr", where.at);
    out_.entry("size", where.size_bytes);
    out_.entry("stream", std::string_view(action).starts_with("segment") ? 0 : of.stream);
    out_.entry("time_us", of.time_ns / 1000);
    write_frames(of.frame);
    const std::string tag = of.tag != 0 ? taken_.tags[of.tag - 1U] : "";
    if (!tag.empty() || !remark.empty()) out_.entry("user_metadata", remark.empty() ? tag : remark);
    if (!tag.empty()) out_.entry("category", tag);
    out_.end_dict();
  }
  // The viewer omits a block that has lost its memory to another.
  void begin_block(const place& where, const history_event& of, const std::string& remark = "") {
    if (where.size_bytes == 0) return;
    if (account_.is_manager) write_action("segment_alloc", where, of, remark);
    write_action("alloc", where, of, remark);
    live_[where.at] = {where.size_bytes, false};
  }
  void end_block(std::uint64_t at, const history_event& of) {
    const auto found = live_.find(at);
    if (found == live_.end()) return;
    const place where{at, found->second.size_bytes};
    if (!found->second.is_pending) write_action("free_requested", where, of);
    write_action("free_completed", where, of);
    if (account_.is_manager) write_action("segment_free", where, of);
    live_.erase(found);
  }
  void write_event(const history_event& each) {
    const place where{each.at.value, each.size_bytes};
    switch (each.kind) {
      case history_kind::allocated:
      case history_kind::captured: begin_block(where, each); return;
      case history_kind::freed:
      case history_kind::kept: end_block(where.at, each); return;
      case history_kind::free_pinned:
        write_action("free_requested", where, each);
        if (live_.contains(where.at)) live_[where.at].is_pending = true;
        return;
      case history_kind::resized:
        end_block(each.detail, each);
        begin_block(where, each, "was at " + hexadecimal(each.detail));
        return;
      case history_kind::mapped:
        if (each.detail != 0) write_action("segment_unmap", {each.detail, each.size_bytes}, each);
        write_action("segment_map", where, each,
                     each.detail != 0 ? "moved from " + hexadecimal(each.detail) : "");
        return;
      case history_kind::released: write_action("segment_unmap", where, each); return;
      case history_kind::footprint: footprint_bytes_ = each.size_bytes; return;
      case history_kind::short_of_memory: write_shortage(each); return;
      default: return;
    }
  }
  void write_shortage(const history_event& each) {
    out_.begin_dict();
    out_.entry("action", "oom");
    out_.entry("device_free", each.detail > footprint_bytes_ ? each.detail - footprint_bytes_ : 0);
    out_.entry("size", each.size_bytes);
    out_.entry("stream", each.stream);
    out_.entry("time_us", each.time_ns / 1000);
    write_frames(0);
    out_.end_dict();
  }

  struct live_block {
    std::uint64_t size_bytes = 0;
    bool is_pending = false;
  };
  const history& taken_;
  const history_account& account_;
  pickle_writer out_;
  std::map<std::uint64_t, live_block> live_;
  std::uint64_t footprint_bytes_ = 0;
};

}  // namespace

std::string to_memory_viz(const history& taken, const history_account& account) {
  return snapshot_writer(taken, account).write();
}

}  // namespace vmm::tools

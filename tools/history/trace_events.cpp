// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Trace events as JSON. Tracks: one for what growth does, one for the waits of the host, one for
// each stream. A block is a pair of asynchronous events, which may overlap; slices that must nest
// (X) are growths, waits, and a point of no length for each end of an arrow. An arrow leads from
// the stream that freed memory to another one that received it.
module;
#include <cstdio>

module vmm.history_tools;

import vmm.backend;
import vmm.observe;
import vmm.replay;
import vmm.std;

namespace vmm::tools {

namespace {

[[nodiscard]] std::string microseconds(std::uint64_t ns) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%llu.%03u", static_cast<unsigned long long>(ns / 1000),
                static_cast<unsigned>(ns % 1000));
  return text.data();
}

[[nodiscard]] std::string size_text(std::uint64_t bytes) {
  const auto [unit, name] = bytes >= std::uint64_t{1} << 30   ? std::pair{30, " GiB"}
                            : bytes >= std::uint64_t{1} << 20 ? std::pair{20, " MiB"}
                                                              : std::pair{10, " KiB"};
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.4g",
                static_cast<double>(bytes) / static_cast<double>(std::uint64_t{1} << unit));
  return text.data() + std::string(name);
}

// The stream that last freed each range of addresses.
class last_frees {
 public:
  struct owner {
    std::uint64_t end = 0;
    std::uint64_t stream = 0;
    std::uint64_t time_ns = 0;
  };
  void set(std::uint64_t begin, const owner& now) {
    cut(begin, now.end);
    owners_[begin] = now;
  }
  // The other streams that freed parts of [begin, end), each stream once; clears the range.
  [[nodiscard]] std::map<std::uint64_t, owner> take(std::uint64_t begin, std::uint64_t end,
                                                    std::uint64_t stream) {
    std::map<std::uint64_t, owner> out;
    auto each = owners_.upper_bound(begin);
    if (each != owners_.begin() && std::prev(each)->second.end > begin) --each;
    for (; each != owners_.end() && each->first < end; ++each)
      if (each->second.stream != stream) out[each->second.stream] = each->second;
    cut(begin, end);
    return out;
  }

 private:
  void cut(std::uint64_t begin, std::uint64_t end) {
    auto each = owners_.lower_bound(begin);
    if (each != owners_.begin()) {
      const auto before = std::prev(each);
      const owner old = before->second;
      if (old.end > begin) before->second.end = begin;
      if (old.end > end) owners_[end] = old;
    }
    each = owners_.lower_bound(begin);
    while (each != owners_.end() && each->first < end) {
      const owner old = each->second;
      each = owners_.erase(each);
      if (old.end > end) owners_[end] = old;
    }
  }

  std::map<std::uint64_t, owner> owners_;
};

class event_writer {
 public:
  event_writer(const history& taken, const history_account& account)
      : taken_(taken), account_(account), footprint_bytes_(account.footprint_before_bytes) {}

  [[nodiscard]] std::string write() && {
    out_ = "[\n";
    out_ += R"({"ph":"M","pid":1,"name":"process_name","args":{"name":)" +
            json_string("vmm " + fact_of(taken_, "allocator") + ", " + fact_of(taken_, "policy")) +
            "}}";
    name_track(growth_track, "growth");
    name_track(wait_track, "waits of the host");
    begin_ns_ = taken_.events.empty() ? 0 : taken_.events.front().time_ns;
    grow_ns_ = blocked_ns_ = begin_ns_;  // of what began before the history
    history_event first;
    first.time_ns = begin_ns_;
    for (const auto& [at, block] : account_.live_before) {
      first.at = {at};
      first.size_bytes = block.size_bytes;
      first.stream = block.stream;
      begin_block(first);
    }
    count(begin_ns_);
    for (std::size_t i = 0; i < taken_.events.size(); ++i)
      if (account_.is_kept[i]) write_event(taken_.events[i]);
    return std::move(out_) + "\n]\n";
  }

 private:
  static constexpr std::uint64_t growth_track = 1;
  static constexpr std::uint64_t wait_track = 2;
  static constexpr std::uint64_t first_stream_track = 3;

  struct open_block {
    std::uint64_t size_bytes = 0;
    std::uint64_t track = 0;
    std::uint64_t number = 0;
  };

  // ---- lines ----
  void line(const char* phase, std::uint64_t track, std::uint64_t ns, const std::string& rest) {
    out_ += ",\n{\"ph\":\"" + std::string(phase) + "\",\"pid\":1,\"tid\":" + std::to_string(track) +
            ",\"ts\":" + microseconds(ns) + "," + rest + "}";
  }
  void name_track(std::uint64_t track, const std::string& name) {
    out_ += ",\n{\"ph\":\"M\",\"pid\":1,\"tid\":" + std::to_string(track) +
            R"(,"name":"thread_name","args":{"name":)" + json_string(name) + "}}";
  }
  std::uint64_t track_of(std::uint64_t stream) {
    const auto [found, is_new] = tracks_.emplace(stream, first_stream_track + tracks_.size());
    if (is_new) name_track(found->second, "stream " + hexadecimal(stream));
    return found->second;
  }
  void count(std::uint64_t ns) {
    line("C", 0, ns,
         R"("name":"bytes","args":{"live":)" + std::to_string(live_bytes_) + R"(,"footprint":)" +
             std::to_string(footprint_bytes_) + "}");
  }
  void instant(const history_event& each, const std::string& name) {
    line("i", growth_track, each.time_ns, R"("s":"p","name":)" + json_string(name));
  }

  // ---- blocks ----
  [[nodiscard]] static std::string identity(std::uint64_t at, const open_block& block) {
    return R"("cat":"block","id":)" +
           json_string(hexadecimal(at) + "#" + std::to_string(block.number)) + R"(,"name":)" +
           json_string(size_text(block.size_bytes));
  }
  void begin_block(const history_event& each) {
    const open_block block{each.size_bytes, track_of(each.stream), ++block_count_};
    open_[each.at.value] = block;
    live_bytes_ += block.size_bytes;
    std::string args = R"(,"args":{"address":)" + json_string(hexadecimal(each.at.value)) +
                       R"(,"size":)" + std::to_string(block.size_bytes);
    if (each.tag != 0) args += R"(,"tag":)" + json_string(taken_.tags[each.tag - 1U]);
    if (each.frame != 0) {
      const history_frame& at = taken_.frames[each.frame - 1];
      args +=
          R"(,"line":)" + json_string(at.file + ":" + std::to_string(at.line) + " " + at.function);
    }
    line("b", block.track, each.time_ns, identity(each.at.value, block) + args + "}");
    draw_arrows(each, block.track);
  }
  void end_block(std::uint64_t at, const history_event& each) {
    const auto found = open_.find(at);
    if (found == open_.end()) return;
    const open_block block = found->second;
    open_.erase(found);
    live_bytes_ -= block.size_bytes;
    line("e", block.track, each.time_ns, identity(at, block));
    if (block.size_bytes != 0) frees_.set(at, {at + block.size_bytes, each.stream, each.time_ns});
  }
  void draw_arrows(const history_event& each, std::uint64_t track) {
    const auto from = frees_.take(each.at.value, each.at.value + each.size_bytes, each.stream);
    for (const auto& [stream, owner] : from) {
      const std::string arrow =
          R"("cat":"reuse","name":"reuse","id":)" + std::to_string(++arrow_count_);
      const std::uint64_t source = track_of(stream);
      line("X", source, owner.time_ns, R"("dur":0,"name":"free")");
      line("s", source, owner.time_ns, arrow);
      line("X", track, each.time_ns, R"("dur":0,"name":"reuse")");
      line("f", track, each.time_ns, arrow + R"(,"bp":"e")");
    }
  }

  // ---- what growth does ----
  // Threads of a manager grow and wait side by side. Each slice begins with the newest beginning of
  // its kind, so that those of one kind nest.
  void slice(std::uint64_t track, std::uint64_t begin_ns, const history_event& end,
             const std::string& name) {
    const std::uint64_t ns = end.time_ns - begin_ns;
    line("X", track, begin_ns, "\"dur\":" + microseconds(ns) + ",\"name\":" + json_string(name));
  }

  void write_event(const history_event& each) {
    switch (each.kind) {
      case history_kind::allocated:
      case history_kind::captured: begin_block(each); break;
      case history_kind::freed:
      case history_kind::kept: end_block(each.at.value, each); break;
      case history_kind::resized:
        end_block(each.detail, each);
        begin_block(each);
        break;
      case history_kind::footprint: footprint_bytes_ = each.size_bytes; break;
      default: write_growth(each); return;
    }
    count(each.time_ns);
  }
  void write_growth(const history_event& each) {
    switch (each.kind) {
      case history_kind::grow: grow_ns_ = each.time_ns; return;
      case history_kind::served:
        slice(growth_track, grow_ns_, each, "grow for " + size_text(each.size_bytes));
        return;
      case history_kind::blocked: blocked_ns_ = each.time_ns; return;
      case history_kind::passed: slice(wait_track, blocked_ns_, each, "the host waits"); return;
      case history_kind::wait:
        instant(each, "stream " + hexadecimal(each.stream) + " waits for stream " +
                          hexadecimal(each.detail));
        return;
      case history_kind::mapped:
        instant(each, (each.detail != 0 ? "move " : "map ") + size_text(each.size_bytes));
        return;
      case history_kind::unmapped:
      case history_kind::released:
        instant(each, name_of(each.kind) + (" " + size_text(each.size_bytes)));
        return;
      case history_kind::trimmed: instant(each, "trim " + size_text(each.size_bytes)); return;
      case history_kind::short_of_memory:
        instant(each, "short of memory for " + size_text(each.size_bytes));
        return;
      case history_kind::suspended:
      case history_kind::resumed:
      case history_kind::remapped:
      case history_kind::graph_ended: instant(each, name_of(each.kind)); return;
      default: return;
    }
  }

  const history& taken_;
  const history_account& account_;
  std::string out_;
  std::map<std::uint64_t, std::uint64_t> tracks_;
  std::map<std::uint64_t, open_block> open_;
  last_frees frees_;
  std::uint64_t begin_ns_ = 0;
  std::uint64_t grow_ns_ = 0;
  std::uint64_t blocked_ns_ = 0;
  std::uint64_t live_bytes_ = 0;
  std::uint64_t footprint_bytes_ = 0;
  std::uint64_t block_count_ = 0;
  std::uint64_t arrow_count_ = 0;
};

}  // namespace

std::string hexadecimal(std::uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

std::string to_trace_events(const history& taken, const history_account& account) {
  return event_writer(taken, account).write();
}

}  // namespace vmm::tools

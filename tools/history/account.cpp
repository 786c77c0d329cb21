// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Going back through a history, and the summary.
module vmm.history_tools;

import vmm.backend;
import vmm.observe;
import vmm.recording;
import vmm.std;
import vmm.trace;

namespace vmm::tools {

namespace {

// A fact that is a number; else the replacement.
[[nodiscard]] std::uint64_t number_of(const history& taken, const char* name, std::uint64_t other) {
  const std::string text = fact_of(taken, name);
  std::uint64_t value = 0;
  const auto [rest, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  return failure == std::errc{} && rest == text.data() + text.size() ? value : other;
}

// A page has a few megabytes: impossible figures of a file are ignored.
[[nodiscard]] std::uint64_t page_bytes_of(const history& taken) {
  constexpr std::uint64_t usual = std::uint64_t{2} << 20;
  const std::uint64_t said = number_of(taken, "page_bytes", usual);
  return said != 0 && said <= std::uint64_t{1} << 30 ? said : usual;
}

// One event at a time, from the last to the first.
class backward_walk {
 public:
  backward_walk(const history& taken, history_account& into) : taken_(taken), into_(into) {
    for (const history_region& each : taken.regions) {
      if (each.kind != history_region_kind::live) continue;
      const std::uint64_t size = each.where.size_bytes;
      into.live_after.emplace(
          each.where.base.value,
          known_block{.size_bytes = size, .asked_bytes = size, .is_last = true});
    }
    for (const history_mapping& each : taken.mappings)
      if (!each.is_stale) into.mapped_after.emplace(each.where.base.value, each.where.size_bytes);
    into.live_before = into.live_after;
    into.mapped_before = into.mapped_after;
  }

  void run() {
    into_.is_kept.assign(taken_.events.size(), true);
    for (std::size_t i = taken_.events.size(); i-- != 0;) {
      const history_event& each = taken_.events[i];
      if (undo(each)) continue;
      into_.is_kept[i] = false;
      ++into_.left_out_count;
    }
    for (auto& [at, block] : into_.live_before)
      if (block.is_size_unknown) block.size_bytes = page_bytes_of(taken_);
    count_footprint();
  }

 private:
  // Memory before the first event that has the figure: memory known to be in use, or, without such
  // events, the amount at the end.
  void count_footprint() {
    std::uint64_t used_bytes = 0;
    for (const auto& [at, size_bytes] : into_.mapped_before) used_bytes += size_bytes;
    if (into_.is_manager)
      for (const auto& [at, block] : into_.live_before) used_bytes += block.size_bytes;
    const auto has_account = [](const history_event& each) {
      return each.kind == history_kind::footprint;
    };
    const bool has_number = std::any_of(taken_.events.begin(), taken_.events.end(), has_account);
    into_.footprint_before_bytes =
        has_number ? used_bytes : number_of(taken_, "held_bytes", used_bytes);
  }
  // False where the event does not fit.
  bool undo(const history_event& each) {
    switch (each.kind) {
      case history_kind::allocated:
      case history_kind::captured: return undo_allocated(each);
      case history_kind::freed:
      case history_kind::kept: return undo_freed(each);
      case history_kind::free_pinned: return undo_free_pinned(each);
      case history_kind::resized: return undo_resized(each);
      case history_kind::mapped: return undo_mapped(each);
      case history_kind::released:
        return into_.mapped_before.emplace(each.at.value, each.size_bytes).second;
      default: return true;
    }
  }
  bool undo_allocated(const history_event& each) {
    const auto found = into_.live_before.find(each.at.value);
    if (found == into_.live_before.end()) return false;
    if (!found->second.is_size_unknown && found->second.size_bytes != each.size_bytes) return false;
    if (found->second.is_last) {
      known_block& last = into_.live_after.at(each.at.value);
      last.asked_bytes = each.detail;
      last.stream = each.stream;
      last.frame = each.frame;
      last.tag = each.tag;
    }
    into_.live_before.erase(found);
    return true;
  }
  bool undo_freed(const history_event& each) {
    known_block block;
    block.size_bytes = block.asked_bytes = each.size_bytes;
    block.stream = each.stream;
    return into_.live_before.emplace(each.at.value, block).second;
  }
  bool undo_free_pinned(const history_event& each) {
    const auto found = into_.live_before.find(each.at.value);
    if (found == into_.live_before.end()) return false;
    if (found->second.is_last) into_.live_after.at(each.at.value).is_pending = true;
    return true;
  }
  bool undo_resized(const history_event& each) {
    const auto found = into_.live_before.find(each.at.value);
    if (found == into_.live_before.end()) return false;
    known_block before = found->second;
    if (!before.is_size_unknown && before.size_bytes != each.size_bytes) return false;
    before.size_bytes = 0;
    before.is_size_unknown = true;
    before.is_last = false;
    into_.live_before.erase(found);
    return into_.live_before.emplace(each.detail, before).second;
  }
  bool undo_mapped(const history_event& each) {
    const auto found = into_.mapped_before.find(each.at.value);
    if (found == into_.mapped_before.end() || found->second != each.size_bytes) return false;
    if (each.detail != 0 && into_.mapped_before.contains(each.detail)) return false;
    into_.mapped_before.erase(found);
    if (each.detail != 0) into_.mapped_before.emplace(each.detail, each.size_bytes);
    return true;
  }

  const history& taken_;
  history_account& into_;
};

[[nodiscard]] std::string line_of(const char* name, std::uint64_t value) {
  return std::string(name) + ": " + std::to_string(value) + "\n";
}

}  // namespace

std::string fact_of(const history& taken, const std::string& name) {
  for (const history_fact& each : taken.facts)
    if (each.name == name) return each.value;
  return "";
}

history_account account_for(const history& taken) {
  history_account out;
  out.is_manager = fact_of(taken, "allocator") == "manager";
  backward_walk walk(taken, out);
  walk.run();
  return out;
}

std::string to_summary(const history& taken, const history_account& account) {
  std::map<std::string, std::uint64_t> counts;
  for (const history_event& each : taken.events) ++counts[name_of(each.kind)];
  std::string out;
  for (const history_fact& each : taken.facts)
    out += one_line(each.name) + ": " + one_line(each.value) + "\n";
  out += line_of("events", taken.events.size());
  out += line_of("events lost before", taken.lost_count);
  out += line_of("events left out", account.left_out_count);
  if (!taken.events.empty()) {
    const std::uint64_t ns = taken.events.back().time_ns - taken.events.front().time_ns;
    out += line_of("microseconds", ns / 1000);
  }
  for (const auto& [name, count] : counts) out += line_of(("  " + name).c_str(), count);
  return out;
}

history_outcome read_history_file(const std::string& path,
                                  const std::optional<std::uint64_t>& device,
                                  const reading_options& options) {
  history_outcome out = to_history(read_recording(path, options), device);
  if (!out.problem.empty() && !out.problem.starts_with(path))
    out.problem = path + ": " + out.problem;
  return out;
}

}  // namespace vmm::tools

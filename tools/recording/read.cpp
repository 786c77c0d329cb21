// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.recording - which form a file has, and the forms other than a pickle.
module vmm.recording;

import vmm.backend;
import vmm.observe;
import vmm.std;
import vmm.trace;

namespace vmm::tools {

namespace {

constexpr std::string_view history_magic = "vmmhist";
constexpr const char* unknown_form =
    "is not a history or a trace of vmm, a memory snapshot of PyTorch or a log of RMM: its first "
    "bytes differ";

// ---- RMM ------------------------------------------------------------------------------

// The places of the columns that are read, in a line of a log.
struct log_columns {
  std::size_t action = none;
  std::size_t pointer = none;
  std::size_t size = none;
  std::size_t stream = none;
  static constexpr std::size_t none = 99;
};

[[nodiscard]] std::vector<std::string_view> fields_of(std::string_view line) {
  std::vector<std::string_view> out;
  if (line.ends_with('\r')) line.remove_suffix(1);
  while (out.size() < 32) {
    const std::size_t comma = line.find(',');
    out.push_back(line.substr(0, comma));
    if (comma == std::string_view::npos) break;
    line.remove_prefix(comma + 1);
  }
  return out;
}

[[nodiscard]] log_columns columns_of(std::string_view head) {
  log_columns out;
  const std::vector<std::string_view> names = fields_of(head);
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i] == "Action") out.action = i;
    if (names[i] == "Pointer") out.pointer = i;
    if (names[i] == "Size") out.size = i;
    if (names[i] == "Stream") out.stream = i;
  }
  return out;
}

// Decimal, or hexadecimal behind 0x. False if it is neither.
[[nodiscard]] bool read_number(std::string_view text, std::uint64_t& into) {
  if (text == "(nil)") return into = 0, true;
  const bool is_hexadecimal = text.starts_with("0x");
  if (is_hexadecimal) text.remove_prefix(2);
  const char* const end = text.data() + text.size();
  const auto [stop, failure] = std::from_chars(text.data(), end, into, is_hexadecimal ? 16 : 10);
  return failure == std::errc{} && stop == end && !text.empty();
}

class log_reader {
 public:
  explicit log_reader(recording& into) : into_(into), tables_(into) {}

  // Empty, or what is wrong with the line.
  [[nodiscard]] std::string take(std::string_view line) {
    ++line_count_;
    if (line_count_ == 1) {
      columns_ = columns_of(line);
      return "";
    }
    if (line.empty() || line == "\r") return "";
    const std::vector<std::string_view> field = fields_of(line);
    const std::size_t last =
        std::max({columns_.action, columns_.pointer, columns_.size, columns_.stream});
    if (last >= field.size()) return wrong("too few fields");
    recorded_event made;
    std::uint64_t stream = 0;
    // A log of several streams writes 0 for the default one, and addresses for the others.
    const bool is_good = read_number(field[columns_.pointer], made.at) &&
                         read_number(field[columns_.size], made.size_bytes) &&
                         read_number(field[columns_.stream], stream);
    if (!is_good) return wrong("a pointer, size or stream is not a number");
    const std::string_view action = field[columns_.action];
    if (action == "allocate") {
      made.action = recorded_action::alloc;
    } else if (action == "free" || action == "deallocate") {
      made.action = recorded_action::free_completed;
    } else if (action == "allocate failure") {
      made.action = recorded_action::oom;
      made.at = 0;
    } else {
      return wrong("an action is allocate, free or 'allocate failure'");
    }
    made.stream = tables_.stream(stream);
    if (into_.events.size() >= recording_limits::events) return wrong("there are too many events");
    into_.events.push_back(made);
    return "";
  }

 private:
  [[nodiscard]] std::string wrong(const char* why) const {
    return "line " + std::to_string(line_count_) + ": " + why;
  }

  recording& into_;
  recording_tables tables_;
  log_columns columns_{};
  std::uint64_t line_count_ = 0;
};

// ---- vmm's own ------------------------------------------------------------------------

void add_trace(const trace& from, recording& into) {
  into.form = recording_form::trace;
  into.streams.clear();
  std::size_t mark = 0;
  const auto add_iterations = [&](std::size_t index) {
    for (; mark < from.iterations.size() && from.iterations[mark].first_event <= index; ++mark) {
      into.events.push_back(
          {.size_bytes = from.iterations[mark].number, .action = recorded_action::iteration});
    }
  };
  into.events.reserve(from.events.size() + from.iterations.size());
  for (std::size_t i = 0; i < from.events.size(); ++i) {
    add_iterations(i);
    recorded_event made;
    const event& each = from.events[i];
    made.action = each.kind == event_kind::allocate ? recorded_action::alloc
                                                    : recorded_action::free_completed;
    made.at = (std::uint64_t{each.slot} + 1) << 9;
    made.size_bytes = each.size_bytes;
    made.stream = each.stream;
    into.events.push_back(made);
    while (into.streams.size() <= each.stream) into.streams.push_back(into.streams.size());
  }
  add_iterations(from.events.size());
}

class history_converter {
 public:
  explicit history_converter(recording& into) : into_(into), tables_(into) {}

  void convert(const history& from) {
    into_.form = recording_form::history;
    into_.lost_event_count = from.lost_count;
    for (const history_frame& each : from.frames) {
      const std::array frame{
          tables_.frame({tables_.text(each.file), tables_.text(each.function), each.line})};
      stacks_.push_back(tables_.stack(frame));
    }
    for (const std::string& each : from.tags) tags_.push_back(tables_.text(each));
    into_.events.reserve(from.events.size());
    for (const history_event& each : from.events) add(each);
    recorded_segment whole;
    whole.first_block = static_cast<std::uint32_t>(into_.blocks.size());
    for (const history_region& each : from.regions) {
      if (each.kind != history_region_kind::live) continue;
      into_.blocks.push_back({.base = each.where.base.value,
                              .size_bytes = each.where.size_bytes,
                              .state = block_state::live});
    }
    whole.block_count = static_cast<std::uint32_t>(into_.blocks.size()) - whole.first_block;
    whole.size_bytes = mapped_at_start(from);
    into_.segments.push_back(whole);
  }

 private:
  // A history has no events of segments: its one segment has the size of the first moment.
  [[nodiscard]] static std::uint64_t mapped_at_start(const history& from) {
    std::uint64_t mapped_bytes = 0;
    for (const history_mapping& each : from.mappings)
      mapped_bytes += each.is_stale ? 0 : each.where.size_bytes;
    for (auto each = from.events.rbegin(); each != from.events.rend(); ++each) {
      const bool is_new = each->kind == history_kind::mapped && each->detail == 0;
      if (is_new) mapped_bytes -= std::min(mapped_bytes, each->size_bytes);
      if (each->kind == history_kind::released) mapped_bytes += each->size_bytes;
    }
    return mapped_bytes;
  }
  void add(const history_event& each) {
    recorded_event made;
    made.at = each.at.value;
    made.size_bytes = each.size_bytes;
    made.time_us = tables_.time(each.time_ns / 1000);
    made.stream = tables_.stream(each.stream);
    made.context = tables_.context(
        {each.frame != 0 && each.frame <= stacks_.size() ? stacks_[each.frame - 1] : 0,
         each.tag != 0 && each.tag <= tags_.size() ? tags_[each.tag - 1] : 0});
    switch (each.kind) {
      case history_kind::allocated:
      case history_kind::captured:
        if (each.detail != 0) made.size_bytes = each.detail;
        made.action = recorded_action::alloc;
        break;
      case history_kind::freed:
      case history_kind::kept: made.action = recorded_action::free_completed; break;
      case history_kind::free_pinned: made.action = recorded_action::free_requested; break;
      case history_kind::resized:
        made.action = recorded_action::free_completed;
        made.at = each.detail;
        into_.events.push_back(made);
        made.action = recorded_action::alloc;
        made.at = each.at.value;
        break;
      case history_kind::short_of_memory:
        made.action = recorded_action::oom;
        made.at = 0;
        break;
      default: return;
    }
    into_.events.push_back(made);
  }

  recording& into_;
  recording_tables tables_;
  std::vector<std::uint32_t> stacks_{};
  std::vector<std::uint32_t> tags_{};
};

[[nodiscard]] std::string read_history(byte_reader& from, std::uint64_t bytes_max,
                                       recording& into) {
  const std::string too_large = "is larger than " + std::to_string(bytes_max) +
                                " bytes, which is the most that is read: record fewer events";
  if (from.file_bytes() > bytes_max) return too_large;
  std::vector<std::byte> bytes;
  for (std::string_view some = from.peek(); !some.empty(); some = from.peek()) {
    if (bytes.size() + some.size() > bytes_max) return too_large;
    const auto block = std::as_bytes(std::span(some));
    bytes.insert(bytes.end(), block.begin(), block.end());
    from.skip(some.size());
  }
  result<history> taken = decode_history(bytes);
  if (!taken) return taken.error().detail;
  history_converter(into).convert(*taken);
  into.taken = std::move(*taken);
  return "";
}

// ---- any form -------------------------------------------------------------------------

// Empty, or what is wrong.
[[nodiscard]] std::string read_any(byte_reader& from, std::uint64_t history_bytes_max,
                                   recording& into) {
  const std::string_view head = from.peek();
  std::string problem;
  if (looks_like_pickle(head)) {
    problem = read_pickle(from, into);
  } else if (looks_like_rmm_log(head)) {
    problem = read_rmm_log(from, into);
  } else {
    problem = read_history(from, history_bytes_max, into);
  }
  if (problem.empty() && into.traces.empty() && into.form != recording_form::torch_snapshot)
    into.traces.push_back({0, into.events.size()});
  return problem;
}

// Whether it is a form other than a trace.
[[nodiscard]] bool is_recording(std::string_view head) {
  return looks_like_pickle(head) || looks_like_rmm_log(head) || head.starts_with(history_magic);
}

[[nodiscard]] bool looks_like_trace(std::string_view head) {
  if (head.starts_with("\xef\xbb\xbf")) head.remove_prefix(3);
  return head.starts_with("a ") || head.starts_with("i ") || head.starts_with("f ");
}

[[nodiscard]] recording_outcome read_source(const std::string& name, byte_source& source,
                                            const reading_options& options) {
  recording_outcome out;
  byte_reader reader(source, options.progress);
  const std::string_view head = reader.peek();
  std::string problem;
  if (is_recording(head)) {
    problem = read_any(reader, options.history_bytes_max, out.value);
    // Also makes the source reach the end of gzip data, with its check sum.
    if (problem.empty() && !reader.peek().empty())
      problem = "there are further bytes behind the end of the pickle, from byte " +
                std::to_string(reader.offset()) + " on; expected one recording in a file";
  } else if (source.trouble().what.empty()) {
    problem = head.empty() ? "is empty" : unknown_form;
  }
  // The source's error has priority over errors of its bytes.
  const byte_source::trouble_text& trouble = source.trouble();
  if (!trouble.what.empty()) {
    const bool has_more = !source.is_unreadable() && !trouble.expected.empty();
    problem = trouble.what + (has_more ? "; expected " + trouble.expected : "");
  }
  if (!problem.empty()) out.problem = name + ": " + problem;
  return out;
}

[[nodiscard]] recording_outcome outcome_of_trace(read_outcome&& read) {
  recording_outcome out;
  if (!read) {
    out.problem = describe(read.trouble);
    return out;
  }
  add_trace(*read.value, out.value);
  out.value.traces.push_back({0, out.value.events.size()});
  return out;
}

[[nodiscard]] trace trace_of(const request_stream& asked) {
  trace out;
  for (const request& each : asked.requests) {
    const bool is_free =
        each.kind == request_kind::free || each.kind == request_kind::free_completed;
    if (each.kind == request_kind::iteration)
      out.iterations.push_back({each.size_bytes, out.events.size()});
    if (!is_free && each.kind != request_kind::allocate) continue;
    const event_kind kind = is_free ? event_kind::free : event_kind::allocate;
    out.events.push_back(
        {std::max<std::uint64_t>(each.size_bytes, 1), each.slot, each.stream, kind});
    ++(is_free ? out.free_count : out.allocation_count);
    if (each.kind == request_kind::allocate) {
      out.end_live_bytes += live_bytes_of(out.events.back().size_bytes);
      if (out.end_live_bytes > out.peak_live_bytes) {
        out.peak_live_bytes = out.end_live_bytes;
        out.peak_live_event = out.events.size() - 1;
      }
    } else if (is_free) {
      out.end_live_bytes -= live_bytes_of(out.events.back().size_bytes);
    }
  }
  out.slot_count = asked.slot_count;
  return out;
}

}  // namespace

bool looks_like_rmm_log(std::string_view head) {
  const log_columns found = columns_of(head.substr(0, head.find('\n')));
  return std::max({found.action, found.pointer, found.size, found.stream}) != log_columns::none;
}

std::string read_rmm_log(byte_reader& from, recording& into) {
  into.form = recording_form::rmm_log;
  log_reader reader(into);
  constexpr std::size_t line_bytes_max = 1024;
  std::string line;
  std::string problem;
  for (std::string_view some = from.peek(); !some.empty() && problem.empty(); some = from.peek()) {
    const std::size_t end = some.find('\n');
    if (line.size() + std::min(end, some.size()) > line_bytes_max)
      return "a line is longer than 1024 bytes: it is not a log of RMM";
    line += some.substr(0, end);
    from.skip(end == std::string_view::npos ? some.size() : end + 1);
    if (end == std::string_view::npos) continue;
    problem = reader.take(line);
    line.clear();
  }
  // A program that ended while it wrote leaves a part of a line.
  if (problem.empty() && !line.empty() && !reader.take(line).empty()) ++into.cut_line_count;
  return problem;
}

recording_outcome read_recording(const std::string& path, const reading_options& options) {
  byte_source source(path);
  if (looks_like_trace(source.peek())) return outcome_of_trace(read_trace(path, source));
  return read_source(path, source, options);
}

read_outcome read_any_trace(const std::string& path) {
  byte_source source(path);
  if (!is_recording(source.peek())) return read_trace(path, source);
  const auto refused = [&](std::string what) {
    return read_outcome{std::nullopt, {path, 0, std::move(what), ""}};
  };
  const recording_outcome read = read_source(path, source, {});
  if (!read.problem.empty()) return refused(read.problem.substr(path.size() + 2));
  read_outcome out;
  out.value = trace_of(requests_of(read.value, busiest_device(read.value)));
  if (out.value->allocation_count == 0) return refused("the recording has no allocation");
  out.value->name = path.substr(path.find_last_of('/') + 1);
  return out;
}

recording_outcome parse_recording(const std::string& name, std::span<const std::byte> bytes) {
  byte_source source(bytes);
  if (looks_like_trace(source.peek())) return outcome_of_trace(read_trace(name, source));
  return read_source(name, source, {});
}

}  // namespace vmm::tools

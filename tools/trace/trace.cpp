// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Two parts: byte_source (blocks of a file, gzip or plain, as text) and parser (text to events).
// Neither holds more than a block, so a trace's size is bounded by its events alone.
module;
#include <cstdint>

module vmm.trace;

import vmm.std;

namespace vmm::tools {
namespace {

constexpr std::size_t line_bytes_max = 128;
constexpr std::uint64_t stream_max = 65535;
constexpr const char* event_forms = "'a ID BYTES STREAM', 'f ID' or 'i N'";

/// Text from a file as it can be shown: quoted, control bytes as \xNN, cut after 24 bytes.
std::string quoted(std::string_view text) {
  constexpr std::size_t shown_max = 24;
  constexpr char digits[] = "0123456789abcdef";
  std::string out = "'";
  for (const char c : text.substr(0, shown_max)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      out += c;
    } else {
      out += "\\x";
      out += digits[byte >> 4];
      out += digits[byte & 15];
    }
  }
  return out + (text.size() > shown_max ? "...'" : "'");
}

constexpr std::string_view byte_order_mark = "\xef\xbb\xbf";

/// The error in the blanks of a line; nullptr if fields are separated correctly.
const char* misplaced_blank(std::string_view line) {
  if (line.find('\r') != std::string_view::npos) return "a carriage return inside the line ";
  if (line.find('\t') != std::string_view::npos) return "a tab in the line ";
  if (line.starts_with(' ')) return "a blank before the first field of ";
  if (line.ends_with(' ')) return "a blank after the last field of ";
  if (line.find("  ") != std::string_view::npos) return "two blanks in a row in ";
  return nullptr;
}

/// The fields of a line, separated by single spaces. One more than any event has room for, to
/// notice surplus.
struct fields {
  std::array<std::string_view, 5> text{};
  std::size_t count = 0;
};

fields split(std::string_view line) {
  fields out;
  while (out.count < out.text.size()) {
    const std::size_t space = line.find(' ');
    out.text[out.count++] = line.substr(0, space);
    if (space == std::string_view::npos) break;
    line.remove_prefix(space + 1);
  }
  return out;
}

std::string at_most(std::uint64_t count) { return "at most " + std::to_string(count); }

/// Turns text into a trace, line by line. After the first refusal it takes nothing more.
class parser {
 public:
  explicit parser(const std::string& file) { trouble_.file = file; }

  /// Takes the next piece of text, cut anywhere. False: trouble() has the reason.
  bool feed(std::string_view text) {
    while (!text.empty()) {
      const std::size_t end = text.find('\n');
      const std::string_view piece = text.substr(0, end);
      if (partial_.size() + piece.size() > line_bytes_max)
        return refuse("the line is longer than 128 bytes", event_forms);
      if (end == std::string_view::npos) {
        partial_ += piece;
        return true;
      }
      text.remove_prefix(end + 1);
      if (!take_piece(piece)) return false;
    }
    return true;
  }

  /// The text is complete.
  bool finish() {
    if (!partial_.empty() && !take_piece({})) return false;
    if (out_.allocation_count == 0) {
      if (line_ == 1) return refuse("the file is empty", event_forms);
      return refuse("the trace ends without an allocation", "at least one 'a ID BYTES STREAM'");
    }
    out_.end_live_bytes = live_bytes_;
    return true;
  }

  bool refuse(std::string what, std::string expected) {
    trouble_.line = line_;
    trouble_.what = std::move(what);
    trouble_.expected = std::move(expected);
    return false;
  }

  trace& value() { return out_; }
  problem& trouble() { return trouble_; }

 private:
  struct live_block {
    std::uint64_t size_bytes = 0;
    std::uint32_t slot = 0;
    std::uint16_t stream = 0;
  };

  /// The last piece of a line, after what earlier feeds left of it.
  bool take_piece(std::string_view piece) {
    if (!partial_.empty()) {
      partial_ += piece;
      piece = partial_;
    }
    if (!take_line(piece)) return false;
    partial_.clear();
    ++line_;
    return true;
  }

  bool take_line(std::string_view line) {
    if (line_ == 1 && line.starts_with(byte_order_mark)) line.remove_prefix(byte_order_mark.size());
    if (line.ends_with('\r')) line.remove_suffix(1);  // lines may end as they do on Windows
    if (line.empty()) return refuse("the line is empty", event_forms);
    if (const char* const blank = misplaced_blank(line); blank != nullptr)
      return refuse(blank + quoted(line), "fields with one space between them");
    const fields field = split(line);
    const std::string_view letter = field.text[0];
    if (letter != "a" && letter != "f" && letter != "i")
      return refuse("unknown event " + quoted(letter), event_forms);
    const std::size_t wanted = letter == "a" ? 4 : 2;
    if (field.count != wanted) {
      return refuse(
          (field.count < wanted ? "too few fields in " : "too many fields in ") + quoted(line),
          event_forms);
    }
    if (letter == "i") return take_iteration(field);
    if (out_.events.size() >= event_count_max)
      return refuse("the trace has too many events", at_most(event_count_max));
    return letter == "a" ? take_allocation(field) : take_free(field);
  }

  /// A whole field as a decimal number from `least` to `most`.
  struct number_rule {
    const char* name;
    std::uint64_t least;
    std::uint64_t most;
  };
  bool take_number(std::string_view text, const number_rule& rule, std::uint64_t& value) {
    const char* const end = text.data() + text.size();
    const auto [stop, code] = std::from_chars(text.data(), end, value, 10);
    const bool whole = stop == end && !text.empty();
    if (whole && code == std::errc{} && value >= rule.least && value <= rule.most) return true;
    return refuse(
        std::string(rule.name) + " is " + quoted(text),
        "a decimal number from " + std::to_string(rule.least) + " to " + std::to_string(rule.most));
  }

  bool take_iteration(const fields& field) {
    std::uint64_t number = 0;
    if (!take_number(field.text[1], {"iteration number", 0, UINT64_MAX}, number)) return false;
    if (out_.iterations.size() >= iteration_count_max)
      return refuse("the trace has too many marks of iterations", at_most(iteration_count_max));
    out_.iterations.push_back({number, out_.events.size()});
    return true;
  }

  bool take_allocation(const fields& field) {
    std::uint64_t id = 0;
    std::uint64_t size_bytes = 0;
    std::uint64_t stream = 0;
    if (!take_number(field.text[1], {"allocation id", 0, UINT64_MAX}, id)) return false;
    if (!take_number(field.text[2], {"size in bytes", 1, live_bytes_max}, size_bytes)) return false;
    if (!take_number(field.text[3], {"stream", 0, stream_max}, stream)) return false;
    const std::uint64_t counted = live_bytes_of(size_bytes);
    if (counted > live_bytes_max - live_bytes_) {
      return refuse("more than 256 TiB would be live after allocation " + std::to_string(id),
                    "a trace of one device");
    }
    if (live_.size() >= live_count_max)
      return refuse("too many allocations are live at once", at_most(live_count_max));
    const live_block block{size_bytes, next_slot(), static_cast<std::uint16_t>(stream)};
    if (!live_.emplace(id, block).second) {
      return refuse("allocation id " + std::to_string(id) + " is already live",
                    "an id that is new or has been freed");
    }
    if (free_slots_.empty()) {
      ++out_.slot_count;
    } else {
      free_slots_.pop_back();
    }
    ++out_.allocation_count;
    add_live(counted);
    out_.events.push_back({size_bytes, block.slot, block.stream, event_kind::allocate});
    return true;
  }

  bool take_free(const fields& field) {
    std::uint64_t id = 0;
    if (!take_number(field.text[1], {"id to free", 0, UINT64_MAX}, id)) return false;
    const auto found = live_.find(id);
    if (found == live_.end()) {
      return refuse("free of id " + std::to_string(id) + ", which is not live",
                    "the id of an earlier 'a' line that was not freed since");
    }
    const live_block block = found->second;
    live_.erase(found);
    free_slots_.push_back(block.slot);
    ++out_.free_count;
    live_bytes_ -= live_bytes_of(block.size_bytes);
    out_.events.push_back({block.size_bytes, block.slot, block.stream, event_kind::free});
    return true;
  }

  std::uint32_t next_slot() const {
    return free_slots_.empty() ? static_cast<std::uint32_t>(out_.slot_count) : free_slots_.back();
  }

  /// Called before the event is stored, so that its index is the number of events before it.
  void add_live(std::uint64_t size_bytes) {
    live_bytes_ += size_bytes;
    if (live_bytes_ > out_.peak_live_bytes) {
      out_.peak_live_bytes = live_bytes_;
      out_.peak_live_event = out_.events.size();
    }
  }

  trace out_;
  problem trouble_;
  std::string partial_;
  std::uint64_t line_ = 1;
  std::uint64_t live_bytes_ = 0;
  std::unordered_map<std::uint64_t, live_block> live_;
  std::vector<std::uint32_t> free_slots_;
};

/// "folder/name.trace.gz" is "name".
std::string short_name(const std::string& path) {
  std::string name = path.substr(path.find_last_of('/') + 1);
  for (const std::string_view suffix : {".gz", ".trace"}) {
    if (name.size() > suffix.size() && name.ends_with(suffix))
      name.resize(name.size() - suffix.size());
  }
  return name;
}

read_outcome outcome_of(parser& sink, bool good) {
  read_outcome out;
  if (good) {
    sink.value().name = short_name(sink.trouble().file);
    out.value = std::move(sink.value());
  } else {
    out.trouble = std::move(sink.trouble());
  }
  return out;
}

}  // namespace

std::string describe(const problem& trouble) {
  std::string text = trouble.file + ":";
  if (trouble.line != 0) text += std::to_string(trouble.line) + ":";
  text += " " + trouble.what;
  if (!trouble.expected.empty()) text += "; expected " + trouble.expected;
  return text;
}

read_outcome read_trace(const std::string& name, byte_source& source) {
  parser sink{name};
  bool is_good = true;
  for (std::string_view text = source.next(); is_good && !text.empty(); text = source.next())
    is_good = sink.feed(text);
  const byte_source::trouble_text& trouble = source.trouble();
  if (source.is_unreadable())
    return {std::nullopt, {name, 0, trouble.what, "a readable trace file"}};
  if (is_good && !trouble.what.empty()) is_good = sink.refuse(trouble.what, trouble.expected);
  return outcome_of(sink, is_good && sink.finish());
}

read_outcome parse_trace(const std::string& name, std::span<const std::byte> bytes) {
  byte_source source{bytes};
  return read_trace(name, source);
}

read_outcome read_trace(const std::string& path) {
  byte_source source{path};
  return read_trace(path, source);
}

}  // namespace vmm::tools

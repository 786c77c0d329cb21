// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Three parts, each fed by the one before: read_trace (blocks of a file), decoder (gzip or plain,
// to text), parser (text to events). None of them holds more than a block, so a trace's size is
// bounded by its events alone.
module;
#include <zlib.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>

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

/// Files that are no trace and no gzip, told by their first bytes. Each is named with what turns it
/// into one.
struct foreign_form {
  std::string_view magic;
  const char* what;
  const char* expected;
};

constexpr std::string_view byte_order_mark = "\xef\xbb\xbf";
constexpr std::string_view lfs_pointer = "version https://git-lfs";
constexpr std::array foreign_forms = {
    foreign_form{{"\xfd\x37zXZ\0", 6},
                 "the file is compressed by xz",
                 "plain text or gzip: unpack it with 'xz -d'"},
    foreign_form{"\x28\xb5\x2f\xfd", "the file is compressed by zstd",
                 "plain text or gzip: unpack it with 'zstd -d'"},
    foreign_form{"BZh", "the file is compressed by bzip2",
                 "plain text or gzip: unpack it with 'bzip2 -d'"},
    foreign_form{"PK\x03\x04", "the file is a zip archive",
                 "plain text or gzip: unpack it with 'unzip'"},
    foreign_form{"\xff\xfe", "the file is UTF-16 text", "ASCII text"},
    foreign_form{"\xfe\xff", "the file is UTF-16 text", "ASCII text"},
    foreign_form{lfs_pointer, "the file is a Git LFS pointer, not the trace itself",
                 "the contents: fetch them with 'git lfs pull'"},
};

/// What is wrong with the blanks of a line; nullptr when fields stand apart as they must.
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

  /// Takes the next piece of text, cut anywhere. False: trouble() says why.
  bool feed(std::string_view text) {
    while (!text.empty()) {
      const std::size_t end = text.find('\n');
      const std::string_view piece = text.substr(0, end);
      if (partial_.size() + piece.size() > line_bytes_max) {
        return refuse("the line is longer than 128 bytes", event_forms);
      }
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
    if (letter != "a" && letter != "f" && letter != "i") {
      return refuse("unknown event " + quoted(letter), event_forms);
    }
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

/// Hands a file's bytes to the parser, inflated when they begin as gzip does. Several gzip members
/// in a row are one text, as gzip has it; anything else behind a member is refused.
class decoder {
 public:
  explicit decoder(parser& sink) : sink_(sink) {}
  ~decoder() {
    if (form_ == form::gzip) ::inflateEnd(&stream_);
  }
  decoder(const decoder&) = delete;
  decoder& operator=(const decoder&) = delete;

  bool feed(std::span<const std::byte> bytes) {
    if (bytes.empty()) return true;
    if (form_ == form::unknown && !begin(bytes)) return false;
    if (form_ == form::plain)
      return sink_.feed({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    return inflate_all(bytes);
  }

  bool finish() {
    if (form_ == form::gzip && !member_ended_) {
      return sink_.refuse("the gzip data is cut short here", "the rest of the file");
    }
    return sink_.finish();
  }

 private:
  enum class form : std::uint8_t { unknown, plain, gzip };
  static constexpr std::byte gzip_first_byte{0x1f};  // no line of a trace begins with it

  bool begin(std::span<const std::byte> bytes) {
    const std::string_view head{reinterpret_cast<const char*>(bytes.data()), bytes.size()};
    for (const foreign_form& each : foreign_forms) {
      if (head.starts_with(each.magic)) return sink_.refuse(each.what, each.expected);
    }
    if (bytes[0] != gzip_first_byte) {
      form_ = form::plain;
      return true;
    }
    constexpr int gzip_only =
        15 + 16;  // the largest window; 16 asks for a gzip header and its check sum
    if (::inflateInit2(&stream_, gzip_only) != Z_OK) {
      return sink_.refuse("zlib cannot start to decompress", "more free memory");
    }
    form_ = form::gzip;
    return true;
  }

  /// Every turn takes input or gives output, so the loop ends.
  bool inflate_all(std::span<const std::byte> bytes) {
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(bytes.data()));
    stream_.avail_in = static_cast<uInt>(bytes.size());
    do {
      if (member_ended_ && !begin_member()) return false;
      stream_.next_out = reinterpret_cast<Bytef*>(text_.data());
      stream_.avail_out = static_cast<uInt>(text_.size());
      const int code = ::inflate(&stream_, Z_NO_FLUSH);
      const std::size_t got = text_.size() - stream_.avail_out;
      if (!sink_.feed({text_.data(), got})) return false;
      if (code == Z_STREAM_END) {
        member_ended_ = true;
      } else if (code != Z_OK && code != Z_BUF_ERROR) {  // Z_BUF_ERROR: it wants the next block
        const char* const why = stream_.msg != nullptr ? stream_.msg : "unknown reason";
        return sink_.refuse(std::string("the gzip data is damaged (") + why + ")",
                            "an intact file");
      }
    } while (stream_.avail_in > 0 || (stream_.avail_out == 0 && !member_ended_));
    return true;
  }

  bool begin_member() {
    if (*stream_.next_in != std::to_integer<Bytef>(gzip_first_byte)) {
      return sink_.refuse("there are further bytes behind the end of the gzip data",
                          "the end of the file");
    }
    member_ended_ = false;
    return ::inflateReset(&stream_) == Z_OK ||
           sink_.refuse("zlib cannot start again", "an intact file");
  }

  parser& sink_;
  form form_ = form::unknown;
  bool member_ended_ = false;
  z_stream stream_{};
  std::array<char, 65536> text_;
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

read_outcome unreadable(const std::string& path) {
  return {
      std::nullopt,
      {path, 0, std::string("cannot be read: ") + std::strerror(errno), "a readable trace file"}};
}

}  // namespace

std::string describe(const problem& trouble) {
  std::string text = trouble.file + ":";
  if (trouble.line != 0) text += std::to_string(trouble.line) + ":";
  text += " " + trouble.what;
  if (!trouble.expected.empty()) text += "; expected " + trouble.expected;
  return text;
}

read_outcome parse_trace(const std::string& name, std::span<const std::byte> bytes) {
  constexpr std::size_t block_bytes_max = 65536;  // zlib counts in 32 bits
  parser sink{name};
  decoder source{sink};
  bool good = true;
  while (good && !bytes.empty()) {
    const auto block = bytes.first(std::min(bytes.size(), block_bytes_max));
    good = source.feed(block);
    bytes = bytes.subspan(block.size());
  }
  return outcome_of(sink, good && source.finish());
}

read_outcome read_trace(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file{std::fopen(path.c_str(), "rb"),
                                                             &std::fclose};
  if (file == nullptr) return unreadable(path);
  parser sink{path};
  decoder source{sink};
  std::array<std::byte, 65536> block;
  bool good = true;
  std::size_t got = block.size();
  while (good && got == block.size()) {
    got = std::fread(block.data(), 1, block.size(), file.get());
    if (std::ferror(file.get()) != 0) return unreadable(path);
    good = source.feed(std::span{block}.first(got));
  }
  return outcome_of(sink, good && source.finish());
}

}  // namespace vmm::tools

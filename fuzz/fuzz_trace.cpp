// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: no bytes make the trace reader crash, take what the format forbids, or report different
// things of one text; no value of a size or a number is read in two ways.
// Method: the first byte says what the rest is. A file: it is read as it is. A text: it is read as
// it is, and as gzip in one or two members; all must agree. A trace that is taken is checked
// against the reader's invariants by a model of its own, written out again, and read again.
// Options: a number and a size in bytes are read, and once more behind a sign or with a tail that
// is refused.
#include <zlib.h>

#include "../tools/program/standard.hpp"

import vmm.backend;
import vmm.trace;

namespace {

using vmm::tools::event, vmm::tools::event_kind, vmm::tools::read_outcome, vmm::tools::trace;

void insist(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz_trace: %s\n", what);
  std::abort();
}

read_outcome parse(std::string_view text) {
  return vmm::tools::parse_trace("fuzz.trace", std::as_bytes(std::span{text}));
}

/// One member of gzip, stored: what is tried is the reader, not zlib.
std::string member_of(std::string_view text) {
  z_stream stream{};
  insist(::deflateInit2(&stream, 0, Z_DEFLATED, 15 + 16, 1, Z_DEFAULT_STRATEGY) == Z_OK, "zlib");
  std::string in{text};
  std::string out(::deflateBound(&stream, static_cast<uLong>(in.size())), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(in.data());
  stream.avail_in = static_cast<uInt>(in.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  insist(::deflate(&stream, Z_FINISH) == Z_STREAM_END, "zlib stores what it is given");
  out.resize(stream.total_out);
  ::deflateEnd(&stream);
  return out;
}

struct slot {
  bool is_live = false;
  std::uint64_t size_bytes = 0;
  std::uint16_t stream = 0;
};

/// The counts that a trace's events have, worked out anew; insists on I1 to I3 of vmm.trace.
trace recount(const trace& read) {
  trace out;
  std::vector<slot> slots(read.slot_count);
  std::uint64_t live_count = 0;
  for (const event& each : read.events) {
    insist(each.slot < slots.size(), "a slot is below the number of slots");
    slot& at = slots[each.slot];
    const std::uint64_t counted = vmm::tools::live_bytes_of(each.size_bytes);
    if (each.kind == event_kind::allocate) {
      insist(!at.is_live, "a slot holds one live allocation");
      at = {true, each.size_bytes, each.stream};
      out.end_live_bytes += counted;
      ++out.allocation_count;
      out.slot_count = std::max(out.slot_count, ++live_count);
      out.peak_live_bytes = std::max(out.peak_live_bytes, out.end_live_bytes);
    } else {
      insist(at.is_live && at.size_bytes == each.size_bytes && at.stream == each.stream,
             "a free carries what was allocated");
      at.is_live = false;
      out.end_live_bytes -= counted;
      ++out.free_count;
      --live_count;
    }
    insist(out.end_live_bytes <= vmm::tools::live_bytes_max, "live bytes have a limit");
  }
  return out;
}

/// The text of a trace, ids being slots.
std::string text_of(const trace& read) {
  std::string out;
  std::size_t mark = 0;
  for (std::size_t i = 0; i <= read.events.size(); ++i) {
    for (; mark < read.iterations.size() && read.iterations[mark].first_event == i; ++mark)
      out += "i " + std::to_string(read.iterations[mark].number) + "\n";
    if (i == read.events.size()) break;
    const event& each = read.events[i];
    if (each.kind == event_kind::allocate) {
      out += "a " + std::to_string(each.slot) + " " + std::to_string(each.size_bytes) + " " +
             std::to_string(each.stream) + "\n";
    } else {
      out += "f " + std::to_string(each.slot) + "\n";
    }
  }
  return out;
}

bool same_counts(const trace& left, const trace& right) {
  return left.allocation_count == right.allocation_count && left.free_count == right.free_count &&
         left.slot_count == right.slot_count && left.peak_live_bytes == right.peak_live_bytes &&
         left.end_live_bytes == right.end_live_bytes;
}

bool same_outcome(const read_outcome& left, const read_outcome& right) {
  if (left.value.has_value() != right.value.has_value()) return false;
  if (!left) return vmm::tools::describe(left.trouble) == vmm::tools::describe(right.trouble);
  return same_counts(*left.value, *right.value) && text_of(*left.value) == text_of(*right.value);
}

void check(const read_outcome& read) {
  if (!read) {
    insist(!read.trouble.what.empty() && read.trouble.line > 0, "a refusal names a line and why");
    return;
  }
  insist(same_counts(*read.value, recount(*read.value)), "the counts are those of the events");
  const read_outcome again = parse(text_of(*read.value));
  insist(same_outcome(read, again), "a trace that is written out reads the same");
}

/// A gzip file of a text reads as the text does, unless the text is a file of another kind itself.
void check_text(std::string_view text) {
  const read_outcome plain = parse(text);
  check(plain);
  const bool is_another_kind = !plain && plain.trouble.what.starts_with("the file is");
  if (is_another_kind || text.starts_with('\x1f')) return;
  insist(same_outcome(plain, parse(member_of(text))), "gzip reads as its text");
  const std::size_t half = text.size() / 2;
  insist(same_outcome(plain, parse(member_of(text.substr(0, half)) + member_of(text.substr(half)))),
         "two members of gzip read as one text");
}

void check_options(std::string_view text) {
  const std::string whole{text};
  const std::optional<std::uint64_t> bytes = vmm::parse_bytes(text);
  if (bytes) {
    insist(*bytes <= std::uint64_t{1} << 63, "a size is at most 2^63");
    insist(vmm::parse_bytes(std::to_string(*bytes)) == bytes, "a size reads as its digits");
    insist(!vmm::parse_bytes("-" + whole) && !vmm::parse_bytes(whole + "?"), "a size ends");
  }
  if (vmm::parse_number(text))
    insist(!vmm::parse_number(whole + "?"), "a number is the whole of its text");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view rest{reinterpret_cast<const char*>(data + 1), size - 1};
  switch (data[0]) {
    case 'f': check(parse(rest)); break;
    case 'o': check_options(rest); break;
    default: check_text(rest); break;
  }
  return 0;
}

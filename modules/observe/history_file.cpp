// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Format 1 (tools/history/README.md): a head of 16 bytes, then sections of a word that names them,
// a word of zero, their size in bytes, and their contents, filled up with zeros to a multiple of 8.
// Whole numbers, little endian. A reader leaves out sections that it has no use for.
module vmm.observe;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {

namespace {

constexpr std::string_view magic = "vmmhist\n";
constexpr std::uint32_t format_version = 1;
constexpr std::size_t head_bytes = 16;
constexpr std::size_t section_head_bytes = 16;
constexpr std::size_t event_bytes = 48;
constexpr std::size_t region_bytes = 32;
constexpr std::size_t mapping_bytes = 24;

enum class section : std::uint32_t {
  events = 1,  // begins with the count of lost ones
  regions = 2,
  mappings = 3,
  tags = 4,
  frames = 5,
  facts = 6,
};

// ---- writing -------------------------------------------------------------------------

class byte_writer {
 public:
  explicit byte_writer(std::vector<std::byte>& to) noexcept : to_(to) {}
  template <class T>
  void number(T value) {
    for (std::size_t i = 0; i < sizeof(T); ++i)
      to_.push_back(static_cast<std::byte>(std::uint64_t{value} >> (8 * i) & 0xff));
  }
  void raw(std::string_view text) {
    const auto bytes = std::as_bytes(std::span(text));
    to_.insert(to_.end(), bytes.begin(), bytes.end());
  }
  // Texts of more than 64 KiB are cut.
  void text(std::string_view whole) {
    const std::string_view cut = whole.substr(0, 0xffff);
    number(static_cast<std::uint32_t>(cut.size()));
    raw(cut);
  }
  // Writes a section whose contents `fill` writes.
  template <class Fill>
  void in_section(section what, Fill&& fill) {
    number(static_cast<std::uint32_t>(what));
    number(std::uint32_t{0});
    const std::size_t size_at = to_.size();
    number(std::uint64_t{0});
    const std::size_t begin = to_.size();
    check(begin % 8 == 0, "a section begins where none may");
    fill();
    check(to_.size() >= begin, "a section takes bytes away");
    const std::uint64_t size_bytes = to_.size() - begin;
    for (std::size_t i = 0; i < 8; ++i)
      to_[size_at + i] = static_cast<std::byte>(size_bytes >> (8 * i) & 0xff);
    while (to_.size() % 8 != 0) to_.push_back(std::byte{0});
  }

 private:
  std::vector<std::byte>& to_;
};

void write_event(byte_writer& to, const history_event& each) {
  debug_check([&] { return each.kind != history_kind::none; }, "an event of no kind is written");
  to.number(each.time_ns);
  to.number(each.at.value);
  to.number(each.size_bytes);
  to.number(each.stream);
  to.number(each.detail);
  to.number(each.frame);
  to.number(each.tag);
  to.number(static_cast<std::uint8_t>(each.kind));
  to.number(std::uint8_t{0});
}

void write_places(byte_writer& to, const history& taken) {
  to.in_section(section::regions, [&] {
    for (const history_region& each : taken.regions) {
      to.number(each.where.base.value);
      to.number(each.where.size_bytes);
      to.number(each.stream);
      to.number(static_cast<std::uint32_t>(each.kind));
      to.number(std::uint32_t{0});
    }
  });
  to.in_section(section::mappings, [&] {
    for (const history_mapping& each : taken.mappings) {
      to.number(each.where.base.value);
      to.number(each.where.size_bytes);
      to.number(std::uint64_t{each.is_stale ? 1U : 0U});
    }
  });
}

void write_names(byte_writer& to, const history& taken) {
  to.in_section(section::tags, [&] {
    for (const std::string& each : taken.tags) to.text(each);
  });
  to.in_section(section::frames, [&] {
    for (const history_frame& each : taken.frames) {
      to.number(each.line);
      to.text(each.file);
      to.text(each.function);
    }
  });
  to.in_section(section::facts, [&] {
    for (const history_fact& each : taken.facts) {
      to.text(each.name);
      to.text(each.value);
    }
  });
}

// ---- reading -------------------------------------------------------------------------

constexpr error is_cut = refuse(errc::invalid_argument, "the history is cut short");

// Reads numbers from the start; after a missing one every read fails.
class byte_reader {
 public:
  explicit byte_reader(std::span<const std::byte> from) noexcept : left_(from) {}
  template <class T>
  [[nodiscard]] T number() noexcept {
    std::uint64_t value = 0;
    const std::span<const std::byte> bytes = take(sizeof(T));
    for (std::size_t i = 0; i < bytes.size(); ++i)
      value |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * i);
    return static_cast<T>(value);
  }
  [[nodiscard]] std::string text() {
    const std::span<const std::byte> bytes = take(number<std::uint32_t>());
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  // Nothing where there is less.
  [[nodiscard]] std::span<const std::byte> take(std::uint64_t size_bytes) noexcept {
    if (size_bytes > left_.size()) {
      has_failed_ = true;
      left_ = {};
      return {};
    }
    check(!has_failed_ || left_.empty(), "history I3: bytes are read behind the end");
    const auto front = left_.first(static_cast<std::size_t>(size_bytes));
    left_ = left_.subspan(front.size());
    return front;
  }
  [[nodiscard]] bool has_failed() const noexcept { return has_failed_; }
  [[nodiscard]] std::size_t left_bytes() const noexcept { return left_.size(); }

 private:
  std::span<const std::byte> left_;
  bool has_failed_ = false;
};

status read_events(byte_reader from, history& into) {
  check(into.events.empty(), "the events of a history are read twice");
  into.lost_count = from.number<std::uint64_t>();
  if (from.has_failed() || from.left_bytes() % event_bytes != 0) return is_cut;
  into.events.reserve(from.left_bytes() / event_bytes);
  std::uint64_t last_ns = 0;
  while (from.left_bytes() != 0) {
    history_event each;
    each.time_ns = from.number<std::uint64_t>();
    each.at = {from.number<std::uint64_t>()};
    each.size_bytes = from.number<std::uint64_t>();
    each.stream = from.number<std::uint64_t>();
    each.detail = from.number<std::uint64_t>();
    each.frame = from.number<std::uint32_t>();
    each.tag = from.number<std::uint16_t>();
    each.kind = static_cast<history_kind>(from.number<std::uint8_t>());
    (void)from.number<std::uint8_t>();
    check(!from.has_failed(), "an event is read that is not there");
    if (each.kind == history_kind::none)
      return refuse(errc::invalid_argument, "an event of the history is of no kind");
    if (each.time_ns < last_ns)
      return refuse(errc::invalid_argument, "an event of the history is before an earlier one");
    if (each.at.value + each.size_bytes < each.at.value)
      return refuse(errc::invalid_argument, "an event of the history ends before it begins");
    last_ns = each.time_ns;
    into.events.push_back(each);
  }
  return {};
}

status read_regions(byte_reader from, history& into) {
  check(into.regions.empty(), "the regions of a history are read twice");
  if (from.left_bytes() % region_bytes != 0) return is_cut;
  into.regions.reserve(from.left_bytes() / region_bytes);
  std::uint64_t end = 0;
  while (from.left_bytes() != 0) {
    history_region each;
    each.where.base = {from.number<std::uint64_t>()};
    each.where.size_bytes = from.number<std::uint64_t>();
    each.stream = from.number<std::uint64_t>();
    const auto kind = from.number<std::uint32_t>();
    (void)from.number<std::uint32_t>();
    check(!from.has_failed(), "a region is read that is not there");
    if (kind > static_cast<std::uint32_t>(history_region_kind::busy))
      return refuse(errc::invalid_argument, "a region of the history is of no kind");
    each.kind = static_cast<history_region_kind>(kind);
    const bool fits = each.where.base.value >= end && each.where.end() >= each.where.base;
    if (!fits) return refuse(errc::invalid_argument, "two regions of the history overlap");
    end = each.where.end().value;
    into.regions.push_back(each);
  }
  return {};
}

// They are in no order.
status check_disjoint(const std::vector<history_mapping>& listed) {
  std::vector<address_range> places;
  places.reserve(listed.size());
  for (const history_mapping& each : listed) {
    if (!each.where.empty()) places.push_back(each.where);
  }
  const auto by_base = [](const address_range& a, const address_range& b) {
    return a.base < b.base;
  };
  std::sort(places.begin(), places.end(), by_base);
  const auto overlap = [](const address_range& a, const address_range& b) {
    return a.end() > b.base;
  };
  if (std::adjacent_find(places.begin(), places.end(), overlap) == places.end()) return {};
  return refuse(errc::invalid_argument, "two mappings of the history overlap");
}

status read_mappings(byte_reader from, history& into) {
  check(into.mappings.empty(), "the mappings of a history are read twice");
  if (from.left_bytes() % mapping_bytes != 0) return is_cut;
  into.mappings.reserve(from.left_bytes() / mapping_bytes);
  while (from.left_bytes() != 0) {
    history_mapping each;
    each.where.base = {from.number<std::uint64_t>()};
    each.where.size_bytes = from.number<std::uint64_t>();
    each.is_stale = from.number<std::uint64_t>() != 0;
    check(!from.has_failed(), "a mapping is read that is not there");
    if (each.where.end() < each.where.base)
      return refuse(errc::invalid_argument, "a mapping of the history ends before it begins");
    into.mappings.push_back(each);
  }
  return check_disjoint(into.mappings);
}

status read_names(section what, byte_reader from, history& into) {
  check(what == section::tags || what == section::frames || what == section::facts,
        "names are read of a section that has none");
  while (from.left_bytes() != 0) {
    if (what == section::tags) into.tags.push_back(from.text());
    if (what == section::facts) {
      std::string name = from.text();
      into.facts.push_back({std::move(name), from.text()});
    }
    if (what == section::frames) {
      history_frame each;
      each.line = from.number<std::uint32_t>();
      each.file = from.text();
      each.function = from.text();
      into.frames.push_back(std::move(each));
    }
    if (from.has_failed()) return is_cut;
  }
  return {};
}

status read_section(section what, std::span<const std::byte> contents, history& into) {
  switch (what) {
    case section::events: return read_events(byte_reader(contents), into);
    case section::regions: return read_regions(byte_reader(contents), into);
    case section::mappings: return read_mappings(byte_reader(contents), into);
    case section::tags:
    case section::frames:
    case section::facts: return read_names(what, byte_reader(contents), into);
  }
  return {};
}

status read_sections(byte_reader& from, history& into) {
  std::uint32_t seen = 0;  // a bit for each section that there is one of
  while (from.left_bytes() != 0) {
    const auto what = from.number<std::uint32_t>();
    (void)from.number<std::uint32_t>();
    const auto size_bytes = from.number<std::uint64_t>();
    const std::span<const std::byte> contents = from.take(size_bytes);
    (void)from.take((8 - contents.size() % 8) % 8);
    if (from.has_failed()) return is_cut;
    if (what < 32 && (seen & 1U << what) != 0)
      return refuse(errc::invalid_argument, "a section of the history is there twice");
    if (what < 32) seen |= 1U << what;
    if (status read = read_section(static_cast<section>(what), contents, into); !read) return read;
  }
  // The writer writes all of them: a file that ends between two is incomplete.
  constexpr std::uint32_t all = 0b111'1110;
  return (seen & all) == all ? status{} : status{is_cut};
}

// What an event names is there.
status check_names(const history& taken) noexcept {
  for (const history_event& each : taken.events) {
    if (each.tag > taken.tags.size() || each.frame > taken.frames.size())
      return refuse(errc::invalid_argument, "an event of the history has a name that is not there");
  }
  return {};
}

}  // namespace

result<std::vector<std::byte>> encode_history(const history& taken) noexcept {
  try {
    std::vector<std::byte> out;
    out.reserve(head_bytes + 8 * section_head_bytes + taken.events.size() * event_bytes +
                taken.regions.size() * region_bytes + taken.mappings.size() * mapping_bytes);
    byte_writer to(out);
    to.raw(magic);
    to.number(format_version);
    to.number(std::uint32_t{0});
    to.in_section(section::events, [&] {
      to.number(taken.lost_count);
      for (const history_event& each : taken.events) write_event(to, each);
    });
    check(out.size() == head_bytes + section_head_bytes + 8 + taken.events.size() * event_bytes,
          "an event is written in another size");
    write_places(to, taken);
    write_names(to, taken);
    check(out.size() % 8 == 0, "a history ends within a section");
    return out;
  } catch (const std::bad_alloc&) {
    return refuse(errc::out_of_host_memory, "no host memory is left to write a history");
  }
}

result<history> decode_history(std::span<const std::byte> bytes) noexcept {
  byte_reader from(bytes);
  const std::span<const std::byte> begin = from.take(magic.size());
  if (begin.size() != magic.size() || std::memcmp(begin.data(), magic.data(), magic.size()) != 0)
    return refuse(errc::invalid_argument, "this is not a history of vmm: its first bytes differ");
  if (from.number<std::uint32_t>() != format_version)
    return refuse(errc::invalid_argument, "the history is of a format that this vmm does not read");
  (void)from.number<std::uint32_t>();
  if (from.has_failed()) return is_cut;
  try {
    history out;
    if (status read = read_sections(from, out); !read) return read.error();
    if (status named = check_names(out); !named) return named.error();
    return out;
  } catch (const std::bad_alloc&) {
    return refuse(errc::out_of_host_memory, "no host memory is left to read a history");
  }
}

}  // namespace vmm

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// PyTorch's memory snapshots: pickles of protocols 2 to 5, as Python's pickler and PyTorch's own
// writer of C++ make them. Only the opcodes of plain data are read; a pickle that would call
// anything is refused.
//
// A container is open from its opcode until its own container takes it, or until something refers
// to it. Then it is closed: a dictionary with an action becomes an event, one with a filename a
// frame, a list of frames a stack, a list of events a range of them; of anything else only its kind
// is left. So at most one batch of a pickler (1,000 entries) is open at a time.
//
// A damaged record keeps its place in its list, as the number of its damage: the text that refuses
// the snapshot names the list, the place and the field.
module vmm.recording;

import vmm.std;

namespace vmm::tools {

namespace {

// Keys and words of a snapshot that the reader uses. A word's number, from 1 on, is its text's.
using word = std::uint32_t;
constexpr std::string_view words =
    "action addr device_free size stream frames time_us user_metadata category pool_id "
    "address total_size blocks device segment_pool_id segment_type is_expandable state "
    "requested_size history real_size filename name line stage segments device_traces "
    "allocator_settings external_annotations alloc free_requested free_completed free "
    "segment_alloc segment_free segment_map segment_unmap oom snapshot";

/// The part of a text with this number, from 0 on.
[[nodiscard]] constexpr std::string_view part_of(std::string_view text, char mark,
                                                 std::size_t number) noexcept {
  for (; number > 0; --number) text.remove_prefix(text.find(mark) + 1);
  return text.substr(0, text.find(mark));
}
/// The number of a word. One that is not there does not compile.
consteval word operator""_w(const char* text, std::size_t size) {
  word number = 1;
  while (part_of(words, ' ', number - 1) != std::string_view(text, size)) ++number;
  return number;
}
constexpr word key_count = "alloc"_w;  // the keys stand before it
constexpr word no_word = 0;

enum class kind : std::uint8_t {
  none,
  number,
  real,
  text,
  pair,  // of numbers: a pool
  open,  // a container, by its number
  empty_list,
  stack,
  frame,
  event,  // one record
  block,
  segment,
  annotation,
  old_entry,  // of a block's history, before 2.1
  events,     // a list of them: first and count
  blocks,
  segments,
  annotations,
  traces,  // a list of lists of events
  map,     // of settings
  other,
};
struct value {
  std::uint64_t payload = 0;
  kind what = kind::none;
};
struct container {
  std::vector<value> items{};  // of a dictionary: key, value, key, value
  value closed{};              // once something has referred to it
  recorded_range run{};        // of a list of records, which has no items
  std::uint32_t memo = 0;      // one more than its place
  kind run_kind = kind::none;
  bool is_dict = false;
  bool is_closed = false;
};
struct old_history {
  std::uint64_t asked_bytes = 0;
  std::uint32_t stack = 0;
};

[[nodiscard]] constexpr value range_value(kind what, const recorded_range& range) noexcept {
  return {range.first << 32 | range.count, what};
}
[[nodiscard]] constexpr recorded_range range_of(const value& from) noexcept {
  return {from.payload >> 32, from.payload & 0xffffffff};
}

/// Why a pickle is refused, and what stands there in a snapshot.
struct pickle_fault {
  const char* what;
  const char* expected;
};
constexpr pickle_fault cut_short{"the pickle is cut short", "the rest of it"};
constexpr pickle_fault too_few{"the pickle takes more than it has", "values before this opcode"};
constexpr pickle_fault too_much{"the pickle holds more values at once than a snapshot has",
                                "lists and dictionaries that end"};
constexpr pickle_fault not_plain{
    "the pickle holds more than plain data",
    "numbers, texts, lists and dictionaries: it is not a memory snapshot of PyTorch, or damaged"};
constexpr pickle_fault no_container{
    "the pickle adds to a value that is neither a list nor a dictionary",
    "a list or a dictionary below the added values"};
constexpr pickle_fault large_dictionary{"a dictionary is too large for a snapshot",
                                        "at most 32,768 keys"};
constexpr pickle_fault unknown_reference{"the pickle refers to a value that it did not store",
                                         "the number of a value that was stored before"};
constexpr pickle_fault unused_number{"the pickle counts further than it has values",
                                     "the next number for a stored value"};
constexpr pickle_fault many_events{"the snapshot has more than 67,108,864 events",
                                   "fewer: record with a smaller max_entries"};
constexpr pickle_fault unequal_segment{"the blocks of a segment do not add up to its size",
                                       "blocks that cover the segment, as PyTorch writes them"};

/// The kind of a field's value; None and no field at all are as good where it is not required.
struct field_rule {
  word key;
  kind what;
  bool is_required;
};
constexpr std::array<field_rule, 8> event_rules{{{"action"_w, kind::text, true},
                                                 {"addr"_w, kind::number, true},
                                                 {"device_free"_w, kind::number, true},
                                                 {"size"_w, kind::number, true},
                                                 {"stream"_w, kind::number, true},
                                                 {"time_us"_w, kind::number, false},
                                                 {"pool_id"_w, kind::pair, false},
                                                 {"frames"_w, kind::stack, false}}};
constexpr std::array<field_rule, 6> block_rules{{{"address"_w, kind::number, false},
                                                 {"size"_w, kind::number, true},
                                                 {"requested_size"_w, kind::number, false},
                                                 {"state"_w, kind::text, true},
                                                 {"frames"_w, kind::stack, false},
                                                 {"history"_w, kind::old_entry, false}}};
constexpr std::array<field_rule, 8> segment_rules{{{"address"_w, kind::number, true},
                                                   {"total_size"_w, kind::number, true},
                                                   {"device"_w, kind::number, false},
                                                   {"stream"_w, kind::number, false},
                                                   {"segment_pool_id"_w, kind::pair, false},
                                                   {"segment_type"_w, kind::text, false},
                                                   {"is_expandable"_w, kind::number, false},
                                                   {"blocks"_w, kind::blocks, false}}};

/// Of a record: the field with a value of another kind than `expected`. no_word: the record itself.
struct damage {
  value found{};
  word field = no_word;
  kind expected = kind::none;
  bool is_missing = false;
};

// The data behind kind::other, by its payload.
enum other_data : std::uint8_t { other_value, other_tuple, other_list, other_bytes };

// In the order of `kind`.
constexpr std::string_view kind_names =
    "None|a number|a float|a text|a pair of numbers|another value|an empty list|a list of frames|"
    "a frame|an event|a block|a segment|an annotation|a list of allocations|a list of events|"
    "a list of blocks|a list of segments|a list of annotations|a list of lists of events|"
    "a dictionary";
[[nodiscard]] constexpr std::string_view name_of(const value& of) noexcept {
  if (of.what != kind::other) return part_of(kind_names, '|', static_cast<std::size_t>(of.what));
  return part_of("another value|a tuple|a list of other values|bytes", '|', of.payload % 4);
}
static_assert(name_of({0, kind::traces}) == "a list of lists of events");

class pickle_machine {
 public:
  pickle_machine(byte_reader& from, recording& into) : from_(from), into_(into), tables_(into) {
    for (std::size_t i = 0; i < "snapshot"_w; ++i) (void)tables_.text(part_of(words, ' ', i));
  }

  // Empty, or what is wrong.
  [[nodiscard]] std::string read() {
    while (problem_ == nullptr) {
      opcode_at_ = from_.offset();
      if (!from_.take(opcode_)) {
        fail(cut_short);
        break;
      }
      if (opcode_ == '.') break;
      step(opcode_);
    }
    if (problem_ == nullptr && (stack_.size() != 1 || !marks_.empty())) fail(cut_short);
    return problem_ == nullptr ? finish(stack_.back()) : describe();
  }

 private:
  // ---- opcodes ----

  void step(unsigned char opcode) {
    switch (opcode) {
      case 0x80: (void)number(1); return;  // the protocol
      case 0x95: (void)number(8); return;  // a frame
      case '(': return begin_mark();
      case 'N': return push({0, kind::none});
      case 0x88: return push({1, kind::number});
      case 0x89: return push({0, kind::number});
      case 'J':
        return push({static_cast<std::uint64_t>(
                         static_cast<std::int64_t>(static_cast<std::int32_t>(number(4)))),
                     kind::number});
      case 'K': return push({number(1), kind::number});
      case 'M': return push({number(2), kind::number});
      case 0x8a: return push_long(number(1));
      case 0x8b: return push_long(number(4));
      case 'G': return push_real();
      case 0x8c: return push_text(number(1));
      case 'X': return push_text(number(4));
      case 0x8d: return push_text(number(8));
      case 'U': return push_text(number(1));
      case 'T': return push_text(number(4));
      case 'C': return push_bytes(number(1));
      case 'B': return push_bytes(number(4));
      case 0x8e:
      case 0x96: return push_bytes(number(8));
      default: return step_on_stack(opcode);
    }
  }
  void step_on_stack(unsigned char opcode) {
    switch (opcode) {
      case '}': return push_container(true);
      case ']': return push_container(false);
      case ')': return push({0, kind::empty_list});
      case 0x85: return make_tuple(1);
      case 0x86: return make_tuple(2);
      case 0x87: return make_tuple(3);
      case 't': return make_tuple(take_mark());
      case 'a': return add_items(1, false);
      case 'e': return add_items(take_mark(), false);
      case 's': return add_items(2, true);
      case 'u': return add_items(take_mark(), true);
      case 'h': return get(number(1));
      case 'j': return get(number(4));
      case 'q': return put(number(1));
      case 'r': return put(number(4));
      case 0x94: return put(memo_.size());
      default: return fail(not_plain);
    }
  }

  void fail(const pickle_fault& why) {
    if (problem_ == nullptr) problem_ = &why;
  }
  [[nodiscard]] std::string describe() const {
    const std::string at = "byte " + std::to_string(opcode_at_) + " of the pickle";
    const std::string_view digits = "0123456789abcdef";
    const std::string opcode = {'0', 'x', digits[opcode_ >> 4], digits[opcode_ & 15]};
    const bool is_cut = problem_ == &cut_short;
    return std::string(problem_->what) + " (" + (is_cut ? "after " : "opcode " + opcode + " at ") +
           at + "); expected " + problem_->expected;
  }
  [[nodiscard]] std::uint64_t number(std::size_t count) {
    std::uint64_t out = 0;
    if (!from_.take_number(count, out)) fail(cut_short);
    return out;
  }
  void push(const value& what) {
    if (stack_.size() >= recording_limits::values_at_once) return fail(too_much);
    stack_.push_back(what);
  }
  void push_container(bool is_dict) {
    std::uint32_t place = static_cast<std::uint32_t>(containers_.size());
    if (!unused_.empty()) {
      place = unused_.back();
      unused_.pop_back();
    } else if (containers_.size() >= recording_limits::open_containers) {
      return fail(too_much);
    } else {
      containers_.emplace_back();
    }
    containers_[place].is_dict = is_dict;
    push({place, kind::open});
  }
  // Two's complement. What does not fit into 64 bits is as large as can be.
  void push_long(std::uint64_t count) {
    if (!from_.take(count, 9, text_)) return fail(cut_short);
    std::uint64_t out = 0;
    for (std::size_t i = 0; i < text_.size() && i < 8; ++i)
      out |= std::uint64_t{static_cast<unsigned char>(text_[i])} << (8 * i);
    const bool is_negative = !text_.empty() && (text_.back() & 0x80) != 0;
    if (is_negative && count < 8) out |= ~std::uint64_t{0} << (8 * count);
    const bool is_larger = count > 9 || (count == 9 && text_[8] != 0 && !is_negative);
    push({is_larger ? ~std::uint64_t{0} : out, kind::number});
  }
  void push_real() {
    if (!from_.take(8, 8, text_)) return fail(cut_short);
    std::uint64_t bits = 0;
    for (const char each : text_) bits = bits << 8 | static_cast<unsigned char>(each);
    push({bits, kind::real});
  }
  void push_text(std::uint64_t count) {
    if (!from_.take(count, 65536, text_)) return fail(cut_short);
    push({tables_.text(text_), kind::text});
  }
  void push_bytes(std::uint64_t count) {
    if (!from_.take(count, 0, text_)) return fail(cut_short);
    push({other_bytes, kind::other});
  }

  void begin_mark() {
    if (marks_.size() >= recording_limits::open_containers) return fail(too_much);
    marks_.push_back(stack_.size());
  }
  // How many values lie behind the last mark, which goes.
  [[nodiscard]] std::size_t take_mark() {
    if (marks_.empty()) {
      fail(too_few);
      return 0;
    }
    const std::size_t count = stack_.size() - marks_.back();
    marks_.pop_back();
    return count;
  }
  // Whether so many values lie behind the last mark, with `below` more below them in all.
  [[nodiscard]] bool has(std::size_t count, std::size_t below) {
    const std::size_t floor = marks_.empty() ? 0 : marks_.back();
    if (stack_.size() >= floor + count + below) return true;
    fail(too_few);
    return false;
  }
  void make_tuple(std::size_t count) {
    if (problem_ != nullptr || !has(count, 0)) return;
    const std::size_t from = stack_.size() - count;
    for (std::size_t i = from; i < stack_.size(); ++i) close(stack_[i]);
    value made{other_tuple, kind::other};
    const bool is_pair =
        count == 2 && stack_[from].what == kind::number && stack_[from + 1].what == kind::number;
    if (is_pair) made = {tables_.pool(stack_[from].payload, stack_[from + 1].payload), kind::pair};
    stack_.resize(from);
    push(made);
  }
  void add_items(std::size_t count, bool is_dict) {
    if (problem_ != nullptr || !has(count, 1)) return;
    const std::size_t from = stack_.size() - count;
    const value target = stack_[from - 1];
    if (target.what != kind::open || containers_[target.payload].is_dict != is_dict ||
        containers_[target.payload].is_closed)
      return fail(no_container);
    for (std::size_t i = from; i < stack_.size(); ++i) close(stack_[i]);
    container& to = containers_[target.payload];
    if (is_dict) {
      if (to.items.size() + count > 65536) return fail(large_dictionary);
      to.items.insert(to.items.end(), stack_.begin() + static_cast<std::ptrdiff_t>(from),
                      stack_.end());
    } else {
      for (std::size_t i = from; i < stack_.size(); ++i) append(to, stack_[i]);
    }
    stack_.resize(from);
    // PyTorch's own writer marks once for millions of events: what is whole is closed at once.
    if (is_dict && is_record(to)) close(stack_.back());
  }
  void get(std::uint64_t place) {
    if (place >= memo_.size() || memo_[place] == 0) return fail(unknown_reference);
    value found = unpacked(memo_[place]);
    if (found.what == kind::open) found = close_in_place(static_cast<std::uint32_t>(found.payload));
    push(found);
  }
  void put(std::uint64_t place) {
    if (!has(1, 0)) return;
    if (place >= recording_limits::referable_values || place > 2 * memo_.size() + 65536)
      return fail(unused_number);
    if (place >= memo_.size()) memo_.resize(place + 1, 0);
    const value& top = stack_.back();
    if (top.what == kind::open)
      containers_[top.payload].memo = static_cast<std::uint32_t>(place + 1);
    memo_[place] = packed(top);
  }
  // A value in 8 bytes; 0 is none at all. Numbers that large are nothing that is referred to.
  [[nodiscard]] static std::uint64_t packed(const value& from) noexcept {
    constexpr std::uint64_t most = std::uint64_t{1} << 58;
    const value kept = from.payload < most ? from : value{other_value, kind::other};
    return kept.payload << 6 | (static_cast<std::uint64_t>(kept.what) + 1);
  }
  [[nodiscard]] static value unpacked(std::uint64_t from) noexcept {
    return {from >> 6, static_cast<kind>((from & 63) - 1)};
  }

  // ---- containers ----

  // The value behind an open container, which goes with it.
  void close(value& what) {
    if (what.what != kind::open) return;
    const auto place = static_cast<std::uint32_t>(what.payload);
    what = close_in_place(place);
    container& gone = containers_[place];
    gone.items.clear();
    if (gone.items.capacity() > 4096) gone.items = {};
    gone.run = {};
    gone.memo = 0;
    gone.run_kind = kind::none;
    gone.is_closed = false;
    unused_.push_back(place);
  }
  // The same while the container itself still lies on the stack.
  [[nodiscard]] value close_in_place(std::uint32_t place) {
    container& from = containers_[place];
    if (from.is_closed) return from.closed;
    from.closed = from.is_dict ? dict_value(from) : list_value(from);
    from.is_closed = true;
    if (from.memo != 0) memo_[from.memo - 1] = packed(from.closed);
    return from.closed;
  }
  void append(container& to, const value& from) {
    const bool is_other = to.run_kind != kind::none && to.run_kind != from.what;
    const value what = is_other ? damaged_record(to.run_kind, from) : from;
    if (what.what < kind::event || what.what > kind::old_entry) {
      if (to.items.size() >= recording_limits::open_containers) return fail(too_much);
      return to.items.push_back(what);
    }
    if (to.run_kind == kind::none) {
      to.run_kind = what.what;
      to.run = {what.payload, 0};
      const std::vector<value> before = std::exchange(to.items, {});
      if (!before.empty()) to.run = {damaged_record(what.what, before.front()).payload, 1};
    }
    if (to.run.first + to.run.count != what.payload) repeat(to, what.payload);
    ++to.run.count;
  }
  // A list refers to a record that does not follow its last one: the records are copied to the end
  // of their table, where they follow one another.
  void repeat(container& to, std::uint64_t which) {
    const auto extend = [&](auto& table) {
      const std::uint64_t end = to.run.first + to.run.count;
      if (table.size() + to.run.count + 1 > recording_limits::events) return fail(too_much);
      if (end != table.size()) {
        const std::uint64_t first = table.size();
        for (std::uint64_t i = 0; i < to.run.count; ++i) {
          const auto copy = table[to.run.first + i];
          table.push_back(copy);
        }
        to.run.first = first;
      }
      const auto copy = table[which];
      table.push_back(copy);
    };
    switch (to.run_kind) {
      case kind::event: return extend(into_.events);
      case kind::block: return extend(into_.blocks);
      case kind::segment: return extend(into_.segments);
      case kind::annotation: return;  // nothing of it is kept
      default: return extend(old_entries_);
    }
  }
  [[nodiscard]] value list_value(const container& from) {
    if (from.items.empty()) return run_value(from);
    bool is_stack = true;
    bool is_traces = true;
    for (const value& each : from.items) {
      is_stack = is_stack && each.what == kind::frame;
      is_traces = is_traces && (each.what == kind::events || each.what == kind::empty_list);
    }
    if (is_stack) {
      frames_.clear();
      for (const value& each : from.items)
        frames_.push_back(static_cast<std::uint32_t>(each.payload));
      return {tables_.stack(frames_), kind::stack};
    }
    if (!is_traces || traces_.size() + from.items.size() > recording_limits::open_containers)
      return {other_list, kind::other};
    const std::uint64_t first = traces_.size();
    for (const value& each : from.items)
      traces_.push_back(each.what == kind::events ? range_of(each) : recorded_range{});
    return range_value(kind::traces, {first, from.items.size()});
  }
  [[nodiscard]] static value run_value(const container& from) noexcept {
    switch (from.run_kind) {
      case kind::event: return range_value(kind::events, from.run);
      case kind::block: return range_value(kind::blocks, from.run);
      case kind::segment: return range_value(kind::segments, from.run);
      case kind::annotation: return range_value(kind::annotations, from.run);
      case kind::old_entry: return {from.run.first, kind::old_entry};
      default: return {0, kind::empty_list};
    }
  }

  // ---- dictionaries ----

  // The values of the known keys.
  using fields = std::array<value, key_count>;
  void read_fields(const container& from, fields& into) const {
    into = {};
    for (std::size_t i = 0; i + 1 < from.items.size(); i += 2) {
      const value& key = from.items[i];
      if (key.what == kind::text && key.payload != 0 && key.payload < key_count)
        into[key.payload] = from.items[i + 1];
    }
  }
  [[nodiscard]] static bool has_key(const container& in, word key) noexcept {
    for (std::size_t i = 0; i + 1 < in.items.size(); i += 2)
      if (in.items[i].what == kind::text && in.items[i].payload == key) return true;
    return false;
  }
  // Whether it has become an event, a frame, a block, a segment or an annotation.
  [[nodiscard]] static bool is_record(const container& from) noexcept {
    for (const word each : {"action"_w, "addr"_w, "filename"_w, "state"_w, "requested_size"_w,
                            "total_size"_w, "stage"_w})
      if (has_key(from, each)) return true;
    return false;
  }
  [[nodiscard]] static std::uint64_t number_of(const value& from) noexcept {
    return from.what == kind::number ? from.payload : 0;
  }
  [[nodiscard]] static std::uint32_t text_of(const value& from) noexcept {
    return from.what == kind::text ? static_cast<std::uint32_t>(from.payload) : 0;
  }
  [[nodiscard]] static std::uint32_t stack_of(const value& from) noexcept {
    return from.what == kind::stack ? static_cast<std::uint32_t>(from.payload) : 0;
  }
  [[nodiscard]] static std::uint16_t pool_of(const value& from) noexcept {
    return from.what == kind::pair ? static_cast<std::uint16_t>(from.payload) : std::uint16_t{0};
  }

  [[nodiscard]] value dict_value(const container& from) {
    fields& of = fields_;
    read_fields(from, of);
    const bool has_place = of["addr"_w].what != kind::none && of["real_size"_w].what == kind::none;
    if (has_place || of["action"_w].what != kind::none) return add_event(from, of);
    if (of["filename"_w].what == kind::text) {
      const recorded_frame made{text_of(of["filename"_w]), text_of(of["name"_w]),
                                static_cast<std::uint32_t>(number_of(of["line"_w]))};
      return {tables_.frame(made), kind::frame};
    }
    if (of["total_size"_w].what != kind::none || of["blocks"_w].what != kind::none)
      return add_segment(from, of);
    if (of["state"_w].what != kind::none || of["requested_size"_w].what != kind::none)
      return add_block(from, of);
    if (of["stage"_w].what == kind::text) return {0, kind::annotation};
    if (of["real_size"_w].what == kind::number) {
      if (old_entries_.size() >= recording_limits::events) fail(too_much);
      old_entries_.push_back({number_of(of["real_size"_w]), stack_of(of["frames"_w])});
      return {old_entries_.size() - 1, kind::old_entry};
    }
    if (has_key(from, "segments"_w) || has_key(from, "device_traces"_w)) {
      root_ = of;
      has_root_ = true;
      return {other_value, kind::other};
    }
    return add_settings(from);
  }
  // The number of the first damage, from 1 on; 0 if the record has none.
  [[nodiscard]] std::uint64_t find_damage(const container& from, const fields& of,
                                          std::span<const field_rule> rules, word unused) {
    for (const field_rule& each : rules) {
      const value& found = of[each.key];
      const bool is_list = each.what >= kind::old_entry || each.what == kind::stack;
      const bool is_good = found.what == each.what || (found.what == kind::empty_list && is_list) ||
                           (found.what == kind::none && !each.is_required);
      if (is_good || each.key == unused) continue;
      damages_.push_back({found, each.key, each.what, !has_key(from, each.key)});
      return damages_.size();
    }
    return 0;
  }
  // In the place of a value of a list whose other values are records of this kind.
  [[nodiscard]] value damaged_record(kind what, const value& found) {
    if (damages_.size() >= recording_limits::events) fail(too_much);
    damages_.push_back({found, no_word, what, false});
    return add_damaged(what, damages_.size());
  }
  [[nodiscard]] value add_damaged(kind what, std::uint64_t number) {
    switch (what) {
      case kind::event:
        into_.events.push_back({.at = number, .action = recorded_action::damaged});
        return {into_.events.size() - 1, what};
      case kind::block:
        into_.blocks.push_back({.base = number, .state = block_state::damaged});
        return {into_.blocks.size() - 1, what};
      case kind::segment:
        into_.segments.push_back({.base = number, .is_damaged = true});
        return {into_.segments.size() - 1, what};
      case kind::annotation: return {0, what};
      default: old_entries_.emplace_back(); return {old_entries_.size() - 1, what};
    }
  }
  [[nodiscard]] value add_event(const container& from, const fields& of) {
    if (into_.events.size() >= recording_limits::events) {
      fail(many_events);
      return {};
    }
    recorded_event made;
    made.action = action_of(static_cast<std::uint32_t>(of["action"_w].payload));
    const bool is_oom = made.action == recorded_action::oom;
    // Later versions may record actions with other fields.
    const bool is_known =
        of["action"_w].what != kind::text || made.action != recorded_action::other;
    const std::span<const field_rule> rules(event_rules);
    const std::uint64_t damage_number = find_damage(from, of, is_known ? rules : rules.first(1),
                                                    is_oom ? "addr"_w : "device_free"_w);
    if (damage_number != 0) return add_damaged(kind::event, damage_number);
    made.at = number_of(of[is_oom ? "device_free"_w : "addr"_w]);
    made.size_bytes = number_of(of["size"_w]);
    made.time_us = of["time_us"_w].what == kind::number ? tables_.time(of["time_us"_w].payload) : 0;
    made.stream = tables_.stream(number_of(of["stream"_w]));
    const std::uint32_t category = text_of(of["category"_w]);
    made.context = tables_.context(
        {stack_of(of["frames"_w]), category != 0 ? category : text_of(of["user_metadata"_w])});
    made.pool = pool_of(of["pool_id"_w]);
    into_.events.push_back(made);
    return {into_.events.size() - 1, kind::event};
  }
  [[nodiscard]] static recorded_action action_of(std::uint32_t text) noexcept {
    switch (text) {
      case "alloc"_w: return recorded_action::alloc;
      case "free_requested"_w: return recorded_action::free_requested;
      case "free"_w:
      case "free_completed"_w: return recorded_action::free_completed;
      case "segment_alloc"_w: return recorded_action::segment_alloc;
      case "segment_free"_w: return recorded_action::segment_free;
      case "segment_map"_w: return recorded_action::segment_map;
      case "segment_unmap"_w: return recorded_action::segment_unmap;
      case "oom"_w: return recorded_action::oom;
      case "snapshot"_w: return recorded_action::snapshot;
      default: return recorded_action::other;
    }
  }
  [[nodiscard]] value add_block(const container& from, const fields& of) {
    if (into_.blocks.size() >= recording_limits::events) {
      fail(too_much);
      return {};
    }
    if (const std::uint64_t number = find_damage(from, of, block_rules, no_word); number != 0)
      return add_damaged(kind::block, number);
    recorded_block made;
    made.base = number_of(of["address"_w]);
    made.size_bytes = number_of(of["size"_w]);
    made.asked_bytes = number_of(of["requested_size"_w]);
    std::uint32_t stack = stack_of(of["frames"_w]);
    if (of["history"_w].what == kind::old_entry) {
      const old_history& old = old_entries_[of["history"_w].payload];
      if (made.asked_bytes == 0) made.asked_bytes = old.asked_bytes;
      if (stack == 0) stack = old.stack;
    }
    made.context = tables_.context({stack, text_of(of["user_metadata"_w])});
    const std::string_view state = into_.text(text_of(of["state"_w]));
    if (state == "active_allocated") made.state = block_state::live;
    if (state == "active_pending_free" || state == "active_awaiting_free")
      made.state = block_state::pending;
    into_.blocks.push_back(made);
    return {into_.blocks.size() - 1, kind::block};
  }
  [[nodiscard]] value add_segment(const container& from, const fields& of) {
    if (into_.segments.size() >= recording_limits::events) {
      fail(too_much);
      return {};
    }
    if (const std::uint64_t number = find_damage(from, of, segment_rules, no_word); number != 0)
      return add_damaged(kind::segment, number);
    recorded_segment made;
    made.base = number_of(of["address"_w]);
    made.size_bytes = number_of(of["total_size"_w]);
    made.device = number_of(of["device"_w]);
    made.stream = tables_.stream(number_of(of["stream"_w]));
    made.pool = pool_of(of["segment_pool_id"_w]);
    made.is_small = into_.text(text_of(of["segment_type"_w])) == "small";
    made.is_expandable = number_of(of["is_expandable"_w]) != 0;
    if (of["blocks"_w].what == kind::blocks) {
      const recorded_range blocks = range_of(of["blocks"_w]);
      made.first_block = static_cast<std::uint32_t>(blocks.first);
      made.block_count = static_cast<std::uint32_t>(blocks.count);
      std::uint64_t at = made.base;
      for (std::uint64_t i = 0; i < blocks.count; ++i) {
        recorded_block& each = into_.blocks[blocks.first + i];
        if (each.base == 0) each.base = at;  // older files lack it
        at = each.base + each.size_bytes;
      }
      if (at - made.base != made.size_bytes && blocks.count != 0 && damages_.empty())
        fail(unequal_segment);
    }
    into_.segments.push_back(made);
    return {into_.segments.size() - 1, kind::segment};
  }
  // Any other dictionary may be one of settings: names with numbers and texts.
  [[nodiscard]] value add_settings(const container& from) {
    const std::size_t first = settings_.size();
    for (std::size_t i = 0; i + 1 < from.items.size(); i += 2) {
      const value& key = from.items[i];
      const value& what = from.items[i + 1];
      if (key.what != kind::text || settings_.size() >= recording_limits::settings) continue;
      recorded_setting made{into_.text(text_of(key)), {}, 0};
      if (what.what == kind::number)
        made.number = static_cast<double>(static_cast<std::int64_t>(what.payload));
      if (what.what == kind::real) made.number = std::bit_cast<double>(what.payload);
      if (what.what == kind::text) made.text = into_.text(text_of(what));
      if (what.what == kind::map) {
        const recorded_range inner = range_of(what);
        for (std::uint64_t each = 0; each < inner.count; ++each)
          settings_[inner.first + each].name.insert(0, made.name + ":");
        continue;
      }
      settings_.push_back(std::move(made));
    }
    return range_value(kind::map, {first, settings_.size() - first});
  }

  // ---- the root ----

  [[nodiscard]] std::string finish(value& root) {
    close(root);
    if (problem_ != nullptr) return describe();
    if (root.what == kind::segments) return find_damaged_segment(range_of(root), "the list");
    if (root.what == kind::empty_list) return "";
    if (!has_root_)
      return "the pickle has no segments and device_traces: it is not a memory snapshot of PyTorch";
    for (const auto& [field, expected] :
         {std::pair{"segments"_w, kind::segments}, std::pair{"device_traces"_w, kind::traces}}) {
      const value& found = root_[field];
      const bool is_list = found.what == expected || found.what == kind::empty_list;
      if (!is_list)
        return describe("the dictionary", {found, field, expected, found.what == kind::none});
    }
    if (root_["device_traces"_w].what == kind::traces) {
      const recorded_range traces = range_of(root_["device_traces"_w]);
      const auto begin = traces_.begin() + static_cast<std::ptrdiff_t>(traces.first);
      into_.traces.assign(begin, begin + static_cast<std::ptrdiff_t>(traces.count));
    }
    if (std::string problem = find_damaged_event(); !problem.empty()) return problem;
    if (root_["segments"_w].what == kind::segments) {
      std::string problem = find_damaged_segment(range_of(root_["segments"_w]), "segments");
      if (!problem.empty()) return problem;
    }
    into_.has_annotation_list = root_["external_annotations"_w].what != kind::none;
    if (root_["allocator_settings"_w].what == kind::map) into_.settings = std::move(settings_);
    return "";
  }

  // ---- damaged records ----

  [[nodiscard]] std::string find_damaged_event() const {
    if (damages_.empty()) return "";
    for (std::size_t device = 0; device < into_.traces.size(); ++device) {
      const recorded_range& range = into_.traces[device];
      for (std::uint64_t i = 0; i < range.count; ++i) {
        const recorded_event& each = into_.events[range.first + i];
        if (each.action == recorded_action::damaged)
          return describe(place_of("device_traces", device) + place_of("", i),
                          damages_[each.at - 1]);
      }
    }
    return "";
  }
  [[nodiscard]] std::string find_damaged_segment(const recorded_range& range,
                                                 const char* list) const {
    for (std::uint64_t i = 0; i < range.count && !damages_.empty(); ++i) {
      const recorded_segment& segment = into_.segments[range.first + i];
      const std::string place = place_of(list, i);
      if (segment.is_damaged) return describe(place, damages_[segment.base - 1]);
      for (std::uint32_t j = 0; j < segment.block_count; ++j) {
        const recorded_block& each = into_.blocks[segment.first_block + j];
        if (each.state == block_state::damaged)
          return describe(place + place_of("['blocks']", j), damages_[each.base - 1]);
      }
    }
    return "";
  }
  [[nodiscard]] static std::string place_of(const char* list, std::uint64_t index) {
    return std::string(list) + "[" + std::to_string(index) + "]";
  }
  [[nodiscard]] std::string describe(const std::string& place, const damage& what) const {
    std::string found(name_of(what.found));
    if (what.found.what == kind::number)
      found += " (" + std::to_string(static_cast<std::int64_t>(what.found.payload)) + ")";
    if (what.found.what == kind::text)
      found += " ('" + into_.text(text_of(what.found)).substr(0, 40) + "')";
    std::string out = "a memory snapshot of PyTorch that is damaged: " + place;
    if (what.field == no_word) {
      out += " is " + found;
    } else {
      out += std::string(what.is_missing ? " has no '" : " has '") + into_.text(what.field) + "'";
      if (!what.is_missing) out += " that is " + found;
    }
    return out + "; expected " + std::string(name_of({0, what.expected})) +
           ". Record the snapshot again, or remove or mend this entry with Python's pickle module";
  }

  byte_reader& from_;
  recording& into_;
  recording_tables tables_;
  const pickle_fault* problem_ = nullptr;
  std::uint64_t opcode_at_ = 0;  // of the last opcode
  unsigned char opcode_ = 0;
  std::vector<value> stack_{};
  std::vector<std::size_t> marks_{};
  std::vector<std::uint64_t> memo_{};
  std::vector<container> containers_{};
  std::vector<std::uint32_t> unused_{};
  std::vector<old_history> old_entries_{};
  std::vector<damage> damages_{};
  std::vector<recorded_range> traces_{};
  std::vector<recorded_setting> settings_{};
  std::vector<std::uint32_t> frames_{};
  std::string text_{};
  fields fields_{};
  fields root_{};
  bool has_root_ = false;
};

}  // namespace

bool looks_like_pickle(std::string_view head) {
  return head.size() >= 2 && head[0] == '\x80' && head[1] >= 2 && head[1] <= 5;
}

std::string read_pickle(byte_reader& from, recording& into) {
  return pickle_machine(from, into).read();
}

}  // namespace vmm::tools

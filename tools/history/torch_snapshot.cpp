// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// PyTorch's memory snapshot, the pickle that torch.cuda.memory._dump_snapshot writes, as a history:
// to stand beside one of ours. Only the opcodes of plain data are read; a pickle that would call
// anything is refused.
//
// I1  Nothing is read outside of the bytes, and what is made of them has a bounded multiple of
//     their size: each value is a node once, however often it is referred to, and there are at most
//     as many nodes as a quarter of the bytes. Snapshots take ten bytes for a node and more.
module vmm.history_tools;

import vmm.backend;
import vmm.history;
import vmm.std;

namespace vmm::tools {

namespace {

// ---- pickle --------------------------------------------------------------------------

enum class value_kind : std::uint8_t { none, number, text, list, dict, mark };

struct value {
  value_kind kind = value_kind::none;
  std::uint64_t number = 0;
  std::string_view text{};
  std::vector<std::uint32_t> items{};  // of a dict: key, value, key, value
};

class pickle_reader {
 public:
  explicit pickle_reader(std::string_view bytes)
      : left_(bytes), values_max_(std::min(values_most, 1024 + bytes.size() / 4)) {
    values_.push_back({value_kind::mark});
    values_.push_back({});
    for (std::uint64_t i = 0; i < small_numbers; ++i) {
      values_.push_back({value_kind::number});
      values_.back().number = i;
    }
  }

  // The number of the root, or nothing; then problem() says why.
  [[nodiscard]] std::optional<std::uint32_t> read() {
    while (!left_.empty() && problem_.empty()) {
      const auto opcode = static_cast<unsigned char>(left_.front());
      left_.remove_prefix(1);
      if (opcode == '.') {
        if (stack_.size() == 1) return stack_.back();
        break;
      }
      step(opcode);
    }
    if (problem_.empty()) problem_ = "the pickle is cut short";
    return std::nullopt;
  }
  [[nodiscard]] const std::string& problem() const { return problem_; }
  [[nodiscard]] const value& at(std::uint32_t number) const { return values_[number]; }

 private:
  void step(unsigned char opcode) {
    switch (opcode) {
      case 0x80: (void)number(1); return;  // the protocol
      case 0x95: (void)number(8); return;  // a frame
      case '(': stack_.push_back(the_mark); return;
      case 'N': stack_.push_back(the_mark + 1); return;
      case 0x88: push_number(1); return;
      case 0x89: push_number(0); return;
      case 'J':
        push_number(static_cast<std::uint64_t>(
            static_cast<std::int64_t>(static_cast<std::int32_t>(number(4)))));
        return;
      case 'K': push_number(number(1)); return;
      case 'M': push_number(number(2)); return;
      case 0x8a: push_long(number(1)); return;
      case 'G': push_double(); return;
      case 0x8c: push_text(number(1)); return;
      case 'X': push_text(number(4)); return;
      case 0x8d: push_text(number(8)); return;
      case '}': push({value_kind::dict}); return;
      case ']':
      case ')': push({value_kind::list}); return;
      case 0x85: gather(1); return;
      case 0x86: gather(2); return;
      case 0x87: gather(3); return;
      default: step_on_stack(opcode); return;
    }
  }
  void step_on_stack(unsigned char opcode) {
    switch (opcode) {
      case 't':
      case 'l': end_mark(value_kind::list); return;
      case 'd': end_mark(value_kind::dict); return;
      case 'a': add(1, value_kind::list); return;
      case 's': add(2, value_kind::dict); return;
      case 'e': add_marked(value_kind::list); return;
      case 'u': add_marked(value_kind::dict); return;
      case 'h': get(number(1)); return;
      case 'j': get(number(4)); return;
      case 'q': put(number(1)); return;
      case 'r': put(number(4)); return;
      case 0x94: put(memo_.size()); return;
      default: fail("the pickle holds more than plain data: it is no memory snapshot"); return;
    }
  }

  void fail(const char* why) {
    if (problem_.empty()) problem_ = why;
  }
  [[nodiscard]] std::string_view take(std::uint64_t count) {
    if (count > left_.size()) {
      fail("the pickle is cut short");
      left_ = {};
      return {};
    }
    const std::string_view out = left_.substr(0, count);
    left_.remove_prefix(count);
    return out;
  }
  [[nodiscard]] std::uint64_t number(std::size_t count) {
    std::uint64_t out = 0;
    const std::string_view bytes = take(count);
    for (std::size_t i = 0; i < bytes.size(); ++i)
      out |= std::uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
    return out;
  }
  void push(value what) {
    if (values_.size() >= values_max_)
      return fail("the pickle makes more values than a file of its size can hold");
    values_.push_back(std::move(what));
    stack_.push_back(static_cast<std::uint32_t>(values_.size() - 1));
  }
  void push_number(std::uint64_t what) {
    if (what < small_numbers)
      return stack_.push_back(the_mark + 2 + static_cast<std::uint32_t>(what));
    value made{value_kind::number};
    made.number = what;
    push(std::move(made));
  }
  // Two's complement; what does not fit into 64 bits is no address.
  void push_long(std::uint64_t count) {
    const std::string_view bytes = take(count);
    if (bytes.size() > 9) return fail("a number of the snapshot is too large");
    std::uint64_t out = 0;
    for (std::size_t i = 0; i < bytes.size() && i < 8; ++i)
      out |= std::uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
    push_number(out);
  }
  void push_double() {
    const std::string_view bytes = take(8);
    std::uint64_t word = 0;
    for (const char each : bytes) word = word << 8 | static_cast<unsigned char>(each);
    const auto seen = std::bit_cast<double>(word);
    push_number(seen > 0 && seen < 9e18 ? static_cast<std::uint64_t>(seen) : 0);
  }
  void push_text(std::uint64_t count) {
    value made{value_kind::text};
    made.text = take(count);
    push(std::move(made));
  }
  void gather(std::size_t count) {
    if (stack_.size() < count) return fail("the pickle takes more than it has");
    value made{value_kind::list};
    made.items.assign(stack_.end() - static_cast<std::ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    push(std::move(made));
  }
  // The place behind the last mark.
  [[nodiscard]] std::optional<std::size_t> find_mark() {
    for (std::size_t i = stack_.size(); i-- != 0;) {
      if (values_[stack_[i]].kind == value_kind::mark) return i + 1;
    }
    fail("the pickle takes more than it has");
    return std::nullopt;
  }
  void end_mark(value_kind kind) {
    const auto from = find_mark();
    if (!from) return;
    value made{kind};
    made.items.assign(stack_.begin() + static_cast<std::ptrdiff_t>(*from), stack_.end());
    stack_.resize(*from - 1);
    push(std::move(made));
  }
  void add(std::size_t count, value_kind kind) {
    if (stack_.size() < count + 1) return fail("the pickle takes more than it has");
    add_to(stack_.size() - count, kind);
  }
  void add_marked(value_kind kind) {
    const auto from = find_mark();
    if (!from || *from < 2) return fail("the pickle takes more than it has");
    stack_.erase(stack_.begin() + static_cast<std::ptrdiff_t>(*from - 1));
    add_to(*from - 1, kind);
  }
  // What lies from there on goes into the value before it.
  void add_to(std::size_t from, value_kind kind) {
    value& to = values_[stack_[from - 1]];
    if (to.kind != kind) return fail("the pickle adds to what is no list and no dictionary");
    to.items.insert(to.items.end(), stack_.begin() + static_cast<std::ptrdiff_t>(from),
                    stack_.end());
    stack_.resize(from);
  }
  void get(std::uint64_t place) {
    if (place >= memo_.size() || memo_[place] == the_mark)
      return fail("the pickle refers to what it never had");
    stack_.push_back(memo_[place]);
  }
  void put(std::uint64_t place) {
    if (stack_.empty()) return fail("the pickle takes more than it has");
    if (place >= values_max_) return fail("the pickle counts further than it has values");
    if (place >= memo_.size()) memo_.resize(place + 1, the_mark);
    memo_[place] = stack_.back();
  }

  // Values that are made once: the mark, none, and numbers of a byte.
  static constexpr std::uint32_t the_mark = 0;
  static constexpr std::uint64_t small_numbers = 256;
  static constexpr std::size_t values_most = std::size_t{1} << 24;

  std::string_view left_;
  const std::size_t values_max_;
  std::vector<value> values_;
  std::vector<std::uint32_t> stack_;
  std::vector<std::uint32_t> memo_;  // the_mark: nothing
  std::string problem_;
};

// ---- a history of it -----------------------------------------------------------------

constexpr std::uint64_t page_bytes = std::uint64_t{2} << 20;
constexpr std::uint64_t address_max = std::uint64_t{1} << 53;  // what the viewers can show

class snapshot_reader {
 public:
  snapshot_reader(const pickle_reader& from, std::size_t size_bytes)
      : from_(from), count_max_(size_bytes) {}

  [[nodiscard]] std::string read(std::uint32_t root, history& into) {
    const value* const segments = find(from_.at(root), "segments");
    const value* const traces = find(from_.at(root), "device_traces");
    if (segments == nullptr || traces == nullptr || segments->kind != value_kind::list ||
        traces->kind != value_kind::list)
      return "the pickle has no segments and device_traces: it is no memory snapshot of PyTorch";
    choose_device(*segments, *traces);
    for (const std::uint32_t each : segments->items) {
      if (number(from_.at(each), "device") == device_) add_segment(from_.at(each), into);
    }
    const auto by_address = [](const auto& a, const auto& b) {
      return a.where.base < b.where.base;
    };
    std::sort(into.regions.begin(), into.regions.end(), by_address);
    std::sort(into.mappings.begin(), into.mappings.end(), by_address);
    for (const history_mapping& each : into.mappings) held_bytes_ += each.where.size_bytes;
    if (device_ < traces->items.size()) add_trace(from_.at(traces->items[device_]), into);
    add_facts(traces->items.size(), into);
    if (problem_.empty() && looked_at_count_ > looked_at_max()) return too_much;
    return problem_;
  }

 private:
  [[nodiscard]] const value* find(const value& in, std::string_view key) const {
    if (in.kind != value_kind::dict || looked_at_count_ > looked_at_max()) return nullptr;
    for (std::size_t i = 0; i + 1 < in.items.size(); i += 2) {
      ++looked_at_count_;
      if (from_.at(in.items[i]).text == key) return &from_.at(in.items[i + 1]);
    }
    return nullptr;
  }
  // What is in a pickle once may be named in it as often as it has bytes. Events of PyTorch take
  // less than a tenth of this.
  [[nodiscard]] std::uint64_t looked_at_max() const { return std::uint64_t{256} * count_max_; }
  [[nodiscard]] std::uint64_t number(const value& in, std::string_view key) const {
    const value* const found = find(in, key);
    return found != nullptr && found->kind == value_kind::number ? found->number : 0;
  }
  [[nodiscard]] std::string_view text(const value& in, std::string_view key) const {
    const value* const found = find(in, key);
    return found != nullptr ? found->text : std::string_view();
  }

  // The one that did the most.
  void choose_device(const value& segments, const value& traces) {
    std::size_t most = 0;
    for (std::size_t i = 0; i < traces.items.size(); ++i) {
      const std::size_t count = from_.at(traces.items[i]).items.size();
      if (count <= most) continue;
      most = count;
      device_ = i;
    }
    if (most == 0 && !segments.items.empty())
      device_ = number(from_.at(segments.items.front()), "device");
  }
  // Whether there is room for more of what a file of this size may come to.
  [[nodiscard]] bool may_add(std::size_t count) {
    if (count <= count_max_) return true;
    problem_ = too_much;
    return false;
  }
  [[nodiscard]] bool check_range(std::uint64_t at, std::uint64_t size_bytes) {
    if (at < address_max && size_bytes < address_max) return true;
    problem_ = "an address or size of the snapshot is too large";
    return false;
  }

  // Memory that can be unmapped in parts is listed in parts.
  template <class Each>
  void for_each_part(std::uint64_t at, std::uint64_t size_bytes, bool is_expandable, Each&& each) {
    if (!check_range(at, size_bytes)) return;
    const bool is_split =
        is_expandable && at % page_bytes == 0 && size_bytes % page_bytes == 0 && size_bytes != 0;
    const std::uint64_t part_bytes = is_split ? page_bytes : size_bytes;
    if (part_bytes == 0 || !may_add(part_count_ += size_bytes / part_bytes)) return;
    for (std::uint64_t done = 0; done < size_bytes; done += part_bytes) each(at + done, part_bytes);
  }

  void add_segment(const value& segment, history& into) {
    std::uint64_t at = number(segment, "address");
    const std::uint64_t size_bytes = number(segment, "total_size");
    const std::uint64_t stream = number(segment, "stream");
    const bool is_expandable = number(segment, "is_expandable") != 0;
    is_any_expandable_ = is_any_expandable_ || is_expandable;
    for_each_part(at, size_bytes, is_expandable, [&](std::uint64_t part, std::uint64_t bytes) {
      into.mappings.push_back({{{part}, bytes}, false});
    });
    const value* const blocks = find(segment, "blocks");
    if (blocks == nullptr || blocks->kind != value_kind::list) return;
    for (const std::uint32_t each : blocks->items) {
      const value& block = from_.at(each);
      const std::uint64_t bytes = number(block, "size");
      const bool is_live = text(block, "state").starts_with("active");
      if (!check_range(at, bytes) || !may_add(into.regions.size())) return;
      if (bytes != 0)
        into.regions.push_back({{{at}, bytes},
                                stream,
                                is_live ? history_region_kind::live : history_region_kind::free});
      if (is_live) live_bytes_ += bytes;
      at += bytes;
    }
  }

  [[nodiscard]] std::uint32_t frame_of(const value& event, history& into) {
    const value* const frames = find(event, "frames");
    if (frames == nullptr || frames->items.empty()) return 0;
    if (const auto seen = frames_of_.find(frames); seen != frames_of_.end()) return seen->second;
    const value* chosen = &from_.at(frames->items.front());
    for (const std::uint32_t each : frames->items) {
      if (!text(from_.at(each), "filename").ends_with(".py")) continue;
      chosen = &from_.at(each);
      break;
    }
    history_frame frame{std::string(text(*chosen, "filename")), std::string(text(*chosen, "name")),
                        static_cast<std::uint32_t>(number(*chosen, "line"))};
    const std::string key = std::to_string(frame.line) + ":" + frame.file + "\n" + frame.function;
    const auto [known, is_new] =
        frames_.emplace(key, static_cast<std::uint32_t>(into.frames.size() + 1));
    if (is_new) into.frames.push_back(std::move(frame));
    frames_of_.emplace(frames, known->second);  // events share the lists of their callers
    return known->second;
  }
  [[nodiscard]] std::uint16_t tag_of(const value& event, history& into) {
    std::string_view name = text(event, "category");
    if (name.empty()) name = text(event, "user_metadata");
    if (name.empty() || into.tags.size() == 0xffff) return 0;
    const auto [known, is_new] =
        tags_.emplace(std::string(name), static_cast<std::uint16_t>(into.tags.size() + 1));
    if (is_new) into.tags.emplace_back(name);
    return known->second;
  }

  void add_trace(const value& trace, history& into) {
    std::uint64_t first_us = 0;
    for (std::size_t i = 0; i < trace.items.size() && problem_.empty(); ++i) {
      const value& event = from_.at(trace.items[i]);
      const std::uint64_t us = number(event, "time_us");
      if (i == 0) first_us = us;
      now_ns_ = std::max(now_ns_,
                         us > first_us && us - first_us < address_max ? (us - first_us) * 1000 : 0);
      const value* const next =
          i + 1 < trace.items.size() ? &from_.at(trace.items[i + 1]) : nullptr;
      if (!may_add(into.events.size())) return;
      add_event(event, next, into);
    }
    // What was held before the first event, from what is held after the last.
    std::uint64_t held = held_bytes_;
    for (std::size_t i = into.events.size(); i-- != 0;) {
      history_event& each = into.events[i];
      if (each.kind == history_kind::footprint) each.size_bytes = held;
      if (each.kind == history_kind::mapped) held -= std::min(held, each.size_bytes);
      if (each.kind == history_kind::released) held += each.size_bytes;
    }
  }
  void add_event(const value& event, const value* next, history& into) {
    const std::string_view action = text(event, "action");
    history_event made;
    made.time_ns = now_ns_;
    made.at = {number(event, "addr")};
    made.size_bytes = number(event, "size");
    made.stream = number(event, "stream");
    if (!check_range(made.at.value, made.size_bytes)) return;
    const bool is_map = action == "segment_map" || action == "segment_alloc";
    if (is_map || action == "segment_unmap" || action == "segment_free") {
      made.kind = is_map ? history_kind::mapped : history_kind::released;
      add_mapping(made, action == "segment_map" || action == "segment_unmap", into);
      return;
    }
    if (action == "alloc") {
      made.kind = history_kind::allocated;
      made.detail = made.size_bytes;
    } else if (action == "free_completed") {
      made.kind = history_kind::freed;
    } else if (action == "free_requested") {
      const bool is_at_once = next != nullptr && text(*next, "action") == "free_completed" &&
                              number(*next, "addr") == made.at.value;
      if (is_at_once) return;
      made.kind = history_kind::free_pinned;
    } else if (action == "oom") {
      made.kind = history_kind::short_of_memory;
      made.at = {static_cast<std::uint64_t>(errc::out_of_memory)};
    } else {
      return;
    }
    made.frame = frame_of(event, into);
    made.tag = tag_of(event, into);
    into.events.push_back(made);
  }
  void add_mapping(const history_event& made, bool is_expandable, history& into) {
    for_each_part(made.at.value, made.size_bytes, is_expandable,
                  [&](std::uint64_t part, std::uint64_t bytes) {
                    history_event each = made;
                    each.at = {part};
                    each.size_bytes = bytes;
                    into.events.push_back(each);
                  });
    history_event total;
    total.time_ns = made.time_ns;
    total.kind = history_kind::footprint;
    into.events.push_back(total);
  }
  void add_facts(std::size_t device_count, history& into) {
    const auto add = [&](const char* name, std::string what) {
      into.facts.push_back({name, std::move(what)});
    };
    add("allocator", "PyTorch");
    add("policy", is_any_expandable_ ? "expandable segments" : "caching");
    add("page_bytes", std::to_string(page_bytes));
    add("device", std::to_string(device_) + " of " + std::to_string(device_count));
    add("live_bytes", std::to_string(live_bytes_));
    add("footprint_bytes", std::to_string(held_bytes_));
  }

  static constexpr const char* too_much = "the snapshot says more than a file of its size can";

  const pickle_reader& from_;
  const std::size_t count_max_;
  mutable std::uint64_t looked_at_count_ = 0;  // entries of dictionaries
  std::string problem_;
  std::uint64_t device_ = 0;
  std::uint64_t part_count_ = 0;
  std::uint64_t held_bytes_ = 0;
  std::uint64_t live_bytes_ = 0;
  std::uint64_t now_ns_ = 0;
  bool is_any_expandable_ = false;
  std::map<std::string, std::uint32_t> frames_;
  std::map<const value*, std::uint32_t> frames_of_;  // of lists of frames
  std::map<std::string, std::uint16_t> tags_;
};

}  // namespace

bool looks_like_pickle(std::string_view bytes) {
  return bytes.size() >= 2 && bytes[0] == '\x80' && bytes[1] >= 2 && bytes[1] <= 5;
}

history_outcome read_torch_snapshot(std::string_view bytes) {
  history_outcome out;
  pickle_reader pickle(bytes);
  const auto root = pickle.read();
  if (!root) {
    out.problem = pickle.problem();
    return out;
  }
  history made;
  out.problem = snapshot_reader(pickle, bytes.size()).read(*root, made);
  if (!out.problem.empty()) return out;
  // Our own reader says whether what was made holds together.
  const result<std::vector<std::byte>> written = encode_history(made);
  const result<history> read =
      written ? decode_history(*written) : result<history>(written.error());
  if (!read) {
    out.problem = read.error().detail;
    return out;
  }
  out.taken = std::move(made);
  return out;
}

}  // namespace vmm::tools

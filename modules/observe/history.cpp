// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstdio>

module vmm.observe;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {

namespace {

// The processor's constant-rate counter: a read costs a third of one of the clock.
std::uint64_t read_ticks() noexcept {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  std::uint64_t ticks = 0;
  asm volatile("mrs %0, cntvct_el0" : "=r"(ticks));
  return ticks;
#else
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
#endif
}

std::uint64_t read_clock_ns() noexcept {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

// ---- labels ----

thread_local history_label::names label_now;

struct name_tables {
  sync::mutex mutex;
  std::vector<std::string> tags{};
  std::unordered_map<std::string, std::uint16_t> tag_numbers{};
  std::vector<history_frame> frames{};
  std::unordered_map<std::string, std::uint32_t> frame_numbers{};
};

// Never destroyed: threads may allocate while the process ends.
name_tables& names() {
  static name_tables& tables = *new name_tables;
  return tables;
}

constexpr std::size_t tag_count_max = 0xffff;

// The number of registered names. A caller that has a name got it from a call that counted it.
sync::atomic<std::uint32_t> tag_count = 0;
sync::atomic<std::uint32_t> frame_count = 0;

}  // namespace

sync::atomic<bool> history_needs_more = false;

const char* name_of(history_kind kind) noexcept {
  switch (kind) {
    case history_kind::none: return "none";
    case history_kind::allocated: return "allocated";
    case history_kind::freed: return "freed";
    case history_kind::free_pinned: return "free_pinned";
    case history_kind::captured: return "captured";
    case history_kind::kept: return "kept";
    case history_kind::pinned: return "pinned";
    case history_kind::unpinned: return "unpinned";
    case history_kind::resized: return "resized";
    case history_kind::graph_ended: return "graph_ended";
    case history_kind::reserved: return "reserved";
    case history_kind::unreserved: return "unreserved";
    case history_kind::mapped: return "mapped";
    case history_kind::unmapped: return "unmapped";
    case history_kind::released: return "released";
    case history_kind::footprint: return "footprint";
    case history_kind::suspended: return "suspended";
    case history_kind::resumed: return "resumed";
    case history_kind::remapped: return "remapped";
    case history_kind::grow: return "grow";
    case history_kind::served: return "served";
    case history_kind::wait: return "wait";
    case history_kind::blocked: return "blocked";
    case history_kind::passed: return "passed";
    case history_kind::short_of_memory: return "short_of_memory";
    case history_kind::short_live: return "short_live";
    case history_kind::short_free: return "short_free";
    case history_kind::trimmed: return "trimmed";
    case history_kind::clock: break;
  }
  return "unknown";
}

status history_options::validate() const noexcept {
  const bool has_size = std::has_single_bit(event_count) && event_count >= std::uint64_t{1} << 10 &&
                        event_count <= std::uint64_t{1} << 26;
  if (!has_size)
    return refuse_number(event_count,
                         "history_options::event_count is a power of two from 2^10 to 2^26");
  if (!std::has_single_bit(clock_interval) || clock_interval > 4096)
    return refuse_number(clock_interval,
                         "history_options::clock_interval is a power of two from 1 to 4096");
  return {};
}

// ---- the ring ------------------------------------------------------------------------

history_ring::history_ring(const history_options& options, table<record>&& records,
                           table<std::uint64_t>&& clocks) noexcept
    : mask_(options.event_count - 1),
      clock_mask_(std::min<std::uint64_t>(options.clock_interval, options.event_count) - 1),
      records_(std::move(records)),
      clocks_(std::move(clocks)),
      clock_table_mask_(2 * (options.event_count / (clock_mask_ + 1)) - 1),
      clock_shift_(static_cast<std::uint32_t>(std::popcount(clock_mask_))),
      options_(options),
      first_ticks_(read_ticks()),
      first_ns_(read_clock_ns()) {
  check(std::has_single_bit(clock_table_mask_ + 1), "a ring has too little room for its clocks");
  check(std::has_single_bit(mask_ + 1) && clock_mask_ <= mask_, "a ring has no whole laps");
  check(clocks_ != nullptr && records_ != nullptr, "a ring has no room");
  if (options_.listener != nullptr) history_needs_more.store(true, std::memory_order_relaxed);
}

history_ring::~history_ring() {
  if (!made_in_.is_here()) return;
  check(!is_attached_.load(std::memory_order_acquire),
        "a history is destroyed before the allocator that it records");
}

result<std::unique_ptr<history_ring>> history_ring::make(const history_options& options) {
  if (status valid = options.validate(); !valid) return valid.error();
  const std::uint64_t interval =
      std::min<std::uint64_t>(options.clock_interval, options.event_count);
  const std::uint64_t clock_count = 2 * (options.event_count / interval);
  check(clock_count >= 2, "a ring has no clock");
  // Not initialised: pages that no event reaches take no memory.
  const auto take = [](std::uint64_t size_bytes) {
    return std::malloc(static_cast<std::size_t>(size_bytes));
  };
  table<record> records(static_cast<record*>(take(options.event_count * sizeof(record))));
  table<std::uint64_t> clocks(
      static_cast<std::uint64_t*>(take(clock_count * sizeof(std::uint64_t))));
  if (records == nullptr || clocks == nullptr) return no_history_memory;
  try {
    return std::unique_ptr<history_ring>(
        new history_ring(options, std::move(records), std::move(clocks)));
  } catch (const std::bad_alloc&) {
    return no_history_memory;
  }
}

status history_ring::attach() noexcept {
  if (!is_attached_.exchange(true, std::memory_order_acq_rel)) return {};
  return refuse(errc::bad_option, "memory_options::recorder already records another allocator");
}

void history_ring::detach() noexcept {
  check(is_attached_.exchange(false, std::memory_order_acq_rel),
        "a history is detached that records nothing");
}

// Stores the time for the next record and those after it.
void history_ring::read_clock() noexcept {
  const std::uint64_t place = written_count_ >> clock_shift_ & clock_table_mask_;
  debug_check([&] { return (written_count_ & clock_mask_) == 0; }, "a clock is read between two");
  clocks_[place] = read_ticks();
}

void history_ring::write(const record& next) noexcept {
  if ((written_count_ & clock_mask_) == 0) read_clock();
  check(next.at_and_kind >> kind_shift != 0, "a record of nothing is written");
  records_[written_count_++ & mask_] = next;
}

void history_ring::note(const history_note& what) noexcept {
  check(what.kind != history_kind::none && what.kind != history_kind::clock &&
            !is_block_kind(what.kind),
        "a slow event is of kind none, a clock or a block");
  debug_check([&] { return (what.where.base.value & ~at_mask) == 0; }, "an address has no room");
  const auto kind_word = [](history_kind kind) {
    return std::uint64_t{static_cast<std::uint8_t>(kind)} << kind_shift;
  };
  write({(what.where.base.value & at_mask) | kind_word(what.kind),
         std::min(what.where.size_bytes, size_mask), static_cast<std::uint64_t>(what.stream),
         what.detail});
  write({kind_word(history_kind::clock), 0, read_ticks(), 0});
  ++clock_count_;
  if (options_.listener != nullptr) options_.listener->heard(what);
}

void history_ring::note_block_with_more(history_kind kind, address_range block,
                                        std::uint64_t asked_bytes, stream_handle stream) noexcept {
  check(is_block_kind(kind), "a block's event is none");
  if ((written_count_ & clock_mask_) == 0) read_clock();
  record& to = write_block(kind, block, asked_bytes, stream);
  if (history_needs_more.load(std::memory_order_relaxed))
    note_more(to, {kind, block, stream, asked_bytes});
}

// The rare parts of an event: the names that the thread has set, and the ring's listener.
void history_ring::note_more(record& to, const history_note& what) noexcept {
  check(to.at_and_kind >> kind_shift == static_cast<std::uint8_t>(what.kind),
        "a record is extended that is not of this event");
  to.size_and_tag |= std::uint64_t{label_now.tag} << tag_shift;
  to.detail |= std::uint64_t{label_now.frame} << frame_shift;
  if (options_.listener != nullptr) options_.listener->heard(what);
}

std::uint64_t history_ring::oldest_number() const noexcept {
  return written_count_ - std::min(written_count_, options_.event_count);
}

history_event history_ring::event_of(const record& from) noexcept {
  history_event to;
  to.at = {from.at_and_kind & at_mask};
  to.kind = static_cast<history_kind>(from.at_and_kind >> kind_shift);
  to.size_bytes = from.size_and_tag & size_mask;
  to.tag = static_cast<std::uint16_t>(from.size_and_tag >> tag_shift);
  to.stream = from.stream;
  to.detail = from.detail;
  debug_check([&] { return to.kind != history_kind::none; }, "a record is read that is empty");
  debug_check([&] { return to.kind != history_kind::clock; }, "a time is read as an event");
  if (is_block_kind(to.kind)) {
    to.detail = to.size_bytes - std::min(to.size_bytes, from.detail & rest_mask);
    to.frame = static_cast<std::uint32_t>(from.detail >> frame_shift);
  }
  return to;
}

void history_ring::copy(const numbers& which, std::vector<history_event>& out) const noexcept {
  check(which.first >= oldest_number(), "an event is already overwritten");
  check(which.first + which.count <= written_count_, "an event is not written yet");
  check(out.capacity() - out.size() >= which.count, "an event has no room");
  for (std::uint64_t i = which.first; i < which.first + which.count; ++i) {
    const record& from = records_[i & mask_];
    const bool is_clock =
        from.at_and_kind >> kind_shift == static_cast<std::uint8_t>(history_kind::clock);
    if (is_clock) {
      if (!out.empty()) out.back().time_ns = std::max(out.back().time_ns, from.stream);
      continue;
    }
    const std::uint64_t before = out.empty() ? first_ticks_ : out.back().time_ns;
    out.push_back(event_of(from));
    out.back().time_ns = std::max(before, clocks_[i >> clock_shift_ & clock_table_mask_]);
  }
}

status history_ring::complete(history& taken) const {
  check(taken.tags.empty() && taken.frames.empty(), "a history is completed twice");
  const auto goes_back = [](const history_event& a, const history_event& b) {
    return b.time_ns < a.time_ns;
  };
  const auto is_in_order = [&] {
    return std::adjacent_find(taken.events.begin(), taken.events.end(), goes_back) ==
           taken.events.end();
  };
  debug_check(is_in_order, "I1: an event is before an earlier one");
  const double passed_ticks = static_cast<double>(read_ticks() - first_ticks_);
  const double passed_ns = static_cast<double>(read_clock_ns() - first_ns_);
  const double ns_per_tick = passed_ticks > 0 ? passed_ns / passed_ticks : 0;
  for (history_event& each : taken.events) {
    const std::uint64_t ticks = std::max(each.time_ns, first_ticks_) - first_ticks_;
    each.time_ns = static_cast<std::uint64_t>(static_cast<double>(ticks) * ns_per_tick);
  }
  try {
    name_tables& tables = names();
    const sync::lock_guard<sync::mutex> lock(tables.mutex);
    taken.tags = tables.tags;
    taken.frames = tables.frames;
    return {};
  } catch (const std::bad_alloc&) {
    return refuse(errc::out_of_host_memory, "no host memory is left for a history's names");
  }
}

void history_ring::write_shortage(const history& taken) noexcept {
  if (!wants_shortage()) return;
  status written;
  try {
    const std::string path = options_.shortage_path + "." + std::to_string(shortage_count_);
    written = write_history(taken, path.c_str());
  } catch (const std::bad_alloc&) {
    written = refuse(errc::out_of_host_memory, "no host memory is left for a history's path");
  }
  if (written) ++shortage_count_;
  check(shortage_count_ <= options_.shortage_count_max, "more files are written than requested");
  if (written || std::exchange(has_complained_, true)) return;
  without_write_signals([&] {
    std::fprintf(stderr, "vmm: the history of a shortage could not be written: %s\n",
                 written.error().detail);
  });
}

history_port::~history_port() {
  check(!is_attached_ || get() != nullptr, "no ring is attached");
  if (is_attached_) get()->detach();
}

status history_port::attach() noexcept {
  check(get() != nullptr || !is_attached_, "no ring is attached");
  if (get() == nullptr || is_attached_) return {};
  const status attached = get()->attach();
  is_attached_ = attached.has_value();
  return attached;
}

status history_port::begin(std::unique_ptr<history_ring> own) noexcept {
  check(own != nullptr, "a history begins without a ring");
  if (get() != nullptr)
    return refuse(errc::in_use, "the allocator's history is being recorded already");
  const status attached = own->attach();
  check(attached.has_value(), "I2: a new ring records another allocator");
  own_ = std::move(own);
  is_attached_ = true;
  ring_.store(own_.get(), std::memory_order_relaxed);
  return {};
}

std::unique_ptr<history_ring> history_port::end() noexcept {
  check(get() != nullptr, "end() without a recording");
  check(own_ == nullptr || own_.get() == get(), "a history's own ring is not the current one");
  if (std::exchange(is_attached_, false)) get()->detach();
  ring_.store(nullptr, std::memory_order_relaxed);
  return std::move(own_);
}

status add_fact(history& to, const char* name, std::uint64_t value) noexcept {
  try {
    to.facts.push_back({name, std::to_string(value)});
    return {};
  } catch (const std::bad_alloc&) {
    return no_history_memory;
  }
}

// ---- taking ----------------------------------------------------------------------------

status history_steps::reserve() {
  check(taken_.events.empty() && next_ == 0, "space is reserved after events were taken");
  try {
    taken_.events.reserve(ring_.options().event_count + step_count);
    return {};
  } catch (const std::bad_alloc&) {
    return no_history_memory;
  }
}

bool history_steps::step() noexcept {
  check(taken_.events.capacity() >= step_count, "a history is taken without room for it");
  const std::uint64_t written = ring_.written_count();
  const std::uint64_t oldest = ring_.oldest_number();
  if (steps_left_ != 0) --steps_left_;
  const bool is_last = written - std::max(next_, oldest) <= step_count || steps_left_ == 0;
  const std::uint64_t count =
      is_last ? written - std::max(next_, oldest) : std::uint64_t{step_count};
  // Overwritten records end the copy made before them.
  if (next_ < oldest || taken_.events.capacity() - taken_.events.size() < count) {
    taken_.events.clear();
    next_ = oldest;
  }
  const std::uint64_t left = written - next_;
  const std::uint64_t taken = is_last ? left : std::min(left, count);
  ring_.copy({next_, taken}, taken_.events);
  next_ += taken;
  event_count_ = ring_.event_count();
  check(!is_last || next_ == written, "the last step leaves events behind");
  check(next_ >= taken_.events.size(), "more events are taken than were written");
  return is_last;
}

result<history> history_steps::complete() {
  if (status named = ring_.complete(taken_); !named) return named.error();
  check(event_count_ >= taken_.events.size(), "more events are taken than were written");
  taken_.lost_count = event_count_ - taken_.events.size();
  return std::move(taken_);
}

// ---- labels --------------------------------------------------------------------------

bool is_history_label(const history_label::names& now) noexcept {
  return now.tag <= tag_count.load(std::memory_order_relaxed) &&
         now.frame <= frame_count.load(std::memory_order_relaxed);
}

history_label::names set_history_label(const history_label::names& now) noexcept {
  check(is_history_label(now), "a tag or a line has an unknown number");
  history_needs_more.store(true, std::memory_order_relaxed);
  return std::exchange(label_now, now);
}

history_label::history_label(const names& now) noexcept : before_(label_now) {
  check(is_history_label(now), "a tag or a line has an unknown number");
  (void)set_history_label(
      {now.tag != 0 ? now.tag : before_.tag, now.frame != 0 ? now.frame : before_.frame});
}

history_label::~history_label() {
  check(history_needs_more.load(std::memory_order_relaxed), "a label ends without a begin");
  (void)set_history_label(before_);
}

std::uint16_t history_tag(std::string_view name) noexcept {
  try {
    name_tables& tables = names();
    const sync::lock_guard<sync::mutex> lock(tables.mutex);
    std::string key(name);
    if (const auto known = tables.tag_numbers.find(key); known != tables.tag_numbers.end())
      return known->second;
    if (tables.tags.size() == tag_count_max) return 0;
    check(tables.tags.size() == tables.tag_numbers.size(), "a tag has no number, or two");
    tables.tags.reserve(tables.tags.size() + 1);
    const auto number = static_cast<std::uint16_t>(tables.tags.size() + 1);
    tables.tag_numbers.emplace(key, number);
    tables.tags.push_back(std::move(key));
    check(tables.tags.size() == number, "a tag has another number than its place");
    tag_count.store(number, std::memory_order_relaxed);
    return number;
  } catch (const std::bad_alloc&) {
    return 0;
  }
}

std::uint32_t history_line(std::string_view file, std::uint32_t line,
                           std::string_view function) noexcept {
  try {
    name_tables& tables = names();
    const sync::lock_guard<sync::mutex> lock(tables.mutex);
    std::string key = std::to_string(line) + ":";
    key.append(file).append("\n").append(function);
    if (const auto known = tables.frame_numbers.find(key); known != tables.frame_numbers.end())
      return known->second;
    if (tables.frames.size() == history_line_max) return 0;
    check(tables.frames.size() == tables.frame_numbers.size(), "a line has no number, or two");
    history_frame frame{std::string(file), std::string(function), line};
    tables.frames.reserve(tables.frames.size() + 1);
    const auto number = static_cast<std::uint32_t>(tables.frames.size() + 1);
    tables.frame_numbers.emplace(std::move(key), number);
    tables.frames.push_back(std::move(frame));
    check(tables.frames.size() == number, "a line has another number than its place");
    frame_count.store(number, std::memory_order_relaxed);
    return number;
  } catch (const std::bad_alloc&) {
    return 0;
  }
}

}  // namespace vmm

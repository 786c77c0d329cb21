// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module vmm.timeline;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {

namespace {

constexpr error no_host_memory =
    refuse(errc::out_of_host_memory, "no host memory is left for a pool's records of streams");

}  // namespace

// ---- numbers and handles -------------------------------------------------------------

std::uint32_t stream_progress::look_up(stream_handle stream) noexcept {
  if (table_.empty()) return no_stream;
  if (stream == default_alias_) stream = stream_handle::default_stream;
  check((table_.size() & (table_.size() - 1)) == 0,
        "the length of the table of streams is not a "
        "power of two");
  const std::size_t mask = table_.size() - 1;
  for (std::size_t at = slot_of(stream, mask); table_[at].stream != no_stream;
       at = (at + 1) & mask) {
    if (table_[at].handle != stream) continue;
    check(is_active_as(table_[at].stream, stream), "the table of streams names another one");
    find_last(stream, table_[at].stream);
    return last_stream_;
  }
  return no_stream;
}

// Sets the stream that was found last, or none.
void stream_progress::find_last(stream_handle handle, std::uint32_t stream) noexcept {
  if (last_stream_ != no_stream) {
    std::uint64_t& kept = records_[last_stream_]->last_epoch;
    check(kept <= last_epoch_ && last_epoch_ <= clock_, "I1: a stream's epoch decreases");
    kept = last_epoch_;
  }
  last_handle_ = handle;
  last_stream_ = stream;
  if (stream != no_stream) last_epoch_ = records_[stream]->last_epoch;
}

void stream_progress::enter(std::vector<stream_slot>& table, const stream_slot& what) noexcept {
  check(!table.empty() && what.stream != no_stream, "an invalid stream or table is entered");
  const std::size_t mask = table.size() - 1;
  std::size_t at = slot_of(what.handle, mask);
  while (table[at].stream != no_stream) at = (at + 1) & mask;
  table[at] = what;
}

// Room for one more active stream, with the table at most half full.
status stream_progress::provide_slot() noexcept {
  const std::size_t wanted = (records_.size() + 1) * 2;  // more than one doubling, at times
  if (wanted <= table_.size()) return {};
  try {
    std::vector<stream_slot> larger(std::max<std::size_t>(16, std::bit_ceil(wanted)));
    for (const stream_slot& old : table_) {
      if (old.stream != no_stream) enter(larger, old);
    }
    check(std::has_single_bit(larger.size()),
          "the length of the table of streams is not a power "
          "of two");
    check(larger.size() >= wanted, "the table of streams is more than half full");
    table_ = std::move(larger);
    return {};
  } catch (const std::bad_alloc&) {
    return no_host_memory;
  }
}

// The unused record is then the last of `unused_`.
status stream_progress::provide_record(stream_phase phase) noexcept {
  if (phase == stream_phase::active && active_count_ >= max_streams) {
    return refuse(
        errc::in_use,
        "as many streams are in use as a pool serves at a time (stream_pool::max_streams, 4000): "
        "forget() destroyed streams");
  }
  if (!unused_.empty()) return {};
  if (records_.size() >= max_records) {
    return refuse(errc::in_use,
                  "a pool's streams and captured graphs have no record left: forget() destroyed "
                  "streams and captures().release() destroyed graphs");
  }
  if (status room = reserve_more(records_, 1); !room) return no_host_memory;
  for (std::vector<std::uint32_t>* list : {&retired_, &unused_}) {
    if (status room = reserve_more(*list, records_.size() + 1 - list->size()); !room)
      return no_host_memory;
  }
  try {
    auto made = std::make_unique<stream_record>();
    made->phase = stream_phase::unused;
    records_.push_back(std::move(made));
  } catch (const std::bad_alloc&) {
    return no_host_memory;
  }
  check(unused_.capacity() > unused_.size() && retired_.capacity() >= records_.size(),
        "the list of free records is full");
  check(records_.size() <= max_records, "the number of records exceeds its limit");
  unused_.push_back(count() - 1);
  return {};
}

result<std::uint32_t> stream_progress::add(stream_handle stream, stream_phase phase) noexcept {
  const bool is_active = phase == stream_phase::active;
  check(!is_active || look_up(stream) == no_stream, "a stream is added twice");
  if (is_active && is_set_aside(stream)) return no_stream_handle;
  if (is_active) {
    if (status room = provide_slot(); !room) return room.error();
  }
  if (status provided = provide_record(phase); !provided) return provided.error();
  check(!unused_.empty() && unused_.back() < count(), "no record was provided");
  const std::uint32_t number = unused_.back();
  unused_.pop_back();
  stream_record& record = *records_[number];
  check(record.phase == stream_phase::unused && record.event_count == 0,
        "a stream's record is taken while it is in use");
  record.handle = stream;
  record.identity = 0;
  record.phase = phase;
  record.last_epoch = record.passed_epoch = clock_;
  if (is_active) {
    enter(table_, {stream, number});
    ++active_count_;
    check(active_count_ <= max_streams, "too many streams are in use");
    debug_check([&] { return look_up(stream) == number; }, "an added stream is missing");
  }
  return number;
}

stream_handle stream_progress::active_handle(std::uint32_t stream) const noexcept {
  check(stream < count(), "no stream has this number");
  const stream_record& record = *records_[stream];
  check(record.phase == stream_phase::active,
        "I3: a forgotten stream, or a record without a stream, is passed to the driver");
  return record.handle;
}

// Takes a stream out of the table and moves later entries of the walk down.
void stream_progress::leave_table(stream_handle stream) noexcept {
  check(!table_.empty() && active_count_ > 0, "a stream leaves a table that has none");
  const std::size_t mask = table_.size() - 1;
  std::size_t gap = slot_of(stream, mask);
  while (table_[gap].handle != stream || table_[gap].stream == no_stream) gap = (gap + 1) & mask;
  for (std::size_t at = (gap + 1) & mask; table_[at].stream != no_stream; at = (at + 1) & mask) {
    const std::size_t walked = (at - slot_of(table_[at].handle, mask)) & mask;
    if (walked < ((at - gap) & mask)) continue;
    table_[gap] = table_[at];
    gap = at;
  }
  table_[gap] = stream_slot{};
  find_last(last_handle_, no_stream);
  debug_check([&] { return look_up(stream) == no_stream; },
              "a removed stream is still in the table");
}

void stream_progress::leave(std::uint32_t stream) noexcept {
  stream_record& record = *records_[stream];
  check(record.phase == stream_phase::active, "a stream is forgotten twice");
  check(all_recorded(stream), "I2: a stream is forgotten without an event for its last work");
  leave_table(record.handle);
  record.phase = stream_phase::retired;
  check(active_count_ > 0 && retired_.size() < retired_.capacity(),
        "no stream can be forgotten now");
  --active_count_;
  if (is_set_aside(record.handle)) --set_aside_count_;
  retired_.push_back(stream);
}

void stream_progress::set_identity(std::uint32_t stream, std::uint64_t identity) noexcept {
  check(phase_of(stream) == stream_phase::active, "a record of no active stream has an identity");
  records_[stream]->identity = identity;
}

void stream_progress::set_aside(std::uint32_t stream, timeline& time) noexcept {
  check(phase_of(stream) == stream_phase::active, "a stream is set aside that is not active");
  stream_record& record = *records_[stream];
  check(!is_set_aside(record.handle), "a stream is set aside twice");
  leave_table(record.handle);
  record.handle = stream_handle{set_aside_bit | stream};
  enter(table_, {record.handle, stream});
  for (std::size_t i = 0; i < record.event_count; ++i) time.orphan(record.events[i].event);
  ++set_aside_count_;
}

std::uint32_t stream_progress::next_set_aside() const noexcept {
  if (set_aside_count_ == 0) return no_stream;
  for (std::uint32_t stream = 0; stream < count(); ++stream) {
    const bool is_aside =
        phase_of(stream) == stream_phase::active && is_set_aside(records_[stream]->handle);
    if (is_aside && all_recorded(stream)) return stream;
  }
  return no_stream;
}

void stream_progress::retire(std::uint32_t stream, timeline& time) noexcept {
  leave(stream);
  stream_record& record = *records_[stream];
  for (std::size_t i = 0; i < record.event_count; ++i) time.orphan(record.events[i].event);
  check(record.phase == stream_phase::retired, "a stream that was forgotten is still in use");
  audit();
}

void stream_progress::retire_recorded(std::uint32_t stream, ticket_ref event) noexcept {
  check(stream < count() && retired_.size() < retired_.capacity(), "no record can be retired now");
  stream_record& record = *records_[stream];
  check(record.phase == stream_phase::unrecorded && record.event_count == 0,
        "a record of all streams is recorded twice, or is a stream's");
  record.events[record.event_count++] = {{stream, last_epoch(stream)}, std::move(event)};
  record.phase = stream_phase::retired;
  retired_.push_back(stream);
  check(all_recorded(stream), "I2: an event of all work does not cover what was freed before it");
}

std::uint32_t stream_progress::next_retired() noexcept {
  if (retired_.empty()) return no_stream;
  std::rotate(retired_.begin(), retired_.begin() + 1, retired_.end());
  check(phase_of(retired_.back()) == stream_phase::retired,
        "a stream in use is listed as forgotten");
  return retired_.back();
}

void stream_progress::recycle(std::uint32_t stream) noexcept {
  check(stream < count() && unused_.size() < unused_.capacity(), "no record can be given back");
  stream_record& record = *records_[stream];
  check(record.phase == stream_phase::retired || record.phase == stream_phase::capture,
        "the record of a stream in use is given back");
  check(stream != last_stream_, "I5: the stream found last has no record any more");
  if (record.phase == stream_phase::retired) std::erase(retired_, stream);
  for (std::size_t i = 0; i < record.event_count; ++i) record.events[i] = recorded_event{};
  record.event_count = 0;
  record.phase = stream_phase::unused;
  unused_.push_back(stream);
  audit();
}

// ---- points --------------------------------------------------------------------------

stream_point stream_progress::last_point(std::uint32_t stream) const noexcept {
  check(stream < count(), "no stream has this number");
  const stream_record& record = *records_[stream];
  const bool waited_for =
      record.phase == stream_phase::active || record.phase == stream_phase::retired;
  check(last_epoch(stream) <= clock_, "I1: a stream's last epoch is in the future");
  return {stream, waited_for ? last_epoch(stream) : 0};
}

point_answer stream_progress::ask(const stream_point& point) const noexcept {
  point_answer answer;
  if (passed(point)) return answer;
  const stream_record& record = *records_[point.stream];
  for (std::size_t i = 0; i < record.event_count; ++i) {
    if (record.events[i].at.epoch < point.epoch) continue;
    check(record.events[i].at.stream == point.stream, "a stream has another stream's event");
    answer.is = point_answer::kind::recorded;
    answer.event = record.events[i].event;
    return answer;
  }
  check(point.epoch <= clock_, "a query for a point in the future");
  answer.is = point_answer::kind::unrecorded;
  answer.order.at_ = {point.stream, clock_};
  answer.order.handle_ = active_handle(point.stream);
  return answer;
}

// Keeps at most events_max: beyond that the second newest is dropped, and the newest stands for it.
void stream_progress::add_event(record_order&& done, ticket_ref event) noexcept {
  check(done.at_.stream < count(), "an event is noted for no stream");
  stream_record& record = *records_[done.at_.stream];
  check(record.phase == stream_phase::active && record.handle == done.handle_,
        "an event is noted for a stream that was forgotten while it was made");
  check(done.at_.epoch <= clock_, "an event covers future work");
  check(record.event_count == 0 || record.events[record.event_count - 1].at.epoch <= done.at_.epoch,
        "an event is older than the one before it");
  append_event(record, {done.at_, std::move(event)});
}

void stream_progress::append_event(stream_record& record, recorded_event&& event) noexcept {
  if (record.event_count == events_max) --record.event_count;
  record.events[record.event_count++] = std::move(event);
  check(record.event_count <= events_max, "a stream has too many events");
  debug_check([&] { return is_consistent(record); }, "a stream's events are not in order");
}

// Frees after the order was created are not covered.
void stream_progress::add_event_of_all(record_order&& done, const ticket_ref& event) noexcept {
  const std::uint64_t epoch = done.at_.epoch;
  check(epoch <= clock_, "an event covers future work");
  for (std::uint32_t stream = next_unrecorded(0); stream != no_stream;
       stream = next_unrecorded(stream + 1)) {
    stream_record& record = *records_[stream];
    const std::uint64_t newest = record.event_count == 0
                                     ? record.passed_epoch
                                     : record.events[record.event_count - 1].at.epoch;
    if (newest < epoch) append_event(record, {{stream, epoch}, event});
  }
}

void stream_progress::note_passed(const stream_point& point) noexcept {
  check(point.stream < count() && point.epoch <= clock_, "a point without a stream has passed");
  stream_record& record = *records_[point.stream];
  record.passed_epoch = std::max(record.passed_epoch, point.epoch);
  std::size_t kept = 0;
  for (std::size_t i = 0; i < record.event_count; ++i) {
    if (record.events[i].at.epoch > record.passed_epoch)
      record.events[kept++] = std::move(record.events[i]);
  }
  for (std::size_t i = kept; i < record.event_count; ++i) record.events[i] = recorded_event{};
  record.event_count = kept;
  debug_check([&] { return is_consistent(record); }, "an event is kept that has passed");
}

std::size_t stream_progress::events_of(std::uint32_t stream,
                                       std::array<recorded_event, events_max>& out) const noexcept {
  check(stream < count(), "no stream has this number");
  const stream_record& record = *records_[stream];
  check(record.event_count <= out.size(), "a stream has too many events");
  for (std::size_t i = 0; i < record.event_count; ++i) out[i] = record.events[i];
  return record.event_count;
}

bool stream_progress::all_recorded(std::uint32_t stream) const noexcept {
  check(stream < count(), "no stream has this number");
  const stream_record& record = *records_[stream];
  const std::uint64_t last = last_epoch(stream);
  if (last <= record.passed_epoch) return true;
  return record.event_count != 0 && record.events[record.event_count - 1].at.epoch >= last;
}

std::uint32_t stream_progress::next_unrecorded(std::uint32_t from) const noexcept {
  check(from <= count(), "more streams are queried than exist");
  for (std::uint32_t stream = from; stream < count(); ++stream) {
    if (phase_of(stream) == stream_phase::active && !all_recorded(stream)) return stream;
  }
  return no_stream;
}

void stream_progress::pass_for_ever(std::uint32_t stream) noexcept {
  check(phase_of(stream) == stream_phase::shared, "a stream's own memory is shared");
  check(records_[stream]->event_count == 0, "I4: a record with events counts as always finished");
  check(stream != last_stream_, "a stream's own record counts as always finished");
  records_[stream]->last_epoch = 0;
  records_[stream]->passed_epoch = std::numeric_limits<std::uint64_t>::max();
}

void stream_progress::release_all() noexcept {
  for (std::uint32_t stream = 0; stream < count(); ++stream) {
    note_passed({stream, clock_});
    check(records_[stream]->event_count == 0, "an event is left when all work has finished");
    records_[stream]->phase = stream_phase::active;
  }
}

// ---- looking -------------------------------------------------------------------------

// One full validation for every N forgotten streams, where N is the number of records: amortised
// O(1).
void stream_progress::audit() noexcept {
  if constexpr (check_level >= 3) {
    if (++unaudited_count_ <= records_.size()) return;
    unaudited_count_ = 0;
    paranoid_check([this] { return validate().has_value(); }, "removing a stream broke the table");
  }
}

// I1 and I2 of one record: its events are its own to come, oldest first.
bool stream_progress::is_consistent(const stream_record& record) noexcept {
  if (record.event_count > events_max) return false;
  std::uint64_t newest = record.passed_epoch;
  for (std::size_t i = 0; i < record.event_count; ++i) {
    if (record.events[i].at.epoch < newest) return false;
    newest = record.events[i].at.epoch;
  }
  return true;
}

status stream_progress::validate() const noexcept {
  std::uint32_t active_count = 0;
  std::size_t retired_count = 0;
  std::size_t unused_count = 0;
  std::uint32_t set_aside_count = 0;
  for (std::uint32_t stream = 0; stream < count(); ++stream) {
    const stream_record& record = *records_[stream];
    if (!is_consistent(record)) return refuse(errc::internal, "a stream's events are not in order");
    if (last_epoch(stream) > clock_)
      return refuse(errc::internal, "a stream's epoch is in the future");
    if (record.last_epoch > last_epoch(stream))
      return refuse(errc::internal, "a stream's epoch is older than what is kept of it");
    if (record.phase == stream_phase::active) ++active_count;
    if (record.phase == stream_phase::active && is_set_aside(record.handle)) ++set_aside_count;
    if (record.phase == stream_phase::retired) ++retired_count;
    if (record.phase == stream_phase::unused) ++unused_count;
    if (record.phase == stream_phase::retired && !all_recorded(stream))
      return refuse(errc::internal, "a stream was forgotten without an event for its last work");
  }
  if (active_count != active_count_ || set_aside_count != set_aside_count_ ||
      retired_count != retired_.size() || unused_count != unused_.size())
    return refuse(errc::internal, "a list of streams lacks one");
  const auto entered = std::count_if(table_.begin(), table_.end(), [](const stream_slot& slot) {
    return slot.stream != no_stream;
  });
  if (static_cast<std::uint32_t>(entered) != active_count_)
    return refuse(errc::internal, "the table of streams lacks one");
  return {};
}

}  // namespace vmm

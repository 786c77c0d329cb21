// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module vmm.stream;

import vmm.backend;
import vmm.base;
import vmm.physical;
import vmm.std;
import vmm.timeline;

namespace vmm {

stream_table::record& stream_table::record_of(std::uint32_t stream) noexcept {
  check(stream < records_.size(), "no record of a stream has this number");
  return records_[stream];
}

stream_point stream_table::free_point(std::uint32_t stream) noexcept {
  check(phase_of(stream) != stream_phase::unused, "memory is freed for a record that is not used");
  if (phase_of(stream) != stream_phase::retired) (void)progress_.advance(stream);
  return {stream, progress_.last_epoch(stream)};
}

stream_point stream_table::leaving_point(std::uint32_t stream) noexcept {
  check(phase_of(stream) == stream_phase::active, "a stream is forgotten twice");
  const bool is_needed = is_known_only_ && has_unrecorded();
  if (has_locked(stream) || is_needed) (void)progress_.advance(stream);
  return progress_.last_point(stream);
}

std::uint32_t stream_table::other(std::uint32_t stream, std::uint32_t step) const noexcept {
  check(step <= count(), "more streams are queried than exist");
  if (step == 0) return shared_ == no_stream ? stream : shared_;
  const std::uint32_t other = (stream + step) % count();
  const stream_phase phase = phase_of(other);
  check(other < count(), "no record of a stream has this number");
  return phase == stream_phase::active || phase == stream_phase::retired ? other : stream;
}

status stream_table::provide() noexcept {
  const std::uint32_t number = next_number();
  check(number <= records_.size(), "the records of streams have a gap");
  if (number < records_.size()) return {};
  if (status room = reserve_more(records_, 1); !room) return no_record_memory;
  records_.push_back({});
  check(number < records_.size(), "the reserved record is missing");
  return {};
}

result<std::uint32_t> stream_table::add(stream_handle stream, stream_phase phase) noexcept {
  check(phase != stream_phase::unused, "a record is added without a stream");
  const result<std::uint32_t> added = progress_.add(stream, phase);
  if (!added) return added;
  record& fresh = record_of(*added);
  check(fresh.locked_count == 0, "I3: a record is used again while blocks name it");
  fresh.owner = *added;
  check(phase_of(*added) == phase, "I1: a record has another phase than it was added with");
  return added;
}

void stream_table::recycle(std::uint32_t stream) noexcept {
  check(!has_locked(stream), "I3: a record is given back while blocks name it");
  check(stream != shared_, "the record of shared memory is given back");
  const bool was_retired = phase_of(stream) == stream_phase::retired;
  if (std::exchange(record_of(stream).is_batch, false)) {
    check(was_retired && recorded_count_ != 0, "an unrecorded batch is removed");
    --recorded_count_;
  }
  progress_.recycle(stream);
  paranoid_check([&] { return !was_retired || broken_invariant() == nullptr; },
                 "the records of streams are broken");
}

void stream_table::release_all() noexcept {
  progress_.release_all();
  shared_ = open_batch_ = closed_batch_ = no_stream;
  recorded_count_ = 0;
  for (std::uint32_t stream = 0; stream < records_.size(); ++stream) records_[stream] = {0, stream};
  paranoid_check([&] { return broken_invariant() == nullptr; },
                 "the records of streams are broken");
}

void stream_table::set_shared(std::uint32_t stream) noexcept {
  check(shared_ == no_stream, "I2: free memory is shared under two records");
  check(phase_of(stream) == stream_phase::shared, "free memory is shared under a stream's record");
  shared_ = stream;
  progress_.pass_for_ever(shared_);
  check(progress_.passed({shared_, progress_.clock()}), "shared memory has unfinished work");
  paranoid_check([&] { return broken_invariant() == nullptr; },
                 "the records of streams are broken");
}

void stream_table::add_locked(std::uint32_t stream) noexcept {
  check(phase_of(stream) != stream_phase::unused, "a block names a record that is not used");
  ++record_of(stream).locked_count;
}

void stream_table::remove_locked(std::uint32_t stream) noexcept {
  record& named = record_of(stream);
  check(named.locked_count != 0, "more blocks leave a record than name it");
  --named.locked_count;
}

void stream_table::set_owner(std::uint32_t stream, std::uint32_t owner) noexcept {
  check(is_capture(stream) && is_capture(owner), "a stream's record is owned by another one");
  check(owner_of(owner) == owner, "I5: the owner of a graph's record is not the graph's own");
  check(owner_of(stream) == stream, "a record has two owners");
  record_of(stream).owner = owner;
  paranoid_check([&] { return broken_invariant() == nullptr; },
                 "the records of streams are broken");
}

// I4 of one record.
const char* stream_table::broken_batch(std::uint32_t stream) const noexcept {
  const stream_phase phase = phase_of(stream);
  const bool is_unrecorded = stream == open_batch_ || stream == closed_batch_;
  if (is_unrecorded != (phase == stream_phase::unrecorded))
    return "an unrecorded record is not a batch, or the reverse";
  if (is_unrecorded && !is_batch(stream)) return "a batch's record is not marked as one";
  if (is_batch(stream) && !is_unrecorded && phase != stream_phase::retired)
    return "a batch's record has another use";
  return nullptr;
}

const char* stream_table::broken_invariant() const noexcept {
  if (records_.size() < count()) return "a stream has no record of its blocks";
  std::uint32_t recorded_count = 0;
  for (std::uint32_t stream = 0; stream < count(); ++stream) {
    const stream_phase phase = phase_of(stream);
    const std::uint32_t owner = owner_of(stream);
    if (phase == stream_phase::unused && has_locked(stream))
      return "blocks name a record that is not used";
    if ((phase == stream_phase::shared) != (stream == shared_))
      return "the record of shared memory is not the one that is looked at";
    if (const char* broken = broken_batch(stream); broken != nullptr) return broken;
    recorded_count += is_batch(stream) && phase == stream_phase::retired ? 1U : 0U;
    if (phase == stream_phase::unused || owner == stream) continue;
    if (phase != stream_phase::capture || owner >= count() || !is_capture(owner))
      return "a record is owned by one of another graph, or of none";
  }
  return recorded_count == recorded_count_ ? nullptr : "the count of recorded batches is wrong";
}

// ---- batches -------------------------------------------------------------------------

bool stream_table::has_unrecorded() const noexcept {
  if (closed_batch_ != no_stream) return true;
  if (open_batch_ == no_stream) return false;
  return !passed({open_batch_, progress_.last_epoch(open_batch_)});
}

void stream_table::open_batch_in(std::uint32_t record, bool known_only) noexcept {
  check(open_batch_ == no_stream, "a batch is opened beside another");
  check(phase_of(record) == stream_phase::unrecorded, "a batch is opened in a record in use");
  check(!has_locked(record), "blocks wait for their pins in a batch that is new");
  open_batch_ = record;
  is_known_only_ = known_only;
  record_of(record).is_batch = true;
}

// All work until now: an event of a stream that is older does not stand for it.
void stream_table::close_batch(std::uint32_t next) noexcept {
  check(open_batch_ != no_stream && closed_batch_ == no_stream, "a batch is closed twice");
  check(phase_of(next) == stream_phase::unrecorded, "a batch is opened in a record in use");
  (void)progress_.advance(open_batch_);
  closed_batch_ = std::exchange(open_batch_, next);
  record_of(next).is_batch = true;
  check(!has_locked(closed_batch_), "a block waits for its pins in a closed batch");
}

void stream_table::retire_batch(ticket_ref event) noexcept {
  check(closed_batch_ != no_stream, "an event is noted that no batch waits for");
  progress_.retire_recorded(std::exchange(closed_batch_, no_stream), std::move(event));
  ++recorded_count_;
  paranoid_check([&] { return broken_invariant() == nullptr; },
                 "the records of streams are broken");
}

}  // namespace vmm

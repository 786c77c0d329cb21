// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Blocks that stay although they may be freed, and streams that go although memory is theirs.
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <new>
#include <utility>
#include <vector>

module vmm.stream;

import vmm.backend;
import vmm.intrusive;
import vmm.physical;
import vmm.timeline;
import vmm.va;

namespace vmm {

namespace {

constexpr error no_host_memory =
    refuse(errc::out_of_host_memory, "no host memory is left for the pool's records");
constexpr error no_block =
    refuse(errc::not_allocated, "no block begins here: it was freed before, or never handed out");
constexpr error inside_block = refuse(
    errc::invalid_argument, "the address lies inside a block: pass the one that allocate returned");

}  // namespace

// ---- held blocks ---------------------------------------------------------------------

pool_book::hold_note pool_book::hold_of(const segment& in, region_id block) noexcept {
  const std::uint64_t word = in.regions.word(block);
  return {static_cast<std::uint32_t>(word), static_cast<std::uint32_t>(word >> 32),
          (in.regions.tag(block) & freed_bit) != 0, (in.regions.tag(block) & captured_bit) != 0};
}

void pool_book::write_hold(segment& in, region_id block, const hold_note& note) noexcept {
  const std::uint64_t word = note.pins | std::uint64_t{note.stream} << 32;
  const auto live = static_cast<std::uint32_t>(region_state::live);
  const std::uint32_t bits = (note.freed ? freed_bit : 0) | (note.captured ? captured_bit : 0);
  in.regions.set_note(block, {word, live | bits});
}

error pool_book::no_block_at(const segment& in, std::uint64_t offset_bytes) noexcept {
  const auto offset = static_cast<std::uint32_t>(offset_bytes / granule_bytes);
  if (offset >= in.regions.count_granules()) return no_block;
  const region_id around = in.regions.find(offset);
  const bool is_live = in.regions.kind(around) == region_kind::unlisted &&
                       state_of(in.regions.tag(around)) == region_state::live;
  const bool begins_there =
      in.regions.where(around).offset == offset && offset_bytes % granule_bytes == 0;
  if (!is_live || begins_there) return no_block;
  return (in.regions.tag(around) & freed_bit) != 0 ? no_block : inside_block;
}

result<pool_book::found_block> pool_book::find_block(address at) noexcept {
  segment* const in = segment_around(at);
  if (in == nullptr)
    return refuse(errc::unknown_address, "no block of this pool begins or began here");
  const std::uint64_t offset_bytes = at - in->where.range.base;
  if (offset_bytes % granule_bytes != 0) return no_block_at(*in, offset_bytes);
  found_block found{in, static_cast<std::uint32_t>(offset_bytes / granule_bytes)};
  found.region = in->starts.find(found.offset);
  if (found.region != region_id::none) return found;
  found.region = in->held.find(found.offset);
  found.is_held = true;
  if (found.region == region_id::none) return no_block_at(*in, offset_bytes);
  return found;
}

status pool_book::knows(address at) noexcept {
  const result<found_block> found = find_block(at);
  if (!found) return found.error();
  return found->is_held && hold_of(*found->in, found->region).freed ? status{no_block} : status{};
}

status pool_book::pin(address at) noexcept {
  const result<found_block> found = find_block(at);
  if (!found) return found.error();
  segment& in = *found->in;
  hold_note note;
  if (found->is_held) {
    note = hold_of(in, found->region);
    if (note.freed) return refuse(errc::not_allocated, "the block was freed: it is pinned no more");
    if (note.pins == std::numeric_limits<std::uint32_t>::max())
      return refuse(errc::invalid_argument, "the block is pinned too often");
  } else {
    if (!in.held.reserve()) return no_host_memory;
    (void)in.starts.take(found->offset);
    in.held.insert(found->offset, found->region);
  }
  if (note.pins++ == 0) ++numbers_.pinned_count;
  write_hold(in, found->region, note);
  return {};
}

status pool_book::unpin(address at) noexcept {
  const result<found_block> found = find_block(at);
  if (!found) return found.error();
  segment& in = *found->in;
  hold_note note = found->is_held ? hold_of(in, found->region) : hold_note{};
  if (note.pins == 0) return refuse(errc::invalid_argument, "the block is not pinned");
  --note.pins;
  write_hold(in, found->region, note);
  if (note.pins != 0) return {};
  --numbers_.pinned_count;
  if (note.freed) {
    (void)in.held.take(found->offset);
    --memory_of_[note.stream]->held_count;
    settle_free(in, found->region, note.stream);
    return {};
  }
  if (note.captured || !in.starts.reserve())
    return {};  // held without a pin: free() finds it there as well
  (void)in.held.take(found->offset);
  in.regions.set_note(found->region, {0, static_cast<std::uint32_t>(region_state::live)});
  in.starts.insert(found->offset, found->region);
  return {};
}

// What the table of starts does not have.
status pool_book::free_held(segment& in, std::uint64_t offset_bytes,
                            std::uint32_t stream) noexcept {
  if (offset_bytes % granule_bytes != 0) return no_block_at(in, offset_bytes);
  const auto offset = static_cast<std::uint32_t>(offset_bytes / granule_bytes);
  const region_id block = in.held.find(offset);
  if (block == region_id::none) return no_block_at(in, offset_bytes);
  hold_note note = hold_of(in, block);
  if (note.freed)
    return refuse(errc::not_allocated, "the block was freed before: it waits for its pins to go");
  const std::uint32_t heir = note.captured ? memory_of_[note.stream]->keeper : stream;
  end_hold(note);
  if (note.pins == 0) {
    (void)in.held.take(offset);
    settle_free(in, block, heir);
    return {};
  }
  note.freed = true;
  note.stream = heir;
  ++memory_of_[heir]->held_count;
  write_hold(in, block, note);
  return {};
}

// The block is not the graph's any more; who gets it is settled.
void pool_book::end_hold(hold_note& note) noexcept {
  if (!note.captured) return;
  --memory_of_[note.stream]->held_count;
  note.captured = false;
  note.stream = no_stream;
}

void pool_book::settle_free(segment& in, region_id block, std::uint32_t stream) noexcept {
  if (phase_of(stream) != stream_phase::retired) (void)progress_.advance(stream);
  if (phase_of(stream) != stream_phase::capture) release(in, block, stream);
  make_free(in, block, {stream, progress_.last_epoch(stream)});
}

// ---- streams that go -----------------------------------------------------------------

stream_point pool_book::leaving_point(std::uint32_t stream) noexcept {
  if (memory_of_[stream]->held_count != 0) (void)progress_.advance(stream);
  return progress_.last_point(stream);
}

std::uint32_t pool_book::other_stream(std::uint32_t stream, std::uint32_t step) const noexcept {
  if (step == 0) return commons_ == no_stream ? stream : commons_;
  const std::uint32_t other = (stream + step) % stream_count();
  const stream_phase phase = phase_of(other);
  return phase == stream_phase::active || phase == stream_phase::retired ? other : stream;
}

status pool_book::provide_commons() noexcept {
  if (commons_ != no_stream) return {};
  const result<std::uint32_t> made =
      add_record(stream_handle::default_stream, stream_phase::commons);
  if (!made) return made.error();
  commons_ = *made;
  progress_.pass_for_ever(commons_);
  return {};
}

// Lists free regions of one record under another, as many as a short hold of the lock allows; true
// when none is left.
bool pool_book::move_free(std::uint32_t from, const stream_point& to) noexcept {
  std::uint32_t left = regions_moved_max;
  for (const auto& in : segments_) {
    while (in->regions.listed_count(kind_of(from)) != 0) {
      if (left-- == 0) return false;
      const region_id region = in->regions.best_fit(kind_of(from), 1);
      in->regions.unlist(region);
      if (phase_of(from) == stream_phase::capture)
        release_range(*in, in->regions.where(region), to.stream);
      make_free(*in, region, to);
    }
  }
  slab_bins& whole = memory_of_[from]->whole;
  for (slab* s = whole.largest(); s != nullptr; s = whole.largest()) {
    leave_whole(*s);
    enter_whole(*s, to.stream);
  }
  return true;
}

void pool_book::recycle(std::uint32_t stream) noexcept {
  const stream_memory& under = *memory_of_[stream];
  check(under.held_count == 0 && under.whole.empty(), "a record in use is given back");
  progress_.recycle(stream);
}

void pool_book::clear_retired(std::uint32_t stream) noexcept {
  check(phase_of(stream) == stream_phase::retired, "a stream is cleared that is not forgotten");
  if (!move_free(stream, {commons_, 0}) || memory_of_[stream]->held_count != 0) return;
  recycle(stream);
}

// ---- captured graphs -----------------------------------------------------------------

const pool_book::capture_entry* pool_book::find_capture(std::uint64_t id) const noexcept {
  for (const capture_entry& each : captures_) {
    if (each.id == id) return &each;
  }
  return nullptr;
}

result<std::size_t> pool_book::provide_capture(std::uint64_t id, stream_handle stream) noexcept {
  for (std::size_t known = 0; known < captures_.size(); ++known) {
    if (captures_[known].id == id) return known;
  }
  if (status room = reserve_more(captures_, 1); !room) return no_host_memory;
  capture_entry made{id};
  if (status room = reserve_more(made.records, 4); !room) return no_host_memory;
  const result<std::uint32_t> keeper = add_record(stream, stream_phase::capture);
  if (!keeper) return keeper.error();
  made.keeper = *keeper;
  made.records.push_back(*keeper);
  captures_.push_back(std::move(made));
  return captures_.size() - 1;
}

result<std::uint32_t> pool_book::enter_capture(std::uint64_t id, stream_handle stream) noexcept {
  const result<std::size_t> known = provide_capture(id, stream);
  if (!known) return known.error();
  capture_entry& entry = captures_[*known];
  for (const std::uint32_t record : entry.records) {
    if (record != entry.keeper && progress_.is_capture_of(record, stream)) return record;
  }
  if (status room = reserve_more(entry.records, 1); !room) return no_host_memory;
  const result<std::uint32_t> record = add_record(stream, stream_phase::capture);
  if (!record) return record;
  memory_of_[*record]->keeper = entry.keeper;
  entry.records.push_back(*record);
  return record;
}

status pool_book::give_to_capture(address at, std::uint32_t record) noexcept {
  const result<found_block> found = find_block(at);
  check(found && !found->is_held, "a graph is given what was not just allocated");
  segment& in = *found->in;
  (void)in.starts.take(found->offset);
  if (!in.held.reserve()) {
    settle_free(in, found->region, record);
    return no_host_memory;
  }
  in.held.insert(found->offset, found->region);
  ++memory_of_[record]->held_count;
  write_hold(in, found->region, {0, record, false, true});
  return {};
}

// Free memory that is a graph's stays counted as live in its slabs: they are not whole, so that
// nothing moves or unmaps them.
void pool_book::keep_free(segment& in, region_id region, const stream_point& since) noexcept {
  if (phase_of(since.stream) == stream_phase::capture) (void)hold(in, in.regions.where(region));
  make_free(in, region, since);
}

void pool_book::release_range(segment& in, granule_range what, std::uint32_t stream) noexcept {
  for (std::uint32_t at = what.offset; at < what.end();) {
    view& v = *in.pages[at >> unit_shift_];
    const std::uint32_t end = std::min(v.offset + v.count_granules, what.end());
    v.live_granules -= end - at;
    if (v.live_granules == 0) enter_whole(*v.of, stream);
    at = end;
  }
  live_granules_ -= what.count;
}

result<address> pool_book::allocate_kept(const book_request& request) noexcept {
  for (const auto& in : segments_) {
    const region_id found = pick(*in, request);
    if (found == region_id::none) continue;
    const granule_range taken{in->regions.where(found).offset, request.count_granules};
    release_range(*in, taken, request.stream);
    const result<address> at = allocate(request);
    if (!at) (void)hold(*in, taken);
    return at;
  }
  return address{};
}

result<std::uint32_t> pool_book::heir_of(const found_block& block,
                                         std::uint32_t record) const noexcept {
  const std::uint32_t keeper = memory_of_[record]->keeper;
  if (!block.is_held) return keeper;
  const hold_note note = hold_of(*block.in, block.region);
  if (note.freed)
    return refuse(errc::not_allocated, "the block was freed before: it waits for its pins to go");
  if (!note.captured) return keeper;
  if (memory_of_[note.stream]->keeper == keeper) return record;
  return refuse(errc::not_permitted,
                "the block is another graph's: free it when no stream is being captured");
}

status pool_book::free_in_capture(address at, std::uint32_t record) noexcept {
  const result<found_block> found = find_block(at);
  if (!found) return found.error();
  const result<std::uint32_t> heir = heir_of(*found, record);
  if (!heir) return heir.error();
  segment& in = *found->in;
  hold_note note;
  if (found->is_held) {
    note = hold_of(in, found->region);
    end_hold(note);
  }
  if (note.pins != 0) {
    note.freed = true;
    note.stream = *heir;
    ++memory_of_[*heir]->held_count;
    write_hold(in, found->region, note);
    return {};
  }
  (void)(found->is_held ? in.held : in.starts).take(found->offset);
  settle_free(in, found->region, *heir);
  return {};
}

// Blocks that name a record of the graph no longer do: what is live is anybody's, what was freed
// and is pinned goes to the heir.
void pool_book::forget_captured(const capture_entry& gone, std::uint32_t heir) noexcept {
  for (const auto& in : segments_) {
    in->held.each([&](region_id block) {
      hold_note note = hold_of(*in, block);
      if (note.stream == no_stream || memory_of_[note.stream]->keeper != gone.keeper) return;
      --memory_of_[note.stream]->held_count;
      note.captured = false;
      note.stream = note.freed ? heir : no_stream;
      if (note.freed) ++memory_of_[heir]->held_count;
      write_hold(*in, block, note);
    });
  }
}

bool pool_book::release_capture(std::uint64_t id, const stream_point& to) noexcept {
  const capture_entry* const gone = find_capture(id);
  if (gone == nullptr) return true;
  for (const std::uint32_t record : gone->records) {
    if (!move_free(record, to)) return false;
  }
  forget_captured(*gone, to.stream);
  for (const std::uint32_t record : gone->records) recycle(record);
  captures_.erase(captures_.begin() + (gone - captures_.data()));
  return true;
}

}  // namespace vmm

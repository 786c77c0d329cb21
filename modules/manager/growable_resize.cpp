// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Segments that grow and shrink: every step can be undone until the last one.
module;
#include "../base/thread_annotations.h"

module vmm.manager;

import vmm.backend;
import vmm.base;
import vmm.optimizer;
import vmm.physical;
import vmm.std;
import vmm.timeline;
import vmm.tracker;

namespace vmm {

namespace {

constexpr int unmap_attempts = 3;

}  // namespace

status growable_range::resize(const growable_request& request) {
  if (!made_in_.is_here()) return refuse_forked();
  if (status named = check_stream(memory_->driver().feature_set(), request.stream); !named)
    return named;
  const relaxed_capture quiet(memory_->driver());
  std::uint64_t new_bytes = request.size_bytes;
  return memory_->shortage_.with_others(
      new_bytes, [&](relief_pass& pass) { return resize_once(request, new_bytes, pass); });
}

status growable_range::resize_once(const growable_request& request, std::uint64_t& new_bytes,
                                   relief_pass& pass) {
  const relief_pause no_wait;  // for other processes, with the range's lock
  const sync::lock_guard<sync::mutex> lock(mutex_);
  if (status ready = open(); !ready) return ready;
  const rank_share changing(manager_lock::growable, memory_->base_.growable_mutex);
  change_plan changes;
  changes.pass = &pass;
  if (status planned = plan(request, changes); !planned) return planned;
  check(changes.new_bytes == 0 || !changes.grown.empty(), "memory is created for no segment");
  if (changes.new_bytes != 0) {
    new_bytes = changes.new_bytes;
    if (status fits = memory_->shortage_.check_can_fit(creation_of(changes)); !fits) return fits;
  }
  engine_->reap(reap_count);
  status done = carry_out(request, changes);
  if (!done) {
    undo(changes);
  } else {
    stream_ = request.stream;
    if (!changes.grown.empty()) has_tail_ = false;
  }
  check(!done || segments_[request.first_segment]->sizes.user_bytes == request.size_bytes,
        "a segment does not have the requested size");
  return done;
}

// Whether the segment may have the size.
status growable_range::check_segment(const growable_request& request,
                                     std::uint64_t index) const noexcept {
  check(index < segments_.size(), "the segment does not exist");
  const range_sizes& now = segments_[index]->sizes;
  check(now.user_bytes <= now.mapped_bytes, "growable I1: a segment has more bytes than memory");
  if (request.change == growable_change::grow && request.size_bytes < now.user_bytes)
    return refuse(errc::invalid_argument, "a growth makes a segment smaller: use shrink or resize");
  if (request.change == growable_change::shrink && request.size_bytes > now.user_bytes)
    return refuse(errc::invalid_argument, "a shrink makes a segment larger: use grow or resize");
  if (request.size_bytes < pinned(index)) {
    return refuse(
        errc::in_use,
        "a view or pin uses bytes that the shrink would release: release it first, or shrink less");
  }
  if (request.one_handle && request.size_bytes != 0 && now.user_bytes != 0) {
    return refuse(errc::invalid_argument,
                  "one handle for a segment that has memory: release it first");
  }
  return {};
}

// Every mistake of the caller is found here, before anything changes.
status growable_range::plan(const growable_request& request, change_plan& changes) {
  const result<named_segments> named = name(request.first_segment, request.segment_count);
  if (!named) return named.error();
  if (request.size_bytes > options_.segment_bytes_max) {
    return refuse_beyond("a size is at most growable_options::segment_bytes_max",
                         request.size_bytes, options_.segment_bytes_max);
  }
  const std::size_t count = named->end - named->first;
  if (status room = reserve_more(changes.grown, count); !room) return room;
  if (status room = reserve_more(changes.cuts, count); !room) return room;
  for (std::uint64_t index = named->first; index < named->end; ++index) {
    if (status fits = check_segment(request, index); !fits) return fits;
    block& segment = *segments_[index];
    const std::uint64_t size_bytes = segment.sizes.user_bytes;
    const bool grows = request.size_bytes > size_bytes;
    // Memory that a failed call has left behind the size does not belong to a single handle.
    const bool has_surplus = segment.sizes.mapped_bytes > rounded(size_bytes);
    const bool cuts =
        request.size_bytes < size_bytes || (has_surplus && (!grows || request.one_handle));
    const std::uint64_t kept_bytes = grows ? size_bytes : request.size_bytes;
    const std::uint64_t mapped_bytes = rounded(request.size_bytes);
    if (grows && mapped_bytes > segment.sizes.mapped_bytes)
      changes.new_bytes += mapped_bytes - segment.sizes.mapped_bytes;
    if (grows) changes.grown.push_back({&segment, size_bytes, rounded(size_bytes), nullptr});
    if (cuts) changes.cuts.push_back({&segment, kept_bytes, rounded(kept_bytes), nullptr});
  }
  check(changes.grown.size() <= count && changes.cuts.size() <= count,
        "more changes than segments");
  return {};
}

status growable_range::carry_out(const growable_request& request, change_plan& changes) {
  if (request.one_handle && !changes.grown.empty() && !changes.cuts.empty()) {
    const result<ticket_ref> cut = cut_segments(request.stream, changes.cuts);
    if (!cut) return cut.error();
    changes.cuts.clear();
  }
  if (status grown = grow_segments(request, changes); !grown) return grown;
  if (status filled = fill_segments(request, changes); !filled) return filled;
  check(changes.grown.size() + changes.cuts.size() <= segments_.size(), "a segment changes twice");
  if (changes.cuts.empty()) return {};
  const result<ticket_ref> cut = cut_segments(request.stream, changes.cuts);
  return cut ? status{} : status{cut.error()};
}

status growable_range::grow_segments(const growable_request& request, change_plan& changes) {
  for (std::size_t i = 0; i < changes.grown.size(); ++i) {
    block& segment = *changes.grown[i].growable;
    check(segment.sizes.user_bytes < request.size_bytes,
          "a segment grows to at most its present "
          "size");
    if (status mapped = map_segment(request, segment, changes); !mapped) {
      changes.grown.resize(i);
      return mapped;
    }
    // A suspension that begins after this check finds the memory of the segment.
    if (!memory_->suspension_.is_running()) {
      changes.grown.resize(i + 1);
      return memory_suspended;
    }
  }
  return {};
}

// Memory for all of the size, and the size.
status growable_range::map_segment(const growable_request& request, block& segment,
                                   const change_plan& changes) {
  const std::uint64_t mapped_bytes = rounded(request.size_bytes);
  check(mapped_bytes <= stride_bytes_, "a segment grows into the next one");
  if (status unlocked = engine_->unlock(segment); !unlocked) return unlocked;
  // A fill of what a shrink has removed reaches to the end of the segment's last piece.
  if (status filled = engine_->time().order(request.stream, segment.last_use); !filled)
    return filled;
  if (mapped_bytes <= segment.sizes.mapped_bytes) {
    if (status ordered = engine_->order(request.stream, segment); !ordered) return ordered;
    engine_->set_user_bytes(segment, request.size_bytes);
    return {};
  }
  if (status clear = clear_stale(segment, request.may_wait); !clear) return clear;
  resize_plan wanted{{request.size_bytes, mapped_bytes, stride_bytes_}, request.stream, {}, true};
  wanted.handle_bytes = options_.handle_bytes == few_handles ? 0 : handle_bytes_;
  wanted.one_handle = request.one_handle;
  const creation what{mapped_bytes - segment.sizes.mapped_bytes, wanted.handle_bytes};
  check(changes.pass != nullptr, "a segment grows without an attempt");
  if (!memory_->suspension_.is_running()) return memory_suspended;
  engine* const parts = engine_;
  const status grown = memory_->shortage_.recover(
      what, *changes.pass, [&] { return parts->grow_in_place(segment, wanted); });
  check(!grown || segment.sizes.mapped_bytes >= mapped_bytes,
        "a segment grew to less than "
        "requested");
  return grown;
}

// Nothing is mapped over addresses that unfinished work may use.
status growable_range::clear_stale(const block& segment, bool may_wait) {
  if (!engine::is_stale(segment)) return {};
  engine_->reap_all();
  if (!engine::is_stale(segment)) return {};
  if (!may_wait) {
    return refuse(errc::in_use, "unfinished work may still use released addresses");
  }
  for (const ticket_ref& point : given_up_) {
    if (status waited = engine_->time().wait(point); !waited) return waited;
  }
  for (int left = unmap_attempts; left > 0 && engine::is_stale(segment); --left)
    engine_->reap_all();
  check(given_up_.empty() || given_up_.back().known_passed(),
        "growable I3: a point was not waited for");
  if (!engine::is_stale(segment)) return {};
  return refuse(
      errc::in_use,
      "the driver refuses to unmap memory that the segment has released: try again later");
}

status growable_range::fill_segments(const growable_request& request, change_plan& changes) {
  if (!acquired_.fills_on_acquire()) return {};
  for (const block_cut& each : changes.grown) {
    check(each.user_bytes < request.size_bytes, "no byte of a segment that grew is new");
    const address_range added{each.growable->base + each.user_bytes,
                              request.size_bytes - each.user_bytes};
    if (status ready = prepare_fill(request.stream, changes.fills); !ready) return ready;
    if (status filled = acquired_.on_acquire(added, request.stream); !filled) return filled;
    changes.fills.has_any = true;
  }
  return {};
}

// What comes behind the first fill cannot be short of host memory.
status growable_range::prepare_fill(stream_handle stream, queued_fills& fills) {
  if (fills.has_any || fills.point.get() != nullptr) return {};
  check(engine_ != nullptr, "a range is filled before its first growth");
  if (status room = reserve_more(given_up_, 1); !room) return room;
  result<ticket_ref> point = engine_->time().prepare(stream);
  if (!point) return point.error();
  fills.point = std::move(*point);
  return {};
}

// Fills bytes that go, where memory_options::contents does: from `kept_bytes` to the segment's
// size, and to the end of its last piece. Once a call has filled any, it cannot give them back: a
// fault that strikes once does not make it fail then.
status growable_range::fill_released(const block& segment, std::uint64_t kept_bytes,
                                     stream_handle stream, queued_fills& fills) {
  const std::uint64_t end_bytes = rounded(segment.sizes.user_bytes);
  if (!released_.fills_on_release() || segment.sizes.user_bytes <= kept_bytes) return {};
  check(end_bytes <= segment.sizes.mapped_bytes,
        "growable I1: a segment has more bytes than memory");
  const auto fill = [&] {
    return released_.on_release({segment.base + kept_bytes, end_bytes - kept_bytes}, stream);
  };
  if (status ready = prepare_fill(stream, fills); !ready) return ready;
  const status filled = fills.has_any ? try_to_close(fill) : fill();
  fills.has_any = fills.has_any || filled.has_value();
  return filled;
}

status growable_range::order_behind(stream_handle stream, std::span<const block_cut> cuts) {
  for (const block_cut& each : cuts) {
    check(each.growable != nullptr, "a stream is ordered behind no segment");
    if (status ordered = engine_->order(stream, *each.growable); !ordered) return ordered;
  }
  return {};
}

// The last step of a call: nothing that comes behind it can fail. Where a fill is refused behind
// others, the segments that have lost their bytes are cut, and the rest is as before. (I2)
result<ticket_ref> growable_range::cut_segments(stream_handle stream, std::span<block_cut> cuts) {
  check(!cuts.empty(), "no segment is cut");
  if (status room = reserve_more(given_up_, 1); !room) return room.error();
  if (status ordered = order_behind(stream, cuts); !ordered) return ordered.error();
  if (status ready = engine_->reserve_cuts(cuts); !ready) return ready.error();
  status filled;
  queued_fills fills;
  std::size_t count = 0;
  while (count < cuts.size()) {
    filled = fill_released(*cuts[count].growable, cuts[count].user_bytes, stream, fills);
    if (!filled) break;
    ++count;
  }
  if (!fills.has_any && !filled) {
    engine_->drop_cuts(cuts);
    return filled.error();
  }
  engine_->time().cover(fills.point);
  const result<ticket_ref> point = fills.has_any ? fills.point : engine_->time().record(stream);
  engine_->drop_cuts(point ? cuts.subspan(count) : cuts);
  if (!point) return point.error();
  const std::span<block_cut> gone = cuts.first(count);
  for (const block_cut& each : gone)
    if (fills.has_any) each.growable->set_last_use(*point);
  engine_->cut_growable_blocks(gone, *point);
  remember(*point);
  check(gone.front().spare == nullptr, "the cut part of a segment still has an owner");
  reap_behind(*point, count);
  if (filled) return point;
  error partly = filled.error();
  partly.detail =
      "the driver refused to fill bytes of a segment: segments before it have the new size already,"
      " and the others are as before";
  return partly;
}

// Releases the removed memory at once if nothing uses it.
void growable_range::reap_behind(const ticket_ref& point, std::size_t count) {
  check(count > 0, "no memory was released");
  const result<bool> idle = engine_->time().passed(point);
  if (idle && *idle) engine_->reap(count);
}

// Drops passed points. There is room for one more.
void growable_range::remember(const ticket_ref& point) noexcept {
  std::erase_if(given_up_, [](const ticket_ref& each) { return each.known_passed(); });
  if (point.known_passed()) return;
  check(given_up_.size() < given_up_.capacity(), "the list of points is full");
  given_up_.push_back(point);
}

// The last handles of the last segments first, until there are enough bytes. Called on the owner's
// thread: see vmm.optimizer:relief.
std::uint64_t growable_range::give_tail(std::uint64_t wanted_bytes) noexcept {
  const relaxed_capture quiet(memory_->driver());
  const sync::lock_guard<sync::mutex> lock(mutex_);
  if (segments_.empty() || !has_tail_) return 0;
  const rank_share changing(manager_lock::growable, memory_->base_.growable_mutex);
  std::vector<block_cut> cuts;
  if (status room = reserve_more(cuts, segments_.size()); !room) return 0;
  std::uint64_t given_bytes = 0;
  for (std::size_t index = segments_.size(); index != 0 && given_bytes < wanted_bytes; --index) {
    block& segment = *segments_[index - 1];
    const std::uint64_t now_bytes = segment.sizes.user_bytes;
    const std::uint64_t rest_bytes = std::min(wanted_bytes - given_bytes, now_bytes);
    const std::uint64_t kept_bytes =
        std::max(now_bytes - std::min(rounded(rest_bytes), now_bytes), pinned(index - 1));
    check(kept_bytes <= now_bytes, "growable I5: a tail begins behind the segment");
    if (rounded(kept_bytes) == segment.sizes.mapped_bytes) continue;
    given_bytes += segment.sizes.mapped_bytes - rounded(kept_bytes);
    cuts.push_back({&segment, kept_bytes, rounded(kept_bytes), nullptr});
  }
  return !cuts.empty() && cut_tails(cuts) ? given_bytes : 0;
}

// Behind all work of the device, for which it waits.
status growable_range::cut_tails(std::span<block_cut> cuts) {
  timeline& time = engine_->time();
  stream_handle last = stream_;
  const result<ticket_ref> all_work = time.cover_all();
  if (all_work) {
    last = stream_handle::default_stream;
    if (status ordered = time.order(last, *all_work); !ordered) return ordered;
  } else if (all_work.error().code != errc::not_supported) {
    return all_work.error();
  }
  const result<ticket_ref> point = cut_segments(last, cuts);
  if (!point) return point.error();
  if (status waited = time.wait(*point); !waited) return waited;
  reap_behind(*point, cuts.size());
  return {};
}

// Restores the sizes, and releases added memory; memory that cannot be released stays behind the
// size. (I2) The thread waits for fills of memory that goes: a failed call holds at most what it
// held before, and more only while the driver refuses to wait.
void growable_range::undo(change_plan& changes) noexcept {
  if (changes.grown.empty()) return;
  const ticket_ref point = changes.fills.has_any ? changes.fills.point : ticket_ref{};
  engine_->time().cover(point);
  (void)engine_->time().wait(point);
  if (engine_->reserve_cuts(changes.grown)) {
    engine_->cut_growable_blocks(changes.grown, point);
    remember(point);
    engine_->reap_all();  // memory released to the driver is not mapped
    return;
  }
  for (const block_cut& each : changes.grown) {
    check(each.spare == nullptr, "growable I2: a cut that failed has a record");
    engine_->set_user_bytes(*each.growable, each.user_bytes);
    if (!point.known_passed()) each.growable->set_last_use(point);
  }
}

}  // namespace vmm

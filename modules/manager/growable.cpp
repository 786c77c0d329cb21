// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include "../sync/thread_annotations.h"

module vmm.manager;

import vmm.backend;
import vmm.intrusive;
import vmm.optimizer;
import vmm.physical;
import vmm.std;
import vmm.support;
import vmm.sync;
import vmm.timeline;
import vmm.tracker;

namespace vmm {

namespace {

constexpr std::uint64_t address_bytes_max = std::uint64_t{1} << 56;
constexpr int unmap_attempts = 3;
constexpr std::size_t reap_count = 8;  // retired ranges looked at before each resize

error closed() noexcept {
  return refuse(errc::invalid_argument, "the growable range is closed, or was never reserved");
}

}  // namespace

// ---- pins -----------------------------------------------------------------------------

void growable_pin::reset() noexcept {
  growable_range* const range = std::exchange(range_, nullptr);
  if (range == nullptr) return;
  const status ended = range->unpin(number_);
  check(ended || ended.error().code == errc::not_permitted, "a pin ends that is not there");
}

result<growable_pin> growable_range::pin(const pin_request& request) {
  if (!made_in_.is_here()) return refuse_forked();
  const sync::lock_guard<sync::mutex> lock(mutex_);
  if (status ready = open(); !ready) return ready.error();
  const result<named_segments> named = name(request.first_segment, request.segment_count);
  if (!named) return named.error();
  for (std::uint64_t index = named->first; index < named->end; ++index) {
    if (request.size_bytes > segments_[index]->sizes.user_bytes) {
      return refuse(errc::invalid_argument,
                    "a pin keeps no more bytes than each of its segments has");
    }
  }
  if (status room = reserve_more(pins_, 1); !room) return room.error();
  pins_.push_back({++pin_number_, request.size_bytes, named->first, named->end});
  check(pin_number_ != 0, "the numbers of pins are used up");
  return growable_pin(*this, pin_number_);
}

status growable_range::unpin(std::uint64_t number) noexcept {
  if (!made_in_.is_here()) return refuse_forked();
  const sync::lock_guard<sync::mutex> lock(mutex_);
  const auto found = std::find_if(pins_.begin(), pins_.end(), [number](const pinned_part& each) {
    return each.number == number;
  });
  if (found == pins_.end())
    return refuse(errc::invalid_argument, "the range has no pin of this number");
  check(found->first < found->end, "a pin was of no segment");
  pins_.erase(found);
  return {};
}

// The most that a pin keeps of the segment.
std::uint64_t growable_range::pinned(std::uint64_t index) const noexcept {
  check(index < segments_.size(), "a segment is pinned that is not there");
  std::uint64_t size_bytes = 0;
  for (const pinned_part& each : pins_) {
    if (each.first <= index && index < each.end) size_bytes = std::max(size_bytes, each.size_bytes);
  }
  return size_bytes;
}

// ---- reserving -------------------------------------------------------------------------

status growable_range::reserve() {
  if (!made_in_.is_here()) return refuse_forked();
  const sync::lock_guard<sync::mutex> lock(mutex_);
  const status ready = open();
  check(!ready || !segments_.empty(), "a range is reserved and has no segment");
  return ready;
}

status growable_range::check_options(std::uint64_t unit_bytes) const noexcept {
  check(unit_bytes > 0, "options are checked before the granularity is known");
  if (options_.segment_bytes_max == 0 || options_.segment_bytes_max > address_bytes_max) {
    return refuse(errc::bad_option, "growable_options::segment_bytes_max is from 1 to 2^56");
  }
  if (options_.segment_count == 0 || options_.segment_count > growable_segment_count_max)
    return refuse(errc::bad_option, "growable_options::segment_count is from 1 to 2^20");
  const std::uint64_t handle_bytes = options_.handle_bytes;
  if (handle_bytes != few_handles &&
      (handle_bytes % unit_bytes != 0 || handle_bytes > address_bytes_max)) {
    return refuse(
        errc::bad_option,
        "growable_options::handle_bytes is a multiple of the manager's granularity, 0, or "
        "few_handles");
  }
  const std::uint64_t step_bytes =
      handle_bytes == 0 || handle_bytes == few_handles ? unit_bytes : handle_bytes;
  const std::uint64_t stride_bytes = round_up(options_.segment_bytes_max, step_bytes);
  if (stride_bytes > address_bytes_max / options_.segment_count) {
    return refuse(errc::bad_option,
                  "growable_options: segment_bytes_max times segment_count is at most 2^56");
  }
  if (options_.zero_new && !memory_->driver().feature_set().copy) {
    return refuse(errc::not_supported,
                  "this driver cannot fill memory: set growable_options::zero_new to false");
  }
  return {};
}

status growable_range::open() {
  if (is_closed_) return closed();
  if (!segments_.empty()) return {};
  const result<engine*> parts = memory_->parts();
  if (!parts) return parts.error();
  const std::uint64_t unit_bytes = memory_->granularity_bytes();
  if (status valid = check_options(unit_bytes); !valid) return valid;
  const std::uint64_t handle_bytes = options_.handle_bytes;
  const bool is_plain = handle_bytes == 0 || handle_bytes == few_handles;
  const std::uint64_t step_bytes = is_plain ? unit_bytes : handle_bytes;
  const std::uint64_t stride_bytes = round_up(options_.segment_bytes_max, step_bytes);
  std::vector<block*> made;
  if (status room = reserve_more(made, options_.segment_count); !room) return room;
  made.resize(options_.segment_count, nullptr);
  const room_request wanted{options_.segment_count, stride_bytes, stream_};
  if (status built = (*parts)->build_rooms(wanted, made); !built) return built;
  engine_ = *parts;
  handle_bytes_ = step_bytes;
  stride_bytes_ = stride_bytes;
  segments_.swap(made);
  check(segments_.back()->base == segments_.front()->base + (segments_.size() - 1) * stride_bytes,
        "segments do not lie side by side");
  return {};
}

result<growable_range::named_segments> growable_range::name(std::uint64_t first,
                                                            std::uint64_t count) const noexcept {
  const std::uint64_t all = options_.segment_count;
  if (first >= all || count > all - first) {
    return refuse(errc::invalid_argument,
                  "the segments named reach past growable_options::segment_count");
  }
  const named_segments named{first, count == 0 ? all : first + count};
  check(named.first < named.end && named.end <= all, "no segment is named");
  return named;
}

// ---- resizing --------------------------------------------------------------------------

status growable_range::resize(const growable_request& request) {
  if (!made_in_.is_here()) return refuse_forked();
  if (memory_->driver().feature_set().is_per_thread(request.stream)) return per_thread_stream;
  std::uint64_t new_bytes = request.size_bytes;
  return memory_->shortage_.with_others(
      new_bytes, [&](relief_pass& pass) { return resize_once(request, new_bytes, pass); });
}

status growable_range::resize_once(const growable_request& request, std::uint64_t& new_bytes,
                                   relief_pass& pass) {
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
    undo(request.stream, changes);
  } else {
    stream_ = request.stream;
  }
  check(!done || segments_[request.first_segment]->sizes.user_bytes == request.size_bytes,
        "a segment is not as large as asked for");
  return done;
}

// Whether the segment may have the size.
status growable_range::check_segment(const growable_request& request,
                                     std::uint64_t index) const noexcept {
  check(index < segments_.size(), "a segment is asked about that is not there");
  const range_sizes& now = segments_[index]->sizes;
  check(now.user_bytes <= now.mapped_bytes, "I1: a segment has more bytes than memory");
  if (request.change == growable_change::grow && request.size_bytes < now.user_bytes)
    return refuse(errc::invalid_argument, "a growth makes a segment smaller: use shrink or resize");
  if (request.change == growable_change::shrink && request.size_bytes > now.user_bytes)
    return refuse(errc::invalid_argument, "a shrink makes a segment larger: use grow or resize");
  if (request.size_bytes < pinned(index)) {
    return refuse(errc::in_use,
                  "a view or pin shows bytes that would go: let go of it, or shrink less");
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
    return refuse(errc::invalid_argument,
                  "the size is beyond the most of a segment, growable_options::segment_bytes_max");
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
    if (status cut = cut_segments(request.stream, changes.cuts); !cut) return cut;
    changes.cuts.clear();
  }
  if (status grown = grow_segments(request, changes); !grown) return grown;
  if (status filled = fill_segments(request, changes); !filled) return filled;
  check(changes.grown.size() + changes.cuts.size() <= segments_.size(), "a segment changes twice");
  return cut_segments(request.stream, changes.cuts);
}

status growable_range::grow_segments(const growable_request& request, change_plan& changes) {
  for (std::size_t i = 0; i < changes.grown.size(); ++i) {
    block& segment = *changes.grown[i].room;
    check(segment.sizes.user_bytes < request.size_bytes, "a segment grows to no more than it is");
    if (status mapped = map_segment(request, segment, changes); !mapped) {
      changes.grown.resize(i);
      return mapped;
    }
    // A suspension that begins behind this look finds the memory of the segment.
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
  check(changes.pass != nullptr, "a segment grows in no attempt");
  if (!memory_->suspension_.is_running()) return memory_suspended;
  engine* const parts = engine_;
  const status grown = memory_->shortage_.recover(
      what, *changes.pass, [&] { return parts->grow_in_place(segment, wanted); });
  check(!grown || segment.sizes.mapped_bytes >= mapped_bytes, "a segment grew to less than asked");
  return grown;
}

// Nothing is mapped over addresses that unfinished work may use.
status growable_range::clear_stale(const block& segment, bool may_wait) {
  if (!engine::is_stale(segment)) return {};
  engine_->reap_all();
  if (!engine::is_stale(segment)) return {};
  if (!may_wait) {
    return refuse(errc::in_use, "unfinished work may still use the addresses that were given up");
  }
  for (const ticket_ref& point : given_up_) {
    if (status waited = engine_->time().wait(point); !waited) return waited;
  }
  for (int left = unmap_attempts; left > 0 && engine::is_stale(segment); --left)
    engine_->reap_all();
  check(given_up_.empty() || given_up_.back().known_passed(), "a point was not waited for");
  if (!engine::is_stale(segment)) return {};
  return refuse(errc::in_use,
                "the driver refuses to unmap what the segment has given up: try again later");
}

status growable_range::fill_segments(const growable_request& request, change_plan& changes) {
  if (!acquired_.fills_on_acquire()) return {};
  for (const room_cut& each : changes.grown) {
    check(each.user_bytes < request.size_bytes, "no byte of a segment that grew is new");
    changes.has_fills = true;
    const address_range added{each.room->base + each.user_bytes,
                              request.size_bytes - each.user_bytes};
    if (status filled = acquired_.on_acquire(added, request.stream); !filled) return filled;
  }
  return {};
}

// Fills bytes that go, where memory_options::contents does: from `kept_bytes` to the segment's
// size, and to the end of its last piece. Once a call has filled any, `has_filled`, it cannot give
// them back: a fault that strikes once does not make it fail then. [I2]
status growable_range::fill_released(const block& segment, std::uint64_t kept_bytes,
                                     stream_handle stream, bool& has_filled) {
  const std::uint64_t end_bytes = rounded(segment.sizes.user_bytes);
  if (!released_.fills_on_release() || segment.sizes.user_bytes <= kept_bytes) return {};
  check(end_bytes <= segment.sizes.mapped_bytes, "I1: a segment has more bytes than memory");
  const auto fill = [&] {
    return released_.on_release({segment.base + kept_bytes, end_bytes - kept_bytes}, stream);
  };
  const status filled = has_filled ? try_to_close(fill) : fill();
  has_filled = has_filled || filled.has_value();
  return filled;
}

result<ticket_ref> growable_range::record_released(stream_handle stream, bool has_filled) {
  check(engine_ != nullptr, "memory is given up before there is any");
  return has_filled ? engine_->time().record_or_wait(stream) : engine_->time().mark(stream);
}

status growable_range::order_behind(stream_handle stream, std::span<const room_cut> cuts) {
  for (const room_cut& each : cuts) {
    check(each.room != nullptr, "a stream is ordered behind no segment");
    if (status ordered = engine_->order(stream, *each.room); !ordered) return ordered;
  }
  return {};
}

// The last step of a call: nothing that comes behind it can fail.
status growable_range::cut_segments(stream_handle stream, std::span<room_cut> cuts) {
  if (cuts.empty()) return {};
  if (status room = reserve_more(given_up_, 1); !room) return room;
  if (status ordered = order_behind(stream, cuts); !ordered) return ordered;
  if (status ready = engine_->reserve_cuts(cuts); !ready) return ready;
  status filled;
  bool has_filled = false;
  for (const room_cut& each : cuts)
    if (filled) filled = fill_released(*each.room, each.user_bytes, stream, has_filled);
  const result<ticket_ref> point =
      filled ? record_released(stream, has_filled) : result<ticket_ref>{filled.error()};
  if (!point) {
    engine_->drop_cuts(cuts);
    return point.error();
  }
  engine_->cut_rooms(cuts, *point);
  remember(*point);
  check(cuts.front().spare == nullptr, "what was cut off is still somebody's");
  reap_behind(*point, cuts.size());
  return {};
}

// What was just given up goes at once where nothing uses it.
void growable_range::reap_behind(const ticket_ref& point, std::size_t count) {
  check(count > 0, "nothing was given up");
  const result<bool> idle = engine_->time().passed(point);
  if (idle && *idle) engine_->reap(count);
}

// Points that have passed are let go. There is room for one more.
void growable_range::remember(const ticket_ref& point) noexcept {
  std::erase_if(given_up_, [](const ticket_ref& each) { return each.known_passed(); });
  if (point.known_passed()) return;
  check(given_up_.size() < given_up_.capacity(), "there is no room for a point");
  given_up_.push_back(point);
}

// Sizes as they were. Memory goes back where it can; what cannot stays behind the size. (I2)
void growable_range::undo(stream_handle stream, change_plan& changes) noexcept {
  if (changes.grown.empty()) return;
  ticket_ref point;
  if (changes.has_fills) point = record_or_wait(stream);
  if (engine_->reserve_cuts(changes.grown)) {
    engine_->cut_rooms(changes.grown, point);
    remember(point);
    engine_->reap_all();  // what goes back to the driver is mapped nowhere
    return;
  }
  (void)engine_->time().wait(point);  // what stays must be idle
  for (const room_cut& each : changes.grown) {
    check(each.spare == nullptr, "a cut that failed has a record");
    engine_->set_user_bytes(*each.room, each.user_bytes);
  }
}

// A point behind zeros that are on their way into memory that goes. Where none can be marked the
// stream is waited for, as the last resort: then they have arrived, and there is no point.
ticket_ref growable_range::record_or_wait(stream_handle stream) noexcept {
  check(engine_ != nullptr, "zeros are on their way and there is no memory");
  if (reserve_more(given_up_, 1)) {
    result<ticket_ref> marked = engine_->time().record_or_wait(stream);
    if (marked) return std::move(*marked);
  }
  if (memory_->driver().feature_set().streams) (void)memory_->driver().synchronize_stream(stream);
  return {};
}

// ---- ending ----------------------------------------------------------------------------

status growable_range::close(stream_handle stream) {
  if (!made_in_.is_here()) return refuse_forked();
  if (memory_->driver().feature_set().is_per_thread(stream)) return per_thread_stream;
  const sync::lock_guard<sync::mutex> lock(mutex_);
  const status done = close_locked(stream);
  check(!done || is_closed_, "a range was closed and is open");
  return done;
}

status growable_range::close_locked(stream_handle stream) {
  if (is_closed_) return closed();
  if (!pins_.empty())
    return refuse(errc::in_use, "a view or pin shows the growable range: let go of it first");
  if (segments_.empty()) {
    is_closed_ = true;
    return {};
  }
  const rank_share changing(manager_lock::growable, memory_->base_.growable_mutex);
  for (const block* const each : segments_) {
    if (status ordered = engine_->order(stream, *each); !ordered) return ordered;
  }
  bool has_filled = false;
  for (const block* const each : segments_)
    if (status filled = fill_released(*each, 0, stream, has_filled); !filled) return filled;
  const result<ticket_ref> point = record_released(stream, has_filled);
  if (!point) return point.error();
  end_segments(*point);
  return {};
}

void growable_range::end_segments(const ticket_ref& point) {
  check(!segments_.empty() && !is_closed_, "a range ends that has no segment");
  for (block* const each : segments_) engine_->discard(*each, point);
  const std::size_t count = segments_.size();
  segments_.clear();
  given_up_.clear();
  is_closed_ = true;
  reap_behind(point, count);
  check(segments_.empty() && pins_.empty(), "a closed range has segments");
}

growable_range::~growable_range() {
  if (!made_in_.is_here()) return;
  const sync::lock_guard<sync::mutex> lock(mutex_);
  check(pins_.empty(), "a growable range goes before its views and pins");
  if (is_closed_) return;
  const status gone = try_to_close([this] {
    sync::assume_locked(mutex_);
    return close_unnamed();
  });
  if (gone) return;
  const rank_share changing(manager_lock::growable, memory_->base_.growable_mutex);
  for (block* const each : segments_) engine_->abandon(*each);
}

// The caller names no stream, and the range's own may have been destroyed: an event behind all work
// ends the segments. What is filled is filled by the default stream.
status growable_range::close_unnamed() {
  if (segments_.empty() || engine_->time().may_name(stream_)) return close_locked(stream_);
  check(!is_closed_, "a closed range has segments");
  check(pins_.empty(), "I4: a range ends under a pin, and nobody closes it");
  timeline& time = engine_->time();
  const result<ticket_ref> last_use = time.mark_unnamed(stream_);
  if (!last_use) return last_use.error();
  if (released_.fills_on_release()) {
    constexpr stream_handle filler = stream_handle::default_stream;
    if (status ordered = time.order(filler, *last_use); !ordered) return ordered;
    return close_locked(filler);
  }
  const rank_share changing(manager_lock::growable, memory_->base_.growable_mutex);
  end_segments(*last_use);
  return {};
}

status growable_range::settle(stream_handle stream) {
  if (!made_in_.is_here()) return refuse_forked();
  if (memory_->driver().feature_set().is_per_thread(stream)) return per_thread_stream;
  const sync::lock_guard<sync::mutex> lock(mutex_);
  if (status ready = open(); !ready) return ready;
  for (const block* const each : segments_) {
    if (status settled = engine_->settle(*each); !settled) return settled;
  }
  check(!segments_.empty(), "a range is reserved and has no segment");
  driver_interface& driver = memory_->driver();
  return driver.feature_set().streams ? driver.synchronize_stream(stream) : status{};
}

// ---- looking ---------------------------------------------------------------------------

status growable_range::find(std::uint64_t index) const noexcept {
  if (segments_.empty()) return closed();
  check(segments_.size() == options_.segment_count, "a range has lost segments");
  if (index < segments_.size()) return {};
  return refuse(errc::invalid_argument,
                "the range has no segment of that index: see growable_options::segment_count");
}

result<address> growable_range::segment(std::uint64_t index) const {
  if (!made_in_.is_here()) return refuse_forked();
  const sync::lock_guard<sync::mutex> lock(mutex_);
  if (status found = find(index); !found) return found.error();
  check(static_cast<bool>(segments_[index]->base), "a segment lies nowhere");
  return segments_[index]->base;
}

result<std::uint64_t> growable_range::size_bytes(std::uint64_t index) const {
  if (!made_in_.is_here()) return refuse_forked();
  const sync::lock_guard<sync::mutex> lock(mutex_);
  if (status found = find(index); !found) return found.error();
  check(segments_[index]->sizes.user_bytes <= options_.segment_bytes_max, "a segment is too large");
  return segments_[index]->sizes.user_bytes;
}

result<std::vector<block_part>> growable_range::parts(std::uint64_t index) const {
  if (!made_in_.is_here()) return refuse_forked();
  const sync::lock_guard<sync::mutex> lock(mutex_);
  if (status found = find(index); !found) return found.error();
  const block& segment = *segments_[index];
  std::vector<block_part> listed;
  if (status room = reserve_more(listed, segment.memories.size()); !room) return room.error();
  std::uint64_t sum_bytes = 0;
  for (const physical_memory* each : segment.memories) {
    listed.push_back({each->handle, each->size_bytes});
    sum_bytes += each->size_bytes;
  }
  check(listed.size() == segment.memories.size(), "a piece of a segment is missing");
  check(sum_bytes == segment.sizes.mapped_bytes, "a segment's pieces are not its memory");
  return listed;
}

growable_statistics growable_range::statistics() const {
  growable_statistics numbers;
  if (!made_in_.is_here()) return numbers;
  const sync::lock_guard<sync::mutex> lock(mutex_);
  numbers.segment_count = options_.segment_count;
  numbers.segment_bytes_max = options_.segment_bytes_max;
  numbers.stride_bytes = stride_bytes_;
  numbers.handle_bytes = handle_bytes_;
  numbers.pin_count = pins_.size();
  numbers.is_closed = is_closed_;
  if (segments_.empty()) return numbers;
  numbers.base = segments_.front()->base;
  for (const block* const each : segments_) {
    numbers.size_bytes += each->sizes.user_bytes;
    numbers.physical_bytes += each->sizes.mapped_bytes;
    numbers.handle_count += each->memories.size();
  }
  check(numbers.size_bytes <= numbers.physical_bytes, "I1: segments have more bytes than memory");
  return numbers;
}

status growable_range::validate() const {
  if (!made_in_.is_here()) return refuse_forked();
  const sync::lock_guard<sync::mutex> lock(mutex_);
  check(!is_closed_ || segments_.empty(), "a closed range has segments");
  for (std::size_t index = 0; index < segments_.size(); ++index) {
    const block& each = *segments_[index];
    if (!each.owned || !each.claimed || !each.is_room)
      return refuse(errc::internal, "a segment is not its range's");
    if (each.base != segments_.front()->base + index * stride_bytes_)
      return refuse(errc::internal, "a segment is not in its place");
    if (each.sizes.user_bytes > each.sizes.mapped_bytes || each.sizes.mapped_bytes > stride_bytes_)
      return refuse(errc::internal, "a segment's sizes contradict one another");
    if (each.sizes.user_bytes < pinned(index))
      return refuse(errc::internal, "I4: a segment has less than is pinned of it");
  }
  return {};
}

}  // namespace vmm

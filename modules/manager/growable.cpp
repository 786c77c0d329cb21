// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
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

constexpr std::uint64_t address_bytes_max = std::uint64_t{1} << 56;

error closed() noexcept {
  return refuse(errc::invalid_argument, "the growable range is closed, or was never reserved");
}

}  // namespace

error refuse_beyond(const char* detail, std::uint64_t given, std::uint64_t most) noexcept {
  check(given >= most, "a value in its range is refused");
  return refuse(errc::invalid_argument, detail_text()
                                            .add(detail)
                                            .add("; not '")
                                            .add_number(given)
                                            .add("': the range has ")
                                            .add_number(most)
                                            .keep(detail));
}

// ---- pins -----------------------------------------------------------------------------

void growable_pin::reset() noexcept {
  growable_range* const range = std::exchange(range_, nullptr);
  if (range == nullptr) return;
  const status ended = range->unpin(number_);
  check(ended || ended.error().code == errc::not_permitted, "a missing pin is released");
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
  has_tail_ = true;
  check(pin_number_ != 0, "no number for a pin is left");
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
  check(found->first < found->end, "a pin names no segment");
  pins_.erase(found);
  return {};
}

// The most that a pin keeps of the segment.
std::uint64_t growable_range::pinned(std::uint64_t index) const noexcept {
  check(index < segments_.size(), "a missing segment is pinned");
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
    return refuse_number(options_.segment_bytes_max,
                         "growable_options::segment_bytes_max is from 1 to 2^56");
  }
  if (options_.segment_count == 0 || options_.segment_count > growable_segment_count_max)
    return refuse_number(options_.segment_count,
                         "growable_options::segment_count is from 1 to 2^20");
  const std::uint64_t handle_bytes = options_.handle_bytes;
  if (handle_bytes != few_handles &&
      (handle_bytes % unit_bytes != 0 || handle_bytes > address_bytes_max)) {
    return refuse_number(
        handle_bytes,
        "growable_options::handle_bytes is a multiple of the manager's granularity, 0, or "
        "few_handles");
  }
  const std::uint64_t step_bytes =
      handle_bytes == 0 || handle_bytes == few_handles ? unit_bytes : handle_bytes;
  const std::uint64_t stride_bytes = round_up(options_.segment_bytes_max, step_bytes);
  if (stride_bytes > address_bytes_max / options_.segment_count) {
    detail_text given;
    given.add_number(options_.segment_bytes_max).add(" times ").add_number(options_.segment_count);
    return refuse_value(given.text(),
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
  const growable_blocks_request wanted{options_.segment_count, stride_bytes, stream_};
  if (status built = (*parts)->build_growable_blocks(wanted, made); !built) return built;
  engine_ = *parts;
  handle_bytes_ = step_bytes;
  stride_bytes_ = stride_bytes;
  segments_.swap(made);
  if (options_.gives_tail) {
    const auto give = [](void* of, std::uint64_t wanted_bytes) noexcept {
      return static_cast<growable_range*>(of)->give_tail(wanted_bytes);
    };
    tail_.enter(memory_->shortage_.relief().key(), {this, give}, relief_rank::tail);
  }
  check(segments_.back()->base == segments_.front()->base + (segments_.size() - 1) * stride_bytes,
        "segments do not lie side by side");
  return {};
}

result<growable_range::named_segments> growable_range::name(std::uint64_t first,
                                                            std::uint64_t count) const noexcept {
  const std::uint64_t all = options_.segment_count;
  if (first >= all || count > all - first) {
    return refuse_beyond("the segments named are below growable_options::segment_count",
                         first >= all ? first : std::max(count, first + count), all);
  }
  const named_segments named{first, count == 0 ? all : first + count};
  check(named.first < named.end && named.end <= all, "no segment is named");
  return named;
}

// ---- ending ----------------------------------------------------------------------------

status growable_range::close(stream_handle stream) {
  if (!made_in_.is_here()) return refuse_forked();
  if (status named = check_stream(memory_->driver().feature_set(), stream); !named) return named;
  const sync::lock_guard<sync::mutex> lock(mutex_);
  const status done = close_locked(stream);
  check(!done || is_closed_, "a closed range is open");
  return done;
}

status growable_range::close_locked(stream_handle stream) {
  if (is_closed_) return closed();
  if (!pins_.empty())
    return refuse(errc::in_use, "a view or pin uses the growable range: release it first");
  if (segments_.empty()) {
    is_closed_ = true;
    return {};
  }
  const rank_share changing(manager_lock::growable, memory_->base_.growable_mutex);
  const result<ticket_ref> point = empty_segments(stream);
  if (!point) return point.error();
  end_segments(*point);
  return {};
}

// A point behind all use of the segments. Where bytes that go are filled, the segments are cut.
result<ticket_ref> growable_range::empty_segments(stream_handle stream) {
  check(!segments_.empty(), "a range without segments is emptied");
  if (!released_.fills_on_release()) {
    for (const block* const each : segments_)
      if (status ordered = engine_->order(stream, *each); !ordered) return ordered.error();
    return engine_->time().record(stream);
  }
  std::vector<block_cut> cuts;
  if (status room = reserve_more(cuts, segments_.size()); !room) return room.error();
  for (block* const each : segments_) cuts.push_back({each, 0, 0, nullptr});
  return cut_segments(stream, cuts);
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
  tail_.leave();
  const sync::lock_guard<sync::mutex> lock(mutex_);
  check(pins_.empty(), "a growable range is destroyed before its views and pins");
  if (is_closed_) return;
  const status gone = try_to_close([this] {
    sync::assume_locked(mutex_);
    return close_unnamed();
  });
  if (gone) return;
  const rank_share changing(manager_lock::growable, memory_->base_.growable_mutex);
  for (block* const each : segments_) engine_->abandon(*each);
}

// The caller names no stream: an event behind all work ends the segments, or a wait for it. Fills
// run on the default stream.
status growable_range::close_unnamed() {
  if (segments_.empty()) return close_locked(stream_);
  check(!is_closed_, "a closed range has segments");
  check(pins_.empty(), "I4: a pinned range is destroyed without close()");
  timeline& time = engine_->time();
  const result<ticket_ref> last_use = time.cover_all();
  if (!last_use && last_use.error().code == errc::not_supported) return close_locked(stream_);
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

status growable_range::synchronize(stream_handle stream) {
  if (!made_in_.is_here()) return refuse_forked();
  if (status named = check_stream(memory_->driver().feature_set(), stream); !named) return named;
  const sync::lock_guard<sync::mutex> lock(mutex_);
  if (status ready = open(); !ready) return ready;
  for (const block* const each : segments_) {
    if (status finished = engine_->synchronize(*each); !finished) return finished;
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
  return refuse_beyond("an index is below growable_options::segment_count", index,
                       segments_.size());
}

result<address> growable_range::segment(std::uint64_t index) const {
  if (!made_in_.is_here()) return refuse_forked();
  const sync::lock_guard<sync::mutex> lock(mutex_);
  if (status found = find(index); !found) return found.error();
  check(static_cast<bool>(segments_[index]->base), "a segment has no address");
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
    if (!each.owned || !each.claimed || !each.is_growable)
      return refuse(errc::internal, "a segment is not its range's");
    if (each.base != segments_.front()->base + index * stride_bytes_)
      return refuse(errc::internal, "a segment is not in its place");
    if (each.sizes.user_bytes > each.sizes.mapped_bytes || each.sizes.mapped_bytes > stride_bytes_)
      return refuse(errc::internal, "a segment's sizes disagree");
    if (each.sizes.user_bytes < pinned(index))
      return refuse(errc::internal, "I4: a segment is smaller than its pinned bytes");
  }
  return {};
}

}  // namespace vmm

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The part of every allocate and free under the short lock. Everything it calls is inline, except
// rare cases.
module vmm.stream;

import vmm.backend;
import vmm.history;
import vmm.std;
import vmm.support;
import vmm.timeline;
import vmm.va;

namespace vmm {

address pool_state::try_allocate(const stream_request& request, bool& starved) noexcept {
  debug_check([&] { return request.count_granules != 0; }, "a request of 0 granules");
  segment* in = first_segment_;
  if (in == nullptr) [[unlikely]]
    return {};
  region_id found = in->find_free(request);
  for (std::size_t next = 1; found == region_id::none; ++next) {
    if (next >= segments_.size()) return {};
    in = segments_[next].get();
    found = in->find_free(request);
  }
  if (!in->provide_block()) [[unlikely]] {
    starved = true;
    return {};
  }
  in->fetch_ahead(in->range(found).offset);  // the table's line, while the region is cut
  debug_check([&] { return in->kind(found) == kind_of(request.stream); },
              "memory is handed out that is free for another stream");
  return in->make_live(in->take_free(found, request.count_granules), mappings_);
}

segment* pool_state::segment_around(address at) noexcept {
  debug_check([this] { return (first_segment_ == nullptr) == first_range_.empty(); },
              "the first segment has no addresses");
  if (at.value - first_range_.base.value < first_range_.size_bytes) [[likely]]
    return first_segment_;
  for (const auto& in : segments_) {
    if (in->where().range.contains(at)) return in.get();
  }
  return nullptr;
}

// The clock has not advanced since free_deferring(), because the lock was held throughout.
void pool_state::finish_free() noexcept {
  debug_check([this] { return deferred_ != region_id::none; }, "no free is deferred");
  const region_id block = std::exchange(deferred_, region_id::none);
  const stream_point freed{deferred_for_, streams_.progress().clock()};
  debug_check([&] { return streams_.progress().last_epoch(freed.stream) == freed.epoch; },
              "something was freed since a free was deferred");
  first_segment_->release_live(block, freed, mappings_);
  first_segment_->make_free(block, freed, streams_);
}

status pool_state::free(address at, std::uint32_t stream) noexcept {
  debug_check([this] { return deferred_ == region_id::none; }, "a free goes before an earlier one");
  segment* const in = segment_around(at);
  if (in == nullptr)
    return refuse(errc::unknown_address, "no block of this pool begins or began here");
  const std::uint64_t offset_bytes = at - in->base();
  const region_id block = offset_bytes % granule_bytes == 0
                              ? in->take_block(granules_in(offset_bytes))
                              : region_id::none;
  if (block == region_id::none) [[unlikely]]
    return locked_blocks(*this).free(*in, offset_bytes, stream);
  if (has_history && recorder_ != nullptr) [[unlikely]] {
    const std::uint64_t size_bytes = in->range(block).count * granule_bytes;
    recorder_->note_block(history_kind::freed, {at, size_bytes}, 0,
                          streams_.progress().shown_handle(stream));
  }
  const stream_point now = streams_.progress().advance(stream);
  debug_check([&] { return in->address_of(in->range(block).offset) == at; },
              "a block does not begin where it is found");
  debug_check([&] { return now.stream == stream && !streams_.passed(now); },
              "a block is freed at a point that has passed");
  in->release_live(block, now, mappings_);
  in->make_free(block, now, streams_);
  return {};
}

}  // namespace vmm

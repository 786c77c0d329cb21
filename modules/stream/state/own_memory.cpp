// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module vmm.stream;

import vmm.backend;
import vmm.base;
import vmm.physical;
import vmm.std;
import vmm.timeline;
import vmm.va;

namespace vmm {

result<address> own_memory::allocate_free(const stream_request& request) noexcept {
  bool starved = false;
  const address at = request.is_aligned() ? try_allocate_aligned(request, starved)
                                          : state_.try_allocate(request, starved);
  check(!at || !starved, "an allocation returned memory and a shortage");
  debug_check([&] { return !at || state_.segment_around(at) != nullptr; },
              "a block lies in no segment");
  if (starved) return no_record_memory;
  return at;
}

address own_memory::try_allocate_aligned(const stream_request& request, bool& starved) noexcept {
  check(request.is_aligned(), "an unaligned request is served at a chosen place");
  for (const auto& in : state_.segments_) {
    const region_id found = in->find_for(request);
    if (found == region_id::none) continue;
    if (!in->provide(2) || !in->provide_entry()) {
      starved = true;
      return {};
    }
    const granule_range where = in->place_in(in->range(found).offset, request);
    const std::uint32_t lead = where.offset - in->range(found).offset;
    check(where.end() <= in->range(found).end(), "a region does not take its aligned block");
    if (lead != 0) in->cut_lead(found, lead);
    const address at = in->make_live(in->take_free(found, where.count), state_.mappings_);
    check(at == in->address_of(where.offset), "an aligned block is not where it was looked for");
    return at;
  }
  return {};
}

result<address> own_memory::allocate(const stream_request& request) noexcept {
  return state_.streams_.is_capture(request.stream) ? allocate_kept(request)
                                                    : allocate_free(request);
}

// Free memory of a captured graph counts as live: it does not while this lives.
result<address> own_memory::allocate_kept(const stream_request& request) noexcept {
  check(state_.streams_.is_capture(request.stream),
        "pool_state I2: memory is kept for no captured graph");
  for (const auto& in : state_.segments_) {
    const region_id found = in->find_for(request);
    if (found == region_id::none) continue;
    const granule_range taken = in->place_in(in->range(found).offset, request);
    check(in->range(found).end() >= taken.end(), "a region does not take its request");
    in->release_range(taken, state_.now_for(request.stream), state_.mappings_);
    const result<address> at = allocate_free(request);
    check(!at || *at == in->address_of(taken.offset),
          "a graph's block is not where it was looked for");
    if (!at) in->count_live(taken, *in->mapping_at(taken.offset), state_.mappings_);
    return at;
  }
  return address{};
}

void own_memory::free_region(segment& in, region_id block, std::uint32_t stream) noexcept {
  const stream_point freed = state_.streams_.free_point(stream);
  check(freed.stream == stream, "a block is freed for another stream");
  free_region_since(in, block, freed);
}

void own_memory::free_region_since(segment& in, region_id block,
                                   const stream_point& freed) noexcept {
  const std::uint32_t stream = freed.stream;
  check(in.kind(block) == region_kind::unlisted, "a free block is freed");
  check(stream < state_.streams_.count(), "a block is freed for no record");
  if (!state_.streams_.is_capture(stream))
    in.release_live(block, state_.now_for(stream), state_.mappings_);
  check(freed.epoch <= state_.progress().clock(), "a block is freed later than now");
  in.make_free(block, freed, state_.streams_);
}

}  // namespace vmm

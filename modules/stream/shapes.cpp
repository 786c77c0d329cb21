// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The field's shapes of allocate and deallocate: aligned blocks, and what a deallocate that failed
// leaves.
//
// An aligned request looks for a free region that takes its block wherever the region begins
// (stream_request). The block is cut out of it, and what lies before and behind stays free as it
// was: no memory is held for the alignment. New memory begins with a unit, which has the alignment
// as a rule, and is then no larger than for any other block.
module vmm.stream;

import vmm.backend;
import vmm.history;
import vmm.std;
import vmm.support;
import vmm.sync;

namespace vmm {

status stream_pool::check_alignment(std::uint64_t alignment_bytes) noexcept {
  if (!std::has_single_bit(alignment_bytes))
    return refuse(errc::invalid_argument, "an alignment is a power of two");
  if (alignment_bytes <= alignment_bytes_max) return {};
  return refuse(errc::not_supported,
                "a stream pool aligns blocks to 2 MiB at most: ask for less, or allocate from a "
                "manager, which takes any power of two");
}

result<stream_request> stream_pool::request_for(const block_shape& shape) {
  const result<std::uint32_t> count = count_granules(shape.size_bytes);
  if (!count) return count.error();
  stream_request request{*count};
  if (shape.alignment_bytes <= granule_bytes) return request;
  check(check_alignment(shape.alignment_bytes).has_value(), "a request has a wrong alignment");
  const std::uint32_t spare = granules_in(shape.alignment_bytes) - 1;
  if (std::uint64_t{*count} + spare > std::numeric_limits<std::uint32_t>::max())
    return refuse(errc::out_of_addresses, "no stretch of addresses takes the aligned block");
  request.count_granules += spare;
  request.spare_granules = spare;
  check(request.block_granules() == *count, "an aligned block has another size");
  return request;
}

result<address> stream_pool::allocate_aligned(const block_shape& shape, stream_handle stream) {
  if (status valid = check_alignment(shape.alignment_bytes); !valid) return valid.error();
  const bool is_open = gate_.is_open();
  if (!is_open) {
    if (status entered = enter_closed_to_allocate(); !entered) return entered.error();
  }
  check(is_ready(), "a pool allocates before it is set up");
  const bool is_watched =
      is_open ? watches(stream) && !is_uncaptured(stream) : watches_closed(stream);
  const result<address> at =
      is_watched ? allocate_watched(shape, stream) : allocate_aligned_uncaptured(shape, stream);
  check(!at || at->value % shape.alignment_bytes == 0, "a block has another alignment");
  return at;
}

// What is free for the stream, under the short lock; else the slow path.
result<address> stream_pool::allocate_aligned_uncaptured(const block_shape& shape,
                                                         stream_handle stream) {
  const result<stream_request> counted = request_for(shape);
  if (!counted) return counted.error();
  if (!counted->is_aligned()) return allocate_uncaptured(shape.size_bytes, stream);
  {
    const table_lock state(state_);
    stream_request request = *counted;
    request.stream = state->find_stream(stream);
    bool starved = false;
    const bool plain = request.stream != pool_state::no_stream && !state->wants_slow_path();
    const address at = plain ? state->try_allocate_aligned(request, starved) : address{};
    check(!at || !starved, "an allocation both failed and did not");
    if (at) {
      state->note_block(history_kind::allocated, {at, request.block_bytes()}, shape.size_bytes,
                        stream);
      return at;
    }
  }
  return allocate_slow_path(shape, stream);
}

// Whatever else went wrong leaves the block live, and the pool says so when it goes.
void stream_pool::check_left_live(const error& failure) noexcept {
  check(!is_wrong_address(failure.code),
        "deallocate of an address that is no live block of this stream pool, or on a stream that "
        "is not there");
}

}  // namespace vmm

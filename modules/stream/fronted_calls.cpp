// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Allocate and free at a stream's front, and how a stream gets one.
module vmm.stream;

import vmm.backend;
import vmm.std;
import vmm.support;
import vmm.sync;
import vmm.va;

namespace vmm {

// A front that has no room is lent more, where the pool has memory that is free for the stream;
// then it gets some of another front.
address stream_pool::allocate_at_front(const front_set& fronts, std::uint64_t size_bytes,
                                       stream_handle stream) noexcept {
  front* const own = fronts.find(stream);
  if (own == nullptr) return {};
  if (const address at = own->take(stream, size_bytes)) return at;
  if (size_bytes > front_lending::request_bytes_max) return {};
  {
    const table_lock state(state_);
    const address at = front_lending(*state).lend_and_take(stream, size_bytes);
    debug_check([&] { return at.value % granule_bytes == 0; }, "a block begins inside a granule");
    if (at || !state->has_nothing_to_tidy()) return at;
  }
  return gate_.is_open() ? parts_->reuse.take_between_fronts(size_bytes, stream) : address{};
}

bool stream_pool::free_at_front(const front_set& fronts, address at,
                                stream_handle stream) noexcept {
  front* const own = fronts.find(stream);
  return own != nullptr && own->give(stream, at);
}

}  // namespace vmm

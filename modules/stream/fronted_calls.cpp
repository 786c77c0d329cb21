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

// A front that has no room is lent more, where the pool has memory that is free for the stream.
address stream_pool::allocate_at_front(const front_set& fronts, std::uint64_t size_bytes,
                                       stream_handle stream) noexcept {
  front* const own = fronts.find(stream);
  if (own == nullptr) return {};
  if (const address at = own->take(stream, size_bytes)) return at;
  if (size_bytes > front_lending::request_bytes_max) return {};
  const auto state = state_.lock();
  const address at = front_lending(*state).lend_and_take(stream, size_bytes);
  debug_check([&] { return at.value % granule_bytes == 0; }, "a block begins inside a granule");
  return at;
}

bool stream_pool::free_at_front(const front_set& fronts, address at,
                                stream_handle stream) noexcept {
  front* const own = fronts.find(stream);
  return own != nullptr && own->give(stream, at);
}

// With memory of the front that has most. Work that is not finished may use all of what it freed:
// then that is free for its stream, which is lent it again. Under the lock of growth.
result<address> stream_pool::reuse_from_front(const stream_request& request, stream_handle stream) {
  if (fronts_.load(std::memory_order_acquire) == nullptr) return address{};
  if (request.size_bytes() > front_lending::request_bytes_max) return address{};
  const stream_point freed =
      state_.with([&](auto& state) { return front_lending(state).take_from_richest(request); });
  if (freed.stream == pool_state::no_stream) return address{};
  check(freed.stream != request.stream, "a stream takes its own memory as another's");
  if (status asked = poll_events(freed); !asked) return asked.error();
  const auto state = state_.lock();
  if (!state->progress().passed(freed)) return address{};
  state->pass_on(freed.stream, request.stream);
  const address lent = front_lending(*state).lend_and_take(stream, request.size_bytes());
  const result<address> at = lent ? result<address>{lent} : state->allocate_own(request);
  check(!at || !*at || at->value % granule_bytes == 0, "a block begins inside a granule");
  if (at && *at) ++state->totals().foreign_count;
  return at;
}

// Of what fronts kept. Neighbours that several of them had are joined where much is free and yet
// nothing serves: each stream that cuts up what it was passed on would make the pool grow else.
result<address> stream_pool::reuse_taken_back(const stream_request& request) {
  check(request.count_granules != 0, "no granule is looked for");
  const result<address> found = reuse(request);
  if (!found || *found) return found;
  const bool is_much_free = state_.with([](auto& state) {
    const pool_statistics now = state.statistics();
    return now.reusable_bytes / 3 > now.live_bytes / 10;
  });
  if (!is_much_free) return found;
  if (status asked = poll_all_streams(); !asked) return asked.error();
  return reuse_merged(request);
}

// Under the lock of growth. A front is a gain, so that no memory for one is no error.
void stream_pool::provide_front(stream_handle stream, std::uint32_t record) noexcept {
  if (sees_all_ || options_.fronts == front_rule::never || options_.rules.unmap_early) return;
  struct wish {
    bool is_wanted = false;
    address_range where{};
  };
  const wish wished = state_.with([&](auto& state) -> wish {
    const bool is_wanted = options_.fronts == front_rule::always || state.wants_front();
    if (!is_wanted || state.segment_count() == 0) return {};
    if (state.fronts() != nullptr && !state.fronts()->takes(stream)) {
      state.end_want(false);
      return {};
    }
    return {true, state.segment_at(0).where().range};
  });
  if (!wished.is_wanted) return;
  const pool_geometry sizes = state_.with([](auto& state) { return state.sizes(); });
  result<std::unique_ptr<front>> made = front::create(wished.where, sizes);
  const auto state = state_.lock();
  const bool is_added = made && state->add_front(stream, record, std::move(*made)).has_value();
  state->end_want(is_added);
  check(!is_added || state->fronts()->find(stream) != nullptr, "a new front is not found");
  if (is_added) fronts_.store(state->fronts(), std::memory_order_release);
}

}  // namespace vmm

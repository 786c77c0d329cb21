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
  return gate_.is_open() ? allocate_between_fronts(size_bytes, stream) : address{};
}

// What the slow path would do first where there are fronts, with three holds of the state's lock
// instead of a dozen. Errors are the slow path's to meet again.
address stream_pool::allocate_between_fronts(std::uint64_t size_bytes,
                                             stream_handle stream) noexcept {
  if (options_.captures_announced) return {};
  const growth_guard growing(entry_);
  if (parts_->rights.has_own()) return {};
  stream_request request;
  transfer_under_way moving;
  {
    const table_lock state(state_);
    // Another thread may have freed memory of the stream.
    const address at = front_lending(*state).lend_and_take(stream, size_bytes);
    if (at || !state->has_nothing_to_tidy()) return at;
    request = {state->granules_for(size_bytes), state->find_stream(stream)};
    if (request.count_granules == 0 || request.stream == pool_state::no_stream) return {};
    moving = begin_transfer(*state, request);
  }
  const result<address> found = finish_transfer(std::move(moving), request, stream);
  check(!found || found->value % granule_bytes == 0, "a block begins inside a granule");
  return found ? *found : address{};
}

bool stream_pool::free_at_front(const front_set& fronts, address at,
                                stream_handle stream) noexcept {
  front* const own = fronts.find(stream);
  return own != nullptr && own->give(stream, at);
}

// With memory of another front, once its stream has finished with it. Under the lock of growth.
result<address> stream_pool::reuse_from_front(const stream_request& request, stream_handle stream) {
  if (fronts_.load(std::memory_order_acquire) == nullptr) return address{};
  if (request.size_bytes() > front_lending::request_bytes_max) return address{};
  if (request.is_aligned()) return address{};  // fronts give what comes first
  check(request.count_granules != 0, "no granule is looked for");
  transfer_under_way moving;
  {
    const table_lock state(state_);
    moving = begin_transfer(*state, request);
  }
  return finish_transfer(std::move(moving), request, stream);
}

stream_pool::transfer_under_way stream_pool::begin_transfer(
    pool_state& state, const stream_request& request) noexcept {
  check(request.count_granules != 0, "no granule is passed on");
  transfer_under_way moving{front_lending(state).begin_transfer(request), {}};
  if (moving.what.from == front_set::none) return moving;
  moving.answer = state.progress().ask(moving.what.freed);
  check(moving.answer.is == point_answer::kind::unmarked, "a point of now is marked");
  return moving;
}

// Where the stream that freed the memory has not finished with it, or is being captured, it stays.
result<address> stream_pool::finish_transfer(transfer_under_way&& moving,
                                             const stream_request& request, stream_handle stream) {
  if (moving.what.from == front_set::none) return address{};
  check(request.count_granules != 0, "no granule is passed on");
  mark_order& order = moving.answer.order;
  const result<fresh_event> mark = parts_->clock.record_on(order.handle());
  const result<bool> passed =
      mark ? parts_->core.time.passed(mark->ticket) : result<bool>{mark.error()};
  const table_lock state(state_);
  const bool has_passed = passed && *passed;
  if (mark) ++state->totals().mark_count;
  if (has_passed) state->progress().note_passed(moving.what.freed);
  if (mark && !has_passed) stream_clock::note_event(*state, std::move(order), *mark);
  front_lending lending(*state);
  const bool arrived = lending.end_transfer(moving.what, request, has_passed);
  check(!arrived || has_passed, "memory is passed on that unfinished work may use");
  if (!passed && !is_capture_refusal(passed.error())) return passed.error();
  if (!arrived) return address{};
  front* const own = state->fronts()->find(stream);
  const address taken = own == nullptr ? address{} : own->take(stream, request.size_bytes());
  const result<address> at = taken ? result<address>{taken} : state->allocate_own(request);
  if (at && *at) ++state->totals().foreign_count;
  check(!at || at->value % granule_bytes == 0, "a block begins inside a granule");
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
  if (status asked = parts_->clock.poll_all(); !asked) return asked.error();
  return reuse_merged(request);
}

// Under the lock of growth. A front is a gain, so that no memory for one is no error. A request
// that its stream's front may serve leaves what is wanted to a stream that has none.
void stream_pool::provide_front(const stream_request& request, stream_handle stream) noexcept {
  const std::uint32_t record = request.stream;
  if (sees_all_ || options_.fronts == front_rule::never || options_.rules.unmap_early) return;
  struct wish {
    bool is_wanted = false;
    address_range where{};
  };
  const wish wished = state_.with([&](auto& state) -> wish {
    const bool is_wanted = options_.fronts == front_rule::always || state.wants_front();
    if (!is_wanted || state.segment_count() == 0) return {};
    if (state.fronts() != nullptr && !state.fronts()->takes(stream)) {
      const bool has_one = state.fronts()->number_of(stream) != front_set::none;
      if (!has_one || request.size_bytes() > front_lending::request_bytes_max)
        state.end_want(false);
      return {};
    }
    return {true, state.segment_at(0).where().range};
  });
  if (!wished.is_wanted) return;
  const pool_geometry sizes = state_.with([](auto& state) { return state.sizes(); });
  result<std::unique_ptr<front>> made = front::create(wished.where, sizes);
  const table_lock state(state_);
  const bool is_added = made && state->add_front(stream, record, std::move(*made)).has_value();
  state->end_want(is_added);
  check(!is_added || state->fronts()->find(stream) != nullptr, "a new front is not found");
  if (is_added) fronts_.store(state->fronts(), std::memory_order_release);
}

}  // namespace vmm

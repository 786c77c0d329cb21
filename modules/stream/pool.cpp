// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>
#include <utility>
#include <vector>

module vmm.stream;

import vmm.backend;
import vmm.optimizer;
import vmm.physical;
import vmm.reservation;
import vmm.sync;
import vmm.timeline;
import vmm.va;

namespace vmm {

// ---- set-up --------------------------------------------------------------------------

status stream_pool::set_up() {
  if (!gate_.is_here()) return refuse_forked();
  if (is_ready()) return {};
  const growth_turn turn(*this);
  if (is_ready()) return {};
  if (parts_ == nullptr) {
    if (status made = make_parts(); !made) return made;
    may_alias_ = driver_->feature_set().alias != alias_level::none;
  }
  if (status mapped = map_first_pages(); !mapped) return mapped;
  gate_.open(gate_reason::not_set_up);
  return {};
}

status stream_pool::enter_closed_to_allocate() {
  if (!gate_.is_here()) return refuse_forked();
  board_.check_not_telling();
  check(!gate_.is_closed_by(gate_reason::goes_away), "a pool is used while it is destroyed");
  return set_up();
}

status stream_pool::enter_closed_to_free() {
  return is_ready() ? status{} : status{why_not_ready()};
}

status stream_pool::make_parts() {
  if (status rules = check_rules(options_.rules); !rules) return rules;
  physical_request like;
  like.where = options_.use_location ? options_.where : driver_->home();
  like.size_bytes = page_bytes_min;
  const result<granularity> unit = driver_->query_granularity(like);
  if (!unit) return unit.error();
  const std::uint64_t unit_bytes = unit->minimum_bytes;
  if (!std::has_single_bit(unit_bytes) || unit_bytes < granule_bytes)
    return refuse(errc::not_supported, "the pool needs a granularity that is a power of two");
  std::uint64_t page_bytes = options_.page_bytes;
  if (page_bytes == 0)
    page_bytes = round_up(std::max(unit->recommended_bytes, page_bytes_min), unit_bytes);
  page_bytes = round_up(std::min(page_bytes, segment_bytes_max), unit_bytes);
  std::uint64_t segment_bytes = std::min(segment_bytes_max, options_.reservation_bytes);
  segment_bytes = segment_bytes / page_bytes * page_bytes;
  if (segment_bytes == 0)
    return refuse(errc::bad_option, "the address space reserved at a time holds no page");
  physical_options memory;
  memory.like = like;
  memory.granularity_bytes = page_bytes;
  memory.fragment_ratio = 0;
  const std::uint64_t handle_bytes = std::min(options_.rules.handle_bytes, segment_bytes);
  memory.chunk_bytes = round_up(std::max(handle_bytes, page_bytes), page_bytes);
  memory.budget_bytes = options_.budget_bytes;
  constexpr std::uint64_t reservation_bytes_max = std::uint64_t{1} << 62;
  const reservation_options space{std::min(options_.reservation_bytes, reservation_bytes_max),
                                  unit_bytes};
  const pool_book::setup setup{options_.rules, unit_bytes, page_bytes, segment_bytes};
  const grant_list grants = grants_for(driver_->home(), like.where);
  try {
    auto book = std::make_unique<pool_book>(setup);
    parts_ = std::make_unique<parts>(driver_, memory, space, grants);
    book_.set(std::move(book));
    return {};
  } catch (const std::bad_alloc&) {
    return refuse(errc::out_of_host_memory, "no host memory is left for a pool");
  }
}

status stream_pool::map_first_pages() {
  if (options_.page_count == 0) return {};
  const std::uint64_t page_bytes = book_.with([](auto& book) { return book.page_bytes(); });
  const std::uint64_t segment_bytes = book_.with([](auto& book) { return book.segment_bytes(); });
  if (options_.page_count > segment_bytes / page_bytes)
    return refuse(errc::bad_option, "the pages to map first do not fit into the address space");
  const result<std::uint32_t> stream = enter_stream(options_.first_stream);
  if (!stream) return stream.error();
  const std::uint64_t size_bytes = options_.page_count * page_bytes;
  const book_request request{static_cast<std::uint32_t>(size_bytes / granule_bytes), *stream};
  growth_effort effort;
  effort.move = false;
  if (status planned = plan_growth(request, effort); !planned) return planned;
  piece_list fresh;
  std::size_t standing_count = 0;
  const status done = carry_out(plan_, fresh, standing_count);
  {
    const auto book = book_.lock();
    if (done) {
      book->commit_free(plan_);
    } else {
      book->abandon(plan_, standing_count);
    }
  }
  if (!done) parts_->memory.give_back(fresh, 0);
  return done;
}

// ---- allocate and free ---------------------------------------------------------------

result<address> stream_pool::allocate_watched(std::uint64_t size_bytes, stream_handle stream) {
  if (options_.watcher != nullptr) [[unlikely]] {
    board_.check_not_watching();
    const watched_turn turn(*this);
    const result<address> at = allocate_asking(size_bytes, stream);
    if (at) tell([&](block_watcher& who) { who.allocated({*at, size_bytes}); });
    return at;
  }
  return allocate_asking(size_bytes, stream);
}

// Asks first whether the stream is being captured.
result<address> stream_pool::allocate_asking(std::uint64_t size_bytes, stream_handle stream) {
  if (asks_about(stream)) {
    const result<capture_info> seen = capture_of(stream);
    if (!seen) [[unlikely]]
      return seen.error();
    if (seen->state != capture_state::none) [[unlikely]]
      return allocate_captured(size_bytes, stream, *seen);
  }
  return allocate_known(size_bytes, stream);
}

status stream_pool::free_watched(address at, stream_handle stream) {
  if (options_.watcher != nullptr) [[unlikely]]
    board_.check_not_watching();
  if (asks_about(stream)) {
    const result<capture_info> seen = capture_of(stream);
    if (!seen) [[unlikely]]
      return seen.error();
    if (seen->state != capture_state::none) [[unlikely]]
      return free_captured(at, stream, *seen);
  }
  if (options_.watcher != nullptr) [[unlikely]] {
    const watched_turn turn(*this);
    const bool is_held = book_.with([&](auto& book) { return book.is_held(at); });
    const status freed = free_known(at, stream);
    if (freed && !is_held) tell([&](block_watcher& who) { who.freed(at); });
    return freed;
  }
  return free_known(at, stream);
}

result<std::uint32_t> stream_pool::enter_stream(stream_handle stream) {
  const auto book = book_.lock();
  const std::uint32_t known = book->find_stream(stream);
  if (known != pool_book::no_stream) return known;
  return book->add_stream(stream);
}

result<address> stream_pool::allocate_slowly(std::uint64_t size_bytes, stream_handle stream) {
  const result<std::uint32_t> count = count_granules(size_bytes);
  if (!count) return count.error();
  const growth_turn turn(*this);
  tend_retired();
  const result<std::uint32_t> number = enter_stream(stream);
  if (!number) return number.error();
  const std::size_t surplus = surplus_zombies();
  if (options_.rules.unmap_early || surplus != 0)
    reap(std::clamp(surplus, reap_count, reap_count_max));
  const book_request request{*count, *number};
  const result<address> at = reuse(request);
  if (!at || *at) return at;
  return grow(request);
}

result<std::uint32_t> stream_pool::count_granules(std::uint64_t size_bytes) {
  if (size_bytes == 0) return refuse(errc::invalid_argument, "a block has at least one byte");
  const std::uint32_t count = book_.with([&](auto& book) { return book.granules_for(size_bytes); });
  if (count != 0) return count;
  return refuse(errc::out_of_addresses, "the request is larger than a stretch of addresses can be");
}

// ---- pins, and streams that go -------------------------------------------------------

status stream_pool::pin(address at) {
  if (!is_ready()) return why_not_ready();
  return book_.with([&](auto& book) { return book.pin(at); });
}

status stream_pool::unpin(address at) {
  if (!is_ready()) return why_not_ready();
  board_.check_not_watching();
  return book_.with([&](auto& book) { return book.unpin(at); });
}

status stream_pool::forget(stream_handle stream) {
  if (!is_ready()) return nothing_to_do();
  const growth_turn turn(*this);
  stream_point last;
  {
    const auto book = book_.lock();
    const std::uint32_t number = book->find_stream(stream);
    if (number == pool_book::no_stream) return {};
    last = book->leaving_point(number);
  }
  if (status asked = learn(last); !asked) return asked;
  {
    const auto book = book_.lock();
    if (!book->progress().all_marked(last.stream))
      return refuse(errc::in_use, "the stream is being captured, or another thread frees on it");
    if (status provided = book->provide_commons(); !provided) return provided;
    book->progress().retire(last.stream, parts_->time);
  }
  tend_retired();
  return {};
}

// Asks after a few streams that were forgotten, and gives everyone what those left that have
// finished. What the driver cannot tell now is asked again.
void stream_pool::tend_retired() {
  constexpr std::size_t looks_max = 8;
  std::size_t looks = book_.with([](auto& book) { return book.progress().retired_count(); });
  looks = std::min(looks, looks_max);
  for (; looks != 0; --looks) {
    stream_point last;
    {
      const auto book = book_.lock();
      const std::uint32_t stream = book->progress().next_retired();
      if (stream == pool_book::no_stream) return;
      last = book->progress().last_point(stream);
    }
    if (!learn(last)) continue;
    const auto book = book_.lock();
    if (book->progress().passed(last)) book->clear_retired(last.stream);
  }
}

// ---- captured graphs -----------------------------------------------------------------

result<capture_info> stream_pool::capture_of(stream_handle stream) {
  return driver_->query_capture(stream);
}

// Whether a mark would be a capture's. That is asked of streams that are never captured too: where
// one synchronises with a stream that is, the driver refuses the question, as it would the mark,
// and spoils nothing.
result<bool> stream_pool::is_captured(stream_handle stream) {
  if (!watches_capture_) return false;
  const result<capture_info> seen = capture_of(stream);
  if (!seen && seen.error().code == errc::not_permitted) return true;
  if (!seen) return seen.error();
  return seen->state != capture_state::none;
}

status stream_pool::refuse_capture(const capture_info& seen) const {
  if (seen.state == capture_state::invalidated)
    return refuse(errc::not_permitted, "the stream's capture was invalidated: end it first");
  if (options_.capture == capture_rule::private_memory) return {};
  return refuse(errc::not_permitted,
                "the stream is being captured into a graph: allocate and free before or after, or "
                "open the pool with capture_rule::private_memory");
}

// Memory that nothing unfinished uses, since a graph cannot be made to wait, and that nobody else
// gets until the graph is released.
result<address> stream_pool::allocate_captured(std::uint64_t size_bytes, stream_handle stream,
                                               const capture_info& seen) {
  if (status allowed = refuse_capture(seen); !allowed) return allowed.error();
  const result<std::uint32_t> count = count_granules(size_bytes);
  if (!count) return count.error();
  const growth_turn turn(*this);
  book_request request{*count};
  {
    const auto book = book_.lock();
    const result<std::uint32_t> record = book->enter_capture(seen.id, stream);
    if (!record) return record.error();
    request.stream = *record;
  }
  const result<address> at = take_for_capture(request);
  if (!at) return at;
  const auto book = book_.lock();
  if (status given = book->give_to_capture(*at, request.stream); !given) return given.error();
  return at;
}

result<address> stream_pool::take_for_capture(const book_request& request) {
  std::array<stream_point, foreign_count_max> others;
  std::size_t others_count = 0;
  {
    const auto book = book_.lock();
    const result<address> own = book->allocate_kept(request);
    if (!own || *own) return own;
    others_count = book->foreign_candidates(request, others);
  }
  const result<address> at = reuse_passed(request, std::span(others).first(others_count));
  if (!at || *at) return at;
  const growth_effort exactly{false, true, 0};
  result<address> grown = try_growth(request, exactly);
  if (grown || !is_shortage(grown.error().code)) return grown;
  reap(zombie_count());
  if (status given = dissolve_idle(request.count_granules * granule_bytes); !given)
    return given.error();
  (void)release_cached();
  return try_growth(request, exactly);
}

status stream_pool::free_captured(address at, stream_handle stream, const capture_info& seen) {
  if (status allowed = refuse_capture(seen); !allowed) return allowed;
  const auto book = book_.lock();
  const result<std::uint32_t> record = book->enter_capture(seen.id, stream);
  if (!record) return record.error();
  return book->free_in_capture(at, *record);
}

result<std::uint64_t> stream_pool::capture_number(stream_handle stream) {
  if (const status idle = nothing_to_do(); !idle) return idle.error();
  if (!driver_->feature_set().capture)
    return refuse(errc::not_supported, "this backend captures no streams");
  const result<capture_info> seen = driver_->query_capture(stream);
  if (!seen) return seen.error();
  if (seen->state == capture_state::active) return seen->id;
  return refuse(errc::invalid_argument, "the stream is not being captured");
}

status stream_pool::release_capture(std::uint64_t number, stream_handle stream) {
  if (!is_ready()) return nothing_to_do();
  const growth_turn turn(*this);
  const result<bool> captured = is_captured(stream);
  if (!captured) return captured.error();
  if (*captured)
    return refuse(errc::in_use, "a graph's memory is released on a stream that is being captured");
  if (!book_.with([&](auto& book) { return book.knows_capture(number); })) return {};
  const result<std::uint32_t> heir = enter_stream(stream);
  if (!heir) return heir.error();
  stream_point freed;
  for (bool done = false; !done;) {
    const auto book = book_.lock();
    freed = book->progress().advance(*heir);
    done = book->release_capture(number, freed);
  }
  (void)learn(freed);  // marks it: the next capture on this stream can make none
  return {};
}

// Whether a mark can be made for everything that was freed: a stream that is being captured takes
// none, and waiting for it would take others into its graph.
bool stream_pool::may_mark_all() {
  if (!watches_capture_) return true;
  for (std::uint32_t stream = 0;; ++stream) {
    stream_handle handle{};
    {
      const auto book = book_.lock();
      stream = book->progress().next_unmarked(stream);
      if (stream == pool_book::no_stream) return true;
      handle = book->progress().active_handle(stream);
    }
    const result<bool> captured = is_captured(handle);
    if (!captured || *captured) return false;
  }
}

// ---- what streams have finished ------------------------------------------------------

// Finds out whether a point has passed: asks the marks that are there, oldest first, and makes one
// where none covers the point.
status stream_pool::learn(const stream_point& point) {
  std::array<known_mark, stream_progress::marks_max> marks;
  std::size_t count = 0;
  point_answer answer;
  {
    const auto book = book_.lock();
    answer = book->progress().ask(point);
    if (answer.is == point_answer::kind::passed) return {};
    count = book->progress().marks_of(point.stream, marks);
  }
  if (answer.is == point_answer::kind::unmarked) {
    const result<ticket_ref> fresh = record(std::move(answer.order));
    if (!fresh) return is_capture_refusal(fresh.error()) ? status{} : status{fresh.error()};
    count = book_.with([&](auto& book) { return book.progress().marks_of(point.stream, marks); });
  }
  for (std::size_t i = 0; i < count; ++i) {
    const result<bool> finished = parts_->time.passed(marks[i].mark);
    if (!finished) return finished.error();
    if (!*finished) return {};
    book_.with([&](auto& book) { book.progress().note_passed(marks[i].at); });
  }
  return {};
}

// Records the event that a point wants. Under the lock of growth, so that the stream is not
// forgotten meanwhile.
result<ticket_ref> stream_pool::record(mark_order&& order) {
  result<bool> captured = is_captured(order.handle());
  if (!captured) return captured.error();
  if (*captured) return stream_captured;
  result<ticket_ref> fresh = parts_->time.mark(order.handle());
  if (!fresh) return fresh;
  captured = is_captured(order.handle());  // it may have begun meanwhile: then nobody asks the mark
  if (!captured) return captured.error();
  if (*captured) return stream_captured;
  const auto book = book_.lock();
  book->count_mark();
  book->progress().add_mark(std::move(order), *fresh);
  return fresh;
}

// A mark that covers the point: the oldest that does, or a new one; null where it has passed.
result<ticket_ref> stream_pool::mark_for(point_answer&& answer) {
  if (answer.is == point_answer::kind::unmarked) return record(std::move(answer.order));
  return std::move(answer.mark);
}

status stream_pool::order_behind(const stream_point& point, std::uint32_t stream) {
  const result<ticket_ref> mark =
      mark_for(book_.with([&](auto& book) { return book.progress().ask(point); }));
  if (!mark) return mark.error();
  stream_handle handle{};
  {
    const auto book = book_.lock();
    if (book->progress().passed(point)) return {};
    handle = book->progress().active_handle(stream);
    book->count_wait();
  }
  return parts_->time.order(handle, *mark);
}

// Whether the calling thread was made to wait.
result<bool> stream_pool::wait_for(const stream_point& point) {
  point_answer answer;
  {
    const auto book = book_.lock();
    answer = book->progress().ask(point);
    if (answer.is == point_answer::kind::passed) return false;
    book->count_blocked();
  }
  const result<ticket_ref> mark = mark_for(std::move(answer));
  if (!mark) return mark.error();
  if (status waited = parts_->time.wait(*mark); !waited) return waited.error();
  book_.with([&](auto& book) { book.progress().note_passed(point); });
  return true;
}

status stream_pool::synchronize() {
  if (!is_ready()) return nothing_to_do();
  std::vector<known_mark> marks;
  if (status marked = mark_all(marks); !marked) return marked;
  const undisturbed capture(*driver_, watches_capture_);
  for (const known_mark& each : marks) {
    if (status waited = parts_->time.wait(each.mark); !waited) return waited;
    book_.with([&](auto& book) { book.progress().note_passed(each.at); });
  }
  return {};
}

// Marks for what streams have not finished. Waiting for them needs no lock: others grow meanwhile,
// and streams may be forgotten.
status stream_pool::mark_all(std::vector<known_mark>& out) {
  const growth_turn turn(*this);
  const std::uint32_t count = book_.with([](auto& book) { return book.progress().count(); });
  if (status room = reserve_more(out, count); !room) return room;
  for (std::uint32_t stream = 0; stream < count; ++stream) {
    stream_point last;
    point_answer answer;
    {
      const auto book = book_.lock();
      last = book->progress().last_point(stream);
      answer = book->progress().ask(last);
      if (answer.is == point_answer::kind::passed) continue;
      book->count_blocked();
    }
    const result<ticket_ref> mark = mark_for(std::move(answer));
    if (!mark) return mark.error();
    out.push_back({last, *mark});
  }
  return {};
}

// ---- other streams' memory -----------------------------------------------------------

result<address> stream_pool::reuse(const book_request& request) {
  std::array<stream_point, foreign_count_max> others;
  std::size_t count = 0;
  {
    const auto book = book_.lock();
    const result<address> own = book->allocate(request);
    if (!own || *own) return own;
    count = book->foreign_candidates(request, others);
  }
  return reuse_passed(request, std::span(others).first(count));
}

// What of these streams' memory is found to be finished with.
result<address> stream_pool::reuse_passed(const book_request& request,
                                          std::span<const stream_point> others) {
  if (others.empty()) return address{};
  for (const stream_point& point : others) {
    if (status asked = learn(point); !asked) return asked.error();
  }
  const auto book = book_.lock();
  const result<foreign_claim> claim = book->claim_foreign(request, {.passed_only = true});
  if (!claim) return claim.error();
  if (claim->region == region_id::none) return address{};
  return book->settle_foreign(*claim);
}

result<address> stream_pool::reuse_behind_wait(const book_request& request,
                                               const foreign_search& how) {
  if (!may_wait_) return address{};
  const result<foreign_claim> claim =
      book_.with([&](auto& book) { return book.claim_foreign(request, how); });
  if (!claim) return claim.error();
  if (claim->region == region_id::none) return address{};
  const status ordered = order_behind(claim->last_use, request.stream);
  const auto book = book_.lock();
  if (ordered) return book->settle_foreign(*claim);
  book->return_foreign(*claim);
  return ordered.error();
}

// ---- growth --------------------------------------------------------------------------

result<address> stream_pool::grow(const book_request& request) {
  const std::uint64_t held_bytes = parts_->memory.statistics().held_bytes;
  const bool room = book_.with([&](auto& book) { return book.has_headroom(request, held_bytes); });
  may_wait_ = may_mark_all();
  const result<address> grown = grow_by_steps(request, room);
  if (grown || !may_wait_ || !is_capture_refusal(grown.error())) return grown;
  may_wait_ = false;  // a capture has begun meanwhile on a stream that was to be waited for
  return grow_by_steps(request, room);
}

// `room`: new memory is wanted rather than that of other streams.
result<address> stream_pool::grow_by_steps(const book_request& request, bool room) {
  if (!room) {
    const result<address> waited = reuse_behind_wait(request, {});
    if (!waited || *waited) return waited;
  }
  const result<address> grown = try_growth(request, {may_alias_ && may_wait_, false, 0});
  if (grown || !is_shortage(grown.error().code)) return grown;
  return grow_short(request, grown.error());
}

// Memory is short: everything that is free is used before the driver is asked again.
result<address> stream_pool::grow_short(const book_request& request, error cause) {
  const std::uint64_t size_bytes = request.count_granules * granule_bytes;
  shortage_report tried;
  if (status asked = ask_streams(); !asked) return asked.error();
  const result<address> own = book_.with([&](auto& book) {
    book.merge_passed(request.stream);
    return book.allocate(request);
  });
  if (!own || *own) return own;
  reap(zombie_count());
  if (!may_alias_) {
    if (status given = dissolve_idle(size_bytes); !given) return given.error();
  }
  result<address> grown = reuse_behind_wait(request, {.all_streams = true});
  if (!grown || *grown) return grown;
  grown = grow_from_all(request, tried);
  if (grown || !is_shortage(grown.error().code)) return grown;
  return grow_blocking(request, cause, tried);
}

// With everything that is whole, and then without what lies in the cache in sizes that do not fit.
result<address> stream_pool::grow_from_all(const book_request& request, shortage_report& tried) {
  const growth_effort effort{may_alias_ && may_wait_, true, 0};
  const std::uint64_t held_bytes = parts_->memory.statistics().held_bytes;
  const result<address> grown = try_growth(request, effort);
  if (grown || !is_shortage(grown.error().code)) return grown;
  if (release_cached().released_count != 0) tried.trimmed = true;
  if (parts_->memory.statistics().held_bytes >= held_bytes) return grown;
  return try_growth(request, effort);
}

// What another thread is just releasing is gone when this returns: it is not missed.
trim_report stream_pool::release_cached() {
  const sync::lock_guard<release_lock> releasing(release_lock_);
  return parts_->memory.trim(0);
}

// The last step: waits for one stream after the other, and looks again after each.
result<address> stream_pool::grow_blocking(const book_request& request, error cause,
                                           shortage_report& tried) {
  const std::uint32_t streams = book_.with([](auto& book) { return book.progress().count(); });
  const std::uint32_t count = options_.wait_when_short ? streams : 0;
  for (std::uint32_t step = 0; step < count; ++step) {
    const std::uint32_t stream = (request.stream + step) % count;
    const stream_point last =
        book_.with([&](auto& book) { return book.progress().last_point(stream); });
    const result<bool> waited = wait_for(last);
    if (!waited && is_capture_refusal(waited.error())) continue;
    if (!waited) return waited.error();
    tried.blocked = tried.blocked || *waited;
    reap(zombie_count());
    if (!may_alias_) {
      if (status given = dissolve_idle(request.count_granules * granule_bytes); !given)
        return given.error();
    }
    const result<address> own = book_.with([&](auto& book) {
      book.merge_passed(request.stream);
      return book.allocate(request);
    });
    if (!own || *own) return own;
    const result<address> grown = grow_from_all(request, tried);
    if (grown || !is_shortage(grown.error().code)) return grown;
    cause = grown.error();
  }
  tried.failure = cause.code;
  tried.held_bytes = parts_->memory.statistics().held_bytes;
  tried.budget_bytes = options_.budget_bytes;
  book_.with([&](auto& book) { book.write_shortage(request, tried); });
  return cause;
}

result<address> stream_pool::try_growth(const book_request& request, const growth_effort& effort) {
  if (status planned = plan_growth(request, effort); !planned) return planned.error();
  piece_list fresh;
  std::size_t standing_count = 0;
  const status done = carry_out(plan_, fresh, standing_count);
  {
    const auto book = book_.lock();
    if (done) return book->commit(plan_);
    book->abandon(plan_, standing_count);
  }
  parts_->memory.give_back(fresh, 0);
  return done.error();
}

// Claims what the growth takes. Where no hole is large enough, zombies go first, then more
// addresses are reserved.
status stream_pool::plan_growth(const book_request& request, growth_effort effort) {
  effort.held_bytes = parts_->memory.statistics().held_bytes;
  constexpr int tries_max = 3;
  status planned;
  for (int tries = 0; tries < tries_max; ++tries) {
    std::uint64_t zombies = 0;
    {
      const auto book = book_.lock();
      planned = book->plan(request, effort, plan_);
      zombies = book->zombie_count();
    }
    if (planned || planned.error().code != errc::out_of_addresses) return planned;
    if (tries == 0 && zombies != 0) {
      reap(zombies);
      continue;
    }
    const std::uint64_t needed_bytes = request.count_granules * granule_bytes;
    if (status added = add_segment(needed_bytes); !added) return added;
  }
  return planned;
}

status stream_pool::add_segment(std::uint64_t needed_bytes) {
  const std::uint64_t page_bytes = book_.with([](auto& book) { return book.page_bytes(); });
  std::uint64_t size_bytes = book_.with([](auto& book) { return book.segment_bytes(); });
  const std::uint64_t least_bytes =
      std::min(round_up(needed_bytes, page_bytes) + page_bytes * 64, size_bytes);
  for (;;) {
    const result<extent> space = parts_->space.allocate({size_bytes, 0});
    if (space) {
      const status added = book_.with([&](auto& book) { return book.add_segment(*space); });
      if (!added) parts_->space.free(*space);
      if (added) tell([&](block_watcher& who) { who.reserved(space->range); });
      return added;
    }
    const errc code = space.error().code;
    const bool smaller_may_do = code == errc::out_of_addresses || code == errc::out_of_memory;
    if (!smaller_may_do || size_bytes == least_bytes) return space.error();
    const std::uint64_t half = size_bytes / 2 / page_bytes * page_bytes;
    size_bytes = std::max(half, least_bytes);
  }
}

// The driver's part of a plan. On failure `standing_count` pieces of it are still mapped. Nothing
// that is mapped has a last use of its own: what unfinished work may use is waited for here.
status stream_pool::carry_out(growth_plan& plan, piece_list& fresh, std::size_t& standing_count) {
  if (plan.create_granules != 0) {
    const std::uint64_t size_bytes = plan.create_granules * granule_bytes;
    const std::uint64_t new_bytes_max = plan.handle_granules * granule_bytes;
    if (status made = parts_->memory.acquire(size_bytes, fresh, new_bytes_max); !made) return made;
  }
  for (const stream_point& point : plan.waits) {
    if (status ordered = order_behind(point, plan.request.stream); !ordered) return ordered;
  }
  const status prepared = book_.with([&](auto& book) { return book.prepare(plan, fresh); });
  if (!prepared) return prepared;
  announce_moves(plan);
  const remap_outcome mapped =
      parts_->remaps.map({plan.at, std::span<piece* const>(plan.pieces), {}});
  standing_count = mapped.result ? 0 : mapped.mapped_count;
  if (!mapped.result) return mapped.result;
  tell([&](block_watcher& who) {
    for (const window_place& place : plan.places)
      who.mapped({address_of(*place.where), place.of->memory->size_bytes});
  });
  return mapped.result;
}

address stream_pool::address_of(const view& v) noexcept {
  return book_.with([&](auto& book) { return book.address_of(v); });
}

std::uint64_t stream_pool::zombie_count() noexcept {
  return book_.with([](auto& book) { return book.zombie_count(); });
}

// ---- notices -------------------------------------------------------------------------

// The memory that a plan moves leaves these addresses. What is claimed stays where it is meanwhile.
void stream_pool::announce_moves(const growth_plan& plan) {
  if (plan.moved.empty()) return;
  const std::uint64_t epoch = remap_epoch_.fetch_add(1, std::memory_order_acq_rel) + 1;
  if (board_.nobody_listens()) return;
  for (const slab* moved : plan.moved)
    call_back({epoch, remap_kind::moved, {address_of(*moved->current), moved->memory->size_bytes}});
}

void stream_pool::announce_unmap(view& gone, remap_kind kind) {
  if (std::exchange(gone.is_announced, true)) return;
  const std::uint64_t epoch = remap_epoch_.fetch_add(1, std::memory_order_acq_rel) + 1;
  if (board_.nobody_listens()) return;
  call_back({epoch, kind, {address_of(gone), gone.memory->size_bytes}});
}

// One thread at a time: the one that has the lock of growth, or the destructor's.
void stream_pool::call_back(const remap_notice& notice) {
  gate_.close(gate_reason::callback_runs);
  board_.tell(notice);
  gate_.open(gate_reason::callback_runs);
}

// ---- giving back ---------------------------------------------------------------------

status stream_pool::unmap_view(view& gone, remap_kind kind) {
  announce_unmap(gone, kind);
  const address at = address_of(gone);
  piece* const part = gone.memory;
  const status unmapped = parts_->remaps.unmap({at, std::span<piece* const>(&part, 1), {}}).result;
  if (unmapped) tell([&](block_watcher& who) { who.unmapped({at, part->size_bytes}); });
  return unmapped;
}

// Unmaps zombies whose work has finished, looking at `count_max` of them, oldest first. What the
// driver refuses stays in the queue.
void stream_pool::reap(std::size_t count_max) {
  for (std::size_t looked_at = 0; looked_at < count_max; ++looked_at) {
    view* oldest = nullptr;
    stream_point last_use;
    {
      const auto book = book_.lock();
      oldest = book->oldest_zombie();
      if (oldest == nullptr) return;
      last_use = oldest->last_use;
    }
    bool unmapped = learn(last_use).has_value();
    if (unmapped)
      unmapped = book_.with([&](auto& book) { return book.progress().passed(last_use); });
    if (unmapped) unmapped = unmap_view(*oldest, remap_kind::unmapped).has_value();
    const auto book = book_.lock();
    if (unmapped) {
      book->zombie_unmapped(*oldest);
    } else {
      book->zombie_stays(*oldest);
    }
  }
}

std::size_t stream_pool::surplus_zombies() {
  return book_.with([](auto& book) { return book.surplus_zombies(); });
}

// Claims whole idle slabs, looking at a few at a time: allocate and free go on in between.
status stream_pool::claim_idle(std::uint64_t size_bytes, std::vector<slab*>& claimed) {
  constexpr std::size_t looks_max = 64;
  book_.with([&](auto& book) { book.begin_walk(size_bytes); });
  result<bool> more = true;
  while (more && *more)
    more = book_.with([&](auto& book) { return book.claim_idle(looks_max, claimed); });
  return more ? status{} : more.error();
}

// Takes whole idle slabs apart: their memory goes to the cache, their addresses become holes.
status stream_pool::dissolve_idle(std::uint64_t size_bytes) {
  std::vector<slab*> claimed;
  status outcome = claim_idle(size_bytes, claimed);
  for (slab* gone : claimed) {
    const status dissolved = outcome ? dissolve(*gone) : outcome;
    if (dissolved) continue;
    if (outcome) outcome = dissolved;
    book_.with([&](auto& book) { book.slab_stays(*gone); });
  }
  return outcome;
}

status stream_pool::dissolve(slab& gone) {
  while (gone.stale_views != nullptr) {
    if (status unmapped = unmap_view(*gone.stale_views, remap_kind::unmapped); !unmapped)
      return unmapped;
    book_.with([&](auto& book) { book.zombie_unmapped(*gone.stale_views); });
  }
  if (status unmapped = unmap_view(*gone.current, remap_kind::released); !unmapped) return unmapped;
  piece* const memory = book_.with([&](auto& book) { return &book.slab_unmapped(gone); });
  parts_->memory.drop_holder(*memory, ticket_ref{});
  return {};
}

// Asks what every stream has finished.
status stream_pool::ask_streams() {
  const std::uint32_t streams = book_.with([](auto& book) { return book.progress().count(); });
  status asked;
  for (std::uint32_t stream = 0; stream < streams && asked; ++stream)
    asked = learn(book_.with([&](auto& book) { return book.progress().last_point(stream); }));
  return asked;
}

// Unmaps all zombies whose work has finished, some at a time: others grow in between.
void stream_pool::reap_in_steps() {
  constexpr std::uint64_t step = 64;
  for (std::uint64_t left = zombie_count(); left != 0; left -= std::min(left, step)) {
    const growth_turn turn(*this);
    reap(std::min(left, step));
  }
}

// Unmaps some of what is free beyond the limit. False when there is no more to unmap.
result<bool> stream_pool::trim_step(std::uint64_t limit_bytes) {
  const auto numbers = [this] { return book_.with([](auto& book) { return book.statistics(); }); };
  const growth_turn turn(*this);
  const pool_statistics before = numbers();
  if (before.reusable_bytes <= limit_bytes) return false;
  const std::uint64_t step_bytes = std::min(before.reusable_bytes - limit_bytes, trim_step_bytes);
  if (status dissolved = dissolve_idle(step_bytes); !dissolved) return dissolved.error();
  return numbers().mapped_bytes < before.mapped_bytes;
}

// In steps, and what a step unmapped is released outside the lock: a thread that has to grow waits
// for one step, not for all that is given back.
trim_report stream_pool::trim(std::uint64_t limit_bytes) {
  trim_report report;
  if (const status idle = nothing_to_do(); !idle) report.failure = idle.error();
  if (!is_ready()) return report;
  result<bool> unmapped = true;
  {
    const growth_turn turn(*this);
    if (status asked = ask_streams(); !asked) unmapped = asked.error();
    tend_retired();
  }
  reap_in_steps();
  const undisturbed capture(*driver_, watches_capture_);  // releasing takes no turn
  bool goes_on = true;
  while (goes_on) {
    if (unmapped) unmapped = trim_step(limit_bytes);
    goes_on = unmapped && *unmapped;
    const trim_report step = release_cached();
    report.released_count += step.released_count;
    report.released_bytes += step.released_bytes;
    report.still_mapped_bytes = step.still_mapped_bytes;
    report.failure = step.failure;
    if (step.failure.code != errc::none) return report;
  }
  if (!unmapped) report.failure = unmapped.error();
  return report;
}

stream_pool::~stream_pool() {
  status closed = nothing_to_do();
  if (closed && parts_ != nullptr) {
    gate_.close(gate_reason::goes_away);
    report_live();
    closed = close();
  }
  if (closed) return;
  if (!gate_.is_here()) {  // or forked while it closed
    leave_behind(book_.release());
    leave_behind(parts_.release());
    leave_parts_behind(plan_);
    return;
  }
  std::fprintf(stderr, "vmm: a stream pool could not give everything back: %s, %s\n",
               name_of(closed.error().code), closed.error().detail);
  (void)book_.release();  // the driver still has it: taking the records away would only hide that
  (void)parts_.release();
}

void stream_pool::report_live() noexcept {
  if (options_.at_end.hook == nullptr) return;
  const pool_statistics now = book_.with([](auto& book) { return book.statistics(); });
  if (now.live_count == 0) return;
  options_.at_end.hook(options_.at_end.context, {"stream pool", now.live_count, now.live_bytes});
}

// Waits for all work of every stream. One that the driver no longer knows is taken as finished:
// whoever destroyed it has seen to that.
status stream_pool::finish_streams() {
  const std::uint32_t streams = book_.with([](auto& book) { return book.progress().count(); });
  for (std::uint32_t stream = 0; stream < streams; ++stream) {
    status waited;
    for (int attempt = 0; attempt < close_attempts; ++attempt) {
      waited = finish_stream(stream);
      if (waited) break;
    }
    if (!waited && waited.error().code != errc::invalid_argument) return waited;
  }
  return {};
}

status stream_pool::finish_stream(std::uint32_t stream) {
  stream_handle handle{};
  stream_point last;
  bool is_active = false;
  {
    const auto book = book_.lock();
    is_active = book->progress().phase_of(stream) == stream_phase::active;
    if (is_active) handle = book->progress().active_handle(stream);
    last = book->progress().last_point(stream);
  }
  if (!is_active) {
    const result<bool> waited = wait_for(last);
    return waited ? status{} : status{waited.error()};
  }
  const result<bool> captured = is_captured(handle);
  if (!captured) return captured.error();
  if (*captured) return stream_captured;
  const result<ticket_ref> mark = parts_->time.mark(handle);
  return mark ? parts_->time.wait(*mark) : status{mark.error()};
}

// No other thread is here, so no turn is taken; the remap callbacks that run may free and pin.
status stream_pool::close() {
  const undisturbed capture(*driver_, watches_capture_);
  if (status finished = finish_streams(); !finished) return finished;
  book_.with([](auto& book) { book.surrender(); });
  status outcome;
  for (int attempt = 0; attempt < close_attempts; ++attempt) {
    reap(zombie_count());
    outcome = dissolve_idle(book_.with([](auto& book) { return book.statistics(); }).mapped_bytes);
    const trim_report drained = parts_->memory.trim(0);
    if (outcome && drained.failure.code != errc::none) outcome = drained.failure;
    if (outcome && zombie_count() == 0) break;
  }
  if (!outcome) return outcome;
  if (zombie_count() != 0) return refuse(errc::in_use, "a mapping could not be undone");
  const std::size_t count = book_.with([](auto& book) { return book.segment_count(); });
  for (std::size_t i = 0; i < count; ++i) {
    const extent gone = book_.with([&](auto& book) { return book.segment_extent(i); });
    tell([&](block_watcher& who) { who.unreserved(gone.range); });
    parts_->space.free(gone);
  }
  for (int attempt = 0; attempt < close_attempts; ++attempt) {
    outcome = parts_->space.close();
    if (outcome) break;
  }
  return outcome;
}

// ---- looking -------------------------------------------------------------------------

shortage_report stream_pool::last_shortage() {
  if (!is_ready()) return {};
  return book_.with([](auto& book) { return book.last_shortage(); });
}

pool_statistics stream_pool::statistics() {
  if (!is_ready()) return {};
  return book_.with([](auto& book) { return book.statistics(); });
}

result<std::vector<pool_region>> stream_pool::regions() {
  std::vector<pool_region> out;
  if (const status idle = nothing_to_do(); !idle) return idle.error();
  if (!is_ready()) return out;
  const status listed = book_.with([&](auto& book) { return book.list_regions(out); });
  if (!listed) return listed.error();
  return out;
}

status stream_pool::validate() {
  if (!is_ready()) return nothing_to_do();
  const growth_turn turn(*this);
  const auto book = book_.lock();
  if (status valid = book->validate(); !valid) return valid;
  const std::uint64_t held_bytes = parts_->memory.statistics().held_bytes;
  const std::uint64_t cached_bytes = parts_->memory.statistics().cached_bytes;
  if (held_bytes - cached_bytes < book->statistics().mapped_bytes)
    return refuse(errc::internal, "the pool maps more memory than it holds");
  if (!parts_->memory.validate() || !parts_->space.validate())
    return refuse(errc::internal, "an account of memory or of addresses is broken");
  return {};
}

}  // namespace vmm

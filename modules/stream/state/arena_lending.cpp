// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module vmm.stream;

import vmm.backend;
import vmm.base;
import vmm.std;
import vmm.timeline;
import vmm.va;

namespace vmm {

namespace {

constexpr error no_lent_block =
    refuse(errc::not_allocated,
           "the address is not the start of a live block: it was freed before, or never allocated");
constexpr error inside_lent_block = refuse(
    errc::invalid_argument, "the address lies inside a block: pass the one that allocate returned");

}  // namespace

// ---- lending -------------------------------------------------------------------------

address arena_lending::refill_and_take(stream_handle stream, std::uint64_t size_bytes) noexcept {
  arena_table* const arenas = state_.arenas().table();
  check(arenas != nullptr, "a pool without arenas refills one");
  const std::uint32_t count = state_.granules_for(size_bytes);
  const std::uint32_t number = arenas->number_of(stream);
  if (number == arena_table::none || count == 0 || size_bytes > request_bytes_max) return {};
  if (!may_refill()) return {};
  segment& in = state_.segments().at(0);
  arena& to = arenas->at(number);
  arena_lease& lease = arenas->lease_of(number);
  if (in.find_free({1, lease.record}) == region_id::none) return {};
  end_count(lease);
  // All free memory of the stream, the smallest first: an arena with large regions alone would
  // split those, and leave the small ones unused.
  for (std::uint32_t step = 0; step < steps_max; ++step) {
    const std::uint32_t least = step + 1 < steps_max ? 1 : count;
    const region_id found = in.find_free({least, lease.record});
    if (found == region_id::none || !in.provide(1)) break;
    const granule_range lent = in.range(found);
    if (!to.lend(lent)) break;
    in.lend(found, lent.count, number, state_.records());
    lease.lent_granules += lent.count;
  }
  const address at = to.take(stream, size_bytes);  // none where the host has no memory
  debug_check([&] { return !at || in.where().range.contains(at); },
              "an arena allocates memory outside of its refills");
  return at;
}

// Of a closed arena: its live blocks stay until they are freed by the pool.
void arena_lending::count(std::uint32_t number) noexcept {
  arena_lease& lease = state_.arenas().table()->lease_of(number);
  const std::uint64_t live = state_.arenas().table()->at(number).numbers().live_granules;
  check(live <= lease.lent_granules, "I2: an arena has more live granules than its refills");
  const std::uint64_t before = std::exchange(lease.counted_granules, live);
  if (live > before) state_.records().count_live(static_cast<std::uint32_t>(live - before));
  if (live < before) state_.records().subtract_live(static_cast<std::uint32_t>(before - live));
}

// Of an arena that opens: it counts its live blocks itself.
void arena_lending::end_count(arena_lease& lease) noexcept {
  check(lease.counted_granules <= lease.lent_granules, "more is counted than was refilled");
  state_.records().subtract_live(
      static_cast<std::uint32_t>(std::exchange(lease.counted_granules, 0)));
}

// ---- taking back ---------------------------------------------------------------------

// Frees of other threads that hold no lock are over when close() returns, or are the pool's.
bool arena_lending::flush_some() noexcept {
  arena_table* const arenas = state_.arenas().table();
  if (arenas == nullptr) return false;
  std::uint32_t steps = steps_max;
  bool is_more = false;
  arenas->for_each([&](std::uint32_t number, arena& from) {
    from.close();
    if (!is_more) is_more = flush(number, steps);
  });
  check(steps <= steps_max, "more steps were taken than there were");
  return is_more;
}

// Whether there is more, for which no step is left.
bool arena_lending::flush(std::uint32_t number, std::uint32_t& steps) noexcept {
  arena& from = state_.arenas().table()->at(number);
  arena_lease& lease = state_.arenas().table()->lease_of(number);
  segment& in = state_.segments().at(0);
  check(state_.streams().phase_of(lease.record) == stream_phase::active,
        "an arena's stream is not in use any more");
  count(number);
  stream_point now{lease.record, 0};
  if (from.end_frees())
    now = state_.progress().advance(lease.record);  // for requests that wait
                                                    // for it
  for (;;) {
    if (!in.provide(2)) return false;
    if (steps == 0) return true;
    const granule_range free = from.take_free();
    if (free.count == 0) return false;
    --steps;
    if (now.epoch == 0) now = state_.progress().advance(lease.record);
    check(lease.lent_granules - lease.counted_granules >= free.count,
          "I2: an arena returns more than its refills");
    lease.lent_granules -= free.count;
    in.free_lent(in.cut_lent(free), now, state_.records(), state_.streams());
  }
}

// ---- from arena to arena -------------------------------------------------------------

// The richest of a few arenas of other streams that serve the request.
std::uint32_t arena_lending::richest_for(const stream_request& request) noexcept {
  check(request.count_granules != 0, "no granule is looked for");
  arena_table& arenas = *state_.arenas().table();
  std::uint32_t richest = arena_table::none;
  std::uint64_t most = 0;
  std::uint32_t looks_left = looks_max;
  arenas.for_some([&](std::uint32_t number, const arena& of) {
    if (arenas.lease_of(number).record == request.stream) return true;
    const std::uint64_t idle = of.idle_granules(request.count_granules);
    if (idle == 0) return true;
    if (idle > most) richest = number;
    most = std::max(most, idle);
    return --looks_left != 0;
  });
  check((richest == arena_table::none) == (most == 0), "an empty arena is the richest");
  return richest;
}

arena_transfer arena_lending::begin_transfer(const stream_request& request) noexcept {
  if (state_.arenas().table() == nullptr || !may_refill()) return {};
  const std::uint32_t number = richest_for(request);
  if (number == arena_table::none) return {};
  arena& from = state_.arenas().table()->at(number);
  const std::uint32_t record = state_.arenas().table()->lease_of(number).record;
  check(record != request.stream, "a stream reuses its own memory as another stream's");
  const granule_range what = from.begin_leaving(
      request.count_granules, std::max(transfer_granules, request.count_granules));
  if (what.count == 0) return {};
  state_.arenas().count_transfer();
  return {number, what, state_.progress().advance(record)};
}

bool arena_lending::end_transfer(const arena_transfer& moving, const stream_request& request,
                                 bool passed) noexcept {
  check(state_.arenas().table() != nullptr, "a transfer in a pool without arenas");
  check(moving.what.count != 0, "a transfer of 0 granules");
  arena_table& arenas = *state_.arenas().table();
  segment& in = state_.segments().at(0);
  const std::uint32_t number = arenas.number_of(state_.progress().shown_handle(request.stream));
  check(number != moving.from, "a transfer from an arena to itself");
  arena& from = arenas.at(moving.from);
  const bool lends = number != arena_table::none && passed;
  const bool arrives = passed && in.provide(2) && (!lends || arenas.at(number).lend(moving.what));
  from.end_leaving(moving.what, arrives);
  if (!arrives) return false;
  arena_lease& lease = arenas.lease_of(moving.from);
  check(lease.lent_granules - lease.counted_granules >= moving.what.count,
        "more leaves an arena than its refills");
  lease.lent_granules -= moving.what.count;
  const region_id region = in.cut_lent(moving.what);
  if (!lends) {
    in.free_lent(region, {request.stream, 0}, state_.records(), state_.streams());
    return true;
  }
  in.pass_lent(region, number);
  arenas.lease_of(number).lent_granules += moving.what.count;
  end_count(arenas.lease_of(number));
  return true;
}

// ---- recalling -----------------------------------------------------------------------

status arena_lending::recall(segment& in, std::uint64_t offset_bytes) noexcept {
  const std::uint32_t offset = granules_in(offset_bytes);
  if (state_.arenas().table() == nullptr || offset >= in.regions().count_granules()) return {};
  const region_id around = in.regions().find(offset);
  check(around != region_id::none, "I1: a granule lies in no region");
  if (!in.is_lent(around)) return {};
  check(&in == &state_.segments().at(0), "a refill comes from another segment");
  const std::uint32_t number = in.lent_to(around);
  if (offset_bytes % granule_bytes == 0) return recall_block(in, number, offset);
  const arena_place place = state_.arenas().table()->at(number).look(offset);
  return place == arena_place::inside ? inside_lent_block : no_lent_block;
}

status arena_lending::recall_block(segment& in, std::uint32_t number,
                                   std::uint32_t offset) noexcept {
  if (!in.provide(2) || !in.provide_entry()) return no_record_memory;
  arena_place place = arena_place::nothing;
  const granule_range block = state_.arenas().table()->at(number).take_block(offset, place);
  check((block.count != 0) == (place == arena_place::begins), "a found block is missing");
  if (place == arena_place::inside) return inside_lent_block;
  if (place == arena_place::nothing) return no_lent_block;
  arena_lease& lease = state_.arenas().table()->lease_of(number);
  check(lease.lent_granules >= block.count, "I2: an arena returns more than its refills");
  lease.lent_granules -= block.count;
  if (lease.counted_granules != 0) count(number);
  state_.records().count_live(block.count);
  in.make_lent_live(in.cut_lent(block));
  return {};
}

bool arena_lending::keep(const segment& in, std::uint64_t offset_bytes,
                         std::uint32_t stream) noexcept {
  check(offset_bytes % granule_bytes == 0, "a block is kept that begins inside a granule");
  const region_id around = in.regions().find(granules_in(offset_bytes));
  if (!in.is_lent(around)) return false;
  const std::uint32_t number = in.lent_to(around);
  if (state_.arenas().table()->lease_of(number).record != stream) return false;
  const bool is_kept =
      state_.arenas().table()->at(number).keep(in.where().range.base + offset_bytes);
  if (state_.arenas().table()->lease_of(number).counted_granules != 0) count(number);
  return is_kept;
}

status arena_lending::recall_arena(std::uint32_t number) noexcept {
  segment& in = state_.segments().at(0);
  arena& from = state_.arenas().table()->at(number);
  check(state_.arenas().table()->lease_of(number).record != arena_table::none,
        "an arena has no stream");
  from.close();
  std::vector<std::uint32_t> blocks;
  if (status listed = from.list_blocks(blocks); !listed) return listed;
  for (const std::uint32_t offset : blocks) {
    if (status recalled = recall_block(in, number, offset); !recalled) return recalled;
  }
  if (!in.provide(2)) return no_record_memory;
  std::uint32_t steps = std::numeric_limits<std::uint32_t>::max();
  (void)flush(number, steps);
  if (state_.arenas().table()->lease_of(number).lent_granules != 0) return no_record_memory;
  check(from.numbers().live_count == 0, "a block stays in a flushed arena");
  return {};
}

status arena_lending::remove(stream_handle stream) noexcept {
  if (state_.arenas().table() == nullptr) return {};
  const std::uint32_t number = state_.arenas().table()->number_of(stream);
  if (number == arena_table::none) return {};
  check(state_.progress().shown_handle(state_.arenas().table()->lease_of(number).record) == stream,
        "an arena of another stream is removed");
  if (status recalled = recall_arena(number); !recalled) return recalled;
  state_.arenas().table()->remove(stream);
  check(state_.arenas().table()->find(stream) == nullptr, "a removed arena is found");
  return {};
}

// ---- validation ----------------------------------------------------------------------

const char* arena_lending::broken_invariant(const pool_state& state) noexcept {
  const arena_table* const arenas = state.arenas().table();
  if (arenas == nullptr) return nullptr;
  const char* broken = nullptr;
  const segment& in = state.segments().at(0);
  std::array<std::uint64_t, arena_table::arenas_max> lent{};
  const region_map& regions = in.regions();
  for (region_id r = regions.first(); r != region_id::none; r = regions.after(r)) {
    if (in.is_lent(r)) lent[in.lent_to(r)] += in.range(r).count;
  }
  arenas->for_each([&](std::uint32_t number, const arena& of) {
    const arena_lease& lease = arenas->lease_of(number);
    check(lease.record < state.streams().count(), "an arena has no stream");
    if (broken == nullptr) broken = of.broken_invariant();
    std::uint64_t held = 0;
    of.for_each_lent([&](granule_range where) {
      held += where.count;
      const region_id around = regions.find(where.offset);
      const bool is_there = in.is_lent(around) && in.lent_to(around) == number &&
                            in.range(around).end() >= where.end();
      if (!is_there) broken = "an arena has memory outside of its refills";
    });
    if (held != lease.lent_granules || lent[number] != held)
      broken = "the count of an arena's refills is wrong";
    if (lease.counted_granules != 0 && lease.counted_granules != of.numbers().live_granules)
      broken = "the count of live granules of a closed arena is wrong";
    lent[number] = 0;
  });
  const bool all_known = std::all_of(lent.begin(), lent.end(), [](auto each) { return each == 0; });
  return broken != nullptr || all_known ? broken : "a refill names a missing arena";
}

// ---- pauses --------------------------------------------------------------------------

arena_flush::arena_flush(state_cell& state, arena_memory what) noexcept : state_(state) {
  for (bool is_more = true; is_more;) {
    const table_lock held(state_);
    if (held->arenas().table() == nullptr) return;
    if (!is_pausing_) is_pausing_ = held->arenas().pause();
    if (what == arena_memory::stays) return;
    const std::uint64_t lent_before = held->arenas().lent_granules();
    check(lent_before <= held->records().handle_granules(),
          "pool_state I6: arenas have more memory than the pool");
    is_more = arena_lending(*held).flush_some();
    check(held->arenas().lent_granules() <= lent_before, "an arena has more after a flush");
    flushed_any_ = flushed_any_ || held->arenas().lent_granules() != lent_before;
  }
}

arena_flush::~arena_flush() {
  if (!is_pausing_) return;
  const table_lock state(state_);
  state->arenas().end_pause();
  check(state->arenas().table() != nullptr, "I3: the arenas of a pool vanished while it grew");
}

}  // namespace vmm

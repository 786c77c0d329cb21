// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// What a pool writes into its history, but for blocks' events of the fast path; and what it adds
// when the history is taken. [N1]
module vmm.stream;

import vmm.backend;
import vmm.history;
import vmm.physical;
import vmm.std;
import vmm.support;
import vmm.sync;
import vmm.timeline;
import vmm.top;
import vmm.va;

namespace vmm {

namespace {

[[nodiscard]] history_region_kind kind_of_region(pool_region_kind kind) noexcept {
  switch (kind) {
    case pool_region_kind::live: return history_region_kind::live;
    case pool_region_kind::free: return history_region_kind::free;
    case pool_region_kind::hole: return history_region_kind::hole;
    case pool_region_kind::zombie: return history_region_kind::stale;
    case pool_region_kind::busy: break;
  }
  return history_region_kind::busy;
}

void add_facts(const pool_statistics& now, std::vector<history_fact>& out) {
  const auto add = [&out](const char* name, std::uint64_t value) {
    out.push_back({name, std::to_string(value)});
  };
  add("reserved_bytes", now.reserved_bytes);
  add("mapped_bytes", now.mapped_bytes);
  add("live_bytes", now.live_bytes);
  add("peak_live_bytes", now.peak_live_bytes);
  add("peak_mapped_bytes", now.peak_mapped_bytes);
  add("reusable_bytes", now.reusable_bytes);
  add("captured_bytes", now.captured_bytes);
  add("hole_bytes", now.hole_bytes);
  add("stale_bytes", now.zombie_bytes);
  add("live_count", now.live_count);
  add("stale_count", now.zombie_count);
  add("moved_count", now.moved_count);
  add("moved_bytes", now.moved_bytes);
  add("grown_count", now.grown_count);
  add("wait_count", now.wait_count);
}

constexpr error no_room = refuse(errc::out_of_host_memory, "no host memory is left for a history");

}  // namespace

// ---- writing -------------------------------------------------------------------------

void pool_state::note_block_now(history_kind kind, const segment& in, region_id block,
                                std::uint32_t stream) noexcept {
  check(recorder_ != nullptr, "an event is written to no history");
  const granule_range where = in.range(block);
  check(where.count != 0, "an event is of an empty block");
  const stream_handle handle =
      stream == no_stream ? stream_handle::default_stream : progress().shown_handle(stream);
  recorder_->note_block(kind, {in.address_of(where.offset), where.count * granule_bytes}, 0,
                        handle);
}

void stream_pool::note(const history_note& what) noexcept {
  if (!recorder_) return;
  check(what.kind != history_kind::none, "an event of no kind is noted");
  const table_lock state(state_);
  if (recorder_) recorder_->note(what);
}

void stream_pool::record(const history_note& what) noexcept {
  check(what.kind != history_kind::none, "an event of no kind is recorded");
  if (recorder_ && is_ready()) note(what);  // before, the ring may be another's
}

// After the driver has mapped the plan's target, and before it is committed: what moves is still
// known to be where it was. What a growth that failed leaves mapped is stale from the beginning:
// its memory is where it was, and a reader who was told of it would count it twice.
void stream_pool::note_mapped(const growth_plan& plan, const growth_outcome& outcome) noexcept {
  if (!recorder_) return;
  const std::size_t count = outcome.done ? plan.slots.size() : 0;
  check(!outcome.done || outcome.standing_count == 0, "a growth both failed and did not");
  for (std::size_t i = 0; i < count; ++i) {
    const mapping_slot& slot = plan.slots[i];
    check(slot.where != nullptr && slot.of != nullptr, "a mapping has no handle");
    const mapping* const before = slot.of->current;
    const bool moves = before != nullptr && before != slot.where;
    const address from = moves ? address_of(*before) : address{};
    note({history_kind::mapped,
          {address_of(*slot.where), slot.of->memory->size_bytes},
          stream_handle::default_stream,
          from.value});
  }
  note_footprint();
}

void stream_pool::note_growth(const stream_request& request, history_kind what,
                              address at) noexcept {
  if (!recorder_) return;
  check(what == history_kind::grow || at.value % granule_bytes == 0, "a growth serves no block");
  const table_lock state(state_);
  if (!recorder_) return;
  recorder_->note(
      {what, {at, request.block_bytes()}, state->progress().shown_handle(request.stream)});
}

result<address> stream_pool::note_served(const stream_request& request, std::uint64_t asked_bytes,
                                         result<address> served) noexcept {
  if (!recorder_ || !served) return served;
  check(served->value != 0, "a request is served with nothing");
  check(request.block_bytes() >= asked_bytes, "a block is smaller than was asked for");
  const table_lock state(state_);
  if (!recorder_) return served;
  recorder_->note_block(history_kind::allocated, {*served, request.block_bytes()}, asked_bytes,
                        state->progress().shown_handle(request.stream));
  return served;
}

void stream_pool::note_footprint() noexcept {
  if (!recorder_) return;
  check(parts_ != nullptr, "memory is counted before there is any");
  note({history_kind::footprint, {{}, parts_->memory.statistics().footprint_bytes}});
}

// The report is written: three events, and the file that the options may want. The lock of growth
// is held: the ring stays.
void stream_pool::note_shortage() noexcept {
  if (!recorder_) return;
  const shortage_report report = last_shortage();
  check(report.failure != errc::none, "a shortage is noted that was none");
  note({history_kind::short_of_memory,
        {{static_cast<std::uint64_t>(report.failure)}, report.request_bytes},
        report.stream,
        report.budget_bytes});
  note({history_kind::short_live, {{}, report.live_bytes}, report.stream, report.reusable_bytes});
  note({history_kind::short_free,
        {{}, report.largest_free_bytes},
        report.stream,
        report.held_bytes});
  if (!recorder_->wants_shortage()) return;
  if (const result<history> taken = take_history()) recorder_->write_shortage(*taken);
}

// ---- taking --------------------------------------------------------------------------

// Only what is mapped is looked at: most of a segment is a hole.
void pool_state::list_mappings(std::vector<history_mapping>& out) const {
  for (const auto& in : segments_) {
    const mapping* last = nullptr;
    const region_map& regions = in->regions();
    for (region_id r = regions.first(); r != region_id::none; r = regions.after(r)) {
      if (in->kind(r) == hole_kind) continue;
      const granule_range where = in->range(r);
      for (std::uint32_t at = where.offset; at < where.end();) {
        const mapping* const m = in->mapping_at(at);
        if (m == nullptr) break;  // the target of a growth under way
        if (m != last)
          out.push_back(
              {{in->address_of(m->offset), m->count_granules * granule_bytes}, m->is_stale()});
        last = m;
        check(m->end() > at, "a mapping ends before it begins");
        at = m->end();
      }
    }
  }
}

status pool_state::describe(history& into) const noexcept {
  try {
    std::vector<pool_region> regions;
    if (status listed = list_regions(regions); !listed) return listed;
    into.regions.reserve(regions.size());
    for (const pool_region& each : regions) {
      into.regions.push_back(
          {each.range, static_cast<std::uint64_t>(each.stream), kind_of_region(each.kind)});
    }
    const auto by_address = [](const history_region& a, const history_region& b) {
      return a.where.base < b.where.base;
    };
    check(into.regions.size() == regions.size(), "a region is left out");
    check(segments_.empty() || !regions.empty(), "a segment has no region");
    std::sort(into.regions.begin(), into.regions.end(), by_address);
    list_mappings(into.mappings);
    into.facts.push_back({"allocator", "stream_pool"});
    into.facts.push_back({"policy", sizes_.rules.name});
    into.facts.push_back({"page_bytes", std::to_string(sizes_.page_bytes)});
    add_facts(statistics(), into.facts);
    return {};
  } catch (const std::bad_alloc&) {
    return no_room;
  }
}

result<history> stream_pool::take_history() const {
  if (status idle = nothing_to_do(); !idle) return idle.error();
  std::unique_ptr<history_ring> ended;
  result<history> taken = take(history_end::stays, ended);
  check(ended == nullptr, "a history ends that is only looked at");
  return taken;
}

status stream_pool::start_history(const history_options& how) {
  if (status ready = set_up(); !ready) return ready;
  result<std::unique_ptr<history_ring>> made = history_ring::make(how);
  if (!made) return made.error();
  check(*made != nullptr, "a ring is made that is none");
  const growth_guard growing(entry_);
  const history_guard lock(history_lock_);
  const table_lock state(state_);
  if (recorder_) return refuse(errc::in_use, "the pool's history is being recorded already");
  recorder_.begin(std::move(*made));
  state->set_recorder(recorder_.get());
  for (bool is_more = true; is_more;) is_more = front_lending(*state).take_back_some();
  return {};
}

result<history> stream_pool::stop_history() {
  if (status idle = nothing_to_do(); !idle) return idle.error();
  std::unique_ptr<history_ring> ended;  // goes after the locks
  const growth_guard growing(entry_);
  result<history> taken = take(history_end::ends, ended);
  check(!taken || !recorder_, "a history that has ended is recorded");
  // Until now frees are written to the ring that has ended, and that nobody reads any more.
  if (!recorder_) state_.with([](auto& state) { state.set_recorder(nullptr); });
  return taken;
}

result<history> stream_pool::take(history_end how, std::unique_ptr<history_ring>& ended) const {
  const history_guard lock(history_lock_);
  if (!recorder_)
    return refuse(errc::invalid_argument,
                  "nobody records the pool's history: give it a memory_options::recorder, or start "
                  "its history");
  if (!is_ready())
    return refuse(errc::invalid_argument, "the pool has allocated nothing: its history is empty");
  const history_ring& ring = *recorder_.get();
  const pool_state* looked_at = nullptr;
  const auto with_lock = [&](auto&& work) {
    const table_lock state(state_);
    looked_at = &*state;
    work();
  };
  result<history> taken = take_from(ring, with_lock, [&](history& into) {
    const status described = looked_at->describe(into);
    if (described && how == history_end::ends) ended = recorder_.end();
    return described;
  });
  if (!taken) return taken;
  check(looked_at != nullptr, "a history is taken without a look at the state");
  const std::uint64_t footprint_bytes = parts_->memory.statistics().footprint_bytes;
  try {
    taken->facts.push_back({"footprint_bytes", std::to_string(footprint_bytes)});
  } catch (const std::bad_alloc&) {
    return no_room;
  }
  return taken;
}

// For vmm-top, from a thread of its own.
void stream_pool::sample(top_sample& out) const noexcept {
  const pool_statistics now = statistics();
  check(out.footprint_bytes == 0 && out.live_bytes == 0,
        "a sample is taken into one that is in use");
  out.kind = top_kind::pool;
  out.set_names(options_.rules.name, driver_->name());
  out.footprint_bytes = is_ready() ? parts_->memory.statistics().footprint_bytes : 0;
  out.peak_footprint_bytes = is_ready() ? parts_->memory.statistics().peak_footprint_bytes : 0;
  out.live_bytes = now.live_bytes;
  out.peak_live_bytes = now.peak_live_bytes;
  out.free_bytes = now.reusable_bytes;
  out.reserved_bytes = now.reserved_bytes;
  out.budget_bytes = options_.budget_bytes;
  out.live_count = now.live_count;
  out.grown_count = now.grown_count;
  out.moved_bytes = now.moved_bytes;
}

}  // namespace vmm

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include "../base/thread_annotations.h"

module vmm.manager;

import vmm.backend;
import vmm.base;
import vmm.observe;
import vmm.optimizer;
import vmm.physical;
import vmm.std;
import vmm.tracker;

namespace vmm {

namespace {

using region_list = std::vector<history_region>;

[[nodiscard]] bool is_before(const history_region& a, const history_region& b) noexcept {
  return a.where.base < b.where.base;
}

// Adds the parts of `wanted` outside of `live`, which is in address order. `next` is the first of
// `live` that may end behind the part added last.
void add_around(const history_region& wanted, const region_list& live, std::size_t& next,
                region_list& out) {
  check(wanted.kind != history_region_kind::live, "a live block is cut around others");
  while (next < live.size() && live[next].where.end() <= wanted.where.base) ++next;
  address at = wanted.where.base;
  for (std::size_t i = next; i < live.size() && live[i].where.base < wanted.where.end(); ++i) {
    const address_range& block = live[i].where;
    if (block.base > at) out.push_back({{at, block.base - at}, 0, wanted.kind});
    at = std::max(at, block.end());
  }
  if (at < wanted.where.end()) out.push_back({{at, wanted.where.end() - at}, 0, wanted.kind});
}

// The state of addresses without a live block, from the extents. A range that another thread
// changes is busy.
void add_places(const std::vector<extent_info>& extents, const region_list& live,
                region_list& out) {
  std::size_t next = 0;
  for (const extent_info& each : extents) {
    const history_region_kind mapped = each.kind == extent_kind::retained
                                           ? history_region_kind::free
                                       : each.kind == extent_kind::live ? history_region_kind::busy
                                                                        : history_region_kind::hole;
    const address_range whole = each.where;
    check(each.mapped_bytes <= whole.size_bytes, "more is mapped than is reserved");
    if (each.kind == extent_kind::retired) {
      add_around({whole, 0, history_region_kind::stale}, live, next, out);
      continue;
    }
    const address_range rest{whole.base + each.mapped_bytes, whole.size_bytes - each.mapped_bytes};
    add_around({{whole.base, each.mapped_bytes}, 0, mapped}, live, next, out);
    add_around({rest, 0, history_region_kind::hole}, live, next, out);
  }
}

}  // namespace

// ---- writing -------------------------------------------------------------------------

void manager_history::record(const history_note& what) noexcept {
  check(what.kind != history_kind::none, "an event of no kind is recorded");
  const bool is_recorded = port_ && base_.is_set_up.load(std::memory_order_acquire);
  check(!is_recorded || base_.blocks != nullptr, "a manager is set up and has no engine");
  if (is_recorded && base_.made_in.is_here()) note(what);  // before, the ring may be another's
}

void manager_history::note(const history_note& what) noexcept {
  if (!port_) return;
  const rank_guard lock(manager_lock::events, event_lock_);
  check(what.kind != history_kind::none, "an event of no kind is noted");
  if (port_) port_->note(what);
}

void manager_history::note_pin(history_kind what, const block& of) noexcept {
  if (!port_) return;
  const rank_guard lock(manager_lock::events, event_lock_);
  check(of.claimed, "a block that is not claimed is pinned");
  if (port_)
    port_->note_block(what, {of.base, of.sizes.mapped_bytes}, of.sizes.user_bytes, of.stream);
}

// Records that the block is handed out, or is not. With a history, under its lock: a listing
// between this and the event would contain a block without an event.
void manager_history::note_block(history_kind kind, block& of) noexcept {
  const bool is_live = kind == history_kind::allocated;
  check(is_live || kind == history_kind::freed,
        "a block event is neither an allocation nor a free");
  if (!port_) {
    of.is_handed_out.store(is_live, std::memory_order_relaxed);
    return;
  }
  {
    const rank_guard lock(manager_lock::events, event_lock_);
    of.is_handed_out.store(is_live, std::memory_order_relaxed);
    check(of.sizes.user_bytes <= of.sizes.mapped_bytes, "a block is larger than its memory");
    if (!port_) return;
    check(static_cast<bool>(of.base), "an event names a block at address 0");
    const address_range where{of.base, of.sizes.mapped_bytes};
    port_->note_block(kind, where, of.sizes.user_bytes, of.stream);
    of.noted = {number_, where, is_live};
  }
  note_footprint();
}

// Before the block's old addresses can be reused: no event of a new block precedes this.
void manager_history::changed(block& now, address before) noexcept {
  if (!port_ || !now.is_handed_out.load(std::memory_order_relaxed)) return;
  const rank_guard lock(manager_lock::events, event_lock_);
  check(now.claimed, "I1: a block has changed that is not claimed");
  if (!port_) return;
  const address_range where{now.base, now.sizes.mapped_bytes};
  port_->note({history_kind::resized, where, now.stream, before.value});
  now.noted = {number_, where, true};
}

// Where it has changed since it was noted last. It is read again behind the event: another thread
// may have noted a newer one in between, and what was read before would be the last word.
void manager_history::note_footprint() noexcept {
  check(base_.blocks != nullptr, "memory is counted before the first allocation");
  for (bool is_noted = true; is_noted;) {
    const std::uint64_t now_bytes = base_.blocks->memory().statistics().held_bytes;
    const rank_guard lock(manager_lock::events, event_lock_);
    is_noted = port_ && std::exchange(noted_footprint_bytes_, now_bytes) != now_bytes;
    if (is_noted) port_->note({history_kind::footprint, {{}, now_bytes}});
  }
}

void manager_history::note_failure(const block_request& wanted, const error& why) noexcept {
  if (!port_) return;
  note_footprint();  // also after another failure: memory released meanwhile stays released
  if (!is_shortage(why.code)) return;
  const manager_statistics now = manager_report(base_).statistics();
  check(now.held_bytes >= now.retained_bytes, "more memory is cached than is held");
  const std::uint64_t code = static_cast<std::uint64_t>(why.code);
  check(wanted.sizes.user_bytes <= wanted.sizes.mapped_bytes, "a block exceeds its addresses");
  note({history_kind::short_of_memory,
        {{code}, wanted.sizes.mapped_bytes},
        wanted.stream,
        base_.options.budget_bytes});
  note({history_kind::short_live,
        {{}, now.mapped_bytes},
        wanted.stream,
        now.retained_bytes + now.retained_mapped_bytes});
  note({history_kind::short_free, {{}, 0}, wanted.stream, now.held_bytes});
  const rank_guard lock(manager_lock::history, port_.mutex());
  if (!port_ || !port_->wants_shortage()) return;
  if (const result<history> taken = take(nullptr)) port_->write_shortage(*taken);
}

// ---- taking --------------------------------------------------------------------------

// Under the lock of the history. A room that stays claimed by its owner writes no events: its
// present state is listed. False if the list is too small.
bool manager_history::list_noted(std::vector<history_region>& out) const noexcept {
  check(out.empty() && base_.blocks != nullptr, "live blocks are listed behind others");
  bool is_whole = true;
  const std::uint64_t number = number_;
  base_.blocks->records().visit([&](const tracked_range& range) {
    const block& each = static_cast<const block&>(range);
    const bool is_noted = each.noted.history_number == number;
    const bool is_out = each.is_handed_out.load(std::memory_order_relaxed);
    const bool is_live = is_noted ? each.noted.is_live : range.owned || is_out;
    if (!is_live || !is_whole) return;
    is_whole = out.size() < out.capacity();
    const address_range where =
        is_noted ? each.noted.where : address_range{range.base, range.sizes.mapped_bytes};
    if (is_whole) out.push_back({where, 0, history_region_kind::live});
  });
  return is_whole;
}

// The live blocks are listed already, under the lock.
status manager_history::describe(const std::vector<extent_info>& extents, history& into) const {
  const manager_statistics now = manager_report(base_).statistics();
  try {
    region_list live = std::move(into.regions);
    std::sort(live.begin(), live.end(), is_before);
    std::uint64_t live_bytes = 0;
    for (const history_region& each : live) live_bytes += each.where.size_bytes;
    into.regions = live;
    add_places(extents, live, into.regions);
    std::stable_sort(into.regions.begin(), into.regions.end(), is_before);
    check(into.regions.size() >= live.size(), "a live block is left out");
    const auto fact = [&into](const char* name, std::uint64_t value) {
      into.facts.push_back({name, std::to_string(value)});
    };
    into.facts.push_back({"allocator", "manager"});
    into.facts.push_back({"policy", base_.options.policy.name});
    fact("page_bytes", base_.unit_bytes);
    fact("live_bytes", live_bytes);
    fact("user_bytes", now.user_bytes);
    fact("live_count", live.size());
    fact("reserved_bytes", now.reserved_bytes);
    return {};
  } catch (const std::bad_alloc&) {
    return no_history_memory;
  }
}

result<history> manager_history::take() {
  if (!base_.made_in.is_here()) return refuse_forked();
  const rank_guard lock(manager_lock::history, port_.mutex());
  return take(nullptr);
}

status manager_history::start(const history_options& how) {
  result<std::unique_ptr<history_ring>> made = history_ring::make(how);
  if (!made) return made.error();
  const rank_guard lock(manager_lock::history, port_.mutex());
  const rank_guard writing(manager_lock::events, event_lock_);
  if (status begun = port_.begin(std::move(*made)); !begun) return begun;
  ++number_;
  noted_footprint_bytes_ = 0;
  return {};
}

result<history> manager_history::stop() {
  if (!base_.made_in.is_here()) return refuse_forked();
  std::unique_ptr<history_ring> ended;  // goes after the lock
  const rank_guard lock(manager_lock::history, port_.mutex());
  return take(&ended);
}

result<history> manager_history::take(std::unique_ptr<history_ring>* ended) {
  if (!is_recorded()) return no_recording;
  if (!base_.is_set_up.load(std::memory_order_acquire))
    return refuse(errc::invalid_argument, "the manager has allocated nothing");
  note_footprint();  // what calls have changed that write no event
  const result<std::vector<extent_info>> listed = manager_report(base_).extents();
  if (!listed) return listed.error();
  result<history> taken = no_history_memory;
  // Threads that allocate faster than twice what there is are given up on.
  bool lacks_room = true;
  for (std::size_t tries = 1; lacks_room && tries <= 16; ++tries)
    taken = take_once({ended, base_.blocks->records().size() << tries}, lacks_room);
  if (!taken) return taken;
  check(ended == nullptr || !port_, "a history that has ended is recorded");
  if (status described = describe(*listed, *taken); !described) return described.error();
  return taken;
}

// The events with the blocks live after the last of them, if the list has space for so many.
result<history> manager_history::take_once(const take_plan& plan, bool& lacks_room) {
  lacks_room = false;
  region_list live;
  if (status room = reserve_more(live, plan.room_count + 64); !room) return room.error();
  check(live.empty(), "a history begins with blocks that were not looked at");
  std::uint64_t held_bytes = 0;
  const auto with_lock = [this](auto&& work) {
    const rank_guard lock(manager_lock::events, event_lock_);
    work();
  };
  const auto look = [&](history&) {
    assume_locked(manager_lock::events);
    lacks_room = !list_noted(live);
    held_bytes = noted_footprint_bytes_;
    return lacks_room ? status{no_history_memory} : status{};
  };
  result<history> taken = port_.take(with_lock, look, plan.ended);
  if (!taken) return taken;
  taken->regions = std::move(live);
  const status added = add_fact(*taken, "held_bytes", held_bytes);
  if (!added) return added.error();
  return taken;
}

}  // namespace vmm

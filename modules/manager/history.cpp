// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include "../sync/thread_annotations.h"

module vmm.manager;

import vmm.backend;
import vmm.history;
import vmm.intrusive;
import vmm.optimizer;
import vmm.physical;
import vmm.reservation;
import vmm.std;
import vmm.support;
import vmm.sync;
import vmm.tracker;

namespace vmm {

namespace {

constexpr error no_room = refuse(errc::out_of_host_memory, "no host memory is left for a history");

using region_list = std::vector<history_region>;

[[nodiscard]] bool is_before(const history_region& a, const history_region& b) noexcept {
  return a.where.base < b.where.base;
}

// Adds what of `wanted` lies in none of `live`, which is in address order. `next` is the first of
// them that may reach behind what was added before.
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

// What the extents say of addresses without a live block. What another thread changes is busy.
void add_places(const std::vector<extent_info>& extents, const region_list& live,
                region_list& out) {
  std::size_t next = 0;
  for (const extent_info& each : extents) {
    const history_region_kind mapped = each.kind == extent_kind::cached ? history_region_kind::free
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
  const bool is_recorded = recorder_ && base_.is_set_up.load(std::memory_order_acquire);
  check(!is_recorded || base_.blocks != nullptr, "a manager is set up and has no engine");
  if (is_recorded && base_.made_in.is_here()) note(what);  // before, the ring may be another's
}

void manager_history::note(const history_note& what) noexcept {
  if (!recorder_) return;
  const rank_guard lock(manager_lock::events, event_lock_);
  check(what.kind != history_kind::none, "an event of no kind is noted");
  if (recorder_) recorder_->note(what);
}

void manager_history::note_pin(history_kind what, const block& of) noexcept {
  if (!recorder_) return;
  const rank_guard lock(manager_lock::events, event_lock_);
  check(of.claimed, "a block is pinned that nobody claimed");
  if (recorder_)
    recorder_->note_block(what, {of.base, of.sizes.mapped_bytes}, of.sizes.user_bytes, of.stream);
}

// The block is its user's from now on, or no more. Where there is a history, under its lock: a look
// between this and the event would find a block that no event tells of.
void manager_history::note_block(history_kind kind, block& of) noexcept {
  const bool is_live = kind == history_kind::allocated;
  check(is_live || kind == history_kind::freed, "a block neither comes nor goes");
  if (!recorder_) {
    of.is_handed_out.store(is_live, std::memory_order_relaxed);
    return;
  }
  {
    const rank_guard lock(manager_lock::events, event_lock_);
    of.is_handed_out.store(is_live, std::memory_order_relaxed);
    check(of.sizes.user_bytes <= of.sizes.mapped_bytes, "a block is larger than its memory");
    if (!recorder_) return;
    check(static_cast<bool>(of.base), "an event is of a block at no address");
    const address_range where{of.base, of.sizes.mapped_bytes};
    recorder_->note_block(kind, where, of.sizes.user_bytes, of.stream);
    of.told = {number_, where, is_live};
  }
  note_footprint();
}

// Before the addresses that the block gives up can be another's: nobody is told of that one first.
void manager_history::changed(block& now, address before) noexcept {
  if (!recorder_ || !now.is_handed_out.load(std::memory_order_relaxed)) return;
  const rank_guard lock(manager_lock::events, event_lock_);
  check(now.claimed, "I1: a block has changed that is not claimed");
  if (!recorder_) return;
  const address_range where{now.base, now.sizes.mapped_bytes};
  recorder_->note({history_kind::resized, where, now.stream, before.value});
  now.told = {number_, where, true};
}

// Where it has changed since it was noted last. It is read again behind the event: another thread
// may have noted a newer one in between, and what was read before would be the last word.
void manager_history::note_footprint() noexcept {
  check(base_.blocks != nullptr, "memory is counted before there is any");
  for (bool is_noted = true; is_noted;) {
    const std::uint64_t now_bytes = base_.blocks->memory().statistics().footprint_bytes;
    const rank_guard lock(manager_lock::events, event_lock_);
    is_noted = recorder_ && std::exchange(noted_footprint_bytes_, now_bytes) != now_bytes;
    if (is_noted) recorder_->note({history_kind::footprint, {{}, now_bytes}});
  }
}

void manager_history::note_failure(const block_request& wanted, const error& why) noexcept {
  if (!recorder_) return;
  note_footprint();  // also of another failure: what was given back on the way stays given back
  if (!is_shortage(why.code)) return;
  const manager_statistics now = manager_report(base_).statistics();
  check(now.footprint_bytes >= now.cached_memory_bytes, "more is cached than there is");
  const std::uint64_t code = static_cast<std::uint64_t>(why.code);
  check(wanted.sizes.user_bytes <= wanted.sizes.mapped_bytes, "a block is larger than its room");
  note({history_kind::short_of_memory,
        {{code}, wanted.sizes.mapped_bytes},
        wanted.stream,
        base_.options.budget_bytes});
  note({history_kind::short_live,
        {{}, now.mapped_bytes},
        wanted.stream,
        now.cached_memory_bytes + now.cached_range_bytes});
  note({history_kind::short_free, {{}, 0}, wanted.stream, now.footprint_bytes});
  const rank_guard lock(manager_lock::history, history_mutex_);
  if (!recorder_ || !recorder_->wants_shortage()) return;
  std::unique_ptr<history_ring> ended;
  if (const result<history> taken = take(history_end::stays, ended))
    recorder_->write_shortage(*taken);
}

// ---- taking --------------------------------------------------------------------------

// Under the lock of the history. A room of somebody who keeps it claimed writes no events: it is as
// it is now. False where the list has no room for all of them.
bool manager_history::list_told(std::vector<history_region>& out) const noexcept {
  check(out.empty() && base_.blocks != nullptr, "live blocks are listed behind others");
  bool is_whole = true;
  const std::uint64_t number = number_;
  base_.blocks->records().visit([&](const tracked_range& range) {
    const block& each = static_cast<const block&>(range);
    const bool is_told = each.told.history_number == number;
    const bool is_out = each.is_handed_out.load(std::memory_order_relaxed);
    const bool is_live = is_told ? each.told.is_live : range.owned || is_out;
    if (!is_live || !is_whole) return;
    is_whole = out.size() < out.capacity();
    const address_range where =
        is_told ? each.told.where : address_range{range.base, range.sizes.mapped_bytes};
    if (is_whole) out.push_back({where, 0, history_region_kind::live});
  });
  return is_whole;
}

// What was listed under the lock is there already: the live blocks, and nothing else.
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
    into.facts.push_back({"policy", base_.options.rules.name});
    fact("page_bytes", base_.unit_bytes);
    fact("live_bytes", live_bytes);
    fact("user_bytes", now.user_bytes);
    fact("live_count", live.size());
    fact("reserved_bytes", now.reserved_bytes);
    return {};
  } catch (const std::bad_alloc&) {
    return no_room;
  }
}

result<history> manager_history::take() {
  if (!base_.made_in.is_here()) return refuse_forked();
  std::unique_ptr<history_ring> ended;
  const rank_guard lock(manager_lock::history, history_mutex_);
  result<history> taken = take(history_end::stays, ended);
  check(ended == nullptr, "a history ends that is only looked at");
  return taken;
}

status manager_history::start(const history_options& how) {
  result<std::unique_ptr<history_ring>> made = history_ring::make(how);
  if (!made) return made.error();
  const rank_guard lock(manager_lock::history, history_mutex_);
  const rank_guard writing(manager_lock::events, event_lock_);
  check(*made != nullptr, "a ring is made that is none");
  if (recorder_) return refuse(errc::in_use, "the manager's history is being recorded already");
  recorder_.begin(std::move(*made));
  check(is_recorded(), "a history begins and is not recorded");
  ++number_;
  noted_footprint_bytes_ = 0;
  return {};
}

result<history> manager_history::stop() {
  if (!base_.made_in.is_here()) return refuse_forked();
  std::unique_ptr<history_ring> ended;  // goes after the lock
  const rank_guard lock(manager_lock::history, history_mutex_);
  result<history> taken = take(history_end::ends, ended);
  check(!taken || !recorder_, "a history that has ended is recorded");
  return taken;
}

result<history> manager_history::take(history_end how, std::unique_ptr<history_ring>& ended) {
  if (!recorder_)
    return refuse(
        errc::invalid_argument,
        "the manager's history is not recorded: give it a memory_options::recorder, or start "
        "its history");
  if (!base_.is_set_up.load(std::memory_order_acquire))
    return refuse(errc::invalid_argument, "the manager has allocated nothing");
  check(recorder_.get() != nullptr, "a history is taken without a recording");
  note_footprint();  // what calls have changed that write no event
  const result<std::vector<extent_info>> listed = manager_report(base_).extents();
  if (!listed) return listed.error();
  result<history> taken = no_room;
  // Threads that allocate faster than twice what there is are given up on.
  bool is_whole = false;
  for (std::size_t tries = 1; !is_whole && tries <= 16; ++tries) {
    taken = take_once({how, base_.blocks->records().size() << tries}, ended, is_whole);
    if (!taken) return taken;
  }
  if (!is_whole) return no_room;
  if (status described = describe(*listed, *taken); !described) return described.error();
  return taken;
}

// The events with what is live behind the last of them, where there is room for so many blocks.
result<history> manager_history::take_once(const take_plan& plan,
                                           std::unique_ptr<history_ring>& ended, bool& is_whole) {
  region_list live;
  if (status room = reserve_more(live, plan.room_count + 64); !room) return room.error();
  check(live.empty(), "a history begins with blocks that were not looked at");
  std::uint64_t footprint_bytes = 0;
  result<history> taken = take_from(
      *recorder_.get(),
      [this](auto&& work) {
        const rank_guard lock(manager_lock::events, event_lock_);
        work();
      },
      [&](history&) {
        assume_locked(manager_lock::events);
        is_whole = list_told(live);
        footprint_bytes = noted_footprint_bytes_;
        if (is_whole && plan.how == history_end::ends) ended = recorder_.end();
        return status{};
      });
  if (!taken) return taken;
  check(!is_whole || plan.how == history_end::stays || !recorder_, "a history did not end");
  try {
    taken->regions = std::move(live);
    taken->facts.push_back({"footprint_bytes", std::to_string(footprint_bytes)});
  } catch (const std::bad_alloc&) {
    return no_room;
  }
  return taken;
}

}  // namespace vmm

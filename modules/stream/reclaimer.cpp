// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include "../base/thread_annotations.h"

module vmm.stream;

import vmm.backend;
import vmm.base;
import vmm.observe;
import vmm.optimizer;
import vmm.physical;
import vmm.std;
import vmm.timeline;
import vmm.va;

namespace vmm {

namespace {

constexpr std::uint64_t trim_step_bytes = std::uint64_t{256} << 20;

constexpr history_kind history_of(remap_kind kind) noexcept {
  return kind == remap_kind::released ? history_kind::released : history_kind::unmapped;
}

}  // namespace

// ---- stale mappings ----------------------------------------------------------------

status reclaimer::unmap(mapping& gone, remap_kind kind) {
  notices_.unmapping(gone, kind);
  check(gone.is_announced, "reclaimer I2: a mapping is undone that was not announced");
  const address at = state_.address_of(gone);
  physical_memory* const part = gone.memory;
  check(at.value != 0 && part->mapping_count != 0, "a mapping is undone that is not mapped");
  check(part->size_bytes == gone.count_granules * granule_bytes,
        "a mapping has another size than its piece");
  const status unmapped =
      remaps_.unmap({at, std::span<physical_memory* const>(&part, 1), {}}).result;
  if (unmapped)
    notices_.observe([&](block_observer& observer) { observer.unmapped({at, part->size_bytes}); });
  if (unmapped) events_.note({history_of(kind), {at, part->size_bytes}});
  return unmapped;
}

// Polls the oldest stale mapping `count_max` times, and unmaps it if its work has finished. A
// mapping that stays, since its work continues or the driver refuses, goes to the end of the list,
// and is polled again if fewer are listed.
void reclaimer::unmap_stale(std::size_t count_max) {
  for (std::size_t asked = 0; asked < count_max; ++asked) {
    mapping* const oldest =
        state_.with([](auto& state) { return state.records().take_oldest_stale(); });
    if (oldest == nullptr) return;
    check(oldest->is == unmap_entry::place::asked, "a claimed mapping can be claimed again");
    const bool unmapped = unmap_if_finished(*oldest);
    const table_lock state(state_);
    if (unmapped) {
      idle_handles(*state).stale_unmapped(*oldest);
    } else {
      state->records().put_back_stale(*oldest);
    }
  }
}

// A stale mapping that was taken for this: no other thread changes it meanwhile.
bool reclaimer::unmap_if_finished(mapping& taken) {
  check(taken.is == unmap_entry::place::asked, "an unmapped mapping is not claimed");
  const stream_point last_use = taken.last_use;
  if (!clock_.poll(last_use)) return false;
  if (!state_.with([&](auto& state) { return state.progress().passed(last_use); })) return false;
  return unmap(taken, remap_kind::unmapped).has_value();
}

// Unmaps all stale mappings whose work has finished, some at a time: others grow in between.
void reclaimer::unmap_stale_in_steps() {
  constexpr std::uint64_t step = 64;
  for (std::uint64_t left = state_.stale_count(); left != 0; left -= std::min(left, step)) {
    const growth_guard growing(entry_);
    if (state_.is_suspended()) return;
    unmap_stale(std::min(left, step));
  }
}

// ---- free handles ------------------------------------------------------------------

// Claims free idle handles, looking at a few at a time: allocate and free go on in between.
status reclaimer::claim_idle(free_handle_walk& walk, std::vector<handle_record*>& claimed) {
  constexpr std::size_t looks_max = 64;
  result<bool> more = true;
  while (more && *more)
    more = state_.with(
        [&](auto& state) { return idle_handles(state).claim_idle(walk, looks_max, claimed); });
  const auto is_free = [](const handle_record* each) { return each->is_free; };
  debug_check([&] { return std::none_of(claimed.begin(), claimed.end(), is_free); },
              "a claimed handle is free for others");
  return more ? status{} : more.error();
}

status reclaimer::unmap_idle(std::uint64_t size_bytes, std::uint64_t* waiting_bytes,
                             std::uint64_t made_for) {
  std::vector<handle_record*> claimed;
  free_handle_walk walk = state_.with(
      [&](auto& state) { return idle_handles(state).begin_walk(size_bytes, made_for); });
  status outcome = claim_idle(walk, claimed);
  check(walk.bytes_left <= size_bytes, "a walk claims a negative number of bytes");
  if (waiting_bytes != nullptr) *waiting_bytes = walk.waiting_bytes;
  for (handle_record* gone : claimed) {
    check(gone->current != nullptr && !gone->is_free,
          "reclaimer I1: a handle is not claimed, or claimed twice");
    const status unmapped = outcome ? unmap_handle(*gone) : outcome;
    if (unmapped) continue;
    if (outcome) outcome = unmapped;
    {
      const table_lock state(state_);
      idle_handles(*state).handle_stays(*gone);
    }
  }
  return outcome;
}

// Its stale mappings are unmapped where they stand in their list, which keep their places when one
// cannot be. They are not polled meanwhile: unmap_stale() takes the growth lock, too.
status reclaimer::unmap_handle(handle_record& gone) {
  check(!gone.is_free, "a handle is unmapped that is not claimed");
  while (gone.stale_mappings != nullptr) {
    check(gone.stale_mappings->of == &gone, "a stale mapping is another handle's");
    check(gone.stale_mappings->is == unmap_entry::place::listed,
          "a mapping is unmapped that is being polled");
    if (status unmapped = unmap(*gone.stale_mappings, remap_kind::unmapped); !unmapped)
      return unmapped;
    {
      const table_lock state(state_);
      idle_handles(*state).stale_unmapped(*gone.stale_mappings);
    }
  }
  const bool is_suspended = gone.memory->is_suspended;
  if (!is_suspended || gone.memory->mapping_count != 0) {
    if (status unmapped = unmap(*gone.current, remap_kind::released); !unmapped) return unmapped;
  } else {
    // The driver has its memory already; its addresses are a hole from now on.
    events_.note(
        {history_kind::released, {state_.address_of(*gone.current), gone.memory->size_bytes}});
  }
  physical_memory* const memory =
      state_.with([&](auto& state) { return &idle_handles(state).handle_unmapped(gone); });
  check(memory != nullptr && memory->mapping_count == 0, "mapped memory is cached");
  if (is_suspended) {
    memory_.end_suspended(*memory);
  } else {
    memory_.drop_holder(*memory, ticket_ref{});
  }
  return {};
}

// Unmaps some free memory beyond the limit. False if nothing is left to unmap.
result<bool> reclaimer::trim_step(std::uint64_t limit_bytes, std::uint64_t& waiting_bytes) {
  const auto numbers = [this] {
    return state_.with([](auto& state) { return state_report(state).statistics(); });
  };
  const growth_guard growing(entry_);
  waiting_bytes = 0;
  if (state_.is_suspended()) return false;  // nothing is free that has memory
  const arena_flush pause(state_);
  const pool_statistics before = numbers();
  check(before.reusable_bytes <= before.mapped_bytes, "more is free than is mapped");
  if (before.reusable_bytes <= limit_bytes) return false;
  const std::uint64_t step_bytes = std::min(before.reusable_bytes - limit_bytes, trim_step_bytes);
  if (status unmapped = unmap_idle(step_bytes, &waiting_bytes); !unmapped) return unmapped.error();
  return numbers().mapped_bytes < before.mapped_bytes;
}

void reclaimer::unmap_ahead(preallocate_report& report) {
  constexpr std::uint32_t steps_max = 256;
  for (std::uint32_t step = 0; step < steps_max; ++step) {
    const growth_guard growing(entry_);
    const std::uint64_t before = state_.stale_count();
    if (state_.is_suspended() || before <= options_.policy.tuning.stale_count_max / 2) return;
    unmap_stale(1);
    if (state_.stale_count() == before) return;  // the work of the oldest is unfinished
    check(state_.stale_count() < before, "mappings become stale while they are unmapped");
    ++report.unmapped_count;
  }
}

status reclaimer::drop_freed() {
  std::vector<mapping*> mapped;
  if (status listed =
          state_.with([&](auto& state) { return idle_handles(state).list_current(mapped); });
      !listed)
    return listed;
  for (const mapping* m : mapped) {
    handle_record& h = *m->of;
    check(h.memory->is_suspended, "memory in use is dropped");
    if (!state_.with([&](auto&) { return h.is_free; })) continue;
    const status claimed =
        state_.with([&](auto& state) { return idle_handles(state).claim_handle(h); });
    if (!claimed) return claimed;
    h.current->is_announced = true;  // by the suspension
    if (unmap_handle(h)) continue;
    check(h.memory->mapping_count != 0, "unmapped memory is not dropped");
    const table_lock state(state_);
    idle_handles(*state).handle_stays(h);
  }
  return {};
}

status reclaimer::unmap_all() {
  check(gate_.is_closed_by(gate_reason::goes_away), "all of a pool in use is unmapped");
  unmap_stale(state_.stale_count());
  const std::uint64_t mapped_bytes =
      state_.with([](auto& state) { return state_report(state).statistics(); }).mapped_bytes;
  if (status unmapped = unmap_idle(mapped_bytes); !unmapped) return unmapped;
  if (state_.stale_count() != 0) return refuse(errc::in_use, "a mapping could not be undone");
  check(state_.with([](auto& state) { return state.records().handle_count(); }) == 0,
        "a handle stays after all were unmapped");
  return {};
}

// ---- memory is released to the driver ----------------------------------------------------

status reclaimer::make_room(const stream_request& request) {
  rights_.end_freed();
  unmap_stale(state_.stale_count());
  return may_alias_ ? status{} : unmap_idle(request.size_bytes());
}

trim_report reclaimer::release_cached() {
  const release_guard releasing(lock_);
  const trim_report released = memory_.trim(0);
  check((released.released_count == 0) == (released.released_bytes == 0),
        "bytes were released in no handle");
  if (released.released_bytes != 0) {
    events_.note({history_kind::trimmed, {{}, released.released_bytes}});
    events_.note_footprint();
  }
  return released;
}

std::uint64_t reclaimer::release_created(std::uint64_t mark) {
  const release_guard releasing(lock_);
  const trim_report released = memory_.release_created(mark);
  if (released.released_bytes == 0) return 0;
  events_.note({history_kind::trimmed, {{}, released.released_bytes}});
  events_.note_footprint();
  return released.released_bytes;
}

// What an arena gives back would join what is unused, and make it younger.
std::uint64_t reclaimer::release_unused(std::uint64_t mark, std::uint64_t made_for) {
  const arena_flush pause(state_, arena_memory::stays);
  constexpr std::uint64_t all_bytes = std::numeric_limits<std::uint64_t>::max();
  (void)unmap_idle(all_bytes, nullptr, made_for);
  return release_created(mark);
}

// ---- trim ------------------------------------------------------------------------------

trim_report reclaimer::trim(std::uint64_t limit_bytes) {
  trim_report report;
  result<bool> unmapped = true;
  {
    const growth_guard growing(entry_);
    const arena_flush pause(state_);
    if (status marked = clock_.batches().record(); !marked && !is_deferred(marked.error()))
      unmapped = marked.error();
    if (status asked = clock_.poll_all(); !asked) unmapped = asked.error();
    clock_.poll_retired();
    if (!state_.is_suspended()) rights_.end_freed();
  }
  unmap_stale_in_steps();
  const relaxed_capture capture(driver_, captures_.is_on());  // releasing takes no turn
  bool goes_on = true;
  std::uint64_t waiting_bytes = 0;
  while (goes_on) {
    if (unmapped) unmapped = trim_step(limit_bytes, waiting_bytes);
    goes_on = unmapped && *unmapped;
    check(report.failure.code == errc::none, "a trim continues after a failure");
    const trim_report step = release_cached();
    check(step.released_count != 0 || step.released_bytes == 0, "bytes were released in no handle");
    report.released_count += step.released_count;
    report.released_bytes += step.released_bytes;
    report.still_mapped_bytes = step.still_mapped_bytes + waiting_bytes;
    report.failure = step.failure;
    if (step.failure.code != errc::none) return report;
  }
  if (!unmapped) report.failure = unmapped.error();
  check((report.released_count == 0) == (report.released_bytes == 0),
        "bytes were released in no handle");
  return report;
}

trim_report reclaimer::trim_by(std::uint64_t size_bytes) {
  check(size_bytes != 0, "a trim releases 0 bytes");
  std::uint64_t free_bytes = 0;
  {
    const table_lock state(state_);
    free_bytes = state_report(*state).statistics().reusable_bytes;
  }
  return trim(free_bytes - std::min(free_bytes, size_bytes));
}

}  // namespace vmm

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Giving back: stale mappings whose work has finished, free handles, and trim; and what subscribers
// are told of it.
module vmm.stream;

import vmm.backend;
import vmm.history;
import vmm.optimizer;
import vmm.physical;
import vmm.std;
import vmm.support;
import vmm.sync;
import vmm.timeline;
import vmm.va;

namespace vmm {

namespace {

constexpr std::uint64_t trim_step_bytes = std::uint64_t{256} << 20;

constexpr history_kind history_of(remap_kind kind) noexcept {
  return kind == remap_kind::released ? history_kind::released : history_kind::unmapped;
}

}  // namespace

// ---- notices -----------------------------------------------------------------------

result<remap_subscription> stream_pool::subscribe(remap_listener& listener) {
  if (const status idle = nothing_to_do(); !idle) return idle.error();
  return board_.add(listener);
}

status stream_pool::unsubscribe(remap_subscription subscription) {
  if (const status idle = nothing_to_do(); !idle) return idle;
  return board_.remove(subscription);
}

address stream_pool::address_of(const mapping& m) noexcept {
  return state_.with([&](auto& state) { return state.address_of(m); });
}

void stream_pool::announce_unmap(mapping& gone, remap_kind kind) {
  check(gone.memory != nullptr, "a mapping of nothing is undone");
  if (std::exchange(gone.is_announced, true)) return;
  const std::uint64_t epoch = remap_epoch_.fetch_add(1, std::memory_order_acq_rel) + 1;
  check(epoch != 0, "the numbers of changes are used up");
  if (board_.nobody_listens()) return;
  call_back({epoch, kind, {address_of(gone), gone.memory->size_bytes}});
}

// One thread at a time: the one that has the lock of growth, or the destructor's.
void stream_pool::call_back(const remap_notice& notice) {
  check(!gate_.is_closed_by(gate_reason::callback_runs), "two threads call back at a time");
  gate_.close(gate_reason::callback_runs);
  board_.tell(notice);
  gate_.open(gate_reason::callback_runs);
}

// ---- stale mappings ----------------------------------------------------------------

std::uint64_t stream_pool::stale_count() noexcept {
  return state_.with([](auto& state) { return state.records().stale_count(); });
}

status stream_pool::unmap(mapping& gone, remap_kind kind) {
  announce_unmap(gone, kind);
  const address at = address_of(gone);
  physical_memory* const part = gone.memory;
  check(at.value != 0 && part->mapping_count != 0, "a mapping is undone that is not mapped");
  check(part->size_bytes == gone.count_granules * granule_bytes,
        "a mapping has another size than its piece");
  const status unmapped =
      parts_->remaps.unmap({at, std::span<physical_memory* const>(&part, 1), {}}).result;
  if (unmapped) tell([&](block_watcher& who) { who.unmapped({at, part->size_bytes}); });
  if (unmapped) note({history_of(kind), {at, part->size_bytes}});
  return unmapped;
}

// Asks `count_max` times after the oldest stale mapping, and unmaps it where its work has finished.
// What stays, since its work goes on or the driver refuses, goes to the end of the list: where
// fewer wait than are to be asked about, it is asked about again.
void stream_pool::reap(std::size_t count_max) {
  for (std::size_t asked = 0; asked < count_max; ++asked) {
    mapping* const oldest =
        state_.with([](auto& state) { return state.records().take_oldest_stale(); });
    if (oldest == nullptr) return;
    check(oldest->is == unmap_entry::place::asked, "a mapping was taken that others may take");
    const bool unmapped = unmap_if_passed(*oldest);
    const auto state = state_.lock();
    if (unmapped) {
      state->stale_unmapped(*oldest);
    } else {
      state->records().put_back_stale(*oldest);
    }
  }
}

// A stale mapping that was taken for this: nobody else changes it meanwhile.
bool stream_pool::unmap_if_passed(mapping& taken) {
  check(taken.is == unmap_entry::place::asked,
        "a mapping is unmapped that another thread may take");
  const stream_point last_use = taken.last_use;
  if (!poll_events(last_use)) return false;
  if (!state_.with([&](auto& state) { return state.progress().passed(last_use); })) return false;
  return unmap(taken, remap_kind::unmapped).has_value();
}

// Unmaps all stale mappings whose work has finished, some at a time: others grow in between.
void stream_pool::reap_in_steps() {
  constexpr std::uint64_t step = 64;
  for (std::uint64_t left = stale_count(); left != 0; left -= std::min(left, step)) {
    const growth_turn turn(way_in());
    if (is_suspended()) return;
    reap(std::min(left, step));
  }
}

// ---- free handles ------------------------------------------------------------------

// Claims free idle handles, looking at a few at a time: allocate and free go on in between.
status stream_pool::claim_idle(free_handle_walk& walk, std::vector<handle_record*>& claimed) {
  constexpr std::size_t looks_max = 64;
  result<bool> more = true;
  while (more && *more)
    more = state_.with([&](auto& state) { return state.claim_idle(walk, looks_max, claimed); });
  const auto is_free = [](const handle_record* each) { return each->is_free; };
  debug_check([&] { return std::none_of(claimed.begin(), claimed.end(), is_free); },
              "a claimed handle is free for others");
  return more ? status{} : more.error();
}

// Unmaps free idle handles: their memory goes to the cache, their addresses become holes.
// `waiting_bytes` has the size of free handles that are kept because unfinished work may use them.
status stream_pool::unmap_idle(std::uint64_t size_bytes, std::uint64_t* waiting_bytes) {
  std::vector<handle_record*> claimed;
  free_handle_walk walk = state_.with([&](auto& state) { return state.begin_walk(size_bytes); });
  status outcome = claim_idle(walk, claimed);
  check(walk.bytes_left <= size_bytes, "a walk claims less than nothing");
  if (waiting_bytes != nullptr) *waiting_bytes = walk.waiting_bytes;
  for (handle_record* gone : claimed) {
    check(gone->current != nullptr && !gone->is_free, "a handle is claimed by nobody, or twice");
    const status unmapped = outcome ? unmap_handle(*gone) : outcome;
    if (unmapped) continue;
    if (outcome) outcome = unmapped;
    state_.with([&](auto& state) { state.handle_stays(*gone); });
  }
  return outcome;
}

// Its stale mappings are unmapped where they stand in their list, which keep their places when one
// cannot be. Nobody asks about them meanwhile: reap() takes the lock of growth, too.
status stream_pool::unmap_handle(handle_record& gone) {
  check(!gone.is_free, "a handle is unmapped that nobody has claimed");
  while (gone.stale_mappings != nullptr) {
    check(gone.stale_mappings->of == &gone, "a stale mapping is another handle's");
    check(gone.stale_mappings->is == unmap_entry::place::listed,
          "a mapping is unmapped that somebody asks about");
    if (status unmapped = unmap(*gone.stale_mappings, remap_kind::unmapped); !unmapped)
      return unmapped;
    state_.with([&](auto& state) { state.stale_unmapped(*gone.stale_mappings); });
  }
  const bool is_suspended = gone.memory->is_suspended;
  if (!is_suspended || gone.memory->mapping_count != 0) {
    if (status unmapped = unmap(*gone.current, remap_kind::released); !unmapped) return unmapped;
  } else {
    // The driver has its memory already; its addresses are a hole from now on.
    note({history_kind::released, {address_of(*gone.current), gone.memory->size_bytes}});
  }
  physical_memory* const memory =
      state_.with([&](auto& state) { return &state.handle_unmapped(gone); });
  check(memory != nullptr && memory->mapping_count == 0, "memory goes to the cache that is mapped");
  if (is_suspended) {
    parts_->memory.end_suspended(*memory);
  } else {
    parts_->memory.drop_holder(*memory, ticket_ref{});
  }
  return {};
}

// Unmaps some of what is free beyond the limit. False when there is no more to unmap.
result<bool> stream_pool::trim_step(std::uint64_t limit_bytes, std::uint64_t& waiting_bytes) {
  const auto numbers = [this] {
    return state_.with([](auto& state) { return state.statistics(); });
  };
  const growth_turn turn(way_in());
  waiting_bytes = 0;
  if (is_suspended()) return false;  // nothing is free that has memory
  const lending_pause pause(state_);
  const pool_statistics before = numbers();
  check(before.reusable_bytes <= before.mapped_bytes, "more is free than is mapped");
  if (before.reusable_bytes <= limit_bytes) return false;
  const std::uint64_t step_bytes = std::min(before.reusable_bytes - limit_bytes, trim_step_bytes);
  if (status unmapped = unmap_idle(step_bytes, &waiting_bytes); !unmapped) return unmapped.error();
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
    const growth_turn turn(way_in());
    const lending_pause pause(state_);
    if (status marked = mark_batches(); !marked && !is_put_off(marked.error()))
      unmapped = marked.error();
    if (status asked = poll_all_streams(); !asked) unmapped = asked.error();
    poll_retired_streams();
    if (!is_suspended()) end_freed_rights();
  }
  reap_in_steps();
  const undisturbed capture(*driver_, watches_capture_);  // releasing takes no turn
  bool goes_on = true;
  std::uint64_t waiting_bytes = 0;
  while (goes_on) {
    if (unmapped) unmapped = trim_step(limit_bytes, waiting_bytes);
    goes_on = unmapped && *unmapped;
    check(report.failure.code == errc::none, "a trim goes on after it failed");
    const trim_report step = release_cached();
    check(step.released_count != 0 || step.released_bytes == 0, "bytes went back in no handle");
    report.released_count += step.released_count;
    report.released_bytes += step.released_bytes;
    report.still_mapped_bytes = step.still_mapped_bytes + waiting_bytes;
    report.failure = step.failure;
    if (step.failure.code != errc::none) return report;
  }
  if (!unmapped) report.failure = unmapped.error();
  check((report.released_count == 0) == (report.released_bytes == 0),
        "bytes went back in no handle");
  return report;
}

}  // namespace vmm

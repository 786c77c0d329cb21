// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
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

constexpr int reap_attempts = 3;  // a fault that strikes once leaves nothing behind
constexpr int quiesce_rounds = 8;

bool is_unused(const mapping* m) noexcept { return m->of->is_free && !m->of->memory->is_suspended; }

}  // namespace

// ---- the phase -------------------------------------------------------------------------

// Each call reads the phase that the state publishes, under its lock.
suspension_phase pool_suspension::begin_change(suspension_phase from) {
  return phases_.try_begin(from, [this](suspension_phase changing) {
    const table_lock state(state_);
    state->set_suspension(changing);
  });
}

void pool_suspension::end_change(suspension_phase next) noexcept {
  phases_.end(next, [this](suspension_phase now) {
    const table_lock state(state_);
    check(state->suspension() == suspension_phase::changing,
          "I1: a change ends that the state has not begun");
    state->set_suspension(now);
  });
}

device_core& pool_suspension::core() noexcept {
  check(parts_ != nullptr, "a pool that was not set up has no memory");
  return parts_->core;
}

user_count& pool_suspension::users() noexcept { return of_.users(); }

// ---- suspending ----------------------------------------------------------------------

status pool_suspension::begin_suspend(std::span<const stream_handle> streams,
                                      suspension_list& out) {
  if (status ready = of_.set_up(); !ready) return ready;
  check(out.empty(), "memory is listed behind other memory");
  if (begin_change(suspension_phase::running) != suspension_phase::running)
    return refuse(errc::in_use, "the pool's memory is suspended already");
  assume_locked(rank::change);
  const growth_guard growing(entry_);
  const arena_flush pause(state_);
  status done;
  if (state_.with([](auto& state) { return state.totals().pinned_count; }) != 0)
    done = refuse(errc::in_use, "a block of the pool is pinned: unpin it first");
  if (done) done = quiesce(streams);
  if (done) done = list_parts(out);
  if (done) phases_.memory_leaves();
  if (done) return done;
  out.clear();
  end_change(suspension_phase::running);
  return done;
}

// All work has finished; nothing free and nothing stale is mapped. A remap listener, or another
// thread, may have freed blocks meanwhile, whose fill is more work.
status pool_suspension::quiesce(std::span<const stream_handle> streams) {
  check(state_.is_suspended(), "I1: memory of a running pool is removed");
  for (int left = quiesce_rounds; left > 0; --left) {
    if (status finished = finish_work(streams); !finished) return finished;
    if (status released = release_free(); !released) return released;
    std::vector<mapping*> mapped;
    const table_lock state(state_);
    if (status listed = idle_handles(*state).list_current(mapped); !listed) return listed;
    const bool has_more = std::any_of(mapped.begin(), mapped.end(), is_unused);
    if (!phases_.take_filled() && !has_more) return {};
  }
  return refuse(errc::in_use,
                "a remap listener frees more blocks whenever free memory is unmapped, or freed "
                "memory depends on work that cannot be waited for now");
}

status pool_suspension::finish_work(std::span<const stream_handle> streams) {
  const capture_watch::pressing pressing(captures_);
  if (status quiet = captures_.check_no_use(); !quiet) return quiet;
  if (status marked = parts_->clock.batches().record(); !marked) return marked;
  if (status finished = parts_->clock.finish_others(streams); !finished) return finished;
  if (!entry_.names_streams()) {
    const status finished = parts_->clock.points().finish_all_work();
    if (!finished && is_capture_refusal(finished.error())) return being_captured;
    if (!finished) return finished;
  }
  const std::uint32_t count = state_.with([](auto& state) { return state.progress().count(); });
  for (std::uint32_t stream = 0; entry_.names_streams() && stream < count; ++stream) {
    if (const result<bool> finished = parts_->clock.finish(stream); !finished)
      return finished.error();
  }
  if (status asked = parts_->clock.poll_all(); !asked) return asked;
  parts_->clock.poll_retired();
  return {};
}

status pool_suspension::release_free() {
  const capture_watch::pressing pressing(captures_);
  parts_->rights.end_freed();
  for (int left = reap_attempts; left > 0 && state_.stale_count() != 0; --left)
    parts_->reclaim.unmap_stale(state_.stale_count());
  if (state_.stale_count() != 0)
    return refuse(errc::in_use, "a stale mapping could not be unmapped");
  const std::uint64_t mapped_bytes =
      state_.with([](auto& state) { return state_report(state).statistics(); }).mapped_bytes;
  if (status unmapped = parts_->reclaim.unmap_idle(mapped_bytes); !unmapped) return unmapped;
  (void)parts_->reclaim.release_cached();  // what the driver refuses stays cached, and is reported
  return {};
}

status pool_suspension::list_parts(suspension_list& out) {
  std::vector<mapping*> mapped;
  if (status listed =
          state_.with([&](auto& state) { return idle_handles(state).list_current(mapped); });
      !listed)
    return listed;
  if (status room = reserve_more(out, mapped.size()); !room) return room;
  // Other threads free meanwhile.
  const bool waits =
      state_.with([&](auto&) { return std::any_of(mapped.begin(), mapped.end(), is_unused); });
  if (waits)
    return refuse(errc::in_use, "freed memory depends on work that cannot be waited for now");
  {
    const table_lock state(state_);  // as below: segments() reads no handle of suspended memory
    for (const mapping* m : mapped) m->memory->is_suspended = true;
  }
  for (const mapping* m : mapped) {
    check(m->of->current == m && m->memory->holder_count == 1,
          "a handle's address is not the one in its record");
    const address at = state_.address_of(*m);
    check(static_cast<bool>(at), "suspended memory has no address");
    out.push_back({at, m->memory, parts_->rights.of(at)});
  }
  return {};
}

void pool_suspension::set_in_use(const suspension_list& parts) noexcept {
  const table_lock state(state_);
  for (const suspension_part& part : parts) {
    check(part.memory->is_suspended, "I2: a handle resumes that was not suspended");
    part.memory->is_suspended = false;
  }
}

void pool_suspension::end_suspend(const suspension_list& parts, bool done) noexcept {
  assume_locked(rank::change);
  check(done || are_attached(parts), "a pool resumes without its memory");
  if (!done) set_in_use(parts);
  for (const suspension_part& part : parts) {
    if (done) events_.note({history_kind::suspended, part.range()});
  }
  if (done) events_.note_footprint();
  end_change(done ? suspension_phase::suspended : suspension_phase::running);
}

// ---- resuming ------------------------------------------------------------------------

status pool_suspension::begin_resume(suspension_list& out) {
  if (!gate_.is_here()) return refuse_forked();
  check(out.empty(), "memory is listed behind other memory");
  const suspension_phase was = begin_change(suspension_phase::suspended);
  if (was == suspension_phase::changing) return memory_suspended;
  if (was == suspension_phase::running)
    return refuse(errc::invalid_argument, "the pool's memory is not suspended");
  assume_locked(rank::change);
  const growth_guard growing(entry_);
  status done = parts_->reclaim.drop_freed();
  if (done) done = list_parts(out);
  if (done) return done;
  out.clear();
  end_change(suspension_phase::suspended);
  return done;
}

void pool_suspension::end_resume(const suspension_list& parts, bool done) noexcept {
  assume_locked(rank::change);
  check(!done || are_attached(parts), "a pool resumes without its memory");
  if (done) set_in_use(parts);
  for (const suspension_part& part : parts) {
    if (done) events_.note({history_kind::resumed, part.range()});
  }
  if (done) events_.note_footprint();
  end_change(done ? suspension_phase::running : suspension_phase::suspended);
}

// Free memory behind live handles: blocks that were freed while there was nothing to fill, and
// what came back with any contents.
status pool_suspension::clear_freed(stream_handle stream) {
  check(state_.is_suspended(), "I1: free memory is filled while it is allocated");
  std::vector<address_range> freed;
  try {
    const table_lock state(state_);
    state->segments().for_each([&](const segment& in) {
      const region_map& regions = in.regions();
      for (region_id r = regions.first(); r != region_id::none; r = regions.after(r)) {
        const granule_range where = in.range(r);
        if (!is_free_kind(in.kind(r))) continue;
        freed.push_back({in.address_of(where.offset), where.count * granule_bytes});
      }
    });
  } catch (const std::bad_alloc&) {
    return no_record_memory;
  }
  for (const address_range& each : freed) {
    if (status filled = contents_.on_release(each, stream); !filled) return filled;
  }
  return {};
}

void pool_suspension::announce(const suspension_list& parts, suspension_phase next) {
  check(next != suspension_phase::changing, "a change without an end is announced");
  const remap_kind what =
      next == suspension_phase::suspended ? remap_kind::released : remap_kind::mapped;
  const growth_guard growing(entry_);
  for (const suspension_part& part : parts) {
    notices_.announce(what, part.range());
  }
}

}  // namespace vmm

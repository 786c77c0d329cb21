// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// A pool whose memory is suspended as a whole: what is free goes back to the driver first, what is
// left is listed for vmm.suspend, and nothing is handed out until it is resumed.
module vmm.stream;

import vmm.backend;
import vmm.history;
import vmm.intrusive;
import vmm.optimizer;
import vmm.physical;
import vmm.std;
import vmm.support;
import vmm.sync;
import vmm.timeline;
import vmm.va;

namespace vmm {

namespace {

constexpr int reap_attempts = 3;  // a fault that strikes once leaves nothing behind

}  // namespace

status pool_state::list_current(std::vector<mapping*>& out) const noexcept {
  try {
    for (const auto& in : segments_) {
      const region_map& regions = in->regions();
      for (region_id r = regions.first(); r != region_id::none; r = regions.after(r)) {
        const granule_range where = in->range(r);
        for (std::uint32_t at = where.offset; at < where.end();) {
          mapping* const m = in->mapping_at(at);
          if (m == nullptr) break;  // a hole is one region
          check(m->offset <= at && at < m->end(), "a mapping does not lie where it is found");
          if (!m->is_stale() && (out.empty() || out.back() != m)) out.push_back(m);
          at = m->end();
        }
      }
    }
    return {};
  } catch (const std::bad_alloc&) {
    return no_record_memory;
  }
}

// The phase before; where it was `from`, the calling thread is the one that changes it, and has
// change_lock_ until end_change(): that of another call, which the analysis does not follow.
suspension_phase stream_pool::change_phase(suspension_phase from) {
  check(from != suspension_phase::changing, "two threads suspend or resume one pool");
  {
    const table_lock state(state_);
    const suspension_phase before = state->suspension();
    if (before != from) return before;
    changing_from_.store(from, std::memory_order_relaxed);
    state->set_suspension(suspension_phase::changing);
  }
  change_lock_.lock();
  check(changer_.load(std::memory_order_relaxed) == 0, "two threads change one pool");
  changer_.store(this_thread(), std::memory_order_relaxed);
  return from;
}

void stream_pool::end_change(suspension_phase next) noexcept {
  check(next != suspension_phase::changing, "a change ends in the middle of another one");
  {
    const table_lock state(state_);
    check(state->suspension() == suspension_phase::changing, "a change ends that was not begun");
    state->set_suspension(next);
  }
  check(changer_.load(std::memory_order_relaxed) == this_thread(),
        "a change ends on another thread than its own");
  changer_.store(0, std::memory_order_relaxed);
  change_lock_.unlock();
}

// ---- suspending ----------------------------------------------------------------------

status stream_pool::begin_suspend(std::span<const stream_handle> streams, suspension_list& out) {
  if (status ready = set_up(); !ready) return ready;
  check(out.empty(), "memory is listed behind other memory");
  if (change_phase(suspension_phase::running) != suspension_phase::running)
    return refuse(errc::in_use, "the pool's memory is suspended already");
  const growth_guard growing(entry_);
  const lending_pause pause(state_);
  status done;
  if (state_.with([](auto& state) { return state.totals().pinned_count; }) != 0)
    done = refuse(errc::in_use, "a block of the pool is pinned: unpin it first");
  if (done) done = finish_for_suspension(streams);
  if (done) done = list_parts(out);
  if (done) return done;
  out.clear();
  end_change(suspension_phase::running);
  return done;
}

// All work has finished; nothing free and nothing stale is mapped.
status stream_pool::finish_for_suspension(std::span<const stream_handle> streams) {
  check(state_.is_suspended(), "a pool is emptied that hands out memory");
  const capture_watch::pressing pressing(captures_);
  if (status quiet = captures_.check_no_use(); !quiet) return quiet;
  if (status marked = parts_->clock.record_batches(); !marked) return marked;
  if (status finished = parts_->clock.finish_others(streams); !finished) return finished;
  if (!entry_.names_streams()) {
    const status finished = parts_->clock.finish_all_work();
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
  parts_->rights.end_freed();
  for (int left = reap_attempts; left > 0 && state_.stale_count() != 0; --left)
    parts_->reclaim.unmap_stale(state_.stale_count());
  if (state_.stale_count() != 0)
    return refuse(errc::in_use, "a mapping that memory has left could not be undone");
  const std::uint64_t mapped_bytes =
      state_.with([](auto& state) { return state.statistics(); }).mapped_bytes;
  if (status unmapped = parts_->reclaim.unmap_idle(mapped_bytes); !unmapped) return unmapped;
  (void)parts_->reclaim.release_cached();  // what the driver refuses stays cached, and is reported
  return {};
}

status stream_pool::list_parts(suspension_list& out) {
  std::vector<mapping*> mapped;
  if (status listed = state_.with([&](auto& state) { return state.list_current(mapped); }); !listed)
    return listed;
  if (status room = reserve_more(out, mapped.size()); !room) return room;
  const auto is_unused = [](const mapping* m) {
    return m->of->is_free && !m->of->memory->is_suspended;
  };
  // Other threads free meanwhile.
  const bool waits =
      state_.with([&](auto&) { return std::any_of(mapped.begin(), mapped.end(), is_unused); });
  if (waits)
    return refuse(errc::in_use, "freed memory waits for work that cannot be waited for now");
  {
    const table_lock state(state_);  // as below: segments() reads no handle of suspended memory
    for (const mapping* m : mapped) m->memory->is_suspended = true;
  }
  for (const mapping* m : mapped) {
    check(m->of->current == m && m->memory->holder_count == 1, "memory is not where it says");
    const address at = state_.address_of(*m);
    check(static_cast<bool>(at), "memory is suspended that lies nowhere");
    out.push_back({at, m->memory, parts_->rights.of(at)});
  }
  return {};
}

void stream_pool::set_in_use(const suspension_list& parts) noexcept {
  const table_lock state(state_);
  for (const suspension_part& part : parts) {
    check(part.memory->is_suspended, "memory is in use again that was not suspended");
    part.memory->is_suspended = false;
  }
}

void stream_pool::end_suspend(const suspension_list& parts, bool done) noexcept {
  check(done || are_attached(parts), "a pool goes on without its memory");
  if (!done) set_in_use(parts);
  for (const suspension_part& part : parts) {
    if (done) events_.note({history_kind::suspended, part.range()});
  }
  if (done) events_.note_footprint();
  end_change(done ? suspension_phase::suspended : suspension_phase::running);
}

// ---- resuming ------------------------------------------------------------------------

status stream_pool::begin_resume(suspension_list& out) {
  if (!is_ready()) return why_not_ready();
  check(out.empty(), "memory is listed behind other memory");
  const suspension_phase was = change_phase(suspension_phase::suspended);
  if (was == suspension_phase::changing) return memory_suspended;
  if (was == suspension_phase::running)
    return refuse(errc::invalid_argument, "the pool's memory is not suspended");
  const growth_guard growing(entry_);
  status done = parts_->reclaim.drop_freed();
  if (done) done = list_parts(out);
  if (done) return done;
  out.clear();
  end_change(suspension_phase::suspended);
  return done;
}

void stream_pool::end_resume(const suspension_list& parts, bool done) noexcept {
  check(!done || are_attached(parts), "a pool goes on without its memory");
  if (done) set_in_use(parts);
  for (const suspension_part& part : parts) {
    if (done) events_.note({history_kind::resumed, part.range()});
  }
  if (done) events_.note_footprint();
  end_change(done ? suspension_phase::running : suspension_phase::suspended);
}

// Free memory behind live handles: blocks that were freed while there was nothing to fill, and
// what came back with any contents.
status stream_pool::clear_freed(stream_handle stream) {
  check(state_.is_suspended(), "what is free is filled while others allocate it");
  std::vector<address_range> freed;
  try {
    const table_lock state(state_);
    state->for_each_segment([&](const segment& in) {
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
  const std::uint8_t value = options_.contents == contents_rule::poison ? poison_byte : 0;
  for (const address_range& each : freed) {
    if (status filled = driver_->fill({each, value, stream}); !filled) return filled;
  }
  return {};
}

void stream_pool::announce(const suspension_list& parts, remap_kind what) {
  check(what == remap_kind::released || what == remap_kind::mapped,
        "memory is suspended otherwise");
  const growth_guard growing(entry_);
  for (const suspension_part& part : parts) {
    notices_.announce(what, part.range());
  }
}

}  // namespace vmm

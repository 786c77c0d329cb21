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
import vmm.timeline;
import vmm.tracker;

namespace vmm {

namespace {

constexpr int claim_rounds = 16;  // threads that move blocks faster are given up on

}  // namespace

void manager_suspension::end_change(suspension_phase next) noexcept {
  check(next != suspension_phase::changing, "I1: a suspension ends half-way");
  unclaim_all();
  phases_.end(next);
}

// ---- listeners ------------------------------------------------------------------------

void manager_suspension::listen(suspension_listener& to) noexcept {
  const sync::lock_guard<sync::mutex> lock(listeners_mutex_);
  check(to.next_ == nullptr && listeners_ != &to, "a listener is added twice");
  to.next_ = listeners_;
  listeners_ = &to;
}

void manager_suspension::ignore(suspension_listener& gone) noexcept {
  const sync::lock_guard<sync::mutex> lock(listeners_mutex_);
  suspension_listener** at = &listeners_;
  while (*at != nullptr && *at != &gone) at = &(*at)->next_;
  check(*at == &gone, "a listener is removed that was not added");
  *at = std::exchange(gone.next_, nullptr);
}

void manager_suspension::announce(const suspension_list&, suspension_phase next) {
  check(next != suspension_phase::changing, "a change without an end is announced");
  const relief_pause pause;
  const sync::lock_guard<sync::mutex> lock(listeners_mutex_);
  for (suspension_listener* each = listeners_; each != nullptr; each = each->next_) {
    if (next == suspension_phase::suspended) {
      each->memory_leaves();
    } else {
      each->memory_returned();
    }
  }
}

// ---- what vmm.suspend works on -------------------------------------------------------

device_core& manager_suspension::core() noexcept {
  check(base_.blocks != nullptr, "a manager that was not set up has no memory");
  return base_.blocks->core();
}

user_count& manager_suspension::users() noexcept { return of_.users(); }

relief_member& manager_suspension::relief() noexcept { return of_.shortage_.relief(); }

// ---- claims --------------------------------------------------------------------------

void manager_suspension::unclaim_all() noexcept {
  check(phases_.phase() == suspension_phase::changing,
        "blocks are released without a suspension or resumption");
  for (block* each : suspending_) {
    check(each->claimed, "a block that is not claimed is released");
    base_.blocks->records().unclaim(*each);
  }
  suspending_.clear();
}

// The blocks that are not claimed for the suspension yet. After the first round they are those that
// moved, or were made, while others were claimed.
status manager_suspension::list_unclaimed(std::vector<address>& out) {
  std::vector<const block*> known;
  if (status room = reserve_more(known, suspending_.size()); !room) return room;
  known.assign(suspending_.begin(), suspending_.end());
  std::sort(known.begin(), known.end());
  const std::size_t count_max = base_.blocks->records().size() + 1;
  out.clear();
  if (status room = reserve_more(out, count_max); !room) return room;
  if (status room = reserve_more(suspending_, count_max); !room) return room;
  bool has_owned = false;
  bool has_exported = false;
  base_.blocks->records().visit([&](const tracked_range& range) {
    has_owned = has_owned || (range.owned && !range.memories.empty());
    has_exported = has_exported || range.pin_count != 0;
    const block* const each = &static_cast<const block&>(range);
    const auto found = std::lower_bound(known.begin(), known.end(), each);
    if (range.owned || (found != known.end() && *found == each)) return;
    if (out.size() < count_max) out.push_back(range.base);
  });
  check(out.size() <= count_max && suspending_.size() == known.size(),
        "I1: blocks are claimed while they are listed");
  if (has_exported) return refuse(errc::in_use, "a block is exported: end its exports first");
  if (has_owned) {
    return refuse(errc::in_use,
                  "a growable range has memory of the manager: release it, or use another manager");
  }
  return {};
}

// A block that is not where it was listed was freed meanwhile, or has moved: it is listed again.
status manager_suspension::claim_to_suspend() {
  check(suspending_.empty(), "blocks are suspended twice");
  std::vector<address> bases;
  bool is_whole = false;
  for (int round = 0; !is_whole && round < claim_rounds; ++round) {
    if (status listed = list_unclaimed(bases); !listed) return listed;
    is_whole = true;
    for (const address base : bases) {
      const result<block*> claimed = claim_block(base_, base);
      const bool is_elsewhere = !claimed && is_wrong_address(claimed.error().code);
      is_whole = is_whole && !is_elsewhere;
      if (is_elsewhere) continue;
      if (!claimed) return claimed.error();
      check(suspending_.size() < suspending_.capacity(), "a block has no room in a list");
      check(!(*claimed)->is_suspended, "a block is suspended while its manager is not");
      suspending_.push_back(*claimed);
      if (status unlocked = base_.blocks->unlock(**claimed); !unlocked) return unlocked;
    }
  }
  if (is_whole) return {};
  return refuse(errc::in_use, "other threads free and move blocks of the manager: try again");
}

status manager_suspension::claim_suspended() {
  check(suspending_.empty(), "blocks are resumed twice");
  std::vector<address> bases;
  const std::size_t count_max = base_.blocks->records().size() + 1;
  if (status room = reserve_more(bases, count_max); !room) return room;
  if (status room = reserve_more(suspending_, count_max); !room) return room;
  base_.blocks->records().visit([&](const tracked_range& range) {
    if (range.is_suspended && bases.size() < count_max) bases.push_back(range.base);
  });
  for (const address base : bases) {
    const result<block*> claimed = claim_block(base_, base);
    if (!claimed && is_wrong_address(claimed.error().code)) continue;  // freed meanwhile
    if (!claimed) return claimed.error();
    check((*claimed)->is_suspended, "a block got memory while it was suspended");
    suspending_.push_back(*claimed);
  }
  return {};
}

// ---- work ----------------------------------------------------------------------------

// False: the driver has no such stream.
result<bool> manager_suspension::finish_stream(stream_handle stream) {
  check(base_.blocks != nullptr, "a manager that is not set up waits for work");
  if (can_capture(base_.driver->feature_set(), stream)) {
    const result<capture_info> seen = base_.driver->query_capture(stream);
    if (!seen && seen.error().code != errc::invalid_argument) return seen.error();
    if (seen && seen->state != capture_state::none)
      return refuse(errc::in_use, "a stream to wait for is being captured");
  }
  return base_.blocks->time().finish(stream);
}

// All work of the device, or that of the blocks' streams where streams are forgotten; then ranges
// that wait to be unmapped, and cached ranges.
status manager_suspension::finish_work(std::span<const stream_handle> streams) {
  std::vector<stream_handle> waits;
  if (status room = reserve_more(waits, streams.size() + suspending_.size()); !room) return room;
  waits.insert(waits.end(), streams.begin(), streams.end());
  timeline& time = base_.blocks->time();
  bool is_covered = false;
  if (!time.streams_forgotten()) {  // also of the streams of copies
    const result<ticket_ref> all = time.cover_all();
    is_covered = all || all.error().code != errc::not_supported;
    const status waited = all ? time.wait(*all) : status{all.error()};
    if (is_covered && !waited) return waited;
  }
  if (!is_covered) {
    for (const block* each : suspending_) waits.push_back(each->stream);
  }
  std::sort(waits.begin(), waits.end());
  waits.erase(std::unique(waits.begin(), waits.end()), waits.end());
  check(waits.size() <= waits.capacity(), "a stream has no room in a list");
  for (const stream_handle stream : waits) {
    const result<bool> finished = finish_stream(stream);
    if (!finished) return finished.error();
    const bool is_named = std::find(streams.begin(), streams.end(), stream) != streams.end();
    // The code that destroyed a block's stream has waited for its work.
    if (!*finished && is_named)
      return refuse(errc::invalid_argument, "the request names a stream that does not exist");
  }
  for (const block* each : suspending_) {
    check(each->claimed, "a block is waited for without a claim");
    if (status finished = base_.blocks->synchronize(*each); !finished) return finished;
  }
  (void)ranges_.give_back(0);  // what the driver refuses stays cached, and is reported
  // Freed blocks with unfinished work.
  bool goes_on = true;
  for (std::uint64_t left = base_.blocks->retired().size(); left != 0 && goes_on; --left)
    goes_on = base_.blocks->reap_waiting();
  (void)ranges_.give_back(0);
  return {};
}

// ---- suspending ----------------------------------------------------------------------

// Between the two calls the handles of these blocks change, and find() does not read them.
void manager_suspension::set_all_suspended(bool suspended) noexcept {
  for (block* each : suspending_) {
    check(each->claimed, "a block is suspended without a claim");
    const bool has_memory = each->sizes.user_bytes != 0 && each->has_memory;
    base_.blocks->records().set_suspended(*each, suspended && has_memory);
  }
}

status manager_suspension::list_parts(suspension_list& out) {
  std::size_t count = 0;
  for (const block* each : suspending_) count += each->memories.size();
  if (status room = reserve_more(out, count); !room) return room;
  for (const block* each : suspending_) {
    if (each->sizes.user_bytes == 0 || !each->has_memory) continue;
    address at = each->base;
    for (physical_memory* part : each->memories) {
      if (!base_.blocks->memory().may_be_suspended(*part)) {
        return refuse(errc::in_use,
                      "a block shares its memory with a process or another block, or is still "
                      "mapped at its previous address");
      }
      out.push_back({at, part, each->rights_of(*part)});
      at = at + part->size_bytes;
    }
    check(at == each->base + each->sizes.mapped_bytes, "a block's pieces are not its memory");
  }
  check(out.size() <= count, "more parts are listed than exist");
  for (const suspension_part& part : out) {
    part.memory->is_suspended = true;
    part.memory->last_use.reset();  // it has passed
  }
  return {};
}

status manager_suspension::begin_suspend(std::span<const stream_handle> streams,
                                         suspension_list& out) {
  if (status ready = of_.set_up(); !ready) return ready;
  check(out.empty(), "memory is listed behind other memory");
  if (phases_.try_begin(suspension_phase::running) != suspension_phase::running)
    return refuse(errc::in_use, "the manager's memory is suspended already");
  assume_locked(manager_lock::change);
  status done = claim_to_suspend();
  if (done) done = finish_work(streams);
  if (done) done = list_parts(out);
  if (done) {
    set_all_suspended(true);
    return done;
  }
  out.clear();
  end_change(suspension_phase::running);
  return done;
}

void manager_suspension::end_suspend(const suspension_list& parts, bool done) noexcept {
  assume_locked(manager_lock::change);
  check(done || are_attached(parts), "a manager resumes without its memory");
  for (const suspension_part& part : parts) {
    if (!done) part.memory->is_suspended = false;
    if (done) history_.note({history_kind::suspended, part.range()});
  }
  if (!done) set_all_suspended(false);
  if (done && history_.is_recorded()) history_.note_footprint();
  end_change(done ? suspension_phase::suspended : suspension_phase::running);
}

// ---- resuming ------------------------------------------------------------------------

status manager_suspension::begin_resume(suspension_list& out) {
  if (!base_.made_in.is_here()) return refuse_forked();
  check(out.empty(), "memory is listed behind other memory");
  check(base_.blocks != nullptr || phases_.is_running(),
        "a manager is suspended that was not set up");
  const suspension_phase was = phases_.try_begin(suspension_phase::suspended);
  if (was == suspension_phase::changing) return memory_suspended;
  if (was == suspension_phase::running)
    return refuse(errc::invalid_argument, "the manager's memory is not suspended");
  assume_locked(manager_lock::change);
  status done = claim_suspended();
  if (done) done = list_parts(out);
  if (done) return done;
  out.clear();
  end_change(suspension_phase::suspended);
  return done;
}

void manager_suspension::end_resume(const suspension_list& parts, bool done) noexcept {
  assume_locked(manager_lock::change);
  check(!done || are_attached(parts), "a manager resumes without its memory");
  for (const suspension_part& part : parts) {
    if (done) part.memory->is_suspended = false;
    if (done) history_.note({history_kind::resumed, part.range()});
  }
  if (done) set_all_suspended(false);
  if (done && history_.is_recorded()) history_.note_footprint();
  end_change(done ? suspension_phase::running : suspension_phase::suspended);
}

}  // namespace vmm

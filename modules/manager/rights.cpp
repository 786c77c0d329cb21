// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.manager - who may use blocks, and what is in them when they come and go.
module;
#include "../sync/thread_annotations.h"

module vmm.manager;

import vmm.backend;
import vmm.intrusive;
import vmm.optimizer;
import vmm.options;
import vmm.physical;
import vmm.std;
import vmm.support;
import vmm.sync;
import vmm.timeline;
import vmm.tracker;

namespace vmm {

// ---- rights --------------------------------------------------------------------------

status manager::set_access(address at, std::span<const access_grant> grants) {
  if (grants.empty()) return refuse(errc::invalid_argument, "the list of grants is empty");
  const result<block*> claimed = claim_block(base_, at, pinned_record::allowed);
  if (!claimed) return claimed.error();
  block& of = **claimed;
  check(of.claimed && of.base == at, "another block is claimed than was named");
  status given = of.is_suspended ? status{memory_suspended}
                 : of.sizes.user_bytes == 0
                     ? refuse(errc::invalid_argument,
                              "the block's memory has moved to another: it can only be freed")
                     : base_.blocks->set_own_rights(of, grants);
  base_.blocks->records().unclaim(of);
  return given;
}

// Errors: in_use, where more blocks were allocated meanwhile than there is room for.
status manager::list_all(peers_list& out) {
  const std::size_t count_max = std::min(out.blocks.capacity(), out.rooms.capacity());
  out.blocks.clear();
  out.rooms.clear();
  bool has_all = true;
  base_.blocks->records().visit([&](const tracked_range& range) {
    has_all = has_all && out.blocks.size() + out.rooms.size() < count_max;
    if (!has_all) return;
    if (range.owned) {
      out.rooms.push_back(&block_of(const_cast<tracked_range&>(range)));
    } else {
      out.blocks.push_back(range.base);
    }
  });
  check(out.blocks.size() + out.rooms.size() <= count_max, "more blocks are listed than fit");
  return has_all ? status{} : status{refuse(errc::in_use, "blocks are being allocated: again")};
}

// Whether each block's own rights fit beside those that all are to have.
status manager::check_room(const peers_list& listed, const grant_list& after) {
  for (const address at : listed.blocks) {
    const result<block*> claimed = claim_block(base_, at, pinned_record::allowed);
    if (!claimed && is_wrong_address(claimed.error().code)) continue;
    if (!claimed) return claimed.error();
    check((*claimed)->base == at, "another block is claimed than was named");
    const bool has_room = remapper::fit(after, (*claimed)->own_rights.get());
    base_.blocks->records().unclaim(**claimed);
    if (!has_room)
      return refuse(errc::invalid_argument, "rights for more locations than a list takes");
  }
  return {};
}

// Blocks that are gone by now are nobody's.
status manager::refresh_all(const peers_list& listed) {
  check(base_.blocks != nullptr, "rights are given before there is memory");
  for (block* const room : listed.rooms) {
    check(room->owned && room->is_room, "a block is taken for a room");
    if (status given = base_.blocks->refresh_rights(*room); !given) return given;
  }
  for (const address at : listed.blocks) {
    const result<block*> claimed = claim_block(base_, at, pinned_record::allowed);
    if (!claimed && is_wrong_address(claimed.error().code)) continue;
    if (!claimed) return claimed.error();
    // What is suspended gets the rights of then when it is resumed: there has to be room for them.
    const status given = base_.blocks->refresh_rights(**claimed);
    check((*claimed)->base == at, "another block is claimed than was named");
    base_.blocks->records().unclaim(**claimed);
    if (!given) return given;
  }
  return {};
}

// A block that is made meanwhile is looked at by allocate(), when it is tracked.
status manager::set_peers(std::span<const access_grant> grants) {
  if (status ready = set_up(); !ready) return ready;
  const rights_scope scope{*base_.driver, base_.blocks->core().remaps, base_.placement()};
  if (status valid = check_grants(scope, grants); !valid) return valid;
  // Waits for a suspension or resumption that is under way: what it maps has the rights of all.
  const rank_guard changing(manager_lock::change, suspension_.change_mutex());
  const rank_guard giving(manager_lock::peers, peers_mutex_);
  const rank_guard still(manager_lock::growable, base_.growable_mutex);
  peers_list listed;
  const std::size_t count_max = base_.blocks->records().size() + 1;
  if (status room = reserve_more(listed.blocks, count_max); !room) return room;
  if (status room = reserve_more(listed.rooms, count_max); !room) return room;
  const auto fits = [&](const grant_list& after) {
    assume_locked(manager_lock::growable);
    const status complete = list_all(listed);
    return complete ? check_room(listed, after) : complete;
  };
  // Where there are more blocks by now than there is room for, those that are listed: the undoing
  // does what it can.
  const auto apply = [&] {
    assume_locked(manager_lock::growable);
    const status complete = list_all(listed);
    const status given = refresh_all(listed);
    return given ? complete : given;
  };
  return change_peers(scope, grants, fits, apply);
}

result<std::vector<memory_segment>> manager::segments(address_range range) {
  const result<range_info> found = find(range.base);
  if (!found) return found.error();
  const result<block*> claimed = claim_block(base_, found->base, pinned_record::allowed);
  if (!claimed) return claimed.error();
  const block& of = **claimed;
  const address_range whole{of.base, of.sizes.mapped_bytes};
  std::vector<memory_segment> listed;
  status done = range.empty() || !whole.contains(range)
                    ? refuse(errc::invalid_argument, "the range is not inside one block")
                    : status{};
  if (done && of.is_suspended) done = memory_suspended;
  if (done) done = reserve_more(listed, of.memories.size());
  address at = of.base;
  for (const physical_memory* part : of.memories) {
    const address_range where{at, part->size_bytes};
    check(where.size_bytes > 0, "a piece without bytes is mapped");
    if (done && where.overlaps(range)) listed.push_back({where, part->handle});
    at = where.end();
  }
  check(at == whole.end(), "a block's pieces are not its memory");
  base_.blocks->records().unclaim(**claimed);
  if (!done) return done.error();
  check(!listed.empty(), "a range with bytes touches no piece");
  return listed;
}

// ---- contents ------------------------------------------------------------------------

// What a block needs beside memory. On failure it is gone. It is tracked by now: a suspension that
// begins behind the look at the phase finds it.
status manager::finish_made(block& made) {
  check(made.claimed, "a block is finished that is not its maker's");
  check(made.linked, "a block is looked for by a suspension that is not tracked");
  if (!suspension_.is_running()) {
    const ticket_ref last_use = made.last_use;
    if (!base_.blocks->dissolve(made, last_use)) base_.blocks->discard(made, last_use);
    return memory_suspended;
  }
  status finished = base_.blocks->refresh_rights(made);
  if (finished) finished = fill_acquired(made, 0, made.stream);
  if (finished) return finished;
  const result<ticket_ref> last_use = base_.blocks->time().mark(made.stream);
  const ticket_ref until = last_use ? *last_use : made.last_use;
  base_.blocks->discard(made, until);
  return finished;
}

// Behind the work of those who had the memory before: the block's stream is ordered so.
status manager::fill_acquired(const block& of, std::uint64_t from_bytes, stream_handle stream) {
  check(from_bytes < of.sizes.mapped_bytes, "no byte of a block is filled");
  return base_.contents.on_acquire({of.base + from_bytes, of.sizes.mapped_bytes - from_bytes},
                                   stream);
}

// Where the driver refuses it, what was added goes again; memory that does not go stays behind the
// size that the block had. The thread waits for another stream than the block's.
status manager::fill_grown(block& of, const range_sizes& before, bool is_named) {
  if (of.sizes.user_bytes <= before.user_bytes || !base_.contents.fills_on_acquire()) return {};
  timeline& time = base_.blocks->time();
  const result<stream_handle> filler = choose_filler(of.stream, is_named);
  status filled = filler ? fill_acquired(of, before.user_bytes, *filler) : status{filler.error()};
  if (filled && *filler != of.stream) {
    const result<ticket_ref> arrived = time.record_or_wait(*filler);
    filled = arrived ? time.wait(*arrived) : status{arrived.error()};
  }
  if (filled) return filled;
  range_sizes kept = before;
  kept.mapped_bytes = std::min(before.mapped_bytes, of.sizes.mapped_bytes);
  check(of.claimed && kept.mapped_bytes >= kept.user_bytes, "a block grew to less");
  const result<ticket_ref> last_use =
      is_named ? time.record_or_wait(of.stream) : record_use(of.stream, false);
  const bool is_back = last_use && base_.blocks->shrink(of, {kept, of.stream, *last_use});
  if (!is_back) base_.blocks->set_user_bytes(of, before.user_bytes);
  return filled;
}

status manager::fill_released(block& of, std::uint64_t from_bytes, stream_handle stream) {
  if (!fills_released(of)) return {};
  check(of.claimed && from_bytes < of.sizes.mapped_bytes, "no byte of a block is filled");
  if (status unlocked = base_.blocks->unlock(of); !unlocked) return unlocked;
  if (of.own_rights != nullptr && of.own_rights->of(base_.driver->home()) != access::read_write) {
    const access_grant again{base_.driver->home(), access::read_write};
    if (status given = base_.blocks->set_own_rights(of, {&again, 1}); !given) return given;
  }
  return base_.contents.on_release({of.base + from_bytes, of.sizes.mapped_bytes - from_bytes},
                                   stream);
}

// A point behind the work of the stream, and behind the fill of bytes that are given up. [I1]
result<ticket_ref> manager::record_released(block& of, std::uint64_t from_bytes,
                                            stream_handle stream) {
  const bool is_filled = fills_released(of);
  if (status filled = fill_released(of, from_bytes, stream); !filled) return filled.error();
  check(of.claimed, "a block is given up that is not its caller's");
  return is_filled ? base_.blocks->time().record_or_wait(stream)
                   : base_.blocks->time().mark(stream);
}

}  // namespace vmm

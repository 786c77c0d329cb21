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
  const result<block*> claimed = claim(at, pinned_record::allowed);
  if (!claimed) return claimed.error();
  block& of = **claimed;
  check(of.claimed && of.base == at, "another block is claimed than was named");
  status given = of.is_suspended ? status{memory_suspended}
                 : of.sizes.user_bytes == 0
                     ? refuse(errc::invalid_argument,
                              "the block's memory has moved to another: it can only be freed")
                     : engine_->set_own_rights(of, grants);
  engine_->records().unclaim(of);
  return given;
}

status manager::check_peers(std::span<const access_grant> grants) const {
  check(engine_ != nullptr, "rights are given before there is memory");
  if (grants.empty()) return refuse(errc::invalid_argument, "the list of grants is empty");
  const location placement = options_.placement.value_or(driver_->home());
  for (const access_grant& each : grants) {
    if (each.who == driver_->home() || each.who == placement) {
      return refuse(errc::invalid_argument,
                    "the home and the placement read and write: name other locations");
    }
  }
  return {};
}

// Errors: in_use, where more blocks were allocated meanwhile than there is room for.
status manager::list_all(peers_turn& out) {
  const std::size_t count_max = std::min(out.blocks.capacity(), out.rooms.capacity());
  out.blocks.clear();
  out.rooms.clear();
  bool has_all = true;
  engine_->records().visit([&](const tracked_range& range) {
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
status manager::check_room(const peers_turn& listed, const grant_list& after) {
  for (const address at : listed.blocks) {
    const result<block*> claimed = claim(at, pinned_record::allowed);
    if (!claimed && is_wrong_address(claimed.error().code)) continue;
    if (!claimed) return claimed.error();
    check((*claimed)->base == at, "another block is claimed than was named");
    const bool has_room = remapper::fit(after, (*claimed)->own_rights.get());
    engine_->records().unclaim(**claimed);
    if (!has_room)
      return refuse(errc::invalid_argument, "rights for more locations than a list takes");
  }
  return {};
}

// Blocks that are gone by now are nobody's.
status manager::refresh_all(const peers_turn& listed) {
  check(engine_ != nullptr, "rights are given before there is memory");
  for (block* const room : listed.rooms) {
    check(room->owned && room->is_room, "a block is taken for a room");
    if (status given = engine_->refresh_rights(*room); !given) return given;
  }
  for (const address at : listed.blocks) {
    const result<block*> claimed = claim(at, pinned_record::allowed);
    if (!claimed && is_wrong_address(claimed.error().code)) continue;
    if (!claimed) return claimed.error();
    // What is suspended gets the rights of then when it is resumed: there has to be room for them.
    const status given = engine_->refresh_rights(**claimed);
    check((*claimed)->base == at, "another block is claimed than was named");
    engine_->records().unclaim(**claimed);
    if (!given) return given;
  }
  return {};
}

// A block that is made meanwhile is looked at by allocate(), when it is tracked.
status manager::set_peers(std::span<const access_grant> grants) {
  if (status ready = set_up(); !ready) return ready;
  if (status valid = check_peers(grants); !valid) return valid;
  // Waits for a suspension or resumption that is under way: what it maps has the rights of all.
  const sync::lock_guard<sync::recursive_mutex> changing(changing_mutex_);
  const sync::lock_guard<sync::mutex> giving(peers_mutex_);
  const sync::lock_guard<sync::shared_mutex> still(engine_->rooms_mutex());
  remapper& remaps = engine_->core().remaps;
  const grant_list before = remaps.rights();
  grant_list after = before;
  for (const access_grant& each : grants) {
    // A location without rights is not named: a driver that does not know it refuses the list.
    if (each.rights == access::none && after.of(each.who) == access::none) continue;
    if (!after.set(each))
      return refuse(errc::invalid_argument, "rights for more locations than a list takes");
  }
  peers_turn listed;
  const std::size_t count_max = engine_->records().size() + 1;
  if (status room = reserve_more(listed.blocks, count_max); !room) return room;
  if (status room = reserve_more(listed.rooms, count_max); !room) return room;
  status done = list_all(listed);
  if (done) done = check_room(listed, after);
  if (done) done = check_reach(*driver_, options_.placement.value_or(driver_->home()), grants);
  if (!done) return done;
  if (status set = remaps.set_rights(after); !set) return set;
  done = list_all(listed);
  if (done) done = refresh_all(listed);
  if (done) return done;
  const status undone = remaps.set_rights(before);
  check(undone.has_value(), "rights that were in force do not fit into their list");
  const status restored = try_to_close([&] {
    (void)list_all(listed);  // with what was made meanwhile, as far as there is room
    return refresh_all(listed);
  });
  if (restored) remaps.forget_others(before);
  return done;
}

result<std::vector<memory_segment>> manager::segments(address_range range) {
  const result<range_info> found = find(range.base);
  if (!found) return found.error();
  const result<block*> claimed = claim(found->base, pinned_record::allowed);
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
  engine_->records().unclaim(**claimed);
  if (!done) return done.error();
  check(!listed.empty(), "a range with bytes touches no piece");
  return listed;
}

std::uint64_t manager::spilled_bytes() const noexcept {
  if (!is_set_up_.load(std::memory_order_acquire) || !made_in_.is_here()) return 0;
  const physical_statistics now = engine_->memory().statistics();
  check(now.spilled_bytes <= now.footprint_bytes, "more is spilled than is held");
  return now.spilled_bytes;
}

// ---- contents ------------------------------------------------------------------------

// What a block needs beside memory. On failure it is gone.
status manager::finish_made(block& made) {
  check(made.claimed, "a block is finished that is not its maker's");
  status finished = engine_->refresh_rights(made);
  if (finished) finished = fill_acquired(made, 0, made.stream);
  if (finished) return finished;
  const result<ticket_ref> last_use = engine_->time().mark(made.stream);
  const ticket_ref until = last_use ? *last_use : made.last_use;
  engine_->discard(made, until);
  return finished;
}

// Behind the work of those who had the memory before: the block's stream is ordered so.
status manager::fill_acquired(const block& of, std::uint64_t from_bytes, stream_handle stream) {
  if (!clears_on_acquire()) return {};
  check(from_bytes < of.sizes.mapped_bytes, "no byte of a block is filled");
  const std::uint8_t value = options_.contents == contents_rule::poison ? poison_byte : 0;
  return driver_->fill({{of.base + from_bytes, of.sizes.mapped_bytes - from_bytes}, value, stream});
}

// Where the driver refuses it, what was added goes again; if it refuses that too, the block stays
// larger. It is at its address either way. The thread waits for another stream than the block's.
status manager::fill_grown(block& of, const range_sizes& before, bool is_named) {
  if (of.sizes.user_bytes <= before.user_bytes || !clears_on_acquire()) return {};
  timeline& time = engine_->time();
  const result<stream_handle> filler = choose_filler(of.stream, is_named);
  status filled = filler ? fill_acquired(of, before.user_bytes, *filler) : status{filler.error()};
  if (filled && *filler != of.stream) {
    const result<ticket_ref> arrived = time.mark(*filler);
    filled = arrived ? time.wait(*arrived) : status{arrived.error()};
  }
  if (filled) return filled;
  check(of.claimed && of.sizes.mapped_bytes >= before.mapped_bytes, "a block grew to less");
  const result<ticket_ref> last_use = record_use(of.stream, is_named);
  if (last_use) (void)engine_->shrink(of, {before, of.stream, *last_use});
  return filled;
}

status manager::fill_released(block& of, std::uint64_t from_bytes, stream_handle stream) {
  if (!clears_on_release() || of.sizes.user_bytes == 0 || !of.has_memory) return {};
  if (of.is_suspended) return {};
  check(of.claimed && from_bytes < of.sizes.mapped_bytes, "no byte of a block is filled");
  if (status unlocked = engine_->unlock(of); !unlocked) return unlocked;
  if (of.own_rights != nullptr && of.own_rights->of(driver_->home()) != access::read_write) {
    const access_grant again{driver_->home(), access::read_write};
    if (status given = engine_->set_own_rights(of, {&again, 1}); !given) return given;
  }
  const std::uint8_t value = options_.contents == contents_rule::poison ? poison_byte : 0;
  return driver_->fill({{of.base + from_bytes, of.sizes.mapped_bytes - from_bytes}, value, stream});
}

}  // namespace vmm

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module vmm.optimizer;

import vmm.backend;
import vmm.intrusive;
import vmm.physical;
import vmm.reservation;
import vmm.std;
import vmm.support;
import vmm.sync;
import vmm.timeline;
import vmm.tracker;
import vmm.va;

namespace vmm {

// ---- coming --------------------------------------------------------------------------

result<block*> engine::build(const block_request& request) {
  const result<block*> fresh = blocks_.acquire();
  if (!fresh) return fresh;
  block& made = **fresh;
  check(made.memories.empty() && made.where.range.empty(),
        "a recycled block has memory or addresses");
  made.sizes = request.sizes;
  made.stream = request.stream;
  made.room_bytes = request.sizes.reserved_bytes;
  made.alignment_bytes = request.alignment_bytes;
  made.rights_version = core_.remaps.rights_version();
  if (status mapped = map_fresh(made, request); !mapped) return mapped.error();
  const status tracked = records_.insert_claimed(made);
  check(tracked.has_value(), "an extent that address space handed out overlaps a tracked one");
  check_block(made);
  return &made;
}

// What holds of a tracked block between its changes.
void engine::check_block(const block& kept) noexcept {
  check(kept.claimed && kept.is == unmap_entry::place::outside,
        "a block is changed without a claim");
  check(kept.base == kept.where.range.base, "a block is not at its addresses");
  check(kept.sizes.reserved_bytes <= kept.where.range.size_bytes, "a block has too few addresses");
  check(kept.locked_count <= kept.memories.size(), "more pieces are locked than a block has");
}

// On failure `fresh` is gone: released, or retired where its mappings would not be undone.
status engine::map_fresh(block& fresh, const block_request& request) {
  const result<extent> space =
      core_.space.allocate({request.sizes.reserved_bytes, request.alignment_bytes});
  if (!space) {
    blocks_.release(fresh);
    return space.error();
  }
  check(space->range.size_bytes >= request.sizes.mapped_bytes,
        "an extent is shorter than its block");
  fresh.where = *space;
  fresh.base = space->range.base;
  if (status gathered = core_.memory.acquire(request.sizes.mapped_bytes, fresh.memories);
      !gathered) {
    finish(fresh);
    return gathered;
  }
  check(size_of(fresh.memories, fresh.memories.size()) == request.sizes.mapped_bytes,
        "the pieces are not what is to be mapped");
  mapping_plan plan = plan_of(fresh);
  plan.is_named = true;
  const remap_outcome mapped = core_.remaps.map(plan);
  if (mapped.result) return {};
  drop_holders(fresh.memories, 0, ticket_ref{});
  fresh.has_memory = false;
  fresh.memories.resize(mapped.mapped_count);
  if (mapped.mapped_count == 0) {
    finish(fresh);
  } else {
    retire(fresh, ticket_ref{});
  }
  return mapped.result;
}

// ---- growing -------------------------------------------------------------------------

status engine::grow_in_place(block& grown, const resize_plan& plan) {
  if (status unlocked = unlock(grown); !unlocked) return unlocked;
  check_block(grown);
  check(grown.locked_count == 0, "a block grows while its last pieces are locked");
  check(plan.sizes.mapped_bytes > grown.sizes.mapped_bytes,
        "a block grows to at most its present "
        "size");
  if (grown.is_room && is_stale(grown)) {
    return refuse(errc::in_use, "unfinished work may still use the addresses that were given up");
  }
  const std::uint64_t old_space_bytes = grown.where.range.size_bytes;
  if (status room = extend_addresses(grown, plan.sizes.reserved_bytes); !room) return room;
  memory_list memories;
  status done = copy_list(grown.memories, memories, 1);
  if (done) done = gather(plan, plan.sizes.mapped_bytes - grown.sizes.mapped_bytes, memories);
  if (done) done = map_tail(grown, memories, plan);
  if (!done) trim_addresses(grown, std::max(old_space_bytes, grown.sizes.mapped_bytes));
  check_block(grown);
  return done;
}

// Behind the pieces that the list has.
status engine::gather(const resize_plan& plan, std::uint64_t size_bytes, memory_list& memories) {
  check(size_bytes > 0, "no memory is collected");
  if (plan.one_handle) return core_.memory.acquire_whole(size_bytes, memories);
  if (plan.handle_bytes == 0) return core_.memory.acquire(size_bytes, memories);
  if (status room = core_.memory.check_room(size_bytes); !room) return room;
  const std::size_t before = memories.size();
  for (std::uint64_t left_bytes = size_bytes; left_bytes > 0;) {
    const std::uint64_t next_bytes = std::min(left_bytes, plan.handle_bytes);
    if (status gathered = core_.memory.acquire(next_bytes, memories); !gathered) {
      core_.memory.give_back(memories, before);
      return gathered;
    }
    left_bytes -= next_bytes;
  }
  check(memories.size() > before, "memory was collected without a piece");
  return {};
}

status engine::map_tail(block& grown, memory_list& memories, const resize_plan& plan) {
  const std::size_t old_count = grown.memories.size();
  check(memories.size() > old_count, "a block grows without a piece");
  const auto fresh = std::span<physical_memory* const>(memories).subspan(old_count);
  const remap_outcome mapped =
      core_.remaps.map({grown.base + grown.sizes.mapped_bytes, fresh, plan.stream,
                        grown.own_rights.get(), plan.is_named});
  range_sizes sizes = plan.sizes;
  sizes.reserved_bytes = std::max(sizes.reserved_bytes, grown.sizes.reserved_bytes);
  if (!mapped.result) {
    core_.memory.give_back(memories, old_count + mapped.mapped_count);
    if (mapped.mapped_count == 0) return mapped.result;
    // Mappings that the driver would not undo become part of the block, which must not use them.
    sizes = grown.sizes;
    for (const physical_memory* part : fresh.first(mapped.mapped_count))
      sizes.mapped_bytes += part->size_bytes;
    sizes.reserved_bytes = std::max(sizes.reserved_bytes, sizes.mapped_bytes);
    grown.locked_count = mapped.mapped_count;
    check(sizes.mapped_bytes <= grown.where.range.size_bytes,
          "what stands reaches behind the block");
  }
  place(grown, sizes, memories);
  check(!mapped.result || grown.sizes.mapped_bytes == plan.sizes.mapped_bytes,
        "a block grew to another size than requested");
  return mapped.result;
}

status engine::extend_addresses(block& grown, std::uint64_t size_bytes) {
  if (size_bytes <= grown.where.range.size_bytes) return {};
  const status room = core_.space.grow(grown.where, size_bytes);
  check(!room || grown.where.range.size_bytes >= size_bytes, "an extent grew by too little");
  return room;
}

// Addresses that cannot be cut off for want of host memory stay with the block and go with it.
void engine::trim_addresses(block& shrunk, std::uint64_t size_bytes) noexcept {
  check(size_bytes >= shrunk.sizes.mapped_bytes, "addresses are cut off that are mapped");
  if (shrunk.where.range.size_bytes > size_bytes)
    (void)core_.space.shrink(shrunk.where, size_bytes);
  check(shrunk.where.range.size_bytes >= shrunk.sizes.mapped_bytes,
        "addresses were cut off that are mapped");
}

// ---- shrinking -----------------------------------------------------------------------

status engine::unlock(block& locked) {
  check(locked.claimed, "a block is unlocked without a claim");
  if (locked.locked_count == 0) return {};
  check(locked.locked_count <= locked.memories.size(), "more pieces are locked than a block has");
  memory_list memories;
  if (status copied = copy_list(locked.memories, memories, 0); !copied) return copied;
  const std::size_t keep_count = memories.size() - locked.locked_count;
  const auto tail = std::span<physical_memory* const>(locked.memories).subspan(keep_count);
  const address tail_base = locked.base + size_of(memories, keep_count);
  const remap_outcome undone = core_.remaps.unmap({tail_base, tail, locked.stream, nullptr});
  check(undone.mapped_count <= locked.locked_count, "more pieces are locked than before");
  locked.locked_count = undone.mapped_count;
  const resize_plan same{locked.sizes, locked.stream, ticket_ref{}};
  keep_leading(locked, memories, keep_count + undone.mapped_count, same);
  return undone.result;
}

status engine::shrink(block& shrunk, const resize_plan& plan) {
  if (status unlocked = unlock(shrunk); !unlocked) return unlocked;
  check_block(shrunk);
  check(plan.sizes.mapped_bytes <= shrunk.sizes.mapped_bytes, "a block shrinks to more than it is");
  const std::size_t keep_count = leading_count(shrunk.memories, plan.sizes.mapped_bytes);
  if (keep_count == shrunk.memories.size()) {
    memory_list memories;
    if (status copied = copy_list(shrunk.memories, memories, 0); !copied) return copied;
    range_sizes sizes = shrunk.sizes;
    sizes.user_bytes = plan.sizes.user_bytes;
    place(shrunk, sizes, memories);
    return {};
  }
  const result<bool> idle = core_.time.passed(plan.last_use);
  if (!idle) return idle.error();
  return *idle ? cut_idle_tail(shrunk, plan, keep_count) : retire_tail(shrunk, plan, keep_count);
}

status engine::cut_idle_tail(block& shrunk, const resize_plan& plan, std::size_t keep_count) {
  memory_list memories;
  if (status copied = copy_list(shrunk.memories, memories, 0); !copied) return copied;
  check(keep_count < memories.size(), "a tail without a piece is cut off");
  const auto tail = std::span<physical_memory* const>(shrunk.memories).subspan(keep_count);
  const address tail_base = shrunk.base + size_of(memories, keep_count);
  mapping_plan cut = plan_of(shrunk);
  cut.at = tail_base;
  cut.memories = tail;
  const remap_outcome undone = core_.remaps.detach(cut);
  check(undone.mapped_count <= tail.size(), "more pieces stand mapped than were cut off");
  if (!undone.result && !undone.lost) return undone.result;
  shrunk.locked_count = undone.mapped_count;
  keep_leading(shrunk, memories, keep_count + undone.mapped_count, plan);
  return {};
}

// Cuts the block to the first pieces of its list, of which `pieces` is a copy.
void engine::keep_leading(block& cut, memory_list& memories, std::size_t keep_count,
                          const resize_plan& plan) noexcept {
  check(keep_count <= memories.size(), "more pieces are kept than there are");
  memories.resize(keep_count);
  range_sizes sizes{plan.sizes.user_bytes, size_of(memories, keep_count), 0};
  sizes.reserved_bytes = std::clamp(cut.room_bytes, sizes.mapped_bytes, cut.sizes.reserved_bytes);
  place(cut, sizes, memories);
  drop_holders(memories, keep_count, plan.last_use);  // of what the block had before
  trim_addresses(cut, sizes.reserved_bytes);
  check_block(cut);
}

// The tail becomes a range of its own, so that its addresses wait while the block goes on.
status engine::retire_tail(block& shrunk, const resize_plan& plan, std::size_t keep_count) {
  const result<block*> spare = blocks_.acquire();
  if (!spare) return spare.error();
  block& tail = **spare;
  check(keep_count > 0 && keep_count < shrunk.memories.size(), "a block is not cut in two");
  const std::uint64_t keep_bytes = size_of(shrunk.memories, keep_count);
  memory_list memories;
  status done = copy_list(shrunk.memories, memories, 0);
  if (done) done = copy_list(shrunk.memories, tail.memories, 0);
  if (done) {
    const result<extent> rest = core_.space.split(shrunk.where, keep_bytes);
    done = rest ? status{} : status{rest.error()};
    if (rest) tail.where = *rest;
  }
  if (!done) {
    blocks_.release(tail);
    return done;
  }
  memories.resize(keep_count);
  tail.memories.erase(tail.memories.begin(),
                      tail.memories.begin() + static_cast<std::ptrdiff_t>(keep_count));
  check(memories.size() + tail.memories.size() == shrunk.memories.size(),
        "a piece is in neither half of a block, or in both");
  tail.base = shrunk.base + keep_bytes;
  tail.stream = shrunk.stream;
  place(shrunk, {plan.sizes.user_bytes, keep_bytes, keep_bytes}, memories);
  check_block(shrunk);
  check(tail.base == tail.where.range.base, "a tail is not at its addresses");
  retire(tail, plan.last_use);
  return {};
}

// ---- rooms ---------------------------------------------------------------------------

status engine::build_rooms(const room_request& request, std::span<block*> rooms) {
  check(request.count > 0 && rooms.size() == request.count, "rooms are built into no place");
  check(request.size_bytes > 0, "a room has no addresses");
  const result<extent> space = core_.space.allocate({request.count * request.size_bytes, 0});
  if (!space) return space.error();
  if (status split = split_rooms(*space, request, rooms); !split) return split;
  for (block* const room : rooms) {
    const status tracked = records_.insert_claimed(*room);
    check(tracked.has_value(), "an extent that address space handed out overlaps a tracked one");
    check_block(*room);
  }
  return {};
}

// On failure nothing is left of the rooms, nor of their addresses.
status engine::split_rooms(extent space, const room_request& request, std::span<block*> rooms) {
  status done;
  std::size_t made_count = 0;
  for (; done && made_count < rooms.size(); ++made_count) {
    const result<block*> blank = blocks_.acquire();
    if (!blank) {
      done = blank.error();
      break;
    }
    block& room = **blank;
    room.where = space;
    if (made_count + 1 < rooms.size()) {
      const result<extent> rest = core_.space.split(room.where, request.size_bytes);
      if (!rest) {
        blocks_.release(room);
        done = rest.error();
        break;
      }
      space = *rest;
    }
    room.base = room.where.range.base;
    room.sizes = {0, 0, request.size_bytes};
    room.room_bytes = request.size_bytes;
    room.stream = request.stream;
    room.is_room = room.owned = true;
    rooms[made_count] = &room;
  }
  if (done) return done;
  check(made_count < rooms.size(), "every room was made, and one was not");
  core_.space.free(space);
  while (made_count > 0) {
    block& room = *std::exchange(rooms[--made_count], nullptr);
    core_.space.free(room.where);
    blocks_.release(room);
  }
  return done;
}

status engine::reserve_cuts(std::span<room_cut> cuts) noexcept {
  for (room_cut& cut : cuts) {
    check(cut.spare == nullptr, "I5: a room is cut twice");
    const status ready = reserve_cut(cut);
    if (ready) continue;
    drop_cuts(cuts);
    return ready;
  }
  return {};
}

void engine::drop_cuts(std::span<room_cut> cuts) noexcept {
  for (room_cut& cut : cuts) {
    if (block* const spare = std::exchange(cut.spare, nullptr)) blocks_.release(*spare);
    check(cut.room->claimed, "a cut is given up of a room that has no owner");
  }
}

void engine::cut_rooms(std::span<room_cut> cuts, const ticket_ref& last_use) noexcept {
  check(!cuts.empty(), "no room is cut");
  for (room_cut& cut : cuts) apply_cut(cut, last_use);
}

// What cutting needs of host memory: the record of what is cut off, with its pieces.
status engine::reserve_cut(room_cut& cut) noexcept {
  const block& room = *cut.room;
  check_block(room);
  check(room.is_room && cut.user_bytes <= cut.mapped_bytes,
        "a block without addresses of its own "
        "is cut");
  const std::size_t keep_count = leading_count(room.memories, cut.mapped_bytes);
  if (keep_count == room.memories.size()) return {};
  const result<block*> spare = blocks_.acquire();
  if (!spare) return spare.error();
  cut.spare = *spare;
  memory_list& tail = cut.spare->memories;
  if (status place = reserve_more(tail, room.memories.size() - keep_count); !place) return place;
  tail.insert(tail.end(), room.memories.begin() + static_cast<std::ptrdiff_t>(keep_count),
              room.memories.end());
  check(!tail.empty(), "a room is cut and loses nothing");
  return {};
}

void engine::apply_cut(room_cut& cut, const ticket_ref& last_use) noexcept {
  block& room = *cut.room;
  range_sizes sizes = room.sizes;
  sizes.user_bytes = cut.user_bytes;
  if (cut.spare == nullptr) return records_.cut(room, sizes, room.memories.size());
  block& tail = *std::exchange(cut.spare, nullptr);
  const std::size_t keep_count = room.memories.size() - tail.memories.size();
  sizes.mapped_bytes = size_of(room.memories, keep_count);
  check(room.locked_count <= tail.memories.size(), "a room keeps pieces that it must not use");
  room.locked_count = 0;  // they go with the others
  tail.base = room.base + sizes.mapped_bytes;
  tail.stream = room.stream;
  tail.inside = &room;
  room.stale_count.fetch_add(1, std::memory_order_acq_rel);
  records_.cut(room, sizes, keep_count);
  check_block(room);
  retire(tail, last_use);
}

// ---- moving --------------------------------------------------------------------------

status engine::move(block& moved, const resize_plan& plan) {
  if (status unlocked = unlock(moved); !unlocked) return unlocked;
  const result<block*> acquired = blocks_.acquire();
  if (!acquired) return acquired.error();
  block& spare = **acquired;
  check_block(moved);
  check(moved.locked_count == 0 && moved.has_memory, "a block moves that must not use its pieces");
  const result<extent> space =
      core_.space.allocate({plan.sizes.reserved_bytes, moved.alignment_bytes});
  if (!space) {
    blocks_.release(spare);
    return space.error();
  }
  spare.where = *space;
  spare.base = space->range.base;
  spare.stream = plan.stream;
  spare.has_memory = false;
  if (status mapped = map_elsewhere(moved, spare, plan); !mapped) return mapped;

  const address old_base = moved.base;
  const address_range before{old_base, moved.sizes.mapped_bytes};
  std::swap(moved.where, spare.where);
  const status placed =
      records_.relocate(moved, {spare.base, plan.sizes, plan.stream}, spare.memories);
  check(placed.has_value(), "an extent that address space handed out overlaps a tracked one");
  spare.base = old_base;
  moved.room_bytes = plan.sizes.reserved_bytes;
  check(moved.base != spare.base, "a block has moved to where it was");
  check_block(moved);
  check(spare.base == spare.where.range.base, "the old place is not where the block was");
  tell(moved, before);
  leave_old_place(spare, plan.last_use);
  return {};
}

// Maps the block's pieces, and new ones behind them, at the spare's addresses. On failure the spare
// is gone.
status engine::map_elsewhere(block& moved, block& spare, const resize_plan& plan) {
  const std::size_t old_count = moved.memories.size();
  mapping_plan elsewhere{};
  status done = copy_list(moved.memories, spare.memories, 1);
  if (done && plan.sizes.mapped_bytes > moved.sizes.mapped_bytes) {
    done = core_.memory.acquire(plan.sizes.mapped_bytes - moved.sizes.mapped_bytes, spare.memories);
  }
  if (done && !may_alias_) done = core_.time.wait(plan.last_use);
  remap_outcome mapped{done, 0};
  if (done) {
    elsewhere = plan_of(spare);
    elsewhere.own_rights = moved.own_rights.get();
    elsewhere.of_memories = moved.part_rights.get();
    elsewhere.is_named = plan.is_named;
    mapped =
        may_alias_ ? core_.remaps.map(elsewhere) : core_.remaps.exchange(plan_of(moved), elsewhere);
  }
  if (mapped.result) return {};

  check(mapped.mapped_count <= std::max(spare.memories.size(), old_count),
        "too much stands mapped");
  drop_holders(spare.memories, std::min(old_count, spare.memories.size()), ticket_ref{});
  const bool spare_stands = may_alias_ || mapped.of_new;
  if (mapped.lost) lose(moved, mapped.of_new ? 0 : mapped.mapped_count, nullptr);
  spare.memories.resize(spare_stands ? mapped.mapped_count : 0);
  if (spare.memories.empty()) {
    finish(spare);
  } else {
    retire(spare, ticket_ref{});
  }
  return mapped.result;
}

// The place that a block has left: unmapped now if nothing uses it, else when its ticket has
// passed.
void engine::leave_old_place(block& spare, const ticket_ref& last_use) noexcept {
  check(!spare.linked && !spare.has_memory, "the place that a block has left is still its own");
  if (!may_alias_) {
    spare.memories.clear();  // unmapped before the new place was mapped
    finish(spare);
    return;
  }
  const result<bool> idle = core_.time.passed(last_use);
  if (!idle || !*idle) return retire(spare, last_use);
  if (unmap_range(spare)) return finish(spare);
  retired_.count_refusal();
  retire(spare, last_use);
}

// ---- showing -------------------------------------------------------------------------

status engine::take_over(block& target, block& source, stream_handle user) {
  check(target.claimed && source.claimed, "a block takes over memory that is not claimed");
  return show(target, source, {user, false});
}

status engine::alias(block& target, block& source, stream_handle user) {
  if (!may_alias_)
    return refuse(errc::not_supported, "this backend maps a handle at one address only");
  check(target.claimed && source.claimed, "a block aliases memory that is not claimed");
  return show(target, source, {user, true});
}

status engine::order_memories(stream_handle user, std::span<physical_memory* const> memories) {
  for (const physical_memory* part : memories) {
    check(part != nullptr && part->size_bytes > 0, "a stream is ordered behind no memory");
    if (status ordered = core_.time.order(user, part->last_use); !ordered) return ordered;
  }
  return {};
}

status engine::settle(const block& used) {
  check(used.claimed, "a block is waited for without a claim");
  status settled = core_.time.wait(used.last_use);
  for (const physical_memory* part : used.memories) {
    if (!settled) return settled;
    settled = core_.time.wait(part->last_use);
  }
  return settled;
}

status engine::show(block& target, block& source, const show_plan& plan) {
  check(&target != &source, "a block is copied onto itself");
  check(source.sizes.user_bytes > 0 && source.sizes.mapped_bytes <= target.sizes.mapped_bytes,
        "the source's memory must fit the target's addresses");
  check_block(target);
  check_block(source);
  check(source.has_memory && target.has_memory, "a block without memory is copied");
  check(target.part_rights == nullptr, "a part with rights of its own is replaced");
  memory_list memories;
  if (status copied = copy_list(source.memories, memories, 1); !copied) return copied;
  const std::uint64_t missing_bytes = target.sizes.mapped_bytes - source.sizes.mapped_bytes;
  if (missing_bytes > 0) {
    if (status filled = core_.memory.acquire(missing_bytes, memories); !filled) return filled;
  }
  status ready = order_memories(plan.user, memories);
  if (ready) ready = release_source(source);
  if (!ready) {
    core_.memory.give_back(memories, source.memories.size());
    return ready;
  }
  const mapping_plan shown_plan{target.base, std::span<physical_memory* const>(memories),
                                target.stream, target.own_rights.get(), target.stream == plan.user};
  const remap_outcome shown = core_.remaps.exchange(plan_of(target), shown_plan);
  if (!shown.result) return undo_show(target, source, memories, shown);
  place(target, target.sizes, memories);
  drop_holders(memories, 0, ticket_ref{});  // what the target had before
  if (plan.shared) {
    for (physical_memory* part : source.memories) core_.memory.add_holder(*part);
  } else {
    empty_source(source);
  }
  check_block(target);
  check_block(source);
  return {};
}

// Where no handle may be mapped twice the source lets go first.
status engine::release_source(block& source) noexcept {
  if (may_alias_) return {};
  check(source.locked_count == 0, "a source lets go of pieces that it must not use");
  const remap_outcome freed = core_.remaps.detach(plan_of(source));
  if (!freed.lost) return freed.result;
  lose(source, freed.mapped_count, nullptr);
  return remapper::contents_lost();
}

// Both blocks as before, or marked as lost where the driver would not have it.
status engine::undo_show(block& target, block& source, memory_list& memories,
                         const remap_outcome& shown) noexcept {
  check(!shown.result, "what was shown is undone");
  const std::size_t source_count = source.memories.size();
  check(source_count <= memories.size(), "a target has fewer pieces than its source");
  if (shown.lost) {
    drop_holders(memories, source_count, ticket_ref{});
    lose(target, shown.mapped_count, shown.of_new ? &memories : nullptr);
  } else {
    core_.memory.give_back(memories, source_count);
  }
  if (may_alias_) return shown.result;
  const remap_outcome restored = core_.remaps.restore(plan_of(source), 0);
  if (restored.result) return shown.result;
  lose(source, restored.mapped_count, nullptr);
  return remapper::contents_lost();
}

// The source's pieces belong to the target now. Where the driver will not undo the source's
// mappings they stand, and are undone when the source is freed.
void engine::empty_source(block& source) noexcept {
  check(source.has_memory, "a source is emptied that has no memory");
  source.has_memory = false;
  const std::size_t standing_count =
      may_alias_ ? core_.remaps.unmap(plan_of(source)).mapped_count : 0;
  memory_list memories;
  place(source, {0, 0, source.sizes.reserved_bytes}, memories);
  memories.resize(standing_count);
  place(source, {0, size_of(memories, standing_count), source.sizes.reserved_bytes}, memories);
  check(source.sizes.user_bytes == 0, "an emptied source has memory for its user");
}

// A block whose contents the driver would not put back. What stands mapped at its address, of its
// own pieces or of those that were to take their place, is undone when it is freed.
void engine::lose(block& lost, std::size_t standing_count, memory_list* instead) noexcept {
  check(lost.claimed, "a lost block is not claimed");
  memory_list own;
  place(lost, {0, 0, lost.sizes.reserved_bytes}, own);
  if (lost.has_memory) drop_holders(own, 0, ticket_ref{});
  lost.has_memory = false;
  memory_list& standing = instead == nullptr ? own : *instead;
  check(standing_count <= standing.size(), "more pieces stand mapped than there are");
  standing.resize(standing_count);
  place(lost, {0, size_of(standing, standing_count), lost.sizes.reserved_bytes}, standing);
}

// ---- rights --------------------------------------------------------------------------

namespace {

// What a block's rights become, or what gives back those that it had.
struct rights_lists {
  std::unique_ptr<grant_list> own;  // null: as they are
  std::unique_ptr<memory_rights> of_memories;
};
struct block_rights_change {
  rights_lists after;
  rights_lists undo;
};

result<std::unique_ptr<grant_list>> kept(const grant_list& rights) noexcept {
  std::unique_ptr<grant_list> made{new (std::nothrow) grant_list(rights)};
  if (made == nullptr)
    return refuse(errc::out_of_host_memory, "no host memory is left for a block's rights");
  return made;
}

// Of grants to all of a block: its own rights, and those of its mappings that have some. Of grants
// to a part of it: those of the part's mappings, which begin with the block's.
result<block_rights_change> change_of(const block& of, const mapping_plan& part, bool is_whole,
                                      const grant_list& all, std::span<const access_grant> grants) {
  block_rights_change made;
  const grant_list own = of.own_rights != nullptr ? *of.own_rights : grant_list{};
  if (is_whole) {
    const result<own_rights_change> change = own_rights_change::make(own, all, grants);
    if (!change) return change.error();
    result<std::unique_ptr<grant_list>> after = kept(change->after);
    result<std::unique_ptr<grant_list>> undo = kept(change->undo);
    if (!after || !undo) return after ? undo.error() : after.error();
    made.after.own = std::move(*after);
    made.undo.own = std::move(*undo);
    if (of.part_rights == nullptr) return made;
  }
  for (rights_lists* const each : {&made.after, &made.undo}) {
    result<std::unique_ptr<memory_rights>> copy =
        memory_rights::copy_of(of.part_rights.get(), part.memories.size());
    if (!copy) return copy.error();
    each->of_memories = std::move(*copy);
  }
  for (const physical_memory* memory : part.memories) {
    const grant_list* const before =
        of.part_rights == nullptr ? nullptr : of.part_rights->of(*memory);
    if (is_whole && before == nullptr) continue;
    const result<own_rights_change> change =
        own_rights_change::make(before != nullptr ? *before : own, all, grants);
    if (!change) return change.error();
    made.after.of_memories->set(*memory, change->after);
    made.undo.of_memories->set(*memory, change->undo);
  }
  return made;
}

// All or nothing, as far as the driver lets it.
status change_rights(remapper& remaps, block& of, const mapping_plan& part, bool is_whole,
                     std::span<const access_grant> grants) {
  check(!part.memories.empty(), "no memory is to have rights");
  const std::uint64_t version = remaps.rights_version();
  result<block_rights_change> change = change_of(of, part, is_whole, remaps.rights(), grants);
  if (!change) return change.error();
  const auto give = [&](const rights_lists& lists) {
    mapping_plan plan = part;
    if (lists.own != nullptr) plan.own_rights = lists.own.get();
    plan.of_memories = lists.of_memories.get();
    return remaps.give_access(plan);
  };
  const status given = give(change->after);
  if (!given) {
    // One call of the driver changes nothing where it fails.
    if (change->undo.of_memories != nullptr) (void)try_to_close([&] { return give(change->undo); });
    return given;
  }
  if (is_whole) {
    of.own_rights = std::move(change->after.own);
    of.rights_version = version;
  }
  if (change->after.of_memories != nullptr) of.part_rights = std::move(change->after.of_memories);
  return {};
}

}  // namespace

status engine::set_own_rights(block& of, std::span<const access_grant> grants) {
  check(of.claimed && !grants.empty(), "a block is changed without a claim, or by no grant");
  if (status unlocked = unlock(of); !unlocked) return unlocked;
  return change_rights(core_.remaps, of, plan_of(of), true, grants);
}

status engine::set_part_rights(block& of, address_range part,
                               std::span<const access_grant> grants) {
  check(of.claimed, "a part of a block is changed without a claim");
  if (status unlocked = unlock(of); !unlocked) return unlocked;
  mapping_plan plan = plan_of(of);
  std::size_t first = 0;
  address at = of.base;
  for (; first < of.memories.size() && at < part.base; ++first)
    at = at + of.memories[first]->size_bytes;
  std::size_t last = first;
  address end = at;
  for (; last < of.memories.size() && end < part.end(); ++last)
    end = end + of.memories[last]->size_bytes;
  if (at != part.base || end != part.end()) {
    return refuse(errc::not_supported,
                  "a border of the part lies inside a mapping of the block, which has one set of "
                  "rights: manager::segments() lists the mappings");
  }
  plan.at = at;
  plan.memories = plan.memories.subspan(first, last - first);
  return change_rights(core_.remaps, of, plan, false, grants);
}

status engine::refresh_rights(block& of) {
  check(of.claimed, "access is set on a block that is not claimed");
  const std::uint64_t version = core_.remaps.rights_version();
  if (!of.fits_beside(core_.remaps.rights())) return too_many_grants;
  if (of.rights_version == version || of.sizes.mapped_bytes == 0 || of.is_suspended) return {};
  const status given = core_.remaps.give_access(plan_of(of));
  if (given) of.rights_version = version;
  return given;
}

// ---- going ---------------------------------------------------------------------------

// The driver has its memory, except pieces that a resumption left mapped; its addresses go at once.
status engine::dissolve_suspended(block& gone) {
  check(gone.is_suspended && !gone.is_room, "a block in use ends as a suspended one");
  address at = gone.base;
  for (physical_memory* part : gone.memories) {
    const mapping_plan one{at, {&part, 1}, gone.stream, nullptr};
    at = at + part->size_bytes;
    if (part->mapping_count == 0) continue;
    if (status undone = core_.remaps.unmap(one).result; !undone) return undone;
  }
  records_.erase(gone);
  for (physical_memory* part : gone.memories) core_.memory.end_suspended(*part);
  gone.memories.clear();
  gone.has_memory = false;
  finish(gone);
  return {};
}

status engine::dissolve(block& gone, const ticket_ref& last_use) {
  check_block(gone);
  if (gone.is_suspended) return dissolve_suspended(gone);
  const result<bool> idle = core_.time.passed(last_use);
  if (!idle) return idle.error();
  if (!*idle) {
    records_.erase(gone);
    retire(gone, last_use);
    return {};
  }
  const remap_outcome undone = core_.remaps.detach(plan_of(gone));
  if (!undone.result && !undone.lost) return undone.result;
  records_.erase(gone);
  if (gone.has_memory) drop_holders(gone.memories, 0, last_use);
  gone.has_memory = false;
  check(undone.mapped_count <= gone.memories.size(), "more pieces stand mapped than a block has");
  gone.memories.resize(undone.mapped_count);
  if (undone.mapped_count > 0 || gone.stale_count.load(std::memory_order_acquire) != 0) {
    retire(gone, last_use);
  } else {
    finish(gone);
  }
  return {};
}

void engine::discard(block& gone, const ticket_ref& last_use) noexcept {
  check_block(gone);
  records_.erase(gone);
  retire(gone, last_use);
}

// A range whose addresses wait for its last use. Its pieces move on at once where they may be
// mapped twice.
void engine::retire(block& range, const ticket_ref& last_use) noexcept {
  check(!range.linked && !range.claimed, "I4: a range is retired while it is tracked or cached");
  check(range.where.range.empty() == (range.inside != nullptr),
        "a range without addresses is retired");
  const std::uint64_t size_bytes =
      range.inside == nullptr ? range.where.range.size_bytes : plan_of(range).size_bytes();
  range.last_use = ticket_ref{last_use};
  if (may_alias_ && range.has_memory) {
    drop_holders(range.memories, 0, last_use);
    range.has_memory = false;
  }
  retired_.push(range, size_bytes);
}

unmap_answer engine::ask(block& range) {
  if (range.stale_count.load(std::memory_order_acquire) != 0) return unmap_answer::waits;
  const result<bool> idle = core_.time.passed(range.last_use);
  if (!idle || !*idle) return unmap_answer::waits;
  check(range.last_use.known_passed(), "I2: a range is unmapped before its work has finished");
  return unmap_range(range) ? unmap_answer::unmapped : unmap_answer::refused;
}

void engine::reap(std::size_t count_max) { (void)retired_.reap(count_max, asks(), finishes()); }

void engine::reap_all() {
  reap(retired_.size());
  retired_.wait_for_asked();
}

bool engine::reap_waiting() {
  if (retired_.size() == 0) return false;
  ticket_ref oldest;
  const auto copy = [&](unmap_entry& range) { oldest = static_cast<block&>(range).last_use; };
  if (!retired_.look_at_oldest(copy)) {
    retired_.wait_for_asked();  // other threads have all of them: what they unmap is there now
    return true;
  }
  if (!core_.time.wait(oldest)) {
    retired_.defer_oldest([&](const unmap_entry& range) {
      return static_cast<const block&>(range).last_use.get() == oldest.get();
    });
    return false;
  }
  return retired_.reap_one(asks(), finishes()) != unmap_answer::refused;
}

// On failure the range keeps what stands mapped.
status engine::unmap_range(block& range) {
  check(!range.linked && range.base.value != 0, "I4: a range is unmapped while it is tracked");
  const remap_outcome undone = core_.remaps.unmap(plan_of(range));
  check(undone.mapped_count <= range.memories.size(), "more pieces stand mapped than a range has");
  check(!undone.result || undone.mapped_count == 0, "a range that was unmapped stands");
  if (range.has_memory) drop_holders(range.memories, undone.mapped_count, range.last_use);
  range.memories.resize(undone.mapped_count);
  return undone.result;
}

void engine::drop_holders(const memory_list& memories, std::size_t from,
                          const ticket_ref& last_use) noexcept {
  check(from <= memories.size(), "more pieces are kept than there are");
  for (std::size_t i = from; i < memories.size(); ++i)
    core_.memory.drop_holder(*memories[i], last_use);
}

void engine::place(block& owner, const range_sizes& sizes, memory_list& memories) noexcept {
  check(owner.claimed && sizes.reserved_bytes <= owner.where.range.size_bytes,
        "a block exceeds its addresses, or is not claimed");
  const address_range before{owner.base, owner.sizes.mapped_bytes};
  const status placed = records_.relocate(owner, {owner.base, sizes, owner.stream}, memories);
  check(placed.has_value(), "a block within its own extent overlaps another");
  if (owner.part_rights != nullptr) owner.part_rights->keep_only(owner.memories);
  tell(owner, before);
}

// The pieces that it gave up are still unowned.
void engine::tell(block& now, const address_range& before) noexcept {
  check(now.claimed, "a block has changed that is not claimed");
  const bool is_same = now.base == before.base && now.sizes.mapped_bytes == before.size_bytes;
  if (listener_ != nullptr && !is_same) listener_->changed(now, before.base);
}

// Gives back what an unmapped range still has: its addresses and its record.
void engine::finish(block& range) noexcept {
  check(range.memories.empty(), "a range is finished while pieces are mapped to it");
  check(!range.linked && range.is == unmap_entry::place::outside,
        "a range is finished while it is tracked, cached or retired");
  block* const room = range.inside;
  if (room == nullptr) core_.space.free(range.where);
  blocks_.release(range);
  if (room == nullptr) return;
  const std::uint32_t before = room->stale_count.fetch_sub(1, std::memory_order_acq_rel);
  check(before > 0, "I5: a room gave up less than has gone");
}

status engine::empty() {
  check(records_.size() == 0, "the engine is emptied while blocks are allocated");
  while (retired_.size() > 0) {
    if (!reap_waiting())
      return refuse(errc::in_use, "a retired range could not be unmapped: call close again");
  }
  check(core_.space.statistics().live_bytes == 0, "addresses are in use that no block has");
  return {};
}

status engine::validate() const noexcept {
  if (status valid = core_.validate(); !valid) return valid;
  if (status valid = retired_.validate(); !valid) return valid;
  return records_.validate();
}

}  // namespace vmm

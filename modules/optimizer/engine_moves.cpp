// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The engine's changes of existing blocks: growable blocks that give up memory, moves to other
// addresses, memory of one block mapped at another's addresses, and rights. engine.cpp creates
// blocks, resizes them in place, and frees them.
module vmm.optimizer;

import vmm.backend;
import vmm.base;
import vmm.physical;
import vmm.std;
import vmm.timeline;
import vmm.tracker;
import vmm.va;

namespace vmm {

// ---- growable blocks ---------------------------------------------------------------------------

status engine::build_growable_blocks(const growable_blocks_request& request,
                                     std::span<block*> growables) {
  check(request.count > 0 && growables.size() == request.count,
        "growable blocks are built without addresses");
  check(request.size_bytes > 0, "a growable block has no addresses");
  const result<extent> space = core_.space.allocate({request.count * request.size_bytes, 0});
  if (!space) return space.error();
  if (status split = split_growable_blocks(*space, request, growables); !split) return split;
  for (block* const growable : growables) {
    const status tracked = records_.insert_claimed(*growable);
    check(tracked.has_value(), "an extent that address space handed out overlaps a tracked one");
    check_block(*growable);
  }
  return {};
}

// On failure the growable blocks are removed and their addresses freed.
status engine::split_growable_blocks(extent space, const growable_blocks_request& request,
                                     std::span<block*> growables) {
  status done;
  std::size_t created_count = 0;
  for (; done && created_count < growables.size(); ++created_count) {
    const result<block*> blank = blocks_.acquire();
    if (!blank) {
      done = blank.error();
      break;
    }
    block& growable = **blank;
    growable.where = space;
    if (created_count + 1 < growables.size()) {
      const result<extent> rest = core_.space.split(growable.where, request.size_bytes);
      if (!rest) {
        blocks_.release(growable);
        done = rest.error();
        break;
      }
      space = *rest;
    }
    growable.base = growable.where.range.base;
    growable.sizes = {0, 0, request.size_bytes};
    growable.address_bytes = request.size_bytes;
    set_stream(growable, request.stream);
    growable.is_growable = growable.owned = true;
    growables[created_count] = &growable;
  }
  if (done) return done;
  check(created_count < growables.size(), "a growable block was not created");
  core_.space.free(space);
  while (created_count > 0) {
    block& growable = *std::exchange(growables[--created_count], nullptr);
    core_.space.free(growable.where);
    blocks_.release(growable);
  }
  return done;
}

status engine::reserve_cuts(std::span<block_cut> cuts) noexcept {
  for (block_cut& cut : cuts) {
    check(cut.spare == nullptr, "engine I5: a growable block is cut twice");
    const status ready = reserve_cut(cut);
    if (ready) continue;
    drop_cuts(cuts);
    return ready;
  }
  return {};
}

void engine::drop_cuts(std::span<block_cut> cuts) noexcept {
  for (block_cut& cut : cuts) {
    if (block* const spare = std::exchange(cut.spare, nullptr)) blocks_.release(*spare);
    check(cut.growable->claimed, "a cut is given up of a growable block that has no owner");
  }
}

void engine::cut_growable_blocks(std::span<block_cut> cuts, const ticket_ref& last_use) noexcept {
  check(!cuts.empty(), "no room is cut");
  for (block_cut& cut : cuts) apply_cut(cut, last_use);
}

// The host memory for a cut: the record of the removed part, with its pieces.
status engine::reserve_cut(block_cut& cut) noexcept {
  const block& growable = *cut.growable;
  check_block(growable);
  check(growable.is_growable && cut.user_bytes <= cut.mapped_bytes,
        "a block without addresses of its own "
        "is cut");
  const std::size_t keep_count = leading_count(growable.memories, cut.mapped_bytes);
  if (keep_count == growable.memories.size()) return {};
  const result<block*> spare = blocks_.acquire();
  if (!spare) return spare.error();
  cut.spare = *spare;
  memory_list& tail = cut.spare->memories;
  if (status place = reserve_more(tail, growable.memories.size() - keep_count); !place)
    return place;
  tail.insert(tail.end(), growable.memories.begin() + static_cast<std::ptrdiff_t>(keep_count),
              growable.memories.end());
  check(!tail.empty(), "a growable block is cut and loses nothing");
  return {};
}

void engine::apply_cut(block_cut& cut, const ticket_ref& last_use) noexcept {
  block& growable = *cut.growable;
  range_sizes sizes = growable.sizes;
  sizes.user_bytes = cut.user_bytes;
  if (cut.spare == nullptr) return records_.cut(growable, sizes, growable.memories.size());
  block& tail = *std::exchange(cut.spare, nullptr);
  const std::size_t keep_count = growable.memories.size() - tail.memories.size();
  sizes.mapped_bytes = size_of(growable.memories, keep_count);
  check(growable.locked_count <= tail.memories.size(),
        "a growable block keeps pieces that it must not use");
  growable.locked_count = 0;  // the removed part has them
  tail.base = growable.base + sizes.mapped_bytes;
  tail.stream = growable.stream;
  tail.inside = &growable;
  growable.stale_count.fetch_add(1, std::memory_order_acq_rel);
  records_.cut(growable, sizes, keep_count);
  check_block(growable);
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
  spare.stream_identity = moved.stream_identity;
  spare.has_memory = false;
  if (status mapped = map_elsewhere(moved, spare, plan); !mapped) return mapped;

  const address old_base = moved.base;
  const address_range before{old_base, moved.sizes.mapped_bytes};
  moved.covered_count = std::min(moved.covered_count, moved.memories.size());
  std::swap(moved.where, spare.where);
  const status placed =
      records_.relocate(moved, {spare.base, plan.sizes, plan.stream}, spare.memories);
  check(placed.has_value(), "an extent that address space handed out overlaps a tracked one");
  spare.base = old_base;
  moved.address_bytes = plan.sizes.reserved_bytes;
  check(moved.base != spare.base, "a block moved to its own address");
  check_block(moved);
  check(spare.base == spare.where.range.base, "the old place is not where the block was");
  notify(moved, before);
  leave_old_place(spare, plan.last_use);
  return {};
}

// Maps the block's pieces, and new ones behind them, at the spare's addresses. On failure the spare
// is released.
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
        "too many pieces are mapped");
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

// The addresses that a block has left: unmapped now if nothing uses them, else when the block's
// ticket has passed.
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

status engine::synchronize(const block& used) {
  check(used.claimed, "a block is waited for without a claim");
  status finished = core_.time.wait(used.last_use);
  for (const physical_memory* part : used.memories) {
    if (!finished) return finished;
    finished = core_.time.wait(part->last_use);
  }
  return finished;
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
  const mapping_plan shown_plan{.at = target.base,
                                .memories = std::span<physical_memory* const>(memories),
                                .stream = target.stream,
                                .own_rights = target.own_rights.get(),
                                .is_named = target.stream == plan.user,
                                .stream_identity = target.stream_identity};
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

// If no handle may be mapped twice, the source is unmapped first.
status engine::release_source(block& source) noexcept {
  if (may_alias_) return {};
  check(source.locked_count == 0, "a source releases pieces that it must not use");
  const remap_outcome freed = core_.remaps.detach(plan_of(source));
  if (!freed.lost) return freed.result;
  lose(source, freed.mapped_count, nullptr);
  return remapper::contents_lost();
}

// Restores both blocks, or marks them as lost where the driver refuses.
status engine::undo_show(block& target, block& source, memory_list& memories,
                         const remap_outcome& shown) noexcept {
  check(!shown.result, "a shown view is undone");
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

// The source's pieces belong to the target now. If the driver refuses to undo the source's
// mappings, they stay until the source is freed.
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

// A block whose contents the driver refused to restore. Mappings that remain at its address, of its
// own pieces or of their replacements, are undone when it is freed.
void engine::lose(block& lost, std::size_t standing_count, memory_list* instead) noexcept {
  check(lost.claimed, "a lost block is not claimed");
  memory_list own;
  place(lost, {0, 0, lost.sizes.reserved_bytes}, own);
  if (lost.has_memory) drop_holders(own, 0, ticket_ref{});
  lost.has_memory = false;
  memory_list& standing = instead == nullptr ? own : *instead;
  check(standing_count <= standing.size(), "more pieces are mapped than exist");
  standing.resize(standing_count);
  place(lost, {0, size_of(standing, standing_count), lost.sizes.reserved_bytes}, standing);
}

// ---- rights --------------------------------------------------------------------------

namespace {

// The new rights of a block, or the change that restores the old ones.
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

// Grants to a whole block change its own rights and the rights of those mappings that have some.
// Grants to a part change the rights of its mappings, which start as the block's.
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

// All or nothing, unless the driver refuses to undo.
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
    // A single driver call that fails changes nothing.
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
  if (of.rights_version == version) return {};
  if (!of.fits_beside(core_.remaps.rights())) return too_many_grants;
  if (of.sizes.mapped_bytes == 0 || of.is_suspended) return {};
  const status given = core_.remaps.give_access(plan_of(of));
  if (given) of.rights_version = version;
  return given;
}

}  // namespace vmm

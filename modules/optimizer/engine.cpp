// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Creates blocks, resizes them in place and frees them, and has the last steps of every change.
// engine_moves.cpp has the other changes of existing blocks.
module vmm.optimizer;

import vmm.backend;
import vmm.base;
import vmm.physical;
import vmm.std;
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
  set_stream(made, request.stream);
  made.address_bytes = request.sizes.reserved_bytes;
  made.alignment_bytes = request.alignment_bytes;
  made.rights_version = core_.remaps.rights_version();
  if (status mapped = map_fresh(made, request); !mapped) return mapped.error();
  const status tracked = records_.insert_claimed(made);
  check(tracked.has_value(), "an extent that address space handed out overlaps a tracked one");
  check_block(made);
  return &made;
}

// The invariants of a tracked block between changes.
void engine::check_block(const block& kept) noexcept {
  check(kept.claimed && kept.is == unmap_entry::place::outside,
        "a block is changed without a claim");
  check(kept.base == kept.where.range.base, "a block is not at its addresses");
  check(kept.sizes.reserved_bytes <= kept.where.range.size_bytes, "a block has too few addresses");
  check(kept.locked_count <= kept.memories.size(), "more pieces are locked than a block has");
}

// On failure `fresh` is released, or retired if its mappings could not be undone.
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
  if (status acquired = core_.memory.acquire(request.sizes.mapped_bytes, fresh.memories);
      !acquired) {
    finish(fresh);
    return acquired;
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
  if (grown.is_growable && is_stale(grown)) {
    return refuse(errc::in_use, "unfinished work may still use released addresses");
  }
  const std::uint64_t old_space_bytes = grown.where.range.size_bytes;
  const std::uint64_t old_user_bytes = grown.sizes.user_bytes;
  if (status room = extend_addresses(grown, plan.sizes.reserved_bytes); !room) return room;
  memory_list memories;
  status done = copy_list(grown.memories, memories, 1);
  if (done)
    done = acquire_memory(plan, plan.sizes.mapped_bytes - grown.sizes.mapped_bytes, memories);
  if (done) done = map_tail(grown, memories, plan);
  if (!done) trim_addresses(grown, std::max(old_space_bytes, grown.sizes.mapped_bytes));
  check(done || grown.sizes.user_bytes == old_user_bytes,
        "I1: a growth that failed changed a block");
  check_block(grown);
  return done;
}

// Appends to the pieces of the list.
status engine::acquire_memory(const resize_plan& plan, std::uint64_t size_bytes,
                              memory_list& memories) {
  check(size_bytes > 0, "no memory is collected");
  if (plan.one_handle) return core_.memory.acquire_whole(size_bytes, memories);
  if (plan.handle_bytes == 0) return core_.memory.acquire(size_bytes, memories);
  if (status room = core_.memory.check_room(size_bytes); !room) return room;
  const std::size_t before = memories.size();
  for (std::uint64_t left_bytes = size_bytes; left_bytes > 0;) {
    const std::uint64_t next_bytes = std::min(left_bytes, plan.handle_bytes);
    if (status acquired = core_.memory.acquire(next_bytes, memories); !acquired) {
      core_.memory.give_back(memories, before);
      return acquired;
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
  const remap_outcome mapped = core_.remaps.map({.at = grown.base + grown.sizes.mapped_bytes,
                                                 .memories = fresh,
                                                 .stream = plan.stream,
                                                 .own_rights = grown.own_rights.get(),
                                                 .is_named = plan.is_named,
                                                 .stream_identity = grown.stream_identity});
  range_sizes sizes = plan.sizes;
  sizes.reserved_bytes = std::max(sizes.reserved_bytes, grown.sizes.reserved_bytes);
  if (!mapped.result) {
    core_.memory.give_back(memories, old_count + mapped.mapped_count);
    if (mapped.mapped_count == 0) return mapped.result;
    // Mappings that the driver refused to undo become part of the block, which must not use them.
    sizes = grown.sizes;
    for (const physical_memory* part : fresh.first(mapped.mapped_count))
      sizes.mapped_bytes += part->size_bytes;
    sizes.reserved_bytes = std::max(sizes.reserved_bytes, sizes.mapped_bytes);
    grown.locked_count = mapped.mapped_count;
    check(sizes.mapped_bytes <= grown.where.range.size_bytes, "the mapped part exceeds the block");
  }
  place(grown, sizes, memories);
  grown.covered_count = std::min(grown.covered_count, old_count);
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

// Addresses that cannot be cut off for lack of host memory stay with the block and go with it.
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
  check(plan.sizes.mapped_bytes <= shrunk.sizes.mapped_bytes, "a block shrinks to a larger size");
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
  check(undone.mapped_count <= tail.size(), "more pieces are mapped than were cut off");
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
  sizes.reserved_bytes =
      std::clamp(cut.address_bytes, sizes.mapped_bytes, cut.sizes.reserved_bytes);
  place(cut, sizes, memories);
  drop_holders(memories, keep_count, plan.last_use);  // of what the block had before
  trim_addresses(cut, sizes.reserved_bytes);
  check_block(cut);
}

// The tail becomes a range of its own: its addresses wait while the block is used.
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

// ---- going ---------------------------------------------------------------------------

// The driver has the block's memory already, except pieces that a resumption left mapped, whose
// copies may continue. The addresses are freed at once.
status engine::dissolve_suspended(block& gone) {
  check(gone.is_suspended && !gone.is_growable, "a block in use ends as a suspended one");
  const bool is_mapped = std::any_of(gone.memories.begin(), gone.memories.end(),
                                     [](const auto* part) { return part->mapping_count != 0; });
  if (is_mapped) {
    const result<ticket_ref> all = core_.time.cover_all();
    if (!all) return all.error();
    if (status waited = core_.time.wait(*all); !waited) return waited;
  }
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
  // Without memory of its own a block has no contents to restore: what was unmapped may be reused.
  const remap_outcome undone =
      gone.has_memory ? core_.remaps.detach(plan_of(gone)) : core_.remaps.unmap(plan_of(gone));
  const bool is_cut = undone.mapped_count < gone.memories.size() && !gone.has_memory;
  if (!undone.result && !undone.lost && !is_cut) return undone.result;
  records_.erase(gone);
  if (gone.has_memory) drop_holders(gone.memories, 0, last_use);
  gone.has_memory = false;
  check(undone.mapped_count <= gone.memories.size(), "more pieces are mapped than a block has");
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

// A range whose addresses wait for its last use. Its pieces are reused at once where they may be
// mapped twice.
void engine::retire(block& range, const ticket_ref& last_use) noexcept {
  check(!range.linked && !range.claimed, "I4: a range is retired while it is tracked or cached");
  check(range.where.range.empty() == (range.inside != nullptr),
        "a range without addresses is retired");
  const std::uint64_t size_bytes =
      range.inside == nullptr ? range.where.range.size_bytes : plan_of(range).size_bytes();
  const bool is_earlier = last_use.get() == range.last_use.get();
  const std::size_t covered_count = is_earlier ? range.covered_count : range.memories.size();
  range.set_last_use(last_use);
  if (may_alias_ && range.has_memory) {
    const ticket_ref own;  // a piece that came later keeps its own
    for (std::size_t i = 0; i < range.memories.size(); ++i)
      core_.memory.drop_holder(*range.memories[i], i < covered_count ? last_use : own);
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

void engine::reap(std::size_t count_max) { (void)retired_.reap(count_max, queries(), finishes()); }

void engine::reap_all() {
  reap(retired_.size());
  retired_.wait_for_asked();
}

bool engine::reap_waiting() {
  if (retired_.size() == 0) return false;
  ticket_ref oldest;
  const auto copy = [&](unmap_entry& range) { oldest = static_cast<block&>(range).last_use; };
  if (!retired_.look_at_oldest(copy)) {
    retired_.wait_for_asked();  // other threads had all of them, and have unmapped them now
    return true;
  }
  if (!core_.time.wait(oldest)) {
    retired_.defer_oldest([&](const unmap_entry& range) {
      return static_cast<const block&>(range).last_use.get() == oldest.get();
    });
    return false;
  }
  return retired_.reap_one(queries(), finishes()) != unmap_answer::refused;
}

// On failure the range keeps its remaining mappings.
status engine::unmap_range(block& range) {
  check(!range.linked && range.base.value != 0, "I4: a range is unmapped while it is tracked");
  const remap_outcome undone = core_.remaps.unmap(plan_of(range));
  check(undone.mapped_count <= range.memories.size(), "more pieces are mapped than a range has");
  check(!undone.result || undone.mapped_count == 0, "an unmapped range is still mapped");
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
  notify(owner, before);
}

// The pieces that it gave up are still unowned.
void engine::notify(block& now, const address_range& before) noexcept {
  check(now.claimed, "a block has changed that is not claimed");
  const bool is_same = now.base == before.base && now.sizes.mapped_bytes == before.size_bytes;
  if (listener_ != nullptr && !is_same) listener_->changed(now, before.base);
}

// Frees the addresses and the record of an unmapped range.
void engine::finish(block& range) noexcept {
  check(range.memories.empty(), "I3: a range is finished while pieces are mapped to it");
  check(!range.linked && range.is == unmap_entry::place::outside,
        "a range is finished while it is tracked, cached or retired");
  block* const growable = range.inside;
  if (growable == nullptr) core_.space.free(range.where);
  blocks_.release(range);
  if (growable == nullptr) return;
  const std::uint32_t before = growable->stale_count.fetch_sub(1, std::memory_order_acq_rel);
  check(before > 0, "I5: a growable block released less than was unmapped");
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

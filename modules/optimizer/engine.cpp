// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

module vmm.optimizer;

import vmm.backend;
import vmm.intrusive;
import vmm.physical;
import vmm.reservation;
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
  made.sizes = request.sizes;
  made.stream = request.stream;
  made.room_bytes = request.sizes.reserved_bytes;
  made.alignment_bytes = request.alignment_bytes;
  if (status mapped = map_fresh(made, request); !mapped) return mapped.error();
  const status tracked = records_.insert_claimed(made);
  check(tracked.has_value(), "an extent that address space handed out overlaps a tracked one");
  return &made;
}

// On failure `fresh` is gone: released, or retired where its mappings would not be undone.
status engine::map_fresh(block& fresh, const block_request& request) {
  const result<extent> space =
      space_.allocate({request.sizes.reserved_bytes, request.alignment_bytes});
  if (!space) {
    blocks_.release(fresh);
    return space.error();
  }
  fresh.where = *space;
  fresh.base = space->range.base;
  if (status gathered = memory_.acquire(request.sizes.mapped_bytes, fresh.pieces); !gathered) {
    finish(fresh);
    return gathered;
  }
  const remap_outcome mapped = remaps_.map(plan_of(fresh));
  if (mapped.result) return {};
  drop_holders(fresh.pieces, 0, ticket_ref{});
  fresh.holds_pieces = false;
  fresh.pieces.resize(mapped.mapped_count);
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
  const std::uint64_t old_space_bytes = grown.where.range.size_bytes;
  if (status room = extend_addresses(grown, plan.sizes.reserved_bytes); !room) return room;
  piece_list pieces;
  status done = copy_list(grown.pieces, pieces, 1);
  if (done) done = memory_.acquire(plan.sizes.mapped_bytes - grown.sizes.mapped_bytes, pieces);
  if (done) done = map_tail(grown, pieces, plan);
  if (!done) trim_addresses(grown, std::max(old_space_bytes, grown.sizes.mapped_bytes));
  return done;
}

status engine::map_tail(block& grown, piece_list& pieces, const resize_plan& plan) {
  const std::size_t old_count = grown.pieces.size();
  const auto fresh = std::span<piece* const>(pieces).subspan(old_count);
  const remap_outcome mapped =
      remaps_.map({grown.base + grown.sizes.mapped_bytes, fresh, plan.stream});
  range_sizes sizes = plan.sizes;
  sizes.reserved_bytes = std::max(sizes.reserved_bytes, grown.sizes.reserved_bytes);
  if (!mapped.result) {
    memory_.give_back(pieces, old_count + mapped.mapped_count);
    if (mapped.mapped_count == 0) return mapped.result;
    // Mappings that the driver would not undo become part of the block, which must not use them.
    sizes = grown.sizes;
    for (const piece* part : fresh.first(mapped.mapped_count))
      sizes.mapped_bytes += part->size_bytes;
    sizes.reserved_bytes = std::max(sizes.reserved_bytes, sizes.mapped_bytes);
    grown.locked_count = mapped.mapped_count;
  }
  place(grown, sizes, pieces);
  return mapped.result;
}

status engine::extend_addresses(block& grown, std::uint64_t size_bytes) {
  if (size_bytes <= grown.where.range.size_bytes) return {};
  return space_.grow(grown.where, size_bytes);
}

// Addresses that cannot be cut off for want of host memory stay with the block and go with it.
void engine::trim_addresses(block& shrunk, std::uint64_t size_bytes) noexcept {
  if (shrunk.where.range.size_bytes > size_bytes) (void)space_.shrink(shrunk.where, size_bytes);
}

// ---- shrinking -----------------------------------------------------------------------

status engine::unlock(block& locked) {
  if (locked.locked_count == 0) return {};
  piece_list pieces;
  if (status copied = copy_list(locked.pieces, pieces, 0); !copied) return copied;
  const std::size_t keep_count = pieces.size() - locked.locked_count;
  const auto tail = std::span<piece* const>(locked.pieces).subspan(keep_count);
  const address tail_base = locked.base + size_of(pieces, keep_count);
  const remap_outcome undone = remaps_.unmap({tail_base, tail, locked.stream});
  locked.locked_count = undone.mapped_count;
  const resize_plan same{locked.sizes, locked.stream, ticket_ref{}};
  keep_leading(locked, pieces, keep_count + undone.mapped_count, same);
  return undone.result;
}

status engine::shrink(block& shrunk, const resize_plan& plan) {
  if (status unlocked = unlock(shrunk); !unlocked) return unlocked;
  const std::size_t keep_count = leading_count(shrunk.pieces, plan.sizes.mapped_bytes);
  if (keep_count == shrunk.pieces.size()) {
    piece_list pieces;
    if (status copied = copy_list(shrunk.pieces, pieces, 0); !copied) return copied;
    range_sizes sizes = shrunk.sizes;
    sizes.user_bytes = plan.sizes.user_bytes;
    place(shrunk, sizes, pieces);
    return {};
  }
  const result<bool> idle = time_.passed(plan.last_use);
  if (!idle) return idle.error();
  return *idle ? cut_idle_tail(shrunk, plan, keep_count) : retire_tail(shrunk, plan, keep_count);
}

status engine::cut_idle_tail(block& shrunk, const resize_plan& plan, std::size_t keep_count) {
  piece_list pieces;
  if (status copied = copy_list(shrunk.pieces, pieces, 0); !copied) return copied;
  const auto tail = std::span<piece* const>(shrunk.pieces).subspan(keep_count);
  const address tail_base = shrunk.base + size_of(pieces, keep_count);
  const remap_outcome undone = remaps_.detach({tail_base, tail, shrunk.stream});
  if (!undone.result && !undone.lost) return undone.result;
  shrunk.locked_count = undone.mapped_count;
  keep_leading(shrunk, pieces, keep_count + undone.mapped_count, plan);
  return {};
}

// Cuts the block to the first pieces of its list, of which `pieces` is a copy.
void engine::keep_leading(block& cut, piece_list& pieces, std::size_t keep_count,
                          const resize_plan& plan) noexcept {
  pieces.resize(keep_count);
  range_sizes sizes{plan.sizes.user_bytes, size_of(pieces, keep_count), 0};
  sizes.reserved_bytes = std::clamp(cut.room_bytes, sizes.mapped_bytes, cut.sizes.reserved_bytes);
  place(cut, sizes, pieces);
  drop_holders(pieces, keep_count, plan.last_use);  // of what the block had before
  trim_addresses(cut, sizes.reserved_bytes);
}

// The tail becomes a range of its own, so that its addresses wait while the block goes on.
status engine::retire_tail(block& shrunk, const resize_plan& plan, std::size_t keep_count) {
  const result<block*> spare = blocks_.acquire();
  if (!spare) return spare.error();
  block& tail = **spare;
  const std::uint64_t keep_bytes = size_of(shrunk.pieces, keep_count);
  piece_list pieces;
  status done = copy_list(shrunk.pieces, pieces, 0);
  if (done) done = copy_list(shrunk.pieces, tail.pieces, 0);
  if (done) {
    const result<extent> rest = space_.split(shrunk.where, keep_bytes);
    done = rest ? status{} : status{rest.error()};
    if (rest) tail.where = *rest;
  }
  if (!done) {
    blocks_.release(tail);
    return done;
  }
  pieces.resize(keep_count);
  tail.pieces.erase(tail.pieces.begin(),
                    tail.pieces.begin() + static_cast<std::ptrdiff_t>(keep_count));
  tail.base = shrunk.base + keep_bytes;
  tail.stream = shrunk.stream;
  place(shrunk, {plan.sizes.user_bytes, keep_bytes, keep_bytes}, pieces);
  retire(tail, plan.last_use);
  return {};
}

// ---- moving --------------------------------------------------------------------------

status engine::move(block& moved, const resize_plan& plan) {
  if (status unlocked = unlock(moved); !unlocked) return unlocked;
  const result<block*> acquired = blocks_.acquire();
  if (!acquired) return acquired.error();
  block& spare = **acquired;
  const result<extent> space = space_.allocate({plan.sizes.reserved_bytes, moved.alignment_bytes});
  if (!space) {
    blocks_.release(spare);
    return space.error();
  }
  spare.where = *space;
  spare.base = space->range.base;
  spare.stream = plan.stream;
  spare.holds_pieces = false;
  if (status mapped = map_elsewhere(moved, spare, plan); !mapped) return mapped;

  const address old_base = moved.base;
  std::swap(moved.where, spare.where);
  const status placed =
      records_.relocate(moved, {spare.base, plan.sizes, plan.stream}, spare.pieces);
  check(placed.has_value(), "an extent that address space handed out overlaps a tracked one");
  spare.base = old_base;
  moved.room_bytes = plan.sizes.reserved_bytes;
  leave_old_place(spare, plan.last_use);
  return {};
}

// Maps the block's pieces, and new ones behind them, at the spare's addresses. On failure the spare
// is gone.
status engine::map_elsewhere(block& moved, block& spare, const resize_plan& plan) {
  const std::size_t old_count = moved.pieces.size();
  status done = copy_list(moved.pieces, spare.pieces, 1);
  if (done && plan.sizes.mapped_bytes > moved.sizes.mapped_bytes) {
    done = memory_.acquire(plan.sizes.mapped_bytes - moved.sizes.mapped_bytes, spare.pieces);
  }
  if (done && !may_alias_) done = time_.wait(plan.last_use);
  remap_outcome mapped{done, 0};
  if (done && may_alias_) mapped = remaps_.map(plan_of(spare));
  if (done && !may_alias_) mapped = remaps_.exchange(plan_of(moved), plan_of(spare));
  if (mapped.result) return {};

  drop_holders(spare.pieces, std::min(old_count, spare.pieces.size()), ticket_ref{});
  const bool spare_stands = may_alias_ || mapped.of_new;
  if (mapped.lost) lose(moved, mapped.of_new ? 0 : mapped.mapped_count, nullptr);
  spare.pieces.resize(spare_stands ? mapped.mapped_count : 0);
  if (spare.pieces.empty()) {
    finish(spare);
  } else {
    retire(spare, ticket_ref{});
  }
  return mapped.result;
}

// The place that a block has left: unmapped now if nothing uses it, else when its ticket has
// passed.
void engine::leave_old_place(block& spare, const ticket_ref& last_use) noexcept {
  if (!may_alias_) {
    spare.pieces.clear();  // unmapped before the new place was mapped
    finish(spare);
    return;
  }
  const result<bool> idle = time_.passed(last_use);
  if (!idle || !*idle || !unmap_retired(spare)) retire(spare, last_use);
}

// ---- showing -------------------------------------------------------------------------

status engine::take_over(block& target, block& source, stream_handle user) {
  return show(target, source, {user, false});
}

status engine::alias(block& target, block& source, stream_handle user) {
  if (!may_alias_)
    return refuse(errc::not_supported, "this backend maps a handle at one address only");
  return show(target, source, {user, true});
}

status engine::order_pieces(stream_handle user, std::span<piece* const> pieces) {
  for (const piece* part : pieces) {
    if (status ordered = time_.order(user, part->last_use); !ordered) return ordered;
  }
  return {};
}

status engine::settle(const block& used) {
  status settled = time_.wait(used.last_use);
  for (const piece* part : used.pieces) {
    if (!settled) return settled;
    settled = time_.wait(part->last_use);
  }
  return settled;
}

status engine::show(block& target, block& source, const show_plan& plan) {
  check(&target != &source, "a block is copied onto itself");
  check(source.sizes.user_bytes > 0 && source.sizes.mapped_bytes <= target.sizes.mapped_bytes,
        "the source's memory must fit the target's addresses");
  piece_list pieces;
  if (status copied = copy_list(source.pieces, pieces, 1); !copied) return copied;
  const std::uint64_t missing_bytes = target.sizes.mapped_bytes - source.sizes.mapped_bytes;
  if (missing_bytes > 0) {
    if (status filled = memory_.acquire(missing_bytes, pieces); !filled) return filled;
  }
  status ready = order_pieces(plan.user, pieces);
  if (ready) ready = release_source(source);
  if (!ready) {
    memory_.give_back(pieces, source.pieces.size());
    return ready;
  }
  const mapping_plan shown_plan{target.base, std::span<piece* const>(pieces), target.stream};
  const remap_outcome shown = remaps_.exchange(plan_of(target), shown_plan);
  if (!shown.result) return undo_show(target, source, pieces, shown);
  place(target, target.sizes, pieces);
  drop_holders(pieces, 0, ticket_ref{});  // what the target had before
  if (plan.shared) {
    for (piece* part : source.pieces) memory_.add_holder(*part);
  } else {
    empty_source(source);
  }
  return {};
}

// Where no handle may be mapped twice the source lets go first.
status engine::release_source(block& source) noexcept {
  if (may_alias_) return {};
  const remap_outcome freed = remaps_.detach(plan_of(source));
  if (!freed.lost) return freed.result;
  lose(source, freed.mapped_count, nullptr);
  return remapper::contents_lost();
}

// Both blocks as before, or marked as lost where the driver would not have it.
status engine::undo_show(block& target, block& source, piece_list& pieces,
                         const remap_outcome& shown) noexcept {
  const std::size_t source_count = source.pieces.size();
  if (shown.lost) {
    drop_holders(pieces, source_count, ticket_ref{});
    lose(target, shown.mapped_count, shown.of_new ? &pieces : nullptr);
  } else {
    memory_.give_back(pieces, source_count);
  }
  if (may_alias_) return shown.result;
  const remap_outcome restored = remaps_.restore(plan_of(source), 0);
  if (restored.result) return shown.result;
  lose(source, restored.mapped_count, nullptr);
  return remapper::contents_lost();
}

// The source's pieces belong to the target now. Where the driver will not undo the source's
// mappings they stand, and are undone when the source is freed.
void engine::empty_source(block& source) noexcept {
  source.holds_pieces = false;
  const std::size_t standing_count = may_alias_ ? remaps_.unmap(plan_of(source)).mapped_count : 0;
  piece_list pieces;
  place(source, {0, 0, source.sizes.reserved_bytes}, pieces);
  pieces.resize(standing_count);
  place(source, {0, size_of(pieces, standing_count), source.sizes.reserved_bytes}, pieces);
}

// A block whose contents the driver would not put back. What stands mapped at its address, of its
// own pieces or of those that were to take their place, is undone when it is freed.
void engine::lose(block& lost, std::size_t standing_count, piece_list* instead) noexcept {
  piece_list own;
  place(lost, {0, 0, lost.sizes.reserved_bytes}, own);
  if (lost.holds_pieces) drop_holders(own, 0, ticket_ref{});
  lost.holds_pieces = false;
  piece_list& standing = instead == nullptr ? own : *instead;
  standing.resize(standing_count);
  place(lost, {0, size_of(standing, standing_count), lost.sizes.reserved_bytes}, standing);
}

// ---- going ---------------------------------------------------------------------------

status engine::dissolve(block& gone, const ticket_ref& last_use) {
  const result<bool> idle = time_.passed(last_use);
  if (!idle) return idle.error();
  if (!*idle) {
    records_.erase(gone);
    retire(gone, last_use);
    return {};
  }
  const remap_outcome undone = remaps_.detach(plan_of(gone));
  if (!undone.result && !undone.lost) return undone.result;
  records_.erase(gone);
  if (gone.holds_pieces) drop_holders(gone.pieces, 0, last_use);
  gone.holds_pieces = false;
  gone.pieces.resize(undone.mapped_count);
  if (undone.mapped_count > 0) {
    retire(gone, last_use);
  } else {
    finish(gone);
  }
  return {};
}

void engine::discard(block& gone, const ticket_ref& last_use) noexcept {
  records_.erase(gone);
  retire(gone, last_use);
}

// A range whose addresses wait for its last use. Its pieces move on at once where they may be
// mapped twice.
void engine::retire(block& range, const ticket_ref& last_use) noexcept {
  range.last_use = ticket_ref{last_use};
  if (may_alias_ && range.holds_pieces) {
    drop_holders(range.pieces, 0, last_use);
    range.holds_pieces = false;
  }
  retired_.push(range);
}

void engine::reap(std::size_t count_max) {
  for (std::size_t left = std::min(count_max, retired_.size()); left > 0; --left) {
    block* const oldest = retired_.pop();
    if (oldest == nullptr) return;
    const result<bool> idle = time_.passed(oldest->last_use);
    if (!idle || !*idle || !unmap_retired(*oldest)) retired_.push(*oldest);
  }
}

bool engine::reap_waiting() {
  block* const oldest = retired_.pop();
  if (oldest == nullptr) return false;
  if (time_.wait(oldest->last_use) && unmap_retired(*oldest)) return true;
  retired_.push(*oldest);
  return false;
}

// On failure the range keeps what stands mapped and is to be queued again.
status engine::unmap_retired(block& range) {
  const remap_outcome undone = remaps_.unmap(plan_of(range));
  if (range.holds_pieces) drop_holders(range.pieces, undone.mapped_count, range.last_use);
  range.pieces.resize(undone.mapped_count);
  if (!undone.result) return undone.result;
  finish(range);
  return {};
}

void engine::drop_holders(const piece_list& pieces, std::size_t from,
                          const ticket_ref& last_use) noexcept {
  for (std::size_t i = from; i < pieces.size(); ++i) memory_.drop_holder(*pieces[i], last_use);
}

void engine::place(block& owner, const range_sizes& sizes, piece_list& pieces) noexcept {
  const status placed = records_.relocate(owner, {owner.base, sizes, owner.stream}, pieces);
  check(placed.has_value(), "a block within its own extent overlaps another");
}

// Gives back what an unmapped range still has: its addresses and its record.
void engine::finish(block& range) noexcept {
  check(range.pieces.empty(), "a range is finished while pieces are mapped to it");
  space_.free(range.where);
  blocks_.release(range);
}

status engine::close() {
  check(records_.size() == 0, "the engine is closed while blocks are allocated");
  while (retired_.size() > 0) {
    if (!reap_waiting())
      return refuse(errc::in_use, "a retired range could not be unmapped: call close again");
  }
  if (const trim_report drained = memory_.trim(0); drained.failure.code != errc::none)
    return drained.failure;
  return space_.close();
}

}  // namespace vmm

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module vmm.stream;

import vmm.backend;
import vmm.base;
import vmm.observe;
import vmm.physical;
import vmm.std;
import vmm.timeline;
import vmm.va;

namespace vmm {

namespace {

constexpr error freed_before =
    refuse(errc::not_allocated, "the block was freed before, and waits for its pins to end");
constexpr error has_rights =
    refuse(errc::not_permitted,
           "the block has rights of its own: it is freed on a stream that is not being captured");

[[nodiscard]] block_lock lock_of(const segment::found_block& block) noexcept {
  check(block.in != nullptr, "a missing block is used");
  return block.is_locked ? block.in->lock_of(block.region) : block_lock{};
}

}  // namespace

// ---- pins ----------------------------------------------------------------------------

// What becomes of memory that is freed for a record: a captured graph's stays the graph's.
history_kind locked_blocks::freed_for(std::uint32_t stream) const noexcept {
  check(stream < state_.streams().count(), "memory is freed for no record");
  return state_.streams().is_capture(stream) ? history_kind::kept : history_kind::freed;
}

// Without a stream it is the default one's in texts.
void locked_blocks::note(history_kind kind, const segment::found_block& block,
                         std::uint32_t stream) noexcept {
  if (!state_.events().is_on()) return;
  check(stream == stream_table::no_stream || stream < state_.streams().count(),
        "an event names no record");
  const stream_handle handle = stream == stream_table::no_stream
                                   ? stream_handle::default_stream
                                   : state_.progress().shown_handle(stream);
  state_.events().note_region(kind, *block.in, block.region, handle);
}

status locked_blocks::check_live(address at) noexcept {
  const result<segment::found_block> found = state_.find_block(at);
  if (!found) return found.error();
  return lock_of(*found).freed ? status{no_block} : status{};
}

result<address_range> locked_blocks::live_range(address at) noexcept {
  const result<segment::found_block> found = state_.find_block(at);
  if (!found) return found.error();
  if (lock_of(*found).freed) return no_block;
  const granule_range where = found->in->range(found->region);
  check(found->in->address_of(where.offset) == at, "the found block is not the requested one");
  return address_range{at, where.count * granule_bytes};
}

bool locked_blocks::is_locked(address at) noexcept {
  const result<segment::found_block> found = state_.find_block(at);
  return found && found->is_locked;
}

bool locked_blocks::is_pinned(address at) noexcept {
  const result<segment::found_block> found = state_.find_block(at);
  return found && lock_of(*found).pins != 0;
}

status locked_blocks::pin(address at) noexcept {
  const result<segment::found_block> found = state_.find_block(at);
  if (!found) return found.error();
  block_lock lock = lock_of(*found);
  if (lock.freed)
    return refuse(errc::not_allocated, "the block was freed: it cannot be pinned again");
  if (lock.pins == std::numeric_limits<std::uint32_t>::max())
    return refuse(errc::invalid_argument, "the block is pinned too often");
  if (!found->is_locked && !found->in->lock_block(*found)) return no_record_memory;
  if (lock.pins++ == 0) ++state_.totals().pinned_count;
  check(lock.pins != 0, "a pinned block has no pin");
  found->in->write_lock(found->region, lock);
  note(history_kind::pinned, *found, stream_table::no_stream);
  return {};
}

status locked_blocks::unpin(address at) noexcept {
  result<segment::found_block> found = state_.find_block(at);
  if (!found) return found.error();
  segment& in = *found->in;
  block_lock lock = lock_of(*found);
  if (lock.pins == 0) return refuse(errc::invalid_argument, "the block is not pinned");
  if (--lock.pins == 0) {
    check(state_.totals().pinned_count != 0, "more pinned blocks are released than exist");
    --state_.totals().pinned_count;
  }
  check(found->is_locked, "a pinned block is not locked");
  note(history_kind::unpinned, *found, stream_table::no_stream);
  if (lock.pins == 0 && lock.freed && !lock.has_own_rights) {
    give_free(*found, lock, state_.streams().free_point(lock.stream));
    return {};
  }
  in.write_lock(found->region, lock);
  if (lock.pins != 0 || lock.captured || lock.has_own_rights) return {};
  (void)in.unlock_block(*found);  // else it is locked without a pin: free() finds it there as well
  return {};
}

// The pins or the graph of a freed block have ended.
void locked_blocks::give_free(const segment::found_block& block, const block_lock& lock,
                              const stream_point& since) noexcept {
  check(lock.freed && lock.pins == 0 && !lock.has_own_rights, "I1: a kept block is freed");
  note(freed_for(lock.stream), block, lock.stream);
  state_.streams().remove_locked(lock.stream);
  block.in->forget_block(block);
  check(since.stream == lock.stream, "I1: a block is free for a stream that did not free it");
  check(since.epoch <= state_.progress().clock(), "a block is free later than now");
  own_memory(state_).free_region_since(*block.in, block.region, since);
}

// ---- rights of their own ---------------------------------------------------------------

result<bool> locked_blocks::has_own_mappings(address at) noexcept {
  const result<segment::found_block> found = state_.find_block(at);
  if (!found) return found.error();
  const granule_range where = found->in->range(found->region);
  for (std::uint32_t offset = where.offset; offset < where.end();) {
    const mapping* const m = found->in->mapping_at(offset);
    check(m != nullptr && !m->is_stale(), "a live block is not mapped");
    if (m->offset != offset || m->end() > where.end()) return false;
    offset = m->end();
  }
  return true;
}

status locked_blocks::keep(address at) noexcept {
  const result<segment::found_block> found = state_.find_block(at);
  if (!found) return found.error();
  block_lock lock = lock_of(*found);
  if (lock.freed) return freed_before;
  if (lock.captured)
    return refuse(errc::not_permitted, "a captured graph's block has no rights of its own");
  if (!found->is_locked && !found->in->lock_block(*found)) return no_record_memory;
  lock.has_own_rights = true;
  found->in->write_lock(found->region, lock);
  check(is_locked(at), "I4: a block that is held is not locked");
  return {};
}

std::uint32_t locked_blocks::freed_by(address at) noexcept {
  const result<segment::found_block> found = state_.find_block(at);
  check(found && found->is_locked, "a held block is missing");
  const block_lock lock = lock_of(*found);
  check(lock.has_own_rights, "a query for a block that is not held");
  return lock.freed ? lock.stream : stream_table::no_stream;
}

bool locked_blocks::let_go(address at, const stream_point* last_use) noexcept {
  const result<segment::found_block> found = state_.find_block(at);
  check(found && found->is_locked, "a held block is missing");
  block_lock lock = lock_of(*found);
  check(lock.has_own_rights, "a block is released that is not held");
  lock.has_own_rights = false;
  if (lock.pins == 0 && lock.freed) {
    check(last_use == nullptr || state_.streams().passed(*last_use),
          "a held block is released while unfinished work may use it");
    give_free(*found, lock,
              last_use != nullptr ? *last_use : state_.streams().free_point(lock.stream));
    return true;
  }
  found->in->write_lock(found->region, lock);
  if (lock.pins == 0 && !lock.captured) (void)found->in->unlock_block(*found);
  return false;
}

// The block is the graph's no more.
void locked_blocks::end_capture(block_lock& lock) noexcept {
  check(!lock.freed, "a block that is freed is a graph's");
  if (!lock.captured) return;
  check(state_.streams().is_capture(lock.stream), "a graph's block names another stream");
  state_.streams().remove_locked(lock.stream);
  lock.captured = false;
  lock.stream = stream_table::no_stream;
}

// It stays while it is pinned.
void locked_blocks::free_for(const segment::found_block& block, block_lock lock,
                             std::uint32_t owner) noexcept {
  check(!lock.freed, "a block is freed twice");
  check(lock.pins == 0 || block.is_locked, "a pinned block is not locked");
  end_capture(lock);
  const bool stays = lock.pins != 0 || lock.has_own_rights;
  note(stays ? history_kind::free_pinned : freed_for(owner), block, owner);
  if (!stays) {
    block.in->forget_block(block);
    own_memory(state_).free_region(*block.in, block.region, owner);
    return;
  }
  lock.freed = true;
  lock.stream = owner;
  state_.streams().add_locked(owner);
  check(state_.streams().has_locked(owner), "I3: a freed block is in no count");
  block.in->write_lock(block.region, lock);
}

status locked_blocks::free(segment& in, std::uint64_t offset_bytes, std::uint32_t stream) noexcept {
  if (status recalled = arena_lending(state_).recall(in, offset_bytes); !recalled) {
    const bool is_kept = recalled.error().code == errc::out_of_host_memory &&
                         arena_lending(state_).keep(in, offset_bytes, stream);
    return is_kept ? status{} : recalled;
  }
  const result<segment::found_block> found = in.find_block(offset_bytes);
  if (!found) return found.error();
  const block_lock lock = lock_of(*found);
  if (lock.freed) return freed_before;
  if (lock.has_own_rights && state_.streams().is_batch(stream)) return has_rights;
  free_for(*found, lock, lock.captured ? state_.streams().owner_of(lock.stream) : stream);
  return {};
}

// ---- captured graphs -----------------------------------------------------------------

result<captured_graph*> locked_blocks::provide_capture(std::uint64_t id,
                                                       stream_handle stream) noexcept {
  capture_table& graphs = state_.captures();
  if (captured_graph* const known = graphs.find(id); known != nullptr) return known;
  result<captured_graph> made = graphs.provide(id);
  if (!made) return made.error();
  const result<std::uint32_t> owner =
      stream_memory(state_).add_record(stream, stream_phase::capture);
  if (!owner) return owner.error();
  check(state_.streams().owner_of(*owner) == *owner, "a graph's owner is owned by another");
  return &graphs.add(std::move(*made), *owner);
}

result<std::uint32_t> locked_blocks::enter_capture(std::uint64_t id,
                                                   stream_handle stream) noexcept {
  const result<captured_graph*> known = provide_capture(id, stream);
  if (!known) return known.error();
  captured_graph& graph = **known;
  check(graph.id == id && !graph.records.empty(), "the entered graph is not the requested one");
  for (const std::uint32_t record : graph.records) {
    if (record != graph.owner && state_.progress().is_capture_of(record, stream)) return record;
  }
  if (status room = reserve_more(graph.records, 1); !room) return no_record_memory;
  const result<std::uint32_t> record =
      stream_memory(state_).add_record(stream, stream_phase::capture);
  if (!record) return record;
  state_.streams().set_owner(*record, graph.owner);
  check(*record != graph.owner, "a graph's owner is a stream's record");
  check(state_.streams().owner_of(*record) == graph.owner, "a graph's record is not its own");
  graph.records.push_back(*record);
  paranoid_check([&] { return state_.captures().broken_invariant(state_.streams()) == nullptr; },
                 "the table of captured graphs is broken");
  return record;
}

status locked_blocks::give_to_capture(address at, std::uint32_t record) noexcept {
  const result<segment::found_block> found = state_.find_block(at);
  check(found && !found->is_locked, "a graph gets a block that is not new");
  check(state_.streams().is_capture(record), "a block is given to an invalid graph");
  if (!found->in->lock_block(*found)) {
    found->in->forget_block(*found);
    own_memory(state_).free_region(*found->in, found->region, record);
    return no_record_memory;
  }
  state_.streams().add_locked(record);
  found->in->write_lock(found->region, {0, record, false, true});
  check(state_.streams().has_locked(record), "I3: a graph's block is in no count");
  return {};
}

// Whose the block is when it is freed in a capture.
result<std::uint32_t> locked_blocks::owner_after_free(const segment::found_block& block,
                                                      std::uint32_t record) const noexcept {
  const stream_table& streams = state_.streams();
  check(streams.is_capture(record), "a stream that is not captured frees in a capture");
  const std::uint32_t owner = streams.owner_of(record);
  const block_lock lock = lock_of(block);
  if (lock.freed) return freed_before;
  if (lock.has_own_rights) return has_rights;
  check(!lock.captured || block.is_locked, "I2: a graph's block is not locked");
  if (!lock.captured) return owner;
  if (streams.owner_of(lock.stream) == owner) return record;
  return refuse(errc::not_permitted,
                "the block is another graph's: free it when no stream is being captured");
}

status locked_blocks::check_free_in_capture(address at, std::uint32_t record) noexcept {
  const result<segment::found_block> found = state_.find_block(at);
  if (!found) return found.error();
  const result<std::uint32_t> owner = owner_after_free(*found, record);
  return owner ? status{} : status{owner.error()};
}

status locked_blocks::free_in_capture(address at, std::uint32_t record) noexcept {
  const result<segment::found_block> found = state_.find_block(at);
  if (!found) return found.error();
  const result<std::uint32_t> owner = owner_after_free(*found, record);
  if (!owner) return owner.error();
  check(state_.streams().is_capture(*owner), "memory freed in a capture leaves the graph");
  free_for(*found, lock_of(*found), *owner);
  return {};
}

// Blocks no longer name a record of the graph: live ones may be freed by any stream, freed and
// pinned ones go to their owner after the unpin.
void locked_blocks::forget_captured(const captured_graph& gone, std::uint32_t owner) noexcept {
  stream_table& streams = state_.streams();
  check(!streams.is_capture(owner), "a graph's memory goes to a graph");
  state_.segments().for_each([&](segment& in) {
    in.for_each_locked([&](region_id block) {
      block_lock lock = in.lock_of(block);
      if (lock.stream == stream_table::no_stream || streams.owner_of(lock.stream) != gone.owner)
        return;
      check(lock.freed || lock.captured, "a locked block names a record and needs none");
      streams.remove_locked(lock.stream);
      lock.captured = false;
      lock.stream = lock.freed ? owner : stream_table::no_stream;
      if (lock.freed) streams.add_locked(owner);
      in.write_lock(block, lock);
    });
  });
}

bool locked_blocks::release_graph(std::uint64_t id, const stream_point& to) noexcept {
  const captured_graph* const gone = state_.captures().find(id);
  if (gone == nullptr) return true;
  check(!state_.streams().is_capture(to.stream), "a graph's memory goes to a graph");
  for (const std::uint32_t record : gone->records) {
    if (!stream_memory(state_).move_free(record, to)) return false;
  }
  forget_captured(*gone, to.stream);
  for (const std::uint32_t record : gone->records) stream_memory(state_).recycle(record);
  state_.captures().remove(*gone);
  check(state_.captures().find(id) == nullptr, "a released graph stays in the table");
  paranoid_check([&] { return state_.captures().broken_invariant(state_.streams()) == nullptr; },
                 "the table of captured graphs is broken");
  return true;
}

}  // namespace vmm

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Blocks of mappings of their own, and what is in a block when it comes and goes.
module vmm.stream;

import vmm.backend;
import vmm.optimizer;
import vmm.options;
import vmm.physical;
import vmm.std;
import vmm.support;
import vmm.sync;
import vmm.va;

namespace vmm {

// ---- blocks of whole mappings ----------------------------------------------------------

result<address> stream_pool::allocate_whole(std::uint64_t size_bytes, stream_handle stream) {
  if (!gate_.is_open()) {
    if (status entered = enter_closed_to_allocate(); !entered) return entered.error();
  }
  if (notices_.is_observed()) notices_.check_not_in_observer();
  if (status named = check_stream(*driver_, stream); !named) return named.error();
  if (asks_about(stream)) {
    const result<bool> captured = captures_.is_captured(stream);
    if (!captured) return captured.error();
    if (*captured)
      return refuse(errc::not_permitted, "the stream is being captured: allocate before it is");
  }
  const result<address> at = [&] {
    if (!notices_.is_observed()) return parts_->slow.allocate_dedicated({size_bytes}, stream);
    const observer_guard observed(entry_);
    const result<address> made = parts_->slow.allocate_dedicated({size_bytes}, stream);
    if (made) notices_.observe([&](block_watcher& who) { who.allocated({*made, size_bytes}); });
    return made;
  }();
  if (!at || options_.contents == contents_rule::none) return at;
  return fill_acquired(*at, stream);
}

result<std::vector<memory_segment>> stream_pool::segments(address_range range) {
  if (!is_ready()) return why_not_ready();
  std::vector<memory_segment> listed;
  const auto list = [&](const segment& in) -> status {
    const address base = in.where().range.base;
    if (!in.where().range.contains(range))
      return refuse(errc::unknown_address, "the range does not lie in one stretch of the pool");
    for (address at = range.base; at < range.end();) {
      const auto offset = static_cast<std::uint32_t>((at - base) / granule_bytes);
      const mapping* const m = in.mapping_at(offset);
      if (m == nullptr || m->is_stale())
        return refuse(errc::not_allocated, "a part of the range has no memory behind it");
      if (m->memory->is_suspended) return memory_suspended;
      check(m->memory != nullptr, "a mapping has no memory");
      const address_range where{in.address_of(m->offset), m->memory->size_bytes};
      check(where.contains(at), "a mapping does not lie where it is found");
      listed.push_back({where, m->memory->handle});
      at = where.end();
    }
    return {};
  };
  status done = refuse(errc::unknown_address, "the address is not of this pool");
  try {
    const table_lock state(state_);
    state->for_each_segment([&](const segment& in) {
      if (in.where().range.contains(range.base)) done = list(in);
    });
  } catch (const std::bad_alloc&) {
    return refuse(errc::out_of_host_memory, "no host memory is left for a list of segments");
  }
  if (!done) return done.error();
  check(range.empty() || !listed.empty(), "a range with bytes touches no mapping");
  return listed;
}

std::uint64_t stream_pool::spilled_bytes() const noexcept {
  if (!is_ready()) return 0;
  const physical_statistics now = parts_->core.memory.statistics();
  check(now.spilled_bytes <= now.footprint_bytes, "more is spilled than is held");
  return now.spilled_bytes;
}

// ---- contents ----------------------------------------------------------------------

// A suspension that began after the block was made waits, or has the block's memory already: then
// the block goes back.
result<address> stream_pool::fill_acquired(address at, stream_handle stream) {
  if (!contents_.fills_on_acquire()) return at;
  const change_guard changing(&suspension_.phases());
  status filled = memory_suspended;
  if (suspension_.phases().may_fill_here()) {
    const result<address_range> whole =
        state_.with([&](auto& state) { return state.live_range(at); });
    check(whole.has_value(), "a block is not live that was just made");
    filled = contents_.on_acquire(*whole, stream);
  }
  if (filled) return at;
  (void)try_to_close([&] { return free_told(at, stream); });  // else nothing would free it
  return filled.error();
}

status stream_pool::fill_released(address at, stream_handle stream) {
  if (!suspension_.phases().may_fill_here()) return {};
  const result<address_range> whole =
      state_.with([&](auto& state) { return state.live_range(at); });
  if (!whole) return whole.error();
  check(whole->base == at && !whole->empty(), "another block is filled than was named");
  const bool is_pinned =
      state_.with([&](auto& state) { return locked_blocks(state).is_pinned(at); });
  if (is_pinned) {
    return refuse(errc::in_use,
                  "memory_options::contents: a pinned block is not filled; unpin it first");
  }
  return contents_.on_release(*whole, stream);
}

}  // namespace vmm

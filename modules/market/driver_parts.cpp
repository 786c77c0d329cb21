// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Mappings of lots, their rights, and their clearing.
module vmm.market;

import vmm.backend;
import vmm.base;
import vmm.optimizer;
import vmm.std;
import :lot_parts;

namespace vmm {
namespace {

using table_lock = std::lock_guard<std::mutex>;

bool is_granular(std::uint64_t value) noexcept { return value % market_granule_bytes == 0; }

error refuse_mapping(errc code, const char* detail) noexcept {
  return {code, call::map, 0, "", detail};
}

}  // namespace

// ---- the table of mappings -----------------------------------------------------------

// The first mapping that ends behind the address.
tenant_driver::mapping_table::iterator tenant_driver::first_at(std::uint64_t address) noexcept {
  auto found = mappings_.upper_bound(address);
  if (found == mappings_.begin()) return found;
  const auto before = std::prev(found);
  return address - before->first < before->second.size_bytes ? before : found;
}

bool tenant_driver::any_in(address_range range) noexcept {
  const auto found = first_at(range.base.value);
  return found != mappings_.end() && found->first < range.end().value;
}

// Whether an end of the range lies inside a mapping.
bool tenant_driver::is_cut(address_range range) noexcept {
  for (const std::uint64_t at : {range.base.value, range.end().value}) {
    const auto found = first_at(at);
    if (found != mappings_.end() && found->first < at) return true;
  }
  return false;
}

// Takes the mappings of the range out; what a cut leaves of one stays.
void tenant_driver::forget_range(address_range range, lent_list& given) {
  const std::uint64_t end = range.end().value;
  for (auto at = first_at(range.base.value); at != mappings_.end() && at->first < end;) {
    const std::uint64_t begin = at->first;
    const mapping gone = at->second;
    at = mappings_.erase(at);
    --gone.of->mapping_count;
    if (begin < range.base.value) {
      mappings_[begin] = {range.base.value - begin, gone.offset_bytes, gone.of};
      ++gone.of->mapping_count;
    }
    if (begin + gone.size_bytes > end) {
      const std::uint64_t skipped = end - begin;
      at = mappings_
               .insert_or_assign(
                   end, mapping{gone.size_bytes - skipped, gone.offset_bytes + skipped, gone.of})
               .first;
      ++gone.of->mapping_count;
    }
    end_if_unused(*gone.of, given);
  }
}

// ---- map and unmap -------------------------------------------------------------------

status tenant_driver::check_map(const map_request& request, const lot& of) noexcept {
  const bool is_inside = request.offset_bytes <= of.size_bytes &&
                         request.size_bytes <= of.size_bytes - request.offset_bytes;
  if (request.size_bytes == 0 || !is_inside || !is_granular(request.size_bytes) ||
      !is_granular(request.offset_bytes) || !is_granular(request.at.value))
    return refuse_mapping(errc::invalid_argument, "no part of the memory in multiples of 2 MiB");
  if (request.size_bytes != of.size_bytes && !can_.short_map)
    return refuse_mapping(errc::not_supported, "the driver maps whole handles");
  if (any_in({request.at, request.size_bytes}))
    return refuse_mapping(errc::overlap, "something is mapped there");
  if (of.mapping_count != 0 && can_.alias == alias_level::none)
    return refuse_mapping(errc::in_use, "the memory is mapped already");
  return {};
}

status tenant_driver::map_parts(const map_request& request, const lot& of) {
  const std::uint64_t end_bytes = request.offset_bytes + request.size_bytes;
  std::uint64_t done_bytes = 0;
  for (const lot_part& each : of.parts) {
    const std::uint64_t from = std::max(each.offset_bytes, request.offset_bytes);
    const std::uint64_t to = std::min(each.end_bytes(), end_bytes);
    if (from >= to) continue;
    const status mapped =
        inside().map({request.at + done_bytes, to - from, each.import, from - each.offset_bytes});
    if (!mapped) {
      if (done_bytes != 0) (void)inside().unmap({request.at, done_bytes});
      return mapped;
    }
    done_bytes += to - from;
  }
  check(done_bytes == request.size_bytes, "a lot is mapped in part");
  return {};
}

status tenant_driver::map(const map_request& request) {
  if (!made_in_.is_here()) return refuse_forked(call::map);
  if ((static_cast<std::uint64_t>(request.memory) & lot_token_bit) == 0)
    return inside().map(request);
  lot* of = nullptr;
  {
    const table_lock lock(mutex_);
    of = find(request.memory);
    if (of == nullptr || of->handle_count == 0)
      return refuse_mapping(errc::invalid_argument, "no handle of this driver");
    if (const status valid = check_map(request, *of); !valid) return valid;
    try {
      mappings_.emplace(request.at.value, mapping{request.size_bytes, request.offset_bytes, of});
    } catch (const std::bad_alloc&) {
      return refuse_mapping(errc::out_of_host_memory, "operator new failed for a mapping");
    }
    ++of->mapping_count;
  }
  const status mapped = map_parts(request, *of);
  if (mapped) return {};
  lent_list given;
  {
    const table_lock lock(mutex_);
    mappings_.erase(request.at.value);
    --of->mapping_count;
    end_if_unused(*of, given);
  }
  if (!given.empty()) source_->give(given);
  return mapped;
}

status tenant_driver::unmap(address_range range) {
  if (!made_in_.is_here()) return refuse_forked(call::unmap);
  if (is_late_) {
    if (status finished = finish_late(); !finished) return finished;
  }
  return unmap_now(range);
}

status tenant_driver::unmap_now(address_range range) {
  {
    const table_lock lock(mutex_);
    if (any_in(range)) {
      if (!is_granular(range.base.value) || !is_granular(range.size_bytes))
        return error{errc::invalid_argument, call::unmap, 0, "", "no multiple of 2 MiB"};
      if (is_cut(range) && !can_.partial_unmap)
        return error{errc::not_supported, call::unmap, 0, "", "the driver unmaps whole mappings"};
    }
  }
  if (const status gone = inside().unmap(range); !gone) return gone;
  lent_list given;
  {
    const table_lock lock(mutex_);
    forget_range(range, given);
  }
  if (!given.empty()) source_->give(given);
  return {};
}

// ---- rights and clearing -------------------------------------------------------------

bool tenant_driver::has_dirty_in(address_range range) noexcept {
  const std::uint64_t end = range.end().value;
  for (auto at = first_at(range.base.value); at != mappings_.end() && at->first < end; ++at) {
    if (at->second.of->is_dirty()) return true;
  }
  return false;
}

status tenant_driver::set_access(address_range range, std::span<const access_grant> grants) {
  if (!made_in_.is_here()) return refuse_forked(call::set_access);
  bool is_dirty = false;
  {
    const table_lock lock(mutex_);
    if (is_cut(range) && !can_.partial_access) {
      return error{errc::not_supported, call::set_access, 0, "",
                   "the driver sets the rights of whole mappings"};
    }
    is_dirty = has_dirty_in(range);
  }
  if (!is_dirty || grants.empty()) return inside().set_access(range, grants);
  const std::lock_guard<std::mutex> turn(clearing_);
  return clear_in(range, grants);
}

// Fills the parts that are not cleared, of a lot that is mapped whole at the base.
status tenant_driver::fill_parts(address base, lot& of) {
  if (can_.streams && !has_stream_) {
    const result<stream_handle> made = inside().create_stream();
    if (!made) return made.error();
    stream_ = *made;
    has_stream_ = true;
  }
  for (const lot_part& each : of.parts) {
    if (!each.lent.must_clear) continue;
    const status filled =
        inside().fill({{base + each.offset_bytes, each.lent.size_bytes}, 0, stream_});
    if (!filled) return filled;
  }
  return {};
}

// Repeated for a fault that occurs once.
status tenant_driver::finish_fills() noexcept {
  if (!can_.streams || !has_stream_) return {};
  status finished = try_to_close([this] { return inside().synchronize_stream(stream_); });
  if (!finished && inside().synchronize_all()) finished = {};
  is_late_ = !finished || !apart_.empty();
  return finished;
}

status tenant_driver::finish_late() {
  std::vector<address_range> gone;
  {
    const std::lock_guard<std::mutex> turn(clearing_);
    if (status finished = finish_fills(); !finished) return finished;
    gone.swap(apart_);
    is_late_ = false;
  }
  for (const address_range& each : gone)
    if (unmap(each)) (void)inside().free_reservation(each);
  return {};
}

// A lot whose mappings are parts of it is cleared at addresses of its own.
status tenant_driver::clear_apart(lot& of) {
  if (status room = reserve_more(apart_, 1); !room) return room;
  const result<address_range> range = inside().reserve({of.size_bytes, market_granule_bytes, {}});
  if (!range) return range.error();
  status done = map_parts({range->base, of.size_bytes, physical_handle::none, 0}, of);
  if (!done) {
    (void)inside().free_reservation(*range);
    return done;
  }
  {
    const table_lock lock(mutex_);
    mappings_[range->base.value] = {of.size_bytes, 0, &of};
    ++of.mapping_count;
  }
  const access_grant own{home(), access::read_write};
  done = inside().set_access(*range, {&own, 1});
  if (done) done = fill_parts(range->base, of);
  const status finished = finish_fills();
  if (done) done = finished;
  const status gone = finished ? unmap_now(*range) : finished;
  if (gone) {
    (void)inside().free_reservation(*range);
    return done;
  }
  apart_.push_back(*range);
  is_late_ = true;
  return done ? gone : done;
}

// Lots that are mapped whole inside the range are cleared where they are.
status tenant_driver::clear_in(address_range range, std::span<const access_grant> grants) {
  struct dirty_lot {
    address at{};
    lot* of = nullptr;
    bool is_whole = false;
  };
  std::vector<dirty_lot> dirty;
  {
    const table_lock lock(mutex_);
    const std::uint64_t end = range.end().value;
    for (auto at = first_at(range.base.value); at != mappings_.end() && at->first < end; ++at) {
      lot* const of = at->second.of;
      const bool is_listed = std::any_of(dirty.begin(), dirty.end(),
                                         [&](const dirty_lot& each) { return each.of == of; });
      if (!of->is_dirty() || is_listed) continue;
      const bool is_whole = at->second.size_bytes == of->size_bytes &&
                            range.contains(address_range{{at->first}, of->size_bytes});
      dirty.push_back({{at->first}, of, is_whole});
    }
  }
  const access_grant own{home(), access::read_write};
  const access_grant none{home(), access::none};
  std::uint64_t filled_bytes = 0;
  status done;
  for (const dirty_lot& each : dirty) {
    if (!done) break;
    if (!each.is_whole) {
      done = clear_apart(*each.of);
      continue;
    }
    done = inside().set_access({each.at, each.of->size_bytes}, {&own, 1});
    if (done) done = fill_parts(each.at, *each.of);
    filled_bytes += each.of->size_bytes;
  }
  const status finished = filled_bytes != 0 ? finish_fills() : status{};
  if (done) done = finished;
  if (done) {
    const table_lock lock(mutex_);
    for (const dirty_lot& each : dirty) {
      for (lot_part& part : each.of->parts) part.lent.must_clear = false;
    }
  }
  const bool is_own_alone = grants.size() == 1 && grants[0] == own;
  if (done && is_own_alone && filled_bytes == range.size_bytes) return {};
  for (const dirty_lot& each : dirty) {
    if (each.is_whole && finished)
      (void)inside().set_access({each.at, each.of->size_bytes}, {&none, 1});
  }
  return done ? inside().set_access(range, grants) : done;
}

}  // namespace vmm

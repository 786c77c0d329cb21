// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Mappings of lots, their rights, and their clearing.
module vmm.market;

import vmm.backend;
import vmm.base;
import vmm.optimizer;
import vmm.std;
import :lot_table;

namespace vmm {
namespace {

using table_lock = std::lock_guard<std::mutex>;

bool is_granular(std::uint64_t value) noexcept { return value % market_granule_bytes == 0; }

error refuse_mapping(errc code, const char* detail) noexcept {
  return {code, call::map, 0, "", detail};
}

// Requires: the driver's lock.
status check_map(const map_request& request, const tenant_lot& of, const features& can,
                 lot_table& lots) noexcept {
  const bool is_inside = request.offset_bytes <= of.size_bytes &&
                         request.size_bytes <= of.size_bytes - request.offset_bytes;
  if (request.size_bytes == 0 || !is_inside || !is_granular(request.size_bytes) ||
      !is_granular(request.offset_bytes) || !is_granular(request.at.value))
    return refuse_mapping(errc::invalid_argument, "no part of the memory in multiples of 2 MiB");
  if (request.size_bytes != of.size_bytes && !can.short_map)
    return refuse_mapping(errc::not_supported, "the driver maps whole handles");
  if (lots.any_in({request.at, request.size_bytes}))
    return refuse_mapping(errc::overlap, "something is mapped there");
  if (of.mapping_count != 0 && can.alias == alias_level::none)
    return refuse_mapping(errc::in_use, "the memory is mapped already");
  return {};
}

status map_parts(driver_interface& inside, const map_request& request, const tenant_lot& of) {
  const std::uint64_t end_bytes = request.offset_bytes + request.size_bytes;
  std::uint64_t done_bytes = 0;
  for (const lot_part& each : of.parts) {
    const std::uint64_t from = std::max(each.offset_bytes, request.offset_bytes);
    const std::uint64_t to = std::min(each.end_bytes(), end_bytes);
    if (from >= to) continue;
    const status mapped =
        inside.map({request.at + done_bytes, to - from, each.import, from - each.offset_bytes});
    if (!mapped) {
      if (done_bytes != 0) (void)inside.unmap({request.at, done_bytes});
      return mapped;
    }
    done_bytes += to - from;
  }
  check(done_bytes == request.size_bytes, "a lot is mapped in part");
  return {};
}

}  // namespace

// ---- map and unmap -------------------------------------------------------------------

status tenant_driver::map(const map_request& request) {
  if (!made_in_.is_here()) return refuse_forked(call::map);
  if (!lot_table::is_token(request.memory)) return inside().map(request);
  tenant_lot* of = nullptr;
  {
    const table_lock lock(mutex_);
    of = lots_->find(request.memory);
    if (of == nullptr) return refuse_mapping(errc::invalid_argument, "no handle of this driver");
    if (const status valid = check_map(request, *of, can_, *lots_); !valid) return valid;
    try {
      lots_->map(request.at, {request.size_bytes, request.offset_bytes, of});
    } catch (const std::bad_alloc&) {
      return refuse_mapping(errc::out_of_host_memory, "operator new failed for a mapping");
    }
  }
  const status mapped = map_parts(inside(), request, *of);
  if (mapped) return {};
  lent_list gone;
  {
    const table_lock lock(mutex_);
    lots_->unmap({request.at, request.size_bytes}, gone);
  }
  give_back(gone);
  return mapped;
}

status tenant_driver::unmap(address_range range) {
  if (!made_in_.is_here()) return refuse_forked(call::unmap);
  if (fills_->is_late()) {
    if (status finished = finish_late(); !finished) return finished;
  }
  return unmap_now(range);
}

status tenant_driver::unmap_now(address_range range) {
  {
    const table_lock lock(mutex_);
    if (lots_->any_in(range)) {
      if (!is_granular(range.base.value) || !is_granular(range.size_bytes))
        return error{errc::invalid_argument, call::unmap, 0, "", "no multiple of 2 MiB"};
      if (lots_->is_cut(range) && !can_.partial_unmap)
        return error{errc::not_supported, call::unmap, 0, "", "the driver unmaps whole mappings"};
    }
  }
  if (const status unmapped = inside().unmap(range); !unmapped) return unmapped;
  lent_list gone;
  {
    const table_lock lock(mutex_);
    lots_->unmap(range, gone);
  }
  give_back(gone);
  return {};
}

// ---- rights and clearing -------------------------------------------------------------

status tenant_driver::set_access(address_range range, std::span<const access_grant> grants) {
  if (!made_in_.is_here()) return refuse_forked(call::set_access);
  bool is_dirty = false;
  {
    const table_lock lock(mutex_);
    if (lots_->is_cut(range) && !can_.partial_access) {
      return error{errc::not_supported, call::set_access, 0, "",
                   "the driver sets the rights of whole mappings"};
    }
    lots_->visit_in(range, [&](address, const lot_mapping& each) {
      is_dirty = is_dirty || each.of->is_dirty();
    });
  }
  if (!is_dirty || grants.empty()) return inside().set_access(range, grants);
  const std::lock_guard<std::mutex> turn(clearing_);
  return clear_in(range, grants);
}

status tenant_driver::finish_late() {
  std::vector<address_range> gone;
  {
    const std::lock_guard<std::mutex> turn(clearing_);
    if (status finished = fills_->finish(); !finished) return finished;
    gone = fills_->take_late();
  }
  for (const address_range& each : gone)
    if (unmap(each)) (void)inside().free_reservation(each);
  return {};
}

// A lot whose mappings are parts of it is cleared at addresses of its own.
status tenant_driver::clear_apart(tenant_lot& of) {
  if (status room = fills_->provide_room(); !room) return room;
  const result<address_range> range = inside().reserve({of.size_bytes, market_granule_bytes, {}});
  if (!range) return range.error();
  status done = map_parts(inside(), {range->base, of.size_bytes, physical_handle::none, 0}, of);
  if (!done) {
    (void)inside().free_reservation(*range);
    return done;
  }
  {
    const table_lock lock(mutex_);
    lots_->map(range->base, {of.size_bytes, 0, &of});
  }
  const access_grant own{home(), access::read_write};
  done = inside().set_access(*range, {&own, 1});
  if (done) done = fills_->fill(range->base, of);
  const status finished = fills_->finish();
  if (done) done = finished;
  const status gone = finished ? unmap_now(*range) : finished;
  if (gone) {
    (void)inside().free_reservation(*range);
    return done;
  }
  fills_->add_late(*range);
  return done ? gone : done;
}

// Lots that are mapped whole inside the range are cleared where they are.
status tenant_driver::clear_in(address_range range, std::span<const access_grant> grants) {
  struct dirty_lot {
    address at{};
    tenant_lot* of = nullptr;
    bool is_whole = false;
  };
  std::vector<dirty_lot> dirty;
  {
    const table_lock lock(mutex_);
    lots_->visit_in(range, [&](address at, const lot_mapping& each) {
      tenant_lot* const of = each.of;
      const bool is_listed = std::any_of(dirty.begin(), dirty.end(),
                                         [&](const dirty_lot& other) { return other.of == of; });
      if (!of->is_dirty() || is_listed) return;
      const bool is_whole =
          each.size_bytes == of->size_bytes && range.contains(address_range{at, of->size_bytes});
      dirty.push_back({at, of, is_whole});
    });
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
    if (done) done = fills_->fill(each.at, *each.of);
    filled_bytes += each.of->size_bytes;
  }
  const status finished = filled_bytes != 0 ? fills_->finish() : status{};
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

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstdio>

module vmm.multi_device;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {

namespace {

template <class Step>
status insist_on(Step&& step) {
  status done = step();
  for (int left = 2; left > 0 && !done; --left) done = step();
  check(done || done.error().code != errc::none, "a step fails without a reason");
  return done;
}

}  // namespace

const char* name_of(multicast_phase phase) noexcept {
  switch (phase) {
    case multicast_phase::gathering: return "gathering";
    case multicast_phase::binding: return "binding";
    case multicast_phase::ready: return "ready";
    case multicast_phase::mapped: return "mapped";
    case multicast_phase::gone: return "gone";
  }
  check(false, "phase is not one of the enumerators");
  return "";
}

// ---- the states --------------------------------------------------------------------

// Bindings of one device do not overlap, so their sizes show whether they cover the object.
multicast_phase multicast_team::state::phase() const noexcept {
  if (team == multicast_handle::none) return multicast_phase::gone;
  if (mapped) return multicast_phase::mapped;
  check(devices.size() <= device_count, "too many devices were added");
  if (devices.size() < device_count) return multicast_phase::gathering;
  std::uint64_t bound_bytes = 0;
  for (const multicast_binding& each : bindings) bound_bytes += each.size_bytes;
  check(bound_bytes <= size_bytes * device_count, "too many ranges are bound");
  return bound_bytes == size_bytes * device_count ? multicast_phase::ready
                                                  : multicast_phase::binding;
}

status multicast_team::check_here() const noexcept {
  if (state_ == nullptr || state_->team == multicast_handle::none)
    return refuse(errc::invalid_argument, "the multicast object was released, or moved from");
  if (!state_->made_in.is_here()) return refuse_forked();
  return {};
}

result<multicast_team> multicast_team::create(driver_ref driver, const multicast_request& request) {
  if (request.size_bytes == 0 || request.device_count == 0)
    return refuse(errc::invalid_argument, "a multicast object has a size and devices");
  const result<granularity> unit = driver->query_multicast_granularity(request);
  if (!unit) return unit.error();
  std::unique_ptr<state> made{new (std::nothrow) state(driver)};
  if (made == nullptr)
    return refuse(errc::out_of_host_memory, "no host memory is left for a multicast object");
  multicast_request wanted = request;
  wanted.size_bytes = round_up(request.size_bytes, unit->minimum_bytes);
  check(wanted.size_bytes >= request.size_bytes, "a size was rounded down");
  if (status room = reserve_more(made->devices, request.device_count); !room) return room.error();
  check(made->devices.capacity() >= request.device_count, "the list of devices is too small");
  const result<multicast_handle> team = driver->create_multicast(wanted);
  if (!team) return team.error();
  made->team = *team;
  made->size_bytes = wanted.size_bytes;
  made->unit_bytes = unit->minimum_bytes;
  made->device_count = request.device_count;
  return multicast_team(std::move(made));
}

status multicast_team::add(location device) {
  if (status here = check_here(); !here) return here;
  state& s = *state_;
  if (s.phase() != multicast_phase::gathering)
    return refuse(errc::in_use, "every device of the multicast object was added");
  if (device.kind != location::place::device)
    return refuse(errc::invalid_argument, "a multicast object is made of devices");
  if (std::find(s.devices.begin(), s.devices.end(), device) != s.devices.end())
    return refuse(errc::invalid_argument, "the device was added before");
  check(s.devices.size() < s.devices.capacity(), "the list of devices is full");
  status added = s.driver->add_multicast_device(s.team, device);
  if (added) s.devices.push_back(device);
  return added;
}

// ---- binding -----------------------------------------------------------------------

status multicast_team::state::check_part(location device, std::uint64_t offset_bytes,
                                         std::uint64_t part_bytes) const noexcept {
  const multicast_phase now = phase();
  check(unit_bytes != 0 && size_bytes % unit_bytes == 0, "an object has a part of a granule");
  if (now == multicast_phase::gathering)
    return refuse(errc::in_use, "devices are missing: the driver would block until all are added");
  if (now == multicast_phase::mapped)
    return refuse(errc::in_use, "the multicast object is mapped: unmap it first");
  if (std::find(devices.begin(), devices.end(), device) == devices.end())
    return refuse(errc::invalid_argument, "the device is not of this multicast object");
  if (part_bytes == 0 || part_bytes % unit_bytes != 0 || offset_bytes % unit_bytes != 0)
    return refuse(errc::invalid_argument, "a part is of whole granules of multicast");
  if (offset_bytes > size_bytes || part_bytes > size_bytes - offset_bytes)
    return refuse(errc::invalid_argument, "a part lies inside the multicast object");
  for (const multicast_binding& each : bindings) {
    check(each.size_bytes != 0, "a binding is empty");
    if (each.device == device && each.team_offset_bytes < offset_bytes + part_bytes &&
        offset_bytes < each.team_offset_bytes + each.size_bytes)
      return refuse(errc::invalid_argument, "the device has memory bound there: unbind it first");
  }
  return {};
}

status multicast_team::bind(const multicast_part& part) {
  if (status here = check_here(); !here) return here;
  state& s = *state_;
  if (status fits = s.check_part(part.device, part.offset_bytes, part.size_bytes); !fits)
    return fits;
  if (part.memory == physical_handle::none || part.memory_offset_bytes % s.unit_bytes != 0)
    return refuse(errc::invalid_argument, "memory is bound from whole granules of multicast on");
  if (status room = reserve_more(s.bindings, 1); !room) return room;
  const multicast_binding wanted{
      s.team,         part.device, part.memory, part.offset_bytes, part.memory_offset_bytes,
      part.size_bytes};
  status bound = s.driver->bind_multicast(wanted);
  if (bound) s.bindings.push_back(wanted);
  check(s.bindings.size() <= s.bindings.capacity(), "a binding has no room");
  return bound;
}

status multicast_team::bind(const mapped_part& part) {
  if (status here = check_here(); !here) return here;
  state& s = *state_;
  if (status fits = s.check_part(part.device, part.offset_bytes, part.memory.size_bytes); !fits)
    return fits;
  if (status room = reserve_more(s.bindings, 1); !room) return room;
  status bound = s.driver->bind_multicast_address({s.team, part.memory, part.offset_bytes});
  if (bound) {
    s.bindings.push_back(
        {s.team, part.device, physical_handle::none, part.offset_bytes, 0, part.memory.size_bytes});
  }
  check(s.bindings.size() <= s.bindings.capacity(), "a binding has no room");
  return bound;
}

status multicast_team::unbind(location device, std::uint64_t offset_bytes) {
  if (status here = check_here(); !here) return here;
  state& s = *state_;
  if (s.mapped) return refuse(errc::in_use, "the multicast object is mapped: unmap it first");
  const auto found =
      std::find_if(s.bindings.begin(), s.bindings.end(), [&](const multicast_binding& each) {
        return each.device == device && each.team_offset_bytes == offset_bytes;
      });
  if (found == s.bindings.end())
    return refuse(errc::invalid_argument, "the device has nothing bound from there on");
  check(found->size_bytes != 0, "a binding is empty");
  status undone = s.driver->unbind_multicast(*found);
  if (undone) s.bindings.erase(found);
  return undone;
}

// ---- mapping -----------------------------------------------------------------------

result<address_range> multicast_team::map(std::span<const access_grant> grants) {
  if (status here = check_here(); !here) return here.error();
  state& s = *state_;
  const multicast_phase now = s.phase();
  if (now == multicast_phase::mapped)
    return refuse(errc::in_use, "the multicast object is mapped already");
  if (now != multicast_phase::ready)
    return refuse(errc::in_use, "add every device and bind its memory before the object is mapped");
  if (grants.empty()) return refuse(errc::invalid_argument, "the list of grants is empty");
  if (s.where.empty()) {  // else an earlier try has left the addresses
    const result<address_range> room = s.driver->reserve({s.size_bytes, s.unit_bytes, {}});
    if (!room) return room.error();
    s.where = *room;
  }
  check(s.where.size_bytes == s.size_bytes, "a reservation does not have the requested size");
  status done =
      s.driver->map({s.where.base, s.size_bytes, static_cast<physical_handle>(s.team), 0});
  s.mapped = done.has_value();
  if (done) done = s.driver->set_access(s.where, grants);
  if (done) return s.where;
  (void)insist_on([&] { return s.unmap(); });
  return done.error();
}

status multicast_team::set_access(std::span<const access_grant> grants) {
  if (status here = check_here(); !here) return here;
  if (!state_->mapped) return refuse(errc::in_use, "the multicast object is not mapped");
  check(!state_->where.empty(), "an object is mapped at address 0");
  return state_->driver->set_access(state_->where, grants);
}

status multicast_team::state::unmap() {
  if (mapped) {
    check(bindings.size() >= device_count, "I1: an object is mapped that a device has not bound");
    if (status undone = driver->unmap(where); !undone) return undone;
    mapped = false;
  }
  if (where.empty()) return {};
  check(!mapped, "I2: addresses with a mapping are released");
  status freed = driver->free_reservation(where);
  if (freed) where = {};
  return freed;
}

status multicast_team::unmap() {
  if (status here = check_here(); !here) return here;
  if (!state_->mapped && state_->where.empty())
    return refuse(errc::in_use, "the multicast object is not mapped");
  status undone = state_->unmap();
  check(!undone || state_->where.empty(), "an object that was unmapped has addresses");
  return undone;
}

// ---- the end -----------------------------------------------------------------------

status multicast_team::state::close() {
  if (!made_in.is_here()) return refuse_forked();
  if (status undone = insist_on([&] { return unmap(); }); !undone) return undone;
  while (!bindings.empty()) {
    const multicast_binding last = bindings.back();
    if (status undone = insist_on([&] { return driver->unbind_multicast(last); }); !undone)
      return undone;
    bindings.pop_back();
  }
  if (team == multicast_handle::none) return {};
  status released = insist_on([&] { return driver->release(static_cast<physical_handle>(team)); });
  if (released) team = multicast_handle::none;
  check(!mapped && bindings.empty(), "a multicast object in use is released");
  return released;
}

status multicast_team::release() {
  if (state_ == nullptr) return {};
  status closed = state_->close();
  check(!closed || state_->team == multicast_handle::none, "an object is forgotten, not released");
  if (closed) state_.reset();
  return closed;
}

multicast_team::state::~state() {
  if (!made_in.is_here()) return;
  const status closed = close();
  if (closed) return;
  check(closed.error().detail != nullptr, "a failure has no text");
  without_write_signals([&] {
    std::fprintf(stderr,
                 "vmm: a multicast object could not be released: %s; it stays with the process\n",
                 name_of(closed.error().code));
  });
}

multicast_phase multicast_team::phase() const noexcept {
  return state_ == nullptr ? multicast_phase::gone : state_->phase();
}

std::uint64_t multicast_team::size_bytes() const noexcept {
  return state_ == nullptr ? 0 : state_->size_bytes;
}

std::uint64_t multicast_team::granularity_bytes() const noexcept {
  return state_ == nullptr ? 0 : state_->unit_bytes;
}

address_range multicast_team::where() const noexcept {
  const bool is_mapped = state_ != nullptr && state_->mapped;
  check(!is_mapped || !state_->where.empty(), "an object is mapped at address 0");
  return is_mapped ? state_->where : address_range{};
}

}  // namespace vmm

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.fake - multicast: one address, several devices' memories. Simulated only.
//
// A team is a memory whose writes reach all memory bound to it; its handle is mapped and released
// like any other. Where a real driver blocks until the team is full, the fake refuses: no other
// thread can fill it.
module vmm.fake;

import vmm.backend;
import vmm.base;
import vmm.std;
import :machine;
import :state;

namespace vmm {

using fake::binding;
using fake::fake_state;
using fake::misuse_kind;
using fake::objection;
using fake::refusal;

namespace fake {

memory* fake_state::team_of(multicast_handle handle) noexcept {
  memory* found = memory_of(static_cast<physical_handle>(handle));
  check(found == nullptr || !found->multicast ||
            found->multicast->devices.size() <= found->multicast->device_count,
        "a multicast object has more devices than it takes");
  return found != nullptr && found->multicast ? found : nullptr;
}

}  // namespace fake

namespace {

constexpr objection no_multicast{refusal::unsupported, "this driver has no multicast"};
constexpr objection no_team{refusal::bad_object, "not a live multicast object"};

std::optional<objection> object_to(fake_state& s, const multicast_request& request) {
  const std::uint64_t unit = s.emulated.multicast_granularity.minimum_bytes;
  if (!s.emulated.can.multicast) return no_multicast;
  check(unit != 0, "a machine with multicast has no granularity for it");
  if (request.device_count == 0) return objection{refusal::bad_value, "a team of no devices"};
  if (request.size_bytes == 0 || request.size_bytes % unit != 0) {
    return objection{refusal::bad_value, "the size must be a multiple of the granularity"};
  }
  const auto kinds = static_cast<unsigned>(request.shareable);
  if ((kinds & ~static_cast<unsigned>(share_kind::posix_fd)) != 0) {
    return objection{refusal::unsupported, "multicast objects are shared as descriptors here"};
  }
  return std::nullopt;
}

// Whether a part lies inside something of a size, without a sum that wraps.
bool inside(std::uint64_t offset, std::uint64_t size, std::uint64_t whole) noexcept {
  return offset <= whole && size <= whole - offset;
}

// `bound` is the memory named by request.memory, or the memory mapped at request's address.
std::optional<objection> object_to(fake_state& s, const multicast_binding& request,
                                   const fake::memory* bound) {
  if (!s.emulated.can.multicast) return no_multicast;
  const fake::memory* joined = s.team_of(request.team);
  if (joined == nullptr) return no_team;
  if (bound == nullptr || bound->multicast) {
    return objection{refusal::bad_handle, "not a live handle of physical memory"};
  }
  if (!joined->multicast->full()) {
    return objection{refusal::bad_state,
                     "add all devices first: a real driver would block until they come"};
  }
  if (bound->made_as.where.kind != location::place::device) {
    return objection{refusal::unsupported, "only a device's memory can be bound"};
  }
  const auto& devices = joined->multicast->devices;
  if (bound->made_as.where != request.device ||
      std::find(devices.begin(), devices.end(), request.device.ordinal) == devices.end()) {
    return objection{refusal::bad_location, "the memory's device is not in the team"};
  }
  const std::uint64_t unit = s.emulated.multicast_granularity.minimum_bytes;
  check(unit != 0, "a machine with multicast has no granularity for it");
  const bool aligned = request.size_bytes != 0 && request.size_bytes % unit == 0 &&
                       request.team_offset_bytes % unit == 0 &&
                       request.memory_offset_bytes % unit == 0;
  if (!aligned ||
      !inside(request.team_offset_bytes, request.size_bytes, joined->made_as.size_bytes) ||
      !inside(request.memory_offset_bytes, request.size_bytes, bound->made_as.size_bytes)) {
    return objection{refusal::bad_value,
                     "offsets and size must be multiples of the granularity and inside both"};
  }
  for (const binding& each : joined->multicast->bindings) {
    if (each.device == request.device.ordinal &&
        each.team_offset < request.team_offset_bytes + request.size_bytes &&
        request.team_offset_bytes < each.team_offset + each.size_bytes) {
      return objection{refusal::already_mapped, "this device has memory bound there: unbind it"};
    }
  }
  return std::nullopt;
}

// May throw, and then has done nothing.
void bind(fake_state& s, const multicast_binding& request, std::uint64_t memory_token) {
  fake::memory* const bound = s.machine->memories.find(memory_token);
  check(bound != nullptr && !bound->multicast, "memory is bound that is gone");
  s.team_of(request.team)
      ->multicast->bindings.push_back({request.device.ordinal, request.team_offset_bytes,
                                       memory_token, request.memory_offset_bytes,
                                       request.size_bytes});
  ++bound->bindings;
  s.charge_us(s.emulated.costs.query_us);
}

}  // namespace

result<granularity> fake_driver::query_multicast_granularity(const multicast_request&) {
  check(state_ != nullptr, fake::moved_from);
  fake_state& s = *state_;
  return s.run<granularity>(call::query_granularity, [&]() -> result<granularity> {
    if (!s.emulated.can.multicast) {
      return s.refuse_as(call::query_granularity, no_multicast.why, no_multicast.detail);
    }
    s.charge_us(s.emulated.costs.query_us);
    return s.emulated.multicast_granularity;
  });
}

result<multicast_handle> fake_driver::create_multicast(const multicast_request& request) {
  check(state_ != nullptr, fake::moved_from);
  fake_state& s = *state_;
  return s.run<multicast_handle>(call::create_multicast, [&]() -> result<multicast_handle> {
    if (const auto bad = object_to(s, request)) {
      return s.refuse_as(call::create_multicast, bad->why, bad->detail);
    }
    physical_request as{};
    as.size_bytes = request.size_bytes;
    as.where = s.emulated.home;
    as.shareable = request.shareable;
    auto members = std::make_unique<fake::team>();
    members->device_count = request.device_count;
    members->devices.reserve(request.device_count);
    fake::memory made{as, s.emulated.multicast_granularity.minimum_bytes, ++s.machine->serials};
    made.multicast = std::move(members);
    const std::uint64_t token = s.machine->memories.add(std::move(made));
    try {
      const result<physical_handle> handle = s.add_handle(token);
      s.charge_us(s.emulated.costs.query_us);
      return static_cast<multicast_handle>(*handle);
    } catch (...) {
      s.machine->drop_if_unused(token);
      throw;
    }
  });
}

status fake_driver::add_multicast_device(multicast_handle team, location place) {
  check(state_ != nullptr, fake::moved_from);
  fake_state& s = *state_;
  return s.run<void>(call::add_multicast_device, [&]() -> status {
    const auto refused = [&](const objection& bad) {
      return s.refuse_as(call::add_multicast_device, bad.why, bad.detail);
    };
    if (!s.emulated.can.multicast) return refused(no_multicast);
    const fake::memory* joined = s.team_of(team);
    if (joined == nullptr) return refused(no_team);
    if (place.kind != location::place::device || !s.known(place)) {
      return refused({refusal::bad_location, "no such device"});
    }
    auto& devices = joined->multicast->devices;
    if (joined->multicast->full() ||
        std::find(devices.begin(), devices.end(), place.ordinal) != devices.end()) {
      return refused({refusal::bad_value, "the device is in the team, or the team is full"});
    }
    devices.push_back(place.ordinal);
    check(devices.size() <= joined->multicast->device_count, "more devices came than it takes");
    s.charge_us(s.emulated.costs.query_us);
    return {};
  });
}

status fake_driver::bind_multicast(const multicast_binding& request) {
  check(state_ != nullptr, fake::moved_from);
  fake_state& s = *state_;
  return s.run<void>(call::bind_multicast, [&]() -> status {
    if (const auto bad = object_to(s, request, s.memory_of(request.memory))) {
      return s.refuse_as(call::bind_multicast, bad->why, bad->detail);
    }
    bind(s, request, s.handles.find(static_cast<std::uint64_t>(request.memory))->memory);
    return {};
  });
}

status fake_driver::bind_multicast_address(const multicast_address_binding& request) {
  check(state_ != nullptr, fake::moved_from);
  fake_state& s = *state_;
  return s.run<void>(call::bind_multicast, [&]() -> status {
    const auto refused = [&](const objection& bad) {
      return s.refuse_as(call::bind_multicast, bad.why, bad.detail);
    };
    if (!s.emulated.can.multicast) return refused(no_multicast);
    if (s.team_of(request.team) == nullptr) return refused(no_team);
    const auto found = s.mapping_at(request.memory.base.value);
    if (found == s.mappings.end())
      return refused({refusal::not_mapped, "nothing is mapped at this address"});
    const address_range whole{address{found->first}, found->second.size_bytes};
    if (!whole.contains(request.memory))
      return refused({refusal::bad_value, "the range is not inside one mapping"});
    const std::uint64_t token = found->second.memory;
    fake::memory* const behind = s.machine->memories.find(token);
    check(behind != nullptr, "a mapping has no memory");
    multicast_binding as{};
    as.team = request.team;
    as.device = behind->made_as.where;
    as.team_offset_bytes = request.team_offset_bytes;
    as.memory_offset_bytes = found->second.offset_bytes + (request.memory.base - whole.base);
    as.size_bytes = request.memory.size_bytes;
    if (const auto bad = object_to(s, as, behind)) return refused(*bad);
    bind(s, as, token);
    return {};
  });
}

status fake_driver::unbind_multicast(const multicast_binding& request) {
  check(state_ != nullptr, fake::moved_from);
  fake_state& s = *state_;
  return s.run<void>(call::unbind_multicast, [&]() -> status {
    const auto refused = [&](const objection& bad) {
      return s.refuse_as(call::unbind_multicast, bad.why, bad.detail);
    };
    if (!s.emulated.can.multicast) return refused(no_multicast);
    const fake::memory* joined = s.team_of(request.team);
    if (joined == nullptr) return refused(no_team);
    auto& bindings = joined->multicast->bindings;
    const auto found = std::find_if(bindings.begin(), bindings.end(), [&](const binding& each) {
      return each.device == request.device.ordinal &&
             each.team_offset == request.team_offset_bytes && each.size_bytes == request.size_bytes;
    });
    if (found == bindings.end()) {
      return refused({refusal::bad_value, "repeat the exact numbers of one earlier bind"});
    }
    const std::uint64_t token = found->memory;
    check(s.machine->memories.find(token) != nullptr, "memory is bound that is gone");
    bindings.erase(found);
    check(s.machine->memories.find(token)->bindings != 0, "the unbound range was not bound");
    --s.machine->memories.find(token)->bindings;
    s.machine->drop_if_unused(token);
    s.charge_us(s.emulated.costs.query_us);
    return {};
  });
}

}  // namespace vmm

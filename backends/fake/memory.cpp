// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.fake - physical memory: create, release, retain and the questions about it.
module vmm.fake;

import vmm.backend;
import vmm.base;
import vmm.std;
import :machine;
import :state;

namespace vmm {

using fake::fake_state;
using fake::objection;
using fake::refusal;

namespace fake {

void machine_state::clear_until_now(clearing& which) const noexcept {
  if (now_ns <= which.since_ns) return;  // a create that failed has not taken its time
  const double cleared = static_cast<double>(now_ns - which.since_ns) / 1000.0 * clear_bytes_per_us;
  const auto left = static_cast<double>(which.left_bytes);
  which.left_bytes = cleared >= left ? 0 : static_cast<std::uint64_t>(left - cleared);
  check(which.left_bytes <= static_cast<std::uint64_t>(left), "clearing makes more to clear");
  which.since_ns = now_ns;
}

double machine_state::take_cleared(location where, std::uint64_t size_bytes) noexcept {
  const std::uint64_t all_free = free_bytes(where);
  check(all_free >= size_bytes, "more memory is taken than is free");
  free_bytes(where) -= size_bytes;
  if (where.kind != location::place::device || clear_bytes_per_us == 0) return 0;
  clearing& of = device_clearing[static_cast<std::size_t>(where.ordinal)];
  clear_until_now(of);
  check(of.left_bytes <= all_free, "more memory is to be cleared than is free");
  const std::uint64_t clean_bytes = all_free - of.left_bytes;
  if (clean_bytes >= size_bytes) return 0;
  const std::uint64_t missing_bytes = size_bytes - clean_bytes;
  const double wait_us = static_cast<double>(missing_bytes) / clear_bytes_per_us;
  of.left_bytes -= missing_bytes;
  of.since_ns += static_cast<std::uint64_t>(wait_us * 1000.0);
  return wait_us;
}

void machine_state::give_back(const physical_request& released) noexcept {
  check(free_bytes(released.where) + released.size_bytes >= released.size_bytes,
        "more memory is free than can be counted");
  free_bytes(released.where) += released.size_bytes;
  if (released.where.kind != location::place::device || clear_bytes_per_us == 0) return;
  clearing& of = device_clearing[static_cast<std::size_t>(released.where.ordinal)];
  clear_until_now(of);
  of.left_bytes += released.size_bytes;
  check(of.left_bytes <= free_bytes(released.where), "more memory is to be cleared than is free");
}

void machine_state::drop_if_unused(std::uint64_t token) noexcept {
  memory* unused = memories.find(token);
  check(unused != nullptr, "machine I1: a memory is released twice");
  if (unused->references() > 0) return;
  if (!unused->multicast) {
    give_back(unused->made_as);
    memories.remove(token);
    return;
  }
  // Memory bound to a multicast object is real memory, to which nothing is bound.
  const std::unique_ptr<team> dissolved = std::move(unused->multicast);
  memories.remove(token);
  for (const binding& each : dissolved->bindings) {
    memory& bound = *memories.find(each.memory);
    check(bound.bindings != 0 && !bound.multicast,
          "a binding names a handle that is not bound, "
          "or is not memory");
    --bound.bindings;
    if (bound.references() > 0) continue;
    give_back(bound.made_as);
    memories.remove(each.memory);
  }
}

bool fake_state::known(location where) const noexcept {
  switch (where.kind) {
    case location::place::device:
      return where.ordinal >= 0 && where.ordinal < emulated.device_count;
    case location::place::host: return where.ordinal == 0;
    case location::place::host_node:
      return where.ordinal >= 0 && where.ordinal < emulated.node_count;
  }
  return false;
}

granularity fake_state::granularity_of(const physical_request& request) const noexcept {
  if (request.where.kind != location::place::device) return emulated.host_granularity;
  check(emulated.device_count > 0, "the granularity of a device on a machine without devices");
  const bool small = request.size_bytes != 0 && request.size_bytes < emulated.small_below_bytes;
  if (small) return emulated.small_granularity;
  return emulated.device_granularity;
}

memory* fake_state::memory_of(physical_handle handle) noexcept {
  const handle_record* record = handles.find(static_cast<std::uint64_t>(handle));
  memory* const behind = record == nullptr ? nullptr : machine->memories.find(record->memory);
  check(record == nullptr || (behind != nullptr && behind->handles != 0),
        "fake I1: a handle has no memory");
  return behind;
}

// One more reference from this driver. May throw, and then has done nothing.
void fake_state::add_reference(std::uint64_t memory_token) {
  const auto [found, first] = reference_counts.try_emplace(memory_token, 0U);
  ++found->second;
  if (!first) return;
  check(machine->memories.find(memory_token) != nullptr,
        "machine I1: a reference to released memory");
  const memory& kept = *machine->memories.find(memory_token);
  if (kept.multicast) {
    ++counts.teams;
    return;
  }
  ++counts.memories;
  counts.memory_bytes += kept.made_as.size_bytes;
  raise_marks();
}

// The caller has already taken its handle or mapping off the memory's own counts.
void fake_state::drop_reference(std::uint64_t memory_token) noexcept {
  const auto found = reference_counts.find(memory_token);
  check(found != reference_counts.end() && found->second != 0, "a reference is dropped twice");
  if (--found->second == 0) {
    reference_counts.erase(found);
    const memory& kept = *machine->memories.find(memory_token);
    check(kept.multicast ? counts.teams != 0 : counts.memory_bytes >= kept.made_as.size_bytes,
          "a count of memories would fall below zero");
    counts.teams -= kept.multicast ? 1U : 0U;
    counts.memories -= kept.multicast ? 0U : 1U;
    counts.memory_bytes -= kept.multicast ? 0U : kept.made_as.size_bytes;
  }
  machine->drop_if_unused(memory_token);
}

result<physical_handle> fake_state::add_handle(std::uint64_t memory_token) {
  const std::uint64_t token = handles.add({memory_token, ++machine->serials});
  try {
    add_reference(memory_token);
  } catch (...) {
    handles.remove(token);
    throw;
  }
  ++machine->memories.find(memory_token)->handles;
  ++counts.handles;
  check(counts.handles == handles.live(), "the count of handles is wrong");
  return static_cast<physical_handle>(token);
}

}  // namespace fake

result<granularity> fake_driver::query_granularity(const physical_request& request) {
  check(state_ != nullptr, fake::moved_from);
  fake_state& s = *state_;
  return s.run<granularity>(call::query_granularity, [&]() -> result<granularity> {
    if (!s.known(request.where)) {
      return s.refuse_as(call::query_granularity, refusal::bad_location,
                         "no such device or NUMA node: name one that the machine has");
    }
    s.charge_us(s.emulated.costs.query_us);
    return s.granularity_of(request);
  });
}

result<memory_info> fake_driver::query_memory(location where) {
  check(state_ != nullptr, fake::moved_from);
  fake_state& s = *state_;
  return s.run<memory_info>(call::memory_info, [&]() -> result<memory_info> {
    if (!s.known(where)) {
      return s.refuse_as(call::memory_info, refusal::bad_location,
                         "no such device or NUMA node: name one that the machine has");
    }
    s.charge_us(s.emulated.costs.query_us);
    const bool on_device = where.kind == location::place::device;
    return memory_info{s.machine->free_bytes(where),
                       on_device ? s.emulated.device_memory_bytes : s.emulated.host_memory_bytes};
  });
}

namespace {

// What create refuses, or nothing.
std::optional<objection> object_to(fake_state& s, const physical_request& request) {
  using place = location::place;
  const features& can = s.emulated.can;
  const bool emulates_cuda = s.emulated.codes == fake::error_code_set::cuda;
  if (!s.known(request.where)) {
    const bool node = request.where.kind == place::host_node;
    return objection{emulates_cuda && node ? refusal::bad_value : refusal::bad_location,
                     "no such device or NUMA node"};
  }
  if ((request.where.kind == place::host && !can.host_location) ||
      (request.where.kind == place::host_node && !can.host_node_location)) {
    return objection{refusal::unsupported, "this driver makes no memory at that place"};
  }
  if (request.rdma_capable && !can.rdma) {
    return objection{refusal::unsupported, "this driver makes no memory that RDMA can reach"};
  }
  const std::uint64_t unit = s.granularity_of(request).minimum_bytes;
  check(unit != 0, "a place has no granularity");
  if (request.size_bytes == 0 || request.size_bytes % unit != 0) {
    return objection{refusal::bad_value,
                     "the size must be a multiple of the granularity, and not 0: round it up"};
  }
  const auto kinds = static_cast<unsigned>(request.shareable);
  const auto asked = [&](share_kind kind) { return (kinds & static_cast<unsigned>(kind)) != 0; };
  const bool anywhere = request.where.kind == place::host;
  if (emulates_cuda && (asked(share_kind::win32) || (kinds != 0 && anywhere))) {
    return objection{refusal::bad_value, "memory of that place cannot be shared in that way"};
  }
  if ((asked(share_kind::posix_fd) && !can.export_posix_fd) || asked(share_kind::win32) ||
      (asked(share_kind::fabric) && !can.export_fabric)) {
    return objection{refusal::unsupported, "this driver cannot share memory in that way"};
  }
  if (asked(share_kind::fabric) && !s.emulated.fabric_permitted) {
    return objection{refusal::forbidden, "this process has no channel for fabric handles"};
  }
  if (request.size_bytes > s.machine->free_bytes(request.where)) {
    return objection{refusal::no_memory, "not enough free memory there: release some and retry"};
  }
  return std::nullopt;
}

}  // namespace

result<physical_handle> fake_driver::create(const physical_request& request) {
  check(state_ != nullptr, fake::moved_from);
  fake_state& s = *state_;
  return s.run<physical_handle>(call::create, [&]() -> result<physical_handle> {
    if (const auto bad = object_to(s, request))
      return s.refuse_as(call::create, bad->why, bad->detail);
    physical_request grant = request;
    grant.compressible = request.compressible && s.emulated.can.compression;
    const std::uint64_t granule = s.granularity_of(request).minimum_bytes;
    check(granule != 0 && grant.size_bytes % granule == 0, "memory is not whole granules");
    const std::uint64_t token =
        s.machine->memories.add(fake::memory{grant, granule, ++s.machine->serials});
    const double wait_us = s.machine->take_cleared(grant.where, grant.size_bytes);
    try {
      result<physical_handle> made = s.add_handle(token);
      check(s.machine->memories.find(token)->references() == 1,
            "new memory does not have exactly one handle");
      s.charge_us(s.emulated.costs.create.at(grant.size_bytes) + wait_us);
      return made;
    } catch (...) {
      s.machine->drop_if_unused(token);
      throw;
    }
  });
}

status fake_driver::release(physical_handle handle) {
  check(state_ != nullptr, fake::moved_from);
  fake_state& s = *state_;
  return s.run<void>(call::release, [&]() -> status {
    const auto token = static_cast<std::uint64_t>(handle);
    const fake::handle_record* record = s.handles.find(token);
    if (record == nullptr) {
      s.misused(fake::misuse_kind::stale_handle, call::release, {}, token,
                "released before, or never made");
      return s.refuse_as(call::release, refusal::bad_handle,
                         "not a live handle: it was released before, or never made");
    }
    const std::uint64_t memory_token = record->memory;
    fake::memory& released = *s.machine->memories.find(memory_token);
    if (released.handles == 1 && released.mappings > 0 && !s.emulated.can.release_while_mapped) {
      s.misused(fake::misuse_kind::released_while_mapped, call::release, {}, token,
                "unmap it everywhere first");
      if (!s.emulated.traps.release_unchecked) {
        return s.refuse_as(call::release, refusal::in_use,
                           "still mapped: unmap it everywhere first");
      }
    }
    // A release that leaves the memory alive gives nothing back, and so costs next to nothing.
    const bool last = released.references() == 1 && !released.multicast;
    s.charge_us(last ? s.emulated.costs.release.at(released.made_as.size_bytes)
                     : s.emulated.costs.query_us);
    check(released.handles != 0 && s.counts.handles != 0, "a count of handles would be below zero");
    --released.handles;
    --s.counts.handles;
    s.handles.remove(token);
    check(s.counts.handles == s.handles.live(), "the count of handles is wrong");
    s.drop_reference(memory_token);
    return {};
  });
}

result<physical_handle> fake_driver::retain(address at) {
  check(state_ != nullptr, fake::moved_from);
  fake_state& s = *state_;
  return s.run<physical_handle>(call::retain, [&]() -> result<physical_handle> {
    if (!s.emulated.can.retain) {
      return s.refuse_as(call::retain, refusal::unsupported,
                         "this driver has no handle for an address");
    }
    const auto found = s.mapping_at(at.value);
    if (found == s.mappings.end()) {
      return s.refuse_as(call::retain, refusal::not_mapped, "nothing is mapped at this address");
    }
    check(s.machine->memories.find(found->second.memory) != nullptr, "a mapping has no memory");
    result<physical_handle> made = s.add_handle(found->second.memory);
    check(made && s.memory_of(*made) != nullptr, "a handle that was retained has no memory");
    s.charge_us(s.emulated.costs.query_us);
    return made;
  });
}

result<physical_properties> fake_driver::get_properties(physical_handle handle) {
  check(state_ != nullptr, fake::moved_from);
  fake_state& s = *state_;
  return s.run<physical_properties>(call::get_properties, [&]() -> result<physical_properties> {
    const fake::memory* found = s.memory_of(handle);
    if (found == nullptr || found->multicast) {
      s.misused(fake::misuse_kind::stale_handle, call::get_properties, {},
                static_cast<std::uint64_t>(handle), "released before, or never made");
      return s.refuse_as(call::get_properties, refusal::bad_handle, "not a live handle");
    }
    s.charge_us(s.emulated.costs.query_us);
    const physical_request& grant = found->made_as;
    const bool is_plain = s.emulated.traps.imports_are_plain &&
                          s.handles.find(static_cast<std::uint64_t>(handle))->is_imported;
    return physical_properties{grant.where, is_plain ? share_kind::none : grant.shareable,
                               grant.compressible, grant.rdma_capable && !is_plain};
  });
}

}  // namespace vmm

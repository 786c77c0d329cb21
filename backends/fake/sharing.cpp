// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.fake - sharing memory between the drivers of one machine.
//
// A descriptor is a token of the machine that keeps the memory alive until it is closed. Its number
// is one that no system returns, so closing it can never close a real descriptor. A fabric handle
// is the memory's own token, and keeps nothing alive.
module vmm.fake;

import vmm.backend;
import vmm.base;
import vmm.std;
import :machine;
import :state;

namespace vmm {

using fake::fake_state;
using fake::misuse_kind;
using fake::refusal;

namespace {

bool includes(share_kind kinds, share_kind kind) noexcept {
  return (static_cast<unsigned>(kinds) & static_cast<unsigned>(kind)) != 0;
}

bool can_share(const features& can, share_kind kind) noexcept {
  return (kind == share_kind::posix_fd && can.export_posix_fd) ||
         (kind == share_kind::fabric && can.export_fabric);
}

}  // namespace

result<shared_handle> fake_driver::export_handle(physical_handle handle, share_kind kind) {
  check(state_ != nullptr, fake::moved_from);
  fake_state& s = *state_;
  return s.run<shared_handle>(call::export_handle, [&]() -> result<shared_handle> {
    const auto refused = [&](refusal why, const char* detail) {
      return s.refuse_as(call::export_handle, why, detail);
    };
    if (!can_share(s.emulated.can, kind)) {
      return refused(refusal::unsupported, "this driver cannot share memory in that way");
    }
    const fake::handle_record* record = s.handles.find(static_cast<std::uint64_t>(handle));
    if (record == nullptr) {
      s.misused(misuse_kind::stale_handle, call::export_handle, {},
                static_cast<std::uint64_t>(handle), "released before, or never made");
      return refused(refusal::bad_handle, "not a live handle");
    }
    fake::memory& shared = *s.machine->memories.find(record->memory);
    if (!includes(shared.made_as.shareable, kind)) {
      return refused(refusal::bad_value, "request this kind of sharing when the memory is created");
    }
    if (record->is_imported && s.emulated.traps.imports_are_plain)
      return refused(refusal::bad_value, "memory that was imported is not exported again");
    shared_handle made{};
    made.kind = kind;
    made.size_bytes = shared.made_as.size_bytes;
    if (kind == share_kind::posix_fd) {
      const std::uint64_t token = s.machine->descriptors.add({record->memory, &s, {}, false});
      ++shared.descriptors;
      check(shared.descriptors != 0, "memory has more descriptors than can be counted");
      made.descriptor = static_cast<std::int64_t>(token);
    } else {
      std::memcpy(made.fabric, &record->memory, sizeof record->memory);
    }
    s.charge_us(s.emulated.costs.export_us);
    return made;
  });
}

result<physical_handle> fake_driver::import_handle(const shared_handle& shared) {
  check(state_ != nullptr, fake::moved_from);
  fake_state& s = *state_;
  return s.run<physical_handle>(call::import_handle, [&]() -> result<physical_handle> {
    const auto refused = [&](refusal why, const char* detail) {
      return s.refuse_as(call::import_handle, why, detail);
    };
    if (!can_share(s.emulated.can, shared.kind)) {
      return refused(refusal::unsupported, "this driver cannot share memory in that way");
    }
    std::uint64_t memory_token = 0;
    if (shared.kind == share_kind::posix_fd) {
      const auto* open = s.machine->descriptors.find(static_cast<std::uint64_t>(shared.descriptor));
      if (open == nullptr) {
        s.misused(misuse_kind::stale_handle, call::import_handle, {},
                  static_cast<std::uint64_t>(shared.descriptor), "not an open descriptor");
        return refused(refusal::bad_value, "not an open descriptor");
      }
      if (open->is_dma_buf)
        return refused(refusal::bad_value, "this driver does not import DMA-BUFs");
      memory_token = open->memory;
    } else {
      if (!s.emulated.fabric_permitted) {
        return refused(refusal::forbidden, "this process has no channel for fabric handles");
      }
      std::memcpy(&memory_token, shared.fabric, sizeof memory_token);
      if (s.machine->memories.find(memory_token) == nullptr) {
        return refused(refusal::bad_value, "the memory of this fabric handle was released");
      }
    }
    check(s.machine->memories.find(memory_token) != nullptr,
          "a descriptor names memory that is gone");
    result<physical_handle> made = s.add_handle(memory_token);
    check(made && s.memory_of(*made) != nullptr, "a handle that was imported has no memory");
    s.handles.find(static_cast<std::uint64_t>(*made))->is_imported = true;
    s.charge_us(s.emulated.costs.import_us);
    return made;
  });
}

status fake_driver::close_descriptor(const shared_handle& shared) {
  check(state_ != nullptr, fake::moved_from);
  fake_state& s = *state_;
  return s.look<void>([&]() -> status {
    const auto token = static_cast<std::uint64_t>(shared.descriptor);
    const auto* open = s.machine->descriptors.find(token);
    if (shared.kind != share_kind::posix_fd || open == nullptr) {
      s.misused(misuse_kind::stale_handle, call::none, {}, token, "not an open descriptor");
      return refuse(errc::invalid_argument, "not an open descriptor");
    }
    std::vector<std::uint64_t> kept = open->more;
    kept.push_back(open->memory);
    s.machine->descriptors.remove(token);
    for (const std::uint64_t memory_token : kept) {
      check(s.machine->memories.find(memory_token)->descriptors != 0,
            "a descriptor is closed twice");
      --s.machine->memories.find(memory_token)->descriptors;
      s.machine->drop_if_unused(memory_token);
    }
    return {};
  });
}

result<dma_buf> fake_driver::export_range(address_range range) {
  check(state_ != nullptr, fake::moved_from);
  fake_state& s = *state_;
  return s.run<dma_buf>(call::export_range, [&]() -> result<dma_buf> {
    const auto refused = [&](refusal why, const char* detail) {
      return s.refuse_as(call::export_range, why, detail);
    };
    if (!s.emulated.can.export_dma_buf)
      return refused(refusal::unsupported, "this driver makes no DMA-BUF");
    constexpr std::uint64_t host_page = 4096;
    if (range.empty() || range.base.value % host_page != 0 || range.size_bytes % host_page != 0)
      return refused(refusal::bad_value, "address and size must be multiples of a host page");
    fake::descriptor_record made{0, &s, {}, true};
    std::uint64_t at = range.base.value;
    while (at < range.end().value) {
      const auto found = s.mapping_at(at);
      if (found == s.mappings.end())
        return refused(refusal::not_mapped, "a part of the range is not mapped");
      made.more.push_back(found->second.memory);
      at = found->first + found->second.size_bytes;
    }
    check(!made.more.empty(), "a range without memory is exported");
    const std::vector<std::uint64_t> kept = made.more;
    made.memory = made.more.back();
    made.more.pop_back();
    const std::uint64_t token = s.machine->descriptors.add(std::move(made));
    for (const std::uint64_t each : kept) ++s.machine->memories.find(each)->descriptors;
    s.charge_us(s.emulated.costs.export_us);
    return dma_buf{static_cast<std::int64_t>(token), range.size_bytes};
  });
}

}  // namespace vmm

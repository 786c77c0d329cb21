// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.fake - sharing memory between the drivers of one world.
//
// A descriptor is a token of the world: it keeps the memory alive until it is closed, and a number
// that no system would give, so that nobody closes a real one by mistake. A fabric handle is the
// memory's own token, and keeps nothing alive.
module;
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

module vmm.fake;

import vmm.backend;
import :state;

namespace vmm {

using fake::driver_state;
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
  driver_state& s = *state_;
  return s.run<shared_handle>(call::export_handle, [&]() -> result<shared_handle> {
    const auto refused = [&](refusal why, const char* detail) {
      return s.refuse_as(call::export_handle, why, detail);
    };
    if (!can_share(s.plays.can, kind)) {
      return refused(refusal::unsupported, "this driver cannot share memory in that way");
    }
    const fake::handle_record* record = s.handles.find(static_cast<std::uint64_t>(handle));
    if (record == nullptr) {
      s.misused(misuse_kind::stale_handle, call::export_handle, {},
                static_cast<std::uint64_t>(handle), "released before, or never made");
      return refused(refusal::bad_handle, "not a live handle");
    }
    fake::memory& shared = *s.world->memories.find(record->memory);
    if (!includes(shared.made_as.shareable, kind)) {
      return refused(refusal::bad_value, "ask for this way of sharing when the memory is created");
    }
    shared_handle made{};
    made.kind = kind;
    made.size_bytes = shared.made_as.size_bytes;
    if (kind == share_kind::posix_fd) {
      const std::uint64_t token = s.world->descriptors.add({record->memory, &s});
      ++shared.descriptors;
      made.descriptor = static_cast<std::int64_t>(token);
    } else {
      std::memcpy(made.fabric, &record->memory, sizeof record->memory);
    }
    s.charge_us(s.plays.costs.export_us);
    return made;
  });
}

result<physical_handle> fake_driver::import_handle(const shared_handle& shared) {
  driver_state& s = *state_;
  return s.run<physical_handle>(call::import_handle, [&]() -> result<physical_handle> {
    const auto refused = [&](refusal why, const char* detail) {
      return s.refuse_as(call::import_handle, why, detail);
    };
    if (!can_share(s.plays.can, shared.kind)) {
      return refused(refusal::unsupported, "this driver cannot share memory in that way");
    }
    std::uint64_t memory_token = 0;
    if (shared.kind == share_kind::posix_fd) {
      const auto* open = s.world->descriptors.find(static_cast<std::uint64_t>(shared.descriptor));
      if (open == nullptr) {
        s.misused(misuse_kind::stale_handle, call::import_handle, {},
                  static_cast<std::uint64_t>(shared.descriptor), "not an open descriptor");
        return refused(refusal::bad_value, "not an open descriptor");
      }
      memory_token = open->memory;
    } else {
      if (!s.plays.fabric_permitted) {
        return refused(refusal::forbidden, "this process has no channel for fabric handles");
      }
      std::memcpy(&memory_token, shared.fabric, sizeof memory_token);
      if (s.world->memories.find(memory_token) == nullptr) {
        return refused(refusal::bad_value, "no memory has this fabric handle any more");
      }
    }
    result<physical_handle> made = s.add_handle(memory_token);
    s.charge_us(s.plays.costs.import_us);
    return made;
  });
}

status fake_driver::close_descriptor(const shared_handle& shared) {
  driver_state& s = *state_;
  return s.look<void>([&]() -> status {
    const auto token = static_cast<std::uint64_t>(shared.descriptor);
    const auto* open = s.world->descriptors.find(token);
    if (shared.kind != share_kind::posix_fd || open == nullptr) {
      s.misused(misuse_kind::stale_handle, call::none, {}, token, "not an open descriptor");
      return refuse(errc::invalid_argument, "not an open descriptor");
    }
    const std::uint64_t memory_token = open->memory;
    s.world->descriptors.remove(token);
    --s.world->memories.find(memory_token)->descriptors;
    s.world->drop_if_unused(memory_token);
    return {};
  });
}

}  // namespace vmm

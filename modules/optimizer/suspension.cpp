// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module vmm.optimizer;

import vmm.backend;
import vmm.base;
import vmm.physical;
import vmm.std;
import vmm.timeline;

namespace vmm {

namespace {

constexpr int undo_attempts = 3;

mapping_plan plan_of(const suspension_part& part) noexcept {
  check(part.at.value != 0 && part.memory != nullptr, "a part is nowhere");
  return {part.at, {&part.memory, 1}, stream_handle::default_stream, part.own_rights};
}

status attach(device_core& core, suspension_part& part) {
  check(part.memory->handle != physical_handle::none, "I1: a part is mapped that has no memory");
  const status done = part.is_attached() ? core.remaps.give_access(part.range(), part.own_rights)
                                         : core.remaps.map(plan_of(part)).result;
  part.is_bare = !done && part.is_attached();
  return done;
}

status detach(device_core& core, const suspension_part& part) {
  check(part.memory->mapping_count <= 1, "a part is mapped at several addresses");
  return part.is_attached() ? core.remaps.unmap(plan_of(part)).result : status{};
}

}  // namespace

std::uint64_t calling_thread() noexcept {
  thread_local const char mark = 0;
  return reinterpret_cast<std::uintptr_t>(&mark);
}

std::uint64_t suspendable::next_lock_order() noexcept {
  static std::atomic<std::uint64_t> last = 0;  // no step of a test's schedule
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

bool are_attached(std::span<const suspension_part> parts) noexcept {
  return std::all_of(parts.begin(), parts.end(),
                     [](const suspension_part& each) { return each.is_attached(); });
}

std::uint64_t sum_of(std::span<const suspension_part> parts) noexcept {
  std::uint64_t sum_bytes = 0;
  for (const suspension_part& each : parts) sum_bytes += each.range().size_bytes;
  check(parts.empty() == (sum_bytes == 0), "parts have no bytes");
  return sum_bytes;
}

bool try_to_attach(device_core& core, std::span<suspension_part> parts) noexcept {
  bool has_all = true;
  for (suspension_part& each : parts) {
    if (each.is_attached() && !each.is_bare) continue;
    status done = attach(core, each);
    for (int left = undo_attempts - 1; left > 0 && !done; --left) done = attach(core, each);
    has_all = has_all && done.has_value();
  }
  check(!has_all || are_attached(parts), "I2: a mapped part has no mapping");
  return has_all;
}

bool try_to_detach(device_core& core, std::span<suspension_part> parts) noexcept {
  bool has_all = true;
  for (const suspension_part& each : parts) {
    status done = detach(core, each);
    for (int left = undo_attempts - 1; left > 0 && !done; --left) done = detach(core, each);
    check(!done || !each.is_attached(), "an unmapped part has a mapping");
    has_all = has_all && done.has_value();
  }
  return has_all;
}

status detach_parts(device_core& core, std::span<suspension_part> parts) {
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const status done = detach(core, parts[i]);
    check(!done || !parts[i].is_attached(), "an unmapped part has a mapping");
    if (done) continue;
    (void)try_to_attach(core, parts.first(i));
    return done;
  }
  return {};
}

status attach_parts(device_core& core, std::span<suspension_part> parts) {
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const status done = attach(core, parts[i]);
    check(!done || parts[i].is_attached(), "I2: a mapped part has no mapping");
    if (done) continue;
    (void)try_to_detach(core, parts.first(i + 1));
    return done;
  }
  return {};
}

status provide_parts(device_core& core, std::span<const suspension_part> parts) {
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const status done = core.memory.resume(*parts[i].memory);
    check(!done || parts[i].memory->handle != physical_handle::none,
          "a part was made without memory");
    if (done) continue;
    (void)release_parts(core, parts.first(i));
    return done;
  }
  return {};
}

std::uint64_t release_parts(device_core& core, std::span<const suspension_part> parts) noexcept {
  std::uint64_t kept_bytes = 0;
  for (const suspension_part& each : parts) {
    if (each.is_attached() || !core.memory.suspend(*each.memory))
      kept_bytes += each.range().size_bytes;
  }
  check(kept_bytes <= sum_of(parts), "more is kept than exists");
  return kept_bytes;
}

}  // namespace vmm

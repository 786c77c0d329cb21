// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include "process.h"

#include <memory>
#include <utility>

#include "ipc.h"
#include "settings.h"

import vmm.base;

namespace vmm::preload::managed {

process_state& process() noexcept {
  static process_state* const only = new process_state;
  return *only;
}

void violated(const char* invariant) noexcept {
  if (has_violation.exchange(true, std::memory_order_relaxed)) return;
  complain(
      "an internal error of the library: the CUDA driver serves later allocations, and the program "
      "continues. Run it with VMM_DISABLE=1, and report this line: ",
      invariant);
}

void forget(stream_id stream) noexcept {
  process_state& p = process();
  {
    const gate_guard shared(locks::gate);
    p.devices.visit(
        [&](device_pools& each) { (void)each.pool(owner::ordered).forget(handle_of(stream)); });
  }
  p.contexts.forget(stream);
  p.captures.forget(stream);
}

// ---- the end of a context -----------------------------------------------------------------------

context_end_guard::context_end_guard() noexcept {
  locks::gate.lock();
  locks::ending.lock();
}

context_end_guard::~context_end_guard() {
  locks::ending.unlock();
  locks::gate.unlock();
}

context_id context_end_guard::primary_context(device_id device) const noexcept {
  const process_state& p = process();
  return p.cu.is_usable ? p.contexts.primary_of(device) : nullptr;
}

void note_ended(context_id gone) noexcept {
  if (gone == nullptr) return;
  process_state& p = process();
  const sync::lock_guard turn(locks::opening);
  p.contexts.forget_context(gone);
  p.events.forget_context(gone);
  p.captures.forget_context(gone);
  std::unique_ptr<device_pools> closed = p.devices.close(gone);
  ipc::forget_context(gone);
  if (closed == nullptr) return;
  p.blocks.forget(*closed);
  device_pools::end(std::move(closed));
}

// ---- waiting ------------------------------------------------------------------------------------

// Without an event behind all work the host waits in the gate, as in a cuMemFree. A context that
// cannot be made current was destroyed, and its work has finished.
idle_guard::idle_guard(context_id context) noexcept {
  process_state& p = process();
  locks::gate.lock_shared();
  if (!p.cu.is_usable || p.captures.is_any()) return;
  const relaxed_thread relaxed(p.cu);
  (void)p.events.wait_for_context(context);
  is_idle_ = !p.captures.is_any();
}

idle_guard::~idle_guard() { locks::gate.unlock_shared(); }

// ---- invariants ---------------------------------------------------------------------------------

const char* find_broken() {
  process_state& p = process();
  locks::gate.lock();
  const char* broken = p.captures.find_broken();
  if (broken == nullptr) broken = p.events.find_broken();
  if (broken == nullptr) broken = p.blocks.find_broken();
  p.devices.visit([&](device_pools& each) {
    if (broken == nullptr) broken = each.waiting().find_broken();
    if (broken == nullptr && p.contexts.primary_of(each.device()) != each.context())
      broken = "device_pools I1: the context of an open device has ended";
    if (broken == nullptr && p.blocks.bytes_on(each) != each.levels().bytes())
      broken = "live_blocks I2: the live bytes are not those of the live blocks";
  });
  locks::gate.unlock();
  return broken;
}

}  // namespace vmm::preload::managed

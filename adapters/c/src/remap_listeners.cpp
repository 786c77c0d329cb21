// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The remap callbacks of a pool: each is called before the memory behind an address changes.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include "errors.hpp"
#include "structs.hpp"
#include "vmm.h"

#include "pool_object.hpp"

import vmm.base;
import vmm.stream;

namespace vmm_c {

void listener::before_change(const vmm::remap_notice& notice) noexcept {
  vmm_remap_notice out{};
  out.struct_size = sizeof(out);
  out.epoch = notice.epoch;
  out.base = pointer_to(notice.range.base);
  out.size_bytes = notice.range.size_bytes;
  switch (notice.kind) {
    case vmm::remap_kind::moved: out.kind = VMM_REMAP_MOVED; break;
    case vmm::remap_kind::unmapped: out.kind = VMM_REMAP_UNMAPPED; break;
    case vmm::remap_kind::released: out.kind = VMM_REMAP_RELEASED; break;
    case vmm::remap_kind::mapped: return;  // reported to after_change() alone
  }
  const std::uint64_t before = owner_.telling.exchange(this_thread());
  ++callbacks_inside;
  callback_(context_, &out);
  --callbacks_inside;
  owner_.telling.store(before);
}

vmm_status pool_object::subscribe(vmm_remap_callback callback, void* context, std::uint64_t& out) {
  if (!made_in.is_here()) return fail_forked();
  auto made = std::make_unique<listener>(*this, callback, context);
  const vmm::sync::lock_guard<vmm::sync::mutex> lock(listeners_mutex);
  listeners.reserve(listeners.size() + 1);
  const vmm::result<vmm::remap_subscription> added = pool.remaps().subscribe(*made);
  if (!added) return fail(added.error());
  made->number = *added;
  listeners.push_back(std::move(made));
  out = static_cast<std::uint64_t>(*added);
  return VMM_SUCCESS;
}

vmm_status pool_object::unsubscribe(std::uint64_t subscription) {
  if (!made_in.is_here()) return fail_forked();
  const vmm::remap_subscription number{subscription};
  const vmm::sync::lock_guard<vmm::sync::mutex> lock(listeners_mutex);
  const auto found = std::find_if(listeners.begin(), listeners.end(),
                                  [&](const auto& each) { return each->number == number; });
  if (const vmm::status ended = pool.remaps().unsubscribe(number); !ended)
    return fail(ended.error());
  if (found != listeners.end()) listeners.erase(found);
  return VMM_SUCCESS;
}

}  // namespace vmm_c

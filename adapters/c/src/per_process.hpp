// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>

import vmm.base;

namespace vmm_c {

/// The object of this process: never destroyed, since threads of the library live as long as the
/// process. A forked child leaves its parent's behind, and has one of its own; `forked` is called
/// then. T has made_in.
template <class T, class Forked>
T& of_process(std::atomic<T*>& current, Forked forked) {
  T* found = current.load(std::memory_order_acquire);
  while (found == nullptr || !found->made_in.is_here()) {
    auto made = std::make_unique<T>();
    if (!current.compare_exchange_strong(found, made.get(), std::memory_order_acq_rel)) continue;
    if (found != nullptr) forked();
    vmm::leave_behind(found);
    return *made.release();
  }
  return *found;
}

template <class T>
T& of_process(std::atomic<T*>& current) {
  return of_process(current, [] {});
}

}  // namespace vmm_c

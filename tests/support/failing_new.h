// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Replaces operator new with one that fails where a test plans it, on the planning thread only.
// For one source file of a program that vmm_allocation_test makes, or of a library with an operator
// new of its own. Included before `import`.
#pragma once

#include <new>
#include "../../tools/program/standard.hpp"

namespace failing_new {

/// What operator new does on this thread.
struct allocation_plan {
  bool armed = false;
  int paused_count = 0;
  std::uint64_t seen_count = 0;
  std::uint64_t fail_at = 0;  ///< counted from 1; 0: none
  bool forever = false;
  std::uint64_t struck_count = 0;
};
inline thread_local allocation_plan plan;

inline bool strikes() noexcept {
  if (!plan.armed || plan.paused_count > 0) return false;
  ++plan.seen_count;
  if (plan.fail_at == 0) return false;
  const bool hit =
      plan.seen_count == plan.fail_at || (plan.forever && plan.seen_count > plan.fail_at);
  if (hit) ++plan.struck_count;
  return hit;
}

}  // namespace failing_new

void* operator new(std::size_t size_bytes) {
  void* const memory = failing_new::strikes() ? nullptr : std::malloc(size_bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void* operator new(std::size_t size_bytes, const std::nothrow_t&) noexcept {
  return failing_new::strikes() ? nullptr : std::malloc(size_bytes);
}
void* operator new(std::size_t size_bytes, std::align_val_t alignment,
                   const std::nothrow_t&) noexcept {
  if (failing_new::strikes()) return nullptr;
  const auto unit = static_cast<std::size_t>(alignment);
  return std::aligned_alloc(unit, (size_bytes + unit - 1) / unit * unit);
}
void* operator new(std::size_t size_bytes, std::align_val_t alignment) {
  void* const memory = operator new(size_bytes, alignment, std::nothrow);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t, const std::nothrow_t&) noexcept {
  std::free(memory);
}

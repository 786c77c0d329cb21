// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.backend:process - which process an object belongs to.
//
// A forked child has a copy of every object and of every lock, and none of the threads that may
// hold them. What the parent made is therefore refused in the child before a lock is taken or a
// driver is called, and left as it is when the child's copy is destroyed.
//
// I1  is_here() is false in every process that was forked after the mark was made, and stays false.
// I2  What leave_behind() was given is not destroyed and stays reachable.
//
// Children of vfork() and of clone() without fork handlers are not noticed: they may only exec.
//
// Thread safety: all of it. Cost: is_here() is one relaxed load and a comparison.
module;
#include <atomic>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

export module vmm.backend:process;

import :result;

namespace vmm {

// How many forks lie between the first process and this one. A fork handler raises it in the child.
extern std::atomic<std::uint32_t> forks_passed;

/// The process in which an object was made. A copy names the same process.
export class process_mark {
 public:
  process_mark() noexcept : made_after_(forks_passed.load(std::memory_order_relaxed)) {}
  [[nodiscard]] inline bool is_here() const noexcept {
    return made_after_ == forks_passed.load(std::memory_order_relaxed);
  }

 private:
  std::uint32_t made_after_;
};

/// What every call on an object of another process answers.
export [[nodiscard]] constexpr error refuse_forked(call where = call::none) noexcept {
  return error{errc::not_permitted, where, 0, "",
               "this object was made before the process forked: a forked child opens a driver of "
               "its own, and leaves what its parent made alone"};
}

/// Gives up an object without destroying it. Null is allowed.
export void leave_behind(const void* object) noexcept;

/// The same for an object that lies inside another one: its parts are taken out unseen.
export template <class T>
void leave_parts_behind(T& parts) noexcept {
  leave_behind(new (std::nothrow) T(std::move(parts)));
}

}  // namespace vmm

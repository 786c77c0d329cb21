// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.backend:users - who refers to an object that must outlive them, and what is live at an end.
//
// A driver has a user_count and answers it from users(); a pool and a manager hold a use_of their
// driver, a vector one of its manager. An object that goes away or moves while it has users ends
// the process with a text that names the mistake, before anybody reaches what is gone.
//
// exit() destroys what is static and nothing that lies on a stack: a static driver goes before a
// pool that main() holds. That is no mistake, and nothing is said of it.
//
// I1  A user_count whose object is destroyed, moved from or assigned to has no user. A forked
//     child's copies are not looked at: what it leaves behind uses nothing any more.
//
// Thread safety: all of it. Cost: one relaxed addition when a user is made and one when it goes,
// and a function for exit() when an object gets its first user; no other call looks at the count.
module;
#include <atomic>
#include <concepts>
#include <cstdint>
#include <utility>

export module vmm.backend:users;

import :process;
import :result;

namespace vmm {

/// What an owner of users is called in the texts of a failed check.
export enum class used_object : std::uint8_t { driver, manager };

/// How many objects refer to the one that has this as its last member. It moves with its object:
/// the moved-from one takes no user any more until it is assigned to.
export class user_count {
 public:
  explicit user_count(used_object what = used_object::driver) noexcept : what_(what) {}
  user_count(user_count&& other) noexcept : what_(other.what_) { take(other); }
  user_count& operator=(user_count&& other) noexcept {
    check_replaced();
    if (this != &other) take(other);
    return *this;
  }
  ~user_count() { check_destroyed(); }

  /// Ends the process when there are users: the object is about to go away.
  inline void check_destroyed() const noexcept {
    if (has_users()) [[unlikely]]
      fail_destroyed();
  }
  void add() noexcept;
  void remove() noexcept;
  [[nodiscard]] inline bool has_users() const noexcept {
    return count() != 0 && made_in_.is_here();
  }
  [[nodiscard]] inline std::uint32_t count() const noexcept {
    return count_.load(std::memory_order_acquire);
  }

 private:
  void take(user_count& other) noexcept;
  void check_replaced() const noexcept;
  void fail_destroyed() const noexcept;

  std::atomic<std::uint32_t> count_ = 0;
  bool is_gone_ = false;  // its object was moved from
  process_mark made_in_;
  used_object what_;
};

/// A user of an object, for its life. An object without users() is not watched: whoever writes such
/// a driver keeps it alive and in place without help.
export class use_of {
 public:
  template <class Used>
    requires(!std::same_as<Used, use_of>)  // copying is not using
  explicit use_of(Used& used) noexcept : use_of(count_of(used)) {}
  /// Null: an object that is not watched.
  explicit use_of(user_count* count) noexcept : count_(count) {
    if (count_ != nullptr) count_->add();
  }
  template <class Used>
  [[nodiscard]] static user_count* count_of(Used& used) noexcept {
    if constexpr (requires { used.users().add(); }) {
      return &used.users();
    } else {
      return nullptr;
    }
  }
  use_of(const use_of& other) noexcept : count_(other.count_), made_in_(other.made_in_) {
    if (count_ != nullptr && made_in_.is_here()) count_->add();
  }
  use_of& operator=(const use_of& other) noexcept {
    use_of made(other);
    std::swap(count_, made.count_);
    std::swap(made_in_, made.made_in_);
    return *this;
  }
  ~use_of() {
    if (count_ != nullptr && made_in_.is_here()) count_->remove();
  }

 private:
  user_count* count_ = nullptr;
  process_mark made_in_;
};

/// Blocks that were not freed when their pool or manager went away. It gives them back itself.
export struct live_blocks {
  const char* owner = "";  ///< "stream pool" or "manager"
  std::uint64_t count = 0;
  std::uint64_t size_bytes = 0;
};

/// Writes one line about them to stderr, for the first live_report_count_max reports of a process:
/// a program that does it in a loop stays readable.
export void print_live_blocks(void* context, const live_blocks& left) noexcept;
export inline constexpr std::uint32_t live_report_count_max = 8;

/// Called by the destructor of a pool or manager that has live blocks, before they are given back.
/// It may not call that pool or manager, and throws nothing. No hook: nothing is said.
export struct live_report {
  void (*hook)(void* context, const live_blocks& left) noexcept = print_live_blocks;
  void* context = nullptr;
};

}  // namespace vmm

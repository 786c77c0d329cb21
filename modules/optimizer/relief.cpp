// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include "../base/thread_annotations.h"

module vmm.optimizer;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {

namespace {

constinit thread_local std::uint32_t pause_depth = 0;

}  // namespace

relief_pause::relief_pause() noexcept {
  ++pause_depth;
  check(pause_depth != 0, "too many pauses of relief");
}
relief_pause::~relief_pause() {
  check(pause_depth != 0, "I1: a pause of relief ends without a begin");
  --pause_depth;
}
bool relief_pause::is_here() noexcept { return pause_depth != 0; }

// Never destroyed, since allocators may be static; the first process's takes no host memory.
struct relief_registry {
  // That of this process; null where the host has no memory for it.
  [[nodiscard]] static relief_registry* here() noexcept {
    alignas(relief_registry) static std::byte storage[sizeof(relief_registry)];
    static relief_registry* const first_made = ::new (storage) relief_registry;
    static std::atomic<relief_registry*> current = first_made;
    relief_registry* found = current.load(std::memory_order_acquire);
    while (!found->made_in.is_here()) {  // a child leaves its parent's alone
      auto* const made = new (std::nothrow) relief_registry;
      if (made == nullptr) return nullptr;
      relief_registry* const before = found;
      if (current.compare_exchange_strong(found, made, std::memory_order_acq_rel)) {
        leave_behind(before);
        return made;
      }
      delete made;
    }
    return found;
  }

  // Members of a key and a rank, but not the one that requests.
  struct search {
    const relief_member* requesting = nullptr;
    relief_key key{};
    relief_rank rank = relief_rank::idle;
  };
  // The first one behind the number, which is its number then; with a share of its use.
  [[nodiscard]] relief_member* take_next(const search& of,
                                         std::uint64_t& number) noexcept VMM_NOT_ANALYSED {
    const sync::lock_guard<sync::spin_lock> lock(mutex);
    relief_member* const found = find(of, number);
    if (found == nullptr) return nullptr;
    check(found != of.requesting && found->number_ > number,
          "a member is trimmed twice, or by itself");
    found->use_.lock_shared();  // at once: linked, it is not held alone
    number = found->number_;
    return found;
  }
  // A key without a source is that of every source.
  [[nodiscard]] relief_member* find(const search& of, std::uint64_t after) const noexcept
      VMM_REQUIRES(mutex) {
    for (relief_member* each = first; each != nullptr; each = each->next_) {
      check(each->number_ != 0, "a member of the registry has no number");
      const bool is_near =
          each->key_ == of.key || (of.key.source == nullptr && each->key_.where == of.key.where);
      const bool may_give = each != of.requesting && each->lend_ == nullptr;
      if (may_give && each->number_ > after && is_near && each->rank_ == of.rank) return each;
    }
    return nullptr;
  }
  // Trims members until `wanted_bytes` are released. On a thread without a lock of one.
  std::uint64_t trim(const search& of, std::uint64_t wanted_bytes) noexcept VMM_NOT_ANALYSED {
    const relief_pause no_second;  // of what callbacks allocate meanwhile
    std::uint64_t given_bytes = 0;
    std::uint64_t number = 0;
    while (given_bytes < wanted_bytes) {
      relief_member* const other = take_next(of, number);
      if (other == nullptr) break;
      given_bytes += other->from_.call(other->from_.of, wanted_bytes - given_bytes);
      other->use_.unlock_shared();
    }
    return given_bytes;
  }

  // Calls the lender of the key's source, with the thread's own locks only. Without one: 0.
  std::uint64_t lend(const relief_key& key, std::uint64_t wanted_bytes,
                     std::int64_t& until_ns) noexcept VMM_NOT_ANALYSED {
    relief_member* lender = nullptr;
    {
      const sync::lock_guard<sync::spin_lock> lock(mutex);
      lender = first;
      while (lender != nullptr && !(lender->lend_ != nullptr && lender->key_ == key))
        lender = lender->next_;
      if (lender != nullptr) lender->use_.lock_shared();
    }
    if (lender == nullptr) return 0;
    if (wanted_bytes != 0 && !relief_pause::is_here())
      (void)trim({nullptr, key}, ~std::uint64_t{0});
    const std::uint64_t bytes = lender->lend_(lender->from_.of, wanted_bytes, until_ns);
    lender->use_.unlock_shared();
    return bytes;
  }

  const process_mark made_in{};
  // A set-up enters under its allocator's lock, which a thread with a share of `use_` takes: no
  // thread may sleep with this one.
  sync::spin_lock mutex;
  relief_member* first VMM_GUARDED_BY(mutex) = nullptr;  // in the order of their numbers
  std::uint64_t last_number VMM_GUARDED_BY(mutex) = 0;
};

void relief_member::enter(const relief_key& key, const source& from, relief_rank rank) noexcept {
  check(number_ == 0 && from.call != nullptr,
        "a member enters the registry twice, or without a device");
  from_ = from;
  rank_ = rank;
  link(key);
}

void relief_member::enter_lender(const relief_key& key, void* of, lend call) noexcept {
  check(number_ == 0, "a lender enters the registry twice");
  from_.of = of;
  lend_ = call;
  link(key);
}

void relief_member::link(const relief_key& key) noexcept {
  relief_registry* const all = relief_registry::here();
  if (all == nullptr || !made_in_.is_here()) return;
  const sync::lock_guard<sync::spin_lock> lock(all->mutex);
  key_ = key;
  next_ = nullptr;
  number_ = ++all->last_number;
  check(number_ != 0, "no number for a member is left");
  relief_member** at = &all->first;
  while (*at != nullptr) at = &(*at)->next_;
  *at = this;
}

void relief_member::leave() noexcept {
  if (number_ == 0 || !made_in_.is_here()) return;
  relief_registry* const all = relief_registry::here();
  check(all != nullptr, "a member is in a missing registry");
  {
    const sync::lock_guard<sync::spin_lock> lock(all->mutex);
    relief_member** at = &all->first;
    while (*at != nullptr && *at != this) at = &(*at)->next_;
    check(*at == this, "I2: a member leaves a registry that it is not in");
    *at = std::exchange(next_, nullptr);
    number_ = 0;
  }
  const sync::lock_guard<sync::shared_mutex> alone(use_);  // every thread that found it has
                                                           // released it
}

bool relief_member::has_others() const noexcept {
  if (number_ == 0 || !made_in_.is_here()) return false;
  relief_registry* const all = relief_registry::here();
  check(all != nullptr, "a member is in a missing registry");
  const sync::lock_guard<sync::spin_lock> lock(all->mutex);
  check(all->first != nullptr, "a member is in an empty registry");
  return all->find({this, key_}, 0) != nullptr;
}

std::uint64_t relief_member::relieve(std::uint64_t wanted_bytes) noexcept {
  if (number_ == 0 || relief_pause::is_here() || !made_in_.is_here()) return 0;
  relief_registry* const all = relief_registry::here();
  check(all != nullptr, "a member is in a missing registry");
  return all->trim({this, key_}, wanted_bytes);
}

std::uint64_t relieve(const relief_key& key, std::uint64_t wanted_bytes,
                      relief_rank rank) noexcept {
  relief_registry* const all = relief_pause::is_here() ? nullptr : relief_registry::here();
  return all == nullptr ? 0 : all->trim({nullptr, key, rank}, wanted_bytes);
}

relief_loan::relief_loan(const relief_member& of, std::uint64_t wanted_bytes,
                         std::int64_t& until_ns) noexcept
    : key_(of.key_) {
  if (wanted_bytes == 0 || of.number_ == 0 || !of.made_in_.is_here()) return;
  relief_registry* const all = relief_registry::here();
  check(all != nullptr, "a member is in a missing registry");
  bytes_ = all->lend(key_, wanted_bytes, until_ns);
}

relief_loan::~relief_loan() {
  std::int64_t never_waits_ns = 0;
  if (bytes_ != 0) (void)relief_registry::here()->lend(key_, 0, never_waits_ns);
}

}  // namespace vmm

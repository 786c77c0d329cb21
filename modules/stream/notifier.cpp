// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include "../base/thread_annotations.h"

module vmm.stream;

import vmm.backend;
import vmm.base;
import vmm.optimizer;
import vmm.physical;
import vmm.std;

namespace vmm {

namespace {

thread_local const notifier* observed_by_this_thread = nullptr;
thread_local notifier* calls_this_thread = nullptr;  // whose callback or observer runs
constinit std::mutex foreign_calls;                  // no step of a test's schedule; over no call

}  // namespace

// ---- calls from inside ---------------------------------------------------------------

notifier::foreign_call::foreign_call(notifier& of) noexcept : caller_(calls_this_thread) {
  if (caller_ == &of) caller_ = nullptr;
  if (caller_ == nullptr) return;
  const std::lock_guard<std::mutex> lock(foreign_calls);
  for (const notifier* each = &of; each != nullptr && !is_circular_; each = each->waits_for_)
    is_circular_ = each == caller_;
  if (is_circular_) {
    caller_ = nullptr;
  } else {
    before_ = std::exchange(caller_->waits_for_, &of);
  }
}

notifier::foreign_call::~foreign_call() {
  if (caller_ == nullptr) return;
  const std::lock_guard<std::mutex> lock(foreign_calls);
  check(caller_->waits_for_ != nullptr, "notifier I4: a call ends for which no pool waits");
  caller_->waits_for_ = before_;
}

notifier::observer_scope::observer_scope(notifier& of) noexcept
    : before_(std::exchange(observed_by_this_thread, &of)),
      caller_before_(std::exchange(calls_this_thread, &of)) {}

notifier::observer_scope::~observer_scope() {
  check(observed_by_this_thread != nullptr, "an observer's scope ends without a begin");
  observed_by_this_thread = before_;
  calls_this_thread = caller_before_;
}

bool notifier::is_in_any_callback() noexcept { return calls_this_thread != nullptr; }

void notifier::check_not_in_observer() const noexcept {
  check(observed_by_this_thread != this, "a block observer calls the pool that calls it");
}

void notifier::check_not_in_callback() const noexcept {
  check_not_in_observer();
  check(!is_in_callback(), "a remap callback makes a forbidden call: see remap_listener");
}

// ---- listeners -----------------------------------------------------------------------

result<remap_subscription> notifier::subscribe(remap_listener& listener) noexcept {
  check_not_in_callback();
  const notices_guard held(lock_);
  try {
    listeners_.push_back({&listener, last_number_ + 1});
  } catch (const std::bad_alloc&) {
    return refuse(errc::out_of_host_memory, "no host memory is left for a subscription");
  }
  ++last_number_;
  check(last_number_ != 0, "no number for a subscription is left");
  check(listeners_.back().listener == &listener && listeners_.back().number == last_number_,
        "a subscription has another number than its listener");
  count_.store(listeners_.size(), std::memory_order_relaxed);
  return static_cast<remap_subscription>(last_number_);
}

status notifier::unsubscribe(remap_subscription gone) noexcept {
  check_not_in_callback();
  const notices_guard held(lock_);
  const auto found = std::find_if(
      listeners_.begin(), listeners_.end(),
      [&](const subscriber& each) { return each.number == static_cast<std::uint64_t>(gone); });
  if (found == listeners_.end())
    return refuse(errc::invalid_argument, "the subscription is not live: it was ended before");
  check(count_.load(std::memory_order_relaxed) == listeners_.size(),
        "notifier I1: the count of listeners is wrong");
  listeners_.erase(found);
  count_.store(listeners_.size(), std::memory_order_relaxed);
  return {};
}

// One thread at a time: the one that has the lock of growth, or the destructor's.
void notifier::notify(const remap_notice& notice) {
  check(!gate_.is_closed_by(gate_reason::callback_runs),
        "notifier I3: two threads call back at a time");
  gate_.close(gate_reason::callback_runs);
  {
    const relief_pause pause;
    const foreign_call inside(*this);  // of a callback that allocates here
    notifier* const caller_before = std::exchange(calls_this_thread, this);
    const notices_guard held(lock_);
    check(calling_.load(std::memory_order_relaxed) == 0,
          "a notification begins during another "
          "one");
    calling_.store(this_thread(), std::memory_order_relaxed);
    const bool is_after = notice.kind == remap_kind::mapped;
    check((notice.epoch != 0 || is_after) && notice.range.size_bytes != 0,
          "a notification of an empty change");
    for (const subscriber& each : listeners_) {
      if (is_after) {
        each.listener->after_change(notice);
      } else {
        each.listener->before_change(notice);
      }
    }
    calling_.store(0, std::memory_order_relaxed);
    calls_this_thread = caller_before;
  }
  gate_.open(gate_reason::callback_runs);
}

// ---- changes -------------------------------------------------------------------------

std::uint64_t notifier::next_epoch() noexcept {
  const std::uint64_t next = epoch_.fetch_add(1, std::memory_order_acq_rel) + 1;
  check(next != 0, "notifier I2: no number for a change is left");
  return next;
}

address_range notifier::range_of(const mapping& m, const physical_memory& memory) {
  return {state_.address_of(m), memory.size_bytes};
}

void notifier::moving(const growth_plan& plan) {
  if (plan.moved.empty()) return;
  check(plan.slots.size() >= plan.moved.size(), "a handle that moves has no slot");
  const std::uint64_t epoch = next_epoch();
  if (!has_listeners()) return;
  for (const handle_record* moved : plan.moved) {
    check(!moved->is_free && moved->current != nullptr, "unclaimed memory moves");
    notify({epoch, remap_kind::moved, range_of(*moved->current, *moved->memory)});
  }
}

void notifier::unmapping(mapping& gone, remap_kind kind) {
  check(gone.memory != nullptr, "a mapping without a handle is undone");
  if (std::exchange(gone.is_announced, true)) return;
  const std::uint64_t epoch = next_epoch();
  if (has_listeners()) notify({epoch, kind, range_of(gone, *gone.memory)});
}

void notifier::announce(remap_kind what, address_range range) {
  const std::uint64_t epoch = next_epoch();
  if (has_listeners()) notify({epoch, what, range});
}

void notifier::mapped(const growth_plan& plan) {
  if (!has_listeners()) return;
  check(!plan.slots.empty(), "a growth maps nothing");
  for (const mapping_slot& slot : plan.slots)
    notify({epoch(), remap_kind::mapped, range_of(*slot.where, *slot.of->memory)});
}

}  // namespace vmm

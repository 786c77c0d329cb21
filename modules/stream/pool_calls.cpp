// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include "../base/thread_annotations.h"

module vmm.stream;

import vmm.backend;
import vmm.base;
import vmm.observe;
import vmm.optimizer;
import vmm.std;

namespace vmm {

// ---- captures --------------------------------------------------------------------------

status pool_captures::begin() {
  if (status idle = of_.check_here(); !idle) return idle;
  of_.notices_.check_not_in_callback();
  of_.captures_.begin();
  return {};
}

status pool_captures::end() {
  if (status idle = of_.check_here(); !idle) return idle;
  of_.notices_.check_not_in_callback();
  if (status ended = of_.captures_.end(); !ended) return ended;
  if (of_.is_ready()) of_.parts_->clock.batches().try_record();
  return {};
}

std::uint32_t pool_captures::announced_count() const noexcept {
  return of_.captures_.announced_count();
}

result<std::uint64_t> pool_captures::number(stream_handle stream) {
  if (const status idle = of_.check_here(); !idle) return idle.error();
  return of_.captures_.number(stream);
}

status pool_captures::release(std::uint64_t number, stream_handle stream) {
  if (status named = check_stream(*of_.driver_, stream); !named) return named;
  if (status known = of_.identify(stream, of_.path_.identity_of(stream)); !known) return known;
  return of_.is_ready() ? of_.parts_->captured.release(number, stream) : of_.check_here();
}

// ---- remaps ----------------------------------------------------------------------------

result<remap_subscription> pool_remaps::subscribe(remap_listener& listener) {
  if (const status idle = of_.check_here(); !idle) return idle.error();
  return of_.notices_.subscribe(listener);
}

status pool_remaps::unsubscribe(remap_subscription subscription) {
  if (const status idle = of_.check_here(); !idle) return idle;
  return of_.notices_.unsubscribe(subscription);
}

std::uint64_t pool_remaps::epoch() const noexcept { return of_.notices_.epoch(); }

// ---- history ---------------------------------------------------------------------------

result<history> pool_recording::take() const {
  if (status idle = of_.check_here(); !idle) return idle.error();
  return of_.events_.take();
}

status pool_recording::start(const history_options& how) {
  if (status ready = of_.set_up(); !ready) return ready;
  result<std::unique_ptr<history_ring>> made = history_ring::make(how);
  if (!made) return made.error();
  const growth_guard growing(of_.entry_);
  return of_.events_.start(std::move(*made));
}

result<history> pool_recording::stop() {
  if (status idle = of_.check_here(); !idle) return idle.error();
  std::unique_ptr<history_ring> ended;  // goes after the locks
  const growth_guard growing(of_.entry_);
  return of_.events_.stop(ended);
}

void pool_recording::record(const history_note& what) noexcept {
  check(what.kind != history_kind::none, "an event of no kind is recorded");
  if (of_.is_ready()) of_.events_.note(what);  // before, the ring may be another's
}

std::uint64_t pool_recording::remembered_bytes() const noexcept {
  return of_.is_ready() ? of_.events_.remembered_bytes() : 0;
}

}  // namespace vmm

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include "../base/thread_annotations.h"

module vmm.stream;

import vmm.backend;
import vmm.base;
import vmm.observe;
import vmm.optimizer;
import vmm.physical;
import vmm.std;
import vmm.timeline;
import vmm.va;

namespace vmm {

// ---- events ------------------------------------------------------------------------------

void pool_history::note(const history_note& what) noexcept {
  if (!port_) return;
  check(what.kind != history_kind::none, "an event of no kind is noted");
  const table_lock state(state_);
  if (port_) port_->note(what);
}

void pool_history::note_footprint() noexcept {
  if (!port_) return;
  check(core_ != nullptr, "memory is counted before the first allocation");
  note({history_kind::footprint, {{}, core_->memory.statistics().held_bytes}});
}

void pool_history::note_shortage() noexcept {
  if (!port_) return;
  const shortage_report report =
      state_.with([](const auto& state) { return state_report(state).last_shortage(); });
  check(report.failure != errc::none, "a shortage is recorded without a failure");
  note({history_kind::short_of_memory,
        {{static_cast<std::uint64_t>(report.failure)}, report.request_bytes},
        report.stream,
        report.budget_bytes});
  note({history_kind::short_live, {{}, report.live_bytes}, report.stream, report.reusable_bytes});
  note({history_kind::short_free,
        {{}, report.largest_free_bytes},
        report.stream,
        report.held_bytes});
  if (!port_->wants_shortage()) return;
  if (const result<history> taken = take()) port_->write_shortage(*taken);
}

// ---- histories ---------------------------------------------------------------------------

status pool_history::start(std::unique_ptr<history_ring> ring) {
  const history_guard held(port_.mutex());
  const table_lock state(state_);
  if (status begun = port_.begin(std::move(ring)); !begun) return begun;
  state->events().set_ring(port_.get());
  for (bool is_more = true; is_more;) is_more = arena_lending(*state).flush_some();
  return {};
}

result<history> pool_history::take() const { return take(nullptr); }

result<history> pool_history::stop(std::unique_ptr<history_ring>& ended) { return take(&ended); }

result<history> pool_history::take(std::unique_ptr<history_ring>* ended) const {
  const history_guard held(port_.mutex());
  if (!port_) return no_recording;
  if (!is_ready())
    return refuse(errc::invalid_argument, "the pool has allocated nothing: its history is empty");
  pool_state* looked_at = nullptr;
  const auto with_lock = [&](auto&& work) {
    const table_lock state(state_);
    looked_at = &*state;
    work();
  };
  const auto look = [&](history& into) {
    const status described = state_report(*looked_at).describe(into);
    if (described && ended != nullptr) looked_at->events().set_ring(nullptr);
    return described;
  };
  result<history> taken = port_.take(with_lock, look, ended);
  if (!taken) return taken;
  check(ended == nullptr || !port_, "I2: a history that has ended is recorded");
  check(looked_at != nullptr, "I1: a history is taken without a look at the state");
  const status added = add_fact(*taken, "held_bytes", core_->memory.statistics().held_bytes);
  if (!added) return added.error();
  return taken;
}

// ---- vmm-top -----------------------------------------------------------------------------

void pool_history::publish() {
  const auto sample_of = [](const void* of, top_sample& out) noexcept {
    static_cast<const pool_history*>(of)->sample(out);
  };
  top_.publish({this, sample_of}, options_.publish);
}

void pool_history::note_ready() noexcept {
  const table_lock state(state_);
  ready_mapped_bytes_.store(state_report(*state).statistics().mapped_bytes,
                            std::memory_order_relaxed);
}

// Memory that was made ready and that no request outgrew is the previous run's need: this run's has
// the same share beyond its live bytes.
run_peak pool_history::peak() const noexcept {
  const table_lock state(state_);
  const pool_statistics now = state_report(*state).statistics();
  run_peak own{now.peak_live_bytes, now.peak_mapped_bytes};
  const bool is_outgrown = own.mapped_bytes > ready_mapped_bytes_.load(std::memory_order_relaxed);
  if (is_outgrown || before_.live_bytes == 0) return own;
  const double share = static_cast<double>(remembered_bytes_ - before_.live_bytes) /
                       static_cast<double>(before_.live_bytes);
  const auto beyond_bytes = static_cast<std::uint64_t>(share * static_cast<double>(own.live_bytes));
  own.mapped_bytes = std::min(own.mapped_bytes, own.live_bytes + beyond_bytes);
  return own;
}

// What else a pool's need depends on: device and policy.
void pool_history::remember(location where) {
  if (!peak_record::is_wanted() || options_.policy.tuning.keep_none) return;
  const auto peak_of = [](const void* of) noexcept {
    return static_cast<const pool_history*>(of)->peak();
  };
  try {
    const result<memory_info> device = driver_.query_memory(where);
    std::string about(driver_.name());
    about.append(1, '\0').append(options_.policy.name);
    for (const std::uint64_t each :
         {static_cast<std::uint64_t>(where.kind), static_cast<std::uint64_t>(where.ordinal),
          device ? device->total_bytes : 0, options_.budget_bytes, options_.policy.handle_bytes_max,
          std::bit_cast<std::uint64_t>(options_.policy.headroom)})
      about.append(1, '\0').append(std::to_string(each));
    before_ = peaks_.begin({this, peak_of}, about);
    // With less the pool grows more often, with more it holds more (decision 0032).
    remembered_bytes_ = before_.live_bytes + (before_.mapped_bytes - before_.live_bytes) / 10 * 9;
    is_to_be_ready_ = remembered_bytes_ != 0;
  } catch (const std::bad_alloc&) {
    // Nothing is remembered.
  }
}

// From a thread of its own.
void pool_history::sample(top_sample& out) const noexcept {
  const pool_statistics now =
      is_ready() ? state_.with([](const auto& state) { return state_report(state).statistics(); })
                 : pool_statistics{};
  check(out.held_bytes == 0 && out.live_bytes == 0, "a sample is written to one in use");
  out.kind = top_kind::pool;
  out.set_names(options_.policy.name, driver_.name());
  out.held_bytes = is_ready() ? core_->memory.statistics().held_bytes : 0;
  out.peak_held_bytes = is_ready() ? core_->memory.statistics().peak_held_bytes : 0;
  out.live_bytes = now.live_bytes;
  out.peak_live_bytes = now.peak_live_bytes;
  out.free_bytes = now.reusable_bytes;
  out.reserved_bytes = now.reserved_bytes;
  out.budget_bytes = options_.budget_bytes;
  out.live_count = now.live_count;
  out.slow_count = now.slow_count;
  out.moved_bytes = now.moved_bytes;
}

}  // namespace vmm

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The random schedules of tests/stream/program.hpp over a driver that records. The model and the
// validators of that program run in the pool's own tests.
#include "runs.hpp"

#include "../stream/program.hpp"
#include "recording_driver.hpp"

namespace golden {
namespace {

// By name, so that a field that is added changes no hash.
std::string show(const vmm::pool_statistics& of) {
  std::string out;
  const auto add = [&out](std::string_view name, std::uint64_t value) {
    out += std::string(name) + "=" + std::to_string(value) + "\n";
  };
  add("reserved_bytes", of.reserved_bytes);
  add("mapped_bytes", of.mapped_bytes);
  add("live_bytes", of.live_bytes);
  add("peak_live_bytes", of.peak_live_bytes);
  add("peak_mapped_bytes", of.peak_mapped_bytes);
  add("reusable_bytes", of.reusable_bytes);
  add("captured_bytes", of.captured_bytes);
  add("hole_bytes", of.hole_bytes);
  add("zombie_bytes", of.stale_bytes);
  add("live_count", of.live_count);
  add("zombie_count", of.stale_count);
  add("pinned_count", of.pinned_count);
  add("stream_count", of.stream_count);
  add("grown_count", of.slow_count);
  add("made_count", of.created_count);
  add("moved_count", of.moved_count);
  add("moved_bytes", of.moved_bytes);
  add("foreign_count", of.other_stream_count);
  add("wait_count", of.device_wait_count);
  add("mark_count", of.event_count);
  add("blocked_count", of.host_wait_count);
  return out;
}

}  // namespace

seeded_run run_pool(std::uint64_t seed) {
  return run_seed<basic_stream_program<recording_driver>>(
      seed, [](auto& program) { return program.run({.validate_every = 64, .every_call = false}); },
      [](const vmm::pool_statistics& last) {
        return seen_end{show(last),
                        {{"made", last.created_count},
                         {"moved", last.moved_count},
                         {"waits", last.device_wait_count},
                         {"blocked", last.host_wait_count},
                         {"peak_mapped_bytes", last.peak_mapped_bytes}}};
      });
}

}  // namespace golden

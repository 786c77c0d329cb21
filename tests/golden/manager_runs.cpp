// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The random programs of tests/manager/program.hpp over a driver that records.
#include "runs.hpp"

#include "../manager/program.hpp"
#include "recording_driver.hpp"

namespace golden {
namespace {

// By name, so that a field that is added changes no hash.
std::string show(const vmm::manager_statistics& of) {
  std::string out;
  const auto add = [&out](std::string_view name, std::uint64_t value) {
    out += std::string(name) + "=" + std::to_string(value) + "\n";
  };
  add("live_count", of.live_count);
  add("user_bytes", of.user_bytes);
  add("mapped_bytes", of.mapped_bytes);
  add("held_bytes", of.held_bytes);
  add("peak_held_bytes", of.peak_held_bytes);
  add("cached_piece_bytes", of.retained_bytes);
  add("cached_range_bytes", of.retained_mapped_bytes);
  add("retired_bytes", of.retired_bytes);
  add("reserved_bytes", of.reserved_bytes);
  add("space_live_bytes", of.space_live_bytes);
  add("space_high_water_bytes", of.space_high_water_bytes);
  add("created_count", of.created_count);
  add("reused_piece_count", of.reused_handle_count);
  add("reused_range_count", of.reused_range_count);
  add("grown_range_count", of.grown_reuse_count);
  add("unbound_range_count", of.unbound_range_count);
  add("remapped_copy_count", of.remapped_copy_count);
  add("real_copy_count", of.real_copy_count);
  add("recovery_count", of.recovery_count);
  return out;
}

}  // namespace

seeded_run run_manager(std::uint64_t seed) {
  return run_seed<basic_manager_program<recording_driver>>(
      seed, [](auto& program) { return program.run(~std::uint64_t{0}); },
      [](const vmm::manager_statistics& last) {
        return seen_end{show(last),
                        {{"created", last.created_count},
                         {"reused_pieces", last.reused_handle_count},
                         {"reused_ranges", last.reused_range_count},
                         {"remapped", last.remapped_copy_count},
                         {"recoveries", last.recovery_count},
                         {"peak_held_bytes", last.peak_held_bytes}}};
      });
}

}  // namespace golden

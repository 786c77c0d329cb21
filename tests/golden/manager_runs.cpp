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
  const auto recorder = std::make_shared<call_recorder>();
  const std::vector<std::uint8_t> bytes = random_program(seed);
  basic_manager_program<recording_driver> program{byte_source{bytes}, recorder};
  seeded_run out;
  const char* const wrong = program.run(~std::uint64_t{0});
  if (wrong != nullptr) out.problem = std::string(wrong) + ": " + program.detail();
  const vmm::manager_statistics& last = program.last_statistics();
  out.statistics = show(last);
  out.calls = recorder->text();
  text_hash statistics;
  statistics.add(out.statistics);
  row& line = out.line;
  line.name = std::to_string(seed);
  line.add("operations", program.operations());
  line.add("refused", program.failures());
  line.add("faults", program.faults());
  line.add("driver_calls", recorder->count());
  line.add("created", last.created_count);
  line.add("reused_pieces", last.reused_handle_count);
  line.add("reused_ranges", last.reused_range_count);
  line.add("remapped", last.remapped_copy_count);
  line.add("recoveries", last.recovery_count);
  line.add("peak_held_bytes", last.peak_held_bytes);
  line.figures.push_back({"statistics", statistics.text()});
  line.figures.push_back({"calls", recorder->hash()});
  return out;
}

}  // namespace golden

// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The table of words. CONTRIBUTING.md says where the terms come from.
#include "words.hpp"

#include <vector>

namespace tidy {

namespace {

std::vector<banned_word> list_words() {
  return {
      // ---- the pool ----
      {"book", "state, or the name of the part", {}},
      {"slab", "handle_record for a driver's handle, slot_map for a table of tokens", {}},
      {"view", "mapping", {"string_view", "basic_string_view"}},
      {"zombie", "stale mapping", {}},
      {"window", "target range", {}},
      {"hold", "what is meant: lock, pin, count as live", {}},
      {"held", "what is meant: locked, pinned, live, footprint", {}},
      {"foreign", "other_stream; of an error, sticky", {"foreign_error"}},
      {"heir", "successor", {}},
      {"keeper", "capture_owner", {}},
      {"commons", "shared free memory", {}},
      {"tally", "totals", {}},
      {"surrender", "release_all", {}},
      {"tend", "poll", {}},
      {"learn", "poll_events", {}},
      {"knows", "check_live, or contains", {}},
      {"harvest", "min_move_fraction", {}},
      {"may_spend", "driver_budget_ns", {}},
      {"spend_ns", "driver_budget_ns", {}},
      {"fine_handle", "small_handle_bytes", {}},
      {"keeping", "pins_and_captures", {}},
      {"looking", "statistics_and_validate", {}},
      {"allocate_known", "allocate_uncaptured", {}},
      {"allocate_asking", "check_capture", {}},
      {"allocate_slowly", "allocate_slow_path", {}},
      {"quick_lock", "spin_lock", {}},
      {"start_table", "block_table", {}},
      // ---- parts ----
      {"piece", "physical allocation; of an array, part", {}},
      {"any_set", "any_nonzero", {}},
      {"page_starts", "first_region_by_page", {}},
      {"live_bit", "unlisted_bit", {}},
      // ---- drivers ----
      {"price", "cost", {}},
      {"ledger", "resource_counts", {}},
      {"plays", "emulates", {}},
      {"playing", "emulated", {}},
      {"dialect", "error-code set", {}},
      {"world", "machine", {}},
      {"lane", "queue", {}},
      {"noisy", "has pending faults", {}},
  };
}

std::vector<exemption> list_exemptions() {
  return {
      {"modules/stream", "fine_handle"}, {"modules/stream", "foreign"},
      {"modules/stream", "harvest"},     {"modules/stream", "held"},
      {"modules/stream", "may_spend"},   {"modules/stream", "spend_ns"},
      {"modules/stream", "window"},      {"modules/stream", "zombie"},
  };
}

}  // namespace

word_rules house_words() {
  static const std::vector<banned_word> words = list_words();
  static const std::vector<exemption> exemptions = list_exemptions();
  return {words, exemptions};
}

}  // namespace tidy
